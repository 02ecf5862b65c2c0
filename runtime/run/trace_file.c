/* Names and locks of trace files, so that two processes or contexts never write to one file. */
#include "run/trace_file.h"

#include "base/file_descriptor_io.h"
#include "base/fork_handlers.h"
#include "base/sigpipe_safe_output.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4096

/* Of this process. */
static struct {
    unsigned opened; /* files so far */
    int held;        /* the first file, locked until the process ends so that no other process uses its name; -1:
                        none */
    bool by_process; /* names contain the process ID */
    struct rw_forked forked;
} names = { .held = -1 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void in_child(struct rw_forked *f)
{
    (void)f;
    if (names.held >= 0) close(names.held);
    names.held = -1;
    names.opened = 0;
    names.by_process = true;
    pthread_mutex_init(&mutex, NULL);
}

/* Expands %p in the name, and reports whether it occurs. False if the result is too long. */
static bool expand(char *path, const char *name, bool *ret_has_process)
{
    size_t n = 0;
    *ret_has_process = false;
    for (const char *c = name; *c; c++) {
        const bool process = c[0] == '%' && c[1] == 'p', percent = c[0] == '%' && c[1] == '%';
        if (n + 24 > PATH_BYTES) return false;
        if (process) n += (size_t)snprintf(path + n, PATH_BYTES - n, "%ld", (long)getpid());
        else path[n++] = *c;
        *ret_has_process |= process;
        c += process || percent;
    }
    path[n] = '\0';
    return true;
}

/* The path of this process's file number n. */
static bool make_path(char *path, const char *name, unsigned number)
{
    bool has_process;
    if (!expand(path, name, &has_process) || strlen(path) + 64 > PATH_BYTES) return false;
    if (names.by_process && !has_process) sprintf(path + strlen(path), ".%ld", (long)getpid());
    if (number > 1) sprintf(path + strlen(path), ".%u", number);
    return true;
}

/* *ret_taken: another process uses that name. */
static int open_path(const char *path, bool *ret_taken, const char **ret_why)
{
    struct stat about;
    const int fd = rw_open_output(path, O_APPEND, ret_why);
    const bool is_file = fd >= 0 && !fstat(fd, &about) && S_ISREG(about.st_mode);
    *ret_taken = is_file && rw_fd_lock(fd) == RW_FD_TAKEN;
    if (!is_file || (!*ret_taken && rw_fd_resize(fd, 0))) return fd;
    *ret_why = strerror(errno);
    close(fd);
    return -1;
}

static int open_next(const char *name, const char **ret_why)
{
    char path[PATH_BYTES];
    bool taken = false;
    const unsigned number = ++names.opened;
    int fd = -1;
    *ret_why = strerror(ENAMETOOLONG);
    if (make_path(path, name, number)) fd = open_path(path, &taken, ret_why);
    if (taken && !names.by_process) {
        names.by_process = true;
        if (make_path(path, name, number)) fd = open_path(path, &taken, ret_why);
    }
    if (fd >= 0 && names.held < 0) names.held = rw_fd_duplicate(fd);
    if (number == 1) rw_forked_add(&names.forked, in_child);
    return fd;
}

int rw_trace_file_open(const char *name, const char **ret_why)
{
    pthread_mutex_lock(&mutex);
    const int fd = open_next(name, ret_why);
    pthread_mutex_unlock(&mutex);
    return fd;
}
