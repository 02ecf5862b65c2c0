/*
 * The planner's results: predicted step time relative to `none` at shares of its peak, the distance from the lower
 * bound, and planning time. Nothing is executed except with --run, which times steps under budgets alternately and
 * compares the measured peak with the budget.
 *
 *   planner_quality [--run] [--far MIB US] [KIND SIZE WIDTH]...
 *       --far caches hold MIB, and a MiB of misses takes US microseconds, both ways: as if costs had been measured
 *       KIND  gpt, llama: SIZE layers of that width; blocks: SIZE residual blocks of 30 nodes; graph: SIZE random
 *             nodes; an image network (resnet50, densenet121, ...), as published: SIZE images of that side
 */
#include "figure.h"

#include "base/alloc.h"
#include "models/synthetic_op.h"
#include "models/model.h"
#include "plan/build.h"
#include "remat/planner/frontier.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 2
#define SEQ 256

/* ---- a step ---- */

static struct rw_memory_cost far;

struct step {
    const char *kind;
    int size, width;
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *p;
    struct model model;
    uint32_t loss;
};

static void fail(const struct step *s)
{
    fprintf(stderr, "planner_quality: %s\n", rw_error_message(s->ctx));
    exit(1);
}

/* An image network, by its name; MODEL_GPT for any other name. */
static enum model_kind kind_of_images(const char *name)
{
    for (enum model_kind kind = MODEL_RESNET50; kind < MODEL_KINDS; kind++)
        if (!strcmp(name, model_name(kind))) return kind;
    return MODEL_GPT;
}

static rw_tensor *record_images(struct step *s)
{
    int32_t *const tokens = calloc((size_t)s->size * (size_t)s->width, sizeof *tokens);
    rw_tensor *const x = tokens ? model_loss(&s->model, s->t, s->size, s->width, tokens, tokens) : NULL;
    free(tokens);
    return x;
}

static rw_tensor *record(struct step *s)
{
    static int32_t tokens[BATCH * SEQ];
    rw_tensor *x;
    if (!strcmp(s->kind, "blocks")) x = rw_sum(s->t, synth_blocks(s->t, s->p, s->size), RW_ALL_AXES, false);
    else if (!strcmp(s->kind, "graph")) x = rw_sum(s->t, synth_graph(s->t, s->p, s->size), RW_ALL_AXES, false);
    else if (kind_of_images(s->kind)) x = record_images(s);
    else x = model_loss(&s->model, s->t, BATCH, SEQ, tokens, tokens);
    if (!x) fail(s);
    s->loss = x->id;
    return x;
}

/* Creates a context, a tape and the model of the given kind and size. */
static void open_step(struct step *s)
{
    struct model_config config = { 0 };
    const bool gpt = !strcmp(s->kind, "gpt");
    if (rw_context_create(&s->ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 2 }) ||
        rw_tape_create(&s->t, s->ctx))
        fail(s);
    struct rw_costs *const costs = far.picoseconds ? rw_calloc(1, sizeof *costs) : NULL;
    if (costs) costs->memory = far;
    rw_costs_replace(s->ctx, costs);
    model_preset(&config, "tiny");
    config.kind = gpt ? MODEL_GPT : MODEL_LLAMA;
    config.layers = s->size;
    config.width = s->width;
    config.hidden = 0;
    config.dropout = gpt ? 0.1f : 0;
    config.max_seq = SEQ;
    if (kind_of_images(s->kind)) {
        config = (struct model_config){ .kind = kind_of_images(s->kind) };
        if (!model_preset(&config, "published") || model_create(&s->model, s->ctx, &config)) fail(s);
    } else if (gpt || !strcmp(s->kind, "llama")) {
        if (model_create(&s->model, s->ctx, &config)) fail(s);
    } else {
        s->p = rw_param(s->ctx, "p", RW_F32, RW_SHAPE(2 * SYNTH_UNIT));
    }
}

static void close_step(struct step *s)
{
    rw_tape_destroy(&s->t);
    rw_context_destroy(&s->ctx);
}

/* ---- predicted ---- */

static const double shares[] = { 100, 90, 75, 60, 50, 40, 25, 15, 10, 8, 6 };
#define SHARES (sizeof shares / sizeof *shares)

static void print_share(const struct step *s, struct rw_frontier *f, double percent)
{
    const uint64_t bytes = (uint64_t)((double)rw_frontier_none_peak(f) * percent / 100);
    const double none = rw_frontier_none_seconds(f);
    double bound = 0;
    size_t i = 0;
    while (i < f->n_points && f->point[i].peak > bytes) i++;
    if (i == f->n_points) return;
    if (rw_frontier_bound(f, bytes, &bound)) fail(s);
    printf("  %5.1f %%   %5.1f %%   %.4f   %.4f  %6.2f %%\n", percent,
           100 * (double)f->point[i].peak / (double)rw_frontier_none_peak(f), f->point[i].seconds / none, bound / none,
           100 * (f->point[i].seconds / bound - 1));
}

/* Plans for each budget and prints the frontier of peak memory and time. */
static void print_frontier(struct step *s)
{
    const struct rw_request request = rw_step_request(s->t, &s->loss, 1);
    struct rw_problem p;
    struct rw_frontier f;
    if (rw_problem_open(&p, s->t, &request) || rw_frontier_init(&f, &p)) fail(s);
    printf("%s of %d, width %d: %zu nodes; none takes %.1f MiB and %.4f s\n", s->kind, s->size, s->width,
           f.candidates.graph.n_nodes, (double)rw_frontier_none_peak(&f) / 1048576, rw_frontier_none_seconds(&f));
    printf("   budget     peak     time    bound      gap\n");
    for (size_t i = 0; i < SHARES; i++) print_share(s, &f, shares[i]);
    uint64_t least = UINT64_MAX, full = 0;
    for (size_t i = 0; i < f.n_points; i++) {
        const struct rw_policy *const policy = rw_frontier_policy(&f, i);
        if (f.point[i].peak < least) least = f.point[i].peak;
        if (policy && policy->kind == RW_POLICY_FULL) full = f.point[i].peak;
    }
    printf("  least %.2f %%", 100 * (double)least / (double)rw_frontier_none_peak(&f));
    if (full) printf(", %.3f of what full takes", (double)least / (double)full);
    printf("; %zu candidates simulated, %zu points\n", f.candidates.n_simulations, f.n_points);
    rw_frontier_finish(&f);
    rw_problem_close(&p);
}

static void print_planning_time(struct step *s, const char *policy)
{
    const struct rw_request request = rw_step_request(s->t, &s->loss, 1);
    double best = INFINITY;
    if (ckpt_set_policy(s->t, policy)) fail(s);
    for (int round = 0; round < 5; round++) {
        rw_plan *plan = NULL;
        const double begin = now_s();
        if (rw_plan_build(s->t, &request, &plan)) fail(s);
        best = fmin(best, now_s() - begin);
        rw_plan_release(plan);
    }
    printf("  planned in %.1f ms under %s\n", 1e3 * best, policy);
}

/* ---- run ---- */

/* Seconds of one step, and its arena. */
static double run_step(struct step *s, const char *policy, size_t *ret_peak)
{
    rw_memory memory;
    if (ckpt_set_policy(s->t, policy)) fail(s);
    const double begin = now_s();
    if (rw_backward(s->t, record(s))) {
        if (rw_error_status(s->ctx) != RW_ERR_BUDGET) fail(s);
        rw_error_clear(s->ctx);
        rw_tape_reset(s->t);
        return INFINITY;
    }
    const double seconds = now_s() - begin;
    rw_memory_stats(s->ctx, &memory);
    if (memory.measured_peak != memory.predicted_peak)
        printf("  %s: measured %zu, predicted %zu\n", policy, memory.measured_peak, memory.predicted_peak);
    *ret_peak = memory.measured_peak;
    rw_tape_reset(s->t);
    return seconds;
}

/* Alternates the policies, so that noise affects all equally; for each the fastest round. The first round is for
   planning. */
static void print_measured_times(struct step *s)
{
    static const char *const policies[] = { "none", "budget:75%", "budget:50%", "budget:25%", "budget:10%", "full" };
    enum { N = sizeof policies / sizeof *policies };
    double best[N];
    size_t peak;
    for (int i = 0; i < N; i++) best[i] = INFINITY;
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < N; i++) {
            const double seconds = run_step(s, policies[i], &peak);
            if (round) best[i] = fmin(best[i], seconds);
        }
    for (int i = 0; i < N; i++) printf("  %-11s %.4f s, %.3f of none\n", policies[i], best[i], best[i] / best[0]);
}

/* Runs the step under ever smaller budgets, and prints the largest ratio of measured peak to budget. */
static void print_measured_peaks(struct step *s)
{
    size_t none = 0, peak = 0;
    double most = 0;
    int n = 0;
    run_step(s, "none", &none);
    for (int i = 50; i > 0; i--) {
        char policy[64];
        const size_t budget = none / 50 * (size_t)i;
        snprintf(policy, sizeof policy, "budget:%zuB", budget);
        if (run_step(s, policy, &peak) == INFINITY) break;
        most = figure_worst(most, (double)peak / (double)budget);
        n++;
    }
    if (!n) printf("  no budget of none's peak was above the minimum\n");
    else printf("  measured peak over budget: %.4f at most, of %d budgets\n", most, n);
}

static void print_all(struct step s, bool run)
{
    open_step(&s);
    record(&s);
    print_frontier(&s);
    print_planning_time(&s, "none");
    print_planning_time(&s, "budget:50%");
    rw_tape_reset(s.t);
    if (run) print_measured_times(&s);
    if (run) print_measured_peaks(&s);
    close_step(&s);
}

static bool is_kind(const char *name)
{
    static const char *const kinds[] = { "gpt", "llama", "blocks", "graph" };
    bool found = kind_of_images(name) != MODEL_GPT;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) found |= !strcmp(name, kinds[i]);
    return found;
}

static int refuse(const char *why)
{
    fprintf(stderr, "planner_quality: %s; usage: planner_quality [--run] [--far MIB US] [KIND SIZE WIDTH]..., with a "
                    "KIND for --run\n", why);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct step programs[] = { { .kind = "gpt", .size = 12, .width = 256 },
                                            { .kind = "gpt", .size = 32, .width = 256 },
                                            { .kind = "llama", .size = 12, .width = 256 },
                                            { .kind = "blocks", .size = 100 },
                                            { .kind = "graph", .size = 10000 } };
    const bool run = argc > 1 && !strcmp(argv[1], "--run");
    int first = 1 + run;
    if (first + 3 <= argc && !strcmp(argv[first], "--far")) {
        far.near_bytes = strtoull(argv[first + 1], NULL, 10) << 20;
        far.picoseconds = (uint64_t)(1e6 * atof(argv[first + 2]));
        first += 3;
    }
    if (argc == first && run) return refuse("--run: expected KIND SIZE WIDTH, got none");
    if ((argc - first) % 3) return refuse("expected KIND, SIZE and WIDTH");
    for (int i = first; i < argc; i += 3)
        if (!is_kind(argv[i])) return refuse("expected gpt, llama, blocks, graph or an image network as KIND");
    for (size_t i = 0; argc == first && i < sizeof programs / sizeof *programs; i++) print_all(programs[i], false);
    for (int i = first; i + 3 <= argc; i += 3)
        print_all((struct step){ .kind = argv[i], .size = figure_integer(argv[i + 1], 1, 1 << 24),
                                 .width = figure_integer(argv[i + 2], 0, 1 << 24) }, run);
    return answer_end("planner_quality", 0);
}
