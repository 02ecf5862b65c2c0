/*
 * A choice: what becomes of every value between the forward pass and the reads of backward. Filled by a policy, by a
 * planner or by hand; what comes after does not care who filled it.
 *
 * Segments are a tree over the nodes of the tape. Segment 0 is the step; each node lies in one segment, an adjoint node
 * in that of the node it differentiates. Backward walks the nodes in reverse, so it enters and leaves segments: from
 * entering one to leaving it is a *visit*. The step has one visit, a segment may have several.
 *
 *     step 0   |-------------------------------|          level 0: made once in the forward pass, for all of the step
 *     block 1      |-----------------------|              level 1: made once in each visit of a segment of depth 1
 *     mlp   2          |---------|                        level 2: made once in each visit of a segment of depth 2
 *
 * A value with level l that is read while backward is in segment T, by a node of T or by a replay that leads to one, is
 * *served* by the ancestor of T at depth min(l, depth of T): in one visit of that ancestor the value is made at most
 * once, and lives from there to the last read that the visit serves. So k inner segments read a value that their
 * parent's visit made once (a snapshot); what an outer visit only passed through on the way there is made again when
 * the inner segment is visited itself; and memory of nested segments grows with their depth, not with their number.
 *
 *     level 0, KEEP      made in forward, lives to its last read
 *     level 0, REPLAY    dropped after the reads of forward, made again once, when backward first reads it
 *     level 0, MOVE      like KEEP, but elsewhere between its last read in forward and its first read in backward
 *     level l > 0        dropped after the reads of forward, made again in each visit at depth l that reads it
 *
 * What a visit makes, snapshots of nested segments among it, stays in the device's memory until the visit's last read:
 * it is replayed while backward runs, when a way out and back would stand in backward's own way. So MOVE is said at
 * level 0 alone; in the inside of a segment it names a value that forward makes and that no replay makes again.
 */
#ifndef RW_REMAT_CHOICE_H
#define RW_REMAT_CHOICE_H

#include "autodiff/problem.h"

struct rw_segment {
    uint32_t parent; /* of the step: itself */
    uint32_t end;    /* segments are in preorder: those inside of s are (s, end of s) */
    uint32_t depth;  /* of the step: 0 */
    uint32_t jump;   /* some segment further out, so that a way outwards takes log(depth) jumps */
};

enum rw_what { RW_KEEP, RW_REPLAY, RW_MOVE };

enum rw_why {
    RW_WHY_OUTSIDE,       /* read outside every replayed region */
    RW_WHY_CALLER_SAVES,  /* ckpt_save() */
    RW_WHY_OP,            /* ops: names its op */
    RW_WHY_NAME,          /* names:save= names its tag */
    RW_WHY_EFFECT,        /* a stateful or non-deterministic op may not run twice */
    RW_WHY_RESULT,        /* the caller asked for it */
    RW_WHY_ADJOINT,       /* made by a gradient rule */
    RW_WHY_REGION,        /* inside a replayed region */
    RW_WHY_DISCARD,       /* discard: names its region */
    RW_WHY_CALLER_REPLAYS, /* ckpt_recompute() */
    RW_WHY_CALLER_MOVES,   /* ckpt_offload() */
    RW_WHY_NAME_MOVES,     /* names:offload= names its tag */
    RW_WHY_REGION_MOVES,   /* offload: names a region around what made it */
    RW_WHY_BUDGET          /* the planner weighed bytes against seconds */
};

/* Of a base value that a node makes. Leaves and held values have none: they are there. */
struct rw_fate {
    uint32_t level;
    uint8_t what; /* enum rw_what; anything but KEEP is said at level 0 alone */
    uint8_t why;  /* enum rw_why */
};

struct rw_choice {
    struct rw_segment *segment;
    size_t n_segments, cap_segments;
    uint32_t *segment_of; /* node -> segment */
    struct rw_fate *fate; /* base value -> fate */
};

/* One segment, the step, and every value kept in it. RW_ERR_MEMORY leaves *c empty. */
rw_status rw_choice_init(struct rw_choice *c, const struct rw_problem *p);
void rw_choice_finish(struct rw_choice *c);

/*
 * A new segment inside parent, which is the last one added or around that; RW_NONE_ID without memory. When all are
 * there, rw_choice_close() says where each ends.
 */
uint32_t rw_choice_add_segment(struct rw_choice *c, uint32_t parent);
void rw_choice_set_segment(struct rw_choice *c, uint32_t s, uint32_t parent); /* s anew, without anything inside */
void rw_choice_close(struct rw_choice *c);

static inline bool rw_segment_contains(const struct rw_choice *c, uint32_t outer, uint32_t inner)
{
    return outer <= inner && inner < c->segment[outer].end;
}

/* The innermost segment around both. Not by a walk from parent to parent: a program may nest as deep as it recurses. */
static inline uint32_t rw_segment_common(const struct rw_choice *c, uint32_t a, uint32_t b)
{
    while (!rw_segment_contains(c, a, b)) {
        const struct rw_segment *const s = &c->segment[a];
        a = rw_segment_contains(c, s->jump, b) ? s->parent : s->jump;
    }
    return a;
}

/* Is the value given up after the reads of forward? */
static inline bool rw_fate_drops(const struct rw_fate *f)
{
    return f->level > 0 || f->what == RW_REPLAY;
}

/*
 * Segments are a tree in preorder; each node is in one, an adjoint node in that of the node it differentiates; what may
 * not run twice, what was asked for or a commit reads and what adjoint nodes make is not dropped; only the step replays
 * or moves by name.
 */
bool rw_choice_is_valid(const struct rw_choice *c, const struct rw_problem *p);

#endif
