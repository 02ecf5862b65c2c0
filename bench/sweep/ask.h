/* Questions that plans alone answer. */
#ifndef REWIND_BENCH_SWEEP_ASK_H
#define REWIND_BENCH_SWEEP_ASK_H

#include "sweep/sweep.h"

/* The largest batch, or sequence, that fits into o->fit bytes under each policy; then one step of it, to prove it; last
   under which of them it is largest. False where a step is not what was predicted, or nothing fits under any. */
bool sweep_fit(const struct sweep_options *o, const struct sweep_text *text);

/* What fills memory under each policy, what would help, what it grows with. */
bool sweep_advise(const struct sweep_options *o);

#endif
