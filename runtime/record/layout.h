/*
 * The table of layouts. Equal layouts are one pointer and one index, so a value stores four bytes and shapes compare
 * by ==. An index belongs to its layout while somebody uses it: see rw_layout_sweep().
 */
#ifndef RW_RECORD_LAYOUT_H
#define RW_RECORD_LAYOUT_H

#include <rewind/op.h>

#define RW_FAULT_MAX 192 /* room for what a check of extents says */

struct rw_layout_table {
    rw_layout **chunks; /* of RW_LAYOUT_CHUNK layouts each: they never move */
    size_t n, n_chunks, cap_chunks;
    size_t n_used;       /* entries that are not free: a free one has a rank of -1 */
    size_t sweep_at;     /* with so many there is something to be swept */
    size_t search;       /* no entry before this one is free */
    uint64_t generation; /* counts sweeps: between two of them an index means one layout */
    uint32_t *hash; /* index + 1, open addressing */
    size_t hash_size;
};

#define RW_LAYOUT_CHUNK 256

/* The layout, entered on first sight; NULL without memory. */
const rw_layout *rw_layout_dense(struct rw_layout_table *table, rw_shape shape);
const rw_layout *rw_layout_strided(struct rw_layout_table *table, rw_shape shape, const int64_t *stride,
                                   int64_t offset);
void rw_layout_table_finish(struct rw_layout_table *table);

/* Many more than after the last sweep: time for the next one. */
bool rw_layout_sweep_is_due(const struct rw_layout_table *table);

/* Frees the entries that are not marked. used: one byte for each of table->n. */
void rw_layout_sweep(struct rw_layout_table *table, const bool *used);

static inline const rw_layout *rw_layout_get(const struct rw_layout_table *table, uint32_t id)
{
    return &table->chunks[id / RW_LAYOUT_CHUNK][id % RW_LAYOUT_CHUNK];
}

/* Where element number i, counted row by row, lies behind the first one. */
static inline int64_t rw_layout_place(const rw_layout *l, int64_t i)
{
    int64_t at = 0;
    for (int axis = l->rank - 1; axis >= 0; axis--) {
        at += i % l->dim[axis] * l->stride[axis];
        i /= l->dim[axis];
    }
    return at;
}

/* The bytes of a view whose elements lie one after the other, and those from its first element to its last. */
static inline size_t rw_view_bytes(const rw_view *v)
{
    return (size_t)v->layout->numel * rw_dtype_size(v->dtype);
}

static inline size_t rw_view_span(const rw_view *v)
{
    return (size_t)v->layout->span * rw_dtype_size(v->dtype);
}

/* True for a layout that covers its whole buffer: dense and starting at its beginning. */
static inline bool rw_layout_is_whole(const rw_layout *l)
{
    return l->dense && l->offset == 0;
}

/*
 * The one check of extents: of an input, a parameter, an output of any op, a shape among an op's attributes. RW_OK for
 * a type and shape that a tensor can have, with all products in 64 bits; else a status, and what is wrong in text.
 */
rw_status rw_shape_fault(rw_dtype dtype, rw_shape shape, char *text, size_t size);

/* The same for a view into a buffer of so many elements, which it may not leave. Strides are 0 or more. */
rw_status rw_view_fault(rw_shape shape, const int64_t *stride, int64_t offset, int64_t elements, char *text,
                        size_t size);

#endif
