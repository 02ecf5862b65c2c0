/*
 * dw of a large convolution of float32 where oneDNN has no code for AVX-512: the product dy^T x' of conv_im2col.c,
 * with x' generated in the strips of the packed loops (matmul/gemm_packed_cpu.c). In a build without oneDNN, of a
 * convolution of any size.
 *
 * oneDNN's code for AVX2 reads along rows of x and of dy, some channels at a time. If a row exceeds the cache sets that
 * it maps to (conv_rotated.c), it is evicted before the next channels are read, and the code reaches 35 to 70 % of the
 * processor's peak. The packed loops reach 80 to 90 %. Their strips are 16 channels under one tap, which are adjacent
 * in x. The columns of sums are
 *
 *     channels [first, first + some) under tap 0, the same under tap 1 ...
 *
 * They are limited in number, because the sums of all columns would be a second gradient in memory. Pixels are
 * processed a limited number at a time, too, because the error of a sum grows with its length.
 */
#include "ops/conv/conv_run.h"

#include "ops/common/work_stealing.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"

#include <string.h>

#define PIXELS_MIN 512 /* of all images: with fewer, the whole product is gathered (conv_im2col.c) */
#define COLUMNS_AT_ONCE 1536
#define PIXELS_AT_ONCE (24 * (int64_t)GEMM_PACKED_DEPTH)

static int64_t channels_at_once(const struct rw_conv *c)
{
    const int64_t strips = COLUMNS_AT_ONCE / GEMM_PACKED_LANES / (c->kh * c->kw); /* per tap */
    const int64_t most = strips > 1 ? strips * GEMM_PACKED_LANES : GEMM_PACKED_LANES;
    return gemm_align(gemm_ceil_div(c->c, gemm_ceil_div(c->c, most)), GEMM_PACKED_LANES);
}

static int64_t last_channels(const struct rw_conv *c)
{
    return (c->c - 1) / channels_at_once(c) * channels_at_once(c);
}

bool rw_conv_is_in_strips(const struct rw_conv *c, enum rw_conv_kind kind)
{
    if (kind != RW_CONV_WEIGHT || c->dtype != RW_F32 || c->groups != 1) return false;
    if (c->kh * c->kw == 1 || c->c % GEMM_PACKED_LANES) return false;
    if (!rw_onednn_is_present()) return c->n && c->c && c->oc && c->oh && c->ow;
    if (c->n * c->oh * c->ow < PIXELS_MIN) return false;
    if (!rw_conv_row_is_too_long(c->w, c->c) && !rw_conv_row_is_too_long(c->ow, c->oc)) return false;
    const struct gemm g = { .m = c->oc, .n = c->c * c->kh * c->kw, .k = c->n * c->oh * c->ow };
    return rw_gemm_is_packed(&g);
}

struct strips {
    const struct rw_conv *c;
    const struct conv_operands *o;
    int64_t first, some;   /* channels */
    int64_t pixel, pixels; /* of y */
};

/* n channels of x from ch on, or as many as the concatenation input that contains ch has: the address of the first
   pixel's, and the distance between pixels. */
static const float *channels_from(const struct strips *s, int64_t ch, int64_t *n, int64_t *apart)
{
    const struct conv_operands *const o = s->o;
    *apart = s->c->c;
    if (!o->pieces) return (const float *)o->x + ch;
    int64_t i = 0;
    for (; ch >= o->piece[i].layout->dim[3]; i++) ch -= o->piece[i].layout->dim[3];
    *apart = o->piece[i].layout->dim[3];
    if (*n > *apart - ch) *n = *apart - ch;
    return (const float *)o->piece[i].data + ch;
}

/* Consecutive pixels of y in a row, under one tap: their position in x, for the first one. Pixels [first, end) are in
   x; those before and after them are in padding. */
struct run {
    int64_t n, at, first, end;
};

static int64_t clamped(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

static struct run run_from(const struct rw_conv *c, int64_t pixel, int64_t most, int64_t tap)
{
    const int64_t ox = pixel % c->ow, oy = pixel / c->ow % c->oh, image = pixel / c->ow / c->oh, step = c->stride[1];
    const int64_t y = rw_conv_under(c, 0, oy, tap / c->kw), x = rw_conv_under(c, 1, ox, tap % c->kw);
    struct run r = { .n = c->ow - ox < most ? c->ow - ox : most, .at = (image * c->h + y) * c->w + x };
    if (y < 0 || y >= c->h) return r;
    r.first = clamped(x < 0 ? gemm_ceil_div(-x, step) : 0, 0, r.n);
    r.end = clamped(x < c->w ? gemm_ceil_div(c->w - x, step) : 0, r.first, r.n);
    return r;
}

/* Copies n channels under one tap, for consecutive pixels of y. */
VEC_INLINE void take_pixels(const struct rw_conv *c, const float *x, int64_t apart, int64_t n, int64_t pixel,
                            int64_t pixels, int64_t tap, float *to)
{
    struct run r;
    for (int64_t end = pixel + pixels; pixel < end; pixel += r.n) {
        r = run_from(c, pixel, end - pixel, tap);
        int64_t i = 0;
        for (; i < r.first; i++, to += GEMM_PACKED_LANES) memset(to, 0, (size_t)n * sizeof *to);
        for (; i < r.end; i++, to += GEMM_PACKED_LANES)
            memcpy(to, x + (r.at + i * c->stride[1]) * apart, (size_t)n * sizeof *to);
        for (; i < r.n; i++, to += GEMM_PACKED_LANES) memset(to, 0, (size_t)n * sizeof *to);
    }
}

static void take_strips(const void *of, int64_t from, int64_t depth, int64_t col, int64_t cols, float *to)
{
    const struct strips *const s = of;
    const int64_t pixel = s->pixel + from;
    for (int64_t j = col; j < col + cols; j += GEMM_PACKED_LANES, to += GEMM_PACKED_LANES * depth)
        for (int64_t got = 0, n, apart; got < GEMM_PACKED_LANES; got += n) {
            n = GEMM_PACKED_LANES - got;
            const int64_t tap = j / s->some;
            const float *const x = channels_from(s, s->first + j % s->some + got, &n, &apart);
            if (n == GEMM_PACKED_LANES) take_pixels(s->c, x, apart, GEMM_PACKED_LANES, pixel, depth, tap, to);
            else take_pixels(s->c, x, apart, n, pixel, depth, tap, to + got);
        }
}

/* Removes elements of dy that are multiplied by padding, if they are infinite or NaN: 0 times them would be NaN. */
static int64_t clear_padding(const void *of, int64_t from, int64_t depth, int64_t col, int64_t rows, float *a)
{
    const struct strips *const s = of;
    struct run r;
    for (int64_t p = 0; p < depth; p += r.n) {
        r = run_from(s->c, s->pixel + from + p, depth - p, col / s->some);
        for (int64_t i = 0; i < r.n; i++)
            for (int64_t row = 0; row < rows && (i < r.first || i >= r.end); row += GEMM_PACKED_STRIP)
                memset(a + row * depth + (p + i) * GEMM_PACKED_STRIP, 0, GEMM_PACKED_STRIP * sizeof *a);
    }
    return s->some - col % s->some;
}

static struct gemm in_strips(const struct rw_conv *c, const struct strips *s)
{
    return (struct gemm){ .dtype = RW_F32,
                          .to = RW_F32,
                          .m = c->oc,
                          .n = c->kh * c->kw * s->some,
                          .k = s->pixels,
                          .a = { .row = 1, .col = c->oc },
                          .from_b = { .strips = take_strips, .clear = clear_padding, .of = s },
                          .c_row = c->kh * c->kw * s->some,
                          .n_batch = 1 };
}

static size_t sums_bytes(const struct rw_conv *c)
{
    const int64_t sums = c->oc * c->kh * c->kw * channels_at_once(c);
    return (size_t)gemm_align(sums * (int64_t)sizeof(float), GEMM_SCRATCH_ALIGN);
}

struct finishing {
    const struct strips *s;
    const float *sums, *add;
    float *to;
};

static void finish_filters(void *of, int64_t first, int64_t end)
{
    const struct finishing *const d = of;
    const struct strips *const s = d->s;
    const int64_t taps = s->c->kh * s->c->kw;
    for (int64_t f = first; f < end; f++) {
        const int64_t at = (f * s->c->c + s->first) * taps;
        for (int64_t ch = 0; ch < s->some; ch++)
            for (int64_t tap = 0; tap < taps; tap++) {
                const float sum = d->sums[(f * taps + tap) * s->some + ch];
                d->to[at + ch * taps + tap] = d->add ? sum + d->add[at + ch * taps + tap] : sum;
            }
    }
}

/* Writes the sums of some channels to their places in the gradient, or adds them to what is there. */
static void finish_strips(const struct strips *s, const float *sums, const float *add, int threads, float *to)
{
    rw_team_for(threads, s->c->oc, finish_filters, &(struct finishing){ s, sums, add, to });
}

/* The last strips may have fewer channels, and fewer pixels. */
static struct strips strips_of(const struct rw_conv *c, const struct conv_operands *o, int64_t first, int64_t pixel)
{
    const int64_t some = channels_at_once(c), left = c->c - first, rest = c->n * c->oh * c->ow - pixel;
    return (struct strips){ c, o, first, left < some ? left : some, pixel,
                            rest < PIXELS_AT_ONCE ? rest : PIXELS_AT_ONCE };
}

size_t rw_conv_strips_workspace(const rw_op_call *call, const struct rw_conv *c)
{
    const struct strips first = strips_of(c, NULL, 0, 0), last = strips_of(c, NULL, last_channels(c), 0);
    const struct gemm g = in_strips(c, &first), h = in_strips(c, &last);
    const size_t bytes = rw_gemm_workspace_cpu(call, &g), more = rw_gemm_workspace_cpu(call, &h);
    return sums_bytes(c) + (more > bytes ? more : bytes); /* with fewer columns, tiles may have more memory */
}

/* Computes the gradient by groups of channels and, within these, of pixels. */
rw_status rw_conv_run_strips(const rw_kernel *k, const struct rw_conv *c, const struct conv_operands *o,
                             const struct gemm_loops *loops)
{
    rw_kernel product = *k;
    if (k->workspace_bytes < sums_bytes(c)) return RW_ERR_MEMORY;
    product.workspace = (char *)k->workspace + sums_bytes(c);
    product.workspace_bytes -= sums_bytes(c);
    for (int64_t first = 0; first < c->c; first += channels_at_once(c))
        for (int64_t pixel = 0; pixel < c->n * c->oh * c->ow; pixel += PIXELS_AT_ONCE) {
            const struct strips s = strips_of(c, o, first, pixel);
            struct gemm g = in_strips(c, &s);
            g.a.data = (const float *)o->y + pixel * c->oc;
            g.c = k->workspace;
            RW_CHECK(rw_gemm_run(&product, &g, loops));
            finish_strips(&s, g.c, pixel ? o->to : o->sum, k->threads, o->to);
        }
    return RW_OK;
}
