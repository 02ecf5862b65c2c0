/*
 * The store in a file, for the CPU. The file has no name from the moment it is made, so it goes with the process; it is
 * used again by one run after the other. It is read and written past the page cache where the file system can, by the
 * thread of lanes.h, in pieces of 4 MiB.
 *
 *     [ slots ............................................ ][ one page that nobody writes ]
 *
 * Whoever truncates the file meanwhile makes it shorter than that, and no write makes it as long again: a hole is never
 * read as if it were a value.
 */
#include "base/alloc.h"
#include "device/cpu/lanes.h"
#include "device/cpu/threads.h"
#include "device/store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE RW_COPY_ALIGNMENT

struct file {
    int fd;
    uint64_t bytes;   /* of the slots */
    unsigned forks;   /* of the process that made it */
    bool direct;      /* past the page cache */
    size_t alignment; /* that memory must have then */
    char path[];      /* the folder */
};

static rw_status fail(char *why, size_t size, rw_status status, const char *fmt, ...) RW_PRINTF(4, 5);

static rw_status fail(char *why, size_t size, rw_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, size, fmt, args);
    va_end(args);
    return status;
}

/* ---- a limit on files' sizes is an error here, not the signal that ends the process ---- */

struct quiet {
    sigset_t before;
    bool pending; /* already: then it is somebody else's */
};

static struct quiet quiet_begin(void)
{
    struct quiet q;
    sigset_t one, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    sigpending(&pending);
    q.pending = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &one, &q.before);
    return q;
}

static void quiet_end(const struct quiet *q)
{
    const int error = errno;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    while (!q->pending && sigtimedwait(&one, NULL, &(struct timespec){ 0 }) == -1 && errno == EINTR) {}
    pthread_sigmask(SIG_SETMASK, &q->before, NULL);
    errno = error;
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
    const struct quiet q = quiet_begin();
    int error = fallocate(fd, 0, 0, (off_t)bytes) ? errno : 0;
    if (error == EOPNOTSUPP || error == ENOSYS) error = ftruncate(fd, (off_t)bytes) ? errno : 0;
    errno = error;
    quiet_end(&q);
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

static rw_status file_open(void *device, const char *path, uint64_t bytes, void **ret_store)
{
    struct rw_cpu *const cpu = device;
    const rw_status status = rw_cpu_lanes_start(cpu);
    if (status) return status;
    struct file *const f = rw_malloc(sizeof *f + strlen(path) + 1);
    if (!f) return RW_ERR_MEMORY;
    *f = (struct file){ .fd = open_nameless(path), .bytes = bytes, .forks = rw_threads_forks() };
    strcpy(f->path, path);
    const int error = f->fd < 0 ? errno : reserve(f->fd, bytes + PAGE);
    if (error) {
        fail(cpu->message, sizeof cpu->message, RW_ERR_IO, "%s in %s: %s",
             f->fd < 0 ? "no file can be made" : "there is no room for a file", path, strerror(error));
        if (f->fd >= 0) close(f->fd);
        rw_free(f);
        return error == ENOMEM ? RW_ERR_MEMORY : RW_ERR_IO;
    }
    f->direct = set_direct(f->fd, true);
    f->alignment = alignment_of(f->fd);
    *ret_store = f;
    return RW_OK;
}

static void file_close(void *device, void *store)
{
    struct file *const f = store;
    rw_cpu_lanes_drain(device);
    close(f->fd);
    rw_free(f);
}

static bool file_is_own(const void *store)
{
    return ((const struct file *)store)->forks == rw_threads_forks();
}

/* ---- copying, in the thread ---- */

static rw_status check_length(const struct file *f, char *why, size_t size)
{
    struct stat s;
    if (fstat(f->fd, &s))
        return fail(why, size, RW_ERR_IO, "the file in %s is not there any more: %s", f->path, strerror(errno));
    if ((uint64_t)s.st_size >= f->bytes + PAGE) return RW_OK;
    return fail(why, size, RW_ERR_IO, "the file in %s was truncated by somebody else: it has %llu bytes of %llu",
                f->path, (unsigned long long)s.st_size, (unsigned long long)(f->bytes + PAGE));
}

static ssize_t transfer(const struct file *f, char *memory, size_t n, uint64_t at, bool out)
{
    if (!out) return pread(f->fd, memory, n, (off_t)at);
    const struct quiet q = quiet_begin();
    const ssize_t done = pwrite(f->fd, memory, n, (off_t)at);
    quiet_end(&q);
    return done;
}

/* All of it. What the file system takes past the page cache no more it takes through it. */
static rw_status transfer_all(struct file *f, char *memory, size_t n, uint64_t at, bool out, char *why, size_t size)
{
    while (n) {
        const ssize_t done = transfer(f, memory, n, at, out);
        if (done > 0) {
            memory += done, n -= (size_t)done, at += (uint64_t)done;
        } else if (done < 0 && errno == EINVAL && f->direct) {
            f->direct = false;
            set_direct(f->fd, false);
        } else if (done == 0 || errno != EINTR) {
            return fail(why, size, RW_ERR_IO, "%zu bytes at %llu of the file in %s could not be %s: %s", n,
                        (unsigned long long)at, f->path, out ? "written" : "read",
                        done ? strerror(errno) : "the file ends there");
        }
    }
    return RW_OK;
}

/* By way of the room, in whole pages: the slot has them. */
static rw_status by_room(struct file *f, char *memory, size_t n, uint64_t at, bool out, char *room, char *why,
                         size_t size)
{
    const size_t whole = (n + PAGE - 1) / PAGE * PAGE;
    if (out) memcpy(room, memory, n);
    if (out) memset(room + n, 0, whole - n);
    const rw_status status = transfer_all(f, room, whole, at, out, why, size);
    if (!status && !out) memcpy(memory, room, n);
    return status;
}

static bool is_as_the_disk_takes_it(const struct file *f, const char *memory, size_t n)
{
    return !f->direct || ((uintptr_t)memory % f->alignment == 0 && n % PAGE == 0);
}

static rw_status run_copy(const struct rw_copy *c, void *room, char *why, size_t size)
{
    struct file *const f = c->store;
    rw_status status = check_length(f, why, size);
    for (uint64_t from = 0; !status && from < c->bytes;) {
        char *const memory = (char *)c->memory + from;
        size_t n = c->bytes - from < RW_COPY_CHUNK ? (size_t)(c->bytes - from) : RW_COPY_CHUNK;
        if (f->direct && n > PAGE) n -= n % PAGE; /* the rest by itself */
        status = is_as_the_disk_takes_it(f, memory, n)
                     ? transfer_all(f, memory, n, c->at + from, c->out, why, size)
                     : by_room(f, memory, n, c->at + from, c->out, room, why, size);
        from += n;
    }
    return status;
}

static rw_status queue(void *device, const struct file *f, struct rw_copy copy)
{
    struct rw_cpu *const cpu = device;
    copy.run = run_copy;
    if (file_is_own(f)) {
        rw_cpu_lanes_queue(cpu, &copy);
        return RW_OK;
    }
    return fail(cpu->message, sizeof cpu->message, RW_ERR_IO,
                "the file in %s belongs to the process that fork() was called in", f->path);
}

static rw_status file_put(void *device, int lane, void *store, uint64_t at, const void *from, uint64_t bytes)
{
    return queue(device, store, (struct rw_copy){ .store = store, .at = at, .bytes = bytes, .out = true,
                                                  .memory = (void *)(uintptr_t)from });
}

static rw_status file_get(void *device, int lane, void *to, const void *store, uint64_t at, uint64_t bytes)
{
    return queue(device, store, (struct rw_copy){ .store = (void *)(uintptr_t)store, .at = at, .bytes = bytes,
                                                  .memory = to });
}

/* ---- how fast it is ---- */

#define MEASURED_BYTES ((uint64_t)16 << 20)
#define MEASURED_S 0.2 /* of one direction, at most */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Piece by piece, so that a slow disk is given up early. */
static rw_status time_pieces(struct file *f, char *memory, bool out, uint64_t *bytes, double *ret, char *why,
                             size_t size)
{
    const double begin = now();
    uint64_t done = 0;
    rw_status status = RW_OK;
    while (!status && done < *bytes && now() - begin < MEASURED_S) {
        status = transfer_all(f, memory, RW_COPY_CHUNK, done, out, why, size);
        done += RW_COPY_CHUNK;
    }
    if (!status) *ret = (double)done / (now() - begin);
    *bytes = done;
    return status;
}

static rw_status time_file(struct file *f, char *memory, struct rw_store_rate *ret, char *why, size_t size)
{
    uint64_t bytes = MEASURED_BYTES;
    rw_status status = time_pieces(f, memory, true, &bytes, &ret->out, why, size); /* finds its place on the disk */
    if (!status) status = time_pieces(f, memory, true, &bytes, &ret->out, why, size);
    return status ? status : time_pieces(f, memory, false, &bytes, &ret->in, why, size);
}

static rw_status file_measure(void *device, const char *path, struct rw_store_rate *ret)
{
    struct rw_cpu *const cpu = device;
    void *store;
    struct rw_store_rate rate;
    const rw_status opened = file_open(device, path, MEASURED_BYTES, &store);
    if (opened) return opened;
    char *const memory = rw_malloc_aligned(RW_COPY_CHUNK, PAGE);
    rw_status status = memory ? RW_OK : RW_ERR_MEMORY;
    if (memory) memset(memory, 1, RW_COPY_CHUNK);
    if (!status) status = time_file(store, memory, &rate, cpu->message, sizeof cpu->message);
    rw_free_aligned(memory);
    file_close(device, store);
    if (!status) *ret = rate;
    return status;
}

const struct rw_store_fns rw_store_file = {
    .name = "file", .in_file = true, .open = file_open, .close = file_close, .is_own = file_is_own, .put = file_put,
    .get = file_get, .measure = file_measure
};
