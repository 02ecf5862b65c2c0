/*
 * Costs: the time of one execution of a node on this machine, by the node's signature (op, types, layouts, attributes),
 * as measured in real steps or in the library's calibration (api/calibrate_costs.c).
 *
 * A node that was not measured is estimated as its nominal time times a ratio of measured to nominal time. The ratio
 * is, in this order, that of
 *   1. its op in other shapes;
 *   2. its family, by name: gelu_tanh, which is recomputed alone where linear_gelu ran, is like gelu_tanh_backward;
 *   3. all ops of its type with the same bottleneck, arithmetic or memory (a matrix unit says nothing about gelu);
 *   4. all ops of any type. Without costs there are only nominal rates.
 *
 * A node's cost assumes that its operands are in the processor's caches. Misses have a price per byte: struct
 * rw_memory_cost.
 *
 * The table is a pure function of what was measured or loaded; its hash is part of every plan's key.
 */
#ifndef RW_AUTODIFF_COSTS_H
#define RW_AUTODIFF_COSTS_H

#include "record/context.h"

#define RW_COST_SAMPLES 32
#define RW_COST_OP 64 /* a name, with its end */

/*
 * Prices of cache misses. Which bytes miss depends on the order in which a step uses them:
 * remat/schedule/cache_model.h.
 */
struct rw_memory_cost {
    uint64_t near_bytes;  /* that the caches hold */
    uint64_t picoseconds; /* extra time per MiB that misses the caches, for a write and a read; 0: unknown */
    uint64_t shared_picoseconds; /* extra time per written MiB that is also in another thread's caches */
};

/* Seconds of a byte that misses twice: it is loaded and evicts another byte, which is loaded again later. */
static inline double rw_memory_price(struct rw_memory_cost m)
{
    return (double)m.picoseconds * (1e-12 / (1 << 20));
}

/* Seconds of a byte that misses once. */
static inline double rw_cache_misses_seconds(struct rw_memory_cost m)
{
    return rw_memory_price(m) / 2;
}

/* Seconds of a written byte that another thread's caches must invalidate. */
static inline double rw_shared_seconds(struct rw_memory_cost m)
{
    return (double)m.shared_picoseconds * (1e-12 / (1 << 20));
}

/* Bytes that an op of that memory traffic reads from an operand of so many bytes outside of the arena: perhaps a few
   rows of a table. The traffic of a custom op may be any number, also NaN. */
static inline uint64_t rw_bytes_in_traffic(uint64_t bytes, double traffic)
{
    if (traffic >= (double)bytes) return bytes;
    return traffic > 0 ? (uint64_t)traffic : 0;
}

/* All integers, so that a file stores them exactly. */
struct rw_cost_entry {
    uint64_t signature;
    uint64_t picoseconds; /* mean of the middle half of the steps, at least 1 */
    uint64_t operations, bytes;
    char op[RW_COST_OP]; /* truncated to fit */
    uint8_t dtype;       /* of the first output */
};

/* Bottleneck of a node at nominal rates. */
enum rw_cost_bound { RW_BOUND_MEMORY, RW_BOUND_ARITHMETIC };

/* A class of ops (one op in a type; all ops of a bottleneck in a type or in any) and its ratio of measured to
   nominal time. */
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
    struct rw_cost_class typed[2][RW_DTYPE_COUNT], all[2]; /* classes by bottleneck, whose op is empty */
    struct rw_memory_cost memory;
    char *folder; /* absolute path of the folder whose disk was measured; NULL: none */
    struct rw_store_cost store;
    int threads; /* host threads during the measurement */
    uint64_t hash;
};

extern struct rw_extension rw_costs_extension;

/* Where a context, from its creation on, keeps its costs; NULL there: nominal rates. */
static inline struct rw_costs **rw_costs_place(const rw_context *ctx)
{
    return rw_extension_find(&ctx->extensions, &rw_costs_extension);
}

static inline struct rw_costs *rw_costs_of(const rw_context *ctx)
{
    return *rw_costs_place(ctx);
}

/* Call when a context is created. RW_ERR_MEMORY, not recorded. */
rw_status rw_costs_open(rw_context *ctx);

/* Replaces the context's costs and frees the old ones. NULL: none. */
void rw_costs_replace(const rw_context *ctx, struct rw_costs *costs);

/* A cost or time as an integer, 0 to 10^18. */
static inline uint64_t rw_cost_number(double x)
{
    return x >= 1e18 ? 1000000000000000000u : x > 0 ? (uint64_t)(x + 0.5) : 0;
}

uint64_t rw_call_signature(const rw_op_call *call, size_t attrs_size);

/* Seconds at nominal rates, the maximum of arithmetic and memory. They compare nodes of one tape, and are not
   milliseconds. */
double rw_nominal_seconds(rw_op_cost cost);

/* costs may be NULL. */
double rw_costs_seconds(const struct rw_costs *costs, const rw_op_call *call, size_t attrs_size, rw_op_cost cost);

/* Adds an entry, in any order. RW_ERR_MEMORY. rw_costs_seal() makes the table usable, also after later changes:
   false for a duplicate signature, or without memory. */
rw_status rw_costs_add(struct rw_costs *costs, const struct rw_cost_entry *entry);
rw_status rw_costs_add_missing(struct rw_costs *costs, const struct rw_costs *from); /* signatures and disk it lacks */
bool rw_costs_seal(struct rw_costs *costs);
uint64_t rw_costs_hash(const struct rw_costs *costs);         /* of a sealed table */
uint64_t rw_costs_entries_hash(const struct rw_costs *costs); /* without the prices of memory and of a disk */
void rw_costs_free(struct rw_costs *costs);                   /* NULL-safe */

/* ---- offload store ---- */

struct rw_store_cost rw_store_cost_of(struct rw_store_rate measured);

/* Sets measured rates, from here or from a file of costs. Rates that the caller gave keep precedence. */
void rw_store_learn(struct rw_store_place *store, struct rw_store_cost measured);

/* Applies the rates of the context's costs to its current store, if they are for its folder. Call after a change of
   either. */
void rw_costs_tell_store(rw_context *ctx);

#endif
