/*
 * Gradients of vectors that all rows of a batch share: biases and gains. Their column sums are added to the gradient in
 * the pass that computes them, and must have the bytes of a separate sum that is then added: the same program, with
 * marked inputs instead of the parameters, computes that.
 */
#include "support/plan_queries.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 40, BYTES_MAX = WIDE * 8 };

typedef rw_tensor *(*program)(rw_tape *t, rw_tensor *x, rw_tensor *u, rw_tensor *v);

static rw_tensor *shifted(rw_tape *t, rw_tensor *x, rw_tensor *u, rw_tensor *v)
{
    return rw_sub(t, rw_add(t, rw_mul(t, x, u), v), x);
}

static rw_tensor *matrix(rw_tape *t, rw_dtype dtype)
{
    float w[WIDE * WIDE];
    for (int i = 0; i < WIDE * WIDE; i++) w[i] = (float)(i * 29 % 61) / 256 - 0.125f;
    return rw_cast(t, rw_input(t, RW_F32, RW_SHAPE(WIDE, WIDE), w, sizeof w), dtype);
}

static rw_tensor *layer(rw_tape *t, rw_tensor *x, rw_tensor *u, rw_tensor *v)
{
    rw_tensor *const w = matrix(t, rw_tensor_dtype(x));
    return rw_linear(t, rw_linear(t, x, w, u), w, v);
}

/* The sums are computed with gelu's slope. */
static rw_tensor *activated(rw_tape *t, rw_tensor *x, rw_tensor *u, rw_tensor *v)
{
    return rw_linear_gelu(t, rw_mul(t, x, u), matrix(t, rw_tensor_dtype(x)), v);
}

static rw_tensor *normed(rw_tape *t, rw_tensor *x, rw_tensor *u, rw_tensor *v)
{
    return rw_add(t, x, rw_layernorm(t, x, u, v, 1e-5f));
}

static rw_tensor *scaled(rw_tape *t, rw_tensor *x, rw_tensor *u, rw_tensor *v)
{
    return rw_rmsnorm(t, rw_rmsnorm(t, x, u, 1e-5f), v, 1e-5f);
}

/* The sums of the bias's columns are computed with the norm's backward. */
static rw_tensor *after(rw_tape *t, rw_tensor *x, rw_tensor *u, rw_tensor *v)
{
    rw_tensor *const h = rw_linear_add(t, x, matrix(t, rw_tensor_dtype(x)), v, x);
    return rw_add(t, rw_rmsnorm(t, h, u, 1e-5f), h);
}

/* Weight and bias are one tensor: one of the two sums is computed separately. */
static rw_tensor *normed_by_one(rw_tape *t, rw_tensor *x, rw_tensor *u, rw_tensor *v)
{
    return rw_mul(t, rw_layernorm(t, x, v, v, 1e-5f), u);
}

static const struct {
    const char *name;
    program record;
    int accumulated; /* number of sums that are added afterwards */
    int steps;       /* 1 if a vector has two uses: (old + a) + b is not old + (a + b) */
} programs[] = { { "shifted", shifted, 0, 3 }, { "layer", layer, 0, 3 },   { "activated", activated, 0, 3 },
                 { "normed", normed, 0, 3 },   { "scaled", scaled, 0, 3 }, { "behind", after, 0, 3 },
                 { "normed_by_one", normed_by_one, 2, 1 } };

struct data {
    rw_dtype dtype;
    int64_t rows;
    float *x, *dy, vector[2][WIDE];
};

static rw_tensor *as(struct fixture *b, const struct data *d, rw_shape shape, const float *data)
{
    return rw_cast(b->t, rw_input(b->t, RW_F32, shape, data, (size_t)rw_shape_numel(shape) * sizeof *data), d->dtype);
}

static rw_tensor *loss_of(struct fixture *b, const struct data *d, program record, rw_tensor *u, rw_tensor *v)
{
    const rw_shape s = RW_SHAPE(d->rows, WIDE);
    rw_tensor *const y = record(b->t, as(b, d, s, d->x), u, v);
    return rw_sum(b->t, rw_mul(b->t, y, as(b, d, s, d->dy)), RW_ALL_AXES, false);
}

static void read_gradients(rw_tensor *u, rw_tensor *v, char (*ret)[BYTES_MAX], struct fixture *b)
{
    cr_assert_eq(rw_read(b->t, rw_gradient(u), ret[0], rw_tensor_bytes(u)), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, rw_gradient(v), ret[1], rw_tensor_bytes(v)), RW_OK, "%s", rw_error_message(b->ctx));
}

/* The gradients of the program with marked inputs. */
static void alone(const struct data *d, program record, char (*ret)[BYTES_MAX])
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const u = rw_require_grad(b.t, as(&b, d, RW_SHAPE(WIDE), d->vector[0]));
    rw_tensor *const v = rw_require_grad(b.t, as(&b, d, RW_SHAPE(WIDE), d->vector[1]));
    cr_assert_eq(rw_backward(b.t, loss_of(&b, d, record, u, v)), RW_OK, "%s", rw_error_message(b.ctx));
    read_gradients(u, v, ret, &b);
    fixture_close(&b);
}

static rw_tensor *vector_param(struct fixture *b, const struct data *d, const char *name, const float *data)
{
    /* sums of the type of the inputs of alone() */
    rw_tensor *const p = rw_param_with(b->ctx, name, d->dtype, RW_SHAPE(WIDE),
                                       &(rw_param_options){ .grad_dtype = d->dtype });
    char cast[BYTES_MAX];
    cr_assert_eq(rw_read(b->t, as(b, d, RW_SHAPE(WIDE), data), cast, rw_tensor_bytes(p)), RW_OK);
    cr_assert_eq(rw_write(p, cast, rw_tensor_bytes(p)), RW_OK);
    return p;
}

/* sum += term, as the op accumulate computes it. */
static void add(struct fixture *b, const struct data *d, char *sum, const char *term)
{
    rw_tensor *const s = rw_input(b->t, d->dtype, RW_SHAPE(WIDE), sum, WIDE * rw_dtype_size(d->dtype));
    rw_tensor *const y = rw_add(b->t, s,
                                rw_input(b->t, d->dtype, RW_SHAPE(WIDE), term, WIDE * rw_dtype_size(d->dtype)));
    cr_assert_eq(rw_read(b->t, y, sum, rw_tensor_bytes(y)), RW_OK);
}

/* Three micro-batches into parameters: clear gradients, then others. */
static void check(const struct data *d, int p)
{
    char one[2][BYTES_MAX], sum[2][BYTES_MAX], got[2][BYTES_MAX];
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const u = vector_param(&b, d, "u", d->vector[0]), *const v = vector_param(&b, d, "v", d->vector[1]);
    alone(d, programs[p].record, one);
    memcpy(sum, one, sizeof sum);
    for (int step = 0; step < programs[p].steps; step++) {
        rw_tape_reset(b.t);
        rw_tensor *const loss = loss_of(&b, d, programs[p].record, u, v);
        cr_expect_eq(steps_of(&b, step_plan(&b, loss), "accumulate"), programs[p].accumulated, "%s: %d",
                     programs[p].name, steps_of(&b, step_plan(&b, loss), "accumulate"));
        cr_expect_eq(steps_of(&b, step_plan(&b, loss), "contiguous"), 0, "%s: copied for nothing", programs[p].name);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        read_gradients(u, v, got, &b);
        for (int i = 0; step && i < 2; i++) add(&b, d, sum[i], one[i]);
        for (int i = 0; i < 2; i++)
            cr_assert(!memcmp(got[i], sum[i], rw_tensor_bytes(u)), "%s, %s, %lld rows, vector %d, step %d",
                      programs[p].name, rw_dtype_name(d->dtype), (long long)d->rows, i, step);
    }
    fixture_close(&b);
}

static void fill(float *x, int64_t n, int seed)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)((i * 37 + seed) % 101) / 64 - 0.75f;
}

/* So many rows that columns are split into parts; a single one; none. */
static void check_all(rw_dtype dtype)
{
    static const int64_t rows[] = { 1, 7, 1100, 0 };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct data d = { .dtype = dtype, .rows = rows[r] };
        d.x = malloc((size_t)(rows[r] * WIDE + 1) * sizeof *d.x);
        d.dy = malloc((size_t)(rows[r] * WIDE + 1) * sizeof *d.dy);
        fill(d.x, rows[r] * WIDE, 5);
        fill(d.dy, rows[r] * WIDE, 50);
        for (int i = 0; i < 2; i++) fill(d.vector[i], WIDE, 17 * i);
        for (size_t p = 0; p < sizeof programs / sizeof *programs; p++) check(&d, (int)p);
        free(d.x);
        free(d.dy);
    }
}

Test(bias_and_gain_gradients, float32) { check_all(RW_F32); }
Test(bias_and_gain_gradients, bfloat16) { check_all(RW_BF16); }
Test(bias_and_gain_gradients, float16) { check_all(RW_F16); }
Test(bias_and_gain_gradients, float64) { check_all(RW_F64); }
