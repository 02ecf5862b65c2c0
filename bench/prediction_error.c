/*
 * Predicted step time relative to measured. One context measures costs in steps under `none`, alternating with another
 * one whose steps under several policies are timed, so that noise affects all equally. Then the second loads the first
 * one's costs from a file, and the prediction of rw_tape_plan() for each policy is compared with the measured time.
 * That is the median ratio of its steps to the measuring context's in the same round, times the mean of the middle half
 * of those, which is the definition of costs (docs/planner.md), so that a change of the machine's speed between rounds
 * has no effect. Only steps with near cores count, and costs are measured with near cores if possible
 * (core_to_core_latency.h). With a folder on a disk there are also policies that offload to files.
 *
 *   prediction_error [ROUNDS] [THREADS] [PRESET] [LENGTH] [FOLDER or -] [MODEL]...
 *       gpt and llama, or the named models; image networks get images of LENGTH x LENGTH
 */
#include "core_to_core_latency.h"
#include "figure.h"
#include "models/model.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 4, MAX = 64, SEQ_MAX = 4096 };

/* The first STAYING policies do not offload. */
enum { STAYING = 4, N = 7 };
static const char *const of_text[N] = { "none", "full", "selective:core_attn", "block:3", "offload:block",
                                        "full+offload:block", "ops:linear,linear_add,linear_gelu+offload:block" };
static const char *const of_pictures[N] = { "none", "full", "discard:bn,relu", "block:3", "offload:block",
                                            "full+offload:block", "budget:40%+offload" };

struct runner {
    rw_context *ctx;
    rw_tape *t;
    struct model m;
    int32_t tokens[BATCH * SEQ_MAX];
};

static const char *preset = "small", *folder;
static int rounds = 9, threads, seq = 256;

static bool open_runner(struct runner *r, enum model_kind kind)
{
    struct model_config c = { .kind = kind, .max_seq = seq, .dropout = kind == MODEL_GPT ? 0.1f : 0 };
    for (int i = 0; i < BATCH * seq; i++) r->tokens[i] = i * 7 % 256;
    const rw_context_params params = { .seed = 1, .threads = threads };
    return model_preset(&c, preset) && !rw_context_create(&r->ctx, &params) &&
           (!folder || !rw_context_set_offload(r->ctx, &(rw_offload){ .path = folder })) &&
           !rw_tape_create(&r->t, r->ctx) && !model_create(&r->m, r->ctx, &c);
}

static void close_runner(struct runner *r)
{
    if (rw_error_status(r->ctx)) fprintf(stderr, "prediction_error: %s\n", rw_error_message(r->ctx));
    rw_tape_destroy(&r->t);
    rw_context_destroy(&r->ctx);
}

/* Milliseconds of a step; NAN after an error. */
static double step(struct runner *r, const char *policy)
{
    ckpt_set_policy(r->t, policy);
    rw_zero_grad(r->ctx);
    const double begin = now_s();
    rw_tensor *const loss = model_loss(&r->m, r->t, BATCH, seq, r->tokens, r->tokens);
    const rw_status status = rw_backward(r->t, loss);
    const double ms = 1e3 * (now_s() - begin);
    rw_tape_reset(r->t);
    return status ? NAN : ms;
}

static rw_prediction predict(struct runner *r, const char *policy)
{
    rw_prediction p = { .ms = NAN };
    rw_tape_plan(r->t, model_loss(&r->m, r->t, BATCH, seq, r->tokens, r->tokens), policy, &p);
    rw_tape_reset(r->t);
    return p;
}

/* The file's costs of memory: size of the caches, the price of a miss, and of data shared between threads. */
static void print_memory(const char *path)
{
    char line[256];
    FILE *const f = fopen(path, "r");
    double near, far, shared;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "memory %lf %lf %lf", &near, &far, &shared) == 3)
            printf("# caches hold %.0f MiB, a MiB that is far takes %.1f us, both ways; to write one that another "
                   "thread has read, %.1f us more\n", near / (1 << 20), 1e-6 * far, 1e-6 * shared);
    if (f) fclose(f);
}

/* Through a file: the saved costs are loaded. */
static void take_costs(const struct runner *from, struct runner *to)
{
    char path[] = "/tmp/rewind-prediction-XXXXXX";
    const int f = mkstemp(path);
    if (f < 0 || rw_costs_save(from->ctx, path) || rw_costs_load(to->ctx, path))
        figure_must(to->ctx, f < 0 ? RW_ERR_IO : rw_error_status(to->ctx));
    else print_memory(path);
    close(f);
    remove(path);
}

/* With calibrated costs only: no op of the model has been measured. */
static double worst_by_ceilings(enum model_kind kind, const char *const *policies, const double *measured)
{
    static struct runner r;
    double worst = 0;
    if (!open_runner(&r, kind) || rw_costs_calibrate(r.ctx)) worst = NAN;
    for (int p = 0; p < STAYING && worst == worst; p++) {
        const double says = predict(&r, policies[p]).ms, off = fabs(says / measured[p] - 1);
        printf("# %s %s: from calibration alone %.2f ms, measured %.2f ms, %.3f times\n", model_name(kind), policies[p],
               says, measured[p], says / measured[p]);
        worst = figure_worst(worst, off);
    }
    close_runner(&r);
    return worst;
}

/* As in rw_profile_end(): the mean of the middle half. */
static double usual_of(double *x, int n)
{
    const int from = (n + 1) / 4;
    double sum = 0;
    median_of(x, n); /* sorts */
    for (int i = from; i < n - from; i++) sum += x[i];
    return sum / (n - 2 * from);
}

struct times {
    double over[N][MAX]; /* time of a step under a policy relative to the adjacent one that measures costs */
    int near[N];          /* number of steps with near cores: only those are recorded */
    double beside[MAX];
    int rounds;
};

static void time_round(struct runner *measures, struct runner *runs, const char *const *policies, int n,
                       struct times *t)
{
    const bool before = cores_await(10);
    const double none = step(measures, "none");
    bool near = cores_are_near();
    const bool none_near = before && near;
    for (int p = 0; p < n; p++) {
        const bool was_near = near;
        const double ms = step(runs, policies[p]);
        near = cores_are_near();
        if (none_near && was_near && near) t->over[p][t->near[p]++] = ms / none;
    }
    t->beside[t->rounds++] = none;
}

/* Until each policy has the requested number, or the arrays are full; the first round is for pages and plans. */
static void time_all(struct runner *measures, struct runner *runs, const char *const *policies, int n, struct times *t)
{
    int least = 0;
    time_round(measures, runs, policies, n, t);
    memset(t, 0, sizeof *t);
    while (least < rounds && t->rounds < MAX) {
        time_round(measures, runs, policies, n, t);
        least = t->rounds;
        for (int p = 0; p < n; p++)
            if (t->near[p] < least) least = t->near[p];
    }
}

/* The largest relative error of the predicted times of one model, over all policies. */
static double worst_of(enum model_kind kind, double *ret_by_ceilings)
{
    static struct runner measures, runs;
    static struct times t;
    double medians[N], worst = 0;
    const char *const *const policies = kind > MODEL_VIT ? of_pictures : of_text;
    const int n = folder ? N : STAYING;
    if (!open_runner(&measures, kind) || !open_runner(&runs, kind)) {
        close_runner(&measures); /* prints the reason */
        close_runner(&runs);
        return NAN;
    }
    step(&measures, "none"); /* pages, plans */
    rw_profile_begin(measures.ctx);
    time_all(&measures, &runs, policies, n, &t);
    rw_profile_end(measures.ctx);
    const double usual = usual_of(t.beside, t.rounds);
    take_costs(&measures, &runs);
    for (int p = 0; p < n; p++) {
        const rw_prediction says = predict(&runs, policies[p]);
        const double measured = t.near[p] ? usual * median_of(t.over[p], t.near[p]) : NAN;
        const double times = says.ms / measured, off = fabs(times - 1);
        medians[p] = measured;
        printf("# %s %s: %.1f MiB, predicted %.2f ms, measured %.2f ms, %.3f times (%d of %d rounds)\n",
               model_name(kind), policies[p], (double)says.peak_bytes / (1 << 20), says.ms, measured, times, t.near[p],
               t.rounds);
        worst = figure_worst(worst, off);
    }
    close_runner(&measures);
    close_runner(&runs);
    *ret_by_ceilings = worst_by_ceilings(kind, policies, medians);
    return worst;
}

/* False if a step failed. */
static bool print(enum model_kind kind)
{
    char what[128];
    double by_ceilings = NAN;
    snprintf(what, sizeof what, "step-time prediction error, worst of %s policies, %s",
             folder ? "seven" : "four", model_name(kind));
    const double worst = worst_of(kind, &by_ceilings);
    if (isnan(worst)) return false;
    figure(what, worst, "of it", 0.05);
    printf("step-time prediction error from calibration alone, worst of four policies, %s, %.4g of it, "
           "for comparison\n", model_name(kind), by_ceilings);
    return true;
}

static bool is_named(const char *name, int n, char **names)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

static bool is_model(const char *name)
{
    for (enum model_kind kind = MODEL_GPT; kind < MODEL_KINDS; kind++)
        if (!strcmp(name, model_name(kind))) return true;
    return false;
}

int main(int argc, char **argv)
{
    if (argc > 1) rounds = figure_integer(argv[1], 1, MAX);
    if (argc > 2) threads = figure_integer(argv[2], 0, 1024);
    if (argc > 3) preset = argv[3];
    if (argc > 4) seq = figure_integer(argv[4], 1, SEQ_MAX);
    if (argc > 5 && strcmp(argv[5], "-") != 0) folder = argv[5];
    for (int i = 6; i < argc; i++)
        if (!is_model(argv[i])) {
            fprintf(stderr, "prediction_error: expected the name of a model, got \"%s\"; usage: prediction_error "
                    "[ROUNDS] [THREADS] [PRESET] [LENGTH] [FOLDER or -] [MODEL]...\n", argv[i]);
            return 2;
        }
    bool good = true;
    for (enum model_kind kind = MODEL_GPT; good && kind < MODEL_KINDS; kind++)
        if (argc > 6 ? is_named(model_name(kind), argc - 6, argv + 6) : kind <= MODEL_LLAMA) good = print(kind);
    return answer_end("prediction_error", good ? 0 : 1);
}
