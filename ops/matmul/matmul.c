/* matmul and linear: checks and gradient rules. Gradients are products of transposed views, so nothing is copied. */
#include "ops/matmul/matmul.h"

#include "device/cpu/isa.h"
#include "ops/shape/shape.h"
#include "ops/util.h"
#include "record/context.h"

rw_status rw_matmul_cpu(const rw_kernel *k);
rw_status rw_linear_cpu(const rw_kernel *k);

/* Leading axes of a matmul operand as a shape. */
static rw_shape leading(rw_shape s)
{
    s.rank -= 2;
    return s;
}

static rw_status check_matmul(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    const rw_shape a = rw_in_shape(call, 0), b = rw_in_shape(call, 1);
    if (a.rank < 2 || b.rank < 2) return rw_op_error(call, RW_ERR_SHAPE, "both operands need rank 2 or more");
    if (a.dim[a.rank - 1] != b.dim[b.rank - 2])
        return rw_op_error(call, RW_ERR_SHAPE, "inner extents %lld and %lld differ", (long long)a.dim[a.rank - 1],
                           (long long)b.dim[b.rank - 2]);
    rw_shape out;
    RW_CHECK(rw_broadcast(call, leading(a), leading(b), &out));
    out.dim[out.rank] = a.dim[a.rank - 2];
    out.dim[out.rank + 1] = b.dim[b.rank - 1];
    out.rank += 2;
    return rw_op_output(call, 0, call->in[0].dtype, out);
}

static rw_op_cost cost_matmul(const rw_op_call *call)
{
    const rw_layout *const a = call->in[0].layout;
    return (rw_op_cost){ 2 * (double)call->out[0].layout->numel * (double)a->dim[a->rank - 1], rw_cost_bytes(call) };
}

static rw_tensor *fitted(rw_tape *t, rw_tensor *dx, rw_tensor *x)
{
    if (!dx || rw_shape_equal(rw_tensor_shape(dx), rw_tensor_shape(x))) return dx;
    return rw_sum_to(t, dx, rw_tensor_shape(x));
}

static rw_status grad_matmul(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0), *const a = rw_grad_input(g, 0), *const b = rw_grad_input(g, 1);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, fitted(t, rw_matmul(t, dy, rw_transpose(t, b, -1, -2)), a)));
    if (rw_grad_wanted(g, 1)) RW_CHECK(rw_grad_set(g, 1, fitted(t, rw_matmul(t, rw_transpose(t, a, -1, -2), dy), b)));
    return RW_OK;
}

static const rw_op_def rw_op_matmul = { .name = "matmul", .n_inputs = 2, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS,
                                        .check = check_matmul, .kernel = { [RW_DEVICE_CPU] = rw_matmul_cpu }, .grad = grad_matmul,
                                        .cost = cost_matmul };

/* The kernel takes a matrix or its transpose; anything else is made dense first. */
static rw_tensor *matrix(rw_site at, rw_tape *t, rw_tensor *x)
{
    const rw_context *const ctx = rw_tensor_context(x);
    if (!ctx) return x;
    const rw_layout *const l = rw_tensor_layout(ctx, x);
    if (l->rank < 2 || l->stride[l->rank - 1] == 1 || l->stride[l->rank - 2] == 1) return x;
    return rw_contiguous_at(at, t, x);
}

rw_tensor *rw_matmul_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b)
{
    rw_tensor *const in[] = { matrix(at, t, a), matrix(at, t, b) };
    return rw_apply_at(at, t, &rw_op_matmul, in, 2, NULL, 0, NULL);
}

/* linear */

static rw_status check_linear(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 1; i < call->n_inputs; i++) RW_CHECK(rw_want_same_dtype(call, 0, i));
    const rw_shape x = rw_in_shape(call, 0), w = rw_in_shape(call, 1);
    if (x.rank < 1 || w.rank != 2 || x.dim[x.rank - 1] != w.dim[1])
        return rw_op_error(call, RW_ERR_SHAPE, "x [..., in] and weight [out, in] are needed");
    if (call->n_inputs == 3 && (call->in[2].layout->rank != 1 || call->in[2].layout->dim[0] != w.dim[0]))
        return rw_op_error(call, RW_ERR_SHAPE, "bias [%lld] is needed", (long long)w.dim[0]);
    rw_shape out = x;
    out.dim[out.rank - 1] = w.dim[0];
    return rw_op_output(call, 0, call->in[0].dtype, out);
}

static rw_op_cost cost_linear(const rw_op_call *call)
{
    return (rw_op_cost){ 2 * (double)call->out[0].layout->numel * (double)call->in[1].layout->dim[1], rw_cost_bytes(call) };
}

static rw_status grad_linear(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_input(g, 0), *const w = rw_grad_input(g, 1);
    const rw_shape ws = rw_tensor_shape(w);
    rw_tensor *const dy = rw_reshape(t, rw_grad_upstream(g, 0), RW_SHAPE(-1, ws.dim[0]));
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, rw_reshape(t, rw_matmul(t, dy, w), rw_tensor_shape(x))));
    if (rw_grad_wanted(g, 1)) {
        rw_tensor *const rows = rw_reshape(t, x, RW_SHAPE(-1, ws.dim[1]));
        RW_CHECK(rw_grad_set(g, 1, rw_matmul(t, rw_transpose(t, dy, 0, 1), rows)));
    }
    if (rw_grad_n_inputs(g) == 3 && rw_grad_wanted(g, 2)) return rw_grad_set(g, 2, rw_sum_to(t, dy, RW_SHAPE(ws.dim[0])));
    return RW_OK;
}

static const rw_op_def rw_op_linear = { .name = "linear", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1, .check = check_linear,
                                        .kernel = { [RW_DEVICE_CPU] = rw_linear_cpu }, .grad = grad_linear, .cost = cost_linear };

rw_tensor *rw_linear_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias)
{
    rw_tensor *const in[] = { x, weight, bias };
    return rw_apply_at(at, t, &rw_op_linear, in, bias == rw_none() ? 2 : 3, NULL, 0, NULL);
}
