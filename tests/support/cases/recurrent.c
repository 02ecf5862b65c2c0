/* What goes along a sequence. See cases.h. */
#include "support/cases/recurrent.h"
#include "support/cases/cases.h"
#include "support/op_roundings.h"

#include <stdlib.h>

/* ---- convolutions ---- */

rw_tensor *op_build_causal_conv1d(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    return rw_causal_conv1d(t, x[0], x[1], c->n > 2 ? x[2] : RW_NONE);
}

/* Taps and the bias; rows, and the sums of their parts. */
void op_count_causal_conv1d(struct op_case *c)
{
    const int taps = (int)c->in[1].shape.dim[1], rows = (int)(c->in[0].shape.dim[0] * c->in[0].shape.dim[1]);
    c->r[0].n = taps + 1;
    c->r[1].n = taps;
    c->r[2].n = c->r[3].n = rows + rows / 128 + 2;
}

static void convolutions(void)
{
    const struct {
        struct op_operand x;
        int64_t taps;
    } all[] = { { { S(1, 1, 1), 0, 0 }, 1 },         { { S(2, 7, 5), 0, 0 }, 4 },
                { { S(2, 3, 33), OP_TURNED, 0 }, 4 }, { { S(3, 9, 19), OP_SLICED, 0 }, 3 },
                { { S(2, 2, 40), OP_CUT, 0 }, 5 },    { { S(3, 6, 4), OP_EXPANDED, 0 }, 2 },
                { { S(1, 20, 3), 0, 0 }, 16 },        { { S(0, 4, 3), 0, 0 }, 4 },
                { { S(2, 0, 3), 0, 0 }, 4 },          { { S(2, 4, 0), 0, 0 }, 4 },
                { { S(2, 700, 40), 0, 0 }, 4 } };
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++) {
        const rw_shape x = all[i / 2].x.shape;
        struct op_case *const c = op_case_next(OP_PRODUCTS, op_build_causal_conv1d, OP_TERMS, 2 + (int)(i % 2));
        c->in[0] = all[i / 2].x;
        c->in[1].shape = S(x.dim[2], all[i / 2].taps);
        c->in[2].shape = S(x.dim[2]);
        op_count_causal_conv1d(c);
        c->large = rw_shape_numel(x) > 4096;
        op_case_describe(c, "causal_conv1d of %lld%s", (long long)all[i / 2].taps, i % 2 ? " and a bias" : "");
    }
}

/* ---- cells: their weights are ones, so that a gate is an element of x plus, or beside, one of h ---- */

#define LSTM 4 /* gates */
#define GRU 3

/* [rows, columns] with a one where the column is the row modulo the columns: exact in any product. */
static rw_tensor *ones(rw_tape *t, rw_dtype dtype, int64_t rows, int64_t columns)
{
    char *const data = calloc((size_t)(rows * columns) + 1, 8);
    for (int64_t i = 0; i < rows; i++) number_put(data, dtype, i * columns + i % columns, 1);
    rw_tensor *const x = rw_input(t, dtype, RW_SHAPE(rows, columns), data);
    free(data);
    return x;
}

static rw_recurrent_weights weights_of(rw_tape *t, const rw_tensor *h, int gates)
{
    const int64_t width = rw_tensor_shape(h).dim[1];
    const rw_dtype dtype = rw_tensor_dtype(h);
    return (rw_recurrent_weights){ ones(t, dtype, gates * width, gates * width), ones(t, dtype, gates * width, width),
                                   RW_NONE, RW_NONE };
}

/* c->axis: 0 both results side by side, 1 the first alone, 2 the second. */
static rw_tensor *chosen(rw_tape *t, const struct op_case *c, rw_tensor *h, rw_tensor *next)
{
    if (c->axis) return c->axis == 1 ? h : next;
    return rw_concat(t, (rw_tensor *[]){ h, next }, 2, -1);
}

static rw_tensor *build_lstm_cell(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_recurrent_weights w = weights_of(t, x[1], LSTM);
    rw_tensor *next, *const h = rw_lstm_cell(t, x[0], x[1], x[2], &w, &next);
    return chosen(t, c, h, next);
}

static rw_tensor *build_gru_cell(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_recurrent_weights w = weights_of(t, x[1], GRU);
    (void)c;
    return rw_gru_cell(t, x[0], x[1], &w);
}

/*
 * A gate g is off by u G, G the sum of its terms' magnitudes. A sigmoid's slope is below its own value, so s is off by
 * s (n u + u G): its size is s (1 + G). tanh's slope is below 1: |a| + G. Of 1 - s it is 1 + s (1 + G), of 1 - a a it
 * is 1 + 2 (|a| + G)^2.
 */
struct sized {
    rw_tensor *value, *size, *rest; /* a function of a gate, its size, and that of what its slope is made of */
};

static struct sized sigmoid_of(rw_tape *t, rw_tensor *g, rw_tensor *size)
{
    rw_tensor *const s = rw_sigmoid(t, g), *const large = rw_mul(t, s, rw_add_scalar(t, size, 1));
    return (struct sized){ s, large, rw_add_scalar(t, large, 1) };
}

static struct sized tanh_of(rw_tape *t, rw_tensor *g, rw_tensor *size)
{
    rw_tensor *const a = rw_tanh(t, g), *const large = rw_add(t, rw_abs(t, a), size);
    return (struct sized){ a, large, rw_add_scalar(t, rw_scale(t, rw_mul(t, large, large), 2), 1) };
}

static rw_tensor *times(rw_tape *t, rw_tensor *a, rw_tensor *b, rw_tensor *c)
{
    return rw_mul(t, rw_mul(t, a, b), c);
}

static rw_tensor *part(rw_tape *t, rw_tensor *x, int i, int64_t h)
{
    return rw_slice(t, x, -1, i * h, (i + 1) * h);
}

static void lstm_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const int64_t h = c->in[1].shape.dim[1];
    rw_tensor *gate[LSTM], *size[LSTM], *const zeros = rw_scale(t, x[1], 0);
    for (int i = 0; i < LSTM; i++) {
        gate[i] = rw_add(t, part(t, x[0], i, h), x[1]);
        size[i] = rw_add(t, rw_abs(t, part(t, x[0], i, h)), rw_abs(t, x[1]));
    }
    const struct sized i = sigmoid_of(t, gate[0], size[0]), f = sigmoid_of(t, gate[1], size[1]);
    const struct sized a = tanh_of(t, gate[2], size[2]), o = sigmoid_of(t, gate[3], size[3]);
    rw_tensor *const before = rw_abs(t, x[2]);
    rw_tensor *const next = rw_add(t, rw_mul(t, f.value, x[2]), rw_mul(t, i.value, a.value));
    rw_tensor *const large = rw_add(t, rw_mul(t, f.size, before), rw_mul(t, i.size, a.size));
    const struct sized r = tanh_of(t, next, large);
    (void)y;
    m[0] = chosen(t, c, rw_mul(t, o.size, r.size), large);
    rw_tensor *const up = rw_abs(t, w), *const dh = c->axis == 2 ? zeros : part(t, up, 0, h);
    rw_tensor *const of_h = times(t, dh, o.size, r.rest);
    rw_tensor *const dc = c->axis == 1 ? of_h : rw_add(t, part(t, up, c->axis ? 0 : 1, h), of_h);
    rw_tensor *const d[] = { rw_mul(t, times(t, dc, a.size, i.size), i.rest),
                             rw_mul(t, times(t, dc, before, f.size), f.rest), times(t, dc, i.size, a.rest),
                             rw_mul(t, times(t, dh, r.size, o.size), o.rest) };
    m[1] = rw_concat(t, d, LSTM, -1);
    m[2] = rw_add(t, rw_add(t, d[0], d[1]), rw_add(t, d[2], d[3]));
    m[3] = rw_mul(t, dc, f.size);
}

static void gru_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const int64_t h = c->in[1].shape.dim[1];
    rw_tensor *gate[GRU], *size[GRU], *const before = rw_abs(t, x[1]), *const up = rw_abs(t, w);
    for (int i = 0; i < GRU; i++) gate[i] = part(t, x[0], i, h), size[i] = rw_add(t, rw_abs(t, gate[i]), before);
    const struct sized r = sigmoid_of(t, rw_add(t, gate[0], x[1]), size[0]);
    const struct sized z = sigmoid_of(t, rw_add(t, gate[1], x[1]), size[1]);
    const struct sized a = tanh_of(t, rw_add(t, gate[2], rw_mul(t, r.value, x[1])),
                                   rw_add(t, rw_abs(t, gate[2]), rw_mul(t, r.size, before)));
    rw_tensor *const apart = rw_add(t, before, a.size), *const da = rw_mul(t, rw_mul(t, up, z.rest), a.rest);
    (void)y;
    m[0] = rw_add(t, a.size, rw_mul(t, z.size, apart));
    rw_tensor *const d[] = { rw_mul(t, times(t, da, before, r.size), r.rest),
                             rw_mul(t, times(t, up, apart, z.size), z.rest), da };
    m[1] = rw_concat(t, d, GRU, -1);
    m[2] = rw_add(t, rw_add(t, d[0], d[1]), rw_add(t, rw_mul(t, da, r.size), rw_mul(t, up, z.size)));
}

/* Every function as often as it is a factor, those of c' among them, and their products. Gates are stored, what flows
   into them, and what is added up for h. */
static void add_cells(void)
{
    const int64_t sizes[][2] = { { 1, 1 }, { 3, 5 }, { 2, 17 }, { 0, 3 }, { 130, 40 } };
    const int functions = 5 * N_SIGMOID + 4 * N_F;
    for (size_t i = 0; i < 4 * (sizeof sizes / sizeof *sizes); i++) {
        const int64_t n = sizes[i / 4][0], h = sizes[i / 4][1];
        const bool gru = i % 4 == 3;
        struct op_case *const c = op_case_next(OP_POINTWISE, gru ? build_gru_cell : build_lstm_cell,
                                               gru ? gru_sizes : lstm_sizes, gru ? 2 : 3);
        c->axis = (int)(i % 4);
        c->in[0].shape = S(n, (gru ? GRU : LSTM) * h);
        c->in[1].shape = c->in[2].shape = S(n, h);
        for (int k = 0; k <= c->n; k++) c->r[k] = (struct roundings){ functions + 20, 3 };
        c->large = n * h > 4096;
        op_case_describe(c, gru ? "gru_cell" : "lstm_cell %d", c->axis);
    }
}

/* ---- with weights: operand x[last] is [G h, in + h + 2], all of them side by side ---- */

static rw_recurrent_weights cut_weights(rw_tape *t, rw_tensor *w, int64_t h)
{
    const rw_shape s = rw_tensor_shape(w);
    const int64_t in = s.dim[1] - h - 2;
    return (rw_recurrent_weights){ rw_slice(t, w, 1, 0, in), rw_slice(t, w, 1, in, in + h),
                                   rw_select(t, w, 1, in + h), rw_select(t, w, 1, in + h + 1) };
}

rw_tensor *op_build_lstm_layer(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_shape s = rw_tensor_shape(x[1]);
    const rw_recurrent_weights w = cut_weights(t, x[3], s.dim[1]);
    rw_tensor *h, *next, *y;
    if (rw_tensor_shape(x[0]).rank == 2) h = y = rw_lstm_cell(t, x[0], x[1], x[2], &w, &next);
    else y = rw_lstm(t, x[0], x[1], x[2], &w, &h, &next);
    (void)c;
    if (h == y) return rw_concat(t, (rw_tensor *[]){ h, next }, 2, -1);
    return rw_concat(t, (rw_tensor *[]){ y, rw_unsqueeze(t, h, 0), rw_unsqueeze(t, next, 0) }, 3, 0);
}

rw_tensor *op_build_gru_layer(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_recurrent_weights w = cut_weights(t, x[2], rw_tensor_shape(x[1]).dim[1]);
    (void)c;
    return rw_tensor_shape(x[0]).rank == 2 ? rw_gru_cell(t, x[0], x[1], &w) : rw_gru(t, x[0], x[1], &w, NULL);
}

/* The most that any op of a step takes, M being slopes along all of them: a product and its bias, a function, or what
   the rows of all steps add up to; and what each is rounded to where it is stored. */
void op_count_recurrent_layer(struct op_case *c)
{
    const rw_shape x = c->in[0].shape, w = c->in[c->n - 1].shape;
    const int rows = (int)(rw_shape_numel(x) / x.dim[x.rank - 1]);
    const int sums[] = { (int)w.dim[0], (int)w.dim[1], rows };
    int n = 2 * N_SIGMOID + 2;
    for (int i = 0; i < 3; i++) n = sums[i] + 1 > n ? sums[i] + 1 : n;
    for (int i = 0; i <= c->n; i++) c->r[i] = (struct roundings){ n, 1 };
}

/* ---- the scan ---- */

static rw_tensor *row_of(rw_tape *t, rw_tensor *x)
{
    return rw_reshape(t, x, S(rw_shape_numel(rw_tensor_shape(x))));
}

rw_tensor *op_build_ssd_scan(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_shape s = rw_tensor_shape(x[0]), w = rw_tensor_shape(x[2]);
    const int64_t n = w.dim[4], states = s.dim[0] * s.dim[3] * n;
    rw_tensor *last, *const state = rw_reshape(t, rw_slice(t, x[3], 1, 1, 1 + states),
                                               S(s.dim[2], s.dim[0], s.dim[3], n));
    const rw_ssd_operands o = { .x = x[0],
                                .dt = rw_scale(t, x[1], 1.0 / 16),
                                .a = rw_select(t, x[3], 1, 0),
                                .b = rw_select(t, x[2], 2, 0),
                                .c = rw_select(t, x[2], 2, 1),
                                .state = rw_transpose(t, state, 0, 1) };
    rw_tensor *const y = rw_ssd_scan(t, &o, c->axis, &last);
    return rw_concat(t, (rw_tensor *[]){ row_of(t, y), row_of(t, last) }, 2, 0);
}

/*
 * Products of n, q and p terms, and of each chunk a factor and a sum. An exponential's argument is off by u times the
 * sum of |dt a| from both ends, here below 4 in all: 8 roundings more. A gradient has the terms of all places.
 */
void op_count_ssd_scan(struct op_case *c)
{
    const int l = (int)c->in[0].shape.dim[1], h = (int)c->in[0].shape.dim[2], p = (int)c->in[0].shape.dim[3];
    const int n = (int)c->in[2].shape.dim[4], each = l + n + p + 4 * (N_F + 8 + l) + 12;
    c->r[0].n = each;
    for (int i = 1; i <= 4; i++) c->r[i] = (struct roundings){ 3 * each + l * (h + n + p), 3 };
}

static void scans(void)
{
    const int64_t all[][7] = { { 1, 1, 1, 1, 1, 1, 0 }, { 2, 5, 2, 2, 1, 3, 2 }, { 1, 4, 4, 1, 2, 2, 2 },
                               { 1, 5, 6, 2, 1, 3, 3 }, { 2, 70, 4, 8, 2, 16, 32 } }; /* b, l, h, p, g, n, chunk */
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const int64_t *const s = all[i];
        struct op_case *const c = op_case_next(OP_ATTENTION, op_build_ssd_scan, OP_TERMS, 4);
        c->axis = (int)s[6];
        c->in[0].shape = S(s[0], s[1], s[2], s[3]);
        c->in[1] = (struct op_operand){ .shape = S(s[0], s[1], s[2]), .range = OP_SIGNED };
        c->in[2].shape = S(s[0], s[1], 2, s[4], s[5]);
        c->in[3].shape = S(s[2], 1 + s[0] * s[3] * s[5]);
        op_count_ssd_scan(c);
        c->large = s[1] > 8;
        op_case_describe(c, "ssd_scan by %d", c->axis);
    }
}

void op_cases_recurrent(void)
{
    convolutions();
    add_cells();
    scans();
}
