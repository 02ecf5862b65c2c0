/* Cases of ops along a sequence: causal convolutions, LSTM and GRU, scans. */
#include "support/cases/recurrent.h"
#include "support/cases/cases.h"
#include "support/op_roundings.h"

#include <stdlib.h>

/* ---- convolutions ---- */

rw_tensor *op_build_causal_conv1d(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    return rw_causal_conv1d(t, x[0], x[1], c->n > 2 ? x[2] : RW_NONE);
}

/* Taps and the bias; for gradients the rows, and the sums of their parts. */
void op_count_causal_conv1d(struct op_case *c)
{
    const int taps = (int)c->in[1].shape.dim[1], rows = (int)(c->in[0].shape.dim[0] * c->in[0].shape.dim[1]);
    c->r[0].n = taps + 1;
    c->r[1].n = taps;
    c->r[2].n = c->r[3].n = rows + rows / 128 + 2;
}

/* Causal convolutions with 1 to 16 taps, with and without a bias. */
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
        op_case_count(c, op_count_causal_conv1d);
        c->large = rw_shape_numel(x) > 4096;
        op_case_describe(c, "causal_conv1d of %lld%s", (long long)all[i / 2].taps, i % 2 ? " and a bias" : "");
    }
}

/* ---- cells: their weights are ones, so that a gate is an element of x plus, or next to, one of h ---- */

#define LSTM 4 /* gates */
#define GRU 3

/* [rows, columns] with a one where the column is the row modulo the columns: exact in any product. */
static rw_tensor *ones(rw_tape *t, rw_dtype dtype, int64_t rows, int64_t columns)
{
    char *const data = calloc((size_t)(rows * columns) + 1, 8);
    for (int64_t i = 0; i < rows; i++) number_put(data, dtype, i * columns + i % columns, 1);
    rw_tensor *const x = rw_input(t, dtype, RW_SHAPE(rows, columns), data,
                                  (size_t)(rows * columns) * rw_dtype_size(dtype));
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

/* c->axis: 0 both results concatenated, 1 only the first, 2 only the second. */
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
 * A gate g is off by u G, where G is the sum of its terms' magnitudes. A sigmoid's slope is below its own value, so s
 * is off by s (n u + u G): its magnitude is s (1 + G). tanh's slope is below 1: |a| + G. For 1 - s it is 1 + s (1 + G),
 * for 1 - a a it is 1 + 2 (|a| + G)^2.
 */
struct sized {
    rw_tensor *value, *size, *rest; /* a function of a gate, its magnitude, and that of the complement in its slope */
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

struct lstm_sized {
    struct sized i, f, a, o, r; /* r: tanh of the next c */
    rw_tensor *before, *next, *large; /* the magnitude of c, and the next c with its magnitude */
};

/* One step from concatenated gates and c, with their magnitudes. */
static struct lstm_sized lstm_step(rw_tape *t, rw_tensor *gates, rw_tensor *size, rw_tensor *c, rw_tensor *before)
{
    const int64_t h = rw_tensor_shape(c).dim[1];
    struct lstm_sized s = { .i = sigmoid_of(t, part(t, gates, 0, h), part(t, size, 0, h)),
                            .f = sigmoid_of(t, part(t, gates, 1, h), part(t, size, 1, h)),
                            .a = tanh_of(t, part(t, gates, 2, h), part(t, size, 2, h)),
                            .o = sigmoid_of(t, part(t, gates, 3, h), part(t, size, 3, h)),
                            .before = before };
    s.next = rw_add(t, rw_mul(t, s.f.value, c), rw_mul(t, s.i.value, s.a.value));
    s.large = rw_add(t, rw_mul(t, s.f.size, before), rw_mul(t, s.i.size, s.a.size));
    s.r = tanh_of(t, s.next, s.large);
    return s;
}

/* The concatenated gradients of the gates, from those of h and of the next c. *dc becomes the gradient of the previous
   c. */
static rw_tensor *lstm_back(rw_tape *t, const struct lstm_sized *s, rw_tensor *dh, rw_tensor **dc)
{
    *dc = rw_add(t, *dc, times(t, dh, s->o.size, s->r.rest));
    rw_tensor *const d[] = { rw_mul(t, times(t, *dc, s->a.size, s->i.size), s->i.rest),
                             rw_mul(t, times(t, *dc, s->before, s->f.size), s->f.rest),
                             times(t, *dc, s->i.size, s->a.rest),
                             rw_mul(t, times(t, dh, s->r.size, s->o.size), s->o.rest) };
    *dc = rw_mul(t, *dc, s->f.size);
    return rw_concat(t, d, LSTM, -1);
}

/* x followed by one copy of h per gate. */
static rw_tensor *beside(rw_tape *t, rw_tensor *x, rw_tensor *h, int gates)
{
    rw_tensor *all[LSTM];
    for (int i = 0; i < gates; i++) all[i] = h;
    return rw_add(t, x, rw_concat(t, all, gates, -1));
}

static rw_tensor *sum_of_parts(rw_tape *t, rw_tensor *d, int gates, int64_t h)
{
    rw_tensor *sum = part(t, d, 0, h);
    for (int i = 1; i < gates; i++) sum = rw_add(t, sum, part(t, d, i, h));
    return sum;
}

static void lstm_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const int64_t h = c->in[1].shape.dim[1];
    rw_tensor *const zeros = rw_scale(t, x[1], 0), *const up = rw_abs(t, w);
    rw_tensor *const size = beside(t, rw_abs(t, x[0]), rw_abs(t, x[1]), LSTM);
    const struct lstm_sized s = lstm_step(t, beside(t, x[0], x[1], LSTM), size, x[2], rw_abs(t, x[2]));
    (void)y;
    m[0] = chosen(t, c, rw_mul(t, s.o.size, s.r.size), s.large);
    rw_tensor *const dh = c->axis == 2 ? zeros : part(t, up, 0, h);
    m[3] = c->axis == 1 ? zeros : part(t, up, c->axis ? 0 : 1, h);
    m[1] = lstm_back(t, &s, dh, &m[3]);
    m[2] = sum_of_parts(t, m[1], LSTM, h);
}

struct gru_sized {
    struct sized r, z, a;
    rw_tensor *before, *of_h, *apart, *next, *large;
};

/* One step from the concatenated gates of x and of h, and h, with their magnitudes. */
static struct gru_sized gru_step(rw_tape *t, rw_tensor *const gates[2], rw_tensor *const size[2], rw_tensor *h,
                                 rw_tensor *before)
{
    const int64_t n = rw_tensor_shape(h).dim[1];
    rw_tensor *const both = rw_add(t, gates[0], gates[1]), *const large = rw_add(t, size[0], size[1]);
    struct gru_sized s = { .r = sigmoid_of(t, part(t, both, 0, n), part(t, large, 0, n)),
                           .z = sigmoid_of(t, part(t, both, 1, n), part(t, large, 1, n)),
                           .before = before,
                           .of_h = part(t, size[1], 2, n) };
    s.a = tanh_of(t, rw_add(t, part(t, gates[0], 2, n), rw_mul(t, s.r.value, part(t, gates[1], 2, n))),
                  rw_add(t, part(t, size[0], 2, n), rw_mul(t, s.r.size, s.of_h)));
    s.apart = rw_add(t, before, s.a.size);
    s.next = rw_add(t, s.a.value, rw_mul(t, s.z.value, rw_sub(t, h, s.a.value)));
    s.large = rw_add(t, s.a.size, rw_mul(t, s.z.size, s.apart));
    return s;
}

/* d: gradients of the gates of x and of h. Returns the gradient of h that does not pass through its gates. */
static rw_tensor *gru_back(rw_tape *t, const struct gru_sized *s, rw_tensor *dh, rw_tensor *d[2])
{
    rw_tensor *const da = times(t, dh, s->z.rest, s->a.rest);
    rw_tensor *of[] = { rw_mul(t, times(t, da, s->of_h, s->r.size), s->r.rest),
                        rw_mul(t, times(t, dh, s->apart, s->z.size), s->z.rest), da };
    d[0] = rw_concat(t, of, GRU, -1);
    of[2] = rw_mul(t, da, s->r.size);
    d[1] = rw_concat(t, of, GRU, -1);
    return rw_mul(t, dh, s->z.size);
}

static void gru_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const int64_t h = c->in[1].shape.dim[1];
    rw_tensor *const before = rw_abs(t, x[1]), *d[2], *const zeros = rw_scale(t, x[0], 0);
    rw_tensor *const gates[] = { x[0], beside(t, zeros, x[1], GRU) };
    rw_tensor *const size[] = { rw_abs(t, x[0]), beside(t, zeros, before, GRU) };
    const struct gru_sized s = gru_step(t, gates, size, x[1], before);
    (void)y;
    m[0] = s.large;
    m[2] = gru_back(t, &s, rw_abs(t, w), d);
    m[1] = d[0];
    m[2] = rw_add(t, m[2], sum_of_parts(t, d[1], GRU, h));
}

/* Every function counts as often as it is a factor, including those in c', and their products. Gates, their gradients
   and the sum for h are stored. */
static void add_cells(void)
{
    const struct {
        int64_t n, h;
        enum op_layout layout[3];
    } all[] = { { 1, 1, { 0 } },
                { 3, 5, { 0 } },
                { 2, 17, { 0 } },
                { 0, 3, { 0 } },
                { 130, 40, { 0 } },
                { 2, 3, { OP_TURNED, OP_SLICED, OP_TURNED } },
                { 3, 2, { OP_SLICED, OP_EXPANDED, OP_CUT } } };
    const int functions = 5 * N_SIGMOID + 4 * N_F;
    for (size_t i = 0; i < 4 * (sizeof all / sizeof *all); i++) {
        const int64_t n = all[i / 4].n, h = all[i / 4].h;
        const bool gru = i % 4 == 3;
        struct op_case *const c = op_case_next(OP_POINTWISE, gru ? build_gru_cell : build_lstm_cell,
                                               gru ? gru_sizes : lstm_sizes, gru ? 2 : 3);
        c->axis = (int)(i % 4);
        c->in[0].shape = S(n, (gru ? GRU : LSTM) * h);
        c->in[1].shape = c->in[2].shape = S(n, h);
        for (int k = 0; k < c->n; k++) c->in[k].layout = all[i / 4].layout[k];
        for (int k = 0; k <= c->n; k++) c->r[k] = (struct roundings){ functions + 20, 3 };
        c->large = n * h > 4096;
        op_case_describe(c, gru ? "gru_cell" : "lstm_cell %d", c->axis);
    }
}

/* ---- with weights: operand x[last] is [G h, in + h + 2], all weights concatenated ---- */

static rw_tensor *scaled(rw_tape *t, rw_tensor *w, const struct op_case *c)
{
    return c->value != 0 ? rw_scale(t, w, c->value) : w;
}

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
    const rw_recurrent_weights w = cut_weights(t, scaled(t, x[3], c), s.dim[1]);
    rw_tensor *h, *next, *y;
    if (rw_tensor_shape(x[0]).rank == 2) h = y = rw_lstm_cell(t, x[0], x[1], x[2], &w, &next);
    else y = rw_lstm(t, x[0], x[1], x[2], &w, &h, &next);
    if (h == y) return rw_concat(t, (rw_tensor *[]){ h, next }, 2, -1);
    return rw_concat(t, (rw_tensor *[]){ y, rw_unsqueeze(t, h, 0), rw_unsqueeze(t, next, 0) }, 3, 0);
}

rw_tensor *op_build_gru_layer(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_recurrent_weights w = cut_weights(t, scaled(t, x[2], c), rw_tensor_shape(x[1]).dim[1]);
    return rw_tensor_shape(x[0]).rank == 2 ? rw_gru_cell(t, x[0], x[1], &w) : rw_gru(t, x[0], x[1], &w, NULL);
}

/* Maximum roundings of any op of a step, where M has the slopes along all of them: a product and its bias, a function,
   or the sum of the rows of all steps; plus those of storing each. */
void op_count_recurrent_layer(struct op_case *c)
{
    const rw_shape x = c->in[0].shape, w = c->in[c->n - 1].shape;
    const int rows = (int)(rw_shape_numel(x) / x.dim[x.rank - 1]);
    const int sums[] = { (int)w.dim[0], (int)w.dim[1], rows };
    int n = 2 * N_SIGMOID + 2;
    for (int i = 0; i < 3; i++) n = sums[i] + 1 > n ? sums[i] + 1 : n;
    for (int i = 0; i <= c->n; i++) c->r[i] = (struct roundings){ n, 1 };
}

/* ---- sequences: the magnitudes of a step, whose state has the magnitudes of the step before ---- */

#define STEPS_MAX 4

struct sequence {
    rw_recurrent_weights w, size; /* and their absolute values */
    rw_tensor *x[STEPS_MAX], *h[STEPS_MAX]; /* absolute values of each step's inputs, with their magnitudes */
    rw_tensor *dx[STEPS_MAX], *dw;
    int64_t steps;
};

static struct sequence sequence_of(rw_tape *t, const struct op_case *c, rw_tensor **x)
{
    rw_tensor *const w = scaled(t, x[c->n - 1], c);
    const int64_t h = c->in[1].shape.dim[1];
    struct sequence s = { cut_weights(t, w, h), cut_weights(t, rw_abs(t, w), h), .steps = c->in[0].shape.dim[0] };
    s.dw = rw_scale(t, w, 0);
    for (int64_t i = 0; i < s.steps; i++) s.x[i] = rw_abs(t, rw_select(t, x[0], 0, i));
    return s;
}

/* Propagates the gradients d of the gates of x and of h to before step i. Returns the gradient of h. */
static rw_tensor *products_back(rw_tape *t, struct sequence *s, int64_t i, rw_tensor *d_x, rw_tensor *d_h)
{
    rw_tensor *const x = rw_transpose(t, d_x, 0, 1), *const h = rw_transpose(t, d_h, 0, 1);
    rw_tensor *const of[] = { rw_matmul(t, x, s->x[i]), rw_matmul(t, h, s->h[i]), rw_sum(t, x, RW_AXES(1), true),
                              rw_sum(t, h, RW_AXES(1), true) };
    s->dw = rw_add(t, s->dw, rw_concat(t, of, 4, -1));
    s->dx[i] = rw_matmul(t, d_x, s->size.ih);
    return rw_matmul(t, d_h, s->size.hh);
}

static rw_tensor *gates_of(rw_tape *t, rw_tensor *x, rw_tensor *h, const rw_recurrent_weights *w)
{
    return rw_add(t, rw_linear(t, x, w->ih, w->bias_ih), rw_linear(t, h, w->hh, w->bias_hh));
}

/* The magnitudes of an LSTM over a sequence: step by step forward, then back. */
static void lstm_sequence_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                                rw_tensor **m)
{
    struct sequence s = sequence_of(t, c, x);
    struct lstm_sized step[STEPS_MAX];
    rw_tensor *all[STEPS_MAX + 2], *h = x[1], *cell = x[2], *large = rw_abs(t, x[1]), *before = rw_abs(t, x[2]);
    (void)y;
    for (int64_t i = 0; i < s.steps; i++) {
        s.h[i] = large;
        step[i] = lstm_step(t, gates_of(t, rw_select(t, x[0], 0, i), h, &s.w), gates_of(t, s.x[i], large, &s.size),
                            cell, before);
        h = rw_mul(t, step[i].o.value, step[i].r.value), cell = step[i].next, before = step[i].large;
        all[i] = large = rw_mul(t, step[i].o.size, step[i].r.size);
    }
    all[s.steps] = large, all[s.steps + 1] = before;
    m[0] = rw_stack(t, all, (int)s.steps + 2, 0);
    rw_tensor *const up = rw_abs(t, w), *dh = rw_select(t, up, 0, s.steps), *dc = rw_select(t, up, 0, s.steps + 1);
    for (int64_t i = s.steps - 1; i >= 0; i--) {
        rw_tensor *const d = lstm_back(t, &step[i], rw_add(t, dh, rw_select(t, up, 0, i)), &dc);
        dh = products_back(t, &s, i, d, d);
    }
    m[1] = rw_stack(t, s.dx, (int)s.steps, 0);
    m[2] = dh, m[3] = dc, m[4] = rw_scale(t, s.dw, c->value);
}

/* The magnitudes of a GRU over a sequence: step by step forward, then back. */
static void gru_sequence_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                               rw_tensor **m)
{
    struct sequence s = sequence_of(t, c, x);
    struct gru_sized step[STEPS_MAX];
    rw_tensor *all[STEPS_MAX], *d[2], *h = x[1], *large = rw_abs(t, x[1]), *const up = rw_abs(t, w);
    (void)y;
    for (int64_t i = 0; i < s.steps; i++) {
        rw_tensor *const gates[] = { rw_linear(t, rw_select(t, x[0], 0, i), s.w.ih, s.w.bias_ih),
                                     rw_linear(t, h, s.w.hh, s.w.bias_hh) };
        rw_tensor *const size[] = { rw_linear(t, s.x[i], s.size.ih, s.size.bias_ih),
                                    rw_linear(t, large, s.size.hh, s.size.bias_hh) };
        s.h[i] = large;
        step[i] = gru_step(t, gates, size, h, large);
        h = step[i].next, all[i] = large = step[i].large;
    }
    m[0] = rw_stack(t, all, (int)s.steps, 0);
    rw_tensor *dh = rw_scale(t, x[1], 0);
    for (int64_t i = s.steps - 1; i >= 0; i--) {
        rw_tensor *const beside_gates = gru_back(t, &step[i], rw_add(t, dh, rw_select(t, up, 0, i)), d);
        dh = rw_add(t, beside_gates, products_back(t, &s, i, d[0], d[1]));
    }
    m[1] = rw_stack(t, s.dx, (int)s.steps, 0);
    m[2] = dh, m[3] = rw_scale(t, s.dw, c->value);
}

/* Per step the roundings of a cell and the terms of a product; a weight's gradient sums the rows of all steps. */
static void add_sequences(void)
{
    const struct {
        int64_t steps, n, in, h;
        enum op_layout layout[4];
    } all[] = { { 1, 1, 1, 1, { 0 } },
                { 3, 2, 3, 2, { 0 } },
                { 2, 0, 3, 2, { 0 } },
                { 2, 2, 2, 3, { OP_TURNED, OP_TURNED, OP_SLICED, OP_CUT } },
                { 2, 3, 1, 2, { OP_SLICED, OP_EXPANDED, OP_CUT, OP_TURNED } } };
    const int functions = 5 * N_SIGMOID + 4 * N_F;
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++) {
        const int64_t steps = all[i / 2].steps, n = all[i / 2].n, in = all[i / 2].in, h = all[i / 2].h;
        const int gates = i % 2 ? GRU : LSTM;
        struct op_case *const c = op_case_next(OP_PRODUCTS, i % 2 ? op_build_gru_layer : op_build_lstm_layer,
                                               i % 2 ? gru_sequence_sizes : lstm_sequence_sizes, gates);
        c->value = 0.125; /* scale of the weights: gates stay away from saturation */
        c->in[0].shape = S(steps, n, in);
        c->in[1].shape = c->in[2].shape = S(n, h);
        c->in[c->n - 1].shape = S(gates * h, in + h + 2);
        for (int k = 0; k < c->n; k++) c->in[k].layout = all[i / 2].layout[k == c->n - 1 ? 3 : k];
        for (int k = 0; k <= c->n; k++)
            c->r[k] = (struct roundings){ (int)steps * (functions + 20 + (int)(in + 5 * h + n)), 4 * (int)steps + 1 };
        op_case_describe(c, gates == GRU ? "gru" : "lstm");
    }
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
 * Products of n, q and p terms, and per chunk a factor and a sum. An exponential's argument is off by u times the sum
 * of |dt a| from both ends, here below 4 in total: 8 roundings more. A gradient has the terms of all places.
 */
void op_count_ssd_scan(struct op_case *c)
{
    const int l = (int)c->in[0].shape.dim[1], h = (int)c->in[0].shape.dim[2], p = (int)c->in[0].shape.dim[3];
    const int n = (int)c->in[2].shape.dim[4], each = l + n + p + 4 * (N_F + 8 + l) + 12;
    c->r[0].n = each;
    for (int i = 1; i <= 4; i++) c->r[i] = (struct roundings){ 3 * each + l * (h + n + p), 3 };
}

/* State-space scans by chunks that divide the length, chunks that do not, and one by the default chunk. */
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
        op_case_count(c, op_count_ssd_scan);
        c->large = s[1] > 8;
        op_case_describe(c, "ssd_scan by %d", c->axis);
    }
}

void op_cases_recurrent(void)
{
    convolutions();
    add_cells();
    add_sequences();
    scans();
}
