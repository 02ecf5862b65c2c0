/*
 * Parameters and buffers, which exist as long as the context. And states: memory of the context, such as an
 * optimizer's, that is neither listed nor saved; ops read and write it like buffers.
 */
#ifndef RW_RECORD_PARAM_H
#define RW_RECORD_PARAM_H

#include "record/node.h"

/* See gradient_state.h. */
enum rw_gradient_state { RW_GRADIENT_CLEAR, RW_GRADIENT_SUM, RW_GRADIENT_SPOILED };

/* Only functions of gradient_state.h read and write it. */
struct rw_gradient {
    struct rw_tensor tensor; /* as rw_gradient() returns it; it has a type of its own */
    void *data;              /* NULL for a buffer, and until a step needs its memory */
    size_t bytes;
    uint64_t unscaled; /* number of the unscaling of the bytes; 0: none */
    uint32_t version;  /* counts changes of the value */
    uint8_t state;     /* enum rw_gradient_state */
    bool shared;       /* a caller has the address */
    bool unused;       /* rw_backward() has added to it, and no update has used it since */
};

#define RW_NAME_MAX 255 /* bytes of a parameter's name */

struct rw_param {
    struct rw_tensor tensor;   /* flags: RW_VALUE_CONTEXT, RW_VALUE_REQUIRES for a parameter */
    uint64_t serial; /* unique to this tensor forever, while its ID is reused after its end */
    struct rw_gradient gradient;
    char *name; /* usually NULL for a state: rw_param_name() */
    void *data;
    bool lent;        /* data is part of another owner's memory */
    const struct rw_param *codes_of;  /* of a state of fp8_weight_cache.h: the weight; else NULL */
    struct rw_kept_codes *kept_codes; /* of a weight: a list, freed with it */
    size_t bytes;
    int64_t numel;
    uint32_t version; /* counts changes of data */
    uint32_t n_optimizers; /* that hold it: see api/optimizer_coverage.h */
    bool is_excluded;      /* rw_optimizer_exclude(): optimizers do not use its gradient */
};

/* The parameter or buffer of a context tensor or of its gradient; NULL for a tape value. */
struct rw_param *rw_param_of(const rw_tensor *x);

/* For messages, never NULL: of a state with kept FP8 data the weight's name, "" for a state without one. */
const char *rw_param_name(const struct rw_param *p);

/* Index of a serial among n ascending ones; RW_NONE_ID if it is not there. */
uint32_t rw_serial_find(const uint64_t *serials, size_t n, uint64_t serial);

/* Creates a state, filled with zeros. NULL without memory, which is not recorded. */
struct rw_param *rw_state_create(rw_context *ctx, rw_dtype dtype, rw_shape shape);
/* The same in device memory that remains the caller's, with its contents. */
struct rw_param *rw_state_at(rw_context *ctx, rw_dtype dtype, rw_shape shape, void *data);
void rw_state_destroy(rw_context *ctx, struct rw_param *p); /* NULL-safe. No cached plan may use it */

/* States whose tensors callers may hold, with a name, which is copied. They are in the creator's memory, which it
   leaves to the context (rw_context_keep()) at the end; then their tensors are stale. Call rw_tapes_miss() and
   rw_kept_codes_drop() before. False without memory, which is not recorded. */
bool rw_state_create_in(struct rw_param *place, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape);
void rw_states_end(rw_context *ctx, struct rw_param *states, size_t n);

/* Rolls back the creation of the latest buffer. No plan may use it. */
void rw_buffer_take_back(rw_context *ctx, struct rw_param *p);

static inline bool rw_param_is_trained(const struct rw_param *p)
{
    return p->tensor.flags & RW_VALUE_REQUIRES;
}

#endif
