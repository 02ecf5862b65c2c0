/* See memory_time.h. */
#include "device/cpu/memory_time.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

#define LEAST ((size_t)8 << 20) /* below are caches that each core has for itself, and that any step goes beyond */
#define SIZES 6                 /* each twice the one before; the last is all of it */
#define PASSES 4                /* the fastest counts: who else is on the machine makes it slower */
#define CLEARLY 1.3
#define WRITTEN 1024

/* Whole lines are written by the widest stores there are, as kernels do: narrow ones fetch a line before they write it.
   The C library's memset() has them, and for so few bytes at a time nothing else; the compiler's own has not. */
static void *(*const volatile write_lines)(void *to, int byte, size_t n) = memset;

/* Seconds of a pass of all threads, each through its part. */
static double pass(char *block, size_t bytes, int threads, bool writes)
{
    const long n = (long)(bytes / WRITTEN), words = (long)(bytes / sizeof(uint64_t));
    const uint64_t *const word = (const uint64_t *)(const void *)block;
    const double begin = rw_now_s();
    uint64_t sum = 0;
    if (writes) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long i = 0; i < n; i++) write_lines(block + i * WRITTEN, 1, WRITTEN);
    } else {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
        for (long i = 0; i < words; i++) sum += word[i];
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

bool rw_cpu_memory_time(void *block, int threads, uint64_t *ret_near, double *ret_seconds)
{
    double seconds[SIZES];
    for (int i = SIZES; i-- > 0;) seconds[i] = time_of(block, LEAST << i, threads, true);
    const double near = seconds[0], far = seconds[SIZES - 1];
    if (far < CLEARLY * near) return false;
    int last = 0;
    while (seconds[last + 1] < (near + far) / 2) last++;
    const double read = time_of(block, RW_MEMORY_TIMED, threads, false) - time_of(block, LEAST, threads, false);
    *ret_near = LEAST << last;
    *ret_seconds = far - near + fmax(read, 0);
    return true;
}
