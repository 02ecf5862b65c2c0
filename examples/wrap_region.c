/*
 * Wraps the layers of a small GPT in regions and trains it under a policy: the complete program of the manual.
 *
 *   wrap_region [POLICY] [--quick]        e.g. full, selective:core_attn, uniform:4; default full
 */
#include <rewind/rewind.h>

#include <stdio.h>
#include <string.h>

enum { LAYERS = 4, WIDTH = 64, HEADS = 4, VOCAB = 128, BATCH = 4, SEQ = 64 };

struct layer {
    rw_tensor *ln1_w, *ln1_b, *qkv_w, *qkv_b, *proj_w, *proj_b;
    rw_tensor *ln2_w, *ln2_b, *up_w, *up_b, *down_w, *down_b;
};

static rw_tensor *param(rw_context *ctx, int layer, const char *name, rw_shape shape, double std)
{
    char full[64];
    snprintf(full, sizeof full, "h.%d.%s", layer, name);
    rw_tensor *const p = rw_param(ctx, full, RW_F32, shape);
    if (std > 0) rw_init_normal(p, 0, std);
    else rw_init_constant(p, std < 0 ? 1 : 0);
    return p;
}

static void make_layer(rw_context *ctx, struct layer *p, int l)
{
    p->ln1_w = param(ctx, l, "ln1_w", RW_SHAPE(WIDTH), -1);
    p->ln1_b = param(ctx, l, "ln1_b", RW_SHAPE(WIDTH), 0);
    p->qkv_w = param(ctx, l, "qkv_w", RW_SHAPE(3 * WIDTH, WIDTH), 0.05);
    p->qkv_b = param(ctx, l, "qkv_b", RW_SHAPE(3 * WIDTH), 0);
    p->proj_w = param(ctx, l, "proj_w", RW_SHAPE(WIDTH, WIDTH), 0.05);
    p->proj_b = param(ctx, l, "proj_b", RW_SHAPE(WIDTH), 0);
    p->ln2_w = param(ctx, l, "ln2_w", RW_SHAPE(WIDTH), -1);
    p->ln2_b = param(ctx, l, "ln2_b", RW_SHAPE(WIDTH), 0);
    p->up_w = param(ctx, l, "up_w", RW_SHAPE(4 * WIDTH, WIDTH), 0.05);
    p->up_b = param(ctx, l, "up_b", RW_SHAPE(4 * WIDTH), 0);
    p->down_w = param(ctx, l, "down_w", RW_SHAPE(WIDTH, 4 * WIDTH), 0.05);
    p->down_b = param(ctx, l, "down_b", RW_SHAPE(WIDTH), 0);
}

/* A transformer layer with two named regions: core_attn and mlp. */
static rw_tensor *block(rw_tape *t, const struct layer *p, rw_tensor *x)
{
    rw_tensor *h = rw_layernorm(t, x, p->ln1_w, p->ln1_b, 1e-5f);
    rw_tensor *const qkv = rw_linear(t, h, p->qkv_w, p->qkv_b); /* weight is [out, in] */
    rw_tensor *const heads = rw_reshape(t, qkv, RW_SHAPE(BATCH, SEQ, 3 * HEADS, WIDTH / HEADS));
    rw_tensor *part[3];
    if (rw_split(t, heads, 2, (const int64_t[]){ HEADS, HEADS, HEADS }, 3, part)) return NULL;
    rw_tensor *const q = rw_transpose(t, part[0], 1, 2);
    rw_tensor *const k = rw_transpose(t, part[1], 1, 2);
    rw_tensor *const v = rw_transpose(t, part[2], 1, 2);
    ckpt_begin(t, "core_attn");
    rw_tensor *a = rw_attention(t, q, k, v, &(rw_attention_params){ .causal = true, .dropout = 0.1f });
    ckpt_end(t);
    a = rw_reshape(t, rw_transpose(t, a, 1, 2), RW_SHAPE(BATCH, SEQ, WIDTH));
    x = rw_dropout_add(t, rw_linear(t, a, p->proj_w, p->proj_b), x, 0.1f);
    ckpt_begin(t, "mlp");
    h = rw_linear_gelu(t, rw_layernorm(t, x, p->ln2_w, p->ln2_b, 1e-5f), p->up_w, p->up_b);
    h = rw_linear(t, h, p->down_w, p->down_b);
    ckpt_end(t);
    return rw_dropout_add(t, h, x, 0.1f);
}

/* A predictable sequence: each token follows from the one before. */
static void make_batch(int32_t *tokens, int32_t *targets, int step)
{
    for (int b = 0; b < BATCH; b++) {
        int32_t x = (step * 37 + b * 11) % VOCAB;
        for (int i = 0; i < SEQ; i++) {
            tokens[b * SEQ + i] = x;
            x = (x * 5 + 3) % VOCAB;
            targets[b * SEQ + i] = x;
        }
    }
}

static rw_tensor *forward(rw_tape *t, const struct layer *layer, rw_tensor *table, int step)
{
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    make_batch(tokens, targets, step);
    rw_tensor *x = rw_embedding(t, table, rw_input(t, RW_I32, RW_SHAPE(BATCH, SEQ), tokens, sizeof tokens));
    for (int l = 0; l < LAYERS; l++) {
        ckpt_begin(t, "block");
        x = block(t, &layer[l], x);
        ckpt_end(t);
    }
    return rw_cross_entropy(t, rw_linear(t, x, table, RW_NONE),
                            rw_input(t, RW_I32, RW_SHAPE(BATCH, SEQ), targets, sizeof targets));
}

int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[argc - 1], "--quick");
    const char *const policy = argc > 1 && strcmp(argv[1], "--quick") ? argv[1] : "full";
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    if (rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_AUTO, .seed = 42 }) != RW_OK) {
        fprintf(stderr, "wrap_region: %s\n", rw_error_message(NULL));
        return 1;
    }

    rw_tensor *const table = rw_param(ctx, "wte", RW_F32, RW_SHAPE(VOCAB, WIDTH)); /* exists as long as the context */
    rw_init_normal(table, 0, 0.05);
    struct layer layer[LAYERS];
    for (int l = 0; l < LAYERS; l++) make_layer(ctx, &layer[l], l);
    if (rw_tape_create(&t, ctx) || ckpt_set_policy(t, policy) ||
        rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .lr = 1e-3 })) {
        fprintf(stderr, "%s\n", rw_error_message(ctx));
        return 1;
    }
    for (int step = 0; step < (quick ? 3 : 30); step++) {
        rw_tensor *const loss = forward(t, layer, table, step);
        if (rw_backward(t, loss) != RW_OK) {
            fprintf(stderr, "%s\n", rw_error_message(ctx));
            return 1;
        }
        printf("%d %.6f\n", step, rw_item(t, loss));
        rw_optimizer_step(opt);
        rw_zero_grad(ctx);
        rw_tape_reset(t); /* forgets the ops; parameters, plans and arena stay */
    }
    rw_memory m;
    rw_memory_stats(ctx, &m);
    printf("policy %s: kept %zu bytes, peak %zu\n", ckpt_policy(t), m.kept, m.measured_peak);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx); /* NULL-safe, sets the pointer to NULL */
    return 0;
}
