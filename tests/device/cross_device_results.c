/*
 * Results of two devices, besides the words of the generator. Bytes are compared for the optimizer's update, whose
 * arithmetic is element-wise and rounded identically everywhere, and for sums of integers, in any order. The norm of
 * clipping is a sum of squares in an order of the device's own, so it is compared within a derived bound. The device of
 * REWIND_TEST_DEVICE is compared with the CPU; on the CPU, three threads with one.
 */
#include "support/compare.h"
#include "support/support.h"

#include "ops/embedding/embedding.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TENSORS 70 /* more gradients than one launch of clipping takes */
#define STEPS 6

static struct fixture reference_open(void)
{
    struct fixture b;
    const rw_context_params params = { .device = RW_DEVICE_CPU, .seed = 1, .threads = 1 };
    cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    return b;
}

/* Close to multiples of packs, and of the chunk of 8192 elements that a block updates. */
static int64_t elements(int i)
{
    static const int64_t sizes[] = { 1, 3, 4, 7, 257, 0, 8191, 8192, 8195, 16390 };
    return i < 10 ? sizes[i] : 1 + i % 9;
}

static void make_parameters(struct fixture *b, rw_dtype dtype, rw_tensor **p)
{
    char name[16];
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "p%d", i);
        p[i] = rw_param(b->ctx, name, dtype, i % 2 ? RW_SHAPE(elements(i)) : RW_SHAPE(elements(i), 1));
        cr_assert_eq(rw_init_normal(p[i], 0, 1), RW_OK);
    }
}

/* The gradient of sum(c p) is c: the same on every device. Every fourth parameter has none in this step. */
static void make_gradients(struct fixture *b, rw_dtype dtype, rw_tensor **p, int step)
{
    float *const c = malloc(16390 * sizeof *c);
    rw_zero_grad(b->ctx);
    for (int i = 0; i < TENSORS; i++) {
        if ((i + step) % 4 == 3) continue;
        for (int64_t k = 0; k < elements(i); k++) c[k] = (float)((k * 37 + i * 11 + step * 5) % 129 - 64) / 32;
        rw_tensor *const x = rw_cast(
            b->t,
            rw_input(b->t, RW_F32, rw_tensor_shape(p[i]), c, (size_t)rw_shape_numel(rw_tensor_shape(p[i])) * sizeof *c),
            dtype);
        cr_assert_eq(rw_backward(b->t, rw_sum(b->t, rw_mul(b->t, p[i], x), RW_ALL_AXES, false)), RW_OK);
        rw_tape_reset(b->t);
    }
    free(c);
}

/* Runs AdamW updates on made gradients, and returns all parameters' bytes. */
static unsigned char *train(struct fixture *b, rw_dtype dtype, size_t *ret_bytes)
{
    rw_tensor *p[TENSORS];
    rw_optimizer *opt;
    make_parameters(b, dtype, p);
    cr_assert_eq(rw_adamw_create(&opt, b->ctx, &(rw_adamw_params){ .lr = 0.03 }), RW_OK);
    for (int step = 0; step < STEPS; step++) {
        if (step == 3) cr_assert_eq(rw_init_uniform(p[8], -1, 1), RW_OK); /* the master copy is created again */
        if (step == 4) rw_optimizer_set_lr(opt, 0.1);
        make_gradients(b, dtype, p, step);
        cr_assert_eq(rw_clip_grad_norm(b->ctx, 1e9, NULL), RW_OK); /* far above the norm: nothing may change */
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    rw_optimizer_destroy(&opt);
    return all_parameters(b->ctx, ret_bytes);
}

static void check_update(rw_dtype dtype)
{
    struct fixture a = fixture_open(1, 3), b = reference_open();
    size_t n, m;
    unsigned char *const got = train(&a, dtype, &n), *const want = train(&b, dtype, &m);
    cr_assert_eq(n, m);
    const long at = first_difference(got, want, n);
    cr_expect_eq(at, -1, "%s: byte %ld differs", rw_dtype_name(dtype), at);
    free(got), free(want);
    fixture_close(&a), fixture_close(&b);
}

Test(cross_device_results, adamw_f32) { check_update(RW_F32); }
Test(cross_device_results, adamw_f64) { check_update(RW_F64); }
Test(cross_device_results, adamw_bf16) { check_update(RW_BF16); }

static double clip(struct fixture *b, rw_dtype dtype, double *first)
{
    rw_tensor *p[TENSORS];
    double norm = 0;
    make_parameters(b, dtype, p);
    make_gradients(b, dtype, p, 0);
    cr_assert_eq(rw_clip_grad_norm(b->ctx, 0.5, &norm), RW_OK);
    rw_tensor *const g = rw_gradient(p[8]);
    void *const all = malloc(rw_tensor_bytes(g));
    cr_assert_eq(rw_read(b->t, g, all, rw_tensor_bytes(g)), RW_OK);
    *first = number_get(all, dtype, 0);
    free(all);
    return norm;
}

/*
 * A norm of n squares added in double, in any order, is within G(n + 1, 2^-53) of itself, on both sides; the factor
 * takes one more rounding. It is rounded to the arithmetic type, and so is the product, which is rounded once more to
 * its own type.
 */
static void check_clip(rw_dtype dtype)
{
    struct fixture a = fixture_open(1, 3), b = reference_open();
    double x, y;
    const double got = clip(&a, dtype, &x), want = clip(&b, dtype, &y), bound = 2 * roundings(45000, 0x1p-53);
    const double product = bound + 4 * arithmetic_roundoff(dtype) + 2 * unit_roundoff(dtype);
    cr_expect(want > 0.5 && fabs(got - want) <= bound * want, "%s: a norm of %.17g, not %.17g", rw_dtype_name(dtype),
              got, want);
    cr_expect(y != 0 && fabs(x - y) <= product * fabs(y), "%s: clipped to %g, not %g", rw_dtype_name(dtype), x, y);
    fixture_close(&a), fixture_close(&b);
}

Test(cross_device_results, clip_f32) { check_clip(RW_F32); }
Test(cross_device_results, clip_f64) { check_clip(RW_F64); }
Test(cross_device_results, clip_bf16) { check_clip(RW_BF16); }

/* ---- the gradient of embedding: several tiles and passes of the sort, rows that span several runs ---- */

struct table {
    int64_t rows, width, tokens;
    int often; /* two of every three tokens are this row; -1: none */
};

static uint32_t next_random(uint32_t *r)
{
    *r = *r * 1664525u + 1013904223u;
    return *r >> 8;
}

static void fill_index(int32_t *index, const struct table *s)
{
    uint32_t r = 1;
    for (int64_t i = 0; i < s->tokens; i++) {
        const int32_t any = (int32_t)(next_random(&r) % (uint32_t)s->rows);
        index[i] = s->often >= 0 && i % 3 ? s->often : any;
    }
}

/* w: the gradient that each token adds to its row. */
static unsigned char *embedding_gradient(struct fixture *b, const struct table *s, const int32_t *index, const float *w,
                                         size_t *ret_bytes)
{
    rw_tensor *const table = rw_param(b->ctx, "table", RW_F32, RW_SHAPE(s->rows, s->width));
    rw_tensor *const y = rw_embedding(
        b->t, table, rw_input(b->t, RW_I32, RW_SHAPE(s->tokens), index, (size_t)s->tokens * sizeof *index));
    rw_tensor *const x = rw_input(b->t, RW_F32, RW_SHAPE(s->tokens, s->width), w,
                                  (size_t)(s->tokens * s->width) * sizeof *w);
    cr_assert_eq(rw_backward(b->t, rw_sum(b->t, rw_mul(b->t, y, x), RW_ALL_AXES, false)), RW_OK);
    return all_gradients(b->ctx, ret_bytes);
}

/*
 * The order that the kernels promise: a row's tokens are added in their order. CUDA adds runs of RW_SUM_RUN of all
 * tokens, sorted by row and in their order, and then the sums of a row's runs, also in order.
 */
static float *sums_in_order(const struct table *s, const int32_t *index, const float *w)
{
    const int64_t run = test_device() == RW_DEVICE_CUDA ? RW_SUM_RUN : INT64_MAX;
    float *const sums = calloc((size_t)(s->rows * s->width), sizeof *sums);
    int64_t sorted = 0; /* tokens of the rows before */
    for (int64_t row = 0; row < s->rows; row++) {
        int64_t n = 0;
        for (int64_t c = 0; c < s->width; c++) {
            float part = 0, *const to = &sums[row * s->width + c];
            bool first = true;
            n = 0;
            for (int64_t i = 0; i < s->tokens; i++) {
                if (index[i] != row) continue;
                if (n && (sorted + n) % run == 0) {
                    *to = first ? part : *to + part;
                    part = 0, first = false;
                }
                part += w[i * s->width + c];
                n++;
            }
            *to = first ? part : *to + part;
        }
        sorted += n;
    }
    return sums;
}

Test(cross_device_results, embedding_gradient_adds_in_order)
{
    static const struct table all[] = {
        { 300, 5, 5000, 17 }, { 300, 8, 5000, 5 }, { 9, 4, 2048, -1 }, { 1, 4, 129, 0 }
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct table *const s = &all[i];
        int32_t *const index = malloc((size_t)s->tokens * sizeof *index);
        float *const w = malloc((size_t)(s->tokens * s->width) * sizeof *w);
        uint32_t r = 9;
        fill_index(index, s);
        /* Many magnitudes: exchanging two tokens changes the sum. */
        for (int64_t k = 0; k < s->tokens * s->width; k++) {
            const int number = (int)(next_random(&r) % 2001) - 1000;
            w[k] = ldexpf((float)number, (int)(next_random(&r) % 16));
        }
        struct fixture b = fixture_open(1, 3);
        size_t n;
        unsigned char *const got = embedding_gradient(&b, s, index, w, &n);
        float *const want = sums_in_order(s, index, w);
        cr_assert_eq(n, (size_t)(s->rows * s->width) * sizeof *want);
        const long at = first_difference(got, want, n);
        cr_expect_eq(at, -1, "table %zu: byte %ld differs", i, at);
        free(got), free(want), free(index), free(w);
        fixture_close(&b);
    }
}

Test(cross_device_results, embedding_gradient)
{
    static const struct table all[] = {
        { 300, 7, 5000, -1 }, { 300, 8, 5000, 5 }, { 70000, 2, 2049, -1 }, { 255, 4, 2048, 254 }, { 256, 4, 129, 0 },
        { 3, 600, 200, 1 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct fixture a = fixture_open(1, 3), b = reference_open();
        size_t n, m;
        int32_t *const index = malloc((size_t)all[i].tokens * sizeof *index);
        float *const w = malloc((size_t)(all[i].tokens * all[i].width) * sizeof *w);
        fill_index(index, &all[i]);
        for (int64_t k = 0; k < all[i].tokens * all[i].width; k++) w[k] = (float)(k * 7 % 61 - 30); /* sums are exact */
        unsigned char *const got = embedding_gradient(&a, &all[i], index, w, &n);
        unsigned char *const want = embedding_gradient(&b, &all[i], index, w, &m);
        cr_assert_eq(n, m);
        const long at = first_difference(got, want, n);
        cr_expect_eq(at, -1, "table %zu: byte %ld differs", i, at);
        free(got), free(want), free(index), free(w);
        fixture_close(&a), fixture_close(&b);
    }
}

/* The driver's count includes a context's memory; a CPU has no such count. */
Test(cross_device_results, memory_in_use)
{
    const size_t bytes = (size_t)64 << 20;
    struct fixture b = fixture_open(1, 1);
    rw_memory before, after;
    cr_assert_eq(rw_memory_stats(b.ctx, &before), RW_OK);
    cr_assert_neq(rw_buffer(b.ctx, "large", RW_F32, RW_SHAPE((int64_t)(bytes / sizeof(float)))), NULL);
    cr_assert_eq(rw_memory_stats(b.ctx, &after), RW_OK);
    if (rw_context_device(b.ctx) == RW_DEVICE_CPU) cr_expect(before.device == 0 && after.device == 0);
    else cr_expect_geq(after.device, before.device + bytes);
    fixture_close(&b);
}
