/*
 * What products of 16-bit types take beside those of float32: forward and backward of a linear layer, in turn; medians.
 * A type that the processor does not multiply, or not faster, is to cost no more than what it takes to widen it.
 */
#include "figure.h"

#include <rewind/rewind.h>

enum { WARM = 3, ROUNDS = 15, ROWS = 1024, IN = 768, OUT = 3072 };

struct layer {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *x, *weight;
};

static void must(const struct layer *l, rw_status status)
{
    if (!status) return;
    fprintf(stderr, "narrow: %s\n", l->ctx ? rw_error_message(l->ctx) : rw_status_name(status));
    exit(1);
}

static void layer_open(struct layer *l, rw_dtype dtype)
{
    *l = (struct layer){ NULL };
    must(l, rw_context_create(&l->ctx, &(rw_context_params){ .seed = 1 }));
    must(l, rw_tape_create(&l->t, l->ctx));
    l->x = rw_param(l->ctx, "x", dtype, RW_SHAPE(ROWS, IN));
    l->weight = rw_param(l->ctx, "weight", dtype, RW_SHAPE(OUT, IN));
    must(l, l->x && l->weight ? RW_OK : rw_error_status(l->ctx));
    must(l, rw_init_normal(l->x, 0, 1));
    must(l, rw_init_normal(l->weight, 0, 0.03));
}

static double step_s(struct layer *l)
{
    const double begin = now_s();
    rw_tensor *const y = rw_linear(l->t, l->x, l->weight, RW_NONE);
    must(l, rw_backward(l->t, rw_mean(l->t, y, RW_ALL_AXES, false)));
    const double seconds = now_s() - begin;
    rw_tape_reset(l->t);
    rw_zero_grad(l->ctx);
    return seconds;
}

int main(void)
{
    static const struct {
        rw_dtype dtype;
        const char *name;
    } of[] = { { RW_F16, "float16" }, { RW_BF16, "bfloat16" } };
    struct layer wide, narrow[2];
    double ratio[2][ROUNDS], ms[3][ROUNDS];
    layer_open(&wide, RW_F32);
    for (int i = 0; i < 2; i++) layer_open(&narrow[i], of[i].dtype);
    for (int round = -WARM; round < ROUNDS; round++) {
        const int at = round < 0 ? 0 : round;
        const double beside = step_s(&wide);
        ms[2][at] = 1e3 * beside;
        for (int i = 0; i < 2; i++) {
            ms[i][at] = 1e3 * step_s(&narrow[i]);
            ratio[i][at] = 1e-3 * ms[i][at] / beside;
        }
    }
    const double beside = median_of(ms[2], ROUNDS);
    for (int i = 0; i < 2; i++) {
        char name[128];
        snprintf(name, sizeof name, "time of products of %s over float32's (%.1f and %.1f ms)", of[i].name,
                 median_of(ms[i], ROUNDS), beside);
        figure(name, median_of(ratio[i], ROUNDS), "times", 1.2);
        rw_tape_destroy(&narrow[i].t);
        rw_context_destroy(&narrow[i].ctx);
    }
    rw_tape_destroy(&wide.t);
    rw_context_destroy(&wide.ctx);
    return 0;
}
