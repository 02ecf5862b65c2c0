/* The work of planning is proportional to the tape, for many parameters, marked values, or readers, and under a budget.
   An op with many outputs is no more work under a budget than as many nodes. */
#include "support/support.h"
#include "support/work_counter.h"

#include "plan/build.h"
#include "remat/planner/greedy_fill.h"
#include "remat/schedule/simulate.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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

/* ---- steps ---- */

/* The work of a step with a plan, from its first op to its reset: a chain of n scalars, each of which is read, or of n
   values whose gradients are read. */
static uint64_t work_of_step(int n, bool marked)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, marked ? RW_SHAPE(4) : RW_SCALAR);
    uint64_t work = 0;
    for (int step = 0; step < 3; step++) {
        rw_tensor *x = p, **const y = calloc((size_t)n, sizeof *y);
        const uint64_t before = work_done();
        rw_zero_grad(b.ctx);
        for (int i = 0; i < n; i++) y[i] = x = marked ? rw_require_grad(b.t, rw_mul(b.t, x, p)) : rw_mul(b.t, x, p);
        rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < n; i++) cr_assert(marked ? rw_gradient(y[i]) != NULL : !isnan(rw_item(b.t, y[i])));
        rw_tape_reset(b.t);
        work = work_done() - before;
        free(y);
    }
    fixture_close(&b);
    return work;
}

Test(growth, steps_work_in_proportion, .timeout = 60)
{
    for (int marked = 0; marked < 2; marked++) {
        const uint64_t small = work_of_step(SMALL, marked), large = work_of_step(LARGE, marked);
        cr_expect_gt(small, 20 * SMALL, "%llu: is it counted?", (unsigned long long)small);
        cr_expect_lt(large, 9 * small / 2, "%s: %llu for %d, %llu for %d", marked ? "marked values" : "scalars",
                     (unsigned long long)small, SMALL, (unsigned long long)large, LARGE);
    }
}

/* ---- ops with many outputs ---- */

static rw_status wide_check(rw_op_call *call)
{
    const int *const n = call->attrs;
    call->n_outputs = *n;
    for (int i = 0; i < *n; i++) {
        const rw_status status = rw_op_output(call, i, RW_F32, RW_SHAPE(128 + 128 * (i % 5)));
        if (status) return status;
    }
    return RW_OK;
}

static rw_status run_nothing(const rw_kernel *k)
{
    return k ? RW_OK : RW_ERR_ARGUMENT;
}

static rw_status wide_rule(rw_grad_call *g);
static const rw_op_def wide = { .name = "wide", .n_inputs = RW_OP_VARIADIC, .n_outputs = RW_OP_VARIADIC,
                                .check = wide_check, .grad = wide_rule,
                                .kernel = { [RW_DEVICE_CPU] = run_nothing, [RW_DEVICE_CUDA] = run_nothing } };

enum { WIDE_MAX = 256 };

/* One gradient per input, which reads what arrives and all outputs. */
static rw_status wide_rule(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *in[2 * WIDE_MAX];
    int n = 0;
    const int one = 1;
    for (int i = 0; i < rw_grad_n_outputs(g); i++) {
        if (rw_grad_upstream(g, i)) in[n++] = rw_grad_upstream(g, i);
        in[n++] = rw_grad_output(g, i);
    }
    for (int i = 0; i < rw_grad_n_inputs(g); i++) {
        if (!rw_grad_wanted(g, i)) continue;
        rw_tensor *const y = rw_apply(t, &wide, in, n, &one, sizeof one, NULL);
        const int64_t have = rw_tensor_layout(rw_grad_input(g, i))->numel;
        rw_grad_set(g, i, rw_broadcast_to(t, rw_slice(t, y, 0, 0, 1), RW_SHAPE(have)));
    }
    return RW_OK;
}

/* The work of planning a tape under a budget: an op with n outputs and one that reads them, or a chain of n nodes. */
static uint64_t work_under_budget(int n, bool in_one_op, const char *policy)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(128)), *out[WIDE_MAX];
    const int one = 1;
    rw_prediction p;
    if (in_one_op) {
        rw_apply(b.t, &wide, &x, 1, &n, sizeof n, out);
        x = rw_apply(b.t, &wide, out, n, &one, sizeof one, NULL);
    }
    for (int i = 0; !in_one_op && i < n; i++) x = rw_apply(b.t, &wide, &x, 1, &one, sizeof one, NULL);
    rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
    cr_assert_not_null(loss, "%s", rw_error_message(b.ctx));
    const uint64_t before = work_done();
    cr_assert_eq(rw_tape_plan(b.t, loss, policy, &p), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t work = work_done() - before;
    fixture_close(&b);
    return work;
}

Test(growth, many_outputs_are_no_more_work_than_many_nodes, .timeout = 120)
{
    static const char *const policies[] = { "budget:100%", "budget:100%+offload" };
    for (int n = 32; n <= WIDE_MAX; n *= 2)
        for (int i = 0; i < 2; i++) {
            const uint64_t outputs = work_under_budget(n, true, policies[i]);
            const uint64_t nodes = work_under_budget(n, false, policies[i]);
            cr_expect_lt(outputs, nodes, "%s: %llu for %d outputs, %llu for as many nodes", policies[i],
                         (unsigned long long)outputs, n, (unsigned long long)nodes);
        }
}

/* The work of the planner's graph for one op that reads n values. */
static uint64_t work_of_readers(int n)
{
    struct fixture b = fixture_open(1, 1);
    struct rw_problem p;
    struct rw_replayable g;
    rw_tensor **const in = malloc((size_t)n * sizeof *in), *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(4));
    for (int i = 0; i < n; i++) in[i] = rw_tanh(b.t, x);
    const uint32_t loss = rw_sum(b.t, rw_concat(b.t, in, (size_t)n, 0), RW_ALL_AXES, false)->id;
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = &b.t->policy };
    cr_assert_eq(rw_problem_open(&p, b.t, &request), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t before = work_done();
    cr_assert_eq(rw_replayable_init(&g, &p), RW_OK);
    const uint64_t work = work_done() - before;
    rw_replayable_finish(&g);
    rw_problem_close(&p);
    free(in);
    fixture_close(&b);
    return work;
}

Test(growth, inputs_of_one_op_are_collected_in_proportion)
{
    const uint64_t small = work_of_readers(SMALL), large = work_of_readers(LARGE);
    cr_expect_gt(small, SMALL, "%llu: is it counted?", (unsigned long long)small);
    cr_expect_lt(large, 9 * small / 2, "%llu and %llu", (unsigned long long)small, (unsigned long long)large);
}

/* ---- budgets of long tapes ---- */

static rw_tensor *record_chain(struct fixture *b, int n)
{
    rw_tensor *const p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(16)), *x = p;
    for (int i = 0; i < n; i++) x = i % 2 ? rw_mul(b->t, x, p) : rw_tanh(b->t, x);
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

static uint64_t work_of_budget(int n)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const loss = record_chain(&b, n);
    rw_prediction p;
    const uint64_t before = work_done();
    cr_assert_eq(rw_tape_plan(b.t, loss, "budget:50%", &p), RW_OK, "%s", rw_error_message(b.ctx));
    const uint64_t work = work_done() - before;
    fixture_close(&b);
    return work;
}

/* Tapes of these lengths have the same number of candidates. */
Test(growth, budgets_work_in_proportion, .timeout = 120)
{
    const uint64_t small = work_of_budget(2 * SMALL), large = work_of_budget(2 * LARGE);
    cr_expect_gt(small, 1000 * SMALL, "%llu: is it counted?", (unsigned long long)small);
    cr_expect_lt(large, 9 * small / 2, "%llu for %d nodes, %llu for %d", (unsigned long long)small, 2 * SMALL,
                 (unsigned long long)large, 2 * LARGE);
}

/* The work of filling a choice that drops everything, where nothing fits. */
static uint64_t work_of_full(int n)
{
    struct fixture b = fixture_open(1, 1);
    const uint32_t loss = record_chain(&b, n)->id;
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = &b.t->policy };
    struct rw_problem p;
    struct rw_replayable g;
    struct rw_compact_choice r;
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule cost;
    struct rw_greedy_fill fill;
    cr_assert_eq(rw_problem_open(&p, b.t, &request), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_replayable_init(&g, &p), RW_OK);
    cr_assert_eq(rw_compact_choice_init(&r, &g), RW_OK);
    for (uint32_t v = 0; v < g.n_values; v++) r.drop[v] = rw_value_may_drop(&g, v) ? RW_DROP_ONCE : RW_DROP_NOT;
    cr_assert_eq(rw_compact_choice_expand(&r, &g, &sim.choice), RW_OK);
    cr_assert_eq(rw_simulate_briefly(&p, &sim.choice, &sim, &cost), RW_OK);
    cr_assert_eq(rw_greedy_fill_init(&fill, &g, &sim.schedule), RW_OK);
    rw_greedy_fill_rank(&fill, &r, NULL);
    const uint64_t before = work_done();
    rw_greedy_fill_to(&fill, 0, &r);
    const uint64_t work = work_done() - before;
    cr_expect_gt(fill.n_candidates, (size_t)n / 2);
    rw_greedy_fill_finish(&fill);
    rw_simulation_finish(&sim);
    rw_compact_choice_finish(&r);
    rw_replayable_finish(&g);
    rw_problem_close(&p);
    fixture_close(&b);
    return work;
}

/* Sixteen times as many values were 20.6 times the work with a search of the tree of live bytes for each. */
Test(growth, values_that_do_not_fit_are_refused_in_proportion)
{
    const uint64_t small = work_of_full(SMALL / 2), large = work_of_full(8 * SMALL);
    cr_expect_gt(small, SMALL / 2, "%llu: is it counted?", (unsigned long long)small);
    cr_expect_lt(large, 18 * small, "%llu and %llu", (unsigned long long)small, (unsigned long long)large);
}
