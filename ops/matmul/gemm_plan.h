/* How a product is carried out on the CPU: what gemm_plan.c decides, and others do. See gemm.h. */
#ifndef RW_OPS_MATMUL_GEMM_PLAN_H
#define RW_OPS_MATMUL_GEMM_PLAN_H

#include "ops/matmul/gemm.h"

/* How an operand is made: n panels of `tiles` tiles but for the last; bytes of one. */
struct gemm_panels {
    int64_t tiles, wide, n; /* wide: rows of a, columns of b */
    size_t bytes;
};

/*
 * The library's code for AVX2 takes six rows at a time, of blocks of 48 or 96 whose last two it makes equal. Rows left
 * over it sums in another order, and a row's bits would depend on where it lies. So it gets multiples of twelve, with
 * zeros behind the last one where there are not as many. (So it is in 2.6.3; tiles larger than ours take another way.)
 */
#define GEMM_ROWS_AVX2 12

/* How a product is carried out: a function of shapes and strides alone. */
struct gemm_plan {
    bool own;  /* the own loops, no workspace */
    bool amx;  /* the matrix unit, from panels of packed blocks (gemm_amx.h) */
    bool wide; /* oneDNN's float32, from parts of the operands that are widened (gemm_wide.c) */
    bool packed; /* the packed loops (gemm_packed_cpu.c) */
    bool shared; /* of these: threads share parts of b (gemm_shared.c) */
    int64_t at_once; /* rows that the library is given are a multiple of this */
    int64_t copied;  /* rows of the last tile that are copied for that; 0 for none */
    int64_t tile_m, tile_n, tiles_m, tiles_n;
    struct rw_onednn_primitive *primitive[2][2]; /* [last row of tiles][last column of tiles] */
    struct rw_onednn_primitive *filled[2];       /* of those that are copied; [last column of tiles] */
    size_t scratch, library_scratch;             /* per thread; what the library has of it, in front */
    size_t part;                                 /* bytes of one that is shared; there are two in front */
    int64_t band;                                /* pieces of rows whose sums lie behind these, at a time; or 0 */
    size_t sums;                                 /* bytes of these */
    size_t workspace;
    int threads;
    struct gemm_panels a, b; /* where there are any */
    bool holds_a;            /* a panel of a, while threads make panels of b; else the other way round */
    int64_t depth;           /* of the parts that are widened */
};

/* Planning, the library's primitives are made; a run finds them. g's operands are those of the plan from then on. room:
   the bytes of workspace that there are. */
rw_status rw_gemm_make_plan(struct gemm *g, struct rw_onednn *onednn, int threads, bool planning, size_t room,
                            struct gemm_plan *ret);

/* Of panels, one for each thread, or all of them where there are no more. */
size_t rw_gemm_panel_bytes(const struct gemm_plan *p);

/* Rows that are copied, with the zeros behind them, and the bytes of these of a. */
int64_t rw_gemm_filled(const struct gemm_plan *p);
size_t rw_gemm_copy_bytes(const struct gemm *g, const struct gemm_plan *p);

struct gemm_tile {
    int64_t item, row, rows, col, cols;
    bool last_m, last_n;
};

/* One tile by oneDNN, in the calling thread. */
rw_status rw_gemm_library_tile(const struct gemm *g, const struct gemm_plan *p, const struct gemm_tile *t, int thread,
                               char *scratch);

/* A product whose operands are made. */
rw_status rw_gemm_run_made(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                           char *workspace);

/* ---- parts of b that threads share: gemm_shared.c ---- */

/* Are there rows enough for so many threads? */
bool rw_gemm_shares_parts(const struct gemm *g, int threads);
void rw_gemm_plan_shared(const struct gemm *g, struct gemm_plan *p);
void rw_gemm_run_shared(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                        char *workspace);

/* ---- products of 16-bit types in float32: gemm_wide.c ---- */

/* In gemm_onednn.c, which knows the processor. */
bool rw_gemm_is_widened(const struct gemm *g);
int64_t rw_gemm_rows_at_once(void);

/* Of one product by the library: rows and columns of a tile, or of the last ones. */
struct rw_matmul_signature rw_gemm_wide_signature(const struct gemm *g, const struct gemm_plan *p, int64_t rows,
                                                  int64_t cols);

/* How deep the parts are, and what a thread has of them and of their product beside p->scratch. */
int64_t rw_gemm_wide_depth(const struct gemm *g);
size_t rw_gemm_wide_scratch(const struct gemm_plan *p);

/* One tile, in the calling thread. */
rw_status rw_gemm_wide_tile(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                            const struct gemm_tile *t, int thread, char *scratch);

#endif
