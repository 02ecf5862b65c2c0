/*
 * Slices, pads and leaves without storage, beyond the table of op_cases.h: every type that has no gradient, views
 * instead of copies, values that are recomputed rather than kept, and invalid calls.
 */
#include "record/tape.h"
#include "support/compare.h"
#include "support/refused.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static struct fixture open(void)
{
    return fixture_open(1, 1);
}

static void reads(struct fixture *b, rw_tensor *x, const int32_t *want, size_t n, const char *what)
{
    int32_t got[256];
    cr_assert(x, "%s: %s", what, rw_error_message(b->ctx));
    cr_assert_eq(rw_tensor_bytes(x), n * sizeof *got, "%s: %zu bytes", what, rw_tensor_bytes(x));
    cr_assert_eq(rw_read(b->t, x, got, n * sizeof *got), RW_OK, "%s: %s", what, rw_error_message(b->ctx));
    for (size_t i = 0; i < n; i++) cr_expect_eq(got[i], want[i], "%s, element %zu: %d", what, i, got[i]);
}

#define READS(x, ...) reads(&b, x, (const int32_t[]){ __VA_ARGS__ }, sizeof (int32_t[]){ __VA_ARGS__ } / 4, #x)

Test(slice_pad, whole_numbers_too)
{
    struct fixture b = open();
    const int32_t data[] = { 0, 1, 2, 3, 4, 5 };
    rw_tensor *const x = rw_input(b.t, RW_I32, RW_SHAPE(2, 3), data, sizeof data), *part[3];
    READS(rw_select(b.t, x, 0, -1), 3, 4, 5);
    READS(rw_select(b.t, x, -1, 1), 1, 4);
    READS(rw_unsqueeze(b.t, rw_select(b.t, x, 1, 0), 0), 0, 3);
    READS(rw_flip(b.t, x, 1), 2, 1, 0, 5, 4, 3);
    READS(rw_flip(b.t, x, 0), 3, 4, 5, 0, 1, 2);
    READS(rw_roll(b.t, x, 1, 1), 2, 0, 1, 5, 3, 4);
    READS(rw_roll(b.t, x, -4, 1), 1, 2, 0, 4, 5, 3);
    READS(rw_roll(b.t, x, 3, 1), 0, 1, 2, 3, 4, 5);
    READS(rw_roll(b.t, x, INT64_MIN, 0), 0, 1, 2, 3, 4, 5);
    READS(rw_unfold(b.t, x, 1, 2, 1), 0, 1, 1, 2, 3, 4, 4, 5);
    READS(rw_unfold(b.t, x, 0, 2, 9), 0, 3, 1, 4, 2, 5);
    cr_assert_eq(rw_unbind(b.t, x, 1, part, 3), RW_OK);
    READS(rw_stack(b.t, part, 3, 0), 0, 3, 1, 4, 2, 5);
    READS(rw_stack(b.t, part, 3, -1), 0, 1, 2, 3, 4, 5);
    const int64_t pad[] = { 2, 1, 0, 1 };
    READS(rw_pad(b.t, x, pad, 2, RW_PAD_REFLECT, 0), 2, 1, 0, 1, 2, 1, 5, 4, 3, 4, 5, 4);
    READS(rw_pad(b.t, x, pad, 2, RW_PAD_REPLICATE, 0), 0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 5, 5);
    READS(rw_pad(b.t, x, pad, 2, RW_PAD_CIRCULAR, 0), 1, 2, 0, 1, 2, 0, 4, 5, 3, 4, 5, 3);
    READS(rw_pad(b.t, x, pad, 4, RW_PAD_CONSTANT, 7.9), 7, 7, 0, 1, 2, 7, 7, 7, 3, 4, 5, 7, 7, 7, 7, 7, 7, 7);
    READS(rw_pad(b.t, x, (const int64_t[]){ -1, -1, 1, -1 }, 4, RW_PAD_CONSTANT, -3), -3, 1);
    fixture_close(&b);
}

Test(slice_pad, numbers_of_every_type)
{
    static const rw_dtype floats[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    struct fixture b = open();
    for (int d = 0; d < 4; d++) {
        unsigned char got[8 * 5];
        rw_tensor *const x[] = { rw_zeros(b.t, floats[d], RW_SHAPE(5)), rw_ones(b.t, floats[d], RW_SHAPE(5)),
                                 rw_full(b.t, floats[d], RW_SHAPE(5), -2.5),
                                 rw_arange(b.t, floats[d], 1, -1.5, -0.5) };
        const double first[] = { 0, 1, -2.5, 1 };
        for (int k = 0; k < 4; k++) {
            cr_assert(x[k] && rw_tensor_bytes(x[k]) == 5 * rw_dtype_size(floats[d]));
            cr_assert_eq(rw_read(b.t, x[k], got, rw_tensor_bytes(x[k])), RW_OK);
            for (int i = 0; i < 5; i++)
                cr_expect_eq(number_get(got, floats[d], i), k == 3 ? 1 - 0.5 * i : first[k], "%s, %d",
                             rw_dtype_name(floats[d]), k);
        }
    }
    READS(rw_full(b.t, RW_I32, RW_SHAPE(3), -2.9), -2, -2, -2);
    READS(rw_arange(b.t, RW_I32, 5, -4, -3), 5, 2, -1);
    READS(rw_arange(b.t, RW_I32, INT32_MIN, INT32_MIN + 2.5, 1), INT32_MIN, INT32_MIN + 1, INT32_MIN + 2);
    cr_expect_eq(rw_tensor_bytes(rw_arange(b.t, RW_F32, 3, 3, 1)), 0);
    uint8_t truth[3];
    cr_assert_eq(rw_read(b.t, rw_ones(b.t, RW_BOOL, RW_SHAPE(3)), truth, 3), RW_OK);
    cr_expect(truth[0] == 1 && truth[1] == 1 && truth[2] == 1);
    fixture_close(&b);
}

/* Through float it would be rounded twice: 2^-9 above 1 and a little more. */
Test(slice_pad, a_sequence_is_rounded_once)
{
    struct fixture b = open();
    uint16_t got[2];
    const double above = 1 + 0x1p-8 + 0x1p-40;
    cr_assert_eq(rw_read(b.t, rw_arange(b.t, RW_BF16, 0, 2 * above, above), got, sizeof got), RW_OK);
    cr_expect_eq(number_get(got, RW_BF16, 1), 1 + 0x1p-7, "%g", number_get(got, RW_BF16, 1));
    fixture_close(&b);
}

Test(slice_pad, one_hot_of_every_type)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16, RW_I32, RW_BOOL };
    struct fixture b = open();
    enum { N = 9, CLASSES = 37 };
    int32_t index[N], got[N * CLASSES];
    for (int i = 0; i < N; i++) index[i] = i * 11 % CLASSES;
    for (int d = 0; d < 6; d++) {
        rw_tensor *const x = rw_one_hot(b.t, rw_input(b.t, RW_I32, RW_SHAPE(3, 3), index, sizeof index), CLASSES,
                                        types[d]);
        cr_assert(x && rw_shape_equal(rw_tensor_shape(x), RW_SHAPE(3, 3, CLASSES)));
        cr_assert_eq(rw_tensor_dtype(x), types[d]);
        cr_assert_eq(rw_read(b.t, rw_cast(b.t, x, RW_I32), got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < N * CLASSES; i++)
            cr_assert_eq(got[i], index[i / CLASSES] == i % CLASSES, "%s, element %d", rw_dtype_name(types[d]), i);
    }
    const int32_t bad[] = { 0, CLASSES };
    rw_tensor *const x = rw_one_hot(b.t, rw_input(b.t, RW_I32, RW_SHAPE(2), bad, sizeof bad), CLASSES, RW_F32);
    cr_expect_eq(rw_read(b.t, x, got, rw_tensor_bytes(x)), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(b.ctx), "one_hot") && strstr(rw_error_message(b.ctx), "out of range"), "%s",
              rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

/* Byte counts that divide into words of every width; long enough for several threads. */
Test(slice_pad, moves_of_every_width)
{
    static const rw_dtype types[] = { RW_BOOL, RW_BF16, RW_F32, RW_F64 };
    static const int64_t inner[] = { 1, 3, 8, 33 };
    enum { OUTER = 3, ROWS = 11, MAX = OUTER * (ROWS + 5) * 33 * 8 };
    static unsigned char x[MAX], got[MAX];
    struct fixture b = fixture_open(1, 3);
    const int64_t pad[] = { 0, 0, 3, 2 };
    for (size_t i = 0; i < sizeof x; i++) x[i] = (unsigned char)(i * 131 >> 3);
    for (int d = 0; d < 4; d++)
        for (int w = 0; w < 4; w++) {
            const size_t row = (size_t)inner[w] * rw_dtype_size(types[d]);
            rw_tensor *const in = rw_input(b.t, types[d], RW_SHAPE(OUTER, ROWS, inner[w]), x,
                                           (size_t)(OUTER * ROWS * inner[w]) * rw_dtype_size(types[d]));
            rw_tensor *const out = rw_pad(b.t, in, pad, 4, RW_PAD_REFLECT, 0);
            cr_assert_eq(rw_read(b.t, out, got, OUTER * (ROWS + 5) * row), RW_OK, "%s", rw_error_message(b.ctx));
            for (int o = 0; o < OUTER; o++)
                for (int j = 0; j < ROWS + 5; j++) {
                    const int k = j < 3 ? 3 - j : j >= ROWS + 3 ? 2 * (ROWS - 1) - (j - 3) : j - 3;
                    cr_assert_arr_eq(got + (size_t)(o * (ROWS + 5) + j) * row, x + (size_t)(o * ROWS + k) * row, row,
                                     "%s, %d, row %d", rw_dtype_name(types[d]), (int)inner[w], j);
                }
            rw_tape_reset(b.t);
        }
    fixture_close(&b);
}

enum { LONG = 20011, WIDE = 3, BEFORE = 5, AFTER = 9, LONG_ELEMENTS = (LONG + BEFORE + AFTER) * WIDE };

/* The source of position j of a padded axis of LONG elements. */
static int64_t source_of(rw_pad_mode mode, int64_t j)
{
    const int64_t i = j - BEFORE, last = LONG - 1;
    if (mode == RW_PAD_REFLECT) return i < 0 ? -i : i > last ? 2 * last - i : i;
    if (mode == RW_PAD_REPLICATE) return i < 0 ? 0 : i > last ? last : i;
    return (i + LONG) % LONG;
}

/* Small integers, whose sums 16-bit types hold exactly, too. */
static rw_tensor *small_numbers(struct fixture *b, rw_dtype dtype, rw_shape shape, int by, double *ret)
{
    static unsigned char data[8 * 2 * LONG_ELEMENTS];
    const int64_t n = rw_shape_numel(shape);
    for (int64_t i = 0; i < n; i++) number_put(data, dtype, (size_t)i, ret[i] = (double)(i * by % 7) - 2);
    return rw_input(b->t, dtype, shape, data, (size_t)n * rw_dtype_size(dtype));
}

static void has(struct fixture *b, rw_tensor *x, const double *want, const char *what)
{
    static unsigned char got[8 * 2 * LONG_ELEMENTS];
    const rw_dtype dtype = rw_tensor_dtype(x);
    const size_t bytes = rw_tensor_bytes(x);
    cr_assert_eq(rw_read(b->t, x, got, bytes), RW_OK, "%s", rw_error_message(b->ctx));
    for (size_t i = 0; i < bytes / rw_dtype_size(dtype); i++)
        cr_assert_eq(number_get(got, dtype, i), want[i], "%s, %s, element %zu", rw_dtype_name(dtype), what, i);
}

/* Axes so long that several threads divide a row of the result, or of the gradient. */
Test(slice_pad, long_axes_are_shared_out)
{
    static const rw_dtype floats[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    static const int64_t pad[] = { 0, 0, BEFORE, AFTER };
    static double x[LONG_ELEMENTS], dy[LONG_ELEMENTS], y[LONG_ELEMENTS], dx[LONG_ELEMENTS];
    struct fixture b = fixture_open(1, 3);
    for (int d = 0; d < 4; d++)
        for (int mode = RW_PAD_CONSTANT; mode < RW_PAD_MODE_COUNT; mode++)
            for (int64_t wide = 1; wide <= WIDE; wide += WIDE - 1) {
                rw_tensor *const in = small_numbers(&b, floats[d], RW_SHAPE(LONG, wide), 3, x);
                rw_require_grad(b.t, in);
                rw_tensor *out = rw_pad(b.t, in, pad, 4, (rw_pad_mode)mode, 4), *g;
                g = small_numbers(&b, floats[d], RW_SHAPE(LONG + BEFORE + AFTER, wide), 5, dy);
                memset(dx, 0, sizeof dx);
                for (int64_t i = 0; i < (LONG + BEFORE + AFTER) * wide; i++) {
                    const int64_t j = i / wide, own = j - BEFORE;
                    const int64_t from = mode == RW_PAD_CONSTANT ? own : source_of((rw_pad_mode)mode, j);
                    y[i] = from < 0 || from >= LONG ? 4 : x[from * wide + i % wide];
                    if (from >= 0 && from < LONG) dx[from * wide + i % wide] += dy[i];
                }
                cr_assert_eq(rw_backward_from(b.t, &out, &g, 1), RW_OK, "%s", rw_error_message(b.ctx));
                has(&b, out, y, "a pad");
                has(&b, rw_gradient(in), dx, "its gradient");
                rw_tape_reset(b.t);
            }
    fixture_close(&b);
}

/* Windows of five, three apart; rows longer than a block of sums; and tensors concatenated along an axis where each is
   long, or short. */
Test(slice_pad, long_windows_and_joins)
{
    static double x[LONG_ELEMENTS], z[LONG_ELEMENTS], dy[2 * LONG_ELEMENTS], want[2 * LONG_ELEMENTS];
    struct fixture b = fixture_open(1, 3);
    enum { SIZE = 5, STEP = 3, WINDOWS = (LONG - SIZE) / STEP + 1 };
    for (int d = 0; d < 2; d++) {
        const rw_dtype dtype = d ? RW_BF16 : RW_F32;
        for (int64_t wide = 1; wide <= WIDE; wide += WIDE - 1) {
            rw_tensor *const in = small_numbers(&b, dtype, RW_SHAPE(LONG, wide), 3, x);
            rw_tensor *out = rw_unfold(b.t, rw_require_grad(b.t, in), 0, SIZE, STEP), *g;
            g = small_numbers(&b, dtype, RW_SHAPE(WINDOWS, wide, SIZE), 5, dy);
            memset(want, 0, sizeof want);
            for (int64_t i = 0; i < WINDOWS * wide * SIZE; i++)
                want[(i / SIZE / wide * STEP + i % SIZE) * wide + i / SIZE % wide] += dy[i];
            cr_assert_eq(rw_backward_from(b.t, &out, &g, 1), RW_OK, "%s", rw_error_message(b.ctx));
            has(&b, rw_gradient(in), want, "windows");
            rw_tape_reset(b.t);
        }
        enum { COLUMNS = 2500 };
        rw_tensor *const rows = small_numbers(&b, dtype, RW_SHAPE(4, COLUMNS), 3, x);
        rw_tensor *more = rw_pad(b.t, rw_require_grad(b.t, rows), (int64_t[]){ 0, 0, 2, 1 }, 4, RW_PAD_REPLICATE, 0);
        rw_tensor *dmore = small_numbers(&b, dtype, RW_SHAPE(7, COLUMNS), 5, dy);
        static const int source[] = { 0, 0, 0, 1, 2, 3, 3 };
        memset(want, 0, sizeof want);
        for (int64_t i = 0; i < 7 * COLUMNS; i++) want[source[i / COLUMNS] * COLUMNS + i % COLUMNS] += dy[i];
        cr_assert_eq(rw_backward_from(b.t, &more, &dmore, 1), RW_OK, "%s", rw_error_message(b.ctx));
        has(&b, rw_gradient(rows), want, "wide rows");
        rw_tape_reset(b.t);
        rw_tensor *pair[] = { small_numbers(&b, dtype, RW_SHAPE(LONG, WIDE), 3, x),
                              small_numbers(&b, dtype, RW_SHAPE(LONG, WIDE), 5, z) };
        for (int64_t i = 0; i < LONG * WIDE; i++) want[i] = x[i], want[LONG * WIDE + i] = z[i];
        has(&b, rw_concat(b.t, pair, 2, 0), want, "one after the other");
        for (int64_t i = 0; i < LONG * WIDE; i++) want[2 * i] = x[i], want[2 * i + 1] = z[i];
        has(&b, rw_stack(b.t, pair, 2, 2), want, "one beside the other");
        rw_tensor *const columns[] = { rw_slice(b.t, pair[0], 1, 0, 1), rw_slice(b.t, pair[0], 1, 2, 3) };
        for (int64_t i = 0; i < LONG; i++) want[2 * i] = x[WIDE * i], want[2 * i + 1] = x[WIDE * i + 2];
        has(&b, rw_concat(b.t, columns, 2, 1), want, "elements with a stride");
        for (int64_t i = 0; i < LONG * WIDE; i++) want[i] = x[i % WIDE * LONG + i / WIDE];
        pair[0] = rw_transpose(b.t, rw_reshape(b.t, pair[0], RW_SHAPE(WIDE, LONG)), 0, 1);
        has(&b, rw_concat(b.t, pair, 1, 0), want, "a transposed one");
    }
    fixture_close(&b);
}

/* Counts nodes with a kernel: a view has none. */
Test(slice_pad, views_are_views)
{
    struct fixture b = open();
    const float data[24] = { 0 };
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2, 3, 4), data, sizeof data), *const transposed = rw_transpose(
                                                                                          b.t, x, 0, 2);
    rw_tensor *part[3];
    cr_expect_eq(rw_tensor_base(rw_select(b.t, transposed, 1, 2)), x);
    cr_expect_eq(rw_tensor_base(rw_unsqueeze(b.t, transposed, 1)), x);
    cr_expect_eq(rw_tensor_base(rw_unfold(b.t, transposed, 0, 2, 1)), x);
    cr_assert_eq(rw_unbind(b.t, transposed, 1, part, 3), RW_OK);
    cr_expect_eq(rw_tensor_base(part[2]), x);
    cr_expect_eq(rw_pad(b.t, transposed, (const int64_t[]){ 0, 0 }, 2, RW_PAD_CONSTANT, 1), transposed);
    cr_expect_eq(rw_pad(b.t, transposed, NULL, 0, RW_PAD_REFLECT, 1), transposed);
    fixture_close(&b);
}

/* Overlapping windows as an operand of a product: libraries do not accept their strides. */
Test(slice_pad, a_product_takes_overlapping_windows)
{
    struct fixture b = open();
    const float x[] = { 1, 2, 3, 4, 5, 6 }, w[] = { 1, 10, 100 };
    float y[4], dx[6];
    rw_tensor *const in = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(6), x, sizeof x));
    rw_tensor *const out = rw_matmul(b.t, rw_unfold(b.t, in, 0, 3, 1),
                                     rw_input(b.t, RW_F32, RW_SHAPE(3, 1), w, sizeof w));
    rw_require_grad(b.t, out);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, out, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, out, y, sizeof y), RW_OK);
    cr_assert_eq(rw_read(b.t, rw_gradient(in), dx, sizeof dx), RW_OK);
    const float want_y[] = { 321, 432, 543, 654 }, want_dx[] = { 1, 11, 111, 111, 110, 100 };
    for (int i = 0; i < 4; i++) cr_expect_eq(y[i], want_y[i], "%g", (double)y[i]);
    for (int i = 0; i < 6; i++) cr_expect_eq(dx[i], want_dx[i], "%g", (double)dx[i]);
    fixture_close(&b);
}

Test(slice_pad, what_is_refused)
{
    struct fixture b = open();
    const float data[6] = { 0 };
    const int64_t ok[] = { 1, 1, 1, 1, 1, 1 }, below[] = { -1, 0 }, far[] = { 2, 0 }, three[] = { 0, 3 };
    const int64_t cut[] = { -2, -1 }, more[] = { -1, -1 }, most[] = { INT64_MAX, 1 }, least[] = { INT64_MIN, 0 };
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(3, 2), data, sizeof data), *const none = rw_input(b.t, RW_F32,
                                                                                             RW_SHAPE(2, 0), data, 0);
    rw_tensor *const y = rw_input(b.t, RW_F32, RW_SHAPE(2, 3), data, sizeof data), *const scalar = rw_zeros(b.t, RW_F32,
                                                                                                            RW_SCALAR);
    rw_tensor *const wide = rw_reshape(b.t, x, RW_SHAPE(3, 2, 1, 1, 1, 1, 1, 1));
    rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(2), data, 2 * sizeof *data), *pair[] = { x, y }, *part[3];
    REFUSED(RW_ERR_SHAPE, rw_select(b.t, x, 2, 0));
    REFUSED(RW_ERR_SHAPE, rw_select(b.t, x, 0, 3));
    REFUSED(RW_ERR_SHAPE, rw_select(b.t, x, 0, -4));
    REFUSED(RW_ERR_SHAPE, rw_select(b.t, scalar, 0, 0));
    REFUSED(RW_ERR_SHAPE, rw_unsqueeze(b.t, x, 3));
    REFUSED(RW_ERR_SHAPE, rw_unsqueeze(b.t, x, -4));
    REFUSED(RW_ERR_SHAPE, rw_unsqueeze(b.t, wide, 0));
    REFUSED(RW_ERR_SHAPE, rw_unfold(b.t, wide, 0, 1, 1));
    REFUSED(RW_ERR_SHAPE, rw_unfold(b.t, x, 0, 4, 1));
    REFUSED(RW_ERR_SHAPE, rw_unfold(b.t, x, 0, 1, 0));
    REFUSED(RW_ERR_SHAPE, rw_unfold(b.t, x, 0, -1, 1));
    REFUSED(RW_ERR_SHAPE, rw_stack(b.t, pair, 2, 0));
    REFUSED(RW_ERR_SHAPE, rw_stack(b.t, pair, 1, 4));
    REFUSED(RW_ERR_ARGUMENT, rw_stack(b.t, pair, 0, 0));
    REFUSED(RW_ERR_ARGUMENT, rw_stack(b.t, NULL, 2, 0));
    REFUSED(RW_ERR_SHAPE, rw_flip(b.t, x, 2));
    REFUSED(RW_ERR_SHAPE, rw_roll(b.t, x, 1, -3));
    REFUSED(RW_ERR_ARGUMENT, rw_roll(b.t, NULL, 1, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, ok, 3, RW_PAD_CONSTANT, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, ok, 6, RW_PAD_CONSTANT, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, NULL, 2, RW_PAD_CONSTANT, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, ok, -2, RW_PAD_CONSTANT, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, below, 2, RW_PAD_REPLICATE, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, far, 2, RW_PAD_REFLECT, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, three, 2, RW_PAD_CIRCULAR, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, none, far, 2, RW_PAD_REPLICATE, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, cut, 2, RW_PAD_CONSTANT, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, none, more, 2, RW_PAD_CONSTANT, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, most, 2, RW_PAD_CONSTANT, 0));
    REFUSED(RW_ERR_SHAPE, rw_pad(b.t, x, least, 2, RW_PAD_CONSTANT, 0));
    REFUSED(RW_ERR_ARGUMENT, rw_pad(b.t, x, ok, 2, (rw_pad_mode)9, 0));
    REFUSED(RW_ERR_ARGUMENT, rw_pad(b.t, NULL, ok, 2, RW_PAD_CONSTANT, 0));
    REFUSED(RW_ERR_SHAPE, rw_zeros(b.t, RW_F32, RW_SHAPE(2, -1)));
    REFUSED(RW_ERR_DTYPE, rw_ones(b.t, (rw_dtype)99, RW_SHAPE(2)));
    REFUSED(RW_ERR_ARGUMENT, rw_arange(b.t, RW_F32, 0, 1, 0));
    REFUSED(RW_ERR_ARGUMENT, rw_arange(b.t, RW_F32, 0, 1, -1));
    REFUSED(RW_ERR_ARGUMENT, rw_arange(b.t, RW_F32, 0, INFINITY, 1));
    REFUSED(RW_ERR_ARGUMENT, rw_arange(b.t, RW_F32, NAN, 1, 1));
    REFUSED(RW_ERR_ARGUMENT, rw_arange(b.t, RW_F32, 0, 1e300, 1e-300));
    cr_expect_null(rw_arange(b.t, RW_F64, -1e308, 1.7e308, 1e308));
    cr_expect(strstr(rw_error_message(b.ctx), "an end - start that float64 holds"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    REFUSED(RW_ERR_ARGUMENT, rw_arange(b.t, RW_I32, 0, 4, 0.5));
    REFUSED(RW_ERR_ARGUMENT, rw_arange(b.t, RW_I32, 0, 4e9, 1e9));
    REFUSED(RW_ERR_ARGUMENT, rw_arange(b.t, RW_BOOL, 0, 2, 1));
    REFUSED(RW_ERR_DTYPE, rw_arange(b.t, (rw_dtype)-1, 0, 2, 1));
    REFUSED(RW_ERR_DTYPE, rw_one_hot(b.t, x, 3, RW_F32));
    REFUSED(RW_ERR_SHAPE, rw_one_hot(b.t, index, 0, RW_F32));
    REFUSED(RW_ERR_DTYPE, rw_one_hot(b.t, index, 3, (rw_dtype)99));
    const struct {
        int axis, n;
        rw_status status;
    } unbinds[] = { { 0, 2, RW_ERR_SHAPE }, { 0, 4, RW_ERR_SHAPE }, { 5, 3, RW_ERR_SHAPE }, { 0, 0, RW_ERR_ARGUMENT },
                    { 0, 100000, RW_ERR_ARGUMENT } };
    for (size_t i = 0; i < sizeof unbinds / sizeof *unbinds; i++) {
        const size_t nodes = b.t->n_nodes;
        rw_tensor *many[4];
        cr_expect_eq(rw_unbind(b.t, x, unbinds[i].axis, many, unbinds[i].n), unbinds[i].status, "%zu: %s", i,
                     rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_expect_eq(b.t->n_nodes, nodes);
    }
    cr_expect_eq(rw_unbind(b.t, x, 0, NULL, 3), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_unbind(NULL, x, 0, part, 3), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

/* A value without inputs is recomputed: under "full" none is kept for backward. */
Test(slice_pad, views_of_leaves_are_recomputed)
{
    struct fixture b = open();
    uint64_t peak[2];
    enum { N = 1 << 16 };
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
    for (int full = 0; full < 2; full++) {
        rw_memory m;
        cr_assert_eq(ckpt_set_policy(b.t, full ? "full" : "none"), RW_OK);
        rw_tensor *sum = NULL;
        for (int i = 0; i < 8; i++) {
            ckpt_begin(b.t, "region");
            rw_tensor *const y = rw_sum(b.t, rw_mul(b.t, w, rw_arange(b.t, RW_F32, 0, N, 1)), RW_ALL_AXES, false);
            ckpt_end(b.t);
            sum = sum ? rw_add(b.t, sum, y) : y;
        }
        cr_assert_eq(rw_backward(b.t, sum), RW_OK, "%s", rw_error_message(b.ctx));
        rw_memory_stats(b.ctx, &m);
        peak[full] = m.measured_peak;
        rw_tape_reset(b.t);
    }
    cr_expect(peak[0] > 8 * N * 4 && peak[1] < 4 * N * 4, "%llu and %llu bytes", (unsigned long long)peak[0],
              (unsigned long long)peak[1]);
    fixture_close(&b);
}
