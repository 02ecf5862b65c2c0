/*
 * Products: D = epilogue(alpha op(A) op(B) + beta C), summed along k in the algorithm's order. Operands are first
 * copied to row-major arrays of the accumulation type; the sanitizers check those reads and the writes of D.
 */
#include "blas.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math.h>
#include <string.h>

#include <vector>

namespace cudasim {

/* OCP's formats: sign, exponent, fraction; E4M3 has no infinity. */
static double decoded_8f(uint8_t code, bool e5m2)
{
    const int fraction = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, e = (code & 0x7f) >> fraction;
    const int m = code & ((1 << fraction) - 1), most = e5m2 ? 31 : 15;
    double x = e ? ldexp(1 + ldexp(m, -fraction), e - bias) : ldexp(m, 1 - bias - fraction);
    if (e == most && (e5m2 || m == 7)) x = e5m2 && !m ? HUGE_VAL : static_cast<double>(NAN);
    return code & 0x80 ? -x : x;
}

static double load(const void *base, uint32_t type, size_t i)
{
    switch (type) {
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2: return decoded_8f(static_cast<const uint8_t *>(base)[i], type == CUDA_R_8F_E5M2);
    case CUDA_R_64F: return static_cast<const double *>(base)[i];
    case CUDA_R_32F: return static_cast<double>(static_cast<const float *>(base)[i]);
    case CUDA_R_16BF: return static_cast<double>(static_cast<float>(static_cast<const __nv_bfloat16 *>(base)[i]));
    default: return static_cast<double>(static_cast<float>(static_cast<const __half *>(base)[i]));
    }
}

/* x is a float's value except in products of doubles. */
static void store(void *base, uint32_t type, size_t i, double x)
{
    switch (type) {
    case CUDA_R_64F: static_cast<double *>(base)[i] = x; break;
    case CUDA_R_32F: static_cast<float *>(base)[i] = static_cast<float>(x); break;
    case CUDA_R_16BF: static_cast<__nv_bfloat16 *>(base)[i] = __float2bfloat16_rn(static_cast<float>(x)); break;
    default: static_cast<__half *>(base)[i] = __float2half_rn(static_cast<float>(x)); break;
    }
}

static double rounded(uint32_t type, double x)
{
    switch (type) {
    case CUDA_R_64F: return x;
    case CUDA_R_32F: return static_cast<double>(static_cast<float>(x));
    case CUDA_R_16BF: return static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(x))));
    default: return static_cast<double>(__half2float(__float2half_rn(static_cast<float>(x))));
    }
}

/* To 10 stored bits, ties away from zero, as in conversions to TF32. */
static float to_tf32(float x)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return x;
    return __uint_as_float((u + 0x1000u) & ~0x1fffu);
}

static size_t place(const layout &l, uint64_t row, uint64_t col, int32_t batch)
{
    const uint64_t ld = static_cast<uint64_t>(l.ld),
                   first = static_cast<uint64_t>(batch) * static_cast<uint64_t>(l.stride);
    return first + (l.order == CUBLASLT_ORDER_COL ? col * ld + row : row * ld + col);
}

/* op(X), rows x cols, by rows. */
template <typename W>
static void gather(std::vector<W> *to, const void *from, const layout &l, int32_t trans, int32_t batch, int32_t compute)
{
    const uint64_t rows = trans == CUBLAS_OP_N ? l.rows : l.cols, cols = trans == CUBLAS_OP_N ? l.cols : l.rows;
    to->resize(rows * cols);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++) {
            const size_t i = trans == CUBLAS_OP_N ? place(l, r, c, batch) : place(l, c, r, batch);
            const double x = load(from, l.type, i);
            if (compute == CUBLAS_COMPUTE_32F_FAST_TF32)
                (*to)[r * cols + c] = static_cast<W>(to_tf32(static_cast<float>(x)));
            else if (compute == CUBLAS_COMPUTE_32F_FAST_16BF)
                (*to)[r * cols + c] = static_cast<W>(rounded(CUDA_R_16BF, x));
            else (*to)[r * cols + c] = static_cast<W>(x);
        }
}

/* acc[0..n) += sum over k in [from, to) of a[k] b[k][0..n), in the order of k. The arrays are internal: not sanitized,
   for speed. */
template <typename W>
__attribute__((no_sanitize("address", "undefined"), optimize("O3"))) static void
axpy(W *__restrict__ acc, const W *__restrict__ a, const W *__restrict__ b, uint64_t n, uint64_t from, uint64_t to,
     uint64_t step)
{
    for (uint64_t k = from; k < to; k += step) {
        const W x = a[k];
        const W *__restrict__ row = b + k * n;
        for (uint64_t j = 0; j < n; j++) acc[j] += x * row[j];
    }
}

template <typename W> static void add(std::vector<W> *acc, const std::vector<W> &part)
{
    for (size_t j = 0; j < acc->size(); j++) (*acc)[j] += part[j];
}

/* One row of the product over [from, to), in the algorithm's order. */
template <typename W>
static void sum_row(const algorithm &algo, std::vector<W> *acc, const W *a, const W *b, uint64_t from, uint64_t to)
{
    const uint64_t n = acc->size(), block = static_cast<uint64_t>(algo.block), blocks = (to - from + block - 1) / block;
    std::fill(acc->begin(), acc->end(), W(0));
    if (algo.order == order::one) return axpy(acc->data(), a, b, n, from, to, 1);
    std::vector<W> part(n);
    if (algo.order == order::lanes) {
        for (uint64_t lane = 0; lane < block; lane++) {
            std::fill(part.begin(), part.end(), W(0));
            axpy(part.data(), a, b, n, from + lane, to, block);
            add(acc, part);
        }
        return;
    }
    for (uint64_t i = 0; i < blocks; i++) {
        const uint64_t at = from + (algo.order == order::backwards ? blocks - 1 - i : i) * block;
        std::fill(part.begin(), part.end(), W(0));
        axpy(part.data(), a, b, n, at, at + block < to ? at + block : to, 1);
        add(acc, part);
    }
}

/*
 * One row from several parts of k. COMPUTE_TYPE adds them in the order of k; OUTPUT_TYPE rounds each first; INPLACE
 * adds to the output, rounded each time, in a random order of the parts.
 */
template <typename W>
static void sum_split_row(const algorithm &algo, std::vector<W> *acc, const W *a, const W *b, uint64_t k, uint32_t type)
{
    const uint64_t splits = static_cast<uint64_t>(algo.splits), first = random_below(splits);
    std::vector<W> part(acc->size()), total(acc->size());
    for (uint64_t i = 0; i < splits; i++) {
        const uint64_t s = algo.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE ? (first + i) % splits : i;
        sum_row(algo, &part, a, b, k * s / splits, k * (s + 1) / splits);
        for (size_t j = 0; j < total.size(); j++) {
            if (algo.scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)
                part[j] = static_cast<W>(rounded(type, static_cast<double>(part[j])));
            total[j] += part[j];
            if (algo.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE)
                total[j] = static_cast<W>(rounded(type, static_cast<double>(total[j])));
        }
    }
    *acc = total;
}

/* The approximation by tanh, and its derivative. */
static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    const float t = tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 0.134145f * x * x);
}

struct aux_place {
    void *base;
    uint32_t type;
    size_t index; /* of the element, or of the bit */
};

static aux_place aux_of(const product &p, uint64_t row, uint64_t col, int32_t batch)
{
    const uint32_t type = p.desc.aux_type < 0 ? p.d.type : static_cast<uint32_t>(p.desc.aux_type);
    return { reinterpret_cast<void *>(p.desc.aux), type,
             col * static_cast<uint64_t>(p.desc.aux_ld) + row +
                 static_cast<uint64_t>(batch) * static_cast<uint64_t>(p.desc.aux_stride) };
}

static void set_bit(const aux_place &at, bool on)
{
    unsigned char *byte = static_cast<unsigned char *>(at.base) + at.index / 8;
    const unsigned char bit = static_cast<unsigned char>(1u << at.index % 8);
    *byte = static_cast<unsigned char>(on ? *byte | bit : *byte & ~bit);
}

/* Applies the epilogue to one element. */
template <typename W> static W after(const product &p, W x, uint64_t row, uint64_t col, int32_t batch)
{
    const uint32_t e = p.desc.epilogue;
    const uint32_t bias_type = p.desc.bias_type < 0 ? p.d.type : static_cast<uint32_t>(p.desc.bias_type);
    if (e & 4) {
        const size_t i = row + static_cast<uint64_t>(batch) * static_cast<uint64_t>(p.desc.bias_stride);
        x += static_cast<W>(load(reinterpret_cast<const void *>(p.desc.bias), bias_type, i));
    }
    if (e & 128) {
        const aux_place at = aux_of(p, row, col, batch);
        if (e & 8) return static_cast<const unsigned char *>(at.base)[at.index / 8] >> at.index % 8 & 1 ? x : W(0);
        if (e & 64) return x * static_cast<W>(gelu_slope(static_cast<float>(load(at.base, at.type, at.index))));
        if (e & 2) set_bit(at, x > W(0));
        else store(at.base, at.type, at.index, static_cast<double>(x));
    }
    if (e & 2) return x > W(0) ? x : W(0);
    return e & 32 ? static_cast<W>(gelu(static_cast<float>(x))) : x;
}

/* Sums that are written to the address of the bias: of D's rows, of op(A)'s rows or of op(B)'s columns. */
template <typename W>
static void bias_gradient(const product &p, const std::vector<W> &x, uint64_t rows, uint64_t cols, bool of_rows,
                          int32_t batch)
{
    const uint32_t type = p.desc.bias_type < 0 ? p.d.type : static_cast<uint32_t>(p.desc.bias_type);
    const size_t first = static_cast<size_t>(batch) * static_cast<size_t>(p.desc.bias_stride);
    for (uint64_t i = 0; i < (of_rows ? rows : cols); i++) {
        W sum = 0;
        for (uint64_t j = 0; j < (of_rows ? cols : rows); j++) sum += of_rows ? x[i * cols + j] : x[j * cols + i];
        store(reinterpret_cast<void *>(p.desc.bias), type, first + i, static_cast<double>(sum));
    }
}

static bool has_rows_of_16_bytes(const layout &l)
{
    return static_cast<uint64_t>(l.ld) * size_of_type(l.type) % 16 == 0;
}

/*
 * Two ways to round twice, as measured for cuBLASLt 13.1 on an H100. With a beta of 1 from the host and C equal to D, C
 * is added in the store, in D's type. If rows are not a multiple of 16 bytes, the bias is added to the rounded product.
 */
enum class rounding { once, before_c, before_bias };

template <typename W> static rounding rounding_of(const product &p, W beta)
{
    if (size_of_type(p.d.type) != 2 || beta == W(0)) return rounding::once;
    if (!has_rows_of_16_bytes(p.a) || !has_rows_of_16_bytes(p.b) || !has_rows_of_16_bytes(p.d))
        return p.desc.epilogue & 4 ? rounding::before_bias : rounding::once;
    return !p.beta_device && beta == W(1) && p.c_ptr == p.d_ptr ? rounding::before_c : rounding::once;
}

/* alpha a b + beta c, followed by the epilogue. */
template <typename W>
static W result_of(const product &p, rounding how, W x, W beta, uint64_t i, uint64_t j, int32_t batch)
{
    const W c = beta == W(0) ? W(0) : beta * static_cast<W>(load(p.c_ptr, p.c.type, place(p.c, i, j, batch)));
    if (how == rounding::before_c)
        return static_cast<W>(rounded(p.d.type, static_cast<double>(after(p, x, i, j, batch)))) + c;
    if (beta != W(0)) x += c;
    if (how == rounding::before_bias) x = static_cast<W>(rounded(p.d.type, static_cast<double>(x)));
    return after(p, x, i, j, batch);
}

/* Fast accumulation keeps about 14 bits of each sum, as Hopper's tensor cores do. */
template <typename W> static W short_sum(const product &p, W x)
{
    if (!p.desc.fast_accumulation || !is_8f(p.a.type)) return x;
    int e;
    const double m = frexp(static_cast<double>(x), &e);
    return static_cast<W>(ldexp(trunc(m * 0x1p14) * 0x1p-14, e));
}

/* The scale by which A and B are multiplied. */
template <typename W> static W scale_of(const product &p)
{
    W scale = 1;
    for (int i = 0; i < 2; i++)
        if (p.desc.scale_pointer[i]) scale *= static_cast<W>(*reinterpret_cast<const float *>(p.desc.scale_pointer[i]));
    return scale;
}

/* One product of a batch: sums in the algorithm's order, then the epilogue and its bias gradients. */
template <typename W> static void run_batch(const product &p, W alpha, W beta, int32_t batch)
{
    const rounding how = rounding_of(p, beta);
    const uint64_t m = p.d.rows, n = p.d.cols;
    std::vector<W> a, b, acc(n), d(m * n);
    gather(&a, p.a_ptr, p.a, p.desc.transa, batch, p.desc.compute);
    gather(&b, p.b_ptr, p.b, p.desc.transb, batch, p.desc.compute);
    const uint64_t k = a.size() / m;
    for (uint64_t i = 0; i < m; i++) {
        if (p.algo.splits > 1) sum_split_row(p.algo, &acc, &a[i * k], b.data(), k, p.d.type);
        else sum_row(p.algo, &acc, &a[i * k], b.data(), 0, k);
        for (uint64_t j = 0; j < n; j++)
            d[i * n + j] = result_of(p, how, alpha * short_sum(p, acc[j]), beta, i, j, batch);
    }
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < n; j++)
            store(p.d_ptr, p.d.type, place(p.d, i, j, batch), static_cast<double>(d[i * n + j]));
    if (p.desc.epilogue & 16) bias_gradient(p, d, m, n, true, batch);
    if (p.desc.epilogue & 256) bias_gradient(p, a, m, k, true, batch);
    if (p.desc.epilogue & 512) bias_gradient(p, b, k, n, false, batch);
}

/* A workspace is scratch memory: its contents are destroyed. */
static void spoil_workspace(const product &p)
{
    const problem q = { &p.desc, &p.a, &p.b, &p.c, &p.d };
    const size_t size = workspace_of(p.algo, q);
    if (size) memset(p.workspace, static_cast<int>(random_bits() & 255), size);
}

template <typename W> static void run_batches(const product &p)
{
    const W alpha = scale_of<W>(p) * (p.alpha_device ? *static_cast<const W *>(p.alpha_device)
                                                     : static_cast<W>(p.alpha));
    const W beta = p.beta_device ? *static_cast<const W *>(p.beta_device) : static_cast<W>(p.beta);
    for (int32_t batch = 0; batch < p.d.batch; batch++) run_batch<W>(p, alpha, beta, batch);
}

cudaError_t run_product(const product &p)
{
    spoil_workspace(p);
    if (p.a.type == CUDA_R_64F) run_batches<double>(p);
    else run_batches<float>(p);
    return cudaSuccess;
}

} // namespace cudasim
