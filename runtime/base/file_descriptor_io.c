/* Loops around open, read, write, fallocate, fsync and flock. */
#include "base/file_descriptor_io.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

#define UNLESS_INTERRUPTED(result, call)    \
    do {                                    \
        (result) = (call);                  \
    } while ((result) < 0 && errno == EINTR)

int rw_fd_open(const char *path, int flags, unsigned mode)
{
    int fd;
    UNLESS_INTERRUPTED(fd, open(path, flags | O_CLOEXEC, mode));
    return fd;
}

int rw_fd_open_at(int folder, const char *path, int flags)
{
    int fd;
    UNLESS_INTERRUPTED(fd, openat(folder, path, flags | O_CLOEXEC));
    return fd;
}

int rw_fd_duplicate(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

bool rw_fd_write(int fd, const void *data, size_t n, size_t *ret_n)
{
    const char *const from = data;
    *ret_n = 0;
    while (*ret_n < n) {
        ssize_t done;
        UNLESS_INTERRUPTED(done, write(fd, from + *ret_n, n - *ret_n));
        if (!done) errno = ENOSPC;
        if (done <= 0) return false;
        *ret_n += (size_t)done;
    }
    return true;
}

bool rw_fd_write_at(int fd, const void *data, size_t n, uint64_t at)
{
    for (const char *from = data; n;) {
        ssize_t done;
        UNLESS_INTERRUPTED(done, pwrite(fd, from, n, (off_t)at));
        if (!done) errno = ENOSPC;
        if (done <= 0) return false;
        from += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return true;
}

bool rw_fd_read_at(int fd, void *data, size_t n, uint64_t at)
{
    for (char *to = data; n;) {
        ssize_t done;
        UNLESS_INTERRUPTED(done, pread(fd, to, n, (off_t)at));
        if (!done) errno = 0;
        if (done <= 0) return false;
        to += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return true;
}

/* tmpfs restarts after each signal, and would never end under a profiler's timer. */
int rw_fd_reserve(int fd, uint64_t bytes)
{
    sigset_t all, before;
    int failed = fallocate(fd, 0, 0, (off_t)bytes);
    if (!failed || errno != EINTR) return failed ? errno : 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    UNLESS_INTERRUPTED(failed, fallocate(fd, 0, 0, (off_t)bytes));
    const int error = failed ? errno : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

bool rw_fd_resize(int fd, uint64_t bytes)
{
    int failed;
    UNLESS_INTERRUPTED(failed, ftruncate(fd, (off_t)bytes));
    return !failed;
}

bool rw_fd_sync(int fd)
{
    int failed;
    UNLESS_INTERRUPTED(failed, fsync(fd));
    return !failed;
}

enum rw_fd_lock rw_fd_lock(int fd)
{
    int failed;
    UNLESS_INTERRUPTED(failed, flock(fd, LOCK_EX | LOCK_NB));
    return !failed ? RW_FD_LOCKED : errno == EWOULDBLOCK ? RW_FD_TAKEN : RW_FD_NO_LOCKS;
}

void rw_fd_unlock(int fd)
{
    flock(fd, LOCK_UN);
}
