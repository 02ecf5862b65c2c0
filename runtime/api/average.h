/* A moving average of the weights, for who saves and restores it. */
#ifndef RW_API_AVERAGE_H
#define RW_API_AVERAGE_H

#include "record/context.h"
#include "record/param.h"

#include <rewind/average.h>

/* Whoever shares it has it until it is released; the last one frees it. */
void rw_average_share(rw_average *average);
void rw_average_release(rw_average *average);

rw_context *rw_average_context(const rw_average *average);
size_t rw_average_members(const rw_average *average);
struct rw_param *rw_average_param(const rw_average *average, size_t i);
struct rw_param *rw_average_state(const rw_average *average, size_t i);

#endif
