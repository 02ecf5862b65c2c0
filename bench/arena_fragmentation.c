/*
 * The ratio of the arena to the maximum of the live bytes: for GPT, Llama and the models of irregular_models.h as
 * executed steps, for the other models of bench/models as plans, under every policy. Also the bytes that a GPT block
 * keeps: the difference between models with one layer more and one less.
 */
#include "figure.h"
#include "models/model.h"
#include "irregular_models.h"

#include <math.h>

enum { HEAD = 64, SCALE = 512 }; /* width of a head; bytes of a buffer with one number */

/* Runs a step. recipe NULL: in the types of the parameters. */
static rw_memory run(struct model_config config, const char *policy, const rw_recipe *recipe, int batch, int seq)
{
    const rw_recipe as_it_is = { .kind = RW_RECIPE_NONE };
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    struct model m;
    rw_memory memory = { 0 };
    int32_t *const tokens = calloc((size_t)batch * (size_t)seq, sizeof *tokens);
    figure_must(NULL, rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 }));
    figure_must(ctx, rw_tape_create(&t, ctx));
    config.max_seq = seq;
    rw_tensor *loss = NULL;
    if (!model_create(&m, ctx, &config) && !ckpt_set_policy(t, policy) &&
        !rw_recipe_begin(t, recipe ? recipe : &as_it_is)) {
        loss = model_loss(&m, t, batch, seq, tokens, tokens);
        rw_recipe_end(t);
    }
    figure_must(ctx, rw_backward(t, loss));
    rw_memory_stats(ctx, &memory);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    free(tokens);
    return memory;
}

/* The worst of the arenas so far, and its model. */
struct worst {
    double ratio;
    char where[64];
    int n;
};

static void note_arena(struct worst *w, const rw_memory *m, const char *name, const char *policy)
{
    const double ratio = (double)m->predicted_peak / (double)m->largest_live;
    if (m->predicted_peak != m->measured_peak) printf("predicted and measured peak differ: %s, %s\n", name, policy);
    w->n++;
    if (ratio <= w->ratio) return;
    w->ratio = ratio;
    snprintf(w->where, sizeof w->where, "%s %s", name, policy);
    for (char *c = w->where; *c; c++)
        if (*c == ',') *c = ';';
}

static rw_memory run_of_zoo(const struct zoo_entry *z, const char *policy)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_memory memory = { 0 };
    figure_must(NULL, rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 }));
    figure_must(ctx, rw_tape_create(&t, ctx));
    figure_must(ctx, ckpt_set_policy(t, policy));
    figure_must(ctx, rw_backward(t, z->loss(z, ctx, t)));
    rw_memory_stats(ctx, &memory);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return memory;
}

/* Plans only: models of other kinds, under policies without offload. */
static void plans_of_models(struct worst *w, rw_dtype dtype)
{
    static const char *const policies[] = { "none",
                                            "full",
                                            "uniform:2",
                                            "uniform:3",
                                            "block:2",
                                            "ops:linear,conv2d",
                                            "selective:block,mlp",
                                            "discard:bn,relu",
                                            "budget:80%",
                                            "budget:60%",
                                            "budget:40%" };
    enum { BATCH = 4, SIDE = 32, TOKENS = 96 };
    int32_t *const tokens = calloc(BATCH * TOKENS, sizeof *tokens);
    for (enum model_kind kind = MODEL_DEEPSEEK; kind < MODEL_KINDS; kind++) {
        rw_context *ctx = NULL;
        rw_tape *t = NULL;
        struct model m;
        struct model_config c = { .kind = kind, .dtype = dtype, .dropout = 0.1f };
        const int size = kind >= MODEL_VIT ? SIDE : TOKENS;
        char name[32];
        model_preset(&c, "small");
        if (c.max_seq < size) c.max_seq = size;
        figure_must(NULL, rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 }));
        figure_must(ctx, rw_tape_create(&t, ctx));
        rw_tensor *const loss = model_declare(&m, ctx, &c) ? NULL : model_loss(&m, t, BATCH, size, tokens, tokens);
        snprintf(name, sizeof name, "%s %s", model_name(kind), rw_dtype_name(dtype));
        for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
            rw_prediction x;
            const rw_status status = rw_tape_plan(t, loss, policies[i], &x);
            if (status != RW_ERR_BUDGET) figure_must(ctx, status);
            rw_error_clear(ctx);
            const rw_memory memory = { .predicted_peak = x.peak_bytes,
                                       .measured_peak = x.peak_bytes,
                                       .largest_live = x.largest_live };
            if (!status) note_arena(w, &memory, name, policies[i]);
        }
        rw_tape_destroy(&t);
        rw_context_destroy(&ctx);
    }
    free(tokens);
}

/* Runs or plans every model under every policy, and prints the worst ratio of arena to live bytes. */
static void arena(void)
{
    static const char *const policies[] = { "none",
                                            "full",
                                            "uniform:2",
                                            "uniform:3",
                                            "block:2",
                                            "selective:core_attn",
                                            "selective:mlp",
                                            "ops:linear,attention",
                                            "names:keep=qkv,attn_out" };
    struct worst w = { 0 };
    for (int kind = 0; kind < 2; kind++)
        for (int scores = 0; scores < 2; scores++)
            for (int dtype = 0; dtype < 2; dtype++)
                for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
                    struct model_config c = { .kind = (enum model_kind)kind,
                                              .scores = scores,
                                              .dtype = dtype ? RW_BF16 : RW_F32 };
                    model_preset(&c, "tiny");
                    c.layers = 6;
                    c.dropout = 0.1f;
                    const rw_memory m = run(c, policies[i], NULL, 2, 96);
                    char name[32];
                    snprintf(name, sizeof name, "%s%s %s", model_name(c.kind), scores ? " with scores" : "",
                             rw_dtype_name(c.dtype));
                    note_arena(&w, &m, name, policies[i]);
                }
    for (int i = 0; i < zoo_entries; i++)
        for (int p = 0; p < zoo_n_policies; p++) {
            const rw_memory m = run_of_zoo(&zoo[i], zoo_policies[p]);
            note_arena(&w, &m, zoo[i].name, zoo_policies[p]);
        }
    plans_of_models(&w, RW_F32);
    plans_of_models(&w, RW_BF16);
    char text[160];
    snprintf(text, sizeof text, "arena over the largest sum of live bytes, worst of %d (%s)", w.n, w.where);
    figure(text, w.ratio, "times", 1.02);
}

/* recipe NULL: for a model in bfloat16; else for one in float32. */
static double kept_per_block(const char *policy, const rw_recipe *recipe, int batch, int seq, int width)
{
    struct model_config c = { .kind = MODEL_GPT, .width = width, .heads = width / HEAD, .kv_heads = width / HEAD,
                              .vocab = 256, .dropout = 0.1f, .dtype = recipe ? RW_F32 : RW_BF16 };
    c.layers = 2;
    const rw_memory two = run(c, policy, recipe, batch, seq);
    c.layers = 4;
    const rw_memory four = run(c, policy, recipe, batch, seq);
    return ((double)four.kept - (double)two.kept) / 2;
}

/* docs/figures.md has the terms. Under `none` exactly these are kept. */
int main(void)
{
    enum { BATCH = 2, SEQ = 256, WIDTH = 256 };
    arena();
    const double input = (double)BATCH * SEQ * WIDTH, queries = (double)BATCH * SEQ * (WIDTH / HEAD);
    figure("kept bytes per GPT block under full, 16-bit, over the block's input",
           kept_per_block("full", NULL, BATCH, SEQ, WIDTH) / (2 * input), "times", 1);
    figure_exactly("kept bytes per GPT block under none, 16-bit: 32 per element of its input and 4 per head and query",
                   kept_per_block("none", NULL, BATCH, SEQ, WIDTH), "bytes", 32 * input + 4 * queries);
    const rw_recipe bf16 = { .kind = RW_RECIPE_BF16 }, fp8 = { .kind = RW_RECIPE_F8 };
    figure_exactly("kept bytes per GPT block under none, FP8 linear layers: 31, 4 per head and query, a byte per "
                   "weight, 8 scales", kept_per_block("none", &fp8, BATCH, SEQ, WIDTH), "bytes",
                   31 * input + 4 * queries + 12.0 * WIDTH * WIDTH + 8 * SCALE);
    figure_exactly("kept bytes per GPT block under none, bf16 recipe: 36, 4 per head and query, 2 bytes per weight",
                   kept_per_block("none", &bf16, BATCH, SEQ, WIDTH), "bytes",
                   36 * input + 4 * queries + 24.0 * WIDTH * WIDTH);
    return answer_end("arena_fragmentation", 0);
}
