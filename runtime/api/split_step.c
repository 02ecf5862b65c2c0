/*
 * rw_forward() and rw_backward_from(): a step in two halves that the caller connects, such as the stages of a pipeline.
 * The first runs to the beginning of backward at the given values and is suspended; the second continues with gradients
 * that the caller provides.
 */
#include "api/execute_request.h"
#include "base/alloc.h"
#include "autodiff/roots.h"
#include "verify/verify.h"

#include <rewind/ops.h>

static rw_status no_memory(rw_context *ctx, const char *what)
{
    return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", what);
}

static rw_status no_tensors(rw_context *ctx, const char *call, rw_tensor *const *y)
{
    if (!y) return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: y is NULL; expected an array of n tensors", call);
    return rw_fail(ctx, RW_ERR_ARGUMENT, "%s(n): expected 1 tensor or more, got 0", call);
}

/* Records that the program requested the forward part of a step. It has computed what commits among its nodes write
   when the step ends; that stays requested if memory discards the suspended run. */
static void note_forward(rw_tape *t, const uint32_t *roots, size_t n)
{
    rw_tape_note_requested(t, roots, n, RW_REQUESTED_STEP, true);
    for (size_t i = 0; i < t->n_effects; i++) {
        const struct rw_node *const node = &t->nodes[t->effects[i].node];
        if (node->n_outputs && rw_is_in_forward(t, rw_tape_value(t, node->first_output)))
            t->requested[node->first_output] |= RW_REQUESTED_VALUE;
    }
}

/* Values after gradients that rw_grad() recorded belong to no step's forward part: then only they are computed, and no
   effects. */
static rw_status forward(rw_tape *t, const uint32_t *roots, size_t n)
{
    struct rw_request request = rw_program_step(t, roots, n);
    const struct rw_request values = { .kind = RW_PLAN_EVAL, .values = roots, .n_values = n,
                                       .policy = &rw_policy_none };
    bool in_forward = true;
    for (size_t i = 0; i < n; i++) in_forward &= rw_is_in_forward(t, rw_tape_value(t, roots[i]));
    request.seeded = true;
    const rw_status status = rw_run_request(t, in_forward ? &request : &values, NULL, in_forward);
    if (!status && in_forward) note_forward(t, roots, n);
    else if (!status) rw_tape_note_requested(t, roots, n, RW_REQUESTED_STEP, false);
    return status;
}

rw_status rw_forward(rw_tape *t, rw_tensor *const *y, size_t n)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_forward", "t");
    if (!n || !y) return no_tensors(t->ctx, "rw_forward", y);
    if (!rw_count_check(t->ctx, "rw_forward", n)) return RW_ERR_ARGUMENT;
    uint32_t *const roots = rw_malloc(n * sizeof *roots);
    if (!roots) return no_memory(t->ctx, "rw_forward");
    rw_status status = rw_roots_check(t, n, y, "rw_forward", roots);
    if (!status) status = rw_check_runs(t->ctx, "rw_forward");
    if (!status) status = rw_roots_note(t, roots, n, true, "rw_forward");
    if (!status) status = forward(t, roots, n);
    rw_free(roots);
    return status;
}

/*
 * The address of a gradient that is an input of the tape or rw_gradient() of any tape's value; NULL for anything else.
 */
static const void *data_of(const rw_tape *t, const rw_tensor *dy)
{
    if (rw_tensor_context(dy) != t->ctx || (dy->flags & (RW_VALUE_CONTEXT | RW_VALUE_GONE))) return NULL;
    if (dy->flags & RW_VALUE_GRADIENT) return ((const struct rw_gradient_handle *)dy)->data;
    if (!rw_tape_has(t, dy) || dy->leaf == RW_NONE_ID || t->leaves[dy->leaf].kind != RW_LEAF_INPUT) return NULL;
    return t->leaves[dy->leaf].data;
}

/* Checks one gradient against the type and shape of its value. */
static rw_status take_seed(const rw_tape *t, const rw_tensor *y, const rw_tensor *dy, size_t i, const void **ret_seed)
{
    rw_context *const ctx = t->ctx;
    if (!dy) return RW_OK;
    *ret_seed = data_of(t, dy);
    if (!*ret_seed)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_backward_from(dy[%zu]): expected an input of the tape or "
                       "rw_gradient() of a tape's value, got another tensor, or one from before rw_tape_reset()", i);
    const rw_shape a = rw_layout_shape(rw_layout_of(ctx, y)), b = rw_layout_shape(rw_layout_of(ctx, dy));
    if (dy->dtype == y->dtype && rw_shape_equal(a, b)) return RW_OK;
    char want[RW_SHAPE_TEXT], got[RW_SHAPE_TEXT];
    return rw_fail(ctx, RW_ERR_SHAPE, "rw_backward_from(dy[%zu]): expected %s%s, as y[%zu] has, got %s%s", i,
                   rw_dtype_name((rw_dtype)y->dtype), rw_shape_text(want, sizeof want, a), i,
                   rw_dtype_name((rw_dtype)dy->dtype), rw_shape_text(got, sizeof got, b));
}

static rw_status backward_from(rw_tape *t, size_t n, rw_tensor *const *y, rw_tensor *const *dy, uint32_t *roots,
                               const void **seeds)
{
    rw_status status = rw_roots_check(t, n, y, "rw_backward_from", roots);
    if (!status) status = rw_check_runs(t->ctx, "rw_backward_from");
    for (size_t i = 0; !status && i < n; i++) status = take_seed(t, y[i], dy ? dy[i] : NULL, i, &seeds[i]);
    if (!status) status = rw_roots_note(t, roots, n, true, "rw_backward_from");
    if (status) return status;
    struct rw_request request = rw_program_step(t, roots, n);
    request.seeded = true;
    status = t->ctx->verify == RW_VERIFY_FULL ? rw_verify_and_run(t, &request, seeds)
                                              : rw_run_request(t, &request, seeds, false);
    if (!status) rw_tape_note_requested(t, roots, n, RW_REQUESTED_STEP, true);
    return status;
}

rw_status rw_backward_from(rw_tape *t, rw_tensor *const *y, rw_tensor *const *dy, size_t n)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "rw_backward_from", "t");
    if (!n || !y) return no_tensors(t->ctx, "rw_backward_from", y);
    if (!rw_count_check(t->ctx, "rw_backward_from", n)) return RW_ERR_ARGUMENT;
    uint32_t *const roots = rw_malloc(n * sizeof *roots);
    const void **const seeds = rw_calloc(n, sizeof *seeds);
    const rw_status status = roots && seeds ? backward_from(t, n, y, dy, roots, seeds)
                                            : no_memory(t->ctx, "rw_backward_from");
    rw_free(roots);
    rw_free(seeds);
    return status;
}
