/*
 * The time of 16-bit layers relative to those of float32: forward and backward of a linear layer and of a convolution,
 * alternately; medians. A type for which the processor has no multiplication, or no faster one, should cost no more
 * than widening it.
 */
#include "figure.h"

#include <rewind/rewind.h>

enum { WARM = 3, ROUNDS = 15, TYPES = 3 };

static const struct {
    rw_dtype dtype;
    const char *name;
} types[TYPES] = { { RW_F32, "float32" }, { RW_F16, "float16" }, { RW_BF16, "bfloat16" } };

struct layer {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *x, *weight;
};

static void must(const struct layer *l, rw_status status)
{
    if (!status) return;
    fprintf(stderr, "half_precision: %s\n", rw_error_message(l->ctx));
    exit(1);
}

static void layer_open(struct layer *l, rw_dtype dtype, rw_shape x, rw_shape weight)
{
    *l = (struct layer){ NULL };
    must(l, rw_context_create(&l->ctx, &(rw_context_params){ .seed = 1 }));
    must(l, rw_tape_create(&l->t, l->ctx));
    l->x = rw_param(l->ctx, "x", dtype, x);
    l->weight = rw_param(l->ctx, "weight", dtype, weight);
    must(l, l->x && l->weight ? RW_OK : rw_error_status(l->ctx));
    must(l, rw_init_normal(l->x, 0, 1));
    must(l, rw_init_normal(l->weight, 0, 0.03));
}

static void layer_close(struct layer *l)
{
    rw_tape_destroy(&l->t);
    rw_context_destroy(&l->ctx);
}

static rw_tensor *linear(const struct layer *l)
{
    return rw_linear(l->t, l->x, l->weight, RW_NONE);
}

static rw_tensor *convolution(const struct layer *l)
{
    return rw_conv2d(l->t, l->x, l->weight, RW_NONE, &(rw_conv2d_params){ .padding = { 1, 1 } });
}

static double step_ms(const struct layer *l, rw_tensor *(*forward)(const struct layer *l))
{
    const double begin = now_s();
    must(l, rw_backward(l->t, rw_mean(l->t, forward(l), RW_ALL_AXES, false)));
    const double seconds = now_s() - begin;
    rw_tape_reset(l->t);
    rw_zero_grad(l->ctx);
    return 1e3 * seconds;
}

/* Prints the step time in each narrow type over that of float32, as medians over the rounds. */
static void compare(const char *what, rw_shape x, rw_shape weight, rw_tensor *(*forward)(const struct layer *l))
{
    struct layer layers[TYPES];
    double ms[TYPES][ROUNDS], ratio[TYPES][ROUNDS];
    for (int i = 0; i < TYPES; i++) layer_open(&layers[i], types[i].dtype, x, weight);
    for (int round = -WARM; round < ROUNDS; round++)
        for (int i = 0, at = round < 0 ? 0 : round; i < TYPES; i++) {
            ms[i][at] = step_ms(&layers[i], forward);
            ratio[i][at] = ms[i][at] / ms[0][at];
        }
    const double wide = median_of(ms[0], ROUNDS);
    for (int i = 1; i < TYPES; i++) {
        char name[128];
        snprintf(name, sizeof name, "time of %s in %s over float32's (%.1f and %.1f ms)", what, types[i].name,
                 median_of(ms[i], ROUNDS), wide);
        figure(name, median_of(ratio[i], ROUNDS), "times", 1.2);
    }
    for (int i = 0; i < TYPES; i++) layer_close(&layers[i]);
}

int main(void)
{
    compare("a linear layer", RW_SHAPE(1024, 768), RW_SHAPE(3072, 768), linear);
    compare("a convolution", RW_SHAPE(8, 64, 56, 56), RW_SHAPE(64, 64, 3, 3), convolution);
    return answer_end("half_precision", 0);
}
