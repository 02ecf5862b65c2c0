/*
 * The cost of numbers that underflow: weights of positions that a scan has decayed to nearly 0, of keys at a large
 * distance under attention slopes, and moments of weights without gradients. Each is compared with the same work on
 * normal numbers, alternately; medians. If results may be subnormal numbers, the ratios are 3 to 18 on processors that
 * process these by microcode.
 */
#include "figure.h"

#include <rewind/rewind.h>

enum { WARM = 5, ROUNDS = 15, EMPTY_STEPS = 800 };

struct work {
    rw_context *ctx;
    rw_tape *t;
    float given; /* rate of a scan, slope of attention */
    rw_tensor *w;
    rw_optimizer *opt;
};

static void must(const struct work *x, rw_status status)
{
    if (!status) return;
    fprintf(stderr, "subnormal: %s\n", rw_error_message(x->ctx));
    exit(1);
}

static void work_open(struct work *x, float given)
{
    *x = (struct work){ .given = given };
    must(x, rw_context_create(&x->ctx, &(rw_context_params){ .seed = 1 }));
    must(x, rw_tape_create(&x->t, x->ctx));
}

static void work_close(struct work *x)
{
    rw_optimizer_destroy(&x->opt);
    rw_tape_destroy(&x->t);
    rw_context_destroy(&x->ctx);
}

static rw_tensor *drawn(struct work *x, rw_shape shape)
{
    return rw_require_grad(x->t, rw_randn(x->t, RW_F32, shape));
}

static rw_tensor *filled(struct work *x, rw_shape shape, double value)
{
    return rw_full(x->t, RW_F32, shape, value);
}

static double backward_s(struct work *x, rw_tensor *y)
{
    rw_tensor *const loss = rw_mean(x->t, rw_mul(x->t, y, y), RW_ALL_AXES, false);
    const double begin = now_s();
    must(x, rw_backward(x->t, loss));
    const double seconds = now_s() - begin;
    rw_tape_reset(x->t);
    return seconds;
}

static double scan_s(struct work *x)
{
    const rw_shape rows = RW_SHAPE(2, 256, 8, 64), shared = RW_SHAPE(2, 256, 1, 64);
    const rw_ssd_operands o = { drawn(x, rows), filled(x, RW_SHAPE(2, 256, 8), 1), filled(x, RW_SHAPE(8), x->given),
                                drawn(x, shared), drawn(x, shared), RW_NONE };
    return backward_s(x, rw_ssd_scan(x->t, &o, 0, NULL));
}

static double attention_s(struct work *x)
{
    const rw_shape rows = RW_SHAPE(2, 8, 512, 64);
    const rw_attention_params o = { .causal = true, .slopes = filled(x, RW_SHAPE(8), x->given) };
    rw_tensor *const q = drawn(x, rows), *const k = drawn(x, rows), *const v = drawn(x, rows);
    return backward_s(x, rw_attention(x->t, q, k, v, &o));
}

static double update_s(struct work *x)
{
    const double begin = now_s();
    must(x, rw_optimizer_step(x->opt));
    return now_s() - begin;
}

/* A gradient in the first step; then so many steps with zeros. */
static void open_update(struct work *x, int steps)
{
    work_open(x, 0);
    x->w = rw_param(x->ctx, "w", RW_F32, RW_SHAPE(1 << 20));
    must(x, rw_adamw_create(&x->opt, x->ctx, &(rw_adamw_params){ .lr = 1e-3 }));
    must(x, rw_init_constant(x->w, 1e-3));
    for (int i = 0; i <= steps; i++) {
        rw_zero_grad(x->ctx);
        rw_tensor *const y = i ? rw_scale(x->t, x->w, 0) : rw_mul(x->t, x->w, x->w);
        must(x, rw_backward(x->t, rw_sum(x->t, y, RW_ALL_AXES, false)));
        rw_tape_reset(x->t);
        update_s(x);
    }
}

static void compare(const char *name, struct work *small, struct work *other, double (*seconds)(struct work *))
{
    double ratio[ROUNDS];
    for (int i = -WARM; i < ROUNDS; i++) {
        const double a = seconds(small), b = seconds(other);
        ratio[i < 0 ? 0 : i] = a / b;
    }
    figure(name, median_of(ratio, ROUNDS), "times", 1.2);
    work_close(small);
    work_close(other);
}

int main(void)
{
    struct work small, other;
    work_open(&small, -1.5f), work_open(&other, -0.01f);
    compare("time of a scan that forgets within a chunk over one that does not", &small, &other, scan_s);
    work_open(&small, 0.25f), work_open(&other, 0x1p-6f);
    compare("time of attention with slopes of 1/4 over that with 1/64", &small, &other, attention_s);
    open_update(&small, EMPTY_STEPS), open_update(&other, 1);
    compare("time of AdamW on subnormal moments over that on others", &small, &other, update_s);
    return answer_end("subnormal", 0);
}
