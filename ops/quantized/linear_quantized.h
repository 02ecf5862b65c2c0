/*
 * Products with a quantized weight: attributes, and the panels in which CUDA decodes the weight. C11, C++17.
 *
 * A panel is the full depth of some columns of the result: rows of the weight, or its columns if the weight is not
 * transposed. Its width depends on shapes and type alone.
 */
#ifndef RW_OPS_LINEAR_QUANTIZED_H
#define RW_OPS_LINEAR_QUANTIZED_H

#include "base/quantized_formats.h"

#include <rewind/op.h>
#include <rewind/quantized.h>

#include <string.h>

/* `transposed`: x [..., out] times the weight [out, in], else x [..., in] times its transpose. Inputs: x, the weight's
   words, and optionally a bias. */
struct rw_linear_quantized_attrs {
    int64_t kind, out, in, transposed;
};

static inline struct rw_quantized_parts quantized_parts_of(const struct rw_linear_quantized_attrs *a)
{
    return a->kind == RW_NF4 ? rw_parts_of_nf4(a->out * a->in) : rw_parts_of_int8(a->out * a->in, a->out);
}

#ifndef __cplusplus
/* On the CPU: one product, whose second factor is generated from the weight; without data
   (ops/matmul/gemm_descriptor.h). */
struct gemm;
void rw_quantized_gemm(struct gemm *g, const struct rw_linear_quantized_attrs *a, const rw_layout *x, bool bias,
                       rw_dtype dtype);
#endif

#define QUANTIZED_COLS 64                       /* divides the width of panels; the size of an NF4 block */
#define QUANTIZED_PANEL_CUDA ((int64_t)4 << 20) /* maximum bytes of a panel that is wider than QUANTIZED_COLS */

struct quantized_panels {
    int64_t rows, depth, cols; /* [rows, depth] times [depth, cols] */
    int64_t width, n;          /* of all panels but the last, and their number */
    size_t bytes;              /* of one, aligned */
};

/* bytes: the maximum for a panel. */
static inline struct quantized_panels quantized_panels_of(const struct rw_linear_quantized_attrs *a, const rw_layout *x,
                                                          rw_dtype dtype, int64_t bytes)
{
    struct quantized_panels p;
    const int64_t size = (int64_t)rw_dtype_size(dtype);
    p.depth = a->transposed ? a->out : a->in;
    p.cols = a->transposed ? a->in : a->out;
    p.rows = 1;
    for (int i = 0; i + 1 < x->rank; i++) p.rows *= x->dim[i];
    const int64_t fit = bytes / ((p.depth ? p.depth : 1) * size) / QUANTIZED_COLS * QUANTIZED_COLS;
    p.width = fit < QUANTIZED_COLS ? QUANTIZED_COLS : fit;
    p.n = (p.cols + p.width - 1) / p.width;
    if (p.n) p.width = ((p.cols + p.n - 1) / p.n + QUANTIZED_COLS - 1) / QUANTIZED_COLS * QUANTIZED_COLS;
    p.n = (p.cols + p.width - 1) / p.width;
    const int64_t least = p.cols < p.width ? p.cols : p.width;
    p.bytes = (size_t)((least * p.depth * size + 255) / 256 * 256);
    return p;
}

static inline int64_t quantized_width(const struct quantized_panels *p, int64_t i)
{
    return p->cols - i * p->width < p->width ? p->cols - i * p->width : p->width;
}

/* Panel i as the weight of an rw_linear(): the layouts that its kernel reads, and the offsets. */
struct quantized_product {
    rw_layout x, weight, bias;
    int64_t first; /* column of the result, and element of the bias */
};

static inline rw_layout quantized_matrix(int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    rw_layout l;
    memset(&l, 0, sizeof l);
    l.rank = 2;
    l.numel = l.span = rows * cols;
    l.dense = col == 1;
    l.dim[0] = rows, l.dim[1] = cols;
    l.stride[0] = row, l.stride[1] = col;
    return l;
}

/* bias: its layout, dense, or NULL. */
static inline struct quantized_product quantized_product_of(const struct quantized_panels *p, int64_t i,
                                                            bool transposed, const rw_layout *x, const rw_layout *bias)
{
    struct quantized_product q;
    const int64_t width = quantized_width(p, i);
    q.first = i * p->width;
    q.x = quantized_matrix(p->rows, p->depth, p->depth, 1);
    q.x.offset = x->offset;
    q.weight = transposed ? quantized_matrix(width, p->depth, 1, width)
                          : quantized_matrix(width, p->depth, p->depth, 1);
    if (bias) {
        q.bias = *bias;
        q.bias.offset += q.first;
        q.bias.dim[0] = q.bias.numel = q.bias.span = width;
    }
    return q;
}

#endif
