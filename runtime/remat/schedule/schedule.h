/*
 * Pass 3: the order in which nodes run, replays included, and the lifetime of every buffer.
 *
 * A schedule is a list of actions. Every operand of an action is a buffer, which is one lifetime of one base value. A
 * value that is freed and recomputed has several buffers, one after the other.
 *
 * Two blocks, each x -> a -> b -> y, under `full`. a' and b' read a and b. The inner region of the second block
 * contains b:
 *
 *     action   a1 b1 y1 a2 b2 y2 | a2 y2' b2 b2' a2' | a1 b1 y1' b1' a1'
 *     of       ---- forward ---- | block 2           | block 1
 *     x        ================= | ================= | ============          read by both passes: kept, one buffer
 *     y1             =========== | =================                         input of block 2: kept
 *     a1       ====              |                   | ============          two buffers: forward's, and the visit's
 *     a2                ====     | =================
 *     b2                   ====  |        ======                             recomputed for the inner region's visit
 *
 * Before a node of backward runs, each value that it reads is demanded. Either the value is live, or the visit that
 * serves the read (choice.h) has recomputed it, or the visit recomputes it now, after its inputs. So a replay starts as
 * late as possible, and values that no needed value depends on are never recomputed.
 *
 * A node is deferred if all its outputs are dropped, and only backward or other deferred nodes read them. Forward
 * leaves it out, and the first visit that demands one of its outputs executes it for the first time. Its action is in
 * backward and of kind FORWARD; later visits replay it. planning_problem.h defines which nodes can be deferred.
 *
 * Invariants, which rw_schedule_is_valid() checks:
 *
 *     without replays, moves and deferred nodes the list is the order of the problem's other nodes, then the commits
 *     a deferred node is executed for the first time once, in backward, before it is replayed
 *     an update that consumes a gradient inside the step (fused_update.h) is in the list once, after every action that
 *     has an operand that the update writes
 *     replays of a node == the visits for which its output was recomputed, one each. If a node has several outputs, or
 *     a recompute node computes one of them, each replay is the first to compute some output for a visit
 *     a read finds what the visit that serves it has computed, or forward's value: if forward reads that value again
 *     later, or in the first visit that reads it, for which it was kept
 *     first(buffer) == the action that writes it (a source: the first that reads it)
 *     last(buffer) == the last that reads it, or the one that waits until a copy has read it
 *     merged is a forest: merged(root) == root, and lifetimes with one root follow one another
 */
#ifndef RW_REMAT_SCHEDULE_SCHEDULE_H
#define RW_REMAT_SCHEDULE_SCHEDULE_H

#include "remat/schedule/lifetimes.h"
#include "remat/schedule/segment_visits.h"

/*
 * Results are next to each other in one block, each at a multiple of this number of bytes. Scalars share groups of this
 * size.
 */
#define RW_RESULT_ALIGNMENT 256u

enum rw_action_kind {
    RW_ACTION_FORWARD,  /* first execution of a recorded node; in backward: of a deferred one */
    RW_ACTION_REPLAY,   /* re-execution of a recorded node, or the recompute node of one of its values */
    RW_ACTION_BACKWARD, /* a node that differentiation recorded */
    RW_ACTION_COMMIT,   /* writes parameters or buffers; at the end, or early: fused_update.h */
    RW_ACTION_OUT,      /* an offload: copies its first operand to its second, out of the arena */
    RW_ACTION_IN        /* a copy back into the arena */
};

static inline const char *rw_action_kind_name(unsigned kind)
{
    static const char *const names[] = { "forward", "replay", "backward", "commit", "move out", "move in" };
    return names[kind];
}

static inline bool rw_action_is_move(uint8_t kind)
{
    return kind == RW_ACTION_OUT || kind == RW_ACTION_IN;
}

enum rw_action_flag {
    RW_ACTION_DIGEST = 1 << 0, /* some output is a value that is replayed later, or a replay of one */
    RW_ACTION_ALONE = 1 << 1   /* runs in one thread: too little work to wake up other threads */
};

struct rw_action {
    uint32_t node; /* of a move: the node that computed the moved value */
    uint32_t word; /* first of its words: inputs, outputs, then the workspace if it has one; of a move: from, to */
    uint16_t n_words;
    uint8_t kind : 4; /* enum rw_action_kind */
    uint8_t lane : 3; /* enum rw_lane */
    uint8_t may_overwrite : 1; /* its op has outputs that may overwrite inputs */
    uint8_t flags : 2;  /* enum rw_action_flag */
    uint8_t little : 6; /* nominal time of its node in units of RW_LITTLE_S, or 0: more than fits */
};

/* Nodes of up to 63 units of work are small: they may be faster in one thread (run/small_op_threads.h). */
#define RW_LITTLE_S 256e-6
#define RW_LITTLE_MAX 63

/* Before `action` runs, its lane waits until `on`, an action of another lane, has finished. */
struct rw_wait {
    uint32_t action, on;
};

enum rw_source_kind {
    RW_SOURCE_PARAM,
    RW_SOURCE_GRADIENT, /* where a parameter's gradient is written */
    RW_SOURCE_OLD,      /* its present contents; a clear one is filled with zeros first */
    RW_SOURCE_ADDEND,   /* its present contents, for ops that treat it as absent while it is clear */
    RW_SOURCE_SEED, /* the gradient with which backward starts at one of its roots */
    RW_SOURCE_INPUT,
    RW_SOURCE_HELD,   /* a value held from an earlier run */
    RW_SOURCE_RESULT, /* what this run holds for reading */
    RW_SOURCE_STORE,  /* a slot of memory outside of the device */
    RW_SOURCE_NOWHERE /* an operand without elements needs no memory */
};

/*
 * Do kernels access this memory? False for the store, for operands without memory, and for addends, which are mostly
 * absent.
 */
static inline bool rw_source_is_used(uint8_t kind)
{
    return kind != RW_SOURCE_STORE && kind != RW_SOURCE_NOWHERE && kind != RW_SOURCE_ADDEND;
}

struct rw_source {
    uint8_t kind;
    uint32_t index; /* parameter, root, leaf of the tape, base value held by the tape, result or slot of the plan */
    uint32_t leaf;  /* leaf of the tape that is read, RW_NONE_ID for none */
    uint32_t first, last; /* actions with this operand; of a plan */
};

/* A value that stays readable after the run. */
struct rw_result {
    uint32_t value; /* a base, or a view that is held as a copy; for a gradient its own id in the tail */
    uint32_t of;    /* the retained value or parameter whose gradient it is, RW_NONE_ID for a forward value */
    uint32_t layout;
    uint8_t dtype;
    uint64_t offset;
    uint64_t bytes;
};

struct rw_buffer {
    uint32_t value;       /* base value; RW_NONE_ID for a workspace */
    uint32_t first, last; /* actions, inclusive */
    uint32_t source;      /* its memory if that is not the arena, RW_NONE_ID in the arena */
    uint64_t bytes;
    uint32_t merged; /* buffer whose memory it reuses in place; itself if it has its own */
    bool replay;
};
_Static_assert(sizeof(struct rw_buffer) == 32, "planning reads many of them: keep them small");

struct rw_schedule {
    struct rw_action *actions; /* the actions' words are indexes into refs until placement turns them into words */
    size_t n_actions, cap_actions;
    uint32_t *refs; /* buffer ids */
    size_t n_refs, cap_refs;
    struct rw_buffer *buffers;
    size_t n_buffers, cap_buffers;
    struct rw_source *sources;
    size_t n_sources, cap_sources;
    struct rw_read_gradient {
        uint32_t gradient, buffer;
    } *read_gradients; /* gradients of parameters that are read before the step writes them, by parameter */
    size_t n_read_gradients, cap_read_gradients;
    struct rw_result *results;
    size_t n_results, cap_results;
    bool moves; /* the choice offloads a value: copy_schedule.h is to add waits and slots */
    struct rw_wait *waits; /* by the action that waits; empty for a schedule of one lane */
    size_t n_waits, cap_waits;
    struct rw_lifetime *slots; /* outside of the device */
    size_t n_slots, cap_slots;
    size_t n_forward; /* actions before the first one of backward, including one that rw_grad() recorded */
    size_t n_before;  /* actions before the first one of the step's own backward: kept values are live there */
    uint64_t results_bytes;
    uint64_t scalars_end; /* place of the next scalar in the last group; at a multiple of a group: none yet */
};

/* The nodes of forward with which every schedule of a problem begins, for any choice. They are emitted once. */
struct rw_front {
    uint64_t of; /* the problem's serial; 0: none */
    size_t n;    /* number of nodes: up to the first one of backward or that can be deferred */
    struct rw_schedule schedule;
    uint32_t *buffer; /* base value -> its buffer after these nodes if nothing is dropped */
    uint32_t *early;  /* base value -> reads of forward that follow these nodes */
};

#define RW_FOR_FIRST 2

/* Scratch memory of rw_order(). All zero is empty. The next schedule reuses it. */
struct rw_order_scratch {
    struct rw_front front;
    struct rw_gradient_order {
        uint32_t *gradient, *from; /* gradients as the last schedule read them, and their sorted order as positions */
        struct rw_read_gradient *read;
        size_t n, cap;
    } reads;
    bool *deferred;   /* node that can be deferred -> it is, and has not been executed yet */
    size_t cap_nodes;
    uint8_t *dropped; /* base value -> not 0: freed after the reads of forward, or with RW_FOR_FIRST a first visit */
    uint32_t *buffer; /* base value -> its buffer while it is live for every visit: forward or backward itself
                         computed it, or a replay for the whole step did */
    uint32_t *early;  /* base value that is dropped -> reads of forward still to come */
    size_t cap_values;
    struct rw_visits visits;
    size_t most_actions; /* a schedule of more actions is abandoned; 0: no limit */
    uint32_t *stack; /* values of a demand */
    size_t n_stack, cap_stack;
};

/* Emits the schedule of a choice, whatever made the choice. *s may hold an older schedule, whose memory is reused.
   RW_ERR_MEMORY; RW_ERR_UNSUPPORTED for more actions than scratch->most_actions. */
rw_status rw_order(const struct rw_problem *p, const struct rw_choice *c, struct rw_order_scratch *scratch,
                   struct rw_schedule *s);
void rw_schedule_finish(struct rw_schedule *s);
void rw_order_scratch_finish(struct rw_order_scratch *scratch);

/* The buffer that owns the memory of `buffer`: itself, or the one whose memory it reuses in place. */
static inline uint32_t rw_buffer_root(const struct rw_schedule *s, uint32_t buffer)
{
    while (s->buffers[buffer].merged != buffer) buffer = s->buffers[buffer].merged;
    return buffer;
}

/* Does the buffer have its own memory in the arena? */
static inline bool rw_buffer_is_placed(const struct rw_schedule *s, uint32_t buffer)
{
    return s->buffers[buffer].source == RW_NONE_ID && s->buffers[buffer].merged == buffer;
}

/* Is the schedule valid? True after rw_order(), and after moves are added and buffers are merged. See check.c. */
bool rw_schedule_is_valid(const struct rw_problem *p, const struct rw_choice *c, const struct rw_schedule *s);

#endif
