/* Makes one system call on files fail, for the suites of faults. */
#include "io/faulty_calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

static int left, planted;
static const char *name;
bool fault_no_nameless;
void (*fault_before_open)(const char *path);

void fault_plant(int n, int error)
{
    name = NULL;
    planted = error;
    __atomic_store_n(&left, n, __ATOMIC_SEQ_CST);
}

bool fault_take(const char **ret_name)
{
    __atomic_store_n(&left, 0, __ATOMIC_SEQ_CST);
    *ret_name = name;
    return name != NULL;
}

enum kind { ASKS = 0, WAITS = 1, WRITES = 2, MOVES = 4, FOLDERS = 8 };

/* Whether this call is the one to fail; sets errno if so. */
static bool fails(const char *call, int kind)
{
    if (__atomic_load_n(&left, __ATOMIC_SEQ_CST) <= 0) return false;
    if ((planted == EINTR && !(kind & WAITS)) || (planted == ENOSPC && !(kind & WRITES))) return false;
    if ((planted == SHORTENS && !(kind & MOVES)) || (planted == EINVAL && !(kind & FOLDERS))) return false;
    if (__atomic_sub_fetch(&left, 1, __ATOMIC_SEQ_CST)) return false;
    name = call;
    errno = planted;
    return true;
}

#define CALL(type, call, kind, failed, parameters, arguments) \
    type __real_##call parameters;                            \
    type __wrap_##call parameters;                            \
    type __wrap_##call parameters                             \
    {                                                         \
        return fails(#call, kind) ? (failed) : __real_##call arguments; \
    }

/* Transfers half of n bytes, if that was planted. */
#define MOVE(call, kind, parameters, arguments)                                     \
    ssize_t __real_##call parameters;                                               \
    ssize_t __wrap_##call parameters;                                               \
    ssize_t __wrap_##call parameters                                                \
    {                                                                               \
        if (!fails(#call, (kind) | WAITS | MOVES)) return __real_##call arguments;  \
        if (planted != SHORTENS) return -1;                                         \
        n = n > 1 ? n / 2 : n;                                                      \
        return __real_##call arguments;                                             \
    }

MOVE(write, WRITES, (int fd, const void *from, size_t n), (fd, from, n))
MOVE(pwrite64, WRITES, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
MOVE(pread64, ASKS, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))

CALL(int, fallocate64, WAITS | WRITES, -1, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
CALL(int, ftruncate64, WAITS | WRITES, -1, (int fd, off_t n), (fd, n))
CALL(int, flock, WAITS, -1, (int fd, int what), (fd, what))
CALL(int, rename, WRITES, -1, (const char *from, const char *to), (from, to))
CALL(int, mkdir, WRITES, -1, (const char *path, mode_t mode), (path, mode))
CALL(int, unlinkat, WRITES, -1, (int fd, const char *path, int flags), (fd, path, flags))
CALL(int, stat64, ASKS, -1, (const char *path, struct stat *about), (path, about))
CALL(int, lstat64, ASKS, -1, (const char *path, struct stat *about), (path, about))
CALL(int, fstat64, ASKS, -1, (int fd, struct stat *about), (fd, about))
CALL(off_t, lseek64, ASKS, -1, (int fd, off_t to, int from), (fd, to, from))
CALL(DIR *, fdopendir, ASKS, NULL, (int fd), (fd))
CALL(struct dirent *, readdir64, WAITS, NULL, (DIR * dir), (dir))

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    struct stat about;
    const int of_a_folder = !__real_fstat64(fd, &about) && S_ISDIR(about.st_mode) ? FOLDERS : 0;
    return fails("fsync", WAITS | WRITES | of_a_folder) ? -1 : __real_fsync(fd);
}

/* On Linux the descriptor is closed all the same. */
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    const bool failed = fails("close", WAITS | WRITES);
    const int error = errno, status = __real_close(fd);
    if (failed) errno = error;
    return failed ? -1 : status;
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const unsigned mode = va_arg(args, unsigned);
    va_end(args);
    if (fault_before_open) fault_before_open(path);
    errno = EOPNOTSUPP;
    if (fault_no_nameless && (flags & O_TMPFILE) == O_TMPFILE) return -1;
    return fails("open", WAITS | (flags & O_CREAT ? WRITES : 0)) ? -1 : __real_open64(path, flags, mode);
}

int __real_mkostemp64(char *path, int flags);
int __wrap_mkostemp64(char *path, int flags);
int __wrap_mkostemp64(char *path, int flags)
{
    const int fd = fails("mkostemp", WAITS | WRITES) ? -1 : __real_mkostemp64(path, flags);
    if (fd < 0) memset(path + strlen(path) - 6, '0', 6); /* on failure the template is undefined */
    return fd;
}

int __real_openat64(int folder, const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...)
{
    return fails("openat", WAITS) ? -1 : __real_openat64(folder, path, flags);
}
