/* Losses of rows, classes and elements that do not count: infinite or NaN elements there change no loss and no gradient
   of any order. */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* The loss and the gradient of x of a case of three elements. */
static void take(struct fixture *b, rw_tensor *loss, rw_tensor *x, float *ret_loss, float *ret_gradient)
{
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, loss, ret_loss, sizeof *ret_loss), RW_OK);
    cr_assert_eq(rw_read(b->t, rw_gradient(x), ret_gradient, 3 * sizeof *ret_gradient), RW_OK);
    rw_tape_reset(b->t);
}

static rw_tensor *three(struct fixture *b, float x, float y, float z)
{
    return rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(3), (const float[]){ x, y, z }, 3 * sizeof(float)));
}

Test(losses_ignored, infinities_and_zeros_that_count_nothing)
{
    struct fixture b = fixture_open(1, 1);
    float loss, g[3];
    const int32_t one = 1;
    rw_tensor *x = three(&b, -INFINITY, -2, -INFINITY);
    take(&b, rw_nll_loss(b.t, x, rw_input(b.t, RW_I32, RW_SCALAR, &one, sizeof one), RW_NONE, NULL), x, &loss, g);
    cr_expect(loss == 2 && g[0] == 0 && g[1] == -1 && g[2] == 0, "%g %g %g %g", loss, g[0], g[1], g[2]);
    x = three(&b, 300, -300, 0); /* logits of what is there, is not there, and may be */
    rw_tensor *const y = rw_input(b.t, RW_F32, RW_SHAPE(3), (const float[]){ 1, 0, 1 }, 3 * sizeof(float));
    take(&b, rw_bce_with_logits(b.t, x, y, RW_NONE, RW_NONE, RW_REDUCTION_SUM), x, &loss, g);
    cr_expect_float_eq(loss, logf(2), 1e-6f);
    cr_expect(g[0] == 0 && g[1] == 0 && g[2] == -0.5f, "%g %g %g", g[0], g[1], g[2]);
    rw_tensor *const p = three(&b, 0, 1, 0);
    x = three(&b, -1, -2, -3);
    take(&b, rw_kl_div(b.t, x, p, false, RW_REDUCTION_SUM), p, &loss, g);
    cr_expect(loss == 2 && g[0] == 0 && g[1] == 3 && g[2] == 0, "%g %g %g %g", loss, g[0], g[1], g[2]);
    x = three(&b, 1e30f, -1e30f, 0.5f);
    rw_tensor *const zero = rw_input(b.t, RW_F32, RW_SHAPE(3), (const float[]){ 0, 0, 0 }, 3 * sizeof(float));
    take(&b, rw_huber_loss(b.t, x, zero, 2, RW_REDUCTION_SUM), x, &loss, g);
    cr_expect(isfinite(loss) && g[0] == 2 && g[1] == -2 && g[2] == 0.5f, "%g %g %g %g", loss, g[0], g[1], g[2]);
    fixture_close(&b);
}

enum absent { ABSENT_MEAN, ABSENT_ROWS, ABSENT_LINEAR, ABSENT_NLL, ABSENT_KINDS };

/* The loss of a row of class 1 of three, its gradient by rw_backward() or rw_grad(), and that gradient's gradient. */
static void absent_class(enum absent kind, rw_dtype dtype, double last, bool again, double ret[7])
{
    struct fixture b = fixture_open(1, 1);
    const rw_dtype wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    static const int32_t one = 1;
    double x[3], w[3], unit[9];
    for (int i = 0; i < 9; i++) cr_assert(number_put(unit, dtype, i, i % 4 == 0));
    for (int i = 0; i < 3; i++) {
        cr_assert(number_put(x, dtype, i, i + 1));
        number_put(w, wide, i, i < 2 ? i + 1 : last); /* false for NaN */
    }
    rw_tensor *const logits = rw_require_grad(b.t, rw_input(b.t, dtype, RW_SHAPE(1, 3), x, 3 * rw_dtype_size(dtype)));
    rw_tensor *const y = rw_input(b.t, RW_I32, RW_SHAPE(1), &one, sizeof one);
    rw_tensor *const weight = rw_input(b.t, wide, RW_SHAPE(3), w, 3 * rw_dtype_size(wide)), *g = NULL, *second = NULL;
    rw_cross_entropy_params p = { .reduction = kind == ABSENT_ROWS ? RW_REDUCTION_NONE : RW_REDUCTION_MEAN };
    rw_tensor *loss = NULL;
    if (kind == ABSENT_NLL) loss = rw_nll_loss(b.t, logits, y, weight, &p);
    else if (kind == ABSENT_LINEAR) {
        p.class_weight = rw_cast(b.t, weight, dtype);
        rw_tensor *const matrix = rw_input(b.t, dtype, RW_SHAPE(3, 3), unit, 9 * rw_dtype_size(dtype));
        loss = rw_linear_cross_entropy(b.t, logits, matrix, y, &p);
    } else loss = rw_cross_entropy_with(b.t, logits, y, weight, &p);
    loss = rw_sum_all(b.t, loss);
    ret[0] = rw_item(b.t, loss);
    if (again) {
        cr_assert_eq(rw_grad(b.t, loss, &logits, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_grad(b.t, rw_sum_all(b.t, rw_mul(b.t, g, g)), &logits, 1, &second), RW_OK);
    } else {
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        g = rw_gradient(logits);
    }
    cr_assert_eq(rw_read(b.t, g, x, 3 * rw_dtype_size(dtype)), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 3; i++) ret[1 + i] = number_get(x, dtype, i), ret[4 + i] = 0;
    if (second) cr_assert_eq(rw_read(b.t, second, x, 3 * rw_dtype_size(dtype)), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 3 && second; i++) ret[4 + i] = number_get(x, dtype, i);
    fixture_close(&b);
}

/* Weights of 1 / count: that of a class without a row is infinite. */
Test(losses_ignored, the_weight_of_another_class_has_no_effect)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16 };
    static const double weights[] = { INFINITY, NAN };
    for (enum absent kind = 0; kind < ABSENT_KINDS; kind++)
        for (int i = 0; i < 12; i++) {
            const rw_dtype dtype = types[i / 4];
            double want[7], got[7];
            absent_class(kind, dtype, 4, i % 2, want);
            absent_class(kind, dtype, weights[i / 2 % 2], i % 2, got);
            for (int k = 0; k < 7; k++)
                cr_expect_eq(got[k], want[k], "kind %d, %s, weight %g, %s, %d: %g, not %g", (int)kind,
                             rw_dtype_name(dtype), weights[i / 2 % 2], i % 2 ? "rw_grad()" : "rw_backward()", k,
                             got[k], want[k]);
        }
}

/* The gradient of kl_div can be differentiated again where y is 0: the derivative of x's gradient by y is -dy. */
Test(losses_ignored, kl_div_of_a_probability_of_0_reads_nothing_else)
{
    struct fixture b = fixture_open(1, 1);
    static const float logarithms[] = { -INFINITY, INFINITY, NAN };
    for (size_t i = 0; i < sizeof logarithms / sizeof *logarithms; i++) {
        float each[3], sum, g[6], again[3];
        rw_tensor *const x = three(&b, logarithms[i], -1, -1), *const y = three(&b, 0, 0.5f, 1), *in[] = { x, y };
        rw_tensor *const rows = rw_kl_div(b.t, x, y, false, RW_REDUCTION_NONE);
        rw_tensor *const loss = rw_kl_div(b.t, x, y, false, RW_REDUCTION_SUM), *grads[2], *second;
        cr_assert_eq(rw_grad(b.t, loss, in, 2, grads), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_grad(b.t, rw_sum_all(b.t, grads[1]), &y, 1, &second), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, rows, each, sizeof each), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, loss, &sum, sizeof sum), RW_OK);
        cr_assert_eq(rw_read(b.t, second, again, sizeof again), RW_OK);
        for (int k = 0; k < 2; k++) cr_assert_eq(rw_read(b.t, grads[k], g + 3 * k, 3 * sizeof *g), RW_OK);
        cr_expect(each[0] == 0 && sum == each[1] + each[2], "%g: %g %g %g", logarithms[i], each[0], sum, each[1]);
        cr_expect(g[0] == 0 && g[1] == -0.5f && g[2] == -1, "%g: by x %g %g %g", logarithms[i], g[0], g[1], g[2]);
        cr_expect(g[3] == 0 && g[5] == 2, "%g: by y %g %g %g", logarithms[i], g[3], g[4], g[5]);
        cr_expect(again[0] == 0 && again[1] == 2 && again[2] == 1, "%g: twice by y %g %g %g", logarithms[i], again[0],
                  again[1], again[2]);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A loss of two rows of three classes. The second row counts; the losses of rows are multiplied by `factors`. */
enum ignored { IGNORED_MEAN, IGNORED_ROWS, IGNORED_Z, IGNORED_SMOOTHED, IGNORED_WEIGHED, IGNORED_NLL, IGNORED_LINEAR,
               IGNORED_KINDS };

static rw_tensor *ignored_loss(rw_tape *t, enum ignored kind, rw_tensor *x, rw_tensor *factors)
{
    static const int32_t target[] = { -100, 1 };
    static const float unit[] = { 1, 0, 0, 0, 1, 0, 0, 0, 1 }, weight[] = { 1, 2, 3 };
    rw_tensor *const y = rw_input(t, RW_I32, RW_SHAPE(2), target, sizeof target);
    rw_tensor *const w = rw_input(t, RW_F32, RW_SHAPE(3), weight, sizeof weight);
    rw_cross_entropy_params p = { .reduction = kind == IGNORED_MEAN ? RW_REDUCTION_MEAN : RW_REDUCTION_NONE,
                                  .z_loss = kind == IGNORED_Z ? 0.5 : 0,
                                  .label_smoothing = kind == IGNORED_SMOOTHED ? 0.25 : 0 };
    rw_tensor *loss;
    switch (kind) {
    case IGNORED_NLL: loss = rw_nll_loss(t, x, y, RW_NONE, &p); break;
    case IGNORED_LINEAR:
        loss = rw_linear_cross_entropy(t, x, rw_input(t, RW_F32, RW_SHAPE(3, 3), unit, sizeof unit), y, &p);
        break;
    default: loss = rw_cross_entropy_with(t, x, y, kind == IGNORED_WEIGHED ? w : RW_NONE, &p); break;
    }
    return kind == IGNORED_MEAN ? loss : rw_sum_all(t, rw_mul(t, loss, factors));
}

/* First gradients, by rw_backward() and by rw_grad(), and the gradient of the sum of the squares of those. */
static void ignored_gradients(enum ignored kind, const float *logits, const float *factors, float ret[3][6])
{
    struct fixture b = fixture_open(1, 1);
    for (int way = 0; way < 2; way++) {
        rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2, 3), logits, 6 * sizeof *logits));
        rw_tensor *const f = rw_input(b.t, RW_F32, RW_SHAPE(2), factors, 2 * sizeof *factors), *g, *again;
        rw_tensor *const loss = ignored_loss(b.t, kind, x, f);
        if (way) {
            cr_assert_eq(rw_grad(b.t, loss, &x, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_grad(b.t, rw_sum_all(b.t, rw_mul(b.t, g, g)), &x, 1, &again), RW_OK);
            memset(ret[2], 0, sizeof ret[2]); /* the gradient of nll_loss does not depend on x */
            if (again) cr_assert_eq(rw_read(b.t, again, ret[2], sizeof ret[2]), RW_OK, "%s", rw_error_message(b.ctx));
        } else {
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
            g = rw_gradient(x);
        }
        cr_assert_eq(rw_read(b.t, g, ret[way], sizeof ret[way]), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* An ignored row has a gradient of 0, whatever its logits and the gradient of its loss are, and the other row has the
   gradient that it has beside finite logits. */
Test(losses_ignored, an_ignored_row_has_no_gradient_of_any_order)
{
    static const float rows[][6] = { { 3, 2, 1, 1, 2, 3 },
                                     { NAN, NAN, NAN, 1, 2, 3 },
                                     { INFINITY, -INFINITY, 0, 1, 2, 3 },
                                     { -INFINITY, -INFINITY, -INFINITY, 1, 2, 3 } };
    static const float factors[][2] = { { 1, 1 }, { INFINITY, 1 }, { NAN, 1 } };
    for (enum ignored kind = 0; kind < IGNORED_KINDS; kind++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
                float want[3][6], got[3][6];
                ignored_gradients(kind, rows[0], factors[0], want);
                ignored_gradients(kind, rows[i], factors[f], got);
                for (int way = 0; way < 3; way++)
                    for (int k = 0; k < 6; k++)
                        cr_expect(got[way][k] == want[way][k] && (k > 2 || got[way][k] == 0),
                                  "kind %d, logits %zu, factors %zu: %s, %d: %g, not %g", (int)kind, i, f,
                                  way == 0 ? "rw_backward()" : way == 1 ? "rw_grad()" : "second", k, got[way][k],
                                  want[way][k]);
            }
}
