/* Resolves the sources of a plan to addresses when a part of it runs. */
#ifndef RW_RUN_SOURCE_ADDRESSES_H
#define RW_RUN_SOURCE_ADDRESSES_H

#include "run/run_state.h"

/* RW_ERR_MODIFIED, recorded, if an input's or parameter's contents are no longer those on which the tape relies. */
rw_status rw_leaf_check(const rw_tape *t, uint32_t leaf);

/* Would rw_run_resolve() refuse these actions? RW_ERR_MODIFIED, recorded, if the tape relies on other contents of a
   source. Changes nothing else. */
rw_status rw_run_check(const struct rw_run *r, size_t from, size_t to);

/* Resolves the sources that actions [from, to) read or write. RW_ERR_MODIFIED, recorded, if one has changed since the
   tape relied on it. */
rw_status rw_run_resolve(struct rw_run *r, size_t from, size_t to);

/* A private run has reached its commits and was waited for: copies the gradients from its own memory to the
   parameters' gradients. */
rw_status rw_run_publish(struct rw_run *r);

#endif
