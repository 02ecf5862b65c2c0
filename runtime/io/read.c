/* See read.h. */
#include "io/read.h"

#include "base/alloc.h"
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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

static rw_status take_open(int fd, size_t most, unsigned char **ret_data, size_t *ret_bytes, char *why, size_t size)
{
    struct stat about;
    const char *const fault = fstat(fd, &about) ? strerror(errno) : rw_file_fault(about.st_mode);
    const size_t bytes = fault ? 0 : (size_t)about.st_size;
    if (fault) snprintf(why, size, "%s", fault);
    else if (bytes > most) snprintf(why, size, "%zu bytes, at most %zu are taken", bytes, most);
    if (fault || bytes > most) return RW_ERR_IO;
    unsigned char *const data = rw_malloc(bytes + 1);
    if (!data) {
        snprintf(why, size, "out of memory for %zu bytes", bytes);
        return RW_ERR_MEMORY;
    }
    if (!read_all(fd, data, bytes)) {
        rw_free(data);
        snprintf(why, size, "cannot be read");
        return RW_ERR_IO;
    }
    data[bytes] = 0;
    *ret_data = data;
    *ret_bytes = bytes;
    return RW_OK;
}

/* Without O_NONBLOCK opening a FIFO would wait for somebody who writes. */
rw_status rw_file_take(const char *path, size_t most, unsigned char **ret_data, size_t *ret_bytes, char *why,
                       size_t size)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, size, "%s", strerror(errno));
        return RW_ERR_IO;
    }
    const rw_status status = take_open(fd, most, ret_data, ret_bytes, why, size);
    close(fd);
    return status;
}

rw_status rw_file_read(rw_context *ctx, const char *what, const char *path, size_t most, unsigned char **ret_data,
                       size_t *ret_bytes)
{
    char why[RW_MESSAGE_MAX / 4];
    const rw_status status = rw_file_take(path, most, ret_data, ret_bytes, why, sizeof why);
    return status ? rw_fail(ctx, status, "%s: %s: %s", what, path, why) : RW_OK;
}
