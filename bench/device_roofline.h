/* Measured upper limits of a device, with which the rates of models and kernels are compared. */
#ifndef REWIND_BENCH_DEVICE_ROOFLINE_H
#define REWIND_BENCH_DEVICE_ROOFLINE_H

#include <rewind/rewind.h>

/*
 * Operations per second (1e12) of a plain product of square matrices, by the library's own matmul: the best of several
 * sizes, each the median of several rounds. Uses a context of its own, so none of its memory is counted elsewhere.
 */
rw_status limit_matmul(const rw_context_params *params, rw_dtype dtype, double *ret_tflops);

/* Bytes per second (1e9), read and written, of a copy from memory to memory, by the device's own functions. */
rw_status limit_copy(rw_device device, double *ret_gbs);

#endif
