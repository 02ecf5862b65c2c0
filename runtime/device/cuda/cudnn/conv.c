/* cuDNN's convolutions: the table of pinned plans, and runs. See conv.h. */
#include "device/cuda/cudnn/conv.h"

#include "device/cuda/cudnn/conv_graph.h"
#include "device/cuda/current.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#define WORKSPACE_ALIGN 256

struct entry {
    struct rw_dnn_conv_signature signature;
    struct rw_dnn_plan plan; /* .plan is NULL where there is no engine */
    struct entry *next;
};

struct rw_dnn_conv {
    struct rw_cuda *cuda;
    struct rw_cudnn dnn;
    bool wanted; /* else nothing is opened */
    bool opened; /* looked for, and found or not */
    bool has;
    struct entry *entries;
    int n;
};

static const char *const names[] = { "a convolution", "a convolution's backward of data",
                                     "a convolution's backward of weights" };
static const char *const plan_names[] = { "the plan of a convolution", "the plan of a convolution's backward of data",
                                          "the plan of a convolution's backward of weights" };

rw_status rw_dnn_conv_create(struct rw_dnn_conv **ret, struct rw_cuda *cuda)
{
    const char *const choice = getenv("REWIND_CONV");
    struct rw_dnn_conv *const conv = rw_calloc(1, sizeof *conv);
    if (!conv) return RW_ERR_MEMORY;
    conv->cuda = cuda;
    conv->wanted = choice && !strcmp(choice, "cudnn");
    *ret = conv;
    return RW_OK;
}

static void free_entry(struct rw_dnn_conv *conv, struct entry *e)
{
    rw_dnn_free_plan(&conv->dnn, &e->plan);
    rw_free(e);
}

void rw_dnn_conv_destroy(struct rw_dnn_conv **pconv)
{
    struct rw_dnn_conv *const conv = *pconv;
    if (!conv) return;
    while (conv->entries) {
        struct entry *const e = conv->entries;
        conv->entries = e->next;
        free_entry(conv, e);
    }
    rw_cudnn_close(&conv->dnn);
    rw_free(conv);
    *pconv = NULL;
}

/* ---- the table: a step has few signatures ---- */

/* That it is not there is no failure. What may be otherwise the next time is one, and decides nothing. */
static rw_status open_once(struct rw_dnn_conv *conv)
{
    struct rw_cuda *const cuda = conv->cuda;
    if (conv->opened || !conv->wanted) return RW_OK;
    const bool had_message = cuda->message[0];
    const rw_status status = rw_cudnn_open(&conv->dnn, cuda);
    if (status && status != RW_ERR_UNSUPPORTED) return status;
    if (status && !had_message) cuda->message[0] = '\0';
    conv->opened = true;
    conv->has = !status;
    return RW_OK;
}

static struct entry *find(const struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s)
{
    struct entry *e = conv->entries;
    while (e && memcmp(&e->signature, s, sizeof *s)) e = e->next;
    return e;
}

static rw_status pin(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s)
{
    struct entry *const e = rw_calloc(1, sizeof *e);
    if (!e) return RW_ERR_MEMORY;
    e->signature = *s;
    const cudnnStatus_t built = rw_dnn_conv_build(&conv->dnn, s, conv->cuda->tf32, RW_DNN_CONV_WORKSPACE_LIMIT,
                                                  &e->plan);
    if (built && !rw_dnn_is_refusal(built)) {
        free_entry(conv, e);
        return rw_cudnn_status(&conv->dnn, conv->cuda, built, plan_names[s->kind]);
    }
    if (!e->plan.plan) rw_dnn_free_plan(&conv->dnn, &e->plan);
    e->next = conv->entries;
    conv->entries = e;
    conv->n++;
    return RW_OK;
}

bool rw_dnn_conv_has(const struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, size_t *ret_workspace)
{
    const struct entry *const e = conv->has ? find(conv, s) : NULL;
    if (!e || !e->plan.plan) return false;
    *ret_workspace = (e->plan.workspace + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
    return true;
}

rw_status rw_dnn_conv_query(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, bool *ret_has,
                            size_t *ret_workspace)
{
    RW_ON_DEVICE(conv->cuda);
    rw_status status = open_once(conv);
    if (!status && conv->has && !find(conv, s) && conv->n < RW_DNN_CONV_MOST) status = pin(conv, s);
    if (status) return status;
    *ret_has = rw_dnn_conv_has(conv, s, ret_workspace);
    return RW_OK;
}

/* ---- runs ---- */

rw_status rw_dnn_conv_run(struct rw_dnn_conv *conv, const struct rw_dnn_conv_signature *s, const void *x, const void *w,
                          const void *y, const void *bias, void *workspace, size_t workspace_bytes)
{
    const int64_t ids[] = { RW_DNN_CONV_X, RW_DNN_CONV_W, RW_DNN_CONV_Y, RW_DNN_CONV_BIAS };
    void *const addresses[] = { (void *)x, (void *)w, (void *)y, (void *)bias };
    const int64_t n = s->bias ? 4 : 3;
    const struct entry *const e = find(conv, s);
    if (!e || !e->plan.plan || workspace_bytes < e->plan.workspace)
        return rw_cuda_fail(conv->cuda, RW_ERR_DEVICE, "cuDNN: %s: the plan gave too little workspace", names[s->kind]);
    const cudnnStatus_t queued = rw_dnn_execute(&conv->dnn, &e->plan, n, ids, addresses, workspace);
    return rw_cudnn_status(&conv->dnn, conv->cuda, queued, names[s->kind]);
}
