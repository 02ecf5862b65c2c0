/*
 * A snapshot: a copy of a run in host memory, in the layout of its file. Tensors follow each other in the order of the
 * header. Each has a digest in the header's metadata; the last tensor is the digest of the header itself. Loading
 * verifies all digests, and every byte of a file is covered by one.
 *
 * Metadata, all strings:
 *     rewind.checkpoint      1, the version of this layout
 *     rewind.step            the caller's step number
 *     rewind.generator       seed and offset
 *     rewind.optimizer       its kind, if there is one, and
 *     rewind.optimizer.lr    its learning rate, as C prints a double by %a
 *     rewind.schedule        if there is one: kind, lr, min_lr, warmup, total, every, factor; rates by %a
 *     rewind.digest:NAME     of the tensor of that name: 32 hexadecimal digits
 * Tensors in addition to parameters and buffers:
 *     rewind:STATE:NAME      an optimizer's state of the parameter, by PyTorch's name: exp_avg, exp_avg_sq ...; master
 *     rewind:step:NAME       I64: the parameter's count of updates; 1 if the master copy equals the parameter
 *     rewind:settings:NAME   F64: values set by rw_optimizer_set(): lr_factor; weight_decay, below 0 for the
 *                            optimizer's. Older files do not have it
 *     rewind:average:NAME    the parameter's moving average
 *     rewind:extra           U8: the caller's bytes
 *     rewind:header          U8: the digest of everything before the elements
 *
 * The writer starts with what is already copied, so copying and writing overlap.
 */
#ifndef RW_IO_SNAPSHOT_H
#define RW_IO_SNAPSHOT_H

#include "api/weight_average.h"
#include "api/optimizer.h"
#include "base/digest.h"
#include "io/safetensors_format.h"

#include <rewind/lr_schedule.h>

#include <pthread.h>

#define RW_SNAPSHOT_PREFIX "rewind:"
#define RW_SNAPSHOT_HEADER "rewind:header"
#define RW_SNAPSHOT_EXTRA "rewind:extra"
#define RW_SNAPSHOT_VERSION "rewind.checkpoint"
#define RW_SNAPSHOT_STEP "rewind.step"
#define RW_SNAPSHOT_GENERATOR "rewind.generator"
#define RW_SNAPSHOT_OPTIMIZER "rewind.optimizer"
#define RW_SNAPSHOT_LR "rewind.optimizer.lr"
#define RW_SNAPSHOT_SCHEDULE "rewind.schedule"
#define RW_SNAPSHOT_DIGEST "rewind.digest:"
#define RW_SNAPSHOT_NAME_MAX 320 /* maximum length of the name of a tensor or metadata entry: a parameter's plus a
                                     prefix */
#define RW_DIGEST_TEXT 33
#define RW_SNAPSHOT_BLOCK ((size_t)4096) /* alignment in memory and in the file for direct writes (O_DIRECT) */

/* What to save in addition to the parameters and buffers of the context. */
struct rw_snapshot_of {
    rw_context *ctx;
    rw_optimizer *optimizer; /* NULL: none; of these as well */
    rw_weight_average *average;
    const rw_lr_schedule *schedule;
    uint64_t step;
    const void *extra;
    size_t extra_bytes;
};

struct rw_snapshot_tensor {
    size_t from, bytes; /* in data */
    cJSON *digest;      /* its place in the metadata, to be overwritten; NULL: the header's own */
};

struct rw_snapshot {
    unsigned char *data; /* at a multiple of RW_SNAPSHOT_BLOCK */
    size_t bytes, cap_bytes;
    struct rw_snapshot_tensor *tensor;
    size_t n, cap;
    cJSON *header, *metadata;
    pthread_mutex_t lock; /* of the two below */
    pthread_cond_t moved;
    size_t copied; /* number of leading bytes of data that are copied */
    bool given_up; /* no more will be */
};

void rw_snapshot_init(struct rw_snapshot *s);

/* In a child of fork(): the parent's writer does not exist, and lock and condition must not wait for it. */
void rw_snapshot_forget_writer(struct rw_snapshot *s);
void rw_snapshot_finish(struct rw_snapshot *s);

/* Waits for queued work and determines the layout; then writing may start. On an error, which is recorded, the
   snapshot is empty. Its memory is reused by the next one. */
rw_status rw_snapshot_begin(struct rw_snapshot *s, const struct rw_snapshot_of *what);

/* Copies the data. An error is recorded, and reported to the writer. */
rw_status rw_snapshot_copy(struct rw_snapshot *s, const struct rw_snapshot_of *what);

/* Waits until so many bytes are copied; false: the copy has failed. Any thread. */
bool rw_snapshot_await(struct rw_snapshot *s, size_t bytes);

/* Writes it to a file, atomically. Uses no context. RW_ERR_IO, RW_ERR_MEMORY; RW_ERR_DEVICE without a message if the
   copy has failed. */
rw_status rw_snapshot_write(struct rw_snapshot *s, const char *path, char *why, size_t size);

void rw_digest_print(struct rw_digest d, char text[RW_DIGEST_TEXT]);

/* The name of a state in a file, and of other tensors of a parameter: "step". */
void rw_snapshot_name(char name[RW_SNAPSHOT_NAME_MAX], const char *state, const char *param);

#endif
