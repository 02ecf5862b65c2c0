/*
 * The few ops that the library itself records or runs, and what else it asks of the ops that come with it. ops/ fills
 * all of this in; nothing here includes anything of ops/.
 */
#ifndef RW_RECORD_OWN_OPS_H
#define RW_RECORD_OWN_OPS_H

#include <rewind/op.h>

/* A dense copy: what recording puts before an op that cannot take a strided input. */
extern const rw_op_def rw_op_contiguous;

/* A tensor of one value: what differentiation begins with. */
rw_tensor *rw_fill_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, double value);

/* sum + term, over either when it dies: how differentiation adds contributions. */
rw_tensor *rw_accumulate_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *term);

/* n elements of a float type into host memory: what rw_init_normal() and rw_init_uniform() upload. Element i comes from
   word i of the ticket, pairs (2i, 2i + 1) share Box-Muller. */
void rw_random_fill_normal(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double mean, double std,
                           int threads);
void rw_random_fill_uniform(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double lo, double hi,
                            int threads);

/* The bytes of all operands, each read or written once: what an op costs that does not say. */
double rw_cost_bytes(const rw_op_call *call);

/* True for an op that a function of rewind/ops.h records; not for what only gradient rules record. */
bool rw_op_is_builtin(const char *name);

#endif
