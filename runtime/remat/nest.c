/* See nest.h. */
#include "remat/nest.h"

#include "base/alloc.h"
#include "base/round.h"

#include <math.h>
#include <string.h>

#define SLOTS 160
#define STAGES_LEAST 32
#define STAGES_MOST 96
#define NODES_PER_STAGE 8 /* about a block: finer cuts cost time, T * T * T / 6 * SLOTS, and give little */
#define NO_CUT UINT8_MAX

/* The number of a stretch of stages [i, t), 0 <= i < t <= T. */
static size_t stretch(const struct rw_nest *n, size_t i, size_t t)
{
    return i * (n->n_stages + 1) + t;
}

/* ---- stages ---- */

/* by place: bytes made before it that forward reads there or behind. */
static void count_crossing(const struct rw_replayable *g, int64_t *crossing)
{
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (!rw_value_may_drop(g, v)) continue;
        crossing[g->maker[v] + 1] += (int64_t)g->bytes[v];
        crossing[g->last_read[v] + 1] -= (int64_t)g->bytes[v];
    }
    for (size_t i = 1; i <= g->n_nodes; i++) crossing[i] += crossing[i - 1];
}

static uint64_t late_bytes(const struct rw_replayable *g, uint32_t place)
{
    uint64_t bytes = 0;
    for (uint32_t v = g->output_at[place]; v < g->output_at[place + 1]; v++)
        if (g->late[v] && rw_value_may_drop(g, v)) bytes += g->bytes[v];
    return bytes;
}

/* Where there are no more places than stages may be: all where one may begin. */
static void cut_everywhere(struct rw_nest *n)
{
    n->cut[0] = 0;
    n->n_stages = 1;
    for (uint32_t i = 1; i < n->g->n_nodes; i++)
        if (rw_place_may_begin(n->g, i)) n->cut[n->n_stages++] = i;
    n->cut[n->n_stages] = (uint32_t)n->g->n_nodes;
}

/* The narrowest place of each of n windows, which hold equal parts of what backward reads. */
static void cut_at_narrow_places(struct rw_nest *n, const int64_t *crossing, size_t n_stages)
{
    const struct rw_replayable *const g = n->g;
    double all = 0, before = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) all += (double)late_bytes(g, i) + 1;
    size_t window = 1;
    uint32_t narrowest = 0;
    n->cut[0] = 0;
    n->n_stages = 1;
    for (uint32_t i = 1; i < g->n_nodes; i++) {
        before += (double)late_bytes(g, i - 1) + 1;
        if (before > ((double)window + 0.5) / (double)n_stages * all) {
            if (narrowest) n->cut[n->n_stages++] = narrowest;
            narrowest = 0;
            while (before > ((double)window + 0.5) / (double)n_stages * all) window++;
        }
        if (before < 0.5 / (double)n_stages * all || n->n_stages >= n_stages) continue;
        if (!rw_place_may_begin(g, i)) continue;
        if (!narrowest || crossing[i] < crossing[narrowest]) narrowest = i;
    }
    if (narrowest && n->n_stages < n_stages) n->cut[n->n_stages++] = narrowest;
    n->cut[n->n_stages] = (uint32_t)g->n_nodes;
}

/* The place that an action of backward differentiates, RW_NONE_ID for none. */
static uint32_t place_of(const struct rw_replayable *g, uint32_t node)
{
    const rw_tape *const t = g->p->t;
    while (node != RW_NONE_ID && t->nodes[node].adjoint) node = t->nodes[node].of;
    return node == RW_NONE_ID ? RW_NONE_ID : g->place_of[node];
}

static size_t stage_of(const struct rw_nest *n, uint32_t place)
{
    size_t i = 0;
    while (i + 1 < n->n_stages && n->cut[i + 1] <= place) i++;
    return i;
}

static rw_status count_adjoints(struct rw_nest *n, const struct rw_schedule *s)
{
    const uint64_t alignment = n->g->p->t->ctx->device->alignment;
    int64_t *const begun = rw_calloc(2 * (s->n_actions + 1), sizeof *begun);
    if (!begun) return RW_ERR_MEMORY;
    int64_t *const ended = begun + s->n_actions + 1;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i) || b->first < s->n_forward) continue;
        begun[b->first] += (int64_t)rw_round_up(b->bytes, alignment);
        ended[b->last + 1] += (int64_t)rw_round_up(b->bytes, alignment);
    }
    int64_t now = 0;
    for (size_t a = 0; a < s->n_actions; a++) {
        const int64_t before = now - ended[a];
        now = before + begun[a];
        const uint32_t place = place_of(n->g, s->actions[a].node);
        if (place == RW_NONE_ID) continue;
        const size_t stage = stage_of(n, place);
        if (!n->adjoint[stage]) n->entering[stage] = (uint64_t)before;
        if ((uint64_t)now > n->adjoint[stage]) n->adjoint[stage] = (uint64_t)now;
    }
    rw_free(begun);
    return RW_OK;
}

/*
 * A value is read by the backward of a stretch when it is made in it and the last to read it differentiates a node in
 * it: what only later stages read is dead by then. First by the stages of the two, then summed.
 */
static void count_late(struct rw_nest *n)
{
    const struct rw_replayable *const g = n->g;
    const size_t T = n->n_stages;
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (!g->late[v] || !rw_value_may_drop(g, v)) continue;
        const uint32_t reader = place_of(g, g->p->order[g->late[v]]);
        const size_t i = stage_of(n, g->maker[v]), last = reader == RW_NONE_ID ? i : stage_of(n, reader);
        const size_t of = stretch(n, i, (last < i ? i : last) + 1);
        n->late[of] += g->bytes[v];
        if (n->needed[of] <= g->maker[v]) n->needed[of] = g->maker[v] + 1;
    }
    for (size_t i = T; i-- > 0;)
        for (size_t t = i + 1; t <= T; t++) {
            const bool inner = i + 1 < t;
            uint32_t *const needed = &n->needed[stretch(n, i, t)];
            if (inner && n->needed[stretch(n, i, t - 1)] > *needed) *needed = n->needed[stretch(n, i, t - 1)];
            if (inner && n->needed[stretch(n, i + 1, t)] > *needed) *needed = n->needed[stretch(n, i + 1, t)];
            n->late[stretch(n, i, t)] += inner ? n->late[stretch(n, i, t - 1)] + n->late[stretch(n, i + 1, t)] : 0;
            if (i + 2 < t) n->late[stretch(n, i, t)] -= n->late[stretch(n, i + 1, t - 1)];
        }
}

/* What crosses cut t and was made from stage i on: for a skip over many stages, whoever holds what comes into stage i
   holds it already. */
static void count_stretches(struct rw_nest *n)
{
    const struct rw_replayable *const g = n->g;
    const size_t T = n->n_stages;
    for (uint32_t v = 0; v < g->n_values; v++) {
        const size_t i = stage_of(n, g->maker[v]);
        for (size_t t = i + 1; rw_value_may_drop(g, v) && t < T && n->cut[t] <= g->last_read[v]; t++)
            n->crossing[stretch(n, i, t)] += g->bytes[v];
    }
    for (size_t i = T; i-- > 0;)
        for (size_t t = i + 2; t < T; t++) n->crossing[stretch(n, i, t)] += n->crossing[stretch(n, i + 1, t)];
}

static rw_status find_stages(struct rw_nest *n, const struct rw_schedule *none)
{
    const struct rw_replayable *const g = n->g;
    size_t most = g->n_nodes / NODES_PER_STAGE;
    if (most > STAGES_MOST) most = STAGES_MOST;
    if (most < STAGES_LEAST) most = STAGES_LEAST;
    if (most < g->n_nodes) {
        int64_t *const crossing = rw_calloc(g->n_nodes + 2, sizeof *crossing);
        if (!crossing) return RW_ERR_MEMORY;
        count_crossing(g, crossing);
        cut_at_narrow_places(n, crossing, most);
        rw_free(crossing);
    } else {
        cut_everywhere(n);
        n->finest = true;
    }
    for (size_t i = 0; i < n->n_stages; i++)
        for (uint32_t k = n->cut[i]; k < n->cut[i + 1]; k++) n->seconds[i] += g->seconds[k];
    count_stretches(n);
    count_late(n);
    return count_adjoints(n, none);
}

/* ---- the two recurrences ---- */

static size_t slots_of(const struct rw_nest *n, uint64_t bytes)
{
    return (size_t)(rw_round_up(bytes, n->slot) / n->slot);
}

static size_t least_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t most_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A stretch takes what its backward reads of it, and gradients and workspaces beside that. */
static void count_slots(struct rw_nest *n)
{
    for (size_t i = 0; i < n->n_stages; i++) {
        uint64_t adjoint = 0;
        float seconds = 0;
        for (size_t t = i + 1; t <= n->n_stages; t++) {
            const size_t s = stretch(n, i, t);
            adjoint = n->adjoint[t - 1] > adjoint ? n->adjoint[t - 1] : adjoint;
            n->wide[s] = (uint16_t)least_of(slots_of(n, n->crossing[s]), SLOTS);
            n->kept[s] = (uint16_t)least_of(slots_of(n, n->late[s] + adjoint), SLOTS);
            n->pass[s] = seconds += (float)n->seconds[t - 1];
        }
    }
}

/* Seconds of its replay: where stages are as small as they can be, as far as its backward reads what is made. Of a
   stage of many nodes all count. */
static float all_seconds(const struct rw_nest *n, size_t i, size_t t)
{
    size_t end = t;
    while (n->finest && end > i && n->cut[end - 1] >= n->needed[stretch(n, i, t)]) end--;
    return end > i ? n->pass[stretch(n, i, end)] : 0;
}

/* One way through a stretch [i, t): pass to the cut j, keep what crosses it. */
struct way {
    size_t j, x, widest; /* x: slots that j takes; widest: slots of the pass to it */
    size_t there;        /* slots of what is there on all ways */
    size_t first;        /* with fewer slots it is none */
    float pass;          /* seconds */
    const float *left, *right; /* F of [i, j) and of [j, t) */
};

/* In front of the first one. */
static struct way no_way(const struct rw_nest *n, size_t i, size_t t)
{
    return (struct way){ .j = i, .there = n->finest ? slots_of(n, n->entering[t - 1]) : 0 };
}

/* The way by the next cut. False behind the last. */
static bool next_way(const struct rw_nest *n, size_t i, size_t t, struct way *w)
{
    const size_t j = ++w->j;
    if (j >= t) return false;
    const size_t before = j - 1 > i ? w->x : 0;
    w->x = n->wide[stretch(n, i, j)];
    w->widest = most_of(w->widest, most_of(w->x, before + n->wide[stretch(n, j - 1, j)]) + w->there);
    w->first = most_of(w->widest, most_of(n->least[stretch(n, i, j)], n->least[stretch(n, j, t)] + w->x));
    w->pass = n->pass[stretch(n, i, j)];
    w->left = n->inside + stretch(n, i, j) * SLOTS;
    w->right = n->inside + stretch(n, j, t) * SLOTS;
    return true;
}

/* best[m] = the less of it and base + left[m] + right[m - x]. Nothing but that, so that it is done by vectors: which
   cut was best is found on the way back. */
static void take_less(float *restrict best, float base, const float *left, const float *right, size_t x, size_t first,
                      size_t end)
{
    for (size_t m = first; m < end; m++) {
        const float c = base + left[m] + right[m - x];
        best[m] = c < best[m] ? c : best[m];
    }
}

static void solve_stretch(struct rw_nest *n, size_t i, size_t t)
{
    float *const best = n->inside + stretch(n, i, t) * SLOTS;
    const size_t at_once = n->kept[stretch(n, i, t)];
    const float seconds = all_seconds(n, i, t);
    size_t least = at_once;
    for (size_t m = 0; m < SLOTS; m++) best[m] = m >= at_once ? seconds : INFINITY;
    for (struct way w = no_way(n, i, t); next_way(n, i, t, &w); least = least_of(least, w.first))
        take_less(best, w.pass, w.left, w.right, w.x, w.first, at_once);
    n->least[stretch(n, i, t)] = (uint16_t)least;
}

/* What gave F(i, t, m), finite: the first of the best cuts, NO_CUT for all at once. */
static uint8_t inside_choice(const struct rw_nest *n, size_t i, size_t t, size_t m)
{
    const float best = n->inside[stretch(n, i, t) * SLOTS + m];
    if (m >= n->kept[stretch(n, i, t)]) return NO_CUT;
    struct way w = no_way(n, i, t);
    while (next_way(n, i, t, &w))
        if (m >= w.widest && w.pass + w.left[m] + w.right[m - w.x] == best) break;
    return (uint8_t)w.j;
}

static void solve_whole(struct rw_nest *n, size_t i)
{
    const size_t T = n->n_stages;
    const float *const last = n->inside + stretch(n, i, T) * SLOTS;
    float *const best = n->whole + i * SLOTS;
    const size_t kept = n->kept[stretch(n, i, T)];
    for (size_t m = 0; m < SLOTS; m++) best[m] = m >= kept ? 0 : last[m];
    for (size_t j = i + 1; j < T; j++) {
        const size_t x = n->wide[stretch(n, i, j)];
        take_less(best, 0, n->inside + stretch(n, i, j) * SLOTS, n->whole + j * SLOTS, x, x, kept);
    }
}

/* What gave G(i, m), finite: T for a segment to the end, else the first of the best cuts, NO_CUT for nothing dropped.
 */
static uint8_t whole_choice(const struct rw_nest *n, size_t i, size_t m)
{
    const size_t T = n->n_stages;
    const float best = n->whole[i * SLOTS + m];
    if (m >= n->kept[stretch(n, i, T)]) return NO_CUT;
    if (n->inside[stretch(n, i, T) * SLOTS + m] == best) return (uint8_t)T;
    for (size_t j = i + 1; j < T; j++) {
        const size_t x = n->wide[stretch(n, i, j)];
        if (m >= x && n->inside[stretch(n, i, j) * SLOTS + m] + n->whole[j * SLOTS + m - x] == best) return (uint8_t)j;
    }
    return (uint8_t)T;
}

/* With more than what this takes every cut is kept and every stage replayed once: no segment is inside another. */
static uint64_t most_bytes(const struct rw_nest *n)
{
    uint64_t all = 0, largest = 0;
    for (size_t i = 0; i < n->n_stages; i++) {
        if (i) all += n->crossing[stretch(n, i - 1, i)];
        const uint64_t bytes = n->late[stretch(n, i, i + 1)] + n->adjoint[i];
        if (bytes > largest) largest = bytes;
    }
    return all + largest;
}

static uint64_t divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Of all sizes: where it is no smaller than a slot must be, no size is rounded. */
static uint64_t common_divisor(const struct rw_nest *n)
{
    const size_t T = n->n_stages;
    uint64_t d = 0;
    for (size_t i = 0; i < T; i++) {
        d = divisor(divisor(d, n->adjoint[i]), n->entering[i]);
        for (size_t t = i + 1; t <= T; t++)
            d = divisor(divisor(d, n->late[stretch(n, i, t)]), n->crossing[stretch(n, i, t)]);
    }
    return d;
}

/* As large as it must be; a little larger, so that the widest of cuts is a whole number of slots and rounding costs
   nothing where cuts are equal. */
static uint64_t slot_for(const struct rw_nest *n)
{
    const uint64_t slot = most_bytes(n) / (SLOTS - 1) + 1;
    uint64_t widest = 0;
    for (size_t i = 1; i < n->n_stages; i++)
        if (n->crossing[stretch(n, i - 1, i)] > widest) widest = n->crossing[stretch(n, i - 1, i)];
    const uint64_t common = n->finest ? common_divisor(n) : 0;
    if (common >= slot) return common;
    return widest < slot ? slot : (widest + widest / slot - 1) / (widest / slot);
}

static void solve(struct rw_nest *n)
{
    n->slot = slot_for(n);
    count_slots(n);
    for (size_t length = 1; length <= n->n_stages; length++)
        for (size_t i = 0; i + length <= n->n_stages; i++) solve_stretch(n, i, i + length);
    for (size_t i = n->n_stages; i-- > 0;) solve_whole(n, i);
    for (uint32_t m = SLOTS; m-- > 0 && n->whole[m] < INFINITY;)
        if (!m || n->whole[m - 1] > n->whole[m]) n->recipe_slot[n->n_recipes++] = m;
}

rw_status rw_nest_init(struct rw_nest *n, const struct rw_replayable *g, const struct rw_schedule *none)
{
    const size_t T = STAGES_MOST, stretches = T * (T + 1);
    *n = (struct rw_nest){ .g = g,
                           .cut = rw_malloc((T + 1) * sizeof *n->cut),
                           .crossing = rw_calloc(stretches, sizeof *n->crossing),
                           .late = rw_calloc(stretches, sizeof *n->late),
                           .needed = rw_calloc(stretches, sizeof *n->needed),
                           .adjoint = rw_calloc(T, sizeof *n->adjoint),
                           .entering = rw_calloc(T, sizeof *n->entering),
                           .seconds = rw_calloc(T, sizeof *n->seconds),
                           .wide = rw_malloc(stretches * sizeof *n->wide),
                           .kept = rw_malloc(stretches * sizeof *n->kept),
                           .least = rw_malloc(stretches * sizeof *n->least),
                           .pass = rw_malloc(stretches * sizeof *n->pass),
                           .inside = rw_malloc(stretches * SLOTS * sizeof *n->inside),
                           .whole = rw_malloc(T * SLOTS * sizeof *n->whole),
                           .recipe_slot = rw_malloc(SLOTS * sizeof *n->recipe_slot) };
    const bool has_all = n->cut && n->crossing && n->late && n->needed && n->adjoint && n->entering && n->seconds &&
                         n->wide && n->kept && n->least && n->pass && n->inside && n->whole && n->recipe_slot;
    rw_status status = has_all ? RW_OK : RW_ERR_MEMORY;
    if (!status && g->n_nodes) status = find_stages(n, none);
    if (status) rw_nest_finish(n);
    else if (n->n_stages) solve(n);
    return status;
}

void rw_nest_finish(struct rw_nest *n)
{
    void *const arrays[] = { n->cut,  n->crossing, n->late,  n->needed, n->adjoint, n->entering, n->seconds,
                             n->wide, n->kept,     n->least, n->pass,   n->inside,  n->whole,    n->recipe_slot };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
    *n = (struct rw_nest){ 0 };
}

/* ---- the way back ---- */

struct builder {
    const struct rw_nest *n;
    struct rw_recipe *r;
    uint8_t stage_depth[STAGES_MOST];   /* what is made in a stage and crosses no cut */
    uint8_t cut_depth[STAGES_MOST + 1]; /* what crosses a cut; NO_CUT where none is */
};

/* Backward over the stages [i, t) with m slots, in the segment s of that depth. */
static rw_status build(struct builder *b, size_t i, size_t t, size_t m, uint32_t s, unsigned depth)
{
    const struct rw_nest *const n = b->n;
    for (;;) {
        const uint8_t j = inside_choice(n, i, t, m);
        if (j == NO_CUT) {
            memset(b->stage_depth + i, (int)depth, t - i);
            return RW_OK;
        }
        const uint32_t child = rw_recipe_add_stretch(b->r, (struct rw_stretch){ n->cut[i], n->cut[j], s });
        if (child == RW_NONE_ID) return RW_ERR_MEMORY;
        const rw_status status = build(b, i, j, m, child, depth + 1);
        if (status) return status;
        b->cut_depth[j] = (uint8_t)depth;
        m -= n->wide[stretch(n, i, j)];
        i = j;
    }
}

static rw_status build_whole(struct builder *b, size_t m)
{
    const struct rw_nest *const n = b->n;
    for (size_t i = 0; i < n->n_stages;) {
        const uint8_t j = whole_choice(n, i, m);
        if (j == NO_CUT) {
            memset(b->stage_depth + i, 0, n->n_stages - i);
            return RW_OK;
        }
        const struct rw_stretch outer = { n->cut[i], n->cut[j], RW_NONE_ID };
        const uint32_t s = rw_recipe_add_stretch(b->r, outer);
        if (s == RW_NONE_ID) return RW_ERR_MEMORY;
        const rw_status status = build(b, i, j, m, s, 1);
        if (status || j == n->n_stages) return status;
        b->cut_depth[j] = 0;
        m -= n->wide[stretch(n, i, j)];
        i = j;
    }
    return RW_OK;
}

/* A value belongs to the outermost of: the segment that made it, those that made the cuts which it crosses. */
static void set_drops(const struct builder *b)
{
    const struct rw_replayable *const g = b->n->g;
    for (size_t stage = 0, v = 0; v < g->n_values; v++) {
        while (b->n->cut[stage + 1] <= g->maker[v]) stage++;
        unsigned depth = b->stage_depth[stage];
        for (size_t j = stage + 1; j < b->n->n_stages && b->n->cut[j] <= g->last_read[v]; j++)
            if (b->cut_depth[j] < depth) depth = b->cut_depth[j];
        if (depth && rw_value_may_drop(g, (uint32_t)v)) b->r->drop[v] = (uint8_t)(RW_DROP_AT + depth - 1);
    }
}

rw_status rw_nest_recipe(const struct rw_nest *n, size_t i, struct rw_recipe *r)
{
    rw_status status = rw_recipe_init(r, n->g);
    if (status) return status;
    struct builder b = { .n = n, .r = r };
    memset(b.cut_depth, NO_CUT, sizeof b.cut_depth);
    status = build_whole(&b, n->recipe_slot[i]);
    if (status) rw_recipe_finish(r);
    else set_drops(&b);
    return status;
}
