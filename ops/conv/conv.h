/*
 * What the checks and kernels of convolutions share. C11 and C++17.
 *
 * A convolution is linear in x and in its weight, so three products are all there is, and each one's gradients are the
 * other two:
 *
 *     conv2d         (x, weight[, bias]) -> y           y[p] = sum over taps and channels of x[under p] weight
 *     conv2d_data    (dy, weight)        -> dx          the transposed convolution
 *     conv2d_weight  (x, dy[, sum])      -> dweight
 *
 * x [n, h, w, c] and y [n, oh, ow, oc] lie channels last and dense; a weight is [oc, c / groups, kh, kw].
 *
 * An x that is read may come in pieces, each of some of the channels and dense: those of a concatenation, which then
 * nobody has to make or to keep (ops/shape/joined.h). A kernel puts them side by side in its workspace, as much of them
 * as it works on at a time, and does with that what it does with an x that is whole: the bytes are the same.
 *
 *     conv2d                    (pieces of x, weight[, bias]) -> y
 *     conv2d_weight_joined      (pieces of x, dy)             -> dweight
 *     conv2d_weight_joined_add  (sum, pieces of x, dy)        -> dweight
 */
#ifndef RW_OPS_CONV_H
#define RW_OPS_CONV_H

#include <rewind/op.h>

struct rw_conv_attrs {
    int64_t made[2];     /* extents that the inputs do not tell: h, w of a dx; kh, kw of a dweight */
    int64_t stride[2], padding[2], dilation[2];
    int64_t groups;
    int64_t more;      /* pieces of x behind the first */
    int64_t whole;     /* of conv2d: which value of the tape they make up, where there are more */
    int64_t sum_first; /* the sum that is added to is input 0 */
};

struct rw_conv {
    rw_dtype dtype;
    int64_t n, h, w, c, oh, ow, oc, kh, kw;
    int64_t stride[2], padding[2], dilation[2];
    int64_t groups, cg, ocg; /* channels of a group, in and out */
};

enum rw_conv_kind { RW_CONV_FORWARD, RW_CONV_DATA, RW_CONV_WEIGHT };

/* Which inputs of a node are what: x or its first piece, or dy; what it is multiplied with; and a bias or a sum, which
   there may be fewer inputs than. */
struct rw_conv_inputs {
    int first, other, third;
};

static inline struct rw_conv_inputs rw_conv_inputs_of(const struct rw_conv_attrs *a)
{
    struct rw_conv_inputs in;
    in.first = a->sum_first ? 1 : 0;
    in.other = in.first + (int)a->more + 1;
    in.third = a->sum_first ? 0 : in.other + 1;
    return in;
}

/* Of a node of one of the three kinds, by the layouts of x or dx, or of a piece of it, of y or dy, and of the weight or
   its gradient. */
static inline struct rw_conv rw_conv_of(const struct rw_conv_attrs *a, rw_dtype dtype, const rw_layout *x,
                                        const rw_layout *y, const rw_layout *weight)
{
    struct rw_conv c;
    c.dtype = dtype;
    c.n = x->dim[0], c.h = x->dim[1], c.w = x->dim[2], c.c = weight->dim[1] * a->groups;
    c.oh = y->dim[1], c.ow = y->dim[2], c.oc = y->dim[3];
    c.cg = weight->dim[1], c.kh = weight->dim[2], c.kw = weight->dim[3];
    for (int i = 0; i < 2; i++) {
        c.stride[i] = a->stride[i];
        c.padding[i] = a->padding[i];
        c.dilation[i] = weight->dim[2 + i] > 1 ? a->dilation[i] : 1; /* one tap is no farther from itself */
    }
    c.groups = a->groups;
    c.ocg = c.oc / c.groups;
    return c;
}

static inline struct rw_conv rw_conv_of_kernel(const rw_kernel *k, enum rw_conv_kind kind)
{
    const struct rw_conv_attrs *const a = (const struct rw_conv_attrs *)k->attrs;
    const struct rw_conv_inputs at = rw_conv_inputs_of(a);
    const rw_layout *const in0 = k->in[at.first].layout, *const in1 = k->in[at.other].layout;
    const rw_layout *const out = k->out[0].layout;
    if (kind == RW_CONV_FORWARD) return rw_conv_of(a, k->out[0].dtype, in0, out, in1);
    if (kind == RW_CONV_DATA) return rw_conv_of(a, k->out[0].dtype, out, in0, in1);
    return rw_conv_of(a, k->out[0].dtype, in0, in1, out);
}

static inline struct rw_conv rw_conv_of_call(const rw_op_call *call, enum rw_conv_kind kind)
{
    const struct rw_conv_attrs *const a = (const struct rw_conv_attrs *)call->attrs;
    const struct rw_conv_inputs at = rw_conv_inputs_of(a);
    const rw_layout *const in0 = call->in[at.first].layout, *const in1 = call->in[at.other].layout;
    const rw_layout *const out = call->out[0].layout;
    if (kind == RW_CONV_FORWARD) return rw_conv_of(a, call->out[0].dtype, in0, out, in1);
    if (kind == RW_CONV_DATA) return rw_conv_of(a, call->out[0].dtype, out, in0, in1);
    return rw_conv_of(a, call->out[0].dtype, in0, in1, out);
}

/* Of a convolution's output under tap t of its kernel: where that is in x along axis i. */
static inline int64_t rw_conv_under(const struct rw_conv *c, int i, int64_t out, int64_t tap)
{
    return out * c->stride[i] - c->padding[i] + tap * c->dilation[i];
}

/* The other way: which output has `in` under that tap; -1 for none. */
static inline int64_t rw_conv_over(const struct rw_conv *c, int i, int64_t in, int64_t tap)
{
    const int64_t at = in + c->padding[i] - tap * c->dilation[i], most = i ? c->ow : c->oh;
    return at < 0 || at % c->stride[i] || at / c->stride[i] >= most ? -1 : at / c->stride[i];
}

/* A channel of its own for each filter: kernels that take channels side by side. */
#define RW_CONV_TAPS 128
static inline bool rw_conv_is_depthwise(const struct rw_conv *c)
{
    return c->cg == 1 && c->ocg == 1 && c->groups > 1 && c->kh * c->kw <= RW_CONV_TAPS;
}

/* Multiplications of all of it. */
static inline double rw_conv_products(const struct rw_conv *c)
{
    return (double)c->n * (double)c->oh * (double)c->ow * (double)c->oc * (double)c->cg * (double)c->kh * (double)c->kw;
}

/* Bytes of workspace that the call takes on the CPU; makes the library's primitives. SIZE_MAX when it can't. */
size_t rw_conv_workspace_cpu(const rw_op_call *call, enum rw_conv_kind kind);

#endif
