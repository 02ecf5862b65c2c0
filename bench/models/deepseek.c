/*
 * A decoder with the architecture of DeepSeek-V2 and -V3 (arXiv 2405.04434, 2412.19437): latent attention, whose q, k
 * and v are computed from narrow latents, and from layer dense_layers on a mixture of experts plus shared ones, each
 * balanced by a bias. After the last layer, one more layer per further token predicts that token. Regions have
 * Megatron's names, so that megatron:mla_up_proj,moe_act,layernorm and similar policies do here what they do there. The
 * balancing loss is of the whole batch, while version 3 computes it per sequence, and the loss of a further token is
 * the mean over its places.
 */
#include "models/deepseek.h"

#include "models/block.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define AUX_COEFFICIENT 1e-3
#define BALANCE_RATE 1e-3
#define AHEAD_SHARE 0.1 /* of the loss */

bool deepseek_preset(struct model_config *c, const char *name)
{
    static const struct {
        const char *name;
        int layers, width, heads, hidden, experts, chosen, groups, best_groups, expert_hidden, shared, dense_layers;
        int head_width, rope_width, q_rank, kv_rank, vocab, ahead;
        bool softmax;
        double routed_scale;
    } presets[] = {
        { "tiny", 4, 64, 4, 192, 8, 2, 4, 2, 32, 1, 1, 16, 8, 32, 24, 256, 1, false, 2.5 },
        { "small", 6, 256, 8, 704, 16, 4, 4, 2, 96, 1, 1, 32, 16, 96, 64, 256, 1, false, 2.5 },
        { "v2-lite", 27, 2048, 16, 10944, 64, 6, 1, 1, 1408, 2, 1, 128, 64, 0, 512, 102400, 0, true, 1 },
        { "v3", 61, 7168, 128, 18432, 256, 8, 8, 4, 2048, 1, 3, 128, 64, 1536, 512, 129280, 1, false, 2.5 },
    };
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(presets[i].name, name)) continue;
        c->layers = presets[i].layers, c->width = presets[i].width, c->hidden = presets[i].hidden;
        c->heads = c->kv_heads = presets[i].heads;
        c->experts = presets[i].experts, c->chosen = presets[i].chosen, c->expert_hidden = presets[i].expert_hidden;
        c->groups = presets[i].groups, c->best_groups = presets[i].best_groups;
        c->shared = presets[i].shared, c->dense_layers = presets[i].dense_layers;
        c->head_width = presets[i].head_width, c->rope_width = presets[i].rope_width;
        c->q_rank = presets[i].q_rank, c->kv_rank = presets[i].kv_rank, c->vocab = presets[i].vocab;
        c->ahead = presets[i].ahead, c->softmax = presets[i].softmax, c->routed_scale = presets[i].routed_scale;
        return true;
    }
    return false;
}

void deepseek_defaults(struct model_config *c)
{
    if (!c->head_width) c->head_width = c->width / c->heads;
    if (!c->rope_width) c->rope_width = (c->head_width / 2 + 1) / 2 * 2;
    if (!c->kv_rank) c->kv_rank = c->q_rank = (c->width + 1) / 2;
    if (c->experts) return;
    c->experts = 8, c->chosen = 2, c->groups = 4, c->best_groups = 2;
    c->expert_hidden = (c->width + 1) / 2, c->shared = 1, c->dense_layers = 1, c->ahead = 1;
}

/* [E], in float32 whatever the model's type. */
static rw_tensor *buffer(const struct model *m, int layer, const char *name)
{
    char full[64];
    if (m->counted) return RW_NONE;
    snprintf(full, sizeof full, "h.%d.moe.%s", layer, name);
    return rw_buffer(m->ctx, full, RW_F32, RW_SHAPE(m->config.experts));
}

void deepseek_layer(struct model *m, int l,
                    rw_tensor *(*param)(const struct model *m, int layer, const char *name, rw_shape shape))
{
    const struct model_config *const c = &m->config;
    struct model_layer *const p = &m->layer[l];
    const int heads = c->heads, q = heads * (c->head_width + c->rope_width), f = c->expert_hidden;
    const bool dense = l < c->dense_layers;
    const int inner = dense ? c->hidden : c->shared * f;
    p->norm1 = param(m, l, "ln_1.weight", RW_SHAPE(c->width));
    p->norm2 = param(m, l, "ln_2.weight", RW_SHAPE(c->width));
    if (c->q_rank) {
        p->q_a = param(m, l, "attn.q_a.weight", RW_SHAPE(c->q_rank, c->width));
        p->q_norm = param(m, l, "attn.q_norm.weight", RW_SHAPE(c->q_rank));
    }
    p->q_b = param(m, l, "attn.q_b.weight", RW_SHAPE(q, c->q_rank ? c->q_rank : c->width));
    p->kv_a = param(m, l, "attn.kv_a.weight", RW_SHAPE(c->kv_rank + c->rope_width, c->width));
    p->kv_norm = param(m, l, "attn.kv_norm.weight", RW_SHAPE(c->kv_rank));
    p->kv_b = param(m, l, "attn.kv_b.weight", RW_SHAPE(2 * heads * c->head_width, c->kv_rank));
    p->proj = param(m, l, "attn.proj.weight", RW_SHAPE(c->width, heads * c->head_width));
    if (inner) {
        p->gate = param(m, l, "mlp.gate.weight", RW_SHAPE(inner, c->width));
        p->up = param(m, l, "mlp.up.weight", RW_SHAPE(inner, c->width));
        p->down = param(m, l, "mlp.down.weight", RW_SHAPE(c->width, inner));
    }
    if (l >= c->layers) {
        p->ahead_x = param(m, l, "ahead.x_norm.weight", RW_SHAPE(c->width));
        p->ahead_token = param(m, l, "ahead.token_norm.weight", RW_SHAPE(c->width));
        p->ahead_join = param(m, l, "ahead.join.weight", RW_SHAPE(c->width, 2 * c->width));
        p->ahead_norm = param(m, l, "ahead.ln_f.weight", RW_SHAPE(c->width));
    }
    if (dense) return;
    if (!c->softmax) {
        p->balance = buffer(m, l, "bias");
        p->load = buffer(m, l, "load");
    }
    p->router = param(m, l, "moe.router.weight", RW_SHAPE(c->experts, c->width));
    p->experts_up = param(m, l, "moe.up.weight", RW_SHAPE(c->experts, 2 * f, c->width));
    p->experts_down = param(m, l, "moe.down.weight", RW_SHAPE(c->experts, c->width, f));
}

/* ---- latent attention ---- */

/* x [batch, seq, n of `width` each] as [batch, n, seq, width] */
static rw_tensor *heads_of(rw_tape *t, rw_tensor *x, int64_t width)
{
    const rw_shape s = rw_tensor_shape(x);
    return rw_transpose(t, rw_reshape(t, x, RW_SHAPE(s.dim[0], s.dim[1], s.dim[2] / width, width)), 1, 2);
}

/* Rotates pairs of neighbors, with the default base of 10000. */
static const rw_rope_params neighbors = { .interleaved = true };

/* Rotates the last rope columns by position; the others are unchanged. */
static rw_tensor *turned(rw_tape *t, rw_tensor *x, int64_t rope)
{
    const int64_t d = rw_tensor_shape(x).dim[3];
    rw_tensor *const plain = rw_slice(t, x, -1, 0, d - rope), *const last = rw_slice(t, x, -1, d - rope, d);
    return rw_concat(t, ((rw_tensor *[]){ plain, rw_rope_with(t, last, RW_NONE, &neighbors) }), 2, -1);
}

struct qkv {
    rw_tensor *q, *k, *v;
};

/* Computed from the latents, which are kept if "mla_up_proj" is discarded: one rotated key serves all heads. */
static struct qkv up_project(const struct model *m, rw_tape *t, const struct model_layer *p, rw_tensor *c_q,
                             rw_tensor *c_kv, rw_tensor *k_rope)
{
    const struct model_config *const c = &m->config;
    const int64_t d = c->head_width, rope = c->rope_width;
    struct qkv r;
    r.q = turned(t, heads_of(t, ckpt_name(t, rw_linear(t, c_q, p->q_b, RW_NONE), "qkv"), d + rope), rope);
    rw_tensor *const both = heads_of(t, rw_linear(t, c_kv, p->kv_b, RW_NONE), 2 * d);
    rw_shape shared = rw_tensor_shape(r.q);
    shared.dim[3] = rope;
    rw_tensor *const one = rw_rope_with(t, heads_of(t, k_rope, rope), RW_NONE, &neighbors);
    rw_tensor *const parts[] = { rw_slice(t, both, -1, 0, d), rw_broadcast_to(t, one, shared) };
    r.k = rw_concat(t, parts, 2, -1);
    r.v = rw_contiguous(t, rw_slice(t, both, -1, d, 2 * d)); /* a view would keep what k has a copy of */
    return r;
}

/* residual + latent attention of x */
static rw_tensor *attention(const struct model *m, rw_tape *t, rw_tensor *residual, rw_tensor *x,
                            const struct model_layer *p)
{
    const struct model_config *const c = &m->config;
    const rw_shape s = rw_tensor_shape(x);
    rw_tensor *c_q = x;
    if (c->q_rank) c_q = rw_rmsnorm(t, rw_linear(t, x, p->q_a, RW_NONE), p->q_norm, 1e-6);
    rw_tensor *const kv = rw_linear(t, x, p->kv_a, RW_NONE);
    rw_tensor *const latent = rw_slice(t, kv, -1, 0, c->kv_rank);
    rw_tensor *const k_rope = rw_contiguous(t, rw_slice(t, kv, -1, c->kv_rank, c->kv_rank + c->rope_width));
    rw_tensor *const c_kv = rw_rmsnorm(t, latent, p->kv_norm, 1e-6);
    ckpt_begin(t, "mla_up_proj");
    const struct qkv r = up_project(m, t, p, c_q, c_kv, k_rope);
    ckpt_end(t);
    ckpt_begin(t, "core_attn");
    const rw_attention_params params = { .causal = true, .dropout = c->dropout };
    rw_tensor *const y = rw_attention(t, r.q, r.k, r.v, &params);
    ckpt_end(t);
    rw_tensor *const flat = rw_reshape(t, rw_transpose(t, y, 1, 2),
                                       RW_SHAPE(s.dim[0], s.dim[1], c->heads * c->head_width));
    return model_join(m, t, residual, ckpt_name(t, flat, "attn_out"), p->proj, RW_NONE);
}

/* ---- feed-forward ---- */

/* residual + the dense layer, or the shared experts, of x */
static rw_tensor *dense(const struct model *m, rw_tape *t, const char *region, rw_tensor *residual, rw_tensor *x,
                        const struct model_layer *p)
{
    ckpt_begin(t, region);
    rw_tensor *const up = ckpt_name(t, rw_linear(t, x, p->up, RW_NONE), "ffn_up");
    rw_tensor *const h = rw_swiglu(t, rw_linear(t, x, p->gate, RW_NONE), up);
    rw_tensor *const y = model_join(m, t, residual, h, p->down, RW_NONE);
    ckpt_end(t);
    return y;
}

/* Each row divided by its sum, as the auxiliary loss requires. */
static rw_tensor *of_one(rw_tape *t, rw_tensor *scores)
{
    return rw_div(t, scores, rw_add_scalar(t, rw_sum(t, scores, RW_AXES(-1), true), 1e-20));
}

/* The router compares in float32 in every 16-bit model. */
static rw_tensor *route(const struct model *m, rw_tape *t, const struct model_layer *p, rw_tensor *x,
                        rw_moe_routes *routes, rw_tensor **aux)
{
    const struct model_config *const c = &m->config;
    const rw_dtype wide = c->dtype == RW_F64 ? RW_F64 : RW_F32;
    const rw_moe_router_params params = {
        .choice = { .k = c->chosen, .groups = c->groups, .best_groups = c->best_groups },
        .score = c->softmax ? RW_MOE_SOFTMAX : RW_MOE_SIGMOID,
        .bias = c->softmax ? RW_NONE : rw_cast(t, p->balance, wide),
        .normalize = !c->softmax,
        .scale = c->routed_scale,
    };
    rw_tensor *index, *scores;
    rw_tensor *const logits = rw_linear(t, rw_cast(t, x, wide), rw_cast(t, p->router, wide), RW_NONE);
    rw_tensor *const weights = rw_moe_router(t, logits, &params, &index, &scores);
    if (rw_moe_route(t, index, c->experts, routes)) return NULL;
    if (!c->softmax && rw_moe_count(t, p->load, routes)) return NULL;
    rw_tensor *const shares = c->softmax ? scores : of_one(t, scores);
    rw_tensor *const loss = rw_cast(t, rw_moe_aux_loss(t, shares, routes, AUX_COEFFICIENT), wide);
    *aux = *aux ? rw_add(t, *aux, loss) : loss;
    if (c->capacity == 0) return weights;
    const int64_t most = rw_moe_capacity(rw_tensor_shape(x).dim[0], c->chosen, c->experts, c->capacity);
    rw_tensor *const stay = rw_moe_drop(t, index, c->by_weight ? weights : RW_NONE, routes, most);
    return rw_moe_route(t, stay, c->experts, routes) ? NULL : weights;
}

/* residual + the routed and the shared experts of x */
static rw_tensor *experts(const struct model *m, rw_tape *t, rw_tensor *residual, rw_tensor *x,
                          const struct model_layer *p, rw_tensor **aux)
{
    const rw_shape s = rw_tensor_shape(x);
    const int64_t f = m->config.expert_hidden;
    rw_moe_routes routes;
    ckpt_begin(t, "moe");
    rw_tensor *const rows = rw_reshape(t, x, RW_SHAPE(s.dim[0] * s.dim[1], s.dim[2]));
    rw_tensor *const weights = route(m, t, p, rows, &routes, aux);
    rw_tensor *const both = rw_moe_linear_of_tokens(t, rows, p->experts_up, &routes);
    ckpt_begin(t, "moe_act");
    rw_tensor *const gate = rw_slice(t, both, -1, 0, f), *const up = rw_slice(t, both, -1, f, 2 * f);
    rw_tensor *const h = rw_moe_swiglu_weigh(t, gate, up, weights, &routes);
    ckpt_end(t);
    rw_tensor *const y = rw_moe_combine(t, rw_moe_linear(t, h, p->experts_down, &routes), &routes);
    residual = rw_add(t, residual, rw_reshape(t, y, s));
    if (m->config.shared) residual = dense(m, t, "shared_experts", residual, x, p);
    ckpt_end(t);
    return residual;
}

static rw_tensor *norm(rw_tape *t, rw_tensor *x, rw_tensor *weight)
{
    ckpt_begin(t, "layernorm");
    rw_tensor *const y = rw_rmsnorm(t, x, weight, 1e-6);
    ckpt_end(t);
    return y;
}

rw_tensor *deepseek_block(const struct model *m, rw_tape *t, rw_tensor *x, int layer, rw_tensor **aux)
{
    const struct model_layer *const p = &m->layer[layer];
    x = attention(m, t, x, norm(t, x, p->norm1), p);
    rw_tensor *const h = norm(t, x, p->norm2);
    return layer < m->config.dense_layers ? dense(m, t, "mlp", x, h, p) : experts(m, t, x, h, p, aux);
}

/* ---- further tokens ---- */

/* The loss of predicting token 1 + depth after each place: [x | that token's embedding] through a layer. x becomes the
   layer's result, one place shorter; NULL when no place is left. */
static rw_tensor *one_ahead(const struct model *m, rw_tape *t, rw_tensor **x, rw_tensor *targets, int depth,
                            rw_tensor **aux)
{
    const int layer = m->config.layers + depth - 1;
    const int64_t places = rw_tensor_shape(*x).dim[1] - 1;
    const struct model_layer *const p = &m->layer[layer];
    if (places < 1) return NULL;
    ckpt_begin(t, "mtp");
    rw_tensor *const known = rw_embedding(t, m->embedding, rw_slice(t, targets, 1, depth - 1, depth - 1 + places));
    rw_tensor *const both[] = { rw_rmsnorm(t, rw_slice(t, *x, 1, 0, places), p->ahead_x, 1e-6),
                                rw_rmsnorm(t, known, p->ahead_token, 1e-6) };
    *x = deepseek_block(m, t, rw_linear(t, rw_concat(t, both, 2, -1), p->ahead_join, RW_NONE), layer, aux);
    rw_tensor *const logits = rw_linear(t, rw_rmsnorm(t, *x, p->ahead_norm, 1e-6), m->head, RW_NONE);
    rw_tensor *const loss = rw_cross_entropy(t, logits, rw_slice(t, targets, 1, depth, depth + places));
    ckpt_end(t);
    return loss;
}

rw_tensor *deepseek_ahead(const struct model *m, rw_tape *t, rw_tensor *x, rw_tensor *targets, rw_tensor **aux)
{
    rw_tensor *sum = NULL;
    for (int depth = 1; depth <= m->config.ahead; depth++) {
        rw_tensor *const loss = one_ahead(m, t, &x, targets, depth, aux);
        if (!loss) break;
        sum = sum ? rw_add(t, sum, loss) : loss;
    }
    return sum ? rw_scale(t, sum, AHEAD_SHARE / m->config.ahead) : NULL;
}

int deepseek_balance(const struct model *m, rw_tape *t, rw_tensor **ret)
{
    int n = 0;
    for (int l = m->config.dense_layers; !m->config.softmax && l < m->config.layers + m->config.ahead; l++)
        ret[n++] = rw_moe_balance(t, m->layer[l].balance, m->layer[l].load, BALANCE_RATE);
    return n;
}
