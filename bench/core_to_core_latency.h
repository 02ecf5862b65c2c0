/*
 * Measures how far apart the cores are on which a step runs. A virtual machine's cores move between the caches of its
 * host: the same step is slower for a while, and most of all one that repeatedly writes to memory that another core has
 * read, as recompute does. Times are comparable only if the cores were equally far apart.
 */
#ifndef REWIND_BENCH_CORE_TO_CORE_LATENCY_H
#define REWIND_BENCH_CORE_TO_CORE_LATENCY_H

#include <stdbool.h>

/*
 * Microseconds in which all threads together write 2 MB, each the part that another one has just read: the median of
 * several. On an EPYC of family 25 with two cores 50 if both share the last-level cache, 300 if not. 0 for a single
 * thread.
 */
double cores_distance(void);

/* Whether they are near now: at most three times the minimum that this process has measured. */
bool cores_are_near(void);

/* Waits for that, at most so many seconds; returns whether they are. The first call waits, up to a minute, until they
   have been once. */
bool cores_await(double seconds);

#endif
