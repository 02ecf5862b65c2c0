/*
 * The buffers in the arena of a plan and their lifetimes, derived from the operand words of its actions alone:
 * placement and scheduling have no say in it. For code that must tell memory in use from memory that is free.
 */
#ifndef RW_PLAN_ARENA_BUFFERS_H
#define RW_PLAN_ARENA_BUFFERS_H

#include "plan/plan.h"

/* The memory of one value, or of several that were written over each other, or of a workspace. */
struct rw_arena_buffer {
    uint64_t offset, bytes;
    uint32_t value; /* the first value in it; RW_NONE_ID for a workspace */
    uint32_t first; /* the action that writes it first */
    /* The last action that reads it; for what another lane copies, the compute action that waits for the copy. The
       number of actions, where its memory already has its next buffer then. */
    uint32_t last;
    bool is_copied; /* to or from an offload store */
};

struct rw_arena_buffers {
    struct rw_arena_buffer *buffer; /* by first action */
    size_t n;
    uint32_t *of_word; /* index of the plan's words -> its buffer; RW_NONE_ID for a source */
    uint32_t *ending;  /* buffers by last action: those of action i are [ends[i], ends[i + 1]) */
    uint32_t *ends;
};

/* False without memory. All zero can be freed. */
bool rw_arena_buffers_find(struct rw_arena_buffers *ret, const rw_tape *t, const rw_plan *plan);
void rw_arena_buffers_free(struct rw_arena_buffers *buffers);

#endif
