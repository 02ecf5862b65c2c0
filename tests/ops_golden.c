/*
 * Every op against PyTorch: values and gradients in float64 from inputs that all types hold exactly
 * (golden/make_golden.py, golden/ops.golden), which float64, float32 and bfloat16 are held to.
 *
 * Tolerance of an element: |got - want| <= G(n, u) M, with G(n, u) = n u / (1 - n u), the bound of n roundings
 * after each other (Higham, Accuracy and Stability, lemma 3.1), u the unit roundoff: 2^-53, 2^-24, and 2^-24 for
 * bfloat16 too, which is computed in float32. M is the sum of the magnitudes of the terms, from the file; n stands
 * in the table below. The reference was rounded in float64 by as many steps: G(n, 2^-53) M more. bfloat16 adds what
 * is stored: G(s, 2^-8) M for the s intermediates that the gradient reads back or passes on, and one rounding of
 * the element itself, 2^-8 (|want| + the rest). n = 0 says that nothing is rounded but perhaps by storing what is
 * exact already: equal.
 *
 * n, from the arithmetic in ops/. A sum or product of k terms in any order: k. SLEEF's functions: 1 ulp, thus 2.
 *  - binary: 1 per operation, and k where the gradient is summed over k broadcast elements.
 *  - sigmoid: exp 2, sum 1, quotient 1, and 1 to spare: 5; silu 7 = 5 + 2; slopes: s (1 + x (1 - s)) has 5 + 5 + 6,
 *    M with every sign positive. tanh 2, its slope 1 - y y: 4 + 2. gelu: cdf's argument 2 (its effect at most
 *    halved: z erf'(z) < 1/2), erf 2, sum, half, product: 8; slope: 8 and the density, whose exponent's 2 roundings
 *    weigh x^3 density(x) < 1/2: 16. gelu_tanh: inner polynomial 6, weighed by z sigmoid'(z) < 1/4, sigmoid 5,
 *    product: 12; slope 24.
 *  - norms over c elements: mean c + 1; the variance c + 4, halved by the root, and root and quotient 2: r is off
 *    by c / 2 + 4. y takes both: 2 c + 8. dx has r, xh twice (each 1.5 c + 6), a mean: 5 c + 24. dweight: xh and k
 *    rows.
 *  - softmax over c elements: scores are off by u |scaled x| times 2 from scaling and shifting, so exponentials, in
 *    the numerator and in the sum, by at most 8 max |scaled x|; that is in M, as K = 1 + 8 max |scaled x|. Beside
 *    it exp 2, sum c, quotient 2, product 1: c + 10. Gradient: two probabilities and a sum: 3 c + 24. Logarithms: 2
 *    more of the same order; exp(x - logsumexp): 2 c + 20.
 *  - attention: scores are sums of d, so p takes d + kv + 14 times K, with K from |q| |k|; 8 more for each of two
 *    blocks' rescaling: P = d + kv + 30. Output: O = P + kv. dv: P + rows. ds: p, dot (O) and d: 2 P + kv + d + 6,
 *    then a sum over kv (dq) or over the rows (dk) of all heads of a group.
 *  - rope: angle 4 (weighed by the angle in M), sine or cosine 2, its rounding 1, product, sum: 8.
 *
 * REWIND_GOLDEN_SHOW=1 prints how much of its tolerance each case uses.
 */
#include "support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TENSORS 1024
#define MOST_INPUTS 3

typedef rw_tensor *(*build_fn)(rw_tape *t, rw_tensor **x, rw_tensor *index);

struct op_case {
    const char *name;
    build_fn build;
    int y;                  /* n of the result */
    int g[MOST_INPUTS];     /* n of the gradients */
    int s[MOST_INPUTS + 1]; /* intermediates stored on the way to each gradient, and to the result */
};

struct golden {
    char name[64];
    uint32_t code; /* 0 float32, 1 float64, 2 int32 */
    rw_shape shape;
    const unsigned char *data;
};

static struct golden tensors[MOST_TENSORS];
static size_t n_tensors;

#define B(name, ...)                                                        \
    static rw_tensor *b_##name(rw_tape *t, rw_tensor **x, rw_tensor *index) \
    {                                                                       \
        (void)index;                                                        \
        return __VA_ARGS__;                                                 \
    }
B(add, rw_add(t, x[0], x[1]))
B(sub, rw_sub(t, x[0], x[1]))
B(mul, rw_mul(t, x[0], x[1]))
B(div, rw_div(t, x[0], x[1]))
B(maximum, rw_maximum(t, x[0], x[1]))
B(scale, rw_scale(t, x[0], 1.7))
B(add_scalar, rw_add_scalar(t, x[0], 0.3))
B(pow_scalar, rw_pow_scalar(t, x[0], 2.5))
B(pow_negative, rw_pow_scalar(t, x[0], -0.5))
B(neg, rw_neg(t, x[0]))
B(abs, rw_abs(t, x[0]))
B(exp, rw_exp(t, x[0]))
B(log, rw_log(t, x[0]))
B(sqrt, rw_sqrt(t, x[0]))
B(tanh, rw_tanh(t, x[0]))
B(sigmoid, rw_sigmoid(t, x[0]))
B(relu, rw_relu(t, x[0]))
B(silu, rw_silu(t, x[0]))
B(gelu, rw_gelu(t, x[0]))
B(gelu_tanh, rw_gelu_tanh(t, x[0]))
B(swiglu, rw_swiglu(t, x[0], x[1]))
B(matmul, rw_matmul(t, x[0], x[1]))
B(matmul_transposed, rw_matmul(t, rw_transpose(t, x[0], -1, -2), rw_transpose(t, x[1], -1, -2)))
B(linear, rw_linear(t, x[0], x[1], x[2]))
B(linear_no_bias, rw_linear(t, x[0], x[1], RW_NONE))
B(layernorm, rw_layernorm(t, x[0], x[1], x[2], 1e-3f))
B(layernorm_no_bias, rw_layernorm(t, x[0], x[1], RW_NONE, 1e-3f))
B(rmsnorm, rw_rmsnorm(t, x[0], x[1], 1e-3f))
B(sum, rw_sum(t, x[0], RW_AXES(0, -1), false))
B(sum_middle, rw_sum(t, x[0], RW_AXES(1), true))
B(sum_all, rw_sum(t, x[0], RW_ALL_AXES, false))
B(mean_last, rw_mean(t, x[0], RW_AXES(-1), true))
B(mean_middle, rw_mean(t, x[0], RW_AXES(1), false))
B(max_middle, rw_max(t, x[0], RW_AXES(1), true))
B(max_outer, rw_max(t, x[0], RW_AXES(0, 2), false))
B(sum_to, rw_sum_to(t, x[0], RW_SHAPE(5, 1)))
B(softmax, rw_softmax(t, x[0], -1))
B(softmax_middle, rw_softmax(t, x[0], 1))
B(causal_softmax, rw_causal_softmax(t, x[0], 0.7f))
B(log_softmax, rw_log_softmax(t, x[0], -1))
B(log_softmax_middle, rw_log_softmax(t, x[0], 1))
B(logsumexp, rw_logsumexp(t, x[0], RW_AXES(-1), true))
B(logsumexp_outer, rw_logsumexp(t, x[0], RW_AXES(0, 2), false))
B(attention_causal, rw_attention(t, x[0], x[1], x[2], &(rw_attention_params){ .causal = true }))
B(attention_full, rw_attention(t, x[0], x[1], x[2], &(rw_attention_params){ .scale = 0.3f }))
B(rope, rw_rope(t, x[0], RW_NONE, 10000.0f))
B(rope_positions, rw_rope(t, x[0], index, 50.0f))
B(embedding, rw_embedding(t, x[0], index))
B(cross_entropy, rw_cross_entropy(t, x[0], index))
B(cross_entropy_ignore, rw_cross_entropy_ignore(t, x[0], index, 1))
B(mse_loss, rw_mse_loss(t, x[0], x[1]))
B(reshape, rw_reshape(t, x[0], RW_SHAPE(6, -1)))
B(permute, rw_permute(t, x[0], (const int[]){ 2, 0, 1 }))
B(transpose, rw_contiguous(t, rw_transpose(t, x[0], 0, -1)))
B(slice, rw_slice(t, x[0], 1, 1, 4))
B(broadcast_to, rw_broadcast_to(t, x[0], RW_SHAPE(3, 4, 6)))
B(concat, rw_concat(t, x, 3, 1))
B(cast_bf16, rw_cast(t, rw_mul(t, x[0], x[0]), RW_BF16))
B(cast_f32, rw_cast(t, rw_mul(t, x[0], x[0]), RW_F32))
B(cast_f64, rw_cast(t, rw_mul(t, x[0], x[0]), RW_F64))

static rw_tensor *b_split(rw_tape *t, rw_tensor **x, rw_tensor *index)
{
    (void)index;
    rw_tensor *part[3];
    if (rw_split(t, x[0], -1, (const int64_t[]){ 1, 2, 3 }, 3, part)) return NULL;
    return rw_concat(t, (rw_tensor *const[]){ part[2], part[0] }, 2, -1);
}

#define P(d, kv) ((d) + (kv) + 30)
#define DS(d, kv) (2 * P(d, kv) + (kv) + (d) + 6)
#define ATTENTION(d, kv, rows) P(d, kv) + (kv), { DS(d, kv) + (kv), DS(d, kv) + (rows), P(d, kv) + (rows) }, { 1, 1, 0 }
#define C(name) #name, b_##name
static const struct op_case cases[] = {
    { C(add), 1, { 3, 74 }, { 0, 0 } },
    { C(sub), 1, { 3, 74 }, { 0, 0 } },
    { C(mul), 1, { 4, 75 }, { 1, 1 } },
    { C(div), 1, { 4, 77 }, { 1, 3 } },
    { C(maximum), 0, { 3, 2 }, { 0, 0 } },
    { C(scale), 2, { 2 }, { 0 } },
    { C(add_scalar), 2, { 0 }, { 0 } },
    { C(pow_scalar), 3, { 6 }, { 2 } },
    { C(pow_negative), 3, { 6 }, { 2 } },
    { C(neg), 0, { 0 }, { 0 } },
    { C(abs), 0, { 0 }, { 0 } },
    { C(exp), 2, { 3 }, { 1 } },
    { C(log), 2, { 1 }, { 0 } },
    { C(sqrt), 1, { 3 }, { 1 } },
    { C(tanh), 2, { 6 }, { 1 } },
    { C(sigmoid), 5, { 9 }, { 1 } },
    { C(relu), 0, { 0 }, { 0 } },
    { C(silu), 7, { 16 }, { 0 } },
    { C(gelu), 8, { 16 }, { 0 } },
    { C(gelu_tanh), 12, { 24 }, { 0 } },
    { C(swiglu), 8, { 18, 8 }, { 0, 0 } },
    { C(matmul), 33, { 7 + 3, 5 + 2 }, { 1, 1 } },
    { "matmul_flat", b_matmul, 33, { 7, 10 }, { 0, 0 } },
    { C(matmul_transposed), 33, { 7 + 2, 5 }, { 1, 0 } },
    { C(linear), 34, { 7, 10, 10 }, { 0, 0, 0 } },
    { C(linear_no_bias), 33, { 7, 10 }, { 0, 0 } },
    { C(layernorm), 2 * 37 + 8, { 5 * 37 + 24, 2 * 37 + 8 + 6, 6 }, { 0, 0, 0 } },
    { C(layernorm_no_bias), 2 * 37 + 8, { 5 * 37 + 24, 2 * 37 + 8 + 6 }, { 0, 0 } },
    { C(rmsnorm), 2 * 37 + 8, { 5 * 37 + 24, 2 * 37 + 8 + 6 }, { 0, 0 } },
    { C(sum), 111, { 0 }, { 0 } },
    { C(sum_middle), 5, { 0 }, { 0 } },
    { C(sum_all), 555, { 0 }, { 0 } },
    { C(mean_last), 37 + 2, { 3 }, { 0 } },
    { C(mean_middle), 5 + 2, { 3 }, { 0 } },
    { C(max_middle), 0, { 0 }, { 0 } },
    { C(max_outer), 0, { 0 }, { 0 } },
    { C(sum_to), 111, { 0 }, { 0 } },
    { C(softmax), 37 + 10, { 3 * 37 + 24 }, { 2 } },
    { C(softmax_middle), 11 + 10, { 3 * 11 + 24 }, { 2 } },
    { C(causal_softmax), 9 + 10, { 3 * 9 + 24 }, { 2 } },
    { C(log_softmax), 37 + 12, { 2 * 37 + 20 }, { 1 } },
    { C(log_softmax_middle), 11 + 12, { 2 * 11 + 20 }, { 1 } },
    { C(logsumexp), 37 + 12, { 2 * 37 + 20 }, { 1 } },
    { C(logsumexp_outer), 21 + 12, { 2 * 21 + 20 }, { 1 } },
    { C(attention_causal), ATTENTION(12, 7, 5 * 2) },
    { C(attention_full), ATTENTION(16, 3, 5) },
    { "attention_blocks", b_attention_causal, ATTENTION(8, 80, 70 * 2) },
    { C(rope), 8, { 8 }, { 0 } },
    { C(rope_positions), 8, { 8 }, { 0 } },
    { C(embedding), 0, { 3 }, { 0 } },
    { C(cross_entropy), 37 + 12 + 6, { 2 * 37 + 20 }, { 0 } },
    { C(cross_entropy_ignore), 11 + 12 + 5, { 2 * 11 + 20 }, { 0 } },
    { C(mse_loss), 185 + 4, { 4, 4 }, { 0, 0 } },
    { C(reshape), 0, { 0 }, { 0 } },
    { C(permute), 0, { 0 }, { 0 } },
    { C(transpose), 0, { 0 }, { 0 } },
    { C(slice), 0, { 0 }, { 0 } },
    { C(broadcast_to), 0, { 3 }, { 0 } },
    { C(concat), 0, { 0, 0, 0 }, { 0, 0, 0 } },
    { C(split), 0, { 0 }, { 0 } },
    { C(cast_bf16), 0, { 2 }, { 1 } }, /* squares have 16 bits: rounded once, by mul or by cast */
    { C(cast_f32), 1, { 2 }, { 1, 0, 0, 1 } },
    { C(cast_f64), 1, { 2 }, { 1, 0, 0, 1 } },
};
#define N_CASES (sizeof cases / sizeof *cases)

/* ---- the file, and elements of any type ---- */

static const unsigned char *take(void *to, const unsigned char *from, const unsigned char *end, size_t bytes)
{
    cr_assert_leq(bytes, (size_t)(end - from), "the file ends too early");
    memcpy(to, from, bytes);
    return from + bytes;
}

static void load(void)
{
    static unsigned char file[1 << 20];
    FILE *const f = fopen(REWIND_GOLDEN, "rb");
    cr_assert(f, "cannot open %s", REWIND_GOLDEN);
    const unsigned char *p = file, *const end = file + fread(file, 1, sizeof file, f);
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

static const struct golden *find(const char *op, const char *key, const char *suffix)
{
    char name[128];
    snprintf(name, sizeof name, "%s/%s%s", op, key, suffix);
    for (size_t i = 0; i < n_tensors; i++)
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    return NULL;
}

static double number(const void *p, rw_dtype dtype, int64_t i)
{
    double d;
    float f;
    uint32_t bits = 0;
    uint16_t upper;
    if (dtype == RW_F64) {
        memcpy(&d, (const char *)p + 8 * i, sizeof d);
        return d;
    }
    if (dtype == RW_F32) {
        memcpy(&bits, (const char *)p + 4 * i, sizeof bits);
    } else {
        memcpy(&upper, (const char *)p + 2 * i, sizeof upper);
        bits = (uint32_t)upper << 16;
    }
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static rw_tensor *input(rw_tape *t, const struct golden *g, rw_dtype dtype)
{
    const int64_t n = rw_shape_numel(g->shape);
    unsigned char *const p = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) {
        const double d = number(g->data, RW_F32, i);
        const float f = (float)d;
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        cr_assert_eq(bits & 0xffff, 0, "%s: bfloat16 does not hold element %lld", g->name, (long long)i);
        const uint16_t upper = (uint16_t)(bits >> 16);
        if (dtype == RW_F64) memcpy(p + 8 * i, &d, sizeof d);
        else if (dtype == RW_F32) memcpy(p + 4 * i, &f, sizeof f);
        else memcpy(p + 2 * i, &upper, sizeof upper);
    }
    rw_tensor *const x = rw_input(t, dtype, g->shape, p);
    free(p);
    return x;
}

/* ---- one case ---- */

static double roundings(int n, double u)
{
    return n * u / (1 - n * u);
}

/* dtype: of the inputs; the element may be stored as another (losses, casts). */
static double tolerance(rw_dtype dtype, rw_dtype stored, int n, int s, double want, double size)
{
    if (!n) return 0;
    const double reference = roundings(n, 0x1p-53) * size;
    if (dtype == RW_F64) return roundings(n, 0x1p-53) * size + reference;
    double e = roundings(n, 0x1p-24) * size + reference;
    if (dtype == RW_BF16) e += roundings(s, 0x1p-8) * size;
    return stored == RW_BF16 ? e + 0x1p-8 * (fabs(want) + e) : e;
}

/* Returns the worst ratio of error to tolerance. */
static double compare(const struct op_case *c, rw_dtype dtype, rw_tape *t, rw_tensor *x, const char *key, int n, int s)
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
        const double a = number(p, stored, i), b = number(want->data, RW_F64, i), m = number(size->data, RW_F32, i);
        const double error = fabs(a - b), most = tolerance(dtype, stored, n, s, b, m);
        cr_expect(error <= most, "%s in %s, %s, element %lld: %.17g, PyTorch %.17g, off by %g, allowed %g", c->name,
                  rw_dtype_name(dtype), key, (long long)i, a, b, error, most);
        if (most > 0) worst = fmax(worst, error / most);
        if (!(error <= most)) break; /* one element tells enough */
    }
    free(p);
    return worst;
}

static void check(const struct op_case *c, rw_dtype dtype)
{
    static const char *const xs[] = { "x0", "x1", "x2" }, *const gs[] = { "g0", "g1", "g2" };
    struct bench b = bench_open(1, 2);
    rw_tensor *x[MOST_INPUTS] = { NULL }, *index = NULL;
    int n = 0;
    for (const struct golden *g; n < MOST_INPUTS && (g = find(c->name, xs[n], "")); n++)
        x[n] = rw_require_grad(b.t, input(b.t, g, dtype));
    cr_assert(n, "%s is not in the file", c->name);
    const struct golden *const i0 = find(c->name, "i0", ""), *const weight = find(c->name, "w", "");
    if (i0) index = rw_input(b.t, RW_I32, i0->shape, i0->data);
    rw_tensor *const y = c->build(b.t, x, index);
    cr_assert(y, "%s in %s: %s", c->name, rw_dtype_name(dtype), rw_error_message(b.ctx));
    rw_tensor *loss = y;
    if (weight) loss = rw_sum(b.t, rw_mul(b.t, y, input(b.t, weight, rw_tensor_dtype(y))), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s in %s: %s", c->name, rw_dtype_name(dtype), rw_error_message(b.ctx));
    double worst = compare(c, dtype, b.t, y, "y", c->y, c->s[MOST_INPUTS]);
    for (int i = 0; i < n; i++) worst = fmax(worst, compare(c, dtype, b.t, rw_gradient(x[i]), gs[i], c->g[i], c->s[i]));
    if (getenv("REWIND_GOLDEN_SHOW"))
        fprintf(stderr, "# %-5s %-22s %.3f of the tolerance\n", rw_dtype_name(dtype), c->name, worst);
    bench_close(&b);
}

static void check_all(rw_dtype dtype)
{
    load();
    for (size_t i = 0; i < N_CASES; i++) check(&cases[i], dtype);
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

/* A case that was added to the file alone would be held to by nobody. */
Test(golden, every_case_of_the_file_is_run)
{
    load();
    for (size_t i = 0; i < n_tensors; i++) {
        const size_t length = strcspn(tensors[i].name, "/");
        bool found = false;
        for (size_t j = 0; j < N_CASES; j++)
            found |= strlen(cases[j].name) == length && !memcmp(cases[j].name, tensors[i].name, length);
        cr_assert(found, "%s has no case", tensors[i].name);
    }
}
