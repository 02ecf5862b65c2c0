/* Which nested segments are not worth a replay of their own. See choose.h. */
#ifndef RW_REMAT_DISSOLVE_H
#define RW_REMAT_DISSOLVE_H

#include "remat/choice.h"

/*
 * home: base value -> segment. Segments that go are taken out of the tree, their nodes and the values at home in them
 * belong to the segment around. RW_ERR_MEMORY leaves everything as it was.
 */
rw_status rw_dissolve(struct rw_choice *c, const struct rw_problem *p, uint32_t *home);

#endif
