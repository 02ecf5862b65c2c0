/* Leaves, the values that no node computes: inputs, and the values of parameters, gradients and seeds on a tape. */
#include "base/alloc.h"
#include "base/round_up.h"
#include "record/handle_check.h"
#include "record/tape_key_words.h"

#include <string.h>

#define INPUT_ALIGNMENT 256
#define INPUT_BLOCK ((size_t)1 << 20)

static struct rw_tensor *add_leaf(rw_tape *t, struct rw_leaf leaf, uint32_t layout, rw_dtype dtype, unsigned flags)
{
    if (!rw_grow(&t->leaves, &t->cap_leaves, t->n_leaves, 1, sizeof *t->leaves)) return NULL;
    if (!rw_tape_reserve_values(t, 1) || !rw_key_reserve(&t->key, RW_KEY_LEAF_WORDS)) return NULL;
    struct rw_tensor *const v = rw_tape_add_value(t);
    v->layout = layout;
    v->dtype = (uint8_t)dtype;
    v->flags = (uint8_t)flags;
    v->leaf = (uint32_t)t->n_leaves;
    leaf.value = v->id;
    t->leaves[t->n_leaves++] = leaf;
    rw_key_add_leaf(&t->key, &leaf, v);
    return v;
}

static struct rw_seen *seen_of(rw_tape *t, uint32_t param)
{
    const size_t had = t->cap_seen;
    if (!rw_grow(&t->seen, &t->cap_seen, param, 1, sizeof *t->seen)) return NULL;
    if (t->cap_seen > had) memset(t->seen + had, 0, (t->cap_seen - had) * sizeof *t->seen);
    return &t->seen[param];
}

static struct rw_leaf leaf_of(enum rw_leaf_kind kind, const struct rw_param *p)
{
    return (struct rw_leaf){ .kind = (uint8_t)kind, .param = p->tensor.id, .serial = p->serial,
                             .gradient_dtype = rw_param_is_trained(p) ? p->gradient.tensor.dtype : 0 };
}

static struct rw_tensor *param_leaf(rw_tape *t, struct rw_param *p)
{
    struct rw_seen *const seen = seen_of(t, p->tensor.id);
    if (!seen) return NULL;
    if (seen->step == t->step && seen->serial == p->serial) return rw_tape_value(t, seen->value);
    struct rw_leaf leaf = leaf_of(RW_LEAF_PARAM, p);
    leaf.version = p->version;
    leaf.bytes = p->bytes;
    struct rw_tensor *const v = add_leaf(t, leaf, p->tensor.layout, (rw_dtype)p->tensor.dtype,
                                         p->tensor.flags & RW_VALUE_REQUIRES);
    if (!v) return NULL;
    *seen = (struct rw_seen){ t->step, p->serial, v->id };
    return v;
}

/* A gradient's leaf is not cached in its parameter: gradients are rarely read, and two leaves for the same bytes do
   no harm. */
static struct rw_tensor *gradient_leaf(rw_tape *t, struct rw_param *p)
{
    struct rw_leaf leaf = leaf_of(RW_LEAF_GRADIENT, p);
    leaf.bytes = p->gradient.bytes;
    leaf.version = p->gradient.version; /* the tape relies on this version from now on, as for a parameter:
                                           REWIND_EAGER=1 reads it now */
    leaf.ran = true;
    return add_leaf(t, leaf, p->tensor.layout, (rw_dtype)p->gradient.tensor.dtype, 0);
}

struct rw_tensor *rw_tape_add_seed(rw_tape *t, uint32_t root, const struct rw_tensor *y)
{
    const rw_layout *const layout = rw_layout_dense(&t->ctx->layouts, rw_layout_shape(rw_layout_of(t->ctx, y)));
    if (!layout) return NULL;
    const size_t bytes = (size_t)layout->numel * rw_dtype_size((rw_dtype)y->dtype);
    return add_leaf(t, (struct rw_leaf){ .kind = RW_LEAF_SEED, .param = root, .bytes = bytes }, layout->id,
                    (rw_dtype)y->dtype, 0);
}

struct rw_tensor *rw_tape_resolve(rw_tape *t, rw_tensor *x, const char *what, const char *argument, rw_site at)
{
    if (!rw_operand_check(at, t, x, what, argument)) return NULL;
    if (!(x->flags & RW_VALUE_CONTEXT)) return x;
    struct rw_param *const p = rw_param_of(x);
    struct rw_tensor *const v = x->flags & RW_VALUE_GRADIENT ? gradient_leaf(t, p) : param_leaf(t, p);
    if (!v) rw_fail(t->ctx, RW_ERR_MEMORY, "%s at %s:%d: out of memory", what, rw_file_of(at), at.line);
    return v;
}

rw_tensor *rw_operand_at(rw_site at, rw_tape *t, rw_tensor *x, const char *what)
{
    RW_ENTER_OP(t);
    return rw_tape_resolve(t, x, what ? what : "rw_operand", "x", at);
}

/* Inputs */

static void *input_memory(rw_tape *t, size_t bytes)
{
    bytes = rw_round_up(bytes, INPUT_ALIGNMENT);
    for (size_t i = 0; i < t->n_inputs; i++) {
        struct rw_input_block *const b = &t->inputs[i];
        if (b->bytes - b->used < bytes) continue;
        b->used += bytes;
        return (char *)b->data + b->used - bytes;
    }
    if (!rw_grow(&t->inputs, &t->cap_inputs, t->n_inputs, 1, sizeof *t->inputs)) return NULL;
    const size_t size = bytes > INPUT_BLOCK ? bytes : INPUT_BLOCK;
    void *const data = rw_context_alloc(t->ctx, size, false);
    if (!data) return NULL;
    t->inputs[t->n_inputs++] = (struct rw_input_block){ .data = data, .bytes = size, .used = bytes };
    return data;
}

static void refuse_bytes(rw_context *ctx, rw_site at, rw_dtype dtype, rw_shape shape, const void *data, size_t bytes)
{
    const size_t size = (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype);
    char text[RW_SHAPE_TEXT];
    rw_shape_text(text, sizeof text, shape);
    if (data)
        rw_fail(ctx, RW_ERR_ARGUMENT, "rw_input(bytes) at %s:%d: expected %zu bytes for %s%s, got %zu", rw_file_of(at),
                at.line, size, rw_dtype_name(dtype), text, bytes);
    else
        rw_fail(ctx, RW_ERR_ARGUMENT,
                "rw_input(data) at %s:%d: expected %zu bytes for %s%s, or NULL and 0 bytes for zeros, got NULL and %zu "
                "bytes", rw_file_of(at), at.line, size, rw_dtype_name(dtype), text, bytes);
}

/* The elements are copied at once, so the caller may change them after the call. Blocks of earlier steps are reused. */
rw_tensor *rw_input_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, const void *data, size_t bytes)
{
    RW_ENTER_OP(t);
    if (!t) return rw_fail_null(NULL, "rw_input", "t"), NULL;
    if (!rw_shape_check(t->ctx, "rw_input", at, dtype, shape)) return NULL;
    rw_context *const ctx = t->ctx;
    const size_t size = (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype);
    if (bytes != (data ? size : 0)) return refuse_bytes(ctx, at, dtype, shape, data, bytes), NULL;
    if (!rw_bytes_fit(ctx->memory.inputs, size, 1)) {
        rw_fail(ctx, RW_ERR_MEMORY, "rw_input at %s:%d: with %zu bytes more, inputs would take more than 2^60 bytes in "
                "all", rw_file_of(at), at.line, size);
        return NULL;
    }
    const rw_layout *const layout = rw_layout_dense(&ctx->layouts, shape);
    void *const copy = layout ? input_memory(t, size) : NULL;
    struct rw_tensor *const v = copy ? add_leaf(t,
                                                (struct rw_leaf){ .kind = RW_LEAF_INPUT, .data = copy, .bytes = size },
                                                layout->id, dtype, 0)
                                     : NULL;
    if (!v) {
        rw_fail(ctx, RW_ERR_MEMORY, "rw_input at %s:%d: out of memory for %zu bytes", rw_file_of(at), at.line, size);
        return NULL;
    }
    t->input_bytes += size;
    ctx->memory.inputs += size;
    const rw_status status = data ? ctx->device->upload(ctx->device_state, copy, data, size)
                                  : ctx->device->clear(ctx->device_state, copy, size);
    if (status) rw_fail(ctx, status, "rw_input at %s:%d: the copy to the device failed", rw_file_of(at), at.line);
    return status ? NULL : v;
}

/*
 * Counts as a change: a run that has read the old elements for a request, and would replay from them, is refused later.
 * What was only computed ahead is dropped before.
 */
rw_status rw_input_write(rw_tensor *x, const void *data, size_t bytes)
{
    RW_ENTER(rw_tensor_context(x), RW_ERR_ARGUMENT);
    rw_context *const ctx = rw_tensor_context(x);
    if (!ctx) return rw_fail_null(NULL, "rw_input_write", "x");
    rw_tape *const t = x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GONE) ? NULL : x->owner.tape;
    if (!t || !rw_tape_has(t, x))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_input_write(x): expected an input of a tape, got one that %s",
                       t ? rw_value_fault(t, x)
                         : x->flags & RW_VALUE_GONE ? "belongs to a tape or to averages that were destroyed"
                                                    : "belongs to the context; rw_write() is for those");
    if (x->leaf == RW_NONE_ID || t->leaves[x->leaf].kind != RW_LEAF_INPUT)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_input_write(x): expected an input of a tape, got an op's result");
    struct rw_leaf *const leaf = &t->leaves[x->leaf];
    if (!data && bytes) return rw_fail_null(t->ctx, "rw_input_write", "data");
    if (bytes != leaf->bytes)
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_input_write(bytes): expected %zu, the size of x, got %zu",
                       leaf->bytes, bytes);
    rw_status status = leaf->ran && !leaf->is_requested ? t->ctx->up->written(t, x->leaf) : RW_OK;
    if (status) return status;
    leaf->written++;
    if (bytes) status = t->ctx->device->upload(t->ctx->device_state, leaf->data, data, bytes);
    return status ? rw_fail(t->ctx, status, "rw_input_write: the copy to the device failed") : RW_OK;
}

rw_tensor *rw_require_grad(rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    const char *const fault = t ? rw_value_fault(t, x) : "";
    char text[RW_FAULT_TEXT];
    if (!t) rw_fail(rw_tensor_context(x), RW_ERR_ARGUMENT, "rw_require_grad: t is NULL; expected a tape");
    else if (fault)
        rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_require_grad: %s",
                rw_fault_text(text, x, "x", "an input or result of this tape", fault));
    else if (!rw_dtype_is_float((rw_dtype)x->dtype))
        rw_fail(t->ctx, RW_ERR_DTYPE, "rw_require_grad(x): expected a floating-point type, got %s",
                rw_dtype_name((rw_dtype)x->dtype));
    if (fault || !rw_dtype_is_float((rw_dtype)x->dtype)) return NULL;
    if (x->flags & RW_VALUE_RETAIN) return x;
    if (!rw_grow(&t->retained, &t->cap_retained, t->n_retained, 1, sizeof *t->retained) ||
        !rw_key_reserve(&t->key, RW_KEY_MARK_WORDS)) {
        rw_fail(t->ctx, RW_ERR_MEMORY, "rw_require_grad: out of memory");
        return NULL;
    }
    t->retained[t->n_retained++] = x->id;
    x->flags |= RW_VALUE_RETAIN | RW_VALUE_REQUIRES;
    rw_key_add_mark(&t->key, x->id, RW_VALUE_RETAIN);
    return x;
}
