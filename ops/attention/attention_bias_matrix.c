/* attention_bias and attention_seen: the effect of options on the scores, as matrices, for gradients of gradients. */
#include "ops/attention/attention.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

static rw_status check(rw_op_call *call)
{
    const struct rw_attention_bias_attrs *const a = call->attrs;
    const int mask = rw_att_extra(&a->forward, ATT_MASK, 0), documents = rw_att_extra(&a->forward, ATT_DOCUMENTS, 0);
    rw_shape s = RW_SHAPE(1, 1, a->seq, a->kv_seq);
    if (mask >= 0) s.dim[0] = call->in[mask].layout->dim[0], s.dim[1] = call->in[mask].layout->dim[1];
    if (documents >= 0 && call->in[documents].layout->rank == 2) s.dim[0] = call->in[documents].layout->dim[0];
    if (rw_att_extra(&a->forward, ATT_SLOPES, 0) >= 0) s.dim[1] = a->heads;
    return rw_op_output(call, 0, (rw_dtype)a->dtype, s);
}

/* Only a mask has a gradient. It is 0 where the mask excludes a key, because the probability there is 0. */
static rw_status grad(rw_grad_call *g)
{
    const struct rw_attention_bias_attrs *const a = rw_grad_attrs(g);
    const int mask = rw_att_extra(&a->forward, ATT_MASK, 0);
    if (mask < 0 || !rw_grad_wanted(g, mask)) return RW_ERR_NO_GRADIENT;
    rw_tensor *const x = rw_grad_input(g, mask);
    rw_tensor *const sum = rw_sum_to(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_tensor_shape(x));
    return rw_grad_set(g, mask, rw_cast(rw_grad_tape(g), sum, rw_tensor_dtype(x)));
}

RW_DECLARE_KERNELS(rw_attention_bias)
const rw_op_def rw_op_attention_bias = { .name = "attention_bias", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                         .strided = RW_OP_ALL_INPUTS, .check = check,
                                         .kernel = RW_KERNELS(rw_attention_bias), .grad = grad };
const rw_op_def rw_op_attention_seen = { .name = "attention_seen", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                         .flags = RW_OP_NO_GRADIENT, .strided = RW_OP_ALL_INPUTS, .check = check,
                                         .kernel = RW_KERNELS(rw_attention_bias) };
