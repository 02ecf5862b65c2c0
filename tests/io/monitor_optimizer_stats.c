/*
 * A monitor's statistics from an optimizer's pass: they are those of the update, the same in calls, graphs and inside
 * backward and for every number of threads, and no byte of a training depends on the monitor.
 */
#include "io/monitor_fixture.h"

#include "api/optimizer.h"
#include "base/alloc.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the numbers ---- */

/* One parameter's sums, for plain SGD: the weight, or its master copy, minus the rate times the gradient. */
static void sum_up(struct zoo *z, int k, double lr, double **weight, double sum[4])
{
    const int64_t n = zoo_size(z, k);
    double *const g = tensor_numbers(rw_gradient(z->w[k]), n);
    memset(sum, 0, 4 * sizeof *sum);
    for (int64_t i = 0; i < n; i++) {
        const double before = weight[k][i];
        const float less = (float)lr * (float)g[i], rounded = (float)before - less;
        weight[k][i] = zoo_dtypes[k] == RW_F64 ? before - lr * g[i] : (double)rounded;
        sum[0] += g[i] * g[i];
        sum[1] += weight[k][i] * weight[k][i];
        sum[2] += (weight[k][i] - before) * (weight[k][i] - before);
        sum[3] += g[i] == 0;
    }
    free(g);
}

static void expect_group(const cJSON *line, const char *name, const double sum[4], double elements)
{
    const cJSON *const g = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(line, "groups"), name);
    cr_assert_not_null(g, "%s", name);
    line_expect(g, "elements", elements);
    line_expect(g, "grad_norm", sqrt(sum[0]));
    line_expect(g, "param_norm", sqrt(sum[1]));
    line_expect(g, "update_ratio", sqrt(sum[2] / sum[1]));
    line_expect(g, "zeros", sum[3] / elements);
}

Test(monitor_optimizer_stats, tells_of_what_the_update_met)
{
    static const rw_monitor_group groups[] = { { "none", "x*" }, { "second", "w.1" }, { "narrow", "w.[12]" },
                                               { "rest", "w*" } };
    struct zoo z = zoo_open(2);
    double *weight[N];
    cr_assert_eq(rw_sgd_create(&z.opt, z.b.ctx, &(rw_sgd_params){ .lr = 0.001 }), RW_OK);
    rw_monitor *m = zoo_watch(&z, groups, 4);
    for (int k = 0; k < N; k++) weight[k] = tensor_numbers(z.w[k], zoo_size(&z, k));
    for (int s = 0; s < 2; s++) {
        double sum[N][4], rest[4] = { 0 }, all[4] = { 0 }, n_rest = 0;
        zoo_backward(&z);
        for (int k = 0; k < N; k++) sum_up(&z, k, 0.001, weight, sum[k]);
        for (int k = 0; k < N; k++)
            for (int j = 0; j < 4; j++) {
                all[j] += sum[k][j];
                if (k != 1 && k != 2) rest[j] += sum[k][j];
            }
        for (int k = 0; k < N; k++) n_rest += k != 1 && k != 2 ? (double)zoo_size(&z, k) : 0;
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
        monitor_step(m, 0);
        cJSON *const line = line_last();
        expect_group(line, "second", sum[1], (double)zoo_size(&z, 1));
        expect_group(line, "narrow", sum[2], (double)zoo_size(&z, 2));
        expect_group(line, "rest", rest, n_rest);
        cr_expect_null(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(line, "groups"), "none"));
        line_expect(line, "grad_norm", sqrt(all[0]));
        line_expect(line, "param_norm", sqrt(all[1]));
        line_expect(line, "update_ratio", sqrt(all[2] / all[1]));
        cJSON_Delete(line);
    }
    monitor_step(m, 5);
    cJSON *const line = line_last();
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line, "param_norm"), "of an update that was told of");
    line_expect(line, "grad_norm", 5);
    cJSON_Delete(line);
    for (int k = 0; k < N; k++) free(weight[k]);
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

/* ---- kinds of updates ---- */

/* Runs n steps with updates by calls, a graph, fused ones or a scaler. */
static void run_steps(struct zoo *z, enum how how, int n)
{
    rw_graph *g = NULL;
    rw_scaler *s = NULL;
    if (how == GRAPH || how == INSIDE)
        cr_assert_eq(rw_graph_create(&g, z->b.t, zoo_loss(z),
                                     &(rw_graph_params){ { recorded_update(z->opt, how == INSIDE) } }),
                     RW_OK, "%s", rw_error_message(z->b.ctx));
    if (how == SCALER) cr_assert_eq(rw_scaler_create(&s, z->b.ctx, &(rw_scaler_params){ .init_scale = 8 }), RW_OK);
    for (int i = 0; i < n; i++) {
        if (g) {
            cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(z->b.ctx));
        } else if (s) {
            rw_zero_grad(z->b.ctx);
            cr_assert_eq(rw_scaler_backward(s, z->b.t, zoo_loss(z)), RW_OK);
            rw_tape_reset(z->b.t);
            cr_assert_eq(rw_scaler_step(s, z->opt), RW_OK);
            cr_assert_eq(rw_scaler_update(s), RW_OK);
        } else {
            zoo_backward(z);
            cr_assert_eq(rw_optimizer_step(z->opt), RW_OK);
        }
    }
    rw_graph_destroy(&g);
    rw_scaler_destroy(&s);
}

struct outcome {
    unsigned char *parameters;
    size_t bytes;
    double sums[N][RW_UPDATE_SUMS];
};

/* Trains two steps, watched by a monitor or not, and keeps the optimizer's sums and the parameters. */
static struct outcome run(enum how how, int rule, bool by_chance, bool watched, int threads)
{
    struct outcome o = { 0 };
    struct zoo z = zoo_open(threads);
    bool known = false;
    uint64_t seen = 0;
    zoo_optimizer(&z, rule, by_chance);
    rw_monitor *m = watched ? zoo_watch(&z, NULL, 0) : NULL;
    run_steps(&z, how, 2);
    cr_assert_eq(rw_optimizer_read_sums(z.opt, o.sums, &seen, &known), RW_OK);
    cr_assert_eq(known, watched);
    o.parameters = all_parameters(z.b.ctx, &o.bytes);
    rw_monitor_destroy(&m);
    zoo_close(&z);
    return o;
}

Test(monitor_optimizer_stats, changes_no_byte_of_a_training)
{
    for (int rule = 0; rule < 3; rule++)
        for (int how = CALLS; how <= SCALER; how++) {
            const bool by_chance = how == INSIDE && rule < 2;
            const struct outcome off = run(how, rule, by_chance, false, 1), on = run(how, rule, by_chance, true, 1);
            cr_expect_eq(first_difference(off.parameters, on.parameters, off.bytes), -1, "rule %d, how %d", rule, how);
            free(off.parameters);
            free(on.parameters);
        }
}

Test(monitor_optimizer_stats, reports_the_same_for_every_kind_of_update)
{
    const struct outcome calls = run(CALLS, 0, false, true, 1);
    for (int how = GRAPH; how <= INSIDE; how++) {
        const struct outcome o = run(how, 0, false, true, 1 + how);
        cr_expect_eq(memcmp(calls.sums, o.sums, sizeof o.sums), 0, "how %d", how);
        free(o.parameters);
    }
    free(calls.parameters);
}

/* ---- nothing to report ---- */

Test(monitor_optimizer_stats, tells_nothing_of_an_update_that_was_left_out)
{
    struct zoo z = zoo_open(1);
    rw_scaler *s = NULL;
    zoo_optimizer(&z, 0, false);
    rw_monitor *m = zoo_watch(&z, NULL, 0);
    run_steps(&z, CALLS, 1);
    monitor_step(m, 1);
    cJSON *line = line_last();
    cr_expect(line_number(line, "param_norm") > 0);
    cJSON_Delete(line);
    cr_assert_eq(rw_scaler_create(&s, z.b.ctx, &(rw_scaler_params){ .init_scale = 0x1p127 }), RW_OK);
    rw_zero_grad(z.b.ctx);
    cr_assert_eq(rw_scaler_backward(s, z.b.t, zoo_loss(&z)), RW_OK);
    rw_tape_reset(z.b.t);
    cr_assert_eq(rw_scaler_step(s, z.opt), RW_OK);
    cr_assert_eq(rw_scaler_update(s), RW_OK);
    rw_scaler_state state;
    cr_assert_eq(rw_scaler_get(s, &state), RW_OK);
    cr_assert_eq(state.skipped, 1);
    monitor_step(m, 1);
    line = line_last();
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line, "param_norm"));
    cJSON_Delete(line);
    rw_scaler_destroy(&s);
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

/* ---- graphs that reach different parameters ---- */

struct numbers {
    rw_monitor_numbers all;
    rw_monitor_group_numbers group[2];
    unsigned alerts;
};

/* Three launches: of a graph that reaches a and b, of one that reaches a alone, of the first again. In the first launch
   the gradient of b has an infinity. */
static void launch_in_turn(bool inside, double max_norm, struct numbers ret[3])
{
    static const rw_monitor_group groups[] = { { "first", "a" }, { "second", "b" } };
    struct fixture b = fixture_open(2, 1);
    rw_tape *other = NULL;
    rw_optimizer *opt = NULL;
    rw_monitor *m = NULL;
    rw_graph *both = NULL, *alone = NULL;
    const float one[4] = { 1, 2, 3, 4 }, two[4] = { 10, 20, 30, 40 }, scale[4] = { 1, INFINITY, 1, 1 };
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_tensor *const x = rw_param(b.ctx, "a", RW_F32, RW_SHAPE(4));
    rw_tensor *const y = rw_param(b.ctx, "b", RW_F32, RW_SHAPE(4));
    rw_write(x, one, sizeof one);
    rw_write(y, two, sizeof two);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.001 }), RW_OK);
    cr_assert_eq(rw_monitor_create(&m, b.ctx, NULL), RW_OK);
    const rw_monitor_sources sources = { .optimizer = opt, .groups = groups, .n_groups = 2 };
    cr_assert_eq(rw_monitor_watch(m, &sources), RW_OK);
    rw_tensor *const factor = rw_input(b.t, RW_F32, RW_SHAPE(4), max_norm > 0 ? one : scale, sizeof scale);
    rw_tensor *const of_both = rw_sum_all(b.t, rw_add(b.t, rw_mul(b.t, x, x), rw_mul(b.t, rw_mul(b.t, y, y), factor)));
    rw_tensor *const of_one = rw_sum_all(other, rw_mul(other, x, x));
    rw_graph_params p = { 0 };
    if (max_norm > 0) p.recorders[0] = rw_record_clip(max_norm);
    p.recorders[max_norm > 0] = inside ? rw_record_update_inside(opt) : rw_record_update(opt);
    cr_assert_eq(rw_graph_create(&both, b.t, of_both, &p), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_graph_create(&alone, other, of_one, &p), RW_OK, "%s", rw_error_message(b.ctx));
    for (int s = 0; s < 3; s++) {
        memset(&ret[s], 0, sizeof ret[s]);
        cr_assert_eq(rw_graph_launch(s == 1 ? alone : both), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_monitor_step(m, &(rw_monitor_values){ .step = s + 1, .loss = 1 }, &ret[s].alerts), RW_OK);
        ret[s].all = rw_monitor_get_numbers(m);
        for (size_t i = 0; i < 2; i++) rw_monitor_get_group(m, i, &ret[s].group[i]);
    }
    rw_graph_destroy(&both);
    rw_graph_destroy(&alone);
    rw_monitor_destroy(&m);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

static bool same_number(double a, double b)
{
    return isnan(a) ? isnan(b) : isinf(a) || isinf(b) ? a == b : fabs(a - b) <= 1e-6 * fabs(a);
}

/* The sums of a step without b were those of the step before. */
Test(monitor_optimizer_stats, tells_nothing_of_a_parameter_that_a_launch_does_not_reach)
{
    for (int clips = 0; clips < 2; clips++) {
        struct numbers after[3], inside[3];
        launch_in_turn(false, clips ? 1 : 0, after);
        launch_in_turn(true, clips ? 1 : 0, inside);
        for (int s = 0; s < 3; s++) {
            cr_expect_eq(inside[s].alerts, after[s].alerts, "launch %d: 0x%x and 0x%x", s, inside[s].alerts,
                         after[s].alerts);
            cr_expect(same_number(inside[s].all.grad_norm, after[s].all.grad_norm), "launch %d: %g and %g", s,
                      inside[s].all.grad_norm, after[s].all.grad_norm);
            cr_expect(same_number(inside[s].all.param_norm, after[s].all.param_norm), "launch %d: %g and %g", s,
                      inside[s].all.param_norm, after[s].all.param_norm);
            for (int i = 0; i < 2; i++) {
                const rw_monitor_group_numbers *const x = &inside[s].group[i], *const y = &after[s].group[i];
                cr_expect(same_number(x->grad_norm, y->grad_norm) && same_number(x->param_norm, y->param_norm) &&
                          same_number(x->update_ratio, y->update_ratio), "launch %d, group %d: %g, %g, %g and %g, %g, "
                          "%g", s, i, x->grad_norm, x->param_norm, x->update_ratio, y->grad_norm, y->param_norm,
                          y->update_ratio);
            }
        }
    }
}

Test(monitor_optimizer_stats, ends_with_the_monitor)
{
    struct zoo z = zoo_open(1);
    zoo_optimizer(&z, 0, false);
    rw_monitor *m = zoo_watch(&z, NULL, 0), *other = zoo_watch(&z, NULL, 0);
    cr_assert_eq(rw_monitor_watch(m, NULL), RW_OK);
    cr_expect(rw_optimizer_is_watched(z.opt), "by the other");
    rw_optimizer *const opt = z.opt;
    rw_optimizer_share(opt);
    rw_optimizer_destroy(&z.opt);
    rw_monitor_destroy(&m);
    rw_monitor_destroy(&other);
    cr_expect(!rw_optimizer_is_watched(opt));
    rw_optimizer_release(opt);
    zoo_close(&z);
}

/* Each allocation of the call fails once: what was monitored before still is. */
Test(monitor_optimizer_stats, without_memory_goes_on_as_before)
{
    static const rw_monitor_group all = { "all", "*" };
    struct zoo z = zoo_open(1);
    rw_memory was, is;
    zoo_optimizer(&z, 0, false);
    rw_monitor *m = NULL;
    cr_assert_eq(rw_monitor_create(&m, z.b.ctx, zoo_path), RW_OK);
    rw_memory_stats(z.b.ctx, &was);
    rw_status status;
    uint64_t n = 1;
    for (;; n++) {
        rw_alloc_fail_at(n);
        status = rw_monitor_watch(m, &(rw_monitor_sources){ .optimizer = z.opt, .groups = &all, .n_groups = 1 });
        rw_alloc_fail_at(0);
        if (!status) break;
        cr_assert_eq(status, RW_ERR_MEMORY);
        cr_assert(!rw_optimizer_is_watched(z.opt));
        rw_error_clear(z.b.ctx);
    }
    cr_assert_gt(n, N);
    cr_expect(rw_optimizer_is_watched(z.opt));
    rw_memory_stats(z.b.ctx, &is);
    cr_expect_eq(is.optimizer, was.optimizer);
    run_steps(&z, INSIDE, 1);
    monitor_step(m, 1);
    cJSON *const line = line_last();
    cr_expect(line_number(line, "param_norm") > 0);
    cJSON_Delete(line);
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

/* ---- alerts, mistakes ---- */

Test(monitor_optimizer_stats, warns_of_updates_that_do_nothing)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    rw_monitor *m = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    const float ones[4] = { 1, 1, 1, 1 }, few[4] = { 1, 0, 0, 0 };
    unsigned alerts;
    cr_assert_eq(rw_write(w, ones, sizeof ones), RW_OK);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 1e-6 }), RW_OK);
    cr_assert_eq(rw_monitor_create(&m, b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_monitor_watch(m, &(rw_monitor_sources){ .optimizer = opt }), RW_OK);
    for (int i = 0; i < 101; i++) {
        const float *const x = i == 100 ? few : ones;
        rw_zero_grad(b.ctx);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, w, rw_input(b.t, RW_F32, RW_SHAPE(4), x, 4 * sizeof *x)),
                                             RW_ALL_AXES, false)),
                     RW_OK);
        rw_tape_reset(b.t);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
        cr_assert_eq(rw_monitor_step(m, &(rw_monitor_values){ .loss = 100 - i, .grad_norm = 1 }, &alerts), RW_OK);
        alerts &= (unsigned)(RW_ALERT_UPDATES | RW_ALERT_ZEROS);
        cr_expect_eq(alerts, i == 99 ? RW_ALERT_UPDATES : i == 100 ? RW_ALERT_ZEROS : 0, "step %d: %#x", i, alerts);
    }
    rw_monitor_destroy(&m);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

static void expect_refused(rw_monitor *m, rw_context *ctx, rw_monitor_sources s, const char *says)
{
    cr_expect_eq(rw_monitor_watch(m, &s), RW_ERR_ARGUMENT, "%s", says);
    cr_expect(strstr(rw_error_message(ctx), says), "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
}

Test(monitor_optimizer_stats, refuses_what_makes_no_sense)
{
    struct zoo z = zoo_open(1), other = zoo_open(1);
    zoo_optimizer(&z, 0, false);
    zoo_optimizer(&other, 0, false);
    rw_monitor *m = zoo_watch(&z, NULL, 0);
    const rw_monitor_group many[17] = { { "a", "*" } };
    char name[62];
    memset(name, 'x', 61);
    name[61] = 0;
    const rw_monitor_group long_one = { name, "*" }, quoted = { "a\"", "*" }, empty = { "", "*" }, no = { "a", NULL };
    cr_expect_eq(rw_monitor_watch(NULL, NULL), RW_ERR_ARGUMENT);
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ .optimizer = other.opt }, "another context");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ .peak_flops = -1 },
            "(peak_flops): expected a finite number of 0 or more, got -1");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ .peak_flops = NAN }, "(peak_flops)");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, many, 17, 0 }, "expected at most 16, got 17");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ NULL, many, 1, 0 }, "optimizer");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, NULL, 1, 0 }, "groups");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, &long_one, 1, 0 }, "expected at most 60 bytes");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, &quoted, 1, 0 },
            "expected text without control characters");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, &empty, 1, 0 }, "name or pattern");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, &no, 1, 0 }, "name or pattern");
    const rw_monitor_group twice[] = { { "g", "a.*" }, { "h", "*" }, { "g", "b.*" } };
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, twice, 3, 0 },
            "(groups): expected a name for each group, got \"g\" for groups 0 and 2");
    zoo_backward(&z);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
    monitor_step(m, 1);
    cJSON *const line = line_last();
    cr_expect(line_number(line, "param_norm") > 0, "what was watched before is");
    cJSON_Delete(line);
    rw_monitor_destroy(&m);
    zoo_close(&other);
    zoo_close(&z);
}
