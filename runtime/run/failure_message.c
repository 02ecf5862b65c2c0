/* Composes the message of a failed action: op, call site, and the range of its integer inputs. */
#include "run/failure_message.h"

#include "ops/common/pass_ops.h"

#include <stdio.h>

/* Statuses that a kernel may return. Others are not a status, or have a meaning that only the run itself can
   determine. */
static bool may_kernel_return(rw_status status)
{
    return status == RW_ERR_MEMORY || status == RW_ERR_DEVICE || status == RW_ERR_ARGUMENT ||
           status == RW_ERR_UNSUPPORTED;
}

/* ---- range of integer inputs ---- */

struct extreme {
    int32_t value;
    int64_t at; /* element, counted row by row */
};

static void find_extremes(const rw_view *x, struct extreme *least, struct extreme *most)
{
    const int32_t *const data = x->data;
    for (int64_t i = 0; i < x->layout->numel; i++) {
        const int32_t value = data[rw_layout_place(x->layout, i)];
        if (!i || value < least->value) *least = (struct extreme){ value, i };
        if (!i || value > most->value) *most = (struct extreme){ value, i };
    }
}

/* A kernel reports that a value is out of range, not which one: the message has the minimum and maximum of integer
   inputs. */
static void tell_integers(const rw_op_def *op, const rw_view *in, int n, char *text, size_t size)
{
    size_t end = 0;
    for (int i = 0; i < n && end < size; i++) {
        struct extreme least = { 0 }, most = { 0 };
        if (in[i].dtype != RW_I32 || !in[i].data || !in[i].layout->numel) continue;
        find_extremes(&in[i], &least, &most);
        char name[48];
        end += (size_t)snprintf(text + end, size - end, "; %s holds %d (element %lld) to %d (element %lld)",
                                rw_op_input_name(op, i, name, sizeof name), (int)least.value, (long long)least.at,
                                (int)most.value, (long long)most.at);
    }
}

/* ---- the message ---- */

static rw_status kernel_failed(rw_context *ctx, const rw_op_def *op, const char *what, const rw_view *in, int n_in,
                               rw_status status)
{
    char integers[256] = "";
    if (!may_kernel_return(status))
        return rw_fail(ctx, RW_ERR_ARGUMENT,
                       "%s failed while it ran: expected its kernel to return RW_OK, RW_ERR_MEMORY, RW_ERR_DEVICE, "
                       "RW_ERR_ARGUMENT or RW_ERR_UNSUPPORTED, got %d", what, (int)status);
    if (status != RW_ERR_ARGUMENT)
        return rw_fail(ctx, status, "%s failed while it ran: %s", what, rw_status_name(status));
    if (in) tell_integers(op, in, n_in, integers, sizeof integers);
    return rw_fail(ctx, status, "%s failed while it ran: expected inputs in range, got an index or another value out "
                   "of range%s", what, integers);
}

rw_status rw_action_failed(const struct rw_run *r, size_t action, const rw_view *in, int n_in, rw_status status)
{
    rw_context *const ctx = r->tape->ctx;
    const struct rw_action *const a = &r->plan->actions[action];
    const struct rw_node *const node = rw_plan_node(r->tape, r->plan, a->node);
    const rw_site at = rw_plan_site(r->tape, r->plan, node);
    const rw_op_def *const op = ctx->ops[node->op];
    char what[512];
    snprintf(what, sizeof what, "%s recorded at %s:%d", op->name, rw_file_of(at), (int)at.line);
    if (!rw_action_is_move(a->kind)) return kernel_failed(ctx, op, what, in, n_in, status);
    return rw_fail(ctx, status, "the result of %s could not be copied %s the offload store: %s", what,
                   a->kind == RW_ACTION_OUT ? "to" : "from", rw_status_name(status));
}
