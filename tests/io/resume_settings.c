/*
 * Settings of rw_optimizer_set() are restored when a run is loaded. Files of older builds do not have them, which the
 * load reports; files with impossible numbers are refused with name and field.
 */
#include "io/saved_run.h"

#include "api/optimizer.h"
#include "base/alloc.h"
#include "base/digest.h"
#include "io/safetensors_format.h"
#include "io/snapshot.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

TestSuite(resume_settings, .init = folder_open, .fini = folder_close, .timeout = 400);

/* ---- after a restart ---- */

static void set(struct world *w, rw_tensor *p, double lr_factor, double weight_decay)
{
    const rw_optimizer_settings s = { lr_factor, weight_decay };
    cr_assert_eq(rw_optimizer_set(w->opt, p, &s), RW_OK, "%s", rw_error_message(w->b.ctx));
}

/* One parameter is frozen, one has a lower rate, one its own decay, one has no settings. */
static void set_some(struct world *w)
{
    set(w, w->net.gain[0], RW_ZERO, 0);
    set(w, w->net.up[0], 0.1, 0);
    set(w, w->net.shift[1], 0, 0.25);
    set(w, w->net.down[1], 0, RW_ZERO);
}

/* Steps with settings from the third on, and a restart after the fifth or none: all bytes of the last save. */
static unsigned char *run(rw_dtype dtype, const struct way *how, bool restarts, size_t *bytes)
{
    struct world w = world_open(dtype, how);
    world_train(&w, how, 3);
    set_some(&w);
    world_train(&w, how, 5);
    if (restarts) {
        world_save(&w);
        world_close(&w);
        w = world_open(dtype, how);
        set(&w, w.net.up[1], 0.5, 0); /* the program's own setting, which the saved run did not have */
        const rw_checkpoint_found found = world_load(&w);
        cr_assert_str_eq(found.missing, "");
    }
    world_train(&w, how, 8);
    world_save(&w);
    world_close(&w);
    unsigned char *const all = file_get(file_of(restarts ? 2 : 1, 8), bytes);
    empty_folder(folder);
    return all;
}

Test(resume_settings, go_on)
{
    static const struct way ways[] = { { "none", false, 1, NULL }, { "full", true, 2, NULL } };
    static const rw_dtype dtypes[] = { RW_F32, RW_BF16 };
    for (kind = 0; kind < 5; kind++)
        for (int i = 0; i < 2; i++) {
            size_t bytes, got_bytes;
            unsigned char *const want = run(dtypes[i], &ways[i], false, &bytes);
            unsigned char *const got = run(dtypes[i], &ways[i], true, &got_bytes);
            cr_assert_eq(got_bytes, bytes);
            cr_assert_eq(first_difference(got, want, bytes), -1, "optimizer %d, way %d: byte %ld", kind, i,
                         first_difference(got, want, bytes));
            free(want);
            free(got);
        }
    kind = 0;
}

/* ---- a file of an older build ---- */

/* The program that has written it: three steps of AdamW, averages, a schedule. */
struct old {
    rw_context *ctx;
    rw_tensor *w, *b;
    rw_optimizer *opt;
    rw_weight_average *average;
    rw_lr_schedule schedule;
    rw_checkpoint *ck;
};

static void old_open(struct old *o)
{
    *o = (struct old){ 0 };
    const rw_context_params params = { .device = test_device(), .seed = 77, .threads = 1 };
    cr_assert_eq(rw_context_create(&o->ctx, &params), RW_OK);
    o->w = rw_param(o->ctx, "w", RW_F32, RW_SHAPE(4, 3));
    o->b = rw_param(o->ctx, "b", RW_BF16, RW_SHAPE(3));
    rw_buffer(o->ctx, "n", RW_F32, RW_SHAPE(2));
    cr_assert_eq(rw_adamw_create(&o->opt, o->ctx, NULL), RW_OK);
    cr_assert_eq(rw_weight_average_create(&o->average, o->ctx, 0.75), RW_OK);
    const rw_checkpoint_params p = { .folder = folder, .optimizer = o->opt, .average = o->average,
                                     .schedule = &o->schedule };
    cr_assert_eq(rw_checkpoint_create(&o->ck, o->ctx, &p), RW_OK);
}

static void old_close(struct old *o)
{
    rw_checkpoint_destroy(&o->ck);
    rw_weight_average_destroy(&o->average);
    rw_optimizer_destroy(&o->opt);
    rw_context_destroy(&o->ctx);
}

static struct rw_format_file parse(const char *path)
{
    struct rw_format_file f;
    char why[512] = "";
    cr_assert_eq(rw_format_open(&f, path, why, sizeof why), RW_OK, "%s: %s", path, why);
    cr_assert_eq(rw_format_read_all(&f, why, sizeof why), RW_OK, "%s: %s", path, why);
    return f;
}

/* Every tensor of the first, except digests of headers, is in the second, byte for byte; and the metadata. */
static void expect_contained(const char *old, const char *new)
{
    struct rw_format_file a = parse(old), b = parse(new);
    for (size_t i = 0; i < a.header.n; i++) {
        const struct rw_header_entry *const e = &a.header.entry[i], *const other = rw_header_find(&b.header, e->name);
        cr_assert_not_null(other, "%s", e->name);
        if (!strcmp(e->name, RW_SNAPSHOT_HEADER)) continue;
        cr_assert_eq(rw_format_bytes(e), rw_format_bytes(other));
        cr_assert_eq(memcmp(a.elements + e->from, b.elements + other->from, rw_format_bytes(e)), 0, "%s", e->name);
    }
    cr_assert_gt(a.header.n_pairs, 4);
    for (size_t i = 0; i < a.header.n_pairs; i++)
        cr_assert_str_eq(a.header.pair[i].value, rw_header_metadata(&b.header, a.header.pair[i].key));
    rw_format_finish(&a);
    rw_format_finish(&b);
}

Test(resume_settings, a_file_without_them_is_loaded_and_says_so)
{
    struct old o;
    size_t bytes;
    rw_checkpoint_found found;
    unsigned char *const file = file_get(REWIND_GOLDEN "/without_settings.safetensors", &bytes);
    cr_assert_eq(mkdir(folder, 0777), 0);
    file_put(file_of(1, 3), file, bytes);
    free(file);
    old_open(&o);
    cr_assert_eq(rw_optimizer_set(o.opt, o.w, &(rw_optimizer_settings){ .lr_factor = 0.5 }), RW_OK);
    cr_assert_eq(rw_checkpoint_load(o.ck, &found), RW_OK, "%s", rw_error_message(o.ctx));
    cr_expect(found.found && found.step == 3 && found.extra_bytes == 5 && !memcmp(found.extra, "words", 5));
    cr_expect(strstr(found.missing, "rw_optimizer_set()") && strstr(found.missing, "\"w\""), "%s", found.missing);
    cr_expect_eq(rw_optimizer_kept(o.opt, 0).lr_factor, 0.5, "the program's stays");
    cr_expect_eq(o.schedule.kind, RW_LR_COSINE);
    cr_expect_eq(rw_optimizer_lr(o.opt), rw_lr_schedule_rate(&o.schedule, 2));
    cr_assert_eq(rw_checkpoint_save(o.ck, 3, "words", 5), RW_OK, "%s", rw_error_message(o.ctx));
    cr_assert_eq(rw_checkpoint_wait(o.ck), RW_OK, "%s", rw_error_message(o.ctx));
    expect_contained(file_of(1, 3), file_of(2, 3));
    cr_assert_eq(rw_optimizer_set(o.opt, o.w, NULL), RW_OK);
    cr_assert_eq(rw_checkpoint_load(o.ck, &found), RW_OK);
    cr_expect_str_eq(found.missing, "");
    cr_expect_eq(rw_optimizer_kept(o.opt, 0).lr_factor, 0.5, "the file's");
    old_close(&o);
}

/* ---- values no run can have ---- */

static void put_header_digest(unsigned char *file, size_t bytes, size_t header)
{
    const struct rw_digest d = rw_digest_bytes(file, header, 1);
    memcpy(file + bytes - sizeof d, &d, sizeof d);
}

/* Overwrites a text of the header by one of the same length, and the header's digest. */
static void forge_text(const char *path, const char *there, const char *instead)
{
    size_t bytes;
    unsigned char *const file = file_get(path, &bytes);
    const size_t header = 8 + file[0] + 256 * (size_t)file[1];
    unsigned char *const at = memmem(file, header, there, strlen(there));
    cr_assert(at && strlen(there) == strlen(instead), "%s", there);
    memcpy(at, instead, strlen(instead));
    put_header_digest(file, bytes, header);
    file_put(path, file, bytes);
    free(file);
}

/* Overwrites a tensor's first bytes, its digest, and the header's. */
static void forge_tensor(const char *path, const char *name, const void *data, size_t n)
{
    size_t bytes;
    char key[RW_SNAPSHOT_NAME_MAX + 32], text[RW_DIGEST_TEXT];
    struct rw_format_file f = parse(path);
    const struct rw_header_entry *const entry = rw_header_find(&f.header, name);
    cr_assert_not_null(entry, "%s", name);
    const size_t header = f.n_begin, from = header + entry->from;
    const size_t size = rw_format_bytes(entry);
    rw_format_finish(&f);
    unsigned char *const file = file_get(path, &bytes);
    memcpy(file + from, data, n);
    rw_digest_print(rw_digest_bytes(file + from, size, 1), text);
    snprintf(key, sizeof key, "\"rewind.digest:%s\":\"", name);
    unsigned char *const at = memmem(file, header, key, strlen(key));
    cr_assert_not_null(at, "%s", key);
    memcpy(at + strlen(key), text, RW_DIGEST_TEXT - 1);
    put_header_digest(file, bytes, header);
    file_put(path, file, bytes);
    free(file);
}

/* A run whose newest file is forged, and which loads nothing. */
static struct world saved(void)
{
    struct world w = world_open(RW_F32, &alone);
    rw_optimizer_set_lr(w.opt, 0.75);
    w.step = 12;
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    return w;
}

/* The load fails, names the field and value, and changes nothing. */
static void expect_refused(struct world *w, const char *field, const char *value)
{
    size_t bytes, now_bytes;
    const rw_lr_schedule before = schedule;
    unsigned char *const want = all_parameters(w->b.ctx, &bytes);
    rw_optimizer_set_lr(w->opt, 5);
    cr_expect_eq(rw_checkpoint_load(w->ck, NULL), RW_ERR_IO, "%s", field);
    const char *const m = rw_error_message(w->b.ctx);
    cr_expect(strstr(m, "rw_checkpoint_load: ") && strstr(m, "000001-step12") && strstr(m, field) && strstr(m, value),
              "%s %s: %s", field, value, m);
    cr_expect_eq(rw_optimizer_lr(w->opt), 5);
    cr_expect_eq(memcmp(&before, &schedule, sizeof schedule), 0);
    rw_error_clear(w->b.ctx);
    unsigned char *const got = all_parameters(w->b.ctx, &now_bytes);
    cr_expect_eq(first_difference(got, want, bytes), -1);
    free(want);
    free(got);
    world_close(w);
    empty_folder(folder);
}

Test(resume_settings, a_rate_that_is_none_is_refused)
{
    static const char *const rates[][2] = { { "\"nan\"     ", "nan" }, { "\"inf\"     ", "inf" },
                                            { "\"-0x1.8p1\"", "-3" }, { "\"-inf\"    ", "-inf" } };
    for (size_t i = 0; i < 4; i++) {
        struct world w = saved();
        forge_text(file_of(1, 12), "\"0x1.8p-1\"", rates[i][0]);
        expect_refused(&w, "rewind.optimizer.lr", rates[i][1]);
    }
}

Test(resume_settings, a_schedule_that_gives_no_rate_is_refused)
{
    static const char *const texts[][2] = { { " 0x1.47ae147ae147bp-6 ", " nan                  " },
                                            { " 0x1.47ae147ae147bp-6 ", " -1                   " },
                                            { " 0x1.47ae147ae147bp-6 ", " inf                  " },
                                            { " 3 101 ", " 201 1 " },
                                            { "\"2 ", "\"9 " } };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct world w = saved();
        forge_text(file_of(1, 12), texts[i][0], texts[i][1]);
        expect_refused(&w, "rewind.schedule", "gives no learning rate");
    }
}

Test(resume_settings, settings_that_are_none_are_refused)
{
    static const struct {
        double settings[2];
        const char *value;
    } rows[] = { { { NAN, -1 }, "nan" }, { { INFINITY, -1 }, "inf" }, { { -0.5, -1 }, "-0.5" },
                 { { 1, NAN }, "nan" }, { { 1, -INFINITY }, "-inf" } };
    char name[RW_SNAPSHOT_NAME_MAX];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct world w = saved();
        rw_snapshot_name(name, "settings", rw_tensor_name(w.net.up[1]));
        forge_tensor(file_of(1, 12), name, rows[i].settings, sizeof rows[i].settings);
        expect_refused(&w, name, rows[i].value);
    }
}

Test(resume_settings, counts_that_are_none_are_refused)
{
    static const int64_t counts[][2] = { { -1, 1 }, { UINT32_MAX, 1 }, { INT64_MAX, 0 }, { 5, 2 } };
    char name[RW_SNAPSHOT_NAME_MAX];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct world w = saved();
        rw_snapshot_name(name, "step", rw_tensor_name(w.net.up[1]));
        forge_tensor(file_of(1, 12), name, counts[i], sizeof counts[i]);
        expect_refused(&w, name, "expected");
    }
}

/* It could not be loaded. */
Test(resume_settings, a_schedule_that_gives_no_rate_is_not_saved)
{
    struct world w = world_open(RW_F32, &alone);
    schedule.total = 0;
    cr_expect_eq(rw_checkpoint_save(w.ck, 1, NULL, 0), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(w.b.ctx), "schedule"), "%s", rw_error_message(w.b.ctx));
    rw_error_clear(w.b.ctx);
    schedule = planned;
    w.step = 1;
    world_save(&w);
    world_close(&w);
}
