/*
 * The gradient of a parameter: one state, and a version. All reads and writes use this file.
 *
 *             backward, rw_write() or rw_tensor_data() writes         a backward fails while it adds
 *      CLEAR ------------------------------------------------> SUM ----------------------------------> SPOILED
 *        ^                                                      |                                         |
 *        +------------------------------------------------------+-----------------------------------------+
 *                                          rw_zero_grad()
 *
 *   clear    all zero, and nothing is stored: the first backward writes where later ones add. It may have no memory.
 *   sum      the bytes are the gradient.
 *   spoiled  contains part of a backward that failed while it added: an error for every reader, until rw_zero_grad().
 *
 * In addition to the state:
 *   shared    a caller has the address and may write at any time. Such a gradient is never clear: rw_zero_grad() stores
 *             zeros, and its memory stays.
 *   unscaled  number of the unscaling that the bytes went through, 0 for none since they were clear. So "unscaled" ends
 *             when the gradients are cleared. What a caller writes has the scale that the gradients of the context have
 *             at that time.
 *   version   increases with every change of the value. A tape that has read the gradient compares it
 *             (run/source_addresses.c).
 */
#ifndef RW_RECORD_GRADIENT_STATE_H
#define RW_RECORD_GRADIENT_STATE_H

#include "record/param.h"

/* Call when a context is created: the scale of its gradients. RW_ERR_MEMORY, not recorded. */
rw_status rw_gradients_open(rw_context *ctx);

static inline bool rw_gradient_is_clear(const struct rw_gradient *g)
{
    return g->state == RW_GRADIENT_CLEAR;
}

/* ---- reading ---- */

/* RW_ERR_MODIFIED, recorded, if the gradient is spoiled; the second form checks all gradients of the context. */
rw_status rw_gradient_check(rw_context *ctx, const struct rw_param *p, const char *what);
rw_status rw_gradients_check(rw_context *ctx, const char *what);

/* Returns the bytes of a gradient for reading; *ret is NULL if it is clear, and so zero. Errors as
   rw_gradient_check(). */
rw_status rw_gradient_read(rw_context *ctx, const struct rw_param *p, const char *what, const void **ret);

/* For a reader that needs bytes: stores zeros if the gradient is clear; its state stays clear. RW_ERR_MEMORY,
   recorded. */
rw_status rw_gradient_store(rw_context *ctx, struct rw_param *p, const char *what);

/* ---- writing ---- */

/* Allocates memory for a write. On failure, RW_ERR_MEMORY, recorded, nothing has changed. */
rw_status rw_gradient_room(rw_context *ctx, struct rw_param *p, const char *what);

/* A step has written it, or is about to. */
void rw_gradient_written(struct rw_gradient *g);

/* The same for a write by a caller. */
void rw_gradient_given(rw_context *ctx, struct rw_gradient *g);

/* A write has failed. A clear gradient stays clear, because nothing reads what was written. */
void rw_gradient_spoil(struct rw_gradient *g);

/* A step has consumed it (fused update) and has written nothing: it is zero, as it was when the step began. */
void rw_gradient_used_up(struct rw_gradient *g);

/* All gradients of the context were changed in place. */
void rw_gradients_changed(rw_context *ctx);

/* Frees the memory of a clear one that is not shared. */
void rw_gradient_give_up(rw_context *ctx, struct rw_param *p);

/* Does it have memory that could be freed? */
static inline bool rw_gradient_can_give_up(const struct rw_gradient *g)
{
    return g->data && !g->shared;
}

/* Returns its address to a caller, which makes it shared. NULL with an error that names the call. */
void *rw_gradient_share(rw_context *ctx, struct rw_param *p, const char *what);

/* ---- gradients that an update has not used yet ---- */

/* rw_backward() has added to the gradient; a step of an optimizer with the parameter has used it. Gradients that a
   launch or the caller wrote do not count. */
static inline void rw_gradient_added(struct rw_gradient *g)
{
    g->unused = true;
}

static inline void rw_gradient_used(struct rw_gradient *g)
{
    g->unused = false;
}

/* The first parameter with such a gradient, NULL for none. */
const struct rw_param *rw_gradient_unused(const rw_context *ctx);

/* ---- the scale ---- */

/* May a backward add to it? RW_ERR_MODIFIED, recorded, if it is unscaled. */
rw_status rw_gradient_check_sum(rw_context *ctx, const struct rw_param *p, const char *what);

/* Call before backward multiplies by the number in a scaler's buffer, or a scaler divides by it: RW_ERR_MODIFIED,
   recorded, if the gradients have another scale. */
rw_status rw_gradients_check_scale(rw_context *ctx, const struct rw_param *buffer, const char *what);

/* Call before anything uses the gradients as they are: RW_ERR_MODIFIED, recorded, if backward multiplied some by a
   scale and no scaler has divided by it. */
rw_status rw_gradients_check_unscaled(rw_context *ctx, const char *what);

/* It has multiplied. */
void rw_gradients_scaled(rw_context *ctx, const struct rw_param *buffer);

/* Gets the unscaling that all gradients which are not clear went through, 0 for none; *ret is untouched if all are
   clear. RW_ERR_MODIFIED, recorded, if they differ. */
rw_status rw_gradients_unscaling(rw_context *ctx, const char *what, uint64_t *ret);

/* Records that they were divided; returns the number of this unscaling, never 0. Later writes of callers count as
   unscaled, until a scaler's update or rw_zero_grad(). */
uint64_t rw_gradients_unscaled(rw_context *ctx);
void rw_gradients_unscaled_end(rw_context *ctx, uint64_t unscaling);

#endif
