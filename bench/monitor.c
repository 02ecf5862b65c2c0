/*
 * What a monitor costs: a training that is watched - norms and shares by group, lines of JSON, events, a text for
 * Prometheus - beside the same one that nobody watches, a step of each in turn. Both end with the same weights.
 *
 *     monitor [ROUNDS [LAYERS WIDTH SEQ]]
 */
#include "figure.h"
#include "models/model.h"

#include <rewind/rewind.h>

#include <string.h>
#include <unistd.h>

enum { MOST_ROUNDS = 2000, BATCH = 4, WARMUP = 3 };

struct run {
    rw_context *ctx;
    rw_tape *t;
    rw_optimizer *opt;
    rw_graph *g;
    rw_tensor *loss;
    rw_monitor *monitor; /* NULL: nobody watches */
    struct model model;
    double seconds[MOST_ROUNDS];
};

static void die(rw_context *ctx, const char *what)
{
    fprintf(stderr, "monitor: %s: %s\n", what, rw_error_message(ctx));
    exit(1);
}

static void watch(struct run *r, const char *folder)
{
    static const rw_monitor_group groups[] = { { "zero", "*0*" },  { "one", "*1*" }, { "two", "*2*" },
                                               { "three", "*3*" }, { "n", "*n*" },   { "e", "*e*" },
                                               { "a", "*a*" },     { "rest", "*" } };
    char log[300], prometheus[300];
    snprintf(log, sizeof log, "%s/log.jsonl", folder);
    snprintf(prometheus, sizeof prometheus, "%s/now.prom", folder);
    if (rw_monitor_create(&r->monitor, r->ctx, log) || rw_monitor_add(r->monitor, RW_MONITOR_TENSORBOARD, folder) ||
        rw_monitor_add(r->monitor, RW_MONITOR_PROMETHEUS, prometheus) ||
        rw_monitor_watch(r->monitor, &(rw_monitor_sources){ r->opt, groups, 8, 1e12 }))
        die(r->ctx, "a monitor");
}

static void open_run(struct run *r, const struct model_config *c, const char *folder)
{
    if (rw_context_create(&r->ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 })) exit(1);
    if (rw_tape_create(&r->t, r->ctx) || model_create(&r->model, r->ctx, c) || ckpt_set_policy(r->t, "full") ||
        rw_adamw_create(&r->opt, r->ctx, NULL))
        die(r->ctx, "making the model");
    if (folder) watch(r, folder);
}

static rw_status step(struct run *r, const int32_t *tokens, int seq, bool graph, double *loss, double *norm)
{
    rw_status status = RW_OK;
    if (!r->loss) r->loss = model_loss(&r->model, r->t, BATCH, seq, tokens, tokens);
    if (graph) {
        if (!r->g) status = rw_graph_create(&r->g, r->t, r->loss,
                                            &(rw_graph_params){ .optimizer = r->opt, .max_norm = 1 });
        if (!status) status = rw_graph_launch(r->g);
        *loss = rw_item(r->t, r->loss);
        return status;
    }
    rw_zero_grad(r->ctx);
    status = rw_backward(r->t, r->loss);
    *loss = rw_item(r->t, r->loss);
    rw_tape_reset(r->t);
    r->loss = NULL;
    if (!status) status = rw_clip_grad_norm(r->ctx, 1, norm);
    return status ? status : rw_optimizer_step(r->opt);
}

static double timed(struct run *r, uint64_t n, const int32_t *tokens, int seq, bool graph)
{
    const double from = now_s();
    rw_monitor_values v = { .step = n, .lr = 1e-3, .tokens = BATCH * (double)seq };
    rw_status status = step(r, tokens, seq, graph, &v.loss, &v.grad_norm);
    if (!status && r->monitor) status = rw_monitor_step(r->monitor, &v, NULL);
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
    rw_graph_destroy(&r->g);
    rw_monitor_destroy(&r->monitor);
    rw_optimizer_destroy(&r->opt);
    rw_tape_destroy(&r->t);
    rw_context_destroy(&r->ctx);
}

static void measure(const struct model_config *c, int rounds, bool graph, const char *folder)
{
    static struct run off, on;
    char text[160];
    int32_t *const tokens = calloc((size_t)(BATCH * c->max_seq), sizeof *tokens);
    if (!tokens) exit(1);
    for (int i = 0; i < BATCH * c->max_seq; i++) tokens[i] = i * 7919 % c->vocab;
    off = on = (struct run){ 0 };
    open_run(&off, c, NULL);
    open_run(&on, c, folder);
    for (int n = -WARMUP; n < rounds; n++) {
        struct run *const first = n % 2 ? &on : &off, *const second = n % 2 ? &off : &on;
        const double x = timed(first, (uint64_t)(n + WARMUP), tokens, c->max_seq, graph);
        const double y = timed(second, (uint64_t)(n + WARMUP), tokens, c->max_seq, graph);
        if (n >= 0) first->seconds[n] = x, second->seconds[n] = y;
    }
    const double with = median_of(on.seconds, rounds), without = median_of(off.seconds, rounds);
    snprintf(text, sizeof text, "step time with a monitor over that without, %s (%.2f and %.2f ms)",
             graph ? "as a graph" : "in calls", 1e3 * with, 1e3 * without);
    figure(text, with / without, "times", 1.01);
    snprintf(text, sizeof text, "weights are the same bytes, %s", graph ? "as a graph" : "in calls");
    figure_exactly(text, same_weights(&on, &off), "", 1);
    close_run(&on);
    close_run(&off);
    free(tokens);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 15;
    const int layers = argc > 2 ? atoi(argv[2]) : 4, width = argc > 3 ? atoi(argv[3]) : 384;
    const int seq = argc > 4 ? atoi(argv[4]) : 256;
    char folder[] = "/tmp/rewind-monitor-XXXXXX", command[64];
    if (rounds < 1 || rounds > MOST_ROUNDS || layers < 1 || width < 64 || width % 64 || seq < 2 || !mkdtemp(folder))
        return fprintf(stderr, "monitor [ROUNDS [LAYERS WIDTH SEQ]]\n"), 2;
    const struct model_config c = { .kind = MODEL_GPT, .layers = layers, .width = width, .heads = width / 64,
                                    .kv_heads = width / 64, .vocab = 4096, .max_seq = seq };
    for (int graph = 0; graph < 2; graph++) measure(&c, rounds, graph, folder);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) ? 1 : 0;
}
