/* See read.h. */
#include "io/read.h"

#include "base/alloc.h"
#include "io/part.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool read_all(int fd, unsigned char *data, size_t bytes)
{
    while (bytes) {
        const ssize_t n = read(fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

static rw_status read_open(rw_context *ctx, const char *what, const char *path, int fd, size_t most,
                           unsigned char **ret_data, size_t *ret_bytes)
{
    struct stat about;
    const char *const fault = fstat(fd, &about) ? strerror(errno) : rw_file_fault(about.st_mode);
    if (fault) return rw_fail(ctx, RW_ERR_IO, "%s: %s: %s", what, path, fault);
    const size_t bytes = (size_t)about.st_size;
    if (bytes > most)
        return rw_fail(ctx, RW_ERR_IO, "%s: %s: %zu bytes, at most %zu are taken", what, path, bytes, most);
    unsigned char *const data = rw_malloc(bytes + 1);
    if (!data) return rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory for %zu bytes", what, bytes);
    if (!read_all(fd, data, bytes)) {
        rw_free(data);
        return rw_fail(ctx, RW_ERR_IO, "%s: %s: cannot be read", what, path);
    }
    data[bytes] = 0;
    *ret_data = data;
    *ret_bytes = bytes;
    return RW_OK;
}

/* Without O_NONBLOCK opening a FIFO would wait for somebody who writes. */
rw_status rw_file_read(rw_context *ctx, const char *what, const char *path, size_t most, unsigned char **ret_data,
                       size_t *ret_bytes)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return rw_fail(ctx, RW_ERR_IO, "%s: %s: %s", what, path, strerror(errno));
    const rw_status status = read_open(ctx, what, path, fd, most, ret_data, ret_bytes);
    close(fd);
    return status;
}
