/*
 * Attention on tensor cores as compiled PTX, under the simulator. Each case runs forward and backward with the
 * simulator's compilation of every kernel and, from the same memory, with its PTX, with cp.async late and at once
 * (twin.h).
 *
 * All bytes must be equal except the log-sum-exp's: ex2.approx is the host's exp2f() on both sides, and sums of tensor
 * cores are those of the simulator. The portable kernels compute powers of e by the toolkit's own polynomials:
 * ptx_accuracy compares them, and these, with float64.
 */
#include "support/op_builds.h"
#include "support/op_roundings.h"
#include "support/op_run.h"
#include "support/support.h"
#include "twin.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct extents {
    int64_t batch, heads, kv_heads, seq, kv_seq, d;
    bool causal;
    double dropout;
    enum op_layout layout;
};

static struct op_case case_of(const struct extents *e)
{
    struct op_case c = { .group = OP_ATTENTION, .build = op_build_attention, .sizes = op_sizes_attention, .n = 3,
                         .causal = e->causal, .dropout = e->dropout };
    c.in[0].shape = RW_SHAPE(e->batch, e->heads, e->seq, e->d);
    c.in[1].shape = c.in[2].shape = RW_SHAPE(e->batch, e->kv_heads, e->kv_seq, e->d);
    for (int i = 0; i < 3; i++) c.in[i].layout = e->layout;
    op_count_attention(&c);
    snprintf(c.name, sizeof c.name, "%lld heads of %lld, %lld by %lld%s, dropout %g", (long long)e->heads,
             (long long)e->d, (long long)e->seq, (long long)e->kv_seq, e->causal ? ", causal" : "", e->dropout);
    return c;
}

/* ---- tensor cores ---- */

/* forward, the rows' statistics, keys, queries */
#define LAUNCHES 4

static double ulp(double x)
{
    return ldexp(0x1p-23, ilogb(x));
}

/*
 * The log-sum-exp of a row is its largest score plus logf() of a sum between 1 and the number of keys. Both logf(), the
 * toolkit's and the host's, are off by at most one ulp, and the sum's rounding may then differ by one of its own, which
 * ptx_allow() adds.
 */
static void check_bytes(struct fixture *b, const struct op_case *c, rw_dtype dtype, const struct op_data *data,
                        int64_t keys)
{
    struct outcome o;
    ptx_allow(2 * ulp(fmax(log((double)keys), 1)));
    ptx_use(PTX_TWIN);
    ptx_take_counts();
    const rw_status status = op_run(&o, b->t, c, dtype, data, OP_PLAIN);
    ptx_use(PTX_OFF);
    cr_assert_eq(status, RW_OK, "%s, %s: %s", c->name, rw_dtype_name(dtype), rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    const char *const first = ptx_first_difference();
    cr_expect(!first[0], "%s, %s: %s", c->name, rw_dtype_name(dtype), first);
    const struct ptx_counts n = ptx_take_counts();
    cr_expect(n.run >= LAUNCHES, "%s, %s: %ld launches by PTX", c->name, rw_dtype_name(dtype), n.run);
    if (getenv("REWIND_TEST_SHOW")) fprintf(stderr, "# %s: %.3f of what logf() may be off by\n", c->name, n.used);
    op_forget(&o);
}

/* Odd lengths, GQA, fewer keys than queries and more, one row, full and partial blocks, heads of 64 columns. */
static const struct extents shapes[] = {
    { 1, 2, 1, 65, 65, 64, false, 0, OP_DENSE },
    { 1, 1, 1, 130, 200, 64, false, 0, OP_DENSE },
    { 1, 2, 2, 70, 37, 64, false, 0, OP_MIDDLE },
    { 2, 4, 2, 33, 33, 64, false, 0, OP_SLICED },
    { 1, 1, 1, 1, 66, 64, false, 0, OP_DENSE },
    { 1, 1, 1, 128, 128, 64, false, 0, OP_DENSE },
    { 1, 1, 1, 190, 35, 64, false, 0, OP_DENSE }, /* with a causal mask one block of queries has no keys */
};

static void check_shapes(rw_dtype dtype, int64_t d, bool causal, double dropout)
{
    struct fixture b = fixture_open(1, 1);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct extents e = shapes[i];
        e.d = d, e.causal = causal, e.dropout = dropout;
        const struct op_case c = case_of(&e);
        check_bytes(&b, &c, dtype, &(struct op_data){ .w = NULL }, e.kv_seq);
    }
    fixture_close(&b);
}

#define TENSOR_CORES(type, dtype, d)                                                                              \
    Test(ptx_attention, type##_##d) { check_shapes(dtype, d, false, 0); }                                         \
    Test(ptx_attention, type##_##d##_causal) { check_shapes(dtype, d, true, 0); }                                 \
    Test(ptx_attention, type##_##d##_dropout) { check_shapes(dtype, d, false, 0.1); }                             \
    Test(ptx_attention, type##_##d##_causal_dropout) { check_shapes(dtype, d, true, 0.3); }
TENSOR_CORES(bf16, RW_BF16, 64)
TENSOR_CORES(bf16, RW_BF16, 128)
TENSOR_CORES(f16, RW_F16, 64)
TENSOR_CORES(f16, RW_F16, 128)

/* q, k and v are slices of one tensor [batch, seq, heads + 2 kv_heads, d], whose gradient backward writes as one. */
static rw_tensor *build_packed(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const int64_t kv_heads = c->in[0].shape.dim[2] / 4;
    const int64_t heads[] = { c->in[0].shape.dim[2] - 2 * kv_heads, kv_heads, kv_heads };
    rw_tensor *qkv[3];
    if (rw_split(t, x[0], 2, heads, 3, qkv)) return NULL;
    for (int i = 0; i < 3; i++) qkv[i] = rw_transpose(t, qkv[i], 1, 2);
    return rw_attention(t, qkv[0], qkv[1], qkv[2],
                        &(rw_attention_params){ .causal = c->causal, .dropout = (float)c->dropout });
}

static void check_packed(rw_dtype dtype)
{
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 8; i++) {
        struct op_case c = { .name = "packed", .build = build_packed, .sizes = OP_TERMS, .n = 1, .causal = i & 1,
                             .dropout = i & 2 ? 0.1 : 0 };
        c.in[0].shape = RW_SHAPE(2, i & 4 ? 70 : 33, 4, i & 4 ? 64 : 128);
        check_bytes(&b, &c, dtype, &(struct op_data){ .w = NULL }, c.in[0].shape.dim[1]);
    }
    fixture_close(&b);
}

Test(ptx_attention, bf16_packed) { check_packed(RW_BF16); }
Test(ptx_attention, f16_packed) { check_packed(RW_F16); }

/* They are the result of a layer, whose bias gradient is the column sums of that gradient. */
static rw_tensor *build_layer(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_shape in = c->in[0].shape;
    const int64_t d = c->in[1].shape.dim[0] / 4;
    /* small: for scores that are far apart ex2.approx.ftz flushes results that the simulator's compilation keeps as
       subnormal numbers */
    rw_tensor *const h = rw_linear(t, x[0], rw_scale(t, x[2], 0.0625), rw_scale(t, x[1], 0.0625));
    rw_tensor *qkv = rw_reshape(t, h, RW_SHAPE(in.dim[0], in.dim[1], 4, d));
    return build_packed(t, &qkv, &(struct op_case){ .causal = c->causal, .in[0].shape = rw_tensor_shape(qkv) });
}

static void check_columns(rw_dtype dtype)
{
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 4; i++) {
        struct op_case c = { .name = "columns", .build = build_layer, .sizes = OP_TERMS, .n = 3, .causal = i & 1 };
        const int64_t d = i & 2 ? 64 : 128, seq = i & 2 ? 140 : 70;
        c.in[0].shape = RW_SHAPE(2, seq, 8), c.in[1].shape = RW_SHAPE(4 * d), c.in[2].shape = RW_SHAPE(4 * d, 8);
        check_bytes(&b, &c, dtype, &(struct op_data){ .w = NULL }, seq);
    }
    fixture_close(&b);
}

Test(ptx_attention, bf16_columns) { check_columns(RW_BF16); }
Test(ptx_attention, f16_columns) { check_columns(RW_F16); }

/* q, k and v are slices of tensors with one more row, of infinities: a read beyond the last row is detected. */
static rw_tensor *build_cut(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *qkv[3];
    for (int i = 0; i < 3; i++) qkv[i] = rw_slice(t, x[i], 2, 0, c->in[i].shape.dim[2] - 1);
    return rw_attention(t, qkv[0], qkv[1], qkv[2], &(rw_attention_params){ .causal = c->causal });
}

static double *numbers_before_infinities(rw_shape shape)
{
    const int64_t n = rw_shape_numel(shape), head = shape.dim[2] * shape.dim[3];
    double *const x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = i % head < head - shape.dim[3] ? op_number(OP_SIGNED, i, 3) : INFINITY;
    return x;
}

static void check_cut(rw_dtype dtype)
{
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 4; i++) {
        struct op_case c = { .name = "cut", .build = build_cut, .sizes = OP_TERMS, .n = 3, .causal = i & 1 };
        double *x[3];
        for (int k = 0; k < 3; k++) {
            c.in[k].shape = RW_SHAPE(1, 2, k ? 38 : 71, i & 2 ? 64 : 128);
            x[k] = numbers_before_infinities(c.in[k].shape);
        }
        check_bytes(&b, &c, dtype, &(struct op_data){ .x = { x[0], x[1], x[2] } }, 37);
        for (int k = 0; k < 3; k++) free(x[k]);
    }
    fixture_close(&b);
}

Test(ptx_attention, bf16_cut) { check_cut(RW_BF16); }
Test(ptx_attention, f16_cut) { check_cut(RW_F16); }
