/* Checkpoint files in a folder: parses names strictly, so that other files are never touched; locks the folder;
   counts and removes files. */
#include "io/checkpoint_retention.h"

#include "base/alloc.h"
#include "base/file_descriptor_io.h"
#include "base/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENDING ".safetensors"
#define PART ".part"
#define NAME_BYTES 80
#define NUMBER_END ((uint64_t)1 << 63) /* above every number that can be reached by counting */

/* Absolute, because the process may change its current folder. */
rw_status rw_retention_init(struct rw_retention *r, const char *folder)
{
    *r = (struct rw_retention){ .folder = rw_path_whole(folder), .fd = -1 };
    return r->folder ? RW_OK : errno == ENOMEM ? RW_ERR_MEMORY : RW_ERR_IO;
}

/* The lock belongs to the open file, which a child also has until its handler has run. */
static void let_go(struct rw_retention *r)
{
    if (r->fd < 0) return;
    rw_forked_remove(&r->forked);
    rw_fd_unlock(r->fd);
    close(r->fd);
    r->fd = -1;
}

/* The lock is its parent's. */
static void in_child(struct rw_forked *f)
{
    struct rw_retention *const r = (struct rw_retention *)(void *)((char *)f - offsetof(struct rw_retention, forked));
    close(r->fd);
    r->fd = -1;
}

void rw_retention_finish(struct rw_retention *r)
{
    let_go(r);
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

/* Accepts only names that name_of() writes, so that no other file is mistaken for a checkpoint or removed.
   *ret_rest: the rest of the name. */
static bool read_name(const char *name, struct rw_rotated *ret, const char **ret_rest)
{
    char again[NAME_BYTES];
    char *end;
    if (*name < '0' || *name > '9') return false;
    ret->number = strtoull(name, &end, 10);
    if (strncmp(end, "-step", 5) != 0 || end[5] < '0' || end[5] > '9') return false;
    ret->step = strtoull(end + 5, NULL, 10);
    name_of(ret, again, sizeof again);
    *ret_rest = name + strlen(again);
    return ret->number < NUMBER_END && !strncmp(name, again, strlen(again));
}

char *rw_retention_path(const struct rw_retention *r, const struct rw_rotated *file)
{
    char name[NAME_BYTES];
    name_of(file, name, sizeof name);
    const size_t size = strlen(r->folder) + strlen(name) + 2;
    char *const path = rw_malloc(size);
    if (path) snprintf(path, size, "%s/%s", r->folder, name);
    return path;
}

/* ---- existing files ---- */

static int newest_first(const void *a, const void *b)
{
    const struct rw_rotated *const x = a, *const y = b;
    if (x->number != y->number) return x->number < y->number ? 1 : -1;
    return (x->step < y->step) - (x->step > y->step);
}

struct listing {
    struct rw_rotated *files;
    size_t n, cap;
    bool no_memory;
};

static bool add_file(void *self, const char *name)
{
    struct listing *const l = self;
    struct rw_rotated file;
    const char *rest;
    if (!read_name(name, &file, &rest) || *rest) return true;
    l->no_memory = !rw_grow(&l->files, &l->cap, l->n, 1, sizeof *l->files);
    if (!l->no_memory) l->files[l->n++] = file;
    return !l->no_memory;
}

static rw_status list(int fd, struct rw_rotated **ret, size_t *ret_n, char *why, size_t size)
{
    struct listing l = { 0 };
    const bool read = rw_folder_read(fd, add_file, &l);
    if (!read || l.no_memory) {
        snprintf(why, size, "%s", read ? "out of memory" : strerror(errno));
        rw_free(l.files);
        return read ? RW_ERR_MEMORY : RW_ERR_IO;
    }
    if (l.n) qsort(l.files, l.n, sizeof *l.files, newest_first);
    *ret = l.files;
    *ret_n = l.n;
    return RW_OK;
}

rw_status rw_retention_list(const struct rw_retention *r, struct rw_rotated **ret, size_t *ret_n, char *why,
                            size_t size)
{
    const int fd = rw_fd_open(r->folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0 && errno != ENOENT) return refuse(why, size, RW_ERR_IO, strerror(errno));
    if (fd < 0) {
        *ret = NULL;
        *ret_n = 0;
        return RW_OK;
    }
    const rw_status status = list(fd, ret, ret_n, why, size);
    close(fd);
    return status;
}

/* ---- the lock ---- */

static bool remove_part(void *self, const char *name)
{
    const int *const fd = self;
    struct rw_rotated file;
    const char *rest;
    const size_t n = strlen(name);
    const bool part = n > strlen(PART) && !strcmp(name + n - strlen(PART), PART);
    if (part && read_name(name, &file, &rest) && *rest == '.') unlinkat(*fd, name, 0);
    return true;
}

/* The lock prevents other saves, not copies of files into the folder, so the newest number is looked up each time. */
static rw_status count_on(struct rw_retention *r, int fd, char *why, size_t size)
{
    struct rw_rotated *files;
    char name[NAME_BYTES];
    size_t n;
    const rw_status status = list(fd, &files, &n, why, size);
    if (status) return status;
    const struct rw_rotated newest = n ? files[0] : (struct rw_rotated){ 0 };
    rw_free(files);
    if (newest.number + 1 >= NUMBER_END) {
        name_of(&newest, name, sizeof name);
        snprintf(why, size, "%s: no larger file number is left; remove or rename this file", name);
        return RW_ERR_IO;
    }
    if (newest.number > r->number) r->number = newest.number;
    return RW_OK;
}

/* Only the owner of the lock writes here, so incomplete files belong to no process any more. On a file system
   without locks they are kept. */
static rw_status lock(int fd, char *why, size_t size)
{
    const enum rw_fd_lock got = rw_fd_lock(fd);
    if (got == RW_FD_TAKEN) return refuse(why, size, RW_ERR_IO, "another process saves to this folder");
    if (got == RW_FD_LOCKED) rw_folder_read(fd, remove_part, &fd);
    return RW_OK;
}

/* True if the path still leads to the locked folder, which may have been removed, renamed or recreated. */
static bool is_there(const struct rw_retention *r)
{
    struct stat open, path;
    return r->fd >= 0 && !fstat(r->fd, &open) && !stat(r->folder, &path) && open.st_dev == path.st_dev &&
           open.st_ino == path.st_ino;
}

static rw_status take_up(struct rw_retention *r, char *why, size_t size)
{
    let_go(r);
    if (!rw_folder_make(r->folder)) return refuse(why, size, RW_ERR_IO, strerror(errno));
    const int fd = rw_fd_open(r->folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return refuse(why, size, RW_ERR_IO, strerror(errno));
    r->fd = fd;
    rw_forked_add(&r->forked, in_child);
    const rw_status status = lock(fd, why, size);
    if (status) let_go(r);
    return status;
}

rw_status rw_retention_lock(struct rw_retention *r, char *why, size_t size)
{
    const rw_status status = is_there(r) ? RW_OK : take_up(r, why, size);
    return status ? status : count_on(r, r->fd, why, size);
}

/* ---- removal ---- */

bool rw_retention_note_bad(struct rw_retention *r, uint64_t number)
{
    for (size_t i = 0; i < r->n_bad; i++)
        if (r->bad[i] == number) return true;
    if (!rw_grow(&r->bad, &r->cap_bad, r->n_bad, 1, sizeof *r->bad)) return false;
    r->bad[r->n_bad++] = number;
    return true;
}

static bool is_bad(const struct rw_retention *r, uint64_t number)
{
    bool bad = false;
    for (size_t i = 0; i < r->n_bad; i++) bad |= r->bad[i] == number;
    return bad;
}

/* The file just written is r->number: it is kept even if a newer one appeared meanwhile. */
static bool remove_old(const struct rw_retention *r, int keep, const struct rw_rotated *files, size_t n, char *why,
                       size_t size)
{
    int whole = 0;
    bool all = true;
    for (size_t i = 0; i < n; i++) {
        char name[NAME_BYTES];
        name_of(&files[i], name, sizeof name);
        if (whole < keep || files[i].number == r->number) whole += !is_bad(r, files[i].number);
        else if (unlinkat(r->fd, name, 0) && errno != ENOENT && all) {
            snprintf(why, size, "%s/%s cannot be removed: %s", r->folder, name, strerror(errno));
            all = false;
        }
    }
    return all;
}

/* If the folder was replaced while the file was written, the file is in the new one. */
bool rw_retention_settle(struct rw_retention *r, int keep, char *why, size_t size)
{
    static const char still[] = "older files were not removed: ";
    const size_t prefix = sizeof still - 1;
    struct rw_rotated *files;
    size_t n;
    snprintf(why, size, still);
    if (!is_there(r) && take_up(r, why + prefix, size - prefix)) return false;
    if (list(r->fd, &files, &n, why + prefix, size - prefix)) return false;
    const bool all = remove_old(r, keep, files, n, why + prefix, size - prefix);
    rw_free(files);
    return all;
}
