/*
 * Files that are written to, without harm to the process: a limit on a file's size is an error and not the signal that
 * ends it, and what is no file neither keeps a call waiting nor ends the process when its reader goes.
 */
#ifndef RW_BASE_OUTPUT_H
#define RW_BASE_OUTPUT_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

struct rw_quiet {
    sigset_t before;
    bool pending; /* already: then it is somebody else's */
};

/* Writes of this thread between the two meet EFBIG, and no SIGXFSZ. errno stays. */
struct rw_quiet rw_quiet_begin(void);
void rw_quiet_end(const struct rw_quiet *quiet);

/* What is printed to a caller's stream between the two. What failed on it before is not our failure. */
struct rw_printing {
    FILE *out;
    struct rw_quiet quiet;
    int error; /* errno, as the caller left it */
    bool failed_before;
};
struct rw_printing rw_printing_begin(FILE *out);

/* NULL when all has been handed to the system, else the system's reason. errno stays. */
const char *rw_printing_end(struct rw_printing *printing);

/* NULL for a file; else what it is, as "a directory, not a file". */
const char *rw_file_fault(unsigned mode);

/*
 * Opens a file, or a device as /dev/null is, to write to, with O_APPEND or O_TRUNC as more flags. -1 with the reason:
 * the system's, or what it is instead of a file.
 */
int rw_open_output(const char *path, int flags, const char **ret_why);

#endif
