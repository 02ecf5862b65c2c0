/*
 * Dependents of an object: caches that refer to it and do not keep it alive. The object owns the list; each dependent
 * is a member of a cache whose address does not change. When the object is freed, it calls gone() of each, once, while
 * all of it is still usable; the dependent is unlinked before.
 */
#ifndef RW_BASE_WEAK_REFS_H
#define RW_BASE_WEAK_REFS_H

#include <stddef.h>

struct rw_dependent {
    struct rw_dependent *next, **link; /* link NULL: it depends on nothing */
    void (*gone)(struct rw_dependent *d);
};

static inline void rw_depend(struct rw_dependent **list, struct rw_dependent *d, void (*gone)(struct rw_dependent *d))
{
    *d = (struct rw_dependent){ .next = *list, .link = list, .gone = gone };
    if (d->next) d->next->link = &d->next;
    *list = d;
}

static inline void rw_depend_end(struct rw_dependent *d)
{
    if (!d->link) return;
    *d->link = d->next;
    if (d->next) d->next->link = d->link;
    *d = (struct rw_dependent){ 0 };
}

/* gone() may end other dependencies on the same object. */
static inline void rw_dependents_tell(struct rw_dependent **list)
{
    while (*list) {
        struct rw_dependent *const d = *list;
        void (*const gone)(struct rw_dependent *) = d->gone;
        rw_depend_end(d);
        gone(d);
    }
}

#endif
