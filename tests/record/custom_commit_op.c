/* A caller's own commit: what it writes, when, and what it may write. */
#include <criterion/criterion.h>

#include "record/tape.h"
#include "support/support.h"

#include <rewind/ops.h>

#include <stdlib.h>
#include <string.h>

/* (x, a, b) -> (a, b): a becomes x, b the old a. */
static rw_status shift_check(rw_op_call *call)
{
    const rw_status status = rw_op_output_like(call, 0, 1);
    return status ? status : rw_op_output_like(call, 1, 2);
}

static rw_status shift_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const a = k->out[0].data, *const b = k->out[1].data;
    if (a != k->in[1].data || b != k->in[2].data) return RW_ERR_DEVICE;
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) {
        b[i] = a[i];
        a[i] = x[i];
    }
    return RW_OK;
}

static const rw_op_def shift = { .name = "shift", .n_inputs = 3, .n_outputs = 2, .check = shift_check,
                                 .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                 .kernel = { [RW_DEVICE_CPU] = shift_kernel } };

static float first_of(rw_tensor *x)
{
    float v[4] = { 0 };
    rw_read(NULL, x, v, sizeof v);
    return v[0];
}

/* Forward and replays read the contents from before the step; the end of the step writes both; an evaluation writes
   nothing. */
Test(custom_commit_op, several_buffers_when_the_step_ends)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the kernel is one for host memory");
    static const float one[4] = { 1, 1, 1, 1 }, five[4] = { 5, 5, 5, 5 };
    for (int full = 0; full < 2; full++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                         *const old = rw_buffer(b.ctx, "a", RW_F32, RW_SHAPE(4)),
                         *const older = rw_buffer(b.ctx, "b", RW_F32, RW_SHAPE(4));
        rw_write(p, one, sizeof one);
        rw_write(old, five, sizeof five);
        rw_write(older, one, sizeof one);
        if (full) ckpt_set_policy(b.t, "full");
        ckpt_begin(b.t, "r");
        rw_tensor *const x = rw_scale(b.t, p, 3), *const in[] = { x, old, older };
        cr_assert_not_null(rw_apply(b.t, &shift, in, 3, NULL, 0, NULL));
        rw_tensor *const y = rw_mul(b.t, rw_mul(b.t, x, old), rw_mul(b.t, older, rw_exp(b.t, p)));
        ckpt_end(b.t);
        rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(first_of(old), 3);
        cr_assert_eq(first_of(older), 5);
        cr_assert_float_eq(first_of(rw_gradient(p)), 2 * 3 * 5 * 2.71828183f, 1e-3);
        fixture_close(&b);
    }
}

/* All buffers that a commit writes count as changed for earlier readers, not only the first. */
Test(custom_commit_op, changes_everything_that_it_writes)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the kernel is one for host memory");
    for (int which = 0; which < 2; which++) {
        struct fixture b = fixture_open(1, 1);
        rw_tape *reader = NULL;
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)), *buffer[2];
        buffer[0] = rw_buffer(b.ctx, "a", RW_F32, RW_SHAPE(4));
        buffer[1] = rw_buffer(b.ctx, "b", RW_F32, RW_SHAPE(4));
        cr_assert_eq(rw_tape_create(&reader, b.ctx), RW_OK);
        rw_tensor *const loss = rw_sum(reader, rw_mul(reader, p, buffer[which]), RW_ALL_AXES, false);
        rw_item(reader, loss);
        rw_tensor *const in[] = { p, buffer[0], buffer[1] };
        cr_assert_not_null(rw_apply(b.t, &shift, in, 3, NULL, 0, NULL));
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, p, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(reader, loss), RW_ERR_MODIFIED, "buffer %d", which);
        rw_tape_destroy(&reader);
        fixture_close(&b);
    }
}

/* A value of the tape, an input, another shape: not memory that a commit could write. Nothing is recorded. */
Test(custom_commit_op, what_is_no_buffer_is_refused)
{
    for (int wrong = 0; wrong < 3; wrong++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)), *const a = rw_buffer(b.ctx, "a", RW_F32,
                                                                                             RW_SHAPE(4));
        rw_tensor *const x = rw_scale(b.t, p, 3), *const input = rw_input(b.t, RW_F32, RW_SHAPE(4), NULL, 0);
        rw_tensor *const in[] = { x, a, wrong == 0 ? x : wrong == 1 ? input : rw_slice(b.t, a, 0, 0, 2) };
        const size_t nodes = rw_tape_nodes(b.t);
        cr_assert_null(rw_apply(b.t, &shift, in, 3, NULL, 0, NULL));
        cr_assert_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT);
        cr_assert_eq(rw_tape_nodes(b.t), nodes);
        cr_assert(rw_tape_is_valid(b.t));
        fixture_close(&b);
    }
}

/* Two commits that each read the buffer that the other writes, also through a view; and a third that reads the old
   contents of one. */
static void change_places(void)
{
    static const float one[4] = { 1, 1, 1, 1 }, five[4] = { 5, 5, 5, 5 }, seven[4] = { 7, 7, 7, 7 };
    for (int trains = 0; trains < 2; trains++)
        for (int view = 0; view < 2; view++) {
            struct fixture b = fixture_open(1, 1);
            rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)), *buffer[3];
            static const char *const names[] = { "a", "b", "c" };
            static const float *const data[] = { one, five, seven };
            for (int i = 0; i < 3; i++) {
                buffer[i] = rw_buffer(b.ctx, names[i], RW_F32, RW_SHAPE(4));
                cr_assert_eq(rw_write(buffer[i], data[i], sizeof one), RW_OK);
            }
            for (int round = 1; round <= 2; round++) { /* a and b are exchanged, c becomes the old a */
                rw_tensor *const a = view ? rw_reshape(b.t, rw_reshape(b.t, buffer[0], RW_SHAPE(2, 2)), RW_SHAPE(4))
                                          : buffer[0];
                cr_assert_eq(rw_assign(b.t, buffer[0], buffer[1]), RW_OK);
                cr_assert_eq(rw_assign(b.t, buffer[1], a), RW_OK);
                cr_assert_eq(rw_assign(b.t, buffer[2], a), RW_OK);
                rw_tensor *const y = rw_mul(b.t, trains ? p : buffer[0], buffer[1]);
                if (trains) cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK);
                else cr_assert_eq(rw_eval(b.t, &y, 1), RW_OK);
                rw_tape_reset(b.t);
                cr_expect_eq(first_of(buffer[0]), round == 1 ? 5 : 1, "a: %g", first_of(buffer[0]));
                cr_expect_eq(first_of(buffer[1]), round == 1 ? 1 : 5, "b: %g", first_of(buffer[1]));
                cr_expect_eq(first_of(buffer[2]), round == 1 ? 1 : 5, "c: %g", first_of(buffer[2]));
            }
            fixture_close(&b);
        }
}

Test(custom_commit_op, buffers_that_change_places)
{
    change_places();
    setenv("REWIND_EAGER", "1", 1);
    change_places();
    unsetenv("REWIND_EAGER");
}

/* A node recorded by rw_grad() names the node that it differentiates; that one is itself adjoint for second
   gradients. */
Test(custom_commit_op, adjoint_nodes_name_what_they_differentiate)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
    ckpt_begin(b.t, "outer");
    ckpt_begin(b.t, "inner");
    rw_tensor *const cube = rw_mul(b.t, p, rw_mul(b.t, p, p));
    ckpt_end(b.t);
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, cube, RW_ALL_AXES, false);
    rw_tensor *dp, *ddp;
    const size_t first = b.t->n_nodes;
    cr_assert_eq(rw_grad(b.t, loss, &p, 1, &dp), RW_OK);
    const size_t second = b.t->n_nodes;
    rw_tensor *const sum = rw_sum(b.t, dp, RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(b.t, sum, &p, 1, &ddp), RW_OK);
    cr_assert(rw_tape_is_valid(b.t));
    size_t inner = 0, twice = 0;
    for (size_t n = first; n < b.t->n_nodes; n++) {
        const struct rw_node *const node = &b.t->nodes[n];
        if (n == sum->producer) continue;
        cr_assert(node->adjoint);
        cr_assert_lt(node->of, n < second ? first : n);
        cr_assert_eq(rw_node_region(b.t, node), rw_node_region(b.t, &b.t->nodes[node->of]));
        cr_assert_eq(node->site, b.t->nodes[node->of].site);
        inner += rw_node_region(b.t, node) == 1;
        twice += b.t->nodes[node->of].adjoint;
    }
    cr_assert_geq(inner, 4, "products of the inner region, from both derivatives");
    cr_assert_geq(twice, 2);
    fixture_close(&b);
}

/* ---- a parameter with a master copy ---- */

/* (x, a) -> a: a becomes x. */
static rw_status store_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 1);
}

static rw_status store_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, 4 * sizeof(uint16_t));
    return RW_OK;
}

static const rw_op_def store = { .name = "store", .n_inputs = 2, .n_outputs = 1, .check = store_check,
                                 .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                 .kernel = { [RW_DEVICE_CPU] = store_kernel } };

/* A bfloat16 parameter of 8, from which SGD subtracts a quarter of bfloat16's step at 1. In steps of the other tape a
   commit also writes 1. */
struct stored {
    struct fixture b;
    rw_tape *other;
    rw_tensor *w;
    rw_optimizer *opt;
};

static const uint16_t ones[4] = { 0x3f80, 0x3f80, 0x3f80, 0x3f80 };

static struct stored stored_open(void)
{
    struct stored x = { .b = fixture_open(1, 1) };
    x.w = rw_param(x.b.ctx, "w", RW_BF16, RW_SHAPE(4));
    cr_assert_eq(rw_init_constant(x.w, 8), RW_OK);
    cr_assert_eq(rw_tape_create(&x.other, x.b.ctx), RW_OK);
    cr_assert_eq(rw_sgd_create(&x.opt, x.b.ctx, &(rw_sgd_params){ .lr = 0x1p-9 }), RW_OK);
    return x;
}

static void stored_close(struct stored *x)
{
    rw_optimizer_destroy(&x->opt);
    rw_tape_destroy(&x->other);
    fixture_close(&x->b);
}

static rw_tensor *stored_loss(struct stored *x, rw_tape *t)
{
    rw_tensor *const loss = rw_sum(t, rw_cast(t, x->w, RW_F32), RW_ALL_AXES, false);
    if (t != x->other) return loss;
    rw_tensor *const in[] = { rw_input(t, RW_BF16, RW_SHAPE(4), ones, sizeof ones), x->w };
    cr_assert_not_null(rw_apply(t, &store, in, 2, NULL, 0, NULL), "%s", rw_error_message(x->b.ctx));
    return loss;
}

static void stored_call(struct stored *x, rw_tape *t)
{
    rw_zero_grad(x->b.ctx);
    cr_assert_eq(rw_backward(t, stored_loss(x, t)), RW_OK, "%s", rw_error_message(x->b.ctx));
    cr_assert_eq(rw_optimizer_step(x->opt), RW_OK, "%s", rw_error_message(x->b.ctx));
    rw_tape_reset(t);
}

static void stored_launch(struct stored *x, rw_tape *t, rw_graph **g)
{
    const rw_graph_params params = { { rw_record_update(x->opt) } };
    if (!*g) cr_assert_eq(rw_graph_create(g, t, stored_loss(x, t), &params), RW_OK, "%s", rw_error_message(x->b.ctx));
    cr_assert_eq(rw_graph_launch(*g), RW_OK, "%s", rw_error_message(x->b.ctx));
}

/* by_graph: bit 0, steps that only update are launches; bit 1, those that also write. */
static void train_stored(int by_graph, float *ret, int n)
{
    struct stored x = stored_open();
    rw_graph *g[2] = { NULL, NULL };
    for (int i = 0; i < n; i++) {
        const int writes = i % 2 && i != 5; /* steps 4 to 6 add up in the master copy */
        rw_tape *const t = writes ? x.other : x.b.t;
        uint16_t bits[4];
        if (by_graph >> writes & 1) stored_launch(&x, t, &g[writes]);
        else stored_call(&x, t);
        cr_assert_eq(rw_read(NULL, x.w, bits, sizeof bits), RW_OK);
        const uint32_t word = (uint32_t)bits[0] << 16;
        memcpy(&ret[i], &word, sizeof word);
    }
    for (int k = 0; k < 2; k++) rw_graph_destroy(&g[k]);
    stored_close(&x);
}

/* The optimizer's master copy begins again with what the commit wrote, in a launch as in calls, and goes on from
   there in the next step. */
Test(custom_commit_op, of_a_parameter_with_a_master_copy)
{
    enum { STEPS = 9 };
    static const float is[STEPS] = { 8, 1, 0.99609375f, 1, 0.99609375f, 0.9921875f, 0.9921875f, 1, 0.99609375f };
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the kernel is one for host memory");
    for (int by_graph = 0; by_graph < 4; by_graph++) {
        float got[STEPS];
        train_stored(by_graph, got, STEPS);
        for (int i = 0; i < STEPS; i++)
            cr_expect_eq(got[i], is[i], "by graph %d, step %d: %.9g, not %.9g", by_graph, i, (double)got[i],
                         (double)is[i]);
    }
}
