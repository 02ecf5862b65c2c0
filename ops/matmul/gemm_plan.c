/*
 * Matrix products on the CPU: decides which implementation computes a product (gemm_descriptor.h lists them), and how
 * it is cut into tiles.
 */
#include "ops/matmul/gemm_plan.h"

#include "ops/common/util.h"
#include "ops/matmul/gemm_amx.h"

/* Up to this number of multiplications a library call costs more than the product. */
#define OWN_UP_TO 16384
/* From this number of multiplications on, starting threads pays. */
#define PARALLEL_FROM 524288.0
/* Preferred extents of a tile of c; smaller tiles are used only to give every thread work. */
#define TILE_M 512
#define TILE_N 384
#define TILE_MIN 64
#define TILES_WANTED 8
#define TILE_ROWS_AVX2 48 /* a multiple of 16 and of GEMM_ROWS_AVX2 */
#define PACKED_SUMS 512 /* rows and columns of a tile of the packed loops that keeps its sums in separate memory */
#define STRIP_TILES 2     /* per thread, if b is generated in strips */
#define FEW_ROWS 24       /* in a tile: a separate call for so few left-over rows costs more than copying all */
/* Maximum extent of a tile with widened operands: its parts and sums must stay in a cache. */
#define WIDE_TILE 256

/* Equal tiles of at most `most`, multiples of `align` except the last. */
static int64_t even_tile(int64_t extent, int64_t most, int64_t align)
{
    const int64_t tile = gemm_align(gemm_ceil_div(extent, gemm_ceil_div(extent, most)), align);
    return tile < extent ? tile : extent;
}

/* Is a stored row by row, like the input of a layer? For a weight's gradient the rows of a are columns of the stored
   matrix, and stay in place. */
static bool has_rows(const struct gemm *g)
{
    return g->panels ? g->a_is_stored || !g->from_a.transposed : g->a.col == 1 || g->a.row > g->a.col;
}

/* oneDNN's code for AVX-512 sums rows in an order that depends on their number (device/cpu/onednn.h). An element must
   not depend on the position of its row, so the row counts of all tiles of a product are of one kind. */
static int kind_of(const struct gemm *g, int64_t rows)
{
    if (rows < RW_ONEDNN_MANY_ROWS) return rows > 1;
    return rows < RW_ONEDNN_ROWS_MAX || g->k <= RW_ONEDNN_DEPTH ? 2 : 3;
}

static int64_t last_of(int64_t extent, int64_t tile)
{
    return extent - (gemm_ceil_div(extent, tile) - 1) * tile;
}

static int64_t tile_of_a_kind(const struct gemm *g, int64_t tile)
{
    while (kind_of(g, tile) != kind_of(g, last_of(g->m, tile))) tile--;
    return tile;
}

/* Cuts c into tiles of at most [most_m, most_n]. */
static void cut(const struct gemm *g, struct gemm_plan *p, int64_t most_m, int64_t most_n)
{
    const int64_t align = p->amx ? AMX_BLOCK : 16, align_m = p->packed || p->at_once > 1 ? TILE_ROWS_AVX2 : align;
    for (;;) {
        p->tile_m = even_tile(g->m, most_m, align_m);
        if (align_m < TILE_ROWS_AVX2 && !p->amx && has_rows(g)) p->tile_m = tile_of_a_kind(g, p->tile_m);
        p->tile_n = even_tile(g->n, most_n, align);
        p->tiles_m = gemm_ceil_div(g->m, p->tile_m);
        p->tiles_n = gemm_ceil_div(g->n, p->tile_n);
        if (g->n_batch * p->tiles_m * p->tiles_n >= TILES_WANTED) return;
        if (p->tile_m > TILE_MIN && (p->tile_m >= p->tile_n || p->tile_n <= TILE_MIN))
            most_m = gemm_ceil_div(p->tile_m, 2);
        else if (p->tile_n > TILE_MIN) most_n = gemm_ceil_div(p->tile_n, 2);
        else return;
    }
}

/* ---- panels, of generated operands ---- */

/* Maximum memory of the held operand, shared by all threads; or one tile, if that is more. Each thread generates parts
   of the other operand for itself. */
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

/* Strides of the operands in their panels. */
static void describe_panel(const struct gemm *g, const struct gemm_panels *a, const struct gemm_panels *b,
                           struct gemm_operand *ret_a, struct gemm_operand *ret_b)
{
    *ret_a = g->from_a.transposed ? (struct gemm_operand){ .row = 1, .col = a->wide }
                                  : (struct gemm_operand){ .row = g->k, .col = 1 };
    *ret_b = g->from_b.transposed ? (struct gemm_operand){ .row = 1, .col = g->k }
                                  : (struct gemm_operand){ .row = b->wide, .col = 1 };
    rw_gemm_tidy(ret_a, a->wide, g->k);
    rw_gemm_tidy(ret_b, g->k, b->wide);
}

/* Chooses the held operand to minimize repeated generation: all of the other operand is generated once per held
   panel. */
static void set_panels(struct gemm *g, struct gemm_plan *p)
{
    if (g->a_is_stored && !p->amx) {
        struct gemm_operand no_panel;
        p->holds_a = true;
        p->a = (struct gemm_panels){ .tiles = p->tiles_m, .wide = g->m, .n = 1 };
        p->b = panels_of(g, false, g->n, p->tile_n, p->tiles_n, 1);
        describe_panel(g, &p->a, &p->b, &no_panel, &g->b);
        return;
    }
    const int64_t size = (g->k ? g->k : 1) * (int64_t)rw_dtype_size(g->dtype);
    p->a = panels_of(g, p->amx, g->m, p->tile_m, p->tiles_m, HELD_BYTES / (p->tile_m * size));
    p->b = panels_of(g, p->amx, g->n, p->tile_n, p->tiles_n, HELD_BYTES / (p->tile_n * size));
    const int64_t for_a = g->m + p->a.n * g->n, for_b = g->n + p->b.n * g->m;
    p->holds_a = for_a == for_b ? p->a.bytes <= p->b.bytes : for_a < for_b;
    if (p->holds_a) p->b = panels_of(g, p->amx, g->n, p->tile_n, p->tiles_n, 1);
    else p->a = panels_of(g, p->amx, g->m, p->tile_m, p->tiles_m, 1);
    if (!p->amx) describe_panel(g, &p->a, &p->b, &g->a, &g->b);
}

size_t rw_gemm_panel_bytes(const struct gemm_plan *p)
{
    const struct gemm_panels *const held = p->holds_a ? &p->a : &p->b, *const passing = p->holds_a ? &p->b : &p->a;
    return held->bytes + passing->bytes * (size_t)(passing->n < p->threads ? passing->n : p->threads);
}

static int64_t rows_of(const struct gemm *g, const struct gemm_plan *p, bool last)
{
    return last || p->tiles_m == 1 ? g->m - (p->tiles_m - 1) * p->tile_m : p->tile_m;
}

static int64_t cols_of(const struct gemm *g, const struct gemm_plan *p, bool last)
{
    return last ? g->n - (p->tiles_n - 1) * p->tile_n : p->tile_n;
}

/* The rows left over after the library gets a multiple of the rows that it processes at a time. */
static int64_t rows_to_copy(const struct gemm *g, const struct gemm_plan *p)
{
    const int64_t rows = rows_of(g, p, true), left = rows % p->at_once;
    return p->wide || !left ? 0 : rows <= FEW_ROWS ? rows : left;
}

/* For the rows of a tile that are read in place; there may be none. */
static struct rw_matmul_signature signature_of(const struct gemm *g, const struct gemm_plan *p, bool last_m,
                                               bool last_n)
{
    const bool pack_a = g->a.pack_bytes, pack_b = g->b.pack_bytes;
    const int64_t rows = rows_of(g, p, last_m), cols = cols_of(g, p, last_n);
    if (p->wide) return rw_gemm_wide_signature(g, p, gemm_align(rows, p->at_once), cols);
    return (struct rw_matmul_signature){
        .m = last_m || p->tiles_m == 1 ? rows - p->copied : rows,
        .n = cols,
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

/* For the rows that are copied. */
static struct rw_matmul_signature filled_signature(const struct gemm *g, const struct gemm_plan *p, bool last_n)
{
    struct rw_matmul_signature s = signature_of(g, p, true, last_n);
    s.m = rw_gemm_filled(p);
    s.a_row = g->k;
    s.a_col = 1;
    s.c_row = s.n;
    return s;
}

/* Is there fast code for this product, and how much scratch memory does it need? Planning creates the primitive; a run
   finds it, because its plan keeps it alive. */
static rw_status query_primitive(const struct rw_matmul_signature *s, struct rw_onednn *onednn, bool planning,
                                 struct gemm_plan *p, struct rw_onednn_primitive **ret)
{
    bool fast = true;
    size_t scratch = 0;
    if (p->own || !s->m) return RW_OK;
    if (planning) RW_CHECK(rw_onednn_matmul_prepare(onednn, s, p->threads, &fast, &scratch));
    else if (!(*ret = rw_onednn_matmul_find(onednn, s, &fast, &scratch))) return RW_ERR_DEVICE;
    if (scratch > p->scratch) p->scratch = scratch;
    p->own = !fast;
    return RW_OK;
}

int64_t rw_gemm_filled(const struct gemm_plan *p)
{
    return gemm_align(p->copied, p->at_once);
}

size_t rw_gemm_copy_bytes(const struct gemm *g, const struct gemm_plan *p)
{
    return (size_t)gemm_align(rw_gemm_filled(p) * g->k * (int64_t)rw_dtype_size(g->dtype), GEMM_SCRATCH_ALIGN);
}

/* Queries the primitives of all tile shapes, and the scratch memory of a thread. */
static rw_status query_library(const struct gemm *g, struct rw_onednn *onednn, bool planning, struct gemm_plan *p)
{
    p->copied = rows_to_copy(g, p);
    for (int i = 0; i < 4; i++) {
        const struct rw_matmul_signature s = signature_of(g, p, i >> 1, i & 1);
        RW_CHECK(query_primitive(&s, onednn, planning, p, &p->primitive[i >> 1][i & 1]));
    }
    for (int i = 0; i < 2 && p->copied; i++) {
        const struct rw_matmul_signature s = filled_signature(g, p, i);
        RW_CHECK(query_primitive(&s, onednn, planning, p, &p->filled[i]));
    }
    p->library_scratch = (size_t)gemm_align((int64_t)p->scratch, GEMM_SCRATCH_ALIGN);
    p->scratch = p->library_scratch;
    if (!p->copied) return RW_OK;
    const int64_t c = rw_gemm_filled(p) * p->tile_n * (int64_t)rw_dtype_size(g->to);
    p->scratch += rw_gemm_copy_bytes(g, p) + (size_t)gemm_align(c, GEMM_SCRATCH_ALIGN);
    return RW_OK;
}

/* The same result for any number of available threads: a product too small for several threads uses one. */
static int threads_for(const struct gemm *g, int threads)
{
    return (double)g->n_batch * (double)g->m * (double)g->n * (double)g->k < PARALLEL_FROM ? 1 : threads;
}

static void plan_own(struct gemm *g, struct gemm_plan *p)
{
    const bool long_parts = rw_gemm_is_skinny(g) || rw_gemm_is_shallow(g);
    p->own = true;
    p->workspace = p->scratch = 0;
    p->tile_m = GEMM_OWN_M;
    p->tile_n = long_parts ? GEMM_SKINNY_COLS : GEMM_OWN_N;
    p->tiles_m = gemm_ceil_div(g->m, p->tile_m);
    p->tiles_n = gemm_ceil_div(g->n, p->tile_n);
    if (g->panels && p->tiles_m && p->tiles_n) set_panels(g, p);
    p->workspace = rw_gemm_panel_bytes(p);
}

/* Maximum size of a tile of the operand that is not held: it must stay in the L2 cache. */
#define PASSING_BYTES ((int64_t)1 << 20)

/* Gives each thread the same number of panels of the operand that is not held. */
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
    const int64_t most = fits < TILE_MIN ? TILE_MIN : fits;
    p->amx = true;
    cut(g, p, most < TILE_M ? most : TILE_M, most < TILE_N ? most : TILE_N);
    set_panels(g, p);
    share_evenly(g, p);
    p->scratch = (size_t)gemm_align((int64_t)rw_gemm_amx_scratch(g, p->tile_m, p->tile_n), GEMM_SCRATCH_ALIGN);
    p->workspace = rw_gemm_panel_bytes(p) + (size_t)p->threads * p->scratch;
}

/* Plans tiles whose widened parts stay in the L2 cache, for float32 arithmetic. */
static rw_status plan_wide(const struct gemm *g, struct rw_onednn *onednn, bool planning, struct gemm_plan *p)
{
    p->wide = true;
    p->depth = rw_gemm_wide_depth(g);
    cut(g, p, WIDE_TILE, WIDE_TILE);
    RW_CHECK(query_library(g, onednn, planning, p));
    const int64_t tiles = g->n_batch * p->tiles_m * p->tiles_n;
    if (tiles < p->threads) p->threads = (int)tiles;
    p->scratch += rw_gemm_wide_scratch(p);
    p->workspace = (size_t)p->threads * p->scratch;
    return RW_OK;
}

/* Tiles for a b that is generated in strips: all rows of a use a strip at once, if possible. The number of column tiles
   gives each thread a few; each of them packs a again. The result does not depend on tiles. */
static void cut_strips(const struct gemm *g, struct gemm_plan *p)
{
    p->tile_m = even_tile(g->m, TILE_M, TILE_ROWS_AVX2);
    p->tiles_m = gemm_ceil_div(g->m, p->tile_m);
    const int64_t most = gemm_ceil_div(g->n, gemm_ceil_div((int64_t)STRIP_TILES * p->threads, p->tiles_m));
    p->tile_n = even_tile(g->n, most < TILE_N ? most : TILE_N, GEMM_PACKED_LANES);
    p->tiles_n = gemm_ceil_div(g->n, p->tile_n);
}

/* Plans the packed loops: a packed part of either operand, and perhaps the sums. One thread (rw_kernel.threads) may run
   what was planned for several. It then has enough rows to share parts, but uses tiles if the planned workspace is too
   small for that. */
static void plan_packed(struct gemm *g, size_t room, struct gemm_plan *p)
{
    struct gemm_plan shared = *p;
    if (rw_gemm_shares_parts(g, p->threads)) rw_gemm_plan_shared(g, &shared);
    if (shared.shared && shared.workspace <= room) {
        *p = shared;
        return;
    }
    const bool sums = rw_gemm_packs_sums(g);
    p->packed = true;
    if (g->from_b.strips) cut_strips(g, p);
    else cut(g, p, sums ? PACKED_SUMS : TILE_M, sums ? PACKED_SUMS : TILE_N);
    if (g->panels) set_panels(g, p);
    const int64_t tiles = g->n_batch * p->tiles_m * p->tiles_n;
    const int64_t parts = rw_gemm_packed_a(g, p->tile_m) + rw_gemm_packed_b(g, p->tile_n);
    const int64_t floats = parts + (sums ? p->tile_m * p->tile_n : 0);
    if (tiles < p->threads) p->threads = (int)tiles;
    p->scratch = (size_t)gemm_align(floats * (int64_t)sizeof(float), GEMM_SCRATCH_ALIGN);
    p->workspace = rw_gemm_panel_bytes(p) + (size_t)p->threads * p->scratch;
}

/* Chooses the implementation of a product and its tiles, by shape, strides and processor. */
rw_status rw_gemm_make_plan(struct gemm *g, struct rw_onednn *onednn, int threads, bool planning,
                            size_t room, struct gemm_plan *ret)
{
    *ret = (struct gemm_plan){ .threads = threads_for(g, threads), .at_once = 1 };
    if (g->from_b.strips) { /* of any depth: the last part of a sum may be shorter */
        ret->threads = threads;
        plan_packed(g, room, ret);
        return RW_OK;
    }
    const bool nothing = !g->n_batch || !g->m || !g->n;
    const bool small = (double)g->m * (double)g->n * (double)g->k <= OWN_UP_TO;
    if (nothing || small || g->dtype == RW_F64 || rw_gemm_is_skinny(g) || rw_gemm_is_shallow(g)) {
        plan_own(g, ret);
        return RW_OK;
    }
    if (rw_gemm_amx_takes(g)) {
        plan_amx(g, ret);
        return RW_OK;
    }
    if (rw_gemm_is_packed(g)) {
        plan_packed(g, room, ret);
        return RW_OK;
    }
    if (has_rows(g) && g->m > 1) ret->at_once = rw_gemm_rows_at_once();
    if (rw_gemm_is_widened(g)) {
        RW_CHECK(plan_wide(g, onednn, planning, ret));
        if (!ret->own) return RW_OK;
        *ret = (struct gemm_plan){ .threads = threads_for(g, threads), .at_once = ret->at_once };
    }
    cut(g, ret, TILE_M, TILE_N);
    if (g->panels) set_panels(g, ret);
    RW_CHECK(query_library(g, onednn, planning, ret));
    if (ret->own) plan_own(g, ret);
    else
        ret->workspace = (size_t)(g->a.pack_bytes + g->b.pack_bytes) + rw_gemm_panel_bytes(ret) +
                         (size_t)ret->threads * ret->scratch;
    return RW_OK;
}
