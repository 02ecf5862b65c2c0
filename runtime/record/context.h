/*
 * A context: its device, its tables of what never moves (ops, layouts, names, call sites), its parameters, its error.
 * What runs on it - plans, arenas - it only holds for those who know: record includes nothing of them.
 */
#ifndef RW_RECORD_CONTEXT_H
#define RW_RECORD_CONTEXT_H

#include "device/device.h"
#include "record/layout.h"
#include "record/names.h"
#include "record/node.h"

#include <rewind/memory.h>

#define RW_MESSAGE_MAX 1024
#define RW_KEPT 64

typedef struct rw_plan rw_plan;

/* What REWIND_VERIFY asks of every rw_backward(). */
enum rw_verify_mode {
    RW_VERIFY_OFF,
    RW_VERIFY_FULL,  /* REWIND_VERIFY=1: the run itself against one without recompute */
    RW_VERIFY_DIGEST /* REWIND_VERIFY=digest: each replayed value against the digest of its first computation */
};

/* The calls that go up, from what is recorded to what runs. api/ fills them in; nothing else below calls above. */
struct rw_upward {
    rw_status (*recorded)(rw_tape *t, uint32_t node); /* REWIND_EAGER=1: a node was recorded */
    void (*undone)(rw_tape *t);                       /* values from t->n_values on are no more */
    void (*reset)(rw_tape *t);                        /* the tape is about to be reset */
    void (*gone)(rw_tape *t);                         /* the tape is about to go; it was reset */
    void (*destroy)(rw_context *ctx);                 /* nobody has the context any more: frees it */
};

struct rw_param; /* record/param.h */

/* By what the gradients of a context are multiplied: record/gradient.h. */
struct rw_gradient_scale {
    uint64_t n_unscalings; /* so far: their numbers */
    uint64_t unscaling;    /* of what a caller writes now; 0: it is scaled as what backward adds is */
    const struct rw_param *buffer; /* the scaler's, by whose number backward multiplied; NULL: no scaler's */
    uint32_t version;              /* of that buffer at that time */
};

/* Where moved values wait: rw_context_set_offload(). */
struct rw_store_place {
    const struct rw_store_fns *fns;
    char *path; /* of files: their folder; NULL in host memory */
    struct rw_store_rate given;    /* by the caller; 0: not */
    struct rw_store_cost measured; /* here, or as the context's costs say (autodiff/costs.h) */
    struct rw_store_rate rate;     /* what holds of the two; 0: neither yet */
    uint64_t serial; /* counts the calls */
};

struct rw_context {
    rw_device kind;
    const struct rw_device_fns *device;
    void *device_state;
    struct rw_device_fns planning; /* that is the device, where the context plans only */
    bool plan_only;
    struct rw_store_place store;
    int threads;
    rw_generator_state generator;
    bool eager; /* REWIND_EAGER=1 */
    bool orders; /* REWIND_DEBUG=order: record/order.h looks at every node */
    bool tells_dropped_effects; /* REWIND_DEBUG=effects: a reset that drops effects is an error */
    size_t n_dropped_effects;   /* of resets: effects.c */
    rw_site first_dropped_effect;
    bool timer_runs;        /* rw_timer_begin() */
    double timer_begin;     /* microseconds of the host's clock */
    enum rw_verify_mode verify; /* REWIND_VERIFY */
    const struct rw_upward *up;

    rw_status status; /* the first error, RW_OK when there is none */
    char message[RW_MESSAGE_MAX];

    struct rw_layout_table layouts;
    const rw_op_def **ops; /* by node.op */
    size_t n_ops, cap_ops;
    uint16_t *op_hash; /* def -> index + 1, open addressing, op_hash_size a power of two */
    size_t op_hash_size;
    struct rw_name_table names; /* of regions and tags, unique */
    rw_site *sites; /* unique */
    size_t n_sites, cap_sites;
    uint32_t *site_hash;
    size_t site_hash_size;

    struct rw_param **params; /* parameters and buffers, in order of creation */
    size_t n_params, cap_params;
    uint32_t *param_hash; /* by name -> index in params + 1, open addressing, of a power of two */
    size_t param_hash_size;
    struct rw_param **by_id; /* these and states, by tensor.id; NULL where a state has gone */
    size_t n_ids, cap_ids, free_id; /* free_id: none below it is NULL */
    struct rw_gradient_scale scale; /* of their gradients */
    uint64_t n_serials;             /* of tensors of the context, given so far: a cache names them by these */

    rw_tape *tapes; /* all of the context, a list */
    struct rw_plan_cache *plans; /* plan/cache.h */
    uint64_t n_plans;            /* plans made so far: their serials */
    struct rw_pool *pool;        /* run/run.h: arenas, runs that are queued, runs that are spare */
    struct rw_attach *attach;    /* run/run.h: who watches runs, a list */
    struct rw_costs *costs;      /* autodiff/costs.h: what nodes were measured to take; NULL: nominal rates */
    struct rw_counts *counts;     /* record/counts.h: made when a monitor first asks */
    struct rw_clipping *clipping; /* api/clip.h: made by the first rw_clip_grad_norm() */
    struct rw_clip *clipped;      /* the one that was queued last; NULL: none, or it has gone */
    uint64_t n_clipped;

    bool running;   /* actions are walked: who calls is a kernel, which may not */
    bool disturbed; /* one of them has called all the same */

    rw_memory memory; /* running totals; rw_memory_stats() fills in the rest */
    size_t results_in_use; /* of memory.results: blocks that somebody counts (run/results.h) */
    rw_cost work;     /* of all steps that were run, rehearsals apart */

    size_t n_users; /* itself, until rw_context_destroy(), its tapes and optimizers: the last one frees it */
    bool destroyed; /* rw_context_destroy() was called: it has no user of its own to give up any more */
    void *kept[RW_KEPT]; /* of destroyed tapes, what callers may hold: freed when as many more have come */
    size_t n_kept;
};

static inline void rw_context_release(rw_context *ctx)
{
    if (!--ctx->n_users) ctx->up->destroy(ctx);
}

/* What the context holds on the device beside arenas, also when all that is free has been given back. */
static inline size_t rw_context_holds(const rw_context *ctx)
{
    const rw_memory *const m = &ctx->memory;
    return m->parameters + m->gradients + m->optimizer + m->inputs + ctx->results_in_use;
}

/* Frees the memory, from rw_malloc(), not now but later. */
void rw_context_keep(rw_context *ctx, void *memory);

/* Records an error unless one is there already; returns status. */
rw_status rw_fail(rw_context *ctx, rw_status status, const char *fmt, ...) RW_PRINTF(3, 4);

/* True, with an error that names the call, while actions are walked. */
bool rw_is_called_by_a_kernel(rw_context *ctx, const char *what);

/* Before something runs, or contents are asked for: RW_ERR_UNSUPPORTED, with an error that names the call, in a context
   that plans only. */
rw_status rw_check_runs(rw_context *ctx, const char *what);

/* False, with an error that names the call, for such a type or shape. */
bool rw_shape_check(rw_context *ctx, const char *what, rw_site at, rw_dtype dtype, rw_shape shape);

/* The error of a NULL argument; ctx may be NULL. */
rw_status rw_fail_null(rw_context *ctx, const char *what, const char *argument);

/* What an op's functions return may be any number: is it one of rw_status? */
bool rw_is_status(int number);

/* Index of an op that was entered, RW_NONE_ID of another. */
uint32_t rw_op_find(const rw_context *ctx, const rw_op_def *op);

/* What is wrong with a definition, in text; RW_OK for a sound one that can run on that device. */
rw_status rw_op_def_fault(const rw_op_def *op, rw_device kind, char *text, size_t size);

/* Before the calling thread runs something on so many of the host's threads: *ret_threads is how many it may take,
 * fewer in a child of fork(). An error when they cannot be started, which names the call. */
rw_status rw_team(rw_context *ctx, const char *what, int threads, int *ret_threads);

#define RW_SITES_MOST ((size_t)1 << 16)

/* Index of an op or a call site in the context's tables; entered on first sight. RW_NONE_ID without memory. */
uint32_t rw_op_index(rw_context *ctx, const rw_op_def *op);
uint32_t rw_site_index(rw_context *ctx, rw_site site);

size_t rw_tables_bytes(const rw_context *ctx);
void rw_tables_finish(rw_context *ctx);

static inline const rw_layout *rw_layout_of(const rw_context *ctx, const rw_tensor *x)
{
    return rw_layout_get(&ctx->layouts, x->layout);
}

rw_context *rw_tensor_context(const rw_tensor *x);

/* Until the end of the block the context's device is the calling thread's: around what its table of functions does not
 * do. */
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
