/* Shared by embedding's op definition and its CUDA kernels: parameters of the sort, and workspace. Also the check of a
   padding row. C11 and C++17. */
#ifndef RW_OPS_EMBEDDING_H
#define RW_OPS_EMBEDDING_H

#include <rewind/op.h>

struct rw_table_attrs {
    int64_t rows, width;
};

/* Tokens that one block ranks in a pass of the sort, digits of a pass, and tokens that are summed in one run. */
#define RW_SORT_TILE 2048
#define RW_SORT_DIGITS 256
#define RW_SUM_RUN 64

/* Offsets in the workspace of the gradient on CUDA, in bytes. Each is a multiple of 256. */
struct rw_embedding_space {
    size_t keys[2], tokens[2]; /* before and after a pass */
    size_t counts;             /* of each digit in each tile */
    size_t sums;               /* of a row's tokens at the start and at the end of each run */
    size_t bytes;
};

static inline size_t rw_embedding_place(size_t *at, size_t bytes)
{
    const size_t place = *at;
    *at += (bytes + 255) / 256 * 256;
    return place;
}

static inline struct rw_embedding_space rw_embedding_space_of(int64_t tokens, int64_t width, rw_dtype dtype)
{
    const size_t n = (size_t)tokens;
    const size_t tiles = (n + RW_SORT_TILE - 1) / RW_SORT_TILE, runs = (n + RW_SUM_RUN - 1) / RW_SUM_RUN;
    struct rw_embedding_space s;
    size_t at = 0;
    for (int i = 0; i < 2; i++) s.keys[i] = rw_embedding_place(&at, n * sizeof(int32_t));
    for (int i = 0; i < 2; i++) s.tokens[i] = rw_embedding_place(&at, n * sizeof(int32_t));
    s.counts = rw_embedding_place(&at, tiles * RW_SORT_DIGITS * sizeof(int32_t));
    s.sums = rw_embedding_place(&at, 2 * runs * (size_t)width * (dtype == RW_F64 ? sizeof(double) : sizeof(float)));
    s.bytes = at;
    return s;
}

#ifdef __cplusplus
extern "C" {
#endif

/* The padding row of a function's parameters, as a row from the start; -1 without one. False, with an error that names
   `what`, if it is not in the table. */
bool rw_padding_row_at(rw_site at, rw_tape *t, const char *what, const rw_tensor *table, bool has, int64_t index,
                       int64_t *ret_row);

#ifdef __cplusplus
}
#endif

#endif
