/*
 * cuDNN's attention as an implementation of the op, on CUDA: does it take a call, with how much workspace, and the run.
 * The answer follows from the call alone, so it is the same in forward and replay. C11 and C++17.
 */
#ifndef RW_OPS_ATTENTION_CUDNN_H
#define RW_OPS_ATTENTION_CUDNN_H

#include "device/cuda/sdpa.h"
#include "ops/attention/attention.h"

/* sdpa is NULL where the op's own kernels do the work. */
struct rw_att_cudnn {
    struct rw_sdpa *sdpa;
    struct rw_sdpa_signature signature;
    size_t workspace;
};

/* in: the layouts of q, k, v, and of the backward's o and dy, NULL in the forward. */
static inline rw_status rw_att_cudnn_of(struct rw_att_cudnn *ret, void *device, rw_dtype dtype,
                                        const rw_layout *const *in, const struct rw_attention_attrs *a)
{
    struct rw_sdpa *const sdpa = rw_sdpa_of((struct rw_cuda *)device);
    bool has = false;
    ret->sdpa = NULL;
    ret->workspace = 0;
    if (!sdpa || !rw_sdpa_describe(&ret->signature, dtype, in[0], in[1], in[2], in[3], in[4], a->scale, a->causal != 0,
                                   a->dropout))
        return RW_OK;
    const rw_status status = rw_sdpa_query(sdpa, &ret->signature, &has, &ret->workspace);
    if (has) ret->sdpa = sdpa;
    return status;
}

static inline rw_status rw_att_cudnn_of_kernel(struct rw_att_cudnn *ret, const rw_kernel *k)
{
    const bool backward = k->n_inputs > 3;
    const rw_layout *const in[] = { k->in[0].layout, k->in[1].layout, k->in[2].layout,
                                    backward ? k->in[3].layout : NULL, backward ? k->in[5].layout : NULL };
    return rw_att_cudnn_of(ret, k->device, k->out[0].dtype, in, (const struct rw_attention_attrs *)k->attrs);
}

/* A failure gives 0: it comes again, and is reported, when the kernel runs. */
static inline struct rw_att_cudnn rw_att_cudnn_of_call(void *device, const rw_op_call *call)
{
    const bool backward = call->n_inputs > 3;
    const rw_layout *const in[] = { call->in[0].layout, call->in[1].layout, call->in[2].layout,
                                    backward ? call->in[3].layout : NULL, backward ? call->in[5].layout : NULL };
    struct rw_att_cudnn c;
    if (rw_att_cudnn_of(&c, device, call->in[0].dtype, in, (const struct rw_attention_attrs *)call->attrs))
        c.sdpa = NULL;
    return c;
}

static inline rw_status rw_att_cudnn_forward(const struct rw_att_cudnn *c, const rw_kernel *k)
{
    return rw_sdpa_forward(c->sdpa, &c->signature, k->in[0].data, k->in[1].data, k->in[2].data, k->out[0].data,
                           k->out[1].data, k->workspace, k->workspace_bytes);
}

static inline rw_status rw_att_cudnn_backward(const struct rw_att_cudnn *c, const rw_kernel *k)
{
    return rw_sdpa_backward(c->sdpa, &c->signature, k->in[0].data, k->in[1].data, k->in[2].data, k->in[3].data,
                            k->in[4].data, k->in[5].data, k->out[0].data, k->out[1].data, k->out[2].data, k->workspace,
                            k->workspace_bytes);
}

#endif
