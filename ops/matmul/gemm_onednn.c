/* Matrix products on the CPU: what this processor takes, and the tiles of a plan, by oneDNN or by the own loops. */
#include "ops/matmul/gemm_plan.h"

#include "device/cpu/cpu.h"
#include "device/cpu/isa.h"
#include "ops/common/shares.h"
#include "ops/common/util.h"
#include "ops/matmul/gemm_amx.h"

#include <omp.h>
#include <string.h>

/* ---- what the processor takes: here, in code that runs on every one ---- */

/* With fewer rows, columns or numbers along the depth, blocks of the matrix unit are filled with zeros for the most
   part. */
#define LEAST_EXTENT 32
/* Panels have all the depth, and are to fit a cache: deeper products are left to the library. */
#define MOST_DEPTH 8192
/* From this many multiplications on packing pays; and widening, beside loops that widen one number at a time. */
#define LEAST_PRODUCT ((double)(1 << 21))
#define LEAST_WIDENED ((double)(1 << 17))

static double multiplications(const struct gemm *g)
{
    return (double)g->m * (double)g->n * (double)g->k;
}

static bool lies_packable(const struct gemm_operand *x)
{
    return !x->pack_bytes && (x->row == 1 || x->col == 1);
}

bool rw_gemm_amx_takes(const struct gemm *g)
{
    if (g->dtype != RW_BF16 || g->n_batch != 1 || !rw_cpu_has_amx()) return false;
    if (g->m < LEAST_EXTENT || g->n < LEAST_EXTENT || g->k < LEAST_EXTENT || g->k > MOST_DEPTH) return false;
    if (!g->panels && (!lies_packable(&g->a) || !lies_packable(&g->b))) return false;
    return multiplications(g) >= LEAST_PRODUCT;
}

bool rw_gemm_widens(rw_dtype dtype)
{
    return dtype == RW_F16 || (dtype == RW_BF16 && !rw_cpu_multiplies_bf16());
}

bool rw_gemm_is_widened(const struct gemm *g)
{
    return rw_gemm_widens(g->dtype) && multiplications(g) >= LEAST_WIDENED;
}

int64_t rw_gemm_rows_at_once(void)
{
    return rw_onednn_takes_avx512() ? 1 : GEMM_ROWS_AVX2;
}

/* From this many multiplications on: parts of the operands are little beside the operands then. */
#define LEAST_PACKED ((double)(1 << 28))

bool rw_gemm_is_packed(const struct gemm *g)
{
    return !rw_onednn_takes_avx512() && multiplications(g) >= LEAST_PACKED;
}

/* ---- the run ---- */

/* n numbers of so many bytes, `step` apart. */
static void copy_row(const char *from, int64_t step, int64_t n, int64_t size, char *to)
{
    if (size == 4)
        for (int64_t i = 0; i < n; i++) memcpy(to + 4 * i, from + 4 * i * step, 4);
    else
        for (int64_t i = 0; i < n; i++) memcpy(to + 2 * i, from + 2 * i * step, 2);
}

static void copy_dense(const struct gemm *g, const struct gemm_operand *x, char *to, int64_t row, int64_t rows,
                       int64_t cols)
{
    const int64_t size = (int64_t)rw_dtype_size(g->dtype);
    const char *const from = (const char *)x->data + (rw_gemm_start(g, x, row / rows) + row % rows * x->row) * size;
    copy_row(from, x->col, cols, size, to + row * cols * size);
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

/*
 * Tiles of one column follow one another, as they share a part of b; or tiles of one row, so that a thread has rows of
 * its own (ops/common/shares.h): where a's are rows of an activation, and of a weight's gradient where those are more
 * than b's columns.
 */
static bool goes_by_rows(const struct gemm *g, const struct gemm_plan *p)
{
    return p->tiles_m >= p->threads && (p->own || g->a.row > g->a.col || g->m >= g->n);
}

static struct gemm_tile tile_of(const struct gemm *g, const struct gemm_plan *p, int64_t i)
{
    struct gemm_tile t;
    const int64_t per_item = p->tiles_m * p->tiles_n;
    t.item = i / per_item;
    const bool by_rows = goes_by_rows(g, p);
    const int64_t im = by_rows ? i % per_item / p->tiles_n : i % per_item % p->tiles_m;
    const int64_t in = by_rows ? i % per_item % p->tiles_n : i % per_item / p->tiles_m;
    t.last_m = im == p->tiles_m - 1;
    t.last_n = in == p->tiles_n - 1;
    t.row = im * p->tile_m;
    t.col = in * p->tile_n;
    t.rows = t.last_m ? g->m - t.row : p->tile_m;
    t.cols = t.last_n ? g->n - t.col : p->tile_n;
    return t;
}

/* The library adds to what c holds. Copied tile by tile: a tile is still in the cache when it is added to. */
static void bring_sum(const struct gemm *g, const struct gemm_tile *t, int64_t at, int64_t size)
{
    for (int64_t i = 0; i < t->rows; i++, at += g->c_row)
        memcpy((char *)g->c + at * size, (const char *)g->sum + at * size, (size_t)(t->cols * size));
}

/* Where those of a tile lie. */
struct operands {
    const char *a, *b, *bias;
    char *c;
};

/* Rows that are copied, with zeros behind them. */
static rw_status run_copied(const struct gemm *g, const struct gemm_plan *p, const struct gemm_tile *t,
                            const struct operands *o, int thread, char *own)
{
    const int64_t size = (int64_t)rw_dtype_size(g->dtype), to = (int64_t)rw_dtype_size(g->to), row = t->cols * to;
    const int64_t zeros = rw_gemm_filled(p) - p->copied;
    char *const a = own + p->library_scratch, *const c = a + rw_gemm_copy_bytes(g, p);
    for (int64_t i = 0; i < p->copied; i++)
        copy_row(o->a + i * g->a.row * size, g->a.col, g->k, size, a + i * g->k * size);
    for (int64_t i = 0; g->adds && i < p->copied; i++) memcpy(c + i * row, o->c + i * g->c_row * to, (size_t)row);
    memset(a + p->copied * g->k * size, 0, (size_t)(zeros * g->k * size));
    memset(c + p->copied * row, 0, (size_t)(zeros * row));
    RW_CHECK(rw_onednn_matmul_run(p->filled[t->last_n], thread, a, o->b, o->bias, c, own));
    for (int64_t i = 0; i < p->copied; i++) memcpy(o->c + i * g->c_row * to, c + i * row, (size_t)row);
    return RW_OK;
}

rw_status rw_gemm_library_tile(const struct gemm *g, const struct gemm_plan *p, const struct gemm_tile *t, int thread,
                               char *scratch)
{
    const int64_t size = (int64_t)rw_dtype_size(g->dtype), to = (int64_t)rw_dtype_size(g->to);
    const int64_t at = (t->item * g->m + t->row) * g->c_row + t->col, lie = t->rows - (t->last_m ? p->copied : 0);
    struct operands o = {
        .a = (const char *)g->a.data + (rw_gemm_start(g, &g->a, t->item) + t->row * g->a.row) * size,
        .b = (const char *)g->b.data + (rw_gemm_start(g, &g->b, t->item) + t->col * g->b.col) * size,
        .bias = g->has_bias ? (const char *)g->bias + t->col * size : NULL,
        .c = (char *)g->c + at * to,
    };
    char *const own = scratch + (size_t)thread * p->scratch;
    if (g->adds && g->sum != g->c) bring_sum(g, t, at, to);
    if (lie)
        RW_CHECK(rw_onednn_matmul_run(p->primitive[t->last_m][t->last_n], thread, o.a, o.b, o.bias, o.c, own));
    o.a += lie * g->a.row * size;
    o.c += lie * g->c_row * to;
    return lie < t->rows ? run_copied(g, p, t, &o, thread, own) : RW_OK;
}

static rw_status run_tile(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                          const struct gemm_tile *t, int thread, char *scratch)
{
    if (p->wide) return rw_gemm_wide_tile(g, p, loops, t, thread, scratch);
    if (!p->packed) return rw_gemm_library_tile(g, p, t, thread, scratch);
    char *const room = scratch + (size_t)thread * p->scratch;
    loops->packed(g, t->item, t->row, t->rows, t->col, t->cols, (float *)(void *)room);
    return RW_OK;
}

/* The library starts no threads of its own where one thread is allowed. */
static rw_status run_tiles(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                             int64_t tiles, char *scratch)
{
    struct rw_shares shares;
    int failed = RW_OK;
    rw_shares_deal(&shares, tiles, p->threads);
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        const int allowed = omp_get_max_threads(), thread = omp_get_thread_num();
        omp_set_num_threads(1);
        RW_EACH_SHARED(i, &shares, thread) {
            const struct gemm_tile t = tile_of(g, p, i);
            const rw_status status = run_tile(g, p, loops, &t, thread, scratch);
            if (status) __atomic_store_n(&failed, (int)status, __ATOMIC_RELAXED);
        }
        omp_set_num_threads(allowed);
    }
    return (rw_status)failed;
}

static void run_own(const struct gemm *g, const struct gemm_plan *p, int64_t tiles, const struct gemm_loops *loops)
{
    struct rw_shares shares;
    rw_shares_deal(&shares, tiles, p->threads);
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    RW_EACH_SHARED(i, &shares, omp_get_thread_num()) {
        const struct gemm_tile t = tile_of(g, p, i);
        loops->tile(g, t.item, t.row, t.rows, t.col, t.cols);
    }
}

size_t rw_gemm_workspace_cpu(const rw_op_call *call, const struct gemm *g)
{
    const struct rw_cpu *const cpu = call->device;
    struct gemm own = *g;
    struct gemm_plan p;
    return rw_gemm_make_plan(&own, cpu->onednn, call->threads, true, SIZE_MAX, &p) ? SIZE_MAX : p.workspace;
}

rw_status rw_gemm_run(const rw_kernel *k, struct gemm *g, const struct gemm_loops *loops)
{
    const struct rw_cpu *const cpu = k->device;
    struct gemm_plan p;
    RW_CHECK(rw_gemm_make_plan(g, cpu->onednn, k->threads, false, k->workspace_bytes, &p));
    const int64_t tiles = g->n_batch * p.tiles_m * p.tiles_n;
    if (!tiles) return RW_OK;
    if (k->workspace_bytes < p.workspace) return RW_ERR_MEMORY;
    if (p.shared) {
        rw_gemm_run_shared(g, &p, loops, k->workspace);
        return RW_OK;
    }
    if (p.wide || (p.packed && !g->panels)) return run_tiles(g, &p, loops, tiles, k->workspace);
    if (g->panels || p.amx) return rw_gemm_run_made(g, &p, loops, k->workspace);
    if (p.own) {
        run_own(g, &p, tiles, loops);
        return RW_OK;
    }
    char *scratch = k->workspace;
    if (g->a.pack_bytes) pack(g, &g->a, p.threads, scratch, g->m, g->k);
    scratch += g->a.pack_bytes;
    if (g->b.pack_bytes) pack(g, &g->b, p.threads, scratch, g->k, g->n);
    scratch += g->b.pack_bytes;
    return run_tiles(g, &p, loops, tiles, scratch);
}
