/* Rebuilds the rw_op_call of a node of a tape or of a plan's tail, to evaluate its cost function at run time. */
#ifndef RW_RUN_REBUILD_OP_CALL_H
#define RW_RUN_REBUILD_OP_CALL_H

#include "run/run_state.h"

/* descs has room for its inputs and outputs. */
rw_op_call rw_plan_call(const rw_tape *t, const rw_plan *plan, const struct rw_node *node, rw_operand_desc *descs);

#endif
