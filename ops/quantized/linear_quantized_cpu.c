/*
 * CPU kernels of products with quantized weights: parts of the weight are decoded when the product reaches them, or,
 * for the matrix unit, while they are packed. x is read in place.
 */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/matmul/gemm_descriptor.h"
#include "ops/quantized/linear_quantized.h"

static const float nf4_numbers[] = { RW_NF4_NUMBERS };
static const float dynamic_numbers[] = { RW_DYNAMIC_NUMBERS };

struct weight {
    bool nf4;
    int64_t in;
    const uint8_t *codes, *scales;
    const float *mean, *largest;
};

/* Decodes one vector of NF4 elements; `codes` is at a whole byte. */
#if defined(RW_ISA_IS_V4) || defined(RW_ISA_IS_V3)
VEC_INLINE __m128i nf4_bytes(const uint8_t *codes)
{
    const __m128i both = _mm_loadl_epi64((const __m128i *)codes), low = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(both, 4), low), _mm_and_si128(both, low));
}
#endif

/* Decodes 16 NF4 elements with one scale. */
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
        to[half] = (nf)_mm256_blendv_ps(_mm256_permutevar8x32_ps(below, i), _mm256_permutevar8x32_ps(above, i), upper) *
                   scale;
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

#if defined(RW_ISA_IS_V4)
/* Decodes 32 elements to 16 bits, by the 16 possible values of their block. */
VEC_INLINE __m512i nf4_halves(const uint8_t *codes, __m512i numbers)
{
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
    const __m512i second = _mm512_slli_epi32(_mm512_and_si512(both, _mm512_set1_epi32(15)), 16);
    return _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_srli_epi32(both, 4), second), numbers);
}
#endif

/* Decodes elements [from, to) of the weight, all in one block. */
VEC_INLINE void nf4_block(const struct weight *w, int64_t from, int64_t to_end, rw_dtype dtype, void *to, int64_t at)
{
    const int64_t block = from / RW_NF4_BLOCK;
    const float deviation = dynamic_numbers[w->scales[block]] * w->largest[block / RW_NF4_GROUP];
    const nf scale = nf_all(deviation + *w->mean);
    int64_t i = from;
#if defined(RW_ISA_IS_V4)
    if (dtype == RW_BF16 || dtype == RW_F16) {
        const nh table = nf_to_half(*(const nf *)nf4_numbers * scale, dtype);
        const __m512i numbers = _mm512_castsi256_si512((__m256i)table);
        for (; i + 32 <= to_end; i += 32)
            _mm512_storeu_si512((uint16_t *)to + at + i - from, nf4_halves(w->codes + i / 2, numbers));
    }
#endif
    for (; i < to_end; i += 16) {
        nf x[16 / NF_LANES];
        nf4_decode_16(w->codes + i / 2, scale, x);
        put_16(to, dtype, at + i - from, x);
    }
}

/* first and n are multiples of 16. */
VEC_INLINE void nf4_row(const struct weight *w, int64_t first, int64_t n, rw_dtype dtype, void *to, int64_t at)
{
    for (int64_t i = 0; i < n;) {
        const int64_t left = RW_NF4_BLOCK - (first + i) % RW_NF4_BLOCK, own = left < n - i ? left : n - i;
        nf4_block(w, first + i, first + i + own, dtype, to, at + i);
        i += own;
    }
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

#if defined(RW_ISA_IS_V4)
/* Can the processor's own conversion to bfloat16 be used? It flushes subnormal numbers to 0; with such a scale there
   are none. */
static bool rounds_by_itself(float largest)
{
    return __builtin_cpu_supports("avx512bf16") && largest >= 0x1p-100f && largest <= 0x1p100f;
}

__attribute__((target("avx512bf16"))) static void int8_to_bf16(const int8_t *codes, int64_t n, float largest,
                                                               uint16_t *to)
{
    const __m512 scale = _mm512_set1_ps(largest), step = _mm512_set1_ps(RW_INT8_STEP);
    for (int64_t i = 0; i + 32 <= n; i += 32) {
        __m512 x[2];
        for (int half = 0; half < 2; half++) {
            const __m128i c = _mm_loadu_si128((const __m128i *)(codes + i + 16 * half));
            x[half] = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(c)), scale), step);
        }
        _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
    }
}
#endif

/* Decodes n INT8 elements of a row with its scale. */
VEC_INLINE void int8_row(const struct weight *w, int64_t row, int64_t first, int64_t n, rw_dtype dtype, void *to,
                         int64_t at)
{
    const int8_t *const codes = (const int8_t *)w->codes + first;
    const float largest = w->largest[row];
    int64_t i = 0;
#if defined(RW_ISA_IS_V4)
    if (dtype == RW_BF16 && rounds_by_itself(largest)) {
        int8_to_bf16(codes, n, largest, (uint16_t *)to + at);
        i = n / 32 * 32;
    }
#endif
    for (; dtype != RW_F64 && i + NF_LANES <= n; i += NF_LANES)
        nf_put(to, dtype, at + i, int8_decode(codes + i) * nf_all(largest) * nf_all(RW_INT8_STEP));
    for (; i < n; i++) {
        const float x = (float)codes[i] * largest * RW_INT8_STEP;
        if (dtype == RW_F64) ((double *)to)[at + i] = x;
        else f_put(to, dtype, at + i, x);
    }
}

/* Decodes elements [from, from + n) of a row of the weight. */
VEC_INLINE void row_of(const struct weight *w, int64_t row, int64_t from, int64_t n, rw_dtype dtype, void *to,
                       int64_t at)
{
    if (w->nf4) nf4_row(w, row * w->in + from, n, dtype, to, at);
    else int8_row(w, row, row * w->in + from, n, dtype, to, at);
}

static struct weight weight_of(const rw_kernel *k)
{
    const struct rw_linear_quantized_attrs *const a = k->attrs;
    const struct rw_quantized_parts p = quantized_parts_of(a);
    const uint8_t *const words = k->in[1].data;
    return (struct weight){ a->kind == RW_NF4,
                            a->in,
                            words,
                            words + p.scales,
                            (const float *)(words + p.mean),
                            (const float *)(words + p.largest) };
}

/* Generates a part of a row of the weight, for struct gemm_source. */
#define MAKE(name, TYPE)                                                                                               \
    static void make_##name(const void *of, int64_t row, int64_t col, int64_t n, void *to)                             \
    {                                                                                                                  \
        row_of(of, row, col, n, TYPE, to, 0);                                                                          \
    }
MAKE(f32, RW_F32)
MAKE(bf16, RW_BF16)
MAKE(f16, RW_F16)
MAKE(f64, RW_F64)

/* Describes the product, and runs it with the weight as a generated operand. */
rw_status RW_ISA_NAME(rw_linear_quantized_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_linear_quantized_cpu)(const rw_kernel *k)
{
    static void (*const make[])(const void *, int64_t, int64_t, int64_t, void *) = {
        [RW_F32] = make_f32, [RW_BF16] = make_bf16, [RW_F16] = make_f16, [RW_F64] = make_f64
    };
    const rw_dtype dtype = k->in[0].dtype;
    const struct weight w = weight_of(k);
    struct gemm g;
    rw_quantized_gemm(&g, k->attrs, k->in[0].layout, k->n_inputs > 2, dtype);
    g.a.data = k->in[0].data;
    g.from_b.make = make[dtype];
    g.from_b.of = &w;
    g.bias = g.has_bias ? k->in[2].data : NULL;
    g.c = k->out[0].data;
    return rw_gemm_run(k, &g, &RW_ISA_NAME(rw_gemm_loops));
}
