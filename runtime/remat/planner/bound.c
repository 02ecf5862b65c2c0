/*
 * Computes the bound of bound.h: bytes that are live in any case, the moments, and the best price at each of them, by
 * tangents (Kelley, 1960). The prices of one moment, as search() finds them:
 *
 *     D(l) - l * room                              D is concave and made of lines: a cut that keeps k bytes and
 *         |      .  <- where two tangents meet     replays for s seconds is the line s + l * k. The tangents at two
 *         |     / \                                prices meet at l*. The cut there is either on both, and l* has the
 *         |    /.-.\                               maximum, or it replaces one of them. So a few cuts find the
 *         |   //   \\                              best price, and they are kept for the next budget.
 *         |  /       \
 *         +-------l*-----------> price of a byte
 */
#include "remat/planner/bound.h"

#include "base/alloc.h"
#include "base/round_up.h"
#include "remat/planner/min_cut.h"

#include <math.h>
#include <string.h>

#define BACKWARD_MOMENTS 16
#define FORWARD_MOMENTS 8
#define CUTS_MAX 96   /* that are kept per moment */
#define SEARCH_MAX 24 /* cuts for one budget at one moment */
#define STEPS_MAX 4   /* of these away from the prices of the moment before */

/* Corrects for the rounding of capacities to integers, which may have increased a cut. */
#define SURE (1 - 1e-9)

/* A cut at a price: the dual there is seconds + price * kept. */
struct priced {
    double price, seconds, kept;
    uint64_t *replayed; /* bits by place; NULL if not known */
};

struct moment {
    uint32_t at;       /* place in the problem's order */
    int64_t full;      /* live bytes before it if nothing is dropped */
    double alive;      /* bytes that are live whatever is chosen */
    struct priced *cut; /* by increasing price */
    size_t n;
};

struct rw_bound {
    struct rw_replayable graph; /* the caller's, except for the flags */
    const struct rw_replayable *g;
    struct rw_min_cut closure;
    struct rw_cut cut;
    bool *less, *more; /* by place: nodes that the cuts at the nearest lower and higher price replay */
    uint8_t *need;
    uint32_t looked_at; /* the place that `need` is computed for */
    uint32_t *computed, *used; /* value -> place in the problem's order of its producer, of its last reader */
    int64_t *alive; /* place in the problem's order -> bytes of gradients in flight before it, and of its node's
                       outputs and workspace */
    int64_t *aside; /* place -> bytes in `alive` that do not pay memory's price: the node's own, minus the parameters
                       and inputs that are used both before it and again from it on */
    uint32_t first; /* all nodes from this place on are of backward */
    double forward, backward; /* seconds of each node once; nodes that can be deferred are of forward */
    double late;    /* the same of backward, including nodes that can be deferred */
    double highest; /* the highest price */
    double below, above; /* prices around the best one of the last moment that was searched; 0 if there is none */
    struct moment moment[BACKWARD_MOMENTS + FORWARD_MOMENTS];
    size_t n_moments;
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

/*
 * Finds for each base value the minimum bytes that a reader reads of it, and the place of the first reader that cannot
 * be deferred.
 */
static void note_leaves(const struct rw_problem *p, uint32_t *first, uint64_t *least)
{
    for (uint32_t i = p->n_order; i-- > 0;) {
        const struct rw_node *const node = &p->t->nodes[p->order[i]];
        for (uint32_t k = 0; k < node->n_inputs; k++) {
            const uint32_t v = rw_problem_input(p, node, k);
            const uint64_t bytes = rw_bytes_in_traffic(p->bytes[v], p->cost[p->order[i]].bytes);
            if (bytes < least[v]) least[v] = bytes;
            if (!p->deferrable[p->order[i]]) first[v] = i;
        }
    }
}

/* Counts the bytes of parameters and inputs in the caches: those that are read on both sides of a moment. */
static rw_status count_leaves(struct rw_bound *b, const uint32_t *last)
{
    const struct rw_problem *const p = b->g->p;
    const rw_tape *const t = p->t;
    uint32_t *const first = rw_malloc(t->n_values * sizeof *first);
    uint64_t *const least = rw_malloc(t->n_values * sizeof *least);
    const bool ok = first && least;
    for (size_t v = 0; ok && v < t->n_values; v++) first[v] = RW_NONE_ID, least[v] = UINT64_MAX;
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

/* Finds the base values that are in the arena. */
static void find_placed(const struct rw_schedule *none, bool *placed)
{
    for (uint32_t i = 0; i < none->n_buffers; i++) {
        const struct rw_buffer *const b = &none->buffers[i], *const root = &none->buffers[rw_buffer_root(none, i)];
        if (b->value != RW_NONE_ID && root->source == RW_NONE_ID) placed[b->value] = true;
    }
}

/* Bytes that are live only while a node runs: its workspace, and its outputs unless it writes in place. */
static int64_t computed_by(const struct rw_problem *p, uint32_t n, const bool *placed)
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

/* Counts the bytes that are live at each place whatever is chosen. */
static rw_status count_alive(struct rw_bound *b, const struct rw_schedule *none)
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
        const int64_t computed = computed_by(p, p->order[i], placed);
        b->alive[i] += computed;
        b->aside[i] += computed;
    }
    rw_free(last);
    rw_free(placed);
    return status;
}

/* ---- moments ---- */

/* By value: the places of its producer and of its last reader. */
static void find_places(struct rw_bound *b)
{
    const struct rw_replayable *const g = b->g;
    const struct rw_problem *const p = g->p;
    for (uint32_t i = 0; i < p->n_order; i++) {
        uint32_t place = g->place_of[p->order[i]];
        for (; place != RW_NONE_ID && place < g->n_nodes && g->node[place] == p->order[i]; place++) {
            for (uint32_t v = g->output_at[place]; v < g->output_at[place + 1]; v++) b->computed[v] = b->used[v] = i;
            for (uint32_t k = g->input_at[place]; k < g->input_at[place + 1]; k++) b->used[g->input[k]] = i;
        }
    }
    for (uint32_t v = 0; v < g->n_values; v++)
        if (b->used[v] < g->late[v]) b->used[v] = g->late[v];
}

/* Place -> live bytes before it if nothing is dropped. Values that the node there reads are included. */
static void count_all(const struct rw_bound *b, int64_t *all)
{
    const struct rw_replayable *const g = b->g;
    const size_t n = g->p->n_order;
    for (uint32_t v = 0; v < g->n_values; v++) {
        if ((g->flags[v] & RW_IS_FREE) || b->used[v] == b->computed[v]) continue;
        all[b->computed[v] + 1] += (int64_t)g->bytes[v];
        all[b->used[v] + 1] -= (int64_t)g->bytes[v];
    }
    for (size_t i = 1; i < n; i++) all[i] += all[i - 1];
    for (size_t i = 0; i < n; i++) all[i] += b->alive[i];
}

/* Adds the place of [from, to) with the most live bytes as a moment. Nodes that can be deferred are no moments. */
static rw_status add_moment(struct rw_bound *b, const int64_t *all, uint32_t from, uint32_t to)
{
    const struct rw_problem *const p = b->g->p;
    uint32_t fullest = to;
    for (uint32_t i = from; i < to; i++)
        if (!p->deferrable[p->order[i]] && (fullest == to || all[i] > all[fullest])) fullest = i;
    if (fullest >= to) return RW_OK;
    struct priced *const cut = rw_malloc(CUTS_MAX * sizeof *cut);
    if (!cut) return RW_ERR_MEMORY;
    b->moment[b->n_moments++] = (struct moment){ .at = fullest, .full = all[fullest], .cut = cut };
    return RW_OK;
}

/* Windows are short where backward begins, because most bytes are live there. */
static rw_status find_moments(struct rw_bound *b)
{
    const uint32_t end = (uint32_t)b->g->p->n_order;
    int64_t *const all = rw_calloc((size_t)end + 2, sizeof *all);
    rw_status status = all ? RW_OK : RW_ERR_MEMORY;
    if (!status) count_all(b, all);
    for (uint32_t k = 1, from = b->first; !status && k <= BACKWARD_MOMENTS; k++) {
        const uint64_t n = (uint64_t)(end - b->first) * k * k;
        const uint32_t to = b->first + (uint32_t)(n / (BACKWARD_MOMENTS * BACKWARD_MOMENTS));
        status = add_moment(b, all, from, to);
        from = to;
    }
    for (uint32_t k = 1, to = b->first; !status && k <= FORWARD_MOMENTS; k++) {
        const uint64_t n = (uint64_t)b->first * k * k;
        const uint32_t from = b->first - (uint32_t)(n / (FORWARD_MOMENTS * FORWARD_MOMENTS));
        status = add_moment(b, all, from, to);
        to = from;
    }
    rw_free(all);
    return status;
}

/*
 * Finds what is needed before that place, and returns the bytes that are live in any case. A value that is computed
 * there or later is computed for the first time, without a replay, so it does not count.
 */
static double look_at(struct rw_bound *b, uint32_t at)
{
    const struct rw_replayable *const g = b->g;
    const rw_tape *const t = g->p->t;
    const struct rw_node *const node = &t->nodes[g->p->order[at]];
    double bytes = (double)b->alive[at];
    for (uint32_t v = 0; v < g->n_values; v++)
        b->need[v] = b->computed[v] >= at ? RW_NEED_THERE : b->used[v] >= at ? RW_NEED_LATER : RW_NEED_NOT;
    for (uint32_t k = 0; k < node->n_inputs; k++) {
        const uint32_t v = g->value_of[rw_tape_base(t, t->operands[node->first_input + k])];
        if (v == RW_NONE_ID || b->need[v] == RW_NEED_THERE || (g->flags[v] & RW_IS_FREE)) continue;
        b->need[v] = RW_NEED_THERE;
        bytes += (double)g->bytes[v];
    }
    b->looked_at = at;
    return bytes;
}

/* ---- the dual at one moment ---- */

static double dual(const struct priced *x)
{
    return (x->seconds + x->price * x->kept) * SURE;
}

static double value_of(const struct priced *x, double room)
{
    return dual(x) - x->price * room;
}

/* The first cut of the moment at that price or a higher one. */
static size_t place_of(const struct moment *m, double price)
{
    size_t i = 0;
    while (i < m->n && m->cut[i].price < price) i++;
    return i;
}

/* Packs flags by place into bits. NULL if out of memory; then the cut does not limit other cuts. */
static uint64_t *pack(const bool *replayed, size_t n)
{
    uint64_t *const bits = rw_calloc(n / 64 + 1, sizeof *bits);
    for (size_t i = 0; bits && i < n; i++) bits[i / 64] |= (uint64_t)replayed[i] << i % 64;
    return bits;
}

/* The reverse of pack(); returns NULL for NULL. */
static const bool *unpack(const uint64_t *bits, size_t n, bool *to)
{
    for (size_t i = 0; bits && i < n; i++) to[i] = bits[i / 64] >> i % 64 & 1;
    return bits ? to : NULL;
}

/*
 * The cut at a price: a stored one, or a new one, which is stored unless CUTS_MAX are. A new one is between the stored
 * cuts at the nearest lower and higher price.
 */
static struct priced cut_at(struct rw_bound *b, struct moment *m, double price)
{
    const size_t i = place_of(m, price), n = b->g->n_nodes;
    if (i < m->n && m->cut[i].price == price) return m->cut[i];
    if (b->looked_at != m->at) m->alive = look_at(b, m->at);
    const bool *const less = i ? unpack(m->cut[i - 1].replayed, n, b->less) : NULL;
    const bool *const more = i < m->n ? unpack(m->cut[i].replayed, n, b->more) : NULL;
    rw_min_cut_solve_between(&b->closure, b->need, price, less, more, &b->cut);
    struct priced x = { price, b->cut.seconds, b->cut.kept, NULL };
    if (m->n == CUTS_MAX) return x;
    x.replayed = pack(b->cut.replayed, n);
    memmove(m->cut + i + 1, m->cut + i, (m->n - i) * sizeof *m->cut);
    m->cut[i] = x;
    m->n++;
    return x;
}

/* Seconds per byte copied out and copied in; room and best bound so far if values may be offloaded. */
struct moving {
    double out, in;
    double room, best;
};

/*
 * The bound of one cut if a byte of price l may also be offloaded (bound.h). Uses the best weights a of the copy out
 * and b of the copy in with (1 - b) * l <= a * out + b * in and a + b <= 1; they are at a corner of this region.
 */
static double moved_value(const struct rw_bound *b, const struct priced *x, const struct moving *m)
{
    const double replay = value_of(x, m->room), l = x->price;
    double best = 0;
    if (l <= m->out) best = fmax(best, replay - l / m->out * b->forward);
    const double back = l / (l + m->in);
    best = fmax(best, (1 - back) * replay - back * b->late);
    if (l < m->out) return best;
    const double both = (l - m->out) / (l - m->out + m->in);
    return fmax(best, (1 - both) * (replay - b->forward) - both * b->late);
}

/* moving: NULL if nothing may be offloaded. */
static struct priced try_price(struct rw_bound *b, struct moment *m, double price, struct moving *moving)
{
    const struct priced x = cut_at(b, m, price);
    if (moving) moving->best = fmax(moving->best, moved_value(b, &x, moving));
    return x;
}

/* The dual where the lines of two cuts meet. *lo keeps more than `room` bytes, so no price between the two has a higher
   dual. */
static double meet(const struct priced *lo, const struct priced *hi, double room)
{
    const double price = (hi->seconds - lo->seconds) / (lo->kept - hi->kept);
    return lo->seconds + price * (lo->kept - room);
}

/* The maximum of the dual between the prices of two cuts, for `room` bytes, by tangents. Narrows the two cuts. Stops if
   it cannot exceed `enough`. */
static double follow_tangents(struct rw_bound *b, struct moment *m, double room, struct priced *lo, struct priced *hi,
                              double enough, struct moving *moving)
{
    double best = fmax(value_of(lo, room), value_of(hi, room));
    if (lo->kept <= room || hi->kept > room) return best;
    for (int i = 0; i < SEARCH_MAX; i++) {
        const double price = (hi->seconds - lo->seconds) / (lo->kept - hi->kept);
        const double most = meet(lo, hi, room);
        if (!(price > lo->price && price < hi->price) || most <= enough) break;
        const struct priced x = try_price(b, m, price, moving);
        best = fmax(best, value_of(&x, room));
        const bool is_known = x.kept >= lo->kept || x.kept <= hi->kept;
        if (x.seconds + price * (x.kept - room) >= most * (1 - 1e-10) || is_known) break;
        *(x.kept > room ? lo : hi) = x;
    }
    return best;
}

/*
 * The maximum of the dual between two prices, for that much room. Stops if it cannot exceed `enough`. The prices depend
 * on the arguments only, so a bound does not depend on earlier calls.
 */
static double search(struct rw_bound *b, struct moment *m, double room, double low, double high, double enough,
                     struct moving *moving)
{
    struct priced lo = try_price(b, m, low, moving), hi = try_price(b, m, high, moving);
    return follow_tangents(b, m, room, &lo, &hi, enough, moving);
}

/* Doubles the price until the cut keeps at most `room` bytes, and returns that cut. *lo: the last cut before it. */
static struct priced go_up(struct rw_bound *b, struct moment *m, double room, double price, struct priced *lo)
{
    for (int i = 0; i < STEPS_MAX && price < b->highest; i++, price *= 2) {
        const struct priced x = cut_at(b, m, price);
        if (x.kept <= room) return x;
        *lo = x;
    }
    return cut_at(b, m, b->highest);
}

/* Halves the price until the cut keeps more than `room` bytes, and returns that cut. *hi: the last cut before it. */
static struct priced go_down(struct rw_bound *b, struct moment *m, double room, double price, struct priced *hi)
{
    for (int i = 0; i < STEPS_MAX; i++, price /= 2) {
        const struct priced x = cut_at(b, m, price);
        if (x.kept > room) return x;
        *hi = x;
    }
    return cut_at(b, m, 0);
}

/* Finds the two neighbors among the moment's cuts of which *lo keeps more than `room` bytes and *hi does not. False if
   there is no such pair. */
static bool find_known(const struct moment *m, double room, struct priced *lo, struct priced *hi)
{
    size_t i = 0;
    while (i < m->n && m->cut[i].kept > room) i++;
    if (!i || i == m->n) return false;
    *lo = m->cut[i - 1];
    *hi = m->cut[i];
    return true;
}

/*
 * The maximum of the dual over all prices; INFINITY if every cut keeps too much. The first moment is searched between
 * the two ends of the prices. So is a moment that has cuts of an earlier budget, because it has those at the ends. Any
 * other moment is searched around the price of the one before, because moments have similar prices. Each way leads to
 * the same two lines.
 */
static double search_all(struct rw_bound *b, struct moment *m, double room, double enough)
{
    struct priced lo, hi;
    if (m->n || b->above <= 0) {
        lo = cut_at(b, m, 0);
        hi = cut_at(b, m, b->highest);
    } else if (lo = hi = cut_at(b, m, b->above), lo.kept > room) {
        hi = go_up(b, m, room, 2 * b->above, &lo);
    } else {
        lo = cut_at(b, m, 0);
        if (lo.kept > room && meet(&lo, &hi, room) > enough) lo = go_down(b, m, room, b->below, &hi);
    }
    if (hi.kept * SURE > room) return INFINITY;
    const double best = follow_tangents(b, m, room, &lo, &hi, enough, NULL);
    if (lo.price > 0 && lo.kept > room && hi.price < b->highest) b->below = lo.price, b->above = hi.price;
    return best;
}

/* Bytes that cost nothing but replays: all, or if memory has a price, those that the caches hold. */
static double free_bytes(const struct rw_bound *b, uint32_t at, double bytes)
{
    const struct rw_memory_cost memory = b->g->p->memory;
    return memory.picoseconds ? fmin(bytes, fmax(0, (double)memory.near_bytes + (double)b->aside[at])) : bytes;
}

/*
 * With a price c of memory the dual has two pieces. Below c only the caches' bytes count as room. Above c all bytes do,
 * and each byte outside of the caches pays c:
 *
 *     l < c    D(l) - l * near
 *     l >= c   D(l) - l * all + c * (all - near)
 *
 * Both are equal at c, so the cut there shows on which side the best price is: on the right if it keeps more than
 * `all`, on the left if it keeps at most `near`, else at c.
 */
static double bound_at(struct rw_bound *b, struct moment *m, double bytes, double enough)
{
    if (!m->n) m->alive = look_at(b, m->at);
    const double near = free_bytes(b, m->at, bytes) - m->alive, all = bytes - m->alive;
    if (near >= all) return search_all(b, m, all, enough);
    if (cut_at(b, m, b->highest).kept * SURE > all) return INFINITY;
    const double price = fmin(rw_memory_price(b->g->p->memory), b->highest), paid = price * (all - near);
    const struct priced x = cut_at(b, m, price);
    if (x.kept <= near) return search(b, m, near, 0, price, enough, NULL);
    if (x.kept <= all) return value_of(&x, near);
    return search(b, m, all, price, b->highest, enough - paid, NULL) + paid;
}

/* An upper bound of the seconds that the moment adds, by its known cuts; INFINITY if they give none. */
static double most_of(const struct rw_bound *b, const struct moment *m, double bytes)
{
    struct priced lo, hi;
    const double room = bytes - m->alive;
    if ((double)m->full <= free_bytes(b, m->at, bytes)) return 0;
    if (!m->n || b->g->p->memory.picoseconds || !find_known(m, room, &lo, &hi)) return INFINITY;
    return meet(&lo, &hi, room);
}

/* Searches the moments with the highest upper bounds first. For a second budget most other moments then need no new
   cut. */
double rw_bound_seconds(struct rw_bound *b, uint64_t bytes)
{
    double best = 0, most[BACKWARD_MOMENTS + FORWARD_MOMENTS];
    b->below = b->above = 0;
    for (size_t i = 0; i < b->n_moments; i++) most[i] = most_of(b, &b->moment[i], (double)bytes);
    while (b->n_moments && best < INFINITY) {
        size_t at = 0;
        for (size_t i = 1; i < b->n_moments; i++)
            if (most[i] > most[at]) at = i;
        if (most[at] <= best) break;
        best = fmax(best, bound_at(b, &b->moment[at], (double)bytes, best));
        most[at] = 0;
    }
    return b->forward + b->backward + best;
}

/* Tries the prices of interest: those for replays alone, those for more room, by the bytes that either lane copies
   meanwhile, and some around the price of a move. */
static void bound_moved_at(struct rw_bound *b, struct moment *m, double bytes, struct moving *moving)
{
    cut_at(b, m, 0);
    moving->room = bytes - m->alive;
    search(b, m, moving->room, 0, b->highest, 0, moving);
    search(b, m, moving->room + b->forward / moving->out, 0, b->highest, 0, moving);
    search(b, m, moving->room + b->backward / moving->in, 0, b->highest, 0, moving);
    for (int k = -4; k <= 3; k++) try_price(b, m, fmin(ldexp(moving->out + moving->in, k), b->highest), moving);
}

/* Leaves out memory's price, which could only increase the bound. */
double rw_bound_seconds_moved(struct rw_bound *b, uint64_t bytes)
{
    const uint64_t many = (uint64_t)1 << 40; /* so many bytes that a copy's constant time vanishes */
    const struct rw_problem *const p = b->g->p;
    struct moving moving = { .out = rw_move_seconds(p, RW_LANE_OUT, many) / (double)many,
                             .in = rw_move_seconds(p, RW_LANE_IN, many) / (double)many };
    for (size_t i = 0; i < b->n_moments; i++)
        if (b->moment[i].full > (int64_t)bytes) bound_moved_at(b, &b->moment[i], (double)bytes, &moving);
    return b->forward + b->backward + moving.best;
}

/* ---- creation and destruction ---- */

/* Some policy by name may offload these values, so the bound treats them as free. */
static uint8_t *flags_of_all(const struct rw_replayable *g)
{
    uint8_t *const flags = rw_malloc(g->n_values * sizeof *flags);
    for (size_t v = 0; flags && v < g->n_values; v++)
        flags[v] = (uint8_t)(g->flags[v] | (g->flags[v] & RW_MAY_WAIT ? RW_IS_FREE : 0));
    return flags;
}

/* Sums the seconds of each node once, for forward and backward. `none` defers a node if a part of the tape drops its
   outputs, but other plans keep them and execute it in forward. */
static void sum_seconds(struct rw_bound *b, const struct rw_schedule *none)
{
    for (size_t i = 0; i < none->n_actions; i++) {
        const struct rw_action *const a = &none->actions[i];
        if (a->kind == RW_ACTION_REPLAY || rw_action_is_move(a->kind)) continue;
        const double seconds = rw_problem_seconds(b->g->p, a->node);
        const bool may_wait = b->g->p->deferrable[a->node], is_early = i < none->n_forward;
        *(is_early || may_wait ? &b->forward : &b->backward) += seconds;
        if (!is_early || may_wait) b->late += seconds;
    }
}

/* Allocates, counts, and finds the moments. */
static rw_status open(struct rw_bound *b, const struct rw_schedule *none)
{
    const struct rw_replayable *const g = b->g;
    const size_t n = g->p->n_order + 2;
    sum_seconds(b, none);
    if (!g->n_nodes) return RW_OK;
    b->cut.replayed = rw_malloc(g->n_nodes * sizeof *b->cut.replayed);
    b->less = rw_malloc(g->n_nodes * sizeof *b->less);
    b->more = rw_malloc(g->n_nodes * sizeof *b->more);
    b->need = rw_malloc(g->n_values * sizeof *b->need);
    b->computed = rw_calloc(g->n_values, sizeof *b->computed);
    b->used = rw_calloc(g->n_values, sizeof *b->used);
    b->alive = rw_calloc(n, sizeof *b->alive);
    b->aside = rw_calloc(n, sizeof *b->aside);
    const bool has_cuts = b->cut.replayed && b->less && b->more;
    const bool has_all = has_cuts && b->graph.flags && b->need && b->computed && b->used && b->alive && b->aside;
    rw_status status = has_all ? rw_min_cut_init(&b->closure, g) : RW_ERR_MEMORY;
    if (!status) status = count_alive(b, none);
    if (status) return status;
    b->highest = rw_min_cut_highest_price(&b->closure);
    find_places(b);
    return find_moments(b);
}

rw_status rw_bound_create(struct rw_bound **ret, const struct rw_replayable *graph, const struct rw_schedule *none)
{
    struct rw_bound *b = rw_calloc(1, sizeof *b);
    if (!b) return RW_ERR_MEMORY;
    b->graph = *graph;
    b->graph.flags = flags_of_all(graph);
    b->g = &b->graph;
    b->looked_at = RW_NONE_ID;
    const rw_status status = open(b, none);
    if (status) rw_bound_destroy(&b);
    *ret = b;
    return status;
}

/* NULL-safe. */
void rw_bound_destroy(struct rw_bound **ptr)
{
    struct rw_bound *const b = *ptr;
    if (!b) return;
    for (size_t i = 0; i < b->n_moments; i++) {
        for (size_t k = 0; k < b->moment[i].n; k++) rw_free(b->moment[i].cut[k].replayed);
        rw_free(b->moment[i].cut);
    }
    rw_min_cut_finish(&b->closure);
    rw_free(b->graph.flags);
    rw_free(b->cut.replayed);
    rw_free(b->less);
    rw_free(b->more);
    rw_free(b->need);
    rw_free(b->computed);
    rw_free(b->used);
    rw_free(b->alive);
    rw_free(b->aside);
    rw_free(b);
    *ptr = NULL;
}
