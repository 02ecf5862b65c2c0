/* Folders: durable entries, and listings that are complete or an error. */
#ifndef RW_BASE_FOLDER_H
#define RW_BASE_FOLDER_H

#include <stdbool.h>

/* The absolute path, relative to the current folder of the process; for rw_free(). NULL with errno. */
char *rw_path_whole(const char *path);

/* The folder that contains the path's last component; for rw_free(). NULL without memory. */
char *rw_path_around(const char *path);

/* Makes a folder's entries durable. On file systems without fsync() of folders it does nothing. False with errno.
   The second takes a path, and skips a folder that this process may not read. */
bool rw_folder_sync(int fd);
bool rw_folder_sync_path(const char *folder);

/* Creates the folder unless it exists, and makes its own entry durable. False with errno. */
bool rw_folder_make(const char *path);

/* Calls visit() with each name in the folder until visit() returns false. False with errno: the listing failed. */
bool rw_folder_read(int fd, bool (*visit)(void *self, const char *name), void *self);

#endif
