/* A model, its tape and its optimizer, for as long as something is asked of them. */
#ifndef REWIND_BENCH_SWEEP_RUN_H
#define REWIND_BENCH_SWEEP_RUN_H

#include "sweep/sweep.h"

/* Opened for one question and closed behind it, so that the device holds nothing of the ones before. */
struct sweep_run {
    struct model m;
    rw_tape *t;
    rw_adamw *opt;
};

rw_context_params sweep_context_params(const struct sweep_options *o);

/* With the costs of o, if there are any. On a failure it is to be closed as well. */
rw_status sweep_run_open(struct sweep_run *r, const struct sweep_options *o, int max_seq);

/* The same for planning alone, in a context that can do no more: its parameters have no memory, and may be of any
   size. */
rw_status sweep_plan_open(struct sweep_run *r, const struct sweep_options *o, int max_seq);

/* What the process may have in memory at once, of the machine's; SIZE_MAX where nobody says. */
size_t sweep_machine_bytes(void);

/* Says what went wrong, when something did. Returns status. */
rw_status sweep_run_close(struct sweep_run *r, rw_status status);

rw_status sweep_print_error(rw_context *ctx, rw_status status);

/* What would be taken of zeros; nothing runs. The tape is reset. */
rw_status sweep_predict(struct sweep_run *r, int batch, int seq, const char *policy, rw_prediction *ret);

/* What rw_tape_frontier() says of budgets with +offload; none, with a note, where the store is of no use: no row that
   moves nothing is to fail for it. The tape's policy stays. */
rw_status sweep_moved_points(struct sweep_run *r, rw_tensor *loss, rw_point *points, size_t *n);

/* Has somebody named a store, or has the device one that is not its own memory? */
bool sweep_has_store(const struct sweep_options *o);

/* Batch of step s: windows that start at places given by a fixed hash, so that every run sees the same bytes. */
void sweep_fill_batch(const struct sweep_text *text, int batch, int seq, int step, int32_t *tokens, int32_t *targets);

/* Bytes of the process in memory: the most since the last begin, above what there was then. 0 where nobody says. */
struct sweep_resident {
    size_t before;
    bool counts;
};
void sweep_resident_begin(struct sweep_resident *r);
size_t sweep_resident_end(const struct sweep_resident *r);

#endif
