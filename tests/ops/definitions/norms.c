/* Definitions of normalizations of rows, channels, groups and batches (rewind/ops.h and norm.h). */
#include "support/definition_runner.h"

#include <math.h>

#define EPS 0.5 /* large: without it rows of nearly equal numbers have no exact gradient */

/* Operands: x, weight, bias, then running statistics, then the added tensor. */
enum { X, WEIGHT, BIAS, MEAN, VARIANCE, ADDED };

/* 0: absent, 1: without a gradient, 2: with one. */
static void vector(struct def_trial *c, int i, int64_t n, int how)
{
    struct def_operand *const o = def_operand(c, i, RW_SHAPE(n), DEF_UNIT, DEF_DENSE);
    o->is_absent = how == 0;
    o->is_frozen = how == 1;
}

/* ---- rows ---- */

enum { ROW_RMS, ROW_RANK, ROW_WIDTH, ROW_X, ROW_WEIGHT, ROW_BIAS, ROW_OTHERS, ROW_LAYOUT };

/* Operands of a norm over the last axis, optionally with other uses of them; false where undefined. */
static bool rows_make(struct def_trial *c)
{
    static const int64_t widths[] = { 3, 5, 8, 19, 1037 };
    rw_shape s = def_shape(c->v[ROW_RANK]);
    const int64_t n = widths[c->v[ROW_WIDTH]];
    if (c->v[ROW_RMS] && c->v[ROW_BIAS]) return false;
    if (n > 1000 && s.rank > 1) return false;
    s.dim[s.rank++] = n;
    def_operand(c, X, s, DEF_SIGNED, c->v[ROW_LAYOUT])->is_frozen = c->v[ROW_X];
    vector(c, WEIGHT, n, c->v[ROW_WEIGHT]);
    vector(c, BIAS, n, c->v[ROW_BIAS]);
    /* Rows of a single number: no difference from a mean */
    if (s.rank == 1 && c->v[ROW_LAYOUT] == DEF_EXPANDED) return false;
    c->out[0] = s;
    /* Operands with another use, whose gradients exist before those of this op */
    for (int i = 0; i < 3; i++) {
        if (!(c->v[ROW_OTHERS] >> i & 1)) continue;
        if (c->in[i].is_absent || c->in[i].is_frozen) return false;
        c->a[c->n_out] = i;
        c->out[c->n_out++] = c->in[i].shape;
    }
    return true;
}

static bool rows_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    y[0] = c->v[ROW_RMS] ? rw_rmsnorm(t, x[X], x[WEIGHT], EPS) : rw_layernorm(t, x[X], x[WEIGHT], x[BIAS], EPS);
    for (int k = 1; k < c->n_out; k++)
        if (!(y[k] = rw_scale(t, x[c->a[k]], 1.5))) return false;
    return y[0];
}

static void rows_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t n = c->out[0].dim[c->out[0].rank - 1];
    for (int k = 1; k < c->n_out; k++)
        for (int64_t i = 0; i < c->in[c->a[k]].numel; i++) y[k][i] = 1.5L * x[c->a[k]][i];
    for (int64_t row = 0; row < c->in[X].numel / n; row++) {
        const real *const from = x[X] + row * n;
        real mean = 0, square = 0;
        for (int64_t k = 0; k < n && !c->v[ROW_RMS]; k++) mean += from[k] / n;
        for (int64_t k = 0; k < n; k++) square += (from[k] - mean) * (from[k] - mean) / n;
        for (int64_t k = 0; k < n; k++)
            y[0][row * n + k] = (from[k] - mean) / sqrtl(square + (real)EPS) * (x[WEIGHT] ? x[WEIGHT][k] : 1) +
                                (x[BIAS] ? x[BIAS][k] : 0);
    }
}

/* ---- channels ---- */

enum { CH_KIND, CH_RANK, CH_LAYOUT, CH_X, CH_WEIGHT, CH_BIAS, CH_GROUPS, CH_RELU, CH_ADDED, CH_RUNNING };
enum { BATCH, EVALUATED, GROUP, INSTANCE };

static rw_shape channels_shape(const struct def_trial *c)
{
    static const rw_shape shapes[] = {
        { 2, { 5, 4 } },
        { 3, { 3, 4, 5 } },
        { 4, { 2, 4, 3, 3 } },
        { 5, { 2, 4, 2, 1, 3 } },
    };
    return shapes[c->v[CH_RANK]];
}

static double variance(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)(i % 5 + 1) / 2 + 0.125;
}

/* No result is 0, where rw_relu() has a kink. */
static double apart(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 23 + 5) % 97 - 48) / 32 + 1. / 128;
}

/* Operands of a norm over channels; false where the kind has no such option. */
static bool channels_make(struct def_trial *c)
{
    const rw_shape s = channels_shape(c);
    const bool batch = c->v[CH_KIND] == BATCH, evaluated = c->v[CH_KIND] == EVALUATED;
    if (!batch && !evaluated && (c->v[CH_RELU] || c->v[CH_ADDED])) return false;
    if (c->v[CH_KIND] != GROUP && c->v[CH_GROUPS]) return false;
    if (c->v[CH_KIND] == INSTANCE && s.rank == 2) return false;
    if (c->v[CH_LAYOUT] == DEF_EXPANDED) return false; /* equal images: gradients that cancel */
    def_operand(c, X, s, DEF_SIGNED, c->v[CH_LAYOUT])->is_frozen = c->v[CH_X];
    vector(c, WEIGHT, s.dim[1], c->v[CH_WEIGHT]);
    vector(c, BIAS, s.dim[1], c->v[CH_BIAS]);
    vector(c, MEAN, s.dim[1], evaluated);
    vector(c, VARIANCE, s.dim[1], evaluated);
    c->in[MEAN].is_wide = c->in[VARIANCE].is_wide = true;
    c->in[VARIANCE].value = variance;
    def_operand(c, ADDED, s, DEF_SIGNED, DEF_DENSE)->is_absent = !c->v[CH_ADDED];
    c->in[ADDED].value = apart;
    c->out[0] = s;
    return true;
}

static bool channels_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    static const int groups[] = { 1, 2, 4 };
    const rw_batchnorm_params params = {
        .eps = EPS, .evaluate = c->v[CH_KIND] == EVALUATED, .relu = c->v[CH_RELU], .add = x[ADDED]
    };
    if (c->v[CH_KIND] == GROUP) y[0] = rw_group_norm(t, x[X], groups[c->v[CH_GROUPS]], x[WEIGHT], x[BIAS], EPS);
    else if (c->v[CH_KIND] == INSTANCE) y[0] = rw_instance_norm(t, x[X], x[WEIGHT], x[BIAS], EPS);
    else y[0] = rw_batchnorm(t, x[X], x[WEIGHT], x[BIAS], x[MEAN], x[VARIANCE], &params);
    return y[0];
}

/* Whether an element shares the statistics of element (image, channel). */
static bool is_together(const struct def_trial *c, int64_t image, int64_t channel, int64_t i, int64_t k)
{
    static const int groups[] = { 1, 2, 4 };
    const int64_t per_group = 4 / groups[c->v[CH_GROUPS]];
    if (c->v[CH_KIND] == BATCH) return channel == k;
    if (c->v[CH_KIND] == INSTANCE) return image == i && channel == k;
    return image == i && channel / per_group == k / per_group;
}

static void statistics(const struct def_trial *c, const real *x, int64_t image, int64_t channel, real *mean, real *var)
{
    const rw_shape s = c->out[0];
    const int64_t inner = c->in[X].numel / s.dim[0] / s.dim[1];
    for (int pass = 0; pass < 2; pass++) {
        real sum = 0, n = 0;
        for (int64_t i = 0; i < s.dim[0]; i++)
            for (int64_t k = 0; k < s.dim[1]; k++)
                for (int64_t p = 0; p < inner && is_together(c, image, channel, i, k); p++, n++) {
                    const real value = x[(i * s.dim[1] + k) * inner + p];
                    sum += pass ? (value - *mean) * (value - *mean) : value;
                }
        *(pass ? var : mean) = sum / n;
    }
}

/* Normalizes each channel or group by the mean and variance of its elements, or by the given ones. */
static void channels_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const rw_shape s = c->out[0];
    const int64_t inner = c->in[X].numel / s.dim[0] / s.dim[1];
    for (int64_t i = 0; i < s.dim[0]; i++)
        for (int64_t k = 0; k < s.dim[1]; k++) {
            real mean, var;
            if (c->v[CH_KIND] == EVALUATED) mean = x[MEAN][k], var = x[VARIANCE][k];
            else statistics(c, x[X], i, k, &mean, &var);
            for (int64_t p = 0; p < inner; p++) {
                const int64_t at = (i * s.dim[1] + k) * inner + p;
                real value = (x[X][at] - mean) / sqrtl(var + (real)EPS);
                value = value * (x[WEIGHT] ? x[WEIGHT][k] : 1) + (x[BIAS] ? x[BIAS][k] : 0);
                if (x[ADDED]) value += x[ADDED][at];
                y[0][at] = c->v[CH_RELU] && value < 0 ? 0 : value;
            }
        }
}

const struct definition def_norms[] = { { .name = "rows",
                                          .ops = "layernorm rmsnorm",
                                          .factor = { { "rms", 2 },
                                                      { "rank", 4 },
                                                      { "width", 5 },
                                                      { "x frozen", 2 },
                                                      { "weight", 3 },
                                                      { "bias", 3 },
                                                      { "others", 8 },
                                                      { "layout", DEF_LAYOUTS } },
                                          .make = rows_make,
                                          .record = rows_record,
                                          .reference = rows_reference,
                                          .roundings = 60,
                                          .back_roundings = 60,
                                          .stored = 2 },
                                        { .name = "channels",
                                          .ops = "batchnorm batchnorm_eval group_norm instance_norm",
                                          .factor = { { "kind", 4 },
                                                      { "rank", 4 },
                                                      { "layout", DEF_LAYOUTS },
                                                      { "x frozen", 2 },
                                                      { "weight", 3 },
                                                      { "bias", 3 },
                                                      { "groups", 3 },
                                                      { "relu", 2 },
                                                      { "added", 2 } },
                                          .make = channels_make,
                                          .record = channels_record,
                                          .reference = channels_reference,
                                          .roundings = 40,
                                          .back_roundings = 100,
                                          .stored = 2 },
                                        { 0 } };
