/*
 * Convolutions computed as matrix products (im2col), with the unfolded matrix generated panel by panel:
 *
 *     y  [pixels, oc] = x'  [pixels, c kh kw] weight [oc, c kh kw]^T
 *     dx [pixels, c]  = dy  [pixels, oc]      weight [oc, c]             a single tap
 *     dw [oc, c kh kw] = dy [pixels, oc]^T    x' [pixels, c kh kw]
 *
 * Row p of x' has the elements of x that the kernel covers at pixel p of y. For a single tap and a stride of one that
 * is x itself; otherwise it is gathered, one panel at a time.
 *
 * oneDNN's convolution reads the weight once per image, and for a weight's gradient x once per group of filters. With
 * few pixels this takes up to six times as long as the product; so does bfloat16, where it transposes both operands
 * first. Three other kinds are computed as products as well: weight gradients that the library gets wrong, and forward
 * and weight gradient for rows so long that the library's code and tables would take megabytes.
 */
#include "ops/conv/conv_run.h"

#include <string.h>

#define FEW_PIXELS 256 /* of an image */
#define FEW_IN_ALL 512 /* of all images: with a weight this large, gathering costs little compared with the product */
#define FILTERS_MIN 256
#define WEIGHT_MIN 16384 /* elements: a smaller gradient has too few tiles for all threads */

static bool is_one_tap(const struct rw_conv *c)
{
    return c->kh == 1 && c->kw == 1 && !c->padding[0] && !c->padding[1];
}

static bool is_dense(const struct rw_conv *c)
{
    return is_one_tap(c) && c->stride[0] == 1 && c->stride[1] == 1;
}

static bool one_tap_is_product(const struct rw_conv *c, enum rw_conv_kind kind)
{
    const bool few = c->oh * c->ow < FEW_PIXELS;
    if (kind == RW_CONV_FORWARD) return few;
    if (kind == RW_CONV_DATA) return few && is_dense(c);
    return few || (c->dtype == RW_BF16 && !rw_gemm_widens(c->dtype) && c->oc * c->c >= WEIGHT_MIN);
}

/* Windows that do not overlap, such as the patches of a vision transformer. */
static bool are_patches(const struct rw_conv *c)
{
    return c->kh > 1 && c->kw > 1 && c->stride[0] == c->kh && c->stride[1] == c->kw && !c->padding[0] && !c->padding[1];
}

/* Are rows so long that the library's code and tables for them take too much memory? */
static bool has_long_rows(const struct rw_conv *c, enum rw_conv_kind kind)
{
    static const enum rw_onednn_conv kinds[] = { RW_ONEDNN_FORWARD, RW_ONEDNN_BACKWARD_DATA,
                                                 RW_ONEDNN_BACKWARD_WEIGHT };
    const struct rw_conv_signature s = { .kind = kinds[kind], .h = c->h, .w = c->w, .c = c->c, .oc = c->oc,
                                         .ow = c->ow, .kh = c->kh, .kw = c->kw, .groups = c->groups,
                                         .stride = { c->stride[0], c->stride[1] },
                                         .padding = { c->padding[0], c->padding[1] },
                                         .end = { c->padding[0], c->padding[1] },
                                         .dilation = { c->dilation[0], c->dilation[1] } };
    return rw_onednn_conv_bytes(&s) > RW_ONEDNN_BYTES_MAX;
}

bool rw_conv_is_product(const struct rw_conv *c, enum rw_conv_kind kind)
{
    if (c->dtype == RW_F64) return false;
    if (c->groups != 1 || !c->n || !c->c || !c->oc || !c->oh || !c->ow || !c->h || !c->w) return false;
    if (!rw_onednn_is_present()) return kind != RW_CONV_DATA || is_dense(c);
    if (rw_conv_library_errs(c, kind)) return kind == RW_CONV_WEIGHT || is_dense(c);
    if (is_one_tap(c)) return one_tap_is_product(c, kind) || has_long_rows(c, kind);
    if (kind == RW_CONV_DATA) return false;
    if (has_long_rows(c, kind)) return true;
    if (c->oc < FILTERS_MIN) return false;
    return c->n * c->oh * c->ow < FEW_IN_ALL || (kind == RW_CONV_WEIGHT && are_patches(c));
}

/* The source of rows: a matrix, or x'. */
struct origin {
    const struct rw_conv *c; /* NULL: a matrix */
    const char *data;
    int64_t row; /* elements per row of a matrix */
    size_t size;
};

#define TAPS_AT_ONCE 32
#define PIXELS_AHEAD 8 /* prefetch distance; hardware prefetching does not predict these reads */

/* Consecutive taps and the elements under them: a pixel's channels, or in padding a single zero for all. */
struct taps {
    int64_t first, n;
    bool inside; /* no tap is in padding */
    const char *last; /* the channels under the last tap that is not in padding */
    const char *at[TAPS_AT_ONCE];
    int64_t apart[TAPS_AT_ONCE]; /* bytes from one channel to the next, 0 in padding */
};

static void set_tap(const struct origin *x, int64_t i, int64_t pixel, struct taps *ret)
{
    static const uint32_t zero;
    const bool inside = pixel >= 0;
    if (inside) ret->last = x->data + (size_t)(pixel * x->c->c) * x->size;
    ret->at[i] = inside ? ret->last : (const char *)&zero;
    ret->apart[i] = inside ? (int64_t)x->size : 0;
    ret->inside &= inside;
}

/* Starts at tap `first`. Minimizes divisions, because a row is read a few elements at a time. */
static inline void set_taps(const struct origin *x, int64_t row, int64_t first, struct taps *ret)
{
    const struct rw_conv *const c = x->c;
    const int64_t line = row / c->ow, image = line / c->oh, oy = line - image * c->oh, ox = row - line * c->ow;
    const int64_t left = c->kh * c->kw - first;
    int64_t ky = first ? first / c->kw : 0, kx = first - ky * c->kw;
    ret->first = first;
    ret->n = left < TAPS_AT_ONCE ? left : TAPS_AT_ONCE;
    ret->inside = true;
    ret->last = x->data;
    for (int64_t i = 0; i < ret->n; i++) {
        const int64_t iy = rw_conv_under(c, 0, oy, ky), ix = rw_conv_under(c, 1, ox, kx);
        const bool inside = iy >= 0 && iy < c->h && ix >= 0 && ix < c->w;
        set_tap(x, i, inside ? (image * c->h + iy) * c->w + ix : -1, ret);
        if (++kx == c->kw) kx = 0, ky++;
    }
}

/* A row of x' from column `col` on; the `all` taps of a channel are adjacent. */
struct row {
    char *to;
    int64_t all, col;
};

/* Copies channels [from, to) under taps [i, end) of these. Most arguments are constants after inlining. */
static inline void take_channels(const struct taps *t, size_t size, bool inside, const struct row *r, int64_t all,
                                 int64_t i, int64_t end, int64_t from, int64_t to)
{
    for (int64_t ch = from; ch < to; ch++)
        for (int64_t tap = i; tap < end; tap++) {
            const char *const at = t->at[tap] + ch * (inside ? (int64_t)size : t->apart[tap]);
            memcpy(r->to + (size_t)(ch * all + t->first + tap - r->col) * size, at, size);
        }
}

/* Copies one channel: those of the kernel's taps [from, to) that are among these. */
static inline void take_part(const struct taps *t, size_t size, const struct row *r, int64_t ch, int64_t from,
                             int64_t to)
{
    const int64_t i = from - t->first, end = to - t->first;
    take_channels(t, size, false, r, r->all, i > 0 ? i : 0, end < t->n ? end : t->n, ch, ch + 1);
}

/* Copies n elements of the row, those under these taps; the first and last channel may be incomplete. */
static inline void take_taps(const struct taps *t, size_t size, const struct row *r, int64_t n)
{
    const int64_t end = r->col + n, begun = r->col % r->all, whole = gemm_ceil_div(r->col, r->all), last = end / r->all;
    if (begun) take_part(t, size, r, whole - 1, begun, begun + n < r->all ? begun + n : r->all);
    if (end % r->all && whole <= last) take_part(t, size, r, last, 0, end % r->all);
    if (!t->inside) take_channels(t, size, false, r, r->all, 0, t->n, whole, last);
    else if (r->all == 9) take_channels(t, size, true, r, 9, 0, 9, whole, last);
    else take_channels(t, size, true, r, r->all, 0, t->n, whole, last);
}

static void take(const void *of, int64_t row, int64_t col, int64_t n, void *to)
{
    const struct origin *const x = of;
    const struct row r = { to, x->c ? x->c->kh * x->c->kw : 0, col };
    if (!r.all) memcpy(to, x->data + (size_t)(row * x->row + col) * x->size, (size_t)n * x->size);
    for (int64_t first = 0; first < r.all; first += TAPS_AT_ONCE) {
        struct taps t;
        set_taps(x, row, first, &t);
        __builtin_prefetch(t.last + (size_t)(PIXELS_AHEAD * x->c->c + col / r.all) * x->size);
        if (r.all == 1 && t.inside) memcpy(to, t.at[0] + (size_t)col * x->size, (size_t)n * x->size);
        else if (x->size == 2) take_taps(&t, 2, &r, n);
        else take_taps(&t, 4, &r, n);
    }
}

static struct gemm gathered(const struct rw_conv *c, enum rw_conv_kind kind)
{
    struct gemm g;
    const int64_t pixels = c->n * c->oh * c->ow, met = c->c * c->kh * c->kw;
    if (kind == RW_CONV_FORWARD) rw_gemm_of_panels(&g, pixels, c->oc, met, c->dtype);
    else rw_gemm_of_panels(&g, c->oc, met, pixels, c->dtype);
    g.from_a = (struct gemm_source){ .transposed = kind == RW_CONV_WEIGHT, .make = take };
    g.from_b = (struct gemm_source){ .transposed = kind == RW_CONV_FORWARD, .make = take };
    return g;
}

static rw_layout matrix(int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    return (rw_layout){ .rank = 2, .dim = { rows, cols }, .stride = { row, col }, .numel = rows * cols };
}

static struct gemm dense(const struct rw_conv *c, enum rw_conv_kind kind, bool bias)
{
    struct gemm g;
    const int64_t pixels = c->n * c->oh * c->ow;
    const rw_layout x = matrix(pixels, c->c, c->c, 1), y = matrix(pixels, c->oc, c->oc, 1);
    const rw_layout transposed_y = matrix(c->oc, pixels, 1, c->oc), weight = matrix(c->oc, c->c, c->c, 1);
    if (kind == RW_CONV_FORWARD) rw_gemm_of_linear(&g, &x, &weight, bias, c->dtype);
    else if (kind == RW_CONV_DATA) rw_gemm_of_matmul(&g, &y, &weight, c->dtype);
    else rw_gemm_of_matmul(&g, &transposed_y, &x, c->dtype);
    return g;
}

static struct gemm product_of(const struct rw_conv *c, enum rw_conv_kind kind, bool third)
{
    struct gemm g = is_dense(c) ? dense(c, kind, third) : gathered(c, kind);
    g.has_bias = third && kind == RW_CONV_FORWARD;
    g.adds = third && kind == RW_CONV_WEIGHT;
    return g;
}

size_t rw_conv_product_workspace(const rw_op_call *call, const struct rw_conv *c, enum rw_conv_kind kind, bool third)
{
    struct gemm g = product_of(c, kind, third);
    const size_t bytes = rw_gemm_workspace_cpu(call, &g);
    if (!g.adds) return bytes;
    g.adds = false; /* the addend may be absent at run time: workspace for either case */
    const size_t plain = rw_gemm_workspace_cpu(call, &g);
    return plain > bytes ? plain : bytes;
}

rw_status rw_conv_run_product(const rw_kernel *k, enum rw_conv_kind kind, const struct rw_conv *c,
                              const struct conv_operands *o, const struct gemm_loops *loops)
{
    const size_t size = rw_dtype_size(c->dtype);
    const int64_t met = c->c * c->kh * c->kw;
    const struct origin x = { c, o->x, 0, size }, y = { NULL, o->y, kind == RW_CONV_FORWARD ? met : c->oc, size };
    struct gemm g = product_of(c, kind, o->bias || o->sum);
    g.from_a.of = kind == RW_CONV_FORWARD ? &x : &y;
    g.from_b.of = kind == RW_CONV_FORWARD ? &y : &x;
    g.a.data = kind == RW_CONV_WEIGHT ? o->y : o->x;
    g.b.data = kind == RW_CONV_WEIGHT ? o->x : o->y;
    g.bias = o->bias;
    g.sum = o->sum;
    g.c = o->to;
    return rw_gemm_run(k, &g, loops);
}
