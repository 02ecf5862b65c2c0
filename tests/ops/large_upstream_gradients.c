/*
 * Gradients with a large upstream gradient, as a loss scale causes it: 3,000 in float16. Each operand's gradient is
 * requested alone, and must be finite wherever the one in float64 is a number of float16. A rule whose intermediate
 * values overflow before the result does fails here. Exempt are elements whose terms add up to more than the type holds
 * (M of compare.h): a sum over a broadcast operand stores them in the type, as PyTorch does.
 */
#include "support/compare.h"
#include "support/op_builds.h"
#include "support/op_run.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UPSTREAM 3000
#define LARGEST 65504 /* of float16 */


/* Cases that amplify the op's own gradient beyond float16. */
static const struct {
    const char *name, *reason;
} exceptions[] = {
    { "attention with lse of width 64", "the gradients of the 64 columns that a row's lse is added to overflow" },
    { "ssd_scan", "dt is a sixteenth of the input: its own gradient is sixteen times as large" },
};

static bool is_exception(const struct op_case *c)
{
    for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions; i++)
        if (!strncmp(c->name, exceptions[i].name, strlen(exceptions[i].name))) return true;
    return false;
}

/* A run of a case: on its inputs times 2^shift, with the gradient of one input. */
struct run {
    const struct op_case *c;
    int wanted, shift;
    bool composed; /* by rw_grad() */
};

/* The case's inputs, and 3,000 of either sign for each element of the result. */
struct numbers {
    double *x[OP_INPUTS], *w;
    struct op_data data;
};

static void free_numbers(struct numbers *to)
{
    for (int i = 0; i < OP_INPUTS; i++) free(to->x[i]);
    free(to->w);
}

static struct numbers numbers_of(const struct run *run, rw_shape result)
{
    struct numbers to = { .w = malloc((size_t)(rw_shape_numel(result) + 1) * sizeof *to.w) };
    for (int i = 0; i < run->c->n; i++) {
        const int64_t n = rw_shape_numel(op_base_shape(&run->c->in[i]));
        to.data.x[i] = to.x[i] = malloc((size_t)(n + 1) * sizeof *to.x[i]);
        for (int64_t k = 0; k < n; k++) to.x[i][k] = ldexp(op_number(run->c->in[i].range, k, i), run->shift);
    }
    for (int64_t k = 0; k < rw_shape_numel(result); k++) to.w[k] = k % 3 ? UPSTREAM : -UPSTREAM;
    to.data.w = to.w;
    return to;
}

/* The result of the case on inputs of a type, of which the one at `wanted` requires a gradient. NULL: it has none. */
static rw_tensor *record(struct recording *r, rw_tape *t, const struct run *run, rw_dtype dtype,
                         const struct op_data *data)
{
    const struct op_case *const c = run->c;
    rw_tensor *x[OP_INPUTS];
    memset(r, 0, sizeof *r);
    rw_generator_set(rw_tape_context(t), (rw_generator_state){ 5, 11 });
    for (int i = 0; i < c->n; i++) {
        r->base[i] = op_input(t, c, dtype, data, i, OP_PLAIN);
        if (!r->base[i]) return NULL;
        if (i == run->wanted) rw_require_grad(t, r->base[i]);
        x[i] = op_operand_of(t, &c->in[i], r->base[i]);
    }
    r->y = c->build(t, x, c);
    const bool flows = r->y && rw_dtype_is_float(rw_tensor_dtype(r->y)) && rw_tensor_requires_grad(r->y);
    return flows ? r->y : NULL;
}

static double *doubles(const void *raw, rw_dtype dtype, int64_t n)
{
    double *const to = malloc((size_t)(n + 1) * sizeof *to);
    for (int64_t i = 0; i < n; i++) to[i] = number_get(raw, dtype, i);
    return to;
}

/* The gradient of input `wanted`, or NULL if there is none. The loss is computed in float64, in which it does not
   overflow. */
static double *gradient_of(struct fixture *b, const struct run *run, rw_dtype dtype, int64_t *ret_n)
{
    struct recording r;
    rw_tensor *g = NULL;
    rw_tape *const t = b->t;
    rw_tape_reset(t);
    rw_error_clear(b->ctx);
    struct numbers of = numbers_of(run, RW_SCALAR);
    rw_tensor *const y = record(&r, t, run, dtype, &of.data);
    free_numbers(&of);
    if (!y) return NULL;
    of = numbers_of(run, rw_tensor_shape(y));
    rw_tensor *const dy = rw_input(t, RW_F64, rw_tensor_shape(y), of.w,
                                   (size_t)rw_shape_numel(rw_tensor_shape(y)) * sizeof *of.w);
    rw_tensor *const loss = rw_sum(t, rw_mul(t, rw_cast(t, y, RW_F64), dy), RW_ALL_AXES, false);
    free_numbers(&of);
    rw_tensor **const x = &r.base[run->wanted];
    if (run->composed ? rw_grad(t, loss, x, 1, &g) : rw_backward(t, loss)) return NULL;
    if (!run->composed) g = rw_gradient(*x);
    *ret_n = rw_shape_numel(rw_tensor_shape(g));
    void *const raw = malloc(rw_tensor_bytes(g) + 8);
    cr_assert_eq(rw_read(t, g, raw, rw_tensor_bytes(g)), RW_OK, "%s", rw_error_message(b->ctx));
    double *const to = doubles(raw, rw_tensor_dtype(g), *ret_n);
    free(raw);
    return to;
}

/* The sum of the magnitudes of the terms of each element of that gradient. */
static double *sizes_of(struct fixture *b, const struct run *run)
{
    struct recording r;
    struct outcome size;
    rw_tape_reset(b->t);
    struct numbers of = numbers_of(run, RW_SCALAR);
    const rw_tensor *const y = record(&r, b->t, run, RW_F64, &of.data);
    const rw_shape shape = rw_tensor_shape(y);
    free_numbers(&of);
    of = numbers_of(run, shape);
    cr_assert_eq(op_run_sizes(&size, b->t, run->c, &of.data), RW_OK, "%s: %s", run->c->name, rw_error_message(b->ctx));
    const int i = 1 + run->wanted;
    double *const to = doubles(size.raw[i], size.dtype[i], size.numel[i]);
    op_forget(&size);
    free_numbers(&of);
    return to;
}

/* Whether the type's gradient may overflow if float64's is `want`. One per cent for intermediate roundings. */
static bool may_overflow(double want, double size)
{
    return !(fabs(want) * 1.01 < LARGEST && fabs(size) * 1.01 < LARGEST);
}

/* Returns whether the case has that gradient. */
static bool check_run(struct fixture *b, const struct run *run)
{
    int64_t n = 0, m = 0;
    double *const want = gradient_of(b, run, RW_F64, &n), *size = NULL;
    double *const got = want ? gradient_of(b, run, RW_F16, &m) : NULL;
    if (got) cr_assert_eq(n, m, "%s", run->c->name);
    for (int64_t i = 0; got && i < n; i++) {
        if (isfinite(got[i]) || may_overflow(want[i], 0)) continue;
        if (!size) size = sizes_of(b, run);
        if (may_overflow(want[i], size[i])) continue;
        cr_expect(false, "%s, numbers times 2^%d, %s of input %d alone, element %lld: %g, expected %g", run->c->name,
                  run->shift, run->composed ? "rw_grad" : "rw_backward", run->wanted, (long long)i, got[i], want[i]);
        break;
    }
    const bool ran = got != NULL;
    free(want), free(got), free(size);
    return ran;
}

static void check_group(enum op_group group)
{
    size_t n, ran = 0;
    const struct op_case *const all = op_cases(&n);
    struct fixture b = fixture_open(1, 1);
    for (size_t i = 0; i < n; i++) {
        const struct op_case *const c = &all[i];
        if (c->group != group || c->large || c->tiled || c->typed || is_exception(c)) continue;
        for (int k = 0; k < 4 * c->n; k++)
            ran += check_run(&b, &(struct run){ c, k / 4, k & 1 ? -6 : 0, k & 2 });
    }
    cr_expect(ran || group == OP_RANDOM || getenv("REWIND_TEST_OPS"), "a group without cases");
    fixture_close(&b);
}

#define GROUP(name, group)                       \
    Test(large_upstream_gradients, of_##name##_alone_is_finite)  \
    {                                            \
        check_group(group);                      \
    }

GROUP(pointwise, OP_POINTWISE)
GROUP(products, OP_PRODUCTS)
GROUP(norms, OP_NORMS)
GROUP(reductions, OP_REDUCTIONS)
GROUP(attention, OP_ATTENTION)
GROUP(tables, OP_TABLES)
GROUP(shapes, OP_SHAPES)
