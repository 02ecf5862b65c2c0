/* rw_eval(), rw_read(), rw_item(), rw_backward(), rw_grad(): which plan runs, how far, and what is held afterwards. */
#include "api/eval_and_backward.h"

#include "api/expected_backward.h"
#include "api/execute_request.h"
#include "autodiff/differentiate.h"
#include "run/run_advance.h"
#include "run/source_addresses.h"
#include "base/alloc.h"
#include "autodiff/roots.h"
#include "record/gradient_state.h"
#include "record/handle_check.h"
#include "verify/verify.h"

#include <rewind/custom_grad.h>
#include <rewind/ops.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

rw_status rw_run_eagerly(rw_tape *t, uint32_t node)
{
    const struct rw_node n = t->nodes[node];
    if (t->ctx->ops[n.op]->flags & RW_OP_COMMIT) return RW_OK; /* it takes place when the step ends */
    for (uint32_t i = 0; i < n.n_outputs; i++) {
        const uint32_t v = n.first_output + i;
        const rw_status status = rw_evaluate(t, &v, 1, false);
        if (status) return status;
    }
    return RW_OK;
}

/* Evaluates what the program requests. */
static rw_status evaluate(rw_tape *t, const uint32_t *values, size_t n, bool effects)
{
    const rw_status status = rw_evaluate(t, values, n, effects);
    if (!status) rw_tape_note_requested(t, values, n, RW_REQUESTED_VALUE, effects);
    return status;
}

/* Logs the reads of small values: the next step with the same structure computes them. Of others it only learns where
   they were read. */
static rw_status note_reads(rw_tape *t, rw_tensor *const *x, size_t n, bool at_point)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && !t->ctx->eager && i < n; i++) {
        if (x[i]->flags & (RW_VALUE_CONTEXT | RW_VALUE_GRADIENT)) continue;
        const uint32_t base = x[i]->base;
        if (rw_tape_value(t, base)->producer == RW_NONE_ID) continue;
        if (rw_value_is_small(t, base)) status = rw_log_read(t, base, at_point);
        else if (at_point) status = rw_log_read(t, RW_NONE_ID, true);
    }
    return status;
}

/* i: index in x, -1 for a call with one tensor. */
static rw_status refuse(rw_context *ctx, const char *call, const rw_tensor *x, int64_t i, const char *fault)
{
    char text[RW_FAULT_TEXT], name[32] = "x";
    if (i >= 0) snprintf(name, sizeof name, "x[%lld]", (long long)i);
    return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: %s", call, rw_fault_text(text, x, name, "a tensor with contents", fault));
}

/* Is x a view of memory of the context, which may have been destroyed? */
static bool is_of_context(const rw_tape *t, const struct rw_tensor *x)
{
    const uint32_t leaf = x->flags & RW_VALUE_GRADIENT ? RW_NONE_ID : rw_tape_value(t, x->base)->leaf;
    return leaf != RW_NONE_ID && t->leaves[leaf].kind != RW_LEAF_INPUT;
}

/* A leaf itself is read with its present contents, and so are views of a gradient. A view of another leaf is an op's
   result, whose contents are those at its recording. */
static bool is_view_of_leaf(const rw_tape *t, const struct rw_tensor *x)
{
    return !(x->flags & RW_VALUE_GRADIENT) && x->id != x->base && rw_tape_value(t, x->base)->leaf != RW_NONE_ID;
}

static bool is_on_tape(const struct rw_tensor *x)
{
    return !(x->flags & (RW_VALUE_CONTEXT | RW_VALUE_GRADIENT));
}

/* Is it computed? A view has the memory of its base, or a copy of its own. */
static bool is_held(const rw_tape *t, const struct rw_tensor *x)
{
    return is_on_tape(x) && (rw_tape_held(t, x->base) || rw_tape_held(t, x->id));
}

/* effects: they happen in the same evaluation, and may write what a view shows. */
static bool must_run(const rw_tape *t, const struct rw_tensor *x, bool effects)
{
    if (!is_on_tape(x) || is_held(t, x)) return false;
    return rw_tape_value(t, x->base)->producer != RW_NONE_ID || (effects && is_view_of_leaf(t, x));
}

/* Has what a view shows changed since it was recorded? Checked before anything runs. */
static rw_status check_view(const rw_tape *t, const struct rw_tensor *x)
{
    const bool is_checked = is_on_tape(x) && is_view_of_leaf(t, x) && !is_held(t, x);
    return is_checked ? rw_leaf_check(t, rw_tape_value(t, x->base)->leaf) : RW_OK;
}

/*
 * A view of a leaf is read from the leaf's memory, so nothing runs for it. All the same the request has read the leaf:
 * a later rw_input_write() does not change what the view contains.
 */
static void note_views(const rw_tape *t, rw_tensor *const *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_on_tape(x[i]) || !is_view_of_leaf(t, x[i])) continue;
        struct rw_leaf *const leaf = &t->leaves[rw_tape_value(t, x[i]->base)->leaf];
        if (leaf->kind != RW_LEAF_INPUT) continue;
        leaf->version = leaf->written;
        leaf->ran = leaf->is_requested = true;
    }
}

/* Computes the values that are not held, and pending effects, in one evaluation. */
rw_status rw_eval(rw_tape *t, rw_tensor *const *x, size_t n)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_eval", "t");
    if (t->ctx->status) return t->ctx->status;
    if (n && !x) return rw_fail_null(t->ctx, "rw_eval", "x");
    if (!rw_count_check(t->ctx, "rw_eval", n)) return RW_ERR_ARGUMENT;
    const rw_status runs = rw_check_runs(t->ctx, "rw_eval");
    if (runs) return runs;
    uint32_t *const values = rw_malloc(n * sizeof *values);
    if (!values) return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_eval: out of memory");
    size_t missing = 0, held = 0; /* at the array's begin and end */
    const bool effects = rw_has_due_effects(t);
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) {
        const char *const fault = rw_readable_fault(t, x[i]);
        status = fault ? refuse(t->ctx, "rw_eval", x[i], (int64_t)i, fault) : check_view(t, x[i]);
        if (status) break;
        if (is_held(t, x[i])) values[n - ++held] = x[i]->id;
        else if (must_run(t, x[i], effects)) values[missing++] = x[i]->id;
    }
    if (!status && (missing || effects)) status = evaluate(t, values, missing, effects);
    if (!status)
        rw_tape_note_requested(t, values + n - held, held, RW_REQUESTED_VALUE, rw_requests_include_effects(t));
    rw_free(values);
    if (!status) note_views(t, x, n);
    return status ? status : note_reads(t, x, n, false);
}

rw_status rw_eval_effects(rw_tape *t)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_eval_effects", "t");
    if (t->ctx->status) return t->ctx->status;
    const rw_status runs = rw_check_runs(t->ctx, "rw_eval_effects");
    if (runs) return runs;
    if (rw_tape_pending_effects(t, NULL)) return evaluate(t, NULL, 0, true);
    rw_tape_note_requested(t, NULL, 0, RW_REQUESTED_VALUE, true); /* eager mode may have executed them */
    return RW_OK;
}

/* ---- reading ---- */

static void copy_strided(char *out, const char *base, const rw_layout *l, size_t size, int axis)
{
    /* base points to element (0, ..., 0) of the axes from `axis` on */
    if (axis == l->rank) {
        memcpy(out, base, size);
        return;
    }
    int64_t inner = 1;
    for (int i = axis + 1; i < l->rank; i++) inner *= l->dim[i];
    for (int64_t i = 0; i < l->dim[axis]; i++)
        copy_strided(out + (size_t)(i * inner) * size, base + i * l->stride[axis] * (int64_t)size, l, size, axis + 1);
}

static rw_status copy_out(rw_context *ctx, const void *buffer, const rw_layout *l, rw_dtype dtype, void *out)
{
    const size_t size = rw_dtype_size(dtype);
    const char *const first = (const char *)buffer + (size_t)l->offset * size;
    if (!l->numel) return RW_OK;
    if (l->dense) return ctx->device->download(ctx->device_state, out, first, (size_t)l->numel * size);
    char *const span = rw_malloc((size_t)l->span * size);
    if (!span) return rw_fail(ctx, RW_ERR_MEMORY, "rw_read: out of memory");
    const rw_status status = ctx->device->download(ctx->device_state, span, first, (size_t)l->span * size);
    if (!status) copy_strided(out, span, l, size, 0);
    rw_free(span);
    return status;
}

/* out may be device memory. */
static rw_status copy_zeros(rw_context *ctx, void *out, size_t bytes)
{
    void *const zeros = rw_calloc(bytes, 1);
    if (!zeros) return rw_fail(ctx, RW_ERR_MEMORY, "rw_read: out of memory");
    const rw_status status = ctx->device->download(ctx->device_state, out, zeros, bytes);
    rw_free(zeros);
    return status;
}

/* The parameter whose gradient x is, or is a view of; NULL for anything else. */
static struct rw_param *param_of_gradient(const rw_tape *t, const struct rw_tensor *x)
{
    if (x->flags & RW_VALUE_CONTEXT) return x->flags & RW_VALUE_GRADIENT ? rw_param_of(x) : NULL;
    if (!is_of_context(t, x)) return NULL;
    const struct rw_leaf *const leaf = &t->leaves[rw_tape_value(t, x->base)->leaf];
    return leaf->kind == RW_LEAF_GRADIENT ? t->ctx->by_id[leaf->param] : NULL;
}

static const void *buffer_of(const rw_tape *t, const struct rw_tensor *x)
{
    if (x->flags & RW_VALUE_CONTEXT) return rw_param_of(x)->data;
    if (x->flags & RW_VALUE_GRADIENT) return ((const struct rw_gradient_handle *)x)->data;
    const struct rw_tensor *const base = rw_tape_value(t, x->base);
    if (base->producer != RW_NONE_ID) return rw_tape_held(t, base->id);
    const struct rw_leaf *const leaf = &t->leaves[base->leaf];
    return leaf->kind == RW_LEAF_INPUT ? leaf->data : t->ctx->by_id[leaf->param]->data;
}

/* Copies the present contents of memory that neither moves nor needs to be computed. */
static rw_status copy_there(rw_context *ctx, const rw_tape *t, const struct rw_tensor *x, const char *name, void *out)
{
    const struct rw_param *const p = param_of_gradient(t, x);
    const void *bytes = NULL;
    const rw_status status = p ? rw_gradient_read(ctx, p, name, &bytes) : RW_OK;
    if (status) return status;
    if (p && !bytes) return copy_zeros(ctx, out, rw_tensor_bytes(x));
    const void *const copy = is_on_tape(x) && x->id != x->base ? rw_tape_held(t, x->id) : NULL;
    if (copy && !p) return ctx->device->download(ctx->device_state, out, copy, rw_tensor_bytes(x));
    return copy_out(ctx, p ? bytes : buffer_of(t, x), rw_layout_of(ctx, x), (rw_dtype)x->dtype, out);
}

/* name: the public call. begins: the value may begin a step. */
static rw_status read_value(const char *name, rw_tape *t, rw_tensor *x, void *out, size_t bytes, bool begins)
{
    rw_context *const ctx = t ? t->ctx : rw_tensor_context(x);
    if (ctx && ctx->status) return ctx->status;
    if (!ctx || !out) return rw_fail_null(ctx, name, out ? "x" : "out");
    const char *const fault = rw_readable_fault(t, x);
    if (fault) return refuse(ctx, name, x, -1, fault);
    if (rw_check_runs(ctx, name)) return RW_ERR_UNSUPPORTED;
    if (bytes != rw_tensor_bytes(x))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(bytes): expected %zu, the size of x, got %zu", name,
                       rw_tensor_bytes(x), bytes);
    rw_status status = rw_runs_wait(ctx);
    if (status) return status;
    const bool context = x->flags & RW_VALUE_CONTEXT;
    if (context && t && rw_has_due_effects(t)) status = evaluate(t, NULL, 0, true); /* one of them may write x */
    if (status) return status;
    if (!context) {
        if (!t) t = x->owner.tape;
        if (begins && !(x->flags & RW_VALUE_GRADIENT)) rw_begin_step_for(t, x);
        if (begins) status = note_reads(t, &x, 1, true);
        if (!status && is_of_context(t, x)) status = rw_tape_misses_nothing(t, name);
        if (!status && !(x->flags & RW_VALUE_GRADIENT)) status = rw_eval(t, &x, 1);
        if (status) return status;
    }
    status = copy_there(ctx, t, x, name, out);
    return status ? rw_fail(ctx, status, "%s: the copy from the device failed", name) : RW_OK;
}

rw_status rw_read(rw_tape *t, rw_tensor *x, void *out, size_t bytes)
{
    RW_ENTER(t ? t->ctx : rw_tensor_context(x), RW_ERR_ARGUMENT);
    return read_value("rw_read", t, x, out, bytes, false);
}

/* Reads a value of one element, of any type, as a double. */
double rw_item(rw_tape *t, rw_tensor *x)
{
    RW_ENTER(t ? t->ctx : rw_tensor_context(x), NAN);
    rw_context *const ctx = t ? t->ctx : rw_tensor_context(x);
    const char *const fault = ctx ? rw_readable_fault(t, x) : NULL;
    if (fault) {
        refuse(ctx, "rw_item", x, -1, fault);
        return NAN;
    }
    if (ctx && rw_shape_numel(rw_tensor_shape(x)) != 1) {
        rw_fail(ctx, RW_ERR_SHAPE, "rw_item(x): expected 1 element, got %lld",
                (long long)rw_shape_numel(rw_tensor_shape(x)));
        return NAN;
    }
    if (ctx && rw_check_runs(ctx, "rw_item")) return NAN;
    union {
        float f32;
        double f64;
        int32_t i32;
        uint16_t bf16;
        _Float16 f16;
        uint8_t truth;
    } u;
    if (read_value("rw_item", t, x, &u, ctx ? rw_dtype_size((rw_dtype)x->dtype) : 0, true)) return NAN;
    switch ((rw_dtype)x->dtype) {
    case RW_F32: return u.f32;
    case RW_F64: return u.f64;
    case RW_I32: return u.i32;
    case RW_BOOL: return u.truth != 0;
    case RW_F8_E4M3:
    case RW_F8_E5M2:
    case RW_F8_E8M0: return (double)u.truth; /* the FP8 code itself */
    case RW_F16: return (double)u.f16;
    default: break;
    }
    const uint32_t bits = (uint32_t)u.bf16 << 16;
    memcpy(&u.f32, &bits, sizeof bits);
    return u.f32;
}

/* ---- backward ---- */

rw_status rw_backward(rw_tape *t, rw_tensor *loss)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_backward", "t");
    const uint32_t id = rw_loss_check(t, loss, "rw_backward");
    if (id == RW_NONE_ID) return t->ctx->status;
    rw_status status = rw_check_runs(t->ctx, "rw_backward");
    if (!status) status = rw_roots_note(t, &id, 1, false, "rw_backward");
    return status ? status : rw_begun_backward(t, id, NULL);
}

/* ---- gradients as ops ---- */

/* Maximum nesting of gradient rules. Each level may pass again over everything that the outer ones have recorded. */
#define RULES_DEEP 8

/* Checks the arguments of rw_grad(), and the nesting of gradient rules. */
static rw_status check_grad_call(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, size_t n,
                                 rw_tensor **ret_grads)
{
    rw_context *const ctx = t->ctx;
    if (ctx->status) return ctx->status;
    const char *const fault = rw_value_fault(t, y);
    if (t->n_rules > RULES_DEEP)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_grad at %s:%d: expected at most %d gradient rules inside each "
                       "other, got more; a rule that differentiates a value of its own upstream gradient never ends",
                       rw_file_of(at), at.line, RULES_DEEP);
    char text[RW_FAULT_TEXT];
    if (fault)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_grad at %s:%d: %s", rw_file_of(at), at.line,
                       rw_fault_text(text, y, "y", "an input or result of this tape", fault));
    if (n && (!x || !ret_grads)) return rw_fail_null(ctx, "rw_grad", x ? "ret_grads" : "x");
    return rw_count_check(ctx, "rw_grad", n) ? RW_OK : RW_ERR_ARGUMENT;
}

/* Records the gradients of x, by value. In a caller's rw_no_grad_begin() they are constants, whatever rules record. */
static rw_status differentiate(rw_site at, rw_tape *t, rw_tensor *y, const uint32_t *x, size_t n, rw_tensor **grads)
{
    const unsigned scopes = t->open_no_grads;
    const bool constant = scopes && !t->n_rules;
    if (constant) t->open_no_grads = 0;
    rw_status status = rw_differentiate(t, &(struct rw_root){ .value = y->id }, 1, x, n, grads, NULL);
    t->open_no_grads = scopes;
    for (size_t i = 0; constant && !status && i < n; i++) {
        if (!grads[x[i]]) continue;
        grads[x[i]] = rw_detach_at(at, t, grads[x[i]]);
        if (!grads[x[i]]) status = t->ctx->status;
    }
    return status;
}

/* Checks the arguments and records the gradients; on failure the tape is rolled back. */
rw_status rw_grad_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, size_t n, rw_tensor **ret_grads)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_grad", "t");
    rw_status status = check_grad_call(at, t, y, x, n, ret_grads);
    if (status) return status;
    const struct rw_tape_mark mark = rw_tape_mark(t);
    uint32_t *const of = rw_malloc(n * sizeof *of);
    if (!of) return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_grad at %s:%d: out of memory", rw_file_of(at), at.line);
    for (size_t i = 0; !status && i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "x[%zu]", i);
        const struct rw_tensor *const v = rw_tape_resolve(t, x[i], "rw_grad", name, at);
        if (!v) status = t->ctx->status;
        else if (!(v->flags & RW_VALUE_REQUIRES))
            status = rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_grad at %s:%d: x[%zu]: expected a parameter or a value that "
                             "requires a gradient, got another; mark it with rw_require_grad() before it is used",
                             rw_file_of(at), at.line, i);
        else of[i] = v->id;
    }
    rw_tensor **const grads = rw_calloc(t->n_values, sizeof *grads);
    if (!status && !grads) status = rw_fail(t->ctx, RW_ERR_MEMORY, "rw_grad at %s:%d: out of memory",
                                            rw_file_of(at), at.line);
    if (!status) status = differentiate(at, t, y, of, n, grads);
    if (status) rw_tape_rollback(t, &mark);
    for (size_t i = 0; !status && i < n; i++) ret_grads[i] = grads[of[i]];
    rw_free(grads);
    rw_free(of);
    return status;
}
