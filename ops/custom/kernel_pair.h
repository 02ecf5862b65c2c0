/* What the devices share of rw_call(): its two nodes, and their kernels but for zeroing memory. */
#ifndef RW_OPS_CUSTOM_KERNEL_PAIR_H
#define RW_OPS_CUSTOM_KERNEL_PAIR_H

#include <rewind/kernel_pair.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroes output i of a kernel. */
typedef rw_status (*rw_pair_clear_fn)(const rw_kernel *k, int i);

rw_status rw_pair_forward(const rw_kernel *k, rw_pair_clear_fn clear);
rw_status rw_pair_backward(const rw_kernel *k, rw_pair_clear_fn clear);

#ifdef __cplusplus
}
#endif

#endif
