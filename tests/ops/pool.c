/* Pooling: which values are kept, which of equal maxima is chosen, windows that reach beyond an image; and invalid
   calls. */
#include "support/refuses.h"

#include <criterion/criterion.h>
#include <math.h>

#define POOL(...)                                                                                                      \
    &(rw_pool2d_params)                                                                                                \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* Channels that fill vectors and a remainder: NaN is the maximum, and of equal elements the first counts. */
Test(ops_pool, pooling_finds_the_first_of_the_largest_and_nan)
{
    enum { C = 75, SIDE = 4, N = C * SIDE * SIDE };
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    for (int d = 0; d < 4; d++) {
        struct fixture b = fixture_open(1, 2);
        double x[N], dx[N];
        for (int i = 0; i < N; i++) x[i] = i / (SIDE * SIDE) % 3 == 2 && i % (SIDE * SIDE) == 5 ? NAN : -1 - i % 2;
        rw_tensor *const all = rw_input(b.t, RW_F64, RW_SHAPE(1, C, SIDE, SIDE), x, sizeof x);
        rw_require_grad(b.t, all);
        rw_tensor *const y = rw_max_pool2d(b.t, rw_cast(b.t, all, types[d]),
                                           &(rw_pool2d_params){ .kernel = { 2, 2 }, .stride = { 2, 2 } });
        double got[N / 4];
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_cast(b.t, y, RW_F64), RW_ALL_AXES, false)), RW_OK, "%s",
                     rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, rw_cast(b.t, y, RW_F64), got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, rw_gradient(all), dx, sizeof dx), RW_OK);
        for (int i = 0; i < N / 4; i++) {
            const int c = i / 4, at = c * SIDE * SIDE + i % 4 / 2 * 2 * SIDE + i % 2 * 2;
            const bool nan = c % 3 == 2 && i % 4 == 0;
            cr_assert(nan ? isnan(got[i]) : got[i] == -1, "%s, channel %d: %g", rw_dtype_name(types[d]), c, got[i]);
            cr_assert_eq(dx[nan ? at + SIDE + 1 : at], 1, "%s, channel %d", rw_dtype_name(types[d]), c);
        }
        fixture_close(&b);
    }
}

/* A gradient's row is summed in parts of so many elements; these windows cross the boundaries, some with gaps. */
Test(ops_pool, long_rows_are_summed_in_pieces)
{
    enum { C = 70, H = 5, W = 75, N = C * H * W, KH = 2, KW = 4, STEP = 3 };
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    static double x[N], dx[N], y[N], dy[N], got[N];
    for (int i = 0; i < 8; i++) {
        const bool most = i >= 4;
        const int apart = most ? 2 : 1, high = (KH - 1) * apart + 1, wide = (KW - 1) * apart + 1;
        const int oh = H + 2 - high + 1, ow = (W + 4 - wide) / STEP + 1;
        struct fixture b = fixture_open(1, 2);
        for (int k = 0; k < N; k++) x[k] = 8 * (k * 7 % 11 - 4), dy[k] = 8 * (k * 3 % 5 - 2), dx[k] = 0;
        for (int k = 0; k < C * oh * ow; k++) {
            const int c = k / (oh * ow), top = k / ow % oh - 1, left = k % ow * STEP - 2;
            int best = -1;
            y[k] = 0;
            for (int w = 0; w < KH * KW; w++) {
                const int h = top + w / KW * apart, z = left + w % KW * apart, at = (c * H + h) * W + z;
                if (h < 0 || h >= H || z < 0 || z >= W) continue;
                if (best < 0 || x[at] > x[best]) best = at;
                if (!most) y[k] += x[at] / 8, dx[at] += dy[k] / 8;
            }
            if (most) y[k] = x[best], dx[best] += dy[k];
        }
        rw_tensor *const in = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(1, C, H, W), x, sizeof x));
        rw_tensor *const cast = rw_cast(b.t, in, types[i % 4]),
                         *g = rw_input(b.t, RW_F64, RW_SHAPE(1, C, oh, ow), dy, (size_t)(C * oh * ow) * sizeof *dy);
        rw_tensor *const pooled = most ? rw_max_pool2d(b.t, cast, POOL(.kernel = { KH, KW }, .stride = { 1, STEP },
                                                                      .padding = { 1, 2 }, .dilation = { 2, 2 }))
                                       : rw_avg_pool2d(b.t, cast, POOL(.kernel = { KH, KW }, .stride = { 1, STEP },
                                                                      .padding = { 1, 2 }));
        rw_tensor *out = rw_cast(b.t, pooled, RW_F64);
        cr_assert_eq(rw_backward_from(b.t, &out, &g, 1), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, out, got, sizeof(double) * (size_t)(C * oh * ow)), RW_OK, "%s",
                     rw_error_message(b.ctx));
        for (int k = 0; k < C * oh * ow; k++) cr_assert_eq(got[k], y[k], "case %d, result %d: %g", i, k, got[k]);
        cr_assert_eq(rw_read(b.t, rw_gradient(in), got, sizeof got), RW_OK);
        for (int k = 0; k < N; k++) cr_assert_eq(got[k], dx[k], "case %d, gradient %d: %g", i, k, got[k]);
        fixture_close(&b);
    }
}

Test(ops_pool, a_maximum_keeps_a_byte_for_each_element)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(4, 32, 16, 16));
    cr_assert_eq(rw_init_normal(x, 0, 0.4), RW_OK);
    rw_tensor *const w = rw_input(b.t, RW_F32, RW_SHAPE(4, 32, 8, 8), NULL, 0);
    rw_tensor *const y = rw_max_pool2d(b.t, rw_scale(b.t, x, 2), POOL(.kernel = { 2, 2 }));
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, w), RW_ALL_AXES, false);
    rw_memory m;
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
    cr_assert_eq(m.kept, 4 * 32 * 8 * 8, "%zu bytes", m.kept);
    fixture_close(&b);
}

Test(ops_pool, a_maximum_is_the_first_of_equals_and_nan_is_larger)
{
    struct fixture b = fixture_open(1, 1);
    const float image[] = { 1, 5, 5, 2, NAN, 9, -1, -1 };
    const float slopes[] = { 0, 1, 0, 0, 1, 0, 1, 0 };
    float y[3], g[8];
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1, 1, 1, 8), image, sizeof image));
    rw_tensor *const all = rw_max_pool2d(b.t, x, POOL(.kernel = { 1, 3 }, .stride = { 1, 3 }, .padding = { 0, 1 }));
    cr_assert_eq(rw_read(b.t, all, y, sizeof y), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(y[0], 5);
    cr_expect(isnan(y[1]));
    cr_expect_eq(y[2], 9);
    rw_tape_reset(b.t);
    rw_tensor *const again = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1, 1, 1, 8), image, sizeof image));
    rw_tensor *const pairs = rw_max_pool2d(b.t, again, POOL(.kernel = { 1, 2 }));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, pairs, RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(rw_read(b.t, rw_gradient(again), g, sizeof g), RW_OK);
    for (int i = 0; i < 8; i++) cr_expect_eq(g[i], i == 2 ? 1 : slopes[i], "element %d: %g", i, g[i]);
    fixture_close(&b);
}

/* Dilated windows may contain only padding: they have no value and no gradient. */
Test(ops_pool, pooling_of_nothing_but_padding)
{
    struct fixture b = fixture_open(1, 1);
    const double one[] = { 3 }, up[] = { 5 };
    double y, g;
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(1, 1, 1, 1), one, sizeof one));
    rw_tensor *const u = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(1, 1, 1, 1), up, sizeof up));
    rw_tensor *const most = rw_max_pool2d(b.t, x, POOL(.kernel = { 2, 2 }, .padding = { 1, 1 }, .dilation = { 2, 2 }));
    rw_tensor *const sum = rw_sum(b.t, rw_mul(b.t, most, u), RW_ALL_AXES, false);
    rw_tensor *slope, *again;
    cr_assert_eq(rw_read(b.t, most, &y, sizeof y), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect(isinf(y) && y < 0, "%g", y);
    cr_assert_eq(rw_grad(b.t, sum, (rw_tensor *const[]){ x }, 1, &slope), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, slope, &g, sizeof g), RW_OK);
    cr_expect_eq(g, 0);
    rw_tensor *const twice = rw_sum(b.t, rw_scale(b.t, slope, 7), RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(b.t, twice, (rw_tensor *const[]){ u }, 1, &again), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, again, &g, sizeof g), RW_OK);
    cr_expect_eq(g, 0, "%g", g);
    fixture_close(&b);
}

/*
 * Windows that reach beyond the padded image, by PyTorch's rule: the extents of its max_pool2d(ceil_mode=True) of an
 * image [1, n] of 0, 1, 2 ..., and the last maximum and mean. A window that would begin beyond image and padding does
 * not exist.
 */
Test(ops_pool, a_window_may_be_larger_than_the_image_where_extents_are_rounded_up)
{
    static const struct {
        int n, kernel, stride, padding, extent;
        double most, mean;
    } all[] = {
        { 3, 4, 2, 0, 1, 2, 1 }, { 3, 4, 3, 0, 1, 2, 1 },     { 1, 4, 4, 1, 1, 0, 0 },     { 5, 2, 4, 1, 2, 4, 3.5 },
        { 1, 2, 3, 0, 1, 0, 0 }, { 4, 2, 5, 1, 1, 0, 0 },     { 2, 5, 3, 1, 1, 1, 0.25 },  { 6, 3, 4, 0, 2, 5, 4.5 },
    };
    const double image[] = { 0, 1, 2, 3, 4, 5 };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int mean = 0; mean < 2; mean++) {
            struct fixture b = fixture_open(1, 1);
            double y[3] = { -1, -1, -1 };
            rw_tensor *const x = rw_require_grad(
                b.t, rw_input(b.t, RW_F64, RW_SHAPE(1, 1, 1, all[i].n), image, (size_t)all[i].n * sizeof *image));
            const rw_pool2d_params p = { .kernel = { 1, all[i].kernel }, .stride = { 1, all[i].stride },
                                         .padding = { 0, all[i].padding }, .ceil_mode = true };
            rw_tensor *const of = mean ? rw_avg_pool2d(b.t, x, &p) : rw_max_pool2d(b.t, x, &p);
            cr_assert(of, "%zu: %s", i, rw_error_message(b.ctx));
            cr_assert_eq(rw_tensor_shape(of).dim[3], all[i].extent, "%zu: %d", i, (int)rw_tensor_shape(of).dim[3]);
            cr_assert_eq(rw_read(b.t, of, y, rw_tensor_bytes(of)), RW_OK, "%s", rw_error_message(b.ctx));
            cr_expect_eq(y[all[i].extent - 1], mean ? all[i].mean : all[i].most, "%zu: %g", i, y[all[i].extent - 1]);
            cr_expect_eq(rw_backward(b.t, rw_sum(b.t, of, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
            fixture_close(&b);
        }
}

Test(ops_pool, mistakes_of_pooling_are_named_and_leave_nothing)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *const t = b.t;
    rw_tensor *const x = rw_input(t, RW_F32, RW_SHAPE(2, 4, 5, 6), NULL, 0);
    rw_tensor *const flat = rw_input(t, RW_F32, RW_SHAPE(2, 4), NULL, 0);
    rw_tensor *const index = rw_input(t, RW_I32, RW_SHAPE(2, 4, 5, 6), NULL, 0);
    rw_tensor *const bare = rw_input(t, RW_F32, RW_SHAPE(2, 4, 0, 6), NULL, 0);
    rw_tensor *const wide = rw_input(t, RW_F32, RW_SHAPE(1, 1, 257, 2), NULL, 0);
    const size_t n = rw_tape_mark(t).nodes;
    refuses(&b, rw_max_pool2d(t, x, NULL), RW_ERR_ARGUMENT, "max_pool2d: params is NULL", n);
    refuses(&b, rw_max_pool2d(t, x, POOL(.stride = { 1, 1 })), RW_ERR_ARGUMENT,
            "kernel[0]: expected 1 or more, got 0", n);
    refuses(&b, rw_avg_pool2d(t, x, POOL(.kernel = { 2, -2 })), RW_ERR_ARGUMENT,
            "kernel[1]: expected 1 or more, got -2", n);
    refuses(&b, rw_avg_pool2d(t, x, POOL(.kernel = { 2, 2 }, .stride = { -1, 1 })), RW_ERR_ARGUMENT, "got -1", n);
    refuses(&b, rw_avg_pool2d(t, x, POOL(.kernel = { 2, 2 }, .padding = { 2, 0 })), RW_ERR_ARGUMENT,
            "padding[0]: expected 0 to 1, half of the kernel, got 2", n);
    refuses(&b, rw_max_pool2d(t, x, POOL(.kernel = { 6, 2 })), RW_ERR_SHAPE,
            "at least 6, that of the dilated window, got 5", n);
    refuses(&b, rw_max_pool2d(t, x, POOL(.kernel = { 257, 1 }, .padding = { 128, 0 })), RW_ERR_ARGUMENT, "257", n);
    refuses(&b, rw_max_pool2d(t, flat, POOL(.kernel = { 2, 2 })), RW_ERR_SHAPE,
            "max_pool2d(x): expected [n, c, h, w], got [", n);
    refuses(&b, rw_global_avg_pool2d(t, flat), RW_ERR_SHAPE, "global_avg_pool2d(x): expected [n, c, h, w]", n);
    refuses(&b, rw_max_pool2d(t, x, POOL(.kernel = { 2, 2 }, .dilation = { 1, -1 })), RW_ERR_ARGUMENT,
            "dilation[1]: expected 1 or more, got -1", n);
    refuses(&b, rw_max_pool2d(t, x, POOL(.kernel = { 3, 3 }, .dilation = { 2, 3 })), RW_ERR_SHAPE,
            "at least 7, that of the dilated window", n);
    refuses(&b, rw_max_pool2d(t, x, POOL(.kernel = { 2, 2 }, .divisor_override = 2)), RW_ERR_ARGUMENT,
            "divisor_override", n);
    refuses(&b, rw_avg_pool2d(t, x, POOL(.kernel = { 2, 2 }, .dilation = { 2, 1 })), RW_ERR_ARGUMENT, "2 and 1", n);
    refuses(&b, rw_adaptive_avg_pool2d(t, x, -1, 2), RW_ERR_ARGUMENT,
            "adaptive_avg_pool2d(height, width): expected 0 (that of x) or more, got -1", n);
    refuses(&b, rw_adaptive_max_pool2d(t, flat, 1, 1), RW_ERR_SHAPE,
            "adaptive_max_pool2d(x): expected [n, c, h, w]", n);
    refuses(&b, rw_adaptive_max_pool2d(t, bare, 1, 1), RW_ERR_SHAPE, "h and w above 0, got [2, 4, 0, 6]", n);
    refuses(&b, rw_adaptive_avg_pool2d(t, bare, 1, 1), RW_ERR_SHAPE,
            "adaptive_avg_pool2d(x): expected [n, c, h, w]", n);
    refuses(&b, rw_global_avg_pool2d(t, bare), RW_ERR_SHAPE, "global_avg_pool2d(x): expected [n, c, h, w]", n);
    refuses(&b, rw_adaptive_max_pool2d(t, wide, 1, 1), RW_ERR_ARGUMENT,
            "kernel: expected a window of at most 256 elements, got 257", n);
    refuses(&b, rw_adaptive_avg_pool2d(t, index, 2, 2), RW_ERR_DTYPE, "avg_pool2d", n);
    refuses(&b, rw_adaptive_avg_pool2d(t, x, INT64_MAX, 2), RW_ERR_SHAPE, "avg_pool2d", n);
    refuses(&b, rw_max_pool2d(t, index, POOL(.kernel = { 2, 2 })), RW_ERR_DTYPE, "max_pool2d", n);
    refuses(&b, rw_avg_pool2d(t, NULL, POOL(.kernel = { 2, 2 })), RW_ERR_ARGUMENT, "x is NULL", n);
    refuses(&b, rw_max_pool2d(t, x, POOL(.kernel = { 8, 2 }, .stride = { 3, 1 }, .ceil_mode = true)), RW_ERR_SHAPE,
            "at least 8, that of the dilated window, got 5", n);
    refuses(&b, rw_max_pool2d(t, bare, POOL(.kernel = { 2, 2 }, .padding = { 1, 0 })), RW_ERR_SHAPE,
            "a height and width above 0, got 0", n);
    refuses(&b, rw_avg_pool2d(t, bare, POOL(.kernel = { 2, 2 }, .padding = { 1, 0 }, .exclude_padding = true)),
            RW_ERR_SHAPE, "a height and width above 0, got 0", n);
    fixture_close(&b);
}
