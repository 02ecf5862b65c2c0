/* A file that appears whole or not at all: written beside its place under a name of its own, then renamed. */
#ifndef RW_IO_PART_H
#define RW_IO_PART_H

#include "base/output.h"

#include <rewind/status.h>

#include <stdbool.h>
#include <stdio.h>

struct rw_part {
    FILE *file;
    char *target, *name; /* where it goes; where it is */
    struct rw_quiet quiet;
    bool passing; /* set by who opened it: a new one comes soon, and it appears before it is on the disk */
};

/*
 * Opens a new file beside the target. A target that is a symbolic link stays: the file that it names is the target.
 * Both are calls of one thread, which writes in between: see base/output.h.
 * RW_ERR_IO with the reason in errno, or in *ret_why where it is not the system's: the target is there and is no file.
 */
rw_status rw_part_open(struct rw_part *part, const char *path, const char **ret_why);

/* Ends it: on RW_OK the bytes are on the disk and the file has taken the target's place, else nothing is left of it.
 * Returns status, or what failed, with errno. */
rw_status rw_part_close(struct rw_part *part, rw_status status);

#endif
