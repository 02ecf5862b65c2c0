/* A macro for functions that kernels of the CPU and of CUDA share: C11 and C++17. */
#ifndef RW_BASE_HOST_DEVICE_H
#define RW_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define RW_HOST_DEVICE static __host__ __device__ inline
#else
#define RW_HOST_DEVICE static inline
#endif

#endif
