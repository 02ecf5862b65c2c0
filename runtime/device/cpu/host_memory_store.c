/* The store in plain memory: a copy has finished when the call returns, so lanes do not matter. */
#include "device/offload_store.h"

#include "base/alloc.h"

#include <string.h>

#define PAGE 4096

static rw_status memory_open(void *device, const char *path, uint64_t bytes, void **ret_store)
{
    *ret_store = rw_malloc_aligned(bytes, PAGE);
    return *ret_store ? RW_OK : RW_ERR_MEMORY;
}

static void memory_close(void *device, void *store)
{
    rw_free_aligned(store);
}

static rw_status memory_put(void *device, int lane, void *store, uint64_t at, const void *from, uint64_t bytes)
{
    memcpy((char *)store + at, from, bytes);
    return RW_OK;
}

static rw_status memory_get(void *device, int lane, void *to, const void *store, uint64_t at, uint64_t bytes)
{
    memcpy(to, (const char *)store + at, bytes);
    return RW_OK;
}

const struct rw_store_fns rw_store_memory = {
    .name = "memory", .open = memory_open, .close = memory_close, .put = memory_put, .get = memory_get
};
