/*
 * Parameters and buffers: what lives as long as the context. And states: memory of the context, an optimizer's, that is
 * neither listed nor saved; ops read and write it as they do buffers.
 */
#ifndef RW_RECORD_PARAM_H
#define RW_RECORD_PARAM_H

#include "record/node.h"

/* See gradient.h. */
enum rw_gradient_state { RW_GRADIENT_CLEAR, RW_GRADIENT_SUM, RW_GRADIENT_SPOILED };

/* Read and written by the functions of gradient.h alone. */
struct rw_gradient {
    struct rw_tensor tensor; /* what rw_gradient() returns: of a type of its own */
    void *data;              /* NULL for a buffer, and while no step needs its memory */
    size_t bytes;
    uint64_t unscaled; /* number of the unscaling that the bytes went through; 0: none */
    uint32_t version;  /* counts changes of the value */
    uint8_t state;     /* enum rw_gradient_state */
    bool shared;       /* a caller has the address */
    bool unused;       /* rw_backward() has added to it, and since then no update has used it and nothing cleared it */
};

#define RW_NAME_MAX 255 /* bytes of a parameter's name */

struct rw_param {
    struct rw_tensor tensor;   /* flags: RW_VALUE_CONTEXT, RW_VALUE_REQUIRES for a parameter */
    uint64_t serial; /* of this tensor alone, for good: its id is given to another when it goes */
    struct rw_gradient gradient;
    char *name; /* NULL for a state, as a rule: rw_param_name() */
    void *data;
    bool lent;        /* data is part of somebody else's memory */
    const struct rw_param *codes_of;  /* of a state of kept_codes.h: the weight; else NULL */
    struct rw_kept_codes *kept_codes; /* of a weight: a list, which goes with it */
    size_t bytes;
    int64_t numel;
    uint32_t version; /* counts changes of data */
    uint32_t n_optimizers; /* that hold it: see api/held.h */
    bool is_excluded;      /* rw_optimizer_exclude(): optimizers leave its gradient to the program */
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

#endif
