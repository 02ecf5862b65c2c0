/*
 * Products of FP8 data. Those that dequantize their factors (on the CPU panel by panel) are bit-identical to products
 * of the values dequantized as a whole, for any number of threads, in a workspace that docs/precision.md has a formula
 * for. Those of a CUDA device that multiplies FP8 data are within a bound, and bit-identical under every policy.
 */
#include "support/compare.h"
#include "support/support.h"

#include "device/cpu/isa.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int64_t rows, in, out;
} shapes[] = { { 1, 1, 1 },        { 3, 5, 0 },         { 0, 5, 3 },         { 4, 0, 6 },
               { 7, 12, 5 },       { 64, 96, 80 },      { 130, 257, 131 },   { 40, 1056, 1300 },
               { 1300, 1056, 40 }, { 300, 8192, 300 },  { 600, 2080, 1300 },
               { 1100, 2500, 1000 } };

/* Panels of the last shape are used one after the other, and so are a matrix unit's of the third last. They are skipped
   on CUDA, which does not need them and is usually simulated, and where an emulated unit or sanitized kernels are
   slow. */
static size_t shapes_here(void)
{
    if (!test_steps(1, 0)) return 7;
    return sizeof shapes / sizeof *shapes - (rw_cpu_emulates_amx ? 2 : 0);
}

static const rw_scaling scalings[] = { RW_SCALING_TENSOR, RW_SCALING_1X128, RW_SCALING_MX };

/* Extents, types and scales for which cuBLASLt has FP8 kernels, on devices from 8.9 on. */
static bool may_be_by_codes(size_t s, rw_scaling scaling)
{
    const int64_t all = shapes[s].rows | shapes[s].in | shapes[s].out;
    return test_device() == RW_DEVICE_CUDA && scaling == RW_SCALING_TENSOR && all % 16 == 0;
}

/* The results of an op, and the gradients. */
struct bytes {
    void *data[3];
    size_t n[3];
};

static void keep(struct fixture *b, struct bytes *to, int i, rw_tensor *x)
{
    to->n[i] = rw_tensor_bytes(x);
    to->data[i] = calloc(to->n[i] + 1, 1);
    cr_assert_eq(rw_read(NULL, x, to->data[i], to->n[i]), RW_OK, "%s", rw_error_message(b->ctx));
}

static void forget(struct bytes *x)
{
    for (int i = 0; i < 3; i++) free(x->data[i]);
}

static rw_tensor *coded(struct fixture *b, rw_tensor *x, rw_scaling scaling)
{
    const rw_quantize_params p = { .scaling = scaling, .power_of_two = true };
    rw_tensor *scale, *const codes = rw_quantize(b->t, x, RW_NONE, &p, &scale, NULL);
    return rw_dequantize(b->t, codes, scale, scaling, RW_BF16);
}

struct layer {
    rw_tensor *x, *w, *c, *bias, *decoded; /* decoded: w dequantized to bfloat16 */
    rw_scaling scaling;
};

/* Blocks of zeros, of the smallest and the largest numbers, and of NaN: their scales take all extreme values. */
static void put_extremes(const struct layer *l, int64_t n)
{
    static const float ends[] = { 0, -0.0f, 1e-38f, 0x1p-133f, 3e38f, -INFINITY, NAN };
    float *const x = malloc((size_t)n * sizeof *x);
    rw_read(NULL, l->x, x, (size_t)n * sizeof *x);
    for (size_t e = 0; e < sizeof ends / sizeof *ends; e++)
        for (int64_t i = 0; i < 64 && (int64_t)e * 160 + i < n; i++) x[(int64_t)e * 160 + i] = ends[e];
    rw_write(l->x, x, (size_t)n * sizeof *x);
    free(x);
}

/* A layer of shape number s, with random and extreme values. */
static struct layer layer_of(struct fixture *b, size_t s, rw_scaling scaling, bool biased)
{
    struct layer l = { rw_param(b->ctx, "x", RW_F32, RW_SHAPE(shapes[s].rows, shapes[s].in)),
                       rw_param(b->ctx, "w", RW_F32, RW_SHAPE(shapes[s].out, shapes[s].in)),
                       rw_param(b->ctx, "c", RW_F32, RW_SHAPE(shapes[s].rows, shapes[s].out)),
                       RW_NONE,
                       rw_param(b->ctx, "decoded", RW_BF16, RW_SHAPE(shapes[s].out, shapes[s].in)),
                       scaling };
    if (biased) l.bias = rw_param(b->ctx, "bias", RW_F32, RW_SHAPE(shapes[s].out));
    rw_init_normal(l.x, 0, 3);
    rw_init_normal(l.w, 0, 0.02);
    rw_init_normal(l.c, 0, 1e-3);
    if (biased) rw_init_normal(l.bias, 0, 1);
    if (scaling != RW_SCALING_TENSOR && shapes[s].rows > 8) put_extremes(&l, shapes[s].rows * shapes[s].in);
    cr_assert_eq(rw_error_status(b->ctx), RW_OK, "%s", rw_error_message(b->ctx));
    return l;
}

static rw_tensor *record(struct fixture *b, const struct layer *l, rw_tensor **ret_y)
{
    const rw_recipe recipe = { .kind = RW_RECIPE_F8, .scaling = l->scaling };
    cr_assert_eq(rw_recipe_begin(b->t, &recipe), RW_OK);
    *ret_y = rw_linear(b->t, l->x, l->w, l->bias);
    cr_assert_eq(rw_recipe_end(b->t), RW_OK);
    cr_assert_not_null(*ret_y, "%s", rw_error_message(b->ctx));
    return rw_sum(b->t, rw_mul(b->t, rw_cast(b->t, *ret_y, RW_F32), rw_detach(b->t, l->c)), RW_ALL_AXES, false);
}

/* By rw_backward(): products of FP8 data. */
static struct bytes by_codes(struct fixture *b, const struct layer *l, rw_memory *ret_memory)
{
    struct bytes got = { 0 };
    rw_tensor *y, *const loss = record(b, l, &y);
    cr_assert_eq(rw_eval(b->t, &y, 1), RW_OK, "%s", rw_error_message(b->ctx));
    rw_memory_stats(b->ctx, ret_memory);
    keep(b, &got, 0, y);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    keep(b, &got, 1, rw_gradient(l->x));
    keep(b, &got, 2, rw_gradient(l->w));
    rw_tape_reset(b->t);
    rw_zero_grad(b->ctx);
    return got;
}

/* In float32, as a weight of bfloat16 has it, from dequantized x and dy. */
static void gradient_of_weight(struct fixture *b, const struct layer *l, struct bytes *to)
{
    const rw_quantize_params p = { .dtype = RW_F8_E5M2, .scaling = l->scaling, .power_of_two = true };
    rw_tensor *scale, *const x = coded(b, rw_cast(b->t, l->x, RW_BF16), l->scaling);
    rw_tensor *const codes = rw_quantize(b->t, rw_cast(b->t, l->c, RW_BF16), RW_NONE, &p, &scale, NULL);
    rw_tensor *const dy = rw_cast(b->t, rw_dequantize(b->t, codes, scale, l->scaling, RW_BF16), RW_F32);
    rw_tensor *const y = rw_cast(b->t, rw_linear(b->t, x, l->decoded, RW_NONE), RW_F32);
    rw_tensor *const loss = rw_sum(b->t, rw_mul(b->t, y, rw_detach(b->t, dy)), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    keep(b, to, 2, rw_gradient(l->decoded));
    rw_tape_reset(b->t);
    rw_zero_grad(b->ctx);
}

/* Dequantized as a whole: forward by hand, the gradient of x by rw_grad(), whose products can be differentiated
   again. */
static struct bytes by_decoding(struct fixture *b, const struct layer *l, rw_memory *ret_memory)
{
    struct bytes got = { 0 };
    rw_tensor *recorded, *g[1], *const loss = record(b, l, &recorded);
    const rw_scaling of_weight = l->scaling == RW_SCALING_1X128 ? RW_SCALING_128X128 : l->scaling;
    rw_tensor *const bias = l->bias == RW_NONE ? RW_NONE : rw_cast(b->t, l->bias, RW_BF16);
    rw_tensor *const w = coded(b, l->w, of_weight), *const x = coded(b, rw_cast(b->t, l->x, RW_BF16), l->scaling);
    cr_assert_eq(rw_eval(b->t, (rw_tensor *[]){ w, x }, 2), RW_OK);
    rw_tensor *const y = rw_linear(b->t, x, w, bias);
    cr_assert_eq(rw_eval(b->t, (rw_tensor *[]){ y }, 1), RW_OK, "%s", rw_error_message(b->ctx));
    rw_memory_stats(b->ctx, ret_memory);
    keep(b, &got, 0, y);
    cr_assert_eq(rw_grad(b->t, loss, (rw_tensor *[]){ l->x }, 1, g), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_eval(b->t, g, 1), RW_OK, "%s", rw_error_message(b->ctx));
    keep(b, &got, 1, g[0]);
    gradient_of_weight(b, l, &got);
    return got;
}

static void expect_same(const struct bytes *want, const struct bytes *got, const char *why, size_t s, int k)
{
    static const char *const names[] = { "y", "dx", "dw" };
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(want->n[i], got->n[i], "%s of shape %zu: %zu and %zu bytes", names[i], s, want->n[i], got->n[i]);
        const int64_t at = first_difference(want->data[i], got->data[i], want->n[i]);
        cr_expect_eq(at, -1, "%s: %s of shape %zu, scaling %d, from byte %d", why, names[i], s, k, (int)at);
    }
}

Test(fp8_matmul, panels_give_the_bytes_of_what_is_decoded_whole)
{
    for (size_t s = 0; s < shapes_here(); s++)
        for (int k = 0; k < 3; k++) {
            if (may_be_by_codes(s, scalings[k]) || (rw_cpu_emulates_amx && s > 6 && s % 3 != (size_t)k)) continue;
            struct fixture b = fixture_open(3, 2);
            rw_memory m;
            const struct layer l = layer_of(&b, s, scalings[k], (s + (size_t)k) % 2);
            struct bytes want = by_decoding(&b, &l, &m), got = by_codes(&b, &l, &m);
            expect_same(&want, &got, "panels", s, k);
            for (int threads = 1; threads <= 5 && test_device() == RW_DEVICE_CPU; threads += 2) {
                rw_context_set_threads(b.ctx, threads);
                struct bytes other = by_codes(&b, &l, &m);
                expect_same(&got, &other, "threads", s, k);
                forget(&other);
            }
            forget(&want), forget(&got);
            fixture_close(&b);
        }
}

/*
 * The workspace of a bfloat16 product itself, and panels. Tiles of the library are 432 by 368 here: one panel of the
 * second factor is held at a time, and each thread has one of the first. Those of the library's own loops are 48 by 64:
 * nine panels of the second factor are held, half of all. A matrix unit's are 160 by 160. It packs the factors of
 * either product, with a depth of whole steps of 32, holds four tiles of the second one, and keeps a tile's sums by
 * blocks. If bfloat16 is widened for float32's products, tiles are 240 by 224 and parts 256 deep for any layout, and
 * the library may also take a copy of a part. Those of the packed loops are 432 by 368, with the sums, and 48 rows and
 * all columns 384 deep; one panel of the second factor is held, too.
 */
Test(fp8_matmul, a_workspace_of_panels)
{
    enum { ROWS = 2100, IN = 3000, OUT = 1100, THREADS = 2 };
    const size_t library = 2 * IN * (368 + THREADS * 432), own = 2 * IN * (9 * 64 + THREADS * 48);
    const size_t packed = 2 * 3008 * (640 + THREADS * 160) + THREADS * 160 / 32 * 32 * 32 * sizeof(float);
    const size_t parts = THREADS * sizeof(float) * (240 * 256 + 224 * 256 + 240 * 224), copies = THREADS << 17;
    const size_t loops = THREADS * sizeof(float) * ((48 + 368) * 384 + 64 + 432 * 368);
    const size_t made = 2 * IN * (368 + THREADS * 432);
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("CUDA decodes whole, or multiplies codes");
    rw_memory panels, whole;
    struct fixture b = fixture_open(3, THREADS);
    struct layer l = { rw_param(b.ctx, "x", RW_F32, RW_SHAPE(ROWS, IN)),
                       rw_param(b.ctx, "w", RW_F32, RW_SHAPE(OUT, IN)),
                       rw_param(b.ctx, "c", RW_F32, RW_SHAPE(ROWS, OUT)),
                       RW_NONE,
                       NULL,
                       RW_SCALING_TENSOR };
    rw_tensor *y, *const x = rw_cast(b.t, l.x, RW_BF16), *const w = rw_cast(b.t, l.w, RW_BF16);
    rw_tensor *const product = rw_linear(b.t, x, w, RW_NONE);
    cr_assert_eq(rw_eval(b.t, (rw_tensor *[]){ product }, 1), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &whole), RW_OK);
    rw_tape_reset(b.t);
    record(&b, &l, &y);
    cr_assert_eq(rw_eval(b.t, &y, 1), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &panels), RW_OK);
    cr_expect_eq(panels.predicted_peak, panels.measured_peak);
    const size_t more = panels.workspace - whole.workspace;
    const size_t unit = 512; /* of buffers */
    cr_expect((more >= library && more < library + unit) || (!whole.workspace && more >= own && more < own + unit) ||
                  (!more && whole.workspace >= packed && whole.workspace < packed + unit) ||
                  (whole.workspace == loops && more >= made && more < made + unit) ||
                  (!more && whole.workspace >= parts && whole.workspace < parts + copies),
              "%zu and %zu bytes", panels.workspace, whole.workspace);
    fixture_close(&b);
}

/* ---- within a bound ---- */

static float *numbers_of(struct fixture *b, rw_tensor *x, rw_dtype codes)
{
    const rw_quantize_params p = { .dtype = codes, .power_of_two = true };
    float *const to = calloc((size_t)rw_shape_numel(rw_tensor_shape(x)), sizeof *to);
    rw_tensor *scale, *const c = rw_quantize(b->t, x, RW_NONE, &p, &scale, NULL);
    rw_tensor *const y = rw_dequantize(b->t, c, scale, RW_SCALING_TENSOR, RW_F32);
    cr_assert_eq(rw_read(b->t, y, to, rw_tensor_bytes(y)), RW_OK, "%s", rw_error_message(b->ctx));
    return to;
}

struct matrix {
    const float *at;
    int64_t row, col;
};

/* c = times (a b) + bias, [m, n], with k terms each. The bound covers the device's error and the rounding to 16 bits.
   Hopper accumulates with 14 bits; the requested mode adds that to float32 at intervals. */
static void expect_product(const char *what, const float *c, int64_t m, int64_t n, int64_t k, struct matrix a,
                           struct matrix b, const float *bias, double times, double roundoff)
{
    const double off = test_device() == RW_DEVICE_CUDA ? 0x1p-13 : (double)k * 0x1p-23;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 0;
            for (int64_t l = 0; l < k; l++) {
                const double term = (double)a.at[i * a.row + l * a.col] * (double)b.at[l * b.row + j * b.col];
                sum += term, size += fabs(term);
            }
            const double want = times * sum + (bias ? (double)bias[j] : 0);
            const double got = (double)c[i * n + j];
            cr_assert_leq(fabs(got - want), times * off * size + roundoff * (fabs(want) + size * off),
                          "%s [%d, %d]: %g, not %g", what, (int)i, (int)j, got, want);
        }
}

static float *read_floats(struct fixture *b, rw_tensor *x)
{
    float *const to = calloc((size_t)rw_shape_numel(rw_tensor_shape(x)), sizeof *to);
    cr_assert_eq(rw_read(b->t, x, to, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b->ctx));
    return to;
}

/* type: of x and w; the gradients of bfloat16 operands are float32 sums. */
static void expect_layer(int64_t rows, int64_t in, int64_t out, rw_dtype type, rw_dtype gradient, bool biased)
{
    struct fixture b = fixture_open(5, 2);
    struct layer l = { rw_param(b.ctx, "x", type, RW_SHAPE(rows, in)),
                       rw_param(b.ctx, "w", type, RW_SHAPE(out, in)),
                       rw_param(b.ctx, "c", RW_F32, RW_SHAPE(rows, out)),
                       RW_NONE,
                       NULL,
                       RW_SCALING_TENSOR };
    if (biased) l.bias = rw_param(b.ctx, "bias", RW_F32, RW_SHAPE(out));
    rw_init_normal(l.x, 0, 3);
    rw_init_normal(l.w, 0, 0.02);
    rw_init_normal(l.c, 0, 1e-3);
    if (biased) rw_init_normal(l.bias, 0, 1);
    const struct matrix x = { numbers_of(&b, rw_cast(b.t, l.x, RW_BF16), RW_F8_E4M3), in, 1 };
    const struct matrix w = { numbers_of(&b, l.w, RW_F8_E4M3), in, 1 };
    const struct matrix dy = { numbers_of(&b, rw_cast(b.t, l.c, RW_BF16), gradient), out, 1 };
    float *const bias = biased ? read_floats(&b, rw_cast(b.t, rw_cast(b.t, l.bias, RW_BF16), RW_F32)) : NULL;
    const struct matrix transposed_w = { w.at, 1, in }, transposed_dy = { dy.at, 1, out };
    for (int n = 1; n <= 2; n++) { /* the second is added to the first */
        const rw_recipe recipe = { .kind = RW_RECIPE_F8, .gradient_dtype = gradient };
        cr_assert_eq(rw_recipe_begin(b.t, &recipe), RW_OK);
        rw_tensor *const y = rw_cast(b.t, rw_linear(b.t, l.x, l.w, l.bias), RW_F32);
        cr_assert_eq(rw_recipe_end(b.t), RW_OK);
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, rw_detach(b.t, l.c)), RW_ALL_AXES, false);
        float *const got = read_floats(&b, y);
        expect_product("y", got, rows, out, in, x, transposed_w, bias, 1, 0x1p-8);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        float *const dx = read_floats(&b, rw_gradient(l.x)), *const dw = read_floats(&b, rw_gradient(l.w));
        expect_product("dx", dx, rows, in, out, dy, w, NULL, n, 0x1p-8);
        expect_product("dw", dw, out, in, rows, transposed_dy, x, NULL, n, 0x1p-23);
        free(got), free(dx), free(dw);
        rw_tape_reset(b.t);
    }
    free((void *)x.at), free((void *)w.at), free((void *)dy.at), free(bias);
    fixture_close(&b);
}

/* All extents, some, and none are multiples of 16. */
Test(fp8_matmul, products_are_those_of_what_the_codes_mean)
{
    static const int64_t all[][3] = { { 16, 16, 16 }, { 48, 80, 32 }, { 80, 208, 144 }, { 32, 48, 24 }, { 7, 12, 5 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int g = 0; g < 6; g++)
            expect_layer(all[i][0], all[i][1], all[i][2], g < 4 ? RW_F32 : RW_BF16, g % 2 ? RW_F8_E4M3 : RW_F8_E5M2,
                         g / 2 == 1);
}

/* ---- signal-to-noise ratio ---- */

static double decibels(const float *is, const float *approx, int64_t n)
{
    double signal = 0, noise = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)is[i], off = x - (double)approx[i];
        signal += x * x, noise += off * off;
    }
    return 10 * log10(signal / noise);
}

/* y, dx and dw of a layer 16 to 32 on those rows, concatenated. recipe NULL: in float32. */
static float *layer_under(const rw_recipe *recipe, bool delayed, rw_shape rows, bool biased, int64_t *n)
{
    struct fixture b = fixture_open(7, 1);
    rw_delayed_scaling *d = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(32, 16)), *bias = RW_NONE;
    rw_tensor *const in = rw_param(b.ctx, "x", RW_F32, rows);
    rw_init_uniform(w, -0.25, 0.25); /* initialized as torch.nn.Linear */
    rw_init_normal(in, 0, 1);
    if (biased) bias = rw_param(b.ctx, "bias", RW_F32, RW_SHAPE(32));
    if (biased) rw_init_uniform(bias, -0.25, 0.25);
    if (delayed) cr_assert_eq(rw_delayed_scaling_create(&d, b.ctx, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    rw_recipe own = recipe ? *recipe : (rw_recipe){ .kind = RW_RECIPE_NONE };
    own.delayed = d;
    float *parts[3] = { NULL };
    for (int step = 0; step < (delayed ? 3 : 1); step++) { /* two steps find the scales */
        rw_zero_grad(b.ctx);
        cr_assert_eq(rw_recipe_begin(b.t, &own), RW_OK);
        rw_tensor *const y = rw_cast(b.t, rw_linear(b.t, in, w, bias), RW_F32);
        cr_assert_eq(rw_recipe_end(b.t), RW_OK);
        free(parts[0]);
        parts[0] = read_floats(&b, y);
        n[0] = rw_shape_numel(rw_tensor_shape(y));
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
        if (d) cr_assert_eq(rw_delayed_scaling_update(d, NULL), RW_OK);
    }
    n[1] = rw_shape_numel(rows), n[2] = 32 * 16;
    parts[1] = read_floats(&b, rw_gradient(in));
    parts[2] = read_floats(&b, rw_gradient(w));
    float *const all = calloc((size_t)(n[0] + n[1] + n[2]), sizeof *all);
    memcpy(all, parts[0], (size_t)n[0] * sizeof *all);
    memcpy(all + n[0], parts[1], (size_t)n[1] * sizeof *all);
    memcpy(all + n[0] + n[1], parts[2], (size_t)n[2] * sizeof *all);
    for (int i = 0; i < 3; i++) free(parts[i]);
    rw_delayed_scaling_destroy(&d);
    fixture_close(&b);
    return all;
}

/* The minimum that torchao's tests require of such a layer, in decibels (bench/fp8_snr.c has the large ones). */
Test(fp8_matmul, keep_18_and_17_dB_of_a_layer)
{
    static const rw_shape rows[] = { { 2, { 16, 16 } }, { 4, { 3, 2, 16, 16 } } };
    static const rw_recipe recipes[] = {
        { .kind = RW_RECIPE_F8 },
        { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_1X128, .gradient_dtype = RW_F8_E4M3 },
        { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_MX }
    };
    for (int r = 0; r < 2; r++) {
        int64_t n[3];
        float *const is = layer_under(NULL, false, rows[r], r, n);
        for (int k = 0; k < 4; k++) {
            float *const approx = layer_under(&recipes[k % 3], k == 3, rows[r], r, n);
            const double y = decibels(is, approx, n[0]), dx = decibels(is + n[0], approx + n[0], n[1]);
            const double dw = decibels(is + n[0] + n[1], approx + n[0] + n[1], n[2]);
            cr_expect(y > 18 && dx > 17 && dw > 17, "way %d: %g, %g and %g dB", k, y, dx, dw);
            free(approx);
        }
        free(is);
    }
}

/* ---- under policies ---- */

enum { STEPS = 2 };

/* How a model is trained; odd: all extents are odd, and some numbers are extreme. */
struct way {
    rw_scaling scaling;
    bool delayed, odd;
};

/* Two layers, a region each, with the ops that follow them; gradients of several micro-batches. */
static unsigned char *train(const struct way *way, const char *policy, int threads, bool verifies, size_t *ret_bytes)
{
    struct fixture b = fixture_open(11, threads);
    const int64_t width = way->odd ? 67 : 64, tokens = way->odd ? 9 : 16;
    static const float ends[] = { NAN, INFINITY, -0.0f, 3e38f, 1e-40f };
    rw_tensor *w[2], *bias = rw_param(b.ctx, "bias", RW_F32, RW_SHAPE(width));
    rw_delayed_scaling *d = NULL;
    for (int i = 0; i < 2; i++) {
        w[i] = rw_param(b.ctx, i ? "down" : "up", RW_F32, RW_SHAPE(width, width));
        rw_init_normal(w[i], 0, 0.1);
    }
    rw_init_normal(bias, 0, 0.1);
    if (way->delayed) cr_assert_eq(rw_delayed_scaling_create(&d, b.ctx, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    const rw_recipe recipe = { .kind = RW_RECIPE_F8, .scaling = way->scaling, .delayed = d };
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    for (int step = 0; step < STEPS; step++) {
        rw_tensor *x = rw_randn(b.t, RW_F32, RW_SHAPE(2, tokens, width));
        if (way->odd && step)
            x = rw_mul(b.t, x, rw_input(b.t, RW_F32, RW_SHAPE(1), &ends[way->scaling], sizeof ends[way->scaling]));
        cr_assert_eq(rw_recipe_begin(b.t, &recipe), RW_OK);
        for (int i = 0; i < 2; i++) {
            ckpt_begin(b.t, "layer");
            x = rw_add(b.t, x, rw_gelu(b.t, rw_linear(b.t, rw_gelu(b.t, x), w[i], i ? RW_NONE : bias)));
            ckpt_end(b.t);
        }
        cr_assert_eq(rw_recipe_end(b.t), RW_OK);
        rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, x, x), RW_ALL_AXES, false);
        if (verifies) cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
        if (d) cr_assert_eq(rw_delayed_scaling_update(d, NULL), RW_OK);
    }
    unsigned char *const g = all_gradients(b.ctx, ret_bytes);
    rw_delayed_scaling_destroy(&d);
    fixture_close(&b);
    return g;
}

/* ---- graphs ---- */

enum { LAUNCHES = 4 };

/* Parameters, scales and histories after steps on one batch, in calls or as a graph. */
static unsigned char *steps(bool graph, bool delayed, size_t *ret_bytes)
{
    struct fixture b = fixture_open(11, 1);
    rw_graph *g = NULL;
    rw_delayed_scaling *d = NULL;
    rw_optimizer *opt = NULL;
    static float data[32 * 64];
    for (int i = 0; i < 32 * 64; i++) data[i] = (float)(i * 7 % 23 - 11) / 8;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(64, 64));
    rw_init_normal(w, 0, 0.1);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 4 }), RW_OK); /* amaxes grow, and scales fall */
    if (delayed)
        cr_assert_eq(rw_delayed_scaling_create(&d, b.ctx, &(rw_delayed_scaling_params){ .history = 2 }), RW_OK);
    const rw_recipe recipe = { .kind = RW_RECIPE_F8, .delayed = d };
    for (int step = 0; step < LAUNCHES; step++) {
        if (!g) {
            rw_zero_grad(b.ctx);
            cr_assert_eq(rw_recipe_begin(b.t, &recipe), RW_OK);
            rw_tensor *const y = rw_linear(b.t, rw_input(b.t, RW_F32, RW_SHAPE(32, 64), data, sizeof data), w, RW_NONE);
            cr_assert_eq(rw_recipe_end(b.t), RW_OK);
            rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
            const rw_graph_params p = { { rw_record_update(opt), recorded_delayed(d) } };
            const rw_status status = graph ? rw_graph_create(&g, b.t, loss, &p) : rw_backward(b.t, loss);
            cr_assert_eq(status, RW_OK, "%s", rw_error_message(b.ctx));
        }
        if (graph) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        else cr_assert_eq(rw_optimizer_step(opt), RW_OK);
        if (!graph && d) cr_assert_eq(rw_delayed_scaling_update(d, NULL), RW_OK);
        if (!graph) rw_tape_reset(b.t);
    }
    unsigned char *const all = all_parameters(b.ctx, ret_bytes);
    rw_graph_destroy(&g);
    rw_delayed_scaling_destroy(&d);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
    return all;
}

/* Scales stay on the device: each launch uses those of its own step. */
Test(fp8_matmul, of_a_graph_are_those_of_the_calls)
{
    for (int delayed = 0; delayed < 2; delayed++) {
        size_t bytes[2];
        unsigned char *const calls = steps(false, delayed, &bytes[0]), *const graph = steps(true, delayed, &bytes[1]);
        cr_assert_eq(bytes[0], bytes[1]);
        cr_expect_eq(first_difference(calls, graph, bytes[0]), -1, "delayed: %d", delayed);
        free(calls), free(graph);
    }
}

Test(fp8_matmul, policies_change_no_byte)
{
    static const char *const policies[] = { "full", "ops:linear", "ops:quantize", "uniform:2" };
    for (int k = 0; k < 8; k++) {
        const struct way way = { scalings[k % 4 % 3], k % 4 == 3, k / 4 };
        size_t bytes[2];
        unsigned char *const none = train(&way, "none", 2, true, &bytes[0]);
        for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
            unsigned char *const other = train(&way, policies[i], 1 + (int)i, i == 0, &bytes[1]);
            cr_expect_eq(first_difference(none, other, bytes[0]), -1, "way %d, policy %s", k, policies[i]);
            free(other);
        }
        free(none);
    }
}
