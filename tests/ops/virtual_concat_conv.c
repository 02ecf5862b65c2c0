/*
 * Convolutions of virtual concatenations: each reads the inputs and concatenates parts of them as it proceeds. It is
 * bit-identical to a convolution of the whole, forward and backward, under every policy and with any number of threads.
 * The whole is neither computed nor kept. The last tests are of cases in which the whole is read after all.
 * virtual_concat.c has batch norms, and which inputs are supported.
 *
 * A concatenation that has a name is computed: all others are compared with it.
 */
#include "support/support.h"

#include "ops/conv/conv.h"
#include "record/context.h"
#include "record/tape_mark.h"
#include "record/tape.h"

#include <rewind/conv.h>
#include <rewind/norm.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };

#define PIECES 3

struct form {
    int64_t n, h, w, widths[PIECES], oc, k;
    int stride, groups;
    bool bias;
    bool lowered; /* in a recipe: float32 inputs are cast to 16 bits */
    bool whole;   /* the concatenation has a name */
};

/* Split into groups of images, one of them smaller; bands of rows; filters; products of one tap and of gathered panels;
   depthwise; groups across inputs; an empty input; widths that 16 bytes and 4 divide; a recipe. */
static const struct form forms[] = {
    { 9, 12, 10, { 3, 8, 5 }, 16, 3, 2, 1, .bias = true },
    { 1, 37, 9, { 8, 4, 4 }, 24, 3, 1, 1 },
    { 2, 40, 11, { 16, 8, 40 }, 32, 3, 1, 1, .bias = true },
    { 3, 5, 5, { 32, 24, 8 }, 80, 3, 1, 1 },
    { 2, 6, 6, { 16, 31, 1 }, 70, 1, 1, 1, .bias = true },
    { 4, 17, 17, { 64, 32, 32 }, 144, 1, 1, 1 },
    { 2, 9, 8, { 2, 1, 3 }, 260, 3, 1, 1, .bias = true },
    { 3, 11, 10, { 4, 1, 11 }, 16, 3, 1, 16 },
    { 2, 7, 7, { 5, 2, 5 }, 20, 3, 1, 4 },
    { 2, 8, 6, { 0, 6, 2 }, 8, 3, 1, 1, .bias = true },
    { 2, 12, 12, { 8, 4, 12 }, 16, 3, 1, 1, .bias = true, .lowered = true },
};
#define FORMS (sizeof forms / sizeof *forms)

struct layer {
    struct fixture b;
    rw_tensor *leaf[PIECES], *x[2], *y; /* x[0] concatenates the first two, x[1] all */
};

static rw_tensor *param(rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape)
{
    rw_tensor *p = rw_param_find(ctx, name);
    if (p) return p;
    p = rw_param(ctx, name, dtype, shape);
    rw_init_normal(p, 0.1, 0.4);
    return p;
}

/* Channels last, as convolutions leave their results. */
static rw_tensor *piece(struct layer *l, const struct form *f, rw_dtype dtype, int i)
{
    char name[8];
    snprintf(name, sizeof name, "x%d", i);
    l->leaf[i] = param(l->b.ctx, name, dtype, RW_SHAPE(f->n, f->h, f->w, f->widths[i]));
    return rw_tanh(l->b.t, rw_permute(l->b.t, l->leaf[i], (const int[]){ 0, 3, 1, 2 }));
}

static rw_tensor *joined(struct layer *l, const struct form *f, rw_tensor *a, rw_tensor *b)
{
    rw_tensor *const x = rw_concat(l->b.t, (rw_tensor *const[]){ a, b }, 2, 1);
    return f->whole ? ckpt_name(l->b.t, x, "whole") : x;
}

static rw_tensor *convolution(struct layer *l, const struct form *f, rw_dtype dtype)
{
    const int64_t c = rw_tensor_shape(l->x[1]).dim[1];
    const int edge = (int)f->k / 2;
    rw_tensor *const w = param(l->b.ctx, "w", dtype, RW_SHAPE(f->oc, c / f->groups, f->k, f->k));
    rw_tensor *const bias = f->bias ? param(l->b.ctx, "b", dtype, RW_SHAPE(f->oc)) : RW_NONE;
    if (f->lowered) rw_recipe_begin(l->b.t, &(rw_recipe){ .kind = RW_RECIPE_BF16 });
    rw_tensor *const y = rw_conv2d(
        l->b.t, l->x[1], w, bias,
        &(rw_conv2d_params){ .stride = { f->stride, f->stride }, .padding = { edge, edge }, .groups = f->groups });
    if (f->lowered) rw_recipe_end(l->b.t);
    cr_assert_not_null(y, "%s", rw_error_message(l->b.ctx));
    return y;
}

/* The inputs and their concatenation in one region, the convolution in another one. */
static void record(struct layer *l, const struct form *f, rw_dtype dtype)
{
    rw_tape *const t = l->b.t;
    ckpt_begin(t, "pieces");
    rw_tensor *x = piece(l, f, dtype, 0);
    x = l->x[0] = joined(l, f, x, piece(l, f, dtype, 1));
    l->x[1] = joined(l, f, x, piece(l, f, dtype, 2));
    ckpt_end(t);
    ckpt_begin(t, "conv");
    l->y = rw_tanh(t, convolution(l, f, dtype));
    ckpt_end(t);
}

static struct layer layer_open(const struct form *f, rw_dtype dtype, int threads, const char *policy)
{
    struct layer l = { .b = fixture_open(21, threads) };
    cr_assert_eq(ckpt_set_policy(l.b.t, policy), RW_OK, "%s", rw_error_message(l.b.ctx));
    record(&l, f, dtype);
    return l;
}

static rw_tensor *loss_of(struct layer *l)
{
    return rw_sum(l->b.t, rw_mul(l->b.t, l->y, l->y), RW_ALL_AXES, false);
}

/* Number of inputs that the last convolution reads. */
static int64_t pieces_read(const rw_tape *t)
{
    for (size_t i = t->n_nodes; i-- > 0;)
        if (!strcmp(t->ctx->ops[t->nodes[i].op]->name, "conv2d"))
            return ((const struct rw_conv_attrs *)(const void *)(t->attrs + t->nodes[i].attrs))->more + 1;
    return 0;
}

static unsigned char *with(unsigned char *all, size_t *n, struct layer *l, rw_tensor *x)
{
    const size_t bytes = rw_tensor_bytes(x);
    all = realloc(all, *n + bytes + 1);
    cr_assert_eq(rw_read(l->b.t, x, all + *n, bytes), RW_OK, "%s", rw_error_message(l->b.ctx));
    *n += bytes;
    return all;
}

/* The result, all gradients, and those of the concatenations themselves. */
static unsigned char *bytes_of(const struct form *f, rw_dtype dtype, int threads, const char *policy, size_t *ret)
{
    struct layer l = layer_open(f, dtype, threads, policy);
    cr_assert_eq(pieces_read(l.b.t), f->whole ? 1 : PIECES);
    for (int i = 0; i < 2; i++) rw_require_grad(l.b.t, l.x[i]);
    rw_require_grad(l.b.t, l.y);
    cr_assert_eq(rw_backward(l.b.t, loss_of(&l)), RW_OK, "%s, %s", policy, rw_error_message(l.b.ctx));
    unsigned char *all = all_gradients(l.b.ctx, ret);
    for (int i = 0; i < 2; i++) all = with(all, ret, &l, rw_gradient(l.x[i]));
    all = with(all, ret, &l, rw_gradient(l.y)); /* twice y */
    fixture_close(&l.b);
    return all;
}

/* Compared with the whole in one thread. */
static void has_the_same_bytes(const struct form *form, size_t i, rw_dtype dtype, const char *const *policies, size_t n)
{
    struct form f = *form;
    size_t bytes, more;
    f.whole = true;
    unsigned char *const want = bytes_of(&f, dtype, 1, "none", &bytes);
    f.whole = false;
    for (size_t p = 0; p < n; p++) {
        const int threads = test_device() == RW_DEVICE_CPU ? (int)p % 8 + 1 : 1;
        unsigned char *const got = bytes_of(&f, dtype, threads, policies[p], &more);
        cr_assert_eq(bytes, more);
        cr_expect_eq(first_difference(want, got, bytes), -1, "form %zu, %s, %s, %d threads", i, rw_dtype_name(dtype),
                     policies[p], threads);
        free(got);
    }
    free(want);
}

Test(ops_virtual_concat_conv, a_convolution_of_inputs_has_the_bytes_of_the_concatenation)
{
    static const char *const policies[] = { "none",           "full", "uniform:2", "discard:conv", "ops:tanh",
                                            "offload:pieces", "none", "none" };
    const size_t n = test_device() == RW_DEVICE_CPU ? 8 : getenv("REWIND_TEST_LARGE") ? 4 : 2;
    for (size_t i = 0; i < FORMS; i++)
        for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
            if (forms[i].lowered && types[d] != RW_F32) continue;
            const char *const two[] = { policies[0], policies[1 + (i + d) % 3] }; /* simulated: each in turn */
            has_the_same_bytes(&forms[i], i, types[d], n > 2 ? policies : two, n);
        }
}

/* Their dw is computed in strips of 16 channels, some of which span two inputs. */
Test(ops_virtual_concat_conv, a_large_one_by_code_for_older_processors, .timeout = 900)
{
    static const char *const policies[] = { "none", "full", "none" };
    static const struct form large = { 2, 20, 17, { 80, 60, 36 }, 512, 3, 1, 1, .bias = true };
    BY_CODE_FOR_AVX2();
    has_the_same_bytes(&large, FORMS, RW_F32, policies, 3);
}

/* The gradient of an earlier step exists, to which the second adds. */
Test(ops_virtual_concat_conv, a_second_step_adds_to_the_weights_gradient)
{
    const size_t every = test_device() == RW_DEVICE_CPU ? 1 : 3;
    for (size_t i = 0; i < FORMS; i += every)
        for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
            unsigned char *all[2];
            size_t n = 0;
            for (int whole = 0; whole < 2; whole++) {
                struct form f = forms[i];
                f.whole = whole;
                struct layer l = layer_open(&f, types[d], 2, "full");
                for (int step = 0; step < 3; step++) {
                    cr_assert_eq(rw_backward(l.b.t, loss_of(&l)), RW_OK, "%s", rw_error_message(l.b.ctx));
                    rw_tape_reset(l.b.t);
                    if (step < 2) record(&l, &f, types[d]);
                }
                all[whole] = all_gradients(l.b.ctx, &n);
                fixture_close(&l.b);
            }
            cr_expect_eq(first_difference(all[0], all[1], n), -1, "form %zu, %s", i, rw_dtype_name(types[d]));
            free(all[0]), free(all[1]);
        }
}

Test(ops_virtual_concat_conv, verification)
{
    for (size_t i = 0; i < FORMS; i++) {
        struct layer l = layer_open(&forms[i], RW_F32, 2, "full");
        cr_expect_eq(ckpt_verify(l.b.t, loss_of(&l), NULL), RW_OK, "form %zu: %s", i, rw_error_message(l.b.ctx));
        fixture_close(&l.b);
    }
}

/* The gradient with respect to the first input and the weight of the squares of the gradients of the whole, an input
   and the weight. */
static double *again(const struct form *form, bool whole, size_t *ret)
{
    struct form f = *form;
    f.whole = whole;
    struct layer l = layer_open(&f, RW_F64, 1, "none");
    rw_tape *const t = l.b.t;
    rw_tensor *const w = rw_param_find(l.b.ctx, "w");
    rw_tensor *of[] = { l.x[1], l.leaf[1], w }, *dx[3], *sum = NULL;
    cr_assert_eq(rw_grad(t, loss_of(&l), of, 3, dx), RW_OK, "%s", rw_error_message(l.b.ctx));
    for (int i = 0; i < 3; i++) {
        rw_tensor *const more = rw_sum(t, rw_mul(t, dx[i], dx[i]), RW_ALL_AXES, false);
        sum = sum ? rw_add(t, sum, more) : more;
    }
    cr_assert_eq(rw_backward(t, sum), RW_OK, "%s", rw_error_message(l.b.ctx));
    size_t n = 0;
    unsigned char *all = with(NULL, &n, &l, rw_gradient(l.leaf[0]));
    all = with(all, &n, &l, rw_gradient(w));
    *ret = n / sizeof(double);
    fixture_close(&l.b);
    return (double *)(void *)all;
}

Test(ops_virtual_concat_conv, second_gradients)
{
    for (size_t i = 0; i < FORMS; i += 2) {
        size_t n;
        double *const want = again(&forms[i], true, &n), *const got = again(&forms[i], false, &n);
        double most = 0;
        for (size_t k = 0; k < n; k++) {
            const double bound = 1e-9 * fmax(1, fabs(want[k]));
            cr_expect_float_eq(got[k], want[k], bound, "form %zu, element %zu: %g, not %g", i, k, got[k], want[k]);
            most = fmax(most, fabs(want[k]));
        }
        cr_expect_gt(most, 1e-3);
        free(want), free(got);
    }
}

/*
 * Upsampling: the result of a relu, which relu keeps, is concatenated with pixels from a lower resolution, which no
 * other op keeps. Kept are these two, and the result of the convolution's relu; the whole is not, whichever region the
 * convolution is in.
 */
static size_t kept(const char *policy, bool whole, rw_dtype dtype)
{
    enum { N = 2, SIDE = 8, C = 32 }; /* buffers are multiples of 512 bytes */
    struct fixture b = fixture_open(3, 1);
    rw_memory memory;
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const given = param(b.ctx, "x", dtype, RW_SHAPE(N, SIDE, SIDE, C));
    rw_tensor *const deep = param(b.ctx, "deep", dtype, RW_SHAPE(N, SIDE / 2, SIDE / 2, C));
    rw_tensor *const up = param(b.ctx, "up", dtype, RW_SHAPE(C, C, 2, 2));
    rw_tensor *const w = param(b.ctx, "w", dtype, RW_SHAPE(C, 2 * C, 3, 3));
    const int last[] = { 0, 3, 1, 2 };
    rw_tensor *const skip = rw_relu(b.t, rw_permute(b.t, given, last));
    rw_tensor *const wider = rw_conv_transpose2d(b.t, rw_permute(b.t, deep, last), up, RW_NONE,
                                                 &(rw_conv2d_params){ .stride = { 2, 2 } });
    rw_tensor *const x = rw_concat(b.t, (rw_tensor *const[]){ skip, wider }, 2, 1);
    if (whole) ckpt_name(b.t, x, "whole");
    ckpt_begin(b.t, "conv");
    rw_tensor *const y = rw_relu(b.t, rw_conv2d(b.t, x, w, RW_NONE, &(rw_conv2d_params){ .padding = { 1, 1 } }));
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
    fixture_close(&b);
    return memory.kept / (N * SIDE * SIDE * C * rw_dtype_size(dtype));
}

Test(ops_virtual_concat_conv, the_concatenation_inputs_are_kept)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        cr_expect_eq(kept("none", true, types[d]), 4);
        cr_expect_eq(kept("none", false, types[d]), 3);
        cr_expect_eq(kept("full", true, types[d]), 3);
        cr_expect_eq(kept("full", false, types[d]), 2);
    }
}

/* A residual block after an upsampling: the whole is read by a group norm, and in the shortcut by a convolution of one
   tap. Neither keeps it. */
static size_t kept_by_block(bool whole, rw_dtype dtype)
{
    enum { N = 2, SIDE = 8, C = 32 };
    struct fixture b = fixture_open(3, 1);
    rw_memory memory;
    rw_tensor *piece[2];
    for (int i = 0; i < 2; i++) {
        rw_tensor *const given = param(b.ctx, i ? "b" : "a", dtype, RW_SHAPE(N, SIDE, SIDE, C));
        rw_tensor *const x = rw_permute(b.t, given, (const int[]){ 0, 3, 1, 2 });
        piece[i] = i ? rw_scale(b.t, x, 2) : rw_relu(b.t, x); /* one that is kept anyway, and one that is not */
    }
    rw_tensor *const x = rw_concat(b.t, piece, 2, 1), *const w = param(b.ctx, "w", dtype, RW_SHAPE(C, 2 * C, 1, 1));
    if (whole) ckpt_name(b.t, x, "whole");
    rw_tensor *const scale = param(b.ctx, "scale", dtype, RW_SHAPE(2 * C));
    rw_tensor *const bias = param(b.ctx, "bias", dtype, RW_SHAPE(2 * C));
    rw_tensor *const past = rw_conv2d(b.t, x, w, RW_NONE, NULL);
    rw_tensor *const h = rw_relu(b.t, rw_group_norm(b.t, x, 8, scale, bias, 1e-5));
    rw_tensor *const y = rw_add(b.t, past, rw_conv2d(b.t, h, w, RW_NONE, NULL));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
    fixture_close(&b);
    return memory.kept / (N * SIDE * SIDE * C * rw_dtype_size(dtype)); /* statistics are smaller than one unit */
}

Test(ops_virtual_concat_conv, a_norm_and_a_convolution_keep_the_inputs_once)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        cr_expect_eq(kept_by_block(true, types[d]), 1 + 2 + 2);
        cr_expect_eq(kept_by_block(false, types[d]), 1 + 1 + 2);
    }
}

/* However many threads there are, the parts that they concatenate are no more than the whole: the peak is no higher. */
Test(ops_virtual_concat_conv, the_peak_is_no_higher)
{
    static const struct form many = { 16, 24, 24, { 16, 8, 8 }, 16, 3, 1, 1 };
    for (int threads = 1; threads <= 16; threads *= 4) {
        size_t peak[2];
        for (int whole = 0; whole < 2; whole++) {
            struct form f = many;
            rw_memory memory;
            f.whole = whole;
            struct layer l = layer_open(&f, RW_F32, threads, "none");
            cr_assert_eq(rw_backward(l.b.t, loss_of(&l)), RW_OK, "%s", rw_error_message(l.b.ctx));
            cr_assert_eq(rw_memory_stats(l.b.ctx, &memory), RW_OK);
            peak[whole] = memory.predicted_peak;
            fixture_close(&l.b);
        }
        cr_expect_leq(peak[0], peak[1], "%d threads: %zu bytes, not %zu", threads, peak[0], peak[1]);
    }
}

/* ---- when the whole is read ---- */

static int64_t read_of(rw_tensor *join(rw_tape *t, rw_tensor **x))
{
    struct fixture b = fixture_open(8, 1);
    rw_tensor *x[2];
    for (int i = 0; i < 2; i++)
        x[i] = rw_tanh(b.t, rw_permute(b.t, param(b.ctx, i ? "b" : "a", RW_F32, RW_SHAPE(2, 4, 4, 4)),
                                       (const int[]){ 0, 3, 1, 2 }));
    rw_tensor *const whole = join(b.t, x);
    rw_tensor *const w = param(b.ctx, "w", RW_F32, RW_SHAPE(3, rw_tensor_shape(whole).dim[1], 1, 1));
    cr_assert_not_null(rw_conv2d(b.t, whole, w, RW_NONE, NULL), "%s", rw_error_message(b.ctx));
    const int64_t n = pieces_read(b.t);
    fixture_close(&b);
    return n;
}

static rw_tensor *channels(rw_tape *t, rw_tensor **x)
{
    return rw_concat(t, x, 2, 1);
}

static rw_tensor *rows(rw_tape *t, rw_tensor **x)
{
    return rw_concat(t, x, 2, 2);
}

static rw_tensor *named(rw_tape *t, rw_tensor **x)
{
    return ckpt_name(t, channels(t, x), "kept");
}

static rw_tensor *saved(rw_tape *t, rw_tensor **x)
{
    return ckpt_keep(t, channels(t, x));
}

static rw_tensor *moved(rw_tape *t, rw_tensor **x)
{
    return ckpt_offload(t, channels(t, x));
}

static rw_tensor *transposed(rw_tape *t, rw_tensor **x)
{
    for (int i = 0; i < 2; i++) x[i] = rw_contiguous(t, x[i]);
    return channels(t, x);
}

Test(ops_virtual_concat_conv, a_concatenation_read_by_its_inputs)
{
    cr_expect_eq(read_of(channels), 2);
    cr_expect_eq(read_of(rows), 1);
    cr_expect_eq(read_of(named), 1);
    cr_expect_eq(read_of(saved), 1);
    cr_expect_eq(read_of(moved), 1);
    cr_expect_eq(read_of(transposed), 1);
}

/* A weight with the wrong number of channels is refused in terms of the caller's arguments, and leaves nothing. */
Test(ops_virtual_concat_conv, a_mistake_leaves_nothing)
{
    struct fixture b = fixture_open(8, 1);
    rw_tensor *x[2];
    for (int i = 0; i < 2; i++)
        x[i] = rw_tanh(b.t, rw_permute(b.t, param(b.ctx, i ? "b" : "a", RW_F32, RW_SHAPE(2, 4, 4, 4)),
                                       (const int[]){ 0, 3, 1, 2 }));
    rw_tensor *const whole = channels(b.t, x), *const w = param(b.ctx, "w", RW_F32, RW_SHAPE(3, 4, 1, 1));
    const size_t nodes = b.t->n_nodes;
    cr_expect_null(rw_conv2d(b.t, whole, w, RW_NONE, NULL));
    cr_expect_not_null(strstr(rw_error_message(b.ctx),
            "x: expected 4 channels, as weight has 4 in each of 1 groups, got 8"), "%s",
                       rw_error_message(b.ctx));
    cr_expect_eq(b.t->n_nodes, nodes);
    fixture_close(&b);
}
