/* Routing of tokens: the choice of experts, the weights of the choice, and the order of rows. Definitions and rules. */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/moe/moe.h"

/* ---- topk ---- */

/* Checks the attributes of a choice against the number of experts. */
static rw_status check_choice(rw_op_call *call, const struct rw_moe_topk_attrs *a, int64_t experts)
{
    if (experts < 1 || experts > RW_MOE_EXPERTS_MAX)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "scores", experts, "1 to %d experts, the last axis",
                                 RW_MOE_EXPERTS_MAX);
    if (a->groups < 1 || a->groups > RW_MOE_GROUPS_MAX || experts % a->groups)
        return rw_unexpected_int(call, RW_ERR_ARGUMENT, "groups", a->groups, "1 to %d, a divisor of %lld experts",
                                 RW_MOE_GROUPS_MAX, (long long)experts);
    if (a->best_groups < 1 || a->best_groups > a->groups)
        return rw_unexpected_int(call, RW_ERR_ARGUMENT, "best_groups", a->best_groups, "1 to %lld, the groups",
                                 (long long)a->groups);
    const int64_t eligible = experts / a->groups * a->best_groups;
    if (a->k < 1 || a->k > RW_MOE_CHOSEN_MAX || a->k > eligible)
        return rw_unexpected_int(call, RW_ERR_ARGUMENT, "k", a->k, "1 to %d, at most the %lld experts of %lld groups",
                                 RW_MOE_CHOSEN_MAX, (long long)eligible, (long long)a->best_groups);
    if (a->group_sum < 1 || a->group_sum > experts / a->groups)
        return rw_unexpected_int(call, RW_ERR_ARGUMENT, "group_sum", a->group_sum, "1 to %lld, the experts of a group",
                                 (long long)(experts / a->groups));
    return RW_OK;
}

static rw_status check_topk(rw_op_call *call)
{
    const struct rw_moe_topk_attrs *const a = call->attrs;
    const rw_shape s = rw_in_shape(call, 0);
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_expect_rank(call, 0, NULL, 2, "[T, E]"));
    RW_CHECK(check_choice(call, a, s.dim[1]));
    if (call->n_inputs == 2) {
        RW_CHECK(rw_want_same_dtype(call, 0, 1));
        RW_CHECK(rw_expect_shape(call, 1, NULL, RW_SHAPE(s.dim[1])));
    }
    return rw_op_output(call, 0, RW_I32, RW_SHAPE(s.dim[0], a->k));
}

RW_BUILTIN_OP(moe_topk, "scores bias", "torch.topk")
RW_DECLARE_KERNELS(rw_moe_topk)
static const rw_op_def rw_op_moe_topk = { .name = "moe_topk", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                          .flags = RW_OP_NO_GRADIENT, .check = check_topk,
                                          .kernel = RW_KERNELS(rw_moe_topk) };

rw_tensor *rw_moe_topk_at(rw_site at, rw_tape *t, rw_tensor *scores, rw_tensor *bias, const rw_moe_choice *choice)
{
    RW_ENTER_OP(t);
    if (!rw_moe_is_there(at, t, "moe_topk", "choice", choice)) return NULL;
    struct rw_moe_topk_attrs a = { choice->k, choice->groups, choice->best_groups, choice->group_sum };
    rw_tensor *const in[] = { scores, bias };
    if (!a.groups) a.groups = 1;
    if (!a.best_groups) a.best_groups = a.groups;
    if (!a.group_sum) a.group_sum = a.best_groups > 0 && a.k > a.best_groups ? a.k / a.best_groups : 1;
    return rw_apply_at(at, t, &rw_op_moe_topk, in, bias == rw_none() ? 1 : 2, &a, sizeof a, NULL);
}

/* ---- select and its inverse, scatter ---- */

static rw_status check_index(rw_op_call *call, int64_t tokens)
{
    const rw_shape s = rw_in_shape(call, 1);
    RW_CHECK(rw_want_dtype(call, 1, RW_I32));
    if (s.rank == 2 && s.dim[0] == tokens) return RW_OK;
    return rw_unexpected(call, RW_ERR_SHAPE, 1, NULL, "[%lld, k], for each token the k experts", (long long)tokens);
}

static rw_status check_select(rw_op_call *call)
{
    const rw_shape s = rw_in_shape(call, 0);
    RW_CHECK(rw_want_float(call, 0));
    if (s.rank != 2 || s.dim[1] < 1) return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "[T, E] with 1 expert or more");
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

RW_BUILTIN_OP(moe_select, "scores index", "torch.gather")
RW_INTERNAL_OP(moe_scatter, "weights index")
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
    RW_ENTER_OP(t);
    rw_tensor *const in[] = { scores, index };
    return rw_apply_at(at, t, &rw_op_moe_select, in, 2, NULL, 0, NULL);
}

/* ---- routes ---- */

/* Checks the index and describes the routes: order, inverse, offsets and load. */
static rw_status check_route(rw_op_call *call)
{
    const struct rw_moe_route_attrs *const a = call->attrs;
    const rw_shape s = rw_in_shape(call, 0);
    RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    RW_CHECK(rw_expect_rank(call, 0, NULL, 2, "[T, k]"));
    if (a->experts < 1 || a->experts > RW_MOE_EXPERTS_MAX)
        return rw_unexpected_int(call, RW_ERR_ARGUMENT, "experts", a->experts, "1 to %d", RW_MOE_EXPERTS_MAX);
    if (s.dim[1] > RW_MOE_CHOSEN_MAX || rw_shape_numel(s) > INT32_MAX / 2)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "[T, k] with k at most %d and at most 2^30 elements",
                             RW_MOE_CHOSEN_MAX);
    RW_CHECK(rw_op_output(call, 0, RW_I32, RW_SHAPE(s.dim[0] * s.dim[1])));
    RW_CHECK(rw_op_output(call, 1, RW_I32, s));
    RW_CHECK(rw_op_output(call, 2, RW_I32, RW_SHAPE(a->experts + 1)));
    return rw_op_output(call, 3, RW_F32, RW_SHAPE(a->experts));
}

/* On CUDA: the number of rows before each chunk, by expert and for dropped slots. The CPU needs the first row of it. */
static size_t workspace(const rw_op_call *call)
{
    const struct rw_moe_route_attrs *const a = call->attrs;
    const int64_t chunks = (call->in[0].layout->numel + MOE_CHUNK - 1) / MOE_CHUNK;
    return (size_t)((chunks + 1) * (a->experts + 1)) * sizeof(int32_t);
}

RW_BUILTIN_OP(moe_route, "index", "-")
RW_DECLARE_KERNELS(rw_moe_route)
static const rw_op_def rw_op_moe_route = { .name = "moe_route", .n_inputs = 1, .n_outputs = 4,
                                           .flags = RW_OP_NO_GRADIENT, .check = check_route,
                                           .kernel = RW_KERNELS(rw_moe_route),
                                           .workspace = RW_WORKSPACES(workspace, workspace) };

rw_status rw_moe_route_at(rw_site at, rw_tape *t, rw_tensor *index, int64_t experts, rw_moe_routes *ret)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    if (!rw_moe_is_there(at, t, "moe_route", "ret", ret)) return RW_ERR_ARGUMENT;
    const struct rw_moe_route_attrs a = { experts };
    rw_tensor *out[4] = { NULL, NULL, NULL, NULL };
    *ret = (rw_moe_routes){ NULL, NULL, NULL, NULL };
    if (!rw_apply_at(at, t, &rw_op_moe_route, &index, 1, &a, sizeof a, out))
        return t ? rw_error_status(rw_tape_context(t)) : RW_ERR_ARGUMENT;
    *ret = (rw_moe_routes){ out[0], out[1], out[2], out[3] };
    return RW_OK;
}
