/*
 * Products of bfloat16 by the matrix unit of a processor (Intel AMX).
 *
 * Both operands are packed in blocks of 32 rows of a, or 32 columns of b, with zeros at the edges:
 *
 *     a [32 rows][depth]            b [depth][32 columns]
 *     a step: depth of 32           a step: depth of 32
 *     +------------------+          +---------+---------+
 *     | 16 rows x 16 pairs|  1 KiB  | 16 pairs x 16 cols |  1 KiB each; a pair is two adjacent elements
 *     +------------------+          +---------+---------+  along the depth
 *     | 16 rows x 16 pairs|
 *     +------------------+
 *
 * Four blocks of 16 x 16 sums, in float32, stay in the unit while a step of a is multiplied by a step of b. Each
 * element of c is one chain of sums over the depth, wherever it is in c, so it depends on neither tiles nor threads.
 */
#ifndef RW_OPS_MATMUL_GEMM_AMX_H
#define RW_OPS_MATMUL_GEMM_AMX_H

#include "ops/matmul/gemm_descriptor.h"

#define AMX_BLOCK 32 /* rows of a, columns of b, and the depth of a step */

/* Do the processor and this build have the unit, and is it faster for this product? Decided by the product's shape and
   strides alone. */
bool rw_gemm_amx_takes(const struct gemm *g);

/* The depth of packed blocks. */
static inline int64_t rw_gemm_amx_depth(const struct gemm *g)
{
    return gemm_align(g->k, AMX_BLOCK);
}

/*
 * Packs n rows of a, or columns of b, from `first` on, out of g->a or g->b or their generators. If an operand has
 * picks, packed row i is row picks[i] of the stored matrix. These are either rows of an a that is contiguous along the
 * depth (then first is 0), or the depth of an operand that is contiguous across it.
 */
void rw_gemm_amx_pack(const struct gemm *g, bool is_a, int64_t first, int64_t n, uint16_t *to);

/* Bytes that a thread needs for a tile of c. */
size_t rw_gemm_amx_scratch(const struct gemm *g, int64_t tile_m, int64_t tile_n);

/* Computes a tile of c from packed blocks: the rows of a, the columns of b, g->c, g->sum and g->bias begin at the tile.
   outer_a: the blocks of a are the outer loop and stay in the L1 cache while those of b are streamed; otherwise the
   reverse. */
void rw_gemm_amx_tile(const struct gemm *g, const uint16_t *a, const uint16_t *b, int64_t rows, int64_t cols,
                      bool outer_a, float *scratch);

#endif
