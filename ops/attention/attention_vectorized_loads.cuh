/* Loads four columns at a time from operands of any layout: shared by the kernels that do not use tensor cores. */
#ifndef RW_OPS_ATTENTION_VECTORIZED_LOADS_CUH
#define RW_OPS_ATTENTION_VECTORIZED_LOADS_CUH

#include "ops/attention/attention_cuda.cuh"

namespace {

__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }

template <typename T> struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) quad {
    T x[4];
};

/* Rows of one head. quads: four columns, from a multiple of four on, are one access. */
template <typename T> struct matrix {
    const T *p;
    int64_t row, col;
    int rows, d;
    bool quads;
};

template <typename T> struct operand {
    const T *p;
    int64_t batch, head, row, col;
    bool quads;

    __device__ __forceinline__ matrix<T> of(int64_t b, int h, int rows, int d) const
    {
        return { p + b * batch + h * head, row, col, rows, d, quads };
    }
};

template <typename T> operand<T> operand_of(const att_operand &x)
{
    const int64_t bytes = sizeof(quad<T>) < 16 ? sizeof(quad<T>) : 16, each = sizeof(T);
    const bool aligned = reinterpret_cast<uintptr_t>(x.p) % bytes == 0 && x.batch * each % bytes == 0 &&
                         x.head * each % bytes == 0 && x.row * each % bytes == 0;
    return { static_cast<const T *>(x.p), x.batch, x.head, x.row, x.col, x.col == 1 && aligned };
}

template <typename T> __device__ __forceinline__ quad<wide<T>> read_quad(const matrix<T> &m, int row, int col)
{
    quad<wide<T>> r = {};
    if (row >= m.rows) return r;
    const T *const p = m.p + row * m.row + col * m.col;
    if (m.quads && col + 4 <= m.d) {
        const quad<T> x = *reinterpret_cast<const quad<T> *>(p);
        for (int i = 0; i < 4; i++) r.x[i] = widen(x.x[i]);
    } else {
        for (int i = 0; i < 4 && col + i < m.d; i++) r.x[i] = widen(p[i * m.col]);
    }
    return r;
}

} // namespace

#endif
