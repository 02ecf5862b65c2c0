/* The interface of a device to passes and runs: one table of functions. A new device fills in another table. */
#ifndef RW_DEVICE_DEVICE_H
#define RW_DEVICE_DEVICE_H

#include "base/digest.h"
#include "device/library_object_refs.h"
#include "device/lane_queues.h"
#include "device/offload_store.h"
#include "device/error_flags.h"

#include <rewind/context.h>
#include <rewind/memory.h>

/* Marks 0 and 1 are the caller's timer, later ones a trace's. */
#define RW_TRACE_MARKS 2

struct rw_events; /* opaque: marks in the lanes of a device */

/* Where the kernels of a lane queue their work. See struct rw_kernel. */
struct rw_device_queue {
    void *stream;
    const uint64_t *ticket_base;
};

/* An amount of memory, with its owner and a note in words: "the <has> 17 bytes<note>". */
struct rw_device_memory {
    uint64_t bytes;
    const char *has, *note;
};

/* More than the library itself takes: under a smaller limit no process could have opened a device. Smaller blocks are
   not checked against the limit. */
#define RW_ALWAYS_HELD ((uint64_t)16 << 20)

/* Additional seconds per byte of memory accesses. */
struct rw_memory_times {
    uint64_t near_bytes; /* that caches hold */
    double far;          /* of a byte in no cache, written and read */
    double shared;       /* of a write of a byte that another thread has read; 0 if that makes no difference */
};

struct rw_device_fns {
    const char *name;
    size_t alignment; /* of every buffer in the arena */
    bool on_host;     /* kernels run on the host's threads */
    /* Opens the private state that kernels find in rw_kernel.device. On failure `why` receives a text, or is
       unchanged. */
    rw_status (*open)(void **ret_state, const rw_context_params *params, char *why, size_t size);
    void (*close)(void *state);
    /*
     * For work that is not queued by a function of this table, and for calls of the device's libraries: the device
     * becomes the calling thread's current one, until leave() is called with the result of enter(). NULL: not needed.
     */
    int (*enter)(void *state);
    void (*leave)(void *state, int previous);
    void *(*alloc)(void *state, size_t bytes); /* NULL without memory */
    /* The same, all zero. On the host, large blocks take memory only when they are touched. */
    void *(*alloc_zero)(void *state, size_t bytes);
    void (*free)(void *state, void *p);
    /* The maximum that alloc() could give now if nothing else were in use; UINT64_MAX: unknown. */
    struct rw_device_memory (*memory)(void *state);
    /* The caller's memory may be host memory or the device's own. When upload() returns, `from` has been read. */
    rw_status (*upload)(void *state, void *to, const void *from, size_t bytes);
    rw_status (*download)(void *state, void *to, const void *from, size_t bytes);
    rw_status (*clear)(void *state, void *to, size_t bytes);
    /* NULL: a kernel has finished when it returns. */
    struct rw_device_queue (*queue)(void *state, int lane);
    /*
     * signal() marks the current position of a lane; wait() makes a lane start later work only after that position.
     * Events belong to a run and can be signaled again. NULL, all four: there is only one lane.
     */
    struct rw_events *(*make_events)(void *state, size_t n); /* NULL without memory */
    void (*free_events)(void *state, struct rw_events *events);
    rw_status (*signal)(void *state, int lane, struct rw_events *events, size_t event);
    rw_status (*wait)(void *state, int lane, struct rw_events *events, size_t event);
    const struct rw_store_fns *store;      /* offload store in host memory */
    const struct rw_store_fns *file_store; /* offload store in files */
    /* The error flags of a run: zero at first, written by its kernels and read by the host. NULL: kernels return errors
       directly. */
    struct rw_error_flags *(*make_words)(void *state); /* NULL without memory */
    void (*free_words)(void *state, struct rw_error_flags *words);
    /*
     * Queue, like kernels, a digest of bytes and a comparison of two digests. Equal bytes have equal digests on one
     * kind of device. Bytes and digests are in the device's memory. A difference is returned as RW_ERR_MISMATCH, or
     * recorded in the words.
     */
    rw_status (*digest)(void *state, const void *data, size_t bytes, int threads, struct rw_digest *ret);
    rw_status (*compare)(void *state, const struct rw_digest *a, const struct rw_digest *b, uint32_t serial,
                         struct rw_error_flags *words);
    /*
     * Between begin and end the kernels' libraries prepare what a plan needs, and hold it until the reference is
     * released. Begin returns the first reference, NULL without memory. NULL, all three: libraries keep what they made
     * as long as the device is open, and it is not counted.
     */
    struct rw_library_ref *(*hold_begin)(void *state);
    void (*hold_end)(void *state);
    size_t (*library_bytes)(void *state); /* of everything kept, held or not */
    /* Waits until the work of all lanes is complete. */
    rw_status (*finish)(void *state);
    /*
     * Sets what is added to the first block of every later ticket. NULL: the run adds it to the tickets that it passes
     * on. A device with capture keeps it in device memory, where each launch reads its own.
     */
    rw_status (*set_ticket_base)(void *state, uint64_t base);
    /*
     * Capture: work that is queued between begin and end is not executed but becomes a graph, which launch() queues as
     * a whole. end() is called after a failure as well. NULL: the device has no capture.
     */
    rw_status (*capture_begin)(void *state);
    rw_status (*capture_end)(void *state, void **ret_graph);
    rw_status (*launch)(void *state, void *graph);
    void (*free_graph)(void *state, void *graph);
    /* Times on the device's own clock: make n marks, queue mark i on a lane, and after a wait return the microseconds
       between two marks. NULL: the device uses the host's clock. */
    rw_status (*make_marks)(void *state, size_t n);
    rw_status (*mark)(void *state, int lane, size_t i);
    rw_status (*elapsed)(void *state, size_t from, size_t to, double *ret_us);
    /* Bytes of the device's memory in use by all processes, as its driver counts them. NULL: not counted. */
    rw_status (*used)(void *state, size_t *ret_bytes);
    /* Numbers of FP8 products queued so far, by kind of execution. NULL: there are no FP8 units. */
    void (*float8_products)(void *state, rw_float8_products *ret);
    /* Measures memory times with that many host threads, in 256 MiB. False: all of it is in caches, or there is no
       memory. NULL: not measured. */
    bool (*time_memory)(void *state, int threads, struct rw_memory_times *ret);
    /* Names the processor that measured times apply to. NULL: unnamed. */
    void (*describe)(void *state, char *text, size_t size);
    /* Names the work that is queued next, for profilers; NULL text ends the last name. NULL: there is no profiler. */
    void (*range)(void *state, const char *text);
    /* Moves the text of the last failure to the caller, "" if there is none. NULL: the device has no texts. */
    void (*take_message)(void *state, char *text, size_t size);
};

extern const struct rw_device_fns rw_device_cpu;
extern const struct rw_device_fns rw_device_cuda; /* only in builds with CUDA */

#endif
