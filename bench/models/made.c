/* See made.h. */
#include "models/made.h"

static rw_status check(rw_op_call *call)
{
    const struct made *const a = call->attrs;
    return rw_op_output(call, 0, RW_F32, RW_SHAPE(a->units * 64));
}

static rw_op_cost cost(const rw_op_call *call)
{
    const struct made *const a = call->attrs;
    return (rw_op_cost){ .flops = a->us * 1e5 };
}

static rw_status run(const rw_kernel *k)
{
    return RW_OK;
}

static rw_status differentiate(rw_grad_call *g);

static const rw_op_def op = { .name = "made", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                              .check = check, .cost = cost,
                              .kernel = { [RW_DEVICE_CPU] = run, [RW_DEVICE_CUDA] = run }, .grad = differentiate };

rw_tensor *made_apply(rw_tape *t, rw_tensor *const *in, int n, struct made a)
{
    return rw_apply(t, &op, in, n, &a, sizeof a, NULL);
}

static rw_status differentiate(rw_grad_call *g)
{
    const struct made *const a = rw_grad_attrs(g);
    const int n = rw_grad_n_inputs(g);
    for (int i = 0; i < n; i++) {
        if (!rw_grad_wanted(g, i)) continue;
        rw_tensor *read[4] = { rw_grad_upstream(g, 0) };
        int n_read = 1;
        for (int k = 0; k < n; k++)
            if (a->reads >> k & 1) read[n_read++] = rw_grad_input(g, k);
        if (a->reads & 4) read[n_read++] = rw_grad_output(g, 0);
        const int64_t units = rw_tensor_layout(rw_grad_input(g, i))->numel / 64;
        rw_grad_set(g, i, made_apply(rw_grad_tape(g), read, n_read, (struct made){ .units = units, .us = a->us }));
    }
    return RW_OK;
}
