/* Gathers rows; sums gradients row by row in the order of the tokens. */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"

static bool in_range(const int32_t *index, int64_t n, int64_t rows)
{
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= rows) return false;
    return true;
}

rw_status RW_ISA_NAME(rw_embedding_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_embedding_cpu)(const rw_kernel *k)
{
    const int32_t *const index = k->in[1].data;
    const int64_t n = k->in[1].layout->numel;
    const size_t row = (size_t)k->in[0].layout->dim[1] * rw_dtype_size(k->in[0].dtype);
    if (!in_range(index, n, k->in[0].layout->dim[0])) return RW_ERR_ARGUMENT;
    if (!row) return RW_OK;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (k->out[0].layout->numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)k->out[0].data + (size_t)i * row, (const char *)k->in[0].data + (size_t)index[i] * row, row);
    return RW_OK;
}

#define COLUMNS 256

/* Columns [c, c + n) of one table row: its tokens in order, in float (double for float64), then the sum before. The
 * sum, and what is stored, may be float32 where the tokens are of 16 bits. */
VEC_INLINE void sum_tokens_f(const rw_kernel *k, rw_dtype dtype, int64_t to, int64_t width, int64_t c, int64_t n,
                             const int32_t *token, int64_t tokens)
{
    const rw_dtype of_sum = k->out[0].dtype;
    const bool adds = rw_kernel_has(k, 2);
    float sum[COLUMNS] = { 0 };
    for (int64_t i = 0; i < tokens; i++) {
        const int64_t at = token[i] * width + c;
        int64_t j = 0;
        for (; j + VF_LANES <= n; j += VF_LANES)
            vf_store(sum + j, vf_load(sum + j) + vf_get(k->in[0].data, dtype, at + j));
        for (; j < n; j++) sum[j] += f_get(k->in[0].data, dtype, at + j);
    }
    for (int64_t j = 0; adds && j < n; j++) sum[j] += f_get(k->in[2].data, of_sum, to + j);
    for (int64_t j = 0; j < n; j++) f_put(k->out[0].data, of_sum, to + j, sum[j]);
}

static void sum_tokens_d(const rw_kernel *k, int64_t to, int64_t width, int64_t c, int64_t n, const int32_t *token,
                         int64_t tokens)
{
    const bool adds = rw_kernel_has(k, 2);
    double sum[COLUMNS] = { 0 };
    for (int64_t i = 0; i < tokens; i++) {
        const double *const x = (const double *)k->in[0].data + token[i] * width + c;
        for (int64_t j = 0; j < n; j++) sum[j] += x[j];
    }
    for (int64_t j = 0; adds && j < n; j++) sum[j] += ((const double *)k->in[2].data)[to + j];
    memcpy((double *)k->out[0].data + to, sum, (size_t)n * sizeof *sum);
}

static void sum_tokens(const rw_kernel *k, int64_t row, int64_t width, int64_t c, int64_t n, const int32_t *token,
                       int64_t tokens)
{
    const int64_t to = row * width + c;
    switch (k->in[0].dtype) {
    case RW_F64: sum_tokens_d(k, to, width, c, n, token, tokens); break;
    case RW_BF16: sum_tokens_f(k, RW_BF16, to, width, c, n, token, tokens); break;
    case RW_F16: sum_tokens_f(k, RW_F16, to, width, c, n, token, tokens); break;
    default: sum_tokens_f(k, RW_F32, to, width, c, n, token, tokens);
    }
}

/* A row without tokens. */
static void untouched_row(const rw_kernel *k, int64_t row, int64_t width)
{
    const size_t bytes = (size_t)width * rw_dtype_size(k->out[0].dtype), at = (size_t)row * bytes;
    char *const to = (char *)k->out[0].data + at;
    if (!rw_kernel_has(k, 2)) memset(to, 0, bytes);
    else if (k->in[2].data != k->out[0].data) memcpy(to, (const char *)k->in[2].data + at, bytes);
}

rw_status RW_ISA_NAME(rw_embedding_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_embedding_backward_cpu)(const rw_kernel *k)
{
    const int32_t *const index = k->in[1].data;
    const int64_t n = k->in[1].layout->numel, rows = k->out[0].layout->dim[0], width = k->out[0].layout->dim[1];
    int32_t *const begin = k->workspace, *const token = begin + rows + 1;
    if (!in_range(index, n, rows)) return RW_ERR_ARGUMENT;
    if (!width) return RW_OK;
    /* A counting sort: stable, so the tokens of a row stay in order. */
    memset(begin, 0, (size_t)(rows + 1) * sizeof *begin);
    for (int64_t i = 0; i < n; i++) begin[index[i]]++;
    int32_t at = 0;
    for (int64_t r = 0; r <= rows; r++) {
        const int32_t count = begin[r];
        begin[r] = at;
        at += count;
    }
    for (int64_t i = 0; i < n; i++) token[begin[index[i]]++] = (int32_t)i; /* begin[r] is now the end of row r */
#pragma omp parallel for num_threads(k->threads) schedule(static, 64) if (k->out[0].layout->numel >= RW_PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++) {
        const int32_t from = r ? begin[r - 1] : 0;
        if (begin[r] == from) {
            untouched_row(k, r, width);
            continue;
        }
        for (int64_t c = 0; c < width; c += COLUMNS)
            sum_tokens(k, r, width, c, width - c < COLUMNS ? width - c : COLUMNS, token + from, begin[r] - from);
    }
    return RW_OK;
}
