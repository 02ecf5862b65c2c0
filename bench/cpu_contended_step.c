/*
 * The time of a recurrent model on busy cores: an LSTM of many small ops, together with as many busy processes as the
 * context has threads. Steps of a context with one thread and of one with two are timed alternately; medians.
 */
#include "figure.h"

#include <rewind/rewind.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, ROWS = 64, WIDTH = 256, LENGTH = 32, WARM = 8, ROUNDS = 41 };

struct runner {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *ih, *hh;
    double seconds[ROUNDS];
};

static bool runner_open(struct runner *r, int threads)
{
    if (rw_context_create(&r->ctx, &(rw_context_params){ .threads = threads }) || rw_tape_create(&r->t, r->ctx)) {
        fprintf(stderr, "cpu_contended_step: %s\n", rw_error_message(r->ctx));
        return false;
    }
    r->ih = rw_param(r->ctx, "ih", RW_F32, RW_SHAPE(4 * WIDTH, WIDTH));
    r->hh = rw_param(r->ctx, "hh", RW_F32, RW_SHAPE(4 * WIDTH, WIDTH));
    return !rw_init_normal(r->ih, 0, 0.05) && !rw_init_normal(r->hh, 0, 0.05);
}

/* Gates as separate ops: the fused cell has fewer and longer ones. */
static rw_tensor *loss_of(struct runner *r)
{
    rw_tape *const t = r->t;
    rw_tensor *h = rw_input(t, RW_F32, RW_SHAPE(ROWS, WIDTH), NULL, 0), *c = h, *gate[4];
    for (int i = 0; i < LENGTH; i++) {
        rw_tensor *const x = rw_input(t, RW_F32, RW_SHAPE(ROWS, WIDTH), NULL, 0);
        rw_tensor *const all = rw_add(t, rw_linear(t, x, r->ih, RW_NONE), rw_linear(t, h, r->hh, RW_NONE));
        rw_split(t, all, -1, (const int64_t[]){ WIDTH, WIDTH, WIDTH, WIDTH }, 4, gate);
        c = rw_add(t, rw_mul(t, rw_sigmoid(t, gate[0]), c), rw_mul(t, rw_sigmoid(t, gate[1]), rw_tanh(t, gate[2])));
        h = rw_mul(t, rw_sigmoid(t, gate[3]), rw_tanh(t, c));
    }
    return rw_mean(t, rw_mul(t, h, h), RW_ALL_AXES, false);
}

static bool step(struct runner *r, double *ret)
{
    const double begin = now_s();
    rw_zero_grad(r->ctx);
    const rw_status status = rw_backward(r->t, loss_of(r));
    rw_tape_reset(r->t);
    *ret = now_s() - begin;
    if (status) fprintf(stderr, "cpu_contended_step: %s\n", rw_error_message(r->ctx));
    return !status;
}

static double median(struct runner *r)
{
    qsort(r->seconds, ROUNDS, sizeof *r->seconds, figure_compare);
    return r->seconds[ROUNDS / 2];
}

static void keep_busy(pid_t pid[THREADS])
{
    for (int i = 0; i < THREADS; i++) {
        pid[i] = fork();
        if (pid[i]) continue;
        alarm(120); /* should the parent be killed */
        for (volatile unsigned n = 0;; n++) continue;
    }
}

static void end_busy(const pid_t pid[THREADS])
{
    for (int i = 0; i < THREADS; i++)
        if (pid[i] > 0 && !kill(pid[i], SIGKILL)) waitpid(pid[i], NULL, 0);
}

int main(void)
{
    pid_t pid[THREADS];
    struct runner one = { 0 }, all = { 0 };
    double ignored;
    keep_busy(pid);
    bool ok = runner_open(&one, 1) && runner_open(&all, THREADS);
    for (int i = 0; ok && i < WARM; i++) ok = step(&one, &ignored) && step(&all, &ignored);
    for (int i = 0; ok && i < ROUNDS; i++) ok = step(&one, &one.seconds[i]) && step(&all, &all.seconds[i]);
    end_busy(pid);
    if (!ok) return 1;
    const double alone = median(&one), together = median(&all);
    char name[160];
    snprintf(name, sizeof name, "step of an LSTM with two threads over that with one, cores busy (%.3g and %.3g ms)",
             1e3 * together, 1e3 * alone);
    figure(name, together / alone, "times", 1.5);
    rw_tape_destroy(&one.t), rw_tape_destroy(&all.t);
    rw_context_destroy(&one.ctx), rw_context_destroy(&all.ctx);
    return answer_end("cpu_contended_step", 0);
}
