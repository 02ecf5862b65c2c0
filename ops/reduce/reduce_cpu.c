/*
 * Reductions. The input is seen as outer x reduced x inner; other patterns of axes go element by element. The order of a
 * sum depends on the shape alone: 16 lanes, blocks of fixed length, partial results added in order in double.
 */
#include "device/cpu/isa.h"
#include "ops/reduce/reduce.h"
#include "ops/util.h"
#include "ops/vec.h"

#include <rewind/ops.h>

/* Input axes, joined where neighbours are both kept or both reduced. */
struct pattern {
    int rank;
    int64_t dim[RW_MAX_RANK];
    bool reduced[RW_MAX_RANK];
    int64_t count; /* elements per group */
};

static struct pattern pattern_of(const rw_layout *l, uint32_t mask)
{
    struct pattern p = { .count = 1 };
    for (int i = 0; i < l->rank; i++) {
        const bool reduced = mask >> i & 1;
        if (reduced) p.count *= l->dim[i];
        if (l->dim[i] == 1) continue;
        if (p.rank && p.reduced[p.rank - 1] == reduced) {
            p.dim[p.rank - 1] *= l->dim[i];
            continue;
        }
        p.dim[p.rank] = l->dim[i];
        p.reduced[p.rank++] = reduced;
    }
    return p;
}

/* outer x reduced x inner, when the pattern is of that form. */
static bool three(const struct pattern *p, int64_t *outer, int64_t *reduced, int64_t *inner)
{
    int i = 0;
    *outer = *reduced = *inner = 1;
    if (i < p->rank && !p->reduced[i]) *outer = p->dim[i++];
    if (i < p->rank && p->reduced[i]) *reduced = p->dim[i++];
    if (i < p->rank && !p->reduced[i]) *inner = p->dim[i++];
    return i == p->rank;
}

static double d_get(const rw_view *v, int64_t i)
{
    return v->dtype == RW_F64 ? ((const double *)v->data)[i] : (double)f_get(v->data, v->dtype, i);
}

static void d_put(const rw_view *v, int64_t i, double x)
{
    if (v->dtype == RW_F64) ((double *)v->data)[i] = x;
    else f_put(v->data, v->dtype, i, (float)x);
}

/* A run of at most RW_REDUCE_BLOCK contiguous elements. */
VEC_INLINE double sum_run(const rw_view *v, rw_dtype dtype, int64_t at, int64_t n)
{
    int64_t i = 0;
    double total = 0;
    if (dtype == RW_F64) {
        vd acc = { 0 };
        for (; i + VD_LANES <= n; i += VD_LANES) acc += vd_load((const double *)v->data + at + i);
        total = vd_sum(acc);
        for (; i < n; i++) total += ((const double *)v->data)[at + i];
        return total;
    }
    while (i + VF_LANES <= n) {
        vf acc = { 0 };
        const int64_t stop = n - i < 1024 ? n : i + 1024;
        for (; i + VF_LANES <= stop; i += VF_LANES) acc += vf_get(v->data, dtype, at + i);
        total += (double)vf_sum(acc);
    }
    for (; i < n; i++) total += (double)f_get(v->data, dtype, at + i);
    return total;
}

static double sum_run_any(const rw_view *v, int64_t at, int64_t n)
{
    switch (v->dtype) {
    case RW_F64: return sum_run(v, RW_F64, at, n);
    case RW_BF16: return sum_run(v, RW_BF16, at, n);
    default: return sum_run(v, RW_F32, at, n);
    }
}

static void sum_all(const rw_kernel *k, int64_t n, double factor)
{
    double *const part = k->workspace;
    const int64_t blocks = (n + RW_REDUCE_BLOCK - 1) / RW_REDUCE_BLOCK;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (n >= RW_PARALLEL_FROM)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t from = b * RW_REDUCE_BLOCK;
        part[b] = sum_run_any(&k->in[0], from, n - from < RW_REDUCE_BLOCK ? n - from : RW_REDUCE_BLOCK);
    }
    double total = 0;
    for (int64_t b = 0; b < blocks; b++) total += part[b];
    d_put(&k->out[0], 0, total * factor);
}

static void sum_rows(const rw_kernel *k, int64_t rows, int64_t n, double factor)
{
#pragma omp parallel for num_threads(k->threads) schedule(static) if (rows * n >= RW_PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        double total = 0;
        for (int64_t i = 0; i < n; i += RW_REDUCE_BLOCK)
            total += sum_run_any(&k->in[0], r * n + i, n - i < RW_REDUCE_BLOCK ? n - i : RW_REDUCE_BLOCK);
        d_put(&k->out[0], r, total * factor);
    }
}

#define COLUMNS 128
#define ROW_BLOCK 64

/* Columns [c, c + n) of one outer slice: row blocks in float, their sums in double. */
VEC_INLINE void sum_columns(const rw_kernel *k, rw_dtype dtype, int64_t at, int64_t rows, int64_t inner, int64_t c, int64_t n,
                            int64_t to, double factor)
{
    double total[COLUMNS] = { 0 };
    for (int64_t r = 0; r < rows; r += ROW_BLOCK) {
        float block[COLUMNS] = { 0 };
        const int64_t end = rows - r < ROW_BLOCK ? rows : r + ROW_BLOCK;
        for (int64_t i = r; i < end; i++) {
            const int64_t from = at + i * inner + c;
            if (dtype == RW_F64) {
                for (int64_t j = 0; j < n; j++) total[j] += ((const double *)k->in[0].data)[from + j];
            } else if (n == COLUMNS) {
                for (int j = 0; j < COLUMNS; j += VF_LANES) vf_store(block + j, vf_load(block + j) + vf_get(k->in[0].data, dtype, from + j));
            } else {
                for (int64_t j = 0; j < n; j++) block[j] += f_get(k->in[0].data, dtype, from + j);
            }
        }
        if (dtype != RW_F64)
            for (int64_t j = 0; j < n; j++) total[j] += (double)block[j];
    }
    for (int64_t j = 0; j < n; j++) d_put(&k->out[0], to + j, total[j] * factor);
}

static void sum_middle(const rw_kernel *k, int64_t outer, int64_t rows, int64_t inner, double factor)
{
    const int64_t chunks = (inner + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (outer * rows * inner >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < outer * chunks; i++) {
        const int64_t o = i / chunks, c = i % chunks * COLUMNS, n = inner - c < COLUMNS ? inner - c : COLUMNS;
        const int64_t at = o * rows * inner, to = o * inner + c;
        if (k->in[0].dtype == RW_F64) sum_columns(k, RW_F64, at, rows, inner, c, n, to, factor);
        else if (k->in[0].dtype == RW_BF16) sum_columns(k, RW_BF16, at, rows, inner, c, n, to, factor);
        else sum_columns(k, RW_F32, at, rows, inner, c, n, to, factor);
    }
}

/* Any pattern: visits the elements of output `o` in row-major order. */
typedef void (*visit)(void *state, double x, int64_t at);

static void visit_group(const rw_view *x, const struct pattern *p, int64_t o, visit f, void *state)
{
    int64_t stride[RW_MAX_RANK], step = 1, base = 0;
    for (int i = p->rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= p->dim[i];
    }
    for (int i = p->rank - 1; i >= 0; i--) {
        if (p->reduced[i]) continue;
        base += o % p->dim[i] * stride[i];
        o /= p->dim[i];
    }
    for (int64_t e = 0; e < p->count; e++) {
        int64_t rest = e, at = base;
        for (int i = p->rank - 1; i >= 0; i--) {
            if (!p->reduced[i]) continue;
            at += rest % p->dim[i] * stride[i];
            rest /= p->dim[i];
        }
        f(state, d_get(x, at), at);
    }
}

static void visit_sum(void *state, double x, int64_t at)
{
    *(double *)state += x;
}

struct most {
    double value;
    int64_t at;
};

static void visit_max(void *state, double x, int64_t at)
{
    struct most *const m = state;
    if (m->at >= 0 && !(x > m->value) && !(x != x && m->value == m->value)) return;
    *m = (struct most){ x, at };
}

rw_status RW_ISA_NAME(rw_reduce_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_reduce_cpu)(const rw_kernel *k)
{
    const struct rw_reduce_attrs *const a = k->attrs;
    const rw_layout *const in = k->in[0].layout;
    const struct pattern p = pattern_of(in, rw_reduce_mask(a->axes, in->rank));
    const int64_t out = k->out[0].layout->numel;
    const double factor = a->kind == RW_REDUCE_MEAN ? 1.0 / (double)p.count : 1.0;
    int64_t outer, reduced, inner;
    if (!in->numel) {
        for (int64_t o = 0; o < out; o++) d_put(&k->out[0], o, a->kind == RW_REDUCE_MEAN ? NAN : 0);
        return RW_OK;
    }
    if (a->kind != RW_REDUCE_MAX && three(&p, &outer, &reduced, &inner)) {
        if (inner > 1) sum_middle(k, outer, reduced, inner, factor);
        else if (outer == 1) sum_all(k, reduced, factor);
        else sum_rows(k, outer, reduced, factor);
        return RW_OK;
    }
#pragma omp parallel for num_threads(k->threads) schedule(static) if (in->numel >= RW_PARALLEL_FROM)
    for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        struct most m = { 0, -1 };
        if (a->kind == RW_REDUCE_MAX) visit_group(&k->in[0], &p, o, visit_max, &m);
        else visit_group(&k->in[0], &p, o, visit_sum, &sum);
        d_put(&k->out[0], o, a->kind == RW_REDUCE_MAX ? m.value : sum * factor);
    }
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_first_max_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_first_max_cpu)(const rw_kernel *k)
{
    const struct rw_reduce_attrs *const a = k->attrs;
    const rw_layout *const in = k->in[0].layout;
    const struct pattern p = pattern_of(in, rw_reduce_mask(a->axes, in->rank));
    memset(k->out[0].data, 0, (size_t)in->numel * rw_dtype_size(k->out[0].dtype));
    if (!in->numel) return RW_OK;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (in->numel >= RW_PARALLEL_FROM)
    for (int64_t o = 0; o < in->numel / p.count; o++) {
        struct most m = { 0, -1 };
        visit_group(&k->in[0], &p, o, visit_max, &m);
        d_put(&k->out[0], m.at, 1);
    }
    return RW_OK;
}
