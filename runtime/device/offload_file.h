/*
 * A file for offloaded values, used by the stores of all devices. It has no name in its folder, so it disappears with
 * the process. One run after the other uses it. It is read and written without the page cache where the file system
 * allows that.
 *
 *     [ slots ............................................ ][ one page that is never written ]
 *
 * If another process truncates the file it becomes shorter than this, and no write makes it as long again. So a hole is
 * never read as a value.
 */
#ifndef RW_DEVICE_OFFLOAD_FILE_H
#define RW_DEVICE_OFFLOAD_FILE_H

#include "base/fork_handlers.h"
#include "device/file_checksums.h"
#include "device/offload_store.h"

#include <stdatomic.h>
#include <stddef.h>

#define RW_FILE_PAGE 4096
#define RW_FILE_CHUNK ((size_t)4 << 20) /* bytes per call */

struct rw_file {
    int fd;             /* -1 in a child of fork() */
    uint64_t bytes;     /* of the slots */
    struct rw_forked forked;
    atomic_bool direct; /* without the page cache; may end at any time, in any thread that copies */
    size_t alignment;   /* that memory must have then */
    struct rw_checksums sums;
    char path[];        /* the folder */
};

/* Opens a file. On an error `why` receives a text that names the folder, or is unchanged. RW_ERR_MEMORY, RW_ERR_IO. */
rw_status rw_file_open(const char *path, uint64_t bytes, struct rw_file **ret, char *why, size_t size);
void rw_file_close(struct rw_file *f);
/* Was the file closed in a child of fork()? It belongs to the parent only. The second returns RW_ERR_IO with a text. */
bool rw_file_is_closed(const struct rw_file *f);
rw_status rw_file_closed(const struct rw_file *f, char *why, size_t size);

/* Does the file still have its full length? */
rw_status rw_file_check_length(const struct rw_file *f, char *why, size_t size);
/*
 * takes(): can the memory and size be transferred without a copy? transfer(): writes or reads all n bytes at a
 * position.
 */
bool rw_file_takes(const struct rw_file *f, const void *memory, size_t n);
rw_status rw_file_transfer(struct rw_file *f, void *memory, size_t n, uint64_t at, bool out, char *why, size_t size);

/* note(): records a piece of a value, of at most RW_FILE_CHUNK bytes, before it is written. check(): compares it after
   it was read. RW_ERR_IO: another process has changed the file. */
void rw_file_note(struct rw_file *f, const void *piece, size_t n, uint64_t at);
rw_status rw_file_check(struct rw_file *f, const void *piece, size_t n, uint64_t at, char *why, size_t size);

/* Measures the rates and the core time of copies: 112 MiB or 0.6 seconds, with memory of one chunk. The file has
   RW_FILE_TIMED bytes. */
#define RW_FILE_TIMED ((uint64_t)16 << 20)
rw_status rw_file_time(struct rw_file *f, void *memory, struct rw_store_rate *ret, char *why, size_t size);

#endif
