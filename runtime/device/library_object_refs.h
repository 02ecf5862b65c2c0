/*
 * Objects of a device's libraries that a plan needs, such as oneDNN primitives. They are made when the plan is made,
 * and counted: a problem and its plans share one reference structure. The device places this at the beginning of a
 * struct of its own.
 */
#ifndef RW_DEVICE_LIBRARY_OBJECT_REFS_H
#define RW_DEVICE_LIBRARY_OBJECT_REFS_H

#include <stddef.h>

struct rw_library_ref {
    int references;
    size_t bytes; /* maximum bytes that the libraries use for these objects */
    void (*let_go)(struct rw_library_ref *h); /* called when the last reference is released; frees h too */
};

static inline struct rw_library_ref *rw_library_ref_share(struct rw_library_ref *h)
{
    if (h) h->references++;
    return h;
}

static inline void rw_library_ref_release(struct rw_library_ref *h)
{
    if (h && !--h->references) h->let_go(h);
}

#endif
