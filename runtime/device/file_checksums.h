/*
 * Checksums of the pieces that were written to a file, by position: XXH3 with 64 bits, over at most RW_FILE_CHUNK
 * bytes. A piece that is read back is compared with its checksum. So a file that another process has changed causes an
 * error, not a wrong value.
 *
 * Checksums may take 2 % of the time of the copies. Above that, a piece is written without a checksum and is not
 * compared when it is read back; the first 16 MiB always have one. On a slow disk every piece is checked, on a fast one
 * some are.
 */
#ifndef RW_DEVICE_FILE_CHECKSUMS_H
#define RW_DEVICE_FILE_CHECKSUMS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rw_checksum {
    uint64_t at, sum;
    size_t bytes; /* 0: the entry is empty */
};

/* Used by all threads that copy. */
struct rw_checksums {
    pthread_mutex_t mutex;
    struct rw_checksum *table; /* open addressing by `at`; size is a power of two, at most half full */
    size_t size, n;
    double copying_s, summing_s;
    uint64_t copied; /* bytes */
};

void rw_checksums_init(struct rw_checksums *c);
void rw_checksums_finish(struct rw_checksums *c);

/* Records the time of a copy. */
void rw_checksums_add_time(struct rw_checksums *c, size_t bytes, double seconds);

/* Records the checksum of bytes that are about to be written at that position. */
void rw_checksums_note(struct rw_checksums *c, const void *bytes, size_t n, uint64_t at);

/* Are these the bytes that were written at that position? True if no checksum is known. */
bool rw_checksums_match(struct rw_checksums *c, const void *bytes, size_t n, uint64_t at);

#endif
