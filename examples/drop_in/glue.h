/* The pairs of kernels.h as functions that record a call. Results belong to the tape; NULL after an error. */
#ifndef DROP_IN_GLUE_H
#define DROP_IN_GLUE_H

#include <rewind/rewind.h>

rw_tensor *embedding(rw_tape *t, rw_tensor *tokens, rw_tensor *wte, rw_tensor *wpe, int b, int length, int c);
rw_tensor *layernorm(rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias, int rows, int c);
rw_tensor *matmul(rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias, int rows, int c, int oc);
rw_tensor *attention(rw_tape *t, rw_tensor *qkv, int b, int length, int c, int heads);
rw_tensor *gelu(rw_tape *t, rw_tensor *x, int rows, int c);
rw_tensor *residual(rw_tape *t, rw_tensor *x, rw_tensor *y, int rows, int c);
rw_tensor *crossentropy(rw_tape *t, rw_tensor *logits, rw_tensor *targets, int rows, int v);

#endif
