/* What measuring in the caller's steps (measure.c) and in the library's own (ceilings.c) share. */
#ifndef RW_API_MEASURE_H
#define RW_API_MEASURE_H

#include "autodiff/costs.h"

/* What a byte beyond the caches takes: as the context's costs have it, for as many threads as it has now; and as its
   device says when it is asked, for a quarter of a second. No picoseconds: nothing is known. */
struct rw_memory_cost rw_costs_known_memory(const rw_context *ctx);
struct rw_memory_cost rw_costs_ask_memory(const rw_context *ctx);

#endif
