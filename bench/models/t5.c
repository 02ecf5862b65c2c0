/*
 * An encoder and a decoder with the architecture of T5 (Raffel et al., arXiv 1910.10683): RMSNorm before each part, no
 * biases, unscaled scores, and positions as biases added to them: by distance, in buckets of increasing width, from one
 * table that all layers of a stack share. Version 1.0 has relu and ties the output to the embedding; 1.1 (`gated`) has
 * gated gelu and a separate output layer.
 */
#include "models/t5.h"

#include "models/block.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 32, FARTHEST = 128 };

bool t5_preset(struct model_config *c, const char *name)
{
    static const struct {
        const char *name;
        int layers, width, heads, head_width, hidden, vocab;
        bool gated;
    } presets[] = { { "tiny", 2, 64, 4, 16, 192, 256, false },
                    { "small", 3, 256, 8, 32, 704, 256, true },
                    { "t5-small", 6, 512, 8, 64, 2048, 32128, false },
                    { "t5-v1.1-small", 8, 512, 6, 64, 1024, 32128, true } };
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(presets[i].name, name)) continue;
        c->layers = presets[i].layers, c->width = presets[i].width, c->hidden = presets[i].hidden;
        c->heads = c->kv_heads = presets[i].heads;
        c->head_width = presets[i].head_width, c->vocab = presets[i].vocab, c->gated = presets[i].gated;
        return true;
    }
    return false;
}

void t5_defaults(struct model_config *c)
{
    if (!c->head_width) c->head_width = c->width / c->heads;
    if (!c->hidden) c->hidden = 4 * c->width;
}

/* ---- parameters ---- */

/* Creates the parameters of one layer of the encoder or decoder. */
static void create_layer(struct model *m, int l, bool decodes,
                         rw_tensor *(*param)(const struct model *m, int layer, const char *name, rw_shape shape))
{
    const struct model_config *const c = &m->config;
    const int width = c->width, inner = c->heads * c->head_width;
    struct model_layer *const p = &m->layer[l];
    p->norm1 = param(m, l, "ln_1.weight", RW_SHAPE(width));
    p->q = param(m, l, "attn.q.weight", RW_SHAPE(inner, width));
    p->kv = param(m, l, "attn.kv.weight", RW_SHAPE(2 * inner, width));
    p->proj = param(m, l, "attn.proj.weight", RW_SHAPE(width, inner));
    if (decodes) {
        p->cross_norm = param(m, l, "ln_cross.weight", RW_SHAPE(width));
        p->cross_q = param(m, l, "cross.q.weight", RW_SHAPE(inner, width));
        p->cross_kv = param(m, l, "cross.kv.weight", RW_SHAPE(2 * inner, width));
        p->cross_proj = param(m, l, "cross.proj.weight", RW_SHAPE(width, inner));
    }
    p->norm2 = param(m, l, "ln_2.weight", RW_SHAPE(width));
    if (c->gated) p->gate = param(m, l, "mlp.gate.weight", RW_SHAPE(c->hidden, width));
    p->up = param(m, l, "mlp.up.weight", RW_SHAPE(c->hidden, width));
    p->down = param(m, l, "mlp.down.weight", RW_SHAPE(width, c->hidden));
}

void t5_create(struct model *m,
               rw_tensor *(*param)(const struct model *m, int layer, const char *name, rw_shape shape))
{
    const struct model_config *const c = &m->config;
    m->embedding = param(m, -1, "wte.weight", RW_SHAPE(c->vocab, c->width));
    m->positions = param(m, -1, "encoder.positions.weight", RW_SHAPE(BUCKETS, c->heads));
    m->decoder_positions = param(m, -1, "decoder.positions.weight", RW_SHAPE(BUCKETS, c->heads));
    for (int l = 0; l < 2 * c->layers; l++) create_layer(m, l, l >= c->layers, param);
    m->encoder_norm = param(m, -1, "encoder.ln_f.weight", RW_SHAPE(c->width));
    m->norm = param(m, -1, "ln_f.weight", RW_SHAPE(c->width));
    m->head = c->gated ? param(m, -1, "head.weight", RW_SHAPE(c->vocab, c->width)) : m->embedding;
}

rw_status t5_init(const struct model *m, rw_tensor *p)
{
    const struct model_config *const c = &m->config;
    const char *const name = rw_tensor_name(p);
    const rw_shape s = rw_tensor_shape(p);
    if (s.rank == 1) return rw_init_constant(p, 1);
    if (!strcmp(name, "wte.weight")) return rw_init_normal(p, 0, 1);
    if (strstr(name, "positions")) return rw_init_normal(p, 0, 1 / sqrt(c->width));
    /* replaces the scaling of scores */
    const double shrink = strstr(name, ".q.") ? sqrt(c->head_width) : 1;
    return rw_init_normal(p, 0, 1 / (shrink * sqrt((double)s.dim[1])));
}

/* ---- attention ---- */

int t5_bucket(int far, bool causal)
{
    const int side = causal ? BUCKETS : BUCKETS / 2, exact = side / 2;
    const int first = !causal && far < 0 ? side : 0;
    const int distance = far >= 0 ? far : causal ? 0 : -far;
    if (distance < exact) return first + distance;
    /* A small amount is added, so that a distance that is a power of two begins a bucket. */
    const double at = log((double)distance / exact) / log((double)FARTHEST / exact) * (side - exact) + 1e-9;
    return first + (at < side - exact ? exact + (int)at : side - 1);
}

/* The bias of the scores of a stack's own tokens [1, heads, seq, seq]. */
static rw_tensor *bias_of(rw_tape *t, rw_tensor *table, int64_t seq, bool causal)
{
    int32_t *const bucket = malloc((size_t)(seq * seq) * sizeof *bucket);
    if (!bucket) return NULL;
    for (int64_t q = 0; q < seq; q++)
        for (int64_t k = 0; k < seq; k++) bucket[q * seq + k] = t5_bucket((int)(q - k), causal);
    rw_tensor *const index = rw_input(t, RW_I32, RW_SHAPE(seq, seq), bucket, (size_t)(seq * seq) * sizeof *bucket);
    free(bucket);
    rw_tensor *const by_head = rw_permute(t, rw_embedding(t, table, index), (const int[]){ 2, 0, 1 });
    return rw_contiguous(t, rw_unsqueeze(t, by_head, 0));
}

/* x [batch, seq, heads * width] as [batch, heads, seq, width] */
static rw_tensor *heads_of(rw_tape *t, rw_tensor *x, int64_t width)
{
    const rw_shape s = rw_tensor_shape(x);
    return rw_transpose(t, rw_reshape(t, x, RW_SHAPE(s.dim[0], s.dim[1], s.dim[2] / width, width)), 1, 2);
}

static rw_tensor *explicit_scores(const struct model *m, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                                  rw_tensor *bias, bool causal)
{
    rw_tensor *scores = rw_matmul(t, q, rw_transpose(t, k, -1, -2));
    if (bias) scores = rw_add(t, scores, bias);
    rw_tensor *const p = causal ? rw_causal_softmax(t, scores, 1) : rw_softmax(t, scores, -1);
    return rw_matmul(t, rw_dropout(t, p, m->config.dropout), v);
}

struct attention {
    rw_tensor *norm, *q, *kv, *proj;
    rw_tensor *bias; /* NULL: none */
    bool causal;
};

/* x + attention of its norm to memory; without memory to the norm itself. */
static rw_tensor *attend(const struct model *m, rw_tape *t, rw_tensor *x, rw_tensor *memory, struct attention a)
{
    const struct model_config *const c = &m->config;
    rw_tensor *const h = model_block_norm(m, t, x, a.norm, RW_NONE);
    const int64_t d = c->head_width, counts[2] = { c->heads, c->heads };
    rw_tensor *part[2];
    rw_tensor *const q = heads_of(t, ckpt_name(t, rw_linear(t, h, a.q, RW_NONE), "qkv"), d);
    rw_tensor *const kv = ckpt_name(t, rw_linear(t, memory ? memory : h, a.kv, RW_NONE), "qkv");
    if (rw_split(t, heads_of(t, kv, d), 1, counts, 2, part)) return NULL;
    ckpt_begin(t, memory ? "cross_attn" : "core_attn");
    const rw_attention_params options = { .causal = a.causal, .scale = 1, .dropout = c->dropout, .mask = a.bias };
    rw_tensor *const y = c->scores ? explicit_scores(m, t, q, part[0], part[1], a.bias, a.causal)
                                   : rw_attention(t, q, part[0], part[1], &options);
    ckpt_end(t);
    rw_shape s = rw_tensor_shape(x);
    s.dim[2] = c->heads * d;
    rw_tensor *const flat = rw_reshape(t, rw_transpose(t, y, 1, 2), s);
    return model_join(m, t, x, ckpt_name(t, flat, "attn_out"), a.proj, RW_NONE);
}

/* ---- stacks ---- */

static rw_tensor *feed_forward(const struct model *m, rw_tape *t, rw_tensor *x, const struct model_layer *p)
{
    rw_tensor *h = model_block_norm(m, t, x, p->norm2, RW_NONE);
    ckpt_begin(t, "mlp");
    rw_tensor *const up = ckpt_name(t, rw_linear(t, h, p->up, RW_NONE), "ffn_up");
    if (m->config.gated) h = rw_mul(t, rw_gelu_tanh(t, rw_linear(t, h, p->gate, RW_NONE)), up);
    else h = rw_relu(t, up);
    x = model_join(m, t, x, rw_dropout(t, h, m->config.dropout), p->down, RW_NONE);
    ckpt_end(t);
    return x;
}

/* Embeds tokens and applies a stack to them: the decoder's if there is a memory to attend to. */
static rw_tensor *stack(const struct model *m, rw_tape *t, rw_tensor *tokens, rw_tensor *memory)
{
    const struct model_config *const c = &m->config;
    const struct model_layer *const layers = m->layer + (memory ? c->layers : 0);
    const int64_t seq = rw_tensor_shape(tokens).dim[1];
    rw_tensor *const bias = bias_of(t, memory ? m->decoder_positions : m->positions, seq, memory != NULL);
    rw_tensor *x = bias ? rw_dropout(t, rw_embedding(t, m->embedding, tokens), c->dropout) : NULL;
    for (const struct model_layer *p = layers; x && p < layers + c->layers; p++) {
        ckpt_begin(t, "block");
        x = attend(m, t, x, NULL, (struct attention){ p->norm1, p->q, p->kv, p->proj, bias, memory != NULL });
        if (memory && x)
            x = attend(m, t, x, memory, (struct attention){ p->cross_norm, p->cross_q, p->cross_kv, p->cross_proj });
        x = x ? feed_forward(m, t, x, p) : NULL;
        ckpt_end(t);
    }
    return rw_dropout(t, model_norm(m, t, x, memory ? m->norm : m->encoder_norm, RW_NONE), c->dropout);
}

rw_tensor *t5_loss(const struct model *m, rw_tape *t, rw_tensor *tokens, rw_tensor *targets)
{
    if (!tokens || !targets) return NULL;
    const int64_t seq = rw_tensor_shape(tokens).dim[1], half = seq / 2; /* a text of one token is in both */
    rw_tensor *const memory = stack(m, t, rw_slice(t, tokens, 1, 0, seq - half), NULL);
    if (!memory) return NULL;
    rw_tensor *x = stack(m, t, rw_slice(t, tokens, 1, half, seq), memory);
    if (!m->config.gated) x = rw_scale(t, x, 1 / sqrt(m->config.width)); /* restores the embedding's magnitude */
    return rw_cross_entropy(t, rw_linear(t, x, m->head, RW_NONE), rw_slice(t, targets, 1, half, seq));
}
