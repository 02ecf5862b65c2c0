/*
 * One setting changes between two steps, by any public call: the steps after it have the bytes of a fresh context that
 * had this setting from the beginning. State that a step leaves in the process - plans, caches, arenas, suspended runs,
 * counts - must not affect the next one.
 *
 *     changed:  open, step, save, CHANGES, step, step
 *     fresh:    open, changes, load, changes that a load would undo, step, step       the same process, another context
 *
 * Each change alone, and each ordered pair; under sanitizers and on the simulated device a sample of the pairs.
 */
#include "io/saved_run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, WIDTH = 24, BYTES = 1 << 18 };

struct run {
    struct fixture b;
    struct net net;
    rw_optimizer *opt;
    rw_weight_average *average;
    rw_scaler *scaler;
    rw_monitor *monitor;
    rw_checkpoint *ck;
    rw_graph *graph;
    rw_tape *other;    /* has a recorded or suspended step */
    rw_tensor *gain;   /* a buffer or parameter by which the loss is multiplied */
    const rw_recipe *recipe;
    double max_norm;
    int tokens, micro;
    bool reads;        /* logs the loss before backward */
    bool measures, measured; /* has costs, which determine what a budget keeps */
    unsigned char bytes[BYTES];
    size_t n;
};

static void ok(const struct run *r, rw_status status)
{
    cr_assert(!status && !rw_error_status(r->b.ctx), "%s", rw_error_message(r->b.ctx));
}

/* ---- a step ---- */

static void keep(struct run *r, const void *data, size_t bytes)
{
    cr_assert_lt(r->n + bytes, sizeof r->bytes);
    memcpy(r->bytes + r->n, data, bytes);
    r->n += bytes;
}

static rw_tensor *loss_of(const struct run *r, rw_tape *t, int step)
{
    if (r->recipe) ok(r, rw_recipe_begin(t, r->recipe));
    rw_tensor *loss = net_loss(&r->net, t, r->tokens, step);
    if (r->recipe) ok(r, rw_recipe_end(t));
    return r->gain ? rw_mul(t, loss, rw_cast(t, r->gain, rw_tensor_dtype(loss))) : loss;
}

static double backward(struct run *r, int step)
{
    double sum = 0;
    for (int m = 0; m < r->micro; m++) {
        rw_tensor *const loss = loss_of(r, r->b.t, 10 * step + m);
        if (r->reads) rw_item(r->b.t, loss);
        ok(r, r->scaler ? rw_scaler_backward(r->scaler, r->b.t, loss) : rw_backward(r->b.t, loss));
        sum += rw_item(r->b.t, loss);
        rw_tape_reset(r->b.t);
    }
    return sum;
}

/* The step's plan must also be the one for the requested policy. */
static void keep_plan(struct run *r)
{
    rw_memory m;
    ok(r, rw_memory_stats(r->b.ctx, &m));
    const size_t plan[] = { m.kept, m.replayed, m.largest_live, m.predicted_peak };
    if (!r->measured) keep(r, plan, sizeof plan);
}

/* One training step, whose results are logged. */
static void step(struct run *r, int number)
{
    double norm = 0;
    const double loss = backward(r, number);
    keep_plan(r);
    if (r->scaler) ok(r, rw_scaler_unscale(r->scaler));
    if (r->max_norm > 0) ok(r, rw_clip_grad_norm(r->b.ctx, r->max_norm, &norm));
    size_t bytes;
    unsigned char *const gradients = all_gradients(r->b.ctx, &bytes);
    keep(r, &loss, sizeof loss), keep(r, &norm, sizeof norm), keep(r, gradients, bytes);
    free(gradients);
    if (r->opt) ok(r, r->scaler ? rw_scaler_step(r->scaler, r->opt) : rw_optimizer_step(r->opt));
    if (r->scaler) ok(r, rw_scaler_update(r->scaler));
    if (r->average) ok(r, rw_weight_average_step(r->average));
    if (r->monitor) ok(r, rw_monitor_step(r->monitor, &(rw_monitor_values){ .step = 1, .loss = loss }, NULL));
    rw_zero_grad(r->b.ctx);
}

/* The state after the steps: parameters, averages, the generator. */
static void keep_state(struct run *r)
{
    const rw_generator_state g = rw_generator_get(r->b.ctx);
    size_t bytes;
    unsigned char *const parameters = all_parameters(r->b.ctx, &bytes);
    keep(r, parameters, bytes), keep(r, &g, sizeof g);
    free(parameters);
    for (size_t i = 0; r->average; i++) {
        rw_tensor *const p = rw_param_get(r->b.ctx, i);
        if (!p) break;
        rw_tensor *const a = rw_weight_average_of(r->average, p);
        if (!a) continue;
        float x[WIDTH * WIDTH * 8];
        cr_assert_leq(rw_tensor_bytes(a), sizeof x);
        ok(r, rw_read(NULL, a, x, rw_tensor_bytes(a)));
        keep(r, x, rw_tensor_bytes(a));
    }
}

static void open_run(struct run *r)
{
    memset(r, 0, sizeof *r);
    r->b = fixture_open(5, 2);
    r->tokens = 6, r->micro = 1;
    net_init(&r->net, r->b.ctx, LAYERS, WIDTH, RW_F32, 1);
    ok(r, rw_adamw_create(&r->opt, r->b.ctx, &(rw_adamw_params){ .lr = 0.01 }));
    ok(r, rw_checkpoint_create(&r->ck, r->b.ctx, &(rw_checkpoint_params){ .folder = folder, .optimizer = r->opt }));
}

static void close_run(struct run *r)
{
    rw_graph_destroy(&r->graph);
    rw_monitor_destroy(&r->monitor);
    rw_checkpoint_destroy(&r->ck);
    rw_scaler_destroy(&r->scaler);
    rw_weight_average_destroy(&r->average);
    rw_optimizer_destroy(&r->opt);
    rw_tape_destroy(&r->other);
    fixture_close(&r->b);
}

/* ---- the changes ---- */

static void set_policy(struct run *r, const char *policy)
{
    ok(r, ckpt_set_policy(r->b.t, policy));
}

static void policy_full(struct run *r)
{
    set_policy(r, "full");
}

static void policy_uniform(struct run *r)
{
    set_policy(r, "uniform:1");
}

static void policy_uniform_longer(struct run *r)
{
    set_policy(r, "uniform:12");
}

static void policy_ops(struct run *r)
{
    set_policy(r, "ops:linear");
}

static void policy_budget(struct run *r)
{
    set_policy(r, "budget:80%");
}

static void policy_total(struct run *r)
{
    set_policy(r, "total:64MiB");
}

static void policy_none(struct run *r)
{
    set_policy(r, "none");
}

static void threads_1(struct run *r)
{
    ok(r, rw_context_set_threads(r->b.ctx, 1));
}

static void threads_3(struct run *r)
{
    ok(r, rw_context_set_threads(r->b.ctx, 3));
}

static void more_tokens(struct run *r)
{
    r->tokens = 9;
}

static void micro_batches(struct run *r)
{
    r->micro = 3;
}

static void reads_before(struct run *r)
{
    r->reads = true;
}

static void clips(struct run *r)
{
    r->max_norm = 1e-3;
}

static void zero_grad(struct run *r)
{
    rw_zero_grad(r->b.ctx);
}

static void seed(struct run *r)
{
    rw_generator_set(r->b.ctx, (rw_generator_state){ 99, 1000 });
}

static void lr(struct run *r)
{
    rw_optimizer_set_lr(r->opt, 0.25);
}

static void costs_on(struct run *r)
{
    if (!r->measures) ok(r, rw_profile_begin(r->b.ctx));
    r->measures = r->measured = true;
}


static void recipe_bf16(struct run *r)
{
    static const rw_recipe recipe = { .kind = RW_RECIPE_BF16 };
    r->recipe = &recipe;
}

static void recipe_f8(struct run *r)
{
    static const rw_recipe recipe = { .kind = RW_RECIPE_F8, .keep_weights = true };
    r->recipe = &recipe;
}

static void recipe_off(struct run *r)
{
    r->recipe = NULL;
}

static void freezes(struct run *r)
{
    ok(r, rw_optimizer_set(r->opt, r->net.up[0], &(rw_optimizer_settings){ .lr_factor = RW_ZERO }));
}

static void decays(struct run *r)
{
    ok(r, rw_optimizer_set(r->opt, r->net.up[1], &(rw_optimizer_settings){ .weight_decay = 0.5 }));
}

static void writes(struct run *r)
{
    float x[8 * WIDTH * WIDTH];
    const size_t bytes = rw_tensor_bytes(r->net.down[0]);
    cr_assert_leq(bytes, sizeof x);
    for (size_t i = 0; i < bytes / sizeof *x; i++) x[i] = (float)((int)(i % 17) - 8) / 64;
    ok(r, rw_write(r->net.down[0], x, bytes));
}

static void initializes(struct run *r)
{
    ok(r, rw_init_normal(r->net.up[0], 0, 0.1));
}

static void buffer(struct run *r)
{
    if (r->gain) return;
    r->gain = rw_buffer(r->b.ctx, "a buffer", RW_F32, RW_SHAPE(1));
    ok(r, rw_init_constant(r->gain, 1.5));
}

/* Without an optimizer: the program handles its gradient. */
static void parameter(struct run *r)
{
    if (r->gain) return;
    r->gain = rw_param(r->b.ctx, "a parameter", RW_F32, RW_SHAPE(1));
    ok(r, rw_init_constant(r->gain, 0.75));
    ok(r, rw_optimizer_exclude(r->gain, true));
}

static void other_optimizer(struct run *r)
{
    rw_optimizer_destroy(&r->opt);
    ok(r, rw_sgd_create(&r->opt, r->b.ctx, &(rw_sgd_params){ .lr = 0.1, .momentum = 0.9 }));
}

static void average(struct run *r)
{
    if (r->average) ok(r, rw_weight_average_set_decay(r->average, 0.25));
    else ok(r, rw_weight_average_create(&r->average, r->b.ctx, 0.5));
}

static void no_average(struct run *r)
{
    rw_weight_average_destroy(&r->average);
}

static void scaler(struct run *r)
{
    rw_scaler_destroy(&r->scaler);
    static int n; /* its buffer's name is in use as long as the context exists */
    char name[32];
    snprintf(name, sizeof name, "scaler %d", n++);
    ok(r, rw_scaler_create(&r->scaler, r->b.ctx, &(rw_scaler_params){ .name = name, .init_scale = 1024 }));
}

static void no_scaler(struct run *r)
{
    rw_scaler_destroy(&r->scaler);
}

static void monitor(struct run *r)
{
    if (!r->monitor) ok(r, rw_monitor_create(&r->monitor, r->b.ctx, NULL));
    ok(r, rw_monitor_watch(r->monitor, &(rw_monitor_sources){ .optimizer = r->opt, .sites = true }));
}

/* Steps may not change costs that a program measures. */
static void costs_known(struct run *r)
{
    costs_on(r);
    rw_tensor *const loss = loss_of(r, r->b.t, 77);
    ok(r, rw_backward(r->b.t, loss));
    rw_tape_reset(r->b.t);
    rw_zero_grad(r->b.ctx);
    ok(r, rw_profile_end(r->b.ctx));
    r->measures = false;
}

static void graph_unused(struct run *r)
{
    rw_graph_destroy(&r->graph);
    rw_tape_destroy(&r->other);
    ok(r, rw_tape_create(&r->other, r->b.ctx));
    const rw_status status = rw_graph_create(&r->graph, r->other, loss_of(r, r->other, 3), NULL);
    if (status == RW_ERR_UNSUPPORTED) rw_error_clear(r->b.ctx); /* quantized weights that are kept */
    else ok(r, status);
}

static void graph_launched(struct run *r)
{
    graph_unused(r);
    for (int i = 0; r->graph && i < 2; i++) {
        ok(r, rw_graph_launch(r->graph));
        rw_zero_grad(r->b.ctx);
    }
}

static void suspended(struct run *r)
{
    rw_graph_destroy(&r->graph);
    rw_tape_destroy(&r->other);
    ok(r, rw_tape_create(&r->other, r->b.ctx));
    rw_tensor *const loss = loss_of(r, r->other, 4);
    ok(r, rw_forward(r->other, &loss, 1));
}

static void evaluated(struct run *r)
{
    ok(r, rw_no_grad_begin(r->b.t));
    cr_assert(isfinite(rw_item(r->b.t, loss_of(r, r->b.t, 8))));
    ok(r, rw_no_grad_end(r->b.t));
    rw_tape_reset(r->b.t);
}

static void verified(struct run *r)
{
    ok(r, ckpt_verify(r->b.t, loss_of(r, r->b.t, 9), NULL));
    rw_tape_reset(r->b.t);
}

static void planned_only(struct run *r)
{
    rw_prediction p;
    ok(r, rw_tape_plan(r->b.t, loss_of(r, r->b.t, 9), "full", &p));
    rw_tape_reset(r->b.t);
}

static void new_tape(struct run *r)
{
    rw_tape_destroy(&r->b.t);
    ok(r, rw_tape_create(&r->b.t, r->b.ctx));
}

/* Backward without an update, whose gradients are discarded. */
static void skipped(struct run *r)
{
    ok(r, rw_backward(r->b.t, loss_of(r, r->b.t, 6)));
    rw_tape_reset(r->b.t);
    rw_zero_grad(r->b.ctx);
}

static void refused(struct run *r)
{
    cr_assert_null(rw_add(r->b.t, r->net.up[0], rw_zeros(r->b.t, RW_F32, RW_SHAPE(WIDTH + 1, WIDTH + 1))));
    cr_assert_eq(rw_error_status(r->b.ctx), RW_ERR_SHAPE);
    rw_error_clear(r->b.ctx);
    rw_tape_reset(r->b.t);
}

static void budget_refused(struct run *r)
{
    char policy[64];
    snprintf(policy, sizeof policy, "%s", ckpt_policy(r->b.t));
    ok(r, ckpt_set_policy(r->b.t, "budget:1B"));
    cr_assert_neq(rw_backward(r->b.t, loss_of(r, r->b.t, 5)), RW_OK);
    rw_error_clear(r->b.ctx);
    rw_tape_reset(r->b.t);
    set_policy(r, policy);
}

static void address(struct run *r)
{
    cr_assert_not_null(rw_tensor_data(rw_gradient(r->net.down[1])));
}

static const struct change {
    const char *name;
    void (*make)(struct run *r);
    bool after_load; /* a load would undo or refuse it, or it draws random numbers */
} changes[] = {
    { "policy full", policy_full, false },
    { "policy uniform:1", policy_uniform, false },
    { "policy uniform:12", policy_uniform_longer, false },
    { "policy ops", policy_ops, false },
    { "policy budget", policy_budget, false },
    { "policy total", policy_total, false },
    { "policy none", policy_none, false },
    { "1 thread", threads_1, false },
    { "3 threads", threads_3, false },
    { "more tokens", more_tokens, false },
    { "micro-batches", micro_batches, false },
    { "reads before backward", reads_before, false },
    { "clips", clips, false },
    { "zero_grad", zero_grad, false },
    { "another seed", seed, true },
    { "learning rate", lr, true },
    { "costs", costs_on, false },
    { "recipe bf16", recipe_bf16, false },
    { "recipe f8", recipe_f8, false },
    { "no recipe", recipe_off, false },
    { "frozen parameter", freezes, true },
    { "weight decay", decays, true },
    { "rw_write", writes, true },
    { "rw_init_normal", initializes, true },
    { "buffer", buffer, true },
    { "parameter", parameter, true },
    { "another optimizer", other_optimizer, true },
    { "average", average, true },
    { "no average", no_average, true },
    { "scaler", scaler, true },
    { "no scaler", no_scaler, true },
    { "monitor", monitor, true },
    { "measured costs", costs_known, true },
    { "graph", graph_unused, true },
    { "launched graph", graph_launched, true },
    { "suspended run", suspended, true },
    { "evaluation", evaluated, true },
    { "verification", verified, true },
    { "plan", planned_only, true },
    { "new tape", new_tape, true },
    { "skipped step", skipped, true },
    { "refused op", refused, true },
    { "refused budget", budget_refused, true },
    { "gradient's address", address, true },
};
enum { CHANGES = sizeof changes / sizeof *changes };

/* ---- the comparison ---- */

static void two_steps(struct run *r)
{
    r->n = 0;
    for (int i = 1; i < 3; i++) step(r, i);
    keep_state(r);
}

/* If a load is between two changes, the order is a different program: there, changes before the load come first. */
static bool is_fair(const int *which, int n)
{
    for (int i = 1; i < n; i++)
        if (changes[which[i - 1]].after_load && !changes[which[i]].after_load) return false;
    return true;
}

/* Applies one or two changes between steps, and compares with a fresh context. */
static void compare(const int *which, int n)
{
    static struct run changed, fresh;
    const char *const names[2] = { changes[which[0]].name, n > 1 ? changes[which[1]].name : "" };
    open_run(&changed);
    step(&changed, 0);
    ok(&changed, rw_checkpoint_save(changed.ck, 1, NULL, 0));
    ok(&changed, rw_checkpoint_wait(changed.ck));
    for (int i = 0; i < n; i++) changes[which[i]].make(&changed);
    two_steps(&changed);
    rw_checkpoint_destroy(&changed.ck); /* the folder's lock */
    open_run(&fresh);
    for (int i = 0; i < n; i++)
        if (!changes[which[i]].after_load) changes[which[i]].make(&fresh);
    rw_checkpoint_found found;
    cr_assert_eq(rw_checkpoint_load(fresh.ck, &found), RW_OK, "%s", rw_error_message(fresh.b.ctx));
    cr_assert(found.found);
    for (int i = 0; i < n; i++)
        if (changes[which[i]].after_load) changes[which[i]].make(&fresh);
    two_steps(&fresh);
    cr_assert_eq(changed.n, fresh.n, "%s, %s", names[0], names[1]);
    const long at = first_difference(changed.bytes, fresh.bytes, changed.n);
    cr_expect_eq(at, -1, "%s, %s: byte %ld of %zu", names[0], names[1], at, changed.n);
    close_run(&fresh);
    close_run(&changed);
    empty_folder(folder);
}

Test(between_steps, one_change_is_as_from_the_beginning, .timeout = 1200)
{
    folder_open();
    for (int i = 0; i < CHANGES; i++) compare(&i, 1);
    folder_close();
}

/* In a sample, too, every change comes first in some pair and second in another: the stride is prime to their
   number. */
Test(between_steps, two_changes_are_as_from_the_beginning, .timeout = 1200)
{
    const int sample = test_steps(1, 37);
    folder_open();
    for (int k = 0; k < CHANGES * CHANGES; k += sample) {
        const int which[] = { k / CHANGES, k % CHANGES };
        if (which[0] == which[1] || !is_fair(which, 2)) continue;
        compare(which, 2);
    }
    folder_close();
}
