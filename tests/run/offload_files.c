/*
 * Values offloaded to files: the same bytes for any offloaded values, copy delays, folders, processes and threads; and
 * no files or threads are left.
 */
#include "run/offload_folder_fixture.h"

#include "run/run_state.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(offload_files, .init = make_folder, .fini = remove_folder);

static const char *const policies[] = { "offload:outer", "full+offload:outer", "names:offload=up",
                                        "block:2+offload:outer", "ops:linear+offload:outer" };
#define POLICIES (sizeof policies / sizeof *policies)

Test(offload_files, give_the_bytes_of_what_is_kept)
{
    for (int threads = 1; threads <= 3; threads++)
        for (int way = 0; way < 4; way++) {
            struct outcome none = outcome_of("none", NULL, threads, 1 + way % 2, way / 2);
            for (size_t p = 0; p < POLICIES; p++) {
                struct outcome o = outcome_of(policies[p], folder, threads, 1 + way % 2, way / 2);
                cr_assert(is_same(&none, &o), "%s, %d threads", policies[p], threads);
                cr_assert_gt(o.memory.files, 0, "%s", policies[p]);
                cr_assert_eq(o.memory.host, 0);
                free(o.gradients);
            }
            free(none.gradients);
        }
    cr_assert_gt(plant.writes, 0);
    cr_assert_gt(plant.reads, 0);
}

/* The memory alignment that the folder's disk requires for direct access; a large number if unknown. */
static size_t disk_alignment(void)
{
#ifdef STATX_DIOALIGN
    struct statx s;
    const int fd = open(folder, O_TMPFILE | O_RDWR, 0600);
    const bool known = fd >= 0 && !statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) && s.stx_mask & STATX_DIOALIGN;
    if (fd >= 0) close(fd);
    if (known && s.stx_dio_mem_align && s.stx_dio_offset_align <= 4096) return s.stx_dio_mem_align;
#endif
    return SIZE_MAX;
}

/* Whole pages, among other values: they are not copied to a buffer on their way to the disk or back. */
Test(offload_files, whole_pages_go_from_the_arena_itself)
{
    if (test_device() != RW_DEVICE_CPU || disk_alignment() > 512) return;
    struct world w = open_world("offload:outer", folder, 2);
    cr_assert_eq(rw_backward(w.b.t, net_loss(&w.n, w.b.t, 64, 0)), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert(plant.writes > 0 && plant.reads > 0);
    const struct rw_arena *const arena = rw_pool_of(w.b.ctx)->arenas.first;
    cr_assert(arena && !arena->next);
    cr_expect_geq(plant.lowest, (const char *)arena->data);
    cr_expect_leq(plant.highest, (const char *)arena->data + arena->bytes);
    fixture_close(&w.b);
}

/* Whether the file system of the folder supports direct access. */
static bool has_direct(void)
{
    const int fd = open(folder, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* Values that are used only once should not evict other data from the page cache. */
Test(offload_files, go_past_the_page_cache_where_they_can)
{
    if (!has_direct()) cr_skip_test("this file system does not have it");
    struct world w = open_world("offload:outer", folder, 2);
    free(outcome_in(&w, 2, true).gradients);
    cr_expect(plant.writes > 0 && plant.reads > 0);
    cr_expect_eq(plant.direct, plant.writes + plant.reads, "%d of %d", plant.direct, plant.writes + plant.reads);
    fixture_close(&w.b);
}

/* A new file has unallocated blocks on the disk: writing to it is slower. */
Test(offload_files, are_created_once_for_all_steps)
{
    struct world w = open_world("offload:outer", folder, 2);
    int files = 0;
    for (int step = 0; step < 5; step++) {
        free(outcome_in(&w, 2, step % 2).gradients);
        if (!step) files = plant.files;
        cr_expect_eq(plant.files, files, "step %d: %d files", step, plant.files);
    }
    cr_expect_gt(files, 0);
    fixture_close(&w.b);
}

Test(offload_files, copies_that_come_late_change_nothing)
{
    struct outcome none = outcome_of("none", NULL, 2, 2, false);
    for (int i = 0; i < 5; i++) {
        plant.delay = 300u << i;
        struct outcome o = outcome_of(policies[i % POLICIES], folder, 2, 2, i % 2);
        cr_assert(is_same(&none, &o), "%s", policies[i % POLICIES]);
        free(o.gradients);
    }
    free(none.gradients);
}

/* Two suspended steps have a file each; and the next step reuses a file. */
Test(offload_files, belong_to_runs_and_are_used_again)
{
    struct outcome expected[2];
    struct world w = open_world("offload:outer", folder, 2), plain = open_world("none", NULL, 2);
    rw_tape *other = NULL;
    w.n.dropout = plain.n.dropout = 0;
    for (int i = 0; i < 2; i++) {
        rw_zero_grad(plain.b.ctx);
        cr_assert_eq(rw_backward(plain.b.t, net_loss(&plain.n, plain.b.t, TOKENS, i)), RW_OK);
        expected[i].gradients = all_gradients(plain.b.ctx, &expected[i].bytes);
        rw_tape_reset(plain.b.t);
    }
    cr_assert_eq(rw_tape_create(&other, w.b.ctx), RW_OK);
    cr_assert_eq(ckpt_set_policy(other, "full+offload:outer"), RW_OK);
    for (int round = 0; round < 3; round++) {
        rw_tensor *const loss[2] = { net_loss(&w.n, w.b.t, TOKENS, 0), net_loss(&w.n, other, TOKENS, 1) };
        rw_tape *const tape[2] = { w.b.t, other };
        rw_item(tape[0], loss[0]);
        rw_item(tape[1], loss[1]);
        for (int i = 0; i < 2; i++) {
            rw_zero_grad(w.b.ctx);
            cr_assert_eq(rw_backward(tape[i], loss[i]), RW_OK, "%s", rw_error_message(w.b.ctx));
            size_t bytes;
            unsigned char *const got = all_gradients(w.b.ctx, &bytes);
            cr_assert_eq(first_difference(expected[i].gradients, got, bytes), -1, "round %d, tape %d", round, i);
            free(got);
            rw_tape_reset(tape[i]);
        }
        rw_memory m;
        static size_t files;
        rw_memory_stats(w.b.ctx, &m);
        if (round) cr_assert_eq(m.files, files, "no file more in each round");
        files = m.files;
    }
    free(expected[0].gradients), free(expected[1].gradients);
    rw_tape_destroy(&other);
    fixture_close(&w.b);
    fixture_close(&plain.b);
}

Test(offload_files, what_refuses_to_go_past_the_cache_goes_through_it)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    plant.refuses_direct = true;
    struct outcome o = outcome_of("full+offload:outer", folder, 2, 1, false);
    cr_assert(is_same(&none, &o));
    free(o.gradients);
    plant.refuses_direct = false;
    o = outcome_of("full+offload:outer", "/dev/shm", 2, 1, true);
    cr_assert(is_same(&none, &o));
    cr_assert_gt(o.memory.files, 0);
    free(o.gradients), free(none.gradients);
}

/* ---- no leaks ---- */

static int entries_of(const char *path)
{
    DIR *const d = opendir(path);
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

Test(offload_files, leave_no_files)
{
    free(outcome_of("offload:outer", folder, 1, 1, true).gradients);
    const int descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    const bool on_cpu = test_device() == RW_DEVICE_CPU; /* a driver has threads of its own */
    for (int i = 0; i < 3; i++) {
        struct world w = open_world("offload:outer", folder, 1);
        free(outcome_in(&w, 2, true).gradients);
        cr_assert_eq(entries_of("/proc/self/fd"), descriptors + 1, "one file");
        if (on_cpu) cr_assert_eq(entries_of("/proc/self/task"), threads + 1, "one thread");
        cr_assert_eq(entries_of(folder), 2, "no name in the folder");
        fixture_close(&w.b);
    }
    cr_assert_eq(entries_of("/proc/self/fd"), descriptors);
    if (on_cpu) cr_assert_eq(entries_of("/proc/self/task"), threads);
}

/* ---- where the files are ---- */

Test(offload_files, a_folder_that_cannot_be_used_is_named_and_the_old_one_stays)
{
    struct world w = open_world("offload:outer", NULL, 2);
    char file[128], missing[128];
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(missing, sizeof missing, "%s/missing", folder);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    if (test_device() == RW_DEVICE_CPU) {
        plant.refuses_threads = true;
        cr_assert_eq(rw_context_set_offload(w.b.ctx, &(rw_offload){ .path = folder }), RW_ERR_MEMORY);
        expect_message(&w, "could not be started", folder);
        rw_error_clear(w.b.ctx);
        plant.refuses_threads = false;
    }
    const char *const bad[] = { missing, file, "/proc", "/dev/null", "/proc/self/nothing" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(rw_context_set_offload(w.b.ctx, &(rw_offload){ .path = bad[i] }), RW_ERR_IO, "%s", bad[i]);
        expect_message(&w, "rw_context_set_offload", bad[i]);
        rw_error_clear(w.b.ctx);
    }
    unlink(file);
    cr_assert_eq(rw_context_set_offload(w.b.ctx, &(rw_offload){ .out_bytes_per_s = -1 }), RW_ERR_ARGUMENT);
    rw_error_clear(w.b.ctx);
    cr_assert_eq(rw_context_set_offload(NULL, NULL), RW_ERR_ARGUMENT);
    struct outcome o = outcome_in(&w, 1, false);
    cr_assert_gt(o.memory.host, 0);
    cr_assert_eq(o.memory.files, 0);
    free(o.gradients);
    fixture_close(&w.b);
}

/* A suspended step continues with its own file. */
Test(offload_files, the_place_changes_between_steps)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    struct world w = open_world("offload:outer", folder, 2);
    rw_memory m;
    rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
    rw_item(w.b.t, loss);
    cr_assert_eq(rw_context_set_offload(w.b.ctx, NULL), RW_OK);
    expect_recovery(&w, loss, &none);
    rw_memory_stats(w.b.ctx, &m);
    cr_assert_gt(m.files, 0);
    expect_recovery(&w, loss, &none);
    rw_memory_stats(w.b.ctx, &m);
    cr_assert_gt(m.host, 0);
    cr_assert_eq(rw_context_set_offload(w.b.ctx, NULL), RW_OK);
    rw_memory_stats(w.b.ctx, &m);
    cr_assert_eq(m.files + m.host, 0, "free ones go");
    fixture_close(&w.b);
    free(none.gradients);
}

Test(offload_files, the_environment_names_a_folder)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    setenv("REWIND_OFFLOAD", folder, 1);
    struct outcome o = outcome_of("full+offload:outer", NULL, 2, 1, true);
    cr_assert(is_same(&none, &o));
    cr_assert_gt(o.memory.files, 0);
    setenv("REWIND_OFFLOAD", "/no/such/folder", 1);
    struct fixture b = fixture_open(3, 2);
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_IO);
    cr_assert(strstr(rw_error_message(b.ctx), "/no/such/folder"), "%s", rw_error_message(b.ctx));
    unsetenv("REWIND_OFFLOAD");
    fixture_close(&b);
    free(o.gradients), free(none.gradients);
}

Test(offload_files, are_not_captured)
{
    struct world w = open_world("offload:outer", folder, 2);
    rw_graph *g = NULL;
    free(outcome_in(&w, 1, false).gradients); /* earlier work of files on the lanes does not affect a capture */
    rw_tensor *loss = net_loss(&w.n, w.b.t, TOKENS, 0);
    cr_assert_eq(rw_graph_create(&g, w.b.t, loss, NULL), RW_ERR_UNSUPPORTED);
    cr_assert_null(g);
    expect_message(&w, "rw_graph_create: a step that offloads values to a file", folder);
    rw_error_clear(w.b.ctx);
    cr_assert_eq(rw_context_set_offload(w.b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_graph_create(&g, w.b.t, loss, NULL), RW_OK, "%s", rw_error_message(w.b.ctx));
    rw_zero_grad(w.b.ctx);
    for (int i = 0; i < 3; i++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(rw_context_set_offload(w.b.ctx, &(rw_offload){ .path = folder }), RW_OK);
    cr_assert_eq(rw_graph_launch(g), RW_ERR_UNSUPPORTED);
    expect_message(&w, "rw_graph_launch: a step that offloads values to a file", folder);
    rw_graph_destroy(&g);
    fixture_close(&w.b);
}

/* ---- processes and threads ---- */

/* Runs in a forked child: a step suspended before the fork must fail, one that a read began is begun again, and a new
   one must give the same gradients. */
static int child(struct world *w, rw_tensor *loss, bool is_suspended, const struct outcome *none)
{
    if (is_suspended) {
        if (rw_backward(w->b.t, loss) != RW_ERR_IO || !strstr(rw_error_message(w->b.ctx), "fork()")) return 1;
        rw_error_clear(w->b.ctx);
    }
    if (!loss) loss = net_loss(&w->n, w->b.t, TOKENS, 0);
    rw_zero_grad(w->b.ctx);
    if (rw_backward(w->b.t, loss)) return 2;
    struct outcome o = { .loss = rw_item(w->b.t, loss) };
    o.gradients = all_gradients(w->b.ctx, &o.bytes);
    const bool same = is_same(none, &o);
    free(o.gradients);
    fixture_close(&w->b);
    return same ? 0 : 3;
}

static void expect_child(struct world *w, rw_tensor *loss, bool is_suspended, const struct outcome *none)
{
    int how;
    const pid_t pid = fork();
    if (!pid) _exit(child(w, loss, is_suspended, none));
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    cr_assert(WIFEXITED(how) && !WEXITSTATUS(how), "%x", how);
}

/* A child process creates its own files, and copies by itself. It has no CUDA. */
Test(offload_files, are_not_shared_with_a_child)
{
    if (test_device() != RW_DEVICE_CPU) return;
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    struct world w = open_world("offload:outer", folder, 2);
    expect_child(&w, NULL, false, &none);
    rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
    rw_item(w.b.t, loss);
    expect_child(&w, loss, false, &none);
    cr_assert_eq(rw_forward(w.b.t, (rw_tensor *[]){ loss }, 1), RW_OK);
    expect_child(&w, loss, true, &none);
    expect_recovery(&w, loss, &none);
    fixture_close(&w.b);
    free(none.gradients);
}

/* The mean of a net whose first value is in the file: backward adds to gradients before it reads it. */
static rw_tensor *loss_of_early(rw_tape *t, rw_tensor *p)
{
    rw_tensor *x = rw_sin(t, ckpt_offload(t, rw_exp(t, p)));
    for (int i = 0; i < 8; i++) x = rw_matmul(t, x, p);
    return rw_mean(t, x, RW_ALL_AXES, false);
}

/* A read of the loss is not the program's request to keep values for backward: it adds as if nothing had been read. */
Test(offload_files, a_child_adds_to_gradients_after_its_parent_has_read_the_loss)
{
    if (test_device() != RW_DEVICE_CPU) return;
    int how;
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(128, 128));
    const rw_offload o = { .path = folder, .out_bytes_per_s = 1e9, .in_bytes_per_s = 1e9 };
    cr_assert_eq(rw_context_set_offload(b.ctx, &o), RW_OK);
    cr_assert_eq(rw_init_constant(p, 0.125), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss_of_early(b.t, p)), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tape_reset(b.t);
    rw_tensor *const loss = loss_of_early(b.t, p);
    rw_item(b.t, loss);
    const pid_t pid = fork();
    if (!pid) _exit((int)rw_backward(b.t, loss));
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    cr_expect(WIFEXITED(how) && !WEXITSTATUS(how), "%x", how);
    cr_expect_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

static void *work(void *argument)
{
    const struct outcome *const none = argument;
    for (int i = 0; i < 5; i++) {
        struct outcome o = outcome_of(policies[i % POLICIES], folder, 1, 1, i % 2);
        if (!is_same(none, &o)) return argument;
        free(o.gradients);
    }
    return NULL;
}

Test(offload_files, two_contexts_in_two_threads)
{
    struct outcome none = outcome_of("none", NULL, 1, 1, false);
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&thread[i], NULL, work, &none), 0);
    for (int i = 0; i < 2; i++) {
        void *wrong;
        pthread_join(thread[i], &wrong);
        cr_assert_null(wrong);
    }
    free(none.gradients);
}
