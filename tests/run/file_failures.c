/*
 * Every failure of a disk is an error that names it, before a gradient is changed, or with gradients cleared or marked
 * as lost; and the step can be repeated.
 */
#include "run/offload_folder_fixture.h"

#include "base/alloc.h"

#include <criterion/criterion.h>
#include <rewind/rewind.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(file_failures, .init = make_folder, .fini = remove_folder);

static unsigned char *clear_gradients(struct world *w, size_t *ret_bytes)
{
    rw_zero_grad(w->b.ctx);
    return all_gradients(w->b.ctx, ret_bytes);
}

/* The number is read all the same: that the read begins a step is only an assumption. */
static void read_in_vain(struct world *w, rw_tensor *loss)
{
    plant.fail_write = 1;
    cr_expect_gt(rw_item(w->b.t, loss), 0);
    cr_assert_eq(rw_error_status(w->b.ctx), RW_OK, "%s", rw_error_message(w->b.ctx));
}

Test(file_failures, a_write_that_fails_is_named_and_no_gradient_is_touched)
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
            if (reads) read_in_vain(&w, loss);
            plant.fail_write = 1 + 3 * i;
            cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO, "write %d", 1 + 3 * i);
            cr_assert_eq(rw_error_status(w.b.ctx), RW_ERR_IO);
            expect_message(&w, folder, strerror(plant.error));
            expect_message(&w, "could not be written", "could not be copied");
            rw_error_clear(w.b.ctx);
            unsigned char *const after = all_gradients(w.b.ctx, &bytes);
            cr_assert_eq(first_difference(before, after, bytes), -1);
            free(before), free(after);
            expect_recovery(&w, loss, &none);
            fixture_close(&w.b);
        }
    free(none.gradients);
}

/* Backward is in progress: clear gradients are clear, and partial sums are marked as lost. */
Test(file_failures, a_read_that_fails_is_named_and_leaves_gradients_clear_or_spoiled)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    for (int i = 0; i < 8; i++) {
        struct world w = open_world("offload:outer", folder, 2);
        rw_optimizer *opt = NULL;
        size_t bytes;
        cr_assert_eq(rw_adamw_create(&opt, w.b.ctx, &(rw_adamw_params){ .lr = 1e-2 }), RW_OK);
        unsigned char *const before = clear_gradients(&w, &bytes);
        rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
        plant.error = i % 2 ? EIO : 0;
        plant.fail_read = 1 + i;
        cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO);
        expect_message(&w, folder, "could not be read");
        expect_message(&w, i % 2 ? strerror(EIO) : "end of file", "could not be copied from");
        rw_error_clear(w.b.ctx);
        unsigned char *const after = all_gradients(w.b.ctx, &bytes);
        cr_assert_eq(first_difference(before, after, bytes), -1, "clear they were");
        free(before), free(after);
        expect_recovery(&w, loss, &none);
        plant.fail_read = 1 + i;
        cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO, "the second one is added to the first");
        rw_error_clear(w.b.ctx);
        cr_assert_eq(rw_optimizer_step(opt), RW_ERR_MODIFIED, "spoiled");
        expect_recovery(&w, loss, &none);
        rw_optimizer_destroy(&opt);
        fixture_close(&w.b);
    }
    free(none.gradients);
}

/* The only file descriptor of this process that refers to a file in the folder. */
static int descriptor(void)
{
    const size_t length = strlen(folder);
    char link[64], name[256];
    for (int fd = 0; fd < 256; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, name, sizeof name - 1);
        name[n > 0 ? n : 0] = '\0';
        if (strncmp(name, folder, length) || name[length] != '/' || strchr(name + length + 1, '/')) continue;
        return open(link, O_RDWR);
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

Test(file_failures, a_file_that_is_truncated_is_named_also_where_a_hole_would_be_read)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    for (int i = 0; i < 3; i++) {
        struct world w = open_world("offload:outer", folder, 2);
        rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
        rw_item(w.b.t, loss);
        truncate_to(i * 4096);
        cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO);
        expect_message(&w, folder, "truncated by another process");
        expect_recovery(&w, loss, &none);
        truncate_to(i * 4096); /* for the next step, before the file is written */
        cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO);
        expect_message(&w, folder, "truncated by another process");
        expect_recovery(&w, loss, &none);
        fixture_close(&w.b);
    }
    free(none.gradients);
}

/* Changes a byte of an offloaded value, in the first page from this one on that holds part of one. */
static bool change_a_byte(size_t seed)
{
    unsigned char page[4096];
    struct stat about;
    const int fd = descriptor();
    cr_assert(fd >= 0 && !fstat(fd, &about));
    const size_t pages = (size_t)about.st_size / sizeof page;
    for (size_t i = 0; i < pages; i++) {
        const off_t at = (off_t)((i + seed) % pages * sizeof page);
        cr_assert_eq(pread(fd, page, sizeof page, at), (ssize_t)sizeof page);
        size_t k = seed % 64;
        while (k < sizeof page && !page[k]) k++;
        if (k == sizeof page) continue;
        page[k] ^= 1;
        cr_assert_eq(pwrite(fd, page, sizeof page, at), (ssize_t)sizeof page);
        close(fd);
        return true;
    }
    close(fd);
    return false;
}

Test(file_failures, a_value_that_is_changed_in_its_file_is_noticed_and_named)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    for (size_t i = 0; i < 8; i++) {
        struct world w = open_world("offload:outer", folder, 2);
        rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
        rw_item(w.b.t, loss);
        cr_assert(change_a_byte(5 * i));
        cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO, "byte of page %d", (int)(5 * i));
        expect_message(&w, folder, "changed by another process");
        expect_message(&w, "could not be copied from the offload store", ".c:");
        expect_recovery(&w, loss, &none);
        fixture_close(&w.b);
    }
    free(none.gradients);
}

/* A signal, such as from a profiler's timer, interrupts any call. */
Test(file_failures, an_interrupted_call_is_repeated)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    for (int i = 0; i < 12; i++) {
        struct world w = open_world("offload:outer", folder, 2);
        plant.error = EINTR;
        plant.interrupted_fallocates = i % 3;
        plant.fail_write = i % 2 ? 1 + i : 0;
        plant.fail_read = i % 2 ? 0 : 1 + i;
        struct outcome o = outcome_in(&w, 1, false);
        cr_assert(is_same(&none, &o));
        cr_assert(!plant.fail_write && !plant.fail_read && !plant.interrupted_fallocates, "none was");
        free(o.gradients);
        fixture_close(&w.b);
    }
    free(none.gradients);
}

/* Neither the first write nor the file's size may end the process by SIGXFSZ. */
Test(file_failures, a_limit_on_the_size_of_files_is_an_error)
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
        expect_message(&w, folder, made ? "could not be written" : "cannot reserve a file");
        expect_recovery(&w, loss, &none);
        sigset_t pending;
        sigpending(&pending);
        cr_assert_not(sigismember(&pending, SIGXFSZ));
        fixture_close(&w.b);
    }
    free(none.gradients);
}

/* Law 9: an allocation fails at any point from planning to the first file and its thread. */
Test(file_failures, memory_that_ends_anywhere_is_an_error, .timeout = 200)
{
    struct outcome none = outcome_of("none", NULL, 1, 1, false);
    int failed = 0;
    for (uint64_t i = 1;; i += 1 + i / 12) {
        struct world w = open_world("offload:outer", NULL, 1);
        rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
        rw_alloc_fail_from(i);
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

Test(file_failures, a_full_disk_is_known_before_anything_runs)
{
    struct outcome none = outcome_of("none", NULL, 2, 1, false);
    struct world w = open_world("offload:outer", folder, 2);
    rw_tensor *const loss = net_loss(&w.n, w.b.t, TOKENS, 0);
    plant.fallocate_error = ENOSPC;
    cr_assert_eq(rw_backward(w.b.t, loss), RW_ERR_IO);
    expect_message(&w, folder, strerror(ENOSPC));
    expect_message(&w, "do not fit", "file");
    cr_assert_eq(plant.writes, 0);
    plant.fallocate_error = 0;
    expect_recovery(&w, loss, &none);
    fixture_close(&w.b);
    plant.fallocate_error = EOPNOTSUPP; /* some file systems do not support it */
    struct outcome o = outcome_of("offload:outer", folder, 2, 1, false);
    cr_assert(is_same(&none, &o));
    free(o.gradients), free(none.gradients);
}

/* ---- an optimizer's states ---- */

static rw_optimizer *optimizer_in(struct world *w, const char *path)
{
    rw_optimizer *opt = NULL;
    const rw_state_offload s = { .place = path ? RW_STATE_FILE : RW_STATE_DEVICE, .path = path, .window = 64 << 10 };
    cr_assert_eq(rw_adamw_create(&opt, w->b.ctx, &(rw_adamw_params){ .lr = 1e-2, .states = s }), RW_OK, "%s",
                 rw_error_message(w->b.ctx));
    return opt;
}

static void backward(struct world *w, int step)
{
    rw_zero_grad(w->b.ctx);
    cr_assert_eq(rw_backward(w->b.t, net_loss(&w->n, w->b.t, TOKENS, step)), RW_OK);
    rw_tape_reset(w->b.t);
}

static void expect_parameters(struct world *w, const unsigned char *want, const char *what)
{
    size_t bytes;
    unsigned char *const now = all_parameters(w->b.ctx, &bytes);
    cr_assert_eq(first_difference(now, want, bytes), -1, "%s", what);
    free(now);
}

/* Parameters after so many updates by an optimizer whose states are on the device. */
static unsigned char *untroubled(int steps)
{
    struct world w = open_world("none", NULL, 1);
    rw_optimizer *opt = optimizer_in(&w, NULL);
    size_t bytes;
    for (int step = 0; step < steps; step++) {
        backward(&w, step);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    unsigned char *const p = all_parameters(w.b.ctx, &bytes);
    rw_optimizer_destroy(&opt);
    fixture_close(&w.b);
    return p;
}

Test(file_failures, states_that_do_not_fit_are_refused_when_the_optimizer_is_created)
{
    struct world w = open_world("none", NULL, 1);
    const rw_state_offload s = { .place = RW_STATE_FILE, .path = folder, .window = 64 << 10 };
    rw_optimizer *opt = NULL;
    rw_memory m;
    for (int i = 0; i < 3; i++) {
        plant.error = i ? EIO : 0;
        plant.fallocate_error = i ? 0 : ENOSPC;
        plant.fail_write = i ? 1 + 2 * i : 0;
        cr_assert_eq(rw_adamw_create(&opt, w.b.ctx, &(rw_adamw_params){ .states = s }), RW_ERR_IO);
        cr_assert_null(opt);
        expect_message(&w, folder, "states do not fit");
        expect_message(&w, strerror(i ? EIO : ENOSPC), "rw_adamw_create");
        rw_error_clear(w.b.ctx);
        cr_assert_eq(rw_memory_stats(w.b.ctx, &m), RW_OK);
        cr_assert_eq(m.files + m.optimizer, 0);
    }
    fixture_close(&w.b);
}

/* Loading the last checkpoint makes the optimizer usable again, with a new file. */
static void go_back(struct world *w, rw_optimizer *opt, rw_checkpoint *ck)
{
    rw_checkpoint_found found;
    backward(w, 2);
    cr_assert_eq(rw_optimizer_step(opt), RW_ERR_MODIFIED);
    expect_message(w, "some parameters are updated and others are not", "a checkpoint");
    rw_error_clear(w->b.ctx);
    cr_assert_eq(rw_checkpoint_save(ck, 3, NULL, 0), RW_ERR_MODIFIED);
    rw_error_clear(w->b.ctx);
    cr_assert_eq(rw_checkpoint_load(ck, &found), RW_OK, "%s", rw_error_message(w->b.ctx));
    cr_assert_eq(found.step, 2);
    backward(w, 2);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(w->b.ctx));
}

static void empty_checkpoints(const char *where)
{
    static const char *const names[] = { "000001-step2.safetensors", ".lock" };
    char path[160];
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", where, names[i]);
        remove(path);
    }
    cr_assert_eq(rmdir(where), 0, "%s: %s", where, strerror(errno));
}

/* Two updates, and a checkpoint of their result. */
static rw_checkpoint *saved_after_two(struct world *w, rw_optimizer *opt, const char *where)
{
    rw_checkpoint *ck = NULL;
    cr_assert_eq(rw_checkpoint_create(&ck, w->b.ctx, &(rw_checkpoint_params){ .folder = where, .optimizer = opt }),
                 RW_OK);
    for (int step = 0; step < 2; step++) {
        backward(w, step);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    cr_assert_eq(rw_checkpoint_save(ck, 2, NULL, 0), RW_OK);
    cr_assert_eq(rw_checkpoint_wait(ck), RW_OK);
    return ck;
}

/* The third update fails at one of its reads or writes. If a block was already updated, no parameter may be used as if
   it were correct. */
static bool fail_in(int read, int write, const unsigned char *two, const unsigned char *three)
{
    char where[100];
    snprintf(where, sizeof where, "%s/run", folder);
    struct world w = open_world("none", NULL, 1);
    rw_optimizer *opt = optimizer_in(&w, folder);
    rw_checkpoint *ck = saved_after_two(&w, opt, where);
    backward(&w, 2);
    plant.error = EIO;
    plant.fail_read = read;
    plant.fail_write = write;
    cr_assert_eq(rw_optimizer_step(opt), RW_ERR_IO, "read %d, write %d", read, write);
    expect_message(&w, folder, strerror(EIO));
    const bool whole = strstr(rw_error_message(w.b.ctx), "no parameter has changed");
    if (!whole) expect_message(&w, "load a checkpoint", "some parameters are updated");
    rw_error_clear(w.b.ctx);
    if (whole) {
        expect_parameters(&w, two, "before the first block");
        cr_assert_eq(rw_optimizer_step(opt), RW_OK, "it can be tried again");
    } else {
        go_back(&w, opt, ck);
    }
    expect_parameters(&w, three, "in the end");
    rw_checkpoint_destroy(&ck);
    rw_optimizer_destroy(&opt);
    fixture_close(&w.b);
    empty_checkpoints(where);
    return whole;
}

/* The number of writes of one update; all must be done when rw_optimizer_step returns. */
static int writes_of_an_update(void)
{
    struct world w = open_world("none", NULL, 1);
    rw_optimizer *opt = optimizer_in(&w, folder);
    backward(&w, 0);
    const int before = plant.writes;
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    const int at_once = plant.writes - before;
    size_t bytes;
    free(all_parameters(w.b.ctx, &bytes));
    const int n = plant.writes - before;
    cr_assert_eq(n, at_once, "an update has ended when it returns");
    rw_optimizer_destroy(&opt);
    fixture_close(&w.b);
    return n;
}

Test(file_failures, an_update_whose_states_cannot_be_moved_says_what_has_changed)
{
    unsigned char *const two = untroubled(2), *const three = untroubled(3);
    const int writes = writes_of_an_update();
    cr_assert_not(fail_in(0, writes, two, three), "the last write");
    cr_assert(fail_in(1, 0, two, three), "the first block was not there yet");
    for (int i = 2; i < 9; i += 3) cr_assert_not(fail_in(i, 0, two, three), "read %d", i);
    for (int i = 1; i < 8; i += 3) cr_assert_not(fail_in(0, i, two, three), "write %d", i);
    free(two), free(three);
}

Test(file_failures, a_file_of_states_that_is_truncated_is_named_and_a_checkpoint_takes_another)
{
    char where[100];
    snprintf(where, sizeof where, "%s/run", folder);
    unsigned char *const three = untroubled(3);
    struct world w = open_world("none", NULL, 1);
    rw_optimizer *opt = optimizer_in(&w, folder);
    rw_checkpoint *ck = saved_after_two(&w, opt, where);
    truncate_to(8192);
    backward(&w, 2);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(rw_optimizer_step(opt), RW_ERR_IO);
        expect_message(&w, folder, "truncated by another process");
        expect_message(&w, "no parameter has changed", "rw_optimizer_step");
        rw_error_clear(w.b.ctx);
    }
    cr_assert_eq(rw_checkpoint_save(ck, 2, NULL, 0), RW_ERR_IO);
    rw_error_clear(w.b.ctx);
    cr_assert_eq(rw_checkpoint_load(ck, NULL), RW_OK, "%s", rw_error_message(w.b.ctx));
    backward(&w, 2);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(w.b.ctx));
    expect_parameters(&w, three, "in another file");
    rw_checkpoint_destroy(&ck);
    rw_optimizer_destroy(&opt);
    fixture_close(&w.b);
    empty_checkpoints(where);
    free(three);
}

/* The third step after a load of the second one is that of a run that was never interrupted. */
static void expect_third(struct world *w, rw_optimizer *opt, rw_checkpoint *ck, const unsigned char *three)
{
    cr_assert_eq(rw_checkpoint_load(ck, NULL), RW_OK, "%s", rw_error_message(w->b.ctx));
    backward(w, 2);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(w->b.ctx));
    expect_parameters(w, three, "after a load");
}

/* The load itself meets the file that fails: the state is partly loaded, no step uses it, and the next load takes
   another file. */
Test(file_failures, a_load_that_meets_a_failing_file_of_states_can_be_repeated)
{
    char where[100];
    snprintf(where, sizeof where, "%s/run", folder);
    unsigned char *const three = untroubled(3);
    for (int is_truncated = 0; is_truncated < 2; is_truncated++) {
        struct world w = open_world("none", NULL, 1);
        rw_optimizer *opt = optimizer_in(&w, folder);
        rw_checkpoint *ck = saved_after_two(&w, opt, where);
        if (is_truncated) truncate_to(8192);
        plant.error = EIO;
        plant.fail_write = is_truncated ? 0 : 1;
        cr_assert_eq(rw_checkpoint_load(ck, NULL), RW_ERR_IO);
        expect_message(&w, "rw_checkpoint_load", "partly loaded");
        rw_error_clear(w.b.ctx);
        backward(&w, 2);
        cr_assert_eq(rw_optimizer_step(opt), RW_ERR_MODIFIED);
        rw_error_clear(w.b.ctx);
        expect_third(&w, opt, ck, three);
        rw_checkpoint_destroy(&ck);
        rw_optimizer_destroy(&opt);
        fixture_close(&w.b);
        empty_checkpoints(where);
    }
    free(three);
}

/* The parent's file is closed in a child of fork(), whose first load takes a file of its own. */
Test(file_failures, a_child_of_fork_loads_a_checkpoint_into_a_file_of_its_own)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("a device's context does not go into a child");
    char where[100];
    int how;
    snprintf(where, sizeof where, "%s/run", folder);
    unsigned char *const three = untroubled(3);
    struct world w = open_world("none", NULL, 1);
    rw_optimizer *opt = optimizer_in(&w, folder);
    rw_checkpoint *ck = saved_after_two(&w, opt, where);
    const pid_t pid = fork();
    if (!pid) {
        rw_status status = rw_checkpoint_load(ck, NULL);
        if (!status) backward(&w, 2);
        if (!status) status = rw_optimizer_step(opt);
        size_t bytes;
        unsigned char *const got = all_parameters(w.b.ctx, &bytes);
        _exit(status ? 1 : first_difference(three, got, bytes) == -1 ? 0 : 2);
    }
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    cr_expect(WIFEXITED(how) && WEXITSTATUS(how) == 0, "%x", (unsigned)how);
    expect_third(&w, opt, ck, three);
    rw_checkpoint_destroy(&ck);
    rw_optimizer_destroy(&opt);
    fixture_close(&w.b);
    empty_checkpoints(where);
    free(three);
}
