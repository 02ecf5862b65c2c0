/* See moe_onednn.h. */
#include "ops/moe/moe_onednn.h"

#include "base/round.h"
#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"
#include "ops/common/util.h"
#include "ops/moe/moe_amx.h"

#include <omp.h>
#include <string.h>

/* Rows that one product takes, or the depth of a sum of outer products. */
enum { CUTS = 7, MOST = 512 };
static const int64_t cuts[CUTS] = { 32, 64, 128, 192, 256, 384, MOST };

#define TILE_MOST 384  /* columns of one product */
#define OUTER_MOST 256 /* rows and columns of a sum, which lies in float32 beside the processor meanwhile */
#define LEAST 16384    /* elements of an expert's matrix: of fewer a call and its workspace cost more than they save */
#define ALIGN 256

/* What a call costs, in rows that are multiplied for nothing: of bfloat16, whose products take little time, 64, and of
   a sum, which is read and written once a call, more than a cut has. */
static int64_t worth_of_call(rw_dtype dtype, bool outer)
{
    return dtype == RW_F32 ? 16 : outer ? MOST : 64;
}

/* The cut that comes next of `left` rows: all of them, unless more than `waste` are multiplied for nothing. */
static int next_cut(int64_t left, int64_t waste)
{
    int i = 0;
    while (i < CUTS - 1 && cuts[i] < left) i++;
    return i && cuts[i] - left > waste ? i - 1 : i;
}

/* An extent in equal tiles, multiples of 16 but for the last. */
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

/* How a product is carried out: a function of shapes alone. */
struct library {
    struct tiling down, across;                        /* of an outer sum; else `across` alone */
    struct rw_onednn_primitive *primitive[CUTS][2][2]; /* [last tile down][last tile across] */
    int64_t waste;                                     /* of a cut */
    size_t size;                                       /* of an element */
    size_t scratch, a, b, c, each;                     /* bytes: of the library, of copies, of a thread */
};

static struct rw_matmul_signature signature_of(const struct moe_product *m, const struct library *l, rw_dtype dtype,
                                               bool outer, int cut, int64_t i, int64_t j)
{
    const int64_t rows = cuts[cut], n = width_of(&l->across, j);
    if (outer)
        return (struct rw_matmul_signature){ .m = width_of(&l->down, i), .n = n, .k = rows, .a_row = 1,
                                             .a_col = m->out, .b_row = m->in, .b_col = 1, .c_row = l->across.tile,
                                             .dtype = (int32_t)dtype, .adds = 1, .to = RW_F32 };
    return (struct rw_matmul_signature){ .m = rows, .n = n, .k = m->depth, .a_row = m->depth, .a_col = 1,
                                         .b_row = m->turned ? m->in : 1, .b_col = m->turned ? 1 : m->in,
                                         .c_row = m->width, .dtype = (int32_t)dtype, .to = (int32_t)dtype };
}

/* All primitives, made when planning and found in a run. *ret_fast: there is fast code for each. */
static rw_status ask(const struct moe_product *m, struct library *l, struct rw_onednn *onednn, rw_dtype dtype,
                     bool outer, int threads, bool planning, bool *ret_fast)
{
    *ret_fast = true;
    const int n = next_cut(m->rows, MOST) + 1; /* no expert has more rows than there are */
    for (int i = 0; i < n * 4 && *ret_fast; i++) {
        const int cut = i / 4, down = i / 2 % 2, across = i % 2;
        if (down && !outer) continue;
        const struct rw_matmul_signature s = signature_of(m, l, dtype, outer, cut, down ? l->down.n - 1 : 0,
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

static rw_status open_library(const struct moe_product *m, struct library *l, struct rw_onednn *onednn, rw_dtype dtype,
                              bool outer, int threads, bool planning, bool *ret_fast)
{
    const int64_t depth = outer ? m->out : m->depth, width = outer ? m->in : m->width;
    *l = (struct library){ .waste = worth_of_call(dtype, outer), .size = rw_dtype_size(dtype) };
    *ret_fast = false;
    if (dtype == RW_F64 || !m->rows || !m->experts || depth * width < LEAST) return RW_OK;
    l->across = tiling_of(width, outer ? OUTER_MOST : TILE_MOST);
    l->down = tiling_of(outer ? m->out : 1, OUTER_MOST);
    RW_CHECK(ask(m, l, onednn, dtype, outer, threads, planning, ret_fast));
    const int64_t size = (int64_t)l->size;
    const int64_t most = cuts[next_cut(m->rows, MOST)];
    l->a = aligned(most * depth * size);
    l->b = outer ? aligned(most * width * size) : 0;
    l->c = outer ? aligned(l->down.tile * l->across.tile * (int64_t)sizeof(float)) : aligned(most * width * size);
    l->scratch = aligned((int64_t)l->scratch);
    l->each = l->a + l->b + l->c + l->scratch;
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

static struct room room_of(const rw_kernel *k, const struct library *l)
{
    const int thread = omp_get_thread_num();
    char *const at = (char *)k->workspace + (size_t)thread * l->each;
    return (struct room){ at, at + l->a, at + l->a + l->b, at + l->a + l->b + l->c, thread };
}

/* Columns [col, col + cols) of n rows from `row` on, and zeros for the rest of a cut; rows stay `width` apart. */
static void copy_rows(const struct moe_product *m, const void *from, bool gathers, int64_t width, size_t size,
                      int64_t row, int64_t n, int64_t cut, int64_t col, int64_t cols, char *to)
{
    const size_t bytes = (size_t)cols * size;
    for (int64_t i = 0; i < cut; i++) {
        char *const at = to + (size_t)(i * width) * size;
        const int64_t source = i < n ? rw_moe_source(m, gathers, row + i) : 0;
        if (i < n) memcpy(at, (const char *)from + (size_t)(source * width + col) * size, bytes);
        else memset(at, 0, bytes);
    }
}

/* A tile of columns of all rows of one expert. */
static rw_status linear_unit(const struct moe_product *m, const struct library *l, const struct room *r, int64_t expert,
                             int64_t tile)
{
    const struct moe_range rows = rw_moe_rows_of(m->offsets, expert, m->rows);
    const int64_t col = tile * l->across.tile, cols = width_of(&l->across, tile);
    const char *const w = (const char *)m->weight +
                          (size_t)(expert * m->out * m->in + (m->turned ? col : col * m->in)) * l->size;
    for (int64_t row = rows.from, n; row < rows.to; row += n) {
        const int cut = next_cut(rows.to - row, l->waste);
        n = rows.to - row < cuts[cut] ? rows.to - row : cuts[cut];
        const bool whole = n == cuts[cut];
        const char *a = (const char *)m->x + (size_t)(row * m->depth) * l->size;
        char *const y = (char *)m->y + (size_t)(row * m->width + col) * l->size;
        if (m->gathers || row + cuts[cut] > m->rows) { /* else what follows is multiplied as well, and left */
            copy_rows(m, m->x, m->gathers, m->depth, l->size, row, n, cuts[cut], 0, m->depth, r->a);
            a = r->a;
        }
        RW_CHECK(rw_onednn_matmul_run(l->primitive[cut][0][tile == l->across.n - 1], r->thread, a, w, NULL,
                                      whole ? y : r->c, r->scratch));
        for (int64_t i = 0; !whole && i < n; i++)
            memcpy(y + (size_t)(i * m->width) * l->size, r->c + (size_t)(i * m->width) * l->size,
                   (size_t)cols * l->size);
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
    memset(r->c, 0, (size_t)(outs * l->across.tile) * sizeof(float));
    for (int64_t row = rows.from, n; row < rows.to; row += n) {
        const int cut = next_cut(rows.to - row, l->waste);
        n = rows.to - row < cuts[cut] ? rows.to - row : cuts[cut];
        const bool whole = n == cuts[cut];
        const char *a = (const char *)m->dy + (size_t)(row * m->out + first) * l->size;
        const char *b = (const char *)m->x + (size_t)(row * m->in + col) * l->size;
        if (!whole || m->gathers_dy) {
            copy_rows(m, m->dy, m->gathers_dy, m->out, l->size, row, n, cuts[cut], first, outs, r->a);
            a = r->a;
        }
        if (!whole || m->gathers) {
            copy_rows(m, m->x, m->gathers, m->in, l->size, row, n, cuts[cut], col, cols, r->b);
            b = r->b;
        }
        RW_CHECK(rw_onednn_matmul_run(l->primitive[cut][i == l->down.n - 1][j == l->across.n - 1], r->thread, a, b,
                                      NULL, r->c, r->scratch));
    }
    put(m, (const float *)(const void *)r->c, l->across.tile, (expert * m->out + first) * m->in + col, outs, cols);
    return RW_OK;
}

/* ---- runs ---- */

/* Units in turn: the library starts no threads of its own where one thread is allowed. */
static rw_status run(const rw_kernel *k, const struct moe_product *m, const struct library *l, rw_moe_put_fn put)
{
    const bool outer = put != NULL;
    const int64_t down = outer ? l->down.n : 1, across = l->across.n, units = m->experts * down * across;
    int failed = RW_OK;
#pragma omp parallel num_threads(k->threads) if (k->threads > 1)
    {
        const int allowed = omp_get_max_threads();
        omp_set_num_threads(1);
        const struct room r = room_of(k, l);
#pragma omp for schedule(dynamic, 1)
        for (int64_t u = 0; u < units; u++) {
            const int64_t expert = u / across / down;
            const rw_status status = outer ? outer_unit(m, l, &r, put, expert, u / across % down, u % across)
                                           : linear_unit(m, l, &r, expert, u % across);
            if (status) __atomic_store_n(&failed, (int)status, __ATOMIC_RELAXED);
        }
        omp_set_num_threads(allowed);
    }
    return (rw_status)failed;
}

/* put: of an outer sum. */
static rw_status find_and_run(const rw_kernel *k, const struct moe_product *m, rw_moe_put_fn put, bool *ret_ran)
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
    if (!*ret_ran) return RW_OK;
    return k->workspace_bytes < l.each * (size_t)k->threads ? RW_ERR_MEMORY : run(k, m, &l, put);
}

rw_status rw_moe_library_linear(const rw_kernel *k, const struct moe_product *m, bool *ret_ran)
{
    return find_and_run(k, m, NULL, ret_ran);
}

rw_status rw_moe_library_outer(const rw_kernel *k, const struct moe_product *m, rw_moe_put_fn put, bool *ret_ran)
{
    return find_and_run(k, m, put, ret_ran);
}
