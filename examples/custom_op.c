/*
 * A custom op: y = x^3, with its shape check, kernel and gradient rule. It takes part in regions, planning, placement
 * and verification like any built-in one.
 */
#include <rewind/rewind.h>

#include <stdio.h>

static rw_status cube_check(rw_op_call *call)
{
    if (call->in[0].dtype != RW_F32) return rw_op_error(call, RW_ERR_DTYPE, "only f32 is cubed here");
    return rw_op_output_like(call, 0, 0);
}

static rw_status cube_cpu(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = x[i] * x[i] * x[i];
    return RW_OK;
}

/* 3 x^2 dy, composed of built-in ops, so it can be differentiated again. */
static rw_status cube_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_input(g, 0);
    return rw_grad_set(g, 0, rw_mul(t, rw_grad_upstream(g, 0), rw_scale(t, rw_mul(t, x, x), 3)));
}

static const rw_op_def cube = { .name = "cube", .n_inputs = 1, .n_outputs = 1, .inplace = RW_INPLACE({ 0, 0 }),
                                .check = cube_check, .kernel = { [RW_DEVICE_CPU] = cube_cpu }, .grad = cube_grad };

int main(void)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    if (rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU }) || rw_tape_create(&t, ctx)) {
        fprintf(stderr, "custom_op: %s\n", rw_error_message(ctx));
        rw_context_destroy(&ctx);
        return 1;
    }
    ckpt_set_policy(t, "full");
    rw_tensor *p = rw_param(ctx, "p", RW_F32, RW_SHAPE(4));
    rw_write(p, (const float[]){ 0.5f, 1, 1.5f, 2 }, 4 * sizeof(float));

    ckpt_begin(t, "cubes");
    rw_tensor *y = rw_apply(t, &cube, &p, 1, NULL, 0, NULL);
    y = rw_apply(t, &cube, &y, 1, NULL, 0, NULL);
    ckpt_end(t);
    rw_tensor *const loss = rw_sum_all(t, y);
    float g[4];
    if (rw_backward(t, loss) || rw_read(t, rw_gradient(p), g, sizeof g) || ckpt_verify(t, loss, NULL)) {
        fprintf(stderr, "%s\n", rw_error_message(ctx));
        return 1;
    }
    printf("sum of x^9: %g, gradient 9 x^8: %g %g %g %g\n", rw_item(t, loss), (double)g[0], (double)g[1], (double)g[2],
           (double)g[3]);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return 0;
}
