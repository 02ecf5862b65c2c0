/*
 * An op's kernels by device. In the op's own file, outside any function:
 *     RW_DECLARE_KERNELS(rw_gelu)        declares rw_gelu_cpu (chosen by instruction set) and rw_gelu_cuda
 *     .kernel = RW_KERNELS(rw_gelu)      in its rw_op_def
 */
#ifndef RW_OPS_COMMON_KERNELS_H
#define RW_OPS_COMMON_KERNELS_H

#include "device/cpu/isa.h"

#ifdef RW_HAVE_CUDA
#define RW_DECLARE_CUDA_KERNEL(name) rw_status name##_cuda(const rw_kernel *k);
#define RW_KERNELS(name) { [RW_DEVICE_CPU] = name##_cpu, [RW_DEVICE_CUDA] = name##_cuda }
#else
#define RW_DECLARE_CUDA_KERNEL(name)
#define RW_KERNELS(name) { [RW_DEVICE_CPU] = name##_cpu }
#endif

#define RW_DECLARE_KERNELS(name) RW_CPU_KERNEL(name##_cpu) RW_DECLARE_CUDA_KERNEL(name)

#endif
