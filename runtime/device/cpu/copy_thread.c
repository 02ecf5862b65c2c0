/* The copy thread of the CPU device: a ring of queued copies, one condition for work and one for progress. */
#include "device/cpu/copy_thread.h"

#include "base/alloc.h"
#include "base/fork_handlers.h"
#include "device/lane_queues.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define QUEUED_MAX 256
#define SHORT_SLICE_NS 100000 /* the minimum that Linux allows */

/* Copies are counted from 1; copy i is in queue[i % QUEUED_MAX] until it is done. */
struct rw_copier {
    pthread_mutex_t mutex;
    pthread_cond_t work, progress;
    pthread_t thread;
    struct rw_forked forked;
    bool alone; /* in a child of fork(): without the thread */
    bool stops;
    struct rw_copy queue[QUEUED_MAX];
    uint64_t queued, done;
    rw_status status; /* of the first copy that failed */
    uint64_t failed;  /* its number */
    bool told;
    char why[RW_CPU_MESSAGE];
    void *room;
};

struct rw_events {
    uint64_t after; /* all copies up to this one */
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

/* Requests short time slices for the calling thread. Nothing else changes, and a refusal has no effect. */
static void request_short_slices(void)
{
#ifdef SYS_sched_setattr
    struct attributes a = { 0 };
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) || a.policy != SCHED_OTHER) return;
    a.runtime = SHORT_SLICE_NS;
    syscall(SYS_sched_setattr, 0, &a, 0);
#endif
}

/* The thread: executes queued copies in order, and after a failure only counts them. */
static void *serve(void *argument)
{
    struct rw_copier *const c = argument;
    request_short_slices();
    pthread_mutex_lock(&c->mutex);
    for (;;) {
        while (c->done == c->queued && !c->stops) pthread_cond_wait(&c->work, &c->mutex);
        if (c->done == c->queued) break;
        const uint64_t number = c->done + 1;
        const struct rw_copy copy = c->queue[number % QUEUED_MAX];
        const bool continues = !c->status;
        pthread_mutex_unlock(&c->mutex);
        if (continues) carry_out(c, &copy, number);
        pthread_mutex_lock(&c->mutex);
        c->done++;
        pthread_cond_broadcast(&c->progress);
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

/* Starts the thread with all signals blocked: the program's signals are for its own threads. */
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
}

/* In the child the thread does not exist, and its copies belong to the parent. */
static void in_child(struct rw_forked *f)
{
    struct rw_copier *const c = (struct rw_copier *)(void *)((char *)f - offsetof(struct rw_copier, forked));
    init(c);
    c->alone = true;
    c->done = c->queued;
    c->status = RW_OK;
}

/* Allocates the copier and starts its thread. */
rw_status rw_cpu_lanes_start(struct rw_cpu *cpu)
{
    if (cpu->copier) return RW_OK;
    struct rw_copier *const c = rw_calloc(1, sizeof *c);
    void *const room = rw_malloc_aligned(RW_COPY_CHUNK, RW_COPY_ALIGNMENT);
    if (c && room) {
        c->room = room;
        init(c);
        rw_forked_add(&c->forked, in_child);
        if (!start_thread(c)) {
            cpu->copier = c;
            return RW_OK;
        }
        rw_forked_remove(&c->forked);
        snprintf(cpu->message, sizeof cpu->message, "the thread that copies to and from files could not be started");
    }
    rw_free_aligned(room);
    rw_free(c);
    return RW_ERR_MEMORY;
}

/* Waits for the queue, ends the thread and frees the copier. */
void rw_cpu_lanes_stop(struct rw_cpu *cpu)
{
    struct rw_copier *const c = cpu->copier;
    if (!c) return;
    rw_forked_remove(&c->forked);
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

/* The mutex is held. */
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

/* Queues a copy for the thread, or executes it in a child of fork(). */
void rw_cpu_lanes_queue(struct rw_cpu *cpu, const struct rw_copy *copy)
{
    struct rw_copier *const c = cpu->copier;
    pthread_mutex_lock(&c->mutex);
    if (c->queued >= QUEUED_MAX) wait_until(c, c->queued + 1 - QUEUED_MAX);
    c->queue[++c->queued % QUEUED_MAX] = *copy;
    if (!c->alone) pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->mutex);
    if (!c->alone) return;
    if (!c->status) carry_out(c, copy, c->queued);
    c->done++;
}

rw_status rw_cpu_lanes_finish(struct rw_cpu *cpu)
{
    struct rw_copier *const c = cpu->copier;
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
    struct rw_copier *const c = cpu->copier;
    if (!c) return;
    pthread_mutex_lock(&c->mutex);
    wait_until(c, c->queued);
    pthread_mutex_unlock(&c->mutex);
}

bool rw_cpu_lanes_are_done(struct rw_cpu *cpu)
{
    struct rw_copier *const c = cpu->copier;
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
    struct rw_copier *const c = ((struct rw_cpu *)state)->copier;
    events[event].after = c && lane != RW_LANE_COMPUTE ? c->queued : 0;
    return RW_OK;
}

/* Only the compute lane waits. Copies are executed one after the other, so they need not wait for each other. */
rw_status rw_cpu_wait(void *state, int lane, struct rw_events *events, size_t event)
{
    struct rw_copier *const c = ((struct rw_cpu *)state)->copier;
    if (!c || lane != RW_LANE_COMPUTE || !events[event].after) return RW_OK;
    pthread_mutex_lock(&c->mutex);
    wait_until(c, events[event].after);
    const rw_status status = c->status && c->failed <= events[event].after ? tell(state, c) : RW_OK;
    pthread_mutex_unlock(&c->mutex);
    return status;
}
