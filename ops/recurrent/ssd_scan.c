/*
 * ssd_scan: the scan of a selective state-space model by chunks (Mamba-2), as one op: checks, costs and gradient rule.
 * ssd_scan.h has the algorithm.
 */
#include "ops/recurrent/ssd_scan.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/composite.h>

#include <stdint.h>

#define CHUNKS_MAX 8189 /* maximum number of parts of rw_split(), by which a differentiable gradient cuts */

static struct rw_ssd of_call(const rw_op_call *call)
{
    return rw_ssd_of(call->in[SSD_X].layout, call->in[SSD_B].layout, call->attrs);
}

/* ---- checks ---- */

/* Checks that the operands' shapes fit together. */
static rw_status check_shapes(rw_op_call *call, const struct rw_ssd *s)
{
    const rw_shape b = rw_in_shape(call, SSD_B);
    if (b.dim[0] != s->b || b.dim[1] != s->l)
        return rw_unexpected(call, RW_ERR_SHAPE, SSD_B, "b", "[%lld, %lld, groups, n], x's batch and length",
                             (long long)s->b, (long long)s->l);
    RW_CHECK(rw_expect_shape_of(call, SSD_C, "c", SSD_B, "b"));
    if (s->g < 1 || s->h % s->g)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "b", s->g, "groups that divide x's %lld heads", (long long)s->h);
    RW_CHECK(rw_expect_shape(call, SSD_DT, "dt", RW_SHAPE(s->b, s->l, s->h)));
    RW_CHECK(rw_expect_shape(call, SSD_A, "a", RW_SHAPE(s->h)));
    const rw_shape state = RW_SHAPE(s->b, s->h, s->p, s->n);
    if (s->state >= 0) RW_CHECK(rw_expect_shape(call, s->state, "state", state));
    if (s->dy >= 0) RW_CHECK(rw_expect_shape_of(call, s->dy, "dy", SSD_X, "x"));
    if (s->dstate >= 0) RW_CHECK(rw_expect_shape(call, s->dstate, "dstate", state));
    return RW_OK;
}

/* Operands of stride 0 may have extents for which no workspace can be allocated: an upper bound of its size then
   exceeds int64_t. */
static rw_status check_size(rw_op_call *call, const struct rw_ssd *s)
{
    const double side = RW_SSD_SIDE, q = (double)s->q + side, n = (double)s->n + side, p = (double)s->p + side;
    const double chunks = (double)s->chunks + 1, all = (double)s->b * chunks, threads = (double)call->threads;
    const double states = (all * (double)s->h + RW_SSD_HEADS * threads * chunks) * n * p;
    const double pairs = (all * (double)(s->h + s->g) + 2 * threads) * q * q;
    const double rows = 8 * (all * (double)(s->h + s->g) + threads) * q * (n + p);
    if (2 * (states + pairs + rows) < 0x1p56) return RW_OK;
    return rw_unexpected_int(call, RW_ERR_SHAPE, "chunk", s->q,
                             "chunks whose workspace is below 2^56 bytes, use a smaller one");
}

/* Checks the operands' types and shapes, and returns the extents. */
static rw_status check_operands(rw_op_call *call, struct rw_ssd *s)
{
    const struct rw_ssd_attrs *const a = call->attrs;
    const int64_t inputs = SSD_OPERANDS + a->state + a->dy + a->dstate;
    RW_CHECK(rw_expect_inputs(call, (int)inputs, (int)inputs, "x, dt, a, b, c and the gradients or the state stated"));
    for (int i = 0; i < call->n_inputs; i++) {
        RW_CHECK(rw_want_float(call, i));
        RW_CHECK(rw_want_same_dtype(call, 0, i));
    }
    RW_CHECK(rw_expect_rank(call, SSD_X, "x", 4, "[batch, length, heads, p]"));
    RW_CHECK(rw_expect_rank(call, SSD_B, "b", 4, "[batch, length, groups, n]"));
    if (a->chunk < 1) return rw_unexpected_int(call, RW_ERR_ARGUMENT, "chunk", a->chunk, "1 or more");
    *s = of_call(call);
    RW_CHECK(check_shapes(call, s));
    RW_CHECK(check_size(call, s));
    if (s->chunks <= CHUNKS_MAX) return RW_OK;
    return rw_unexpected_int(call, RW_ERR_ARGUMENT, "chunk", s->q,
                             "a size that makes at most %d chunks of length %lld, not %lld", CHUNKS_MAX,
                             (long long)s->l, (long long)s->chunks);
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

/* Cost of products. For each head: `states` products that are n wide and p deep, and `pairs` of half a chunk by p. For
   each group: `scores` of half a chunk by n. */
static rw_op_cost cost_of(const rw_op_call *call, double states, double pairs, double scores)
{
    const struct rw_ssd s = of_call(call);
    const double q = (double)s.q / 2, p = (double)s.p, n = (double)s.n, rows = (double)s.b * (double)s.l;
    const double head = 2 * p * (states * n + pairs * q), group = 2 * scores * q * n;
    const double products = rows * ((double)s.h * head + (double)s.g * group);
    return (rw_op_cost){ .flops = products + rows * (double)s.h * 10 * q, .bytes = rw_op_operand_bytes(call),
                         .model_flops = products };
}

static rw_op_cost cost(const rw_op_call *call)
{
    return cost_of(call, 2, 1, 1);
}

/* Twice the products of forward; the states and the scores are recomputed as well. */
static rw_op_cost cost_grad(const rw_op_call *call)
{
    rw_op_cost c = cost_of(call, 5, 2, 3);
    c.model_flops = cost_of(call, 4, 2, 2).model_flops;
    return c;
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
    if (rw_grad_is_differentiable(g)) return rw_ssd_grad_again(g);
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

RW_BUILTIN_OP(ssd_scan, "x dt a b c state", "mamba_ssm's mamba_chunk_scan_combined")
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
    .cast_f32 = RW_OP_ALL_INPUTS,
};

/* Records the scan; see the public header for the contract. */
rw_tensor *rw_ssd_scan_at(rw_site at, rw_tape *t, const rw_ssd_operands *operands, int64_t chunk,
                          rw_tensor **ret_state)
{
    RW_ENTER_OP(t);
    rw_tensor *out[2] = { NULL, NULL };
    if (ret_state) *ret_state = NULL;
    if (!operands || chunk < 0) {
        if (!operands) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "ssd_scan: operands is NULL; expected rw_ssd_operands");
        else rw_refuse_at(at, t, RW_ERR_ARGUMENT, "ssd_scan(chunk): expected 0 (the default) or more, got %lld",
                          (long long)chunk);
        return NULL;
    }
    const bool state = operands->state != rw_none();
    const struct rw_ssd_attrs a = { chunk ? chunk : RW_SSD_CHUNK, state, 0, 0 };
    rw_tensor *const in[] = { operands->x, operands->dt, operands->a, operands->b, operands->c, operands->state };
    rw_tensor *const y = rw_apply_at(at, t, &rw_op_ssd_scan, in, SSD_OPERANDS + state, &a, sizeof a, out);
    if (y && ret_state) *ret_state = out[1];
    return y;
}
