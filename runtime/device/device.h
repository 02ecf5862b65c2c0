/* What the passes and the walker know of a device: one table of functions. Adding a device is filling in another. */
#ifndef RW_DEVICE_DEVICE_H
#define RW_DEVICE_DEVICE_H

#include "base/digest.h"
#include "device/holding.h"
#include "device/lane.h"
#include "device/store.h"
#include "device/words.h"

#include <rewind/context.h>
#include <rewind/memory.h>

/* Marks 0 and 1 are the caller's timer, those behind a trace's. */
#define RW_TRACE_MARKS 2

struct rw_events; /* a device's: marks in its lanes */

/* What the kernels of a lane queue their work on. See struct rw_kernel. */
struct rw_device_queue {
    void *stream;
    const uint64_t *ticket_base;
};

/* Bytes, and in words whose they are and what of them: "the <has> 17 bytes<note>". */
struct rw_device_memory {
    uint64_t bytes;
    const char *has, *note;
};

/* What the library itself takes and more: under a limit as small as this no process could have opened a device. Of
   blocks that are smaller nobody asks whether they could be held. */
#define RW_ALWAYS_HELD ((uint64_t)16 << 20)

/* Seconds that a byte takes longer. */
struct rw_memory_times {
    uint64_t near_bytes; /* that caches hold */
    double far;          /* which is in none, written and read */
    double shared;       /* to write, which another thread has read; 0 where it does not matter who has */
};

struct rw_device_fns {
    const char *name;
    size_t alignment; /* of every buffer in the arena */
    bool on_host;     /* kernels run on the host's threads */
    /* The private state that kernels find in rw_kernel.device. On failure `why` receives a text, or stays as it is. */
    rw_status (*open)(void **ret_state, const rw_context_params *params, char *why, size_t size);
    void (*close)(void *state);
    /*
     * Around whatever is queued, or asked of the device's libraries, not by a function of this table: the device
     * becomes the calling thread's own until leave() gets what enter() returned. NULL: there is no such thing.
     */
    int (*enter)(void *state);
    void (*leave)(void *state, int previous);
    void *(*alloc)(void *state, size_t bytes); /* NULL without memory */
    /* The same, all zero; on the host's memory large blocks take some only when they are touched. */
    void *(*alloc_zero)(void *state, size_t bytes);
    void (*free)(void *state, void *p);
    /* The most that alloc() could give where nothing else is in use, now; UINT64_MAX: nobody says. */
    struct rw_device_memory (*memory)(void *state);
    /* The caller's side may be host memory or the device's own. When upload() returns, `from` has been read. */
    rw_status (*upload)(void *state, void *to, const void *from, size_t bytes);
    rw_status (*download)(void *state, void *to, const void *from, size_t bytes);
    rw_status (*clear)(void *state, void *to, size_t bytes);
    /* NULL: a kernel has finished when it returns. */
    struct rw_device_queue (*queue)(void *state, int lane);
    /*
     * signal() marks how far a lane has come; wait() lets another one begin what is queued next when that has run.
     * Events belong to a run and may be signalled again. NULL, all four: there is one lane.
     */
    struct rw_events *(*make_events)(void *state, size_t n); /* NULL without memory */
    void (*free_events)(void *state, struct rw_events *events);
    rw_status (*signal)(void *state, int lane, struct rw_events *events, size_t event);
    rw_status (*wait)(void *state, int lane, struct rw_events *events, size_t event);
    const struct rw_store_fns *store;      /* where values wait in the host's memory */
    const struct rw_store_fns *file_store; /* where they wait in files */
    /* The words of a run: zero, where its kernels write and the host reads. NULL: kernels say what is wrong at once. */
    struct rw_run_words *(*make_words)(void *state); /* NULL without memory */
    void (*free_words)(void *state, struct rw_run_words *words);
    /*
     * Queued like a kernel: a digest of bytes, the same for equal bytes on the same kind of device, and whether two
     * digests are equal. Bytes and digests are in the device's memory. That two differ is said at once, by
     * RW_ERR_MISMATCH, or in the words.
     */
    rw_status (*digest)(void *state, const void *data, size_t bytes, int threads, struct rw_digest *ret);
    rw_status (*compare)(void *state, const struct rw_digest *a, const struct rw_digest *b, uint32_t serial,
                         struct rw_run_words *words);
    /*
     * From begin to end kernels' libraries are asked what a plan will need: what they make for it is held until the
     * holding is released. Begin gives the first reference, NULL without memory. NULL, all three: libraries keep what
     * they made as long as the device is open, and nobody counts.
     */
    struct rw_holding *(*hold_begin)(void *state);
    void (*hold_end)(void *state);
    size_t (*library_bytes)(void *state); /* of all that is kept, held or not */
    /* Waits until all lanes have run. */
    rw_status (*finish)(void *state);
    /*
     * Added to the first block of every ticket from now on. NULL: the walker adds it to the tickets that it hands out.
     * A device that captures keeps it in its memory, where each launch finds its own.
     */
    rw_status (*set_ticket_base)(void *state, uint64_t base);
    /*
     * Capture: what is queued between begin and end does not run but becomes a graph, which launch() queues as one.
     * end() is called after a failure as well. NULL: the device cannot.
     */
    rw_status (*capture_begin)(void *state);
    rw_status (*capture_end)(void *state, void **ret_graph);
    rw_status (*launch)(void *state, void *graph);
    void (*free_graph)(void *state, void *graph);
    /* Times on the device's own clock: room for n marks, mark i queued on a lane, microseconds between two marks after
       a wait. NULL: the host's clock is the device's. */
    rw_status (*make_marks)(void *state, size_t n);
    rw_status (*mark)(void *state, int lane, size_t i);
    rw_status (*elapsed)(void *state, size_t from, size_t to, double *ret_us);
    /* Bytes of the device's memory in use by everybody, as its driver counts. NULL: nobody counts. */
    rw_status (*used)(void *state, size_t *ret_bytes);
    /* Products of 8-bit factors that were queued so far, by how. NULL: there are no FP8 units. */
    void (*float8_products)(void *state, rw_float8_products *ret);
    /* With so many of the host's threads, measured in 256 MiB. False: all are near, or there is no memory. NULL: nobody
       asks. */
    bool (*time_memory)(void *state, int threads, struct rw_memory_times *ret);
    /* What measured times are of: the processor by its name. NULL: unnamed. */
    void (*describe)(void *state, char *text, size_t size);
    /* Names what is queued next, for profilers; NULL text ends the last name. NULL: there is no profiler. */
    void (*range)(void *state, const char *text);
    /* Moves the text of the last failure to the caller, "" when there is none. NULL: the device has no texts. */
    void (*take_message)(void *state, char *text, size_t size);
};

extern const struct rw_device_fns rw_device_cpu;
#ifdef RW_HAVE_CUDA
extern const struct rw_device_fns rw_device_cuda;
#endif

#endif
