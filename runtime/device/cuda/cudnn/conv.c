/* cuDNN's convolutions: pinning and execution. */
#include "device/cuda/cudnn/conv.h"

#include "device/cuda/cudnn/conv_graph.h"
#include "device/cuda/cudnn/int32_batch_split.h"
#include "device/cuda/cudnn/execution_plan_cache.h"

#include "base/alloc.h"
#include "base/element_size.h"

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

/* ---- parts of the batch: of equal extent, except the last one ---- */

static struct rw_dnn_conv_signature part_of(const struct rw_dnn_conv_signature *s, int64_t images)
{
    struct rw_dnn_conv_signature r = *s;
    r.n = images;
    return r;
}

static int64_t last_images(const struct rw_dnn_conv_signature *s, int64_t part)
{
    return s->n % part ? s->n % part : part;
}

static const struct rw_dnn_pin *pinned(const struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s,
                                       int64_t images)
{
    const struct rw_dnn_conv_signature part = part_of(s, images);
    return rw_dnn_pinned(&conv->pins, &part);
}

bool rw_dnn_conv_has(const struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, size_t *ret_workspace)
{
    const int64_t part = rw_dnn_conv_part(s, conv->pins.cuda->max_count);
    if (!part) return false;
    const struct rw_dnn_pin *const first = pinned(conv, s, part), *const last = pinned(conv, s, last_images(s, part));
    if (!first || !last) return false;
    const bool first_is_larger = first->plan.workspace > last->plan.workspace;
    *ret_workspace = rw_dnn_aligned((first_is_larger ? first : last)->plan.workspace);
    return true;
}

rw_status rw_dnn_conv_query(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, bool *ret_has,
                            size_t *ret_workspace)
{
    const int64_t part = rw_dnn_conv_part(s, conv->pins.cuda->max_count);
    *ret_has = false;
    if (!part) return RW_OK;
    const struct rw_dnn_conv_signature first = part_of(s, part), last = part_of(s, last_images(s, part));
    rw_status status = rw_dnn_pin(&conv->pins, &first, plan_names[s->kind]);
    if (!status) status = rw_dnn_pin(&conv->pins, &last, plan_names[s->kind]);
    if (status) return status;
    *ret_has = rw_dnn_conv_has(conv, s, ret_workspace);
    return RW_OK;
}

/* So many images, from one on. */
static rw_status run_part(const struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, int64_t from,
                          int64_t images, void *const *operands, void *workspace, size_t workspace_bytes)
{
    const int64_t ids[] = { RW_DNN_CONV_X, RW_DNN_CONV_W, RW_DNN_CONV_Y, RW_DNN_CONV_BIAS };
    const int64_t size = (int64_t)rw_element_size(s->dtype);
    void *const addresses[] = { (char *)operands[0] + from * s->h * s->w * s->c * size, operands[1],
                                (char *)operands[2] + from * s->oh * s->ow * s->oc * size, operands[3] };
    const struct rw_dnn_pins *const p = &conv->pins;
    const struct rw_dnn_pin *const pin = pinned(conv, s, images);
    if (!pin || workspace_bytes < pin->plan.workspace)
        return rw_cuda_fail(p->cuda, RW_ERR_DEVICE, "cuDNN: %s: the plan gave too little workspace", names[s->kind]);
    const cudnnStatus_t queued = rw_dnn_execute(&p->dnn, &pin->plan, s->bias ? 4 : 3, ids, addresses, workspace);
    return rw_cudnn_status(&p->dnn, p->cuda, queued, names[s->kind]);
}

rw_status rw_dnn_conv_run(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, const void *x, const void *w,
                          const void *y, const void *bias, void *workspace, size_t workspace_bytes)
{
    void *const operands[] = { (void *)x, (void *)w, (void *)y, (void *)bias };
    const int64_t part = rw_dnn_conv_part(s, conv->pins.cuda->max_count);
    rw_status status = part ? RW_OK : RW_ERR_UNSUPPORTED;
    for (int64_t from = 0; from < s->n && !status; from += part) {
        const int64_t images = s->n - from < part ? s->n - from : part;
        status = run_part(conv, s, from, images, operands, workspace, workspace_bytes);
    }
    return status;
}
