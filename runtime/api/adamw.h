/* An optimizer as a recorder, and what the host does around each of its updates. */
#ifndef RW_API_ADAMW_H
#define RW_API_ADAMW_H

#include "autodiff/targets.h"
#include "record/context.h"
#include "record/param.h"

#include <rewind/optim.h>

/* A graph that steps with an optimizer holds it; released, it goes with the last who has it. */
void rw_adamw_share(rw_adamw *opt);
void rw_adamw_release(rw_adamw *opt);

rw_context *rw_adamw_context(const rw_adamw *opt);

/* Records the update of all its parameters; the last of a list. */
struct rw_recorder *rw_adamw_recorder(rw_adamw *opt);

/* Puts the numbers of the next update where it finds them: of every parameter whose gradient is not clear. An error,
   recorded, has changed nothing. */
rw_status rw_adamw_prepare(rw_adamw *opt);

/* What it has to keep over a restart, of one parameter: its states, by the names that files have for them. */
#define RW_KEPT_MOST 3

struct rw_kept {
    struct rw_param *param;
    const char *name[RW_KEPT_MOST];
    struct rw_param *state[RW_KEPT_MOST];
    int n;
    uint64_t step; /* updates made */
    bool current;  /* the master is a copy of the parameter as it is */
};

const char *rw_adamw_kind(const rw_adamw *opt);
double rw_adamw_lr(const rw_adamw *opt);
size_t rw_adamw_members(const rw_adamw *opt);
struct rw_kept rw_adamw_kept(const rw_adamw *opt, size_t i);
/* The parameter and its states were written: so many updates led there. */
void rw_adamw_resume(rw_adamw *opt, size_t i, uint64_t step, bool current);

/* That update was queued: it counts, and the parameters have changed. */
void rw_adamw_count(rw_adamw *opt);

#endif
