/* Clipping of gradients to a joint norm, as a recorder of rw_clip_grad_norm() and of lists, and its results. */
#ifndef RW_API_CLIP_GRAD_NORM_H
#define RW_API_CLIP_GRAD_NORM_H

#include "autodiff/requested_outputs.h"
#include "record/context.h"

struct rw_clip {
    struct rw_step_recorder recorder; /* must be first */
    rw_context *ctx;
    struct rw_param *limit, *norm; /* states: the maximum norm; the norm before clipping */
    double set;                    /* present contents of limit */
    bool keeps_nonfinite;          /* gradients with a norm that is not finite are not changed */
    /* Per gradient: a state, and its copy on the host; the parameters they belong to, for the last plan. */
    struct rw_clip_sums {
        struct rw_param *state;
        double *read;
        uint64_t *of; /* a parameter's serial */
        size_t n;
    } sums;
    rw_tensor **squares; /* while planning, by parameter's id: the sum of squares of its gradient; NULL: none */
    rw_tensor *factor, *norm_now; /* likewise: the factor for gradients, and the norm */
};

/* How many clippings the context has queued. */
uint64_t rw_clip_number(const rw_context *ctx);

/* Reads the last clipping that was queued, with its sums in sums.read. *ret is NULL if there is none, or if its number
   is *seen, which becomes its number. Waits for the device; an error is recorded. */
rw_status rw_clip_read(rw_context *ctx, uint64_t *seen, const struct rw_clip **ret, double *ret_norm);

/* Frees what rw_clip_grad_norm() keeps in its context. */
void rw_clipping_destroy(rw_context *ctx);

#endif
