/* Whether the weights of a run are worth saving. */
#ifndef REWIND_EXAMPLES_FINITE_WEIGHTS_H
#define REWIND_EXAMPLES_FINITE_WEIGHTS_H

#include <rewind/rewind.h>

/* Whether all weights are finite. */
rw_status weights_are_finite(rw_context *ctx, bool *ret);

#endif
