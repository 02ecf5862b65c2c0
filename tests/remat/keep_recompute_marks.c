/*
 * Marks on single values: ckpt_keep() keeps one inside a region that is replayed, ckpt_recompute() replays one that a
 * policy would keep. Checked by how often each op is executed, and by the kept bytes.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <string.h>

enum { N = 640, OPS = 4 };

/* x -> x^2 -> x^4 -> x^8 -> x^16 in one region; value `marked` gets the mark. The rule of each op reads its input. */
static rw_memory chain(const char *policy, int marked, rw_tensor *(*mark)(rw_tape *t, rw_tensor *x))
{
    struct fixture b = fixture_open(1, 1);
    float one[N];
    rw_memory memory;
    for (int i = 0; i < N; i++) one[i] = 1;
    counted_clear();
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), one, sizeof one));
    ckpt_begin(b.t, "r");
    rw_tensor *y = x;
    for (int i = 0; i < OPS; i++) {
        y = counted_square(b.t, y, i);
        if (i == marked) mark(b.t, y);
    }
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(x), one, sizeof one), RW_OK);
    for (int i = 0; i < N; i++) cr_assert_eq(one[i], 16);
    rw_memory_stats(b.ctx, &memory);
    fixture_close(&b);
    return memory;
}

static rw_tensor *save(rw_tape *t, rw_tensor *x)
{
    return ckpt_keep(t, x);
}

static rw_tensor *recompute(rw_tape *t, rw_tensor *x)
{
    return ckpt_recompute(t, x);
}

static rw_tensor *nothing(rw_tape *t, rw_tensor *x)
{
    return x;
}

static void expect_runs(int a, int b, int c, int d, const char *when)
{
    const int want[OPS] = { a, b, c, d };
    for (int i = 0; i < OPS; i++)
        cr_assert_eq(counted_runs[i], want[i], "%s: op %d ran %d times, not %d", when, i, counted_runs[i], want[i]);
}

Test(keep_recompute_marks, a_saved_value_is_kept_and_nothing_is_replayed_for_it)
{
    const size_t value = N * sizeof(float);
    const rw_memory plain = chain("full", 0, nothing);
    expect_runs(2, 2, 2, 1, "without a mark");
    const rw_memory first = chain("full", 0, save);
    expect_runs(1, 2, 2, 1, "the first one saved");
    const rw_memory last = chain("full", 2, save);
    expect_runs(2, 2, 1, 1, "the last one that is read saved");
    const rw_memory unread = chain("full", 3, save);
    expect_runs(2, 2, 2, 1, "one that backward does not read was saved");
    cr_assert_eq(first.kept, plain.kept + value);
    cr_assert_eq(last.kept, plain.kept + value);
    cr_assert_eq(unread.kept, plain.kept, "a mark keeps nothing that is not needed");
}

Test(keep_recompute_marks, a_value_marked_for_recompute_is_replayed_under_any_policy)
{
    const size_t value = N * sizeof(float);
    const rw_memory plain = chain("none", 0, nothing);
    expect_runs(1, 1, 1, 1, "without a mark");
    const rw_memory marked = chain("none", 1, recompute);
    expect_runs(1, 2, 1, 1, "from what is kept beside it");
    cr_assert_eq(marked.kept + value, plain.kept);
}
