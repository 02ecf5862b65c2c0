/*
 * Convolutions of one tap that are carried out as matrix products. See conv_run.h.
 *
 *     y  [pixels, oc] = x  [pixels, c]  weight [oc, c]^T
 *     dx [pixels, c]  = dy [pixels, oc] weight [oc, c]
 *     dw [oc, c]      = dy [pixels, oc]^T x [pixels, c]
 *
 * Where pixels are skipped, x's rows do not follow one another: a panel of them at a time is gathered.
 *
 * The library's convolution goes through the weight once for each image, and a weight's gradient through x once for
 * each part of the filters; with few pixels in an image, or in bfloat16, where both operands have to be turned first,
 * that takes up to six times as long as the product does.
 */
#include "ops/conv/conv_run.h"

#include <string.h>

#define FEW_PIXELS 256     /* of an image */
#define WEIGHT_LEAST 16384 /* elements: of fewer, the tiles of a gradient are too few for threads */

static bool skips(const struct rw_conv *c)
{
    return c->stride[0] > 1 || c->stride[1] > 1;
}

bool rw_conv_is_product(const struct rw_conv *c, enum rw_conv_kind kind)
{
    if (c->dtype != RW_F32 && c->dtype != RW_BF16) return false;
    if (c->kh != 1 || c->kw != 1 || c->padding[0] || c->padding[1] || c->groups != 1) return false;
    if (!c->n || !c->c || !c->oc || !c->oh || !c->ow) return false;
    const bool few = c->oh * c->ow < FEW_PIXELS;
    if (kind == RW_CONV_FORWARD) return few;
    if (kind == RW_CONV_DATA) return few && !skips(c);
    return few || (c->dtype == RW_BF16 && c->oc * c->c >= WEIGHT_LEAST);
}

/* Rows of x [n, h, w, c] that the only tap meets; of what is dense, every row. */
struct pixels {
    const struct rw_conv *c; /* NULL: dense */
    const char *data;
    int64_t row; /* elements */
    size_t size;
};

static void take(const void *of, int64_t row, int64_t col, int64_t n, void *to)
{
    const struct pixels *const p = of;
    if (p->c) {
        const int64_t x = row % p->c->ow, y = row / p->c->ow % p->c->oh, image = row / p->c->ow / p->c->oh;
        row = (image * p->c->h + y * p->c->stride[0]) * p->c->w + x * p->c->stride[1];
    }
    memcpy(to, p->data + (size_t)(row * p->row + col) * p->size, (size_t)n * p->size);
}

static struct gemm gathered(const struct rw_conv *c, enum rw_conv_kind kind)
{
    struct gemm g;
    const int64_t pixels = c->n * c->oh * c->ow;
    if (kind == RW_CONV_FORWARD) rw_gemm_of_panels(&g, pixels, c->oc, c->c, c->dtype);
    else rw_gemm_of_panels(&g, c->oc, c->c, pixels, c->dtype);
    g.from_a = (struct gemm_source){ .turned = kind == RW_CONV_WEIGHT, .make = take };
    g.from_b = (struct gemm_source){ .turned = kind == RW_CONV_FORWARD, .make = take };
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
    const rw_layout turned_y = matrix(c->oc, pixels, 1, c->oc), weight = matrix(c->oc, c->c, c->c, 1);
    if (kind == RW_CONV_FORWARD) rw_gemm_of_linear(&g, &x, &weight, bias, c->dtype);
    else if (kind == RW_CONV_DATA) rw_gemm_of_matmul(&g, &y, &weight, c->dtype);
    else rw_gemm_of_matmul(&g, &turned_y, &x, c->dtype);
    return g;
}

static struct gemm product_of(const struct rw_conv *c, enum rw_conv_kind kind, bool third)
{
    struct gemm g = skips(c) ? gathered(c, kind) : dense(c, kind, third);
    g.has_bias = third && kind == RW_CONV_FORWARD;
    g.adds = third && kind == RW_CONV_WEIGHT;
    return g;
}

size_t rw_conv_product_workspace(const rw_op_call *call, const struct rw_conv *c, enum rw_conv_kind kind)
{
    struct gemm g = product_of(c, kind, call->n_inputs == 3);
    const size_t bytes = rw_gemm_workspace_cpu(call, &g);
    if (!g.adds) return bytes;
    g.adds = false; /* what it is added to may be absent when it runs: room for either */
    const size_t plain = rw_gemm_workspace_cpu(call, &g);
    return plain > bytes ? plain : bytes;
}

rw_status rw_conv_run_product(const rw_kernel *k, enum rw_conv_kind kind, const struct rw_conv *c,
                              const struct conv_operands *o, rw_gemm_tile_fn tile)
{
    const size_t size = rw_dtype_size(c->dtype);
    const struct pixels x = { c, o->x, c->c, size }, y = { NULL, o->y, kind == RW_CONV_FORWARD ? c->c : c->oc, size };
    struct gemm g = product_of(c, kind, o->bias || o->sum);
    g.from_a.of = kind == RW_CONV_FORWARD ? &x : &y;
    g.from_b.of = kind == RW_CONV_FORWARD ? &y : &x;
    g.a.data = kind == RW_CONV_WEIGHT ? o->y : o->x;
    g.b.data = kind == RW_CONV_WEIGHT ? o->x : o->y;
    g.bias = o->bias;
    g.sum = o->sum;
    g.c = o->to;
    return rw_gemm_run(k, &g, tile);
}
