/* Appends records, and truncates the file after a failed write so that it ends with a complete one. */
#include "base/append_only_file.h"

#include "base/file_descriptor_io.h"
#include "base/sigpipe_safe_output.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The descriptor may be write-only, so the path is opened again. A file that cannot be read is assumed to be
   complete. */
void rw_records_of_lines(struct rw_records *r, int fd, const char *path)
{
    struct stat about;
    char last = '\n';
    *r = (struct rw_records){ .fd = fd };
    if (fd < 0 || fstat(fd, &about) || !S_ISREG(about.st_mode) || !about.st_size) return;
    const int reads = rw_fd_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (reads >= 0 && rw_fd_read_at(reads, &last, 1, (uint64_t)about.st_size - 1)) r->after_half = last != '\n';
    if (reads >= 0) close(reads);
}

/* Only if nothing was appended since, so that the incomplete record is the end of the file. True: none of ours is
   left. */
static bool cut(struct rw_records *r)
{
    struct stat about;
    if (r->half == r->end) return true;
    if (fstat(r->fd, &about)) return false;
    if (S_ISREG(about.st_mode) && (uint64_t)about.st_size == r->end && !rw_fd_resize(r->fd, r->half)) return false;
    r->half = r->end = 0;
    return true;
}

/* Removes the bytes that a failed record has written; the file's position follows. */
static void cut_back(struct rw_records *r, size_t written)
{
    const int reason = errno;
    const off_t end = written ? lseek(r->fd, 0, SEEK_CUR) : 0;
    if (end >= (off_t)written) {
        r->half = (uint64_t)end - written;
        r->end = (uint64_t)end;
        cut(r);
    }
    errno = reason;
}

static bool append(struct rw_records *r, const void *record, size_t n)
{
    size_t written;
    if (!cut(r)) return false;
    if (r->after_half) {
        if (!rw_fd_write(r->fd, "\n", 1, &written)) return false;
        r->after_half = false;
    }
    if (rw_fd_write(r->fd, record, n, &written)) return true;
    cut_back(r, written);
    return false;
}

bool rw_records_append(struct rw_records *r, const void *record, size_t n)
{
    if (r->fd < 0) return true;
    const struct rw_quiet q = rw_quiet_begin();
    const bool whole = append(r, record, n);
    rw_quiet_end(&q);
    return whole;
}

void rw_records_close(struct rw_records *r)
{
    if (r->fd >= 0) close(r->fd);
    *r = (struct rw_records){ .fd = -1 };
}
