/*
 * ssd_scan, one op: its results equal the recurrence, place by place, after steps of any size, and its fused gradient
 * equals the composed one. It is bit-identical for any number of threads, for strided operands, and for a sample
 * whatever others are in the batch. Also tested are gradients of either result alone, zero extents, and which values
 * are kept.
 */
#include "support/compare.h"
#include "support/plan_queries.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };

struct size {
    int64_t b, l, h, p, g, n, chunk;
};

/* One tile and several of each extent, chunks that end within a tile, parts of a group's heads, and groups. */
static const struct size sizes[] = { { 2, 150, 6, 5, 1, 7, 32 },
                                     { 1, 150, 2, 66, 1, 67, 130 },
                                     { 2, 66, 4, 16, 2, 16, 33 },
                                     { 3, 5, 10, 3, 2, 2, 0 },
                                     { 1, 1, 1, 1, 1, 1, 1 } };

enum { X, DT, A, B, C, STATE, OPERANDS };

struct model {
    struct fixture b;
    struct size s;
    rw_tensor *param[OPERANDS];
    rw_tensor *y, *last, *wy, *wlast;
};

static rw_shape shape_of(const struct size *s, int i)
{
    const rw_shape all[] = { RW_SHAPE(s->b, s->l, s->h, s->p), RW_SHAPE(s->b, s->l, s->h),
                             RW_SHAPE(s->h),                   RW_SHAPE(s->b, s->l, s->g, s->n),
                             RW_SHAPE(s->b, s->l, s->g, s->n), RW_SHAPE(s->b, s->h, s->p, s->n) };
    return all[i];
}

static struct model open_model(struct size s, rw_dtype dtype, int threads)
{
    static const char *const names[] = { "x", "dt", "a", "b", "c", "state" };
    struct model m = { .b = fixture_open(5, threads), .s = s };
    for (int i = 0; i < OPERANDS; i++) {
        m.param[i] = rw_param(m.b.ctx, names[i], dtype, shape_of(&s, i));
        if (i == DT) rw_init_uniform(m.param[i], 0.01, 0.3);
        else if (i == A) rw_init_uniform(m.param[i], -2, -0.1);
        else rw_init_normal(m.param[i], 0, 1);
    }
    m.wy = rw_buffer(m.b.ctx, "wy", dtype, shape_of(&s, X));
    m.wlast = rw_buffer(m.b.ctx, "wlast", dtype, shape_of(&s, STATE));
    rw_init_normal(m.wy, 0, 1), rw_init_normal(m.wlast, 0, 1);
    return m;
}

static void scan(struct model *m, bool state)
{
    rw_tensor *const *const p = m->param;
    const rw_ssd_operands o = { p[X], p[DT], p[A], p[B], p[C], state ? p[STATE] : RW_NONE };
    m->y = rw_ssd_scan(m->b.t, &o, m->s.chunk, &m->last);
    cr_assert(m->y && m->last, "%s", rw_error_message(m->b.ctx));
}

enum { OF_Y = 1, OF_STATE = 2 };

static rw_tensor *loss_of(struct model *m, int which)
{
    rw_tape *const t = m->b.t;
    rw_tensor *const y = rw_sum(t, rw_mul(t, m->y, m->wy), RW_ALL_AXES, false);
    rw_tensor *const last = rw_sum(t, rw_mul(t, m->last, m->wlast), RW_ALL_AXES, false);
    return which == OF_Y ? y : which == OF_STATE ? last : rw_add(t, y, last);
}

static void *bytes_of(struct model *m, rw_tensor *x)
{
    void *const data = calloc(1, rw_tensor_bytes(x) + 8);
    cr_assert_eq(rw_read(m->b.t, x, data, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(m->b.ctx));
    return data;
}

/* y and the last state, then all gradients. */
static unsigned char *run(struct size s, rw_dtype dtype, int threads, bool state, int which, size_t *ret)
{
    struct model m = open_model(s, dtype, threads);
    scan(&m, state);
    unsigned char *const y = bytes_of(&m, m.y), *const last = bytes_of(&m, m.last);
    const size_t y_bytes = rw_tensor_bytes(m.y), last_bytes = rw_tensor_bytes(m.last);
    cr_assert_eq(rw_backward(m.b.t, loss_of(&m, which)), RW_OK, "%s", rw_error_message(m.b.ctx));
    size_t n;
    unsigned char *all = all_gradients(m.b.ctx, &n);
    all = realloc(all, n + y_bytes + last_bytes);
    memcpy(all + n, y, y_bytes), memcpy(all + n + y_bytes, last, last_bytes);
    *ret = n + y_bytes + last_bytes;
    free(y), free(last);
    fixture_close(&m.b);
    return all;
}

Test(ops_ssd_scan, bytes_do_not_depend_on_threads)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t n, more;
            unsigned char *const one = run(sizes[i], types[d], 1, true, OF_Y | OF_STATE, &n);
            for (int threads = 1; threads <= (test_device() == RW_DEVICE_CPU ? 5 : 1); threads++) {
                unsigned char *const again = run(sizes[i], types[d], threads, true, OF_Y | OF_STATE, &more);
                cr_assert_eq(n, more);
                cr_expect_eq(first_difference(one, again, n), -1, "%s, size %zu, %d threads", rw_dtype_name(types[d]),
                             i, threads);
                free(again);
            }
            free(one);
        }
}

/* ---- the recurrence ---- */

/* Within 2^-53 times the terms of one result, some 1000 products and exponentials; measured: 2e-14. */
#define CLOSE 1e-13

static void close_to(const double *got, const double *want, int64_t n, double bound, const char *what)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        cr_expect(fabs(got[i] - want[i]) <= bound * most, "%s, element %lld: %.17g, not %.17g (%.3g)", what,
                  (long long)i, got[i], want[i], fabs(got[i] - want[i]) / most);
        if (!(fabs(got[i] - want[i]) <= bound * most)) return;
    }
}

/* One head of one batch: advances the state [p, n] and computes y of each place. */
static void recur(const struct size *s, double *const *in, int64_t b, int64_t h, double *state, double *y)
{
    const int64_t g = h / (s->h / s->g);
    for (int64_t t = 0; t < s->l; t++) {
        const double dt = in[DT][(b * s->l + t) * s->h + h], keep = exp(dt * in[A][h]);
        const double *const x = in[X] + ((b * s->l + t) * s->h + h) * s->p;
        const double *const into = in[B] + ((b * s->l + t) * s->g + g) * s->n;
        const double *const from = in[C] + ((b * s->l + t) * s->g + g) * s->n;
        for (int64_t p = 0; p < s->p; p++) {
            double sum = 0;
            for (int64_t n = 0; n < s->n; n++) {
                double *const at = state + p * s->n + n;
                *at = keep * *at + dt * x[p] * into[n];
                sum += *at * from[n];
            }
            y[((b * s->l + t) * s->h + h) * s->p + p] = sum;
        }
    }
}

Test(ops_ssd_scan, results_are_those_of_the_recurrence)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct model m = open_model(sizes[i], RW_F64, 2);
        const struct size *const s = &m.s;
        double *in[OPERANDS], *const want = calloc((size_t)(s->b * s->l * s->h * s->p), sizeof *want);
        for (int k = 0; k < OPERANDS; k++) in[k] = bytes_of(&m, m.param[k]);
        scan(&m, true);
        double *const y = bytes_of(&m, m.y), *const last = bytes_of(&m, m.last);
        for (int64_t b = 0; b < s->b; b++)
            for (int64_t h = 0; h < s->h; h++) recur(s, in, b, h, in[STATE] + (b * s->h + h) * s->p * s->n, want);
        close_to(y, want, s->b * s->l * s->h * s->p, CLOSE, "y");
        close_to(last, in[STATE], s->b * s->h * s->p * s->n, CLOSE, "state");
        for (int k = 0; k < OPERANDS; k++) free(in[k]);
        free(want), free(y), free(last);
        fixture_close(&m.b);
    }
}

/* ---- gradients ---- */

/* Compares the gradients of rw_backward() with those of rw_grad(), which are composed of other ops. */
static void fused_is_composed(struct size s, bool state, int which)
{
    struct model m = open_model(s, RW_F64, 3);
    rw_tensor *composed[OPERANDS] = { NULL };
    double *want[OPERANDS];
    const size_t n = state ? OPERANDS : STATE;
    scan(&m, state);
    cr_assert_eq(rw_grad(m.b.t, loss_of(&m, which), m.param, n, composed), RW_OK, "%s", rw_error_message(m.b.ctx));
    for (size_t i = 0; i < n; i++) want[i] = composed[i] ? bytes_of(&m, composed[i]) : NULL;
    rw_tape_reset(m.b.t);
    scan(&m, state);
    cr_assert_eq(rw_backward(m.b.t, loss_of(&m, which)), RW_OK, "%s", rw_error_message(m.b.ctx));
    for (size_t i = 0; i < n; i++) {
        double *const got = bytes_of(&m, rw_gradient(m.param[i]));
        if (want[i]) close_to(got, want[i], rw_shape_numel(shape_of(&s, (int)i)), CLOSE, rw_tensor_name(m.param[i]));
        free(got), free(want[i]);
    }
    fixture_close(&m.b);
}

Test(ops_ssd_scan, gradients_are_the_composed_ones)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int state = 0; state < 2; state++)
            for (int which = OF_Y; which <= (OF_Y | OF_STATE); which++) fused_is_composed(sizes[i], state, which);
}

/* ---- after a large step ---- */

enum { PLACES = 12, LARGE = 3 }; /* LARGE: position of the large step */

/* x, b, c are 1, except x of the large step, which adds 1 as well; the loss is the sum of the results. */
struct steps {
    double x[PLACES], dt[PLACES], a;
    double y[PLACES], ddt[PLACES], da;
};

/* The recurrence's results and gradients. */
static struct steps recurrence_over(double large, rw_dtype dtype)
{
    struct steps s = { .a = -16 };
    double state = 0, g = 0;
    for (int t = 0; t < PLACES; t++) {
        s.dt[t] = t == LARGE ? large : (t % 4 + 1) / 100.0;
        if (dtype == RW_F32) s.dt[t] = (float)s.dt[t];
        s.x[t] = t == LARGE ? 1 / (float)large : 1;
        s.y[t] = state = exp(s.dt[t] * s.a) * state + s.dt[t] * s.x[t];
    }
    for (int t = PLACES - 1; t >= 0; t--) {
        const double keep = exp(s.dt[t] * s.a), of_step = t ? (g + 1) * keep * s.y[t - 1] : 0;
        s.ddt[t] = s.a * of_step + (g + 1) * s.x[t];
        s.da += s.dt[t] * of_step;
        g = keep * (g + 1);
    }
    return s;
}

static rw_tensor *numbers(struct fixture *b, rw_dtype dtype, rw_shape shape, const double *x)
{
    return rw_require_grad(
        b->t, rw_cast(b->t, rw_input(b->t, RW_F64, shape, x, (size_t)rw_shape_numel(shape) * sizeof *x), dtype));
}

static void read_as_doubles(struct fixture *b, rw_tensor *x, double *to, int n)
{
    double room[PLACES]; /* of any type */
    cr_assert_eq(rw_read(b->t, x, room, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b->ctx));
    for (int i = 0; i < n; i++) to[i] = number_get(room, rw_tensor_dtype(x), i);
}

/* Within 32 roundings of the largest; measured: 3.5. Composed gradients in float64 are plain sums, in which a large
   step has a part of at most 1024 (PLACES + 1): within some roundings of that. */
static void compare(const struct steps *s, rw_dtype dtype, const struct steps *want, bool composed, bool rates)
{
    const double bound = dtype == RW_F32 ? 32 * 0x1p-24 : composed ? 1024 * (PLACES + 1) * 0x1p-52 : 32 * 0x1p-53;
    close_to(s->y, want->y, PLACES, bound, "y");
    close_to(s->ddt, want->ddt, PLACES, bound, "ddt");
    if (rates) close_to(&s->da, &want->da, 1, bound, "da");
}

/* Gradients by rw_backward(), or composed ones, whose own gradients are checked as well. */
static void step_over(double large, rw_dtype dtype, int64_t chunk, bool composed)
{
    static const double ones[PLACES] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    const struct steps want = recurrence_over(large, dtype);
    struct steps got = { 0 };
    struct fixture b = fixture_open(3, 1);
    rw_tensor *const x = numbers(&b, dtype, RW_SHAPE(1, PLACES, 1, 1), want.x), *d[2], *dd;
    rw_tensor *const of[] = { numbers(&b, dtype, RW_SHAPE(1, PLACES, 1), want.dt),
                              numbers(&b, dtype, RW_SHAPE(1), &want.a) };
    rw_tensor *const one = numbers(&b, dtype, RW_SHAPE(1, PLACES, 1, 1), ones);
    rw_tensor *const y = rw_ssd_scan(b.t, &(rw_ssd_operands){ x, of[0], of[1], one, one, RW_NONE }, chunk, NULL);
    rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
    read_as_doubles(&b, y, got.y, PLACES);
    if (composed) cr_assert_eq(rw_grad(b.t, loss, of, 2, d), RW_OK, "%s", rw_error_message(b.ctx));
    else cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    read_as_doubles(&b, composed ? d[0] : rw_gradient(of[0]), got.ddt, PLACES);
    read_as_doubles(&b, composed ? d[1] : rw_gradient(of[1]), &got.da, 1);
    compare(&got, dtype, &want, composed, large > 1000);
    if (composed) {
        cr_assert_eq(rw_grad(b.t, rw_sum(b.t, d[0], RW_ALL_AXES, false), &of[0], 1, &dd), RW_OK);
        read_as_doubles(&b, dd, got.ddt, PLACES);
        for (int i = 0; i < PLACES; i++) cr_expect(isfinite(got.ddt[i]), "%g of place %d", got.ddt[i], i);
    }
    fixture_close(&b);
}

Test(ops_ssd_scan, nothing_is_lost_after_a_large_step)
{
    static const double larges[] = { 100, 1e4, 1e6, 3e38 };
    static const int64_t chunks[] = { 0, 1, 5 };
    for (size_t i = 0; i < sizeof larges / sizeof *larges; i++)
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++)
            for (int composed = 0; composed < 2; composed++) {
                step_over(larges[i], RW_F32, chunks[k], composed);
                step_over(larges[i], RW_F64, chunks[k], composed);
            }
}

/* ---- operands ---- */

/* x, b and c as slices of one tensor, as in Mamba-2, or copies of these. */
/* The first state is as large as the type allows, c of the last place nearly so, and between them the state decays to
   zero: no gradient may contain the product of the two, which would overflow. */
static void forget(rw_dtype dtype, int exponent, bool composed)
{
    enum { L = 3 };
    const double far = ldexp(1, exponent), rows[5][L] = { { far, 1, 1 }, { 1, 1000, 1 }, { -1 }, { far, 1, 1 },
                                                          { 1, 1, far * sqrt(far) } };
    static const char *const names[] = { "x", "dt", "a", "b", "c" };
    const rw_shape shapes[] = { RW_SHAPE(1, L, 1, 1), RW_SHAPE(1, L, 1), RW_SHAPE(1), RW_SHAPE(1, L, 1, 1),
                                RW_SHAPE(1, L, 1, 1) };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x[5], *g[5];
    for (int i = 0; i < 5; i++) x[i] = rw_require_grad(b.t, numbers(&b, dtype, shapes[i], rows[i]));
    const rw_ssd_operands o = { x[0], x[1], x[2], x[3], x[4], RW_NONE };
    rw_tensor *const y = rw_ssd_scan(b.t, &o, 1, NULL), *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
    cr_assert_eq(composed ? rw_grad(b.t, loss, x, 5, g) : rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert(isfinite(rw_item(b.t, loss)), "%s: the result", rw_dtype_name(dtype));
    for (int i = 0; i < 5; i++) {
        double got[L];
        const int n = i == 2 ? 1 : L;
        read_as_doubles(&b, composed ? g[i] : rw_gradient(x[i]), got, n);
        for (int k = 0; k < n; k++)
            cr_expect(isfinite(got[k]), "%s, %s, gradient of %s, place %d: %g", rw_dtype_name(dtype),
                      composed ? "rw_grad()" : "rw_backward()", names[i], k, got[k]);
    }
    fixture_close(&b);
}

Test(ops_ssd_scan, what_is_forgotten_is_multiplied_with_nothing_large)
{
    for (int composed = 0; composed < 2; composed++) {
        forget(RW_F32, 40, composed);
        forget(RW_BF16, 40, composed);
        forget(RW_F64, 320, composed);
    }
}

/* Runs the scan on slices of one tensor, or on dense copies of them. */
static unsigned char *run_joined(struct size s, rw_dtype dtype, bool dense, size_t *ret)
{
    struct model m = open_model(s, dtype, 2);
    const int64_t widths[] = { s.h * s.p, s.g * s.n, s.g * s.n };
    rw_tensor *const joined = rw_param(m.b.ctx, "joined", dtype, RW_SHAPE(s.b, s.l, widths[0] + 2 * widths[1]));
    rw_tensor *piece[3];
    rw_init_normal(joined, 0, 1);
    cr_assert_eq(rw_split(m.b.t, joined, 2, widths, 3, piece), RW_OK);
    const int which[] = { X, B, C };
    for (int i = 0; i < 3; i++) {
        rw_tensor *const x = dense ? rw_contiguous(m.b.t, piece[i]) : piece[i];
        m.param[which[i]] = rw_reshape(m.b.t, x, shape_of(&s, which[i]));
    }
    if (!dense) m.param[STATE] = rw_transpose(m.b.t, rw_contiguous(m.b.t, rw_transpose(m.b.t, m.param[STATE], 2, 3)),
                                              2, 3);
    scan(&m, true);
    unsigned char *const y = bytes_of(&m, m.y);
    const size_t bytes = rw_tensor_bytes(m.y);
    cr_assert_eq(rw_backward(m.b.t, loss_of(&m, OF_Y | OF_STATE)), RW_OK, "%s", rw_error_message(m.b.ctx));
    size_t n;
    unsigned char *all = all_gradients(m.b.ctx, &n);
    all = realloc(all, n + bytes);
    memcpy(all + n, y, bytes);
    *ret = n + bytes;
    free(y);
    fixture_close(&m.b);
    return all;
}

Test(ops_ssd_scan, strides_change_no_byte)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t n, more;
            unsigned char *const dense = run_joined(sizes[i], types[d], true, &n);
            unsigned char *const strided = run_joined(sizes[i], types[d], false, &more);
            cr_assert_eq(n, more);
            cr_expect_eq(first_difference(dense, strided, n), -1, "%s, size %zu", rw_dtype_name(types[d]), i);
            free(dense), free(strided);
        }
}

/* The first sample of a batch alone: the same y, state, dx, ddt, db and dc. */
Test(ops_ssd_scan, a_sample_does_not_see_the_others)
{
    const struct size s = { 3, 40, 6, 5, 2, 7, 16 };
    struct model m = open_model(s, RW_F32, 2);
    unsigned char *bytes[2][OPERANDS + 1];
    size_t n[OPERANDS + 1];
    for (int alone = 0; alone < 2; alone++) {
        struct model one = m;
        if (alone)
            for (int i = 0; i < OPERANDS; i++)
                if (i != A) one.param[i] = rw_slice(m.b.t, m.param[i], 0, 0, 1);
        scan(&one, true);
        if (alone) one.wy = rw_slice(m.b.t, m.wy, 0, 0, 1), one.wlast = rw_slice(m.b.t, m.wlast, 0, 0, 1);
        unsigned char *const y = bytes_of(&one, rw_contiguous(m.b.t, rw_slice(m.b.t, one.y, 0, 0, 1)));
        cr_assert_eq(rw_backward(m.b.t, loss_of(&one, OF_Y | OF_STATE)), RW_OK, "%s", rw_error_message(m.b.ctx));
        for (int i = 0; i < OPERANDS; i++) {
            bytes[alone][i] = bytes_of(&m, rw_gradient(m.param[i]));
            n[i] = rw_tensor_bytes(m.param[i]) / (size_t)s.b;
        }
        bytes[alone][OPERANDS] = y, n[OPERANDS] = n[X];
        rw_tape_reset(m.b.t);
        rw_zero_grad(m.b.ctx);
    }
    for (int i = 0; i <= OPERANDS; i++) {
        if (i != A) cr_expect_eq(first_difference(bytes[0][i], bytes[1][i], n[i]), -1, "operand %d", i);
        free(bytes[0][i]), free(bytes[1][i]);
    }
    fixture_close(&m.b);
}

/* ---- zero extents ---- */

Test(ops_ssd_scan, without_a_place_the_state_stays)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++)
        for (int composed = 0; composed < 2; composed++) {
            struct model m = open_model((struct size){ 2, 0, 4, 3, 2, 5, 0 }, types[d], 2);
            scan(&m, true);
            cr_expect_eq(rw_shape_numel(rw_tensor_shape(m.y)), 0);
            unsigned char *const before = bytes_of(&m, m.param[STATE]), *const after = bytes_of(&m, m.last);
            unsigned char *const want = bytes_of(&m, m.wlast);
            cr_expect_eq(first_difference(before, after, rw_tensor_bytes(m.last)), -1, "%s", rw_dtype_name(types[d]));
            rw_tensor *const loss = loss_of(&m, OF_STATE), *of[2] = { NULL };
            rw_tensor *const wanted[] = { m.param[STATE], m.param[A] };
            const rw_status status = composed ? rw_grad(m.b.t, loss, wanted, 2, of) : rw_backward(m.b.t, loss);
            cr_assert_eq(status, RW_OK, "%s", rw_error_message(m.b.ctx));
            rw_tensor *const dstate = composed ? of[0] : rw_gradient(m.param[STATE]);
            unsigned char *const got = bytes_of(&m, rw_cast(m.b.t, dstate, types[d])); /* 16 bits: in float32 */
            unsigned char *const da = bytes_of(&m, composed ? of[1] : rw_gradient(m.param[A]));
            cr_expect_eq(first_difference(want, got, rw_tensor_bytes(m.wlast)), -1, "%s", rw_dtype_name(types[d]));
            for (size_t i = 0; i < rw_tensor_bytes(m.param[A]); i++) cr_expect_eq(da[i], 0);
            free(before), free(after), free(want), free(got), free(da);
            fixture_close(&m.b);
        }
}

Test(ops_ssd_scan, empty_extents)
{
    const struct size empty[] = { { 0, 5, 4, 3, 2, 5, 2 }, { 2, 5, 4, 0, 2, 5, 2 }, { 2, 5, 4, 3, 2, 0, 2 },
                                  { 2, 5, 0, 3, 2, 5, 2 } };
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        size_t n;
        free(run(empty[i], RW_F32, 2, true, OF_Y | OF_STATE, &n));
        free(run(empty[i], RW_BF16, 2, false, OF_Y, &n));
        fused_is_composed(empty[i], true, OF_Y | OF_STATE);
    }
}

/* Operands of stride 0: y has no element, and the values of a chunk would take more bytes than the address space. */
Test(ops_ssd_scan, extents_beyond_all_memory_are_refused)
{
    struct fixture b = fixture_open(1, 2);
    const int64_t l = INT64_C(1) << 33;
    rw_tensor *const one = rw_zeros(b.t, RW_F32, RW_SHAPE(1, 1, 1, 1));
    rw_tensor *const none = rw_zeros(b.t, RW_F32, RW_SHAPE(1, 1, 1, 0));
    rw_tensor *const places = rw_broadcast_to(b.t, one, RW_SHAPE(1, l, 1, 1));
    const rw_ssd_operands o = { rw_broadcast_to(b.t, none, RW_SHAPE(1, l, 1, 0)), rw_select(b.t, places, 3, 0),
                                rw_zeros(b.t, RW_F32, RW_SHAPE(1)), places, places, RW_NONE };
    rw_tensor *last = o.x;
    cr_expect_null(rw_ssd_scan(b.t, &o, l, &last));
    cr_expect_null(last);
    cr_expect_eq(rw_error_status(b.ctx), RW_ERR_SHAPE, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

/* ---- one op ---- */

Test(ops_ssd_scan, is_one_op_and_keeps_its_operands_alone)
{
    struct model m = open_model(sizes[0], RW_F32, 2);
    scan(&m, false);
    rw_tensor *const loss = loss_of(&m, OF_Y);
    const rw_plan *const plan = step_plan(&m.b, loss);
    cr_expect_eq(steps_of(&m.b, plan, "ssd_scan_grad"), 1);
    cr_expect_eq(steps_of(&m.b, plan, "ssd_scan"), 0, "none replays nothing");
    fixture_close(&m.b);
}

/* ---- underflow ---- */

/*
 * y[t] and dx[t] are exp of minus the distance in places: results below the least normal number are 0, in every thread,
 * and the caller's thread computes with subnormal numbers again afterwards.
 */
Test(ops_ssd_scan, underflowed_states_are_zero)
{
    if (!test_flushes()) cr_skip_test("subnormal numbers cost nothing here, and stay");
    enum { L = 128, H = 8 };
    static float x[L * H], ones[L * H], rates[H], y[L * H], dx[L * H];
    for (int i = 0; i < L * H; i++) x[i] = i < H, ones[i] = 1;
    for (int h = 0; h < H; h++) rates[h] = -1;
    for (int threads = 1; threads < 4; threads++) {
        struct fixture b = fixture_open(1, threads);
        rw_tensor *const tx = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1, L, H, 1), x, sizeof x));
        const rw_ssd_operands o = { tx, rw_input(b.t, RW_F32, RW_SHAPE(1, L, H), ones, sizeof ones),
                                    rw_input(b.t, RW_F32, RW_SHAPE(H), rates, sizeof rates),
                                    rw_input(b.t, RW_F32, RW_SHAPE(1, L, H, 1), ones, sizeof ones),
                                    rw_input(b.t, RW_F32, RW_SHAPE(1, L, H, 1), ones, sizeof ones), RW_NONE };
        rw_tensor *const scan = rw_ssd_scan(b.t, &o, 32, NULL);
        rw_tensor *const last = rw_slice(b.t, scan, 1, L - 1, L);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, last, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, scan, y, sizeof y), RW_OK);
        cr_assert_eq(rw_read(b.t, rw_gradient(tx), dx, sizeof dx), RW_OK);
        for (int i = 0; i < L * H; i++) {
            cr_assert_neq(fpclassify(y[i]), FP_SUBNORMAL, "y of place %d: %g", i / H, (double)y[i]);
            cr_assert_neq(fpclassify(dx[i]), FP_SUBNORMAL, "dx of place %d: %g", i / H, (double)dx[i]);
        }
        cr_assert(y[80 * H] > 0 && dx[(L - 81) * H] > 0);
        volatile float least = 0x1p-126f;
        cr_assert_eq(least / 4, 0x1p-128f, "the caller's thread flushes");
        fixture_close(&b);
    }
}
