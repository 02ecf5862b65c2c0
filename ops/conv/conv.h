/*
 * Shared by the checks and kernels of convolutions. C11 and C++17.
 *
 * A convolution is linear in x and in its weight, so three products are sufficient, and the gradients of each are the
 * other two:
 *
 *     conv2d         (x, weight[, bias]) -> y           y[p] = sum over taps and channels of x[under p] weight
 *     conv2d_data    (dy, weight)        -> dx          the transposed convolution
 *     conv2d_weight  (x, dy[, sum])      -> dweight
 *
 * x [n, h, w, c] and y [n, oh, ow, oc] are dense and channels-last; a weight is [oc, c / groups, kh, kw].
 *
 * An x that is read may be a virtual concatenation (ops/shape/virtual_concat.h). The op then has the concatenation's
 * inputs, each dense with some of the channels, and the concatenation is neither computed nor kept. A kernel
 * concatenates them in its workspace, as much as it processes at a time, and continues as with a whole x, so the bytes
 * are the same. The code calls these inputs pieces.
 *
 *     conv2d                    (pieces of x, weight[, bias]) -> y
 *     conv2d_weight_joined      (pieces of x, dy)             -> dweight
 *     conv2d_weight_joined_add  (sum, pieces of x, dy)        -> dweight
 */
#ifndef RW_OPS_CONV_H
#define RW_OPS_CONV_H

#include <rewind/op.h>

struct rw_conv_attrs {
    int64_t result_extent[2];     /* extents that do not follow from the inputs: h, w of a dx; kh, kw of a dweight */
    int64_t stride[2], padding[2], dilation[2];
    int64_t groups;
    int64_t more;      /* number of concatenation inputs after the first; 0: x is whole */
    int64_t whole;     /* conv2d: the value of the tape that is virtually concatenated, if `more` is not 0 */
    int64_t sum_first; /* the addend is input 0 */
};

struct rw_conv {
    rw_dtype dtype;
    int64_t n, h, w, c, oh, ow, oc, kh, kw;
    int64_t stride[2], padding[2], dilation[2];
    int64_t groups, cg, ocg; /* channels of a group, in and out */
};

enum rw_conv_kind { RW_CONV_FORWARD, RW_CONV_DATA, RW_CONV_WEIGHT };

/* The input indices of a node: x or its first concatenation input, or dy; the other factor; and a bias or addend, which
   is present if there are enough inputs. */
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

/* The extents of a node of one of the three kinds. They follow from the layouts of x (or one of its concatenation
   inputs) or dx, of y or dy, and of the weight or its gradient. */
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
        c.dilation[i] = weight->dim[2 + i] > 1 ? a->dilation[i] : 1; /* with a single tap dilation has no effect */
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

/* The position in x along axis i that tap t of the kernel reads for an output position. */
static inline int64_t rw_conv_under(const struct rw_conv *c, int i, int64_t out, int64_t tap)
{
    return out * c->stride[i] - c->padding[i] + tap * c->dilation[i];
}

/* The inverse: the output position for which that tap reads `in`; -1 for none. */
static inline int64_t rw_conv_over(const struct rw_conv *c, int i, int64_t in, int64_t tap)
{
    const int64_t at = in + c->padding[i] - tap * c->dilation[i], most = i ? c->ow : c->oh;
    return at < 0 || at % c->stride[i] || at / c->stride[i] >= most ? -1 : at / c->stride[i];
}

/* Depthwise: each filter has its own channel. Its kernels process adjacent channels together. */
#define RW_CONV_TAPS 128
static inline bool rw_conv_is_depthwise(const struct rw_conv *c)
{
    return c->cg == 1 && c->ocg == 1 && c->groups > 1 && c->kh * c->kw <= RW_CONV_TAPS;
}

/* Number of multiplications of the whole convolution. */
static inline double rw_conv_products(const struct rw_conv *c)
{
    return (double)c->n * (double)c->oh * (double)c->ow * (double)c->oc * (double)c->cg * (double)c->kh * (double)c->kw;
}

/* Bytes of workspace of the call on the CPU. Creates the library's primitives; SIZE_MAX if that fails. */
size_t rw_conv_workspace_cpu(const rw_op_call *call, enum rw_conv_kind kind);

#endif
