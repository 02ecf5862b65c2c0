/*
 * Products of small integers, whose results every type holds exactly: each element is checked, for all layouts of
 * operands, and for extents close to those of tiles, blocks and steps. The operands are surrounded by NaN, so a product
 * that reads outside of one is detected.
 */
#include "support/support.h"

#include "device/cpu/isa.h"
#include "ops/matmul/matmul.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct extents {
    int64_t m, n, k;
};

/* From the work of one thread to products that are split into tiles and panels; with depths of one step and of many. */
static const struct extents all_extents[] = {
    { 3, 5, 7 },       { 32, 64, 1024 },  { 33, 64, 1100 },  { 64, 33, 1100 },  { 129, 161, 130 }, { 257, 300, 65 },
    { 600, 400, 33 },  { 47, 48, 2049 },  { 31, 700, 255 },  { 700, 31, 256 },  { 96, 800, 300 },  { 1100, 70, 257 },
    { 4, 2100, 2003 }, { 8, 1055, 4096 }, { 2050, 1031, 4 }, { 1025, 2049, 1 }, { 80, 1456, 21 },
};
/* So many multiplications that processors without AVX-512 pack both operands; one with columns of two panels. */
static const struct extents largest[] = { { 677, 1033, 391 }, { 401, 1601, 421 } };
/* Two parts of the depth, if they are packed. */
static const struct extents deep[] = { { 401, 801, 811 } };

static const struct extents *extents = all_extents;
static int n_extents = sizeof all_extents / sizeof *all_extents;

static const rw_dtype types[] = { RW_BF16, RW_F32, RW_F16, RW_F64 };

enum { ROWS_BEFORE = 1, COLS_BEFORE = 2, ROWS_MORE = 3, COLS_MORE = 5 };

/* -1, 0 or 1: sums of 2,100 products of two stay far below 256, up to which bfloat16 holds every integer. */
TEST_RECKONS static int number_at(uint32_t seed, int64_t row, int64_t col)
{
    uint32_t x = seed * 0x9e3779b9u + (uint32_t)row * 0x85ebca6bu + (uint32_t)col * 0xc2b2ae35u;
    x ^= x >> 15, x *= 0x2c1b3c6du, x ^= x >> 12, x *= 0x297a2d39u, x ^= x >> 15;
    return (int)(x % 3) - 1;
}

TEST_RECKONS static void put(void *to, rw_dtype dtype, int64_t i, double x)
{
    const float single = (float)x;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if (dtype == RW_F64) ((double *)to)[i] = x;
    else if (dtype == RW_F32) ((float *)to)[i] = single;
    else if (dtype == RW_BF16) ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
    else ((uint16_t *)to)[i] = isnan(x) ? 0x7e00 : x < 0 ? 0xbc00 : x > 0 ? 0x3c00 : 0;
}

enum { A = 1, B, BIAS, SUM };

/* [rows, cols] of integers in the middle of a matrix of NaN; with `transposed` the transpose of [cols, rows]. */
static rw_tensor *operand(struct fixture *b, rw_dtype dtype, uint32_t seed, int64_t rows, int64_t cols, bool transposed)
{
    const int64_t high = (transposed ? cols : rows), wide = transposed ? rows : cols;
    const int64_t all_rows = high + ROWS_MORE, all_cols = wide + COLS_MORE;
    void *const data = malloc((size_t)(all_rows * all_cols) * rw_dtype_size(dtype));
    const char *const names[] = { "", "a", "b", "bias", "sum" };
    rw_tensor *const p = rw_buffer(b->ctx, names[seed], dtype, RW_SHAPE(all_rows, all_cols));
    for (int64_t i = 0; i < all_rows; i++)
        for (int64_t j = 0; j < all_cols; j++) {
            const int64_t r = i - ROWS_BEFORE, c = j - COLS_BEFORE;
            const bool inside = r >= 0 && r < high && c >= 0 && c < wide;
            put(data, dtype, i * all_cols + j, inside ? number_at(seed, transposed ? c : r, transposed ? r : c) : NAN);
        }
    cr_assert_eq(rw_write(p, data, rw_tensor_bytes(p)), RW_OK, "%s", rw_error_message(b->ctx));
    free(data);
    rw_tensor *const x = rw_slice(b->t, rw_slice(b->t, p, 0, ROWS_BEFORE, ROWS_BEFORE + high), 1, COLS_BEFORE,
                                  COLS_BEFORE + wide);
    return transposed ? rw_transpose(b->t, x, 0, 1) : x;
}

TEST_RECKONS static signed char *numbers(uint32_t seed, int64_t rows, int64_t cols)
{
    signed char *const x = malloc((size_t)(rows * cols));
    for (int64_t i = 0; i < rows * cols; i++) x[i] = (signed char)number_at(seed, i / cols, i % cols);
    return x;
}

/* A row of c, with the columns of the inner loop contiguous: going down the columns of b would miss the caches. */
TEST_RECKONS static void row_of_product(const signed char *row, const signed char *columns, const struct extents *e,
                                        int *sums)
{
    for (int64_t k = 0; k < e->k; k++)
        for (int64_t j = 0; row[k] && j < e->n; j++) sums[j] += row[k] * columns[k * e->n + j];
}

/* Compares sampled rows of the result with exact sums. */
static void expect_exact(struct fixture *b, rw_tensor *y, const struct extents *e, bool bias, bool adds,
                         const char *what)
{
    float *const are = malloc((size_t)(e->m * e->n) * sizeof *are);
    int *const want = malloc((size_t)e->n * sizeof *want);
    signed char *const a = numbers(A, e->m, e->k), *const columns = numbers(B, e->k, e->n);
    rw_tensor *const wide = rw_cast(b->t, y, RW_F32);
    cr_assert_eq(rw_read(b->t, wide, are, rw_tensor_bytes(wide)), RW_OK, "%s", rw_error_message(b->ctx));
    const bool large = e->m * e->n * e->k >= 1 << 28;
    const int64_t rows = large ? 13 : 1; /* every so many rows, and every remainder that a strip may have */
    for (int64_t i = 0; i < e->m; i += i + rows < e->m - 8 ? rows : 1) {
        for (int64_t j = 0; j < e->n; j++)
            want[j] = (bias ? number_at(BIAS, 0, j) : 0) + (adds ? number_at(SUM, i, j) : 0);
        row_of_product(a + i * e->k, columns, e, want);
        for (int64_t j = 0; j < e->n; j++)
            if (abs(want[j]) >= 256 || are[i * e->n + j] != (float)want[j])
                cr_assert_fail("%s, %s, [%d, %d] by %d: [%d, %d] is %g, not %d", what,
                               rw_dtype_name(rw_tensor_dtype(y)), (int)e->m, (int)e->n, (int)e->k, (int)i, (int)j,
                               (double)are[i * e->n + j], want[j]);
    }
    free(are), free(want), free(a), free(columns);
}

static void operands_in_any_layout(rw_dtype dtype)
{
    for (int i = 0; i < n_extents; i++)
        for (int lie = 0; lie < 4; lie++) {
            const struct extents *const e = &extents[i];
            struct fixture b = fixture_open(1, 1 + lie);
            rw_tensor *const x = operand(&b, dtype, A, e->m, e->k, lie & 1);
            rw_tensor *const y = operand(&b, dtype, B, e->k, e->n, lie & 2);
            expect_exact(&b, rw_matmul(b.t, x, y), e, false, false, "a product");
            fixture_close(&b);
        }
}

static void with_a_bias(rw_dtype dtype)
{
    for (int i = 0; i < n_extents; i++)
        for (int transposed = 0; transposed < 2; transposed++) {
            const struct extents *const e = &extents[i];
            struct fixture b = fixture_open(1, 2);
            rw_tensor *const x = operand(&b, dtype, A, e->m, e->k, false);
            rw_tensor *const w = rw_transpose(b.t, operand(&b, dtype, B, e->k, e->n, transposed), 0, 1);
            rw_tensor *const row = operand(&b, dtype, BIAS, 1, e->n, false);
            rw_tensor *const bias = rw_contiguous(b.t, rw_reshape(b.t, row, RW_SHAPE(e->n)));
            expect_exact(&b, rw_linear(b.t, x, w, bias), e, true, false, "with a bias");
            fixture_close(&b);
        }
}

/* In 16 bits the sum may be float32, as a weight's gradient is. */
static void beside_a_sum(rw_dtype dtype)
{
    for (int i = 0; i < n_extents; i++)
        for (int wide = 0; wide < 2; wide++) {
            const struct extents *const e = &extents[i];
            struct fixture b = fixture_open(1, 2);
            const rw_dtype to = wide && rw_dtype_size(dtype) == 2 ? RW_F32 : dtype;
            rw_tensor *const x = operand(&b, dtype, A, e->m, e->k, i % 2);
            rw_tensor *const y = operand(&b, dtype, B, e->k, e->n, false);
            rw_tensor *const sum = rw_contiguous(b.t, operand(&b, to, SUM, e->m, e->n, false));
            expect_exact(&b, rw_matmul_add_at(RW_HERE, b.t, sum, x, y), e, false, true, "beside a sum");
            fixture_close(&b);
        }
}

/* A batch of two, whose second factors are the first ones with the opposite sign; elements of a row have a stride of
   two. If kernels are simulated only some extents, because they have no special plan for a batch. */
static void of_a_batch(rw_dtype dtype)
{
    for (int i = 0; i < n_extents; i += test_device() == RW_DEVICE_CPU ? 1 : 5) {
        const struct extents *const e = &extents[i];
        struct fixture b = fixture_open(1, 2);
        rw_tensor *const x = operand(&b, dtype, A, e->m, e->k, false);
        rw_tensor *const y = operand(&b, dtype, B, e->k, e->n, i % 2);
        rw_tensor *const none = rw_full(b.t, dtype, RW_SHAPE(2, e->m, e->k), NAN);
        rw_tensor *const both = rw_stack(b.t, (rw_tensor *[]){ x, x }, 2, 0);
        rw_tensor *const apart = rw_select(b.t, rw_stack(b.t, (rw_tensor *[]){ both, none }, 2, 3), 3, 0);
        rw_tensor *const signs = rw_stack(b.t, (rw_tensor *[]){ y, rw_neg(b.t, y) }, 2, 0);
        rw_tensor *const z = rw_matmul(b.t, apart, signs);
        expect_exact(&b, rw_select(b.t, z, 0, 0), e, false, false, "the first of a batch");
        expect_exact(&b, rw_neg(b.t, rw_select(b.t, z, 0, 1)), e, false, false, "the second of a batch");
        fixture_close(&b);
    }
}

/* Random rows of factors, with several numbers of threads. */
static void by_threads_of(rw_dtype dtype, bool adds)
{
    for (int i = 0; i < n_extents; i++) {
        const struct extents *const e = &extents[i];
        const size_t bytes = (size_t)(e->m * e->n) * rw_dtype_size(dtype);
        unsigned char *const first = malloc(bytes), *const other = malloc(bytes);
        for (int threads = 1; threads <= test_steps(5, 3); threads += 2) {
            struct fixture b = fixture_open(7, threads);
            rw_tensor *const x = rw_randn(b.t, dtype, RW_SHAPE(e->m, e->k));
            rw_tensor *const y = rw_randn(b.t, dtype, RW_SHAPE(e->k, e->n));
            rw_tensor *const sum = rw_randn(b.t, dtype, RW_SHAPE(e->m, e->n));
            rw_tensor *const z = adds ? rw_matmul_add_at(RW_HERE, b.t, sum, x, y) : rw_matmul(b.t, x, y);
            cr_assert_eq(rw_read(b.t, z, threads == 1 ? first : other, bytes), RW_OK);
            if (threads > 1)
                cr_assert_eq(first_difference(first, other, bytes), -1, "%s, extents %d, %d threads",
                             rw_dtype_name(dtype), i, threads);
            fixture_close(&b);
        }
        free(first), free(other);
    }
}

static void by_threads(rw_dtype dtype)
{
    by_threads_of(dtype, false);
}

/* Random rows, in reverse order: the results are reversed, byte for byte. */
static void wherever_a_row_lies(rw_dtype dtype)
{
    for (int i = 0; i < n_extents; i += test_device() == RW_DEVICE_CPU ? 1 : 5)
        for (int transposed = 0; transposed < 2; transposed++) {
            const struct extents *const e = &extents[i];
            struct fixture b = fixture_open(7, 2);
            rw_tensor *const x = rw_randn(b.t, dtype, RW_SHAPE(e->m, e->k));
            rw_tensor *const w = rw_randn(b.t, dtype, transposed ? RW_SHAPE(e->k, e->n) : RW_SHAPE(e->n, e->k));
            rw_tensor *const bias = transposed ? RW_NONE : rw_randn(b.t, dtype, RW_SHAPE(e->n));
            rw_tensor *y[2];
            for (int back = 0; back < 2; back++) {
                rw_tensor *const from = back ? rw_contiguous(b.t, rw_flip(b.t, x, 0)) : x;
                y[back] = transposed ? rw_matmul(b.t, from, w) : rw_linear(b.t, from, w, bias);
            }
            y[1] = rw_contiguous(b.t, rw_flip(b.t, y[1], 0));
            const size_t bytes = rw_tensor_bytes(y[0]);
            unsigned char *const there = malloc(bytes), *const back = malloc(bytes);
            cr_assert_eq(rw_read(b.t, y[0], there, bytes), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_read(b.t, y[1], back, bytes), RW_OK, "%s", rw_error_message(b.ctx));
            cr_expect_eq(first_difference(there, back, bytes), -1, "%s, extents %d, %s", rw_dtype_name(dtype), i,
                         transposed ? "a product" : "with a bias");
            free(there), free(back);
            fixture_close(&b);
        }
}

static void for_each_type(void (*holds)(rw_dtype dtype))
{
    for (int d = 0; d < (rw_cpu_emulates_amx ? 1 : 4); d++) holds(types[d]);
}

/* Both operands are transposed, so that each row's last elements are fewer than a vector's: those of the last row end
   where memory does (base/guarded.c). */
static void at_the_end_of_memory(rw_dtype dtype)
{
    static const struct extents e = { 33, 33, 2048 };
    struct fixture b = fixture_open(1, 2);
    rw_tensor *x[2];
    for (int i = 0; i < 2; i++) {
        void *const data = malloc((size_t)(e.k * e.n) * rw_dtype_size(dtype));
        for (int64_t at = 0; at < e.k * e.n; at++) {
            const int64_t row = at / e.n, col = at % e.n;
            put(data, dtype, at, i ? number_at(B, row, col) : number_at(A, col, row));
        }
        x[i] = rw_buffer(b.ctx, i ? "b" : "a", dtype, RW_SHAPE(e.k, e.n));
        cr_assert_eq(rw_write(x[i], data, rw_tensor_bytes(x[i])), RW_OK, "%s", rw_error_message(b.ctx));
        free(data);
    }
    expect_exact(&b, rw_matmul(b.t, rw_transpose(b.t, x[0], 0, 1), x[1]), &e, false, false, "at the end of memory");
    fixture_close(&b);
}

Test(matmul_exact_integers, nothing_is_read_after_an_operand)
{
    for_each_type(at_the_end_of_memory);
}

Test(matmul_exact_integers, operands_in_any_layout)
{
    for_each_type(operands_in_any_layout);
}

Test(matmul_exact_integers, with_a_bias)
{
    for_each_type(with_a_bias);
}

Test(matmul_exact_integers, beside_a_sum)
{
    for_each_type(beside_a_sum);
}

Test(matmul_exact_integers, of_a_batch)
{
    for_each_type(of_a_batch);
}

Test(matmul_exact_integers, any_number_of_threads_gives_the_same_bytes)
{
    for_each_type(by_threads);
}

Test(matmul_exact_integers, a_row_has_the_same_bits_at_any_position)
{
    for_each_type(wherever_a_row_lies);
}

static void check_all(const struct extents *list, int n, int n_types)
{
    extents = list;
    n_extents = n;
    for (int d = 0; d < n_types; d++) {
        operands_in_any_layout(types[d]);
        with_a_bias(types[d]);
        beside_a_sum(types[d]);
        of_a_batch(types[d]);
        by_threads(types[d]);
        wherever_a_row_lies(types[d]);
    }
}

Test(matmul_exact_integers, the_largest)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("of the CPU");
    if (rw_cpu_emulates_amx) check_all(largest, 1, 1);
    else check_all(largest, sizeof largest / sizeof *largest, 3);
}

/* They are packed on every machine that has AVX2. */
Test(matmul_exact_integers, the_largest_by_code_for_older_processors)
{
    BY_CODE_FOR_AVX2();
    check_all(largest, sizeof largest / sizeof *largest, 2);
    check_all(deep, sizeof deep / sizeof *deep, 2);
}

/* As above, but with the vectors of this processor. Its matrix unit is left out. */
Test(matmul_exact_integers, the_largest_where_the_library_is_limited_to_avx2)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("of the CPU");
    setenv("REWIND_ISA", "v4", 1);
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
    check_all(largest, sizeof largest / sizeof *largest, 2);
    check_all(deep, sizeof deep / sizeof *deep, 2);
}

/* More rows than the sums that are held for the product at a time. */
Test(matmul_exact_integers, sums_of_bands_of_rows)
{
    BY_CODE_FOR_AVX2();
    static const struct extents high = { 2900, 801, 811 };
    extents = &high;
    n_extents = 1;
    beside_a_sum(RW_F32);
    by_threads_of(RW_F32, true);
}

/* Fewer rows than make sharing of packed operands worthwhile: each thread has workspace to pack for itself. */
Test(matmul_exact_integers, few_rows_of_a_large_product_are_for_all_threads)
{
    BY_CODE_FOR_AVX2();
    size_t workspace[2];
    for (int many = 0; many < 2; many++) {
        struct fixture b = fixture_open(1, many ? 4 : 1);
        rw_tensor *const x = rw_randn(b.t, RW_F32, RW_SHAPE(32, 2048));
        rw_tensor *const w = rw_randn(b.t, RW_F32, RW_SHAPE(4096, 2048));
        rw_tensor *const y = rw_linear(b.t, x, w, RW_NONE);
        rw_memory m;
        cr_assert_eq(rw_eval(b.t, (rw_tensor *[]){ y }, 1), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        workspace[many] = m.workspace;
        fixture_close(&b);
    }
    cr_expect_gt(workspace[0], 0);
    cr_expect_gt(workspace[1], 3 * workspace[0], "%zu and %zu bytes", workspace[0], workspace[1]);
}

/* If tiles were planned for many threads, there is no workspace for the shared packing of one thread. */
Test(matmul_exact_integers, one_thread_has_the_workspace_of_many)
{
    BY_CODE_FOR_AVX2();
    enum { M = 256, N = 1024, K = 1030 };
    static float y[2][M * N];
    for (int alone = 0; alone < 2; alone++) {
        struct fixture b = fixture_open(1, 4);
        if (alone) begin_alone(b.ctx);
        rw_tensor *const x = rw_randn(b.t, RW_F32, RW_SHAPE(M, K));
        rw_tensor *const w = rw_randn(b.t, RW_F32, RW_SHAPE(N, K));
        cr_assert_eq(rw_read(b.t, rw_linear(b.t, x, w, RW_NONE), y[alone], sizeof y[alone]), RW_OK, "%s",
                     rw_error_message(b.ctx));
        fixture_close(&b);
    }
    cr_expect_eq(first_difference(y[0], y[1], sizeof *y), -1);
}

/* The library's code for AVX2 processes rows by six: others are padded. */
Test(matmul_exact_integers, by_code_for_older_processors)
{
    BY_CODE_FOR_AVX2();
    for (int d = 0; d < 2; d++) {
        with_a_bias(types[d]);
        beside_a_sum(types[d]);
        of_a_batch(types[d]);
        wherever_a_row_lies(types[d]);
    }
}

/* Each test is a process of its own: the instruction set has not been selected yet. */
Test(matmul_exact_integers, where_the_processor_does_not_multiply_bfloat16)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("of the CPU");
    setenv("REWIND_ISA", "v3", 1);
    operands_in_any_layout(RW_BF16);
    with_a_bias(RW_BF16);
    beside_a_sum(RW_BF16);
    of_a_batch(RW_BF16);
    by_threads(RW_BF16);
}

/* Parts of the operands are as deep as the cache size allows, whatever the depth. */
Test(matmul_exact_integers, widened_operands_take_no_more_memory_for_more_depth)
{
    size_t workspace[2];
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("of the CPU");
    for (int more = 0; more < 2; more++) {
        struct fixture b = fixture_open(1, 2);
        const int64_t depth = more ? 16384 : 2048;
        rw_memory m;
        rw_tensor *const x = rw_randn(b.t, RW_F16, RW_SHAPE(64, depth));
        rw_tensor *const y = rw_randn(b.t, RW_F16, RW_SHAPE(depth, 64));
        cr_assert_eq(rw_eval(b.t, (rw_tensor *[]){ rw_matmul(b.t, x, y) }, 1), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        workspace[more] = m.workspace;
        fixture_close(&b);
    }
    cr_expect(workspace[0] > 0);
    cr_expect_eq(workspace[0], workspace[1], "%zu and %zu bytes", workspace[0], workspace[1]);
}
