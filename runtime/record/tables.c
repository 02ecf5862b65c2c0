/* The tables of a context: ops and call sites, each entered once and found again by its index. Names: names.c. */
#include "record/context.h"

#include "base/alloc.h"

#include <string.h>

static size_t hash_pointer(const void *p)
{
    const uint64_t x = (uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u;
    return (size_t)(x >> 32);
}

static bool rehash_ops(rw_context *ctx)
{
    const size_t size = ctx->op_hash_size ? ctx->op_hash_size * 2 : 128;
    uint16_t *const hash = rw_calloc(size, sizeof *hash);
    if (!hash) return false;
    for (size_t n = 0; n < ctx->n_ops; n++) {
        size_t i = hash_pointer(ctx->ops[n]) & (size - 1);
        while (hash[i]) i = (i + 1) & (size - 1);
        hash[i] = (uint16_t)(n + 1);
    }
    rw_free(ctx->op_hash);
    ctx->op_hash = hash;
    ctx->op_hash_size = size;
    return true;
}

uint32_t rw_op_find(const rw_context *ctx, const rw_op_def *op)
{
    if (!ctx->op_hash_size) return RW_NONE_ID;
    for (size_t i = hash_pointer(op) & (ctx->op_hash_size - 1); ctx->op_hash[i]; i = (i + 1) & (ctx->op_hash_size - 1))
        if (ctx->ops[ctx->op_hash[i] - 1] == op) return ctx->op_hash[i] - 1u;
    return RW_NONE_ID;
}

uint32_t rw_op_index(rw_context *ctx, const rw_op_def *op)
{
    if (ctx->n_ops * 2 >= ctx->op_hash_size && !rehash_ops(ctx)) return RW_NONE_ID;
    size_t i = hash_pointer(op) & (ctx->op_hash_size - 1);
    for (; ctx->op_hash[i]; i = (i + 1) & (ctx->op_hash_size - 1))
        if (ctx->ops[ctx->op_hash[i] - 1] == op) return ctx->op_hash[i] - 1u;
    if (ctx->n_ops >= RW_NODE_MAX_OPS || !rw_grow(&ctx->ops, &ctx->cap_ops, ctx->n_ops, 1, sizeof *ctx->ops))
        return RW_NONE_ID;
    ctx->ops[ctx->n_ops] = op;
    ctx->op_hash[i] = (uint16_t)++ctx->n_ops;
    return (uint32_t)ctx->n_ops - 1;
}

static size_t hash_site(rw_site site)
{
    return hash_pointer((const char *)((uintptr_t)site.file + (uintptr_t)site.line * 0x10001u));
}

static bool rehash_sites(rw_context *ctx)
{
    const size_t size = ctx->site_hash_size ? ctx->site_hash_size * 2 : 256;
    uint32_t *const hash = rw_calloc(size, sizeof *hash);
    if (!hash) return false;
    for (size_t n = 0; n < ctx->n_sites; n++) {
        size_t i = hash_site(ctx->sites[n]) & (size - 1);
        while (hash[i]) i = (i + 1) & (size - 1);
        hash[i] = (uint32_t)n + 1;
    }
    rw_free(ctx->site_hash);
    ctx->site_hash = hash;
    ctx->site_hash_size = size;
    return true;
}

/* A caller whose file names are made anew in each step, as some other language's may be, has places without end. They
 * are for messages only: those that do not fit share the last entry. */
static rw_site entry_of(const rw_context *ctx, rw_site site)
{
    return ctx->n_sites < RW_SITES_MOST - 1 ? site : (rw_site){ "(one of very many places)", 0 };
}

uint32_t rw_site_index(rw_context *ctx, rw_site site)
{
    if (ctx->n_sites * 2 >= ctx->site_hash_size && !rehash_sites(ctx)) return RW_NONE_ID;
    size_t i = hash_site(site) & (ctx->site_hash_size - 1);
    for (; ctx->site_hash[i]; i = (i + 1) & (ctx->site_hash_size - 1)) {
        const rw_site *const known = &ctx->sites[ctx->site_hash[i] - 1];
        if (known->file == site.file && known->line == site.line) return ctx->site_hash[i] - 1;
    }
    if (ctx->n_sites == RW_SITES_MOST) return RW_SITES_MOST - 1;
    if (!rw_grow(&ctx->sites, &ctx->cap_sites, ctx->n_sites, 1, sizeof *ctx->sites)) return RW_NONE_ID;
    ctx->sites[ctx->n_sites] = entry_of(ctx, site);
    if (ctx->n_sites < RW_SITES_MOST - 1) ctx->site_hash[i] = (uint32_t)ctx->n_sites + 1;
    ctx->n_sites++;
    return (uint32_t)ctx->n_sites - 1;
}

size_t rw_tables_bytes(const rw_context *ctx)
{
    const struct rw_layout_table *const l = &ctx->layouts;
    return ctx->cap_ops * sizeof *ctx->ops + ctx->op_hash_size * sizeof *ctx->op_hash +
           ctx->cap_sites * sizeof *ctx->sites + ctx->site_hash_size * sizeof *ctx->site_hash +
           ctx->param_hash_size * sizeof *ctx->param_hash + ctx->names.cap * sizeof *ctx->names.text +
           ctx->names.hash_size * sizeof *ctx->names.hash +
           ctx->names.bytes + l->n_chunks * RW_LAYOUT_CHUNK * sizeof(rw_layout) + l->hash_size * sizeof *l->hash;
}

void rw_context_keep(rw_context *ctx, void *memory)
{
    void **const place = &ctx->kept[ctx->n_kept++ % RW_KEPT];
    rw_free(*place);
    *place = memory;
}

void rw_tables_finish(rw_context *ctx)
{
    for (size_t i = 0; i < RW_KEPT; i++) rw_free(ctx->kept[i]);
    rw_layout_table_finish(&ctx->layouts);
    rw_names_finish(&ctx->names);
    rw_free(ctx->ops);
    rw_free(ctx->op_hash);
    rw_free(ctx->sites);
    rw_free(ctx->site_hash);
}
