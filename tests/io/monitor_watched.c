/*
 * What a monitor takes from an optimizer's pass and from the costs of steps: the numbers are those of what was updated,
 * the same in calls, graphs and inside backward and for every number of threads, and no byte of a training depends on
 * somebody looking.
 */
#include "api/optimizer.h"
#include "base/alloc.h"
#include "support/compare.h"
#include "support/support.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 5, LONG = 9001 };
static const rw_dtype dtypes[N] = { RW_F32, RW_BF16, RW_F16, RW_F64, RW_F32 };
static char path[128];

struct zoo {
    struct fixture b;
    rw_tensor *w[N];
    rw_optimizer *opt;
};

static struct zoo empty_zoo(int threads)
{
    const char *const tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.60s/rewind-watched-%ld.jsonl", tmp ? tmp : P_tmpdir, (long)getpid());
    remove(path);
    return (struct zoo){ .b = fixture_open(3, threads) };
}

static struct zoo zoo_open(int threads)
{
    struct zoo z = empty_zoo(threads);
    for (int k = 0; k < N; k++) {
        char name[16];
        snprintf(name, sizeof name, "w.%d", k);
        z.w[k] = rw_param(z.b.ctx, name, dtypes[k], k < 4 ? RW_SHAPE(7, 5 + k) : RW_SHAPE(LONG));
        cr_assert_eq(rw_init_normal(z.w[k], 0, 1), RW_OK);
    }
    return z;
}

static void zoo_close(struct zoo *z)
{
    rw_optimizer_destroy(&z->opt);
    fixture_close(&z->b);
    remove(path);
}

/* The gradient is 3 w^2, but for every fifth element, whose is zero. */
static rw_tensor *loss_of(struct zoo *z)
{
    rw_tensor *sum = NULL;
    for (int k = 0; k < N; k++) {
        const int64_t n = (int64_t)(rw_tensor_bytes(z->w[k]) / rw_dtype_size(dtypes[k]));
        float *const mask = malloc((size_t)n * sizeof *mask);
        for (int64_t i = 0; i < n; i++) mask[i] = i % 5 != 2;
        rw_tensor *x = rw_reshape(z->b.t, rw_cast(z->b.t, z->w[k], RW_F32), RW_SHAPE(n));
        x = rw_mul(z->b.t, x, rw_input(z->b.t, RW_F32, RW_SHAPE(n), mask));
        rw_tensor *const y = rw_sum(z->b.t, rw_mul(z->b.t, x, rw_mul(z->b.t, x, x)), RW_ALL_AXES, false);
        sum = sum ? rw_add(z->b.t, sum, y) : y;
        free(mask);
    }
    return sum;
}

static void backward(struct zoo *z)
{
    rw_zero_grad(z->b.ctx);
    cr_assert_eq(rw_backward(z->b.t, loss_of(z)), RW_OK, "%s", rw_error_message(z->b.ctx));
    rw_tape_reset(z->b.t);
}

static rw_monitor *watching(struct zoo *z, const rw_monitor_group *groups, size_t n)
{
    rw_monitor *m = NULL;
    const rw_monitor_sources s = { .optimizer = z->opt, .groups = groups, .n_groups = n, .peak_flops = 1e9 };
    cr_assert_eq(rw_monitor_create(&m, z->b.ctx, path), RW_OK);
    cr_assert_eq(rw_monitor_watch(m, &s), RW_OK, "%s", rw_error_message(z->b.ctx));
    return m;
}

static unsigned step(rw_monitor *m, double norm)
{
    unsigned alerts = 77;
    cr_assert_eq(rw_monitor_step(m, &(rw_monitor_values){ .loss = 1, .grad_norm = norm, .seconds = 2 }, &alerts),
                 RW_OK);
    return alerts;
}

/* The last line of the file. */
static cJSON *last_line(void)
{
    static char text[1 << 14], line[1 << 14];
    FILE *const f = fopen(path, "r");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f)) memcpy(text, line, sizeof text);
    fclose(f);
    cJSON *const j = cJSON_ParseWithOpts(text, NULL, true);
    cr_assert_not_null(j, "%s", text);
    return j;
}

static double number(const cJSON *j, const char *name)
{
    const cJSON *const x = cJSON_GetObjectItemCaseSensitive(j, name);
    cr_assert(cJSON_IsNumber(x), "%s", name);
    return x->valuedouble;
}

static double *numbers(rw_tensor *x, int64_t n)
{
    void *const data = malloc(rw_tensor_bytes(x));
    double *const d = malloc((size_t)n * sizeof *d);
    cr_assert_eq(rw_read(NULL, x, data, rw_tensor_bytes(x)), RW_OK);
    for (int64_t i = 0; i < n; i++) d[i] = number_get(data, rw_tensor_dtype(x), i);
    free(data);
    return d;
}

static int64_t size_of(const struct zoo *z, int k)
{
    return (int64_t)(rw_tensor_bytes(z->w[k]) / rw_dtype_size(dtypes[k]));
}

/* ---- the numbers ---- */

static void expect_near(const cJSON *j, const char *name, double want)
{
    const double got = number(j, name);
    cr_expect(fabs(got - want) <= 1e-8 * fabs(want), "%s: %.12g, not %.12g", name, got, want); /* nine digits */
}

/* One parameter's sums, of plain SGD: the weight, or its master copy, minus the rate times the gradient. */
static void sum_up(struct zoo *z, int k, double lr, double **weight, double sum[4])
{
    const int64_t n = size_of(z, k);
    double *const g = numbers(rw_gradient(z->w[k]), n);
    memset(sum, 0, 4 * sizeof *sum);
    for (int64_t i = 0; i < n; i++) {
        const double before = weight[k][i];
        const float less = (float)lr * (float)g[i], rounded = (float)before - less;
        weight[k][i] = dtypes[k] == RW_F64 ? before - lr * g[i] : (double)rounded;
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
    expect_near(g, "elements", elements);
    expect_near(g, "grad_norm", sqrt(sum[0]));
    expect_near(g, "param_norm", sqrt(sum[1]));
    expect_near(g, "update_ratio", sqrt(sum[2] / sum[1]));
    expect_near(g, "zeros", sum[3] / elements);
}

Test(monitor_watched, tells_of_what_the_update_met)
{
    static const rw_monitor_group groups[] = { { "none", "x*" }, { "second", "w.1" }, { "narrow", "w.[12]" },
                                               { "rest", "w*" } };
    struct zoo z = zoo_open(2);
    double *weight[N];
    cr_assert_eq(rw_sgd_create(&z.opt, z.b.ctx, &(rw_sgd_params){ .lr = 0.001 }), RW_OK);
    rw_monitor *m = watching(&z, groups, 4);
    for (int k = 0; k < N; k++) weight[k] = numbers(z.w[k], size_of(&z, k));
    for (int s = 0; s < 2; s++) {
        double sum[N][4], rest[4] = { 0 }, all[4] = { 0 }, n_rest = 0;
        backward(&z);
        for (int k = 0; k < N; k++) sum_up(&z, k, 0.001, weight, sum[k]);
        for (int k = 0; k < N; k++)
            for (int j = 0; j < 4; j++) {
                all[j] += sum[k][j];
                if (k != 1 && k != 2) rest[j] += sum[k][j];
            }
        for (int k = 0; k < N; k++) n_rest += k != 1 && k != 2 ? (double)size_of(&z, k) : 0;
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
        step(m, 0);
        cJSON *const line = last_line();
        expect_group(line, "second", sum[1], (double)size_of(&z, 1));
        expect_group(line, "narrow", sum[2], (double)size_of(&z, 2));
        expect_group(line, "rest", rest, n_rest);
        cr_expect_null(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(line, "groups"), "none"));
        expect_near(line, "grad_norm", sqrt(all[0]));
        expect_near(line, "param_norm", sqrt(all[1]));
        expect_near(line, "update_ratio", sqrt(all[2] / all[1]));
        cJSON_Delete(line);
    }
    step(m, 5);
    cJSON *const line = last_line();
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line, "param_norm"), "of an update that was told of");
    expect_near(line, "grad_norm", 5);
    cJSON_Delete(line);
    for (int k = 0; k < N; k++) free(weight[k]);
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

/* ---- who runs the update ---- */

enum how { CALLS, GRAPH, INSIDE, SCALER };

static void make_optimizer(struct zoo *z, int rule, bool by_chance)
{
    rw_context *const ctx = z->b.ctx;
    const rw_status status =
        rule == 0 ? rw_adamw_create(&z->opt, ctx, &(rw_adamw_params){ .lr = 0.03, .stochastic_rounding = by_chance })
        : rule == 1 ? rw_lion_create(&z->opt, ctx, &(rw_lion_params){ .lr = 0.01, .stochastic_rounding = by_chance })
                    : rw_sgd_create(&z->opt, ctx, &(rw_sgd_params){ .lr = 0.001, .momentum = 0.5 });
    cr_assert_eq(status, RW_OK);
}

static void run_steps(struct zoo *z, enum how how, int n)
{
    rw_graph *g = NULL;
    rw_scaler *s = NULL;
    if (how == GRAPH || how == INSIDE)
        cr_assert_eq(rw_graph_create(&g, z->b.t, loss_of(z),
                                     &(rw_graph_params){ .optimizer = z->opt, .update_inside = how == INSIDE }),
                     RW_OK, "%s", rw_error_message(z->b.ctx));
    if (how == SCALER) cr_assert_eq(rw_scaler_create(&s, z->b.ctx, &(rw_scaler_params){ .init_scale = 8 }), RW_OK);
    for (int i = 0; i < n; i++) {
        if (g) {
            cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(z->b.ctx));
        } else if (s) {
            rw_zero_grad(z->b.ctx);
            cr_assert_eq(rw_scaler_backward(s, z->b.t, loss_of(z)), RW_OK);
            rw_tape_reset(z->b.t);
            cr_assert_eq(rw_scaler_step(s, z->opt), RW_OK);
            cr_assert_eq(rw_scaler_update(s), RW_OK);
        } else {
            backward(z);
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

static struct outcome run(enum how how, int rule, bool by_chance, bool watched, int threads)
{
    struct outcome o = { 0 };
    struct zoo z = zoo_open(threads);
    bool known = false;
    uint64_t seen = 0;
    make_optimizer(&z, rule, by_chance);
    rw_monitor *m = watched ? watching(&z, NULL, 0) : NULL;
    run_steps(&z, how, 2);
    cr_assert_eq(rw_optimizer_read_sums(z.opt, o.sums, &seen, &known), RW_OK);
    cr_assert_eq(known, watched);
    o.parameters = all_parameters(z.b.ctx, &o.bytes);
    rw_monitor_destroy(&m);
    zoo_close(&z);
    return o;
}

Test(monitor_watched, changes_no_byte_of_a_training)
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

Test(monitor_watched, tells_the_same_whoever_updates)
{
    const struct outcome calls = run(CALLS, 0, false, true, 1);
    for (int how = GRAPH; how <= INSIDE; how++) {
        const struct outcome o = run(how, 0, false, true, 1 + how);
        cr_expect_eq(memcmp(calls.sums, o.sums, sizeof o.sums), 0, "how %d", how);
        free(o.parameters);
    }
    free(calls.parameters);
}

/* ---- clipping ---- */

static const rw_monitor_group narrow_and_rest[] = { { "narrow", "w.[12]" }, { "rest", "w*" } };
static const double limit = 0.5;

static const cJSON *group_of(const cJSON *line, const char *name)
{
    const cJSON *const g = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(line, "groups"), name);
    cr_assert_not_null(g, "%s", name);
    return g;
}

static void clip_and_step(struct zoo *z, enum how how, rw_graph **g)
{
    const rw_graph_params p = { .optimizer = z->opt, .max_norm = limit, .update_inside = how == INSIDE };
    if (how == CALLS) {
        backward(z);
        cr_assert_eq(rw_clip_grad_norm(z->b.ctx, limit, NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(z->opt), RW_OK);
        return;
    }
    cr_assert_eq(rw_graph_create(g, z->b.t, loss_of(z), &p), RW_OK, "%s", rw_error_message(z->b.ctx));
    cr_assert_eq(rw_graph_launch(*g), RW_OK, "%s", rw_error_message(z->b.ctx));
}

/* Of the gradients of the first step: of those that narrow_and_rest[] tells apart. */
static void sum_gradients(double sum[2])
{
    struct zoo z = zoo_open(1);
    backward(&z);
    for (int k = 0; k < N; k++) {
        double *const g = numbers(rw_gradient(z.w[k]), size_of(&z, k));
        for (int64_t i = 0; i < size_of(&z, k); i++) sum[k != 1 && k != 2] += g[i] * g[i];
        free(g);
    }
    zoo_close(&z);
}

/* Norms before clipping come from its own sums, in calls, in a graph and inside backward. */
/* What a program is told is what stands in the line. */
static void expect_numbers(const rw_monitor *m, const cJSON *line)
{
    const rw_monitor_numbers x = rw_monitor_get_numbers(m);
    const double want[] = { x.grad_norm, x.param_norm, x.update_ratio, x.zeros, x.model_flops, x.hardware_flops };
    static const char *const names[] = { "grad_norm", "param_norm", "update_ratio", "zeros", "model_flops_per_s",
                                         "hardware_flops_per_s" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const double got = number(line, names[i]);
        cr_expect(fabs(got - want[i]) <= 1e-8 * fabs(want[i]), "%s: %g, not %g", names[i], want[i], got);
    }
}

Test(monitor_watched, tells_of_gradients_before_they_are_clipped)
{
    double sum[2] = { 0 };
    sum_gradients(sum);
    const double norm = sqrt(sum[0] + sum[1]);
    cr_assert_gt(norm, 2 * limit);
    for (int how = CALLS; how <= INSIDE; how++) {
        struct zoo z = zoo_open(1 + how);
        rw_graph *g = NULL;
        make_optimizer(&z, 0, false);
        rw_monitor *m = watching(&z, narrow_and_rest, 2);
        clip_and_step(&z, how, &g);
        step(m, 0);
        cJSON *line = last_line();
        expect_near(line, "grad_norm", norm);
        expect_numbers(m, line);
        for (int i = 0; i < 2; i++) {
            const cJSON *const group = group_of(line, narrow_and_rest[i].name);
            expect_near(group, "unclipped_norm", sqrt(sum[i]));
            const double clipped = sqrt(sum[i]) * limit / norm, got = number(group, "grad_norm");
            cr_expect(fabs(got - clipped) <= 0.01 * clipped, "how %d: %g, not %g", how, got, clipped); /* of 16 bits */
        }
        cJSON_Delete(line);
        rw_graph_destroy(&g);
        rw_tape_reset(z.b.t);
        backward(&z);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK, "%s", rw_error_message(z.b.ctx));
        step(m, 0);
        line = last_line();
        cr_expect_gt(number(line, "grad_norm"), limit);
        cr_expect_null(cJSON_GetObjectItemCaseSensitive(group_of(line, "rest"), "unclipped_norm"), "it was told of");
        cJSON_Delete(line);
        rw_monitor_destroy(&m);
        zoo_close(&z);
    }
}

/* It says which group is not finite, of an update that was left out; what a graph has clipped goes with it, and who
   came later is in no group. */
Test(monitor_watched, tells_of_clipped_gradients_that_were_not_used)
{
    struct zoo z = zoo_open(1);
    rw_scaler *s = NULL;
    rw_graph *g = NULL;
    const float bad[7 * 6] = { [3] = INFINITY };
    make_optimizer(&z, 0, false);
    rw_monitor *m = watching(&z, narrow_and_rest, 2);
    cr_assert_eq(rw_scaler_create(&s, z.b.ctx, &(rw_scaler_params){ .init_scale = 1 }), RW_OK);
    rw_param(z.b.ctx, "w.late", RW_F32, RW_SHAPE(3));
    cr_assert_eq(rw_scaler_backward(s, z.b.t, loss_of(&z)), RW_OK);
    rw_tape_reset(z.b.t);
    cr_assert_eq(rw_write(rw_gradient(z.w[1]), bad, sizeof bad), RW_OK);
    cr_assert_eq(rw_scaler_unscale(s), RW_OK);
    cr_assert_eq(rw_clip_grad_norm(z.b.ctx, limit, NULL), RW_OK);
    cr_assert_eq(rw_scaler_step(s, z.opt), RW_OK);
    cr_assert_eq(rw_scaler_update(s), RW_OK);
    cr_expect(step(m, 0) & RW_ALERT_GRAD_NONFINITE);
    cJSON *line = last_line();
    cr_expect(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(group_of(line, "narrow"), "unclipped_norm")));
    cr_expect_gt(number(group_of(line, "rest"), "unclipped_norm"), 0);
    cr_expect_eq(number(group_of(line, "rest"), "elements"), 0);
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(group_of(line, "rest"), "param_norm"));
    cJSON_Delete(line);
    clip_and_step(&z, GRAPH, &g);
    rw_graph_destroy(&g);
    step(m, 0);
    line = last_line();
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(group_of(line, "rest"), "unclipped_norm"));
    cJSON_Delete(line);
    rw_scaler_destroy(&s);
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

/* One group's gradients are a thousand times the other's, whose spike nobody sees in the norm of all. */
Test(monitor_watched, warns_of_a_spike_of_one_group)
{
    static const rw_monitor_group groups[] = { { "large", "large" }, { "small", "small" }, { "late", "late" } };
    struct zoo z = empty_zoo(1);
    rw_tensor *const large = rw_param(z.b.ctx, "large", RW_F32, RW_SHAPE(4));
    rw_tensor *const small = rw_param(z.b.ctx, "small", RW_F32, RW_SHAPE(4));
    rw_tensor *const late = rw_param(z.b.ctx, "late", RW_F32, RW_SHAPE(4)); /* its gradients are zero but the last */
    cr_assert_eq(rw_sgd_create(&z.opt, z.b.ctx, &(rw_sgd_params){ .lr = 1e-3 }), RW_OK);
    rw_monitor *m = watching(&z, groups, 3);
    for (int i = 0; i < 24; i++) {
        rw_tape *const t = z.b.t;
        rw_tensor *const a = rw_sum(t, rw_scale(t, large, 1000), RW_ALL_AXES, false);
        rw_tensor *const b = rw_sum(t, rw_scale(t, small, i == 21 ? 9.9 : i == 22 ? 10.1 : 1), RW_ALL_AXES, false);
        rw_tensor *const c = rw_sum(t, rw_scale(t, late, i == 23), RW_ALL_AXES, false);
        rw_zero_grad(z.b.ctx);
        cr_assert_eq(rw_backward(t, rw_add(t, a, rw_add(t, b, c))), RW_OK, "%s", rw_error_message(z.b.ctx));
        rw_tape_reset(t);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
        cr_expect_eq(step(m, 0) & RW_ALERT_GRAD_SPIKE, i == 22 ? RW_ALERT_GRAD_SPIKE : 0, "step %d", i);
        cJSON *const line = last_line(), *const told = cJSON_GetObjectItem(group_of(line, "small"), "alerts");
        cr_expect_eq(cJSON_GetArraySize(told), i == 22);
        cr_expect_null(cJSON_GetObjectItem(group_of(line, "large"), "alerts"));
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

/* The second and third step wait for their second to pass: weights of small are 1 and those of large 100. */
static rw_monitor *with_a_step_that_waits(struct zoo *z, const rw_monitor_group *groups)
{
    *z = empty_zoo(1);
    snprintf(prometheus, sizeof prometheus, "%s.prom", path);
    rw_tensor *const a = rw_param(z->b.ctx, "a", RW_F32, RW_SHAPE(4)), *const b = rw_param(z->b.ctx, "b", RW_F32,
                                                                                          RW_SHAPE(4));
    cr_assert_eq(rw_init_constant(a, 1), RW_OK);
    cr_assert_eq(rw_init_constant(b, 100), RW_OK);
    cr_assert_eq(rw_sgd_create(&z->opt, z->b.ctx, &(rw_sgd_params){ .lr = 0x1p-100 }), RW_OK);
    rw_monitor *const m = watching(z, groups, 2);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_PROMETHEUS, prometheus), RW_OK);
    for (int i = 0; i < 3; i++) {
        rw_zero_grad(z->b.ctx);
        cr_assert_eq(rw_backward(z->b.t, rw_sum(z->b.t, rw_add(z->b.t, a, b), RW_ALL_AXES, false)), RW_OK);
        rw_tape_reset(z->b.t);
        cr_assert_eq(rw_optimizer_step(z->opt), RW_OK);
        step(m, 1);
    }
    return m;
}

Test(monitor_watched, a_step_that_waits_keeps_the_names_of_its_groups)
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

/* The groups stay when what waits cannot be written. */
Test(monitor_watched, a_step_that_waits_and_cannot_be_written_is_said)
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
    step(m, NAN);
    expect_reading("rewind_group_param_norm{group=\"small\"} 2\n");
    rw_monitor_destroy(&m);
    remove(prometheus);
    zoo_close(&z);
}

/* ---- what there is nothing to tell of ---- */

Test(monitor_watched, tells_nothing_of_an_update_that_was_left_out)
{
    struct zoo z = zoo_open(1);
    rw_scaler *s = NULL;
    make_optimizer(&z, 0, false);
    rw_monitor *m = watching(&z, NULL, 0);
    run_steps(&z, CALLS, 1);
    step(m, 1);
    cJSON *line = last_line();
    cr_expect(number(line, "param_norm") > 0);
    cJSON_Delete(line);
    cr_assert_eq(rw_scaler_create(&s, z.b.ctx, &(rw_scaler_params){ .init_scale = 0x1p127 }), RW_OK);
    rw_zero_grad(z.b.ctx);
    cr_assert_eq(rw_scaler_backward(s, z.b.t, loss_of(&z)), RW_OK);
    rw_tape_reset(z.b.t);
    cr_assert_eq(rw_scaler_step(s, z.opt), RW_OK);
    cr_assert_eq(rw_scaler_update(s), RW_OK);
    rw_scaler_state state;
    cr_assert_eq(rw_scaler_get(s, &state), RW_OK);
    cr_assert_eq(state.skipped, 1);
    step(m, 1);
    line = last_line();
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line, "param_norm"));
    cJSON_Delete(line);
    rw_scaler_destroy(&s);
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

Test(monitor_watched, ends_with_the_monitor)
{
    struct zoo z = zoo_open(1);
    make_optimizer(&z, 0, false);
    rw_monitor *m = watching(&z, NULL, 0), *other = watching(&z, NULL, 0);
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

/* Each allocation of the call fails once: what was watched before still is. */
Test(monitor_watched, without_memory_goes_on_as_before)
{
    static const rw_monitor_group all = { "all", "*" };
    struct zoo z = zoo_open(1);
    rw_memory was, is;
    make_optimizer(&z, 0, false);
    rw_monitor *m = NULL;
    cr_assert_eq(rw_monitor_create(&m, z.b.ctx, path), RW_OK);
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
    step(m, 1);
    cJSON *const line = last_line();
    cr_expect(number(line, "param_norm") > 0);
    cJSON_Delete(line);
    rw_monitor_destroy(&m);
    zoo_close(&z);
}

/* ---- work ---- */

Test(monitor_watched, knows_the_work_of_steps_from_the_costs_of_their_ops)
{
    struct fixture b = fixture_open(1, 1);
    rw_monitor *m = NULL;
    struct net net = { .ctx = b.ctx };
    rw_cost cost;
    snprintf(path, sizeof path, "%s/rewind-work-%ld.jsonl", P_tmpdir, (long)getpid());
    remove(path);
    net_init(&net, b.ctx, 2, 16, RW_F32, 1);
    cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
    cr_assert_eq(rw_monitor_create(&m, b.ctx, path), RW_OK);
    cr_assert_eq(rw_monitor_watch(m, &(rw_monitor_sources){ .peak_flops = 1e6 }), RW_OK);
    for (int i = 0; i < 3; i++) { /* micro-batches */
        rw_tensor *const loss = net_loss(&net, b.t, 8, 0);
        cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_OK);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        rw_tape_reset(b.t);
    }
    const float some[64] = { 1 };
    float out[64];
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(8, 8), some); /* what is only evaluated is no step */
    cr_assert_eq(rw_read(b.t, rw_matmul(b.t, x, x), out, sizeof out), RW_OK);
    cr_assert_eq(rw_clip_grad_norm(b.ctx, 1, NULL), RW_OK); /* nor is what is done with gradients */
    step(m, 1);
    const double model = 3 * (cost.forward_flops + cost.backward_flops), all = model + 3 * cost.replayed_flops;
    cJSON *line = last_line();
    cr_assert(cost.replayed_flops > 0);
    expect_near(line, "model_flops_per_s", model / 2);
    expect_near(line, "hardware_flops_per_s", all / 2);
    expect_near(line, "mfu", model / 2 / 1e6);
    expect_near(line, "hfu", all / 2 / 1e6);
    cJSON_Delete(line);
    step(m, 1);
    line = last_line();
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line, "model_flops_per_s"), "nothing has run");
    cJSON_Delete(line);
    rw_monitor_destroy(&m);
    fixture_close(&b);
    remove(path);
}

/* ---- alerts, mistakes ---- */

Test(monitor_watched, warns_of_updates_that_do_nothing)
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
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, w, rw_input(b.t, RW_F32, RW_SHAPE(4), x)), RW_ALL_AXES,
                                              false)), RW_OK);
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

Test(monitor_watched, refuses_what_makes_no_sense)
{
    struct zoo z = zoo_open(1), other = zoo_open(1);
    make_optimizer(&z, 0, false);
    make_optimizer(&other, 0, false);
    rw_monitor *m = watching(&z, NULL, 0);
    const rw_monitor_group many[17] = { { "a", "*" } };
    char name[62];
    memset(name, 'x', 61);
    name[61] = 0;
    const rw_monitor_group long_one = { name, "*" }, quoted = { "a\"", "*" }, empty = { "", "*" }, no = { "a", NULL };
    cr_expect_eq(rw_monitor_watch(NULL, NULL), RW_ERR_ARGUMENT);
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ .optimizer = other.opt }, "another context");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ .peak_flops = -1 }, "a peak of -1");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ .peak_flops = NAN }, "a peak of");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, many, 17, 0 }, "17 groups");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ NULL, many, 1, 0 }, "optimizer");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, NULL, 1, 0 }, "groups");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, &long_one, 1, 0 }, "longer than 60");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, &quoted, 1, 0 }, "escape");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, &empty, 1, 0 }, "name or pattern");
    expect_refused(m, z.b.ctx, (rw_monitor_sources){ z.opt, &no, 1, 0 }, "name or pattern");
    backward(&z);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
    step(m, 1);
    cJSON *const line = last_line();
    cr_expect(number(line, "param_norm") > 0, "what was watched before is");
    cJSON_Delete(line);
    rw_monitor_destroy(&m);
    zoo_close(&other);
    zoo_close(&z);
}
