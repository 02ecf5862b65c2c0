/*
 * The gradient of a parameter: one state, and a count of its changes. Every reader and writer goes through this file.
 *
 *             backward, rw_write() or rw_tensor_data() writes         a backward fails while it adds
 *      CLEAR ------------------------------------------------> SUM ----------------------------------> SPOILED
 *        ^                                                      |                                         |
 *        +------------------------------------------------------+-----------------------------------------+
 *                                          rw_zero_grad()
 *
 *   clear    all zero, and nothing is stored: the first backward writes where later ones add. It may have no memory.
 *   sum      the bytes are the gradient.
 *   spoiled  a part of a backward that failed while it added: an error for every reader, until rw_zero_grad().
 *
 * Beside the state:
 *   shared    a caller has the address and may write there at any time. Such a gradient is never clear: rw_zero_grad()
 *             stores zeros, and its memory stays where it is.
 *   unscaled  the number of the unscaling that the bytes went through, 0 for none since they were clear. So "unscaled"
 *             ends where the gradients end. What a caller writes has the scale that the gradients of the context have
 *             at that time (struct rw_gradient_scale).
 *   version   goes up with every change of the value. A tape that has read the gradient compares it (run/sources.c).
 */
#ifndef RW_RECORD_GRADIENT_H
#define RW_RECORD_GRADIENT_H

#include "record/param.h"

static inline bool rw_gradient_is_clear(const struct rw_gradient *g)
{
    return g->state == RW_GRADIENT_CLEAR;
}

/* ---- reading ---- */

/* RW_ERR_CHANGED, recorded, when the gradient is spoiled; in the second form when any of the context is. */
rw_status rw_gradient_check(rw_context *ctx, const struct rw_param *p, const char *what);
rw_status rw_gradients_check(rw_context *ctx, const char *what);

/* The bytes of a gradient for reading: *ret is NULL where it is clear, and so zero. Errors as rw_gradient_check(). */
rw_status rw_gradient_read(rw_context *ctx, const struct rw_param *p, const char *what, const void **ret);

/* For a reader that needs bytes: stores zeros where the gradient is clear, and so it stays. RW_ERR_MEMORY, recorded. */
rw_status rw_gradient_store(rw_context *ctx, struct rw_param *p, const char *what);

/* ---- writing ---- */

/* Memory for what is about to be written. RW_ERR_MEMORY, recorded, has changed nothing. */
rw_status rw_gradient_room(rw_context *ctx, struct rw_param *p, const char *what);

/* A step has written it, or is about to. */
void rw_gradient_written(struct rw_gradient *g);

/* The same of what a caller writes. */
void rw_gradient_given(rw_context *ctx, struct rw_gradient *g);

/* What was written failed half-way. A clear one stays clear: nobody reads what was written. */
void rw_gradient_spoil(struct rw_gradient *g);

/* A step that used it up inside itself has written nothing: it is zero, as it was when the step began. */
void rw_gradient_used_up(struct rw_gradient *g);

/* All gradients of the context were changed in place. */
void rw_gradients_changed(rw_context *ctx);

/* Frees the memory of a clear one that is not shared. */
void rw_gradient_give_up(rw_context *ctx, struct rw_param *p);

/* Has it memory that could be given up? */
static inline bool rw_gradient_can_give_up(const struct rw_gradient *g)
{
    return g->data && !g->shared;
}

/* Its address, for a caller: from now on it is shared. NULL with an error that names the call. */
void *rw_gradient_share(rw_context *ctx, struct rw_param *p, const char *what);

/* ---- what waits for an update ---- */

/* rw_backward() has added to the gradient; a step of an optimizer that holds the parameter has used it. Gradients that
   a launch or the caller wrote do not wait for an update. */
static inline void rw_gradient_added(struct rw_gradient *g)
{
    g->unused = true;
}

static inline void rw_gradient_used(struct rw_gradient *g)
{
    g->unused = false;
}

/* The first parameter whose gradient waits, NULL for none. */
const struct rw_param *rw_gradient_unused(const rw_context *ctx);

/* ---- the scale ---- */

/* May a backward add to it? RW_ERR_CHANGED, recorded, where it has been unscaled. */
rw_status rw_gradient_check_sum(rw_context *ctx, const struct rw_param *p, const char *what);

/* Backward is about to multiply by the number in a scaler's buffer, or a scaler to divide by it: RW_ERR_CHANGED,
   recorded, where gradients were multiplied by another. */
rw_status rw_gradients_check_scale(rw_context *ctx, const struct rw_param *buffer, const char *what);

/* It has multiplied. */
void rw_gradients_scaled(rw_context *ctx, const struct rw_param *buffer);

/* The unscaling that all gradients which are not clear went through, 0 for none: *ret, untouched where all are clear.
   RW_ERR_CHANGED, recorded, where some went through another than the rest. */
rw_status rw_gradients_unscaling(rw_context *ctx, const char *what, uint64_t *ret);

/* They have been divided; returns the number of this unscaling, never 0. What callers write from now on is unscaled,
   until a scaler's update ends that, or rw_zero_grad(). */
uint64_t rw_gradients_unscaled(rw_context *ctx);
void rw_gradients_unscaled_end(rw_context *ctx, uint64_t unscaling);

#endif
