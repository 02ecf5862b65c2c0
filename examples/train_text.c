/*
 * Trains a small GPT on any file, byte by byte: a template for other trainers.
 *
 *   train_text [--data FILE] [--policy P] [--steps N] [--layers N] [--width N] [--seq N] [--batch N] [--load FILE]
 *              [--save FILE] [--dtype f32|bf16] [--log FILE] [--dashboard FILE] [--sample N] [--temperature X]
 *              [--seed N] [--quick]
 */
#include "train_gpt/dashboard.h"
#include "train_gpt/finite_weights.h"
#include "train_gpt/paths.h"
#include "train_gpt/signals.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VOCAB = 256, HEAD = 32, MAX_LAYERS = 32 };

/* Exit statuses besides 0, 1 and 2: a loss or weights that are NaN or infinite; 128 plus the signal's number. */
enum { ENDED_UNUSED = 2, ENDED_WRONG = 3, ENDED_BY_SIGNAL = 128 };

static const char usage[] =
    "train_text: trains a small GPT on any file, byte by byte, and lets it write.\n\n"
    "  --data FILE         its last tenth is for the validation loss, every hundred steps and at the end [the shipped\n"
    "                      text]\n"
    "  --policy P          what is kept for backward: none, full, selective:mlp, uniform:2 ... [full]\n"
    "  --steps N           [200]\n"
    "  --layers N --width N --seq N --batch N   [4, 128, 128, 8]; the width is a multiple of 32\n"
    "  --dtype f32|bf16    [f32]\n"
    "  --load FILE --save FILE   weights before and after, safetensors. A loss or weights that are not finite: status\n"
    "                      3, nothing is saved. SIGINT, SIGTERM and SIGHUP finish the step and save: status 130, 143\n"
    "                      and 129\n"
    "  --log FILE          a line of JSON for each step; it is added to\n"
    "  --dashboard FILE    a page for a browser, renewed while the run goes on\n"
    "  --sample N          bytes that the model writes at the end [300]\n"
    "  --temperature X     [0.8]\n"
    "  --seed N            of weights, dropout, windows of the text and the sample [42]\n"
    "  --quick             three steps of a tiny model\n";

static struct {
    const char *data, *policy, *load, *save, *log, *dashboard;
    int steps, layers, width, seq, batch, sample, seed;
    double temperature;
    rw_dtype dtype;
} o = { .data = REWIND_DATA, .policy = "full", .steps = 200, .layers = 4, .width = 128, .seq = 128, .batch = 8,
        .sample = 300, .seed = 42, .temperature = 0.8 };

static struct gpt {
    rw_tensor *table, *positions, *norm_w, *norm_b;
    struct {
        rw_tensor *norm1_w, *norm1_b, *qkv, *proj, *norm2_w, *norm2_b, *up, *down;
    } layer[MAX_LAYERS];
} gpt;

static rw_tensor *weight(rw_context *ctx, int l, const char *name, rw_shape shape, double std)
{
    char full[64];
    snprintf(full, sizeof full, "%d.%s", l, name);
    rw_tensor *const p = rw_param(ctx, full, o.dtype, shape);
    if (p && shape.rank == 1) rw_init_constant(p, std);
    else if (p) rw_init_normal(p, 0, std);
    return p;
}

/* Creates the parameters, initialized as in GPT-2. */
static void make_model(rw_context *ctx)
{
    const int w = o.width;
    const double residual = 0.02 / sqrt(2.0 * o.layers);
    gpt.table = weight(ctx, 0, "table", RW_SHAPE(VOCAB, w), 0.02);
    gpt.positions = weight(ctx, 0, "positions", RW_SHAPE(o.seq, w), 0.02);
    for (int l = 0; l < o.layers; l++) {
        gpt.layer[l].norm1_w = weight(ctx, l, "norm1.weight", RW_SHAPE(w), 1);
        gpt.layer[l].norm1_b = weight(ctx, l, "norm1.bias", RW_SHAPE(w), 0);
        gpt.layer[l].qkv = weight(ctx, l, "qkv", RW_SHAPE(3 * w, w), 0.02);
        gpt.layer[l].proj = weight(ctx, l, "proj", RW_SHAPE(w, w), residual);
        gpt.layer[l].norm2_w = weight(ctx, l, "norm2.weight", RW_SHAPE(w), 1);
        gpt.layer[l].norm2_b = weight(ctx, l, "norm2.bias", RW_SHAPE(w), 0);
        gpt.layer[l].up = weight(ctx, l, "up", RW_SHAPE(4 * w, w), 0.02);
        gpt.layer[l].down = weight(ctx, l, "down", RW_SHAPE(w, 4 * w), residual);
    }
    gpt.norm_w = weight(ctx, o.layers, "norm.weight", RW_SHAPE(w), 1);
    gpt.norm_b = weight(ctx, o.layers, "norm.bias", RW_SHAPE(w), 0);
}

/* Layer l of the transformer: attention and MLP, each after a norm and with a residual sum. */
static rw_tensor *block(rw_tape *t, rw_tensor *x, int l, int batch, int seq, float dropout)
{
    const int heads = o.width / HEAD;
    rw_tensor *part[3];
    rw_tensor *h = rw_layernorm(t, x, gpt.layer[l].norm1_w, gpt.layer[l].norm1_b, 1e-5f);
    h = rw_reshape(t, rw_linear(t, h, gpt.layer[l].qkv, RW_NONE), RW_SHAPE(batch, seq, 3 * heads, HEAD));
    if (rw_split(t, h, 2, (const int64_t[]){ heads, heads, heads }, 3, part)) return NULL;
    for (int i = 0; i < 3; i++) part[i] = rw_transpose(t, part[i], 1, 2);
    h = rw_attention(t, part[0], part[1], part[2], &(rw_attention_params){ .causal = true, .dropout = dropout });
    h = rw_reshape(t, rw_transpose(t, h, 1, 2), RW_SHAPE(batch, seq, o.width));
    h = rw_linear(t, h, gpt.layer[l].proj, RW_NONE);
    x = rw_dropout_add(t, h, x, dropout);
    h = rw_layernorm(t, x, gpt.layer[l].norm2_w, gpt.layer[l].norm2_b, 1e-5f);
    h = rw_linear(t, rw_linear_gelu(t, h, gpt.layer[l].up, RW_NONE), gpt.layer[l].down, RW_NONE);
    return rw_dropout_add(t, h, x, dropout);
}

static rw_tensor *logits(rw_tape *t, const int32_t *tokens, int batch, int seq, float dropout)
{
    rw_tensor *x = rw_embedding(
        t, gpt.table, rw_input(t, RW_I32, RW_SHAPE(batch, seq), tokens, (size_t)(batch * seq) * sizeof *tokens));
    x = rw_dropout(t, rw_add(t, x, rw_slice(t, gpt.positions, 0, 0, seq)), dropout);
    for (int l = 0; l < o.layers; l++) {
        ckpt_begin(t, "block");
        x = block(t, x, l, batch, seq, dropout);
        ckpt_end(t);
    }
    return rw_linear(t, rw_layernorm(t, x, gpt.norm_w, gpt.norm_b, 1e-5f), gpt.table, RW_NONE);
}

static unsigned char *read_file(const char *path, size_t *ret_n)
{
    FILE *const f = fopen(path, "rb");
    unsigned char *bytes = NULL;
    if (f && !fseek(f, 0, SEEK_END)) {
        *ret_n = (size_t)ftell(f);
        rewind(f);
        bytes = malloc(*ret_n + 1);
        if (bytes && fread(bytes, 1, *ret_n, f) != *ret_n) *ret_n = 0;
    }
    if (f) fclose(f);
    return bytes;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* splitmix64: the n-th number of a seed, with 64 bits because a text may be longer than the range of rand(). */
static uint64_t number_of(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The training data, and the held-out data. */
struct text {
    const unsigned char *bytes;
    size_t n, held;
};

static void copy_window(const unsigned char *from, int b, int32_t *tokens, int32_t *targets)
{
    const size_t at = (size_t)b * (size_t)o.seq;
    for (int i = 0; i < o.seq; i++) tokens[at + (size_t)i] = from[i], targets[at + (size_t)i] = from[i + 1];
}

/* Random windows of the text, a function of the seed and the step; each byte's target is the next one. */
static void fill_batch(const struct text *x, int step, int32_t *tokens, int32_t *targets)
{
    for (int b = 0; b < o.batch; b++) {
        const uint64_t number = number_of((uint64_t)o.seed, (uint64_t)step * (uint64_t)o.batch + (uint64_t)b);
        copy_window(x->bytes + number % (x->n - (size_t)o.seq), b, tokens, targets);
    }
}

/* Evenly spaced windows of the held-out data: the same for every seed. */
static void fill_held(const struct text *x, int n, int32_t *tokens, int32_t *targets)
{
    const size_t room = x->held - (size_t)o.seq - 1;
    for (int b = 0; b < n; b++)
        copy_window(x->bytes + x->n + (n > 1 ? room / (size_t)(n - 1) * (size_t)b : 0), b, tokens, targets);
}

static const double rate = 1e-3;
static char command[1024]; /* the command line, for the page */

/* Handles the monitor's status: a line of the log that cannot be written is reported, the first time, and training goes
   on. */
static rw_status logged(rw_context *ctx, rw_status status)
{
    static bool said;
    if (status != RW_ERR_IO) return status;
    if (!said) fprintf(stderr, "train_text: %s: training goes on\n", rw_error_message(ctx));
    said = true;
    rw_error_clear(ctx);
    return RW_OK;
}

/* The page marks what is not finite; NaN is unknown there. */
static double drawn(double x)
{
    return isfinite(x) ? x : INFINITY;
}

/* Writes a step's line, prints its alerts, and updates the page. */
static rw_status watch(rw_monitor *m, struct dashboard *page, rw_context *ctx, rw_monitor_values v)
{
    unsigned alerts = 0;
    const rw_status status = logged(ctx, rw_monitor_step(m, &v, &alerts));
    const rw_monitor_numbers n = rw_monitor_get_numbers(m);
    for (unsigned a = 1; a <= alerts; a <<= 1) {
        if (!(alerts & a)) continue;
        char numbers[120];
        rw_monitor_alert x = { (double)NAN, (double)NAN };
        rw_monitor_get_alert(m, a, &x);
        dashboard_describe(numbers, sizeof numbers, rw_alert_name(a), x.value, x.usual);
        fprintf(stderr, "step %4d  %s%s%s\n", (int)v.step, rw_alert_name(a), *numbers ? ": " : "", numbers);
        dashboard_alert(page, (double)v.step, rw_alert_name(a), "", "", numbers);
    }
    dashboard_add(&page->run, (struct dashboard_point){ .step = (double)v.step, .loss = drawn(v.loss),
                                                        .norm = drawn(n.grad_norm), .lr = v.lr,
                                                        .tokens_per_s = v.tokens / v.seconds,
                                                        .weights = n.param_norm, .change = n.update_ratio,
                                                        .scale = NAN });
    rw_memory_stats(ctx, &page->memory);
    return status;
}

/* The page names the command, the model and the device. */
static struct dashboard open_page(const rw_context *ctx)
{
    static char model[120], device[80];
    snprintf(model, sizeof model, "%d layers of width %d, %d bytes, %s; %s", o.layers, o.width, o.seq,
             rw_dtype_name(o.dtype), o.policy);
    const int threads = rw_context_threads(ctx);
    snprintf(device, sizeof device, "%s, %d thread%s", rw_device_name(rw_context_device(ctx)), threads,
             threads > 1 ? "s" : "");
    return (struct dashboard){ .path = o.dashboard, .title = "train_text", .steps = o.steps, .command = command,
                               .model = model, .device = device, .loss_unit = "nats per byte" };
}

static rw_status make_tools(rw_context *ctx, rw_optimizer **opt, rw_monitor **m)
{
    rw_status status = rw_adamw_create(opt, ctx, &(rw_adamw_params){ .lr = rate, .weight_decay = 0.1 });
    if (!status) status = rw_monitor_create(m, ctx, o.log);
    return status ? status : rw_monitor_watch(*m, &(rw_monitor_sources){ .optimizer = *opt });
}

/* Two runs would mix their lines. The lock ends with the process. */
static bool owns_log(void)
{
    bool taken = false;
    if (o.log) path_lock_file(o.log, &taken);
    if (taken) fprintf(stderr, "train_text: --log %.200s: another run writes to this file\n", o.log);
    return !taken;
}

static void print_step(const rw_context *ctx, int step, double loss, double elapsed)
{
    rw_memory m;
    rw_memory_stats(ctx, &m);
    const double done = step + 1.0, left = (o.steps - done) * elapsed / done;
    printf("step %4d of %d  loss %.4f  %6.0f tokens/s  kept %.1f MiB  peak %.1f MiB  %d:%02d left\n", step, o.steps,
           loss, done * o.batch * o.seq / elapsed, (double)m.kept / 1048576, (double)m.measured_peak / 1048576,
           (int)left / 60, (int)left % 60);
}

static rw_tensor *record_loss(rw_tape *t, int32_t *tokens, int32_t *targets, float dropout)
{
    rw_tensor *const y = rw_input(t, RW_I32, RW_SHAPE(o.batch, o.seq), targets,
                                  (size_t)(o.batch * o.seq) * sizeof *targets);
    return rw_cross_entropy(t, logits(t, tokens, o.batch, o.seq, dropout), y);
}

/* Without gradients nothing is kept for backward, and without dropout nothing is drawn. */
static rw_status validate(rw_monitor *m, struct dashboard *page, rw_tape *t, const struct text *text, int step,
                          int32_t *tokens)
{
    int32_t *const targets = tokens + (size_t)o.batch * (size_t)o.seq;
    fill_held(text, o.batch, tokens, targets);
    rw_no_grad_begin(t);
    const double loss = rw_item(t, record_loss(t, tokens, targets, 0));
    const rw_status status = rw_error_status(rw_tape_context(t));
    rw_tape_reset(t);
    if (status) return status;
    printf("step %4d  validation loss %.4f\n", step, loss);
    dashboard_add(&page->validation, (struct dashboard_point){ .step = step, .loss = drawn(loss) });
    return logged(rw_tape_context(t), rw_monitor_validation(m, (uint64_t)step, loss));
}

static void show(struct dashboard *page, const rw_monitor *monitor, bool last)
{
    if (page->path && !dashboard_write(page, monitor, last))
        fprintf(stderr, "train_text: %s: %s\n", page->path, strerror(errno));
}

/* After `steps` steps: a run whose last loss, or whose weights, are not finite is not a success. */
static rw_status judge_end(rw_context *ctx, int steps, double loss, int *ended)
{
    bool finite = true;
    const rw_status status = weights_are_finite(ctx, &finite);
    if (caught_signal()) *ended = ENDED_BY_SIGNAL + caught_signal();
    if (status || (finite && isfinite(loss))) return status;
    *ended = ENDED_WRONG;
    fprintf(stderr, "train_text: after %d steps the %s not finite\n", steps, finite ? "loss is" : "weights are");
    return RW_OK;
}

/* The training loop, with evaluation, alerts and the update. It ends early after a signal, or a loss that is not
   finite. *ended: the exit status then. *made: number of steps. */
static rw_status train(rw_context *ctx, rw_tape *t, const struct text *text, int *made, int *ended)
{
    rw_optimizer *opt = NULL;
    rw_monitor *monitor = NULL;
    struct dashboard page = open_page(ctx);
    rw_status status = make_tools(ctx, &opt, &monitor);
    int32_t *const tokens = malloc(2 * sizeof *tokens * (size_t)o.batch * (size_t)o.seq);
    if (!tokens) status = RW_ERR_MEMORY;
    if (!status && !owns_log()) *ended = ENDED_UNUSED;
    double began = seconds(), at = began, value = 0;
    int step = 0;
    for (; !status && !*ended && step < o.steps && isfinite(value) && !caught_signal(); step++) {
        int32_t *const targets = tokens + (size_t)o.batch * (size_t)o.seq;
        fill_batch(text, step, tokens, targets);
        rw_tensor *const loss = record_loss(t, tokens, targets, 0.1f);
        if (step == 0) { /* checks that recompute is bit-identical on this machine, with this model */
            ckpt_report verified;
            status = ckpt_verify(t, loss, &verified);
            if (!status || status == RW_ERR_MISMATCH) ckpt_report_print(&verified, stdout);
            began = at = seconds();
        }
        double norm = 0;
        if (!status) status = rw_backward(t, loss);
        if (!status) status = rw_clip_grad_norm(ctx, 1.0, &norm);
        if (!status) value = rw_item(t, loss);
        if (!status) status = rw_optimizer_step(opt);
        rw_zero_grad(ctx);
        rw_tape_reset(t);
        const double from = at;
        at = seconds();
        if (!status)
            status = watch(monitor, &page, ctx,
                           (rw_monitor_values){ .step = (uint64_t)step, .loss = value, .grad_norm = norm, .lr = rate,
                                                .tokens = (double)o.batch * o.seq, .seconds = at - from });
        const bool last = step + 1 == o.steps;
        if (!status && (step % 10 == 0 || last)) print_step(ctx, step, value, at - began);
        if (!status && (last || (step + 1) % 100 == 0)) {
            const double before = seconds();
            status = validate(monitor, &page, t, text, step, tokens);
            began += seconds() - before; /* the time of an evaluation is not part of a step's */
            at += seconds() - before;
        }
        show(&page, monitor, false);
    }
    if (page.run.n) show(&page, monitor, true);
    if (!status) status = judge_end(ctx, step, value, ended);
    *made = step;
    free(tokens);
    dashboard_finish(&page);
    rw_monitor_destroy(&monitor);
    rw_optimizer_destroy(&opt);
    return status;
}

/* Draws one byte at a time from the model's distribution; a temperature below 1 sharpens it. */
static rw_status sample(rw_tape *t)
{
    int32_t *const context = calloc((size_t)o.seq, sizeof *context);
    if (!context) return RW_ERR_MEMORY;
    int n = 1;
    rw_status status = RW_OK;
    context[0] = '\n';
    for (int k = 0; !status && k < o.sample && !caught_signal(); k++) {
        float p[VOCAB];
        rw_tensor *y = rw_slice(t, logits(t, context, 1, n, 0), 1, n - 1, n);
        y = rw_softmax(t, rw_scale(t, rw_cast(t, y, RW_F32), 1 / o.temperature), -1);
        status = rw_read(t, y, p, sizeof p);
        rw_tape_reset(t);
        if (status) break;
        double r = (double)(number_of((uint64_t)o.seed + 1, (uint64_t)k) >> 11) * 0x1p-53;
        int c = 0;
        while (c < VOCAB - 1 && (r -= (double)p[c]) >= 0) c++;
        putchar(c);
        if (n == o.seq) memmove(context, context + 1, (size_t)--n * sizeof *context);
        context[n++] = c;
    }
    putchar('\n');
    free(context);
    return status;
}

static int refuse(const char *option, const char *wanted)
{
    fprintf(stderr, "train_text: --%s takes %s, not \"%s\"\n", option, wanted, optarg);
    exit(2);
}

static double number(const char *option, double least, double most)
{
    char *end, wanted[64];
    const bool whole = least == floor(least);
    const double x = strtod(optarg, &end);
    if (end != optarg && !*end && x >= least && x <= most && (!whole || x == floor(x))) return x;
    snprintf(wanted, sizeof wanted, "a %snumber from %g to %g", whole ? "whole " : "", least, most);
    return refuse(option, wanted);
}

/* Checks files before hours of training and not after. */
static bool check_files(void)
{
    const struct path_option files[] = { { "--data", o.data, PATH_INPUT },
                                         { "--load", o.load, PATH_INPUT },
                                         { "--save", o.save, PATH_OUTPUT },
                                         { "--dashboard", o.dashboard, PATH_OUTPUT },
                                         { "--log", o.log, PATH_LOG } };
    enum { FILES = sizeof files / sizeof *files };
    char text[400];
    for (int i = 0; i < FILES; i++) {
        const char *const why = path_option_fault(&files[i]);
        if (why) fprintf(stderr, "train_text: %s %s: %s\n", files[i].option, files[i].path, why);
        if (why) return false;
    }
    const char *const shared = path_shared_fault(files, FILES, text, sizeof text);
    if (shared) fprintf(stderr, "train_text: %s\n", shared);
    return !shared;
}

/* Parses the command line. */
static bool read_options(int argc, char **argv)
{
    static const struct option names[] = { { "data", 1, 0, 'd' }, { "policy", 1, 0, 'p' }, { "load", 1, 0, 'l' },
        { "save", 1, 0, 'v' }, { "log", 1, 0, 'g' }, { "dashboard", 1, 0, 'a' }, { "dtype", 1, 0, 'y' },
        { "steps", 1, 0, 's' }, { "layers", 1, 0, 'n' },
        { "width", 1, 0, 'w' }, { "seq", 1, 0, 'q' }, { "batch", 1, 0, 'b' }, { "sample", 1, 0, 'm' },
        { "temperature", 1, 0, 't' }, { "seed", 1, 0, 'e' }, { "quick", 0, 0, 'k' }, { "help", 0, 0, 'h' }, { 0 } };
    for (int c, i = 0; (c = getopt_long(argc, argv, "", names, &i)) != -1;) {
        if (c == 'd') o.data = optarg;
        else if (c == 'p') o.policy = optarg;
        else if (c == 'l') o.load = optarg;
        else if (c == 'v') o.save = optarg;
        else if (c == 'g') o.log = optarg;
        else if (c == 'a') o.dashboard = optarg;
        else if (c == 'y' && !strcmp(optarg, "f32")) o.dtype = RW_F32;
        else if (c == 'y') o.dtype = !strcmp(optarg, "bf16") ? RW_BF16 : refuse("dtype", "f32 or bf16");
        else if (c == 's') o.steps = (int)number(names[i].name, 0, 1e9);
        else if (c == 'n') o.layers = (int)number(names[i].name, 1, MAX_LAYERS);
        else if (c == 'w') o.width = (int)number(names[i].name, HEAD, 65536);
        else if (c == 'q') o.seq = (int)number(names[i].name, 2, 16384);
        else if (c == 'b') o.batch = (int)number(names[i].name, 1, 16384);
        else if (c == 'm') o.sample = (int)number(names[i].name, 0, 1e9);
        else if (c == 't') o.temperature = number(names[i].name, 0.01, 100);
        else if (c == 'e') o.seed = (int)number(names[i].name, 0, 1e9);
        else if (c == 'k') o.steps = 3, o.width = 64, o.seq = 32, o.sample = 20;
        else if (c == 'h') exit(fputs(usage, stdout) < 0);
        else return false;
    }
    if (optind < argc) {
        fprintf(stderr, "train_text: unknown argument \"%s\"; --help lists the options\n", argv[optind]);
        return false;
    }
    if (o.width % HEAD) {
        fprintf(stderr, "train_text: --width: expected a multiple of %d, got %d\n", HEAD, o.width);
        return false;
    }
    return check_files();
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* a step's line is printed at its end, also to a pipe */
    dashboard_command(command, sizeof command, argc, argv);
    if (!read_options(argc, argv)) return 2;
    catch_signals();
    size_t n = 0;
    unsigned char *const text = read_file(o.data, &n);
    const struct text parts = { text, n - n / 10, n / 10 };
    if (!text || parts.held <= (size_t)o.seq + 1) {
        fprintf(stderr, "train_text: --data %s: expected a readable file whose last tenth has %d bytes or more\n",
                o.data, o.seq + 2);
        return 2;
    }
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_status status = rw_context_create(&ctx, &(rw_context_params){ .seed = (uint64_t)o.seed });
    if (!status) {
        make_model(ctx);
        status = rw_tape_create(&t, ctx);
    }
    if (!status) status = ckpt_set_policy(t, o.policy);
    if (!status && o.load) status = rw_load(ctx, o.load);
    int made = 0, ended = 0;
    if (!status) status = train(ctx, t, &parts, &made, &ended);
    if (!status && !ended) status = sample(t);
    if (!ended && caught_signal()) ended = ENDED_BY_SIGNAL + caught_signal();
    const bool good = ended != ENDED_WRONG && (made || !ended); /* a signal may come before the first step */
    if (!status && o.save && good) status = rw_save(ctx, o.save);
    else if (!status && o.save) fprintf(stderr, "train_text: --save %s: not saved\n", o.save);
    const char *const message = rw_error_message(ctx);
    if (status) fprintf(stderr, "train_text: %s\n", *message ? message : rw_status_name(status));
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    free(text);
    const bool printed = !fflush(stdout) && !ferror(stdout);
    if (!printed) fprintf(stderr, "train_text: the standard output could not be written\n");
    return status ? 1 : ended ? ended : !printed;
}
