/*
 * The fused gradient of a layer's bias if dropout follows: the column sums of the result of dropout's backward, taken
 * in the pass that computes it. They have the bytes of the layer's own sums of the same gradient, and dropout's result
 * has the bytes of a dropout without sums. If the layer's result has another gradient besides dropout's, or the bias
 * has another use, dropout sums nothing.
 */
#include "autodiff/fused_bias_grad_fixture.h"

#include <string.h>

enum { FEATURES = 8 };

struct layer {
    rw_dtype dtype;
    rw_shape shape; /* of the layer's result */
    bool residual;  /* dropout_add */
    bool constant;  /* the bias is not a parameter */
    rw_tensor *bias, *h;
};

static int64_t width_of(const struct layer *s)
{
    return s->shape.dim[s->shape.rank - 1];
}

static void make_bias(struct fixture *b, struct layer *s)
{
    s->bias = bias_of_zeros(b, s->dtype, width_of(s), s->constant);
}

static rw_tensor *of_layer(struct fixture *b, struct layer *s)
{
    rw_shape in = s->shape;
    in.dim[in.rank - 1] = FEATURES;
    rw_tensor *const w = numbers(b, s->dtype, RW_SHAPE(width_of(s), FEATURES), 2);
    return s->h = rw_require_grad(b->t, rw_linear(b->t, numbers(b, s->dtype, in, 1), w, s->bias));
}

/* Restores the generator's state, so that each recording draws the same mask. */
static rw_tensor *loss_of(struct fixture *b, struct layer *s)
{
    ckpt_begin(b->t, "layer");
    rw_generator_set(b->ctx, (rw_generator_state){ 5, 13 });
    rw_tensor *const h = of_layer(b, s);
    rw_tensor *const x = numbers(b, s->dtype, s->shape, 4);
    rw_tensor *const y = s->residual ? rw_dropout_add(b->t, h, x, 0.25) : rw_dropout(b->t, h, 0.25);
    ckpt_end(b->t);
    return rw_sum(b->t, rw_mul(b->t, y, numbers(b, s->dtype, s->shape, 3)), RW_ALL_AXES, false);
}

/* The layer alone with gradient dh, as often: it sums by itself. */
static char *own_sums(struct layer s, const char *dh, int times, size_t *ret_bytes)
{
    struct fixture b = fixture_open(1, 3);
    make_bias(&b, &s);
    for (int i = 0; i < times; i++) {
        rw_tape_reset(b.t);
        rw_tensor *const flow = rw_input(b.t, s.dtype, s.shape, dh,
                                         (size_t)rw_shape_numel(s.shape) * rw_dtype_size(s.dtype));
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, of_layer(&b, &s), flow), RW_ALL_AXES, false);
        const rw_plan *const plan = step_plan(&b, loss);
        cr_assert_eq(steps_of(&b, plan, "sum_to_add"), 1);
        cr_assert_eq(steps_of(&b, plan, "dropout_columns"), 0);
        backward(&b, loss);
    }
    char *const sums = read_gradient(&b, s.bias, ret_bytes);
    fixture_close(&b);
    return sums;
}

static void expect_equal(const struct layer *s, const char *what, const char *a, const char *b, size_t bytes)
{
    cr_assert_eq(first_difference(a, b, bytes), -1, "%s: %s%s, %lld x %lld", what, rw_dtype_name(s->dtype),
                 s->residual ? ", added" : "", (long long)(rw_shape_numel(s->shape) / width_of(s)),
                 (long long)width_of(s));
}

/* The gradient of the layer's result equals that of a dropout without sums. */
static void expect_dropped(struct layer s, const char *dh, size_t bytes)
{
    struct fixture b = fixture_open(1, 1);
    size_t n;
    s.constant = true;
    make_bias(&b, &s);
    rw_tensor *const loss = loss_of(&b, &s);
    cr_expect_eq(steps_of(&b, step_plan(&b, loss), "dropout_columns"), 0);
    backward(&b, loss);
    char *const other = read_gradient(&b, s.h, &n);
    cr_assert_eq(n, bytes);
    expect_equal(&s, "dropped", dh, other, n);
    free(other);
    fixture_close(&b);
}

/* Two steps of a layer with dropout: checks the plan, the sums and the propagated gradient. */
static void check(struct layer s, bool with_columns)
{
    struct fixture b = fixture_open(1, 2);
    size_t n, bytes;
    make_bias(&b, &s);
    for (int step = 1; step <= 2; step++) { /* into a clear gradient, then into another */
        rw_tape_reset(b.t);
        rw_tensor *const loss = loss_of(&b, &s);
        const rw_plan *const plan = step_plan(&b, loss);
        cr_expect_eq(steps_of(&b, plan, "dropout_columns"), with_columns);
        cr_expect_eq(steps_of(&b, plan, "sum_to_add"), !with_columns);
        backward(&b, loss);
        char *const sums = read_gradient(&b, s.bias, &n), *const dh = read_gradient(&b, s.h, &bytes);
        char *const own = own_sums(s, dh, step, &n);
        expect_equal(&s, "sums", sums, own, n);
        if (step == 1) expect_dropped(s, dh, bytes);
        free(sums), free(dh), free(own);
    }
    fixture_close(&b);
}

/* Rows of whole packs and others, rows that begin within a block of words; columns in parts, in several chunks. */
static void check_all(rw_dtype dtype)
{
    const rw_shape shapes[] = { RW_SHAPE(17, 768), RW_SHAPE(2, 650, 16), RW_SHAPE(1100, 40), RW_SHAPE(3, 3, 33),
                                RW_SHAPE(5, 1030), RW_SHAPE(2, 2),       RW_SHAPE(130, 3) };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check((struct layer){ .dtype = dtype, .shape = shapes[i], .residual = i % 2 }, true);
    check((struct layer){ .dtype = dtype, .shape = RW_SHAPE(1, 40) }, false);
    check((struct layer){ .dtype = dtype, .shape = RW_SHAPE(40, 1) }, false);
    check((struct layer){ .dtype = dtype, .shape = RW_SHAPE(0, 40) }, false);
}

Test(fused_bias_grad_dropout, float32) { check_all(RW_F32); }
Test(fused_bias_grad_dropout, bfloat16) { check_all(RW_BF16); }
Test(fused_bias_grad_dropout, float16) { check_all(RW_F16); }
Test(fused_bias_grad_dropout, float64) { check_all(RW_F64); }

/* ---- the same bytes, whatever is replayed ---- */

static char *under(const char *policy, bool graph, int threads, size_t *ret_bytes)
{
    struct fixture b = fixture_open(1, threads);
    struct layer s = { .dtype = RW_BF16, .shape = RW_SHAPE(1030, 72), .residual = true };
    rw_graph *g = NULL;
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    make_bias(&b, &s);
    rw_tensor *const loss = loss_of(&b, &s);
    if (graph) cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(graph ? audited_launch(g, b.t) : rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    char *const bytes = read_gradient(&b, s.bias, ret_bytes);
    rw_graph_destroy(&g);
    fixture_close(&b);
    return bytes;
}

Test(fused_bias_grad_dropout, any_policy)
{
    static const char *const policies[] = { "none", "full", "ops:linear", "ops:dropout_add" };
    size_t n, m;
    char *const none = under("none", false, 1, &n);
    for (size_t i = 0; i < 2 * (sizeof policies / sizeof *policies); i++) {
        char *const other = under(policies[i / 2], i % 2, 2 + (int)i, &m);
        cr_assert_eq(n, m);
        cr_assert_eq(first_difference(none, other, n), -1, "%s%s", policies[i / 2], i % 2 ? ", as a graph" : "");
        free(other);
    }
    free(none);
}

/* ---- cases in which the layer sums by itself ---- */

enum way { ALONE, BIAS_TWICE, ANOTHER_READER, AN_EARLIER_READER, TWO_DROPOUTS, AS_RESIDUAL, BOTH, A_ROOT, WAYS };

static rw_tensor *record(struct fixture *b, enum way way, struct layer *s)
{
    rw_tape *const t = b->t;
    rw_tensor *const h = of_layer(b, s), *const x = numbers(b, s->dtype, s->shape, 4);
    rw_tensor *const before = way == AN_EARLIER_READER ? rw_mul(t, h, h) : NULL;
    rw_tensor *y = way == AS_RESIDUAL ? rw_dropout_add(t, x, h, 0.25)
                   : way == BOTH      ? rw_dropout_add(t, h, h, 0.25)
                                      : rw_dropout(t, h, 0.25);
    if (before) y = rw_add(t, y, before);
    if (way == TWO_DROPOUTS) y = rw_add(t, y, rw_dropout(t, h, 0.5));
    if (way == ANOTHER_READER) y = rw_add(t, y, rw_mul(t, h, h));
    if (way == BIAS_TWICE) y = rw_add(t, y, s->bias);
    return rw_sum(t, rw_mul(t, y, numbers(b, s->dtype, s->shape, 3)), RW_ALL_AXES, false);
}

Test(fused_bias_grad_dropout, only_what_is_whole)
{
    for (enum way way = ALONE; way < WAYS; way++) {
        struct fixture b = fixture_open(1, 2);
        struct layer s = { .dtype = RW_F64, .shape = RW_SHAPE(6, 8) };
        size_t n;
        make_bias(&b, &s);
        rw_tensor *const loss = record(&b, way, &s), *const roots[] = { loss, s.h };
        if (way == A_ROOT) { /* the layer's result is a root, too */
            cr_assert_eq(rw_backward_from(b.t, roots, NULL, 2), RW_OK, "%s", rw_error_message(b.ctx));
        } else {
            const rw_plan *const plan = step_plan(&b, loss);
            cr_expect_eq(steps_of(&b, plan, "dropout_columns"), way == ALONE, "way %d", (int)way);
            backward(&b, loss);
        }
        char *const sums = read_gradient(&b, s.bias, &n), *const dh = read_gradient(&b, s.h, &n);
        char *const own = own_sums(s, dh, 1, &n);
        if (way != BIAS_TWICE) expect_equal(&s, "way", sums, own, n);
        free(sums), free(dh), free(own);
        fixture_close(&b);
    }
}
