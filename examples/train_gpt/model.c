/* The layers of GPT-2 and Llama, and their initialization. */
#include "model.h"

#include <math.h>
#include <stdio.h>

static struct gpt {
    rw_tensor *table, *positions, *norm, *norm_b, *head;
    struct {
        rw_tensor *norm1, *norm1_b, *qkv, *qkv_b, *proj, *proj_b, *norm2, *norm2_b, *up, *up_b, *gate, *down, *down_b;
    } layer[MAX_LAYERS];
    rw_delayed_scaling *delayed; /* NULL: none */
} gpt;

void set_delayed(rw_delayed_scaling *d)
{
    gpt.delayed = d;
}

static rw_tensor *weight(rw_context *ctx, int l, const char *name, rw_shape shape, double value)
{
    char full[64];
    snprintf(full, sizeof full, l < 0 ? "%s" : "layer.%2$d.%1$s", name, l);
    rw_tensor *const p = rw_param(ctx, full, o.dtype, shape);
    if (p && shape.rank == 1) rw_init_constant(p, value);
    else if (p) rw_init_normal(p, 0, value);
    return p;
}

/* GPT-2 has biases, Llama none. */
static rw_tensor *bias(rw_context *ctx, int l, const char *name, int n)
{
    return o.m.llama ? rw_none() : weight(ctx, l, name, RW_SHAPE(n), 0);
}

/* Creates the parameters of one layer. */
static void make_layer(rw_context *ctx, int l)
{
    const struct size *const m = &o.m;
    const int w = m->width, qkv = (m->heads + 2 * m->kv_heads) * (w / m->heads);
    const double last = 0.02 / sqrt(2.0 * m->layers);
    gpt.layer[l].norm1 = weight(ctx, l, "norm1", RW_SHAPE(w), 1);
    gpt.layer[l].norm1_b = bias(ctx, l, "norm1.bias", w);
    gpt.layer[l].qkv = weight(ctx, l, "qkv", RW_SHAPE(qkv, w), 0.02);
    gpt.layer[l].qkv_b = bias(ctx, l, "qkv.bias", qkv);
    gpt.layer[l].proj = weight(ctx, l, "proj", RW_SHAPE(w, w), last);
    gpt.layer[l].proj_b = bias(ctx, l, "proj.bias", w);
    gpt.layer[l].norm2 = weight(ctx, l, "norm2", RW_SHAPE(w), 1);
    gpt.layer[l].norm2_b = bias(ctx, l, "norm2.bias", w);
    gpt.layer[l].up = weight(ctx, l, "up", RW_SHAPE(m->hidden, w), 0.02);
    gpt.layer[l].up_b = bias(ctx, l, "up.bias", m->hidden);
    if (m->llama) gpt.layer[l].gate = weight(ctx, l, "gate", RW_SHAPE(m->hidden, w), 0.02);
    gpt.layer[l].down = weight(ctx, l, "down", RW_SHAPE(w, m->hidden), last);
    gpt.layer[l].down_b = bias(ctx, l, "down.bias", w);
}

void make_model(rw_context *ctx)
{
    const int w = o.m.width;
    gpt.table = weight(ctx, -1, "table", RW_SHAPE(o.vocab, w), 0.02);
    if (!o.m.llama) gpt.positions = weight(ctx, -1, "positions", RW_SHAPE(o.m.seq, w), 0.02);
    for (int l = 0; l < o.m.layers; l++) make_layer(ctx, l);
    gpt.norm = weight(ctx, -1, "norm", RW_SHAPE(w), 1);
    gpt.norm_b = bias(ctx, -1, "norm.bias", w);
    gpt.head = o.m.llama && !o.m.tied ? weight(ctx, -1, "head", RW_SHAPE(o.vocab, w), 0.02) : gpt.table;
}

static rw_tensor *norm(rw_tape *t, rw_tensor *x, rw_tensor *scale, rw_tensor *shift)
{
    return o.m.llama ? rw_rmsnorm(t, x, scale, 1e-5) : rw_layernorm(t, x, scale, shift, 1e-5);
}

/* Adds x and the end of a branch */
static rw_tensor *join(rw_tape *t, rw_tensor *x, rw_tensor *h, rw_tensor *w, rw_tensor *b, double dropout)
{
    return dropout > 0 ? rw_dropout_add(t, rw_linear(t, h, w, b), x, dropout) : rw_linear_add(t, h, w, b, x);
}

/* The attention half of layer l: norm, QKV, rotary positions (Llama), attention, projection and residual sum. */
static rw_tensor *attention(rw_tape *t, rw_tensor *x, int l, int batch, int seq, double dropout)
{
    const int q = o.m.heads, kv = o.m.kv_heads;
    rw_tensor *part[3];
    rw_tensor *h = norm(t, x, gpt.layer[l].norm1, gpt.layer[l].norm1_b);
    h = rw_linear(t, h, gpt.layer[l].qkv, gpt.layer[l].qkv_b);
    h = rw_reshape(t, h, RW_SHAPE(batch, seq, q + 2 * kv, o.m.width / q));
    if (rw_split(t, h, 2, (const int64_t[]){ q, kv, kv }, 3, part)) return NULL;
    for (int i = 0; i < 3; i++) part[i] = rw_transpose(t, part[i], 1, 2);
    for (int i = 0; o.m.llama && i < 2; i++) part[i] = rw_rope(t, part[i], RW_NONE, 10000);
    ckpt_begin(t, "core_attn");
    h = rw_attention(t, part[0], part[1], part[2], &(rw_attention_params){ .causal = true, .dropout = (float)dropout });
    ckpt_end(t);
    h = rw_reshape(t, rw_transpose(t, h, 1, 2), RW_SHAPE(batch, seq, o.m.width));
    return join(t, x, h, gpt.layer[l].proj, gpt.layer[l].proj_b, dropout);
}

static rw_tensor *feed_forward(rw_tape *t, rw_tensor *x, int l, double dropout)
{
    rw_tensor *h = norm(t, x, gpt.layer[l].norm2, gpt.layer[l].norm2_b);
    ckpt_begin(t, "mlp");
    if (o.m.llama)
        h = rw_swiglu(t, rw_linear(t, h, gpt.layer[l].gate, RW_NONE), rw_linear(t, h, gpt.layer[l].up, RW_NONE));
    else h = rw_linear_gelu(t, h, gpt.layer[l].up, gpt.layer[l].up_b);
    x = join(t, x, h, gpt.layer[l].down, gpt.layer[l].down_b, dropout);
    ckpt_end(t);
    return x;
}

rw_tensor *logits(rw_tape *t, rw_tensor *tokens, int batch, int seq, double dropout)
{
    const rw_recipe fp8 = { .kind = RW_RECIPE_F8, .scaling = o.scaling, .delayed = gpt.delayed,
                            .keep_weights = o.accum > 1 };
    if (o.fp8) rw_recipe_begin(t, &fp8);
    rw_tensor *x = rw_embedding(t, gpt.table, tokens);
    if (gpt.positions) x = rw_add(t, x, rw_slice(t, gpt.positions, 0, 0, seq));
    if (dropout > 0) x = rw_dropout(t, x, dropout);
    for (int l = 0; l < o.m.layers; l++) {
        ckpt_begin(t, "block");
        x = feed_forward(t, attention(t, x, l, batch, seq, dropout), l, dropout);
        ckpt_end(t);
    }
    if (o.fp8) rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_BF16 }); /* the last product, in an inner recipe */
    x = rw_linear(t, norm(t, x, gpt.norm, gpt.norm_b), gpt.head, RW_NONE);
    for (int i = 0; i < 2; i++)
        if (o.fp8) rw_recipe_end(t);
    return x;
}
