/*
 * The nodes of loss scaling: unscaling, and the next scale. Between the two, rw_recording.skip is the value of the plan
 * that says whether a gradient is not finite.
 */
#include "api/scaler_nodes.h"

#include "base/alloc.h"

static rw_status no_memory(rw_context *ctx)
{
    return rw_fail(ctx, RW_ERR_MEMORY, "rw_scaler_unscale: out of memory");
}

/* One node reads and writes each gradient, and has three more operands; inside backward it reads one number for each,
   and has two more. */
#define UNSCALED_MAX ((RW_OP_MAX_OPERANDS - 3) / 2)
#define NOTED_MAX (RW_OP_MAX_OPERANDS - 2)

static rw_status too_many(rw_context *ctx, int n, int most)
{
    return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_scaler_unscale: expected at most %d gradients, got %d", most, n);
}

/* ---- after backward ---- */

/* Records one node for all gradients, and replaces them by its outputs. */
static rw_status unscale_all(const rw_scaler *s, struct rw_recording *now, rw_tensor **in, rw_tensor **out)
{
    rw_context *const ctx = s->ctx;
    int n = 0;
    in[n++] = &s->numbers->tensor;
    in[n++] = &s->found->tensor;
    for (size_t i = 0; i < ctx->n_params; i++) {
        rw_tensor *const g = now->gradient[ctx->params[i]->tensor.id];
        if (g) in[n++] = g;
    }
    if (n - 2 > UNSCALED_MAX) return too_many(ctx, n - 2, UNSCALED_MAX);
    const rw_status status = rw_update_record(now->t, "rw_scaler_unscale", &rw_op_unscale_grads, in, n, NULL, 0, out);
    for (size_t i = 0, k = 1; !status && i < ctx->n_params; i++) {
        rw_tensor **const g = &now->gradient[ctx->params[i]->tensor.id];
        if (*g) *g = out[k++];
    }
    if (!status) now->skip = out[0];
    return status;
}

static rw_status record_at_once(const rw_scaler *s, struct rw_recording *now)
{
    const size_t most = s->ctx->n_params + 2;
    rw_tensor **const both = rw_malloc(2 * most * sizeof *both);
    if (!both) return no_memory(s->ctx);
    const rw_status status = unscale_all(s, now, both, both + most);
    rw_free(both);
    return status;
}

/* ---- inside backward ---- */

rw_status rw_scaler_record_begin(struct rw_step_recorder *r, const struct rw_recording *now)
{
    struct rw_scaler_recorder *const x = (struct rw_scaler_recorder *)r;
    if (!now->in_two_passes) return RW_OK;
    x->founds = rw_calloc(x->s->ctx->n_ids, sizeof *x->founds);
    return x->founds ? RW_OK : no_memory(x->s->ctx);
}

void rw_scaler_record_end(struct rw_step_recorder *r)
{
    struct rw_scaler_recorder *const x = (struct rw_scaler_recorder *)r;
    rw_free(x->founds);
    x->founds = NULL;
}

/* Records the unscaling of one gradient. Both passes do this; the second finds the same as the first. */
rw_tensor *rw_scaler_record_gradient(struct rw_step_recorder *r, struct rw_recording *now, uint32_t param,
                                     rw_tensor *gradient)
{
    struct rw_scaler_recorder *const x = (struct rw_scaler_recorder *)r;
    rw_tensor *const in[] = { &x->s->numbers->tensor, gradient }, *out[2];
    rw_tensor *const unscaled =
        rw_apply_at((rw_site){ "rw_scaler_unscale", 0 }, now->t, &rw_op_unscale_grad, in, 2, NULL, 0, out);
    if (unscaled && now->is_first_pass) x->founds[param] = out[1];
    return unscaled;
}

/* Records the node that combines the results of all gradients. */
static rw_status record_results(const struct rw_scaler_recorder *x, struct rw_recording *now)
{
    const rw_scaler *const s = x->s;
    rw_context *const ctx = s->ctx;
    rw_tensor **const in = rw_malloc((ctx->n_params + 1) * sizeof *in), *out[1];
    int n = 0;
    if (!in) return no_memory(ctx);
    for (size_t i = 0; i < ctx->n_params; i++) {
        rw_tensor *const found = x->founds[ctx->params[i]->tensor.id];
        if (found) in[n++] = found;
    }
    in[n++] = &s->found->tensor;
    const rw_status status =
        n - 1 > NOTED_MAX ? too_many(ctx, n - 1, NOTED_MAX)
                           : rw_update_record(now->t, "rw_scaler_unscale", &rw_op_any_found, in, n, NULL, 0, out);
    rw_free(in);
    if (!status) now->skip = out[0];
    return status;
}

/* ---- both ---- */

rw_status rw_scaler_record_unscaling(struct rw_step_recorder *r, struct rw_recording *now)
{
    const struct rw_scaler_recorder *const x = (struct rw_scaler_recorder *)r;
    return now->in_two_passes ? record_results(x, now) : record_at_once(x->s, now);
}

rw_status rw_scaler_record_next(struct rw_step_recorder *r, struct rw_recording *now)
{
    const rw_scaler *const s = ((struct rw_scaler_recorder *)r)->s;
    rw_tensor *const in[] = { now->skip, &s->numbers->tensor };
    return rw_update_record(now->t, "rw_scaler_update", &rw_op_scaler_update, in, 2, &s->rule, sizeof s->rule, NULL);
}
