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

#include "record/context.h"

#include <rewind/memory.h>

/* Results lie side by side in one block, each at a multiple of this. */
#define RW_RESULT_ALIGNMENT 256u

enum rw_action_kind {
    RW_ACTION_FORWARD, /* a recorded node, first time */
    RW_ACTION_REPLAY,  /* a recorded node again */
    RW_ACTION_BACKWARD, /* a node that differentiation made */
    RW_ACTION_COMMIT   /* rw_assign(): writes a buffer when the step ends */
};

enum rw_action_flag {
    RW_ACTION_DIGEST = 1 << 0 /* some output is a value that is replayed later, or a replay of one */
};

/* Where actions queue up: those of one lane run in the order of the list. */
enum rw_lane { RW_LANE_COMPUTE };

struct rw_action {
    uint32_t node;
    uint32_t word; /* first of its words: inputs, outputs, then the workspace if it has one */
    uint16_t n_words;
    uint8_t kind : 4; /* enum rw_action_kind */
    uint8_t lane : 4; /* enum rw_lane */
    uint8_t flags;    /* enum rw_action_flag */
};

enum rw_source_kind {
    RW_SOURCE_PARAM,
    RW_SOURCE_GRADIENT,
    RW_SOURCE_INPUT,
    RW_SOURCE_HELD,   /* a value held from an earlier run */
    RW_SOURCE_RESULT, /* what this run holds for reading */
    RW_SOURCE_NOWHERE /* an operand without elements needs no memory */
};

struct rw_source {
    uint8_t kind;
    uint32_t index; /* parameter, leaf of the tape, base value held by the tape, or result of the plan */
    uint32_t leaf;  /* leaf of the tape that is read, RW_NONE_ID for none */
};

/* A value that stays readable after the run. */
struct rw_result {
    uint32_t value; /* a base; for a gradient its own id in the tail */
    uint32_t of;    /* retained value or parameter whose gradient it is, RW_NONE_ID for a forward value */
    uint32_t layout;
    uint8_t dtype;
    bool of_param;
    uint64_t offset;
    uint64_t bytes;
};

/* The bytes that an action's op asked for as its workspace, when the plan was made. */
struct rw_plan_workspace {
    uint32_t action;
    size_t bytes;
};

/* A parameter's gradient that a plan writes, or adds to where it was not clear when the plan was made. */
struct rw_plan_gradient {
    uint32_t param;
    bool adds;
};

struct rw_value_desc {
    uint32_t layout;
    uint32_t base;
    uint8_t dtype;
};

enum rw_plan_kind {
    RW_PLAN_EVAL, /* some values */
    RW_PLAN_STEP  /* a loss and its gradients */
};

struct rw_plan {
    uint64_t serial;
    int references; /* of the cache and of tapes that paused in it */
    uint8_t kind;   /* enum rw_plan_kind */

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
    uint32_t *words;
    size_t n_words;
    uint32_t unit; /* of the words that lie in the arena: the device's alignment */
    struct rw_plan_workspace *workspaces; /* in the order of the actions */
    size_t n_workspaces;
    struct rw_source *sources;
    size_t n_sources;
    struct rw_result *results;
    size_t n_results;
    struct rw_plan_gradient *gradients;
    size_t n_gradients;
    size_t n_effects; /* steps of stateful nodes */
    size_t n_commits; /* of these the last ones, which write buffers */
    uint32_t root; /* the loss of a step */

    struct rw_replays *replays; /* of REWIND_VERIFY=digest, NULL before its first run */

    uint64_t arena_bytes, results_bytes;
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

void rw_plan_release(rw_plan *plan);

/* Bytes that a plan takes itself. */
size_t rw_plan_bytes(const rw_plan *plan);

bool rw_plan_is_valid(const rw_tape *t, const rw_plan *plan);

#endif
