/* What every kind of tensor answers: a value of a tape, a parameter or buffer, a gradient. See rewind/tensor.h. */
#include "record/tape.h"

#include <rewind/ops.h>

rw_context *rw_tensor_context(const rw_tensor *x)
{
    if (!x || x == rw_none()) return NULL;
    return x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GONE) ? x->owner.ctx : x->owner.tape->ctx;
}

const char *rw_tensor_name(const rw_tensor *x)
{
    const struct rw_param *const p = rw_param_of(x);
    if (p) return p->name;
    const rw_context *const ctx = rw_tensor_context(x);
    return ctx && x->tag ? ctx->names.text[x->tag - 1] : "";
}

/* Of one that no longer is there may be no layout any more. */
const rw_layout *rw_tensor_layout(const rw_tensor *x)
{
    const rw_context *const ctx = rw_tensor_context(x);
    if (!ctx || (x->flags & RW_VALUE_GONE)) return NULL;
    const bool is_value = !(x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GRADIENT));
    if (is_value ? !rw_tape_has(x->owner.tape, x) : x->id == RW_NONE_ID) return NULL;
    return rw_layout_of(ctx, x);
}

rw_shape rw_tensor_shape(const rw_tensor *x)
{
    const rw_layout *const layout = rw_tensor_layout(x);
    return layout ? rw_layout_shape(layout) : RW_SCALAR;
}

rw_tensor *rw_tensor_base(rw_tensor *x)
{
    if (!x || x == rw_none() || (x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GRADIENT | RW_VALUE_GONE))) return x;
    if (!rw_tape_has(x->owner.tape, x)) return x;
    return rw_tape_value(x->owner.tape, x->base);
}

rw_tensor_kind rw_tensor_kind_of(const rw_tensor *x)
{
    if (!x || x == rw_none()) return RW_TENSOR_NONE;
    if (x->flags & RW_VALUE_GRADIENT) return RW_TENSOR_GRADIENT;
    if (!(x->flags & RW_VALUE_CONTEXT)) return RW_TENSOR_VALUE;
    return rw_param_is_trained(rw_param_of(x)) ? RW_TENSOR_PARAM : RW_TENSOR_BUFFER;
}

rw_dtype rw_tensor_dtype(const rw_tensor *x)
{
    return x ? (rw_dtype)x->dtype : RW_F32;
}

size_t rw_tensor_bytes(const rw_tensor *x)
{
    const rw_layout *const layout = rw_tensor_layout(x);
    return layout ? (size_t)layout->numel * rw_dtype_size((rw_dtype)x->dtype) : 0;
}

bool rw_tensor_requires_grad(const rw_tensor *x)
{
    return x && (x->flags & RW_VALUE_REQUIRES);
}

static rw_tensor *tape_gradient(rw_tensor *x)
{
    rw_tape *const t = x->owner.tape;
    if (!rw_tape_has(t, x)) return NULL;
    for (size_t i = 0; i < t->n_gradients; i++)
        if (t->gradients[i]->tensor.id == x->id) return &t->gradients[i]->tensor;
    return NULL;
}

rw_tensor *rw_gradient(rw_tensor *x)
{
    if (!x || x == rw_none() || (x->flags & (RW_VALUE_GRADIENT | RW_VALUE_GONE))) return NULL;
    struct rw_param *const p = rw_param_of(x);
    if (!p) return tape_gradient(x);
    if (!rw_param_is_trained(p)) return NULL;
    return &p->gradient.tensor;
}
