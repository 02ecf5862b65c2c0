/*
 * Every failure of a disk is an error that names it, before a gradient is touched or with gradients clear or said to
 * be spoiled, and the step can be run again.
 */
#include "run/folder.h"

#include "base/alloc.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

TestSuite(file_failures, .init = make_folder, .fini = remove_folder);

static unsigned char *clear_gradients(struct world *w, size_t *ret_bytes)
{
    rw_zero_grad(w->b.ctx);
    return all_gradients(w->b.ctx, ret_bytes);
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
Test(file_failures, a_read_that_fails_is_named_and_leaves_gradients_clear_or_spoiled)
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

Test(file_failures, a_file_that_is_truncated_is_named_also_where_a_hole_would_be_read)
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
Test(file_failures, memory_that_ends_anywhere_is_an_error, .timeout = 200)
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

Test(file_failures, a_full_disk_is_known_before_anything_runs)
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
