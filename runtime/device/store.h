/*
 * Where values wait outside the device's memory. One table of functions; a device names the one that holds them in the
 * host's memory.
 */
#ifndef RW_DEVICE_STORE_H
#define RW_DEVICE_STORE_H

#include <rewind/status.h>

#include <stdint.h>

struct rw_store_fns {
    const char *name;
    /* Room for so many bytes. RW_ERR_MEMORY. */
    rw_status (*open)(void *device, uint64_t bytes, void **ret_store);
    /* What was queued has run. */
    void (*close)(void *device, void *store);
    /* Queue a copy on a lane: bytes [at, at + bytes) of the store from the device's memory, and back. */
    rw_status (*put)(void *device, int lane, void *store, uint64_t at, const void *from, uint64_t bytes);
    rw_status (*get)(void *device, int lane, void *to, const void *store, uint64_t at, uint64_t bytes);
};

extern const struct rw_store_fns rw_store_memory; /* plain memory of the host: copies have happened when they return */
#ifdef RW_HAVE_CUDA
extern const struct rw_store_fns rw_store_pinned; /* pinned memory, from and to a CUDA device */
#endif

#endif
