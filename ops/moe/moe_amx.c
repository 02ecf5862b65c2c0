/*
 * Products by expert on the CPU with the matrix unit (Intel AMX): cuts them into units of work, packs operands and runs
 * the tiles. The scheme is described in moe_amx.h.
 */
#include "ops/moe/moe_amx.h"

#include "ops/common/work_stealing.h"
#include "ops/matmul/gemm_amx.h"

#include <string.h>

/* Minimum number of elements of an expert's matrix, the same as for the other implementations. */
#define MIN 16384
/* The operand that is packed once must stay in the L2 cache, next to the one that is packed in turn. */
#define PACKED_BYTES ((int64_t)1 << 20)
#define ROWS 128       /* packed in turn */
#define COLS_MAX 1024 /* of a matrix, packed once */
#define COLS_MIN 64
#define OUTER_ROWS 1024
#define OUTER_DOWN 256
#define OUTER_ACROSS 512

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Bytes of packed blocks. */
static int64_t packed(int64_t wide, int64_t depth)
{
    const int64_t numbers = gemm_align(wide, AMX_BLOCK) * gemm_align(depth, AMX_BLOCK);
    return gemm_align(numbers * (int64_t)sizeof(uint16_t), GEMM_SCRATCH_ALIGN);
}

/* Columns of an expert's matrix that are packed at a time. */
static int64_t cols_of(const struct moe_product *m)
{
    const int64_t fit = PACKED_BYTES / (2 * m->depth) / AMX_BLOCK * AMX_BLOCK;
    const int64_t most = fit < COLS_MIN ? COLS_MIN : fit > COLS_MAX ? COLS_MAX : fit;
    return least_of(gemm_align(gemm_ceil_div(m->width, gemm_ceil_div(m->width, most)), AMX_BLOCK), m->width);
}

/* ---- products as struct gemm ---- */

/* For an operand with one row per token: the token rows of n rows from `first` on. */
static void pick(const struct moe_product *m, int64_t first, int64_t n, int32_t *to)
{
    for (int64_t i = 0; i < n; i++) to[i] = (int32_t)rw_moe_source(m, true, first + i);
}

/* Rows times columns [col, col + cols) of the expert's matrix. */
static struct gemm linear_of(const struct moe_product *m, int64_t expert, int64_t col, int64_t cols, int64_t rows)
{
    struct gemm g = {
        .dtype = RW_BF16, .to = RW_BF16, .m = rows, .n = cols, .k = m->depth, .c_row = m->width, .n_batch = 1
    };
    g.a = (struct gemm_operand){ .data = m->x, .row = m->depth, .col = 1 };
    g.b = (struct gemm_operand){ .row = m->transposed ? m->in : 1, .col = m->transposed ? 1 : m->in };
    if (m->weight) g.b.data = (const uint16_t *)m->weight + expert * m->out * m->in + col * g.b.col;
    return g;
}

/* dy's columns [out, out + outs) times x's [in, in + ins), over n rows from `row` on. */
static struct gemm outer_of(const struct moe_product *m, int64_t row, int64_t n, int64_t out, int64_t outs, int64_t in,
                            int64_t ins)
{
    struct gemm g = {
        .dtype = RW_BF16, .to = RW_F32, .m = outs, .n = ins, .k = n, .c_row = OUTER_ACROSS, .n_batch = 1
    };
    g.a = (struct gemm_operand){ .row = 1, .col = m->out };
    g.b = (struct gemm_operand){ .row = m->in, .col = 1 };
    if (m->dy) g.a.data = (const uint16_t *)m->dy + row * m->out + out;
    if (m->x) g.b.data = (const uint16_t *)m->x + row * m->in + in;
    return g;
}

bool rw_moe_amx_takes(const struct moe_product *m, rw_dtype dtype, bool outer)
{
    const int64_t depth = outer ? m->out : m->depth, width = outer ? m->in : m->width;
    if (dtype != RW_BF16 || !m->rows || !m->experts || depth * width < MIN) return false;
    /* Queried as for many rows, whatever their number: a token's result must not depend on how many others there
       are. */
    const struct gemm g = outer ? outer_of(m, 0, OUTER_ROWS, 0, m->out, 0, m->in)
                                : linear_of(m, 0, 0, m->width, OUTER_ROWS);
    return rw_gemm_amx_takes(&g);
}

/* ---- workspace ---- */

/* A thread's part of the workspace. */
struct room {
    int64_t a, b, scratch, sum; /* offsets in bytes */
};

/* The sizes of a thread's parts of the workspace. */
static struct room room_for(const struct moe_product *m, bool outer)
{
    struct room r = { 0 };
    if (outer) {
        const int64_t down = least_of(m->out, OUTER_DOWN), across = least_of(m->in, OUTER_ACROSS);
        const struct gemm g = outer_of(m, 0, least_of(m->rows, OUTER_ROWS), 0, down, 0, across);
        r = (struct room){ packed(down, g.k), packed(across, g.k), (int64_t)rw_gemm_amx_scratch(&g, down, across),
                           down * OUTER_ACROSS * (int64_t)sizeof(float) };
    } else {
        const int64_t cols = cols_of(m), rows = least_of(m->rows, ROWS);
        const struct gemm g = linear_of(m, 0, 0, cols, rows);
        r = (struct room){ packed(rows, g.k), packed(cols, g.k), (int64_t)rw_gemm_amx_scratch(&g, rows, cols), 0 };
    }
    r.scratch = gemm_align(r.scratch, GEMM_SCRATCH_ALIGN);
    r.sum = gemm_align(r.sum, GEMM_SCRATCH_ALIGN);
    return r;
}

static size_t bytes_of(const struct room *r)
{
    return (size_t)(r->a + r->b + r->scratch + r->sum);
}

size_t rw_moe_amx_workspace(const struct moe_product *m, bool outer)
{
    const struct room r = room_for(m, outer);
    return bytes_of(&r);
}

/* Addresses in a thread's workspace. */
struct at {
    uint16_t *a, *b;
    float *scratch, *sum;
};

static struct at place_of(const rw_kernel *k, const struct room *r, int thread)
{
    char *const at = (char *)k->workspace + (size_t)thread * bytes_of(r);
    return (struct at){ (uint16_t *)(void *)at, (uint16_t *)(void *)(at + r->a), (float *)(void *)(at + r->a + r->b),
                        (float *)(void *)(at + r->a + r->b + r->scratch) };
}

/* ---- rows times a matrix ---- */

/* All rows of an expert times some columns of its matrix. */
static void linear_unit(const struct moe_product *m, const struct at *p, int64_t expert, int64_t col, int64_t cols)
{
    const struct moe_range rows = rw_moe_rows_of(m->offsets, expert, m->rows);
    int32_t picks[ROWS];
    struct gemm g = linear_of(m, expert, col, cols, rows.to - rows.from);
    if (m->gathers) g.a.picks = picks;
    if (g.m > 0) rw_gemm_amx_pack(&g, false, 0, cols, p->b);
    for (int64_t row = rows.from; row < rows.to; row += ROWS) {
        const int64_t n = least_of(rows.to - row, ROWS);
        if (m->gathers) pick(m, row, n, picks);
        else g.a.data = (const uint16_t *)m->x + row * m->depth;
        g.c = (uint16_t *)m->y + row * m->width + col;
        rw_gemm_amx_pack(&g, true, 0, n, p->a);
        rw_gemm_amx_tile(&g, p->a, p->b, n, cols, true, p->scratch);
    }
}

/* The units of work: an expert's columns, or rows of its sum, `cut` of them in each of `parts` parts. */
struct units {
    const rw_kernel *k;
    const struct moe_product *m;
    rw_moe_put_fn put;
    struct room r;
    int64_t cut, parts;
};

static rw_status run_linear(const void *of, int64_t i, int thread)
{
    const struct units *const u = of;
    const struct at p = place_of(u->k, &u->r, thread);
    const int64_t col = i % u->parts * u->cut;
    linear_unit(u->m, &p, i / u->parts, col, least_of(u->m->width - col, u->cut));
    return RW_OK;
}

void rw_moe_amx_linear(const rw_kernel *k, const struct moe_product *m)
{
    const int64_t cols = cols_of(m);
    const struct units u = { k, m, NULL, room_for(m, false), cols, gemm_ceil_div(m->width, cols) };
    rw_shares_run(k->threads, m->experts * u.parts, run_linear, &u);
}

/* ---- sums of outer products ---- */

/* Packs part of an operand: stored rows, or rows selected by tokens. */
static void pack_part(const struct moe_product *m, const struct gemm *of, bool is_dy, int64_t row, int64_t first,
                      uint16_t *to)
{
    int32_t picks[OUTER_ROWS];
    struct gemm g = *of;
    struct gemm_operand *const x = is_dy ? &g.a : &g.b;
    if (is_dy ? m->gathers_dy : m->gathers) {
        pick(m, row, g.k, picks);
        x->data = (const uint16_t *)(is_dy ? m->dy : m->x) + first;
        x->picks = picks;
    }
    rw_gemm_amx_pack(&g, is_dy, 0, is_dy ? g.m : g.n, to);
}

/* Computes a part into c, with rows c_row elements apart; dy is already packed. */
static void outer_part(const struct moe_product *m, const struct at *p, const struct gemm *g, int64_t row, int64_t in)
{
    pack_part(m, g, false, row, in, p->b);
    rw_gemm_amx_tile(g, p->a, p->b, g->m, g->n, false, p->scratch);
}

/* Few rows: the result is written, and the addend read, while the unit multiplies. */
static void outer_at_once(const struct moe_product *m, const struct at *p, struct moe_range rows, int64_t expert,
                          int64_t out, int64_t outs)
{
    for (int64_t in = 0; in < m->in; in += OUTER_ACROSS) {
        const int64_t at = (expert * m->out + out) * m->in + in, size = (int64_t)rw_dtype_size(m->to);
        struct gemm g = outer_of(m, rows.from, rows.to - rows.from, out, outs, in, least_of(m->in - in, OUTER_ACROSS));
        if (!in) pack_part(m, &g, true, rows.from, out, p->a);
        g.to = m->to;
        g.c_row = m->in;
        g.c = (char *)m->y + at * size;
        g.adds = m->sum != NULL;
        g.sum = g.adds ? (const char *)m->sum + at * size : NULL;
        g.streams = m->streams && m->to == RW_F32;
        outer_part(m, p, &g, rows.from, in);
    }
}

/* Rows of one expert's sum, in parts along the depth that are added in order, one tile of columns at a time. Zeros if
   the expert has no rows. */
static void outer_in_parts(const struct moe_product *m, const struct at *p, rw_moe_put_fn put, struct moe_range rows,
                           int64_t expert, int64_t out, int64_t outs)
{
    for (int64_t in = 0; in < m->in; in += OUTER_ACROSS) {
        const int64_t ins = least_of(m->in - in, OUTER_ACROSS);
        if (rows.from == rows.to) memset(p->sum, 0, (size_t)(outs * OUTER_ACROSS) * sizeof *p->sum);
        for (int64_t row = rows.from; row < rows.to; row += OUTER_ROWS) {
            struct gemm g = outer_of(m, row, least_of(rows.to - row, OUTER_ROWS), out, outs, in, ins);
            pack_part(m, &g, true, row, out, p->a);
            g.adds = row > rows.from;
            g.c = p->sum;
            g.sum = p->sum;
            outer_part(m, p, &g, row, in);
        }
        put(m, p->sum, OUTER_ACROSS, (expert * m->out + out) * m->in + in, outs, ins);
    }
}

static void outer_unit(const struct moe_product *m, const struct at *p, rw_moe_put_fn put, int64_t expert, int64_t out)
{
    const struct moe_range rows = rw_moe_rows_of(m->offsets, expert, m->rows);
    const int64_t n = rows.to - rows.from, outs = least_of(m->out - out, OUTER_DOWN);
    if (n && n <= OUTER_ROWS) outer_at_once(m, p, rows, expert, out, outs);
    else outer_in_parts(m, p, put, rows, expert, out, outs);
}

static rw_status run_outer(const void *of, int64_t i, int thread)
{
    const struct units *const u = of;
    const struct at p = place_of(u->k, &u->r, thread);
    outer_unit(u->m, &p, u->put, i / u->parts, i % u->parts * u->cut);
    return RW_OK;
}

void rw_moe_amx_outer(const rw_kernel *k, const struct moe_product *m, rw_moe_put_fn put)
{
    const struct units u = { k, m, put, room_for(m, true), OUTER_DOWN, gemm_ceil_div(m->out, OUTER_DOWN) };
    rw_shares_run(k->threads, m->experts * u.parts, run_outer, &u);
}
