/*
 * FP8 data compared with an oracle that is written from the formats: a table of each encoding's value, and a search for
 * the nearest. Every device is compared with the same oracle, so all give the same data.
 */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype formats[] = { RW_F8_E4M3, RW_F8_E5M2 };
static double meaning[2][128]; /* of encodings without sign; those that are not finite are omitted */
static int largest[2];

/* OCP 8-bit floating point, revision 1.0: table 1. */
static void write_meanings(void)
{
    for (int f = 0; f < 2; f++) {
        const int fraction = f ? 2 : 3, bias = f ? 15 : 7;
        largest[f] = f ? 0x7b : 0x7e;
        for (int code = 0; code <= largest[f]; code++) {
            const int e = code >> fraction, m = code & ((1 << fraction) - 1);
            meaning[f][code] = e ? ldexp(1 + ldexp(m, -fraction), e - bias) : ldexp(m, 1 - bias - fraction);
        }
    }
    cr_assert_eq(meaning[0][0x7e], 448);
    cr_assert_eq(meaning[1][0x7b], 57344);
}

static int nearest(int f, double x)
{
    const int sign = signbit(x) ? 0x80 : 0;
    x = fabs(x);
    if (isnan(x)) return 0x7f;
    if (x >= meaning[f][largest[f]]) return sign | largest[f];
    int low = 0, high = largest[f];
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (meaning[f][middle] <= x) low = middle;
        else high = middle;
    }
    const double below = x - meaning[f][low], above = meaning[f][high] - x;
    return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
}

static double decoded(int f, uint8_t code)
{
    const int a = code & 0x7f;
    const double x = a <= largest[f] ? meaning[f][a] : f && a == 0x7c ? INFINITY : NAN;
    return code & 0x80 ? -x : x;
}

static struct fixture b;

static void open_all(void)
{
    b = fixture_open(1, 2);
    write_meanings();
}

static void close_all(void)
{
    fixture_close(&b);
}

TestSuite(quantize, .init = open_all, .fini = close_all);

static void *read_all(rw_tensor *x)
{
    void *const p = calloc(rw_tensor_bytes(x) + 1, 1);
    cr_assert_eq(rw_read(b.t, x, p, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b.ctx));
    return p;
}

/* ---- codes ---- */

/* Quantizes data with a given scale, and compares every element with the oracle. */
static void expect_codes(int f, rw_dtype dtype, const void *data, int64_t n, float by)
{
    rw_tensor *scale, *const x = rw_input(b.t, dtype, RW_SHAPE(n), data, (size_t)n * rw_dtype_size(dtype));
    rw_tensor *const given = rw_input(b.t, RW_F32, RW_SHAPE(1), &by, sizeof by);
    rw_tensor *const y = rw_quantize(b.t, x, given, &(rw_quantize_params){ .dtype = formats[f] }, &scale, NULL);
    cr_assert_not_null(y, "%s", rw_error_message(b.ctx));
    uint8_t *const got = read_all(y);
    int wrong = 0;
    for (int64_t i = 0; i < n && wrong < 5; i++) {
        const float v = (float)number_get(data, dtype, i);
        const int want = nearest(f, v * by);
        if (got[i] == want) continue;
        wrong++;
        cr_expect(false, "%s of %s %a times %a: %#x, not %#x", rw_dtype_name(formats[f]), rw_dtype_name(dtype),
                  (double)v, (double)by, got[i], want);
    }
    free(got);
    rw_tape_reset(b.t);
}

Test(quantize, every_pattern_of_16_bits)
{
    static uint16_t all[65536];
    for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    for (int f = 0; f < 2; f++) {
        expect_codes(f, RW_BF16, all, 65536, 1);
        expect_codes(f, RW_F16, all, 65536, 1);
        expect_codes(f, RW_BF16, all, 65536, 3.7f);
    }
}

/* Every encoding, every tie between two, and the floats next to them. */
Test(quantize, the_neighbourhood_of_every_code_and_every_tie)
{
    static float x[8 * 128 * 3];
    for (int f = 0; f < 2; f++) {
        int n = 0;
        for (int code = 0; code <= largest[f]; code++) {
            const double next = code < largest[f] ? meaning[f][code + 1] : 2 * meaning[f][code];
            const float at[] = { (float)meaning[f][code], (float)((meaning[f][code] + next) / 2) };
            for (int k = 0; k < 2; k++)
                for (int side = -1; side <= 1; side++) {
                    const float v = side ? nextafterf(at[k], side > 0 ? INFINITY : -1) : at[k];
                    x[n++] = v, x[n++] = -v;
                }
        }
        const float ends[] = { 0, -0.0f, INFINITY, -INFINITY, NAN, -NAN, FLT_MAX, FLT_MIN, FLT_TRUE_MIN, 464, 61440 };
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) x[n++] = ends[i];
        expect_codes(f, RW_F32, x, n, 1);
    }
}

Test(quantize, every_code_decoded)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16 };
    static const float scales[] = { 1, 0x1p-7f, -0.5f, -0.0f, INFINITY, 0.3f };
    enum { N = 256 + 19 }; /* more than whole vectors */
    uint8_t all[N];
    for (int i = 0; i < N; i++) all[i] = (uint8_t)(i * 7);
    for (int f = 0; f < 2; f++)
        for (int d = 0; d < 3; d++)
            for (int s = 0; s < 6; s++) {
                rw_tensor *const codes = rw_input(b.t, formats[f], RW_SHAPE(N), all, N * rw_dtype_size(formats[f]));
                rw_tensor *const scale = rw_input(b.t, RW_F32, RW_SCALAR, &scales[s], sizeof scales[s]);
                rw_tensor *const y = rw_dequantize(b.t, codes, scale, RW_SCALING_TENSOR, types[d]);
                cr_assert_not_null(y, "%s", rw_error_message(b.ctx));
                char *const got = read_all(y);
                for (int i = 0; i < N; i++) {
                    const double want = (float)(decoded(f, all[i]) * scales[s]);
                    const double is = number_get(got, types[d], i);
                    const bool exact = s < 5 && (types[d] != RW_F16 || fabs(want) >= 0x1p-24 || want == 0);
                    if (want == 0) cr_expect_eq(!signbit(is), !signbit(want), "%#x times %g", all[i], scales[s]);
                    if (isnan(want)) cr_expect(isnan(is));
                    else if (exact || types[d] == RW_F32 || isinf(want))
                        cr_expect_eq(is, want, "%#x: %g, not %g", all[i], is, want);
                    else
                        cr_expect_leq(fabs(is - want), fabs(want) * 0x1p-8 + 0x1p-24, "%#x: %g, not %g", all[i], is,
                                      want);
                }
                free(got);
                rw_tape_reset(b.t);
            }
}

/* Every encoding with every scale of MX, and with float32 scales of all extremes: in 16 bits the float32 value,
   rounded. */
Test(quantize, blocks_decoded_to_16_bits)
{
    enum { ROWS = 256, WIDE = 300 };
    static uint8_t codes[ROWS * WIDE], exponents[ROWS * 10];
    static float numbers[ROWS * 3];
    for (int i = 0; i < ROWS * WIDE; i++) codes[i] = (uint8_t)(i * 7 + i / WIDE);
    for (int i = 0; i < ROWS * 10; i++) exponents[i] = (uint8_t)i;
    for (int i = 0; i < ROWS * 3; i++) {
        const uint32_t bits = (uint32_t)(i % 256) << 23 | (i % 5 ? 0 : 0x345678) | (i % 7 ? 0 : 0x80000000u);
        memcpy(&numbers[i], &bits, sizeof bits);
    }
    for (int f = 0; f < 2; f++)
        for (int mx = 0; mx < 2; mx++) {
            rw_tensor *const x = rw_input(b.t, formats[f], RW_SHAPE(ROWS, WIDE), codes,
                                          ROWS * WIDE * rw_dtype_size(formats[f]));
            rw_tensor *const scale = mx ? rw_input(b.t, RW_F8_E8M0, RW_SHAPE(ROWS, 10), exponents, sizeof exponents)
                                        : rw_input(b.t, RW_F32, RW_SHAPE(ROWS, 3), numbers, sizeof numbers);
            const rw_scaling scaling = mx ? RW_SCALING_MX : RW_SCALING_1X128;
            rw_tensor *const half = rw_dequantize(b.t, x, scale, scaling, RW_BF16);
            rw_tensor *const full = rw_cast(b.t, rw_dequantize(b.t, x, scale, scaling, RW_F32), RW_BF16);
            uint16_t *const got = read_all(half), *const want = read_all(full);
            int wrong = 0;
            for (int i = 0; i < ROWS * WIDE; i++) wrong += got[i] != want[i];
            cr_expect_eq(wrong, 0, "%s, scaling %d: %d wrong", rw_dtype_name(formats[f]), scaling, wrong);
            free(got), free(want);
            rw_tape_reset(b.t);
        }
}

/* ---- scales ---- */

static const struct {
    rw_scaling scaling;
    int64_t high, wide; /* 0: all */
} blocks[] = { { RW_SCALING_TENSOR, 0, 0 }, { RW_SCALING_1X128, 1, 128 }, { RW_SCALING_128X128, 128, 128 },
               { RW_SCALING_MX, 1, 32 } };

/* For the block that starts at (row, column): the amax, and its scale by a float32 quotient or by the exponent rule. */
static float amax_of(const float *x, int64_t rows, int64_t columns, int64_t row, int64_t column, int64_t high,
                     int64_t wide)
{
    float m = 0;
    for (int64_t r = row; r < rows && r < row + high; r++)
        for (int64_t c = column; c < columns && c < column + wide; c++) {
            const float a = fabsf(x[r * columns + c]);
            if (a > m || isnan(a)) m = a;
            if (isnan(m)) return m;
        }
    return m;
}

static float scale_of(int f, float amax, bool power)
{
    if (!(amax > 0) || isinf(amax)) return 1;
    const float s = (float)meaning[f][largest[f]] / amax;
    if (isinf(s)) return power ? 0x1p127f : FLT_MAX;
    return power ? exp2f(floorf(log2f(s))) : s;
}

static int exponent_of(int f, float amax)
{
    if (isnan(amax)) return 0xff;
    if (isinf(amax)) return 0xfe;
    if (amax == 0) return 0;
    int e;
    const float r = amax * (1.0f / (float)meaning[f][largest[f]]), m = frexpf(r, &e); /* r = m 2^e, m in [1/2, 1) */
    const int up = m == 0.5f ? e - 1 : e; /* the smallest power of two that is at least r */
    return r == 0 || up <= -127 ? 0 : up + 127;
}

/* Quantizes a matrix with scales per block, and compares scales and data with the oracle. */
static void expect_blocks(int f, size_t k, bool power, const float *x, int64_t rows, int64_t columns)
{
    const rw_quantize_params p = { .dtype = formats[f], .scaling = blocks[k].scaling, .power_of_two = power };
    rw_tensor *scale,
        *amax, *const in = rw_input(b.t, RW_F32, RW_SHAPE(rows, columns), x, (size_t)(rows * columns) * sizeof *x);
    rw_tensor *const y = rw_quantize(b.t, in, RW_NONE, &p, &scale, &amax);
    cr_assert_not_null(y, "%s", rw_error_message(b.ctx));
    rw_tensor *const back = rw_dequantize(b.t, y, scale, p.scaling, RW_F32);
    uint8_t *const codes = read_all(y), *const raw = read_all(scale);
    float *const most = read_all(amax), *const values = read_all(back);
    const int64_t high = blocks[k].high ? blocks[k].high : rows, wide = blocks[k].wide ? blocks[k].wide : columns;
    int64_t block = 0;
    for (int64_t r = 0; r < rows; r += high)
        for (int64_t c = 0; c < columns; c += wide, block++) {
            const float m = amax_of(x, rows, columns, r, c, high, wide);
            const int e = exponent_of(f, m);
            const bool mx = p.scaling == RW_SCALING_MX;
            const float by = mx ? e == 0xff ? NAN : ldexpf(1, 127 - e) : scale_of(f, m, power);
            float got = 0;
            if (!mx) memcpy(&got, raw + 4 * block, 4);
            cr_expect(isnan(m) ? isnan(most[block]) : most[block] == m, "amax %g, not %g", most[block], m);
            if (mx) cr_expect_eq(raw[block], e, "block %d: scale %#x, not %#x", (int)block, raw[block], e);
            else cr_expect_eq(got, 1 / by, "block %d: scale %a, not %a", (int)block, got, 1 / by);
            int wrong = 0;
            for (int64_t i = r; i < rows && i < r + high; i++)
                for (int64_t j = c; j < columns && j < c + wide; j++) {
                    const int64_t at = i * columns + j;
                    const float v = (float)(decoded(f, codes[at]) * (mx ? ldexpf(1, e - 127) : 1 / by));
                    wrong += codes[at] != nearest(f, x[at] * by);
                    wrong += !(values[at] == v || (isnan(v) && isnan(values[at])) || e == 0xff);
                }
            cr_expect_eq(wrong, 0, "%s, scaling %d: %d wrong in block %d", rw_dtype_name(formats[f]), (int)k, wrong,
                         (int)block);
        }
    cr_expect_eq(block, rw_shape_numel(rw_tensor_shape(scale)));
    free(codes), free(raw), free(most), free(values);
    rw_tape_reset(b.t);
}

Test(quantize, scales_of_tensors_and_blocks)
{
    enum { ROWS = 131, COLUMNS = 161 };
    static float x[ROWS * COLUMNS];
    uint32_t word = 1;
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        word = word * 1664525 + 1013904223;
        x[i] = ldexpf((float)(int32_t)word, (int)(word >> 7 & 31) - 60 + i / COLUMNS % 3 * 20);
    }
    for (int odd = 0; odd < 2; odd++) {
        for (int f = 0; f < 2; f++)
            for (size_t k = 0; k < 4; k++)
                for (int power = 0; power < (blocks[k].scaling == RW_SCALING_MX ? 1 : 2); power++) {
                    expect_blocks(f, k, power, x, ROWS, COLUMNS);
                    expect_blocks(f, k, power, x, 3, 32);
                }
        for (int i = 0; i < 128; i++) x[i] = 0, x[COLUMNS + i] = FLT_TRUE_MIN; /* zero, or least subnormal */
        x[2 * COLUMNS + 5] = INFINITY, x[3 * COLUMNS + 7] = NAN, x[130 * COLUMNS + 160] = -FLT_MAX;
    }
}

/*
 * Scales of MX at their lower end: 2^-127 is a valid one (OCP MX 1.0, E8M0), so the quotient amax / largest is rounded
 * up to it, and only a larger one to 2^-126. As Transformer Engine's float_to_e8m0().
 */
Test(quantize, mx_scales_reach_down_to_2_to_the_minus_127)
{
    static const struct {
        float quotient;
        int exponent;
    } rows[] = { { 0x1p-149f, 0 }, { 0x1.8p-130f, 0 }, { 0x1p-128f, 0 }, { 0x1.fffffcp-128f, 0 }, { 0x1p-127f, 0 },
                 { 0x1.000004p-127f, 1 }, { 0x1p-126f, 1 }, { 0x1.000002p-126f, 2 }, { 0x1p-125f, 2 } };
    for (int f = 0; f < 2; f++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const float by = 1.0f / (float)meaning[f][largest[f]], target = rows[i].quotient;
            float x[32] = { 0 };
            x[3] = target * (float)meaning[f][largest[f]]; /* the kernel multiplies by a rounded 1 / largest */
            while (x[3] * by < target) x[3] = nextafterf(x[3], INFINITY);
            while (x[3] * by > target) x[3] = nextafterf(x[3], 0);
            cr_assert_eq(x[3] * by, target);
            x[4] = -x[3] / 3;
            const rw_quantize_params p = { .dtype = formats[f], .scaling = RW_SCALING_MX };
            rw_tensor *scale, *const in = rw_input(b.t, RW_F32, RW_SHAPE(1, 32), x, sizeof x);
            rw_tensor *const y = rw_quantize(b.t, in, RW_NONE, &p, &scale, NULL);
            cr_assert_not_null(y, "%s", rw_error_message(b.ctx));
            uint8_t *const raw = read_all(scale);
            cr_expect_eq(raw[0], rows[i].exponent, "%s, amax / largest %a: scale 2^%d, expected 2^%d",
                         rw_dtype_name(formats[f]), (double)target, raw[0] - 127, rows[i].exponent - 127);
            free(raw);
            expect_blocks(f, 3, false, x, 1, 32);
        }
}

/* Ten million patterns of float32, every other one close to the range of FP8; except on the CPU or with
   REWIND_TEST_LARGE one batch. */
Test(quantize, random_patterns)
{
    enum { ROWS = 125, COLUMNS = 128, BATCH = ROWS * COLUMNS };
    static float x[BATCH];
    const bool all = test_device() == RW_DEVICE_CPU || getenv("REWIND_TEST_LARGE");
    const int batches = all ? 10000000 / BATCH : 1;
    uint64_t state = 7;
    for (int n = 0; n < batches; n++) {
        for (int i = 0; i < BATCH; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint32_t bits = (uint32_t)(state >> 32);
            if (i % 2) bits = (bits & 0x807fffffu) | (107 + (uint32_t)(state >> 16 & 0xffff) % 39) << 23;
            memcpy(&x[i], &bits, sizeof bits);
        }
        for (int f = 0; f < 2; f++) {
            expect_codes(f, RW_F32, x, BATCH, 1);
            for (size_t k = 1; k < 4; k++) expect_blocks(f, k, n % 2, x, ROWS, COLUMNS);
        }
        for (int i = 0; i < BATCH; i++) /* finite ones, for one scale */
            if (!isfinite(x[i])) x[i] = 1;
        for (int f = 0; f < 2; f++) expect_blocks(f, 0, n % 2, x, ROWS, COLUMNS);
    }
}

Test(quantize, an_empty_tensor_has_no_quantized_values)
{
    rw_tensor *scale, *amax;
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(0, 7), NULL, 0);
    for (int k = 0; k < RW_SCALING_COUNT; k++) {
        const rw_quantize_params p = { .scaling = (rw_scaling)k };
        rw_tensor *const y = rw_quantize(b.t, x, RW_NONE, &p, &scale, &amax);
        rw_tensor *const back = rw_dequantize(b.t, y, scale, p.scaling, RW_BF16);
        free(read_all(back));
        if (!k) cr_expect_eq(rw_item(b.t, scale), 1);
        if (!k) cr_expect_eq(rw_item(b.t, amax), 0);
    }
}

/* Minimum signal-to-noise ratio of a cast of normal numbers, in dB: torchao's threshold. */
Test(quantize, keeps_25_dB_of_normal_numbers)
{
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(64, 256));
    cr_assert_eq(rw_init_normal(w, 0, 1), RW_OK);
    for (int k = 0; k < RW_SCALING_COUNT; k++) {
        rw_tensor *scale;
        const rw_quantize_params p = { .scaling = (rw_scaling)k };
        rw_tensor *const codes = rw_quantize(b.t, w, RW_NONE, &p, &scale, NULL);
        rw_tensor *const off = rw_sub(b.t, rw_dequantize(b.t, codes, scale, p.scaling, RW_F32), w);
        const double noise = rw_item(b.t, rw_norm(b.t, off, 2, RW_ALL_AXES, false));
        const double db = 20 * log10(rw_item(b.t, rw_norm(b.t, w, 2, RW_ALL_AXES, false)) / noise);
        cr_expect_gt(db, 25, "scaling %d: %g dB", k, db);
    }
}

/* ---- FP8 data on a tape ---- */

/* A step whose activations are quantized, under a policy. */
static unsigned char *train(const char *policy, size_t *ret_bytes, size_t *ret_kept)
{
    struct fixture c = fixture_open(5, 1);
    rw_tensor *const w = rw_param(c.ctx, "w", RW_F32, RW_SHAPE(32, 32)), *scale;
    cr_assert_eq(rw_init_normal(w, 0, 1), RW_OK);
    cr_assert_eq(ckpt_set_policy(c.t, policy), RW_OK);
    rw_tensor *x = rw_scale(c.t, w, 0.5);
    for (int r = 0; r < 2; r++) {
        ckpt_begin(c.t, "block");
        rw_tensor *const codes = rw_quantize(c.t, x, RW_NONE, NULL, &scale, NULL);
        /* FP8 data is copied as it is */
        rw_tensor *const transposed = rw_contiguous(c.t, rw_transpose(c.t, codes, 0, 1));
        rw_tensor *const copy = rw_dequantize(c.t, transposed, scale, RW_SCALING_TENSOR, RW_F32);
        rw_tensor *const back = rw_transpose(c.t, copy, 0, 1);
        rw_tensor *const kept = rw_straight_through(c.t, back, x);
        x = rw_mul(c.t, kept, rw_tanh(c.t, kept));
        ckpt_end(c.t);
    }
    rw_tensor *const loss = rw_sum(c.t, x, RW_ALL_AXES, false);
    cr_assert_eq(ckpt_verify(c.t, loss, NULL), RW_OK, "%s", rw_error_message(c.ctx));
    cr_assert_eq(rw_backward(c.t, loss), RW_OK, "%s", rw_error_message(c.ctx));
    rw_memory m;
    rw_memory_stats(c.ctx, &m);
    *ret_kept = m.kept;
    unsigned char *const g = all_gradients(c.ctx, ret_bytes);
    fixture_close(&c);
    return g;
}

Test(quantize, policies_change_no_byte)
{
    size_t bytes[2], kept[2];
    unsigned char *const none = train("none", &bytes[0], &kept[0]), *const full = train("full", &bytes[1], &kept[1]);
    cr_expect_eq(first_difference(none, full, bytes[0]), -1);
    cr_expect_lt(kept[1], kept[0]);
    free(none), free(full);
}

Test(quantize, fp8_types_are_for_storage_alone)
{
    rw_tensor *const codes = rw_input(b.t, RW_F8_E4M3, RW_SHAPE(4, 4), NULL, 0);
    cr_expect_null(rw_add(b.t, codes, codes));
    cr_expect_not_null(strstr(rw_error_message(b.ctx), "f8_e4m3, which is for storage alone"), "%s",
                       rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_null(rw_cast(b.t, rw_input(b.t, RW_F32, RW_SHAPE(4), NULL, 0), RW_F8_E5M2));
    cr_expect_not_null(strstr(rw_error_message(b.ctx), "for storage alone"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_null(rw_param(b.ctx, "p", RW_F8_E4M3, RW_SHAPE(4)));
    rw_error_clear(b.ctx);
    rw_tensor *const kept = rw_buffer(b.ctx, "codes", RW_F8_E4M3, RW_SHAPE(4, 4));
    cr_expect_eq(rw_assign(b.t, kept, codes), RW_OK, "%s", rw_error_message(b.ctx));
}
