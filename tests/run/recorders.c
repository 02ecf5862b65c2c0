/*
 * Lists of recorders: which are refused and how, several optimizers, and custom recorders. That a list is bit-identical
 * to single calls is tested for each recorder: updates, scaler, fused_updates, delayed_scaling_bit_identity.
 */
#include "run/recorder_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is refused ---- */

/* The list is refused with this text, nothing has changed, and a valid list is accepted afterwards. */
static void refused(struct world *x, const char *text, rw_status status, const rw_recorder *list, size_t n)
{
    rw_graph *g = NULL;
    cr_expect_eq(create_graph(x, &g, list, n), status, "%s", text);
    cr_expect(strstr(rw_error_message(x->b.ctx), text), "expected \"%s\", got \"%s\"", text,
              rw_error_message(x->b.ctx));
    cr_expect_null(g);
    rw_error_clear(x->b.ctx);
    rw_tape_reset(x->b.t);
    cr_expect_eq(create_graph(x, &g, LIST(rw_record_clip(1), rw_record_update(x->opt))), RW_OK, "after %s", text);
    rw_graph_destroy(&g);
    rw_tape_reset(x->b.t);
}

static const rw_recorder_def nameless = { .name = NULL }, empty = { .name = "empty" };

Test(recorders, a_list_that_is_not_allowed_is_refused)
{
    struct world x = world_open(), alien = world_open();
    const rw_recorder clip = rw_record_clip(1), update = rw_record_update(x.opt), scaler = rw_record_scaler(x.s),
                      delayed = rw_record_delayed_scaling(x.d), inside = rw_record_update_inside(x.opt),
                      nothing = rw_record_nothing();
    const rw_status bad = RW_ERR_ARGUMENT;
    refused(&x, "rw_graph_create(recorders[1]): expected rw_record_clip() before rw_record_update(), got it after "
                "recorders[0]", bad, LIST(update, clip));
    refused(&x, "(recorders[2]): expected rw_record_scaler() before rw_record_clip(), got it after recorders[0]", bad,
            LIST(clip, nothing, scaler, update));
    refused(&x, "(recorders[1]): expected rw_record_update() before rw_record_delayed_scaling(), got it after", bad,
            LIST(delayed, update));
    refused(&x, "(recorders[1]): expected one rw_record_clip() in a list, got another at recorders[0]", bad,
            LIST(clip, rw_record_clip(2)));
    refused(&x, "(recorders[1]): expected one rw_record_scaler() in a list", bad, LIST(scaler, rw_record_scaler(x.s)));
    refused(&x, "(recorders[3]): expected an object that the list does not have yet, got that of recorders[1]", bad,
            LIST(clip, update, nothing, update));
    refused(&x, "(recorders[1]): expected an object that the list does not have yet, got that of recorders[0]", bad,
            LIST(delayed, delayed));
    refused(&x, "(recorders[1]): rw_record_update(opt): expected an optimizer without the parameters of recorders[0], "
                "got one that has \"w\", too", bad, LIST(update, rw_record_update(x.only[0])));
    refused(&x, "(recorders[1]): rw_record_update_inside(opt): expected updates that are all inside backward",
            RW_ERR_UNSUPPORTED, LIST(rw_record_update(x.only[0]), rw_record_update_inside(x.only[1])));
    refused(&x, "(recorders[0]): rw_record_clip(max_norm): expected a number above 0, got 0", bad,
            LIST(rw_record_clip(0)));
    refused(&x, "(max_norm): expected a number above 0, got nan", bad, LIST(rw_record_clip(fabs((double)NAN))));
    refused(&x, "(recorders[1]): rw_record_update(opt): expected an optimizer, got NULL", bad,
            LIST(clip, rw_record_update(NULL)));
    refused(&x, "rw_record_update_inside(opt): expected an optimizer, got NULL", bad,
            LIST(rw_record_update_inside(NULL)));
    refused(&x, "rw_record_scaler(s): expected a scaler, got NULL", bad, LIST(rw_record_scaler(NULL)));
    refused(&x, "rw_record_delayed_scaling(d): expected delayed scaling, got NULL", bad,
            LIST(rw_record_delayed_scaling(NULL)));
    refused(&x, "rw_record_update(opt): expected an optimizer of the tape's context", bad,
            LIST(rw_record_update(alien.opt)));
    refused(&x, "rw_record_scaler(s): expected a scaler of the tape's context", bad, LIST(rw_record_scaler(alien.s)));
    refused(&x, "rw_record_delayed_scaling(d): expected delayed scaling of the tape's context", bad,
            LIST(rw_record_delayed_scaling(alien.d)));
    refused(&x, "rw_record_custom(def): expected a definition, got NULL", bad, LIST(rw_record_custom(NULL, NULL)));
    refused(&x, "rw_record_custom(def->name): expected a name, got NULL", bad, LIST(rw_record_custom(&nameless, NULL)));
    refused(&x, "rw_record_custom(def): expected a gradient or a record function", bad,
            LIST(rw_record_custom(&empty, NULL)));
    refused(&x, "expected rw_record_custom() before rw_record_update_inside()", bad,
            LIST(inside, rw_record_custom(&empty, NULL)));
    world_close(&alien);
    world_close(&x);
}

/* ---- what is computed ---- */

static struct outcome launched(struct world *x, const rw_recorder *list, size_t n)
{
    rw_graph *g = NULL;
    cr_assert_eq(create_graph(x, &g, list, n), RW_OK, "%s", rw_error_message(x->b.ctx));
    for (int s = 0; s < STEPS; s++)
        cr_assert_eq(audited_launch(g, x->b.t), RW_OK, "%s", rw_error_message(x->b.ctx));
    rw_graph_destroy(&g);
    return outcome_of(x);
}

/* Gaps change nothing, wherever they are. */
Test(recorders, entries_of_zeros_record_nothing)
{
    struct world a = world_open(), b = world_open();
    const rw_recorder nothing = rw_record_nothing();
    struct outcome one = launched(&a, LIST(rw_record_clip(0.5), rw_record_update(a.opt)));
    struct outcome other = launched(&b, LIST(nothing, rw_record_clip(0.5), nothing, nothing, rw_record_update(b.opt)));
    same(&one, &other, "gaps");
}

/* Two optimizers that share no parameter compute what one does. */
static void two_optimizers(bool inside, bool scaled, double max_norm, const char *what)
{
    struct world a = world_open(), b = world_open();
    struct outcome one = launched(&a, LIST(recorded_scaler(scaled ? a.s : NULL), recorded_clip(max_norm),
                                           recorded_update(a.opt, inside)));
    struct outcome other = launched(&b, LIST(recorded_scaler(scaled ? b.s : NULL), recorded_clip(max_norm),
                                             recorded_update(b.only[0], inside), recorded_update(b.only[1], inside)));
    same(&one, &other, what);
}

Test(recorders, two_optimizers_compute_what_one_does)
{
    two_optimizers(false, false, 0, "after backward");
    two_optimizers(false, true, 0.5, "after backward, scaled and clipped");
    two_optimizers(true, false, 0, "inside backward");
    two_optimizers(true, true, 0.5, "inside backward, scaled and clipped");
}

/* ---- custom recorders ---- */

/* Multiplies gradients by a buffer, and stores the sum of their squares in another. */
struct own {
    rw_tensor *factor, *squares; /* buffers; NULL: none */
    rw_tensor *sum;              /* while recording */
    int begun;
};

static void begin(void *user)
{
    struct own *const x = user;
    x->sum = NULL;
    x->begun++;
}

static rw_tensor *times_factor(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    struct own *const x = user;
    rw_tensor *const y = rw_mul(t, gradient, rw_broadcast_to(t, x->factor, rw_tensor_shape(gradient)));
    rw_tensor *const one = rw_sum(t, rw_mul(t, y, y), RW_ALL_AXES, false);
    x->sum = x->sum ? rw_add(t, x->sum, one) : one;
    return y;
}

static rw_status store(void *user, rw_tape *t)
{
    struct own *const x = user;
    return x->squares ? rw_assign(t, x->squares, x->sum) : RW_OK;
}

static const rw_recorder_def own = { .name = "own", .begin = begin, .gradient = times_factor, .record = store };

static struct own own_open(rw_context *ctx)
{
    struct own x = { rw_buffer(ctx, "factor", RW_F32, RW_SCALAR), rw_buffer(ctx, "squares", RW_F32, RW_SCALAR) };
    cr_assert_eq(rw_init_constant(x.factor, 0.5), RW_OK);
    return x;
}

static float value_of(rw_tensor *x)
{
    float value = NAN;
    cr_assert_eq(rw_read(NULL, x, &value, sizeof value), RW_OK);
    return value;
}

/* By a graph with the recorder, or by calls with a loss times its factor, a power of two: the gradients are equal. */
static struct outcome with_own(bool graph, bool inside, bool scaled, double max_norm, float *ret_squares)
{
    struct world x = world_open();
    struct own o = own_open(x.b.ctx);
    rw_graph *g = NULL;
    if (graph)
        cr_assert_eq(create_graph(&x, &g, LIST(rw_record_custom(&own, &o), recorded_scaler(scaled ? x.s : NULL),
                                         recorded_clip(max_norm), recorded_update(x.opt, inside))), RW_OK, "%s",
                     rw_error_message(x.b.ctx));
    for (int s = 0; s < STEPS; s++) {
        const float factor = s == 1 ? 2 : 0.5f;
        cr_assert_eq(rw_write(o.factor, &factor, sizeof factor), RW_OK); /* launches read the present contents */
        if (graph) {
            cr_assert_eq(audited_launch(g, x.b.t), RW_OK, "%s", rw_error_message(x.b.ctx));
            continue;
        }
        rw_zero_grad(x.b.ctx);
        rw_tensor *const loss = loss_of(&x, (double)factor);
        cr_assert_eq(scaled ? rw_scaler_backward(x.s, x.b.t, loss) : rw_backward(x.b.t, loss), RW_OK);
        rw_tape_reset(x.b.t);
        if (scaled) cr_assert_eq(rw_scaler_unscale(x.s), RW_OK);
        if (max_norm > 0) cr_assert_eq(rw_clip_grad_norm(x.b.ctx, max_norm, NULL), RW_OK);
        cr_assert_eq(scaled ? rw_scaler_step(x.s, x.opt) : rw_optimizer_step(x.opt), RW_OK);
        if (scaled) cr_assert_eq(rw_scaler_update(x.s), RW_OK);
    }
    *ret_squares = value_of(o.squares);
    const float zero = 0; /* outcomes have buffers, too */
    cr_assert_eq(rw_write(o.squares, &zero, sizeof zero), RW_OK);
    cr_expect_eq(o.begun, !graph ? 0 : inside && (scaled || max_norm > 0) ? 2 : 1, "once per pass");
    rw_graph_destroy(&g);
    return outcome_of(&x);
}

Test(recorders, a_custom_recorder_changes_each_gradient)
{
    float want, got;
    for (int how = 0; how < 8; how++) {
        const bool inside = how & 1, scaled = how & 2;
        const double max_norm = how & 4 ? 0.5 : 0;
        struct outcome by_calls = with_own(false, inside, scaled, max_norm, &want);
        struct outcome by_graph = with_own(true, inside, scaled, max_norm, &got);
        cr_expect(got > 0 && isfinite(got), "%g: the recorder's commit", (double)got);
        cr_expect_eq(want, 0);
        same(&by_calls, &by_graph, "a factor of the gradients");
    }
}

/* What it assigns counts as a change: a value of another tape that has read the buffer is computed from it. */
Test(recorders, what_a_custom_recorder_assigns_counts_as_changed)
{
    struct world x = world_open();
    struct own o = own_open(x.b.ctx);
    rw_tape *t = NULL;
    rw_graph *g = NULL;
    cr_assert_eq(create_graph(&x, &g, LIST(rw_record_custom(&own, &o), rw_record_update(x.opt))), RW_OK);
    cr_assert_eq(rw_tape_create(&t, x.b.ctx), RW_OK);
    rw_tensor *const y = rw_scale(t, o.squares, 2);
    cr_assert_eq(rw_graph_launch(g), RW_OK);
    cr_expect_eq(rw_eval(t, &y, 1), RW_ERR_MODIFIED);
    rw_error_clear(x.b.ctx);
    rw_graph_destroy(&g);
    rw_tape_destroy(&t);
    world_close(&x);
}

/* ---- custom recorders that are refused ---- */

static rw_tensor *nothing_returned(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    return NULL;
}

static rw_tensor *another_shape(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    return rw_sum(t, gradient, RW_ALL_AXES, false);
}

static rw_tensor *another_type(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    return rw_cast(t, gradient, RW_F64);
}

static rw_tensor *draws(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    return rw_dropout(t, gradient, 0.5f);
}

static rw_tensor *assigns_early(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    rw_assign(t, ((struct own *)user)->squares, rw_sum(t, gradient, RW_ALL_AXES, false));
    return gradient;
}

static rw_tensor *leaves_a_region(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    ckpt_begin(t, "left open");
    return rw_scale(t, gradient, 2);
}

static rw_tensor *runs(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    rw_eval(t, &gradient, 1);
    return gradient;
}

static rw_status gives_up(void *user, rw_tape *t)
{
    return RW_ERR_UNSUPPORTED;
}

static rw_status returns_a_number(void *user, rw_tape *t)
{
    return (rw_status)12345;
}

static rw_status stateful_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}
HOST_KERNEL_OF(identity_kernel)
static rw_status draws_and_assigns(void *user, rw_tape *t)
{
    const struct own *const o = user;
    rw_tensor *const x = rw_dropout(t, o->factor, 0.5);
    if (x) rw_assign(t, o->factor, x);
    return rw_error_status(rw_tape_context(t));
}

static const rw_op_def stateful = { .name = "stateful", .n_inputs = 1, .n_outputs = 1,
                                    .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT, .check = stateful_check,
                                    .kernel = HOST_KERNEL(identity_kernel) };

static rw_status has_an_effect(void *user, rw_tape *t)
{
    rw_tensor *const x = ((struct own *)user)->factor;
    return rw_apply(t, &stateful, &x, 1, NULL, 0, NULL) ? RW_OK : rw_error_status(rw_tape_context(t));
}

Test(recorders, custom_functions_that_do_what_they_may_not_are_refused)
{
    static const struct {
        rw_recorder_def def;
        rw_status status;
        const char *text;
    } cases[] = {
        { { .name = "own", .gradient = nothing_returned }, RW_ERR_ARGUMENT, "rw_record_custom(own): gradient of " },
        { { .name = "own", .gradient = another_shape }, RW_ERR_SHAPE, "expected a result of the gradient's shape" },
        { { .name = "own", .gradient = another_type }, RW_ERR_SHAPE, "expected a result of the gradient's shape" },
        { { .name = "own", .gradient = draws }, RW_ERR_ARGUMENT, "dropout" },
        { { .name = "own", .gradient = assigns_early }, RW_ERR_UNSUPPORTED,
          "gradient() expected ops without an effect (RW_OP_STATEFUL); record() may assign, got assign" },
        { { .name = "own", .gradient = leaves_a_region }, RW_ERR_REGION, "rw_record_custom(own): expected regions" },
        { { .name = "own", .gradient = runs }, RW_ERR_ARGUMENT, "rw_eval: expected a call from outside a callback" },
        { { .name = "own", .record = gives_up }, RW_ERR_UNSUPPORTED, "record() failed: " },
        { { .name = "own", .record = returns_a_number }, RW_ERR_ARGUMENT, "expected an rw_status" },
        { { .name = "own", .record = draws_and_assigns }, RW_ERR_ARGUMENT, "the same in every launch" },
        { { .name = "own", .record = has_an_effect }, RW_ERR_UNSUPPORTED, "other than rw_assign(), got stateful" },
    };
    struct world x = world_open();
    struct own o = own_open(x.b.ctx);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(&x, cases[i].text, cases[i].status, LIST(rw_record_custom(&cases[i].def, &o), rw_record_update(x.opt)));
    world_close(&x);
}
