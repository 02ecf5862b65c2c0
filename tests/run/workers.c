/*
 * The threads of a context (runtime/base/thread_team.h), as observed by a program: when they are started, the state
 * after a failed start, when they end, the default number; callers' kernels on them, together with OpenMP; contexts in
 * several threads at once.
 */
#include "support/support.h"

#include "device/cpu/default_thread_count.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- starting ---- */

static int starts_left = -1; /* starts before one fails; below 0: none does */

int __real_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    if (starts_left == 0) return EAGAIN;
    if (starts_left > 0) starts_left--;
    return __real_pthread_create(id, attributes, run, argument);
}

#ifdef __SANITIZE_THREAD__
static void *end(void *argument)
{
    return argument;
}

/* ThreadSanitizer starts a thread of its own with the first one: this waits for it, so that it is not counted. */
static void wait_for_the_sanitizer(void)
{
    static bool is_there;
    pthread_t id;
    if (is_there || pthread_create(&id, NULL, end, NULL)) return;
    is_there = !pthread_join(id, NULL);
    usleep(10000);
}
#else
static void wait_for_the_sanitizer(void)
{
}
#endif

static int count_threads(void)
{
    int n = 0;
    wait_for_the_sanitizer();
    DIR *const d = opendir("/proc/self/task");
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* A thread's entry disappears shortly after it was joined. */
static int threads_after(int most)
{
    int n = count_threads();
    for (int i = 0; i < 1000 && n > most; i++, n = count_threads()) usleep(1000);
    return n;
}

/* A product in 16 bits and one in 32, a convolution and a norm: oneDNN and our own kernels. */
static double step_of(struct fixture *b)
{
    rw_tape_reset(b->t);
    rw_zero_grad(b->ctx);
    rw_generator_set(b->ctx, (rw_generator_state){ 5, 0 });
    rw_tensor *const x = rw_randn(b->t, RW_F32, RW_SHAPE(8, 64, 14, 14));
    rw_tensor *const w = rw_require_grad(b->t, rw_randn(b->t, RW_F32, RW_SHAPE(64, 64, 3, 3)));
    const rw_conv2d_params same = { .padding = { 1, 1 } };
    rw_tensor *y = rw_reshape(b->t, rw_conv2d(b->t, x, w, RW_NONE, &same), RW_SHAPE(8 * 14 * 14, 64));
    y = rw_gelu(b->t, rw_matmul(b->t, y, rw_require_grad(b->t, rw_randn(b->t, RW_F32, RW_SHAPE(64, 256)))));
    rw_tensor *const narrow = rw_cast(b->t, y, RW_BF16);
    y = rw_matmul(b->t, rw_cast(b->t, rw_randn(b->t, RW_F32, RW_SHAPE(64, 8 * 14 * 14)), RW_BF16), narrow);
    rw_tensor *const loss = rw_mean(b->t, rw_mul(b->t, rw_cast(b->t, y, RW_F32), rw_cast(b->t, y, RW_F32)),
                                    RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    return rw_item(b->t, loss);
}

Test(workers, are_started_when_their_number_is_set)
{
    struct fixture b = fixture_open(1, 1);
    const int before = count_threads();
    cr_assert_eq(rw_context_set_threads(b.ctx, 4), RW_OK);
    cr_expect_eq(count_threads(), before + 3);
    cr_assert_eq(rw_context_set_threads(b.ctx, 2), RW_OK);
    cr_expect_eq(count_threads(), before + 3, "a smaller number ends none");
    fixture_close(&b);
    cr_expect_eq(count_threads(), before + 3, "they are the calling thread's");
}

Test(workers, steps_start_and_end_none, .timeout = 300)
{
    const int before = count_threads();
    struct fixture b = fixture_open(1, 3), one = fixture_open(1, 1);
    const double want = step_of(&one);
    cr_expect_eq(count_threads(), before, "one thread takes no other, and oneDNN starts none");
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(step_of(&b), want);
        cr_expect_eq(count_threads(), before + 2, "step %d", i);
    }
    fixture_close(&one);
    fixture_close(&b);
}

Test(workers, that_cannot_be_started_change_nothing, .timeout = 300)
{
    struct fixture b = fixture_open(1, 2);
    const double want = step_of(&b);
    const int before = count_threads();
    for (int at = 0; at < 3; at++) {
        starts_left = at;
        cr_assert_eq(rw_context_set_threads(b.ctx, 5), RW_ERR_MEMORY, "start %d", at);
        starts_left = -1;
        cr_expect(strstr(rw_error_message(b.ctx), "rw_context_set_threads: 5 threads could not be started"), "%s",
                  rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_expect_eq(rw_context_threads(b.ctx), 2);
        cr_expect_eq(threads_after(before), before, "start %d", at);
        cr_expect_eq(step_of(&b), want);
    }
    cr_assert_eq(rw_context_set_threads(b.ctx, 5), RW_OK);
    cr_expect_eq(step_of(&b), want);
    fixture_close(&b);
}

Test(workers, that_a_step_cannot_start_are_told_before_it_runs)
{
    for (int at = 0; at < 2; at++) {
        struct fixture b = fixture_open(1, 3 + at);
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(1 << 16));
        starts_left = 0;
        cr_expect_eq(rw_init_normal(p, 0, 1), RW_ERR_MEMORY);
        rw_error_clear(b.ctx);
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, p, p), RW_ALL_AXES, false);
        starts_left = 0;
        cr_expect_eq(rw_backward(b.t, loss), RW_ERR_MEMORY, "%d threads", 3 + at);
        starts_left = -1;
        rw_error_clear(b.ctx);
        cr_expect_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

struct late {
    struct fixture b;
    rw_tensor *loss;
    rw_graph *g;
    enum { BEGUN, SUSPENDED, GRAPH, SCALER_STEP, LATE } what;
    rw_optimizer *opt;
    rw_scaler *scaler;
    rw_status status[3]; /* without threads, of the lower number, and again */
};

static rw_status run_late(const struct late *l)
{
    switch (l->what) {
    case SUSPENDED: return rw_backward_from(l->b.t, (rw_tensor *[]){ l->loss }, NULL, 1);
    case GRAPH: return rw_graph_launch(l->g);
    case SCALER_STEP: return rw_scaler_step(l->scaler, l->opt);
    default: return rw_backward(l->b.t, l->loss);
    }
}

/* A thread of its own has no workers yet. */
static void *lower_the_number(void *argument)
{
    struct late *const l = argument;
    starts_left = 0;
    l->status[0] = run_late(l);
    rw_error_clear(l->b.ctx);
    l->status[1] = rw_context_set_threads(l->b.ctx, 1);
    l->status[2] = run_late(l);
    starts_left = -1;
    return NULL;
}

/* What the message advises helps for what was planned before, too. */
Test(workers, that_cannot_be_started_are_not_needed_with_a_lower_number)
{
    for (int what = BEGUN; what < LATE; what++) {
        struct late l = { .b = fixture_open(1, 2), .what = what };
        rw_tape *other = NULL;
        pthread_t id;
        rw_tensor *const w = rw_param(l.b.ctx, "w", RW_F32, RW_SHAPE(64, 64));
        cr_assert_eq(rw_init_constant(w, 1), RW_OK);
        cr_assert_eq(rw_tape_create(&other, l.b.ctx), RW_OK);
        cr_assert_eq(rw_sgd_create(&l.opt, l.b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
        cr_assert_eq(rw_scaler_create(&l.scaler, l.b.ctx, &(rw_scaler_params){ .init_scale = 1 }), RW_OK);
        rw_tensor *const y = rw_mul(l.b.t, rw_matmul(l.b.t, w, w), w);
        l.loss = rw_mean(l.b.t, y, RW_ALL_AXES, false);
        if (what == BEGUN) cr_expect_eq(rw_item(l.b.t, l.loss), 64);
        if (what == SUSPENDED) cr_assert_eq(rw_forward(l.b.t, (rw_tensor *[]){ l.loss }, 1), RW_OK);
        if (what >= GRAPH)
            cr_assert_eq(rw_graph_create(&l.g, l.b.t, l.loss,
                                         &(rw_graph_params){ { rw_record_update(l.opt) } }), RW_OK);
        if (what == SCALER_STEP) {
            cr_assert_eq(rw_scaler_backward(l.scaler, other, rw_mean(other, w, RW_ALL_AXES, false)), RW_OK);
            cr_assert_eq(rw_scaler_unscale(l.scaler), RW_OK);
        }
        cr_assert_eq(__real_pthread_create(&id, NULL, lower_the_number, &l), 0);
        cr_assert_eq(pthread_join(id, NULL), 0);
        cr_expect_eq(l.status[0], RW_ERR_MEMORY, "%d", what);
        cr_expect_eq(l.status[1], RW_OK, "%d", what);
        cr_expect_eq(l.status[2], RW_OK, "%d: %s", what, rw_error_message(l.b.ctx));
        rw_graph_destroy(&l.g);
        rw_scaler_destroy(&l.scaler);
        rw_optimizer_destroy(&l.opt);
        rw_tape_destroy(&other);
        fixture_close(&l.b);
    }
}

static void *step_without_threads(void *argument)
{
    struct late *const l = argument;
    starts_left = 0;
    l->status[0] = run_late(l);
    starts_left = -1;
    return NULL;
}

/* rw_scaler_step() has changed nothing, so the optimizer goes on counting on the host, and a graph stays valid. */
Test(workers, that_a_scaler_cannot_start_leave_graphs_valid)
{
    struct late l = { .b = fixture_open(1, 2), .what = SCALER_STEP };
    rw_tape *other = NULL;
    pthread_t id;
    rw_tensor *const w = rw_param(l.b.ctx, "w", RW_F32, RW_SHAPE(64, 64));
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    cr_assert_eq(rw_tape_create(&other, l.b.ctx), RW_OK);
    cr_assert_eq(rw_adamw_create(&l.opt, l.b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_scaler_create(&l.scaler, l.b.ctx, NULL), RW_OK);
    rw_tensor *const loss = rw_mean(l.b.t, w, RW_ALL_AXES, false);
    cr_assert_eq(rw_graph_create(&l.g, l.b.t, loss, &(rw_graph_params){ { rw_record_update(l.opt) } }), RW_OK);
    cr_assert_eq(rw_graph_launch(l.g), RW_OK);
    rw_zero_grad(l.b.ctx);
    cr_assert_eq(rw_scaler_backward(l.scaler, other, rw_mean(other, w, RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(rw_scaler_unscale(l.scaler), RW_OK);
    cr_assert_eq(__real_pthread_create(&id, NULL, step_without_threads, &l), 0);
    cr_assert_eq(pthread_join(id, NULL), 0);
    cr_expect_eq(l.status[0], RW_ERR_MEMORY);
    rw_error_clear(l.b.ctx);
    rw_zero_grad(l.b.ctx);
    cr_expect_eq(rw_graph_launch(l.g), RW_OK, "%s", rw_error_message(l.b.ctx));
    rw_graph_destroy(&l.g);
    rw_scaler_destroy(&l.scaler);
    rw_optimizer_destroy(&l.opt);
    rw_tape_destroy(&other);
    fixture_close(&l.b);
}

/* ---- default number ---- */

static int threads_by_default(void)
{
    rw_context *ctx = NULL;
    const rw_status status = rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU });
    const int n = rw_context_threads(ctx);
    rw_context_destroy(&ctx);
    return status ? -(int)status : n;
}

Test(workers, are_as_many_as_the_process_may_use_cores)
{
    cpu_set_t all, one;
    unsetenv("REWIND_THREADS");
    setenv("OMP_NUM_THREADS", "7", 1);
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    cr_expect_leq(threads_by_default(), CPU_COUNT(&all));
    cr_expect_geq(threads_by_default(), 1);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    cr_expect_eq(threads_by_default(), 1);
    setenv("REWIND_THREADS", "5", 1);
    cr_expect_eq(threads_by_default(), 5);
}

Test(workers, a_variable_that_is_not_a_number_is_refused)
{
    static const char *const bad[] = { "0", "-1", "two", "2x", "1025", "99999999999999999999", " " };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("REWIND_THREADS", bad[i], 1);
        cr_expect_eq(threads_by_default(), -(int)RW_ERR_ARGUMENT, "%s", bad[i]);
        struct fixture b = fixture_open(1, 3); /* an explicit number overrides the environment */
        cr_expect_eq(rw_context_threads(b.ctx), 3);
        fixture_close(&b);
    }
    setenv("REWIND_THREADS", "", 1);
    cr_expect_gt(threads_by_default(), 0);
}

Test(workers, a_quota_is_rounded_up)
{
    cr_expect_eq(rw_threads_of(8, INFINITY), 8);
    cr_expect_eq(rw_threads_of(8, 2), 2);
    cr_expect_eq(rw_threads_of(8, 1.5), 2);
    cr_expect_eq(rw_threads_of(8, 0.1), 1);
    cr_expect_eq(rw_threads_of(2, 16), 2);
    cr_expect_eq(rw_threads_of(100000, INFINITY), RW_MAX_THREADS);
}

/* ---- callers' kernels ---- */

static int64_t counted[RW_MAX_THREADS];

static void square_share(void *of, int thread, int threads)
{
    const rw_kernel *const k = of;
    const int64_t n = k->out[0].layout->numel, end = n * (thread + 1) / threads;
    const float *const x = k->in[0].data;
    for (int64_t i = n * thread / threads; i < end; i++) ((float *)k->out[0].data)[i] = x[i] * x[i];
    __atomic_fetch_add(&counted[thread], 1, __ATOMIC_RELAXED);
}

static rw_status square(const rw_kernel *k)
{
    rw_kernel_parallel(k, square_share, (void *)(uintptr_t)k);
    return RW_OK;
}

/* Half of the elements by the library's threads, then all by OpenMP's, then by the library's again. */
static rw_status square_by_both(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data;
    rw_kernel fewer = *k;
    fewer.threads = 2;
    rw_kernel_parallel(&fewer, square_share, &fewer);
#if !defined(__SANITIZE_THREAD__) /* which does not see into OpenMP's library */
#pragma omp parallel for num_threads(4)
#endif
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = x[i] * x[i];
    rw_kernel_parallel(k, square_share, (void *)(uintptr_t)k);
    rw_kernel_parallel(k, NULL, NULL);
    return RW_OK;
}

static rw_status square_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    return rw_grad_set(g, 0, rw_mul(t, rw_scale(t, rw_grad_input(g, 0), 2), rw_grad_upstream(g, 0)));
}

static const rw_op_def square_op = { .name = "square_in_parallel", .n_inputs = 1, .n_outputs = 1,
                                     .check = identity_check, .kernel = { [RW_DEVICE_CPU] = square },
                                     .grad = square_grad };
static const rw_op_def both_op = { .name = "square_by_both", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                   .kernel = { [RW_DEVICE_CPU] = square_by_both }, .grad = square_grad };

static double squares(struct fixture *b, const rw_op_def *op)
{
    rw_tape_reset(b->t);
    rw_generator_set(b->ctx, (rw_generator_state){ 5, 0 });
    rw_tensor *x = rw_require_grad(b->t, rw_randn(b->t, RW_F32, RW_SHAPE(1 << 17)));
    x = rw_gelu(b->t, op ? rw_apply(b->t, op, &x, 1, NULL, 0, NULL) : rw_mul(b->t, x, x));
    rw_tensor *const loss = rw_mean(b->t, x, RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    return rw_item(b->t, loss);
}

Test(workers, run_callers_kernels_beside_openmp, .timeout = 300)
{
    struct fixture b = fixture_open(1, 3);
    const double want = squares(&b, NULL);
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(squares(&b, &square_op), want);
        cr_assert_eq(squares(&b, &both_op), want);
    }
    cr_expect_eq(counted[0], 60);
    cr_expect_eq(counted[1], 60);
    cr_expect_eq(counted[2], 40);
    fixture_close(&b);
}

/* ---- several contexts ---- */

enum { STEPS = 10000, WIDTH = 16 };

struct trained {
    int threads, steps;
    rw_status status;
    float weight[WIDTH * WIDTH];
};

/* Thread function: trains a small model in a context of its own. */
static void *train(void *argument)
{
    struct trained *const r = argument;
    struct fixture b = fixture_open(7, r->threads);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(WIDTH, WIDTH));
    rw_tensor *const wide = rw_buffer(b.ctx, "wide", RW_F32, RW_SHAPE(1 << 14));
    rw_optimizer *opt = NULL;
    r->status = rw_context_set_threads(b.ctx, r->threads);
    if (!r->status) r->status = rw_init_normal(w, 0, 0.3);
    if (!r->status) r->status = rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 1e-3 });
    for (int i = 0; !r->status && i < r->steps; i++) {
        rw_tensor *x = rw_randn(b.t, RW_F32, RW_SHAPE(WIDTH, WIDTH));
        x = rw_tanh(b.t, rw_linear(b.t, rw_linear(b.t, x, w, RW_NONE), w, RW_NONE));
        r->status = rw_backward(b.t, rw_mean(b.t, rw_mul(b.t, x, x), RW_ALL_AXES, false));
        if (!r->status) r->status = rw_optimizer_step(opt);
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
        /* sometimes work for all threads */
        if (!r->status && i % 64 == 0) r->status = rw_init_uniform(wide, 0, 1);
    }
    if (!r->status) r->status = rw_read(b.t, w, r->weight, sizeof r->weight);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
    return NULL;
}

Test(workers, two_contexts_in_two_threads, .timeout = 300)
{
    const int steps = test_steps(STEPS, STEPS / 10), before = count_threads();
    struct trained r[3] = { { .threads = 2, .steps = steps }, { .threads = 3, .steps = steps },
                            { .threads = 1, .steps = steps } };
    pthread_t id[2];
    for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&id[i], NULL, train, &r[i]), 0);
    for (int i = 0; i < 2; i++) cr_assert_eq(pthread_join(id[i], NULL), 0);
    cr_expect_eq(threads_after(before), before, "they end with the threads that they worked for");
    train(&r[2]);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(r[i].status, RW_OK);
        cr_expect(!memcmp(r[i].weight, r[2].weight, sizeof r[i].weight), "context %d", i);
    }
}

Test(workers, many_on_few_cores, .timeout = 300)
{
    struct fixture b = fixture_open(1, 64), one = fixture_open(1, 1);
    const double want = step_of(&one);
    for (int i = 0; i < 3; i++) cr_expect_eq(step_of(&b), want);
    fixture_close(&one);
    fixture_close(&b);
}

/* ---- fork ---- */

static double openmp_sum(int n)
{
    double sum = 0;
#if !defined(__SANITIZE_THREAD__)
#pragma omp parallel for num_threads(3) reduction(+ : sum)
#endif
    for (int i = 0; i < n; i++) sum += i;
    return sum;
}

/* Before the first context the program has used OpenMP: the child must not wait for its threads. */
Test(workers, in_a_child_of_a_program_that_used_openmp, .timeout = 300)
{
    cr_assert_eq(openmp_sum(1000), 499500.0);
    const pid_t child = fork();
    if (!child) {
        alarm(40); /* a hang ends by a signal */
        struct fixture b = fixture_open(1, 2), one = fixture_open(1, 1);
        _exit(step_of(&b) == step_of(&one) ? 0 : 1);
    }
    int how = 1;
    cr_assert_eq(waitpid(child, &how, 0), child);
    cr_expect_eq(how, 0, "%d", how);
}

static int child_trains(struct fixture *b, double want)
{
    alarm(60);
    if (step_of(b) != want) return 1;
    return rw_context_set_threads(b->ctx, 5) || step_of(b) != want ? 2 : 0;
}

/* Both processes continue; the child has its own threads. */
Test(workers, fork_between_calls, .timeout = 300)
{
    struct fixture b = fixture_open(1, 3);
    const double want = step_of(&b);
    for (int i = 0; i < 4; i++) {
        const pid_t child = fork();
        if (!child) _exit(child_trains(&b, want));
        cr_expect_eq(step_of(&b), want);
        int how = 1;
        cr_assert_eq(waitpid(child, &how, 0), child);
        cr_expect_eq(how, 0, "child %d: %d", i, how);
    }
    fixture_close(&b);
}
