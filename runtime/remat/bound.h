/*
 * What no choice can beat: a lower bound on the seconds of replay, and of memory beyond the caches, within a number of
 * bytes.
 *
 * Stop the step while a node of backward runs. What that node reads of the recorded values is alive now; what later
 * ones read is, too, or is made again from now on, from what is alive now. Gradients in flight are alive anyway, and so
 * are the node's workspace and those of its results that it writes over nothing. So the seconds of replay to come are
 * at least
 *
 *     least   sum of seconds * q      where   sum of bytes * (p - q)  <=  bytes - what is alive anyway
 *
 * over the closures of closure.h. For any price l of a byte, least (seconds * q + l * kept) less l * (bytes - what is
 * alive anyway) is at most that (weak duality), so each cut gives a bound, whatever the price; the best price is looked
 * for. The same holds at every moment: the largest bound counts. Replays before the moment count for nothing, and
 * nothing is said of how the bytes are arranged between the moments; both only make the bound smaller.
 *
 * Where memory has a price itself (autodiff/costs.h), c seconds for a byte that comes from afar twice, a step with m
 * bytes alive at the moment, m <= bytes, pays c * (m - near) besides, whatever its order is (remat/caches.h): those
 * that caches don't hold have been pushed out before and come again behind. What the node makes and works with is not
 * among them, parameters and inputs that both sides read are. Less l * m that is least at m = bytes where l >= c, and
 * at m = near, or bytes if that is less, for lower prices.
 *
 * Source: Fisher, "The Lagrangian relaxation method for solving integer programming problems", Management Science 27
 * (1981).
 */
#ifndef RW_REMAT_BOUND_H
#define RW_REMAT_BOUND_H

#include "remat/replayable.h"
#include "remat/schedule.h"

/* none: the schedule that drops nothing, buffers merged. INFINITY when no choice is possible. RW_ERR_MEMORY. */
rw_status rw_bound_replay(const struct rw_replayable *graph, const struct rw_schedule *none, uint64_t bytes,
                          double *ret_seconds);

#endif
