/* Rounding up, written once. */
#ifndef RW_BASE_ROUND_H
#define RW_BASE_ROUND_H

#include <stdint.h>

/* The smallest multiple of `to` that is at least x. */
static inline uint64_t rw_round_up(uint64_t x, uint64_t to)
{
    return (x + to - 1) / to * to;
}

#endif
