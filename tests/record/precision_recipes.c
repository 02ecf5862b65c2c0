/*
 * Precision recipes: ops recorded inside one are bit-identical to the program with explicit casts, under every policy;
 * and each class of ops runs in the types stated in docs/precision.md.
 */
#include "record/tape.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 8, WIDTH = 16, HEADS = 2, VOCABULARY = 12 };

/* ---- two transformer blocks ---- */

struct model {
    rw_tensor *table, *gain, *qkv[3], *out, *up, *down, *bias;
};

static rw_tensor *param(struct fixture *b, const char *name, rw_shape shape)
{
    rw_tensor *const p = rw_param(b->ctx, name, RW_F32, shape);
    cr_assert_eq(rw_init_normal(p, 0, 0.3), RW_OK);
    return p;
}

static struct model make(struct fixture *b)
{
    const rw_shape square = RW_SHAPE(WIDTH, WIDTH);
    return (struct model){ param(b, "table", RW_SHAPE(VOCABULARY, WIDTH)), param(b, "gain", RW_SHAPE(WIDTH)),
                           { param(b, "q", square), param(b, "k", square), param(b, "v", square) },
                           param(b, "out", square), param(b, "up", RW_SHAPE(2 * WIDTH, WIDTH)),
                           param(b, "down", RW_SHAPE(WIDTH, 2 * WIDTH)), param(b, "bias", RW_SHAPE(2 * WIDTH)) };
}

/* Casts a value that the recipe casts implicitly: unchanged, or cast by hand. */
static rw_dtype by_hand; /* RW_F32: by a recipe */

static rw_tensor *low(rw_tape *t, rw_tensor *x)
{
    return by_hand == RW_F32 ? x : rw_cast(t, x, by_hand);
}

static rw_tensor *high(rw_tape *t, rw_tensor *x)
{
    return by_hand == RW_F32 ? x : rw_cast(t, x, RW_F32);
}

static rw_tensor *heads_of(rw_tape *t, rw_tensor *x)
{
    return rw_transpose(t, rw_reshape(t, x, RW_SHAPE(1, TOKENS, HEADS, WIDTH / HEADS)), 1, 2);
}

/* A product added to the residual stream: by hand the two ops that rw_linear_add() then records. */
static rw_tensor *add_product(rw_tape *t, rw_tensor *stream, rw_tensor *x, rw_tensor *w)
{
    if (by_hand == RW_F32) return rw_linear_add(t, x, w, RW_NONE, stream);
    return rw_add(t, stream, high(t, rw_linear(t, x, low(t, w), RW_NONE)));
}

/* A transformer layer under a recipe, with its two halves in regions. */
static rw_tensor *block(rw_tape *t, const struct model *m, rw_tensor *x)
{
    rw_tensor *qkv[3];
    ckpt_begin(t, "attention");
    rw_tensor *const h = low(t, rw_rmsnorm(t, x, m->gain, 1e-5));
    for (int i = 0; i < 3; i++) qkv[i] = heads_of(t, rw_linear(t, h, low(t, m->qkv[i]), RW_NONE));
    rw_tensor *const y = rw_attention(t, qkv[0], qkv[1], qkv[2], &(rw_attention_params){ .causal = true });
    x = add_product(t, x, rw_reshape(t, rw_transpose(t, y, 1, 2), RW_SHAPE(TOKENS, WIDTH)), m->out);
    ckpt_end(t);
    ckpt_begin(t, "mlp");
    rw_tensor *const n = low(t, rw_rmsnorm(t, x, m->gain, 1e-5));
    rw_tensor *const u = rw_linear_gelu(t, n, low(t, m->up), low(t, m->bias));
    x = add_product(t, x, rw_dropout(t, u, 0.1), m->down);
    ckpt_end(t);
    return x;
}

static rw_tensor *loss_of(rw_tape *t, const struct model *m, int step)
{
    int32_t token[TOKENS], next[TOKENS];
    for (int i = 0; i < TOKENS; i++) token[i] = (i * 7 + step) % VOCABULARY, next[i] = (i * 5 + 3) % VOCABULARY;
    rw_tensor *x = rw_embedding(t, m->table, rw_input(t, RW_I32, RW_SHAPE(TOKENS), token, sizeof token));
    x = block(t, m, x);
    return rw_linear_cross_entropy(t, low(t, rw_rmsnorm(t, x, m->gain, 1e-5)), low(t, m->table),
                                   rw_input(t, RW_I32, RW_SHAPE(TOKENS), next, sizeof next), NULL);
}

struct way {
    rw_recipe_kind kind;
    rw_dtype by_hand;
    const char *policy;
    int threads;
    bool blunders; /* with refused calls in between */
    bool verifies;
    rw_scaling scaling;
};

static void blunder(struct fixture *b, const struct model *m)
{
    rw_tensor *const x = rw_input(b->t, RW_F32, RW_SHAPE(3, WIDTH + 1), NULL, 0);
    cr_assert_null(rw_linear(b->t, x, m->up, m->bias));
    cr_assert_null(rw_linear_add(b->t, x, m->down, RW_NONE, x));
    rw_error_clear(b->ctx);
}

/* Gradients of two micro-batches. */
static unsigned char *train(const struct way *w, size_t *ret_bytes, float *ret_loss)
{
    struct fixture b = fixture_open(3, w->threads);
    const struct model m = make(&b);
    const rw_recipe recipe = { .kind = w->kind, .scaling = w->scaling };
    by_hand = w->by_hand;
    cr_assert_eq(ckpt_set_policy(b.t, w->policy), RW_OK);
    for (int step = 0; step < 2; step++) { /* micro-batches, whose gradients are added up */
        if (w->by_hand == RW_F32) cr_assert_eq(rw_recipe_begin(b.t, &recipe), RW_OK);
        if (w->blunders) blunder(&b, &m);
        rw_tensor *const loss = loss_of(b.t, &m, step);
        if (w->blunders) blunder(&b, &m);
        if (w->by_hand == RW_F32) cr_assert_eq(rw_recipe_end(b.t), RW_OK);
        if (w->verifies) cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", w->policy, rw_error_message(b.ctx));
        ret_loss[step] = (float)rw_item(b.t, loss);
        rw_tape_reset(b.t);
    }
    unsigned char *const g = all_gradients(b.ctx, ret_bytes);
    fixture_close(&b);
    return g;
}

static void expect_same(const struct way *a, const struct way *b)
{
    size_t bytes[2];
    float loss[2][2];
    unsigned char *const x = train(a, &bytes[0], loss[0]), *const y = train(b, &bytes[1], loss[1]);
    cr_assert_eq(bytes[0], bytes[1]);
    cr_expect_arr_eq(loss[0], loss[1], sizeof loss[0], "losses under %s", b->policy);
    cr_expect_eq(first_difference(x, y, bytes[0]), -1, "gradients under %s", b->policy);
    free(x), free(y);
}

Test(precision_recipes, are_the_casts_written_by_hand)
{
    static const struct {
        rw_recipe_kind kind;
        rw_dtype dtype;
    } kinds[] = { { RW_RECIPE_BF16, RW_BF16 }, { RW_RECIPE_F16, RW_F16 } };
    for (int i = 0; i < 2; i++)
        expect_same(&(struct way){ .by_hand = kinds[i].dtype, .policy = "none", .threads = 1 },
                    &(struct way){ .kind = kinds[i].kind, .by_hand = RW_F32, .policy = "none", .threads = 1 });
}

Test(precision_recipes, give_the_same_bytes_under_every_policy)
{
    static const char *const policies[] = { "full", "ops:linear", "selective:mlp" };
    const struct way none = { .kind = RW_RECIPE_BF16, .by_hand = RW_F32, .policy = "none", .threads = 1 };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct way other = none;
        other.policy = policies[i];
        other.threads = 1 + (int)i % 3;
        other.verifies = i == 0;
        expect_same(&none, &other);
    }
}

Test(precision_recipes, of_codes_give_the_same_bytes_under_every_policy)
{
    static const rw_scaling scalings[] = { RW_SCALING_TENSOR, RW_SCALING_1X128, RW_SCALING_MX };
    for (int i = 0; i < 3; i++) {
        const struct way none = { .kind = RW_RECIPE_F8, .by_hand = RW_F32, .policy = "none", .threads = 1,
                                  .scaling = scalings[i] };
        struct way other = none;
        other.policy = i == 1 ? "ops:linear" : "full";
        other.threads = 3;
        other.verifies = i == 0;
        expect_same(&none, &other);
    }
}

/* The casts of a refused call are removed, and are not found by values that reuse their ids. */
Test(precision_recipes, leave_nothing_of_calls_that_are_refused)
{
    const struct way none = { .kind = RW_RECIPE_BF16, .by_hand = RW_F32, .policy = "full", .threads = 1 };
    struct way other = none;
    other.blunders = true;
    expect_same(&none, &other);
}

/* ---- products of FP8 data ---- */

static void begin(struct fixture *b, rw_recipe_kind kind)
{
    cr_assert_eq(rw_recipe_begin(b->t, &(rw_recipe){ .kind = kind }), RW_OK);
}

static void end(struct fixture *b)
{
    cr_assert_eq(rw_recipe_end(b->t), RW_OK, "%s", rw_error_message(b->ctx));
}

/* x quantized and dequantized, in float32: exact, because the scale is a power of two. */
static void coded(struct fixture *b, rw_tensor *x, rw_dtype dtype, float *to)
{
    const rw_quantize_params p = { .dtype = dtype, .power_of_two = true };
    rw_tensor *scale, *const codes = rw_quantize(b->t, x, RW_NONE, &p, &scale, NULL);
    rw_tensor *const y = rw_dequantize(b->t, codes, scale, RW_SCALING_TENSOR, RW_F32);
    cr_assert_eq(rw_read(b->t, y, to, rw_tensor_bytes(y)), RW_OK, "%s", rw_error_message(b->ctx));
}

/* c[i, j] = sum over k of a[i ai + k ak] b[j bj + k bk]: the float32 sum of n terms, plus a rounding error. */
static void expect_product(const char *what, const float *c, int rows, int columns, int n, const float *a, int ai,
                           int ak, const float *b, int bj, int bk, double roundoff)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            double sum = 0, size = 0;
            for (int k = 0; k < n; k++) {
                const double term = (double)a[i * ai + k * ak] * (double)b[j * bj + k * bk];
                sum += term, size += fabs(term);
            }
            cr_expect_leq(fabs(c[i * columns + j] - sum), n * 0x1p-23 * size + roundoff * fabs(sum),
                          "%s [%d, %d]: %g, not %g", what, i, j, (double)c[i * columns + j], sum);
        }
}

Test(precision_recipes, products_of_codes_are_those_of_what_the_codes_mean)
{
    enum { ROWS = 7, IN = 12, OUT = 5 };
    float xs[ROWS * IN], ws[OUT * IN], ds[ROWS * OUT], got[ROWS * IN + OUT * IN];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = param(&b, "x", RW_SHAPE(ROWS, IN)), *const w = param(&b, "w", RW_SHAPE(OUT, IN));
    rw_tensor *const c = param(&b, "c", RW_SHAPE(ROWS, OUT)), *const bias = param(&b, "bias", RW_SHAPE(OUT));
    coded(&b, rw_cast(b.t, x, RW_BF16), RW_F8_E4M3, xs);
    coded(&b, w, RW_F8_E4M3, ws);
    coded(&b, rw_cast(b.t, c, RW_BF16), RW_F8_E5M2, ds);
    begin(&b, RW_RECIPE_F8);
    rw_tensor *const y = rw_linear(b.t, x, w, RW_NONE);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, rw_detach(b.t, c)), RW_ALL_AXES, false);
    cr_expect_eq(rw_tensor_dtype(rw_linear(b.t, x, w, bias)), RW_BF16);
    end(&b);
    rw_tensor *const wide = rw_cast(b.t, y, RW_F32);
    cr_assert_eq(rw_read(b.t, wide, got, rw_tensor_bytes(wide)), RW_OK, "%s", rw_error_message(b.ctx));
    expect_product("y", got, ROWS, OUT, IN, xs, IN, 1, ws, IN, 1, 0x1p-8);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(w), got, sizeof ws), RW_OK, "%s", rw_error_message(b.ctx));
    expect_product("dw", got, OUT, IN, ROWS, ds, 1, OUT, xs, 1, IN, 0); /* float32: nothing is rounded to 16 bits */
    cr_assert_eq(rw_read(b.t, rw_gradient(x), got, sizeof xs), RW_OK, "%s", rw_error_message(b.ctx));
    expect_product("dx", got, ROWS, IN, OUT, ds, OUT, 1, ws, 1, IN, 0x1p-8);
    fixture_close(&b);
}

/* One byte per element of input and weight, and their scales, each buffer in whole alignment units: docs/precision.md.
   The scale of a tensor is a scalar, which is among the results. */
Test(precision_recipes, products_of_codes_keep_the_codes)
{
    enum { ROWS = 64, IN = 256, OUT = 128 };
    enum { UNIT = 512 };
    const size_t scales[] = { [RW_SCALING_1X128] = ROWS * 2 * 4 + UNIT,
                              [RW_SCALING_MX] = (ROWS + OUT) * 8 };
    for (int k = 0; k < RW_SCALING_COUNT; k++) {
        if (k != RW_SCALING_TENSOR && !scales[k]) continue;
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const p = param(&b, "p", RW_SHAPE(ROWS, IN)), *const w = param(&b, "w", RW_SHAPE(OUT, IN));
        cr_assert_eq(rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_F8, .scaling = (rw_scaling)k }), RW_OK);
        rw_tensor *const y = rw_linear(b.t, rw_scale(b.t, p, 2), w, RW_NONE);
        end(&b);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        cr_expect_eq(m.kept, ROWS * IN + OUT * IN + scales[k], "scaling %d: %zu", k, m.kept);
        fixture_close(&b);
    }
}

/* Quantization counts as the identity: for dw = dy^T x, times a constant, the gradient of x is dy times that. */
Test(precision_recipes, products_of_codes_have_second_derivatives)
{
    enum { ROWS = 7, IN = 12, OUT = 5 };
    float ks[OUT * IN], ds[ROWS * OUT], got[ROWS * IN];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = param(&b, "x", RW_SHAPE(ROWS, IN)), *const w = param(&b, "w", RW_SHAPE(OUT, IN));
    rw_tensor *const c = param(&b, "c", RW_SHAPE(ROWS, OUT)), *const k = rw_cast(b.t, w, RW_BF16), *g;
    rw_tensor *const factor = rw_detach(b.t, rw_cast(b.t, k, RW_F32));
    coded(&b, rw_cast(b.t, c, RW_BF16), RW_F8_E5M2, ds);
    cr_assert_eq(rw_read(b.t, factor, ks, sizeof ks), RW_OK);
    begin(&b, RW_RECIPE_F8);
    rw_tensor *const y = rw_mul(b.t, rw_linear(b.t, x, w, RW_NONE), rw_detach(b.t, c));
    end(&b);
    rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(b.t, loss, (rw_tensor *[]){ w }, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const second = rw_sum(b.t, rw_mul(b.t, g, factor), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b.t, second), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(x), got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
    expect_product("dx of dw", got, ROWS, IN, OUT, ds, OUT, 1, ks, 1, IN, 0x1p-8);
    fixture_close(&b);
}

/* ---- which casts are recorded ---- */

static int nodes_of(const struct fixture *b, const char *op, const rw_tensor *x)
{
    int n = 0;
    for (size_t i = 0; i < b->t->n_nodes; i++) {
        const struct rw_node *const node = &b->t->nodes[i];
        if (strcmp(b->ctx->ops[node->op]->name, op)) continue;
        const struct rw_tensor *const v = rw_tape_value(b->t, b->t->operands[node->first_input]);
        n += v == x || (v->leaf != RW_NONE_ID && rw_tensor_kind_of(x) == RW_TENSOR_PARAM &&
                        b->t->leaves[v->leaf].kind == RW_LEAF_PARAM && b->t->leaves[v->leaf].param == x->id);
    }
    return n;
}

Test(precision_recipes, cast_a_parameter_once_per_step_and_a_value_once_per_region)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = param(&b, "w", RW_SHAPE(4, 4));
    for (int step = 0; step < 2; step++) {
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(3, 4), NULL, 0), *const h = rw_tanh(b.t, x);
        for (int r = 0; r < 3; r++) {
            begin(&b, RW_RECIPE_BF16);
            ckpt_begin(b.t, "r");
            begin(&b, RW_RECIPE_BF16);
            for (int i = 0; i < 2; i++) rw_linear(b.t, h, w, RW_NONE);
            end(&b);
            rw_matmul(b.t, h, w);
            ckpt_end(b.t);
            end(&b);
        }
        cr_expect_eq(nodes_of(&b, "cast", w), 1);
        cr_expect_eq(nodes_of(&b, "cast", h), 3);
        begin(&b, RW_RECIPE_F16);
        rw_matmul(b.t, h, w);
        end(&b);
        cr_expect_eq(nodes_of(&b, "cast", w), 2, "another type is another cast");
        cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(precision_recipes, quantize_a_weight_once_per_step)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = param(&b, "w", RW_SHAPE(4, 4)), *const x = rw_input(b.t, RW_BF16, RW_SHAPE(3, 4), NULL, 0);
    begin(&b, RW_RECIPE_F8);
    for (int r = 0; r < 3; r++) {
        ckpt_begin(b.t, "r");
        for (int i = 0; i < 2; i++) rw_linear(b.t, x, w, RW_NONE);
        ckpt_end(b.t);
    }
    end(&b);
    cr_expect_eq(nodes_of(&b, "quantize", w), 1);
    cr_expect_eq(nodes_of(&b, "quantize", x), 3, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(precision_recipes, of_a_16_bit_parameter_there_is_nothing_to_cast)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(4, 4));
    begin(&b, RW_RECIPE_BF16);
    rw_tensor *const y = rw_linear(b.t, rw_input(b.t, RW_BF16, RW_SHAPE(3, 4), NULL, 0), w, RW_NONE);
    end(&b);
    cr_expect_eq(b.t->n_nodes, 1);
    cr_expect_eq(rw_tensor_dtype(y), RW_BF16);
    fixture_close(&b);
}

/* ---- the types in which ops run ---- */

static rw_tensor *input(struct fixture *b, rw_dtype dtype, rw_shape shape)
{
    return rw_input(b->t, dtype, shape, NULL, 0);
}

#define TYPE(Y, TYPE) \
    cr_expect_eq(rw_tensor_dtype(Y), TYPE, "%s: %s, %s", #Y, rw_dtype_name(rw_tensor_dtype(Y)), rw_error_message(b.ctx))

/* x of float32, n of bfloat16, h of float16, each [4, 4], v of float32 [4]. */
static void sequences(struct fixture *f, rw_recipe_kind kind, rw_tensor *x, rw_tensor *n, rw_tensor *h, rw_tensor *v)
{
    struct fixture b = *f;
    rw_tape *const t = b.t;
    rw_tensor *const long_n = rw_unsqueeze(t, n, 0), *const long_x = rw_unsqueeze(t, x, 0);
    rw_tensor *const sixteen = input(&b, RW_F32, RW_SHAPE(16, 4)), *const twelve = input(&b, RW_F32, RW_SHAPE(12, 4));
    const rw_recurrent_weights lstm = { sixteen, sixteen, RW_NONE, RW_NONE };
    const rw_recurrent_weights gru = { twelve, twelve, RW_NONE, RW_NONE };
    const rw_ssd_operands scanned = { .x = rw_reshape(t, n, RW_SHAPE(1, 4, 2, 2)),
                                      .dt = input(&b, RW_F32, RW_SHAPE(1, 4, 2)),
                                      .a = rw_slice(t, v, 0, 0, 2),
                                      .b = rw_reshape(t, h, RW_SHAPE(1, 4, 1, 4)),
                                      .c = rw_reshape(t, x, RW_SHAPE(1, 4, 1, 4)),
                                      .state = RW_NONE };
    const rw_dtype low = kind == RW_RECIPE_F32 ? RW_F32 : kind == RW_RECIPE_F16 ? RW_F16 : RW_BF16;
    TYPE(rw_causal_conv1d(t, long_n, x, v), low);
    TYPE(rw_lstm_cell(t, n, x, x, &lstm, NULL), RW_F32);
    TYPE(rw_lstm(t, long_n, RW_NONE, x, &lstm, NULL, NULL), RW_F32);
    TYPE(rw_gru_cell(t, x, n, &gru), low == RW_BF16 ? RW_BF16 : RW_F32);
    TYPE(rw_gru(t, long_x, RW_NONE, &gru, NULL), RW_F32);
    TYPE(rw_ssd_scan(t, &scanned, 2, NULL), RW_F32);
}

Test(precision_recipes, what_runs_in_which_type)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *const t = b.t;
    static const rw_dtype low_of[] = { [RW_RECIPE_F32] = RW_F32, [RW_RECIPE_BF16] = RW_BF16, [RW_RECIPE_F16] = RW_F16,
                                       [RW_RECIPE_F8] = RW_BF16 };
    for (rw_recipe_kind kind = RW_RECIPE_F32; kind < RW_RECIPE_COUNT; kind++) {
        const rw_dtype l = low_of[kind];
        rw_tensor *const x = input(&b, RW_F32, RW_SHAPE(4, 4)), *const n = input(&b, RW_BF16, RW_SHAPE(4, 4));
        rw_tensor *const h = input(&b, RW_F16, RW_SHAPE(4, 4)), *const v = input(&b, RW_F32, RW_SHAPE(4));
        rw_tensor *const image = input(&b, RW_F32, RW_SHAPE(1, 4, 4, 4));
        rw_tensor *const taps = input(&b, RW_F32, RW_SHAPE(4, 4, 2, 2));
        begin(&b, kind);
        TYPE(rw_matmul(t, x, n), l);
        TYPE(rw_linear(t, h, x, v), l);
        TYPE(rw_linear_gelu(t, x, n, v), l);
        TYPE(rw_linear_add(t, x, n, v, x), RW_F32);
        TYPE(rw_conv2d(t, image, taps, v, NULL), l);
        TYPE(rw_conv_transpose2d(t, image, taps, v, NULL), l);
        TYPE(rw_attention(t, image, image, image, NULL), l);
        TYPE(rw_einsum(t, "ij,jk->ik", ((rw_tensor *[]){ x, h }), 2), l);
        TYPE(rw_softmax(t, n, -1), RW_F32);
        TYPE(rw_logsumexp(t, n, RW_AXES(0), false), RW_F32);
        TYPE(rw_layernorm(t, n, v, RW_NONE, 1e-5), RW_F32);
        TYPE(rw_rmsnorm(t, h, v, 1e-5), RW_F32);
        TYPE(rw_sum(t, n, RW_AXES(0), false), RW_F32);
        TYPE(rw_var(t, n, RW_AXES(0), false, false), RW_F32);
        TYPE(rw_exp(t, h), RW_F32);
        TYPE(rw_mse_loss(t, n, x), RW_F32);
        TYPE(rw_bce_with_logits(t, n, x, RW_NONE, RW_NONE, RW_REDUCTION_NONE), RW_F32);
        TYPE(rw_add(t, n, x), RW_F32);
        TYPE(rw_mul(t, n, h), RW_F32);
        TYPE(rw_add(t, n, n), RW_BF16);
        TYPE(rw_gelu(t, n), RW_BF16);
        TYPE(rw_concat(t, ((rw_tensor *[]){ n, x }), 2, 0), RW_F32);
        TYPE(rw_where(t, input(&b, RW_BOOL, RW_SHAPE(4, 4)), n, x), RW_F32);
        TYPE(rw_dropout_add(t, n, x, 0.5), RW_F32);
        TYPE(rw_add(t, n, input(&b, RW_F64, RW_SHAPE(4))), RW_F64);
        TYPE(rw_matmul(t, input(&b, RW_F64, RW_SHAPE(4, 4)), input(&b, RW_F64, RW_SHAPE(4, 4))), RW_F64);
        sequences(&b, kind, x, n, h, v);
        begin(&b, RW_RECIPE_NONE);
        TYPE(rw_matmul(t, x, x), RW_F32);
        TYPE(rw_sum(t, n, RW_AXES(0), false), RW_BF16);
        cr_expect_null(rw_matmul(t, x, n), "nothing is cast");
        rw_error_clear(b.ctx);
        end(&b);
        end(&b);
        TYPE(rw_matmul(t, n, n), RW_BF16);
        cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(t);
    }
    fixture_close(&b);
}

/* Rules run in the types of their operands: a recipe that is open where a program is differentiated does not apply to
   them. */
Test(precision_recipes, do_not_reach_into_gradients)
{
    rw_tensor *g[2];
    float got[2][16];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *w = param(&b, "w", RW_SHAPE(4, 4));
    for (int inside = 0; inside < 2; inside++) {
        rw_tensor *const y = rw_softmax(b.t, rw_linear(b.t, w, w, RW_NONE), -1);
        rw_tensor *const one = rw_mean(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
        if (inside) begin(&b, RW_RECIPE_BF16);
        cr_assert_eq(rw_grad(b.t, one, &w, 1, &g[inside]), RW_OK, "%s", rw_error_message(b.ctx));
        if (inside) end(&b);
        cr_assert_eq(rw_read(b.t, g[inside], got[inside], sizeof got[inside]), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    cr_expect_arr_eq(got[0], got[1], sizeof got[0]);
    fixture_close(&b);
}

/* The ids of an undone call's values belong to other values afterwards. */
Test(precision_recipes, what_a_refused_call_has_cast_is_not_found_again)
{
    uint16_t got[2][16];
    struct fixture b = fixture_open(1, 1);
    float data[16];
    for (int i = 0; i < 16; i++) data[i] = (float)(i % 5) - 1.5f;
    rw_tensor *const z = rw_input(b.t, RW_F32, RW_SHAPE(4, 4), data, sizeof data), *const w = param(&b, "w",
                                                                                                    RW_SHAPE(4, 4));
    begin(&b, RW_RECIPE_BF16);
    cr_assert_null(rw_linear(b.t, w, param(&b, "wrong", RW_SHAPE(4, 5)), RW_NONE));
    rw_error_clear(b.ctx);
    rw_tensor *const h = rw_tanh(b.t, z);
    rw_matmul(b.t, z, z);
    rw_tensor *const y = rw_matmul(b.t, h, h);
    end(&b);
    rw_tensor *const want = rw_matmul(b.t, rw_cast(b.t, h, RW_BF16), rw_cast(b.t, h, RW_BF16));
    cr_assert_eq(rw_read(b.t, y, got[0], sizeof got[0]), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, want, got[1], sizeof got[1]), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_arr_eq(got[0], got[1], sizeof got[0]);
    fixture_close(&b);
}

/* ---- invalid calls ---- */

static void expect(struct fixture *b, rw_status got, rw_status want, const char *part)
{
    cr_expect_eq(got, want, "%s, not %s", rw_status_name(got), rw_status_name(want));
    cr_expect_not_null(strstr(rw_error_message(b->ctx), part), "\"%s\" is not in: %s", part, rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
    rw_tape_reset(b->t);
}

Test(precision_recipes, are_closed_where_they_were_opened)
{
    struct fixture b = fixture_open(1, 1);
    const rw_recipe bf16 = { .kind = RW_RECIPE_BF16 }, wrong = { .kind = (rw_recipe_kind)77 };
    rw_tensor *const w = param(&b, "w", RW_SHAPE(4));
    cr_expect_eq(rw_recipe_begin(NULL, &bf16), RW_ERR_ARGUMENT);
    cr_expect_eq(rw_recipe_end(NULL), RW_ERR_ARGUMENT);
    expect(&b, rw_recipe_begin(b.t, NULL), RW_ERR_ARGUMENT, "recipe");
    expect(&b, rw_recipe_begin(b.t, &wrong), RW_ERR_ARGUMENT, "got 77");
    const rw_recipe square = { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_128X128 };
    expect(&b, rw_recipe_begin(b.t, &square), RW_ERR_ARGUMENT, "got 2");
    const rw_recipe powers = { .kind = RW_RECIPE_F8, .gradient_dtype = RW_F8_E8M0 };
    expect(&b, rw_recipe_begin(b.t, &powers), RW_ERR_DTYPE, "expected f8_e4m3 or f8_e5m2, got f8_e8m0");
    begin(&b, RW_RECIPE_F8);
    cr_expect_null(rw_linear(b.t, NULL, w, RW_NONE));
    cr_expect_null(rw_linear(b.t, w, rw_input(b.t, RW_F32, RW_SHAPE(2, 7), NULL, 0), RW_NONE));
    end(&b);
    cr_expect_eq(b.t->n_nodes, 0, "nothing is left of what was refused");
    rw_error_clear(b.ctx);
    expect(&b, rw_recipe_end(b.t), RW_ERR_REGION, "expected an open recipe, got none");
    begin(&b, RW_RECIPE_BF16);
    ckpt_begin(b.t, "inner");
    expect(&b, rw_recipe_end(b.t), RW_ERR_REGION, "inside the recipe, got \"inner\"");
    ckpt_begin(b.t, "outer");
    begin(&b, RW_RECIPE_BF16);
    expect(&b, ckpt_end(b.t), RW_ERR_REGION, "precision_recipes.c");
    begin(&b, RW_RECIPE_BF16);
    expect(&b, rw_backward(b.t, rw_sum(b.t, w, RW_ALL_AXES, false)), RW_ERR_REGION,
           "expected no open recipe, got one begun at");
    begin(&b, RW_RECIPE_BF16);
    rw_tape_reset(b.t);
    expect(&b, rw_recipe_end(b.t), RW_ERR_REGION, "expected an open recipe, got none");
    fixture_close(&b);
}

/* ---- for functions that record several ops ---- */

Test(precision_recipes, what_a_composite_function_asks)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(4, 8)), *const i = rw_input(b.t, RW_I32, RW_SHAPE(2),
                                                                                       NULL, 0);
    rw_init_normal(x, 0, 1);
    cr_expect_eq(rw_recipe_cast_low(b.t, x), x);
    cr_expect_eq(rw_recipe_low_dtype(b.t, x), RW_F32);
    rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_BF16 });
    rw_tensor *const low = rw_recipe_cast_low(b.t, x);
    cr_assert_not_null(low, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_tensor_dtype(low), RW_BF16);
    cr_expect_eq(rw_recipe_cast_low(b.t, x), low, "one cast per step");
    cr_expect_eq(rw_recipe_low_dtype(b.t, x), RW_BF16);
    cr_expect_eq(rw_tensor_dtype(rw_recipe_cast_f32(b.t, low)), RW_F32);
    cr_expect_eq(rw_recipe_cast_low(b.t, i), i);
    cr_expect_eq(rw_recipe_low_dtype(b.t, i), RW_I32);
    cr_expect_null(rw_recipe_cast_low(b.t, NULL));
    cr_expect_null(rw_recipe_fp8(b.t));
    rw_recipe_end(b.t);
    cr_expect_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

static void expect_refused(struct fixture *b, const void *result, const char *text)
{
    cr_expect_null(result, "%s", text);
    cr_expect_eq(rw_error_status(b->ctx), RW_ERR_ARGUMENT, "%s: %s", text, rw_error_message(b->ctx));
    cr_expect(strstr(rw_error_message(b->ctx), text), "\"%s\" is not in: %s", text, rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

/* The data is that of rw_quantize(), once per step for a parameter; its gradient's slot is empty without histories. */
Test(precision_recipes, fp8_data_for_a_product_of_the_caller)
{
    struct fixture b = fixture_open(1, 1);
    const rw_quantize_params p = { .power_of_two = true };
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(8, 4)), *scale = NULL, *other = NULL;
    rw_init_normal(w, 0, 1);
    rw_tensor *const value = rw_operand_at(RW_HERE, b.t, w, "product");
    expect_refused(&b, rw_recipe_quantize(b.t, value, &p, value, RW_DELAYED_WEIGHT, &scale), "open recipe");
    rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_F8 });
    cr_assert_not_null(rw_recipe_fp8(b.t));
    cr_expect_eq(rw_recipe_fp8(b.t)->kind, RW_RECIPE_F8);
    rw_tensor *const codes = rw_recipe_quantize(b.t, value, &p, value, RW_DELAYED_WEIGHT, &scale);
    cr_assert_not_null(codes, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_recipe_quantize(b.t, value, &p, value, RW_DELAYED_WEIGHT, &other), codes);
    cr_expect_eq(other, scale);
    unsigned char a[32], same[32];
    cr_assert_eq(rw_read(b.t, codes, a, sizeof a), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_quantize(b.t, value, RW_NONE, &p, &other, NULL), same, sizeof same), RW_OK);
    cr_expect_arr_eq(a, same, sizeof a);
    rw_recipe_slot slot, forged = { { 1, 0 }, { 0, 0 } };
    cr_assert_eq(rw_recipe_gradient_slot(b.t, value, &slot, &other), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(other, RW_NONE);
    cr_expect_eq(slot.amax_[0], 0);
    cr_expect_not_null(rw_recipe_quantize_gradient(b.t, value, RW_NONE, &p, &slot, &other));
    expect_refused(&b, rw_recipe_quantize_gradient(b.t, value, RW_NONE, &p, &forged, &other), "expected a slot");
    expect_refused(&b, rw_recipe_quantize_gradient(b.t, value, value, &p, &forged, &other), "expected a slot");
    expect_refused(&b, rw_recipe_quantize_gradient(b.t, value, RW_NONE, &p, NULL, &other), "slot is NULL");
    expect_refused(&b, rw_recipe_quantize(b.t, w, &p, value, RW_DELAYED_WEIGHT, &scale), "a value of the tape");
    expect_refused(&b, rw_recipe_quantize(b.t, value, &p, value, RW_DELAYED_GRADIENT, &scale), "RW_DELAYED_INPUT");
    rw_recipe_end(b.t);
    fixture_close(&b);
}

/* With histories the slot has a row, its scale is a value of the tape, and the amax of the gradient is recorded. */
Test(precision_recipes, the_slot_of_a_gradient_under_delayed_scaling)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(8, 4)), *scale = NULL, *of_codes = NULL;
    rw_init_normal(w, 0, 1);
    rw_delayed_scaling *d = NULL;
    cr_assert_eq(rw_delayed_scaling_create(&d, b.ctx, NULL), RW_OK);
    rw_tensor *const value = rw_operand_at(RW_HERE, b.t, w, "product");
    rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = d });
    rw_recipe_slot slot;
    cr_assert_eq(rw_recipe_gradient_slot(b.t, value, &slot, &scale), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_neq(scale, RW_NONE);
    cr_expect_neq(slot.amax_[0], 0);
    cr_expect_eq(slot.amax_[1], RW_DELAYED_GRADIENT);
    const rw_quantize_params p = { RW_F8_E5M2, RW_SCALING_TENSOR, true };
    cr_expect_not_null(rw_recipe_quantize_gradient(b.t, value, scale, &p, &slot, &of_codes), "%s",
                       rw_error_message(b.ctx));
    expect_refused(&b, rw_recipe_quantize_gradient(b.t, value, RW_NONE, &p, &slot, &of_codes), "expected a slot");
    slot.amax_[1] = 1000;
    expect_refused(&b, rw_recipe_quantize_gradient(b.t, value, scale, &p, &slot, &of_codes), "expected a slot");
    rw_tensor *const gone = rw_scale(b.t, value, 2);
    const rw_quantize_params mx = { .scaling = RW_SCALING_MX };
    const size_t nodes = rw_tape_nodes(b.t);
    cr_expect_null(rw_recipe_quantize(b.t, value, &mx, value, RW_DELAYED_INPUT, &of_codes));
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_tape_nodes(b.t), nodes, "a failed call leaves nothing");
    expect_refused(&b, rw_recipe_quantize(b.t, value, NULL, gone, RW_DELAYED_INPUT, &of_codes),
                   "rw_recipe_quantize at");
    cr_expect_eq(rw_recipe_gradient_slot(b.t, gone, &slot, &scale), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    rw_recipe_end(b.t);
    rw_delayed_scaling_destroy(&d);
    fixture_close(&b);
}
