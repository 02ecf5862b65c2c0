/*
 * The team: workers, their gates, and jobs.
 *
 * The caller stores the job, then sets the gates of the workers that have a share. Each decrements `pending` when it is
 * done, and the last one opens the caller's gate. A worker without a share is not woken and reads nothing of the job. A
 * worker closes its own gate before it decrements `pending`, so all gates are closed when the caller returns to them.
 *
 * Memory orders, for processors such as ARM64 that reorder loads and stores:
 *   - The job is written before a gate is set, which is a release, and read after waiting there, which is an acquire.
 *   - A worker closes its gate by a relaxed store. The next thread that writes the word is the caller. It has acquired
 *     the worker's decrement of `pending`, which follows the store.
 *   - `pending` and `arrived` change by read-modify-write operations with acquire and release, which form one release
 *     sequence. So the last thread sees what all others wrote, and publishes it by setting a gate.
 *   - A relaxed load of `round` is never too old: the thread has acquired the last change at the barrier before, or by
 *     the job, which was given after that barrier. `arrived` is zero again before `round` is set.
 *   - `spins` is a hint.
 */
#include "base/thread_team.h"

#include "base/cores.h"
#include "base/float_mode.h"
#include "base/fork_handlers.h"
#include "base/thread_gate.h"
#include "base/block_signals.h"

#include <rewind/context.h>

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#define LINE 64 /* bytes that processors transfer between caches: 64, on some in pairs */
#define STACK_BYTES ((size_t)2 << 20)

enum { PARKED, JOB, END }; /* a worker's gate */
enum { RUNNING, DONE };    /* the caller's */

struct worker {
    _Alignas(2 * LINE) struct rw_gate gate;
    int thread; /* its number in jobs, from 1 on */
    struct team *team;
    pthread_t id;
};

struct team {
    struct rw_forked forked; /* first */
    rw_team_job *job; /* the running job */
    void *of;
    int threads; /* that have a share of it */
    int size;    /* the caller and its workers */
    bool spins;  /* waiting threads spin before they sleep */
    bool runs; /* known to the caller alone */
    _Alignas(2 * LINE) int pending;
    struct rw_gate done;
    _Alignas(2 * LINE) int arrived; /* at the barrier */
    struct rw_gate round;
    struct worker worker[RW_MAX_THREADS - 1];
};

/* The calling thread's. */
static _Thread_local struct {
    struct team *own;    /* NULL before its first rw_team_ready() */
    struct team *inside; /* the team whose job it is in; NULL if it is the job's only thread */
    bool works;          /* it is a worker */
} self;

static bool spins(const struct team *t)
{
    return __atomic_load_n(&t->spins, __ATOMIC_RELAXED);
}

/* ---- workers ---- */

static void *serve(void *argument)
{
    struct worker *const w = argument;
    struct team *const t = w->team;
    self.works = true;
    self.inside = t;
    for (;;) {
        if (rw_gate_wait(&w->gate, PARKED, spins(t)) == END) return NULL;
        rw_float_mode_normal();
        t->job(t->of, w->thread, t->threads);
        __atomic_store_n(&w->gate.word, PARKED, __ATOMIC_RELAXED);
        if (__atomic_sub_fetch(&t->pending, 1, __ATOMIC_ACQ_REL) == 0) rw_gate_set(&t->done, DONE);
    }
}

/* Ends workers until so many threads are left. */
static void end_workers(struct team *t, int size)
{
    for (int i = size; i < t->size; i++) rw_gate_set(&t->worker[i - 1].gate, END);
    for (int i = size; i < t->size; i++) pthread_join(t->worker[i - 1].id, NULL);
    t->size = size;
}

/* glibc takes the static TLS of the program and its libraries from the stack, and refuses a requested size that is too
   small for it; then the thread has a stack of the default size. */
static bool start_worker(struct team *t, const pthread_attr_t *attributes)
{
    struct worker *const w = &t->worker[t->size - 1];
    sigset_t signals;
    *w = (struct worker){ .thread = t->size, .team = t };
    rw_signals_hold(&signals);
    int error = pthread_create(&w->id, attributes, serve, w);
    if (error == EINVAL) error = pthread_create(&w->id, NULL, serve, w);
    rw_signals_let(&signals);
    t->size += !error;
    return !error;
}

static bool start_workers(struct team *t, int size)
{
    pthread_attr_t attributes;
    bool started = !pthread_attr_init(&attributes);
    if (!started) return false;
    started = !pthread_attr_setstacksize(&attributes, STACK_BYTES);
    while (started && t->size < size) started = start_worker(t, &attributes);
    pthread_attr_destroy(&attributes);
    return started;
}

/* ---- the team of a thread ---- */

static pthread_key_t of_thread; /* ends the team with its thread */
static bool is_keyed;

static void destroy(void *argument)
{
    struct team *const t = argument;
    end_workers(t, 1);
    rw_forked_remove(&t->forked);
    munmap(t, sizeof *t);
    self.own = NULL;
}

static void make_key(void)
{
    is_keyed = !pthread_key_create(&of_thread, destroy);
}

/* In a child of fork(): workers of all teams do not exist there. */
static void forget_workers(struct rw_forked *f)
{
    struct team *const t = (struct team *)f;
    rw_gate_after_fork();
    self.works = false;
    self.inside = NULL;
    t->size = 1;
    t->runs = false;
    t->pending = t->arrived = 0;
    t->done = t->round = (struct rw_gate){ 0 };
}

/* NULL without memory. Not from the heap, whose balance programs may check after the last context; pages are only
   touched by large teams. */
static struct team *create(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    if (!is_keyed) return NULL;
    struct team *const t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) return NULL;
    t->size = 1;
    if (!pthread_setspecific(of_thread, t)) return t;
    munmap(t, sizeof *t);
    return NULL;
}

rw_status rw_team_ready(int threads)
{
    if (threads <= rw_team_size()) return RW_OK;
    if (!self.own) self.own = create();
    struct team *const t = self.own;
    if (!t) return RW_ERR_MEMORY;
    const int before = t->size;
    if (!t->forked.link) rw_forked_add(&t->forked, forget_workers);
    __atomic_store_n(&t->spins, threads <= rw_cores(), __ATOMIC_RELAXED);
    if (start_workers(t, threads)) return RW_OK;
    end_workers(t, before);
    return RW_ERR_MEMORY;
}

int rw_team_size(void)
{
    return self.own ? self.own->size : 1;
}

/* ---- jobs ---- */

static void run_alone(rw_team_job *job, void *of)
{
    struct team *const inside = self.inside;
    self.inside = NULL;
    job(of, 0, 1);
    self.inside = inside;
}

void rw_team_run(int threads, rw_team_job *job, const void *argument)
{
    void *const of = (void *)(uintptr_t)argument;
    struct team *const t = self.own;
    const int n = t && threads > t->size ? t->size : threads;
    if (n < 2 || !t || t->runs || self.works) {
        run_alone(job, of);
        return;
    }
    t->job = job;
    t->of = of;
    t->threads = n;
    t->pending = n - 1;
    t->done.word = RUNNING;
    t->runs = true;
    for (int i = 1; i < n; i++) rw_gate_set(&t->worker[i - 1].gate, JOB);
    self.inside = t;
    job(of, 0, n);
    rw_gate_wait(&t->done, RUNNING, spins(t));
    self.inside = NULL;
    t->runs = false;
}

void rw_team_barrier(void)
{
    struct team *const t = self.inside;
    if (!t) return;
    const uint32_t round = __atomic_load_n(&t->round.word, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&t->arrived, 1, __ATOMIC_ACQ_REL) < t->threads) {
        rw_gate_wait(&t->round, round, spins(t));
        return;
    }
    __atomic_store_n(&t->arrived, 0, __ATOMIC_RELAXED);
    rw_gate_set(&t->round, round + 1);
}

/* ---- loops ---- */

struct loop {
    int64_t n;
    rw_team_range *range;
    void *of;
};

static void run_range(void *of, int thread, int threads)
{
    const struct loop *const l = of;
    const int64_t first = rw_team_first(l->n, thread, threads), end = rw_team_first(l->n, thread + 1, threads);
    if (first < end) l->range(l->of, first, end);
}

void rw_team_for(int threads, int64_t n, rw_team_range *range, const void *of)
{
    void *const argument = (void *)(uintptr_t)of;
    if (threads < 2 || n < 2) { /* most nodes of small models: avoids access to the thread's team */
        if (n > 0) range(argument, 0, n);
        return;
    }
    const struct loop l = { n, range, argument };
    rw_team_run(threads < n ? threads : (int)n, run_range, &l);
}
