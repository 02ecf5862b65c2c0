/* Reads whole files, of bounded size. */
#include "io/read_whole_file.h"

#include "base/alloc.h"
#include "base/file_descriptor_io.h"
#include "base/sigpipe_safe_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static rw_status take_open(int fd, size_t most, unsigned char **ret_data, size_t *ret_bytes, char *why, size_t size)
{
    struct stat about;
    const char *const fault = fstat(fd, &about) ? strerror(errno) : rw_file_fault(about.st_mode);
    const size_t bytes = fault ? 0 : (size_t)about.st_size;
    if (fault) snprintf(why, size, "%s", fault);
    else if (bytes > most) snprintf(why, size, "expected a file of at most %zu bytes, got %zu", most, bytes);
    if (fault || bytes > most) return RW_ERR_IO;
    unsigned char *const data = rw_malloc(bytes + 1);
    if (!data) {
        snprintf(why, size, "out of memory for %zu bytes", bytes);
        return RW_ERR_MEMORY;
    }
    if (!rw_fd_read_at(fd, data, bytes, 0)) {
        snprintf(why, size, "cannot be read: %s", errno ? strerror(errno) : "unexpected end of file");
        rw_free(data);
        return RW_ERR_IO;
    }
    data[bytes] = 0;
    *ret_data = data;
    *ret_bytes = bytes;
    return RW_OK;
}

/* Opens with O_NONBLOCK, because opening a FIFO would otherwise wait for a writer. */
static rw_status take(const char *path, size_t most, unsigned char **ret_data, size_t *ret_bytes, char *why,
                      size_t size)
{
    const int fd = rw_fd_open(path, O_RDONLY | O_NONBLOCK, 0);
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
    const rw_status status = take(path, most, ret_data, ret_bytes, why, sizeof why);
    return status ? rw_fail(ctx, status, "%s: %s: %s", what, path, why) : RW_OK;
}
