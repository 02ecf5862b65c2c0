/*
 * Extents that cuBLASLt and cuDNN are given, on the simulated device, which reports each that an int32 does not hold.
 * Operations beyond run in parts or in our kernels: planned, with extents up to 2^46, and executed with a limit so low
 * that small operations are beyond it. Factors are -1, 0 and 1, so that every order of summation gives the same bytes.
 */
#include "support/compare.h"
#include "support/support.h"

#include "device/cuda/blaslt.h"
#include "device/cuda/blaslt_parts.h"
#include "device/cuda/cudnn/int32_batch_split.h"
#include "record/context.h"

#include <criterion/criterion.h>
#include <cudasim.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };

/* ---- parts of a product, by themselves ---- */

struct random {
    uint64_t state;
};

static int64_t below(struct random *r, int64_t n)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((r->state >> 33) % (uint64_t)n);
}

/* From 1 to 2^bits - 1, of any magnitude; often in whole tiles. */
static int64_t extent_of(struct random *r, int bits)
{
    const int64_t most = (int64_t)1 << (1 + below(r, bits)),
                  x = 1 + ((below(r, 1 << 30) << 20) + below(r, 1 << 20)) % most;
    return below(r, 2) && x > 16 ? x / 16 * 16 : x;
}

/* Any way that operands can be laid out; without a batch c may be a part of the columns of a wider matrix. */
static struct rw_blaslt_product any_product(struct random *r, int bits)
{
    const bool codes = !below(r, 5);
    struct rw_blaslt_product p = { .m = extent_of(r, bits), .n = extent_of(r, bits), .k = extent_of(r, bits) };
    p.batch = below(r, 2) ? 1 : extent_of(r, bits);
    p.dtype = codes ? RW_F8_E4M3 : (int32_t)types[below(r, 4)];
    p.to = codes ? RW_BF16 : p.dtype;
    p.b_codes = codes ? RW_F8_E4M3 : 0;
    if (codes) p.m = (p.m + 15) / 16 * 16, p.n = (p.n + 15) / 16 * 16, p.k = (p.k + 15) / 16 * 16;
    p.bias = below(r, 2) == 1;
    const bool a = below(r, 2), b = below(r, 2);
    const int64_t more = codes ? 0 : below(r, 3);
    p.a_row = a ? 1 : p.k + more, p.a_col = a ? p.m + more : 1;
    p.b_row = b ? 1 : p.n + more, p.b_col = b ? p.k + more : 1;
    p.c_row = p.n + (p.batch == 1 ? more : 0);
    return p;
}

/* A tensor has fewer than 2^59 elements. */
static struct rw_blaslt_product random_product(struct random *r, int bits)
{
    for (;;) {
        struct rw_blaslt_product p = any_product(r, bits);
        const double m = (double)p.m * (double)p.batch, n = (double)p.n * (double)p.batch;
        if (fmax(fmax(m, n) * ((double)p.k + 2), m * ((double)p.n + 2)) > 0x1p57) continue;
        if (p.batch > 1) p.a_batch = below(r, 3) ? p.m * p.k : 0, p.b_batch = below(r, 3) ? p.k * p.n : 0;
        return p;
    }
}

/* Elements from the first to the last. */
static int64_t elements(int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    return (rows - 1) * row + (cols - 1) * col + 1;
}

static bool is_within(const struct rw_blaslt_product *p, int64_t most)
{
    const int64_t counts[] = { p->m,     p->n,     p->k,     p->a_row,   p->a_col,
                               p->b_row, p->b_col, p->c_row, p->a_batch, p->b_batch };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i] > most) return false;
    const int64_t before = p->batch - 1;
    return p->batch <= RW_BLASLT_MAX_BATCH && before * p->a_batch + elements(p->m, p->k, p->a_row, p->a_col) <= most &&
           before * p->b_batch + elements(p->k, p->n, p->b_row, p->b_col) <= most &&
           before * p->m * p->n + elements(p->m, p->n, p->c_row, 1) <= most;
}

static bool begins_aligned(const char *at, const void *operand)
{
    return !operand || ((const char *)operand - at) % 16 == 0;
}

/* Part `at`, from its first to its last. */
static void expect_part(const struct rw_blaslt_product *p, struct rw_blaslt_part part, struct rw_blaslt_part at,
                        int64_t most)
{
    char *const base = (char *)(uintptr_t)4096;
    const struct rw_blaslt_operands whole = { .a = base, .b = base, .c = base, .bias = p->bias ? base : NULL };
    const struct rw_blaslt_operands x = rw_blaslt_part_operands(p, at, &whole);
    const struct rw_blaslt_product q = rw_blaslt_part_product(p, part);
    cr_assert(is_within(&q, most), "[%lld, %lld] of %lld", (long long)q.m, (long long)q.n, (long long)q.k);
    cr_assert(p->b_codes == 0 || (q.m % 16 == 0 && q.n % 16 == 0));
    if (!at.batch)
        cr_assert(begins_aligned(base, x.a) && begins_aligned(base, x.b) && begins_aligned(base, x.c) &&
                  begins_aligned(base, x.bias));
}

/* Rows and columns are cut at 16 elements at least. Parts of whole rows of c come first: so many must fit. */
static bool must_have_parts(struct rw_blaslt_product p, int64_t most)
{
    p.batch = 1, p.a_batch = p.b_batch = 0;
    if (p.m > 16) p.m = 16;
    if (p.n > 16 && p.c_row <= most / 32) p.n = 16;
    return is_within(&p, most);
}

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

Test(cuda_extents, parts_of_a_product_are_within_the_limit)
{
    struct random r = { 1 };
    int cut = 0, whole = 0, none = 0;
    for (int i = 0; i < 200000; i++) {
        const bool low = i % 2;
        const int64_t most = low ? 1000 + below(&r, 100000) : INT32_MAX;
        const struct rw_blaslt_product p = random_product(&r, low ? 12 : 20 + (int)below(&r, 2) * 12);
        struct rw_blaslt_part part = { 0 };
        if (!rw_blaslt_part_of(&p, most, &part)) {
            cr_assert(!must_have_parts(p, most), "%d: no parts", i);
            none++;
            continue;
        }
        const bool fits = part.batch == p.batch && part.rows == p.m && part.cols == p.n;
        cr_assert_eq(fits, is_within(&p, most), "%d", i);
        cr_assert(part.batch > 0 && part.rows > 0 && part.cols > 0);
        cr_assert(part.batch == 1 || (part.rows == p.m && part.cols == p.n));
        fits ? whole++ : cut++;
        expect_part(&p, part, (struct rw_blaslt_part){ 0 }, most);
        const struct rw_blaslt_part next = { part.batch < p.batch ? part.batch : 0, part.rows < p.m ? part.rows : 0,
                                             part.cols < p.n ? part.cols : 0 };
        const struct rw_blaslt_part rest = { min_of(part.batch, p.batch - next.batch),
                                             min_of(part.rows, p.m - next.rows), min_of(part.cols, p.n - next.cols) };
        expect_part(&p, rest, next, most);
    }
    cr_expect(cut > 20000 && whole > 20000 && none > 2000, "%d cut, %d whole, %d none", cut, whole, none);
}

/* ---- parts of a batch, by themselves ---- */

Test(cuda_extents, parts_of_a_convolution_are_within_the_limit)
{
    struct random r = { 2 };
    int cut = 0, whole = 0;
    for (int i = 0; i < 100000; i++) {
        struct rw_dnn_conv_signature s = { .n = extent_of(&r, 40),
                                           .h = extent_of(&r, 10),
                                           .w = extent_of(&r, 12),
                                           .c = extent_of(&r, 12),
                                           .oh = extent_of(&r, 10),
                                           .ow = extent_of(&r, 12),
                                           .oc = extent_of(&r, 12),
                                           .kh = 3,
                                           .kw = 3,
                                           .groups = 1 };
        s.dtype = (int32_t)types[below(&r, 4)];
        s.kind = (int32_t)below(&r, 3);
        const int64_t x = s.h * s.w * s.c, y = s.oh * s.ow * s.oc, larger = x > y ? x : y,
                      size = (int64_t)rw_dtype_size((rw_dtype)s.dtype);
        const int64_t part = rw_dnn_conv_part(&s, INT32_MAX);
        const bool fits = s.n <= INT32_MAX / larger && s.oc * s.c * 9 <= INT32_MAX;
        cr_assert_eq(part == s.n, fits, "%d", i);
        if (fits) whole++;
        if (!part || fits) continue;
        cut++;
        cr_assert(s.kind != RW_DNN_CONV_WEIGHT && part < s.n && part * larger <= INT32_MAX, "%d", i);
        cr_assert(part * x * size % 16 == 0 && part * y * size % 16 == 0, "%d: not at 16 bytes", i);
    }
    cr_expect(cut > 5000 && whole > 5000, "%d cut, %d whole", cut, whole);
}

static struct rw_sdpa_signature attention(int64_t batch, int64_t heads, int64_t seq, bool backward)
{
    const int64_t d = 64, of_head = seq * d, of_batch = heads * of_head;
    return (struct rw_sdpa_signature){ .batch = batch,
                                       .heads = heads,
                                       .kv_heads = heads,
                                       .seq = seq,
                                       .kv_seq = seq,
                                       .d = d,
                                       .q = { of_batch, of_head, d },
                                       .k = { of_batch, of_head, d },
                                       .v = { of_batch, of_head, d },
                                       .o = { of_batch, of_head, d },
                                       .dy = { of_batch, of_head, d },
                                       .dq = { of_batch, of_head, d },
                                       .dk = { of_batch, of_head, d },
                                       .backward = backward };
}

Test(cuda_extents, parts_of_attention_are_within_the_limit)
{
    for (int backward = 0; backward < 2; backward++) {
        const struct rw_sdpa_signature most = attention(16, 32, 65535, backward);
        cr_expect(rw_sdpa_fits(&most, 15, INT32_MAX) && rw_sdpa_fits(&most, 1, INT32_MAX));
        cr_expect(rw_sdpa_fits(&most, 16, INT32_MAX));
        const struct rw_sdpa_signature more = attention(16, 32, 65536, backward);
        cr_expect(!rw_sdpa_fits(&more, 16, INT32_MAX) && rw_sdpa_fits(&more, 15, INT32_MAX));
        const struct rw_sdpa_signature long_rows = attention(1, 1, (int64_t)1 << 40, backward);
        cr_expect(!rw_sdpa_fits(&long_rows, 1, INT32_MAX));
        struct rw_sdpa_signature strided = attention(2, 2, 128, backward);
        strided.k[0] = (int64_t)1 << 31;
        cr_expect(!rw_sdpa_fits(&strided, 2, INT32_MAX) && rw_sdpa_fits(&strided, 1, INT32_MAX));
        strided.v[1] = INT32_MAX - 128 * 64 + 1;
        cr_expect(!rw_sdpa_fits(&strided, 1, INT32_MAX), "the last element");
        strided.v[1]--;
        cr_expect_eq(rw_sdpa_fits(&strided, 1, INT32_MAX), true);
    }
}

/* ---- executed in parts ---- */

/* max_count: 0 for that of the library's types. */
static struct fixture open_device(int64_t max_count, bool plan_only)
{
    struct fixture b = { 0 };
    const rw_context_params params = { .device = RW_DEVICE_CUDA, .seed = 3, .plan_only = plan_only };
    cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    cudasim_set_max_count(max_count ? max_count : INT32_MAX);
    if (max_count) ((struct rw_cuda *)b.ctx->device_state)->max_count = max_count;
    return b;
}

static void close_device(struct fixture *b)
{
    fixture_close(b);
    cr_assert_eq(cudasim_live_allocations(), 0);
}

static double number(int64_t i)
{
    return (double)(i * 7919 % 1009 % 3 - 1);
}

static rw_tensor *filled(struct fixture *b, const char *name, rw_dtype dtype, rw_shape shape)
{
    rw_tensor *const x = rw_param(b->ctx, name, dtype, shape);
    cr_assert(tensor_fill(x, number));
    return x;
}

enum { MAX_COUNT = 2048 };

/* c [batch, m, n] of a depth k, and the calls of the library that MAX_COUNT leads to. */
struct product_case {
    const char *what;
    int64_t batch, m, n, k;
    int calls;
};

static const struct product_case matmuls[] = {
    { "fits", 1, 32, 48, 8, 1 },
    { "rows", 1, 400, 48, 8, 10 },             /* of 40: 42 rows of c are within the limit */
    { "a batch", 40, 8, 8, 8, 2 },             /* of 20: 32 of c */
    { "a batch of large c", 3, 80, 40, 8, 6 }, /* each of two times 40 rows */
    { "too deep", 1, 8, 16, 2064, 0 },
    { "strides that are too large", 1, 8, 2064, 8, 0 },
};

static rw_tensor *record_matmul(struct fixture *b, const struct product_case *c, rw_dtype dtype)
{
    rw_tensor *const x = filled(b, "x", dtype, RW_SHAPE(c->batch, c->m, c->k));
    return rw_matmul(b->t, x, filled(b, "y", dtype, RW_SHAPE(c->batch, c->k, c->n)));
}

/* The weight's rows are columns of the product. */
static const struct product_case linears[] = {
    { "columns", 1, 5, 400, 8, 2 },                   /* of 200: 256 of the weight */
    { "rows and columns", 1, 48, 400, 8, 20 },        /* by 10 rows of 5 */
    { "rows that are not aligned", 1, 90, 50, 8, 3 }, /* 40 rows of c; each begins at 16 bytes */
};

enum linear { PLAIN, GELU, SUM, LINEARS };

static rw_tensor *record_linear(struct fixture *b, const struct product_case *c, rw_dtype dtype, enum linear kind)
{
    rw_tensor *const x = filled(b, "x", dtype, RW_SHAPE(c->m, c->k)), *const w = filled(b, "w", dtype,
                                                                                        RW_SHAPE(c->n, c->k));
    rw_tensor *const bias = filled(b, "bias", dtype, RW_SHAPE(c->n));
    if (kind == GELU) return rw_linear_gelu(b->t, x, w, bias);
    if (kind == SUM) return rw_linear_add(b->t, x, w, bias, filled(b, "sum", dtype, RW_SHAPE(c->m, c->n)));
    return rw_linear(b->t, x, w, bias);
}

/* A result and, where the gradients' sums are exact, all gradients. The caller frees. */
static unsigned char *values(struct fixture *b, rw_tensor *y, bool backward, size_t *ret_bytes, long *ret_calls)
{
    const long before = cudasim_calls("cublasLtMatmul");
    const size_t bytes = rw_tensor_bytes(y);
    unsigned char *const all = malloc(bytes);
    cr_assert_eq(rw_read(b->t, y, all, bytes), RW_OK, "%s", rw_error_message(b->ctx));
    *ret_calls = cudasim_calls("cublasLtMatmul") - before;
    *ret_bytes = bytes;
    if (!backward) return all;
    size_t more;
    cr_assert_eq(rw_backward(b->t, rw_sum(b->t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b->ctx));
    unsigned char *const gradients = all_gradients(b->ctx, &more), *const both = realloc(all, bytes + more);
    memcpy(both + bytes, gradients, more);
    free(gradients);
    *ret_bytes += more;
    return both;
}

/* kind: LINEARS for a matmul. */
static unsigned char *product(const struct product_case *c, rw_dtype dtype, enum linear kind, int64_t max_count,
                              size_t *ret_bytes, long *ret_calls)
{
    struct fixture b = open_device(max_count, false);
    rw_tensor *const y = kind == LINEARS ? record_matmul(&b, c, dtype) : record_linear(&b, c, dtype, kind);
    unsigned char *const all = values(&b, y, kind != GELU, ret_bytes, ret_calls);
    close_device(&b);
    return all;
}

static void expect_same(const struct product_case *c, rw_dtype dtype, enum linear kind)
{
    size_t bytes, n;
    long calls, one;
    unsigned char *const whole = product(c, dtype, kind, 0, &bytes, &one);
    unsigned char *const parts = product(c, dtype, kind, MAX_COUNT, &n, &calls);
    cr_expect_eq(one, 1, "%s: %ld calls without a limit", c->what, one);
    cr_expect_eq(calls, c->calls, "%s, %s, %d: %ld calls", c->what, rw_dtype_name(dtype), (int)kind, calls);
    cr_expect_eq(first_difference(whole, parts, bytes), -1, "%s, %s, %d", c->what, rw_dtype_name(dtype), (int)kind);
    free(whole), free(parts);
}

Test(cuda_extents, products_run_in_parts)
{
    for (size_t i = 0; i < sizeof matmuls / sizeof *matmuls; i++)
        for (size_t d = 0; d < sizeof types / sizeof *types; d++) expect_same(&matmuls[i], types[d], LINEARS);
}

Test(cuda_extents, products_with_more_run_in_parts)
{
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++)
        for (size_t d = 0; d < sizeof types / sizeof *types; d++)
            for (int kind = 0; kind < LINEARS; kind++) expect_same(&linears[i], types[d], (enum linear)kind);
}

/* Both factors in FP8 units, cut at multiples of 16. Their scales are 1/448, so every sum of FP8 values is exact. */
static unsigned char *codes(int64_t max_count, size_t *ret_bytes, long *ret_calls)
{
    struct fixture b = open_device(max_count, false);
    rw_float8_products n;
    rw_tensor *const x = filled(&b, "x", RW_F32, RW_SHAPE(160, 32)), *const w = filled(&b, "w", RW_F32,
                                                                                       RW_SHAPE(48, 32));
    cr_assert_eq(rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_F8 }), RW_OK);
    rw_tensor *const y = rw_linear(b.t, x, w, RW_NONE);
    cr_assert_eq(rw_recipe_end(b.t), RW_OK);
    unsigned char *const all = values(&b, y, false, ret_bytes, ret_calls);
    cr_assert_eq(rw_float8_product_stats(b.ctx, &n), RW_OK);
    cr_expect(n.fp8 == 1 && n.decoded == 0, "%d by FP8 units, %d decoded", (int)n.fp8, (int)n.decoded);
    close_device(&b);
    return all;
}

Test(cuda_extents, products_in_fp8_run_in_parts)
{
    size_t bytes;
    long calls;
    unsigned char *const whole = codes(0, &bytes, &calls);
    cr_expect_eq(calls, 1);
    unsigned char *const parts = codes(MAX_COUNT, &bytes, &calls);
    cr_expect_eq(calls, 5, "of 32 rows each: %ld", calls); /* 42 rows of c, 64 of x */
    cr_expect_eq(first_difference(whole, parts, bytes), -1);
    free(whole), free(parts);
}

/* ---- convolutions ---- */

static unsigned char *convolution(const char *choice, rw_dtype dtype, int64_t max_count, size_t *ret_bytes,
                                  long *ret_runs)
{
    const long before = cudasim_calls("cudnnBackendExecute");
    if (choice) setenv("REWIND_CONV", choice, 1);
    else unsetenv("REWIND_CONV");
    struct fixture b = open_device(max_count, false);
    rw_tensor *const x = filled(&b, "x", dtype, RW_SHAPE(7, 8, 6, 9)), *const w = filled(&b, "w", dtype,
                                                                                         RW_SHAPE(4, 8, 3, 2));
    rw_tensor *const y = rw_conv2d(b.t, x, w, filled(&b, "bias", dtype, RW_SHAPE(4)), NULL);
    long products;
    unsigned char *const all = values(&b, y, true, ret_bytes, &products);
    *ret_runs = cudasim_calls("cudnnBackendExecute") - before;
    close_device(&b);
    return all;
}

/* An x of 432 elements an image: parts of two images, and one of one. The weight's gradient is of the whole batch. */
Test(cuda_extents, convolutions_run_in_parts)
{
    enum { WHOLE = 3, PARTS = 4 + 4 };
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        size_t bytes;
        long runs;
        unsigned char *const own = convolution(NULL, types[d], 0, &bytes, &runs);
        cr_expect_eq(runs, 0);
        unsigned char *const whole = convolution("cudnn", types[d], 0, &bytes, &runs);
        cr_expect_eq(runs, WHOLE, "%ld", runs);
        unsigned char *const parts = convolution("cudnn", types[d], 1000, &bytes, &runs);
        cr_expect_eq(runs, PARTS, "%ld", runs);
        unsigned char *const none = convolution("cudnn", types[d], 400, &bytes, &runs);
        cr_expect_eq(runs, 0, "%ld", runs);
        cr_expect_eq(first_difference(own, whole, bytes), -1, "%s", rw_dtype_name(types[d]));
        cr_expect_eq(first_difference(own, parts, bytes), -1, "%s", rw_dtype_name(types[d]));
        cr_expect_eq(first_difference(own, none, bytes), -1, "%s", rw_dtype_name(types[d]));
        free(own), free(whole), free(parts), free(none);
    }
}

/* ---- planned: no memory holds them ---- */

static const int64_t huge[] = { ((int64_t)1 << 31) - 1, (int64_t)1 << 31,        ((int64_t)1 << 31) + 16,
                                (int64_t)1 << 32,       ((int64_t)3 << 32) + 48, (int64_t)1 << 40 };

static rw_tensor *randn(struct fixture *b, rw_dtype dtype, rw_shape shape)
{
    return rw_require_grad(b->t, rw_randn(b->t, dtype, shape));
}

/* In each, the extent n somewhere else. */
static rw_tensor *record_huge(struct fixture *b, int which, rw_dtype dtype, int64_t n)
{
    rw_tape *const t = b->t;
    switch (which) {
    case 0: return rw_matmul(t, randn(b, dtype, RW_SHAPE(n, 48)), randn(b, dtype, RW_SHAPE(48, 64)));
    case 1: return rw_matmul(t, randn(b, dtype, RW_SHAPE(64, n)), randn(b, dtype, RW_SHAPE(n, 64)));
    case 2: return rw_linear(t, randn(b, dtype, RW_SHAPE(64, 48)), randn(b, dtype, RW_SHAPE(n, 48)), RW_NONE);
    case 3: return rw_matmul(t, randn(b, dtype, RW_SHAPE(n, 16, 8)), randn(b, dtype, RW_SHAPE(n, 8, 16)));
    case 4: return rw_matmul(t, randn(b, dtype, RW_SHAPE(8, n, 8)), randn(b, dtype, RW_SHAPE(8, 8, 16)));
    case 5:
        return rw_matmul(t, rw_transpose(t, randn(b, dtype, RW_SHAPE(48, n)), 0, 1), randn(b, dtype, RW_SHAPE(48, 64)));
    case 6:
        return rw_linear_add(t, randn(b, dtype, RW_SHAPE(n, 48)), randn(b, dtype, RW_SHAPE(64, 48)),
                             randn(b, dtype, RW_SHAPE(64)), randn(b, dtype, RW_SHAPE(n, 64)));
    case 7:
        return rw_linear_gelu(t, randn(b, dtype, RW_SHAPE(n, 48)), randn(b, dtype, RW_SHAPE(64, 48)),
                              randn(b, dtype, RW_SHAPE(64)));
    case 8:
        return rw_conv2d(t, randn(b, dtype, RW_SHAPE(n, 4, 8, 8)), randn(b, dtype, RW_SHAPE(8, 4, 3, 3)), RW_NONE,
                         NULL);
    case 9:
        return rw_conv2d(t, randn(b, dtype, RW_SHAPE(2, 4, 8, n)), randn(b, dtype, RW_SHAPE(8, 4, 3, 3)), RW_NONE,
                         NULL);
    case 10:
        return rw_conv2d(t, randn(b, dtype, RW_SHAPE(2, n, 8, 8)), randn(b, dtype, RW_SHAPE(8, n, 3, 3)), RW_NONE,
                         NULL);
    case 11:
        return rw_conv2d(t, randn(b, dtype, RW_SHAPE(2, 4, 8, 8)), randn(b, dtype, RW_SHAPE(n, 4, 3, 3)), RW_NONE,
                         NULL);
    case 12:
    case 13:
    case 14: {
        const rw_shape s = which == 12   ? RW_SHAPE(n, 2, 16, 64)
                           : which == 13 ? RW_SHAPE(2, n, 16, 64)
                                         : RW_SHAPE(2, 2, n, 64);
        return rw_attention(t, randn(b, dtype, s), randn(b, dtype, s), randn(b, dtype, s), NULL);
    }
    default: return NULL;
    }
}

/* Planning queries the libraries for the workspaces of all ops before it checks the size of the arena. It refuses a
   plan whose words cannot address the arena. The simulator ends the process at the first count that is too large. */
Test(cuda_extents, planned_operations_give_the_libraries_no_larger_counts, .timeout = 300)
{
    setenv("REWIND_CONV", "cudnn", 1);
    setenv("REWIND_SDPA", "cudnn", 1);
    struct fixture b = open_device(0, true);
    int planned = 0, larger = 0, all = 0;
    for (int which = 0; which < 15; which++)
        for (size_t i = 0; i < sizeof huge / sizeof *huge; i++)
            for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
                rw_prediction p;
                rw_tensor *const y = record_huge(&b, which, types[d], huge[i]);
                rw_tensor *const loss = y ? rw_cast(b.t, rw_sum(b.t, y, RW_ALL_AXES, false), RW_F32) : NULL;
                const rw_status status = loss ? rw_tape_plan(b.t, loss, "none", &p) : rw_error_status(b.ctx);
                cr_expect_eq(!status, !*rw_error_message(b.ctx), "%d, 2^%d: %s", which, (int)i,
                             rw_error_message(b.ctx));
                planned += !status, all++;
                larger += strstr(rw_error_message(b.ctx), "more than a plan can address") != NULL;
                rw_error_clear(b.ctx);
                rw_tape_reset(b.t);
            }
    cr_expect_eq(planned + larger, all);
    cr_expect_geq(planned, 50);
    close_device(&b);
}
