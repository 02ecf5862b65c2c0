/* Ops on rows of tokens on the CPU: one thread computes each row, token or slot. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/moe/moe_dots_by_slot.h"

/* Selects by the type of the rows: float64 directly, the others in vectors of float. */
#define BY_TYPE(name)                                                                                                  \
    static void name(const rw_kernel *k, int64_t i)                                                                    \
    {                                                                                                                  \
        switch (k->in[0].dtype) {                                                                                      \
        case RW_F64: name##_doubles(k, i); return;                                                                     \
        case RW_BF16: name##_vectors(k, RW_BF16, i); return;                                                           \
        case RW_F16: name##_vectors(k, RW_F16, i); return;                                                             \
        default: name##_vectors(k, RW_F32, i); return;                                                                 \
        }                                                                                                              \
    }

static void weigh_doubles(const rw_kernel *k, int64_t row)
{
    const int64_t n = k->in[0].layout->dim[1], slots = k->in[1].layout->numel;
    const double w = ((const double *)k->in[1].data)[rw_moe_within(((const int32_t *)k->in[2].data)[row], slots)];
    const double *const from = (const double *)k->in[0].data + row * n;
    double *const to = (double *)k->out[0].data + row * n;
    for (int64_t i = 0; i < n; i++) to[i] = w * from[i];
}

static double dot_of_doubles(const double *a, const double *b, int64_t n)
{
    double sum[MOE_CHAINS] = { 0 }, total = 0;
    for (int64_t i = 0; i < n; i++) sum[i % MOE_CHAINS] += a[i] * b[i];
    for (int l = 0; l < MOE_CHAINS; l++) total += sum[l];
    return total;
}

static void dot_doubles(const rw_kernel *k, int64_t slot)
{
    const int64_t n = k->in[0].layout->dim[1];
    const int64_t at = rw_moe_within(((const int32_t *)k->in[2].data)[slot], k->in[0].layout->dim[0]) * n;
    const double *const a = (const double *)k->in[0].data + at, *const b = (const double *)k->in[1].data + at;
    ((double *)k->out[0].data)[slot] = dot_of_doubles(a, b, n);
}

/* Vectors of a row that are added up at once. */
#define AT_ONCE 4
/* Prefetch distance in rows, or in slots. */
#define ROWS_AHEAD 4
#define SLOTS_AHEAD 2
#define LINE 64 /* bytes of a cache line */

/* Prefetches what a later call reads: a part of a row from element `at` on. Rows are in arbitrary order, and hardware
   prefetching detects only sequential access. */
VEC_INLINE void fetch(const void *p, rw_dtype dtype, int64_t at, int64_t n)
{
    const int64_t size = is_half(dtype) ? 2 : 4;
    const char *const from = (const char *)p + at * size;
    for (int64_t i = 0; i < n * size; i += LINE) __builtin_prefetch(from + i);
}

/* Sums columns [i, i + vecs vectors) of a token's rows, in the order of its slots. next: rows of the next token, or
   NULL. */
VEC_INLINE void combine_columns(const rw_kernel *k, rw_dtype dtype, const int32_t *own, const int32_t *next, int64_t to,
                                int64_t i, int vecs)
{
    const void *const x = k->in[0].data;
    const int64_t each = k->in[1].layout->dim[1], n = k->in[0].layout->dim[1], rows = k->in[0].layout->dim[0];
    nf sum[AT_ONCE];
    for (int v = 0; v < vecs; v++) sum[v] = nf_all(0);
    for (int64_t s = 0; s < each; s++) {
        const int64_t at = rw_moe_within(own[s], rows) * n + i;
        if (next) fetch(x, dtype, rw_moe_within(next[s], rows) * n + i, vecs * NF_LANES);
        for (int v = 0; v < vecs; v++) sum[v] += nf_get(x, dtype, at + v * NF_LANES);
    }
    for (int v = 0; v < vecs; v++) nf_put(k->out[0].data, dtype, to + i + v * NF_LANES, sum[v]);
}

VEC_INLINE void combine_vectors(const rw_kernel *k, rw_dtype dtype, int64_t token)
{
    const int64_t each = k->in[1].layout->dim[1], n = k->in[0].layout->dim[1], rows = k->in[0].layout->dim[0];
    const int32_t *const own = (const int32_t *)k->in[1].data + token * each;
    const int32_t *const next = token + 1 < k->in[1].layout->dim[0] ? own + each : NULL;
    int64_t i = 0;
    for (; n - i >= AT_ONCE * NF_LANES; i += AT_ONCE * NF_LANES)
        combine_columns(k, dtype, own, next, token * n, i, AT_ONCE);
    for (; n - i >= NF_LANES; i += NF_LANES) combine_columns(k, dtype, own, next, token * n, i, 1);
    if (i == n) return;
    nf sum = nf_all(0);
    for (int64_t s = 0; s < each; s++)
        sum += nf_get_some(k->in[0].data, dtype, rw_moe_within(own[s], rows) * n + i, n - i);
    nf_put_some(k->out[0].data, dtype, token * n + i, n - i, sum);
}

static void combine_doubles(const rw_kernel *k, int64_t token)
{
    const int32_t *const inverse = k->in[1].data;
    const int64_t each = k->in[1].layout->dim[1], n = k->in[0].layout->dim[1], rows = k->in[0].layout->dim[0];
    double *const to = (double *)k->out[0].data + token * n;
    for (int64_t i = 0; i < n; i++) to[i] = 0;
    for (int64_t s = 0; s < each; s++) {
        const double *const row = (const double *)k->in[0].data + rw_moe_within(inverse[token * each + s], rows) * n;
        for (int64_t i = 0; i < n; i++) to[i] += row[i];
    }
}

BY_TYPE(combine)

VEC_INLINE void weigh_vectors(const rw_kernel *k, rw_dtype dtype, int64_t row)
{
    const void *const x = k->in[0].data;
    void *const y = k->out[0].data;
    const int64_t n = k->in[0].layout->dim[1], slots = k->in[1].layout->numel, end = (row + 1) * n;
    const nf w = nf_all(((const float *)k->in[1].data)[rw_moe_within(((const int32_t *)k->in[2].data)[row], slots)]);
    if (row + ROWS_AHEAD < k->in[0].layout->dim[0]) {
        fetch(x, dtype, (row + ROWS_AHEAD) * n, n);
        fetch(y, dtype, (row + ROWS_AHEAD) * n, n);
    }
    for (int64_t i = row * n; i < end; i += NF_LANES)
        if (end - i >= NF_LANES) nf_put(y, dtype, i, w * nf_get(x, dtype, i));
        else nf_put_some(y, dtype, i, end - i, w * nf_get_some(x, dtype, i, end - i));
}

BY_TYPE(weigh)

#define CHAIN_VECS (MOE_CHAINS / NF_LANES)

/* The dot product of rows of a and b, from element `at` on; w times b's row is written to `to`, unless that is NULL. */
VEC_INLINE float dot_of_row(rw_dtype dtype, const void *a, const void *b, int64_t at, int64_t n, nf w, void *to)
{
    const int64_t end = at + n;
    nf chains[CHAIN_VECS];
    float sum[MOE_CHAINS], total = 0;
    int64_t i = at;
    for (int v = 0; v < CHAIN_VECS; v++) chains[v] = nf_all(0);
    for (; end - i >= MOE_CHAINS; i += MOE_CHAINS)
        for (int v = 0; v < CHAIN_VECS; v++) {
            const nf y = nf_get(b, dtype, i + v * NF_LANES);
            chains[v] += nf_get(a, dtype, i + v * NF_LANES) * y;
            if (to) nf_put(to, dtype, i + v * NF_LANES, w * y);
        }
    memcpy(sum, chains, sizeof sum);
    for (int l = 0; i + l < end; l++) sum[l] += f_get(a, dtype, i + l) * f_get(b, dtype, i + l);
    for (; to && i < end; i += NF_LANES) {
        const int64_t some = end - i < NF_LANES ? end - i : NF_LANES;
        if (some == NF_LANES) nf_put(to, dtype, i, w * nf_get(b, dtype, i));
        else nf_put_some(to, dtype, i, some, w * nf_get_some(b, dtype, i, some));
    }
    for (int l = 0; l < MOE_CHAINS; l++) total += sum[l];
    return total;
}

VEC_INLINE void dot_vectors(const rw_kernel *k, rw_dtype dtype, int64_t slot)
{
    const void *const a = k->in[0].data, *const b = k->in[1].data;
    const int64_t n = k->in[0].layout->dim[1], rows = k->in[0].layout->dim[0];
    const int32_t *const inverse = (const int32_t *)k->in[2].data + slot;
    if (slot + SLOTS_AHEAD < k->out[0].layout->numel) {
        const int64_t later = rw_moe_within(inverse[SLOTS_AHEAD], rows) * n;
        fetch(a, dtype, later, n), fetch(b, dtype, later, n);
    }
    ((float *)k->out[0].data)[slot] = dot_of_row(dtype, a, b, rw_moe_within(*inverse, rows) * n, n, nf_all(0), NULL);
}

BY_TYPE(dot)

/* The dot product is stored by row in the workspace: with inconsistent routes a row's slot may have another row. */
VEC_INLINE void weigh_backward_vectors(const rw_kernel *k, rw_dtype dtype, int64_t row)
{
    const void *const x = k->in[0].data, *const dy = k->in[1].data;
    const int64_t n = k->in[0].layout->dim[1], slot = ((const int32_t *)k->in[3].data)[row];
    const nf w = nf_all(((const float *)k->in[2].data)[rw_moe_within(slot, k->in[2].layout->numel)]);
    if (row + ROWS_AHEAD < k->in[0].layout->dim[0]) {
        fetch(x, dtype, (row + ROWS_AHEAD) * n, n);
        fetch(dy, dtype, (row + ROWS_AHEAD) * n, n);
    }
    ((float *)k->workspace)[row] = dot_of_row(dtype, x, dy, row * n, n, w, k->out[0].data);
}

static void weigh_backward_doubles(const rw_kernel *k, int64_t row)
{
    const int64_t n = k->in[0].layout->dim[1], slot = ((const int32_t *)k->in[3].data)[row];
    const double w = ((const double *)k->in[2].data)[rw_moe_within(slot, k->in[2].layout->numel)];
    const double *const x = k->in[0].data, *const dy = k->in[1].data;
    double *const dx = k->out[0].data;
    ((double *)k->workspace)[row] = dot_of_doubles(x + row * n, dy + row * n, n);
    for (int64_t i = row * n; i < (row + 1) * n; i++) dx[i] = w * dy[i];
}

BY_TYPE(weigh_backward)

struct lines {
    const rw_kernel *k;
    void (*one)(const rw_kernel *k, int64_t i);
};

static void run_some(void *of, int64_t first, int64_t end)
{
    const struct lines *const l = of;
    for (int64_t i = first; i < end; i++) l->one(l->k, i);
}

static rw_status run(const rw_kernel *k, int64_t n, void (*one)(const rw_kernel *k, int64_t i))
{
    rw_team_for(rw_threads_for(k, k->in[0].layout->numel), n, run_some, &(struct lines){ k, one });
    return RW_OK;
}

static void gather_rows(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const struct rw_moe_gather_attrs *const a = k->attrs;
    const int32_t *const order = k->in[1].data;
    const size_t row = (size_t)k->in[0].layout->dim[1] * rw_dtype_size(k->in[0].dtype);
    const int64_t tokens = k->in[0].layout->dim[0];
    for (int64_t r = first; r < end; r++)
        memcpy((char *)k->out[0].data + (size_t)r * row,
               (const char *)k->in[0].data + (size_t)rw_moe_within(order[r] / a->k, tokens) * row, row);
}

rw_status RW_ISA_NAME(rw_moe_gather_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_gather_cpu)(const rw_kernel *k)
{
    const int64_t rows = k->in[0].layout->dim[1] ? k->out[0].layout->dim[0] : 0; /* avoids copying from NULL */
    rw_team_for(rw_threads_for(k, k->out[0].layout->numel), rows, gather_rows, k);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_moe_combine_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_combine_cpu)(const rw_kernel *k)
{
    return run(k, k->out[0].layout->dim[0], combine);
}

rw_status RW_ISA_NAME(rw_moe_weigh_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_weigh_cpu)(const rw_kernel *k)
{
    return run(k, k->in[0].layout->dim[0], weigh);
}

rw_status RW_ISA_NAME(rw_moe_dot_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_dot_cpu)(const rw_kernel *k)
{
    return run(k, k->out[0].layout->numel, dot);
}

rw_status RW_ISA_NAME(rw_moe_weigh_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_weigh_backward_cpu)(const rw_kernel *k)
{
    const int64_t rows = k->in[0].layout->dim[0];
    RW_CHECK(run(k, rows, weigh_backward));
    rw_moe_dots_by_slot(k, 1, 4, rows);
    return RW_OK;
}
