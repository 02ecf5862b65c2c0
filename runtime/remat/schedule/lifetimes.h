/*
 * Lifetimes of buffers, and the one sweep over them that finds the live bytes at each action and their maximum.
 * Placement, the byte counts of a plan, simulation and ckpt_explain() all use this sweep.
 */
#ifndef RW_REMAT_SCHEDULE_LIFETIMES_H
#define RW_REMAT_SCHEDULE_LIFETIMES_H

#include <rewind/status.h>

struct rw_lifetime {
    uint32_t first, last; /* actions, inclusive */
    uint64_t bytes;
    uint64_t offset; /* in the arena; placement fills it in */
};

struct rw_live_peak {
    uint64_t bytes;  /* maximum of the live bytes, each buffer rounded up to the alignment */
    uint32_t action; /* the first at which it is reached */
};

/* Finds the peak. delta: by action, the bytes that become live at it, minus those that were live up to the action
   before. */
struct rw_live_peak rw_lifetimes_peak(const int64_t *delta, size_t n_actions);

/*
 * Sums the live bytes at each action over the lifetimes whose keep[i] is true, or over all if keep is NULL. delta is
 * the caller's scratch memory for n_actions + 1 sums; its contents are overwritten.
 */
struct rw_live_peak rw_lifetimes_sweep(const struct rw_lifetime *life, const bool *keep, size_t n, uint64_t alignment,
                                       int64_t *delta, size_t n_actions);

#endif
