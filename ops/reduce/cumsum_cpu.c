/*
 * CPU kernel of cumsum: a sum runs in double, by one thread; columns side by side run together. Each element is read
 * before it is written, so that the sums may lie over them.
 */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/reduce/cumsum.h"

#define COLUMNS 64 /* that run together */

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

static void run_task(const rw_kernel *k, int64_t start, int64_t from, int64_t some, const struct rw_cumsum_cut *c,
                     bool backwards)
{
    switch (k->in[0].dtype) {
    case RW_F64: run_columns(k, RW_F64, start, from, some, c, backwards); return;
    case RW_BF16: run_columns(k, RW_BF16, start, from, some, c, backwards); return;
    case RW_F16: run_columns(k, RW_F16, start, from, some, c, backwards); return;
    default: run_columns(k, RW_F32, start, from, some, c, backwards); return;
    }
}

rw_status RW_ISA_NAME(rw_cumsum_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cumsum_cpu)(const rw_kernel *k)
{
    const struct rw_cumsum_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    if (!l->numel) return RW_OK;
    const struct rw_cumsum_cut c = rw_cumsum_cut(l, a->axis);
    const int64_t chunks = (c.inner + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (l->numel >= RW_PARALLEL_FROM)
    for (int64_t task = 0; task < c.outer * chunks; task++) {
        const int64_t from = task % chunks * COLUMNS, rest = c.inner - from;
        run_task(k, task / chunks * c.n * c.inner, from, rest < COLUMNS ? rest : COLUMNS, &c, a->backwards);
    }
    return RW_OK;
}
