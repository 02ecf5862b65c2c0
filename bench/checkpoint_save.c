/*
 * The cost of saving a run: a checkpoint of 1 GB (parameters and AdamW's moments) from the call until it is on the
 * disk, compared with a file of as many bytes that this program writes in pieces and syncs, alternately, so that noise
 * affects both. Also the effect on training: the time of the call, which is a copy in memory, and how much longer steps
 * take while the file is written. All is written to a new folder in FOLDER, which is removed at the end.
 *
 *     checkpoint_save FOLDER [ROUNDS [MEGABYTES]]
 */
#include "figure.h"

#include <rewind/rewind.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS_MAX = 32, PIECE = 8 << 20, SIDE = 512, PARAMS = 8 };

struct times {
    double save[ROUNDS_MAX], call[ROUNDS_MAX], plain[ROUNDS_MAX], copy[ROUNDS_MAX];
    double quiet[ROUNDS_MAX], beside[ROUNDS_MAX];
};

static void die(rw_context *ctx, const char *what)
{
    fprintf(stderr, "checkpoint_save: %s: %s\n", what, rw_error_message(ctx));
    exit(1);
}

static void die_of_file(const char *path)
{
    fprintf(stderr, "checkpoint_save: %s: %s\n", path, strerror(errno));
    exit(1);
}

static char own[4096]; /* the folder of this run's files */

static void remove_own(void)
{
    DIR *const d = opendir(own);
    for (struct dirent *e; d && (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    rmdir(own);
}

/* The caller's folder may have files of any name. */
static void make_own(const char *folder)
{
    const bool fits = snprintf(own, sizeof own, "%s/checkpoint-save-XXXXXX", folder) < (int)sizeof own;
    if (!fits) errno = ENAMETOOLONG;
    if (fits && mkdtemp(own)) {
        atexit(remove_own);
        return;
    }
    die_of_file(folder);
}

/* Memory that is in no cache. */
static double copy_s(size_t bytes)
{
    static char *from, *to;
    if (!from) {
        from = malloc(bytes);
        to = malloc(bytes);
        memset(from, 1, bytes);
        memset(to, 2, bytes);
    }
    const double begin = now_s();
    memcpy(to, from, bytes);
    return now_s() - begin;
}

/* Seconds to write and sync as many bytes by plain write() calls. */
static double plain_s(size_t bytes)
{
    static char *piece;
    char path[sizeof own + 8];
    if (!piece) {
        piece = malloc(PIECE);
        for (size_t i = 0; i < PIECE; i++) piece[i] = (char)(i * 2654435761u >> 13);
    }
    snprintf(path, sizeof path, "%s/plain", own);
    const double begin = now_s();
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0) die_of_file(path);
    for (size_t done = 0, n; done < bytes; done += n) {
        const ssize_t written = write(fd, piece, bytes - done < PIECE ? bytes - done : PIECE);
        if (written <= 0) die_of_file(path);
        n = (size_t)written;
    }
    if (fsync(fd)) die_of_file(path);
    close(fd);
    const double s = now_s() - begin;
    unlink(path);
    return s;
}

/* Work for the processor between two saves. */
static double step_s(rw_tape *t, rw_tensor *w)
{
    const double begin = now_s();
    rw_tensor *x = w;
    for (int i = 0; i < 4; i++) x = rw_linear(t, x, w, RW_NONE);
    rw_item(t, rw_sum(t, x, RW_ALL_AXES, false));
    rw_tape_reset(t);
    return now_s() - begin;
}

static double steps_s(rw_tape *t, rw_tensor *w, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += step_s(t, w);
    return s / n;
}

static void round_of(struct times *x, int i, rw_context *ctx, rw_tape *t, rw_tensor *w, rw_checkpoint *ck,
                     size_t bytes)
{
    x->plain[i] = plain_s(bytes);
    x->copy[i] = copy_s(bytes);
    x->quiet[i] = steps_s(t, w, 8);
    double begin = now_s();
    if (rw_checkpoint_save(ck, (uint64_t)i, NULL, 0)) die(ctx, "saving");
    x->call[i] = now_s() - begin;
    if (rw_checkpoint_wait(ck)) die(ctx, "writing");
    x->save[i] = now_s() - begin;
    if (rw_checkpoint_save(ck, (uint64_t)i, NULL, 0)) die(ctx, "saving");
    x->beside[i] = steps_s(t, w, 8);
    if (rw_checkpoint_wait(ck)) die(ctx, "writing");
}

int main(int argc, char **argv)
{
    const int rounds = argc > 2 ? figure_integer(argv[2], 1, ROUNDS_MAX) : 5;
    const size_t bytes = (size_t)(argc > 3 ? figure_integer(argv[3], 1, 1 << 20) : 1000) * 1000000;
    if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX || bytes < 1000000)
        return fprintf(stderr, "checkpoint_save FOLDER [ROUNDS [MEGABYTES]]\n"), 2;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    rw_checkpoint *ck = NULL;
    if (rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU }) || rw_tape_create(&t, ctx))
        die(ctx, "creating a context");
    for (int k = 0; k < PARAMS; k++) { /* a third each: parameters and two moments */
        char name[8];
        snprintf(name, sizeof name, "w%d", k);
        rw_init_normal(rw_param(ctx, name, RW_F32, RW_SHAPE((int64_t)(bytes / (3 * 4 * PARAMS)))), 0, 0.02);
    }
    rw_tensor *const w = rw_buffer(ctx, "square", RW_F32, RW_SHAPE(SIDE, SIDE));
    rw_adamw_create(&opt, ctx, NULL);
    make_own(argv[1]);
    const rw_checkpoint_params params = { .folder = own, .optimizer = opt, .keep = 1 };
    if (rw_checkpoint_create(&ck, ctx, &params)) die(ctx, argv[1]);
    /* allocates the copy's memory */
    if (rw_checkpoint_save(ck, 0, NULL, 0) || rw_checkpoint_wait(ck)) die(ctx, argv[1]);
    struct times x;
    for (int i = 0; i < rounds; i++) round_of(&x, i, ctx, t, w, ck, bytes);
    const double plain = median_of(x.plain, rounds), save = median_of(x.save, rounds);
    printf("# %zu MB: %.0f MB/s of the disk, %.0f MB/s of a save\n", bytes / 1000000, (double)bytes / plain / 1e6,
           (double)bytes / save / 1e6);
    figure_at_least("speed of a save over the disk's own", plain / save, "times", 0.8);
    printf("the call that saves, over a copy in memory, %.3f times, for comparison\n",
           median_of(x.call, rounds) / median_of(x.copy, rounds));
    printf("step time while a file is written, %.3f times, for comparison\n",
           median_of(x.beside, rounds) / median_of(x.quiet, rounds));
    rw_checkpoint_destroy(&ck);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return answer_end("checkpoint_save", 0);
}
