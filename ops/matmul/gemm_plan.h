/*
 * The plan of a matrix product on the CPU: gemm_plan.c makes it; gemm_onednn.c, gemm_generated_operands.c,
 * gemm_shared_packing.c and gemm_widen_to_f32.c run it.
 */
#ifndef RW_OPS_MATMUL_GEMM_PLAN_H
#define RW_OPS_MATMUL_GEMM_PLAN_H

#include "ops/matmul/gemm_descriptor.h"

/* How an operand is generated: n panels of `tiles` tiles each except the last; bytes of one. */
struct gemm_panels {
    int64_t tiles, wide, n; /* wide: rows of a, columns of b */
    size_t bytes;
};

/*
 * oneDNN's code for AVX2 processes six rows at a time, in blocks of 48 or 96. It makes the last two blocks equal. It
 * sums left-over rows in another order, so a result would depend on the position of its row. Therefore it gets
 * multiples of 12 rows, padded with zeros if necessary. (As of oneDNN 2.6.3; larger tiles than ours take another path.)
 */
#define GEMM_ROWS_AVX2 12

/* The plan of a product: a function of shapes and strides alone. */
struct gemm_plan {
    bool own;  /* the plain loops, no workspace */
    bool amx;  /* the matrix unit, from panels of packed blocks (gemm_amx.h) */
    bool wide; /* oneDNN's float32, from widened parts of the operands (gemm_widen_to_f32.c) */
    bool packed; /* the packed loops (gemm_packed_cpu.c) */
    bool shared; /* the packed loops with parts of b shared by threads (gemm_shared_packing.c) */
    int64_t at_once; /* the number of rows given to the library is a multiple of this */
    int64_t copied;  /* rows of the last tile that are copied and padded for that; 0 for none */
    int64_t tile_m, tile_n, tiles_m, tiles_n;
    struct rw_onednn_primitive *primitive[2][2]; /* [last row of tiles][last column of tiles] */
    struct rw_onednn_primitive *filled[2];       /* for the copied rows; [last column of tiles] */
    size_t scratch, library_scratch;             /* per thread; the library's part comes first */
    size_t part;                                 /* bytes of a shared part of b; the workspace begins with two */
    int64_t band;                                /* blocks of rows whose sums are kept at a time, after them; or 0 */
    size_t sums;                                 /* bytes of these sums */
    size_t workspace;
    int threads;
    struct gemm_panels a, b; /* if operands are generated */
    bool holds_a;            /* panels of a are held while threads generate panels of b; else the reverse */
    int64_t depth;           /* depth of the widened parts */
};

/* Makes the plan. While planning, the library's primitives are created; a run finds them. g's operands are then those
   of the plan. room: bytes of available workspace. */
rw_status rw_gemm_make_plan(struct gemm *g, struct rw_onednn *onednn, int threads, bool planning, size_t room,
                            struct gemm_plan *ret);

/* Bytes of the panels that are not held: one for each thread, or all of them if there are fewer. */
size_t rw_gemm_panel_bytes(const struct gemm_plan *p);

/* Copied rows including the zero rows after them, and the bytes of these rows of a. */
int64_t rw_gemm_filled(const struct gemm_plan *p);
size_t rw_gemm_copy_bytes(const struct gemm *g, const struct gemm_plan *p);

struct gemm_tile {
    int64_t item, row, rows, col, cols;
    bool last_m, last_n;
};

/* Computes one tile with oneDNN, in the calling thread. */
rw_status rw_gemm_library_tile(const struct gemm *g, const struct gemm_plan *p, const struct gemm_tile *t, int thread,
                               char *scratch);

/* Runs a product with generated operands. */
rw_status rw_gemm_run_generated(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                                char *workspace);

/* ---- parts of b that threads share: gemm_shared_packing.c ---- */

/* Are there enough rows for that number of threads? */
bool rw_gemm_shares_parts(const struct gemm *g, int threads);
void rw_gemm_plan_shared(const struct gemm *g, struct gemm_plan *p);
void rw_gemm_run_shared(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                        char *workspace);

/* ---- products of 16-bit types in float32: gemm_widen_to_f32.c ---- */

/* Defined in gemm_onednn.c, which queries the processor. */
bool rw_gemm_is_widened(const struct gemm *g);
int64_t rw_gemm_rows_at_once(void);

/* The signature of one product by the library: rows and columns of a tile, or of the last tiles. */
struct rw_matmul_signature rw_gemm_wide_signature(const struct gemm *g, const struct gemm_plan *p, int64_t rows,
                                                  int64_t cols);

/* The depth of the widened parts, and a thread's memory for them and their product, in addition to p->scratch. */
int64_t rw_gemm_wide_depth(const struct gemm *g);
size_t rw_gemm_wide_scratch(const struct gemm_plan *p);

/* Computes one tile, in the calling thread. */
rw_status rw_gemm_wide_tile(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                            const struct gemm_tile *t, int thread, char *scratch);

#endif
