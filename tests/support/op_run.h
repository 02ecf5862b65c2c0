/*
 * Runs a case of op_cases.h: its result and gradients, and the magnitudes of their terms (M of compare.h). For
 * accuracy.c and gradcheck.c.
 */
#ifndef RW_TESTS_OP_RUN_H
#define RW_TESTS_OP_RUN_H

#include "support/op_cases.h"

#define OP_TENSORS (1 + OP_INPUTS)

/* Input data of a case. An array that is NULL is replaced by op_number()s. */
struct op_data {
    const double *x[OP_INPUTS]; /* of the inputs that the operands are made from */
    const double *w;            /* the upstream gradient */
};

/* A result and its gradients: 0 the result, 1 + i the gradient of the input of which operand i is a view. */
struct outcome {
    int n;
    rw_dtype dtype[OP_TENSORS];
    int64_t numel[OP_TENSORS];
    size_t bytes[OP_TENSORS];
    unsigned char *raw[OP_TENSORS];
};

/* Which absolute values are taken: none, of w, or of x and w. */
enum op_mode { OP_PLAIN, OP_UPWARD, OP_ABSOLUTE };

struct recording {
    rw_tensor *base[OP_INPUTS], *x[OP_INPUTS], *w, *y;
};

/* The input of which operand i is a view. NULL if the type does not hold its numbers. */
rw_tensor *op_input(rw_tape *t, const struct op_case *c, rw_dtype dtype, const struct op_data *data, int i,
                    enum op_mode mode);

/* Records the case on inputs that require gradients. Returns y, or NULL on an error. Resets the generator first. */
rw_tensor *op_record(struct recording *r, rw_tape *t, const struct op_case *c, rw_dtype dtype,
                     const struct op_data *data, enum op_mode mode);

/* Records w, and sum(w * y), or y itself if the case is a loss. */
rw_tensor *op_record_loss(struct recording *r, rw_tape *t, const struct op_case *c, const struct op_data *data,
                          enum op_mode mode);

/* Runs the case. The caller frees the outcome, on failure too. */
rw_status op_run(struct outcome *o, rw_tape *t, const struct op_case *c, rw_dtype dtype, const struct op_data *data,
                 enum op_mode mode);

/* The same with the gradients of rw_grad(), whose rules record ops that can be differentiated again. */
rw_status op_run_composed(struct outcome *o, rw_tape *t, const struct op_case *c, rw_dtype dtype,
                          const struct op_data *data);

/* Computes the M of each element in float64; signs are arbitrary. Resets the tape. The caller frees the outcome, on
   failure too. */
rw_status op_run_sizes(struct outcome *o, rw_tape *t, const struct op_case *c, const struct op_data *data);

void op_forget(struct outcome *o);

/* The roundings of a result (0) or of a gradient (1 + i), plus those of summing over an expanded input. */
struct roundings op_allowed(const struct op_case *c, int i);

#endif
