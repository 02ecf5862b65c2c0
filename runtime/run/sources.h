/* Where the sources of a plan lie when a part of it runs. */
#ifndef RW_RUN_SOURCES_H
#define RW_RUN_SOURCES_H

#include "run/run.h"

/* Resolves the sources that actions [from, to) name. RW_ERR_CHANGED, recorded, when one is not what the tape relies
   on. */
rw_status rw_run_resolve(struct rw_run *r, size_t from, size_t to);

/* A private run has come to its commits, and was waited for: what it has written in memory of its own becomes the
   gradients. */
rw_status rw_run_publish(struct rw_run *r);

#endif
