/* Blocks SIGXFSZ and SIGPIPE around writes, reports errors of streams, and opens output files. */
#include "base/sigpipe_safe_output.h"

#include "base/file_descriptor_io.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Signals that a write raises in its own thread, and that by default end the process. */
static const int raised[RW_QUIET] = { SIGXFSZ, SIGPIPE };

static sigset_t set_of_all(void)
{
    sigset_t all;
    sigemptyset(&all);
    for (int i = 0; i < RW_QUIET; i++) sigaddset(&all, raised[i]);
    return all;
}

struct rw_quiet rw_quiet_begin(void)
{
    const int error = errno;
    const sigset_t all = set_of_all();
    struct rw_quiet q;
    sigset_t pending;
    sigpending(&pending);
    for (int i = 0; i < RW_QUIET; i++) q.pending[i] = sigismember(&pending, raised[i]) == 1;
    pthread_sigmask(SIG_BLOCK, &all, &q.before);
    errno = error;
    return q;
}

static void take(int signal)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    while (sigtimedwait(&one, NULL, &(struct timespec){ 0 }) == -1 && errno == EINTR) {
    }
}

void rw_quiet_end(const struct rw_quiet *quiet)
{
    const int error = errno;
    for (int i = 0; i < RW_QUIET; i++)
        if (!quiet->pending[i]) take(raised[i]);
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
    errno = error;
}

struct rw_printing rw_printing_begin(FILE *out)
{
    const struct rw_printing p = { .out = out, .quiet = rw_quiet_begin(), .error = errno };
    errno = 0;
    return p;
}

/* A stream remembers that a write failed, and errno the reason: later writes fail in the same way. That is not cleared,
   because the caller may look at it in the end. */
const char *rw_printing_end(struct rw_printing *p)
{
    const bool failed = fflush(p->out) || ferror(p->out);
    const char *const why = !failed ? NULL : errno ? strerror(errno) : "it has failed before; call clearerr() first";
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

/* Opens with O_NONBLOCK, because opening a FIFO would otherwise wait for a reader. */
int rw_open_output(const char *path, int flags, const char **ret_why)
{
    struct stat about;
    const int fd = rw_fd_open(path, O_WRONLY | O_CREAT | O_NONBLOCK | flags, 0666);
    *ret_why = fd < 0 ? strerror(errno) : NULL;
    const bool known = fd < 0 ? !stat(path, &about) : !fstat(fd, &about);
    if (known && !S_ISREG(about.st_mode) && !S_ISCHR(about.st_mode)) *ret_why = rw_file_fault(about.st_mode);
    if (!*ret_why && fcntl(fd, F_SETFL, flags & O_APPEND)) *ret_why = strerror(errno);
    if (!*ret_why) return fd;
    if (fd >= 0) close(fd);
    return -1;
}
