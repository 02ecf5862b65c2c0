/* CPU kernels of quantize and dequantize. amax is a maximum, so it does not depend on the order. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/float8/decode.h"
#include "ops/float8/fp8_scaling_ops.h"

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

/* ---- counts for a monitor: enum rw_codes_number ---- */

/* NULL: not requested. */
static uint64_t *counts_of(const rw_kernel *k)
{
    return k->n_outputs > 3 ? k->out[3].data : NULL;
}

static void raise_to(uint64_t *to, uint64_t x)
{
    uint64_t seen = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (x > seen && !__atomic_compare_exchange_n(to, &seen, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

/* Adds from several threads at once: integers, so the order does not matter. */
static void add_counts(uint64_t *to, const uint64_t *x)
{
    for (int i = 0; i <= RW_CODES_MAX; i++) raise_to(&to[i], x[i]);
    for (int i = RW_CODES_SATURATED; i < RW_CODES_NUMBERS; i++) __atomic_fetch_add(&to[i], x[i], __ATOMIC_RELAXED);
}

/* The counts of a thread; flushed numbers are counted lane by lane. */
struct met {
    uint64_t x[RW_CODES_NUMBERS];
    nu flushed;
};

static void add_met(uint64_t *to, struct met *m)
{
    for (int l = 0; l < NF_LANES; l++) m->x[RW_CODES_FLUSHED] += m->flushed[l];
    add_counts(to, m->x);
}

/* Counts the elements whose magnitude is above `above` and at most `most`. */
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

/* The largest finite magnitude whose product with `by` is at most `most`; products of larger ones are larger. */
static uint32_t largest_within(float by, float most)
{
    if (!(by > 0)) return 0;
    uint32_t m = rw_f8_magnitude(most / by);
    if (!(rw_f8_bits(by) & 0x7fffffu) && m < RW_F8_INFINITY) return m; /* a power of two: nothing was rounded */
    while (m && !(rw_f8_float(m) * by <= most)) m--;
    while (m < RW_F8_INFINITY - 1 && rw_f8_float(m + 1) * by <= most) m++;
    return m;
}

/* Counts numbers with one scale while they are in the cache. Half of the smallest code rounds to zero (to even). */
static void count_codes(const rw_view *x, int64_t from, int64_t n, float by, bool e5m2, struct met *ret)
{
    const uint32_t gone = largest_within(by, e5m2 ? 0x1p-17f : 0x1p-10f);
    ret->x[RW_CODES_ELEMENTS] += (uint64_t)n;
    if (gone) count_all(x, from, n, 0, gone, &ret->flushed);
}

/* With a scale from their own amax none saturates, except by the rounding of the scale. */
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
    if (lowest > ret[RW_CODES_MIN]) ret[RW_CODES_MIN] = lowest;
    if (most > ret[RW_CODES_MAX]) ret[RW_CODES_MAX] = most;
}

/* ---- encoding ---- */

/* Encodes a part, whose amax is known, and adds its counts. */
static void encode_part(const rw_kernel *k, int64_t p, float by, uint64_t *counts)
{
    const int64_t n = k->in[0].layout->numel, from = p * RW_QUANTIZE_PART, own = least(RW_QUANTIZE_PART, n - from);
    const bool e5m2 = k->out[0].dtype == RW_F8_E5M2;
    struct met met = { 0 };
    encode_all(&k->in[0], &k->out[0], from, own, by);
    if (!counts) return;
    count_codes(&k->in[0], from, own, by, e5m2, &met);
    count_saturated(&k->in[0], from, own, ((const uint32_t *)k->workspace)[p], by, e5m2, &met);
    add_met(counts, &met);
}

/* Parts of a tensor with one scale. */
struct parts {
    const rw_kernel *k;
    const float *by; /* NULL: not yet known, so nothing is encoded */
};

static void encode_parts(void *of, int64_t first, int64_t end)
{
    const struct parts *const s = of;
    for (int64_t p = first; p < end; p++) encode_part(s->k, p, *s->by, counts_of(s->k));
}

static void look_at_parts(void *of, int64_t first, int64_t end)
{
    const struct parts *const s = of;
    const rw_view *const x = &s->k->in[0];
    for (int64_t p = first; p < end; p++) {
        const int64_t from = p * RW_QUANTIZE_PART;
        ((uint32_t *)s->k->workspace)[p] = most_of(x, from, least(RW_QUANTIZE_PART, x->layout->numel - from));
        if (s->by) encode_part(s->k, p, *s->by, counts_of(s->k));
    }
}

/* The amax of a tensor. If the scale is given, encodes in the same pass. */
static uint32_t most_of_tensor(const rw_kernel *k, const float *given)
{
    const int64_t n = k->in[0].layout->numel, parts = rw_quantize_parts(n);
    const uint32_t *const part = k->workspace;
    uint32_t m = 0;
    rw_team_for(rw_threads_for(k, n), parts, look_at_parts, &(struct parts){ k, given });
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
    if (!given) rw_team_for(rw_threads_for(k, n), parts, encode_parts, &(struct parts){ k, &by });
}

/* Quantizes one block: rows [row, row + high) of columns [column, column + wide). Adds its counts if they are
   requested. */
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

struct scaled_blocks {
    const rw_kernel *k;
    struct rw_scales s;
};

static void quantize_some(void *of, int64_t first, int64_t end)
{
    const struct scaled_blocks *const b = of;
    uint64_t *const counts = counts_of(b->k);
    struct met met = { 0 };
    for (int64_t block = first; block < end; block++)
        quantize_block(b->k, b->k->attrs, &b->s, block, counts ? &met : NULL);
    if (counts) add_met(counts, &met);
}

static void quantize_blocks(const rw_kernel *k, const struct rw_quantize_attrs *a)
{
    const struct scaled_blocks b = { k, rw_scales_of(k->in[0].layout, a->scaling) };
    rw_team_for(rw_threads_for(k, k->in[0].layout->numel), b.s.down * b.s.across, quantize_some, &b);
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

struct decoding {
    const rw_kernel *k;
    float scale;
    uint16_t table[128];
};

static void decode_by_table(void *of, int64_t first, int64_t end)
{
    const struct decoding *const d = of;
    const rw_view *const x = &d->k->in[0], *const y = &d->k->out[0];
    for (int64_t p = first; p < end; p++) {
        const int64_t from = p * RW_QUANTIZE_PART, own = least(RW_QUANTIZE_PART, x->layout->numel - from);
        f8_decode_by_table((const uint8_t *)x->data + from, (uint16_t *)y->data + from, own, d->table);
    }
}

static void decode_parts(void *of, int64_t first, int64_t end)
{
    const struct decoding *const d = of;
    const rw_view *const x = &d->k->in[0], *const y = &d->k->out[0];
    const bool e5m2 = x->dtype == RW_F8_E5M2;
    for (int64_t p = first; p < end; p++) {
        const int64_t from = p * RW_QUANTIZE_PART, own = least(RW_QUANTIZE_PART, x->layout->numel - from);
        const uint8_t *const codes = (const uint8_t *)x->data + from;
        if (y->dtype == RW_BF16) f8_decode(codes, e5m2, (uint16_t *)y->data + from, RW_BF16, own, d->scale);
        else decode_all(x, y, from, own, d->scale);
    }
}

static void dequantize_tensor(const rw_kernel *k)
{
    const int64_t n = k->in[0].layout->numel, parts = rw_quantize_parts(n);
    struct decoding d = { .k = k, .scale = *(const float *)k->in[1].data };
    const bool by_table = is_half(k->out[0].dtype) && f8_has_table(d.scale);
    if (by_table) f8_table(k->in[0].dtype == RW_F8_E5M2, k->out[0].dtype, d.scale, d.table);
    rw_team_for(rw_threads_for(k, n), parts, by_table ? decode_by_table : decode_parts, &d);
}

struct decoded_blocks {
    const rw_kernel *k;
    struct f8_matrix m;
    int64_t scaling;
};

/* Decodes rows, block by block. */
static void decode_rows(void *of, int64_t first, int64_t end)
{
    const struct decoded_blocks *const d = of;
    const rw_view *const y = &d->k->out[0];
    const struct rw_scales *const s = &d->m.s;
    for (int64_t i = first; i < end; i++) {
        const int64_t row = i / s->across, column = i % s->across * s->wide, n = least(s->wide, s->columns - column);
        const int64_t from = row * s->columns + column;
        if (y->dtype == RW_BF16) f8_matrix_row(&d->m, row, column, n, (uint16_t *)y->data + from);
        else decode_all(&d->k->in[0], y, from, n, f8_scale_at(&d->m, d->scaling, row, column));
    }
}

static void dequantize_blocks(const rw_kernel *k, int64_t scaling)
{
    const struct decoded_blocks d = { k, f8_matrix_of(&k->in[0], &k->in[1], scaling), scaling };
    rw_team_for(rw_threads_for(k, k->in[0].layout->numel), d.m.s.rows * d.m.s.across, decode_rows, &d);
}

rw_status RW_ISA_NAME(rw_dequantize_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_dequantize_cpu)(const rw_kernel *k)
{
    const struct rw_quantize_attrs *const a = k->attrs;
    if (a->scaling == RW_SCALING_TENSOR) dequantize_tensor(k);
    else dequantize_blocks(k, a->scaling);
    return RW_OK;
}
