/*
 * Whole training steps - gradients cleared, forward, replays, backward, optimizer - recorded each time and as a graph:
 * the device's time, the host's, memory as planned and as reported by the driver, and operations per second compared
 * with those of a plain matrix product on the same device in the same run. Prints JSON lines.
 *
 *     train_step [--device cuda] [--model gpt] [--preset gpt2-124m] [--layers N --width N --heads N] [--vocab N]
 *                [--dtype bf16] [--fp8] [--batch 32] [--seq 1024] [--dropout P] [--steps 20] [--compare N] [--ceiling]
 *                POLICY...
 *
 * --fp8 records the model under an FP8 recipe with one scale per tensor; the rows give the number of products that ran
 * on FP8 units and that fell back to bfloat16.
 *
 * The bytes are compared too, of every policy and both ways, with the first row's: the losses of all steps, the
 * gradients of every N-th one (1 without --compare; they are read back outside the times), the parameters and the
 * generator's state at the end. A different mask changes the gradients of its step. Exits with 1 if anything differs or
 * a loss is not finite.
 */
#include "figure.h"
#include "device_roofline.h"
#include "models/model.h"
#include "step_digests.h"

#include <getopt.h>
#include <math.h>
#include <string.h>

struct options {
    struct model_config model;
    rw_device device;
    int batch, seq, steps, compare;
    bool ceiling, fp8;
    const char *preset;
};

struct row {
    double step_ms, host_us, optimizer_gbs;
    struct outcome outcome;
    rw_memory memory;
    rw_cost cost;
    rw_float8_products products; /* of the context so far */
};

/* Measured maximum rates of the device; zero if not requested. */
struct limits {
    double tflops, gbs;
};

static void die(rw_context *ctx, const char *what)
{
    fprintf(stderr, "train_step: %s: %s\n", what, rw_error_message(ctx));
    exit(2);
}

static void must(rw_context *ctx, rw_status status, const char *what)
{
    if (!status) return;
    if (*rw_error_message(ctx)) die(ctx, what);
    fprintf(stderr, "train_step: %s: %s\n", what, rw_status_name(status));
    exit(2);
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

struct training {
    const struct options *o;
    struct model *m;
    rw_tape *t;
    rw_optimizer *opt;
    int32_t *tokens, *targets;
    double *ms, *us;
};

/* Records the results of a step. */
static void note(struct training *r, struct row *row, rw_tensor *loss, int step)
{
    rw_context *const ctx = r->m->ctx;
    outcome_loss(&row->outcome, step, rw_item(r->t, loss));
    must(ctx, rw_error_status(ctx), "rw_item");
    if (step % r->o->compare == 0 || step == r->o->steps)
        must(ctx, outcome_gradients(&row->outcome, ctx, step), "the gradients cannot be read");
    if (step == 0) must(ctx, rw_tape_cost(r->t, loss, &row->cost), "rw_tape_cost");
}

static rw_tensor *record(const struct training *r, rw_tensor *x, rw_tensor *y)
{
    const rw_recipe fp8 = { .kind = RW_RECIPE_F8 };
    rw_context *const ctx = r->m->ctx;
    if (r->o->fp8) must(ctx, rw_recipe_begin(r->t, &fp8), "rw_recipe_begin");
    rw_tensor *const loss = model_loss_of(r->m, r->t, x, y);
    if (r->o->fp8) must(ctx, rw_recipe_end(r->t), "rw_recipe_end");
    return loss;
}

/* One step to warm up and o->steps that count. */
static void run_recorded(struct training *r, struct row *row)
{
    rw_context *const ctx = r->m->ctx;
    const rw_shape shape = RW_SHAPE(r->o->batch, r->o->seq);
    for (int s = 0; s <= r->o->steps; s++) {
        fill(r->o, r->tokens, r->targets, s);
        must(ctx, rw_timer_begin(ctx), "rw_timer_begin");
        rw_zero_grad(ctx);
        rw_tensor *const x = rw_input(r->t, RW_I32, shape, r->tokens,
                                      (size_t)rw_shape_numel(shape) * sizeof *r->tokens);
        rw_tensor *const loss = record(
            r, x, rw_input(r->t, RW_I32, shape, r->targets, (size_t)rw_shape_numel(shape) * sizeof *r->targets));
        must(ctx, rw_backward(r->t, loss), "rw_backward");
        must(ctx, rw_optimizer_step(r->opt), "rw_optimizer_step");
        must(ctx, rw_timer_end(ctx, &r->ms[s]), "rw_timer_end");
        note(r, row, loss, s);
        rw_tape_reset(r->t);
    }
}

/* The first two launches execute without a graph, and capture. */
static void run_graph(struct training *r, struct row *row)
{
    rw_context *const ctx = r->m->ctx;
    const rw_shape shape = RW_SHAPE(r->o->batch, r->o->seq);
    const size_t bytes = (size_t)rw_shape_numel(shape) * sizeof *r->tokens;
    rw_graph *g = NULL;
    fill(r->o, r->tokens, r->targets, 0);
    rw_tensor *const x = rw_input(r->t, RW_I32, shape, r->tokens, (size_t)rw_shape_numel(shape) * sizeof *r->tokens),
                     *const y = rw_input(r->t, RW_I32, shape, r->targets,
                                         (size_t)rw_shape_numel(shape) * sizeof *r->targets);
    rw_tensor *const loss = record(r, x, y);
    must(ctx, rw_graph_create(&g, r->t, loss, &(rw_graph_params){ { rw_record_update(r->opt) } }), "rw_graph_create");
    for (int s = 0; s <= r->o->steps; s++) {
        fill(r->o, r->tokens, r->targets, s);
        must(ctx, rw_input_write(x, r->tokens, bytes), "rw_input_write");
        must(ctx, rw_input_write(y, r->targets, bytes), "rw_input_write");
        must(ctx, rw_timer_begin(ctx), "rw_timer_begin");
        const double begin = now_s();
        must(ctx, rw_graph_launch(g), "rw_graph_launch");
        r->us[s] = 1e6 * (now_s() - begin);
        must(ctx, rw_timer_end(ctx, &r->ms[s]), "rw_timer_end");
        note(r, row, loss, s);
    }
    rw_graph_destroy(&g);
}

/* Bytes per second (1e9) of the optimizer alone, after the run's bytes are recorded: parameters and states are read and
   written, gradients read. */
static double optimizer_rate(struct training *r, const rw_memory *m)
{
    enum { ROUNDS = 5 };
    double ms[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        must(r->m->ctx, rw_timer_begin(r->m->ctx), "rw_timer_begin");
        must(r->m->ctx, rw_optimizer_step(r->opt), "rw_optimizer_step");
        must(r->m->ctx, rw_timer_end(r->m->ctx, &ms[i]), "rw_timer_end");
    }
    const double ms_each = median_of(ms, ROUNDS);
    const double bytes = 2 * (double)m->parameters + 2 * (double)m->optimizer + (double)m->gradients;
    return ms_each > 0 ? 1e-6 * bytes / ms_each : 0;
}

/* Trains under one policy, recorded or as a graph, and returns the row. */
static struct row train(const struct options *o, struct model *m, const char *policy, bool graph)
{
    rw_context *const ctx = m->ctx;
    const size_t n = (size_t)o->batch * (size_t)o->seq;
    struct training r = { .o = o,
                          .m = m,
                          .tokens = malloc(n * sizeof(int32_t)),
                          .targets = malloc(n * sizeof(int32_t)),
                          .ms = calloc((size_t)o->steps + 1, sizeof(double)),
                          .us = calloc((size_t)o->steps + 1, sizeof(double)) };
    struct row row = { 0 };
    if (!r.tokens || !r.targets || !r.ms || !r.us || !outcome_open(&row.outcome, o->steps)) die(NULL, "out of memory");
    rw_generator_set(ctx, (rw_generator_state){ .seed = 42 });
    must(ctx, model_init(m), "model_init");
    must(ctx, rw_tape_create(&r.t, ctx), "rw_tape_create");
    must(ctx, ckpt_set_policy(r.t, policy), "ckpt_set_policy");
    must(ctx, rw_adamw_create(&r.opt, ctx, &(rw_adamw_params){ .lr = 3e-4, .weight_decay = 0.1 }), "rw_adamw_create");
    if (graph) run_graph(&r, &row);
    else run_recorded(&r, &row);
    rw_memory_stats(ctx, &row.memory);
    rw_float8_product_stats(ctx, &row.products);
    must(ctx, outcome_end(&row.outcome, ctx), "the parameters cannot be read");
    if (o->ceiling) row.optimizer_gbs = optimizer_rate(&r, &row.memory);
    const int skip = o->steps > 2 ? 2 : 1;
    row.step_ms = median_of(r.ms + skip, o->steps + 1 - skip);
    row.host_us = median_of(r.us + skip, o->steps + 1 - skip);
    rw_optimizer_destroy(&r.opt);
    rw_tape_destroy(&r.t);
    free(r.tokens), free(r.targets), free(r.ms), free(r.us);
    return row;
}

/* Compares with the first row; prints what differs. */
static bool judge(const struct options *o, const struct row *first, const struct row *r, const char *policy,
                  const char *mode)
{
    char where[64];
    bool good = outcome_same(&first->outcome, &r->outcome, where, sizeof where);
    if (!good) fprintf(stderr, "train_step: %s, %s: not the bytes of the first row: %s\n", policy, mode, where);
    for (int s = 0; s <= o->steps && good; s++) {
        good = isfinite(r->outcome.losses[s]);
        if (!good) fprintf(stderr, "train_step: %s, %s: the loss of step %d is not finite\n", policy, mode, s);
    }
    return good;
}

static double rate(const struct row *r)
{
    /* model operations: forward and backward once, without recompute */
    return r->step_ms > 0 ? r->cost.model_flops / r->step_ms * 1e-9 : 0;
}

/* Prints a row as a line of JSON. */
static void print_row(const struct options *o, const char *policy, const char *mode, const struct row *r,
                      const struct limits *top, bool identical)
{
    const rw_memory *const m = &r->memory;
    printf("{\"library\": \"rewind\", \"device\": \"%s\", \"model\": \"%s\", \"preset\": \"%s\", \"layers\": %d, "
           "\"width\": %d, "
           "\"dtype\": \"%s\", \"batch\": %d, \"seq\": %d, \"dropout\": %g, \"policy\": \"%s\", \"mode\": \"%s\", ",
           rw_device_name(o->device), model_name(o->model.kind), o->preset, o->model.layers, o->model.width,
           rw_dtype_name(o->model.dtype), o->batch, o->seq, (double)o->model.dropout, policy, mode);
    printf("\"step_ms\": %.3f, \"host_us\": %.1f, \"kept_bytes\": %zu, \"peak_bytes\": %zu, \"predicted_peak_bytes\": "
           "%zu, "
           "\"total_bytes\": %zu, \"device_bytes\": %zu, \"replayed_nodes\": %zu, ",
           r->step_ms, r->host_us, m->kept, m->measured_peak, m->predicted_peak,
           m->parameters + m->gradients + m->optimizer + m->inputs + m->results + m->predicted_peak, m->device,
           r->cost.replayed_nodes);
    printf("\"tflops\": %.5g, \"ceiling_tflops\": %.5g, \"optimizer_gbs\": %.5g, \"copy_gbs\": %.5g, ", rate(r),
           top->tflops, r->optimizer_gbs, top->gbs);
    if (isfinite(r->outcome.losses[o->steps])) printf("\"loss\": %.9g, ", r->outcome.losses[o->steps]);
    else printf("\"loss\": null, ");
    if (o->fp8)
        printf("\"fp8_products\": %llu, \"decoded_products\": %llu, ", (unsigned long long)r->products.fp8,
               (unsigned long long)r->products.decoded);
    printf("\"steps\": %d, \"compared_every\": %d, \"identical\": %s}\n", o->steps, o->compare,
           identical ? "true" : "false");
    fflush(stdout);
}

static int integer(const char *text, const char *name)
{
    char *end;
    const long x = strtol(text, &end, 10);
    if (*end || x < 1 || x > 1 << 24) {
        fprintf(stderr, "train_step: --%s: expected a number from 1 to %d, got \"%s\"\n", name, 1 << 24, text);
        exit(2);
    }
    return (int)x;
}

static rw_device device_of(const char *name)
{
    for (rw_device d = RW_DEVICE_CPU; d < RW_DEVICE_COUNT; d++)
        if (!strcmp(name, rw_device_name(d))) return d;
    fprintf(stderr, "train_step: --device: expected cpu or cuda, got \"%s\"\n", name);
    exit(2);
}

static rw_dtype dtype_of(const char *name)
{
    for (rw_dtype d = RW_F32; d < RW_DTYPE_COUNT; d++)
        if (rw_dtype_is_float(d) && !strcmp(name, rw_dtype_name(d))) return d;
    fprintf(stderr, "train_step: --dtype: expected a floating-point type, got \"%s\"\n", name);
    exit(2);
}

static enum model_kind model_of(const char *name)
{
    if (!strcmp(name, model_name(MODEL_GPT))) return MODEL_GPT;
    if (!strcmp(name, model_name(MODEL_LLAMA))) return MODEL_LLAMA;
    fprintf(stderr, "train_step: --model: expected gpt or llama, got \"%s\"\n", name);
    exit(2);
}

static float probability(const char *text, const char *name)
{
    char *end;
    const float x = strtof(text, &end);
    if (end != text && !*end && x >= 0 && x < 1) return x;
    fprintf(stderr, "train_step: --%s: expected a number of 0 or more and less than 1, got \"%s\"\n", name, text);
    exit(2);
}

static void set_preset(struct options *o, const char *name)
{
    const struct model_config given = o->model;
    if (!model_preset(&o->model, name)) {
        fprintf(stderr, "train_step: --preset: expected a preset of the model, got \"%s\"\n", name);
        exit(2);
    }
    o->model.kind = given.kind;
    o->model.dtype = given.dtype;
    o->preset = name;
}

/* Parses the command line. */
static int read_options(struct options *o, int argc, char **argv)
{
    static const struct option names[] = { { "device", 1, 0, 0 },  { "model", 1, 0, 0 },   { "preset", 1, 0, 0 },
                                           { "layers", 1, 0, 0 },  { "width", 1, 0, 0 },   { "heads", 1, 0, 0 },
                                           { "vocab", 1, 0, 0 },   { "dtype", 1, 0, 0 },   { "batch", 1, 0, 0 },
                                           { "seq", 1, 0, 0 },     { "dropout", 1, 0, 0 }, { "steps", 1, 0, 0 },
                                           { "ceiling", 0, 0, 0 }, { "compare", 1, 0, 0 }, { "fp8", 0, 0, 0 },
                                           { 0 } };
    int c, i = 0;
    while ((c = getopt_long(argc, argv, "", names, &i)) != -1) {
        if (c) exit(2);
        const char *const name = names[i].name;
        if (!strcmp(name, "device")) o->device = device_of(optarg);
        else if (!strcmp(name, "model")) o->model.kind = model_of(optarg);
        else if (!strcmp(name, "preset")) set_preset(o, optarg);
        else if (!strcmp(name, "layers")) o->model.layers = integer(optarg, name);
        else if (!strcmp(name, "width")) o->model.width = integer(optarg, name);
        else if (!strcmp(name, "heads")) o->model.heads = o->model.kv_heads = integer(optarg, name);
        else if (!strcmp(name, "vocab")) o->model.vocab = integer(optarg, name);
        else if (!strcmp(name, "dtype")) o->model.dtype = dtype_of(optarg);
        else if (!strcmp(name, "batch")) o->batch = integer(optarg, name);
        else if (!strcmp(name, "seq")) o->seq = integer(optarg, name);
        else if (!strcmp(name, "dropout")) o->model.dropout = probability(optarg, name);
        else if (!strcmp(name, "steps")) o->steps = integer(optarg, name);
        else if (!strcmp(name, "compare")) o->compare = integer(optarg, name);
        else if (!strcmp(name, "fp8")) o->fp8 = true;
        else o->ceiling = true;
    }
    if (o->model.kind == MODEL_GPT) o->model.kv_heads = o->model.heads;
    if ((int64_t)o->batch * o->seq > 1 << 30) {
        fprintf(stderr, "train_step: expected at most 2^30 tokens in a step, got batch %d of length %d\n", o->batch,
                o->seq);
        exit(2);
    }
    o->model.max_seq = o->seq;
    return optind;
}

/* Recorded and as a graph, in a context without anything from earlier rows. */
static bool run_policy(const struct options *o, const char *policy, const struct limits *top, struct row *first)
{
    rw_context *ctx = NULL;
    struct model m;
    bool all = true;
    must(NULL, rw_context_create(&ctx, &(rw_context_params){ .device = o->device, .seed = 42 }), "rw_context_create");
    must(ctx, model_create(&m, ctx, &o->model), "model_create");
    for (int graph = 0; graph < 2; graph++) {
        const char *const mode = graph ? "graph" : "record";
        struct row r = train(o, &m, policy, graph);
        const bool identical = judge(o, first->outcome.losses ? first : &r, &r, policy, mode);
        print_row(o, policy, mode, &r, top, identical);
        all &= identical;
        if (!first->outcome.losses) *first = r;
        else outcome_close(&r.outcome);
    }
    rw_context_destroy(&ctx);
    return all;
}

int main(int argc, char **argv)
{
    struct options o = { .device = RW_DEVICE_CPU, .batch = 4, .seq = 128, .steps = 20, .compare = 1 };
    set_preset(&o, "tiny");
    const int n = read_options(&o, argc, argv);
    char why[512];
    if (rw_device_check(o.device, why, sizeof why)) {
        fprintf(stderr, "train_step: device %s: %s\n", rw_device_name(o.device), why);
        return 2;
    }
    struct limits top = { 0 };
    struct row first = { 0 };
    bool all = true;
    if (o.ceiling) {
        must(NULL, limit_matmul(&(rw_context_params){ .device = o.device }, o.model.dtype, &top.tflops),
             "measuring the rate of products");
        must(NULL, limit_copy(o.device, &top.gbs), "measuring the rate of copies");
    }
    if (n == argc) {
        fprintf(stderr, "train_step: expected a policy, got none; usage: train_step [OPTION]... POLICY...\n");
        return 2;
    }
    for (int i = n; i < argc; i++) all &= run_policy(&o, argv[i], &top, &first);
    outcome_close(&first.outcome);
    return answer_end("train_step", all ? 0 : 1);
}
