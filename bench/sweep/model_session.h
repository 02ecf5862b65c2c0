/* A model, its tape and its optimizer, for the duration of one question. */
#ifndef REWIND_BENCH_SWEEP_MODEL_SESSION_H
#define REWIND_BENCH_SWEEP_MODEL_SESSION_H

#include "sweep/sweep_structs.h"

/* Opened for one question and closed after it, so that the device holds nothing of earlier ones. */
struct sweep_run {
    struct model m;
    rw_tape *t;
    rw_optimizer *opt;
};

rw_context_params sweep_context_params(const struct sweep_options *o);

/* A model for sequences of `seq`: learned positions are created for that length only, so a row does not depend on the
   others. Uses the costs of o, if there are any. After a failure it must be closed as well. */
rw_status sweep_run_open(struct sweep_run *r, const struct sweep_options *o, int seq);

/* The same in a context that only plans: its parameters have no memory, and may be of any size. */
rw_status sweep_plan_open(struct sweep_run *r, const struct sweep_options *o, int seq);

/* The maximum of the machine's memory for the process; SIZE_MAX if unknown. sweep_process_bytes(): including swap. */
size_t sweep_machine_bytes(void);
size_t sweep_process_bytes(void);

/* Prints an error, if there was one. Returns status. */
rw_status sweep_run_close(struct sweep_run *r, rw_status status);

rw_status sweep_print_error(rw_context *ctx, rw_status status);

/* The prediction for an input of zeros; nothing is executed. The tape is reset. */
rw_status sweep_predict(struct sweep_run *r, int batch, int seq, const char *policy, rw_prediction *ret);

/* The result of rw_tape_frontier() for budgets with +offload; none, with a note, if the store is unusable: rows without
   offload must not fail because of it. The tape's policy is unchanged. */
rw_status sweep_moved_points(struct sweep_run *r, rw_tensor *loss, rw_frontier_point *points, size_t *n);

/* Whether a store was given, or the device has one other than its own memory. */
bool sweep_has_store(const struct sweep_options *o);

/* Batch of step s: windows that start at positions given by a fixed hash, so that every run has the same bytes. */
void sweep_fill_batch(const struct sweep_text *text, int batch, int seq, int step, int32_t *tokens, int32_t *targets);

/* Resident bytes of the process: the maximum after the last begin, above the value at that time. 0 if unknown. */
struct sweep_resident {
    size_t before;
    bool counts;
};
void sweep_resident_begin(struct sweep_resident *r);
size_t sweep_resident_end(const struct sweep_resident *r);

#endif
