/*
 * Which values the policy discards, and which scope replays them.
 *
 * A scope is a region, or a group of regions, that the policy replays as one. Scope 0 is the root: nothing in it is
 * discarded. A value's home is the innermost scope that holds its producer and every node that may read it again: nodes
 * of scopes, which are replayed, and adjoint nodes. So a value that leaves a region and is needed there is at home
 * outside and is kept, or replayed with the region around, like any input of a region.
 *
 * A nested scope whose discarded values take no more bytes than its inputs is dissolved into the one around: replaying
 * it on its own would cost time and save nothing.
 */
#ifndef RW_REMAT_SCOPE_H
#define RW_REMAT_SCOPE_H

#include "record/tape.h"

enum rw_decision {
    RW_DECIDE_KEEP_OUTSIDE, /* at home outside every replayed region */
    RW_DECIDE_KEEP_CALLER,  /* ckpt_save() */
    RW_DECIDE_KEEP_OP,      /* ops: names its op */
    RW_DECIDE_KEEP_NAME,    /* names:save= names its tag */
    RW_DECIDE_KEEP_EFFECT,  /* a stateful or non-deterministic op may not run twice */
    RW_DECIDE_KEEP_RESULT,  /* the caller asked for it */
    RW_DECIDE_KEEP_ADJOINT, /* made by a gradient rule */
    RW_DECIDE_REPLAY_REGION,
    RW_DECIDE_REPLAY_CALLER /* ckpt_recompute() */
};

struct rw_scopes {
    uint32_t n;
    uint32_t *parent;       /* of a scope; the root is its own */
    uint16_t *depth;
    uint32_t *of_region;    /* region -> scope */
    uint32_t *home;         /* base value -> scope */
    uint8_t *decision;      /* base value -> enum rw_decision */
};

static inline bool rw_decision_discards(uint8_t decision)
{
    return decision >= RW_DECIDE_REPLAY_REGION;
}

/* needed: per node; wanted: per value, true for a result. RW_ERR_MEMORY leaves *s empty. */
rw_status rw_scopes_init(struct rw_scopes *s, const rw_tape *t, const struct rw_policy *policy, const bool *needed,
                         const bool *wanted);
void rw_scopes_finish(struct rw_scopes *s);

static inline uint32_t rw_scope_of_node(const struct rw_scopes *s, const rw_tape *t, const struct rw_node *node)
{
    const uint32_t region = rw_node_region(t, node);
    return region == RW_NONE_ID ? 0 : s->of_region[region];
}

bool rw_scope_contains(const struct rw_scopes *s, uint32_t outer, uint32_t inner);

#endif
