/*
 * What the trainer needs to record its kernels: a line that passes the arguments of each kernel on, and for each pair a
 * function that says what it makes and what backward does not read: 60 lines from mark to mark.
 */
#include "glue.h"

#include "kernels.h"

/* [glue] */
#define FORWARD(name) static rw_status name##_f(void *const *out, void *const *in, const void *data, const rw_kernel *k)
#define BACKWARD(name) static rw_status name##_b(void *const *d_in, void *const *d_out, void *const *in, \
                                                 void *const *out, const void *data, const rw_kernel *k)
#define S(i) ((const int *)data)[i]
FORWARD(embedding) { return embedding_forward(out[0], in[0], in[1], in[2], S(0), S(1), S(2)), RW_OK; }
BACKWARD(embedding) { return embedding_backward(d_in[1], d_in[2], d_out[0], in[0], S(0), S(1), S(2)), RW_OK; }
FORWARD(layernorm) { return layernorm_forward(out[0], out[1], out[2], in[0], in[1], in[2], S(0), S(1)), RW_OK; }
BACKWARD(layernorm) { return layernorm_backward(d_in[0], d_in[1], d_in[2], d_out[0], in[0], in[1], out[1], out[2],
                                                S(0), S(1)), RW_OK; }
FORWARD(matmul) { return matmul_forward(out[0], in[0], in[1], in[2], S(0), S(1), S(2)), RW_OK; }
BACKWARD(matmul) { return matmul_backward(d_in[0], d_in[1], d_in[2], d_out[0], in[0], in[1], S(0), S(1), S(2)), RW_OK; }
FORWARD(attention) { return attention_forward(out[0], out[1], in[0], S(0), S(1), S(2), S(3)), RW_OK; }
BACKWARD(attention) { return attention_backward(d_in[0], d_out[0], in[0], out[1], S(0), S(1), S(2), S(3)), RW_OK; }
FORWARD(gelu) { return gelu_forward(out[0], in[0], S(0) * S(1)), RW_OK; }
BACKWARD(gelu) { return gelu_backward(d_in[0], d_out[0], in[0], S(0) * S(1)), RW_OK; }
FORWARD(residual) { return residual_forward(out[0], in[0], in[1], S(0) * S(1)), RW_OK; }
BACKWARD(residual) { return residual_backward(d_in[0], d_in[1], d_out[0], S(0) * S(1)), RW_OK; }
FORWARD(crossentropy) { return crossentropy_forward(out[0], out[1], in[0], in[1], S(0), S(1)), RW_OK; }
BACKWARD(crossentropy) { return crossentropy_backward(d_in[0], d_out[0], out[1], in[1], S(0), S(1)), RW_OK; }

#define PAIR(op) .name = #op, .forward = op##_f, .backward = op##_b
#define SIZES(...) .data = (const int[]){ __VA_ARGS__ }, .data_size = sizeof((const int[]){ __VA_ARGS__ })
#define ALL RW_OP_ALL_INPUTS
rw_tensor *embedding(rw_tape *t, rw_tensor *tokens, rw_tensor *wte, rw_tensor *wpe, int b, int length, int c)
{
    return rw_call(t, &(rw_call_params){ PAIR(embedding), SIZES(b, length, c), .n_outputs = 1, .unread_outputs = ALL,
        .outputs = { { RW_F32, RW_SHAPE(b * length, c), false } } }, (rw_tensor *[]){ tokens, wte, wpe }, 3);
}
rw_tensor *layernorm(rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias, int rows, int c)
{
    const rw_call_output y = { RW_F32, RW_SHAPE(rows, c), false }, kept = { RW_F32, RW_SHAPE(rows), true };
    return rw_call(t, &(rw_call_params){ PAIR(layernorm), SIZES(rows, c), .n_outputs = 3, .outputs = { y, kept, kept },
        .unread_outputs = RW_OP_INPUT(0) }, (rw_tensor *[]){ x, weight, bias }, 3);
}
rw_tensor *matmul(rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias, int rows, int c, int oc)
{
    return rw_call(t, &(rw_call_params){ PAIR(matmul), SIZES(rows, c, oc), .n_outputs = 1, .unread_outputs = ALL,
        .outputs = { { RW_F32, RW_SHAPE(rows, oc), false } } }, (rw_tensor *[]){ x, weight, bias }, bias ? 3 : 2);
}
rw_tensor *attention(rw_tape *t, rw_tensor *qkv, int b, int length, int c, int heads)
{
    return rw_call(t, &(rw_call_params){ PAIR(attention), SIZES(b, length, c, heads), .n_outputs = 2, .outputs =
        { { RW_F32, RW_SHAPE(b * length, c), false }, { RW_F32, RW_SHAPE(b, heads, length, length), true } },
        .unread_outputs = RW_OP_INPUT(0) }, &qkv, 1);
}
rw_tensor *gelu(rw_tape *t, rw_tensor *x, int rows, int c)
{
    return rw_call(t, &(rw_call_params){ PAIR(gelu), SIZES(rows, c), .n_outputs = 1, .unread_outputs = ALL,
        .outputs = { { RW_F32, RW_SHAPE(rows, c), false } } }, &x, 1);
}
rw_tensor *residual(rw_tape *t, rw_tensor *x, rw_tensor *y, int rows, int c)
{
    return rw_call(t, &(rw_call_params){ PAIR(residual), SIZES(rows, c), .unread_inputs = ALL, .unread_outputs = ALL,
        .n_outputs = 1, .outputs = { { RW_F32, RW_SHAPE(rows, c), false } } }, (rw_tensor *[]){ x, y }, 2);
}
rw_tensor *crossentropy(rw_tape *t, rw_tensor *logits, rw_tensor *targets, int rows, int v)
{
    const rw_call_output losses = { RW_F32, RW_SHAPE(rows), false }, probs = { RW_F32, RW_SHAPE(rows, v), true };
    return rw_call(t, &(rw_call_params){ PAIR(crossentropy), SIZES(rows, v), .n_outputs = 2,
        .outputs = { losses, probs }, .unread_inputs = RW_OP_INPUT(0) }, (rw_tensor *[]){ logits, targets }, 2);
}
/* [glue] */
