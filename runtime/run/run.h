/*
 * Pass 5: a run, a plan under way. What it is made of; it is found, made and ended in life.h, moved on in advance.h.
 *
 *     NEW --advance--> STOPPED --advance--> QUEUED --wait--> DONE
 *           (before its last action)   (behind its last action)        FAILED from anywhere
 *
 * A tape owns its runs, but for those that say that somebody else does (a captured graph). Only a stopped run has an
 * arena; a queued one has given it back. A run that ends goes to the pool of its context with its arrays: a step in
 * steady state allocates nothing.
 *
 * Invariants, checked by rw_run_is_valid():
 *   STOPPED => 0 < next_action < n_actions, and it has its arena when its plan needs one;
 *   NEW => next_action == 0; QUEUED or DONE => it has no arena;  results are counted for it;
 *   a run that is neither NEW nor owned by somebody else is of the step that its tape is at.
 */
#ifndef RW_RUN_RUN_H
#define RW_RUN_RUN_H

#include "plan/build.h"
#include "record/tape.h"
#include "run/arena_pool.h"
#include "run/company.h"
#include "run/results.h"

/* What a run shows of one action, before and after. */
struct rw_at {
    struct rw_run *run;
    size_t action;              /* of the run's plan */
    const struct rw_node *node; /* NULL for a move */
    uint32_t value;             /* of a move, a base: what is moved. The side outside the device has no view */
    uint8_t kind;               /* enum rw_action_kind */
    int n_in, n_out;
    const rw_view *in, *out;
    rw_ticket ticket; /* of a random node, as its kernel gets it: before() may change it */
};

/*
 * Watches runs: traces, digests, verification, planted faults. Any member may be NULL. Of several the one that came
 * last stands outermost: it is called first before an action and last after it. A status other than RW_OK ends the run
 * with it.
 */
struct rw_observer {
    /* Actions [from, to) are about to be queued. */
    rw_status (*begin)(struct rw_observer *o, struct rw_run *r, size_t from, size_t to);
    rw_status (*before)(struct rw_observer *o, struct rw_at *at);
    rw_status (*after)(struct rw_observer *o, const struct rw_at *at);
    /* A value that was moved back is there; between the move and this it was on its way. */
    rw_status (*arrived)(struct rw_observer *o, const struct rw_at *at);
    /* What was queued has run, or failed. With RW_ERR_MISMATCH the device's comparison at `action` was the first that
       failed: the observer that asked for it records why. */
    void (*end)(struct rw_observer *o, struct rw_run *r, rw_status status, size_t action);
    /* The run goes, or is made for something else. */
    void (*detach)(struct rw_observer *o, struct rw_run *r);
    bool each_launch; /* it wants to see every launch of a graph: nothing is captured */
};

/* Who wants to watch the runs that a context makes: ctx->attach is a list. */
struct rw_attach {
    struct rw_attach *next;
    /* *ret_observer stays NULL when the run is of no interest. */
    rw_status (*attach)(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer);
    void (*destroy)(struct rw_attach *self);
};

#define RW_RUN_OBSERVERS 6
/* Of a context, and pool.waiting_most. One more gives up the one that stopped first: it is computed again, to the same
   bytes. */
#define RW_RUNS_STOPPED_MOST 32

enum rw_run_state { RW_RUN_NEW, RW_RUN_STOPPED, RW_RUN_QUEUED, RW_RUN_DONE, RW_RUN_FAILED };

enum rw_run_flag {
    RW_RUN_REHEARSAL = 1 << 0, /* it is not the program's own: ckpt_verify()'s. Traces and digests leave it alone */
    RW_RUN_OWNED = 1 << 1,     /* somebody else than the tape ends it */
    RW_RUN_CLEARS = 1 << 2,    /* it began with clear gradients: when it fails, they are clear */
    RW_RUN_LOST = 1 << 3,      /* one before it in the queue failed and cleared the gradients that this one added to */
    RW_RUN_PRIVATE = 1 << 4,   /* gradients are written to memory of its own: rw_run_publish() hands them out */
    RW_RUN_UPDATE = 1 << 5,    /* between two steps: rw_memory goes on telling of the one before it */
    RW_RUN_ASSUMED = 1 << 6,   /* a scalar was read that may be the loss: another step on the tape ends it */
    RW_RUN_ADDS_NONE = 1 << 7  /* what adds to gradients finds them clear: of a rehearsal, which writes none */
};

struct rw_run {
    struct rw_run *next; /* of the tape; in the pool: the next spare one */
    rw_tape *tape;
    rw_plan *plan; /* counted; no run writes it */
    struct rw_draws draws; /* the tape's when the run was made or restarted */
    uint8_t state; /* enum rw_run_state */
    uint8_t flags; /* enum rw_run_flag */
    size_t next_action;
    size_t from, reached; /* the part that was queued last, also when that failed on its way */
    size_t ran;           /* of that part: actions before it have run, or were queued */
    size_t settled; /* results of the actions before it are held */
    size_t n_effects, n_retained, n_held; /* of the tape when it was made, and when it stopped */
    struct rw_arena *arena, *had;         /* that it holds; that it held last */
    uint64_t margin;                      /* bytes of it before and behind the plan's: whoever watches asks for them */
    struct rw_arena *store;               /* the same outside the device's memory: its data is the store's */
    struct rw_events *events;             /* of its lanes; NULL where there is one */
    size_t n_events;
    struct rw_results *results;           /* counted */
    const void *const *seeds;             /* by root, for the part that is queued next; NULL, also an entry: ones */
    void *ones;                           /* for the roots without a seed, one after the other */
    uint64_t ones_of, n_ones;             /* plan that they are of, by its serial; bytes */
    uint64_t highest;                     /* byte of the arena that an action used */
    uint64_t highest_workspace;           /* the same of workspaces alone */
    void **sources;                       /* addresses of the plan's sources, as of the part that was queued last */
    size_t cap_sources;
    rw_view *views; /* of one action */
    size_t cap_views;
    void *own_gradients; /* of a rehearsal or a private run: where it writes what would be parameters' gradients */
    struct rw_run_words *words; /* what kernels that have long returned could not say; NULL: they say it at once */
    struct rw_undo *undo;       /* undo.h: what the commits that are queued have overwritten */
    size_t n_undo, cap_undo, undo_bytes;
    int threads;                /* of the host, for the part that is queued next */
    struct rw_company *company; /* the pool's for its plan, for the same part */
    uint64_t stopped_at;        /* by the pool's clock */
    struct rw_run *next_queued; /* in the pool's list of those that nobody has waited for */
    struct rw_observer *observer[RW_RUN_OBSERVERS];
    int n_observers;
};

/* ctx->pool */
struct rw_pool {
    struct rw_arenas arenas, stores;
    struct rw_run *spare;
    struct rw_run *queued; /* the one that was queued first */
    uint64_t clock;
    size_t n_stopped;
    size_t waiting_most; /* bytes that stopped runs may hold, but for the one that stopped last */
    struct rw_companies companies;
};

static inline rw_context *rw_run_context(const struct rw_run *r)
{
    return r->tape->ctx;
}

/* Does somebody want to see every launch? Then nothing is captured, and the host waits for each. */
static inline bool rw_run_is_watched_each_time(const struct rw_run *r)
{
    bool each = false;
    for (int i = 0; i < r->n_observers; i++) each |= r->observer[i]->each_launch;
    return each;
}

/* Where byte 0 of the plan lies. */
static inline char *rw_run_arena(const struct rw_run *r)
{
    return r->arena ? (char *)r->arena->data + r->margin : NULL;
}

/* Node and value of a plan: the tape's below the mark, the plan's own behind. */
static inline const struct rw_node *rw_plan_node(const rw_tape *t, const rw_plan *p, uint32_t n)
{
    return n < p->mark_nodes ? &t->nodes[n] : &p->nodes[n - p->mark_nodes];
}

static inline uint32_t rw_plan_operand(const rw_tape *t, const rw_plan *p, uint32_t i)
{
    return i < p->mark_operands ? t->operands[i] : p->operands[i - p->mark_operands];
}

/*
 * The part of a run's base that the device adds when a kernel runs. Kernels of a captured graph keep the tickets that
 * they were captured with, so each launch leaves its base on the device. An owned run is a graph's, whose tickets are
 * all below draws.n, or draws nothing: one base is right for all of its kernels. Any other run adds its base on the
 * host, ticket by ticket, as those recorded after a launch have none.
 */
static inline uint64_t rw_run_device_base(const struct rw_run *r)
{
    return (r->flags & RW_RUN_OWNED) && rw_run_context(r)->device->set_ticket_base ? r->draws.base : 0;
}

/* The ticket of a random node as its kernel gets it: without what the device adds. */
static inline rw_ticket rw_run_ticket(const struct rw_run *r, const struct rw_node *node)
{
    rw_ticket ticket = rw_tape_ticket(r->tape, node->ticket, &r->draws);
    ticket.offset -= rw_run_device_base(r);
    return ticket;
}

#endif
