/*
 * Runs: what may happen between reading a loss and its backward, how many runs may be suspended, and what each of them
 * costs. Values are compared with those of a program that reads nothing in between; counters show which nodes were
 * executed.
 */
#include "support/support.h"

#include "base/alloc.h"
#include "run/run_advance.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { N = 32, ID = 3 };

struct world {
    struct fixture b;
    rw_tensor *w, *v; /* parameters */
    rw_tensor *count; /* a buffer */
};

static struct world open_world(void)
{
    struct world x = { .b = fixture_open(11, 2) };
    x.w = rw_param(x.b.ctx, "w", RW_F32, RW_SHAPE(N, N));
    x.v = rw_param(x.b.ctx, "v", RW_F32, RW_SHAPE(N, N));
    x.count = rw_buffer(x.b.ctx, "count", RW_F32, RW_SHAPE(N));
    rw_init_normal(x.w, 0, 0.3);
    rw_init_normal(x.v, 0, 0.3);
    rw_init_constant(x.count, 1);
    counted_clear();
    return x;
}

static rw_tensor *input(rw_tape *t, int which)
{
    float data[N * N];
    for (int i = 0; i < N * N; i++) data[i] = (float)((i * 37 + which * 11) % 23 - 11) / 16;
    return rw_input(t, RW_F32, RW_SHAPE(N, N), data, sizeof data);
}

/* Two regions around counted nodes `id` and `id + 1`; dropout between them. */
static rw_tensor *middle_of(rw_tape *t, rw_tensor *in, rw_tensor *w, int id)
{
    ckpt_begin(t, "block");
    rw_tensor *x = counted_square(t, rw_matmul(t, in, w), id);
    ckpt_end(t);
    return rw_dropout(t, x, 0.25f);
}

static rw_tensor *loss_of(rw_tape *t, rw_tensor *middle, rw_tensor *w, int id)
{
    ckpt_begin(t, "block");
    rw_tensor *const x = counted_square(t, rw_tanh(t, rw_matmul(t, middle, w)), id + 1);
    ckpt_end(t);
    return rw_mean(t, x, RW_ALL_AXES, false);
}

static rw_tensor *whole_loss(const struct world *x, rw_tape *t, int which, int id)
{
    return loss_of(t, middle_of(t, input(t, which), x->w, id), x->v, id);
}

static void expect_gradients(struct world *a, struct world *b, const char *what)
{
    size_t n, m;
    unsigned char *const p = all_gradients(a->b.ctx, &n), *const q = all_gradients(b->b.ctx, &m);
    cr_assert_eq(n, m);
    cr_assert_eq(first_difference(p, q, n), -1, "%s", what);
    free(p), free(q);
}

static void ok(struct world *x, rw_status status)
{
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
}

static const char *const policies[] = { "none", "full", "uniform:2" };

/* The caller's actions between the two. The reference does the same before it reads anything. */
enum between { METRIC, NODES, RESET_OTHER, THREADS, BETWEENS };

static void do_between(struct world *x, enum between what, rw_tape *other, rw_tensor *middle)
{
    float out[N * N];
    switch (what) {
    case METRIC: ok(x, rw_read(x->b.t, rw_scale(x->b.t, middle, 2), out, sizeof out)); break;
    case NODES: cr_assert_not_null(rw_exp(x->b.t, middle)); break;
    case RESET_OTHER:
        rw_item(other, whole_loss(x, other, 9, 20));
        rw_tape_reset(other);
        break;
    default: ok(x, rw_context_set_threads(x->b.ctx, 1));
    }
}

Test(suspended_runs, what_comes_between_forward_and_backward_makes_nothing_run_again)
{
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        struct world plain = open_world();
        ok(&plain, rw_backward(plain.b.t, whole_loss(&plain, plain.b.t, 1, ID)));
        for (enum between what = 0; what < BETWEENS; what++) {
            struct world x = open_world();
            rw_tape *other = NULL;
            rw_tape_create(&other, x.b.ctx);
            ok(&x, ckpt_set_policy(x.b.t, policies[p]));
            rw_tensor *const middle = middle_of(x.b.t, input(x.b.t, 1), x.w, ID);
            rw_tensor *const loss = loss_of(x.b.t, middle, x.v, ID);
            rw_item(x.b.t, loss);
            do_between(&x, what, other, middle);
            const int first = counted_runs[ID], second = counted_runs[ID + 1];
            ok(&x, rw_backward(x.b.t, loss));
            const int replays = p ? 1 : 0;
            cr_assert_leq(counted_runs[ID], first + replays, "%s, %d: forward ran again", policies[p], (int)what);
            cr_assert_leq(counted_runs[ID + 1], second + replays, "%s, %d", policies[p], (int)what);
            expect_gradients(&plain, &x, policies[p]);
            rw_tape_destroy(&other);
            fixture_close(&x.b);
        }
        fixture_close(&plain.b);
    }
}

Test(suspended_runs, a_gradient_that_is_requested_in_between_is_returned)
{
    struct world x = open_world(), y = open_world();
    float got[N * N], expected[N * N];
    rw_tensor *middle = middle_of(y.b.t, input(y.b.t, 1), y.w, ID);
    rw_require_grad(y.b.t, middle);
    ok(&y, rw_backward(y.b.t, loss_of(y.b.t, middle, y.v, ID)));
    ok(&y, rw_read(y.b.t, rw_gradient(middle), expected, sizeof expected));

    middle = middle_of(x.b.t, input(x.b.t, 1), x.w, ID);
    rw_tensor *const loss = loss_of(x.b.t, middle, x.v, ID);
    rw_item(x.b.t, loss);
    rw_require_grad(x.b.t, middle);
    ok(&x, rw_backward(x.b.t, loss));
    cr_assert_not_null(rw_gradient(middle));
    ok(&x, rw_read(x.b.t, rw_gradient(middle), got, sizeof got));
    cr_assert_eq(memcmp(got, expected, sizeof got), 0);
    expect_gradients(&x, &y, "requested in between");
    fixture_close(&x.b);
    fixture_close(&y.b);
}

Test(suspended_runs, an_assignment_that_is_recorded_in_between_happens)
{
    struct world x = open_world();
    float count[N];
    rw_tensor *const loss = whole_loss(&x, x.b.t, 1, ID);
    rw_item(x.b.t, loss);
    ok(&x, rw_assign(x.b.t, x.count, rw_scale(x.b.t, x.count, 3)));
    ok(&x, rw_backward(x.b.t, loss));
    ok(&x, rw_read(NULL, x.count, count, sizeof count));
    for (int i = 0; i < N; i++) cr_assert_eq(count[i], 3, "%g", (double)count[i]);
    fixture_close(&x.b);
}

/* Backward reads the last product's weights, for the gradient of its other operand; parameters that only forward read
   may change. */
Test(suspended_runs, changes_in_between_matter_where_an_op_still_reads_them)
{
    float zeros[N * N] = { 0 };
    struct world plain = open_world();
    ok(&plain, rw_backward(plain.b.t, whole_loss(&plain, plain.b.t, 1, ID)));
    for (int late = 0; late < 2; late++) {
        struct world x = open_world();
        rw_tensor *const loss = whole_loss(&x, x.b.t, 1, ID);
        rw_item(x.b.t, loss);
        ok(&x, rw_write(late ? x.v : x.w, zeros, sizeof zeros));
        const rw_status status = rw_backward(x.b.t, loss);
        cr_assert_eq(status, late ? RW_ERR_MODIFIED : RW_OK, "%d: %s", late, rw_error_message(x.b.ctx));
        rw_error_clear(x.b.ctx);
        if (!late) expect_gradients(&plain, &x, "the first weights are read by forward alone");
        fixture_close(&x.b);
    }
    fixture_close(&plain.b);
}

static void write_input(rw_tensor *x)
{
    float data[N * N] = { 1 };
    cr_assert_eq(rw_input_write(x, data, sizeof data), RW_OK);
}

Test(suspended_runs, an_input_after_its_last_read_may_be_written)
{
    struct world plain = open_world();
    rw_tensor *in = input(plain.b.t, 1);
    ok(&plain, rw_backward(plain.b.t, rw_mean(plain.b.t, rw_add(plain.b.t, in, plain.w), RW_ALL_AXES, false)));
    for (int late = 0; late < 2; late++) {
        struct world x = open_world();
        in = input(x.b.t, 1);
        rw_tensor *const y = late ? rw_mul(x.b.t, in, x.w) : rw_add(x.b.t, in, x.w);
        rw_tensor *const loss = rw_mean(x.b.t, y, RW_ALL_AXES, false);
        rw_item(x.b.t, loss);
        write_input(in);
        cr_assert_eq(rw_backward(x.b.t, loss), late ? RW_ERR_MODIFIED : RW_OK, "%s", rw_error_message(x.b.ctx));
        rw_error_clear(x.b.ctx);
        if (!late) expect_gradients(&plain, &x, "an input that was added");
        fixture_close(&x.b);
    }
    fixture_close(&plain.b);
}

/* F1 F2 B1 B2 over separate parameters: two runs are suspended at once. */
Test(suspended_runs, two_tapes_stop_and_go_on)
{
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        struct world plain = open_world(), x = open_world();
        rw_tape *other[2] = { NULL };
        rw_tape_create(&other[0], plain.b.ctx);
        rw_tape_create(&other[1], x.b.ctx);
        ok(&plain, rw_backward(plain.b.t, rw_mean(plain.b.t, middle_of(plain.b.t, input(plain.b.t, 1), plain.w, 0),
                                                  RW_ALL_AXES, false)));
        ok(&plain, rw_backward(other[0], rw_mean(other[0], middle_of(other[0], input(other[0], 2), plain.v, 0),
                                                 RW_ALL_AXES, false)));
        ok(&x, ckpt_set_policy(x.b.t, policies[p]));
        ok(&x, ckpt_set_policy(other[1], policies[p]));
        rw_tensor *const a = rw_mean(x.b.t, middle_of(x.b.t, input(x.b.t, 1), x.w, 10), RW_ALL_AXES, false);
        rw_tensor *const b = rw_mean(other[1], middle_of(other[1], input(other[1], 2), x.v, 12), RW_ALL_AXES, false);
        counted_clear();
        rw_item(x.b.t, a);
        rw_item(other[1], b);
        rw_memory m;
        ok(&x, rw_memory_stats(x.b.ctx, &m));
        cr_assert_eq(m.runs, 2);
        cr_assert_geq(m.arenas, 2 * m.predicted_peak);
        ok(&x, rw_backward(x.b.t, a));
        ok(&x, rw_backward(other[1], b));
        cr_assert_leq(counted_runs[10], p ? 2 : 1, "%s", policies[p]);
        cr_assert_leq(counted_runs[12], p ? 2 : 1, "%s", policies[p]);
        expect_gradients(&plain, &x, policies[p]);
        rw_tape_destroy(&other[0]);
        rw_tape_destroy(&other[1]);
        fixture_close(&plain.b);
        fixture_close(&x.b);
    }
}

/* With too many suspended steps, the first is given up: it is recomputed, to the same bytes. */
Test(suspended_runs, more_than_may_stop_are_computed_again)
{
    enum { TAPES = RW_RUNS_STOPPED_MAX + 3 };
    struct world plain = open_world(), x = open_world();
    rw_tape *t[TAPES];
    rw_tensor *loss[TAPES];
    ok(&plain, rw_backward(plain.b.t, whole_loss(&plain, plain.b.t, 1, ID)));
    for (int i = 0; i < TAPES; i++) {
        rw_tape_create(&t[i], x.b.ctx);
        rw_generator_set(x.b.ctx, rw_generator_get(plain.b.ctx));
        loss[i] = whole_loss(&x, t[i], 1, ID);
    }
    counted_clear();
    for (int i = 0; i < TAPES; i++) rw_item(t[i], loss[i]);
    rw_memory m;
    rw_memory_stats(x.b.ctx, &m);
    cr_assert_eq(m.runs, RW_RUNS_STOPPED_MAX);
    cr_assert_eq(counted_runs[ID], TAPES);
    ok(&x, rw_backward(t[TAPES - 1], loss[TAPES - 1]));
    cr_assert_eq(counted_runs[ID], TAPES, "the last one goes on");
    rw_zero_grad(x.b.ctx);
    ok(&x, rw_backward(t[0], loss[0]));
    cr_assert_eq(counted_runs[ID], TAPES + 1, "the first one was given up");
    for (int i = 0; i < TAPES; i++) rw_tape_destroy(&t[i]);
    fixture_close(&x.b);
    fixture_close(&plain.b);
}

/* The same by bytes: the most recently suspended ones fit, and their memory is counted. */
Test(suspended_runs, hold_no_more_bytes_than_suspended_runs_may)
{
    enum { TAPES = 8, FIT = 3 };
    struct world x = open_world();
    rw_tape *t[TAPES];
    rw_tensor *loss[TAPES];
    rw_memory m;
    for (int i = 0; i < TAPES; i++) {
        rw_tape_create(&t[i], x.b.ctx);
        rw_generator_set(x.b.ctx, (rw_generator_state){ 5, 100 });
        loss[i] = whole_loss(&x, t[i], 1, ID);
    }
    counted_clear();
    for (int i = 0; i < TAPES; i++) {
        rw_item(t[i], loss[i]);
        rw_memory_stats(x.b.ctx, &m);
        if (i == 0) rw_pool_of(x.b.ctx)->waiting_most = FIT * m.waiting;
        cr_assert(m.waiting > 0 && m.waiting <= m.arenas);
        cr_assert_eq(m.runs, (size_t)(i < FIT ? i + 1 : FIT));
    }
    cr_assert_leq(m.waiting, rw_pool_of(x.b.ctx)->waiting_most);
    ok(&x, rw_backward(t[TAPES - FIT], loss[TAPES - FIT]));
    cr_assert_eq(counted_runs[ID], TAPES, "it still waited");
    size_t bytes;
    unsigned char *const waited = all_gradients(x.b.ctx, &bytes);
    rw_zero_grad(x.b.ctx);
    ok(&x, rw_backward(t[0], loss[0]));
    cr_assert_eq(counted_runs[ID], TAPES + 1, "the first one was given up");
    unsigned char *const again = all_gradients(x.b.ctx, &bytes);
    cr_assert_eq(first_difference(waited, again, bytes), -1, "computed again, to other bytes");
    free(waited);
    free(again);
    rw_pool_of(x.b.ctx)->waiting_most = 1;
    rw_tape_reset(t[1]);
    rw_tensor *const last = whole_loss(&x, t[1], 1, ID);
    ok(&x, rw_forward(t[1], (rw_tensor *[]){ last }, 1));
    rw_memory_stats(x.b.ctx, &m);
    cr_assert_eq(m.runs, 1, "none but the last");
    for (int i = 0; i < TAPES; i++) rw_tape_destroy(&t[i]);
    fixture_close(&x.b);
}

/* One allocation fails while a second step runs: it takes the arena of the suspended one, which is recomputed. */
static bool second_takes_memory(uint64_t failing, struct world *plain, bool *ret_given_up)
{
    struct world x = open_world();
    rw_tape *other = NULL;
    rw_memory m;
    rw_tape_create(&other, x.b.ctx);
    rw_tensor *const waits = whole_loss(&x, x.b.t, 1, ID), *const second = whole_loss(&x, other, 2, ID);
    rw_item(x.b.t, waits);
    const uint64_t before = rw_alloc_count();
    rw_alloc_fail_at(failing);
    const rw_status status = rw_backward(other, second);
    rw_alloc_fail_at(0);
    const bool reached = rw_alloc_count() - before >= failing;
    rw_memory_stats(x.b.ctx, &m);
    *ret_given_up = !status && m.runs == 0;
    rw_error_clear(x.b.ctx);
    rw_zero_grad(x.b.ctx);
    ok(&x, rw_backward(x.b.t, waits));
    expect_gradients(plain, &x, "given up");
    rw_tape_destroy(&other);
    fixture_close(&x.b);
    return reached;
}

Test(suspended_runs, exhausted_memory_is_taken_from_a_suspended_step)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the device's allocations are not counted");
    struct world plain = open_world();
    ok(&plain, rw_backward(plain.b.t, whole_loss(&plain, plain.b.t, 1, ID)));
    bool any = false, given_up = false;
    for (uint64_t n = 1; second_takes_memory(n, &plain, &given_up); n++) any |= given_up;
    cr_assert(any, "no failure was met by giving up");
    fixture_close(&plain.b);
}

/* A tape's reset returns the memory of its runs. */
Test(suspended_runs, a_reset_ends_them)
{
    struct world x = open_world();
    rw_memory m;
    for (int step = 0; step < 5; step++) {
        rw_tensor *const y = whole_loss(&x, x.b.t, step, ID);
        ok(&x, rw_forward(x.b.t, (rw_tensor *[]){ y }, 1));
        rw_memory_stats(x.b.ctx, &m);
        cr_assert_eq(m.runs, 1);
        cr_assert_eq(m.arenas, m.predicted_peak, "one arena serves all steps");
        rw_tape_reset(x.b.t);
        rw_memory_stats(x.b.ctx, &m);
        cr_assert_eq(m.runs, 0);
    }
    fixture_close(&x.b);
}

/* Digests of the first half still exist when the second is compared with them. */
Test(suspended_runs, digests_see_both_halves_of_a_step)
{
    setenv("REWIND_VERIFY", "digest", 1);
    struct world x = open_world();
    unsetenv("REWIND_VERIFY");
    ok(&x, ckpt_set_policy(x.b.t, "full"));
    rw_tensor *const loss = whole_loss(&x, x.b.t, 1, ID);
    rw_item(x.b.t, loss);
    ok(&x, rw_backward(x.b.t, loss));
    cr_assert_eq(counted_runs[ID], 1, "forward ran again: %d", counted_runs[ID]);
    rw_cost cost;
    ok(&x, rw_tape_cost(x.b.t, loss, &cost));
    cr_assert_gt(cost.replayed_nodes, 0);
    fixture_close(&x.b);
}

/* ---- observers ---- */

enum { MANY = 100 };

/* One of many: each checks that its own call comes in order. */
struct counting {
    struct rw_observer observer; /* first */
    struct rw_attach attach;
    int turn, of, attached, detached; /* of: their number */
    bool in_turn;
};

static int before_turn, after_turn;

static rw_status count_before(struct rw_observer *o, struct rw_at *at)
{
    struct counting *const c = (struct counting *)(void *)o;
    c->in_turn &= before_turn++ % c->of == c->of - 1 - c->turn;
    return RW_OK;
}

static rw_status count_after(struct rw_observer *o, const struct rw_at *at)
{
    struct counting *const c = (struct counting *)(void *)o;
    c->in_turn &= after_turn++ % c->of == c->turn;
    return RW_OK;
}

static void count_detached(struct rw_observer *o, struct rw_run *r)
{
    ((struct counting *)(void *)o)->detached++;
}

static rw_status attach_counting(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer)
{
    struct counting *const c = (struct counting *)(void *)((char *)self - offsetof(struct counting, attach));
    c->attached++;
    *ret_observer = &c->observer;
    return RW_OK;
}

static void forget_counting(struct rw_attach *self) {}

static void attach_many(struct world *x, struct counting *all)
{
    before_turn = after_turn = 0;
    for (int i = MANY; i-- > 0;) {
        all[i] = (struct counting){ { .before = count_before, .after = count_after, .detach = count_detached },
                                    { NULL, attach_counting, forget_counting }, i, MANY, 0, 0, true };
        rw_runs_attach(x->b.ctx, &all[i].attach);
    }
}

/* A run has space for any number of them; the one attached last is the outermost. */
Test(suspended_runs, any_number_of_observers_watches)
{
    static struct counting all[MANY];
    struct world x = open_world(), plain = open_world();
    attach_many(&x, all);
    ok(&plain, rw_backward(plain.b.t, whole_loss(&plain, plain.b.t, 1, ID)));
    ok(&x, rw_backward(x.b.t, whole_loss(&x, x.b.t, 1, ID)));
    expect_gradients(&plain, &x, "observed");
    rw_tape_reset(x.b.t);
    cr_assert(before_turn > MANY && before_turn == after_turn && before_turn % MANY == 0, "%d, %d", before_turn,
              after_turn);
    for (int i = 0; i < MANY; i++) 
        cr_expect(all[i].in_turn && all[i].attached == 1 && all[i].detached == 1, "observer %d", i);
    fixture_close(&plain.b), fixture_close(&x.b);
}

/* If there is no memory for one, the others are detached, and the step fails as a whole. */
Test(suspended_runs, an_observer_without_memory_fails_the_step)
{
    static struct counting all[MANY];
    struct world x = open_world();
    ok(&x, rw_backward(x.b.t, whole_loss(&x, x.b.t, 1, ID))); /* has made the plan */
    rw_tape_reset(x.b.t);
    rw_tensor *const loss = whole_loss(&x, x.b.t, 1, ID);
    attach_many(&x, all);
    int failed = 0, watched = 0;
    for (uint64_t n = 1; n < 1000; n++) {
        rw_alloc_fail_from(n);
        const rw_status status = rw_backward(x.b.t, loss);
        rw_alloc_fail_at(0);
        if (!status) break;
        failed++;
        cr_assert_eq(status, RW_ERR_MEMORY);
        rw_error_clear(x.b.ctx);
        watched += all[0].attached > 0;
        for (int i = 0; i < MANY; i++)
            cr_assert_eq(all[i].attached, all[i].detached, "observer %d: %d, %d", i, all[i].attached, all[i].detached);
        cr_assert_null(rw_runs_of(x.b.t)->first, "a run is left");
    }
    cr_assert(failed >= 3 && watched >= 3, "%d, %d", failed, watched);
    rw_tape_reset(x.b.t);
    for (int i = 0; i < MANY; i++)
        cr_expect(all[i].attached == all[i].detached && all[i].attached > 0, "observer %d: %d", i, all[i].attached);
    fixture_close(&x.b);
}

/* A run and its iterator. */
Test(suspended_runs, is_valid_sees_what_is_wrong)
{
    struct world x = open_world();
    rw_item(x.b.t, whole_loss(&x, x.b.t, 1, ID));
    struct rw_run *const r = rw_runs_of(x.b.t)->first;
    cr_assert(r && r->state == RW_RUN_STOPPED && rw_run_is_valid(r));
    struct rw_arena *const arena = r->arena;
    r->arena = NULL;
    cr_assert_not(rw_run_is_valid(r), "a stopped run without its arena");
    r->arena = arena;
    arena->lent = false;
    cr_assert_not(rw_run_is_valid(r), "an arena that is not lent");
    arena->lent = true;
    const size_t next = r->next_action;
    r->next_action = r->plan->n_actions;
    cr_assert_not(rw_run_is_valid(r), "stopped at its end");
    r->next_action = next;
    const int references = r->results->references;
    r->results->references = 1;
    cr_assert_not(rw_run_is_valid(r), "results that it does not count");
    r->results->references = references;
    cr_assert(rw_run_is_valid(r));
    fixture_close(&x.b);
}

/* A value of a region that is still open is not a loss: it begins no step, because backward is not possible yet. */
Test(suspended_runs, a_value_read_inside_a_region_starts_no_step)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory m;
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
    rw_init_constant(p, 2);
    ckpt_begin(b.t, "r");
    rw_tensor *const y = rw_sum(b.t, rw_mul(b.t, p, p), RW_ALL_AXES, false);
    cr_assert_eq(rw_item(b.t, y), 16);
    cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
    cr_assert_eq(m.runs, 0);
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, y), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* these keep freed memory */
static uint64_t address_space(void)
{
    unsigned long long pages = 0;
    FILE *const f = fopen("/proc/self/statm", "r");
    cr_assert(f && fscanf(f, "%llu", &pages) == 1);
    fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A step of so many elements; returns the bytes of arenas after it. */
static uint64_t arena_of(const struct fixture *b, int64_t n)
{
    rw_memory m;
    rw_tensor *const x = rw_exp(b->t, rw_zeros(b->t, RW_F32, RW_SHAPE(n)));
    cr_assert_eq(rw_eval(b->t, (rw_tensor *[]){ rw_sum(b->t, rw_mul(b->t, x, x), RW_ALL_AXES, false) }, 1), RW_OK,
                 "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    cr_assert_eq(rw_memory_stats(b->ctx, &m), RW_OK);
    return m.arenas;
}

/* There is no memory for a larger arena in addition to the free one, which has to be released first. */
Test(suspended_runs, a_larger_arena_takes_the_memory_of_a_free_one)
{
    NEEDS_HOST_MEMORY();
    enum { FEW = 1 << 22, MANY = 1 << 23 };
    struct fixture b = fixture_open(1, 1);
    const uint64_t large = arena_of(&b, MANY);
    fixture_close(&b);
    b = fixture_open(1, 1);
    const uint64_t small = arena_of(&b, FEW);
    cr_assert(small >= (uint64_t)4 * FEW && large >= 2 * small - small / 8, "%llu %llu", (unsigned long long)small,
              (unsigned long long)large);
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = address_space() + large - small / 2;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    cr_assert_eq(arena_of(&b, MANY), large);
    fixture_close(&b);
}
#endif
