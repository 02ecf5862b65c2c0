/*
 * How a snapshot becomes a file: one thread hands the elements to the disk, from the copy's own memory (O_DIRECT) where
 * the file system lets it, so that they fill no page cache and take no processor from the training; another one makes
 * their digests meanwhile. The header, which holds the digests and is as long with them as it was without, comes last.
 */
#include "base/alloc.h"
#include "io/part.h"
#include "io/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((size_t)32 << 20)
#define LARGE ((size_t)1 << 20) /* elements of so many bytes begin at a block, and are written by blocks */

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

/* ---- whole blocks of elements ---- */

static bool set_direct(int fd, bool on)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && !fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

/* A disk that is too full is known before anything is written. What cannot do this is only slower. */
static rw_status reserve(int fd, size_t bytes)
{
    int failed;
    do failed = fallocate(fd, 0, 0, (off_t)bytes);
    while (failed && errno == EINTR);
    return failed && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) ? RW_ERR_IO : RW_OK;
}

/* Where memory cannot be handed over, it is copied, and the disk begins with it at once. */
static rw_status put_piece(int fd, const struct rw_snapshot *s, size_t header, size_t from, size_t n, bool *direct)
{
    rw_status status = put(fd, s->data + from, n, header + from);
    if (status && *direct && errno == EINVAL) {
        *direct = !set_direct(fd, false);
        status = put(fd, s->data + from, n, header + from);
    }
    if (!status && !*direct) sync_file_range(fd, (off_t)(header + from), (off_t)n, SYNC_FILE_RANGE_WRITE);
    return status;
}

static rw_status put_blocks(int fd, struct rw_snapshot *s, size_t header, size_t bytes)
{
    bool direct = bytes && set_direct(fd, true);
    rw_status status = bytes ? reserve(fd, header + s->bytes) : RW_OK;
    for (size_t from = 0; !status && from < bytes; from += PIECE) {
        const size_t rest = bytes - from, n = rest < PIECE ? rest : PIECE;
        status = rw_snapshot_await(s, from + n) ? put_piece(fd, s, header, from, n, &direct) : RW_ERR_DEVICE;
    }
    if (direct && !set_direct(fd, false) && !status) status = RW_ERR_IO;
    return status;
}

/* ---- digests ---- */

/* The training waits for the copy: until it is taken, memory is left to it. */
static void *digest(void *argument)
{
    struct rw_snapshot *const s = argument;
    if (!rw_snapshot_await(s, s->tensor[s->n - 1].from)) return NULL;
    for (size_t i = 0; i + 1 < s->n; i++) {
        const struct rw_snapshot_tensor *const t = &s->tensor[i];
        char text[RW_DIGEST_TEXT];
        rw_digest_print(rw_digest_bytes(s->data + t->from, t->bytes, 1), text);
        memcpy(t->digest->valuestring, text, sizeof text);
    }
    return NULL;
}

/* Whole blocks, with the digests beside; without a second thread these come behind. */
static rw_status put_and_digest(int fd, struct rw_snapshot *s, size_t header, size_t bytes)
{
    pthread_t beside;
    const bool started = bytes && !pthread_create(&beside, NULL, digest, s);
    const rw_status status = put_blocks(fd, s, header, bytes);
    const int reason = errno;
    if (started) pthread_join(beside, NULL);
    else if (!status) digest(s);
    errno = reason;
    return status;
}

/* ---- a file ---- */

static unsigned char *print_header(const struct rw_snapshot *s, size_t *ret_bytes)
{
    return rw_format_print(s->header, s->bytes < LARGE ? 8 : RW_SNAPSHOT_BLOCK, ret_bytes);
}

/* header: how long it will be. */
static rw_status put_all(int fd, struct rw_snapshot *s, size_t header)
{
    const size_t last = s->tensor[s->n - 1].from;
    const size_t done = s->bytes < LARGE ? 0 : last / RW_SNAPSHOT_BLOCK * RW_SNAPSHOT_BLOCK;
    size_t bytes = 0;
    rw_status status = put_and_digest(fd, s, header, done);
    if (!status && !rw_snapshot_await(s, last)) status = RW_ERR_DEVICE;
    if (status) return status;
    unsigned char *const text = print_header(s, &bytes);
    if (!text) return RW_ERR_MEMORY;
    const struct rw_digest whole = rw_digest_bytes(text, bytes, 1);
    memcpy(s->data + last, &whole, sizeof whole);
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
    unsigned char *const draft = print_header(s, &header);
    rw_free(draft);
    rw_status status = draft ? rw_part_open(&part, path, &fault) : RW_ERR_MEMORY;
    if (!status) status = rw_part_close(&part, put_all(fileno(part.file), s, header));
    if (status)
        snprintf(why, size, "%s: %s", path,
                 fault ? fault : status == RW_ERR_IO ? strerror(errno) : rw_status_name(status));
    return status;
}
