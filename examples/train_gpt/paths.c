/* Resolves and checks paths of files and folders. */
#include "paths.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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

/* Only names that the library writes: it does not load others. */
static bool is_checkpoint(const char *name)
{
    char again[80], *end;
    if (*name < '0' || *name > '9') return false;
    const unsigned long long number = strtoull(name, &end, 10);
    if (strncmp(end, "-step", 5) != 0 || end[5] < '0' || end[5] > '9') return false;
    snprintf(again, sizeof again, "%06llu-step%llu.safetensors", number, strtoull(end + 5, NULL, 10));
    return !strcmp(name, again);
}

size_t path_count_checkpoints(const char *folder)
{
    DIR *const d = opendir(folder);
    size_t n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += is_checkpoint(e->d_name);
    if (d) closedir(d);
    return n;
}

int path_lock_folder(const char *folder, bool *ret_taken)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *ret_taken = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    return fd;
}

int path_lock_file(const char *path, bool *ret_taken)
{
    struct stat s;
    *ret_taken = false;
    const int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && !fstat(fd, &s) && S_ISREG(s.st_mode)) /* not a device, which runs may share */
        *ret_taken = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    return fd;
}

/* The path without slashes at its end, with its links resolved. */
static bool resolve_new(const char *path, char ret[PATH_SIZE])
{
    char text[PATH_SIZE];
    size_t n = strlen(path);
    if (n >= PATH_SIZE) return false;
    while (n > 1 && path[n - 1] == '/') n--;
    snprintf(text, sizeof text, "%.*s", (int)n, path);
    return path_resolve(text, ret);
}

static bool is_same_inode(const struct stat *x, const struct stat *y)
{
    return x->st_dev == y->st_dev && x->st_ino == y->st_ino;
}

/* Of two paths that do not exist yet: the same name in the same folder. */
static bool is_same_new(const char *a, const char *b)
{
    char x[PATH_SIZE], y[PATH_SIZE], x_folder[PATH_SIZE], y_folder[PATH_SIZE];
    struct stat x_stat, y_stat;
    if (!resolve_new(a, x) || !resolve_new(b, y)) return false;
    const char *const x_slash = strrchr(x, '/'), *const y_slash = strrchr(y, '/');
    folder_of(x, x_folder);
    folder_of(y, y_folder);
    return !strcmp(x_slash ? x_slash + 1 : x, y_slash ? y_slash + 1 : y) && !stat(x_folder, &x_stat) &&
           !stat(y_folder, &y_stat) && is_same_inode(&x_stat, &y_stat);
}

bool path_is_same(const char *a, const char *b)
{
    struct stat x, y;
    const bool has_a = !stat(a, &x), has_b = !stat(b, &y);
    if (has_a && has_b) return is_same_inode(&x, &y);
    return !has_a && !has_b && (!strcmp(a, b) || is_same_new(a, b));
}

const char *path_option_fault(const struct path_option *option)
{
    struct stat s;
    if (!option->path || option->use == PATH_FOLDER) return NULL;
    if (option->use == PATH_INPUT) return path_input_fault(option->path);
    if (option->use == PATH_LOG && !stat(option->path, &s) && S_ISCHR(s.st_mode)) return NULL;
    return path_output_fault(option->path);
}

static bool is_shareable(const struct path_option *output, const struct path_option *other)
{
    const bool loads = !strcmp(output->option, "--save") && !strcmp(other->option, "--load");
    return output == other || output->use == PATH_INPUT || output->use == PATH_FOLDER || loads;
}

const char *path_shared_fault(const struct path_option *options, size_t n, char *text, size_t size)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            const struct path_option *const a = &options[i], *const b = &options[k];
            if (!a->path || !b->path || is_shareable(a, b) || !path_is_same(a->path, b->path)) continue;
            snprintf(text, size, "%s %.200s: the same %s as %s", a->option, a->path,
                     b->use == PATH_FOLDER ? "path" : "file", b->option);
            return text;
        }
    return NULL;
}
