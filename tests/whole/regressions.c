/* Programs that once failed in tests/whole/fuzz.c, shrunk, each with the bug that it found. */
#include "whole/fuzz/reproducer_helpers.h"

#include <math.h>

/* The statistics were those of the earlier plan, next to the measured peak of the verifier's. */
Test(regressions, the_predicted_peak_is_the_measured_one_after_verify_too)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(3, 100));
    rw_init_normal(p, 0, 0.5);
    ckpt_set_policy(b.t, "full");
    ckpt_begin(b.t, "r");
    rw_tensor *const y = rw_tanh(b.t, rw_exp(b.t, p));
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory m;
    rw_memory_stats(b.ctx, &m);
    cr_assert_gt(m.measured_peak, 0);
    cr_assert_eq(m.predicted_peak, m.measured_peak);
    fixture_close(&b);
}

/* A product does not touch the end of its workspace while the gradient to which it adds is clear. */
Test(regressions, seed_2914_a_workspace_counts_whole)
{
    struct fixture b = fixture_open(2921, 1);
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(12, 4, 12, 6));
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(6, 6));
    rw_init_normal(x, 0, 0.5);
    rw_init_normal(w, 0, 0.5);
    rw_tensor *const y = rw_linear(b.t, rw_maximum(b.t, x, x), w, RW_NONE);
    rw_tensor *const loss = rw_scale(b.t, rw_sum(b.t, y, RW_ALL_AXES, false), 1.0 / 3456);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory m;
    rw_memory_stats(b.ctx, &m);
    cr_assert_eq(m.predicted_peak, m.measured_peak);
    fixture_close(&b);
}

/* Rows were counted as elements over the last extent. */
Test(regressions, gradients_of_linear_with_extents_of_0)
{
    static const struct {
        rw_shape x, w;
    } cases[] = { { { 3, { 2, 3, 0 } }, { 2, { 4, 0 } } },
                  { { 1, { 3 } }, { 2, { 0, 3 } } },
                  { { 3, { 0, 2, 3 } }, { 2, { 4, 3 } } },
                  { { 3, { 2, 3, 5 } }, { 2, { 0, 5 } } },
                  { { 1, { 0 } }, { 2, { 2, 0 } } } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, cases[i].x);
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, cases[i].w);
        rw_init_normal(x, 0, 1);
        rw_init_normal(w, 0, 1);
        rw_tensor *const y = rw_linear(b.t, x, w, RW_NONE);
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "case %zu: %s", i, rw_error_message(b.ctx));
        cr_assert_eq(rw_item(b.t, loss), 0);
        size_t bytes;
        unsigned char *const all = all_gradients(b.ctx, &bytes);
        for (size_t k = 0; k < bytes; k++) cr_assert_eq(all[k], 0, "what nothing depends on has a gradient of 0");
        free(all);
        fixture_close(&b);
    }
}

/* A plan made on one tape and run on another looked for a leaf that existed only on the first one, at planning. */
Test(regressions, a_plan_that_adds_to_gradients_serves_a_second_tape)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *tapes[2] = { b.t, NULL };
    cr_assert_eq(rw_tape_create(&tapes[1], b.ctx), RW_OK);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
    rw_init_constant(p, 3);
    rw_tensor *loss[2], *x[2];
    for (int i = 0; i < 2; i++) {
        loss[i] = rw_sum(tapes[i], rw_mul(tapes[i], p, p), RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(tapes[0], loss[0]), RW_OK);
    }
    rw_tape_reset(tapes[0]);
    rw_tape_reset(tapes[1]);
    for (int i = 0; i < 2; i++) {
        loss[i] = rw_sum(tapes[i], rw_mul(tapes[i], p, p), RW_ALL_AXES, false);
        rw_item(tapes[i], loss[i]); /* pauses in the plan that adds; now comes a leaf where it thinks its own is */
        x[i] = rw_input(tapes[i], RW_F32, RW_SHAPE(4), (const float[]){ 1, 2, 3, 4 }, 4 * sizeof(float));
        cr_assert_eq(rw_backward(tapes[i], loss[i]), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_input_write(x[i], (const float[]){ 5, 5, 5, 5 }, 16), RW_OK);
        cr_assert_eq(rw_item(tapes[i], rw_sum(tapes[i], x[i], RW_ALL_AXES, false)), 20, "%s", rw_error_message(b.ctx));
    }
    float g[4];
    cr_assert_eq(rw_read(NULL, rw_gradient(p), g, sizeof g), RW_OK);
    for (int i = 0; i < 4; i++) cr_assert_eq(g[i], 4 * 6);
    rw_tape_destroy(&tapes[1]);
    fixture_close(&b);
}

static struct fixture eager_fixture(void)
{
    setenv("REWIND_EAGER", "1", 1);
    const struct fixture b = fixture_open(1, 1);
    unsetenv("REWIND_EAGER");
    return b;
}

/* Planning records nodes; they were executed at once, and again with the plan. */
Test(regressions, an_eager_gradient_is_added_once)
{
    float g[2][4];
    for (int eager = 0; eager < 2; eager++) {
        struct fixture b = eager ? eager_fixture() : fixture_open(1, 1);
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
        rw_tensor *const q = rw_param(b.ctx, "q", RW_F32, RW_SHAPE(4));
        rw_init_constant(p, 0.5);
        rw_init_constant(q, 2);
        rw_tensor *const first = rw_sum(b.t, q, RW_ALL_AXES, false);
        rw_tensor *const second = rw_sum(b.t, rw_mul(b.t, p, rw_tanh(b.t, p)), RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(b.t, first), RW_OK);
        cr_assert_eq(rw_backward(b.t, second), RW_OK);
        cr_assert_eq(rw_backward(b.t, second), RW_OK);
        cr_assert_eq(rw_read(NULL, rw_gradient(p), g[eager], sizeof *g), RW_OK);
        fixture_close(&b);
    }
    cr_assert_eq(memcmp(g[0], g[1], sizeof *g), 0, "%g and %g", (double)g[0][0], (double)g[1][0]);
}

/* An assignment was executed as soon as it was recorded: later ops read the new contents. */
Test(regressions, an_eager_assignment_waits_for_the_end_of_the_step)
{
    for (int trains = 0; trains < 2; trains++) {
        struct fixture b = eager_fixture();
        rw_tensor *const count = rw_buffer(b.ctx, "count", RW_F32, RW_SHAPE(2));
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2));
        float now[2];
        for (int step = 0; step < 3; step++) {
            cr_assert_eq(rw_assign(b.t, count, rw_add_scalar(b.t, count, 1)), RW_OK);
            rw_tensor *const y = rw_add_scalar(b.t, count, 10);
            cr_assert_eq(rw_read(b.t, rw_scale(b.t, y, 2), now, sizeof now), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(now[0], 2 * (10 + step));
            if (trains)
                cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, p), RW_ALL_AXES, false)), RW_OK, "%s",
                             rw_error_message(b.ctx));
            rw_tape_reset(b.t);
        }
        cr_assert_eq(rw_read(NULL, count, now, sizeof now), RW_OK);
        cr_assert_eq(now[0], 3, "with%s anything to train: %g", trains ? "" : "out", (double)now[0]);
        fixture_close(&b);
    }
}

/*
 * An op overwrote a buffer of which its operand was only a dense first part, and broadcast: it read elements that it
 * had already overwritten. Under `full` backward's product with the first of the table's rows is their last use; under
 * `none` the buffer stayed live.
 */
Test(regressions, seed_10662_a_part_of_a_buffer_is_not_written_over)
{
    static const int32_t index[9] = { 0 };
    struct found f = { 0 };
    for (f.policy = 0; f.policy < 2; f.policy++) {
        struct fixture b = fixture_open(1, 1);
        rw_tape *const t = b.t;
        rw_tensor *const v0 = rw_param(b.ctx, "v0", RW_F32, RW_SHAPE(1, 3));
        rw_init_normal(v0, 0, 0.5);
        ckpt_set_policy(t, f.policy ? "full" : "none");
        ckpt_begin(t, "c");
        rw_tensor *const v1 = rw_embedding(t, v0, rw_input(t, RW_I32, RW_SHAPE(3, 3), index, sizeof index));
        rw_tensor *const v2 = rw_mul(t, v1, rw_slice(t, v1, 0, 0, 1));
        ckpt_end(t);
        rw_tensor *const loss = rw_sum(t, rw_tanh(t, v2), RW_ALL_AXES, false);
        found_backward(&f, t, loss);
        /* 9 tanh(x^2), differentiated: fewer than 100 roundings, including the cancellation in 1 - tanh^2 */
        float x[3], g[3];
        cr_assert_eq(rw_read(NULL, v0, x, sizeof x), RW_OK);
        cr_assert_eq(rw_read(NULL, rw_gradient(v0), g, sizeof g), RW_OK);
        for (int i = 0; i < 3; i++) {
            const double th = tanh((double)x[i] * (double)x[i]), expected = 18 * (double)x[i] * (1 - th * th);
            cr_assert_float_eq(g[i], expected, 100 * 0x1p-24 * fabs(expected), "%g, not %g", (double)g[i], expected);
        }
        fixture_close(&b);
    }
    found_finish(&f);
}

/* A value without elements, alone in its block of results, was not recognized as held: its effect happened again. */
Test(regressions, an_effect_on_a_value_without_elements_happens_once)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the op's kernel runs on the CPU alone");
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(3, 0));
    rw_tensor *const y = rw_apply(b.t, &fuzz_tally, &(rw_tensor *){ p }, 1, &(int64_t){ 5 }, 8, NULL);
    char nothing;
    fuzz_clear_runs();
    cr_assert_eq(rw_read(b.t, y, &nothing, 0), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(fuzz_tally_runs[5], 1);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    cr_assert_eq(fuzz_tally_runs[5], 1);
    fixture_close(&b);
}

/* A loss and its gradient in one pass only use the gradient's workspace; the loss's is at the end here. */
Test(regressions, seed_100_a_loss_and_its_gradient_have_two_workspaces)
{
    static const int32_t zero[] = { 0 };
    struct fixture b = fixture_open(107, 1);
    rw_tape *const t = b.t;
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(1, 1));
    rw_init_normal(x, 0, 0.5);
    ckpt_set_policy(t, "full");
    ckpt_begin(t, "outer");
    rw_tensor *const sum = rw_sum(t, x, RW_ALL_AXES, false);
    ckpt_begin(t, "inner");
    rw_tensor *const index = rw_input(t, RW_I32, RW_SHAPE(1), zero, sizeof zero);
    rw_tensor *const gelu = rw_gelu(t, rw_index_select(t, x, 0, index));
    ckpt_end(t);
    rw_tensor *const lse = rw_logsumexp(t, gelu, RW_ALL_AXES, false);
    rw_tensor *const entropy = rw_cross_entropy(t, rw_minimum(t, sum, x), index);
    ckpt_end(t);
    rw_tensor *const other = rw_scale(t, rw_sum(t, rw_mul(t, lse, rw_tanh(t, lse)), RW_ALL_AXES, false), 1.0);
    cr_assert_eq(rw_backward(t, rw_add(t, other, entropy)), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory m;
    rw_memory_stats(b.ctx, &m);
    cr_assert_gt(m.measured_peak, 0);
    cr_assert_eq(m.predicted_peak, m.measured_peak, "%zu and %zu", m.predicted_peak, m.measured_peak);
    fixture_close(&b);
}

/* If offsets describe no bag, the rows of the index were assigned to a bag before the first. */
Test(regressions, seed_39_no_bag_takes_no_row)
{
    static const int32_t rows[] = { 0, 1, 2 };
    for (int way = 0; way < 4; way++) {
        struct fixture b = fixture_open(46, 1);
        rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(3, 2));
        rw_tensor *const weights = rw_param(b.ctx, "weights", RW_F32, RW_SHAPE(3));
        rw_init_normal(table, 0, 0.5);
        rw_init_normal(weights, 0, 0.5);
        const rw_embedding_bag_params params = { .mode = way == 1 ? RW_BAG_MEAN : RW_BAG_SUM,
                                                 .offsets = rw_input(b.t, RW_I32, RW_SHAPE(0), NULL, 0),
                                                 .weights = way == 2 ? weights : RW_NONE,
                                                 .has_padding_index = way == 3 };
        rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(3), rows, sizeof rows);
        rw_tensor *const y = rw_embedding_bag_with(b.t, table, index, &params);
        cr_assert(rw_shape_equal(rw_tensor_shape(y), RW_SHAPE(0, 2)), "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                     rw_error_message(b.ctx));
        float g[6];
        cr_assert_eq(rw_read(NULL, rw_gradient(table), g, sizeof g), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < 6; i++) cr_assert_eq(g[i], 0);
        fixture_close(&b);
    }
}

/* On a GPU the verifier copied an operand of a node, for an isolated re-execution, while the operand was still being
   copied in. */
Test(regressions, seed_4000032_what_comes_back_is_looked_at_once_it_has)
{
    static const int32_t zero[] = { 0 };
    struct fixture b = fixture_open(4000039, 1);
    rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(1, 1));
    rw_init_normal(table, 0, 0.5);
    rw_tensor *const row = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(1), zero, sizeof zero));
    ckpt_offload(b.t, row);
    ckpt_report report = { 0 };
    const rw_status status = ckpt_verify(b.t, rw_max(b.t, row, RW_ALL_AXES, false), &report);
    cr_assert_eq(status, RW_OK, "%s: %s, %s", rw_status_name(status), report.op, report.detail);
    fixture_close(&b);
}
