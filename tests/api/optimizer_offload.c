/*
 * Offloaded optimizer states: in a file, on CUDA also in pinned memory. Parameters and saved files have the same bytes
 * as with states on the device; memory is counted where it is; unsupported combinations are refused when the optimizer
 * is created. Disk failures: run/file_failures.c.
 */
#include "api/optimizer.h"
#include "base/alloc.h"
#include "record/context.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <rewind/rewind.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 7, KINDS = 7, LONG = 5003, WINDOW = 64 << 10 };
enum { NARROW, WIDE, IN_A_FILE };

static char folder[64];

static void make_folder(void)
{
    strcpy(folder, "/tmp/rewind-away-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static void remove_folder(void)
{
    cr_assert_eq(rmdir(folder), 0, "something was left in %s", folder);
}

TestSuite(optimizer_offload, .init = make_folder, .fini = remove_folder);

static rw_state_offload in_a_file(void)
{
    return (rw_state_offload){ .place = RW_STATE_FILE, .path = folder, .window = WINDOW };
}

/* Offloaded, with the smallest window: the long parameters are copied in several blocks. */
static rw_state_offload outside(void)
{
    const bool cpu = test_device() == RW_DEVICE_CPU;
    return cpu ? in_a_file() : (rw_state_offload){ .place = RW_STATE_HOST, .window = WINDOW };
}

/* Parameters of every type: some longer than a slot, one without elements, and one whose gradient stays clear. */
struct zoo {
    struct fixture b;
    rw_tensor *w[N], *idle;
    rw_optimizer *opt;
};

/* One optimizer of each kind, by number, with the given offload of its states. */
static rw_status make_optimizer(struct zoo *z, int kind, rw_state_offload s)
{
    rw_context *const ctx = z->b.ctx;
    switch (kind) {
    case 0:
        return rw_adamw_create(&z->opt, ctx, &(rw_adamw_params){ .lr = 0.03, .weight_decay = 0.1, .states = s });
    case 1: return rw_adam_create(&z->opt, ctx, &(rw_adam_params){ .weight_decay = 0.1, .states = s });
    case 2: return rw_sgd_create(&z->opt, ctx, &(rw_sgd_params){ .momentum = 0.9, .nesterov = true, .states = s });
    case 3: return rw_sgd_create(&z->opt, ctx, &(rw_sgd_params){ .lr = 0.01, .states = s });
    case 4: return rw_lion_create(&z->opt, ctx, &(rw_lion_params){ .lr = 0.01, .states = s });
    case 5:
        return rw_adamw_create(&z->opt, ctx,
                               &(rw_adamw_params){ .lr = 0.03, .stochastic_rounding = true, .states = s });
    default: return rw_adamw_create(&z->opt, ctx, &(rw_adamw_params){ .lr = 0.03, .moments = RW_BF16, .states = s });
    }
}

static struct zoo zoo_without(int threads)
{
    static const rw_dtype dtypes[N] = { RW_F32, RW_BF16, RW_F16, RW_F64, RW_F32, RW_BF16, RW_F32 };
    struct zoo z = { .b = fixture_open(3, threads) };
    for (int k = 0; k < N; k++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", k);
        const rw_shape shape = k == 6 ? RW_SHAPE(0) : k < 4 ? RW_SHAPE(7, 5 + k) : RW_SHAPE(LONG);
        z.w[k] = rw_param(z.b.ctx, name, dtypes[k], k == 3 ? RW_SHAPE(3, LONG / 4) : shape);
        cr_assert_eq(rw_init_normal(z.w[k], 0, 1), RW_OK);
    }
    z.idle = rw_param(z.b.ctx, "idle", RW_F16, RW_SHAPE(3, 3));
    cr_assert_eq(rw_init_normal(z.idle, 0, 1), RW_OK);
    return z;
}

static struct zoo zoo_open(int kind, rw_state_offload s, int threads)
{
    struct zoo z = zoo_without(threads);
    cr_assert_eq(make_optimizer(&z, kind, s), RW_OK, "%s", rw_error_message(z.b.ctx));
    return z;
}

static void zoo_close(struct zoo *z)
{
    rw_optimizer_destroy(&z->opt);
    fixture_close(&z->b);
}

/* A sum of cubes of all parameters. Every other step omits one, whose gradient is then clear. */
static rw_tensor *zoo_loss(struct zoo *z, int step)
{
    rw_tape *const t = z->b.t;
    rw_tensor *sum = NULL;
    for (int k = 0; k < N; k++) {
        if (k == 1 && step % 2) continue;
        rw_tensor *const x = rw_cast(t, z->w[k], RW_F32);
        rw_tensor *const y = rw_sum(t, rw_mul(t, x, rw_mul(t, x, x)), RW_ALL_AXES, false);
        sum = sum ? rw_add(t, sum, y) : y;
    }
    return sum;
}

static void zoo_backward(struct zoo *z, int step)
{
    rw_zero_grad(z->b.ctx);
    cr_assert_eq(rw_backward(z->b.t, zoo_loss(z, step)), RW_OK, "%s", rw_error_message(z->b.ctx));
    rw_tape_reset(z->b.t);
}

/* Between two steps a parameter with a master copy is written. */
static void zoo_train(struct zoo *z, int from, int to)
{
    const uint16_t some[7 * 7] = { 0x3c00, 0x4000 };
    for (int step = from; step < to; step++) {
        if (step == 2) cr_assert_eq(rw_write(z->w[2], some, rw_tensor_bytes(z->w[2])), RW_OK);
        zoo_backward(z, step);
        cr_assert_eq(rw_optimizer_step(z->opt), RW_OK, "%s", rw_error_message(z->b.ctx));
    }
}

static void expect_same(const struct zoo *a, const struct zoo *b, const char *what, int kind)
{
    size_t n, m;
    unsigned char *const x = all_parameters(a->b.ctx, &n), *const y = all_parameters(b->b.ctx, &m);
    cr_assert_eq(n, m);
    cr_assert_eq(first_difference(x, y, n), -1, "%s, kind %d: byte %ld", what, kind, first_difference(x, y, n));
    free(x), free(y);
}

static rw_memory stats(const struct zoo *z)
{
    rw_memory m;
    cr_assert_eq(rw_memory_stats(z->b.ctx, &m), RW_OK);
    return m;
}

Test(optimizer_offload, parameters_are_the_same_bytes_as_with_states_that_stay)
{
    const int steps = test_device() == RW_DEVICE_CPU ? 5 : 3;
    for (int kind = 0; kind < KINDS; kind++) {
        struct zoo stay = zoo_open(kind, (rw_state_offload){ 0 }, 1);
        zoo_train(&stay, 0, steps);
        for (int way = 0; way < 3; way++) {
            rw_state_offload s = way == IN_A_FILE ? in_a_file() : outside();
            if (way == WIDE) s.window = 0;
            struct zoo go = zoo_open(kind, s, way == WIDE ? 1 : 3);
            zoo_train(&go, 0, steps);
            static const char *const names[] = { "in many blocks", "in one block", "in a file" };
            expect_same(&stay, &go, names[way], kind);
            if (way == IN_A_FILE) cr_assert(stats(&go).files && !stats(&go).host);
            zoo_close(&go);
        }
        zoo_close(&stay);
    }
}

/* Sums of nonnegative numbers, at most LONG of them, in another order. */
static void expect_same_sums(const struct zoo *a, const struct zoo *b)
{
    double x[2][N + 1][RW_UPDATE_SUMS];
    for (int i = 0; i < 2; i++) {
        uint64_t seen = 0;
        bool known = false;
        cr_assert_eq(rw_optimizer_members(i ? b->opt : a->opt), N + 1);
        cr_assert_eq(rw_optimizer_read_sums(i ? b->opt : a->opt, x[i], &seen, &known), RW_OK);
        cr_assert(known);
    }
    for (int k = 0; k <= N; k++)
        for (int j = 0; j < RW_UPDATE_SUMS; j++)
            cr_assert_leq(fabs(x[0][k][j] - x[1][k][j]), LONG * 0x1p-52 * x[0][k][j], "sum %d of parameter %d: %g, %g",
                          j, k, x[0][k][j], x[1][k][j]);
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_optimizer_settle(i ? b->opt : a->opt), RW_OK);
    for (size_t k = 0; k <= N; k++)
        cr_assert_eq(rw_optimizer_kept(a->opt, k).step, rw_optimizer_kept(b->opt, k).step, "parameter %zu", k);
    cr_assert_eq(rw_optimizer_kept(b->opt, 4).step, 4, "one was left out");
    cr_assert_eq(x[1][4][RW_SUM_ELEMENTS], LONG);
    cr_assert_gt(x[1][4][RW_SUM_CHANGE], 0);
}

/* A step that a scaler skips counts for no block, and a monitor's statistics over the blocks are those of the whole. */
Test(optimizer_offload, scalers_and_monitors_see_what_they_see_of_states_that_stay)
{
    struct zoo z[2] = { zoo_open(0, (rw_state_offload){ 0 }, 2), zoo_open(0, outside(), 2) };
    for (int i = 0; i < 2; i++) {
        rw_scaler *s = NULL;
        rw_monitor *m = NULL;
        cr_assert_eq(rw_scaler_create(&s, z[i].b.ctx, &(rw_scaler_params){ .init_scale = 8, .name = "scale" }), RW_OK);
        cr_assert_eq(rw_monitor_create(&m, z[i].b.ctx, NULL), RW_OK);
        cr_assert_eq(rw_monitor_watch(m, &(rw_monitor_sources){ .optimizer = z[i].opt }), RW_OK, "%s",
                     rw_error_message(z[i].b.ctx));
        for (int step = 0; step < 4; step++) {
            const float huge = step == 1 ? INFINITY : 1;
            rw_tensor *const f = rw_input(z[i].b.t, RW_F32, RW_SCALAR, &huge, sizeof huge);
            rw_zero_grad(z[i].b.ctx);
            cr_assert_eq(rw_scaler_backward(s, z[i].b.t, rw_mul(z[i].b.t, zoo_loss(&z[i], step), f)), RW_OK);
            rw_tape_reset(z[i].b.t);
            cr_assert_eq(rw_scaler_step(s, z[i].opt), RW_OK, "%s", rw_error_message(z[i].b.ctx));
            cr_assert_eq(rw_scaler_update(s), RW_OK);
        }
        cr_assert_eq(rw_optimizer_step(z[i].opt), RW_OK, "gradients are there still");
        rw_monitor_destroy(&m);
        rw_scaler_destroy(&s);
    }
    expect_same_sums(&z[0], &z[1]);
    expect_same(&z[0], &z[1], "with a scaler", 0);
    zoo_close(&z[0]);
    zoo_close(&z[1]);
}

Test(optimizer_offload, memory_is_counted_where_it_is)
{
    struct zoo z = zoo_open(0, (rw_state_offload){ 0 }, 1);
    const size_t all = stats(&z).optimizer;
    cr_assert_eq(stats(&z).host + stats(&z).files, 0);
    zoo_close(&z);
    z = zoo_open(0, outside(), 1);
    const rw_memory away = stats(&z);
    const size_t here = test_device() == RW_DEVICE_CPU ? away.files : away.host;
    cr_assert_eq(away.host + away.files, here);
    cr_assert_gt(all, 4 * WINDOW / 2, "%zu bytes", all);
    cr_assert_leq(away.optimizer, WINDOW + 4096 + (test_device() == RW_DEVICE_CPU ? 0 : 4096), "%zu", away.optimizer);
    cr_assert_geq(here, 2 * LONG * 5 * sizeof(float)); /* the moments of the two long ones, one master copy */
    cr_assert_leq(here, all + 4096 * 60, "%zu bytes of %zu, and the rests of pages", here, all);
    rw_optimizer_destroy(&z.opt);
    cr_assert_eq(stats(&z).host + stats(&z).files + stats(&z).optimizer, 0);
    zoo_close(&z);
    z = zoo_open(3, outside(), 1); /* plain SGD: only master copies */
    cr_assert_leq(stats(&z).host + stats(&z).files, LONG * 4 + 8 * 4096);
    zoo_close(&z);
}

/* If states of several widths are split, each block starts at a page that the one before it has filled: for 2,048
   elements two bfloat16 moments take a page each, the master copy two. */
Test(optimizer_offload, blocks_of_several_widths_waste_no_memory)
{
    struct zoo z = { .b = fixture_open(3, 1) };
    const int64_t n = 6 * 2048;
    cr_assert_not_null(rw_param(z.b.ctx, "w", RW_BF16, RW_SHAPE(n)));
    cr_assert_eq(make_optimizer(&z, 6, outside()), RW_OK, "%s", rw_error_message(z.b.ctx));
    cr_assert_eq(stats(&z).host + stats(&z).files, (size_t)n * (2 + 2 + 4));
    zoo_close(&z);
}

/* On a CPU, host memory is the device's memory. */
Test(optimizer_offload, host_memory_on_a_cpu_is_where_states_are)
{
    if (test_device() != RW_DEVICE_CPU) return;
    const rw_state_offload on_host = { .place = RW_STATE_HOST };
    struct zoo a = zoo_open(0, (rw_state_offload){ 0 }, 1), b = zoo_open(0, on_host, 1);
    cr_assert_eq(stats(&a).optimizer, stats(&b).optimizer);
    cr_assert_eq(stats(&b).host, 0);
    zoo_close(&a);
    zoo_close(&b);
}

/* ---- after a restart ---- */

static rw_checkpoint *checkpoint_of(struct zoo *z, const char *where)
{
    rw_checkpoint *ck = NULL;
    cr_assert_eq(rw_checkpoint_create(&ck, z->b.ctx, &(rw_checkpoint_params){ .folder = where, .optimizer = z->opt }),
                 RW_OK, "%s", rw_error_message(z->b.ctx));
    return ck;
}

static unsigned char *file_of(const char *where, size_t *ret_bytes)
{
    char path[160];
    snprintf(path, sizeof path, "%s/000001-step3.safetensors", where);
    FILE *const f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    unsigned char *const data = malloc(1 << 20);
    *ret_bytes = fread(data, 1, 1 << 20, f);
    fclose(f);
    remove(path);
    return data;
}

static void save(struct zoo *z, const char *where)
{
    rw_checkpoint *ck = checkpoint_of(z, where);
    cr_assert_eq(rw_checkpoint_save(ck, 3, NULL, 0), RW_OK, "%s", rw_error_message(z->b.ctx));
    cr_assert_eq(rw_checkpoint_wait(ck), RW_OK, "%s", rw_error_message(z->b.ctx));
    rw_checkpoint_destroy(&ck);
}

/* A run continues with offloaded states from a checkpoint of states on the device, and vice versa. */
Test(optimizer_offload, checkpoints_are_the_same_files_and_can_be_exchanged)
{
    const int kinds[] = { 0, 6, 2, 5 };
    char where[2][80];
    for (int i = 0; i < 2; i++) snprintf(where[i], sizeof *where, "%s/run%d", folder, i);
    for (size_t k = 0; k < (test_device() == RW_DEVICE_CPU ? 4 : 2); k++) {
        struct zoo z[2] = { zoo_open(kinds[k], (rw_state_offload){ 0 }, 1), zoo_open(kinds[k], outside(), 1) };
        struct zoo next[2] = { zoo_open(kinds[k], outside(), 1), zoo_open(kinds[k], (rw_state_offload){ 0 }, 1) };
        size_t n[2];
        for (int i = 0; i < 2; i++) {
            zoo_train(&z[i], 0, 3);
            save(&z[i], where[i]);
            rw_checkpoint *ck = checkpoint_of(&next[i], where[i]);
            rw_checkpoint_found found;
            cr_assert_eq(rw_checkpoint_load(ck, &found), RW_OK, "%s", rw_error_message(next[i].b.ctx));
            cr_assert(found.found);
            rw_checkpoint_destroy(&ck);
            zoo_train(&z[i], 3, 5);
            zoo_train(&next[i], 3, 5);
            expect_same(&z[i], &next[i], "after a restart", kinds[k]);
            zoo_close(&z[i]);
            zoo_close(&next[i]);
        }
        unsigned char *const a = file_of(where[0], &n[0]), *const b = file_of(where[1], &n[1]);
        cr_assert_eq(n[0], n[1]);
        cr_assert_eq(first_difference(a, b, n[0]), -1, "kind %d", kinds[k]);
        free(a), free(b);
        for (int i = 0; i < 2; i++) {
            char lock[200];
            snprintf(lock, sizeof lock, "%s/.lock", where[i]);
            remove(lock);
            cr_assert_eq(rmdir(where[i]), 0);
        }
    }
}

/* ---- what is refused ---- */

static void expect_refused(rw_state_offload s, rw_status want, const char *text)
{
    struct zoo z = zoo_without(1);
    cr_assert_eq(make_optimizer(&z, 0, s), want, "%s", rw_error_message(z.b.ctx));
    cr_assert_null(z.opt);
    cr_assert(strstr(rw_error_message(z.b.ctx), text) && strstr(rw_error_message(z.b.ctx), "rw_adamw_create"), "%s",
              rw_error_message(z.b.ctx));
    cr_assert_eq(stats(&z).optimizer + stats(&z).host + stats(&z).files, 0);
    zoo_close(&z);
}

Test(optimizer_offload, invalid_settings_are_refused_when_the_optimizer_is_created)
{
    rw_state_offload s = outside();
    s.window = WINDOW - 1;
    expect_refused(s, RW_ERR_ARGUMENT, "(states.window): expected 0 (the default) or at least 65536 bytes, got 65535");
    expect_refused((rw_state_offload){ .place = (rw_state_place)3 }, RW_ERR_ARGUMENT,
            "(states.place): expected 0 to 2, got 3");
    expect_refused((rw_state_offload){ .path = folder }, RW_ERR_ARGUMENT, folder);
    expect_refused((rw_state_offload){ .place = RW_STATE_FILE }, RW_ERR_ARGUMENT,
                   "(states.path): expected an existing folder");
    expect_refused((rw_state_offload){ .place = RW_STATE_FILE, .path = "/no/such/folder" }, RW_ERR_IO,
                   "/no/such/folder");
    expect_refused((rw_state_offload){ .place = RW_STATE_FILE, .path = "/proc/self" }, RW_ERR_IO, "/proc/");
}

/* ---- graphs ---- */

static void zoo_launch(struct zoo *z, rw_graph *g, int times)
{
    for (int i = 0; i < times; i++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(z->b.ctx));
}

static void zoo_calls(struct zoo *z, int times)
{
    for (int i = 0; i < times; i++) {
        zoo_backward(z, 0);
        cr_assert_eq(rw_optimizer_step(z->opt), RW_OK, "%s", rw_error_message(z->b.ctx));
    }
}

/* States in pinned memory: the first launch is queued, the later ones are captured with their copies. Between launches
   there are updates by calls, a checkpoint that is saved and loaded, and another graph. */
Test(optimizer_offload, a_graph_steps_with_states_in_pinned_memory)
{
    const int kinds[] = { 0, 6, 2 };
    char where[80], lock[120];
    snprintf(where, sizeof where, "%s/run", folder);
    snprintf(lock, sizeof lock, "%s/.lock", where);
    if (test_device() == RW_DEVICE_CPU) return;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct zoo a = zoo_open(kinds[k], (rw_state_offload){ 0 }, 1), z = zoo_open(kinds[k], outside(), 1);
        const rw_graph_params clipped = { { rw_record_clip(1e3), rw_record_update(z.opt) } },
                              plain = { { rw_record_update(z.opt) } };
        rw_graph *g = NULL, *h = NULL;
        rw_tape *const t = z.b.t;
        rw_tape *other = NULL, *third = NULL;
        size_t n;
        zoo_calls(&a, 10);
        cr_assert_eq(rw_optimizer_step(a.opt), RW_OK); /* with the gradients of the last step */
        cr_assert_eq(rw_tape_create(&other, z.b.ctx), RW_OK);
        cr_assert_eq(rw_tape_create(&third, z.b.ctx), RW_OK);
        cr_assert_eq(rw_graph_create(&g, t, zoo_loss(&z, 0), &plain), RW_OK, "%s", rw_error_message(z.b.ctx));
        z.b.t = other;
        cr_assert_eq(rw_graph_create(&h, other, zoo_loss(&z, 0), &clipped), RW_OK, "%s", rw_error_message(z.b.ctx));
        z.b.t = third;
        zoo_launch(&z, g, 3);
        zoo_calls(&z, 2);
        zoo_launch(&z, h, 2);
        zoo_launch(&z, g, 1);
        save(&z, where);
        rw_tape_reset(third);
        zoo_launch(&z, g, 2);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK, "%s", rw_error_message(z.b.ctx));
        expect_same(&a, &z, "in graphs", kinds[k]);
        rw_graph_destroy(&g);
        rw_graph_destroy(&h);
        free(file_of(where, &n));
        remove(lock);
        cr_assert_eq(rmdir(where), 0);
        z.b.t = t;
        rw_tape_destroy(&other);
        rw_tape_destroy(&third);
        zoo_close(&a);
        zoo_close(&z);
    }
}

/* Memory exhausted during a launch, the first or a captured one, leaves consistent states. */
Test(optimizer_offload, a_graph_without_memory_can_be_launched_again)
{
    if (test_device() == RW_DEVICE_CPU) return;
    struct zoo a = zoo_open(0, (rw_state_offload){ 0 }, 1), z = zoo_open(0, outside(), 1);
    rw_graph *g = NULL;
    int failed = 0, launched = 0;
    cr_assert_eq(rw_graph_create(&g, z.b.t, zoo_loss(&z, 0), &(rw_graph_params){ { rw_record_update(z.opt) } }), RW_OK);
    for (int step = 0; step < 3; step++)
        for (uint64_t i = 1;; i++) {
            rw_alloc_fail_from(i);
            const rw_status status = rw_graph_launch(g);
            rw_alloc_fail_at(0);
            if (!status) {
                launched++;
                break;
            }
            cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(z.b.ctx));
            rw_error_clear(z.b.ctx);
            failed++;
        }
    cr_assert_gt(failed, 0);
    zoo_calls(&a, launched);
    expect_same(&a, &z, "in graphs without memory", 0);
    rw_graph_destroy(&g);
    zoo_close(&a);
    zoo_close(&z);
}

static void load(struct zoo *z, const char *where)
{
    rw_checkpoint *ck = checkpoint_of(z, where);
    rw_checkpoint_found found;
    cr_assert_eq(rw_checkpoint_load(ck, &found), RW_OK, "%s", rw_error_message(z->b.ctx));
    cr_assert(found.found);
    rw_checkpoint_destroy(&ck);
}

/* A captured launch on a tape of its own, without the memory for it. It is then unknown whether the states' store has
   failed. */
static void fail_once(struct zoo *z)
{
    rw_tape *const t = z->b.t;
    rw_graph *h = NULL;
    int failed = 0;
    cr_assert_eq(rw_tape_create(&z->b.t, z->b.ctx), RW_OK);
    cr_assert_eq(rw_graph_create(&h, z->b.t, zoo_loss(z, 0),
                                 &(rw_graph_params){ { rw_record_update(z->opt) } }), RW_OK);
    for (uint64_t i = 1;; i++) {
        rw_alloc_fail_from(i);
        const rw_status status = rw_graph_launch(h);
        rw_alloc_fail_at(0);
        if (!status) break;
        rw_error_clear(z->b.ctx);
        failed++;
    }
    cr_assert_gt(failed, 0);
    rw_graph_destroy(&h);
    rw_tape_destroy(&z->b.t);
    z->b.t = t;
}

/* After a failed update a checkpoint is loaded into a new store: a capture with the address of the old store is
   outdated, and so is the next one after another failure. */
Test(optimizer_offload, a_graph_is_captured_again_when_its_states_have_moved)
{
    char where[80], lock[120];
    size_t n;
    snprintf(where, sizeof where, "%s/run", folder);
    snprintf(lock, sizeof lock, "%s/.lock", where);
    if (test_device() == RW_DEVICE_CPU) return;
    struct zoo a = zoo_open(0, (rw_state_offload){ 0 }, 1), z = zoo_open(0, outside(), 1);
    rw_graph *g = NULL;
    cr_assert_eq(rw_graph_create(&g, z.b.t, zoo_loss(&z, 0), &(rw_graph_params){ { rw_record_update(z.opt) } }), RW_OK);
    zoo_launch(&z, g, 3);
    save(&z, where);
    for (int again = 0; again < 2; again++) {
        const void *const store = rw_optimizer_store(z.opt);
        fail_once(&z);
        load(&z, where);
        cr_assert_neq(rw_optimizer_store(z.opt), store, "nothing was replaced");
        zoo_launch(&z, g, 3);
    }
    zoo_calls(&a, 6);
    expect_same(&a, &z, "with states that have moved", 0);
    rw_graph_destroy(&g);
    free(file_of(where, &n));
    remove(lock);
    cr_assert_eq(rmdir(where), 0);
    zoo_close(&a);
    zoo_close(&z);
}

/* A scaler skips the second launch. */
Test(optimizer_offload, a_graph_with_a_scaler_leaves_states_as_they_were)
{
    if (test_device() == RW_DEVICE_CPU) return;
    struct zoo z[2] = { zoo_open(0, (rw_state_offload){ 0 }, 2), zoo_open(0, outside(), 2) };
    for (int i = 0; i < 2; i++) {
        const float factor[] = { 1, INFINITY, 1, 1 };
        rw_scaler *s = NULL;
        rw_graph *g = NULL;
        cr_assert_eq(rw_scaler_create(&s, z[i].b.ctx, &(rw_scaler_params){ .init_scale = 8, .name = "scale" }), RW_OK);
        rw_tensor *const f = rw_input(z[i].b.t, RW_F32, RW_SCALAR, factor, sizeof *factor);
        const rw_graph_params p = { { rw_record_scaler(s), rw_record_update(z[i].opt) } };
        cr_assert_eq(rw_graph_create(&g, z[i].b.t, rw_mul(z[i].b.t, zoo_loss(&z[i], 0), f), &p), RW_OK, "%s",
                     rw_error_message(z[i].b.ctx));
        for (int step = 0; step < 4; step++) {
            cr_assert_eq(rw_input_write(f, &factor[step], sizeof *factor), RW_OK);
            zoo_launch(&z[i], g, 1);
        }
        rw_graph_destroy(&g);
        rw_scaler_destroy(&s);
    }
    expect_same(&z[0], &z[1], "in a graph with a scaler", 0);
    zoo_close(&z[0]);
    zoo_close(&z[1]);
}

Test(optimizer_offload, a_graph_refuses_what_it_cannot_step_with_and_leaves_its_gradients_to_it)
{
    struct zoo a = zoo_open(0, outside(), 1), z = zoo_open(0, outside(), 1);
    const bool cpu = test_device() == RW_DEVICE_CPU;
    rw_graph *g = NULL;
    rw_tensor *const loss = zoo_loss(&z, 0);
    for (int inside = cpu ? 0 : 1; inside < 2; inside++) {
        const rw_graph_params p = { { recorded_update(z.opt, inside) } };
        cr_assert_eq(rw_graph_create(&g, z.b.t, loss, &p), RW_ERR_UNSUPPORTED);
        cr_assert(strstr(rw_error_message(z.b.ctx), "rw_optimizer_step() after each launch"));
        cr_assert(strstr(rw_error_message(z.b.ctx), inside ? "the device's memory" : "cannot read files"));
        rw_error_clear(z.b.ctx);
    }
    cr_assert_eq(rw_graph_create(&g, z.b.t, loss, NULL), RW_OK);
    for (int step = 0; step < 3; step++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
        zoo_backward(&a, 0);
        cr_assert_eq(rw_optimizer_step(a.opt), RW_OK);
    }
    expect_same(&a, &z, "after a graph", 0);
    rw_graph_destroy(&g);
    zoo_close(&a);
    zoo_close(&z);
}

/* Law 9. */
Test(optimizer_offload, memory_that_ends_anywhere_is_an_error)
{
    struct zoo z = zoo_without(1);
    cr_assert_eq(make_optimizer(&z, 0, outside()), RW_OK); /* the thread that copies and the tables stay allocated */
    rw_optimizer_destroy(&z.opt);
    int failed = 0;
    for (uint64_t i = 1;; i += 1 + i / 8) {
        const int64_t live = rw_alloc_live();
        rw_alloc_fail_from(i);
        const rw_status status = make_optimizer(&z, 0, outside());
        rw_alloc_fail_at(0);
        if (!status) break;
        cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(z.b.ctx));
        cr_assert_null(z.opt);
        cr_assert_leq(rw_alloc_live(), live, "allocation %d", (int)i);
        rw_error_clear(z.b.ctx);
        cr_assert_eq(stats(&z).optimizer + stats(&z).host + stats(&z).files, 0);
        failed++;
    }
    cr_assert_gt(failed, 10);
    zoo_close(&z);
}
