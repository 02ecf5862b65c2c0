/*
 * A run that ends and is resumed has the bytes of one that does not end: for every type, with and without graphs, for
 * all policies, and whenever it is killed.
 */
#include "io/saved_run.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(resume, .init = folder_open, .fini = folder_close, .timeout = 400);

/* A run from the newest checkpoint of the folder to a step, and what is saved there: all bytes of the file. */
static unsigned char *run_to(rw_dtype dtype, const struct way *how, uint64_t from, uint64_t to, size_t *bytes)
{
    struct world w = world_open(dtype, how);
    if (from) schedule = (rw_lr_schedule){ 0 };
    const rw_checkpoint_found found = world_load(&w);
    cr_assert_eq(memcmp(&schedule, &planned, sizeof planned), 0, "a run goes on by the schedule that it began with");
    cr_assert_eq(found.found, from > 0);
    cr_assert_eq(found.step, from);
    cr_assert_eq(found.skipped, 0);
    if (from) {
        const uint64_t mark = from * 3;
        cr_assert_eq(found.extra_bytes, sizeof mark);
        cr_assert_eq(memcmp(found.extra, &mark, sizeof mark), 0);
    }
    world_train(&w, how, to);
    world_save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK, "%s", rw_error_message(w.b.ctx));
    world_close(&w);
    return file_get(file_of(from ? 2 : 1, (int)to), bytes);
}

static void expect_resumed(rw_dtype dtype, const struct way *before, const struct way *after, uint64_t at, uint64_t to)
{
    size_t bytes, got_bytes;
    unsigned char *const want = run_to(dtype, &(struct way){ "none", false, 1, NULL }, 0, to, &bytes);
    empty_folder(folder);
    free(run_to(dtype, before, 0, at, &got_bytes));
    unsigned char *const got = run_to(dtype, after, at, to, &got_bytes);
    empty_folder(folder);
    cr_assert_eq(got_bytes, bytes);
    cr_assert_eq(first_difference(got, want, bytes), -1, "%s: %s %d, then %s %d: byte %ld", rw_dtype_name(dtype),
                 before->policy, before->graph, after->policy, after->graph, first_difference(got, want, bytes));
    free(got);
    free(want);
}

Test(resume, a_run_that_ended_makes_the_bytes_of_one_that_did_not)
{
    static const rw_dtype dtypes[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    const bool fast = test_device() == RW_DEVICE_CPU;
    const struct way ways[] = { { "none", false, 1, NULL }, { "full", true, 2, NULL },
                                { fast ? "budget:80%" : "budget:98%", false, 3, NULL }, { "ops:linear", true, 1, "1" },
                                { "uniform:2", false, 2, "digest" } };
    const uint64_t half = fast ? 50 : 3;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            if (fast || i == d) expect_resumed(dtypes[d], &ways[i], &ways[(i + 1 + d) % 5], half, 2 * half);
}

Test(resume, every_kind_of_optimizer_goes_on)
{
    const struct way before = { "full", true, 2, NULL }, after = { "none", false, 1, NULL };
    const uint64_t half = test_device() == RW_DEVICE_CPU ? 10 : 2;
    for (kind = 1; kind < 5; kind++) expect_resumed(kind % 2 ? RW_BF16 : RW_F32, &before, &after, half, 2 * half);
    kind = 0;
}

/* Ends and is resumed after every step: includes step counts, and master copies, which a write to a parameter
   outdates. */
Test(resume, a_run_that_ends_after_every_step)
{
    static const struct way none = { "none", false, 1, NULL }, full = { "full", false, 2, NULL };
    size_t bytes, got_bytes;
    unsigned char *const want = run_to(RW_BF16, &none, 0, 8, &bytes);
    empty_folder(folder);
    for (uint64_t step = 0; step < 8; step++) {
        struct world w = world_open(RW_BF16, step % 2 ? &none : &full);
        cr_assert_eq(world_load(&w).step, step);
        w.written = step == 4;
        world_train(&w, step % 2 ? &none : &full, step + 1);
        if (step == 3) world_step_begins(&w); /* the write before step 4 is saved with its outdated master copy */
        world_save(&w);
        world_close(&w);
    }
    unsigned char *const got = file_get(file_of(8, 8), &got_bytes);
    cr_assert_eq(got_bytes, bytes);
    cr_assert_eq(first_difference(got, want, bytes), -1, "byte %ld", first_difference(got, want, bytes));
    free(want);
    free(got);
}

/* The copy is the state at the call, whatever the training does while it is written. */
Test(resume, goes_on_training_while_a_file_is_written)
{
    static const struct way how = { "none", false, 1, NULL };
    size_t bytes, got_bytes;
    unsigned char *const want = run_to(RW_F32, &how, 0, 5, &bytes);
    empty_folder(folder);
    struct world w = world_open(RW_F32, &how);
    world_train(&w, &how, 5);
    world_save(&w);
    world_train(&w, &how, 9);
    world_close(&w); /* waits */
    unsigned char *const got = file_get(file_of(1, 5), &got_bytes);
    cr_assert_eq(got_bytes, bytes);
    cr_assert_eq(first_difference(got, want, bytes), -1);
    free(want);
    free(got);
}

/* Dropout's masks of every launch, for a graph that is created before or after loading. */
static void train_dropout(uint64_t from, uint64_t to, bool created_first, const char *verify, float *ret)
{
    if (verify) setenv("REWIND_VERIFY", verify, 1);
    struct fixture b = fixture_open(from ? 99 : 5, 1);
    unsetenv("REWIND_VERIFY");
    rw_optimizer *opt = NULL;
    rw_checkpoint *ck = NULL;
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(16));
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.1 }), RW_OK);
    const rw_checkpoint_params params = { .folder = folder, .optimizer = opt };
    cr_assert_eq(rw_checkpoint_create(&ck, b.ctx, &params), RW_OK);
    if (from && !created_first) cr_assert_eq(rw_checkpoint_load(ck, NULL), RW_OK);
    rw_tensor *const loss = rw_sum(b.t, rw_dropout(b.t, rw_mul(b.t, w, w), 0.5), RW_ALL_AXES, false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, &(rw_graph_params){ { rw_record_update(opt) } }), RW_OK);
    if (from && created_first) cr_assert_eq(rw_checkpoint_load(ck, NULL), RW_OK);
    for (uint64_t step = from; step < to; step++)
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    if (!from) cr_assert_eq(rw_checkpoint_save(ck, to, NULL, 0), RW_OK);
    cr_assert_eq(rw_read(NULL, w, ret, 16 * sizeof *ret), RW_OK);
    rw_graph_destroy(&g);
    rw_checkpoint_destroy(&ck);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

Test(resume, a_graph_created_before_the_load_goes_on)
{
    float want[16], got[16];
    train_dropout(0, 6, false, NULL, want);
    empty_folder(folder);
    train_dropout(0, 3, false, NULL, got);
    for (int i = 0; i < 4; i++) {
        train_dropout(3, 6, i % 2, i / 2 ? "1" : NULL, got);
        cr_expect_eq(memcmp(want, got, sizeof want), 0, "way %d", i);
    }
}

/* ---- kills ---- */

/* Trains and saves until it is killed; reports each step that is safe. */
static void child(int said)
{
    struct world w = large_open();
    for (;;) {
        world_train(&w, &alone, w.step + 1);
        world_save(&w);
        if (w.step % 2) continue; /* the next save waits for this one */
        if (rw_checkpoint_wait(w.ck)) _exit(3);
        if (write(said, &w.step, sizeof w.step) != sizeof w.step) _exit(4);
    }
}

/* One child, killed some microseconds after its first report: the last step that it reported as safe. */
static uint64_t kill_one(unsigned microseconds)
{
    int pipe_fds[2];
    uint64_t safe = 0, more;
    cr_assert_eq(pipe(pipe_fds), 0);
    const pid_t pid = fork();
    if (!pid) {
        close(pipe_fds[0]);
        child(pipe_fds[1]);
    }
    close(pipe_fds[1]);
    cr_assert_eq(read(pipe_fds[0], &safe, sizeof safe), sizeof safe, "the child ended by itself");
    usleep(microseconds);
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    while (read(pipe_fds[0], &more, sizeof more) == sizeof more) safe = more;
    close(pipe_fds[0]);
    return safe;
}

Test(resume, a_hundred_kills_while_saving_are_a_hundred_resumes)
{
    const int kills = test_device() == RW_DEVICE_CPU ? 100 : 3;
    uint64_t s = 88172645463325252u, last = 0;
    int parts = 0;
    for (int i = 0; i < kills || (kills == 100 && parts <= 10 && i < 20 * kills); i++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        const uint64_t safe = kill_one((unsigned)(s % 8000));
        parts += strstr(names_in(folder), ".part") != NULL;
        cr_assert_geq(safe, last, "what was safe is there: %d kills, step %d, then %d", i, (int)last, (int)safe);
        last = safe;
    }
    /* On a busy machine a process may be killed before it writes: then there are more kills. */
    cr_expect(parts > 10 || kills < 100, "only %d kills met a file that was being written", parts);
    struct world w = large_open();
    cr_assert_geq(w.step, last);
    world_train(&w, &alone, w.step + 3);
    const uint64_t end = w.step;
    size_t bytes, want_bytes;
    unsigned char *const got = all_parameters(w.b.ctx, &bytes);
    world_save(&w);
    world_close(&w);
    cr_expect_null(strstr(names_in(folder), ".part"), "%s", names_in(folder));
    empty_folder(folder);
    struct world never = large_open();
    world_train(&never, &alone, end);
    unsigned char *const want = all_parameters(never.b.ctx, &want_bytes);
    cr_assert_eq(first_difference(got, want, bytes), -1, "after %d kills and %d steps", kills, (int)end);
    world_close(&never);
    free(got);
    free(want);
}
