/* Decides which convolutions and attentions fit into the types of cuDNN, and in how many parts. */
#include "device/cuda/cudnn/int32_batch_split.h"

#include "base/element_size.h"

#define ALIGNMENT 16 /* bytes at which the library's engines load */

static bool fit(const int64_t *counts, size_t n, int64_t max_count)
{
    for (size_t i = 0; i < n; i++)
        if (counts[i] > max_count) return false;
    return true;
}

/* The product of extents from 1 to max_count; a number above max_count if it is larger. */
static int64_t product(const int64_t *extents, size_t n, int64_t max_count)
{
    int64_t all = 1;
    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(all, extents[i], &all) || all > max_count) return INT64_MAX;
    return all;
}

static bool is_aligned(int64_t elements, int32_t dtype)
{
    return (uint64_t)elements * rw_element_size(dtype) % ALIGNMENT == 0;
}

/* ---- convolutions ---- */

static bool conv_fits(const struct rw_dnn_conv_signature *s, int64_t max_count)
{
    const int64_t counts[] = { s->h,         s->w,          s->c,          s->oh,          s->ow,
                               s->oc,        s->kh,         s->kw,         s->groups,      s->stride[0],
                               s->stride[1], s->padding[0], s->padding[1], s->dilation[0], s->dilation[1] };
    const int64_t weight[] = { s->oc, s->c / s->groups, s->kh, s->kw };
    return fit(counts, sizeof counts / sizeof *counts, max_count) && product(weight, 4, max_count) <= max_count;
}

int64_t rw_dnn_conv_part(const struct rw_dnn_conv_signature *s, int64_t max_count)
{
    const int64_t x_image[] = { s->h, s->w, s->c }, y_image[] = { s->oh, s->ow, s->oc };
    if (!conv_fits(s, max_count)) return 0;
    const int64_t x = product(x_image, 3, max_count), y = product(y_image, 3, max_count);
    const int64_t max = max_count / (x > y ? x : y);
    if (!max || s->n <= max) return max ? s->n : 0;
    if (s->kind == RW_DNN_CONV_WEIGHT) return 0;
    int64_t unit = 1;
    while (!is_aligned(unit * x, s->dtype) || !is_aligned(unit * y, s->dtype)) unit *= 2;
    const int64_t largest = max / unit * unit;
    if (!largest) return 0;
    const int64_t parts = (s->n - 1) / largest + 1, even = (s->n - 1) / parts + 1;
    return (even + unit - 1) / unit * unit;
}

/* ---- attention ---- */

/* Of an operand [batch, heads, rows, d] whose last stride is 1. */
static bool operand_fits(const int64_t *extent, int64_t d, const int64_t *stride, int64_t max_count)
{
    int64_t elements = d;
    for (int i = 0; i < 3; i++) {
        if (extent[i] == 1) continue;
        if (stride[i] > max_count) return false;
        elements += (extent[i] - 1) * stride[i];
    }
    return elements <= max_count;
}

bool rw_sdpa_fits(const struct rw_sdpa_signature *s, int64_t batch, int64_t max_count)
{
    const int64_t *const queries[] = { s->q, s->o, s->dy, s->dq }, *const keys[] = { s->k, s->v, s->dk };
    const int64_t q[] = { batch, s->heads, s->seq }, k[] = { batch, s->kv_heads, s->kv_seq };
    const int64_t scores[] = { batch, s->heads, s->seq, s->kv_seq };
    if (!fit(q, 3, max_count) || !fit(k, 3, max_count) || product(q, 3, max_count) > max_count) return false;
    /* Scores are not in memory: their strides take the API's 64 bits. */
    if (product(scores, 4, INT64_MAX - 1) == INT64_MAX) return false;
    for (int i = 0; i < (s->backward ? 4 : 2); i++)
        if (!operand_fits(q, s->d, queries[i], max_count)) return false;
    for (int i = 0; i < (s->backward ? 3 : 2); i++)
        if (!operand_fits(k, s->d, keys[i], max_count)) return false;
    return true;
}
