/* rw_backward_with(): what it keeps in its context. */
#ifndef RW_API_BACKWARD_WITH_H
#define RW_API_BACKWARD_WITH_H

#include "record/context.h"

void rw_backward_recorders_destroy(rw_context *ctx);

#endif
