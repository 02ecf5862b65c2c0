/* The table of costs: sorted entries with a hash, classes of ops for estimates, and the rates of the offload store. */
#include "autodiff/costs.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "record/tape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOMINAL_FLOPS_PER_S 1e11
#define NOMINAL_BYTES_PER_S 1e10
#define NOMINAL_NODE_S 1e-6

static enum rw_cost_bound bound_of(rw_op_cost cost)
{
    return cost.flops / NOMINAL_FLOPS_PER_S > cost.bytes / NOMINAL_BYTES_PER_S ? RW_BOUND_ARITHMETIC : RW_BOUND_MEMORY;
}

double rw_nominal_seconds(rw_op_cost cost)
{
    return NOMINAL_NODE_S + (bound_of(cost) == RW_BOUND_ARITHMETIC ? cost.flops / NOMINAL_FLOPS_PER_S
                                                                   : cost.bytes / NOMINAL_BYTES_PER_S);
}

static void mix_desc(struct rw_hash *h, const rw_operand_desc *d)
{
    rw_hash_mix(h, (uint64_t)d->dtype << 8 | (uint64_t)d->layout->rank);
    for (int i = 0; i < d->layout->rank; i++) {
        rw_hash_mix(h, (uint64_t)d->layout->dim[i]);
        rw_hash_mix(h, (uint64_t)d->layout->stride[i]);
    }
}

uint64_t rw_call_signature(const rw_op_call *call, size_t attrs_size)
{
    struct rw_hash h = { 0 };
    rw_hash_mix_bytes(&h, call->op->name, strlen(call->op->name));
    rw_hash_mix(&h, (uint64_t)call->n_inputs << 32 | (uint64_t)call->n_outputs);
    for (int i = 0; i < call->n_inputs; i++) mix_desc(&h, &call->in[i]);
    for (int i = 0; i < call->n_outputs; i++) mix_desc(&h, &call->out[i]);
    const size_t addresses = call->op->address_bytes < attrs_size ? call->op->address_bytes : attrs_size;
    if (attrs_size > addresses)
        rw_hash_mix_bytes(&h, (const char *)call->attrs + addresses, attrs_size - addresses);
    return h.a ^ (h.b << 1 | h.b >> 63);
}

static const struct rw_cost_entry *find(const struct rw_costs *costs, uint64_t signature)
{
    size_t low = 0, high = costs->n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (costs->entry[middle].signature < signature) low = middle + 1;
        else high = middle;
    }
    return low < costs->n && costs->entry[low].signature == signature ? &costs->entry[low] : NULL;
}

/* Names may be truncated. */
static int compare_class(const char *op, uint8_t dtype, const char *other_op, uint8_t other_dtype)
{
    const int by_name = strncmp(op, other_op, RW_COST_OP - 1);
    return by_name ? by_name : (int)dtype - (int)other_dtype;
}

/* The first class that is not less than that of an op in a type. */
static size_t first_class(const struct rw_costs *costs, const char *op, uint8_t dtype)
{
    size_t low = 0, high = costs->n_kinds;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const struct rw_cost_class *const c = &costs->kind[middle];
        if (compare_class(c->op, c->dtype, op, dtype) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static const struct rw_cost_class *class_of(const struct rw_costs *costs, const char *op, uint8_t dtype)
{
    const size_t i = first_class(costs, op, dtype);
    return i < costs->n_kinds && !compare_class(costs->kind[i].op, costs->kind[i].dtype, op, dtype) ? &costs->kind[i]
                                                                                                  : NULL;
}

/* Removes the last word of a name; false if there is only one. */
static bool shorten(char *name)
{
    char *const last = strrchr(name, '_');
    if (last) *last = '\0';
    return last != NULL;
}

/* The class of an op in that type whose name continues this one's, gelu_tanh_backward for gelu_tanh; NULL if there
   is none. */
static const struct rw_cost_class *class_of_longer(const struct rw_costs *costs, const char *op, uint8_t dtype)
{
    const size_t length = strlen(op);
    for (size_t i = first_class(costs, op, 0); i < costs->n_kinds && !strncmp(costs->kind[i].op, op, length); i++)
        if (costs->kind[i].dtype == dtype && costs->kind[i].op[length] == '_') return &costs->kind[i];
    return NULL;
}

/* The class of a relative, by name: an op that is recomputed alone was executed as a part of another op, and so was
   its gradient. */
static const struct rw_cost_class *class_of_family(const struct rw_costs *costs, const char *op, uint8_t dtype)
{
    char name[RW_COST_OP];
    snprintf(name, sizeof name, "%s", op);
    for (;;) {
        const struct rw_cost_class *c = class_of(costs, name, dtype);
        if (!c) c = class_of_longer(costs, name, dtype);
        if (c || !shorten(name)) return c;
    }
}

/* Of an op without a family. */
static const struct rw_cost_class *class_of_bound(const struct rw_costs *costs, enum rw_cost_bound bound, uint8_t dtype)
{
    const struct rw_cost_class *const best[] = { &costs->typed[bound][dtype], &costs->all[bound] };
    for (int i = 0; i < 2; i++)
        if (best[i]->nominal > 0) return best[i];
    return &costs->all[!bound];
}

double rw_costs_seconds(const struct rw_costs *costs, const rw_op_call *call, size_t attrs_size, rw_op_cost cost)
{
    const double nominal = rw_nominal_seconds(cost);
    if (!costs || !costs->n) return nominal;
    const struct rw_cost_entry *const e = find(costs, rw_call_signature(call, attrs_size));
    if (e) return (double)e->picoseconds * 1e-12;
    const uint8_t dtype = call->n_outputs ? (uint8_t)call->out[0].dtype : 0;
    const struct rw_cost_class *c = class_of_family(costs, call->op->name, dtype);
    if (!c) c = class_of_bound(costs, bound_of(cost), dtype);
    return nominal * c->measured / c->nominal;
}

rw_status rw_costs_add(struct rw_costs *costs, const struct rw_cost_entry *entry)
{
    if (!rw_grow(&costs->entry, &costs->cap, costs->n, 1, sizeof *costs->entry)) return RW_ERR_MEMORY;
    costs->entry[costs->n++] = *entry;
    return RW_OK;
}

rw_status rw_costs_add_missing(struct rw_costs *costs, const struct rw_costs *from)
{
    const size_t n = costs->n;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < from->n; i++) {
        bool there = false;
        for (size_t k = 0; k < n && !there; k++) there = costs->entry[k].signature == from->entry[i].signature;
        if (!there) status = rw_costs_add(costs, &from->entry[i]);
    }
    if (status || costs->folder || !from->folder) return status;
    costs->store = from->store;
    costs->folder = rw_strdup(from->folder);
    return costs->folder ? RW_OK : RW_ERR_MEMORY;
}

static int by_signature(const void *a, const void *b)
{
    const uint64_t x = ((const struct rw_cost_entry *)a)->signature, y = ((const struct rw_cost_entry *)b)->signature;
    return x < y ? -1 : x > y;
}

static int by_class(const void *a, const void *b)
{
    const struct rw_cost_entry *const x = *(const struct rw_cost_entry *const *)a;
    const struct rw_cost_entry *const y = *(const struct rw_cost_entry *const *)b;
    const int by = compare_class(x->op, x->dtype, y->op, y->dtype);
    return by ? by : by_signature(x, y);
}

static void count_in(struct rw_cost_class *c, const struct rw_cost_entry *e)
{
    c->measured += (double)e->picoseconds * 1e-12;
    c->nominal += rw_nominal_seconds((rw_op_cost){ .flops = (double)e->operations, .bytes = (double)e->bytes });
}

static void count_bounds(struct rw_costs *costs)
{
    for (size_t i = 0; i < costs->n; i++) {
        const struct rw_cost_entry *const e = &costs->entry[i];
        const rw_op_cost cost = { .flops = (double)e->operations, .bytes = (double)e->bytes };
        const enum rw_cost_bound bound = bound_of(cost);
        count_in(&costs->typed[bound][e->dtype], e);
        count_in(&costs->all[bound], e);
    }
}

/* Sorts instead of searching one by one: a file may have as many ops as lines. */
static bool count_classes(struct rw_costs *costs)
{
    const struct rw_cost_entry **const entry = rw_malloc(costs->n * sizeof *entry + 1);
    const struct rw_cost_entry *last = NULL;
    bool good = entry != NULL;
    for (size_t i = 0; good && i < costs->n; i++) entry[i] = &costs->entry[i];
    if (good) qsort(entry, costs->n, sizeof *entry, by_class);
    for (size_t i = 0; good && i < costs->n; last = entry[i++]) {
        if (!last || compare_class(last->op, last->dtype, entry[i]->op, entry[i]->dtype)) {
            good = rw_grow(&costs->kind, &costs->cap_kinds, costs->n_kinds, 1, sizeof *costs->kind);
            if (!good) break;
            struct rw_cost_class *const c = &costs->kind[costs->n_kinds++];
            *c = (struct rw_cost_class){ .dtype = entry[i]->dtype };
            memcpy(c->op, entry[i]->op, sizeof c->op);
        }
        count_in(&costs->kind[costs->n_kinds - 1], entry[i]);
    }
    rw_free(entry);
    return good;
}

static void mix_entry(struct rw_hash *h, const struct rw_cost_entry *e)
{
    rw_hash_mix(h, e->signature);
    rw_hash_mix(h, e->picoseconds);
    rw_hash_mix(h, e->operations);
    rw_hash_mix(h, e->bytes);
    rw_hash_mix(h, e->dtype);
    rw_hash_mix_bytes(h, e->op, strlen(e->op));
}

static struct rw_hash hash_entries(const struct rw_costs *costs)
{
    struct rw_hash h = { 0 };
    for (size_t i = 0; i < costs->n; i++) mix_entry(&h, &costs->entry[i]);
    return h;
}

uint64_t rw_costs_entries_hash(const struct rw_costs *costs)
{
    const struct rw_hash h = hash_entries(costs);
    return h.a ^ h.b;
}

uint64_t rw_costs_hash(const struct rw_costs *costs)
{
    struct rw_hash h = hash_entries(costs);
    rw_hash_mix(&h, costs->memory.near_bytes);
    rw_hash_mix(&h, costs->memory.picoseconds);
    if (costs->memory.shared_picoseconds) rw_hash_mix(&h, costs->memory.shared_picoseconds); /* older files have none */
    if (!costs->folder) return h.a ^ h.b;
    rw_hash_mix(&h, costs->store.out);
    rw_hash_mix(&h, costs->store.in);
    rw_hash_mix(&h, costs->store.loss);
    rw_hash_mix_bytes(&h, costs->folder, strlen(costs->folder));
    return h.a ^ h.b;
}

bool rw_costs_seal(struct rw_costs *costs)
{
    qsort(costs->entry, costs->n, sizeof *costs->entry, by_signature);
    for (size_t i = 1; i < costs->n; i++)
        if (costs->entry[i].signature == costs->entry[i - 1].signature) return false;
    costs->n_kinds = 0;
    memset(costs->typed, 0, sizeof costs->typed);
    memset(costs->all, 0, sizeof costs->all);
    if (!count_classes(costs)) return false;
    count_bounds(costs);
    costs->hash = rw_costs_hash(costs);
    return true;
}

void rw_costs_free(struct rw_costs *costs)
{
    if (!costs) return;
    rw_free(costs->entry);
    rw_free(costs->kind);
    rw_free(costs->folder);
    rw_free(costs);
}

static void destroy(rw_context *ctx, void *state)
{
    rw_costs_free(*(struct rw_costs **)state);
}

struct rw_extension rw_costs_extension = { .name = "costs", .size = sizeof(struct rw_costs *), .destroy = destroy };

rw_status rw_costs_open(rw_context *ctx)
{
    return rw_extension_make(&ctx->extensions, &rw_costs_extension) ? RW_OK : RW_ERR_MEMORY;
}

void rw_costs_replace(const rw_context *ctx, struct rw_costs *costs)
{
    struct rw_costs **const place = rw_costs_place(ctx);
    rw_costs_free(*place);
    *place = costs;
}

/* ---- offload store ---- */

static uint64_t at_least_one(uint64_t x)
{
    return x ? x : 1;
}

struct rw_store_cost rw_store_cost_of(struct rw_store_rate measured)
{
    return (struct rw_store_cost){ at_least_one(rw_cost_number(measured.out)),
                                   at_least_one(rw_cost_number(measured.in)),
                                   rw_cost_number(measured.loss * 1e12 * (1 << 20)) };
}

/* If the caller gave both rates, nothing measured applies. */
void rw_store_learn(struct rw_store_place *store, struct rw_store_cost measured)
{
    const struct rw_store_rate given = store->given;
    store->measured = measured;
    if (given.out > 0 && given.in > 0) return;
    store->rate = (struct rw_store_rate){ given.out > 0 ? given.out : (double)measured.out,
                                          given.in > 0 ? given.in : (double)measured.in,
                                          (double)measured.loss * (1e-12 / (1 << 20)) };
}

void rw_costs_tell_store(rw_context *ctx)
{
    const struct rw_costs *const costs = rw_costs_of(ctx);
    if (costs && costs->folder && ctx->store.path && !strcmp(costs->folder, ctx->store.path))
        rw_store_learn(&ctx->store, costs->store);
}
