/* The table of layouts: open addressing over chunks that never move, so pointers stay valid. */
#include "record/layout.h"

#include "base/alloc.h"
#include "record/api_entry.h"

#include <stdio.h>
#include <string.h>

#define FREE (-1)         /* the rank of an entry without a layout */
#define SWEEP_FROM 8192

static uint64_t hash_layout(const rw_layout *l)
{
    uint64_t h = (uint64_t)l->rank * 0x9e3779b97f4a7c15u ^ (uint64_t)l->offset;
    for (int i = 0; i < l->rank; i++) {
        h = (h ^ (uint64_t)l->dim[i]) * 0xff51afd7ed558ccdu;
        h = (h ^ (h >> 32) ^ (uint64_t)l->stride[i]) * 0xc4ceb9fe1a85ec53u;
    }
    return h ^ (h >> 29);
}

static bool same_layout(const rw_layout *a, const rw_layout *b)
{
    if (a->rank != b->rank || a->offset != b->offset) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i] || a->stride[i] != b->stride[i]) return false;
    return true;
}

static void enter_all(struct rw_layout_table *t)
{
    for (uint32_t id = 0; id < t->n; id++) {
        const rw_layout *const l = rw_layout_get(t, id);
        if (l->rank == FREE) continue;
        size_t i = hash_layout(l) & (t->hash_size - 1);
        while (t->hash[i]) i = (i + 1) & (t->hash_size - 1);
        t->hash[i] = id + 1;
    }
}

static bool rehash(struct rw_layout_table *t)
{
    const size_t size = t->hash_size ? t->hash_size * 2 : 256;
    uint32_t *const hash = rw_calloc(size, sizeof *hash);
    if (!hash) return false;
    rw_free(t->hash);
    t->hash = hash;
    t->hash_size = size;
    enter_all(t);
    return true;
}

static bool add_chunk(struct rw_layout_table *t)
{
    if (!rw_grow(&t->chunks, &t->cap_chunks, t->n_chunks, 1, sizeof *t->chunks)) return false;
    t->chunks[t->n_chunks] = rw_malloc(RW_LAYOUT_CHUNK * sizeof(rw_layout));
    if (!t->chunks[t->n_chunks]) return false;
    t->n_chunks++;
    return true;
}

/* A free entry, or one past the last. */
static rw_layout *take_entry(struct rw_layout_table *t, uint32_t *ret_id)
{
    if (t->n_used == t->n) {
        if (t->n == t->n_chunks * RW_LAYOUT_CHUNK && !add_chunk(t)) return NULL;
        *ret_id = (uint32_t)t->n++;
    } else {
        while (rw_layout_get(t, (uint32_t)t->search)->rank != FREE) t->search++;
        *ret_id = (uint32_t)t->search;
    }
    return &t->chunks[*ret_id / RW_LAYOUT_CHUNK][*ret_id % RW_LAYOUT_CHUNK];
}

bool rw_layout_sweep_is_due(const struct rw_layout_table *t)
{
    return t->n_used >= (t->sweep_at ? t->sweep_at : SWEEP_FROM);
}

void rw_layout_sweep(struct rw_layout_table *t, const bool *used)
{
    for (uint32_t id = 0; id < t->n; id++) {
        rw_layout *const l = &t->chunks[id / RW_LAYOUT_CHUNK][id % RW_LAYOUT_CHUNK];
        if (used[id] || l->rank == FREE) continue;
        l->rank = FREE;
        t->n_used--;
    }
    t->search = 0;
    t->generation++;
    t->sweep_at = 2 * t->n_used > SWEEP_FROM ? 2 * t->n_used : SWEEP_FROM;
    memset(t->hash, 0, t->hash_size * sizeof *t->hash);
    enter_all(t);
}

static const rw_layout *intern(struct rw_layout_table *t, rw_layout *l)
{
    if (t->n_used * 2 >= t->hash_size && !rehash(t)) return NULL;
    size_t i = hash_layout(l) & (t->hash_size - 1);
    for (; t->hash[i]; i = (i + 1) & (t->hash_size - 1)) {
        const rw_layout *const known = rw_layout_get(t, t->hash[i] - 1);
        if (same_layout(known, l)) return known;
    }
    rw_layout *const entry = take_entry(t, &l->id);
    if (!entry) return NULL;
    *entry = *l;
    t->hash[i] = l->id + 1;
    t->n_used++;
    return entry;
}

const rw_layout *rw_layout_dense(struct rw_layout_table *table, rw_shape shape)
{
    rw_layout l = { .rank = shape.rank, .numel = 1, .dense = true };
    for (int i = shape.rank - 1; i >= 0; i--) {
        l.dim[i] = shape.dim[i];
        l.stride[i] = l.numel;
        l.numel *= shape.dim[i];
    }
    l.span = l.numel;
    return intern(table, &l);
}

const rw_layout *rw_layout_strided(struct rw_layout_table *table, rw_shape shape, const int64_t *stride, int64_t offset)
{
    rw_layout l = { .rank = shape.rank, .numel = 1, .dense = true, .offset = offset };
    int64_t last = 0;
    for (int i = shape.rank - 1; i >= 0; i--) {
        l.dim[i] = shape.dim[i];
        /* An axis of extent 1 has no stride of its own, so equal layouts have one form. */
        l.stride[i] = shape.dim[i] == 1 ? l.numel : stride[i];
        if (l.stride[i] != l.numel) l.dense = false;
        if (l.dim[i]) last += (l.dim[i] - 1) * l.stride[i]; /* with no elements the stride is irrelevant */
        l.numel *= shape.dim[i];
    }
    l.span = l.numel ? last + 1 : 0;
    if (!l.numel) l.dense = true;
    return intern(table, &l);
}

void rw_layout_table_finish(struct rw_layout_table *table)
{
    for (size_t i = 0; i < table->n_chunks; i++) rw_free(table->chunks[i]);
    rw_free(table->chunks);
    rw_free(table->hash);
    *table = (struct rw_layout_table){ 0 };
}

rw_shape rw_layout_shape(const rw_layout *layout)
{
    RW_LOOKS_ONLY;
    if (!layout) return RW_SCALAR;
    rw_shape shape = { .rank = layout->rank };
    memcpy(shape.dim, layout->dim, sizeof shape.dim);
    return shape;
}

/* An extent of 0 does not make the others harmless: strides and workspaces are computed from them. */
rw_status rw_shape_fault(rw_dtype dtype, rw_shape shape, char *text, size_t size)
{
    int64_t n = 16; /* bytes of the largest element, so that numel times the size of an element also fits */
    if ((unsigned)dtype >= RW_DTYPE_COUNT) {
        snprintf(text, size, "dtype: expected RW_F32 (%d) to RW_F8_E8M0 (%d), got %d", RW_F32, RW_F8_E8M0, (int)dtype);
        return RW_ERR_DTYPE;
    }
    if (shape.rank < 0 || shape.rank > RW_MAX_RANK) {
        snprintf(text, size, "shape: expected a rank of 0 to %d, got %d", RW_MAX_RANK, (int)shape.rank);
        return RW_ERR_SHAPE;
    }
    for (int i = 0; i < shape.rank; i++) {
        const int64_t d = shape.dim[i];
        if (d >= 0 && !__builtin_mul_overflow(n, d ? d : 1, &n)) continue;
        char got[RW_SHAPE_TEXT];
        rw_shape_text(got, sizeof got, shape);
        if (d < 0) snprintf(text, size, "shape: expected extents of 0 or more, got %s", got);
        else snprintf(text, size, "shape: expected fewer than 2^63 bytes at 16 bytes per element, got %s", got);
        return RW_ERR_SHAPE;
    }
    return RW_OK;
}

/* Checks with overflow-checked arithmetic, because strides and offsets come from callers. */
rw_status rw_view_fault(rw_shape shape, const int64_t *stride, int64_t offset, int64_t elements, char *text,
                        size_t size)
{
    const rw_status status = rw_shape_fault(RW_F32, shape, text, size);
    if (status) return status;
    int64_t last = offset, way;
    bool empty = false, inside = offset >= 0;
    for (int i = 0; i < shape.rank; i++) {
        empty |= shape.dim[i] == 0;
        inside = inside && (shape.dim[i] < 2 || (stride[i] >= 0 &&
                                                 !__builtin_mul_overflow(shape.dim[i] - 1, stride[i], &way) &&
                                                 !__builtin_add_overflow(last, way, &last)));
    }
    if (inside && (empty || last < elements)) return RW_OK;
    char got[RW_SHAPE_TEXT];
    rw_shape_text(got, sizeof got, shape);
    snprintf(text, size, "view: expected elements 0 to %lld, those of its buffer, got shape %s from element %lld, with "
                         "strides that leave it", (long long)elements - 1, got, (long long)offset);
    return RW_ERR_SHAPE;
}
