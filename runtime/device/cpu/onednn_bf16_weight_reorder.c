/*
 * Converts a dense weight of bfloat16 to the layout of oneDNN's forward code: pairs of channels, in blocks of 16, 32,
 * 48 or 64 filters.
 *
 *     [oc, c, kh, kw]  ->  [oc / block, kh, kw, c / 2, block, 2]
 *
 * The library's own conversion writes one pair for each tap of the kernel in turn. These are usually a multiple of 4
 * KiB apart and map to one set of the first-level cache, so a line is evicted before its next pair is written. Here a
 * line is written at once. This takes a third of the time of the library's conversion, which is a quarter of the
 * product's time if there are few pixels.
 *
 * Lines are written past the caches, because another core has read their old contents. To get ownership of each such
 * line takes three times as long as everything else if the cores share no last-level cache.
 */
#include "base/thread_team.h"
#include "device/cpu/onednn_primitive.h"

#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE 16 /* filters whose pairs fill a cache line */
#define PART 16 /* pairs of channels that a thread copies at a time */

static int64_t taps_of(const dnnl_memory_desc_t *d)
{
    return d->dims[2] * d->dims[3];
}

bool rw_onednn_is_of_pairs(const dnnl_memory_desc_t *d)
{
    const dnnl_blocking_desc_t *const b = &d->format_desc.blocking;
    if (d->ndims != 4 || d->data_type != dnnl_bf16 || d->format_kind != dnnl_blocked || d->extra.flags) return false;
    if (taps_of(d) < 2) return false; /* the library is as fast */
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

/*
 * Copies pair i of a line's filters under one tap, from the first filter on. Its two channels are `taps` elements
 * apart.
 */
static void copy_line(const uint16_t *from, int64_t filter, int64_t taps, uint16_t *to)
{
    uint16_t line[LINE][2];
    for (int f = 0; f < LINE; f++)
        for (int i = 0; i < 2; i++) line[f][i] = from[f * filter + i * taps];
    put_line(line, to);
}

/* Copies the pairs [first, end) of a block of filters. */
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

struct parts {
    const dnnl_memory_desc_t *d;
    const uint16_t *from;
    uint16_t *to;
};

/* The number of parts into which the pairs of a block are divided. */
static int64_t parts_of(const dnnl_memory_desc_t *d)
{
    return (d->dims[1] / 2 + PART - 1) / PART;
}

static void copy_parts(void *of, int64_t from, int64_t end)
{
    const struct parts *const p = of;
    const int64_t block = p->d->format_desc.blocking.inner_blks[0], of_block = block * p->d->dims[1] * taps_of(p->d);
    const int64_t pairs = p->d->dims[1] / 2, parts = parts_of(p->d);
    for (int64_t i = from; i < end; i++) {
        const int64_t first = i % parts * PART, at = i / parts * of_block;
        copy_part(p->d, p->from + at, first, first + PART < pairs ? first + PART : pairs, p->to + at);
    }
}

void rw_onednn_copy_pairs(const dnnl_memory_desc_t *d, const void *from, int threads, void *to)
{
    const int64_t blocks = d->dims[0] / d->format_desc.blocking.inner_blks[0];
    rw_team_for(threads, blocks * parts_of(d), copy_parts, &(struct parts){ d, from, to });
}
