/*
 * Matrix products by oneDNN (https://oneapi-src.github.io/oneDNN).
 *
 * Threads are ours, not oneDNN's: every call computes one tile in the calling thread, and who calls cuts a product into
 * tiles by its shape alone. So the bits cannot depend on the number of threads. bfloat16 products are primitives, made
 * once per signature and kept for the life of the context: forward and replay run the very same one (law 6).
 */
#ifndef RW_DEVICE_CPU_ONEDNN_H
#define RW_DEVICE_CPU_ONEDNN_H

#include <rewind/status.h>

struct rw_onednn;

rw_status rw_onednn_create(struct rw_onednn **ret);
void rw_onednn_destroy(struct rw_onednn **o);

/* One product C = op(A) op(B) (+ C, or + bias): row-major, leading dimensions in elements. */
struct rw_gemm {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    bool ta, tb;
    bool add;         /* float32 only: adds to C */
    const void *bias; /* bfloat16 only: n elements, or NULL */
};

/* Brackets a thread's calls: oneDNN then starts no threads of its own. Give back what enter returned. */
int rw_onednn_enter(void);
void rw_onednn_leave(int saved);

rw_status rw_gemm_f32(const struct rw_gemm *g);
rw_status rw_gemm_bf16(struct rw_onednn *o, const struct rw_gemm *g);
void rw_gemm_f64(const struct rw_gemm *g);

#endif
