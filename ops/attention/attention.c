/*
 * attention: softmax(scale q k^T + mask) v by blocks, after FlashAttention-2 (arXiv 2307.08691). The score matrix never
 * exists; backward computes its tiles again from q, k and the logarithm of each row's sum, and draws dropout's mask
 * again.
 */
#include "ops/attention/attention.h"
#include "ops/common/kernels.h"
#include "ops/random/random.h"
#include "ops/shape/shape.h"
#include "ops/common/util.h"

#include <math.h>

static rw_dtype sum_type(rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : RW_F32;
}

static rw_status check_operands(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 1; i < 3; i++) RW_CHECK(rw_want_same_dtype(call, 0, i));
    const rw_shape q = rw_in_shape(call, 0), k = rw_in_shape(call, 1), v = rw_in_shape(call, 2);
    if (q.rank != 4 || k.rank != 4 || v.rank != 4)
        return rw_op_error(call, RW_ERR_SHAPE, "q, k and v are [batch, heads, seq, d]");
    for (int i = 0; i < 3; i++)
        if (k.dim[i] != v.dim[i])
            return rw_op_error(call, RW_ERR_SHAPE, "k and v differ in batch, heads or seq: only their d may");
    if (q.dim[0] != k.dim[0] || q.dim[3] != k.dim[3])
        return rw_op_error(call, RW_ERR_SHAPE, "q and k differ in batch or in d");
    if (k.dim[1] ? q.dim[1] % k.dim[1] : q.dim[1])
        return rw_op_error(call, RW_ERR_SHAPE, "%lld heads are no multiple of %lld kv heads", (long long)q.dim[1],
                           (long long)k.dim[1]);
    return RW_OK;
}

/*
 * The output lies in memory as [batch, seq, heads, d] and is handed out as a view [batch, heads, seq, d]: putting the
 * heads side by side again, as every model does next, then costs no copy and no second buffer.
 */
static rw_status check(rw_op_call *call)
{
    const struct rw_attention_attrs *const a = call->attrs;
    RW_CHECK(check_operands(call));
    if (!(a->dropout >= 0 && a->dropout < 1))
        return rw_op_error(call, RW_ERR_ARGUMENT, "dropout %g is outside [0, 1)", a->dropout);
    if (!isfinite(a->scale)) return rw_op_error(call, RW_ERR_ARGUMENT, "scale %g", a->scale);
    const rw_shape q = rw_in_shape(call, 0), k = rw_in_shape(call, 1), v = rw_in_shape(call, 2);
    const rw_shape scores = RW_SHAPE(q.dim[0], q.dim[1], q.dim[2], k.dim[2]);
    if (a->dropout > 0) RW_CHECK(rw_op_shape(call, scores)); /* a number is drawn for each */
    RW_CHECK(rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(q.dim[0], q.dim[2], q.dim[1], v.dim[3])));
    return rw_op_output(call, 1, sum_type(call->in[0].dtype), RW_SHAPE(q.dim[0], q.dim[1], q.dim[2]));
}

static rw_status check_backward(rw_op_call *call)
{
    const struct rw_attention_backward_attrs *const a = call->attrs;
    RW_CHECK(check_operands(call));
    call->n_outputs = a->packed ? 1 : 3;
    if (a->packed) {
        const rw_shape q = rw_in_shape(call, 0), k = rw_in_shape(call, 1);
        return rw_op_output(call, 0, call->in[0].dtype,
                            RW_SHAPE(q.dim[0], q.dim[2], q.dim[1] + 2 * k.dim[1], q.dim[3]));
    }
    for (int i = 0; i < 3; i++) RW_CHECK(rw_op_output_like(call, i, i));
    return RW_OK;
}

static int64_t draws(const rw_op_call *call)
{
    const struct rw_attention_attrs *const a = call->attrs;
    const rw_layout *const q = call->in[0].layout;
    return a->dropout > 0 ? q->dim[0] * q->dim[1] * q->dim[2] * call->in[1].layout->dim[2] : 0;
}

static struct att_extents extents(const rw_op_call *call)
{
    return rw_att_extents(call->in[0].layout, call->in[1].layout, call->in[2].layout);
}

/* Products of tiles: so many of q's width and so many of v's, half of each under a causal mask. */
static rw_op_cost cost_of(const rw_op_call *call, double of_d, double of_dv)
{
    const struct rw_attention_attrs *const a = call->attrs;
    const struct att_extents e = extents(call);
    const double scores = (double)e.batch * (double)e.heads * (double)e.seq * (double)e.kv_seq * (a->causal ? 0.5 : 1);
    return (rw_op_cost){ scores * (2 * (of_d * (double)e.d + of_dv * (double)e.dv) + 12), rw_cost_bytes(call) };
}

static rw_op_cost cost(const rw_op_call *call)
{
    return cost_of(call, 1, 1);
}

static rw_op_cost cost_backward(const rw_op_call *call)
{
    return cost_of(call, 3, 2);
}

static size_t per_thread(const rw_op_call *call, int64_t elements)
{
    return (size_t)elements * rw_dtype_size(sum_type(call->in[0].dtype)) * (size_t)call->threads;
}

static size_t workspace_cpu(const rw_op_call *call)
{
    const struct att_extents e = extents(call);
    return per_thread(call, rw_att_forward_elements(&e));
}

static size_t workspace_backward_cpu(const rw_op_call *call)
{
    const struct att_extents e = extents(call);
    return per_thread(call, rw_att_backward_elements(&e, call->in[0].dtype));
}

RW_DECLARE_CUDA_WORKSPACE(rw_attention_workspace_cuda)
RW_DECLARE_KERNELS(rw_attention_backward)
static const rw_op_def rw_op_attention_backward = { .name = "attention_backward", .n_inputs = 6,
                                                    .n_outputs = RW_OP_VARIADIC, .flags = RW_OP_RANDOM,
                                                    .strided = RW_OP_ALL_INPUTS, .check = check_backward,
                                                    .kernel = RW_KERNELS(rw_attention_backward),
                                                    .cost = cost_backward, .draws = draws,
                                                    .workspace = RW_WORKSPACES(workspace_backward_cpu,
                                                                               rw_attention_workspace_cuda) };

/* ---- of ops that can be differentiated again, with the scores in memory ---- */

struct composed {
    rw_grad_call *g;
    rw_tape *t;
    const struct rw_attention_attrs *attrs;
};

/* [b, h, s, d] as [b, kv_heads, group, s, d], to be broadcast against [b, kv_heads, 1, kv_seq, d]. */
static rw_tensor *grouped(rw_tape *t, rw_tensor *x, int64_t kv_heads)
{
    if (!x) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    return rw_reshape(t, x, RW_SHAPE(s.dim[0], kv_heads, kv_heads ? s.dim[1] / kv_heads : 0, s.dim[2], s.dim[3]));
}

static rw_tensor *probabilities(const struct composed *c, rw_tensor *scores)
{
    /* not causal_softmax()'s own scale: that is rounded with the scores' type, and 1 / sqrt(d) is a double */
    rw_tensor *const scaled = rw_scale(c->t, scores, c->attrs->scale);
    return c->attrs->causal ? rw_causal_softmax(c->t, scaled, 1) : rw_softmax(c->t, scaled, -1);
}

/* The forward's mask: drawn by element of the score matrix, whose order the grouping keeps. */
static rw_tensor *masked(const struct composed *c, rw_tensor *x)
{
    if (c->attrs->dropout <= 0) return x;
    const struct rw_dropout_attrs a = { c->attrs->dropout };
    return rw_apply(c->t, &rw_op_dropout, &x, 1, &a, sizeof a, NULL);
}

static rw_tensor *transposed(const struct composed *c, rw_tensor *x)
{
    return rw_transpose(c->t, x, -1, -2);
}

static rw_status set_summed(const struct composed *c, int i, rw_tensor *dx)
{
    const rw_shape shape = rw_tensor_shape(rw_grad_input(c->g, i));
    if (!dx) return rw_grad_set(c->g, i, NULL);
    if (i == 0) return rw_grad_set(c->g, i, rw_reshape(c->t, dx, shape));
    const rw_shape one = RW_SHAPE(shape.dim[0], shape.dim[1], 1, shape.dim[2], shape.dim[3]);
    return rw_grad_set(c->g, i, rw_reshape(c->t, rw_sum_to(c->t, dx, one), shape));
}

static rw_status grad_again(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const struct rw_attention_attrs *const a = rw_grad_attrs(g);
    const struct composed c = { g, t, a };
    const int64_t kv_heads = rw_tensor_shape(rw_grad_input(g, 1)).dim[1];
    rw_tensor *const q = grouped(t, rw_grad_input(g, 0), kv_heads);
    rw_tensor *const dy = grouped(t, rw_transpose(t, rw_grad_upstream(g, 0), 1, 2), kv_heads);
    rw_tensor *const k = grouped(t, rw_grad_input(g, 1), kv_heads);
    rw_tensor *const v = grouped(t, rw_grad_input(g, 2), kv_heads);
    rw_tensor *const p = probabilities(&c, rw_matmul(t, q, transposed(&c, k)));
    rw_tensor *const dp = masked(&c, rw_matmul(t, dy, transposed(&c, v)));
    rw_tensor *const dot = rw_sum(t, rw_mul(t, p, dp), RW_AXES(-1), true);
    rw_tensor *const ds = rw_scale(t, rw_mul(t, p, rw_sub(t, dp, dot)), a->scale);
    if (rw_grad_wanted(g, 0)) RW_CHECK(set_summed(&c, 0, rw_matmul(t, ds, k)));
    if (rw_grad_wanted(g, 1)) RW_CHECK(set_summed(&c, 1, rw_matmul(t, transposed(&c, ds), q)));
    if (rw_grad_wanted(g, 2)) RW_CHECK(set_summed(&c, 2, rw_matmul(t, transposed(&c, masked(&c, p)), dy)));
    return RW_OK;
}

/*
 * Are q, k and v the pieces of one dense buffer [batch, seq, heads + 2 kv_heads, d]? Their gradients then become the
 * pieces of one, too, and what cut up the buffer hands that on without a copy. Layouts decide, so the choice is the
 * same in every step and under every policy; no bit of a gradient depends on it.
 */
static bool is_one_buffer(const rw_grad_call *g, rw_tensor *const *qkv)
{
    rw_layout l;
    for (int i = 0; i < 3; i++)
        if (!rw_grad_wanted(g, i)) return false;
    if (!rw_pieces_of_one(qkv, 3, 1, &l)) return false;
    const int64_t dense[] = { l.dim[2] * l.dim[1] * l.dim[3], l.dim[3], l.dim[1] * l.dim[3], 1 };
    for (int i = 0; i < 4; i++)
        if (l.dim[i] != 1 && l.stride[i] != dense[i]) return false;
    return true;
}

/* dq, dk and dv as views of the buffer in which the kernel wrote them. */
static rw_status set_pieces(rw_grad_call *g, rw_tensor *packed, int64_t heads, int64_t kv_heads)
{
    const int64_t counts[] = { heads, kv_heads, kv_heads };
    rw_tensor *piece[3];
    if (!packed) return rw_grad_set(g, 0, NULL);
    RW_CHECK(rw_split(rw_grad_tape(g), packed, 2, counts, 3, piece));
    for (int i = 0; i < 3; i++) RW_CHECK(rw_grad_set(g, i, rw_transpose(rw_grad_tape(g), piece[i], 1, 2)));
    return RW_OK;
}

static rw_status grad(rw_grad_call *g)
{
    if (rw_grad_again(g)) return grad_again(g);
    struct rw_attention_backward_attrs a = { *(const struct rw_attention_attrs *)rw_grad_attrs(g), 0 };
    rw_tensor *in[] = { rw_grad_input(g, 0), rw_grad_input(g, 1), rw_grad_input(g, 2),
                        rw_grad_output(g, 0), rw_grad_output(g, 1), rw_grad_upstream(g, 0) };
    for (int i = 3; i < 6; i += 2) in[i] = rw_transpose(rw_grad_tape(g), in[i], 1, 2);
    rw_tensor *out[3] = { NULL, NULL, NULL };
    a.packed = is_one_buffer(g, in);
    rw_apply(rw_grad_tape(g), &rw_op_attention_backward, in, 6, &a, sizeof a, out);
    if (a.packed)
        return set_pieces(g, out[0], rw_tensor_shape(in[0]).dim[1], rw_tensor_shape(in[1]).dim[1]);
    for (int i = 0; i < 3; i++)
        if (rw_grad_wanted(g, i)) RW_CHECK(rw_grad_set(g, i, out[i]));
    return RW_OK;
}

RW_DECLARE_KERNELS(rw_attention)
const rw_op_def rw_op_attention = { .name = "attention", .n_inputs = 3, .n_outputs = 2, .flags = RW_OP_RANDOM,
                                    .strided = RW_OP_ALL_INPUTS, .check = check, .kernel = RW_KERNELS(rw_attention),
                                    .grad = grad, .cost = cost, .draws = draws,
                                    .workspace = RW_WORKSPACES(workspace_cpu, rw_attention_workspace_cuda) };

rw_tensor *rw_attention_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                           const rw_attention_params *params)
{
    const rw_shape s = rw_tensor_shape(q);
    const int64_t d = s.rank ? s.dim[s.rank - 1] : 1;
    const double scale = params ? rw_constant(q, params->scale) : 0;
    struct rw_attention_attrs a = { .scale = scale != 0 ? scale : 1 / sqrt((double)(d > 0 ? d : 1)) };
    if (params) {
        a.dropout = rw_constant(q, params->dropout);
        a.causal = params->causal;
    }
    rw_tensor *const in[] = { q, k, v };
    const struct rw_composite c = rw_composite_begin(t, "attention");
    rw_tensor *const y = rw_apply_at(at, t, &rw_op_attention, in, 3, &a, sizeof a, NULL);
    return rw_composite_end(&c, y ? rw_transpose_at(at, t, y, 1, 2) : NULL);
}
