/*
 * Pass 5: a run is a plan in execution. This header has its structure; lifecycle.h creates and destroys runs,
 * run_advance.h executes them.
 *
 *     NEW --advance--> STOPPED --advance--> QUEUED --wait--> DONE
 *           (before its last action)   (after its last action)         FAILED from any state
 *
 * A tape owns its runs, except those with RW_RUN_OWNED (captured graphs). Of the runs that are not executing, only a
 * suspended one (STOPPED) has an arena; a queued one has returned it. A run that ends goes to the pool of its context
 * with its arrays, so a step in steady state allocates nothing.
 *
 * Invariants, checked by rw_run_is_valid():
 *   STOPPED => 0 < next_action < n_actions, and it has its arena if its plan needs one;
 *   NEW => next_action == 0; QUEUED or DONE => it has no arena;  results are counted for it;
 *   a run that is neither NEW nor RW_RUN_OWNED belongs to the current step of its tape.
 */
#ifndef RW_RUN_RUN_STATE_H
#define RW_RUN_RUN_STATE_H

#include "plan/build.h"
#include "record/tape.h"
#include "run/arena_pool.h"
#include "run/small_op_threads.h"
#include "run/result_memory.h"

/* One action as observers see it, before and after its execution. */
struct rw_at {
    struct rw_run *run;
    size_t action;              /* of the run's plan */
    const struct rw_node *node; /* NULL for a move */
    uint32_t value;             /* of a copy: the base value that is copied; its side in the store has no view */
    uint8_t kind;               /* enum rw_action_kind */
    int n_in, n_out;
    const rw_view *in, *out;
    rw_ticket ticket; /* of a random node, as passed to its kernel; before() may change it */
};

/*
 * An observer of runs: traces, digests, verification, planted faults. Any member may be NULL. Observers are nested: the
 * one attached last is called first before an action and last after it. A status other than RW_OK ends the run with
 * that status.
 */
struct rw_observer {
    /* Actions [from, to) are about to be queued. */
    rw_status (*begin)(struct rw_observer *o, struct rw_run *r, size_t from, size_t to);
    rw_status (*before)(struct rw_observer *o, struct rw_at *at);
    rw_status (*after)(struct rw_observer *o, const struct rw_at *at);
    /* An offloaded value has arrived; between the copy action and this call it was in flight. */
    rw_status (*arrived)(struct rw_observer *o, const struct rw_at *at);
    /* Queued work has run, or failed. With RW_ERR_MISMATCH, the device's comparison at `action` is the first that
       failed; the observer that requested the comparison records the error. */
    void (*end)(struct rw_observer *o, struct rw_run *r, rw_status status, size_t action);
    /* The run is destroyed, or reused for another purpose. */
    void (*detach)(struct rw_observer *o, struct rw_run *r);
    bool each_launch; /* it needs every launch of a graph, so nothing is captured */
};

/* Attaches an observer to each new run of a context. */
struct rw_attach {
    struct rw_attach *next;
    /* *ret_observer stays NULL if the run need not be observed. */
    rw_status (*attach)(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer);
    void (*destroy)(struct rw_attach *self);
};

/* Maximum number of suspended runs of a context; pool.waiting_most limits their bytes. Beyond that the oldest one is
   discarded, and recomputed later to the same bytes. */
#define RW_RUNS_STOPPED_MAX 32

enum rw_run_state { RW_RUN_NEW, RW_RUN_STOPPED, RW_RUN_QUEUED, RW_RUN_DONE, RW_RUN_FAILED };

enum rw_run_flag {
    RW_RUN_REHEARSAL = 1 << 0, /* a rehearsal, of ckpt_verify(): traces and digests ignore it */
    RW_RUN_OWNED = 1 << 1,     /* its owner, not the tape, destroys it */
    RW_RUN_CLEARS = 1 << 2,    /* gradients were clear when it started: after a failure they are clear again */
    RW_RUN_LOST = 1 << 3,      /* an earlier run in the queue failed and cleared the gradients that this one added to */
    RW_RUN_PRIVATE = 1 << 4,   /* writes gradients to memory of its own, which rw_run_publish() copies */
    RW_RUN_UPDATE = 1 << 5,    /* an update between two steps: rw_memory keeps reporting the step before */
    RW_RUN_ASSUMED = 1 << 6,   /* started by a read of a scalar that may be the loss: another step on the tape ends
                                  it */
    RW_RUN_ADDS_NONE = 1 << 7, /* additions to gradients find them clear: for a rehearsal, which writes none */
    RW_RUN_AHEAD = 1 << 8      /* its plan is for a tape that is not recorded completely yet, so only what it
                                  executes of the recorded part may be used. Compare marks before continuing it */
};

struct rw_run {
    struct rw_run *next; /* of the tape; in the pool: the next spare one */
    rw_tape *tape;
    struct rw_pool *pool; /* of its context */
    rw_plan *plan; /* counted; no run writes it */
    struct rw_draws draws; /* of the tape when the run was created or restarted */
    uint8_t state; /* enum rw_run_state */
    uint16_t flags; /* enum rw_run_flag */
    size_t next_action;
    size_t from, reached; /* the part that was queued last, also if it failed */
    size_t ran;           /* of that part: actions before it have run or were queued */
    size_t settled; /* results of the actions before it are published */
    size_t n_effects, n_retained, n_held; /* of the tape when the run was created, and when it was suspended */
    struct rw_arena *arena, *had;         /* its arena; the arena that it had last */
    uint64_t margin;                      /* bytes of the arena before and after the plan's, as observers request */
    struct rw_arena *store;               /* the same for the offload store; its data is the store's handle */
    struct rw_events *events;             /* of its lanes; NULL if there is only one */
    size_t n_events;
    struct rw_results *results;           /* counted */
    bool *outdated; /* by node of the tape: an input that it depends on was written, so the run publishes no value of
                       it; NULL: none */
    const void *const *seeds;             /* by root, for the part that is queued next; NULL, also an entry: ones */
    void *ones;                           /* seeds of the roots without a given one, contiguous */
    uint64_t ones_of, n_ones;             /* serial of their plan; bytes */
    uint64_t highest;                     /* highest byte of the arena that an action used */
    uint64_t highest_workspace;           /* the same of workspaces alone */
    void **sources;                       /* addresses of the plan's sources, for the part that was queued last */
    size_t cap_sources;
    rw_view *views; /* of one action */
    size_t cap_views;
    void *own_gradients; /* of a rehearsal or private run: memory for gradients instead of the parameters' own */
    struct rw_error_flags *words; /* error flags that asynchronous kernels set on the device; NULL: kernels return
                                   errors directly */
    struct rw_commit_rollback *undo;       /* commit_rollback.h: old contents that queued commits have overwritten */
    size_t n_undo, cap_undo, undo_bytes;
    int threads;                /* host threads for the next part */
    struct rw_small_op_threads *op_threads; /* the pool's entry for its plan, for the same part */
    uint64_t stopped_at;        /* by the pool's clock */
    struct rw_run *next_queued; /* in the pool's list of runs that nothing has waited for; NULL outside of it */
    struct rw_observer **observer;
    size_t cap_observers;
    int n_observers;
};

/* Of a context, from its creation on. */
struct rw_pool {
    struct rw_arenas arenas, stores;
    struct rw_run *spare;
    struct rw_run *queued; /* head of the queue */
    struct rw_run *active; /* the run that is being prepared or executed: not discarded to free memory */
    uint64_t clock;
    size_t tried; /* actions of the run that failed last, up to the one that failed */
    size_t n_stopped;
    size_t waiting_most; /* maximum bytes of suspended runs, without the latest one */
    struct rw_op_thread_table op_threads;
    struct rw_attach *attach; /* a list, the one attached last first */
    rw_cost work;             /* of all steps that ran, without rehearsals */
};

/* Of a tape, from its creation on. */
struct rw_tape_runs {
    struct rw_run *first;
};

extern struct rw_extension rw_pool_extension, rw_tape_runs_extension;

static inline struct rw_pool *rw_pool_of(const rw_context *ctx)
{
    return rw_extension_find(&ctx->extensions, &rw_pool_extension);
}

static inline struct rw_tape_runs *rw_runs_of(const rw_tape *t)
{
    return rw_extension_find(&t->extensions, &rw_tape_runs_extension);
}

/* The context owns it from now on. */
static inline void rw_runs_attach(const rw_context *ctx, struct rw_attach *a)
{
    struct rw_pool *const pool = rw_pool_of(ctx);
    a->next = pool->attach;
    pool->attach = a;
}

static inline rw_context *rw_run_context(const struct rw_run *r)
{
    return r->tape->ctx;
}

/* True if an observer needs every launch. Then nothing is captured, and the host waits for each launch. */
static inline bool rw_run_is_watched_each_time(const struct rw_run *r)
{
    bool each = false;
    for (int i = 0; i < r->n_observers; i++) each |= r->observer[i]->each_launch;
    return each;
}

/* Address of byte 0 of the plan's arena. */
static inline char *rw_run_arena(const struct rw_run *r)
{
    return r->arena ? (char *)r->arena->data + r->margin : NULL;
}

/*
 * The part of a run's ticket base that the device adds when a kernel runs. Kernels of a captured graph keep the tickets
 * of the capture, so each launch writes its base to the device. An owned run is a graph's: all its tickets are below
 * draws.n, or it draws nothing, so one base is right for all its kernels. Any other run adds its base on the host per
 * ticket, because tickets recorded after a launch have no base.
 */
static inline uint64_t rw_run_device_base(const struct rw_run *r)
{
    return (r->flags & RW_RUN_OWNED) && rw_run_context(r)->device->set_ticket_base ? r->draws.base : 0;
}

/* The ticket of a random node as its kernel receives it, without the part that the device adds. */
static inline rw_ticket rw_run_ticket(const struct rw_run *r, const struct rw_node *node)
{
    rw_ticket ticket = rw_tape_ticket(r->tape, node->ticket, &r->draws);
    ticket.offset -= rw_run_device_base(r);
    return ticket;
}

#endif
