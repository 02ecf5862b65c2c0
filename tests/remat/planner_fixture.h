/* A step, its problem, and the planner's answers for it. */
#ifndef RW_TESTS_REMAT_PLANNER_FIXTURE_H
#define RW_TESTS_REMAT_PLANNER_FIXTURE_H

#include "support/support.h"

#include "plan/build.h"
#include "remat/planner/frontier.h"

struct step {
    struct fixture b;
    uint32_t loss;
    struct rw_request request;
    struct rw_problem problem;
};

/* Opens its problem; the fixture is open. close_step() closes both. */
void open_problem(struct step *s, rw_tensor *loss);
void close_step(struct step *s);

/* Seconds of the fastest plan with at most that peak; INFINITY if there is none. */
double planned_within(const struct rw_frontier *f, uint64_t bytes);

/* Number of random tapes to test: REWIND_OPTIMUM, or 1000; 40 under AddressSanitizer. */
size_t tapes(void);

#endif
