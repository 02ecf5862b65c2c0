/*
 * A copy of a run in host memory, laid out as the file that it becomes: tensors one behind the other, in the order of
 * the header, each with a digest in the header's metadata; the last one is the digest of the header itself. What is
 * read back is held against these digests, byte for byte: no byte of a file is in none of them.
 *
 * Metadata, all texts:
 *     rewind.checkpoint      1, the version of all this
 *     rewind.step            what the caller calls the step
 *     rewind.generator       seed and offset
 *     rewind.optimizer       its kind, where there is one, and
 *     rewind.optimizer.lr    its learning rate, as C prints a double by %a
 *     rewind.schedule        where there is one: kind, lr, min_lr, warmup, total, every, factor; rates by %a
 *     rewind.digest:NAME     of the tensor of that name: 32 hexadecimal digits
 * Tensors beside parameters and buffers:
 *     rewind:STATE:NAME      an optimizer's state of the parameter, by PyTorch's name: exp_avg, exp_avg_sq ...; master
 *     rewind:step:NAME       I64: the parameter's count of updates; 1 where the master is a copy of it as it is
 *     rewind:settings:NAME   F64: what rw_optimizer_set() has set: lr_factor; weight_decay, below 0 for the
 *                            optimizer's. Older files do not have it
 *     rewind:average:NAME    the parameter's moving average
 *     rewind:extra           U8: the caller's own bytes
 *     rewind:header          U8: the digest of what stands in front of the elements
 *
 * The disk begins with what is copied already: a writer and who takes the copy go side by side.
 */
#ifndef RW_IO_SNAPSHOT_H
#define RW_IO_SNAPSHOT_H

#include "api/average.h"
#include "api/optimizer.h"
#include "base/digest.h"
#include "io/format.h"

#include <rewind/schedule.h>

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
#define RW_SNAPSHOT_NAME_MOST 320 /* of a tensor or of metadata: a parameter's and a prefix */
#define RW_DIGEST_TEXT 33
#define RW_SNAPSHOT_BLOCK ((size_t)4096) /* of memory and of the file: what a disk reads memory by itself for */

/* What is saved: parameters and buffers of the context, and these. */
struct rw_snapshot_of {
    rw_context *ctx;
    rw_optimizer *optimizer; /* NULL: none; of these as well */
    rw_average *average;
    const rw_schedule *schedule;
    uint64_t step;
    const void *extra;
    size_t extra_bytes;
};

struct rw_snapshot_tensor {
    size_t from, bytes; /* in data */
    cJSON *digest;      /* in the metadata: a text to be written over; NULL: the header's */
};

struct rw_snapshot {
    unsigned char *data; /* at a multiple of RW_SNAPSHOT_BLOCK */
    size_t bytes, cap_bytes;
    struct rw_snapshot_tensor *tensor;
    size_t n, cap;
    cJSON *header, *metadata;
    pthread_mutex_t lock; /* of the two below */
    pthread_cond_t moved;
    size_t copied; /* bytes of data that are there, from the first on */
    bool given_up; /* no more will be */
};

void rw_snapshot_init(struct rw_snapshot *s);

/* In a child of fork(): what waited in the parent is not there, and neither lock nor condition may wait for it. */
void rw_snapshot_forget_writer(struct rw_snapshot *s);
void rw_snapshot_finish(struct rw_snapshot *s);

/* Lays out the copy, waiting for what is queued; then it may be written. On an error, which is recorded, the snapshot
   holds nothing. Its memory serves the next one. */
rw_status rw_snapshot_begin(struct rw_snapshot *s, const struct rw_snapshot_of *what);

/* Takes the copy. An error is recorded, and told to who writes. */
rw_status rw_snapshot_copy(struct rw_snapshot *s, const struct rw_snapshot_of *what);

/* Waits until so many bytes are copied; false: they never will be. Any thread. */
bool rw_snapshot_await(struct rw_snapshot *s, size_t bytes);

/* Writes it as a file, which appears when all of it is there. Touches no context. RW_ERR_IO, RW_ERR_MEMORY; where the
   copy is given up RW_ERR_DEVICE, and no word. */
rw_status rw_snapshot_write(struct rw_snapshot *s, const char *path, char *why, size_t size);

void rw_digest_print(struct rw_digest d, char text[RW_DIGEST_TEXT]);

/* The state's name in a file; the same of its other tensors, where there is no state but a count: "step". */
void rw_snapshot_name(char name[RW_SNAPSHOT_NAME_MOST], const char *state, const char *param);

#endif
