/*
 * Files that are written to, without harm to the process: a limit on a file's size is an error and not the signal that
 * ends it, and what is no file neither keeps a call waiting nor ends the process when its reader goes.
 */
#ifndef RW_BASE_OUTPUT_H
#define RW_BASE_OUTPUT_H

#include <signal.h>
#include <stdbool.h>

struct rw_quiet {
    sigset_t before;
    bool pending; /* already: then it is somebody else's */
};

/* Writes of this thread between the two meet EFBIG, and no SIGXFSZ. errno stays. */
struct rw_quiet rw_quiet_begin(void);
void rw_quiet_end(const struct rw_quiet *quiet);

/* NULL for a file; else what it is, as "a directory, not a file". */
const char *rw_file_fault(unsigned mode);

/*
 * Opens a file, or a device as /dev/null is, to write to, with O_APPEND or O_TRUNC as more flags. -1 with the reason:
 * the system's, or what it is instead of a file.
 */
int rw_open_output(const char *path, int flags, const char **ret_why);

#endif
