/*
 * CUDA kernels of the shape ops: copies between layouts, casts, fills, joins. A copy moves units as wide as rows,
 * strides and addresses allow, at most 16 bytes. A transpose uses tiles in shared memory.
 */
/* The width of the wider side is full; that of the other one follows. */
/* machine_code.py: stream map_packs<cast_of<.*>: load=None, store=None, share=None */
/* machine_code.py: stream (move|pad)_kernel<unit16> */
/* machine_code.py: stream fill_kernel: load=0, share=0 */
/* Single elements, contiguous in a warp: a transpose has no wider access on both of its sides. */
/* machine_code.py: stream transpose_kernel<unsigned short>: load=16, store=16 */
/* machine_code.py: stream transpose_kernel<unsigned int>: load=32, store=32 */
/* machine_code.py: stream transpose_kernel<unsigned long>: load=64, store=64 */
/* machine_code.py: stream transpose_kernel<unit16> */
/* machine_code.py: arange_kernel<.*>: a sequence: short */
/* machine_code.py: transpose_kernel<unsigned char>: truth values: masks are small beside what they choose from */
/* machine_code.py: (move|pad)_kernel<.*>: rows that do not divide into packs */
#include "ops/common/wide_copies.cuh"
#include "ops/shape/shape.h"

#include <cmath>
#include <cstring>

namespace {

constexpr int THREADS = 256;
constexpr int UNROLL = 2; /* units in flight per thread */

/* ---- any layout to any layout ---- */

struct move_args {
    int64_t n; /* in units */
    int rank;
    map_divider dim[RW_MAX_RANK];
    int64_t from[RW_MAX_RANK], to[RW_MAX_RANK];
};

/* Copies units between two layouts, several per thread. */
template <typename T>
__global__ void __launch_bounds__(THREADS) move_kernel(const T *x, T *y, const __grid_constant__ move_args a)
{
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
    T v[UNROLL];
    int64_t to[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const int64_t i = first + u * THREADS;
        uint64_t rest = static_cast<uint64_t>(i);
        int64_t from = 0;
        to[u] = 0;
#pragma unroll 1
        for (int axis = a.rank - 1; axis > 0; axis--) {
            const uint64_t q = a.dim[axis].quotient(rest);
            const int64_t at = static_cast<int64_t>(rest - q * a.dim[axis].d);
            from += at * a.from[axis];
            to[u] += at * a.to[axis];
            rest = q;
        }
        from += static_cast<int64_t>(rest) * a.from[0];
        to[u] += static_cast<int64_t>(rest) * a.to[0];
        if (i < a.n) v[u] = x[from];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + u * THREADS < a.n) y[to[u]] = v[u];
}

/* Axes that are contiguous in both layouts, joined. */
struct move_axes {
    int rank;
    int64_t dim[RW_MAX_RANK], from[RW_MAX_RANK], to[RW_MAX_RANK];
};

/* Joins the axes of a layout and of the destination's strides. */
move_axes join(const rw_layout *l, const int64_t *to)
{
    move_axes m = {};
    for (int axis = 0; axis < l->rank; axis++) {
        const int64_t n = l->dim[axis];
        if (n == 1) continue;
        const int last = m.rank - 1;
        const bool joins = m.rank && m.from[last] == l->stride[axis] * n && m.to[last] == to[axis] * n;
        if (!joins) m.dim[m.rank++] = 1;
        m.dim[m.rank - 1] *= n;
        m.from[m.rank - 1] = l->stride[axis];
        m.to[m.rank - 1] = to[axis];
    }
    if (!m.rank) m.rank = m.dim[0] = m.from[0] = m.to[0] = 1;
    return m;
}

/* Bytes of a unit: one element, or more if rows are dense on both sides. */
size_t unit_of(const move_axes &m, size_t size, const void *x, const void *y)
{
    const int last = m.rank - 1;
    if (m.from[last] != 1 || m.to[last] != 1) return size;
    for (size_t unit = 16; unit > size; unit /= 2) {
        const int64_t n = static_cast<int64_t>(unit / size);
        bool fits = m.dim[last] % n == 0 && map_is_aligned(x, unit) && map_is_aligned(y, unit);
        for (int axis = 0; axis < last; axis++) fits &= m.from[axis] % n == 0 && m.to[axis] % n == 0;
        if (fits) return unit;
    }
    return size;
}

/* Copies x to y; `to` has y's stride for each axis of x. */
rw_status move(const rw_kernel *k, const rw_view *x, void *y, const int64_t *to)
{
    if (!x->layout->numel) return RW_OK;
    const size_t size = rw_dtype_size(x->dtype);
    const move_axes m = join(x->layout, to);
    const size_t unit = unit_of(m, size, x->data, y);
    const int64_t n = static_cast<int64_t>(unit / size);
    const int last = m.rank - 1;
    move_args a = {};
    a.n = x->layout->numel / n;
    a.rank = m.rank;
    for (int axis = 0; axis < m.rank; axis++) {
        a.dim[axis].set(axis == last ? m.dim[axis] / n : m.dim[axis]);
        a.from[axis] = axis == last ? m.from[axis] : m.from[axis] / n;
        a.to[axis] = axis == last ? m.to[axis] : m.to[axis] / n;
    }
    return with_unit(unit, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(move_kernel<T>, blocks_for(a.n, THREADS * UNROLL), THREADS, 0, k, static_cast<const T *>(x->data),
                  static_cast<T *>(y), a);
        return rw_cuda_launched(k);
    });
}

/* ---- transposes ---- */

/* Tiles cover `dense`, the axis that is contiguous in the input, and the last axis, which is contiguous in the
   result. */
struct transpose_args {
    int rank, dense;
    int64_t dim[RW_MAX_RANK], from[RW_MAX_RANK], to[RW_MAX_RANK];
    int64_t rows, cols; /* tiles over the dense axis and over the last */
};

constexpr int TRANSPOSE_ROWS = 8; /* rows of a tile that a block of threads moves at a time */

template <typename T> constexpr int transpose_tile()
{
    return sizeof(T) == 2 ? 64 : 32;
}

/* Transposes one tile through shared memory. */
template <typename T>
__global__ void __launch_bounds__(transpose_tile<T>() *TRANSPOSE_ROWS)
    transpose_kernel(const T *x, T *y, const __grid_constant__ transpose_args a)
{
    constexpr int TILE = transpose_tile<T>();
    constexpr int WORD = sizeof(T) < 4 ? 4 / sizeof(T) : 1; /* each row starts one bank further: no conflicts */
    __shared__ T tile[TILE][TILE + WORD];
    const int last = a.rank - 1;
    const int64_t pair = static_cast<int64_t>(blockIdx.x) / a.cols;
    const int64_t row = pair % a.rows * TILE, col = static_cast<int64_t>(blockIdx.x) % a.cols * TILE;
    int64_t rest = pair / a.rows, from = 0, to = 0;
    for (int axis = last - 1; axis >= 0; axis--) {
        if (axis == a.dense) continue;
        from += rest % a.dim[axis] * a.from[axis];
        to += rest % a.dim[axis] * a.to[axis];
        rest /= a.dim[axis];
    }
    const int lane = threadIdx.x;
    T ahead[TILE / TRANSPOSE_ROWS]; /* all loads of a thread are in flight before the first store */
#pragma unroll
    for (int i = 0; i < TILE / TRANSPOSE_ROWS; i++) {
        const int64_t at = col + threadIdx.y + i * TRANSPOSE_ROWS;
        const bool inside = row + lane < a.dim[a.dense] && at < a.dim[last];
        ahead[i] = inside ? x[from + (row + lane) + at * a.from[last]] : T{};
    }
#pragma unroll
    for (int i = 0; i < TILE / TRANSPOSE_ROWS; i++) tile[threadIdx.y + i * TRANSPOSE_ROWS][lane] = ahead[i];
    __syncthreads();
    for (int r = threadIdx.y; r < TILE; r += TRANSPOSE_ROWS)
        if (row + r < a.dim[a.dense] && col + lane < a.dim[last])
            y[to + (row + r) * a.to[a.dense] + (col + lane)] = tile[lane][r];
}

/* Is it a copy whose last axis is strided in the input, while another axis is contiguous there? */
bool is_transpose(const move_axes &m, transpose_args *ret)
{
    constexpr int64_t MIN = 8; /* shorter axes leave most of a tile empty */
    const int last = m.rank - 1;
    if (m.from[last] < 2 || m.dim[last] < MIN) return false;
    *ret = {};
    for (int axis = last - 1; axis >= 0; axis--) {
        if (m.from[axis] != 1 || m.dim[axis] < MIN) continue;
        ret->rank = m.rank;
        ret->dense = axis;
        for (int i = 0; i < m.rank; i++) ret->dim[i] = m.dim[i], ret->from[i] = m.from[i], ret->to[i] = m.to[i];
        return true;
    }
    return false;
}

rw_status transpose(const rw_kernel *k, transpose_args *a)
{
    return with_unit(rw_dtype_size(k->in[0].dtype), [&](auto type) {
        using T = decltype(type);
        constexpr int TILE = transpose_tile<T>();
        a->rows = blocks_for(a->dim[a->dense], TILE);
        a->cols = blocks_for(a->dim[a->rank - 1], TILE);
        const int64_t others = k->in[0].layout->numel / (a->dim[a->dense] * a->dim[a->rank - 1]);
        RW_LAUNCH(transpose_kernel<T>, dim3(static_cast<unsigned>(others * a->rows * a->cols)),
                  dim3(TILE, TRANSPOSE_ROWS), 0, k,
                  static_cast<const T *>(k->in[0].data), static_cast<T *>(k->out[0].data), *a);
        return rw_cuda_launched(k);
    });
}

void dense_strides(const rw_layout *l, int64_t *stride)
{
    int64_t step = 1;
    for (int axis = l->rank - 1; axis >= 0; axis--) {
        stride[axis] = step;
        step *= l->dim[axis];
    }
}

/* ---- casts: through double, rounded once ---- */

/* Rounds to float with rounding to odd, so that only the second rounding affects the result. */
__host__ __device__ inline float odd_float(double x)
{
    const float f = static_cast<float>(x);
    const double back = static_cast<double>(f);
    if (back == x || x != x || f - f != 0) return f;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((back > x) == (x > 0)) bits--;
    bits |= 1;
    float odd;
    memcpy(&odd, &bits, sizeof odd);
    return odd;
}

template <typename To> struct rounded;
template <> struct rounded<double> {
    static __host__ __device__ double of(double x) { return x; }
};
template <> struct rounded<float> {
    static __host__ __device__ float of(double x) { return static_cast<float>(x); }
};
template <> struct rounded<bf16> {
    static __host__ __device__ bf16 of(double x) { return __float2bfloat16_rn(odd_float(x)); }
};
template <> struct rounded<f16> {
    static __host__ __device__ f16 of(double x) { return __float2half_rn(odd_float(x)); }
};
template <> struct rounded<int32_t> {
    static __host__ __device__ int32_t of(double x)
    {
        if (x != x) return 0;
        return x >= 2147483647.0 ? INT32_MAX : x <= -2147483648.0 ? INT32_MIN : static_cast<int32_t>(x);
    }
};

template <> struct rounded<uint8_t> { /* RW_BOOL */
    static __host__ __device__ uint8_t of(double x) { return x != 0; }
};

__device__ __forceinline__ double exact(float x) { return static_cast<double>(x); }
__device__ __forceinline__ double exact(double x) { return x; }
__device__ __forceinline__ double exact(int32_t x) { return static_cast<double>(x); }
__device__ __forceinline__ double exact(uint8_t x) { return x != 0; }
__device__ __forceinline__ double exact(bf16 x) { return static_cast<double>(__bfloat162float(x)); }
__device__ __forceinline__ double exact(f16 x) { return static_cast<double>(__half2float(x)); }

template <typename From, typename To> struct cast_of {
    using In = From;
    using Out = To;
    static constexpr int inputs = 1, outputs = 1;
    __device__ __forceinline__ void operator()(const From *x, To *y) const { *y = rounded<To>::of(exact(*x)); }
};
/* The frequent conversions do not need double. */
template <typename Half> struct narrowing {
    using In = float;
    using Out = Half;
    static constexpr int inputs = 1, outputs = 1;
    __device__ __forceinline__ void operator()(const float *x, Half *y) const { *y = narrow<Half>(*x); }
};
template <typename Half> struct widening {
    using In = Half;
    using Out = float;
    static constexpr int inputs = 1, outputs = 1;
    __device__ __forceinline__ void operator()(const Half *x, float *y) const { *y = widen(*x); }
};
template <> struct cast_of<float, bf16> : narrowing<bf16> {};
template <> struct cast_of<float, f16> : narrowing<f16> {};
template <> struct cast_of<bf16, float> : widening<bf16> {};
template <> struct cast_of<f16, float> : widening<f16> {};

template <typename F> rw_status with_any_type(rw_dtype dtype, F f)
{
    return dtype == RW_I32 ? f(int32_t()) : dtype == RW_BOOL ? f(uint8_t()) : with_float_type(dtype, f);
}

rw_status cast(const rw_kernel *k)
{
    return with_any_type(k->in[0].dtype, [&](auto in) {
        return with_any_type(k->out[0].dtype, [&](auto out) {
            return map_run(k, cast_of<decltype(in), decltype(out)>());
        });
    });
}

/* ---- fill ---- */

/* 16 bytes filled with one number of any type. */
unit16 unit_of_number(rw_dtype dtype, double value)
{
    unit16 unit;
    with_any_type(dtype, [&](auto type) {
        const auto element = rounded<decltype(type)>::of(value);
        for (size_t i = 0; i < sizeof unit; i += sizeof element)
            memcpy(reinterpret_cast<char *>(&unit) + i, &element, sizeof element);
        return RW_OK;
    });
    return unit;
}

__global__ void __launch_bounds__(THREADS) fill_kernel(unit16 *y, unit16 value, int64_t bytes)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, rest = bytes - i * 16;
    if (rest >= 16) {
        y[i] = value;
        return;
    }
    unsigned char *const last = reinterpret_cast<unsigned char *>(y + i);
#pragma unroll
    for (int b = 0; b < 16; b++)
        if (b < rest) last[b] = static_cast<unsigned char>(value.x[b / 8] >> (b % 8 * 8));
}

/* ---- arange ---- */

template <typename T>
__global__ void __launch_bounds__(THREADS) arange_kernel(T *y, const __grid_constant__ rw_arange_attrs a)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < a.n) y[i] = rounded<T>::of(a.start + static_cast<double>(i) * a.step);
}

/* ---- pad ---- */

/* Rows of `whole` units: `before` units of a constant, then `part` units of the input, then the constant. */
struct pad_args {
    map_divider whole;
    int64_t n, before, part;
    unit16 number;
};

template <typename T>
__global__ void __launch_bounds__(THREADS) pad_kernel(const T *x, T *y, const __grid_constant__ pad_args a)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= a.n) return;
    const int64_t row = static_cast<int64_t>(a.whole.quotient(static_cast<uint64_t>(i)));
    const int64_t at = i - row * static_cast<int64_t>(a.whole.d) - a.before;
    T v;
    memcpy(&v, &a.number, sizeof v);
    if (at >= 0 && at < a.part) v = x[row * a.part + at];
    y[i] = v;
}

int axis_of(const rw_layout *l, int64_t axis)
{
    return static_cast<int>(axis < 0 ? axis + l->rank : axis);
}

int64_t inner_of(const rw_layout *l, int axis)
{
    int64_t n = 1;
    for (int i = axis + 1; i < l->rank; i++) n *= l->dim[i];
    return n;
}

/* For rows that are not contiguous: fills the result with the constant, then copies the input. */
rw_status pad_apart(const rw_kernel *k, int axis, int64_t start, const unit16 &number)
{
    const rw_layout *const out = k->out[0].layout;
    const int64_t size = static_cast<int64_t>(rw_dtype_size(k->out[0].dtype)), bytes = out->numel * size;
    int64_t to[RW_MAX_RANK];
    dense_strides(out, to);
    RW_LAUNCH(fill_kernel, blocks_for(bytes, 16 * THREADS), THREADS, 0, k, static_cast<unit16 *>(k->out[0].data),
              number, bytes);
    const rw_status status = rw_cuda_launched(k);
    return status ? status : move(k, &k->in[0], static_cast<char *>(k->out[0].data) + start * to[axis] * size, to);
}

} // namespace

extern "C" rw_status rw_copy_cuda(const rw_kernel *k)
{
    const rw_view *const x = &k->in[0];
    if (!x->layout->numel) return RW_OK;
    if (x->dtype != k->out[0].dtype) return cast(k);
    int64_t to[RW_MAX_RANK];
    transpose_args t;
    dense_strides(x->layout, to);
    if (is_transpose(join(x->layout, to), &t)) return transpose(k, &t);
    return move(k, x, k->out[0].data, to);
}

extern "C" rw_status rw_fill_cuda(const rw_kernel *k)
{
    double value;
    memcpy(&value, k->attrs, sizeof value);
    const int64_t bytes = k->out[0].layout->numel * static_cast<int64_t>(rw_dtype_size(k->out[0].dtype));
    if (!bytes) return RW_OK;
    RW_LAUNCH(fill_kernel, blocks_for(bytes, 16 * THREADS), THREADS, 0, k, static_cast<unit16 *>(k->out[0].data),
              unit_of_number(k->out[0].dtype, value), bytes);
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_arange_cuda(const rw_kernel *k)
{
    const rw_arange_attrs *const a = static_cast<const rw_arange_attrs *>(k->attrs);
    if (!a->n) return RW_OK;
    return with_any_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(arange_kernel<T>, blocks_for(a->n, THREADS), THREADS, 0, k, static_cast<T *>(k->out[0].data), *a);
        return rw_cuda_launched(k);
    });
}

/* Runs pad: in one pass if rows are contiguous, else with pad_apart(). */
extern "C" rw_status rw_pad_cuda(const rw_kernel *k)
{
    const rw_pad_attrs *const attrs = static_cast<const rw_pad_attrs *>(k->attrs);
    const rw_layout *const out = k->out[0].layout, *const in = k->in[0].layout;
    const unit16 number = unit_of_number(k->out[0].dtype, attrs->value);
    const int axis = axis_of(out, attrs->axis);
    const int64_t inner = inner_of(out, axis) * static_cast<int64_t>(rw_dtype_size(k->out[0].dtype));
    const int64_t whole = out->dim[axis] * inner, part = in->dim[axis] * inner, before = attrs->start * inner;
    if (!out->numel) return RW_OK;
    if (!in->dense) return pad_apart(k, axis, attrs->start, number);
    int64_t unit = 16;
    while (whole % unit || part % unit || before % unit || !map_is_aligned(k->in[0].data, static_cast<size_t>(unit)))
        unit /= 2;
    pad_args a = {};
    a.whole.set(whole / unit);
    a.n = out->numel * static_cast<int64_t>(rw_dtype_size(k->out[0].dtype)) / unit;
    a.before = before / unit;
    a.part = part / unit;
    a.number = number;
    return with_unit(static_cast<size_t>(unit), [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(pad_kernel<T>, blocks_for(a.n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<T *>(k->out[0].data), a);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_concat_cuda(const rw_kernel *k)
{
    const rw_layout *const out = k->out[0].layout;
    const int axis = axis_of(out, *static_cast<const int64_t *>(k->attrs));
    int64_t to[RW_MAX_RANK];
    dense_strides(out, to);
    char *y = static_cast<char *>(k->out[0].data);
    for (int i = 0; i < k->n_inputs; i++) {
        const rw_status status = move(k, &k->in[i], y, to);
        if (status) return status;
        y += k->in[i].layout->dim[axis] * to[axis] * static_cast<int64_t>(rw_dtype_size(k->out[0].dtype));
    }
    return RW_OK;
}
