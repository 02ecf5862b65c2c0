/* Merges nested segments that are not worth a replay of their own into the segments around them. See
   policy_to_choice.h. */
#ifndef RW_REMAT_POLICY_MERGE_SEGMENTS_H
#define RW_REMAT_POLICY_MERGE_SEGMENTS_H

#include "remat/policy/choice.h"

/*
 * home: base value -> segment. Removed segments leave the tree; their nodes, and the values with their home in them,
 * move to the segment around. RW_ERR_MEMORY leaves everything unchanged.
 */
rw_status rw_merge_segments(struct rw_choice *c, const struct rw_problem *p, uint32_t *home);

#endif
