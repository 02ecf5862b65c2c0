/* See output.h. */
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static sigset_t size_limit(void)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    return one;
}

struct rw_quiet rw_quiet_begin(void)
{
    const int error = errno;
    const sigset_t one = size_limit();
    struct rw_quiet q;
    sigset_t pending;
    sigpending(&pending);
    q.pending = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &one, &q.before);
    errno = error;
    return q;
}

void rw_quiet_end(const struct rw_quiet *quiet)
{
    const int error = errno;
    const sigset_t one = size_limit();
    while (!quiet->pending && sigtimedwait(&one, NULL, &(struct timespec){ 0 }) == -1 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
    errno = error;
}

struct rw_printing rw_printing_begin(FILE *out)
{
    const struct rw_printing p = {
        .out = out, .quiet = rw_quiet_begin(), .error = errno, .failed_before = ferror(out) != 0
    };
    errno = 0;
    return p;
}

/* A stream remembers that a write failed, and errno why: what is written behind it fails alike. */
const char *rw_printing_end(struct rw_printing *p)
{
    const bool failed = fflush(p->out) || (ferror(p->out) && !p->failed_before);
    const char *const why = !failed ? NULL : errno ? strerror(errno) : "its stream has failed";
    errno = p->error;
    rw_quiet_end(&p->quiet);
    return why;
}

const char *rw_file_fault(unsigned mode)
{
    if (S_ISREG(mode)) return NULL;
    if (S_ISDIR(mode)) return "a directory, not a file";
    if (S_ISFIFO(mode)) return "a FIFO, not a file";
    if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device, not a file";
    return S_ISSOCK(mode) ? "a socket, not a file" : "not a file";
}

/* Without O_NONBLOCK opening a FIFO would wait for somebody who reads. */
int rw_open_output(const char *path, int flags, const char **ret_why)
{
    struct stat about;
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | flags, 0666);
    *ret_why = fd < 0 ? strerror(errno) : NULL;
    const bool known = fd < 0 ? !stat(path, &about) : !fstat(fd, &about);
    if (known && !S_ISREG(about.st_mode) && !S_ISCHR(about.st_mode)) *ret_why = rw_file_fault(about.st_mode);
    if (!*ret_why && fcntl(fd, F_SETFL, flags & O_APPEND)) *ret_why = strerror(errno);
    if (!*ret_why) return fd;
    if (fd >= 0) close(fd);
    return -1;
}
