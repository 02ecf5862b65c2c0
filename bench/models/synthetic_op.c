/* See synthetic_op.h. */
#include "models/synthetic_op.h"

#include <stdlib.h>

static rw_status check(rw_op_call *call)
{
    const struct synth *const a = call->attrs;
    call->n_outputs = 1 + a->tail;
    for (int i = 0; i <= a->tail; i++) {
        const rw_status status = rw_op_output(call, i, RW_F32, RW_SHAPE(a->units * (SYNTH_UNIT / 4)));
        if (status) return status;
    }
    return RW_OK;
}

static rw_op_cost cost(const rw_op_call *call)
{
    const struct synth *const a = call->attrs;
    return (rw_op_cost){ .flops = a->us * 1e5 };
}

static rw_status run(const rw_kernel *k)
{
    return RW_OK;
}

static rw_status differentiate(rw_grad_call *g);
static rw_tensor *recompute(rw_tape *t, const rw_op_call *call, int i, rw_tensor *const *in, rw_tensor *const *out);

static const rw_op_def op = { .name = "made", .n_inputs = RW_OP_VARIADIC, .n_outputs = RW_OP_VARIADIC,
                              .check = check, .cost = cost, .recompute_output = recompute,
                              .kernel = { [RW_DEVICE_CPU] = run, [RW_DEVICE_CUDA] = run }, .grad = differentiate };

rw_tensor *synth_apply(rw_tape *t, rw_tensor *const *in, int n, struct synth a)
{
    return rw_apply(t, &op, in, n, &a, sizeof a, NULL);
}

static rw_tensor *recompute(rw_tape *t, const rw_op_call *call, int i, rw_tensor *const *in, rw_tensor *const *out)
{
    const struct synth *const a = call->attrs;
    if (!a->tail || i) return NULL;
    return synth_apply(t, &out[1], 1, (struct synth){ .units = a->units, .us = a->us / 8 });
}

/* Records one adjoint node per input, which reads the values that the attributes name. */
static rw_status differentiate(rw_grad_call *g)
{
    const struct synth *const a = rw_grad_attrs(g);
    const int n = rw_grad_n_inputs(g);
    for (int i = 0; i < n; i++) {
        if (!rw_grad_wanted(g, i)) continue;
        rw_tensor *read[5] = { rw_grad_upstream(g, 0) };
        int n_read = 1;
        for (int k = 0; k < n; k++)
            if (a->reads >> k & 1) read[n_read++] = rw_grad_input(g, k);
        if (a->reads & 4) read[n_read++] = rw_grad_output(g, 0);
        if (a->tail) read[n_read++] = rw_grad_output(g, 1);
        const int64_t units = rw_tensor_layout(rw_grad_input(g, i))->numel / (SYNTH_UNIT / 4);
        rw_grad_set(g, i, synth_apply(rw_grad_tape(g), read, n_read, (struct synth){ .units = units, .us = a->us }));
    }
    return RW_OK;
}

rw_tensor *synth_blocks(rw_tape *t, rw_tensor *x, int n)
{
    for (int i = 0; i < n; i++) {
        rw_tensor *in[2] = { x, x };
        for (int k = 0; k < 29; k++)
            in[1] = synth_apply(t, &in[1], 1, (struct synth){ .units = 4 + k * 7 % 13, .us = 5 + k * 11 % 40,
                                                            .reads = 1 + (k % 3 ? 0 : 4) });
        x = synth_apply(t, in, 2, (struct synth){ .units = 8, .us = 3 });
    }
    return x;
}

static int below(uint32_t *state, int n)
{
    *state = *state * 1664525u + 1013904223u;
    return (int)((*state >> 8) % (uint32_t)n);
}

rw_tensor *synth_graph(rw_tape *t, rw_tensor *x, int n)
{
    rw_tensor **const v = calloc((size_t)n + 1, sizeof *v);
    uint32_t state = 5;
    v[0] = x;
    for (int i = 1; i <= n; i++) {
        const int far = below(&state, 20) ? 6 : 1500, back = below(&state, far < i ? far : i);
        rw_tensor *const in[2] = { v[i - 1], v[i - 1 - back] };
        const int n_in = back && !below(&state, 3) ? 2 : 1;
        const int reads = below(&state, n_in == 2 ? 8 : 2) | below(&state, 2) * 4;
        v[i] = synth_apply(t, in, n_in, (struct synth){ .units = 1 + below(&state, 16), .us = 1 + below(&state, 60),
                                                      .reads = reads });
    }
    x = v[n];
    free(v);
    return x;
}
