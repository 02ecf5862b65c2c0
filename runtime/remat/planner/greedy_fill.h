/*
 * Keeps further values of a choice while the peak stays below a limit.
 *
 * The live bytes at each action of the choice's schedule are known. A dropped value has gaps, from its last read to the
 * action that recomputes it. A kept value is live in its gaps too. So it can be kept if there is room in all of them:
 *
 *     limit  ---------------------------------------------
 *     live      .:|:.     .:||||:..:||||:.    .:|:.
 *               x|...... gap of x ......|x'                room here: the limit - the maximum of live in the gap
 *
 * If a value is recomputed in each visit, and there is room in its first gap only, it is kept for the first visit.
 *
 * The values are tried in a fixed order, and each one that is kept is added to the live bytes. There are two orders,
 * because neither is always better:
 *
 *     first the values that a better solution keeps, the shortest gaps first; then the others by the seconds of replay
 *     that they save per byte and action
 *
 *     the largest saving of seconds first, regardless of size and of the better solution
 */
#ifndef RW_REMAT_PLANNER_GREEDY_FILL_H
#define RW_REMAT_PLANNER_GREEDY_FILL_H

#include "remat/policy/compact_choice.h"
#include "remat/schedule/schedule.h"

/* All zero is empty. */
struct rw_greedy_fill {
    const struct rw_replayable *g;
    size_t n_actions, n_leaves; /* leaves of the tree, a power of two */
    int64_t *live;              /* as a tree: the maximum below node i, whose children are 2 i and 2 i + 1 */
    int64_t *most, *added;      /* the same with the values kept so far; what was added to all actions below node i */
    struct rw_gap {
        uint32_t value, from, to; /* actions, inclusive */
        bool early;               /* it begins after forward's last read of forward's own value */
    } *gap;                       /* by value */
    size_t n_gaps, cap_gaps;
    uint32_t *gap_at; /* value -> its gaps are gap[gap_at[v] .. gap_at[v + 1]) */
    struct rw_greedy_fill_candidate {
        uint32_t value;
        bool later;
        double worth;
        int64_t least; /* minimum limit with room for it, if no other value is kept */
    } *candidate;
    size_t n_candidates;
};

/* Prepares for the compact choice that s is the schedule of, buffers merged. RW_ERR_MEMORY leaves *f empty. */
rw_status rw_greedy_fill_init(struct rw_greedy_fill *f, const struct rw_replayable *g, const struct rw_schedule *s);
void rw_greedy_fill_finish(struct rw_greedy_fill *f);

/*
 * Sets the order of the values. replayed_by_better: place -> a better solution replays it as well; NULL: there is none.
 */
void rw_greedy_fill_rank(struct rw_greedy_fill *f, const struct rw_compact_choice *base,
                         const bool *replayed_by_better);
void rw_greedy_fill_rank_by_seconds(struct rw_greedy_fill *f, const struct rw_compact_choice *base);

/* Changes *r, a copy of the base, so that it keeps what fits below `most` bytes. */
void rw_greedy_fill_to(struct rw_greedy_fill *f, uint64_t most, struct rw_compact_choice *r);

#endif
