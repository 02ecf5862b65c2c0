/*
 * The library's team of threads (runtime/base/thread_team.h) in isolation: which thread runs what, that threads
 * persist, that one that cannot be started does no harm, modes, signals, fork. This program is built twice: with Linux'
 * futex, and with condition variables (RW_NO_FUTEX).
 */
#include "base/thread_team.h"

#include "base/cores.h"
#include "support/mode_register.h"

#include <rewind/context.h>

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- threads that cannot be started ---- */

static int starts_left = -1; /* starts before one fails; below 0: none does */
static size_t least_stack; /* glibc refuses a requested size that static TLS does not fit into */

int __real_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    size_t stack;
    if (attributes && least_stack && !pthread_attr_getstacksize(attributes, &stack) && stack < least_stack)
        return EINVAL;
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

/* Threads of this process, as the kernel counts them. */
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

/* ---- jobs ---- */

struct seen {
    int times[RW_MAX_THREADS], threads;
};

static void note(void *of, int thread, int threads)
{
    struct seen *const s = of;
    __atomic_fetch_add(&s->times[thread], 1, __ATOMIC_RELAXED);
    __atomic_store_n(&s->threads, threads, __ATOMIC_RELAXED);
}

/* A job for `wanted` threads runs once in each of `n`. */
static void expect_run(int wanted, int n)
{
    struct seen s = { 0 };
    rw_team_run(wanted, note, &s);
    cr_assert_eq(s.threads, n, "%d of %d", s.threads, wanted);
    for (int i = 0; i < RW_MAX_THREADS; i++) cr_assert_eq(s.times[i], i < n, "thread %d of %d", i, n);
}

Test(team, a_job_runs_once_in_each_thread)
{
    expect_run(1, 1);
    expect_run(5, 1); /* none has been started */
    for (int size = 1; size <= 6; size++) {
        cr_assert_eq(rw_team_ready(size), RW_OK);
        cr_assert_eq(rw_team_size(), size);
        for (int round = 0; round < 100; round++)
            for (int n = 1; n <= 6; n++) expect_run(n, n < size ? n : size);
    }
}

Test(team, threads_stay_whatever_a_job_takes)
{
    const int before = count_threads();
    cr_assert_eq(rw_team_ready(4), RW_OK);
    cr_expect_eq(count_threads(), before + 3);
    for (int n = 1; n <= 4; n++) {
        expect_run(n, n);
        cr_expect_eq(count_threads(), before + 3, "%d", n);
    }
    cr_assert_eq(rw_team_ready(2), RW_OK);
    cr_expect_eq(rw_team_size(), 4);
    cr_expect_eq(count_threads(), before + 3);
}

Test(team, a_thread_that_cannot_be_started_changes_nothing)
{
    const int before = count_threads();
    cr_assert_eq(rw_team_ready(2), RW_OK);
    for (int at = 0; at < 5; at++) {
        starts_left = at;
        cr_assert_eq(rw_team_ready(7), RW_ERR_MEMORY, "start %d", at);
        starts_left = -1;
        cr_expect_eq(rw_team_size(), 2);
        cr_expect_eq(threads_after(before + 1), before + 1, "start %d", at);
        expect_run(7, 2);
    }
    cr_assert_eq(rw_team_ready(7), RW_OK);
    expect_run(7, 7);
}

/* glibc takes the static TLS of the program and its libraries from each stack. */
Test(team, threads_start_though_static_tls_is_larger_than_their_stack)
{
    least_stack = (size_t)3 << 20;
    cr_assert_eq(rw_team_ready(4), RW_OK);
    expect_run(4, 4);
    starts_left = 1;
    cr_assert_eq(rw_team_ready(7), RW_ERR_MEMORY, "another failure is none of the stack's size");
    starts_left = -1;
    cr_expect_eq(rw_team_size(), 4);
    expect_run(7, 4);
}

/* ---- loops ---- */

enum { ITEMS = 100 };

static void count_items(void *of, int64_t first, int64_t end)
{
    int *const times = of;
    for (int64_t i = first; i < end; i++) __atomic_fetch_add(&times[i], 1, __ATOMIC_RELAXED);
}

Test(team, a_loop_has_each_item_once)
{
    cr_assert_eq(rw_team_ready(5), RW_OK);
    for (int threads = 1; threads <= 7; threads++)
        for (int64_t n = 0; n <= ITEMS; n++) {
            int times[ITEMS] = { 0 };
            rw_team_for(threads, n, count_items, times);
            for (int64_t i = 0; i < ITEMS; i++) cr_assert_eq(times[i], i < n, "%d of %d", (int)i, (int)n);
        }
}

Test(team, ranges_of_many_items_do_not_overflow)
{
    const int64_t n = INT64_MAX / 2;
    for (int t = 0; t < RW_MAX_THREADS; t++)
        cr_assert_lt(rw_team_first(n, t, RW_MAX_THREADS), rw_team_first(n, t + 1, RW_MAX_THREADS));
    cr_expect_eq(rw_team_first(n, RW_MAX_THREADS, RW_MAX_THREADS), n);
}

/* ---- barriers ---- */

enum { ROUNDS = 200, CROWD = 64 };

struct rounds {
    int of[CROWD], wrong;
};

/* In each round every thread has written before any of them reads. */
static void go_round(void *of, int thread, int threads)
{
    struct rounds *const r = of;
    for (int round = 1; round <= ROUNDS; round++) {
        r->of[thread] = round;
        rw_team_barrier();
        for (int i = 0; i < threads; i++)
            if (r->of[i] != round) __atomic_store_n(&r->wrong, round, __ATOMIC_RELAXED);
        rw_team_barrier();
    }
}

Test(team, at_a_barrier_all_wait_for_all, .timeout = 900)
{
    for (int n = 1; n <= CROWD; n = n < 4 ? n + 1 : 4 * n) {
        struct rounds r = { 0 };
        cr_assert_eq(rw_team_ready(n), RW_OK);
        rw_team_run(n, go_round, &r);
        cr_expect_eq(r.wrong, 0, "round %d of %d threads", r.wrong, n);
    }
}

Test(team, more_threads_than_cores, .timeout = 900)
{
    cr_assert_eq(rw_team_ready(CROWD), RW_OK);
    for (int i = 0; i < 2000; i++) expect_run(1 + i % CROWD, 1 + i % CROWD);
}

/* ---- nested jobs ---- */

static void count_and_wait(void *of, int thread, int threads)
{
    int *const n = of;
    rw_team_barrier(); /* in a job of one thread */
    __atomic_fetch_add(n, threads == 1 && !thread, __ATOMIC_RELAXED);
}

static void run_inside(void *of, int thread, int threads)
{
    rw_team_run(3, count_and_wait, of);
    rw_team_barrier(); /* of the outer job */
    rw_team_run(3, count_and_wait, of);
}

Test(team, a_job_inside_of_another_runs_alone, .timeout = 900)
{
    cr_assert_eq(rw_team_ready(3), RW_OK);
    for (int i = 0; i < 1000; i++) {
        int n = 0;
        rw_team_run(3, run_inside, &n);
        cr_assert_eq(n, 6);
    }
    expect_run(3, 3);
}

/* ---- concurrent callers ---- */

enum { JOBS = 20000 };

static void add_share(void *of, int64_t first, int64_t end)
{
    int64_t sum = 0;
    for (int64_t i = first; i < end; i++) sum += i;
    __atomic_fetch_add((int64_t *)of, sum, __ATOMIC_RELAXED);
}

static void *call_often(void *argument)
{
    int wrong = rw_team_ready(2) != RW_OK;
    for (int i = 0; i < JOBS; i++) {
        int64_t sum = 0;
        rw_team_for(2, ITEMS, add_share, &sum);
        wrong += sum != ITEMS * (ITEMS - 1) / 2;
    }
    *(int *)argument = wrong;
    return NULL;
}

Test(team, two_callers_at_once_and_their_threads_end_with_them, .timeout = 900)
{
    const int before = count_threads();
    pthread_t id[2];
    int wrong[2];
    for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&id[i], NULL, call_often, &wrong[i]), 0);
    for (int i = 0; i < 2; i++) cr_assert_eq(pthread_join(id[i], NULL), 0);
    for (int i = 0; i < 2; i++) cr_expect_eq(wrong[i], 0);
    cr_expect_eq(threads_after(before), before);
}

/* ---- modes ---- */

static void leave_another_mode(void *of, int thread, int threads)
{
    if (thread) fesetround(FE_DOWNWARD);
    if (thread) mode_register_add(MODE_REGISTER_FLUSH);
    if (thread) feenableexcept(FE_INEXACT | FE_DIVBYZERO);
}

/* An inexact result stops a thread whose exceptions are not masked, and has other bytes if the thread rounds upward.
   Half of the least normal number is 0 if results are flushed. */
static void divide(void *of, int thread, int threads)
{
    static volatile float one = 1, three = 3, zero = 0, least = 0x1p-126f;
    float *const got = of;
    if (!thread) return;
    const float third = one / three, infinite = one / zero;
    const volatile float half = least / 2;
    got[thread] = fegetround() == FE_TONEAREST && infinite > 1 && half * 0x1p126f == 0.5f ? third : 0;
}

Test(team, every_job_begins_in_the_normal_mode)
{
    float got[3];
    fesetround(FE_UPWARD);
    feenableexcept(FE_INEXACT | FE_DIVBYZERO);
    const int traps = fegetexcept(); /* none on an ARM64 processor that does not trap */
    cr_assert_eq(rw_team_ready(3), RW_OK); /* threads inherit the mode of the thread that starts them */
    for (int i = 0; i < 100; i++) {
        memset(got, 0, sizeof got);
        rw_team_run(3, divide, got);
        for (int k = 1; k < 3; k++)
            cr_assert(!memcmp(&got[k], &(float){ 0x1.555556p-2f }, sizeof *got), "job %d, thread %d: %a", i, k, got[k]);
        rw_team_run(1 + i % 3, leave_another_mode, NULL);
    }
    cr_expect_eq(fegetround(), FE_UPWARD, "the caller's own was changed");
    cr_expect_eq(fegetexcept(), traps);
    fesetenv(FE_DFL_ENV);
}

/* ---- signals ---- */

static void note_mask(void *of, int thread, int threads)
{
    pthread_sigmask(SIG_BLOCK, NULL, (sigset_t *)of + thread);
}

Test(team, signals_are_for_the_programs_threads)
{
    sigset_t mask[3], own;
    cr_assert_eq(rw_team_ready(3), RW_OK);
    rw_team_run(3, note_mask, mask);
    pthread_sigmask(SIG_BLOCK, NULL, &own);
    for (int i = 1; i < 3; i++) {
        cr_expect(sigismember(&mask[i], SIGINT) && sigismember(&mask[i], SIGPROF) && sigismember(&mask[i], SIGTERM));
        cr_expect(!sigismember(&mask[i], SIGSEGV) && !sigismember(&mask[i], SIGFPE), "a fault is its own thread's");
    }
    cr_expect_eq(sigismember(&own, SIGINT), sigismember(&mask[0], SIGINT));
    cr_expect_not(sigismember(&own, SIGINT));
}

/* ---- fork ---- */

static int run_in_a_child(void)
{
    struct seen s = { 0 };
    alarm(30); /* a hang ends by a signal */
    rw_team_run(3, note, &s);
    if (s.threads != 1) return 1; /* the parent's threads do not exist */
    if (rw_team_ready(4)) return 2;
    memset(&s, 0, sizeof s);
    rw_team_run(4, note, &s);
    return s.threads == 4 && s.times[3] == 1 ? 0 : 3;
}

/* Forks between runs of the team; parent and child must both still have threads. */
static void *fork_often(void *failed)
{
    if (rw_team_ready(3)) *(int *)failed = 100;
    for (int i = 0; i < 20; i++) {
        struct seen s = { 0 };
        rw_team_run(3, note, &s);
        const pid_t child = fork();
        if (!child) _exit(run_in_a_child());
        int how = 0;
        if (waitpid(child, &how, 0) != child || !WIFEXITED(how) || WEXITSTATUS(how)) *(int *)failed = 200 + how;
        memset(&s, 0, sizeof s);
        rw_team_run(3, note, &s);
        if (s.threads != 3) *(int *)failed = 300;
    }
    return NULL;
}

Test(team, a_child_of_fork_makes_its_own, .timeout = 900)
{
    int failed = 0;
    pthread_t id;
    fork_often(&failed);
    cr_expect_eq(failed, 0, "%d", failed);
    cr_assert_eq(pthread_create(&id, NULL, fork_often, &failed), 0);
    cr_assert_eq(pthread_join(id, NULL), 0);
    cr_expect_eq(failed, 0, "in another thread: %d", failed);
}

Test(team, there_is_a_core)
{
    cr_expect_geq(rw_cores(), 1);
    cr_expect_leq(rw_cores(), sysconf(_SC_NPROCESSORS_CONF));
}
