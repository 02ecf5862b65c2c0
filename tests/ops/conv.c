/*
 * Convolutions: bit-identical for any number of threads, under every policy and for every layout of the image; chains
 * of them stay channels last and are never transposed; a weight's gradient is added to the existing one; and invalid
 * calls are refused.
 */
#include "support/compare.h"
#include "support/refuses.h"
#include "support/plan_queries.h"

#include "device/cpu/onednn.h"
#include "record/context.h"
#include "record/tape_mark.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };

struct layer {
    int64_t n, c, h, w, oc, k;
    int stride, groups;
    int more; /* additional padding beyond half a kernel */
    int dilation; /* 0: 1 */
};

/* Split into groups of images, into filters, by channels; one pixel; images that do not divide by eight; bands of rows;
   products; padding of one tap and beyond half a kernel. */
static const struct layer layers[] = {
    { 8, 3, 20, 20, 16, 3, 2, 1 },  { 3, 64, 5, 5, 80, 3, 1, 1 },  { 9, 16, 11, 10, 16, 3, 1, 16 },
    { 2, 48, 6, 6, 70, 1, 1, 1 },   { 11, 16, 9, 9, 8, 3, 1, 1 },  { 5, 12, 7, 7, 20, 3, 1, 4 },
    { 1, 8, 37, 9, 24, 3, 1, 1 },   { 2, 6, 42, 11, 20, 3, 2, 2 }, { 4, 128, 17, 17, 144, 1, 1, 1 },
    { 3, 40, 9, 10, 48, 1, 2, 1 },  { 2, 5, 9, 8, 260, 3, 1, 1 },  { 2, 5, 6, 5, 257, 1, 1, 1, 1 },
    { 2, 3, 18, 5, 4, 3, 2, 1, 2 },
    /* With the weight rotated by 180 degrees, on the CPU: for rows for which the first-level cache has few sets, and
       few rows. */
    { 1, 3, 4, 17, 512, 3, 1, 1 },  { 2, 5, 6, 20, 512, 3, 1, 1, 0, 2 }, { 1, 2, 5, 19, 512, 3, 1, 1, 1 },
    { 1, 2, 5, 19, 512, 3, 1, 1, 2 }, { 1, 257, 5, 6, 20, 3, 1, 1 }, { 1, 256, 3, 171, 4, 3, 1, 1 },
};

/* The last ones take long if kernels are simulated, and are similar to others there. */
static size_t n_layers(void)
{
    return sizeof layers / sizeof *layers - (test_device() == RW_DEVICE_CPU ? 0 : 6);
}

/* Layer i, or the next one if kernels are simulated and layer i is three quarters of all work. The next one is a
   product, too. The exact tests include the large layer; comparisons of bytes need many runs. */
static const struct layer *shorter(size_t i)
{
    const bool takes_long = test_device() != RW_DEVICE_CPU && layers[i].c * layers[i].oc > 1 << 14;
    return &layers[i + takes_long];
}

static rw_tensor *param(rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape)
{
    rw_tensor *const p = rw_param(ctx, name, dtype, shape);
    rw_init_normal(p, 0, 0.4);
    return p;
}

static rw_tensor *loss_of(rw_tape *t, rw_tensor *y)
{
    return rw_sum(t, rw_mul(t, y, rw_tanh(t, y)), RW_ALL_AXES, false);
}

static rw_conv2d_params params_of(const struct layer *l)
{
    const int padding = (int)l->k / 2 + l->more;
    return (rw_conv2d_params){ .stride = { l->stride, l->stride },
                               .padding = { padding, padding },
                               .dilation = { l->dilation, l->dilation },
                               .groups = l->groups };
}

static bool alone; /* see begin_alone() */

/* All gradients of a step of one layer and of its transpose. */
static unsigned char *gradients(const struct layer *l, rw_dtype dtype, int threads, const char *policy, size_t *ret)
{
    struct fixture b = fixture_open(3, threads);
    if (alone) begin_alone(b.ctx);
    const rw_conv2d_params params = params_of(l);
    rw_tensor *const w = param(b.ctx, "w", dtype, RW_SHAPE(l->oc, l->c / l->groups, l->k, l->k));
    rw_tensor *const x = param(b.ctx, "x", dtype, RW_SHAPE(l->n, l->c, l->h, l->w));
    rw_tensor *const bias = param(b.ctx, "b", dtype, RW_SHAPE(l->oc));
    ckpt_set_policy(b.t, policy);
    ckpt_begin(b.t, "layer");
    rw_tensor *const y = rw_relu(b.t, rw_conv2d(b.t, x, w, bias, &params));
    rw_tensor *const most = rw_max_pool2d(b.t, y, &(rw_pool2d_params){ .kernel = { 3, 3 }, .stride = { 1, 1 } });
    rw_tensor *const back = rw_conv_transpose2d(b.t, y, w, RW_NONE, &params);
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, rw_add(b.t, loss_of(b.t, most), loss_of(b.t, back))), RW_OK, "%s",
                 rw_error_message(b.ctx));
    unsigned char *const all = all_gradients(b.ctx, ret);
    fixture_close(&b);
    return all;
}

Test(ops_conv, bytes_do_not_depend_on_the_number_of_threads)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++)
        for (size_t i = 0; i < n_layers(); i++) {
            size_t n, more;
            unsigned char *const one = gradients(shorter(i), types[d], 1, "none", &n);
            const int most = test_device() == RW_DEVICE_CPU ? 8 : 2, apart = test_steps(1, 3);
            for (int threads = 2; threads <= most; threads += apart) {
                unsigned char *const many = gradients(shorter(i), types[d], threads, "none", &more);
                cr_assert_eq(n, more);
                cr_expect_eq(first_difference(one, many, n), -1, "%s, layer %zu, %d threads", rw_dtype_name(types[d]),
                             i, threads);
                free(many);
            }
            free(one);
        }
}

Test(ops_conv, bytes_do_not_depend_on_the_policy)
{
    static const char *const policies[] = { "full", "ops:conv2d", "ops:relu,conv_transpose2d", "discard:layer" };
    for (size_t d = 0; d < sizeof types / sizeof *types; d++)
        for (size_t i = 0; i < n_layers(); i += 2) {
            size_t n, more;
            unsigned char *const none = gradients(shorter(i), types[d], 2, "none", &n);
            for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
                unsigned char *const again = gradients(shorter(i), types[d], 2, policies[p], &more);
                cr_assert_eq(n, more);
                cr_expect_eq(first_difference(none, again, n), -1, "%s, layer %zu, %s", rw_dtype_name(types[d]), i,
                             policies[p]);
                free(again);
            }
            free(none);
        }
}

/* ---- layouts of images ---- */

static bool was_recorded(const struct fixture *b, const char *name)
{
    for (size_t i = 0; i < b->ctx->n_ops; i++)
        if (!strcmp(b->ctx->ops[i]->name, name)) return true;
    return false;
}

static bool is_channels_last(const rw_tensor *x)
{
    const rw_layout *const l = rw_tensor_layout(x);
    return l->rank == 4 && l->stride[1] == 1 && l->stride[3] == l->dim[1] && l->stride[2] == l->dim[1] * l->dim[3];
}

/* relu(x + conv(relu(conv(x)))), in which each op other than the convolutions is element-wise. */
static rw_tensor *block(struct fixture *b, rw_tensor *x, rw_tensor *w)
{
    const rw_conv2d_params same = { .padding = { 1, 1 } };
    rw_tensor *const h = rw_relu(b->t, rw_conv2d(b->t, x, w, RW_NONE, &same));
    cr_assert(is_channels_last(h));
    return rw_relu(b->t, rw_add(b->t, x, rw_conv2d(b->t, h, w, RW_NONE, &same)));
}

/* relu(x + relu(batchnorm(x))) of volumes: treated as images, in memory order. */
Test(ops_conv, a_chain_of_volumes_keeps_its_layout)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *x = rw_permute(b.t, param(b.ctx, "x", RW_F32, RW_SHAPE(2, 5, 7, 3, 6)), (const int[]){ 0, 4, 1, 2, 3 });
    for (int i = 0; i < 2; i++) {
        rw_tensor *const h = rw_relu(b.t, rw_batchnorm(b.t, x, RW_NONE, RW_NONE, RW_NONE, RW_NONE, NULL));
        x = rw_concat(b.t, (rw_tensor *[]){ rw_relu(b.t, rw_add(b.t, x, h)), h }, 2, -4);
        cr_assert_eq(rw_tensor_layout(x)->stride[1], 1);
    }
    cr_assert(rw_shape_equal(rw_tensor_shape(x), RW_SHAPE(2, 24, 5, 7, 3)));
    cr_assert_not(was_recorded(&b, "contiguous"));
    cr_assert_eq(rw_backward(b.t, loss_of(b.t, x)), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(ops_conv, a_residual_chain_keeps_its_layout)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const w = param(b.ctx, "w", RW_F32, RW_SHAPE(6, 6, 3, 3));
    rw_tensor *x = rw_permute(b.t, param(b.ctx, "x", RW_F32, RW_SHAPE(2, 5, 7, 6)), (const int[]){ 0, 3, 1, 2 });
    for (int i = 0; i < 3; i++) x = block(&b, x, w);
    cr_assert(is_channels_last(x));
    cr_assert(rw_shape_equal(rw_tensor_shape(x), RW_SHAPE(2, 6, 5, 7)));
    cr_assert_not(was_recorded(&b, "contiguous"), "forward");
    rw_tensor *const loss = loss_of(b.t, x);
    const rw_plan *const plan = step_plan(&b, loss);
    cr_assert_not_null(plan);
    cr_assert_eq(steps_of(&b, plan, "contiguous"), 0, "backward");
    cr_assert_eq(steps_of(&b, plan, "conv2d_weight"), 6);
    fixture_close(&b);
}

/* The gradient of x, read as [n, c, h, w]. */
static unsigned char *gradient_of_image(rw_dtype dtype, bool last, size_t *ret)
{
    struct fixture b = fixture_open(7, 2);
    const struct layer l = { 3, 5, 6, 7, 9, 3, 2, 1 };
    const rw_conv2d_params params = params_of(&l);
    rw_tensor *const w = param(b.ctx, "w", dtype, RW_SHAPE(9, 5, 3, 3));
    rw_tensor *const image = param(b.ctx, "x", dtype, RW_SHAPE(3, 5, 6, 7));
    rw_tensor *x = image;
    if (last)
        x = rw_permute(b.t, rw_contiguous(b.t, rw_permute(b.t, image, (const int[]){ 0, 2, 3, 1 })),
                       (const int[]){ 0, 3, 1, 2 });
    const rw_tensor *const y = rw_conv2d(b.t, x, w, RW_NONE, &params);
    cr_assert_eq(rw_backward(b.t, loss_of(b.t, (rw_tensor *)y)), RW_OK, "%s", rw_error_message(b.ctx));
    unsigned char *const all = all_gradients(b.ctx, ret);
    fixture_close(&b);
    return all;
}

Test(ops_conv, bytes_do_not_depend_on_the_layout_of_the_image)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        size_t n, more;
        unsigned char *const first = gradient_of_image(types[d], false, &n), *const last = gradient_of_image(
                                                                                 types[d], true, &more);
        cr_assert_eq(n, more);
        cr_expect_eq(first_difference(first, last, n), -1, "%s", rw_dtype_name(types[d]));
        free(first), free(last);
    }
}

/* A value in the middle of a chain is a view: its gradient is requested in its own layout. */
Test(ops_conv, values_between_have_gradients)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = param(b.ctx, "w", RW_F64, RW_SHAPE(4, 3, 3, 3)), *g = NULL;
    rw_tensor *const x = param(b.ctx, "x", RW_F64, RW_SHAPE(2, 3, 5, 5));
    rw_tensor *const y = rw_conv2d(b.t, x, w, RW_NONE, NULL), *const z = rw_relu(b.t, y);
    double values[2 * 4 * 3 * 3], slopes[2 * 4 * 3 * 3];
    cr_assert_eq(rw_grad(b.t, rw_sum(b.t, z, RW_ALL_AXES, false), &y, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, y, values, sizeof values), RW_OK);
    cr_assert_eq(rw_read(b.t, g, slopes, sizeof slopes), RW_OK);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) cr_expect_eq(slopes[i], values[i] > 0);
    fixture_close(&b);
}

/* ---- sums ---- */

/* Small integers: every type holds their sums, in any order of summation. */
static double whole(int64_t i)
{
    return (double)(i * 7919 % 1009 % 7 - 3);
}

static double whole_too(int64_t i)
{
    return (double)(i * 104729 % 997 % 5 - 2);
}

/* y, dx and dweight of a layer and of its transpose as float64 numbers, concatenated; n: how many. */
static double *exact(const struct layer *l, bool transposed, rw_dtype dtype, size_t *n)
{
    struct fixture b = fixture_open(3, 2);
    const rw_conv2d_params params = params_of(l);
    rw_tensor *const w = rw_param(b.ctx, "w", dtype, RW_SHAPE(l->oc, l->c / l->groups, l->k, l->k));
    const int64_t channels = transposed ? l->oc : l->c;
    rw_tensor *const x = rw_param_with(b.ctx, "x", dtype, RW_SHAPE(l->n, channels, l->h, l->w),
                                       &(rw_param_options){ .grad_dtype = dtype });
    cr_assert(tensor_fill(w, whole) && tensor_fill(x, whole_too));
    rw_tensor *const y = transposed ? rw_conv_transpose2d(b.t, x, w, RW_NONE, &params)
                                    : rw_conv2d(b.t, x, w, RW_NONE, &params);
    rw_tensor *const upstream = rw_buffer(b.ctx, "u", dtype, rw_tensor_shape(y));
    cr_assert(tensor_fill(upstream, whole));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, upstream), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    rw_tensor *const all[] = { y, rw_gradient(x), rw_gradient(w) };
    double *numbers = NULL;
    *n = 0;
    for (int i = 0; i < 3; i++) {
        const size_t more = (size_t)rw_shape_numel(rw_tensor_shape(all[i]));
        void *const read = malloc(rw_tensor_bytes(all[i]) + 1);
        cr_assert_eq(rw_read(b.t, all[i], read, rw_tensor_bytes(all[i])), RW_OK, "%s", rw_error_message(b.ctx));
        numbers = realloc(numbers, (*n + more) * sizeof *numbers);
        for (size_t k = 0; k < more; k++) numbers[*n + k] = number_get(read, rw_tensor_dtype(all[i]), (int64_t)k);
        *n += more;
        free(read);
    }
    fixture_close(&b);
    return numbers;
}

/* In 16 bits, results that the type does not hold are rounded once. */
static void expect_exact(const struct layer *l, int n_types)
{
    static const rw_dtype narrower[] = { RW_F32, RW_BF16, RW_F16 };
    for (int transposed = 0; transposed < 2; transposed++) {
        size_t n, more;
        double *const all = exact(l, transposed, RW_F64, &n);
        for (int d = 0; d < n_types; d++) {
            double *const are = exact(l, transposed, narrower[d], &more);
            cr_assert_eq(n, more);
            for (size_t k = 0; k < n; k++) {
                const double off = fabs(are[k] - all[k]), most = d ? fabs(all[k]) * unit_roundoff(narrower[d]) : 0;
                cr_assert(off <= most, "%s, c %lld, %lld x %lld, k %lld, %d, number %zu: %g, not %g",
                          rw_dtype_name(narrower[d]), (long long)l->c, (long long)l->h, (long long)l->w,
                          (long long)l->k, transposed, k, are[k], all[k]);
            }
            free(are);
        }
        free(all);
    }
}

Test(ops_conv, of_whole_numbers_are_exact)
{
    for (size_t i = 0; i < n_layers(); i++) expect_exact(&layers[i], 3);
}

/* Each test is a process of its own: the instruction set has not been selected yet. */
Test(ops_conv, where_the_processor_does_not_multiply_bfloat16)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("of the CPU");
    setenv("REWIND_ISA", "v3", 1);
    for (size_t i = 0; i < n_layers(); i++) expect_exact(&layers[i], 3);
}

/* Shapes for which oneDNN computes wrong sums, or reads beyond its operands: dilated ones, taps that meet no pixel. It
   reports no error. */
Test(ops_conv, of_shapes_that_the_library_gets_wrong_are_exact)
{
    static const struct layer odd[] = {
        { 1, 16, 33, 40, 16, 3, 1, 16, 1, 2 }, /* depthwise */
        { 1, 24, 33, 40, 17, 3, 1, 1, 1, 2 },  /* a partial vector of channels */
        { 2, 40, 20, 33, 24, 3, 1, 2, 2, 3 },  /* groups */
        { 1, 32, 52, 2, 32, 3, 3, 32, 1 },     /* two pixels wide, and padding of two */
        { 3, 64, 37, 1, 8, 7, 2, 1 },          /* one pixel wide */
        { 1, 8, 42, 46, 17, 5, 2, 1, 4, 3 },   /* padding almost as large as the kernel's extent */
        { 1, 38, 38, 45, 33, 1, 1, 1 },        /* one tap, and an odd number of filters */
        { 2, 59, 24, 40, 59, 1, 2, 1 },
    };
    if (test_device() != RW_DEVICE_CPU) return;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) expect_exact(&odd[i], 3);
}

/* Rows that are too long for the library: matrix products, and the library's own loops for groups. */
Test(ops_conv, of_long_rows_are_exact)
{
    static const struct layer rows[] = {
        { 1, 4, 3, 5100, 8, 3, 1, 1 }, { 2, 3, 5, 10400, 5, 3, 2, 1 }, { 1, 6, 3, 5100, 4, 3, 1, 2 },
        { 1, 4, 5, 1600, 8, 3, 1, 1, 1 }, /* padding of two */
        { 1, 16, 4, 737, 8, 3, 1, 1 },    /* the weight's gradient in bfloat16 has no AMX code */
    };
    if (test_device() != RW_DEVICE_CPU) return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n, more;
        expect_exact(&rows[i], 3);
        unsigned char *const one = gradients(&rows[i], RW_F32, 1, "none", &n);
        unsigned char *const three = gradients(&rows[i], RW_F32, 3, "full", &more);
        cr_assert_eq(n, more);
        cr_expect_eq(first_difference(one, three, n), -1, "row %zu, three threads", i);
        free(one), free(three);
    }
}

/* One channel, by the definition: each element of x is added at the positions of the kernel's taps. */
static void transpose_by_hand(const double *x, const double *w, const rw_conv2d_params *p, int64_t h, int64_t k,
                              int64_t out, double *y)
{
    memset(y, 0, (size_t)(out * out) * sizeof *y);
    for (int64_t i = 0; i < h * h * k * k; i++) {
        const int64_t iy = i / (k * k) / h, ix = i / (k * k) % h, ty = i / k % k, tx = i % k;
        const int64_t oy = iy * p->stride[0] - p->padding[0] + ty * p->dilation[0];
        const int64_t ox = ix * p->stride[1] - p->padding[1] + tx * p->dilation[1];
        if (oy >= 0 && oy < out && ox >= 0 && ox < out) y[oy * out + ox] += x[iy * h + ix] * w[ty * k + tx];
    }
}

/* Output padding of a stride or more, which a dilation allows: inside the part cropped at the end, and after it. */
/* If the padding is as large as the distance between taps, a window contains one element of the image, or a few: time
   and memory are proportional to these. Of 3 x 3 taps the middle one reads the image; with an equally large stride, its
   first element. */
static void far_apart(rw_dtype dtype, int padding, int stride)
{
    enum { SIDE = 8 };
    struct fixture b = fixture_open(1, 2);
    float ones[2 * SIDE * SIDE];
    double got[3 * SIDE * SIDE];
    const int made = stride > 1 ? 1 : SIDE;
    for (int i = 0; i < 2 * SIDE * SIDE; i++) ones[i] = 1;
    rw_tensor *const image = rw_input(b.t, RW_F32, RW_SHAPE(1, 2, SIDE, SIDE), ones, sizeof ones);
    rw_tensor *const x = rw_require_grad(b.t, rw_cast(b.t, image, dtype));
    rw_tensor *const w = rw_param(b.ctx, "w", dtype, RW_SHAPE(3, 2, 3, 3));
    cr_assert_eq(rw_init_constant(w, 2), RW_OK);
    const rw_conv2d_params p = { .padding = { padding, padding }, .dilation = { padding, padding },
                                 .stride = { stride, stride } };
    rw_tensor *const y = rw_conv2d(b.t, x, w, RW_NONE, &p);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert(rw_shape_equal(rw_tensor_shape(y), RW_SHAPE(1, 3, made, made)));
    cr_assert_eq(rw_read(b.t, y, got, rw_tensor_bytes(y)), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 3 * made * made; i++) cr_assert_eq(number_get(got, dtype, i), 4, "y, element %d", i);
    cr_assert_eq(rw_read(b.t, rw_gradient(x), got, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 2 * SIDE * SIDE; i++)
        cr_assert_eq(number_get(got, dtype, i), i % (SIDE * SIDE) == 0 || stride == 1 ? 6 : 0, "dx, element %d", i);
    fixture_close(&b);
}

Test(ops_conv, padding_as_large_as_the_dilation, .timeout = 900)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        far_apart(types[d], 100000000, 1);
        far_apart(types[d], 100000000, 100000000);
    }
}

/* With padding on all sides the result does not fit in memory, and the message names its op. */
Test(ops_conv, a_result_beyond_all_memory_is_named)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_ones(b.t, RW_F32, RW_SHAPE(1, 1, 8, 8));
    rw_tensor *const w = rw_ones(b.t, RW_F32, RW_SHAPE(1, 1, 3, 3));
    const int line = __LINE__ + 1;
    rw_tensor *const y = rw_conv2d(b.t, x, w, RW_NONE, &(rw_conv2d_params){ .padding = { 10000000, 10000000 } });
    rw_tensor *const sum = rw_sum(b.t, y, RW_ALL_AXES, false);
    char want[96];
    snprintf(want, sizeof want, "conv2d at %s:%d has ", __FILE__, line);
    cr_assert_eq(rw_eval(b.t, &sum, 1), RW_ERR_MEMORY, "%s", rw_error_message(b.ctx));
    cr_assert(strstr(rw_error_message(b.ctx), want), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(ops_conv, a_transposed_one_is_larger_by_up_to_its_dilation)
{
    enum { H = 4, K = 3 };
    double x[H * H], w[K * K], y[32 * 32], by_hand[32 * 32];
    for (int i = 0; i < H * H; i++) x[i] = whole(i);
    for (int i = 0; i < K * K; i++) w[i] = whole_too(i);
    for (int stride = 1; stride <= 2; stride++)
        for (int more = 0; more < 4; more++)
            for (int padding = 0; padding < 4; padding++) {
                struct fixture b = fixture_open(1, 1);
                const rw_conv2d_params p = { .stride = { stride, stride },
                                             .padding = { padding, padding },
                                             .dilation = { 4, 4 },
                                             .output_padding = { more, more } };
                rw_tensor *const in = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(1, 1, H, H), x, sizeof x));
                rw_tensor *const z = rw_conv_transpose2d(
                    b.t, in, rw_input(b.t, RW_F64, RW_SHAPE(1, 1, K, K), w, sizeof w), RW_NONE, &p);
                cr_assert_not_null(z, "%s", rw_error_message(b.ctx));
                const int64_t out = (H - 1) * stride - 2 * padding + 4 * (K - 1) + more + 1;
                cr_assert(rw_shape_equal(rw_tensor_shape(z), RW_SHAPE(1, 1, out, out)));
                cr_assert_eq(rw_read(b.t, z, y, (size_t)(out * out) * sizeof *y), RW_OK, "%s", rw_error_message(b.ctx));
                transpose_by_hand(x, w, &p, H, K, out, by_hand);
                cr_expect_eq(memcmp(y, by_hand, (size_t)(out * out) * sizeof *y), 0, "stride %d, %d more, padding %d",
                             stride, more, padding);
                cr_expect_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, z, z), RW_ALL_AXES, false)), RW_OK);
                fixture_close(&b);
            }
}

/* A second step must double the weight's gradient, up to a relative difference of `apart`. */
static void adds_up(const struct layer *some, size_t n_some, double apart)
{
    for (size_t d = 0; d < 2; d++)
        for (size_t i = 0; i < n_some; i++) {
            const struct layer *const l = &some[i];
            struct fixture b = fixture_open(5, 3);
            const rw_conv2d_params params = params_of(l);
            rw_tensor *const w = param(b.ctx, "w", types[d], RW_SHAPE(l->oc, l->c / l->groups, l->k, l->k));
            rw_tensor *const x = param(b.ctx, "x", types[d], RW_SHAPE(l->n, l->c, l->h, l->w));
            const size_t bytes = rw_tensor_bytes(w), n = bytes / rw_dtype_size(types[d]);
            void *const once = malloc(bytes), *const twice = malloc(bytes);
            for (int step = 0; step < 2; step++) {
                cr_assert_eq(rw_backward(b.t, loss_of(b.t, rw_conv2d(b.t, x, w, RW_NONE, &params))), RW_OK);
                rw_tape_reset(b.t);
                cr_assert_eq(rw_read(b.t, rw_gradient(w), step ? twice : once, bytes), RW_OK);
            }
            double most = 0;
            for (size_t k = 0; k < n && types[d] == RW_F32; k++) most = fmax(most, fabs((double)((float *)once)[k]));
            for (size_t k = 0; k < n; k++) {
                const double a = types[d] == RW_F64 ? ((double *)once)[k] : ((float *)once)[k];
                const double c = types[d] == RW_F64 ? ((double *)twice)[k] : ((float *)twice)[k];
                cr_assert_leq(fabs(c - 2 * a), apart * most, "layer %zu, element %zu: %g, not twice %g", i, k, c, a);
            }
            free(once), free(twice);
            fixture_close(&b);
        }
}

/* The library's code for AVX2 starts its sums with the existing gradient; its other code adds it at the end. Where the
   library has no code, the product of a kernel of one tap starts with it, too: in one chain of up to 1,156 roundings.
   Their sum is some 17 units of 2^-24 if they are random. */
static double distance_of_two_steps(void)
{
    if (test_device() != RW_DEVICE_CPU) return 0;
#if defined(__x86_64__)
    return rw_onednn_takes_avx512() ? 0 : 0x1p-21;
#else
    return 0x1p-18;
#endif
}

Test(ops_conv, a_second_step_adds_to_the_weights_gradient)
{
    adds_up(layers, n_layers(), distance_of_two_steps());
}

/* Shapes whose dw uses the packed loops: two blocks of channels, the second partial, and parts for all threads; few
   filters; strides, taps far apart; pixels that are summed in two passes, and more padding. */
static const struct layer large[] = {
    { 2, 176, 20, 17, 512, 3, 1, 1 },
    { 2, 256, 50, 33, 37, 3, 1, 1 },
    { 2, 512, 43, 35, 40, 5, 2, 1, 0, 2 },
    { 1, 64, 97, 129, 38, 3, 1, 1, 1 },
};
#define LARGE (sizeof large / sizeof *large)

Test(ops_conv, large_ones_by_code_for_older_processors_are_exact)
{
    BY_CODE_FOR_AVX2();
    for (int i = 0; i < test_steps(LARGE, 1); i++) expect_exact(&large[i], 1);
}

Test(ops_conv, large_ones_by_code_for_older_processors)
{
    static const int threads[] = { 2, 3, 5, 8, 8 };
    const int first = 5 - test_steps(5, 2); /* the last two need the largest and the smallest workspace */
    BY_CODE_FOR_AVX2();
    for (size_t i = 0; i < LARGE; i++) {
        size_t n, more;
        unsigned char *const one = gradients(&large[i], RW_F32, 1, "none", &n);
        for (int t = first; t < 5; t++) {
            alone = t == 4;
            unsigned char *const many = gradients(&large[i], RW_F32, threads[t], "none", &more);
            cr_assert_eq(n, more);
            cr_expect_eq(first_difference(one, many, n), -1, "layer %zu, %d threads", i, threads[t]);
            free(many);
        }
        free(one);
    }
    adds_up(large, (size_t)test_steps(LARGE, 1), 0x1p-21);
}

/* dweight of a layer of one image of ones. dy is one except at the first filter's first pixel, and at the last pixel of
   the last filter of a packed part. */
static float *beside_padding(const struct layer *l, float corner, int threads, size_t *n)
{
    struct fixture b = fixture_open(3, threads);
    const rw_conv2d_params params = params_of(l);
    rw_tensor *const w = param(b.ctx, "w", RW_F32, RW_SHAPE(l->oc, l->c, l->k, l->k));
    rw_tensor *const x = rw_ones(b.t, RW_F32, RW_SHAPE(l->n, l->c, l->h, l->w));
    rw_tensor *const y = rw_conv2d(b.t, x, w, RW_NONE, &params);
    const rw_shape shape = rw_tensor_shape(y);
    const int64_t pixels = shape.dim[2] * shape.dim[3];
    float *const dy = malloc(rw_tensor_bytes(y)), *const dw = malloc(rw_tensor_bytes(w));
    *n = (size_t)rw_shape_numel(rw_tensor_shape(w));
    for (int64_t i = 0; i < l->oc * pixels; i++) dy[i] = 1;
    dy[0] = dy[(l->oc / 2 + 1) * pixels - 1] = corner;
    rw_tensor *const loss = rw_sum(
        b.t, rw_mul(b.t, y, rw_input(b.t, RW_F32, shape, dy, (size_t)rw_shape_numel(shape) * sizeof *dy)), RW_ALL_AXES,
        false);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(w), dw, rw_tensor_bytes(w)), RW_OK);
    fixture_close(&b);
    free(dy);
    return dw;
}

/* An element of dy without a pixel of x is added to no sum, even if it is infinite: neither in oneDNN's code, nor in
   the packed loops. */
Test(ops_conv, an_infinite_gradient_meets_no_padding)
{
    static const struct layer some[] = { { 1, 16, 9, 7, 24, 3, 1, 1 }, { 1, 64, 41, 129, 94, 3, 1, 1 } };
    BY_CODE_FOR_AVX2();
    for (int i = 0; i < 2; i++)
        for (int threads = 1; threads <= 3; threads++) {
            size_t n;
            float *const dw = beside_padding(&some[i], INFINITY, threads, &n);
            float *const finite = beside_padding(&some[i], 1, threads, &n);
            for (size_t k = 0; k < n; k++) {
                const size_t filter = k / ((size_t)some[i].c * 9), down = k / 3 % 3, right = k % 3;
                const bool last = filter == (size_t)some[i].oc / 2;
                const bool meets = (filter == 0 && down && right) || (last && down < 2 && right < 2);
                cr_assert_eq(dw[k], meets ? INFINITY : finite[k], "layer %d, filter %zu, tap %zu, %zu: %g", i, filter,
                             down, right, (double)dw[k]);
            }
            free(dw), free(finite);
        }
}

/* ---- invalid calls ---- */

Test(ops_conv, mistakes_are_named_and_leave_nothing)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *const t = b.t;
    rw_tensor *const x = rw_input(t, RW_F32, RW_SHAPE(2, 4, 5, 6), NULL, 0);
    rw_tensor *const w = rw_input(t, RW_F32, RW_SHAPE(6, 4, 3, 3), NULL, 0);
    rw_tensor *const odd = rw_input(t, RW_F32, RW_SHAPE(6, 3, 3, 3), NULL, 0);
    rw_tensor *const v = rw_input(t, RW_F32, RW_SHAPE(5), NULL, 0);
    rw_tensor *const large = rw_input(t, RW_F32, RW_SHAPE(6, 4, 9, 9), NULL, 0);
    rw_tensor *const flat = rw_input(t, RW_F32, RW_SHAPE(2, 4), NULL, 0);
    rw_tensor *const doubles = rw_input(t, RW_F64, RW_SHAPE(6, 4, 3, 3), NULL, 0);
    rw_tensor *const index = rw_input(t, RW_I32, RW_SHAPE(2, 4, 5, 6), NULL, 0);
    rw_tensor *const empty = rw_input(t, RW_F32, RW_SHAPE(6, 4, 0, 3), NULL, 0);
    const size_t n = rw_tape_mark(t).nodes;
#define CONV(...) rw_conv2d(t, x, w, RW_NONE, &(rw_conv2d_params){ __VA_ARGS__ })
#define TRANSPOSED(...) rw_conv_transpose2d(t, x, transposed, RW_NONE, &(rw_conv2d_params){ __VA_ARGS__ })
    refuses(&b, CONV(.stride = { -1, 1 }), RW_ERR_ARGUMENT, "stride[0]: expected 1 or more, got -1", n);
    refuses(&b, CONV(.padding = { 0, -2 }), RW_ERR_ARGUMENT, "padding[1]: expected 0 or more, got -2", n);
    refuses(&b, CONV(.dilation = { 1, -1 }), RW_ERR_ARGUMENT, "dilation[1]: expected 1 or more, got -1", n);
    refuses(&b, CONV(.output_padding = { 0, -1 }), RW_ERR_ARGUMENT, "(output_padding[1]): expected 0 or more, got -1",
            n);
    refuses(&b, CONV(.groups = -1), RW_ERR_ARGUMENT, "groups: expected 1 or more, got -1", n);
    refuses(&b, CONV(.groups = 2), RW_ERR_SHAPE,
            "x: expected 8 channels, as weight has 4 in each of 2 groups, got 4", n);
    refuses(&b, CONV(.dilation = { 3, 1 }), RW_ERR_SHAPE, "at least 7, that of the dilated kernel, got 5", n);
    refuses(&b, rw_conv2d(t, x, odd, RW_NONE, NULL), RW_ERR_SHAPE, "x: expected 3 channels", n);
    refuses(&b, rw_conv2d(t, x, large, RW_NONE, NULL), RW_ERR_SHAPE, "at least 9", n);
    refuses(&b, rw_conv2d(t, x, empty, RW_NONE, NULL), RW_ERR_SHAPE, "1 or more, got 0", n);
    refuses(&b, rw_conv2d(t, x, w, v, NULL), RW_ERR_SHAPE, "bias: expected shape [6]", n);
    refuses(&b, rw_conv2d(t, flat, w, RW_NONE, NULL), RW_ERR_SHAPE, "conv2d(x): expected [n, c, h, w]", n);
    refuses(&b, rw_conv2d(t, x, v, RW_NONE, NULL), RW_ERR_SHAPE, "conv2d(weight): expected four axes", n);
    refuses(&b, rw_conv2d(t, x, doubles, RW_NONE, NULL), RW_ERR_DTYPE, "conv2d", n);
    refuses(&b, rw_conv2d(t, index, index, RW_NONE, NULL), RW_ERR_DTYPE, "conv2d", n);
    refuses(&b, rw_conv2d(t, NULL, w, RW_NONE, NULL), RW_ERR_ARGUMENT, "x is NULL", n);
    refuses(&b, rw_conv2d(t, x, w, NULL, NULL), RW_ERR_ARGUMENT, "bias is NULL", n);
    rw_tensor *const transposed = rw_input(t, RW_F32, RW_SHAPE(4, 6, 3, 3), NULL, 0);
    const size_t m = rw_tape_mark(t).nodes;
    refuses(&b, TRANSPOSED(.output_padding = { 1, 0 }), RW_ERR_ARGUMENT, "output_padding[0]", m);
    refuses(&b, TRANSPOSED(.padding = { 9, 0 }), RW_ERR_SHAPE, "extent", m);
    refuses(&b, rw_conv_transpose2d(t, x, transposed, v, NULL), RW_ERR_SHAPE, "conv_transpose2d", m);
    refuses(&b, rw_conv_transpose2d(t, x, w, RW_NONE, NULL), RW_ERR_SHAPE,
            "weight: expected extent 4 at axis 0, got 6", m);
    refuses(&b, rw_conv_transpose2d(t, x, transposed, NULL, NULL), RW_ERR_ARGUMENT, "bias is NULL", m);
    fixture_close(&b);
}
