/* See memory_time.h. */
#include "device/cpu/memory_time.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

#define LEAST (RW_MEMORY_TIMED >> (SIZES - 1)) /* below are caches that each core has for itself */
#define SIZES RW_MEMORY_SIZES
#define PASSES 4 /* the fastest counts: who else is on the machine makes it slower */
#define CLEARLY 1.3
#define WRITTEN 1024
#define ROWS 64 /* more than prefetchers follow */
#define ROW 4096
#define COLUMNS 256

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

/* Seconds of a pass of all threads, each through its part. */
static double pass(char *block, size_t bytes, int threads, bool writes)
{
    const long n = (long)(bytes / WRITTEN), bands = (long)(bytes / (ROWS * ROW));
    const double begin = rw_now_s();
    uint64_t sum = 0;
    if (writes) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long i = 0; i < n; i++) write_lines(block + i * WRITTEN, 1, WRITTEN);
    } else {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
        for (long i = 0; i < bands; i++) sum += read_band(block + i * ROWS * ROW);
    }
    const double seconds = rw_now_s() - begin;
    *(volatile char *)block = (char)sum;
    return seconds;
}

/* Of a byte, written or read again in a block of so many. */
static double time_of(void *block, size_t bytes, int threads, bool writes)
{
    double least = INFINITY;
    pass(block, bytes, threads, writes);
    for (int i = 0; i < PASSES; i++) least = fmin(least, pass(block, bytes, threads, writes));
    return least / (double)bytes;
}

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

bool rw_cpu_memory_time(void *block, int threads, uint64_t *ret_near, double *ret_seconds)
{
    double written[SIZES];
    for (int i = SIZES; i-- > 0;) written[i] = time_of(block, LEAST << i, threads, true);
    if (!rw_cpu_memory_price(written, 0, ret_near, ret_seconds)) return false;
    const double read = time_of(block, RW_MEMORY_TIMED, threads, false) - time_of(block, LEAST, threads, false);
    return rw_cpu_memory_price(written, read, ret_near, ret_seconds);
}
