/*
 * A tape: the growing arrays that record appends to, and the state of what ran.
 *
 * The tape keeps the words of its structure as it is recorded: ops, operands, layouts, attributes, regions, per-value
 * decisions (key.h). Two steps that record the same program have the same words, and share a plan. What differs from
 * step to step without being structure - tickets, the contents of inputs - is read from the tape when the plan runs.
 */
#ifndef RW_RECORD_TAPE_H
#define RW_RECORD_TAPE_H

#include "base/alloc.h"
#include "record/context.h"
#include "record/key.h"
#include "record/mark.h"
#include "record/param.h"
#include "record/policy.h"

#include <rewind/precision.h>

#define RW_VALUE_CHUNK 4096
#define RW_VALUE_CHUNKS 5 /* so many take turns at least: a handle of a short step stays dead for as many steps */

/* What was computed and is held for reading: outputs of evals, losses, gradients of tape values. */
struct rw_held {
    uint32_t value; /* a base */
    void *data;     /* NULL when it has no elements */
    struct rw_results *in; /* run/results.h: the block it lies in, counted */
};

/* What rw_gradient() hands out for a tape value. */
struct rw_gradient_handle {
    struct rw_tensor tensor; /* first: the caller sees this */
    void *data;
    struct rw_results *in; /* as above */
};

/* A part of the tape with a policy of its own: what ckpt_policy_begin() and _end() stand around. */
struct rw_tape_part {
    struct rw_policy policy; /* of this step, or of the part of that number in an earlier one */
    uint32_t parent;         /* the part around, RW_NONE_ID for none */
    uint32_t region;         /* the region around, RW_NONE_ID for none */
    uint32_t first, end;     /* the nodes recorded between; end is RW_NONE_ID while it is open */
    uint32_t site;
};

/* What rw_recipe_begin() and _end() stand around: see recipe.h. */
struct rw_tape_recipe {
    rw_recipe recipe;
    uint32_t parent; /* the recipe around, RW_NONE_ID for none */
    uint32_t region; /* the region around, RW_NONE_ID for none */
    uint32_t site;
    bool bereft; /* its delayed scaling was destroyed */
};

struct rw_recipe_cast {
    uint32_t source, result; /* values */
    uint32_t region;         /* RW_NONE_ID outside any */
    uint64_t scaling;        /* of codes: which scales; else 0 */
    uint32_t before;         /* the cast of the same source before it, RW_NONE_ID for none */
    bool no_grad;            /* recorded between rw_no_grad_begin() and rw_no_grad_end() */
};

/* What a step notes when backward ends: an amax of delayed scaling (delayed.h), or what was counted (counts.h). */
struct rw_tape_amax {
    uint32_t value;
    uint32_t buffer, row; /* where it goes; the buffer by its id */
    bool counts;
};

/*
 * Which words the random nodes of a run draw. A launch of a graph moves the first n tickets of its tape, those that
 * were recorded before the graph was created, to another seed and by `base` blocks (modulo 2^64). All other tickets
 * draw where they were recorded; all zero: every one does.
 */
struct rw_draws {
    uint64_t seed, base;
    size_t n;
};

/* A parameter, buffer or state that a step has used. */
struct rw_seen {
    uint64_t step;   /* 0: none */
    uint64_t serial; /* another one may have had its id */
    uint32_t value;
};

#define RW_KEY_AMAX_WORDS 3
static inline void rw_key_add_amax(struct rw_key *k, const struct rw_tape_amax *a, uint64_t buffer_serial)
{
    rw_key_add(k, RW_KEY_AMAX | (uint64_t)a->counts << 16);
    rw_key_add(k, buffer_serial);
    rw_key_add(k, (uint64_t)a->value << 32 | a->row);
}

struct rw_tape {
    rw_context *ctx;
    rw_tape *next, **link; /* in the context's list */
    size_t n_users; /* itself, until rw_tape_destroy(), and its graphs: the last one frees it */
    uint64_t step; /* counts resets: tells a leaf of this step from one of the last */

    struct rw_node *nodes;
    size_t n_nodes, cap_nodes;
    uint32_t *operands;
    size_t n_operands, cap_operands;
    unsigned char *attrs;
    size_t n_attrs, cap_attrs;
    struct rw_tensor **chunks; /* of RW_VALUE_CHUNK values: a value never moves, the caller holds its address */
    size_t n_values, n_chunks, cap_chunks;
    size_t most_values; /* of any step that has ended */
    struct rw_leaf *leaves;
    size_t n_leaves, cap_leaves;
    /* By parameter: its leaf, of which there is one per step, whatever other tapes record in between. */
    struct rw_seen *seen;
    size_t cap_seen;
    rw_ticket *tickets; /* as recorded: no run and no launch writes them */
    uint64_t *ticket_blocks; /* by ticket: how many it took */
    size_t n_tickets, cap_tickets, cap_ticket_blocks;
    uint64_t ticket_end; /* the block after the last one drawn */
    struct rw_draws draws; /* those of the tape's values: the last launch's. A run copies them when it is made */
    bool launch_draws; /* the next launch draws from the generator: one has used the recorded tickets, or a checkpoint
                          was loaded */
    struct rw_region *regions;
    size_t n_regions, cap_regions;
    struct rw_effect *effects; /* stateful nodes */
    size_t n_effects, cap_effects;
    uint32_t *retained; /* values marked by rw_require_grad() */
    size_t n_retained, cap_retained;
    uint32_t open_region; /* innermost, RW_NONE_ID outside any */
    struct rw_tape_part *parts;
    size_t n_parts, n_made_parts, cap_parts; /* those behind n_parts are of earlier steps */
    uint32_t open_part; /* the same of parts */
    unsigned open_no_grads; /* calls of rw_no_grad_begin() without their end */
    struct rw_tape_recipe *recipes;
    size_t n_recipes, cap_recipes;
    uint32_t open_recipe; /* the same of recipes */
    struct rw_recipe_cast *casts; /* that recipes recorded */
    size_t n_casts, cap_casts;
    uint32_t *cast_of; /* by value: its last one, if that says so too. See recipe.h */
    size_t cap_cast_of;
    struct rw_tape_amax *amaxes;
    size_t n_amaxes, cap_amaxes;
    struct rw_key key;

    /* Input copies come from blocks that a reset keeps. */
    struct rw_input_block {
        void *data;
        size_t bytes, used;
    } *inputs;
    size_t n_inputs, cap_inputs;
    size_t input_bytes; /* counted in the context's totals */

    struct rw_origin origin; /* of what is recorded now */
    unsigned n_rules;        /* gradient rules that are at work, one inside of the other */
    bool planning;           /* a problem is open: what is recorded is cut off again (autodiff/problem.h) */
    const char *composite;   /* the function that records it as one of several nodes, NULL for none: messages name it */

    /* Of one node at a time, as large as the largest needs: its operands described, and its inputs where they are many.
     */
    rw_desc *in_desc, *out_desc;
    size_t cap_in_desc, cap_out_desc;
    struct rw_tensor **wide;
    size_t cap_wide;
    uint32_t *drawn_by; /* by value, REWIND_DEBUG=order alone: see order.h */
    size_t cap_drawn_by;

    char *policy_spec;
    struct rw_policy policy;
    bool policy_pinned; /* REWIND_POLICY wins over ckpt_set_policy() */

    /* What ran. */
    struct rw_held *held;
    size_t n_held, cap_held;
    struct rw_gradient_handle **gradients; /* of tape values: n_gradients of this step, the rest rest */
    size_t n_gradients, n_handles, cap_gradients;
    struct rw_run *runs;        /* run/run.h: those that are under way */
    struct rw_results *results; /* run/results.h: the pool that they take blocks from */
    uint32_t *roots; /* where the last backward or verify began, for ckpt_explain() */
    size_t n_roots, cap_roots;
    bool seeded; /* with gradients that were given */
    bool bereft; /* a state of the context that one of its leaves stands for has gone: until its reset nothing runs */
};

/* Ticket i of the tape under these draws. */
static inline rw_ticket rw_tape_ticket(const rw_tape *t, uint32_t i, const struct rw_draws *draws)
{
    const rw_ticket recorded = t->tickets[i];
    return i < draws->n ? (rw_ticket){ draws->seed, recorded.offset + draws->base } : recorded;
}

static inline struct rw_tensor *rw_tape_value(const rw_tape *t, uint32_t id)
{
    return &t->chunks[id / RW_VALUE_CHUNK][id % RW_VALUE_CHUNK];
}

/* Is x a value of what is recorded now? Of another tape, of before a reset, no value at all: no. See handle.h. */
static inline bool rw_tape_has(const rw_tape *t, const struct rw_tensor *x)
{
    return x->owner.tape == t && x->id < t->n_values && rw_tape_value(t, x->id) == x;
}

static inline uint32_t rw_tape_base(const rw_tape *t, uint32_t id)
{
    return rw_tape_value(t, id)->base;
}

/* Marks the tapes that have leaves of these states, which are about to go. */
void rw_tapes_miss(const rw_context *ctx, const struct rw_param *states, size_t n);

/* RW_OK, or RW_ERR_ARGUMENT of a tape so marked, with an error that names the call. */
rw_status rw_tape_misses_nothing(const rw_tape *t, const char *what);

/* Notes where a backward begins; RW_ERR_MEMORY, with an error that names the call. */
rw_status rw_tape_note_roots(rw_tape *t, const uint32_t *roots, size_t n, bool seeded, const char *what);

/* The leaf that stands for a parameter, buffer or state in this step; NULL where the step has not used it. */
static inline const struct rw_leaf *rw_tape_leaf_of(const rw_tape *t, const struct rw_param *p)
{
    const struct rw_seen *const seen = p->tensor.id < t->cap_seen ? &t->seen[p->tensor.id] : NULL;
    if (!seen || seen->step != t->step || seen->serial != p->serial) return NULL;
    return &t->leaves[rw_tape_value(t, seen->value)->leaf];
}

/* The region that a node stands in, RW_NONE_ID outside any: an adjoint node's is that of the node it differentiates.
   The node may be of a plan's tail: what that differentiates is on the tape. */
static inline uint32_t rw_node_region(const rw_tape *t, const struct rw_node *node)
{
    while (node->adjoint) {
        if (node->of == RW_NONE_ID) return RW_NONE_ID;
        node = &t->nodes[node->of];
    }
    return node->region;
}

/* What decides about the values of a region, or about those outside any. */
static inline const struct rw_policy *rw_region_policy(const rw_tape *t, uint32_t region, const struct rw_policy *whole)
{
    const uint32_t part = region == RW_NONE_ID || whole->whole ? RW_NONE_ID : t->regions[region].part;
    return part == RW_NONE_ID ? whole : &t->parts[part].policy;
}

/* The effect of a stateful node; NULL for another node. */
struct rw_effect *rw_tape_effect(const rw_tape *t, uint32_t node);

/* Is x the output of a commit, which has no bytes before the step ends? Planning alone reads those. */
static inline bool rw_value_is_committed(const rw_tape *t, const struct rw_tensor *x)
{
    const uint32_t maker = t->n_effects ? rw_tape_value(t, x->base)->producer : RW_NONE_ID;
    return maker != RW_NONE_ID && !t->planning && (t->ctx->ops[t->nodes[maker].op]->flags & RW_OP_COMMIT);
}

/* Counts the effects that have not happened before a reset; under REWIND_DEBUG=effects they are an error. */
void rw_tape_drop_effects(rw_tape *t);

/* The origin of what differentiation of node n records; of RW_NONE_ID: of what belongs to the whole step. */
struct rw_origin rw_origin_of(const rw_tape *t, uint32_t node);

/* Of n pointers, the first so many, which were used, go behind those that rested. */
void rw_rest(void *pointers, size_t used, size_t n);

/* Frees the tape when nobody has it any more: it was destroyed, and so were its graphs. */
void rw_tape_release(rw_tape *t);

/* Room for n more values; false without memory. */
bool rw_tape_reserve_values(rw_tape *t, size_t n);

/* A new value, for which there is room. Owned by the tape. */
struct rw_tensor *rw_tape_add_value(rw_tape *t);

/* The leaf that stands for the gradient of y, where backward begins at root number `root`. NULL without memory. */
struct rw_tensor *rw_tape_add_seed(rw_tape *t, uint32_t root, const struct rw_tensor *y);

/*
 * The value of x on tape t: x itself, or the leaf that stands for a context tensor. NULL on an error, which sticks and
 * names the call and the argument.
 */
struct rw_tensor *rw_tape_resolve(rw_tape *t, rw_tensor *x, const char *what, const char *argument, rw_site at);

/* Where a held base value lies, NULL when it is not held. */
void *rw_tape_held(const rw_tape *t, uint32_t base);

/* Room for the descriptions of so many inputs and outputs; false without memory. What was described stays. */
static inline bool rw_tape_describe(rw_tape *t, size_t n_inputs, size_t n_outputs)
{
    return rw_grow(&t->in_desc, &t->cap_in_desc, 0, n_inputs, sizeof *t->in_desc) &&
           rw_grow(&t->out_desc, &t->cap_out_desc, 0, n_outputs, sizeof *t->out_desc);
}

/*
 * The call that recorded a node, as its cost, draw and workspace functions see it. Its operands are described in memory
 * of the tape, which the next call or recording uses again.
 */
rw_op_call rw_call_of(const rw_tape *t, const struct rw_node *node);

/* What the op says that it costs; without a word of its own, every operand read or written once. */
rw_op_cost rw_call_cost(const rw_op_call *call);

/* The names of its first regions, each once, in that order: as many as there are, `most` at most. */
size_t rw_tape_region_names(const rw_tape *t, uint32_t *names, size_t most);

/* "outer/inner" into text, "" for RW_NONE_ID. What there is no room for goes at the outer end: ".../inner". */
void rw_region_path(const rw_tape *t, uint32_t region, char *text, size_t size);

/* An error when a region, policy or recipe is open, which names it. */
rw_status rw_open_check(const rw_tape *t, const char *what);

bool rw_tape_is_valid(const rw_tape *t);

/*
 * The audit of law 3: true when no two tickets of the tape share a random word, under the draws of its last launch. Not
 * an invariant: a caller may set the generator back on purpose. RW_ERR_MEMORY leaves *ret untouched.
 */
rw_status rw_tape_audit_tickets(const rw_tape *t, bool *ret_disjoint);

/* True when the recorded tickets have one seed and each begins where an earlier one ended, or later: one base can move
   all of them. Otherwise the generator was set while the tape was recorded. */
bool rw_tape_tickets_follow(const rw_tape *t);

/* It is noted where backward depends on it. RW_ERR_MEMORY, recorded. */
rw_status rw_tape_note(rw_tape *t, struct rw_tape_amax what);

#endif
