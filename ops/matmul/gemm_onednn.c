/* Matrix products on the CPU: how a product is cut into tiles, and the tiles that oneDNN computes. See gemm.h. */
#include "ops/matmul/gemm.h"

#include "device/cpu/cpu.h"
#include "ops/common/util.h"

#include <omp.h>
#include <string.h>

/* Up to this many multiplications a call of the library costs more than the product. */
#define OWN_UP_TO 16384
/* From this many on, starting threads pays. */
#define PARALLEL_FROM 524288.0
/* A good tile holds this much of c; smaller ones are used only to have something for every thread to do. */
#define TILE_M 512
#define TILE_N 384
#define TILE_LEAST 64
#define TILES_WANTED 8

/* ---- the plan ---- */

/* Equal tiles, as many as wanted, multiples of 16 but for the last. */
static int64_t even_tile(int64_t extent, int64_t most)
{
    const int64_t tile = gemm_align(gemm_ceil_div(extent, gemm_ceil_div(extent, most)), 16);
    return tile < extent ? tile : extent;
}

static void cut(const struct gemm *g, struct gemm_plan *p)
{
    int64_t most_m = TILE_M, most_n = TILE_N;
    for (;;) {
        p->tile_m = even_tile(g->m, most_m);
        p->tile_n = even_tile(g->n, most_n);
        p->tiles_m = gemm_ceil_div(g->m, p->tile_m);
        p->tiles_n = gemm_ceil_div(g->n, p->tile_n);
        if (g->n_batch * p->tiles_m * p->tiles_n >= TILES_WANTED) return;
        if (p->tile_m > TILE_LEAST && (p->tile_m >= p->tile_n || p->tile_n <= TILE_LEAST))
            most_m = gemm_ceil_div(p->tile_m, 2);
        else if (p->tile_n > TILE_LEAST) most_n = gemm_ceil_div(p->tile_n, 2);
        else return;
    }
}

static struct rw_matmul_signature signature_of(const struct gemm *g, const struct gemm_plan *p, bool last_m,
                                               bool last_n)
{
    const bool pack_a = g->a.pack_bytes, pack_b = g->b.pack_bytes;
    return (struct rw_matmul_signature){
        .m = last_m ? g->m - (p->tiles_m - 1) * p->tile_m : p->tile_m,
        .n = last_n ? g->n - (p->tiles_n - 1) * p->tile_n : p->tile_n,
        .k = g->k,
        .a_row = pack_a ? g->k : g->a.row,
        .a_col = pack_a ? 1 : g->a.col,
        .b_row = pack_b ? g->n : g->b.row,
        .b_col = pack_b ? 1 : g->b.col,
        .c_row = g->c_row,
        .dtype = (int32_t)g->dtype,
        .bias = g->has_bias,
        .adds = g->adds,
        .to = (int32_t)g->to,
    };
}

/* Is there fast code for all tiles, and how much scratch memory does the greediest take? Planning has the primitives
 * made, a run finds them: its plan holds them. */
static rw_status ask_library(const struct gemm *g, struct rw_onednn *onednn, bool planning, struct gemm_plan *p)
{
    for (int i = 0; i < 4 && !p->own; i++) {
        const struct rw_matmul_signature s = signature_of(g, p, i >> 1, i & 1);
        bool fast;
        size_t scratch;
        if (planning) RW_CHECK(rw_onednn_matmul_prepare(onednn, &s, p->threads, &fast, &scratch));
        else if (!(p->primitive[i >> 1][i & 1] = rw_onednn_matmul_find(onednn, &s, &fast, &scratch)))
            return RW_ERR_DEVICE;
        if (scratch > p->scratch) p->scratch = scratch;
        p->own = !fast;
    }
    p->scratch = (size_t)gemm_align((int64_t)p->scratch, GEMM_SCRATCH_ALIGN);
    return RW_OK;
}

/* The same for any number of threads: a product that fits one thread uses one. */
static int threads_for(const struct gemm *g, int threads)
{
    return (double)g->n_batch * (double)g->m * (double)g->n * (double)g->k < PARALLEL_FROM ? 1 : threads;
}

static void plan_own(const struct gemm *g, struct gemm_plan *p)
{
    p->own = true;
    p->workspace = p->scratch = 0;
    p->tile_m = GEMM_OWN_M;
    p->tile_n = GEMM_OWN_N;
    p->tiles_m = gemm_ceil_div(g->m, p->tile_m);
    p->tiles_n = gemm_ceil_div(g->n, p->tile_n);
}

static rw_status make_plan(const struct gemm *g, struct rw_onednn *onednn, int threads, bool planning,
                           struct gemm_plan *ret)
{
    *ret = (struct gemm_plan){ .threads = threads_for(g, threads) };
    const bool nothing = !g->n_batch || !g->m || !g->n;
    const bool small = (double)g->m * (double)g->n * (double)g->k <= OWN_UP_TO;
    if (nothing || small || g->dtype == RW_F64) {
        plan_own(g, ret);
        return RW_OK;
    }
    cut(g, ret);
    RW_CHECK(ask_library(g, onednn, planning, ret));
    if (ret->own) plan_own(g, ret);
    else ret->workspace = (size_t)(g->a.pack_bytes + g->b.pack_bytes) + (size_t)ret->threads * ret->scratch;
    return RW_OK;
}

size_t rw_gemm_workspace_cpu(const rw_op_call *call, const struct gemm *g)
{
    const struct rw_cpu *const cpu = call->device;
    struct gemm_plan p;
    return make_plan(g, cpu->onednn, call->threads, true, &p) ? SIZE_MAX : p.workspace;
}

/* ---- the run ---- */

static void copy_dense(const struct gemm *g, const struct gemm_operand *x, char *to, int64_t row, int64_t rows,
                       int64_t cols)
{
    const int64_t size = (int64_t)rw_dtype_size(g->dtype);
    const char *const from = (const char *)x->data + (rw_gemm_start(g, x, row / rows) + row % rows * x->row) * size;
    to += row * cols * size;
    if (size == 4)
        for (int64_t i = 0; i < cols; i++) memcpy(to + 4 * i, from + 4 * i * x->col, 4);
    else
        for (int64_t i = 0; i < cols; i++) memcpy(to + 2 * i, from + 2 * i * x->col, 2);
}

/* A dense copy of an operand whose strides the library does not take; the operand then describes the copy. */
static void pack(const struct gemm *g, struct gemm_operand *x, int threads, char *to, int64_t rows, int64_t cols)
{
    const int64_t all = g->n_batch * rows;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t row = 0; row < all; row++) copy_dense(g, x, to, row, rows, cols);
    x->data = to;
    rw_gemm_describe_dense(g, x, rows, cols);
}

struct tile {
    int64_t item, row, rows, col, cols;
    bool last_m, last_n;
};

/* Tiles of one column follow one another: they share a part of b, which is the larger operand as a rule. */
static struct tile tile_of(const struct gemm *g, const struct gemm_plan *p, int64_t i)
{
    struct tile t;
    const int64_t per_item = p->tiles_m * p->tiles_n;
    t.item = i / per_item;
    const int64_t im = i % per_item % p->tiles_m, in = i % per_item / p->tiles_m;
    t.last_m = im == p->tiles_m - 1;
    t.last_n = in == p->tiles_n - 1;
    t.row = im * p->tile_m;
    t.col = in * p->tile_n;
    t.rows = t.last_m ? g->m - t.row : p->tile_m;
    t.cols = t.last_n ? g->n - t.col : p->tile_n;
    return t;
}

/* The library adds to what c holds. Copied tile by tile: a tile is still in the cache when it is added to. */
static void bring_sum(const struct gemm *g, const struct tile *t, int64_t at, int64_t size)
{
    for (int64_t i = 0; i < t->rows; i++, at += g->c_row)
        memcpy((char *)g->c + at * size, (const char *)g->sum + at * size, (size_t)(t->cols * size));
}

static rw_status library_tile(const struct gemm *g, const struct gemm_plan *p, const struct tile *t, int thread,
                              char *scratch)
{
    const int64_t size = (int64_t)rw_dtype_size(g->dtype), to = (int64_t)rw_dtype_size(g->to);
    const char *const a = (const char *)g->a.data + (rw_gemm_start(g, &g->a, t->item) + t->row * g->a.row) * size;
    const char *const b = (const char *)g->b.data + (rw_gemm_start(g, &g->b, t->item) + t->col * g->b.col) * size;
    const char *const bias = g->has_bias ? (const char *)g->bias + t->col * size : NULL;
    const int64_t at = (t->item * g->m + t->row) * g->c_row + t->col;
    char *const c = (char *)g->c + at * to;
    if (g->adds && g->sum != g->c) bring_sum(g, t, at, to);
    return rw_onednn_matmul_run(p->primitive[t->last_m][t->last_n], thread, a, b, bias, c,
                                scratch + (size_t)thread * p->scratch);
}

/* The library starts no threads of its own where one thread is allowed. */
static rw_status run_library(const struct gemm *g, const struct gemm_plan *p, int64_t tiles, char *scratch)
{
    int failed = RW_OK;
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        const int allowed = omp_get_max_threads();
        omp_set_num_threads(1);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < tiles; i++) {
            const struct tile t = tile_of(g, p, i);
            const rw_status status = library_tile(g, p, &t, omp_get_thread_num(), scratch);
            if (status) __atomic_store_n(&failed, (int)status, __ATOMIC_RELAXED);
        }
        omp_set_num_threads(allowed);
    }
    return (rw_status)failed;
}

static void run_own(const struct gemm *g, const struct gemm_plan *p, int64_t tiles, rw_gemm_tile_fn tile)
{
#pragma omp parallel for num_threads(p->threads) schedule(dynamic, 1) if (p->threads > 1)
    for (int64_t i = 0; i < tiles; i++) {
        const struct tile t = tile_of(g, p, i);
        tile(g, t.item, t.row, t.rows, t.col, t.cols);
    }
}

rw_status rw_gemm_run(const rw_kernel *k, struct gemm *g, rw_gemm_tile_fn tile)
{
    const struct rw_cpu *const cpu = k->device;
    struct gemm_plan p;
    RW_CHECK(make_plan(g, cpu->onednn, k->threads, false, &p));
    const int64_t tiles = g->n_batch * p.tiles_m * p.tiles_n;
    if (!tiles) return RW_OK;
    if (p.own) {
        run_own(g, &p, tiles, tile);
        return RW_OK;
    }
    if (k->workspace_bytes < p.workspace) return RW_ERR_MEMORY;
    char *scratch = k->workspace;
    if (g->a.pack_bytes) pack(g, &g->a, p.threads, scratch, g->m, g->k);
    scratch += g->a.pack_bytes;
    if (g->b.pack_bytes) pack(g, &g->b, p.threads, scratch, g->k, g->n);
    scratch += g->b.pack_bytes;
    return run_library(g, &p, tiles, scratch);
}
