/* Rounding up to multiples. */
#ifndef RW_BASE_ROUND_UP_H
#define RW_BASE_ROUND_UP_H

#include <stdbool.h>
#include <stdint.h>

/* The smallest multiple of `to` that is at least x. Fast for powers of two, because some callers need it millions of
   times. */
static inline uint64_t rw_round_up(uint64_t x, uint64_t to)
{
    const bool is_power = !(to & (to - 1));
    return is_power ? (x + to - 1) & -to : (x + to - 1) / to * to;
}

#endif
