/* What the families of this folder record of one another. */
#ifndef RW_OPS_SELECT_H
#define RW_OPS_SELECT_H

#include "ops/select/remap.h"

/* The sums of what each element was copied to. */
rw_tensor *rw_remap_back(rw_tape *t, rw_tensor *dy, const struct rw_remap_attrs *a);

/* Zeros of shape x, with dy added where gather along an axis, from 0 on, took each element from. */
rw_tensor *rw_gather_back(rw_tape *t, rw_tensor *dy, rw_tensor *index, rw_shape x, int axis);

#endif
