/*
 * CPU kernels of ssd_scan. A unit of work is a part of a group's heads in one batch element, over the whole sequence.
 * Units depend on the shape alone and share only operands. ssd_scan.h has the algorithm.
 */
#include "ops/recurrent/ssd_scan.h"

#include "base/float_mode.h"
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/work_stealing.h"
#include "ops/common/vec_native.h"
#include "ops/common/vec_transpose.h"

#include <math.h>

struct ssd {
    const rw_kernel *k;
    struct rw_ssd s;
    int64_t q, p, n;    /* sides of tiles */
    int threads;
    int64_t per_thread; /* elements of a thread's workspace */
    void *shared;       /* partial sums of backward that threads write */
};

/* A unit: heads `first` up to `end` of group g, which are its part number `part`. */
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

/* Loads n elements that are `step` apart. */
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

/* Stores n adjacent elements, times a factor. */
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

/* For a part of a V. */
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
#undef N_MAX

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
#undef N_MAX

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

static void *room_of(const struct ssd *a, int thread)
{
    const size_t size = is_double(a) ? sizeof(double) : sizeof(float);
    return (char *)a->k->workspace + (size_t)thread * (size_t)a->per_thread * size;
}

/* Flushes subnormal numbers to zero. The memory of a state decays through subnormal numbers. On a processor that is
   slow with these, flushing reduces the time of forward to an eighth and of backward to an eighteenth. */
static void unit(const struct ssd *a, int64_t i, int thread, bool backward)
{
    void *const room = room_of(a, thread);
    const struct ssd_unit u = unit_of(&a->s, i);
    const unsigned before = rw_flush_enter();
    if (is_double(a)) (backward ? vd_backward : vd_forward)(a, room, u);
    else (backward ? vf_backward : vf_forward)(a, room, u);
    rw_flush_leave(before);
}

static rw_status forward_unit(const void *of, int64_t i, int thread)
{
    unit(of, i, thread, false);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_ssd_scan_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_ssd_scan_cpu)(const rw_kernel *k)
{
    struct ssd a = open_scan(k);
    a.per_thread = rw_ssd_forward_elements(&a.s);
    return rw_shares_run(a.threads, a.s.b * a.s.g * rw_ssd_parts(&a.s), forward_unit, &a);
}

struct backward {
    struct ssd a;
    struct rw_shares shares;
};

/* Each thread's part of the units; then, when all units are done, of the rows that have sums of several parts. */
static void run_backward(void *of, int thread, int threads)
{
    struct backward *const b = of;
    const struct ssd *const a = &b->a;
    const int64_t rows = a->s.b * a->s.l * a->s.g, end = rw_team_first(rows, thread + 1, threads);
    RW_EACH_SHARED(i, &b->shares, thread) unit(a, i, thread, true);
    rw_team_barrier();
    for (int64_t i = rw_team_first(rows, thread, threads); i < end; i++) {
        if (is_double(a)) vd_add_parts(a, room_of(a, thread), i);
        else vf_add_parts(a, room_of(a, thread), i);
    }
}

rw_status RW_ISA_NAME(rw_ssd_scan_grad_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_ssd_scan_grad_cpu)(const rw_kernel *k)
{
    struct backward b = { .a = open_scan(k) };
    struct ssd *const a = &b.a;
    const size_t size = is_double(a) ? sizeof(double) : sizeof(float);
    a->per_thread = rw_ssd_backward_elements(&a->s);
    a->shared = (char *)k->workspace + (size_t)(a->per_thread * a->threads) * size;
    rw_shares_deal(&b.shares, a->s.b * a->s.g * rw_ssd_parts(&a->s), a->threads);
    rw_team_run(a->threads, run_backward, &b);
    if (is_double(a)) vd_add_batches(a);
    else vf_add_batches(a);
    return RW_OK;
}
