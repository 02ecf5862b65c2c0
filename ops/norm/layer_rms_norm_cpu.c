/*
 * CPU kernels of layernorm and rmsnorm. Backward sums dweight, dbias and, if requested, the columns of dx for each
 * block of rows in the workspace, then adds the blocks in order. Statistics are computed in lanes of float (double for
 * float64), in two passes over the row: first a mean, then the differences from it, which correct it, and their
 * squares. See RW_NORM_STATISTICS.
 */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/norm/layer_rms_norm.h"
#include "ops/common/util.h"
#include "ops/common/vec_native_array.h"

#include <math.h>

/* whole: no lane is beyond the end of the row. */
/* Loads columns from i on, of n; whole: there are as many as lanes. Lanes beyond the end are 0. */
VEC_INLINE nf load(const void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n, bool whole)
{
    if (whole || n - i >= NF_LANES) return nf_get(p, dtype, at + i);
    return nf_get_some(p, dtype, at + i, n > i ? n - i : 0);
}

VEC_INLINE void store(void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n, bool whole, nf x)
{
    if (whole || n - i >= NF_LANES) nf_put(p, dtype, at + i, x);
    else nf_put_some(p, dtype, at + i, n > i ? n - i : 0, x);
}

/* Sets lanes beyond the end to 0, as if x - mean were 0 there. */
VEC_INLINE nf inside(nf x, int64_t i, int64_t n)
{
    return nf_first(x, n > i ? n - i : 0, 0);
}

/*
 * Rows that are processed in parallel, each in its own order: an addition waits for the previous one, so a single row
 * would leave the processor idle. As many as there are registers for.
 */
#if defined(RW_ISA_IS_V4)
enum { ABREAST = 4 };
#elif defined(RW_ISA_IS_V3)
enum { ABREAST = 2 };
#else
enum { ABREAST = 1 };
#endif

/* `count` rows of n elements, from element `at` on; count is the constant ABREAST or 1 after inlining. */
struct rows {
    const void *x, *weight;
    rw_dtype dtype;
    int64_t at, n;
    int count;
    bool rms;
    struct rw_norm_float of[ABREAST];
};

VEC_INLINE struct rows rows_of(const rw_kernel *k, rw_dtype dtype, int64_t at, int64_t n, int count)
{
    return (struct rows){ .x = k->in[0].data, .weight = k->in[1].data, .dtype = dtype, .at = at, .n = n,
                          .count = count, .rms = ((const struct rw_norm_attrs *)k->attrs)->rms };
}

/* Loads from an operand with the layout of x, in row l. */
VEC_INLINE nf load_of(const struct rows *s, const void *p, int l, int64_t i, bool whole)
{
    return load(p, s->dtype, s->at + l * s->n, i, s->n, whole);
}

VEC_INLINE void store_of(const struct rows *s, void *p, int l, int64_t i, bool whole, nf x)
{
    store(p, s->dtype, s->at + l * s->n, i, s->n, whole, x);
}

/*
 * Prefetches the same columns of the rows that follow: hardware prefetching stops at the end of a page, which a few
 * rows fill. Prefetching beyond the end of a buffer has no effect.
 */
VEC_INLINE void prefetch_next_rows(const struct rows *s, const void *p, int l, int64_t i)
{
    const int64_t at = s->at + (s->count + l) * s->n + i;
    __builtin_prefetch((const void *)((uintptr_t)p + (size_t)at * float_size(s->dtype)));
}

VEC_INLINE void add_numbers(const struct rows *s, int64_t i, bool whole, struct nf_parts *sum)
{
    for (int l = 0; l < s->count; l++) {
        prefetch_next_rows(s, s->x, l, i);
        for (int p = 0; p < NF_PARTS; p++) sum[l].part[p] += load_of(s, s->x, l, i + p * NF_LANES, whole);
    }
}

VEC_INLINE nf distance_of(const struct rows *s, int l, int64_t i, bool whole)
{
    const nf d = load_of(s, s->x, l, i, whole) - s->of[l].mean;
    return whole ? d : inside(d, i, s->n);
}

VEC_INLINE void add_distances(const struct rows *s, int64_t i, bool whole, struct nf_parts *rest,
                              struct nf_parts *square)
{
    for (int l = 0; l < s->count; l++) {
        if (s->rms) prefetch_next_rows(s, s->x, l, i);
        for (int p = 0; p < NF_PARTS; p++) {
            const nf d = distance_of(s, l, i + p * NF_LANES, whole);
            if (!s->rms) rest[l].part[p] += d;
            square[l].part[p] = nf_fma(d, d, square[l].part[p]);
        }
    }
}

/* The number of elements of a row in whole vectors. */
static int64_t whole_of(int64_t n)
{
    return n / VF_LANES * VF_LANES;
}

VEC_INLINE void take_means(struct rows *s)
{
    const int64_t n = s->n, whole = whole_of(n);
    struct nf_parts sum[ABREAST] = { 0 };
    for (int64_t i = 0; i < whole; i += VF_LANES) add_numbers(s, i, true, sum);
    if (whole < n) add_numbers(s, whole, false, sum);
    for (int l = 0; l < s->count; l++) s->of[l].mean = nf_parts_sum(sum[l]) / (float)n;
}

VEC_INLINE void take_statistics(struct rows *s, double eps)
{
    const int64_t n = s->n, whole = whole_of(n);
    struct nf_parts rest[ABREAST] = { 0 }, square[ABREAST] = { 0 };
    if (!s->rms) take_means(s);
    for (int64_t i = 0; i < whole; i += VF_LANES) add_distances(s, i, true, rest, square);
    if (whole < n) add_distances(s, whole, false, rest, square);
    for (int l = 0; l < s->count; l++)
        s->of[l] = rw_norm_float_of(s->of[l].mean, s->rms ? 0 : nf_parts_sum(rest[l]) / (float)n,
                                    nf_parts_sum(square[l]) / (float)n, (float)eps);
}

/* Columns of row l, normalized. */
VEC_INLINE nf normal_of(const struct rows *s, int l, int64_t i, bool whole)
{
    const struct rw_norm_float *const of = &s->of[l];
    return nf_fma(load_of(s, s->x, l, i, whole) - of->mean, nf_all(of->scale), nf_all(of->shift));
}

VEC_INLINE void put_normal(const struct rows *s, const void *bias, void *y, int l, int64_t i, bool whole)
{
    const nf weight = load(s->weight, s->dtype, 0, i, s->n, whole);
    nf to = normal_of(s, l, i, whole);
    if (bias) to = nf_fma(to, weight, load(bias, s->dtype, 0, i, s->n, whole));
    else to *= weight;
    store_of(s, y, l, i, whole, to);
}

/* Writes one complete row after the other, in address order: the destination may not be in the caches. */
VEC_INLINE void forward_rows(const rw_kernel *k, rw_dtype dtype, int64_t at, int64_t n, int count)
{
    const struct rw_norm_attrs *const a = k->attrs;
    const void *const bias = a->vectors == 2 ? k->in[2].data : NULL;
    void *const y = k->out[0].data;
    const int64_t whole = whole_of(n);
    struct rows s = rows_of(k, dtype, at, n, count);
    take_statistics(&s, a->eps);
    for (int l = 0; l < count; l++) {
        for (int64_t i = 0; i < whole; i += NF_LANES) put_normal(&s, bias, y, l, i, true);
        for (int64_t i = whole; i < n; i += NF_LANES) put_normal(&s, bias, y, l, i, false);
    }
}

static struct rw_norm_double statistics_d(const double *x, int64_t n, const struct rw_norm_attrs *a)
{
    double mean = 0, rest = 0, square = 0;
    for (int64_t i = 0; !a->rms && i < n; i++) mean += x[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++) {
        const double d = x[i] - mean;
        if (!a->rms) rest += d;
        square += d * d;
    }
    return rw_norm_double_of(mean, rest / (double)n, square / (double)n, a->eps);
}

static double normal_d(const struct rw_norm_double *of, double x)
{
    return (x - of->mean) * of->scale + of->shift;
}

static void forward_row_d(const rw_kernel *k, int64_t at, int64_t n)
{
    const struct rw_norm_attrs *const a = k->attrs;
    const double *const x = (const double *)k->in[0].data + at, *const w = k->in[1].data;
    double *const y = (double *)k->out[0].data + at;
    const struct rw_norm_double of = statistics_d(x, n, a);
    for (int64_t i = 0; i < n; i++)
        y[i] = normal_d(&of, x[i]) * w[i] + (a->vectors == 2 ? ((const double *)k->in[2].data)[i] : 0);
}

/* count: ABREAST or 1. */
VEC_INLINE void forward_any(const rw_kernel *k, int64_t at, int64_t n, int count)
{
    switch (k->in[0].dtype) {
    case RW_BF16: forward_rows(k, RW_BF16, at, n, count); return;
    case RW_F16: forward_rows(k, RW_F16, at, n, count); return;
    case RW_F32: forward_rows(k, RW_F32, at, n, count); return;
    default:
        for (int l = 0; l < count; l++) forward_row_d(k, at + l * n, n);
    }
}

static void forward_some(const rw_kernel *k, int64_t row, int64_t n, int64_t rows)
{
    if (rows == ABREAST) forward_any(k, row * n, n, ABREAST);
    else for (int64_t i = 0; i < rows; i++) forward_any(k, (row + i) * n, n, 1);
}

/* A few rows at a time. */
static void forward_range(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const rw_layout *const l = k->in[0].layout;
    const int64_t n = l->dim[l->rank - 1], rows = rw_norm_rows(l);
    for (int64_t row = first * ABREAST; row < end * ABREAST && row < rows; row += ABREAST)
        forward_some(k, row, n, rows - row < ABREAST ? rows - row : ABREAST);
}

rw_status RW_ISA_NAME(rw_norm_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_norm_cpu)(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    rw_team_for(rw_threads_for(k, l->numel), (rw_norm_rows(l) + ABREAST - 1) / ABREAST, forward_range, k);
    return RW_OK;
}

/* The sums of a block of rows: of dweight, dbias and dx's columns; NULL if absent. */
struct block {
    void *dw, *db, *dx;
};

/* Adds to the sums of h = dy weight, and of h times the normalized x. */
VEC_INLINE void add_part(const struct rows *s, const void *dy, int64_t i, int p, bool whole, struct nf_parts *sum_h,
                         struct nf_parts *sum_hx)
{
    const nf weight = load(s->weight, s->dtype, 0, i, s->n, whole);
    for (int l = 0; l < s->count; l++) {
        const nf xh = normal_of(s, l, i, whole);
        const nf h = load_of(s, dy, l, i, whole) * weight;
        sum_h[l].part[p] += h;
        sum_hx[l].part[p] = nf_fma(h, xh, sum_hx[l].part[p]);
    }
}

VEC_INLINE void add_slopes(const struct rows *s, const void *dy, int64_t i, bool whole, struct nf_parts *sum_h,
                           struct nf_parts *sum_hx)
{
    for (int l = 0; l < s->count; l++) prefetch_next_rows(s, dy, l, i);
    for (int p = 0; p < NF_PARTS; p++) add_part(s, dy, i + p * NF_LANES, p, whole, sum_h, sum_hx);
}

/* The other operands of backward; sum: NULL if dx has no addend. */
struct slopes {
    const void *dy, *sum;
    void *dx;
    float mean_h[ABREAST], mean_hx[ABREAST];
};

VEC_INLINE void take_slopes(const struct rows *s, struct slopes *d)
{
    const int64_t n = s->n, whole = whole_of(n);
    struct nf_parts sum_h[ABREAST] = { 0 }, sum_hx[ABREAST] = { 0 };
    for (int64_t i = 0; i < whole; i += VF_LANES) add_slopes(s, d->dy, i, true, sum_h, sum_hx);
    if (whole < n) add_slopes(s, d->dy, whole, false, sum_h, sum_hx);
    for (int l = 0; l < s->count; l++) {
        d->mean_h[l] = s->rms ? 0 : nf_parts_sum(sum_h[l]) / (float)n;
        d->mean_hx[l] = nf_parts_sum(sum_hx[l]) / (float)n;
    }
}

/* Writes dx for some columns of the rows, and adds to the block's sums. */
VEC_INLINE void put_slopes(const struct rows *s, const struct slopes *d, const struct block *b, int64_t i, bool whole)
{
    const nf weight = load(s->weight, s->dtype, 0, i, s->n, whole), none = nf_all(0);
    nf dw = load(b->dw, RW_F32, 0, i, s->n, whole), db = b->db ? load(b->db, RW_F32, 0, i, s->n, whole) : none;
    nf columns = b->dx ? load(b->dx, RW_F32, 0, i, s->n, whole) : none;
    for (int l = 0; l < s->count; l++) {
        const nf dy = load_of(s, d->dy, l, i, whole), h = dy * weight;
        const nf xh = normal_of(s, l, i, whole);
        dw = nf_fma(dy, xh, dw);
        db += dy;
        nf dx = s->of[l].scale * nf_fma(xh, nf_all(-d->mean_hx[l]), h - d->mean_h[l]);
        if (d->sum) {
            prefetch_next_rows(s, d->sum, l, i);
            dx += load_of(s, d->sum, l, i, whole);
        }
        store_of(s, d->dx, l, i, whole, dx);
        if (b->dx) columns += load_of(s, d->dx, l, i, whole); /* rounded: the layer before reads it so */
    }
    store(b->dw, RW_F32, 0, i, s->n, whole, dw);
    if (b->db) store(b->db, RW_F32, 0, i, s->n, whole, db);
    if (b->dx) store(b->dx, RW_F32, 0, i, s->n, whole, columns);
}

/* in: x, weight, dy, perhaps addends; out: dx, dweight, dbias, sums of dx's columns, plus the addends. */
VEC_INLINE void backward_rows(const rw_kernel *k, rw_dtype dtype, int64_t at, int64_t n, int count, struct block b)
{
    const struct rw_norm_attrs *const a = k->attrs;
    const int sum = rw_norm_addend(a, k->n_outputs);
    const int64_t whole = whole_of(n);
    struct slopes d = { .dy = k->in[2].data, .sum = rw_kernel_has(k, sum) ? k->in[sum].data : NULL,
                        .dx = k->out[0].data };
    struct rows s = rows_of(k, dtype, at, n, count);
    take_statistics(&s, a->eps);
    take_slopes(&s, &d);
    for (int64_t i = 0; i < whole; i += NF_LANES) put_slopes(&s, &d, &b, i, true);
    for (int64_t i = whole; i < n; i += NF_LANES) put_slopes(&s, &d, &b, i, false);
}

/* One row of backward in float64. */
static void backward_row_d(const rw_kernel *k, int64_t at, int64_t n, const struct block *b)
{
    const struct rw_norm_attrs *const a = k->attrs;
    const int addend = rw_norm_addend(a, k->n_outputs);
    const double *const x = (const double *)k->in[0].data + at, *const w = k->in[1].data,
                        *const dy = (const double *)k->in[2].data + at,
                        *const sum = rw_kernel_has(k, addend) ? (const double *)k->in[addend].data + at : NULL;
    double *const dx = (double *)k->out[0].data + at, *const dw = b->dw, *const db = b->db, *const columns = b->dx;
    const struct rw_norm_double of = statistics_d(x, n, a);
    double mean_h = 0, mean_hx = 0;
    for (int64_t i = 0; i < n; i++) {
        mean_h += a->rms ? 0 : dy[i] * w[i] / (double)n;
        mean_hx += dy[i] * w[i] * normal_d(&of, x[i]) / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        const double xh = normal_d(&of, x[i]), g = dy[i];
        dw[i] += g * xh;
        if (db) db[i] += g;
        const double d = of.scale * (g * w[i] - mean_h - xh * mean_hx);
        dx[i] = sum ? sum[i] + d : d;
        if (columns) columns[i] += dx[i];
    }
}

#define COLUMNS 256

/* Columns [c, c + n) of output o, a vector: adds the blocks' sums in order. */
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

struct sums {
    const rw_kernel *k;
    int64_t blocks, width, chunks;
};

static void add_chunks(void *of, int64_t first, int64_t end)
{
    const struct sums *const s = of;
    for (int64_t i = first; i < end; i++) {
        const int64_t c = i % s->chunks * COLUMNS, rest = s->width - c;
        add_blocks(s->k, 1 + (int)(i / s->chunks), s->blocks, s->width, c, rest < COLUMNS ? rest : COLUMNS);
    }
}

static void add_all_blocks(const rw_kernel *k, int64_t blocks, int64_t width)
{
    const struct sums s = { k, blocks, width, (width + COLUMNS - 1) / COLUMNS };
    rw_team_for(rw_threads_for(k, blocks * width), s.chunks * (k->n_outputs - 1), add_chunks, &s);
}

VEC_INLINE void backward_any(const rw_kernel *k, int64_t at, int64_t n, int count, const struct block *b)
{
    switch (k->in[0].dtype) {
    case RW_BF16: backward_rows(k, RW_BF16, at, n, count, *b); return;
    case RW_F16: backward_rows(k, RW_F16, at, n, count, *b); return;
    case RW_F32: backward_rows(k, RW_F32, at, n, count, *b); return;
    default:
        for (int l = 0; l < count; l++) backward_row_d(k, at + l * n, n, b);
    }
}

static void backward_some(const rw_kernel *k, int64_t row, int64_t n, int64_t rows, const struct block *b)
{
    int64_t i = 0;
    for (; i + ABREAST <= rows; i += ABREAST) backward_any(k, (row + i) * n, n, ABREAST, b);
    for (; i < rows; i++) backward_any(k, (row + i) * n, n, 1, b);
}

/* Computes some blocks of rows of backward. */
static void backward_blocks(void *of, int64_t first_block, int64_t end)
{
    const rw_kernel *const k = of;
    const struct rw_norm_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    const int64_t n = l->dim[l->rank - 1], rows = rw_norm_rows(l), blocks = rw_norm_blocks(rows);
    const size_t size = k->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float), vector = (size_t)n * size;
    const size_t block = (size_t)rw_norm_vectors(k->n_outputs) * vector;
    const bool columns = rw_norm_has_columns(a, k->n_outputs);
    for (int64_t i = first_block; i < end; i++) {
        char *const dw = (char *)k->workspace + (size_t)i * block;
        const struct block b = { dw, a->rms ? NULL : dw + vector,
                                 columns ? dw + (size_t)(k->n_outputs - 2) * vector : NULL };
        memset(dw, 0, block);
        const int64_t first = rows * i / blocks;
        backward_some(k, first, n, rows * (i + 1) / blocks - first, &b);
    }
}

rw_status RW_ISA_NAME(rw_norm_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_norm_backward_cpu)(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    const int64_t n = l->dim[l->rank - 1], blocks = rw_norm_blocks(rw_norm_rows(l));
    if (!n) return RW_OK; /* nothing to write, and no workspace */
    rw_team_for(rw_threads_for(k, l->numel), blocks, backward_blocks, k);
    add_all_blocks(k, blocks, n);
    return RW_OK;
}
