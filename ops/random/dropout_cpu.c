/* dropout: 64 elements per draw of sixteen Philox blocks. Safe over its input. */
#include "device/cpu/isa.h"
#include "ops/random/philox_vec.h"
#include "ops/util.h"

#define BLOCK 16384

VEC_INLINE void drop(const rw_kernel *k, rw_dtype dtype, int64_t from, int64_t n, uint32_t threshold, double factor)
{
    uint32_t words[PHILOX_WORDS];
    const void *const x = k->in[0].data;
    void *const y = k->out[0].data;
    for (int64_t i = from; i < from + n; i += PHILOX_WORDS) {
        philox_fill(k->ticket.seed, k->ticket.offset + (uint64_t)i / 4, words);
        const int64_t some = from + n - i < PHILOX_WORDS ? from + n - i : PHILOX_WORDS;
        if (dtype == RW_F64) {
            for (int64_t j = 0; j < some; j++) ((double *)y)[i + j] = words[j] >= threshold ? ((const double *)x)[i + j] * factor : 0;
        } else if (some == PHILOX_WORDS) {
            for (int j = 0; j < PHILOX_WORDS; j += VF_LANES) {
                const vu w = *(const vu *)(words + j);
                vf_put(y, dtype, i + j, vf_select((vi)(w >= threshold), vf_get(x, dtype, i + j) * (float)factor, vf_all(0)));
            }
        } else {
            for (int64_t j = 0; j < some; j++)
                f_put(y, dtype, i + j, words[j] >= threshold ? f_get(x, dtype, i + j) * (float)factor : 0);
        }
    }
}

rw_status RW_ISA_NAME(rw_dropout_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_dropout_cpu)(const rw_kernel *k)
{
    double p;
    memcpy(&p, k->attrs, sizeof p);
    const uint32_t threshold = philox_threshold(p);
    const double factor = 1 / (1 - p);
    const int64_t numel = k->out[0].layout->numel, blocks = (numel + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (numel >= RW_PARALLEL_FROM)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t from = b * BLOCK, n = numel - from < BLOCK ? numel - from : BLOCK;
        if (k->out[0].dtype == RW_F64) drop(k, RW_F64, from, n, threshold, factor);
        else if (k->out[0].dtype == RW_BF16) drop(k, RW_BF16, from, n, threshold, factor);
        else drop(k, RW_F32, from, n, threshold, factor);
    }
    return RW_OK;
}
