/* Nodes with many operands, the properties of operands that ops may query, and which operands may be overwritten. */
#include <criterion/criterion.h>

#include "record/overwrite.h"
#include "support/support.h"

#include <rewind/ops.h>

#include <string.h>

#define MANY 200

static float value_of(rw_tape *t, rw_tensor *x, int64_t i)
{
    float v[4 * MANY] = { 0 };
    cr_assert_leq(rw_tensor_bytes(x), sizeof v);
    cr_assert_eq(rw_read(t, x, v, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    return v[i];
}

static rw_tensor *counting(rw_context *ctx, const char *name, rw_shape shape)
{
    rw_tensor *const p = rw_param(ctx, name, RW_F32, shape);
    float v[4 * MANY];
    for (int i = 0; i < 4 * MANY; i++) v[i] = (float)(i % 97) / 8;
    cr_assert_eq(rw_write(p, v, rw_tensor_bytes(p)), RW_OK);
    return p;
}

/* Slice i is multiplied by i + 1; concatenated in the opposite order, the columns' gradients are those numbers. */
Test(operands, a_split_into_200_and_a_concat_of_200)
{
    for (int full = 0; full < 2; full++) {
        struct fixture b = fixture_open(1, 2);
        if (full) ckpt_set_policy(b.t, "full");
        rw_tensor *const p = counting(b.ctx, "p", RW_SHAPE(2, 2 * MANY));
        int64_t size[MANY];
        rw_tensor *part[MANY], *back[MANY];
        for (int i = 0; i < MANY; i++) size[i] = 1 + i % 3;
        ckpt_begin(b.t, "r");
        cr_assert_eq(rw_split(b.t, rw_mul(b.t, p, p), 1, size, MANY, part), RW_ERR_SHAPE, "399 of 400 columns");
        rw_error_clear(b.ctx);
        cr_assert_null(part[MANY - 1]);
        size[0] = 2;
        cr_assert_eq(rw_split(b.t, rw_mul(b.t, p, p), 1, size, MANY, part), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < MANY; i++) back[MANY - 1 - i] = rw_scale(b.t, part[i], i + 1);
        rw_tensor *const y = rw_concat(b.t, back, MANY, 1);
        ckpt_end(b.t);
        cr_assert_eq(rw_tensor_shape(y).dim[1], 2 * MANY);
        cr_assert_eq(value_of(b.t, y, 0), 200 * value_of(b.t, rw_mul(b.t, p, p), 2 * MANY - size[MANY - 1]));
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK);
        float v[4 * MANY], g[4 * MANY];
        rw_read(b.t, p, v, sizeof v);
        rw_read(b.t, rw_gradient(p), g, sizeof g);
        int column = 0;
        for (int i = 0; i < MANY; i++)
            for (int k = 0; k < size[i]; k++, column++)
                for (int row = 0; row < 2; row++) {
                    const float x = v[row * 2 * MANY + column], f = (float)(i + 1);
                    cr_assert_float_eq(g[row * 2 * MANY + column], 4 * f * f * x * x * x,
                                       1e-4 * (1 + f * f * x * x * x));
                }
        fixture_close(&b);
    }
}

/* ---- an op with many inputs ---- */

static int n_strided;

static rw_status sum_check(rw_op_call *call)
{
    n_strided = 0;
    for (int i = 0; i < call->n_inputs; i++) n_strided += !call->in[i].layout->dense;
    cr_assert_eq(call->threads, 2);
    cr_assert_eq(call->kind, RW_DEVICE_CPU);
    cr_assert_not_null(call->device);
    return rw_op_output_like(call, 0, 0);
}

static rw_status sum_kernel(const rw_kernel *k)
{
    float *const y = k->out[0].data;
    for (int64_t i = 0; i < 4; i++) y[i] = 0;
    for (int n = 0; n < k->n_inputs; n++) {
        const rw_layout *const l = k->in[n].layout;
        for (int64_t i = 0; i < 4; i++)
            y[i] += (float)(n + 1) * ((const float *)k->in[n].data)[i / 2 * l->stride[0] + i % 2 * l->stride[1]];
    }
    return RW_OK;
}

static rw_status sum_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    for (int i = 0; i < rw_grad_n_inputs(g); i++)
        if (rw_grad_wanted(g, i)) {
            rw_tensor *const so_far = rw_grad_accumulator(g, i), *const dx = rw_scale(t, rw_grad_upstream(g, 0), i + 1);
            rw_status status = so_far ? rw_grad_set_sum(g, i, rw_add(t, so_far, dx)) : rw_grad_set(g, i, dx);
            if (status) return status;
        }
    return RW_OK;
}

static const rw_op_def weighted = { .name = "weighted",
                                    .n_inputs = RW_OP_VARIADIC,
                                    .n_outputs = 1,
                                    .check = sum_check,
                                    .strided = RW_OP_INPUT(2) | RW_OP_INPUT(40),
                                    .kernel = { [RW_DEVICE_CPU] = sum_kernel },
                                    .grad = sum_grad };

/* Bit 31 represents input 31 and all after it: strides reach the kernel there, and in input 2. */
Test(operands, an_op_of_200_inputs)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *in[MANY];
    float sum[4] = { 0 };
    for (int i = 0; i < MANY; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i % 150);
        rw_tensor *const p = i < 150 ? counting(b.ctx, name, RW_SHAPE(2, 2)) : rw_param_find(b.ctx, name);
        in[i] = i % 2 ? rw_transpose(b.t, p, 0, 1) : p;
        for (int k = 0; k < 4; k++) sum[k] += (float)(i + 1) * (float)(i % 2 ? k % 2 * 2 + k / 2 : k) / 8;
    }
    rw_tensor *const y = rw_apply(b.t, &weighted, in, MANY, NULL, 0, NULL);
    cr_assert_not_null(y, "%s", rw_error_message(b.ctx));
    cr_assert_eq(n_strided, (MANY - 31 + 1) / 2, "odd ones from 31 on");
    cr_assert(rw_tape_is_valid(b.t));
    for (int k = 0; k < 4; k++) cr_assert_float_eq(value_of(b.t, y, k), sum[k], 1e-2);
    for (int times = 1; times < 3; times++) {
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < 150; i += 49) {
            const float once = (float)(i + 1) + (i < 50 ? (float)(i + 151) : 0);
            cr_assert_eq(value_of(b.t, rw_gradient(rw_param_get(b.ctx, (size_t)i)), 1), (float)times * once);
        }
    }
    fixture_close(&b);
}

/* ---- limits ---- */

static int64_t wanted_outputs;

static rw_status fan_check(rw_op_call *call)
{
    call->n_outputs = (int)wanted_outputs;
    for (int i = 0; i < call->n_outputs; i++) {
        const rw_status status = rw_op_output_like(call, i, 0);
        if (status) return status;
    }
    return RW_OK;
}

static rw_status fan_kernel(const rw_kernel *k)
{
    for (int i = 0; i < k->n_outputs; i++) *(float *)k->out[i].data = *(const float *)k->in[0].data + (float)i;
    return RW_OK;
}

static const rw_op_def fan = { .name = "fan", .n_inputs = 1, .n_outputs = RW_OP_VARIADIC, .check = fan_check,
                               .kernel = { [RW_DEVICE_CPU] = fan_kernel } };

Test(operands, as_many_as_a_node_can_have_and_one_more)
{
    struct fixture b = fixture_open(1, 2);
    static rw_tensor *out[RW_OP_MAX_OPERANDS];
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(1), &(float){ 7 }, sizeof(float));
    wanted_outputs = RW_OP_MAX_OPERANDS - 1;
    cr_assert_not_null(rw_apply(b.t, &fan, &x, 1, NULL, 0, out), "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_item(b.t, out[wanted_outputs - 1]), 7 + RW_OP_MAX_OPERANDS - 2, "%s", rw_error_message(b.ctx));
    const size_t nodes = rw_tape_nodes(b.t);
    wanted_outputs = RW_OP_MAX_OPERANDS;
    cr_assert_null(rw_apply(b.t, &fan, &x, 1, NULL, 0, out));
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    static rw_tensor *in[RW_OP_MAX_OPERANDS + 1];
    for (int i = 0; i <= RW_OP_MAX_OPERANDS; i++) in[i] = x;
    cr_assert_null(rw_concat(b.t, in, RW_OP_MAX_OPERANDS + 1, 0));
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_tape_nodes(b.t), nodes);
    static int64_t size[9000];
    cr_assert_eq(rw_split(b.t, x, 0, size, 9000, out), RW_ERR_ARGUMENT, "its sizes are attributes: 64 KiB of them");
    cr_assert_not_null(strstr(rw_error_message(b.ctx), "got 9000"));
    fixture_close(&b);
}

/* ---- public properties of a tensor ---- */

Test(operands, kinds_layouts_and_bases)
{
    struct fixture b = fixture_open(1, 2), other = fixture_open(1, 2);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2, 3)), *const c = rw_buffer(b.ctx, "c", RW_F32,
                                                                                            RW_SHAPE(2));
    rw_tensor *const x = rw_scale(b.t, p, 2), *const v = rw_slice(b.t, x, 1, 1, 2);
    cr_assert_eq(rw_tensor_kind_of(p), RW_TENSOR_PARAM);
    cr_assert_eq(rw_tensor_kind_of(c), RW_TENSOR_BUFFER);
    cr_assert_eq(rw_tensor_kind_of(rw_gradient(p)), RW_TENSOR_GRADIENT);
    cr_assert_eq(rw_tensor_kind_of(v), RW_TENSOR_VALUE);
    cr_assert_eq(rw_tensor_kind_of(rw_none()), RW_TENSOR_NONE);
    cr_assert_eq(rw_tensor_kind_of(NULL), RW_TENSOR_NONE);
    cr_assert_null(rw_tensor_layout(rw_none()));
    cr_assert_eq(rw_tensor_base(v), x);
    cr_assert_eq(rw_tensor_base(x), x);
    cr_assert_eq(rw_tensor_base(p), p);
    cr_assert_eq(rw_tensor_layout(v)->offset, 1);
    cr_assert_eq(rw_tensor_layout(v)->stride[0], 3);
    cr_assert_eq(rw_tensor_layout(p)->numel, 6);
    cr_assert_eq(rw_operand_at(RW_HERE, b.t, v, "test"), v);
    cr_assert_eq(rw_tensor_kind_of(rw_operand_at(RW_HERE, b.t, p, "test")), RW_TENSOR_VALUE);
    cr_assert_null(rw_operand_at(RW_HERE, other.t, v, "test"));
    cr_assert_not_null(strstr(rw_error_message(other.ctx), "test at"));
    cr_assert_eq(rw_refuse_at(RW_HERE, b.t, RW_ERR_SHAPE, "%d legs", 3), RW_ERR_SHAPE);
    cr_assert_not_null(strstr(rw_error_message(b.ctx), "3 legs"));
    cr_assert_not_null(strstr(rw_error_message(b.ctx), "operands.c:"));
    fixture_close(&b);
    fixture_close(&other);
}

/* ---- operands that may be overwritten ---- */

static rw_status pair_check(rw_op_call *call)
{
    const rw_status status = rw_op_output_like(call, 0, 0);
    return status ? status : rw_op_output_like(call, 1, 0);
}

static rw_status never_run(const rw_kernel *k)
{
    return RW_ERR_DEVICE;
}

static const rw_op_def pair = { .name = "pair", .n_inputs = 3, .n_outputs = 2, .check = pair_check,
                                .kernel = { [RW_DEVICE_CPU] = never_run },
                                .strided = RW_OP_ALL_INPUTS, .inplace = RW_INPLACE({ 0, 0 }, { 1, 1 }, { 1, 2 }) };

static bool may(rw_tape *t, rw_tensor *x, rw_tensor *y, rw_tensor *z, uint32_t output, uint32_t input)
{
    rw_tensor *const in[] = { x, y, z };
    rw_tensor *const out = rw_apply(t, &pair, in, 3, NULL, 0, NULL);
    return rw_may_overwrite(t, &t->nodes[out->producer], output, input);
}

Test(operands, what_a_node_may_write_over)
{
    struct fixture b = fixture_open(1, 2);
    rw_tape *const t = b.t;
    rw_tensor *x[4];
    for (int i = 0; i < 3; i++) x[i] = rw_input(t, RW_F32, RW_SHAPE(4, 4), NULL, 0);
    x[3] = rw_input(t, RW_F32, RW_SHAPE(4, 8), NULL, 0);
    cr_assert(may(t, x[0], x[1], x[2], 0, 0));
    cr_assert(may(t, x[0], x[1], x[2], 1, 1));
    cr_assert(may(t, x[0], x[1], x[2], 1, 2));
    cr_assert_not(may(t, x[0], x[1], x[2], 0, 1), "not in the list");
    cr_assert_not(may(t, x[0], x[1], x[2], 1, 0), "not in the list");
    cr_assert(may(t, x[0], x[1], x[1], 1, 1), "twice the same value, and either may go");
    cr_assert_not(may(t, x[0], x[0], x[2], 0, 0), "the op reads it through an input that may not");
    cr_assert_not(may(t, x[0], rw_transpose(t, x[1], 0, 1), x[2], 1, 1), "turned");
    cr_assert_not(may(t, x[0], x[1], rw_transpose(t, x[1], 0, 1), 1, 1), "the other one is transposed");
    cr_assert_not(may(t, rw_slice(t, x[3], 0, 0, 2), x[1], x[2], 0, 0), "a part");
    cr_assert(may(t, rw_reshape(t, x[0], RW_SHAPE(16)), x[1], x[2], 0, 0), "a view of all of it");
    cr_assert_not(may(t, x[0], x[3], x[2], 1, 1), "of another size");
    fixture_close(&b);
}

/* ---- operands that are overwritten ---- */

static struct seen {
    int n, over[2]; /* nodes; outputs at the address of one of their inputs */
} seen;

/* (x, y) -> (x + 1, 2 y) */
static rw_status two_kernel(const rw_kernel *k)
{
    for (int o = 0; o < 2; o++) {
        const float *const x = k->in[o].data;
        float *const y = k->out[o].data;
        for (int64_t i = 0; i < k->out[o].layout->numel; i++) y[i] = o ? 2 * x[i] : x[i] + 1;
        seen.over[o] += k->out[o].data == k->in[o].data;
    }
    seen.n++;
    return RW_OK;
}

static rw_status two_check(rw_op_call *call)
{
    const rw_status status = rw_op_output_like(call, 0, 0);
    return status ? status : rw_op_output_like(call, 1, 1);
}

/* Nodes with two outputs, in a chain: no output is read again, so each of the two stays in one buffer throughout. */
static struct seen run_two(const rw_op_def *op, int nodes, bool same, float *ret)
{
    struct fixture b = fixture_open(1, 1);
    const float ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    rw_tensor *x[2];
    for (int i = 0; i < 2; i++) x[i] = rw_scale(b.t, rw_input(b.t, RW_F32, RW_SHAPE(8), ones, sizeof ones), 3 + i);
    seen = (struct seen){ 0 };
    for (int i = 0; i < nodes; i++) {
        rw_tensor *const in[] = { x[0], same ? x[0] : x[1] };
        rw_apply(b.t, op, in, 2, NULL, 0, x);
    }
    *ret = value_of(b.t, rw_sub(b.t, x[0], x[1]), 3);
    fixture_close(&b);
    return seen;
}

Test(operands, each_output_is_written_over_an_input_of_its_own)
{
    const rw_op_def apart = { .name = "two_apart", .n_inputs = 2, .n_outputs = 2, .check = two_check,
                              .kernel[RW_DEVICE_CPU] = two_kernel };
    rw_op_def over = apart, second = apart;
    float want = 0, got = 0;
    over.name = "two_over", over.inplace = RW_INPLACE({ 0, 0 }, { 1, 1 });
    second.name = "two_second", second.inplace = RW_INPLACE({ 1, 1 });
    for (int same = 0; same < 2; same++) {
        struct seen s = run_two(&apart, 5, same, &want);
        cr_assert(s.n == 5 && !s.over[0] && !s.over[1]);
        s = run_two(&over, 5, same, &got);
        cr_assert_eq(got, want);
        /* two inputs that are one value: no output may overwrite memory that the op reads through the other input */
        cr_assert(s.over[0] == (same ? 0 : 5) && s.over[1] == (same ? 0 : 5), "%d, %d", s.over[0], s.over[1]);
        s = run_two(&second, 5, same, &got);
        cr_assert_eq(got, want);
        cr_assert(!s.over[0] && s.over[1] == (same ? 0 : 5), "%d, %d", s.over[0], s.over[1]);
    }
}
