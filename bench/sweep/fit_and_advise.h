/* Questions that are answered from plans only. */
#ifndef REWIND_BENCH_SWEEP_FIT_AND_ADVISE_H
#define REWIND_BENCH_SWEEP_FIT_AND_ADVISE_H

#include "sweep/sweep_structs.h"

/* The largest batch, or sequence, that fits into o->fit bytes under each policy; then runs one step of it as a proof;
   last the policies for which it is largest. False if a step differs from its prediction, or nothing fits under any
   policy. */
bool sweep_fit(const struct sweep_options *o, const struct sweep_text *text);

/* Prints what fills memory under each policy, what would reduce it, and how it grows. */
bool sweep_advise(const struct sweep_options *o);

#endif
