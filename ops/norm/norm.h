/* What the checks and kernels of layernorm and rmsnorm share. */
#ifndef RW_OPS_NORM_H
#define RW_OPS_NORM_H

#include "base/host_device.h"

#include <rewind/op.h>

#include <math.h>

struct rw_norm_attrs {
    double eps;
    int32_t vectors; /* weight, or weight and bias */
    int32_t rms;
    int32_t sums; /* of a backward: outputs from 1 on are added to inputs 3 and on, one for each */
    int32_t unused;
};

/*
 * Vectors that a block of rows of a backward sums up: dweight, dbias, which rmsnorm has not, and, as the last output of
 * a backward that has it, the columns of dx.
 */
static inline bool rw_norm_has_columns(const struct rw_norm_attrs *a, int n_outputs)
{
    return n_outputs > (a->rms ? 2 : 3);
}

/* As many have room in the workspace; two at least, of which rmsnorm leaves one alone. */
static inline int64_t rw_norm_vectors(int n_outputs)
{
    return n_outputs > 3 ? n_outputs - 1 : 2;
}

/* The input that dx of a backward is added to, if there is one. */
static inline int rw_norm_addend(const struct rw_norm_attrs *a, int n_outputs)
{
    return a->sums ? 2 + n_outputs : 3;
}

/* (var + eps)^-0.5 as ops; of an infinite var, a sum that has passed its type's range, NaN, as in the kernels. */
rw_tensor *rw_norm_scale(rw_tape *t, rw_tensor *var, double eps);

/*
 * What an element x of a row is normalised by: (x - mean) scale + shift. A sum of many numbers far from 0 leaves a mean
 * that is off by several units in the last place, and even a rounded one is off by half of one, which a small deviation
 * (or the root of eps) would be divided into. So kernels take a first mean, then in a second pass `rest` and
 * `mean_square`, the means of the distances from it and of their squares: distances are exact or nearly so, and their
 * mean is what the first mean is off. It is added to the mean, and what rounding leaves of it is in the shift. Of equal
 * numbers every distance is the same, so that nothing is left. rms: mean and rest are 0.
 *
 * A mean of squares that has passed the type's range gives NaN: the row would be 0 of an infinite one, and look like
 * one.
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

/* Rows of x: none where they have no elements. */
static inline int64_t rw_norm_rows(const rw_layout *x)
{
    const int64_t width = x->dim[x->rank - 1];
    return width ? x->numel / width : 0;
}

/* Rows are summed to dweight and dbias in this many blocks: a function of their number alone. */
static inline int64_t rw_norm_blocks(int64_t rows)
{
    const int64_t blocks = (rows + 31) / 32;
    return blocks < 1 ? 1 : blocks > 64 ? 64 : blocks;
}

/*
 * The same on CUDA: as many as a large device holds at a time, by their registers, which are fewer where rows are
 * narrow; each with rows enough to make its sums cheap.
 */
static inline int64_t rw_norm_cuda_blocks(int64_t rows, int64_t width)
{
    const int64_t most = width <= 256 ? 768 : width <= 1024 ? 384 : width <= 4096 ? 256 : 128;
    const int64_t blocks = rows / (width <= 1024 ? 16 : 8);
    return blocks < 1 ? 1 : blocks > most ? most : blocks;
}

#endif
