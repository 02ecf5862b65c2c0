/*
 * Pass 3: the order in which nodes run, replays included, and the life of every buffer.
 *
 * A schedule is a list of actions. Every operand of an action is a buffer: one life of one base value. A value that is
 * dropped and made again has several buffers, one after the other.
 *
 * Two blocks, each x -> a -> b -> y, under `full`; a' and b' read a and b; the inner region of the second block holds
 * b:
 *
 *     action   a1 b1 y1 a2 b2 y2 | a2 y2' b2 b2' a2' | a1 b1 y1' b1' a1'
 *     of       ---- forward ---- | block 2           | block 1
 *     x        ================= | ================= | ============          read by both passes: kept, one buffer
 *     y1             =========== | =================                         input of block 2: kept
 *     a1       ====              |                   | ============          two buffers: forward's, and the visit's
 *     a2                ====     | =================
 *     b2                   ====  |        ======                             made for the inner region's visit alone
 *
 * Before a node of backward runs, each value that it reads is demanded: it is there, or the visit that serves the read
 * (choice.h) has made it, or the visit makes it now, its inputs first. So a replay starts as late as it can, and what
 * leads to no needed value never runs again. Equations, which rw_schedule_is_valid() checks:
 *
 *     without replays and moves the list is the problem's order, then the commits; updates that use up a gradient
 *     inside the step (early.h) stand among it, each once, behind everything that names what it writes
 *     replays of a node == the visits that its output was made for, each once; where a node has several outputs, or a
 *     remake makes one of them, each replay is the first to make one of them for a visit
 *     a read finds what the visit that serves it made, or what forward made and forward will still read
 *     first(buffer) == the action that writes it (a source: the first that reads it)
 *     last(buffer) == the last that reads it, or the one that waits until a copy has read it
 *     merged is a forest: merged(root) == root, and lives on one root follow one another
 */
#ifndef RW_REMAT_SCHEDULE_H
#define RW_REMAT_SCHEDULE_H

#include "remat/lives.h"
#include "remat/visits.h"

/* Results lie side by side in one block, each at a multiple of this. */
#define RW_RESULT_ALIGNMENT 256u

enum rw_action_kind {
    RW_ACTION_FORWARD,  /* a recorded node, first time */
    RW_ACTION_REPLAY,   /* a recorded node again, or the remake of a value of its */
    RW_ACTION_BACKWARD, /* a node that differentiation made */
    RW_ACTION_COMMIT,   /* writes parameters or buffers when the step ends, or as soon as it can: early.h */
    RW_ACTION_OUT,      /* a move: copies its first operand to its second, out of the arena */
    RW_ACTION_IN        /* a move back */
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
    RW_ACTION_ALONE = 1 << 1   /* runs in one thread: so little work is not worth others' waking up */
};

struct rw_action {
    uint32_t node; /* of a move: the one that made what is moved */
    uint32_t word; /* first of its words: inputs, outputs, then the workspace if it has one; of a move: from, to */
    uint16_t n_words;
    uint8_t kind : 4; /* enum rw_action_kind */
    uint8_t lane : 4; /* enum rw_lane */
    uint8_t flags : 2;  /* enum rw_action_flag */
    uint8_t little : 6; /* units of RW_LITTLE_S that its node takes at nominal rates, or 0: more than there are */
};

/* Nodes of up to 63 units of work are little: it may be that they are faster in one thread (run/company.h). */
#define RW_LITTLE_S 256e-6
#define RW_LITTLE_MOST 63

/* Before `action` runs, its lane waits until `on`, an action of another lane, has run. */
struct rw_wait {
    uint32_t action, on;
};

enum rw_source_kind {
    RW_SOURCE_PARAM,
    RW_SOURCE_GRADIENT, /* where a parameter's gradient is written */
    RW_SOURCE_OLD,      /* what it holds; a clear one is filled with zeros before */
    RW_SOURCE_ADDEND,   /* what it holds, for ops that take it as absent while it is clear */
    RW_SOURCE_SEED, /* what backward begins with at one of its roots */
    RW_SOURCE_INPUT,
    RW_SOURCE_HELD,   /* a value held from an earlier run */
    RW_SOURCE_RESULT, /* what this run holds for reading */
    RW_SOURCE_STORE,  /* a slot of memory outside the device */
    RW_SOURCE_NOWHERE /* an operand without elements needs no memory */
};

/* Do kernels use what lies there, or is it on its way, nothing, or absent most of the time? */
static inline bool rw_source_is_used(uint8_t kind)
{
    return kind != RW_SOURCE_STORE && kind != RW_SOURCE_NOWHERE && kind != RW_SOURCE_ADDEND;
}

struct rw_source {
    uint8_t kind;
    uint32_t index; /* parameter, root, leaf of the tape, base value held by the tape, result or slot of the plan */
    uint32_t leaf;  /* leaf of the tape that is read, RW_NONE_ID for none */
    uint32_t first, last; /* actions that name it; of a plan */
};

/* A value that stays readable after the run. */
struct rw_result {
    uint32_t value; /* a base; for a gradient its own id in the tail */
    uint32_t of;    /* retained value or parameter whose gradient it is, RW_NONE_ID for a forward value */
    uint32_t layout;
    uint8_t dtype;
    uint64_t offset;
    uint64_t bytes;
};

struct rw_buffer {
    uint32_t value;       /* base value; RW_NONE_ID for a workspace */
    uint32_t first, last; /* actions, inclusive */
    uint32_t source;      /* where it lies when that is not the arena, RW_NONE_ID in the arena */
    uint64_t bytes;
    bool replay;
    uint32_t merged; /* buffer whose memory it takes over in place; itself when it has its own */
};

struct rw_schedule {
    struct rw_action *actions; /* words are indexes into refs until placement turns them into words */
    size_t n_actions, cap_actions;
    uint32_t *refs; /* buffer ids */
    size_t n_refs, cap_refs;
    struct rw_buffer *buffers;
    size_t n_buffers, cap_buffers;
    struct rw_source *sources;
    size_t n_sources, cap_sources;
    struct rw_read_gradient {
        uint32_t gradient, buffer;
    } *read_gradients; /* what parameters' gradients hold before the step writes them, in the order of the parameters */
    size_t n_read_gradients, cap_read_gradients;
    struct rw_result *results;
    size_t n_results, cap_results;
    bool moves; /* the choice moves some value: waits and slots are yet to come (overlap.h) */
    struct rw_wait *waits; /* in the order of the actions that wait; empty for a schedule of one lane */
    size_t n_waits, cap_waits;
    struct rw_life *slots; /* outside the device */
    size_t n_slots, cap_slots;
    size_t n_forward; /* actions before the first one of backward, also of one that rw_grad() recorded */
    size_t n_before;  /* actions before the first one of the step's own backward: what is kept lives there */
    uint64_t results_bytes;
};

/* The nodes of forward that every schedule of a problem begins with, whatever is chosen: emitted once. */
struct rw_front {
    uint64_t of; /* the problem's serial; 0: of none */
    size_t n;    /* of the problem's order: up to the first node of any backward */
    struct rw_schedule schedule;
    uint32_t *buffer; /* base value -> the buffer that it has behind them when nothing is dropped */
    uint32_t *early;  /* base value -> reads of forward still to come behind them */
};

/* What ordering works with. All zero is empty; its memory is used again by the next schedule that is made with it. */
struct rw_order_scratch {
    struct rw_front front;
    struct rw_gradient_order {
        uint32_t *gradient, *from; /* as the last schedule read them; which of them comes where when they are sorted */
        struct rw_read_gradient *read;
        size_t n, cap;
    } reads;
    bool *dropped;    /* base value -> given up after the reads of forward */
    uint32_t *buffer; /* base value -> its buffer while it is there for every visit: forward or backward itself made it,
                         or a replay for the whole step */
    uint32_t *early;  /* base value that is dropped -> reads of forward still to come */
    size_t cap_values;
    struct rw_visits visits;
    uint32_t *stack; /* values of a demand */
    size_t n_stack, cap_stack;
};

/* The schedule of a choice. Knows no policy. *s may hold an older schedule: its memory is used again. */
rw_status rw_order(const struct rw_problem *p, const struct rw_choice *c, struct rw_order_scratch *scratch,
                   struct rw_schedule *s);
void rw_schedule_finish(struct rw_schedule *s);
void rw_order_scratch_finish(struct rw_order_scratch *scratch);

/* The buffer whose memory a buffer lies in: its own, or one that it took over in place. */
static inline uint32_t rw_buffer_root(const struct rw_schedule *s, uint32_t buffer)
{
    while (s->buffers[buffer].merged != buffer) buffer = s->buffers[buffer].merged;
    return buffer;
}

/* Does the buffer have memory of its own in the arena? */
static inline bool rw_buffer_is_placed(const struct rw_schedule *s, uint32_t buffer)
{
    return s->buffers[buffer].source == RW_NONE_ID && s->buffers[buffer].merged == buffer;
}

/* Holds from rw_order() on, and when moves are in it and buffers are merged. See check.c. */
bool rw_schedule_is_valid(const struct rw_problem *p, const struct rw_choice *c, const struct rw_schedule *s);

#endif
