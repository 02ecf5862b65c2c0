/* See lanes.h. */
#include "device/cpu/lanes.h"

#include "base/alloc.h"
#include "device/cpu/threads.h"
#include "device/lane.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define QUEUED_MOST 256
#define SHORT_TURN_NS 100000 /* the shortest there is */

/* Copies are counted from 1; copy i waits in queue[i % QUEUED_MOST] until it is done. */
struct rw_copier {
    pthread_mutex_t mutex;
    pthread_cond_t work, progress;
    pthread_t thread;
    unsigned forks; /* of the process when the thread was started */
    bool alone;     /* without a thread */
    bool stops;
    struct rw_copy queue[QUEUED_MOST];
    uint64_t queued, done;
    rw_status status; /* of the first copy that failed */
    uint64_t failed;  /* which that is */
    bool told;
    char why[RW_CPU_MESSAGE];
    void *room;
};

struct rw_events {
    uint64_t after; /* the copies up to this one */
};

static void carry_out(struct rw_copier *c, const struct rw_copy *copy, uint64_t number)
{
    char why[RW_CPU_MESSAGE] = "";
    const rw_status status = copy->run(copy, c->room, why, sizeof why);
    pthread_mutex_lock(&c->mutex);
    if (status) {
        c->status = status;
        c->failed = number;
        c->told = false;
        snprintf(c->why, sizeof c->why, "%s", why);
    }
    pthread_mutex_unlock(&c->mutex);
}

/* struct sched_attr of Linux, which C libraries lack. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* Of the calling thread: nothing else changes, and where it is refused, nothing at all. */
static void ask_for_short_turns(void)
{
#ifdef SYS_sched_setattr
    struct attributes a = { 0 };
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) || a.policy != SCHED_OTHER) return;
    a.runtime = SHORT_TURN_NS;
    syscall(SYS_sched_setattr, 0, &a, 0);
#endif
}

static void *serve(void *argument)
{
    struct rw_copier *const c = argument;
    ask_for_short_turns();
    pthread_mutex_lock(&c->mutex);
    for (;;) {
        while (c->done == c->queued && !c->stops) pthread_cond_wait(&c->work, &c->mutex);
        if (c->done == c->queued) break;
        const uint64_t number = c->done + 1;
        const struct rw_copy copy = c->queue[number % QUEUED_MOST];
        const bool goes_on = !c->status;
        pthread_mutex_unlock(&c->mutex);
        if (goes_on) carry_out(c, &copy, number);
        pthread_mutex_lock(&c->mutex);
        c->done++;
        pthread_cond_broadcast(&c->progress);
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

/* The program's signals are for its own threads. */
static int start_thread(struct rw_copier *c)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&c->thread, NULL, serve, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void init(struct rw_copier *c)
{
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->progress, NULL);
    c->forks = rw_threads_forks();
    c->alone = c->forks > 0;
}

rw_status rw_cpu_lanes_start(struct rw_cpu *cpu)
{
    if (cpu->copier) return RW_OK;
    struct rw_copier *const c = rw_calloc(1, sizeof *c);
    void *const room = rw_malloc_aligned(RW_COPY_CHUNK, RW_COPY_ALIGNMENT);
    if (c && room) {
        c->room = room;
        init(c);
        if (c->alone || !start_thread(c)) {
            cpu->copier = c;
            return RW_OK;
        }
        snprintf(cpu->message, sizeof cpu->message, "the thread that copies to and from files cannot be started");
    }
    rw_free_aligned(room);
    rw_free(c);
    return RW_ERR_MEMORY;
}

/* In a child the thread is not there, and what it was doing is the parent's. */
static struct rw_copier *copier_of(struct rw_cpu *cpu)
{
    struct rw_copier *const c = cpu->copier;
    if (!c || c->forks == rw_threads_forks()) return c;
    init(c);
    c->done = c->queued;
    c->status = RW_OK;
    return c;
}

void rw_cpu_lanes_stop(struct rw_cpu *cpu)
{
    struct rw_copier *const c = copier_of(cpu);
    if (!c) return;
    if (!c->alone) {
        pthread_mutex_lock(&c->mutex);
        c->stops = true;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->mutex);
        pthread_join(c->thread, NULL);
    }
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->progress);
    rw_free_aligned(c->room);
    rw_free(c);
    cpu->copier = NULL;
}

/* With the mutex. */
static void wait_until(struct rw_copier *c, uint64_t copy)
{
    while (c->done < copy) pthread_cond_wait(&c->progress, &c->mutex);
}

static rw_status tell(struct rw_cpu *cpu, struct rw_copier *c)
{
    if (c->status) snprintf(cpu->message, sizeof cpu->message, "%s", c->why);
    if (c->status) c->told = true;
    return c->status;
}

void rw_cpu_lanes_queue(struct rw_cpu *cpu, const struct rw_copy *copy)
{
    struct rw_copier *const c = copier_of(cpu);
    pthread_mutex_lock(&c->mutex);
    if (c->queued >= QUEUED_MOST) wait_until(c, c->queued + 1 - QUEUED_MOST);
    c->queue[++c->queued % QUEUED_MOST] = *copy;
    if (!c->alone) pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->mutex);
    if (!c->alone) return;
    if (!c->status) carry_out(c, copy, c->queued);
    c->done++;
}

rw_status rw_cpu_lanes_finish(struct rw_cpu *cpu)
{
    struct rw_copier *const c = copier_of(cpu);
    if (!c) return RW_OK;
    pthread_mutex_lock(&c->mutex);
    wait_until(c, c->queued);
    const rw_status status = c->told ? RW_OK : tell(cpu, c);
    c->status = RW_OK;
    c->told = false;
    pthread_mutex_unlock(&c->mutex);
    return status;
}

void rw_cpu_lanes_drain(struct rw_cpu *cpu)
{
    struct rw_copier *const c = copier_of(cpu);
    if (!c) return;
    pthread_mutex_lock(&c->mutex);
    wait_until(c, c->queued);
    pthread_mutex_unlock(&c->mutex);
}

bool rw_cpu_lanes_are_done(struct rw_cpu *cpu)
{
    struct rw_copier *const c = copier_of(cpu);
    if (!c) return true;
    pthread_mutex_lock(&c->mutex);
    const bool done = c->done == c->queued;
    pthread_mutex_unlock(&c->mutex);
    return done;
}

/* ---- events ---- */

struct rw_events *rw_cpu_make_events(void *state, size_t n)
{
    return rw_calloc(n, sizeof(struct rw_events));
}

void rw_cpu_free_events(void *state, struct rw_events *events)
{
    rw_free(events);
}

rw_status rw_cpu_signal(void *state, int lane, struct rw_events *events, size_t event)
{
    struct rw_copier *const c = copier_of(state);
    events[event].after = c && lane != RW_LANE_COMPUTE ? c->queued : 0;
    return RW_OK;
}

/* Copies are carried out one after the other, so among themselves they wait for nothing. */
rw_status rw_cpu_wait(void *state, int lane, struct rw_events *events, size_t event)
{
    struct rw_copier *const c = copier_of(state);
    if (!c || lane != RW_LANE_COMPUTE || !events[event].after) return RW_OK;
    pthread_mutex_lock(&c->mutex);
    wait_until(c, events[event].after);
    const rw_status status = c->status && c->failed <= events[event].after ? tell(state, c) : RW_OK;
    pthread_mutex_unlock(&c->mutex);
    return status;
}
