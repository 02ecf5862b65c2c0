/* Matrix products on the CPU: how a product is cut into tiles, and the tiles that oneDNN computes. See gemm.h. */
#include "ops/matmul/gemm.h"

#include "device/cpu/cpu.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/matmul/gemm_amx.h"

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

/* ---- what the matrix unit takes: here, in code that runs on every processor ---- */

/* With fewer rows, columns or numbers along the depth, blocks are filled with zeros for the most part. */
#define LEAST_EXTENT 32
/* Panels have all the depth, and are to fit a cache: deeper products are left to the library. */
#define MOST_DEPTH 8192
/* From this many multiplications on packing pays. */
#define LEAST_PRODUCT ((double)(1 << 21))

static bool lies_packable(const struct gemm_operand *x)
{
    return !x->pack_bytes && (x->row == 1 || x->col == 1);
}

bool rw_gemm_amx_takes(const struct gemm *g)
{
    if (g->dtype != RW_BF16 || g->n_batch != 1 || !rw_cpu_has_amx()) return false;
    if (g->m < LEAST_EXTENT || g->n < LEAST_EXTENT || g->k < LEAST_EXTENT || g->k > MOST_DEPTH) return false;
    if (!g->panels && (!lies_packable(&g->a) || !lies_packable(&g->b))) return false;
    return (double)g->m * (double)g->n * (double)g->k >= LEAST_PRODUCT;
}

/* ---- the plan ---- */

/* Equal tiles, as many as wanted, multiples of `align` but for the last. */
static int64_t even_tile(int64_t extent, int64_t most, int64_t align)
{
    const int64_t tile = gemm_align(gemm_ceil_div(extent, gemm_ceil_div(extent, most)), align);
    return tile < extent ? tile : extent;
}

/* Tiles of at most [most_m, most_n]. */
static void cut(const struct gemm *g, struct gemm_plan *p, int64_t most_m, int64_t most_n)
{
    const int64_t align = p->amx ? AMX_BLOCK : 16;
    for (;;) {
        p->tile_m = even_tile(g->m, most_m, align);
        p->tile_n = even_tile(g->n, most_n, align);
        p->tiles_m = gemm_ceil_div(g->m, p->tile_m);
        p->tiles_n = gemm_ceil_div(g->n, p->tile_n);
        if (g->n_batch * p->tiles_m * p->tiles_n >= TILES_WANTED) return;
        if (p->tile_m > TILE_LEAST && (p->tile_m >= p->tile_n || p->tile_n <= TILE_LEAST))
            most_m = gemm_ceil_div(p->tile_m, 2);
        else if (p->tile_n > TILE_LEAST) most_n = gemm_ceil_div(p->tile_n, 2);
        else return;
    }
}

/* ---- panels, of operands that are made ---- */

/* What may be held of one operand for all threads, or a tile, if more; each makes parts of the other for itself. */
#define HELD_BYTES ((int64_t)4 << 20)

static struct gemm_panels panels_of(const struct gemm *g, bool amx, int64_t extent, int64_t tile, int64_t tiles,
                                    int64_t most)
{
    struct gemm_panels p = { .tiles = most < 1 ? 1 : most < tiles ? most : tiles };
    p.n = gemm_ceil_div(tiles, p.tiles);
    p.tiles = gemm_ceil_div(tiles, p.n);
    p.wide = p.tiles * tile < extent ? p.tiles * tile : extent;
    const int64_t numbers = amx ? gemm_align(p.wide, AMX_BLOCK) * rw_gemm_amx_depth(g) : p.wide * g->k;
    p.bytes = (size_t)gemm_align(numbers * (int64_t)rw_dtype_size(g->dtype), GEMM_SCRATCH_ALIGN);
    return p;
}

/* Held is what makes the fewest numbers anew: as often as it has panels, all of the other operand is made. */
static void set_panels(struct gemm *g, struct gemm_plan *p)
{
    if (g->a_lies && !p->amx) {
        struct gemm_operand no_panel;
        p->holds_a = true;
        p->a = (struct gemm_panels){ .tiles = p->tiles_m, .wide = g->m, .n = 1 };
        p->b = panels_of(g, false, g->n, p->tile_n, p->tiles_n, 1);
        rw_gemm_describe_panel(g, &p->a, &p->b, &no_panel, &g->b);
        return;
    }
    const int64_t size = (g->k ? g->k : 1) * (int64_t)rw_dtype_size(g->dtype);
    p->a = panels_of(g, p->amx, g->m, p->tile_m, p->tiles_m, HELD_BYTES / (p->tile_m * size));
    p->b = panels_of(g, p->amx, g->n, p->tile_n, p->tiles_n, HELD_BYTES / (p->tile_n * size));
    const int64_t for_a = g->m + p->a.n * g->n, for_b = g->n + p->b.n * g->m;
    p->holds_a = for_a == for_b ? p->a.bytes <= p->b.bytes : for_a < for_b;
    if (p->holds_a) p->b = panels_of(g, p->amx, g->n, p->tile_n, p->tiles_n, 1);
    else p->a = panels_of(g, p->amx, g->m, p->tile_m, p->tiles_m, 1);
    if (!p->amx) rw_gemm_describe_panel(g, &p->a, &p->b, &g->a, &g->b);
}

/* One for each thread, or all of them where there are no more. */
static size_t panel_bytes(const struct gemm_plan *p)
{
    const struct gemm_panels *const held = p->holds_a ? &p->a : &p->b, *const passing = p->holds_a ? &p->b : &p->a;
    return held->bytes + passing->bytes * (size_t)(passing->n < p->threads ? passing->n : p->threads);
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

static void plan_own(struct gemm *g, struct gemm_plan *p)
{
    const bool long_parts = rw_gemm_is_thin(g) || rw_gemm_is_shallow(g);
    p->own = true;
    p->workspace = p->scratch = 0;
    p->tile_m = GEMM_OWN_M;
    p->tile_n = long_parts ? GEMM_THIN_COLS : GEMM_OWN_N;
    p->tiles_m = gemm_ceil_div(g->m, p->tile_m);
    p->tiles_n = gemm_ceil_div(g->n, p->tile_n);
    if (g->panels && p->tiles_m && p->tiles_n) set_panels(g, p);
    p->workspace = panel_bytes(p);
}

/* What passes by what is held is a tile, which is to stay in the second cache. */
#define PASSING_BYTES ((int64_t)1 << 20)

/* As many panels pass by each thread. */
static void share_evenly(const struct gemm *g, struct gemm_plan *p)
{
    const int64_t extent = p->holds_a ? g->n : g->m, n = gemm_align(p->holds_a ? p->tiles_n : p->tiles_m, p->threads);
    const int64_t tile = even_tile(extent, gemm_ceil_div(extent, n), AMX_BLOCK), tiles = gemm_ceil_div(extent, tile);
    *(p->holds_a ? &p->tile_n : &p->tile_m) = tile;
    *(p->holds_a ? &p->tiles_n : &p->tiles_m) = tiles;
    *(p->holds_a ? &p->b : &p->a) = panels_of(g, true, extent, tile, tiles, 1);
}

static void plan_amx(struct gemm *g, struct gemm_plan *p)
{
    const int64_t fits = PASSING_BYTES / (g->k * (int64_t)rw_dtype_size(g->dtype)) / AMX_BLOCK * AMX_BLOCK;
    const int64_t most = fits < TILE_LEAST ? TILE_LEAST : fits;
    p->amx = true;
    cut(g, p, most < TILE_M ? most : TILE_M, most < TILE_N ? most : TILE_N);
    set_panels(g, p);
    share_evenly(g, p);
    p->scratch = (size_t)gemm_align((int64_t)rw_gemm_amx_scratch(g, p->tile_m, p->tile_n), GEMM_SCRATCH_ALIGN);
    p->workspace = panel_bytes(p) + (size_t)p->threads * p->scratch;
}

static rw_status make_plan(struct gemm *g, struct rw_onednn *onednn, int threads, bool planning, struct gemm_plan *ret)
{
    *ret = (struct gemm_plan){ .threads = threads_for(g, threads) };
    const bool nothing = !g->n_batch || !g->m || !g->n;
    const bool small = (double)g->m * (double)g->n * (double)g->k <= OWN_UP_TO;
    if (nothing || small || g->dtype == RW_F64 || rw_gemm_is_thin(g) || rw_gemm_is_shallow(g)) {
        plan_own(g, ret);
        return RW_OK;
    }
    if (rw_gemm_amx_takes(g)) {
        plan_amx(g, ret);
        return RW_OK;
    }
    cut(g, ret, TILE_M, TILE_N);
    if (g->panels) set_panels(g, ret);
    RW_CHECK(ask_library(g, onednn, planning, ret));
    if (ret->own) plan_own(g, ret);
    else
        ret->workspace = (size_t)(g->a.pack_bytes + g->b.pack_bytes) + panel_bytes(ret) +
                         (size_t)ret->threads * ret->scratch;
    return RW_OK;
}

size_t rw_gemm_workspace_cpu(const rw_op_call *call, const struct gemm *g)
{
    const struct rw_cpu *const cpu = call->device;
    struct gemm own = *g;
    struct gemm_plan p;
    return make_plan(&own, cpu->onednn, call->threads, true, &p) ? SIZE_MAX : p.workspace;
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

/* ---- operands that are made ---- */

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
    rw_gemm_tile_fn tile;
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
    struct tile t = { .last_m = im == p->tiles_m - 1, .last_n = in == p->tiles_n - 1 };
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
    else if (!p->own) return library_tile(&g, p, &t, thread, m->scratch);
    else m->tile(&g, 0, 0, t.rows, 0, t.cols);
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
    const int threads = m->p->threads, chunk = m->passing.n >= 2 * threads ? (int)tiles : 1;
    int failed = RW_OK;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int allowed = omp_get_max_threads(), thread = omp_get_thread_num();
        int64_t made = -1;
        omp_set_num_threads(1);
#pragma omp for schedule(dynamic, chunk)
        for (int64_t n = 0; n < m->passing.n * tiles; n++) {
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

static rw_status run_made(const struct gemm *g, const struct gemm_plan *p, rw_gemm_tile_fn tile, char *workspace)
{
    struct making m = { .g = g, .p = p, .tile = tile };
    m.held = p->holds_a ? p->a : p->b;
    m.passing = p->holds_a ? p->b : p->a;
    m.held_tiles = p->holds_a ? p->tiles_m : p->tiles_n;
    m.all_made = m.passing.n <= p->threads;
    m.at_held = m.held.bytes ? workspace : g->a.data;
    m.at_passing = workspace + m.held.bytes;
    m.scratch = workspace + panel_bytes(p);
    if (m.all_made) make_all(&m);
    for (int64_t i = 0; i < m.held.n; i++) {
        make(&m, true, i, p->threads, workspace);
        RW_CHECK(run_held(&m, i));
    }
    return RW_OK;
}

rw_status rw_gemm_run(const rw_kernel *k, struct gemm *g, rw_gemm_tile_fn tile)
{
    const struct rw_cpu *const cpu = k->device;
    struct gemm_plan p;
    RW_CHECK(make_plan(g, cpu->onednn, k->threads, false, &p));
    const int64_t tiles = g->n_batch * p.tiles_m * p.tiles_n;
    if (!tiles) return RW_OK;
    if (k->workspace_bytes < p.workspace) return RW_ERR_MEMORY;
    if (g->panels || p.amx) return run_made(g, &p, tile, k->workspace);
    if (p.own) {
        run_own(g, &p, tiles, tile);
        return RW_OK;
    }
    char *scratch = k->workspace;
    if (g->a.pack_bytes) pack(g, &g->a, p.threads, scratch, g->m, g->k);
    scratch += g->a.pack_bytes;
    if (g->b.pack_bytes) pack(g, &g->b, p.threads, scratch, g->k, g->n);
    scratch += g->b.pack_bytes;
    return run_library(g, &p, tiles, scratch);
}
