/*
 * Chooses single-threaded or multi-threaded execution for small nodes, by recent timings.
 *
 * Threads meet at the end of each node. On idle cores that takes a microsecond. If another program has one of the
 * cores, all threads wait until the scheduler runs the last one, some milliseconds later, at every node. So the times
 * of small nodes with all threads and with one thread are compared, over whole runs:
 *
 *     all threads --- one thread was never tried, or was clearly faster ---> one thread
 *     one thread  --- slower than all threads were -------------------------> all threads
 *     one thread  --- faster for some runs, each time for more -------------> all threads, to measure them again
 *
 * Results do not depend on the number of threads, and nothing else depends on this choice. Each plan is compared with
 * itself, because times per unit of work differ between plans. A new plan starts with the choice of the plan that ran
 * last.
 */
#ifndef RW_RUN_SMALL_OP_THREADS_H
#define RW_RUN_SMALL_OP_THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rw_small_op_threads {
    uint64_t plan, last_run; /* its serial; count of runs at its last one, 0: unused entry */
    bool alone;              /* small nodes run in one thread */
    double seconds, work;    /* time of small nodes in the present mode, and their units of RW_LITTLE_S */
    double together, apart;  /* seconds per unit when last tried in all threads and in one; 0: not yet */
    size_t patience, left;   /* runs until all threads are tried again: in total, and remaining */
};

/* Number of plans with statistics, the most recent ones. If more plans alternate, each starts anew. */
#define RW_OP_THREAD_PLANS 64

struct rw_op_thread_table {
    struct rw_small_op_threads of[RW_OP_THREAD_PLANS];
    uint64_t last_run;
};

/* Statistics of a plan that is about to run, by its serial. */
struct rw_small_op_threads *rw_small_op_threads_of(struct rw_op_thread_table *all, uint64_t plan);

/* Adds the time of a node of so many units of work. */
void rw_small_op_threads_note(struct rw_small_op_threads *c, unsigned little, double seconds);

/* A run has ended: decides how small nodes run from now on. */
void rw_small_op_threads_judge(struct rw_small_op_threads *c);

#endif
