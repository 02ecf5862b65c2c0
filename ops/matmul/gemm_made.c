/* Matrix products on the CPU whose operands are made panel by panel, packed for the matrix unit or not. See gemm.h. */
#include "ops/matmul/gemm_plan.h"

#include "ops/common/shares.h"
#include "ops/common/util.h"
#include "ops/matmul/gemm_amx.h"

#include <omp.h>

/* Panel i of an operand, packed. */
static void pack_panel(const struct gemm *g, bool is_a, const struct gemm_panels *p, int64_t i, int threads, char *to)
{
    const int64_t first = i * p->wide, left = (is_a ? g->m : g->n) - first, wide = left < p->wide ? left : p->wide;
    const int64_t unit = threads > 1 ? 4 * AMX_BLOCK : wide, depth = rw_gemm_amx_depth(g);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t at = 0; at < wide; at += unit)
        rw_gemm_amx_pack(g, is_a, first + at, wide - at < unit ? wide - at : unit, (uint16_t *)(void *)to + at * depth);
}

/* Panel i of an operand. */
static void make_panel(const struct gemm *g, const struct gemm_source *from, const struct gemm_panels *p, int64_t i,
                       int threads, char *to)
{
    const bool is_a = from == &g->from_a, along = is_a != from->turned; /* along rows of what lies there */
    const int64_t first = i * p->wide, extent = is_a ? g->m : g->n, size = (int64_t)rw_dtype_size(g->dtype);
    const int64_t wide = extent - first < p->wide ? extent - first : p->wide;
    const int64_t rows = along ? wide : g->k, n = along ? g->k : wide, row = along ? g->k : p->wide;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t r = 0; r < rows; r++)
        from->make(from->of, along ? first + r : r, along ? 0 : first, n, to + r * row * size);
}

/* A product whose operands are made: what all threads read of one, and what each makes of the other. */
struct making {
    const struct gemm *g;
    const struct gemm_plan *p;
    const struct gemm_loops *loops;
    struct gemm_panels held, passing;
    int64_t held_tiles; /* of the whole */
    bool all_made;      /* every panel of the other has a place */
    const char *at_held;
    char *at_passing, *scratch;
};

/* Panel i of what is held, or of what passes by. */
static void make(const struct making *m, bool held, int64_t i, int threads, char *to)
{
    const struct gemm_panels *const p = held ? &m->held : &m->passing;
    const bool is_a = held == m->p->holds_a;
    if (held && !p->bytes) return; /* it lies there */
    if (m->p->amx) pack_panel(m->g, is_a, p, i, threads, to);
    else make_panel(m->g, is_a ? &m->g->from_a : &m->g->from_b, p, i, threads, to);
}

/* Tiles h and i of the held operand and of the other one, which is made: a product of its own. */
static rw_status run_made_tile(const struct making *m, int64_t h, int64_t i, const char *passing, int thread)
{
    const struct gemm_plan *const p = m->p;
    const int64_t im = p->holds_a ? h : i, in = p->holds_a ? i : h, row = im * p->tile_m, col = in * p->tile_n;
    const int64_t to = (int64_t)rw_dtype_size(m->g->to), size = (int64_t)rw_dtype_size(m->g->dtype);
    const int64_t at = (row * m->g->c_row + col) * to;
    struct gemm_tile t = { .last_m = im == p->tiles_m - 1, .last_n = in == p->tiles_n - 1 };
    struct gemm g = *m->g;
    const int64_t a_row = p->amx ? rw_gemm_amx_depth(&g) : g.a.row, b_col = p->amx ? rw_gemm_amx_depth(&g) : g.b.col;
    g.a.data = (p->holds_a ? m->at_held : passing) + im % p->a.tiles * p->tile_m * a_row * size;
    g.b.data = (p->holds_a ? passing : m->at_held) + in % p->b.tiles * p->tile_n * b_col * size;
    g.c = (char *)g.c + at;
    if (g.adds) g.sum = (const char *)g.sum + at;
    if (g.has_bias) g.bias = (const char *)g.bias + col * size;
    t.rows = t.last_m ? g.m - row : p->tile_m;
    t.cols = t.last_n ? g.n - col : p->tile_n;
    if (p->amx)
        rw_gemm_amx_tile(&g, g.a.data, g.b.data, t.rows, t.cols, p->holds_a,
                         (float *)(void *)(m->scratch + (size_t)thread * p->scratch));
    else if (p->packed)
        m->loops->packed(&g, 0, 0, t.rows, 0, t.cols,
                         (float *)(void *)(m->scratch + (size_t)thread * p->scratch));
    else if (!p->own) return rw_gemm_library_tile(&g, p, &t, thread, m->scratch);
    else m->loops->tile(&g, 0, 0, t.rows, 0, t.cols);
    return RW_OK;
}

/*
 * Panel i of the held operand with all of the other. A thread keeps the panel that it has made while it can: where
 * there are enough of them, it takes them one by one.
 */
static rw_status run_held(const struct making *m, int64_t i)
{
    const int64_t first = i * m->held.tiles, left = m->held_tiles - first;
    const int64_t tiles = left < m->held.tiles ? left : m->held.tiles;
    const int threads = m->p->threads;
    const int64_t all = m->passing.n * tiles, at_once = m->passing.n >= 2 * threads ? tiles : 1;
    struct rw_shares shares;
    int failed = RW_OK;
    rw_shares_deal(&shares, gemm_ceil_div(all, at_once), threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int allowed = omp_get_max_threads(), thread = omp_get_thread_num();
        int64_t made = -1;
        omp_set_num_threads(1);
        RW_EACH_SHARED(piece, &shares, thread)
            for (int64_t n = piece * at_once; n < (piece + 1) * at_once && n < all; n++) {
                const int64_t own = n / tiles;
                char *const to = m->at_passing + (size_t)(m->all_made ? own : thread) * m->passing.bytes;
                if (!m->all_made && own != made) make(m, false, own, 1, to);
                made = own;
                const rw_status status = run_made_tile(m, first + n % tiles, own, to, thread);
                if (status) __atomic_store_n(&failed, (int)status, __ATOMIC_RELAXED);
            }
        omp_set_num_threads(allowed);
    }
    return (rw_status)failed;
}

/* Once, where each has a place. */
static void make_all(const struct making *m)
{
#pragma omp parallel for num_threads(m->p->threads) schedule(static, 1) if (m->p->threads > 1)
    for (int64_t i = 0; i < m->passing.n; i++) make(m, false, i, 1, m->at_passing + (size_t)i * m->passing.bytes);
}

rw_status rw_gemm_run_made(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                           char *workspace)
{
    struct making m = { .g = g, .p = p, .loops = loops };
    m.held = p->holds_a ? p->a : p->b;
    m.passing = p->holds_a ? p->b : p->a;
    m.held_tiles = p->holds_a ? p->tiles_m : p->tiles_n;
    m.all_made = m.passing.n <= p->threads;
    m.at_held = m.held.bytes ? workspace : g->a.data;
    m.at_passing = workspace + m.held.bytes;
    m.scratch = workspace + rw_gemm_panel_bytes(p);
    if (m.all_made) make_all(&m);
    for (int64_t i = 0; i < m.held.n; i++) {
        make(&m, true, i, p->threads, workspace);
        RW_CHECK(run_held(&m, i));
    }
    return RW_OK;
}
