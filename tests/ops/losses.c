/*
 * Losses with options, and cross-entropy of a linear layer by chunks: at most one chunk's logits in memory,
 * bit-identical under every policy and for every number of threads, and the header's promises about edge cases.
 * accuracy.c, golden.c and gradcheck.c compare values and gradients with derived bounds.
 */
#include "support/compare.h"
#include "record/tape_mark.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct layer {
    int64_t rows, width, classes, chunk;
};

static int32_t target_of(int64_t i, int64_t classes)
{
    return i % 7 == 3 ? -100 : (int32_t)(i * 31 % classes);
}

static rw_tensor *targets(rw_tape *t, struct layer l)
{
    int32_t *const data = malloc((size_t)(l.rows + 1) * sizeof *data);
    for (int64_t i = 0; i < l.rows; i++) data[i] = target_of(i, l.classes);
    rw_tensor *const y = rw_input(t, RW_I32, RW_SHAPE(l.rows), data, (size_t)l.rows * sizeof *data);
    free(data);
    return y;
}

static rw_tensor *parameter(struct fixture *b, const char *name, rw_dtype dtype, int64_t rows, int64_t width)
{
    rw_tensor *const p = rw_param(b->ctx, name, dtype, RW_SHAPE(rows, width));
    cr_assert_eq(rw_init_normal(p, 0, 0.5), RW_OK);
    return p;
}

/* ---- memory ---- */

static size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + 255) / 256 * 256;
}

/* Peak memory of backward in a step x = 2 e, loss(x), where e and the weight are parameters. */
static rw_memory step(rw_dtype dtype, struct layer l, bool by_chunks, const char *policy)
{
    struct fixture b = fixture_open(1, 2);
    rw_memory m;
    rw_tensor *const e = parameter(&b, "e", dtype, l.rows, l.width);
    rw_tensor *const w = parameter(&b, "w", dtype, l.classes, l.width);
    rw_tensor *const x = rw_scale(b.t, e, 2), *const y = targets(b.t, l);
    rw_tensor *const loss = by_chunks ? rw_linear_cross_entropy(b.t, x, w, y,
                                                                &(rw_cross_entropy_params){ .chunk = l.chunk })
                                      : rw_cross_entropy(b.t, rw_linear(b.t, x, w, RW_NONE), y);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory_stats(b.ctx, &m);
    fixture_close(&b);
    return m;
}

/*
 * The peak is reached when the last whole chunk's logits are live. It consists of x, the gradients of x of the chunks
 * before, two numbers per row, the gradients of the chunk's rows, and a few scalars, at most SCALARS bytes. No part of
 * it grows with rows times classes.
 */
#define SCALARS (12 * 256)

static size_t formula(rw_dtype dtype, struct layer l)
{
    const int64_t size = (int64_t)rw_dtype_size(dtype), before = l.rows / l.chunk - 1;
    return aligned(l.rows * l.width * size) + (size_t)before * aligned(l.chunk * l.width * size) +
           aligned(l.chunk * l.classes * size) + aligned(l.rows * 2 * 4) + aligned(l.chunk * 4);
}

Test(losses, one_chunk_of_logits_is_all_that_is_in_memory)
{
    static const struct layer layers[] = { { 512, 16, 256, 64 }, { 256, 8, 250, 128 }, { 130, 16, 500, 32 } };
    for (size_t i = 0; i < 2 * sizeof layers / sizeof *layers; i++) {
        const rw_dtype dtype = i % 2 ? RW_BF16 : RW_F32;
        const struct layer l = layers[i / 2];
        const rw_memory m = step(dtype, l, true, "none"), whole = step(dtype, l, false, "none");
        cr_expect_eq(m.measured_peak, m.predicted_peak);
        const size_t bytes = formula(dtype, l);
        cr_expect_geq(m.measured_peak, bytes, "%zu, formula %zu", m.measured_peak, bytes);
        cr_expect_leq(m.measured_peak, bytes + SCALARS + m.workspace, "%zu, %zu of workspace, formula %zu",
                      m.measured_peak, m.workspace, bytes);
        cr_expect_geq(whole.measured_peak, (size_t)(l.rows * l.classes) * rw_dtype_size(dtype));
    }
}

Test(losses, no_policy_holds_more_logits)
{
    static const char *const policies[] = { "none", "full", "uniform:1", "ops:scale", "ops:linear" };
    const struct layer l = { 512, 16, 256, 64 };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        const rw_memory m = step(RW_F32, l, true, policies[i]);
        cr_expect_leq(m.measured_peak, formula(RW_F32, l) + SCALARS + m.workspace, "%s: %zu",
                      policies[i], m.measured_peak);
    }
}

/* ---- bytes ---- */

enum { LAYERS = 2, ROWS = 90, WIDTH = 24, CLASSES = 130 };

/* Loss and gradients of a small model whose embedding table is also its last layer's weight. */
static unsigned char *run(rw_dtype dtype, const char *policy, int threads, bool verify, size_t *ret_bytes)
{
    const struct layer l = { ROWS, WIDTH, CLASSES, 32 };
    struct fixture b = fixture_open(7, threads);
    rw_tensor *const table = parameter(&b, "table", dtype, CLASSES, WIDTH);
    rw_tensor *const w = parameter(&b, "w", dtype, WIDTH, WIDTH);
    int32_t tokens[ROWS];
    for (int i = 0; i < ROWS; i++) tokens[i] = i * 5 % CLASSES;
    rw_tensor *x = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(ROWS), tokens, sizeof tokens));
    for (int k = 0; k < LAYERS; k++) {
        ckpt_begin(b.t, "block");
        rw_tensor *const h = rw_elu(b.t, rw_linear(b.t, x, w, RW_NONE), 1);
        x = rw_add(b.t, x, rw_dropout(b.t, h, 0.1));
        ckpt_end(b.t);
    }
    ckpt_begin(b.t, "head");
    rw_tensor *const loss = rw_linear_cross_entropy(b.t, x, table, targets(b.t, l),
                                                    &(rw_cross_entropy_params){ .label_smoothing = 0.1,
                                                                                .z_loss = 1e-3, .chunk = l.chunk });
    ckpt_end(b.t);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    if (verify) cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    unsigned char *all = all_gradients(b.ctx, ret_bytes);
    const size_t bytes = rw_tensor_bytes(loss);
    all = realloc(all, *ret_bytes + bytes);
    cr_assert_eq(rw_read(b.t, loss, all + *ret_bytes, bytes), RW_OK);
    *ret_bytes += bytes;
    fixture_close(&b);
    return all;
}

Test(losses, same_bytes_with_recompute_and_for_every_number_of_threads)
{
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    static const char *const policies[] = { "full", "uniform:1", "ops:linear_cross_entropy", "ops:dropout" };
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        size_t n, m;
        unsigned char *const want = run(types[d], "none", 1, false, &n);
        for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
            unsigned char *const got = run(types[d], policies[i], 2 + (int)i, i < 2, &m);
            cr_assert_eq(m, n);
            cr_expect_eq(first_difference(got, want, n), -1, "%s, %s", rw_dtype_name(types[d]), policies[i]);
            free(got);
        }
        free(want);
    }
}

/* Compared with the product of all rows at once, with the table's other gradient added: equal except for roundings. */
Test(losses, chunks_add_up_to_the_whole)
{
    struct layer l = { 61, 12, 37, 8 };
    double value[2], *grads[2] = { NULL, NULL };
    for (int k = 0; k < 2; k++) {
        struct fixture b = fixture_open(3, 1);
        rw_tensor *const table = parameter(&b, "table", RW_F64, l.classes, l.width);
        int32_t tokens[61];
        for (int i = 0; i < 61; i++) tokens[i] = i * 5 % 37;
        rw_tensor *const x = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(61), tokens, sizeof tokens));
        const rw_cross_entropy_params p = { .label_smoothing = 0.25, .z_loss = 0.5, .chunk = k ? l.chunk : 0 };
        rw_tensor *const loss = k ? rw_linear_cross_entropy(b.t, x, table, targets(b.t, l), &p)
                                  : rw_cross_entropy_with(b.t, rw_linear(b.t, x, table, RW_NONE), targets(b.t, l),
                                                          RW_NONE, &p);
        for (int micro = 0; micro < 2; micro++) /* added to what the gradient holds */
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        value[k] = rw_item(b.t, loss);
        grads[k] = malloc(37 * 12 * sizeof(double));
        cr_assert_eq(rw_read(b.t, rw_gradient(table), grads[k], 37 * 12 * sizeof(double)), RW_OK);
        fixture_close(&b);
    }
    /* 61 rows of 37 classes and 12 products: well within 400 roundings of terms that are at most 40. */
    cr_assert_float_eq(value[0], value[1], 400 * 0x1p-53 * 40);
    for (int i = 0; i < 37 * 12; i++) cr_assert_float_eq(grads[0][i], grads[1][i], 400 * 0x1p-53 * 40, "%d", i);
    free(grads[0]), free(grads[1]);
}

/* ---- logits far from 0 ---- */

enum { FAR_ROWS = 7, FAR_CLASSES = 77, FAR_WIDTH = 5 };

enum far { FAR_ALONE, FAR_JOINT, FAR_OPTIONS, FAR_CHUNKS, FAR_AGAIN, FAR_KINDS };

/* Small integers or quarters: with their common offset they are exact in float32, including products. */
static rw_tensor *quarters(struct fixture *b, rw_dtype dtype, rw_shape s, int most, double by)
{
    const int64_t n = rw_shape_numel(s);
    void *const x = malloc((size_t)n * 8);
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(x, dtype, i, by * (double)(i * 29 % (2 * most + 1) - most)));
    rw_tensor *const y = rw_require_grad(b->t,
                                         rw_input(b->t, dtype, s, x, (size_t)n * rw_dtype_size(dtype)));
    free(x);
    return y;
}

/* Logits with a common `offset`, and the values for which gradients are taken. */
static rw_tensor *far_loss(struct fixture *b, rw_dtype dtype, enum far kind, double offset, rw_tensor **ret_x)
{
    const struct layer l = { FAR_ROWS, FAR_WIDTH, FAR_CLASSES, 3 };
    rw_tensor *const w = quarters(b, dtype, RW_SHAPE(l.classes, l.width), 40, 0.25);
    rw_tensor *const bias = rw_full(b->t, dtype, RW_SHAPE(l.classes), offset);
    const rw_cross_entropy_params options = { .label_smoothing = 0.1, .bias = bias, .chunk = l.chunk };
    const rw_cross_entropy_params smooth = { .label_smoothing = 0.1 };
    *ret_x = quarters(b, dtype, RW_SHAPE(l.rows, l.width), 2, 1);
    if (kind == FAR_CHUNKS) return rw_linear_cross_entropy(b->t, *ret_x, w, targets(b->t, l), &options);
    rw_tensor *const logits = rw_linear(b->t, *ret_x, w, bias);
    return kind == FAR_OPTIONS ? rw_cross_entropy_with(b->t, logits, targets(b->t, l), RW_NONE, &smooth)
                               : rw_cross_entropy(b->t, logits, targets(b->t, l));
}

/* Loss, gradient of x and, for FAR_AGAIN, the gradient of its square. Returns their bytes. */
static size_t far_bytes(rw_dtype dtype, enum far kind, double offset, unsigned char *ret)
{
    struct fixture b = fixture_open(1, 2);
    const size_t size = rw_dtype_size(dtype), bytes = FAR_ROWS * FAR_WIDTH * size;
    rw_tensor *x, *g, *again;
    rw_tensor *const loss = far_loss(&b, dtype, kind, offset, &x);
    if (kind == FAR_ALONE) cr_assert_eq(rw_read(b.t, loss, ret, size), RW_OK, "%s", rw_error_message(b.ctx));
    if (kind == FAR_AGAIN) {
        cr_assert_eq(rw_grad(b.t, loss, &x, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tensor *const square = rw_sum(b.t, rw_mul(b.t, g, g), RW_ALL_AXES, false);
        cr_assert_eq(rw_grad(b.t, square, &x, 1, &again), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, again, ret + size + bytes, bytes), RW_OK);
    } else {
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        g = rw_gradient(x);
    }
    cr_assert_eq(rw_read(b.t, loss, ret, size), RW_OK);
    cr_assert_eq(rw_read(b.t, g, ret + size, bytes), RW_OK);
    fixture_close(&b);
    return size + bytes * (1 + (kind == FAR_AGAIN));
}

Test(losses, what_all_logits_have_in_common_changes_no_byte)
{
    static unsigned char got[8 * (1 + 2 * FAR_ROWS * FAR_WIDTH)], want[sizeof got];
    for (enum far kind = 0; kind < FAR_KINDS; kind++)
        for (int d = 0; d < 2; d++) {
            const rw_dtype dtype = d ? RW_F64 : RW_F32;
            const double offset = d ? 0x1p40 : 0x1p20;
            const size_t n = far_bytes(dtype, kind, 0, want);
            for (int sign = -1; sign < 2; sign += 2) {
                cr_assert_eq(far_bytes(dtype, kind, sign * offset, got), n);
                cr_expect_eq(first_difference(got, want, n), -1, "%s, kind %d, sign %d", rw_dtype_name(dtype),
                             (int)kind, sign);
            }
        }
}

/* ---- edge cases ---- */

/* ---- loss and gradient in one pass: if backward follows the loss, one kernel reads the logits ---- */

struct gradient {
    unsigned char loss[8], *dx;
    size_t bytes;
};

/* The gradient of cross-entropy of 2 x. first: the loss is read first, so that backward runs separately. */
static struct gradient gradient_of(rw_dtype dtype, struct layer l, bool first, double by, int threads)
{
    struct fixture b = fixture_open(1, threads);
    if (rw_context_device(b.ctx) == RW_DEVICE_CUDA && l.rows > 9) l.rows = 9; /* a block each, simulated */
    rw_tensor *const x = parameter(&b, "x", dtype, l.rows, l.classes);
    struct gradient g = { .bytes = (size_t)(l.rows * l.classes) * rw_dtype_size(rw_tensor_dtype(rw_gradient(x))) };
    rw_tensor *const loss = rw_cross_entropy(b.t, rw_scale(b.t, x, 2), targets(b.t, l));
    const size_t size = rw_dtype_size(rw_tensor_dtype(loss));
    if (first) cr_assert_eq(rw_read(b.t, loss, g.loss, size), RW_OK, "%s", rw_error_message(b.ctx));
    const float narrow = (float)by;
    rw_tensor *const dy = by == 1 ? NULL
                                  : rw_input(b.t, rw_tensor_dtype(loss), RW_SCALAR,
                                             size == 8 ? (const void *)&by : (const void *)&narrow, size);
    cr_assert_eq(dy ? rw_backward_from(b.t, &loss, &dy, 1) : rw_backward(b.t, loss), RW_OK, "%s",
                 rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, loss, g.loss, size), RW_OK);
    g.dx = malloc(g.bytes + 1);
    cr_assert_eq(rw_read(NULL, rw_gradient(x), g.dx, g.bytes), RW_OK);
    fixture_close(&b);
    return g;
}

/* The gradient of cross-entropy of x and of a sum of its squares, whose backward reads x later: no gradient may
   overwrite x. */
static struct gradient gradient_beside(rw_dtype dtype, bool first)
{
    struct fixture b = fixture_open(1, 2);
    const struct layer l = { 6, 0, 77, 0 };
    rw_tensor *const w = parameter(&b, "x", dtype, l.rows, l.classes), *const x = rw_scale(b.t, w, 2);
    rw_tensor *const squares = rw_sum(b.t, rw_mul(b.t, x, x), RW_AXES(0, 1), false);
    rw_tensor *const y[] = { squares, rw_cross_entropy(b.t, x, targets(b.t, l)) };
    struct gradient g = { .bytes = (size_t)(l.rows * l.classes) * rw_dtype_size(rw_tensor_dtype(rw_gradient(w))) };
    if (first) cr_assert_eq(rw_forward(b.t, y, 2), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_backward_from(b.t, y, NULL, 2), RW_OK, "%s", rw_error_message(b.ctx));
    g.dx = malloc(g.bytes);
    cr_assert_eq(rw_read(NULL, rw_gradient(w), g.dx, g.bytes), RW_OK);
    fixture_close(&b);
    return g;
}

Test(losses, a_gradient_beside_logits_that_are_read_again)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16 };
    for (int d = 0; d < 2; d++) {
        const struct gradient g[] = { gradient_beside(types[d], true), gradient_beside(types[d], false) };
        cr_expect_eq(memcmp(g[0].dx, g[1].dx, g[0].bytes), 0, "%s", rw_dtype_name(types[d]));
        free(g[0].dx), free(g[1].dx);
    }
}

/* Rows that start at any position of a pack, that are shorter than one, longer than 1024, and too long for
   registers. */
Test(losses, a_gradient_with_its_loss_has_the_bytes_of_a_gradient_by_itself)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    static const struct layer layers[] = { { 5, 0, 3, 0 }, { 9, 0, 1001, 0 }, { 1100, 0, 17, 0 }, { 3, 0, 20011, 0 } };
    for (size_t d = 0; d < 4; d++)
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
            const double by = i == 1 ? 0.375 : 1;
            struct gradient g[] = { gradient_of(types[d], layers[i], true, by, 1),
                                    gradient_of(types[d], layers[i], false, by, 1),
                                    gradient_of(types[d], layers[i], false, by, 3) };
            for (int k = 1; k < 3; k++) {
                cr_expect_eq(memcmp(g[0].loss, g[k].loss, 8), 0, "%s, %zu: the loss", rw_dtype_name(types[d]), i);
                cr_expect_eq(memcmp(g[0].dx, g[k].dx, g[0].bytes), 0, "%s, %zu", rw_dtype_name(types[d]), i);
            }
            for (int k = 0; k < 3; k++) free(g[k].dx);
        }
}

Test(losses, a_batch_without_a_target_has_no_loss_and_no_gradient)
{
    for (int k = 0; k < 3; k++) {
        struct fixture b = fixture_open(1, 1);
        const int32_t ignored[] = { -1, -1, -1 };
        float g[12], loss_value = 1;
        rw_tensor *const w = parameter(&b, "w", RW_F32, 4, 3), *const e = parameter(&b, "e", RW_F32, 3, 3);
        rw_tensor *const y = rw_input(b.t, RW_I32, RW_SHAPE(3), ignored, sizeof ignored);
        const rw_cross_entropy_params p = { .label_smoothing = 0.1, .z_loss = 1,
                                            .has_ignore_index = true, .ignore_index = -1,
                                            .reduction = k == 2 ? RW_REDUCTION_SUM : RW_REDUCTION_MEAN };
        rw_tensor *const loss = k ? rw_linear_cross_entropy(b.t, e, w, y, &p)
                                  : rw_cross_entropy_with(b.t, rw_linear(b.t, e, w, RW_NONE), y, RW_NONE, &p);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, loss, &loss_value, sizeof loss_value), RW_OK);
        cr_assert_eq(rw_read(b.t, rw_gradient(w), g, sizeof g), RW_OK);
        cr_expect_eq(loss_value, 0);
        for (int i = 0; i < 12; i++) cr_expect_eq(g[i], 0);
        fixture_close(&b);
    }
}

Test(losses, a_target_beside_the_classes_is_an_error_when_it_runs)
{
    for (int k = 0; k < 4; k++) {
        struct fixture b = fixture_open(1, 1);
        const int32_t target[] = { 0, k % 2 ? 4 : -7, 1 };
        rw_tensor *const w = parameter(&b, "w", RW_F32, 4, 3), *const e = parameter(&b, "e", RW_F32, 3, 3);
        rw_tensor *const y = rw_input(b.t, RW_I32, RW_SHAPE(3), target, sizeof target);
        rw_tensor *const loss = k / 2 ? rw_linear_cross_entropy(b.t, e, w, y, NULL)
                                      : rw_cross_entropy_with(b.t, rw_linear(b.t, e, w, RW_NONE), y, RW_NONE, NULL);
        cr_assert(loss);
        cr_expect_eq(rw_backward(b.t, loss), RW_ERR_ARGUMENT);
        fixture_close(&b);
    }
}

Test(losses, reductions_give_the_shapes_of_their_names)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_input(b.t, RW_BF16, RW_SHAPE(2, 3, 5), NULL, 0), *const w = parameter(&b, "w", RW_BF16, 7,
                                                                                                  5);
    rw_tensor *const y = rw_input(b.t, RW_I32, RW_SHAPE(2, 3), NULL, 0);
    for (int r = RW_REDUCTION_MEAN; r <= RW_REDUCTION_NONE; r++) {
        rw_cross_entropy_params p = { .reduction = (rw_reduction)r, .chunk = 2 };
        rw_tensor *const a = rw_linear_cross_entropy(b.t, x, w, y, &p);
        p.chunk = 0;
        rw_tensor *const c = rw_cross_entropy_with(b.t, rw_linear(b.t, x, w, RW_NONE), y, RW_NONE, &p);
        const rw_shape want = r == RW_REDUCTION_NONE ? RW_SHAPE(2, 3) : RW_SCALAR;
        cr_expect(rw_shape_equal(rw_tensor_shape(a), want) && rw_tensor_dtype(a) == RW_F32);
        cr_expect(rw_shape_equal(rw_tensor_shape(c), want) && rw_tensor_dtype(c) == RW_F32);
    }
    fixture_close(&b);
}

static void refuses(struct fixture *b, rw_tensor *loss, rw_status status, const char *text)
{
    cr_expect_null(loss, "%s", text);
    cr_expect(rw_error_status(b->ctx) == status && message_has(rw_error_message(b->ctx), text),
              "\"%s\" is not in: %s", text, rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

Test(losses, what_probabilities_and_options_of_the_last_layer_have_to_be)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *const t = b.t;
    rw_tensor *const x = rw_input(t, RW_F32, RW_SHAPE(3, 5), NULL, 0);
    rw_tensor *const y = rw_input(t, RW_F32, RW_SHAPE(3, 5), NULL, 0);
    rw_tensor *const w = rw_input(t, RW_F32, RW_SHAPE(7, 5), NULL, 0), *const v = rw_input(t, RW_F32, RW_SHAPE(5), NULL,
                                                                                           0);
    rw_tensor *const target = rw_input(t, RW_I32, RW_SHAPE(3), NULL, 0);
    rw_tensor *const u = rw_input(t, RW_BF16, RW_SHAPE(7), NULL, 0);
    rw_tensor *const flat = rw_input(t, RW_F32, RW_SHAPE(3), NULL, 0);
    const size_t n = rw_tape_mark(t).nodes;
#define SOFT(x, y, w, ...) rw_cross_entropy_with(t, x, y, w, &(rw_cross_entropy_params){ __VA_ARGS__ })
#define LINEAR(...) rw_linear_cross_entropy(t, x, w, target, &(rw_cross_entropy_params){ __VA_ARGS__ })
    refuses(&b, SOFT(x, flat, RW_NONE, .z_loss = 0), RW_ERR_SHAPE, "(target): expected shape [3, 5], got [3]");
    refuses(&b, SOFT(target, flat, RW_NONE, .z_loss = 0), RW_ERR_DTYPE,
            "(logits): expected a floating-point type, got i32");
    refuses(&b, SOFT(x, y, RW_NONE, .has_ignore_index = true), RW_ERR_ARGUMENT,
            "(has_ignore_index): expected false");
    refuses(&b, SOFT(x, y, flat, .z_loss = 0), RW_ERR_SHAPE, "(weight): expected shape [5], got [3]");
    refuses(&b, SOFT(x, y, RW_NONE, .label_smoothing = 1), RW_ERR_ARGUMENT,
            "(label_smoothing): expected a number in [0, 1), got 1");
    refuses(&b, LINEAR(.bias = v), RW_ERR_SHAPE, "(bias): expected shape [7], got [5]");
    refuses(&b, LINEAR(.class_weight = v), RW_ERR_SHAPE, "): expected shape [7], got [5]");
    refuses(&b, LINEAR(.bias = u), RW_ERR_DTYPE, "linear");
    refuses(&b, rw_mse_loss_with(t, x, y, (rw_reduction)3), RW_ERR_ARGUMENT,
            "mse_loss_with(reduction): expected RW_REDUCTION_MEAN (0) to RW_REDUCTION_NONE (2), got 3");
    cr_expect_eq(rw_tape_mark(t).nodes, n, "the tape has grown");
    rw_tensor *const none = rw_input(t, RW_F32, RW_SHAPE(0, 5), NULL, 0);
    float loss = 1;
    cr_assert_eq(rw_read(t, rw_cross_entropy_with(t, none, none, RW_NONE, NULL), &loss, sizeof loss), RW_OK);
    cr_expect_eq(loss, 0, "no rows: %g", loss);
    fixture_close(&b);
}

enum { PLAIN_ROWS = 5, PLAIN_CLASSES = 7, PLAIN_BYTES = (1 + PLAIN_ROWS * PLAIN_CLASSES) * 4 };

/* Bytes of the mean over rows and of the gradient of the logits; `is_with`: by rw_cross_entropy_with(). */
static void plain_bytes(const int32_t *target, bool is_with, const rw_cross_entropy_params *params, float *ret)
{
    struct fixture b = fixture_open(1, 1);
    float logits[PLAIN_ROWS * PLAIN_CLASSES];
    for (int i = 0; i < PLAIN_ROWS * PLAIN_CLASSES; i++) logits[i] = (float)(i * 29 % 31 - 15) / 7;
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(PLAIN_ROWS, PLAIN_CLASSES), logits,
                                                       sizeof logits));
    rw_tensor *const y = rw_input(b.t, RW_I32, RW_SHAPE(PLAIN_ROWS), target, PLAIN_ROWS * sizeof *target);
    rw_tensor *const loss = is_with ? rw_cross_entropy_with(b.t, x, y, RW_NONE, params) : rw_cross_entropy(b.t, x, y);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, loss, ret, sizeof *ret), RW_OK);
    cr_assert_eq(rw_read(b.t, rw_gradient(x), ret + 1, PLAIN_BYTES - sizeof *ret), RW_OK);
    fixture_close(&b);
}

/* Without weights and options other than the ignored target, the mean is rw_cross_entropy(), to the bit. */
Test(losses, an_ignored_target_alone_records_the_op_without_options)
{
    static const int32_t usual[] = { 0, 6, -100, 0, 3 }, with_0[] = { 0, 6, 2, 0, 3 };
    static const int32_t without_0[] = { -100, 6, 2, -100, 3 };
    const rw_cross_entropy_params none = { .chunk = 0 }, given = { .has_ignore_index = true, .ignore_index = -100 },
                                  zero = { .has_ignore_index = true };
    float want[PLAIN_BYTES / 4], got[PLAIN_BYTES / 4];
    plain_bytes(usual, false, NULL, want);
    const rw_cross_entropy_params *const same[] = { NULL, &none, &given };
    for (int i = 0; i < 3; i++) {
        plain_bytes(usual, true, same[i], got);
        cr_expect_eq(first_difference(got, want, PLAIN_BYTES), -1, "parameters %d", i);
    }
    plain_bytes(without_0, false, NULL, want);
    plain_bytes(with_0, true, &zero, got);
    cr_expect_eq(first_difference(got, want, PLAIN_BYTES), -1, "class 0 is ignored");
    plain_bytes(with_0, true, &none, got);
    cr_expect_neq(first_difference(got, want, PLAIN_BYTES), -1, "class 0 counts without has_ignore_index");
}

/* For probabilities as targets, the result of log_softmax and the smoothed targets are kept; not the logits, nor their
   products. */
Test(losses, what_is_kept_of_probabilities)
{
    for (int smoothed = 0; smoothed < 2; smoothed++) {
        struct fixture b = fixture_open(1, 1);
        ckpt_set_policy(b.t, "none");
        rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(64, 128));
        rw_tensor *const y = rw_input(b.t, RW_F32, RW_SHAPE(64, 128), NULL, 0);
        const rw_cross_entropy_params p = { .label_smoothing = smoothed ? 0.1 : 0 };
        rw_tensor *const loss = rw_cross_entropy_with(b.t, rw_scale(b.t, x, 2), y, RW_NONE, &p);
        rw_memory memory;
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
        cr_expect_eq(memory.kept, (size_t)(1 + smoothed) * 64 * 128 * 4, "%zu bytes", memory.kept);
        fixture_close(&b);
    }
}

/* Options of another loss are refused, not ignored. */
Test(losses, options_of_another_loss_are_refused_by_name)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *const t = b.t;
    rw_tensor *const x = rw_input(t, RW_F32, RW_SHAPE(2, 3), NULL, 0), *const v = rw_input(t, RW_F32, RW_SHAPE(3), NULL,
                                                                                           0);
    rw_tensor *const target = rw_input(t, RW_I32, RW_SHAPE(2), NULL, 0);
    const size_t n = rw_tape_mark(t).nodes;
#define NLL(...) rw_nll_loss(t, x, target, RW_NONE, &(rw_cross_entropy_params){ __VA_ARGS__ })
    refuses(&b, NLL(.class_weight = v), RW_ERR_ARGUMENT, "nll_loss(class_weight)");
    refuses(&b, NLL(.bias = v), RW_ERR_ARGUMENT, "nll_loss(bias)");
    refuses(&b, NLL(.chunk = 7), RW_ERR_ARGUMENT, "nll_loss(chunk)");
    refuses(&b, NLL(.ignore_index = 1), RW_ERR_ARGUMENT,
            "nll_loss(ignore_index): expected 0 without has_ignore_index, got 1");
    refuses(&b, SOFT(x, target, RW_NONE, .ignore_index = -1), RW_ERR_ARGUMENT,
            "cross_entropy_with(ignore_index): expected 0 without has_ignore_index, got -1");
    refuses(&b, NLL(.label_smoothing = 0.5), RW_ERR_ARGUMENT, "nll_loss(label_smoothing, z_loss)");
    refuses(&b, SOFT(x, target, RW_NONE, .class_weight = v), RW_ERR_ARGUMENT, "cross_entropy_with(class_weight)");
    refuses(&b, SOFT(x, target, RW_NONE, .bias = v), RW_ERR_ARGUMENT, "cross_entropy_with(bias)");
    refuses(&b, SOFT(x, x, RW_NONE, .bias = v), RW_ERR_ARGUMENT, "cross_entropy_with(bias)");
    refuses(&b, SOFT(x, target, RW_NONE, .chunk = 7), RW_ERR_ARGUMENT, "cross_entropy_with(chunk)");
    cr_expect_eq(rw_tape_mark(t).nodes, n, "the tape has grown");
    cr_expect(NLL(.bias = RW_NONE, .class_weight = RW_NONE), "%s", rw_error_message(b.ctx));
    cr_expect(SOFT(x, target, RW_NONE, .bias = RW_NONE, .class_weight = RW_NONE), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}
