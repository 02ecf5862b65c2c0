/* Clipping of gradients to a joint norm, as a recorder: for rw_clip_grad_norm(), and at the end of a graph's step. */
#ifndef RW_API_CLIP_H
#define RW_API_CLIP_H

#include "autodiff/targets.h"
#include "record/context.h"

struct rw_clip {
    struct rw_recorder recorder; /* first */
    struct rw_first_pass pass;   /* the same inside backward, which runs twice */
    rw_context *ctx;
    struct rw_param *limit, *norm; /* states: what the norm may be; what it was before */
    double set;                    /* what limit holds */
    rw_tensor **squares; /* of a plan in the making, by parameter's id: the sum of its gradient's; NULL: none */
    rw_tensor *factor;   /* of the same: what gradients are multiplied by */
};

/* RW_ERR_MEMORY, recorded, leaves nothing behind. */
rw_status rw_clip_open(struct rw_clip *c, rw_context *ctx);
void rw_clip_close(struct rw_clip *c);

/* Around the planning of a step that clips inside backward (rw_request.first). RW_ERR_MEMORY, recorded. */
rw_status rw_clip_pass_begin(struct rw_clip *c, struct rw_first_pass **ret);
void rw_clip_pass_end(struct rw_clip *c);

/* What the norm may be, of what is queued from now on. */
rw_status rw_clip_set(struct rw_clip *c, double max_norm);

/* What rw_clip_grad_norm() keeps in its context. */
void rw_clipping_destroy(rw_context *ctx);

#endif
