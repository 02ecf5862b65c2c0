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

/* Up to so many times the least distance they are near: another cache is six times as far as the same. */
#define CORES_NEAR 3

/* Whether they are near now, by the least that this process has seen. */
bool cores_are_near(void);

/* Waits for that, so many seconds at most: whether they are. */
bool cores_await(double seconds);

#endif
