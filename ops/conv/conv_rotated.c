/*
 * dx with a stride of one is a convolution of dy, by the weight turned half round with its channels and filters
 * exchanged. See conv_run.h.
 *
 *     dx[p, c] = sum over taps t and filters f of dy[p + padding - t, f] weight[f, c, t]
 *              = sum                            of dy[p - (reach - padding) + u, f] turned[c, f, u]      u = reach - t
 *
 * The library's own backward of data reads a row of dy along its pixels, a few filters at a time. Where pixels lie a
 * multiple of 1 KiB apart, a row of them shares few sets of the first cache, and what was fetched is gone when the next
 * filters are due: half of the rate for 512 filters and rows of 28 pixels, a quarter for 1,024. Its forward code packs
 * what it reads. And forward is done as a product where there are few pixels (conv_product.c), in which all threads
 * find work; backward of data has a thread for each band of rows.
 */
#include "ops/conv/conv_run.h"

#define CACHE_WAY 4096 /* bytes: places of the first cache that an address may take repeat after so many */
#define CACHE_WAYS 8
#define FEW_ROWS 16 /* of all images: below, there is one band */
#define CHANNELS_LEAST 256
#define BLOCK 16 /* filters and channels that are exchanged at a time */

bool rw_conv_row_is_too_long(int64_t pixels, int64_t channels)
{
    const int64_t pixel = channels * (int64_t)sizeof(float);
    int64_t step = pixel & -pixel;
    if (step > CACHE_WAY) step = CACHE_WAY;
    return pixels * step > CACHE_WAY * CACHE_WAYS;
}

bool rw_conv_rotates(const struct rw_conv *c, enum rw_conv_kind kind)
{
    if (kind != RW_CONV_DATA || c->groups != 1 || c->kh * c->kw == 1) return false;
    if (c->dtype == RW_F64) return false;
    if (!c->n || !c->c || !c->oc || !c->oh || !c->ow || !c->h || !c->w) return false;
    if (c->stride[0] != 1 || c->stride[1] != 1) return false;
    if (c->padding[0] > (c->kh - 1) * c->dilation[0] || c->padding[1] > (c->kw - 1) * c->dilation[1]) return false;
    if (c->n * c->h < FEW_ROWS && c->c >= CHANNELS_LEAST) return true;
    return (c->dtype == RW_F32 || rw_gemm_widens(c->dtype)) && rw_conv_row_is_too_long(c->ow, c->oc);
}

struct rw_conv rw_conv_rotated(const struct rw_conv *c)
{
    struct rw_conv r = *c;
    r.h = c->oh, r.w = c->ow, r.c = r.cg = c->oc;
    r.oh = c->h, r.ow = c->w, r.oc = r.ocg = c->c;
    r.padding[0] = (c->kh - 1) * c->dilation[0] - c->padding[0];
    r.padding[1] = (c->kw - 1) * c->dilation[1] - c->padding[1];
    return r;
}

size_t rw_conv_rotated_bytes(const struct rw_conv *c)
{
    return (size_t)gemm_align(c->oc * c->c * c->kh * c->kw * (int64_t)rw_dtype_size(c->dtype), GEMM_SCRATCH_ALIGN);
}

/* Channels [first, first + n) of the filters [filter, filter + m). */
#define ROTATE(type)                                                                                         \
    static void rotate_##type(const struct rw_conv *c, const type *weight, int64_t filter, int64_t m,        \
                              int64_t first, int64_t n, type *to)                                            \
    {                                                                                                        \
        const int64_t taps = c->kh * c->kw;                                                                  \
        for (int64_t ch = first; ch < first + n; ch++)                                                       \
            for (int64_t f = filter; f < filter + m; f++)                                                    \
                for (int64_t tap = 0; tap < taps; tap++)                                                     \
                    to[(ch * c->oc + f) * taps + tap] = weight[(f * c->c + ch) * taps + taps - 1 - tap];     \
    }

ROTATE(uint32_t)
ROTATE(uint16_t)

void rw_conv_rotate(const struct rw_conv *c, const void *weight, int threads, void *to)
{
    const int64_t blocks = gemm_ceil_div(c->c, BLOCK);
    const bool parallel = threads > 1 && rw_conv_products(c) >= RW_CONV_PARALLEL_FROM;
#pragma omp parallel for num_threads(threads) schedule(static) if (parallel)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = block * BLOCK, n = c->c - first < BLOCK ? c->c - first : BLOCK;
        for (int64_t f = 0; f < c->oc; f += BLOCK) {
            const int64_t m = c->oc - f < BLOCK ? c->oc - f : BLOCK;
            if (rw_dtype_size(c->dtype) == 4) rotate_uint32_t(c, weight, f, m, first, n, to);
            else rotate_uint16_t(c, weight, f, m, first, n, to);
        }
    }
}
