/*
 * Segments for a chain: where forward is cut, and how replays nest when there is room for few of the cuts.
 *
 * Forward is cut where little is alive (narrow places), into stages 0 .. T. With m bytes, and what comes into stage i
 * there, backward over the stages [i, t) costs at least
 *
 *     F(i, t, m) = least of   all at once: one replay of [i, t), if what its backward reads fits into m
 *                             over j in (i, t): pass through [i, j), if that fits, and keep x[j], what crosses j;
 *                                               F(j, t, m - x[j]), and then F(i, j, m)
 *
 * and the step, whose first pass is forward itself,
 *
 *     G(i, m) = least of      nothing is dropped in [i, T), if it fits
 *                             over j: F(i, j, m) + G(j, m - x[j]), at the end without what is behind
 *
 *     step      |  [i, j)  |x[j]  |  [j, k)  |x[k]  |   kept   |     G: segments of the step, side by side
 *     segment        |[i, l)|x[l]|[l, j)|                            F: segments inside of it, one after the other
 *
 * for every m of a row of slots, sizes rounded up. The way back through the choices made at m is a tree of segments:
 * what crosses a cut belongs to the segment that made the cut, what is inside to the innermost one.
 *
 * Sources: Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26 (2000); Beaumont et al., "Optimal checkpointing
 * for heterogeneous chains", ACM TOMS 50 (2024), of which this is the case without options within a stage: those come
 * afterwards, from fill.h.
 */
#ifndef RW_REMAT_NEST_H
#define RW_REMAT_NEST_H

#include "remat/recipe.h"
#include "remat/schedule.h"

/* All zero is empty. */
struct rw_nest {
    const struct rw_replayable *g;
    size_t n_stages;
    bool finest;           /* there is a cut wherever there may be one */
    uint32_t *cut;         /* cut[i] is where stage i begins; n_stages + 1 of them */
    uint64_t *crossing;    /* by stretch: bytes made in it that forward reads behind it */
    uint64_t *late;        /* by stretch: bytes made in it that its own backward reads */
    uint32_t *needed;      /* by stretch: where the last node that makes such a value ends; 0: none */
    uint64_t *adjoint;     /* by stage: most bytes of gradients and workspaces in its backward */
    uint64_t *entering;    /* by stage: of gradients that are there when its backward begins */
    double *seconds;       /* by stage, of a replay */
    uint64_t slot;         /* bytes */
    /* By stretch, for the recurrences: slots that cross its end, that it takes when all of it is there, the least for
       which F is finite, each at most as many as there are; seconds of one replay. */
    uint16_t *wide, *kept, *least;
    float *pass;
    float *inside, *whole; /* F by stretch and slot, G by stage and slot */
    size_t n_recipes;
    uint32_t *recipe_slot; /* slots at which the step gets faster, from the most memory to the least */
};

/* none: the schedule that drops nothing, buffers merged. RW_ERR_MEMORY leaves *n empty. */
rw_status rw_nest_init(struct rw_nest *n, const struct rw_replayable *g, const struct rw_schedule *none);
void rw_nest_finish(struct rw_nest *n);

/* Recipe i of n_recipes. RW_ERR_MEMORY leaves *r empty. */
rw_status rw_nest_recipe(const struct rw_nest *n, size_t i, struct rw_recipe *r);

#endif
