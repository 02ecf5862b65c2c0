/*
 * Concatenates the inputs of a virtually concatenated x, and widens elements of an x to float32, for the CPU kernels.
 */
#include "ops/common/work_stealing.h"
#include "ops/conv/conv_run.h"

#include <string.h>

#define PART 256 /* pixels that a thread processes at a time */

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

/* All pixels of x, in chunks. */
struct pixels {
    const struct rw_conv *c;
    const struct conv_operands *o;
    const struct gemm_loops *loops;
    void *to;
};

static int64_t count_pixels(const struct rw_conv *c)
{
    return c->n * c->h * c->w;
}

static void pack_parts(void *of, int64_t from, int64_t end)
{
    const struct pixels *const x = of;
    const int64_t pixels = count_pixels(x->c);
    const size_t row = (size_t)x->c->c * rw_dtype_size(x->c->dtype);
    for (int64_t i = from; i < end; i++) {
        const int64_t first = i * PART, some = pixels - first < PART ? pixels - first : PART;
        rw_conv_pack(x->c, x->o, first, some, (char *)x->to + (size_t)first * row);
    }
}

void rw_conv_pack_all(const struct rw_conv *c, const struct conv_operands *o, int threads, void *to)
{
    rw_team_for(threads, gemm_ceil_div(count_pixels(c), PART), pack_parts, &(struct pixels){ c, o, NULL, to });
}

/* The concatenated elements are first written to the second half of the result's memory. */
void rw_conv_widen(const struct rw_conv *c, const struct conv_operands *o, const struct gemm_loops *loops,
                   int64_t first, int64_t pixels, float *to)
{
    const int64_t size = (int64_t)rw_dtype_size(c->dtype), n = pixels * c->c;
    char *const narrow = (char *)to + n * size;
    if (o->pieces) rw_conv_pack(c, o, first, pixels, narrow);
    loops->widen(c->dtype, o->pieces ? narrow : (const char *)o->x + first * c->c * size, 1, n, to);
}

static void widen_parts(void *of, int64_t from, int64_t end)
{
    const struct pixels *const x = of;
    const int64_t pixels = count_pixels(x->c);
    for (int64_t i = from; i < end; i++) {
        const int64_t first = i * PART, some = pixels - first < PART ? pixels - first : PART;
        rw_conv_widen(x->c, x->o, x->loops, first, some, (float *)x->to + first * x->c->c);
    }
}

void rw_conv_widen_whole(const struct rw_conv *c, const struct conv_operands *o, const struct gemm_loops *loops,
                         int threads, float *to)
{
    rw_team_for(threads, gemm_ceil_div(count_pixels(c), PART), widen_parts, &(struct pixels){ c, o, loops, to });
}

struct numbers {
    const struct gemm_loops *loops;
    rw_dtype dtype;
    const char *from;
    float *to;
};

static void widen_numbers(void *of, int64_t first, int64_t end)
{
    const struct numbers *const n = of;
    n->loops->widen(n->dtype, n->from + first * (int64_t)rw_dtype_size(n->dtype), 1, end - first, n->to + first);
}

void rw_conv_widen_all(const struct gemm_loops *loops, rw_dtype dtype, const void *from, int64_t n, int threads,
                       float *to)
{
    rw_team_for(threads, n, widen_numbers, &(struct numbers){ loops, dtype, from, to });
}
