/*
 * Every op against PyTorch: values and gradients in float64 from inputs that all types hold exactly
 * (golden/make_golden.py, golden/ops.golden), which float64, float32 and bfloat16 are held to. A case of the file is OP
 * or OP.VARIANT, where a variant has other shapes or values; OP is a row of the table below.
 *
 * Every element has its own bound: the roundings of the op (op_roundings.h) times the magnitude of the terms that meet
 * in it, which is in the file (compare.h says how they make a bound).
 *
 * REWIND_GOLDEN_SHOW=1 prints how much of its bound each case uses (without --tap, which swallows it).
 */
#include "support/op_builds.h"
#include "support/op_roundings.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TENSORS 2048
#define MOST_BYTES (3 << 19)

struct golden {
    char name[64];
    uint32_t code; /* 0 float32, 1 float64, 2 int32 */
    rw_shape shape;
    const unsigned char *data;
};

static struct golden tensors[MOST_TENSORS];
static size_t n_tensors;

/* A composed op: attention with its scores in memory. */
static rw_tensor *attention_scores(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *const scores = rw_matmul(t, x[0], rw_transpose(t, x[1], -1, -2));
    return rw_matmul(t, rw_causal_softmax(t, scores, op_single(c->value)), x[2]);
}

static rw_tensor *with_rand(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    (void)c;
    return rw_mul(t, x[0], rw_rand(t, rw_tensor_dtype(x[0]), rw_tensor_shape(x[0])));
}

static rw_tensor *with_randn(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    (void)c;
    return rw_mul(t, x[0], rw_randn(t, rw_tensor_dtype(x[0]), rw_tensor_shape(x[0])));
}

static rw_tensor *transpose(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    (void)c;
    return rw_contiguous(t, rw_transpose(t, x[0], 0, -1));
}

static rw_tensor *split(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *part[3];
    const int64_t n = c->in[0].shape.dim[2];
    if (rw_split(t, x[0], -1, (const int64_t[]){ 1, 2, n - 3 }, 3, part)) return NULL;
    return rw_concat(t, (rw_tensor *const[]){ part[2], part[0] }, 2, -1);
}

/*
 * Scores and probabilities are stored, and the gradients of both: dq and dk have scores, p, dp and ds in one term, and
 * scores and p once more in the other, p sum(p dp). The arithmetic is that of the fused op.
 */
static void count_attention_scores(struct op_case *c)
{
    op_count_attention(c);
    c->r[0].s = 2;
    c->r[1].s = c->r[2].s = 6;
    c->r[3].s = 2;
}

struct row {
    const char *name;
    struct op_case c;
    void (*count)(struct op_case *c); /* when the roundings depend on the shapes */
};

#define ROW(name, builder, ...)                                                                                        \
    {                                                                                                                  \
#name, { .build = op_build_##builder, __VA_ARGS__ }, NULL                                                      \
    }
#define COUNTED(name, builder, count, ...)                                                                             \
    {                                                                                                                  \
#name, { .build = op_build_##builder, __VA_ARGS__ }, op_count_##count                                          \
    }
#define SHAPE(...) .shape = RW_SHAPE(__VA_ARGS__)
static const struct row rows[] = {
    COUNTED(add, add, broadcast, .r = { { 1, 0 } }),
    COUNTED(sub, sub, broadcast, .r = { { 1, 0 } }),
    COUNTED(mul, mul, broadcast, .r = { { 1, 0 }, { 1, 1 }, { 1, 1 } }),
    COUNTED(div, div, broadcast, .r = { { 1, 0 }, { 1, 1 }, { 4, 3 } }),
    COUNTED(maximum, maximum, broadcast, .r = { { 0, 0 } }),
    COUNTED(minimum, minimum, broadcast, .r = { { 0, 0 } }),
    ROW(scale, scale, .value = 1.7, .r = { { 2, 0 }, { 2, 0 } }),
    ROW(add_scalar, add_scalar, .value = 0.3, .r = { { 2, 0 } }),
    ROW(pow_scalar, pow_scalar, .value = 2.5, .r = { { N_POW, 0 }, { N_POW_G, 2 } }),
    ROW(pow_negative, pow_scalar, .value = -0.5, .r = { { N_POW, 0 }, { N_POW_G, 2 } }),
    ROW(neg, neg, ),
    ROW(abs, abs, ),
    ROW(exp, exp, .r = { { N_F, 0 }, { N_F + 1, 1 } }),
    ROW(log, log, .r = { { N_F, 0 }, { 1, 0 } }),
    ROW(log1p, log1p, .r = { { N_F, 0 }, { 2, 1 } }),
    ROW(sqrt, sqrt, .r = { { 1, 0 }, { 3, 1 } }),
    ROW(tanh, tanh, .r = { { N_F, 0 }, { N_TANH_G, 1 } }),
    ROW(erf, erf, .r = { { N_F, 0 }, { N_ERF_G, 6 } }),
    ROW(sin, sin, .r = { { N_F, 0 }, { N_F + 1, 1 } }),
    ROW(cos, cos, .r = { { N_F, 0 }, { N_F + 1, 2 } }),
    ROW(softplus, softplus, .r = { { N_SOFTPLUS, 0 }, { N_SIGMOID + 1, 1 } }),
    ROW(sigmoid, sigmoid, .r = { { N_SIGMOID, 0 }, { N_SIGMOID_G, 1 } }),
    ROW(relu, relu, ),
    ROW(silu, silu, .r = { { N_SILU, 0 }, { N_SILU_G, 0 } }),
    ROW(gelu, gelu, .r = { { N_GELU, 0 }, { N_GELU_G, 0 } }),
    ROW(gelu_tanh, gelu_tanh, .r = { { N_GELU_TANH, 0 }, { N_GELU_TANH_G, 0 } }),
    ROW(swiglu, swiglu, .r = { { N_SWIGLU, 0 }, { N_SWIGLU_G, 0 }, { N_SWIGLU, 0 } }),
    COUNTED(matmul, matmul, product, ),
    COUNTED(matmul_flat, matmul, product, ),
    COUNTED(matmul_transposed, matmul, product, .in = { { .layout = OP_TURNED }, { .layout = OP_TURNED } }),
    COUNTED(linear, linear, linear, ),
    COUNTED(linear_no_bias, linear, linear, ),
    COUNTED(linear_gelu, linear_gelu, linear_gelu, ),
    COUNTED(linear_gelu_no_bias, linear_gelu, linear_gelu, ),
    COUNTED(linear_add, linear_add, linear_add, ),
    COUNTED(linear_add_no_bias, linear_add, linear_add, .keep = true),
    COUNTED(layernorm, layernorm, norm, .value = 1e-3),
    COUNTED(layernorm_no_bias, layernorm, norm, .value = 1e-3),
    COUNTED(rmsnorm, rmsnorm, norm, .value = 1e-3),
    COUNTED(sum, sum, sum, .axes = 5),
    COUNTED(sum_middle, sum, sum, .axes = 2, .keep = true),
    COUNTED(sum_all, sum, sum, .axes = RW_ALL_AXES),
    COUNTED(mean_last, mean, mean, .axes = 4, .keep = true),
    COUNTED(mean_middle, mean, mean, .axes = 2),
    COUNTED(max_middle, max, max, .axes = 2, .keep = true),
    COUNTED(max_outer, max, max, .axes = 5),
    COUNTED(sum_to, sum_to, sum_to, SHAPE(5, 1)),
    COUNTED(sum_to_vector, sum_to, sum_to, SHAPE(21)),
    COUNTED(softmax, softmax, softmax, .axis = -1),
    COUNTED(softmax_middle, softmax, softmax, .axis = 1),
    COUNTED(causal_softmax, causal_softmax, softmax, .axis = -1, .value = 0.7),
    COUNTED(log_softmax, log_softmax, log_softmax, .axis = -1),
    COUNTED(log_softmax_middle, log_softmax, log_softmax, .axis = 1),
    COUNTED(logsumexp, logsumexp, logsumexp, .axes = 2, .keep = true),
    COUNTED(logsumexp_outer, logsumexp, logsumexp, .axes = 5),
    COUNTED(attention_causal, attention, attention, .causal = true),
    COUNTED(attention_full, attention, attention, .value = 0.3),
    COUNTED(attention_dropout, attention, attention, .causal = true, .dropout = 0.3),
    { "attention_scores", { .build = attention_scores, .value = 0.35 }, count_attention_scores },
    COUNTED(rope, rope, rope, .value = 10000),
    COUNTED(rope_positions, rope, rope, .value = 50),
    ROW(dropout, dropout, .dropout = 0.3, .r = { { N_DROPOUT, 0 }, { N_DROPOUT, 0 } }),
    ROW(dropout_add, dropout_add, .dropout = 0.3, .r = { { N_DROPOUT + 1, 0 }, { N_DROPOUT, 0 }, { 0, 0 } }),
    /* the deviate, stored, and a product; words are exact in float64, and deviates computed in it */
    { "rand", { .build = with_rand, .r = { { 2, 1 }, { 2, 1 } } }, NULL },
    { "randn", { .build = with_randn, .r = { { N_RANDN + 2, 1 }, { N_RANDN + 2, 1 } } }, NULL },
    COUNTED(embedding, embedding, embedding, ),
    COUNTED(cross_entropy, cross_entropy, cross_entropy, .axis = -100, .no_sum = true),
    COUNTED(cross_entropy_ignore, cross_entropy, cross_entropy, .axis = 1, .no_sum = true),
    COUNTED(mse_loss, mse_loss, mse, .no_sum = true),
    ROW(reshape, reshape, SHAPE(6, -1)),
    ROW(reshape_turned, reshape, SHAPE(6, -1), .in = { { .layout = OP_TURNED } }),
    ROW(permute, permute, ),
    { "transpose", { .build = transpose }, NULL },
    ROW(contiguous, contiguous, .in = { { .layout = OP_TURNED } }),
    ROW(slice, slice, .axis = 1),
    ROW(slice_last, slice, .axis = -1),
    COUNTED(broadcast_to, broadcast_to, broadcast_to, SHAPE(3, 4, 6)),
    ROW(concat, concat, .axis = 1),
    { "split", { .build = split }, NULL },
    /* Squares have 16 bits: rounded once to a narrow type, by the product or by the cast. */
    ROW(cast_bf16, cast, .dtype = RW_BF16, .r = { { 1, 0 }, { 2, 1 } }),
    ROW(cast_f32, cast, .dtype = RW_F32, .r = { { 1, 1 }, { 2, 1 } }),
    ROW(cast_f64, cast, .dtype = RW_F64, .r = { { 1, 1 }, { 2, 1 } }),
};
#define N_ROWS (sizeof rows / sizeof *rows)

/* ---- the file ---- */

static const unsigned char *take(void *to, const unsigned char *from, const unsigned char *end, size_t bytes)
{
    cr_assert_leq(bytes, (size_t)(end - from), "the file ends too early");
    memcpy(to, from, bytes);
    return from + bytes;
}

static void load(void)
{
    static unsigned char file[MOST_BYTES];
    FILE *const f = fopen(REWIND_GOLDEN, "rb");
    cr_assert(f, "cannot open %s", REWIND_GOLDEN);
    const unsigned char *p = file, *const end = file + fread(file, 1, sizeof file, f);
    cr_assert_lt((size_t)(end - p), sizeof file, "the file is too long");
    fclose(f);
    cr_assert(end - p >= 8 && memcmp(p, "RWGOLD01", 8) == 0, "not a file of golden values");
    for (p += 8; p < end; n_tensors++) {
        cr_assert_lt(n_tensors, MOST_TENSORS);
        struct golden *const g = &tensors[n_tensors];
        uint32_t length, rank;
        p = take(&length, p, end, sizeof length);
        cr_assert_lt(length, sizeof g->name);
        p = take(g->name, p, end, length);
        p = take(&g->code, p, end, sizeof g->code);
        p = take(&rank, p, end, sizeof rank);
        cr_assert_leq(rank, RW_MAX_RANK);
        g->shape.rank = (int32_t)rank;
        p = take(g->shape.dim, p, end, rank * sizeof *g->shape.dim);
        g->data = p;
        const size_t bytes = (size_t)rw_shape_numel(g->shape) * (g->code == 1 ? 8 : 4);
        cr_assert_leq(bytes, (size_t)(end - p), "the file ends too early");
        p += bytes;
    }
}

static const struct golden *find(const char *name, const char *key, const char *suffix)
{
    char full[128];
    snprintf(full, sizeof full, "%s/%s%s", name, key, suffix);
    for (size_t i = 0; i < n_tensors; i++)
        if (strcmp(tensors[i].name, full) == 0) return &tensors[i];
    return NULL;
}

static rw_tensor *input(rw_tape *t, const struct golden *g, rw_dtype dtype)
{
    const int64_t n = rw_shape_numel(g->shape);
    unsigned char *const p = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++)
        cr_assert(number_put(p, dtype, i, number_get(g->data, RW_F32, i)), "%s: %s does not hold element %lld", g->name,
                  rw_dtype_name(dtype), (long long)i);
    rw_tensor *const x = rw_input(t, dtype, g->shape, p);
    free(p);
    return x;
}

/* ---- one case ---- */

/* Returns the worst ratio of error to bound. */
static double compare(const struct op_case *c, rw_dtype dtype, rw_tape *t, rw_tensor *x, const char *key,
                      struct roundings r)
{
    const struct golden *const want = find(c->name, key, ""), *const size = find(c->name, key, ".m");
    cr_assert(want && size, "%s: no %s in the file", c->name, key);
    cr_assert(x, "%s in %s: no %s: %s", c->name, rw_dtype_name(dtype), key, rw_error_message(rw_tape_context(t)));
    cr_assert(rw_shape_equal(rw_tensor_shape(x), want->shape), "%s in %s: shape of %s", c->name, rw_dtype_name(dtype),
              key);
    const rw_dtype stored = rw_tensor_dtype(x);
    void *const p = malloc(rw_tensor_bytes(x) + 8);
    cr_assert_eq(rw_read(t, x, p, rw_tensor_bytes(x)), RW_OK, "%s: %s", c->name, rw_error_message(rw_tape_context(t)));
    double worst = 0;
    for (int64_t i = 0; i < rw_shape_numel(want->shape); i++) {
        const double a = number_get(p, stored, i), b = number_get(want->data, RW_F64, i);
        const double error = fabs(a - b), most = tolerance(dtype, stored, r, b, number_get(size->data, RW_F32, i));
        cr_expect(error <= most, "%s in %s, %s, element %lld: %.17g, PyTorch %.17g, off by %g, allowed %g", c->name,
                  rw_dtype_name(dtype), key, (long long)i, a, b, error, most);
        if (most > 0) worst = fmax(worst, error / most);
        if (!(error <= most)) break; /* one element tells enough */
    }
    free(p);
    return worst;
}

static void check(struct op_case *c, void (*count)(struct op_case *c), rw_dtype dtype)
{
    static const char *const xs[] = { "x0", "x1", "x2", "x3" },
                             *const gs[] = { "g0", "g1", "g2", "g3" };
    struct fixture b = fixture_open(1, 2);
    rw_tensor *base[OP_INPUTS] = { NULL }, *x[OP_INPUTS];
    rw_generator_set(b.ctx, (rw_generator_state){ 5, 11 });
    for (const struct golden *g; c->n < OP_INPUTS && (g = find(c->name, xs[c->n], "")); c->n++) {
        struct op_operand *const o = &c->in[c->n];
        o->shape = g->shape;
        o->shape = op_base_shape(o); /* turning is its own inverse */
        base[c->n] = rw_require_grad(b.t, input(b.t, g, dtype));
        x[c->n] = op_operand_of(b.t, o, base[c->n]);
    }
    cr_assert(c->n, "%s is not in the file", c->name);
    const struct golden *const i0 = find(c->name, "i0", ""), *const weight = find(c->name, "w", "");
    int32_t *const indexes = i0 ? malloc((size_t)rw_shape_numel(i0->shape) * sizeof *indexes) : NULL;
    if (i0) memcpy(indexes, i0->data, (size_t)rw_shape_numel(i0->shape) * sizeof *indexes);
    if (i0) c->shape = i0->shape;
    c->indexes = indexes;
    if (count) count(c);
    rw_tensor *const y = c->build(b.t, x, c);
    cr_assert(y, "%s in %s: %s", c->name, rw_dtype_name(dtype), rw_error_message(b.ctx));
    rw_tensor *loss = y;
    if (!c->no_sum) loss = rw_sum(b.t, rw_mul(b.t, y, input(b.t, weight, rw_tensor_dtype(y))), RW_ALL_AXES, false);
    rw_require_grad(b.t, y); /* keeps y to be read */
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s in %s: %s", c->name, rw_dtype_name(dtype), rw_error_message(b.ctx));
    double worst = compare(c, dtype, b.t, y, "y", c->r[0]);
    for (int i = 0; i < c->n; i++)
        worst = fmax(worst, compare(c, dtype, b.t, rw_gradient(base[i]), gs[i], c->r[1 + i]));
    if (getenv("REWIND_GOLDEN_SHOW"))
        fprintf(stderr, "# %-5s %-26s %.3f of the bound\n", rw_dtype_name(dtype), c->name, worst);
    free(indexes);
    fixture_close(&b);
}

/* The row of a tensor's case. */
static const struct row *row_of(const struct golden *g)
{
    const size_t length = strcspn(g->name, "./");
    for (size_t i = 0; i < N_ROWS; i++)
        if (strlen(rows[i].name) == length && memcmp(rows[i].name, g->name, length) == 0) return &rows[i];
    return NULL;
}

/* Every case of the file, and every row at least once. */
static void check_all(rw_dtype dtype)
{
    bool used[N_ROWS] = { false };
    load();
    for (size_t i = 0; i < n_tensors; i++) {
        const char *const key = strchr(tensors[i].name, '/');
        if (!key || strcmp(key, "/x0") != 0) continue;
        const struct row *const row = row_of(&tensors[i]);
        cr_assert(row, "%s has no row", tensors[i].name);
        struct op_case c = row->c;
        snprintf(c.name, sizeof c.name, "%.*s", (int)(key - tensors[i].name), tensors[i].name);
        check(&c, row->count, dtype);
        used[row - rows] = true;
    }
    for (size_t i = 0; i < N_ROWS; i++) cr_assert(used[i], "%s is not in the file", rows[i].name);
}

Test(golden, float64)
{
    check_all(RW_F64);
}

Test(golden, float32)
{
    check_all(RW_F32);
}

Test(golden, bfloat16)
{
    check_all(RW_BF16);
}
