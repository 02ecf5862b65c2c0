/* The tables of a context: ops and call sites, each stored once and referenced by index. Names are in names.c. */
#include "record/context.h"

#include "base/alloc.h"

#include <string.h>

#define RW_VERY_MANY "(one of very many places)"

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

/* ---- call sites ---- */

/* The context's copy of a file's name, NULL without memory. Callers pass the same few addresses repeatedly, so the
   text at an address is compared only once per destroyed tape. */
static const char *kept_file(rw_context *ctx, const char *file)
{
    if (!file) return RW_NO_FILE;
    struct rw_known_file *const known = &ctx->known_files[hash_pointer(file) % RW_KNOWN_FILES];
    if (known->file == file && known->n_tapes_gone == ctx->n_tapes_gone) return ctx->files.text[known->index];
    const uint32_t index = rw_names_index(&ctx->files, file);
    if (index == RW_NAME_NONE) return ctx->files.n_used == RW_NAMES_MAX ? RW_VERY_MANY : NULL;
    *known = (struct rw_known_file){ file, index, ctx->n_tapes_gone };
    return ctx->files.text[index];
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

/* A caller that creates file names in each step, as a binding of another language may, has unlimited call sites.
   They only serve messages, so those that do not fit share the last entry. */
static rw_site entry_of(const rw_context *ctx, rw_site site)
{
    return ctx->n_sites < RW_SITES_MAX - 1 ? site : (rw_site){ RW_VERY_MANY, 0 };
}

/* Index of a call site whose file is one of the copies. */
static uint32_t index_of_kept(rw_context *ctx, rw_site site)
{
    if (ctx->n_sites * 2 >= ctx->site_hash_size && !rehash_sites(ctx)) return RW_NONE_ID;
    size_t i = hash_site(site) & (ctx->site_hash_size - 1);
    for (; ctx->site_hash[i]; i = (i + 1) & (ctx->site_hash_size - 1)) {
        const rw_site *const known = &ctx->sites[ctx->site_hash[i] - 1];
        if (known->file == site.file && known->line == site.line) return ctx->site_hash[i] - 1;
    }
    if (ctx->n_sites == RW_SITES_MAX) return RW_SITES_MAX - 1;
    if (!rw_grow(&ctx->sites, &ctx->cap_sites, ctx->n_sites, 1, sizeof *ctx->sites)) return RW_NONE_ID;
    ctx->sites[ctx->n_sites] = entry_of(ctx, site);
    if (ctx->n_sites < RW_SITES_MAX - 1) ctx->site_hash[i] = (uint32_t)ctx->n_sites + 1;
    ctx->n_sites++;
    return (uint32_t)ctx->n_sites - 1;
}

uint32_t rw_site_index(rw_context *ctx, rw_site site)
{
    struct rw_known_site *const known = &ctx->known_sites[hash_site(site) % RW_KNOWN_SITES];
    if (known->site.file == site.file && known->site.line == site.line && known->n_tapes_gone == ctx->n_tapes_gone &&
        site.file)
        return known->index;
    const char *const file = kept_file(ctx, site.file);
    const uint32_t index = file ? index_of_kept(ctx, (rw_site){ file, site.line }) : RW_NONE_ID;
    if (index != RW_NONE_ID) *known = (struct rw_known_site){ site, index, ctx->n_tapes_gone };
    return index;
}

rw_site rw_site_kept(rw_context *ctx, rw_site site)
{
    const uint32_t index = rw_site_index(ctx, site);
    return index == RW_NONE_ID ? (rw_site){ RW_NO_FILE, site.line } : ctx->sites[index];
}

size_t rw_tables_bytes(const rw_context *ctx)
{
    const struct rw_layout_table *const l = &ctx->layouts;
    return ctx->cap_ops * sizeof *ctx->ops + ctx->op_hash_size * sizeof *ctx->op_hash +
           ctx->cap_sites * sizeof *ctx->sites + ctx->site_hash_size * sizeof *ctx->site_hash +
           ctx->param_hash_size * sizeof *ctx->param_hash + ctx->names.cap * sizeof *ctx->names.text +
           ctx->names.hash_size * sizeof *ctx->names.hash +
           ctx->names.bytes + ctx->files.cap * sizeof *ctx->files.text +
           ctx->files.hash_size * sizeof *ctx->files.hash + ctx->files.bytes +
           l->n_chunks * RW_LAYOUT_CHUNK * sizeof(rw_layout) + l->hash_size * sizeof *l->hash;
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
    rw_names_finish(&ctx->files);
    rw_free(ctx->ops);
    rw_free(ctx->op_hash);
    rw_free(ctx->sites);
    rw_free(ctx->site_hash);
}
