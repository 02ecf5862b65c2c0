/*
 * attention: softmax(scale q k^T + mask) v by blocks, after FlashAttention-2 (arXiv 2307.08691). The score matrix never
 * exists; backward computes its tiles again from q, k and the logarithm of each row's sum, and draws dropout's mask
 * again.
 */
#include "ops/attention/attention.h"
#include "ops/common/kernels.h"
#include "ops/shape/shape.h"
#include "ops/common/util.h"

#include <rewind/attention.h>

#include <math.h>

rw_dtype rw_att_sum_type(rw_dtype dtype)
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

static rw_status check_vector(rw_op_call *call, int i, const char *what, rw_dtype dtype)
{
    const rw_shape s = rw_in_shape(call, i);
    RW_CHECK(rw_want_dtype(call, i, dtype));
    if (s.rank == 1 && s.dim[0] == rw_in_shape(call, 0).dim[1]) return RW_OK;
    return rw_op_error(call, RW_ERR_SHAPE, "%s [heads] are needed", what);
}

static rw_status check_mask(rw_op_call *call, int i)
{
    const rw_shape s = rw_in_shape(call, i), q = rw_in_shape(call, 0);
    const int64_t most[] = { q.dim[0], q.dim[1], q.dim[2], rw_in_shape(call, 1).dim[2] };
    const rw_dtype dtype = call->in[i].dtype;
    if (dtype != call->in[0].dtype && dtype != rw_att_sum_type(call->in[0].dtype) && dtype != RW_BOOL)
        return rw_op_error(call, RW_ERR_DTYPE, "the mask is of %s, not of q's type, bool or %s", rw_dtype_name(dtype),
                           rw_dtype_name(rw_att_sum_type(call->in[0].dtype)));
    for (int axis = 0; axis < 4; axis++)
        if (s.rank != 4 || (s.dim[axis] != 1 && s.dim[axis] != most[axis]))
            return rw_op_error(call, RW_ERR_SHAPE, "the mask does not broadcast to [batch, heads, seq, kv_seq]");
    return RW_OK;
}

static rw_status check_documents(rw_op_call *call, int i)
{
    const rw_shape s = rw_in_shape(call, i), q = rw_in_shape(call, 0);
    RW_CHECK(rw_want_dtype(call, i, RW_I32));
    if (s.rank < 1 || s.rank > 2 || s.dim[s.rank - 1] < 2 || (s.rank == 2 && s.dim[0] != q.dim[0]))
        return rw_op_error(call, RW_ERR_SHAPE, "documents [n + 1] or [batch, n + 1] are needed, n at least 1");
    if (q.dim[2] != rw_in_shape(call, 1).dim[2])
        return rw_op_error(call, RW_ERR_SHAPE, "documents are packed where seq and kv_seq are equal");
    return RW_OK;
}

/* What options brought in: `first` inputs come before. */
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
        return rw_op_error(call, RW_ERR_ARGUMENT, "soft_cap %g", a->soft_cap);
    if (a->window < 0) return rw_op_error(call, RW_ERR_ARGUMENT, "window %lld", (long long)a->window);
    if (!rw_att_is_plain(a) && (rw_in_shape(call, 0).dim[2] > ATT_SPAN_MOST ||
                                rw_in_shape(call, 1).dim[2] > ATT_SPAN_MOST))
        return rw_op_error(call, RW_ERR_SHAPE, "more than 2^30 places");
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
    if (!isfinite(a->scale) || a->scale == 0) return rw_op_error(call, RW_ERR_ARGUMENT, "scale %g", a->scale);
    RW_CHECK(check_extras(call, a, 3));
    const rw_shape q = rw_in_shape(call, 0), k = rw_in_shape(call, 1), v = rw_in_shape(call, 2);
    const rw_shape scores = RW_SHAPE(q.dim[0], q.dim[1], q.dim[2], k.dim[2]);
    if (a->dropout > 0) RW_CHECK(rw_op_shape(call, scores)); /* a number is drawn for each */
    RW_CHECK(rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(q.dim[0], q.dim[2], q.dim[1], v.dim[3])));
    return rw_op_output(call, 1, rw_att_sum_type(call->in[0].dtype), RW_SHAPE(q.dim[0], q.dim[1], q.dim[2]));
}

/* sum: the input that the sums are added to; -1: none. */
static rw_status check_columns(rw_op_call *call, int sum)
{
    const rw_shape q = rw_in_shape(call, 0), k = rw_in_shape(call, 1);
    const rw_shape columns = RW_SHAPE((q.dim[1] + 2 * k.dim[1]) * q.dim[3]);
    if (sum >= 0) {
        RW_CHECK(rw_want_sum_of(call, sum, 0));
        if (!rw_shape_equal(rw_in_shape(call, sum), columns))
            return rw_op_error(call, RW_ERR_SHAPE, "the sum has not a number for each column");
    }
    return rw_op_output(call, 1, call->in[sum < 0 ? 0 : sum].dtype, columns);
}

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

/* The mask's gradient with seq and kv_seq in full. */
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

/* Products of tiles: so many of q's width and so many of v's, half of each under a causal mask. */
static rw_op_cost cost_of(const rw_op_call *call, double of_d, double of_dv)
{
    const struct rw_attention_attrs *const a = call->attrs;
    const struct att_extents e = extents(call);
    double keys = (double)e.kv_seq * (a->causal ? 0.5 : 1);
    const double window = (double)a->window * (a->causal ? 1 : 2);
    if (a->window && window < keys) keys = window;
    const double scores = (double)e.batch * (double)e.heads * (double)e.seq * keys;
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

static rw_op_cost cost_mask_backward(const rw_op_call *call)
{
    return cost_of(call, 1, 1);
}

static size_t per_thread(const rw_op_call *call, int64_t elements)
{
    return (size_t)elements * rw_dtype_size(rw_att_sum_type(call->in[0].dtype)) * (size_t)call->threads;
}

/* The table of spans, behind what each thread has. */
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

RW_DECLARE_CUDA_WORKSPACE(rw_attention_workspace_cuda)
RW_DECLARE_KERNELS(rw_attention_backward)
/* _columns: with what the sums of the columns are added to, at input 6. */
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

/* A gradient that does not flow: only the log-sum-exp is used further on. */
static rw_tensor *upstream(const rw_grad_call *g)
{
    const rw_shape q = rw_tensor_shape(rw_grad_input(g, 0)), v = rw_tensor_shape(rw_grad_input(g, 2));
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (dy) return dy;
    return rw_fill_at(RW_HERE, rw_grad_tape(g), rw_tensor_dtype(rw_grad_input(g, 0)),
                      RW_SHAPE(q.dim[0], q.dim[2], q.dim[1], v.dim[3]), 0);
}

/* What backward reads: q, k, v, o, the log-sum-exps, dy, then what options brought in. Returns how many. */
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

/* The mask's gradient has seq and kv_seq in full: where the mask has not, its columns and rows are added up. */
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

/* Where q, k and v are all of what a layer with a bias has made, its gradient is made here, too. out: as check says. */
static void apply_backward(rw_grad_call *g, struct rw_attention_backward_attrs *a, rw_tensor **in, int n,
                           rw_tensor **out)
{
    const rw_shape q = rw_tensor_shape(in[0]), k = rw_tensor_shape(in[1]);
    rw_tensor *sum = NULL;
    a->packed = is_one_buffer(g, in);
    a->columns = a->packed && rw_grad_pieces_want_columns(g, 3, (q.dim[1] + 2 * k.dim[1]) * q.dim[3], &sum);
    if (sum) {
        for (int i = n++; i > 6; i--) in[i] = in[i - 1];
        in[6] = sum;
        a->forward.extras |= 1 << ATT_SUM;
    }
    const rw_op_def *const op = sum ? &rw_op_attention_backward_columns : &rw_op_attention_backward;
    rw_apply(rw_grad_tape(g), op, in, n, a, sizeof *a, out);
    if (a->columns && out[1]) rw_grad_set_columns_of_pieces(g, 3, out[1], sum != NULL);
}

static rw_status grad(rw_grad_call *g)
{
    struct rw_attention_backward_attrs a = { *(const struct rw_attention_attrs *)rw_grad_attrs(g), 0, 0 };
    const int mask = rw_att_extra(&a.forward, ATT_MASK, 3), slopes = rw_att_extra(&a.forward, ATT_SLOPES, 3);
    const int sinks = rw_att_extra(&a.forward, ATT_SINKS, 3);
    if (slopes >= 0 && rw_grad_wanted(g, slopes))
        return rw_refuse_at(RW_HERE, rw_grad_tape(g), RW_ERR_NO_GRADIENT, "attention: its slopes are constants");
    if (rw_grad_again(g)) return rw_att_grad_again(g);
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

RW_DECLARE_KERNELS(rw_attention)
const rw_op_def rw_op_attention = { .name = "attention", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                    .flags = RW_OP_RANDOM, .strided = RW_OP_ALL_INPUTS, .check = check,
                                    .kernel = RW_KERNELS(rw_attention), .grad = grad, .cost = cost, .draws = draws,
                                    .workspace = RW_WORKSPACES(workspace_cpu, rw_attention_workspace_cuda),
                                    .lowered = RW_OP_INPUT(0) | RW_OP_INPUT(1) | RW_OP_INPUT(2) };

/* name: of the function that is called. */
static rw_tensor *record(rw_site at, const char *name, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                         const rw_attention_options *o, rw_tensor **ret_lse)
{
    const rw_shape s = rw_tensor_shape(q);
    const int64_t d = s.rank ? s.dim[s.rank - 1] : 1;
    const double usual = 1 / sqrt((double)(d > 0 ? d : 1)); /* a double, whatever the type */
    struct rw_attention_attrs a = { .scale = o->scale == 0 ? usual : rw_constant(q, rw_or_default(o->scale, 0)),
                                    .dropout = rw_constant(q, o->dropout), .soft_cap = rw_constant(q, o->soft_cap),
                                    .causal = o->causal, .window = o->window };
    rw_tensor *const extra[] = { [ATT_MASK] = o->mask, [ATT_SLOPES] = o->slopes, [ATT_SINKS] = o->sinks,
                                 [ATT_DOCUMENTS] = o->documents };
    rw_tensor *in[3 + ATT_EXTRAS] = { q, k, v }, *out[2] = { NULL, NULL };
    int n = 3;
    for (int i = 0; i < ATT_DLSE; i++) {
        if (!extra[i] || extra[i] == rw_none()) continue;
        a.extras |= 1 << i;
        in[n++] = extra[i];
    }
    const struct rw_composite c = rw_composite_begin(t, name);
    const int sinks = rw_att_extra(&a, ATT_SINKS, 3); /* of q's type; masks and slopes may be float32 beside it */
    if (sinks >= 0) in[sinks] = rw_lowered_at(at, t, in[sinks]);
    rw_tensor *const y = rw_apply_at(at, t, &rw_op_attention, in, n, &a, sizeof a, out);
    rw_tensor *const turned = rw_composite_end(&c, y ? rw_transpose_at(at, t, y, 1, 2) : NULL);
    if (ret_lse) *ret_lse = turned ? out[1] : NULL;
    return turned;
}

rw_tensor *rw_attention_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                           const rw_attention_params *params)
{
    rw_attention_options o = { .causal = false };
    if (params) o = (rw_attention_options){ .causal = params->causal, .scale = params->scale,
                                            .dropout = params->dropout };
    return record(at, "attention", t, q, k, v, &o, NULL);
}

rw_tensor *rw_attention_with_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                                const rw_attention_options *options)
{
    const rw_attention_options none = { .causal = false };
    return record(at, "attention_with", t, q, k, v, options ? options : &none, NULL);
}

rw_tensor *rw_attention_lse_at(rw_site at, rw_tape *t, rw_tensor *q, rw_tensor *k, rw_tensor *v,
                               const rw_attention_options *options, rw_tensor **ret_lse)
{
    const rw_attention_options none = { .causal = false };
    return record(at, "attention_lse", t, q, k, v, options ? options : &none, ret_lse);
}
