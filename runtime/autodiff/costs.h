/*
 * Costs: what one run of a node takes on this machine, by the node's signature - its op, types, layouts and attributes
 * - as it was measured in real steps, or in some of the library's own (api/ceilings.c). A node that was not measured is
 * taken at nominal rates, times what its op took over those rates where it was measured; of an op that never was, times
 * what one of its family took, by their names: gelu_tanh, which is made again alone where linear_gelu ran, is like
 * gelu_tanh_backward; for want of one, times what all of its type took, or else of any, that are bound by the same, by
 * arithmetic or by memory: a matrix unit says nothing of gelu. Without costs nominal rates are all there is.
 *
 * A node's cost is that of one whose memory is in the processor's caches. What is not there has a price of its own, a
 * byte: struct rw_memory_cost.
 *
 * The table is a pure function of what was measured or loaded; its hash is in every plan's key.
 */
#ifndef RW_AUTODIFF_COSTS_H
#define RW_AUTODIFF_COSTS_H

#include "record/context.h"

#define RW_COST_SAMPLES 32
#define RW_COST_OP 64 /* a name, with its end */

/*
 * What comes from beyond the caches takes longer. Which bytes do is a matter of the order in which a step uses them:
 * remat/caches.h.
 */
struct rw_memory_cost {
    uint64_t near_bytes;  /* that the caches hold */
    uint64_t picoseconds; /* that a MiB takes longer which is far, written and read; 0: nothing is known of caches */
    uint64_t shared_picoseconds; /* that a MiB takes longer to write which is in another thread's caches as well */
};

/* Seconds of a byte that is far, twice: it comes and pushes another one out, which comes again. */
static inline double rw_memory_price(struct rw_memory_cost m)
{
    return (double)m.picoseconds * (1e-12 / (1 << 20));
}

/* Of a byte that comes from afar once. */
static inline double rw_far_seconds(struct rw_memory_cost m)
{
    return rw_memory_price(m) / 2;
}

/* Of a byte that is written, and had to be taken out of another thread's caches. */
static inline double rw_shared_seconds(struct rw_memory_cost m)
{
    return (double)m.shared_picoseconds * (1e-12 / (1 << 20));
}

/* Of so many bytes beside the arena what an op of that traffic reads: of a table a few rows, perhaps. What a caller's
   op says of its traffic may be no number at all. */
static inline uint64_t rw_bytes_in_traffic(uint64_t bytes, double traffic)
{
    if (traffic >= (double)bytes) return bytes;
    return traffic > 0 ? (uint64_t)traffic : 0;
}

/* In whole numbers, so that a file holds the same. */
struct rw_cost_entry {
    uint64_t signature;
    uint64_t picoseconds; /* mean of the middle steps, at least 1 */
    uint64_t operations, bytes;
    char op[RW_COST_OP]; /* cut where there is no room */
    uint8_t dtype;       /* of the first output */
};

/* What a node waits for, at nominal rates. */
enum rw_cost_bound { RW_BOUND_MEMORY, RW_BOUND_ARITHMETIC };

/* An op in a type, all ops of a bound in a type, or in any: what they take over nominal rates. */
struct rw_cost_class {
    char op[RW_COST_OP];
    uint8_t dtype;
    double measured, nominal; /* sums of seconds */
};

struct rw_costs {
    struct rw_cost_entry *entry; /* by rising signature */
    size_t n, cap;
    struct rw_cost_class *kind; /* by rising op, then type */
    size_t n_kinds, cap_kinds;
    struct rw_cost_class typed[2][RW_DTYPE_COUNT], all[2]; /* by bound; their op says nothing */
    struct rw_memory_cost memory;
    char *folder; /* whose disk is known: its whole path; NULL: none is */
    struct rw_store_cost store;
    int threads; /* of the host, when they were measured */
    uint64_t hash;
};

/* A cost or a time as a whole number: 0 to 10^18. */
static inline uint64_t rw_cost_number(double x)
{
    return x >= 1e18 ? 1000000000000000000u : x > 0 ? (uint64_t)(x + 0.5) : 0;
}

uint64_t rw_call_signature(const rw_op_call *call, size_t attrs_size);

/* At nominal rates: what is bound by arithmetic and what by memory; good for comparing on one tape. */
double rw_nominal_seconds(rw_op_cost cost);

/* costs may be NULL. */
double rw_costs_seconds(const struct rw_costs *costs, const rw_op_call *call, size_t attrs_size, rw_op_cost cost);

/* Adds an entry; in any order. RW_ERR_MEMORY. rw_costs_seal() makes the table ready, again where entries have changed:
   false where a signature is there twice, or without memory. */
rw_status rw_costs_add(struct rw_costs *costs, const struct rw_cost_entry *entry);
rw_status rw_costs_add_missing(struct rw_costs *costs, const struct rw_costs *from); /* signatures and disk it lacks */
bool rw_costs_seal(struct rw_costs *costs);
uint64_t rw_costs_hash(const struct rw_costs *costs);         /* of a sealed table */
uint64_t rw_costs_entries_hash(const struct rw_costs *costs); /* without its costs of memory and of a disk */
void rw_costs_free(struct rw_costs *costs);                   /* NULL-safe */

/* ---- where moved values wait ---- */

struct rw_store_cost rw_store_cost_of(struct rw_store_rate measured);

/* It was measured, here or by who wrote the context's costs. Rates that the caller gave hold all the same. */
void rw_store_learn(struct rw_store_place *store, struct rw_store_cost measured);

/* What the context's costs know of where values wait now, if anything: for who changes one of the two. */
void rw_costs_tell_store(rw_context *ctx);

#endif
