/*
 * A step recorded once and launched many times: a curve is fitted to noisy points, with a new batch for every launch.
 * Each launch computes what recording the step again would, including new dropout masks; on CUDA it is one captured
 * graph.
 */
#include <rewind/rewind.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 256, WIDTH = 32, STEPS = 400 };

/* Points of y = sin(x) with some noise, the same for the same step. */
static void next_batch(int step, float *x, float *y)
{
    uint64_t s = (uint64_t)step * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < BATCH; i++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        x[i] = (float)(s >> 40) / (float)(1 << 24) * 6 - 3;
        y[i] = sinf(x[i]) + ((float)(s & 0xffff) / 65536 - 0.5f) * 0.1f;
    }
}

static void die(rw_context *ctx)
{
    fprintf(stderr, "graph: %s\n", rw_error_message(ctx));
    exit(1);
}

int main(void)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    rw_graph *g = NULL;
    static float x[BATCH], y[BATCH];
    if (rw_context_create(&ctx, &(rw_context_params){ .seed = 1 }) || rw_tape_create(&t, ctx)) {
        fprintf(stderr, "graph: %s\n", rw_error_message(ctx));
        rw_context_destroy(&ctx);
        return 1;
    }
    rw_tensor *w1 = rw_param(ctx, "w1", RW_F32, RW_SHAPE(WIDTH, 1)), *b1 = rw_param(ctx, "b1", RW_F32, RW_SHAPE(WIDTH));
    rw_tensor *w2 = rw_param(ctx, "w2", RW_F32, RW_SHAPE(1, WIDTH));
    rw_init_normal(w1, 0, 1);
    rw_init_normal(b1, 0, 1);
    rw_init_normal(w2, 0, 0.1);
    rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .lr = 1e-2 });
    ckpt_set_policy(t, "full");

    next_batch(0, x, y);
    rw_tensor *in = rw_input(t, RW_F32, RW_SHAPE(BATCH, 1), x, sizeof x),
              *want = rw_input(t, RW_F32, RW_SHAPE(BATCH, 1), y, sizeof y);
    ckpt_begin(t, "hidden");
    rw_tensor *h = rw_dropout(t, rw_tanh(t, rw_linear(t, in, w1, b1)), 0.05f);
    ckpt_end(t);
    rw_tensor *loss = rw_mse_loss(t, rw_linear(t, h, w2, RW_NONE), want);

    if (rw_graph_create(&g, t, loss, &(rw_graph_params){ { rw_record_clip(1), rw_record_update(opt) } })) die(ctx);
    double first = 0, last = 0;
    for (int step = 0; step < STEPS; step++) {
        next_batch(step, x, y);
        rw_input_write(in, x, sizeof x);
        rw_input_write(want, y, sizeof y);
        if (rw_graph_launch(g)) die(ctx);
        if (step == 0) first = rw_item(t, loss); /* waits; the other launches do not have to */
    }
    last = rw_item(t, loss);
    printf("on %s: loss %.4f after one launch, %.4f after %d\n", rw_device_name(rw_context_device(ctx)), first, last,
           STEPS);
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return last < first / 4 ? 0 : 1;
}
