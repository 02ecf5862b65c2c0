/*
 * A file that values wait in, as the stores of all devices use it. It has no name from the moment it is made, so it
 * goes with the process; it is used again by one run after the other. It is read and written past the page cache where
 * the file system can.
 *
 *     [ slots ............................................ ][ one page that nobody writes ]
 *
 * Whoever truncates the file meanwhile makes it shorter than that, and no write makes it as long again: a hole is never
 * read as if it were a value.
 */
#ifndef RW_DEVICE_FILE_H
#define RW_DEVICE_FILE_H

#include "device/store.h"

#include <stdatomic.h>
#include <stddef.h>

#define RW_FILE_PAGE 4096
#define RW_FILE_CHUNK ((size_t)4 << 20) /* bytes that are worth a call */

struct rw_file {
    int fd;
    uint64_t bytes;     /* of the slots */
    unsigned forks;     /* of the process that made it */
    atomic_bool direct; /* past the page cache; may end at any time, in any thread that copies */
    size_t alignment;   /* that memory must have then */
    char path[];        /* the folder */
};

/* On an error `why` receives a text that names the folder, or stays as it is: RW_ERR_MEMORY, RW_ERR_IO. */
rw_status rw_file_open(const char *path, uint64_t bytes, struct rw_file **ret, char *why, size_t size);
void rw_file_close(struct rw_file *f);
/* Can this process use it? It is not shared with the parent. */
bool rw_file_is_own(const struct rw_file *f);
rw_status rw_file_not_own(const struct rw_file *f, char *why, size_t size);

/* Is it as long as it was made? */
rw_status rw_file_check_length(const struct rw_file *f, char *why, size_t size);
/* Bytes at a place of the file to it or from it, all of them; `memory` and n as the disk takes them. */
bool rw_file_takes(const struct rw_file *f, const void *memory, size_t n);
rw_status rw_file_transfer(struct rw_file *f, void *memory, size_t n, uint64_t at, bool out, char *why, size_t size);

/* How fast it is, and what of a core copies take: 112 MiB or 0.6 seconds, from and to a chunk's worth of memory. The
   file holds RW_FILE_TIMED. */
#define RW_FILE_TIMED ((uint64_t)16 << 20)
rw_status rw_file_time(struct rw_file *f, void *memory, struct rw_store_rate *ret, char *why, size_t size);

#endif
