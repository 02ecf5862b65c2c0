/*
 * Optional operands that may be absent when a node is executed: the sum to which a gradient is added. Without it, the
 * bytes must be those of the op that has no such operand.
 *
 * The ops are the library's own, found in the context after a program that accumulates gradients. Each is recorded
 * three times: without the sum, with it, and with it but with a kernel that removes the operand's memory first.
 */
#include <criterion/criterion.h>

#include "ops/norm/layer_rms_norm.h"
#include "record/context.h"
#include "support/support.h"

#include <rewind/ops.h>

#include <stdlib.h>
#include <string.h>

static const rw_op_def *original;
static int absent;
static int taken_away;

/* The same kernel, without operand `absent`. */
static rw_status without(const rw_kernel *k)
{
    rw_view in[8];
    memcpy(in, k->in, (size_t)k->n_inputs * sizeof *in);
    in[absent].data = NULL;
    rw_kernel less = *k;
    less.in = in;
    taken_away++;
    return original->kernel[test_device()](&less);
}

static const rw_op_def *op_named(const rw_context *ctx, const char *name)
{
    for (size_t i = 0; i < ctx->n_ops; i++)
        if (!strcmp(ctx->ops[i]->name, name)) return ctx->ops[i];
    cr_assert_fail("no %s has been recorded", name);
    return NULL;
}

/* The op with that kernel. */
static const rw_op_def *taking_away(const struct fixture *b, const char *name, int i)
{
    static rw_op_def made[100]; /* contexts keep their addresses */
    static int n_made;
    original = op_named(b->ctx, name);
    cr_assert(rw_op_set_has(original->optional, i), "%s", name);
    absent = i;
    rw_op_def *const op = &made[n_made++];
    *op = *original;
    op->kernel[test_device()] = without;
    return op;
}

/* Records every op that adds to a gradient, once: each parameter is used twice. */
static void meet_all(struct fixture *b)
{
    rw_tensor *const w = rw_param(b->ctx, "w", RW_F32, RW_SHAPE(4, 4)), *const v = rw_param(b->ctx, "v", RW_F32,
                                                                                            RW_SHAPE(4));
    const int32_t index[4] = { 1, 0, 1, 3 };
    rw_tensor *const i = rw_input(b->t, RW_I32, RW_SHAPE(4), index, sizeof index);
    rw_tensor *x = rw_matmul(b->t, w, w);
    x = rw_add(b->t, rw_embedding(b->t, w, i), rw_add(b->t, x, rw_embedding(b->t, w, i)));
    x = rw_add(b->t, rw_layernorm(b->t, x, v, v, 1e-5f), x);
    x = rw_add(b->t, rw_rmsnorm(b->t, x, rw_exp(b->t, v), 1e-5f), x);
    x = rw_mul(b->t, rw_exp(b->t, x), x);
    cr_assert_eq(rw_backward(b->t, rw_sum(b->t, x, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
}

/* As the product's kernels receive it: optionally a transposed matrix, so that the library needs another product. */
static rw_tensor *some(struct fixture *b, rw_dtype dtype, rw_shape shape)
{
    rw_shape transposed = shape;
    transposed.dim[0] = shape.dim[shape.rank - 1];
    transposed.dim[shape.rank - 1] = shape.dim[0];
    rw_tensor *const x = rw_randn(b->t, RW_F32, shape.rank == 2 ? transposed : shape);
    rw_tensor *const y = shape.rank == 2 ? rw_transpose(b->t, x, 0, 1) : x;
    return dtype == RW_F32 ? y : rw_cast(b->t, y, dtype);
}

struct outputs {
    rw_tensor *y[4];
    int n;
};

static struct outputs record(struct fixture *b, const rw_op_def *op, rw_tensor *const *in, int n, const void *attrs,
                             size_t size)
{
    struct outputs o = { .n = op->n_outputs };
    cr_assert_not_null(rw_apply(b->t, op, in, n, attrs, size, o.y), "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_eval(b->t, o.y, (size_t)o.n), RW_OK, "%s", rw_error_message(b->ctx));
    return o;
}

static bool same(struct fixture *b, const struct outputs *x, const struct outputs *y)
{
    bool equal = true;
    for (int i = 0; i < x->n; i++) {
        const size_t bytes = rw_tensor_bytes(x->y[i]);
        void *const p = malloc(bytes + 1), *const q = malloc(bytes + 1);
        cr_assert_eq(rw_read(b->t, x->y[i], p, bytes), RW_OK);
        cr_assert_eq(rw_read(b->t, y->y[i], q, bytes), RW_OK);
        equal &= !memcmp(p, q, bytes);
        free(p);
        free(q);
    }
    return equal;
}

/* in[at] is the sum. plain: the op without a sum; NULL if it is the same op with one operand less. */
static void expect_plain(struct fixture *b, const char *name, const char *plain, rw_tensor *const *in, int n, int at,
                         const void *attrs, size_t size)
{
    const rw_op_def *const less = taking_away(b, name, at);
    rw_tensor *rest[8];
    for (int i = 0, k = 0; i < n; i++)
        if (i != at) rest[k++] = in[i];
    const struct outputs alone = record(b, plain ? op_named(b->ctx, plain) : original, rest, n - 1, attrs, size);
    const struct outputs added = record(b, original, in, n, attrs, size);
    taken_away = 0;
    const struct outputs gone = record(b, less, in, n, attrs, size);
    cr_assert_eq(taken_away, 1);
    cr_assert_not(same(b, &alone, &added), "%s: the sum counts", name);
    cr_assert(same(b, &alone, &gone), "%s", name);
}

static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };

Test(absent_grad_accumulator, a_product)
{
    struct fixture b = fixture_open(1, 2);
    meet_all(&b);
    static const int64_t extents[][3] = { { 3, 5, 7 }, { 64, 48, 80 }, { 100, 130, 70 } };
    for (size_t d = 0; d < 4; d++)
        for (size_t e = 0; e < 3; e++) {
            const int64_t *const x = extents[e];
            rw_tensor *const in[] = { rw_contiguous(b.t, some(&b, types[d], RW_SHAPE(x[0], x[2]))),
                                      some(&b, types[d], RW_SHAPE(x[0], x[1])),
                                      some(&b, types[d], RW_SHAPE(x[1], x[2])) };
            expect_plain(&b, "matmul_add", "matmul", in, 3, 0, NULL, 0);
        }
    fixture_close(&b);
}

Test(absent_grad_accumulator, a_tables_gradient)
{
    struct fixture b = fixture_open(1, 2);
    meet_all(&b);
    const int32_t index[6] = { 4, 0, 4, 4, 2, 0 };
    const int64_t attrs[] = { 5, 33 }; /* rows, width: 1 and 3 have no tokens */
    for (size_t d = 0; d < 4; d++) {
        rw_tensor *const in[] = { rw_contiguous(b.t, some(&b, types[d], RW_SHAPE(6, 33))),
                                  rw_input(b.t, RW_I32, RW_SHAPE(6), index, sizeof index),
                                  rw_contiguous(b.t, some(&b, types[d], RW_SHAPE(5, 33))) };
        expect_plain(&b, "embedding_backward", NULL, in, 3, 2, attrs, sizeof attrs);
    }
    fixture_close(&b);
}

Test(absent_grad_accumulator, the_norms_residual)
{
    struct fixture b = fixture_open(1, 2);
    meet_all(&b);
    for (int rms = 0; rms < 2; rms++)
        for (size_t d = 0; d < 4; d++)
            for (int64_t width = 24; width < 60; width += 11) {
                const char *const name = rms ? "rmsnorm_backward" : "layernorm_backward";
                const struct rw_norm_attrs attrs = { .eps = 1e-5f, .vectors = 1, .rms = rms };
                rw_tensor *in[4];
                for (int i = 0; i < 4; i++)
                    in[i] = rw_contiguous(b.t, i == 1 ? some(&b, types[d], RW_SHAPE(width))
                                                      : some(&b, types[d], RW_SHAPE(9, width)));
                expect_plain(&b, name, NULL, in, 4, 3, &attrs, sizeof attrs);
            }
    fixture_close(&b);
}

/* With nothing to add to, the result is the term itself, including the signs of zeros and a NaN's payload, for any
   strides. */
Test(absent_grad_accumulator, a_sum_of_contributions)
{
    struct fixture b = fixture_open(1, 2);
    meet_all(&b);
    uint32_t v[12];
    for (int i = 0; i < 12; i++) v[i] = 0x80000000u + (i > 3 ? 0x7fc00000u - 0x80000000u + (uint32_t)i : 0);
    for (int transposed = 0; transposed < 2; transposed++) {
        rw_tensor *term = rw_input(b.t, RW_F32, RW_SHAPE(3, 4), v, sizeof v);
        if (transposed) term = rw_transpose(b.t, term, 0, 1);
        rw_tensor *const in[] = { rw_input(b.t, RW_F32, rw_tensor_shape(term), NULL, 0), term };
        rw_tensor *const y = rw_apply(b.t, taking_away(&b, "accumulate", 0), in, 2, NULL, 0, NULL);
        uint32_t got[12], wanted[12];
        cr_assert_eq(rw_read(b.t, y, got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, term, wanted, sizeof wanted), RW_OK);
        cr_assert_arr_eq(got, wanted, sizeof got);
    }
    fixture_close(&b);
}
