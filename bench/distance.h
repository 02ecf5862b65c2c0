/*
 * How far apart the cores are that a step runs on. A virtual machine's come and go between the caches of its host: the
 * same step is slower for a while, and slower still is one that writes again and again to memory that another core has
 * read, as recompute does. What is timed side by side should have had the cores equally far apart.
 */
#ifndef REWIND_BENCH_DISTANCE_H
#define REWIND_BENCH_DISTANCE_H

#include <stdbool.h>

/*
 * Microseconds that all threads take together to write 2 MB, each what another one has just read: the median of
 * several. On an EPYC of family 25 with two cores 50 where both have one last cache, 300 where they have not. 0 of a
 * single thread.
 */
double cores_distance(void);

/* Whether they are near now: up to three times the least that this process has seen. */
bool cores_are_near(void);

/* Waits for that, so many seconds at most: whether they are. The first call, up to a minute, until they have been. */
bool cores_await(double seconds);

#endif
