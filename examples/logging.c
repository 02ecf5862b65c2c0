/*
 * Reads many numbers of a training step: terms of the loss during recording, norms of hidden values before backward,
 * the loss after the optimizer's step, and sometimes logits of a precision recipe. Values that a step has read are
 * computed by the next step with the same structure, so from the second step on no op is executed twice
 * (docs/training.md, "Evaluation and logging").
 *
 *   logging [--quick]
 */
#include <rewind/rewind.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 64, CLASSES = 8, LAYERS = 6, BATCH = 32 };

static void check(const rw_context *ctx, rw_status status)
{
    if (!status && !rw_error_status(ctx)) return;
    fprintf(stderr, "logging: %s\n", rw_error_message(ctx));
    exit(1);
}

struct model {
    rw_tensor *layer[LAYERS], *head;
};

/* Values that one step records. */
struct recorded {
    rw_tensor *norm[LAYERS]; /* of each layer's result: no other op reads them */
    rw_tensor *logits, *cross_entropy, *penalty, *loss;
};

static rw_tensor *norm_of(rw_tape *t, rw_tensor *x)
{
    return rw_sqrt(t, rw_sum_all(t, rw_mul(t, x, x)));
}

/* Records one step and the values that it logs. */
static struct recorded record(rw_tape *t, const struct model *m, const float *x, const int32_t *labels)
{
    struct recorded r;
    rw_tensor *h = rw_input(t, RW_F32, RW_SHAPE(BATCH, WIDTH), x, BATCH * WIDTH * sizeof *x);
    rw_tensor *const y = rw_input(t, RW_I32, RW_SHAPE(BATCH), labels, BATCH * sizeof *labels);
    rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_BF16 });
    for (int l = 0; l < LAYERS; l++) {
        ckpt_begin(t, "layer");
        h = rw_gelu(t, rw_linear(t, h, m->layer[l], RW_NONE));
        ckpt_end(t);
        r.norm[l] = norm_of(t, rw_cast(t, h, RW_F32)); /* next to the layer, so that h need not be kept for it */
    }
    rw_tensor *const logits = rw_linear(t, h, m->head, RW_NONE);
    rw_recipe_end(t);
    r.logits = rw_cast(t, logits, RW_F32); /* logits are bfloat16: values read by the host are cast */
    r.cross_entropy = rw_cross_entropy(t, r.logits, y);
    r.penalty = rw_scale(t, rw_mean_all(t, rw_mul(t, m->head, m->head)), 1e-3);
    r.loss = rw_add(t, r.cross_entropy, r.penalty);
    return r;
}

static void make_batch(float *x, int32_t *labels, int step)
{
    for (int i = 0; i < BATCH * WIDTH; i++) x[i] = (float)((i * 31 + step * 17) % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) labels[i] = (i * 7 + step) % CLASSES;
}

/* Trains, and reads the logged values before backward, after it, and after the update. */
static void train(rw_context *ctx, rw_tape *t, const struct model *m, rw_optimizer *adam, int steps)
{
    static float x[BATCH * WIDTH], logits[BATCH * CLASSES];
    int32_t labels[BATCH];
    for (int step = 0; step < steps; step++) {
        make_batch(x, labels, step);
        const struct recorded r = record(t, m, x, labels);
        double largest = 0;
        for (int l = 0; l < LAYERS; l++) { /* before backward: the first read runs forward, the others are copies */
            const double norm = rw_item(t, r.norm[l]);
            if (norm > largest) largest = norm;
        }
        check(ctx, rw_backward(t, r.loss)); /* continues that step */
        if (step % 10 == 0) check(ctx, rw_read(t, r.logits, logits, sizeof logits)); /* runs forward once more */
        check(ctx, rw_optimizer_step(adam));
        /* The terms of the loss are held: they can be read after the weights have changed. */
        printf("step %2d  loss %.4f  cross entropy %.4f  penalty %.6f  largest norm %.3f\n", step,
               rw_item(t, r.loss), rw_item(t, r.cross_entropy), rw_item(t, r.penalty), largest);
        check(ctx, RW_OK);
        rw_zero_grad(ctx);
        rw_tape_reset(t);
    }
}

int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "--quick");
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *adam = NULL;
    if (rw_context_create(&ctx, &(rw_context_params){ .seed = 7 }) || rw_tape_create(&t, ctx)) {
        fprintf(stderr, "logging: %s\n", rw_error_message(ctx));
        rw_context_destroy(&ctx);
        return 1;
    }
    struct model m;
    for (int l = 0; l < LAYERS; l++) {
        char name[16];
        snprintf(name, sizeof name, "layer.%d", l);
        m.layer[l] = rw_param(ctx, name, RW_F32, RW_SHAPE(WIDTH, WIDTH));
        rw_init_normal(m.layer[l], 0, 0.15);
    }
    m.head = rw_param(ctx, "head", RW_F32, RW_SHAPE(CLASSES, WIDTH));
    rw_init_normal(m.head, 0, 0.1);
    check(ctx, rw_adam_create(&adam, ctx, &(rw_adam_params){ .lr = 1e-3 }));
    train(ctx, t, &m, adam, quick ? 3 : 30);
    rw_optimizer_destroy(&adam);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return 0;
}
