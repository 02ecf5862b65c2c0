/*
 * Fine-tunes a GPT with LoRA on a 4-bit base (QLoRA: arXiv 2305.14314): the base's linear layers are frozen NF4
 * weights, dequantized one panel at a time in each product and again in its backward; each has a pair of small trained
 * matrices in parallel. Under the policy "full" dequantization is replayed with the rest of a block, and the gradients
 * have the same bytes as under "none".
 *
 *   lora [--quick] [STEPS]
 *
 * The base is trained here, on the unmodified text; then the adapters learn capital letters. The context's memory is
 * printed together with the formula, and a difference is an error.
 */
#include <rewind/rewind.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 256, WIDTH = 64, HIDDEN = 256, HEADS = 4, LAYERS = 2, SEQ = 32, BATCH = 4, RANK = 4 };
enum linear { QKV, PROJ, UP, DOWN, LINEARS };

static const struct {
    const char *name;
    int64_t out, in;
} shapes[LINEARS] = { { "qkv", 3 * WIDTH, WIDTH }, { "proj", WIDTH, WIDTH }, { "up", HIDDEN, WIDTH },
                      { "down", WIDTH, HIDDEN } };

/* A layer of the base is dense during its training; then it is quantized, with adapters added. */
struct model {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *table, *positions, *norm[2 * LAYERS + 1];
    rw_tensor *dense[LAYERS][LINEARS];
    rw_quantized codes[LAYERS][LINEARS];
    rw_tensor *a[LAYERS][LINEARS], *b[LAYERS][LINEARS]; /* [RANK, in], [out, RANK] */
    bool frozen;
};

static void check(const struct model *m, rw_status status)
{
    if (!status && !rw_error_status(m->ctx)) return;
    fprintf(stderr, "lora: %s\n", rw_error_message(m->ctx));
    exit(1);
}

static rw_tensor *named(const struct model *m, const char *name, int l, rw_shape shape, bool trained)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%d", name, l);
    rw_tensor *const x = trained ? rw_param(m->ctx, full, RW_F32, shape) : rw_buffer(m->ctx, full, RW_F32, shape);
    check(m, RW_OK);
    return x;
}

/* One linear layer: dense while the base is trained, then quantized with adapters. */
static void make_linear(struct model *m, int l, int i)
{
    char name[64];
    const rw_shape shape = RW_SHAPE(shapes[i].out, shapes[i].in);
    if (!m->frozen) {
        m->dense[l][i] = named(m, shapes[i].name, l, shape, true);
        rw_init_normal(m->dense[l][i], 0, 0.05);
        return;
    }
    snprintf(name, sizeof name, "%s.%d", shapes[i].name, l);
    check(m, rw_quantized_create(m->ctx, name, RW_NF4, shape, &m->codes[l][i]));
    snprintf(name, sizeof name, "%s.lora_a", shapes[i].name);
    m->a[l][i] = named(m, name, l, RW_SHAPE(RANK, shapes[i].in), true);
    snprintf(name, sizeof name, "%s.lora_b", shapes[i].name);
    m->b[l][i] = named(m, name, l, RW_SHAPE(shapes[i].out, RANK), true); /* zero: the model starts equal to the base */
    rw_init_normal(m->a[l][i], 0, 0.1);
}

/* Creates a context and the model in it; frozen: the quantized base with adapters. */
static void make_model(struct model *m, bool frozen)
{
    memset(m, 0, sizeof *m);
    m->frozen = frozen;
    if (rw_context_create(&m->ctx, &(rw_context_params){ .seed = 42 }) || rw_tape_create(&m->t, m->ctx)) {
        fprintf(stderr, "lora: %s\n", rw_error_message(m->ctx));
        exit(1);
    }
    m->table = named(m, "table", 0, RW_SHAPE(VOCAB, WIDTH), !frozen);
    m->positions = named(m, "positions", 0, RW_SHAPE(SEQ, WIDTH), !frozen);
    for (int i = 0; i < 2 * LAYERS + 1; i++) {
        m->norm[i] = named(m, "norm", i, RW_SHAPE(WIDTH), !frozen);
        rw_init_constant(m->norm[i], 1);
    }
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < LINEARS; i++) make_linear(m, l, i);
    rw_init_normal(m->table, 0, 0.05), rw_init_normal(m->positions, 0, 0.05);
    check(m, ckpt_set_policy(m->t, "full"));
}

static rw_tensor *linear(struct model *m, rw_tensor *x, int l, int i)
{
    if (!m->frozen) return rw_linear(m->t, x, m->dense[l][i], RW_NONE);
    rw_tensor *const base = rw_linear_quantized(m->t, x, &m->codes[l][i], RW_NONE);
    rw_tensor *const low = rw_linear(m->t, x, m->a[l][i], RW_NONE);
    return rw_linear_add(m->t, low, m->b[l][i], RW_NONE, base);
}

static rw_tensor *block(struct model *m, rw_tensor *x, int l)
{
    rw_tape *const t = m->t;
    rw_tensor *part[3];
    rw_tensor *h = linear(m, rw_rmsnorm(t, x, m->norm[2 * l], 1e-5), l, QKV);
    h = rw_reshape(t, h, RW_SHAPE(BATCH, SEQ, 3 * HEADS, WIDTH / HEADS));
    if (rw_split(t, h, 2, (const int64_t[]){ HEADS, HEADS, HEADS }, 3, part)) return NULL;
    for (int i = 0; i < 3; i++) part[i] = rw_transpose(t, part[i], 1, 2);
    h = rw_attention(t, part[0], part[1], part[2], &(rw_attention_params){ .causal = true });
    h = rw_reshape(t, rw_transpose(t, h, 1, 2), RW_SHAPE(BATCH, SEQ, WIDTH));
    x = rw_add(t, x, linear(m, h, l, PROJ));
    h = linear(m, rw_rmsnorm(t, x, m->norm[2 * l + 1], 1e-5), l, UP);
    return rw_add(t, x, linear(m, rw_dropout(t, rw_gelu(t, h), 0.1), l, DOWN));
}

static rw_tensor *loss_of(struct model *m, const int32_t *in, const int32_t *out)
{
    rw_tensor *x = rw_embedding(m->t, m->table,
                                rw_input(m->t, RW_I32, RW_SHAPE(BATCH, SEQ), in, BATCH * SEQ * sizeof *in));
    x = rw_add(m->t, x, m->positions);
    for (int l = 0; l < LAYERS; l++) {
        ckpt_begin(m->t, "block");
        x = block(m, x, l);
        ckpt_end(m->t);
    }
    x = rw_linear(m->t, rw_rmsnorm(m->t, x, m->norm[2 * LAYERS], 1e-5), m->table, RW_NONE);
    return rw_cross_entropy(m->t, x, rw_input(m->t, RW_I32, RW_SHAPE(BATCH, SEQ), out, BATCH * SEQ * sizeof *out));
}

/* ---- training ---- */

static unsigned char *text;
static size_t length;

static void read_text(void)
{
    FILE *const f = fopen(REWIND_DATA, "rb");
    text = malloc(1 << 20);
    length = f && text ? fread(text, 1, 1 << 20, f) : 0;
    if (f) fclose(f);
    if (length < 2 * SEQ) {
        fprintf(stderr, "lora: %s cannot be read\n", REWIND_DATA);
        exit(1);
    }
}

/* Windows of the text, in capitals or unmodified; each byte's target is the next one. */
static void fill_batch(uint64_t step, bool capitals, int32_t *in, int32_t *out)
{
    for (int b = 0; b < BATCH; b++) {
        const size_t from = (size_t)((step * BATCH + (uint64_t)b) * 0x9e3779b97f4a7c15u >> 20) % (length - SEQ - 1);
        for (int i = 0; i < SEQ; i++) {
            in[b * SEQ + i] = capitals ? toupper(text[from + (size_t)i]) : text[from + (size_t)i];
            out[b * SEQ + i] = capitals ? toupper(text[from + (size_t)i + 1]) : text[from + (size_t)i + 1];
        }
    }
}

/* Trains all trainable parameters. Returns the mean loss of the last five steps; ret_first: of the first. */
static double train(struct model *m, int steps, bool capitals, double lr, double *ret_first)
{
    static int32_t in[BATCH * SEQ], out[BATCH * SEQ];
    rw_optimizer *opt = NULL;
    double last = 0;
    check(m, rw_adamw_create(&opt, m->ctx, &(rw_adamw_params){ .lr = lr }));
    for (int step = 0; step < steps; step++) {
        fill_batch((uint64_t)step, capitals, in, out);
        rw_tensor *const loss = loss_of(m, in, out);
        check(m, rw_backward(m->t, loss));
        const double value = rw_item(m->t, loss);
        if (!step) *ret_first = value;
        if (step >= steps - 5) last += value / 5;
        if (step % 50 == 0 || step == steps - 1) printf("step %4d  loss %.4f\n", step, value);
        check(m, rw_clip_grad_norm(m->ctx, 1, NULL));
        check(m, rw_optimizer_step(opt));
        rw_zero_grad(m->ctx);
        if (step < steps - 1) rw_tape_reset(m->t);
    }
    if (m->frozen) { /* verifies the last step: gradients and every replayed value, byte for byte */
        rw_tape_reset(m->t);
        check(m, ckpt_verify(m->t, loss_of(m, in, out), NULL));
    }
    rw_optimizer_destroy(&opt);
    rw_tape_reset(m->t);
    return last;
}

static void *values_of(const struct model *m, rw_tensor *x, size_t *ret_bytes)
{
    *ret_bytes = rw_tensor_bytes(x);
    void *const data = malloc(*ret_bytes);
    if (!data) exit(1);
    check(m, rw_read(NULL, x, data, *ret_bytes));
    return data;
}

/* Copies the base's tables and norms, and quantizes its linear layers. */
static void freeze(struct model *to, const struct model *from)
{
    size_t bytes;
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < LINEARS; i++) {
            void *const data = values_of(from, from->dense[l][i], &bytes);
            check(to, rw_quantized_write(&to->codes[l][i], RW_F32, data, bytes));
            free(data);
        }
    for (int i = -2; i < 2 * LAYERS + 1; i++) {
        rw_tensor *const x = i == -2 ? from->table : i == -1 ? from->positions : from->norm[i];
        void *const data = values_of(from, x, &bytes);
        check(to, rw_write(i == -2 ? to->table : i == -1 ? to->positions : to->norm[i], data, bytes));
        free(data);
    }
}

/* ---- memory ---- */

static bool same(const char *what, size_t has, size_t formula)
{
    printf("%-34s %9zu bytes, by the formula %9zu%s\n", what, has, formula, has == formula ? "" : "  DIFFERENT");
    return has == formula;
}

/* Compares the memory of the quantized base and its adapters with the documented formula. */
static bool memory_is_the_formula_s(const struct model *m)
{
    size_t codes = 0, held = 0, adapters = 0, numbers = 0;
    rw_memory memory;
    check(m, rw_memory_stats(m->ctx, &memory));
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < LINEARS; i++) {
            const size_t n = (size_t)(shapes[i].out * shapes[i].in);
            numbers += n;
            held += rw_tensor_bytes(m->codes[l][i].words);
            codes += n / 2 + 4 * ((n + 255) / 256) + 4 + 4 * ((n + 16383) / 16384);
            adapters += 4 * RANK * (size_t)(shapes[i].out + shapes[i].in);
        }
    const size_t rest = 4 * (size_t)(VOCAB * WIDTH + SEQ * WIDTH + (2 * LAYERS + 1) * WIDTH);
    bool ok = same("base in codes", held, codes);
    ok &= same("base, adapters, tables and norms", memory.parameters, codes + adapters + rest);
    ok &= same("gradients: the adapters' alone", memory.gradients, adapters);
    ok &= same("activations, measured and predicted", memory.measured_peak, memory.predicted_peak);
    printf("%.4f bits a weight of the base; in float32 with gradient and moments it took %zu bytes\n",
           8 * (double)codes / (double)numbers, 16 * numbers);
    return ok;
}

int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "--quick");
    const int steps = quick ? 20 : argc > 1 ? atoi(argv[1]) : 400;
    struct model base, tuned;
    double first = 0, begin = 0;
    if (steps < 10) {
        fprintf(stderr, "usage: lora [--quick] [STEPS], 10 at least\n");
        return 2;
    }
    read_text();
    make_model(&base, false);
    printf("the base, on the text as it is\n");
    const double trained = train(&base, steps, false, 2e-3, &first);
    make_model(&tuned, true);
    freeze(&tuned, &base);
    rw_tape_destroy(&base.t);
    rw_context_destroy(&base.ctx);
    printf("adapters of rank %d over the base in four bits, on capitals\n", RANK);
    const double adapted = train(&tuned, steps, true, 5e-3, &begin);
    const bool ok = memory_is_the_formula_s(&tuned);
    rw_tape_destroy(&tuned.t);
    rw_context_destroy(&tuned.ctx);
    free(text);
    if (!ok || trained >= first || adapted >= begin) {
        fprintf(stderr, "lora: %s\n", ok ? "a loss did not fall" : "memory is not the formula's");
        return 1;
    }
    return 0;
}
