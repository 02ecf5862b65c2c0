/* CPU kernels of pooling: the rows of the result are distributed over threads. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/partial_vectors.h"
#include "ops/common/util.h"
#include "ops/conv/pool.h"

#include <math.h>

struct pool_operands {
    const void *x; /* x, u or dy */
    unsigned char *places;
    void *to;
};

#define LANES 64  /* channels at a time */
#define MANY 4    /* vectors of an average in registers at a time */
#define SUMS 2048 /* elements of a row's gradient that are summed at a time: whole vectors of LANES channels */

typedef uint8_t nb __attribute__((vector_size(NF_LANES), aligned(1), may_alias));

VEC_INLINE ni f_places(const unsigned char *p, int64_t n)
{
    if (n == NF_LANES) return __builtin_convertvector(*(const nb *)p, ni);
    ni x = { 0 };
    for (int64_t l = 0; l < n; l++) x[l] = p[l];
    return x;
}

VEC_INLINE nl d_places(const unsigned char *p, int64_t n)
{
    nl x = { 0 };
    for (int64_t l = 0; l < n; l++) x[l] = p[l];
    return x;
}

#define T float
#define V nf
#define M ni
#define I int32_t
#define WIDTH NF_LANES
#define F(name) f_##name
#include "ops/conv/pool_tmpl.h"
#include "ops/conv/pool_back_tmpl.h"
#undef T
#undef V
#undef M
#undef I
#undef WIDTH
#undef F
#define T double
#define V nd
#define M nl
#define I int64_t
#define WIDTH ND_LANES
#define F(name) d_##name
#include "ops/conv/pool_tmpl.h"
#include "ops/conv/pool_back_tmpl.h"

/* The maximum of a window for one vector of channels: the first of the largest and its position stay in registers. Same
   result as max_window(). */
VEC_INLINE void max_of_vector(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, int64_t image,
                              struct rw_pool_range ys, struct rw_pool_range xs, int64_t oy, int64_t ox, int64_t c)
{
    const int64_t to = ((image * p->oh + oy) * p->ow + ox) * p->c + c;
    nf best = nf_all(-INFINITY); /* the window is all padding */
    ni place = { 0 };
    bool first = true;
    for (int64_t y = ys.from; y < ys.to; y += p->a.dilation[0])
        for (int64_t z = xs.from; z < xs.to; z += p->a.dilation[1], first = false) {
            const nf x = nf_get(o->x, dtype, ((image * p->h + y) * p->w + z) * p->c + c);
            const ni more = first ? (ni)(x == x) | (ni)(x != x) : (ni)(x > best) | (ni)(x != x);
            const int here = (int)(rw_pool_place(p, 0, oy, y) * p->a.kernel[1] + rw_pool_place(p, 1, ox, z));
            best = nf_select(more, x, best);
            place = (more & here) | (~more & place);
        }
    nf_put(o->to, dtype, to, best);
    *(nb *)(o->places + to) = __builtin_convertvector(place, nb);
}

VEC_INLINE void max_row(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, int64_t row)
{
    const int64_t image = row / p->oh, oy = row % p->oh, whole = p->c / NF_LANES * NF_LANES;
    const struct rw_pool_range ys = rw_pool_inside(p, 0, oy);
    for (int64_t ox = 0; ox < p->ow; ox++) {
        const struct rw_pool_range xs = rw_pool_inside(p, 1, ox);
        for (int64_t c = 0; c < whole; c += NF_LANES) max_of_vector(p, o, dtype, image, ys, xs, oy, ox, c);
        f_max_rest(p, o, dtype, image, oy, ox, whole);
    }
}

static void max_row_of_double(const struct rw_pool *p, const struct pool_operands *o, int64_t row)
{
    for (int64_t ox = 0; ox < p->ow; ox++) d_max_rest(p, o, RW_F64, row / p->oh, row % p->oh, ox, 0);
}

/* One row of each kind, for one type. */
#define ROW(name, dtype, F, most)                                                                              \
    static void row_of_##name(const struct rw_pool *p, const struct pool_operands *o, enum rw_pool_kind kind,  \
                              int64_t row)                                                                     \
    {                                                                                                          \
        switch (kind) {                                                                                        \
        case RW_POOL_MAX: most; return;                                                                        \
        case RW_POOL_AVG: F##_avg_row(p, o, dtype, row); return;                                               \
        case RW_POOL_PICK: F##_pick_row(p, o, dtype, row); return;                                             \
        case RW_POOL_MAX_BACKWARD: F##_back_row(p, o, dtype, true, row); return;                               \
        case RW_POOL_AVG_BACKWARD: F##_back_row(p, o, dtype, false, row); return;                              \
        }                                                                                                      \
    }

ROW(f32, RW_F32, f, max_row(p, o, RW_F32, row))
ROW(bf16, RW_BF16, f, max_row(p, o, RW_BF16, row))
ROW(f16, RW_F16, f, max_row(p, o, RW_F16, row))
ROW(f64, RW_F64, d, max_row_of_double(p, o, row))

static void row_of(const struct rw_pool *p, const struct pool_operands *o, rw_dtype dtype, enum rw_pool_kind kind,
                   int64_t row)
{
    switch (dtype) {
    case RW_F32: row_of_f32(p, o, kind, row); return;
    case RW_BF16: row_of_bf16(p, o, kind, row); return;
    case RW_F16: row_of_f16(p, o, kind, row); return;
    default: row_of_f64(p, o, kind, row); return;
    }
}

struct rows {
    struct rw_pool p;
    struct pool_operands o;
    rw_dtype dtype;
    enum rw_pool_kind kind;
};

static void rows_of(void *of, int64_t first, int64_t end)
{
    const struct rows *const r = of;
    for (int64_t i = first; i < end; i++) row_of(&r->p, &r->o, r->dtype, r->kind, i);
}

static rw_status run(const rw_kernel *k, enum rw_pool_kind kind, const void *x, void *places)
{
    const struct rows r = { rw_pool_of(k, kind), { x, places, k->out[0].data }, k->out[0].dtype, kind };
    const rw_layout *const out = k->out[0].layout;
    if (out->numel) rw_team_for(rw_threads_for(k, out->numel), out->dim[0] * out->dim[1], rows_of, &r);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_max_pool2d_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_max_pool2d_cpu)(const rw_kernel *k)
{
    const int64_t n = k->out[0].layout->numel;
    unsigned char *const places = k->out[1].data;
    for (int64_t i = n; i < 4 * rw_pool_words(n); i++) places[i] = 0; /* the last word is complete */
    return run(k, RW_POOL_MAX, k->in[0].data, places);
}

rw_status RW_ISA_NAME(rw_max_pool2d_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_max_pool2d_backward_cpu)(const rw_kernel *k)
{
    return run(k, RW_POOL_MAX_BACKWARD, k->in[1].data, k->in[0].data);
}

rw_status RW_ISA_NAME(rw_max_pool2d_pick_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_max_pool2d_pick_cpu)(const rw_kernel *k)
{
    return run(k, RW_POOL_PICK, k->in[0].data, k->in[1].data);
}

rw_status RW_ISA_NAME(rw_avg_pool2d_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_avg_pool2d_cpu)(const rw_kernel *k)
{
    return run(k, RW_POOL_AVG, k->in[0].data, NULL);
}

rw_status RW_ISA_NAME(rw_avg_pool2d_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_avg_pool2d_backward_cpu)(const rw_kernel *k)
{
    return run(k, RW_POOL_AVG_BACKWARD, k->in[0].data, NULL);
}
