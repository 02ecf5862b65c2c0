/*
 * dx with a stride of one, computed as a convolution of dy: the weight is rotated by 180 degrees and its channels and
 * filters are exchanged.
 *
 *     dx[p, c] = sum over taps t and filters f of dy[p + padding - t, f] weight[f, c, t]
 *              = sum                            of dy[p - (reach - padding) + u, f] rotated[c, f, u]     u = reach - t
 *
 * oneDNN's backward of data reads a row of dy along its pixels, a few filters at a time. If pixels are a multiple of 1
 * KiB apart, a row maps to few sets of the L1 cache, and lines are evicted before the next filters are read. It then
 * runs at half its rate for 512 filters and rows of 28 pixels, and at a quarter for 1,024. Its forward code packs its
 * operands and does not have this problem. In addition, forward is computed as a product if there are few pixels
 * (conv_im2col.c), which gives work to all threads; backward of data has one thread per band of rows.
 */
#include "ops/common/work_stealing.h"
#include "ops/conv/conv_run.h"

#define CACHE_WAY 4096 /* bytes: addresses that differ by a multiple of this share a set of the L1 cache */
#define CACHE_WAYS 8
#define FEW_ROWS 16 /* of all images: with fewer, there is one band */
#define CHANNELS_MIN 256
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
    if (!rw_onednn_is_present()) return true; /* forward is a product in any case (conv_im2col.c) */
    if (c->n * c->h < FEW_ROWS && c->c >= CHANNELS_MIN) return true;
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

/* Rotates channels [first, first + n) of the filters [filter, filter + m). */
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

struct rotation {
    const struct rw_conv *c;
    const void *weight;
    void *to;
};

static void rotate_blocks(void *of, int64_t from, int64_t end)
{
    const struct rotation *const r = of;
    const struct rw_conv *const c = r->c;
    for (int64_t block = from; block < end; block++) {
        const int64_t first = block * BLOCK, n = c->c - first < BLOCK ? c->c - first : BLOCK;
        for (int64_t f = 0; f < c->oc; f += BLOCK) {
            const int64_t m = c->oc - f < BLOCK ? c->oc - f : BLOCK;
            if (rw_dtype_size(c->dtype) == 4) rotate_uint32_t(c, r->weight, f, m, first, n, r->to);
            else rotate_uint16_t(c, r->weight, f, m, first, n, r->to);
        }
    }
}

void rw_conv_rotate(const struct rw_conv *c, const void *weight, int threads, void *to)
{
    rw_team_for(rw_conv_products(c) >= RW_CONV_PARALLEL_FROM ? threads : 1, gemm_ceil_div(c->c, BLOCK), rotate_blocks,
                &(struct rotation){ c, weight, to });
}
