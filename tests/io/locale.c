/*
 * A locale whose decimal point is a comma, or has two bytes, does not affect what is written and read. The test creates
 * such locales itself, so that none must be installed; it is skipped if the C library does not accept them.
 */
#include "io/saved_run.h"

#include "api/optimizer_kept.h"
#include "base/c_locale.h"
#include "base/digest.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(locale, .init = folder_open, .fini = folder_close, .timeout = 400);

/* ---- a locale ---- */

struct point {
    const char *name, *text;
    uint32_t wide;
};

static const struct point comma = { "comma", ",", 0x2c }, arabic = { "arabic", "\xd9\xab", 0x66b };

static char home[120];

/* glibc's file of a locale's numbers: a magic number, the number of fields, their offsets, the fields. */
static void put_numeric(const struct point *p, const char *path)
{
    struct {
        uint32_t mark, n, at[6];
        char text[4], thousands[4], groups[4];
        uint32_t wide, wide_thousands;
        char codeset[8];
    } f = { 0x20031114, 6, { 32, 36, 40, 44, 48, 52 }, "", ".", { 3, 3 }, p->wide, '.', "UTF-8" };
    memcpy(f.text, p->text, strlen(p->text));
    file_put(path, &f, sizeof f);
}

static void in_home(const char *name, const char *file, char path[200])
{
    snprintf(path, 200, "%s/%s%s", home, name, file);
}

/* Sets the process's locale, as setlocale(LC_ALL, "") would. False: the C library does not accept it. */
static bool go_by(const struct point *p)
{
    char path[200], text[16];
    const char *const tmp = getenv("TMPDIR");
    snprintf(home, sizeof home, "%.40s/rewind-locale-XXXXXX", tmp ? tmp : P_tmpdir);
    cr_assert_not_null(mkdtemp(home));
    in_home(p->name, "", path);
    cr_assert_eq(mkdir(path, 0777), 0);
    in_home(p->name, "/LC_NUMERIC", path);
    put_numeric(p, path);
    setenv("LOCPATH", home, 1);
    const bool taken = setlocale(LC_NUMERIC, p->name);
    remove(path);
    in_home(p->name, "", path);
    rmdir(path);
    rmdir(home);
    snprintf(text, sizeof text, "%.1f", 0.5);
    return taken && text[0] == '0' && !strncmp(text + 1, p->text, strlen(p->text));
}

#define GO_BY(p) \
    if (!go_by(p)) cr_skip_test("the C library does not take a locale of the test's own")

/* ---- the mechanism ---- */

static void *print_beside(void *text)
{
    snprintf(text, 16, "%.1f", 0.5);
    return NULL;
}

Test(locale, one_thread_goes_by_c_and_the_others_by_the_callers)
{
    GO_BY(&comma);
    char here[16], inner[16], beside[16], after[16];
    pthread_t thread;
    errno = EDOM;
    const locale_t before = rw_c_locale_begin();
    const locale_t nested = rw_c_locale_begin();
    cr_assert_eq(pthread_create(&thread, NULL, print_beside, beside), 0);
    pthread_join(thread, NULL);
    rw_c_locale_end(nested);
    snprintf(inner, sizeof inner, "%.1f", 0.5);
    rw_c_locale_end(before);
    snprintf(after, sizeof after, "%.1f", 0.5);
    cr_assert_eq(errno, EDOM);
    cr_assert_str_eq(inner, "0.5");
    cr_assert_str_eq(beside, "0,5");
    cr_assert_str_eq(after, "0,5");
    /* A thread's own locale is restored, too. */
    const locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    uselocale(own);
    rw_c_locale_end(rw_c_locale_begin());
    snprintf(here, sizeof here, "%.1f", 0.5);
    cr_assert_str_eq(here, "0.5");
    cr_assert_eq(uselocale(LC_GLOBAL_LOCALE), own);
    freelocale(own);
}

/* ---- checkpoints ---- */

#define RATE (1.0 / 3)

/* The rate and the schedule are restored to the last bit. */
static void expect_back(struct world *w)
{
    rw_optimizer_set_lr(w->opt, 5);
    schedule = (rw_lr_schedule){ .kind = RW_LR_CONSTANT, .lr = 7 };
    world_load(w);
    cr_assert_eq(rw_optimizer_lr(w->opt), RATE);
    cr_assert_eq(schedule.lr, planned.lr);
    cr_assert_eq(schedule.min_lr, planned.min_lr);
    cr_assert_eq(schedule.factor, planned.factor);
}

/* The same bytes as with C's locale, and both locales read them. */
static void save_and_load(const struct point *p)
{
    unsigned char *file[2];
    size_t bytes[2];
    GO_BY(p);
    struct world w = world_open(RW_F32, &alone);
    for (int i = 0; i < 2; i++) {
        cr_assert_not_null(setlocale(LC_NUMERIC, i ? p->name : "C"));
        rw_optimizer_set_lr(w.opt, RATE);
        world_save(&w);
        cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
        file[i] = file_get(file_of(i + 1, 0), &bytes[i]);
    }
    expect_back(&w);
    setlocale(LC_NUMERIC, "C");
    expect_back(&w);
    cr_assert_eq(bytes[0], bytes[1]);
    cr_assert_eq(memcmp(file[0], file[1], bytes[0]), 0);
    free(file[0]), free(file[1]);
    world_close(&w);
}

Test(locale, checkpoints_with_a_comma)
{
    save_and_load(&comma);
}

Test(locale, checkpoints_with_a_point_of_two_bytes)
{
    save_and_load(&arabic);
}

/* Replaces a text in a file's header by another of the same length, and updates the header's digest. */
static void forge(const char *path, const char *there, const char *instead)
{
    size_t bytes;
    unsigned char *const file = file_get(path, &bytes);
    const size_t header = 8 + file[0] + 256 * (size_t)file[1];
    unsigned char *const at = memmem(file, header, there, strlen(there));
    cr_assert_not_null(at, "%s is not in it", there);
    memcpy(at, instead, strlen(instead));
    const struct rw_digest d = rw_digest_bytes(file, header, 1);
    memcpy(file + bytes - sizeof d, &d, sizeof d);
    file_put(path, file, bytes);
    free(file);
}

/* As written by a library that used the caller's locale. */
Test(locale, what_is_not_read_to_its_end_is_refused_by_name)
{
    static const struct {
        const char *there, *instead, *message;
    } rows[] = {
        { "\"0x1.8p-1\"", "\"0x1,8p-1\"", "learning rate: expected a number, got \"0x1,8p-1\"" },
        { " 0x1.999999999999ap-4\"", " 0x1,999999999999ap-4\"", "schedule: expected a learning-rate " },
        { "\"123\"", "\"12.\"", "expected a step and the state of a generator" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct world w = world_open(RW_F32, &alone);
        rw_optimizer_set_lr(w.opt, 0.75);
        w.step = 123;
        world_save(&w);
        cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
        forge(file_of(1, 123), rows[i].there, rows[i].instead);
        rw_optimizer_set_lr(w.opt, 5);
        cr_assert_eq(rw_checkpoint_load(w.ck, NULL), RW_ERR_IO, "%d", (int)i);
        cr_assert(strstr(rw_error_message(w.b.ctx), rows[i].message), "%s", rw_error_message(w.b.ctx));
        cr_assert_eq(rw_optimizer_lr(w.opt), 5);
        rw_error_clear(w.b.ctx);
        world_close(&w);
        empty_folder(folder);
    }
}

/* ---- files for other programs ---- */

/* Log, Prometheus text and trace written in that locale have points and are valid. */
static void monitored(const struct point *p)
{
    char line[160], text[160], trace[160];
    GO_BY(p);
    snprintf(line, sizeof line, "%s.jsonl", folder);
    snprintf(text, sizeof text, "%s.prom", folder);
    snprintf(trace, sizeof trace, "%s.json", folder);
    setenv("REWIND_TRACE", trace, 1);
    struct world w = small_open();
    unsetenv("REWIND_TRACE");
    rw_monitor *m = NULL;
    cr_assert_eq(rw_monitor_create(&m, w.b.ctx, line), RW_OK);
    cr_assert_eq(rw_monitor_add(m, RW_MONITOR_PROMETHEUS, text), RW_OK);
    cr_assert_eq(rw_monitor_step(m, &(rw_monitor_values){ .step = 1, .loss = 2.5, .lr = 0.125 }, NULL), RW_OK);
    rw_monitor_destroy(&m);
    cr_assert_gt(rw_item(w.b.t, rw_mean(w.b.t, rw_exp(w.b.t, x_of(&w)), RW_ALL_AXES, false)), 2);
    cr_assert_eq(rw_error_status(w.b.ctx), RW_OK, "%s", rw_error_message(w.b.ctx));
    world_close(&w);
    const char *const files[] = { line, text, trace };
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        unsigned char *const all = file_get(files[i], &bytes);
        all[bytes] = 0;
        setlocale(LC_NUMERIC, "C"); /* the reader's locale */
        if (i == 0) cr_expect(strstr((char *)all, "\"loss\":2.5,"), "%s", (char *)all);
        if (i == 1) cr_expect(strstr((char *)all, "rewind_loss 2.5\n"), "%s", (char *)all);
        if (i == 2) cr_expect(strstr((char *)all, "\"ts\":"), "%s", (char *)all);
        cJSON *const json = i == 1 ? NULL : cJSON_ParseWithOpts((char *)all, NULL, i == 2);
        cr_expect(json || i == 1, "%s", (char *)all);
        cJSON_Delete(json);
        free(all);
        remove(files[i]);
    }
}

Test(locale, a_monitors_files_and_a_trace_with_a_comma)
{
    monitored(&comma);
}

Test(locale, a_monitors_files_and_a_trace_with_a_point_of_two_bytes)
{
    monitored(&arabic);
}
