/*
 * Delayed scaling is bit-identical: losses, gradients, scales and histories of micro-batches have the same bytes under
 * every policy, in calls and in graphs, with two tapes at once, and in a resumed run.
 */
#include "api/delayed_scaling_fixture.h"

#include <criterion/criterion.h>
#include <math.h>

/* Fewer steps on the simulated device: after the second, each step launches the same kernels. */
static int steps_of_a_run(void)
{
    return test_device() == RW_DEVICE_CPU ? STEPS_MAX : 4;
}

Test(delayed_scaling_bit_identity, gives_the_same_bytes_under_every_policy)
{
    static const char *const policies[] = { "full", "selective:second", "uniform:2", "block:1", "ops:linear",
                                            "ops:quantize", "full+offload:second", "budget:97%" };
    struct delayed_outcome none = delayed_train("none", 1, steps_of_a_run(), -1);
    cr_assert(isfinite(none.loss[0]) && none.loss[0] > 0);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct delayed_outcome other = delayed_train(policies[i], 1 + (int)i % 5, steps_of_a_run(), i == 0 ? 1 : -1);
        const int step = delayed_differ(&none, &other);
        cr_expect_eq(step, -1, "%s: step %d differs", policies[i], step);
        delayed_finish(&other);
    }
    delayed_finish(&none);
}

/* ---- graphs, and resumed runs ---- */

/* The same steps as launches of a graph, with a scaler or without. */
static struct delayed_outcome by_graph(bool scales)
{
    struct delayed_world x = delayed_world_open("full", 2, scales);
    struct delayed_outcome o = { 0 };
    rw_graph *g = NULL;
    rw_tensor *const loss = delayed_loss(&x, 0, 1);
    const rw_graph_params p = { { recorded_scaler(x.s), rw_record_update(x.opt), rw_record_delayed_scaling(x.d) } };
    cr_assert_eq(rw_graph_create(&g, x.b.t, loss, &p), RW_OK, "%s", rw_error_message(x.b.ctx));
    for (int s = 0; s < 4; s++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
        o.loss[s * BATCHES] = (float)rw_item(x.b.t, loss);
        delayed_keep(&o, x.b.ctx);
    }
    rw_delayed_scaling_destroy(&x.d); /* the graph keeps it alive */
    cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
    rw_graph_destroy(&g);
    delayed_world_close(&x);
    return o;
}

/* Trains four steps by single calls, without a graph. */
static struct delayed_outcome by_calls(bool scales)
{
    struct delayed_world x = delayed_world_open("none", 1, scales);
    struct delayed_outcome o = { 0 };
    for (int s = 0; s < 4; s++) {
        rw_zero_grad(x.b.ctx);
        rw_tensor *const loss = delayed_loss(&x, 0, 1);
        delayed_backward(&x, loss);
        o.loss[s * BATCHES] = (float)rw_item(x.b.t, loss);
        rw_tape_reset(x.b.t);
        delayed_end_step(&x);
        delayed_keep(&o, x.b.ctx);
    }
    delayed_world_close(&x);
    return o;
}

Test(delayed_scaling_bit_identity, in_a_graph_is_what_the_calls_make)
{
    for (int scales = 0; scales < 2; scales++) {
        struct delayed_outcome a = by_calls(scales), b = by_graph(scales);
        cr_expect_eq(delayed_differ(&a, &b), -1, "launch %d differs", delayed_differ(&a, &b));
        delayed_finish(&a), delayed_finish(&b);
    }
}

/* Forward of both tapes, then backward of both: amaxes recorded by the first do not change what the second has read. */
static struct delayed_outcome of_two_tapes(bool at_once)
{
    struct delayed_world x = delayed_world_open("full", 1, false);
    struct delayed_outcome o = { 0 };
    rw_tape *tapes[2] = { x.b.t, NULL };
    rw_tensor *loss[2];
    cr_assert_eq(rw_tape_create(&tapes[1], x.b.ctx), RW_OK);
    for (int step = 0; step < 2; step++) {
        rw_zero_grad(x.b.ctx);
        for (int i = 0; i < 2; i++) {
            x.b.t = tapes[i];
            loss[i] = delayed_loss(&x, 2 * step + i, 1);
            o.loss[step * BATCHES + i] = (float)rw_item(x.b.t, loss[i]);
            if (!at_once) delayed_backward(&x, loss[i]);
        }
        for (int i = 0; i < 2; i++) {
            x.b.t = tapes[i];
            if (at_once) delayed_backward(&x, loss[i]);
            rw_tape_reset(x.b.t);
        }
        delayed_end_step(&x);
        delayed_keep(&o, x.b.ctx);
    }
    x.b.t = tapes[0];
    rw_tape_destroy(&tapes[1]);
    delayed_world_close(&x);
    return o;
}

Test(delayed_scaling_bit_identity, steps_of_two_tapes_may_be_under_way)
{
    struct delayed_outcome a = of_two_tapes(false), b = of_two_tapes(true);
    cr_expect_eq(delayed_differ(&a, &b), -1, "step %d differs", delayed_differ(&a, &b));
    delayed_finish(&a), delayed_finish(&b);
}

/* The whole state is in buffers: another context that loads them makes the same steps. */
Test(delayed_scaling_bit_identity, goes_on_from_its_buffers)
{
    static const char *const names[] = { "fp8.scale", "fp8.history", "fp8.amax", "up", "down", "other" };
    struct delayed_world x = delayed_world_open("full", 1, false), y = delayed_world_open("none", 2, false);
    struct delayed_outcome a = { 0 }, b = { 0 };
    delayed_train_step(&x, &a, false);
    for (int i = 0; i < 6; i++) {
        char data[4096];
        rw_tensor *const from = delayed_buffer(x.b.ctx, names[i]), *const to = delayed_buffer(y.b.ctx, names[i]);
        cr_assert_eq(rw_read(NULL, from, data, rw_tensor_bytes(from)), RW_OK);
        cr_assert_eq(rw_write(to, data, rw_tensor_bytes(to)), RW_OK);
    }
    rw_generator_set(y.b.ctx, rw_generator_get(x.b.ctx));
    rw_delayed_scaling_destroy(&y.d);
    y.d = delayed_open(y.b.ctx, &(rw_delayed_scaling_params){ .history = 4 }); /* finds them */
    rw_tensor *const l = delayed_loss(&x, 7, 1), *const m = delayed_loss(&y, 7, 1);
    cr_expect_eq(rw_item(x.b.t, l), rw_item(y.b.t, m));
    delayed_finish(&a), delayed_finish(&b);
    delayed_world_close(&x), delayed_world_close(&y);
}
