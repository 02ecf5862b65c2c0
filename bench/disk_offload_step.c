/*
 * The benefit of a disk on a CPU: one GPT with steps that keep everything, replay, offload to files, and both, one step
 * of each per round, so that noise affects all equally. The disk's own speed is measured in every round too, by this
 * program's own calls. The expected time is printed first: compute as in the step that keeps everything, by its
 * operations, with forward and backward each at least as long as their copies.
 *
 *     disk_offload_step FOLDER [ROUNDS [WIDTH [LAYERS [SEQ]]]]
 */
#include "figure.h"
#include "models/model.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { HEAD = 64, BATCH = 2, ROUNDS_MAX = 64, PIECE = 4 << 20, PIECES = 16 };

static const struct {
    const char *what, *policy;
} ways[] = {
    { "keeps all", "none" },
    { "replay", "full" },
    { "replay, 25 %", "budget:25%" },
    { "both, 25 %", "budget:25%+offload" },
    { "files", "offload:block" },
    { "files, dear", "ops:linear,linear_add,linear_gelu,attention+offload:block" },
    { "files, full", "full+offload:block" },
};
#define WAYS (sizeof ways / sizeof *ways)

struct world {
    rw_context *ctx;
    rw_tape *t;
    struct model m;
    int32_t *tokens;
    int seq;
    double out, in; /* bytes per second, the median of the rounds */
};

struct row {
    rw_prediction plan;
    rw_cost cost;
    double ms[ROUNDS_MAX];
    bool ran;
};

static void fail(const char *why)
{
    fprintf(stderr, "disk_offload_step: %s\n", why);
    exit(EXIT_FAILURE);
}

static double transfer(int fd, char *piece, bool out)
{
    const double begin = now_s();
    for (int i = 0; i < PIECES; i++) {
        const ssize_t n = out ? pwrite(fd, piece, PIECE, (off_t)i * PIECE) : pread(fd, piece, PIECE, (off_t)i * PIECE);
        if (n != PIECE) fail(n < 0 ? strerror(errno) : "the disk is full");
    }
    return (double)PIECES * PIECE / (now_s() - begin);
}

/* A file of this program's own, which is kept: overwriting it uses the same disk blocks. */
static void disk(const char *folder, double *out, double *in)
{
    static int fd = -1;
    static char *piece;
    if (fd < 0) {
        char name[4096];
        snprintf(name, sizeof name, "%s/offload-step-XXXXXX", folder);
        fd = mkstemp(name);
        piece = aligned_alloc(4096, PIECE);
        if (fd < 0 || !piece) fail(strerror(errno));
        unlink(name);
        memset(piece, 1, PIECE);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT);
        transfer(fd, piece, true);
    }
    *out = transfer(fd, piece, true);
    *in = transfer(fd, piece, false);
}

static rw_tensor *record(struct world *w, const char *policy)
{
    rw_tape_reset(w->t);
    rw_zero_grad(w->ctx);
    if (ckpt_set_policy(w->t, policy)) return NULL;
    return model_loss(&w->m, w->t, BATCH, w->seq, w->tokens, w->tokens);
}

static bool step(struct world *w, const char *policy, struct row *row, int round)
{
    rw_tensor *const loss = record(w, policy);
    const double begin = now_s();
    const bool planned = loss && (round >= 0 || !rw_tape_plan(w->t, loss, NULL, &row->plan));
    if (!planned || rw_backward(w->t, loss)) {
        printf("%s: %s\n", policy, rw_error_message(w->ctx));
        rw_error_clear(w->ctx);
        return false;
    }
    if (round >= 0) row->ms[round] = (now_s() - begin) * 1e3;
    return rw_tape_cost(w->t, loss, &row->cost) == RW_OK;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* kept: milliseconds of the step that keeps everything. */
static double expected(const struct world *w, const struct row *row, const struct row *none, double kept)
{
    const double all = none->cost.forward_flops + none->cost.backward_flops;
    const double forward = kept * row->cost.forward_flops / all;
    const double backward = kept * (row->cost.backward_flops + row->cost.replayed_flops) / all;
    const double bytes = (double)row->plan.at_peak.host;
    return larger(forward, bytes / w->out * 1e3) + larger(backward, bytes / w->in * 1e3);
}

static void report(struct row *rows, int rounds, const double *predicted)
{
    const double none = median_of(rows[0].ms, rounds);
    printf("%-16s %10s %8s %10s %10s %10s %8s\n", "", "arena MB", "of none", "files MB", "expected", "ms", "times");
    for (size_t i = 0; i < WAYS; i++) {
        if (!rows[i].ran) continue;
        const double ms = median_of(rows[i].ms, rounds);
        printf("%-16s %10.1f %7.0f%% %10.1f %10.0f %10.0f %8.3f\n", ways[i].what,
               (double)rows[i].plan.peak_bytes / 1e6,
               100 * (double)rows[i].plan.peak_bytes / (double)rows[0].plan.peak_bytes,
               (double)rows[i].plan.at_peak.host / 1e6, predicted[i], ms, ms / none);
    }
}

/* Never slower, and faster wherever the disk allows it. */
static void print_figure(struct row *rows, int rounds)
{
    struct row *replay = NULL, *both = NULL;
    for (size_t i = 0; i < WAYS; i++) {
        if (rows[i].ran && !strcmp(ways[i].policy, "budget:25%")) replay = &rows[i];
        if (rows[i].ran && !strcmp(ways[i].policy, "budget:25%+offload")) both = &rows[i];
    }
    if (!replay || !both) fail("no figure: a step at 25 % of none's bytes failed");
    figure("step time at 25 % of none's bytes, with files over by replays alone",
           median_of(both->ms, rounds) / median_of(replay->ms, rounds), "times", 1);
}

static bool open_world(struct world *w, const char *folder, int width, int layers)
{
    struct model_config c = { .kind = MODEL_GPT, .width = width, .heads = width / HEAD, .kv_heads = width / HEAD,
                              .vocab = 256, .dropout = 0.1f, .dtype = RW_F32, .layers = layers, .max_seq = w->seq };
    w->tokens = calloc((size_t)BATCH * (size_t)w->seq, sizeof *w->tokens);
    for (int i = 0; i < BATCH * w->seq; i++) w->tokens[i] = i * 37 % 256;
    if (!rw_context_create(&w->ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 }) &&
        !rw_tape_create(&w->t, w->ctx) && !model_create(&w->m, w->ctx, &c) &&
        !rw_context_set_offload(w->ctx, &(rw_offload){ .path = folder }))
        return true;
    fprintf(stderr, "%s\n", rw_error_message(w->ctx));
    return false;
}

/* Times a step under each policy, and prints it with the time that is expected from the disk's speed. */
static void measure(struct world *w, const char *folder, int rounds)
{
    static struct row rows[WAYS];
    double predicted[WAYS], out[ROUNDS_MAX], in[ROUNDS_MAX];
    disk(folder, &w->out, &w->in);
    for (size_t i = 0; i < WAYS; i++) rows[i].ran = step(w, ways[i].policy, &rows[i], -1); /* makes plans, warms up */
    for (int r = 0; r < 2; r++) rows[0].ran = rows[0].ran && step(w, ways[0].policy, &rows[0], r);
    if (!rows[0].ran) fail("the step that keeps all, with which the others are compared, failed");
    const double kept = rows[0].ms[0] < rows[0].ms[1] ? rows[0].ms[0] : rows[0].ms[1];
    printf("disk %.2f GB/s out, %.2f in; a step that keeps all %.0f ms; expected", w->out / 1e9, w->in / 1e9, kept);
    for (size_t i = 0; i < WAYS; i++) {
        predicted[i] = expected(w, &rows[i], &rows[0], kept);
        if (rows[i].ran) printf(" %s %.0f,", ways[i].what, predicted[i]);
    }
    printf("\n");
    fflush(stdout);
    for (int r = 0; r < rounds; r++) {
        disk(folder, &out[r], &in[r]);
        for (size_t i = 0; i < WAYS; i++)
            if (rows[i].ran && !step(w, ways[i].policy, &rows[i], r)) fail("a step failed in a round");
    }
    report(rows, rounds, predicted);
    printf("disk in the rounds: %.2f GB/s out, %.2f in\n", median_of(out, rounds) / 1e9, median_of(in, rounds) / 1e9);
    print_figure(rows, rounds);
}

int main(int n, char **args)
{
    if (n < 2) {
        fprintf(stderr, "usage: disk_offload_step FOLDER [ROUNDS [WIDTH [LAYERS [SEQ]]]]\n");
        return 2;
    }
    const int given = n > 2 ? figure_integer(args[2], 2, ROUNDS_MAX) : 5;
    const int width = n > 3 ? figure_integer(args[3], HEAD, 1 << 16) : 1024;
    const int layers = n > 4 ? figure_integer(args[4], 1, MODEL_MAX_LAYERS) : 6;
    struct world w = { .seq = n > 5 ? figure_integer(args[5], 1, 1 << 16) : 256 };
    if (width % HEAD || layers < 1 || layers > MODEL_MAX_LAYERS || !open_world(&w, args[1], width, layers)) return 1;
    measure(&w, args[1], given);
    rw_tape_destroy(&w.t);
    rw_context_destroy(&w.ctx);
    free(w.tokens);
    return answer_end("disk_offload_step", 0);
}
