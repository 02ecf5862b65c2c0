/*
 * Contexts that only plan: their predictions equal those of a context that runs, to the byte; no tensor has memory,
 * whatever its size; and every public call that would compute, or return contents, is refused by its name.
 */
#include "support/support.h"

#include "device/cpu/onednn.h"
#include "record/context.h"
#include "record/param.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fixture planner_open(uint64_t seed)
{
    struct fixture b = { 0 };
    const rw_context_params params = { .device = test_device(), .seed = seed, .threads = 1, .plan_only = true };
    cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    return b;
}

/* ---- the same answers ---- */

struct answers {
    rw_prediction policy[4];
    rw_frontier_point points[64];
    size_t n_points;
    rw_memory memory;
    rw_generator_state generator;
};

/* Makes all predictions for a net, for comparison with a context that runs. */
static void ask(struct fixture b, struct answers *ret)
{
    static const char *const policies[4] = { "none", "full", "budget:60%", "selective:inner" };
    struct net n;
    rw_optimizer *opt = NULL;
    *ret = (struct answers){ .n_points = 64 };
    net_init(&n, b.ctx, 4, 32, RW_BF16, 2);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    rw_tensor *const loss = net_loss(&n, b.t, 24, 0);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(rw_tape_plan(b.t, loss, policies[i], &ret->policy[i]), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_tape_frontier(b.t, loss, ret->points, &ret->n_points), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &ret->memory), RW_OK);
    ret->memory.device = 0; /* shared by all contexts */
    ret->generator = rw_generator_get(b.ctx);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

Test(plan_only, predicts_what_a_context_that_runs_predicts)
{
    static struct answers runs, plans;
    ask(fixture_open(3, 1), &runs);
    ask(planner_open(3), &plans);
    cr_expect(!memcmp(runs.policy, plans.policy, sizeof runs.policy));
    cr_expect_eq(runs.n_points, plans.n_points);
    cr_expect(!memcmp(runs.points, plans.points, sizeof runs.points));
    cr_expect(!memcmp(&runs.memory, &plans.memory, sizeof runs.memory));
    cr_expect_gt(plans.memory.optimizer, 0);
    cr_expect(!memcmp(&runs.generator, &plans.generator, sizeof runs.generator), "what is drawn is drawn");
}

/* ---- of any size ---- */

/* Bytes that a plan cannot address do not help, but a budget that allows them has a plan: the fastest that can be
   addressed, if there is one. */
static rw_tensor *giants(struct fixture *b, int64_t bytes)
{
    rw_tape_reset(b->t);
    rw_tensor *x = rw_param_find(b->ctx, "x");
    if (!x) x = rw_param(b->ctx, "x", RW_F32, RW_SHAPE(1));
    x = rw_broadcast_to(b->t, x, RW_SHAPE(bytes / (int64_t)sizeof(float)));
    for (int i = 0; i < 40; i++) x = rw_tanh(b->t, x);
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

Test(plan_only, budgets_beyond_the_addressable_arena)
{
    static const char *const budgets[] = { "budget:500GiB", "budget:2TiB", "budget:255TiB", "total:255TiB",
                                           "budget:50%" };
    struct fixture b = planner_open(1);
    rw_tensor *loss = giants(&b, (int64_t)96 << 30); /* 96 GiB each */
    rw_prediction p, before = { .ms = 1e300 };
    rw_frontier_point point[64];
    size_t n = 64;
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &p), RW_ERR_MEMORY);
    cr_expect(strstr(rw_error_message(b.ctx), "more than a plan can address"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        cr_assert_eq(rw_tape_plan(b.t, loss, budgets[i], &p), RW_OK, "%s: %s", budgets[i], rw_error_message(b.ctx));
        cr_expect_leq(p.ms, before.ms, "%s: %g ms, %g with less", budgets[i], p.ms, before.ms);
        before = p;
    }
    cr_assert_eq(rw_tape_frontier(b.t, loss, point, &n), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect(point[n - 1].ms == p.ms && point[n - 1].peak_bytes == p.peak_bytes);
    loss = giants(&b, (int64_t)300 << 40); /* 300 TiB each */
    cr_expect_eq(rw_tape_plan(b.t, loss, "budget:255TiB", &p), RW_ERR_MEMORY, "no budget suffices");
    cr_expect(strstr(rw_error_message(b.ctx), "more than a plan can address"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_tape_frontier(b.t, loss, point, &n), RW_ERR_MEMORY);
    fixture_close(&b);
}

/* A library that counts in 32 bits must not see a larger extent: it would read 2^32 as 0, and a division by it ends the
   process. */
Test(plan_only, products_of_extents_above_32_bits)
{
    static const int64_t extents[] = { INT32_MAX, (int64_t)1 << 31, (int64_t)1 << 32, ((int64_t)1 << 32) + 48,
                                       (int64_t)3 << 32 };
    for (size_t i = 0; i < sizeof extents / sizeof *extents; i++)
        for (int rows = 1; rows < 8; rows += 6)
            for (int kind = 0; kind < 2; kind++) {
                struct fixture b = planner_open(1);
                const rw_dtype dtype = kind ? RW_BF16 : RW_F32;
                rw_tensor *const w = rw_param(b.ctx, "w", dtype, RW_SHAPE(3, 1));
                rw_tensor *const x = rw_require_grad(b.t, rw_randn(b.t, dtype, RW_SHAPE(rows, 3)));
                rw_tensor *const y = rw_matmul(b.t, x, rw_broadcast_to(b.t, w, RW_SHAPE(3, extents[i])));
                rw_prediction prediction;
                cr_expect_eq(rw_tape_plan(b.t, rw_sum(b.t, y, RW_ALL_AXES, false), "none", &prediction), RW_OK, "%s",
                             rw_error_message(b.ctx));
                fixture_close(&b);
            }
}

Test(plan_only, of_a_model_that_no_machine_holds)
{
    enum { LAYERS = 6, TOKENS = 16 };
    const int64_t width = 1 << 20; /* a weight of 2^40 elements */
    struct fixture b = planner_open(1);
    rw_optimizer *opt = NULL;
    rw_prediction p;
    char name[16];
    const size_t before = resident_bytes();
    rw_tensor *x = rw_input(b.t, RW_BF16, RW_SHAPE(TOKENS, width), NULL, 0);
    for (int l = 0; l < LAYERS; l++) {
        snprintf(name, sizeof name, "w%d", l);
        rw_tensor *const w = rw_param(b.ctx, name, RW_BF16, RW_SHAPE(width, width));
        cr_assert_eq(rw_init_normal(w, 0, 0.02), RW_OK, "%s", rw_error_message(b.ctx));
        x = rw_linear(b.t, x, w, RW_NONE);
    }
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const loss = rw_mean(b.t, x, RW_ALL_AXES, false);
    cr_assert_eq(rw_tape_plan(b.t, loss, "full", &p), RW_OK, "%s", rw_error_message(b.ctx));
    const size_t numbers = LAYERS * (size_t)width * (size_t)width;
    cr_expect_eq(p.at_peak.parameters, 2 * numbers);
    cr_expect_eq(p.at_peak.gradients, 4 * numbers);
    cr_expect_eq(p.at_peak.optimizer, 12 * numbers, "two moments and the master copy");
    cr_expect_eq(p.total_bytes, 18 * numbers + p.at_peak.inputs + p.at_peak.results + p.peak_bytes);
    cr_expect_lt(resident_bytes() - before, 64u << 20);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* Offloaded states are counted as host memory, but neither a file nor host memory is allocated. */
Test(plan_only, of_offloaded_states)
{
    char folder[] = "/tmp/rewind-plans-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    for (int in_file = 0; in_file < 2; in_file++) {
        struct fixture b = planner_open(1);
        rw_optimizer *opt = NULL;
        rw_memory m;
        const size_t numbers = (size_t)1 << 33, before = resident_bytes();
        const rw_state_offload states = { .place = in_file ? RW_STATE_FILE : RW_STATE_HOST,
                                          .path = in_file ? folder : NULL, .window = (size_t)1 << 30 };
        cr_assert_not_null(rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1 << 16, 1 << 17)));
        cr_assert_eq(rw_adam_create(&opt, b.ctx, &(rw_adam_params){ .states = states }), RW_OK, "%s",
                     rw_error_message(b.ctx));
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        const bool away = in_file || test_device() != RW_DEVICE_CPU;
        cr_expect_eq(m.files, in_file ? 8 * numbers : 0);
        cr_expect_eq(m.host, away && !in_file ? 8 * numbers : 0);
        if (away) cr_expect_leq(m.optimizer, states.window + 4096);
        else cr_expect_eq(m.optimizer, 8 * numbers);
        cr_expect_lt(resident_bytes() - before, 64u << 20);
        rw_optimizer_destroy(&opt);
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        cr_expect_eq(m.files + m.host + m.optimizer, 0);
        fixture_close(&b);
    }
    cr_assert_eq(rmdir(folder), 0, "something was left in %s", folder);
}

/* ---- what is refused ---- */

struct world {
    struct fixture b;
    rw_tensor *w, *x, *loss;
    rw_optimizer *opt;
    rw_scaler *scaler;
    rw_delayed_scaling *delayed;
    rw_weight_average *average;
    rw_monitor *monitor;
    rw_checkpoint *checkpoint;
    rw_quantized quantized;
    float room[64 * 4];
};

/* Objects for the calls that must be refused. */
static void world_open(struct world *o, const char *folder)
{
    struct fixture b = planner_open(1);
    rw_context *const ctx = b.ctx;
    *o = (struct world){ .b = b };
    o->w = rw_param(ctx, "w", RW_F32, RW_SHAPE(4, 4));
    cr_assert_eq(rw_write(o->w, o->room, 64), RW_OK);
    cr_assert_eq(rw_write(rw_gradient(o->w), o->room, 64), RW_OK);
    cr_assert_eq(rw_init_uniform(o->w, -1, 1), RW_OK);
    cr_assert_eq(rw_quantized_create(ctx, "q", RW_NF4, RW_SHAPE(4, 64), &o->quantized), RW_OK);
    cr_assert_eq(rw_quantized_write(&o->quantized, RW_F32, o->room, sizeof o->room), RW_OK);
    o->x = rw_input(b.t, RW_F32, RW_SHAPE(2, 4), o->room, 2 * 4 * sizeof *o->room);
    cr_assert_eq(rw_input_write(o->x, o->room, 32), RW_OK);
    o->loss = rw_mean(b.t, rw_linear(b.t, o->x, o->w, RW_NONE), RW_ALL_AXES, false);
    cr_assert_eq(rw_adamw_create(&o->opt, ctx, NULL), RW_OK);
    cr_assert_eq(rw_scaler_create(&o->scaler, ctx, NULL), RW_OK);
    cr_assert_eq(rw_delayed_scaling_create(&o->delayed, ctx, NULL), RW_OK);
    cr_assert_eq(rw_weight_average_create(&o->average, ctx, 0.99), RW_OK);
    cr_assert_eq(rw_monitor_create(&o->monitor, ctx, NULL), RW_OK);
    cr_assert_eq(rw_checkpoint_create(&o->checkpoint, ctx,
                                      &(rw_checkpoint_params){ .folder = folder, .optimizer = o->opt,
                                                               .average = o->average }), RW_OK);
    cr_assert_eq(rw_error_status(ctx), RW_OK, "%s", rw_error_message(ctx));
}

static void world_close(struct world *o)
{
    rw_checkpoint_destroy(&o->checkpoint);
    rw_monitor_destroy(&o->monitor);
    rw_weight_average_destroy(&o->average);
    rw_delayed_scaling_destroy(&o->delayed);
    rw_scaler_destroy(&o->scaler);
    rw_optimizer_destroy(&o->opt);
    fixture_close(&o->b);
}

static void expect_refused(rw_context *ctx, const char *call, rw_status status)
{
    const char *const message = rw_error_message(ctx);
    char begins[64];
    snprintf(begins, sizeof begins, "%s: the context plans only", call);
    cr_expect_eq(status, RW_ERR_UNSUPPORTED, "%s: %d", call, (int)status);
    cr_expect_eq(rw_error_status(ctx), RW_ERR_UNSUPPORTED, "%s", call);
    cr_expect(!strncmp(message, begins, strlen(begins)), "%s: \"%s\"", call, message);
    rw_error_clear(ctx);
}

#define REFUSED(name, call) expect_refused(o.b.ctx, name, call)

Test(plan_only, refuses_what_runs)
{
    struct world o;
    rw_graph *graph = NULL;
    rw_nonfinite found;
    world_open(&o, "/tmp/rewind-no-such-folder");
    rw_tape *const t = o.b.t;
    REFUSED("rw_eval", rw_eval(t, &o.loss, 1));
    REFUSED("rw_forward", rw_forward(t, &o.loss, 1));
    REFUSED("rw_backward", rw_backward(t, o.loss));
    REFUSED("rw_backward_from", rw_backward_from(t, &o.loss, NULL, 1));
    REFUSED("rw_scaler_backward", rw_scaler_backward(o.scaler, t, o.loss));
    REFUSED("rw_scaler_unscale", rw_scaler_unscale(o.scaler));
    REFUSED("rw_scaler_step", rw_scaler_step(o.scaler, o.opt));
    REFUSED("rw_scaler_update", rw_scaler_update(o.scaler));
    REFUSED("rw_delayed_scaling_update", rw_delayed_scaling_update(o.delayed, NULL));
    REFUSED("rw_optimizer_step", rw_optimizer_step(o.opt));
    REFUSED("rw_weight_average_step", rw_weight_average_step(o.average));
    REFUSED("rw_clip_grad_norm", rw_clip_grad_norm(o.b.ctx, 1, NULL));
    REFUSED("rw_clip_grad_norm_with", rw_clip_grad_norm_with(o.b.ctx, 1, NULL, NULL));
    REFUSED("rw_graph_create", rw_graph_create(&graph, t, o.loss, NULL));
    REFUSED("rw_profile_begin", rw_profile_begin(o.b.ctx));
    if (test_steps(1, 0)) /* it runs in contexts of its own: takes seconds, and minutes under AddressSanitizer */
        cr_expect_eq(rw_costs_calibrate(o.b.ctx), RW_OK, "%s", rw_error_message(o.b.ctx));
    REFUSED("ckpt_verify", ckpt_verify(t, o.loss, NULL));
    REFUSED("rw_find_nonfinite", rw_find_nonfinite(t, o.loss, 0, &found));
    cr_expect_null(graph);
    world_close(&o);
}

Test(plan_only, refuses_what_gives_contents)
{
    struct world o;
    rw_scaler_state state;
    const rw_load_part part = { .param = "w", .name = "w" };
    world_open(&o, "/tmp/rewind-no-such-folder");
    rw_tape *const t = o.b.t;
    REFUSED("rw_read", rw_read(t, o.loss, o.room, 4));
    REFUSED("rw_read", rw_read(t, o.x, o.room, 32));
    REFUSED("rw_read", rw_read(NULL, o.w, o.room, 64));
    REFUSED("rw_read", rw_read(NULL, rw_gradient(o.w), o.room, 64));
    REFUSED("rw_item", (rw_item(t, o.loss), rw_error_status(o.b.ctx)));
    REFUSED("rw_tensor_data", (rw_tensor_data(o.w) ? RW_OK : rw_error_status(o.b.ctx)));
    REFUSED("rw_tensor_data", (rw_tensor_data(rw_gradient(o.w)) ? RW_OK : rw_error_status(o.b.ctx)));
    REFUSED("rw_scaler_get", rw_scaler_get(o.scaler, &state));
    REFUSED("rw_quantized_read", rw_quantized_read(&o.quantized, o.room, sizeof o.room));
    REFUSED("rw_monitor_watch", rw_monitor_watch(o.monitor, &(rw_monitor_sources){ .optimizer = o.opt }));
    REFUSED("rw_monitor_step", rw_monitor_step(o.monitor, &(rw_monitor_values){ .step = 1, .loss = 1 }, NULL));
    REFUSED("rw_monitor_check", rw_monitor_check(o.monitor, &(rw_monitor_values){ .step = 1, .loss = 1 }, NULL));
    REFUSED("rw_save", rw_save(o.b.ctx, "/tmp/rewind-no-such-file"));
    REFUSED("rw_load", rw_load(o.b.ctx, "/tmp/rewind-no-such-file"));
    REFUSED("rw_load_parts", rw_load_parts(o.b.ctx, "/tmp/rewind-no-such-file", &part, 1));
    REFUSED("rw_checkpoint_save", rw_checkpoint_save(o.checkpoint, 1, NULL, 0));
    rw_tape_reset(t);
    REFUSED("rw_checkpoint_load", rw_checkpoint_load(o.checkpoint, NULL));
    cr_expect(access("/tmp/rewind-no-such-file", F_OK) && access("/tmp/rewind-no-such-folder", F_OK));
    world_close(&o);
}

/* ---- libraries ---- */

static rw_tensor *long_convolution(struct fixture *b, rw_dtype dtype, int64_t height, int64_t width)
{
    rw_tensor *const w = rw_param(b->ctx, "w", dtype, RW_SHAPE(8, 4, height, 3));
    rw_tensor *const x = rw_require_grad(b->t, rw_randn(b->t, dtype, RW_SHAPE(1, 4, height, width)));
    rw_tensor *const y = rw_conv2d(b->t, x, w, RW_NONE, NULL);
    return rw_cast(b->t, rw_mean(b->t, y, RW_ALL_AXES, false), RW_F32);
}

/* The library's code for a row of 480,000 pixels is never generated. Its code for shorter rows is not generated in a
   context that only plans, where it is counted as if it were. */
Test(plan_only, what_a_library_takes_is_bounded_and_predicted)
{
    static const int64_t widths[] = { 14, 1400, 480000 };
    const bool takes = test_device() == RW_DEVICE_CPU && rw_onednn_is_present();
    for (int i = 0; i < 12; i++) {
        struct fixture b[2] = { planner_open(1), fixture_open(1, 1) };
        rw_prediction p[2];
        rw_memory m[2];
        for (int k = 0; k < 2; k++) {
            rw_tensor *const loss = long_convolution(&b[k], i & 1 ? RW_F32 : RW_BF16, i & 2 ? 1 : 3, widths[i / 4]);
            const size_t before = resident_bytes();
            cr_assert_eq(rw_tape_plan(b[k].t, loss, "none", &p[k]), RW_OK, "%s", rw_error_message(b[k].ctx));
            cr_expect_lt(resident_bytes() - before, 24u << 20, "%lld", (long long)widths[i / 4]);
            cr_assert_eq(rw_memory_stats(b[k].ctx, &m[k]), RW_OK);
            fixture_close(&b[k]);
        }
        cr_expect(p[0].library_bytes == p[1].library_bytes && m[0].library == m[1].library, "%lld",
                  (long long)widths[i / 4]);
        cr_expect_leq(p[0].library_bytes, 24u << 20);
        cr_expect_eq(p[0].library_bytes > 0, takes);
        if (takes) cr_expect_geq(m[0].library, p[0].library_bytes);
    }
}

/* Even if a check is missing in a call above: nothing can be read, and no run starts. */
Test(plan_only, has_a_device_without_contents)
{
    struct world o;
    char byte = 0;
    world_open(&o, "/tmp/rewind-no-such-folder");
    const struct rw_device_fns *const device = o.b.ctx->device;
    void *const state = o.b.ctx->device_state;
    struct rw_digest digest;
    cr_expect_eq(device->download(state, &byte, rw_param_of(o.w)->data, 1), RW_ERR_UNSUPPORTED);
    cr_expect_eq(device->digest(state, rw_param_of(o.w)->data, 1, 1, &digest), RW_ERR_UNSUPPORTED);
    cr_expect_eq(device->upload(state, rw_param_of(o.w)->data, &byte, 1), RW_OK);
    world_close(&o);
}

/* ---- explanations, and the environment ---- */

Test(plan_only, explains_and_counts)
{
    struct world o;
    rw_cost cost;
    FILE *const out = tmpfile();
    world_open(&o, "/tmp/rewind-no-such-folder");
    cr_assert_not_null(out);
    cr_expect_eq(rw_tape_cost(o.b.t, o.loss, &cost), RW_OK, "%s", rw_error_message(o.b.ctx));
    cr_expect_gt(cost.forward_flops, 0);
    cr_expect_eq(ckpt_explain(o.b.t, out), RW_OK, "%s", rw_error_message(o.b.ctx));
    cr_expect_gt(ftell(out), 0);
    fclose(out);
    world_close(&o);
}

Test(plan_only, leaves_eager_and_verify_aside)
{
    static const char *const modes[] = { "1", "digest" };
    setenv("REWIND_EAGER", "1", 1);
    for (int i = 0; i < 2; i++) {
        struct world o;
        rw_prediction p;
        setenv("REWIND_VERIFY", modes[i], 1);
        world_open(&o, "/tmp/rewind-no-such-folder");
        cr_expect_eq(rw_tape_plan(o.b.t, o.loss, "none", &p), RW_OK, "%s", rw_error_message(o.b.ctx));
        world_close(&o);
    }
    unsetenv("REWIND_EAGER"), unsetenv("REWIND_VERIFY");
}
