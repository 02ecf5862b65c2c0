/*
 * Values that wait in files: the same bytes whatever is moved, however the copies are delayed; every failure of a disk
 * is an error that names it, before a gradient is touched or with gradients clear or said to be spoiled, and the step
 * can be run again; nothing is left of files and threads. The file system's calls go through this file's own, which
 * delay and fail as a test says.
 */
#include "support/support.h"

#include "base/alloc.h"
#include "plan/cache.h"
#include "run/advance.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 4, WIDTH = 64, TOKENS = 37 };

/* ---- the calls of the file system ---- */

static struct plant {
    int fail_write, fail_read; /* the n-th from now on fails, 0: none */
    int error;                 /* with this; 0: nothing is transferred */
    unsigned delay;            /* at most so many microseconds before each */
    bool refuses_direct;       /* once a file is read or written past the cache */
    bool refuses_threads;
    int writes, reads, fallocate_error;
} plant;

ssize_t __real_pwrite64(int fd, const void *from, size_t n, off_t at);
ssize_t __real_pread64(int fd, void *to, size_t n, off_t at);
int __real_fallocate64(int fd, int mode, off_t at, off_t n);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument);

static void wait_a_while(void)
{
    static uint32_t state = 1;
    if (!plant.delay) return;
    state = state * 1664525u + 1013904223u;
    usleep((state >> 8) % plant.delay);
}

static bool refuses(int fd)
{
    return plant.refuses_direct && (fcntl(fd, F_GETFL) & O_DIRECT);
}

ssize_t __wrap_pwrite64(int fd, const void *from, size_t n, off_t at)
{
    wait_a_while();
    __atomic_add_fetch(&plant.writes, 1, __ATOMIC_RELAXED);
    errno = EINVAL;
    if (refuses(fd)) return -1;
    errno = plant.error;
    if (plant.fail_write && !--plant.fail_write) return plant.error ? -1 : 0;
    return __real_pwrite64(fd, from, n > 8192 ? n / 2 / 4096 * 4096 : n, at); /* less than was asked for is fine */
}

ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t at)
{
    wait_a_while();
    __atomic_add_fetch(&plant.reads, 1, __ATOMIC_RELAXED);
    errno = EINVAL;
    if (refuses(fd)) return -1;
    errno = plant.error;
    if (plant.fail_read && !--plant.fail_read) return plant.error ? -1 : 0;
    return __real_pread64(fd, to, n, at);
}

int __wrap_fallocate64(int fd, int mode, off_t at, off_t n)
{
    errno = plant.fallocate_error;
    return plant.fallocate_error ? -1 : __real_fallocate64(fd, mode, at, n);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
    if (plant.refuses_threads) return EAGAIN;
    return __real_pthread_create(thread, attr, start, argument);
}

/* ---- a net whose values wait in a folder ---- */

static char folder[64];

static void make_folder(void)
{
    plant = (struct plant){ 0 };
    strcpy(folder, "/tmp/rewind-files-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

/* Nothing may lie in it. */
static void remove_folder(void)
{
    cr_assert_eq(rmdir(folder), 0, "%s: %s", folder, strerror(errno));
}

TestSuite(files, .init = make_folder, .fini = remove_folder);

struct world {
    struct fixture b;
    struct net n;
};

/* Given rates: nothing is measured, plans are the same each time. */
static struct world open_world(const char *policy, const char *path, int threads)
{
    struct world w = { .b = fixture_open(3, threads) };
    net_init(&w.n, w.b.ctx, LAYERS, WIDTH, RW_F32, 1);
    const rw_offload o = { .path = path, .out_bytes_per_s = 1e9, .in_bytes_per_s = 1e9 };
    if (path) cr_assert_eq(rw_context_set_offload(w.b.ctx, &o), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(ckpt_set_policy(w.b.t, policy), RW_OK, "%s", rw_error_message(w.b.ctx));
    return w;
}

struct outcome {
    unsigned char *gradients;
    size_t bytes;
    double loss;
    rw_memory memory;
};

static struct outcome outcome_in(struct world *w, int micro, bool reads)
{
    struct outcome o = { 0 };
    for (int i = 0; i < micro; i++) {
        rw_tensor *const loss = net_loss(&w->n, w->b.t, TOKENS, i);
        if (reads) rw_item(w->b.t, loss);
        cr_assert_eq(rw_backward(w->b.t, loss), RW_OK, "%s", rw_error_message(w->b.ctx));
        o.loss += rw_item(w->b.t, loss);
        rw_tape_reset(w->b.t);
    }
    o.gradients = all_gradients(w->b.ctx, &o.bytes);
    rw_memory_stats(w->b.ctx, &o.memory);
    return o;
}

static struct outcome outcome_of(const char *policy, const char *path, int threads, int micro, bool reads)
{
    struct world w = open_world(policy, path, threads);
    const struct outcome o = outcome_in(&w, micro, reads);
    fixture_close(&w.b);
    return o;
}

static bool is_same(const struct outcome *a, const struct outcome *b)
{
    cr_assert_eq(a->bytes, b->bytes);
    return !memcmp(&a->loss, &b->loss, sizeof a->loss) && first_difference(a->gradients, b->gradients, a->bytes) == -1;
}

static const char *const policies[] = { "offload:outer", "full+offload:outer", "names:offload=up",
                                        "block:2+offload:outer", "ops:linear+offload:outer" };
#define POLICIES (sizeof policies / sizeof *policies)

Test(files, give_the_bytes_of_what_is_kept)
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

Test(files, copies_that_come_late_change_nothing)
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

/* Two steps that wait at one time, each in a file of its own; and a file is used again by the next step. */
Test(files, belong_to_runs_and_are_used_again)
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

/* ---- what is left ---- */

static int entries_of(const char *path)
{
    DIR *const d = opendir(path);
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

Test(files, leave_nothing_behind)
{
    free(outcome_of("offload:outer", folder, 1, 1, true).gradients);
    const int descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    for (int i = 0; i < 3; i++) {
        struct world w = open_world("offload:outer", folder, 1);
        free(outcome_in(&w, 2, true).gradients);
        cr_assert_eq(entries_of("/proc/self/fd"), descriptors + 1, "one file");
        cr_assert_eq(entries_of("/proc/self/task"), threads + 1, "one thread");
        cr_assert_eq(entries_of(folder), 2, "no name in the folder");
        fixture_close(&w.b);
    }
    cr_assert_eq(entries_of("/proc/self/fd"), descriptors);
    cr_assert_eq(entries_of("/proc/self/task"), threads);
}

/* ---- failures ---- */

static unsigned char *clear_gradients(struct world *w, size_t *ret_bytes)
{
    rw_zero_grad(w->b.ctx);
    return all_gradients(w->b.ctx, ret_bytes);
}

static void expect_message(const struct world *w, const char *a, const char *b)
{
    const char *const m = rw_error_message(w->b.ctx);
    cr_assert(strstr(m, a) && strstr(m, b), "\"%s\" lacks \"%s\" or \"%s\"", m, a, b);
}

/* The same step again, from what is recorded. */
static void expect_recovery(struct world *w, rw_tensor *loss, const struct outcome *none)
{
    struct outcome o;
    rw_error_clear(w->b.ctx);
    rw_zero_grad(w->b.ctx);
    cr_assert_eq(rw_backward(w->b.t, loss), RW_OK, "%s", rw_error_message(w->b.ctx));
    o.loss = rw_item(w->b.t, loss);
    o.gradients = all_gradients(w->b.ctx, &o.bytes);
    cr_assert(is_same(none, &o), "after a failure");
    free(o.gradients);
}

Test(files, a_write_that_fails_is_named_and_no_gradient_is_touched)
{
    static const int errors[] = { ENOSPC, EIO, EDQUOT, EFBIG };
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    for (int reads = 0; reads < 2; reads++)
        for (int i = 0; i < 8; i++) {
            struct world w = open_world("offload:outer", folder, 2);
            size_t bytes;
            unsigned char *const before = clear_gradients(&w, &bytes);
            rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
            plant.error = errors[i % 4];
            plant.fail_write = 1 + 3 * i;
            if (reads) rw_item(w.b.t, loss);
            else cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO, "write %d", 1 + 3 * i);
            cr_assert_eq(rw_error_status(w.b.ctx), RW_ERR_IO);
            expect_message(&w, folder, strerror(plant.error));
            expect_message(&w, "could not be written", "moved");
            rw_error_clear(w.b.ctx);
            unsigned char *const after = all_gradients(w.b.ctx, &bytes);
            cr_assert_eq(first_difference(before, after, bytes), -1);
            free(before), free(after);
            expect_recovery(&w, loss, &none);
            fixture_close(&w.b);
        }
    free(none.gradients);
}

/* Backward is on its way: what was clear is clear, what was a sum is said to be spoiled. */
Test(files, a_read_that_fails_is_named_and_leaves_gradients_clear_or_spoiled)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    for (int i = 0; i < 8; i++) {
        struct world w = open_world("offload:outer", folder, 2);
        rw_adamw *opt = NULL;
        size_t bytes;
        cr_assert_eq(rw_adamw_create(&opt, w.b.ctx, &(rw_adamw_params){ .lr = 1e-2 }), RW_OK);
        unsigned char *const before = clear_gradients(&w, &bytes);
        rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
        plant.error = i % 2 ? EIO : 0;
        plant.fail_read = 1 + i;
        cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO);
        expect_message(&w, folder, "could not be read");
        expect_message(&w, i % 2 ? strerror(EIO) : "the file ends there", "moved back");
        rw_error_clear(w.b.ctx);
        unsigned char *const after = all_gradients(w.b.ctx, &bytes);
        cr_assert_eq(first_difference(before, after, bytes), -1, "clear they were");
        free(before), free(after);
        expect_recovery(&w, loss, &none);
        plant.fail_read = 1 + i;
        cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO, "the second one is added to the first");
        rw_error_clear(w.b.ctx);
        cr_assert_eq(rw_adamw_step(opt), RW_ERR_CHANGED, "spoiled");
        expect_recovery(&w, loss, &none);
        rw_adamw_destroy(&opt);
        fixture_close(&w.b);
    }
    free(none.gradients);
}

/* The one file of this process that lies in the folder. */
static int descriptor(void)
{
    char link[64], name[256];
    for (int fd = 0; fd < 256; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, name, sizeof name - 1);
        if (n > 0 && !strncmp(name, folder, strlen(folder))) return open(link, O_RDWR);
    }
    return -1;
}

static void truncate_to(off_t bytes)
{
    const int fd = descriptor();
    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, bytes), 0);
    close(fd);
}

Test(files, a_file_that_is_truncated_is_named_also_where_a_hole_would_be_read)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    for (int i = 0; i < 3; i++) {
        struct world w = open_world("offload:outer", folder, 2);
        rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
        rw_item(w.b.t, loss);
        truncate_to(i * 4096);
        cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO);
        expect_message(&w, folder, "truncated by somebody else");
        expect_recovery(&w, loss, &none);
        truncate_to(i * 4096); /* of the next step's, before it is written */
        cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO);
        expect_message(&w, folder, "truncated by somebody else");
        expect_recovery(&w, loss, &none);
        fixture_close(&w.b);
    }
    free(none.gradients);
}

/* Neither the first write nor the file's size may end the process by SIGXFSZ. */
Test(files, a_limit_on_the_size_of_files_is_an_error)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    for (int made = 0; made < 2; made++) {
        struct world w = open_world("offload:outer", folder, 2);
        rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
        if (made) cr_assert_eq(rw_backward(w.b.t, loss), RW_OK);
        rw_zero_grad(w.b.ctx);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 16384, old.rlim_max });
        const rw_status status = rw_backward(w.b.t, loss);
        setrlimit(RLIMIT_FSIZE, &old);
        cr_assert_eq(status, RW_ERR_IO, "%s", rw_error_message(w.b.ctx));
        expect_message(&w, folder, made ? "could not be written" : "there is no room");
        expect_recovery(&w, loss, &none);
        sigset_t pending;
        sigpending(&pending);
        cr_assert_not(sigismember(&pending, SIGXFSZ));
        fixture_close(&w.b);
    }
    free(none.gradients);
}

/* Law 9, from planning to the first file and its thread. */
Test(files, memory_that_ends_anywhere_is_an_error, .timeout = 200)
{
    struct outcome none = outcome_of("none", NULL, 1, 1, false);
    int failed = 0;
    for (uint64_t i = 1;; i += 1 + i / 12) {
        struct world w = open_world("offload:outer", NULL, 1);
        rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
        rw_alloc_fail_at(i);
        rw_status status = rw_context_set_offload(w.b.ctx, &(rw_offload){ .path = folder });
        if (!status) status = rw_backward(w.b.t, loss);
        rw_alloc_fail_at(0);
        if (!status) {
            fixture_close(&w.b);
            break;
        }
        cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(w.b.ctx));
        failed++;
        expect_recovery(&w, loss, &none);
        fixture_close(&w.b);
    }
    cr_assert_gt(failed, 20);
    free(none.gradients);
}

Test(files, a_full_disk_is_known_before_anything_runs)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    struct world w = open_world("offload:outer", folder, 2);
    rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
    plant.fallocate_error = ENOSPC;
    cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO);
    expect_message(&w, folder, strerror(ENOSPC));
    expect_message(&w, "find no room", "file");
    cr_assert_eq(plant.writes, 0);
    plant.fallocate_error = 0;
    expect_recovery(&w, loss, &none);
    fixture_close(&w.b);
    plant.fallocate_error = EOPNOTSUPP; /* there are file systems without it */
    struct outcome o = outcome_of("offload:outer", folder, 2, 1, false);
    cr_assert(is_same(&none, &o));
    free(o.gradients), free(none.gradients);
}

Test(files, what_refuses_to_go_past_the_cache_goes_through_it)
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

/* ---- where they wait ---- */

Test(files, a_folder_that_cannot_be_used_is_named_and_the_old_one_stays)
{
    struct world w = open_world("offload:outer", NULL, 2);
    char file[128], missing[128];
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(missing, sizeof missing, "%s/missing", folder);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    plant.refuses_threads = true;
    cr_assert_eq(rw_context_set_offload(w.b.ctx, &(rw_offload){ .path = folder }), RW_ERR_MEMORY);
    expect_message(&w, "cannot be started", folder);
    rw_error_clear(w.b.ctx);
    plant.refuses_threads = false;
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

/* A step that stopped goes on with the file it has. */
Test(files, the_place_changes_between_steps)
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

Test(files, the_environment_names_a_folder)
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

Test(files, are_not_captured)
{
    struct world w = open_world("offload:outer", folder, 2);
    rw_graph *g = NULL;
    rw_tensor *loss = net_loss(&w.n, w.b.t, TOKENS, 0);
    cr_assert_eq(rw_graph_create(&g, w.b.t, loss, NULL), RW_ERR_UNSUPPORTED);
    cr_assert_null(g);
    expect_message(&w, "rw_graph_create: a step that moves values to a file", folder);
    rw_error_clear(w.b.ctx);
    cr_assert_eq(rw_context_set_offload(w.b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_graph_create(&g, w.b.t, loss, NULL), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(rw_graph_launch(g), RW_OK);
    cr_assert_eq(rw_context_set_offload(w.b.ctx, &(rw_offload){ .path = folder }), RW_OK);
    cr_assert_eq(rw_graph_launch(g), RW_ERR_UNSUPPORTED);
    expect_message(&w, "rw_graph_launch: a step that moves values to a file", folder);
    rw_graph_destroy(&g);
    fixture_close(&w.b);
}

/* ---- how fast they are ---- */

static size_t kept_at(double rate)
{
    struct fixture b = fixture_open(3, 1);
    struct net n;
    rw_memory m;
    net_init(&n, b.ctx, LAYERS, WIDTH, RW_F32, 1);
    const rw_offload o = { .path = folder, .out_bytes_per_s = rate, .in_bytes_per_s = rate };
    cr_assert_eq(rw_context_set_offload(b.ctx, &o), RW_OK);
    ckpt_set_policy(b.t, "offload:outer");
    cr_assert_eq(rw_backward(b.t, net_loss(&n, b.t, TOKENS, 0)), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory_stats(b.ctx, &m);
    if (rate == 0) cr_assert(b.ctx->store.rate.out > 1e5 && b.ctx->store.rate.in > 1e5);
    else cr_assert_eq(b.ctx->store.rate.out, rate);
    fixture_close(&b);
    return m.kept;
}

/* The same step in the same context: a plan is made for the rates of the moment. */
Test(files, other_rates_make_another_plan)
{
    struct world w = open_world("offload:outer", folder, 1);
    size_t kept[2];
    for (int i = 0; i < 2; i++) {
        const double rate = i ? 1e13 : 1e4;
        const rw_offload o = { .path = folder, .out_bytes_per_s = rate, .in_bytes_per_s = rate };
        rw_memory m;
        cr_assert_eq(rw_context_set_offload(w.b.ctx, &o), RW_OK);
        rw_tape_reset(w.b.t);
        cr_assert_eq(rw_backward(w.b.t, net_loss(&w.n, w.b.t, TOKENS, 0)), RW_OK, "%s", rw_error_message(w.b.ctx));
        rw_memory_stats(w.b.ctx, &m);
        kept[i] = m.kept;
    }
    cr_assert_gt(kept[0], kept[1]);
    fixture_close(&w.b);
}

Test(files, copies_are_waited_for_by_how_fast_they_are)
{
    const size_t slow = kept_at(1e4), fast = kept_at(1e13);
    cr_assert_eq(plant.writes > 0, 1);
    cr_assert_gt(slow, fast, "what is on its way for long takes memory for long");
    plant = (struct plant){ 0 };
    kept_at(0);
    cr_assert_gt(plant.writes, 0);
}

/* ---- races ---- */

/* The plan without one of its waits, by their number among those of compute for copies of that kind. */
static bool forget_wait(struct world *w, uint8_t kind, int nth)
{
    rw_plan *const plan = w->b.ctx->plans->entries[0].plan;
    for (size_t i = 0; i < plan->n_waits; i++) {
        if (plan->actions[plan->waits[i].on].kind != kind || plan->actions[plan->waits[i].action].lane || nth--)
            continue;
        memmove(&plan->waits[i], &plan->waits[i + 1], (--plan->n_waits - i) * sizeof *plan->waits);
        return true;
    }
    return false;
}

/* How many of the waits, left out by themselves, are missed. */
static int missed(uint8_t kind, const struct outcome *none)
{
    int n = 0;
    for (int nth = 0; nth < 4; nth++) {
        struct world w = open_world("offload:outer", folder, 1);
        rw_cost cost;
        plant.delay = 20000;
        rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
        cr_assert_eq(rw_tape_cost(w.b.t, loss, &cost), RW_OK);
        cr_assert(forget_wait(&w, kind, nth));
        cr_assert_eq(rw_backward(w.b.t, loss), RW_OK, "%s", rw_error_message(w.b.ctx));
        struct outcome o = { .loss = rw_item(w.b.t, loss) };
        o.gradients = all_gradients(w.b.ctx, &o.bytes);
        n += !is_same(none, &o);
        free(o.gradients);
        fixture_close(&w.b);
    }
    return n;
}

/* That the tests above would see a wait that is missing. */
Test(files, a_wait_that_is_left_out_shows)
{
    struct outcome none = outcome_of("none", NULL, 1, 1, false);
    const int in = missed(RW_ACTION_IN, &none), out = missed(RW_ACTION_OUT, &none);
    cr_assert_geq(in, 3, "%d of 4", in);
    cr_assert_geq(out, 1, "%d of 4", out);
    free(none.gradients);
}

/* ---- processes and threads ---- */

static int child(struct world *w, rw_tensor *loss, const struct outcome *none)
{
    if (loss) {
        if (rw_backward(w->b.t, loss) != RW_ERR_IO || !strstr(rw_error_message(w->b.ctx), "fork()")) return 1;
        rw_error_clear(w->b.ctx);
    } else {
        loss = net_loss(&w->n, w->b.t, TOKENS, 0);
    }
    rw_zero_grad(w->b.ctx);
    if (rw_backward(w->b.t, loss)) return 2;
    struct outcome o = { .loss = rw_item(w->b.t, loss) };
    o.gradients = all_gradients(w->b.ctx, &o.bytes);
    const bool same = is_same(none, &o);
    free(o.gradients);
    fixture_close(&w->b);
    return same ? 0 : 3;
}

static void expect_child(struct world *w, rw_tensor *loss, const struct outcome *none)
{
    int how;
    const pid_t pid = fork();
    if (!pid) _exit(child(w, loss, none));
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    cr_assert(WIFEXITED(how) && !WEXITSTATUS(how), "%x", how);
}

/* A child makes files of its own, and copies by itself. */
Test(files, are_not_shared_with_a_child)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    struct world w = open_world("offload:outer", folder, 2);
    expect_child(&w, NULL, &none);
    rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
    rw_item(w.b.t, loss);
    expect_child(&w, loss, &none);
    expect_recovery(&w, loss, &none);
    fixture_close(&w.b);
    free(none.gradients);
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

Test(files, two_contexts_in_two_threads)
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
