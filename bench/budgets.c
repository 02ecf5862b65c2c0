/*
 * The cost of byte budgets and how closely they are met, through public calls only. Costs are measured first, in steps
 * of the same model, so that plans are made for this machine. Policies are timed alternately, and a figure uses the
 * steps before and after which the cores were near each other (core_to_core_latency.h).
 *
 *   budgets [ROUNDS of near cores]
 */
#include "core_to_core_latency.h"
#include "figure.h"
#include "models/synthetic_op.h"
#include "models/model.h"

#include <math.h>
#include <string.h>

enum { SEQ = 256, SIDE = 64, BATCH = 2, MAX = 64, BUDGETS = 50 };

struct step {
    rw_context *ctx;
    rw_tape *t;
    struct model m;
    int seq; /* tokens, or the side of an image */
};

static int32_t tokens[BATCH * SEQ];

static void must(const struct step *s, rw_status status)
{
    if (!status) return;
    fprintf(stderr, "budgets: %s\n", rw_error_message(s->ctx));
    exit(1);
}

static void open_context(struct step *s)
{
    must(s, rw_context_create(&s->ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 }));
    must(s, rw_tape_create(&s->t, s->ctx));
}

static void open_model(struct step *s, enum model_kind kind, const char *preset, int layers, int width)
{
    struct model_config c = { 0 };
    open_context(s);
    c.kind = kind > MODEL_LLAMA ? kind : MODEL_GPT; /* Llama has as many key heads here, as in bench/planner_quality */
    model_preset(&c, preset);
    c.kind = kind;
    s->seq = model_is_of_images(kind) ? SIDE : SEQ;
    if (layers) c.layers = layers;
    if (width) c.width = width, c.hidden = 0;
    c.dropout = kind == MODEL_GPT ? 0.1f : 0;
    if (c.max_seq < s->seq) c.max_seq = s->seq;
    must(s, model_create(&s->m, s->ctx, &c));
}

static void close_step(struct step *s)
{
    rw_tape_destroy(&s->t);
    rw_context_destroy(&s->ctx);
}

static rw_tensor *record(struct step *s)
{
    rw_tape_reset(s->t);
    return model_loss(&s->m, s->t, BATCH, s->seq, tokens, tokens);
}

static rw_prediction predict(struct step *s, const char *policy)
{
    rw_prediction p;
    must(s, rw_tape_plan(s->t, record(s), policy, &p));
    return p;
}

/* ---- predicted: distance from the optimum, planning time, minimum memory ---- */

static double worst_gap(enum model_kind kind)
{
    static const char *const policies[] = { "budget:75%", "budget:50%", "budget:25%" };
    struct step s = { 0 };
    double worst = 0;
    open_model(&s, kind, "tiny", 12, 256);
    for (int i = 0; i < 3; i++) worst = figure_worst(worst, predict(&s, policies[i]).gap);
    close_step(&s);
    return worst;
}

/* Median over new budgets, because a repeated plan is cached. */
static double planning_s(struct step *s, rw_tensor *loss)
{
    double seconds[9];
    for (int i = 0; i < 9; i++) {
        char policy[32];
        rw_cost cost;
        snprintf(policy, sizeof policy, "budget:%d%%", 46 + i);
        must(s, ckpt_set_policy(s->t, policy));
        const double begin = now_s();
        must(s, rw_tape_cost(s->t, loss, &cost));
        seconds[i] = now_s() - begin;
    }
    return median_of(seconds, 9);
}

static double planning_of(rw_tensor *(*make)(rw_tape *t, rw_tensor *x, int n), int n)
{
    struct step s = { 0 };
    open_context(&s);
    rw_tensor *const p = rw_param(s.ctx, "p", RW_F32, RW_SHAPE(2 * SYNTH_UNIT));
    const double seconds = planning_s(&s, rw_sum(s.t, make(s.t, p, n), RW_ALL_AXES, false));
    close_step(&s);
    return seconds;
}

static double planning_of_gpt(void)
{
    struct step s = { 0 };
    open_model(&s, MODEL_GPT, "tiny", 12, 256);
    const double seconds = planning_s(&s, record(&s));
    close_step(&s);
    return seconds;
}

static double least_over_full(struct step *s, rw_tensor *loss, const char *what)
{
    rw_prediction full, some, least;
    char policy[64];
    must(s, rw_tape_plan(s->t, loss, "full", &full));
    must(s, rw_tape_plan(s->t, loss, "budget:90%", &some));
    snprintf(policy, sizeof policy, "budget:%zuB", some.least_bytes);
    must(s, rw_tape_plan(s->t, loss, policy, &least));
    printf("# 96 %s: the least peak takes %zu replays of %zu nodes\n", what, least.cost.replayed_nodes,
           least.cost.forward_nodes);
    close_step(s);
    return (double)least.peak_bytes / (double)full.peak_bytes;
}

static double least_of_equal_layers(void)
{
    struct step s = { 0 };
    open_context(&s);
    rw_tensor *x = rw_param(s.ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT));
    for (int i = 0; i < 96; i++) {
        ckpt_begin(s.t, "layer");
        for (int k = 0; k < 3; k++) x = synth_apply(s.t, &x, 1, (struct synth){ .units = 4, .us = 20, .reads = 1 });
        ckpt_end(s.t);
    }
    return least_over_full(&s, rw_sum(s.t, x, RW_ALL_AXES, false), "equal layers");
}

/* With an embedding, logits, and a layer's backward that is larger than many layers' inputs. */
static double least_of_gpt(void)
{
    struct step s = { 0 };
    open_model(&s, MODEL_GPT, "tiny", 96, 64);
    return least_over_full(&s, record(&s), "GPT layers");
}

static void print_predicted(void)
{
    figure("gap to the lower bound, worst of budget:75%, 50%, 25%, 12 GPT layers", worst_gap(MODEL_GPT), "of it", 0.03);
    figure("gap to the lower bound, worst of budget:75%, 50%, 25%, 12 Llama layers", worst_gap(MODEL_LLAMA), "of it",
           0.03);
    figure("planning of a budget, 12 GPT blocks", planning_of_gpt(), "s", 0.02);
    figure("planning of a budget, 100 blocks of 30 nodes", planning_of(synth_blocks, 100), "s", 0.1);
    figure("planning of a budget, a graph of 10,000 nodes", planning_of(synth_graph, 10000), "s", 5);
    figure("least peak over that of full, 96 equal layers", least_of_equal_layers(), "times", 0.5);
    figure("least peak over that of full, 96 GPT layers of width 64", least_of_gpt(), "times", 0.5);
}

/* ---- measured ---- */

/* Seconds of a step, NAN for one that does not fit; its arena. */
static double run(struct step *s, const char *policy, size_t *ret_peak)
{
    rw_memory memory;
    must(s, ckpt_set_policy(s->t, policy));
    rw_zero_grad(s->ctx);
    const double begin = now_s();
    const rw_status status = rw_backward(s->t, record(s));
    const double seconds = now_s() - begin;
    if (status == RW_ERR_BUDGET) {
        rw_error_clear(s->ctx);
        return NAN;
    }
    must(s, status);
    must(s, rw_memory_stats(s->ctx, &memory));
    *ret_peak = memory.measured_peak;
    return seconds;
}

static void measure_costs(struct step *s)
{
    size_t peak;
    run(s, "none", &peak); /* pages */
    must(s, rw_profile_begin(s->ctx));
    for (int i = 0; i < 5; i++) run(s, "none", &peak);
    must(s, rw_profile_end(s->ctx));
}

/* With costs of memory, which the first measured step determines: the caches are simulated, too. */
static void print_planning_with_costs(void)
{
    struct step s = { 0 };
    open_model(&s, MODEL_GPT, "tiny", 12, 256);
    measure_costs(&s);
    figure("planning of a budget, 12 GPT blocks, measured costs", planning_s(&s, record(&s)), "s", 0.02);
    close_step(&s);
}

struct row {
    const char *policy, *name;
    double bound, seconds[MAX];
    bool near[MAX]; /* whether the cores were near before the step and after it */
};

struct ratio {
    double value;
    int n; /* number of such rounds, 0: none */
};

/*
 * The median of a step's time over another of the same round, where the cores were near, or not, for both: a temporary
 * slowdown of the machine affects both.
 */
static struct ratio over(const struct row *a, const struct row *b, int rounds, bool near)
{
    double ratio[MAX];
    struct ratio r = { NAN, 0 };
    for (int i = 0; i < rounds; i++)
        if (a->near[i] == near && b->near[i] == near)
            ratio[r.n++] = a->seconds[i] / b->seconds[i];
    if (r.n) r.value = median_of(ratio, r.n);
    return r;
}

/* Alternately, every other round in reverse order. The timed step follows one of the same policy, as in training: the
   cache contents left by another policy do not count. */
static void time_round(struct step *s, struct row *row, int n, int round, int at)
{
    size_t peak;
    for (int k = 0; k < n; k++) {
        struct row *const r = &row[round & 1 ? n - 1 - k : k];
        run(s, r->policy, &peak);
        const bool before = cores_are_near();
        r->seconds[at] = run(s, r->policy, &peak);
        r->near[at] = cores_are_near() && before;
    }
}

/* Until each policy has the requested number of rounds with near cores, or the arrays are full. The first round is for
   plans and pages. */
static int time_rows(struct step *s, struct row *row, int n, int wanted)
{
    int rounds = 0, least = 0;
    time_round(s, row, n, -1, 0);
    cores_await(0);
    while (rounds < MAX && least < wanted) {
        time_round(s, row, n, rounds, rounds);
        least = ++rounds;
        for (int i = 1; i < n; i++) {
            const int of_near = over(&row[i], &row[0], rounds, true).n;
            if (of_near < least) least = of_near;
        }
    }
    return rounds;
}

/* For a plan identical to full's, differences are noise. */
static void print_at_full(const struct row *at_full, const struct row *full, const rw_prediction *p, int rounds)
{
    const double measured = over(at_full, full, rounds, true).value;
    const bool same = p[0].ms == p[1].ms && p[0].peak_bytes == p[1].peak_bytes &&
                      p[0].cost.replayed_nodes == p[1].cost.replayed_nodes;
    if (same) printf("# at full's memory the plan is full's own, measured %.4f of it\n", measured);
    figure("step time over full's at full's memory, GPT of 32 layers, width 256", same ? 1 : measured, "times", 1);
}

static void print_row(const struct row *row, const struct row *none, double predicted, int rounds)
{
    const struct ratio r = over(row, none, rounds, true), far = over(row, none, rounds, false);
    char name[128];
    printf("# GPT of 32 layers, width 256, %s: predicted %.3f, measured %.3f (cores near in %d rounds)", row->policy,
           predicted, r.value, r.n);
    if (far.n) printf(", %.3f (far in %d)", far.value, far.n);
    puts(" of none's");
    if (!row->name) return;
    snprintf(name, sizeof name, "step time over none's at %s %% of its peak, GPT of 32 layers, width 256", row->name);
    figure(name, r.value, "times", row->bound);
}

/* Times budgets between `none` and `full`, and prints their ratios to `none`. */
static void print_measured_times(int wanted)
{
    struct row row[] = { { .policy = "none" },
                         { .policy = "budget:75%", .name = "75", .bound = 1.01 },
                         { .policy = "budget:50%", .name = "50", .bound = 1.07 },
                         { .policy = "budget:25%", .name = "25", .bound = 1.17 },
                         { .policy = "budget:10%", .name = "10", .bound = 1.24 },
                         { .policy = "full" },
                         { .policy = NULL } };
    enum { N = sizeof row / sizeof *row };
    struct step s = { 0 };
    char at_full[64];
    open_model(&s, MODEL_GPT, "tiny", 32, 256);
    measure_costs(&s);
    snprintf(at_full, sizeof at_full, "budget:%zuB", predict(&s, "full").peak_bytes);
    row[N - 1].policy = at_full;
    rw_prediction predicted[N];
    for (int i = 0; i < N; i++) predicted[i] = predict(&s, row[i].policy);
    const int rounds = time_rows(&s, row, N, wanted);
    double none[MAX];
    memcpy(none, row[0].seconds, sizeof none);
    printf("# none's step takes %.1f ms, the median of all\n", 1e3 * median_of(none, rounds));
    for (int i = 1; i < N; i++) print_row(&row[i], &row[0], predicted[i].ms / predicted[0].ms, rounds);
    print_at_full(&row[N - 1], &row[N - 2], &predicted[N - 2], rounds);
    close_step(&s);
}

/* Runs many budgets of a tiny model, and prints the ratio of measured peak to budget. */
static void print_measured_peaks(enum model_kind kind)
{
    struct step s = { 0 };
    size_t none = 0, peak = 0, differ = 0;
    double most = 0;
    int n = 0;
    char name[128];
    open_model(&s, kind, "tiny", 0, 0);
    run(&s, "none", &none);
    const size_t least = predict(&s, "budget:90%").least_bytes;
    for (int i = 0; i < BUDGETS; i++) {
        char policy[64];
        const size_t budget = least + (none - least) * (size_t)i / (BUDGETS - 1);
        snprintf(policy, sizeof policy, "budget:%zuB", budget);
        if (isnan(run(&s, policy, &peak))) continue;
        differ += predict(&s, policy).peak_bytes != peak;
        most = figure_worst(most, (double)peak / (double)budget);
        n++;
    }
    snprintf(name, sizeof name, "measured peak over budget, worst of %d, %s", n, model_name(kind));
    figure(n == BUDGETS ? name : "a budget above the least was refused", n == BUDGETS ? most : INFINITY, "times", 1);
    snprintf(name, sizeof name, "budgets of which measured and predicted peak differ, %s", model_name(kind));
    figure_exactly(name, (double)differ, "", 0);
    close_step(&s);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? figure_integer(argv[1], 1, 1 << 10) : 5;
    if (rounds < 1 || rounds > MAX) {
        fprintf(stderr, "budgets: usage: budgets [ROUNDS (1 to %d)]\n", MAX);
        return 2;
    }
    print_predicted();
    for (enum model_kind kind = 0; kind < MODEL_KINDS; kind++) print_measured_peaks(kind);
    print_planning_with_costs();
    print_measured_times(rounds);
    return answer_end("budgets", 0);
}
