/*
 * A context: its device, its tables (ops, layouts, names, call sites), its parameters, its error. What only one feature
 * or a later pass needs is an extension (extension.h), so record/ includes nothing of them.
 */
#ifndef RW_RECORD_CONTEXT_H
#define RW_RECORD_CONTEXT_H

#include "device/device.h"
#include "record/api_entry.h"
#include "record/extension.h"
#include "record/layout.h"
#include "record/names.h"
#include "record/node.h"

#define RW_MESSAGE_MAX 1024
#define RW_KEPT 64

typedef struct rw_plan rw_plan;

/* Mode of REWIND_VERIFY. */
enum rw_verify_mode {
    RW_VERIFY_OFF,
    RW_VERIFY_FULL,  /* REWIND_VERIFY=1: compares each run with one without recompute */
    RW_VERIFY_DIGEST /* REWIND_VERIFY=digest: compares each replayed value with the digest of its first computation */
};

/* Calls from recording to later passes, the only ones in this direction. api/ fills in the table. */
struct rw_upward {
    rw_status (*recorded)(rw_tape *t, uint32_t node); /* REWIND_EAGER=1: a node was recorded */
    rw_status (*written)(rw_tape *t, uint32_t leaf);  /* an input that a run has read is about to change */
    bool (*release)(rw_context *ctx);                 /* the device has no memory: frees some; false: none is left */
};

struct rw_param; /* record/param.h */

/* A cache from call sites, as the caller passes them by pointer, to indexes in ctx->sites; likewise for files. An
   entry is valid until a tape is destroyed: then the caller may reuse the address for another text, so the text is
   compared again. */
#define RW_KNOWN_SITES 256
struct rw_known_site {
    rw_site site;
    uint32_t index;
    uint64_t n_tapes_gone;
};
#define RW_KNOWN_FILES 64
struct rw_known_file {
    const char *file;
    uint32_t index; /* of ctx->files */
    uint64_t n_tapes_gone;
};

/* The offload store: rw_context_set_offload(). */
struct rw_store_place {
    const struct rw_store_fns *fns;
    char *path; /* of files: their folder; NULL in host memory */
    struct rw_store_rate given;    /* by the caller; 0: not */
    struct rw_store_cost measured; /* measured here, or from the context's costs (autodiff/costs.h) */
    struct rw_store_rate rate;     /* the rates in effect; 0: not known yet */
    uint64_t serial; /* counts the calls */
};

struct rw_context {
    struct rw_edge edge; /* first, see api_entry.h */
    rw_device kind;
    const struct rw_device_fns *device;
    void *device_state;
    struct rw_device_fns planning; /* the device's functions if the context plans only */
    bool plan_only;
    struct rw_store_place store;
    int threads;
    rw_generator_state generator;
    bool eager; /* REWIND_EAGER=1 */
    bool strict_policy; /* a name in a policy that matches nothing is an error */
    enum rw_verify_mode verify; /* REWIND_VERIFY */
    const struct rw_upward *up;
    struct rw_extensions extensions;

    rw_status status; /* the first error, RW_OK if there is none */
    char message[RW_MESSAGE_MAX];
    bool error_stays; /* nothing would report it again, so rw_forget_error() keeps it */

    struct rw_layout_table layouts;
    const rw_op_def **ops; /* by node.op */
    size_t n_ops, cap_ops;
    uint16_t *op_hash; /* def -> index + 1, open addressing, op_hash_size a power of two */
    size_t op_hash_size;
    struct rw_name_table names; /* of regions and tags, unique */
    rw_site *sites; /* unique; their files are texts of `files` */
    size_t n_sites, cap_sites;
    uint32_t *site_hash;
    size_t site_hash_size;
    struct rw_name_table files; /* copies of the file names of call sites, so that nothing reads a caller's text
                                   after its tape */
    struct rw_known_site known_sites[RW_KNOWN_SITES];
    struct rw_known_file known_files[RW_KNOWN_FILES];
    uint64_t n_tapes_gone; /* number of destroyed tapes: a caller's text may have been freed with each */

    struct rw_param **params; /* parameters and buffers, in order of creation */
    size_t n_params, cap_params;
    uint32_t *param_hash; /* by name -> index in params + 1, open addressing, of a power of two */
    size_t param_hash_size;
    struct rw_param **by_id; /* these and states, by tensor.id; NULL for a destroyed state */
    size_t n_ids, cap_ids, free_id; /* free_id: no entry below it is NULL */
    uint64_t n_serials; /* serials given to tensors of the context so far; cache keys use serials */

    rw_tape *tapes; /* all of the context, a list */

    rw_memory memory; /* running totals; rw_memory_stats() adds the rest */
    size_t results_in_use; /* part of memory.results: blocks that are referenced (run/result_memory.h) */

    size_t n_users; /* users: itself, until rw_context_destroy(), its tapes and optimizers; the last one frees it */
    bool destroyed; /* rw_context_destroy() was called: its own use has ended */
    void *kept[RW_KEPT]; /* of destroyed tapes, tensors that callers may still hold: freed after as many more */
    size_t n_kept;
};

/* One user less. The last one frees the context with its extensions. */
void rw_context_release(rw_context *ctx);

/* Bytes that the context holds on the device in addition to arenas, after all free memory has been released. */
static inline size_t rw_context_holds(const rw_context *ctx)
{
    const rw_memory *const m = &ctx->memory;
    return m->parameters + m->gradients + m->optimizer + m->inputs + ctx->results_in_use;
}

/* Frees memory from rw_malloc() later, after handles to it have had time to be detected. */
void rw_context_keep(rw_context *ctx, void *memory);

/* Memory of the device for what the program holds. If it is exhausted, memory that no result needs is freed first: free
   arenas and results, then suspended steps, which are recomputed later. NULL without memory. */
void *rw_context_alloc(rw_context *ctx, size_t bytes, bool zeros);

/* Would a sum of a context's bytes still be at most 2^60 with n elements more? So no sum of rw_memory_stats(), and no
   sum of these, can overflow. In a context that plans only, no allocation fails before. size: bytes per element, 1
   or more. */
static inline bool rw_bytes_fit(size_t sum, uint64_t n, size_t size)
{
    const uint64_t most = (uint64_t)1 << 60;
    return sum <= most && n <= (most - sum) / size;
}

/* RW_OK if the context's states of optimizers and averages and so many bytes more fit; else RW_ERR_MEMORY, recorded.
   call: the public function. */
rw_status rw_states_check_bytes(rw_context *ctx, size_t bytes, const char *call);

/* Records an error unless there already is one; returns status. */
rw_status rw_fail(rw_context *ctx, rw_status status, const char *fmt, ...) RW_PRINTF(3, 4);

/* Call before executing something or reading contents: RW_ERR_UNSUPPORTED, with an error that names the call, in a
   context that plans only. */
rw_status rw_check_runs(rw_context *ctx, const char *what);

/* False, with an error that names the call, for an invalid type or shape. */
bool rw_shape_check(rw_context *ctx, const char *what, rw_site at, rw_dtype dtype, rw_shape shape);

/* The error of a NULL argument; ctx may be NULL. */
rw_status rw_fail_null(rw_context *ctx, const char *what, const char *argument);

/* False, with RW_ERR_ARGUMENT, for the length of an array that no program can have, such as a negative number that was
   converted to size_t. Sizes of such arrays would overflow. */
bool rw_count_check(rw_context *ctx, const char *what, size_t n);

/* Is this number, returned by an op's function, one of rw_status? */
bool rw_is_status(int number);

/* Index of an op in the table; RW_NONE_ID if it is not there. */
uint32_t rw_op_find(const rw_context *ctx, const rw_op_def *op);

/* Validates a definition for a device: RW_OK, or a status and the fault in text. */
rw_status rw_op_def_fault(const rw_op_def *op, rw_device kind, char *text, size_t size);

/* Call before the calling thread runs something on so many threads (base/thread_team.h). RW_ERR_MEMORY if they cannot
   be started, with a message that names the call. */
rw_status rw_start_threads(rw_context *ctx, const char *what, int threads);

#define RW_SITES_MAX ((size_t)1 << 16)

/* Index of an op or a call site in the context's tables; added at first sight. RW_NONE_ID without memory. */
uint32_t rw_op_index(rw_context *ctx, const rw_op_def *op);
uint32_t rw_site_index(rw_context *ctx, rw_site site);

/* The same call site with a text that the context keeps. */
rw_site rw_site_kept(rw_context *ctx, rw_site site);

size_t rw_tables_bytes(const rw_context *ctx);
void rw_tables_finish(rw_context *ctx);

static inline const rw_layout *rw_layout_of(const rw_context *ctx, const rw_tensor *x)
{
    return rw_layout_get(&ctx->layouts, x->layout);
}

rw_context *rw_tensor_context(const rw_tensor *x);

/* Makes the context's device the calling thread's device until the end of the block, for work outside of the
   device's table of functions. */
struct rw_device_scope {
    const rw_context *ctx;
    int previous;
};

static inline struct rw_device_scope rw_device_enter(const rw_context *ctx)
{
    return (struct rw_device_scope){ ctx, ctx->device->enter ? ctx->device->enter(ctx->device_state) : 0 };
}

static inline void rw_device_leave(const struct rw_device_scope *scope)
{
    if (scope->ctx->device->leave) scope->ctx->device->leave(scope->ctx->device_state, scope->previous);
}

#define RW_ON_DEVICE_OF(ctx) \
    const struct rw_device_scope device_scope_ __attribute__((cleanup(rw_device_leave), unused)) = rw_device_enter(ctx)

#endif
