/* The pieces of an x put side by side, and numbers of an x widened. See conv_run.h. */
#include "ops/conv/conv_run.h"

#include <string.h>

#define PART 256 /* pixels that a thread takes at a time */

size_t rw_conv_packed_bytes(const struct rw_conv *c, int64_t pixels)
{
    return (size_t)gemm_align(pixels * c->c * (int64_t)rw_dtype_size(c->dtype), GEMM_SCRATCH_ALIGN);
}

void rw_conv_pack(const struct rw_conv *c, const struct conv_operands *o, int64_t first, int64_t pixels, void *to)
{
    const size_t size = rw_dtype_size(c->dtype), row = (size_t)c->c * size;
    size_t at = 0;
    for (int64_t i = 0; i < o->pieces; i++) {
        const size_t part = (size_t)o->piece[i].layout->dim[3] * size;
        const char *from = (const char *)o->piece[i].data + (size_t)first * part;
        char *put = (char *)to + at;
        for (int64_t p = 0; part && p < pixels; p++, from += part, put += row) memcpy(put, from, part);
        at += part;
    }
}

void rw_conv_pack_all(const struct rw_conv *c, const struct conv_operands *o, int threads, void *to)
{
    const int64_t pixels = c->n * c->h * c->w, parts = gemm_ceil_div(pixels, PART);
    const size_t row = (size_t)c->c * rw_dtype_size(c->dtype);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < parts; i++) {
        const int64_t first = i * PART, some = pixels - first < PART ? pixels - first : PART;
        rw_conv_pack(c, o, first, some, (char *)to + (size_t)first * row);
    }
}

/* What is put together lies where the second half of the result will be. */
void rw_conv_widen(const struct rw_conv *c, const struct conv_operands *o, const struct gemm_loops *loops,
                   int64_t first, int64_t pixels, float *to)
{
    const int64_t size = (int64_t)rw_dtype_size(c->dtype), n = pixels * c->c;
    char *const narrow = (char *)to + n * size;
    if (o->pieces) rw_conv_pack(c, o, first, pixels, narrow);
    loops->widen(c->dtype, o->pieces ? narrow : (const char *)o->x + first * c->c * size, 1, n, to);
}

void rw_conv_widen_whole(const struct rw_conv *c, const struct conv_operands *o, const struct gemm_loops *loops,
                         int threads, float *to)
{
    const int64_t pixels = c->n * c->h * c->w, parts = gemm_ceil_div(pixels, PART);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < parts; i++) {
        const int64_t first = i * PART, some = pixels - first < PART ? pixels - first : PART;
        rw_conv_widen(c, o, loops, first, some, to + first * c->c);
    }
}

void rw_conv_widen_all(const struct gemm_loops *loops, rw_dtype dtype, const void *from, int64_t n, int threads,
                       float *to)
{
    const int64_t size = (int64_t)rw_dtype_size(dtype), part = gemm_ceil_div(n, threads);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t at = 0; at < n; at += part)
        loops->widen(dtype, (const char *)from + at * size, 1, n - at < part ? n - at : part, to + at);
}
