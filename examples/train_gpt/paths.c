/* Resolves and checks paths of files and folders. */
#include "paths.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MAX = 40 };

/* "a/b" -> "a", "b" -> ".", "/b" -> "/" */
static void folder_of(const char *path, char ret[PATH_SIZE])
{
    const char *const slash = strrchr(path, '/');
    snprintf(ret, PATH_SIZE, "%.*s", slash == path ? 1 : slash ? (int)(slash - path) : 1, slash ? path : ".");
}

/* Follows one link: its target, a relative one from the link's folder. */
static bool follow(const char *path, char ret[PATH_SIZE])
{
    char target[PATH_SIZE], folder[PATH_SIZE];
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0) return false;
    target[n] = '\0';
    folder_of(path, folder);
    const int length = *target == '/' ? snprintf(ret, PATH_SIZE, "%s", target)
                                      : snprintf(ret, PATH_SIZE, "%.2000s/%.2000s", folder, target);
    return length < PATH_SIZE;
}

bool path_resolve(const char *path, char ret[PATH_SIZE])
{
    char next[PATH_SIZE];
    struct stat s;
    errno = ENAMETOOLONG;
    if (snprintf(ret, PATH_SIZE, "%s", path) >= PATH_SIZE) return false;
    for (int i = 0; i < LINKS_MAX; i++) {
        if (lstat(ret, &s) || !S_ISLNK(s.st_mode)) return true;
        if (!follow(ret, next)) return false;
        memcpy(ret, next, sizeof next);
    }
    errno = ELOOP;
    return false;
}

static const char *kind_fault(const struct stat *s)
{
    if (S_ISREG(s->st_mode)) return NULL;
    if (S_ISDIR(s->st_mode)) return "a folder, not a file";
    if (S_ISFIFO(s->st_mode)) return "a FIFO, not a file";
    if (S_ISCHR(s->st_mode) || S_ISBLK(s->st_mode)) return "a device, not a file";
    return "not a file";
}

const char *path_output_fault(const char *path)
{
    char real[PATH_SIZE], folder[PATH_SIZE];
    struct stat s;
    if (!*path) return "an empty name";
    if (!path_resolve(path, real)) return strerror(errno);
    if (!stat(real, &s)) {
        if (kind_fault(&s)) return kind_fault(&s);
        if (access(real, W_OK)) return strerror(errno);
    } else if (errno != ENOENT) {
        return strerror(errno);
    }
    if (real[strlen(real) - 1] == '/') return "a folder, not a file";
    folder_of(real, folder);
    if (stat(folder, &s)) return "its folder does not exist";
    return access(folder, W_OK | X_OK) ? "its folder cannot be written to" : NULL;
}

const char *path_input_fault(const char *path)
{
    struct stat s;
    if (stat(path, &s)) return strerror(errno);
    if (kind_fault(&s)) return kind_fault(&s);
    return access(path, R_OK) ? strerror(errno) : NULL;
}

static bool is_checkpoint(const char *name)
{
    const size_t digits = strspn(name, "0123456789");
    if (!digits || strncmp(name + digits, "-step", 5)) return false;
    const size_t step = strspn(name + digits + 5, "0123456789");
    return step && !strcmp(name + digits + 5 + step, ".safetensors");
}

size_t path_count_checkpoints(const char *folder)
{
    DIR *const d = opendir(folder);
    size_t n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += is_checkpoint(e->d_name);
    if (d) closedir(d);
    return n;
}

bool path_is_same(const char *a, const char *b)
{
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
