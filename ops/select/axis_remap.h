/*
 * Moves elements along one axis to other places, by a rule or by a list of places: flips, rolls, paddings that copy
 * elements, rows by index. The gradient sums the places to which an element was copied, in their order. Shared by the
 * definitions and the kernels. C11 and C++17.
 */
#ifndef RW_OPS_AXIS_REMAP_H
#define RW_OPS_AXIS_REMAP_H

#include "base/host_device.h"

#include <rewind/op.h>

enum rw_remap_mode {
    RW_REMAP_FLIP,
    RW_REMAP_ROLL,
    RW_REMAP_REFLECT,
    RW_REMAP_REPLICATE,
    RW_REMAP_CIRCULAR,
    RW_REMAP_WINDOWS /* only for the sum: from [outer, to, inner, size] */
};

/* An axis of `from` elements becomes one of `to`: its element `before` is element 0. */
struct rw_remap_attrs {
    int64_t mode, axis, from, to, before;
    int64_t size, step; /* for windows */
};

/*
 * A rule is a few runs of places, in order: places [to, to + n) of the result, where place k of the run comes from
 * element `from` + k slope. A flip has one run, a roll two, a pad three:
 *
 *     reflect, 2 before     c b | a b c d | c        places
 *                           -1  |    1    | -1       slopes; 0: the first or the last element, repeatedly
 *
 * So an element is copied to at most one place of a run or, if the slope is 0, to all.
 */
struct rw_remap_run {
    int64_t to, n, from, slope;
};

#define RW_REMAP_RUNS 3 /* some may be empty */

struct rw_remap_runs {
    struct rw_remap_run run[RW_REMAP_RUNS];
};

static inline struct rw_remap_run rw_remap_run_of(int64_t to, int64_t n, int64_t from, int64_t slope)
{
    struct rw_remap_run r;
    r.to = to;
    r.n = n;
    r.from = from;
    r.slope = slope;
    return r;
}

/* A rule of windows has none. */
static inline struct rw_remap_runs rw_remap_runs_of(const struct rw_remap_attrs *a)
{
    const int64_t n = a->from, before = a->before, after = a->to - before - n;
    const struct rw_remap_run none = rw_remap_run_of(a->to, 0, 0, 1);
    const struct rw_remap_run own = rw_remap_run_of(before, n, 0, 1);
    struct rw_remap_runs r = { { none, own, none } };
    switch (a->mode) {
    case RW_REMAP_FLIP: r.run[1] = rw_remap_run_of(0, n, n - 1, -1); break;
    case RW_REMAP_ROLL:
        r.run[0] = rw_remap_run_of(0, before, n - before, 1);
        r.run[1] = rw_remap_run_of(before, n - before, 0, 1);
        break;
    case RW_REMAP_REFLECT:
        r.run[0] = rw_remap_run_of(0, before, before, -1);
        r.run[2] = rw_remap_run_of(before + n, after, n - 2, -1);
        break;
    case RW_REMAP_REPLICATE:
        r.run[0] = rw_remap_run_of(0, before, 0, 0);
        r.run[2] = rw_remap_run_of(before + n, after, n - 1, 0);
        break;
    case RW_REMAP_CIRCULAR:
        r.run[0] = rw_remap_run_of(0, before, n - before, 1);
        r.run[2] = rw_remap_run_of(before + n, after, 0, 1);
        break;
    default: r.run[1] = none;
    }
    return r;
}

/* Window j covers elements [j step, j step + size): the windows over element i. */
struct rw_remap_windows {
    int64_t from, to;
};

RW_HOST_DEVICE struct rw_remap_windows rw_remap_over(const struct rw_remap_attrs *a, int64_t i)
{
    struct rw_remap_windows w;
    const int64_t end = i / a->step + 1;
    w.from = i < a->size ? 0 : (i - a->size) / a->step + 1;
    w.to = end < a->to ? end : a->to;
    return w;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Records the sums of the places to which each element was copied. */
rw_tensor *rw_remap_back(rw_tape *t, rw_tensor *dy, const struct rw_remap_attrs *a);

#ifdef __cplusplus
}
#endif

#endif
