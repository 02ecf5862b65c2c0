/* The choice of experts, weights by the choice, and the places of rows: definitions and rules. */
#include "ops/common/kernels.h"
#include "ops/common/util.h"
#include "ops/moe/moe.h"

/* ---- topk ---- */

static rw_status check_choice(rw_op_call *call, const struct rw_moe_topk_attrs *a, int64_t experts)
{
    if (experts < 1 || experts > RW_MOE_MOST_EXPERTS)
        return rw_op_error(call, RW_ERR_SHAPE, "%lld experts, not 1 to %d", (long long)experts, RW_MOE_MOST_EXPERTS);
    if (a->groups < 1 || a->groups > RW_MOE_MOST_GROUPS || experts % a->groups)
        return rw_op_error(call, RW_ERR_ARGUMENT, "%lld groups of %lld experts", (long long)a->groups,
                           (long long)experts);
    if (a->best_groups < 1 || a->best_groups > a->groups)
        return rw_op_error(call, RW_ERR_ARGUMENT, "the best %lld of %lld groups", (long long)a->best_groups,
                           (long long)a->groups);
    if (a->k < 1 || a->k > RW_MOE_MOST_CHOSEN || a->k > experts / a->groups * a->best_groups)
        return rw_op_error(call, RW_ERR_ARGUMENT, "k %lld of %lld experts in %lld groups", (long long)a->k,
                           (long long)experts, (long long)a->best_groups);
    if (a->group_sum < 1 || a->group_sum > experts / a->groups)
        return rw_op_error(call, RW_ERR_ARGUMENT, "group_sum %lld of %lld experts", (long long)a->group_sum,
                           (long long)(experts / a->groups));
    return RW_OK;
}

static rw_status check_topk(rw_op_call *call)
{
    const struct rw_moe_topk_attrs *const a = call->attrs;
    const rw_shape s = rw_in_shape(call, 0);
    RW_CHECK(rw_want_float(call, 0));
    if (s.rank != 2) return rw_op_error(call, RW_ERR_SHAPE, "scores [T, E] are needed");
    RW_CHECK(check_choice(call, a, s.dim[1]));
    if (call->n_inputs == 2) {
        RW_CHECK(rw_want_same_dtype(call, 0, 1));
        if (!rw_shape_equal(rw_in_shape(call, 1), RW_SHAPE(s.dim[1])))
            return rw_op_error(call, RW_ERR_SHAPE, "bias [E] is needed");
    }
    return rw_op_output(call, 0, RW_I32, RW_SHAPE(s.dim[0], a->k));
}

RW_DECLARE_KERNELS(rw_moe_topk)
static const rw_op_def rw_op_moe_topk = { .name = "moe_topk", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                          .flags = RW_OP_NO_GRADIENT, .check = check_topk,
                                          .kernel = RW_KERNELS(rw_moe_topk) };

rw_tensor *rw_moe_topk_at(rw_site at, rw_tape *t, rw_tensor *scores, rw_tensor *bias, const rw_moe_choice *choice)
{
    if (!rw_moe_is_there(at, t, "moe_topk", "choice", choice)) return NULL;
    struct rw_moe_topk_attrs a = { choice->k, choice->groups, choice->best_groups, choice->group_sum };
    rw_tensor *const in[] = { scores, bias };
    if (!a.groups) a.groups = 1;
    if (!a.best_groups) a.best_groups = a.groups;
    if (!a.group_sum) a.group_sum = a.best_groups > 0 && a.k > a.best_groups ? a.k / a.best_groups : 1;
    return rw_apply_at(at, t, &rw_op_moe_topk, in, bias == rw_none() ? 1 : 2, &a, sizeof a, NULL);
}

/* ---- select and its way back ---- */

static rw_status check_index(rw_op_call *call, int64_t tokens)
{
    const rw_shape s = rw_in_shape(call, 1);
    RW_CHECK(rw_want_dtype(call, 1, RW_I32));
    if (s.rank != 2 || s.dim[0] != tokens) return rw_op_error(call, RW_ERR_SHAPE, "index [T, k] is needed");
    return RW_OK;
}

static rw_status check_select(rw_op_call *call)
{
    const rw_shape s = rw_in_shape(call, 0);
    RW_CHECK(rw_want_float(call, 0));
    if (s.rank != 2 || s.dim[1] < 1) return rw_op_error(call, RW_ERR_SHAPE, "scores [T, E] are needed");
    RW_CHECK(check_index(call, s.dim[0]));
    return rw_op_output(call, 0, call->in[0].dtype, rw_in_shape(call, 1));
}

/* weights [T, k] to [T, E], zeros elsewhere. */
static rw_status check_scatter(rw_op_call *call)
{
    const struct rw_moe_scatter_attrs *const a = call->attrs;
    const rw_shape s = rw_in_shape(call, 0);
    RW_CHECK(check_index(call, s.dim[0]));
    return rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(s.dim[0], a->experts));
}

static rw_status grad_select(rw_grad_call *g);
static rw_status grad_scatter(rw_grad_call *g);

RW_DECLARE_KERNELS(rw_moe_select)
static const rw_op_def rw_op_moe_select = { .name = "moe_select", .n_inputs = 2, .n_outputs = 1, .check = check_select,
                                            .kernel = RW_KERNELS(rw_moe_select), .grad = grad_select };
RW_DECLARE_KERNELS(rw_moe_scatter)
static const rw_op_def rw_op_moe_scatter = { .name = "moe_scatter", .n_inputs = 2, .n_outputs = 1,
                                             .check = check_scatter, .kernel = RW_KERNELS(rw_moe_scatter),
                                             .grad = grad_scatter };

static rw_status grad_select(rw_grad_call *g)
{
    const struct rw_moe_scatter_attrs a = { rw_tensor_shape(rw_grad_input(g, 0)).dim[1] };
    rw_tensor *const in[] = { rw_grad_upstream(g, 0), rw_grad_input(g, 1) };
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &rw_op_moe_scatter, in, 2, &a, sizeof a, NULL));
}

static rw_status grad_scatter(rw_grad_call *g)
{
    rw_tensor *const in[] = { rw_grad_upstream(g, 0), rw_grad_input(g, 1) };
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &rw_op_moe_select, in, 2, NULL, 0, NULL));
}

rw_tensor *rw_moe_select_at(rw_site at, rw_tape *t, rw_tensor *scores, rw_tensor *index)
{
    rw_tensor *const in[] = { scores, index };
    return rw_apply_at(at, t, &rw_op_moe_select, in, 2, NULL, 0, NULL);
}

/* ---- routes ---- */

static rw_status check_route(rw_op_call *call)
{
    const struct rw_moe_route_attrs *const a = call->attrs;
    const rw_shape s = rw_in_shape(call, 0);
    RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    if (s.rank != 2) return rw_op_error(call, RW_ERR_SHAPE, "index [T, k] is needed");
    if (a->experts < 1 || a->experts > RW_MOE_MOST_EXPERTS)
        return rw_op_error(call, RW_ERR_ARGUMENT, "%lld experts, not 1 to %d", (long long)a->experts,
                           RW_MOE_MOST_EXPERTS);
    if (s.dim[1] > RW_MOE_MOST_CHOSEN || rw_shape_numel(s) > INT32_MAX / 2)
        return rw_op_error(call, RW_ERR_SHAPE, "too many rows for an index of 32 bits, or k above %d",
                           RW_MOE_MOST_CHOSEN);
    RW_CHECK(rw_op_output(call, 0, RW_I32, RW_SHAPE(s.dim[0] * s.dim[1])));
    RW_CHECK(rw_op_output(call, 1, RW_I32, s));
    RW_CHECK(rw_op_output(call, 2, RW_I32, RW_SHAPE(a->experts + 1)));
    return rw_op_output(call, 3, RW_F32, RW_SHAPE(a->experts));
}

/* The rows before each chunk's, by expert and of what was dropped: on CUDA; a CPU needs the first row. */
static size_t workspace(const rw_op_call *call)
{
    const struct rw_moe_route_attrs *const a = call->attrs;
    const int64_t chunks = (call->in[0].layout->numel + MOE_CHUNK - 1) / MOE_CHUNK;
    return (size_t)((chunks + 1) * (a->experts + 1)) * sizeof(int32_t);
}

RW_DECLARE_KERNELS(rw_moe_route)
static const rw_op_def rw_op_moe_route = { .name = "moe_route", .n_inputs = 1, .n_outputs = 4,
                                           .flags = RW_OP_NO_GRADIENT, .check = check_route,
                                           .kernel = RW_KERNELS(rw_moe_route),
                                           .workspace = RW_WORKSPACES(workspace, workspace) };

rw_status rw_moe_route_at(rw_site at, rw_tape *t, rw_tensor *index, int64_t experts, rw_moe_routes *ret)
{
    if (!rw_moe_is_there(at, t, "moe_route", "ret", ret)) return RW_ERR_ARGUMENT;
    const struct rw_moe_route_attrs a = { experts };
    rw_tensor *out[4] = { NULL, NULL, NULL, NULL };
    *ret = (rw_moe_routes){ NULL, NULL, NULL, NULL };
    if (!rw_apply_at(at, t, &rw_op_moe_route, &index, 1, &a, sizeof a, out))
        return t ? rw_error_status(rw_tape_context(t)) : RW_ERR_ARGUMENT;
    *ret = (rw_moe_routes){ out[0], out[1], out[2], out[3] };
    return RW_OK;
}
