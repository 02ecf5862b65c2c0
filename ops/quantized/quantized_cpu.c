/*
 * Products with weights in codes on the CPU: a panel of the weight is decoded by all threads, then multiplied as
 * rw_linear() does, one panel after the other.
 */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/quantized/quantized.h"

/* A panel with fewer numbers is decoded by one thread. */
#define PARALLEL_FROM 65536

static const float nf4_numbers[] = { RW_NF4_NUMBERS };
static const float dynamic_numbers[] = { RW_DYNAMIC_NUMBERS };

struct weight {
    bool nf4;
    int64_t in;
    const uint8_t *codes, *scales;
    const float *mean, *largest;
};

/* What a vector of codes of NF4 stands for; codes begins at a whole byte. */
#if defined(RW_ISA_IS_V4) || defined(RW_ISA_IS_V3)
VEC_INLINE __m128i nf4_bytes(const uint8_t *codes)
{
    const __m128i both = _mm_loadl_epi64((const __m128i *)codes), low = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(both, 4), low), _mm_and_si128(both, low));
}
#endif

VEC_INLINE void nf4_decode_16(const uint8_t *codes, nf scale, nf *to)
{
#if defined(RW_ISA_IS_V4)
    const __m512 numbers = _mm512_loadu_ps(nf4_numbers);
    to[0] = (nf)_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(nf4_bytes(codes)), numbers) * scale;
#elif defined(RW_ISA_IS_V3)
    const __m256 below = _mm256_loadu_ps(nf4_numbers), above = _mm256_loadu_ps(nf4_numbers + 8);
    const __m128i bytes = nf4_bytes(codes);
    for (int half = 0; half < 2; half++) {
        const __m256i i = _mm256_cvtepu8_epi32(half ? _mm_srli_si128(bytes, 8) : bytes);
        const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)); /* the sign is bit 3 */
        to[half] = (nf)_mm256_blendv_ps(_mm256_permutevar8x32_ps(below, i), _mm256_permutevar8x32_ps(above, i),
                                        upper) * scale;
    }
#else
    for (int i = 0; i < 16; i++)
        to[i / NF_LANES][i % NF_LANES] = nf4_numbers[i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4] *
                                         scale[i % NF_LANES];
#endif
}

VEC_INLINE void put_16(void *to, rw_dtype dtype, int64_t at, const nf *x)
{
    for (int i = 0; i < 16 / NF_LANES; i++) {
        if (dtype != RW_F64) nf_put(to, dtype, at + i * NF_LANES, x[i]);
        else
            for (int l = 0; l < NF_LANES; l++) ((double *)to)[at + i * NF_LANES + l] = x[i][l];
    }
}

VEC_INLINE void nf4_block(const struct weight *w, int64_t block, rw_dtype dtype, void *to, int64_t at)
{
    const float deviation = dynamic_numbers[w->scales[block]] * w->largest[block / RW_NF4_GROUP];
    const nf scale = nf_all(deviation + *w->mean);
    for (int i = 0; i < RW_NF4_BLOCK; i += 16) {
        nf x[16 / NF_LANES];
        nf4_decode_16(w->codes + (block * RW_NF4_BLOCK + i) / 2, scale, x);
        put_16(to, dtype, at + i, x);
    }
}

VEC_INLINE void nf4_row(const struct weight *w, int64_t first, int64_t n, rw_dtype dtype, void *to, int64_t at)
{
    for (int64_t i = 0; i < n; i += RW_NF4_BLOCK) nf4_block(w, (first + i) / RW_NF4_BLOCK, dtype, to, at + i);
}

VEC_INLINE nf int8_decode(const int8_t *codes)
{
#if defined(RW_ISA_IS_V4)
    return (nf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)codes)));
#elif defined(RW_ISA_IS_V3)
    return (nf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)codes)));
#else
    nf x;
    for (int i = 0; i < NF_LANES; i++) x[i] = (float)codes[i];
    return x;
#endif
}

VEC_INLINE void int8_row(const struct weight *w, int64_t row, int64_t first, int64_t n, rw_dtype dtype, void *to,
                         int64_t at)
{
    const int8_t *const codes = (const int8_t *)w->codes + first;
    const float largest = w->largest[row];
    int64_t i = 0;
    for (; dtype != RW_F64 && i + NF_LANES <= n; i += NF_LANES)
        nf_put(to, dtype, at + i, int8_decode(codes + i) * nf_all(largest) * nf_all(RW_INT8_STEP));
    for (; i < n; i++) {
        const float x = (float)codes[i] * largest * RW_INT8_STEP;
        if (dtype == RW_F64) ((double *)to)[at + i] = x;
        else f_put(to, dtype, at + i, x);
    }
}

/* Numbers [from, from + n) of a row of the weight. */
VEC_INLINE void row_of(const struct weight *w, int64_t row, int64_t from, int64_t n, rw_dtype dtype, void *to,
                       int64_t at)
{
    if (w->nf4) nf4_row(w, row * w->in + from, n, dtype, to, at);
    else int8_row(w, row, row * w->in + from, n, dtype, to, at);
}

static void decode_row(const struct weight *w, int64_t row, int64_t from, int64_t n, rw_dtype dtype, void *to,
                       int64_t at)
{
    switch (dtype) {
    case RW_F32: row_of(w, row, from, n, RW_F32, to, at); return;
    case RW_BF16: row_of(w, row, from, n, RW_BF16, to, at); return;
    case RW_F16: row_of(w, row, from, n, RW_F16, to, at); return;
    default: row_of(w, row, from, n, RW_F64, to, at); return;
    }
}

static struct weight weight_of(const rw_kernel *k)
{
    const struct rw_linear_quantized_attrs *const a = k->attrs;
    const struct rw_quantized_parts p = quantized_parts_of(a);
    const uint8_t *const words = k->in[1].data;
    return (struct weight){ a->kind == RW_NF4, a->in, words, words + p.scales, (const float *)(words + p.mean),
                            (const float *)(words + p.largest) };
}

/* Panel i, as it lies in the weight. */
static void decode(const rw_kernel *k, const struct quantized_panels *p, int64_t i)
{
    const struct rw_linear_quantized_attrs *const a = k->attrs;
    const struct weight w = weight_of(k);
    const int64_t width = quantized_width(p, i), first = i * p->width;
    const int64_t rows = a->turned ? p->depth : width, cols = a->turned ? width : p->depth;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (rows * cols >= PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++)
        decode_row(&w, a->turned ? r : first + r, a->turned ? first : 0, cols, k->in[0].dtype, k->workspace,
                   r * cols);
}

rw_status RW_ISA_NAME(rw_linear_panel_cpu)(const rw_kernel *k, int64_t c_row);

rw_status RW_ISA_NAME(rw_linear_quantized_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_linear_quantized_cpu)(const rw_kernel *k)
{
    const struct rw_linear_quantized_attrs *const a = k->attrs;
    const rw_dtype dtype = k->in[0].dtype;
    const size_t size = rw_dtype_size(dtype);
    const struct quantized_panels p = quantized_panels_of(a, k->in[0].layout, dtype, QUANTIZED_PANEL_CPU);
    for (int64_t i = 0; i < p.n; i++) {
        const rw_view *const b = k->n_inputs > 2 ? &k->in[2] : NULL;
        const rw_layout *const lies = b ? b->layout : NULL;
        const struct quantized_product q = quantized_product_of(&p, i, a->turned, k->in[0].layout, lies);
        const rw_view in[] = { { k->in[0].data, &q.x, dtype }, { k->workspace, &q.weight, dtype },
                               { b ? (char *)b->data + (size_t)q.first * size : NULL, &q.bias, dtype } };
        const rw_view out = { (char *)k->out[0].data + (size_t)q.first * size, k->out[0].layout, dtype };
        rw_kernel product = *k;
        product.in = in;
        product.out = &out;
        product.n_inputs = b ? 3 : 2;
        product.workspace = (char *)k->workspace + p.bytes;
        product.workspace_bytes = k->workspace_bytes - p.bytes;
        decode(k, &p, i);
        RW_CHECK(RW_ISA_NAME(rw_linear_panel_cpu)(&product, p.cols));
    }
    return RW_OK;
}
