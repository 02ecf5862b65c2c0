/* Staged uploads: a ring of slots, each with pinned memory and device memory. */
#include "device/cuda/staging.h"

#include "base/alloc.h"
#include "device/cuda/fallible_cuda_malloc.h"

#include <string.h>

#define SLOTS 4
#define SLOT_BYTES ((size_t)1 << 20)

/*
 * A piece in flight: it is in pinned memory until it has arrived in the slot's device memory, and there until it is
 * taken.
 */
struct slot {
    cudaEvent_t arrived, taken;
    bool used;
};

struct rw_staging {
    struct rw_cuda *cuda;
    cudaStream_t copies;
    char *pinned, *device; /* SLOTS pieces each; allocated with the first upload */
    struct slot slot[SLOTS];
    unsigned next;
};

#define TRY(call)                                                             \
    do {                                                                      \
        const rw_status try_ = rw_cuda_status(s->cuda, (call), #call);        \
        if (try_) return try_;                                                \
    } while (0)

static rw_status make(struct rw_staging *s)
{
    TRY(cudaStreamCreateWithFlags(&s->copies, cudaStreamNonBlocking));
    for (int i = 0; i < SLOTS; i++) {
        TRY(cudaEventCreateWithFlags(&s->slot[i].arrived, cudaEventDisableTiming));
        TRY(cudaEventCreateWithFlags(&s->slot[i].taken, cudaEventDisableTiming));
    }
    return RW_OK;
}

rw_status rw_staging_create(struct rw_staging **ret, struct rw_cuda *cuda)
{
    struct rw_staging *s = rw_calloc(1, sizeof *s);
    if (!s) return RW_ERR_MEMORY;
    s->cuda = cuda;
    const rw_status status = make(s);
    if (status) rw_staging_destroy(&s);
    *ret = s;
    return status;
}

void rw_staging_destroy(struct rw_staging **staging)
{
    struct rw_staging *const s = *staging;
    if (!s) return;
    if (s->copies) cudaStreamSynchronize(s->copies);
    for (int i = 0; i < SLOTS; i++) {
        if (s->slot[i].arrived) cudaEventDestroy(s->slot[i].arrived);
        if (s->slot[i].taken) cudaEventDestroy(s->slot[i].taken);
    }
    cudaFreeHost(s->pinned);
    cudaFree(s->device);
    if (s->copies) cudaStreamDestroy(s->copies);
    rw_free(s);
    *staging = NULL;
}

static rw_status make_room(struct rw_staging *s)
{
    void *p = NULL;
    rw_status status = RW_OK;
    if (!s->pinned) {
        status = rw_cuda_status(s->cuda, rw_cuda_take_host(&p, SLOTS * SLOT_BYTES), "cudaMallocHost");
        s->pinned = status ? NULL : p;
    }
    if (!status && !s->device) {
        status = rw_cuda_status(s->cuda, rw_cuda_take(&p, SLOTS * SLOT_BYTES), "cudaMalloc");
        s->device = status ? NULL : p;
    }
    return status;
}

/* Copies one piece through the next slot, and waits only if the slot is still in use. */
static rw_status upload_piece(struct rw_staging *s, void *to, const void *from, size_t bytes, bool on_device)
{
    const unsigned i = s->next;
    struct slot *const slot = &s->slot[i];
    char *const device = s->device + i * SLOT_BYTES, *const pinned = s->pinned + i * SLOT_BYTES;
    if (slot->used) {
        TRY(cudaEventSynchronize(slot->arrived));
        TRY(cudaStreamWaitEvent(s->copies, slot->taken, 0));
    }
    if (!on_device) memcpy(pinned, from, bytes);
    TRY(cudaMemcpyAsync(device, on_device ? from : pinned, bytes,
                        on_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice, s->copies));
    TRY(cudaEventRecord(slot->arrived, s->copies));
    TRY(cudaStreamWaitEvent(s->cuda->stream, slot->arrived, 0));
    TRY(cudaMemcpyAsync(to, device, bytes, cudaMemcpyDeviceToDevice, s->cuda->stream));
    TRY(cudaEventRecord(slot->taken, s->cuda->stream));
    slot->used = true;
    s->next = (i + 1) % SLOTS;
    /* Host memory was copied to the pinned buffer; device memory of the caller is read by the copy itself. */
    if (on_device) TRY(cudaEventSynchronize(slot->arrived));
    return RW_OK;
}

static rw_status upload(struct rw_staging *s, char *to, const char *from, size_t bytes)
{
    struct cudaPointerAttributes where;
    TRY(cudaPointerGetAttributes(&where, from));
    const bool on_device = where.type == cudaMemoryTypeDevice || where.type == cudaMemoryTypeManaged;
    rw_status status = make_room(s);
    for (size_t at = 0; !status && at < bytes; at += SLOT_BYTES)
        status = upload_piece(s, to + at, from + at, bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES, on_device);
    return status;
}

rw_status rw_staging_upload(struct rw_staging *s, void *to, const void *from, size_t bytes)
{
    if (!bytes) return RW_OK;
    const rw_status status = upload(s, to, from, bytes);
    /* Copies in flight may still read the ring, and no event tells when they are done. */
    if (status && !s->cuda->dead) {
        cudaStreamSynchronize(s->copies);
        cudaStreamSynchronize(s->cuda->stream);
        cudaGetLastError();
    }
    return status;
}
