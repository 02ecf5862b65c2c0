/* Kernels of the shape ops: copies between layouts and types, fills, joins. */
#include "device/cpu/isa.h"
#include "ops/common/map.h"
#include "ops/shape/shape.h"
#include "ops/shape/turn.h"

typedef void (*copy_row)(void *to, int64_t at, const void *from, int64_t from_at, int64_t stride, int64_t n);

static double get(const void *p, rw_dtype dtype, int64_t i)
{
    switch (dtype) {
    case RW_F32: return ((const float *)p)[i];
    case RW_F64: return ((const double *)p)[i];
    case RW_I32: return ((const int32_t *)p)[i];
    case RW_BOOL: return ((const uint8_t *)p)[i] != 0;
    default: return half_to_f32(((const uint16_t *)p)[i], dtype);
    }
}

/* A double to a type of 16 bits rounds once: to float by rounding to odd first. */
static uint16_t half_of_double(double x, rw_dtype dtype)
{
    float f = (float)x;
    if (isfinite(f) && (double)f != x) {
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (fabs((double)f) > fabs(x)) bits--;
        bits |= 1;
        memcpy(&f, &bits, sizeof bits);
    }
    return f32_to_half(f, dtype);
}

static void put(void *p, rw_dtype dtype, int64_t i, double x)
{
    switch (dtype) {
    case RW_F32: ((float *)p)[i] = (float)x; break;
    case RW_F64: ((double *)p)[i] = x; break;
    case RW_I32:
        ((int32_t *)p)[i] = x != x ? 0 : x >= 2147483647.0 ? INT32_MAX : x <= -2147483648.0 ? INT32_MIN : (int32_t)x;
        break;
    case RW_BOOL: ((uint8_t *)p)[i] = x != 0; break;
    default: ((uint16_t *)p)[i] = half_of_double(x, dtype);
    }
}

#define SAME_TYPE(name, type)                                                                                  \
    static void name(void *to, int64_t at, const void *from, int64_t from_at, int64_t stride, int64_t n)       \
    {                                                                                                          \
        type *const y = (type *)to + at;                                                                       \
        const type *const x = (const type *)from + from_at;                                                    \
        if (stride == 1) memcpy(y, x, (size_t)n * sizeof *y);                                                  \
        else for (int64_t i = 0; i < n; i++) y[i] = x[i * stride];                                             \
    }

SAME_TYPE(copy_1, uint8_t)
SAME_TYPE(copy_2, uint16_t)
SAME_TYPE(copy_4, uint32_t)
SAME_TYPE(copy_8, uint64_t)

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

static copy_row row_of(rw_dtype to, rw_dtype from)
{
    static const copy_row same[] = { [1] = copy_1, [2] = copy_2, [4] = copy_4, [8] = copy_8 };
    if (to == from) return same[rw_dtype_size(to)];
    if (to == RW_F32 && from == RW_BF16) return f32_from_bf16;
    if (to == RW_BF16 && from == RW_F32) return bf16_from_f32;
    if (to == RW_F32 && from == RW_F16) return f32_from_f16;
    if (to == RW_F16 && from == RW_F32) return f16_from_f32;
    return NULL;
}

static void copy_range(const rw_kernel *k, const struct rw_axes *m, copy_row row, int64_t index, int64_t begin,
                       int64_t n)
{
    int64_t at = 0, rest = index;
    for (int axis = m->rank - 2; axis >= 0; axis--) {
        at += rest % m->dim[axis] * m->stride[0][axis];
        rest /= m->dim[axis];
    }
    const int64_t stride = m->stride[0][m->rank - 1], to = index * m->dim[m->rank - 1] + begin;
    at += begin * stride;
    if (row) {
        row(k->out[0].data, to, k->in[0].data, at, stride, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        put(k->out[0].data, k->out[0].dtype, to + i, get(k->in[0].data, k->in[0].dtype, at + i * stride));
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
    const int64_t inner = m.dim[m.rank - 1], rows = numel / inner, cuts = (inner + MAP_BLOCK - 1) / MAP_BLOCK;
    const bool parallel = numel >= RW_PARALLEL_FROM && k->threads > 1;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (parallel)
    for (int64_t i = 0; i < rows * cuts; i++) {
        const int64_t begin = i % cuts * MAP_BLOCK;
        copy_range(k, &m, row, i / cuts, begin, inner - begin < MAP_BLOCK ? inner - begin : MAP_BLOCK);
    }
    return RW_OK;
}

/* n elements of `size` bytes, all like the first. */
static void repeat(char *to, size_t size, size_t n)
{
    size_t done = 1;
    for (; done * 2 <= n && done < 4096; done *= 2) memcpy(to + done * size, to, done * size);
    const size_t step = done;
    for (; done < n; done += step) memcpy(to + done * size, to, (n - done < step ? n - done : step) * size);
}

static void put_number(char *to, size_t n, rw_dtype dtype, double value)
{
    if (!n) return;
    put(to, dtype, 0, value);
    repeat(to, rw_dtype_size(dtype), n);
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
        put_number((char *)k->out[0].data + (size_t)from * size, (size_t)n, k->out[0].dtype, value);
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

/* Extents around an axis of the output: outer x axis x inner. */
struct around {
    int64_t outer, inner;
    int axis;
};

static struct around around_axis(const rw_layout *l, int64_t axis)
{
    struct around a = { 1, 1, (int)(axis < 0 ? axis + l->rank : axis) };
    for (int i = 0; i < a.axis; i++) a.outer *= l->dim[i];
    for (int i = a.axis + 1; i < l->rank; i++) a.inner *= l->dim[i];
    return a;
}

/* One row [axis x inner] of one input, of any strides. */
static void join_row(const rw_view *x, const struct around *a, int64_t outer, char *to)
{
    const rw_layout *const l = x->layout;
    const size_t size = rw_dtype_size(x->dtype);
    int64_t at = 0;
    for (int i = a->axis - 1; i >= 0; i--) {
        at += outer % l->dim[i] * l->stride[i];
        outer /= l->dim[i];
    }
    const int64_t n = l->dim[a->axis] * a->inner;
    if (!n) return;
    bool dense = true;
    int64_t step = 1;
    for (int i = l->rank - 1; i >= a->axis; i--) {
        dense &= l->dim[i] == 1 || l->stride[i] == step;
        step *= l->dim[i];
    }
    if (dense) {
        memcpy(to, (const char *)x->data + at * (int64_t)size, (size_t)n * size);
        return;
    }
    /* Inner axis in one go where it is dense, else element by element. */
    const int64_t run = l->stride[l->rank - 1] == 1 ? l->dim[l->rank - 1] : 1;
    for (int64_t e = 0; e < n; e += run) {
        int64_t rest = e, from = at;
        for (int i = l->rank - 1; i >= a->axis; i--) {
            from += rest % l->dim[i] * l->stride[i];
            rest /= l->dim[i];
        }
        memcpy(to + (size_t)e * size, (const char *)x->data + from * (int64_t)size, (size_t)run * size);
    }
}

rw_status RW_ISA_NAME(rw_pad_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_pad_cpu)(const rw_kernel *k)
{
    const struct rw_pad_attrs *const attrs = k->attrs;
    const rw_layout *const out = k->out[0].layout, *const in = k->in[0].layout;
    const struct around a = around_axis(out, attrs->axis);
    const size_t size = rw_dtype_size(k->out[0].dtype), part = (size_t)(in->dim[a.axis] * a.inner) * size;
    const size_t whole = (size_t)(out->dim[a.axis] * a.inner) * size, before = (size_t)(attrs->start * a.inner) * size;
    if (!out->numel) return RW_OK;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (out->numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < a.outer; i++) {
        char *const y = (char *)k->out[0].data + (size_t)i * whole;
        put_number(y, before / size, k->out[0].dtype, attrs->value);
        join_row(&k->in[0], &a, i, y + before);
        put_number(y + before + part, (whole - before - part) / size, k->out[0].dtype, attrs->value);
    }
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_concat_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_concat_cpu)(const rw_kernel *k)
{
    const rw_layout *const out = k->out[0].layout;
    const struct around a = around_axis(out, *(const int64_t *)k->attrs);
    const size_t size = rw_dtype_size(k->out[0].dtype), whole = (size_t)(out->dim[a.axis] * a.inner) * size;
    if (!out->numel) return RW_OK;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (out->numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < a.outer; i++) {
        char *to = (char *)k->out[0].data + (size_t)i * whole;
        for (int j = 0; j < k->n_inputs; j++) {
            join_row(&k->in[j], &a, i, to);
            to += (size_t)(k->in[j].layout->dim[a.axis] * a.inner) * size;
        }
    }
    return RW_OK;
}
