/*
 * The table of functions for plan-only contexts: allocation returns a fixed address, and reads return
 * RW_ERR_UNSUPPORTED.
 */
#include "device/plan_only_device.h"

/* An address that no process maps, aligned as for any device. An access by mistake ends the process at once. */
static void *nowhere(void)
{
    return (void *)(uintptr_t)4096;
}

static void *alloc(void *state, size_t bytes)
{
    return nowhere();
}

static void give_back(void *state, void *p)
{
}

static rw_status drop(void *state, void *to, const void *from, size_t bytes)
{
    return RW_OK;
}

static rw_status drop_zeros(void *state, void *to, size_t bytes)
{
    return RW_OK;
}

static rw_status refuse(void *state, void *to, const void *from, size_t bytes)
{
    return RW_ERR_UNSUPPORTED;
}

static rw_status refuse_digest(void *state, const void *data, size_t bytes, int threads, struct rw_digest *ret)
{
    return RW_ERR_UNSUPPORTED;
}

static rw_status refuse_to_compare(void *state, const struct rw_digest *a, const struct rw_digest *b, uint32_t serial,
                                   struct rw_error_flags *words)
{
    return RW_ERR_UNSUPPORTED;
}

struct rw_device_fns rw_device_for_planning(const struct rw_device_fns *real)
{
    struct rw_device_fns fns = *real;
    fns.alloc = fns.alloc_zero = alloc;
    fns.free = give_back;
    fns.upload = drop;
    fns.clear = drop_zeros;
    fns.download = refuse;
    fns.digest = refuse_digest;
    fns.compare = refuse_to_compare;
    return fns;
}
