/*
 * note_amax and delayed_update: checks of the ops that record amaxes and update the scales at the end of a step under
 * delayed scaling (rewind/precision.h).
 */
#include "ops/float8/delayed_update.h"

#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <limits.h>

/* Attributes of note_amax: the row of each amax. */
static rw_status check_note(rw_op_call *call)
{
    const int n = call->n_inputs - 1;
    const uint32_t *const row = call->attrs;
    RW_CHECK(rw_expect_inputs(call, 2, INT_MAX, "one amax or more, and the table of amaxes"));
    for (int i = 0; i <= n; i++) RW_CHECK(rw_want_dtype(call, i, RW_F32));
    for (int i = 0; i < n; i++) {
        if (call->in[i].layout->numel != 1)
            return rw_unexpected(call, RW_ERR_SHAPE, i, NULL, "one element, the amax of row %u", row[i]);
        if (row[i] >= (uint64_t)call->in[n].layout->numel)
            return rw_unexpected(call, RW_ERR_SHAPE, n, "table", "more than %u rows, the row of input %d", row[i], i);
    }
    return rw_op_output_like(call, 0, n);
}

RW_INTERNAL_OP(note_amax, "amax[]")
RW_DECLARE_KERNELS(rw_note_amax)
const rw_op_def rw_op_note_amax = { .name = "note_amax", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                    .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT | RW_OP_OWN_COUNTED,
                                    .check = check_note, .kernel = RW_KERNELS(rw_note_amax) };

static rw_status check_update(rw_op_call *call)
{
    const int first = call->n_inputs - 3;
    RW_CHECK(rw_expect_inputs(call, 3, 4, "optionally found, then amax, scale and history"));
    if (first) RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    for (int i = first; i < call->n_inputs; i++) RW_CHECK(rw_want_dtype(call, i, RW_F32));
    const rw_shape amax = rw_in_shape(call, first), history = rw_in_shape(call, first + 2);
    RW_CHECK(rw_expect_rank(call, first, "amax", 1, "[n]"));
    RW_CHECK(rw_expect_shape_of(call, first + 1, "scale", first, "amax"));
    if (history.rank != 2 || history.dim[0] != amax.dim[0] || history.dim[1] < 1)
        return rw_unexpected(call, RW_ERR_SHAPE, first + 2, "history", "[%lld, steps] with 1 step or more",
                             (long long)amax.dim[0]);
    for (int i = 0; i < 3; i++) RW_CHECK(rw_op_output_like(call, i, first + i));
    return RW_OK;
}

RW_DECLARE_KERNELS(rw_delayed_update)
const rw_op_def rw_op_delayed_update = { .name = "delayed_update", .n_inputs = RW_OP_VARIADIC, .n_outputs = 3,
                                         .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                         .check = check_update, .kernel = RW_KERNELS(rw_delayed_update) };
