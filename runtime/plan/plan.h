/*
 * A plan: the ordered list of actions of one step with the location of every operand. It can be stored, checked and
 * compared without running it.
 *
 * A plan is made once per tape structure and run at every step. It owns the nodes that differentiation recorded after
 * the tape's own (the tail): a node or value ID below the mark is the tape's, from the mark on the plan's.
 *
 * The location of an operand is one 32-bit word:
 *     bit 31 clear   the other bits * plan.unit bytes into the arena (512 GiB at 256 bytes)
 *     bit 31 set     the other bits are an index into plan.sources, which a run resolves to addresses once
 */
#ifndef RW_PLAN_PLAN_H
#define RW_PLAN_PLAN_H

#include "remat/schedule/schedule.h"

#include <rewind/memory.h>

/* Bytes of workspace that an action's op requested at planning. */
struct rw_plan_workspace {
    uint32_t action;
    size_t bytes;
};

/* Location of an offloaded value: bytes [offset, offset + bytes) of the run's store. */
struct rw_plan_slot {
    uint64_t offset, bytes;
    uint32_t value; /* a base */
};

/* Two actions that one kernel computes (ops/common/pass_ops.h): `first`, and `last`, the next or the next but one. They
   are executed one by one if an observer looks at each, or if lanes are synchronized between them. */
struct rw_fused_actions {
    uint32_t first, last;
    const struct rw_fused_pair *pair;
};

struct rw_value_desc {
    uint32_t layout;
    uint32_t base;
    uint8_t dtype;
};

struct rw_plan {
    uint64_t serial;
    int references; /* by the cache and by runs: the only member that changes */
    uint8_t kind;   /* enum rw_plan_kind */
    int threads;    /* number of threads for which workspaces are large enough */
    struct rw_library_ref *holding; /* references to objects of the device's libraries */
    struct rw_tape_point recorded; /* the tape's length when the plan was made */
    uint32_t first_site; /* of that tape's first node; RW_NONE_ID for a tape without nodes */

    /* The tail. */
    uint32_t mark_nodes, mark_operands, mark_attrs, mark_values;
    struct rw_node *nodes;
    uint32_t *operands;
    unsigned char *attrs;
    struct rw_value_desc *values;
    size_t n_nodes, n_operands, n_attrs, n_values;

    struct rw_action *actions;
    size_t n_actions;
    size_t n_forward; /* actions before the first one of backward */
    size_t n_before;  /* the same, with nodes of rw_grad() counted as forward: see schedule.h */
    uint32_t *words;
    size_t n_words;
    size_t most_operands;                 /* of an action */
    uint32_t unit;                        /* bytes per unit of arena words: the device's alignment */
    struct rw_plan_workspace *workspaces; /* in the order of the actions */
    size_t n_workspaces;
    struct rw_wait *waits; /* in the order of the waiting actions; none in a plan of one lane */
    size_t n_waits;
    uint32_t *aside; /* actions of lanes other than compute */
    size_t n_aside;
    struct rw_fused_actions *fused; /* in the order of the actions */
    size_t n_fused;
    struct rw_plan_slot *slots;
    size_t n_slots;
    uint64_t store_bytes;
    struct rw_source *sources;
    size_t n_sources;
    uint32_t *outside; /* sources that exist before the run: all but RW_SOURCE_RESULT */
    size_t n_outside;
    struct rw_result *results;
    size_t n_results;
    size_t n_gradient_results; /* of these: gradients of values of the tape */
    uint32_t *gradients; /* parameters whose gradients are written or added to */
    size_t n_gradients;
    uint32_t *used_up; /* parameters whose gradients fused updates consume */
    size_t n_used_up;
    uint64_t used_up_bytes; /* maximum bytes of these gradients that are live at one time */
    size_t n_effects; /* steps of stateful nodes */
    size_t n_commits; /* of these those that write buffers: the last ones, except fused updates */
    uint32_t *roots;  /* roots of the step's backward */
    size_t n_roots;
    bool seeded; /* seeds are passed when it runs; false: they are ones */

    bool fits; /* the device can hold the arena: checked by device_capacity.h */
    uint64_t arena_bytes, results_bytes;
    uint64_t budget_bytes; /* arena bytes of its budget; 0: no budget */
    uint64_t total_bytes;  /* of a policy `total:`: maximum bytes of the context while it runs; 0: no limit */
    uint64_t largest_live, kept_bytes, replayed_bytes, workspace_bytes;
    rw_cost cost;
};

/* Node and operand of a plan: the tape's below the mark, from there on the plan's own. */
static inline const struct rw_node *rw_plan_node(const rw_tape *t, const rw_plan *p, uint32_t n)
{
    return n < p->mark_nodes ? &t->nodes[n] : &p->nodes[n - p->mark_nodes];
}

/*
 * The call that recorded a node of a run. The plan may be that of an earlier tape, whose calls were at other lines. So
 * a node of backward has the call site of the node that it differentiates, and one of the whole step that of the tape's
 * first node. NULL for a plan: it was made for this tape.
 */
static inline rw_site rw_plan_site(const rw_tape *t, const rw_plan *p, const struct rw_node *node)
{
    while (node->adjoint && node->of != RW_NONE_ID) node = &t->nodes[node->of];
    const bool of_step = p && node->adjoint && node->site == p->first_site && t->n_nodes;
    return t->ctx->sites[of_step ? t->nodes[0].site : node->site];
}

static inline uint32_t rw_plan_operand(const rw_tape *t, const rw_plan *p, uint32_t i)
{
    return i < p->mark_operands ? t->operands[i] : p->operands[i - p->mark_operands];
}

/* The only functions that build and read words. */

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

/* The first value that a tail node computes. The tail's leaves, one gradient per parameter that the tape used when
   the plan was made, are between the mark and this. In two plans of one step, nodes have equal distances from it. */
static inline uint32_t rw_plan_first_computed(const rw_plan *plan)
{
    return plan->n_nodes ? plan->nodes[0].first_output : plan->mark_values + (uint32_t)plan->n_values;
}

void rw_plan_release(rw_plan *plan);

/* Bytes of host memory of the plan itself. */
size_t rw_plan_bytes(const rw_plan *plan);

bool rw_plan_is_valid(const rw_tape *t, const rw_plan *plan);

#endif
