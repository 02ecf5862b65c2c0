/*
 * Clipping and AdamW as commits of a plan: what they refuse, what a failure leaves, the parameters' versions, and that
 * a graph that ends with them is bit-identical to single calls.
 */
#include "base/alloc.h"
#include "record/context.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <rewind/ops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 5 };

/* Parameters of every type, including a matrix, and one whose gradient stays clear. */
struct zoo {
    struct fixture b;
    rw_tensor *w[N], *idle;
    rw_optimizer *opt;
};

/* Parameters of each type, a long one, one without a gradient, and AdamW. */
static struct zoo zoo_open(void)
{
    static const rw_dtype dtypes[N] = { RW_F32, RW_BF16, RW_F16, RW_F64, RW_F32 };
    const int64_t long_one = test_device() == RW_DEVICE_CPU ? 40003 : 9001; /* more than a block, or a thread's part */
    struct zoo z = { .b = fixture_open(3, 2) };
    for (int k = 0; k < N; k++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", k);
        z.w[k] = rw_param(z.b.ctx, name, dtypes[k], k < 4 ? RW_SHAPE(7, 5 + k) : RW_SHAPE(long_one));
        cr_assert_eq(rw_init_normal(z.w[k], 0, 1), RW_OK);
    }
    z.idle = rw_param(z.b.ctx, "idle", RW_BF16, RW_SHAPE(3, 3));
    cr_assert_eq(rw_init_normal(z.idle, 0, 1), RW_OK);
    cr_assert_eq(rw_adamw_create(&z.opt, z.b.ctx, &(rw_adamw_params){ .lr = 0.03, .weight_decay = 0.1 }), RW_OK);
    return z;
}

static void zoo_close(struct zoo *z)
{
    rw_optimizer_destroy(&z->opt);
    fixture_close(&z->b);
}

static rw_tensor *zoo_loss(struct zoo *z)
{
    rw_tensor *sum = NULL;
    for (int k = 0; k < N; k++) {
        rw_tensor *const x = rw_cast(z->b.t, z->w[k], RW_F32);
        rw_tensor *const y = rw_sum(z->b.t, rw_mul(z->b.t, x, rw_mul(z->b.t, x, x)), RW_ALL_AXES, false);
        sum = sum ? rw_add(z->b.t, sum, y) : y;
    }
    return sum;
}

static void zoo_backward(struct zoo *z)
{
    cr_assert_eq(rw_backward(z->b.t, zoo_loss(z)), RW_OK, "%s", rw_error_message(z->b.ctx));
    rw_tape_reset(z->b.t);
}

static unsigned char *everything(rw_context *ctx, size_t *bytes)
{
    size_t n_p, n_g;
    unsigned char *const p = all_parameters(ctx, &n_p), *const g = all_gradients(ctx, &n_g);
    unsigned char *const both = malloc(n_p + n_g);
    memcpy(both, p, n_p);
    memcpy(both + n_p, g, n_g);
    free(p);
    free(g);
    *bytes = n_p + n_g;
    return both;
}

static void expect_as(rw_context *ctx, const unsigned char *want, const char *what)
{
    size_t bytes;
    unsigned char *const got = everything(ctx, &bytes);
    cr_assert_eq(first_difference(got, want, bytes), -1, "%s: byte %ld", what, first_difference(got, want, bytes));
    free(got);
}

/* ---- what is refused ---- */

static void expect_refused(rw_adamw_params p, const char *text)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    rw_param(b.ctx, "w", RW_F32, RW_SHAPE(3));
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &p), RW_ERR_ARGUMENT, "%s", text);
    cr_assert_null(opt);
    cr_assert(strstr(rw_error_message(b.ctx), text), "%s, not %s", rw_error_message(b.ctx), text);
    fixture_close(&b);
}

Test(updates, refuse_numbers_that_make_no_sense)
{
    expect_refused((rw_adamw_params){ .lr = NAN }, "(lr): expected 0 or more, got nan");
    expect_refused((rw_adamw_params){ .lr = -1 }, "(lr): expected 0 or more, got -1");
    expect_refused((rw_adamw_params){ .lr = INFINITY }, "(lr): expected 0 or more, got inf");
    expect_refused((rw_adamw_params){ .beta1 = 1 }, "(beta1): expected below 1, got 1");
    expect_refused((rw_adamw_params){ .beta1 = NAN }, "(beta1): expected below 1, got nan");
    expect_refused((rw_adamw_params){ .beta2 = 1.5 }, "(beta2): expected below 1, got 1.5");
    expect_refused((rw_adamw_params){ .eps = -1 }, "(eps): expected 0 or more, got -1");
    expect_refused((rw_adamw_params){ .eps = NAN }, "(eps): expected 0 or more, got nan");
    expect_refused((rw_adamw_params){ .weight_decay = NAN }, "(weight_decay): expected a finite number, got nan");
}

/* With a sticky error, or an invalid learning rate, neither parameters nor step counts change. */
Test(updates, do_nothing_while_an_error_is_stuck)
{
    struct zoo a = zoo_open(), z = zoo_open();
    size_t bytes;
    zoo_backward(&a);
    zoo_backward(&z);
    unsigned char *const before = everything(z.b.ctx, &bytes);
    rw_optimizer_set_lr(z.opt, NAN);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_ERR_ARGUMENT);
    cr_assert(strstr(rw_error_message(z.b.ctx),
                     "rw_optimizer_set_lr(lr): expected a finite number of 0 or more, got nan"));
    double norm = 7;
    cr_assert_eq(rw_clip_grad_norm(z.b.ctx, 1e-3, &norm), RW_ERR_ARGUMENT);
    cr_assert_eq(norm, 7);
    rw_error_clear(z.b.ctx);
    expect_as(z.b.ctx, before, "after a step that was refused");
    free(before);
    cr_assert_eq(rw_optimizer_step(a.opt), RW_OK);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_OK, "with the learning rate it had");
    unsigned char *const want = everything(a.b.ctx, &bytes);
    expect_as(z.b.ctx, want, "as if it had never been refused");
    free(want);
    zoo_close(&a);
    zoo_close(&z);
}

/* ---- many parameters, by hand ---- */

/* After one step both moments cancel: every element changes by the learning rate, against its gradient. */
Test(updates, of_more_parameters_than_a_node_takes)
{
    const int many = test_device() == RW_DEVICE_CPU ? 4500 : 130; /* more than one launch takes on CUDA */
    struct fixture b = fixture_open(1, 1);
    rw_tensor **const w = calloc((size_t)many, sizeof *w);
    rw_optimizer *opt = NULL;
    for (int k = 0; k < many; k++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", k);
        w[k] = rw_param(b.ctx, name, RW_F64, k % 2 ? RW_SHAPE(1, 1) : RW_SHAPE(1));
        const double x = k, g = k % 3 ? 2 : -2;
        cr_assert_eq(rw_write(w[k], &x, sizeof x), RW_OK);
        if (k % 5) cr_assert_eq(rw_write(rw_gradient(w[k]), &g, sizeof g), RW_OK);
    }
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 0.25, .weight_decay = 0.5, .eps = 1e-30 }),
                 RW_OK, "%s", rw_error_message(b.ctx));
    double norm;
    const double whole = 2 * sqrt(many - many / 5);
    cr_assert_eq(rw_clip_grad_norm(b.ctx, whole / 4, &norm), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert(fabs(norm - whole) < 1e-12 * whole, "%.17g, not %.17g", norm, whole);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    for (int k = 0; k < many; k++) {
        double x, g;
        cr_assert_eq(rw_read(NULL, w[k], &x, sizeof x), RW_OK);
        cr_assert_eq(rw_read(NULL, rw_gradient(w[k]), &g, sizeof g), RW_OK);
        const double kept = k % 2 ? k * (1 - 0.25 * 0.5) : k, want = k % 5 ? kept - (k % 3 ? 0.25 : -0.25) : k;
        cr_assert(fabs(x - want) < 1e-12 * (1 + want), "parameter %d: %.17g, not %.17g", k, x, want);
        cr_assert(fabs(fabs(g) - (k % 5 ? 0.5 : 0)) < 1e-12, "gradient %d: %.17g", k, g);
    }
    free(w);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* ---- a graph that ends with them ---- */

enum { STEPS = 7 };

/* Launches and single calls mixed, by the bits of `launched`: the optimizer counts both. */
static unsigned char *train(unsigned launched, size_t *bytes)
{
    struct zoo z = zoo_open();
    rw_tape *t = NULL;
    rw_graph *g = NULL;
    cr_assert_eq(rw_tape_create(&t, z.b.ctx), RW_OK);
    struct zoo of_graph = z;
    of_graph.b.t = t;
    const rw_graph_params params = { { rw_record_clip(0.7), rw_record_update(z.opt) } };
    cr_assert_eq(rw_graph_create(&g, t, zoo_loss(&of_graph), &params), RW_OK, "%s", rw_error_message(z.b.ctx));
    for (int s = 0; s < STEPS; s++) {
        rw_optimizer_set_lr(z.opt, 0.03 / (s + 1));
        if (s == 3) cr_assert_eq(rw_init_constant(z.w[1], 0.5), RW_OK); /* its master copy is discarded */
        if (launched >> s & 1) {
            cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(z.b.ctx));
            continue;
        }
        rw_zero_grad(z.b.ctx);
        zoo_backward(&z);
        cr_assert_eq(rw_clip_grad_norm(z.b.ctx, 0.7, NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
    }
    unsigned char *const all = everything(z.b.ctx, bytes);
    rw_graph_destroy(&g);
    rw_tape_destroy(&t);
    zoo_close(&z);
    return all;
}

static void every_mixture(const char *what)
{
    size_t bytes;
    unsigned char *const want = train(0, &bytes);
    static const unsigned mixtures[] = { 0x7e, 0x33, 0x7f, 0x2a };
    const size_t n = test_device() == RW_DEVICE_CPU ? sizeof mixtures / sizeof *mixtures : 2;
    for (size_t i = 0; i < n; i++) {
        unsigned char *const got = train(mixtures[i], &bytes);
        cr_assert_eq(first_difference(got, want, bytes), -1, "%s, launches %x", what, mixtures[i]);
        free(got);
    }
    free(want);
}

Test(updates, in_a_graph_are_the_calls_one_by_one)
{
    static const char *const modes[] = { "0", "1", "digest" };
    for (int i = 0; i < 3; i++) {
        setenv("REWIND_VERIFY", modes[i], 1);
        every_mixture(modes[i]);
    }
    unsetenv("REWIND_VERIFY");
}

/* A mean of the parameters that the step itself assigns: it reads the values before the update. */
Test(updates, follow_assignments_of_the_step)
{
    float mean[2][4];
    for (int graph = 0; graph < 2; graph++) {
        struct fixture b = fixture_open(1, 1);
        rw_optimizer *opt = NULL;
        rw_graph *g = NULL;
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4)), *const m = rw_buffer(b.ctx, "m", RW_F32,
                                                                                             RW_SHAPE(4));
        cr_assert_eq(rw_init_normal(w, 0, 1), RW_OK);
        cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 0.1 }), RW_OK);
        for (int s = 0; s < 3; s++) {
            if (!g) {
                rw_tape_reset(b.t);
                rw_zero_grad(b.ctx);
                rw_assign(b.t, m, w);
                rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, w, rw_add(b.t, w, m)), RW_ALL_AXES, false);
                if (graph)
                    cr_assert_eq(rw_graph_create(&g, b.t, loss,
                                                 &(rw_graph_params){ { rw_record_update(opt) } }), RW_OK);
                else cr_assert_eq(rw_backward(b.t, loss), RW_OK);
            }
            cr_assert_eq(g ? rw_graph_launch(g) : rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
        }
        cr_assert_eq(rw_read(NULL, m, mean[graph], sizeof mean[graph]), RW_OK);
        rw_graph_destroy(&g);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
    cr_assert_eq(memcmp(mean[0], mean[1], sizeof mean[0]), 0);
}

/* ---- failures ---- */

/* The n-th allocation fails, for every n. Objects are created completely or not at all. */
static void expect_whole(struct zoo *z, rw_status (*call)(struct zoo *z), void (*undo)(struct zoo *z))
{
    size_t bytes;
    unsigned char *const before = everything(z->b.ctx, &bytes);
    rw_memory was, is;
    rw_memory_stats(z->b.ctx, &was);
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        rw_alloc_fail_from(n);
        const rw_status status = call(z);
        rw_alloc_fail_at(0);
        if (!status) break;
        failures++;
        cr_assert_eq(status, RW_ERR_MEMORY, "allocation %d: %s", (int)n, rw_error_message(z->b.ctx));
        cr_assert_eq(rw_error_status(z->b.ctx), RW_ERR_MEMORY);
        rw_error_clear(z->b.ctx);
        rw_memory_stats(z->b.ctx, &is);
        cr_assert_eq(is.optimizer, was.optimizer, "allocation %d", (int)n);
        expect_as(z->b.ctx, before, "after a failure");
    }
    cr_assert_gt(failures, 2);
    undo(z);
    free(before);
}

static rw_optimizer *second;
static rw_graph *ending;
static rw_tensor *loss_of_graph;

static rw_status make_second(struct zoo *z) { return rw_adamw_create(&second, z->b.ctx, NULL); }
static void end_second(struct zoo *z) { rw_optimizer_destroy(&second); }

static rw_status make_graph(struct zoo *z)
{
    return rw_graph_create(&ending, z->b.t, loss_of_graph,
                           &(rw_graph_params){ { rw_record_clip(1), rw_record_update(z->opt) } });
}

static void end_graph(struct zoo *z) { rw_graph_destroy(&ending); }
static rw_status clip_far_above(struct zoo *z) { return rw_clip_grad_norm(z->b.ctx, 1e9, NULL); }
static void nothing(struct zoo *z) {}

/* The plan is for another number of threads: the step is planned again, and takes place once. */
static rw_status step(struct zoo *z) { return rw_optimizer_step(z->opt); }

Test(updates, that_run_out_of_memory_change_nothing)
{
    struct zoo a = zoo_open(), z = zoo_open();
    size_t bytes;
    zoo_backward(&a);
    zoo_backward(&z);
    expect_whole(&z, make_second, end_second);
    expect_whole(&z, clip_far_above, nothing);
    loss_of_graph = zoo_loss(&z);
    expect_whole(&z, make_graph, end_graph);
    rw_context_set_threads(z.b.ctx, 3);
    expect_whole(&z, step, nothing);
    cr_assert_eq(rw_optimizer_step(a.opt), RW_OK);
    cr_assert_eq(rw_optimizer_step(a.opt), RW_OK);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
    unsigned char *const want = everything(a.b.ctx, &bytes);
    expect_as(z.b.ctx, want, "two steps");
    free(want);
    zoo_close(&a);
    zoo_close(&z);
}

/* Neither call allocates after its first use, nor changes the step statistics of rw_memory. */
Test(updates, allocate_nothing_in_steady_state)
{
    struct zoo z = zoo_open();
    zoo_backward(&z);
    cr_assert_eq(rw_clip_grad_norm(z.b.ctx, 0.5, NULL), RW_OK);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
    zoo_backward(&z);
    const uint64_t before = rw_alloc_count();
    rw_memory was, is;
    rw_memory_stats(z.b.ctx, &was);
    for (int s = 0; s < 3; s++) {
        cr_assert_eq(rw_clip_grad_norm(z.b.ctx, 0.5 / (s + 1), NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
        rw_optimizer_set_lr(z.opt, 0.01 * s);
    }
    cr_assert_eq(rw_alloc_count(), before);
    rw_memory_stats(z.b.ctx, &is);
    cr_assert_gt(was.predicted_peak, 0);
    cr_assert_eq(is.predicted_peak, was.predicted_peak);
    cr_assert_eq(is.measured_peak, was.measured_peak);
    cr_assert_eq(is.optimizer, was.optimizer);
    zoo_close(&z);
}

/* ---- effects on other objects ---- */

/* A tape whose step is suspended between forward and backward depends on the parameters that an update writes, and on
   nothing else. */
Test(updates, change_the_parameters_that_they_write)
{
    struct zoo z = zoo_open();
    rw_tape *t[2];
    rw_tensor *loss[2];
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(rw_tape_create(&t[i], z.b.ctx), RW_OK);
        rw_tensor *const x = i ? z.idle : z.w[2];
        loss[i] = rw_sum(t[i], rw_mul(t[i], x, x), RW_ALL_AXES, false);
        rw_item(t[i], loss[i]);
    }
    zoo_backward(&z);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
    cr_assert_eq(rw_backward(t[1], loss[1]), RW_OK, "nothing has written it: %s", rw_error_message(z.b.ctx));
    cr_assert_eq(rw_backward(t[0], loss[0]), RW_ERR_MODIFIED);
    rw_error_clear(z.b.ctx);
    rw_tape_destroy(&t[0]);
    rw_tape_destroy(&t[1]);
    zoo_close(&z);
}

/* Moments are not parameters: they are neither listed nor found, and one optimizer's memory can be reused by
   another. */
Test(updates, keep_their_states_to_themselves)
{
    struct zoo z = zoo_open();
    double few, all;
    const float ones[2] = { 1, 1 };
    zoo_backward(&z);
    cr_assert_eq(rw_clip_grad_norm(z.b.ctx, 1e9, &few), RW_OK);
    rw_tensor *const late = rw_param(z.b.ctx, "late", RW_F32, RW_SHAPE(2));
    cr_assert_eq(rw_param_get(z.b.ctx, N + 1), late);
    cr_assert_null(rw_param_get(z.b.ctx, N + 2));
    cr_assert_eq(rw_write(rw_gradient(late), ones, sizeof ones), RW_OK);
    cr_assert_eq(rw_clip_grad_norm(z.b.ctx, 1e9, &all), RW_OK);
    cr_assert(fabs(all * all - few * few - 2) < 1e-9 * all * all, "one more parameter: another plan");
    cr_assert_eq(rw_optimizer_exclude(late, true), RW_OK);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
    cr_assert_eq(rw_optimizer_exclude(late, false), RW_OK);
    const size_t ids = z.b.ctx->n_ids;
    for (int i = 0; i < 3; i++) {
        rw_optimizer_destroy(&z.opt);
        cr_assert_eq(rw_adamw_create(&z.opt, z.b.ctx, NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK, "%s", rw_error_message(z.b.ctx));
        cr_assert_leq(z.b.ctx->n_ids, ids + 2, "two moments of the late one");
    }
    zoo_close(&z);
}

static int count_of(const char *path, const char *text)
{
    static char all[1 << 20];
    FILE *const f = fopen(path, "r");
    cr_assert_not_null(f);
    all[fread(all, 1, sizeof all - 1, f)] = '\0';
    fclose(f);
    int n = 0;
    for (const char *p = all; (p = strstr(p, text)); p++) n++;
    return n;
}

Test(updates, are_in_a_trace)
{
    char path[512];
    const char *const dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/rewind-updates-%ld.json", dir ? dir : P_tmpdir, (long)getpid());
    setenv("REWIND_TRACE", path, 1);
    struct zoo z = zoo_open();
    unsetenv("REWIND_TRACE");
    zoo_backward(&z);
    cr_assert_eq(rw_clip_grad_norm(z.b.ctx, 1, NULL), RW_OK);
    cr_assert_eq(rw_optimizer_step(z.opt), RW_OK);
    loss_of_graph = zoo_loss(&z);
    cr_assert_eq(make_graph(&z), RW_OK);
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_graph_launch(ending), RW_OK);
    end_graph(&z);
    zoo_close(&z);
    cr_assert_eq(count_of(path, "\"clip_grad_norm\""), 3);
    cr_assert_eq(count_of(path, "\"adamw\""), 3);
    cr_assert_eq(count_of(path, "\"rw_optimizer_step:0\""), 3);
    remove(path);
}
