/*
 * A plan: the ordered list of nodes of one step with the place of every operand. It can be kept, printed, checked and
 * compared without running it.
 *
 * A plan is made once per tape structure and run at every step. It owns what differentiation added behind the recorded
 * nodes (the tail): a node or value id below the mark is the tape's, from the mark on the plan's.
 *
 * Where an operand lies is one 32-bit word:
 *     bit 31 clear   the other bits * plan.unit bytes into the arena (512 GiB at 256 bytes)
 *     bit 31 set     the other bits are an index into plan.sources, which a run resolves to addresses once
 */
#ifndef RW_PLAN_PLAN_H
#define RW_PLAN_PLAN_H

#include "remat/schedule.h"

#include <rewind/memory.h>

/* The bytes that an action's op asked for as its workspace, when the plan was made. */
struct rw_plan_workspace {
    uint32_t action;
    size_t bytes;
};

/* Where a value waits outside the device: bytes [offset, offset + bytes) of the run's store. */
struct rw_plan_slot {
    uint64_t offset, bytes;
    uint32_t value; /* a base */
};

struct rw_value_desc {
    uint32_t layout;
    uint32_t base;
    uint8_t dtype;
};

struct rw_plan {
    uint64_t serial;
    int references; /* of the cache and of runs: the only thing in a plan that changes */
    uint8_t kind;   /* enum rw_plan_kind */
    int threads;    /* what the workspaces are large enough for */
    struct rw_holding *holding; /* the problem's: of the device's libraries */

    /* The tail. */
    uint32_t mark_nodes, mark_operands, mark_attrs, mark_values;
    struct rw_node *nodes;
    uint32_t *operands;
    unsigned char *attrs;
    struct rw_value_desc *values;
    size_t n_nodes, n_operands, n_attrs, n_values;

    struct rw_action *actions;
    size_t n_actions;
    size_t n_forward; /* steps before the first one of backward */
    size_t n_before;  /* the same, those that rw_grad() recorded counted as forward: see schedule.h */
    uint32_t *words;
    size_t n_words;
    size_t most_operands;                 /* of an action */
    uint32_t unit;                        /* of the words that lie in the arena: the device's alignment */
    struct rw_plan_workspace *workspaces; /* in the order of the actions */
    size_t n_workspaces;
    struct rw_wait *waits; /* in the order of the actions that wait; none in a plan of one lane */
    size_t n_waits;
    uint32_t *aside; /* actions of other lanes than compute */
    size_t n_aside;
    struct rw_plan_slot *slots;
    size_t n_slots;
    uint64_t store_bytes;
    struct rw_source *sources;
    size_t n_sources;
    struct rw_result *results;
    size_t n_results;
    uint32_t *gradients; /* parameters whose gradients are written or added to */
    size_t n_gradients;
    uint32_t *used_up; /* parameters whose gradients updates use up inside the step */
    size_t n_used_up;
    uint64_t used_up_bytes; /* what these take of the arena, at most at one time */
    size_t n_effects; /* steps of stateful nodes */
    size_t n_commits; /* of these what writes buffers: the last ones, but for updates inside the step */
    uint32_t *roots;  /* where the backward of a step begins */
    size_t n_roots;
    bool seeded; /* with gradients that are given when it runs; false: with ones */

    bool fits; /* the device could hold the arena: fits.h has asked */
    uint64_t arena_bytes, results_bytes;
    uint64_t total_bytes;  /* of a policy `total:`: most that the context may hold while it runs; 0: no bound */
    uint64_t largest_live, kept_bytes, replayed_bytes, workspace_bytes;
    rw_cost cost;
};

/* The one maker and the one reader of words. */

#define RW_WORD_SOURCE 0x80000000u

static inline uint32_t rw_word_of_offset(uint64_t offset, uint32_t unit)
{
    return (uint32_t)(offset / unit);
}

static inline uint32_t rw_word_of_source(uint32_t index)
{
    return RW_WORD_SOURCE | index;
}

static inline bool rw_word_is_source(uint32_t word)
{
    return word & RW_WORD_SOURCE;
}

/* Of a word in the arena. */
static inline uint64_t rw_word_offset(const rw_plan *plan, uint32_t word)
{
    return (uint64_t)word * plan->unit;
}

/* Of a word that is a source. */
static inline uint32_t rw_word_source(uint32_t word)
{
    return word & ~RW_WORD_SOURCE;
}

/* Does the word name a source of that kind? */
static inline bool rw_word_is(const rw_plan *plan, uint32_t word, enum rw_source_kind kind)
{
    return rw_word_is_source(word) && plan->sources[rw_word_source(word)].kind == kind;
}

/* The value of the first tail node. The tail's leaves, one gradient for each parameter that the tape used when the plan
   was made, are between the mark and this: in two plans of one step nodes have equal distances from it. */
static inline uint32_t rw_plan_first_made(const rw_plan *plan)
{
    return plan->n_nodes ? plan->nodes[0].first_output : plan->mark_values + (uint32_t)plan->n_values;
}

void rw_plan_release(rw_plan *plan);

/* Bytes that a plan takes itself. */
size_t rw_plan_bytes(const rw_plan *plan);

bool rw_plan_is_valid(const rw_tape *t, const rw_plan *plan);

#endif
