/*
 * cuBLASLt for the CUDA kernels: pinned matrix products.
 *
 * The library is opened when the first context is created. A program that does not use CUDA does not load it, and
 * starts where it is not installed. An algorithm is chosen once per signature and kept for the life of the context (law
 * 6). Parts of k are added in a fixed order, or k is not split. Alignments follow from layouts and never from
 * addresses. The workspace is the plan's.
 */
#ifndef RW_DEVICE_CUDA_BLASLT_H
#define RW_DEVICE_CUDA_BLASLT_H

#include "device/cuda/blaslt_product.h"
#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

rw_status rw_blaslt_create(struct rw_blaslt **ret, struct rw_cuda *cuda);
void rw_blaslt_destroy(struct rw_blaslt **lt);

/*
 * Pins the algorithms of a product, of each of its parts (blaslt_parts.h) if it does not fit into one call. *ret_has is
 * false when the library has none for it, or the product has no parts: then it never will.
 * @param ret_workspace bytes that a run takes, aligned to 256: the parts use it one after another.
 */
rw_status rw_blaslt_query(struct rw_blaslt *lt, const struct rw_blaslt_product *p, bool *ret_has,
                          size_t *ret_workspace);

/* Queues the product on the context's stream, part by part. RW_ERR_DEVICE when the algorithm is refused: none else is
   tried. */
rw_status rw_blaslt_run(struct rw_blaslt *lt, const struct rw_blaslt_product *p, const struct rw_blaslt_operands *x,
                        void *workspace, size_t workspace_bytes);

#ifdef __cplusplus
}
#endif

#endif
