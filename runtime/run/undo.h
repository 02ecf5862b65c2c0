/*
 * A step that fails among its commits fails whole: what the first commits wrote is restored.
 *
 * Only a commit of a caller's op can fail. Where a plan has one, the buffers that it and the commits before it write
 * are copied before the first commit runs. Plans without one copy nothing.
 */
#ifndef RW_RUN_UNDO_H
#define RW_RUN_UNDO_H

#include "run/run.h"

/* Before the first commit of actions [from, to) runs. RW_ERR_MEMORY or the device's error, recorded: nothing was
   written. */
rw_status rw_undo_save(struct rw_run *r, size_t from, size_t to);

/* The run failed: the buffers hold again what was saved. */
void rw_undo_restore(struct rw_run *r);

/* Frees the copies; every run that saved any comes here. */
void rw_undo_forget(struct rw_run *r);

#endif
