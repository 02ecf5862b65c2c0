/*
 * Shared by the checks and kernels of quantize and dequantize. C11 and C++17.
 *
 *     quantize    (x [, s]) -> codes, scales, amax        codes of x s, scales 1 / s
 *     dequantize  (codes, scales) -> codes times scales
 */
#ifndef RW_OPS_FLOAT8_QUANTIZE_H
#define RW_OPS_FLOAT8_QUANTIZE_H

#include "ops/float8/f8.h"

#include <rewind/op.h>
#include <rewind/float8.h>

struct rw_quantize_attrs {
    int64_t dtype; /* of the FP8 data; of the decoded result */
    int64_t scaling, power_of_two;
};

/* A tensor as rows, divided into blocks that share a scale. */
struct rw_scales {
    int64_t rows, columns;
    int64_t high, wide;   /* of a block; the whole extents for one scale per tensor */
    int64_t across, down; /* number of blocks */
};

static inline int64_t rw_scales_blocks(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

static inline struct rw_scales rw_scales_of(const rw_layout *x, int64_t scaling)
{
    struct rw_scales s;
    s.columns = x->rank ? x->dim[x->rank - 1] : 1;
    s.rows = 1;
    for (int i = 0; i < x->rank - 1; i++) s.rows *= x->dim[i];
    s.high = scaling == RW_SCALING_128X128 ? 128 : 1;
    s.wide = scaling == RW_SCALING_MX ? 32 : 128;
    s.across = rw_scales_blocks(s.columns, s.wide);
    s.down = rw_scales_blocks(s.rows, s.high);
    return s;
}

/* Did one number x, multiplied by `by`, saturate? See fp8_scaling_ops.h. In a block that contains a NaN, `by` is NaN:
   its finite numbers become NaN, which does not count as saturated. */
RW_HOST_DEVICE bool rw_codes_saturate(float x, float by, bool e5m2)
{
    const uint32_t scaled = rw_f8_magnitude(x * by);
    return rw_f8_magnitude(x) < RW_F8_INFINITY && scaled > rw_f8_bits(rw_f8_largest(e5m2)) && scaled <= RW_F8_INFINITY;
}

RW_HOST_DEVICE bool rw_codes_flush(float x, uint8_t code)
{
    return rw_f8_magnitude(x) != 0 && (code & 0x7f) == 0;
}

/* Does a block have a meaningful scale? */
RW_HOST_DEVICE bool rw_codes_have_scale(uint32_t amax)
{
    return amax > 0 && amax < RW_F8_INFINITY;
}

/* For one scale per tensor: elements of a part, whose amax is a word of the workspace; s follows these words. */
#define RW_QUANTIZE_PART 8192

static inline int64_t rw_quantize_parts(int64_t numel)
{
    return (numel + RW_QUANTIZE_PART - 1) / RW_QUANTIZE_PART;
}

#endif
