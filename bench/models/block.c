/* A decoder layer: attention and feed-forward, each added to the residual stream. */
#include "models/block.h"

#include <math.h>

rw_tensor *model_norm(const struct model *m, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias)
{
    switch (m->config.kind) {
    case MODEL_GPT: return rw_layernorm(t, x, weight, bias, 1e-5);
    case MODEL_VIT: return rw_layernorm(t, x, weight, bias, 1e-6);
    case MODEL_T5:
    case MODEL_DEEPSEEK: return rw_rmsnorm(t, x, weight, 1e-6);
    default: return rw_rmsnorm(t, x, weight, 1e-5);
    }
}

rw_tensor *model_block_norm(const struct model *m, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias)
{
    ckpt_begin(t, "layernorm");
    rw_tensor *const y = model_norm(m, t, x, weight, bias);
    ckpt_end(t);
    return y;
}

static rw_tensor *repeat_heads(rw_tape *t, rw_tensor *x, int times)
{
    if (times == 1) return x;
    const rw_shape s = rw_tensor_shape(x);
    x = rw_broadcast_to(t, rw_reshape(t, x, RW_SHAPE(s.dim[0], s.dim[1], 1, s.dim[2], s.dim[3])),
                        RW_SHAPE(s.dim[0], s.dim[1], times, s.dim[2], s.dim[3]));
    return rw_reshape(t, x, RW_SHAPE(s.dim[0], s.dim[1] * times, s.dim[2], s.dim[3]));
}

/* The same computation with the score matrix in memory: matmul, softmax, dropout, matmul. */
static rw_tensor *explicit_attention(const struct model *m, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v)
{
    const struct model_config *const c = &m->config;
    k = repeat_heads(t, k, c->heads / c->kv_heads);
    v = repeat_heads(t, v, c->heads / c->kv_heads);
    rw_tensor *const scores = rw_matmul(t, q, rw_transpose(t, k, -1, -2));
    const double scale = 1.0f / sqrtf((float)(c->width / c->heads));
    rw_tensor *const p = c->kind == MODEL_VIT ? rw_softmax(t, rw_scale(t, scores, scale), -1)
                                              : rw_causal_softmax(t, scores, scale);
    return rw_matmul(t, rw_dropout(t, p, c->dropout), v);
}

rw_tensor *model_join(const struct model *m, rw_tape *t, rw_tensor *residual, rw_tensor *x, rw_tensor *weight,
                      rw_tensor *bias)
{
    const float dropout = m->config.dropout;
    if (dropout == 0) return rw_linear_add(t, x, weight, bias, residual);
    return rw_dropout_add(t, rw_linear(t, x, weight, bias), residual, dropout);
}

/* residual + attention of x */
static rw_tensor *attention(const struct model *m, rw_tape *t, rw_tensor *residual, rw_tensor *x,
                            const struct model_layer *p)
{
    const struct model_config *const c = &m->config;
    const rw_shape s = rw_tensor_shape(x);
    rw_tensor *part[3];
    rw_tensor *const qkv = ckpt_name(t, rw_linear(t, x, p->qkv, p->qkv_bias), "qkv");
    /* Heads are split before q, k and v are sliced, so that all three stay views of one buffer. */
    const int n = c->heads + 2 * c->kv_heads;
    rw_tensor *const heads = rw_reshape(t, qkv, RW_SHAPE(s.dim[0], s.dim[1], n, c->width / c->heads));
    const int64_t counts[3] = { c->heads, c->kv_heads, c->kv_heads };
    if (rw_split(t, heads, 2, counts, 3, part)) return NULL;
    rw_tensor *q = rw_transpose(t, part[0], 1, 2);
    rw_tensor *k = rw_transpose(t, part[1], 1, 2);
    rw_tensor *const v = rw_transpose(t, part[2], 1, 2);
    if (c->kind == MODEL_LLAMA) {
        const float base = c->rope_base > 0 ? c->rope_base : 10000;
        q = rw_rope(t, q, RW_NONE, base);
        k = rw_rope(t, k, RW_NONE, base);
    }
    ckpt_begin(t, "core_attn");
    const rw_attention_params params = { .causal = c->kind != MODEL_VIT, .dropout = c->dropout };
    rw_tensor *y = c->scores ? explicit_attention(m, t, q, k, v) : rw_attention(t, q, k, v, &params);
    ckpt_end(t);
    y = rw_reshape(t, rw_transpose(t, y, 1, 2), s);
    return model_join(m, t, residual, ckpt_name(t, y, "attn_out"), p->proj, p->proj_bias);
}

static rw_tensor *feed_forward(const struct model *m, rw_tape *t, rw_tensor *residual, rw_tensor *x,
                               const struct model_layer *p)
{
    ckpt_begin(t, "mlp");
    const enum model_kind kind = m->config.kind;
    rw_tensor *h = kind == MODEL_GPT ? rw_linear_gelu(t, x, p->up, p->up_bias) : rw_linear(t, x, p->up, p->up_bias);
    h = ckpt_name(t, h, "ffn_up");
    if (kind == MODEL_VIT) h = rw_gelu(t, h);
    if (kind == MODEL_LLAMA) h = rw_swiglu(t, rw_linear(t, x, p->gate, RW_NONE), h);
    x = model_join(m, t, residual, h, p->down, p->down_bias);
    ckpt_end(t);
    return x;
}

rw_tensor *model_block(const struct model *m, rw_tape *t, rw_tensor *x, int layer)
{
    const struct model_layer *const p = &m->layer[layer];
    x = attention(m, t, x, model_block_norm(m, t, x, p->norm1, p->norm1_bias), p);
    return feed_forward(m, t, x, model_block_norm(m, t, x, p->norm2, p->norm2_bias), p);
}
