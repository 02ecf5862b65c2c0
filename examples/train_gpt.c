/*
 * Trains GPT-2 or a Llama on text or on tokens: the whole of a training run - accumulation, clipping, a schedule,
 * evaluation, checkpoints that a later run goes on from to the last bit, sampling. --help lists what can be chosen.
 *
 * Which batch a step sees is a function of the seed and the step's number, so a run that goes on sees what it would
 * have seen.
 */
#include "dashboard.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_LAYERS = 96, ALERTS = 9, ROLL_BACKS = 10 };

static const char usage[] =
    "train_gpt: trains GPT-2 or a Llama.\n\n"
    "  --preset P            tiny, gpt2-124m, gpt2-350m, llama-tiny, llama-110m, llama-1b [tiny]; sizes over it:\n"
    "  --layers N --width N --heads N --kv-heads N --hidden N --seq N --vocab N\n"
    "  --data FILE           text, byte by byte, or a .bin file of tokens as llm.c writes them [the shipped text]\n"
    "  --val FILE            to evaluate on [the last tenth of the data]\n"
    "  --batch N --accum N   sequences at a time, and so many times before an update [8, 1]\n"
    "  --dtype T             of the weights: f32, bf16, f16 (without loss scaling); master copies and gradients are\n"
    "                        float32 [f32]\n"
    "  --policy P            what is kept for backward: none, full, selective:mlp, budget:60%, budget:2GiB ... [full]\n"
    "  --graph               the step is recorded once and launched; for --accum 1\n"
    "  --update-inside       with --graph: parameters are updated inside backward, gradients take little memory; it\n"
    "                        does not clip\n"
    "  --steps N             stop there [200]\n"
    "  --total-steps N       the schedule's length [--steps]\n"
    "  --optimizer O         adamw, adam, sgd, lion [adamw]\n"
    "  --schedule S          cosine, linear, constant [cosine]\n"
    "  --lr X --min-lr X --warmup N --decay X --clip X --dropout X   [1e-3, a tenth, total / 20, 0.1, 1, 0.1]\n"
    "  --eval-every N --eval-batches N      [100, 8]\n"
    "  --checkpoint DIR --save-every N --keep N   checkpoints, every so many steps and at the end [none, 100, 3]\n"
    "  --resume DIR          go on from the newest whole checkpoint there\n"
    "  --log FILE            a line of JSON for each step; it is added to\n"
    "  --tensorboard DIR --prometheus FILE  the same for others to read\n"
    "  --dashboard FILE      a page for a browser, renewed while the run goes on; a run that goes on takes what was\n"
    "                        before from --log\n"
    "  --good FILE           the --log of a run that is known to be good: the page shows it, too\n"
    "  --on ALERT=WHAT       note, skip (the update), lower (the rate to a half), roll_back (to the last checkpoint,\n"
    "                        and lower), stop; again for each alert [loss_nonfinite=stop, others note]\n"
    "  --load FILE --save FILE   weights before and after, safetensors\n"
    "  --load-hf FILE        weights of a GPT-2 or a Llama as Hugging Face names them, in one file of the type of\n"
    "                        --dtype; --vocab, --seq and sizes are the file's\n"
    "  --sample N --temperature X           bytes, or tokens as numbers, written at the end [200, 0.8]\n"
    "  --seed N --threads N  [42, all]\n"
    "  --quick               a few steps of a tiny model\n";

struct size {
    const char *preset;
    bool llama;
    int layers, heads, kv_heads, width, hidden, seq;
};

static const struct size presets[] = {
    { "tiny", false, 4, 4, 4, 128, 512, 128 },
    { "gpt2-124m", false, 12, 12, 12, 768, 3072, 1024 },
    { "gpt2-350m", false, 24, 16, 16, 1024, 4096, 1024 },
    { "llama-tiny", true, 4, 4, 2, 128, 352, 128 },
    { "llama-110m", true, 12, 12, 12, 768, 2048, 1024 },
    { "llama-1b", true, 16, 32, 8, 2048, 8192, 2048 },
};

static struct {
    struct size m;
    const char *data, *val, *policy, *optimizer, *schedule, *checkpoint, *resume, *load, *save, *log, *tensorboard,
        *prometheus, *dashboard, *good, *load_hf;
    int vocab, batch, accum, steps, total, warmup, eval_every, eval_batches, save_every, keep, sample, threads;
    double lr, min_lr, decay, clip, dropout, temperature;
    uint64_t seed;
    rw_dtype dtype;
    bool graph, inside;
    rw_recovery on[ALERTS]; /* alert 1 << i */
} o = { .data = REWIND_DATA, .policy = "full", .optimizer = "adamw", .schedule = "cosine", .batch = 8, .accum = 1,
        .steps = 200, .warmup = -1, .eval_every = 100, .eval_batches = 8, .save_every = 100, .keep = 3, .sample = 200,
        .lr = 1e-3, .min_lr = -1, .decay = 0.1, .clip = 1, .dropout = 0.1, .temperature = 0.8, .seed = 42,
        .on = { RW_RECOVERY_STOP } };

static void die(const char *format, const char *what)
{
    fprintf(stderr, "train_gpt: ");
    fprintf(stderr, format, what);
    fputc('\n', stderr);
    exit(2);
}

/* ---- data ---- */

struct tokens {
    uint16_t *t;
    size_t n;
    bool bytes; /* each is one */
};

/* llm.c: 256 words of 32 bits, which begin with 20240520, the version and the number of tokens; then the tokens. */
static void unpack(struct tokens *d, unsigned char *file, size_t n, const char *path)
{
    int32_t head[256];
    const size_t length = strlen(path);
    d->bytes = length < 4 || strcmp(path + length - 4, ".bin") != 0;
    if (!d->bytes) {
        if (n < sizeof head) die("%s: too short for a file of tokens", path);
        memcpy(head, file, sizeof head);
        d->n = (n - sizeof head) / sizeof(uint16_t);
        if (head[0] != 20240520 || head[1] != 1 || (size_t)(uint32_t)head[2] > d->n)
            die("%s: not a file of tokens, or cut off", path);
        d->n = (size_t)(uint32_t)head[2];
    } else {
        d->n = n;
    }
    d->t = malloc((d->n + 1) * sizeof *d->t);
    for (size_t i = 0; d->t && i < d->n; i++)
        d->t[i] = d->bytes ? file[i]
                           : (uint16_t)(file[sizeof head + 2 * i] | file[sizeof head + 2 * i + 1] << 8);
}

static struct tokens read_tokens(const char *path)
{
    struct tokens d = { 0 };
    FILE *const f = fopen(path, "rb");
    unsigned char *file = NULL;
    long n = -1;
    if (f && !fseek(f, 0, SEEK_END) && (n = ftell(f)) >= 0) {
        rewind(f);
        file = malloc((size_t)n + 1);
        if (file && fread(file, 1, (size_t)n, f) == (size_t)n) unpack(&d, file, (size_t)n, path);
    }
    if (f) fclose(f);
    free(file);
    if (!d.t) die("%s: cannot be read", path);
    return d;
}

static void check_tokens(const struct tokens *d, const char *path)
{
    if (d->n < (size_t)o.m.seq + 2) die("%s: fewer tokens than a sequence has", path);
    for (size_t i = 0; i < d->n; i++)
        if (d->t[i] >= o.vocab) die("%s: a token beyond --vocab", path);
}

/* splitmix64: the n-th number of a seed. */
static uint64_t number_of(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Windows of the data; each token's target is the one after it. */
static void fill_batch(const struct tokens *d, uint64_t seed, uint64_t n, int32_t *in, int32_t *out)
{
    const int seq = o.m.seq;
    for (int b = 0; b < o.batch; b++) {
        const uint16_t *const from = d->t + number_of(seed, n * (uint64_t)o.batch + (uint64_t)b) %
                                                (d->n - (size_t)seq);
        for (int i = 0; i < seq; i++) in[b * seq + i] = from[i], out[b * seq + i] = from[i + 1];
    }
}

/* ---- the model ---- */

static struct gpt {
    rw_tensor *table, *positions, *norm, *norm_b, *head;
    struct {
        rw_tensor *norm1, *norm1_b, *qkv, *qkv_b, *proj, *proj_b, *norm2, *norm2_b, *up, *up_b, *gate, *down, *down_b;
    } layer[MAX_LAYERS];
} gpt;

static rw_tensor *weight(rw_context *ctx, int l, const char *name, rw_shape shape, double value)
{
    char full[64];
    snprintf(full, sizeof full, l < 0 ? "%s" : "layer.%2$d.%1$s", name, l);
    rw_tensor *const p = rw_param(ctx, full, o.dtype, shape);
    if (p && shape.rank == 1) rw_init_constant(p, value);
    else if (p) rw_init_normal(p, 0, value);
    return p;
}

/* GPT-2 has biases, Llama none. */
static rw_tensor *bias(rw_context *ctx, int l, const char *name, int n)
{
    return o.m.llama ? rw_none() : weight(ctx, l, name, RW_SHAPE(n), 0);
}

static void make_layer(rw_context *ctx, int l)
{
    const struct size *const m = &o.m;
    const int w = m->width, qkv = (m->heads + 2 * m->kv_heads) * (w / m->heads);
    const double last = 0.02 / sqrt(2.0 * m->layers);
    gpt.layer[l].norm1 = weight(ctx, l, "norm1", RW_SHAPE(w), 1);
    gpt.layer[l].norm1_b = bias(ctx, l, "norm1.bias", w);
    gpt.layer[l].qkv = weight(ctx, l, "qkv", RW_SHAPE(qkv, w), 0.02);
    gpt.layer[l].qkv_b = bias(ctx, l, "qkv.bias", qkv);
    gpt.layer[l].proj = weight(ctx, l, "proj", RW_SHAPE(w, w), last);
    gpt.layer[l].proj_b = bias(ctx, l, "proj.bias", w);
    gpt.layer[l].norm2 = weight(ctx, l, "norm2", RW_SHAPE(w), 1);
    gpt.layer[l].norm2_b = bias(ctx, l, "norm2.bias", w);
    gpt.layer[l].up = weight(ctx, l, "up", RW_SHAPE(m->hidden, w), 0.02);
    gpt.layer[l].up_b = bias(ctx, l, "up.bias", m->hidden);
    if (m->llama) gpt.layer[l].gate = weight(ctx, l, "gate", RW_SHAPE(m->hidden, w), 0.02);
    gpt.layer[l].down = weight(ctx, l, "down", RW_SHAPE(w, m->hidden), last);
    gpt.layer[l].down_b = bias(ctx, l, "down.bias", w);
}

static void make_model(rw_context *ctx)
{
    const int w = o.m.width;
    gpt.table = weight(ctx, -1, "table", RW_SHAPE(o.vocab, w), 0.02);
    if (!o.m.llama) gpt.positions = weight(ctx, -1, "positions", RW_SHAPE(o.m.seq, w), 0.02);
    for (int l = 0; l < o.m.layers; l++) make_layer(ctx, l);
    gpt.norm = weight(ctx, -1, "norm", RW_SHAPE(w), 1);
    gpt.norm_b = bias(ctx, -1, "norm.bias", w);
    gpt.head = o.m.llama ? weight(ctx, -1, "head", RW_SHAPE(o.vocab, w), 0.02) : gpt.table;
}

/* ---- weights as Hugging Face names them ---- */

struct names {
    rw_load_part part[16 * MAX_LAYERS + 8];
    char text[16 * MAX_LAYERS + 8][2][96];
    size_t n;
    const char *prefix;
};

/* l below 0: of no layer. theirs has no prefix, and of a layer neither its number. */
static rw_load_part *name(struct names *s, int l, const char *ours, const char *theirs)
{
    const size_t i = s->n++;
    char layer[32] = "";
    snprintf(s->text[i][0], sizeof s->text[i][0], l < 0 ? "%s" : "layer.%2$d.%1$s", ours, l);
    if (l >= 0) snprintf(layer, sizeof layer, o.m.llama ? "layers.%d." : "h.%d.", l);
    snprintf(s->text[i][1], sizeof s->text[i][1], "%s%s%s", s->prefix, layer, theirs);
    s->part[i] = (rw_load_part){ .param = s->text[i][0], .name = s->text[i][1] };
    return &s->part[i];
}

/* GPT-2's products are [in, out]. */
static void name_gpt_layer(struct names *s, int l)
{
    static const char *const both[][2] = { { "norm1", "ln_1" },    { "qkv", "attn.c_attn" }, { "proj", "attn.c_proj" },
                                           { "norm2", "ln_2" },    { "up", "mlp.c_fc" },     { "down", "mlp.c_proj" } };
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        char ours[32], theirs[32];
        snprintf(theirs, sizeof theirs, "%s.weight", both[i][1]);
        name(s, l, both[i][0], theirs)->transposed = strncmp(both[i][1], "ln", 2) != 0;
        snprintf(ours, sizeof ours, "%s.bias", both[i][0]);
        snprintf(theirs, sizeof theirs, "%s.bias", both[i][1]);
        name(s, l, ours, theirs);
    }
}

static void name_llama_layer(struct names *s, int l)
{
    const int head = o.m.width / o.m.heads, rows[] = { 0, o.m.heads * head, (o.m.heads + o.m.kv_heads) * head };
    static const char *const parts[] = { "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                         "self_attn.v_proj.weight" };
    for (int i = 0; i < 3; i++) {
        rw_load_part *const p = name(s, l, "qkv", parts[i]);
        p->part = true;
        p->row = rows[i];
    }
    name(s, l, "norm1", "input_layernorm.weight");
    name(s, l, "proj", "self_attn.o_proj.weight");
    name(s, l, "norm2", "post_attention_layernorm.weight");
    name(s, l, "gate", "mlp.gate_proj.weight");
    name(s, l, "up", "mlp.up_proj.weight");
    name(s, l, "down", "mlp.down_proj.weight");
}

/* head: the file has an output of its own; else that is the table. */
static rw_status load_names(rw_context *ctx, const char *path, const char *prefix, bool head)
{
    static struct names s;
    const bool llama = o.m.llama;
    s.n = 0;
    s.prefix = prefix;
    name(&s, -1, "table", llama ? "embed_tokens.weight" : "wte.weight");
    name(&s, -1, "norm", llama ? "norm.weight" : "ln_f.weight");
    if (!llama) name(&s, -1, "positions", "wpe.weight");
    if (!llama) name(&s, -1, "norm.bias", "ln_f.bias");
    for (int l = 0; l < o.m.layers; l++) (llama ? name_llama_layer : name_gpt_layer)(&s, l);
    s.prefix = head ? "" : prefix;
    if (llama) name(&s, -1, "head", head ? "lm_head.weight" : "embed_tokens.weight");
    return rw_load_parts(ctx, path, s.part, s.n);
}

/* Files of GPT-2 have a prefix or have none, those of Llama an output or have none. */
static rw_status load_hf(rw_context *ctx, const char *path)
{
    rw_status status = load_names(ctx, path, o.m.llama ? "model." : "", true);
    if (status != RW_ERR_IO) return status;
    char first[300];
    snprintf(first, sizeof first, "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
    status = load_names(ctx, path, o.m.llama ? "model." : "transformer.", false);
    if (status == RW_ERR_IO) fprintf(stderr, "train_gpt: %s\n", first);
    return status;
}

static rw_tensor *norm(rw_tape *t, rw_tensor *x, rw_tensor *scale, rw_tensor *shift)
{
    return o.m.llama ? rw_rmsnorm(t, x, scale, 1e-5) : rw_layernorm(t, x, scale, shift, 1e-5);
}

/* x and the end of a branch */
static rw_tensor *join(rw_tape *t, rw_tensor *x, rw_tensor *h, rw_tensor *w, rw_tensor *b, double dropout)
{
    return dropout > 0 ? rw_dropout_add(t, rw_linear(t, h, w, b), x, dropout) : rw_linear_add(t, h, w, b, x);
}

static rw_tensor *attention(rw_tape *t, rw_tensor *x, int l, int batch, int seq, double dropout)
{
    const int q = o.m.heads, kv = o.m.kv_heads;
    rw_tensor *part[3];
    rw_tensor *h = norm(t, x, gpt.layer[l].norm1, gpt.layer[l].norm1_b);
    h = rw_linear(t, h, gpt.layer[l].qkv, gpt.layer[l].qkv_b);
    h = rw_reshape(t, h, RW_SHAPE(batch, seq, q + 2 * kv, o.m.width / q));
    if (rw_split(t, h, 2, (const int64_t[]){ q, kv, kv }, 3, part)) return NULL;
    for (int i = 0; i < 3; i++) part[i] = rw_transpose(t, part[i], 1, 2);
    for (int i = 0; o.m.llama && i < 2; i++) part[i] = rw_rope(t, part[i], RW_NONE, 10000);
    ckpt_begin(t, "core_attn");
    h = rw_attention(t, part[0], part[1], part[2], &(rw_attention_params){ .causal = true, .dropout = (float)dropout });
    ckpt_end(t);
    h = rw_reshape(t, rw_transpose(t, h, 1, 2), RW_SHAPE(batch, seq, o.m.width));
    return join(t, x, h, gpt.layer[l].proj, gpt.layer[l].proj_b, dropout);
}

static rw_tensor *feed_forward(rw_tape *t, rw_tensor *x, int l, double dropout)
{
    rw_tensor *h = norm(t, x, gpt.layer[l].norm2, gpt.layer[l].norm2_b);
    ckpt_begin(t, "mlp");
    if (o.m.llama)
        h = rw_swiglu(t, rw_linear(t, h, gpt.layer[l].gate, RW_NONE), rw_linear(t, h, gpt.layer[l].up, RW_NONE));
    else h = rw_linear_gelu(t, h, gpt.layer[l].up, gpt.layer[l].up_b);
    x = join(t, x, h, gpt.layer[l].down, gpt.layer[l].down_b, dropout);
    ckpt_end(t);
    return x;
}

static rw_tensor *logits(rw_tape *t, rw_tensor *tokens, int batch, int seq, double dropout)
{
    rw_tensor *x = rw_embedding(t, gpt.table, tokens);
    if (gpt.positions) x = rw_add(t, x, rw_slice(t, gpt.positions, 0, 0, seq));
    if (dropout > 0) x = rw_dropout(t, x, dropout);
    for (int l = 0; l < o.m.layers; l++) {
        ckpt_begin(t, "block");
        x = feed_forward(t, attention(t, x, l, batch, seq, dropout), l, dropout);
        ckpt_end(t);
    }
    return rw_linear(t, norm(t, x, gpt.norm, gpt.norm_b), gpt.head, RW_NONE);
}

/* ---- a run ---- */

struct run {
    rw_context *ctx;
    rw_tape *t;
    rw_optimizer *opt;
    rw_schedule schedule;
    rw_checkpoint *ck;
    rw_monitor *monitor;
    struct dashboard page;
    double seen; /* the clock at the step before; 0: there was none */
    int roll_backs;
    struct tokens train, val;
    int32_t *in, *out;
    /* --graph */
    rw_graph *graph;
    rw_tensor *x, *y, *loss;
};

/* What a run must have in common with the one that it goes on from, to make the same bytes. */
struct identity {
    uint64_t seed;
    int32_t batch, accum, seq, vocab;
    double dropout, clip, decay;
};

static struct identity identity_of_options(void)
{
    return (struct identity){ o.seed, o.batch, o.accum, o.m.seq, o.vocab, o.dropout, o.clip, o.decay };
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static rw_tensor *record_loss(struct run *r, double dropout)
{
    const rw_shape shape = RW_SHAPE(o.batch, o.m.seq);
    r->x = rw_input(r->t, RW_I32, shape, r->in);
    r->y = rw_input(r->t, RW_I32, shape, r->out);
    return rw_cross_entropy(r->t, logits(r->t, r->x, o.batch, o.m.seq, dropout), r->y);
}

static rw_status launch(struct run *r, uint64_t step, double *loss)
{
    const size_t bytes = sizeof *r->in * (size_t)(o.batch * o.m.seq);
    fill_batch(&r->train, o.seed, step, r->in, r->out);
    rw_status status = RW_OK;
    if (!r->graph) {
        r->loss = record_loss(r, o.dropout);
        const rw_graph_params params = { .optimizer = r->opt, .max_norm = o.inside ? 0 : o.clip,
                                         .update_inside = o.inside };
        status = rw_graph_create(&r->graph, r->t, r->loss, &params);
    }
    if (!status) status = rw_input_write(r->x, r->in, bytes);
    if (!status) status = rw_input_write(r->y, r->out, bytes);
    if (!status) status = rw_graph_launch(r->graph);
    if (!status) *loss = rw_item(r->t, r->loss);
    return status ? status : rw_error_status(r->ctx);
}

/* The same step again, with a look at every value: op, region, line, element. */
static rw_status find_nonfinite(struct run *r, rw_tensor *loss)
{
    rw_nonfinite where;
    const rw_status status = rw_find_nonfinite(r->t, loss, 0, &where);
    if (!status) rw_nonfinite_print(&where, stderr);
    return status;
}

static rw_status step_of(struct run *r, uint64_t step, double *loss, double *size)
{
    rw_optimizer_set_lr(r->opt, rw_schedule_lr(&r->schedule, step));
    *loss = *size = 0;
    if (o.graph) return launch(r, step, loss);
    rw_status status = RW_OK;
    rw_zero_grad(r->ctx);
    for (int k = 0; !status && k < o.accum; k++) {
        fill_batch(&r->train, o.seed, step * (uint64_t)o.accum + (uint64_t)k, r->in, r->out);
        rw_tensor *const mean = rw_scale(r->t, record_loss(r, o.dropout), 1.0 / o.accum);
        status = rw_backward(r->t, mean);
        if (!status) *loss += rw_item(r->t, mean);
        if (!status && !isfinite(*loss)) status = find_nonfinite(r, mean);
        rw_tape_reset(r->t);
    }
    return status ? status : rw_clip_grad_norm(r->ctx, o.clip, size);
}

/* A graph has made its own. */
static rw_status update(struct run *r)
{
    return o.graph ? RW_OK : rw_optimizer_step(r->opt);
}

/* On a tape of its own: the one of a graph is not to be reset. Without dropout nothing is drawn from the generator. */
static rw_status evaluate(struct run *r, double *loss)
{
    struct run own = *r;
    rw_status status = rw_tape_create(&own.t, r->ctx);
    *loss = 0;
    for (int k = 0; !status && k < o.eval_batches; k++) {
        fill_batch(&r->val, o.seed + 1, (uint64_t)k, r->in, r->out);
        *loss += rw_item(own.t, record_loss(&own, 0)) / o.eval_batches;
        status = rw_error_status(r->ctx);
        rw_tape_reset(own.t);
    }
    rw_tape_destroy(&own.t);
    return status;
}

static void print_step(const struct run *r, int step, double loss, double size, double per_s)
{
    rw_memory m;
    rw_memory_stats(r->ctx, &m);
    const double left = (o.steps - step - 1) * (double)(o.batch * o.accum * o.m.seq) / per_s;
    printf("step %6d  loss %.4f  ", step, loss);
    if (!o.graph) printf("norm %.3f  ", size);
    printf("lr %.2e  %7.0f tokens/s  kept %.1f MiB  peak %.1f MiB  %d:%02d left\n",
           rw_schedule_lr(&r->schedule, (uint64_t)step), per_s, (double)m.kept / 1048576,
           (double)m.measured_peak / 1048576, (int)left / 60, (int)left % 60);
}

static rw_status save(struct run *r, int steps)
{
    const struct identity id = identity_of_options();
    return r->ck ? rw_checkpoint_save(r->ck, (uint64_t)steps, &id, sizeof id) : RW_OK;
}

static void show(struct run *r, bool last)
{
    if (o.dashboard && !dashboard_write(&r->page, r->ctx, last))
        fprintf(stderr, "train_gpt: %s: %s\n", o.dashboard, strerror(errno));
}

/* Writes the step down, and says what it is warned of. */
static rw_status watch(struct run *r, int step, double loss, double size, unsigned *ret_alerts)
{
    const rw_monitor_values v = { .step = (uint64_t)step, .loss = loss, .grad_norm = o.graph ? 0 : size,
                                  .lr = rw_schedule_lr(&r->schedule, (uint64_t)step),
                                  .tokens = (double)o.batch * o.accum * o.m.seq };
    unsigned alerts = 0;
    const double began = r->seen, now = r->seen = seconds();
    const rw_status status = rw_monitor_step(r->monitor, &v, &alerts);
    dashboard_add(&r->page.run, (struct dashboard_point){ step, loss, o.graph ? NAN : size, v.lr,
                                                          began > 0 ? v.tokens / (now - began) : NAN });
    for (unsigned a = 1; a <= alerts; a <<= 1) {
        if (!(alerts & a)) continue;
        fprintf(stderr, "step %6d  %s: loss %.4f, norm %.3f\n", step, rw_alert_name(a), loss, size);
        dashboard_note(&r->page, step, rw_alert_name(a));
    }
    *ret_alerts = alerts;
    return status;
}

/* ---- recoveries ---- */

static rw_status note(struct run *r, int step, unsigned alerts, rw_recovery what, const char *text)
{
    fprintf(stderr, "step %6d  %s: %s\n", step, rw_recovery_name(what), text);
    dashboard_note(&r->page, step, text);
    return rw_monitor_recovered(r->monitor, (uint64_t)step, alerts, what, text);
}

/* The schedule is part of a checkpoint: a run that goes on goes on at this rate. */
static void lower(struct run *r, int step)
{
    r->schedule.lr /= 2;
    r->schedule.min_lr /= 2;
    rw_optimizer_set_lr(r->opt, rw_schedule_lr(&r->schedule, (uint64_t)step));
}

/* The same steps again would be the same bytes: a rate that was halved before stays halved, once more. */
static rw_status roll_back(struct run *r, int *step, unsigned alerts)
{
    char text[200];
    rw_checkpoint_found found = { 0 };
    const int from = *step;
    const double lr = r->schedule.lr, min_lr = r->schedule.min_lr;
    rw_graph_destroy(&r->graph);
    rw_tape_reset(r->t);
    rw_status status = rw_checkpoint_wait(r->ck);
    if (!status) status = rw_checkpoint_load(r->ck, &found);
    if (status) return status;
    r->schedule.lr = lr;
    r->schedule.min_lr = min_lr;
    *step = found.found ? (int)found.step : from;
    lower(r, *step);
    if (found.found) dashboard_cut(&r->page, *step);
    snprintf(text, sizeof text, "%s step %d, rate halved to %.3g", found.found ? "back to" : "no checkpoint yet: at",
             *step, r->schedule.lr);
    if (!found.found) ++*step; /* its update is left out */
    return note(r, from, alerts, RW_RECOVERY_ROLL_BACK, text);
}

static void stop(struct run *r, int step, unsigned alerts, double loss)
{
    note(r, step, alerts, RW_RECOVERY_STOP, "stopped");
    fprintf(stderr, "train_gpt: step %d: the loss is %g\n", step, loss);
    show(r, true);
    rw_checkpoint_destroy(&r->ck); /* what was saved before is whole */
    exit(3);
}

/* What is to be done about the alerts, and the update, unless it is left out. *step is the next one. */
static rw_status recover(struct run *r, int *step, unsigned alerts, double loss)
{
    const int at = *step;
    rw_recovery what = rw_monitor_policy(r->monitor, alerts);
    if (what == RW_RECOVERY_ROLL_BACK && r->roll_backs++ == ROLL_BACKS) what = RW_RECOVERY_STOP;
    if (what == RW_RECOVERY_STOP) stop(r, at, alerts, loss);
    if (what == RW_RECOVERY_ROLL_BACK) return roll_back(r, step, alerts);
    ++*step;
    if (what == RW_RECOVERY_SKIP) return note(r, at, alerts, what, "update left out");
    if (what == RW_RECOVERY_LOWER) {
        char text[80];
        lower(r, at);
        snprintf(text, sizeof text, "rate halved to %.3g", r->schedule.lr);
        const rw_status status = note(r, at, alerts, what, text);
        if (status) return status;
    }
    return update(r);
}

static rw_status train(struct run *r, int first)
{
    const double tokens = (double)o.batch * o.accum * o.m.seq;
    double began = seconds();
    int since = 0;
    rw_status status = RW_OK;
    for (int step = first, next = first; !status && step < o.steps; step = next) {
        double loss, size;
        unsigned alerts = 0;
        status = step_of(r, (uint64_t)step, &loss, &size);
        if (!status) status = watch(r, step, loss, size, &alerts);
        if (!status) status = recover(r, &next, alerts, loss);
        if (!status && next <= step) continue;
        since++;
        if (!status && (step % 10 == 0 || step + 1 == o.steps)) {
            print_step(r, step, loss, size, since * tokens / (seconds() - began));
            began = seconds();
            since = 0;
        }
        const bool last = step + 1 == o.steps;
        if (!status && o.eval_batches && (last || (step + 1) % o.eval_every == 0)) {
            const double from = seconds();
            status = evaluate(r, &loss);
            if (!status) printf("step %6d  validation loss %.4f\n", step, loss);
            dashboard_add(&r->page.validation, (struct dashboard_point){ .step = step, .loss = loss });
            began += seconds() - from;
        }
        if (!status && (last || (step + 1) % o.save_every == 0)) status = save(r, step + 1);
        show(r, last);
    }
    return !status && r->ck ? rw_checkpoint_wait(r->ck) : status;
}

/* ---- before and after ---- */

static rw_status make_optimizer(struct run *r)
{
    const double decay = o.decay > 0 ? o.decay : -1;
    if (!strcmp(o.optimizer, "adam"))
        return rw_adam_create(&r->opt, r->ctx, &(rw_adam_params){ .lr = o.lr, .beta2 = 0.95, .weight_decay = decay });
    if (!strcmp(o.optimizer, "sgd"))
        return rw_sgd_create(&r->opt, r->ctx, &(rw_sgd_params){ .lr = o.lr, .momentum = 0.9, .weight_decay = decay });
    if (!strcmp(o.optimizer, "lion"))
        return rw_lion_create(&r->opt, r->ctx, &(rw_lion_params){ .lr = o.lr, .weight_decay = decay });
    return rw_adamw_create(&r->opt, r->ctx, &(rw_adamw_params){ .lr = o.lr, .beta2 = 0.95, .weight_decay = decay });
}

static void make_schedule(struct run *r)
{
    const int total = o.total ? o.total : o.steps;
    const int warmup = o.warmup < 0 ? total / 20 : o.warmup;
    r->schedule = (rw_schedule){ .kind = RW_SCHEDULE_COSINE, .lr = o.lr, .min_lr = o.min_lr < 0 ? o.lr / 10 : o.min_lr,
                                 .warmup = (uint64_t)warmup, .total = (uint64_t)(total > warmup ? total : warmup + 1) };
    if (!strcmp(o.schedule, "linear")) r->schedule.kind = RW_SCHEDULE_LINEAR;
    if (!strcmp(o.schedule, "constant")) r->schedule.kind = RW_SCHEDULE_CONSTANT;
}

static rw_status open_checkpoint(struct run *r, const char *folder, rw_checkpoint **ret)
{
    const rw_checkpoint_params params = { .folder = folder, .optimizer = r->opt, .schedule = &r->schedule,
                                          .keep = o.keep };
    return rw_checkpoint_create(ret, r->ctx, &params);
}

/* Where the newest whole checkpoint stands, or at the beginning. */
static rw_status resume(struct run *r, int *first)
{
    const struct identity id = identity_of_options();
    rw_checkpoint *from = NULL;
    rw_checkpoint_found found = { 0 };
    rw_status status = open_checkpoint(r, o.resume, &from);
    if (!status) status = rw_checkpoint_load(from, &found);
    if (found.skipped) printf("passed over %zu that are not whole: %s\n", found.skipped, found.why);
    if (found.found) printf("going on from step %d of %s\n", (int)found.step, found.path);
    else if (!status) printf("no checkpoint in %s: from the beginning\n", o.resume);
    if (found.found && (found.extra_bytes != sizeof id || memcmp(found.extra, &id, sizeof id)))
        printf("that run had another seed, batch, accumulation, dropout, clipping or decay: these are other bytes\n");
    *first = (int)found.step;
    rw_checkpoint_destroy(&from);
    return status;
}

/* Draws one token at a time from the model's own distribution; a temperature below 1 sharpens it. */
static rw_status sample(struct run *r)
{
    int32_t *const context = calloc((size_t)o.m.seq, sizeof *context);
    float *const p = malloc((size_t)o.vocab * sizeof *p);
    rw_tape *t = NULL;
    int n = 1;
    rw_status status = context && p ? rw_tape_create(&t, r->ctx) : RW_ERR_MEMORY;
    if (!status) context[0] = r->train.bytes ? '\n' : r->train.t[0];
    for (int k = 0; !status && k < o.sample; k++) {
        rw_tensor *y = logits(t, rw_input(t, RW_I32, RW_SHAPE(1, n), context), 1, n, 0);
        y = rw_cast(t, rw_slice(t, y, 1, n - 1, n), RW_F32);
        status = rw_read(t, rw_softmax(t, rw_scale(t, y, 1 / o.temperature), -1), p, (size_t)o.vocab * sizeof *p);
        rw_tape_reset(t);
        if (status) break;
        double x = (double)(number_of(o.seed + 2, (uint64_t)k) >> 11) * 0x1p-53;
        int c = 0;
        while (c < o.vocab - 1 && (x -= (double)p[c]) >= 0) c++;
        if (r->train.bytes) putchar(c);
        else printf("%d ", c);
        if (n == o.m.seq) memmove(context, context + 1, (size_t)--n * sizeof *context);
        context[n++] = c;
    }
    if (o.sample) putchar('\n');
    rw_tape_destroy(&t);
    free(context);
    free(p);
    return status;
}

static rw_status open_monitor(struct run *r)
{
    r->page = (struct dashboard){ .path = o.dashboard, .title = o.m.preset, .steps = o.steps };
    if (o.dashboard && o.resume && o.log) dashboard_read(&r->page, &r->page.run, o.log);
    if (o.good && !dashboard_read(&r->page, &r->page.good, o.good)) die("%s: cannot be read", o.good);
    rw_status status = rw_monitor_create(&r->monitor, r->ctx, o.log);
    for (int i = 0; !status && i < ALERTS; i++) status = rw_monitor_set_policy(r->monitor, 1u << i, o.on[i]);
    if (!status && o.tensorboard) status = rw_monitor_add(r->monitor, RW_MONITOR_TENSORBOARD, o.tensorboard);
    if (!status && o.prometheus) status = rw_monitor_add(r->monitor, RW_MONITOR_PROMETHEUS, o.prometheus);
    return status;
}

static rw_status run(struct run *r)
{
    int first = 0;
    rw_status status = rw_context_create(&r->ctx, &(rw_context_params){ .seed = o.seed, .threads = o.threads });
    if (status) return status;
    make_model(r->ctx);
    status = rw_tape_create(&r->t, r->ctx);
    if (!status) status = ckpt_set_policy(r->t, o.policy);
    if (!status && o.load) status = rw_load(r->ctx, o.load);
    if (!status && o.load_hf) status = load_hf(r->ctx, o.load_hf);
    if (!status) status = make_optimizer(r);
    make_schedule(r);
    if (!status) status = open_monitor(r);
    if (!status && o.checkpoint) status = open_checkpoint(r, o.checkpoint, &r->ck);
    if (!status && o.resume) status = resume(r, &first);
    rw_memory m;
    rw_memory_stats(r->ctx, &m);
    printf("%s: %.1f million parameters, %zu training tokens, %s\n", o.m.preset,
           (double)m.parameters / (double)rw_dtype_size(o.dtype) / 1e6, r->train.n, o.policy);
    if (!status) status = train(r, first);
    if (!status) status = sample(r);
    if (!status && o.save) status = rw_save(r->ctx, o.save);
    return status;
}

/* ---- options ---- */

static double number(const char *option, double least, double most)
{
    char *end, text[128];
    const bool whole = least == floor(least) && most == floor(most) && most > 1;
    const double x = strtod(optarg, &end);
    if (end != optarg && !*end && x >= least && x <= most && (!whole || x == floor(x))) return x;
    snprintf(text, sizeof text, "--%.20s takes a %snumber from %g to %g, not \"%.40s\"", option, whole ? "whole " : "",
             least, most, optarg);
    die("%s", text);
    return 0;
}

static const char *one_of(const char *option, const char *words)
{
    char text[200];
    const size_t n = strlen(optarg);
    for (const char *w = words; w; w = strchr(w, ' ') ? strchr(w, ' ') + 1 : NULL)
        if (!strncmp(w, optarg, n) && (!w[n] || w[n] == ' ') && n) return optarg;
    snprintf(text, sizeof text, "--%.20s takes one of %.80s, not \"%.40s\"", option, words, optarg);
    die("%s", text);
    return NULL;
}

static void read_preset(void)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (!strcmp(optarg, presets[i].preset)) o.m = presets[i];
    if (!o.m.preset || strcmp(optarg, o.m.preset)) die("--preset: there is no \"%s\"", optarg);
}

static rw_dtype read_dtype(void)
{
    const char *const word = one_of("dtype", "f32 bf16 f16");
    return !strcmp(word, "f32") ? RW_F32 : !strcmp(word, "bf16") ? RW_BF16 : RW_F16;
}

static void read_policy(void)
{
    const char *const what = strchr(optarg, '=');
    int alert = 0, recovery = 0;
    const size_t n = what ? (size_t)(what - optarg) : 0;
    for (; alert < ALERTS; alert++) {
        const char *const name = rw_alert_name(1u << alert);
        if (strlen(name) == n && !strncmp(name, optarg, n)) break;
    }
    while (what && recovery <= RW_RECOVERY_STOP && strcmp(rw_recovery_name((rw_recovery)recovery), what + 1))
        recovery++;
    if (!what || alert == ALERTS || recovery > RW_RECOVERY_STOP) die("--on takes ALERT=WHAT, not \"%s\"", optarg);
    o.on[alert] = (rw_recovery)recovery;
}

/* Numbers by name; the sizes of the model come behind the preset, wherever they stand. */
static const struct {
    const char *name;
    int *whole;
    double *real;
    double least, most;
} numbers[] = {
    { "layers", &o.m.layers, 0, 1, MAX_LAYERS },    { "width", &o.m.width, 0, 2, 65536 },
    { "heads", &o.m.heads, 0, 1, 1024 },            { "kv-heads", &o.m.kv_heads, 0, 1, 1024 },
    { "hidden", &o.m.hidden, 0, 1, 1 << 20 },       { "seq", &o.m.seq, 0, 2, 1 << 20 },
    { "vocab", &o.vocab, 0, 2, 65536 },             { "batch", &o.batch, 0, 1, 65536 },
    { "accum", &o.accum, 0, 1, 1 << 20 },           { "steps", &o.steps, 0, 0, 1e9 },
    { "total-steps", &o.total, 0, 1, 1e9 },         { "warmup", &o.warmup, 0, 0, 1e9 },
    { "eval-every", &o.eval_every, 0, 1, 1e9 },     { "eval-batches", &o.eval_batches, 0, 0, 1e6 },
    { "save-every", &o.save_every, 0, 1, 1e9 },     { "keep", &o.keep, 0, 1, 1e6 },
    { "sample", &o.sample, 0, 0, 1e6 },             { "threads", &o.threads, 0, 1, RW_MAX_THREADS },
    { "lr", 0, &o.lr, 1e-12, 1e3 + 0.5 },           { "min-lr", 0, &o.min_lr, 0, 1e3 + 0.5 },
    { "decay", 0, &o.decay, 0, 1e3 + 0.5 },         { "clip", 0, &o.clip, 1e-12, 1e9 + 0.5 },
    { "dropout", 0, &o.dropout, 0, 0.99 },          { "temperature", 0, &o.temperature, 0.01, 100.5 },
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static const struct {
    const char *name;
    const char **text;
} texts[] = { { "data", &o.data }, { "val", &o.val }, { "policy", &o.policy }, { "checkpoint", &o.checkpoint },
              { "resume", &o.resume }, { "load", &o.load }, { "save", &o.save }, { "log", &o.log },
              { "tensorboard", &o.tensorboard }, { "prometheus", &o.prometheus }, { "dashboard", &o.dashboard },
              { "good", &o.good }, { "load-hf", &o.load_hf } };
enum { TEXTS = sizeof texts / sizeof *texts };

static void quick(void)
{
    o.steps = 3, o.m.layers = 2, o.m.width = 64, o.m.seq = 32, o.m.hidden = 128, o.sample = 20, o.eval_batches = 1;
}

static void take(const char *name, int index)
{
    if (index < NUMBERS) {
        const double x = number(name, numbers[index].least, numbers[index].most);
        if (numbers[index].whole) *numbers[index].whole = (int)x;
        else *numbers[index].real = x;
    } else if (index < NUMBERS + TEXTS) {
        *texts[index - NUMBERS].text = optarg;
    } else if (!strcmp(name, "dtype")) {
        o.dtype = read_dtype();
    } else if (!strcmp(name, "optimizer")) {
        o.optimizer = one_of(name, "adamw adam sgd lion");
    } else if (!strcmp(name, "schedule")) {
        o.schedule = one_of(name, "cosine linear constant");
    } else if (!strcmp(name, "seed")) {
        o.seed = (uint64_t)number(name, 0, 9007199254740992.0);
    } else if (!strcmp(name, "on")) {
        read_policy();
    } else if (!strcmp(name, "graph")) {
        o.graph = true;
    } else if (!strcmp(name, "update-inside")) {
        o.inside = true;
    } else if (!strcmp(name, "quick")) {
        quick();
    } else if (!strcmp(name, "help")) {
        exit(fputs(usage, stdout) < 0);
    }
}

static void read_options(int argc, char **argv)
{
    static const char *const rest[] = { "preset", "dtype", "optimizer", "schedule", "seed", "on", "graph",
                                        "update-inside", "quick", "help" };
    enum { REST = sizeof rest / sizeof *rest };
    struct option names[NUMBERS + TEXTS + REST + 1] = { 0 };
    int n = 0, index = 0;
    for (int i = 0; i < NUMBERS; i++) names[n++] = (struct option){ numbers[i].name, 1, 0, 0 };
    for (int i = 0; i < TEXTS; i++) names[n++] = (struct option){ texts[i].name, 1, 0, 0 };
    for (int i = 0; i < REST; i++) names[n++] = (struct option){ rest[i], i < 6, 0, 0 };
    o.m = presets[0];
    for (int pass = 0; pass < 2; pass++) {
        optind = 1;
        for (int c; (c = getopt_long(argc, argv, "", names, &index)) != -1;) {
            if (c == '?') exit(2);
            if (pass == 0 && !strcmp(names[index].name, "preset")) read_preset();
            if (pass == 1) take(names[index].name, index);
        }
    }
    if (optind < argc) die("%s is no option", argv[optind]);
    if (o.m.width % o.m.heads || o.m.width / o.m.heads % 2) die("%s", "--width is no even multiple of --heads");
    if (o.m.heads % o.m.kv_heads) die("%s", "--heads is no multiple of --kv-heads");
    for (int i = 0; i < ALERTS; i++) {
        if (o.graph && o.on[i] == RW_RECOVERY_SKIP) die("%s", "--graph has updated before --on ...=skip could");
        if (!o.checkpoint && o.on[i] == RW_RECOVERY_ROLL_BACK) die("%s", "--on ...=roll_back needs --checkpoint");
    }
    if (o.inside && !o.graph) die("%s", "--update-inside is for --graph");
    if (o.graph && o.accum > 1) die("%s", "--graph is for --accum 1");
    FILE *const f = o.save ? fopen(o.save, "ab") : NULL; /* better known before hours of training than after */
    if (o.save && !f) die("%s: cannot be written", o.save);
    if (f) fclose(f);
}

static void read_data(struct run *r)
{
    r->train = read_tokens(o.data);
    if (!o.vocab) o.vocab = r->train.bytes ? 256 : 50304;
    if (o.val) {
        r->val = read_tokens(o.val);
    } else {
        const size_t held = r->train.n / 10;
        r->val = (struct tokens){ r->train.t + (r->train.n - held), held, r->train.bytes };
        r->train.n -= held;
    }
    check_tokens(&r->train, o.data);
    check_tokens(&r->val, o.val ? o.val : o.data);
}

int main(int argc, char **argv)
{
    struct run r = { 0 };
    setvbuf(stdout, NULL, _IOLBF, 0); /* a step's line is there when the step is, in a pipe, too */
    read_options(argc, argv);
    read_data(&r);
    r.in = malloc(sizeof *r.in * (size_t)(o.batch * o.m.seq));
    r.out = malloc(sizeof *r.out * (size_t)(o.batch * o.m.seq));
    const rw_status status = r.in && r.out ? run(&r) : RW_ERR_MEMORY;
    const char *const message = rw_error_message(r.ctx);
    if (status) fprintf(stderr, "train_gpt: %s\n", *message ? message : rw_status_name(status));
    rw_graph_destroy(&r.graph);
    rw_monitor_destroy(&r.monitor);
    rw_checkpoint_destroy(&r.ck);
    rw_optimizer_destroy(&r.opt);
    rw_tape_destroy(&r.t);
    rw_context_destroy(&r.ctx);
    dashboard_finish(&r.page);
    free(r.in);
    free(r.out);
    if (o.val) free(r.val.t);
    free(r.train.t);
    return status ? 1 : 0;
}
