/*
 * A custom op with a kernel for each device: y = x^3. See custom_op.c for the op itself. This example shows the launch:
 * on k->stream, without allocations or waits, so that the step can be captured as one CUDA graph.
 */
#include <rewind/rewind.h>

#include <cuda_runtime.h>
#include <stdio.h>

static rw_status cube_check(rw_op_call *call)
{
    if (call->in[0].dtype != RW_F32) return rw_op_error(call, RW_ERR_DTYPE, "only f32 is cubed here");
    return rw_op_output_like(call, 0, 0);
}

static rw_status cube_cpu(const rw_kernel *k)
{
    const float *const x = static_cast<const float *>(k->in[0].data);
    float *const y = static_cast<float *>(k->out[0].data);
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = x[i] * x[i] * x[i];
    return RW_OK;
}

static __global__ void cube_kernel(const float *x, float *y, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i] * x[i];
}

static rw_status cube_cuda(const rw_kernel *k)
{
    const int64_t n = k->out[0].layout->numel;
    if (n == 0) return RW_OK;
    cube_kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, static_cast<cudaStream_t>(k->stream)>>>(
        static_cast<const float *>(k->in[0].data), static_cast<float *>(k->out[0].data), n);
    return cudaGetLastError() == cudaSuccess ? RW_OK : RW_ERR_DEVICE; /* cleared: not for the next launch to report */
}

/* 3 x^2 dy, composed of built-in ops, so it can be differentiated again. */
static rw_status cube_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_input(g, 0);
    return rw_grad_set(g, 0, rw_mul(t, rw_grad_upstream(g, 0), rw_scale(t, rw_mul(t, x, x), 3)));
}

static const rw_inplace over_x[] = { { 0, 0 }, RW_INPLACE_END };

static const rw_op_def cube = [] {
    rw_op_def op = {};
    op.name = "cube";
    op.n_inputs = op.n_outputs = 1;
    op.inplace = over_x;
    op.check = cube_check;
    op.kernel[RW_DEVICE_CPU] = cube_cpu;
    op.kernel[RW_DEVICE_CUDA] = cube_cuda;
    op.grad = cube_grad;
    return op;
}();

/* Records x^9 as two cubes in a checkpointed region, runs backward and prints the gradient. */
static int run(rw_device device)
{
    rw_context_params params = {};
    params.device = device;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    if (rw_context_create(&ctx, &params) || rw_tape_create(&t, ctx)) {
        fprintf(stderr, "custom_op_cuda: %s\n", rw_error_message(ctx));
        rw_context_destroy(&ctx);
        return 1;
    }
    ckpt_set_policy(t, "full");
    rw_tensor *const p = rw_param(ctx, "p", RW_F32, RW_SHAPE(4));
    const float start[] = { 0.5f, 1, 1.5f, 2 };
    rw_write(p, start, sizeof start);

    ckpt_begin(t, "cubes");
    rw_tensor *y = rw_apply(t, &cube, &p, 1, NULL, 0, NULL);
    y = rw_apply(t, &cube, &y, 1, NULL, 0, NULL);
    ckpt_end(t);
    rw_tensor *const loss = rw_sum(t, y, RW_ALL_AXES, false);
    float g[4];
    const bool failed = rw_backward(t, loss) || rw_read(t, rw_gradient(p), g, sizeof g) || ckpt_verify(t, loss, NULL);
    if (failed) fprintf(stderr, "%s\n", rw_error_message(ctx));
    else
        printf("%s: sum of x^9: %g, gradient 9 x^8: %g %g %g %g\n", rw_device_name(device), rw_item(t, loss), g[0],
               g[1], g[2], g[3]);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return failed;
}

int main(void)
{
    char why[256];
    if (run(RW_DEVICE_CPU)) return 1;
    if (rw_device_check(RW_DEVICE_CUDA, why, sizeof why)) {
        printf("cuda: not here: %s\n", why);
        return 0;
    }
    return run(RW_DEVICE_CUDA);
}
