/*
 * Mamba-2 (Dao and Gu, arXiv 2405.21060): RMSNorm, one product that computes the gate z, the convolved part (x, B and
 * C) and dt; a short convolution along the sequence, the scan by heads that share B and C in groups, a gated RMSNorm
 * and the product back; the output embedding is tied. From the convolution to the norm there is one region "ssd":
 * recomputing it keeps of a layer its input, the first product's result, and the input of the last one.
 */
#include "models/mamba2.h"

#include <math.h>
#include <string.h>

enum { EXPAND = 2, TAPS = 4 };

bool mamba2_preset(struct model_config *c, const char *name)
{
    static const struct {
        const char *name;
        int layers, width, head_width, state, vocab;
    } presets[] = { { "tiny", 4, 64, 16, 16, 256 },
                    { "small", 6, 256, 32, 64, 256 },
                    { "mamba2-130m", 24, 768, 64, 128, 50288 },
                    { "mamba2-2.7b", 64, 2560, 64, 128, 50288 } };
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(presets[i].name, name)) continue;
        c->layers = presets[i].layers, c->width = presets[i].width, c->vocab = presets[i].vocab;
        c->head_width = presets[i].head_width, c->state = presets[i].state, c->groups = 1;
        c->heads = c->kv_heads = EXPAND * c->width / c->head_width;
        return true;
    }
    return false;
}

void mamba2_defaults(struct model_config *c)
{
    if (!c->head_width) c->head_width = EXPAND * c->width / c->heads;
    if (!c->state) c->state = 16;
    if (!c->groups) c->groups = 1;
}

/* The width of the convolved part: x, and B and C of each group. */
static int convolved(const struct model_config *c)
{
    return c->heads * c->head_width + 2 * c->groups * c->state;
}

void mamba2_layer(struct model *m, int l,
                  rw_tensor *(*param)(const struct model *m, int layer, const char *name, rw_shape shape))
{
    const struct model_config *const c = &m->config;
    const int inner = c->heads * c->head_width, conv = convolved(c);
    struct model_layer *const p = &m->layer[l];
    p->norm1 = param(m, l, "ln_1.weight", RW_SHAPE(c->width));
    p->up = param(m, l, "ssm.in.weight", RW_SHAPE(inner + conv + c->heads, c->width));
    p->conv = param(m, l, "ssm.conv.weight", RW_SHAPE(conv, TAPS));
    p->conv_bias = param(m, l, "ssm.conv.bias", RW_SHAPE(conv));
    p->dt_bias = param(m, l, "ssm.dt.bias", RW_SHAPE(c->heads));
    p->a_log = param(m, l, "ssm.a_log", RW_SHAPE(c->heads));
    p->d = param(m, l, "ssm.d", RW_SHAPE(c->heads));
    p->gate_norm = param(m, l, "ssm.norm.weight", RW_SHAPE(inner));
    p->proj = param(m, l, "ssm.proj.weight", RW_SHAPE(c->width, inner));
}

rw_status mamba2_init(const struct model *m, rw_tensor *p)
{
    const char *const name = rw_tensor_name(p);
    if (strstr(name, "conv.weight")) return rw_init_uniform(p, -0.5, 0.5); /* 1 / sqrt(TAPS) on either side */
    if (strstr(name, "dt.bias")) return rw_init_constant(p, -4.6); /* softplus of it is 0.01 */
    if (strstr(name, "a_log")) return rw_init_uniform(p, 0, log(16));
    if (strstr(name, "bias")) return rw_init_constant(p, 0);
    if (rw_tensor_shape(p).rank == 1) return rw_init_constant(p, 1);
    return rw_init_normal(p, 0, strstr(name, "proj.weight") ? 0.02 / sqrt(m->config.layers) : 0.02);
}

/* A slice [batch, seq, ...] as [batch, seq, n, of `width` each]. */
static rw_tensor *by_heads(rw_tape *t, rw_tensor *x, int64_t n, int64_t width)
{
    const rw_shape s = rw_tensor_shape(x);
    return rw_reshape(t, x, RW_SHAPE(s.dim[0], s.dim[1], n, width));
}

/* The state-space scan of a layer's heads over the convolved x, B and C, plus the direct path D x. */
static rw_tensor *scan(const struct model *m, rw_tape *t, const struct model_layer *p, rw_tensor *xbc, rw_tensor *dt)
{
    const struct model_config *const c = &m->config;
    const int64_t states = c->groups * c->state, widths[] = { c->heads * c->head_width, states, states };
    rw_tensor *piece[3];
    if (rw_split(t, xbc, -1, widths, 3, piece)) return NULL;
    rw_tensor *const x = by_heads(t, piece[0], c->heads, c->head_width);
    const rw_ssd_operands o = { .x = x,
                                .dt = rw_softplus(t, rw_add(t, dt, p->dt_bias)),
                                .a = rw_neg(t, rw_exp(t, p->a_log)),
                                .b = by_heads(t, piece[1], c->groups, c->state),
                                .c = by_heads(t, piece[2], c->groups, c->state),
                                .state = RW_NONE };
    rw_tensor *const y = rw_ssd_scan(t, &o, c->chunk, NULL);
    return rw_add(t, y, rw_mul(t, x, rw_unsqueeze(t, p->d, 1)));
}

rw_tensor *mamba2_block(const struct model *m, rw_tape *t, rw_tensor *x, int layer)
{
    const struct model_config *const c = &m->config;
    const struct model_layer *const p = &m->layer[layer];
    const rw_shape s = rw_tensor_shape(x);
    const int64_t inner = c->heads * c->head_width, widths[] = { inner, convolved(c), c->heads };
    rw_tensor *piece[3], *const h = rw_linear(t, rw_rmsnorm(t, x, p->norm1, 1e-5), p->up, RW_NONE);
    ckpt_begin(t, "ssd");
    if (rw_split(t, h, -1, widths, 3, piece)) return NULL; /* the gate z; x, B and C; dt */
    rw_tensor *const xbc = rw_silu(t, rw_causal_conv1d(t, piece[1], p->conv, p->conv_bias));
    rw_tensor *y = rw_reshape(t, scan(m, t, p, xbc, piece[2]), RW_SHAPE(s.dim[0], s.dim[1], inner));
    y = rw_rmsnorm(t, rw_swiglu(t, piece[0], y), p->gate_norm, 1e-5);
    ckpt_end(t);
    return rw_add(t, x, rw_dropout(t, rw_linear(t, y, p->proj, RW_NONE), c->dropout));
}
