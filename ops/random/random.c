/* dropout, dropout_add, rand, randn, and the fills of rw_init_normal() and rw_init_uniform(): checks and rules. */
#include "ops/random/random.h"

#include "base/public_entry.h"
#include "ops/common/channels_last.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/random/random_fill.h"
#include "ops/reduce/reduce.h"

#include <rewind/composite.h>
#include <rewind/fusion.h>

#include <string.h>

static rw_status check_dropout(rw_op_call *call)
{
    const struct rw_dropout_attrs *const a = call->attrs;
    RW_CHECK(rw_want_float(call, 0));
    if (!(a->p >= 0 && a->p < 1)) return rw_unexpected_real(call, "p", a->p, "a probability in [0, 1)");
    return rw_op_output_like(call, 0, 0);
}

static rw_status check_dropout_add(rw_op_call *call)
{
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    RW_CHECK(rw_expect_shape_of(call, 1, NULL, 0, NULL));
    return check_dropout(call);
}

/* (dy[, addend]) -> dx, and the sums of its columns plus the addend: dropout, sum_to and accumulate in one. */
static rw_status check_dropout_columns(rw_op_call *call)
{
    RW_CHECK(check_dropout(call));
    const rw_shape s = rw_in_shape(call, 0);
    const int last = call->n_inputs - 1;
    RW_CHECK(rw_expect_inputs(call, 1, 2, "dy and optionally sum"));
    if (s.rank < 1) return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "rank 1 or more");
    if (last) RW_CHECK(rw_want_sum_of(call, last, 0));
    return rw_op_output(call, 1, call->in[last].dtype, RW_SHAPE(s.dim[s.rank - 1]));
}

static rw_op_cost cost_dropout(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 20);
}

static size_t workspace_columns_cpu(const rw_op_call *call)
{
    const rw_layout *const dy = call->in[0].layout;
    return rw_reduce_sum_workspace_cpu(dy, rw_reduce_rows(dy->rank));
}

RW_INTERNAL_OP(dropout_columns, "dy sum")
RW_DECLARE_KERNELS(rw_dropout_columns)
RW_DECLARE_CUDA_WORKSPACE(rw_dropout_columns_workspace_cuda)
static const rw_op_def rw_op_dropout_columns = { .name = "dropout_columns",
                                                 .n_inputs = RW_OP_VARIADIC,
                                                 .n_outputs = 2,
                                                 .flags = RW_OP_RANDOM,
                                                 .inplace = RW_INPLACE({ 0, 0 }, { 1, 1 }),
                                                 .optional = RW_OP_INPUT(1),
                                                 .check = check_dropout_columns,
                                                 .kernel = RW_KERNELS(rw_dropout_columns),
                                                 .cost = cost_dropout,
                                                 .workspace = RW_WORKSPACES(workspace_columns_cpu,
                                                                            rw_dropout_columns_workspace_cuda) };

/* Is the input of dropout the output of a layer with a bias, which no other op reads? Then the sums of dx's columns are
   the gradient of that bias. */
static bool takes_columns(const rw_grad_call *g, rw_tensor **ret_sum)
{
    const rw_shape s = rw_tensor_shape(rw_grad_input(g, 0));
    const int64_t columns = s.rank ? s.dim[s.rank - 1] : 1;
    return !rw_grad_is_differentiable(g) && columns > 1 && rw_shape_numel(s) >= 2 * columns && rw_grad_is_whole(g, 0) &&
           rw_grad_wants_column_sums(g, 0, ret_sum);
}

/* Dropout of the gradient with the same ticket: the mask is drawn again instead of being kept. */
static rw_status grad_dropout(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0), *in[2] = { dy, NULL }, *out[2] = { NULL, NULL };
    if (takes_columns(g, &in[1])) {
        rw_apply(rw_grad_tape(g), &rw_op_dropout_columns, in, in[1] ? 2 : 1, rw_grad_attrs(g),
                 sizeof(struct rw_dropout_attrs), out);
        rw_grad_set_column_sums(g, 0, out[1], in[1] != NULL);
        return rw_grad_set(g, 0, out[0]);
    }
    return rw_grad_set(
        g, 0,
        rw_apply(rw_grad_tape(g), &rw_op_dropout, &dy, 1, rw_grad_attrs(g), sizeof(struct rw_dropout_attrs), NULL));
}

static rw_status grad_dropout_add(rw_grad_call *g)
{
    if (rw_grad_wanted(g, 1)) RW_CHECK(rw_grad_set(g, 1, rw_grad_upstream(g, 0)));
    return rw_grad_wanted(g, 0) ? grad_dropout(g) : RW_OK;
}

RW_BUILTIN_OP(dropout, "x", "F.dropout")
RW_DECLARE_KERNELS(rw_dropout)
const rw_op_def rw_op_dropout = { .name = "dropout", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_RANDOM,
                                  .inplace = RW_INPLACE({ 0, 0 }), .check = check_dropout,
                                  .kernel = RW_KERNELS(rw_dropout), .grad = grad_dropout, .cost = cost_dropout };

rw_tensor *rw_dropout_at(rw_site at, rw_tape *t, rw_tensor *x, double p)
{
    RW_ENTER_OP(t);
    p = rw_constant(x, p);
    if (p == 0) return rw_operand_check(at, t, x, "dropout", "x") ? x : NULL;
    const struct rw_dropout_attrs a = { p };
    return rw_apply_in_order_at(at, t, &rw_op_dropout, &x, 1, &a, sizeof a);
}

RW_BUILTIN_OP(dropout_add, "x residual", "F.dropout, torch.add")
RW_DECLARE_KERNELS(rw_dropout_add)
static const rw_op_def rw_op_dropout_add = { .name = "dropout_add", .n_inputs = 2, .n_outputs = 1,
                                             .flags = RW_OP_RANDOM, .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }),
                                             .check = check_dropout_add, .kernel = RW_KERNELS(rw_dropout_add),
                                             .grad = grad_dropout_add, .cost = cost_dropout,
                                             .cast_widest = RW_OP_ALL_INPUTS };

rw_tensor *rw_dropout_add_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *residual, double p)
{
    RW_ENTER_OP(t);
    p = rw_constant(x, p);
    if (p == 0) return rw_add_at(at, t, residual, x);
    const struct rw_dropout_attrs a = { p };
    rw_tensor *const in[] = { x, residual };
    return rw_apply_in_order_at(at, t, &rw_op_dropout_add, in, 2, &a, sizeof a);
}

/* rand and randn */

struct shape_attrs {
    int64_t dtype, rank;
    int64_t dim[RW_MAX_RANK];
};

static rw_status check_rand(rw_op_call *call)
{
    const struct shape_attrs *const a = call->attrs;
    rw_shape shape = { .rank = (int32_t)a->rank };
    memcpy(shape.dim, a->dim, sizeof shape.dim);
    if (!rw_dtype_is_float((rw_dtype)a->dtype))
        return rw_unexpected_dtype(call, "dtype", a->dtype, "a floating-point type");
    return rw_op_output(call, 0, (rw_dtype)a->dtype, shape);
}

RW_DECLARE_CUDA_KERNEL(rw_randn)
RW_DECLARE_CUDA_KERNEL(rw_rand)

static rw_status rw_randn_cpu(const rw_kernel *k)
{
    rw_random_fill_normal(k->out[0].data, k->out[0].dtype, k->out[0].layout->numel, k->ticket, 0, 1, k->threads);
    return RW_OK;
}

static rw_status rw_rand_cpu(const rw_kernel *k)
{
    rw_random_fill_uniform(k->out[0].data, k->out[0].dtype, k->out[0].layout->numel, k->ticket, 0, 1, k->threads);
    return RW_OK;
}

RW_BUILTIN_OP(rand, "", "torch.rand")
RW_BUILTIN_OP(randn, "", "torch.randn")
static const rw_op_def rw_op_randn = { .name = "randn", .n_outputs = 1, .flags = RW_OP_RANDOM | RW_OP_NO_GRADIENT,
                                       .check = check_rand, .kernel = RW_KERNELS(rw_randn) };
static const rw_op_def rw_op_rand = { .name = "rand", .n_outputs = 1, .flags = RW_OP_RANDOM | RW_OP_NO_GRADIENT,
                                      .check = check_rand, .kernel = RW_KERNELS(rw_rand) };

static rw_tensor *apply_rand(rw_site at, rw_tape *t, const rw_op_def *op, rw_dtype dtype, rw_shape shape)
{
    struct shape_attrs a = { .dtype = dtype, .rank = shape.rank };
    shape = rw_shape_clean(shape);
    memcpy(a.dim, shape.dim, sizeof a.dim);
    return rw_apply_at(at, t, op, NULL, 0, &a, sizeof a, NULL);
}

rw_tensor *rw_randn_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape)
{
    RW_ENTER_OP(t);
    return apply_rand(at, t, &rw_op_randn, dtype, shape);
}

rw_tensor *rw_rand_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape)
{
    RW_ENTER_OP(t);
    return apply_rand(at, t, &rw_op_rand, dtype, shape);
}

/* Fills */

RW_CPU_KERNEL(rw_random_fill_cpu)

void rw_random_fill_normal(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double mean, double std,
                           int threads)
{
    const struct rw_random_fill f = { .data = data, .dtype = dtype, .normal = true, .n = n, .a = mean, .b = std };
    rw_random_fill_cpu(&(rw_kernel){ .attrs = &f, .threads = threads, .ticket = ticket });
}

void rw_random_fill_uniform(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double lo, double hi, int threads)
{
    const struct rw_random_fill f = { .data = data, .dtype = dtype, .n = n, .a = lo, .b = hi };
    rw_random_fill_cpu(&(rw_kernel){ .attrs = &f, .threads = threads, .ticket = ticket });
}
