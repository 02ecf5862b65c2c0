/*
 * Choices that offload values are run: alone, in two halves, as a graph, observed and traced. They give the bytes of a
 * step that keeps everything. On the simulated device a copy without a wait is executed at another time.
 */
#include "remat/manual_choice_fixture.h"
#include "support/support.h"

#include "run/run_advance.h"
#include "verify/faults.h"

#include <rewind/verify.h>

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 5, WIDTH = 64, TOKENS = 37 };

struct world {
    struct fixture b;
    struct net n;
    rw_tensor *loss;
    double value;
};

static struct world open_world(void)
{
    struct world x = { .b = fixture_open(3, 2) };
    ckpt_set_policy(x.b.t, "full"); /* the verifier's other plan is that of none */
    net_init(&x.n, x.b.ctx, BLOCKS, WIDTH, RW_F32, 1);
    x.loss = net_loss(&x.n, x.b.t, TOKENS, 0);
    cr_assert_not_null(x.loss, "%s", rw_error_message(x.b.ctx));
    return x;
}

/* Puts a plan into the cache that offloads every k-th value that may be offloaded. */
static const rw_plan *move_every(struct world *x, size_t k)
{
    struct by_hand h;
    size_t seen = 0, moved = 0;
    by_hand_open(&h, &x->b, x->loss);
    for (uint32_t v = 0; v < h.g.problem.mark.values; v++) {
        if (!rw_problem_makes(&h.g.problem, v) || h.g.problem.wanted[v] || seen++ % k) continue;
        h.g.choice.fate[v].what = RW_MOVE;
        moved++;
    }
    by_hand_segments_end(&h);
    const rw_plan *const plan = by_hand_plan(&h);
    by_hand_close(&h);
    cr_assert_gt(moved, 0);
    cr_assert_gt(plan->n_slots, 0);
    cr_assert_eq(plan->n_aside, 2 * plan->n_slots);
    return plan;
}

static unsigned char *plain_gradients(size_t *ret_bytes, double *ret_loss)
{
    struct world x = open_world();
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
    unsigned char *const g = all_gradients(x.b.ctx, ret_bytes);
    *ret_loss = rw_item(x.b.t, x.loss);
    fixture_close(&x.b);
    return g;
}

static void expect_plain(struct world *x, const char *what)
{
    size_t n, m;
    double loss;
    unsigned char *const expected = plain_gradients(&n, &loss), *const got = all_gradients(x->b.ctx, &m);
    cr_assert_eq(n, m);
    cr_assert_eq(first_difference(expected, got, n), -1, "%s", what);
    x->value = rw_item(x->b.t, x->loss);
    cr_assert_eq(memcmp(&loss, &x->value, sizeof loss), 0, "%s", what);
    free(expected), free(got);
}

Test(manual_offload_choices, give_the_bytes_of_what_is_kept)
{
    for (size_t k = 1; k <= 4; k++) {
        struct world x = open_world();
        const rw_plan *const plan = move_every(&x, k);
        const uint64_t store = plan->store_bytes;
        rw_memory m;
        cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
        expect_plain(&x, "one in k");
        rw_memory_stats(x.b.ctx, &m);
        cr_assert_eq(m.host, store);
        cr_assert_eq(m.predicted_peak, m.measured_peak);
        fixture_close(&x.b);
    }
}

/* Offloaded values stay in the run's own store while other steps use theirs. */
Test(manual_offload_choices, survive_a_stop_and_other_steps_in_between)
{
    struct world x = open_world();
    rw_tape *other = NULL;
    move_every(&x, 2);
    rw_item(x.b.t, x.loss);
    struct rw_run *const r = rw_runs_of(x.b.t)->first;
    cr_assert(r && r->state == RW_RUN_STOPPED && r->store && rw_run_is_valid(r));
    cr_assert_eq(rw_tape_create(&other, x.b.ctx), RW_OK);
    rw_item(other, net_loss(&x.n, other, TOKENS, 1));
    rw_tape_reset(other);
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
    expect_plain(&x, "after a stop");
    rw_tape_destroy(&other);
    fixture_close(&x.b);
}

/* A captured graph forks into the copy lanes and joins them again. */
Test(manual_offload_choices, are_captured)
{
    enum { LAUNCHES = 4 };
    unsigned char *expected[LAUNCHES];
    size_t n;
    for (int moved = 0; moved < 2; moved++) {
        struct world x = open_world();
        rw_graph *g = NULL;
        if (moved) move_every(&x, 1);
        cr_assert_eq(rw_graph_create(&g, x.b.t, x.loss, NULL), RW_OK, "%s", rw_error_message(x.b.ctx));
        for (int i = 0; i < LAUNCHES; i++) {
            cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
            unsigned char *const got = all_gradients(x.b.ctx, &n);
            if (!moved) {
                expected[i] = got;
                continue;
            }
            cr_assert_eq(first_difference(expected[i], got, n), -1, "launch %d", i);
            free(got);
            free(expected[i]);
        }
        rw_graph_destroy(&g);
        fixture_close(&x.b);
    }
}

/* A verified step with offload, with a fault in the store or without: `found`. */
static void spoiled(const char *mode, bool found)
{
    setenv("REWIND_VERIFY", mode, 1);
    struct world x = open_world();
    unsetenv("REWIND_VERIFY");
    if (*mode == '1') {
        rw_item(x.b.t, x.loss); /* held from here on, as when the other run is planned */
        rw_runs_end(x.b.t);     /* a plan other than this one: the one with offload */
    }
    move_every(&x, 2);
    rw_fault = (struct rw_fault){ .kind = found ? RW_FAULT_STORE : RW_FAULT_NONE, .op = "", .skip = 1 };
    const rw_status status = rw_backward(x.b.t, x.loss);
    const char *const message = rw_error_message(x.b.ctx);
    cr_assert_eq(rw_fault.struck, found);
    cr_assert_eq(status, found ? RW_ERR_MISMATCH : RW_OK, "%s", message);
    if (found) cr_assert(strstr(message, "read back with different bytes") && strstr(message, "support.c:"), "%s",
                         message);
    rw_fault = (struct rw_fault){ 0 };
    fixture_close(&x.b);
}

/* The verifier checks a value that is copied in like a replayed one. */
Test(manual_offload_choices, that_bring_other_bytes_are_found)
{
    spoiled("digest", false);
    spoiled("digest", true);
    spoiled("1", false);
    spoiled("1", true);
}

Test(manual_offload_choices, show_themselves_in_a_trace)
{
    char name[] = "/tmp/rewind-moves-XXXXXX";
    const int file = mkstemp(name);
    cr_assert_geq(file, 0);
    setenv("REWIND_TRACE", name, 1);
    struct world x = open_world();
    unsetenv("REWIND_TRACE");
    const size_t slots = move_every(&x, 2)->n_slots;
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
    fixture_close(&x.b);
    FILE *const f = fopen(name, "r");
    char line[4096];
    size_t out = 0, in = 0;
    while (fgets(line, sizeof line, f)) {
        out += strstr(line, "\"cat\":\"move out\"") != NULL;
        in += strstr(line, "\"cat\":\"move in\"") != NULL;
    }
    fclose(f);
    remove(name);
    cr_assert_eq(out, slots);
    cr_assert_eq(in, slots);
}
