/*
 * Recompute changes no byte: losses and gradients of every step, parameters after twenty and the generator's state, for
 * every policy, nesting and type, are compared with the policy "none". No tolerance.
 *
 * On the simulated device there are four steps instead of twenty: the first makes the plan and the optimizer's states,
 * the second finds both, and from then on each launches the same kernels on other numbers. There is one number of
 * threads.
 */
#include "support/support.h"

#include "plan/cache.h"
#include "record/context.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const char *const policies[] = { "full",           "selective:outer",  "selective:inner",
                                        "selective:middle,inner",
                                        "uniform:2",      "uniform:3",        "block:1",         "block:99",
                                        "ops:linear",     "ops:layernorm,gelu", "names:keep=up",
                                        "full+offload:outer", "offload:outer",  "block:2+offload:inner,middle",
                                        "names:offload=up" };
#define POLICIES (sizeof policies / sizeof *policies)

/* From slightly less than the memory of none to the minimum of each of the nets below. */
static const char *const budgets[] = { "budget:90%", "budget:75%", "budget:90%+offload", "budget:75%+offload",
                                       "budget:55%+offload" };
#define BUDGETS (sizeof budgets / sizeof *budgets)
#define STEPS 20

static int steps_of_a_run(void)
{
    return test_device() == RW_DEVICE_CPU ? STEPS : 4;
}

struct outcome {
    double loss[STEPS];
    unsigned char *gradients; /* of every step */
    unsigned char *parameters;
    size_t bytes; /* of the gradients of one step, and of the parameters */
    int steps;
    rw_generator_state generator;
    size_t replayed, outside; /* nodes, and bytes of offloaded values, of a step */
};

struct run {
    const char *policy;
    rw_dtype dtype;
    int nesting, threads, steps;
    bool forgets; /* every step is planned anew */
};

static void keep_gradients(struct outcome *o, rw_context *ctx)
{
    unsigned char *const g = all_gradients(ctx, &o->bytes);
    o->gradients = realloc(o->gradients, o->bytes * (size_t)(o->steps + 1));
    memcpy(o->gradients + o->bytes * (size_t)o->steps++, g, o->bytes);
    free(g);
}

/* One step: keeps loss and gradients; predicted and measured peak must be equal. */
static void train_step(struct outcome *o, struct fixture *b, const struct net *n, const char *policy)
{
    rw_zero_grad(b->ctx);
    rw_tensor *const loss = net_loss(n, b->t, 37, o->steps);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s: %s", policy, rw_error_message(b->ctx));
    o->loss[o->steps] = rw_item(b->t, loss);
    rw_cost cost;
    cr_assert_eq(rw_tape_cost(b->t, loss, &cost), RW_OK);
    o->replayed = cost.replayed_nodes;
    rw_memory m;
    rw_memory_stats(b->ctx, &m);
    cr_assert_eq(m.predicted_peak, m.measured_peak, "%s: predicted %zu, measured %zu", policy, m.predicted_peak,
                 m.measured_peak);
    o->outside = m.host;
    keep_gradients(o, b->ctx);
}

/* Trains in the given way and returns everything observable. */
static struct outcome train_run(struct run run)
{
    struct fixture b = fixture_open(7, run.threads);
    struct net n;
    struct outcome o = { 0 };
    rw_optimizer *opt = NULL;
    const rw_offload fast = { .out_bytes_per_s = 1e12, .in_bytes_per_s = 1e12 }; /* budgets offload all they can */
    cr_assert_eq(rw_context_set_offload(b.ctx, &fast), RW_OK);
    net_init(&n, b.ctx, 5, 24, run.dtype, run.nesting);
    cr_assert_eq(ckpt_set_policy(b.t, run.policy), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 1e-2 }), RW_OK);
    while (o.steps < run.steps) {
        train_step(&o, &b, &n, run.policy);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
        rw_tape_reset(b.t);
        if (run.forgets) rw_plan_cache_finish(rw_plan_cache_of(b.ctx));
    }
    const uint64_t misses = rw_plan_cache_of(b.ctx)->misses, steps = (uint64_t)run.steps;
    if (run.forgets) cr_assert_geq(misses, steps);
    else cr_assert(steps < 4 || misses < steps, "no plan was used again: %d misses", (int)misses);
    o.parameters = all_parameters(b.ctx, &o.bytes);
    o.generator = rw_generator_get(b.ctx);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
    return o;
}

static struct outcome train(const char *policy, rw_dtype dtype, int nesting, int threads, int steps)
{
    return train_run((struct run){ policy, dtype, nesting, threads, steps, false });
}

static void same(const struct outcome *a, const struct outcome *b, const char *what)
{
    cr_assert_eq(a->steps, b->steps);
    cr_assert_eq(memcmp(a->loss, b->loss, sizeof a->loss), 0, "%s: losses differ", what);
    cr_assert_eq(a->bytes, b->bytes);
    for (int s = 0; s < a->steps; s++) {
        const size_t at = a->bytes * (size_t)s;
        cr_assert_eq(first_difference(a->gradients + at, b->gradients + at, a->bytes), -1,
                     "%s: gradients of step %d differ",
                     what, s);
    }
    cr_assert_eq(first_difference(a->parameters, b->parameters, a->bytes), -1, "%s: parameters differ", what);
    cr_assert_eq(a->generator.seed, b->generator.seed, "%s: the generator has another key", what);
    cr_assert_eq(a->generator.offset, b->generator.offset, "%s: the generator has another state", what);
}

static void release(struct outcome *o)
{
    free(o->gradients);
    free(o->parameters);
}

static void all_policies(rw_dtype dtype, int nesting)
{
    struct outcome none = train("none", dtype, nesting, 2, steps_of_a_run());
    size_t replayed = 0;
    for (size_t p = 0; p < POLICIES; p++) {
        struct outcome o = train(policies[p], dtype, nesting, 2, steps_of_a_run());
        same(&none, &o, policies[p]);
        replayed += o.replayed;
        release(&o);
    }
    cr_assert(nesting == 0 || replayed > 0, "no policy replayed anything: the comparison proves nothing");
    release(&none);
}

Test(identity, float32_without_regions) { all_policies(RW_F32, 0); }
Test(identity, float32_one_deep) { all_policies(RW_F32, 1); }
Test(identity, float32_two_deep) { all_policies(RW_F32, 2); }
Test(identity, float32_three_deep) { all_policies(RW_F32, 3); }
Test(identity, bfloat16_one_deep) { all_policies(RW_BF16, 1); }
Test(identity, float16_one_deep) { all_policies(RW_F16, 1); }
Test(identity, bfloat16_three_deep) { all_policies(RW_BF16, 3); }
Test(identity, float64_two_deep) { all_policies(RW_F64, 2); }

/* The planner's own choices: values of each layer are kept, replayed, or offloaded if allowed. */
static void all_budgets(rw_dtype dtype, int nesting)
{
    struct outcome none = train("none", dtype, nesting, 2, steps_of_a_run());
    for (size_t p = 0; p < BUDGETS; p++) {
        struct outcome o = train(budgets[p], dtype, nesting, 2, steps_of_a_run());
        const bool may_move = strstr(budgets[p], "+offload");
        same(&none, &o, budgets[p]);
        cr_expect(may_move ? o.outside > 0 : o.replayed > 0 && !o.outside,
                  "%s: %zu nodes replayed, %zu bytes outside: the comparison proves nothing", budgets[p], o.replayed,
                  o.outside);
        release(&o);
    }
    release(&none);
}

Test(identity, budgets_in_float32_without_regions) { all_budgets(RW_F32, 0); }
Test(identity, budgets_in_float32_two_deep) { all_budgets(RW_F32, 2); }
Test(identity, budgets_in_bfloat16) { all_budgets(RW_BF16, 1); }
Test(identity, budgets_in_float16) { all_budgets(RW_F16, 1); }
Test(identity, budgets_in_float64) { all_budgets(RW_F64, 1); }

Test(identity, number_of_threads)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F64 };
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("kernels do not run on the host's threads");
    for (int d = 0; d < 3; d++) {
        struct outcome one = train("full", types[d], 1, 1, STEPS);
        for (int threads = 2; threads <= 5; threads++) {
            struct outcome o = train(threads % 2 ? "none" : "full", types[d], 1, threads, STEPS);
            same(&one, &o, rw_dtype_name(types[d]));
            release(&o);
        }
        release(&one);
    }
}

Test(identity, eager_and_lazy)
{
    struct outcome lazy = train("full", RW_F32, 2, 2, 3);
    setenv("REWIND_EAGER", "1", 1);
    struct outcome eager = train("full", RW_F32, 2, 2, 3);
    unsetenv("REWIND_EAGER");
    same(&lazy, &eager, "REWIND_EAGER");
    release(&lazy);
    release(&eager);
}

/* A new plan and one from the cache give the same bytes. */
Test(identity, cached_plans_and_new_ones)
{
    static const char *const some[] = { "none", "full", "selective:inner", "uniform:2", "ops:linear", "budget:75%",
                                        "budget:75%+offload" };
    for (size_t p = 0; p < sizeof some / sizeof *some; p++) {
        struct outcome hit = train_run((struct run){ some[p], RW_F32, 2, 2, 8, false });
        struct outcome miss = train_run((struct run){ some[p], RW_F32, 2, 2, 8, true });
        same(&hit, &miss, some[p]);
        release(&hit);
        release(&miss);
    }
}

/* Reading a loss before backward runs forward first; a second backward runs the same plan again. */
Test(identity, reading_the_loss_first)
{
    struct fixture b = fixture_open(3, 2);
    struct net n;
    size_t bytes;
    net_init(&n, b.ctx, 3, 16, RW_F32, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *loss = net_loss(&n, b.t, 20, 0);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    const double at_once = rw_item(b.t, loss);
    unsigned char *const first = all_gradients(b.ctx, &bytes);
    fixture_close(&b);

    b = fixture_open(3, 2);
    net_init(&n, b.ctx, 3, 16, RW_F32, 1);
    ckpt_set_policy(b.t, "full");
    loss = net_loss(&n, b.t, 20, 0);
    const double early = rw_item(b.t, loss);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    unsigned char *const second = all_gradients(b.ctx, &bytes);
    cr_assert_eq(memcmp(&at_once, &early, sizeof early), 0);
    cr_assert_eq(first_difference(first, second, bytes), -1);
    free(first);
    free(second);
    fixture_close(&b);
}
