/*
 * Two contexts in two threads at once, each trained for a few steps. They are independent, so both give the bytes of a
 * single one, each with its own threads. A plain program, because Criterion does not run under ThreadSanitizer;
 * scripts/test.sh --tsan and --valgrind run it.
 */
#include "support/support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    double loss[4];
    unsigned char *parameters;
    size_t bytes;
    rw_status status;
};

/* Trains a small net in a context of its own, and keeps losses and parameters. */
static void *train(void *argument)
{
    struct job *const job = argument;
    struct fixture b = fixture_open(3, 2);
    struct net n;
    rw_optimizer *opt = NULL;
    net_init(&n, b.ctx, 3, 16, RW_F32, 2);
    job->status = ckpt_set_policy(b.t, "full");
    if (!job->status) job->status = rw_adamw_create(&opt, b.ctx, NULL);
    for (int s = 0; !job->status && s < 4; s++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const loss = net_loss(&n, b.t, 12, s);
        job->status = s ? rw_backward(b.t, loss) : ckpt_verify(b.t, loss, NULL);
        if (!job->status && !s) job->status = rw_backward(b.t, loss);
        job->loss[s] = rw_item(b.t, loss);
        rw_optimizer_step(opt);
        rw_tape_reset(b.t);
    }
    job->parameters = all_parameters(b.ctx, &job->bytes);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
    return NULL;
}

int main(void)
{
    struct job jobs[3] = { 0 };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, train, &jobs[i])) return 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    train(&jobs[2]);
    int wrong = 0;
    for (int i = 0; i < 3; i++) {
        wrong |= jobs[i].status || memcmp(jobs[i].loss, jobs[2].loss, sizeof jobs[i].loss) ||
                 first_difference(jobs[i].parameters, jobs[2].parameters, jobs[2].bytes) >= 0;
        free(jobs[i].parameters);
    }
    puts(wrong ? "the contexts disturbed each other" : "two contexts at once give the bytes of one alone");
    return wrong;
}
