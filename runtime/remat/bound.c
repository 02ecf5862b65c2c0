/* See bound.h. */
#include "remat/bound.h"

#include "base/alloc.h"
#include "base/round.h"
#include "remat/closure.h"

#include <math.h>

#define MOMENTS 16
#define PRICES 24

/* What rounding of capacities to integers may have added to a cut. */
#define SURE (1 - 1e-9)

struct bounder {
    const struct rw_replayable *g;
    struct rw_closure closure;
    struct rw_cut cut;
    uint8_t *need;
    int64_t *alive; /* place in the problem's order -> bytes of gradients in flight in front of it, and what its node
                       makes and works with besides */
    int64_t *aside; /* the same -> what of memory's price is not paid for these: that node's, less the parameters and
                       inputs that are used in front of it and again from it on */
    uint32_t first; /* place from which on all nodes are of backward */
};

/* ---- gradients in flight ---- */

static void note_reads(const struct rw_problem *p, uint32_t *last)
{
    for (uint32_t i = 0; i < p->n_order; i++) {
        const struct rw_node *const node = &p->t->nodes[p->order[i]];
        for (uint32_t k = 0; k < node->n_inputs; k++)
            last[rw_tape_base(p->t, p->t->operands[node->first_input + k])] = i;
    }
}

/* What every reader of a base value reads of it, and where the first one stands. */
static void note_leaves(const struct rw_problem *p, uint32_t *first, uint64_t *least)
{
    for (uint32_t i = p->n_order; i-- > 0;) {
        const struct rw_node *const node = &p->t->nodes[p->order[i]];
        for (uint32_t k = 0; k < node->n_inputs; k++) {
            const uint32_t v = rw_problem_input(p, node, k);
            const uint64_t bytes = rw_bytes_in_traffic(p->bytes[v], p->cost[p->order[i]].bytes);
            if (first[v] == RW_NONE_ID || bytes < least[v]) least[v] = bytes;
            first[v] = i;
        }
    }
}

/* Parameters and inputs take of the caches what is read of them on both sides of a moment. */
static rw_status count_leaves(struct bounder *b, const uint32_t *last)
{
    const struct rw_problem *const p = b->g->p;
    const rw_tape *const t = p->t;
    uint32_t *const first = rw_malloc(t->n_values * sizeof *first);
    uint64_t *const least = rw_malloc(t->n_values * sizeof *least);
    const bool ok = first && least;
    for (size_t v = 0; ok && v < t->n_values; v++) first[v] = RW_NONE_ID;
    if (ok) note_leaves(p, first, least);
    for (uint32_t v = 0; ok && v < t->n_values; v++) {
        const struct rw_tensor *const x = rw_tape_value(t, v);
        if (first[v] == RW_NONE_ID || x->producer != RW_NONE_ID || rw_tape_base(t, v) != v) continue;
        const uint8_t kind = t->leaves[x->leaf].kind;
        if (kind != RW_LEAF_PARAM && kind != RW_LEAF_INPUT) continue;
        b->aside[first[v] + 1] -= (int64_t)least[v];
        b->aside[last[v] + 1] += (int64_t)least[v];
    }
    for (size_t i = 1; ok && i < p->n_order; i++) b->aside[i] += b->aside[i - 1];
    rw_free(first);
    rw_free(least);
    return ok ? RW_OK : RW_ERR_MEMORY;
}

/* Base values that lie in the arena; the others take nothing of it. */
static void find_placed(const struct rw_schedule *none, bool *placed)
{
    for (uint32_t i = 0; i < none->n_buffers; i++) {
        const struct rw_buffer *const b = &none->buffers[i], *const root = &none->buffers[rw_buffer_root(none, i)];
        if (b->value != RW_NONE_ID && root->source == RW_NONE_ID) placed[b->value] = true;
    }
}

/* While a node runs: its workspace, and its results where it writes them over nothing. */
static int64_t made_by(const struct rw_problem *p, uint32_t n, const bool *placed)
{
    const struct rw_node *const node = &p->t->nodes[n];
    const uint64_t alignment = p->t->ctx->device->alignment;
    uint64_t bytes = rw_round_up(p->workspace[n], alignment);
    for (uint32_t k = 0; k < node->n_outputs && !p->t->ctx->ops[node->op]->inplace; k++) {
        const uint32_t v = node->first_output + k;
        if (placed[v]) bytes += rw_round_up(rw_tensor_bytes(rw_tape_value(p->t, v)), alignment);
    }
    return (int64_t)bytes;
}

static rw_status count_alive(struct bounder *b, const struct rw_schedule *none)
{
    const struct rw_problem *const p = b->g->p;
    uint32_t *const last = rw_calloc(p->t->n_values, sizeof *last);
    bool *const placed = rw_calloc(p->t->n_values, sizeof *placed);
    const bool ok = last && placed;
    if (ok) note_reads(p, last);
    if (ok) find_placed(none, placed);
    for (uint32_t i = 0; ok && i < p->n_order; i++) {
        const struct rw_node *const node = &p->t->nodes[p->order[i]];
        if (!node->adjoint) b->first = i + 1;
        for (uint32_t k = 0; node->adjoint && k < node->n_outputs; k++) {
            const uint32_t v = node->first_output + k;
            if (!placed[v] || last[v] <= i) continue;
            const uint64_t bytes = rw_tensor_bytes(rw_tape_value(p->t, v));
            b->alive[i + 1] += (int64_t)rw_round_up(bytes, p->t->ctx->device->alignment);
            b->alive[last[v] + 1] -= (int64_t)rw_round_up(bytes, p->t->ctx->device->alignment);
        }
    }
    for (size_t i = 1; ok && i < p->n_order; i++) b->alive[i] += b->alive[i - 1];
    rw_status status = ok ? count_leaves(b, last) : RW_ERR_MEMORY;
    for (uint32_t i = 0; ok && i < p->n_order; i++) {
        if (!p->t->nodes[p->order[i]].adjoint) continue;
        const int64_t made = made_by(p, p->order[i], placed);
        b->alive[i] += made;
        b->aside[i] += made;
    }
    rw_free(last);
    rw_free(placed);
    return status;
}

/* ---- one moment ---- */

/* What is needed in front of that place; returns the bytes that are alive anyway. */
static double look_at(struct bounder *b, uint32_t at)
{
    const struct rw_replayable *const g = b->g;
    const rw_tape *const t = g->p->t;
    const struct rw_node *const node = &t->nodes[g->p->order[at]];
    double bytes = (double)b->alive[at];
    for (uint32_t v = 0; v < g->n_values; v++) b->need[v] = g->late[v] >= at ? RW_NEED_LATER : RW_NEED_NOT;
    for (uint32_t k = 0; k < node->n_inputs; k++) {
        const uint32_t v = g->value_of[rw_tape_base(t, t->operands[node->first_input + k])];
        if (v == RW_NONE_ID || b->need[v] == RW_NEED_THERE || (g->flags[v] & RW_IS_FREE)) continue;
        b->need[v] = RW_NEED_THERE;
        bytes += (double)g->bytes[v];
    }
    return bytes;
}

/* The dual at one price; its slope says where a better one is. */
static double dual(struct bounder *b, double price, double room)
{
    rw_closure_solve(&b->closure, b->need, price, &b->cut);
    return (b->cut.seconds + price * b->cut.kept) * SURE - price * room;
}

/* Bytes that cost nothing but replay: all, or those that the caches hold where the rest has a price. */
static double free_bytes(const struct bounder *b, uint32_t at, double bytes)
{
    const struct rw_memory_cost memory = b->g->p->memory;
    return memory.picoseconds ? fmin(bytes, fmax(0, (double)memory.near_bytes + (double)b->aside[at])) : bytes;
}

/* Prices among which the best one is, the bytes that they are of, and what is paid for memory whatever is kept. */
struct range {
    double low, high, highest, room, paid;
};

/* Which side of memory's own price the best one lies on; the dual at that price. all: room for all bytes, of which so
   many are far. */
static double narrow(struct bounder *b, double all, double far, struct range *r)
{
    const double price = fmin(rw_memory_price(b->g->p->memory), r->highest), value = dual(b, price, r->room);
    if (b->cut.kept <= r->room) {
        r->high = fmin(r->high, price);
        r->highest = price;
    } else {
        r->low = price;
        r->high = b->cut.kept <= all ? price : fmin(fmax(r->high, 2 * price), r->highest);
        r->room = all;
        r->paid = price * far;
    }
    return fmax(value, 0);
}

/* The dual is concave in the price: where a cut keeps too much, the price is too low. */
static double bound_at(struct bounder *b, uint32_t at, double bytes)
{
    const double alive = look_at(b, at), near = free_bytes(b, at, bytes);
    const double highest = rw_closure_highest_price(&b->closure);
    struct range r = { .highest = highest, .room = near - alive };
    dual(b, highest, r.room);
    if (b->cut.kept * SURE > bytes - alive) return INFINITY;
    const double least = b->cut.kept, most_seconds = b->cut.seconds;
    dual(b, 0, r.room);
    if (b->cut.kept <= r.room) return 0;
    r.high = fmin(highest, 4 * most_seconds / fmax(b->cut.kept - least, 1));
    double best = near < bytes ? narrow(b, bytes - alive, bytes - near, &r) : 0;
    double low = r.low, high = r.high;
    for (int i = 0; i < PRICES && low < high; i++) {
        const double price = i ? (low + high) / 2 : high, value = dual(b, price, r.room) + r.paid;
        if (value > best) best = value;
        if (!i && b->cut.kept > r.room && high < r.highest) low = high, high = fmin(4 * high, r.highest), i--;
        else if (b->cut.kept > r.room) low = price;
        else high = price;
    }
    return best;
}

/* By place: bytes in front of it when nothing is dropped. What the node there reads is needed there, too. */
static void count_all(const struct bounder *b, int64_t *all)
{
    const struct rw_replayable *const g = b->g;
    const size_t n = g->p->n_order;
    for (uint32_t v = 0; v < g->n_values; v++)
        if (!(g->flags[v] & RW_IS_FREE)) all[g->late[v]] += (int64_t)g->bytes[v];
    all[0] = 0; /* no node of backward is first: what nobody needs late */
    for (size_t i = n; i-- > 1;) all[i] += all[i + 1];
    for (size_t i = 0; i < n; i++) all[i] += b->alive[i];
}

/* Of each window of backward the fullest moment; windows are short at its beginning, where most is alive. */
static double bound_of(struct bounder *b, const int64_t *all, double bytes)
{
    const uint32_t n = (uint32_t)b->g->p->n_order - b->first;
    double best = 0;
    uint32_t from = b->first;
    for (uint32_t k = 1; k <= MOMENTS && best < INFINITY; k++) {
        const uint32_t to = b->first + (uint32_t)((uint64_t)n * k * k / (MOMENTS * MOMENTS));
        uint32_t fullest = from;
        for (uint32_t i = from; i < to; i++)
            if (all[i] > all[fullest]) fullest = i;
        if (to <= from) continue;
        if ((double)all[fullest] > free_bytes(b, fullest, bytes)) best = fmax(best, bound_at(b, fullest, bytes));
        from = to;
    }
    return best;
}

/* What some candidate moves out is there and takes nothing, as far as anybody knows. */
static uint8_t *flags_of_all(const struct rw_replayable *g)
{
    uint8_t *const flags = rw_malloc(g->n_values * sizeof *flags);
    for (size_t v = 0; flags && v < g->n_values; v++)
        flags[v] = (uint8_t)(g->flags[v] | (g->flags[v] & RW_MAY_WAIT ? RW_IS_FREE : 0));
    return flags;
}

rw_status rw_bound_replay(const struct rw_replayable *graph, const struct rw_schedule *none, uint64_t bytes,
                          double *ret_seconds)
{
    struct rw_replayable with_flags = *graph;
    const struct rw_replayable *const g = &with_flags;
    with_flags.flags = flags_of_all(graph);
    struct bounder b = { .g = g,
                         .cut = { .replayed = rw_malloc(g->n_nodes * sizeof *b.cut.replayed) },
                         .need = rw_malloc(g->n_values * sizeof *b.need),
                         .alive = rw_calloc(g->p->n_order + 2, sizeof *b.alive),
                         .aside = rw_calloc(g->p->n_order + 2, sizeof *b.aside) };
    int64_t *const all = rw_calloc(g->p->n_order + 2, sizeof *all);
    const bool has_room = g->flags && b.cut.replayed && b.need && b.alive && b.aside && all;
    rw_status status = has_room ? rw_closure_init(&b.closure, g) : RW_ERR_MEMORY;
    if (!status) status = count_alive(&b, none);
    if (!status) {
        count_all(&b, all);
        *ret_seconds = g->n_nodes ? bound_of(&b, all, (double)bytes) : 0;
    }
    rw_closure_finish(&b.closure);
    rw_free(b.cut.replayed);
    rw_free(b.need);
    rw_free(b.alive);
    rw_free(b.aside);
    rw_free(all);
    rw_free(with_flags.flags);
    return status;
}
