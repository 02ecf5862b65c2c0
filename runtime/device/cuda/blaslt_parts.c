/* Cuts a matrix product into parts: their extents, and the operands of each. */
#include "device/cuda/blaslt_parts.h"

#include "base/element_size.h"

#define ALIGNMENT 16 /* bytes: the most that a product promises of an address */

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Number of vectors, `step` elements apart and each of a span of `length`, that fit into max_count elements. */
static int64_t vectors_within(int64_t length, int64_t step, int64_t max_count)
{
    if (length > max_count) return 0;
    return step ? (max_count - length) / step + 1 : max_count;
}

/* The smallest power of two whose multiple of the step is aligned. */
static int64_t unit_of(int64_t step, int32_t dtype)
{
    const uint64_t bytes = (uint64_t)step * rw_element_size(dtype) | ALIGNMENT;
    return (int64_t)(ALIGNMENT / (bytes & (~bytes + 1)));
}

/* Equal parts of an axis of at most max elements, in whole units. 0: not even a unit fits. */
static int64_t even_part(int64_t extent, int64_t max, int64_t unit)
{
    if (extent <= max) return extent;
    const int64_t largest = max / unit * unit;
    if (!largest) return 0;
    const int64_t parts = (extent - 1) / largest + 1, even = (extent - 1) / parts + 1;
    return (even + unit - 1) / unit * unit;
}

static int32_t dtype_of_b(const struct rw_blaslt_product *p)
{
    return p->b_codes ? p->b_codes : p->dtype;
}

static int32_t dtype_of_bias(const struct rw_blaslt_product *p)
{
    return p->b_codes ? (int32_t)RW_BF16 : p->dtype;
}

/* Units are powers of two. FP8 products exist for extents in whole 16 bytes alone. */
static int64_t max_unit(const struct rw_blaslt_product *p, int64_t a, int64_t b)
{
    const int64_t unit = a > b ? a : b;
    return p->b_codes && unit < ALIGNMENT ? ALIGNMENT : unit;
}

static int64_t part_of_columns(const struct rw_blaslt_product *p, int64_t max_count)
{
    const int64_t of_c = max_unit(p, unit_of(1, p->to), unit_of(1, dtype_of_bias(p)));
    const int64_t unit = max_unit(p, unit_of(p->b_col, dtype_of_b(p)), of_c);
    return even_part(p->n, vectors_within((p->k - 1) * p->b_row + 1, p->b_col, max_count), unit);
}

static int64_t part_of_rows(const struct rw_blaslt_product *p, int64_t cols, int64_t max_count)
{
    const int64_t unit = max_unit(p, unit_of(p->a_row, p->dtype), unit_of(p->c_row, p->to));
    const int64_t in_a = vectors_within((p->k - 1) * p->a_col + 1, p->a_row, max_count);
    return even_part(p->m, min_of(in_a, vectors_within(cols, p->c_row, max_count)), unit);
}

/* Of whole products. */
static int64_t part_of_batch(const struct rw_blaslt_product *p, int64_t max_count)
{
    const int64_t a = (p->m - 1) * p->a_row + (p->k - 1) * p->a_col + 1;
    const int64_t b = (p->k - 1) * p->b_row + (p->n - 1) * p->b_col + 1;
    const int64_t c = (p->m - 1) * p->c_row + p->n;
    int64_t batch = min_of(vectors_within(a, p->a_batch, max_count), vectors_within(b, p->b_batch, max_count));
    batch = min_of(batch, vectors_within(c, p->m * p->n, max_count));
    return min_of(p->batch, min_of(batch, RW_BLASLT_MAX_BATCH));
}

bool rw_blaslt_part_of(const struct rw_blaslt_product *p, int64_t max_count, struct rw_blaslt_part *ret_part)
{
    const int64_t counts[] = { p->k, p->a_row, p->a_col, p->b_row, p->b_col, p->c_row };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i] > max_count) return false;
    const int64_t cols = part_of_columns(p, max_count);
    const int64_t rows = cols ? part_of_rows(p, cols, max_count) : 0;
    if (!rows) return false;
    const bool whole = rows == p->m && cols == p->n;
    *ret_part = (struct rw_blaslt_part){ whole ? part_of_batch(p, max_count) : 1, rows, cols };
    return true;
}

struct rw_blaslt_product rw_blaslt_part_product(const struct rw_blaslt_product *p, struct rw_blaslt_part part)
{
    struct rw_blaslt_product r = *p;
    r.batch = part.batch;
    r.m = part.rows;
    r.n = part.cols;
    if (part.batch == 1) r.a_batch = r.b_batch = 0; /* they may be too large, and mean nothing */
    return r;
}

static void *moved(const void *p, int64_t elements, int32_t dtype)
{
    return p ? (char *)p + elements * (int64_t)rw_element_size(dtype) : NULL;
}

struct rw_blaslt_operands rw_blaslt_part_operands(const struct rw_blaslt_product *p, struct rw_blaslt_part begin,
                                                  const struct rw_blaslt_operands *whole)
{
    struct rw_blaslt_operands x = *whole;
    const int64_t at = begin.batch * p->m * p->n + begin.rows * p->c_row + begin.cols;
    x.a = moved(x.a, begin.batch * p->a_batch + begin.rows * p->a_row, p->dtype);
    x.b = moved(x.b, begin.batch * p->b_batch + begin.cols * p->b_col, dtype_of_b(p));
    x.bias = moved(x.bias, begin.cols, dtype_of_bias(p));
    x.sum = moved(x.sum, at, p->to);
    x.c = moved(x.c, at, p->to);
    x.aux = moved(x.aux, at, p->to);
    return x;
}
