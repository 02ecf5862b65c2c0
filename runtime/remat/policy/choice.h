/*
 * A choice: the fate of every value between the forward pass and the reads of backward. A policy, a planner or a caller
 * fills it in; later passes do not depend on which of them did.
 *
 * Segments form a tree over the nodes of the tape. Segment 0 is the step. Each node is in one segment; an adjoint node
 * is in the segment of the node that it differentiates. Backward executes the nodes in reverse order, so it enters and
 * leaves segments. The time from entering a segment to leaving it is a *visit*. The step has one visit, a segment may
 * have several.
 *
 *     step 0   |-------------------------------|          level 0: computed once, in forward, for the whole step
 *     block 1      |-----------------------|              level 1: computed once per visit of a segment of depth 1
 *     mlp   2          |---------|                        level 2: computed once per visit of a segment of depth 2
 *
 * Let a value of level l be read while backward is in segment T, by a node of T or by a replay that such a node needs.
 * The read is *served* by the ancestor of T at depth min(l, depth of T). In one visit of that ancestor the value is
 * computed at most once, and is live from there to the last read that the visit serves. Three consequences:
 *
 * - k inner segments can read one value that a visit of their parent has computed (a snapshot);
 * - a value that an outer visit computed only on the way to another one is recomputed when the inner segment is
 *   visited;
 * - the memory of nested segments grows with their depth, not with their number.
 *
 *     level 0, KEEP      computed in forward, live to its last read
 *     level 0, REPLAY    freed after the reads of forward, recomputed once, when backward first reads it
 *     level 0, MOVE      as KEEP, but offloaded between its last read in forward and its first read in backward
 *     level l > 0        freed after the reads of forward, recomputed in each visit at depth l that reads it
 *     level l > 0, KEEP_FIRST   the same, but the first visit that reads it uses forward's value, and then frees it
 *
 * Values that a visit computes, including snapshots of nested segments, stay in device memory until the visit's last
 * read. Replays run during backward, where copies out and in would compete with backward's own copies. So MOVE exists
 * only at level 0. For a value inside a segment it means that forward computes it and no replay recomputes it.
 */
#ifndef RW_REMAT_POLICY_CHOICE_H
#define RW_REMAT_POLICY_CHOICE_H

#include "autodiff/planning_problem.h"

struct rw_segment {
    uint32_t parent; /* of the step: itself */
    uint32_t end;    /* segments are in preorder: those inside of s are (s, end of s) */
    uint32_t depth;  /* of the step: 0 */
    uint32_t jump;   /* some ancestor: finding an ancestor takes log(depth) jumps */
};

enum rw_what { RW_KEEP, RW_REPLAY, RW_MOVE, RW_KEEP_FIRST };

enum rw_why {
    RW_WHY_OUTSIDE,       /* read outside of all replayed regions */
    RW_WHY_CALLER_SAVES,  /* ckpt_keep() */
    RW_WHY_OP,            /* ops: names its op */
    RW_WHY_NAME,          /* names:keep= names its tag */
    RW_WHY_EFFECT,        /* a stateful or non-deterministic op may be executed only once */
    RW_WHY_RESULT,        /* the caller requested it */
    RW_WHY_ADJOINT,       /* computed by a gradient rule */
    RW_WHY_REGION,        /* inside a replayed region */
    RW_WHY_DISCARD,       /* discard: names its region */
    RW_WHY_CALLER_REPLAYS, /* ckpt_recompute() */
    RW_WHY_CALLER_MOVES,   /* ckpt_offload() */
    RW_WHY_NAME_MOVES,     /* names:offload= names its tag */
    RW_WHY_REGION_MOVES,   /* offload: names a region around its producer */
    RW_WHY_BUDGET          /* the planner weighed bytes against seconds */
};

/* The fate of a base value that a node computes. Leaves and held values have none: they always exist. */
struct rw_fate {
    uint32_t level;
    uint8_t what; /* enum rw_what; at level 0 any but KEEP_FIRST, at others KEEP or KEEP_FIRST */
    uint8_t why;  /* enum rw_why */
};

struct rw_choice {
    struct rw_segment *segment;
    size_t n_segments, cap_segments;
    uint32_t *segment_of; /* node -> segment */
    struct rw_fate *fate; /* base value -> fate */
};

/* Initializes one segment, the step, with every value kept in it. RW_ERR_MEMORY leaves *c empty. */
rw_status rw_choice_init(struct rw_choice *c, const struct rw_problem *p);
void rw_choice_finish(struct rw_choice *c);

/*
 * Adds a segment inside of `parent`, which is the last segment added or one of its ancestors. RW_NONE_ID without
 * memory. After the last segment, rw_choice_close() computes where each one ends.
 */
uint32_t rw_choice_add_segment(struct rw_choice *c, uint32_t parent);
void rw_choice_set_segment(struct rw_choice *c, uint32_t s, uint32_t parent); /* sets s again, with nothing inside */
void rw_choice_close(struct rw_choice *c);

static inline bool rw_segment_contains(const struct rw_choice *c, uint32_t outer, uint32_t inner)
{
    return outer <= inner && inner < c->segment[outer].end;
}

/*
 * The innermost segment that contains both. Uses the jumps instead of a walk from parent to parent, because a program
 * may nest as deeply as it recurses.
 */
static inline uint32_t rw_segment_common(const struct rw_choice *c, uint32_t a, uint32_t b)
{
    while (!rw_segment_contains(c, a, b)) {
        const struct rw_segment *const s = &c->segment[a];
        a = rw_segment_contains(c, s->jump, b) ? s->parent : s->jump;
    }
    return a;
}

/* Is the value freed after the reads of forward, or after a first visit? */
static inline bool rw_fate_drops(const struct rw_fate *f)
{
    return f->level > 0 || f->what == RW_REPLAY;
}

/*
 * Checks a choice. Segments form a tree in preorder. Each node is in one; an adjoint node is in that of the node that
 * it differentiates. Values of ops that may run only once, requested outputs, values that a commit reads and values of
 * adjoint nodes are not dropped. REPLAY and MOVE occur only at level 0.
 */
bool rw_choice_is_valid(const struct rw_choice *c, const struct rw_problem *p);

#endif
