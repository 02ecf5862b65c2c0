/* Losses by row: attributes, and functions that rules of other files use. C11 and C++17. */
#ifndef RW_OPS_LOSS_ROW_CROSS_ENTROPY_H
#define RW_OPS_LOSS_ROW_CROSS_ENTROPY_H

#include <rewind/losses.h>
#include <rewind/op.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rw_row_loss_attrs {
    int64_t ignore;
    double smoothing, z;
    int64_t classes, dtype; /* for ops on targets alone */
};

/* The type of losses and of their weights: float64 for float64, else float32. */
static inline rw_dtype rw_loss_dtype(rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : RW_F32;
}

/* Class weights in that type, and their sum: both RW_NONE without weights. NULL in *ret_weight after an error. */
struct rw_class_weights {
    rw_tensor *weight, *sum;
};
struct rw_class_weights rw_class_weights_at(rw_site at, rw_tape *t, rw_tensor *weight, rw_dtype dtype);

/* logits [..., classes], target [...] -> the loss of each row [...]; *ret_kept [..., 2]: the values it keeps
   (loss.h). */
rw_tensor *rw_cross_entropy_rows_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target,
                                    const struct rw_class_weights *w, const struct rw_row_loss_attrs *a,
                                    rw_tensor **ret_kept);

/*
 * The gradient of the logits for gradient `dy` of the rows. One op writes it over the logits; or it is composed of
 * differentiable ops, which recompute the values in `kept`.
 */
rw_tensor *rw_cross_entropy_rows_gradient(rw_tape *t, rw_tensor *logits, rw_tensor *target, rw_tensor *kept,
                                          rw_tensor *dy, const struct rw_class_weights *w,
                                          const struct rw_row_loss_attrs *a, bool again);

/* Attributes of a function's parameters; false, with an error that names `what`, if they are invalid. */
bool rw_row_loss_attrs_of(rw_site at, rw_tape *t, const char *what, const rw_cross_entropy_params *params,
                          struct rw_row_loss_attrs *ret);

/* Reduces the losses of rows; the mean is relative to the total weight of the targets that count. */
rw_tensor *rw_reduce_rows_at(rw_site at, rw_tape *t, rw_tensor *rows, rw_tensor *target,
                             const struct rw_class_weights *w, const struct rw_row_loss_attrs *a,
                             rw_reduction reduction);

#ifdef __cplusplus
}
#endif

#endif
