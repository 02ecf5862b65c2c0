/* See propose.h. */
#include "remat/propose.h"

#include "base/alloc.h"
#include "remat/closure.h"
#include "remat/fill.h"
#include "remat/nest.h"

#include <math.h>
#include <string.h>

struct proposer {
    struct rw_candidates *c;
    size_t n_try;
    struct rw_hull hull;
    struct rw_nest nest;
    size_t first_cut, first_nest; /* in the candidates; cut i is first_cut + i */
};

static rw_status add(struct proposer *m, rw_status status, struct rw_recipe r)
{
    return status ? status : rw_candidates_add(m->c, r);
}

/* ---- by name ---- */

rw_status rw_propose_none(struct rw_candidates *c)
{
    rw_status status = rw_candidates_add_named(c, (struct rw_policy){ .kind = RW_POLICY_NONE });
    if (!status) status = rw_candidates_simulate(c);
    c->n_actions = c->sims.room[0].schedule.n_actions;
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

/* Of a tape with a name for each of its layers the others are only tried as parts of what is cut and filled. */
#define NAMES_MOST 4

/* Each of a few regions alone, its output kept and dropped. */
static rw_status propose_regions(struct rw_candidates *c)
{
    const rw_tape *const t = c->graph.p->t;
    uint32_t name[NAMES_MOST];
    const size_t n = rw_tape_region_names(t, name, NAMES_MOST);
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

rw_status rw_propose_named(struct rw_candidates *c)
{
    const rw_tape *const t = c->graph.p->t;
    int64_t outermost = 0;
    for (size_t r = 0; r < t->n_regions; r++) outermost += t->regions[r].parent == RW_NONE_ID;
    if (!outermost) return RW_OK;
    rw_status status = rw_candidates_add_named(c, (struct rw_policy){ .kind = RW_POLICY_FULL });
    if (!status) status = propose_expensive_ops(c);
    /* uniform:1 is `full` where no region nests */
    for (int64_t k = t->n_regions == (size_t)outermost ? 2 : 1; !status && k <= outermost; k = next_count(k))
        status = rw_candidates_add_named(c, (struct rw_policy){ .kind = RW_POLICY_UNIFORM, .n = k });
    for (int64_t k = 1; !status && k < outermost; k = next_count(k))
        status = rw_candidates_add_named(c, (struct rw_policy){ .kind = RW_POLICY_BLOCK, .n = k });
    if (!status) status = propose_regions(c);
    return status ? status : rw_candidates_simulate(c);
}

/* ---- cuts and nests ---- */

static rw_status recipe_of_cut(const struct rw_replayable *g, const struct rw_cut *cut, struct rw_recipe *r)
{
    const rw_status status = rw_recipe_init(r, g);
    for (uint32_t v = 0; !status && v < g->n_values; v++)
        if (cut->replayed[g->maker[v]] && rw_value_may_drop(g, v)) r->drop[v] = RW_DROP_ONCE;
    return status;
}

static rw_status find_cuts(struct proposer *m)
{
    const struct rw_replayable *const g = &m->c->graph;
    struct rw_closure closure;
    uint8_t *const need = rw_malloc(g->n_values * sizeof *need);
    rw_status status = need ? rw_closure_init(&closure, g) : RW_ERR_MEMORY;
    if (!status) {
        for (size_t v = 0; v < g->n_values; v++) need[v] = g->late[v] ? RW_NEED_LATER : RW_NEED_NOT;
        status = rw_closure_hull(&closure, need, m->n_try / 4, &m->hull);
        rw_closure_finish(&closure);
    }
    rw_free(need);
    return status;
}

/* What is found of the whole, cuts and nests: neither asks for the other. */
static rw_status find_one(void *of, size_t i, struct rw_simulation *room)
{
    struct proposer *const m = of;
    if (i) return m->c->graph.n_nodes ? find_cuts(m) : RW_OK;
    return rw_nest_init(&m->nest, &m->c->graph, &m->c->sims.room[0].schedule);
}

static rw_status propose_cuts(struct proposer *m)
{
    rw_status status = RW_OK;
    m->first_cut = m->c->n;
    for (size_t i = 0; !status && i < m->hull.n; i++) {
        struct rw_recipe r = { 0 };
        status = recipe_of_cut(&m->c->graph, &m->hull.cut[i], &r);
        status = add(m, status, r);
    }
    return status;
}

/* Of more nests than may be tried, some that divide them evenly. */
static rw_status propose_nests(struct proposer *m)
{
    const size_t n = m->nest.n_recipes, most = m->n_try / 4 < n ? m->n_try / 4 : n;
    rw_status status = RW_OK;
    m->first_nest = m->c->n;
    for (size_t i = 0; !status && i < most; i++) {
        struct rw_recipe r = { 0 };
        status = rw_nest_recipe(&m->nest, n - 1 - i * n / most, &r);
        status = add(m, status, r);
    }
    return status;
}

/* ---- filled ---- */

struct filling {
    bool dearest_first; /* the order (fill.h) */
    double from;        /* of the bound: where the fastest candidate below it begins; less leaves more to fill */
    size_t end;         /* the candidates that it may begin from are those before this one */
    size_t n;           /* bounds */
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

/* The bounds are closer to each other where there is little: there a byte is dear. */
static uint64_t bound(uint64_t least, uint64_t most, size_t i, size_t n)
{
    const double x = (double)(i + 1) / (double)(n + 1);
    return least + (uint64_t)((double)(most - least) * x * sqrt(x));
}

static void rank(const struct proposer *m, const struct filling *x, size_t base, struct rw_fill *fill)
{
    const bool is_cut = base > m->first_cut && base < m->first_nest;
    const struct rw_recipe *const recipe = &m->c->candidate[base].recipe;
    if (x->dearest_first) rw_fill_rank_by_seconds(fill, recipe);
    else rw_fill_rank(fill, recipe, is_cut ? m->hull.cut[base - m->first_cut - 1].replayed : NULL);
}

/* Bounds that begin from the same candidate: it is simulated once for them. */
struct base {
    size_t candidate;
    size_t first, n; /* bounds, and what comes of them */
};

/* What is filled by all bases, each by a thread. */
struct filled {
    struct proposer *m;
    const struct filling *x;
    const uint64_t *bound;   /* by bound */
    struct rw_recipe *recipe; /* by bound; empty where it would be the one before again */
    struct base *base;
    size_t n_bases;
};

static rw_status fill_to(const struct filled *f, const struct base *b, struct rw_fill *fill, size_t i)
{
    const struct rw_candidates *const c = f->m->c;
    struct rw_recipe r;
    const rw_status status = rw_recipe_copy(&r, &c->candidate[b->candidate].recipe, &c->graph);
    if (status) return status;
    rw_fill_to(fill, f->bound[i], &r);
    size_t before = i;
    while (before > b->first && !f->recipe[before - 1].drop) before--;
    if (before > b->first && !memcmp(f->recipe[before - 1].drop, r.drop, c->graph.n_values * sizeof *r.drop))
        rw_recipe_finish(&r);
    else f->recipe[i] = r;
    return RW_OK;
}

static rw_status fill_base(void *of, size_t i, struct rw_simulation *room)
{
    const struct filled *const f = of;
    const struct base *const b = &f->base[i];
    struct rw_candidates *const c = f->m->c;
    struct rw_fill fill;
    rw_status status = rw_candidate_simulate(c, (uint32_t)b->candidate, room);
    if (!status) status = rw_fill_init(&fill, &c->graph, &room->schedule);
    if (status) return status;
    rank(f->m, f->x, b->candidate, &fill);
    for (size_t k = b->first; !status && k < b->first + b->n; k++) status = fill_to(f, b, &fill, k);
    rw_fill_finish(&fill);
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
        if (candidate < f->x->end) f->base[f->n_bases++] = (struct base){ candidate, i, k - i };
    }
}

/* In the order of bounds. Candidates own what they take. */
static rw_status add_filled(struct filled *f)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < f->x->n; i++) {
        if (!f->recipe[i].drop) continue;
        status = rw_candidates_add(f->m->c, f->recipe[i]);
        f->recipe[i] = (struct rw_recipe){ 0 };
    }
    return status ? status : rw_candidates_simulate(f->m->c);
}

static rw_status fill_each(struct proposer *m, const struct filling *x, const uint64_t *bounds)
{
    struct filled f = { .m = m, .x = x, .bound = bounds };
    f.recipe = rw_calloc(x->n, sizeof *f.recipe);
    f.base = rw_malloc(x->n * sizeof *f.base);
    rw_status status = f.recipe && f.base ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        list_bases(&f);
        status = rw_simulations_share(&m->c->sims, f.n_bases, m->c->n_actions, fill_base, &f);
        m->c->n_simulations += f.n_bases;
    }
    if (!status) status = add_filled(&f);
    for (size_t i = 0; f.recipe && i < x->n; i++) rw_recipe_finish(&f.recipe[i]);
    rw_free(f.recipe);
    rw_free(f.base);
    return status;
}

static rw_status propose_filled(struct proposer *m, const struct filling *x)
{
    const uint64_t none = m->c->candidate[0].peak;
    uint64_t *const bounds = rw_malloc(x->n * sizeof *bounds);
    if (!bounds) return RW_ERR_MEMORY;
    uint64_t least = none;
    for (size_t i = m->first_cut; i < x->end; i++)
        if (m->c->candidate[i].peak < least) least = m->c->candidate[i].peak;
    for (size_t i = 0; i < x->n; i++) bounds[i] = bound(least, none, i, x->n);
    const rw_status status = least < none ? fill_each(m, x, bounds) : RW_OK;
    rw_free(bounds);
    return status;
}

rw_status rw_propose_recipes(struct rw_candidates *c, size_t n_try, size_t n_more)
{
    struct proposer m = { .c = c, .n_try = n_try };
    rw_status status = rw_simulations_share(&c->sims, 2, c->n_actions, find_one, &m);
    if (!status) status = propose_cuts(&m);
    if (!status) status = propose_nests(&m);
    if (!status) status = rw_candidates_simulate(c);
    const struct filling by_cuts = { .from = 1, .end = c->n, .n = n_try / 2 };
    const struct filling by_seconds = { .dearest_first = true, .from = 0.75, .end = c->n, .n = n_more };
    if (!status) status = propose_filled(&m, &by_cuts);
    c->more = c->end_more = c->n;
    if (!status && n_more) status = propose_filled(&m, &by_seconds);
    c->end_more = c->n;
    rw_nest_finish(&m.nest);
    rw_hull_finish(&m.hull);
    return status;
}
