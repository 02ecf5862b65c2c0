/*
 * Matrix products on the CPU: selects what this processor supports, and computes the tiles of a plan with oneDNN or the
 * plain loops.
 */
#include "ops/matmul/gemm_plan.h"

#include "base/thread_team.h"
#include "device/cpu/cpu.h"
#include "device/cpu/isa.h"
#include "ops/common/work_stealing.h"
#include "ops/common/util.h"
#include "ops/matmul/gemm_amx.h"

#include <string.h>

/* ---- selection by processor: in this file because it is compiled for the baseline instruction set ---- */

/* With fewer rows, columns or depth, blocks of the matrix unit would be mostly zero padding. */
#define EXTENT_MIN 32
/* Panels have the full depth and must fit a cache: deeper products are left to the library. */
#define DEPTH_MAX 8192
/* Minimum number of multiplications for packing; and for widening, compared with loops that widen one element at a
   time. */
#define PRODUCT_MIN ((double)(1 << 21))
#define WIDENED_MIN ((double)(1 << 17))

static double multiplications(const struct gemm *g)
{
    return (double)g->m * (double)g->n * (double)g->k;
}

static bool is_packable(const struct gemm_operand *x)
{
    return !x->pack_bytes && (x->row == 1 || x->col == 1);
}

bool rw_gemm_amx_takes(const struct gemm *g)
{
    if (g->dtype != RW_BF16 || g->n_batch != 1 || !rw_cpu_has_amx()) return false;
    if (g->m < EXTENT_MIN || g->n < EXTENT_MIN || g->k < EXTENT_MIN || g->k > DEPTH_MAX) return false;
    if (!g->panels && (!is_packable(&g->a) || !is_packable(&g->b))) return false;
    return multiplications(g) >= PRODUCT_MIN;
}

bool rw_gemm_widens(rw_dtype dtype)
{
    return dtype == RW_F16 || (dtype == RW_BF16 && !rw_cpu_multiplies_bf16());
}

bool rw_gemm_is_widened(const struct gemm *g)
{
    return rw_gemm_widens(g->dtype) && multiplications(g) >= WIDENED_MIN;
}

int64_t rw_gemm_rows_at_once(void)
{
    return rw_onednn_takes_avx512() ? 1 : GEMM_ROWS_AVX2;
}

/* Minimum number of multiplications for the packed loops: packed parts are then small compared with the operands. */
#define PACKED_MIN ((double)(1 << 28))

bool rw_gemm_is_packed(const struct gemm *g)
{
    if (!rw_onednn_is_present()) return true;
    return !rw_onednn_takes_avx512() && multiplications(g) >= PACKED_MIN;
}

/* ---- execution ---- */

/* Copies n elements of that size, `step` apart. */
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

struct copies {
    const struct gemm *g;
    const struct gemm_operand *x;
    char *to;
    int64_t rows, cols;
};

static void copy_rows(void *of, int64_t first, int64_t end)
{
    const struct copies *const c = of;
    for (int64_t row = first; row < end; row++) copy_dense(c->g, c->x, c->to, row, c->rows, c->cols);
}

/* Makes a dense copy of an operand whose strides the library does not support; the operand then describes the copy. */
static void pack(const struct gemm *g, struct gemm_operand *x, int threads, char *to, int64_t rows, int64_t cols)
{
    rw_team_for(threads, g->n_batch * rows, copy_rows, &(struct copies){ g, x, to, rows, cols });
    x->data = to;
    rw_gemm_describe_dense(g, x, rows, cols);
}

/*
 * Should tiles of one row of tiles be consecutive? The default is one column, whose tiles share a part of b. By rows,
 * each thread has rows of its own (ops/common/work_stealing.h). Used if the rows of a are those of an activation, and
 * for a weight's gradient if it has more rows than b has columns.
 */
static bool goes_by_rows(const struct gemm *g, const struct gemm_plan *p)
{
    return p->tiles_m >= p->threads && (p->own || g->a.row > g->a.col || g->m >= g->n);
}

/* The position and extents of tile i in the chosen order. */
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

/* Copies the addend to c, because the library adds to what c holds. Tile by tile, so that it is still in the cache. */
static void bring_sum(const struct gemm *g, const struct gemm_tile *t, int64_t at, int64_t size)
{
    for (int64_t i = 0; i < t->rows; i++, at += g->c_row)
        memcpy((char *)g->c + at * size, (const char *)g->sum + at * size, (size_t)(t->cols * size));
}

/* The operands of a tile. */
struct operands {
    const char *a, *b, *bias;
    char *c;
};

/* Computes the rows that are copied, with zero rows after them. */
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

/* Computes one tile with the library; rows left over are copied and padded. See gemm_plan.h. */
rw_status rw_gemm_library_tile(const struct gemm *g, const struct gemm_plan *p, const struct gemm_tile *t, int thread,
                               char *scratch)
{
    const int64_t size = (int64_t)rw_dtype_size(g->dtype), to = (int64_t)rw_dtype_size(g->to);
    const int64_t at = (t->item * g->m + t->row) * g->c_row + t->col, in_place = t->rows - (t->last_m ? p->copied : 0);
    struct operands o = {
        .a = (const char *)g->a.data + (rw_gemm_start(g, &g->a, t->item) + t->row * g->a.row) * size,
        .b = (const char *)g->b.data + (rw_gemm_start(g, &g->b, t->item) + t->col * g->b.col) * size,
        .bias = g->has_bias ? (const char *)g->bias + t->col * size : NULL,
        .c = (char *)g->c + at * to,
    };
    char *const own = scratch + (size_t)thread * p->scratch;
    if (g->adds && g->sum != g->c) bring_sum(g, t, at, to);
    if (in_place)
        RW_CHECK(rw_onednn_matmul_run(p->primitive[t->last_m][t->last_n], thread, o.a, o.b, o.bias, o.c, own));
    o.a += in_place * g->a.row * size;
    o.c += in_place * g->c_row * to;
    return in_place < t->rows ? run_copied(g, p, t, &o, thread, own) : RW_OK;
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

struct tiles {
    const struct gemm *g;
    const struct gemm_plan *p;
    const struct gemm_loops *loops;
    char *scratch;
};

static rw_status run_one(const void *of, int64_t i, int thread)
{
    const struct tiles *const s = of;
    const struct gemm_tile t = tile_of(s->g, s->p, i);
    return run_tile(s->g, s->p, s->loops, &t, thread, s->scratch);
}

static rw_status run_tiles(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                           int64_t tiles, char *scratch)
{
    return rw_shares_run(p->threads, tiles, run_one, &(struct tiles){ g, p, loops, scratch });
}

static rw_status run_one_of_own(const void *of, int64_t i, int thread)
{
    const struct tiles *const s = of;
    const struct gemm_tile t = tile_of(s->g, s->p, i);
    s->loops->tile(s->g, t.item, t.row, t.rows, t.col, t.cols);
    return RW_OK;
}

size_t rw_gemm_workspace_cpu(const rw_op_call *call, const struct gemm *g)
{
    const struct rw_cpu *const cpu = call->device;
    struct gemm own = *g;
    struct gemm_plan p;
    return rw_gemm_make_plan(&own, cpu->onednn, call->threads, true, SIZE_MAX, &p) ? SIZE_MAX : p.workspace;
}

/* Plans a product and runs its tiles on the threads, by the implementation that the plan selects. */
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
    if (g->panels || p.amx) return rw_gemm_run_generated(g, &p, loops, k->workspace);
    if (p.own) return rw_shares_run(p.threads, tiles, run_one_of_own, &(struct tiles){ g, &p, loops, NULL });
    char *scratch = k->workspace;
    if (g->a.pack_bytes) pack(g, &g->a, p.threads, scratch, g->m, g->k);
    scratch += g->a.pack_bytes;
    if (g->b.pack_bytes) pack(g, &g->b, p.threads, scratch, g->k, g->n);
    scratch += g->b.pack_bytes;
    return run_tiles(g, &p, loops, tiles, scratch);
}
