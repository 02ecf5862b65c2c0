/* A moving average of the weights, for who saves and restores it. */
#ifndef RW_API_AVERAGE_H
#define RW_API_AVERAGE_H

#include "base/dependent.h"
#include "record/context.h"
#include "record/param.h"

#include <rewind/average.h>

/* A cache that names the averages is told when they are destroyed, while they are still there. */
void rw_average_depend(rw_average *average, struct rw_dependent *d, void (*gone)(struct rw_dependent *d));

rw_context *rw_average_context(const rw_average *average);
size_t rw_average_members(const rw_average *average);
struct rw_param *rw_average_param(const rw_average *average, size_t i);
struct rw_param *rw_average_state(const rw_average *average, size_t i);

#endif
