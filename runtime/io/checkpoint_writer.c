/*
 * Writes a snapshot to a file. One thread writes the elements directly from the snapshot's memory (O_DIRECT) if the
 * file system supports it, so that they neither fill the page cache nor use the processor that training needs. Another
 * thread computes their digests meanwhile. The header, which contains the digests and whose length does not depend on
 * them, is written last.
 */
#include "base/alloc.h"
#include "base/file_descriptor_io.h"
#include "base/atomic_file_replace.h"
#include "io/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((size_t)32 << 20)
#define LARGE ((size_t)1 << 20) /* larger tensors start at a block boundary, and are written by blocks */

static rw_status put(int fd, const unsigned char *data, size_t bytes, size_t at)
{
    return rw_fd_write_at(fd, data, bytes, at) ? RW_OK : RW_ERR_IO;
}

/* ---- whole blocks of elements ---- */

static bool set_direct(int fd, bool on)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && !fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

/* A full disk is detected before anything is written. Without this call writing is only slower. */
static rw_status reserve(int fd, size_t bytes)
{
    const int error = rw_fd_reserve(fd, bytes);
    errno = error;
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? RW_ERR_IO : RW_OK;
}

/* If memory cannot be written directly, it is copied, and the disk starts immediately. */
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

/* Training waits for the copy, so digests start only after it, to leave it the memory bandwidth. */
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

/* Writes whole blocks while the digests are computed; without a second thread they are computed afterwards. */
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
    struct rw_replacement file;
    const char *fault = NULL;
    size_t header = 0;
    unsigned char *const draft = print_header(s, &header);
    rw_free(draft);
    rw_status status = draft ? rw_replace_begin(&file, path, &fault) : RW_ERR_MEMORY;
    if (!status) status = rw_replace_end(&file, put_all(file.fd, s, header));
    if (status)
        snprintf(why, size, "%s: %s", path,
                 fault ? fault : status == RW_ERR_IO ? strerror(errno) : rw_status_name(status));
    return status;
}
