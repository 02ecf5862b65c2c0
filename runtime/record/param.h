/*
 * Parameters and buffers: what lives as long as the context. And states: memory of the context, an optimizer's, that is
 * neither listed nor saved; ops read and write it as they do buffers.
 */
#ifndef RW_RECORD_PARAM_H
#define RW_RECORD_PARAM_H

#include "record/node.h"

#define RW_NAME_MAX 255 /* bytes of a parameter's name */

struct rw_param {
    struct rw_tensor tensor;   /* flags: RW_VALUE_CONTEXT, RW_VALUE_REQUIRES for a parameter */
    uint64_t serial; /* of this tensor alone, for good: its id is given to another when it goes */
    struct rw_tensor gradient; /* what rw_gradient() hands out: of a type of its own */
    char *name; /* NULL for a state, as a rule: rw_param_name() */
    void *data;
    void *grad;       /* NULL for a buffer, and where it has no memory now; its bytes mean nothing while grad_clear */
    bool lent;        /* data is part of somebody else's memory */
    const struct rw_param *codes_of;  /* of a state of kept_codes.h: the weight; else NULL */
    struct rw_kept_codes *kept_codes; /* of a weight: a list, which goes with it */
    bool grad_clear;  /* the gradient is zero without having been written */
    bool grad_spoiled; /* a backward that was adding to it failed half-way: not to be used until it is cleared */
    size_t bytes, grad_bytes;
    int64_t numel;
    uint32_t version; /* counts changes of data */
};

/* The parameter or buffer behind a context tensor (or behind its gradient), NULL for a tape value. */
struct rw_param *rw_param_of(const rw_tensor *x);

/* For messages, never NULL: of a kept state the weight's, "" of a state without one. */
const char *rw_param_name(const struct rw_param *p);

/* The index of a serial among n that rise; RW_NONE_ID where it is not there. */
uint32_t rw_serial_find(const uint64_t *serials, size_t n, uint64_t serial);

/* A new state, zero. NULL without memory, which is not recorded. */
struct rw_param *rw_state_create(rw_context *ctx, rw_dtype dtype, rw_shape shape);
/* The same in memory of the device's that stays the caller's, whatever is in it. */
struct rw_param *rw_state_at(rw_context *ctx, rw_dtype dtype, rw_shape shape, void *data);
void rw_state_destroy(rw_context *ctx, struct rw_param *p); /* NULL-safe. No plan that is kept may name it */

/* States that callers hold the tensors of, with a name, which is copied: in memory of the maker's, which leaves it to
   the context (rw_context_keep()) when they end. Their tensors say from then on that they are gone; before that,
   rw_tapes_miss() and rw_kept_codes_drop(). False without memory, which is not recorded. */
bool rw_state_create_in(struct rw_param *place, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape);
void rw_states_end(rw_context *ctx, struct rw_param *states, size_t n);

/* The buffer that was made last, as if it had not been. No plan may name it. */
void rw_buffer_take_back(rw_context *ctx, struct rw_param *p);

static inline bool rw_param_is_trained(const struct rw_param *p)
{
    return p->tensor.flags & RW_VALUE_REQUIRES;
}

/*
 * A step that uses up a gradient inside itself needs no memory for it: that is given up, and the gradient is clear.
 * Whoever writes to it after all makes room before: RW_ERR_MEMORY, recorded, has changed nothing. The room that a
 * gradient begins with is there when its parameter is.
 */
void rw_gradient_give_up(rw_context *ctx, struct rw_param *p);
rw_status rw_gradient_room(rw_context *ctx, struct rw_param *p, const char *what);

/* An error when the gradient is spoiled; in the second form when any of the context is. what names the call. */
rw_status rw_gradient_check(rw_context *ctx, const struct rw_param *p, const char *what);
rw_status rw_gradients_check(rw_context *ctx, const char *what);

#endif
