/*
 * CPU kernels of ssd_scan. A unit of work is a part of a group's heads in one batch, along the whole sequence; units
 * are cut by the shape and share nothing but operands. See ssd_scan.h.
 */
#include "ops/recurrent/ssd_scan.h"

#include "base/float_mode.h"
#include "device/cpu/isa.h"
#include "ops/common/shares.h"
#include "ops/common/vec_native.h"
#include "ops/common/vec_transpose.h"

#include <math.h>
#include <omp.h>

struct ssd {
    const rw_kernel *k;
    struct rw_ssd s;
    int64_t q, p, n;    /* sides of tiles */
    int threads;
    int64_t per_thread; /* elements of a thread's workspace */
    void *shared;       /* what threads leave for the sums of backward */
};

/* A unit: heads `first` up to `end` of group g, which are part `part` of it. */
struct ssd_unit {
    int64_t b, g, part, first, end;
};

static struct ssd_unit unit_of(const struct rw_ssd *s, int64_t unit)
{
    const int64_t parts = rw_ssd_parts(s), part = unit % parts, g = unit / parts % s->g;
    const int64_t first = part * RW_SSD_HEADS, end = first + RW_SSD_HEADS < s->r ? first + RW_SSD_HEADS : s->r;
    return (struct ssd_unit){ unit / parts / s->g, g, part, g * s->r + first, g * s->r + end };
}

/* ---- float ---- */

VEC_INLINE void take_floats(float *to, const void *p, rw_dtype dtype, int64_t at, int64_t step, int64_t n)
{
    int64_t i = 0;
    if (step == 1)
        for (; i + NF_LANES <= n; i += NF_LANES) *(nf *)(to + i) = nf_get(p, dtype, at + i);
    for (; i < n; i++) to[i] = f_get(p, dtype, at + i * step);
}

/* n elements that are `step` apart. */
static void vf_take(float *to, const void *p, rw_dtype dtype, int64_t at, int64_t step, int64_t n)
{
    switch (dtype) {
    case RW_BF16: take_floats(to, p, RW_BF16, at, step, n); return;
    case RW_F16: take_floats(to, p, RW_F16, at, step, n); return;
    default: take_floats(to, p, RW_F32, at, step, n); return;
    }
}

VEC_INLINE void give_floats(void *p, rw_dtype dtype, int64_t at, const float *from, float factor, int64_t n)
{
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES) nf_put(p, dtype, at + i, *(const nf *)(from + i) * factor);
    for (; i < n; i++) f_put(p, dtype, at + i, from[i] * factor);
}

/* n elements side by side, times a factor. */
static void vf_give(void *p, rw_dtype dtype, int64_t at, const float *from, float factor, int64_t n)
{
    switch (dtype) {
    case RW_BF16: give_floats(p, RW_BF16, at, from, factor, n); return;
    case RW_F16: give_floats(p, RW_F16, at, from, factor, n); return;
    default: give_floats(p, RW_F32, at, from, factor, n); return;
    }
}

VEC_INLINE nf nf_mul_add(nf a, nf b, nf c)
{
    return nf_fma(a, b, c);
}

/* Of a part of a V. */
VEC_INLINE nf vf_mul_add(nf a, nf b, nf c)
{
    return nf_fma(a, b, c);
}

#define T float
#define V vf
#define N nf
#define LANES VF_LANES
#define F(name) vf_##name
#define G(name) nf_##name
#include "ops/recurrent/ssd_scan_tmpl.h"
#include "ops/recurrent/ssd_scan_grad_tmpl.h"
#undef T
#undef V
#undef N
#undef LANES
#undef F
#undef G
#undef N_LANES
#undef N_MOST

/* ---- double ---- */

static void vd_take(double *to, const void *p, rw_dtype dtype, int64_t at, int64_t step, int64_t n)
{
    (void)dtype;
    for (int64_t i = 0; i < n; i++) to[i] = ((const double *)p)[at + i * step];
}

static void vd_give(void *p, rw_dtype dtype, int64_t at, const double *from, double factor, int64_t n)
{
    (void)dtype;
    for (int64_t i = 0; i < n; i++) ((double *)p)[at + i] = from[i] * factor;
}

VEC_INLINE nd nd_mul_add(nd a, nd b, nd c)
{
    return nd_fma(a, b, c);
}

VEC_INLINE nd vd_mul_add(nd a, nd b, nd c)
{
    return a * b + c;
}

#define T double
#define V vd
#define N nd
#define LANES VD_LANES
#define F(name) vd_##name
#define G(name) nd_##name
#include "ops/recurrent/ssd_scan_tmpl.h"
#include "ops/recurrent/ssd_scan_grad_tmpl.h"
#undef N_LANES
#undef N_MOST

/* ---- units of work ---- */

static struct ssd open_scan(const rw_kernel *k)
{
    struct ssd a = { .k = k, .s = rw_ssd_of(k->in[SSD_X].layout, k->in[SSD_B].layout, k->attrs) };
    a.q = rw_ssd_side(a.s.q), a.p = rw_ssd_side(a.s.p), a.n = rw_ssd_side(a.s.n);
    a.threads = rw_ssd_threads(&a.s, k->threads);
    return a;
}

static bool is_double(const struct ssd *a)
{
    return a->k->in[SSD_X].dtype == RW_F64;
}

static void *room_of_thread(const struct ssd *a)
{
    const size_t size = is_double(a) ? sizeof(double) : sizeof(float);
    return (char *)a->k->workspace + (size_t)omp_get_thread_num() * (size_t)a->per_thread * size;
}

/* What a state remembers fades away, through numbers below the least normal one. Where those are 0, forward takes an
   eighth of the time and backward an eighteenth, on a processor that is slow with them. */
static void unit(const struct ssd *a, int64_t i, bool backward)
{
    void *const room = room_of_thread(a);
    const struct ssd_unit u = unit_of(&a->s, i);
    const unsigned before = rw_flush_enter();
    if (is_double(a)) (backward ? vd_backward : vd_forward)(a, room, u);
    else (backward ? vf_backward : vf_forward)(a, room, u);
    rw_flush_leave(before);
}

rw_status RW_ISA_NAME(rw_ssd_scan_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_ssd_scan_cpu)(const rw_kernel *k)
{
    struct ssd a = open_scan(k);
    const int64_t units = a.s.b * a.s.g * rw_ssd_parts(&a.s);
    struct rw_shares shares;
    a.per_thread = rw_ssd_forward_elements(&a.s);
    rw_shares_deal(&shares, units, a.threads);
#pragma omp parallel num_threads(a.threads)
    RW_EACH_SHARED(i, &shares, omp_get_thread_num()) unit(&a, i, false);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_ssd_scan_grad_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_ssd_scan_grad_cpu)(const rw_kernel *k)
{
    struct ssd a = open_scan(k);
    const int64_t units = a.s.b * a.s.g * rw_ssd_parts(&a.s), rows = a.s.b * a.s.l * a.s.g;
    struct rw_shares shares;
    a.per_thread = rw_ssd_backward_elements(&a.s);
    a.shared = (char *)k->workspace + (size_t)(a.per_thread * a.threads) * (is_double(&a) ? sizeof(double)
                                                                                          : sizeof(float));
    rw_shares_deal(&shares, units, a.threads);
#pragma omp parallel num_threads(a.threads)
    {
        RW_EACH_SHARED(i, &shares, omp_get_thread_num()) unit(&a, i, true);
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            if (is_double(&a)) vd_add_parts(&a, room_of_thread(&a), i);
            else vf_add_parts(&a, room_of_thread(&a), i);
        }
    }
    if (is_double(&a)) vd_add_batches(&a);
    else vf_add_batches(&a);
    return RW_OK;
}
