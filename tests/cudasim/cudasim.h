/*
 * Control of the simulated device for tests: reports, faults, live objects. C and C++.
 *
 * Environment: CUDASIM_SEED (order of blocks and threads, default 1), CUDASIM_LAZY=1 (work waits for synchronization),
 * CUDASIM_STRICT=1 (the host faults when it touches device memory), CUDASIM_DEVICES, CUDASIM_DRIVER=none,
 * CUDASIM_MEMORY (bytes, default 2 GiB), CUDASIM_SMS (multiprocessors, default 132), CUDASIM_CAPABILITY (default 90),
 * CUDASIM_FAIL=FUNCTION:N:CODE[,...] (the N-th call of FUNCTION fails with CODE; "launch" is a kernel launch).
 */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A program error in a kernel or in the use of the runtime (deadlock, diverged barrier, a missing lane, an overwritten
 * guard zone) is printed to stderr and ends the process. With fatal = false the report is kept instead, and the kernel
 * fails with cudaErrorLaunchFailure.
 */
void cudasim_set_fatal(bool fatal);
const char *cudasim_last_report(void); /* "" if there is none */
void cudasim_clear_report(void);

/* Restores the state of a fresh process, reads the environment again, and frees all live objects. */
void cudasim_restart(void);

/*
 * Another runtime on the same devices, as for a library that is linked statically with libcudart: a thread's last error
 * is per runtime, but an error that ends the context is common to all. The second function selects the runtime of the
 * thread's next calls, 0 for the first, and returns the one before. static_cudart.h does both for a shared object.
 */
int cudasim_new_runtime(void);
int cudasim_call_runtime(int runtime);

/* Every query for algorithms, of products and convolutions, gets its answers in another order (also
   CUDASIM_BLAS_ROTATE=1): this makes a repeated query visible. */
void cudasim_set_blas_rotation(bool on);

/* The installed version of cuDNN, 91900 by default; 0: none (also CUDASIM_CUDNN). */
void cudasim_set_cudnn(int version);
/* Whether a library that is opened at run time is installed. */
bool cudasim_has_library(const char *file);
/* The engines that cuDNN offers, in this order, "3,8"; NULL for its own choice. convolution.cc has their table. */
void cudasim_set_dnn_engines(const char *ids);
/* The largest extent, stride and number of elements that cuBLASLt and cuDNN may be given, INT32_MAX at first: a larger
 * one is reported. */
void cudasim_set_max_count(int64_t max);

void cudasim_set_seed(uint64_t seed);
void cudasim_set_lazy(bool lazy);
void cudasim_set_strict(bool strict);
void cudasim_set_driver(bool present);
void cudasim_set_devices(int count);
void cudasim_set_memory(size_t bytes);
void cudasim_set_multiprocessors(int count);
void cudasim_set_capability(int major, int minor);

/* The n-th call of `function` from now on (1: the next) fails with `code` and does nothing. "launch" for kernel
 * launches. */
void cudasim_fail_call(const char *function, long n, int code);
/* The n-th kernel from now on ends the context with `code` (such as cudaErrorIllegalAddress) when it runs. */
void cudasim_fail_kernel(long n, cudaError_t code);
/* Ends the context now: every call fails with `code` until cudaDeviceReset(). */
void cudasim_break(cudaError_t code);
void cudasim_clear_faults(void);

/* Number of times that a kernel's limit of dynamic shared memory changed. The limit belongs to the device, so a context
   that lowers it makes another one's launch fail. */
long cudasim_limit_changes(void);

/* Number of calls of `function` since the start, including "launch". */
long cudasim_calls(const char *function);

struct cudasim_live {
    size_t device_allocations, device_bytes, host_allocations, host_bytes, registrations;
    size_t streams, events, graphs, graph_execs, blas_objects, dnn_objects;
    size_t queued; /* pieces of work that have not run */
};
struct cudasim_live cudasim_live(void);
size_t cudasim_live_allocations(void); /* all objects above, except work */
void cudasim_print_live(FILE *file);
size_t cudasim_peak_bytes(void); /* of device memory */
bool cudasim_has_context(int device); /* it was used, or selected by cudaSetDevice() */
size_t cudasim_bytes_on(int device); /* allocated while that device was the thread's current one */

/* Whether every guard zone is intact; reports the first that is not. */
bool cudasim_check_guards(void);

/* Depth of NVTX ranges on this thread, and number of ranges pushed by all. */
int cudasim_nvtx_depth(void);
long cudasim_nvtx_ranges(void);

#ifdef __cplusplus
}
#endif

#endif
