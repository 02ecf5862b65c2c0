/*
 * A dense weight of bfloat16 in the layout that oneDNN's forward code takes it in: channels by twos, of 16, 32, 48 or
 * 64 filters.
 *
 *     [oc, c, kh, kw]  ->  [oc / block, kh, kw, c / 2, block, 2]
 *
 * The library's own copy writes a pair for each tap of the kernel in turn. These lie a multiple of 4 KiB apart as a
 * rule, which are one place of the first cache, and a line is gone before its next pair comes. Here a line is written
 * at once. That takes a third of the time, which is a fourth of the product's where there are few pixels.
 *
 * And it is written past the caches: another core has read what lay there before, and to be given each such line takes
 * three times as long as all else, where the cores do not share a last cache.
 */
#include "device/cpu/onednn_primitive.h"

#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE 16 /* filters whose pairs are a line of the cache */
#define PART 16 /* pairs of channels that a thread copies at a time */

static int64_t taps_of(const dnnl_memory_desc_t *d)
{
    return d->dims[2] * d->dims[3];
}

bool rw_onednn_is_of_pairs(const dnnl_memory_desc_t *d)
{
    const dnnl_blocking_desc_t *const b = &d->format_desc.blocking;
    if (d->ndims != 4 || d->data_type != dnnl_bf16 || d->format_kind != dnnl_blocked || d->extra.flags) return false;
    if (taps_of(d) < 2) return false; /* the library's is as fast */
    for (int i = 0; i < d->ndims; i++)
        if (d->dims[i] != d->padded_dims[i]) return false;
    if (b->inner_nblks != 2 || b->inner_idxs[0] != 0 || b->inner_idxs[1] != 1) return false;
    const int64_t block = b->inner_blks[0], tap = d->dims[1] * block;
    return block % LINE == 0 && b->inner_blks[1] == 2 && b->strides[0] == taps_of(d) * tap &&
           b->strides[1] == 2 * block && b->strides[2] == d->dims[3] * tap && b->strides[3] == tap;
}

#if defined(__x86_64__)
static void put_line(uint16_t (*line)[2], void *to)
{
    for (int i = 0; i < 2 * LINE / 8; i++)
        _mm_stream_si128((__m128i *)to + i, _mm_loadu_si128((const __m128i *)(const void *)line + i));
}

static void put_all(void)
{
    _mm_sfence();
}
#else
static void put_line(uint16_t (*line)[2], void *to)
{
    memcpy(to, line, LINE * sizeof *line);
}

static void put_all(void)
{
}
#endif

/* Of a line's filters, from the first on, pair i under one tap: its channels lie `taps` apart. */
static void copy_line(const uint16_t *from, int64_t filter, int64_t taps, uint16_t *to)
{
    uint16_t line[LINE][2];
    for (int f = 0; f < LINE; f++)
        for (int i = 0; i < 2; i++) line[f][i] = from[f * filter + i * taps];
    put_line(line, to);
}

/* Pairs [first, end) of a block of filters. */
static void copy_part(const dnnl_memory_desc_t *d, const uint16_t *from, int64_t first, int64_t end, uint16_t *to)
{
    const int64_t c = d->dims[1], taps = taps_of(d), block = d->format_desc.blocking.inner_blks[0];
    for (int64_t f = 0; f < block; f += LINE)
        for (int64_t pair = first; pair < end; pair++)
            for (int64_t tap = 0; tap < taps; tap++)
                copy_line(from + (f * c + 2 * pair) * taps + tap, c * taps, taps,
                          to + (tap * c + 2 * pair) * block + 2 * f);
    put_all();
}

void rw_onednn_copy_pairs(const dnnl_memory_desc_t *d, const void *from, int threads, void *to)
{
    const int64_t block = d->format_desc.blocking.inner_blks[0], of_block = block * d->dims[1] * taps_of(d);
    const int64_t pairs = d->dims[1] / 2, parts = (pairs + PART - 1) / PART, units = d->dims[0] / block * parts;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < units; i++) {
        const int64_t first = i % parts * PART, at = i / parts * of_block;
        copy_part(d, (const uint16_t *)from + at, first, first + PART < pairs ? first + PART : pairs,
                  (uint16_t *)to + at);
    }
}
