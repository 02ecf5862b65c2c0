/*
 * Extents too large for any memory, in contexts that only plan: in each case of op_cases.h, each of its extents in turn
 * is made huge wherever it occurs, up to 2^62. Operands are dense, or one number with strides of 0. A step is planned
 * or refused with a message; it never ends the process, runs without end or overflows (this suite also runs with
 * -Db_sanitize=address,undefined). REWIND_TEST_OPS: see op_cases.h.
 */
#include "support/op_cases.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARTS 8        /* number of tests, so that several processors are used */
#define SECONDS_MAX 60 /* for a single plan: it takes milliseconds, or seconds on a busy machine */

static const int64_t huge[] = { (int64_t)1 << 31, ((int64_t)1 << 32) - 1, ((int64_t)3 << 32) + 48,
                                (int64_t)1 << 46, (int64_t)1 << 58,       (int64_t)1 << 62 };

/* Cases whose recording fills arrays as long as an extent. Other cases of the table record the same ops. */
static const char *const with_arrays[] = { "attention with", "batchnorm_eval", "cross_entropy_with", "gru_cell",
                                           "linear_cross_entropy", "lstm_cell", "nll_loss", "plain batchnorm_eval",
                                           "rope_with", "unbind" };

static bool has_arrays(const struct op_case *c)
{
    for (size_t i = 0; i < sizeof with_arrays / sizeof *with_arrays; i++)
        if (!strncmp(c->name, with_arrays[i], strlen(with_arrays[i]))) return true;
    return false;
}

static rw_shape grown(rw_shape s, int64_t small, int64_t to)
{
    for (int i = 0; i < s.rank; i++)
        if (s.dim[i] == small) s.dim[i] = to;
    return s;
}

/* The case with all extents `small` of its operands, and of its result's shape, replaced by a large one. */
static struct op_case grown_case(const struct op_case *c, int64_t small, int64_t to)
{
    struct op_case r = *c;
    for (int i = 0; i < c->n; i++) r.in[i].shape = grown(c->in[i].shape, small, to);
    if (c->group == OP_SHAPES) r.shape = grown(c->shape, small, to);
    return r;
}

/* Whether the step was planned. An error leaves a message, and the context stays usable. */
static bool plan_case(rw_context *ctx, rw_tape *t, const struct op_case *c, rw_dtype dtype, bool dense,
                      const char *what)
{
    rw_tensor *x[OP_INPUTS];
    rw_prediction p = { 0 };
    for (int i = 0; i < c->n; i++) {
        const rw_shape shape = op_base_shape(&c->in[i]);
        rw_shape one = shape;
        for (int k = 0; k < one.rank; k++) one.dim[k] = shape.dim[k] != 0;
        rw_tensor *const base = dense ? rw_randn(t, dtype, shape)
                                      : rw_broadcast_to(t, rw_randn(t, dtype, one), shape);
        x[i] = op_operand_of(t, &c->in[i], base ? rw_require_grad(t, base) : NULL);
    }
    rw_tensor *const y = c->build(t, x, c);
    rw_tensor *const loss = y ? rw_cast(t, rw_sum(t, y, RW_ALL_AXES, false), RW_F32) : NULL;
    rw_status status = loss ? rw_tape_plan(t, loss, "full", &p) : rw_error_status(ctx);
    if (!status) status = rw_tape_plan(t, loss, "budget:60%", &p);
    if (status == RW_ERR_BUDGET) rw_error_clear(ctx), status = RW_OK;
    if (!status) status = rw_tape_plan(t, loss, "none", &p);
    cr_expect(status == rw_error_status(ctx) && !status == !*rw_error_message(ctx), "%s: %d: %s", what, (int)status,
              rw_error_message(ctx));
    cr_expect(status || (p.largest_live <= p.peak_bytes && p.peak_bytes < SIZE_MAX / 2), "%s: %zu of %zu bytes", what,
              p.largest_live, p.peak_bytes);
    cr_expect(status || (isfinite(p.ms) && p.ms > 0), "%s: %g ms", what, p.ms);
    rw_error_clear(ctx);
    rw_tape_reset(t);
    return !status;
}

/* Whether this is the first position of that extent in the case. */
static bool is_first(const struct op_case *c, int input, int axis)
{
    const int64_t small = c->in[input].shape.dim[axis];
    for (int i = 0; i <= input; i++)
        for (int k = 0; k < (i == input ? axis : c->in[i].shape.rank); k++)
            if (c->in[i].shape.dim[k] == small) return false;
    return true;
}

struct count {
    int planned, all;
};

/* Plans each size in one type and the next one in another. */
static void plan_grown(rw_context *ctx, rw_tape *t, const struct op_case *c, int64_t small, struct count *count)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F64, RW_F16 };
    for (size_t i = 0; i < 2 * (sizeof huge / sizeof *huge); i++) {
        const bool dense = i % 2;
        const struct op_case g = grown_case(c, small, huge[i / 2]);
        const rw_dtype dtype = types[(i + (size_t)count->all) % 4];
        char what[256];
        snprintf(what, sizeof what, "%s, %s, %lld in place of %lld%s", c->name, rw_dtype_name(dtype),
                 (long long)huge[i / 2], (long long)small, dense ? ", dense" : "");
        if (getenv("REWIND_TEST_SHOW")) fprintf(stderr, "%s\n", what);
        alarm(SECONDS_MAX);
        count->planned += plan_case(ctx, t, &g, dtype, dense, what);
        alarm(0);
        count->all++;
    }
}

static void plan_all_grown(const struct op_case *c, struct count *count)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    const rw_context_params params = { .device = test_device(), .threads = 2, .plan_only = true };
    cr_assert_eq(rw_context_create(&ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&t, ctx), RW_OK);
    for (int input = 0; input < c->n; input++)
        for (int axis = 0; axis < c->in[input].shape.rank; axis++)
            if (is_first(c, input, axis)) plan_grown(ctx, t, c, c->in[input].shape.dim[axis], count);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}

static void plan_part(size_t part)
{
    size_t n;
    struct count count = { 0 };
    const struct op_case *const cases = op_cases(&n);
    for (size_t i = part; i < n; i += PARTS)
        if (!cases[i].large && !cases[i].tiled && !has_arrays(&cases[i])) plan_all_grown(&cases[i], &count);
    if (!getenv("REWIND_TEST_OPS")) cr_expect_gt(5 * count.planned, count.all, "%d of %d", count.planned, count.all);
    if (getenv("REWIND_TEST_SHOW")) fprintf(stderr, "planned %d of %d\n", count.planned, count.all);
}

#define PART(i)                                                \
    Test(huge_extents, part_##i##_of_all_cases, .timeout = 600) \
    {                                                          \
        plan_part(i);                                          \
    }

PART(0)
PART(1)
PART(2)
PART(3)
PART(4)
PART(5)
PART(6)
PART(7)
