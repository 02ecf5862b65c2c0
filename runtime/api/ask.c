/* rw_eval(), rw_read(), rw_item(), rw_backward(), rw_grad(): which plan, how much of it, and what is held afterwards.
 */
#include "api/ask.h"

#include "autodiff/differentiate.h"
#include "run/advance.h"
#include "base/alloc.h"
#include "autodiff/roots.h"
#include "record/gradient.h"
#include "record/handle.h"
#include "verify/verify.h"

#include <rewind/custom_grad.h>
#include <rewind/ops.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Gradients that rw_grad() recorded are late nodes: what is made after one is not in a step's forward part. */
static bool follows_a_gradient(const rw_tape *t, uint32_t node)
{
    while (node && !t->nodes[node].adjoint) node--;
    return t->nodes[node].adjoint;
}

bool rw_is_in_forward(const rw_tape *t, const struct rw_tensor *v)
{
    return v->producer == RW_NONE_ID || !follows_a_gradient(t, v->producer);
}

/* May the scalar be a loss that is read before its backward? */
static bool may_be_loss(const rw_tape *t, const struct rw_tensor *v)
{
    return t->open_region == RW_NONE_ID && t->open_part == RW_NONE_ID && (v->flags & RW_VALUE_REQUIRES) &&
           v->producer != RW_NONE_ID && rw_layout_get(&t->ctx->layouts, v->layout)->numel == 1 &&
           rw_is_in_forward(t, v);
}

struct rw_request rw_program_step(const rw_tape *t, const uint32_t *roots, size_t n)
{
    struct rw_request request = rw_step_request(t, roots, n);
    if (t->ctx->eager) request.policy = &rw_policy_none;
    return request;
}

static rw_status run_forward(struct rw_run *r)
{
    if (r->plan->n_forward > r->next_action) return rw_run_through(r, r->plan->n_forward);
    if (r->state == RW_RUN_NEW) rw_run_end(r); /* all of forward is held already */
    return RW_OK;
}

rw_status rw_run_request(rw_tape *t, const struct rw_request *request, const void *const *seeds, bool forward_only)
{
    struct rw_run *r;
    const rw_status status = rw_run_find(t, request, &r);
    if (status) return status;
    r->seeds = seeds;
    r->flags &= (uint8_t)~RW_RUN_ASSUMED;
    return forward_only ? run_forward(r) : rw_run_through(r, r->plan->n_actions);
}

/* Computes the values and keeps nothing else. */
static rw_status eval(rw_tape *t, const uint32_t *values, size_t n, bool effects)
{
    const struct rw_request request = { .kind = RW_PLAN_EVAL, .values = values, .n_values = n,
                                        .policy = &rw_policy_none, .effects = effects };
    return rw_run_request(t, &request, NULL, false);
}

/*
 * Begins the step whose loss the value may be: runs its forward part. That it is the loss is an assumption, so a step
 * that cannot be planned is no error, and nothing has run then.
 */
static rw_status begin_step(rw_tape *t, uint32_t loss)
{
    rw_context *const ctx = t->ctx;
    const struct rw_request step = rw_program_step(t, &loss, 1);
    struct rw_run *r;
    if (!rw_run_find(t, &step, &r)) {
        r->flags |= RW_RUN_ASSUMED;
        return run_forward(r);
    }
    ctx->status = RW_OK;
    ctx->message[0] = '\0';
    return RW_OK;
}

rw_status rw_run_eagerly(rw_tape *t, uint32_t node)
{
    const struct rw_node n = t->nodes[node];
    if (t->ctx->ops[n.op]->flags & RW_OP_COMMIT) return RW_OK; /* it happens when the step ends */
    for (uint32_t i = 0; i < n.n_outputs; i++) {
        const uint32_t v = n.first_output + i;
        const rw_status status = eval(t, &v, 1, false);
        if (status) return status;
    }
    return RW_OK;
}

/*
 * Effects that an evaluation has to run, also where every requested value has been computed already: those of a tape on
 * which nothing requires a gradient. On any other tape they belong to the step and run with its backward.
 */
static bool has_due_effects(rw_tape *t)
{
    if (!rw_tape_pending_effects(t, NULL)) return false;
    if (t->n_retained) rw_spread_requirement(t); /* a value may have been marked after its use */
    return !rw_has_gradient(t);
}

rw_status rw_eval(rw_tape *t, rw_tensor *const *x, size_t n)
{
    if (!t) return RW_ERR_ARGUMENT;
    if (t->ctx->status) return t->ctx->status;
    if (n && !x) return rw_fail_null(t->ctx, "rw_eval", "x");
    const rw_status runs = rw_check_runs(t->ctx, "rw_eval");
    if (runs) return runs;
    uint32_t *const values = rw_malloc(n * sizeof *values);
    if (!values) return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_eval: out of memory");
    size_t missing = 0;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) {
        const char *const fault = rw_readable_fault(t, x[i]);
        if (fault) status = rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_eval: tensor %zu %s", i, fault);
        else if (x[i]->flags & (RW_VALUE_CONTEXT | RW_VALUE_GRADIENT)) continue;
        else if (!rw_tape_held(t, x[i]->base) && rw_tape_value(t, x[i]->base)->producer != RW_NONE_ID)
            values[missing++] = x[i]->id;
    }
    const bool effects = !status && has_due_effects(t);
    if (!status && (missing || effects)) status = eval(t, values, missing, effects);
    rw_free(values);
    return status;
}

rw_status rw_eval_effects(rw_tape *t)
{
    if (!t) return RW_ERR_ARGUMENT;
    if (t->ctx->status) return t->ctx->status;
    const rw_status runs = rw_check_runs(t->ctx, "rw_eval_effects");
    if (runs || !rw_tape_pending_effects(t, NULL)) return runs;
    return eval(t, NULL, 0, true);
}

/* Reading */

static void copy_strided(char *out, const char *base, const rw_layout *l, size_t size, int axis)
{
    /* base points at the element (0, ..., 0) of the axes from `axis` on */
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

/* A scalar that may be a loss and has not been computed begins its step. */
static rw_status begin_step_of(rw_tape *t, const rw_tensor *x)
{
    if ((x->flags & RW_VALUE_GRADIENT) || t->ctx->eager || !may_be_loss(t, x) || rw_tape_held(t, x->base)) return RW_OK;
    return begin_step(t, x->id);
}

/* out may be the device's memory. */
static rw_status copy_zeros(rw_context *ctx, void *out, size_t bytes)
{
    void *const zeros = rw_calloc(bytes, 1);
    if (!zeros) return rw_fail(ctx, RW_ERR_MEMORY, "rw_read: out of memory");
    const rw_status status = ctx->device->download(ctx->device_state, out, zeros, bytes);
    rw_free(zeros);
    return status;
}

/* Is x a view of memory of the context, which may have gone with its state? */
static bool is_of_context(const rw_tape *t, const struct rw_tensor *x)
{
    const uint32_t leaf = x->flags & RW_VALUE_GRADIENT ? RW_NONE_ID : rw_tape_value(t, x->base)->leaf;
    return leaf != RW_NONE_ID && t->leaves[leaf].kind != RW_LEAF_INPUT;
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

/* What is there now, of memory that neither moves nor has to be computed any more. */
static rw_status copy_there(rw_context *ctx, const rw_tape *t, const struct rw_tensor *x, const char *name, void *out)
{
    const struct rw_param *const p = param_of_gradient(t, x);
    const void *bytes = NULL;
    const rw_status status = p ? rw_gradient_read(ctx, p, name, &bytes) : RW_OK;
    if (status) return status;
    if (p && !bytes) return copy_zeros(ctx, out, rw_tensor_bytes(x));
    return copy_out(ctx, p ? bytes : buffer_of(t, x), rw_layout_of(ctx, x), (rw_dtype)x->dtype, out);
}

/* name: the public call. begins: a scalar that may be a loss begins its step. */
static rw_status read_value(const char *name, rw_tape *t, rw_tensor *x, void *out, size_t bytes, bool begins)
{
    rw_context *const ctx = t ? t->ctx : rw_tensor_context(x);
    if (ctx && ctx->status) return ctx->status;
    if (!ctx || !out) return rw_fail_null(ctx, name, out ? "x" : "out");
    const char *const fault = rw_readable_fault(t, x);
    if (fault) return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: the tensor %s", name, fault);
    if (rw_check_runs(ctx, name)) return RW_ERR_UNSUPPORTED;
    if (bytes != rw_tensor_bytes(x))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: room for %zu bytes, the tensor has %zu", name, bytes,
                       rw_tensor_bytes(x));
    rw_status status = rw_runs_wait(ctx);
    if (status) return status;
    const bool context = x->flags & RW_VALUE_CONTEXT;
    if (context && t && has_due_effects(t)) status = eval(t, NULL, 0, true); /* one of them may write x */
    if (status) return status;
    if (!context) {
        if (!t) t = x->owner.tape;
        if (begins) status = begin_step_of(t, x);
        if (!status && !(x->flags & RW_VALUE_GRADIENT)) status = rw_eval(t, &x, 1);
        if (!status && is_of_context(t, x)) status = rw_tape_misses_nothing(t, name);
        if (status) return status;
    }
    status = copy_there(ctx, t, x, name, out);
    return status ? rw_fail(ctx, status, "%s: the copy from the device failed", name) : RW_OK;
}

rw_status rw_read(rw_tape *t, rw_tensor *x, void *out, size_t bytes)
{
    return read_value("rw_read", t, x, out, bytes, false);
}

double rw_item(rw_tape *t, rw_tensor *x)
{
    rw_context *const ctx = t ? t->ctx : rw_tensor_context(x);
    const char *const fault = ctx ? rw_readable_fault(t, x) : NULL;
    if (fault) {
        rw_fail(ctx, RW_ERR_ARGUMENT, "rw_item: the tensor %s", fault);
        return NAN;
    }
    if (ctx && rw_shape_numel(rw_tensor_shape(x)) != 1) {
        rw_fail(ctx, RW_ERR_SHAPE, "rw_item: the tensor has %lld elements, not 1",
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
    case RW_F8_E8M0: return (double)u.truth; /* the code itself */
    case RW_F16: return (double)u.f16;
    default: break;
    }
    const uint32_t bits = (uint32_t)u.bf16 << 16;
    memcpy(&u.f32, &bits, sizeof bits);
    return u.f32;
}

/* Backward */

rw_status rw_backward(rw_tape *t, rw_tensor *loss)
{
    if (!t) return RW_ERR_ARGUMENT;
    const uint32_t id = rw_loss_check(t, loss, "rw_backward");
    if (id == RW_NONE_ID) return t->ctx->status;
    const struct rw_request request = rw_program_step(t, &id, 1);
    rw_status status = rw_check_runs(t->ctx, "rw_backward");
    if (!status) status = rw_tape_note_roots(t, &id, 1, false, "rw_backward");
    if (status) return status;
    if (t->ctx->verify == RW_VERIFY_FULL) return rw_verify_and_run(t, &request, NULL);
    return rw_run_request(t, &request, NULL, false);
}

/* Gradients as ops */

/* Gradient rules, one inside of the other. Each level may pass again all that those around have recorded. */
#define RULES_DEEP 8

static rw_status check_grad_call(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, size_t n,
                                 rw_tensor **ret_grads)
{
    rw_context *const ctx = t->ctx;
    if (ctx->status) return ctx->status;
    const char *const fault = rw_value_fault(t, y);
    if (t->n_rules > RULES_DEEP)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_grad at %s:%d: called in gradient rules inside of gradient rules, "
                       "more than %d of them; a rule that differentiates what depends on its own upstream gradient "
                       "meets itself without end", at.file, at.line, RULES_DEEP);
    if (fault) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_grad at %s:%d: y %s", at.file, at.line, fault);
    if (n && (!x || !ret_grads)) return rw_fail_null(ctx, "rw_grad", x ? "ret_grads" : "x");
    return RW_OK;
}

/* Gradients of x, by value. In an rw_no_grad_begin() of the caller's they are constants, whatever rules record. */
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

rw_status rw_grad_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, size_t n, rw_tensor **ret_grads)
{
    if (!t) return RW_ERR_ARGUMENT;
    rw_status status = check_grad_call(at, t, y, x, n, ret_grads);
    if (status) return status;
    const struct rw_tape_mark mark = rw_tape_mark(t);
    uint32_t *const of = rw_malloc(n * sizeof *of);
    if (!of) return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_grad at %s:%d: out of memory", at.file, at.line);
    for (size_t i = 0; !status && i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor %zu", i);
        const struct rw_tensor *const v = rw_tape_resolve(t, x[i], "rw_grad", name, at);
        if (!v) status = t->ctx->status;
        else if (!(v->flags & RW_VALUE_REQUIRES))
            status = rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_grad at %s:%d: tensor %zu requires no gradient; mark it with "
                             "rw_require_grad() before it is used", at.file, at.line, i);
        else of[i] = v->id;
    }
    rw_tensor **const grads = rw_calloc(t->n_values, sizeof *grads);
    if (!status && !grads) status = rw_fail(t->ctx, RW_ERR_MEMORY, "rw_grad at %s:%d: out of memory", at.file, at.line);
    if (!status) status = differentiate(at, t, y, of, n, grads);
    if (status) rw_tape_undo(t, &mark);
    for (size_t i = 0; !status && i < n; i++) ret_grads[i] = grads[of[i]];
    rw_free(grads);
    rw_free(of);
    return status;
}
