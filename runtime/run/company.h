/*
 * Whether nodes of little work run in all threads or in one: in whichever has lately been faster.
 *
 * Threads meet at the end of each node. On idle cores that takes a microsecond; where another program has one of them,
 * all wait until the scheduler lets the last one run, some milliseconds later, at each node. So the times that nodes of
 * little work take together and alone are compared, over whole runs:
 *
 *     together --- alone was never tried, or was clearly faster ---------> alone
 *     alone    --- slower than together was -----------------------------> together
 *     alone    --- faster for a while, each time a longer one -----------> together, to see what that takes now
 *
 * Results do not depend on threads, and nothing else does on this. Each plan is compared with itself: a unit of another
 * one's work takes another time. A plan that has not run before begins as the one that ran last.
 */
#ifndef RW_RUN_COMPANY_H
#define RW_RUN_COMPANY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rw_company {
    uint64_t plan, asked;   /* its serial; when it last ran, counted in runs, 0: of no plan */
    bool alone;             /* nodes of little work run in one thread */
    double seconds, work;   /* that they took since they run so, and in units of RW_LITTLE_S */
    double together, apart; /* seconds a unit, when last tried in all threads and in one; 0: not yet */
    size_t patience, left;  /* runs until all threads are tried again, in all and still */
};

/* Of the plans that ran last. More that take turns begin anew each time. */
#define RW_COMPANIES 64

struct rw_companies {
    struct rw_company of[RW_COMPANIES];
    uint64_t asked;
};

/* That of a plan that is about to run, by its serial. */
struct rw_company *rw_company_of(struct rw_companies *all, uint64_t plan);

/* A node of so many units has taken so long. */
void rw_company_note(struct rw_company *c, unsigned little, double seconds);

/* A run has ended: how nodes run from now on. */
void rw_company_judge(struct rw_company *c);

#endif
