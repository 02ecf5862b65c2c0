/*
 * Products by expert on the CPU: by oneDNN, or by plain loops of this library if oneDNN has no fast code or is not in
 * the build, in float64, and for small matrices. A unit of work is some columns of one expert, or a tile of one
 * expert's sum of outer products. Units depend on shapes and offsets, so results do not depend on the number of
 * threads.
 */
#include "device/cpu/isa.h"
#include "ops/common/work_stealing.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/moe/moe_onednn.h"

/* Vectors of columns whose sums are in registers, for MOE_STRIP rows. */
#if defined(RW_ISA_IS_V4)
#define MOE_VECS 4
#elif defined(RW_ISA_IS_V3)
#define MOE_VECS 2
#else
#define MOE_VECS 1
#endif

#define T float
#define N nf
#define F(name) mf_##name
#define G(name) nf_##name
#include "ops/moe/moe_linear_tmpl.h"
#undef T
#undef N
#undef F
#undef G
#define T double
#define N nd
#define F(name) md_##name
#define G(name) nd_##name
#include "ops/moe/moe_linear_tmpl.h"
#undef T
#undef N
#undef F
#undef G

static void *room_of(const rw_kernel *k, int64_t elements, int thread)
{
    const size_t size = k->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float);
    return (char *)k->workspace + (size_t)thread * (size_t)elements * size;
}

static void linear(const struct moe_product *m, rw_dtype dtype, void *room, int64_t expert, int64_t col)
{
    switch (dtype) {
    case RW_F64: md_linear(m, RW_F64, room, expert, col); return;
    case RW_BF16: mf_linear(m, RW_BF16, room, expert, col); return;
    case RW_F16: mf_linear(m, RW_F16, room, expert, col); return;
    default: mf_linear(m, RW_F32, room, expert, col); return;
    }
}

static void outer(const struct moe_product *m, rw_dtype dtype, void *room, int64_t expert, int64_t first, int64_t col)
{
    switch (dtype) {
    case RW_F64: md_outer(m, RW_F64, room, expert, first, col); return;
    case RW_BF16: mf_outer(m, RW_BF16, room, expert, first, col); return;
    case RW_F16: mf_outer(m, RW_F16, room, expert, first, col); return;
    default: mf_outer(m, RW_F32, room, expert, first, col); return;
    }
}

/* A gradient of at least this many bytes is out of the cache before it is read again. */
#define STREAM_FROM ((int64_t)8 << 20)

/* Rounds once and writes with non-temporal stores. */
VEC_INLINE void put_streamed(const struct moe_product *m, rw_dtype dtype, const float *c, int64_t c_row, int64_t at,
                         int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++, c += c_row, at += m->in)
        for (int64_t j = 0; j < cols; j += NF_LANES) nf_stream(m->y, dtype, at + j, nf_get(c, RW_F32, j));
    nf_fence();
}

/* Adds the addend and rounds once. */
VEC_INLINE void put_as(const struct moe_product *m, rw_dtype dtype, const float *c, int64_t c_row, int64_t at,
                       int64_t rows, int64_t cols)
{
    if (m->streams && cols % NF_LANES == 0 && m->in % NF_LANES == 0 && nf_is_aligned(m->y, dtype, at)) {
        put_streamed(m, dtype, c, c_row, at, rows, cols);
        return;
    }
    for (int64_t i = 0; i < rows; i++, c += c_row, at += m->in)
        for (int64_t j = 0; j < cols; j += NF_LANES) {
            const bool whole = cols - j >= NF_LANES;
            nf x = whole ? nf_get(c, RW_F32, j) : nf_get_some(c, RW_F32, j, cols - j);
            if (m->sum) x += whole ? nf_get(m->sum, dtype, at + j) : nf_get_some(m->sum, dtype, at + j, cols - j);
            if (whole) nf_put(m->y, dtype, at + j, x);
            else nf_put_some(m->y, dtype, at + j, cols - j, x);
        }
}

static void put_sum(const struct moe_product *m, const float *c, int64_t c_row, int64_t at, int64_t rows, int64_t cols)
{
    if (m->to == RW_BF16) put_as(m, RW_BF16, c, c_row, at, rows, cols);
    else if (m->to == RW_F16) put_as(m, RW_F16, c, c_row, at, rows, cols);
    else put_as(m, RW_F32, c, c_row, at, rows, cols);
}

/* Zeros the rows that no expert has: they were dropped, or the offsets did not come from rw_moe_route(). */
static void clear_rest(const struct moe_product *m, rw_dtype dtype, int64_t experts)
{
    const size_t row = (size_t)m->width * rw_dtype_size(dtype);
    const int64_t from = experts ? rw_moe_rows_of(m->offsets, 0, m->rows).from : m->rows;
    const int64_t to = experts ? rw_moe_rows_of(m->offsets, experts - 1, m->rows).to : 0;
    if (from * m->width > 0) memset(m->y, 0, (size_t)from * row);
    if ((m->rows - to) * m->width > 0) memset((char *)m->y + (size_t)to * row, 0, (size_t)(m->rows - to) * row);
}

/* Units of a product: columns of an expert, or tiles of its sum; `down` times `across` of them per expert. */
struct units {
    const rw_kernel *k;
    const struct moe_product *m;
    int64_t down, across;
};

static rw_status linear_unit(const void *of, int64_t i, int thread)
{
    const struct units *const u = of;
    void *const room = room_of(u->k, rw_moe_linear_elements(u->m->depth), thread);
    linear(u->m, u->k->in[0].dtype, room, i / u->across, i % u->across * MOE_COLS);
    return RW_OK;
}

/* Runs moe_linear: by the matrix unit or oneDNN if they support it, else by the plain loops. */
rw_status RW_ISA_NAME(rw_moe_linear_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_linear_cpu)(const rw_kernel *k)
{
    const struct rw_moe_linear_attrs *const a = k->attrs;
    const rw_layout *const w = k->in[1].layout, *const y = k->out[0].layout;
    const struct moe_product m = { .x = k->in[0].data, .weight = k->in[1].data, .y = k->out[0].data,
                                   .offsets = k->in[2].data, .order = k->in[3].data, .rows = y->dim[0],
                                   .tokens = k->in[0].layout->dim[0], .k = a->k, .in = w->dim[2], .out = w->dim[1],
                                   .depth = k->in[0].layout->dim[1], .width = y->dim[1], .experts = w->dim[0],
                                   .gathers = a->gathers, .transposed = a->transposed };
    const struct units u = { k, &m, 1, (m.width + MOE_COLS - 1) / MOE_COLS };
    bool ran;
    clear_rest(&m, k->in[0].dtype, w->dim[0]);
    RW_CHECK(rw_moe_library_linear(k, &m, &RW_ISA_NAME(rw_gemm_loops), &ran));
    if (ran) return RW_OK;
    return rw_shares_run(y->numel * m.depth >= 65536 ? k->threads : 1, w->dim[0] * u.across, linear_unit, &u);
}

#define STRIPS (MOE_STRIP * MOE_OUTER_STRIPS)

static rw_status outer_unit(const void *of, int64_t i, int thread)
{
    const struct units *const u = of;
    outer(u->m, u->k->in[0].dtype, room_of(u->k, MOE_OUTER_ELEMENTS, thread), i / u->across / u->down,
          i / u->across % u->down * STRIPS, i % u->across * MOE_COLS);
    return RW_OK;
}

/* Runs moe_outer: by the matrix unit or oneDNN if they support it, else by the plain loops. */
rw_status RW_ISA_NAME(rw_moe_outer_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_outer_cpu)(const rw_kernel *k)
{
    const struct rw_moe_outer_attrs *const a = k->attrs;
    const rw_layout *const y = k->out[0].layout;
    const int64_t size = (int64_t)rw_dtype_size(k->out[0].dtype);
    const struct moe_product m = { .x = k->in[1].data, .dy = k->in[0].data, .y = k->out[0].data,
                                   .sum = rw_kernel_has(k, 5) ? k->in[5].data : NULL, .offsets = k->in[2].data,
                                   .order = k->in[3].data, .rows = k->in[3].layout->dim[0],
                                   .tokens = k->in[a->gathers_dy ? 0 : 1].layout->dim[0], .k = a->k,
                                   .in = y->dim[2], .out = y->dim[1], .experts = a->experts,
                                   .to = k->out[0].dtype, .gathers = a->gathers, .gathers_dy = a->gathers_dy,
                                   .streams = !rw_kernel_has(k, 5) && y->numel * size >= STREAM_FROM };
    bool ran;
    RW_CHECK(rw_moe_library_outer(k, &m, &RW_ISA_NAME(rw_gemm_loops), put_sum, &ran));
    if (ran) return RW_OK;
    const struct units u = { k, &m, (m.out + STRIPS - 1) / STRIPS, (m.in + MOE_COLS - 1) / MOE_COLS };
    return rw_shares_run(y->numel >= 1024 ? k->threads : 1, a->experts * u.down * u.across, outer_unit, &u);
}
