/* cuDNN's convolutions: what is pinned, and runs. See conv.h. */
#include "device/cuda/cudnn/conv.h"

#include "device/cuda/cudnn/conv_graph.h"
#include "device/cuda/cudnn/pins.h"

#include "base/alloc.h"

struct rw_dnn_conv {
    struct rw_dnn_pins pins;
};

static const char *const names[] = { "a convolution", "a convolution's backward of data",
                                     "a convolution's backward of weights" };
static const char *const plan_names[] = { "the plan of a convolution", "the plan of a convolution's backward of data",
                                          "the plan of a convolution's backward of weights" };

static cudnnStatus_t build(const struct rw_dnn_pins *p, const void *signature, struct rw_dnn_pin *pin)
{
    return rw_dnn_conv_build(&p->dnn, signature, p->cuda->tf32, RW_DNN_CONV_WORKSPACE_LIMIT, &pin->plan);
}

rw_status rw_dnn_conv_create(struct rw_dnn_conv **ret, struct rw_cuda *cuda)
{
    struct rw_dnn_conv *const conv = rw_calloc(1, sizeof *conv);
    if (!conv) return RW_ERR_MEMORY;
    rw_dnn_pins_init(&conv->pins, cuda, "REWIND_CONV", sizeof(struct rw_dnn_conv_signature), build);
    *ret = conv;
    return RW_OK;
}

void rw_dnn_conv_destroy(struct rw_dnn_conv **conv)
{
    if (!*conv) return;
    rw_dnn_pins_finish(&(*conv)->pins);
    rw_free(*conv);
    *conv = NULL;
}

bool rw_dnn_conv_has(const struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, size_t *ret_workspace)
{
    const struct rw_dnn_pin *const pin = rw_dnn_pinned(&conv->pins, s);
    if (pin) *ret_workspace = rw_dnn_aligned(pin->plan.workspace);
    return pin != NULL;
}

rw_status rw_dnn_conv_query(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, bool *ret_has,
                            size_t *ret_workspace)
{
    const rw_status status = rw_dnn_pin(&conv->pins, s, plan_names[s->kind]);
    if (status) return status;
    *ret_has = rw_dnn_conv_has(conv, s, ret_workspace);
    return RW_OK;
}

rw_status rw_dnn_conv_run(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, const void *x, const void *w,
                          const void *y, const void *bias, void *workspace, size_t workspace_bytes)
{
    const int64_t ids[] = { RW_DNN_CONV_X, RW_DNN_CONV_W, RW_DNN_CONV_Y, RW_DNN_CONV_BIAS };
    void *const addresses[] = { (void *)x, (void *)w, (void *)y, (void *)bias };
    const struct rw_dnn_pins *const p = &conv->pins;
    const struct rw_dnn_pin *const pin = rw_dnn_pinned(p, s);
    if (!pin || workspace_bytes < pin->plan.workspace)
        return rw_cuda_fail(p->cuda, RW_ERR_DEVICE, "cuDNN: %s: the plan gave too little workspace", names[s->kind]);
    const cudnnStatus_t queued = rw_dnn_execute(&p->dnn, &pin->plan, s->bias ? 4 : 3, ids, addresses, workspace);
    return rw_cudnn_status(&p->dnn, p->cuda, queued, names[s->kind]);
}
