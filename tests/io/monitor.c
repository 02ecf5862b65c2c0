/* A monitor's alerts and its output: one complete line of JSON per step, whatever the numbers are. */
#include "base/alloc.h"
#include "io/monitor_tensorboard_prometheus.h"
#include "support/support.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct fixture b;
static char path[128];

static void open_all(void)
{
    const char *const tmp = getenv("TMPDIR");
    b = fixture_open(1, 1);
    snprintf(path, sizeof path, "%.60s/rewind-monitor-%ld.jsonl", tmp ? tmp : P_tmpdir, (long)getpid());
    remove(path);
}

static void close_all(void)
{
    fixture_close(&b);
    remove(path);
}

TestSuite(monitor, .init = open_all, .fini = close_all);

static rw_monitor *monitor(const char *file)
{
    rw_monitor *m = NULL;
    cr_assert_eq(rw_monitor_create(&m, b.ctx, file), RW_OK, "%s", rw_error_message(b.ctx));
    return m;
}

static unsigned step(rw_monitor *m, uint64_t n, double loss, double norm, double seconds)
{
    unsigned alerts = 77;
    const rw_monitor_values v = { .step = n, .loss = loss, .grad_norm = norm, .lr = 0.5, .tokens = 100,
                                  .seconds = seconds };
    cr_assert_eq(rw_monitor_step(m, &v, &alerts), RW_OK, "%s", rw_error_message(b.ctx));
    return alerts;
}

/* The parsed lines of the file; invalid JSON is a failure. */
static int lines(cJSON **ret, int most)
{
    static char text[1 << 16];
    FILE *const f = fopen(path, "r");
    int n = 0;
    cr_assert_not_null(f);
    while (n < most && fgets(text, sizeof text, f)) {
        cr_assert_eq(text[strlen(text) - 1], '\n');
        ret[n] = cJSON_ParseWithOpts(text, NULL, true);
        cr_assert_not_null(ret[n++], "%s", text);
    }
    fclose(f);
    return n;
}

static double number(const cJSON *line, const char *name)
{
    const cJSON *const x = cJSON_GetObjectItemCaseSensitive(line, name);
    cr_assert(cJSON_IsNumber(x), "%s", name);
    return x->valuedouble;
}

/* ---- alerts ---- */

/* Losses around 4 with deviations around 0.1, norms around 1, steps of 0.1 s. */
static void settle(rw_monitor *m, int n)
{
    for (int i = 0; i < n; i++)
        cr_assert_eq(step(m, (uint64_t)i, 4 + 0.1 * (i % 5 - 2), 1 + 0.1 * (i % 3), 0.1), 0, "step %d", i);
}

Test(monitor, warns_of_nan_at_once)
{
    rw_monitor *m = monitor(NULL);
    cr_expect_eq(step(m, 0, NAN, 1, 0.1), RW_ALERT_LOSS_NONFINITE);
    cr_expect_eq(step(m, 1, 4, INFINITY, 0.1), RW_ALERT_GRAD_NONFINITE);
    cr_expect_eq(step(m, 2, -INFINITY, NAN, 0.1), RW_ALERT_LOSS_NONFINITE | RW_ALERT_GRAD_NONFINITE);
    settle(m, 30);
    cr_expect_eq(step(m, 3, NAN, 1, 0.1), RW_ALERT_LOSS_NONFINITE);
    cr_expect_eq(step(m, 4, 4, 1, 0.1), 0, "it is not counted");
    rw_monitor_destroy(&m);
}

Test(monitor, warns_of_spikes_of_the_loss)
{
    rw_monitor *m = monitor(NULL);
    settle(m, 20);
    cr_expect_eq(step(m, 20, 7.9, 1, 0.1), 0, "not twice the median");
    cr_expect_eq(step(m, 21, 8.5, 1, 0.1), RW_ALERT_LOSS_SPIKE);
    rw_monitor_destroy(&m);
    for (int high = 0; high < 2; high++) { /* above twice 1.25, and by ten times 0.25 or not */
        m = monitor(NULL);
        for (int i = 0; i < 20; i++) cr_assert_eq(step(m, 0, i % 2 ? 1 : 1.5, 1, 0.1), 0);
        cr_expect_eq(step(m, 20, high ? 3.8 : 3.7, 1, 0.1), high ? RW_ALERT_LOSS_SPIKE : 0);
        rw_monitor_destroy(&m);
    }
}

/* A median follows a loss that rises by one per cent per step. */
Test(monitor, warns_of_a_loss_that_rises_slowly_to_ten_times_its_first)
{
    rw_monitor *m = monitor(NULL);
    int told = 0;
    double loss = 4;
    for (int i = 0; i < 100; i++) cr_assert_eq(step(m, 0, i ? 4 : -3, 1, 0.1) & RW_ALERT_LOSS_SPIKE, 0);
    for (; loss < 60; loss *= 1.01) {
        const bool spike = step(m, 0, loss, 1, 0.1) & RW_ALERT_LOSS_SPIKE;
        cr_expect(!spike || (loss >= 40 && loss < 40.5), "at %g", loss);
        told += spike;
    }
    cr_expect_eq(told, 1, "when it begins: %d", told);
    rw_monitor_destroy(&m);
    m = monitor(NULL);
    for (int i = 0; i < 150; i++) cr_assert_eq(step(m, 0, 0, 1, 0.1) & RW_ALERT_LOSS_SPIKE, 0, "a loss of nothing");
    rw_monitor_destroy(&m);
}

Test(monitor, warns_of_spikes_of_the_gradients_and_of_slow_steps)
{
    rw_monitor *m = monitor(NULL);
    settle(m, 20);
    cr_expect_eq(step(m, 20, 4, 10.9, 0.119), 0);
    cr_expect_eq(step(m, 21, 4, 11.1, 0.121), RW_ALERT_GRAD_SPIKE | RW_ALERT_SLOW_STEP);
    rw_monitor_destroy(&m);
}

Test(monitor, needs_twenty_numbers_for_a_median)
{
    rw_monitor *m = monitor(NULL);
    settle(m, 19);
    cr_expect_eq(step(m, 19, 400, 100, 10), 0);
    cr_expect_eq(step(m, 20, 400, 100, 10), RW_ALERT_LOSS_SPIKE | RW_ALERT_GRAD_SPIKE | RW_ALERT_SLOW_STEP);
    rw_monitor_destroy(&m);
}

/* After a hundred steps of another kind the medians do not contain earlier ones. */
Test(monitor, forgets_what_was_a_hundred_steps_before)
{
    rw_monitor *m = monitor(NULL);
    settle(m, 150);
    for (int i = 0; i < 100; i++) step(m, 0, 1 + 0.01 * (i % 5), 0.25, 0.025);
    cr_expect_eq(step(m, 0, 1.9, 2.4, 0.029), 0);
    cr_expect_eq(step(m, 0, 2.1, 2.6, 0.031), RW_ALERT_LOSS_SPIKE | RW_ALERT_GRAD_SPIKE | RW_ALERT_SLOW_STEP);
    for (int i = 0; i < 60; i++) step(m, 0, 4, 9, 0.1);
    cr_expect_eq(step(m, 0, 4, 9, 0.1), 0, "what stays is what is usual");
    rw_monitor_destroy(&m);
}

static unsigned scaled(rw_monitor *m, double scale, bool skipped)
{
    unsigned alerts = 77;
    const rw_monitor_values v = { .step = 1, .loss = 4, .loss_scale = scale, .skipped = skipped, .seconds = 0.1 };
    cr_assert_eq(rw_monitor_step(m, &v, &alerts), RW_OK, "%s", rw_error_message(b.ctx));
    return alerts;
}

Test(monitor, warns_of_a_scale_that_halves_or_doubles)
{
    rw_monitor *m = monitor(NULL);
    for (int i = 0; i < 20; i++) cr_assert_eq(scaled(m, i ? 1024 : 8, false), 0, "no median yet");
    cr_expect_eq(scaled(m, 513, false), 0);
    cr_expect_eq(scaled(m, 512, false), RW_ALERT_SCALE_DROP);
    cr_expect_eq(scaled(m, 2047, false), 0);
    cr_expect_eq(scaled(m, 2048, false), RW_ALERT_SCALE_RISE);
    cr_expect_eq(scaled(m, 0, false), 0, "not known");
    rw_monitor_destroy(&m);
    m = monitor(NULL);
    cr_expect_eq(scaled(m, 1, false), 0);
    for (int i = 0; i < 6; i++)
        cr_expect_eq(scaled(m, i == 3 ? 1 : 0.5, false), i == 0 || i == 4 ? RW_ALERT_SCALE_DROP : 0, "below one: %d",
                     i);
    rw_monitor_destroy(&m);
}

/* An infinity is compared with the median, but is not part of later ones. */
Test(monitor, medians_are_of_finite_numbers)
{
    rw_monitor *m = monitor(NULL);
    for (int i = 0; i < 50; i++) cr_expect_eq(scaled(m, i < 25 ? INFINITY : 1024, false), 0, "no median: %d", i);
    cr_expect_eq(scaled(m, INFINITY, false), RW_ALERT_SCALE_RISE);
    cr_expect_eq(scaled(m, 512, false), RW_ALERT_SCALE_DROP);
    rw_monitor_destroy(&m);
    m = monitor(NULL);
    for (int i = 0; i < 120; i++) {
        const bool no_time = i % 5 > 1;
        const unsigned want = no_time && i >= 47 ? RW_ALERT_SLOW_STEP : 0; /* 20 finite times before */
        cr_expect_eq(step(m, 0, 4, 1, no_time ? INFINITY : 0.1), want, "%d", i);
    }
    cr_expect_eq(step(m, 0, 4, 1, 0.121), RW_ALERT_SLOW_STEP, "three of five were infinite");
    rw_monitor_destroy(&m);
}

Test(monitor, warns_of_updates_that_are_left_out)
{
    rw_monitor *m = monitor(NULL);
    for (int i = 0; i < 3; i++) cr_expect_eq(scaled(m, 0, true), i < 2 ? 0 : RW_ALERT_SKIPS, "in a row: %d", i);
    cr_expect_eq(scaled(m, 0, true), RW_ALERT_SKIPS);
    cr_expect_eq(scaled(m, 0, false), 0);
    cr_expect_eq(scaled(m, 0, true), 0, "a row begins anew");
    rw_monitor_destroy(&m);
}

Test(monitor, warns_of_more_than_one_update_of_twenty_that_is_left_out)
{
    rw_monitor *m = monitor(NULL);
    for (int i = 0; i < 2 * 11; i++)
        cr_assert_eq(scaled(m, 0, i % 2) & RW_ALERT_SKIPS, 0, "not yet two hundred: %d", i);
    for (int i = 0; i < 200; i++) cr_assert_eq(scaled(m, 0, false) & RW_ALERT_SKIPS, 0);
    for (int i = 0; i < 2 * 10; i++) cr_assert_eq(scaled(m, 0, i % 2) & RW_ALERT_SKIPS, 0, "ten of two hundred: %d", i);
    for (int i = 0; i < 180; i++) cr_assert_eq(scaled(m, 0, false) & RW_ALERT_SKIPS, 0);
    cr_expect_eq(scaled(m, 0, true) & RW_ALERT_SKIPS, RW_ALERT_SKIPS, "eleven of the last two hundred");
    cr_expect_eq(scaled(m, 0, false) & RW_ALERT_SKIPS, 0, "told with the update that is left out");
    cr_expect_eq(scaled(m, 0, true) & RW_ALERT_SKIPS, RW_ALERT_SKIPS);
    for (int i = 0; i < 20; i++) cr_assert_eq(scaled(m, 0, false) & RW_ALERT_SKIPS, 0);
    cr_expect_eq(scaled(m, 0, true) & RW_ALERT_SKIPS, 0, "forgotten");
    rw_monitor_destroy(&m);
}

/* The loss falls, or the norm does, or neither: reported at the last step of a hundred. */
Test(monitor, warns_of_a_plateau)
{
    for (int how = 0; how < 3; how++) {
        rw_monitor *m = monitor(NULL);
        for (int i = 0; i < 300; i++) {
            const bool late = i >= 100;
            const double loss = how == 0 && late ? 3.9 : 4, norm = how == 1 && late ? 0.8 : 1;
            const unsigned want = i == 299 || (i == 199 && how == 2) ? RW_ALERT_PLATEAU : 0;
            cr_assert_eq(step(m, (uint64_t)i, loss, norm, 0.1), want, "%d, step %d", how, i);
        }
        rw_monitor_destroy(&m);
    }
}

/* Losses were NaN for a hundred steps: there is no median to compare with. */
Test(monitor, a_plateau_is_compared_with_a_loss)
{
    rw_monitor *m = monitor(NULL);
    for (int i = 0; i < 300; i++) {
        const unsigned alerts = step(m, (uint64_t)i, i < 100 ? NAN : 300 - i, 1, 0.1);
        cr_assert_eq(alerts, i < 100 ? RW_ALERT_LOSS_NONFINITE : 0, "step %d: %#x", i, alerts);
    }
    rw_monitor_destroy(&m);
}

Test(monitor, keeps_a_policy_and_writes_down_what_was_done)
{
    cJSON *line[2];
    rw_monitor *m = monitor(path);
    const unsigned spikes = RW_ALERT_LOSS_SPIKE | RW_ALERT_GRAD_SPIKE;
    cr_expect_eq(rw_monitor_policy(m, ~0u), RW_RECOVERY_NOTE);
    cr_assert_eq(rw_monitor_set_policy(m, spikes, RW_RECOVERY_LOWER), RW_OK);
    cr_assert_eq(rw_monitor_set_policy(m, RW_ALERT_GRAD_SPIKE, RW_RECOVERY_SKIP), RW_OK);
    cr_expect_eq(rw_monitor_policy(m, RW_ALERT_GRAD_SPIKE | RW_ALERT_SLOW_STEP), RW_RECOVERY_SKIP);
    cr_expect_eq(rw_monitor_policy(m, spikes), RW_RECOVERY_LOWER, "the strongest");
    cr_expect_eq(rw_monitor_policy(m, RW_ALERT_SLOW_STEP), RW_RECOVERY_NOTE);
    cr_assert_eq(rw_monitor_recovered(m, 9, spikes, RW_RECOVERY_LOWER, "loss 8.5, \"twice\" \n4"), RW_OK);
    cr_assert_eq(rw_monitor_recovered(m, 10, 0, RW_RECOVERY_STOP, NULL), RW_OK);
    rw_monitor_destroy(&m);
    cr_assert_eq(lines(line, 2), 2);
    cr_expect_eq(number(line[0], "step"), 9);
    cr_expect_str_eq(cJSON_GetObjectItemCaseSensitive(line[0], "recovery")->valuestring, "lower");
    cr_expect_str_eq(cJSON_GetObjectItemCaseSensitive(line[0], "note")->valuestring, "loss 8.5, \"twice\" 4");
    cr_expect_eq(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(line[0], "alerts")), 2);
    cr_expect_str_eq(cJSON_GetObjectItemCaseSensitive(line[1], "recovery")->valuestring, "stop");
    for (int i = 0; i < 2; i++) cJSON_Delete(line[i]);
}

/* ---- evaluation before the update, and the numbers of alerts ---- */

static void expect_alert(const rw_monitor *m, unsigned alert, double value, double usual)
{
    rw_monitor_alert a = { 0 };
    cr_assert(rw_monitor_get_alert(m, alert, &a), "%s", rw_alert_name(alert));
    cr_expect(isnan(value) ? isnan(a.value) : fabs(a.value - value) < 1e-9 * fabs(value), "%s: %g, not %g",
              rw_alert_name(alert), a.value, value);
    cr_expect(isnan(usual) ? isnan(a.usual) : fabs(a.usual - usual) < 1e-9 * fabs(usual), "%s: usually %g, not %g",
              rw_alert_name(alert), a.usual, usual);
}

Test(monitor, judges_a_step_once_whether_or_not_it_was_checked)
{
    rw_monitor *m = monitor(path);
    settle(m, 20);
    rw_monitor_values v = { .step = 20, .loss = 8.5, .grad_norm = 11.1, .seconds = 0.125 };
    unsigned early = 77, all = 77;
    cr_assert_eq(rw_monitor_check(m, &v, &early), RW_OK);
    cr_expect_eq(early, RW_ALERT_LOSS_SPIKE | RW_ALERT_GRAD_SPIKE, "the time is not known yet");
    expect_alert(m, RW_ALERT_GRAD_SPIKE, 11.1, 1.1);
    cr_assert_eq(rw_monitor_step(m, &v, &all), RW_OK);
    cr_expect_eq(all, early | RW_ALERT_SLOW_STEP);
    cJSON *line[24];
    const int n = lines(line, 24);
    cr_assert_eq(n, 21, "a check writes nothing");
    for (int i = 0; i < n; i++) cJSON_Delete(line[i]);
    /* Its numbers count once: 20 and one more of each, so the median of 41 losses is that of the second half. */
    for (int i = 0; i < 20; i++) {
        v = (rw_monitor_values){ .step = (uint64_t)(21 + i), .loss = 2, .grad_norm = 1.1, .seconds = 0.1 };
        cr_assert_eq(rw_monitor_check(m, &v, NULL), RW_OK);
        cr_assert_eq(rw_monitor_step(m, &v, NULL), RW_OK);
    }
    v = (rw_monitor_values){ .step = 41, .loss = 30, .grad_norm = 1.1, .seconds = 0.1 };
    cr_assert_eq(rw_monitor_check(m, &v, &early), RW_OK);
    expect_alert(m, RW_ALERT_LOSS_SPIKE, 30, 3.8);
    v.step = 42;
    v.loss = 2;
    cr_assert_eq(rw_monitor_step(m, &v, &all), RW_OK);
    cr_expect_eq(all, 0, "another step");
    rw_monitor_alert none = { 1, 2 };
    cr_expect(!rw_monitor_get_alert(m, RW_ALERT_LOSS_SPIKE, &none) && none.value == 1, "of the last step");
    cr_expect(!rw_monitor_get_alert(NULL, RW_ALERT_LOSS_SPIKE, &none) && !rw_monitor_get_alert(m, 3, &none));
    cr_expect_eq(rw_monitor_check(NULL, &v, NULL), RW_ERR_ARGUMENT);
    cr_expect_eq(rw_monitor_check(m, NULL, NULL), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    rw_monitor_destroy(&m);
}

Test(monitor, alerts_say_their_numbers)
{
    cJSON *line[30];
    rw_monitor *m = monitor(path);
    settle(m, 20);
    step(m, 20, 8.5, 1, 0.412);
    expect_alert(m, RW_ALERT_SLOW_STEP, 412, 100);
    expect_alert(m, RW_ALERT_LOSS_SPIKE, 8.5, 4);
    step(m, 21, NAN, 1, 0.1);
    expect_alert(m, RW_ALERT_LOSS_NONFINITE, NAN, NAN);
    const int n = lines(line, 30);
    cr_assert_eq(n, 22);
    const cJSON *const numbers = cJSON_GetObjectItem(line[20], "alert_numbers");
    cr_assert_eq(cJSON_GetArraySize(numbers), 2);
    const cJSON *const slow = cJSON_GetArrayItem(numbers, 1);
    cr_expect_str_eq(cJSON_GetObjectItem(slow, "alert")->valuestring, "slow_step");
    cr_expect_eq(number(slow, "value"), 412);
    cr_expect_eq(number(slow, "usual"), 100);
    cr_expect_null(cJSON_GetObjectItem(line[19], "alert_numbers"));
    cr_expect_null(cJSON_GetObjectItem(line[21], "alert_numbers"), "it has none");
    for (int i = 0; i < n; i++) cJSON_Delete(line[i]);
    rw_monitor_destroy(&m);
    m = monitor(NULL);
    for (int i = 0; i < 20; i++) scaled(m, 1024, false);
    scaled(m, 512, false);
    expect_alert(m, RW_ALERT_SCALE_DROP, 512, 1024);
    for (int i = 0; i < 3; i++) scaled(m, 0, true);
    expect_alert(m, RW_ALERT_SKIPS, 3, NAN);
    rw_monitor_destroy(&m);
    m = monitor(NULL);
    for (int i = 0; i < 200; i++) step(m, 0, i < 100 ? 4 : 4.5, 1, 0.1);
    expect_alert(m, RW_ALERT_PLATEAU, 4.5, 4);
    rw_monitor_destroy(&m);
}

/* ---- the file ---- */

Test(monitor, writes_a_line_for_each_step)
{
    cJSON *line[4];
    rw_param(b.ctx, "w", RW_F32, RW_SHAPE(10));
    rw_monitor *m = monitor(path);
    cr_expect(isnan(rw_monitor_get_numbers(m).grad_norm) && isnan(rw_monitor_get_numbers(NULL).grad_norm));
    step(m, 7, 3.25, 0.5, 0.25);
    cr_expect_eq(rw_monitor_get_numbers(m).grad_norm, 0.5);
    cr_expect(isnan(rw_monitor_get_numbers(m).param_norm) && isnan(rw_monitor_get_numbers(m).model_flops));
    rw_memory memory;
    rw_memory_stats(b.ctx, &memory);
    cr_assert_eq(lines(line, 4), 1, "it is there as soon as it is written");
    cr_expect_eq(number(line[0], "step"), 7);
    cr_expect_eq(number(line[0], "loss"), 3.25);
    cr_expect_eq(number(line[0], "grad_norm"), 0.5);
    cr_expect_eq(number(line[0], "lr"), 0.5);
    cr_expect_eq(number(line[0], "tokens_per_s"), 400);
    cr_expect_eq(number(line[0], "step_ms"), 250);
    const cJSON *const bytes = cJSON_GetObjectItemCaseSensitive(line[0], "memory");
    cr_expect_eq(number(bytes, "parameters"), (double)memory.parameters);
    cr_expect_eq(number(bytes, "gradients"), 40);
    cr_expect_eq(number(bytes, "peak"), (double)memory.measured_peak);
    cr_expect_eq(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(line[0], "alerts")), 0);
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line[0], "nonfinite"));
    cJSON_Delete(line[0]);
    rw_monitor_destroy(&m);
    m = monitor(path); /* a resumed run */
    cr_assert_eq(rw_monitor_step(m, &(rw_monitor_values){ .step = 8, .loss = NAN, .grad_norm = -1 }, NULL), RW_OK);
    cr_assert_eq(rw_monitor_step(m, &(rw_monitor_values){ .step = UINT64_MAX, .loss = 1e-300 }, NULL), RW_OK);
    rw_monitor_destroy(&m);
    cr_assert_eq(lines(line, 4), 3);
    cr_expect(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(line[1], "loss")));
    cr_expect(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(line[1], "nonfinite")));
    cr_expect_eq(number(line[1], "grad_norm"), 0);
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line[1], "step_ms"), "the first call has no time");
    cr_expect_str_eq(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(line[1], "alerts"), 0)->valuestring,
                     "loss_nonfinite");
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line[2], "grad_norm"));
    cr_expect_null(cJSON_GetObjectItemCaseSensitive(line[2], "tokens_per_s"));
    cr_expect_gt(number(line[2], "step_ms"), 0);
    for (int i = 0; i < 3; i++) cJSON_Delete(line[i]);
}

Test(monitor, a_disk_that_is_full_is_said_and_tried_again)
{
    cJSON *line[4];
    rw_monitor *m = monitor(path);
    const rw_monitor_values v = { .step = 1, .loss = NAN };
    unsigned alerts = 0;
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 0, RLIM_INFINITY });
    const rw_status status = rw_monitor_step(m, &v, &alerts);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
    cr_assert_eq(status, RW_ERR_IO);
    cr_assert_eq(alerts, RW_ALERT_LOSS_NONFINITE, "the step was taken in");
    cr_assert(strstr(rw_error_message(b.ctx), path), "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_monitor_step(m, &v, NULL), RW_OK, "an error that is stuck does not keep it from writing");
    rw_monitor_destroy(&m);
    rw_error_clear(b.ctx);
    cr_assert_eq(lines(line, 4), 1);
    cJSON_Delete(line[0]);
}

/* ---- other files ---- */

static char *whole_file(const char *name, size_t *ret_bytes)
{
    static char data[1 << 15];
    FILE *const f = fopen(name, "rb");
    cr_assert_not_null(f, "%s", name);
    *ret_bytes = fread(data, 1, sizeof data - 1, f);
    data[*ret_bytes] = 0;
    fclose(f);
    return data;
}

static uint32_t word(const char *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* A field of a protocol buffer: tag 1 of length 4, the tag's text, a float. */
static float tagged(const char *record, size_t n, const char *tag)
{
    float x;
    const size_t length = strlen(tag);
    for (size_t i = 2; i + length + 5 <= n; i++) {
        if (record[i - 2] != 0x0a || (size_t)record[i - 1] != length || memcmp(record + i, tag, length)) continue;
        cr_assert_eq(record[i + length], 0x15);
        memcpy(&x, record + i + length + 1, sizeof x);
        return x;
    }
    cr_assert_fail("no \"%s\"", tag);
    return 0;
}

/* The published check value of CRC-32C, and consecutive records up to the end of the file. */
Test(monitor, writes_events_for_tensorboard)
{
    char folder[160], name[512];
    size_t bytes, at = 0;
    struct dirent *e;
    cr_assert_eq(rw_masked_crc("123456789", 9), (0xe3069283u >> 15 | 0xe3069283u << 17) + 0xa282ead8u);
    snprintf(folder, sizeof folder, "%s.events", path);
    rw_monitor *m = monitor(NULL);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_TENSORBOARD, folder), RW_OK, "%s", rw_error_message(b.ctx));
    step(m, 300, 3.25, 0.5, 0.25);
    step(m, 301, NAN, 0.5, 0.25);
    DIR *const d = opendir(folder);
    while ((e = readdir(d)) && e->d_name[0] == '.') {}
    cr_assert(e && !strncmp(e->d_name, "events.out.tfevents.", 20));
    snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
    closedir(d);
    const char *const data = whole_file(name, &bytes);
    for (int i = 0; i < 3; i++) {
        const size_t n = word(data + at);
        const char *const record = data + at + 12;
        cr_assert(word(data + at + 4) == 0 && at + 16 + n <= bytes);
        cr_assert_eq(word(data + at + 8), rw_masked_crc(data + at, 8));
        cr_assert_eq(word(record + n), rw_masked_crc(record, n));
        if (!i) cr_assert(!memcmp(record + n - 15, "\x1a\x0d" "brain.Event:2", 15));
        const int low = (300 + i - 1) % 128; /* a varint with 7 bits per byte: 300 = 2 * 128 + 44 */
        if (i) cr_assert(record[9] == 0x10 && (unsigned char)record[10] == 0x80 + low && record[11] == 2);
        if (i == 1) cr_assert(tagged(record, n, "loss") == 3.25f && tagged(record, n, "tokens_per_second") == 400);
        if (i == 2) cr_assert(isnan(tagged(record, n, "loss")));
        if (i == 2) cr_assert_eq(tagged(record, n, "alerts_total/loss_nonfinite"), 1);
        at += 16 + n;
    }
    cr_assert_eq(at, bytes);
    rw_monitor_destroy(&m);
    remove(name);
    remove(folder);
}

Test(monitor, writes_a_text_for_prometheus)
{
    char name[160];
    size_t bytes;
    snprintf(name, sizeof name, "%s.prom", path);
    rw_monitor *m = monitor(NULL);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_PROMETHEUS, name), RW_OK);
    step(m, 7, 3.25, 0.5, 0.25);
    step(m, 8, INFINITY, 0.5, 0.25);
    const char *const text = whole_file(name, &bytes);
    static const char *const there[] = {
        "# HELP rewind_step Step\n# TYPE rewind_step gauge\nrewind_step 8\n", "\nrewind_loss +Inf\n",
        "\nrewind_tokens_per_second 400\n",
        "\n# TYPE rewind_memory_bytes gauge\nrewind_memory_bytes{kind=\"parameters\"} 0\n",
        "\n# TYPE rewind_alerts_total counter\nrewind_alerts_total{alert=\"loss_nonfinite\"} 1\n",
        "\nrewind_alerts_total{alert=\"plateau\"} 0\n"
    };
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) cr_expect(strstr(text, there[i]), "%s", text);
    const rw_status twice = rw_monitor_add(m, RW_MONITOR_PROMETHEUS, name);
    cr_expect_eq(twice, RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    remove(name);
    cr_assert_eq(mkdir(name, 0777), 0);
    cr_expect_eq(rw_monitor_step(m, &(rw_monitor_values){ .step = 9, .loss = NAN }, NULL), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), ".prom: a directory, not a file"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_monitor_destroy(&m);
    remove(name);
}

/* By the values of a step, or by the caller's reaction to its alerts; a step counts once. */
Test(monitor, counts_updates_that_are_left_out)
{
    static const struct {
        bool skipped;
        int reactions;
        rw_recovery reaction;
    } steps[] = { { false, 0, 0 },
                  { true, 0, 0 },
                  { false, 2, RW_RECOVERY_SKIP },
                  { true, 1, RW_RECOVERY_SKIP },
                  { false, 1, RW_RECOVERY_LOWER },
                  { false, 1, RW_RECOVERY_SKIP } };
    char name[160];
    size_t bytes;
    snprintf(name, sizeof name, "%s.prom", path);
    rw_monitor *m = monitor(path);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_PROMETHEUS, name), RW_OK);
    for (uint64_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        scaled(m, 0, steps[i].skipped);
        for (int k = 0; k < steps[i].reactions; k++)
            cr_assert_eq(rw_monitor_recovered(m, i, RW_ALERT_LOSS_SPIKE, steps[i].reaction, NULL), RW_OK);
    }
    rw_monitor_destroy(&m); /* writes what the last step left out */
    const char *const text = whole_file(name, &bytes);
    cr_expect(strstr(text, "\nrewind_skipped_total 4\n"), "%s", text);
    remove(name);
}

/* A check comes before the update, so a skip and the scale may be known only after it. They count once, and have their
   alerts. */
Test(monitor, judges_after_a_check_what_the_update_made_known)
{
    char name[160];
    size_t bytes;
    unsigned early, all;
    snprintf(name, sizeof name, "%s.prom", path);
    rw_monitor *m = monitor(NULL);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_PROMETHEUS, name), RW_OK);
    for (uint64_t i = 0; i < 25; i++) {
        const unsigned skips = i > 1 ? RW_ALERT_SKIPS : 0, drop = i == 24 ? RW_ALERT_SCALE_DROP : 0;
        rw_monitor_values v = { .step = i, .loss = 4, .grad_norm = 1, .seconds = 0.1 };
        cr_assert_eq(rw_monitor_check(m, &v, &early), RW_OK);
        if (i % 2) rw_monitor_recovered(m, i, early, RW_RECOVERY_SKIP, "left out by the caller");
        v.skipped = true;
        v.loss_scale = i == 24 ? 2 : 8;
        cr_assert_eq(rw_monitor_step(m, &v, &all), RW_OK);
        cr_expect(!early && all == (skips | drop), "step %d: %#x", (int)i, all);
    }
    rw_monitor_destroy(&m);
    const char *const text = whole_file(name, &bytes);
    cr_expect(strstr(text, "\nrewind_skipped_total 25\n"), "%s", text);
    remove(name);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Steps within one second share a text, unless one has an alert; the last one's stays. */
Test(monitor, replaces_its_text_once_in_a_second)
{
    static const char *const has[] = { "rewind_step 7\n", "rewind_step 7\n", "rewind_step 9\n", "rewind_step 9\n" };
    char name[160];
    size_t bytes;
    snprintf(name, sizeof name, "%s.prom", path);
    rw_monitor *m = monitor(NULL);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_PROMETHEUS, name), RW_OK);
    const double from = seconds();
    for (int i = 0; i < 4; i++) {
        step(m, (uint64_t)(7 + i), i == 2 ? NAN : 3, 0.5, 0.25);
        const bool there = strstr(whole_file(name, &bytes), has[i]);
        cr_expect(there || seconds() - from >= 1, "step %d", 7 + i);
    }
    rw_monitor_destroy(&m);
    cr_expect(strstr(whole_file(name, &bytes), "rewind_step 10\n"));
    m = monitor(NULL);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_PROMETHEUS, name), RW_OK);
    step(m, 11, 3, 0.5, 0.25);
    nanosleep(&(struct timespec){ .tv_sec = 1, .tv_nsec = 5000000 }, NULL);
    step(m, 12, 3, 0.5, 0.25);
    cr_expect(strstr(whole_file(name, &bytes), "rewind_step 12\n"));
    rw_monitor_destroy(&m);
    remove(name);
}

/* Without a reader, opening it would block; and if its reader disappears, writing would end the process. */
Test(monitor, a_fifo_is_refused_without_waiting, .timeout = 120)
{
    char name[400];
    rw_monitor *m = NULL;
    snprintf(name, sizeof name, "%s.fifo", path);
    cr_assert_eq(mkfifo(name, 0600), 0);
    for (int read = 0; read < 2; read++) {
        const int reader = read ? open(name, O_RDONLY | O_NONBLOCK) : -1;
        cr_expect_eq(rw_monitor_create(&m, b.ctx, name), RW_ERR_IO);
        cr_expect(strstr(rw_error_message(b.ctx), "a FIFO, not a file"), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        if (reader >= 0) close(reader);
    }
    cr_expect_null(m);
    remove(name);
}

Test(monitor, a_device_takes_lines)
{
    rw_monitor *m = monitor("/dev/null");
    cr_expect_eq(rw_monitor_step(m, &(rw_monitor_values){ .step = 1, .loss = 1 }, NULL), RW_OK);
    rw_monitor_destroy(&m);
}

Test(monitor, mistakes_are_refused)
{
    rw_monitor *m = NULL;
    cr_expect_eq(rw_monitor_create(&m, NULL, NULL), RW_ERR_ARGUMENT);
    cr_expect_eq(rw_monitor_create(NULL, b.ctx, NULL), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_monitor_create(&m, b.ctx, "/nowhere/at/all"), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), "/nowhere/at/all: No such file"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_monitor_create(&m, b.ctx, "/tmp"), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), "directory"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_null(m);
    for (uint64_t n = 1; n < 3; n++) {
        rw_alloc_fail_at(n);
        cr_expect_eq(rw_monitor_create(&m, b.ctx, path), RW_ERR_MEMORY);
        rw_alloc_fail_at(0);
        rw_error_clear(b.ctx);
        cr_expect_null(m);
    }
    cr_expect_eq(rw_monitor_step(NULL, &(rw_monitor_values){ 0 }, NULL), RW_ERR_ARGUMENT);
    m = monitor(NULL);
    cr_expect_eq(rw_monitor_step(m, NULL, NULL), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    const rw_status wrong[] = { rw_monitor_add(m, RW_MONITOR_PROMETHEUS, ""),
                                rw_monitor_add(m, (rw_monitor_format)7, "a"),
                                rw_monitor_set_policy(m, 1 << 16, RW_RECOVERY_STOP),
                                rw_monitor_set_policy(m, 1, (rw_recovery)5),
                                rw_monitor_recovered(m, 0, 0, (rw_recovery)5, NULL) };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) cr_expect_eq(wrong[i], RW_ERR_ARGUMENT, "%d", (int)i);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_monitor_add(m, RW_MONITOR_TENSORBOARD, "/nowhere/at/all"), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), "/nowhere/at/all: No such file"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_monitor_add(NULL, RW_MONITOR_PROMETHEUS, "a"), RW_ERR_ARGUMENT);
    cr_expect_eq(rw_monitor_policy(NULL, ~0u), RW_RECOVERY_NOTE);
    rw_monitor_destroy(&m);
    rw_monitor_destroy(&m);
    rw_monitor_destroy(NULL);
    cr_expect_str_eq(rw_recovery_name(RW_RECOVERY_ROLL_BACK), "roll_back");
    cr_expect_str_eq(rw_recovery_name((rw_recovery)5), "?");
    cr_expect_str_eq(rw_alert_name(RW_ALERT_SLOW_STEP), "slow_step");
    cr_expect_str_eq(rw_alert_name(3), "?");
}
