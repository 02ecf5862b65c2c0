/* The number of threads given to a node: one if waking the others, or waiting for them, costs more than they gain. */
#include "support/support.h"

#include "run/run_state.h"

#include <criterion/criterion.h>

#include <time.h>

enum { THREADS = 3 };

static int given;

static rw_status check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) ((float *)k->out[0].data)[i] = x[i];
    given = k->threads;
    return RW_OK;
}

static rw_op_cost little(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = 1000, .bytes = 1000 };
}

static rw_op_cost much_arithmetic(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = 1e12, .bytes = 1000 };
}

static rw_op_cost much_traffic(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = 1000, .bytes = 1e12 };
}

/* The number of threads given to a node of that op in a context with so many. */
static int threads_of(const rw_op_def *op, int threads)
{
    struct fixture b = fixture_open(1, threads);
    rw_tensor *x = rw_rand(b.t, RW_F32, RW_SHAPE(10));
    float y[10];
    given = 0;
    x = rw_apply(b.t, op, &x, 1, NULL, 0, NULL);
    cr_assert_eq(rw_read(b.t, x, y, sizeof y), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
    return given;
}

Test(threads_per_op, nodes_of_little_work_run_in_one)
{
    static const struct {
        const char *name;
        rw_op_cost (*cost)(const rw_op_call *call);
        int threads;
    } ops[] = { { "little", little, 1 },
                { "much_arithmetic", much_arithmetic, THREADS },
                { "much_traffic", much_traffic, THREADS },
                { "unknown", NULL, THREADS } }; /* an op without that declaration may do anything */
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const rw_op_def op = { .name = ops[i].name, .n_inputs = 1, .n_outputs = 1, .check = check,
                               .kernel[RW_DEVICE_CPU] = kernel, .cost = ops[i].cost };
        cr_expect_eq(threads_of(&op, THREADS), ops[i].threads, "%s: %d", ops[i].name, given);
        cr_expect_eq(threads_of(&op, 1), 1, "%s", ops[i].name);
    }
}

/* ---- nodes that are faster in one thread, by a controlled clock ---- */

/* Time of a node in one thread, in all threads, and in all if these wait for cores. */
enum { NODES = 8, ALONE_US = 500, TOGETHER_US = 300, WAITING_US = 6000 };

static long long clock_us;

int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    *t = (struct timespec){ .tv_sec = clock_us / 1000000, .tv_nsec = clock_us % 1000000 * 1000 };
    return 0;
}

static bool cores_are_busy;
static int alone, together;

static rw_status waiting_kernel(const rw_kernel *k)
{
    clock_us += k->threads == 1 ? ALONE_US : cores_are_busy ? WAITING_US : TOGETHER_US;
    *(k->threads > 1 ? &together : &alone) += 1;
    memcpy(k->out[0].data, k->in[0].data, sizeof(float));
    return RW_OK;
}

/* 2 ms at nominal rates. */
static rw_op_cost some(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = 2e8, .bytes = 0 };
}

static const rw_op_def waiting = { .name = "waiting", .n_inputs = 1, .n_outputs = 1, .check = check,
                                   .kernel[RW_DEVICE_CPU] = waiting_kernel, .cost = some };

static void run_of(struct fixture *b, const rw_op_def *op)
{
    float y;
    rw_tensor *x = rw_rand(b->t, RW_F32, RW_SHAPE(1));
    for (int n = 0; n < NODES; n++) x = rw_apply(b->t, op, &x, 1, NULL, 0, NULL);
    cr_assert_eq(rw_read(b->t, x, &y, sizeof y), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
}

/* The share of nodes that ran in one thread, in so many runs. */
static double share_alone(struct fixture *b, int runs)
{
    alone = together = 0;
    for (int i = 0; i < runs; i++) run_of(b, &waiting);
    cr_assert_eq(alone + together, NODES * runs);
    return (double)alone / (NODES * runs);
}

Test(threads_per_op, nodes_run_in_one_thread_while_all_wait_for_cores)
{
    struct fixture b = fixture_open(1, THREADS);
    share_alone(&b, 2);
    cr_expect_leq(share_alone(&b, 20), 0.05, "idle: %d of %d", alone, alone + together); /* once, as a trial */
    cores_are_busy = true;
    share_alone(&b, 2);
    cr_expect_geq(share_alone(&b, 60), 0.95, "busy: %d of %d", alone, alone + together);
    cores_are_busy = false;
    share_alone(&b, 80);
    cr_expect_leq(share_alone(&b, 20), 0.05, "idle again: %d of %d", alone, alone + together);
    fixture_close(&b);
}

/* The same work at nominal rates, in a tenth of the time. */
static rw_status quick_kernel(const rw_kernel *k)
{
    clock_us += k->threads == 1 ? ALONE_US / 10 : TOGETHER_US / 10;
    *(k->threads > 1 ? &together : &alone) += 1;
    memcpy(k->out[0].data, k->in[0].data, sizeof(float));
    return RW_OK;
}

static const rw_op_def quick = { .name = "quick", .n_inputs = 1, .n_outputs = 1, .check = check,
                                 .kernel[RW_DEVICE_CPU] = quick_kernel, .cost = some };

/* One plan takes less in a single thread than the other one in all threads: this says nothing about either. */
Test(threads_per_op, plans_that_take_turns_are_not_compared_with_each_other)
{
    struct fixture b = fixture_open(1, THREADS);
    for (int i = 0; i < 64; i++) {
        if (i == 4) alone = together = 0;
        run_of(&b, &waiting);
        run_of(&b, &quick);
    }
    cr_expect_leq(alone, 2 * NODES, "%d of %d", alone, alone + together); /* each once, as a trial */
    fixture_close(&b);
}

/* One run with one unit of work at a time: its time in all threads, and in one. */
static bool judged(struct rw_small_op_threads *c, double seconds_together, double seconds_alone)
{
    for (int i = 0; i < 100; i++) rw_small_op_threads_note(c, 1, (c->alone ? seconds_alone : seconds_together) / 100);
    rw_small_op_threads_judge(c);
    return c->alone;
}

Test(threads_per_op, a_first_run_that_is_slow_decides_nothing)
{
    struct rw_small_op_threads c = { 0 };
    cr_expect_not(judged(&c, 0.5, 0.1));
    cr_expect(judged(&c, 0.06, 0.1), "alone was not tried");
    cr_expect_not(judged(&c, 0.06, 0.1));
    for (int i = 0; i < 100; i++) cr_expect_not(judged(&c, 0.06, 0.1));
}

Test(threads_per_op, trying_all_of_them_takes_a_small_part_of_the_time)
{
    struct rw_small_op_threads c = { 0 };
    double all = 0, tried = 0;
    for (int i = 0; i < 20000; i++) {
        const double seconds = c.alone ? 0.1 : 1.2;
        if (i >= 2000) all += seconds, tried += c.alone ? 0 : seconds;
        judged(&c, 1.2, 0.1);
    }
    cr_expect_leq(tried / all, 0.04, "%g", tried / all);
    cr_expect_gt(tried, 0, "never tried again");
}

Test(threads_per_op, one_thread_is_given_up_at_once_where_all_are_many_times_faster)
{
    struct rw_small_op_threads c = { 0 };
    judged(&c, 0.002, 1);
    judged(&c, 0.002, 1);
    cr_assert(c.alone);
    rw_small_op_threads_note(&c, 1, 0.01);
    cr_expect_not(c.alone);
    for (int i = 0; i < 100; i++) cr_expect_not(judged(&c, 0.002, 1));
}

Test(threads_per_op, runs_of_hardly_any_work_decide_nothing)
{
    struct rw_small_op_threads c = { 0 };
    for (int i = 0; i < 4; i++) {
        rw_small_op_threads_note(&c, 1, 1);
        rw_small_op_threads_judge(&c);
        cr_expect_not(c.alone, "run %d", i);
    }
}

Test(threads_per_op, one_thread_that_is_a_little_slower_is_tried_and_left)
{
    struct rw_small_op_threads c = { 0 };
    int runs = 0;
    for (int i = 0; i < 100; i++) runs += judged(&c, 0.1, 0.12);
    cr_expect_eq(runs, 1, "%d", runs);
}

Test(threads_per_op, a_plan_that_has_not_run_begins_as_the_one_that_ran_last)
{
    struct rw_op_thread_table all = { 0 };
    rw_small_op_threads_of(&all, 7)->alone = true;
    cr_expect(rw_small_op_threads_of(&all, 8)->alone);
    rw_small_op_threads_of(&all, 8)->alone = false;
    cr_expect_not(rw_small_op_threads_of(&all, 9)->alone);
    cr_expect(rw_small_op_threads_of(&all, 7)->alone, "its own was forgotten");
    cr_expect(rw_small_op_threads_of(&all, 10)->alone);
    struct rw_small_op_threads *const c = rw_small_op_threads_of(&all, 10);
    rw_small_op_threads_note(c, 1, 0.01);
    cr_expect(c->alone, "given up before all were tried");
}

Test(threads_per_op, the_plan_that_ran_longest_ago_is_forgotten)
{
    struct rw_op_thread_table all = { 0 };
    for (uint64_t plan = 1; plan <= RW_OP_THREAD_PLANS; plan++)
        rw_small_op_threads_of(&all, plan)->together = (double)plan;
    cr_expect_eq(rw_small_op_threads_of(&all, 1)->together, 1);
    rw_small_op_threads_of(&all, RW_OP_THREAD_PLANS + 1);
    for (uint64_t plan = 1; plan <= RW_OP_THREAD_PLANS; plan++)
        if (plan != 2) cr_expect_eq(rw_small_op_threads_of(&all, plan)->together, (double)plan, "plan %d", (int)plan);
    cr_expect_eq(rw_small_op_threads_of(&all, 2)->together, 0);
}
