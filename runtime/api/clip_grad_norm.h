/* Clipping of gradients to a joint norm, as a recorder: for rw_clip_grad_norm(), and at the end of a graph's step. */
#ifndef RW_API_CLIP_GRAD_NORM_H
#define RW_API_CLIP_GRAD_NORM_H

#include "autodiff/requested_outputs.h"
#include "record/context.h"

struct rw_clip {
    struct rw_recorder recorder; /* must be first; inside backward it stores what the first pass has found */
    struct rw_first_pass pass;   /* of such a backward */
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

/* Opens a clipping of the current parameters. RW_ERR_MEMORY, recorded; then nothing is allocated. */
rw_status rw_clip_open(struct rw_clip *c, rw_context *ctx);
void rw_clip_close(struct rw_clip *c);

/* The recorder for clipping after backward. */
struct rw_recorder *rw_clip_recorder(struct rw_clip *c);

/* Call these before and after planning a step that clips inside backward (rw_request.first), and its recorder.
   RW_ERR_MEMORY, recorded. */
rw_status rw_clip_pass_begin(struct rw_clip *c, struct rw_first_pass **ret);
void rw_clip_pass_end(struct rw_clip *c);
struct rw_recorder *rw_clip_noter(struct rw_clip *c);

/* Sets the maximum norm for work that is queued from now on. */
rw_status rw_clip_set(struct rw_clip *c, double max_norm);

/* The clipping was queued, and is now the last one of its context. */
void rw_clip_count(struct rw_clip *c);

/* Reads the last clipping that was queued, with its sums in sums.read. *ret is NULL if there is none, or if its number
   is *seen, which becomes its number. Waits for the device; an error is recorded. */
rw_status rw_clip_read(rw_context *ctx, uint64_t *seen, const struct rw_clip **ret, double *ret_norm);

/* Frees what rw_clip_grad_norm() keeps in its context. */
void rw_clipping_destroy(rw_context *ctx);

#endif
