/* rw_backward_with(): what it keeps in its context. */
#ifndef RW_API_BACKWARD_WITH_H
#define RW_API_BACKWARD_WITH_H

#include "record/context.h"

/* The plan of the last list; NULL: none. */
struct rw_backward_recorders *rw_backward_recorders_of(const rw_context *ctx);
void rw_backward_recorders_destroy(rw_context *ctx);

#endif
