/* Checks of losses and other roots of backward, for the public calls; and the roots of a tape's last backward. */
#ifndef RW_AUTODIFF_ROOTS_H
#define RW_AUTODIFF_ROOTS_H

#include "autodiff/differentiate.h"

/* Returns the value of a loss if backward may start there; RW_NONE_ID after an error, which is recorded. */
uint32_t rw_loss_check(rw_tape *t, rw_tensor *loss, const char *what);

/* Checks n values of the tape, of any shape, that require a gradient, and stores them in ret_roots. */
rw_status rw_roots_check(rw_tape *t, size_t n, rw_tensor *const *y, const char *what, uint32_t *ret_roots);

/* The roots of the last backward or verification of the current step, for ckpt_explain(). */
struct rw_last_roots {
    uint32_t *values;
    size_t n, cap;
    bool seeded; /* with gradients that were given */
};

/* Records them. RW_ERR_MEMORY, with an error that names the call. */
rw_status rw_roots_note(rw_tape *t, const uint32_t *roots, size_t n, bool seeded, const char *what);

/* NULL: the step has had none. */
const struct rw_last_roots *rw_roots_of(const rw_tape *t);

#endif
