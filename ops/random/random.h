/* Random ops and fills. */
#ifndef RW_OPS_RANDOM_H
#define RW_OPS_RANDOM_H

#include <rewind/op.h>

extern const rw_op_def rw_op_dropout;

/* n elements of a float type on the host. Element i comes from word i of the ticket, pairs (2i, 2i + 1) share
   Box-Muller. */
void rw_random_fill_normal(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double mean, double std,
                           int threads);
void rw_random_fill_uniform(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double lo, double hi, int threads);

#endif
