/* Clipping of gradients to a joint norm, as a recorder: for rw_clip_grad_norm(), and at the end of a graph's step. */
#ifndef RW_API_CLIP_H
#define RW_API_CLIP_H

#include "autodiff/targets.h"
#include "record/context.h"

struct rw_clip {
    struct rw_recorder recorder; /* first; inside backward, which runs twice, it notes what the first pass has found */
    struct rw_first_pass pass;   /* of such a backward */
    rw_context *ctx;
    struct rw_param *limit, *norm; /* states: what the norm may be; what it was before */
    double set;                    /* what limit holds */
    bool keeps_nonfinite;          /* gradients whose norm is not finite stay as they are */
    /* Of each gradient before, a state, and a copy of it on the host; whose they are, of the last plan. */
    struct rw_clip_sums {
        struct rw_param *state;
        double *read;
        uint64_t *of; /* a parameter's serial */
        size_t n;
    } sums;
    rw_tensor **squares; /* of a plan in the making, by parameter's id: the sum of its gradient's; NULL: none */
    rw_tensor *factor, *norm_now; /* of the same: what gradients are multiplied by, and the norm */
};

/* For the parameters that there are. RW_ERR_MEMORY, recorded, leaves nothing behind. */
rw_status rw_clip_open(struct rw_clip *c, rw_context *ctx);
void rw_clip_close(struct rw_clip *c);

/* Behind backward. */
struct rw_recorder *rw_clip_recorder(struct rw_clip *c);

/* Around the planning of a step that clips inside backward (rw_request.first), and its recorder. RW_ERR_MEMORY,
   recorded. */
rw_status rw_clip_pass_begin(struct rw_clip *c, struct rw_first_pass **ret);
void rw_clip_pass_end(struct rw_clip *c);
struct rw_recorder *rw_clip_noter(struct rw_clip *c);

/* What the norm may be, of what is queued from now on. */
rw_status rw_clip_set(struct rw_clip *c, double max_norm);

/* It was queued: from now on it is the last one of its context. */
void rw_clip_count(struct rw_clip *c);

/* The last one that was queued, with its sums in sums.read. *ret is NULL where there is none, or it is number *seen,
   which becomes its number. Waits for the device; an error is recorded. */
rw_status rw_clip_read(rw_context *ctx, uint64_t *seen, const struct rw_clip **ret, double *ret_norm);

/* What rw_clip_grad_norm() keeps in its context. */
void rw_clipping_destroy(rw_context *ctx);

#endif
