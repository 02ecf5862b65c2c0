/*
 * Seven pairs of hand-written kernels, as C trainers have them: float32, row-major, in one thread. A forward writes its
 * outputs, a backward adds to the gradients of its inputs, and NULL is a gradient that is not needed.
 */
#ifndef DROP_IN_KERNELS_H
#define DROP_IN_KERNELS_H

#include <stdint.h>

/* out [B, T, C] = wte[tokens] + wpe */
void embedding_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe, int B, int T, int C);
void embedding_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens, int B, int T, int C);

/* Over rows of C numbers; mean and rstd are kept for backward. */
void layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *weight, const float *bias,
                       int rows, int C);
void layernorm_backward(float *dx, float *dweight, float *dbias, const float *dout, const float *x,
                        const float *weight, const float *mean, const float *rstd, int rows, int C);

/* out [rows, OC] = x [rows, C] weight^T + bias; weight is [OC, C], bias may be NULL */
void matmul_forward(float *out, const float *x, const float *weight, const float *bias, int rows, int C, int OC);
void matmul_backward(float *dx, float *dweight, float *dbias, const float *dout, const float *x, const float *weight,
                     int rows, int C, int OC);

/* Causal; qkv [B, T, 3 C] with NH heads, att [B, NH, T, T] is kept for backward. */
void attention_forward(float *out, float *att, const float *qkv, int B, int T, int C, int NH);
void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *att, int B, int T, int C,
                        int NH);

void gelu_forward(float *out, const float *x, int n);
void gelu_backward(float *dx, const float *dout, const float *x, int n);

void residual_forward(float *out, const float *a, const float *b, int n);
void residual_backward(float *da, float *db, const float *dout, int n);

/* losses [rows] of logits [rows, V]; probs [rows, V] is kept for backward */
void crossentropy_forward(float *losses, float *probs, const float *logits, const int32_t *targets, int rows, int V);
void crossentropy_backward(float *dlogits, const float *dlosses, const float *probs, const int32_t *targets, int rows,
                           int V);

#endif
