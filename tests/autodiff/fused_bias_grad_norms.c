/*
 * The fused gradient of a layer's bias if a norm follows: the column sums of the result of the norm's backward, taken
 * in the pass that computes it. They are sums of the stored values, and change nothing else. If the layer's result has
 * another gradient besides the norm's, or the bias has another use, the layer sums by itself.
 */
#include "support/compare.h"
#include "support/plan_queries.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2 };

/* A residual stream with layers: h = u w + b + x, y = norm(h) + h, twice. */
struct stream {
    rw_dtype dtype;
    int64_t rows, width;
    bool rms, frozen; /* frozen: the norm's weight and bias */
    bool constant;    /* the bias is not a parameter */
    rw_tensor *bias[LAYERS], *gain[LAYERS], *shift[LAYERS], *h[LAYERS];
};

static float number(int64_t i, int salt)
{
    return (float)((i * 37 + i / 11 * 5 + salt * 17) % 101) / 128 - 0.375f;
}

static rw_tensor *numbers(struct fixture *b, rw_dtype dtype, rw_shape shape, int salt, float scale)
{
    const int64_t n = rw_shape_numel(shape);
    float *const x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = scale * number(i, salt);
    rw_tensor *const y = rw_cast(b->t, rw_input(b->t, RW_F32, shape, x, (size_t)n * sizeof *x),
                                 dtype);
    free(x);
    return y;
}

static rw_tensor *vector(struct fixture *b, const struct stream *s, const char *kind, int layer, bool trained)
{
    char name[32];
    snprintf(name, sizeof name, "%s%d", kind, layer);
    const rw_shape shape = RW_SHAPE(s->width);
    rw_tensor *const p = trained ? rw_param(b->ctx, name, s->dtype, shape) : rw_buffer(b->ctx, name, s->dtype, shape);
    char *const data = malloc(rw_tensor_bytes(p));
    for (int64_t i = 0; i < s->width; i++)
        cr_assert(number_put(data, s->dtype, i, round(16 * (double)number(i, layer + kind[0])) / 16 + 1));
    cr_assert_eq(rw_write(p, data, rw_tensor_bytes(p)), RW_OK);
    free(data);
    return p;
}

static void make_params(struct fixture *b, struct stream *s)
{
    for (int l = 0; l < LAYERS; l++) {
        s->bias[l] = vector(b, s, "bias", l, !s->constant);
        s->gain[l] = vector(b, s, "gain", l, !s->frozen);
        s->shift[l] = vector(b, s, "shift", l, !s->frozen && !s->rms);
    }
}

static rw_tensor *norm(struct fixture *b, const struct stream *s, rw_tensor *x, int l)
{
    return s->rms ? rw_rmsnorm(b->t, x, s->gain[l], 1e-5) : rw_layernorm(b->t, x, s->gain[l], s->shift[l], 1e-5);
}

static rw_tensor *loss_of(struct fixture *b, struct stream *s)
{
    const rw_shape rows = RW_SHAPE(s->rows, s->width);
    rw_tensor *x = numbers(b, s->dtype, rows, 1, 1);
    rw_tensor *const u = numbers(b, s->dtype, RW_SHAPE(s->rows, 8), 4, 1);
    rw_tensor *const w = numbers(b, s->dtype, RW_SHAPE(s->width, 8), 2, 1);
    for (int l = 0; l < LAYERS; l++) {
        ckpt_begin(b->t, "layer");
        s->h[l] = rw_require_grad(b->t, rw_linear_add(b->t, u, w, s->bias[l], x));
        x = rw_add(b->t, norm(b, s, s->h[l], l), s->h[l]);
        ckpt_end(b->t);
    }
    return rw_sum(b->t, rw_mul(b->t, x, numbers(b, s->dtype, rows, 3, 1)), RW_ALL_AXES, false);
}

/* Concatenated gradients: of the layers' results, and of the norm's weight and bias or of the biases. */
static char *gradients(struct fixture *b, const struct stream *s, bool biases, size_t *ret_bytes)
{
    char *bytes = NULL;
    *ret_bytes = 0;
    for (int l = 0; l < LAYERS; l++) {
        rw_tensor *const of[] = { s->h[l], s->frozen ? NULL : s->gain[l], s->frozen || s->rms ? NULL : s->shift[l],
                                  biases ? s->bias[l] : NULL };
        for (int i = 0; i < 4; i++) {
            if (!of[i]) continue;
            rw_tensor *const g = rw_gradient(of[i]);
            bytes = realloc(bytes, *ret_bytes + rw_tensor_bytes(g) + 1);
            cr_assert_eq(rw_read(b->t, g, bytes + *ret_bytes, rw_tensor_bytes(g)), RW_OK, "%s",
                         rw_error_message(b->ctx));
            *ret_bytes += rw_tensor_bytes(g);
        }
    }
    return bytes;
}

static const char *made_by(const struct stream *s, bool sums)
{
    static const char *const names[2][2] = {
        { "layernorm_backward_columns", "layernorm_backward_columns_add" },
        { "rmsnorm_backward_columns", "rmsnorm_backward_columns_add" }
    };
    return names[s->rms][sums];
}

/* The bias's gradient compared with float64 sums of the stored columns, `times` over. */
static void expect_sums(struct fixture *b, const struct stream *s, int l, int times)
{
    rw_tensor *const g = rw_gradient(s->bias[l]), *const dh = rw_gradient(s->h[l]);
    const rw_dtype wide = rw_tensor_dtype(g);
    char *const sums = malloc(rw_tensor_bytes(g)), *const rows = malloc(rw_tensor_bytes(dh) + 1);
    cr_assert_eq(rw_read(b->t, g, sums, rw_tensor_bytes(g)), RW_OK);
    cr_assert_eq(rw_read(b->t, dh, rows, rw_tensor_bytes(dh)), RW_OK);
    const double unit = wide == RW_F64 ? 0x1p-53 : 0x1p-24;
    for (int64_t c = 0; c < s->width; c++) {
        double sum = 0, size = 0;
        for (int64_t r = 0; r < s->rows; r++) {
            const double x = number_get(rows, s->dtype, r * s->width + c);
            sum += x, size += fabs(x);
        }
        /* a rounding for each row, one of the sum, one for each addition to the gradient */
        const double bound = ((double)s->rows + 4) * times * unit * size;
        const double off = fabs(number_get(sums, wide, c) - times * sum);
        cr_assert(off <= bound, "%s%s, %lld x %lld, layer %d, column %lld: %g, not %g, %g times the bound",
                  s->rms ? "rms " : "", rw_dtype_name(s->dtype), (long long)s->rows, (long long)s->width, l,
                  (long long)c, number_get(sums, wide, c), times * sum, off / bound);
    }
    free(sums);
    free(rows);
}

/* A float32 sum of a 16-bit parameter accepts only float32 terms: a norm without its own sums would add 16-bit ones. */
static bool takes_columns(const struct stream *s)
{
    return !s->frozen || s->dtype == RW_F32 || s->dtype == RW_F64;
}

/* The propagated and the norm's own gradients have the bytes of a step without a bias gradient. */
static void expect_the_rest(struct stream s, const char *with, size_t bytes)
{
    struct fixture b = fixture_open(1, 2);
    size_t n;
    s.constant = true;
    make_params(&b, &s);
    rw_tensor *const loss = loss_of(&b, &s);
    cr_expect_eq(steps_of(&b, step_plan(&b, loss), made_by(&s, !s.frozen)), 0);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    char *const without = gradients(&b, &s, false, &n);
    cr_assert_eq(n, bytes);
    cr_assert_eq(first_difference(with, without, n), -1, "%s, %lld x %lld", rw_dtype_name(s.dtype), (long long)s.rows,
                 (long long)s.width);
    free(without);
    fixture_close(&b);
}

/* Two steps of a stream with norms: checks the plan, the sums and all other gradients. */
static void check(struct stream s)
{
    struct fixture b = fixture_open(1, 2);
    make_params(&b, &s);
    for (int step = 1; step <= 2; step++) { /* into clear gradients, then into others */
        rw_tape_reset(b.t);
        rw_tensor *const loss = loss_of(&b, &s);
        const rw_plan *const plan = step_plan(&b, loss);
        const int taken = steps_of(&b, plan, made_by(&s, !s.frozen));
        cr_expect_eq(taken, takes_columns(&s) ? LAYERS : 0);
        cr_expect_eq(steps_of(&b, plan, "sum_to_add") + steps_of(&b, plan, "sum_to"), LAYERS - taken);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        for (int l = 0; l < LAYERS; l++) expect_sums(&b, &s, l, step);
        if (step > 1) continue;
        size_t n;
        char *const with = gradients(&b, &s, false, &n);
        expect_the_rest(s, with, n);
        free(with);
    }
    fixture_close(&b);
}

/* Rows for a warp, from one pack to the widest; for a block; and rows that are read element by element. */
static void check_all(rw_dtype dtype)
{
    static const int64_t sizes[][2] = { { 3, 40 },    { 300, 16 }, { 0, 16 },    { 17, 768 }, { 19, 1024 },
                                        { 33, 33 }, { 9, 1200 }, { 9, 2100 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < (i < 3 ? 4 : 2); form++)
            check((struct stream){ .dtype = dtype, .rows = sizes[i][0], .width = sizes[i][1], .rms = form & 1,
                                   .frozen = form > 1 });
}

Test(fused_bias_grad_norms, float32) { check_all(RW_F32); }
Test(fused_bias_grad_norms, bfloat16) { check_all(RW_BF16); }
Test(fused_bias_grad_norms, float16) { check_all(RW_F16); }
Test(fused_bias_grad_norms, float64) { check_all(RW_F64); }

/* ---- the same bytes, whatever is replayed ---- */

static char *under(const char *policy, bool graph, size_t *ret_bytes)
{
    struct fixture b = fixture_open(1, graph ? 1 : 3);
    struct stream s = { .dtype = RW_BF16, .rows = 130, .width = 64 };
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    make_params(&b, &s);
    rw_tensor *const loss = loss_of(&b, &s);
    rw_graph *g = NULL;
    if (graph) cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(graph ? audited_launch(g, b.t) : rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    char *const bytes = gradients(&b, &s, true, ret_bytes);
    rw_graph_destroy(&g);
    fixture_close(&b);
    return bytes;
}

Test(fused_bias_grad_norms, any_policy)
{
    static const char *const policies[] = { "full", "ops:linear_add", "ops:layernorm", "uniform:2", "none" };
    size_t n, m;
    char *const none = under("none", false, &n);
    for (size_t i = 0; i < 2 * (sizeof policies / sizeof *policies); i++) {
        const char *const policy = policies[i / 2];
        char *const other = under(policy, i % 2, &m);
        cr_assert_eq(n, m);
        cr_assert_eq(first_difference(none, other, n), -1, "%s%s", policy, i % 2 ? ", as a graph" : "");
        free(other);
    }
    free(none);
}

/* ---- cases in which the layer sums by itself ---- */

enum way { ALONE, BIAS_TWICE, READ_AFTER, ANOTHER_READER, AN_EARLIER_READER, WITHIN_THE_NORM, WITHOUT_ROWS, WAYS };

/* Records a layer whose bias gradient must not be fused, for the given reason. */
static rw_tensor *record(struct fixture *b, enum way way, rw_tensor *bias, rw_tensor **ret_h)
{
    enum { ROWS = 6, WIDTH = 8 };
    rw_tape *const t = b->t;
    const rw_shape shape = way == WITHOUT_ROWS ? RW_SHAPE(WIDTH) : RW_SHAPE(ROWS, WIDTH);
    rw_tensor *const x = numbers(b, RW_F64, shape, 1, 1), *const w = numbers(b, RW_F64, RW_SHAPE(WIDTH, WIDTH), 2, 1);
    rw_tensor *const gain = numbers(b, RW_F64, RW_SHAPE(WIDTH), 4, 1);
    rw_tensor *const h = *ret_h = rw_require_grad(t, rw_linear(t, x, w, bias));
    rw_tensor *before = NULL, *y;
    if (way == AN_EARLIER_READER) before = rw_mul(t, h, h);
    y = rw_rmsnorm(t, h, gain, 1e-5);
    if (way == WITHIN_THE_NORM) y = rw_add(t, y, rw_rmsnorm(t, h, gain, 1e-3));
    if (way == ANOTHER_READER) y = rw_add(t, y, rw_mul(t, h, h));
    if (way == BIAS_TWICE) y = rw_add(t, y, bias);
    if (before) y = rw_add(t, y, before);
    rw_tensor *const loss = rw_sum(t, rw_mul(t, y, numbers(b, RW_F64, shape, 3, 1)), RW_ALL_AXES, false);
    if (way == READ_AFTER) rw_mul(t, bias, bias); /* not part of the loss */
    return loss;
}

Test(fused_bias_grad_norms, only_what_is_whole)
{
    static const int with_columns[WAYS] = {
        [ALONE] = 1, [READ_AFTER] = 1, [ANOTHER_READER] = 1, [WITHIN_THE_NORM] = 1
    };
    for (enum way way = ALONE; way < WAYS; way++) {
        struct fixture b = fixture_open(1, 2);
        struct stream s = { .dtype = RW_F64, .rows = way == WITHOUT_ROWS ? 1 : 6, .width = 8, .rms = true };
        s.bias[0] = vector(&b, &s, "bias", 0, true);
        rw_tensor *const loss = record(&b, way, s.bias[0], &s.h[0]);
        const rw_plan *const plan = step_plan(&b, loss);
        cr_expect_eq(steps_of(&b, plan, made_by(&s, false)), with_columns[way], "way %d", (int)way);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        if (way != BIAS_TWICE) expect_sums(&b, &s, 0, 1);
        fixture_close(&b);
    }
}
