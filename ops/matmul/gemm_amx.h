/*
 * Products of bfloat16 by the matrix unit of a processor (Intel AMX).
 *
 * Both operands are packed in blocks of 32 rows of a, or 32 columns of b, zero-filled at the edges:
 *
 *     a [32 rows][depth]            b [depth][32 columns]
 *     a step: 32 numbers of depth   a step: 32 numbers of depth
 *     +------------------+          +---------+---------+
 *     | 16 rows x 16 pairs|  1 KiB  | 16 pairs x 16 cols |  1 KiB each; a pair is two numbers that follow one
 *     +------------------+          +---------+---------+  another along the depth
 *     | 16 rows x 16 pairs|
 *     +------------------+
 *
 * Four sums of 16 x 16 numbers, in float32, stay in the unit while a step of a meets a step of b. Each number of c is
 * one chain of sums over the depth, wherever it lies in c: its bits depend on neither tiles nor threads.
 */
#ifndef RW_OPS_MATMUL_GEMM_AMX_H
#define RW_OPS_MATMUL_GEMM_AMX_H

#include "ops/matmul/gemm.h"

#define AMX_BLOCK 32 /* rows of a, columns of b, and the depth of a step */

/* Has the processor, and this build, the unit, and does the product pay there? By its shape and strides alone. */
bool rw_gemm_amx_takes(const struct gemm *g);

/* The depth of packed blocks. */
static inline int64_t rw_gemm_amx_depth(const struct gemm *g)
{
    return gemm_align(g->k, AMX_BLOCK);
}

/*
 * Packs rows of a, or columns of b, from `first` on, n of them. From g->a or g->b, or what makes them. Where an operand
 * has picks, row i of what is packed is row picks[i] of what lies there: n rows of an a whose numbers along the depth
 * lie side by side (then first is 0), or the depth of an operand whose numbers across it do.
 */
void rw_gemm_amx_pack(const struct gemm *g, bool is_a, int64_t first, int64_t n, uint16_t *to);

/* Bytes that a thread needs for a tile of c. */
size_t rw_gemm_amx_scratch(const struct gemm *g, int64_t tile_m, int64_t tile_n);

/* A tile of c from packed blocks: a's rows and b's columns, g->c, g->sum and g->bias begin at the tile. outer_a: blocks
   of a stay in the nearest cache while those of b pass by, else the other way round. */
void rw_gemm_amx_tile(const struct gemm *g, const uint16_t *a, const uint16_t *b, int64_t rows, int64_t cols,
                      bool outer_a, float *scratch);

#endif
