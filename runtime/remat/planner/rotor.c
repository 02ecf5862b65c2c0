/*
 * The dynamic program of rotor.h: cuts forward into stages, fills the tables F and G, and walks back through them.
 * Sources: Revolve (Griewank and Walther, 2000) and Rotor (Beaumont et al., 2024), cited there.
 */
#include "remat/planner/rotor.h"

#include "base/alloc.h"
#include "base/round_up.h"

#include <math.h>
#include <string.h>

#define SLOTS 160
#define STAGES_MIN 32
#define STAGES_MAX 96
#define NODES_PER_STAGE 8 /* about a block: finer cuts gain little, and time grows as T * T * T / 6 * SLOTS */
#define NO_CUT UINT8_MAX

/* The index of a stretch of stages [i, t), 0 <= i < t <= T. */
static size_t stretch(const struct rw_rotor *n, size_t i, size_t t)
{
    return i * (n->n_stages + 1) + t;
}

/* ---- stages ---- */

/* Bytes of a value; 0 if it does not count. */
static uint64_t bytes_of(const struct rw_rotor *n, uint32_t v)
{
    return n->g->bytes[v] > n->speck ? n->g->bytes[v] : 0;
}

/* By place: bytes computed before it that forward reads at it or later. */
static void count_crossing(const struct rw_rotor *n, int64_t *crossing)
{
    const struct rw_replayable *const g = n->g;
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (!rw_value_may_drop(g, v)) continue;
        crossing[g->producer[v] + 1] += (int64_t)bytes_of(n, v);
        crossing[g->last_read[v] + 1] -= (int64_t)bytes_of(n, v);
    }
    for (size_t i = 1; i <= g->n_nodes; i++) crossing[i] += crossing[i - 1];
}

static uint64_t late_bytes(const struct rw_rotor *n, uint32_t place)
{
    const struct rw_replayable *const g = n->g;
    uint64_t bytes = 0;
    for (uint32_t v = g->output_at[place]; v < g->output_at[place + 1]; v++)
        if (g->late[v] && rw_value_may_drop(g, v)) bytes += bytes_of(n, v);
    return bytes;
}

static bool counts(const struct rw_rotor *n, uint32_t place)
{
    bool any = !n->speck;
    for (uint32_t v = n->g->output_at[place]; v < n->g->output_at[place + 1]; v++) any |= bytes_of(n, v) > 0;
    return any;
}

/* May a stage begin there? Neighboring nodes that do not count share a stage. */
static bool may_begin(const struct rw_rotor *n, uint32_t place)
{
    return rw_place_may_begin(n->g, place) && (counts(n, place) || counts(n, place - 1));
}

/* The number of possible stages. */
static size_t count_places(const struct rw_rotor *n)
{
    size_t places = 1;
    for (uint32_t i = 1; i < n->g->n_nodes; i++) places += may_begin(n, i);
    return places;
}

/* Cuts at every possible place, if there are no more of them than stages allowed. */
static void cut_everywhere(struct rw_rotor *n)
{
    n->cut[0] = 0;
    n->n_stages = 1;
    for (uint32_t i = 1; i < n->g->n_nodes; i++)
        if (may_begin(n, i)) n->cut[n->n_stages++] = i;
    n->cut[n->n_stages] = (uint32_t)n->g->n_nodes;
}

/* Cuts at the narrowest place of each of n windows. The windows hold equal parts of the bytes that backward reads. */
static void cut_at_narrow_places(struct rw_rotor *n, const int64_t *crossing, size_t n_stages)
{
    const struct rw_replayable *const g = n->g;
    double all = 0, before = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) all += (double)late_bytes(n, i) + 1;
    size_t window = 1;
    uint32_t narrowest = 0;
    n->cut[0] = 0;
    n->n_stages = 1;
    for (uint32_t i = 1; i < g->n_nodes; i++) {
        before += (double)late_bytes(n, i - 1) + 1;
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

/* The place of the recorded node that a node of backward differentiates, RW_NONE_ID for none. */
static uint32_t place_of(const struct rw_replayable *g, uint32_t node)
{
    const rw_tape *const t = g->p->t;
    while (node != RW_NONE_ID && t->nodes[node].adjoint) node = t->nodes[node].of;
    return node == RW_NONE_ID ? RW_NONE_ID : g->place_of[node];
}

static size_t stage_of(const struct rw_rotor *n, uint32_t place)
{
    size_t i = 0;
    while (i + 1 < n->n_stages && n->cut[i + 1] <= place) i++;
    return i;
}

/* Counts gradients and workspaces in the backward of each stage, on the schedule that drops nothing. */
static rw_status count_adjoints(struct rw_rotor *n, const struct rw_schedule *s)
{
    const uint64_t alignment = n->g->p->t->ctx->device->alignment;
    int64_t *const begun = rw_calloc(2 * (s->n_actions + 1), sizeof *begun);
    if (!begun) return RW_ERR_MEMORY;
    int64_t *const ended = begun + s->n_actions + 1;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i) || b->first < s->n_forward || b->bytes <= n->speck) continue;
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
 * Counts late bytes and needed nodes of all stretches. A value counts for a stretch if it is computed in it and its
 * last reader differentiates a node in it: values that only later stages read are dead by then. The values are first
 * added to the smallest stretch with both ends, and then summed by inclusion and exclusion.
 */
static void count_late(struct rw_rotor *n)
{
    const struct rw_replayable *const g = n->g;
    const size_t T = n->n_stages;
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (!g->late[v] || !rw_value_may_drop(g, v)) continue;
        const uint32_t reader = place_of(g, g->p->order[g->late[v]]);
        const size_t i = stage_of(n, g->producer[v]), last = reader == RW_NONE_ID ? i : stage_of(n, reader);
        const size_t of = stretch(n, i, (last < i ? i : last) + 1);
        n->late[of] += bytes_of(n, v);
        if (n->needed[of] <= g->producer[v]) n->needed[of] = g->producer[v] + 1;
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

/* Counts the bytes that cross cut t and were computed from stage i on. A skip over many stages counts once: the values
   that enter stage i are already held. */
static void count_stretches(struct rw_rotor *n)
{
    const struct rw_replayable *const g = n->g;
    const size_t T = n->n_stages;
    for (uint32_t v = 0; v < g->n_values; v++) {
        const size_t i = stage_of(n, g->producer[v]);
        for (size_t t = i + 1; rw_value_may_drop(g, v) && t < T && n->cut[t] <= g->last_read[v]; t++)
            n->crossing[stretch(n, i, t)] += bytes_of(n, v);
    }
    for (size_t i = T; i-- > 0;)
        for (size_t t = i + 2; t < T; t++) n->crossing[stretch(n, i, t)] += n->crossing[stretch(n, i + 1, t)];
}

/* Cuts forward into stages and counts their bytes and seconds. */
static rw_status find_stages(struct rw_rotor *n, const struct rw_schedule *none)
{
    const struct rw_replayable *const g = n->g;
    size_t most = g->n_nodes / NODES_PER_STAGE;
    if (most > STAGES_MAX) most = STAGES_MAX;
    if (most < STAGES_MIN) most = STAGES_MIN;
    if (most < g->n_nodes && most < count_places(n)) {
        n->speck = 0; /* windows of bytes exclude them anyway */
        int64_t *const crossing = rw_calloc(g->n_nodes + 2, sizeof *crossing);
        if (!crossing) return RW_ERR_MEMORY;
        count_crossing(n, crossing);
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

static size_t slots_of(const struct rw_rotor *n, uint64_t bytes)
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

/* Slots of a stretch: the bytes that its backward reads of it, and the gradients and workspaces. */
static void count_slots(struct rw_rotor *n)
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

/* Seconds of a stretch's replay. If stages are single nodes, it ends with the last node whose value its backward reads.
   Stages of many nodes all count. */
static float all_seconds(const struct rw_rotor *n, size_t i, size_t t)
{
    size_t end = t;
    while (n->finest && end > i && n->cut[end - 1] >= n->needed[stretch(n, i, t)]) end--;
    return end > i ? n->pass[stretch(n, i, end)] : 0;
}

/* One way to handle a stretch [i, t): replay up to cut j, keep the values that cross it. */
struct way {
    size_t j, x, widest; /* x: slots that cut j takes; widest: slots of the replay up to it */
    size_t there;        /* slots of what is live for all ways */
    size_t first;        /* minimum number of slots for this way */
    float pass;          /* seconds */
    const float *left, *right; /* F of [i, j) and of [j, t) */
};

/* The state before the first way. */
static struct way no_way(const struct rw_rotor *n, size_t i, size_t t)
{
    return (struct way){ .j = i, .there = n->finest ? slots_of(n, n->entering[t - 1]) : 0 };
}

/* Advances to the way with the next cut. False after the last. */
static bool next_way(const struct rw_rotor *n, size_t i, size_t t, struct way *w)
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

/* best[m] = minimum of it and base + left[m] + right[m - x]. The loop does nothing else, so that the compiler
   vectorizes it; the walk back finds which cut was best. */
static void take_less(float *restrict best, float base, const float *left, const float *right, size_t x, size_t first,
                      size_t end)
{
    for (size_t m = first; m < end; m++) {
        const float c = base + left[m] + right[m - x];
        best[m] = c < best[m] ? c : best[m];
    }
}

/* F of one stretch, for all slots. From `at_once` slots on, one replay at once is always best. */
static void solve_stretch(struct rw_rotor *n, size_t i, size_t t)
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

/* The choice that gave a finite F(i, t, m): the first of the best cuts, or NO_CUT for a replay at once. */
static uint8_t inside_choice(const struct rw_rotor *n, size_t i, size_t t, size_t m)
{
    const float best = n->inside[stretch(n, i, t) * SLOTS + m];
    if (m >= n->kept[stretch(n, i, t)]) return NO_CUT;
    struct way w = no_way(n, i, t);
    while (next_way(n, i, t, &w))
        if (m >= w.widest && w.pass + w.left[m] + w.right[m - w.x] == best) break;
    return (uint8_t)w.j;
}

/* G from stage i on, for all slots. */
static void solve_whole(struct rw_rotor *n, size_t i)
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

/* The choice that gave a finite G(i, m): T for a segment to the end, NO_CUT if nothing is dropped, or the first of the
   best cuts. */
static uint8_t whole_choice(const struct rw_rotor *n, size_t i, size_t m)
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

/*
 * An upper limit of useful bytes: with more, every cut is kept and every stage is replayed once, so segments do not
 * nest.
 */
static uint64_t most_bytes(const struct rw_rotor *n)
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

/* Greatest common divisor of all sizes. If it is at least the minimum slot, no size has to be rounded. */
static uint64_t common_divisor(const struct rw_rotor *n)
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

/* The bytes of a slot: the minimum with which SLOTS slots reach most_bytes(). It is slightly larger where that makes
   the widest cut a whole number of slots, so that equal cuts are not rounded up. */
static uint64_t slot_for(const struct rw_rotor *n)
{
    const uint64_t slot = most_bytes(n) / (SLOTS - 1) + 1;
    uint64_t widest = 0;
    for (size_t i = 1; i < n->n_stages; i++)
        if (n->crossing[stretch(n, i - 1, i)] > widest) widest = n->crossing[stretch(n, i - 1, i)];
    const uint64_t common = n->finest ? common_divisor(n) : 0;
    if (common >= slot) return common;
    return widest < slot ? slot : (widest + widest / slot - 1) / (widest / slot);
}

static void solve(struct rw_rotor *n)
{
    n->slot = slot_for(n);
    count_slots(n);
    for (size_t length = 1; length <= n->n_stages; length++)
        for (size_t i = 0; i + length <= n->n_stages; i++) solve_stretch(n, i, i + length);
    for (size_t i = n->n_stages; i-- > 0;) solve_whole(n, i);
    for (uint32_t m = SLOTS; m-- > 0 && n->whole[m] < INFINITY;)
        if (!m || n->whole[m - 1] > n->whole[m]) n->choice_slot[n->n_choices++] = m;
}

/* Allocates the tables, cuts forward into stages and solves. */
rw_status rw_rotor_init(struct rw_rotor *n, const struct rw_replayable *g, const struct rw_schedule *none,
                        uint64_t speck)
{
    const size_t T = STAGES_MAX, stretches = T * (T + 1);
    *n = (struct rw_rotor){ .g = g, .speck = speck,
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
                            .choice_slot = rw_malloc(SLOTS * sizeof *n->choice_slot) };
    const bool has_all = n->cut && n->crossing && n->late && n->needed && n->adjoint && n->entering && n->seconds &&
                         n->wide && n->kept && n->least && n->pass && n->inside && n->whole && n->choice_slot;
    rw_status status = has_all ? RW_OK : RW_ERR_MEMORY;
    if (!status && g->n_nodes) status = find_stages(n, none);
    if (status) rw_rotor_finish(n);
    else if (n->n_stages) solve(n);
    return status;
}

void rw_rotor_finish(struct rw_rotor *n)
{
    void *const arrays[] = { n->cut,  n->crossing, n->late,  n->needed, n->adjoint, n->entering, n->seconds,
                             n->wide, n->kept,     n->least, n->pass,   n->inside,  n->whole,    n->choice_slot };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
    *n = (struct rw_rotor){ 0 };
}

/* ---- walking back ---- */

struct builder {
    const struct rw_rotor *n;
    struct rw_compact_choice *r;
    uint8_t stage_depth[STAGES_MAX];   /* of values computed in a stage that cross no cut */
    uint8_t cut_depth[STAGES_MAX + 1]; /* of values that cross a cut; NO_CUT if there is none */
};

/* Builds backward over the stages [i, t) with m slots, inside of segment s, which has that depth. */
static rw_status build(struct builder *b, size_t i, size_t t, size_t m, uint32_t s, unsigned depth)
{
    const struct rw_rotor *const n = b->n;
    for (;;) {
        const uint8_t j = inside_choice(n, i, t, m);
        if (j == NO_CUT) {
            memset(b->stage_depth + i, (int)depth, t - i);
            return RW_OK;
        }
        const uint32_t child = rw_compact_choice_add_stretch(b->r, (struct rw_stretch){ n->cut[i], n->cut[j], s });
        if (child == RW_NONE_ID) return RW_ERR_MEMORY;
        const rw_status status = build(b, i, j, m, child, depth + 1);
        if (status) return status;
        b->cut_depth[j] = (uint8_t)depth;
        m -= n->wide[stretch(n, i, j)];
        i = j;
    }
}

/* Builds the segments of the step, side by side, with m slots. */
static rw_status build_whole(struct builder *b, size_t m)
{
    const struct rw_rotor *const n = b->n;
    for (size_t i = 0; i < n->n_stages;) {
        const uint8_t j = whole_choice(n, i, m);
        if (j == NO_CUT) {
            memset(b->stage_depth + i, 0, n->n_stages - i);
            return RW_OK;
        }
        const struct rw_stretch outer = { n->cut[i], n->cut[j], RW_NONE_ID };
        const uint32_t s = rw_compact_choice_add_stretch(b->r, outer);
        if (s == RW_NONE_ID) return RW_ERR_MEMORY;
        const rw_status status = build(b, i, j, m, s, 1);
        if (status || j == n->n_stages) return status;
        b->cut_depth[j] = 0;
        m -= n->wide[stretch(n, i, j)];
        i = j;
    }
    return RW_OK;
}

/*
 * A value belongs to the outermost of two kinds of segments: the one in which it is computed, and those that made the
 * cuts that it crosses.
 */
static void set_drops(const struct builder *b)
{
    const struct rw_replayable *const g = b->n->g;
    for (size_t stage = 0, v = 0; v < g->n_values; v++) {
        while (b->n->cut[stage + 1] <= g->producer[v]) stage++;
        unsigned depth = b->stage_depth[stage];
        for (size_t j = stage + 1; j < b->n->n_stages && b->n->cut[j] <= g->last_read[v]; j++)
            if (b->cut_depth[j] < depth) depth = b->cut_depth[j];
        if (depth && rw_value_may_drop(g, (uint32_t)v)) b->r->drop[v] = (uint8_t)(RW_DROP_AT + depth - 1);
    }
}

rw_status rw_rotor_choice(const struct rw_rotor *n, size_t i, struct rw_compact_choice *r)
{
    rw_status status = rw_compact_choice_init(r, n->g);
    if (status) return status;
    struct builder b = { .n = n, .r = r };
    memset(b.cut_depth, NO_CUT, sizeof b.cut_depth);
    status = build_whole(&b, n->choice_slot[i]);
    if (status) rw_compact_choice_finish(r);
    else set_drops(&b);
    return status;
}
