/*
 * Lanes of the CUDA device: one stream each, ordered by events, and the store in pinned memory that the copy lanes use.
 * All of it can be captured: a copy lane joins a capture when it waits for an event in it.
 */
#include "device/cuda/copy_streams.h"

#include "base/alloc.h"
#include "device/cuda/current_device.h"
#include "device/cuda/offload_file_store_cuda.h"
#include "device/cuda/fallible_cuda_malloc.h"
#include "device/device.h"

#define TRY(call)                                                   \
    do {                                                            \
        const rw_status try_ = rw_cuda_status(cuda, (call), #call); \
        if (try_) return try_;                                      \
    } while (0)

/* `after`: number of the last copy to or from a file before it in its lane; 0: the last copy was of another kind. */
struct mark {
    cudaEvent_t event;
    uint64_t after;
};

struct rw_events {
    size_t n;
    struct mark mark[];
};

rw_status rw_cuda_open_lanes(struct rw_cuda *cuda)
{
    for (int lane = 0; lane < RW_LANES; lane++)
        TRY(cudaStreamCreateWithFlags(&cuda->lane[lane], cudaStreamNonBlocking));
    cuda->stream = cuda->lane[RW_LANE_COMPUTE];
    return RW_OK;
}

void rw_cuda_close_lanes(struct rw_cuda *cuda)
{
    for (int lane = 0; lane < RW_LANES; lane++)
        if (cuda->lane[lane]) cudaStreamDestroy(cuda->lane[lane]);
}

rw_status rw_cuda_wait_for_lanes(struct rw_cuda *cuda)
{
    for (int lane = 0; lane < RW_LANES; lane++)
        if (cuda->lane[lane]) TRY(cudaStreamSynchronize(cuda->lane[lane]));
    return RW_OK;
}

void rw_cuda_free_events(void *state, struct rw_events *events)
{
    RW_ON_DEVICE(state);
    for (size_t i = 0; events && i < events->n; i++) cudaEventDestroy(events->mark[i].event);
    rw_free(events);
}

struct rw_events *rw_cuda_make_events(void *state, size_t n)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    struct rw_events *const events = rw_calloc(1, sizeof *events + n * sizeof *events->mark);
    if (!events) return NULL;
    for (events->n = 0; events->n < n; events->n++)
        if (rw_cuda_status(cuda, cudaEventCreateWithFlags(&events->mark[events->n].event, cudaEventDisableTiming),
                           "cudaEventCreateWithFlags")) {
            rw_cuda_free_events(cuda, events);
            return NULL;
        }
    return events;
}

rw_status rw_cuda_signal(void *state, int lane, struct rw_events *events, size_t event)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    struct mark *const m = &events->mark[event];
    TRY(cudaEventRecord(m->event, cuda->lane[lane]));
    m->after = rw_cuda_files_last(cuda, lane);
    return RW_OK;
}

rw_status rw_cuda_wait(void *state, int lane, struct rw_events *events, size_t event)
{
    struct rw_cuda *const cuda = state;
    RW_ON_DEVICE(cuda);
    const struct mark *const m = &events->mark[event];
    TRY(cudaStreamWaitEvent(cuda->lane[lane], m->event, 0));
    return lane == RW_LANE_COMPUTE && m->after ? rw_cuda_files_await(cuda, m->event, m->after) : RW_OK;
}

/* ---- the store in pinned memory ---- */

static rw_status pinned_open(void *device, const char *path, uint64_t bytes, void **ret_store)
{
    struct rw_cuda *const cuda = device;
    RW_ON_DEVICE(cuda);
    return rw_cuda_status(cuda, rw_cuda_take_host(ret_store, bytes), "cudaMallocHost");
}

static void pinned_close(void *device, void *store)
{
    RW_ON_DEVICE(device);
    cudaFreeHost(store);
}

static rw_status pinned_put(void *device, int lane, void *store, uint64_t at, const void *from, uint64_t bytes)
{
    struct rw_cuda *const cuda = device;
    RW_ON_DEVICE(cuda);
    TRY(cudaMemcpyAsync((char *)store + at, from, bytes, cudaMemcpyDeviceToHost, cuda->lane[lane]));
    rw_cuda_files_passed(cuda, lane);
    return RW_OK;
}

static rw_status pinned_get(void *device, int lane, void *to, const void *store, uint64_t at, uint64_t bytes)
{
    struct rw_cuda *const cuda = device;
    RW_ON_DEVICE(cuda);
    TRY(cudaMemcpyAsync(to, (const char *)store + at, bytes, cudaMemcpyHostToDevice, cuda->lane[lane]));
    rw_cuda_files_passed(cuda, lane);
    return RW_OK;
}

const struct rw_store_fns rw_store_pinned = {
    .name = "pinned memory", .open = pinned_open, .close = pinned_close, .put = pinned_put, .get = pinned_get
};
