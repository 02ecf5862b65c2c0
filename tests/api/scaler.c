/*
 * Loss scaling: its rule as a table of steps; a skipped step changes nothing, in calls and in graphs; and gradients
 * have the same bytes as without a scaler.
 */
#include "api/scaler_fixture.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the rule ---- */

struct expected {
    char step; /* '.': all finite; 'x': not */
    double scale;
    int clean, hysteresis, skipped;
};

static const struct rule {
    const char *name;
    rw_scaler_params params;
    struct expected step[14];
} rules[] = {
    { "PyTorch's, growing at every third step",
      { .growth_interval = 3 },
      { { '.', 65536, 1, 1, 0 },  { '.', 65536, 2, 1, 0 }, { '.', 131072, 0, 1, 0 }, { 'x', 65536, 0, 0, 1 },
        { '.', 65536, 1, 1, 1 },  { 'x', 32768, 0, 0, 2 }, { 'x', 16384, 0, 0, 3 },  { '.', 16384, 1, 1, 3 },
        { '.', 16384, 2, 1, 3 },  { '.', 32768, 0, 1, 3 } } },
    { "Megatron's: only a growth refills",
      { .init_scale = 16, .growth_interval = 3, .hysteresis = 2, .refill_at_growth = true, .min_scale = 4 },
      { { 'x', 16, 0, 1, 1 }, { '.', 16, 1, 1, 1 }, { 'x', 8, 0, 0, 2 }, { '.', 8, 1, 0, 2 }, { 'x', 4, 0, 0, 3 },
        { 'x', 4, 0, 0, 4 },  { '.', 4, 1, 0, 4 },  { '.', 4, 2, 0, 4 }, { '.', 8, 0, 2, 4 }, { 'x', 8, 0, 1, 5 },
        { 'x', 4, 0, 0, 6 } } },
    { "a clean step refills",
      { .init_scale = 16, .growth_interval = 100, .hysteresis = 2 },
      { { 'x', 16, 0, 1, 1 }, { '.', 16, 1, 2, 1 }, { 'x', 16, 0, 1, 2 }, { 'x', 8, 0, 0, 3 }, { 'x', 4, 0, 0, 4 },
        { '.', 4, 1, 2, 4 } } },
    { "up to a bound, by other factors",
      { .init_scale = 10, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 1, .max_scale = 40 },
      { { '.', 30, 0, 1, 0 }, { '.', 40, 0, 1, 0 }, { '.', 40, 0, 1, 0 }, { 'x', 10, 0, 0, 1 },
        { 'x', 2.5, 0, 0, 2 } } },
    { "growing past the range of float32 changes nothing",
      { .init_scale = 0x1p127, .growth_interval = 1 },
      { { '.', 0x1p127, 0, 1, 0 }, { 'x', 0x1p126, 0, 0, 1 }, { '.', 0x1p127, 0, 1, 1 } } },
};

Test(scaler, follows_its_rule_step_by_step)
{
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        struct fixture b = fixture_open(1, 2);
        rw_scaler *s = NULL;
        rw_optimizer *opt = NULL;
        rw_param(b.ctx, "w", RW_F32, RW_SHAPE(40003));
        rw_param(b.ctx, "v", RW_F64, RW_SHAPE(37));
        rw_param_with(b.ctx, "u", RW_F16, RW_SHAPE(41), &(rw_param_options){ .grad_dtype = RW_F16 });
        cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
        cr_assert_eq(rw_scaler_create(&s, b.ctx, &rules[r].params), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; rules[r].step[i].step; i++) {
            const struct expected *const e = &rules[r].step[i];
            rw_scaler_state now;
            write_gradients(b.ctx, e->step, i);
            cr_assert_eq(rw_scaler_step(s, opt), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_scaler_update(s), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_scaler_get(s, &now), RW_OK);
            cr_assert(now.scale == e->scale && now.growth_tracker == e->clean && now.hysteresis == e->hysteresis &&
                          now.skipped == e->skipped && now.found_inf == (e->step == 'x'),
                      "%s, step %d: %g %d %d %d %d", rules[r].name, i, now.scale, (int)now.growth_tracker,
                      now.hysteresis, (int)now.skipped, now.found_inf);
        }
        rw_scaler_destroy(&s);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* All float32 values in steps of 4099 patterns: those that are not finite after unscaling are found, and no other. */
Test(scaler, finds_what_is_not_finite_and_nothing_else)
{
    enum { N = 1 << 12 };
    struct fixture b = fixture_open(1, 2);
    rw_scaler *s = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N)), *const g = rw_gradient(w);
    cr_assert_eq(rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .init_scale = 0.5, .growth_interval = 1000000 }),
                 RW_OK);
    static const uint32_t edges[] = { 0x7f7fffff, 0xff7fffff, 0x7f000000, 0x7effffff, 0x7f800000, 0xff800000,
                                      0x7f800001, 0x7fc00000, 0xffffffff, 0x00000001, 0x80000000, 0x3f800000 };
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        static uint32_t data[N];
        float x;
        rw_scaler_state now;
        memset(data, 0, sizeof data);
        data[i * 331] = edges[i];
        memcpy(&x, &edges[i], sizeof x);
        cr_assert_eq(rw_write(g, data, sizeof data), RW_OK);
        cr_assert_eq(rw_scaler_unscale(s), RW_OK);
        cr_assert_eq(rw_scaler_get(s, &now), RW_OK);
        cr_assert_eq(now.found_inf, !isfinite((float)(x / (float)now.scale)), "%08x at scale %g", edges[i], now.scale);
        cr_assert_eq(rw_scaler_update(s), RW_OK);
    }
    rw_scaler_destroy(&s);
    fixture_close(&b);
}

/* ---- a skipped step ---- */

enum { STEPS = 8 };

static enum optimizer_kind kind;

static float factor_of(int step)
{
    return 0.25f + (float)(step % 3) / 8;
}

/* A parameter is written before step 3, whether that is skipped or not: its master copy is created again. */
static void before(struct zoo *z, int step)
{
    rw_optimizer_set_lr(z->opt, 0.03 / (step + 1));
    if (step == 3) cr_assert_eq(rw_init_constant(z->w[1], 0.5), RW_OK);
}

static void plain_step(struct zoo *z, int step)
{
    const float factor = factor_of(step);
    rw_zero_grad(z->b.ctx);
    rw_tensor *const loss = zoo_loss(z, z->b.t, rw_input(z->b.t, RW_F32, RW_SCALAR, &factor, sizeof factor));
    cr_assert_eq(rw_backward(z->b.t, loss), RW_OK, "%s", rw_error_message(z->b.ctx));
    cr_assert_eq(rw_clip_grad_norm(z->b.ctx, 0.7, NULL), RW_OK);
    cr_assert_eq(rw_optimizer_step(z->opt), RW_OK);
    rw_tape_reset(z->b.t);
}

static void scaled_step(struct zoo *z, int step, bool overflows)
{
    const float factor = overflows ? INFINITY : factor_of(step);
    rw_zero_grad(z->b.ctx);
    rw_tensor *const loss = zoo_loss(z, z->b.t, rw_input(z->b.t, RW_F32, RW_SCALAR, &factor, sizeof factor));
    cr_assert_eq(rw_scaler_backward(z->s, z->b.t, loss), RW_OK, "%s", rw_error_message(z->b.ctx));
    cr_assert_eq(rw_scaler_unscale(z->s), RW_OK, "%s", rw_error_message(z->b.ctx));
    cr_assert_eq(rw_clip_grad_norm(z->b.ctx, 0.7, NULL), RW_OK);
    cr_assert_eq(rw_scaler_step(z->s, z->opt), RW_OK, "%s", rw_error_message(z->b.ctx));
    cr_assert_eq(rw_scaler_update(z->s), RW_OK, "%s", rw_error_message(z->b.ctx));
    rw_tape_reset(z->b.t);
}

/* The steps that are not skipped, in calls without a scaler. */
static unsigned char *without(unsigned left_out, size_t *bytes)
{
    struct zoo z = zoo_open(kind, false, NULL);
    for (int step = 0; step < STEPS; step++) {
        before(&z, step);
        if (!(left_out >> step & 1)) plain_step(&z, step);
    }
    unsigned char *const all = zoo_parameters(&z, bytes);
    zoo_close(&z);
    return all;
}

/* launched: the steps that are launches of a graph. */
static unsigned char *with(unsigned left_out, unsigned launched, rw_scaler_state *ret_state, size_t *bytes)
{
    struct zoo z = zoo_open(kind, true, &(rw_scaler_params){ .init_scale = 1024, .growth_interval = 2 });
    rw_tape *t = NULL;
    rw_graph *g = NULL;
    cr_assert_eq(rw_tape_create(&t, z.b.ctx), RW_OK);
    rw_tensor *const factor = rw_input(t, RW_F32, RW_SCALAR, NULL, 0);
    if (launched)
        cr_assert_eq(rw_graph_create(&g, t, zoo_loss(&z, t, factor),
                                     &(rw_graph_params){ { rw_record_scaler(z.s), rw_record_clip(0.7),
                                                           rw_record_update(z.opt) } }),
                     RW_OK, "%s", rw_error_message(z.b.ctx));
    for (int step = 0; step < STEPS; step++) {
        const bool overflows = left_out >> step & 1;
        const float x = overflows ? INFINITY : factor_of(step);
        before(&z, step);
        if (!(launched >> step & 1)) {
            scaled_step(&z, step, overflows);
            continue;
        }
        cr_assert_eq(rw_input_write(factor, &x, sizeof x), RW_OK);
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(z.b.ctx));
    }
    cr_assert_eq(rw_scaler_get(z.s, ret_state), RW_OK, "%s", rw_error_message(z.b.ctx));
    unsigned char *const all = zoo_parameters(&z, bytes);
    rw_graph_destroy(&g);
    rw_tape_destroy(&t);
    zoo_close(&z);
    return all;
}

static int ones_of(unsigned set)
{
    int n = 0;
    for (; set; set >>= 1) n += set & 1;
    return n;
}

/* Training with the scaler must equal training without it that leaves out the same steps. */
static void same_as_without(unsigned left_out, unsigned launched, const char *what)
{
    size_t bytes, again;
    rw_scaler_state state, calls;
    unsigned char *const want = without(left_out, &bytes), *const got = with(left_out, launched, &state, &again);
    unsigned char *const called = with(left_out, 0, &calls, &again);
    cr_assert_eq(first_difference(got, want, bytes), -1, "%s: left out %x, launched %x: byte %ld", what, left_out,
                 launched, first_difference(got, want, bytes));
    cr_assert_eq(first_difference(called, want, bytes), -1, "%s: calls", what);
    cr_assert_eq(state.skipped, ones_of(left_out));
    cr_assert(state.scale == calls.scale && state.growth_tracker == calls.growth_tracker &&
              state.hysteresis == calls.hysteresis && state.found_inf == calls.found_inf);
    free(want);
    free(got);
    free(called);
}

/* Parameters, moments, master copies and step counts: later steps would show a change in any. */
Test(scaler, a_step_that_is_left_out_changes_nothing)
{
    static const unsigned left_out[] = { 0x00, 0x01, 0x08, 0x2a, 0x19, 0xff };
    const size_t n = test_device() == RW_DEVICE_CPU ? sizeof left_out / sizeof *left_out : 4;
    for (kind = ADAMW; kind < KINDS; kind++)
        for (size_t i = 0; i < n; i++) same_as_without(left_out[i], 0, "calls");
}

Test(scaler, nor_does_one_of_a_graph)
{
    static const unsigned left_out[] = { 0x00, 0x0c, 0x2a, 0x8d }, launched[] = { 0xff, 0xfe, 0x5a, 0x3f };
    static const char *const modes[] = { "0", "1", "digest" };
    const int n = test_device() == RW_DEVICE_CPU ? 4 : 2;
    for (int mode = 0; mode < (n == 4 ? 3 : 1); mode++) {
        setenv("REWIND_VERIFY", modes[mode], 1);
        for (int i = 0; i < n; i++)
            for (int k = 0; k < n; k++) same_as_without(left_out[i], launched[k], modes[mode]);
    }
    unsetenv("REWIND_VERIFY");
}

/* The optimizer's count of skipped steps is also used by later calls without a scaler. */
Test(scaler, an_optimizer_goes_on_without)
{
    size_t bytes;
    unsigned char *const want = without(0x02, &bytes);
    struct zoo z = zoo_open(kind, true, NULL);
    for (int step = 0; step < STEPS; step++) {
        before(&z, step);
        if (step < 3) scaled_step(&z, step, step == 1);
        else plain_step(&z, step);
    }
    unsigned char *const got = zoo_parameters(&z, &bytes);
    cr_assert_eq(first_difference(got, want, bytes), -1, "byte %ld", first_difference(got, want, bytes));
    free(got);
    free(want);
    zoo_close(&z);
}

/* ---- gradients ---- */

/* Gradients of the small net with a loss scale, or without one. */
static unsigned char *gradients_of_net(const char *policy, double scale, size_t *bytes)
{
    struct fixture b = fixture_open(7, 2);
    const bool small = test_device() == RW_DEVICE_CUDA;
    rw_scaler *s = NULL;
    struct net n;
    net_init(&n, b.ctx, small ? 2 : 3, small ? 16 : 24, RW_F32, 1);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    if (scale > 0) cr_assert_eq(rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .init_scale = scale }), RW_OK);
    for (int micro = 0; micro < 3; micro++) {
        rw_tensor *const loss = net_loss(&n, b.t, 7, micro);
        cr_assert_eq(s ? rw_scaler_backward(s, b.t, loss) : rw_backward(b.t, loss), RW_OK, "%s",
                     rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    if (s) cr_assert_eq(rw_scaler_unscale(s), RW_OK, "%s", rw_error_message(b.ctx));
    unsigned char *const all = all_gradients(b.ctx, bytes);
    rw_scaler_destroy(&s);
    fixture_close(&b);
    return all;
}

Test(scaler, a_power_of_two_changes_no_bit_of_a_gradient)
{
    static const char *const policies[] = { "none", "full", "selective:outer" };
    size_t bytes;
    unsigned char *const want = gradients_of_net("none", 0, &bytes);
    for (int p = 0; p < 3; p++)
        for (int power = -8; power <= 24; power += 16) {
            if (p == 1 && power == 8) setenv("REWIND_VERIFY", "1", 1);
            unsigned char *const got = gradients_of_net(policies[p], ldexp(1, power), &bytes);
            unsetenv("REWIND_VERIFY");
            cr_assert_eq(first_difference(got, want, bytes), -1, "%s, 2^%d: byte %ld", policies[p], power,
                         first_difference(got, want, bytes));
            free(got);
        }
    free(want);
}

/* 2^-26 underflows in float16; times 2^16 it does not. */
Test(scaler, gradients_beyond_the_range_of_float16)
{
    for (int scaled = 0; scaled < 2; scaled++) {
        struct fixture b = fixture_open(1, 1);
        rw_scaler *s = NULL;
        float g[8];
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F16, RW_SHAPE(8));
        cr_assert_eq(rw_init_constant(w, 1), RW_OK);
        cr_assert_eq(rw_scaler_create(&s, b.ctx, NULL), RW_OK);
        rw_tensor *const y = rw_cast(b.t, rw_mul(b.t, w, w), RW_F32);
        rw_tensor *const loss = rw_sum(b.t, rw_scale(b.t, y, 0x1p-26), RW_ALL_AXES, false);
        cr_assert_eq(scaled ? rw_scaler_backward(s, b.t, loss) : rw_backward(b.t, loss), RW_OK);
        if (scaled) cr_assert_eq(rw_scaler_unscale(s), RW_OK);
        cr_assert_eq(rw_read(NULL, rw_gradient(w), g, sizeof g), RW_OK);
        for (int i = 0; i < 8; i++) cr_assert_eq(g[i], scaled ? 0x1p-25f : 0, "%g", (double)g[i]);
        rw_scaler_destroy(&s);
        fixture_close(&b);
    }
}

/* Reading the loss between forward and backward executes nothing twice. */
Test(scaler, a_loss_that_is_read_before)
{
    struct fixture b = fixture_open(1, 1);
    rw_scaler *s = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(8));
    cr_assert_eq(rw_init_constant(w, 3), RW_OK);
    cr_assert_eq(rw_scaler_create(&s, b.ctx, NULL), RW_OK);
    counted_clear();
    rw_tensor *const loss = rw_sum(b.t, counted_square(b.t, w, 1), RW_ALL_AXES, false);
    cr_assert_eq(rw_forward(b.t, &loss, 1), RW_OK);
    cr_assert_eq(rw_item(b.t, loss), 72);
    cr_assert_eq(rw_scaler_backward(s, b.t, loss), RW_OK);
    cr_assert_eq(counted_runs[1], 1);
    cr_assert_eq(rw_scaler_unscale(s), RW_OK);
    float g[8];
    cr_assert_eq(rw_read(NULL, rw_gradient(w), g, sizeof g), RW_OK);
    cr_assert_eq(g[5], 6);
    rw_scaler_destroy(&s);
    fixture_close(&b);
}

/* ---- its state ---- */

Test(scaler, continues_where_another_has_stopped_and_is_saved)
{
    char path[] = "/tmp/rewind_scaler_XXXXXX";
    const int file = mkstemp(path);
    cr_assert_geq(file, 0);
    for (int loaded = 0; loaded < 2; loaded++) {
        struct fixture b = fixture_open(1, 1);
        rw_scaler *s = NULL;
        rw_param(b.ctx, "w", RW_F32, RW_SHAPE(8));
        cr_assert_eq(rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .name = "amp" }), RW_OK);
        cr_assert_eq(state_of(s).scale, 65536);
        if (loaded) {
            cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
        } else {
            write_gradients(b.ctx, 'x', 0);
            cr_assert_eq(rw_scaler_unscale(s), RW_OK);
            cr_assert_eq(rw_scaler_update(s), RW_OK);
            rw_scaler_destroy(&s);
            cr_assert_null(s);
            cr_assert_eq(rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .name = "amp", .init_scale = 4 }), RW_OK);
            cr_assert_eq(rw_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
        }
        cr_assert_eq(state_of(s).scale, 32768);
        cr_assert_eq(state_of(s).skipped, 1);
        rw_scaler_destroy(&s);
        fixture_close(&b);
    }
    remove(path);
}

static void remove_folder(const char *folder)
{
    char path[512];
    DIR *const d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%.255s", folder, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) remove(path);
    }
    if (d) closedir(d);
    rmdir(folder);
}

/* The count of skipped steps, and that a master copy is still to be created again, are part of the saved state. */
Test(scaler, a_run_that_ended_goes_on)
{
    enum { MIDDLE = 4 };
    static const unsigned left_out[] = { 0x0a, 0x28 };
    for (int i = 0; i < 2; i++) {
        char folder[] = "/tmp/rewind_scaler_XXXXXX";
        size_t bytes;
        rw_scaler_state state, now;
        unsigned char *const want = with(left_out[i], 0, &state, &bytes);
        cr_assert_not_null(mkdtemp(folder));
        for (int half = 0; half < 2; half++) {
            struct zoo z = zoo_open(kind, true, &(rw_scaler_params){ .init_scale = 1024, .growth_interval = 2 });
            rw_checkpoint *c = NULL;
            const rw_checkpoint_params params = { .folder = folder, .optimizer = z.opt };
            if (half) cr_assert_eq(rw_init_constant(z.w[0], 77), RW_OK);
            if (half) scaled_step(&z, 5, true); /* its earlier count is discarded */
            cr_assert_eq(rw_checkpoint_create(&c, z.b.ctx, &params), RW_OK, "%s", rw_error_message(z.b.ctx));
            if (half) cr_assert_eq(rw_checkpoint_load(c, NULL), RW_OK, "%s", rw_error_message(z.b.ctx));
            for (int step = half ? MIDDLE : 0; step < (half ? STEPS : MIDDLE); step++) {
                before(&z, step);
                scaled_step(&z, step, left_out[i] >> step & 1);
            }
            if (!half) cr_assert_eq(rw_checkpoint_save(c, MIDDLE, NULL, 0), RW_OK, "%s", rw_error_message(z.b.ctx));
            cr_assert_eq(rw_scaler_get(z.s, &now), RW_OK);
            unsigned char *const got = zoo_parameters(&z, &bytes);
            const long differs = half ? first_difference(got, want, bytes) : -1;
            cr_assert_eq(differs, -1, "byte %ld", differs);
            free(got);
            rw_checkpoint_destroy(&c);
            zoo_close(&z);
        }
        cr_assert(now.scale == state.scale && now.skipped == state.skipped);
        remove_folder(folder);
        free(want);
    }
}

/* A program that reads the buffer sees it change between contents, as with any other. */
Test(scaler, changes_its_buffer_for_every_reader)
{
    for (int launched = 0; launched < 2; launched++) {
        struct zoo z = zoo_open(kind, true, NULL);
        rw_graph *g = NULL;
        rw_tape *reader = NULL;
        cr_assert_eq(rw_tape_create(&reader, z.b.ctx), RW_OK);
        rw_tensor *const numbers = rw_param_find(z.b.ctx, "scaler");
        rw_tensor *const loss = rw_sum(reader, rw_mul(reader, rw_slice(reader, z.w[4], 0, 0, 4), numbers), RW_ALL_AXES,
                                       false);
        rw_item(reader, loss);
        if (launched) {
            rw_tensor *const other = rw_sum(z.b.t, z.w[0], RW_ALL_AXES, false);
            cr_assert_eq(rw_graph_create(&g, z.b.t, other, &(rw_graph_params){ { rw_record_scaler(z.s) } }), RW_OK);
            cr_assert_eq(rw_graph_launch(g), RW_OK);
        } else {
            cr_assert_eq(rw_scaler_unscale(z.s), RW_OK);
            cr_assert_eq(rw_scaler_update(z.s), RW_OK);
        }
        cr_assert_eq(rw_backward(reader, loss), RW_ERR_MODIFIED);
        cr_assert(strstr(rw_error_message(z.b.ctx), "\"scaler\""), "%s", rw_error_message(z.b.ctx));
        rw_error_clear(z.b.ctx);
        rw_graph_destroy(&g);
        rw_tape_destroy(&reader);
        zoo_close(&z);
    }
}
