/*
 * Where values wait outside the device's memory. One table of functions a kind; a device names the one that holds them
 * in the host's memory, and the one that holds them in files.
 */
#ifndef RW_DEVICE_STORE_H
#define RW_DEVICE_STORE_H

#include <rewind/status.h>

#include <stdint.h>

/* What values are moved at, in bytes per second; and what compute loses by each byte that is moved, in seconds: who
   copies takes a core that computes. */
struct rw_store_rate {
    double out, in;
    double loss;
};

/* The same as it was measured, in whole numbers: a file holds just that, and who reads it plans like who wrote it. */
struct rw_store_cost {
    uint64_t out, in; /* bytes per second, at least 1; 0: it was not measured */
    uint64_t loss;    /* picoseconds by each MiB */
};

struct rw_store_fns {
    const char *name;
    bool in_file; /* a capture cannot hold its copies */
    /*
     * Room for so many bytes, a multiple of a page; of files in the folder `path`. All that can be made sure of is:
     * that it can be written, that it is there. RW_ERR_MEMORY, RW_ERR_IO; the device's message says why.
     */
    rw_status (*open)(void *device, const char *path, uint64_t bytes, void **ret_store);
    /* What was queued has run. */
    void (*close)(void *device, void *store);
    /* Can this process use it? A file is not shared with the parent. NULL: always. */
    bool (*is_own)(const void *store);
    /*
     * Queue a copy on a lane: bytes [at, at + bytes) of the store from the device's memory, and back; at is a multiple
     * of a page, and no other value begins in the page that the last byte lies in.
     */
    rw_status (*put)(void *device, int lane, void *store, uint64_t at, const void *from, uint64_t bytes);
    rw_status (*get)(void *device, int lane, void *to, const void *store, uint64_t at, uint64_t bytes);
    /* How fast it is beside compute in so many of the host's threads: a bounded time's worth of copies. NULL: nobody
       asks. */
    rw_status (*measure)(void *device, const char *path, int threads, struct rw_store_rate *ret);
};

extern const struct rw_store_fns rw_store_memory; /* plain memory of the host: copies have happened when they return */
extern const struct rw_store_fns rw_store_file;   /* of the CPU: a thread copies, see device/cpu/file_store.c */
#ifdef RW_HAVE_CUDA
extern const struct rw_store_fns rw_store_pinned;    /* pinned memory, from and to a CUDA device */
extern const struct rw_store_fns rw_store_cuda_file; /* by way of pinned memory, see device/cuda/files.h */
#endif

#endif
