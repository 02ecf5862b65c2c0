/* Timed passes over blocks of several sizes, by all threads. */
#include "device/cpu/cache_miss_cost.h"

#include "base/clock.h"
#include "base/thread_team.h"

#include <math.h>
#include <string.h>

#define MIN (RW_MEMORY_TIMED >> (SIZES - 1)) /* smaller blocks fit in the private caches of each core */
#define SIZES RW_MEMORY_SIZES
#define PASSES 4 /* the fastest counts, because other processes make passes slower */
#define CLEARLY 1.3
#define WRITTEN 1024
#define LINE 64
#define ROWS 64 /* more than prefetchers follow */
#define ROW 4096
#define COLUMNS 256
#define BAND ((size_t)ROWS * ROW)

/* Writes whole lines with the widest stores, as kernels do: narrow stores would fetch a line before they write it.
   memset() of the C library does this for so few bytes; the compiler's inline version does not, hence the volatile
   pointer. */
static void *(*const volatile write_lines)(void *to, int byte, size_t n) = memset;

/* Reads like products that pack an operand: a few columns of many rows, then the next few. */
static uint64_t read_band(const char *band)
{
    uint64_t sum = 0;
    for (int column = 0; column < ROW; column += COLUMNS)
        for (int row = 0; row < ROWS; row++) {
            const uint64_t *const word = (const uint64_t *)(const void *)(band + row * ROW + column);
            for (size_t i = 0; i < COLUMNS / sizeof *word; i++) sum += word[i];
        }
    return sum;
}

enum way { WRITES, READS, READS_COLUMNS };

/* A pass over a block. Reads are summed, so that the compiler does not remove them. */
struct passing {
    char *block;
    uint64_t sum;
};

static void write_some(void *of, int64_t first, int64_t end)
{
    const struct passing *const p = of;
    for (int64_t i = first; i < end; i++) write_lines(p->block + i * WRITTEN, 1, WRITTEN);
}

static void read_words(void *of, int64_t first, int64_t end)
{
    struct passing *const p = of;
    const uint64_t *const word = (const uint64_t *)(const void *)p->block;
    uint64_t sum = 0;
    for (int64_t i = first; i < end; i++) sum += word[i];
    __atomic_fetch_add(&p->sum, sum, __ATOMIC_RELAXED);
}

static void read_bands(void *of, int64_t first, int64_t end)
{
    struct passing *const p = of;
    uint64_t sum = 0;
    for (int64_t i = first; i < end; i++) sum += read_band(p->block + (size_t)i * BAND);
    __atomic_fetch_add(&p->sum, sum, __ATOMIC_RELAXED);
}

/* Seconds of a pass in which each thread handles its part. */
static double pass(char *block, size_t bytes, int threads, enum way way)
{
    static const struct {
        rw_team_range *range;
        size_t item;
    } ways[] = { [WRITES] = { write_some, WRITTEN },
                 [READS] = { read_words, sizeof(uint64_t) },
                 [READS_COLUMNS] = { read_bands, BAND } };
    struct passing p = { .block = block };
    const double begin = rw_now_s();
    rw_team_for(threads, (int64_t)(bytes / ways[way].item), ways[way].range, &p);
    const double seconds = rw_now_s() - begin;
    *(volatile char *)block = (char)p.sum;
    return seconds;
}

/* Seconds per byte, of repeated passes over a block of that size. */
static double time_of(void *block, size_t bytes, int threads, enum way way)
{
    double least = INFINITY;
    pass(block, bytes, threads, way);
    for (int i = 0; i < PASSES; i++) least = fmin(least, pass(block, bytes, threads, way));
    return least / (double)bytes;
}

/* Additional seconds per byte of the largest block, relative to the smallest. */
static double longer(void *block, int threads, enum way way)
{
    return time_of(block, RW_MEMORY_TIMED, threads, way) - time_of(block, MIN, threads, way);
}

/* ---- writes after reads of another thread ---- */

/* The part of thread i. */
static char *share(char *block, int threads, int i, size_t *ret_bytes)
{
    *ret_bytes = MIN / (size_t)threads / WRITTEN * WRITTEN;
    return block + (size_t)i * *ret_bytes;
}

static void write_share(char *block, int threads, int i)
{
    size_t bytes;
    char *const to = share(block, threads, i, &bytes);
    for (size_t k = 0; k < bytes; k += WRITTEN) write_lines(to + k, 1, WRITTEN);
}

static void read_share(char *block, int threads, int i)
{
    size_t bytes;
    const volatile char *const from = share(block, threads, i, &bytes);
    for (size_t k = 0; k < bytes; k += LINE) (void)from[k];
}

struct sharing {
    char *block;
    int ahead;
    double begin, end;
};

static void share_lines(void *of, int thread, int threads)
{
    struct sharing *const s = of;
    write_share(s->block, threads, thread);
    rw_team_barrier();
    read_share(s->block, threads, (thread + s->ahead) % threads);
    rw_team_barrier();
    if (!thread) s->begin = rw_now_s();
    write_share(s->block, threads, thread);
    rw_team_barrier();
    if (!thread) s->end = rw_now_s();
}

/* Seconds in which each thread writes its part, after the thread `ahead` places before it has read that part. */
static double write_what_was_read(char *block, int threads, int ahead)
{
    struct sharing s = { .block = block, .ahead = ahead };
    rw_team_run(threads, share_lines, &s);
    return s.end - s.begin;
}

static double time_of_shared(char *block, int threads, int ahead)
{
    double least = INFINITY;
    for (int i = 0; i < PASSES; i++) least = fmin(least, write_what_was_read(block, threads, ahead));
    return least / MIN;
}

/* ---- results ---- */

bool rw_cpu_memory_price(const double *written, double read, uint64_t *ret_near, double *ret_seconds)
{
    const double near = written[0], far = written[SIZES - 1];
    if (far < CLEARLY * near) return false;
    int last = 0;
    while (written[last + 1] < near + (far - near) / 4) last++;
    *ret_near = MIN << last;
    *ret_seconds = far - near + fmax(read, 0);
    return true;
}

bool rw_cpu_memory_time(void *block, int threads, struct rw_memory_times *ret)
{
    double written[SIZES];
    for (int i = SIZES; i-- > 0;) written[i] = time_of(block, MIN << i, threads, WRITES);
    if (!rw_cpu_memory_price(written, 0, &ret->near_bytes, &ret->far)) return false;
    const double straight = longer(block, threads, READS), columns = longer(block, threads, READS_COLUMNS);
    ret->shared = threads < 2 ? 0 : fmax(0, time_of_shared(block, threads, 1) - time_of_shared(block, threads, 0));
    return rw_cpu_memory_price(written, (straight + columns) / 2, &ret->near_bytes, &ret->far);
}
