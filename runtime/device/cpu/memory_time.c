/* See memory_time.h. */
#include "device/cpu/memory_time.h"

#include "base/clock.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define LEAST (RW_MEMORY_TIMED >> (SIZES - 1)) /* below are caches that each core has for itself */
#define SIZES RW_MEMORY_SIZES
#define PASSES 4 /* the fastest counts: who else is on the machine makes it slower */
#define CLEARLY 1.3
#define WRITTEN 1024
#define LINE 64
#define ROWS 64 /* more than prefetchers follow */
#define ROW 4096
#define COLUMNS 256
#define BAND ((size_t)ROWS * ROW)

/* Whole lines are written by the widest stores there are, as kernels do: narrow ones fetch a line before they write it.
   The C library's memset() has them, and for so few bytes at a time nothing else; the compiler's own has not. */
static void *(*const volatile write_lines)(void *to, int byte, size_t n) = memset;

/* As products read the operand that they pack: a few columns of many rows, then the next few. */
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

/* Seconds of a pass of all threads, each through its part. */
static double pass(char *block, size_t bytes, int threads, enum way way)
{
    const long n = (long)(bytes / WRITTEN), words = (long)(bytes / sizeof(uint64_t)), bands = (long)(bytes / BAND);
    const uint64_t *const word = (const uint64_t *)(const void *)block;
    const double begin = rw_now_s();
    uint64_t sum = 0;
    if (way == WRITES) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long i = 0; i < n; i++) write_lines(block + i * WRITTEN, 1, WRITTEN);
    } else if (way == READS) {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
        for (long i = 0; i < words; i++) sum += word[i];
    } else {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
        for (long i = 0; i < bands; i++) sum += read_band(block + i * BAND);
    }
    const double seconds = rw_now_s() - begin;
    *(volatile char *)block = (char)sum;
    return seconds;
}

/* Of a byte, written or read again in a block of so many. */
static double time_of(void *block, size_t bytes, int threads, enum way way)
{
    double least = INFINITY;
    pass(block, bytes, threads, way);
    for (int i = 0; i < PASSES; i++) least = fmin(least, pass(block, bytes, threads, way));
    return least / (double)bytes;
}

/* How much longer a byte of the largest block takes than one of the smallest. */
static double longer(void *block, int threads, enum way way)
{
    return time_of(block, RW_MEMORY_TIMED, threads, way) - time_of(block, LEAST, threads, way);
}

/* ---- what another thread has read ---- */

/* Share i of as many as there are threads. */
static char *share(char *block, int threads, int i, size_t *ret_bytes)
{
    *ret_bytes = LEAST / (size_t)threads / WRITTEN * WRITTEN;
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

/* Seconds in which each thread writes its share, which before the thread so many places ahead of its own has read. */
static double write_what_was_read(char *block, int threads, int ahead)
{
    double begin = 0, end = 0;
#pragma omp parallel num_threads(threads)
    {
        const int i = omp_get_thread_num();
        write_share(block, threads, i);
#pragma omp barrier
        read_share(block, threads, (i + ahead) % threads);
#pragma omp barrier
#pragma omp master
        begin = rw_now_s();
        write_share(block, threads, i);
#pragma omp barrier
#pragma omp master
        end = rw_now_s();
    }
    return end - begin;
}

static double time_of_shared(char *block, int threads, int ahead)
{
    double least = INFINITY;
    for (int i = 0; i < PASSES; i++) least = fmin(least, write_what_was_read(block, threads, ahead));
    return least / LEAST;
}

/* ---- */

bool rw_cpu_memory_price(const double *written, double read, uint64_t *ret_near, double *ret_seconds)
{
    const double near = written[0], far = written[SIZES - 1];
    if (far < CLEARLY * near) return false;
    int last = 0;
    while (written[last + 1] < near + (far - near) / 4) last++;
    *ret_near = LEAST << last;
    *ret_seconds = far - near + fmax(read, 0);
    return true;
}

bool rw_cpu_memory_time(void *block, int threads, struct rw_memory_times *ret)
{
    double written[SIZES];
    for (int i = SIZES; i-- > 0;) written[i] = time_of(block, LEAST << i, threads, WRITES);
    if (!rw_cpu_memory_price(written, 0, &ret->near_bytes, &ret->far)) return false;
    const double straight = longer(block, threads, READS), columns = longer(block, threads, READS_COLUMNS);
    ret->shared = threads < 2 ? 0 : fmax(0, time_of_shared(block, threads, 1) - time_of_shared(block, threads, 0));
    return rw_cpu_memory_price(written, (straight + columns) / 2, &ret->near_bytes, &ret->far);
}
