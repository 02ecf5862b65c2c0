/* The list of entries with its lock, and the handlers of pthread_atfork(). */
#include "base/fork_handlers.h"

#include <pthread.h>
#include <stddef.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct rw_forked *first;

/* With the mutex. */
static void take_off(struct rw_forked *f)
{
    if (!f->link) return;
    *f->link = f->next;
    if (f->next) f->next->link = f->link;
    f->next = NULL;
    f->link = NULL;
}

void rw_forked_add(struct rw_forked *f, void (*in_child)(struct rw_forked *self))
{
    pthread_mutex_lock(&mutex);
    take_off(f);
    *f = (struct rw_forked){ .in_child = in_child, .next = first, .link = &first };
    if (first) first->link = &f->next;
    first = f;
    pthread_mutex_unlock(&mutex);
}

void rw_forked_remove(struct rw_forked *f)
{
    pthread_mutex_lock(&mutex);
    take_off(f);
    pthread_mutex_unlock(&mutex);
}

/* ---- around fork() ---- */

/* Holds the lock during fork(), so that the list is consistent in the child. */
static void before(void)
{
    pthread_mutex_lock(&mutex);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&mutex);
}

static void in_child(void)
{
    pthread_mutex_unlock(&mutex); /* this thread locked it, in the parent */
    while (first) {
        struct rw_forked *const f = first;
        take_off(f);
        f->in_child(f);
    }
}

__attribute__((constructor)) static void watch_fork(void)
{
    pthread_atfork(before, in_parent, in_child);
}
