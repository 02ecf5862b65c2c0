/* Measures how far apart the cores of a step are, by the time of writing data that other threads have read. */
#include "core_to_core_latency.h"

#include "figure.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { BYTES = 2 << 20, LINE = 64, TRIALS = 7, PATIENCE = 60 };

/* Writing across caches takes six times as long as within one. A single core takes a fourth to a sixth of the time of
   cores that share a cache, and a twentieth or less of others. */
enum { NEAR = 3, ALONE = 10 };

static char memory[BYTES] __attribute__((aligned(4096)));

/* Thread t's part, of n equal ones. */
static char *share_of(int t, int n, size_t *ret_bytes)
{
    const size_t bytes = BYTES / (size_t)n / LINE * LINE;
    *ret_bytes = bytes;
    return memory + (size_t)t * bytes;
}

static void read_share(int t, int n)
{
    size_t bytes;
    const volatile char *const from = share_of(t, n, &bytes);
    for (size_t i = 0; i < bytes; i += LINE) (void)from[i];
}

static void write_share(int t, int n, char value)
{
    size_t bytes;
    volatile char *const to = share_of(t, n, &bytes);
    for (size_t i = 0; i < bytes; i += LINE) to[i] = value;
}

/* Seconds to write data that another thread has read, or that only this one uses. */
static double trial(char value, bool another)
{
    double begin = 0, end = 0;
#pragma omp parallel
    {
        const int t = omp_get_thread_num(), n = omp_get_num_threads();
        write_share(t, n, value);
#pragma omp barrier
        read_share((t + another) % n, n);
#pragma omp barrier
#pragma omp master
        begin = now_s();
        write_share(t, n, value);
#pragma omp barrier
#pragma omp master
        end = now_s();
    }
    return end - begin;
}

static double usual_of(bool another)
{
    double seconds[TRIALS];
    for (int i = 0; i < TRIALS; i++) seconds[i] = trial((char)i, another);
    return 1e6 * median_of(seconds, TRIALS);
}

double cores_distance(void)
{
    return omp_get_max_threads() < 2 ? 0 : usual_of(true);
}

bool cores_are_near(void)
{
    static double least = INFINITY;
    const double distance = cores_distance();
    least = fmin(least, distance);
    return distance <= NEAR * least;
}

/* A process that has only measured far cores would consider them near. */
static void learn(double seconds)
{
    const double begin = now_s(), alone = usual_of(false);
    while (cores_distance() > ALONE * alone && now_s() - begin < seconds) {
    }
    cores_are_near();
}

bool cores_await(double seconds)
{
    static bool knows;
    const double begin = now_s();
    bool near = false;
    if (!knows) learn(PATIENCE);
    knows = true;
    while (!(near = cores_are_near()) && now_s() - begin < seconds) {
    }
    return near;
}
