/* What products ask of the precision recipe in which they are recorded: casts, FP8 data, scales and rows of counts. */
#ifndef RW_RECORD_RECIPE_QUERIES_H
#define RW_RECORD_RECIPE_QUERIES_H

#include <rewind/precision.h>

/* Operands of a weight's products that have a history. */
enum rw_delayed_operand { RW_DELAYED_INPUT, RW_DELAYED_WEIGHT, RW_DELAYED_GRADIENT, RW_DELAYED_OPERANDS };

/* x as the innermost recipe casts it for a product; x itself without a recipe. NULL, with an error if x is not a
   tensor of the tape. And the type to which it would be cast. */
rw_tensor *rw_lowered_at(rw_site at, rw_tape *t, rw_tensor *x);
rw_tensor *rw_raised_at(rw_site at, rw_tape *t, rw_tensor *x);
rw_dtype rw_recipe_lowers(const rw_tape *t, const rw_tensor *x);

/* The innermost recipe if it is an FP8 one, valid until something is recorded; else NULL. And the E4M3 data of x, a
   value of the tape, with scales that are powers of two: recorded once per step for a parameter, once per region for
   anything else; for a parameter that the recipe keeps, perhaps the data of an earlier step. With delayed scaling,
   the scale is that of an operand of a product with the weight, a value of the tape. */
const rw_recipe *rw_recipe_of_codes(const rw_tape *t);
rw_tensor *rw_recipe_codes_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantize_params *params,
                              const rw_recipe *recipe, rw_tensor *weight, enum rw_delayed_operand which,
                              rw_tensor **ret_scale);

/* A scale of delayed scaling, and the row of its amax. False, with an error, if the weight has no histories. */
struct rw_delayed_slot {
    rw_tensor *scale;
    uint32_t buffer, row; /* the buffer by its id */
};
bool rw_delayed_slot_at(rw_site at, rw_tape *t, const rw_delayed_scaling *delayed, rw_tensor *weight,
                        enum rw_delayed_operand which, struct rw_delayed_slot *ret);

/* The value is the amax of this step: recorded when backward ends, if a loss or gradient depends on its node.
   RW_ERR_MEMORY, recorded. */
rw_status rw_delayed_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *amax);

/* The row for counts of an operand of a product with the weight, a value of the tape; the buffer by its ID. False if
   no monitor counts, or if the weight is not a parameter or buffer that existed when counting began. */
struct rw_counts_slot {
    uint32_t buffer, row;
};
bool rw_counts_slot_at(rw_site at, const rw_tape *t, const rw_tensor *weight, enum rw_delayed_operand which,
                       struct rw_counts_slot *ret);

/* Records the counts when backward ends, if backward depends on their node. RW_ERR_MEMORY, recorded. */
rw_status rw_counts_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *counts);

#endif
