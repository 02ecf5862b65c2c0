/*
 * The sweep over lifetimes: adds each at its first action, subtracts it after its last, and takes the running maximum.
 */
#include "remat/schedule/lifetimes.h"

#include "base/round_up.h"

#include <string.h>

struct rw_live_peak rw_lifetimes_peak(const int64_t *delta, size_t n_actions)
{
    struct rw_live_peak peak = { 0 };
    int64_t live = 0;
    for (size_t s = 0; s < n_actions; s++) {
        live += delta[s];
        if ((uint64_t)live > peak.bytes) peak = (struct rw_live_peak){ (uint64_t)live, (uint32_t)s };
    }
    return peak;
}

/* One pass over the lifetimes and one over the actions. */
struct rw_live_peak rw_lifetimes_sweep(const struct rw_lifetime *life, const bool *keep, size_t n, uint64_t alignment,
                                       int64_t *delta, size_t n_actions)
{
    memset(delta, 0, (n_actions + 1) * sizeof *delta);
    for (size_t i = 0; i < n; i++) {
        if (keep && !keep[i]) continue;
        const int64_t bytes = (int64_t)rw_round_up(life[i].bytes, alignment);
        delta[life[i].first] += bytes;
        delta[life[i].last + 1] -= bytes;
    }
    return rw_lifetimes_peak(delta, n_actions);
}
