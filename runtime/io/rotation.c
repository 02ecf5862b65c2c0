/* See rotation.h. */
#include "io/rotation.h"

#include "base/alloc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENDING ".safetensors"
#define PART ".part"
#define NAME_MOST 80
#define NUMBER_END ((uint64_t)1 << 63) /* behind every number that can be counted up to */

/* From the root on: the process may go elsewhere. */
static char *whole_path(const char *folder)
{
    char *const here = *folder == '/' ? NULL : getcwd(NULL, 0);
    const size_t size = (here ? strlen(here) + 1 : 0) + strlen(folder) + 1;
    char *const path = rw_malloc(size);
    if (path) snprintf(path, size, "%s%s%s", here ? here : "", here ? "/" : "", folder);
    free(here);
    return path;
}

rw_status rw_rotation_init(struct rw_rotation *r, const char *folder)
{
    *r = (struct rw_rotation){ .folder = whole_path(folder), .fd = -1 };
    return r->folder ? RW_OK : RW_ERR_MEMORY;
}

/* A child of fork() has the folder open, too, and would keep the lock: the process that has taken it gives it up. */
void rw_rotation_finish(struct rw_rotation *r)
{
    if (r->fd >= 0 && r->process == getpid()) flock(r->fd, LOCK_UN);
    if (r->fd >= 0) close(r->fd);
    rw_free(r->folder);
    rw_free(r->bad);
}

static rw_status refuse(char *why, size_t size, rw_status status, const char *text)
{
    snprintf(why, size, "%s", text);
    return status;
}

/* ---- names ---- */

static void name_of(const struct rw_rotated *file, char *name, size_t size)
{
    snprintf(name, size, "%06" PRIu64 "-step%" PRIu64 ENDING, file->number, file->step);
}

/* Only what name_of() writes, so that nobody else's file is ever taken for one, or removed. *ret_rest: behind it. */
static bool read_name(const char *name, struct rw_rotated *ret, const char **ret_rest)
{
    char again[NAME_MOST];
    char *end;
    if (*name < '0' || *name > '9') return false;
    ret->number = strtoull(name, &end, 10);
    if (strncmp(end, "-step", 5) != 0 || end[5] < '0' || end[5] > '9') return false;
    ret->step = strtoull(end + 5, NULL, 10);
    name_of(ret, again, sizeof again);
    *ret_rest = name + strlen(again);
    return ret->number < NUMBER_END && !strncmp(name, again, strlen(again));
}

char *rw_rotation_path(const struct rw_rotation *r, const struct rw_rotated *file)
{
    char name[NAME_MOST];
    name_of(file, name, sizeof name);
    const size_t size = strlen(r->folder) + strlen(name) + 2;
    char *const path = rw_malloc(size);
    if (path) snprintf(path, size, "%s/%s", r->folder, name);
    return path;
}

/* ---- what is there ---- */

static int newest_first(const void *a, const void *b)
{
    const struct rw_rotated *const x = a, *const y = b;
    if (x->number != y->number) return x->number < y->number ? 1 : -1;
    return (x->step < y->step) - (x->step > y->step);
}

static rw_status read_folder(DIR *dir, struct rw_rotated **files, size_t *n)
{
    struct rw_rotated file;
    const char *rest;
    size_t cap = 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!read_name(e->d_name, &file, &rest) || *rest) continue;
        if (!rw_grow(files, &cap, *n, 1, sizeof **files)) return RW_ERR_MEMORY;
        (*files)[(*n)++] = file;
    }
    if (*n) qsort(*files, *n, sizeof **files, newest_first);
    return RW_OK;
}

rw_status rw_rotation_list(const struct rw_rotation *r, struct rw_rotated **ret, size_t *ret_n, char *why, size_t size)
{
    DIR *const dir = opendir(r->folder);
    struct rw_rotated *files = NULL;
    size_t n = 0;
    if (!dir && errno != ENOENT) return refuse(why, size, RW_ERR_IO, strerror(errno));
    const rw_status status = dir ? read_folder(dir, &files, &n) : RW_OK;
    if (dir) closedir(dir);
    if (status) {
        rw_free(files);
        return refuse(why, size, status, "out of memory");
    }
    *ret = files;
    *ret_n = n;
    return RW_OK;
}

/* ---- whose it is ---- */

/* Who has the lock alone writes here: a file that is half-written is nobody's any more. */
static void remove_parts(int fd)
{
    DIR *const dir = fdopendir(dup(fd));
    struct rw_rotated file;
    const char *rest;
    if (!dir) return;
    rewinddir(dir);
    for (const struct dirent *e; (e = readdir(dir));) {
        const size_t n = strlen(e->d_name);
        const bool part = n > strlen(PART) && !strcmp(e->d_name + n - strlen(PART), PART);
        if (part && read_name(e->d_name, &file, &rest) && *rest == '.') unlinkat(fd, e->d_name, 0);
    }
    closedir(dir);
}

/* The lock keeps others from saving, not from copying a file there: what is newest is looked up each time. */
static rw_status count_on(struct rw_rotation *r, char *why, size_t size)
{
    struct rw_rotated *files;
    size_t n;
    const rw_status status = rw_rotation_list(r, &files, &n, why, size);
    if (status) return status;
    const uint64_t newest = n ? files[0].number : 0;
    rw_free(files);
    if (newest + 1 >= NUMBER_END) return refuse(why, size, RW_ERR_IO, "no number is above the newest file's");
    if (newest > r->number) r->number = newest;
    return RW_OK;
}

static rw_status lock(int fd, char *why, size_t size)
{
    const bool locked = !flock(fd, LOCK_EX | LOCK_NB);
    if (!locked && errno == EWOULDBLOCK) return refuse(why, size, RW_ERR_IO, "somebody else saves there");
    if (locked) remove_parts(fd); /* a file system without locks: what is left over stays */
    return RW_OK;
}

/* What a child of fork() came with is its parent's lock: it asks for one of its own. */
static void leave_to_parent(struct rw_rotation *r)
{
    if (r->fd < 0 || r->process == getpid()) return;
    close(r->fd);
    r->fd = -1;
}

rw_status rw_rotation_lock(struct rw_rotation *r, char *why, size_t size)
{
    leave_to_parent(r);
    if (r->fd >= 0) return count_on(r, why, size);
    if (mkdir(r->folder, 0777) && errno != EEXIST) return refuse(why, size, RW_ERR_IO, strerror(errno));
    const int fd = open(r->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return refuse(why, size, RW_ERR_IO, strerror(errno));
    rw_status status = lock(fd, why, size);
    if (!status) status = count_on(r, why, size);
    if (status) close(fd);
    else r->fd = fd, r->process = getpid();
    return status;
}

/* ---- what goes ---- */

bool rw_rotation_note_bad(struct rw_rotation *r, uint64_t number)
{
    for (size_t i = 0; i < r->n_bad; i++)
        if (r->bad[i] == number) return true;
    if (!rw_grow(&r->bad, &r->cap_bad, r->n_bad, 1, sizeof *r->bad)) return false;
    r->bad[r->n_bad++] = number;
    return true;
}

static bool is_bad(const struct rw_rotation *r, uint64_t number)
{
    bool bad = false;
    for (size_t i = 0; i < r->n_bad; i++) bad |= r->bad[i] == number;
    return bad;
}

/* The file just written is r->number: it stays though a newer one came while it was written. */
static rw_status remove_old(const struct rw_rotation *r, int keep, const struct rw_rotated *files, size_t n, char *why,
                            size_t size)
{
    int whole = 0;
    rw_status status = RW_OK;
    for (size_t i = 0; i < n; i++) {
        char name[NAME_MOST];
        name_of(&files[i], name, sizeof name);
        if (whole < keep || files[i].number == r->number) whole += !is_bad(r, files[i].number);
        else if (unlinkat(r->fd, name, 0) && errno != ENOENT && !status) {
            snprintf(why, size, "%s cannot be removed: %s", name, strerror(errno));
            status = RW_ERR_IO;
        }
    }
    return status;
}

rw_status rw_rotation_settle(struct rw_rotation *r, int keep, char *why, size_t size)
{
    static const char still[] = "the new file is there, but older ones stay: ";
    const size_t behind = sizeof still - 1;
    struct rw_rotated *files;
    size_t n;
    if (fsync(r->fd)) return refuse(why, size, RW_ERR_IO, strerror(errno));
    snprintf(why, size, still);
    rw_status status = rw_rotation_list(r, &files, &n, why + behind, size - behind);
    if (status) return status;
    status = remove_old(r, keep, files, n, why + behind, size - behind);
    rw_free(files);
    return status;
}
