/*
 * Products of float32 by the packed loops, in which all threads pack parts of b together and share them.
 *
 *                    b, some columns
 *                 .--------------------.
 *                 | part 0, DEPTH deep |   all threads pack it, each some columns; when it is complete,
 *     a           |--------------------|
 *     .------.    | part 1             |   each takes rows of a, packs them to the same depth, and adds
 *     | rows |    '--------------------'   their product with all columns of the part to c
 *     '------'
 *
 * If c is added to an addend, sums are kept in separate memory until they are complete. They are kept for one band of
 * rows, which is multiplied by all parts of its columns before the next band.
 *
 * Parts alternate between two buffers. A thread without rows left packs the next part while others still multiply by
 * the current one. The last rows are taken a few at a time, so threads wait for each other once per part, and briefly.
 * Tiles, each of which packs for itself, would pack three to five times as many elements, which is 8 % of a step of a
 * ViT.
 *
 * An element of c is the same chain of sums as in a tile (gemm_packed_cpu.c).
 */
#include "ops/common/work_stealing.h"
#include "ops/matmul/gemm_plan.h"

#define COLS 768        /* maximum columns of a part */
/* If sums are kept in separate memory: bytes of them per thread, which determine the height of bands. */
#define SUMS_BYTES ((int64_t)2 << 20)
#define COLS_AT_ONCE 64 /* packed by a thread at a time */
/* A thread takes a block of rows in this many grains, and fewer grains when few are left. */
#define GRAINS 4
#define GRAIN (GEMM_PACKED_ROWS / GRAINS)

/* Minimum number of row blocks per thread, so that threads still have rows when others have taken theirs. With fewer,
   each thread computes tiles. The decision may depend on the number of threads, because the result does not. */
#define PIECES_MIN 4

bool rw_gemm_shares_parts(const struct gemm *g, int threads)
{
    const int64_t pieces = g->m / GEMM_PACKED_ROWS;
    return g->dtype == RW_F32 && !g->panels && pieces >= PIECES_MIN * threads;
}

/* Plans bands of equal height, as high as the memory for their sums allows. */
static void plan_sums(struct gemm_plan *p)
{
    const int64_t piece = p->tile_m * p->tile_n * (int64_t)sizeof(float), most = p->threads * SUMS_BYTES / piece;
    p->band = gemm_ceil_div(p->tiles_m, gemm_ceil_div(p->tiles_m, most));
    p->sums = (size_t)gemm_align(p->band * piece, GEMM_SCRATCH_ALIGN);
}

/* Tiles are what a thread multiplies at a time. */
void rw_gemm_plan_shared(const struct gemm *g, struct gemm_plan *p)
{
    const bool beside = rw_gemm_packs_sums(g);
    const int64_t panels = gemm_ceil_div(g->n, COLS), floats = (int64_t)sizeof(float);
    p->packed = p->shared = true;
    p->tile_m = GEMM_PACKED_ROWS;
    p->tile_n = gemm_align(gemm_ceil_div(g->n, panels), GEMM_PACKED_LANES);
    p->tiles_m = gemm_ceil_div(g->m, p->tile_m);
    p->tiles_n = gemm_ceil_div(g->n, p->tile_n);
    /* A smaller depth must fit in the workspace of a larger one: a convolution queries the workspace once, for its
       maximum number of pixels. */
    const int64_t depth = g->k < GEMM_SHARED_DEPTH ? g->k : GEMM_SHARED_DEPTH;
    p->part = (size_t)gemm_align(p->tile_n * depth * floats, GEMM_SCRATCH_ALIGN);
    p->scratch = (size_t)gemm_align((p->tile_m * depth + GEMM_PACKED_LANES) * floats, GEMM_SCRATCH_ALIGN);
    if (beside) plan_sums(p);
    p->workspace = 2 * p->part + p->sums + (size_t)p->threads * p->scratch;
}

/* ---- execution ---- */

struct run {
    const struct gemm *g;
    const struct gemm_plan *p;
    const struct gemm_loops *loops;
    char *parts, *scratch;
    float *sums;
    int64_t n_parts, depths, bands;
    struct rw_shares columns[2], rows[2]; /* of a part, by its buffer */
};

/* The position of a part in b: its columns belong to one panel, and all parts along the depth of a panel follow one
   another. And the row blocks that it is multiplied by: those of a band, which passes all its columns before the next
   band. */
struct part {
    int64_t item, col, cols, from, piece, pieces;
};

static struct part part_of(const struct run *r, int64_t i)
{
    const struct gemm_plan *const p = r->p;
    const int64_t panel = i / r->depths % p->tiles_n, band = i / r->depths / p->tiles_n % r->bands;
    struct part x = { .item = i / r->depths / p->tiles_n / r->bands, .col = panel * p->tile_n };
    x.cols = x.col + p->tile_n < r->g->n ? p->tile_n : r->g->n - x.col;
    x.from = i % r->depths * rw_gemm_shared_depth(r->g);
    x.piece = band * p->band;
    x.pieces = p->band && x.piece + p->band < p->tiles_m ? p->band : p->tiles_m - x.piece;
    return x;
}

static float *place_of(const struct run *r, int64_t i)
{
    return (float *)(void *)(r->parts + (size_t)(i % 2) * r->p->part);
}

static void pack_columns(const struct run *r, int64_t i, int64_t piece)
{
    const struct part x = part_of(r, i);
    const int64_t first = piece * COLS_AT_ONCE, left = x.cols - first;
    r->loops->pack(r->g, x.item, x.from, x.col + first, left < COLS_AT_ONCE ? left : COLS_AT_ONCE,
                   place_of(r, i) + first * rw_gemm_shared_part(r->g, x.from));
}

/* The number of rows of a part. */
static int64_t rows_of(const struct run *r, const struct part *x)
{
    const int64_t rows = x->pieces * r->p->tile_m, left = r->g->m - x->piece * r->p->tile_m;
    return rows < left ? rows : left;
}

static void multiply_rows(const struct run *r, int64_t i, int64_t grain, int64_t n, int thread)
{
    const struct part x = part_of(r, i);
    const int64_t first = grain * GRAIN, left = rows_of(r, &x) - first, row = x.piece * r->p->tile_m + first;
    const int64_t across = r->sums ? x.cols : r->g->c_row;
    float *const sums = r->sums ? r->sums + first * x.cols
                                : (float *)r->g->c + (x.item * r->g->m + row) * across + x.col;
    char *const room = r->scratch + (size_t)thread * r->p->scratch;
    r->loops->multiply(r->g, x.item, x.from, row, left < n * GRAIN ? left : n * GRAIN, x.col, x.cols, place_of(r, i),
                       sums, across, (float *)(void *)room);
}

static void deal_rows(struct run *r, int64_t i)
{
    const struct part x = part_of(r, i);
    rw_shares_deal(&r->rows[i % 2], gemm_ceil_div(rows_of(r, &x), GRAIN), r->p->threads);
}

static void deal_columns(struct run *r, int64_t i)
{
    if (i < r->n_parts)
        rw_shares_deal(&r->columns[i % 2], gemm_ceil_div(part_of(r, i).cols, COLS_AT_ONCE), r->p->threads);
}

/* No thread takes the items that the first thread assigns here before all have reached the barrier. */
static void run_part(struct run *r, int64_t i, int thread)
{
    if (!thread) {
        deal_rows(r, i);
        deal_columns(r, i + 1);
    }
    RW_EACH_SHARED(piece, &r->columns[i % 2], thread) pack_columns(r, i, piece);
    rw_team_barrier();
    int64_t n;
    for (int64_t grain; (grain = rw_shares_take_some(&r->rows[i % 2], thread, GRAINS, &n)) >= 0;)
        multiply_rows(r, i, grain, n, thread);
}

static void run_parts(void *of, int thread, int threads)
{
    struct run *const r = of;
    for (int64_t i = 0; i < r->n_parts; i++) run_part(r, i, thread);
}

void rw_gemm_run_shared(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                        char *workspace)
{
    struct run r = { .g = g, .p = p, .loops = loops, .parts = workspace };
    r.sums = p->band ? (float *)(void *)(workspace + 2 * p->part) : NULL;
    r.scratch = workspace + 2 * p->part + p->sums;
    r.depths = gemm_ceil_div(g->k, rw_gemm_shared_depth(g));
    r.bands = p->band ? gemm_ceil_div(p->tiles_m, p->band) : 1;
    r.n_parts = g->n_batch * r.bands * p->tiles_n * r.depths;
    deal_columns(&r, 0);
    rw_team_run(p->threads, run_parts, &r);
}
