/* Checks of losses and other roots of backward, for the public calls. */
#ifndef RW_AUTODIFF_ROOTS_H
#define RW_AUTODIFF_ROOTS_H

#include "autodiff/differentiate.h"

/* Returns the value of a loss if backward may start there; RW_NONE_ID after an error, which is recorded. */
uint32_t rw_loss_check(rw_tape *t, rw_tensor *loss, const char *what);

/* Checks n values of the tape, of any shape, that require a gradient, and stores them in ret_roots. */
rw_status rw_roots_check(rw_tape *t, size_t n, rw_tensor *const *y, const char *what, uint32_t *ret_roots);

#endif
