/*
 * The n-th system call on files fails, for every n, during a save, a load, a log line or a trace: EIO, ESTALE, ENOSPC;
 * EINTR, and a partial transfer. The library's call fails or does not depend on the failed one, and the next call
 * leaves the state of a run without a fault.
 */
#include "io/faulty_calls.h"
#include "io/saved_run.h"

#include "io/monitor_tensorboard_prometheus.h"

#include <rewind/io.h>
#include <rewind/monitor.h>
#include <rewind/plan.h>

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(file_faults, .init = folder_open, .fini = folder_close, .timeout = 400);

static const int errors[] = { EIO, ESTALE, ENOSPC, EINTR, SHORTENS };
#define ERRORS (sizeof errors / sizeof *errors)

/* The call is retried or continued: no error. */
static bool is_gone_on_with(int error)
{
    return error == EINTR || error == SHORTENS;
}

struct scene {
    struct world w;
    rw_monitor *monitor;
    char path[160];
    uint64_t step;
    unsigned char *want; /* the result of a run without a fault */
    size_t want_bytes;
};

/* One call, or several that end with the checked one. */
typedef rw_status (*act)(struct scene *s);
/* Whether the state is that of a run without a fault. */
typedef bool (*look)(struct scene *s);

/* Fails the n-th system call, for every n and error, and checks the state after the next call. */
static void fail_each(struct scene *s, act does, look is_right, const char *what)
{
    int failures = 0, known = 0;
    for (size_t k = 0; k < ERRORS; k++)
        for (int n = 1;; n++) {
            const char *call;
            fault_plant(n, errors[k]);
            const rw_status status = does(s);
            if (!fault_take(&call)) break;
            known++;
            failures += status != RW_OK;
            const char *const m = rw_error_message(s->w.b.ctx);
            if (is_gone_on_with(errors[k])) cr_assert_eq(status, RW_OK, "%s: %s %d: %s", what, call, n, m);
            else cr_assert(status == RW_OK || status == RW_ERR_IO, "%s: %s %d: %s", what, call, n, m);
            cr_assert(!status || *m, "%s: %s %d: no message", what, call, n);
            cr_assert(status || is_right(s), "%s: %s %d, error %d: RW_OK, and not right", what, call, n, errors[k]);
            rw_error_clear(s->w.b.ctx);
            cr_assert_eq(does(s), RW_OK, "%s, after %s %d failed: %s", what, call, n, rw_error_message(s->w.b.ctx));
            cr_assert(is_right(s), "%s, after %s %d failed (error %d)", what, call, n, errors[k]);
        }
    cr_assert(known > 5 && failures > 3, "%s: %d faults, %d of them errors", what, known, failures);
}

static bool is_wanted(const struct scene *s, const char *path)
{
    size_t bytes;
    unsigned char *const got = file_get(path, &bytes);
    const bool same = bytes == s->want_bytes && !memcmp(got, s->want, bytes);
    free(got);
    return same;
}

static bool has_no_part(void)
{
    return !strstr(names_in(folder), ".part");
}

/* ---- rw_save(), rw_load(), costs ---- */

static rw_status save(struct scene *s)
{
    return rw_save(s->w.b.ctx, s->path);
}

static bool is_saved(struct scene *s)
{
    return is_wanted(s, s->path) && has_no_part();
}

static rw_status load(struct scene *s)
{
    if (rw_init_constant(x_of(&s->w), 3)) return RW_ERR_DEVICE;
    return rw_load(s->w.b.ctx, s->path);
}

static rw_status load_parts(struct scene *s)
{
    const rw_load_part part = { .param = "x", .name = "x" };
    if (rw_init_constant(x_of(&s->w), 3)) return RW_ERR_DEVICE;
    return rw_load_parts(s->w.b.ctx, s->path, &part, 1);
}

static bool is_loaded(struct scene *s)
{
    uint16_t x[3];
    return !rw_read(NULL, x_of(&s->w), x, sizeof x) && x[2] == 0x3f80;
}

Test(file_faults, weights)
{
    struct scene s = { .w = small_open() };
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(s.path, sizeof s.path, "%s/weights", folder);
    cr_assert_eq(save(&s), RW_OK);
    s.want = file_get(s.path, &s.want_bytes);
    fail_each(&s, save, is_saved, "rw_save");
    fail_each(&s, load, is_loaded, "rw_load");
    fail_each(&s, load_parts, is_loaded, "rw_load_parts");
    free(s.want);
    world_close(&s.w);
}

static rw_status save_costs(struct scene *s)
{
    return rw_costs_save(s->w.b.ctx, s->path);
}

static rw_status load_costs(struct scene *s)
{
    return rw_costs_load(s->w.b.ctx, s->path);
}

static bool is_there(struct scene *s)
{
    return true;
}

Test(file_faults, costs)
{
    struct scene s = { .w = small_open() };
    rw_tape *const t = s.w.b.t;
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(s.path, sizeof s.path, "%s/costs", folder);
    cr_assert_eq(rw_profile_begin(s.w.b.ctx), RW_OK);
    cr_assert_eq(rw_backward(t, rw_sum(t, x_of(&s.w), RW_ALL_AXES, false)), RW_OK);
    rw_tape_reset(t);
    cr_assert_eq(rw_profile_end(s.w.b.ctx), RW_OK, "%s", rw_error_message(s.w.b.ctx));
    cr_assert_eq(save_costs(&s), RW_OK);
    s.want = file_get(s.path, &s.want_bytes);
    fail_each(&s, save_costs, is_saved, "rw_costs_save");
    fail_each(&s, load_costs, is_there, "rw_costs_load");
    free(s.want);
    world_close(&s.w);
}

/* ---- checkpoints ---- */

static rw_status save_checkpoint(struct scene *s)
{
    const rw_status status = rw_checkpoint_save(s->w.ck, s->step, "abc", 3);
    return status ? status : rw_checkpoint_wait(s->w.ck);
}

/* The newest checkpoint, by its name. */
static const char *newest(void)
{
    static char path[400];
    const char *const names = names_in(folder), *const last = strrchr(names, ' ');
    snprintf(path, sizeof path, "%s/%s", folder, last ? last + 1 : names);
    return path;
}

static bool is_newest(struct scene *s)
{
    return is_wanted(s, newest()) && has_no_part();
}

static rw_status load_checkpoint(struct scene *s)
{
    rw_checkpoint_found found = { 0 };
    if (rw_init_constant(x_of(&s->w), 3)) return RW_ERR_DEVICE;
    const rw_status status = rw_checkpoint_load(s->w.ck, &found);
    s->step = found.step;
    return status;
}

/* Whether it is loaded, not an earlier one or none. */
static bool is_the_newest_one(struct scene *s)
{
    return is_loaded(s) && s->step == 5;
}

Test(file_faults, checkpoints)
{
    struct scene s = { .w = small_open(), .step = 5 };
    cr_assert_eq(save_checkpoint(&s), RW_OK, "%s", rw_error_message(s.w.b.ctx));
    s.want = file_get(newest(), &s.want_bytes);
    fail_each(&s, save_checkpoint, is_newest, "rw_checkpoint_save");
    s.step = 4;
    cr_assert_eq(rw_init_constant(x_of(&s.w), 2), RW_OK);
    cr_assert_eq(save_checkpoint(&s), RW_OK);
    s.step = 5;
    cr_assert_eq(rw_init_constant(x_of(&s.w), 1), RW_OK);
    cr_assert_eq(save_checkpoint(&s), RW_OK);
    fail_each(&s, load_checkpoint, is_the_newest_one, "rw_checkpoint_load");
    free(s.want);
    world_close(&s.w);
}

/* The first save of a run, which creates the folder. */
static rw_status save_first(struct scene *s)
{
    rw_checkpoint *ck = NULL;
    rw_status status = rw_checkpoint_create(&ck, s->w.b.ctx, &(rw_checkpoint_params){ .folder = folder });
    if (!status) status = rw_checkpoint_save(ck, 5, NULL, 0);
    if (!status) status = rw_checkpoint_wait(ck);
    rw_checkpoint_destroy(&ck);
    return status;
}

static bool is_first(struct scene *s)
{
    const bool right = is_newest(s);
    empty_folder(folder);
    return right;
}

Test(file_faults, first_checkpoints)
{
    struct scene s = { .w = small_open() };
    cr_assert_eq(save_first(&s), RW_OK);
    s.want = file_get(newest(), &s.want_bytes);
    empty_folder(folder);
    fail_each(&s, save_first, is_first, "the first save");
    free(s.want);
    world_close(&s.w);
}

/* ---- a file that disappears ---- */

/* What a run with keep = 1 does between the listing and the opening of its only file. */
static void replace_the_newest(const char *path)
{
    size_t bytes;
    if (!strstr(path, ".safetensors")) return;
    fault_before_open = NULL;
    unsigned char *const data = file_get(file_of(1, 1), &bytes);
    file_put(file_of(2, 1), data, bytes);
    cr_assert_eq(unlink(file_of(1, 1)), 0);
    free(data);
}

/* The reader lists the folder again: nothing is damaged. */
Test(file_faults, a_checkpoint_that_is_replaced_while_it_is_loaded)
{
    struct scene s = { .w = small_open(), .step = 1 };
    rw_checkpoint_found found;
    cr_assert_eq(rw_init_constant(x_of(&s.w), 1), RW_OK);
    cr_assert_eq(save_checkpoint(&s), RW_OK);
    for (int turn = 0; turn < 2; turn++) {
        fault_before_open = turn ? NULL : replace_the_newest;
        cr_assert_eq(rw_init_constant(x_of(&s.w), 3), RW_OK);
        cr_assert_eq(rw_checkpoint_load(s.w.ck, &found), RW_OK, "%s", rw_error_message(s.w.b.ctx));
        cr_expect(found.found && found.step == 1 && !found.skipped, "%d, %s", found.found, found.why);
        cr_expect(strstr(found.path, "000002-step1"), "%s", found.path);
        expect_x(&s.w, 1);
    }
    cr_assert_eq(symlink("nothing", file_of(3, 3)), 0);
    cr_assert_eq(rw_checkpoint_load(s.w.ck, &found), RW_OK, "%s", rw_error_message(s.w.b.ctx));
    cr_expect(found.found && found.step == 1 && found.skipped == 1, "a name without a file is skipped: %s", found.why);
    world_close(&s.w);
}

/* ---- folders without fsync() ---- */

/* Number of fsync() calls of a folder; a refused one is not an error. */
static int folders_synced(struct scene *s, act does)
{
    const char *call;
    for (int n = 1;; n++) {
        fault_plant(n, EINVAL);
        const rw_status status = does(s);
        if (!fault_take(&call)) return n - 1;
        cr_assert_eq(status, RW_OK, "%s", rw_error_message(s->w.b.ctx));
    }
}

static rw_status save_anew(struct scene *s)
{
    empty_folder(folder);
    return save_first(s);
}

Test(file_faults, entries_of_folders_are_durable_and_a_folder_without_fsync_is_no_error)
{
    struct scene s = { .w = small_open(), .step = 5 };
    cr_assert_eq(save_checkpoint(&s), RW_OK);
    cr_expect_eq(folders_synced(&s, save_checkpoint), 1, "the file's entry");
    snprintf(s.path, sizeof s.path, "%s/weights", folder);
    cr_expect_eq(folders_synced(&s, save), 1, "the file's entry");
    rw_checkpoint_destroy(&s.w.ck);
    cr_expect_eq(folders_synced(&s, save_anew), 2, "the folder's entry and the file's");
    world_close(&s.w);
}

/* A folder whose entry may not be on the disk, because its fsync() failed: the next save makes up for it. */
Test(file_faults, a_folder_whose_entry_was_not_written_is_written_by_the_next_save)
{
    struct scene s = { .w = small_open(), .step = 5 };
    const char *call = "";
    rw_status status = RW_OK;
    rw_checkpoint_destroy(&s.w.ck);
    for (int n = 1; strcmp(call, "fsync") != 0; n++) {
        empty_folder(folder);
        fault_plant(n, EIO);
        status = save_first(&s);
        cr_assert(fault_take(&call), "call %d", n);
        rw_error_clear(s.w.b.ctx);
    }
    cr_assert_eq(status, RW_ERR_IO);
    cr_assert_str_eq(names_in(folder), "", "that of the folder comes first");
    cr_expect_eq(folders_synced(&s, save_first), 2, "the folder's entry and the file's");
    world_close(&s.w);
}

/* ---- files for offloaded values ---- */

static rw_status take_store(struct scene *s)
{
    rw_optimizer *opt = NULL;
    const rw_state_offload states = { .place = RW_STATE_FILE, .path = "/tmp", .window = 64 << 10 };
    const rw_status status = rw_adamw_create(&opt, s->w.b.ctx, &(rw_adamw_params){ .states = states });
    rw_optimizer_destroy(&opt);
    return status;
}

/* On a file system without O_TMPFILE the file has a name until it is open. */
Test(file_faults, a_file_that_has_a_name_for_a_moment)
{
    struct scene s = { .w = small_open() };
    const char *call;
    bool any = false;
    fault_no_nameless = true;
    for (int n = 1;; n++) {
        fault_plant(n, EINTR);
        const rw_status status = take_store(&s);
        if (!fault_take(&call)) break;
        any |= !strcmp(call, "mkostemp");
        cr_assert_eq(status, RW_OK, "%s was interrupted: %s", call, rw_error_message(s.w.b.ctx));
    }
    cr_expect(any);
    fault_no_nameless = false;
    world_close(&s.w);
}

/* ---- a monitor ---- */

static rw_status tell_step(struct scene *s)
{
    const rw_monitor_values v = { .step = ++s->step, .loss = 2, .seconds = 1 };
    return rw_monitor_step(s->monitor, &v, NULL);
}

/* Every line is JSON, and the last one is of this step; the same for the events. */
static bool lines_are_whole(const struct scene *s, bool last)
{
    size_t bytes;
    char *const text = (char *)file_get(s->path, &bytes), *line = text;
    double step = -1;
    bool whole = bytes && text[bytes - 1] == '\n';
    text[bytes] = '\0';
    for (char *end; whole && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        cJSON *const one = cJSON_Parse(line);
        const cJSON *const number = cJSON_GetObjectItem(one, "step");
        whole = cJSON_IsNumber(number) && number->valuedouble > step;
        step = whole ? number->valuedouble : step;
        cJSON_Delete(one);
    }
    free(text);
    return whole && (!last || step == (double)s->step);
}

/* The only file in TensorBoard's folder. */
static unsigned char *events(size_t *ret_bytes)
{
    char board[200], file[512] = "";
    snprintf(board, sizeof board, "%s/board", folder);
    snprintf(file, sizeof file, "%s/%.300s", board, names_in(board));
    return file_get(file, ret_bytes);
}

/* A record is its length, a checksum, its bytes, a checksum. */
static bool events_are_whole(void)
{
    size_t bytes, at = 0;
    uint64_t length = 0;
    uint32_t crc;
    unsigned char *const data = events(&bytes);
    bool whole = true;
    for (; whole && at < bytes; at += 16 + (size_t)length) {
        whole = bytes - at >= 16;
        if (whole) memcpy(&length, data + at, 8), memcpy(&crc, data + at + 8, 4);
        whole = whole && rw_masked_crc(data + at, 8) == crc && length <= bytes - at - 16;
        if (whole) memcpy(&crc, data + at + 12 + length, 4);
        whole = whole && rw_masked_crc(data + at + 12, (size_t)length) == crc;
    }
    free(data);
    return whole && at == bytes;
}

static bool is_told(struct scene *s)
{
    return lines_are_whole(s, true) && events_are_whole() && has_no_part();
}

static void remove_board(void)
{
    char path[200];
    snprintf(path, sizeof path, "%s/board", folder);
    empty_folder(path);
}

Test(file_faults, a_monitor)
{
    struct scene s = { .w = small_open() };
    char path[200];
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(s.path, sizeof s.path, "%s/log.jsonl", folder);
    cr_assert_eq(rw_monitor_create(&s.monitor, s.w.b.ctx, s.path), RW_OK);
    snprintf(path, sizeof path, "%s/board", folder);
    cr_assert_eq(rw_monitor_add(s.monitor, RW_MONITOR_TENSORBOARD, path), RW_OK);
    snprintf(path, sizeof path, "%s/prometheus", folder);
    cr_assert_eq(rw_monitor_add(s.monitor, RW_MONITOR_PROMETHEUS, path), RW_OK);
    fail_each(&s, tell_step, is_told, "rw_monitor_step");
    rw_monitor_destroy(&s.monitor);
    cr_assert(lines_are_whole(&s, true));
    remove_board();
    world_close(&s.w);
}

/* A disk that stays full for a while, also for the call that removes a partial line. */
Test(file_faults, a_disk_that_is_full_for_a_while_costs_its_steps_alone)
{
    struct scene s = { .w = small_open() };
    const char *call;
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(s.path, sizeof s.path, "%s/log.jsonl", folder);
    file_put(s.path, "{\"step\":0", 9); /* as left by a killed process */
    cr_assert_eq(rw_monitor_create(&s.monitor, s.w.b.ctx, s.path), RW_OK);
    cr_assert_eq(tell_step(&s), RW_OK);
    size_t bytes;
    char *text = (char *)file_get(s.path, &bytes);
    cr_assert(!strncmp(text, "{\"step\":0\n{\"step\":1,", 20), "a line of its own");
    free(text);
    rw_monitor_destroy(&s.monitor);
    cr_assert_eq(truncate(s.path, 0), 0);
    cr_assert_eq(rw_monitor_create(&s.monitor, s.w.b.ctx, s.path), RW_OK);
    for (int i = 0; i < 40; i++) {
        fault_plant(1 + i % 2, i % 3 ? EIO : SHORTENS);
        const rw_status status = tell_step(&s);
        const bool failed = fault_take(&call);
        cr_assert(failed || !status);
        rw_error_clear(s.w.b.ctx);
        cr_assert_eq(tell_step(&s), RW_OK, "%s", rw_error_message(s.w.b.ctx));
        cr_assert(lines_are_whole(&s, true), "after %d", i);
    }
    rw_monitor_destroy(&s.monitor);
    world_close(&s.w);
}

/* ---- a trace ---- */

static rw_status step_once(struct scene *s)
{
    rw_tape *const t = s->w.b.t;
    rw_zero_grad(s->w.b.ctx);
    const rw_status status = rw_backward(t, rw_sum(t, rw_cast(t, x_of(&s->w), RW_F32), RW_ALL_AXES, false));
    rw_tape_reset(t);
    return status;
}

static int slices_in(const char *path)
{
    size_t bytes;
    unsigned char *const text = file_get(path, &bytes);
    text[bytes] = '\0';
    cJSON *const all = cJSON_Parse((char *)text);
    const int n = cJSON_IsArray(all) ? cJSON_GetArraySize(all) : -1;
    cJSON_Delete(all);
    free(text);
    return n;
}

/* The n-th call of the first, second or third step: the file is complete at the end, and lacks at most that step. */
Test(file_faults, a_trace)
{
    char path[200], name[220];
    const char *call;
    int told = 0, opened = 0;
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(path, sizeof path, "%s/trace", folder);
    setenv("REWIND_TRACE", path, 1);
    struct scene s = { .w = small_open() };
    unsetenv("REWIND_TRACE");
    for (int i = 0; i < 4; i++) cr_assert_eq(step_once(&s), RW_OK);
    world_close(&s.w);
    const int all = slices_in(path), each = (all - 4) / 4;
    cr_assert(each > 0 && all == 4 + 4 * each);
    for (size_t k = 0; k < ERRORS; k++)
        for (int n = 1; n < 4; n++) {
            setenv("REWIND_TRACE", path, 1);
            struct scene one = { .w = small_open() };
            unsetenv("REWIND_TRACE");
            snprintf(name, sizeof name, "%s.%d", path, 2 + opened++);
            fault_plant(n, errors[k]);
            rw_status first = step_once(&one);
            const bool failed = fault_take(&call);
            cr_assert_eq(first, RW_OK);
            rw_status second = step_once(&one);
            cr_assert_eq(second, failed && !is_gone_on_with(errors[k]) ? RW_ERR_IO : RW_OK, "%s", call);
            told += second != RW_OK;
            rw_error_clear(one.w.b.ctx);
            if (second) cr_assert_eq(step_once(&one), RW_OK);
            for (int i = 0; i < 2; i++) cr_assert_eq(step_once(&one), RW_OK);
            world_close(&one.w);
            cr_assert_eq(slices_in(name), second ? all - each : all, "%s, error %d", call, errors[k]);
        }
    cr_assert_gt(told, 2);
}

/* ---- a program with more privileges than its caller ---- */

char *__wrap_secure_getenv(const char *name);
char *__real_secure_getenv(const char *name);
static bool is_trusted;

char *__wrap_secure_getenv(const char *variable)
{
    return is_trusted ? NULL : __real_secure_getenv(variable);
}

/* As when the kernel sets AT_SECURE: the environment is the caller's, and is ignored. */
Test(file_faults, the_environment_of_a_set_uid_program_is_not_read)
{
    char path[200];
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(path, sizeof path, "%s/trace", folder);
    setenv("REWIND_TRACE", path, 1);
    setenv("REWIND_OFFLOAD", "/nowhere/at/all", 1);
    setenv("REWIND_POLICY", "rubbish", 1);
    is_trusted = true;
    struct scene s = { .w = small_open() };
    cr_assert_eq(step_once(&s), RW_OK, "%s", rw_error_message(s.w.b.ctx));
    world_close(&s.w);
    is_trusted = false;
    unsetenv("REWIND_TRACE"), unsetenv("REWIND_OFFLOAD"), unsetenv("REWIND_POLICY");
    cr_assert_str_eq(names_in(folder), "");
}
