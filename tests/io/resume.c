/*
 * A run that ends and goes on makes the bytes of one that does not: every type, with and without graphs, whatever the
 * policies. And what is on the disk: whole files, in a rotation; what is cut off, damaged or half-written is passed
 * over and said.
 */
#include "support/support.h"

#include "base/alloc.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], folder[96];

static void open_files(void)
{
    const char *const tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.40s/rewind-resume-XXXXXX", tmp ? tmp : P_tmpdir);
    cr_assert_not_null(mkdtemp(dir));
    snprintf(folder, sizeof folder, "%s/run", dir);
}

/* Names of the files in a folder that exists, in order, separated by blanks. */
static const char *names_in(const char *where)
{
    static char all[4096];
    struct dirent **e;
    const int n = scandir(where, &e, NULL, alphasort);
    all[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (e[i]->d_name[0] != '.') strcat(strcat(all, *all ? " " : ""), e[i]->d_name);
        free(e[i]);
    }
    if (n >= 0) free(e);
    return all;
}

static void empty_folder(const char *where)
{
    char path[512];
    DIR *const d = opendir(where);
    if (!d) return;
    for (const struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%.255s", where, e->d_name);
        if (e->d_name[0] != '.') remove(path);
    }
    closedir(d);
    rmdir(where);
}

static void close_files(void)
{
    empty_folder(folder);
    cr_assert_eq(rmdir(dir), 0, "something was left beside the folder");
}

TestSuite(resume, .init = open_files, .fini = close_files, .timeout = 400);

static unsigned char *get(const char *path, size_t *ret_bytes)
{
    struct stat about;
    cr_assert_eq(stat(path, &about), 0, "%s", path);
    unsigned char *const data = malloc((size_t)about.st_size + 1);
    FILE *const f = fopen(path, "rb");
    cr_assert_eq(fread(data, 1, (size_t)about.st_size, f), (size_t)about.st_size);
    fclose(f);
    *ret_bytes = (size_t)about.st_size;
    return data;
}

static void put(const char *path, const void *data, size_t bytes)
{
    FILE *const f = fopen(path, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

static const char *file_of(int number, int step)
{
    static char path[2][160];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof *path, "%s/%06d-step%d.safetensors", folder, number, step);
    return path[turn];
}

/* ---- a run ---- */

struct way {
    const char *policy;
    bool graph;
    int threads;
    const char *verify;
};

struct world {
    struct fixture b;
    struct net net;
    rw_tensor *mean;
    rw_optimizer *opt;
    rw_average *average;
    rw_checkpoint *ck;
    uint64_t step;
    bool written; /* what is written before step 4 was there when it was saved */
};

static const rw_schedule planned = { .kind = RW_SCHEDULE_COSINE, .lr = 0.02, .min_lr = 1e-3 / 3, .warmup = 3,
                                     .total = 101, .every = 1, .factor = 0.1 };
static rw_schedule schedule; /* the one that is saved */

/* Of every kind: how many states each has is all that differs. */
static int kind;

static rw_status make_optimizer(struct world *w)
{
    if (kind == 1) return rw_sgd_create(&w->opt, w->b.ctx, &(rw_sgd_params){ .momentum = 0.9, .dampening = 0.5 });
    if (kind == 2) return rw_lion_create(&w->opt, w->b.ctx, NULL);
    if (kind == 3) return rw_adam_create(&w->opt, w->b.ctx, &(rw_adam_params){ .weight_decay = 0.1 });
    if (kind == 4) return rw_sgd_create(&w->opt, w->b.ctx, NULL);
    return rw_adamw_create(&w->opt, w->b.ctx, &(rw_adamw_params){ .lr = 0.5 });
}

static struct world world_open(rw_dtype dtype, const struct way *how)
{
    struct world w = { 0 };
    schedule = planned;
    if (how->verify) setenv("REWIND_VERIFY", how->verify, 1);
    w.b = fixture_open(11, how->threads);
    unsetenv("REWIND_VERIFY");
    net_init(&w.net, w.b.ctx, 2, 16, dtype, 1);
    w.mean = rw_buffer(w.b.ctx, "mean", dtype, RW_SHAPE(16));
    rw_buffer(w.b.ctx, "ids", RW_I32, RW_SHAPE(3));
    cr_assert_eq(ckpt_set_policy(w.b.t, how->policy), RW_OK);
    cr_assert_eq(make_optimizer(&w), RW_OK);
    cr_assert_eq(rw_average_create(&w.average, w.b.ctx, 0.75), RW_OK);
    const rw_checkpoint_params params = { .folder = folder, .optimizer = w.opt, .average = w.average,
                                          .schedule = &schedule, .keep = 2 };
    cr_assert_eq(rw_checkpoint_create(&w.ck, w.b.ctx, &params), RW_OK);
    return w;
}

static void world_close(struct world *w)
{
    rw_average_destroy(&w->average);
    rw_optimizer_destroy(&w->opt);
    rw_checkpoint_destroy(&w->ck);
    fixture_close(&w->b);
}

static rw_checkpoint_found load(struct world *w)
{
    rw_checkpoint_found found;
    cr_assert_eq(rw_checkpoint_load(w->ck, &found), RW_OK, "%s", rw_error_message(w->b.ctx));
    w->step = found.step;
    return found;
}

static void save(struct world *w)
{
    const uint64_t mark = w->step * 3;
    cr_assert_eq(rw_checkpoint_save(w->ck, w->step, &mark, sizeof mark), RW_OK, "%s", rw_error_message(w->b.ctx));
}

/* A running mean of a parameter, and a loss with dropout in it. */
static rw_tensor *record(struct world *w)
{
    rw_tape *const t = w->b.t;
    rw_assign(t, w->mean, rw_add(t, rw_scale(t, w->mean, 0.9), rw_scale(t, w->net.gain[0], 0.1)));
    return net_loss(&w->net, t, test_device() == RW_DEVICE_CPU ? 24 : 8, 5);
}

/* The rate and the policies in force belong to the loop: a parameter is written in between, too. */
static void step_begins(struct world *w)
{
    const float three[48] = { 3 };
    if (w->step % 5 == 0) rw_optimizer_set_lr(w->opt, rw_schedule_lr(&schedule, w->step));
    if (w->step == 4 && !w->written)
        cr_assert_eq(rw_write(w->net.shift[1], three, rw_tensor_bytes(w->net.shift[1])), RW_OK);
    w->written = false;
}

static void train(struct world *w, const struct way *how, uint64_t to)
{
    rw_graph *g = NULL;
    for (; w->step < to; w->step++) {
        step_begins(w);
        if (how->graph && !g)
            cr_assert_eq(rw_graph_create(&g, w->b.t, record(w),
                                         &(rw_graph_params){ .optimizer = w->opt, .max_norm = 1 }), RW_OK);
        if (g) {
            cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(w->b.ctx));
            cr_assert_eq(rw_average_step(w->average), RW_OK);
            continue;
        }
        rw_tape_reset(w->b.t);
        rw_zero_grad(w->b.ctx);
        cr_assert_eq(rw_backward(w->b.t, record(w)), RW_OK, "%s", rw_error_message(w->b.ctx));
        cr_assert_eq(rw_clip_grad_norm(w->b.ctx, 1, NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(w->opt), RW_OK, "%s", rw_error_message(w->b.ctx));
        cr_assert_eq(rw_average_step(w->average), RW_OK);
    }
    rw_graph_destroy(&g);
    rw_tape_reset(w->b.t);
}

/* A run from where the folder stands to a step, and what is saved there: all bytes of the file. */
static unsigned char *run_to(rw_dtype dtype, const struct way *how, uint64_t from, uint64_t to, size_t *bytes)
{
    struct world w = world_open(dtype, how);
    if (from) schedule = (rw_schedule){ 0 };
    const rw_checkpoint_found found = load(&w);
    cr_assert_eq(memcmp(&schedule, &planned, sizeof planned), 0, "a run goes on by the schedule that it began with");
    cr_assert_eq(found.found, from > 0);
    cr_assert_eq(found.step, from);
    cr_assert_eq(found.skipped, 0);
    if (from) {
        const uint64_t mark = from * 3;
        cr_assert_eq(found.extra_bytes, sizeof mark);
        cr_assert_eq(memcmp(found.extra, &mark, sizeof mark), 0);
    }
    train(&w, how, to);
    save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK, "%s", rw_error_message(w.b.ctx));
    world_close(&w);
    return get(file_of(from ? 2 : 1, (int)to), bytes);
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
                                { fast ? "budget:60%" : "budget:98%", false, 3, NULL }, { "ops:linear", true, 1, "1" },
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

/* Ends and goes on after every step: counts of updates and master copies, too, which a parameter written outdates. */
Test(resume, a_run_that_ends_after_every_step)
{
    static const struct way none = { "none", false, 1, NULL }, full = { "full", false, 2, NULL };
    size_t bytes, got_bytes;
    unsigned char *const want = run_to(RW_BF16, &none, 0, 8, &bytes);
    empty_folder(folder);
    for (uint64_t step = 0; step < 8; step++) {
        struct world w = world_open(RW_BF16, step % 2 ? &none : &full);
        cr_assert_eq(load(&w).step, step);
        w.written = step == 4;
        train(&w, step % 2 ? &none : &full, step + 1);
        if (step == 3) step_begins(&w); /* what happens before step 4 is saved with its master outdated */
        save(&w);
        world_close(&w);
    }
    unsigned char *const got = get(file_of(8, 8), &got_bytes);
    cr_assert_eq(got_bytes, bytes);
    cr_assert_eq(first_difference(got, want, bytes), -1, "byte %ld", first_difference(got, want, bytes));
    free(want);
    free(got);
}

/* The copy is what was there at the call, whatever the training does while it is written. */
Test(resume, goes_on_training_while_a_file_is_written)
{
    static const struct way how = { "none", false, 1, NULL };
    size_t bytes, got_bytes;
    unsigned char *const want = run_to(RW_F32, &how, 0, 5, &bytes);
    empty_folder(folder);
    struct world w = world_open(RW_F32, &how);
    train(&w, &how, 5);
    save(&w);
    train(&w, &how, 9);
    world_close(&w); /* waits */
    unsigned char *const got = get(file_of(1, 5), &got_bytes);
    cr_assert_eq(got_bytes, bytes);
    cr_assert_eq(first_difference(got, want, bytes), -1);
    free(want);
    free(got);
}

/* ---- kills ---- */

static const struct way alone = { "none", false, 1, NULL };

/* A few steps of a run with 2 MB to save, so that most kills meet a file that is being written. */
static struct world large_open(void)
{
    struct world w = world_open(RW_F32, &alone);
    rw_tensor *const ballast = rw_buffer(w.b.ctx, "ballast", RW_F32, RW_SHAPE(1 << 19));
    cr_assert_eq(rw_init_normal(ballast, 0, 1), RW_OK);
    load(&w);
    return w;
}

/* Trains and saves until it is killed; says each step that is safe. */
static void child(int said)
{
    struct world w = large_open();
    for (;;) {
        train(&w, &alone, w.step + 1);
        save(&w);
        if (w.step % 2) continue; /* this one is waited for by the next */
        if (rw_checkpoint_wait(w.ck)) _exit(3);
        if (write(said, &w.step, sizeof w.step) != sizeof w.step) _exit(4);
    }
}

/* One child, killed some microseconds after its first words: the last step that it said was safe. */
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
    for (int i = 0; i < kills; i++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        const uint64_t safe = kill_one((unsigned)(s % 8000));
        parts += strstr(names_in(folder), ".part") != NULL;
        cr_assert_geq(safe, last, "what was safe is there: %d kills, step %d, then %d", i, (int)last, (int)safe);
        last = safe;
    }
    cr_expect(parts > kills / 10 || kills < 100, "only %d kills met a file that was being written", parts);
    struct world w = large_open();
    cr_assert_geq(w.step, last);
    train(&w, &alone, w.step + 3);
    const uint64_t end = w.step;
    size_t bytes, want_bytes;
    unsigned char *const got = all_parameters(w.b.ctx, &bytes);
    save(&w);
    world_close(&w);
    cr_expect_null(strstr(names_in(folder), ".part"), "%s", names_in(folder));
    empty_folder(folder);
    struct world never = large_open();
    train(&never, &alone, end);
    unsigned char *const want = all_parameters(never.b.ctx, &want_bytes);
    cr_assert_eq(first_difference(got, want, bytes), -1, "after %d kills and %d steps", kills, (int)end);
    world_close(&never);
    free(got);
    free(want);
}

/* ---- files that are not whole ---- */

/* Two small files; the newer is damaged by the test. */
static struct world small_open(void)
{
    struct world w = { .b = fixture_open(3, 1) };
    rw_tensor *const x = rw_param(w.b.ctx, "x", RW_BF16, RW_SHAPE(3));
    cr_assert_eq(rw_init_constant(x, 1), RW_OK);
    cr_assert_eq(rw_adamw_create(&w.opt, w.b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_checkpoint_create(&w.ck, w.b.ctx, &(rw_checkpoint_params){ .folder = folder, .optimizer = w.opt }),
                 RW_OK);
    return w;
}

static rw_tensor *x_of(const struct world *w) { return rw_param_find(w->b.ctx, "x"); }

static void put_two(struct world *w)
{
    w->step = 1;
    save(w);
    cr_assert_eq(rw_init_constant(x_of(w), 2), RW_OK);
    w->step = 2;
    save(w);
    cr_assert_eq(rw_checkpoint_wait(w->ck), RW_OK);
}

static void expect_x(const struct world *w, double want)
{
    uint16_t x[3];
    cr_assert_eq(rw_read(NULL, x_of(w), x, sizeof x), RW_OK);
    cr_assert_eq(x[2], want == 1 ? 0x3f80 : want == 2 ? 0x4000 : 0x4040);
}

static void expect_older(struct world *w, const char *what, size_t where)
{
    cr_assert_eq(rw_init_constant(x_of(w), 3), RW_OK);
    const rw_checkpoint_found found = load(w);
    cr_assert(found.found && found.step == 1 && found.skipped == 1, "%s %zu: step %d", what, where, (int)found.step);
    cr_assert(strstr(found.path, "000001-step1") && strstr(found.why, "000002-step2.safetensors: "), "%s", found.why);
    expect_x(w, 1);
}

Test(resume, a_file_cut_off_anywhere_is_passed_over)
{
    struct world w = small_open();
    size_t bytes;
    put_two(&w);
    unsigned char *const file = get(file_of(2, 2), &bytes);
    for (size_t n = 0; n < bytes; n++) {
        put(file_of(2, 2), file, n);
        expect_older(&w, "cut off at", n);
    }
    file[bytes] = 0;
    put(file_of(2, 2), file, bytes + 1);
    expect_older(&w, "longer by one:", bytes + 1);
    put(file_of(2, 2), file, bytes);
    cr_assert_eq(load(&w).step, 2);
    expect_x(&w, 2);
    free(file);
    world_close(&w);
}

Test(resume, a_file_with_one_bit_turned_is_passed_over)
{
    struct world w = small_open();
    size_t bytes;
    put_two(&w);
    unsigned char *const file = get(file_of(2, 2), &bytes);
    const int fd = open(file_of(2, 2), O_WRONLY);
    const size_t stride = test_device() == RW_DEVICE_CPU ? 1 : 97;
    for (size_t bit = 0; bit < 8 * bytes; bit += stride) {
        const unsigned char turned = (unsigned char)(file[bit / 8] ^ 1u << bit % 8);
        cr_assert_eq(pwrite(fd, &turned, 1, (off_t)(bit / 8)), 1);
        expect_older(&w, "bit", bit);
        cr_assert_eq(pwrite(fd, &file[bit / 8], 1, (off_t)(bit / 8)), 1);
    }
    close(fd);
    cr_assert_eq(load(&w).step, 2);
    free(file);
    world_close(&w);
}

Test(resume, none_of_the_files_is_whole)
{
    struct world w = small_open();
    put_two(&w);
    put(file_of(1, 1), "x", 1);
    put(file_of(2, 2), "", 0);
    cr_assert_eq(rw_init_constant(x_of(&w), 3), RW_OK);
    rw_checkpoint_found found = { .step = 77 };
    cr_assert_eq(rw_checkpoint_load(w.ck, &found), RW_ERR_IO);
    cr_assert_eq(found.step, 77);
    const char *const m = rw_error_message(w.b.ctx);
    cr_assert(strstr(m, "none of the files is whole: 000002-step2") && strstr(m, folder), "%s", m);
    rw_error_clear(w.b.ctx);
    expect_x(&w, 3);
    world_close(&w);
}

/* ---- the rotation ---- */

#define F(number, step) number "-step" step ".safetensors"

Test(resume, the_newest_files_stay)
{
    struct world w = world_open(RW_F32, &alone); /* keeps two */
    cr_assert_eq(load(&w).found, false, "a folder that is not there is a run that begins");
    cr_assert_eq(mkdir(folder, 0777), 0);
    put(file_of(9999, 0), "", 0);
    char path[160];
    snprintf(path, sizeof path, "%s/020000-step5.safetensorz", folder); /* somebody else's */
    put(path, "", 0);
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    put(path, "", 0);
    snprintf(path, sizeof path, "%s/%s.123.4.part", folder, F("000008", "7"));
    put(path, "", 0);
    for (w.step = 10; w.step < 14; w.step++) save(&w);
    w.step = 2; /* set back: newer all the same */
    save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_str_eq(names_in(folder), F("010003", "13") " " F("010004", "2")
                                          " 020000-step5.safetensorz notes.txt");
    cr_assert_eq(load(&w).step, 2);
    world_close(&w);
}

Test(resume, an_old_file_that_cannot_be_removed_is_said)
{
    struct world w = world_open(RW_F32, &alone);
    cr_assert_eq(mkdir(folder, 0777), 0);
    cr_assert_eq(mkdir(file_of(1, 1), 0777), 0);
    for (w.step = 2; w.step < 4; w.step++) save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_ERR_IO);
    const char *const m = rw_error_message(w.b.ctx);
    cr_assert(strstr(m, "the new file is there") && strstr(m, "000001-step1.safetensors cannot be removed"), "%s", m);
    rw_error_clear(w.b.ctx);
    cr_assert_eq(load(&w).step, 3);
    world_close(&w);
}

/* A file that was found to be damaged doesn't take the place of a whole one. */
Test(resume, damaged_files_do_not_count_as_kept)
{
    struct world w = world_open(RW_F32, &alone);
    for (w.step = 1; w.step < 4; w.step++) save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    put(file_of(3, 3), "?", 1);
    cr_assert_eq(load(&w).step, 2);
    w.step = 3;
    save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_str_eq(names_in(folder), F("000002", "2") " " F("000003", "3") " " F("000004", "3"));
    save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_str_eq(names_in(folder), F("000004", "3") " " F("000005", "3"));
    world_close(&w);
}

Test(resume, one_folder_for_two_runs_is_refused)
{
    struct world a = small_open(), z = small_open();
    put_two(&a);
    cr_assert_eq(rw_checkpoint_save(z.ck, 5, NULL, 0), RW_ERR_IO);
    cr_assert(strstr(rw_error_message(z.b.ctx), "somebody else saves there"), "%s", rw_error_message(z.b.ctx));
    rw_error_clear(z.b.ctx);
    cr_assert_eq(load(&z).step, 2, "but it may be read");
    world_close(&a);
    save(&z);
    cr_assert_eq(rw_checkpoint_wait(z.ck), RW_OK, "the first run has ended");
    world_close(&z);
}

/* ---- failures ---- */

static void limit_files(rlim_t bytes)
{
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){ bytes, RLIM_INFINITY });
}

Test(resume, a_disk_that_is_full_keeps_the_files_before)
{
    struct world w = large_open();
    w.step = 1;
    save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    limit_files(65536);
    w.step = 2;
    save(&w);
    cr_assert_eq(rw_checkpoint_save(w.ck, 3, NULL, 0), RW_ERR_IO, "what the last one met");
    const char *const m = rw_error_message(w.b.ctx);
    cr_assert(strstr(m, "000002-step2") && strstr(m, "File too large"), "%s", m);
    rw_error_clear(w.b.ctx);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK, "told once");
    limit_files(RLIM_INFINITY);
    cr_assert_str_eq(names_in(folder), F("000001", "1"));
    w.step = 4;
    save(&w);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_eq(load(&w).step, 4);
    world_close(&w);
}

/* The n-th allocation fails, for every n, of the thread that writes, too. */
Test(resume, without_memory_nothing_changes)
{
    for (int loads = 0; loads < 2; loads++) {
        struct world w = small_open();
        put_two(&w);
        int failures = 0;
        for (uint64_t n = 1;; n++) {
            cr_assert_eq(rw_init_constant(x_of(&w), 3), RW_OK);
            rw_alloc_fail_at(n);
            rw_status status = loads ? rw_checkpoint_load(w.ck, NULL) : rw_checkpoint_save(w.ck, 3, "abc", 3);
            if (!status) status = rw_checkpoint_wait(w.ck);
            rw_alloc_fail_at(0);
            if (!status) break;
            failures++;
            cr_assert_eq(status, RW_ERR_MEMORY, "allocation %d: %s", (int)n, rw_error_message(w.b.ctx));
            const bool there = strstr(rw_error_message(w.b.ctx), "the new file is there");
            rw_error_clear(w.b.ctx);
            expect_x(&w, 3);
            cr_assert_null(strstr(names_in(folder), ".part"), "%s", names_in(folder));
            cr_assert_eq(strstr(names_in(folder), "step3") != NULL, there, "%s", names_in(folder));
            cr_assert(!there || n > 5, "at the end, when old ones are to go");
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

Test(resume, mistakes_are_refused)
{
    struct world w = small_open(), other = small_open();
    rw_checkpoint *none = NULL;
    rw_context *const ctx = w.b.ctx;
    const rw_checkpoint_params good = { .folder = folder };
    expect_refused(rw_checkpoint_create(NULL, ctx, &good), RW_ERR_ARGUMENT, &w, "ret_checkpoint");
    expect_refused(rw_checkpoint_create(&none, ctx, NULL), RW_ERR_ARGUMENT, &w, "params");
    expect_refused(rw_checkpoint_create(&none, ctx, &(rw_checkpoint_params){ .folder = "" }), RW_ERR_ARGUMENT, &w,
                   "no folder");
    expect_refused(rw_checkpoint_create(&none, ctx, &(rw_checkpoint_params){ .folder = "a", .keep = -1 }),
                   RW_ERR_ARGUMENT, &w, "-1 files");
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
    cr_assert_eq(rw_checkpoint_create(&none, ctx, &(rw_checkpoint_params){ .folder = "/nowhere/at/all" }), RW_OK);
    expect_refused(rw_checkpoint_save(none, 0, NULL, 0), RW_ERR_IO, &w, "/nowhere/at/all: No such file");
    rw_checkpoint_destroy(&none);
    rw_buffer(ctx, "rewind:thing", RW_F32, RW_SHAPE(1));
    expect_refused(rw_checkpoint_save(w.ck, 0, NULL, 0), RW_ERR_ARGUMENT, &w, "\"rewind:thing\"");
    cr_assert_str_eq(names_in(folder), "");
    world_close(&w);
    world_close(&other);
}

/* x of another type or shape, a parameter that is not there, no optimizer there: an older file would not do either. */
Test(resume, what_does_not_fit_changes_nothing)
{
    struct world w = small_open();
    rw_checkpoint *plain = NULL;
    put_two(&w);
    world_close(&w);
    for (int i = 0; i < 3; i++) {
        struct world z = { .b = fixture_open(3, 1) };
        rw_param(z.b.ctx, i == 2 ? "y" : "x", i ? RW_BF16 : RW_F32, RW_SHAPE(i == 1 ? 4 : 3));
        cr_assert_eq(rw_checkpoint_create(&z.ck, z.b.ctx, &(rw_checkpoint_params){ .folder = folder }), RW_OK);
        static const char *const texts[] = { "is BF16 there, F32 here", "another shape", "\"y\" is not in it" };
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
    expect_refused(rw_checkpoint_load(w.ck, NULL), RW_ERR_IO, &w, "no optimizer is in it");
    expect_x(&w, 3);
    rw_checkpoint_destroy(&plain);
    world_close(&w);
}

Test(resume, another_kind_of_optimizer_is_refused)
{
    struct world w = small_open();
    rw_optimizer *lion = NULL;
    rw_checkpoint *other = NULL;
    put_two(&w);
    cr_assert_eq(rw_lion_create(&lion, w.b.ctx, NULL), RW_OK);
    const rw_checkpoint_params params = { .folder = folder, .optimizer = lion };
    cr_assert_eq(rw_checkpoint_create(&other, w.b.ctx, &params), RW_OK);
    expect_refused(rw_checkpoint_load(other, NULL), RW_ERR_ARGUMENT, &w, "the optimizer is adamw there, lion here");
    rw_checkpoint_destroy(&other);
    rw_optimizer_destroy(&lion);
    world_close(&w);
}

/* What was recorded before would keep the random numbers that it drew. */
Test(resume, a_tape_that_holds_a_step_is_refused)
{
    struct world w = small_open();
    put_two(&w);
    rw_relu(w.b.t, x_of(&w));
    expect_refused(rw_checkpoint_load(w.ck, NULL), RW_ERR_ARGUMENT, &w, "rw_tape_reset()");
    rw_tape_reset(w.b.t);
    cr_assert_eq(load(&w).step, 2);
    world_close(&w);
}

/* The weights are a safetensors file like any other. */
Test(resume, rw_load_takes_the_weights_of_a_checkpoint)
{
    struct world w = small_open();
    put_two(&w);
    cr_assert_eq(rw_load(w.b.ctx, file_of(1, 1)), RW_OK, "%s", rw_error_message(w.b.ctx));
    expect_x(&w, 1);
    world_close(&w);
}

/* A child of fork() has a checkpoint without its thread. */
Test(resume, a_child_of_fork_leaves_the_parents_file_alone)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("a device's context does not go into a child");
    struct world w = large_open();
    w.step = 1;
    save(&w);
    const pid_t pid = fork();
    if (!pid) {
        rw_checkpoint_destroy(&w.ck);
        _exit(0);
    }
    int how;
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    cr_assert(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    cr_assert_eq(rw_checkpoint_wait(w.ck), RW_OK);
    cr_assert_str_eq(names_in(folder), F("000001", "1"));
    world_close(&w);
}
