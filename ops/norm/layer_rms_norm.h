/* Shared by the checks and kernels of layernorm and rmsnorm: attributes, row statistics, cutting into blocks. */
#ifndef RW_OPS_LAYER_RMS_NORM_H
#define RW_OPS_LAYER_RMS_NORM_H

#include "base/host_device.h"

#include <rewind/op.h>

#include <math.h>

struct rw_norm_attrs {
    double eps;
    int32_t vectors; /* 1: weight; 2: weight and bias */
    int32_t rms;
    int32_t sums; /* backward: outputs from 1 on are added to inputs from 3 on, one for each */
    int32_t unused;
};

/*
 * The vectors that a block of rows sums in backward: dweight; dbias, except for rmsnorm; and as the last output, if
 * there is one, the columns of dx.
 */
static inline bool rw_norm_has_columns(const struct rw_norm_attrs *a, int n_outputs)
{
    return n_outputs > (a->rms ? 2 : 3);
}

/* The number of vectors with memory in the workspace: two at least, one of which rmsnorm does not use. */
static inline int64_t rw_norm_vectors(int n_outputs)
{
    return n_outputs > 3 ? n_outputs - 1 : 2;
}

/* The input index of dx's addend, if there is one. */
static inline int rw_norm_addend(const struct rw_norm_attrs *a, int n_outputs)
{
    return a->sums ? 2 + n_outputs : 3;
}

/* (var + eps)^-0.5, composed of ops. NaN for an infinite var, which is a sum that has overflowed, as in the kernels. */
rw_tensor *rw_norm_scale(rw_tape *t, rw_tensor *var, double eps);

/*
 * The normalization of an element x of a row: (x - mean) scale + shift.
 *
 * The mean of many numbers far from 0 has an error of several units in the last place; even a correctly rounded mean
 * has half a unit. Divided by a small deviation (or the root of eps), this error would dominate the result. So kernels
 * compute an approximate mean first, then in a second pass `rest` and `mean_square`, the means of the differences from
 * it and of their squares. These differences are exact or nearly so, and their mean is the error of the first mean. It
 * is added to the mean, and the rounding error of that addition goes into the shift. For equal numbers all differences
 * are equal, so nothing remains. rms: mean and rest are 0.
 *
 * If the mean of squares has overflowed, the result is NaN: with an infinite one the row would be 0 and look valid.
 */
#define RW_NORM_STATISTICS(T, SQRT)                                                                                \
    struct rw_norm_##T {                                                                                           \
        T mean, scale, shift;                                                                                      \
    };                                                                                                             \
                                                                                                                   \
    RW_HOST_DEVICE struct rw_norm_##T rw_norm_##T##_of(T first, T rest, T mean_square, T eps)                      \
    {                                                                                                              \
        const T mean = first + rest, left = rest - (mean - first), variance = mean_square - rest * rest;           \
        struct rw_norm_##T of;                                                                                     \
        of.mean = mean;                                                                                            \
        of.scale = mean_square < (T)INFINITY ? 1 / SQRT((variance > 0 ? variance : 0) + eps) : (T)NAN;             \
        of.shift = -(left * of.scale);                                                                             \
        return of;                                                                                                 \
    }
RW_NORM_STATISTICS(float, sqrtf)
RW_NORM_STATISTICS(double, sqrt)

/* Number of rows of x: none if they are empty. */
static inline int64_t rw_norm_rows(const rw_layout *x)
{
    const int64_t width = x->dim[x->rank - 1];
    return width ? x->numel / width : 0;
}

/* The number of blocks of rows that are summed to dweight and dbias: a function of the number of rows alone. */
static inline int64_t rw_norm_blocks(int64_t rows)
{
    const int64_t blocks = (rows + 31) / 32;
    return blocks < 1 ? 1 : blocks > 64 ? 64 : blocks;
}

/*
 * The same on CUDA: the number of blocks that a large device runs at once given their registers, which are fewer for
 * narrow rows. Each block has enough rows to amortize its sums.
 */
static inline int64_t rw_norm_cuda_blocks(int64_t rows, int64_t width)
{
    const int64_t most = width <= 256 ? 768 : width <= 1024 ? 384 : width <= 4096 ? 256 : 128;
    const int64_t blocks = rows / (width <= 1024 ? 16 : 8);
    return blocks < 1 ? 1 : blocks > most ? most : blocks;
}

#endif
