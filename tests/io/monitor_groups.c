/*
 * A monitor's output about groups of parameters: norms before clipping, a spike of one group, and groups whose names
 * change between two texts for Prometheus.
 */
#include "io/monitor_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- clipping ---- */

static const rw_monitor_group narrow_and_rest[] = { { "narrow", "w.[12]" }, { "rest", "w*" } };
static const double limit = 0.5;

static void clip_and_step(struct zoo *z, enum how how, rw_graph **g)
{
    const rw_graph_params p = { { rw_record_clip(limit), recorded_update(z->opt, how == INSIDE) } };
    if (how == CALLS) {
        zoo_backward(z);
        cr_assert_eq(rw_clip_grad_norm(z->b.ctx, limit, NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(z->opt), RW_OK);
        return;
    }
    cr_assert_eq(rw_graph_create(g, z->b.t, zoo_loss(z), &p), RW_OK, "%s", rw_error_message(z->b.ctx));
    cr_assert_eq(rw_graph_launch(*g), RW_OK, "%s", rw_error_message(z->b.ctx));
}

/* Sums for the gradients of the first step, by the groups of narrow_and_rest[]. */
static void sum_gradients(double sum[2])
{
    struct zoo z = zoo_open(1);
    zoo_backward(&z);
    for (int k = 0; k < N; k++) {
        double *const g = tensor_numbers(rw_gradient(z.w[k]), zoo_size(&z, k));
        for (int64_t i = 0; i < zoo_size(&z, k); i++) sum[k != 1 && k != 2] += g[i] * g[i];
        free(g);
    }
    zoo_close(&z);
}

/* The numbers passed to a program are those of the line. */
static void expect_numbers(const rw_monitor *m, const cJSON *line)
{
    const rw_monitor_numbers x = rw_monitor_get_numbers(m);
    const double want[] = { x.grad_norm, x.param_norm, x.update_ratio, x.zeros, x.model_flops, x.hardware_flops };
    static const char *const names[] = { "grad_norm", "param_norm", "update_ratio", "zeros", "model_flops_per_s",
                                         "hardware_flops_per_s" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const double got = line_number(line, names[i]);
        cr_expect(fabs(got - want[i]) <= 1e-8 * fabs(want[i]), "%s: %g, not %g", names[i], want[i], got);
    }
}

/* Norms before clipping are the monitor's own sums, in calls, in a graph and inside backward. */
Test(monitor_groups, tells_of_gradients_before_they_are_clipped)
{
    double sum[2] = { 0 };
    sum_gradients(sum);
    const double norm = sqrt(sum[0] + sum[1]);
    cr_assert_gt(norm, 2 * limit);
    for (int how = CALLS; how <= INSIDE; how++) {
        struct zoo z = zoo_open(1 + how);
        rw_graph *g = NULL;
        zoo_optimizer(&z, 0, false);
        rw_monitor *m = zoo_watch(&z, narrow_and_rest, 2);
        clip_and_step(&z, how, &g);
        monitor_step(m, 0);
        cJSON *line = line_last();
        line_expect(line, "grad_norm", norm);
        expect_numbers(m, line);
        for (int i = 0; i < 2; i++) {
            const cJSON *const group = line_group(line, narrow_and_rest[i].name);
            line_expect(group, "unclipped_norm", sqrt(sum[i]));
            const double clipped = sqrt(sum[i]) * limit / norm, got = line_number(group, "grad_norm");
            cr_expect(fabs(got - clipped) <= 0.01 * clipped, "how %d: %g, not %g", how, got, clipped); /* of 16 bits */
        }
        cJSON_Delete(line);
        rw_graph_destroy(&g);
        rw_tape_reset(z.b.t);
        zoo_backward(&z);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK, "%s", rw_error_message(z.b.ctx));
        monitor_step(m, 0);
        line = line_last();
        cr_expect_gt(line_number(line, "grad_norm"), limit);
        cr_expect_null(cJSON_GetObjectItemCaseSensitive(line_group(line, "rest"), "unclipped_norm"), "it was told of");
        cJSON_Delete(line);
        rw_monitor_destroy(&m);
        zoo_close(&z);
    }
}

/* It reports which group is not finite, for a skipped update; the clipping of a graph is included, and a parameter
   created later is in no group. */
Test(monitor_groups, tells_of_clipped_gradients_that_were_not_used)
{
    struct zoo z = zoo_open(1);
    rw_scaler *s = NULL;
    rw_graph *g = NULL;
    const float bad[7 * 6] = { [3] = INFINITY };
    zoo_optimizer(&z, 0, false);
    rw_monitor *m = zoo_watch(&z, narrow_and_rest, 2);
    cr_assert_eq(rw_scaler_create(&s, z.b.ctx, &(rw_scaler_params){ .init_scale = 1 }), RW_OK);
    rw_param(z.b.ctx, "w.late", RW_F32, RW_SHAPE(3));
    cr_assert_eq(rw_scaler_backward(s, z.b.t, zoo_loss(&z)), RW_OK);
    rw_tape_reset(z.b.t);
    cr_assert_eq(rw_write(rw_gradient(z.w[1]), bad, sizeof bad), RW_OK);
    cr_assert_eq(rw_scaler_unscale(s), RW_OK);
    cr_assert_eq(rw_clip_grad_norm(z.b.ctx, limit, NULL), RW_OK);
    cr_assert_eq(rw_scaler_step(s, z.opt), RW_OK);
    cr_assert_eq(rw_scaler_update(s), RW_OK);
    cr_expect(monitor_step(m, 0) & RW_ALERT_GRAD_NONFINITE);
    cJSON *line = line_last();
    cr_expect(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(line_group(line, "narrow"), "unclipped_norm")));
    cr_expect_gt(line_number(line_group(line, "rest"), "unclipped_norm"), 0);
    cr_expect_eq(line_number(line_group(line, "rest"), "elements"), 0);
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line_group(line, "rest"), "param_norm"));
    cJSON_Delete(line);
    clip_and_step(&z, GRAPH, &g);
    rw_graph_destroy(&g);
    monitor_step(m, 0);
    line = line_last();
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line_group(line, "rest"), "unclipped_norm"));
    cJSON_Delete(line);
    rw_scaler_destroy(&s);
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

/* One group's gradients are a thousand times the other's, whose spike is not visible in the norm of all. */
Test(monitor_groups, warns_of_a_spike_of_one_group)
{
    static const rw_monitor_group groups[] = { { "large", "large" }, { "small", "small" }, { "late", "late" } };
    struct zoo z = zoo_empty(1);
    rw_tensor *const large = rw_param(z.b.ctx, "large", RW_F32, RW_SHAPE(4));
    rw_tensor *const small = rw_param(z.b.ctx, "small", RW_F32, RW_SHAPE(4));
    rw_tensor *const late = rw_param(z.b.ctx, "late", RW_F32, RW_SHAPE(4)); /* its gradients are zero except the last */
    cr_assert_eq(rw_sgd_create(&z.opt, z.b.ctx, &(rw_sgd_params){ .lr = 1e-3 }), RW_OK);
    rw_monitor *m = zoo_watch(&z, groups, 3);
    for (int i = 0; i < 24; i++) {
        rw_tape *const t = z.b.t;
        rw_tensor *const a = rw_sum(t, rw_scale(t, large, 1000), RW_ALL_AXES, false);
        rw_tensor *const b = rw_sum(t, rw_scale(t, small, i == 21 ? 9.9 : i == 22 ? 10.1 : 1), RW_ALL_AXES, false);
        rw_tensor *const c = rw_sum(t, rw_scale(t, late, i == 23), RW_ALL_AXES, false);
        rw_zero_grad(z.b.ctx);
        cr_assert_eq(rw_backward(t, rw_add(t, a, rw_add(t, b, c))), RW_OK, "%s", rw_error_message(z.b.ctx));
        rw_tape_reset(t);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
        cr_expect_eq(monitor_step(m, 0) & RW_ALERT_GRAD_SPIKE, i == 22 ? RW_ALERT_GRAD_SPIKE : 0, "step %d", i);
        cJSON *const line = line_last(), *const told = cJSON_GetObjectItem(line_group(line, "small"), "alerts");
        cr_expect_eq(cJSON_GetArraySize(told), i == 22);
        cr_expect_null(cJSON_GetObjectItem(line_group(line, "large"), "alerts"));
        rw_monitor_group_numbers small_now;
        rw_monitor_alert spike;
        cr_assert(rw_monitor_get_group(m, 1, &small_now));
        cr_assert_eq(rw_monitor_get_alert(m, RW_ALERT_GRAD_SPIKE, &spike), i == 22);
        cr_expect_eq(isnan(small_now.usual_norm), i != 22);
        if (i == 22) {
            cr_expect(fabs(spike.value - 20.2) < 1e-5 && fabs(spike.usual - 2) < 1e-5);
            cr_expect_eq(spike.usual, small_now.usual_norm);
            line_expect(line_group(line, "small"), "usual_norm", 2);
        }
        cJSON_Delete(line);
    }
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

/* ---- evaluation before the update ---- */

static double norm_of(struct zoo *z, bool gradients)
{
    double sum = 0;
    for (int k = 0; k < N; k++) {
        double *const x = tensor_numbers(gradients ? rw_gradient(z->w[k]) : z->w[k], zoo_size(z, k));
        for (int64_t i = 0; i < zoo_size(z, k); i++) sum += x[i] * x[i];
        free(x);
    }
    return sqrt(sum);
}

static void expect_near(const cJSON *line, const char *name, double want, int s)
{
    const double got = line_number(line, name);
    cr_expect(fabs(got - want) <= 0.01 * want, "step %d: %s: %g, not %g", s, name, got, want); /* 16 bits */
}

/* The norms, the update and the weights of a line are those of one step, though alerts came before its update; a step
   whose update was skipped has no update, and not that of the step before. */
Test(monitor_groups, a_line_has_the_numbers_of_one_step)
{
    struct zoo z = zoo_open(1);
    cr_assert_eq(rw_sgd_create(&z.opt, z.b.ctx, &(rw_sgd_params){ .lr = 0.01 }), RW_OK);
    rw_monitor *m = zoo_watch(&z, narrow_and_rest, 2);
    for (int s = 0; s < 5; s++) {
        rw_monitor_values v = { .step = (uint64_t)s, .loss = 1, .seconds = 2 };
        unsigned alerts = 77;
        zoo_backward(&z);
        const double norm = norm_of(&z, true);
        cr_assert_eq(rw_clip_grad_norm(z.b.ctx, limit, NULL), RW_OK);
        cr_assert_eq(rw_monitor_check(m, &v, &alerts), RW_OK);
        cr_expect_eq(alerts, 0);
        cr_expect(fabs(rw_monitor_get_numbers(m).grad_norm - norm) <= 0.01 * norm, "known before the update");
        cr_expect(isnan(rw_monitor_get_numbers(m).param_norm));
        if (s != 3) cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
        cr_assert_eq(rw_monitor_step(m, &v, &alerts), RW_OK);
        cJSON *const line = line_last();
        cr_expect_eq(line_number(line, "step"), s);
        expect_near(line, "grad_norm", norm, s);
        if (s != 3) {
            expect_near(line, "param_norm", norm_of(&z, false), s);
            expect_near(line, "update_ratio", 0.01 * limit / norm_of(&z, false), s);
        } else {
            cr_expect_null(cJSON_GetObjectItem(line, "param_norm"));
            cr_expect_eq(line_number(line_group(line, "rest"), "elements"), 0);
        }
        cr_expect_gt(line_number(line_group(line, "rest"), "unclipped_norm"), 0);
        cJSON_Delete(line);
    }
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

/* ---- groups that change between two texts for Prometheus ---- */

static char prometheus[160];

static void expect_reading(const char *line)
{
    static char text[1 << 15];
    FILE *const f = fopen(prometheus, "r");
    cr_assert_not_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    cr_expect(strstr(text, line), "no %s in\n%s", line, text);
}

/* The second and third step are pending until their second has passed: weights of small are 1 and those of large
   100. */
static rw_monitor *with_a_step_that_waits(struct zoo *z, const rw_monitor_group *groups)
{
    *z = zoo_empty(1);
    snprintf(prometheus, sizeof prometheus, "%s.prom", zoo_path);
    rw_tensor *const a = rw_param(z->b.ctx, "a", RW_F32, RW_SHAPE(4)), *const b = rw_param(z->b.ctx, "b", RW_F32,
                                                                                          RW_SHAPE(4));
    cr_assert_eq(rw_init_constant(a, 1), RW_OK);
    cr_assert_eq(rw_init_constant(b, 100), RW_OK);
    cr_assert_eq(rw_sgd_create(&z->opt, z->b.ctx, &(rw_sgd_params){ .lr = 0x1p-100 }), RW_OK);
    rw_monitor *const m = zoo_watch(z, groups, 2);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_PROMETHEUS, prometheus), RW_OK);
    for (int i = 0; i < 3; i++) {
        rw_zero_grad(z->b.ctx);
        cr_assert_eq(rw_backward(z->b.t, rw_sum(z->b.t, rw_add(z->b.t, a, b), RW_ALL_AXES, false)), RW_OK);
        rw_tape_reset(z->b.t);
        cr_assert_eq(rw_optimizer_step(z->opt), RW_OK);
        monitor_step(m, 1);
    }
    return m;
}

Test(monitor_groups, a_suspended_step_keeps_the_names_of_its_groups)
{
    static const rw_monitor_group groups[] = { { "small", "a" }, { "large", "b" } };
    static const rw_monitor_group other[] = { { "large", "b" }, { "small", "a" } };
    for (size_t n = 0; n < 3; n++) {
        struct zoo z;
        rw_monitor *m = with_a_step_that_waits(&z, groups);
        const rw_monitor_sources s = { .optimizer = z.opt, .groups = other, .n_groups = n, .sites = n == 1 };
        cr_assert_eq(rw_monitor_watch(m, &s), RW_OK, "%s", rw_error_message(z.b.ctx));
        for (int ended = 0; ended < 2; ended++) {
            expect_reading("rewind_group_param_norm{group=\"small\"} 2\n");
            expect_reading("rewind_group_param_norm{group=\"large\"} 200\n");
            rw_monitor_destroy(&m);
        }
        remove(prometheus);
        zoo_close(&z);
    }
}

/* The groups stay if the pending steps cannot be written. */
Test(monitor_groups, a_suspended_step_that_cannot_be_written_is_reported)
{
    static const rw_monitor_group groups[] = { { "small", "a" }, { "large", "b" } };
    struct zoo z;
    rw_monitor *m = with_a_step_that_waits(&z, groups);
    remove(prometheus);
    cr_assert_eq(mkdir(prometheus, 0777), 0);
    cr_expect_eq(rw_monitor_watch(m, NULL), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(z.b.ctx), "rw_monitor_watch: "), "%s", rw_error_message(z.b.ctx));
    rw_error_clear(z.b.ctx);
    rmdir(prometheus);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
    monitor_step(m, NAN);
    expect_reading("rewind_group_param_norm{group=\"small\"} 2\n");
    rw_monitor_destroy(&m);
    remove(prometheus);
    zoo_close(&z);
}
