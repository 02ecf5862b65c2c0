/* CPU kernels of quantize and dequantize. amax is a largest number: no order shows in it. */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/float8/decode.h"

#include <string.h>

VEC_INLINE uint32_t most(const void *x, rw_dtype dtype, int64_t from, int64_t n)
{
    uint32_t m = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t a = rw_f8_magnitude(f_get(x, dtype, from + i));
        m = a > m ? a : m;
    }
    return m;
}

VEC_INLINE void encode(const void *x, rw_dtype dtype, uint8_t *y, int64_t from, int64_t n, float by, bool e5m2)
{
    for (int64_t i = from; i < from + n; i++) y[i] = rw_f8_encode(f_get(x, dtype, i) * by, e5m2);
}

static uint32_t most_of(const rw_view *x, int64_t from, int64_t n)
{
    switch (x->dtype) {
    case RW_BF16: return most(x->data, RW_BF16, from, n);
    case RW_F16: return most(x->data, RW_F16, from, n);
    default: return most(x->data, RW_F32, from, n);
    }
}

static void encode_all(const rw_view *x, const rw_view *y, int64_t from, int64_t n, float by)
{
    const bool e5m2 = y->dtype == RW_F8_E5M2;
    switch (x->dtype) {
    case RW_BF16: encode(x->data, RW_BF16, y->data, from, n, by, e5m2); return;
    case RW_F16: encode(x->data, RW_F16, y->data, from, n, by, e5m2); return;
    default: encode(x->data, RW_F32, y->data, from, n, by, e5m2);
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- counting on the way: enum rw_codes_number ---- */

/* NULL: nobody asked. */
static uint64_t *counts_of(const rw_kernel *k)
{
    return k->n_outputs > 3 ? k->out[3].data : NULL;
}

static void add_counts(uint64_t *to, const uint64_t *x)
{
    for (int i = 0; i <= RW_CODES_MOST; i++) to[i] = x[i] > to[i] ? x[i] : to[i];
    for (int i = RW_CODES_SATURATED; i < RW_CODES_NUMBERS; i++) to[i] += x[i];
}

/* What a thread has met, the numbers that were flushed lane by lane. */
struct met {
    uint64_t x[RW_CODES_NUMBERS];
    nu flushed;
};

static void add_met(uint64_t *to, struct met *m)
{
    for (int l = 0; l < NF_LANES; l++) m->x[RW_CODES_FLUSHED] += m->flushed[l];
    add_counts(to, m->x);
}

/* Those whose magnitude is above `above` and at most `most`. */
VEC_INLINE void count(const void *x, rw_dtype dtype, int64_t from, int64_t n, uint32_t above, uint32_t most, nu *ret)
{
    nu sum = *ret;
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES)
        sum -= (nu)(((nu)nf_get(x, dtype, from + i) & 0x7fffffffu) - (above + 1) < (nu){ 0 } + (most - above));
    for (; i < n; i++) sum[0] += rw_f8_magnitude(f_get(x, dtype, from + i)) - (above + 1) < most - above;
    *ret = sum;
}

static void count_all(const rw_view *x, int64_t from, int64_t n, uint32_t above, uint32_t most, nu *ret)
{
    switch (x->dtype) {
    case RW_BF16: count(x->data, RW_BF16, from, n, above, most, ret); return;
    case RW_F16: count(x->data, RW_F16, from, n, above, most, ret); return;
    default: count(x->data, RW_F32, from, n, above, most, ret);
    }
}

/* The largest finite magnitude that is at most `most` when it is multiplied: what is larger comes out larger. */
static uint32_t largest_within(float by, float most)
{
    if (!(by > 0)) return 0;
    uint32_t m = rw_f8_magnitude(most / by);
    if (!(rw_f8_bits(by) & 0x7fffffu) && m < RW_F8_INFINITY) return m; /* a power of two: nothing was rounded */
    while (m && !(rw_f8_float(m) * by <= most)) m--;
    while (m < RW_F8_INFINITY - 1 && rw_f8_float(m + 1) * by <= most) m++;
    return m;
}

/* Numbers with one scale, while they are near. Half of the smallest code is rounded to zero: to even. */
static void count_codes(const rw_view *x, int64_t from, int64_t n, float by, bool e5m2, struct met *ret)
{
    const uint32_t gone = largest_within(by, e5m2 ? 0x1p-17f : 0x1p-10f);
    ret->x[RW_CODES_ELEMENTS] += (uint64_t)n;
    if (gone) count_all(x, from, n, 0, gone, &ret->flushed);
}

/* A scale of their own amax saturates none of them, but for what rounding does to it. */
static void count_saturated(const rw_view *x, int64_t from, int64_t n, uint32_t amax, float by, bool e5m2,
                            struct met *ret)
{
    if (rw_f8_float(amax) * by <= rw_f8_largest(e5m2) || !(by > 0)) return;
    const uint32_t within = largest_within(by, rw_f8_largest(e5m2));
    nu lanes = { 0 };
    if (amax <= within) return;
    count_all(x, from, n, within, RW_F8_INFINITY - 1, &lanes);
    for (int l = 0; l < NF_LANES; l++) ret->x[RW_CODES_SATURATED] += lanes[l];
}

static void count_scale(uint32_t amax, float by, uint64_t *ret)
{
    const uint64_t lowest = UINT32_MAX - rw_f8_bits(by), most = rw_f8_bits(by);
    if (amax > ret[RW_CODES_AMAX]) ret[RW_CODES_AMAX] = amax;
    if (!rw_codes_have_scale(amax)) return;
    if (lowest > ret[RW_CODES_LEAST]) ret[RW_CODES_LEAST] = lowest;
    if (most > ret[RW_CODES_MOST]) ret[RW_CODES_MOST] = most;
}

/* ---- codes ---- */

/* A part, whose amax is known; its counts are added. */
static void encode_part(const rw_kernel *k, int64_t p, float by, uint64_t *counts)
{
    const int64_t n = k->in[0].layout->numel, from = p * RW_QUANTIZE_PART, own = least(RW_QUANTIZE_PART, n - from);
    const bool e5m2 = k->out[0].dtype == RW_F8_E5M2;
    struct met met = { 0 };
    encode_all(&k->in[0], &k->out[0], from, own, by);
    if (!counts) return;
    count_codes(&k->in[0], from, own, by, e5m2, &met);
    count_saturated(&k->in[0], from, own, ((const uint32_t *)k->workspace)[p], by, e5m2, &met);
#pragma omp critical(rw_codes)
    add_met(counts, &met);
}

/* Where the scale is given, codes are made on the way. */
static uint32_t most_of_tensor(const rw_kernel *k, const float *given)
{
    const rw_view *const x = &k->in[0];
    const int64_t n = x->layout->numel, parts = rw_quantize_parts(n);
    uint32_t *const part = k->workspace;
    uint32_t m = 0;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (n >= RW_PARALLEL_FROM)
    for (int64_t p = 0; p < parts; p++) {
        part[p] = most_of(x, p * RW_QUANTIZE_PART, least(RW_QUANTIZE_PART, n - p * RW_QUANTIZE_PART));
        if (given) encode_part(k, p, *given, counts_of(k));
    }
    for (int64_t p = 0; p < parts; p++) m = part[p] > m ? part[p] : m;
    return m;
}

static void quantize_tensor(const rw_kernel *k, const struct rw_quantize_attrs *a)
{
    const rw_view *const x = &k->in[0];
    const int64_t n = x->layout->numel, parts = rw_quantize_parts(n);
    const float *const given = k->n_inputs == 2 ? k->in[1].data : NULL;
    const uint32_t m = most_of_tensor(k, given);
    const bool e5m2 = k->out[0].dtype == RW_F8_E5M2;
    const float by = given ? *given : rw_f8_scale_of_amax(m, e5m2, a->power_of_two != 0);
    *(float *)k->out[1].data = 1 / by;
    *(float *)k->out[2].data = rw_f8_float(m);
    if (counts_of(k)) count_scale(m, by, counts_of(k));
    if (given) return;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (n >= RW_PARALLEL_FROM)
    for (int64_t p = 0; p < parts; p++) encode_part(k, p, by, counts_of(k));
}

/* One block: rows [row, row + high) of columns [column, column + wide). Its counts are added, where anybody asks. */
static void quantize_block(const rw_kernel *k, const struct rw_quantize_attrs *a, const struct rw_scales *s,
                           int64_t block, struct met *counts)
{
    const int64_t row = block / s->across * s->high, column = block % s->across * s->wide;
    const int64_t high = least(s->high, s->rows - row), wide = least(s->wide, s->columns - column);
    const bool e5m2 = k->out[0].dtype == RW_F8_E5M2;
    uint32_t m = 0;
    float by;
    for (int64_t r = row; r < row + high; r++) {
        const uint32_t own = most_of(&k->in[0], r * s->columns + column, wide);
        m = own > m ? own : m;
    }
    if (a->scaling == RW_SCALING_MX) {
        const uint8_t code = rw_e8m0_of_amax(m, e5m2);
        ((uint8_t *)k->out[1].data)[block] = code;
        by = rw_e8m0_inverse(code);
    } else {
        by = rw_f8_scale_of_amax(m, e5m2, a->power_of_two != 0);
        ((float *)k->out[1].data)[block] = 1 / by;
    }
    ((float *)k->out[2].data)[block] = rw_f8_float(m);
    for (int64_t r = row; r < row + high; r++) encode_all(&k->in[0], &k->out[0], r * s->columns + column, wide, by);
    if (!counts) return;
    count_scale(m, by, counts->x);
    for (int64_t r = row; r < row + high; r++) {
        count_codes(&k->in[0], r * s->columns + column, wide, by, e5m2, counts);
        count_saturated(&k->in[0], r * s->columns + column, wide, m, by, e5m2, counts);
    }
}

static void quantize_blocks(const rw_kernel *k, const struct rw_quantize_attrs *a)
{
    const struct rw_scales s = rw_scales_of(k->in[0].layout, a->scaling);
    uint64_t *const counts = counts_of(k);
#pragma omp parallel num_threads(k->threads) if (k->in[0].layout->numel >= RW_PARALLEL_FROM)
    {
        struct met met = { 0 };
#pragma omp for schedule(static)
        for (int64_t block = 0; block < s.down * s.across; block++)
            quantize_block(k, a, &s, block, counts ? &met : NULL);
        if (counts) {
#pragma omp critical(rw_codes)
            add_met(counts, &met);
        }
    }
}

rw_status RW_ISA_NAME(rw_quantize_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_quantize_cpu)(const rw_kernel *k)
{
    const struct rw_quantize_attrs *const a = k->attrs;
    if (counts_of(k)) memset(counts_of(k), 0, RW_CODES_NUMBERS * sizeof(uint64_t));
    if (a->scaling == RW_SCALING_TENSOR) quantize_tensor(k, a);
    else quantize_blocks(k, a);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_note_counts_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_note_counts_cpu)(const rw_kernel *k)
{
    const uint32_t *const row = k->attrs;
    uint64_t *const noted = k->out[0].data;
    for (int i = 0; i < k->n_inputs - 1; i++) add_counts(noted + row[i] * RW_CODES_NUMBERS, k->in[i].data);
    return RW_OK;
}

static void decode_all(const rw_view *x, const rw_view *y, int64_t from, int64_t n, float scale)
{
    const bool e5m2 = x->dtype == RW_F8_E5M2;
    const uint8_t *const codes = (const uint8_t *)x->data + from;
    if (y->dtype == RW_F16) f8_decode(codes, e5m2, (uint16_t *)y->data + from, RW_F16, n, scale);
    else f8_decode(codes, e5m2, (float *)y->data + from, RW_F32, n, scale);
}

static void dequantize_by_table(const rw_kernel *k, float scale)
{
    const rw_view *const x = &k->in[0], *const y = &k->out[0];
    const int64_t n = x->layout->numel, parts = rw_quantize_parts(n);
    uint16_t table[128];
    f8_table(x->dtype == RW_F8_E5M2, y->dtype, scale, table);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (n >= RW_PARALLEL_FROM)
    for (int64_t p = 0; p < parts; p++) {
        const int64_t from = p * RW_QUANTIZE_PART;
        f8_decode_by_table((const uint8_t *)x->data + from, (uint16_t *)y->data + from,
                           least(RW_QUANTIZE_PART, n - from), table);
    }
}

static void dequantize_tensor(const rw_kernel *k)
{
    const int64_t n = k->in[0].layout->numel, parts = rw_quantize_parts(n);
    const float scale = *(const float *)k->in[1].data;
    const bool e5m2 = k->in[0].dtype == RW_F8_E5M2;
    if (is_half(k->out[0].dtype) && f8_has_table(scale)) {
        dequantize_by_table(k, scale);
        return;
    }
#pragma omp parallel for num_threads(k->threads) schedule(static) if (n >= RW_PARALLEL_FROM)
    for (int64_t p = 0; p < parts; p++) {
        const int64_t from = p * RW_QUANTIZE_PART, own = least(RW_QUANTIZE_PART, n - from);
        const uint8_t *const x = (const uint8_t *)k->in[0].data + from;
        if (k->out[0].dtype == RW_BF16) f8_decode(x, e5m2, (uint16_t *)k->out[0].data + from, RW_BF16, own, scale);
        else decode_all(&k->in[0], &k->out[0], from, own, scale);
    }
}

static void dequantize_blocks(const rw_kernel *k, int64_t scaling)
{
    const struct f8_matrix m = f8_matrix_of(&k->in[0], &k->in[1], scaling);
    const struct rw_scales *const s = &m.s;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (k->in[0].layout->numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < s->rows * s->across; i++) {
        const int64_t row = i / s->across, column = i % s->across * s->wide, n = least(s->wide, s->columns - column);
        const int64_t from = row * s->columns + column;
        if (k->out[0].dtype == RW_BF16) f8_matrix_row(&m, row, column, n, (uint16_t *)k->out[0].data + from);
        else decode_all(&k->in[0], &k->out[0], from, n, f8_scale_at(&m, scaling, row, column));
    }
}

rw_status RW_ISA_NAME(rw_dequantize_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_dequantize_cpu)(const rw_kernel *k)
{
    const struct rw_quantize_attrs *const a = k->attrs;
    if (a->scaling == RW_SCALING_TENSOR) dequantize_tensor(k);
    else dequantize_blocks(k, a->scaling);
    return RW_OK;
}
