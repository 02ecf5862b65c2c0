/* Seeds of a run: gradients that the caller passed, used in place, else ones in a block of the run, filled once per
   plan. */
#include "run/root_gradients.h"

#include "base/alloc.h"
#include "base/round_up.h"

#include <string.h>

static const struct rw_tensor *root_value(const struct rw_run *r, uint32_t root)
{
    return rw_tape_value(r->tape, r->plan->roots[root]);
}

/* The ones of all roots follow each other in one block. */
static uint64_t offset_of(const struct rw_run *r, uint32_t root)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < root; i++) at += rw_round_up(rw_tensor_bytes(root_value(r, i)), r->plan->unit);
    return at;
}

static void fill(void *to, rw_dtype dtype, size_t n)
{
    const float f32 = 1;
    const double f64 = 1;
    const uint16_t f16 = 0x3c00, bf16 = 0x3f80;
    const void *const one = dtype == RW_F64 ? (const void *)&f64 : dtype == RW_F32 ? (const void *)&f32
                            : dtype == RW_F16 ? &f16 : &bf16;
    const size_t size = rw_dtype_size(dtype);
    for (size_t i = 0; i < n; i++) memcpy((char *)to + i * size, one, size);
}

static rw_status upload(struct rw_run *r, uint64_t bytes)
{
    rw_context *const ctx = r->tape->ctx;
    char *const host = rw_malloc(bytes);
    if (!host) return RW_ERR_MEMORY;
    for (uint32_t i = 0; i < r->plan->n_roots; i++) {
        const struct rw_tensor *const y = root_value(r, i);
        fill(host + offset_of(r, i), (rw_dtype)y->dtype, (size_t)rw_layout_of(ctx, y)->numel);
    }
    const rw_status status = ctx->device->upload(ctx->device_state, r->ones, host, bytes);
    rw_free(host);
    return status;
}

static rw_status make_ones(struct rw_run *r)
{
    rw_context *const ctx = r->tape->ctx;
    const uint64_t bytes = offset_of(r, (uint32_t)r->plan->n_roots);
    if (r->ones_of == r->plan->serial) return RW_OK;
    if (r->n_ones < bytes) {
        void *const data = rw_context_alloc(ctx, bytes, false);
        if (!data) return RW_ERR_MEMORY;
        ctx->device->free(ctx->device_state, r->ones);
        r->ones = data;
        r->n_ones = bytes;
    }
    const rw_status status = upload(r, bytes);
    r->ones_of = status ? 0 : r->plan->serial;
    return status;
}

rw_status rw_root_gradients_prepare(struct rw_run *r)
{
    bool missing = false;
    for (size_t i = 0; r->plan->seeded && i < r->plan->n_roots; i++) missing |= !r->seeds || !r->seeds[i];
    const rw_status status = missing ? make_ones(r) : RW_OK;
    if (!status) return RW_OK;
    return rw_fail(r->tape->ctx, status, "run: %s at the first gradients of backward", rw_status_name(status));
}

void *rw_seed_of(const struct rw_run *r, uint32_t root)
{
    if (r->seeds && r->seeds[root]) return (void *)(uintptr_t)r->seeds[root];
    return (char *)r->ones + offset_of(r, root);
}
