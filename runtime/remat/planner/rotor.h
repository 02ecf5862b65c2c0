/*
 * Nested checkpointing: segments for a chain, that is where forward is cut and how replays nest if few of the cuts fit
 * in memory.
 *
 * Forward is cut at narrow places, where few bytes are live, into stages 0 .. T. With m bytes, and the input of stage i
 * available, backward over the stages [i, t) costs at least
 *
 *     F(i, t, m) = minimum of  at once: one replay of [i, t), if what its backward reads fits into m
 *                              over j in (i, t): replay [i, j), if that fits, and keep x[j], the values that cross j;
 *                                                F(j, t, m - x[j]), and then F(i, j, m)
 *
 * and the step, whose first pass is forward itself,
 *
 *     G(i, m) = minimum of     nothing is dropped in [i, T), if it fits
 *                              over j: F(i, j, m) + G(j, m - x[j]), at the end without the second term
 *
 *     step      |  [i, j)  |x[j]  |  [j, k)  |x[k]  |   kept   |     G: segments of the step, side by side
 *     segment        |[i, l)|x[l]|[l, j)|                            F: segments inside of it, one after the other
 *
 * for every m in a table of slots, with sizes rounded up to slots. Walking back through the choices made at m gives a
 * tree of segments. A value that crosses a cut belongs to the segment that made the cut, any other value to the
 * innermost one.
 *
 * Sources: Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26 (2000); Beaumont et al., "Optimal checkpointing
 * for heterogeneous chains", ACM TOMS 50 (2024), whose algorithm is called Rotor. This is its case without options
 * inside of a stage; greedy_fill.h adds those later.
 */
#ifndef RW_REMAT_PLANNER_ROTOR_H
#define RW_REMAT_PLANNER_ROTOR_H

#include "remat/policy/compact_choice.h"
#include "remat/schedule/schedule.h"

/* All zero is empty. */
struct rw_rotor {
    const struct rw_replayable *g;
    uint64_t speck;        /* smaller or equal values, and nodes with no larger output, do not count */
    size_t n_stages;
    bool finest;           /* every possible cut is made, except between nodes that do not count */
    uint32_t *cut;         /* cut[i] is where stage i begins; n_stages + 1 of them */
    uint64_t *crossing;    /* by stretch: bytes computed in it that forward reads after it */
    uint64_t *late;        /* by stretch: bytes computed in it that its own backward reads */
    uint32_t *needed;      /* by stretch: end of the last node that computes such a value; 0: none */
    uint64_t *adjoint;     /* by stage: maximum bytes of gradients and workspaces in its backward */
    uint64_t *entering;    /* by stage: bytes of gradients that are live when its backward begins */
    double *seconds;       /* by stage, of a replay */
    uint64_t slot;         /* bytes */
    /* By stretch, for the recurrences: slots of the values that cross its end; slots it takes if all of it is live; the
       minimum for which F is finite; each at most the number of slots. Then the seconds of one replay. */
    uint16_t *wide, *kept, *least;
    float *pass;
    float *inside, *whole; /* F by stretch and slot, G by stage and slot */
    size_t n_choices;
    uint32_t *choice_slot; /* slots at which the step gets faster, from maximum to minimum memory */
};

/*
 * Fills the tables. none: the schedule that drops nothing, buffers merged. speck: 0 if all values count. RW_ERR_MEMORY
 * leaves *n empty.
 */
rw_status rw_rotor_init(struct rw_rotor *n, const struct rw_replayable *g, const struct rw_schedule *none,
                        uint64_t speck);
void rw_rotor_finish(struct rw_rotor *n);

/* Writes compact choice i of n_choices. RW_ERR_MEMORY leaves *r empty. */
rw_status rw_rotor_choice(const struct rw_rotor *n, size_t i, struct rw_compact_choice *r);

#endif
