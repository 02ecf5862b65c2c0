/* The call that recorded a node, of the tape or of a plan's tail, for whoever asks what it costs while it runs. */
#ifndef RW_RUN_CALL_H
#define RW_RUN_CALL_H

#include "run/run.h"

/* descs has room for its inputs and outputs. */
rw_op_call rw_plan_call(const rw_tape *t, const rw_plan *plan, const struct rw_node *node, rw_desc *descs);

#endif
