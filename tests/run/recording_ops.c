#include "run/recording_ops.h"

#include "support/support.h"

#include <string.h>

int recording_runs[RECORDING_OPS];
float recording_read[RECORDING_OPS][RECORDING_ELEMENTS];

static rw_status like_input(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status pass_gradient(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static rw_status tell_cpu(const rw_kernel *k)
{
    int64_t number;
    memcpy(&number, k->attrs, sizeof number);
    const size_t bytes = (size_t)k->in[0].layout->numel * sizeof(float);
    recording_runs[number]++;
    memcpy(recording_read[number], k->in[0].data, bytes);
    memcpy(k->out[0].data, k->in[0].data, bytes);
    return RW_OK;
}

HOST_KERNEL_OF(tell_cpu)
const rw_op_def recording_once = { .name = "tell", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_STATEFUL,
                                   .check = like_input, .grad = pass_gradient, .kernel = HOST_KERNEL(tell_cpu) };
const rw_op_def recording_noise = { .name = "noise", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_NONDETERMINISTIC,
                                    .check = like_input, .grad = pass_gradient, .kernel = HOST_KERNEL(tell_cpu) };

rw_tensor *recording_apply(rw_tape *t, const rw_op_def *op, rw_tensor *x, int64_t number)
{
    return rw_apply(t, op, &x, 1, &number, sizeof number, NULL);
}
