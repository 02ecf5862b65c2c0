/*
 * Offload stores: memory outside of the device for offloaded values. There is one table of functions per kind. A device
 * names one that uses host memory and one that uses files.
 */
#ifndef RW_DEVICE_OFFLOAD_STORE_H
#define RW_DEVICE_OFFLOAD_STORE_H

#include <rewind/status.h>

#include <stdint.h>

/* Rates of copies in bytes per second; and the seconds that compute loses per copied byte, because the thread that
   copies takes a core from compute. */
struct rw_store_rate {
    double out, in;
    double loss;
};

/*
 * The same as integers, as it was measured. A file stores exactly this, so a process that reads it plans like the
 * process that wrote it.
 */
struct rw_store_cost {
    uint64_t out, in; /* bytes per second, at least 1; 0: not measured */
    uint64_t loss;    /* picoseconds per MiB */
};

struct rw_store_fns {
    const char *name;
    bool in_file; /* a capture cannot contain its copies */
    /*
     * Opens a store of that many bytes, a multiple of a page; for files, in the folder `path`. Ensures as far as
     * possible that it can be written, and that its memory exists. RW_ERR_MEMORY, RW_ERR_IO; the device's message has
     * the reason.
     */
    rw_status (*open)(void *device, const char *path, uint64_t bytes, void **ret_store);
    /* Closes it. All copies that were queued must have finished. */
    void (*close)(void *device, void *store);
    /* Was it closed by a fork()? A file belongs to the parent only. NULL: never. */
    bool (*is_closed)(const void *store);
    /*
     * Queue a copy on a lane: bytes [at, at + bytes) of the store from the device's memory, or back. `at` is a multiple
     * of a page, and no other value begins in the page with the last byte.
     */
    rw_status (*put)(void *device, int lane, void *store, uint64_t at, const void *from, uint64_t bytes);
    rw_status (*get)(void *device, int lane, void *to, const void *store, uint64_t at, uint64_t bytes);
    /* Measures the rates next to compute with that many host threads, for a bounded time. NULL: not measured. */
    rw_status (*measure)(void *device, const char *path, int threads, struct rw_store_rate *ret);
};

extern const struct rw_store_fns rw_store_memory; /* host memory: a copy has finished when the call returns */
extern const struct rw_store_fns rw_store_file;   /* of the CPU: a thread copies, device/cpu/offload_file_store_cpu.c */
/* Only in builds with CUDA: */
extern const struct rw_store_fns rw_store_pinned;    /* pinned memory of a CUDA device */
extern const struct rw_store_fns rw_store_cuda_file; /* through pinned memory, device/cuda/offload_file_store_cuda.h */

#endif
