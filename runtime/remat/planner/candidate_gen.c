/*
 * Generates the candidates of a frontier: policies by name, minimum cuts, nested checkpointing, greedy fills, segments
 * by position, and descents. frontier.h lists them in order.
 */
#include "remat/planner/candidate_gen.h"

#include "base/alloc.h"
#include "remat/planner/min_cut.h"
#include "remat/planner/peak_descent.h"
#include "remat/planner/greedy_fill.h"
#include "remat/planner/rotor.h"

#include <math.h>
#include <string.h>

struct proposer {
    struct rw_candidates *c;
    size_t n_try;
    struct rw_hull hull;
    struct rw_rotor rotor;
    size_t first_cut, first_rotor; /* index of the first candidate of the kind; cut i is candidate first_cut + i */
};

static rw_status add(struct proposer *m, rw_status status, struct rw_compact_choice r)
{
    return status ? status : rw_candidates_add(m->c, r);
}

/* ---- policies by name ---- */

/* An action with so many operands is as much work as one with few. More count as further actions. */
#define OPERANDS_OF_WORK 8

rw_status rw_propose_none(struct rw_candidates *c)
{
    rw_status status = rw_candidates_add_named(c, (struct rw_policy){ .kind = RW_POLICY_NONE });
    if (!status) status = rw_candidates_simulate(c);
    const struct rw_schedule *const none = &c->sims.room[0].schedule;
    c->n_actions = none->n_actions;
    c->n_work = none->n_refs / OPERANDS_OF_WORK > c->n_actions ? none->n_refs / OPERANDS_OF_WORK : c->n_actions;
    return status;
}

static rw_status propose_expensive_ops(struct rw_candidates *c)
{
    static char linear[] = "linear", linear_add[] = "linear_add", linear_gelu[] = "linear_gelu", matmul[] = "matmul",
                attention[] = "attention";
    static char *names[] = { linear, linear_add, linear_gelu, matmul, attention };
    return rw_candidates_add_named(
        c, (struct rw_policy){ .kind = RW_POLICY_OPS, .names = names, .n_names = sizeof names / sizeof *names });
}

/* Names tried at most. If a tape has a name per layer, its other names are covered by cuts and fills. */
#define NAMES_MAX 4

/* Tries each of a few region names alone, with the region's output kept, and with it dropped. */
static rw_status propose_regions(struct rw_candidates *c)
{
    const rw_tape *const t = c->graph.p->t;
    uint32_t name[NAMES_MAX];
    const size_t n = rw_tape_region_names(t, name, NAMES_MAX);
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) {
        char **const text = &t->ctx->names.text[name[i]];
        struct rw_policy policy = { .kind = RW_POLICY_SELECTIVE, .names = text, .n_names = 1 };
        status = rw_candidates_add_named(c, policy);
        policy.discards = text;
        policy.n_discards = 1;
        if (!status) status = rw_candidates_add_named(c, policy);
    }
    return status;
}

/* 1, 2, 3, 4, 6, 9, 13, ... */
static int64_t next_count(int64_t k)
{
    return k + (k < 4 ? 1 : k / 2);
}

/* Adds `full`, expensive ops kept, uniform:k, block:k and single region names. */
rw_status rw_propose_named(struct rw_candidates *c)
{
    const rw_tape *const t = c->graph.p->t;
    int64_t outermost = 0;
    for (size_t r = 0; r < t->n_regions; r++) outermost += t->regions[r].parent == RW_NONE_ID;
    if (!outermost) return RW_OK;
    rw_status status = rw_candidates_add_named(c, (struct rw_policy){ .kind = RW_POLICY_FULL });
    if (!status) status = propose_expensive_ops(c);
    /* uniform:1 equals `full` if regions do not nest */
    for (int64_t k = t->n_regions == (size_t)outermost ? 2 : 1; !status && k <= outermost; k = next_count(k))
        status = rw_candidates_add_named(c, (struct rw_policy){ .kind = RW_POLICY_UNIFORM, .n = k });
    for (int64_t k = 1; !status && k < outermost; k = next_count(k))
        status = rw_candidates_add_named(c, (struct rw_policy){ .kind = RW_POLICY_BLOCK, .n = k });
    if (!status) status = propose_regions(c);
    return status ? status : rw_candidates_simulate(c);
}

/* ---- minimum cuts and nested checkpointing ---- */

static rw_status compact_of_cut(const struct rw_replayable *g, const struct rw_cut *cut, struct rw_compact_choice *r)
{
    const rw_status status = rw_compact_choice_init(r, g);
    for (uint32_t v = 0; !status && v < g->n_values; v++)
        if (cut->replayed[g->producer[v]] && rw_value_may_drop(g, v)) r->drop[v] = RW_DROP_ONCE;
    return status;
}

/* Finds the lower hull of cuts, with a quarter of the candidates. */
static rw_status find_cuts(struct proposer *m)
{
    const struct rw_replayable *const g = &m->c->graph;
    struct rw_min_cut closure;
    uint8_t *const need = rw_malloc(g->n_values * sizeof *need);
    rw_status status = need ? rw_min_cut_init(&closure, g) : RW_ERR_MEMORY;
    if (!status) {
        for (size_t v = 0; v < g->n_values; v++) need[v] = g->late[v] ? RW_NEED_LATER : RW_NEED_NOT;
        status = rw_min_cut_hull(&closure, need, m->n_try / 4, &m->hull);
        rw_min_cut_finish(&closure);
    }
    rw_free(need);
    return status;
}

/* Work of one thread: 0 is nested checkpointing, 1 the cuts. Neither needs the other. */
static rw_status find_one(void *of, size_t i, struct rw_simulation *room)
{
    struct proposer *const m = of;
    if (i) return m->c->graph.n_nodes ? find_cuts(m) : RW_OK;
    return rw_rotor_init(&m->rotor, &m->c->graph, &m->c->sims.room[0].schedule, rw_candidates_speck(m->c));
}

static rw_status propose_cuts(struct proposer *m)
{
    rw_status status = RW_OK;
    m->first_cut = m->c->n;
    for (size_t i = 0; !status && i < m->hull.n; i++) {
        struct rw_compact_choice r = { 0 };
        status = compact_of_cut(&m->c->graph, &m->hull.cut[i], &r);
        status = add(m, status, r);
    }
    return status;
}

/* Does backward differentiate a view, so that a visit could end there? */
static bool differentiates_views(const struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    for (size_t i = 0; i < p->n_order; i++) {
        const struct rw_node *const node = &t->nodes[p->order[i]];
        if (node->adjoint && node->of != RW_NONE_ID && (t->ctx->ops[t->nodes[node->of].op]->flags & RW_OP_VIEW))
            return true;
    }
    return false;
}

static rw_status propose_rotor(struct proposer *m, size_t rotor, bool ends_at_views)
{
    struct rw_compact_choice r = { 0 };
    const rw_status status = rw_rotor_choice(&m->rotor, rotor, &r);
    r.ends_at_views = ends_at_views;
    return add(m, status, r);
}

/* Adds nested compact choices, evenly selected if there are too many. The smaller half is also tried with shorter
   visits: more is recomputed, and less of it is live at a time. */
static rw_status propose_rotors(struct proposer *m)
{
    const bool views = differentiates_views(m->c->graph.p);
    const size_t n = m->rotor.n_choices, most = m->n_try / 4 < n ? m->n_try / 4 : n;
    rw_status status = RW_OK;
    m->first_rotor = m->c->n;
    for (size_t i = 0; !status && i < most; i++) {
        const size_t rotor = n - 1 - i * n / most;
        status = propose_rotor(m, rotor, false);
        if (!status && views && 2 * rotor >= n) status = propose_rotor(m, rotor, true);
    }
    return status;
}

/* ---- greedy fills ---- */

struct filling {
    bool dearest_first; /* the second order of greedy_fill.h */
    double from;        /* fraction of the limit below which the base is chosen; less leaves more to fill */
    size_t end;         /* candidates before this one can be bases */
    size_t but;         /* limits for which the candidates before this one have the same fastest are skipped; 0: none */
    uint64_t most;      /* the largest limit; 0: the peak of `none` */
    size_t n;           /* number of limits */
};

/* The fastest of the candidates [first_cut, end) with at most that peak; end for none. */
static size_t fastest_below(const struct proposer *m, size_t end, uint64_t most)
{
    const struct rw_candidate *const x = m->c->candidate;
    size_t best = end;
    for (size_t i = m->first_cut; i < end; i++)
        if (x[i].peak <= most && (best == end || x[i].seconds < x[best].seconds)) best = i;
    return best;
}

/* The limits are closer to each other at few bytes, because a byte is expensive there. */
static uint64_t bound(uint64_t least, uint64_t most, size_t i, size_t n)
{
    const double x = (double)(i + 1) / (double)(n + 1);
    return least + (uint64_t)((double)(most - least) * x * sqrt(x));
}

/* Sets the order of trials; a base that is a cut is compared with the next better cut. */
static void rank(const struct proposer *m, const struct filling *x, size_t base, struct rw_greedy_fill *fill)
{
    const bool is_cut = base > m->first_cut && base < m->first_rotor;
    const struct rw_compact_choice *const compact = &m->c->candidate[base].compact;
    if (x->dearest_first) rw_greedy_fill_rank_by_seconds(fill, compact);
    else rw_greedy_fill_rank(fill, compact, is_cut ? m->hull.cut[base - m->first_cut - 1].replayed : NULL);
}

/* Consecutive limits with the same base, which is simulated once for all of them. */
struct base {
    size_t candidate;
    size_t first, n; /* limits, and their results */
};

/* Fills of all bases, one base per thread. */
struct filled {
    struct proposer *m;
    const struct filling *x;
    const uint64_t *bound;   /* by index of the limit */
    struct rw_compact_choice *compact; /* by limit; empty if it equals the one before */
    struct base *base;
    size_t n_bases;
};

/* Fills a copy of the base up to limit i, and stores it unless it equals the last result of this base. */
static rw_status fill_to(const struct filled *f, const struct base *b, struct rw_greedy_fill *fill, size_t i)
{
    const struct rw_candidates *const c = f->m->c;
    struct rw_compact_choice r;
    const rw_status status = rw_compact_choice_copy(&r, &c->candidate[b->candidate].compact, &c->graph);
    if (status) return status;
    rw_greedy_fill_to(fill, f->bound[i], &r);
    size_t before = i;
    while (before > b->first && !f->compact[before - 1].drop) before--;
    if (before > b->first && !memcmp(f->compact[before - 1].drop, r.drop, c->graph.n_values * sizeof *r.drop))
        rw_compact_choice_finish(&r);
    else f->compact[i] = r;
    return RW_OK;
}

/* Simulates a base once, and fills it up to each of its limits. */
static rw_status fill_base(void *of, size_t i, struct rw_simulation *room)
{
    const struct filled *const f = of;
    const struct base *const b = &f->base[i];
    struct rw_candidates *const c = f->m->c;
    struct rw_greedy_fill fill;
    rw_status status = rw_candidate_simulate(c, (uint32_t)b->candidate, room);
    if (!status) status = rw_greedy_fill_init(&fill, &c->graph, &room->schedule);
    if (status) return status;
    rank(f->m, f->x, b->candidate, &fill);
    for (size_t k = b->first; !status && k < b->first + b->n; k++) status = fill_to(f, b, &fill, k);
    rw_greedy_fill_finish(&fill);
    return status;
}

static size_t base_of(const struct proposer *m, const struct filling *x, uint64_t bound)
{
    return fastest_below(m, x->end, (uint64_t)((double)bound * x->from));
}

static void list_bases(struct filled *f)
{
    for (size_t i = 0, k; i < f->x->n; i = k) {
        const size_t candidate = base_of(f->m, f->x, f->bound[i]);
        for (k = i + 1; k < f->x->n && base_of(f->m, f->x, f->bound[k]) == candidate;) k++;
        if (f->x->but && fastest_below(f->m, f->x->but, f->bound[i]) == candidate) continue;
        if (candidate < f->x->end) f->base[f->n_bases++] = (struct base){ candidate, i, k - i };
    }
}

/* Adds the results in the order of limits. The candidates take ownership. */
static rw_status add_filled(struct filled *f)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < f->x->n; i++) {
        if (!f->compact[i].drop) continue;
        status = rw_candidates_add(f->m->c, f->compact[i]);
        f->compact[i] = (struct rw_compact_choice){ 0 };
    }
    return status ? status : rw_candidates_simulate(f->m->c);
}

/* Groups limits by base, and lets the context's threads fill them. */
static rw_status fill_each(struct proposer *m, const struct filling *x, const uint64_t *bounds)
{
    struct filled f = { .m = m, .x = x, .bound = bounds };
    f.compact = rw_calloc(x->n, sizeof *f.compact);
    f.base = rw_malloc(x->n * sizeof *f.base);
    rw_status status = f.compact && f.base ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        list_bases(&f);
        status = rw_simulations_share(&m->c->sims, f.n_bases, m->c->n_actions, fill_base, &f);
        m->c->n_simulations += f.n_bases;
    }
    if (!status) status = add_filled(&f);
    for (size_t i = 0; f.compact && i < x->n; i++) rw_compact_choice_finish(&f.compact[i]);
    rw_free(f.compact);
    rw_free(f.base);
    return status;
}

/* Adds fills for a series of limits between the smallest base and `most`. */
static rw_status propose_filled(struct proposer *m, const struct filling *x)
{
    const uint64_t most = x->most ? x->most : m->c->candidate[0].peak;
    uint64_t *const bounds = rw_malloc(x->n * sizeof *bounds);
    if (!bounds) return RW_ERR_MEMORY;
    uint64_t least = most;
    for (size_t i = m->first_cut; i < x->end; i++)
        if (m->c->candidate[i].peak < least) least = m->c->candidate[i].peak;
    for (size_t i = 0; i < x->n; i++) bounds[i] = bound(least, most, i, x->n);
    const rw_status status = least < most ? fill_each(m, x, bounds) : RW_OK;
    rw_free(bounds);
    return status;
}

/* ---- segments by position ---- */

/* Minimum number of nodes. Shorter tapes have enough other candidates. */
#define STAGED_MIN 64
/* Nodes per stage, in the first of two divisions; in the second, stages per square root of the number of nodes. */
#define NODES_OF_A_STAGE 16
#define STAGES_OVER_ROOT 2
#define PREFIXES_MAX 32

/*
 * Cuts forward into that many stages of about equal bytes: cut[i] is where stage i begins. Returns the number of
 * stages.
 */
static size_t cut_evenly(const struct rw_replayable *g, size_t n_stages, uint32_t *cut)
{
    uint64_t all = 0, computed = 0;
    size_t n = 0;
    for (size_t v = 0; v < g->n_values; v++) all += g->bytes[v];
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        if (!i || (n < n_stages && rw_place_may_begin(g, i) && computed * n_stages >= all * n)) cut[n++] = i;
        for (uint32_t v = g->output_at[i]; v < g->output_at[i + 1]; v++) computed += g->bytes[v];
    }
    cut[n] = (uint32_t)g->n_nodes;
    return n;
}

/* Makes the first n stages segments: values that are not read outside of their stage are recomputed in its visit. */
static rw_status compact_of_prefix(const struct rw_replayable *g, const uint32_t *cut, size_t n,
                                   struct rw_compact_choice *r)
{
    rw_status status = rw_compact_choice_init(r, g);
    for (size_t k = 0; !status && k < n; k++) {
        const struct rw_stretch stretch = { cut[k], cut[k + 1], RW_NONE_ID };
        if (rw_compact_choice_add_stretch(r, stretch) == RW_NONE_ID) status = RW_ERR_MEMORY;
        for (uint32_t v = g->output_at[cut[k]]; v < g->output_at[cut[k + 1]]; v++)
            if (rw_value_may_drop(g, v) && g->last_read[v] < cut[k + 1]) r->drop[v] = RW_DROP_AT;
    }
    if (status) rw_compact_choice_finish(r);
    return status;
}

/* Adds compact choices whose first stages are segments, for up to PREFIXES_MAX lengths. */
static rw_status propose_prefixes(struct proposer *m, size_t n_stages)
{
    const struct rw_replayable *const g = &m->c->graph;
    uint32_t *const cut = rw_malloc((n_stages + 2) * sizeof *cut);
    if (!cut) return RW_ERR_MEMORY;
    rw_status status = RW_OK;
    const size_t stages = cut_evenly(g, n_stages, cut);
    size_t n = m->n_try / 4 < PREFIXES_MAX ? m->n_try / 4 : PREFIXES_MAX;
    if (n > stages) n = stages;
    for (size_t i = 1; !status && i <= n; i++) {
        struct rw_compact_choice r = { 0 };
        status = compact_of_prefix(g, cut, i * stages / n, &r);
        status = add(m, status, r);
    }
    rw_free(cut);
    return status;
}

/* Is a candidate from number n on not dominated by those before n? */
static bool any_is_of_use(const struct rw_candidates *c, size_t n)
{
    for (size_t i = n; i < c->n; i++) {
        bool beaten = false;
        for (size_t k = 0; k < n && !beaten; k++)
            beaten = c->candidate[k].peak <= c->candidate[i].peak && c->candidate[k].seconds <= c->candidate[i].seconds;
        if (!beaten) return true;
    }
    return false;
}

/* Candidates for long regular tapes. A price gives equal values equal fates, and every place is equally narrow, so cuts
   and nested checkpointing leave gaps between their bytes. */
static rw_status propose_by_position(struct proposer *m)
{
    struct rw_candidates *const c = m->c;
    const size_t nodes = c->graph.n_nodes, n = c->n;
    if (nodes < STAGED_MIN) return RW_OK;
    rw_status status = propose_prefixes(m, nodes / NODES_OF_A_STAGE);
    if (!status) status = propose_prefixes(m, (size_t)(STAGES_OVER_ROOT * sqrt((double)nodes)));
    if (!status) status = rw_candidates_simulate(c);
    const struct filling filling = { .from = 1, .end = c->n, .n = m->n_try / 2 };
    return !status && any_is_of_use(c, n) ? propose_filled(m, &filling) : status;
}

/* ---- descents ---- */

/*
 * Adds descents. If they are smaller than all candidates before, they are filled up to the smallest of those and one
 * eighth more.
 */
static rw_status propose_descents(struct proposer *m)
{
    struct rw_candidates *const c = m->c;
    uint64_t before = UINT64_MAX, after = UINT64_MAX;
    for (size_t i = 0; i < c->n; i++) before = c->candidate[i].peak < before ? c->candidate[i].peak : before;
    rw_status status = rw_propose_descents(c, RW_DESCENT_ACTIONS);
    for (size_t i = 0; i < c->n; i++) after = c->candidate[i].peak < after ? c->candidate[i].peak : after;
    if (status || after >= before) return status;
    const uint64_t none = c->candidate[0].peak, beyond = before + before / 8;
    const struct filling filling = { .from = 1, .end = c->n, .most = beyond < none ? beyond : none, .n = m->n_try / 4 };
    return propose_filled(m, &filling);
}

/* The order of calls is the order of candidates, and so part of the planner's results. */
rw_status rw_propose_compact_choices(struct rw_candidates *c, size_t n_try, size_t n_more)
{
    struct proposer m = { .c = c, .n_try = n_try };
    rw_status status = rw_simulations_share(&c->sims, 2, c->n_actions, find_one, &m);
    if (!status) status = propose_cuts(&m);
    if (!status) status = propose_rotors(&m);
    rw_rotor_finish(&m.rotor); /* its tables are large */
    if (!status) status = rw_candidates_simulate(c);
    const struct filling by_cuts = { .from = 1, .end = c->n, .n = n_try / 2 };
    const struct filling by_cuts_alone = { .from = 1, .end = m.first_rotor, .but = c->n, .n = n_try / 2 };
    const struct filling by_seconds = { .dearest_first = true, .from = 0.75, .end = c->n, .n = n_more };
    if (!status) status = propose_filled(&m, &by_cuts);
    if (!status) status = propose_filled(&m, &by_cuts_alone);
    c->more = c->end_more = c->n;
    if (!status && n_more) status = propose_filled(&m, &by_seconds);
    c->end_more = c->n;
    if (!status) status = propose_by_position(&m);
    if (!status && !rw_candidates_are_of_short_tape(c)) status = propose_descents(&m);
    rw_hull_finish(&m.hull);
    return status;
}
