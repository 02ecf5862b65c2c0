/* See store.h. */
#include "run/store.h"

#include "base/alloc.h"

#define STORE_ALIGNMENT 4096

rw_status rw_store_reserve(struct rw_store *store, uint64_t bytes)
{
    if (store->bytes >= bytes) return RW_OK;
    rw_store_finish(store);
    store->data = rw_malloc_aligned(bytes, STORE_ALIGNMENT);
    if (!store->data) return RW_ERR_MEMORY;
    store->bytes = bytes;
    return RW_OK;
}

void rw_store_finish(struct rw_store *store)
{
    rw_free_aligned(store->data);
    *store = (struct rw_store){ 0 };
}

void *rw_store_slot(const struct rw_store *store, const struct rw_plan_slot *slot)
{
    return (char *)store->data + slot->offset;
}
