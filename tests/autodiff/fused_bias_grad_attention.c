/*
 * The fused gradient of the bias of the layer that computes q, k and v: the column sums of dq, dk and dv, taken in the
 * pass that computes them. They are sums of the stored values, and change nothing else. If other ops read the layer's
 * result, or the bias has another use, the layer sums by itself.
 */
#include "autodiff/fused_bias_grad_fixture.h"

#include <math.h>
#include <string.h>

enum { FEATURES = 8 };

enum options { PLAIN, WINDOW, DOCUMENTS, CAPPED, SINKS, MASK_OF_ITS_OWN, FROM_LSE };

struct call {
    int64_t batch, heads, kv_heads, seq, d;
    bool causal;
    double dropout;
    enum options options;
    rw_dtype dtype;
    bool constant; /* the bias is not a parameter */
    rw_tensor *bias, *h;
};

static int64_t columns_of(const struct call *c)
{
    return (c->heads + 2 * c->kv_heads) * c->d;
}

static void make_bias(struct fixture *b, struct call *c)
{
    c->bias = bias_of_zeros(b, c->dtype, columns_of(c), c->constant);
}

static rw_tensor *of_layer(struct fixture *b, struct call *c)
{
    rw_tensor *const w = numbers(b, c->dtype, RW_SHAPE(columns_of(c), FEATURES), 2);
    rw_tensor *const x = numbers(b, c->dtype, RW_SHAPE(c->batch, c->seq, FEATURES), 1);
    return c->h = rw_require_grad(b->t, rw_linear(b->t, x, w, c->bias));
}

static bool cut(struct fixture *b, const struct call *c, rw_tensor *h, rw_tensor **ret_qkv)
{
    rw_tensor *const x = rw_reshape(b->t, h, RW_SHAPE(c->batch, c->seq, c->heads + 2 * c->kv_heads, c->d));
    if (rw_split(b->t, x, 2, (int64_t[]){ c->heads, c->kv_heads, c->kv_heads }, 3, ret_qkv)) return false;
    for (int i = 0; i < 3; i++) ret_qkv[i] = rw_transpose(b->t, ret_qkv[i], 1, 2);
    return true;
}

/* Attention with the call's options on q, k and v, and a loss of it, or also of the log-sum-exp. */
static rw_tensor *attend(struct fixture *b, const struct call *c, rw_tensor **qkv)
{
    static const int32_t ends[] = { 2, 3, 6, 6 }; /* places before the first and after the last attend to nothing */
    rw_attention_params o = { .causal = c->causal, .dropout = c->dropout };
    rw_tensor *lse = NULL;
    if (c->options == WINDOW) o.window = 3;
    if (c->options == CAPPED) o.soft_cap = 2;
    if (c->options == DOCUMENTS) o.documents = rw_input(b->t, RW_I32, RW_SHAPE(4), ends, sizeof ends);
    if (c->options == SINKS) o.sinks = rw_require_grad(b->t, numbers(b, c->dtype, RW_SHAPE(c->heads), 7));
    if (c->options == MASK_OF_ITS_OWN)
        o.mask = rw_require_grad(b->t, numbers(b, c->dtype, RW_SHAPE(1, c->heads, c->seq, c->seq), 8));
    rw_tensor *const y = rw_attention_lse(b->t, qkv[0], qkv[1], qkv[2], &o, &lse);
    cr_assert(y, "%s", rw_error_message(b->ctx));
    const rw_tensor *const g = y;
    rw_tensor *loss = rw_sum(b->t, rw_mul(b->t, y, numbers(b, c->dtype, rw_tensor_shape(g), 3)), RW_ALL_AXES, false);
    if (c->options != FROM_LSE) return loss;
    loss = rw_cast(b->t, loss, rw_tensor_dtype(lse));
    return rw_add(b->t, loss, rw_sum(b->t, rw_mul(b->t, lse, lse), RW_ALL_AXES, false));
}

static rw_tensor *loss_of(struct fixture *b, struct call *c)
{
    rw_tensor *qkv[3];
    ckpt_begin(b->t, "layer");
    rw_generator_set(b->ctx, (rw_generator_state){ 5, 13 });
    cr_assert(cut(b, c, of_layer(b, c), qkv), "%s", rw_error_message(b->ctx));
    rw_tensor *const loss = attend(b, c, qkv);
    ckpt_end(b->t);
    return loss;
}

/* The bias's gradient compared with float64 sums of the stored columns, `times` over. */
static void expect_sums(struct fixture *b, const struct call *c, int times)
{
    size_t n;
    char *const sums = read_gradient(b, c->bias, &n), *const rows = read_gradient(b, c->h, &n);
    const rw_dtype wide = rw_tensor_dtype(rw_gradient(c->bias));
    const double unit = wide == RW_F64 ? 0x1p-53 : 0x1p-24;
    const int64_t all = c->batch * c->seq, width = columns_of(c);
    for (int64_t i = 0; i < width; i++) {
        double sum = 0, size = 0;
        for (int64_t r = 0; r < all; r++) {
            const double x = number_get(rows, c->dtype, r * width + i);
            sum += x, size += fabs(x);
        }
        const double off = fabs(number_get(sums, wide, i) - times * sum);
        cr_assert(off <= ((double)all + 4) * times * unit * size, "%s, %lld x %lld x %lld x %lld, option %d, column "
                  "%lld: %g, not %g", rw_dtype_name(c->dtype), (long long)c->batch, (long long)c->heads,
                  (long long)c->seq, (long long)c->d, (int)c->options, (long long)i, number_get(sums, wide, i),
                  times * sum);
    }
    free(sums), free(rows);
}

/* The gradient of the layer's result has the bytes of a step without a bias gradient. */
static void expect_the_rest(struct fixture *b, struct call c)
{
    struct fixture other = fixture_open(1, 1);
    size_t n, m;
    char *const with = read_gradient(b, c.h, &n);
    c.constant = true;
    make_bias(&other, &c);
    rw_tensor *const loss = loss_of(&other, &c);
    const rw_plan *const plan = step_plan(&other, loss);
    cr_expect_eq(steps_of(&other, plan, "attention_backward"), 1);
    cr_expect_eq(steps_of(&other, plan, "attention_backward_columns"), 0);
    backward(&other, loss);
    char *const without = read_gradient(&other, c.h, &m);
    cr_assert_eq(n, m);
    cr_assert_eq(first_difference(with, without, n), -1, "%s, %lld x %lld, option %d", rw_dtype_name(c.dtype),
                 (long long)c.seq, (long long)c.d, (int)c.options);
    free(with), free(without);
    fixture_close(&other);
}

/* The plan must sum a bias's gradient in the attention kernel, and the sums must be right. */
static void check(struct call c)
{
    struct fixture b = fixture_open(1, 3);
    make_bias(&b, &c);
    for (int step = 1; step <= 2; step++) { /* into a clear gradient, then into another */
        rw_tape_reset(b.t);
        rw_tensor *const loss = loss_of(&b, &c);
        const rw_plan *const plan = step_plan(&b, loss);
        cr_expect_eq(steps_of(&b, plan, "attention_backward_columns"), 1);
        cr_expect_eq(steps_of(&b, plan, "sum_to_add") + steps_of(&b, plan, "concat"), 0);
        backward(&b, loss);
        expect_sums(&b, &c, step);
        if (step == 1) expect_the_rest(&b, c);
    }
    fixture_close(&b);
}

/* Heads for the tensor cores and others, partial tiles, one row, two passes of the CPU and one. */
static void check_all(rw_dtype dtype)
{
    static const struct call all[] = {
        { 2, 4, 4, 9, 16, true, 0 }, { 9, 2, 1, 70, 5, true, 0.2 },  { 2, 2, 1, 130, 64, true, 0 },
        { 1, 2, 2, 65, 64, false, 0.1 }, { 1, 2, 1, 130, 128, true, 0 }, { 1, 1, 1, 1, 64, true, 0 },
        { 3, 3, 3, 65, 24, false, 0 }, { 1, 2, 2, 33, 128, false, 0.3 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct call c = all[i];
        c.dtype = dtype;
        check(c);
    }
    for (enum options options = WINDOW; options <= FROM_LSE; options++)
        for (int wide = 0; wide < 2; wide++)
            check((struct call){ .batch = 2, .heads = 4, .kv_heads = 2, .seq = 8, .d = wide ? 64 : 12,
                                 .causal = options != DOCUMENTS, .options = options, .dtype = dtype });
}

Test(fused_bias_grad_attention, float32) { check_all(RW_F32); }
Test(fused_bias_grad_attention, bfloat16) { check_all(RW_BF16); }
Test(fused_bias_grad_attention, float16) { check_all(RW_F16); }
Test(fused_bias_grad_attention, float64) { check_all(RW_F64); }

/* ---- the same bytes, whatever is replayed ---- */

static char *under(const char *policy, bool graph, int threads, int64_t d, size_t *ret_bytes)
{
    struct fixture b = fixture_open(1, threads);
    struct call c = { 2, 2, 1, 70, d, true, 0.1, PLAIN, RW_BF16 };
    rw_graph *g = NULL;
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    make_bias(&b, &c);
    rw_tensor *const loss = loss_of(&b, &c);
    if (graph) cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(graph ? audited_launch(g, b.t) : rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    char *const bytes = read_gradient(&b, c.bias, ret_bytes);
    rw_graph_destroy(&g);
    fixture_close(&b);
    return bytes;
}

Test(fused_bias_grad_attention, any_policy)
{
    static const char *const policies[] = { "none", "full", "ops:linear", "ops:attention" };
    for (int64_t d = 32; d <= 64; d *= 2) {
        size_t n, m;
        char *const none = under("none", false, 1, d, &n);
        for (size_t i = 0; i < 2 * (sizeof policies / sizeof *policies); i++) {
            char *const other = under(policies[i / 2], i % 2, 2 + (int)i, d, &m);
            cr_assert_eq(n, m);
            cr_assert_eq(first_difference(none, other, n), -1, "%s%s", policies[i / 2], i % 2 ? ", as a graph" : "");
            free(other);
        }
        free(none);
    }
}

/* ---- cases in which the layer sums by itself ---- */

enum way {
    ALONE,
    BIAS_TWICE,
    ANOTHER_READER,
    AN_EARLIER_READER,
    A_READER_OF_A_PIECE,
    ANOTHER_USE_OF_K,
    A_COPY,
    BY_HEADS,
    A_ROOT,
    WAYS
};

/* Records a layer whose bias gradient must not be fused, for the given reason. */
static rw_tensor *record(struct fixture *b, enum way way, struct call *c)
{
    rw_tape *const t = b->t;
    rw_tensor *qkv[3], *loss;
    if (way == BY_HEADS) { /* a bias with one head's columns */
        rw_tensor *const w = numbers(b, c->dtype, RW_SHAPE(c->d, FEATURES), 2);
        const rw_shape heads = RW_SHAPE(c->batch, c->seq, c->heads + 2 * c->kv_heads, FEATURES);
        c->h = rw_require_grad(t, rw_linear(t, numbers(b, c->dtype, heads, 1), w, c->bias));
    } else {
        of_layer(b, c);
    }
    rw_tensor *const before = way == AN_EARLIER_READER ? rw_sum(t, rw_mul(t, c->h, c->h), RW_ALL_AXES, false) : NULL;
    cr_assert(cut(b, c, c->h, qkv), "%s", rw_error_message(b->ctx));
    if (way == A_COPY) qkv[0] = rw_scale(t, qkv[0], 1);
    loss = attend(b, c, qkv);
    if (before) loss = rw_add(t, loss, before);
    rw_tensor *const more = way == ANOTHER_READER        ? c->h
                            : way == A_READER_OF_A_PIECE ? rw_tensor_base(qkv[2])
                            : way == ANOTHER_USE_OF_K    ? qkv[1]
                            : way == BIAS_TWICE          ? c->bias
                                                         : NULL;
    return more ? rw_add(t, loss, rw_sum(t, rw_mul(t, more, more), RW_ALL_AXES, false)) : loss;
}

Test(fused_bias_grad_attention, only_what_is_whole)
{
    for (enum way way = ALONE; way < WAYS; way++) {
        struct fixture b = fixture_open(1, 2);
        struct call c = { 2, 4, 2, 7, 6, true, 0, PLAIN, RW_F64 };
        if (way == BY_HEADS) {
            struct call one = c;
            one.heads = 1, one.kv_heads = 0;
            make_bias(&b, &one);
            c.bias = one.bias;
        } else {
            make_bias(&b, &c);
        }
        rw_tensor *const loss = record(&b, way, &c), *const roots[] = { loss, c.h };
        if (way == A_ROOT) { /* the layer's result is a root, too */
            cr_assert_eq(rw_backward_from(b.t, roots, NULL, 2), RW_OK, "%s", rw_error_message(b.ctx));
        } else {
            const rw_plan *const plan = step_plan(&b, loss);
            cr_expect_eq(steps_of(&b, plan, "attention_backward_columns"), way == ALONE, "way %d", (int)way);
            cr_expect_eq(steps_of(&b, plan, "attention_backward"), way != ALONE, "way %d", (int)way);
            backward(&b, loss);
        }
        if (way != BIAS_TWICE && way != BY_HEADS) expect_sums(&b, &c, 1);
        fixture_close(&b);
    }
}

/* The gradient of a bias that is a value is not accumulated. */
Test(fused_bias_grad_attention, a_bias_that_is_a_value)
{
    struct fixture b = fixture_open(1, 2);
    struct call c = { 2, 4, 2, 9, 64, true, 0, PLAIN, RW_F32 };
    c.bias = rw_require_grad(b.t, numbers(&b, c.dtype, RW_SHAPE(columns_of(&c)), 5));
    rw_tensor *const loss = loss_of(&b, &c);
    const rw_plan *const plan = step_plan(&b, loss);
    cr_expect_eq(steps_of(&b, plan, "attention_backward"), 1);
    cr_expect_eq(steps_of(&b, plan, "sum_to") + steps_of(&b, plan, "sum_to_add"), 0);
    backward(&b, loss);
    expect_sums(&b, &c, 1);
    fixture_close(&b);
}
