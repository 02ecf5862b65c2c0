/* See part.h. */
#include "io/part.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX_MOST 64
#define TRIES 100

/* The path itself, or what a symbolic link leads to; in memory of ours. */
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

/* No two calls of any process, thread or context take one name: O_EXCL, and another number where there is one. What is
 * there already, were it a link, is never opened. */
static int create(const char *target, char *name)
{
    static unsigned calls;
    for (int i = 0; i < TRIES; i++) {
        snprintf(name, strlen(target) + SUFFIX_MOST, "%s.%ld.%u.part", target, (long)getpid(),
                 __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED));
        const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static void forget(struct rw_part *p)
{
    rw_free(p->target);
    rw_free(p->name);
    *p = (struct rw_part){ 0 };
}

static rw_status open_beside(struct rw_part *p)
{
    p->name = rw_malloc(strlen(p->target) + SUFFIX_MOST);
    if (!p->name) return RW_ERR_MEMORY;
    struct stat old;
    const bool replaces = !stat(p->target, &old);
    const int fd = create(p->target, p->name);
    if (fd < 0) return RW_ERR_IO;
    if (replaces && fchmod(fd, old.st_mode & 0777)) errno = 0; /* who may read the old one, if that can be had */
    p->file = fdopen(fd, "wb");
    if (p->file) return RW_OK;
    close(fd);
    remove(p->name);
    return RW_ERR_MEMORY;
}

rw_status rw_part_open(struct rw_part *p, const char *path, const char **ret_why)
{
    struct stat about;
    *p = (struct rw_part){ 0 };
    *ret_why = NULL;
    p->quiet = rw_quiet_begin();
    rw_status status = resolve(path, &p->target);
    if (!status && !stat(p->target, &about) && (*ret_why = rw_file_fault(about.st_mode))) status = RW_ERR_IO;
    if (!status) status = open_beside(p);
    if (status) {
        const int reason = errno;
        rw_quiet_end(&p->quiet);
        forget(p);
        errno = reason;
    }
    return status;
}

rw_status rw_part_close(struct rw_part *p, rw_status status)
{
    if (!status && (fflush(p->file) || (!p->passing && fsync(fileno(p->file))))) status = RW_ERR_IO;
    int reason = errno;
    if (fclose(p->file) && !status) {
        status = RW_ERR_IO;
        reason = errno;
    }
    if (!status && rename(p->name, p->target)) {
        status = RW_ERR_IO;
        reason = errno;
    }
    if (status) remove(p->name);
    rw_quiet_end(&p->quiet);
    forget(p);
    errno = reason;
    return status;
}
