/* Atomic replacement of a file: it is written under a temporary name in the same folder, then renamed. */
#ifndef RW_BASE_ATOMIC_FILE_REPLACE_H
#define RW_BASE_ATOMIC_FILE_REPLACE_H

#include "base/fork_handlers.h"
#include "base/sigpipe_safe_output.h"

#include <rewind/status.h>

struct rw_replacement {
    int fd;              /* to write to; -1 in a child of fork() */
    FILE *stream;        /* NULL until rw_replace_stream() */
    char *target, *name, *folder; /* the target; the temporary file; the folder of both */
    struct rw_quiet quiet;
    struct rw_forked forked;
    bool transient; /* set by the caller: it is replaced again soon and need not be durable */
};

/*
 * Opens a new file in the folder of the target. If the target is a symbolic link, the link stays, and the file that it
 * names is the target. Call both functions in one thread, which writes in between: see base/sigpipe_safe_output.h.
 * RW_ERR_IO with the reason in errno, or in *ret_why if the target exists and is not a file.
 */
rw_status rw_replace_begin(struct rw_replacement *r, const char *path, const char **ret_why);

/* The file as a stream, which rw_replace_end() closes. NULL without memory. */
FILE *rw_replace_stream(struct rw_replacement *r);

/* Ends it. On RW_OK the file has replaced the target, and file and entry are durable. On failure nothing is left of
   it, unless only the sync of the folder failed: then the file is there. Returns status, or the error, with errno. */
rw_status rw_replace_end(struct rw_replacement *r, rw_status status);

#endif
