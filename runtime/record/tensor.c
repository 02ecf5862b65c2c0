/* Queries of tensors of every kind: values of a tape, parameters, buffers, gradients. */
#include "record/tape.h"

#include <rewind/ops.h>

rw_context *rw_tensor_context(const rw_tensor *x)
{
    if (!x || x == rw_none()) return NULL;
    return x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GONE) ? x->owner.ctx : x->owner.tape->ctx;
}

/* True for a valid tensor; false for NULL, rw_none() and stale ones: then queries return what they return for NULL. */
static bool is_there(const rw_tensor *x)
{
    if (!x || x == rw_none() || (x->flags & RW_VALUE_GONE)) return false;
    if (x->flags & RW_VALUE_CONTEXT) return true;
    return x->flags & RW_VALUE_GRADIENT ? x->id != RW_NONE_ID : rw_tape_has(x->owner.tape, x);
}

const char *rw_tensor_name(const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    if (!is_there(x)) return "";
    const struct rw_param *const p = rw_param_of(x);
    if (p) return rw_param_name(p);
    return x->tag ? rw_tensor_context(x)->names.text[x->tag - 1] : "";
}

const rw_layout *rw_tensor_layout(const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    return is_there(x) ? rw_layout_of(rw_tensor_context(x), x) : NULL;
}

rw_shape rw_tensor_shape(const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    const rw_layout *const layout = rw_tensor_layout(x);
    return layout ? rw_layout_shape(layout) : RW_SCALAR;
}

rw_tensor *rw_tensor_base(rw_tensor *x)
{
    RW_LOOKS_ONLY;
    if (!is_there(x)) return x == rw_none() ? x : NULL;
    if (x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GRADIENT)) return x;
    return rw_tape_value(x->owner.tape, x->base);
}

rw_tensor_kind rw_tensor_kind_of(const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    if (!is_there(x)) return RW_TENSOR_NONE;
    if (x->flags & RW_VALUE_GRADIENT) return RW_TENSOR_GRADIENT;
    if (!(x->flags & RW_VALUE_CONTEXT)) return RW_TENSOR_VALUE;
    return rw_param_is_trained(rw_param_of(x)) ? RW_TENSOR_PARAM : RW_TENSOR_BUFFER;
}

rw_dtype rw_tensor_dtype(const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    return x ? (rw_dtype)x->dtype : RW_F32;
}

size_t rw_tensor_bytes(const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    const rw_layout *const layout = rw_tensor_layout(x);
    return layout ? (size_t)layout->numel * rw_dtype_size((rw_dtype)x->dtype) : 0;
}

bool rw_tensor_requires_grad(const rw_tensor *x)
{
    RW_LOOKS_ONLY;
    return is_there(x) && (x->flags & RW_VALUE_REQUIRES);
}

static rw_tensor *tape_gradient(rw_tensor *x)
{
    rw_tape *const t = x->owner.tape;
    const size_t i = rw_tape_gradients_above(t, x->id);
    return i < t->n_gradients && t->gradients[i]->tensor.id == x->id ? &t->gradients[i]->tensor : NULL;
}

rw_tensor *rw_gradient(rw_tensor *x)
{
    RW_ENTER(rw_tensor_context(x), NULL);
    if (!is_there(x) || (x->flags & RW_VALUE_GRADIENT)) return NULL;
    struct rw_param *const p = rw_param_of(x);
    if (!p) return tape_gradient(x);
    if (!rw_param_is_trained(p)) return NULL;
    return &p->gradient.tensor;
}
