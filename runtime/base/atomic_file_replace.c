/* Temporary files: unique names, permissions of the old file, fsync, rename, and fsync of the folder. */
#include "base/atomic_file_replace.h"

#include "base/alloc.h"
#include "base/file_descriptor_io.h"
#include "base/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX_MAX 64
#define BASE_MAX 96 /* bytes of the target's own name: with the suffix, less than any file system takes */
#define TRIES 100

/* Copies the path, with a symbolic link resolved. */
static rw_status resolve(const char *path, char **ret)
{
    struct stat about;
    const bool link = !lstat(path, &about) && S_ISLNK(about.st_mode);
    char *const real = link ? realpath(path, NULL) : NULL;
    if (link && !real) return RW_ERR_IO;
    *ret = rw_strdup(link ? real : path);
    free(real);
    return *ret ? RW_OK : RW_ERR_MEMORY;
}

/* Bytes of the target at the start of the temporary name. A long one is cut between two characters, because some file
   systems check that names are UTF-8. */
static size_t part_of(const char *target)
{
    const char *const slash = strrchr(target, '/');
    const size_t length = strlen(target), from = slash ? (size_t)(slash + 1 - target) : 0;
    if (length - from <= BASE_MAX) return length;
    size_t n = from + BASE_MAX;
    while (n > from && ((unsigned char)target[n] & 0xc0) == 0x80) n--;
    return n > from ? n : from + BASE_MAX;
}

/* Creates a file under a name that no other call of any process uses: O_EXCL, with another number if the name
   exists. An existing file or link is never opened. */
static int create(const char *target, char *name)
{
    static unsigned calls;
    const size_t part = part_of(target);
    for (int i = 0; i < TRIES; i++) {
        snprintf(name, part + SUFFIX_MAX, "%.*s.%ld.%u.part", (int)part, target, (long)getpid(),
                 __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED));
        const int fd = rw_fd_open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static void forget(struct rw_replacement *r)
{
    rw_free(r->target);
    rw_free(r->name);
    rw_free(r->folder);
    *r = (struct rw_replacement){ .fd = -1 };
}

static void leave_to_parent(struct rw_forked *f)
{
    struct rw_replacement *const r = (struct rw_replacement *)(void *)((char *)f -
                                                                       offsetof(struct rw_replacement, forked));
    close(r->fd);
    r->fd = -1;
}

static rw_status open_beside(struct rw_replacement *r)
{
    r->name = rw_malloc(strlen(r->target) + SUFFIX_MAX);
    r->folder = rw_path_around(r->target);
    if (!r->name || !r->folder) return RW_ERR_MEMORY;
    struct stat old;
    const bool replaces = !stat(r->target, &old);
    r->fd = create(r->target, r->name);
    if (r->fd < 0) return RW_ERR_IO;
    if (replaces && fchmod(r->fd, old.st_mode & 0777)) errno = 0; /* the permissions of the old file, if possible */
    rw_forked_add(&r->forked, leave_to_parent);
    return RW_OK;
}

rw_status rw_replace_begin(struct rw_replacement *r, const char *path, const char **ret_why)
{
    struct stat about;
    *r = (struct rw_replacement){ .fd = -1 };
    *ret_why = NULL;
    r->quiet = rw_quiet_begin();
    rw_status status = resolve(path, &r->target);
    if (!status && !stat(r->target, &about) && (*ret_why = rw_file_fault(about.st_mode))) status = RW_ERR_IO;
    if (!status) status = open_beside(r);
    if (status) {
        const int reason = errno;
        rw_quiet_end(&r->quiet);
        forget(r);
        errno = reason;
    }
    return status;
}

/* A signal would cut short the stream's own writes. */
static ssize_t write_on(void *cookie, const char *data, size_t n)
{
    const struct rw_replacement *const r = cookie;
    size_t written;
    return r->fd >= 0 && rw_fd_write(r->fd, data, n, &written) ? (ssize_t)n : 0;
}

FILE *rw_replace_stream(struct rw_replacement *r)
{
    if (!r->stream) r->stream = fopencookie(r, "wb", (cookie_io_functions_t){ .write = write_on });
    return r->stream;
}

/* close() is never repeated: on Linux the descriptor is closed whatever it returns. NFS reports a full disk here. */
static rw_status close_all(struct rw_replacement *r, rw_status status)
{
    int reason = errno;
    rw_forked_remove(&r->forked);
    if (!status && !r->transient && !rw_fd_sync(r->fd)) {
        status = RW_ERR_IO;
        reason = errno;
    }
    if (r->fd >= 0 && close(r->fd) && errno != EINTR && !status) {
        status = RW_ERR_IO;
        reason = errno;
    }
    errno = reason;
    return status;
}

static rw_status close_stream(struct rw_replacement *r, rw_status status)
{
    const int reason = errno;
    if (!r->stream) return status;
    const bool failed = ferror(r->stream);
    if ((fclose(r->stream) || failed) && !status) return RW_ERR_IO;
    errno = reason;
    return status;
}

rw_status rw_replace_end(struct rw_replacement *r, rw_status status)
{
    status = close_all(r, close_stream(r, status));
    const bool renamed = !status && !rename(r->name, r->target);
    if (!status && !renamed) status = RW_ERR_IO;
    if (renamed && !r->transient && !rw_folder_sync_path(r->folder)) status = RW_ERR_IO;
    const int reason = errno;
    if (!renamed) unlink(r->name);
    rw_quiet_end(&r->quiet);
    forget(r);
    errno = reason;
    return status;
}
