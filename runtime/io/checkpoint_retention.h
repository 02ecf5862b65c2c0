/* The folder of a run's checkpoint files: names, the newest file, removal of old ones, the lock. */
#ifndef RW_IO_CHECKPOINT_RETENTION_H
#define RW_IO_CHECKPOINT_RETENTION_H

#include "base/fork_handlers.h"

#include <rewind/status.h>

#include <stddef.h>
#include <stdint.h>

/* NUMBER-stepSTEP.safetensors */
struct rw_rotated {
    uint64_t number, step;
};

struct rw_retention {
    char *folder;
    int fd;          /* descriptor of the folder, with the lock; -1: not yet, and in a child of fork() */
    struct rw_forked forked;
    uint64_t number; /* of the newest file, at the last rw_retention_lock() or save since */
    uint64_t *bad;   /* numbers of files that were found to be invalid */
    size_t n_bad, cap_bad;
};

/* Does not access the folder yet. RW_ERR_MEMORY; RW_ERR_IO with errno if the path is relative to a folder that has no
   path. */
rw_status rw_retention_init(struct rw_retention *r, const char *folder);
void rw_retention_finish(struct rw_retention *r);

/*
 * Creates the folder, locks it and removes incomplete files, unless that was done; then finds the newest number. If the
 * path now leads to another folder, or to none, that one is used in the same way. RW_ERR_IO and RW_ERR_MEMORY with the
 * reason in why.
 */
rw_status rw_retention_lock(struct rw_retention *r, char *why, size_t size);

/* Lists the files, newest first, for rw_free(); none if the folder does not exist. */
rw_status rw_retention_list(const struct rw_retention *r, struct rw_rotated **ret, size_t *ret_n, char *why,
                            size_t size);

/* For rw_free(); NULL without memory. */
char *rw_retention_path(const struct rw_retention *r, const struct rw_rotated *file);

/* Marks a file as invalid. False without memory. */
bool rw_retention_note_bad(struct rw_retention *r, uint64_t number);

/*
 * Call after a file has its name on the disk: removes all but the newest `keep` that are not marked as invalid. False
 * with the reason; the saved file is not affected.
 */
bool rw_retention_settle(struct rw_retention *r, int keep, char *why, size_t size);

#endif
