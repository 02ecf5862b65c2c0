/*
 * The plain loops of the three products of conv.h, for one type of arithmetic. Included by conv_cpu.c with T = float, N
 * = nf and again with T = double, N = nd, together with the loops of matrix products, whose blocks they fill. Rows of a
 * are gathered from the image (implicit GEMM), so nothing is unfolded in memory.
 *
 * Every element of a result is one chain of sums: over taps and channels, or for a weight's gradient over all pixels.
 */
#include "ops/matmul/gemm_plain_loops_tmpl.h"

/* A block of rows and columns of one group. */
struct F(part) {
    int64_t group, row, rows, col, cols;
};

/* Packs a as [strip][k][OWN_ROWS]: pixels [row, row + rows) and (tap, channel) [from, from + depth), with channels
   adjacent. x: the forward's x, or dy, whose taps are traversed in reverse. */
VEC_INLINE void F(gather_pixels)(T *to, const struct rw_conv *c, const void *x, rw_dtype dtype, bool data,
                                 const struct F(part) *b, int64_t from, int64_t depth)
{
    const int64_t width = data ? c->w : c->ow, height = data ? c->h : c->oh, channels = data ? c->ocg : c->cg;
    const int64_t in_h = data ? c->oh : c->h, in_w = data ? c->ow : c->w, pitch = data ? c->oc : c->c;
    for (int64_t strip = 0; strip < b->rows; strip += OWN_ROWS, to += depth * OWN_ROWS)
        for (int64_t r = 0; r < OWN_ROWS; r++) {
            const int64_t p = b->row + strip + r, px = p % width, py = p / width % height, image = p / width / height;
            for (int64_t k = 0; k < depth;) {
                const int64_t tap = (from + k) / channels, first = (from + k) % channels;
                const int64_t run = channels - first < depth - k ? channels - first : depth - k;
                const int64_t i = tap / c->kw, j = tap % c->kw;
                const int64_t y = data ? rw_conv_over(c, 0, py, i) : rw_conv_under(c, 0, py, i);
                const int64_t z = data ? rw_conv_over(c, 1, px, j) : rw_conv_under(c, 1, px, j);
                const bool inside = strip + r < b->rows && y >= 0 && y < in_h && z >= 0 && z < in_w;
                const int64_t at = ((image * in_h + y) * in_w + z) * pitch + b->group * channels + first;
                for (int64_t l = 0; l < run; l++)
                    to[(k + l) * OWN_ROWS + r] = inside ? F(element)(x, dtype, at + l) : 0;
                k += run;
            }
        }
}

/* Packs b as [strip][k][LANES]: the weight of (tap, channel) k and column n. */
VEC_INLINE void F(gather_weights)(T *to, const struct rw_conv *c, const void *weight, rw_dtype dtype, bool data,
                                  const struct F(part) *b, int64_t from, int64_t depth)
{
    const int64_t taps = c->kh * c->kw, channels = data ? c->ocg : c->cg;
    const int64_t of_channel = data ? c->cg * taps : taps, of_column = data ? taps : c->cg * taps;
    const int64_t group = b->group * c->ocg * c->cg * taps;
    for (int64_t strip = 0; strip < b->cols; strip += LANES)
        for (int64_t k = from; k < from + depth; k++)
            for (int64_t l = 0; l < LANES; l++)
                *to++ = strip + l >= b->cols ? 0
                                             : F(element)(weight, dtype,
                                                          group + (b->col + strip + l) * of_column +
                                                              k % channels * of_channel + k / channels);
}

VEC_INLINE void F(clear)(struct F(blocks) *x, int64_t rows)
{
    for (int64_t i = 0; i < rows + OWN_ROWS - 1 && i < GEMM_OWN_M; i++)
        memset(x->c + i * GEMM_OWN_N, 0, GEMM_OWN_N * sizeof *x->c);
}

VEC_INLINE void F(store_element)(void *p, rw_dtype dtype, int64_t i, T x)
{
    if (dtype == RW_F64) ((double *)p)[i] = (double)x;
    else f_put(p, dtype, i, (float)x);
}

/* conv2d and conv2d_data. */
VEC_INLINE void F(pixels)(const struct rw_conv *c, rw_dtype dtype, bool data, const struct conv_operands *o,
                          const struct F(part) *b)
{
    struct F(blocks) x;
    const int64_t k = c->kh * c->kw * (data ? c->ocg : c->cg), pitch = data ? c->c : c->oc;
    const int64_t column = b->group * (data ? c->cg : c->ocg) + b->col;
    F(clear)(&x, b->rows);
    for (int64_t p = 0; p < k; p += OWN_DEPTH) {
        const int64_t depth = k - p < OWN_DEPTH ? k - p : OWN_DEPTH;
        F(gather_pixels)(x.a, c, o->x, dtype, data, b, p, depth);
        F(gather_weights)(x.b, c, o->y, dtype, data, b, p, depth);
        F(blocks_multiply)(&x, b->rows, b->cols, depth);
    }
    for (int64_t i = 0; i < b->rows; i++)
        for (int64_t j = 0; j < b->cols; j++) {
            const T bias = o->bias ? F(element)(o->bias, dtype, column + j) : 0;
            F(store_element)(o->to, dtype, (b->row + i) * pitch + column + j, x.c[i * GEMM_OWN_N + j] + bias);
        }
}

/* Packs a as [strip][pixel][OWN_ROWS]: dy of filters [row, row + rows). */
VEC_INLINE void F(gather_filters)(T *to, const struct rw_conv *c, const void *dy, rw_dtype dtype,
                                  const struct F(part) *b, int64_t from, int64_t depth)
{
    const int64_t first = b->group * c->ocg + b->row;
    for (int64_t strip = 0; strip < b->rows; strip += OWN_ROWS)
        for (int64_t p = from; p < from + depth; p++)
            for (int64_t r = strip; r < strip + OWN_ROWS; r++)
                *to++ = r < b->rows ? F(element)(dy, dtype, p * c->oc + first + r) : 0;
}

/* Packs b as [strip][pixel][LANES]: x at pixels [from, from + depth), for (tap, channel) [col, col + cols). */
VEC_INLINE void F(gather_taps)(T *to, const struct rw_conv *c, const void *x, rw_dtype dtype, const struct F(part) *b,
                               int64_t from, int64_t depth)
{
    for (int64_t strip = 0; strip < b->cols; strip += LANES)
        for (int64_t p = from; p < from + depth; p++, to += LANES) {
            const int64_t px = p % c->ow, py = p / c->ow % c->oh, image = p / c->ow / c->oh;
            for (int64_t l = 0; l < LANES;) {
                const int64_t k = b->col + strip + l, tap = k / c->cg, first = k % c->cg;
                const int64_t left = strip + l < b->cols ? c->cg - first : LANES - l;
                const int64_t run = left < LANES - l ? left : LANES - l;
                const int64_t y = rw_conv_under(c, 0, py, tap / c->kw), z = rw_conv_under(c, 1, px, tap % c->kw);
                const bool inside = strip + l < b->cols && y >= 0 && y < c->h && z >= 0 && z < c->w;
                const int64_t at = ((image * c->h + y) * c->w + z) * c->c + b->group * c->cg + first;
                for (int64_t i = 0; i < run; i++) to[l + i] = inside ? F(element)(x, dtype, at + i) : 0;
                l += run;
            }
        }
}

/* conv2d_weight. Columns are (tap, channel); a stored weight has the opposite order. */
VEC_INLINE void F(weights)(const struct rw_conv *c, rw_dtype dtype, const struct conv_operands *o,
                           const struct F(part) *b)
{
    struct F(blocks) x;
    const int64_t pixels = c->n * c->oh * c->ow, taps = c->kh * c->kw;
    F(clear)(&x, b->rows);
    for (int64_t p = 0; p < pixels; p += OWN_DEPTH) {
        const int64_t depth = pixels - p < OWN_DEPTH ? pixels - p : OWN_DEPTH;
        F(gather_filters)(x.a, c, o->y, dtype, b, p, depth);
        F(gather_taps)(x.b, c, o->x, dtype, b, p, depth);
        F(blocks_multiply)(&x, b->rows, b->cols, depth);
    }
    for (int64_t i = 0; i < b->rows; i++)
        for (int64_t j = 0; j < b->cols; j++) {
            const int64_t k = b->col + j;
            const int64_t at = ((b->group * c->ocg + b->row + i) * c->cg + k % c->cg) * taps + k / c->cg;
            const T sum = o->sum ? F(element)(o->sum, dtype, at) : 0;
            F(store_element)(o->to, dtype, at, x.c[i * GEMM_OWN_N + j] + sum);
        }
}

/* ---- depthwise: LANES adjacent channels at a time ---- */

VEC_INLINE void F(load_channels)(T *to, const void *p, rw_dtype dtype, int64_t at, int64_t stride, int64_t n)
{
    if (n == LANES && stride == 1) {
        for (int64_t l = 0; l < LANES; l++) to[l] = F(element)(p, dtype, at + l);
        return;
    }
    for (int64_t l = 0; l < LANES; l++) to[l] = l < n ? F(element)(p, dtype, at + l * stride) : 0;
}

/* to += a b, lane by lane. */
VEC_INLINE void F(lanes_add)(T *to, const T *a, const T *b)
{
    for (int v = 0; v < LANES; v += (int)(NATIVE_BYTES / sizeof(T)))
        *(N *)(to + v) = G(fma)(*(const N *)(a + v), *(const N *)(b + v), *(const N *)(to + v));
}

/* One image, channels [first, first + n): conv2d, or conv2d_data. */
VEC_INLINE void F(depthwise)(const struct rw_conv *c, rw_dtype dtype, bool data, const struct conv_operands *o,
                             int64_t image, int64_t first, int64_t n)
{
    T weight[RW_CONV_TAPS][LANES], sum[LANES], x[LANES];
    const int64_t taps = c->kh * c->kw, height = data ? c->h : c->oh, width = data ? c->w : c->ow;
    const int64_t in_h = data ? c->oh : c->h, in_w = data ? c->ow : c->w;
    for (int64_t t = 0; t < taps; t++) F(load_channels)(weight[t], o->y, dtype, first * taps + t, taps, n);
    for (int64_t py = 0; py < height; py++)
        for (int64_t px = 0; px < width; px++) {
            memset(sum, 0, sizeof sum);
            for (int64_t i = 0; i < c->kh; i++) {
                const int64_t y = data ? rw_conv_over(c, 0, py, i) : rw_conv_under(c, 0, py, i);
                if (y < 0 || y >= in_h) continue;
                for (int64_t j = 0; j < c->kw; j++) {
                    const int64_t z = data ? rw_conv_over(c, 1, px, j) : rw_conv_under(c, 1, px, j);
                    if (z < 0 || z >= in_w) continue;
                    F(load_channels)(x, o->x, dtype, ((image * in_h + y) * in_w + z) * c->c + first, 1, n);
                    F(lanes_add)(sum, x, weight[i * c->kw + j]);
                }
            }
            const int64_t at = ((image * height + py) * width + px) * c->c + first;
            for (int64_t l = 0; l < n; l++)
                F(store_element)(o->to, dtype, at + l, sum[l] + (o->bias ? F(element)(o->bias, dtype, first + l) : 0));
        }
}

/* conv2d_weight of channels [first, first + n). */
VEC_INLINE void F(depthwise_weights)(const struct rw_conv *c, rw_dtype dtype, const struct conv_operands *o,
                                     int64_t first, int64_t n)
{
    T sum[RW_CONV_TAPS][LANES], x[LANES], dy[LANES];
    const int64_t taps = c->kh * c->kw;
    memset(sum, 0, sizeof sum);
    for (int64_t p = 0; p < c->n * c->oh * c->ow; p++) {
        const int64_t px = p % c->ow, py = p / c->ow % c->oh, image = p / c->ow / c->oh;
        F(load_channels)(dy, o->y, dtype, p * c->c + first, 1, n);
        for (int64_t i = 0; i < c->kh; i++) {
            const int64_t y = rw_conv_under(c, 0, py, i);
            if (y < 0 || y >= c->h) continue;
            for (int64_t j = 0; j < c->kw; j++) {
                const int64_t z = rw_conv_under(c, 1, px, j);
                if (z < 0 || z >= c->w) continue;
                F(load_channels)(x, o->x, dtype, ((image * c->h + y) * c->w + z) * c->c + first, 1, n);
                F(lanes_add)(sum[i * c->kw + j], x, dy);
            }
        }
    }
    for (int64_t t = 0; t < taps; t++)
        for (int64_t l = 0; l < n; l++) {
            const int64_t at = (first + l) * taps + t;
            F(store_element)(o->to, dtype, at, sum[t][l] + (o->sum ? F(element)(o->sum, dtype, at) : 0));
        }
}
