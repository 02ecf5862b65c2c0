/* ssd_scan: a selective state-space model's scan by chunks, one op. Checks, costs and the rule. See ssd_scan.h. */
#include "ops/recurrent/ssd_scan.h"

#include "ops/common/kernels.h"
#include "ops/common/util.h"

#include <stdint.h>

#define MOST_CHUNKS 8189 /* pieces of rw_split(), by which a gradient that has gradients cuts its operands */

static struct rw_ssd of_call(const rw_op_call *call)
{
    return rw_ssd_of(call->in[SSD_X].layout, call->in[SSD_B].layout, call->attrs);
}

/* ---- checks ---- */

static rw_status check_shapes(rw_op_call *call, const struct rw_ssd *s)
{
    const rw_shape b = rw_in_shape(call, SSD_B);
    if (b.dim[0] != s->b || b.dim[1] != s->l || !rw_shape_equal(b, rw_in_shape(call, SSD_C)))
        return rw_op_error(call, RW_ERR_SHAPE, "b and c are not [batch, length, groups, n] of x's batch and length");
    if (s->g < 1 || s->h % s->g) return rw_op_error(call, RW_ERR_SHAPE, "groups do not divide the heads");
    if (!rw_shape_equal(rw_in_shape(call, SSD_DT), RW_SHAPE(s->b, s->l, s->h)))
        return rw_op_error(call, RW_ERR_SHAPE, "dt is not [batch, length, heads]");
    if (!rw_shape_equal(rw_in_shape(call, SSD_A), RW_SHAPE(s->h)))
        return rw_op_error(call, RW_ERR_SHAPE, "a is not [heads]");
    const rw_shape state = RW_SHAPE(s->b, s->h, s->p, s->n);
    if (s->state >= 0 && !rw_shape_equal(rw_in_shape(call, s->state), state))
        return rw_op_error(call, RW_ERR_SHAPE, "the state is not [batch, heads, p, n]");
    if (s->dy >= 0 && !rw_shape_equal(rw_in_shape(call, s->dy), rw_in_shape(call, SSD_X)))
        return rw_op_error(call, RW_ERR_SHAPE, "dy has not the shape of x");
    if (s->dstate >= 0 && !rw_shape_equal(rw_in_shape(call, s->dstate), state))
        return rw_op_error(call, RW_ERR_SHAPE, "dstate is not [batch, heads, p, n]");
    return RW_OK;
}

/* Operands of stride 0 may have extents that no workspace has room for: its size, from above, is then no int64_t. */
static rw_status check_size(rw_op_call *call, const struct rw_ssd *s)
{
    const double side = RW_SSD_SIDE, q = (double)s->q + side, n = (double)s->n + side, p = (double)s->p + side;
    const double chunks = (double)s->chunks + 1, all = (double)s->b * chunks, threads = (double)call->threads;
    const double states = (all * (double)s->h + RW_SSD_HEADS * threads * chunks) * n * p;
    const double pairs = (all * (double)(s->h + s->g) + 2 * threads) * q * q;
    const double rows = 8 * (all * (double)(s->h + s->g) + threads) * q * (n + p);
    if (2 * (states + pairs + rows) < 0x1p56) return RW_OK;
    return rw_op_error(call, RW_ERR_SHAPE, "no memory holds what belongs to chunks of %lld places", (long long)s->q);
}

static rw_status check_operands(rw_op_call *call, struct rw_ssd *s)
{
    const struct rw_ssd_attrs *const a = call->attrs;
    const int64_t inputs = SSD_OPERANDS + a->state + a->dy + a->dstate;
    if (call->n_inputs != inputs) return rw_op_error(call, RW_ERR_ARGUMENT, "takes %lld operands", (long long)inputs);
    for (int i = 0; i < call->n_inputs; i++) {
        RW_CHECK(rw_want_float(call, i));
        RW_CHECK(rw_want_same_dtype(call, 0, i));
    }
    if (call->in[SSD_X].layout->rank != 4 || call->in[SSD_B].layout->rank != 4)
        return rw_op_error(call, RW_ERR_SHAPE, "x [batch, length, heads, p] and b [batch, length, groups, n] are "
                                               "needed");
    if (a->chunk < 1) return rw_op_error(call, RW_ERR_ARGUMENT, "chunks of %lld places", (long long)a->chunk);
    *s = of_call(call);
    RW_CHECK(check_shapes(call, s));
    RW_CHECK(check_size(call, s));
    if (s->chunks <= MOST_CHUNKS) return RW_OK;
    return rw_op_error(call, RW_ERR_ARGUMENT, "%lld chunks of %lld places: at most %d are possible",
                       (long long)s->chunks, (long long)s->q, MOST_CHUNKS);
}

static rw_status check(rw_op_call *call)
{
    struct rw_ssd s;
    RW_CHECK(check_operands(call, &s));
    RW_CHECK(rw_op_output_like(call, 0, SSD_X));
    return rw_op_output(call, 1, call->in[SSD_X].dtype, RW_SHAPE(s.b, s.h, s.p, s.n));
}

static rw_status check_grad(rw_op_call *call)
{
    struct rw_ssd s;
    RW_CHECK(check_operands(call, &s));
    call->n_outputs = SSD_OPERANDS + (s.state >= 0);
    for (int i = 0; i < call->n_outputs; i++) RW_CHECK(rw_op_output_like(call, i, i));
    return RW_OK;
}

/* ---- costs ---- */

/* Products of each head, of so many that are n wide and p deep and so many of half a chunk by p; and of each group so
   many of half a chunk by n. */
static rw_op_cost cost_of(const rw_op_call *call, double states, double pairs, double scores)
{
    const struct rw_ssd s = of_call(call);
    const double q = (double)s.q / 2, p = (double)s.p, n = (double)s.n;
    const double head = 2 * p * (states * n + pairs * q) + 10 * q, group = 2 * scores * q * n;
    return (rw_op_cost){ (double)s.b * (double)s.l * ((double)s.h * head + (double)s.g * group), rw_cost_bytes(call) };
}

static rw_op_cost cost(const rw_op_call *call)
{
    return cost_of(call, 2, 1, 1);
}

static rw_op_cost cost_grad(const rw_op_call *call)
{
    return cost_of(call, 5, 2, 3);
}

static size_t bytes_of(const rw_op_call *call, int64_t elements)
{
    return (size_t)elements * (call->in[SSD_X].dtype == RW_F64 ? sizeof(double) : sizeof(float));
}

static size_t workspace_cpu(const rw_op_call *call)
{
    const struct rw_ssd s = of_call(call);
    return bytes_of(call, rw_ssd_forward_elements(&s) * rw_ssd_threads(&s, call->threads));
}

static size_t workspace_grad_cpu(const rw_op_call *call)
{
    const struct rw_ssd s = of_call(call);
    const int64_t own = rw_ssd_backward_elements(&s) * rw_ssd_threads(&s, call->threads);
    return bytes_of(call, own + rw_ssd_shared_elements(&s));
}

/* ---- rules ---- */

RW_DECLARE_KERNELS(rw_ssd_scan_grad)
RW_DECLARE_CUDA_WORKSPACE(rw_ssd_scan_grad_workspace_cuda)
static const rw_op_def rw_op_ssd_scan_grad = {
    .name = "ssd_scan_grad",
    .n_inputs = RW_OP_VARIADIC,
    .n_outputs = RW_OP_VARIADIC,
    .strided = RW_OP_ALL_INPUTS,
    .check = check_grad,
    .kernel = RW_KERNELS(rw_ssd_scan_grad),
    .cost = cost_grad,
    .workspace = RW_WORKSPACES(workspace_grad_cpu, rw_ssd_scan_grad_workspace_cuda),
};

static rw_status grad(rw_grad_call *g)
{
    if (rw_grad_again(g)) return rw_ssd_grad_again(g);
    struct rw_ssd_attrs a = *(const struct rw_ssd_attrs *)rw_grad_attrs(g);
    rw_tensor *in[SSD_OPERANDS + 3], *out[SSD_OPERANDS + 1] = { NULL };
    rw_tensor *const upstream[] = { rw_grad_upstream(g, 0), rw_grad_upstream(g, 1) };
    int n = rw_grad_n_inputs(g);
    for (int i = 0; i < n; i++) in[i] = rw_grad_input(g, i);
    a.dy = upstream[0] != NULL, a.dstate = upstream[1] != NULL;
    for (int i = 0; i < 2; i++)
        if (upstream[i]) in[n++] = upstream[i];
    rw_apply(rw_grad_tape(g), &rw_op_ssd_scan_grad, in, n, &a, sizeof a, out);
    for (int i = 0; i < rw_grad_n_inputs(g); i++) RW_CHECK(rw_grad_set(g, i, out[i]));
    return RW_OK;
}

RW_DECLARE_KERNELS(rw_ssd_scan)
RW_DECLARE_CUDA_WORKSPACE(rw_ssd_scan_workspace_cuda)
static const rw_op_def rw_op_ssd_scan = {
    .name = "ssd_scan",
    .n_inputs = RW_OP_VARIADIC,
    .n_outputs = 2,
    .strided = RW_OP_ALL_INPUTS,
    .check = check,
    .kernel = RW_KERNELS(rw_ssd_scan),
    .grad = grad,
    .cost = cost,
    .workspace = RW_WORKSPACES(workspace_cpu, rw_ssd_scan_workspace_cuda),
    .raised = RW_OP_ALL_INPUTS,
};

rw_tensor *rw_ssd_scan_at(rw_site at, rw_tape *t, const rw_ssd_operands *operands, int64_t chunk,
                          rw_tensor **ret_state)
{
    rw_tensor *out[2] = { NULL, NULL };
    if (ret_state) *ret_state = NULL;
    if (!operands || chunk < 0) {
        if (!operands) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "ssd_scan: operands is NULL");
        else rw_refuse_at(at, t, RW_ERR_ARGUMENT, "ssd_scan: chunks of %lld places", (long long)chunk);
        return NULL;
    }
    const bool state = operands->state != rw_none();
    const struct rw_ssd_attrs a = { chunk ? chunk : RW_SSD_CHUNK, state, 0, 0 };
    rw_tensor *const in[] = { operands->x, operands->dt, operands->a, operands->b, operands->c, operands->state };
    rw_tensor *const y = rw_apply_at(at, t, &rw_op_ssd_scan, in, SSD_OPERANDS + state, &a, sizeof a, out);
    if (y && ret_state) *ret_state = out[1];
    return y;
}
