/*
 * CPU kernel of cumsum. A sum is computed in double by one thread. Adjacent columns are summed together, and if rows
 * are contiguous along the axis, a few rows together. Each element is read before it is written, so the result may
 * overwrite the input.
 */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/reduce/cumsum.h"

#define COLUMNS 64 /* that are summed together */
#define ROWS 4     /* that are summed together: an addition waits for the previous one of its row */
#define PIECE 64   /* elements of a row that are converted to double, and back, at a time */

VEC_INLINE double get(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? ((const double *)p)[i] : (double)f_get(p, dtype, i);
}

VEC_INLINE void put(void *p, rw_dtype dtype, int64_t i, double x)
{
    if (dtype == RW_F64) ((double *)p)[i] = x;
    else f_put(p, dtype, i, (float)x);
}

/* Columns [from, from + some) of one block of n x inner elements. */
VEC_INLINE void run_columns(const rw_kernel *k, rw_dtype dtype, int64_t start, int64_t from, int64_t some,
                            const struct rw_cumsum_cut *c, bool backwards)
{
    double sum[COLUMNS] = { 0 };
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t at = start + (backwards ? c->n - 1 - i : i) * c->inner + from;
        for (int64_t l = 0; l < some; l++) {
            sum[l] += get(k->in[0].data, dtype, at + l);
            put(k->out[0].data, dtype, at + l, sum[l]);
        }
    }
}

/* Rows of n contiguous elements. */
VEC_INLINE void run_rows(const rw_kernel *k, rw_dtype dtype, int64_t start, int rows, int64_t n, bool backwards)
{
    double sum[ROWS] = { 0 }, piece[ROWS][PIECE];
    for (int64_t done = 0; done < n; done += PIECE) {
        const int64_t some = n - done < PIECE ? n - done : PIECE, at = start + (backwards ? n - done - some : done);
        for (int r = 0; r < rows; r++)
            for (int64_t i = 0; i < some; i++) piece[r][i] = get(k->in[0].data, dtype, at + r * n + i);
        for (int64_t i = 0; i < some; i++)
            for (int r = 0; r < rows; r++) {
                double *const x = &piece[r][backwards ? some - 1 - i : i];
                *x = sum[r] += *x;
            }
        for (int r = 0; r < rows; r++)
            for (int64_t i = 0; i < some; i++) put(k->out[0].data, dtype, at + r * n + i, piece[r][i]);
    }
}

/* One task: some columns of a block; or if a block is a single row, some rows. */
VEC_INLINE void run_typed(const rw_kernel *k, rw_dtype dtype, int64_t start, int64_t from, int64_t some,
                          const struct rw_cumsum_cut *c, bool backwards)
{
    if (c->inner > 1) run_columns(k, dtype, start, from, some, c, backwards);
    else if (some == ROWS) run_rows(k, dtype, start, ROWS, c->n, backwards);
    else for (int64_t r = 0; r < some; r++) run_rows(k, dtype, start + r * c->n, 1, c->n, backwards);
}

static void run_task(const rw_kernel *k, int64_t start, int64_t from, int64_t some, const struct rw_cumsum_cut *c,
                     bool backwards)
{
    switch (k->in[0].dtype) {
    case RW_F64: run_typed(k, RW_F64, start, from, some, c, backwards); return;
    case RW_BF16: run_typed(k, RW_BF16, start, from, some, c, backwards); return;
    case RW_F16: run_typed(k, RW_F16, start, from, some, c, backwards); return;
    default: run_typed(k, RW_F32, start, from, some, c, backwards); return;
    }
}

struct tasks {
    const rw_kernel *k;
    struct rw_cumsum_cut c;
    int64_t chunks; /* of columns */
    bool backwards;
};

static void run_tasks(void *of, int64_t first, int64_t end)
{
    const struct tasks *const t = of;
    const struct rw_cumsum_cut *const c = &t->c;
    const bool row = c->inner == 1;
    for (int64_t task = first; task < end; task++) {
        const int64_t from = row ? task * ROWS : task % t->chunks * COLUMNS, rest = (row ? c->outer : c->inner) - from;
        const int64_t most = row ? ROWS : COLUMNS, start = row ? from : task / t->chunks * c->inner;
        run_task(t->k, start * c->n, from, rest < most ? rest : most, c, t->backwards);
    }
}

rw_status RW_ISA_NAME(rw_cumsum_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cumsum_cpu)(const rw_kernel *k)
{
    const struct rw_cumsum_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    if (!l->numel) return RW_OK;
    const struct rw_cumsum_cut c = rw_cumsum_cut(l, a->axis);
    const struct tasks t = { k, c, (c.inner + COLUMNS - 1) / COLUMNS, a->backwards };
    const int64_t tasks = c.inner == 1 ? (c.outer + ROWS - 1) / ROWS : c.outer * t.chunks;
    rw_team_for(rw_threads_for(k, l->numel), tasks, run_tasks, &t);
    return RW_OK;
}
