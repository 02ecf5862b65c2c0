/*
 * A tape: the growing arrays to which recording appends, and the state of what has run.
 *
 * The tape keeps the words of its structure as it is recorded: ops, operands, layouts, attributes, regions, decisions
 * about values (tape_key.h). Two steps that record the same program have equal words, and share a plan. Data that
 * differs from step to step, tickets and contents of inputs, is read from the tape when the plan runs.
 */
#ifndef RW_RECORD_TAPE_H
#define RW_RECORD_TAPE_H

#include "base/alloc.h"
#include "record/context.h"
#include "record/tape_key.h"
#include "record/tape_mark.h"
#include "record/param.h"
#include "record/policy.h"

#include <rewind/precision.h>

#define RW_VALUE_CHUNK 4096
#define RW_VALUE_CHUNKS 5 /* at least so many alternate, so a handle of a short step stays stale for as many steps */

/* A computed value that is held for reading: results of evals, losses, gradients of tape values. */
struct rw_held {
    uint32_t value; /* a base, or a view of a leaf of which this is a dense copy */
    void *data;     /* NULL when it has no elements */
    struct rw_results *in; /* run/result_memory.h: its block, referenced */
};

/* The tensor that rw_gradient() returns for a tape value. */
struct rw_gradient_handle {
    struct rw_tensor tensor; /* first: the caller sees this */
    void *data;
    struct rw_results *in; /* as above */
};

/* A part of the tape with its own policy, between ckpt_policy_begin() and ckpt_policy_end(). */
struct rw_tape_part {
    struct rw_policy policy; /* of this step, or of the part with the same index in an earlier one */
    uint32_t parent;         /* the surrounding part, RW_NONE_ID for none */
    uint32_t region;         /* the surrounding region, RW_NONE_ID for none */
    uint32_t first, end;     /* its nodes; end is RW_NONE_ID while it is open */
    uint32_t site;
};

/* A value that the step records when backward ends: an amax of delayed scaling (delayed_scales.h) or counts
   (quantization_counts.h). */
struct rw_tape_amax {
    uint32_t value;
    uint32_t buffer, row; /* its destination; the buffer by its ID */
    uint32_t codes; /* of kept FP8 data: the leaf that has the data; RW_NONE_ID: a node computes the value */
    bool counts;
};

/*
 * Which words the random nodes of a run draw. A launch of a graph moves the first n tickets of its tape, those recorded
 * before the graph was created, to another seed and by `base` blocks (modulo 2^64). All other tickets draw as recorded;
 * all zero: every one does.
 */
struct rw_draws {
    uint64_t seed, base;
    size_t n;
};

/* A parameter, buffer or state that a step has used. */
struct rw_seen {
    uint64_t step;   /* 0: none */
    uint64_t serial; /* another one may have had its ID */
    uint32_t value;
};

struct rw_tape {
    rw_context *ctx;
    rw_tape *next, **link; /* in the context's list */
    size_t n_users; /* users: itself, until rw_tape_destroy(), and its graphs; the last one frees it */
    uint64_t step; /* counts resets, to distinguish leaves of this step from those of earlier ones */
    struct rw_extensions extensions;

    struct rw_node *nodes;
    size_t n_nodes, cap_nodes;
    uint32_t *operands;
    size_t n_operands, cap_operands;
    unsigned char *attrs;
    size_t n_attrs, cap_attrs;
    struct rw_tensor **chunks; /* of RW_VALUE_CHUNK values: values never move, because callers hold their addresses */
    size_t n_values, n_chunks, cap_chunks;
    uint8_t *requested; /* by value, as many as the chunks have: enum rw_requested. Other values may be held, but only
                           because something was computed ahead */
    size_t cap_requested;
    size_t most_values; /* of any step that has ended */
    struct rw_leaf *leaves;
    size_t n_leaves, cap_leaves;
    /* By parameter: its leaf, one per step, whatever other tapes record meanwhile. */
    struct rw_seen *seen;
    size_t cap_seen;
    rw_ticket *tickets; /* as recorded: runs and launches do not change them */
    uint64_t *ticket_blocks; /* by ticket: how many it took */
    size_t n_tickets, cap_tickets, cap_ticket_blocks;
    uint64_t ticket_end; /* first block after the last one drawn */
    struct rw_draws draws; /* of the tape's values: those of the last launch. A run copies them at its creation */
    bool launch_draws; /* the next launch draws from the generator, because the recorded tickets were used or a
                          checkpoint was loaded */
    struct rw_region *regions;
    size_t n_regions, cap_regions;
    struct rw_effect *effects; /* stateful nodes */
    size_t n_effects, cap_effects;
    uint32_t *retained; /* values marked by rw_require_grad() */
    size_t n_retained, cap_retained;
    uint32_t open_region; /* innermost, RW_NONE_ID outside any */
    struct rw_tape_part *parts;
    size_t n_parts, n_created_parts, cap_parts; /* entries from n_parts on are of earlier steps */
    uint32_t open_part; /* the same of parts */
    unsigned open_no_grads; /* calls of rw_no_grad_begin() without their end */
    uint32_t open_recipe; /* the same of recipes (precision_recipe.h) */
    struct rw_key key;

    /* Memory of inputs, in blocks that a reset keeps. */
    struct rw_input_block {
        void *data;
        size_t bytes, used;
    } *inputs;
    size_t n_inputs, cap_inputs;
    size_t input_bytes; /* as counted in the context's totals */

    struct rw_origin origin; /* of the node being recorded */
    unsigned n_rules;        /* number of gradient rules that are running, nested */
    bool planning;           /* a problem is open: what is recorded will be cut off (autodiff/planning_problem.h) */
    const char *composite;   /* the function that records it as one of several nodes, NULL for none: messages name it */
    uint64_t n_composites;   /* number of rw_composite_begin() so far */
    uint64_t open_composite; /* number of the innermost one that has not ended; 0: none */

    /* Scratch memory for one node, as large as the largest needs: descriptors of its operands, and its inputs if
       there are many. */
    rw_operand_desc *in_desc, *out_desc;
    size_t cap_in_desc, cap_out_desc;
    struct rw_tensor **wide;
    size_t cap_wide;

    char *policy_spec;
    struct rw_policy policy;
    bool policy_pinned; /* REWIND_POLICY overrides ckpt_set_policy() */

    /* Results of runs. */
    struct rw_held *held; /* in the order of their values */
    size_t n_held, cap_held;
    struct rw_gradient_handle **gradients; /* of tape values: n_gradients of this step, from the last value to the
                                              first, then unused ones */
    size_t n_gradients, n_handles, cap_gradients;
    bool bereft; /* a state of the context that one of its leaves refers to was destroyed: nothing runs until its
                    reset */
};

static inline struct rw_tape_point rw_tape_point(const rw_tape *t)
{
    return (struct rw_tape_point){ t->key.hash, t->key.n, t->ctx->layouts.generation };
}

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

/* Is x a value of the present recording? Not if it is of another tape, from before a reset, or not a value. See
   handle.h. */
static inline bool rw_tape_has(const rw_tape *t, const struct rw_tensor *x)
{
    return x->owner.tape == t && x->id < t->n_values && rw_tape_value(t, x->id) == x;
}

static inline uint32_t rw_tape_base(const rw_tape *t, uint32_t id)
{
    return rw_tape_value(t, id)->base;
}

/* Marks the tapes that have leaves of these states, which are about to be destroyed. */
void rw_tapes_miss(const rw_context *ctx, const struct rw_param *states, size_t n);

/* RW_OK, or RW_ERR_ARGUMENT for a marked tape, with an error that names the call. */
rw_status rw_tape_misses_nothing(const rw_tape *t, const char *what);

/* What the program has requested of a value. */
enum rw_requested {
    RW_REQUESTED_VALUE = 1, /* of a base: its elements */
    RW_REQUESTED_STEP = 2   /* of a root: its forward or backward, for which its base is requested as well */
};

/*
 * Records that the program requested this of these values, and with `effects` all effects that have happened. Call it
 * when the request has been granted.
 */
void rw_tape_note_requested(rw_tape *t, const uint32_t *values, size_t n, enum rw_requested what, bool effects);

/* The leaf of a parameter, buffer or state in this step; NULL if the step has not used it. */
static inline const struct rw_leaf *rw_tape_leaf_of(const rw_tape *t, const struct rw_param *p)
{
    const struct rw_seen *const seen = p->tensor.id < t->cap_seen ? &t->seen[p->tensor.id] : NULL;
    if (!seen || seen->step != t->step || seen->serial != p->serial) return NULL;
    return &t->leaves[rw_tape_value(t, seen->value)->leaf];
}

/* The region of a node, RW_NONE_ID outside any; an adjoint node has that of the node that it differentiates. The
   node may be of a plan's tail, whose origin is on the tape. */
static inline uint32_t rw_node_region(const rw_tape *t, const struct rw_node *node)
{
    while (node->adjoint) {
        if (node->of == RW_NONE_ID) return RW_NONE_ID;
        node = &t->nodes[node->of];
    }
    return node->region;
}

/* The policy for the values of a region, or for those outside any. */
static inline const struct rw_policy *rw_region_policy(const rw_tape *t, uint32_t region, const struct rw_policy *whole)
{
    const uint32_t part = region == RW_NONE_ID || whole->whole ? RW_NONE_ID : t->regions[region].part;
    return part == RW_NONE_ID ? whole : &t->parts[part].policy;
}

/* The effect of a stateful node; NULL for another node. */
struct rw_effect *rw_tape_effect(const rw_tape *t, uint32_t node);

/* Is x the output of a commit, which has no bytes before the step ends? Only planning reads those. */
static inline bool rw_value_is_committed(const rw_tape *t, const struct rw_tensor *x)
{
    const uint32_t producer = t->n_effects ? rw_tape_value(t, x->base)->producer : RW_NONE_ID;
    return producer != RW_NONE_ID && !t->planning && (t->ctx->ops[t->nodes[producer].op]->flags & RW_OP_COMMIT);
}

/* Call when a context is created: its resets count the effects that have not happened. RW_ERR_MEMORY, not recorded.
   And under REWIND_DEBUG=effects: such an effect is an error. */
rw_status rw_effects_open(rw_context *ctx);
void rw_effects_refuse_drops(const rw_context *ctx);

/* The origin for nodes that differentiate node n; for RW_NONE_ID, for nodes of the whole step. */
struct rw_origin rw_origin_of(const rw_tape *t, uint32_t node);

/* Rotates n pointers: the first `used` go to the end, so that memory is reused as late as possible. */
void rw_rest(void *pointers, size_t used, size_t n);

/* Frees the tape if it was destroyed and its graphs were, too. */
void rw_tape_release(rw_tape *t);

/* Room for n more values; false without memory. */
bool rw_tape_add_chunks(rw_tape *t, size_t n);
static inline bool rw_tape_reserve_values(rw_tape *t, size_t n)
{
    return t->n_values + n <= t->n_chunks * RW_VALUE_CHUNK || rw_tape_add_chunks(t, n);
}

/* A new value, for which memory is reserved. Owned by the tape. */
static inline struct rw_tensor *rw_tape_add_value(rw_tape *t)
{
    const uint32_t id = (uint32_t)t->n_values++;
    struct rw_tensor *const v = rw_tape_value(t, id);
    *v = (struct rw_tensor){ .owner.tape = t, .id = id, .producer = RW_NONE_ID, .base = id, .leaf = RW_NONE_ID };
    t->requested[id] = 0;
    return v;
}

/* The leaf for the seed of y, at root number `root`. NULL without memory. */
struct rw_tensor *rw_tape_add_seed(rw_tape *t, uint32_t root, const struct rw_tensor *y);

/*
 * The value of x on tape t: x itself, or the leaf of a context tensor. NULL on an error, which is sticky and names the
 * call and the argument.
 */
struct rw_tensor *rw_tape_resolve(rw_tape *t, rw_tensor *x, const char *what, const char *argument, rw_site at);

/* Number of held values with a smaller ID: where the value is in t->held, or belongs. O(log n). */
size_t rw_tape_held_below(const rw_tape *t, uint32_t value);

/* Number of gradients of larger IDs: where that of the value is in t->gradients, or belongs. O(log n). */
size_t rw_tape_gradients_above(const rw_tape *t, uint32_t value);

/* Address of a held base value, NULL if it is not held. */
void *rw_tape_held(const rw_tape *t, uint32_t base);

/* Reserves descriptors for so many inputs and outputs; false without memory. Existing descriptors stay. */
static inline bool rw_tape_describe(rw_tape *t, size_t n_inputs, size_t n_outputs)
{
    return rw_grow(&t->in_desc, &t->cap_in_desc, 0, n_inputs, sizeof *t->in_desc) &&
           rw_grow(&t->out_desc, &t->cap_out_desc, 0, n_outputs, sizeof *t->out_desc);
}

/*
 * The call that recorded a node, for its cost, draws and workspace functions. Its descriptors are in scratch memory of
 * the tape, which the next call or recording reuses.
 */
rw_op_call rw_call_of(const rw_tape *t, const struct rw_node *node);

/* Results of an op's functions with their defaults. Cost: every operand read or written once. Draws: the elements of
   output 0. Workspace: none. */
rw_op_cost rw_call_cost(const rw_op_call *call);
int64_t rw_call_draws(const rw_op_call *call);
size_t rw_call_workspace(const rw_op_call *call);

/* Names of the first regions, each once, in that order; returns their number, writes `most` at most. */
size_t rw_tape_region_names(const rw_tape *t, uint32_t *names, size_t most);

/* "outer/inner" into text, "" for RW_NONE_ID. A long path loses its outer end: ".../inner". */
void rw_region_path(const rw_tape *t, uint32_t region, char *text, size_t size);

/* Records an error if a region, policy or recipe is open, which it names. */
rw_status rw_open_check(const rw_tape *t, const char *what);

bool rw_tape_is_valid(const rw_tape *t);

/*
 * The audit of law 3: true if no two tickets of the tape share a random word, under the draws of its last launch. Not
 * an invariant, because a caller may set the generator back on purpose. RW_ERR_MEMORY leaves *ret untouched.
 */
rw_status rw_tape_audit_tickets(const rw_tape *t, bool *ret_disjoint);

/* True if all recorded tickets have one seed and each begins at or after the end of an earlier one, so one base can
   move all of them. Otherwise the generator was set during recording. */
bool rw_tape_tickets_follow(const rw_tape *t);

#endif
