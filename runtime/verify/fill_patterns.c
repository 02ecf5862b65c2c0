/* Digests and patterns: on the host directly, on a device by its own functions. */
#include "verify/fill_patterns.h"

#include <string.h>

#define BLOCK ((size_t)1 << 16)

const unsigned char rw_pattern_byte[RW_PATTERNS] = { 0x7b, 0xff, 0xfb, 0x3f, 0x00, 0x41 };

/* Host memory is filled and compared in place. */
static bool is_pattern(const void *data, size_t bytes, enum rw_pattern pattern)
{
    const unsigned char *const p = data;
    return p[0] == rw_pattern_byte[pattern] && !memcmp(p, p + 1, bytes - 1);
}

static rw_status make_block(struct rw_patterns *p, enum rw_pattern pattern)
{
    const rw_context *const ctx = p->ctx;
    unsigned char host[RW_MARGIN];
    memset(host, rw_pattern_byte[pattern], sizeof host);
    p->block[pattern] = ctx->device->alloc(ctx->device_state, BLOCK);
    if (!p->block[pattern]) return RW_ERR_MEMORY;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < BLOCK; i += sizeof host)
        status = ctx->device->upload(ctx->device_state, p->block[pattern] + i, host, sizeof host);
    return status ? status : rw_patterns_digest(p, p->block[pattern], RW_MARGIN, &p->margin[pattern]);
}

rw_status rw_patterns_open(struct rw_patterns *p, rw_context *ctx)
{
    *p = (struct rw_patterns){ .ctx = ctx };
    p->digest = ctx->device->alloc(ctx->device_state, sizeof *p->digest);
    rw_status status = p->digest ? RW_OK : RW_ERR_MEMORY;
    const int blocks = ctx->device->on_host ? 0 : RW_PATTERNS;
    for (int i = 0; !status && i < blocks; i++) status = make_block(p, (enum rw_pattern)i);
    return status ? rw_fail(ctx, status, "verification: %s", rw_status_name(status)) : RW_OK;
}

void rw_patterns_close(struct rw_patterns *p)
{
    if (!p->ctx) return;
    const rw_context *const ctx = p->ctx;
    ctx->device->free(ctx->device_state, p->digest);
    for (int i = 0; i < RW_PATTERNS; i++) ctx->device->free(ctx->device_state, p->block[i]);
    *p = (struct rw_patterns){ 0 };
}

rw_status rw_patterns_digest(const struct rw_patterns *p, const void *data, size_t bytes, struct rw_digest *ret)
{
    const rw_context *const ctx = p->ctx;
    rw_status status = ctx->device->digest(ctx->device_state, data, bytes, ctx->threads, p->digest);
    if (!status) status = ctx->device->download(ctx->device_state, ret, p->digest, sizeof *ret);
    return status;
}

rw_status rw_patterns_fill(const struct rw_patterns *p, void *data, size_t bytes, enum rw_pattern pattern)
{
    const rw_context *const ctx = p->ctx;
    rw_status status = RW_OK;
    if (ctx->device->on_host) {
        if (bytes) memset(data, rw_pattern_byte[pattern], bytes);
        return RW_OK;
    }
    for (size_t i = 0; !status && i < bytes; i += BLOCK) {
        const size_t n = bytes - i < BLOCK ? bytes - i : BLOCK;
        status = ctx->device->upload(ctx->device_state, (char *)data + i, p->block[pattern], n);
    }
    return status;
}

rw_status rw_patterns_margin(const struct rw_patterns *p, const void *data, enum rw_pattern pattern, bool *ret_whole,
                             size_t *ret_first, size_t *ret_last)
{
    const rw_context *const ctx = p->ctx;
    struct rw_digest d;
    unsigned char host[RW_MARGIN];
    rw_status status = ctx->device->on_host ? RW_OK : rw_patterns_digest(p, data, RW_MARGIN, &d);
    *ret_whole = ctx->device->on_host ? is_pattern(data, RW_MARGIN, pattern)
                                      : !status && rw_digest_equal(d, p->margin[pattern]);
    *ret_first = *ret_last = 0;
    if (status || *ret_whole) return status;
    status = ctx->device->download(ctx->device_state, host, data, RW_MARGIN);
    while (*ret_first < RW_MARGIN - 1 && host[*ret_first] == rw_pattern_byte[pattern]) ++*ret_first;
    for (*ret_last = RW_MARGIN - 1; *ret_last > *ret_first && host[*ret_last] == rw_pattern_byte[pattern];) --*ret_last;
    return status;
}
