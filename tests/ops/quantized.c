/*
 * Quantized weights: data and values equal those of bitsandbytes, memory equals the formula, a product is bit-identical
 * to one with the dequantized weight wherever that is exact, the whole weight is never dequantized in memory, and
 * invalid calls are refused.
 */
#include "base/quantized_formats.h"
#include "record/tape.h"
#include "support/compare.h"
#include "support/refused.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const rw_dtype floats[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };

static uint64_t digest(const void *data, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return h;
}

/* Number i of make_quantized.py. */
static double number(uint64_t i, int bits)
{
    const uint64_t block = i / 64;
    const double x = (double)((i * 2654435761u + i / 7 * 40503) % ((uint64_t)1 << 32) >> (31 - bits)) - ldexp(1, bits);
    return block % 11 == 5 ? 0 : ldexp(x, -bits - (int)(block % 3) - (int)(block / 256 % 2));
}

static rw_quantized filled(struct fixture *b, const char *name, rw_quantized_kind kind, int64_t out, int64_t in,
                           int bits, rw_dtype dtype)
{
    rw_quantized w;
    const size_t n = (size_t)(out * in), size = rw_dtype_size(dtype);
    unsigned char *const data = malloc(n * size + 1);
    for (size_t i = 0; i < n; i++) cr_assert(number_put(data, dtype, (int64_t)i, number(i, bits)));
    cr_assert_eq(rw_quantized_create(b->ctx, name, kind, RW_SHAPE(out, in), &w), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_quantized_write(&w, dtype, data, n * size), RW_OK, "%s", rw_error_message(b->ctx));
    free(data);
    return w;
}

static float *decoded(const rw_quantized *w)
{
    const size_t bytes = (size_t)(w->out * w->in) * sizeof(float);
    float *const x = malloc(bytes + 1);
    cr_assert_eq(rw_quantized_read(w, x, bytes), RW_OK);
    return x;
}

static uint8_t *words_of(const rw_quantized *w)
{
    uint8_t *const words = malloc(rw_tensor_bytes(w->words) + 1);
    cr_assert_eq(rw_read(NULL, w->words, words, rw_tensor_bytes(w->words)), RW_OK);
    return words;
}

/* ---- codes ---- */

static const struct {
    int64_t out, in;
    int bits;
    rw_dtype dtype;
    uint64_t digests[7];
} golden[] = {
#include "golden/quantized_codes.h"
};

Test(quantized, codes_and_numbers_are_those_of_bitsandbytes)
{
    for (size_t g = 0; g < sizeof golden / sizeof *golden; g++) {
        struct fixture b = fixture_open(1, 1);
        const int64_t out = golden[g].out, n = out * golden[g].in;
        const uint64_t *const want = golden[g].digests;
        const rw_quantized nf4 = filled(&b, "nf4", RW_NF4, out, golden[g].in, golden[g].bits, golden[g].dtype);
        const rw_quantized int8 = filled(&b, "int8", RW_INT8, out, golden[g].in, golden[g].bits, golden[g].dtype);
        uint8_t *const four = words_of(&nf4), *const eight = words_of(&int8);
        float *const of_four = decoded(&nf4), *const of_eight = decoded(&int8);
        const struct rw_quantized_parts p = rw_parts_of_nf4(n), q = rw_parts_of_int8(n, out);
        cr_expect_eq(digest(four, (size_t)n / 2), want[0], "%zu: codes", g);
        cr_expect_eq(digest(four + p.scales, (size_t)n / 64), want[1], "%zu: scales", g);
        cr_expect_eq(digest(four + p.mean, (size_t)(p.bytes - p.mean)), want[2], "%zu: nested scales", g);
        cr_expect_eq(digest(of_four, (size_t)n * 4), want[3], "%zu: numbers", g);
        cr_expect_eq(digest(eight, (size_t)n), want[4], "%zu: codes of eight bits", g);
        cr_expect_eq(digest(eight + q.largest, (size_t)out * 4), want[5], "%zu: scales of eight bits", g);
        cr_expect_eq(digest(of_eight, (size_t)n * 4), want[6], "%zu: numbers of eight bits", g);
        free(four), free(eight), free(of_four), free(of_eight);
        fixture_close(&b);
    }
}

/* Numbers halfway between two levels, and some that a division instead of the rounded inverse would move to another
   level: the data equal those of bitsandbytes. */
Test(quantized, ties_and_roundings_are_those_of_bitsandbytes)
{
    static const float levels[] = { RW_NF4_NUMBERS };
    static const struct {
        float largest, x;
        int code;
    } near[] = { { 0x1.a30fecp-1f, -0x1.6367b6p-1f, 1 },
                 { 0x1.4510bep-1f, -0x1.b9ac0ep-3f, 4 },
                 { 0x1.4510bep-1f, -0x1.d98e32p-6f, 7 } };
    struct fixture b = fixture_open(1, 1);
    float x[4 * 64] = { 1 };
    rw_quantized w;
    for (int i = 0; i < 15; i++) x[1 + i] = (levels[i] + levels[i + 1]) / 2;
    for (int i = 0; i < 3; i++) x[64 * (1 + i)] = near[i].largest, x[64 * (1 + i) + 1] = near[i].x;
    cr_assert_eq(rw_quantized_create(b.ctx, "w", RW_NF4, RW_SHAPE(4, 64), &w), RW_OK);
    cr_assert_eq(rw_quantized_write(&w, RW_F32, x, sizeof x), RW_OK);
    uint8_t *const words = words_of(&w);
    for (int i = 0; i < 15; i++) cr_expect_eq(i % 2 ? words[(1 + i) / 2] >> 4 : words[i / 2] & 15, i, "tie %d", i);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(words[32 * (1 + i)] & 15, near[i].code, "%a of %a", (double)near[i].x, (double)near[i].largest);
    free(words);
    fixture_close(&b);
}

Test(quantized, bytes_are_the_formula_s)
{
    static const int64_t shapes[][2] = { { 768, 3072 }, { 1, 64 }, { 3, 64 }, { 5, 192 }, { 0, 64 }, { 4, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < RW_QUANTIZED_KIND_COUNT; kind++) {
            struct fixture b = fixture_open(1, 1);
            const int64_t out = shapes[i][0], n = out * shapes[i][1];
            const int64_t four = n / 2 + 4 * ((n + 255) / 256) + 4 + 4 * ((n + 16383) / 16384);
            const int64_t eight = 4 * ((n + 3) / 4) + 4 * out;
            const rw_shape shape = RW_SHAPE(out, shapes[i][1]);
            rw_quantized w;
            rw_memory m;
            cr_assert_eq(rw_quantized_create(b.ctx, "w", (rw_quantized_kind)kind, shape, &w), RW_OK);
            cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
            cr_expect_eq(m.parameters, (size_t)(kind == RW_NF4 ? four : eight));
            cr_expect_eq(m.parameters, rw_quantized_bytes((rw_quantized_kind)kind, shape));
            cr_expect_eq(m.gradients, 0);
            if (!i && kind == RW_NF4) cr_expect_float_eq(8 * (double)m.parameters / (double)n, 4.127, 0.0005);
            float *const zeros = decoded(&w);
            for (int64_t k = 0; k < n; k++) cr_assert_eq(zeros[k], 0);
            free(zeros);
            fixture_close(&b);
        }
}

/* ---- products ---- */

/* So small that results are below the least normal number: those are rounded, not flushed to 0. The product is small,
   because a matrix unit would flush them itself. */
Test(quantized, numbers_below_the_normal_ones_are_decoded)
{
    enum { OUT = 16, IN = 32 };
    struct fixture b = fixture_open(1, 1);
    float x[OUT * IN], one[IN * IN] = { 0 };
    rw_quantized w;
    for (int i = 0; i < OUT * IN; i++) x[i] = (float)(i % IN ? i % 255 - 127 : 127) * 0x1p-134f;
    for (int i = 0; i < IN; i++) one[i * IN + i] = 1;
    cr_assert_eq(rw_quantized_create(b.ctx, "w", RW_INT8, RW_SHAPE(OUT, IN), &w), RW_OK);
    cr_assert_eq(rw_quantized_write(&w, RW_F32, x, sizeof x), RW_OK);
    float *const numbers = decoded(&w);
    rw_tensor *const identity = rw_cast(b.t, rw_input(b.t, RW_F32, RW_SHAPE(IN, IN), one, sizeof one), RW_BF16);
    rw_tensor *const want = rw_cast(b.t, rw_input(b.t, RW_F32, RW_SHAPE(OUT, IN), numbers, OUT * IN * sizeof *numbers),
                                    RW_BF16);
    rw_tensor *const got = rw_contiguous(b.t, rw_transpose(b.t, rw_linear_quantized(b.t, identity, &w, RW_NONE), 0, 1));
    uint16_t bytes[2][OUT * IN];
    cr_assert_eq(rw_read(b.t, got, bytes[0], sizeof bytes[0]), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, want, bytes[1], sizeof bytes[1]), RW_OK);
    for (int i = 0; i < OUT * IN; i++)
        cr_assert_eq(number_get(bytes[0], RW_BF16, i), number_get(bytes[1], RW_BF16, i), "number %d", i);
    cr_assert_neq(number_get(bytes[1], RW_BF16, 1), 0);
    free(numbers);
    fixture_close(&b);
}

/* x is the identity, so the product equals the weight: every encoding, each rounded to the type, on every device. */
Test(quantized, a_product_decodes_every_code_to_the_bit)
{
    struct fixture b = fixture_open(1, 2);
    const int64_t in = 128, out = 140; /* two groups of scales */
    double *const one = calloc((size_t)(in * in), sizeof *one);
    for (int64_t i = 0; i < in; i++) one[i * in + i] = 1;
    for (int kind = 0; kind < RW_QUANTIZED_KIND_COUNT; kind++) {
        const rw_quantized w = filled(&b, kind ? "int8" : "nf4", (rw_quantized_kind)kind, out, in, 20, RW_F32);
        float *const want = decoded(&w);
        for (int d = 0; d < 4; d++) {
            rw_tensor *const x = rw_cast(b.t, rw_input(b.t, RW_F64, RW_SHAPE(in, in), one, in * in * sizeof *one),
                                         floats[d]);
            rw_tensor *const all = rw_cast(b.t, rw_input(b.t, RW_F32, RW_SHAPE(out, in), want, out * in * sizeof *want),
                                           floats[d]);
            rw_tensor *const y[] = { rw_transpose(b.t, rw_linear_quantized(b.t, x, &w, RW_NONE), 0, 1), all };
            unsigned char got[2][140 * 128 * 8];
            for (int i = 0; i < 2; i++)
                cr_assert_eq(rw_read(b.t, rw_contiguous(b.t, y[i]), got[i], rw_tensor_bytes(y[i])), RW_OK, "%s",
                             rw_error_message(b.ctx));
            for (int64_t i = 0; i < out * in; i++)
                cr_assert_eq(number_get(got[0], floats[d], i), number_get(got[1], floats[d], i), "%s: number %lld",
                             rw_dtype_name(floats[d]), (long long)i);
            rw_tape_reset(b.t);
        }
        free(want);
    }
    free(one);
    fixture_close(&b);
}

#define ROWS 2

/* Computes y and the gradient of x into out, for rows of numbers. */
static void run(struct fixture *b, const rw_quantized *w, rw_dtype dtype, unsigned char *y, unsigned char *dx)
{
    const size_t size = rw_dtype_size(dtype);
    double *const numbers = malloc((size_t)(ROWS * (w->in + w->out)) * sizeof *numbers);
    double *const u = numbers + ROWS * w->in;
    for (int64_t i = 0; i < ROWS * w->in; i++) numbers[i] = number((uint64_t)i * 3, 5);
    for (int64_t i = 0; i < ROWS * w->out; i++) u[i] = number((uint64_t)i * 5, 5);
    rw_tensor *const x = rw_cast(
        b->t, rw_input(b->t, RW_F64, RW_SHAPE(ROWS, w->in), numbers, (size_t)(ROWS * w->in) * sizeof *numbers), dtype);
    rw_tensor *const up = rw_cast(
        b->t, rw_input(b->t, RW_F64, RW_SHAPE(ROWS, w->out), u, (size_t)(ROWS * w->out) * sizeof *u), dtype);
    rw_require_grad(b->t, x);
    rw_tensor *const product = rw_linear_quantized(b->t, x, w, RW_NONE);
    rw_require_grad(b->t, product);
    rw_tensor *const loss = rw_sum(b->t, rw_cast(b->t, rw_mul(b->t, product, up), RW_F64), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, product, y, (size_t)(ROWS * w->out) * size), RW_OK);
    cr_assert_eq(rw_read(b->t, rw_gradient(x), dx, (size_t)(ROWS * w->in) * size), RW_OK);
    free(numbers);
}

/* In float64 forward takes three panels of rows, backward two of columns; in float32, by oneDNN, two and one. */
Test(quantized, many_panels_are_one_product_and_no_bit_depends_on_threads)
{
    const int64_t out = test_device() == RW_DEVICE_CUDA ? 8200 : 2100, in = 128;
    const rw_dtype types[] = { RW_F64, RW_F32 };
    for (int kind = 0; kind < RW_QUANTIZED_KIND_COUNT; kind++)
        for (int d = 0; d < 2; d++) {
            if (test_device() == RW_DEVICE_CUDA && kind != d) continue;
            struct fixture b = fixture_open(1, 1);
            const rw_quantized w = filled(&b, "w", (rw_quantized_kind)kind, out, in, 20, RW_F32);
            const size_t most = (size_t)(ROWS * out) * 8;
            unsigned char *const y = malloc(most), *const dx = malloc(most), *const again = malloc(2 * most);
            float *const numbers = decoded(&w);
            run(&b, &w, types[d], y, dx);
            for (int64_t r = 0; r < ROWS; r++) {
                for (int64_t o = 0; o < out; o++) {
                    double want = 0, size = 0;
                    for (int64_t i = 0; i < in; i++) {
                        const double term = number((uint64_t)(r * in + i) * 3, 5) * (double)numbers[o * in + i];
                        want += term, size += fabs(term);
                    }
                    cr_assert_leq(fabs(number_get(y, types[d], r * out + o) - want),
                                  tolerance(types[d], types[d], (struct roundings){ (int)in + 1, 1 }, want, size));
                }
                for (int64_t i = 0; i < in; i++) {
                    double want = 0, size = 0;
                    for (int64_t o = 0; o < out; o++) {
                        const double term = number((uint64_t)(r * out + o) * 5, 5) * (double)numbers[o * in + i];
                        want += term, size += fabs(term);
                    }
                    cr_assert_leq(fabs(number_get(dx, types[d], r * in + i) - want),
                                  tolerance(types[d], types[d], (struct roundings){ (int)out + 1, 1 }, want, size));
                }
            }
            rw_memory m;
            cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
            cr_expect_eq(m.predicted_peak, m.measured_peak);
            cr_expect_lt(m.workspace, (size_t)(out * in) * rw_dtype_size(types[d]), "the whole weight has room");
            for (int threads = 2; threads <= 5 && test_device() == RW_DEVICE_CPU; threads += 3) {
                rw_tape_reset(b.t);
                rw_context_set_threads(b.ctx, threads);
                run(&b, &w, types[d], again, again + most);
                cr_expect_lt(first_difference(y, again, (size_t)(ROWS * out) * rw_dtype_size(types[d])), 0);
                cr_expect_lt(first_difference(dx, again + most, (size_t)(ROWS * in) * rw_dtype_size(types[d])), 0);
            }
            free(y), free(dx), free(again), free(numbers);
            fixture_close(&b);
        }
}

/* Assembled from the tensors that bitsandbytes saves, as described in docs/precision.md; with 5 rows the scales end
   within a word. */
Test(quantized, a_base_out_of_its_parts)
{
    enum { OUT = 5, IN = 64, N = OUT * IN };
    struct fixture b = fixture_open(1, 1);
    const rw_quantized from = filled(&b, "from", RW_NF4, OUT, IN, 20, RW_F32);
    const struct rw_quantized_parts p = rw_parts_of_nf4(N);
    uint8_t *const parts = words_of(&from), words[N / 2 + 8 + 4 + 4];
    rw_quantized to;
    size_t n = 0;
    memcpy(words, parts, N / 2), n += N / 2;
    memcpy(words + n, parts + p.scales, OUT), n += OUT;
    while (n % 4) words[n++] = 0;
    memcpy(words + n, parts + p.mean, 4), n += 4;
    memcpy(words + n, parts + p.largest, 4), n += 4;
    cr_assert_eq(rw_quantized_create(b.ctx, "to", RW_NF4, RW_SHAPE(OUT, IN), &to), RW_OK);
    cr_assert_eq(rw_write(to.words, words, n), RW_OK, "%s", rw_error_message(b.ctx));
    float *const want = decoded(&from), *const got = decoded(&to);
    cr_expect_eq(first_difference(want, got, N * sizeof *want), -1);
    free(parts), free(want), free(got);
    fixture_close(&b);
}

/* 127 divided by the maximum of such a row is infinite. */
Test(quantized, rows_of_the_smallest_numbers)
{
    enum { OUT = 6, IN = 65 };
    static const float most[OUT] = { 1e-36f, 3e-37f, 1e-38f, 1e-41f, 0x1p-149f, 0 };
    float x[OUT * IN];
    struct fixture b = fixture_open(1, 1);
    rw_quantized w;
    for (int i = 0; i < OUT * IN; i++) x[i] = most[i / IN] * (float)(i % IN % 5 - 2) / 2;
    cr_assert_eq(rw_quantized_create(b.ctx, "w", RW_INT8, RW_SHAPE(OUT, IN), &w), RW_OK);
    cr_assert_eq(rw_quantized_write(&w, RW_F32, x, sizeof x), RW_OK);
    float *const got = decoded(&w);
    for (int i = 0; i < OUT * IN; i++)
        cr_expect_leq(fabs((double)got[i] - (double)x[i]), (double)most[i / IN] / 253 + 0x1p-149, "%d: %a, not %a", i,
                      (double)got[i], (double)x[i]);
    free(got);
    fixture_close(&b);
}

/* ---- a model on a frozen base ---- */

/* Two blocks, each x + gelu of (the base's product plus the trained update). */
static rw_tensor *adapted(struct fixture *b, const rw_quantized *base, rw_tensor *const *down, rw_tensor *const *up)
{
    static float numbers[8 * 64];
    for (int i = 0; i < 8 * 64; i++) numbers[i] = (float)number((uint64_t)i, 6);
    rw_tensor *x = rw_input(b->t, RW_F32, RW_SHAPE(8, 64), numbers, sizeof numbers);
    for (int l = 0; l < 2; l++) {
        ckpt_begin(b->t, "block");
        rw_tensor *const beside = rw_linear(b->t, rw_dropout(b->t, rw_linear(b->t, x, down[l], RW_NONE), 0.2), up[l],
                                            RW_NONE);
        x = rw_add(b->t, x, rw_gelu(b->t, rw_add(b->t, rw_linear_quantized(b->t, x, &base[l], RW_NONE), beside)));
        ckpt_end(b->t);
    }
    return rw_mean(b->t, rw_mul(b->t, x, x), RW_ALL_AXES, false);
}

Test(quantized, gradients_of_adapters_are_the_same_bytes_under_every_policy_and_a_file_brings_the_base_back)
{
    static const char *const policies[] = { "none", "full", "uniform:2", "ops:linear_quantized" };
    unsigned char *first = NULL;
    size_t bytes;
    char path[64];
    snprintf(path, sizeof path, "/tmp/quantized_%d.safetensors", (int)getpid());
    for (int p = 0; p < 4; p++) {
        struct fixture b = fixture_open(7, 2);
        rw_tensor *down[2], *up[2];
        rw_quantized base[2];
        for (int l = 0; l < 2; l++) {
            down[l] = rw_param(b.ctx, l ? "d1" : "d0", RW_F32, RW_SHAPE(4, 64));
            up[l] = rw_param(b.ctx, l ? "u1" : "u0", RW_F32, RW_SHAPE(64, 4));
            rw_init_normal(down[l], 0, 0.1), rw_init_normal(up[l], 0, 0.1);
            if (!p) base[l] = filled(&b, l ? "w1" : "w0", l ? RW_INT8 : RW_NF4, 64, 64, 20, RW_F32);
            else rw_quantized_create(b.ctx, l ? "w1" : "w0", l ? RW_INT8 : RW_NF4, RW_SHAPE(64, 64), &base[l]);
        }
        if (!p) cr_assert_eq(rw_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
        else cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(ckpt_set_policy(b.t, policies[p]), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tensor *const loss = adapted(&b, base, down, up);
        cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        unsigned char *const all = all_gradients(b.ctx, &bytes);
        cr_assert_eq(bytes, 4 * 4 * 64 * sizeof(float), "a gradient of the base");
        if (first) cr_expect_lt(first_difference(first, all, bytes), 0, "%s", policies[p]);
        if (first) free(all);
        else first = all;
        fixture_close(&b);
    }
    free(first);
    remove(path);
}

Test(quantized, a_base_that_changes_before_its_replay_is_named)
{
    struct fixture b = fixture_open(1, 1);
    float numbers[64 * 64] = { 1 };
    const rw_quantized w = filled(&b, "base", RW_NF4, 64, 64, 20, RW_F32);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2, 64));
    ckpt_set_policy(b.t, "full");
    ckpt_begin(b.t, "block");
    rw_tensor *const y = rw_gelu(b.t, rw_linear_quantized(b.t, p, &w, RW_NONE));
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
    cr_assert_eq(rw_forward(b.t, &loss, 1), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_quantized_write(&w, RW_F32, numbers, sizeof numbers), RW_OK);
    cr_expect_eq(rw_backward(b.t, loss), RW_ERR_MODIFIED);
    cr_expect(strstr(rw_error_message(b.ctx), "\"base\""), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

/* ---- mistakes ---- */

#define FAILS(want, call)                                                                                              \
    do {                                                                                                               \
        cr_expect_eq(call, want, "%s: %s", #call, rw_error_message(b.ctx));                                            \
        cr_expect(*rw_error_message(b.ctx), "%s says nothing", #call);                                                 \
        rw_error_clear(b.ctx);                                                                                         \
    } while (0)

Test(quantized, mistakes_are_refused_by_name)
{
    struct fixture b = fixture_open(1, 1);
    const rw_quantized w = filled(&b, "w", RW_NF4, 8, 64, 20, RW_F32);
    rw_quantized none = { RW_INT8, -1, -1, NULL };
    rw_memory before, after;
    rw_memory_stats(b.ctx, &before);
    FAILS(RW_ERR_SHAPE, rw_quantized_create(b.ctx, "a", RW_NF4, RW_SHAPE(4, 65), &none));
    FAILS(RW_ERR_SHAPE, rw_quantized_create(b.ctx, "a", RW_NF4, RW_SHAPE(64), &none));
    FAILS(RW_ERR_SHAPE, rw_quantized_create(b.ctx, "a", RW_INT8, RW_SHAPE(-1, 64), &none));
    FAILS(RW_ERR_SHAPE, rw_quantized_create(b.ctx, "a", RW_INT8, RW_SHAPE(INT64_MAX / 2, 64), &none));
    FAILS(RW_ERR_ARGUMENT, rw_quantized_create(b.ctx, "a", (rw_quantized_kind)7, RW_SHAPE(4, 64), &none));
    FAILS(RW_ERR_ARGUMENT, rw_quantized_create(b.ctx, "w", RW_NF4, RW_SHAPE(4, 64), &none));
    FAILS(RW_ERR_ARGUMENT, rw_quantized_create(b.ctx, "", RW_NF4, RW_SHAPE(4, 64), &none));
    FAILS(RW_ERR_ARGUMENT, rw_quantized_create(b.ctx, "a", RW_NF4, RW_SHAPE(4, 64), NULL));
    cr_expect_eq(none.out, -1);
    cr_expect_eq(rw_quantized_create(NULL, "a", RW_NF4, RW_SHAPE(4, 64), &none), RW_ERR_ARGUMENT);
    cr_expect_eq(rw_quantized_bytes(RW_NF4, RW_SHAPE(4, 65)), 0);
    float x[8 * 64] = { 0 };
    FAILS(RW_ERR_ARGUMENT, rw_quantized_write(&w, RW_F32, x, sizeof x - 4));
    FAILS(RW_ERR_ARGUMENT, rw_quantized_write(&w, RW_F32, NULL, sizeof x));
    FAILS(RW_ERR_DTYPE, rw_quantized_write(&w, RW_I32, x, sizeof x));
    FAILS(RW_ERR_ARGUMENT, rw_quantized_read(&w, x, sizeof x - 4));
    FAILS(RW_ERR_ARGUMENT, rw_quantized_read(&w, NULL, sizeof x));
    const rw_quantized other = { RW_INT8, w.out, w.in, w.words };
    FAILS(RW_ERR_ARGUMENT, rw_quantized_read(&other, x, sizeof x));
    cr_expect_eq(rw_quantized_write(NULL, RW_F32, x, sizeof x), RW_ERR_ARGUMENT);
    uint8_t *const words = words_of(&w);
    x[77] = NAN;
    cr_expect_eq(rw_quantized_write(&w, RW_F32, x, sizeof x), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(b.ctx), "got another at 77"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    uint8_t *const same = words_of(&w);
    cr_expect_lt(first_difference(words, same, rw_tensor_bytes(w.words)), 0, "a refused call wrote");
    free(words), free(same);
    rw_memory_stats(b.ctx, &after);
    cr_expect_eq(before.parameters, after.parameters);

    rw_tensor *const rows = rw_input(b.t, RW_F32, RW_SHAPE(2, 64), NULL, 0);
    rw_tensor *const narrow = rw_input(b.t, RW_F32, RW_SHAPE(2, 63), NULL, 0);
    rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(2, 64), NULL, 0);
    rw_tensor *const scalar = rw_input(b.t, RW_F32, RW_SCALAR, NULL, 0);
    rw_tensor *const bias = rw_input(b.t, RW_BF16, RW_SHAPE(8), NULL, 0), *const few = rw_input(b.t, RW_F32,
                                                                                                RW_SHAPE(7), NULL, 0);
    const rw_quantized odd = { RW_NF4, 8, 63, w.words }, wide = { RW_NF4, 8, 128, w.words },
                       kind = { (rw_quantized_kind)9, 8, 64, w.words }, real = { RW_NF4, 8, 64, rows },
                       negative = { RW_NF4, -8, 64, w.words };
    REFUSED(RW_ERR_SHAPE, rw_linear_quantized(b.t, narrow, &w, RW_NONE));
    REFUSED(RW_ERR_DTYPE, rw_linear_quantized(b.t, index, &w, RW_NONE));
    REFUSED(RW_ERR_SHAPE, rw_linear_quantized(b.t, scalar, &w, RW_NONE));
    REFUSED(RW_ERR_DTYPE, rw_linear_quantized(b.t, rows, &w, bias));
    REFUSED(RW_ERR_SHAPE, rw_linear_quantized(b.t, rows, &w, few));
    REFUSED(RW_ERR_SHAPE, rw_linear_quantized(b.t, rows, &odd, RW_NONE));
    REFUSED(RW_ERR_SHAPE, rw_linear_quantized(b.t, rows, &wide, RW_NONE));
    REFUSED(RW_ERR_SHAPE, rw_linear_quantized(b.t, rows, &negative, RW_NONE));
    REFUSED(RW_ERR_ARGUMENT, rw_linear_quantized(b.t, rows, &kind, RW_NONE));
    REFUSED(RW_ERR_DTYPE, rw_linear_quantized(b.t, rows, &real, RW_NONE));
    REFUSED(RW_ERR_ARGUMENT, rw_linear_quantized(b.t, rows, NULL, RW_NONE));
    REFUSED(RW_ERR_DTYPE, rw_linear(b.t, rows, w.words, RW_NONE));
    fixture_close(&b);
}

/* A gradient of the base, and an optimizer for it, are refused. */
Test(quantized, a_base_takes_no_gradient_and_no_optimizer)
{
    struct fixture b = fixture_open(1, 1);
    const rw_quantized w = filled(&b, "w", RW_NF4, 8, 64, 20, RW_F32);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2, 64)), *dw = NULL;
    rw_tensor *const y = rw_sum(b.t, rw_linear_quantized(b.t, p, &w, RW_NONE), RW_ALL_AXES, false);
    cr_expect(!rw_tensor_requires_grad(w.words) && rw_tensor_requires_grad(y));
    cr_expect_null(rw_gradient(w.words));
    rw_tensor *words = w.words;
    cr_expect_neq(rw_grad(b.t, y, &words, 1, &dw), RW_OK);
    cr_expect(!dw && *rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_optimizer *opt = NULL;
    rw_memory m;
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    FAILS(RW_ERR_ARGUMENT, rw_optimizer_set(opt, w.words, NULL));
    cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
    cr_expect_lt(m.optimizer, 3 * 2 * 64 * sizeof(float), "states of the base");
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}
