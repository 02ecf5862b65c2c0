/* Reports of program errors, and the random numbers that determine orders. */
#include "internal.h"

#include <stdarg.h>
#include <stdlib.h>

#include <numeric>

static bool fatal = true;
static char last_report[4096];

extern "C" void cudasim_set_fatal(bool on) { fatal = on; }
extern "C" const char *cudasim_last_report(void) { return last_report; }
extern "C" void cudasim_clear_report(void) { last_report[0] = 0; }

namespace cudasim {

void report(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(last_report, sizeof last_report, fmt, args);
    va_end(args);
    if (!fatal) return;
    fprintf(stderr, "cudasim: %s\n", last_report);
    fflush(stderr);
    abort();
}

static uint64_t state = 1;

/* splitmix64 */
uint64_t random_bits()
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t random_below(uint64_t n)
{
    return static_cast<uint64_t>(static_cast<unsigned __int128>(random_bits()) * n >> 64);
}

void random_seed(uint64_t seed)
{
    state = seed;
}

void scatter::start(uint64_t n_)
{
    n = n_;
    at = n > 1 ? random_below(n) : 0;
    do step = n > 2 ? 1 + random_below(n - 1) : 1; while (n > 2 && std::gcd(step, n) != 1);
    if (n == 1) step = 1;
}

} // namespace cudasim
