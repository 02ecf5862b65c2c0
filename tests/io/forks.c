/*
 * fork() between any two calls of a program that trains, saves, monitors and traces: parent and child continue, and the
 * parent's files are those of a program that never forked. A lock is not kept by a child.
 */
#include "io/saved_run.h"

#include "io/monitor_tensorboard_prometheus.h"

#include <rewind/monitor.h>

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(forks, .init = folder_open, .fini = folder_close, .timeout = 400);

/* ---- the program ---- */

struct program {
    struct fixture b;
    rw_tensor *x, *loss;
    rw_optimizer *opt;
    rw_checkpoint *ck;
    rw_monitor *monitor;
    uint64_t step;
    bool is_child, has_parents_monitor;
};

static char trace[200], lines[200], board[200], text[200], run[200];

/* The first of parent and child to save owns the folder. */
static bool saved(struct program *p, rw_status status)
{
    if (!status) return true;
    const bool refused = strstr(rw_error_message(p->b.ctx), "another process saves to this folder");
    rw_error_clear(p->b.ctx);
    return refused;
}

/* The monitor of the parent takes no further files in a child. */
static bool added(struct program *p, rw_status status, bool is_parents)
{
    if (!status) return !is_parents;
    const bool refused = strstr(rw_error_message(p->b.ctx), "belongs to the parent process");
    rw_error_clear(p->b.ctx);
    return refused && is_parents;
}

static bool tell(struct program *p)
{
    return !rw_monitor_step(p->monitor, &(rw_monitor_values){ .step = p->step, .loss = 1 }, NULL);
}

#define CALLS 25

/* Makes the k-th call; false: it failed. */
static bool call(struct program *p, int k)
{
    switch (k) {
    case 0: p->b = fixture_open(3, 1); return true;
    case 1: p->x = rw_param(p->b.ctx, "x", RW_F32, RW_SHAPE(64)); return p->x && !rw_init_constant(p->x, 1);
    case 2: return !rw_adamw_create(&p->opt, p->b.ctx, NULL);
    case 3:
        return !rw_checkpoint_create(&p->ck, p->b.ctx,
                                     &(rw_checkpoint_params){ .folder = run, .optimizer = p->opt, .keep = 2 });
    case 4: return !rw_checkpoint_load(p->ck, NULL);
    case 5: return !rw_monitor_create(&p->monitor, p->b.ctx, lines);
    case 6: return added(p, rw_monitor_add(p->monitor, RW_MONITOR_TENSORBOARD, board), p->has_parents_monitor);
    case 7: return added(p, rw_monitor_add(p->monitor, RW_MONITOR_PROMETHEUS, text), p->has_parents_monitor);
    case 20: return tell(p);
    case 21: rw_monitor_destroy(&p->monitor); return true;
    case 22: rw_checkpoint_destroy(&p->ck); return true;
    case 23: rw_optimizer_destroy(&p->opt); return true;
    case 24: fixture_close(&p->b); return true;
    default: break;
    }
    rw_tape *const t = p->b.t;
    switch ((k - 8) % 6) { /* two steps */
    case 0: rw_tape_reset(t); p->loss = rw_sum(t, rw_mul(t, p->x, p->x), RW_ALL_AXES, false); return p->loss;
    case 1: rw_zero_grad(p->b.ctx); return !rw_backward(t, p->loss);
    case 2: p->step++; return !rw_optimizer_step(p->opt);
    case 3: return tell(p);
    case 4: return saved(p, rw_checkpoint_save(p->ck, p->step, "abc", 3));
    default: return k == 13 ? saved(p, rw_checkpoint_wait(p->ck)) : true; /* the second one is still being written */
    }
}

/* Both continue: the child ends by exit(), which flushes stdio's buffers. 0, or the number of the failed call, plus 100
   in a child. */
static int run_program(int forked_before)
{
    struct program p = { 0 };
    pid_t child = 0;
    int how = 0;
    for (int k = 0; k < CALLS; k++) {
        if (k == forked_before) {
            child = fork();
            p.is_child = !child;
            p.has_parents_monitor = p.is_child && p.monitor;
        }
        if (!call(&p, k)) return p.is_child ? 101 + k : 1 + k;
    }
    if (p.is_child) exit(0);
    if (child && (waitpid(child, &how, 0) != child || how)) return WIFEXITED(how) ? WEXITSTATUS(how) : 100;
    return 0;
}

/* ---- its files ---- */

static unsigned char *read_text(const char *path)
{
    size_t bytes;
    unsigned char *const all = file_get(path, &bytes);
    all[bytes] = '\0';
    return all;
}

static void expect_lines(int before)
{
    char *const all = (char *)read_text(lines), *line = all;
    const int want[] = { 1, 2, 2 };
    int n = 0;
    for (char *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        *end = '\0';
        cJSON *const one = cJSON_Parse(line);
        cr_expect(n < 3 && one && cJSON_GetObjectItem(one, "step")->valueint == want[n], "fork before %d: %s", before,
                  line);
        cJSON_Delete(one);
    }
    cr_expect(n == 3 && !*line, "fork before %d: %d lines", before, n);
    free(all);
}

static int events_of(const char *path)
{
    unsigned char *const bytes = read_text(path);
    cJSON *const all = cJSON_Parse((char *)bytes);
    free(bytes);
    const int n = cJSON_IsArray(all) ? cJSON_GetArraySize(all) : -1;
    cJSON_Delete(all);
    return n;
}

/* The complete trace of this process, and another one of a child that has created its own context. */
static void expect_traces(int before, int want)
{
    struct dirent **e;
    char path[600];
    int files = 0;
    const int n = scandir(folder, &e, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%.255s", folder, e[i]->d_name);
        const bool is_trace = !strncmp(e[i]->d_name, "trace", 5);
        if (is_trace) cr_expect_eq(events_of(path), want, "fork before %d: %s", before, e[i]->d_name);
        files += is_trace;
        free(e[i]);
    }
    if (n >= 0) free(e);
    cr_expect_eq(files, before == 0 ? 2 : 1, "fork before %d: %d traces", before, files);
}

/* Checks the records of TensorBoard's files. */
static void expect_events(int before)
{
    struct dirent **e;
    char path[600];
    const int n = scandir(board, &e, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        size_t bytes, at = 0, records = 0;
        uint64_t length;
        snprintf(path, sizeof path, "%s/%.255s", board, e[i]->d_name);
        unsigned char *const data = e[i]->d_name[0] == '.' ? NULL : file_get(path, &bytes);
        for (; data && at + 16 <= bytes; at += 16 + length, records++) memcpy(&length, data + at, 8);
        if (data) cr_expect(at == bytes && records == 4, "fork before %d: %d records", before, (int)records);
        free(data);
        free(e[i]);
    }
    if (n >= 0) free(e);
}

static void remove_all(void)
{
    empty_folder(run);
    empty_folder(board);
    empty_folder(folder);
    cr_assert_eq(mkdir(folder, 0777), 0);
}

static int in_a_process(int forked_before)
{
    int how;
    const pid_t pid = fork();
    if (!pid) {
        alarm(60);
        setenv("REWIND_TRACE", trace, 1);
        _exit(run_program(forked_before));
    }
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 200;
}

Test(forks, between_any_two_calls_cost_the_parents_files_no_byte)
{
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(trace, sizeof trace, "%s/trace", folder);
    snprintf(lines, sizeof lines, "%s/lines", folder);
    snprintf(board, sizeof board, "%s/board", folder);
    snprintf(text, sizeof text, "%s/text", folder);
    snprintf(run, sizeof run, "%s/run", folder);
    cr_assert_eq(in_a_process(-1), 0);
    const int events = events_of(trace);
    cr_assert_gt(events, 8);
    remove_all();
    for (int k = 0; k < CALLS; k++) {
        cr_expect_eq(in_a_process(k), 0, "fork before call %d", k);
        if (k > 5) expect_lines(k); /* before that the child has a monitor of its own, and writes to the file, too */
        expect_traces(k, events);
        expect_events(k);
        struct program p = { .b = fixture_open(3, 1) };
        rw_checkpoint_found found = { 0 };
        p.x = rw_param(p.b.ctx, "x", RW_F32, RW_SHAPE(64));
        cr_assert_eq(rw_checkpoint_create(&p.ck, p.b.ctx, &(rw_checkpoint_params){ .folder = run }), RW_OK);
        cr_expect_eq(rw_checkpoint_load(p.ck, &found), RW_OK, "%s", rw_error_message(p.b.ctx));
        cr_expect(found.found && found.step == 2 && !found.skipped, "fork before %d: step %d, %s", k, (int)found.step,
                  found.why);
        rw_checkpoint_destroy(&p.ck);
        fixture_close(&p.b);
        remove_all();
    }
}

/* ---- a run that is killed ---- */

/* Saves, forks a process (for example one that reads data), and is killed; returns the reader's process ID. */
static pid_t killed_beside_a_reader(bool while_it_saves)
{
    int ends[2], how;
    pid_t reader = 0;
    cr_assert_eq(pipe(ends), 0);
    const pid_t pid = fork();
    if (!pid) {
        struct world w = small_open();
        put_two(&w);
        if (while_it_saves) rw_checkpoint_save(w.ck, 3, NULL, 0);
        reader = fork();
        if (!reader) {
            reader = getpid(); /* it runs, so its handler is installed */
            if (write(ends[1], &reader, sizeof reader) != sizeof reader) _exit(1);
        }
        for (;;) pause();
    }
    close(ends[1]);
    cr_assert_eq(read(ends[0], &reader, sizeof reader), (ssize_t)sizeof reader);
    close(ends[0]);
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    return reader;
}

Test(forks, a_killed_run_resumes_at_once_though_its_child_is_alive)
{
    for (int i = 0; i < 2; i++) {
        const pid_t reader = killed_beside_a_reader(i);
        cr_assert_eq(kill(reader, 0), 0, "it lives");
        struct world w = small_open();
        cr_expect_geq(world_load(&w).step, 2);
        cr_expect_eq(rw_checkpoint_save(w.ck, 4, NULL, 0), RW_OK, "%s", rw_error_message(w.b.ctx));
        cr_expect_eq(rw_checkpoint_wait(w.ck), RW_OK);
        kill(reader, SIGKILL);
        world_close(&w);
        empty_folder(folder);
    }
}

/* ---- another program ---- */

/* Closes every descriptor from 3 on, except those that were open before. */
static int inherited(const bool *before)
{
    int n = 0;
    for (int fd = 3; fd < 256; fd++) {
        const int flags = fcntl(fd, F_GETFD);
        n += flags >= 0 && !(flags & FD_CLOEXEC) && !before[fd];
    }
    return n;
}

Test(forks, no_descriptor_reaches_a_program_that_is_executed)
{
    bool before[256];
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(trace, sizeof trace, "%s/trace", folder);
    snprintf(lines, sizeof lines, "%s/lines", folder);
    snprintf(board, sizeof board, "%s/board", folder);
    snprintf(run, sizeof run, "%s/run", folder);
    for (int fd = 0; fd < 256; fd++) before[fd] = fcntl(fd, F_GETFD) >= 0;
    setenv("REWIND_TRACE", trace, 1);
    struct program p = { 0 };
    for (int k = 0; k < 14; k++) {
        if (k != 7) cr_assert(call(&p, k), "call %d", k);
        cr_expect_eq(inherited(before), 0, "after call %d", k);
    }
    unsetenv("REWIND_TRACE");
    const rw_offload o = { .path = folder, .out_bytes_per_s = 1e9, .in_bytes_per_s = 1e9 };
    cr_assert_eq(rw_context_set_offload(p.b.ctx, &o), RW_OK);
    rw_tape_reset(p.b.t);
    rw_tensor *const y = ckpt_offload(p.b.t, rw_exp(p.b.t, p.x));
    cr_assert_eq(rw_backward(p.b.t, rw_sum(p.b.t, rw_tanh(p.b.t, y), RW_ALL_AXES, false)), RW_OK);
    cr_expect_eq(inherited(before), 0, "with a store");
    for (int k = 21; k < CALLS; k++) cr_assert(call(&p, k));
    empty_folder(run);
    empty_folder(board);
}

/* ---- processes that trace to one name ---- */

static void trace_once(const char *name)
{
    setenv("REWIND_TRACE", name, 1);
    struct world w = small_open();
    unsetenv("REWIND_TRACE");
    rw_backward(w.b.t, rw_sum(w.b.t, rw_cast(w.b.t, x_of(&w), RW_F32), RW_ALL_AXES, false));
    world_close(&w);
}

/* The actions of the k-th process while earlier ones exist. */
static void trace_beside(const char *name, int processes)
{
    if (!processes) return;
    int how;
    const pid_t pid = fork();
    if (!pid) {
        trace_once(name);
        trace_beside(name, processes - 1);
        exit(0);
    }
    cr_assert(waitpid(pid, &how, 0) == pid && !how);
}

static int traces_beside(const char *name)
{
    struct dirent **e;
    char path[600];
    int whole = 0;
    const int n = scandir(folder, &e, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%.255s", folder, e[i]->d_name);
        if (!strncmp(e[i]->d_name, name, strlen(name))) whole += events_of(path) > 4;
        free(e[i]);
    }
    if (n >= 0) free(e);
    return whole;
}

Test(forks, each_process_has_a_trace_of_its_own)
{
    char name[200];
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(name, sizeof name, "%s/trace", folder);
    trace_beside(name, 3);
    cr_expect_eq(traces_beside("trace"), 3, "%s", names_in(folder));
    cr_expect_eq(access(name, F_OK), 0, "the first one has the name as it is");
    trace_beside(name, 1);
    cr_expect_eq(traces_beside("trace"), 3, "another run writes over it: %s", names_in(folder));
    snprintf(name, sizeof name, "%s/of-%%p-%%%%", folder);
    trace_beside(name, 2);
    cr_expect_eq(traces_beside("of-"), 2, "%s", names_in(folder));
    cr_expect_null(strstr(names_in(folder), "%p"));
    cr_expect_not_null(strstr(names_in(folder), "-%"));
}
