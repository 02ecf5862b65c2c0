/* A file that values wait in. See file.h. */
#include "device/file.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/output.h"
#include "device/cpu/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE RW_FILE_PAGE

static rw_status fail(char *why, size_t size, rw_status status, const char *fmt, ...) RW_PRINTF(4, 5);

static rw_status fail(char *why, size_t size, rw_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, size, fmt, args);
    va_end(args);
    return status;
}

/* ---- opening ---- */

/* A file without a name, -1 with errno. */
static int open_nameless(const char *path)
{
    int fd = open(path, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    static const char suffix[] = "/rewind-XXXXXX";
    char *const name = rw_malloc(strlen(path) + sizeof suffix);
    if (!name) {
        errno = ENOMEM;
        return -1;
    }
    strcpy(name, path);
    strcat(name, suffix);
    fd = mkostemp(name, O_CLOEXEC);
    if (fd >= 0) unlink(name);
    rw_free(name);
    return fd;
}

/* Room on the disk, and the length that it keeps. 0, or errno. */
static int reserve(int fd, uint64_t bytes)
{
    const struct rw_quiet q = rw_quiet_begin();
    int error = fallocate(fd, 0, 0, (off_t)bytes) ? errno : 0;
    if (error == EOPNOTSUPP || error == ENOSYS) error = ftruncate(fd, (off_t)bytes) ? errno : 0;
    errno = error;
    rw_quiet_end(&q);
    return error;
}

/* What memory the disk takes as it is. Where nobody says: a page's. */
static size_t alignment_of(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx s;
    if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) && (s.stx_mask & STATX_DIOALIGN) && s.stx_dio_mem_align &&
        s.stx_dio_offset_align <= PAGE)
        return s.stx_dio_mem_align;
#endif
    return PAGE;
}

static bool set_direct(int fd, bool direct)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && !fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}

rw_status rw_file_open(const char *path, uint64_t bytes, struct rw_file **ret, char *why, size_t size)
{
    struct rw_file *const f = rw_malloc(sizeof *f + strlen(path) + 1);
    if (!f) return RW_ERR_MEMORY;
    *f = (struct rw_file){ .fd = open_nameless(path), .bytes = bytes, .forks = rw_threads_forks() };
    strcpy(f->path, path);
    const int error = f->fd < 0 ? errno : reserve(f->fd, bytes + PAGE);
    if (error) {
        fail(why, size, RW_ERR_IO, "%s in %s: %s", f->fd < 0 ? "no file can be made" : "there is no room for a file",
             path, strerror(error));
        if (f->fd >= 0) close(f->fd);
        rw_free(f);
        return error == ENOMEM ? RW_ERR_MEMORY : RW_ERR_IO;
    }
    atomic_init(&f->direct, set_direct(f->fd, true));
    f->alignment = alignment_of(f->fd);
    *ret = f;
    return RW_OK;
}

void rw_file_close(struct rw_file *f)
{
    close(f->fd);
    rw_free(f);
}

bool rw_file_is_own(const struct rw_file *f)
{
    return f->forks == rw_threads_forks();
}

rw_status rw_file_not_own(const struct rw_file *f, char *why, size_t size)
{
    return fail(why, size, RW_ERR_IO, "the file in %s belongs to the process that fork() was called in", f->path);
}

/* ---- copying ---- */

rw_status rw_file_check_length(const struct rw_file *f, char *why, size_t size)
{
    struct stat s;
    if (fstat(f->fd, &s))
        return fail(why, size, RW_ERR_IO, "the file in %s is not there any more: %s", f->path, strerror(errno));
    if ((uint64_t)s.st_size >= f->bytes + PAGE) return RW_OK;
    return fail(why, size, RW_ERR_IO, "the file in %s was truncated by somebody else: it has %llu bytes of %llu",
                f->path, (unsigned long long)s.st_size, (unsigned long long)(f->bytes + PAGE));
}

static ssize_t transfer(const struct rw_file *f, char *memory, size_t n, uint64_t at, bool out)
{
    if (!out) return pread(f->fd, memory, n, (off_t)at);
    const struct rw_quiet q = rw_quiet_begin();
    const ssize_t done = pwrite(f->fd, memory, n, (off_t)at);
    rw_quiet_end(&q);
    return done;
}

bool rw_file_takes(const struct rw_file *f, const void *memory, size_t n)
{
    return !atomic_load(&f->direct) || ((uintptr_t)memory % f->alignment == 0 && n % PAGE == 0);
}

/* Pages that the kernel cannot pin, as some drivers' are, are no fault of the caller's. */
static bool is_refusal(int error)
{
    return error == EINVAL || error == EFAULT;
}

/* What the file system takes past the page cache no more it takes through it. */
rw_status rw_file_transfer(struct rw_file *f, void *memory, size_t n, uint64_t at, bool out, char *why, size_t size)
{
    for (char *at_memory = memory; n;) {
        const bool direct = atomic_load(&f->direct);
        const ssize_t done = transfer(f, at_memory, n, at, out);
        if (done > 0) {
            at_memory += done, n -= (size_t)done, at += (uint64_t)done;
        } else if (done < 0 && is_refusal(errno) && direct) {
            atomic_store(&f->direct, false);
            set_direct(f->fd, false);
        } else if (done == 0 || errno != EINTR) {
            return fail(why, size, RW_ERR_IO, "%zu bytes at %llu of the file in %s could not be %s: %s", n,
                        (unsigned long long)at, f->path, out ? "written" : "read",
                        done ? strerror(errno) : "the file ends there");
        }
    }
    return RW_OK;
}

/* ---- how fast it is ---- */

#define MEASURED_S 0.2 /* of one direction, at most */
#define TIMED_PIECES (RW_FILE_TIMED / RW_FILE_CHUNK)
#define TIMES 3

/* A piece's time, one before the middle: moments in which the machine is taken away, or in which somebody else has the
   disk, are not its speed. */
static double usual_piece(double *took, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && took[k] < took[k - 1]; k--) {
            const double less = took[k];
            took[k] = took[k - 1];
            took[k - 1] = less;
        }
    return took[(n - 1) / 2];
}

/* Of one direction. */
struct timing {
    double took[TIMES * TIMED_PIECES], sum;
    size_t n;
};

/* The file's first pieces, one by one, so that a slow disk is given up early. */
static rw_status time_pieces(struct rw_file *f, char *memory, bool out, size_t pieces, struct timing *t, char *why,
                             size_t size)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < pieces && t->sum < MEASURED_S; i++) {
        const double begin = rw_now_s();
        status = rw_file_transfer(f, memory, RW_FILE_CHUNK, i * RW_FILE_CHUNK, out, why, size);
        t->took[t->n] = rw_now_s() - begin;
        t->sum += t->took[t->n++];
    }
    return status;
}

rw_status rw_file_time(struct rw_file *f, void *memory, struct rw_store_rate *ret, char *why, size_t size)
{
    struct timing first = { .n = 0 }, out = { .n = 0 }, in = { .n = 0 };
    rw_status status = time_pieces(f, memory, true, TIMED_PIECES, &first, why, size); /* finds its place on the disk */
    const double begin = rw_thread_s();
    for (int i = 0; !status && i < TIMES; i++) {
        status = time_pieces(f, memory, true, first.n, &out, why, size);
        if (!status) status = time_pieces(f, memory, false, first.n, &in, why, size); /* of what was written */
    }
    if (status) return status;
    ret->loss = (rw_thread_s() - begin) / (double)((out.n + in.n) * RW_FILE_CHUNK);
    ret->out = (double)RW_FILE_CHUNK / usual_piece(out.took, out.n);
    ret->in = (double)RW_FILE_CHUNK / usual_piece(in.took, in.n);
    return RW_OK;
}
