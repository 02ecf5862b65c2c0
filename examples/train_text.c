/*
 * Trains a small GPT on any file, byte by byte: a place to start from.
 *
 *   train_text [--data FILE] [--policy P] [--steps N] [--layers N] [--width N] [--seq N] [--batch N] [--dtype f32|bf16]
 *              [--load FILE] [--save FILE] [--sample N] [--quick]
 */
#include <rewind/rewind.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VOCAB = 256, HEAD = 32, MAX_LAYERS = 32 };

static struct {
    const char *data, *policy, *load, *save;
    int steps, layers, width, seq, batch, sample;
    rw_dtype dtype;
} o = { .data = REWIND_DATA, .policy = "full", .steps = 200, .layers = 4, .width = 128, .seq = 128, .batch = 8, .sample = 300 };

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

static rw_tensor *block(rw_tape *t, rw_tensor *x, int l, int batch, int seq, float dropout)
{
    const int heads = o.width / HEAD;
    rw_tensor *part[3];
    rw_tensor *h = rw_layernorm(t, x, gpt.layer[l].norm1_w, gpt.layer[l].norm1_b, 1e-5f);
    h = rw_reshape(t, rw_linear(t, h, gpt.layer[l].qkv, RW_NONE), RW_SHAPE(batch, seq, 3 * heads, HEAD));
    if (rw_split(t, h, 2, (const int64_t[]){ heads, heads, heads }, 3, part)) return NULL;
    for (int i = 0; i < 3; i++) part[i] = rw_transpose(t, part[i], 1, 2);
    h = rw_attention(t, part[0], part[1], part[2], &(rw_attention_params){ .causal = true, .dropout = dropout });
    h = rw_linear(t, rw_reshape(t, rw_transpose(t, h, 1, 2), RW_SHAPE(batch, seq, o.width)), gpt.layer[l].proj, RW_NONE);
    x = rw_add(t, x, rw_dropout(t, h, dropout));
    h = rw_layernorm(t, x, gpt.layer[l].norm2_w, gpt.layer[l].norm2_b, 1e-5f);
    h = rw_linear(t, rw_gelu_tanh(t, rw_linear(t, h, gpt.layer[l].up, RW_NONE)), gpt.layer[l].down, RW_NONE);
    return rw_add(t, x, rw_dropout(t, h, dropout));
}

static rw_tensor *logits(rw_tape *t, const int32_t *tokens, int batch, int seq, float dropout)
{
    rw_tensor *x = rw_embedding(t, gpt.table, rw_input(t, RW_I32, RW_SHAPE(batch, seq), tokens));
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

static rw_status train(rw_context *ctx, rw_tape *t, const unsigned char *text, size_t n)
{
    rw_adamw *opt = NULL;
    rw_status status = rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .lr = 1e-3, .weight_decay = 0.1 });
    int32_t *const tokens = malloc(2 * sizeof *tokens * (size_t)(o.batch * o.seq)), *const targets = tokens + o.batch * o.seq;
    const double begin = seconds();
    for (int step = 0; !status && step < o.steps; step++) {
        for (int b = 0; b < o.batch; b++) {
            const size_t at = (size_t)rand() % (n - (size_t)o.seq);
            for (int i = 0; i < o.seq; i++) tokens[b * o.seq + i] = text[at + (size_t)i], targets[b * o.seq + i] = text[at + (size_t)i + 1];
        }
        rw_tensor *const loss = rw_cross_entropy(t, logits(t, tokens, o.batch, o.seq, 0.1f),
                                                 rw_input(t, RW_I32, RW_SHAPE(o.batch, o.seq), targets));
        if (step == 0) { /* is recompute on this machine, with this model, the same to the last bit? */
            ckpt_report report;
            status = ckpt_verify(t, loss, &report);
            if (!status || status == RW_ERR_MISMATCH) ckpt_report_print(&report, stdout);
        }
        if (!status) status = rw_backward(t, loss);
        if (!status) status = rw_clip_grad_norm(ctx, 1.0, NULL);
        const double value = status ? 0 : rw_item(t, loss);
        if (!status) status = rw_adamw_step(opt);
        rw_zero_grad(ctx);
        rw_tape_reset(t);
        if (status || (step % 10 && step + 1 < o.steps)) continue;
        rw_memory m;
        rw_memory_stats(ctx, &m);
        printf("step %4d  loss %.4f  %6.0f tokens/s  kept %.1f MiB  peak %.1f MiB\n", step, value,
               (step + 1) * o.batch * o.seq / (seconds() - begin), (double)m.kept / 1048576, (double)m.measured_peak / 1048576);
    }
    free(tokens);
    rw_adamw_destroy(&opt);
    return status;
}

/* Draws bytes one at a time from the model's own distribution at temperature 0.8. */
static rw_status sample(rw_tape *t)
{
    int32_t *const context = calloc((size_t)o.seq, sizeof *context);
    int n = 1;
    rw_status status = RW_OK;
    context[0] = '\n';
    for (int k = 0; !status && k < o.sample; k++) {
        float p[VOCAB];
        rw_tensor *y = rw_slice(t, logits(t, context, 1, n, 0), 1, n - 1, n);
        y = rw_softmax(t, rw_scale(t, rw_cast(t, y, RW_F32), 1 / 0.8), -1);
        status = rw_read(t, y, p, sizeof p);
        rw_tape_reset(t);
        double r = rand() / (RAND_MAX + 1.0);
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

static bool read_options(int argc, char **argv)
{
    const struct {
        const char *name;
        const char **text;
        int *number;
    } options[] = { { "--data", &o.data, 0 },      { "--policy", &o.policy, 0 }, { "--load", &o.load, 0 },   { "--save", &o.save, 0 },
                    { "--steps", 0, &o.steps },    { "--layers", 0, &o.layers }, { "--width", 0, &o.width }, { "--seq", 0, &o.seq },
                    { "--batch", 0, &o.batch },    { "--sample", 0, &o.sample } };
    for (int i = 1; i < argc; i++) {
        bool known = false;
        if (!strcmp(argv[i], "--quick")) {
            o.steps = 3, o.width = 64, o.seq = 32, o.sample = 20, known = true;
        } else if (i + 1 < argc && !strcmp(argv[i], "--dtype")) {
            o.dtype = !strcmp(argv[++i], "bf16") ? RW_BF16 : RW_F32, known = true;
        }
        for (size_t k = 0; !known && i + 1 < argc && k < sizeof options / sizeof *options; k++) {
            if (strcmp(argv[i], options[k].name)) continue;
            if (options[k].text) *options[k].text = argv[++i];
            else *options[k].number = atoi(argv[++i]);
            known = true;
        }
        if (!known) return fprintf(stderr, "train_text: unknown option %s\n", argv[i]), false;
    }
    if (o.layers < 1 || o.layers > MAX_LAYERS || o.width < HEAD || o.width % HEAD || o.seq < 2 || o.batch < 1)
        return fprintf(stderr, "train_text: 1 to %d layers, a width that is a multiple of %d\n", MAX_LAYERS, HEAD), false;
    return true;
}

int main(int argc, char **argv)
{
    if (!read_options(argc, argv)) return 2;
    size_t n = 0;
    unsigned char *const text = read_file(o.data, &n);
    if (!text || n <= (size_t)o.seq + 1) {
        fprintf(stderr, "train_text: %s: cannot be read, or is shorter than %d bytes\n", o.data, o.seq + 2);
        return 2;
    }
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_status status = rw_context_create(&ctx, &(rw_context_params){ .seed = 42 });
    if (!status) {
        make_model(ctx);
        status = rw_tape_create(&t, ctx);
    }
    if (!status) status = ckpt_set_policy(t, o.policy);
    if (!status && o.load) status = rw_load(ctx, o.load);
    if (!status) status = train(ctx, t, text, n);
    if (!status) status = sample(t);
    if (!status && o.save) status = rw_save(ctx, o.save);
    if (status) fprintf(stderr, "train_text: %s\n", *rw_error_message(ctx) ? rw_error_message(ctx) : rw_status_name(status));
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    free(text);
    return status ? 1 : 0;
}
