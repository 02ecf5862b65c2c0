/* REWIND_TRACE: the file is valid JSON with every step that ran; if it cannot be written, the error is reported. */
#include "support/support.h"

#include "remat/schedule/schedule.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char *temporary_name(void)
{
    const char *const dir = getenv("TMPDIR");
    char *const path = malloc(512);
    snprintf(path, 512, "%s/rewind-trace-%ld.json", dir ? dir : P_tmpdir, (long)getpid());
    return path;
}

static cJSON *read_json(const char *path)
{
    FILE *const f = fopen(path, "r");
    cr_assert_not_null(f);
    static char text[1 << 20];
    const size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    return cJSON_Parse(text);
}

static int count(const cJSON *events, const char *category, int track)
{
    int n = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, events)
    {
        const cJSON *const cat = cJSON_GetObjectItem(e, "cat");
        n += cat && !strcmp(cat->valuestring, category) && cJSON_GetObjectItem(e, "tid")->valueint == track;
    }
    return n;
}

Test(trace, has_every_step_of_what_ran)
{
    char *const path = temporary_name();
    setenv("REWIND_TRACE", path, 1);
    struct fixture b = fixture_open(7, 2);
    struct net n;
    net_init(&n, b.ctx, 3, 16, RW_F32, 2);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const loss = net_loss(&n, b.t, 20, 0);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    rw_cost cost;
    cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_OK);
    fixture_close(&b);
    unsetenv("REWIND_TRACE");
    cJSON *const events = read_json(path);
    cr_assert(cJSON_IsArray(events));
    cr_assert_gt(cost.replayed_nodes, 0);
    cr_assert_eq(count(events, "replay", 1), (int)cost.replayed_nodes);
    cr_assert_gt(count(events, "forward", 1), count(events, "replay", 1));
    cr_assert_gt(count(events, "backward", 1), 0);
    cr_assert_geq(count(events, "replay", 2), 3, "each layer is replayed");
    double last = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, events)
    {
        const cJSON *const from = cJSON_GetObjectItem(e, "ts");
        if (!from || cJSON_GetObjectItem(e, "tid")->valueint != 1) continue;
        cr_assert_geq(from->valuedouble, last, "steps are in order");
        cr_assert_geq(cJSON_GetObjectItem(e, "dur")->valuedouble, 0);
        last = from->valuedouble;
    }
    cJSON_Delete(events);
    remove(path);
    free(path);
}

/* The plan of the first step runs in the second one, too, whose calls are elsewhere. */
Test(trace, names_the_lines_of_each_step)
{
    char *const path = temporary_name();
    setenv("REWIND_TRACE", path, 1);
    struct fixture b = fixture_open(7, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_tensor *const one = rw_buffer(b.ctx, "one", RW_F32, RW_SHAPE(4));
    rw_tensor *const other = rw_buffer(b.ctx, "other", RW_F32, RW_SHAPE(4));
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    for (int i = 0; i < 2; i++) {
        const rw_site at = { i ? "second.c" : "first.c", 7 };
        cr_assert(!rw_assign_at(at, b.t, one, other) && !rw_assign_at(at, b.t, other, one)); /* one is copied before */
        rw_tensor *const y = rw_mul_at(at, b.t, rw_tanh_at(at, b.t, w), rw_exp_at(at, b.t, w));
        cr_assert_eq(rw_backward(b.t, rw_sum_at(at, b.t, y, RW_ALL_AXES, false)), RW_OK);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
    unsetenv("REWIND_TRACE");
    cJSON *const events = read_json(path);
    int steps[2] = { 0, 0 };
    const cJSON *e;
    cJSON_ArrayForEach(e, events)
    {
        const cJSON *const site = cJSON_GetObjectItem(cJSON_GetObjectItem(e, "args"), "site");
        if (!site) continue;
        const bool second = !strcmp(site->valuestring, "second.c:7");
        cr_expect(second || !strcmp(site->valuestring, "first.c:7"), "%s", site->valuestring);
        steps[second]++;
    }
    cr_expect_gt(steps[0], 6);
    cr_expect_eq(steps[1], steps[0]);
    cJSON_Delete(events);
    remove(path);
    free(path);
}

/* One value of 64 KiB is offloaded. */
Test(trace, a_move_has_the_bytes_that_it_moves)
{
    char *const path = temporary_name();
    setenv("REWIND_TRACE", path, 1);
    struct fixture b = fixture_open(7, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(16384));
    rw_init_uniform(p, 0, 1);
    rw_tensor *const y = ckpt_offload(b.t, rw_exp(b.t, p));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_tanh(b.t, y), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    fixture_close(&b);
    unsetenv("REWIND_TRACE");
    cJSON *const events = read_json(path);
    int moves = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, events)
    {
        const cJSON *const args = cJSON_GetObjectItem(e, "args");
        const cJSON *const kind = args ? cJSON_GetObjectItem(args, "kind") : NULL;
        if (!kind || (strcmp(kind->valuestring, rw_action_kind_name(RW_ACTION_OUT)) &&
                      strcmp(kind->valuestring, rw_action_kind_name(RW_ACTION_IN))))
            continue;
        cr_assert_eq(cJSON_GetObjectItem(args, "bytes")->valuedouble, 65536);
        moves++;
    }
    cr_assert_eq(moves, 2, "%d", moves);
    cJSON_Delete(events);
    remove(path);
    free(path);
}

static void expect_refused(const char *name, const char *why)
{
    setenv("REWIND_TRACE", name, 1);
    struct fixture b = fixture_open(7, 1);
    unsetenv("REWIND_TRACE");
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_IO, "%s", name);
    cr_assert(strstr(rw_error_message(b.ctx), name), "%s", rw_error_message(b.ctx));
    cr_assert(strstr(rw_error_message(b.ctx), why), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, w, RW_ALL_AXES, false)), RW_OK);
    fixture_close(&b);
}

/* Each in a process of its own, because a second trace has another name. The invalid file is never read. */
Test(trace, a_file_that_cannot_be_written_is_an_error_that_names_it)
{
    expect_refused("no/such/folder/trace.json", "No such file");
}

Test(trace, a_folder_is_refused) { expect_refused("/tmp", "directory"); }

Test(trace, a_fifo_is_refused_without_waiting, .timeout = 120)
{
    char name[] = "/tmp/rewind-trace-XXXXXX";
    cr_assert_geq(mkstemp(name), 0);
    remove(name);
    cr_assert_eq(mkfifo(name, 0600), 0);
    expect_refused(name, "a FIFO, not a file");
    remove(name);
}

/* The trace stops at the limit; the step continues. */
Test(trace, a_limit_on_the_size_of_files_ends_no_process)
{
    char name[] = "/tmp/rewind-trace-XXXXXX";
    cr_assert_geq(mkstemp(name), 0);
    setenv("REWIND_TRACE", name, 1);
    struct fixture b = fixture_open(7, 1);
    unsetenv("REWIND_TRACE");
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 10, RLIM_INFINITY });
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, w, RW_ALL_AXES, false)), RW_OK);
    fixture_close(&b); /* writes the rest */
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
    remove(name);
}

static rw_status run_once(struct fixture *b, rw_tensor *w)
{
    rw_zero_grad(b->ctx);
    const rw_status status = rw_backward(b->t, rw_sum(b->t, w, RW_ALL_AXES, false));
    rw_tape_reset(b->t);
    return status;
}

/* The last traced step is complete; the next one reports what is lost, before it runs; then training continues. */
Test(trace, a_full_disk_is_said_once)
{
    setenv("REWIND_TRACE", "/dev/full", 1);
    struct fixture b = fixture_open(7, 1);
    unsetenv("REWIND_TRACE");
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2));
    cr_assert_eq(run_once(&b, w), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(run_once(&b, w), RW_ERR_IO);
    cr_assert(strstr(rw_error_message(b.ctx), "REWIND_TRACE: No space left"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    for (int i = 0; i < 2; i++) cr_assert_eq(run_once(&b, w), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

static void expect_one_error(bool trains)
{
    setenv("REWIND_TRACE", "/dev/full", 1);
    struct fixture b = fixture_open(7, 1);
    unsetenv("REWIND_TRACE");
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2));
    int errors = 0;
    for (int i = 0; i < 6; i++) {
        rw_tensor *const loss = rw_sum(b.t, w, RW_ALL_AXES, false), *const other = rw_sum_all(b.t, rw_exp(b.t, w));
        rw_item(b.t, loss);
        if (!rw_error_status(b.ctx)) rw_item(b.t, other);
        if (trains && !rw_error_status(b.ctx)) rw_backward(b.t, loss);
        errors += rw_error_status(b.ctx) == RW_ERR_IO;
        rw_error_clear(b.ctx);
        rw_tape_reset(b.t);
    }
    cr_expect_eq(errors, 1, "%d errors", errors);
    fixture_close(&b);
}

/* A read begins a step, or an evaluation of all that was read before, and other errors of these are not reported. */
Test(trace, a_full_disk_is_said_once_to_a_program_that_reads_its_loss) { expect_one_error(true); }
Test(trace, a_full_disk_is_said_once_to_a_program_that_evaluates) { expect_one_error(false); }
