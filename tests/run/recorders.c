/*
 * Lists of recorders: which are refused and how, several optimizers, and custom recorders. That a list is bit-identical
 * to single calls is tested for each recorder: updates, scaler, fused_updates, delayed_scaling_bit_identity.
 */
#include "base/alloc.h"
#include "record/context.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, N = 6 };

/* w and v, of which the loss is a sum of squares times a factor, and everything that a list can have. */
struct world {
    struct fixture b;
    rw_tensor *w, *v;
    rw_optimizer *opt, *only[2]; /* of both, of w, of v */
    rw_scaler *s;
    rw_delayed_scaling *d;
};

static rw_optimizer *optimizer_without(rw_context *ctx, rw_tensor *left_out)
{
    rw_optimizer *opt = NULL;
    if (left_out) cr_assert_eq(rw_optimizer_exclude(left_out, true), RW_OK);
    cr_assert_eq(rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .lr = 0.05 }), RW_OK, "%s", rw_error_message(ctx));
    if (left_out) cr_assert_eq(rw_optimizer_exclude(left_out, false), RW_OK);
    return opt;
}

static struct world world_open(void)
{
    struct world x = { .b = fixture_open(3, 2) };
    x.w = rw_param(x.b.ctx, "w", RW_F32, RW_SHAPE(N, N));
    x.v = rw_param(x.b.ctx, "v", RW_BF16, RW_SHAPE(N));
    cr_assert_eq(rw_init_normal(x.w, 0, 1), RW_OK);
    cr_assert_eq(rw_init_normal(x.v, 0, 1), RW_OK);
    x.opt = optimizer_without(x.b.ctx, NULL);
    x.only[0] = optimizer_without(x.b.ctx, x.v);
    x.only[1] = optimizer_without(x.b.ctx, x.w);
    cr_assert_eq(rw_scaler_create(&x.s, x.b.ctx, &(rw_scaler_params){ .init_scale = 1024 }), RW_OK);
    cr_assert_eq(rw_delayed_scaling_create(&x.d, x.b.ctx, NULL), RW_OK, "%s", rw_error_message(x.b.ctx));
    return x;
}

static void world_close(struct world *x)
{
    rw_delayed_scaling_destroy(&x->d);
    rw_scaler_destroy(&x->s);
    for (int i = 0; i < 2; i++) rw_optimizer_destroy(&x->only[i]);
    rw_optimizer_destroy(&x->opt);
    fixture_close(&x->b);
}

static rw_tensor *loss_of(struct world *x, double factor)
{
    rw_tape *const t = x->b.t;
    rw_tensor *const v = rw_cast(t, x->v, RW_F32), *const y = rw_add(t, x->w, v);
    return rw_scale(t, rw_sum(t, rw_mul(t, y, y), RW_ALL_AXES, false), factor);
}

static rw_status create(struct world *x, rw_graph **g, const rw_recorder *list, size_t n)
{
    rw_graph_params params = { { rw_record_nothing() } };
    memcpy(params.recorders, list, n * sizeof *list);
    return rw_graph_create(g, x->b.t, loss_of(x, 1), &params);
}

/* ---- what is refused ---- */

#define LIST(...) (const rw_recorder[]){ __VA_ARGS__ }, \
                  sizeof((const rw_recorder[]){ __VA_ARGS__ }) / sizeof(rw_recorder)

/* The list is refused with this text, nothing has changed, and a valid list is accepted afterwards. */
static void refused(struct world *x, const char *text, rw_status status, const rw_recorder *list, size_t n)
{
    rw_graph *g = NULL;
    cr_expect_eq(create(x, &g, list, n), status, "%s", text);
    cr_expect(strstr(rw_error_message(x->b.ctx), text), "expected \"%s\", got \"%s\"", text,
              rw_error_message(x->b.ctx));
    cr_expect_null(g);
    rw_error_clear(x->b.ctx);
    rw_tape_reset(x->b.t);
    cr_expect_eq(create(x, &g, LIST(rw_record_clip(1), rw_record_update(x->opt))), RW_OK, "after %s", text);
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

struct outcome {
    unsigned char *bytes;
    size_t n;
};

static struct outcome outcome_of(struct world *x)
{
    struct outcome o;
    o.bytes = all_parameters(x->b.ctx, &o.n);
    world_close(x);
    return o;
}

static void same(struct outcome *a, struct outcome *b, const char *what)
{
    cr_assert_eq(a->n, b->n);
    cr_expect_eq(first_difference(a->bytes, b->bytes, a->n), -1, "%s: byte %ld", what,
                 first_difference(a->bytes, b->bytes, a->n));
    free(a->bytes);
    free(b->bytes);
}

static struct outcome launched(struct world *x, const rw_recorder *list, size_t n)
{
    rw_graph *g = NULL;
    cr_assert_eq(create(x, &g, list, n), RW_OK, "%s", rw_error_message(x->b.ctx));
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
        cr_assert_eq(create(&x, &g, LIST(rw_record_custom(&own, &o), recorded_scaler(scaled ? x.s : NULL),
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
    cr_assert_eq(create(&x, &g, LIST(rw_record_custom(&own, &o), rw_record_update(x.opt))), RW_OK);
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

/* ---- rw_backward_with() ---- */

enum { SCALED = 1, CLIPPED = 2, DELAYED = 4, TWO = 8, MICRO_BATCHES = 16 };

/* Whatever precedes the last micro-batch. */
static void first_batch(struct world *x, int how)
{
    rw_zero_grad(x->b.ctx);
    if (!(how & MICRO_BATCHES)) return;
    rw_tensor *const loss = loss_of(x, 0.75);
    cr_assert_eq(how & SCALED ? rw_scaler_backward(x->s, x->b.t, loss) : rw_backward(x->b.t, loss), RW_OK);
    rw_tape_reset(x->b.t);
}

static double norm_of(int step)
{
    return 0.5 / (step + 1);
}

static void step_by_calls(struct world *x, int how, int step)
{
    rw_tensor *const loss = loss_of(x, 1);
    cr_assert_eq(how & SCALED ? rw_scaler_backward(x->s, x->b.t, loss) : rw_backward(x->b.t, loss), RW_OK);
    if (how & SCALED) cr_assert_eq(rw_scaler_unscale(x->s), RW_OK);
    if (how & CLIPPED) cr_assert_eq(rw_clip_grad_norm(x->b.ctx, norm_of(step), NULL), RW_OK);
    for (int i = 0; i < (how & TWO ? 2 : 1); i++) {
        rw_optimizer *const opt = how & TWO ? x->only[i] : x->opt;
        cr_assert_eq(how & SCALED ? rw_scaler_step(x->s, opt) : rw_optimizer_step(opt), RW_OK);
    }
    if (how & DELAYED) cr_assert_eq(rw_delayed_scaling_update(x->d, how & SCALED ? x->s : NULL), RW_OK);
    if (how & SCALED) cr_assert_eq(rw_scaler_update(x->s), RW_OK);
}

static rw_backward_params params_of(const struct world *x, int how, int step)
{
    return (rw_backward_params){ { recorded_scaler(how & SCALED ? x->s : NULL),
                                   recorded_clip(how & CLIPPED ? norm_of(step) : 0),
                                   rw_record_update(how & TWO ? x->only[0] : x->opt),
                                   how & TWO ? rw_record_update(x->only[1]) : rw_record_nothing(),
                                   recorded_delayed(how & DELAYED ? x->d : NULL) } };
}

static struct outcome stepped(int how, bool by_list)
{
    struct world x = world_open();
    size_t plans = 0;
    for (int s = 0; s < STEPS + 2; s++) {
        first_batch(&x, how);
        const rw_backward_params params = params_of(&x, how, s);
        if (by_list)
            cr_assert_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &params), RW_OK, "%s", rw_error_message(x.b.ctx));
        else step_by_calls(&x, how, s);
        rw_tape_reset(x.b.t);
        rw_memory m;
        cr_assert_eq(rw_memory_stats(x.b.ctx, &m), RW_OK);
        if (s == 1) plans = m.plans;
        if (s > 1) cr_expect_eq(m.plans, plans, "planned again for another norm");
    }
    size_t n;
    unsigned char *const gradients = all_gradients(x.b.ctx, &n);
    struct outcome o = outcome_of(&x);
    unsigned char *const both = malloc(o.n + n);
    memcpy(both, o.bytes, o.n);
    memcpy(both + o.n, gradients, n);
    free(o.bytes);
    free(gradients);
    return (struct outcome){ both, o.n + n };
}

Test(recorders, a_backward_with_a_list_computes_what_calls_do)
{
    for (int how = 0; how < 32; how++) {
        char what[32];
        snprintf(what, sizeof what, "combination %d", how);
        struct outcome calls = stepped(how, false), list = stepped(how, true);
        same(&calls, &list, what);
    }
}

/* Another list in each step, of the same kinds. */
Test(recorders, a_backward_with_another_list_is_planned_again)
{
    struct outcome o[2];
    for (int by_list = 0; by_list < 2; by_list++) {
        struct world x = world_open();
        for (int s = 0; s < 4; s++) {
            rw_optimizer *const opt = x.only[s % 2];
            rw_zero_grad(x.b.ctx);
            const rw_backward_params params = { { rw_record_update(opt) } };
            if (by_list) cr_assert_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &params), RW_OK);
            else cr_assert_eq(rw_backward(x.b.t, loss_of(&x, 1)) || rw_optimizer_step(opt), RW_OK);
            rw_tape_reset(x.b.t);
        }
        o[by_list] = outcome_of(&x);
    }
    same(&o[0], &o[1], "lists in turn");
}

/* A loss that is read before goes on to its backward: forward runs once. */
Test(recorders, a_backward_with_a_list_continues_a_step)
{
    struct world x = world_open();
    rw_tensor *const y = rw_add(x.b.t, counted_square(x.b.t, x.w, 1), rw_cast(x.b.t, x.v, RW_F32));
    rw_tensor *const loss = rw_sum(x.b.t, y, RW_ALL_AXES, false);
    counted_clear();
    cr_expect(isfinite(rw_item(x.b.t, loss)));
    cr_assert_eq(rw_backward_with(x.b.t, loss, &(rw_backward_params){ { rw_record_update(x.opt) } }), RW_OK, "%s",
                 rw_error_message(x.b.ctx));
    cr_expect_eq(counted_runs[1], 1);
    world_close(&x);
}

/* The context's plan keeps no object alive, and ends with the first of its objects. */
Test(recorders, a_backward_with_a_list_holds_no_object)
{
    struct world x = world_open();
    rw_memory m;
    for (int round = 0; round < 4; round++) {
        const rw_backward_params params = params_of(&x, SCALED | CLIPPED | DELAYED | TWO, 0);
        rw_zero_grad(x.b.ctx);
        cr_assert_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &params), RW_OK, "%s", rw_error_message(x.b.ctx));
        rw_tape_reset(x.b.t);
        if (round == 0) rw_optimizer_destroy(&x.only[1]);
        if (round == 1) rw_scaler_destroy(&x.s);
        if (round == 2) rw_delayed_scaling_destroy(&x.d);
        cr_expect_eq(x.b.ctx->recorders == NULL, round < 3, "after %d", round);
        if (!x.only[1]) x.only[1] = optimizer_without(x.b.ctx, x.w);
        if (!x.s) cr_assert_eq(rw_scaler_create(&x.s, x.b.ctx, NULL), RW_OK);
        if (!x.d) cr_assert_eq(rw_delayed_scaling_create(&x.d, x.b.ctx, NULL), RW_OK);
    }
    rw_optimizer_destroy(&x.opt);
    for (int i = 0; i < 2; i++) rw_optimizer_destroy(&x.only[i]);
    cr_assert_eq(rw_memory_stats(x.b.ctx, &m), RW_OK);
    cr_expect_eq(m.optimizer, 0, "%zu bytes", m.optimizer);
    world_close(&x);
}

/* A step that is refused, or fails before its update, has changed nothing: a graph that counts on the host is valid. */
/* Steps of a list with a scaler and a clip, or of calls, that reach w or v: `reached` says which. */
static struct outcome steps_that_reach(const char *reached, bool by_list, bool clears)
{
    struct world x = world_open();
    const rw_backward_params list = { { rw_record_scaler(x.s), rw_record_clip(0.05), rw_record_update(x.opt) } };
    for (const char *at = reached; *at; at++) {
        rw_tape *const t = x.b.t;
        rw_tensor *const y = rw_cast(t, *at == 'v' ? x.v : x.w, RW_F32);
        rw_tensor *const loss = rw_scale(t, rw_sum_all(t, rw_mul(t, y, y)), 1);
        if (clears) rw_zero_grad(x.b.ctx);
        if (by_list) {
            const rw_status status = rw_backward_with(t, loss, &list);
            cr_assert_eq(status, clears || at == reached ? RW_OK : RW_ERR_MODIFIED, "%s", rw_error_message(x.b.ctx));
        } else {
            cr_assert_eq(rw_scaler_backward(x.s, t, loss), RW_OK);
            cr_assert_eq(rw_scaler_unscale(x.s), RW_OK);
            cr_assert_eq(rw_clip_grad_norm(x.b.ctx, 0.05, NULL), RW_OK);
            cr_assert_eq(rw_scaler_step(x.s, x.opt), RW_OK);
            cr_assert_eq(rw_scaler_update(x.s), RW_OK);
        }
        rw_error_clear(x.b.ctx);
        rw_tape_reset(t);
    }
    return outcome_of(&x);
}

/* Clipping read what an earlier step had left in the memory of a clear gradient. */
Test(recorders, a_list_finds_clear_gradients_absent)
{
    static const char *const reached[] = { "vw", "wvw", "vwvvw" };
    for (size_t i = 0; i < sizeof reached / sizeof *reached; i++) {
        struct outcome list = steps_that_reach(reached[i], true, true);
        struct outcome calls = steps_that_reach(reached[i], false, true);
        same(&list, &calls, reached[i]);
    }
}

/* Gradients of an earlier list were divided by the scale again. A second rw_scaler_unscale() is refused. */
Test(recorders, a_list_with_a_scaler_does_not_unscale_twice)
{
    struct outcome one = steps_that_reach("w", true, false), both = steps_that_reach("wv", true, false);
    same(&both, &one, "the second list is refused");
}

Test(recorders, a_backward_with_a_list_that_fails_changes_nothing)
{
    struct world x = world_open();
    struct own o = own_open(x.b.ctx);
    rw_tape *other = NULL;
    rw_graph *g = NULL;
    cr_assert_eq(rw_tape_create(&other, x.b.ctx), RW_OK);
    struct world of_graph = x;
    of_graph.b.t = other;
    cr_assert_eq(create(&of_graph, &g, LIST(rw_record_update(x.opt))), RW_OK);
    const rw_backward_params inside = { { rw_record_update_inside(x.opt) } }, scaled = params_of(&x, SCALED, 0),
                             custom = { { rw_record_custom(&own, &o), rw_record_update(x.opt) } },
                             plain = params_of(&x, 0, 0);
    cr_expect_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &inside), RW_ERR_UNSUPPORTED);
    cr_expect(strstr(rw_error_message(x.b.ctx), "rw_backward_with(recorders[0]): expected a recorder that runs after "
                     "backward, got rw_record_update_inside(), which needs a graph"), "%s", rw_error_message(x.b.ctx));
    rw_error_clear(x.b.ctx);
    cr_expect_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &custom), RW_ERR_UNSUPPORTED);
    rw_error_clear(x.b.ctx);
    rw_tensor *const constant = rw_ones(x.b.t, RW_F32, RW_SCALAR);
    cr_expect_eq(rw_backward_with(x.b.t, constant, &scaled), RW_ERR_ARGUMENT);
    rw_error_clear(x.b.ctx);
    rw_tape_reset(x.b.t);
    cr_expect_eq(rw_scaler_backward(x.s, x.b.t, loss_of(&x, 1)), RW_OK);
    rw_tape_reset(x.b.t);
    cr_expect_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &plain), RW_ERR_MODIFIED, "gradients are scaled");
    rw_error_clear(x.b.ctx);
    rw_zero_grad(x.b.ctx);
    rw_tape_reset(x.b.t);
    rw_tensor *const before = rw_buffer(x.b.ctx, "before", RW_F32, RW_SCALAR);
    cr_assert_eq(rw_init_constant(before, 1), RW_OK);
    rw_tensor *const loss = rw_mul(x.b.t, loss_of(&x, 1), before);
    cr_assert_eq(rw_init_constant(before, 2), RW_OK); /* after it was recorded: backward refuses it */
    cr_expect_eq(rw_backward_with(x.b.t, loss, &scaled), RW_ERR_MODIFIED);
    rw_error_clear(x.b.ctx);
    cr_expect_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
    rw_graph_destroy(&g);
    rw_tape_destroy(&other);
    world_close(&x);
}

/* A step without memory can be repeated after rw_zero_grad(): no parameter or buffer has changed. */
Test(recorders, a_backward_with_a_list_without_memory_can_be_repeated)
{
    struct world x = world_open();
    const rw_backward_params params = params_of(&x, SCALED | CLIPPED | DELAYED | TWO, 0);
    size_t n;
    unsigned char *const before = all_parameters(x.b.ctx, &n);
    rw_status status = RW_ERR_MEMORY;
    for (uint64_t i = 1; status; i++) {
        rw_tensor *const loss = loss_of(&x, 1);
        rw_alloc_fail_from(i);
        status = rw_backward_with(x.b.t, loss, &params);
        rw_alloc_fail_at(0);
        if (!status) break;
        cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(x.b.ctx));
        rw_error_clear(x.b.ctx);
        rw_zero_grad(x.b.ctx);
        rw_tape_reset(x.b.t);
        unsigned char *const after = all_parameters(x.b.ctx, &n);
        cr_assert_eq(first_difference(before, after, n), -1, "allocation %d", (int)i);
        free(after);
    }
    free(before);
    rw_tape_reset(x.b.t);
    struct outcome failed = outcome_of(&x);
    struct world y = world_open();
    step_by_calls(&y, SCALED | CLIPPED | DELAYED | TWO, 0);
    rw_tape_reset(y.b.t);
    struct outcome calls = outcome_of(&y);
    same(&calls, &failed, "after failures");
}

/* A step that a scaler has skipped in between counts: the list is planned again. */
Test(recorders, an_optimizer_that_counts_on_the_device_is_planned_again)
{
    struct outcome o[2];
    for (int by_list = 0; by_list < 2; by_list++) {
        struct world x = world_open();
        const rw_backward_params params = params_of(&x, 0, 0);
        for (int s = 0; s < 3; s++) {
            rw_zero_grad(x.b.ctx);
            if (s == 1) {
                cr_assert_eq(rw_scaler_backward(x.s, x.b.t, loss_of(&x, 1e38)), RW_OK);
                cr_assert_eq(rw_scaler_step(x.s, x.opt), RW_OK);
                cr_assert_eq(rw_scaler_update(x.s), RW_OK);
            } else if (by_list) {
                cr_assert_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &params), RW_OK, "%s", rw_error_message(x.b.ctx));
            } else {
                step_by_calls(&x, 0, s);
            }
            rw_tape_reset(x.b.t);
        }
        rw_scaler_state state;
        cr_assert_eq(rw_scaler_get(x.s, &state), RW_OK);
        cr_assert_eq(state.skipped, 1);
        o[by_list] = outcome_of(&x);
    }
    same(&o[0], &o[1], "a skipped step in between");
}
