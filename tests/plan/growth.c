/* The work of planning is proportional to the tape, for many parameters, marked values, or readers. */
#include "support/support.h"
#include "support/work_counter.h"

#include "plan/build.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define SMALL 1000
#define LARGE 4000

enum kind { PARAMETERS, READ_GRADIENTS, MARKED, ASSIGNED, REGIONS, READERS, REPLAYED, VIEWS, KINDS };
static const char *const names[KINDS] = { "parameters", "gradients that are read", "marked values", "assigned buffers",
                                          "regions",    "readers of one value",    "replayed values", "views" };

static rw_tensor *own(rw_context *ctx, int i, bool buffer)
{
    char name[32];
    snprintf(name, sizeof name, "%d", i);
    return buffer ? rw_buffer(ctx, name, RW_F32, RW_SHAPE(4)) : rw_param(ctx, name, RW_F32, RW_SHAPE(4));
}

/* A tape with n of those, under `full`. */
static rw_tensor *record(struct fixture *b, enum kind kind, int n)
{
    rw_tape *const t = b->t;
    rw_tensor *const p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(4)), *x = p, *own_i,
                     *const many = rw_randn(t, RW_F32, RW_SHAPE(n, 4));
    for (int i = 0; i < n; i++) {
        switch (kind) {
        case PARAMETERS: x = rw_mul(t, x, own(b->ctx, i, false)); break;
        case READ_GRADIENTS:
            own_i = own(b->ctx, i, false);
            x = rw_add(t, rw_mul(t, x, own_i), rw_gradient(own_i));
            break;
        case MARKED: x = rw_require_grad(t, rw_mul(t, x, p)); break;
        case ASSIGNED:
            x = rw_mul(t, x, p);
            rw_assign(t, own(b->ctx, i, true), x);
            break;
        case REGIONS:
            ckpt_begin(t, "region");
            x = rw_tanh(t, rw_exp(t, x));
            ckpt_end(t);
            break;
        case READERS: x = rw_add(t, x, rw_tanh(t, rw_scale(t, p, i))); break;
        case REPLAYED: x = ckpt_recompute(t, rw_tanh(t, x)); break;
        default: x = rw_mul(t, x, rw_reshape(t, rw_slice(t, many, 0, i, i + 1), RW_SHAPE(4)));
        }
    }
    return rw_sum(t, x, RW_ALL_AXES, false);
}

/* The work of planning it. */
static uint64_t work_of(enum kind kind, int n)
{
    struct fixture b = fixture_open(1, 1);
    cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
    rw_tensor *const loss = record(&b, kind, n);
    cr_assert_not_null(loss, "%s", rw_error_message(b.ctx));
    const uint32_t value = loss->id;
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &value, .n_values = 1, .policy = &b.t->policy };
    rw_plan *plan = NULL;
    const uint64_t before = work_done();
    cr_assert_eq(rw_plan_build(b.t, &request, &plan), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t work = work_done() - before;
    rw_plan_release(plan);
    fixture_close(&b);
    return work;
}

/* Four times as many would be sixteen times the work with linear searches, and was 4.8 times with sorting. */
Test(growth, planning_works_in_proportion, .timeout = 60)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        const uint64_t small = work_of(kind, SMALL), large = work_of(kind, LARGE);
        cr_expect_gt(small, 100 * SMALL, "%s: %llu: is it counted?", names[kind], (unsigned long long)small);
        cr_expect_lt(large, 9 * small / 2, "%s: %llu for %d, %llu for %d", names[kind], (unsigned long long)small,
                     SMALL, (unsigned long long)large, LARGE);
    }
}
