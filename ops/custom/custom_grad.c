/*
 * detach, straight_through, custom_grad: views of input 0 whose rules give it no gradient. What made it is then not
 * differentiated, and the other inputs, which nothing but the rule reads, get what the rule says.
 */
#include "ops/common/kernels.h"
#include "ops/common/util.h"
#include "record/own_ops.h"

#include <rewind/custom_grad.h>

#include <stddef.h>
#include <string.h>

#define MOST_DATA 4096
#define MOST_TENSORS 1024

static rw_status check_view(rw_op_call *call)
{
    const rw_layout *const in = call->in[0].layout;
    return rw_op_output_view(call, 0, rw_in_shape(call, 0), in->stride, in->offset);
}

/* ---- detach ---- */

static const rw_op_def rw_op_detach = { .name = "detach", .n_inputs = 1, .n_outputs = 1,
                                        .flags = RW_OP_VIEW | RW_OP_NO_GRADIENT, .check = check_view,
                                        .kernel = RW_NO_KERNELS };

rw_tensor *rw_detach_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    return rw_apply_at(at, t, &rw_op_detach, &x, 1, NULL, 0, NULL);
}

/* ---- straight_through ---- */

static rw_status check_through(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    if (!rw_shape_equal(rw_in_shape(call, 0), rw_in_shape(call, 1)))
        return rw_op_error(call, RW_ERR_SHAPE, "shapes differ");
    return check_view(call);
}

static rw_status grad_through(rw_grad_call *g)
{
    return rw_grad_set(g, 1, rw_grad_upstream(g, 0));
}

static const rw_op_def rw_op_straight_through = { .name = "straight_through", .n_inputs = 2, .n_outputs = 1,
                                                  .flags = RW_OP_VIEW, .check = check_through,
                                                  .kernel = RW_NO_KERNELS, .grad = grad_through,
                                                  .alike = RW_OP_ALL_INPUTS };

rw_tensor *rw_straight_through_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *x)
{
    rw_tensor *const in[] = { y, x };
    return rw_apply_at(at, t, &rw_op_straight_through, in, 2, NULL, 0, NULL);
}

/* ---- custom_grad ---- */

struct custom_attrs {
    rw_custom_grad_fn grad;
    unsigned char data[MOST_DATA]; /* as many as there are belong to the node */
};

static rw_status check_custom(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    return check_view(call);
}

static rw_status grad_custom(rw_grad_call *g)
{
    const struct custom_attrs *const a = rw_grad_attrs(g);
    return a->grad(g, a->data);
}

static const rw_op_def rw_op_custom_grad = { .name = "custom_grad", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                             .flags = RW_OP_VIEW, .check = check_custom, .kernel = RW_NO_KERNELS,
                                             .grad = grad_custom };

static const char *fault_of(rw_tensor *const *x, int n, rw_custom_grad_fn grad, const void *data, size_t size)
{
    if (!grad) return "the function is NULL";
    if (n < 1 || n > MOST_TENSORS) return "it takes 1 to 1024 tensors";
    if (!x) return "the array of tensors is NULL";
    if (size && !data) return "data is NULL";
    return size > MOST_DATA ? "more than 4096 bytes of data" : NULL;
}

rw_tensor *rw_custom_grad_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, int n, rw_custom_grad_fn grad,
                             const void *data, size_t size)
{
    struct custom_attrs a = { .grad = grad };
    rw_tensor *in[1 + MOST_TENSORS];
    const char *const fault = fault_of(x, n, grad, data, size);
    if (!t) rw_operand_check(at, t, y, "custom_grad", "y");
    else if (fault) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "custom_grad: %s", fault);
    if (!t || fault) return NULL;
    if (size) memcpy(a.data, data, size);
    in[0] = y;
    memcpy(in + 1, x, (size_t)n * sizeof *x);
    return rw_apply_at(at, t, &rw_op_custom_grad, in, n + 1, &a, offsetof(struct custom_attrs, data) + size, NULL);
}
