/*
 * Rollback of commits: a step that fails during its commits fails as a whole, so what earlier commits wrote is
 * restored.
 *
 * Only a commit of a custom op can fail. If a plan has one, the buffers that it and earlier commits write are copied
 * before the first commit runs. Other plans copy nothing.
 */
#ifndef RW_RUN_COMMIT_ROLLBACK_H
#define RW_RUN_COMMIT_ROLLBACK_H

#include "run/run_state.h"

/* Call before the first commit of actions [from, to). RW_ERR_MEMORY or the device's error, recorded; nothing was
   written. */
rw_status rw_commit_rollback_save(struct rw_run *r, size_t from, size_t to);

/* The run failed: restores the saved contents. */
void rw_commit_rollback_restore(struct rw_run *r);

/* Frees the copies. Call it for every run that saved. */
void rw_commit_rollback_forget(struct rw_run *r);

#endif
