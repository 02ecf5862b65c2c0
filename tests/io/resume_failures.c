/* Saves and loads that fail: full disk, no memory, invalid calls, mismatches. They change nothing. */
#include "io/saved_run.h"

#include "base/alloc.h"
#include "io/snapshot.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(resume_failures, .init = folder_open, .fini = folder_close, .timeout = 400);

static void limit_files(rlim_t bytes)
{
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){ bytes, RLIM_INFINITY });
}

Test(resume_failures, a_disk_that_is_full_keeps_the_files_before)
{
    struct world w = large_open();
    w.step = 1;
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    limit_files(65536);
    w.step = 2;
    world_save(&w);
    cr_assert_eq(rw_checkpoint_save(w.ck, 3, NULL, 0), RW_ERR_IO, "what the last one met");
    const char *const m = rw_error_message(w.b.ctx);
    cr_assert(strstr(m, "000002-step2") && strstr(m, "File too large"), "%s", m);
    rw_error_clear(w.b.ctx);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK, "told once");
    limit_files(RLIM_INFINITY);
    cr_assert_str_eq(names_in(folder), SAVED("000001", "1"));
    w.step = 4;
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_eq(world_load(&w).step, 4);
    world_close(&w);
}

/* The n-th allocation fails, for every n, including those of the writing thread. */
Test(resume_failures, without_memory_nothing_changes)
{
    for (int loads = 0; loads < 2; loads++) {
        struct world w = small_open();
        put_two(&w);
        int failures = 0;
        bool saved = false; /* once the file is written, only the removal of old ones can fail: a warning */
        for (uint64_t n = 1;; n++) {
            cr_assert_eq(rw_init_constant(x_of(&w), 3), RW_OK);
            rw_alloc_fail_at(n);
            rw_status status = loads ? rw_checkpoint_load(w.ck, NULL) : rw_checkpoint_save(w.ck, 3, "abc", 3);
            if (!status) status = rw_checkpoint_wait(w.ck);
            rw_alloc_fail_at(0);
            const char *const warning = status ? NULL : rw_checkpoint_warning(w.ck);
            if (!status && !warning) break;
            failures++;
            saved |= warning != NULL;
            cr_assert(!warning || (!loads && strstr(warning, "older files were not removed: out of memory")), "%s",
                      warning);
            if (status) cr_assert_eq(status, RW_ERR_MEMORY, "allocation %d: %s", (int)n, rw_error_message(w.b.ctx));
            rw_error_clear(w.b.ctx);
            expect_x(&w, 3);
            cr_assert_null(strstr(names_in(folder), ".part"), "%s", names_in(folder));
            cr_assert_eq(strstr(names_in(folder), "step3") != NULL, saved, "%s", names_in(folder));
        }
        cr_assert_gt(failures, 5);
        expect_x(&w, loads ? 2 : 3);
        world_close(&w);
        empty_folder(folder);
    }
}

static void expect_refused(rw_status got, rw_status want, const struct world *w, const char *text)
{
    cr_assert_eq(got, want, "%s", rw_error_message(w->b.ctx));
    cr_assert(strstr(rw_error_message(w->b.ctx), text), "%s, not %s", rw_error_message(w->b.ctx), text);
    rw_error_clear(w->b.ctx);
}

Test(resume_failures, mistakes_are_refused)
{
    struct world w = small_open(), other = small_open();
    rw_checkpoint *none = NULL;
    rw_context *const ctx = w.b.ctx;
    const rw_checkpoint_params good = { .folder = folder };
    expect_refused(rw_checkpoint_create(NULL, ctx, &good), RW_ERR_ARGUMENT, &w, "ret_checkpoint");
    expect_refused(rw_checkpoint_create(&none, ctx, NULL), RW_ERR_ARGUMENT, &w, "params");
    expect_refused(rw_checkpoint_create(&none, ctx, &(rw_checkpoint_params){ .folder = "" }), RW_ERR_ARGUMENT, &w,
                   "rw_checkpoint_create(folder)");
    expect_refused(rw_checkpoint_create(&none, ctx, &(rw_checkpoint_params){ .folder = "a", .keep = -1 }),
                   RW_ERR_ARGUMENT, &w, "rw_checkpoint_create(keep): expected 0 (the default) or more, got -1");
    const rw_checkpoint_params strange = { .folder = folder, .optimizer = other.opt };
    expect_refused(rw_checkpoint_create(&none, ctx, &strange), RW_ERR_ARGUMENT, &w, "another context");
    cr_assert_null(none);
    cr_assert_eq(rw_checkpoint_create(&none, NULL, &good), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_checkpoint_save(NULL, 0, NULL, 0), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_checkpoint_load(NULL, NULL), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_checkpoint_wait(NULL), RW_ERR_ARGUMENT);
    rw_checkpoint_destroy(NULL);
    rw_checkpoint_destroy(&none);
    expect_refused(rw_checkpoint_save(w.ck, 0, NULL, 4), RW_ERR_ARGUMENT, &w, "extra");
    expect_refused(rw_checkpoint_save(w.ck, 0, "x", SIZE_MAX), RW_ERR_ARGUMENT, &w, "extra_bytes");
    expect_refused(rw_checkpoint_save(w.ck, 0, "x", ((size_t)1 << 53) + 1), RW_ERR_ARGUMENT, &w, "extra_bytes");
    cr_assert_eq(rw_checkpoint_create(&none, ctx, &(rw_checkpoint_params){ .folder = "/nowhere/at/all" }), RW_OK);
    expect_refused(rw_checkpoint_save(none, 0, NULL, 0), RW_ERR_IO, &w, "/nowhere/at/all: No such file");
    rw_checkpoint_destroy(&none);
    rw_buffer(ctx, "rewind:thing", RW_F32, RW_SHAPE(1));
    expect_refused(rw_checkpoint_save(w.ck, 0, NULL, 0), RW_ERR_ARGUMENT, &w, "\"rewind:thing\"");
    rw_buffer(other.b.ctx, "gr\xf6\xdf" "e", RW_F32, RW_SHAPE(1));
    expect_refused(rw_checkpoint_save(other.ck, 0, NULL, 0), RW_ERR_ARGUMENT, &other, "expected names in UTF-8");
    cr_assert_str_eq(names_in(folder), "");
    world_close(&w);
    world_close(&other);
}

/* A relative path needs the path of the current folder. */
Test(resume_failures, a_current_folder_that_was_removed_is_said)
{
    struct world w = small_open();
    rw_checkpoint *none = NULL;
    char here[200];
    cr_assert_not_null(getcwd(here, sizeof here));
    cr_assert(!mkdir(folder, 0777) && !chdir(folder) && !rmdir(folder));
    expect_refused(rw_checkpoint_create(&none, w.b.ctx, &(rw_checkpoint_params){ .folder = "run" }), RW_ERR_IO, &w,
                   "rw_checkpoint_create: run: No such file");
    cr_assert_null(none);
    cr_assert_eq(chdir(here), 0);
    world_close(&w);
}

/* x of another type or shape, a missing parameter, a missing optimizer: an older file is not tried, because it would
   not match either. */
Test(resume_failures, what_does_not_fit_changes_nothing)
{
    struct world w = small_open();
    rw_checkpoint *plain = NULL;
    put_two(&w);
    world_close(&w);
    for (int i = 0; i < 3; i++) {
        struct world z = { .b = fixture_open(3, 1) };
        rw_param(z.b.ctx, i == 2 ? "y" : "x", i ? RW_BF16 : RW_F32, RW_SHAPE(i == 1 ? 4 : 3));
        cr_assert_eq(rw_checkpoint_create(&z.ck, z.b.ctx, &(rw_checkpoint_params){ .folder = folder }), RW_OK);
        static const char *const texts[] = { "expected F32, got BF16", "expected shape [4], got [3]",
                                             "\"y\" is not in the file" };
        static const rw_status wanted[] = { RW_ERR_DTYPE, RW_ERR_SHAPE, RW_ERR_IO };
        expect_refused(rw_checkpoint_load(z.ck, NULL), wanted[i], &z, texts[i]);
        world_close(&z);
    }
    w = small_open();
    cr_assert_eq(rw_checkpoint_create(&plain, w.b.ctx, &(rw_checkpoint_params){ .folder = folder }), RW_OK);
    rw_checkpoint_found found;
    cr_assert_eq(rw_checkpoint_load(plain, &found), RW_OK, "without the optimizer: the rest");
    expect_x(&w, 2);
    cr_assert_eq(rw_checkpoint_save(plain, 3, NULL, 0), RW_OK);
    cr_assert_eq(rw_checkpoint_wait(plain), RW_OK);
    cr_assert_eq(rw_init_constant(x_of(&w), 3), RW_OK);
    expect_refused(rw_checkpoint_load(w.ck, NULL), RW_ERR_IO, &w, "expected the state of an optimizer");
    expect_x(&w, 3);
    rw_checkpoint_destroy(&plain);
    world_close(&w);
}

Test(resume_failures, another_kind_of_optimizer_is_refused)
{
    struct world w = small_open();
    rw_optimizer *lion = NULL;
    rw_checkpoint *other = NULL;
    put_two(&w);
    cr_assert_eq(rw_lion_create(&lion, w.b.ctx, NULL), RW_OK);
    const rw_checkpoint_params params = { .folder = folder, .optimizer = lion };
    cr_assert_eq(rw_checkpoint_create(&other, w.b.ctx, &params), RW_OK);
    expect_refused(rw_checkpoint_load(other, NULL), RW_ERR_ARGUMENT, &w, "expected lion, got adamw in the file");
    rw_checkpoint_destroy(&other);
    rw_optimizer_destroy(&lion);
    world_close(&w);
}

/* A recorded step would keep the random numbers that it drew. */
Test(resume_failures, a_tape_that_holds_a_step_is_refused)
{
    struct world w = small_open();
    put_two(&w);
    rw_relu(w.b.t, x_of(&w));
    expect_refused(rw_checkpoint_load(w.ck, NULL), RW_ERR_ARGUMENT, &w, "rw_tape_reset()");
    rw_tape_reset(w.b.t);
    cr_assert_eq(world_load(&w).step, 2);
    world_close(&w);
}

/* The weights are an ordinary safetensors file. */
Test(resume_failures, rw_load_takes_the_weights_of_a_checkpoint)
{
    struct world w = small_open();
    put_two(&w);
    cr_assert_eq(rw_load(w.b.ctx, file_of(1, 1)), RW_OK, "%s", rw_error_message(w.b.ctx));
    expect_x(&w, 1);
    world_close(&w);
}

/* A child of fork() has a checkpoint without its thread. */
Test(resume_failures, a_child_of_fork_leaves_the_parents_file_alone)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("a device's context does not go into a child");
    struct world w = large_open();
    w.step = 1;
    world_save(&w);
    const pid_t pid = fork();
    if (!pid) {
        rw_checkpoint_destroy(&w.ck);
        _exit(0);
    }
    int how;
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    cr_assert(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_str_eq(names_in(folder), SAVED("000001", "1"));
    world_close(&w);
}

static void expect_child(pid_t pid)
{
    int how;
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    cr_assert(WIFEXITED(how) && WEXITSTATUS(how) == 0, "%x", (unsigned)how);
}

/* It has inherited the parent's open folder, and with it the lock. */
Test(resume_failures, a_child_of_fork_that_saves_is_refused)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("a device's context does not go into a child");
    struct world w = small_open();
    put_two(&w);
    const pid_t pid = fork();
    if (!pid) {
        const rw_status status = rw_checkpoint_save(w.ck, 3, NULL, 0);
        const bool said = strstr(rw_error_message(w.b.ctx), "another process saves to this folder");
        rw_error_clear(w.b.ctx);
        _exit(status == RW_ERR_IO && said && rw_checkpoint_save(w.ck, 3, NULL, 0) == RW_ERR_IO ? 0 : 1);
    }
    expect_child(pid);
    cr_assert_str_eq(names_in(folder), SAVED("000001", "1") " " SAVED("000002", "2"));
    w.step = 3;
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_eq(world_load(&w).step, 3);
    world_close(&w);
}

/* The parent's next run may use the folder although the child exists, and afterwards the child may. */
Test(resume_failures, a_child_of_fork_may_save_when_the_parent_has_ended)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("a device's context does not go into a child");
    struct world w = small_open();
    int ends[2];
    put_two(&w);
    cr_assert_eq(pipe(ends), 0);
    const pid_t pid = fork();
    if (!pid) {
        char c;
        close(ends[1]); /* it ends with the parent */
        rw_status status = read(ends[0], &c, 1) == 1 ? rw_checkpoint_save(w.ck, 4, NULL, 0) : RW_ERR_IO;
        if (!status) status = rw_checkpoint_wait(w.ck);
        _exit((int)status);
    }
    world_close(&w);
    w = small_open();
    w.step = 3;
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    rw_checkpoint_destroy(&w.ck);
    cr_assert_eq(write(ends[1], "", 1), 1);
    expect_child(pid);
    cr_assert_str_eq(names_in(folder), SAVED("000002", "2") " " SAVED("000003", "3") " " SAVED("000004", "4"));
    close(ends[0]), close(ends[1]);
    world_close(&w);
}

static void *await_a_byte(void *snapshot)
{
    rw_snapshot_await(snapshot, 1);
    return NULL;
}

/* glibc would wait in pthread_cond_destroy() for a thread that the child does not have. */
Test(resume_failures, a_child_of_fork_does_not_wait_for_the_parents_thread)
{
    struct rw_snapshot s;
    pthread_t writer;
    int how;
    rw_snapshot_init(&s);
    cr_assert_eq(pthread_create(&writer, NULL, await_a_byte, &s), 0);
    usleep(100000); /* until it waits; otherwise the child would pass all the same */
    const pid_t pid = fork();
    if (!pid) {
        alarm(60);
        rw_snapshot_forget_writer(&s);
        rw_snapshot_finish(&s);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    cr_expect(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    pthread_mutex_lock(&s.lock);
    s.given_up = true;
    pthread_cond_broadcast(&s.moved);
    pthread_mutex_unlock(&s.lock);
    pthread_join(writer, NULL);
    rw_snapshot_finish(&s);
}
