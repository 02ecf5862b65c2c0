/*
 * Predicted over measured step time. One context measures costs in steps under `none`, in turn with another one whose
 * steps under several policies are timed, so that noise hits all alike; then the second takes the first one's costs
 * from a file, and what rw_tape_plan() says of each policy is held against the time measured: the median of what its
 * steps took over the measuring context's of the same round, times the mean of the middle half of those, which is what
 * costs are (docs/planner.md), so that a machine that changes its speed between rounds changes nothing. Counted are
 * steps while the cores are near each other, as they are, if they can be, while costs are measured (distance.h). With a
 * folder on a disk policies that move values into files there are among them.
 *
 *   prediction [ROUNDS] [THREADS] [PRESET] [LENGTH] [FOLDER or -] [MODEL]...
 *       gpt and llama, or the models that are named; networks for images see pictures of LENGTH x LENGTH
 */
#include "distance.h"
#include "figure.h"
#include "models/model.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 4, MOST = 64, MOST_SEQ = 4096 };

/* The first so many move nothing. */
enum { STAYING = 4, N = 7 };
static const char *const of_text[N] = { "none", "full", "selective:core_attn", "block:3", "offload:block",
                                        "full+offload:block", "ops:linear,linear_add,linear_gelu+offload:block" };
static const char *const of_pictures[N] = { "none", "full", "discard:bn,relu", "block:3", "offload:block",
                                            "full+offload:block", "budget:40%+offload" };

struct runner {
    rw_context *ctx;
    rw_tape *t;
    struct model m;
    int32_t tokens[BATCH * MOST_SEQ];
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
    if (r->ctx && rw_error_status(r->ctx)) fprintf(stderr, "prediction: %s\n", rw_error_message(r->ctx));
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

/* What the file says of memory: what caches hold, the price of the rest, and of what several threads hold. */
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

/* By a file: what is saved is what is loaded. */
static void take_costs(const struct runner *from, struct runner *to)
{
    char path[] = "/tmp/rewind-prediction-XXXXXX";
    const int f = mkstemp(path);
    if (f < 0 || rw_costs_save(from->ctx, path) || rw_costs_load(to->ctx, path))
        fprintf(stderr, "prediction: %s\n", f < 0 ? "no file" : rw_error_message(to->ctx));
    else print_memory(path);
    close(f);
    remove(path);
}

/* By what the machine reaches alone: nothing of the model has run for that. */
static double worst_by_ceilings(enum model_kind kind, const char *const *policies, const double *measured)
{
    static struct runner r;
    double worst = 0;
    if (!open_runner(&r, kind) || rw_costs_ceilings(r.ctx)) worst = NAN;
    for (int p = 0; p < STAYING && worst == worst; p++) {
        const double says = predict(&r, policies[p]).ms, off = fabs(says / measured[p] - 1);
        printf("# %s %s: by ceilings alone %.2f ms, measured %.2f ms, %.3f times\n", model_name(kind), policies[p],
               says, measured[p], says / measured[p]);
        worst = fmax(worst, off);
    }
    close_runner(&r);
    return worst;
}

/* As rw_costs_end() means it: of the middle half. */
static double usual_of(double *x, int n)
{
    const int from = (n + 1) / 4;
    double sum = 0;
    median_of(x, n); /* sorts */
    for (int i = from; i < n - from; i++) sum += x[i];
    return sum / (n - 2 * from);
}

struct times {
    double over[N][MOST]; /* what a step under a policy takes over the one beside it, which measures costs */
    int near[N];          /* how many there are of near cores: those alone are noted */
    double beside[MOST];
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

/* Until each policy has as many as are wanted, or there is no more room; the first round is for pages and plans. */
static void time_all(struct runner *measures, struct runner *runs, const char *const *policies, int n, struct times *t)
{
    int least = 0;
    time_round(measures, runs, policies, n, t);
    memset(t, 0, sizeof *t);
    while (least < rounds && t->rounds < MOST) {
        time_round(measures, runs, policies, n, t);
        least = t->rounds;
        for (int p = 0; p < n; p++)
            if (t->near[p] < least) least = t->near[p];
    }
}

static double worst_of(enum model_kind kind, double *ret_by_ceilings)
{
    static struct runner measures, runs;
    static struct times t;
    double medians[N], worst = 0;
    const char *const *const policies = kind > MODEL_VIT ? of_pictures : of_text;
    const int n = folder ? N : STAYING;
    if (!open_runner(&measures, kind) || !open_runner(&runs, kind)) {
        close_runner(&measures); /* says why */
        close_runner(&runs);
        return NAN;
    }
    step(&measures, "none"); /* pages, plans */
    rw_costs_begin(measures.ctx);
    time_all(&measures, &runs, policies, n, &t);
    rw_costs_end(measures.ctx);
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
        if (!(off <= worst)) worst = off;
    }
    close_runner(&measures);
    close_runner(&runs);
    *ret_by_ceilings = worst_by_ceilings(kind, policies, medians);
    return worst;
}

static void print(enum model_kind kind)
{
    char what[128];
    double by_ceilings = NAN;
    snprintf(what, sizeof what, "predicted over measured step time, off by, worst of %s policies, %s",
             folder ? "seven" : "four", model_name(kind));
    figure(what, worst_of(kind, &by_ceilings), "of it", 0.05);
    printf("predicted by the machine's ceilings alone, off by, worst of four policies, %s, %.4g of it, "
           "for comparison\n", model_name(kind), by_ceilings);
}

static bool is_named(const char *name, int n, char **names)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

int main(int argc, char **argv)
{
    if (argc > 1) rounds = atoi(argv[1]);
    if (argc > 2) threads = atoi(argv[2]);
    if (argc > 3) preset = argv[3];
    if (argc > 4) seq = atoi(argv[4]);
    if (argc > 5 && strcmp(argv[5], "-") != 0) folder = argv[5];
    if (rounds < 1 || rounds > MOST || threads < 0 || seq < 1 || seq > MOST_SEQ) {
        fprintf(stderr, "prediction: usage: prediction [ROUNDS (1 to %d)] [THREADS] [PRESET] [LENGTH (1 to %d)] "
                "[FOLDER or -] [MODEL]...\n", MOST, MOST_SEQ);
        return 2;
    }
    for (enum model_kind kind = MODEL_GPT; kind < MODEL_KINDS; kind++)
        if (argc > 6 ? is_named(model_name(kind), argc - 6, argv + 6) : kind <= MODEL_LLAMA) print(kind);
    return 0;
}
