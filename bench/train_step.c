/*
 * Whole training steps - gradients cleared, forward, replays, backward, optimizer - recorded each time and as a graph: the
 * device's time, the host's, memory as planned and as the driver sees it, and operations per second beside what a plain
 * matrix product reaches on the same device in the same run. Prints JSON lines.
 *
 *     train_step [--device cuda] [--model gpt] [--preset gpt2-124m] [--layers N --width N --heads N] [--vocab N] [--dtype bf16]
 *                [--batch 32] [--seq 1024] [--dropout P] [--steps 20] [--ceiling] POLICY...
 *
 * The bytes are compared too: losses of all steps and digests of the parameters at the end, of every policy and both ways,
 * with the first row's. Exits with 1 when they differ.
 */
#include "figure.h"
#include "models/model.h"

#include <getopt.h>
#include <string.h>
#include <xxhash.h>

struct options {
    struct model_config model;
    rw_device device;
    int batch, seq, steps;
    bool ceiling;
    const char *preset;
};

struct row {
    double step_ms, host_us;
    double *losses;
    XXH128_hash_t parameters;
    rw_memory memory;
    rw_cost cost;
    uint64_t offset;
};

static void die(rw_context *ctx, const char *what)
{
    fprintf(stderr, "train_step: %s: %s\n", what, ctx ? rw_error_message(ctx) : "");
    exit(2);
}

static void must(rw_context *ctx, rw_status status, const char *what)
{
    if (status) die(ctx, *rw_error_message(ctx) ? what : rw_status_name(status));
}

static void fill(const struct options *o, int32_t *tokens, int32_t *targets, int step)
{
    const size_t n = (size_t)o->batch * (size_t)o->seq;
    for (size_t i = 0; i < n; i++) {
        const uint64_t h = ((uint64_t)step * n + i) * 0x9e3779b97f4a7c15u;
        tokens[i] = (int32_t)((h >> 33) % (uint64_t)o->model.vocab);
        targets[i] = (int32_t)((h >> 13) % (uint64_t)o->model.vocab);
    }
}

static XXH128_hash_t digest_parameters(rw_context *ctx)
{
    XXH3_state_t *const state = XXH3_createState();
    XXH3_128bits_reset(state);
    rw_tensor *p;
    for (size_t i = 0; (p = rw_param_get(ctx, i)); i++) {
        void *const bytes = malloc(rw_tensor_bytes(p));
        must(ctx, rw_read(NULL, p, bytes, rw_tensor_bytes(p)), "rw_read");
        XXH3_128bits_update(state, bytes, rw_tensor_bytes(p));
        free(bytes);
    }
    const XXH128_hash_t h = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return h;
}

struct training {
    const struct options *o;
    struct model *m;
    rw_tape *t;
    rw_adamw *opt;
    int32_t *tokens, *targets;
    double *ms, *us;
};

/* One step to warm up and o->steps that count. */
static void run_recorded(struct training *r, struct row *row)
{
    rw_context *const ctx = r->m->ctx;
    for (int s = 0; s <= r->o->steps; s++) {
        fill(r->o, r->tokens, r->targets, s);
        must(ctx, rw_timer_begin(ctx), "rw_timer_begin");
        rw_zero_grad(ctx);
        rw_tensor *const loss = model_loss(r->m, r->t, r->o->batch, r->o->seq, r->tokens, r->targets);
        must(ctx, rw_backward(r->t, loss), "rw_backward");
        must(ctx, rw_adamw_step(r->opt), "rw_adamw_step");
        must(ctx, rw_timer_end(ctx, &r->ms[s]), "rw_timer_end");
        row->losses[s] = rw_item(r->t, loss);
        if (s == 0) must(ctx, rw_tape_cost(r->t, loss, &row->cost), "rw_tape_cost");
        rw_tape_reset(r->t);
    }
}

/* The first two launches run plainly and capture. */
static void run_graph(struct training *r, struct row *row)
{
    rw_context *const ctx = r->m->ctx;
    const rw_shape shape = RW_SHAPE(r->o->batch, r->o->seq);
    const size_t bytes = (size_t)rw_shape_numel(shape) * sizeof *r->tokens;
    rw_graph *g = NULL;
    fill(r->o, r->tokens, r->targets, 0);
    rw_tensor *const x = rw_input(r->t, RW_I32, shape, r->tokens), *const y = rw_input(r->t, RW_I32, shape, r->targets);
    rw_tensor *const loss = model_loss_of(r->m, r->t, x, y);
    must(ctx, rw_graph_create(&g, r->t, loss, &(rw_graph_params){ .optimizer = r->opt }), "rw_graph_create");
    for (int s = 0; s <= r->o->steps; s++) {
        fill(r->o, r->tokens, r->targets, s);
        must(ctx, rw_input_write(x, r->tokens, bytes), "rw_input_write");
        must(ctx, rw_input_write(y, r->targets, bytes), "rw_input_write");
        must(ctx, rw_timer_begin(ctx), "rw_timer_begin");
        const double begin = now_s();
        must(ctx, rw_graph_launch(g), "rw_graph_launch");
        r->us[s] = 1e6 * (now_s() - begin);
        must(ctx, rw_timer_end(ctx, &r->ms[s]), "rw_timer_end");
        row->losses[s] = rw_item(r->t, loss);
        if (s == 0) must(ctx, rw_tape_cost(r->t, loss, &row->cost), "rw_tape_cost");
    }
    rw_graph_destroy(&g);
}

static struct row train(const struct options *o, struct model *m, const char *policy, bool graph)
{
    rw_context *const ctx = m->ctx;
    const size_t n = (size_t)o->batch * (size_t)o->seq;
    struct training r = { .o = o, .m = m, .tokens = malloc(n * sizeof(int32_t)), .targets = malloc(n * sizeof(int32_t)),
                          .ms = calloc((size_t)o->steps + 1, sizeof(double)), .us = calloc((size_t)o->steps + 1, sizeof(double)) };
    struct row row = { .losses = calloc((size_t)o->steps + 1, sizeof(double)) };
    rw_generator_set(ctx, (rw_generator_state){ .seed = 42 });
    must(ctx, model_init(m), "model_init");
    must(ctx, rw_tape_create(&r.t, ctx), "rw_tape_create");
    must(ctx, ckpt_set_policy(r.t, policy), "ckpt_set_policy");
    must(ctx, rw_adamw_create(&r.opt, ctx, &(rw_adamw_params){ .lr = 3e-4, .weight_decay = 0.1 }), "rw_adamw_create");
    if (graph) run_graph(&r, &row);
    else run_recorded(&r, &row);
    rw_memory_stats(ctx, &row.memory);
    row.parameters = digest_parameters(ctx);
    row.offset = rw_generator_get(ctx).offset;
    const int skip = o->steps > 2 ? 2 : 1;
    row.step_ms = median_of(r.ms + skip, o->steps + 1 - skip);
    row.host_us = median_of(r.us + skip, o->steps + 1 - skip);
    rw_adamw_destroy(&r.opt);
    rw_tape_destroy(&r.t);
    free(r.tokens), free(r.targets), free(r.ms), free(r.us);
    return row;
}

static bool same(const struct options *o, const struct row *a, const struct row *b)
{
    return !memcmp(a->losses, b->losses, ((size_t)o->steps + 1) * sizeof *a->losses) &&
           XXH128_isEqual(a->parameters, b->parameters) && a->offset == b->offset;
}

/* What a product of square matrices reaches: the ceiling that a model's operations per second are measured against. */
static double ceiling(rw_context *ctx, rw_dtype dtype, int64_t n)
{
    enum { PRODUCTS = 8, ROUNDS = 5 };
    double tflops[ROUNDS];
    rw_tape *t = NULL;
    rw_tensor *const a = rw_buffer(ctx, "ceiling.a", dtype, RW_SHAPE(n, n)), *const b = rw_buffer(ctx, "ceiling.b", dtype, RW_SHAPE(n, n));
    must(ctx, rw_init_normal(a, 0, 1), "rw_init_normal");
    must(ctx, rw_init_normal(b, 0, 1), "rw_init_normal");
    must(ctx, rw_tape_create(&t, ctx), "rw_tape_create");
    for (int round = 0; round < ROUNDS; round++) {
        rw_tensor *y[PRODUCTS];
        double ms = 0;
        for (int i = 0; i < PRODUCTS; i++) y[i] = rw_matmul(t, a, b);
        must(ctx, rw_timer_begin(ctx), "rw_timer_begin");
        must(ctx, rw_eval(t, y, PRODUCTS), "rw_eval");
        must(ctx, rw_timer_end(ctx, &ms), "rw_timer_end");
        tflops[round] = 2.0 * PRODUCTS * (double)n * (double)n * (double)n / ms * 1e-9;
        rw_tape_reset(t);
    }
    rw_tape_destroy(&t);
    return median_of(tflops + 1, ROUNDS - 1);
}

static void print_row(const struct options *o, const char *policy, const char *mode, const struct row *r, double top, bool identical)
{
    /* model operations: forward and backward once, whatever was computed again */
    const double tflops = (r->cost.forward_flops + r->cost.backward_flops) / r->step_ms * 1e-9;
    const rw_memory *const m = &r->memory;
    printf("{\"library\": \"rewind\", \"device\": \"%s\", \"model\": \"%s\", \"preset\": \"%s\", \"layers\": %d, \"width\": %d, "
           "\"dtype\": \"%s\", \"batch\": %d, \"seq\": %d, \"dropout\": %g, \"policy\": \"%s\", \"mode\": \"%s\", \"step_ms\": %.3f, ",
           rw_device_name(o->device), model_name(o->model.kind), o->preset, o->model.layers, o->model.width,
           rw_dtype_name(o->model.dtype), o->batch, o->seq, (double)o->model.dropout, policy, mode, r->step_ms);
    printf("\"host_us\": %.1f, \"kept_bytes\": %zu, \"peak_bytes\": %zu, \"predicted_peak_bytes\": %zu, \"total_bytes\": %zu, "
           "\"device_bytes\": %zu, \"replayed_nodes\": %zu, \"tflops\": %.3f, \"ceiling_tflops\": %.3f, \"loss\": %.9g, "
           "\"identical\": %s}\n", r->host_us, m->kept, m->measured_peak, m->predicted_peak,
           m->parameters + m->gradients + m->optimizer + m->inputs + m->results + m->predicted_peak, m->device,
           r->cost.replayed_nodes, tflops, top, r->losses[o->steps], identical ? "true" : "false");
    fflush(stdout);
}

static int integer(const char *text, const char *name)
{
    char *end;
    const long x = strtol(text, &end, 10);
    if (*end || x < 1 || x > 1 << 24) {
        fprintf(stderr, "train_step: --%s %s: a number from 1 on is needed\n", name, text);
        exit(2);
    }
    return (int)x;
}

static rw_device device_of(const char *name)
{
    for (rw_device d = RW_DEVICE_CPU; d < RW_DEVICE_COUNT; d++)
        if (!strcmp(name, rw_device_name(d))) return d;
    fprintf(stderr, "train_step: --device %s: cpu or cuda\n", name);
    exit(2);
}

static rw_dtype dtype_of(const char *name)
{
    for (rw_dtype d = RW_F32; d < RW_DTYPE_COUNT; d++)
        if (rw_dtype_is_float(d) && !strcmp(name, rw_dtype_name(d))) return d;
    fprintf(stderr, "train_step: --dtype %s is not a floating-point type\n", name);
    exit(2);
}

static void set_preset(struct options *o, const char *name)
{
    const struct model_config given = o->model;
    if (!model_preset(&o->model, name)) {
        fprintf(stderr, "train_step: --preset %s: there is none\n", name);
        exit(2);
    }
    o->model.kind = given.kind;
    o->model.dtype = given.dtype;
    o->preset = name;
}

static int read_options(struct options *o, int argc, char **argv)
{
    static const struct option names[] = { { "device", 1, 0, 0 }, { "model", 1, 0, 0 },  { "preset", 1, 0, 0 },  { "layers", 1, 0, 0 },
                                           { "width", 1, 0, 0 },  { "heads", 1, 0, 0 },  { "vocab", 1, 0, 0 },   { "dtype", 1, 0, 0 },
                                           { "batch", 1, 0, 0 },  { "seq", 1, 0, 0 },    { "dropout", 1, 0, 0 }, { "steps", 1, 0, 0 },
                                           { "ceiling", 0, 0, 0 }, { 0 } };
    int c, i = 0;
    while ((c = getopt_long(argc, argv, "", names, &i)) != -1) {
        if (c) exit(2);
        const char *const name = names[i].name;
        if (!strcmp(name, "device")) o->device = device_of(optarg);
        else if (!strcmp(name, "model")) o->model.kind = strcmp(optarg, "llama") ? MODEL_GPT : MODEL_LLAMA;
        else if (!strcmp(name, "preset")) set_preset(o, optarg);
        else if (!strcmp(name, "layers")) o->model.layers = integer(optarg, name);
        else if (!strcmp(name, "width")) o->model.width = integer(optarg, name);
        else if (!strcmp(name, "heads")) o->model.heads = o->model.kv_heads = integer(optarg, name);
        else if (!strcmp(name, "vocab")) o->model.vocab = integer(optarg, name);
        else if (!strcmp(name, "dtype")) o->model.dtype = dtype_of(optarg);
        else if (!strcmp(name, "batch")) o->batch = integer(optarg, name);
        else if (!strcmp(name, "seq")) o->seq = integer(optarg, name);
        else if (!strcmp(name, "dropout")) o->model.dropout = strtof(optarg, NULL);
        else if (!strcmp(name, "steps")) o->steps = integer(optarg, name);
        else o->ceiling = true;
    }
    if (o->model.kind == MODEL_GPT) o->model.kv_heads = o->model.heads;
    o->model.max_seq = o->seq;
    return optind;
}

int main(int argc, char **argv)
{
    struct options o = { .device = RW_DEVICE_CPU, .batch = 4, .seq = 128, .steps = 20 };
    set_preset(&o, "tiny");
    const int first = read_options(&o, argc, argv);
    char why[512];
    rw_context *ctx = NULL;
    if (rw_device_check(o.device, why, sizeof why) || rw_context_create(&ctx, &(rw_context_params){ .device = o.device, .seed = 42 })) {
        fprintf(stderr, "train_step: device %s: %s\n", rw_device_name(o.device), why);
        return 2;
    }
    const double top = o.ceiling ? ceiling(ctx, o.model.dtype, o.device == RW_DEVICE_CPU ? 1024 : 8192) : 0;
    struct model m;
    struct row reference = { 0 };
    bool all = true;
    must(ctx, model_create(&m, ctx, &o.model), "model_create");
    for (int i = first; i < argc; i++) {
        for (int graph = 0; graph < 2; graph++) {
            struct row r = train(&o, &m, argv[i], graph);
            const bool identical = !reference.losses || same(&o, &reference, &r);
            print_row(&o, argv[i], graph ? "graph" : "record", &r, top, identical);
            all &= identical;
            if (!reference.losses) reference = r;
            else free(r.losses);
        }
    }
    free(reference.losses);
    rw_context_destroy(&ctx);
    return all ? 0 : 1;
}
