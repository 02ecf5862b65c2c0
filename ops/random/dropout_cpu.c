/* dropout and dropout_add: a vector of words decides for a vector of elements. Safe over their inputs. */
#include "device/cpu/isa.h"
#include "ops/random/philox_vec.h"
#include "ops/common/util.h"

#define BLOCK 16384

struct drop {
    const rw_kernel *k;
    uint32_t threshold;
    double factor;
    const void *residual; /* of dropout_add; else NULL */
};

/* Elements [i, i + n) of the tensor, n <= PHILOX_WORDS; words are theirs. */
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

#define BLOCK_FUNCTION(name, adds)                                                                                \
    static void name(const struct drop *d, int64_t block)                                                         \
    {                                                                                                             \
        const int64_t from = block * BLOCK, rest = d->k->out[0].layout->numel - from, n = rest < BLOCK ? rest : BLOCK; \
        if (d->k->out[0].dtype == RW_F64) drop_range(d, RW_F64, adds, from, n);                                   \
        else if (d->k->out[0].dtype == RW_BF16) drop_range(d, RW_BF16, adds, from, n);                            \
        else if (d->k->out[0].dtype == RW_F16) drop_range(d, RW_F16, adds, from, n);                              \
        else drop_range(d, RW_F32, adds, from, n);                                                                \
    }

BLOCK_FUNCTION(drop_block, false)
BLOCK_FUNCTION(drop_block_and_add, true)

static rw_status run(const rw_kernel *k, const void *residual)
{
    double p;
    memcpy(&p, k->attrs, sizeof p);
    const struct drop d = { .k = k, .threshold = philox_threshold(p), .factor = 1 / (1 - p), .residual = residual };
    void (*const block)(const struct drop *, int64_t) = residual ? drop_block_and_add : drop_block;
    const int64_t numel = k->out[0].layout->numel, blocks = (numel + BLOCK - 1) / BLOCK;
    if (numel < RW_PARALLEL_FROM || k->threads < 2) {
        for (int64_t b = 0; b < blocks; b++) block(&d, b);
        return RW_OK;
    }
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t b = 0; b < blocks; b++) block(&d, b);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_dropout_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_dropout_cpu)(const rw_kernel *k)
{
    return run(k, NULL);
}

rw_status RW_ISA_NAME(rw_dropout_add_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_dropout_add_cpu)(const rw_kernel *k)
{
    return run(k, k->in[1].data);
}
