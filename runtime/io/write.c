/*
 * How a snapshot becomes a file. The elements come first, each digested and then written, piece by piece; the header,
 * which holds the digests and is as long with them as it was without, at the end.
 */
#include "base/alloc.h"
#include "io/part.h"
#include "io/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((size_t)8 << 20)

static rw_status put(int fd, const unsigned char *data, size_t bytes, size_t at)
{
    while (bytes) {
        const ssize_t n = pwrite(fd, data, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return RW_ERR_IO;
        data += n;
        at += (size_t)n;
        bytes -= (size_t)n;
    }
    return RW_OK;
}

/* Whole pieces of what is ready; the disk begins with them at once. */
static rw_status put_pieces(int fd, const struct rw_snapshot *s, size_t header, size_t *done, size_t ready)
{
    rw_status status = RW_OK;
    while (!status && ready - *done >= PIECE) {
        status = put(fd, s->data + *done, PIECE, header + *done);
        if (!status) sync_file_range(fd, (off_t)(header + *done), (off_t)PIECE, SYNC_FILE_RANGE_WRITE);
        *done += PIECE;
    }
    return status;
}

static rw_status put_elements(int fd, struct rw_snapshot *s, size_t header, size_t *done)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i + 1 < s->n; i++) {
        struct rw_snapshot_tensor *const t = &s->tensor[i];
        char text[RW_DIGEST_TEXT];
        rw_digest_print(rw_digest_bytes(s->data + t->from, t->bytes, 1), text);
        memcpy(t->digest->valuestring, text, sizeof text);
        status = put_pieces(fd, s, header, done, t->from + t->bytes);
    }
    return status;
}

/* header: how long it will be. */
static rw_status put_all(int fd, struct rw_snapshot *s, size_t header)
{
    size_t done = 0, bytes = 0;
    rw_status status = put_elements(fd, s, header, &done);
    if (status) return status;
    unsigned char *const text = rw_format_print(s->header, &bytes);
    if (!text) return RW_ERR_MEMORY;
    const struct rw_digest whole = rw_digest_bytes(text, bytes, 1);
    memcpy(s->data + s->tensor[s->n - 1].from, &whole, sizeof whole);
    status = put(fd, s->data + done, s->bytes - done, header + done);
    if (!status) status = put(fd, text, bytes, 0);
    rw_free(text);
    return status;
}

rw_status rw_snapshot_write(struct rw_snapshot *s, const char *path, char *why, size_t size)
{
    struct rw_part part;
    const char *fault = NULL;
    size_t header = 0;
    unsigned char *const draft = rw_format_print(s->header, &header);
    rw_free(draft);
    rw_status status = draft ? rw_part_open(&part, path, &fault) : RW_ERR_MEMORY;
    if (!status) status = rw_part_close(&part, put_all(fileno(part.file), s, header));
    if (status)
        snprintf(why, size, "%s: %s", path,
                 fault ? fault : status == RW_ERR_IO ? strerror(errno) : rw_status_name(status));
    return status;
}
