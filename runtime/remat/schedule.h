/*
 * Pass 3: the order in which nodes run, replays included, and the life of every buffer.
 *
 * A schedule is a list of steps. Every operand of a step is a buffer: one life of one base value. A value that is
 * discarded and replayed has several buffers, one after the other.
 */
#ifndef RW_REMAT_SCHEDULE_H
#define RW_REMAT_SCHEDULE_H

#include "plan/plan.h"
#include "remat/scope.h"

struct rw_buffer {
    uint32_t value;       /* base value; RW_NONE_ID for a workspace */
    uint32_t first, last; /* steps, inclusive */
    uint64_t bytes;
    bool replay;
    uint32_t source;      /* where it lies, RW_NONE_ID: in the arena */
    uint32_t merged;      /* buffer whose memory it takes over in place; itself when it has its own */
};

struct rw_schedule {
    struct rw_action *actions; /* words are indexes into refs until placement makes them words of the plan */
    size_t n_actions, cap_actions;
    uint32_t *refs;        /* buffer ids */
    size_t n_refs, cap_refs;
    struct rw_buffer *buffers;
    size_t n_buffers, cap_buffers;
    struct rw_source *sources;
    size_t n_sources, cap_sources;
    uint32_t *read_gradients; /* buffers that are what parameters' gradients hold before the step writes them */
    size_t n_read_gradients, cap_read_gradients;
    struct rw_result *results;
    size_t n_results, cap_results;
    size_t n_forward; /* steps before the first late one */
    uint64_t results_bytes;
};

/* Where the final bytes of a value go. */
struct rw_sink {
    uint32_t value;  /* any value; its base is what is held */
    uint32_t of;     /* see struct rw_result */
    bool of_param;
    bool into_gradient;  /* write straight into the parameter's gradient */
    bool only_if_needed; /* hold it when something else makes it run */
};

struct rw_schedule_request {
    const struct rw_policy *policy;
    const struct rw_sink *sinks;
    size_t n_sinks;
};

rw_status rw_schedule_init(struct rw_schedule *s, struct rw_scopes *scopes, const rw_tape *t,
                           const struct rw_schedule_request *request);
void rw_schedule_finish(struct rw_schedule *s);

#endif
