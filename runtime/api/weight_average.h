/* A moving average of the weights, for code that saves and restores it. */
#ifndef RW_API_WEIGHT_AVERAGE_H
#define RW_API_WEIGHT_AVERAGE_H

#include "base/weak_refs.h"
#include "record/context.h"
#include "record/param.h"

#include <rewind/weight_average.h>

/* A cache that refers to the average is notified when it is destroyed, while its states still exist. */
void rw_average_depend(rw_weight_average *average, struct rw_dependent *d, void (*gone)(struct rw_dependent *d));

rw_context *rw_average_context(const rw_weight_average *average);
size_t rw_average_members(const rw_weight_average *average);
struct rw_param *rw_average_param(const rw_weight_average *average, size_t i);
struct rw_param *rw_average_state(const rw_weight_average *average, size_t i);

#endif
