/*
 * Rows of layernorm and rmsnorm. The backward sums dweight, dbias and the columns of dx, where they are asked for, per
 * block of rows into the workspace, then adds the blocks in order. Means are taken in lanes of float (double for
 * float64), twice over the row: first the mean, then the variance around it.
 */
#include "device/cpu/isa.h"
#include "ops/norm/norm.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"

VEC_INLINE vf load(const void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n)
{
    if (i + VF_LANES <= n) return vf_get(p, dtype, at + i);
    return vf_load_some((const char *)p + (size_t)(at + i) * float_size(dtype), dtype, n - i, 0);
}

VEC_INLINE void store(void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n, vf x)
{
    if (i + VF_LANES <= n) vf_put(p, dtype, at + i, x);
    else vf_store_some((char *)p + (size_t)(at + i) * float_size(dtype), dtype, n - i, x);
}

/* Lanes past the end count as x - mean = 0. */
VEC_INLINE vf inside(vf x, int64_t i, int64_t n)
{
    for (int64_t l = n - i; l < VF_LANES; l++) x[l] = 0;
    return x;
}

VEC_INLINE void statistics(const void *x, rw_dtype dtype, int64_t at, int64_t n, const struct rw_norm_attrs *a,
                           float *mean, float *r)
{
    vf sum = { 0 };
    *mean = 0;
    if (!a->rms) {
        for (int64_t i = 0; i < n; i += VF_LANES) sum += load(x, dtype, at, i, n);
        *mean = vf_sum(sum) / (float)n;
    }
    vf square = { 0 };
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf d = load(x, dtype, at, i, n) - *mean;
        if (i + VF_LANES > n) d = inside(d, i, n);
        square += d * d;
    }
    *r = 1 / sqrtf(vf_sum(square) / (float)n + (float)a->eps);
}

VEC_INLINE void forward_row(const rw_kernel *k, rw_dtype dtype, int64_t at, int64_t n)
{
    const struct rw_norm_attrs *const a = k->attrs;
    float mean, r;
    statistics(k->in[0].data, dtype, at, n, a, &mean, &r);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf y = (load(k->in[0].data, dtype, at, i, n) - mean) * r * load(k->in[1].data, dtype, 0, i, n);
        if (a->vectors == 2) y += load(k->in[2].data, dtype, 0, i, n);
        store(k->out[0].data, dtype, at, i, n, y);
    }
}

static void forward_row_d(const rw_kernel *k, int64_t at, int64_t n)
{
    const struct rw_norm_attrs *const a = k->attrs;
    const double *const x = (const double *)k->in[0].data + at, *const w = k->in[1].data;
    double *const y = (double *)k->out[0].data + at;
    double mean = 0, square = 0;
    for (int64_t i = 0; !a->rms && i < n; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    const double r = 1 / sqrt(square / (double)n + a->eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * r * w[i] + (a->vectors == 2 ? ((const double *)k->in[2].data)[i] : 0);
}

rw_status RW_ISA_NAME(rw_norm_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_norm_cpu)(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    const int64_t n = l->dim[l->rank - 1], rows = l->numel / n;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (l->numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < rows; i++) {
        if (k->in[0].dtype == RW_F64) forward_row_d(k, i * n, n);
        else if (k->in[0].dtype == RW_BF16) forward_row(k, RW_BF16, i * n, n);
        else if (k->in[0].dtype == RW_F16) forward_row(k, RW_F16, i * n, n);
        else forward_row(k, RW_F32, i * n, n);
    }
    return RW_OK;
}

/* What a block of rows adds to dweight, dbias and the sums of dx's columns; NULL where there are none. */
struct block {
    void *dw, *db, *dx;
};

/* in: x, weight, dy, perhaps sums; out: dx, dweight, dbias, sums of dx's columns, added to the sums. */
VEC_INLINE void backward_row(const rw_kernel *k, rw_dtype dtype, int64_t at, int64_t n, const struct block *b)
{
    const struct rw_norm_attrs *const a = k->attrs;
    const int sum = rw_norm_addend(a, k->n_outputs);
    const bool adds = rw_kernel_has(k, sum);
    float mean, r;
    statistics(k->in[0].data, dtype, at, n, a, &mean, &r);
    vf sum_h = { 0 }, sum_hx = { 0 };
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const vf xh = (load(k->in[0].data, dtype, at, i, n) - mean) * r;
        const vf h = load(k->in[2].data, dtype, at, i, n) * load(k->in[1].data, dtype, 0, i, n);
        sum_h += h;
        sum_hx += h * xh;
    }
    const float mean_h = a->rms ? 0 : vf_sum(sum_h) / (float)n, mean_hx = vf_sum(sum_hx) / (float)n;
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const vf dy = load(k->in[2].data, dtype, at, i, n), xh = (load(k->in[0].data, dtype, at, i, n) - mean) * r;
        const vf h = dy * load(k->in[1].data, dtype, 0, i, n);
        store(b->dw, RW_F32, 0, i, n, load(b->dw, RW_F32, 0, i, n) + dy * xh);
        if (b->db) store(b->db, RW_F32, 0, i, n, load(b->db, RW_F32, 0, i, n) + dy);
        vf dx = r * (h - mean_h - xh * mean_hx);
        if (adds) dx += load(k->in[sum].data, dtype, at, i, n);
        store(k->out[0].data, dtype, at, i, n, dx);
        if (!b->dx) continue;
        const vf stored = load(k->out[0].data, dtype, at, i, n); /* what the layer gets: it has been rounded */
        store(b->dx, RW_F32, 0, i, n, load(b->dx, RW_F32, 0, i, n) + stored);
    }
}

static void backward_row_d(const rw_kernel *k, int64_t at, int64_t n, const struct block *b)
{
    const struct rw_norm_attrs *const a = k->attrs;
    const int addend = rw_norm_addend(a, k->n_outputs);
    const double *const x = (const double *)k->in[0].data + at, *const w = k->in[1].data,
                        *const dy = (const double *)k->in[2].data + at,
                        *const sum = rw_kernel_has(k, addend) ? (const double *)k->in[addend].data + at : NULL;
    double *const dx = (double *)k->out[0].data + at, *const dw = b->dw, *const db = b->db, *const columns = b->dx;
    double mean = 0, square = 0, mean_h = 0, mean_hx = 0;
    for (int64_t i = 0; !a->rms && i < n; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    const double r = 1 / sqrt(square / (double)n + a->eps);
    for (int64_t i = 0; i < n; i++) {
        mean_h += a->rms ? 0 : dy[i] * w[i] / (double)n;
        mean_hx += dy[i] * w[i] * (x[i] - mean) * r / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        const double xh = (x[i] - mean) * r, g = dy[i];
        dw[i] += g * xh;
        if (db) db[i] += g;
        const double d = r * (g * w[i] - mean_h - xh * mean_hx);
        dx[i] = sum ? sum[i] + d : d;
        if (columns) columns[i] += dx[i];
    }
}

#define COLUMNS 256

/* Columns [c, c + n) of output o, a vector: the blocks' sums, in order. */
static void add_blocks(const rw_kernel *k, int o, int64_t blocks, int64_t width, int64_t c, int64_t n)
{
    double sum[COLUMNS] = { 0 };
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = (b * rw_norm_vectors(k->n_outputs) + o - 1) * width + c;
        if (k->in[0].dtype == RW_F64) for (int64_t i = 0; i < n; i++) sum[i] += ((const double *)k->workspace)[at + i];
        else for (int64_t i = 0; i < n; i++) sum[i] += (double)((const float *)k->workspace)[at + i];
    }
    const struct rw_norm_attrs *const a = k->attrs;
    const void *const before = a->sums && rw_kernel_has(k, 2 + o) ? k->in[2 + o].data : NULL;
    for (int64_t i = 0; i < n; i++) put_added(k->out[o].data, k->out[o].dtype, c + i, sum[i], before);
}

static void add_all_blocks(const rw_kernel *k, int64_t blocks, int64_t width)
{
    const int64_t chunks = (width + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (blocks * width >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < chunks * (k->n_outputs - 1); i++) {
        const int64_t c = i % chunks * COLUMNS, rest = width - c;
        add_blocks(k, 1 + (int)(i / chunks), blocks, width, c, rest < COLUMNS ? rest : COLUMNS);
    }
}

rw_status RW_ISA_NAME(rw_norm_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_norm_backward_cpu)(const rw_kernel *k)
{
    const struct rw_norm_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    const int64_t n = l->dim[l->rank - 1], rows = l->numel / n, blocks = rw_norm_blocks(rows);
    const size_t size = k->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float), vector = (size_t)n * size;
    const size_t block = (size_t)rw_norm_vectors(k->n_outputs) * vector;
    const bool columns = rw_norm_has_columns(a, k->n_outputs);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (l->numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < blocks; i++) {
        char *const dw = (char *)k->workspace + (size_t)i * block;
        const struct block b = { dw, a->rms ? NULL : dw + vector,
                                 columns ? dw + (size_t)(k->n_outputs - 2) * vector : NULL };
        memset(dw, 0, block);
        for (int64_t row = rows * i / blocks; row < rows * (i + 1) / blocks; row++) {
            if (k->in[0].dtype == RW_F64) backward_row_d(k, row * n, n, &b);
            else if (k->in[0].dtype == RW_BF16) backward_row(k, RW_BF16, row * n, n, &b);
            else if (k->in[0].dtype == RW_F16) backward_row(k, RW_F16, row * n, n, &b);
            else backward_row(k, RW_F32, row * n, n, &b);
        }
    }
    add_all_blocks(k, blocks, n);
    return RW_OK;
}
