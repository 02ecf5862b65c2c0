/*
 * Policies of parts of a tape: checked by kept bytes and by how often each op is executed. A part's policy holds only
 * inside it, the innermost part decides, and a run without recompute ignores all of them.
 */
#include "support/support.h"

#include "plan/cache.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1024, VALUE = N * sizeof(float) };

/* A region of three squares; backward reads the outputs of the first two, and the third's if an op follows. */
static rw_tensor *region(rw_tape *t, rw_tensor *x, int id)
{
    ckpt_begin(t, "r");
    for (int i = 0; i < 3; i++) x = counted_square(t, x, id + i);
    ckpt_end(t);
    return x;
}

static rw_tensor *begin(struct fixture *b, const char *policy)
{
    float one[N];
    for (int i = 0; i < N; i++) one[i] = 1;
    counted_clear();
    cr_assert_eq(ckpt_set_policy(b->t, policy), RW_OK);
    return rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(N), one, sizeof one));
}

static size_t finish(struct fixture *b, rw_tensor *y)
{
    rw_memory m;
    cr_assert_eq(rw_backward(b->t, rw_sum(b->t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
    rw_memory_stats(b->ctx, &m);
    return m.kept;
}

static void expect_runs(const int *want, int n, const char *when)
{
    for (int i = 0; i < n; i++)
        cr_expect_eq(counted_runs[i], want[i], "%s: op %d ran %d times, not %d", when, i, counted_runs[i], want[i]);
}

/* Two consecutive regions, the second in a part. */
static size_t two(const char *policy, const char *part)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = region(b.t, begin(&b, policy), 0);
    if (part) cr_assert_eq(ckpt_policy_begin(b.t, part), RW_OK);
    x = region(b.t, x, 3);
    if (part) cr_assert_eq(ckpt_policy_end(b.t), RW_OK);
    const size_t kept = finish(&b, x);
    fixture_close(&b);
    return kept;
}

Test(part_policies, each_has_its_own_policy)
{
    const size_t none = two("none", NULL);
    expect_runs((const int[]){ 1, 1, 1, 1, 1, 1 }, 6, "none");
    cr_expect_eq(two("none", "full") + 2 * VALUE, none);
    expect_runs((const int[]){ 1, 1, 1, 2, 2, 1 }, 6, "none, full");
    cr_expect_eq(two("full", "none") + 2 * VALUE, none);
    expect_runs((const int[]){ 2, 2, 1, 1, 1, 1 }, 6, "full, none");
    cr_expect_eq(two("full", "full") + 4 * VALUE, none);
    cr_expect_eq(two("full", "block:1") + 4 * VALUE, none, "the part counts its own regions");
    cr_expect_eq(two("block:1", "block:1") + 4 * VALUE, none, "and so does the tape");
    cr_expect_eq(two("none", "discard:r") + 2 * VALUE, none, "its last value is not read");
}

/* The policy of a part also holds in a region that is replayed. */
Test(part_policies, what_is_kept_inside_of_what_is_replayed)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = begin(&b, "full");
    ckpt_begin(b.t, "outer");
    x = counted_square(b.t, x, 0);
    ckpt_policy_begin(b.t, "none");
    x = region(b.t, x, 1);
    ckpt_policy_begin(b.t, "full");
    x = region(b.t, x, 4);
    ckpt_policy_end(b.t);
    ckpt_policy_end(b.t);
    x = counted_square(b.t, x, 7);
    ckpt_end(b.t);
    const size_t kept = finish(&b, x);
    expect_runs((const int[]){ 1, 1, 1, 1, 3, 3, 2, 1 }, 8, "passed through by the outer visit, then its own");
    cr_expect_eq(kept, 4 * VALUE, "%zu: the first square and the three of the part that keeps", kept);
    fixture_close(&b);
}

/* Values that a part does not name are kept, wherever the part is; and it counts its own outermost regions. */
static size_t nested(const char *part)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = begin(&b, "full");
    ckpt_begin(b.t, "outer");
    if (part) ckpt_policy_begin(b.t, part);
    x = region(b.t, region(b.t, x, 0), 3);
    if (part) ckpt_policy_end(b.t);
    ckpt_end(b.t);
    const size_t kept = finish(&b, x);
    fixture_close(&b);
    return kept;
}

Test(part_policies, what_is_not_named_is_kept)
{
    cr_expect_eq(nested(NULL), 0);
    cr_expect_eq(nested("full"), 0);
    cr_expect_eq(nested("selective:other"), 5 * VALUE);
    expect_runs((const int[]){ 1, 1, 1, 1, 1, 1 }, 6, "selective");
    cr_expect_eq(nested("block:1"), 3 * VALUE, "the last value of the first region and two of the second");
}

/* Groups of a part stay in the enclosing region, with a part of another kind between them. */
Test(part_policies, groups_with_a_part_between_them)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = begin(&b, "full");
    ckpt_begin(b.t, "outer");
    ckpt_policy_begin(b.t, "uniform:2");
    x = region(b.t, x, 0);
    ckpt_policy_begin(b.t, "full");
    x = region(b.t, x, 3);
    ckpt_policy_end(b.t);
    ckpt_begin(b.t, "second");
    ckpt_policy_begin(b.t, "full");
    x = region(b.t, x, 6);
    ckpt_policy_end(b.t);
    ckpt_end(b.t);
    ckpt_policy_end(b.t);
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

/* A run without recompute has none, whatever parts say: the verifier's first run, an eval, REWIND_POLICY's. */
Test(part_policies, a_request_for_the_whole_is_met)
{
    setenv("REWIND_POLICY", "none", 1);
    const size_t pinned = two("full", "full");
    expect_runs((const int[]){ 1, 1, 1, 1, 1, 1 }, 6, "REWIND_POLICY=none");
    unsetenv("REWIND_POLICY");
    cr_expect_eq(pinned, two("none", NULL));
    struct fixture b = fixture_open(1, 1);
    rw_prediction p;
    ckpt_policy_begin(b.t, "full");
    rw_tensor *x = region(b.t, begin(&b, "none"), 0);
    ckpt_policy_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
    ckpt_report report;
    cr_assert_eq(ckpt_verify(b.t, loss, &report), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(report.replayed, 2, "%zu values", report.replayed);
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &p), RW_OK);
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss->id, .n_values = 1,
                                        .policy = &rw_policy_none };
    rw_plan *plan = NULL;
    cr_assert_eq(rw_plan_build(b.t, &request, &plan), RW_OK);
    cr_expect_eq(plan->cost.replayed_nodes, 0, "the verifier's reference");
    rw_plan_release(plan);
    cr_expect_eq(p.cost.replayed_nodes, 2, "as ckpt_set_policy() would: parts stay as they are");
    fixture_close(&b);
}

/* A step with another policy of a part is another step; the same one is planned once and allocates nothing more. */
Test(part_policies, are_part_of_the_structure)
{
    struct fixture b = fixture_open(1, 1);
    for (int step = 0; step < 12; step++) {
        rw_tensor *x = begin(&b, "none");
        cr_assert_eq(ckpt_policy_begin(b.t, step % 2 ? "full" : "none"), RW_OK);
        x = region(b.t, x, 0);
        cr_assert_eq(ckpt_policy_end(b.t), RW_OK);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, x, RW_ALL_AXES, false)), RW_OK);
        cr_expect_eq(counted_runs[0], step % 2 ? 2 : 1, "step %d", step);
        rw_tape_reset(b.t);
    }
    cr_expect_eq(rw_plan_cache_of(b.ctx)->misses, 2, "%zu", (size_t)rw_plan_cache_of(b.ctx)->misses);
    fixture_close(&b);
}

Test(part_policies, end_where_they_began)
{
    struct fixture b = fixture_open(1, 1);
    cr_expect_eq(ckpt_policy_end(b.t), RW_ERR_REGION, "nothing was begun");
    fixture_close(&b);
}
