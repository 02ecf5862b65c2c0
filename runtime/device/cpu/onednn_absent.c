/*
 * A build without oneDNN (-Donednn=disabled): its functions, for a library without any code. The kernels ask
 * rw_onednn_is_present() and compute everything themselves, so nothing here runs a primitive.
 */
#include "device/cpu/onednn.h"

#include "base/alloc.h"

bool rw_onednn_is_present(void)
{
    return false;
}

bool rw_onednn_takes_avx512(void)
{
    return false;
}

bool rw_onednn_takes_amx(void)
{
    return false;
}

rw_status rw_onednn_create(bool plans_only, struct rw_onednn **ret)
{
    *ret = NULL;
    return RW_OK;
}

void rw_onednn_destroy(struct rw_onednn **o)
{
}

static void let_go(struct rw_library_ref *h)
{
    rw_free(h);
}

struct rw_library_ref *rw_onednn_hold_begin(struct rw_onednn *o)
{
    struct rw_library_ref *const h = rw_calloc(1, sizeof *h);
    if (h) *h = (struct rw_library_ref){ .references = 1, .let_go = let_go };
    return h;
}

void rw_onednn_hold_end(struct rw_onednn *o)
{
}

rw_status rw_onednn_matmul_prepare(struct rw_onednn *o, const struct rw_matmul_signature *s, int threads,
                                   bool *ret_fast, size_t *ret_scratch)
{
    *ret_fast = false;
    *ret_scratch = 0;
    return RW_OK;
}

struct rw_onednn_primitive *rw_onednn_matmul_find(const struct rw_onednn *o, const struct rw_matmul_signature *s,
                                                  bool *ret_fast, size_t *ret_scratch)
{
    return NULL;
}

rw_status rw_onednn_conv_prepare(struct rw_onednn *o, const struct rw_conv_signature *s, int threads,
                                 struct rw_conv_needs *ret)
{
    *ret = (struct rw_conv_needs){ 0 };
    return RW_OK;
}

struct rw_onednn_primitive *rw_onednn_conv_find(const struct rw_onednn *o, const struct rw_conv_signature *s,
                                                struct rw_conv_needs *ret)
{
    return NULL;
}

size_t rw_onednn_conv_bytes(const struct rw_conv_signature *s)
{
    return 0;
}

bool rw_onednn_conv_same_weight(const struct rw_onednn_primitive *p, const struct rw_onednn_primitive *q)
{
    return p == q;
}

rw_status rw_onednn_matmul_run(struct rw_onednn_primitive *p, int thread, const void *a, const void *b,
                               const void *bias, void *c, void *scratch)
{
    return RW_ERR_DEVICE;
}

rw_status rw_onednn_conv_run(struct rw_onednn_primitive *p, int thread, const void *image, const void *weight,
                             const void *bias, const void *result, void *scratch)
{
    return RW_ERR_DEVICE;
}

rw_status rw_onednn_conv_reorder_weight(struct rw_onednn_primitive *p, int threads, const void *from, void *to,
                                        char *scratch, size_t each)
{
    return RW_ERR_DEVICE;
}

rw_status rw_onednn_conv_reorder_gradient(struct rw_onednn_primitive *p, int thread, const void *from, void *to,
                                          void *scratch)
{
    return RW_ERR_DEVICE;
}

rw_status rw_onednn_conv_reorder_filters(struct rw_onednn_primitive *p, int thread, int64_t i, const void *from,
                                         void *to, void *scratch)
{
    return RW_ERR_DEVICE;
}

size_t rw_onednn_count(const struct rw_onednn *o)
{
    return 0;
}

size_t rw_onednn_bytes(const struct rw_onednn *o)
{
    return 0;
}
