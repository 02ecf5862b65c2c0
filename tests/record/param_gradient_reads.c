/*
 * The gradient of a parameter as a value that is read: by ops of a tape, through views, at an address that a caller has
 * kept. Every reader gets the current gradient, or the bytes from the start of the step, or an error.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rw_tensor *total(rw_tape *t, rw_tensor *x)
{
    return rw_sum(t, x, RW_ALL_AXES, false);
}

static rw_tensor *param(rw_context *ctx, const char *name, float scale)
{
    rw_tensor *const p = rw_param(ctx, name, RW_F32, RW_SHAPE(2, 2));
    const float v[4] = { scale, 2 * scale, 3 * scale, 4 * scale };
    cr_assert_eq(rw_write(p, v, sizeof v), RW_OK);
    return p;
}

static void expect(rw_context *ctx, rw_tape *t, rw_tensor *x, float a, float b, float c, float d, const char *what)
{
    float v[4] = { -7, -7, -7, -7 };
    const float want[4] = { a, b, c, d };
    cr_assert_eq(rw_read(t, x, v, sizeof v), RW_OK, "%s: %s", what, rw_error_message(ctx));
    cr_assert_eq(memcmp(v, want, sizeof v), 0, "%s: %g %g %g %g", what, (double)v[0], (double)v[1], (double)v[2],
                 (double)v[3]);
}

static void changed(rw_context *ctx, rw_status status, const char *text)
{
    cr_assert_eq(status, RW_ERR_MODIFIED, "%s: %s", text, rw_error_message(ctx));
    cr_assert(strstr(rw_error_message(ctx), text), "%s, not %s", rw_error_message(ctx), text);
    rw_error_clear(ctx);
}

/* ---- a tape that has read it ---- */

enum reader { WHOLE, VIEW, RULE, HALF, READERS };
enum change { NOTHING, WRITTEN, ZEROED, CLIPPED, UNSCALED, ADDED_TO, ADDRESS, LAUNCHED, CHANGES };

struct world {
    struct fixture b;
    rw_tape *other;
    rw_tensor *p, *w;
};

/* Two tapes and parameters, of which one tape has read a gradient by `reader`. */
static struct world world_open(enum reader reader)
{
    struct world x = { .b = fixture_open(1, 1) };
    const uint16_t half[4] = { 0x3f80, 0x3f80, 0x4000, 0x3f80 };
    const float ones[4] = { 1, 1, 2, 1 };
    cr_assert_eq(rw_tape_create(&x.other, x.b.ctx), RW_OK);
    if (reader == HALF) {
        x.p = rw_param_with(x.b.ctx, "p", RW_BF16, RW_SHAPE(2, 2), &(rw_param_options){ .grad_dtype = RW_BF16 });
        rw_init_constant(x.p, 1);
        cr_assert_eq(rw_write(rw_gradient(x.p), half, sizeof half), RW_OK);
    } else {
        x.p = param(x.b.ctx, "p", 1);
        cr_assert_eq(rw_write(rw_gradient(x.p), ones, sizeof ones), RW_OK);
    }
    x.w = param(x.b.ctx, "w", 1);
    return x;
}

static void world_close(struct world *x)
{
    rw_tape_destroy(&x->other);
    fixture_close(&x->b);
}

static void launch_a_graph(struct world *x)
{
    rw_graph *g = NULL;
    cr_assert_eq(rw_graph_create(&g, x->other, total(x->other, rw_cast(x->other, x->p, RW_F32)), NULL), RW_OK);
    cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x->b.ctx));
    rw_graph_destroy(&g);
}

/* Changes the gradient in one of the ways. */
static void change_it(struct world *x, enum change change)
{
    const float fives[4] = { 5, 5, 5, 5 };
    rw_scaler *s = NULL;
    rw_tensor *const g = rw_gradient(x->p);
    switch (change) {
    case NOTHING: return;
    case WRITTEN: cr_assert_eq(rw_write(g, fives, rw_tensor_bytes(g)), RW_OK); return;
    case ZEROED: rw_zero_grad(x->b.ctx); return;
    case CLIPPED: cr_assert_eq(rw_clip_grad_norm(x->b.ctx, 0.5, NULL), RW_OK); return;
    case UNSCALED:
        cr_assert_eq(rw_scaler_create(&s, x->b.ctx, NULL), RW_OK);
        cr_assert_eq(rw_scaler_unscale(s), RW_OK);
        rw_scaler_destroy(&s);
        return;
    case ADDED_TO:
        cr_assert_eq(rw_backward(x->other, total(x->other, rw_cast(x->other, x->p, RW_F32))), RW_OK);
        return;
    case ADDRESS: cr_assert_not_null(rw_tensor_data(g)); return;
    default: launch_a_graph(x);
    }
}

/* Forward reads the gradient of p, which is changed before backward. */
static rw_status step(const char *policy, enum reader reader, enum change change, float *ret)
{
    struct world x = world_open(reader);
    rw_context *const ctx = x.b.ctx;
    rw_tape *const t = x.b.t;
    rw_tensor *g = rw_gradient(x.p);
    cr_assert_eq(ckpt_set_policy(t, policy), RW_OK);
    ckpt_begin(t, "r");
    if (reader == VIEW) g = rw_transpose(t, g, 0, 1);
    if (reader == HALF) g = rw_cast(t, g, RW_F32);
    rw_tensor *const mixed = reader == RULE ? rw_mul(t, x.w, g) : rw_add(t, x.w, g);
    rw_tensor *const y = rw_exp(t, rw_exp(t, rw_scale(t, mixed, 0.1)));
    ckpt_end(t);
    rw_tensor *const loss = total(t, rw_mul(t, y, y));
    rw_item(t, loss);
    change_it(&x, change);
    const rw_status status = rw_backward(t, loss);
    if (status) changed(ctx, status, change == UNSCALED ? "gradient of \"" : "the gradient of \"p\" changed after");
    else cr_assert_eq(rw_read(NULL, rw_gradient(x.w), ret, 4 * sizeof *ret), RW_OK);
    world_close(&x);
    return status;
}

/* The bytes of a step without a change, or RW_ERR_MODIFIED: other bytes under no policy. An eager forward has all its
   values: nothing is replayed, and only the rule that reads the gradient itself reads a changed one. */
static void read_and_changed(bool eager)
{
    static const char *const policies[] = { "none", "full", "uniform:1", "ops:exp" };
    for (enum reader reader = 0; reader < READERS; reader++) {
        float want[4], got[4];
        cr_assert_eq(step("none", reader, NOTHING, want), RW_OK);
        for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
            for (enum change change = 0; change < CHANGES; change++) {
                const rw_status status = step(policies[i], reader, change, got);
                if (change == NOTHING) cr_assert_eq(status, RW_OK);
                else if ((i == 1 && !eager) || reader == RULE)
                    cr_assert_eq(status, RW_ERR_MODIFIED, "%d %d", reader, change);
                /* backward adds to the gradient of w, which a launch or an unscaling changes independently */
                if (!status) cr_assert_eq(memcmp(want, got, sizeof got), 0, "%s %d %d", policies[i], reader, change);
            }
    }
}

Test(param_gradient_reads, changed_after_forward_has_read_it)
{
    read_and_changed(false);
}

Test(param_gradient_reads, changed_after_forward_has_read_it_eagerly)
{
    setenv("REWIND_EAGER", "1", 1);
    read_and_changed(true);
}

Test(param_gradient_reads, changed_after_forward_has_read_it_under_the_verifier)
{
    setenv("REWIND_VERIFY", "1", 1);
    read_and_changed(false);
}

/* The step itself adds to the gradient that its tape has read: later runs on that tape would read the sum. */
Test(param_gradient_reads, added_to_by_the_step_that_has_read_it)
{
    struct world x = world_open(WHOLE);
    rw_tensor *const y = rw_mul(x.b.t, rw_gradient(x.p), x.p), *const loss = total(x.b.t, y);
    cr_assert_eq(rw_backward(x.b.t, loss), RW_OK);
    expect(x.b.ctx, NULL, rw_gradient(x.p), 2, 2, 4, 2, "1 1 2 1, and the same once more");
    changed(x.b.ctx, rw_backward(x.b.t, loss), "the gradient of \"p\" changed after");
    float v[4];
    changed(x.b.ctx, rw_read(x.b.t, y, v, sizeof v), "the gradient of \"p\" changed after");
    expect(x.b.ctx, NULL, rw_gradient(x.p), 2, 2, 4, 2, "refused, nothing has changed");
    expect(x.b.ctx, x.b.t, rw_scale(x.b.t, rw_gradient(x.p), 1), 2, 2, 4, 2, "an op that is recorded now");
    rw_tape_reset(x.b.t);
    cr_assert_eq(rw_backward(x.b.t, total(x.b.t, rw_mul(x.b.t, rw_gradient(x.p), x.p))), RW_OK);
    expect(x.b.ctx, NULL, rw_gradient(x.p), 4, 4, 8, 4, "a step recorded again");
    world_close(&x);
}

/* Calls that do not change the read bytes are not changes. */
Test(param_gradient_reads, that_stay_as_they_were_when_read)
{
    struct world x = world_open(WHOLE);
    rw_zero_grad(x.b.ctx);
    cr_assert_eq(ckpt_set_policy(x.b.t, "full"), RW_OK);
    for (int i = 0; i < 3; i++) {
        ckpt_begin(x.b.t, "r");
        rw_tensor *const y = rw_exp(x.b.t, rw_exp(x.b.t, rw_add(x.b.t, x.w, rw_gradient(x.p))));
        ckpt_end(x.b.t);
        rw_tensor *const loss = total(x.b.t, y);
        rw_item(x.b.t, loss);
        if (i == 0) rw_zero_grad(x.b.ctx); /* of clear ones */
        if (i == 1) cr_assert_eq(rw_clip_grad_norm(x.b.ctx, 1, NULL), RW_OK, "it is clear");
        float v[4];
        cr_assert_eq(rw_read(NULL, rw_gradient(x.p), v, sizeof v), RW_OK);
        cr_assert_eq(rw_backward(x.other, total(x.other, rw_mul(x.other, x.w, x.w))), RW_OK, "of another parameter");
        cr_assert_eq(rw_backward(x.b.t, loss), RW_OK, "%d: %s", i, rw_error_message(x.b.ctx));
        rw_tape_reset(x.b.t);
        rw_tape_reset(x.other);
    }
    world_close(&x);
}

/* Each launch begins with clear ones. */
Test(param_gradient_reads, read_by_a_graph)
{
    struct world x = world_open(WHOLE);
    rw_graph *g = NULL;
    rw_tensor *const loss = total(x.b.t, rw_mul(x.b.t, x.p, rw_add(x.b.t, rw_gradient(x.p), x.w)));
    cr_assert_eq(rw_graph_create(&g, x.b.t, loss, NULL), RW_OK);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
        expect(x.b.ctx, NULL, rw_gradient(x.p), 1, 2, 3, 4, "w");
    }
    rw_graph_destroy(&g);
    world_close(&x);
}

/* ---- views ---- */

Test(param_gradient_reads, views_of_a_clear_one_are_zero)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p", 1), *const fresh = param(b.ctx, "fresh", 1);
    for (int i = 0; i < 2; i++) {
        expect(b.ctx, b.t, rw_reshape(b.t, rw_gradient(fresh), RW_SHAPE(4)), 0, 0, 0, 0, "never written");
        expect(b.ctx, b.t, rw_transpose(b.t, rw_gradient(p), 0, 1), 0, 0, 0, 0, "clear");
        expect(b.ctx, b.t, rw_operand_at(RW_HERE, b.t, rw_gradient(p), "x"), 0, 0, 0, 0, "its leaf");
        cr_assert_eq(rw_item(b.t, rw_slice(b.t, rw_reshape(b.t, rw_gradient(p), RW_SHAPE(4)), 0, 2, 3)), 0);
        cr_assert_eq(rw_backward(b.t, total(b.t, rw_mul(b.t, p, p))), RW_OK);
        expect(b.ctx, b.t, rw_transpose(b.t, rw_gradient(p), 0, 1), 2, 6, 4, 8, "a sum");
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(param_gradient_reads, views_of_a_clear_one_of_16_bits_are_zero)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param_with(b.ctx, "p", RW_F16, RW_SHAPE(3), &(rw_param_options){ .grad_dtype = RW_F16 });
    uint16_t v[3] = { 1, 2, 3 };
    cr_assert_eq(rw_write(rw_gradient(p), v, sizeof v), RW_OK);
    rw_zero_grad(b.ctx);
    cr_assert_eq(rw_read(b.t, rw_reshape(b.t, rw_gradient(p), RW_SHAPE(3, 1)), v, sizeof v), RW_OK);
    cr_assert(!v[0] && !v[1] && !v[2]);
    fixture_close(&b);
}

/* out may be memory of the device. */
Test(param_gradient_reads, zeros_go_where_the_caller_says)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p", 1), *const to = rw_buffer(b.ctx, "to", RW_F32, RW_SHAPE(2, 2));
    for (int i = 0; i < 2; i++) {
        rw_tensor *const g = rw_gradient(p);
        rw_init_constant(to, 3);
        cr_assert_eq(rw_read(b.t, i ? rw_transpose(b.t, g, 0, 1) : g, rw_tensor_data(to), 4 * sizeof(float)), RW_OK,
                     "%s", rw_error_message(b.ctx));
        expect(b.ctx, NULL, to, 0, 0, 0, 0, "what was read");
    }
    fixture_close(&b);
}

/* Its gradient has no memory afterwards, and none is allocated for reading it. */
Test(param_gradient_reads, views_after_an_update_inside_backward_are_zero)
{
    struct world x = world_open(WHOLE);
    rw_graph *g = NULL;
    rw_optimizer *opt = NULL;
    rw_memory m;
    cr_assert_eq(rw_sgd_create(&opt, x.b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    rw_tensor *const loss = total(x.other, rw_mul(x.other, x.p, x.w));
    cr_assert_eq(rw_graph_create(&g, x.other, loss, &(rw_graph_params){ { rw_record_update_inside(opt) } }),
                 RW_OK);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
        expect(x.b.ctx, x.b.t, rw_reshape(x.b.t, rw_gradient(x.p), RW_SHAPE(4)), 0, 0, 0, 0, "a view");
        expect(x.b.ctx, NULL, rw_gradient(x.p), 0, 0, 0, 0, "itself");
        rw_memory_stats(x.b.ctx, &m);
        cr_assert_eq(m.gradients, 0);
    }
    expect(x.b.ctx, x.b.t, rw_scale(x.b.t, rw_gradient(x.p), 2), 0, 0, 0, 0, "an op");
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    world_close(&x);
}

static bool kernel_fails;

static rw_status brittle_grad(rw_grad_call *g);

static rw_status brittle_kernel(const rw_kernel *k)
{
    return kernel_fails ? RW_ERR_DEVICE : identity_kernel(k);
}

HOST_KERNEL_OF(brittle_kernel)
static const rw_op_def brittle = { .name = "brittle", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                   .kernel = HOST_KERNEL(brittle_kernel), .grad = brittle_grad };

static rw_status brittle_grad(rw_grad_call *g)
{
    rw_tensor *dy = rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &brittle, &dy, 1, NULL, 0, NULL));
}

Test(param_gradient_reads, views_of_a_spoiled_one_are_refused)
{
    struct fixture b = fixture_open(1, 1);
    float v[4];
    rw_tensor *const p = param(b.ctx, "p", 1);
    cr_assert_eq(rw_backward(b.t, total(b.t, p)), RW_OK);
    rw_tape_reset(b.t);
    rw_tensor *const x = rw_apply(b.t, &brittle, (rw_tensor *[]){ p }, 1, NULL, 0, NULL);
    rw_tensor *const loss = rw_add(b.t, total(b.t, rw_mul(b.t, p, p)), total(b.t, x));
    cr_assert_not(rw_item(b.t, loss) != rw_item(b.t, loss), "%s", rw_error_message(b.ctx));
    kernel_fails = true;
    cr_assert_neq(rw_backward(b.t, loss), RW_OK);
    kernel_fails = false;
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    rw_tensor *const view = rw_reshape(b.t, rw_gradient(p), RW_SHAPE(4));
    changed(b.ctx, rw_read(NULL, rw_gradient(p), v, sizeof v), "call rw_zero_grad() to use it again");
    changed(b.ctx, rw_read(b.t, view, v, sizeof v), "call rw_zero_grad() to use it again");
    cr_assert_null(rw_tensor_data(rw_gradient(p)));
    changed(b.ctx, rw_error_status(b.ctx), "call rw_zero_grad() to use it again");
    rw_zero_grad(b.ctx);
    expect(b.ctx, b.t, view, 0, 0, 0, 0, "cleared");
    fixture_close(&b);
}

/* ---- an address that a caller keeps ---- */

/* As another library on the device's stream would do: reads and writes there, without calls that involve gradients. */
static void peek(struct fixture *b, const void *at, float *v)
{
    rw_tensor *const p = rw_param_get(b->ctx, 0);
    cr_assert_eq(rw_read(NULL, p, v, 4 * sizeof *v), RW_OK, "waits for the stream: rw_input() reads what is complete");
    cr_assert_eq(rw_read(b->t, rw_input(b->t, RW_F32, RW_SHAPE(4), at, 4 * sizeof(float)), v, 4 * sizeof *v), RW_OK);
}

static void poke(struct fixture *b, void *at, const float *v)
{
    cr_assert_eq(rw_read(b->t, rw_input(b->t, RW_F32, RW_SHAPE(4), v, 4 * sizeof *v), at, 4 * sizeof *v), RW_OK);
}

static void expect_there(struct fixture *b, const void *at, float first, const char *what)
{
    float v[4];
    const float want[4] = { first, 2 * first, 3 * first, 4 * first };
    peek(b, at, v);
    cr_assert_eq(memcmp(v, want, sizeof v), 0, "%s: %g %g %g %g", what, (double)v[0], (double)v[1], (double)v[2],
                 (double)v[3]);
}

/* Replicas sum there once per step, whether or not the parameter was used in this one's batch. */
Test(param_gradient_reads, at_a_kept_address_are_summed_over_replicas)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    float v[4];
    const float fours[4] = { 4, 4, 4, 4 };
    rw_tensor *const p = param(b.ctx, "p", 1), *const q = param(b.ctx, "q", 1);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 1 }), RW_OK);
    void *const at = rw_tensor_data(rw_gradient(p));
    cr_assert_eq(rw_backward(b.t, total(b.t, rw_mul(b.t, p, p))), RW_OK);
    expect_there(&b, at, 2, "backward wrote there");
    for (int i = 0; i < 3; i++) {
        rw_tape_reset(b.t);
        rw_zero_grad(b.ctx);
        expect_there(&b, at, 0, "cleared");
        cr_assert_eq(rw_backward(b.t, total(b.t, rw_mul(b.t, q, q))), RW_OK, "p has no part in it");
        expect_there(&b, at, 0, "of this step");
        peek(&b, at, v);
        for (int k = 0; k < 4; k++) v[k] += fours[k];
        poke(&b, at, v);
        expect(b.ctx, NULL, rw_gradient(p), 4, 4, 4, 4, "the sum over processes");
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
        cr_assert_eq(rw_tensor_data(rw_gradient(p)), at);
    }
    expect(b.ctx, NULL, p, -11, -10, -9, -8, "three updates by the sums");
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* The gradient there after a launch is the step's; it starts at zero, in a captured graph too. */
Test(param_gradient_reads, at_a_kept_address_after_a_launch)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tape *t = NULL;
    const float eights[4] = { 8, 8, 8, 8 };
    rw_tensor *const p = param(b.ctx, "p", 1);
    cr_assert_eq(rw_tape_create(&t, b.ctx), RW_OK);
    cr_assert_eq(rw_graph_create(&g, t, total(t, rw_mul(t, p, p)), NULL), RW_OK);
    for (int i = 0; i < 3; i++) cr_assert_eq(rw_graph_launch(g), RW_OK);
    void *const at = rw_tensor_data(rw_gradient(p));
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        expect_there(&b, at, 2, "of this launch alone");
        poke(&b, at, eights);
        expect(b.ctx, NULL, rw_gradient(p), 8, 8, 8, 8, "summed there");
        rw_tape_reset(b.t);
    }
    rw_graph_destroy(&g);
    rw_tape_destroy(&t);
    fixture_close(&b);
}

/* The memory stays at its address, and is zero: the update has consumed the step's own gradients. */
Test(param_gradient_reads, at_a_kept_address_outlive_updates_inside_backward)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    rw_memory m;
    rw_tensor *const p = param(b.ctx, "p", 1), *const q = param(b.ctx, "q", 1);
    cr_assert_eq(rw_tape_create(&t, b.ctx), RW_OK);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    cr_assert_eq(rw_backward(b.t, total(b.t, rw_mul(b.t, p, p))), RW_OK);
    void *const at = rw_tensor_data(rw_gradient(p));
    rw_zero_grad(b.ctx);
    const rw_graph_params params = { { rw_record_update_inside(opt) } };
    cr_assert_eq(rw_graph_create(&g, t, total(t, rw_mul(t, p, q)), &params), RW_OK);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        expect_there(&b, at, 0, "consumed");
        cr_assert_eq(rw_tensor_data(rw_gradient(p)), at);
        rw_memory_stats(b.ctx, &m);
        cr_assert_eq(m.gradients, 4 * sizeof(float), "q's has gone");
        rw_tape_reset(b.t);
    }
    expect(b.ctx, NULL, p, 0.669921875f, 1.33984375f, 2.009765625f, 2.6796875f, "7/8 three times");
    cr_assert_eq(rw_backward(b.t, total(b.t, p)), RW_OK);
    expect(b.ctx, NULL, rw_gradient(p), 1, 1, 1, 1, "a step after it");
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    fixture_close(&b);
}

/* A gradient that the caller has written instead of backward belongs to the caller: a launch may overwrite it. */
Test(param_gradient_reads, that_were_written_do_not_wait_for_an_update)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tape *t = NULL;
    rw_tensor *const p = param(b.ctx, "p", 1);
    const float written[4] = { 1, 2, 3, 4 };
    cr_assert_eq(rw_tape_create(&t, b.ctx), RW_OK);
    cr_assert_eq(rw_graph_create(&g, t, total(t, rw_mul(t, p, p)), NULL), RW_OK);
    cr_assert_eq(rw_backward(b.t, total(b.t, rw_mul(b.t, p, p))), RW_OK);
    cr_expect_eq(rw_graph_launch(g), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_write(rw_gradient(p), written, sizeof written), RW_OK);
    cr_expect_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    rw_graph_destroy(&g);
    rw_tape_destroy(&t);
    fixture_close(&b);
}

/* update_inside does not update a parameter that the step does not use, which a shared gradient requires. */
Test(param_gradient_reads, at_a_kept_address_that_a_step_inside_backward_does_not_reach)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_optimizer *opt = NULL;
    rw_tensor *const p = param(b.ctx, "p", 1), *const q = param(b.ctx, "q", 1);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    const rw_graph_params params = { { rw_record_update_inside(opt) } };
    cr_assert_eq(rw_graph_create(&g, b.t, total(b.t, rw_mul(b.t, p, p)), &params), RW_OK);
    cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_not_null(rw_tensor_data(rw_gradient(q)));
    cr_expect_eq(rw_graph_launch(g), RW_ERR_UNSUPPORTED);
    cr_expect(strstr(rw_error_message(b.ctx), "\"q\""), "%s", rw_error_message(b.ctx));
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* An infinite max_norm only measures: nothing has changed for a tape that has read a gradient. */
Test(param_gradient_reads, that_were_measured_have_not_changed)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *t = NULL;
    double norm = 0;
    rw_tensor *const p = param(b.ctx, "p", 1);
    const float written[4] = { 1, 2, 3, 4 };
    cr_assert_eq(rw_tape_create(&t, b.ctx), RW_OK);
    cr_assert_eq(rw_write(rw_gradient(p), written, sizeof written), RW_OK);
    rw_tensor *const y = total(t, rw_mul(t, p, rw_gradient(p)));
    cr_assert_eq(rw_clip_grad_norm(b.ctx, INFINITY, &norm), RW_OK);
    cr_expect_gt(rw_item(t, y), 0);
    cr_expect_eq(rw_backward(t, y), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tape_destroy(&t);
    fixture_close(&b);
}
