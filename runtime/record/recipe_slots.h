/* Rows of delayed scaling and of the monitor's counts, for operands of products. */
#ifndef RW_RECORD_RECIPE_SLOTS_H
#define RW_RECORD_RECIPE_SLOTS_H

#include <rewind/precision.h>

/* A scale of delayed scaling, and the row of its amax. False, with an error, if the weight has no histories. */
struct rw_delayed_slot {
    rw_tensor *scale;
    uint32_t buffer, row; /* the buffer by its id */
};
bool rw_delayed_slot_at(rw_site at, rw_tape *t, const rw_delayed_scaling *delayed, rw_tensor *weight,
                        rw_delayed_operand which, struct rw_delayed_slot *ret);

/* The value is the amax of this step: recorded when backward ends, if a loss or gradient depends on its node.
   RW_ERR_MEMORY, recorded. */
rw_status rw_delayed_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *amax);

/* The row for counts of an operand of a product with the weight, a value of the tape; the buffer by its ID. False if
   no monitor counts, or if the weight is not a parameter or buffer that existed when counting began. */
struct rw_counts_slot {
    uint32_t buffer, row;
};
bool rw_counts_slot_at(rw_site at, const rw_tape *t, const rw_tensor *weight, rw_delayed_operand which,
                       struct rw_counts_slot *ret);

/* Records the counts when backward ends, if backward depends on their node. RW_ERR_MEMORY, recorded. */
rw_status rw_counts_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *counts);

#endif
