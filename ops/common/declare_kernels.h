/*
 * Macros that declare an op's kernels for each device, and its workspace functions. In the op's own file, outside any
 * function:
 *
 *     RW_DECLARE_KERNELS(rw_sum)                        declares rw_sum_cpu (chosen by instruction set) and rw_sum_cuda
 *     RW_DECLARE_CUDA_WORKSPACE(rw_sum_workspace_cuda)  declares the workspace function that rw_op_def refers to
 *     .kernel = RW_KERNELS(rw_sum)
 *     .workspace = RW_WORKSPACES(workspace_of_the_cpu, rw_sum_workspace_cuda)  either may be NULL
 *
 * and what ops/builtin_ops.py reads, from the first column on:
 *
 *     RW_BUILTIN_OP(linear, "x weight bias", "F.linear")   an op that policies name: its name, the names of its inputs
 *                                                          in the public header, PyTorch's name ("-": it has none)
 *     RW_INTERNAL_OP(grad_squares, "gradient")             one that only gradient rules, recipes and optimizers record
 *
 * Names of inputs are in the order of the node's inputs; a final "x[]" covers all inputs that follow.
 */
#ifndef RW_OPS_COMMON_DECLARE_KERNELS_H
#define RW_OPS_COMMON_DECLARE_KERNELS_H

#include "device/cpu/isa.h"
#include "ops/common/pass_ops.h"

#define RW_BUILTIN_OP(name, inputs, torch)
#define RW_INTERNAL_OP(name, inputs)

/* For a view, which has no kernel. */
#define RW_NO_KERNELS { rw_op_is_own }

#ifdef RW_HAVE_CUDA
#define RW_DECLARE_CUDA_KERNEL(name) rw_status name##_cuda(const rw_kernel *k);
#define RW_KERNELS(name) { rw_op_is_own, [RW_DEVICE_CPU] = name##_cpu, [RW_DEVICE_CUDA] = name##_cuda }
#define RW_DECLARE_CUDA_WORKSPACE(name) size_t name(const rw_op_call *call);
#define RW_WORKSPACES(cpu, cuda) { [RW_DEVICE_CPU] = cpu, [RW_DEVICE_CUDA] = cuda }
#else
#define RW_DECLARE_CUDA_KERNEL(name)
#define RW_KERNELS(name) { rw_op_is_own, [RW_DEVICE_CPU] = name##_cpu }
#define RW_DECLARE_CUDA_WORKSPACE(name)
#define RW_WORKSPACES(cpu, cuda) { [RW_DEVICE_CPU] = cpu }
#endif

#define RW_DECLARE_KERNELS(name) RW_CPU_KERNEL(name##_cpu) RW_DECLARE_CUDA_KERNEL(name)

#endif
