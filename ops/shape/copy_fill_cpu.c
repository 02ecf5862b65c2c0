/* CPU kernels of the shape ops: copies between layouts and types, fills, sequences. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/elementwise_map.h"
#include "ops/shape/scalar_access.h"
#include "ops/shape/copy_rows.h"
#include "ops/shape/shape.h"
#include "ops/shape/transpose.h"

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

/* The function that converts a row between two types; NULL: equal types, or a pair without a function of its own. */
static copy_row row_of(rw_dtype to, rw_dtype from)
{
    if (to == RW_F32 && from == RW_BF16) return f32_from_bf16;
    if (to == RW_BF16 && from == RW_F32) return bf16_from_f32;
    if (to == RW_F32 && from == RW_F16) return f32_from_f16;
    if (to == RW_F16 && from == RW_F32) return f16_from_f32;
    return NULL;
}

/* Copies elements of an innermost axis, from `at` on, to the result from `to` on. */
static void copy_one(const rw_kernel *k, copy_row row, int64_t to, int64_t at, int64_t stride, int64_t n)
{
    const rw_view *const y = &k->out[0], *const x = &k->in[0];
    const size_t size = rw_dtype_size(y->dtype);
    if (row) row(y->data, to, x->data, at, stride, n);
    else if (y->dtype == x->dtype)
        copy_strided((char *)y->data + (size_t)to * size, (const char *)x->data + at * (int64_t)size, stride, n, size);
    else for (int64_t i = 0; i < n; i++) put(y->data, y->dtype, to + i, get(x->data, x->dtype, at + i * stride));
}

/* Copies whole rows, `step` apart, from `at` on, to the result's rows from number `index` on. */
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

/* Cut as in elementwise_map.h: sections of a long innermost axis, or several rows of a short one. */
struct copy {
    const rw_kernel *k;
    struct rw_axes m;
    copy_row row;
    int64_t inner, rows, cuts, group;
};

static void copy_blocks(void *of, int64_t first, int64_t last)
{
    const struct copy *const c = of;
    const int64_t stride = c->m.stride[0][c->m.rank - 1];
    for (int64_t i = first; i < last; i++) {
        const int64_t index = i / c->cuts, begin = i % c->cuts * MAP_BLOCK, rest = c->inner - begin;
        const int64_t row = i * c->group, end = row + c->group < c->rows ? row + c->group : c->rows;
        if (c->cuts == 1) copy_block(c->k, &c->m, c->row, row, end);
        else copy_one(c->k, c->row, index * c->inner + begin, place_of(&c->m, index) + begin * stride, stride,
                      rest < MAP_BLOCK ? rest : MAP_BLOCK);
    }
}

/* Copies by transposition, by rows or by blocks, depending on the layouts. */
rw_status RW_ISA_NAME(rw_copy_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_copy_cpu)(const rw_kernel *k)
{
    const int64_t numel = k->out[0].layout->numel;
    if (!numel) return RW_OK;
    struct copy c = { .k = k };
    struct transpose transpose;
    rw_axes_join(k, 1, &c.m);
    if (is_transpose(k, &c.m, &transpose)) {
        transpose_all(k, &transpose);
        return RW_OK;
    }
    c.row = row_of(k->out[0].dtype, k->in[0].dtype);
    c.inner = c.m.dim[c.m.rank - 1];
    c.rows = numel / c.inner;
    c.cuts = (c.inner + MAP_BLOCK - 1) / MAP_BLOCK;
    c.group = c.cuts > 1 ? 1 : MAP_BLOCK / c.inner;
    const int64_t blocks = c.cuts > 1 ? c.rows * c.cuts : (c.rows + c.group - 1) / c.group;
    rw_team_for(rw_threads_for(k, numel), blocks, copy_blocks, &c);
    return RW_OK;
}

struct fill {
    const rw_view *y;
    double value;
};

static void fill_blocks(void *of, int64_t first, int64_t end)
{
    const struct fill *const f = of;
    const int64_t numel = f->y->layout->numel;
    const size_t size = rw_dtype_size(f->y->dtype);
    for (int64_t b = first; b < end; b++) {
        const int64_t from = b * MAP_BLOCK, n = numel - from < MAP_BLOCK ? numel - from : MAP_BLOCK;
        put_many((char *)f->y->data + (size_t)from * size, n, f->y->dtype, f->value);
    }
}

rw_status RW_ISA_NAME(rw_fill_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_fill_cpu)(const rw_kernel *k)
{
    const int64_t numel = k->out[0].layout->numel;
    struct fill f = { .y = &k->out[0] };
    memcpy(&f.value, k->attrs, sizeof f.value);
    rw_team_for(rw_threads_for(k, numel), (numel + MAP_BLOCK - 1) / MAP_BLOCK, fill_blocks, &f);
    return RW_OK;
}

static void put_range(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const struct rw_arange_attrs *const a = k->attrs;
    for (int64_t i = first; i < end; i++)
        put(k->out[0].data, k->out[0].dtype, i, a->start + (double)i * a->step);
}

rw_status RW_ISA_NAME(rw_arange_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_arange_cpu)(const rw_kernel *k)
{
    const struct rw_arange_attrs *const a = k->attrs;
    rw_team_for(rw_threads_for(k, a->n), a->n, put_range, k);
    return RW_OK;
}
