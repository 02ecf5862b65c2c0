/*
 * Moves: values that are offloaded between the last read of forward and the first read of backward. Decides where in
 * the list their copies begin and which actions wait for them.
 *
 *     compute   x a b c d e . . . . | . . . . . . g h x'        x is read by a and b, then by x' in backward
 *     out             [ x ]                                    begins after b, nothing waits for it at first
 *                           ^ d waits: from here x's memory is free
 *     in                                   [ x ]               begins early enough to be complete for x'
 *                                                ^ x' waits
 *
 * An action of another lane begins after all compute actions before it in the list. The compute lane waits for it
 * before the first action that reads what it copied in, or that writes memory that it copied out. So a lifetime ends
 * where the compute lane waits, and placement need not know about lanes.
 *
 * Predicted times decide where a copy begins and is waited for: there is as much compute between the two as the copy
 * takes, and the copies of one lane follow one another. No copy out crosses the end of forward. There every offloaded
 * value has arrived in the store, and a failure is known before any gradient is changed.
 */
#ifndef RW_REMAT_SCHEDULE_COPY_SCHEDULE_H
#define RW_REMAT_SCHEDULE_COPY_SCHEDULE_H

#include "remat/schedule/schedule.h"

/* Scratch memory of rw_copy_schedule(). All zero is empty. The next schedule reuses it. */
struct rw_copy_schedule_scratch {
    struct rw_trip *trip;
    double *wait; /* by trip: how long compute waits for it */
    size_t cap_trips;
    struct rw_insertion *insertion;
    size_t cap_insertions;
    uint32_t *of; /* by buffer */
    size_t cap_buffers;
    uint32_t *moved; /* by action */
    double *time;
    size_t cap_actions;
};
void rw_copy_schedule_scratch_finish(struct rw_copy_schedule_scratch *scratch);

/* Adds the moves of the choice to the schedule, before buffers are merged. RW_ERR_MEMORY. */
rw_status rw_copy_schedule(const struct rw_problem *p, const struct rw_choice *c,
                           struct rw_copy_schedule_scratch *scratch, struct rw_schedule *s);

#endif
