/*
 * oneDNN for the CPU kernels: matrix products, pinned.
 *
 * A primitive is made once per signature (extents, strides, type, bias, sum) and kept for the life of the context, so
 * forward and replay run the same code (law 6). It is made for one thread: who wants more cuts the product into tiles
 * by its shape alone and runs one primitive per tile, so no bit can depend on the number of threads.
 */
#ifndef RW_DEVICE_CPU_ONEDNN_H
#define RW_DEVICE_CPU_ONEDNN_H

#include <rewind/status.h>
#include <rewind/types.h>

struct rw_onednn;
struct rw_onednn_matmul;

/* c [m, n] = a [m, k] b [k, n] + bias [n] (+ c). One stride of a and of b is 1; c's columns are next to each other. */
struct rw_matmul_signature {
    int64_t m, n, k;
    int64_t a_row, a_col;
    int64_t b_row, b_col;
    int64_t c_row;
    int32_t dtype; /* RW_F32, RW_BF16 or RW_F16, of all four */
    int32_t bias;  /* 0 or 1 */
    int32_t adds;  /* 0 or 1: to what c holds */
    int32_t unused;
};

rw_status rw_onednn_create(struct rw_onednn **ret);
void rw_onednn_destroy(struct rw_onednn **o);

/*
 * The primitive of a signature, ready for use by threads 0 .. threads - 1. Not to be called by two threads at once.
 * @param ret receives it, owned by o; NULL when oneDNN has no fast code for the signature on this processor.
 */
rw_status rw_onednn_matmul(struct rw_onednn *o, const struct rw_matmul_signature *s, int threads,
                           struct rw_onednn_matmul **ret);

/*
 * What planning asks, before the primitive exists: is there fast code, and how many bytes of scratch memory, aligned to
 * 64, does one run take? Allocates nothing of ours.
 */
rw_status rw_onednn_matmul_query(const struct rw_onednn *o, const struct rw_matmul_signature *s, bool *ret_fast,
                                 size_t *ret_scratch);

/* Runs in the calling thread, which says that it is number `thread`; no two threads may say the same at once. */
rw_status rw_onednn_matmul_run(struct rw_onednn_matmul *p, int thread, const void *a, const void *b, const void *bias,
                               void *c, void *scratch);

#endif
