/*
 * Large products of a 16-bit type that the processor does not multiply, or not faster than float32: computed by
 * oneDNN's float32 from widened parts.
 *
 *     a  16 bits |....|####|....|        b  16 bits |..|        c  16 bits |....|
 *                |....|    |....|                   |##|                   |.##.|
 *                        |                          |..|                      ^
 *                        v widened                   |                        | bias, addend, rounded once
 *     [rows, depth] float32     x     [depth, cols] float32    added to    [rows, cols] float32
 *
 * A thread widens a part of either operand when its tile needs it. Parts and sums stay in its L2 cache, whatever the
 * depth of the product. Parts of generated operands (struct gemm_source) are generated there, and then widened.
 */
#include "ops/matmul/gemm_plan.h"

#include "ops/common/util.h"

#include <string.h>

#define DEPTH_MAX 256
#define DEPTH_ALIGN 16

/* ---- parts of an operand ---- */

/* An operand as lines, either along the depth, or along the rows of a or columns of b. */
struct wide_operand {
    const struct gemm_source *generated; /* or NULL: stored at data, with these strides along and across lines */
    const char *data;
    int64_t line, step;
    bool along_depth;
};

static struct wide_operand generated_operand(const struct gemm_source *from, bool is_a)
{
    return (struct wide_operand){ .generated = from, .along_depth = is_a != from->transposed };
}

/* along, across: strides of the stored operand along the depth and across it. */
static struct wide_operand lying_operand(const void *data, int64_t along, int64_t across)
{
    const bool along_depth = along == 1 || across != 1;
    return (struct wide_operand){ .data = data,
                                  .line = along_depth ? across : along,
                                  .step = along_depth ? along : across,
                                  .along_depth = along_depth };
}

static const void *start(const struct gemm *g, const struct gemm_operand *x, int64_t item)
{
    return (const char *)x->data + rw_gemm_start(g, x, item) * (int64_t)rw_dtype_size(g->dtype);
}

static struct wide_operand operand_a(const struct gemm *g, int64_t item)
{
    if (g->panels && !g->a_is_stored) return generated_operand(&g->from_a, true);
    if (g->panels) return lying_operand(g->a.data, 1, g->k);
    return lying_operand(start(g, &g->a, item), g->a.col, g->a.row);
}

static struct wide_operand operand_b(const struct gemm *g, int64_t item)
{
    if (g->panels) return generated_operand(&g->from_b, false);
    return lying_operand(start(g, &g->b, item), g->b.row, g->b.col);
}

/* Widens elements [first, first + n) of a line. A generated line is first written to the second half of its widened
   memory. */
static void widen_line(const struct wide_operand *x, const struct gemm *g, const struct gemm_loops *loops, int64_t line,
                       int64_t first, int64_t n, float *to)
{
    if (x->generated) {
        void *const narrow = (char *)to + n * (int64_t)sizeof(uint16_t);
        x->generated->make(x->generated->of, line, first, n, narrow);
        loops->widen(g->dtype, narrow, 1, n, to);
    } else {
        const int64_t at = line * x->line + first * x->step;
        loops->widen(g->dtype, x->data + at * (int64_t)sizeof(uint16_t), x->step, n, to);
    }
}

/* Widens n rows of a, or columns of b, from `first` on, by elements [p, p + depth) along the depth; zeros after the
   last one. Lines across the depth are `tile` apart. */
static void widen_part(const struct wide_operand *x, const struct gemm *g, const struct gemm_loops *loops,
                       int64_t first, int64_t n, int64_t tile, int64_t p, int64_t depth, float *to)
{
    const int64_t left = g->k - p, there = left < depth ? left : depth;
    if (x->along_depth) {
        for (int64_t i = 0; i < n; i++, to += depth) {
            widen_line(x, g, loops, first + i, p, there, to);
            memset(to + there, 0, (size_t)(depth - there) * sizeof *to);
        }
        return;
    }
    for (int64_t i = 0; i < there; i++) widen_line(x, g, loops, p + i, first, n, to + i * tile);
    for (int64_t i = there; i < depth; i++) memset(to + i * tile, 0, (size_t)n * sizeof *to);
}

/* ---- a tile ---- */

/* Rows of a part of a, or of the sums, including the padding of a tile. */
static int64_t rows_in_part(const struct gemm_plan *p)
{
    return gemm_align(p->tile_m, p->at_once);
}

int64_t rw_gemm_wide_depth(const struct gemm *g)
{
    return gemm_align(gemm_ceil_div(g->k, gemm_ceil_div(g->k, DEPTH_MAX)), DEPTH_ALIGN);
}

struct rw_matmul_signature rw_gemm_wide_signature(const struct gemm *g, const struct gemm_plan *p, int64_t rows,
                                                  int64_t cols)
{
    const bool a_along = operand_a(g, 0).along_depth, b_along = operand_b(g, 0).along_depth;
    return (struct rw_matmul_signature){
        .m = rows,
        .n = cols,
        .k = p->depth,
        .a_row = a_along ? p->depth : 1,
        .a_col = a_along ? 1 : rows_in_part(p),
        .b_row = b_along ? 1 : p->tile_n,
        .b_col = b_along ? p->depth : 1,
        .c_row = p->tile_n,
        .dtype = RW_F32,
        .adds = true,
        .to = RW_F32,
    };
}

/* Parts of a and b, and the sums, each aligned. */
struct parts {
    int64_t a, b, sums; /* in floats */
};

static struct parts parts_of(const struct gemm_plan *p)
{
    const int64_t align = GEMM_SCRATCH_ALIGN / (int64_t)sizeof(float);
    return (struct parts){ gemm_align(rows_in_part(p) * p->depth, align), gemm_align(p->tile_n * p->depth, align),
                           gemm_align(rows_in_part(p) * p->tile_n, align) };
}

size_t rw_gemm_wide_scratch(const struct gemm_plan *p)
{
    const struct parts n = parts_of(p);
    return (size_t)(n.a + n.b + n.sums) * sizeof(float);
}

/* Computes one tile: widens parts along the depth, multiplies them with the library, and rounds the sums. */
rw_status rw_gemm_wide_tile(const struct gemm *g, const struct gemm_plan *p, const struct gemm_loops *loops,
                            const struct gemm_tile *t, int thread, char *scratch)
{
    const struct parts n = parts_of(p);
    const struct wide_operand of_a = operand_a(g, t->item), of_b = operand_b(g, t->item);
    char *const own = scratch + (size_t)thread * p->scratch;
    float *const a = (float *)(void *)own, *const b = a + n.a, *const sums = b + n.b;
    memset(sums, 0, (size_t)(gemm_align(t->rows, p->at_once) * p->tile_n) * sizeof *sums);
    if (t->rows % p->at_once) memset(a, 0, (size_t)n.a * sizeof *a);
    for (int64_t at = 0; at < g->k; at += p->depth) {
        widen_part(&of_a, g, loops, t->row, t->rows, rows_in_part(p), at, p->depth, a);
        widen_part(&of_b, g, loops, t->col, t->cols, p->tile_n, at, p->depth, b);
        RW_CHECK(rw_onednn_matmul_run(p->primitive[t->last_m][t->last_n], thread, a, b, NULL, sums, sums + n.sums));
    }
    loops->round(g, sums, p->tile_n, (t->item * g->m + t->row) * g->c_row + t->col, t->rows, t->col, t->cols);
    return RW_OK;
}
