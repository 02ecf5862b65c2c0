/* A row of logits on the CPU: its kept values, and the number of rows that count. Shared by the losses. */
#ifndef RW_OPS_LOSS_LOGITS_ROW_CPU_H
#define RW_OPS_LOSS_LOGITS_ROW_CPU_H

#include "ops/common/vec_native_array.h"
#include "ops/loss/loss.h"

#include <math.h>

/* As RW_KEPT_OF_A_ROW in loss.h. */
struct kept {
    float most, log;
};

struct kept_d {
    double most, log;
};

VEC_INLINE struct nf_parts row_load(const void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n, float fill)
{
    return nf_parts_get_some(p, dtype, at + i, n - i, fill);
}

VEC_INLINE struct kept keep_row(const void *x, rw_dtype dtype, int64_t at, int64_t n)
{
    struct nf_parts m = nf_parts_all(-INFINITY), sum = nf_parts_all(0);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const struct nf_parts v = row_load(x, dtype, at, i, n, -INFINITY);
        for (int p = 0; p < NF_PARTS; p++) m.part[p] = nf_larger(m.part[p], v.part[p]);
    }
    float most = vf_max_lane(nf_parts_whole(m));
    if (most == -INFINITY) most = 0;
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const struct nf_parts v = row_load(x, dtype, at, i, n, -INFINITY);
        for (int p = 0; p < NF_PARTS; p++) sum.part[p] += nf_exp(v.part[p] - most);
    }
    return (struct kept){ most, logf(nf_parts_sum(sum)) };
}

static inline struct kept_d keep_row_d(const double *x, int64_t n)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, x[i]);
    if (most == -INFINITY) most = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - most);
    return (struct kept_d){ most, log(sum) };
}

/* The kept values of a row of logits of that type, in double. */
VEC_INLINE struct kept_d kept_of(const void *kept, rw_dtype dtype, int64_t row)
{
    if (dtype == RW_F64) return ((const struct kept_d *)kept)[row];
    const struct kept k = ((const struct kept *)kept)[row];
    return (struct kept_d){ k.most, k.log };
}

/* The number of rows that count; -1 if a target is out of range. */
static inline int64_t count_rows(const int32_t *target, int64_t rows, int64_t classes, int64_t ignore)
{
    int64_t n = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (target[i] == ignore) continue;
        if (target[i] < 0 || target[i] >= classes) return -1;
        n++;
    }
    return n;
}

#endif
