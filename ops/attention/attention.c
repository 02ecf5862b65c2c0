/*
 * attention: softmax(scale q k^T + mask) v by blocks, after FlashAttention-2 (arXiv 2307.08691). The score matrix is
 * never stored. Backward recomputes its tiles from q, k and the log-sum-exp of each row, and draws dropout's mask again
 * from the same ticket.
 */
#include "base/public_entry.h"
#include "ops/attention/attention.h"
#include "ops/common/declare_kernels.h"
#include "ops/shape/shape.h"
#include "ops/common/util.h"

#include <rewind/attention.h>
#include <rewind/composite.h>
#include <rewind/fusion.h>
#include <rewind/precision.h>

#include <math.h>

rw_dtype rw_att_sum_type(rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : RW_F32;
}

#define FOUR_AXES "[batch, heads, seq, d]"

/* Checks shapes and types of q, k and v, and head counts and extents. */
static rw_status check_operands(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 1; i < 3; i++) RW_CHECK(rw_want_same_dtype(call, 0, i));
    const rw_shape q = rw_in_shape(call, 0), k = rw_in_shape(call, 1), v = rw_in_shape(call, 2);
    for (int i = 0; i < 3; i++) RW_CHECK(rw_expect_rank(call, i, i == 0 ? "q" : i == 1 ? "k" : "v", 4, FOUR_AXES));
    for (int i = 0; i < 3; i++)
        if (k.dim[i] != v.dim[i])
            return rw_unexpected(call, RW_ERR_SHAPE, 2, "v", "[%lld, %lld, %lld, any], k's batch, heads and seq",
                                 (long long)k.dim[0], (long long)k.dim[1], (long long)k.dim[2]);
    if (q.dim[0] != k.dim[0] || q.dim[3] != k.dim[3])
        return rw_unexpected(call, RW_ERR_SHAPE, 1, "k", "[%lld, kv_heads, kv_seq, %lld], q's batch and d",
                             (long long)q.dim[0], (long long)q.dim[3]);
    if (k.dim[1] ? q.dim[1] % k.dim[1] : q.dim[1])
        return rw_unexpected_int(call, RW_ERR_SHAPE, "q", q.dim[1], "heads that are a multiple of k's %lld",
                                 (long long)k.dim[1]);
    for (int i = 0; i < 3; i += 2) /* a thread's workspace has blocks of rows of these widths */
        if (rw_in_shape(call, i).dim[3] > INT32_MAX)
            return rw_unexpected(call, RW_ERR_SHAPE, i, i ? "v" : "q", "d of at most %d", INT32_MAX);
    return RW_OK;
}

static rw_status check_vector(rw_op_call *call, int i, const char *what, rw_dtype dtype)
{
    RW_CHECK(rw_expect_dtype(call, i, what, dtype));
    return rw_expect_shape(call, i, what, RW_SHAPE(rw_in_shape(call, 0).dim[1]));
}

static rw_status check_mask(rw_op_call *call, int i)
{
    const rw_shape s = rw_in_shape(call, i), q = rw_in_shape(call, 0);
    const int64_t most[] = { q.dim[0], q.dim[1], q.dim[2], rw_in_shape(call, 1).dim[2] };
    const rw_dtype dtype = call->in[i].dtype;
    if (dtype != call->in[0].dtype && dtype != rw_att_sum_type(call->in[0].dtype) && dtype != RW_BOOL)
        return rw_unexpected(call, RW_ERR_DTYPE, i, "mask", "bool, q's type, or %s, that of sums",
                             rw_dtype_name(rw_att_sum_type(call->in[0].dtype)));
    for (int axis = 0; axis < 4; axis++)
        if (s.rank != 4 || (s.dim[axis] != 1 && s.dim[axis] != most[axis]))
            return rw_unexpected(call, RW_ERR_SHAPE, i, "mask", "four axes that broadcast to [%lld, %lld, %lld, %lld], "
                                 "[batch, heads, seq, kv_seq]", (long long)most[0], (long long)most[1],
                                 (long long)most[2], (long long)most[3]);
    return RW_OK;
}

static rw_status check_documents(rw_op_call *call, int i)
{
    const rw_shape s = rw_in_shape(call, i), q = rw_in_shape(call, 0);
    RW_CHECK(rw_expect_dtype(call, i, "documents", RW_I32));
    if (s.rank < 1 || s.rank > 2 || s.dim[s.rank - 1] < 2 || (s.rank == 2 && s.dim[0] != q.dim[0]))
        return rw_unexpected(call, RW_ERR_SHAPE, i, "documents", "[n + 1] or [%lld, n + 1] with n documents, 1 or more",
                             (long long)q.dim[0]);
    if (q.dim[2] != rw_in_shape(call, 1).dim[2])
        return rw_unexpected(call, RW_ERR_SHAPE, 1, "k", "seq %lld, that of q, as documents are given",
                             (long long)q.dim[2]);
    return RW_OK;
}

/* Checks the inputs of options, which come after `first` other inputs. */
static rw_status check_extras(rw_op_call *call, const struct rw_attention_attrs *a, int first)
{
    int at[ATT_EXTRAS];
    for (int i = 0; i < ATT_EXTRAS; i++) at[i] = rw_att_extra(a, i, first);
    if (at[ATT_MASK] >= 0) RW_CHECK(check_mask(call, at[ATT_MASK]));
    if (at[ATT_SLOPES] >= 0)
        RW_CHECK(check_vector(call, at[ATT_SLOPES], "slopes", rw_att_sum_type(call->in[0].dtype)));
    if (at[ATT_SINKS] >= 0) RW_CHECK(check_vector(call, at[ATT_SINKS], "sinks", call->in[0].dtype));
    if (at[ATT_DOCUMENTS] >= 0) RW_CHECK(check_documents(call, at[ATT_DOCUMENTS]));
    if (!(a->soft_cap >= 0 && isfinite(a->soft_cap)))
        return rw_unexpected_real(call, "soft_cap", a->soft_cap, "a finite number of 0 or more");
    if (a->window < 0)
        return rw_unexpected_int(call, RW_ERR_ARGUMENT, "window", a->window, "0 (no window) or more");
    for (int k = 0; k < 2 && !rw_att_is_plain(a); k++)
        if (rw_in_shape(call, k).dim[2] > ATT_SPAN_MAX)
            return rw_unexpected(call, RW_ERR_SHAPE, k, k ? "k" : "q", "a seq of at most 2^30 with these options");
    return RW_OK;
}

/*
 * The output is stored as [batch, seq, heads, d] and returned as a view [batch, heads, seq, d]. Models concatenate the
 * heads next, and this layout makes that free: no copy and no second buffer.
 */
static rw_status check(rw_op_call *call)
{
    const struct rw_attention_attrs *const a = call->attrs;
    RW_CHECK(check_operands(call));
    if (!(a->dropout >= 0 && a->dropout < 1))
        return rw_unexpected_real(call, "dropout", a->dropout, "a probability in [0, 1)");
    if (!isfinite(a->scale) || a->scale == 0)
        return rw_unexpected_real(call, "scale", a->scale, "a finite number other than 0");
    RW_CHECK(check_extras(call, a, 3));
    const rw_shape q = rw_in_shape(call, 0), k = rw_in_shape(call, 1), v = rw_in_shape(call, 2);
    const rw_shape scores = RW_SHAPE(q.dim[0], q.dim[1], q.dim[2], k.dim[2]);
    if (a->dropout > 0) RW_CHECK(rw_op_check_shape(call, scores)); /* one random number is drawn for each score */
    RW_CHECK(rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(q.dim[0], q.dim[2], q.dim[1], v.dim[3])));
    return rw_op_output(call, 1, rw_att_sum_type(call->in[0].dtype), RW_SHAPE(q.dim[0], q.dim[1], q.dim[2]));
}

/* Checks the column sums of a packed backward. sum: the input that they are added to; -1: none. */
static rw_status check_columns(rw_op_call *call, int sum)
{
    const rw_shape q = rw_in_shape(call, 0), k = rw_in_shape(call, 1);
    const rw_shape columns = RW_SHAPE((q.dim[1] + 2 * k.dim[1]) * q.dim[3]);
    if (sum >= 0) {
        RW_CHECK(rw_want_sum_of(call, sum, 0));
        RW_CHECK(rw_expect_shape(call, sum, "sum", columns));
    }
    return rw_op_output(call, 1, call->in[sum < 0 ? 0 : sum].dtype, columns);
}

/* Checks the inputs of backward and describes its outputs. */
static rw_status check_backward(rw_op_call *call)
{
    const struct rw_attention_backward_attrs *const a = call->attrs;
    RW_CHECK(check_operands(call));
    const bool sinks = a->forward.extras >> ATT_SINKS & 1;
    const int gradients = a->packed ? 1 + (a->columns != 0) : 3;
    const rw_shape q = rw_in_shape(call, 0), k = rw_in_shape(call, 1);
    call->n_outputs = gradients + sinks;
    if (a->columns) RW_CHECK(check_columns(call, rw_att_extra(&a->forward, ATT_SUM, 6)));
    if (sinks)
        RW_CHECK(rw_op_output(call, gradients, rw_att_sum_type(call->in[0].dtype),
                              RW_SHAPE(q.dim[0], q.dim[1], q.dim[2])));
    if (a->packed)
        return rw_op_output(call, 0, call->in[0].dtype,
                            RW_SHAPE(q.dim[0], q.dim[2], q.dim[1] + 2 * k.dim[1], q.dim[3]));
    for (int i = 0; i < 3; i++) RW_CHECK(rw_op_output_like(call, i, i));
    return RW_OK;
}

/* The mask's gradient with full seq and kv_seq axes. */
static rw_status check_mask_backward(rw_op_call *call)
{
    const struct rw_attention_backward_attrs *const a = call->attrs;
    const int at = rw_att_extra(&a->forward, ATT_MASK, 6);
    const rw_shape mask = rw_in_shape(call, at);
    return rw_op_output(call, 0, call->in[at].dtype,
                        RW_SHAPE(mask.dim[0], mask.dim[1], rw_in_shape(call, 0).dim[2], rw_in_shape(call, 1).dim[2]));
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

/* Cost of products of tiles: `of_d` of q's width and `of_dv` of v's, half of each under a causal mask. again: how many
   of the products of q's width repeat one of forward; model FLOPs do not count these. */
static rw_op_cost cost_of(const rw_op_call *call, double of_d, double of_dv, double again)
{
    const struct rw_attention_attrs *const a = call->attrs;
    const struct att_extents e = extents(call);
    double keys = (double)e.kv_seq * (a->causal ? 0.5 : 1);
    const double window = (double)a->window * (a->causal ? 1 : 2);
    if (a->window && window < keys) keys = window;
    const double scores = (double)e.batch * (double)e.heads * (double)e.seq * keys;
    const double products = scores * 2 * (of_d * (double)e.d + of_dv * (double)e.dv);
    return (rw_op_cost){ .flops = products + 12 * scores, .bytes = rw_op_operand_bytes(call),
                         .model_flops = products - scores * 2 * again * (double)e.d };
}

static rw_op_cost cost(const rw_op_call *call)
{
    return cost_of(call, 1, 1, 0);
}

static rw_op_cost cost_backward(const rw_op_call *call)
{
    return cost_of(call, 3, 2, 1);
}

/* The scores' gradients are recomputed here: attention_backward computes them, too. */
static rw_op_cost cost_mask_backward(const rw_op_call *call)
{
    rw_op_cost c = cost_of(call, 1, 1, 0);
    c.model_flops = 0;
    return c;
}

static size_t per_thread(const rw_op_call *call, int64_t elements)
{
    return (size_t)elements * rw_dtype_size(rw_att_sum_type(call->in[0].dtype)) * (size_t)call->threads;
}

/* Bytes of the table of spans, which follows the threads' workspace. */
static size_t span_bytes(const rw_op_call *call, int first)
{
    const struct rw_attention_attrs *const a = call->attrs;
    const int documents = rw_att_extra(a, ATT_DOCUMENTS, first);
    if (rw_att_is_plain(a)) return 0;
    return rw_att_span_bytes(documents < 0 ? NULL : call->in[documents].layout, call->in[0].layout->dim[2]);
}

static size_t workspace_cpu(const rw_op_call *call)
{
    const struct att_extents e = extents(call);
    return per_thread(call, rw_att_forward_elements(&e)) + span_bytes(call, 3);
}

static size_t workspace_backward_cpu(const rw_op_call *call)
{
    const struct att_extents e = extents(call);
    const size_t own = per_thread(call, rw_att_backward_elements(&e, call->attrs, call->in[0].dtype));
    const struct rw_attention_backward_attrs *const a = call->attrs;
    const size_t number = rw_dtype_size(rw_att_sum_type(call->in[0].dtype));
    const size_t parts = a->columns ? (size_t)(e.batch * e.q_blocks * rw_att_columns(&e)) * number : 0;
    return own + span_bytes(call, 6) + parts;
}

static size_t workspace_mask_backward_cpu(const rw_op_call *call)
{
    const struct att_extents e = extents(call);
    return per_thread(call, rw_att_mask_elements(&e, call->attrs)) + span_bytes(call, 6);
}

RW_INTERNAL_OP(attention_backward, "q k v")
RW_INTERNAL_OP(attention_backward_columns, "q k v")
RW_DECLARE_CUDA_WORKSPACE(rw_attention_workspace_cuda)
RW_DECLARE_KERNELS(rw_attention_backward)
/* _columns: input 6 is the addend of the column sums. */
#define BACKWARD(NAME, ...)                                                                                            \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = RW_OP_VARIADIC, .n_outputs = RW_OP_VARIADIC,    \
                                            .flags = RW_OP_RANDOM, .strided = RW_OP_ALL_INPUTS,                        \
                                            .check = check_backward, .kernel = RW_KERNELS(rw_attention_backward),      \
                                            .cost = cost_backward, .draws = draws,                                     \
                                            .workspace = RW_WORKSPACES(workspace_backward_cpu,                         \
                                                                       rw_attention_workspace_cuda), __VA_ARGS__ };
BACKWARD(attention_backward)
BACKWARD(attention_backward_columns, .inplace = RW_INPLACE({ 1, 6 }), .optional = RW_OP_INPUT(6))

RW_DECLARE_KERNELS(rw_attention_mask_backward)
static const rw_op_def rw_op_attention_mask_backward = { .name = "attention_mask_backward",
                                                         .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                                         .flags = RW_OP_RANDOM, .strided = RW_OP_ALL_INPUTS,
                                                         .check = check_mask_backward,
                                                         .kernel = RW_KERNELS(rw_attention_mask_backward),
                                                         .cost = cost_mask_backward, .draws = draws,
                                                         .workspace = RW_WORKSPACES(workspace_mask_backward_cpu,
                                                                                    rw_attention_workspace_cuda) };

/*
 * Are q, k and v the parts of one dense buffer [batch, seq, heads + 2 kv_heads, d]? Then their gradients are written as
 * the parts of one buffer, too, and the rule of the op that split the buffer passes it on without a copy. The decision
 * depends on layouts, so it is the same in every step and under every policy. The values of gradients do not depend on
 * it.
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

/* dq, dk and dv as views of the buffer that the kernel wrote. */
static rw_status set_pieces(rw_grad_call *g, rw_tensor *packed, int64_t heads, int64_t kv_heads)
{
    const int64_t counts[] = { heads, kv_heads, kv_heads };
    rw_tensor *piece[3];
    if (!packed) return rw_grad_set(g, 0, NULL);
    RW_CHECK(rw_split(rw_grad_tape(g), packed, 2, counts, 3, piece));
    for (int i = 0; i < 3; i++) RW_CHECK(rw_grad_set(g, i, rw_transpose(rw_grad_tape(g), piece[i], 1, 2)));
    return RW_OK;
}

/* The output has no gradient: only the log-sum-exp is used later. */
static rw_tensor *upstream(const rw_grad_call *g)
{
    const rw_shape q = rw_tensor_shape(rw_grad_input(g, 0)), v = rw_tensor_shape(rw_grad_input(g, 2));
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (dy) return dy;
    return rw_full_at(RW_HERE, rw_grad_tape(g), rw_tensor_dtype(rw_grad_input(g, 0)),
                      RW_SHAPE(q.dim[0], q.dim[2], q.dim[1], v.dim[3]), 0);
}

/* The inputs of backward: q, k, v, o, the log-sum-exps, dy, then those of options. Returns their number. */
static int backward_inputs(const rw_grad_call *g, struct rw_attention_attrs *a, rw_tensor *in[6 + ATT_EXTRAS])
{
    rw_tape *const t = rw_grad_tape(g);
    int n = 6;
    for (int i = 0; i < 3; i++) in[i] = rw_grad_input(g, i);
    in[3] = rw_transpose(t, rw_grad_output(g, 0), 1, 2);
    in[4] = rw_grad_output(g, 1);
    in[5] = rw_transpose(t, upstream(g), 1, 2);
    for (int i = 3; i < rw_grad_n_inputs(g); i++) in[n++] = rw_grad_input(g, i);
    if (!rw_grad_upstream(g, 1)) return n;
    a->extras |= 1 << ATT_DLSE;
    in[n++] = rw_grad_upstream(g, 1);
    return n;
}

/* The kernel's gradient of the mask has full seq and kv_seq axes: sums over those along which the mask is broadcast. */
static rw_status set_mask(rw_grad_call *g, int at, rw_tensor *const *in, int n,
                          const struct rw_attention_backward_attrs *a)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const full = rw_apply(t, &rw_op_attention_mask_backward, in, n, a, sizeof *a, NULL);
    return rw_grad_set(g, at, rw_sum_to(t, full, rw_tensor_shape(rw_grad_input(g, at))));
}

static rw_status set_sinks(rw_grad_call *g, int at, rw_tensor *rows)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const sum = rw_sum(t, rows, RW_AXES(0, 2), false);
    return rw_grad_set(g, at, rw_cast(t, sum, rw_tensor_dtype(rw_grad_input(g, at))));
}

/* Records backward. If q, k and v together are the whole output of a layer with a bias, its bias gradient is computed
   here, too. out: as described in check_backward(). */
static void apply_backward(rw_grad_call *g, struct rw_attention_backward_attrs *a, rw_tensor **in, int n,
                           rw_tensor **out)
{
    const rw_shape q = rw_tensor_shape(in[0]), k = rw_tensor_shape(in[1]);
    rw_tensor *sum = NULL;
    a->packed = is_one_buffer(g, in);
    a->columns = a->packed && rw_grad_pieces_want_column_sums(g, 3, (q.dim[1] + 2 * k.dim[1]) * q.dim[3], &sum);
    if (sum) {
        for (int i = n++; i > 6; i--) in[i] = in[i - 1];
        in[6] = sum;
        a->forward.extras |= 1 << ATT_SUM;
    }
    const rw_op_def *const op = sum ? &rw_op_attention_backward_columns : &rw_op_attention_backward;
    rw_apply(rw_grad_tape(g), op, in, n, a, sizeof *a, out);
    if (a->columns && out[1]) rw_grad_set_column_sums_of_pieces(g, 3, out[1], sum != NULL);
}

/* The gradient rule: records the kernels that compute dq, dk, dv and the gradients of options. */
static rw_status grad(rw_grad_call *g)
{
    struct rw_attention_backward_attrs a = { *(const struct rw_attention_attrs *)rw_grad_attrs(g), 0, 0 };
    const int mask = rw_att_extra(&a.forward, ATT_MASK, 3), slopes = rw_att_extra(&a.forward, ATT_SLOPES, 3);
    const int sinks = rw_att_extra(&a.forward, ATT_SINKS, 3);
    if (slopes >= 0 && rw_grad_wanted(g, slopes))
        return rw_refuse_at(RW_HERE, rw_grad_tape(g), RW_ERR_NO_GRADIENT, "attention(slopes): expected a tensor "
                            "without gradient, got one that requires it; slopes are constants");
    if (rw_grad_is_differentiable(g)) return rw_att_grad_again(g);
    rw_tensor *in[6 + ATT_EXTRAS], *out[4] = { NULL, NULL, NULL, NULL };
    const int n = backward_inputs(g, &a.forward, in);
    if (mask >= 0 && rw_grad_wanted(g, mask)) RW_CHECK(set_mask(g, mask, in, n, &a));
    bool wanted = sinks >= 0 && rw_grad_wanted(g, sinks);
    for (int i = 0; i < 3; i++) wanted |= rw_grad_wanted(g, i);
    if (!wanted) return RW_OK;
    apply_backward(g, &a, in, n, out);
    if (sinks >= 0 && rw_grad_wanted(g, sinks)) RW_CHECK(set_sinks(g, sinks, out[a.packed ? 1 + a.columns : 3]));
    if (a.packed) return set_pieces(g, out[0], rw_tensor_shape(in[0]).dim[1], rw_tensor_shape(in[1]).dim[1]);
    for (int i = 0; i < 3; i++)
        if (rw_grad_wanted(g, i)) RW_CHECK(rw_grad_set(g, i, out[i]));
    return RW_OK;
}

RW_BUILTIN_OP(attention, "q k v", "F.scaled_dot_product_attention")
RW_DECLARE_KERNELS(rw_attention)
const rw_op_def rw_op_attention = { .name = "attention", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                    .flags = RW_OP_RANDOM, .strided = RW_OP_ALL_INPUTS, .check = check,
                                    .kernel = RW_KERNELS(rw_attention), .grad = grad, .cost = cost, .draws = draws,
                                    .workspace = RW_WORKSPACES(workspace_cpu, rw_attention_workspace_cuda),
                                    .cast_low = RW_OP_INPUT(0) | RW_OP_INPUT(1) | RW_OP_INPUT(2) };

/* name: the public function that was called. */
static rw_tensor *record(rw_site at, const char *name, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                         const rw_attention_params *o, rw_tensor **ret_lse)
{
    const rw_shape s = rw_tensor_shape(q);
    if (ret_lse) *ret_lse = NULL;
    const int64_t d = s.rank ? s.dim[s.rank - 1] : 1;
    const double usual = 1 / sqrt((double)(d > 0 ? d : 1)); /* a double for every type */
    struct rw_attention_attrs a = { .scale = o->scale == 0 ? usual : rw_constant(q, rw_or_default(o->scale, 0)),
                                    .dropout = rw_constant(q, rw_or_default(o->dropout, 0)),
                                    .soft_cap = rw_constant(q, rw_or_default(o->soft_cap, 0)),
                                    .causal = o->causal, .window = o->window };
    static const char *const names[] = { [ATT_MASK] = "mask", [ATT_SLOPES] = "slopes", [ATT_SINKS] = "sinks",
                                         [ATT_DOCUMENTS] = "documents" };
    rw_tensor *const extra[] = { [ATT_MASK] = o->mask, [ATT_SLOPES] = o->slopes, [ATT_SINKS] = o->sinks,
                                 [ATT_DOCUMENTS] = o->documents };
    rw_tensor *in[3 + ATT_EXTRAS] = { q, k, v }, *out[2] = { NULL, NULL };
    int n = 3;
    for (int i = 0; i < ATT_DLSE; i++) {
        if (!extra[i] || extra[i] == rw_none()) continue;
        if (!rw_operand_check(at, t, extra[i], name, names[i])) return NULL;
        a.extras |= 1 << i;
        in[n++] = extra[i];
    }
    const rw_composite c = rw_composite_begin(t, name);
    const int sinks = rw_att_extra(&a, ATT_SINKS, 3); /* sinks have q's type; masks and slopes may be float32 */
    if (sinks >= 0) in[sinks] = rw_recipe_cast_low_at(at, t, in[sinks]);
    rw_tensor *const y = rw_apply_at(at, t, &rw_op_attention, in, n, &a, sizeof a, out);
    rw_tensor *const transposed = rw_composite_end(&c, y ? rw_transpose_at(at, t, y, 1, 2) : NULL);
    if (ret_lse) *ret_lse = transposed ? out[1] : NULL;
    return transposed;
}

rw_tensor *rw_attention_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                           const rw_attention_params *params)
{
    RW_ENTER_OP(t);
    static const rw_attention_params defaults;
    return record(at, "attention", t, q, k, v, params ? params : &defaults, NULL);
}

rw_tensor *rw_attention_lse_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                               const rw_attention_params *params, rw_tensor **ret_lse)
{
    RW_ENTER_OP(t);
    static const rw_attention_params defaults;
    return record(at, "attention_lse", t, q, k, v, params ? params : &defaults, ret_lse);
}
