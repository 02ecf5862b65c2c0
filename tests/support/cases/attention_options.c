/*
 * Cases of attention with options, its log-sum-exp, and the merge of two attentions. c->axes has the bits of
 * attention_options.h, c->axis the window; operand 3 is the mask or the sinks.
 */
#include "support/cases/attention_options.h"
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

#include <math.h>
#include <stdlib.h>

#define SOFT_CAP 3.0
#define ENTRIES 6 /* entries of documents, per batch */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Entry i of the documents of a batch row: the first document has a padded place, one is empty, the last ends early. */
static int64_t entry(const struct op_case *c, int64_t b, int i)
{
    const int64_t seq = c->in[0].shape.dim[2];
    const int64_t middle = seq / 2 > 3 + b ? seq / 2 : least(3 + b, seq), end = seq - (seq > 6);
    const int64_t cuts[ENTRIES] = { least(1, seq), least(2 + b, seq), least(2 + b, seq), middle, end, end };
    return cuts[i];
}

static rw_tensor *documents(rw_tape *t, const struct op_case *c)
{
    const int64_t sets = c->axes & WITH_SETS ? c->in[0].shape.dim[0] : 1;
    int32_t x[64 * ENTRIES];
    for (int64_t b = 0; b < sets; b++)
        for (int i = 0; i < ENTRIES; i++) x[b * ENTRIES + i] = (int32_t)entry(c, b, i);
    return rw_input(t, RW_I32, sets > 1 ? RW_SHAPE(sets, ENTRIES) : RW_SHAPE(ENTRIES), x,
                    (size_t)(sets > 1 ? sets * ENTRIES : ENTRIES) * sizeof *x);
}

/* Whether the boolean mask lets this query attend to this key. From place 2 of the second row on, no query has keys. */
static bool truth_of(int64_t b, int64_t row, int64_t key)
{
    return (row * 3 + key * 5 + b) % 4 != 1 && !(b == 1 && row == 2);
}

static rw_tensor *truths(rw_tape *t, const struct op_case *c)
{
    const int64_t batch = c->in[0].shape.dim[0], s = c->in[0].shape.dim[2], kv = c->in[1].shape.dim[2];
    uint8_t *const x = malloc((size_t)(batch * s * kv + 1));
    for (int64_t i = 0; i < batch * s * kv; i++) x[i] = truth_of(i / kv / s, i / kv % s, i % kv) ? 1 + i % 3 : 0;
    rw_tensor *const mask = rw_input(t, RW_BOOL, RW_SHAPE(batch, 1, s, kv), x, (size_t)(batch * s * kv) * sizeof *x);
    free(x);
    return mask;
}

static double slope_of(int64_t h)
{
    return ldexp(1, -(int)h - 1);
}

static rw_tensor *slopes(rw_tape *t, const struct op_case *c, rw_dtype dtype)
{
    double wide[64];
    float narrow[64];
    for (int64_t h = 0; h < c->in[0].shape.dim[1]; h++) narrow[h] = (float)(wide[h] = slope_of(h));
    return rw_input(t, dtype, RW_SHAPE(c->in[0].shape.dim[1]), dtype == RW_F64 ? (void *)wide : (void *)narrow,
                    (size_t)c->in[0].shape.dim[1] * rw_dtype_size(dtype));
}

static rw_dtype sum_type(const rw_tensor *x)
{
    return rw_tensor_dtype(x) == RW_F64 ? RW_F64 : RW_F32;
}

/* Appends a row's number to each of its columns. */
static rw_tensor *beside(rw_tape *t, rw_tensor *y, rw_tensor *lse)
{
    rw_shape s = rw_tensor_shape(lse);
    s.dim[s.rank++] = 1;
    return rw_add(t, y, rw_cast(t, rw_reshape(t, lse, s), rw_tensor_dtype(y)));
}

rw_tensor *op_build_attention_options(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_attention_params o = { .causal = c->causal, .scale = op_single(c->value), .dropout = op_single(c->dropout),
                              .window = c->axis };
    rw_tensor *lse;
    if (c->axes & WITH_CAP) o.soft_cap = SOFT_CAP;
    if (c->axes & WITH_SLOPES) o.slopes = slopes(t, c, sum_type(x[0]));
    if (c->axes & WITH_DOCUMENTS) o.documents = documents(t, c);
    if (c->axes & WITH_MASK) o.mask = c->axes & WITH_WIDE_MASK ? rw_cast(t, x[3], sum_type(x[0])) : x[3];
    if (c->axes & WITH_SINKS) o.sinks = x[3];
    if (c->axes & WITH_TRUTHS) o.mask = truths(t, c);
    if (!(c->axes & WITH_LSE)) return rw_attention(t, x[0], x[1], x[2], &o);
    rw_tensor *const y = rw_attention_lse(t, x[0], x[1], x[2], &o, &lse);
    return beside(t, y, lse);
}

/* ---- magnitudes ---- */

/* Which query attends to which key by the definition, as 1, and the bias that the slopes subtract. */
static void matrices(const struct op_case *c, double *seen, double *bias)
{
    const int64_t heads = c->in[0].shape.dim[1], s = c->in[0].shape.dim[2], kv = c->in[1].shape.dim[2];
    for (int64_t n = 0; n < c->in[0].shape.dim[0] * heads * s * kv; n++) {
        const int64_t key = n % kv, row = n / kv % s, h = n / kv / s % heads, b = n / kv / s / heads;
        const int64_t away = row + kv - s - key;
        seen[n] = !(c->causal && away < 0) && !(c->axis && llabs(away) >= c->axis);
        bias[n] = c->axes & WITH_SLOPES ? -slope_of(h) * (double)llabs(away) : 0;
        bool shared = !(c->axes & WITH_DOCUMENTS);
        for (int i = 0; i + 1 < ENTRIES && !shared; i++) {
            const int64_t set = c->axes & WITH_SETS ? b : 0, from = entry(c, set, i), to = entry(c, set, i + 1);
            shared = row >= from && row < to && key >= from && key < to;
        }
        if (!shared || (c->axes & WITH_TRUTHS && !truth_of(b, row, key))) seen[n] = 0;
        if (seen[n] == 0) bias[n] = -1e30;
    }
}

/* [b, kv_heads, s, d] as [b, heads, s, d], and the inverse as a sum. */
static rw_tensor *repeated(rw_tape *t, rw_tensor *x, int64_t heads)
{
    const rw_shape s = rw_tensor_shape(x);
    rw_tensor *const one = rw_reshape(t, x, S(s.dim[0], s.dim[1], 1, s.dim[2], s.dim[3]));
    rw_tensor *const all = rw_broadcast_to(t, one, S(s.dim[0], s.dim[1], heads / s.dim[1], s.dim[2], s.dim[3]));
    return rw_reshape(t, all, S(s.dim[0], heads, s.dim[2], s.dim[3]));
}

static rw_tensor *gathered(rw_tape *t, rw_tensor *x, int64_t kv_heads)
{
    const rw_shape s = rw_tensor_shape(x);
    return rw_sum(t, rw_reshape(t, x, S(s.dim[0], kv_heads, s.dim[1] / kv_heads, s.dim[2], s.dim[3])), RW_AXES(2),
                  false);
}

static rw_tensor *turned(rw_tape *t, rw_tensor *x)
{
    return rw_transpose(t, x, -1, -2);
}

/* Values that the functions below share. k: the steepness of the exponential, 1 + 8 times the terms of its argument. */
struct parts {
    rw_tensor *p, *sink, *k; /* sink: probability of the sinks [b, h, s, 1] */
};

/* Computes the values that the magnitudes below share: probabilities, the sink's, and the steepness. */
static struct parts parts_of(rw_tape *t, const struct op_case *c, rw_tensor **x, double scale)
{
    const int64_t heads = c->in[0].shape.dim[1], kv = c->in[1].shape.dim[2];
    const rw_shape all = S(c->in[0].shape.dim[0], heads, c->in[0].shape.dim[2], kv);
    const int64_t n = rw_shape_numel(all);
    double *const seen = malloc((size_t)(n + 1) * sizeof *seen), *const bias = malloc((size_t)(n + 1) * sizeof *bias);
    matrices(c, seen, bias);
    rw_tensor *const live = rw_input(t, RW_F64, all, seen, (size_t)n * sizeof *seen),
                     *const added = rw_input(t, RW_F64, all, bias, (size_t)n * sizeof *bias);
    free(seen), free(bias);
    rw_tensor *const key = repeated(t, x[1], heads);
    rw_tensor *s = rw_scale(t, rw_matmul(t, x[0], turned(t, key)), scale);
    rw_tensor *terms = rw_scale(t, rw_matmul(t, rw_abs(t, x[0]), turned(t, rw_abs(t, key))), fabs(scale));
    terms = rw_add(t, terms, rw_mul(t, live, rw_abs(t, added)));
    if (c->axes & WITH_CAP) {
        s = rw_scale(t, rw_tanh(t, rw_scale(t, s, 1 / SOFT_CAP)), SOFT_CAP);
        terms = rw_add_scalar(t, terms, SOFT_CAP);
    }
    s = rw_add(t, s, added);
    if (c->axes & WITH_MASK) s = rw_add(t, s, x[3]), terms = rw_add(t, terms, rw_abs(t, x[3]));
    struct parts r = { .sink = NULL };
    if (c->axes & WITH_SINKS) {
        rw_tensor *const one = rw_broadcast_to(t, rw_reshape(t, x[3], S(1, heads, 1, 1)),
                                               S(all.dim[0], heads, all.dim[2], 1));
        rw_tensor *const p = rw_softmax(t, rw_concat(t, ((rw_tensor *[]){ s, one }), 2, -1), -1);
        terms = rw_add(t, terms, rw_abs(t, one));
        r.sink = rw_slice(t, p, -1, kv, kv + 1);
        r.p = rw_mul(t, rw_slice(t, p, -1, 0, kv), live);
    } else {
        r.p = rw_mul(t, rw_softmax(t, s, -1), live);
    }
    r.k = rw_add_scalar(t, rw_scale(t, rw_max(t, terms, RW_AXES(-1), true), 8), 1);
    return r;
}

/* The magnitudes of attention with options, and of its gradients. */
static void sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const int64_t heads = c->in[0].shape.dim[1], kv_heads = c->in[1].shape.dim[1], d = c->in[0].shape.dim[3];
    const double scale = c->value != 0 ? (double)(float)c->value : 1 / sqrt((double)d), kept = 1 / (1 - c->dropout);
    const struct parts r = parts_of(t, c, x, scale);
    rw_tensor *const q = rw_abs(t, x[0]), *const k = rw_abs(t, repeated(t, x[1], heads));
    rw_tensor *const v = rw_abs(t, repeated(t, x[2], heads)), *const up = rw_abs(t, w);
    rw_tensor *const pk = rw_mul(t, r.p, r.k);
    rw_tensor *dots = rw_scale(t, rw_sum(t, rw_mul(t, up, rw_matmul(t, r.p, v)), RW_AXES(-1), true), 2);
    m[0] = rw_scale(t, rw_matmul(t, pk, v), kept);
    if (c->axes & WITH_LSE) {
        m[0] = rw_add(t, m[0], rw_add(t, rw_abs(t, y), r.k));
        dots = rw_add(t, dots, rw_sum(t, up, RW_AXES(-1), true));
    }
    rw_tensor *const flow = rw_scale(t, rw_mul(t, pk, rw_add(t, rw_matmul(t, up, turned(t, v)), dots)), kept);
    rw_tensor *const ds = rw_scale(t, flow, fabs(scale));
    m[1] = rw_matmul(t, ds, k);
    m[2] = gathered(t, rw_matmul(t, turned(t, ds), q), kv_heads);
    m[3] = rw_scale(t, gathered(t, rw_matmul(t, turned(t, pk), up), kv_heads), kept);
    if (c->axes & WITH_MASK) m[4] = rw_sum_to(t, flow, c->in[3].shape);
    if (c->axes & WITH_SINKS)
        m[4] = rw_sum(t, rw_scale(t, rw_mul(t, rw_mul(t, r.sink, r.k), dots), kept), RW_AXES(0, 2, 3), false);
}

/* ---- counts ---- */

/* tanh, its product and the slope; distances; the mask. For lse: a logarithm, and the sum over dv of its gradient. */
void op_count_attention_options(struct op_case *c)
{
    const rw_shape q = c->in[0].shape, last = c->in[3].shape;
    const int more = 2 * N_F + 10 + (c->axes & WITH_LSE ? N_F + 4 + (int)c->in[2].shape.dim[3] : 0);
    op_count_attention(c);
    for (int i = 0; i < 4; i++) c->r[i].n += (i ? 2 : 1) * more;
    const int rows = (int)(q.dim[0] * q.dim[2]), all = (int)(rows * q.dim[1] * c->in[1].shape.dim[2]);
    if (c->axes & WITH_SINKS) c->r[4] = (struct roundings){ c->r[1].n + rows, 3 };
    if (c->axes & WITH_MASK)
        c->r[4] = (struct roundings){ c->r[1].n + all / (int)(rw_shape_numel(last) ? rw_shape_numel(last) : 1), 4 };
    for (int i = 0; i < 4 && c->axes & WITH_LSE; i++) c->r[i].s += 2;
}

/* ---- the merge of two ---- */

rw_tensor *op_build_attention_merge(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    (void)c;
    const rw_dtype wide = sum_type(x[0]);
    rw_tensor *lse, *const y = rw_attention_merge(t, x[0], rw_cast(t, x[2], wide), x[1], rw_cast(t, x[3], wide), &lse);
    return beside(t, y, lse);
}

/* The magnitudes of merged attention and of its gradients. */
static void merge_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    (void)y;
    rw_shape s = c->in[2].shape;
    s.dim[s.rank++] = 1;
    rw_tensor *const a = rw_reshape(t, x[2], s), *const b = rw_reshape(t, x[3], s), *const up = rw_abs(t, w);
    rw_tensor *const k = rw_add_scalar(t, rw_scale(t, rw_add(t, rw_abs(t, a), rw_abs(t, b)), 8), 2);
    rw_tensor *const of_a = rw_mul(t, rw_sigmoid(t, rw_sub(t, a, b)), k);
    rw_tensor *const of_b = rw_mul(t, rw_sigmoid(t, rw_sub(t, b, a)), k);
    rw_tensor *const out = rw_add(t, rw_mul(t, of_a, rw_abs(t, x[0])), rw_mul(t, of_b, rw_abs(t, x[1])));
    m[0] = rw_add(t, out, k);
    m[1] = rw_mul(t, up, of_a);
    m[2] = rw_mul(t, up, of_b);
    for (int i = 0; i < 2; i++) {
        rw_tensor *const parts = rw_add_scalar(t, rw_add(t, rw_abs(t, x[i]), out), 1);
        m[3 + i] = rw_reshape(t, rw_mul(t, i ? of_b : of_a, rw_sum(t, rw_mul(t, up, parts), RW_AXES(-1), true)),
                              c->in[2].shape);
    }
}

/* Maximum, exponentials, sum, logarithm, weights; the sum over d for the gradient of a log-sum-exp. */
void op_count_attention_merge(struct op_case *c)
{
    const int d = (int)c->in[0].shape.dim[c->in[0].shape.rank - 1], n = 3 * N_F + 12;
    c->r[0] = (struct roundings){ n + 4, 2 };
    c->r[1] = c->r[2] = (struct roundings){ n + 2, 2 };
    c->r[3] = c->r[4] = (struct roundings){ 2 * n + 2 * d + 6, 2 };
}

/* ---- the table ---- */

/* Each option alone, and combinations of them. */
static void add_options(void)
{
    const struct {
        const char *name;
        rw_shape q, k, v, more;
        uint32_t bits;
        int window;
        bool causal;
        double dropout;
        enum op_layout layout;
    } all[] = {
        { "window", S(1, 2, 9, 8), S(1, 2, 9, 8), S(1, 2, 9, 8), S(0), 0, 3, true, 0, 0 },
        { "window both ways", S(2, 2, 7, 6), S(2, 1, 12, 6), S(2, 1, 12, 4), S(0), 0, 2, false, 0.2, 0 },
        { "window over tiles", S(1, 1, 150, 4), S(1, 1, 150, 4), S(1, 1, 150, 4), S(0), 0, 5, true, 0, 0 },
        { "slopes", S(2, 4, 5, 8), S(2, 2, 7, 8), S(2, 2, 7, 8), S(0), WITH_SLOPES, 0, true, 0, OP_MIDDLE },
        { "soft_cap", S(1, 2, 6, 16), S(1, 2, 6, 16), S(1, 2, 6, 16), S(0), WITH_CAP, 0, true, 0.3, 0 },
        { "soft_cap of all", S(1, 2, 3, 5), S(1, 1, 8, 5), S(1, 1, 8, 3), S(0), WITH_CAP, 0, false, 0, 0 },
        { "documents", S(2, 2, 12, 8), S(2, 1, 12, 8), S(2, 1, 12, 8), S(0), WITH_DOCUMENTS, 0, true, 0, 0 },
        { "documents by batch", S(2, 2, 9, 4), S(2, 2, 9, 4), S(2, 2, 9, 4), S(0), WITH_DOCUMENTS | WITH_SETS, 0,
          false, 0.1, OP_MIDDLE },
        { "documents over tiles", S(1, 1, 140, 4), S(1, 1, 140, 4), S(1, 1, 140, 4), S(0), WITH_DOCUMENTS, 0, true, 0,
          0 },
        { "sinks", S(2, 4, 5, 8), S(2, 2, 7, 8), S(2, 2, 7, 6), S(4), WITH_SINKS, 0, true, 0.2, 0 },
        { "sinks in a window", S(1, 2, 20, 8), S(1, 2, 20, 8), S(1, 2, 20, 8), S(2), WITH_SINKS | WITH_CAP, 4, true, 0,
          0 },
        { "mask", S(2, 2, 5, 8), S(2, 2, 7, 8), S(2, 2, 7, 8), S(2, 2, 5, 7), WITH_MASK, 0, false, 0, 0 },
        { "mask of a batch", S(2, 4, 5, 8), S(2, 2, 6, 8), S(2, 2, 6, 8), S(1, 4, 5, 6), WITH_MASK, 0, true, 0.2, 0 },
        { "mask of a head", S(3, 2, 4, 8), S(3, 2, 6, 8), S(3, 2, 6, 8), S(3, 1, 4, 6), WITH_MASK | WITH_WIDE_MASK, 0,
          false, 0, 0 },
        { "mask of keys", S(2, 2, 4, 8), S(2, 2, 6, 8), S(2, 2, 6, 8), S(2, 1, 1, 6), WITH_MASK, 0, false, 0, 0 },
        { "mask over tiles", S(1, 1, 70, 4), S(1, 1, 66, 4), S(1, 1, 66, 4), S(1, 1, 70, 66),
          WITH_MASK | WITH_SLOPES | WITH_CAP, 40, true, 0, 0 },
        { "mask of truths", S(2, 4, 6, 8), S(2, 2, 9, 8), S(2, 2, 9, 4), S(0), WITH_TRUTHS, 0, true, 0.1, OP_MIDDLE },
        { "mask of truths over tiles", S(1, 1, 70, 4), S(1, 1, 66, 4), S(1, 1, 66, 4), S(1),
          WITH_TRUTHS | WITH_SINKS | WITH_CAP, 30, true, 0, 0 },
        { "all of it", S(2, 4, 12, 8), S(2, 2, 12, 8), S(2, 2, 12, 4), S(4),
          WITH_SINKS | WITH_CAP | WITH_SLOPES | WITH_DOCUMENTS | WITH_SETS, 5, true, 0.2, 0 },
        { "lse", S(1, 2, 5, 8), S(1, 2, 7, 8), S(1, 2, 7, 8), S(0), WITH_LSE, 0, true, 0, 0 },
        { "lse with sinks", S(2, 2, 5, 8), S(2, 1, 7, 8), S(2, 1, 7, 4), S(2), WITH_LSE | WITH_SINKS | WITH_CAP, 3,
          true, 0.2, OP_MIDDLE },
        { "lse of width 64", S(1, 2, 17, 64), S(1, 1, 17, 64), S(1, 1, 17, 64), S(0), WITH_LSE, 0, true, 0.1, 0 },
        { "slopes of no head", S(1, 2, 0, 8), S(1, 2, 4, 8), S(1, 2, 4, 8), S(0), WITH_SLOPES, 0, false, 0, 0 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const bool four = all[i].bits & (WITH_MASK | WITH_SINKS);
        struct op_case *const c = op_case_next(OP_ATTENTION, op_build_attention_options, sizes, four ? 4 : 3);
        const rw_shape shapes[] = { all[i].q, all[i].k, all[i].v, all[i].more };
        for (int k = 0; k < c->n; k++) c->in[k].shape = shapes[k];
        for (int k = 0; k < 3; k++) c->in[k].layout = all[i].layout;
        c->axes = all[i].bits;
        c->axis = all[i].window;
        c->causal = all[i].causal;
        c->value = 0;
        c->dropout = all[i].dropout;
        op_case_count(c, op_count_attention_options);
        c->large = false;
        c->tiled = all[i].q.dim[2] > 100;
        op_case_describe(c, "attention with %s", all[i].name);
    }
}

static void add_merges(void)
{
    const rw_shape shapes[] = { S(1, 1), S(2, 3, 5, 8), S(7, 33), S(3, 130), S(2, 0, 4), S(5, 0) };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct op_case *const c = op_case_next(OP_ATTENTION, op_build_attention_merge, merge_sizes, 4);
        c->in[0].shape = c->in[1].shape = c->in[2].shape = shapes[i];
        c->in[2].shape.rank--;
        c->in[3].shape = c->in[2].shape;
        c->in[1].layout = i == 1 ? OP_MIDDLE : OP_DENSE;
        c->in[2].range = c->in[3].range = OP_SCORES;
        op_case_count(c, op_count_attention_merge);
        op_case_describe(c, "attention_merge");
    }
}

void op_cases_attention_options(void)
{
    add_options();
    add_merges();
}
