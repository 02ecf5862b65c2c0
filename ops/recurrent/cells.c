/* lstm_cell and gru_cell, the element-wise parts of recurrent layers: checks, costs and gradient rules. */
#include "ops/recurrent/cells.h"

#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/composite.h>
#include <rewind/ops.h>

/* ---- checks ---- */

/* Checks that inputs have one floating-point type, and that input `state` is [n, h]. */
static rw_status check_state(rw_op_call *call, int state)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 1; i < call->n_inputs; i++) RW_CHECK(rw_want_same_dtype(call, 0, i));
    return rw_expect_rank(call, state, NULL, 2, "[n, h]");
}

static rw_status want_gates(rw_op_call *call, int i, int state, int gates)
{
    const rw_layout *const s = call->in[state].layout, *const l = call->in[i].layout;
    if (l->rank == 2 && l->dim[0] == s->dim[0] && l->dim[1] % gates == 0 && l->dim[1] / gates == s->dim[1])
        return RW_OK;
    return rw_unexpected(call, RW_ERR_SHAPE, i, NULL, "[%lld, %d x %lld], of %d gates", (long long)s->dim[0], gates,
                         (long long)s->dim[1], gates);
}

static rw_status check_lstm(rw_op_call *call)
{
    RW_CHECK(check_state(call, 1));
    RW_CHECK(want_gates(call, 0, 1, RW_LSTM_GATES));
    RW_CHECK(rw_op_output_like(call, 0, 1));
    return rw_op_output_like(call, 1, 1);
}

static rw_status check_lstm_backward(rw_op_call *call)
{
    RW_CHECK(check_state(call, 1));
    RW_CHECK(want_gates(call, 0, 1, RW_LSTM_GATES));
    RW_CHECK(rw_op_output_like(call, 0, 0));
    return rw_op_output_like(call, 1, 1);
}

static rw_status check_gru(rw_op_call *call)
{
    RW_CHECK(check_state(call, 2));
    for (int i = 0; i < 2; i++) RW_CHECK(want_gates(call, i, 2, RW_GRU_GATES));
    for (int i = 0; i < call->n_outputs; i++) RW_CHECK(rw_op_output_like(call, i, call->n_outputs > 1 ? i : 2));
    return RW_OK;
}

/* Five functions of a dozen operations each per element of a state, and the arithmetic that combines them; backward has
   about as many. */
static rw_op_cost cost(const rw_op_call *call)
{
    const double elements = (double)call->in[0].layout->numel / RW_GRU_GATES;
    return (rw_op_cost){ .flops = 80 * elements, .bytes = rw_op_operand_bytes(call) };
}

/* ---- gradients composed of ops that can be differentiated again ---- */

static rw_tensor *gate(rw_tape *t, rw_tensor *gates, int which, int64_t h)
{
    return rw_slice(t, gates, -1, which * h, (which + 1) * h);
}

/* 1 - x */
static rw_tensor *rest(rw_tape *t, rw_tensor *x)
{
    return rw_add_scalar(t, rw_neg(t, x), 1);
}

static rw_tensor *product(rw_tape *t, rw_tensor *a, rw_tensor *b, rw_tensor *c)
{
    return rw_mul(t, rw_mul(t, a, b), c);
}

/* dy times the derivative of a sigmoid with value s, or of a tanh. */
static rw_tensor *through_sigmoid(rw_tape *t, rw_tensor *dy, rw_tensor *s)
{
    return product(t, dy, s, rest(t, s));
}

static rw_tensor *through_tanh(rw_tape *t, rw_tensor *dy, rw_tensor *y)
{
    return rw_mul(t, dy, rest(t, rw_mul(t, y, y)));
}

/* Composes the gradients of lstm_cell from ops. */
static rw_status lstm_double_backward(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const gates = rw_grad_widened(g, rw_grad_input(g, 0));
    rw_tensor *const c = rw_grad_widened(g, rw_grad_input(g, 1));
    rw_tensor *const dh = rw_grad_widened(g, rw_grad_upstream(g, 0)), *dc = rw_grad_widened(g, rw_grad_upstream(g, 1));
    const int64_t h = rw_tensor_shape(c).dim[1];
    rw_tensor *const i = rw_sigmoid(t, gate(t, gates, 0, h)), *const f = rw_sigmoid(t, gate(t, gates, 1, h));
    rw_tensor *const a = rw_tanh(t, gate(t, gates, 2, h)), *const o = rw_sigmoid(t, gate(t, gates, 3, h));
    rw_tensor *const y = rw_tanh(t, rw_add(t, rw_mul(t, f, c), rw_mul(t, i, a)));
    if (dh) {
        rw_tensor *const of_h = through_tanh(t, rw_mul(t, dh, o), y);
        dc = dc ? rw_add(t, dc, of_h) : of_h;
    }
    rw_tensor *const parts[] = {
        through_sigmoid(t, rw_mul(t, dc, a), i),
        through_sigmoid(t, rw_mul(t, dc, c), f),
        through_tanh(t, rw_mul(t, dc, i), a),
        dh ? through_sigmoid(t, rw_mul(t, dh, y), o) : rw_scale(t, o, 0),
    };
    RW_CHECK(rw_grad_set_narrowed(g, 0, rw_concat(t, parts, RW_LSTM_GATES, -1)));
    return rw_grad_set_narrowed(g, 1, rw_mul(t, dc, f));
}

/* Composes the gradients of gru_cell from ops. */
static rw_status gru_double_backward(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_widened(g, rw_grad_input(g, 0)), *const y = rw_grad_widened(g, rw_grad_input(g, 1));
    rw_tensor *const h = rw_grad_widened(g, rw_grad_input(g, 2));
    rw_tensor *const dh = rw_grad_widened(g, rw_grad_upstream(g, 0));
    const int64_t n = rw_tensor_shape(h).dim[1];
    rw_tensor *const r = rw_sigmoid(t, rw_add(t, gate(t, x, 0, n), gate(t, y, 0, n)));
    rw_tensor *const z = rw_sigmoid(t, rw_add(t, gate(t, x, 1, n), gate(t, y, 1, n)));
    rw_tensor *const of_h = gate(t, y, 2, n);
    rw_tensor *const a = rw_tanh(t, rw_add(t, gate(t, x, 2, n), rw_mul(t, r, of_h)));
    rw_tensor *const da = through_tanh(t, rw_mul(t, dh, rest(t, z)), a);
    rw_tensor *const dr = through_sigmoid(t, rw_mul(t, da, of_h), r);
    rw_tensor *const dz = through_sigmoid(t, rw_mul(t, dh, rw_sub(t, h, a)), z);
    rw_tensor *const parts[] = { dr, dz, da }, *const other[] = { dr, dz, rw_mul(t, da, r) };
    RW_CHECK(rw_grad_set_narrowed(g, 0, rw_concat(t, parts, RW_GRU_GATES, -1)));
    RW_CHECK(rw_grad_set_narrowed(g, 1, rw_concat(t, other, RW_GRU_GATES, -1)));
    return rw_grad_set_narrowed(g, 2, rw_mul(t, dh, z));
}

/* ---- rules ---- */

RW_INTERNAL_OP(gru_cell_backward, "x y h dy")
RW_INTERNAL_OP(lstm_cell_backward, "gates c")
RW_DECLARE_KERNELS(rw_lstm_cell_backward)
static const rw_op_def rw_op_lstm_cell_backward = { .name = "lstm_cell_backward",
                                                    .n_inputs = RW_OP_VARIADIC,
                                                    .n_outputs = 2,
                                                    .inplace = RW_INPLACE({ 0, 0 }, { 1, 3 }, { 1, 2 }, { 1, 1 }),
                                                    .check = check_lstm_backward,
                                                    .kernel = RW_KERNELS(rw_lstm_cell_backward),
                                                    .cost = cost };
RW_DECLARE_KERNELS(rw_gru_cell_backward)
static const rw_op_def rw_op_gru_cell_backward = { .name = "gru_cell_backward",
                                                   .n_inputs = 4,
                                                   .n_outputs = 3,
                                                   .inplace = RW_INPLACE({ 0, 0 }, { 1, 1 }, { 2, 3 }, { 2, 2 }),
                                                   .check = check_gru,
                                                   .kernel = RW_KERNELS(rw_gru_cell_backward),
                                                   .cost = cost };

static rw_status grad_lstm(rw_grad_call *g)
{
    if (rw_grad_is_differentiable(g)) return lstm_double_backward(g);
    rw_tensor *const dh = rw_grad_upstream(g, 0), *const dc = rw_grad_upstream(g, 1);
    const struct rw_lstm_attrs a = { dh != NULL, dc != NULL };
    rw_tensor *const in[] = { rw_grad_input(g, 0), rw_grad_input(g, 1), dh ? dh : dc, dc };
    rw_tensor *out[2] = { NULL, NULL };
    rw_apply(rw_grad_tape(g), &rw_op_lstm_cell_backward, in, dh && dc ? 4 : 3, &a, sizeof a, out);
    for (int i = 0; i < 2; i++) RW_CHECK(rw_grad_set(g, i, out[i]));
    return RW_OK;
}

static rw_status grad_gru(rw_grad_call *g)
{
    if (rw_grad_is_differentiable(g)) return gru_double_backward(g);
    rw_tensor *const in[] = { rw_grad_input(g, 0), rw_grad_input(g, 1), rw_grad_input(g, 2), rw_grad_upstream(g, 0) };
    rw_tensor *out[3] = { NULL, NULL, NULL };
    rw_apply(rw_grad_tape(g), &rw_op_gru_cell_backward, in, 4, NULL, 0, out);
    for (int i = 0; i < 3; i++) RW_CHECK(rw_grad_set(g, i, out[i]));
    return RW_OK;
}

RW_BUILTIN_OP(gru_cell, "x y h", "torch.nn.GRUCell, after its products")
RW_BUILTIN_OP(lstm_cell, "gates c", "torch.nn.LSTMCell, after its products")
RW_DECLARE_KERNELS(rw_lstm_cell)
const rw_op_def rw_op_lstm_cell = { .name = "lstm_cell", .n_inputs = 2, .n_outputs = 2,
                                    .inplace = RW_INPLACE({ 1, 1 }), .check = check_lstm,
                                    .kernel = RW_KERNELS(rw_lstm_cell), .grad = grad_lstm, .cost = cost,
                                    .cast_widest = RW_OP_ALL_INPUTS };
RW_DECLARE_KERNELS(rw_gru_cell)
const rw_op_def rw_op_gru_cell = { .name = "gru_cell", .n_inputs = 3, .n_outputs = 1,
                                   .inplace = RW_INPLACE({ 0, 2 }), .check = check_gru,
                                   .kernel = RW_KERNELS(rw_gru_cell), .grad = grad_gru, .cost = cost,
                                   .cast_widest = RW_OP_ALL_INPUTS };
