/* Files that grow by complete records: JSON lines, TensorBoard events, slices of a trace. */
#ifndef RW_BASE_APPEND_ONLY_FILE_H
#define RW_BASE_APPEND_ONLY_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rw_records {
    int fd;              /* opened with O_APPEND if it is a file; -1: none, and nothing is written */
    bool after_half;     /* the file ends with an incomplete line of an earlier run, so the next record starts a new
                            line */
    uint64_t half, end;  /* bytes [half, end) are an incomplete record that could not be removed yet; 0, 0: none */
};

/* For a file of lines, opened from that path: checks whether its last line is complete. */
void rw_records_of_lines(struct rw_records *r, int fd, const char *path);

/*
 * Appends a record completely, or returns false with errno and leaves nothing of it. An incomplete record is removed at
 * once or, if that fails, before the next record, which fails until that succeeds. Records that other processes append
 * are kept.
 */
bool rw_records_append(struct rw_records *r, const void *record, size_t n);

/* Closes it. In a child of fork() as well: the file is the parent's. */
void rw_records_close(struct rw_records *r);

#endif
