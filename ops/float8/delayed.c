/* note_amax and delayed_update: the checks of what ends a step under delayed scaling. See rewind/precision.h. */
#include "ops/float8/delayed.h"

#include "ops/common/kernels.h"
#include "ops/common/util.h"

/* Attributes of note_amax: the row of each amax. */
static rw_status check_note(rw_op_call *call)
{
    const int n = call->n_inputs - 1;
    const uint32_t *const row = call->attrs;
    if (n < 1) return rw_op_error(call, RW_ERR_ARGUMENT, "takes amaxes and where they are noted");
    for (int i = 0; i <= n; i++) RW_CHECK(rw_want_dtype(call, i, RW_F32));
    for (int i = 0; i < n; i++)
        if (call->in[i].layout->numel != 1 || row[i] >= (uint64_t)call->in[n].layout->numel)
            return rw_op_error(call, RW_ERR_SHAPE, "input %d is no amax of one of the rows", i);
    return rw_op_output_like(call, 0, n);
}

RW_DECLARE_KERNELS(rw_note_amax)
const rw_op_def rw_op_note_amax = { .name = "note_amax", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                    .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT, .check = check_note,
                                    .kernel = RW_KERNELS(rw_note_amax) };

static rw_status check_update(rw_op_call *call)
{
    const int first = call->n_inputs - 3;
    if (first < 0 || first > 1) return rw_op_error(call, RW_ERR_ARGUMENT, "takes 3 or 4 inputs");
    if (first) RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    for (int i = first; i < call->n_inputs; i++) RW_CHECK(rw_want_dtype(call, i, RW_F32));
    const rw_shape amax = rw_in_shape(call, first), history = rw_in_shape(call, first + 2);
    if (amax.rank != 1 || !rw_shape_equal(amax, rw_in_shape(call, first + 1)) || history.rank != 2 ||
        history.dim[0] != amax.dim[0] || history.dim[1] < 1)
        return rw_op_error(call, RW_ERR_SHAPE, "amaxes, scales and histories do not fit each other");
    for (int i = 0; i < 3; i++) RW_CHECK(rw_op_output_like(call, i, first + i));
    return RW_OK;
}

RW_DECLARE_KERNELS(rw_delayed_update)
const rw_op_def rw_op_delayed_update = { .name = "delayed_update", .n_inputs = RW_OP_VARIADIC, .n_outputs = 3,
                                         .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                         .check = check_update, .kernel = RW_KERNELS(rw_delayed_update) };
