/* The structure of rw_checkpoint, shared by saving (checkpoint.c) and loading (restore.c). */
#ifndef RW_IO_CHECKPOINT_H
#define RW_IO_CHECKPOINT_H

#include "io/checkpoint_retention.h"
#include "io/snapshot.h"
#include "record/context.h"

#include <rewind/checkpoint.h>

#include <pthread.h>

struct rw_checkpoint {
    rw_context *ctx;
    rw_optimizer *optimizer; /* NULL: none, or it was destroyed; the average likewise */
    rw_weight_average *average;
    struct rw_dependent on_optimizer, on_average;
    const char *lost; /* the one that was destroyed first; NULL: neither */
    rw_lr_schedule *schedule;
    int keep;
    struct rw_retention rotation;
    struct rw_snapshot snapshot;
    /* The save in progress: the thread owns all members above until it has been joined. */
    pthread_t thread;
    bool writes; /* not in a child of fork() */
    struct rw_forked forked;
    char *path;
    rw_status status; /* error of the thread that has not been reported yet */
    char why[RW_MESSAGE_MAX / 2];
    char left[RW_MESSAGE_MAX / 2]; /* cleanup that failed after the file was written; "": none */
    /* Of the caller's thread: the last such warning, to be reported once, and whether it was. */
    char warning[RW_MESSAGE_MAX / 2];
    bool warned;
    void *extra; /* returned by the last load */
};

/* RW_OK, or RW_ERR_ARGUMENT if an object to save was destroyed; recorded as an error of `call`. */
rw_status rw_checkpoint_check(const rw_checkpoint *c, const char *call);

/* Waits for the thread. Its error remains to be reported. */
void rw_checkpoint_join(struct rw_checkpoint *c);

#endif
