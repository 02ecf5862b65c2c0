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

struct rw_onednn_pairs rw_onednn_pairs_of(rw_onednn_const_desc d)
{
    const struct rw_onednn_pairs none = { 0 };
    struct rw_onednn_blocks b;
    if (!rw_onednn_desc_blocks(d, &b) || b.type != dnnl_bf16) return none;
    const int64_t taps = b.extent[2] * b.extent[3], block = b.block[0], tap = b.extent[1] * block;
    if (taps < 2) return none; /* the library is as fast */
    if (memcmp(b.extent, b.padded, sizeof b.extent)) return none;
    if (b.of[0] != 0 || b.of[1] != 1 || block % LINE || b.block[1] != 2) return none;
    const int64_t stride[4] = { taps * tap, 2 * block, b.extent[3] * tap, tap };
    if (memcmp(b.stride, stride, sizeof stride)) return none;
    return (struct rw_onednn_pairs){ b.extent[0], b.extent[1], taps, block };
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
static void copy_part(const struct rw_onednn_pairs *p, const uint16_t *from, int64_t first, int64_t end, uint16_t *to)
{
    const int64_t c = p->channels;
    for (int64_t f = 0; f < p->block; f += LINE)
        for (int64_t pair = first; pair < end; pair++)
            for (int64_t tap = 0; tap < p->taps; tap++)
                copy_line(from + (f * c + 2 * pair) * p->taps + tap, c * p->taps, p->taps,
                          to + (tap * c + 2 * pair) * p->block + 2 * f);
    put_all();
}

struct parts {
    const struct rw_onednn_pairs *p;
    const uint16_t *from;
    uint16_t *to;
};

/* The number of parts into which the pairs of a block are divided. */
static int64_t parts_of(const struct rw_onednn_pairs *p)
{
    return (p->channels / 2 + PART - 1) / PART;
}

static void copy_parts(void *of, int64_t from, int64_t end)
{
    const struct parts *const s = of;
    const int64_t of_block = s->p->block * s->p->channels * s->p->taps;
    const int64_t pairs = s->p->channels / 2, parts = parts_of(s->p);
    for (int64_t i = from; i < end; i++) {
        const int64_t first = i % parts * PART, at = i / parts * of_block;
        copy_part(s->p, s->from + at, first, first + PART < pairs ? first + PART : pairs, s->to + at);
    }
}

void rw_onednn_copy_pairs(const struct rw_onednn_pairs *p, const void *from, int threads, void *to)
{
    rw_team_for(threads, p->filters / p->block * parts_of(p), copy_parts, &(struct parts){ p, from, to });
}
