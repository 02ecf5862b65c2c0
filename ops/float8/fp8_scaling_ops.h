/* Ops of delayed scaling and of the counts of quantization, which passes record. ops/float8 implements them. */
#ifndef RW_OPS_FLOAT8_FP8_SCALING_OPS_H
#define RW_OPS_FLOAT8_FP8_SCALING_OPS_H

#include <rewind/op.h>
#include <rewind/precision.h>

/*
 * Delayed scaling, commits. (amaxes, noted) -> (noted): each into its row, if it is larger than the row's value;
 * attributes: the rows, one uint32_t each. ([found,] amax, scale, history) -> (amax, scale, history): the scales of the
 * next step, see rewind/precision.h.
 */
extern const rw_op_def rw_op_note_amax;
extern const rw_op_def rw_op_delayed_update;

struct rw_delayed_attrs {
    int32_t gradient_dtype, most_recent, margin;
};

/*
 * Counts of quantization: RW_CODES_WORDS of RW_I32, which are RW_CODES_NUMBERS of uint64_t, in that order. Zero means
 * nothing; counts of several ops are added, or the larger one is taken, so their order has no effect. rw_quantize() has
 * them as its fourth output if it counts; ret_counts NULL: it does not. No other byte depends on them. A commit:
 * (counts ..., noted) -> (noted): each into its row; attributes: the rows, one uint32_t each.
 */
enum rw_codes_number {
    RW_CODES_AMAX,      /* bits of a float32 magnitude: the larger one counts */
    RW_CODES_MIN,     /* UINT32_MAX minus the bits of the smallest factor; likewise */
    RW_CODES_MAX,      /* bits of the largest factor; likewise. For blocks whose amax is finite and above zero */
    RW_CODES_SATURATED, /* finite elements that, times the factor, exceed the largest FP8 number; added up */
    RW_CODES_FLUSHED,   /* non-zero elements that became zero */
    RW_CODES_ELEMENTS,
    RW_CODES_NUMBERS
};
#define RW_CODES_WORDS ((int64_t)(RW_CODES_NUMBERS * sizeof(uint64_t) / sizeof(int32_t)))

rw_tensor *rw_quantize_counted_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *scale, const rw_quantize_params *p,
                                  rw_tensor **ret_scale, rw_tensor **ret_amax, rw_tensor **ret_counts);
extern const rw_op_def rw_op_note_counts;

#endif
