/*
 * A signal handler that is called while the library computes finds the stack pointer in a stack: the frame that the
 * kernel writes below it, for a handler without a stack of its own, must not overwrite other memory.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <ucontext.h>

#if defined(__x86_64__) && defined(__linux__)

enum { N = 512, SIGNALS = 300, STEPS_MAX = 4000 };

static volatile sig_atomic_t seen, outside;
static _Thread_local char *low, *high; /* of the thread's stack */

static void find_stack(void)
{
    pthread_attr_t attr;
    void *at;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attr)) return;
    pthread_attr_getstack(&attr, &at, &size);
    pthread_attr_destroy(&attr);
    low = at;
    high = low + size;
}

/* Runs on a stack of its own, so that it may read the interrupted one. */
static void look(int signal, siginfo_t *info, void *context)
{
    const ucontext_t *const c = context;
    const char *const at = (const char *)(uintptr_t)c->uc_mcontext.gregs[REG_RSP];
    (void)signal;
    (void)info;
    seen++;
    outside += at < low || at >= high;
}

static void begin_timer(void)
{
    static char stack[1 << 16];
    const stack_t own = { .ss_sp = stack, .ss_size = sizeof stack };
    struct sigaction action = { .sa_sigaction = look, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART };
    const struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
    cr_assert_eq(sigaltstack(&own, NULL), 0);
    cr_assert_eq(sigaction(SIGALRM, &action, NULL), 0);
    cr_assert_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
}

/* In one thread: a timer's signals are delivered to any thread that does not block them. */
static void step(struct fixture *b, rw_tensor *w)
{
    rw_tape_reset(b->t);
    rw_tensor *const x = rw_randn(b->t, RW_F32, RW_SHAPE(N, N));
    cr_assert_eq(rw_backward(b->t, rw_mean(b->t, rw_matmul(b->t, x, w), RW_ALL_AXES, false)), RW_OK);
}

Test(signal_handler_stack, find_the_stack_pointer_in_a_stack)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N, N));
    rw_init_normal(w, 0, 0.1);
    find_stack();
    step(&b, w);
    begin_timer();
    for (int i = 0; i < STEPS_MAX && seen < SIGNALS; i++) step(&b, w);
    setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
    cr_expect_geq(seen, SIGNALS);
    cr_expect_eq(outside, 0, "%d of %d signals found it elsewhere", (int)outside, (int)seen);
    fixture_close(&b);
}

/* They are only delayed: one sent during a product has arrived when the call returns. */
Test(signal_handler_stack, arrive)
{
    sigset_t before, after;
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N, N));
    rw_init_normal(w, 0, 0.1);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    find_stack();
    step(&b, w);
    begin_timer();
    step(&b, w);
    for (int i = 0; i < STEPS_MAX && !seen; i++) step(&b, w);
    setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
    cr_expect_gt(seen, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int s = 1; s < NSIG; s++) cr_expect_eq(sigismember(&before, s), sigismember(&after, s), "signal %d", s);
    fixture_close(&b);
}

#else
Test(signal_handler_stack, find_the_stack_pointer_in_a_stack)
{
    cr_skip_test("where the stack pointer was is known on x86-64 alone");
}
#endif
