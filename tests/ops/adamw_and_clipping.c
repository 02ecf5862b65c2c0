/*
 * AdamW and clipping compared with their definitions, written here for one number at a time in double: decay of
 * matrices only, epsilon added to the root, a step count per parameter, master copies, one norm over all gradients.
 */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double gradient_of(int64_t i, int step)
{
    return ((double)((uint64_t)(i * 31 + step * 17) * 2654435761u >> 9 & 0x7f) - 63) / 64;
}

static double start_of(int64_t i)
{
    return ((double)((uint64_t)i * 40503u >> 3 & 0x7f) - 50) / 32;
}

static void fill(rw_tensor *x, int64_t n, double (*value)(int64_t, int), int step)
{
    const rw_dtype dtype = rw_tensor_dtype(x);
    void *const data = malloc((size_t)n * 8);
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(data, dtype, i, value(i, step)));
    cr_assert_eq(rw_write(x, data, rw_tensor_bytes(x)), RW_OK);
    free(data);
}

static double start(int64_t i, int step)
{
    return start_of(i);
}

static void *contents(rw_tensor *x)
{
    void *const data = malloc(rw_tensor_bytes(x));
    cr_assert_eq(rw_read(NULL, x, data, rw_tensor_bytes(x)), RW_OK);
    return data;
}

/* One number and its moments. */
struct scalar {
    double x, m, v;
    int steps;
};

static void update(struct scalar *s, const rw_adamw_params *p, bool decays, double g)
{
    s->steps++;
    s->m = p->beta1 * s->m + (1 - p->beta1) * g;
    s->v = p->beta2 * s->v + (1 - p->beta2) * g * g;
    const double m = s->m / (1 - pow(p->beta1, s->steps)), v = s->v / (1 - pow(p->beta2, s->steps));
    if (decays) s->x -= p->lr * p->weight_decay * s->x;
    s->x -= p->lr * m / (sqrt(v) + p->eps);
}

enum { STEPS = 5, PARAMS = 5 };

/* The vector has no gradient in every second step: neither it nor its count changes then. */
static bool has_gradient(int param, int step)
{
    return param != 1 || step % 2 == 0;
}

/* Trains several parameters and compares them with the definition in double. */
static void check_adamw(struct fixture *b, rw_dtype dtype, rw_dtype of_gradient, const rw_adamw_params *given,
                        const rw_adamw_params *meant, double slack)
{
    const rw_shape shapes[PARAMS] = { RW_SHAPE(3, 41), RW_SHAPE(37), RW_SHAPE(2, 3, 4), RW_SHAPE(1, 20011), RW_SCALAR };
    rw_tensor *w[PARAMS];
    rw_optimizer *opt = NULL;
    struct scalar *want[PARAMS];
    for (int k = 0; k < PARAMS; k++) {
        char name[48];
        snprintf(name, sizeof name, "%s.%g.%d.%d", rw_dtype_name(dtype), meant->eps, meant->decay_all, k);
        w[k] = rw_param_with(b->ctx, name, dtype, shapes[k], &(rw_param_options){ .grad_dtype = of_gradient });
        cr_assert_eq(rw_tensor_dtype(rw_gradient(w[k])), of_gradient);
        want[k] = calloc((size_t)rw_shape_numel(shapes[k]), sizeof *want[k]);
        for (int64_t i = 0; i < rw_shape_numel(shapes[k]); i++) want[k][i].x = start_of(i);
    }
    cr_assert_eq(rw_adamw_create(&opt, b->ctx, given), RW_OK);
    /* after the optimizer made its copy: written values must be used */
    for (int k = 0; k < PARAMS; k++) fill(w[k], rw_shape_numel(shapes[k]), start, 0);
    for (int step = 0; step < STEPS; step++) {
        rw_zero_grad(b->ctx);
        for (int k = 0; k < PARAMS; k++) {
            const int64_t n = rw_shape_numel(shapes[k]);
            if (!has_gradient(k, step)) continue;
            fill(rw_gradient(w[k]), n, gradient_of, step + k);
            const bool decays = meant->decay_all || shapes[k].rank > 1;
            for (int64_t i = 0; i < n; i++) update(&want[k][i], meant, decays, gradient_of(i, step + k));
        }
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    for (int k = 0; k < PARAMS; k++) {
        void *const got = contents(w[k]);
        for (int64_t i = 0; i < rw_shape_numel(shapes[k]); i++) {
            const double x = number_get(got, dtype, i), error = slack + unit_roundoff(dtype) * fabs(want[k][i].x);
            cr_assert(fabs(x - want[k][i].x) <= error, "%s, parameter %d, element %ld: %.17g, not %.17g",
                      rw_dtype_name(dtype), k, (long)i, x, want[k][i].x);
        }
        free(got);
        free(want[k]);
    }
    rw_optimizer_destroy(&opt);
}

/* Twenty roundings of numbers of about one in float32; the moments are float32 in these types, too. */
static const struct {
    rw_dtype dtype, gradient;
    double slack;
} types[] = { { RW_F64, RW_F64, 64 * 0x1p-53 },  { RW_F32, RW_F32, 64 * 0x1p-24 },   { RW_BF16, RW_F32, 64 * 0x1p-24 },
              { RW_F16, RW_F32, 64 * 0x1p-24 },  { RW_BF16, RW_BF16, 64 * 0x1p-24 }, { RW_F16, RW_F16, 64 * 0x1p-24 } };

Test(adamw_and_clipping, adamw_is_what_it_says)
{
    rw_adamw_params p = { .lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.3, .weight_decay = 0.2 };
    for (int all = 0; all < 2; all++) {
        p.decay_all = all;
        for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
            struct fixture b = fixture_open(1, 2);
            check_adamw(&b, types[d].dtype, types[d].gradient, &p, &p, types[d].slack);
            fixture_close(&b);
        }
    }
}

Test(adamw_and_clipping, zero_means_the_default_and_less_means_zero)
{
    const rw_adamw_params meant = { .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01 };
    const rw_adamw_params none = { .lr = 0.05, .beta1 = 0, .beta2 = 0, .eps = 0.1, .weight_decay = 0 };
    const rw_adamw_params less = { .lr = 0.05, .beta1 = -1, .beta2 = -1, .eps = 0.1, .weight_decay = -1 };
    struct fixture b = fixture_open(1, 1);
    check_adamw(&b, RW_F64, RW_F64, NULL, &meant, 1e-13);
    fixture_close(&b);
    b = fixture_open(1, 1);
    check_adamw(&b, RW_F64, RW_F64, &(rw_adamw_params){ 0 }, &meant, 1e-13);
    fixture_close(&b);
    b = fixture_open(1, 1);
    check_adamw(&b, RW_F64, RW_F64, &less, &none, 1e-13);
    fixture_close(&b);
}

/* 64 steps of 2^-12 each: each alone is rounded away at 1 in bfloat16, together they are 4 of its units. */
Test(adamw_and_clipping, a_master_copy_adds_up_what_narrow_types_cannot_hold)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(4));
    rw_optimizer *opt = NULL;
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 0x1p-12, .eps = 1e-30, .weight_decay = -1 }),
                 RW_OK);
    fill(rw_gradient(w), 4, gradient_of, 3);
    for (int step = 0; step < 64; step++) cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    void *const got = contents(w);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(number_get(got, RW_BF16, i), gradient_of(i, 3) > 0 ? 1 - 0x1p-6 : 1 + 0x1p-6);
    free(got);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* Without moments a step is lr g / (|g| + 1): for 1 + 2^-10, 64 times, it is 2^-6 more than for 1. Float16 does not
   hold 2^-40: steps with it would be zero. */
Test(adamw_and_clipping, a_float32_gradient_is_read_as_it_is)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(40)), *const v = rw_param(b.ctx, "v", RW_F16,
                                                                                          RW_SHAPE(40));
    rw_optimizer *opt = NULL;
    float g[40];
    cr_assert_eq(rw_init_constant(w, 32), RW_OK);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 1, .beta1 = -1, .beta2 = -1, .eps = 1,
                                                                  .weight_decay = -1 }), RW_OK);
    for (int i = 0; i < 40; i++) g[i] = 1 + 0x1p-10f;
    cr_assert_eq(rw_write(rw_gradient(w), g, sizeof g), RW_OK);
    for (int i = 0; i < 40; i++) g[i] = 0x1p-40f;
    cr_assert_eq(rw_write(rw_gradient(v), g, sizeof g), RW_OK);
    for (int step = 0; step < 64; step++) cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    void *const moved = contents(w);
    for (int i = 0; i < 40; i++) {
        const double x = number_get(moved, RW_BF16, i); /* at most 32 roundings of the master copy */
        cr_assert(fabs(x + 0x1p-6) < 0x1p-10, "%g", x);
    }
    free(moved);
    rw_optimizer_set_lr(opt, 0x1p30);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    void *const small = contents(v);
    for (int i = 0; i < 40; i++) {
        const double x = number_get(small, RW_F16, i);
        cr_assert_eq(x, -0x1p-10, "%g", x);
    }
    free(small);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* The master copy is outdated by then. */
Test(adamw_and_clipping, what_is_written_between_two_steps_counts)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F16, RW_SHAPE(40));
    rw_optimizer *opt = NULL;
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 0x1p-3, .eps = 1e-30, .weight_decay = -1 }),
                 RW_OK);
    fill(rw_gradient(w), 40, gradient_of, 3);
    for (int step = 0; step < 3; step++) {
        if (step == 1) cr_assert_eq(rw_init_constant(w, 8), RW_OK);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    void *const got = contents(w);
    for (int i = 0; i < 40; i++) {
        const double g = gradient_of(i, 3), x = number_get(got, RW_F16, i);
        if (g != 0) cr_assert_eq(x, g > 0 ? 7.75 : 8.25, "%d: %g", i, x);
    }
    free(got);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* ---- clipping ---- */

enum { LONG = 100003, SHORT = 5, CLIPPED = 4 };

struct clip {
    rw_tensor *w[CLIPPED];
    int64_t n[CLIPPED];
    double norm;
};

/* Each parameter has a substantial part of the norm; the last one's gradient is clear. */
static struct clip clip_open(struct fixture *b)
{
    static const rw_dtype dtypes[CLIPPED] = { RW_F32, RW_F64, RW_BF16, RW_F32 };
    struct clip c = { .n = { SHORT, LONG, 3 * SHORT, LONG } };
    double sum = 0;
    for (int k = 0; k < CLIPPED; k++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", k);
        c.w[k] = rw_param(b->ctx, name, dtypes[k], RW_SHAPE(c.n[k]));
        fill(rw_gradient(c.w[k]), c.n[k], gradient_of, k);
    }
    rw_zero_grad(b->ctx);
    for (int k = 0; k + 1 < CLIPPED; k++) {
        const double scale = c.n[k] < LONG ? 64 : 1;
        void *const g = malloc((size_t)c.n[k] * 8);
        for (int64_t i = 0; i < c.n[k]; i++) {
            cr_assert(number_put(g, rw_tensor_dtype(rw_gradient(c.w[k])), i, scale * gradient_of(i, k)));
            sum += scale * scale * gradient_of(i, k) * gradient_of(i, k);
        }
        cr_assert_eq(rw_write(rw_gradient(c.w[k]), g, rw_tensor_bytes(rw_gradient(c.w[k]))), RW_OK);
        free(g);
    }
    c.norm = sqrt(sum);
    return c;
}

static void expect_gradients(const struct clip *c, double factor)
{
    for (int k = 0; k + 1 < CLIPPED; k++) {
        const rw_dtype dtype = rw_tensor_dtype(rw_gradient(c->w[k]));
        const double scale = c->n[k] < LONG ? 64 : 1, error = unit_roundoff(dtype) + 4 * arithmetic_roundoff(dtype);
        void *const got = contents(rw_gradient(c->w[k]));
        for (int64_t i = 0; i < c->n[k]; i++) {
            const double want = scale * gradient_of(i, k) * factor, x = number_get(got, dtype, i);
            cr_assert(fabs(x - want) <= (factor == 1 ? 0 : error) * fabs(want), "parameter %d, %ld: %.17g, not %.17g",
                      k, (long)i, x, want);
        }
        free(got);
    }
}

Test(adamw_and_clipping, clipping_takes_one_norm_over_all)
{
    struct fixture b = fixture_open(1, 2);
    struct clip c = clip_open(&b);
    double norm = 0;
    cr_assert_eq(rw_clip_grad_norm(b.ctx, 2 * c.norm, &norm), RW_OK);
    cr_assert(fabs(norm - c.norm) <= 1e-12 * c.norm, "%.17g, not %.17g", norm, c.norm);
    expect_gradients(&c, 1);
    cr_assert_eq(rw_clip_grad_norm(b.ctx, norm, NULL), RW_OK);
    expect_gradients(&c, 1);
    cr_assert_eq(rw_clip_grad_norm(b.ctx, c.norm / 8, &norm), RW_OK);
    expect_gradients(&c, 1. / 8);
    cr_assert_eq(rw_clip_grad_norm(b.ctx, 1, &norm), RW_OK);
    cr_assert(fabs(norm - c.norm / 8) <= 1e-2 * norm, "after the first: %.17g", norm);
    fixture_close(&b);
}

Test(adamw_and_clipping, clipping_without_gradients_gives_zero)
{
    struct fixture b = fixture_open(1, 1);
    struct clip c = clip_open(&b);
    rw_zero_grad(b.ctx);
    double norm = 5;
    cr_assert_eq(rw_clip_grad_norm(b.ctx, 1, &norm), RW_OK);
    cr_assert_eq(norm, 0);
    fill(rw_gradient(c.w[0]), SHORT, start, 0);
    cr_assert_eq(rw_clip_grad_norm(b.ctx, 100, &norm), RW_OK);
    double sum = 0;
    for (int i = 0; i < SHORT; i++) sum += start_of(i) * start_of(i);
    cr_assert(fabs(norm - sqrt(sum)) < 1e-12, "%g, not %g", norm, sqrt(sum));
    fixture_close(&b);
}

/* Squares of 48 bits: their sum rounds, so another order gives another norm, for at least some of the sets. */
Test(adamw_and_clipping, clipping_gives_the_same_bits_with_any_number_of_threads)
{
    const int sets = test_device() == RW_DEVICE_CPU ? 16 : 1;
    for (int seed = 1; seed <= sets; seed++) {
        unsigned char *first = NULL;
        double norms[6];
        size_t bytes = 0;
        for (int threads = 1; threads <= 5; threads += 2) {
            struct fixture b = fixture_open((uint64_t)seed, threads);
            rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(LONG));
            cr_assert_eq(rw_init_normal(p, 0, 1), RW_OK);
            cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, p, p), RW_ALL_AXES, false)), RW_OK);
            cr_assert_eq(rw_clip_grad_norm(b.ctx, 0.7, &norms[threads]), RW_OK);
            cr_assert_eq(norms[threads], norms[1], "%d threads: %.17g, not %.17g", threads, norms[threads], norms[1]);
            unsigned char *const all = all_gradients(b.ctx, &bytes);
            if (first) cr_assert_eq(first_difference(first, all, bytes), -1, "%d threads", threads);
            if (first) free(all);
            else first = all;
            rw_tape_reset(b.t);
            fixture_close(&b);
        }
        free(first);
    }
}

/* ---- underflow ---- */

static double small_once(int64_t i, int salt)
{
    return salt ? 0 : 0x1p-100;
}

static double none(int64_t i, int salt)
{
    return 0;
}

/* Halved in each step. Below the least normal number it becomes 0, and does not stay at the least subnormal number. */
Test(adamw_and_clipping, a_momentum_that_underflows_is_zero)
{
    if (!test_flushes()) cr_skip_test("subnormal numbers cost nothing here, and stay");
    enum { N = 20011, LAST = 26 };
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
    rw_optimizer *opt = NULL;
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0x1p126, .momentum = 0.5 }), RW_OK);
    for (int step = 0; step <= LAST + 1; step++) {
        fill(w, N, none, 0);
        fill(rw_gradient(w), N, small_once, step);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
        float *const got = contents(w);
        const float want = step <= LAST ? -ldexpf(1, LAST - step) : 0;
        for (int i = 0; i < N; i++) cr_assert_eq(got[i], want, "step %d, element %d: %a", step, i, (double)got[i]);
        free(got);
    }
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}
