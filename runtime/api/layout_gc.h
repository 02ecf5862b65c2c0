/* Frees unused layouts in the context's table, because a program may use new shapes in every step. */
#ifndef RW_API_LAYOUT_GC_H
#define RW_API_LAYOUT_GC_H

#include "record/tape.h"

/* Sweeps the table if it is due. leaving: a tape whose values are about to be dropped. */
void rw_layout_gc(rw_context *ctx, const rw_tape *leaving);

#endif
