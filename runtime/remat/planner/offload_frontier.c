/*
 * Frontier points with a part of what is kept offloaded. The first 1, 2, ... 16 sixteenths of every point could be
 * offloaded, but simulating all of these would take too long. So a coarse grid is tried first. Then, in ever finer
 * steps, the neighbors of those are tried that no other point beats by more than a small margin: a point that is almost
 * as good as another with one half offloaded may be the best of all with five eighths.
 *
 *     sixteenths  16  x . . . x . . . x        x  the coarse grid
 *                  8  . . o . . . . . .        o  next to a good one, half a step away
 *                  4  x . B o x . . . x        B  is one
 *                     points, the fastest first
 *
 * The order of trials depends on tape and costs only, as for all candidates.
 */
#include "remat/planner/frontier.h"

#include "base/alloc.h"
#include "remat/planner/offload_min_cut.h"
#include "remat/planner/local_search.h"

#include <stdlib.h>

/* Number of trials: a total number of simulated actions, but at least TRIED_MIN candidates. The coarse grid may use a
   third of them. */
#define ACTIONS_IN_ALL 360000
#define TRIED_MIN 128
#define TRIED_MAX 768
#define COARSE_PARTS 4
#define HAIR (1.0 / 512)

struct grid {
    struct rw_frontier *f;
    size_t first;                    /* offloading candidates start here */
    uint32_t *at;                    /* by candidate, counted from `first`: its point */
    bool *tried;                     /* by point and part */
    struct rw_frontier_entry *base;  /* points of which parts are offloaded */
    struct rw_frontier_entry *point; /* all points, for sorting */
    struct rw_frontier_entry *good;  /* those whose neighbors are tried */
    size_t n, left;                  /* number of bases; remaining number of trials */
};

static rw_status try_one(struct grid *g, size_t point, int part)
{
    struct rw_candidates *const c = &g->f->candidates;
    if (point >= g->n || part < 1 || part > RW_MOVED_PARTS || !g->left) return RW_OK;
    bool *const tried = &g->tried[point * RW_MOVED_PARTS + (size_t)part - 1];
    if (*tried) return RW_OK;
    *tried = true;
    g->left--;
    g->at[c->n - g->first] = (uint32_t)point;
    return rw_candidates_add_moved(c, g->base[point].candidate, (uint8_t)part);
}

static rw_status try_coarsely(struct grid *g, size_t stride)
{
    rw_status status = RW_OK;
    for (size_t point = 0; !status && point < g->n; point += stride)
        for (int part = COARSE_PARTS; !status && part <= RW_MOVED_PARTS; part += COARSE_PARTS)
            status = try_one(g, point, part);
    return status ? status : rw_candidates_simulate(&g->f->candidates);
}

/* Lists the offloading candidates that no smaller point beats by more than HAIR, among all trials and earlier
   points. */
static size_t list_good(struct grid *g)
{
    const struct rw_candidates *const c = &g->f->candidates;
    size_t n = 0, faster = 0, good = 0;
    for (size_t i = 0; i < g->f->n_points; i++) g->point[n++] = g->f->point[i];
    for (size_t i = g->first; i < c->n; i++) g->point[n++] = rw_frontier_point_of(c, (uint32_t)i);
    qsort(g->point, n, sizeof *g->point, rw_frontier_faster_first);
    uint64_t least = UINT64_MAX; /* of those that are faster by more than that */
    for (size_t i = 0; i < n; i++) {
        const struct rw_frontier_entry x = g->point[i];
        for (; faster < i && g->point[faster].seconds * (1 + HAIR) <= x.seconds; faster++)
            if (g->point[faster].peak < least) least = g->point[faster].peak;
        if (x.peak < least && x.candidate >= g->first) g->good[good++] = x;
    }
    return good;
}

/* Tries the four neighbors of each good candidate, at a distance of `stride` points or `step` parts. */
static rw_status try_beside(struct grid *g, size_t stride, int step)
{
    const size_t n = list_good(g);
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) {
        const size_t point = g->at[g->good[i].candidate - g->first];
        const int part = g->f->candidates.candidate[g->good[i].candidate].part;
        status = try_one(g, point + stride, part);
        if (!status && point >= stride) status = try_one(g, point - stride, part);
        if (!status) status = try_one(g, point, part - step);
        if (!status) status = try_one(g, point, part + step);
    }
    return status ? status : rw_candidates_simulate(&g->f->candidates);
}

/* Merges the trials into the frontier. Earlier points stay; of the trials those stay that no other one beats. */
static rw_status merge(struct grid *g)
{
    struct rw_frontier *const f = g->f;
    const struct rw_candidates *const c = &f->candidates;
    size_t n = 0;
    rw_free(g->point);
    g->point = rw_malloc((f->n_points + c->n - g->first) * sizeof *g->point);
    if (!g->point) return RW_ERR_MEMORY;
    for (size_t i = 0; i < f->n_points; i++) g->point[n++] = f->point[i];
    for (size_t i = g->first; i < c->n; i++) g->point[n++] = rw_frontier_point_of(c, (uint32_t)i);
    qsort(g->point, n, sizeof *g->point, rw_frontier_faster_first);
    uint64_t least = UINT64_MAX;
    f->n_points = 0;
    for (size_t i = 0; i < n; i++) {
        const bool is_smaller = g->point[i].peak < least;
        if (is_smaller) least = g->point[i].peak;
        if (is_smaller || g->point[i].candidate < g->first) g->point[f->n_points++] = g->point[i];
    }
    rw_free(f->point);
    f->point = g->point;
    g->point = NULL;
    return RW_OK;
}

/* The coarse grid, then finer ones, down to single points and sixteenths. */
static rw_status try_all(struct grid *g)
{
    const size_t columns = g->left / 3 / (RW_MOVED_PARTS / COARSE_PARTS);
    size_t stride = 1;
    while (stride * columns < g->n) stride *= 2;
    rw_status status = try_coarsely(g, stride);
    for (int step = COARSE_PARTS; !status && (stride > 1 || step > 1);) {
        stride = stride > 1 ? stride / 2 : 1;
        step = step > 1 ? step / 2 : 1;
        status = try_beside(g, stride, step);
    }
    return status ? status : try_beside(g, 1, 1);
}

/*
 * A prefix cannot leave a value out. So on tapes that are not long a search changes single values. n: number of
 * simulations that such a tape allows.
 */
static rw_status search(struct rw_candidates *c, size_t n)
{
    if (c->length > RW_MEDIUM_TAPE) return RW_OK;
    const bool is_short = c->length <= RW_SHORT_TAPE || n > RW_NEIGHBOURS_MAX;
    return rw_local_search_moved(c, is_short ? RW_NEIGHBOURS_MAX : n);
}

/* Selects the points of which parts are offloaded. Leaves out those that are filled in another order, because the grid
   would be coarser for many similar points, and dominated ones, such as some named policies. */
static void list_bases(struct grid *g)
{
    const struct rw_candidates *const c = &g->f->candidates;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < g->f->n_points; i++) {
        const struct rw_frontier_entry *const x = &g->f->point[i];
        if (x->peak >= least) continue;
        least = x->peak;
        if (x->candidate < c->more || x->candidate >= c->end_more) g->base[g->n++] = *x;
    }
}

/* Tries the grid, then the local search, and merges both into the frontier. */
rw_status rw_frontier_add_moved(struct rw_frontier *f)
{
    const size_t n = ACTIONS_IN_ALL / (f->candidates.n_work + 1);
    const size_t most = n < TRIED_MIN ? TRIED_MIN : n > TRIED_MAX ? TRIED_MAX : n;
    struct grid g = { .f = f, .first = f->candidates.n, .left = most };
    g.at = rw_malloc(most * sizeof *g.at);
    g.tried = rw_calloc(f->n_points * RW_MOVED_PARTS, sizeof *g.tried);
    g.base = rw_malloc(f->n_points * sizeof *g.base);
    g.point = rw_malloc((f->n_points + most) * sizeof *g.point);
    g.good = rw_malloc(most * sizeof *g.good);
    rw_status status = g.at && g.tried && g.base && g.point && g.good ? RW_OK : RW_ERR_MEMORY;
    if (!status) list_bases(&g);
    if (!status) status = try_all(&g);
    if (!status) status = rw_propose_moved_cuts(&f->candidates, most / 2);
    if (!status) status = search(&f->candidates, n);
    if (!status) status = merge(&g);
    rw_free(g.at);
    rw_free(g.tried);
    rw_free(g.base);
    rw_free(g.point);
    rw_free(g.good);
    return status;
}
