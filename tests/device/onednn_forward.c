/*
 * Forward convolutions by oneDNN of shapes for which version 3.7.2 has code that gives wrong results, ends the process,
 * or is never finished (runtime/device/cpu/onednn_conv.c): other code is selected, and is exact on whole numbers.
 */
#include "device/cpu/onednn.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* A whole number from -4 to 4: all sums of the products are exact. */
static void fill(float *x, int64_t n, uint32_t state)
{
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        x[i] = (float)((int)(state >> 24) % 9 - 4);
    }
}

static float *numbers(int64_t n, uint32_t seed)
{
    float *const x = aligned_alloc(64, ((size_t)n * sizeof *x + 127) / 64 * 64);
    cr_assert_not_null(x);
    fill(x, n, seed);
    return x;
}

/* y at an output, by the definition, of a weight [oc, c / groups, kh, kw] and images with channels last. */
static float y_at(const struct rw_conv_signature *s, const float *x, const float *w, int64_t oy, int64_t ox, int64_t oc)
{
    const int64_t cg = s->c / s->groups, first = oc / (s->oc / s->groups) * cg;
    float sum = 0;
    for (int64_t ky = 0; ky < s->kh; ky++)
        for (int64_t kx = 0; kx < s->kw; kx++) {
            const int64_t iy = oy * s->stride[0] - s->padding[0] + ky * s->dilation[0];
            const int64_t ix = ox * s->stride[1] - s->padding[1] + kx * s->dilation[1];
            if (iy < 0 || iy >= s->h || ix < 0 || ix >= s->w) continue;
            for (int64_t c = 0; c < cg; c++)
                sum += x[(iy * s->w + ix) * s->c + first + c] * w[((oc * cg + c) * s->kh + ky) * s->kw + kx];
        }
    return sum;
}

static void set_outputs(struct rw_conv_signature *s)
{
    const int64_t down = s->h + 2 * s->padding[0] - (s->kh - 1) * s->dilation[0] - 1;
    const int64_t across = s->w + 2 * s->padding[1] - (s->kw - 1) * s->dilation[1] - 1;
    s->oh = down / s->stride[0] + 1;
    s->ow = across / s->stride[1] + 1;
    memcpy(s->end, s->padding, sizeof s->end);
}

/* Prepares one; runs it and compares, if it is of float32 and there is fast code. */
static void expect_exact(struct rw_onednn *o, struct rw_conv_signature s)
{
    struct rw_conv_needs needs;
    set_outputs(&s);
    cr_assert_eq(rw_onednn_conv_prepare(o, &s, 1, &needs), RW_OK);
    if (!needs.fast || s.dtype != RW_F32) return;
    const int64_t n = s.oh * s.ow * s.oc, elements = s.oc * (s.c / s.groups) * s.kh * s.kw;
    float *const x = numbers(s.h * s.w * s.c, 1), *const w = numbers(elements, 2), *const y = numbers(n, 3);
    float *const own = numbers((int64_t)(needs.weight / sizeof *own), 4);
    float *const scratch = numbers((int64_t)(needs.scratch / sizeof *scratch) + 16, 5);
    struct rw_onednn_primitive *const p = rw_onednn_conv_find(o, &s, &needs);
    cr_assert_eq(rw_onednn_conv_reorder_weight(p, 1, w, own, (char *)scratch, needs.scratch), RW_OK);
    cr_assert_eq(rw_onednn_conv_run(p, 0, x, own, NULL, y, scratch), RW_OK);
    for (int64_t i = 0; i < n; i++) {
        const float exact = y_at(&s, x, w, i / s.oc / s.ow, i / s.oc % s.ow, i % s.oc);
        cr_assert_eq(y[i], exact, "kernel [%d, %d], element %d: %g, not %g", (int)s.kh, (int)s.kw, (int)i, y[i], exact);
    }
    free(x), free(w), free(y), free(own), free(scratch);
}

#define CONV(channels, filters, in_groups, height, width, down, across, ...)                                      \
    { .n = 1, .c = channels, .oc = filters, .groups = in_groups, .h = height, .w = width, .kh = down, .kw = across, \
      .kind = RW_ONEDNN_FORWARD, .dilation = { 1, 1 }, __VA_ARGS__ }

Test(onednn_forward, of_shapes_that_version_3_gets_wrong_is_exact, .timeout = 60)
{
    static const struct rw_conv_signature shapes[] = {
        /* one output per row, and a stride */
        CONV(1, 1, 1, 20, 3, 3, 3, .dtype = RW_F32, .stride = { 1, 3 }, .padding = { 1, 1 }),
        CONV(1, 15, 1, 5, 3, 2, 2, .dtype = RW_F32, .stride = { 1, 3 }),
        /* depthwise, with many taps: not finished */
        CONV(16, 16, 16, 3, 112, 1, 28, .dtype = RW_BF16, .stride = { 1, 1 }),
        CONV(16, 16, 16, 2, 86, 3, 15, .dtype = RW_BF16, .stride = { 1, 1 }, .padding = { 1, 0 }),
    };
    struct rw_onednn *o = NULL;
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("of the CPU");
    cr_assert_eq(rw_onednn_create(false, &o), RW_OK);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) expect_exact(o, shapes[i]);
    rw_onednn_destroy(&o);
}
