/*
 * Which random words a launch draws (law 3): graphs of one tape, ops recorded after a launch, values read after one,
 * failed launches, checkpoints. tests/run/draws.c runs random programs and checks what kernels receive.
 */
#include "support/support.h"

#include <rewind/ops.h>

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 8 };

/* A context with two tapes and a parameter of ones: the gradient of a sum of products with random values equals these
   values. */
struct two {
    struct fixture b;
    rw_tape *other;
    rw_tensor *p;
};

static struct two two_open(void)
{
    struct two w = { .b = fixture_open(1, 1) };
    cr_assert_eq(rw_tape_create(&w.other, w.b.ctx), RW_OK);
    w.p = rw_param(w.b.ctx, "p", RW_F32, RW_SHAPE(N));
    rw_init_constant(w.p, 1);
    return w;
}

static void two_close(struct two *w)
{
    rw_tape_destroy(&w->other);
    fixture_close(&w->b);
}

static void ok(const struct two *w, rw_status status)
{
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(w->b.ctx));
}

static rw_tensor *numbers(rw_tape *t)
{
    return rw_rand(t, RW_F32, RW_SHAPE(N));
}

static rw_tensor *total(rw_tape *t, rw_tensor *x)
{
    return rw_sum(t, x, RW_ALL_AXES, false);
}

static rw_graph *graph_of(const struct two *w, rw_tensor *loss)
{
    rw_graph *g = NULL;
    ok(w, rw_graph_create(&g, w->b.t, loss, NULL));
    return g;
}

/* Launches, and returns the random values that were multiplied by p. */
static void launch(const struct two *w, rw_graph *g, float *ret)
{
    ok(w, audited_launch(g, w->b.t));
    ok(w, rw_read(NULL, rw_gradient(w->p), ret, N * sizeof *ret));
}

static void read_value(const struct two *w, rw_tape *t, rw_tensor *x, float *ret)
{
    ok(w, rw_read(t, x, ret, N * sizeof *ret));
}

static bool equal(const float *a, const float *b)
{
    return !memcmp(a, b, N * sizeof *a);
}

/* No two of so many draws are equal. */
static void all_differ(float (*draw)[N], int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            for (int block = 0; block < N; block += 4)
                for (int other = 0; other < N; other += 4)
                    cr_assert_neq(memcmp(draw[i] + block, draw[k] + other, 4 * sizeof(float)), 0,
                                  "draws %d and %d share a block", k, i);
}

/* The next draw of the generator, whose state is not changed. */
static void peek(const struct two *w, float *ret)
{
    const rw_generator_state now = rw_generator_get(w->b.ctx);
    read_value(w, w->other, numbers(w->other), ret);
    rw_tape_reset(w->other);
    rw_generator_set(w->b.ctx, now);
}

Test(launch_random_draws, an_op_recorded_after_launches_draws_from_the_generator)
{
    struct two w = two_open();
    float draw[8][N], expected[N], again[N];
    rw_graph *g = graph_of(&w, total(w.b.t, rw_mul(w.b.t, w.p, numbers(w.b.t))));
    for (int i = 0; i < 3; i++) launch(&w, g, draw[i]);
    peek(&w, expected);
    rw_tensor *const late = numbers(w.b.t);
    read_value(&w, w.b.t, late, draw[3]);
    cr_assert(equal(draw[3], expected), "the numbers of this state of the generator");
    for (int i = 4; i < 7; i++) {
        rw_tensor *const x = numbers(w.other);
        read_value(&w, w.other, x, draw[i]);
    }
    launch(&w, g, draw[7]);
    all_differ(draw, 8);
    read_value(&w, w.b.t, late, again);
    cr_assert(equal(again, draw[3]), "what was recorded after the graph is no part of its launches");
    rw_graph_destroy(&g);
    two_close(&w);
}

/* Ops recorded later do not change how far a launch advances the generator. */
Test(launch_random_draws, a_launch_moves_the_generator_by_its_own_numbers)
{
    struct two w = two_open();
    float drawn[N];
    rw_graph *g = graph_of(&w, total(w.b.t, rw_mul(w.b.t, w.p, numbers(w.b.t))));
    for (int i = 0; i < 2; i++) launch(&w, g, drawn);
    for (int i = 0; i < 5; i++) numbers(w.other);
    rw_tensor *const late = numbers(w.b.t);
    for (int i = 0; i < 4; i++) {
        const uint64_t before = rw_generator_get(w.b.ctx).offset;
        launch(&w, g, drawn);
        cr_assert_eq(rw_generator_get(w.b.ctx).offset - before, N / 4);
        read_value(&w, w.b.t, late, drawn);
    }
    rw_graph_destroy(&g);
    two_close(&w);
}

/* A value that depends on numbers of the launch and on numbers recorded after it: each has its own words. */
Test(launch_random_draws, a_value_of_a_launch_and_of_a_later_op)
{
    struct two w = two_open();
    float of_launch[N], of_late[N], both[N];
    rw_tensor *const early = numbers(w.b.t);
    rw_graph *g = graph_of(&w, total(w.b.t, rw_mul(w.b.t, w.p, early)));
    for (int i = 0; i < 3; i++) launch(&w, g, of_launch);
    rw_tensor *const late = numbers(w.b.t), *const sum = rw_add(w.b.t, rw_add_scalar(w.b.t, early, 0), late);
    for (int i = 0; i < 2; i++) {
        read_value(&w, w.b.t, sum, both);
        read_value(&w, w.b.t, late, of_late);
        for (int k = 0; k < N; k++)
            cr_assert_eq(both[k], of_launch[k] + of_late[k], "%d: %g", k, (double)both[k]);
        launch(&w, g, of_launch);
    }
    rw_graph_destroy(&g);
    two_close(&w);
}

/* rw_grad(), recorded after a launch, redraws the mask of that launch; so does a plain backward. */
Test(launch_random_draws, gradients_after_a_launch_have_its_mask)
{
    struct two w = two_open();
    float of_launch[N], got[N];
    rw_tensor *const y = rw_dropout(w.b.t, w.p, 0.5f), *grad;
    rw_tensor *const loss = total(w.b.t, y);
    rw_graph *g = graph_of(&w, loss);
    for (int i = 0; i < 3; i++) launch(&w, g, of_launch);
    ok(&w, rw_grad(w.b.t, loss, &w.p, 1, &grad));
    read_value(&w, w.b.t, grad, got);
    cr_assert(equal(got, of_launch), "rw_grad()");
    read_value(&w, w.b.t, y, got);
    cr_assert(equal(got, of_launch), "the value");
    cr_assert_eq(ckpt_verify(w.b.t, loss, NULL), RW_OK, "%s", rw_error_message(w.b.ctx));
    rw_nonfinite found;
    ok(&w, rw_find_nonfinite(w.b.t, loss, 0, &found));
    rw_zero_grad(w.b.ctx);
    ok(&w, rw_backward(w.b.t, loss));
    read_value(&w, NULL, rw_gradient(w.p), got);
    cr_assert(equal(got, of_launch), "rw_backward()");
    rw_graph_destroy(&g);
    two_close(&w);
}

Test(launch_random_draws, two_graphs_of_a_tape)
{
    struct two w = two_open();
    float draw[6][N], recorded[N];
    rw_tensor *const x = numbers(w.b.t), *const y = rw_mul(w.b.t, w.p, x);
    rw_tensor *const a = total(w.b.t, y), *const b = total(w.b.t, rw_scale(w.b.t, y, 1));
    rw_graph *const g[2] = { graph_of(&w, a), graph_of(&w, b) };
    static const int order[] = { 0, 0, 1, 1, 0, 1 };
    for (int i = 0; i < 6; i++) {
        launch(&w, g[order[i]], draw[i]);
        read_value(&w, w.b.t, x, recorded);
        cr_assert(equal(recorded, draw[i]), "values read after a launch are of that launch: %d", i);
    }
    all_differ(draw, 6);
    cr_assert_eq(rw_generator_get(w.b.ctx).offset, 6 * N / 4);
    for (int i = 0; i < 2; i++) rw_graph_destroy((rw_graph *[]){ g[i] });
    two_close(&w);
}

/* Two ops of one step that draw the same words intentionally: no launch can advance both. */
Test(launch_random_draws, a_generator_that_was_set_back)
{
    for (uint64_t back = 1; back <= 6; back++) {
        struct two w = two_open();
        numbers(w.other);
        rw_tensor *const a = rw_rand(w.b.t, RW_F32, RW_SHAPE(2, N)); /* four blocks */
        rw_generator_state at = rw_generator_get(w.b.ctx);
        at.offset -= back;
        rw_generator_set(w.b.ctx, at);
        rw_tensor *const b = numbers(w.b.t);
        rw_tensor *const loss = rw_add(w.b.t, total(w.b.t, a), total(w.b.t, rw_mul(w.b.t, w.p, b)));
        rw_graph *g = NULL;
        cr_assert_eq(rw_graph_create(&g, w.b.t, loss, NULL), RW_ERR_ARGUMENT, "by %d", (int)back);
        cr_assert_not_null(strstr(rw_error_message(w.b.ctx), "got one that was set"));
        cr_assert_null(g);
        two_close(&w);
    }
}

/* Offsets have 64 bits, and a step may take the last one. */
Test(launch_random_draws, offsets_pass_the_last)
{
    struct two w = two_open();
    float draw[5][N];
    rw_generator_set(w.b.ctx, (rw_generator_state){ .seed = 1, .offset = UINT64_MAX - 2 });
    rw_tensor *const a = numbers(w.b.t), *const b = numbers(w.b.t);
    rw_graph *g = graph_of(&w, total(w.b.t, rw_mul(w.b.t, rw_mul(w.b.t, w.p, a), b)));
    for (int i = 0; i < 5; i++) launch(&w, g, draw[i]);
    all_differ(draw, 5);
    cr_assert_eq(rw_generator_get(w.b.ctx).offset, 5 * 2 * N / 4 - 3);
    rw_graph_destroy(&g);
    two_close(&w);
}

/* If no other graph was launched, the other graph's first launch is the recorded step. */
Test(launch_random_draws, a_graph_whose_first_launch_comes_late)
{
    struct two w = two_open();
    float draw[3][N], recorded[N];
    const rw_generator_state begin = rw_generator_get(w.b.ctx);
    peek(&w, recorded);
    cr_assert_eq(rw_generator_get(w.b.ctx).offset, begin.offset);
    rw_tensor *const loss = total(w.b.t, rw_mul(w.b.t, w.p, numbers(w.b.t)));
    rw_graph *g = graph_of(&w, loss);
    read_value(&w, w.other, numbers(w.other), draw[0]);
    for (int i = 1; i < 3; i++) launch(&w, g, draw[i]);
    cr_assert(equal(draw[1], recorded), "the first launch is the recorded step");
    all_differ(draw, 3);
    rw_graph_destroy(&g);
    two_close(&w);
}

/* ---- an op that draws nothing ---- */

static rw_status copies(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->out[0].layout->numel * sizeof(float));
    return RW_OK;
}

static rw_status like_input(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static int64_t draws_none(const rw_op_call *call)
{
    return 0;
}

/* As attention without dropout. */
HOST_KERNEL_OF(copies)
static const rw_op_def may_draw = { .name = "may_draw", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_RANDOM,
                                    .check = like_input, .kernel = HOST_KERNEL(copies), .draws = draws_none };

static rw_status passes_through_it(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &may_draw, &dy, 1, NULL, 0, NULL));
}

static const rw_op_def plain = { .name = "plain", .n_inputs = 1, .n_outputs = 1, .check = like_input,
                                 .kernel = HOST_KERNEL(copies), .grad = passes_through_it };

/* Planning records the nodes of rules: this affects neither the generator nor a launch. */
Test(launch_random_draws, a_rule_records_an_op_that_draws_nothing)
{
    NEEDS_HOST_MEMORY(); /* on copies it cannot be captured */
    struct two w = two_open();
    rw_tensor *y = rw_mul(w.b.t, w.p, numbers(w.b.t));
    y = rw_apply(w.b.t, &plain, &y, 1, NULL, 0, NULL);
    rw_tensor *const loss = total(w.b.t, y);
    float draw[3][N];
    for (int i = 0; i < 5; i++) numbers(w.other);
    cr_assert_eq(ckpt_verify(w.b.t, loss, NULL), RW_OK, "%s", rw_error_message(w.b.ctx));
    rw_graph *g = graph_of(&w, loss);
    for (int i = 0; i < 3; i++) {
        const uint64_t before = rw_generator_get(w.b.ctx).offset;
        launch(&w, g, draw[i]);
        cr_assert_eq(rw_generator_get(w.b.ctx).offset - before, i ? N / 4 : 0);
    }
    all_differ(draw, 3);
    rw_graph_destroy(&g);
    two_close(&w);
}

/* ---- checkpoints ---- */

struct saved {
    struct two w;
    rw_checkpoint *ck;
    rw_graph *g;
};

static char folder[96];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%.60s/rewind-tickets-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : P_tmpdir);
    cr_assert_not_null(mkdtemp(folder));
}

static void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    cr_assert_eq(system(command), 0);
}

static struct saved saved_open(void)
{
    struct saved s = { .w = two_open() };
    ok(&s.w, rw_checkpoint_create(&s.ck, s.w.b.ctx, &(rw_checkpoint_params){ .folder = folder, .keep = 2 }));
    s.g = graph_of(&s.w, total(s.w.b.t, rw_mul(s.w.b.t, s.w.p, numbers(s.w.b.t))));
    return s;
}

static void saved_close(struct saved *s)
{
    rw_checkpoint_destroy(&s->ck);
    rw_graph_destroy(&s->g);
    two_close(&s->w);
}

/* A run of graphs that ends after `at` launches and is resumed, by a graph created before the file is loaded. */
Test(launch_random_draws, a_graph_goes_on_from_a_checkpoint, .init = make_folder, .fini = remove_folder)
{
    enum { STEPS = 5 };
    for (int at = 1; at < STEPS; at++) {
        float whole[STEPS][N], got[N];
        struct saved s = saved_open();
        for (int i = 0; i < STEPS; i++) {
            launch(&s.w, s.g, whole[i]);
            if (i + 1 == at) ok(&s.w, rw_checkpoint_save(s.ck, (uint64_t)at, NULL, 0));
        }
        ok(&s.w, rw_checkpoint_wait(s.ck));
        /* the same process loads the checkpoint, then another one starts from it */
        for (int other = 0; other < 2; other++) {
            rw_checkpoint_found found;
            if (other) {
                saved_close(&s);
                s = saved_open();
            }
            ok(&s.w, rw_checkpoint_load(s.ck, &found));
            cr_assert_eq(found.step, (uint64_t)at);
            for (int i = at; i < STEPS; i++) {
                launch(&s.w, s.g, got);
                cr_assert(equal(got, whole[i]), "step %d of a run that went on at %d", i, at);
            }
        }
        saved_close(&s);
    }
}

/* A folder without a file changes nothing: the first launch is the recorded step. */
Test(launch_random_draws, nothing_to_load, .init = make_folder, .fini = remove_folder)
{
    struct saved s = saved_open();
    float got[N], expected[N];
    rw_checkpoint_found found;
    ok(&s.w, rw_checkpoint_load(s.ck, &found));
    cr_assert(!found.found);
    launch(&s.w, s.g, got);
    cr_assert_eq(rw_generator_get(s.w.b.ctx).offset, N / 4, "nothing was drawn but when it was recorded");
    rw_generator_set(s.w.b.ctx, (rw_generator_state){ .seed = 1 });
    peek(&s.w, expected);
    cr_assert(equal(got, expected));
    saved_close(&s);
}

/* ---- failures ---- */

static int fail_in; /* the kernel's n-th execution from now on fails; 0: none */

static rw_status fails_now(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->out[0].layout->numel * sizeof(float));
    return fail_in && !--fail_in ? RW_ERR_DEVICE : RW_OK;
}

static rw_status passes(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static const rw_op_def may_fail = { .name = "may_fail", .n_inputs = 1, .n_outputs = 1, .check = like_input,
                                    .grad = passes, .kernel = { [RW_DEVICE_CPU] = fails_now } };

/* A launch that fails draws nothing: the next one draws what it would have drawn. */
Test(launch_random_draws, a_failed_launch_and_its_repetition)
{
    NEEDS_HOST_MEMORY();
    enum { STEPS = 4 };
    float whole[STEPS][N], got[N], value[N];
    for (int fail = -1; fail < STEPS; fail++) {
        struct two w = two_open();
        rw_tensor *const x = numbers(w.b.t);
        rw_tensor *y = rw_mul(w.b.t, w.p, x);
        y = rw_apply(w.b.t, &may_fail, &y, 1, NULL, 0, NULL);
        rw_graph *g = graph_of(&w, total(w.b.t, y));
        for (int i = 0; i < STEPS; i++) {
            if (i == fail) {
                const rw_generator_state before = rw_generator_get(w.b.ctx);
                fail_in = 1;
                cr_assert_eq(rw_graph_launch(g), RW_ERR_DEVICE);
                rw_error_clear(w.b.ctx);
                cr_assert_eq(rw_generator_get(w.b.ctx).offset, before.offset);
                read_value(&w, w.b.t, x, value);
                cr_assert(equal(value, whole[i ? i - 1 : 0]), "the tape's values are of the last launch that ran");
            }
            launch(&w, g, fail < 0 ? whole[i] : got);
            if (fail >= 0) cr_assert(equal(got, whole[i]), "launch %d, of which %d failed first", i, fail);
        }
        rw_graph_destroy(&g);
        two_close(&w);
    }
}

/* A rule may repeat the words of its op, and no others: later ones belong to other ops. */
static int64_t draws_four(const rw_op_call *call)
{
    return 4;
}

static rw_status few_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, N * sizeof(float));
    return RW_OK;
}

static rw_status draws_more(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_dropout(rw_grad_tape(g), rw_grad_upstream(g, 0), 0.5));
}

HOST_KERNEL_OF(few_kernel)
static const rw_op_def few = { .name = "few", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_RANDOM, .check = like_input,
                               .draws = draws_four, .grad = draws_more, .kernel = HOST_KERNEL(few_kernel) };

Test(launch_random_draws, of_a_rule_that_draws_more_than_its_op)
{
    struct two w = two_open();
    rw_tensor *const in[] = { w.p };
    rw_tensor *const y = rw_apply(w.b.t, &few, in, 1, NULL, 0, NULL);
    cr_assert_not_null(y);
    cr_expect_eq(rw_backward(w.b.t, total(w.b.t, y)), N > 4 ? RW_ERR_ARGUMENT : RW_OK);
    if (N > 4) cr_expect(strstr(rw_error_message(w.b.ctx), "few"), "%s", rw_error_message(w.b.ctx));
    two_close(&w);
}
