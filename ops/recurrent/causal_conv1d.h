/*
 * Shared by the checks and kernels of causal_conv1d. C11 and C++17.
 *
 *     causal_conv1d         (x, weight [, bias]) -> y       y[t] = sum over j of weight[j] x[t - (k - 1) + j]
 *     causal_conv1d_data    (dy, weight) -> dx              the same, with the sequence read from its end
 *     causal_conv1d_weight  (x, dy [, sum]) -> dweight      dweight[j] = sum over t of x[t - (k - 1) + j] dy[t]
 */
#ifndef RW_OPS_RECURRENT_CAUSAL_CONV1D_H
#define RW_OPS_RECURRENT_CAUSAL_CONV1D_H

#include <rewind/op.h>
#include <rewind/recurrent.h>

struct rw_causal_conv1d_attrs {
    int64_t reversed; /* time runs from the end */
    int64_t taps;     /* for a weight's gradient; else 0 */
};

struct rw_causal_conv1d {
    int64_t b, l, c, taps;
    int64_t step; /* distance from a place to the earlier one: -1, or 1 if reversed */
    int64_t x[3]; /* strides of x, or of dy */
};

static inline struct rw_causal_conv1d rw_causal_conv1d_of(const rw_kernel *k, bool weight)
{
    const struct rw_causal_conv1d_attrs *const a = (const struct rw_causal_conv1d_attrs *)k->attrs;
    const rw_layout *const x = k->in[0].layout;
    struct rw_causal_conv1d j;
    j.b = x->dim[0], j.l = x->dim[1], j.c = x->dim[2];
    j.taps = weight ? a->taps : k->in[1].layout->dim[1];
    j.step = a->reversed ? 1 : -1;
    for (int i = 0; i < 3; i++) j.x[i] = x->stride[i];
    return j;
}

/* For a weight's gradient on CUDA: rows of a part; the workspace holds the parts' sums. */
#define RW_CAUSAL_CONV1D_PART 1024

static inline int64_t rw_causal_conv1d_parts(int64_t rows)
{
    return (rows + RW_CAUSAL_CONV1D_PART - 1) / RW_CAUSAL_CONV1D_PART;
}

#endif
