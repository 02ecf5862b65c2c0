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

/* Leaves that are known to be full. Most values that do not fit have one of them in a gap. */
#define RW_FULL_LEAVES 4

/*
 * Only actions at which a gap begins or after which one ends divide the tree of live bytes: a leaf is the stretch of
 * actions from one of these to the next, and has the maximum of their live bytes. All zero is empty.
 */
struct rw_greedy_fill {
    const struct rw_replayable *g;
    size_t n_forward; /* actions of forward */
    size_t n_leaves;  /* a power of two */
    int64_t *live;    /* leaf -> the compact choice's own bytes */
    struct rw_live_tree {
        int64_t most;  /* the maximum of the leaves below, with the values kept so far */
        int64_t added; /* the bytes that were added to all of these leaves at once */
    } *tree; /* the children of node i are 2 i and 2 i + 1; the leaves begin at n_leaves */
    struct rw_gap {
        uint32_t from, to;    /* actions, inclusive */
        uint32_t first, last; /* leaves, inclusive */
    } *gap; /* by value, then in the order of actions */
    size_t n_gaps;
    uint32_t *gap_at; /* value -> its gaps are gap[gap_at[v] .. gap_at[v + 1]) */
    struct rw_greedy_fill_candidate {
        uint32_t value;
        bool later;
        double worth;
    } *candidate;
    size_t n_candidates;
    /* Leaves at which a value did not fit, and the live bytes there at that time. They can only have grown since. */
    struct rw_full_leaf {
        uint32_t leaf;
        int64_t live;
    } full[RW_FULL_LEAVES];
    size_t n_full; /* that were ever found: the last RW_FULL_LEAVES are stored */
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
