/* Paths, creation, durability and listing of folders. */
#include "base/folder.h"

#include "base/alloc.h"
#include "base/file_descriptor_io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *rw_path_whole(const char *path)
{
    char *const here = *path == '/' ? NULL : getcwd(NULL, 0);
    if (*path != '/' && !here) return NULL;
    const size_t size = (here ? strlen(here) + 1 : 0) + strlen(path) + 1;
    char *const whole = rw_malloc(size);
    if (whole) snprintf(whole, size, "%s%s%s", here ? here : "", here ? "/" : "", path);
    else errno = ENOMEM;
    free(here);
    return whole;
}

bool rw_folder_sync(int fd)
{
    return rw_fd_sync(fd) || errno == EINVAL || errno == ENOTSUP || errno == ENOSYS;
}

char *rw_path_around(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    char *const folder = rw_malloc(n + 2);
    if (!folder) return NULL;
    memcpy(folder, n ? path : ".", n ? n : 1);
    folder[n ? n : 1] = '\0';
    return folder;
}

bool rw_folder_sync_path(const char *folder)
{
    const int fd = rw_fd_open(folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return errno == EACCES;
    const bool synced = rw_folder_sync(fd);
    const int reason = errno;
    close(fd);
    errno = reason;
    return synced;
}

bool rw_folder_make(const char *path)
{
    char *const around = rw_path_around(path);
    errno = ENOMEM;
    bool exists = around && (!mkdir(path, 0777) || errno == EEXIST);
    if (exists) exists = rw_folder_sync_path(around); /* if it was there, an earlier sync may have failed */
    const int reason = errno;
    rw_free(around);
    errno = reason;
    return exists;
}

/* Uses a descriptor of its own, because the position in a folder belongs to the descriptor. */
bool rw_folder_read(int fd, bool (*visit)(void *self, const char *name), void *self)
{
    const int own = rw_fd_open_at(fd, ".", O_RDONLY | O_DIRECTORY);
    DIR *const dir = own < 0 ? NULL : fdopendir(own);
    if (!dir) {
        const int reason = errno;
        if (own >= 0) close(own);
        errno = reason;
        return false;
    }
    const struct dirent *e;
    do {
        errno = 0;
        e = readdir(dir);
    } while (e ? visit(self, e->d_name) : errno == EINTR);
    const int reason = e ? 0 : errno;
    closedir(dir);
    errno = reason;
    return !reason;
}
