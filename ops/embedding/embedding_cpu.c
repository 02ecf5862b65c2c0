/* CPU kernels of embedding: gathers rows; sums gradients row by row in the order of the tokens. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"

static bool in_range(const int32_t *index, int64_t n, int64_t rows)
{
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= rows) return false;
    return true;
}

static size_t row_bytes(const rw_kernel *k)
{
    return (size_t)k->in[0].layout->dim[1] * rw_dtype_size(k->in[0].dtype);
}

static void copy_rows(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const int32_t *const index = k->in[1].data;
    const size_t row = row_bytes(k);
    for (int64_t i = first; i < end; i++)
        memcpy((char *)k->out[0].data + (size_t)i * row, (const char *)k->in[0].data + (size_t)index[i] * row, row);
}

rw_status RW_ISA_NAME(rw_embedding_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_embedding_cpu)(const rw_kernel *k)
{
    const int32_t *const index = k->in[1].data;
    const int64_t n = k->in[1].layout->numel;
    if (!in_range(index, n, k->in[0].layout->dim[0])) return RW_ERR_ARGUMENT;
    if (row_bytes(k)) rw_team_for(rw_threads_for(k, k->out[0].layout->numel), n, copy_rows, k);
    return RW_OK;
}

#define COLUMNS 256

/* Columns [c, c + n) of one table row: the tokens in order, in float (double for float64), then the addend. With tokens
   of 16 bits, the addend and the stored result may be float32. */
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

#define DEALT_ROWS 64

/* Tokens by row: those of row r end at index end[r] of the list, where those of the next one begin. */
struct sorted {
    const rw_kernel *k;
    const int32_t *end, *token;
    int64_t rows, width;
};

static void sum_row(const struct sorted *s, int64_t r)
{
    const int32_t from = r ? s->end[r - 1] : 0, n = s->end[r] - from;
    const int64_t width = s->width;
    if (!n) untouched_row(s->k, r, width);
    for (int64_t c = 0; n && c < width; c += COLUMNS)
        sum_tokens(s->k, r, width, c, width - c < COLUMNS ? width - c : COLUMNS, s->token + from, n);
}

/* Rows are distributed round-robin, a few at a time: in many vocabularies frequent tokens are adjacent. */
static void sum_rows(void *of, int thread, int threads)
{
    const struct sorted *const s = of;
    for (int64_t some = thread * DEALT_ROWS; some < s->rows; some += threads * DEALT_ROWS)
        for (int64_t r = some; r < some + DEALT_ROWS && r < s->rows; r++) sum_row(s, r);
}

/* Sorts the tokens by row, then sums each row. */
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
    const struct sorted s = { k, begin, token, rows, width };
    rw_team_run(rw_threads_for(k, k->out[0].layout->numel), sum_rows, &s);
    return RW_OK;
}
