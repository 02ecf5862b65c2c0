/*
 * Gradients and their scale: which calls a scaler's unscaling applies to. It ends with the gradients, however they end;
 * nothing of another scale is added to them; and no optimizer is stepped twice with one scale.
 */
#include "base/alloc.h"
#include "io/saved_run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* loss = p * p, scaled by 1024: plain SGD at a rate of 1/8 leaves 3/4 of p, or -255 times p if the scale is
   forgotten. */
struct scaled {
    struct fixture b;
    rw_tensor *p, *q;
    rw_optimizer *opt;
    rw_scaler *s;
};

static struct scaled scaled_open(rw_dtype gradient)
{
    struct scaled x = { .b = fixture_open(1, 1) };
    const rw_dtype dtype = gradient == RW_F64 ? RW_F64 : gradient == RW_F32 ? RW_F32 : gradient;
    x.p = rw_param_with(x.b.ctx, "p", dtype, RW_SHAPE(3), &(rw_param_options){ .grad_dtype = gradient });
    x.q = rw_param(x.b.ctx, "q", RW_F32, RW_SHAPE(3));
    rw_init_constant(x.p, 1);
    rw_init_constant(x.q, 1);
    cr_assert_eq(rw_sgd_create(&x.opt, x.b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    cr_assert_eq(rw_scaler_create(&x.s, x.b.ctx, &(rw_scaler_params){ .init_scale = 1024 }), RW_OK);
    return x;
}

static void scaled_close(struct scaled *x)
{
    rw_scaler_destroy(&x->s);
    rw_optimizer_destroy(&x->opt);
    fixture_close(&x->b);
}

static rw_tensor *square_of(rw_tape *t, rw_tensor *p)
{
    rw_tensor *const x = rw_cast(t, p, RW_F32);
    return rw_sum(t, rw_mul(t, x, x), RW_ALL_AXES, false);
}

static void ok(const struct scaled *x, rw_status status)
{
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
}

static void backward(struct scaled *x, rw_tensor *p)
{
    rw_tape_reset(x->b.t);
    ok(x, rw_scaler_backward(x->s, x->b.t, square_of(x->b.t, p)));
}

static void begin(struct scaled *x)
{
    rw_zero_grad(x->b.ctx);
    backward(x, x->p);
}

static void refused(struct scaled *x, rw_status status, rw_status want, const char *text)
{
    cr_assert_eq(status, want, "%s: %s", text, rw_error_message(x->b.ctx));
    cr_assert(strstr(rw_error_message(x->b.ctx), text), "%s, not %s", rw_error_message(x->b.ctx), text);
    rw_error_clear(x->b.ctx);
}

static double first_of(const struct scaled *x, rw_tensor *p)
{
    rw_tape_reset(x->b.t);
    rw_tensor *const y = rw_cast(x->b.t, p, RW_F32);
    float v[3];
    ok(x, rw_read(x->b.t, y, v, sizeof v));
    return (double)v[0];
}

static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };

/* ---- unscaling ends with the gradients ---- */

Test(unscaled, ends_with_a_step_that_the_program_leaves_out)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct scaled x = scaled_open(types[i]);
        for (int step = 0; step < 2; step++) {
            begin(&x);
            ok(&x, rw_scaler_unscale(x.s));
        }
        begin(&x);
        ok(&x, rw_scaler_step(x.s, x.opt));
        cr_assert_eq(first_of(&x, x.p), 0.75, "%g", first_of(&x, x.p));
        ok(&x, rw_scaler_update(x.s));
        scaled_close(&x);
    }
}

Test(unscaled, ends_with_a_checkpoint_that_is_loaded, .init = folder_open, .fini = folder_close)
{
    for (int stepped = 0; stepped < 2; stepped++) {
        struct scaled x = scaled_open(RW_F32);
        rw_checkpoint *ck = NULL;
        ok(&x, rw_checkpoint_create(&ck, x.b.ctx, &(rw_checkpoint_params){ .folder = folder, .optimizer = x.opt }));
        ok(&x, rw_checkpoint_save(ck, 1, NULL, 0));
        begin(&x);
        ok(&x, rw_scaler_unscale(x.s));
        if (stepped) ok(&x, rw_scaler_step(x.s, x.opt));
        rw_tape_reset(x.b.t);
        ok(&x, rw_checkpoint_load(ck, NULL));
        refused(&x, rw_scaler_update(x.s), RW_ERR_ARGUMENT, "nothing was unscaled");
        for (int i = 0; i < 2; i++) {
            begin(&x);
            ok(&x, rw_scaler_step(x.s, x.opt));
            ok(&x, rw_scaler_update(x.s));
        }
        cr_assert_eq(first_of(&x, x.p), 0.5625, "%g", first_of(&x, x.p));
        rw_checkpoint_destroy(&ck);
        empty_folder(folder);
        scaled_close(&x);
    }
}

/* Wherever a step has failed, the program can repeat it, with its gradients or with new ones. */
Test(unscaled, ends_with_a_step_that_has_failed)
{
    for (int renewed = 0; renewed < 2; renewed++)
        for (uint64_t n = 1, failed = 1; failed; n++) {
            struct scaled x = scaled_open(RW_F32);
            begin(&x);
            rw_alloc_fail_from(n);
            failed = rw_scaler_step(x.s, x.opt);
            rw_alloc_fail_at(0);
            rw_error_clear(x.b.ctx);
            if (renewed) begin(&x);
            if (failed) ok(&x, rw_scaler_step(x.s, x.opt));
            cr_assert_eq(first_of(&x, x.p), 0.75, "allocation %d: %g", (int)n, first_of(&x, x.p));
            if (!failed) cr_assert_gt(n, 10);
            scaled_close(&x);
        }
}

/* A launch unscales its gradients itself. */
Test(unscaled, in_a_graph)
{
    struct scaled x = scaled_open(RW_F32);
    rw_graph *g = NULL;
    rw_optimizer *other = NULL;
    rw_tape *t = NULL;
    ok(&x, rw_tape_create(&t, x.b.ctx));
    ok(&x, rw_sgd_create(&other, x.b.ctx, &(rw_sgd_params){ .lr = 0.125 }));
    ok(&x, rw_graph_create(&g, t, square_of(t, x.p), &(rw_graph_params){ { rw_record_scaler(x.s) } }));
    begin(&x);
    ok(&x, rw_scaler_unscale(x.s));
    rw_zero_grad(x.b.ctx);
    for (int i = 0; i < 2; i++) {
        ok(&x, rw_graph_launch(g));
        cr_assert_eq(first_of(&x, rw_gradient(x.p)), 2);
        refused(&x, rw_scaler_unscale(x.s), RW_ERR_ARGUMENT, "unscaled already");
        cr_assert_eq(first_of(&x, rw_gradient(x.p)), 2);
    }
    ok(&x, rw_scaler_step(x.s, x.opt));
    cr_assert_eq(first_of(&x, x.p), 0.75);
    begin(&x);
    ok(&x, rw_scaler_step(x.s, other));
    cr_assert_eq(first_of(&x, x.p), 0.5625);
    rw_graph_destroy(&g);
    rw_tape_destroy(&t);
    rw_optimizer_destroy(&other);
    scaled_close(&x);
}

/* After a launch with fused updates, which consumes its gradients, nothing remains to which another scale could be
   added. */
Test(unscaled, after_an_update_inside_backward)
{
    struct scaled x = scaled_open(RW_F32);
    rw_graph *g = NULL;
    rw_tape *t = NULL;
    ok(&x, rw_tape_create(&t, x.b.ctx));
    const rw_graph_params params = { { rw_record_scaler(x.s), rw_record_update_inside(x.opt) } };
    ok(&x, rw_graph_create(&g, t, square_of(t, x.p), &params));
    ok(&x, rw_graph_launch(g));
    cr_assert_eq(first_of(&x, x.p), 0.75);
    backward(&x, x.p);
    cr_assert_eq(first_of(&x, rw_gradient(x.p)), 1024 * 1.5);
    ok(&x, rw_scaler_step(x.s, x.opt));
    cr_assert_eq(first_of(&x, x.p), 0.5625);
    rw_graph_destroy(&g);
    rw_tape_destroy(&t);
    scaled_close(&x);
}

/* ---- nothing of another scale is added ---- */

/* Nothing can be added to unscaled gradients, before or after an update used them. */
static void refuses_to_add(void)
{
    struct scaled x = scaled_open(RW_F32);
    begin(&x);
    ok(&x, rw_scaler_unscale(x.s));
    for (int used = 0; used < 2; used++) {
        rw_tape_reset(x.b.t);
        rw_tensor *const y = square_of(x.b.t, x.p);
        refused(&x, rw_scaler_backward(x.s, x.b.t, y), RW_ERR_MODIFIED, "the gradient of \"p\" was unscaled");
        refused(&x, rw_backward(x.b.t, y), RW_ERR_MODIFIED, "rw_zero_grad() first");
        refused(&x, rw_backward_from(x.b.t, &y, NULL, 1), RW_ERR_MODIFIED, "the gradient of \"p\" was unscaled");
        cr_assert_eq(first_of(&x, rw_gradient(x.p)), 2, "it is what it was");
        if (used) break;
        ok(&x, rw_scaler_step(x.s, x.opt));
        ok(&x, rw_scaler_update(x.s));
    }
    cr_assert_eq(first_of(&x, x.p), 0.75);
    rw_zero_grad(x.b.ctx);
    ok(&x, rw_backward(x.b.t, square_of(x.b.t, x.p)));
    cr_assert_eq(first_of(&x, rw_gradient(x.p)), 1.5);
    scaled_close(&x);
}

Test(unscaled, is_not_added_to)
{
    refuses_to_add();
}

Test(unscaled, is_not_added_to_eagerly)
{
    setenv("REWIND_EAGER", "1", 1);
    refuses_to_add();
}

Test(unscaled, is_not_added_to_under_the_verifier)
{
    setenv("REWIND_VERIFY", "1", 1);
    refuses_to_add();
}

/* A rehearsal writes to other memory. */
Test(unscaled, can_be_verified)
{
    struct scaled x = scaled_open(RW_F32);
    begin(&x);
    ok(&x, rw_scaler_unscale(x.s));
    rw_tape_reset(x.b.t);
    ckpt_report report;
    ok(&x, ckpt_verify(x.b.t, square_of(x.b.t, x.p), &report));
    cr_assert_eq(first_of(&x, rw_gradient(x.p)), 2);
    scaled_close(&x);
}

/* Some of the gradients are scaled, others are not. */
Test(unscaled, in_part)
{
    struct scaled x = scaled_open(RW_F32);
    begin(&x);
    ok(&x, rw_scaler_unscale(x.s));
    backward(&x, x.q);
    refused(&x, rw_scaler_step(x.s, x.opt), RW_ERR_MODIFIED, "\"p\" and \"q\" have different scales");
    refused(&x, rw_scaler_unscale(x.s), RW_ERR_MODIFIED, "\"p\" and \"q\" have different scales");
    cr_assert_eq(first_of(&x, x.p), 1);
    begin(&x);
    ok(&x, rw_scaler_step(x.s, x.opt));
    cr_assert_eq(first_of(&x, x.p), 0.75);
    scaled_close(&x);
}

Test(unscaled, by_another_scaler)
{
    struct scaled x = scaled_open(RW_F32);
    rw_scaler *other = NULL;
    ok(&x, rw_scaler_create(&other, x.b.ctx, &(rw_scaler_params){ .init_scale = 8, .name = "other" }));
    begin(&x);
    refused(&x, rw_scaler_unscale(other), RW_ERR_MODIFIED, "another scaler, \"scaler\"; expected \"other\"");
    refused(&x, rw_scaler_backward(other, x.b.t, square_of(x.b.t, x.p)), RW_ERR_MODIFIED, "another scaler");
    ok(&x, rw_scaler_unscale(x.s));
    refused(&x, rw_scaler_unscale(other), RW_ERR_ARGUMENT, "unscaled by another scaler");
    refused(&x, rw_scaler_step(other, x.opt), RW_ERR_ARGUMENT, "unscaled by another scaler");
    ok(&x, rw_scaler_step(x.s, x.opt));
    cr_assert_eq(first_of(&x, x.p), 0.75);
    rw_zero_grad(x.b.ctx);
    ok(&x, rw_scaler_backward(other, x.b.t, square_of(x.b.t, x.p)));
    ok(&x, rw_scaler_step(other, x.opt));
    cr_assert_eq(first_of(&x, x.p), 0.5625);
    rw_scaler_destroy(&other);
    scaled_close(&x);
}

/* The scale changes between backward and unscaling: by hand, by an update that comes late. */
Test(unscaled, by_another_scale)
{
    struct scaled x = scaled_open(RW_F32);
    const float numbers[4] = { 512, 0, 1, 0 };
    begin(&x);
    ok(&x, rw_write(rw_param_find(x.b.ctx, "scaler"), numbers, sizeof numbers));
    refused(&x, rw_scaler_step(x.s, x.opt), RW_ERR_MODIFIED, "the scale in \"scaler\" changed after backward");
    begin(&x);
    ok(&x, rw_scaler_unscale(x.s));
    begin(&x);
    ok(&x, rw_scaler_update(x.s));
    refused(&x, rw_scaler_step(x.s, x.opt), RW_ERR_MODIFIED, "the scale in \"scaler\" changed after backward");
    cr_assert_eq(first_of(&x, x.p), 1);
    begin(&x);
    ok(&x, rw_scaler_step(x.s, x.opt));
    cr_assert_eq(first_of(&x, x.p), 0.75);
    scaled_close(&x);
}

/* A write of the caller has the scale of the others: a sum over processes before or after unscaling. */
Test(unscaled, or_not_as_the_caller_writes_it)
{
    const float two[3] = { 2, 2, 2 }, large[3] = { 2048, 2048, 2048 };
    for (int after = 0; after < 2; after++)
        for (int address = 0; address < 2; address++) {
            struct scaled x = scaled_open(RW_F32);
            begin(&x);
            if (after) ok(&x, rw_scaler_unscale(x.s));
            for (int i = 0; i < 2; i++) {
                rw_tensor *const g = rw_gradient(i ? x.q : x.p);
                const float *const v = after ? two : large;
                void *const at = address ? rw_tensor_data(g) : NULL;
                if (!address) ok(&x, rw_write(g, v, sizeof two));
                else ok(&x, rw_read(x.b.t, rw_input(x.b.t, RW_F32, RW_SHAPE(3), v, 3 * sizeof *v), at, sizeof two));
            }
            ok(&x, rw_scaler_step(x.s, x.opt));
            ok(&x, rw_scaler_update(x.s));
            cr_assert_eq(first_of(&x, x.p), 0.75);
            cr_assert_eq(first_of(&x, x.q), 0.75, "its gradient was clear");
            scaled_close(&x);
        }
}

/* ---- nothing uses scaled gradients ---- */

Test(unscaled, before_an_update_or_clipping)
{
    static const float two[3] = { 2, 2, 2 };
    for (int part = 0; part < 3; part++) { /* all are scaled, some are, and p was written since */
        struct scaled x = scaled_open(RW_F32);
        double norm = -1;
        begin(&x);
        if (part == 1) {
            ok(&x, rw_scaler_unscale(x.s));
            backward(&x, x.q);
        }
        if (part == 2) ok(&x, rw_write(rw_gradient(x.p), two, sizeof two));
        const char *const text = "multiplied by the scale in \"scaler\"; call rw_scaler_unscale() first";
        refused(&x, rw_optimizer_step(x.opt), RW_ERR_MODIFIED, text);
        refused(&x, rw_clip_grad_norm(x.b.ctx, 1, NULL), RW_ERR_MODIFIED, text);
        refused(&x, rw_clip_grad_norm(x.b.ctx, INFINITY, &norm), RW_ERR_MODIFIED, text);
        const rw_clip_grad_norm_params finite = { .error_if_nonfinite = true };
        refused(&x, rw_clip_grad_norm_with(x.b.ctx, 1, &finite, &norm), RW_ERR_MODIFIED, text);
        cr_assert_eq(norm, -1);
        cr_assert_eq(first_of(&x, x.p), 1);
        begin(&x);
        ok(&x, rw_scaler_unscale(x.s));
        ok(&x, rw_clip_grad_norm(x.b.ctx, 2, &norm));
        cr_assert_float_eq(norm, 2 * sqrt(3), 1e-6);
        ok(&x, rw_optimizer_step(x.opt)); /* a program may leave rw_scaler_step() out */
        cr_assert_float_eq(first_of(&x, x.p), 1 - 0.125 * 2 / sqrt(3), 1e-6);
        rw_tape_reset(x.b.t);
        rw_zero_grad(x.b.ctx);
        ok(&x, rw_backward(x.b.t, square_of(x.b.t, x.p)));
        ok(&x, rw_optimizer_step(x.opt));
        scaled_close(&x);
    }
}

/* ---- no optimizer twice ---- */

Test(unscaled, once_for_each_optimizer)
{
    struct scaled x = scaled_open(RW_F32);
    rw_optimizer *other = NULL;
    ok(&x, rw_sgd_create(&other, x.b.ctx, &(rw_sgd_params){ .lr = 0.125 }));
    for (int i = 0; i < 2; i++) {
        begin(&x);
        const double p = first_of(&x, x.p);
        ok(&x, rw_scaler_step(x.s, x.opt));
        refused(&x, rw_scaler_step(x.s, x.opt), RW_ERR_ARGUMENT,
                "expected rw_scaler_update() since the optimizer was stepped");
        ok(&x, rw_scaler_step(x.s, other));
        cr_assert_eq(first_of(&x, x.p), p / 2, "each has subtracted a quarter: %g", first_of(&x, x.p));
        begin(&x);
        refused(&x, rw_scaler_step(x.s, x.opt), RW_ERR_ARGUMENT,
                "expected rw_scaler_update() since the optimizer was stepped");
        refused(&x, rw_scaler_unscale(x.s), RW_ERR_ARGUMENT, "stepped with other gradients");
        cr_assert_eq(first_of(&x, x.p), p / 2);
        rw_zero_grad(x.b.ctx);
        ok(&x, rw_scaler_update(x.s));
    }
    rw_optimizer_destroy(&other);
    scaled_close(&x);
}

/* The gradients of one step are used once more after the scale's update: they are unscaled once. */
Test(unscaled, also_after_the_update)
{
    struct scaled x = scaled_open(RW_F32);
    begin(&x);
    ok(&x, rw_scaler_step(x.s, x.opt));
    ok(&x, rw_scaler_update(x.s));
    ok(&x, rw_scaler_step(x.s, x.opt));
    cr_assert_eq(first_of(&x, x.p), 0.5);
    refused(&x, rw_scaler_update(x.s), RW_ERR_ARGUMENT, "nothing was unscaled");
    scaled_close(&x);
}

/* A parameter that was created after the unscaling was planned, where the first attempt at a new plan finds no
   memory. */
Test(unscaled, with_a_parameter_that_comes_later)
{
    for (uint64_t n = 1, failed = 1; failed; n++) {
        struct scaled x = scaled_open(RW_F32);
        begin(&x);
        ok(&x, rw_scaler_unscale(x.s));
        rw_tensor *const late = rw_param(x.b.ctx, "late", RW_F32, RW_SHAPE(3));
        rw_init_constant(late, 1);
        rw_zero_grad(x.b.ctx);
        backward(&x, late);
        rw_alloc_fail_from(n);
        failed = rw_scaler_unscale(x.s);
        rw_alloc_fail_at(0);
        rw_error_clear(x.b.ctx);
        if (failed) ok(&x, rw_scaler_unscale(x.s));
        cr_assert_eq(first_of(&x, rw_gradient(late)), 2, "allocation %d", (int)n);
        scaled_close(&x);
    }
}
