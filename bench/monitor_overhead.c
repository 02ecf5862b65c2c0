/*
 * The cost of a monitor: monitored steps - norms and shares by group, lines of JSON, events, a text for Prometheus -
 * alternate with unmonitored steps of the same training, at the same addresses, because two separate trainings also
 * differ in their memory addresses. A twin that is never monitored has the same weights after its first steps.
 *
 *     monitor_overhead [ROUNDS [LAYERS WIDTH SEQ]]
 */
#include "figure.h"
#include "models/model.h"

#include <rewind/rewind.h>

#include <string.h>
#include <unistd.h>

enum { ROUNDS_MAX = 2000, BATCH = 4, WARMUP = 3 /* WARMUP: rounds in which the twin takes part */ };

struct run {
    rw_context *ctx;
    rw_tape *t;
    rw_optimizer *opt;
    rw_graph *g[2]; /* of unmonitored steps, and of monitored ones */
    rw_tensor *loss;
    rw_monitor *monitor; /* NULL: never monitored */
    struct model model;
    const int32_t *tokens;
    int seq;
    bool graph; /* else in calls */
};

static void die(rw_context *ctx, const char *what)
{
    fprintf(stderr, "monitor_overhead: %s: %s\n", what, rw_error_message(ctx));
    exit(1);
}

static void watch(struct run *r, bool on)
{
    static const rw_monitor_group groups[] = { { "zero", "*0*" },  { "one", "*1*" }, { "two", "*2*" },
                                               { "three", "*3*" }, { "n", "*n*" },   { "e", "*e*" },
                                               { "a", "*a*" },     { "rest", "*" } };
    if (rw_monitor_watch(r->monitor, on ? &(rw_monitor_sources){ r->opt, groups, 8, 1e12 } : NULL))
        die(r->ctx, "watching");
}

static void add_monitor(struct run *r, const char *folder)
{
    char log[300], prometheus[300];
    snprintf(log, sizeof log, "%s/log.jsonl", folder);
    snprintf(prometheus, sizeof prometheus, "%s/now.prom", folder);
    if (rw_monitor_create(&r->monitor, r->ctx, log) || rw_monitor_add(r->monitor, RW_MONITOR_TENSORBOARD, folder) ||
        rw_monitor_add(r->monitor, RW_MONITOR_PROMETHEUS, prometheus))
        die(r->ctx, "a monitor");
}

static void open_run(struct run *r, const struct model_config *c, bool graph, const int32_t *tokens, const char *folder)
{
    *r = (struct run){ .tokens = tokens, .seq = c->max_seq, .graph = graph };
    if (rw_context_create(&r->ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 }))
        die(NULL, "rw_context_create");
    if (rw_tape_create(&r->t, r->ctx) || model_create(&r->model, r->ctx, c) || ckpt_set_policy(r->t, "full") ||
        rw_adamw_create(&r->opt, r->ctx, NULL))
        die(r->ctx, "creating the model");
    if (folder) add_monitor(r, folder);
}

/* A graph is monitored if its optimizer was when it was created. */
static void make_graphs(struct run *r)
{
    for (int watched = 0; watched <= (r->monitor != NULL); watched++) {
        if (watched) watch(r, true);
        if (rw_graph_create(&r->g[watched], r->t, r->loss,
                            &(rw_graph_params){ { rw_record_clip(1), rw_record_update(r->opt) } }))
            die(r->ctx, "a graph");
    }
}

static rw_status launch(struct run *r, bool watched, double *loss)
{
    if (!r->g[0]) make_graphs(r);
    const rw_status status = rw_graph_launch(r->g[watched]);
    *loss = rw_item(r->t, r->loss);
    return status;
}

static rw_status step(struct run *r, bool watched, double *loss, double *norm)
{
    if (!r->loss) r->loss = model_loss(&r->model, r->t, BATCH, r->seq, r->tokens, r->tokens);
    if (r->graph) return launch(r, watched, loss);
    rw_zero_grad(r->ctx);
    const rw_status status = rw_backward(r->t, r->loss);
    *loss = rw_item(r->t, r->loss);
    rw_tape_reset(r->t);
    r->loss = NULL;
    if (status) return status;
    const rw_status clipped = rw_clip_grad_norm(r->ctx, 1, norm);
    return clipped ? clipped : rw_optimizer_step(r->opt);
}

/* The seconds of a step. */
static double timed(struct run *r, uint64_t n, bool watched)
{
    if (r->monitor && !r->graph) watch(r, watched);
    const double from = now_s();
    rw_monitor_values v = { .step = n, .lr = 1e-3, .tokens = BATCH * (double)r->seq };
    rw_status status = step(r, watched, &v.loss, &v.grad_norm);
    if (!status && watched) status = rw_monitor_step(r->monitor, &v, NULL);
    if (status) die(r->ctx, "a step");
    return now_s() - from;
}

static bool same_weights(const struct run *a, const struct run *b)
{
    bool same = true;
    for (size_t i = 0; rw_param_get(a->ctx, i); i++) {
        rw_tensor *const x = rw_param_get(a->ctx, i), *const y = rw_param_get(b->ctx, i);
        same &= !memcmp(rw_tensor_data(x), rw_tensor_data(y), rw_tensor_bytes(x));
    }
    return same;
}

static void close_run(struct run *r)
{
    for (int i = 0; i < 2; i++) rw_graph_destroy(&r->g[i]);
    rw_monitor_destroy(&r->monitor);
    rw_optimizer_destroy(&r->opt);
    rw_tape_destroy(&r->t);
    rw_context_destroy(&r->ctx);
}

static void print(const struct run *r, double *on, double *off, int rounds, bool same)
{
    const double with = median_of(on, rounds), without = median_of(off, rounds);
    char text[160];
    snprintf(text, sizeof text, "step time with a monitor over that without, %s (%.2f and %.2f ms)",
             r->graph ? "as a graph" : "in calls", 1e3 * with, 1e3 * without);
    figure(text, with / without, "times", 1.01);
    snprintf(text, sizeof text, "weights are the same bytes, %s", r->graph ? "as a graph" : "in calls");
    figure_exactly(text, same, "", 1);
}

/* Times steps with and without the monitor in turn, and compares the weights with those of an unmonitored run. */
static void measure(const struct model_config *c, int rounds, bool graph, const char *folder)
{
    static struct run run, twin;
    static double seconds[2][ROUNDS_MAX]; /* of unmonitored steps, and of monitored ones */
    int32_t *const tokens = calloc((size_t)BATCH * (size_t)c->max_seq, sizeof *tokens);
    if (!tokens) exit(1);
    for (int i = 0; i < BATCH * c->max_seq; i++) tokens[i] = i * 7919 % c->vocab;
    open_run(&run, c, graph, tokens, folder);
    open_run(&twin, c, graph, tokens, NULL);
    for (uint64_t n = 0; n < 2 * WARMUP; n++) timed(&run, n, n % 2), timed(&twin, n, false);
    const bool same = same_weights(&run, &twin);
    close_run(&twin);
    for (int n = 0; n < rounds; n++)
        for (int k = 0; k < 2; k++) {
            const bool watched = (n + k) % 2; /* the order alternates */
            seconds[watched][n] = timed(&run, 2 * (uint64_t)(n + WARMUP) + (uint64_t)k, watched);
        }
    print(&run, seconds[1], seconds[0], rounds, same);
    close_run(&run);
    free(tokens);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? figure_integer(argv[1], 1, ROUNDS_MAX) : 15;
    const int layers = argc > 2 ? figure_integer(argv[2], 1, MODEL_MAX_LAYERS) : 4;
    const int width = argc > 3 ? figure_integer(argv[3], 64, 1 << 16) : 384;
    const int seq = argc > 4 ? figure_integer(argv[4], 2, 1 << 16) : 256;
    char folder[] = "/tmp/rewind-monitor-XXXXXX", command[64];
    if (rounds < 1 || rounds > ROUNDS_MAX || layers < 1 || width < 64 || width % 64 || seq < 2 || !mkdtemp(folder))
        return fprintf(stderr, "monitor_overhead [ROUNDS [LAYERS WIDTH SEQ]]\n"), 2;
    const struct model_config c = { .kind = MODEL_GPT, .layers = layers, .width = width, .heads = width / 64,
                                    .kv_heads = width / 64, .vocab = 4096, .max_seq = seq };
    for (int graph = 0; graph < 2; graph++) measure(&c, rounds, graph, folder);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return answer_end("monitor_overhead", system(command) ? 1 : 0);
}
