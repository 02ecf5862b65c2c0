/* Kernels of the shape ops: copies between layouts and types, fills, sequences. */
#include "device/cpu/isa.h"
#include "ops/common/map.h"
#include "ops/shape/numbers.h"
#include "ops/shape/rows.h"
#include "ops/shape/shape.h"
#include "ops/shape/turn.h"

typedef void (*copy_row)(void *to, int64_t at, const void *from, int64_t from_at, int64_t stride, int64_t n);

#define HALF_TYPE(name)                                                                                             \
    static void f32_from_##name(void *to, int64_t at, const void *from, int64_t from_at, int64_t stride, int64_t n) \
    {                                                                                                               \
        const uint16_t *const x = from;                                                                             \
        for (int64_t i = 0; i < n; i++) ((float *)to)[at + i] = name##_to_f32(x[from_at + i * stride]);             \
    }                                                                                                               \
    static void name##_from_f32(void *to, int64_t at, const void *from, int64_t from_at, int64_t stride, int64_t n) \
    {                                                                                                               \
        const float *const x = from;                                                                                \
        for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[at + i] = f32_to_##name(x[from_at + i * stride]);          \
    }

HALF_TYPE(bf16)
HALF_TYPE(f16)

/* NULL: of any types, or of one and the same. */
static copy_row row_of(rw_dtype to, rw_dtype from)
{
    if (to == RW_F32 && from == RW_BF16) return f32_from_bf16;
    if (to == RW_BF16 && from == RW_F32) return bf16_from_f32;
    if (to == RW_F32 && from == RW_F16) return f32_from_f16;
    if (to == RW_F16 && from == RW_F32) return f16_from_f32;
    return NULL;
}

/* Elements of an innermost axis, from `at` on, to the result's from `to` on. */
static void copy_one(const rw_kernel *k, copy_row row, int64_t to, int64_t at, int64_t stride, int64_t n)
{
    const rw_view *const y = &k->out[0], *const x = &k->in[0];
    const size_t size = rw_dtype_size(y->dtype);
    if (row) row(y->data, to, x->data, at, stride, n);
    else if (y->dtype == x->dtype)
        copy_strided((char *)y->data + (size_t)to * size, (const char *)x->data + at * (int64_t)size, stride, n, size);
    else for (int64_t i = 0; i < n; i++) put(y->data, y->dtype, to + i, get(x->data, x->dtype, at + i * stride));
}

/* Whole rows, `step` apart, from `at` on: the result's from number `index` on. */
static void copy_many(const rw_kernel *k, const struct rw_axes *m, copy_row row, int64_t index, int64_t at,
                      int64_t step, int64_t n)
{
    const int64_t inner = m->dim[m->rank - 1], stride = m->stride[0][m->rank - 1];
    const int64_t size = (int64_t)rw_dtype_size(k->out[0].dtype);
    if (stride == 1 && k->out[0].dtype == k->in[0].dtype) {
        copy_rows((char *)k->out[0].data + index * inner * size, inner * size, (const char *)k->in[0].data + at * size,
                  step * size, (size_t)(inner * size), n);
        return;
    }
    for (int64_t i = 0; i < n; i++) copy_one(k, row, (index + i) * inner, at + i * step, stride, inner);
}

static int64_t place_of(const struct rw_axes *m, int64_t index)
{
    int64_t at = 0;
    for (int axis = m->rank - 2; axis >= 0; axis--) {
        at += index % m->dim[axis] * m->stride[0][axis];
        index /= m->dim[axis];
    }
    return at;
}

/* Rows [index, end). */
static void copy_block(const rw_kernel *k, const struct rw_axes *m, copy_row row, int64_t index, int64_t end)
{
    const int64_t run = m->rank > 1 ? m->dim[m->rank - 2] : 1, step = m->rank > 1 ? m->stride[0][m->rank - 2] : 0;
    while (index < end) {
        const int64_t left = run - index % run, n = end - index < left ? end - index : left;
        copy_many(k, m, row, index, place_of(m, index), step, n);
        index += n;
    }
}

rw_status RW_ISA_NAME(rw_copy_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_copy_cpu)(const rw_kernel *k)
{
    const int64_t numel = k->out[0].layout->numel;
    if (!numel) return RW_OK;
    struct rw_axes m;
    struct turn turn;
    rw_axes_join(k, 1, &m);
    if (turns(k, &m, &turn)) {
        turn_all(k, &turn);
        return RW_OK;
    }
    const copy_row row = row_of(k->out[0].dtype, k->in[0].dtype);
    const int64_t inner = m.dim[m.rank - 1], stride = m.stride[0][m.rank - 1], rows = numel / inner;
    const int64_t cuts = (inner + MAP_BLOCK - 1) / MAP_BLOCK, group = cuts > 1 ? 1 : MAP_BLOCK / inner;
    const int64_t blocks = cuts > 1 ? rows * cuts : (rows + group - 1) / group;
    const bool parallel = numel >= RW_PARALLEL_FROM && k->threads > 1;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (parallel)
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t index = i / cuts, begin = i % cuts * MAP_BLOCK, rest = inner - begin;
        if (cuts == 1) copy_block(k, &m, row, i * group, (i + 1) * group < rows ? (i + 1) * group : rows);
        else copy_one(k, row, index * inner + begin, place_of(&m, index) + begin * stride, stride,
                      rest < MAP_BLOCK ? rest : MAP_BLOCK);
    }
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_fill_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_fill_cpu)(const rw_kernel *k)
{
    double value;
    memcpy(&value, k->attrs, sizeof value);
    const int64_t numel = k->out[0].layout->numel, blocks = (numel + MAP_BLOCK - 1) / MAP_BLOCK;
    const size_t size = rw_dtype_size(k->out[0].dtype);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (numel >= RW_PARALLEL_FROM)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t from = b * MAP_BLOCK, n = numel - from < MAP_BLOCK ? numel - from : MAP_BLOCK;
        put_many((char *)k->out[0].data + (size_t)from * size, n, k->out[0].dtype, value);
    }
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_arange_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_arange_cpu)(const rw_kernel *k)
{
    const struct rw_arange_attrs *const a = k->attrs;
    const rw_dtype dtype = k->out[0].dtype;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (a->n >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < a->n; i++) put(k->out[0].data, dtype, i, a->start + (double)i * a->step);
    return RW_OK;
}
