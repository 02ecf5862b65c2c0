/*
 * Split steps: a pipeline of two stages by hand, alternating one forward and one backward, compared with one tape that
 * has both stages; valid roots and seeds of backward; and invalid calls. Counters show that no forward node was
 * executed twice.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 24, BATCHES = 6, IN_FLIGHT = 2, FIRST_ID = 0, SECOND_ID = 20 };

struct world {
    struct fixture b;
    rw_tape *first[IN_FLIGHT], *second;
    rw_tensor *w[4];
};

static struct world open_world(const char *policy)
{
    struct world x = { .b = fixture_open(11, 2) };
    for (int i = 0; i < 4; i++) {
        x.w[i] = rw_param(x.b.ctx, (const char[][3]){ "w0", "w1", "w2", "w3" }[i], RW_F32, RW_SHAPE(N, N));
        rw_init_normal(x.w[i], 0, 0.3);
    }
    x.first[0] = x.b.t;
    cr_assert_eq(rw_tape_create(&x.first[1], x.b.ctx), RW_OK);
    cr_assert_eq(rw_tape_create(&x.second, x.b.ctx), RW_OK);
    rw_tape *const all[] = { x.first[0], x.first[1], x.second };
    for (int i = 0; i < 3; i++) cr_assert_eq(ckpt_set_policy(all[i], policy), RW_OK);
    counted_clear();
    return x;
}

static void close_world(struct world *x)
{
    rw_tape_destroy(&x->first[1]);
    rw_tape_destroy(&x->second);
    fixture_close(&x->b);
}

static void ok(struct world *x, rw_status status)
{
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
}

static rw_tensor *input(rw_tape *t, int which)
{
    float data[N * N];
    for (int i = 0; i < N * N; i++) data[i] = (float)((i * 37 + which * 11) % 23 - 11) / 16;
    return rw_input(t, RW_F32, RW_SHAPE(N, N), data, sizeof data);
}

/* Each stage of each micro-batch draws its own random numbers, whatever the order of recording. */
static void begin_numbers(struct world *x, int batch, int stage)
{
    rw_generator_set(x->b.ctx, (rw_generator_state){ .seed = 7, .offset = (uint64_t)(batch * 2 + stage) * 100000 });
}

/* Two outputs: the stage's result, and a value that bypasses it. */
static void first_stage(struct world *x, rw_tape *t, int batch, rw_tensor *y[2])
{
    begin_numbers(x, batch, 0);
    rw_tensor *const in = input(t, batch);
    ckpt_begin(t, "block");
    rw_tensor *const h = counted_square(t, rw_matmul(t, in, x->w[0]), FIRST_ID + batch);
    ckpt_end(t);
    y[1] = rw_tanh(t, h);
    ckpt_begin(t, "block");
    y[0] = rw_dropout(t, rw_matmul(t, counted_square(t, y[1], FIRST_ID + 10 + batch), x->w[1]), 0.25f);
    ckpt_end(t);
}

static rw_tensor *second_stage(struct world *x, rw_tape *t, int batch, rw_tensor *const y[2])
{
    begin_numbers(x, batch, 1);
    ckpt_begin(t, "block");
    rw_tensor *const h = counted_square(t, rw_dropout(t, rw_matmul(t, y[0], x->w[2]), 0.25f), SECOND_ID + batch);
    ckpt_end(t);
    return rw_mean(t, rw_mul(t, rw_add(t, h, y[1]), rw_tanh(t, rw_matmul(t, h, x->w[3]))), RW_ALL_AXES, false);
}

struct outcome {
    double loss[BATCHES];
    unsigned char *gradients;
    size_t bytes;
    int runs[COUNTERS];
};

static void finish(struct world *x, struct outcome *o)
{
    memcpy(o->runs, counted_runs, sizeof o->runs);
    o->gradients = all_gradients(x->b.ctx, &o->bytes);
    close_world(x);
}

static struct outcome on_one_tape(const char *policy)
{
    struct world x = open_world(policy);
    struct outcome o;
    for (int m = 0; m < BATCHES; m++) {
        rw_tensor *y[2];
        first_stage(&x, x.second, m, y);
        rw_tensor *const loss = second_stage(&x, x.second, m, y);
        ok(&x, rw_backward(x.second, loss));
        o.loss[m] = rw_item(x.second, loss);
        rw_tape_reset(x.second);
    }
    finish(&x, &o);
    return o;
}

/* Stage one of a micro-batch: its tape is suspended after it. */
static void run_first(struct world *x, int m, rw_tensor *y[2])
{
    rw_tape *const t = x->first[m % IN_FLIGHT];
    first_stage(x, t, m, y);
    ok(x, rw_forward(t, y, 2));
}

/* Stage two forward and backward, then stage one's backward from its result. */
static double run_rest(struct world *x, int m, rw_tensor *const y[2])
{
    rw_tape *const t = x->first[m % IN_FLIGHT];
    rw_tensor *in[2], *dy[2];
    for (int i = 0; i < 2; i++) {
        float bytes[N * N];
        ok(x, rw_read(t, y[i], bytes, sizeof bytes));
        in[i] = rw_require_grad(x->second, rw_input(x->second, RW_F32, RW_SHAPE(N, N), bytes, sizeof bytes));
    }
    rw_tensor *const loss = second_stage(x, x->second, m, in);
    const double value = m % 2 ? rw_item(x->second, loss) : 0; /* also a loss that is read before its backward */
    ok(x, rw_backward(x->second, loss));
    for (int i = 0; i < 2; i++) dy[i] = rw_gradient(in[i]);
    ok(x, rw_backward_from(t, y, dy, 2));
    const double again = rw_item(x->second, loss);
    if (m % 2) cr_assert_eq(memcmp(&value, &again, sizeof value), 0);
    rw_tape_reset(t);
    rw_tape_reset(x->second);
    return again;
}

/* F0 F1 | B0 F2 | B1 F3 | ...: one forward, one backward. */
static struct outcome on_two_stages(const char *policy)
{
    struct world x = open_world(policy);
    struct outcome o;
    rw_tensor *y[IN_FLIGHT][2];
    rw_memory m;
    for (int i = 0; i < IN_FLIGHT; i++) run_first(&x, i, y[i]);
    for (int i = 0; i < BATCHES; i++) {
        rw_memory_stats(x.b.ctx, &m);
        cr_assert_eq(m.runs, i + 1 < BATCHES ? 2 : 1);
        o.loss[i] = run_rest(&x, i, y[i % IN_FLIGHT]);
        if (i + IN_FLIGHT < BATCHES) run_first(&x, i + IN_FLIGHT, y[i % IN_FLIGHT]);
    }
    finish(&x, &o);
    return o;
}

static void expect_same(const struct outcome *a, const struct outcome *b, const char *what)
{
    cr_assert_eq(memcmp(a->loss, b->loss, sizeof a->loss), 0, "%s: losses", what);
    cr_assert_eq(a->bytes, b->bytes);
    cr_assert_eq(first_difference(a->gradients, b->gradients, a->bytes), -1, "%s: gradients", what);
}

static const char *const policies[] = { "none", "full", "selective:block", "uniform:1", "block:1", "ops:matmul" };

Test(pipeline_split_steps, one_forward_one_backward_is_one_tape)
{
    struct outcome kept = on_one_tape("none");
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        struct outcome whole = on_one_tape(policies[p]), staged = on_two_stages(policies[p]);
        expect_same(&kept, &whole, policies[p]);
        expect_same(&whole, &staged, policies[p]);
        for (int i = 0; i < COUNTERS; i++)
            cr_assert_leq(staged.runs[i], whole.runs[i], "%s: node %d ran %d times, not %d", policies[p], i,
                          staged.runs[i], whole.runs[i]);
        free(whole.gradients);
        free(staged.gradients);
    }
    free(kept.gradients);
}

Test(pipeline_split_steps, are_watched_like_any_step)
{
    struct outcome kept = on_one_tape("none");
    for (int i = 0; i < 3; i++) {
        setenv(i < 2 ? "REWIND_VERIFY" : "REWIND_EAGER", i == 1 ? "digest" : "1", 1);
        struct world x = open_world("full");
        unsetenv("REWIND_VERIFY");
        unsetenv("REWIND_EAGER");
        struct outcome o;
        for (int m = 0; m < BATCHES; m++) {
            rw_tensor *y[2];
            run_first(&x, m, y);
            o.loss[m] = run_rest(&x, m, y);
        }
        finish(&x, &o);
        expect_same(&kept, &o, i == 0 ? "REWIND_VERIFY=1" : i == 1 ? "REWIND_VERIFY=digest" : "REWIND_EAGER=1");
        free(o.gradients);
    }
    free(kept.gradients);
}

/* rw_backward() of a loss whose forward was already run continues that step, verified or not. */
Test(pipeline_split_steps, a_loss_whose_forward_half_was_run)
{
    float got[3][16];
    for (int i = 0; i < 3; i++) {
        setenv("REWIND_VERIFY", (const char *[]){ "0", "1", "digest" }[i], 1);
        struct fixture b = fixture_open(1, 1);
        unsetenv("REWIND_VERIFY");
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4, 4));
        cr_assert_eq(rw_init_normal(w, 0, 1), RW_OK);
        ckpt_set_policy(b.t, "full");
        ckpt_begin(b.t, "region");
        rw_tensor *const y = rw_gelu(b.t, rw_matmul(b.t, w, w));
        ckpt_end(b.t);
        rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
        cr_assert_eq(rw_forward(b.t, &loss, 1), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(NULL, rw_gradient(w), got[i], sizeof got[i]), RW_OK);
        fixture_close(&b);
    }
    cr_expect_arr_eq(got[1], got[0], sizeof got[0]);
    cr_expect_arr_eq(got[2], got[0], sizeof got[0]);
}

/* ---- seeds ---- */

static rw_tensor *ramp(rw_tape *t, float from)
{
    float data[N];
    for (int i = 0; i < N; i++) data[i] = from + (float)i;
    return rw_input(t, RW_F32, RW_SHAPE(N), data, sizeof data);
}

static void expect_gradient(struct world *x, rw_tensor *of, float (*expected)(int i), const char *what)
{
    float got[N];
    ok(x, rw_read(NULL, rw_gradient(of), got, sizeof got));
    for (int i = 0; i < N; i++) cr_assert_eq(got[i], expected(i), "%s: element %d: %g", what, i, (double)got[i]);
    rw_zero_grad(x->b.ctx);
}

static float threes(int i)
{
    return 3;
}

static float scaled_ramp(int i)
{
    return 3 * (float)(i + 2);
}

static float two_roots(int i)
{
    return 3 * (float)(i + 2) + 15 * (float)(i + 7);
}

static float root_twice(int i)
{
    return 3 * (float)(i + 2) + 3 * (float)(i + 7);
}

Test(pipeline_split_steps, backward_begins_with_what_it_is_given)
{
    struct world x = open_world("none");
    rw_tensor *const p = rw_param(x.b.ctx, "p", RW_F32, RW_SHAPE(N));
    rw_init_constant(p, 2);
    for (int stopped = 0; stopped < 2; stopped++) {
        rw_tape *const t = x.second;
        rw_tensor *const y = rw_scale(t, p, 3), *const z = rw_scale(t, y, 5);
        if (stopped) ok(&x, rw_forward(t, &y, 1));
        ok(&x, rw_backward_from(t, &y, NULL, 1));
        expect_gradient(&x, p, threes, "ones");
        if (stopped) ok(&x, rw_forward(t, &y, 1));
        ok(&x, rw_backward_from(t, &y, (rw_tensor *[]){ ramp(t, 2) }, 1));
        expect_gradient(&x, p, scaled_ramp, "an input");
        if (stopped) ok(&x, rw_forward(t, (rw_tensor *[]){ y, z }, 2));
        ok(&x, rw_backward_from(t, (rw_tensor *[]){ y, z }, (rw_tensor *[]){ ramp(t, 2), ramp(t, 7) }, 2));
        expect_gradient(&x, p, two_roots, "a value and what is made of it");
        ok(&x, rw_backward_from(t, (rw_tensor *[]){ y, y }, (rw_tensor *[]){ ramp(t, 2), ramp(t, 7) }, 2));
        expect_gradient(&x, p, root_twice, "one value twice");
        rw_tape_reset(t);
    }
    close_world(&x);
}

/* The gradient of a root that is marked: its seed, plus the gradient from the other root. */
Test(pipeline_split_steps, a_marked_root_has_its_gradient)
{
    struct world x = open_world("full");
    rw_tensor *const p = rw_param(x.b.ctx, "p", RW_F32, RW_SHAPE(N));
    rw_init_constant(p, 2);
    float got[N];
    rw_tensor *const y = rw_require_grad(x.second, rw_scale(x.second, p, 3)), *const z = rw_scale(x.second, y, 5);
    for (int order = 0; order < 2; order++) {
        rw_tensor *const roots[] = { order ? z : y, order ? y : z };
        rw_tensor *const seeds[] = { ramp(x.second, order ? 7 : 2), ramp(x.second, order ? 2 : 7) };
        ok(&x, rw_backward_from(x.second, roots, seeds, 2));
        ok(&x, rw_read(x.second, rw_gradient(y), got, sizeof got));
        for (int i = 0; i < N; i++) cr_assert_eq(got[i], (float)(i + 2) + 5 * (float)(i + 7));
        expect_gradient(&x, p, two_roots, "marked");
    }
    close_world(&x);
}

/* rw_forward() of a loss is equivalent to rw_item() before rw_backward(). */
Test(pipeline_split_steps, a_loss_goes_on_by_either_name)
{
    for (int how = 0; how < 3; how++) {
        struct world x = open_world("none");
        rw_tensor *y[2];
        first_stage(&x, x.second, 0, y);
        rw_tensor *loss = second_stage(&x, x.second, 0, y);
        if (how == 0) rw_item(x.second, loss);
        else ok(&x, rw_forward(x.second, &loss, 1));
        ok(&x, rw_forward(x.second, &loss, 1));
        if (how == 2) ok(&x, rw_backward_from(x.second, &loss, NULL, 1));
        else ok(&x, rw_backward(x.second, loss));
        if (how) cr_assert_eq(counted_runs[FIRST_ID], 1, "%d", how);
        struct world plain = open_world("none");
        first_stage(&plain, plain.second, 0, y);
        ok(&plain, rw_backward(plain.second, second_stage(&plain, plain.second, 0, y)));
        size_t n;
        unsigned char *const a = all_gradients(x.b.ctx, &n), *const b = all_gradients(plain.b.ctx, &n);
        cr_assert_eq(first_difference(a, b, n), -1, "%d", how);
        free(a), free(b);
        close_world(&x);
        close_world(&plain);
    }
}

/* ---- what is refused ---- */

static void refuse(struct world *x, rw_status got, rw_status expected, const char *part)
{
    cr_assert_eq(got, expected, "%s: %s", part, rw_error_message(x->b.ctx));
    cr_assert(strstr(rw_error_message(x->b.ctx), part), "%s", rw_error_message(x->b.ctx));
    rw_error_clear(x->b.ctx);
}

Test(pipeline_split_steps, refuse_what_they_cannot_begin_with)
{
    struct world x = open_world("none");
    rw_tape *const t = x.second;
    rw_tensor *y[2], *other[2];
    first_stage(&x, t, 0, y);
    first_stage(&x, x.first[0], 0, other);
    rw_tensor *const plain = input(t, 3), *const small = ramp(t, 0), *const half = rw_cast(t, plain, RW_BF16);
    cr_assert_eq(rw_forward(NULL, y, 1), RW_ERR_ARGUMENT);
    refuse(&x, rw_forward(t, y, 0), RW_ERR_ARGUMENT, "expected 1 tensor or more");
    refuse(&x, rw_forward(t, NULL, 1), RW_ERR_ARGUMENT, "y is NULL");
    refuse(&x, rw_forward(t, (rw_tensor *[]){ y[0], NULL }, 2), RW_ERR_ARGUMENT, "y[1] is NULL");
    refuse(&x, rw_forward(t, other, 1), RW_ERR_ARGUMENT, "a value of another tape");
    refuse(&x, rw_forward(t, &x.w[0], 1), RW_ERR_ARGUMENT, "got a parameter or buffer");
    refuse(&x, rw_forward(t, (rw_tensor *[]){ plain }, 1), RW_ERR_ARGUMENT, "depends on no parameter");
    refuse(&x, rw_backward_from(t, y, (rw_tensor *[]){ small }, 1), RW_ERR_SHAPE, "(dy[0]): expected f32[");
    refuse(&x, rw_backward_from(t, y, (rw_tensor *[]){ half }, 1), RW_ERR_ARGUMENT,
            "expected an input of the tape or rw_gradient()");
    refuse(&x, rw_backward_from(t, y, (rw_tensor *[]){ x.w[0] }, 1), RW_ERR_ARGUMENT,
            "expected an input of the tape or rw_gradient()");
    refuse(&x, rw_backward_from(t, y, (rw_tensor *[]){ rw_gradient(x.w[0]) }, 1), RW_ERR_ARGUMENT,
            "expected an input of the tape or rw_gradient()");
    refuse(&x, rw_backward_from(t, y, (rw_tensor *[]){ input(x.first[0], 1) }, 1), RW_ERR_ARGUMENT,
            "expected an input of the tape or rw_gradient()");
    ckpt_begin(t, "open");
    refuse(&x, rw_forward(t, y, 1), RW_ERR_REGION, "expected no open region");
    ckpt_end(t);
    ok(&x, rw_forward(t, y, 1));
    ok(&x, rw_backward_from(t, y, NULL, 1));
    close_world(&x);
}

/* F1 F2 B1 B2 of tapes that assign one buffer: the second forward read the contents that the first backward then
   replaced. */
Test(pipeline_split_steps, two_that_assign_one_buffer_are_refused)
{
    struct world x = open_world("none");
    rw_tensor *const mean = rw_buffer(x.b.ctx, "mean", RW_F32, RW_SHAPE(N, N));
    rw_tensor *y[2][2];
    for (int i = 0; i < 2; i++) {
        first_stage(&x, x.first[i], i, y[i]);
        ok(&x, rw_assign(x.first[i], mean, rw_add(x.first[i], rw_scale(x.first[i], mean, 0.5), y[i][1])));
        ok(&x, rw_forward(x.first[i], y[i], 1));
    }
    ok(&x, rw_backward_from(x.first[0], y[0], NULL, 1));
    refuse(&x, rw_backward_from(x.first[1], y[1], NULL, 1), RW_ERR_MODIFIED, "\"mean\" changed");
    close_world(&x);
}
