/* What backward may begin at, and with: the checks of those who ask for it. */
#ifndef RW_AUTODIFF_ROOTS_H
#define RW_AUTODIFF_ROOTS_H

#include "autodiff/differentiate.h"

/* The loss as a value of the tape, when it is fit for backward; RW_NONE_ID after an error, which is recorded. */
uint32_t rw_loss_check(rw_tape *t, rw_tensor *loss, const char *what);

/* n values of the tape that require a gradient, of any shape, into ret_roots. */
rw_status rw_roots_check(rw_tape *t, size_t n, rw_tensor *const *y, const char *what, uint32_t *ret_roots);

#endif
