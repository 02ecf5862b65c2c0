/*
 * detach, straight_through, custom_grad: views of input 0 whose rules pass no gradient to it. The ops that computed
 * input 0 are then not differentiated. The other inputs, which only the rule reads, get the gradients that the rule
 * sets.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/composite.h>
#include <rewind/custom_grad.h>

#include <stddef.h>
#include <string.h>

#define DATA_MAX 4096
#define TENSORS_MAX 1024

static rw_status check_view(rw_op_call *call)
{
    const rw_layout *const in = call->in[0].layout;
    return rw_op_output_view(call, 0, rw_in_shape(call, 0), in->stride, in->offset);
}

/* ---- detach ---- */

RW_BUILTIN_OP(detach, "x", "Tensor.detach")
static const rw_op_def rw_op_detach = { .name = "detach", .n_inputs = 1, .n_outputs = 1,
                                        .flags = RW_OP_VIEW | RW_OP_NO_GRADIENT, .check = check_view,
                                        .kernel = RW_NO_KERNELS };

rw_tensor *rw_detach_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    return rw_apply_at(at, t, &rw_op_detach, &x, 1, NULL, 0, NULL);
}

/* ---- straight_through ---- */

static rw_status check_through(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    RW_CHECK(rw_expect_shape_of(call, 1, NULL, 0, NULL));
    return check_view(call);
}

static rw_status grad_through(rw_grad_call *g)
{
    return rw_grad_set(g, 1, rw_grad_upstream(g, 0));
}

RW_BUILTIN_OP(straight_through, "y x", "-")
static const rw_op_def rw_op_straight_through = { .name = "straight_through", .n_inputs = 2, .n_outputs = 1,
                                                  .flags = RW_OP_VIEW, .check = check_through,
                                                  .kernel = RW_NO_KERNELS, .grad = grad_through,
                                                  .cast_widest = RW_OP_ALL_INPUTS };

rw_tensor *rw_straight_through_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *x)
{
    RW_ENTER_OP(t);
    rw_tensor *const in[] = { y, x };
    return rw_apply_at(at, t, &rw_op_straight_through, in, 2, NULL, 0, NULL);
}

/* ---- custom_grad ---- */

struct custom_attrs {
    rw_custom_grad_fn grad;
    unsigned char data[DATA_MAX]; /* the node stores as many bytes as are used */
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

RW_BUILTIN_OP(custom_grad, "y x", "torch.autograd.Function")
static const rw_op_def rw_op_custom_grad = { .name = "custom_grad", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                             .flags = RW_OP_VIEW, .check = check_custom, .kernel = RW_NO_KERNELS,
                                             .grad = grad_custom,
                                             .address_bytes = offsetof(struct custom_attrs, data) };

static bool refuses(rw_site at, rw_tape *t, rw_tensor *const *x, size_t n, rw_custom_grad_fn grad,
                    const void *data, size_t size)
{
    static const char what[] = "custom_grad";
    if (!grad) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s: grad is NULL; expected a function", what);
    else if (n < 1 || n > TENSORS_MAX)
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(n): expected 1 to %d tensors, got %zu", what, TENSORS_MAX, n);
    else if (!x) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s: x is NULL; expected an array of %zu tensors", what, n);
    else if (size && !data)
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s: data is NULL; expected %zu bytes", what, size);
    else if (size > DATA_MAX)
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(size): expected at most %d bytes, got %zu", what, DATA_MAX, size);
    else return false;
    return true;
}

rw_tensor *rw_custom_grad_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, size_t n,
                             rw_custom_grad_fn grad, const void *data, size_t size)
{
    RW_ENTER_OP(t);
    struct custom_attrs a = { .grad = grad };
    rw_tensor *in[1 + TENSORS_MAX];
    if (!t) rw_operand_check(at, t, y, "custom_grad", "y");
    if (!t || refuses(at, t, x, n, grad, data, size)) return NULL;
    if (size) memcpy(a.data, data, size);
    in[0] = y;
    memcpy(in + 1, x, n * sizeof *x);
    return rw_apply_at(at, t, &rw_op_custom_grad, in, n + 1, &a, offsetof(struct custom_attrs, data) + size, NULL);
}
