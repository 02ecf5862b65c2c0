/*
 * Lives of buffers, and the one sweep over them: bytes alive at each action, and the most. What placement, the byte
 * counts of a plan, simulation and ckpt_explain() know of peaks is this.
 */
#ifndef RW_REMAT_LIVES_H
#define RW_REMAT_LIVES_H

#include <rewind/status.h>

struct rw_life {
    uint32_t first, last; /* actions, inclusive */
    uint64_t bytes;
    uint64_t offset; /* in the arena; placement fills it in */
};

struct rw_live_peak {
    uint64_t bytes;  /* the largest sum of live bytes, each buffer rounded up to the alignment */
    uint32_t action; /* the first at which it is reached */
};

/*
 * delta is the caller's room for n_actions + 1 sums, its contents are lost. Sums over the lives whose keep[i] is true,
 * over all for NULL.
 */
struct rw_live_peak rw_lives_sweep(const struct rw_life *life, const bool *keep, size_t n, uint64_t alignment,
                                   int64_t *delta, size_t n_actions);

#endif
