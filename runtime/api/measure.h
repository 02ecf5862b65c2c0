/* What measuring in the caller's steps (measure.c) and in the library's own (ceilings.c) share. */
#ifndef RW_API_MEASURE_H
#define RW_API_MEASURE_H

#include "autodiff/costs.h"

/* What a byte beyond the caches takes: as the context knows it, or measured where it may be asked. */
void rw_costs_price_memory(const rw_context *ctx, struct rw_costs *costs, bool may_ask);

#endif
