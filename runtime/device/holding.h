/*
 * What a plan holds of a device's libraries: objects that its kernels use, made when the plan was made. Counted: a
 * problem and the plans made of it share one. The device puts this first in a struct of its own.
 */
#ifndef RW_DEVICE_HOLDING_H
#define RW_DEVICE_HOLDING_H

#include <stddef.h>

struct rw_holding {
    int references;
    void (*let_go)(struct rw_holding *h); /* the last reference is gone: frees it, too */
};

static inline struct rw_holding *rw_holding_share(struct rw_holding *h)
{
    if (h) h->references++;
    return h;
}

static inline void rw_holding_release(struct rw_holding *h)
{
    if (h && !--h->references) h->let_go(h);
}

#endif
