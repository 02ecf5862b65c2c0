/*
 * Writing to files without harm to the process. Exceeding a file size limit, or a pipe without a reader, is an error
 * and not a signal that ends the process; something that is not a file does not block a call.
 */
#ifndef RW_BASE_SIGPIPE_SAFE_OUTPUT_H
#define RW_BASE_SIGPIPE_SAFE_OUTPUT_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

#define RW_QUIET 2 /* signals: SIGXFSZ, SIGPIPE */

struct rw_quiet {
    sigset_t before;
    bool pending[RW_QUIET]; /* was pending before: then it belongs to other code */
};

/* Between the two, writes of this thread fail with EFBIG and EPIPE instead of raising SIGXFSZ and SIGPIPE. errno is
   preserved. */
struct rw_quiet rw_quiet_begin(void);
void rw_quiet_end(const struct rw_quiet *quiet);

/* Printing to a caller's stream between the two. A stream that has failed before fails again, as what is
   written to it may be lost. */
struct rw_printing {
    FILE *out;
    struct rw_quiet quiet;
    int error; /* errno, as the caller left it */
};
struct rw_printing rw_printing_begin(FILE *out);

/* NULL if everything was passed to the system, else the system's reason. errno is preserved. */
const char *rw_printing_end(struct rw_printing *printing);

/* NULL for a file; otherwise what it is, as "a directory, not a file". */
const char *rw_file_fault(unsigned mode);

/*
 * Opens a file, or a device such as /dev/null, for writing, with O_APPEND or O_TRUNC as further flags. -1 with the
 * reason: the system's, or what it is instead of a file.
 */
int rw_open_output(const char *path, int flags, const char **ret_why);

#endif
