/*
 * A registry of what a child of fork() must not inherit: a lock on a folder, a file that one process writes, a thread.
 * The owner registers it while it is held. In the child the registry calls each handler once, before fork() returns,
 * and removes the entry; what the child acquires itself is registered again.
 *
 * The registry is active from the loading of the library on, so forks before the first context count. vfork(),
 * posix_spawn() and a bare clone() call no handlers: such a child has the descriptors until it executes a program.
 */
#ifndef RW_BASE_FORK_HANDLERS_H
#define RW_BASE_FORK_HANDLERS_H

/* A member of the owner, at an address that stays valid until rw_forked_remove(). */
struct rw_forked {
    /* Runs in the child's only thread. The parent's other threads may have been stopped anywhere, so the handler
       must not allocate, free or lock. It may close descriptors and initialize the owner's locks. */
    void (*in_child)(struct rw_forked *self);
    struct rw_forked *next, **link; /* of the list; link NULL: not in it */
};

/* Any thread. */
void rw_forked_add(struct rw_forked *f, void (*in_child)(struct rw_forked *self));
void rw_forked_remove(struct rw_forked *f); /* does nothing if it is not in the list */

#endif
