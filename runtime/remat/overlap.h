/*
 * Moves: values that wait outside the device between the last read of forward and the first read of backward, and where
 * in the list their copies begin and are waited for.
 *
 *     compute   x a b c d e . . . . | . . . . . . g h x'        x is read by a and b, then by x' in backward
 *     out             [ x ]                                    begins behind b, nothing waits for it at first
 *                           ^ d waits: from here x's memory is free
 *     in                                   [ x ]               begins early enough to be there for x'
 *                                                ^ x' waits
 *
 * An action of another lane begins after all compute actions before it in the list; the compute lane waits for it
 * before the first action that reads what it brought or writes memory that it read. So a life ends where the compute
 * lane waits, and placement knows nothing of lanes. Where a copy begins and is waited for goes by predicted times: as
 * much compute between the two as the copy takes, copies of one lane one after the other, and none across the end of
 * forward: there every value that was moved out has arrived, and a failure is known before any gradient is touched.
 */
#ifndef RW_REMAT_OVERLAP_H
#define RW_REMAT_OVERLAP_H

#include "remat/schedule.h"

/* What this works with. All zero is empty; its memory is used again by the next schedule. */
struct rw_overlap_scratch {
    struct rw_trip *trip;
    size_t cap_trips;
    struct rw_insertion *insertion;
    size_t cap_insertions;
    uint32_t *of; /* by buffer */
    size_t cap_buffers;
    uint32_t *moved; /* by action */
    double *time;
    size_t cap_actions;
};
void rw_overlap_scratch_finish(struct rw_overlap_scratch *scratch);

/* Adds to the schedule the moves that the choice asks for, before buffers are merged. RW_ERR_MEMORY. */
rw_status rw_overlap(const struct rw_problem *p, const struct rw_choice *c, struct rw_overlap_scratch *scratch,
                     struct rw_schedule *s);

#endif
