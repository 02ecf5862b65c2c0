/*
 * A transpose: the innermost axis of the result is strided in the input, and another axis is contiguous there. It is
 * copied tile by tile, so that every cache line that is read is fully used before it is evicted:
 *
 *            the input's dense axis                           the result's innermost axis
 *     +--------+--------+                              +--------+-----------------+
 *     |  tile  |        |    squares are transposed    |  tile  |                 |
 *     +--------+        |    in registers, into a      +--------+                 |
 *     |                 | -> copy in the cache,     -> |                          |
 *     |                 |    whose rows are then       |                          |
 *     |                 |    written completely        +--------------------------+
 *     +-----------------+
 *
 * Rows that are a power of two apart map to the same cache sets and evict each other: half a line would be fetched
 * twice.
 */
#ifndef RW_OPS_TRANSPOSE_H
#define RW_OPS_TRANSPOSE_H

#include "base/thread_team.h"
#include "ops/common/coalesced_axes.h"
#include "ops/common/register_transpose.h"
#include "ops/common/util.h"

#define TILE 32  /* elements of a tile's side */
#define PIECE 16 /* tiles along the innermost axis that a thread processes together */

struct transpose {
    const struct rw_axes *m;
    int axis;          /* the axis that is dense in the input */
    int64_t to_stride; /* its stride in the result */
    int64_t stride;    /* the innermost axis's stride in the input */
    int64_t tiles;     /* along the dense axis */
    int64_t pieces;    /* along the innermost one */
};

/* Can the copy be done by tiles? Fills in the extents of the tiles. */
static inline bool is_transpose(const rw_kernel *k, const struct rw_axes *m, struct transpose *ret)
{
    const int last = m->rank - 1;
    if (k->in[0].dtype != k->out[0].dtype || m->stride[0][last] < 2 || m->dim[last] < 8) return false;
    int64_t step = m->dim[last];
    for (int axis = last - 1; axis >= 0; axis--) {
        if (m->stride[0][axis] == 1 && m->dim[axis] >= 8) {
            *ret = (struct transpose){ .m = m, .axis = axis, .to_stride = step, .stride = m->stride[0][last],
                                       .tiles = (m->dim[axis] + TILE - 1) / TILE,
                                       .pieces = (m->dim[last] + PIECE * TILE - 1) / (PIECE * TILE) };
            return true;
        }
        step *= m->dim[axis];
    }
    return false;
}

/* Writes a tile's n rows of the result, `some` elements each, from a copy. */
VEC_INLINE void put_tile(void *y, int64_t row, const void *tile, int64_t n, int64_t some, size_t size)
{
    for (int64_t j = 0; j < n; j++) {
        char *const to = (char *)y + (size_t)(j * row) * size;
        const char *const from = (const char *)tile + (size_t)j * TILE * size;
        if (some == TILE) memcpy(to, from, TILE * size);
        else memcpy(to, from, (size_t)some * size);
    }
}

/* Prefetches the cache lines of n rows of x, `bytes` each, that are transposed next. */
VEC_INLINE void fetch_rows(const void *x, int64_t row, int64_t n, int64_t bytes)
{
    for (int64_t l = 0; l < n; l++)
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)x + l * row + i);
}

/* Transposes a square of x into a tile. */
#define SQUARE(name, type, vector, side, transposed)                                                           \
    VEC_INLINE void name(const type *x, int64_t stride, type *to)                                              \
    {                                                                                                          \
        vector r[side];                                                                                        \
        for (int i = 0; i < side; i++) r[i] = *(const vector *)(x + i * stride);                               \
        transposed(r);                                                                                         \
        for (int i = 0; i < side; i++) *(vector *)(to + i * TILE) = r[i];                                      \
    }

SQUARE(square_of_2, uint16_t, square_2, 8, transpose_square_2)
SQUARE(square_of_4, uint32_t, square_4, 8, transpose_square_4)
SQUARE(square_of_8, uint64_t, square_8, 4, transpose_square_8)

VEC_INLINE void square_of_1(const uint8_t *x, int64_t stride, uint8_t *to)
{
    *to = *x;
}

/* NAME_tile(): transposes a tile [some, n] of x, in squares, and element by element beyond the last square. NAME():
   `inner` elements of n rows of the result. */
#define TRANSPOSE(name, type, side, square)                                                                    \
    static void name##_tile(const type *x, int64_t stride, type tile[TILE][TILE], int64_t some, int64_t n)     \
    {                                                                                                          \
        const int64_t down = some / side * side, across = n / side * side;                                     \
        for (int64_t l = 0; l < down; l += side)                                                               \
            for (int64_t j = 0; j < across; j += side) square(x + l * stride + j, stride, &tile[j][l]);        \
        for (int64_t l = 0; l < some; l++)                                                                     \
            for (int64_t j = l < down ? across : 0; j < n; j++) tile[j][l] = x[l * stride + j];                \
    }                                                                                                          \
    static void name(const struct transpose *t, const type *x, type *y, int64_t n, int64_t inner)              \
    {                                                                                                          \
        const int64_t size = sizeof(type);                                                                     \
        type tile[TILE][TILE];                                                                                 \
        for (int64_t i = 0; i < inner; i += TILE, x += TILE * t->stride) {                                     \
            const int64_t rest = inner - i, next = rest - TILE < TILE ? rest - TILE : TILE;                    \
            fetch_rows(x + TILE * t->stride, t->stride * size, next, n * size);                                \
            name##_tile(x, t->stride, tile, rest < TILE ? rest : TILE, n);                                     \
            put_tile(y + i, t->to_stride, tile, n, rest < TILE ? rest : TILE, sizeof(type));                   \
        }                                                                                                      \
    }

TRANSPOSE(transpose_1, uint8_t, 1, square_of_1)
TRANSPOSE(transpose_2, uint16_t, 8, square_of_2)
TRANSPOSE(transpose_4, uint32_t, 8, square_of_4)
TRANSPOSE(transpose_8, uint64_t, 4, square_of_8)

/* Part number `part`: one tile along the dense axis, a section of the innermost one, one index along the others. */
static void transpose_part(const rw_kernel *k, const struct transpose *t, int64_t part)
{
    const struct rw_axes *const m = t->m;
    const int64_t i = part % t->pieces * PIECE * TILE, last = m->dim[m->rank - 1];
    const int64_t j = part / t->pieces % t->tiles * TILE;
    const int64_t inner = last - i < PIECE * TILE ? last - i : PIECE * TILE;
    const int64_t n = m->dim[t->axis] - j < TILE ? m->dim[t->axis] - j : TILE;
    int64_t rest = part / t->pieces / t->tiles, from = i * t->stride + j, to = i + j * t->to_stride, step = last;
    for (int axis = m->rank - 2; axis >= 0; axis--) {
        if (axis != t->axis) {
            from += rest % m->dim[axis] * m->stride[0][axis];
            to += rest % m->dim[axis] * step;
            rest /= m->dim[axis];
        }
        step *= m->dim[axis];
    }
    const void *const x = k->in[0].data;
    void *const y = k->out[0].data;
    switch (rw_dtype_size(k->out[0].dtype)) {
    case 1: transpose_1(t, (const uint8_t *)x + from, (uint8_t *)y + to, n, inner); break;
    case 2: transpose_2(t, (const uint16_t *)x + from, (uint16_t *)y + to, n, inner); break;
    case 4: transpose_4(t, (const uint32_t *)x + from, (uint32_t *)y + to, n, inner); break;
    default: transpose_8(t, (const uint64_t *)x + from, (uint64_t *)y + to, n, inner); break;
    }
}

struct transpose_parts {
    const rw_kernel *k;
    const struct transpose *t;
};

static void transpose_parts(void *of, int64_t first, int64_t end)
{
    const struct transpose_parts *const p = of;
    for (int64_t i = first; i < end; i++) transpose_part(p->k, p->t, i);
}

static inline void transpose_all(const rw_kernel *k, const struct transpose *t)
{
    const int64_t numel = k->out[0].layout->numel;
    const int64_t places = numel / (t->m->dim[t->axis] * t->m->dim[t->m->rank - 1]);
    struct transpose_parts p = { k, t };
    rw_team_for(rw_threads_for(k, numel), places * t->tiles * t->pieces, transpose_parts, &p);
}

#endif
