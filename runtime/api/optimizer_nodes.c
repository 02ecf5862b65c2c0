/* The nodes of an optimizer's updates: after backward one per group of parameters, inside backward one per
   parameter. */
#include "api/optimizer_nodes.h"

#include "base/alloc.h"

#include <rewind/ops.h>

#define OPERANDS (3 + RW_UPDATE_STATES) /* inputs of each, without its sums */

/* The gradient that planning computed or found; otherwise that of the parameter, which is clear. */
static rw_tensor *gradient_of(const struct rw_member *x, rw_tensor *const *gradient)
{
    rw_tensor *const g = gradient[x->param->tensor.id];
    return g ? g : &x->param->gradient.tensor;
}

/* The rows that the update uses: as uploaded, or if some updates may be skipped, as corrected on the device. */
static rw_status record_rows(const rw_optimizer *opt, size_t group, struct rw_recording *now, rw_tensor **ret_rows)
{
    rw_tensor *in[4], *out[2];
    int n = 0;
    *ret_rows = &opt->uploaded[group]->tensor;
    if (!opt->pending) return RW_OK;
    if (now->skip) in[n++] = now->skip;
    in[n++] = &opt->uploaded[group]->tensor;
    in[n++] = &opt->pending[group]->tensor;
    in[n++] = &opt->due[group]->tensor;
    const rw_status status = rw_update_record(now->t, "rw_optimizer_step", &rw_op_update_rows, in, n, &opt->kind->attrs,
                                              sizeof opt->kind->attrs, out);
    if (!status) *ret_rows = out[1];
    return status;
}

static struct rw_update_attrs attrs_of(const rw_optimizer *opt)
{
    struct rw_update_attrs attrs = opt->kind->attrs;
    attrs.sums = opt->n_watchers > 0;
    attrs.windows = opt->offload != NULL;
    attrs.moments = (int32_t)opt->numbers.moments;
    return attrs;
}

/* Records one node that updates all pieces of a group. */
static rw_status record_group(rw_optimizer *opt, size_t group, struct rw_recording *now, rw_tensor **in)
{
    const struct rw_piece *const p = &opt->pieces.piece[opt->pieces.first[group]];
    const size_t n = rw_group_size(opt, group), states = (size_t)opt->kind->attrs.states;
    const struct rw_update_attrs attrs = attrs_of(opt);
    size_t end = 1 + (2 + states) * n;
    const rw_status status = record_rows(opt, group, now, &in[0]);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        const struct rw_member *const x = &opt->members[p[i].member];
        in[1 + i] = gradient_of(x, now->gradient);
        in[1 + n + i] = &x->param->tensor;
        for (size_t j = 0; j < states; j++) in[1 + (2 + j) * n + i] = &p[i].state[j]->tensor;
        if (x->has_master) in[end++] = &p[i].state[states]->tensor;
    }
    if (attrs.sums) in[end++] = &opt->sums[group]->tensor;
    return rw_update_record(now->t, "rw_optimizer_step", opt->kind->op, in, (int)end, &attrs, sizeof attrs, NULL);
}

/* Records the update of one parameter: its row, its gradient, the parameter, its states. The states are in device
   memory, so the piece has the parameter's number. */
static rw_status record_one(rw_optimizer *opt, size_t i, rw_tape *t, rw_tensor *rows, rw_tensor *g)
{
    const struct rw_member *const x = &opt->members[i];
    const int64_t row = (int64_t)(i % RW_GROUP_MAX);
    const struct rw_update_attrs attrs = attrs_of(opt);
    rw_tensor *in[2 + OPERANDS] = { NULL, g, &x->param->tensor };
    int n = 3;
    in[0] = rw_slice_at((rw_site){ "rw_optimizer_step", 0 }, t, rows, 0, row, row + 1);
    if (!in[0]) return opt->ctx->status;
    for (int j = 0; j < opt->pieces.piece[i].n_states; j++) in[n++] = &opt->pieces.piece[i].state[j]->tensor;
    if (attrs.sums) in[n++] = &x->sums->tensor;
    return rw_update_record(t, "rw_optimizer_step", opt->kind->op, in, n, &attrs, sizeof attrs, NULL);
}

rw_status rw_optimizer_record_inside(rw_optimizer *opt, struct rw_recording *now)
{
    rw_tensor *rows = NULL;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < opt->n; i++) {
        rw_tensor *const g = now->gradient[opt->members[i].param->tensor.id];
        if (i % RW_GROUP_MAX == 0) status = record_rows(opt, i / RW_GROUP_MAX, now, &rows);
        if (!status && g) status = record_one(opt, i, now->t, rows, g);
    }
    return status;
}

rw_status rw_optimizer_record_after(rw_optimizer *opt, struct rw_recording *now)
{
    rw_status status = RW_OK;
    const size_t most = opt->pieces.n < RW_GROUP_MAX ? opt->pieces.n : RW_GROUP_MAX;
    rw_tensor **const in = rw_malloc((2 + OPERANDS * most) * sizeof *in);
    if (!in) return rw_fail(opt->ctx, RW_ERR_MEMORY, "rw_optimizer_step: out of memory");
    for (size_t g = 0; !status && g < opt->pieces.n_groups; g++) status = record_group(opt, g, now, in);
    rw_free(in);
    return status;
}
