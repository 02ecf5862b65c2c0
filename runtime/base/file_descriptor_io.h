/*
 * System calls on files that complete: they continue after EINTR and after short writes and reads. Every descriptor is
 * close-on-exec. Writers that may exceed a file size limit block SIGXFSZ themselves: base/sigpipe_safe_output.h.
 */
#ifndef RW_BASE_FILE_DESCRIPTOR_IO_H
#define RW_BASE_FILE_DESCRIPTOR_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* -1 with errno. */
int rw_fd_open(const char *path, int flags, unsigned mode);
int rw_fd_open_at(int folder, const char *path, int flags);
int rw_fd_duplicate(int fd);

/* Writes all n bytes, or false with errno; ENOSPC if the system writes none without an error. The first writes at
   the file's position; *ret_n receives the number of bytes written in any case. */
bool rw_fd_write(int fd, const void *data, size_t n, size_t *ret_n);
bool rw_fd_write_at(int fd, const void *data, size_t n, uint64_t at);

/* Reads all n bytes, or false with errno, which is 0 if the file ends before. */
bool rw_fd_read_at(int fd, void *data, size_t n, uint64_t at);

/* Allocates blocks on the disk and sets the length. 0, or errno: EOPNOTSUPP and ENOSYS if the file system cannot. */
int rw_fd_reserve(int fd, uint64_t bytes);
/* False with errno. */
bool rw_fd_resize(int fd, uint64_t bytes);
bool rw_fd_sync(int fd);

enum rw_fd_lock { RW_FD_LOCKED, RW_FD_TAKEN, RW_FD_NO_LOCKS };

/* Locks the file against all other open file descriptions, also of this process, until it is closed. Does not wait.
   RW_FD_TAKEN: another one has the lock; RW_FD_NO_LOCKS: the file system has no locks. */
enum rw_fd_lock rw_fd_lock(int fd);

/* Releases the lock at once, even while fork() is just giving the descriptor to a child. */
void rw_fd_unlock(int fd);

#endif
