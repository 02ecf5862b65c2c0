/*
 * Gradients of attention that can be differentiated again: composed of ops that have gradients themselves, with the
 * score matrix in memory. The options between the products and the softmax become a matrix. With 16-bit types
 * everything is computed in float32, as inside the fused kernels: float16 would overflow in q k^T, and the derivative
 * of a soft cap, 1 minus a number near 1, would lose its precision.
 */
#include "ops/attention/attention.h"
#include "ops/common/pass_ops.h"
#include "ops/common/util.h"
#include "ops/random/random.h"

struct composed {
    rw_grad_call *g;
    rw_tape *t;
    const struct rw_attention_attrs *attrs;
    rw_dtype wide;
    rw_shape q; /* [batch, heads, seq, d] */
    int64_t kv_heads, group, kv_seq;
    rw_tensor *slope; /* derivative of soft-capping, a factor of the scores' gradient; NULL without */
    rw_tensor *sink;  /* probabilities of the sinks [batch, kv_heads, group, seq, 1]; NULL without */
};

/* [b, h, s, d] as [b, kv_heads, group, s, d], for broadcasting against [b, kv_heads, 1, kv_seq, d]. */
static rw_tensor *grouped(rw_tape *t, rw_tensor *x, int64_t kv_heads)
{
    if (!x) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    return rw_reshape(t, x, RW_SHAPE(s.dim[0], kv_heads, kv_heads ? s.dim[1] / kv_heads : 0, s.dim[2], s.dim[3]));
}

static rw_tensor *transposed(const struct composed *c, rw_tensor *x)
{
    return rw_transpose(c->t, x, -1, -2);
}

/* A matrix of attention_bias, which has one head if all heads have equal values. */
static rw_tensor *bias(const struct composed *c, bool seen)
{
    struct rw_attention_bias_attrs a = { *c->attrs, c->q.dim[1], c->q.dim[2], c->kv_seq, c->wide, seen };
    rw_tensor *in[ATT_EXTRAS];
    int n = 0;
    for (int i = 0; i < ATT_EXTRAS; i++) {
        const int at = rw_att_extra(c->attrs, i, 3);
        if (at < 0 || i == ATT_SINKS) continue;
        in[n++] = rw_grad_input(c->g, at);
    }
    a.forward.extras &= ~(1 << ATT_SINKS);
    const rw_op_def *const op = seen ? &rw_op_attention_seen : &rw_op_attention_bias;
    rw_tensor *const x = rw_apply(c->t, op, in, n, &a, sizeof a, NULL);
    return x && rw_tensor_shape(x).dim[1] > 1 ? grouped(c->t, x, c->kv_heads) : grouped(c->t, x, 1);
}

/* Appends one column of scores, the sinks. */
static rw_tensor *with_sinks(struct composed *c, rw_tensor *scores, rw_tensor *sinks)
{
    rw_tensor *const one = rw_reshape(c->t, sinks, RW_SHAPE(1, c->kv_heads, c->group, 1, 1));
    rw_tensor *const column = rw_broadcast_to(c->t, one,
                                              RW_SHAPE(c->q.dim[0], c->kv_heads, c->group, c->q.dim[2], 1));
    rw_tensor *const p = rw_softmax(c->t, rw_concat(c->t, (rw_tensor *[]){ scores, column }, 2, -1), -1);
    c->sink = rw_slice(c->t, p, -1, c->kv_seq, c->kv_seq + 1);
    return rw_slice(c->t, p, -1, 0, c->kv_seq);
}

/* The probabilities of the scaled scores, with options and sinks. */
static rw_tensor *probabilities(struct composed *c, rw_tensor *scores)
{
    rw_tape *const t = c->t;
    const struct rw_attention_attrs *const a = c->attrs;
    /* not the scale argument of causal_softmax(): that is rounded to the scores' type, and 1 / sqrt(d) is a double */
    rw_tensor *s = rw_scale(t, scores, a->scale);
    if (rw_att_is_plain(a)) return a->causal ? rw_causal_softmax(t, s, 1) : rw_softmax(t, s, -1);
    if (a->soft_cap != 0) {
        rw_tensor *const x = rw_tanh(t, rw_scale(t, s, 1 / a->soft_cap));
        c->slope = rw_add_scalar(t, rw_neg(t, rw_mul(t, x, x)), 1);
        s = rw_scale(t, x, a->soft_cap);
    }
    s = rw_add(t, s, bias(c, false));
    const int sinks = rw_att_extra(a, ATT_SINKS, 3);
    s = sinks < 0 ? rw_softmax(t, s, -1) : with_sinks(c, s, rw_grad_widened(c->g, rw_grad_input(c->g, sinks)));
    return rw_mul(t, s, bias(c, true));
}

/* Applies the forward's dropout mask: it is drawn by element of the score matrix, whose order the grouping keeps. */
static rw_tensor *masked(const struct composed *c, rw_tensor *x)
{
    if (c->attrs->dropout <= 0) return x;
    const struct rw_dropout_attrs a = { c->attrs->dropout };
    return rw_apply(c->t, &rw_op_dropout, &x, 1, &a, sizeof a, NULL);
}

static rw_status set_summed(const struct composed *c, int i, rw_tensor *dx)
{
    const rw_shape shape = rw_tensor_shape(rw_grad_input(c->g, i));
    if (!dx) return rw_grad_set(c->g, i, NULL);
    if (i == 0) return rw_grad_set_narrowed(c->g, i, rw_reshape(c->t, dx, shape));
    const rw_shape one = RW_SHAPE(shape.dim[0], shape.dim[1], 1, shape.dim[2], shape.dim[3]);
    return rw_grad_set_narrowed(c->g, i, rw_reshape(c->t, rw_sum_to(c->t, dx, one), shape));
}

/* The gradient of the log-sum-exp [b, h, s], of the scores' type, as a column. */
static rw_tensor *column_of(const struct composed *c, rw_tensor *dlse)
{
    return rw_reshape(c->t, dlse, RW_SHAPE(c->q.dim[0], c->kv_heads, c->group, c->q.dim[2], 1));
}

/* Sets the gradients of options. ds: gradient of the softmax's input; flow: factor of a sink's probability. */
static rw_status set_extras(const struct composed *c, rw_tensor *ds, rw_tensor *flow)
{
    rw_tape *const t = c->t;
    const int mask = rw_att_extra(c->attrs, ATT_MASK, 3), sinks = rw_att_extra(c->attrs, ATT_SINKS, 3);
    if (mask >= 0 && rw_grad_wanted(c->g, mask)) {
        rw_tensor *const x = rw_grad_input(c->g, mask);
        rw_tensor *const all = rw_reshape(t, ds, RW_SHAPE(c->q.dim[0], c->q.dim[1], c->q.dim[2], c->kv_seq));
        RW_CHECK(rw_grad_set(c->g, mask, rw_cast(t, rw_sum_to(t, all, rw_tensor_shape(x)), rw_tensor_dtype(x))));
    }
    if (sinks < 0 || !rw_grad_wanted(c->g, sinks)) return RW_OK;
    rw_tensor *const all = rw_reshape(t, rw_mul(t, c->sink, flow), RW_SHAPE(c->q.dim[0], c->q.dim[1], c->q.dim[2]));
    return rw_grad_set_narrowed(c->g, sinks, rw_sum(t, all, RW_AXES(0, 2), false));
}

/* The gradient rule when gradients must be differentiable: composes dq, dk, dv and the gradients of options from
   ops. */
rw_status rw_att_grad_again(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const struct rw_attention_attrs *const a = rw_grad_attrs(g);
    const rw_shape shape = rw_tensor_shape(rw_grad_input(g, 0)), keys = rw_tensor_shape(rw_grad_input(g, 1));
    const int64_t kv_heads = keys.dim[1];
    const rw_dtype wide = rw_att_sum_type(rw_tensor_dtype(rw_grad_input(g, 0)));
    const int64_t group = kv_heads ? shape.dim[1] / kv_heads : 0;
    struct composed c = { g, t, a, wide, shape, kv_heads, group, keys.dim[2], NULL, NULL };
    rw_tensor *const dlse = rw_grad_upstream(g, 1), *const y = rw_grad_widened(g, rw_grad_upstream(g, 0));
    rw_tensor *const q = grouped(t, rw_grad_widened(g, rw_grad_input(g, 0)), kv_heads);
    rw_tensor *const dy = y ? grouped(t, rw_transpose(t, y, 1, 2), kv_heads) : NULL;
    rw_tensor *const k = grouped(t, rw_grad_widened(g, rw_grad_input(g, 1)), kv_heads);
    rw_tensor *const v = grouped(t, rw_grad_widened(g, rw_grad_input(g, 2)), kv_heads);
    rw_tensor *const p = probabilities(&c, rw_matmul(t, q, transposed(&c, k)));
    rw_tensor *flow = dlse ? column_of(&c, dlse) : NULL, *inner = flow;
    if (dy) {
        rw_tensor *const dp = masked(&c, rw_matmul(t, dy, transposed(&c, v)));
        rw_tensor *const dot = rw_sum(t, rw_mul(t, p, dp), RW_AXES(-1), true);
        inner = rw_sub(t, dp, dot);
        if (flow) inner = rw_add(t, inner, flow);
        flow = flow ? rw_sub(t, flow, dot) : rw_neg(t, dot);
    }
    rw_tensor *ds = rw_mul(t, p, inner);
    RW_CHECK(set_extras(&c, ds, flow));
    if (c.slope) ds = rw_mul(t, ds, c.slope);
    ds = rw_scale(t, ds, a->scale);
    if (rw_grad_wanted(g, 0)) RW_CHECK(set_summed(&c, 0, rw_matmul(t, ds, k)));
    if (rw_grad_wanted(g, 1)) RW_CHECK(set_summed(&c, 1, rw_matmul(t, transposed(&c, ds), q)));
    if (!rw_grad_wanted(g, 2)) return RW_OK;
    if (dy) return set_summed(&c, 2, rw_matmul(t, transposed(&c, masked(&c, p)), dy));
    rw_tensor *const values = rw_grad_input(g, 2); /* the log-sum-exp does not read them */
    return rw_grad_set(g, 2, rw_full_at(RW_HERE, t, rw_tensor_dtype(values), rw_tensor_shape(values), 0));
}
