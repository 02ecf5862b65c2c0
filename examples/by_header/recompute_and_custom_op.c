/* Examples of the headers of recompute, memory and verification, and of custom ops. */
#include "by_header.h"

static rw_tensor *block(rw_tape *t, rw_tensor *x, rw_tensor *w)
{
    return rw_add(t, x, rw_gelu(t, rw_linear(t, x, w, RW_NONE)));
}

static rw_tensor *record(rw_tape *t, rw_tensor *w)
{
    rw_tensor *x = rw_ones(t, RW_F32, RW_SHAPE(16, 32));
    for (int layer = 0; layer < 4; layer++) {
        ckpt_begin(t, "layer");
        x = block(t, x, w);
        ckpt_end(t);
    }
    return rw_mean_all(t, x);
}

static rw_tensor *parameter(rw_context *ctx)
{
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(32, 32));
    rw_init_normal(w, 0, 0.02);
    return w;
}

bool example_recompute(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    //! [recompute]
    ckpt_set_policy(t, "full"); // keep the input of each region, recompute the rest in backward
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(16, 32));
    for (int layer = 0; layer < 4; layer++) {
        ckpt_begin(t, "layer");
        x = block(t, x, w); // ordinary code
        ckpt_end(t);
    }
    rw_tensor *loss = rw_mean_all(t, x);
    ckpt_explain(t, stdout); // which values are kept and recomputed, and why
    rw_backward(t, loss);
    //! [recompute]
    rw_memory memory;
    rw_memory_stats(ctx, &memory);
    return memory.replayed > 0;
}

bool example_verify(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    //! [verify]
    ckpt_set_policy(t, "full");
    rw_tensor *loss = record(t, w);
    ckpt_report report;
    if (ckpt_verify(t, loss, &report)) ckpt_report_print(&report, stderr);
    printf("%zu gradients and %zu replayed values are equal\n", report.gradients, report.replayed);
    //! [verify]
    return report.identical && report.gradients == 1;
}

bool example_nonfinite(rw_context *ctx, rw_tape *t)
{
    //! [nonfinite]
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(4)); // zeros
    rw_tensor *loss = rw_mean_all(t, rw_log(t, w));
    rw_backward(t, loss);
    rw_nonfinite where;
    if (!rw_find_nonfinite(t, loss, 0, &where) && where.found) rw_nonfinite_print(&where, stdout); // log: -inf
    //! [nonfinite]
    return where.found;
}

bool example_memory(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    //! [memory]
    rw_tensor *loss = record(t, w);
    rw_backward(t, loss);
    rw_memory memory;
    rw_cost cost;
    rw_memory_stats(ctx, &memory);
    rw_tape_cost(t, loss, &cost);
    printf("peak %zu bytes, kept for backward %zu; %g FLOPs\n", memory.measured_peak, memory.kept,
           cost.forward_flops + cost.replayed_flops + cost.backward_flops);
    //! [memory]
    return memory.measured_peak == memory.predicted_peak && memory.kept > 0;
}

bool example_plan(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    //! [plan]
    rw_tensor *loss = record(t, w);
    rw_prediction none, full;
    rw_tape_plan(t, loss, "none", &none); // nothing is executed
    rw_tape_plan(t, loss, "full", &full);
    printf("none: %zu bytes, full: %zu bytes; the peak is in %s\n", none.peak_bytes, full.peak_bytes, full.where.op);
    //! [plan]
    return full.peak_bytes < none.peak_bytes;
}

//! [op]
/* y = x * x as an op: a check, a kernel for the CPU and a gradient rule. */
static rw_status square_check(rw_op_call *call)
{
    if (call->in[0].dtype != RW_F32) return rw_op_error(call, RW_ERR_DTYPE, "x: expected f32");
    return rw_op_output_like(call, 0, 0);
}

static rw_status square_kernel(const rw_kernel *k)
{
    const float *x = k->in[0].data;
    float *y = k->out[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = x[i] * x[i];
    return RW_OK;
}

static rw_status square_grad(rw_grad_call *g)
{
    rw_tape *t = rw_grad_tape(g);
    rw_tensor *dy_x = rw_mul(t, rw_grad_upstream(g, 0), rw_grad_input(g, 0));
    return rw_grad_set(g, 0, rw_scale(t, dy_x, 2));
}

static const rw_op_def square_def = { .name = "example_square", .n_inputs = 1, .n_outputs = 1, .check = square_check,
                                      .kernel[RW_DEVICE_CPU] = square_kernel, .grad = square_grad };

#define square(t, x) rw_apply(t, &square_def, (rw_tensor *[]){ x }, 1, NULL, 0, NULL)
//! [op]

bool example_op(rw_context *ctx, rw_tape *t)
{
    if (rw_context_device(ctx) != RW_DEVICE_CPU) return true;
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(3));
    rw_init_constant(w, 3);
    rw_backward(t, rw_sum_all(t, square(t, w)));
    return rw_item(t, rw_sum_all(t, rw_gradient(w))) == 18;
}
