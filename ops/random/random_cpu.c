/*
 * CPU kernels of the random ops. dropout and dropout_add: a vector of random words decides about a vector of elements;
 * the result may overwrite the inputs. Normal and uniform numbers: 64 words per draw, evaluated in double and rounded
 * to the type.
 */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/random/philox_vec.h"
#include "ops/random/random.h"
#include "ops/reduce/reduce.h"

/* ---- dropout ---- */

#define DROP_BLOCK 16384

struct drop {
    const rw_kernel *k;
    uint32_t threshold;
    double factor;
    const void *residual; /* for dropout_add; else NULL */
};

/* Elements [i, i + n) of the tensor, n <= PHILOX_WORDS, with their words. */
VEC_INLINE void drop_f(const struct drop *d, rw_dtype dtype, bool adds, const uint32_t *words, int64_t i, int64_t n)
{
    const void *const x = d->k->in[0].data;
    void *const y = d->k->out[0].data;
    for (int64_t j = 0; j < n; j += NF_LANES) {
        const ni keep = (ni)(*(const nu *)(words + j) >= d->threshold);
        const bool whole = n - j >= NF_LANES;
        const nf v = whole ? nf_get(x, dtype, i + j) : nf_get_some(x, dtype, i + j, n - j);
        nf kept = nf_select(keep, v * (float)d->factor, nf_all(0));
        if (adds) kept += whole ? nf_get(d->residual, dtype, i + j) : nf_get_some(d->residual, dtype, i + j, n - j);
        if (whole) nf_put(y, dtype, i + j, kept);
        else nf_put_some(y, dtype, i + j, n - j, kept);
    }
}

VEC_INLINE void drop_d(const struct drop *d, bool adds, const uint32_t *words, int64_t i, int64_t n)
{
    const double *const x = (const double *)d->k->in[0].data + i, *const r = adds ? (const double *)d->residual + i : x;
    double *const y = (double *)d->k->out[0].data + i;
    for (int64_t j = 0; j < n; j++) {
        const double kept = words[j] >= d->threshold ? x[j] * d->factor : 0;
        y[j] = adds ? r[j] + kept : kept;
    }
}

VEC_INLINE void drop_range(const struct drop *d, rw_dtype dtype, bool adds, int64_t from, int64_t n)
{
    uint32_t words[PHILOX_WORDS];
    for (int64_t i = from; i < from + n; i += PHILOX_WORDS) {
        const int64_t some = from + n - i < PHILOX_WORDS ? from + n - i : PHILOX_WORDS;
        philox_fill(d->k->ticket.seed, d->k->ticket.offset + (uint64_t)i / 4, words);
        if (dtype == RW_F64) drop_d(d, adds, words, i, some);
        else if (some == PHILOX_WORDS) drop_f(d, dtype, adds, words, i, PHILOX_WORDS);
        else drop_f(d, dtype, adds, words, i, some);
    }
}

#define BLOCK_FUNCTION(name, adds)                                                                                     \
    static void name(const struct drop *d, int64_t block)                                                              \
    {                                                                                                                  \
        const int64_t from = block * DROP_BLOCK, rest = d->k->out[0].layout->numel - from,                             \
                      n = rest < DROP_BLOCK ? rest : DROP_BLOCK;                                                       \
        if (d->k->out[0].dtype == RW_F64) drop_range(d, RW_F64, adds, from, n);                                        \
        else if (d->k->out[0].dtype == RW_BF16) drop_range(d, RW_BF16, adds, from, n);                                 \
        else if (d->k->out[0].dtype == RW_F16) drop_range(d, RW_F16, adds, from, n);                                   \
        else drop_range(d, RW_F32, adds, from, n);                                                                     \
    }

BLOCK_FUNCTION(drop_block, false)
BLOCK_FUNCTION(drop_block_and_add, true)

static struct drop drop_of(const rw_kernel *k, const void *residual)
{
    const struct rw_dropout_attrs *const a = k->attrs;
    return (struct drop){
        .k = k, .threshold = philox_threshold(a->p), .factor = 1 / (1 - a->p), .residual = residual
    };
}

static void drop_blocks(void *of, int64_t first, int64_t end)
{
    const struct drop *const d = of;
    for (int64_t b = first; b < end; b++) {
        if (d->residual) drop_block_and_add(d, b);
        else drop_block(d, b);
    }
}

static rw_status drop(const rw_kernel *k, const void *residual)
{
    const struct drop d = drop_of(k, residual);
    const int64_t numel = k->out[0].layout->numel;
    rw_team_for(rw_threads_for(k, numel), (numel + DROP_BLOCK - 1) / DROP_BLOCK, drop_blocks, &d);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_dropout_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_dropout_cpu)(const rw_kernel *k)
{
    return drop(k, NULL);
}

rw_status RW_ISA_NAME(rw_dropout_add_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_dropout_add_cpu)(const rw_kernel *k)
{
    return drop(k, k->in[1].data);
}

/* Elements [at, at + n); the first may be inside a block of words. */
VEC_INLINE void drop_any(const struct drop *d, rw_dtype dtype, int64_t at, int64_t n)
{
    uint32_t words[PHILOX_WORDS];
    const int64_t within = at % 4, rest = within ? 4 - within : 0, head = rest < n ? rest : n;
    if (head) {
        philox_fill(d->k->ticket.seed, d->k->ticket.offset + (uint64_t)at / 4, words);
        memmove(words, words + within, (size_t)head * sizeof *words);
        if (dtype == RW_F64) drop_d(d, false, words, at, head);
        else drop_f(d, dtype, false, words, at, head);
    }
    drop_range(d, dtype, false, at + head, n - head);
}

static void make_dropped(const rw_kernel *k, int64_t at, int64_t n)
{
    const struct drop d = drop_of(k, NULL);
    switch (k->out[0].dtype) {
    case RW_F64: drop_any(&d, RW_F64, at, n); return;
    case RW_BF16: drop_any(&d, RW_BF16, at, n); return;
    case RW_F16: drop_any(&d, RW_F16, at, n); return;
    default: drop_any(&d, RW_F32, at, n); return;
    }
}

rw_status RW_ISA_NAME(rw_sum_rows_cpu)(const rw_kernel *k, rw_reduce_make make, int addend);
rw_status RW_ISA_NAME(rw_dropout_columns_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_dropout_columns_cpu)(const rw_kernel *k)
{
    return RW_ISA_NAME(rw_sum_rows_cpu)(k, make_dropped, 1);
}

/* ---- normal and uniform numbers ---- */

#define PAIRS (PHILOX_WORDS / 2)

/* sin and cos of pi x */
VEC_INLINE void sincospi(nd x, nd *ret_sin, nd *ret_cos)
{
#if defined(RW_ISA_IS_V4)
    const Sleef___m512d_2 r = Sleef_sincospid8_u05((__m512d)x);
    *ret_sin = (nd)r.x, *ret_cos = (nd)r.y;
#elif defined(RW_ISA_IS_V3)
    const Sleef___m256d_2 r = Sleef_sincospid4_u05((__m256d)x);
    *ret_sin = (nd)r.x, *ret_cos = (nd)r.y;
#elif defined(__x86_64__)
    const Sleef___m128d_2 r = Sleef_sincospid2_u05((__m128d)x);
    *ret_sin = (nd)r.x, *ret_cos = (nd)r.y;
#elif defined(__aarch64__)
    const Sleef_float64x2_t_2 r = Sleef_sincospid2_u05((float64x2_t)x);
    *ret_sin = (nd)r.x, *ret_cos = (nd)r.y;
#else
    for (int i = 0; i < ND_LANES; i++) {
        const Sleef_double2 r = Sleef_sincospi_u05(x[i]);
        (*ret_sin)[i] = r.x, (*ret_cos)[i] = r.y;
    }
#endif
}

/* Box-Muller transform: words 2i and 2i + 1 give elements 2i (cosine) and 2i + 1 (sine). */
static void normal(const uint32_t *words, double mean, double std, double *z)
{
    double u[PAIRS], v[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        u[i] = ((double)words[2 * i] + 1) * 0x1p-32; /* never 0 */
        v[i] = (double)words[2 * i + 1] * 0x1p-31;   /* in units of pi */
    }
    for (int i = 0; i < PAIRS; i += ND_LANES) {
        const nd r = std * nd_sqrt(-2.0 * nd_log(*(const nd *)(u + i)));
        nd s, c;
        sincospi(*(const nd *)(v + i), &s, &c);
        const nd even = mean + r * c, odd = mean + r * s;
        for (int l = 0; l < ND_LANES; l++) {
            z[2 * (i + l)] = even[l];
            z[2 * (i + l) + 1] = odd[l];
        }
    }
}

static void uniform(const uint32_t *words, double lo, double hi, double *z)
{
    const double width = hi == lo ? 0 : hi - lo; /* even if the constant is infinite */
    for (int i = 0; i < PHILOX_WORDS; i++) z[i] = lo + width * ((double)words[i] * 0x1p-32);
}

static void put(void *data, rw_dtype dtype, int64_t at, int64_t n, const double *z)
{
    for (int64_t i = 0; dtype == RW_F64 && i < n; i++) ((double *)data)[at + i] = z[i];
    for (int64_t i = 0; dtype == RW_F32 && i < n; i++) ((float *)data)[at + i] = (float)z[i];
    for (int64_t i = 0; dtype == RW_BF16 && i < n; i++) ((uint16_t *)data)[at + i] = f32_to_bf16((float)z[i]);
    for (int64_t i = 0; dtype == RW_F16 && i < n; i++) ((uint16_t *)data)[at + i] = f32_to_f16((float)z[i]);
}

/* Rounding to the type may give hi, which is outside of the interval: replaces it by the next number below. */
static void keep_below(void *data, rw_dtype dtype, int64_t at, int64_t n, double lo, double hi)
{
    if (!(hi > lo)) return;
    for (int64_t i = at; i < at + n; i++) {
        if (dtype == RW_F64) {
            double *const x = (double *)data + i;
            if (*x >= hi) *x = nextafter(*x, -INFINITY);
        } else if (dtype == RW_F32) {
            float *const x = (float *)data + i;
            if ((double)*x >= hi) *x = nextafterf(*x, -INFINITY);
        } else if ((double)f_get(data, dtype, i) >= hi) {
            uint16_t *const x = (uint16_t *)data + i;
            *x = *x == 0 ? 0x8001 : *x & 0x8000 ? *x + 1 : *x - 1;
        }
    }
}

#define FILL_BLOCK 4096

static void fill_block(const struct rw_random_fill *f, uint64_t seed, uint64_t offset, int64_t from)
{
    uint32_t words[PHILOX_WORDS];
    double z[PHILOX_WORDS];
    const int64_t end = f->n - from < FILL_BLOCK ? f->n : from + FILL_BLOCK;
    for (int64_t i = from; i < end; i += PHILOX_WORDS) {
        const int64_t n = end - i < PHILOX_WORDS ? end - i : PHILOX_WORDS;
        philox_fill(seed, offset + (uint64_t)i / 4, words);
        if (f->normal) normal(words, f->a, f->b, z);
        else uniform(words, f->a, f->b, z);
        put(f->data, f->dtype, i, n, z);
        if (!f->normal) keep_below(f->data, f->dtype, i, n, f->a, f->b);
    }
}

static void fill_blocks(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    for (int64_t b = first; b < end; b++)
        fill_block(k->attrs, k->ticket.seed, k->ticket.offset, b * FILL_BLOCK);
}

rw_status RW_ISA_NAME(rw_random_fill_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_random_fill_cpu)(const rw_kernel *k)
{
    const struct rw_random_fill *const f = k->attrs;
    rw_team_for(rw_threads_for(k, 8 * f->n), (f->n + FILL_BLOCK - 1) / FILL_BLOCK, fill_blocks, k);
    return RW_OK;
}
