/* The CUDA device: opening it, its memory, copies, waits, capture and timing. */
#include "device/cuda/blaslt.h"
#include "device/cuda/cuda.h"
#include "device/cuda/current_device.h"
#include "device/cuda/cudnn/conv.h"
#include "device/cuda/cudnn/sdpa.h"
#include "device/cuda/digest.h"
#include "device/cuda/offload_file_store_cuda.h"
#include "device/cuda/copy_streams.h"
#include "device/cuda/staging.h"
#include "device/cuda/fallible_cuda_malloc.h"
#include "device/device.h"
#include "base/alloc.h"

#include <nvtx3/nvToolsExt.h>

#include <stdio.h>
#include <string.h>

#define CAPABILITY_MIN 80
/* Kernels are compiled for this version; an older driver cannot load them. */
#define DRIVER_MIN CUDART_VERSION

#define TRY(call)                                                           \
    do {                                                                    \
        const rw_status try_ = rw_cuda_status(cuda, (call), #call);         \
        if (try_) return try_;                                              \
    } while (0)

/* Checks that there is a driver of the needed version, and a device. */
static rw_status check_driver(struct rw_cuda *cuda)
{
    int driver = 0, devices = 0;
    const cudaError_t queried = cudaDriverGetVersion(&driver);
    if (queried || driver == 0) {
        cudaGetLastError();
        return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "no CUDA driver on this machine");
    }
    if (driver / 1000 < DRIVER_MIN / 1000)
        return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED,
                            "expected a driver for CUDA %d.0 or later, got one for CUDA %d.%d", DRIVER_MIN / 1000,
                            driver / 1000, driver % 1000 / 10);
    const cudaError_t counted = cudaGetDeviceCount(&devices);
    if (counted || devices == 0) {
        cudaGetLastError();
        return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "no CUDA device: %s",
                            counted ? cudaGetErrorString(counted) : "the driver lists none");
    }
    return RW_OK;
}

static rw_status check_capability(struct rw_cuda *cuda)
{
    int major = 0, minor = 0;
    TRY(cudaGetDevice(&cuda->ordinal));
    TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda->ordinal));
    TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, cuda->ordinal));
    TRY(cudaDeviceGetAttribute(&cuda->shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, cuda->ordinal));
    TRY(cudaDeviceGetAttribute(&cuda->shared_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                               cuda->ordinal));
    cuda->capability = major * 10 + minor;
    if (cuda->capability < CAPABILITY_MIN)
        return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "expected a device of compute capability 8.0 or more, got %d.%d",
                            major, minor);
    return RW_OK;
}

static rw_status make_state(struct rw_cuda *cuda)
{
    void *p = NULL;
    const rw_status opened = rw_cuda_open_lanes(cuda);
    if (opened) return opened;
    rw_cuda_note_context(cuda);
    const rw_status taken = rw_cuda_status(cuda, rw_cuda_take(&p, sizeof *cuda->ticket_base), "cudaMalloc");
    if (taken) return taken;
    cuda->ticket_base = p;
    TRY(cudaMemsetAsync(cuda->ticket_base, 0, sizeof *cuda->ticket_base, cuda->stream));
    rw_status status = rw_staging_create(&cuda->staging, cuda);
    if (!status) status = rw_blaslt_create(&cuda->blaslt, cuda);
    if (!status) status = rw_sdpa_create(&cuda->sdpa, cuda);
    return status ? status : rw_dnn_conv_create(&cuda->conv, cuda);
}

/* Closes a device that may be only partly open. */
static void cuda_close(void *state)
{
    struct rw_cuda *const cuda = state;
    if (!cuda) return;
    RW_ON_DEVICE(cuda);
    rw_cuda_wait_for_lanes(cuda);
    rw_cuda_files_close(cuda);
    rw_blaslt_destroy(&cuda->blaslt);
    rw_sdpa_destroy(&cuda->sdpa);
    rw_dnn_conv_destroy(&cuda->conv);
    rw_staging_destroy(&cuda->staging);
    for (size_t i = 0; i < cuda->n_marks; i++) cudaEventDestroy(cuda->marks[i]);
    rw_free(cuda->marks);
    rw_free(cuda->large);
    cudaFree(cuda->ticket_base);
    rw_cuda_close_lanes(cuda);
    cudaGetLastError();
    rw_free(cuda);
}

/* Opens the current device; on failure the message goes to `why`. */
static rw_status cuda_open(void **ret_state, const rw_context_params *params, char *why, size_t size)
{
    struct rw_cuda *const cuda = rw_calloc(1, sizeof *cuda);
    if (!cuda) return RW_ERR_MEMORY;
    cuda->tf32 = params->tf32;
    cuda->max_count = INT32_MAX;
    rw_status status = check_driver(cuda);
    if (!status) status = check_capability(cuda);
    if (!status) status = make_state(cuda);
    if (status) {
        snprintf(why, size, "%s", cuda->message);
        cuda_close(cuda);
        return status;
    }
    *ret_state = cuda;
    return RW_OK;
}

static int cuda_enter(void *state)
{
    return rw_cuda_enter(state);
}

static void cuda_leave(void *state, int previous)
{
    rw_cuda_leave(previous);
}

/* Allocates memory; the message of a failure has the free bytes. */
static void *cuda_alloc(void *state, size_t bytes)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    void *p = NULL;
    size_t available = 0, total = 0;
    const cudaError_t error = rw_cuda_take(&p, bytes ? bytes : 1);
    if (!error) return p;
    cudaGetLastError();
    if (error != cudaErrorMemoryAllocation || cudaMemGetInfo(&available, &total)) {
        rw_cuda_status(cuda, error, "cudaMalloc");
        return NULL;
    }
    rw_cuda_fail(cuda, RW_ERR_MEMORY, "CUDA: cudaMalloc of %zu bytes: %s; %zu of the device's %zu bytes are free",
                 bytes, cudaGetErrorString(error), available, total);
    return NULL;
}

static struct rw_device_memory cuda_memory(void *state)
{
    RW_ON_DEVICE(state);
    struct rw_device_memory all = { UINT64_MAX, "device has", "" };
    size_t available = 0, total = 0;
    if (!cudaMemGetInfo(&available, &total)) all.bytes = total;
    else cudaGetLastError();
    return all;
}

static void cuda_free(void *state, void *p)
{
    RW_ON_DEVICE(state);
    cudaFree(p);
}

static rw_status cuda_upload(void *state, void *to, const void *from, size_t bytes)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    return rw_staging_upload(cuda->staging, to, from, bytes);
}

static rw_status cuda_download(void *state, void *to, const void *from, size_t bytes)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    if (!bytes) return RW_OK;
    TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->stream));
    TRY(cudaStreamSynchronize(cuda->stream));
    return RW_OK;
}

static rw_status cuda_clear(void *state, void *to, size_t bytes)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    if (bytes) TRY(cudaMemsetAsync(to, 0, bytes, cuda->stream));
    return RW_OK;
}

static void *cuda_alloc_zero(void *state, size_t bytes)
{
    void *const p = cuda_alloc(state, bytes);
    if (!p || !cuda_clear(state, p, bytes)) return p;
    cuda_free(state, p);
    return NULL;
}

static struct rw_device_queue cuda_queue(void *state, int lane)
{
    const struct rw_cuda *const cuda = state;
    return (struct rw_device_queue){ .stream = cuda->lane[lane], .ticket_base = cuda->ticket_base };
}

static rw_status cuda_digest(void *state, const void *data, size_t bytes, int threads, struct rw_digest *ret)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    TRY(rw_cuda_digest(cuda, data, bytes, ret));
    return RW_OK;
}

static rw_status cuda_compare(void *state, const struct rw_digest *a, const struct rw_digest *b, uint32_t serial,
                              struct rw_error_flags *words)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    TRY(rw_cuda_compare_digests(cuda, a, b, serial, words));
    return RW_OK;
}

/* In pinned memory, which the device writes directly. */
static struct rw_error_flags *cuda_make_words(void *state)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    void *p = NULL;
    if (rw_cuda_status(cuda, rw_cuda_take_host(&p, sizeof(struct rw_error_flags)), "cudaMallocHost")) return NULL;
    memset(p, 0, sizeof(struct rw_error_flags));
    return p;
}

static void cuda_free_words(void *state, struct rw_error_flags *words)
{
    RW_ON_DEVICE(state);
    cudaFreeHost(words);
}

static rw_status cuda_finish(void *state)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    const rw_status status = rw_cuda_wait_for_lanes(cuda);
    const rw_status files = rw_cuda_files_finish(cuda);
    return status ? status : files;
}

/* The source is pageable memory, which CUDA has read when the call returns. */
static rw_status cuda_set_ticket_base(void *state, uint64_t base)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    if (base == cuda->known_base) return RW_OK;
    TRY(cudaMemcpyAsync(cuda->ticket_base, &base, sizeof base, cudaMemcpyHostToDevice, cuda->stream));
    cuda->known_base = base;
    return RW_OK;
}

/* ---- capture: the compute stream records instead of running ---- */

static rw_status cuda_capture_begin(void *state)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    TRY(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    return RW_OK;
}

static rw_status cuda_capture_end(void *state, void **ret_graph)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    TRY(cudaStreamEndCapture(cuda->stream, &graph));
    const cudaError_t error = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    TRY(error);
    *ret_graph = ready;
    return RW_OK;
}

static rw_status cuda_launch(void *state, void *graph)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    TRY(cudaGraphLaunch(graph, cuda->stream));
    return RW_OK;
}

static void cuda_free_graph(void *state, void *graph)
{
    RW_ON_DEVICE(state);
    cudaGraphExecDestroy(graph);
}

/* ---- times and names ---- */

static rw_status cuda_make_marks(void *state, size_t n)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    if (!rw_grow(&cuda->marks, &cuda->cap_marks, cuda->n_marks, n > cuda->n_marks ? n - cuda->n_marks : 0,
                 sizeof *cuda->marks))
        return RW_ERR_MEMORY;
    for (; cuda->n_marks < n; cuda->n_marks++) TRY(cudaEventCreate(&cuda->marks[cuda->n_marks]));
    return RW_OK;
}

static rw_status cuda_mark(void *state, int lane, size_t i)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    TRY(cudaEventRecord(cuda->marks[i], cuda->lane[lane]));
    return RW_OK;
}

static rw_status cuda_elapsed(void *state, size_t from, size_t to, double *ret_us)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    float ms = 0;
    TRY(cudaEventElapsedTime(&ms, cuda->marks[from], cuda->marks[to]));
    *ret_us = (double)ms * 1e3;
    return RW_OK;
}

static void cuda_float8_products(void *state, rw_float8_products *ret)
{
    const struct rw_cuda *const cuda = state;
    *ret = (rw_float8_products){ .fp8 = cuda->fp8_products, .decoded = cuda->decoded_products };
}

static rw_status cuda_used(void *state, size_t *ret_bytes)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    size_t available = 0, total = 0;
    TRY(cudaMemGetInfo(&available, &total));
    *ret_bytes = total - available;
    return RW_OK;
}

static void cuda_range(void *state, const char *text)
{
    if (text) nvtxRangePushA(text);
    else nvtxRangePop();
}

static void cuda_take_message(void *state, char *text, size_t size)
{
    struct rw_cuda *const cuda = state;
    snprintf(text, size, "%s", cuda->message);
    cuda->message[0] = '\0';
}

static void cuda_describe(void *state, char *text, size_t size)
{
    const struct rw_cuda *const cuda = state;
    struct cudaDeviceProp about;
    if (cudaGetDeviceProperties(&about, cuda->ordinal)) {
        cudaGetLastError();
        return;
    }
    snprintf(text, size, "%s, %d multiprocessors", about.name, about.multiProcessorCount);
}

const struct rw_device_fns rw_device_cuda = {
    .name = "cuda",
    .alignment = RW_CUDA_ALIGNMENT,
    .open = cuda_open,
    .close = cuda_close,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .alloc = cuda_alloc,
    .alloc_zero = cuda_alloc_zero,
    .free = cuda_free,
    .memory = cuda_memory,
    .upload = cuda_upload,
    .download = cuda_download,
    .clear = cuda_clear,
    .describe = cuda_describe,
    .queue = cuda_queue,
    .make_events = rw_cuda_make_events,
    .free_events = rw_cuda_free_events,
    .signal = rw_cuda_signal,
    .wait = rw_cuda_wait,
    .store = &rw_store_pinned,
    .file_store = &rw_store_cuda_file,
    .make_words = cuda_make_words,
    .free_words = cuda_free_words,
    .digest = cuda_digest,
    .compare = cuda_compare,
    .finish = cuda_finish,
    .set_ticket_base = cuda_set_ticket_base,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .launch = cuda_launch,
    .free_graph = cuda_free_graph,
    .make_marks = cuda_make_marks,
    .mark = cuda_mark,
    .elapsed = cuda_elapsed,
    .used = cuda_used,
    .float8_products = cuda_float8_products,
    .range = cuda_range,
    .take_message = cuda_take_message,
};
