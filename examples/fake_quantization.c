/*
 * Quantization-aware training: forward uses weights rounded to -1, 0 or 1, backward passes the gradient to the weights
 * as if nothing had been rounded (straight-through, Bengio et al., arXiv 1308.3432; QAT, Jacob et al., arXiv
 * 1712.05877).
 *
 *   fake_quantization [--quick]
 *
 * The program trains one layer twice: in float32, rounded afterwards, and with rounded weights from the beginning. The
 * second has the smaller error after both are rounded.
 */
#include <rewind/rewind.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 256, IN = 16, OUT = 4 };

static const double levels = 1; /* -1, 0, 1; 4 bits have 7 */

static void check(rw_context *ctx, rw_status status)
{
    if (!status && !rw_error_status(ctx)) return;
    fprintf(stderr, "fake_quantization: %s\n", rw_error_message(ctx));
    exit(1);
}

/* Rounds to the nearest integer, ties to even, for magnitudes below 2^22: float32 has no bits for fractions above
   2^23. */
static rw_tensor *nearest(rw_tape *t, rw_tensor *x)
{
    const double big = 0x1.8p23;
    return rw_add_scalar(t, rw_add_scalar(t, x, big), -big);
}

/* w rounded to a multiple of scale, at most `levels` of them from 0; its gradient is passed to w. For FP8 formats
   rw_quantize() and rw_dequantize() replace nearest() and rw_clamp(). */
static rw_tensor *fake_quantized(rw_tape *t, rw_tensor *w, double scale)
{
    rw_tensor *const steps = rw_clamp(t, nearest(t, rw_scale(t, w, 1 / scale)), -levels, levels);
    return rw_straight_through(t, rw_scale(t, steps, scale), w);
}

/* A layer whose second half of the inputs nearly repeats the first: training can make rounding errors cancel. */
static void make_data(float *x, float *y)
{
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < IN / 2; i++) {
            x[r * IN + i] = (float)sin(r * 0.7 + i * (1.3 + 0.01 * r));
            x[r * IN + IN / 2 + i] = 0.6f * x[r * IN + i] + 0.1f * (float)cos(r * 2.1 + i);
        }
        for (int o = 0; o < OUT; o++) {
            double sum = 0;
            for (int i = 0; i < IN; i++) sum += (double)x[r * IN + i] * sin(i * 3.1 + o * 1.7);
            y[r * OUT + o] = (float)sum;
        }
    }
}

/* Trains, then returns the mean squared error of the rounded weights. */
static double train(bool rounds, int steps, const float *x, const float *y)
{
    const double scale = 1 / levels;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    check(NULL, rw_context_create(&ctx, &(rw_context_params){ .seed = 3 }));
    check(ctx, rw_tape_create(&t, ctx));
    rw_tensor *const w = rw_param(ctx, "w", RW_F32, RW_SHAPE(OUT, IN));
    check(ctx, rw_init_normal(w, 0, 0.1));
    check(ctx, rw_adam_create(&opt, ctx, &(rw_adam_params){ .lr = 0.01 }));
    double error = 0;
    for (int step = 0; step <= steps; step++) { /* the last one evaluates */
        rw_tensor *const in = rw_input(t, RW_F32, RW_SHAPE(ROWS, IN), x, ROWS * IN * sizeof *x);
        rw_tensor *const target = rw_input(t, RW_F32, RW_SHAPE(ROWS, OUT), y, ROWS * OUT * sizeof *y);
        rw_tensor *const used = rounds || step == steps ? fake_quantized(t, w, scale) : w;
        rw_tensor *const loss = rw_mse_loss(t, rw_linear(t, in, used, RW_NONE), target);
        if (step == steps) error = rw_item(t, loss);
        else {
            rw_optimizer_set_lr(opt, 0.01 * (1 - (double)step / steps) + 1e-4);
            check(ctx, rw_backward(t, loss));
            check(ctx, rw_optimizer_step(opt));
            rw_zero_grad(ctx);
        }
        rw_tape_reset(t);
    }
    check(ctx, RW_OK);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return error;
}

int main(int argc, char **argv)
{
    static float x[ROWS * IN], y[ROWS * OUT];
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--quick") != 0)) {
        fprintf(stderr, "usage: fake_quantization [--quick]\n");
        return 2;
    }
    const int steps = argc == 2 ? 300 : 2000;
    make_data(x, y);
    const double after = train(false, steps, x, y), aware = train(true, steps, x, y);
    printf("mean squared error of weights -1, 0, 1: rounded after training %.5f, trained for it %.5f\n", after, aware);
    return aware < after ? 0 : 1;
}
