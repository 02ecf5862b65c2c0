/*
 * Products by expert on the CPU with oneDNN: cuts the rows of an expert into primitives of fixed sizes, copies what
 * needs padding, and runs the tiles. The scheme is described in moe_onednn.h.
 */
#include "ops/moe/moe_onednn.h"

#include "base/round_up.h"
#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"
#include "ops/common/work_stealing.h"
#include "ops/common/util.h"
#include "ops/moe/moe_amx.h"

#include <string.h>

/* Row counts of the primitives; for a sum of outer products their depths. oneDNN's code for AVX2 processes six rows at
   a time and sums left-over rows in another order, so there the counts leave none over. */
enum { CUTS = 7, MAX = 528 };
static const int64_t cuts_by_16[CUTS] = { 32, 64, 128, 192, 256, 384, 512 };
static const int64_t cuts_by_48[CUTS] = { 48, 96, 144, 192, 288, 384, MAX };

static const int64_t *cuts_of_library(void)
{
    return rw_onednn_takes_avx512() ? cuts_by_16 : cuts_by_48;
}

#define TILE_MAX 384  /* columns of one product */
#define TILE_DEEP 96   /* the same if operands are widened and deeper than DEEP: limits a thread's copy */
#define DEEP 2048
#define OUTER_MAX 256 /* rows and columns of a sum, which is kept in the cache in float32 meanwhile */
#define MIN 16384    /* elements of an expert's matrix: with fewer, a call and its workspace cost more than they save */
#define ALIGN 256

/* The cost of a call, in padding rows that take the same time: 64 for bfloat16, whose products are fast. For a sum of
   outer products, which is read and written once per call, more than a cut has. */
static int64_t worth_of_call(rw_dtype dtype, bool outer)
{
    return dtype == RW_F32 ? 16 : outer ? MAX : 64;
}

/* An extent in equal tiles, multiples of 16 except the last. */
struct tiling {
    int64_t extent, tile, n;
};

static int64_t parts_of(int64_t extent, int64_t part)
{
    return (extent + part - 1) / part;
}

static struct tiling tiling_of(int64_t extent, int64_t most)
{
    const int64_t each = parts_of(extent, parts_of(extent, most));
    const int64_t even = (int64_t)rw_round_up((uint64_t)each, 16), tile = even < extent ? even : extent;
    return (struct tiling){ extent, tile, parts_of(extent, tile) };
}

static int64_t width_of(const struct tiling *t, int64_t i)
{
    return i < t->n - 1 ? t->tile : t->extent - i * t->tile;
}

/* The plan of a product: a function of shapes alone. */
struct library {
    struct tiling down, across;                        /* for a sum of outer products; otherwise `across` alone */
    struct rw_onednn_primitive *primitive[CUTS][2][2]; /* [last tile down][last tile across] */
    rw_dtype dtype;
    bool wide;                     /* operands are copied as float32, in which the library multiplies */
    const struct gemm_loops *loops; /* used for the copies; set in a run */
    const int64_t *cuts;
    int n_cuts;
    int64_t waste;                 /* maximum padding rows of a cut */
    int64_t a_row, b_row, c_row;   /* row strides of the copies, and of the product's operands */
    size_t size, inside;           /* bytes of a stored element, and of one as multiplied */
    size_t scratch, a, b, c, each; /* bytes: for the library, for copies, for a thread */
};

/* The next cut for `left` rows: all of them, unless that multiplies more than `waste` padding rows. */
static int next_cut(const struct library *l, int64_t left, int64_t waste)
{
    int i = 0;
    while (i < l->n_cuts - 1 && l->cuts[i] < left) i++;
    return i && l->cuts[i] - left > waste ? i - 1 : i;
}

/* A row's sums must be the same in every cut, so cuts that the library sums differently (device/cpu/onednn.h) are
   excluded. A sum of outer products depends on its cuts. */
static int number_of_cuts(const struct library *l, int64_t depth, bool outer)
{
    const bool all = outer || depth <= RW_ONEDNN_DEPTH || (l->dtype != RW_F32 && !l->wide);
    int n = CUTS;
    while (!all && rw_onednn_takes_avx512() && l->cuts[n - 1] >= RW_ONEDNN_ROWS_MAX) n--;
    return n;
}

/* The depth of rows times a matrix [depth, width], or of a sum of outer products [depth, width]. */
static int64_t depth_of(const struct moe_product *m, bool outer)
{
    return outer ? m->out : m->depth;
}

static int64_t width_in_all(const struct moe_product *m, bool outer)
{
    return outer ? m->in : m->width;
}

static struct rw_matmul_signature signature_of(const struct moe_product *m, const struct library *l, bool outer,
                                               int cut, int64_t i, int64_t j)
{
    const int64_t rows = l->cuts[cut], n = width_of(&l->across, j);
    const int32_t dtype = l->wide ? RW_F32 : l->dtype;
    if (outer)
        return (struct rw_matmul_signature){ .m = width_of(&l->down, i), .n = n, .k = rows, .a_row = 1,
                                             .a_col = l->a_row, .b_row = l->b_row, .b_col = 1, .c_row = l->c_row,
                                             .dtype = dtype, .adds = 1, .to = RW_F32 };
    return (struct rw_matmul_signature){ .m = rows, .n = n, .k = m->depth, .a_row = l->a_row, .a_col = 1,
                                         .b_row = m->transposed ? l->b_row : 1, .b_col = m->transposed ? 1 : l->b_row,
                                         .c_row = l->c_row, .dtype = dtype, .to = dtype };
}

/* All primitives, created when planning and found in a run. *ret_fast: there is fast code for each. */
static rw_status query_library(const struct moe_product *m, struct library *l, struct rw_onednn *onednn, bool outer,
                               int threads, bool planning, bool *ret_fast)
{
    *ret_fast = true;
    const int n = next_cut(l, m->rows, MAX) + 1; /* no expert has more rows than there are in total */
    for (int i = 0; i < n * 4 && *ret_fast; i++) {
        const int cut = i / 4, down = i / 2 % 2, across = i % 2;
        if (down && !outer) continue;
        const struct rw_matmul_signature s = signature_of(m, l, outer, cut, down ? l->down.n - 1 : 0,
                                                          across ? l->across.n - 1 : 0);
        struct rw_onednn_primitive **const p = &l->primitive[cut][down][across];
        size_t scratch = 0;
        if (planning) RW_CHECK(rw_onednn_matmul_prepare(onednn, &s, threads, ret_fast, &scratch));
        else if (!(*p = rw_onednn_matmul_find(onednn, &s, ret_fast, &scratch))) return RW_ERR_DEVICE;
        if (scratch > l->scratch) l->scratch = scratch;
    }
    return RW_OK;
}

static size_t aligned(int64_t bytes)
{
    return (size_t)rw_round_up((uint64_t)bytes, ALIGN);
}

/* Widened operands are copied tile by tile; others are multiplied in place, or from a copy with the same layout. */
static void set_rows(const struct moe_product *m, struct library *l, bool outer)
{
    l->inside = l->wide ? sizeof(float) : l->size;
    l->a_row = outer ? m->out : m->depth;
    l->b_row = m->in;
    l->c_row = outer || l->wide ? l->across.tile : m->width;
    if (!l->wide) return;
    if (outer) l->a_row = l->down.tile;
    l->b_row = outer || m->transposed ? l->across.tile : m->depth;
}

static void set_bytes(const struct moe_product *m, struct library *l, bool outer)
{
    const int64_t inside = (int64_t)l->inside, most = l->cuts[next_cut(l, m->rows, MAX)];
    const int64_t weight = m->depth * l->across.tile;
    l->a = aligned(most * l->a_row * inside);
    l->b = outer ? aligned(most * l->b_row * inside) : l->wide ? aligned(weight * inside) : 0;
    l->c = outer ? aligned(l->down.tile * l->c_row * (int64_t)sizeof(float)) : aligned(most * l->c_row * inside);
    l->scratch = aligned((int64_t)l->scratch);
    l->each = l->a + l->b + l->c + l->scratch;
}

static int64_t columns_of_product(bool wide, int64_t depth)
{
    return wide && depth > DEEP ? TILE_DEEP : TILE_MAX;
}

/* Plans a product by expert with the library. *ret_fast is false if the plain loops must compute it. */
static rw_status open_library(const struct moe_product *m, struct library *l, struct rw_onednn *onednn, rw_dtype dtype,
                              bool outer, int threads, bool planning, bool *ret_fast)
{
    const bool wide = rw_gemm_widens(dtype);
    const int64_t depth = depth_of(m, outer), width = width_in_all(m, outer);
    *l = (struct library){ .dtype = dtype, .wide = wide, .cuts = cuts_of_library(), .size = rw_dtype_size(dtype) };
    *ret_fast = false;
    if (!rw_onednn_is_present() || dtype == RW_F64 || !m->rows || !m->experts || depth * width < MIN) return RW_OK;
    l->n_cuts = number_of_cuts(l, depth, outer);
    l->waste = worth_of_call(wide ? RW_F32 : dtype, outer);
    l->across = tiling_of(width, outer ? OUTER_MAX : columns_of_product(wide, depth));
    l->down = tiling_of(outer ? m->out : 1, OUTER_MAX);
    set_rows(m, l, outer);
    RW_CHECK(query_library(m, l, onednn, outer, threads, planning, ret_fast));
    set_bytes(m, l, outer);
    return RW_OK;
}

size_t rw_moe_library_workspace(const rw_op_call *call, const struct moe_product *m, bool outer)
{
    const struct rw_cpu *const cpu = call->device;
    struct library l;
    bool fast;
    if (rw_moe_amx_takes(m, call->in[0].dtype, outer)) return rw_moe_amx_workspace(m, outer) * (size_t)call->threads;
    if (open_library(m, &l, cpu->onednn, call->in[0].dtype, outer, call->threads, true, &fast)) return SIZE_MAX;
    return fast ? l.each * (size_t)call->threads : 0;
}

/* ---- rows times a matrix ---- */

/* A thread's part of the workspace. */
struct room {
    char *a, *b, *c, *scratch;
    int thread;
};

static struct room room_of(const rw_kernel *k, const struct library *l, int thread)
{
    char *const at = (char *)k->workspace + (size_t)thread * l->each;
    return (struct room){ at, at + l->a, at + l->a + l->b, at + l->a + l->b + l->c, thread };
}

/* Copies n elements of one line in the form in which they are multiplied. */
static void copy_line(const struct library *l, const void *from, int64_t at, int64_t n, char *to)
{
    const char *const first = (const char *)from + (size_t)at * l->size;
    if (l->wide) l->loops->widen(l->dtype, first, 1, n, (float *)(void *)to);
    else memcpy(to, first, (size_t)n * l->size);
}

/* The part of an operand's rows that is multiplied: columns [col, col + cols), whose copies are `apart` apart. */
struct part {
    const void *of;
    bool gathers;
    int64_t width, col, cols, apart;
};

/* Copies n rows from `row` on, and zeros for the rest of a cut. */
static void copy_rows(const struct moe_product *m, const struct library *l, const struct part *p, int64_t row,
                      int64_t n, int64_t cut, char *to)
{
    for (int64_t i = 0; i < cut; i++) {
        char *const at = to + (size_t)(i * p->apart) * l->inside;
        const int64_t source = i < n ? rw_moe_source(m, p->gathers, row + i) : 0;
        if (i < n) copy_line(l, p->of, source * p->width + p->col, p->cols, at);
        else memset(at, 0, (size_t)p->cols * l->inside);
    }
}

/* An expert's matrix, columns of the product from `col` on: in place, or widened. */
static const char *matrix_of(const struct moe_product *m, const struct library *l, const struct room *r, int64_t expert,
                             int64_t col, int64_t cols)
{
    const int64_t at = expert * m->out * m->in + (m->transposed ? col : col * m->in);
    const int64_t lines = m->transposed ? m->depth : cols, n = m->transposed ? cols : m->depth;
    if (!l->wide) return (const char *)m->weight + (size_t)at * l->size;
    for (int64_t i = 0; i < lines; i++)
        copy_line(l, m->weight, at + i * m->in, n, r->b + (size_t)(i * l->b_row) * l->inside);
    return r->b;
}

/* Writes n rows of c to y. */
static void put_rows(const struct moe_product *m, const struct library *l, const char *c, int64_t row, int64_t n,
                     int64_t col, int64_t cols)
{
    const int64_t at = row * m->width + col;
    if (l->wide) {
        const struct gemm g = { .dtype = l->dtype, .to = l->dtype, .c = m->y, .c_row = m->width };
        l->loops->round(&g, (const float *)(const void *)c, l->c_row, at, n, col, cols);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)m->y + (size_t)(at + i * m->width) * l->size, c + (size_t)(i * l->c_row) * l->size,
               (size_t)cols * l->size);
}

/* A tile of columns of all rows of one expert. */
static rw_status linear_unit(const struct moe_product *m, const struct library *l, const struct room *r, int64_t expert,
                             int64_t tile)
{
    const struct moe_range rows = rw_moe_rows_of(m->offsets, expert, m->rows);
    const int64_t col = tile * l->across.tile, cols = width_of(&l->across, tile);
    const struct part x = { m->x, m->gathers, m->depth, 0, m->depth, l->a_row };
    const char *const w = rows.from < rows.to ? matrix_of(m, l, r, expert, col, cols) : NULL;
    for (int64_t row = rows.from, n; row < rows.to; row += n) {
        const int cut = next_cut(l, rows.to - row, l->waste);
        n = rows.to - row < l->cuts[cut] ? rows.to - row : l->cuts[cut];
        const bool direct = n == l->cuts[cut] && !l->wide;
        const char *a = (const char *)m->x + (size_t)(row * m->depth) * l->size;
        char *const c = direct ? (char *)m->y + (size_t)(row * m->width + col) * l->size : r->c;
        /* Otherwise the rows that follow in memory are multiplied as padding, and their results are discarded. */
        if (l->wide || m->gathers || row + l->cuts[cut] > m->rows) {
            copy_rows(m, l, &x, row, n, l->cuts[cut], r->a);
            a = r->a;
        }
        RW_CHECK(rw_onednn_matmul_run(l->primitive[cut][0][tile == l->across.n - 1], r->thread, a, w, NULL, c,
                                      r->scratch));
        if (!direct) put_rows(m, l, c, row, n, col, cols);
    }
    return RW_OK;
}

/* ---- sums of outer products ---- */

/* A tile of one expert's sum over its rows. */
static rw_status outer_unit(const struct moe_product *m, const struct library *l, const struct room *r,
                            rw_moe_put_fn put, int64_t expert, int64_t i, int64_t j)
{
    const struct moe_range rows = rw_moe_rows_of(m->offsets, expert, m->rows);
    const int64_t first = i * l->down.tile, outs = width_of(&l->down, i);
    const int64_t col = j * l->across.tile, cols = width_of(&l->across, j);
    const struct part dy = { m->dy, m->gathers_dy, m->out, first, outs, l->a_row };
    const struct part x = { m->x, m->gathers, m->in, col, cols, l->b_row };
    memset(r->c, 0, (size_t)(outs * l->c_row) * sizeof(float));
    for (int64_t row = rows.from, n; row < rows.to; row += n) {
        const int cut = next_cut(l, rows.to - row, l->waste);
        n = rows.to - row < l->cuts[cut] ? rows.to - row : l->cuts[cut];
        const bool copies = n < l->cuts[cut] || l->wide;
        const char *a = (const char *)m->dy + (size_t)(row * m->out + first) * l->size;
        const char *b = (const char *)m->x + (size_t)(row * m->in + col) * l->size;
        if (copies || m->gathers_dy) {
            copy_rows(m, l, &dy, row, n, l->cuts[cut], r->a);
            a = r->a;
        }
        if (copies || m->gathers) {
            copy_rows(m, l, &x, row, n, l->cuts[cut], r->b);
            b = r->b;
        }
        RW_CHECK(rw_onednn_matmul_run(l->primitive[cut][i == l->down.n - 1][j == l->across.n - 1], r->thread, a, b,
                                      NULL, r->c, r->scratch));
    }
    put(m, (const float *)(const void *)r->c, l->c_row, (expert * m->out + first) * m->in + col, outs, cols);
    return RW_OK;
}

/* ---- execution ---- */

/* put: NULL for rows times a matrix. */
struct units {
    const rw_kernel *k;
    const struct moe_product *m;
    const struct library *l;
    rw_moe_put_fn put;
    int64_t down;
};

static rw_status run_unit(const void *of, int64_t i, int thread)
{
    const struct units *const u = of;
    const struct room r = room_of(u->k, u->l, thread);
    const int64_t across = u->l->across.n, expert = i / across / u->down;
    return u->put ? outer_unit(u->m, u->l, &r, u->put, expert, i / across % u->down, i % across)
                  : linear_unit(u->m, u->l, &r, expert, i % across);
}

static rw_status run(const rw_kernel *k, const struct moe_product *m, const struct library *l, rw_moe_put_fn put)
{
    const struct units u = { k, m, l, put, put ? l->down.n : 1 };
    return rw_shares_run(k->threads, m->experts * u.down * l->across.n, run_unit, &u);
}

/* put: for a sum of outer products. */
static rw_status find_and_run(const rw_kernel *k, const struct moe_product *m, const struct gemm_loops *loops,
                              rw_moe_put_fn put, bool *ret_ran)
{
    const struct rw_cpu *const cpu = k->device;
    const bool outer = put != NULL;
    struct library l;
    if ((*ret_ran = rw_moe_amx_takes(m, k->in[0].dtype, outer))) {
        if (k->workspace_bytes < rw_moe_amx_workspace(m, outer) * (size_t)k->threads) return RW_ERR_MEMORY;
        if (outer) rw_moe_amx_outer(k, m, put);
        else rw_moe_amx_linear(k, m);
        return RW_OK;
    }
    RW_CHECK(open_library(m, &l, cpu->onednn, k->in[0].dtype, outer, k->threads, false, ret_ran));
    l.loops = loops;
    if (!*ret_ran) return RW_OK;
    return k->workspace_bytes < l.each * (size_t)k->threads ? RW_ERR_MEMORY : run(k, m, &l, put);
}

rw_status rw_moe_library_linear(const rw_kernel *k, const struct moe_product *m, const struct gemm_loops *loops,
                                bool *ret_ran)
{
    return find_and_run(k, m, loops, NULL, ret_ran);
}

rw_status rw_moe_library_outer(const rw_kernel *k, const struct moe_product *m, const struct gemm_loops *loops,
                               rw_moe_put_fn put, bool *ret_ran)
{
    return find_and_run(k, m, loops, put, ret_ran);
}
