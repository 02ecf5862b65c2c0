/* Random numbers in host memory. ops/random implements them. */
#ifndef RW_OPS_RANDOM_RANDOM_FILL_H
#define RW_OPS_RANDOM_RANDOM_FILL_H

#include <rewind/op.h>

/* Generates n elements of a floating-point type in host memory, which rw_init_normal() and rw_init_uniform() upload.
   Element i uses word i of the ticket; pairs (2i, 2i + 1) share Box-Muller. */
void rw_random_fill_normal(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double mean, double std,
                           int threads);
void rw_random_fill_uniform(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double lo, double hi, int threads);

#endif
