/* Invalid calls of rewind/ops.h and pointwise.h: element-wise ops, and dropout. */
#include "api/mistakes/table.h"

#include <rewind/ops.h>
#include <rewind/pointwise.h>

#include <math.h>

#define BINARY(fn)                                                              \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(t, NULL, w->x));                            \
    TENSOR(#fn, RW_ERR_ARGUMENT, fn(t, w->p, NULL));                            \
    TENSOR(#fn, RW_ERR_SHAPE, fn(t, w->p, w->four));                            \
    TENSOR(#fn, RW_ERR_DTYPE, fn(t, w->bias, w->wide))

/* Ops with two operands. */
static void binary(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *tall = NULL, *flat = NULL;
    BINARY(rw_add);
    BINARY(rw_sub);
    BINARY(rw_mul);
    BINARY(rw_div);
    BINARY(rw_maximum);
    BINARY(rw_pow);
    TENSOR("rw_add", RW_ERR_ARGUMENT, rw_add(t, w->x, w->dead_input));
    TENSOR("rw_add", RW_ERR_ARGUMENT, rw_add(t, w->p, w->gone));
    TENSOR("rw_add", RW_ERR_ARGUMENT, rw_add(t, w->x, w->foreign));
    TENSOR("rw_add", RW_ERR_ARGUMENT, rw_add(t, w->x, w->alien));
    TENSOR("rw_add", RW_ERR_ARGUMENT, rw_add(t, w->vector, w->alien_p));
    TENSOR("rw_add", RW_ERR_ARGUMENT, rw_add(t, w->x, w->v_grad));
    TENSOR("rw_add", RW_ERR_ARGUMENT, rw_add(t, w->x, w->dead_grad));
    TENSOR_OF("rw_add", RW_ERR_SHAPE,
              (tall = rw_broadcast_to(t, w->scalar, RW_SHAPE(HUGE_EXTENT, 1)), flat = rw_transpose(t, tall, 0, 1)),
              rw_add(t, tall, flat));
    TENSOR("rw_swiglu", RW_ERR_ARGUMENT, rw_swiglu(t, NULL, w->x));
    TENSOR("rw_swiglu", RW_ERR_ARGUMENT, rw_swiglu(t, w->x, NULL));
    TENSOR("rw_swiglu", RW_ERR_SHAPE, rw_swiglu(t, w->p, w->vector));
    TENSOR("rw_swiglu", RW_ERR_DTYPE, rw_swiglu(t, w->x, w->half));
}

/* Dropout with invalid operands or probabilities. */
static void dropout(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    TENSOR("rw_dropout", RW_ERR_ARGUMENT, rw_dropout(t, NULL, 0.5f));
    TENSOR("rw_dropout", RW_ERR_ARGUMENT, rw_dropout(t, NULL, 0));
    TENSOR("rw_dropout", RW_ERR_ARGUMENT, rw_dropout(t, w->dead, 0));
    TENSOR("rw_dropout", RW_ERR_ARGUMENT, rw_dropout(t, w->p, 1));
    TENSOR("rw_dropout", RW_ERR_ARGUMENT, rw_dropout(t, w->transposed, -0.5f));
    TENSOR("rw_dropout", RW_ERR_ARGUMENT, rw_dropout(t, w->p, NAN));
    TENSOR("rw_dropout", RW_ERR_ARGUMENT, rw_dropout(t, w->p, INFINITY));
    TENSOR("rw_dropout_add", RW_ERR_ARGUMENT, rw_dropout_add(t, NULL, w->x, 0.5f));
    TENSOR("rw_dropout_add", RW_ERR_ARGUMENT, rw_dropout_add(t, w->x, NULL, 0.5f));
    TENSOR("rw_dropout_add", RW_ERR_SHAPE, rw_dropout_add(t, w->transposed, w->p, 0.5f));
    TENSOR("rw_dropout_add", RW_ERR_ARGUMENT, rw_dropout_add(t, w->x, w->p, 2));
    TENSOR("rw_dropout_add", RW_ERR_ARGUMENT, rw_dropout_add(t, w->x, w->p, NAN));
    TENSOR("rw_rand", RW_ERR_SHAPE, rw_rand(t, RW_F32, RW_SHAPE(-1)));
    TENSOR("rw_rand", RW_ERR_SHAPE, rw_rand(t, RW_F32, RW_SHAPE(HUGE_EXTENT, HUGE_EXTENT)));
    TENSOR("rw_rand", RW_ERR_SHAPE, rw_rand(t, RW_F32, RW_SHAPE(0, HUGE_EXTENT, HUGE_EXTENT)));
    TENSOR("rw_rand", RW_ERR_DTYPE, rw_rand(t, RW_I32, RW_SHAPE(2)));
    TENSOR("rw_randn", RW_ERR_DTYPE, rw_randn(t, (rw_dtype)77, RW_SHAPE(2)));
    TENSOR("rw_randn", RW_ERR_SHAPE, rw_randn(t, RW_F32, ((rw_shape){ .rank = 100 })));
    TENSOR("rw_randn", RW_ERR_SHAPE, rw_randn(t, RW_F32, ((rw_shape){ .rank = -1 })));
    TRIAL("rw_rand", "rw_rand(NULL, RW_F32, [2])", RW_ERR_ARGUMENT, true, (void)0,
          rw_rand(NULL, RW_F32, RW_SHAPE(2)) ? RW_OK : RW_ERR_ARGUMENT);
}

/* Quantization with invalid operands or parameters. */
static void quantized(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *scale, *codes = NULL, *point = NULL;
    const rw_quantize_params blocks = { .scaling = RW_SCALING_1X128 }, odd = { .scaling = RW_SCALING_COUNT };
    const rw_quantize_params half = { .dtype = RW_F16 }, powers = { .dtype = RW_F8_E8M0 };
    TENSOR("rw_quantize", RW_ERR_ARGUMENT, rw_quantize(t, NULL, RW_NONE, NULL, &scale, NULL));
    TENSOR("rw_quantize", RW_ERR_ARGUMENT, rw_quantize(t, w->x, NULL, NULL, &scale, NULL));
    TENSOR("rw_quantize", RW_ERR_ARGUMENT, rw_quantize(t, w->x, RW_NONE, NULL, NULL, NULL));
    TENSOR("rw_quantize", RW_ERR_ARGUMENT, rw_quantize(t, w->x, RW_NONE, &odd, &scale, NULL));
    TENSOR("rw_quantize", RW_ERR_ARGUMENT, rw_quantize(t, w->alien, RW_NONE, NULL, &scale, NULL));
    TENSOR("rw_quantize", RW_ERR_DTYPE, rw_quantize(t, w->index, RW_NONE, NULL, &scale, NULL));
    TENSOR("rw_quantize", RW_ERR_DTYPE, rw_quantize(t, w->x, RW_NONE, &half, &scale, NULL));
    TENSOR("rw_quantize", RW_ERR_DTYPE, rw_quantize(t, w->x, RW_NONE, &powers, &scale, NULL));
    TENSOR("rw_quantize", RW_ERR_SHAPE, rw_quantize(t, w->x, w->x, NULL, &scale, NULL));
    TENSOR_OF("rw_quantize", RW_ERR_SHAPE, point = rw_zeros(t, RW_F32, RW_SCALAR),
              rw_quantize(t, w->x, point, &blocks, &scale, NULL));
    TENSOR_OF("rw_quantize", RW_ERR_SHAPE, point = rw_zeros(t, RW_F32, RW_SCALAR),
              rw_quantize(t, point, RW_NONE, &blocks, &scale, NULL));
    TENSOR("rw_dequantize", RW_ERR_ARGUMENT, rw_dequantize(t, NULL, w->x, RW_SCALING_TENSOR, RW_F32));
    TENSOR("rw_dequantize", RW_ERR_DTYPE, rw_dequantize(t, w->x, w->x, RW_SCALING_TENSOR, RW_F32));
    TENSOR_OF("rw_dequantize", RW_ERR_DTYPE, codes = rw_quantize(t, w->x, RW_NONE, NULL, &scale, NULL),
              rw_dequantize(t, codes, scale, RW_SCALING_TENSOR, RW_I32));
    TENSOR_OF("rw_dequantize", RW_ERR_ARGUMENT, codes = rw_quantize(t, w->x, RW_NONE, NULL, &scale, NULL),
              rw_dequantize(t, codes, scale, (rw_scaling)-1, RW_F32));
    TENSOR_OF("rw_dequantize", RW_ERR_SHAPE, codes = rw_quantize(t, w->x, RW_NONE, NULL, &scale, NULL),
              rw_dequantize(t, codes, scale, RW_SCALING_1X128, RW_F32));
}

void mistakes_with_pointwise_ops(struct trial *m, struct world *w)
{
    binary(m, w);
    dropout(m, w);
    quantized(m, w);
}
