/*
 * The library's own cost, without kernels: nanoseconds per recorded node from record to the end of backward with the
 * plan cached, ckpt_begin + ckpt_end, bytes of tape per node, the time of passes 2 to 4 for long tapes, a planner's
 * time per candidate, and the time and memory of planning long tapes under a budget.
 *
 * The ops are the caller's own with empty kernels: a mix of one and two inputs, with gradients of one or two such ops.
 * Tapes under a budget are chains of tanh and mul.
 */
#include "figure.h"

#include "base/thread_team.h"
#include "remat/policy/policy_to_choice.h"
#include "remat/schedule/simulate.h"

#include <rewind/rewind.h>

#include <math.h>
#include <sys/resource.h>

static rw_status check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status nothing(const rw_kernel *k)
{
    return RW_OK;
}

static rw_status grad(rw_grad_call *g);

static const rw_op_def unary = { .name = "unary", .n_inputs = 1, .n_outputs = 1, .inplace = RW_INPLACE({ 0, 0 }),
                                 .check = check, .kernel = { [RW_DEVICE_CPU] = nothing }, .grad = grad };
static const rw_op_def binary = { .name = "binary", .n_inputs = 2, .n_outputs = 1, .inplace = RW_INPLACE({ 0, 0 }),
                                  .check = check, .kernel = { [RW_DEVICE_CPU] = nothing }, .grad = grad };

/* One adjoint node per input that requires a gradient; every second kind reads the forward value. */
static rw_status grad(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_n_inputs(g) == 1) {
        rw_tensor *const in[] = { dy, rw_grad_input(g, 0) };
        return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &binary, in, 2, NULL, 0, NULL));
    }
    for (int i = 0; i < 2; i++)
        if (rw_grad_wanted(g, i)) rw_grad_set(g, i, dy);
    return RW_OK;
}

/* A residual chain: of four nodes three have one input and the fourth adds. */
static rw_tensor *record(rw_tape *t, rw_tensor *p, long nodes)
{
    rw_tensor *x = p;
    for (long i = 0; i + 4 <= nodes; i += 4) {
        rw_tensor *h = rw_apply(t, &unary, &x, 1, NULL, 0, NULL);
        h = rw_apply(t, &unary, &h, 1, NULL, 0, NULL);
        h = rw_apply(t, &unary, &h, 1, NULL, 0, NULL);
        rw_tensor *const in[] = { x, h };
        x = rw_apply(t, &binary, in, 2, NULL, 0, NULL);
    }
    return x;
}

/* Minimum time to plan a long tape, over three contexts. */
static double plan_seconds(long nodes)
{
    double best = INFINITY;
    for (int round = 0; round < 3; round++) {
        rw_context *ctx = NULL;
        rw_tape *t = NULL;
        figure_must(NULL, rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 1 }));
        figure_must(ctx, rw_tape_create(&t, ctx));
        rw_tensor *const p = rw_param(ctx, "p", RW_F32, RW_SHAPE(1));
        rw_tensor *const loss = record(t, p, nodes);
        rw_cost cost;
        const double begin = now_s();
        figure_must(ctx, rw_tape_cost(t, loss, &cost));
        best = fmin(best, now_s() - begin);
        rw_tape_destroy(&t);
        rw_context_destroy(&ctx);
    }
    return best;
}

/* Prints the cost of recording, of regions and of a step with a cached plan. A value of one element stays readable
   after the step without being computed again, and has an entry for that; one of 512 bytes has none. */
static void host_cost(int64_t elements)
{
    enum { NODES = 2000, ROUNDS = 301 };
    const bool scalars = elements == 1;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    figure_must(NULL, rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 1 }));
    figure_must(ctx, rw_tape_create(&t, ctx));
    rw_tensor *const p = rw_param(ctx, "p", RW_F32, RW_SHAPE(elements));
    double times[ROUNDS], regions[ROUNDS];
    rw_memory m = { 0 };
    for (int i = 0; i < ROUNDS; i++) {
        rw_zero_grad(ctx);
        const double begin = now_s();
        rw_tensor *loss = record(t, p, NODES);
        if (!scalars) loss = rw_sum(t, loss, RW_ALL_AXES, false);
        figure_must(ctx, rw_backward(t, loss));
        times[i] = (now_s() - begin) / NODES;
        rw_memory_stats(ctx, &m);
        rw_tape_reset(t);
        const double before = now_s();
        for (int r = 0; r < 1000; r++) {
            ckpt_begin(t, "region");
            ckpt_end(t);
        }
        regions[i] = (now_s() - before) / 1000;
        rw_tape_reset(t);
    }
    char what[100];
    const char *const values = scalars ? "scalars" : "values of 512 bytes";
    snprintf(what, sizeof what, "host cost per recorded node, record to end of backward, %s", values);
    figure(what, 1e6 * median_of(times, ROUNDS), "us", 0.3);
    if (scalars) figure("ckpt_begin + ckpt_end", 1e6 * median_of(regions, ROUNDS), "us", 1);
    snprintf(what, sizeof what, "tape memory per recorded node, adjoints included, %s", values);
    figure(what, (double)(m.tape + m.plans) / NODES, "bytes", 256);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}

static void nothing_shared(void *of, int thread, int threads)
{
}

/* From the caller's start to its end. Another process on a core makes some rounds long: hence the median. */
static void parallel_cost(void)
{
    enum { JOBS = 100, ROUNDS = 1001 };
    double times[ROUNDS];
    if (rw_team_ready(2)) return;
    for (int i = 0; i < ROUNDS; i++) {
        const double begin = now_s();
        for (int j = 0; j < JOBS; j++) rw_team_run(2, nothing_shared, NULL);
        times[i] = (now_s() - begin) / JOBS;
    }
    figure("host cost of a parallel action, 2 threads, empty job", 1e6 * median_of(times, ROUNDS), "us", 1);
}

/* A region for every 20 nodes of the chain. */
static rw_tensor *record_regions(rw_tape *t, rw_tensor *p, long nodes)
{
    rw_tensor *x = p;
    for (long i = 0; i < nodes; i += 20) {
        ckpt_begin(t, "region");
        x = record(t, x, 20);
        ckpt_end(t);
    }
    return x;
}

/* Microseconds per action that rw_simulate() takes for the choice of a policy, with its memory already allocated. */
static double simulation_us(const char *spec, long nodes, int rounds)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    figure_must(NULL, rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 1 }));
    figure_must(ctx, rw_tape_create(&t, ctx));
    ckpt_set_policy(t, spec);
    const uint32_t loss = record_regions(t, rw_param(ctx, "p", RW_F32, RW_SHAPE(1)), nodes)->id;
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = &t->policy };
    struct rw_problem problem;
    struct rw_choice choice = { 0 };
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule cost;
    double best = INFINITY;
    rw_status status = rw_problem_open(&problem, t, &request);
    if (!status) status = rw_policy_choose(&problem, request.policy, &choice);
    for (int i = 0; !status && i < rounds; i++) {
        const double begin = now_s();
        status = rw_simulate(&problem, &choice, &sim, &cost);
        best = fmin(best, (now_s() - begin) / (double)sim.schedule.n_actions);
    }
    figure_must(ctx, status);
    rw_simulation_finish(&sim);
    rw_choice_finish(&choice);
    if (!status) rw_problem_close(&problem);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return 1e6 * best;
}

/* ---- budgets of long tapes ---- */

struct long_tape {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *loss;
};

static struct long_tape open_long_tape(long nodes)
{
    struct long_tape l = { 0 };
    figure_must(NULL, rw_context_create(&l.ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 2 }));
    figure_must(l.ctx, rw_tape_create(&l.t, l.ctx));
    rw_tensor *const p = rw_param(l.ctx, "p", RW_F32, RW_SHAPE(16)), *x = p;
    for (long i = 0; i < nodes; i++) x = i % 2 ? rw_mul(l.t, x, p) : rw_tanh(l.t, x);
    l.loss = rw_sum(l.t, x, RW_ALL_AXES, false);
    return l;
}

static void close_long_tape(struct long_tape *l)
{
    rw_tape_destroy(&l->t);
    rw_context_destroy(&l->ctx);
}

/* Minimum time of a frontier, over three rounds. */
static double frontier_seconds(long nodes)
{
    enum { POINTS = 4096 };
    static rw_frontier_point points[POINTS];
    struct long_tape l = open_long_tape(nodes);
    double best = INFINITY;
    figure_must(l.ctx, ckpt_set_policy(l.t, "budget:50%"));
    for (int round = 0; round < 3; round++) {
        size_t n = POINTS;
        const double begin = now_s();
        figure_must(l.ctx, rw_tape_frontier(l.t, l.loss, points, &n));
        best = fmin(best, now_s() - begin);
    }
    close_long_tape(&l);
    return best;
}

/* The largest resident set of the process so far. */
static double largest_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return 1024.0 * (double)usage.ru_maxrss;
}

/* Time of one plan under half of the peak of `none`, and the bytes by which it enlarges the process. The tape itself
   does not count. */
static double budget_seconds(long nodes, double *ret_bytes)
{
    struct long_tape l = open_long_tape(nodes);
    rw_prediction p;
    const double before = largest_bytes(), begin = now_s();
    figure_must(l.ctx, rw_tape_plan(l.t, l.loss, "budget:50%", &p));
    const double seconds = now_s() - begin;
    *ret_bytes = largest_bytes() - before;
    close_long_tape(&l);
    return seconds;
}

/* The largest tape comes last, so that its planning enlarges the process. */
static void budget_cost(void)
{
    double bytes = 0;
    figure("frontier of 10,000 nodes, 2 threads", frontier_seconds(10000), "s", 0.5);
    figure("budget:50% of 100,000 nodes, 2 threads", budget_seconds(100000, &bytes), "s", 2);
    figure("budget:50% of 1,000,000 nodes, 2 threads", budget_seconds(1000000, &bytes), "s", 20);
    figure("planning memory of budget:50% per node, 1,000,000 nodes, 2 threads", bytes / 1e6, "bytes", 300);
}

int main(void)
{
    host_cost(128);
    host_cost(1);
    parallel_cost();
    budget_cost(); /* before other long tapes, whose memory would hide that of planning */
    figure("rw_simulate() of 2,000 nodes under full, per action", simulation_us("full", 2000, 300), "us", 0.15);
    figure("rw_simulate() of 100,000 nodes under full, per action", simulation_us("full", 100000, 10), "us", 0.15);
    const double small = plan_seconds(100000), large = plan_seconds(1000000);
    figure("passes 2 to 4 for 100,000 nodes", small, "s", 0.2);
    figure("growth of passes 2 to 4 to 1,000,000 nodes, over n log n", large / small / (10 * log(1e6) / log(1e5)),
           "times", 1);
    return answer_end("host_cost", 0);
}
