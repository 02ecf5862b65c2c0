/* A file for offloaded values: creation without a name, transfers, and measurement of its rates. */
#include "device/offload_file.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file_descriptor_io.h"
#include "base/sigpipe_safe_output.h"

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

/* Creates a file without a name. -1 with errno. */
static int open_nameless(const char *path)
{
    int fd = rw_fd_open(path, O_TMPFILE | O_RDWR | O_EXCL, S_IRUSR | S_IWUSR);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    static const char suffix[] = "/rewind-XXXXXX";
    char *const name = rw_malloc(strlen(path) + sizeof suffix);
    if (!name) {
        errno = ENOMEM;
        return -1;
    }
    do {
        strcpy(name, path);
        strcat(name, suffix); /* each time: on failure it is undefined */
        fd = mkostemp(name, O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd >= 0) unlink(name);
    rw_free(name);
    return fd;
}

/* Reserves space on the disk, which also sets the final length. 0, or errno. */
static int reserve(int fd, uint64_t bytes)
{
    const struct rw_quiet q = rw_quiet_begin();
    int error = rw_fd_reserve(fd, bytes);
    if (error == EOPNOTSUPP || error == ENOSYS) error = rw_fd_resize(fd, bytes) ? 0 : errno;
    errno = error;
    rw_quiet_end(&q);
    return error;
}

/* The alignment of memory that the disk needs. If it is unknown, that of a page. */
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

static void leave_to_parent(struct rw_forked *forked)
{
    struct rw_file *const f = (struct rw_file *)(void *)((char *)forked - offsetof(struct rw_file, forked));
    close(f->fd);
    f->fd = -1;
}

/* Creates and reserves the file; the texts of failures name the folder. */
rw_status rw_file_open(const char *path, uint64_t bytes, struct rw_file **ret, char *why, size_t size)
{
    struct rw_file *const f = rw_malloc(sizeof *f + strlen(path) + 1);
    if (!f) return RW_ERR_MEMORY;
    *f = (struct rw_file){ .fd = open_nameless(path), .bytes = bytes };
    strcpy(f->path, path);
    const int error = f->fd < 0 ? errno : reserve(f->fd, bytes + PAGE);
    if (error) {
        fail(why, size, RW_ERR_IO, "%s in %s: %s", f->fd < 0 ? "cannot create a file" : "cannot reserve a file",
             path, strerror(error));
        if (f->fd >= 0) close(f->fd);
        rw_free(f);
        return error == ENOMEM ? RW_ERR_MEMORY : RW_ERR_IO;
    }
    atomic_init(&f->direct, set_direct(f->fd, true));
    f->alignment = alignment_of(f->fd);
    rw_checksums_init(&f->sums);
    rw_forked_add(&f->forked, leave_to_parent);
    *ret = f;
    return RW_OK;
}

void rw_file_close(struct rw_file *f)
{
    rw_forked_remove(&f->forked);
    if (f->fd >= 0) close(f->fd);
    rw_checksums_finish(&f->sums);
    rw_free(f);
}

bool rw_file_is_closed(const struct rw_file *f)
{
    return f->fd < 0;
}

rw_status rw_file_closed(const struct rw_file *f, char *why, size_t size)
{
    return fail(why, size, RW_ERR_IO, "the file in %s cannot be used after fork(): it belongs to the parent process",
                f->path);
}

/* ---- copying ---- */

rw_status rw_file_check_length(const struct rw_file *f, char *why, size_t size)
{
    struct stat s;
    if (fstat(f->fd, &s))
        return fail(why, size, RW_ERR_IO, "the file in %s was removed: %s", f->path, strerror(errno));
    if ((uint64_t)s.st_size >= f->bytes + PAGE) return RW_OK;
    return fail(why, size, RW_ERR_IO, "the file in %s was truncated by another process: expected %llu bytes, got %llu",
                f->path, (unsigned long long)(f->bytes + PAGE), (unsigned long long)s.st_size);
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

/*
 * Is it a refusal by the kernel? Pages that it cannot pin, such as those of some drivers, are no mistake of the caller.
 */
static bool is_refusal(int error)
{
    return error == EINVAL || error == EFAULT;
}

/* Transfers all bytes. If the file system refuses direct access, continues through the page cache. */
static rw_status transfer_all(struct rw_file *f, void *memory, size_t n, uint64_t at, bool out, char *why, size_t size)
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
                        done ? strerror(errno) : "end of file");
        }
    }
    return RW_OK;
}

rw_status rw_file_transfer(struct rw_file *f, void *memory, size_t n, uint64_t at, bool out, char *why, size_t size)
{
    const double begin = rw_now_s();
    const rw_status status = transfer_all(f, memory, n, at, out, why, size);
    rw_checksums_add_time(&f->sums, n, rw_now_s() - begin);
    return status;
}

void rw_file_note(struct rw_file *f, const void *piece, size_t n, uint64_t at)
{
    rw_checksums_note(&f->sums, piece, n, at);
}

rw_status rw_file_check(struct rw_file *f, const void *piece, size_t n, uint64_t at, char *why, size_t size)
{
    if (rw_checksums_match(&f->sums, piece, n, at)) return RW_OK;
    return fail(why, size, RW_ERR_IO,
                "the file in %s was changed by another process: %zu bytes at %llu differ from the bytes written",
                f->path, n, (unsigned long long)at);
}

/* ---- measurement ---- */

#define MEASURED_S 0.2 /* maximum for one direction */
#define TIMED_PIECES (RW_FILE_TIMED / RW_FILE_CHUNK)
#define TIMES 3

/* The time of the piece below the median. Moments in which another process has the machine or the disk do not count. */
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

/* Times of one direction. */
struct timing {
    double took[TIMES * TIMED_PIECES], sum;
    size_t n;
};

/* Times the file's first pieces one by one, so that a slow disk takes a limited time. */
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

/* Writes once untimed, and then writes and reads in turn. */
rw_status rw_file_time(struct rw_file *f, void *memory, struct rw_store_rate *ret, char *why, size_t size)
{
    struct timing first = { .n = 0 }, out = { .n = 0 }, in = { .n = 0 };
    rw_status status = time_pieces(f, memory, true, TIMED_PIECES, &first, why, size); /* allocates disk blocks */
    const double begin = rw_thread_s();
    for (int i = 0; !status && i < TIMES; i++) {
        status = time_pieces(f, memory, true, first.n, &out, why, size);
        if (!status) status = time_pieces(f, memory, false, first.n, &in, why, size); /* as written */
    }
    if (status) return status;
    ret->loss = (rw_thread_s() - begin) / (double)((out.n + in.n) * RW_FILE_CHUNK);
    ret->out = (double)RW_FILE_CHUNK / usual_piece(out.took, out.n);
    ret->in = (double)RW_FILE_CHUNK / usual_piece(in.took, in.n);
    return RW_OK;
}
