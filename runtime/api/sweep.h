/* Layouts that nobody uses any more make room in their table: a program may meet new shapes in every step. */
#ifndef RW_API_SWEEP_H
#define RW_API_SWEEP_H

#include "record/tape.h"

/* When it is time. leaving: a tape whose values are about to go. */
void rw_sweep_layouts(rw_context *ctx, const rw_tape *leaving);

#endif
