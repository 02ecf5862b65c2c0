/* Memory costs, for measurements in the caller's steps (profile_ops.c) and in the library's own (calibrate_costs.c). */
#ifndef RW_API_PROFILE_OPS_H
#define RW_API_PROFILE_OPS_H

#include "autodiff/costs.h"

/* The cost of a byte that misses the caches. The first: as in the context's costs, for its present number of threads.
   The second: as its device measures it, in 0.25 seconds. No picoseconds: unknown. */
struct rw_memory_cost rw_costs_known_memory(const rw_context *ctx);
struct rw_memory_cost rw_costs_measure_memory(const rw_context *ctx);

#endif
