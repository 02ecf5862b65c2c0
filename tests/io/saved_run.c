/* A run that is saved and loaded, for the suites of checkpoints. */
#include "io/saved_run.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char folder[96];

static char dir[64];

void folder_open(void)
{
    const char *const tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.40s/rewind-resume-XXXXXX", tmp ? tmp : P_tmpdir);
    cr_assert_not_null(mkdtemp(dir));
    snprintf(folder, sizeof folder, "%s/run", dir);
}

/* Sorted names of the files in an existing folder, separated by blanks. */
const char *names_in(const char *where)
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

void empty_folder(const char *where)
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

void folder_close(void)
{
    empty_folder(folder);
    cr_assert_eq(rmdir(dir), 0, "something was left beside the folder");
}

unsigned char *file_get(const char *path, size_t *ret_bytes)
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

void file_put(const char *path, const void *data, size_t bytes)
{
    FILE *const f = fopen(path, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

const char *file_of(int number, int step)
{
    static char path[2][160];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof *path, "%s/%06d-step%d.safetensors", folder, number, step);
    return path[turn];
}

/* ---- a run ---- */

const struct way alone = { "none", false, 1, NULL };

const rw_lr_schedule planned = {
    .kind = RW_LR_COSINE, .lr = 0.02, .min_lr = 1e-3 / 3, .warmup = 3, .total = 101, .every = 1, .factor = 0.1
};
rw_lr_schedule schedule;

int kind;

static rw_status make_optimizer(struct world *w)
{
    if (kind == 1) return rw_sgd_create(&w->opt, w->b.ctx, &(rw_sgd_params){ .momentum = 0.9, .dampening = 0.5 });
    if (kind == 2) return rw_lion_create(&w->opt, w->b.ctx, NULL);
    if (kind == 3) return rw_adam_create(&w->opt, w->b.ctx, &(rw_adam_params){ .weight_decay = 0.1 });
    if (kind == 4) return rw_sgd_create(&w->opt, w->b.ctx, NULL);
    return rw_adamw_create(&w->opt, w->b.ctx, &(rw_adamw_params){ .lr = 0.5 });
}

struct world world_open(rw_dtype dtype, const struct way *how)
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
    cr_assert_eq(rw_weight_average_create(&w.average, w.b.ctx, 0.75), RW_OK);
    const rw_checkpoint_params params = {
        .folder = folder, .optimizer = w.opt, .average = w.average, .schedule = &schedule, .keep = 2
    };
    cr_assert_eq(rw_checkpoint_create(&w.ck, w.b.ctx, &params), RW_OK);
    return w;
}

void world_close(struct world *w)
{
    rw_weight_average_destroy(&w->average);
    rw_optimizer_destroy(&w->opt);
    rw_checkpoint_destroy(&w->ck);
    fixture_close(&w->b);
}

rw_checkpoint_found world_load(struct world *w)
{
    rw_checkpoint_found found;
    cr_assert_eq(rw_checkpoint_load(w->ck, &found), RW_OK, "%s", rw_error_message(w->b.ctx));
    w->step = found.step;
    return found;
}

void world_save(struct world *w)
{
    const uint64_t mark = w->step * 3;
    cr_assert_eq(rw_checkpoint_save(w->ck, w->step, &mark, sizeof mark), RW_OK, "%s", rw_error_message(w->b.ctx));
}

/* A running mean of a parameter, and a loss with dropout. */
static rw_tensor *world_record(struct world *w)
{
    rw_tape *const t = w->b.t;
    rw_assign(t, w->mean, rw_add(t, rw_scale(t, w->mean, 0.9), rw_scale(t, w->net.gain[0], 0.1)));
    return net_loss(&w->net, t, test_device() == RW_DEVICE_CPU ? 24 : 8, 5);
}

/* The loop determines the current rate and policies, and writes a parameter before one of the steps. */
void world_step_begins(struct world *w)
{
    const float three[48] = { 3 };
    if (w->step % 5 == 0) rw_optimizer_set_lr(w->opt, rw_lr_schedule_rate(&schedule, w->step));
    if (w->step == 4 && !w->written)
        cr_assert_eq(rw_write(w->net.shift[1], three, rw_tensor_bytes(w->net.shift[1])), RW_OK);
    w->written = false;
}

void world_train(struct world *w, const struct way *how, uint64_t to)
{
    rw_graph *g = NULL;
    for (; w->step < to; w->step++) {
        world_step_begins(w);
        if (how->graph && !g)
            cr_assert_eq(
                rw_graph_create(&g, w->b.t, world_record(w),
                                &(rw_graph_params){ { rw_record_clip(1), rw_record_update(w->opt) } }),
                RW_OK);
        if (g) {
            cr_assert_eq(audited_launch(g, w->b.t), RW_OK, "%s", rw_error_message(w->b.ctx));
            cr_assert_eq(rw_weight_average_step(w->average), RW_OK);
            continue;
        }
        rw_tape_reset(w->b.t);
        rw_zero_grad(w->b.ctx);
        cr_assert_eq(rw_backward(w->b.t, world_record(w)), RW_OK, "%s", rw_error_message(w->b.ctx));
        cr_assert_eq(rw_clip_grad_norm(w->b.ctx, 1, NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(w->opt), RW_OK, "%s", rw_error_message(w->b.ctx));
        cr_assert_eq(rw_weight_average_step(w->average), RW_OK);
    }
    rw_graph_destroy(&g);
    rw_tape_reset(w->b.t);
}

/* A few steps of a run with 2 MB to save, so that most kills happen while a file is being written. */
struct world large_open(void)
{
    struct world w = world_open(RW_F32, &alone);
    rw_tensor *const ballast = rw_buffer(w.b.ctx, "ballast", RW_F32, RW_SHAPE(1 << 19));
    cr_assert_eq(rw_init_normal(ballast, 0, 1), RW_OK);
    world_load(&w);
    return w;
}

/* Two small files; the test damages the newer one. */
struct world small_open(void)
{
    struct world w = { .b = fixture_open(3, 1) };
    rw_tensor *const x = rw_param(w.b.ctx, "x", RW_BF16, RW_SHAPE(3));
    cr_assert_eq(rw_init_constant(x, 1), RW_OK);
    cr_assert_eq(rw_adamw_create(&w.opt, w.b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_checkpoint_create(&w.ck, w.b.ctx, &(rw_checkpoint_params){ .folder = folder, .optimizer = w.opt }),
                 RW_OK);
    return w;
}

rw_tensor *x_of(const struct world *w)
{
    return rw_param_find(w->b.ctx, "x");
}

void put_two(struct world *w)
{
    w->step = 1;
    world_save(w);
    cr_assert_eq(rw_init_constant(x_of(w), 2), RW_OK);
    w->step = 2;
    world_save(w);
    cr_assert_eq(rw_checkpoint_wait(w->ck), RW_OK);
}

void expect_x(const struct world *w, double want)
{
    uint16_t x[3];
    cr_assert_eq(rw_read(NULL, x_of(w), x, sizeof x), RW_OK);
    cr_assert_eq(x[2], want == 1 ? 0x3f80 : want == 2 ? 0x4000 : 0x4040);
}
