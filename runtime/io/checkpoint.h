/* rw_checkpoint, as its two halves know it: saving (checkpoint.c) and loading (restore.c). */
#ifndef RW_IO_CHECKPOINT_H
#define RW_IO_CHECKPOINT_H

#include "io/rotation.h"
#include "io/snapshot.h"
#include "record/context.h"

#include <rewind/resume.h>

#include <pthread.h>
#include <sys/types.h>

struct rw_checkpoint {
    rw_context *ctx;
    rw_optimizer *optimizer; /* NULL: none, or it was destroyed; of the averages as well */
    rw_average *average;
    struct rw_dependent on_optimizer, on_average;
    const char *lost; /* the first of the two that was destroyed; NULL: neither */
    rw_schedule *schedule;
    int keep;
    struct rw_rotation rotation;
    struct rw_snapshot snapshot;
    /* The save under way: all of the above is the thread's until it has been joined. */
    pthread_t thread;
    bool writes;
    pid_t process; /* which has the thread: a child of fork() has not */
    char *path;
    rw_status status; /* what it met, and nobody has been told */
    char why[RW_MESSAGE_MAX / 2];
    void *extra; /* what the last load handed out */
};

/* RW_OK, or RW_ERR_ARGUMENT where something that the files consist of was destroyed; recorded as an error of `call`. */
rw_status rw_checkpoint_check(const rw_checkpoint *c, const char *call);

/* Waits for the thread. What it met stays to be told. */
void rw_checkpoint_join(struct rw_checkpoint *c);

#endif
