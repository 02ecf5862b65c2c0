/*
 * The table of layouts. Equal layouts have one pointer and one index, so a value stores four bytes, and shapes are
 * compared by ==. An index belongs to its layout as long as something uses it: see rw_layout_sweep().
 */
#ifndef RW_RECORD_LAYOUT_H
#define RW_RECORD_LAYOUT_H

#include "base/shape_text.h"

#include <rewind/op.h>

#define RW_FAULT_MAX 384 /* bytes of the text of a failed check of extents */

struct rw_layout_table {
    rw_layout **chunks; /* of RW_LAYOUT_CHUNK layouts each: they never move */
    size_t n, n_chunks, cap_chunks;
    size_t n_used;       /* entries in use; a free one has the rank -1 */
    size_t sweep_at;     /* number of layouts at which unused ones are collected */
    size_t search;       /* no entry before this one is free */
    uint64_t generation; /* number of sweeps: between two of them an index denotes one layout. Whatever keeps an index,
                            or words with one, longer than its layout is marked compares generations, too */
    uint32_t *hash; /* index + 1, open addressing */
    size_t hash_size;
};

#define RW_LAYOUT_CHUNK 256

/* Finds or adds the layout; NULL without memory. */
const rw_layout *rw_layout_dense(struct rw_layout_table *table, rw_shape shape);
const rw_layout *rw_layout_strided(struct rw_layout_table *table, rw_shape shape, const int64_t *stride,
                                   int64_t offset);
void rw_layout_table_finish(struct rw_layout_table *table);

/* True if there are many more than after the last sweep, so that the next one is due. */
bool rw_layout_sweep_is_due(const struct rw_layout_table *table);

/* Frees the entries that are not marked. used: one byte for each of table->n. */
void rw_layout_sweep(struct rw_layout_table *table, const bool *used);

static inline const rw_layout *rw_layout_get(const struct rw_layout_table *table, uint32_t id)
{
    return &table->chunks[id / RW_LAYOUT_CHUNK][id % RW_LAYOUT_CHUNK];
}

/* Offset of element i, in row-major order, from the first one. */
static inline int64_t rw_layout_place(const rw_layout *l, int64_t i)
{
    int64_t at = 0;
    for (int axis = l->rank - 1; axis >= 0; axis--) {
        at += i % l->dim[axis] * l->stride[axis];
        i /= l->dim[axis];
    }
    return at;
}

/* Bytes of a dense view, and bytes from its first element to its last. */
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
 * The one check of extents: for an input, a parameter, an output of any op, a shape among an op's attributes. RW_OK for
 * a type and shape that a tensor can have, with all products in 64 bits; otherwise a status, and the fault in text.
 */
rw_status rw_shape_fault(rw_dtype dtype, rw_shape shape, char *text, size_t size);

/* The same for a view of a buffer of so many elements, which it must not leave. Strides are 0 or more. */
rw_status rw_view_fault(rw_shape shape, const int64_t *stride, int64_t offset, int64_t elements, char *text,
                        size_t size);

#endif
