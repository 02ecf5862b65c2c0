/*
 * A row's bits do not depend on the other rows: in products that are split into tiles, in transposed ones, and in
 * experts' products, however many rows an expert has. The product is computed by the library or by our own code, whose
 * order of summation may depend on the number of rows (device/cpu/onednn.h): the extents are on both sides of its
 * bounds.
 */
#include "ops/moe_test_data.h"

#include <string.h>

static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16 };

/* ---- reversed rows ---- */

struct extents {
    int64_t m, n, k;
};

/* A last tile of one row, of some, and of fewer than 200 next to a longer one, deep and shallow; enough for two
   threads. */
static const struct extents products[] = {
    { 193, 200, 300 }, { 205, 155, 58 },  { 401, 801, 811 }, { 399, 520, 896 },
    { 769, 384, 769 }, { 400, 160, 1000 }, { 385, 640, 1100 }, { 33, 700, 900 },
};

static unsigned char *rows_of(struct fixture *b, const struct extents *e, rw_dtype dtype, bool transposed, bool back)
{
    rw_tensor *const x = rw_randn(b->t, dtype, RW_SHAPE(e->m, e->k));
    rw_tensor *const w = rw_randn(b->t, dtype, transposed ? RW_SHAPE(e->n, e->k) : RW_SHAPE(e->k, e->n));
    rw_tensor *const from = back ? rw_contiguous(b->t, rw_flip(b->t, x, 0)) : x;
    rw_tensor *const y = transposed ? rw_linear(b->t, from, w, RW_NONE) : rw_matmul(b->t, from, w);
    return bytes_of(b->t, back ? rw_contiguous(b->t, rw_flip(b->t, y, 0)) : y);
}

Test(row_independence, rows_in_reverse_order)
{
    const bool all = test_device() == RW_DEVICE_CPU; /* the simulator is slow */
    const size_t n = all ? sizeof products / sizeof *products : 2;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 6; k++) {
            const struct extents *const e = &products[i];
            const rw_dtype dtype = types[k / 2];
            unsigned char *rows[2];
            for (int back = 0; back < 2; back++) {
                struct fixture b = fixture_open(7, 2);
                rows[back] = rows_of(&b, e, dtype, k % 2, back);
                fixture_close(&b);
            }
            cr_expect_eq(first_difference(rows[0], rows[1], (size_t)(e->m * e->n) * rw_dtype_size(dtype)), -1,
                         "%s, %lld x %lld x %lld, %s", rw_dtype_name(dtype), (long long)e->m, (long long)e->n,
                         (long long)e->k, k % 2 ? "linear" : "matmul");
            free(rows[0]), free(rows[1]);
        }
}

/* ---- the same row in experts with different numbers of rows ---- */

static const int counts[] = { 1, 2, 15, 16, 17, 31, 33, 64, 100, 130, 193, 200, 256, 300, 449, 513 };
enum { EXPERTS = sizeof counts / sizeof *counts };

static rw_moe_routes routes_of(struct fixture *b, int64_t *ret_rows)
{
    rw_moe_routes r;
    int n = 0, at = 0;
    for (int e = 0; e < EXPERTS; e++) n += counts[e];
    int32_t *const index = malloc((size_t)n * sizeof *index);
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < counts[e]; i++) index[at++] = e;
    cr_assert_eq(
        rw_moe_route(b->t, rw_input(b->t, RW_I32, RW_SHAPE(n, 1), index, (size_t)n * sizeof *index), EXPERTS, &r),
        RW_OK);
    free(index);
    *ret_rows = n;
    return r;
}

/* All rows are one row, all experts one expert: so all results are equal, and all gradients of rows. */
static void expect_alike(struct fixture *b, rw_tensor *y, int64_t rows, const char *what)
{
    const size_t row = rw_tensor_bytes(y) / (size_t)rows;
    unsigned char *const all = bytes_of(b->t, y);
    for (int64_t i = 1; i < rows; i++) {
        const bool same = !memcmp(all, all + (size_t)i * row, row);
        cr_expect(same, "%s: row %lld", what, (long long)i);
        if (!same) break;
    }
    free(all);
}

/* All rows of a product by expert must be equal. */
static void check_experts(rw_dtype dtype, int64_t in, int64_t out)
{
    struct fixture b = fixture_open(7, 2);
    char what[80];
    int64_t rows;
    const rw_moe_routes r = routes_of(&b, &rows);
    rw_tensor *const one = rw_randn(b.t, dtype, RW_SHAPE(1, in));
    rw_tensor *const weight = rw_randn(b.t, dtype, RW_SHAPE(1, out, in));
    rw_tensor *const x = rw_require_grad(b.t, rw_contiguous(b.t, rw_broadcast_to(b.t, one, RW_SHAPE(rows, in))));
    rw_tensor *const w = rw_contiguous(b.t, rw_broadcast_to(b.t, weight, RW_SHAPE(EXPERTS, out, in)));
    rw_tensor *const y = rw_require_grad(b.t, rw_moe_linear(b.t, x, w, &r));
    snprintf(what, sizeof what, "%s, %lld to %lld", rw_dtype_name(dtype), (long long)in, (long long)out);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s: %s", what,
                 rw_error_message(b.ctx));
    expect_alike(&b, y, rows, what);
    expect_alike(&b, rw_gradient(x), rows, what);
    fixture_close(&b);
}

Test(row_independence, a_row_with_experts_of_all_sizes, .timeout = 900)
{
    static const int64_t extents[][2] = { { 300, 144 }, { 896, 500 }, { 1000, 272 }, { 500, 1000 }, { 64, 900 } };
    if (test_device() != RW_DEVICE_CPU && !getenv("REWIND_TEST_LARGE")) return; /* the simulator is slow */
    for (size_t i = 0; i < sizeof extents / sizeof *extents; i++)
        for (int d = 0; d < 3; d++) check_experts(types[d], extents[i][0], extents[i][1]);
}
