/* Opens a step's problem and reads the planner's answers for it. */
#include "remat/planner_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

void open_problem(struct step *s, rw_tensor *loss)
{
    cr_assert_not_null(loss, "%s", rw_error_message(s->b.ctx));
    s->loss = loss->id;
    s->request = (struct rw_request){
        .kind = RW_PLAN_STEP, .values = &s->loss, .n_values = 1, .policy = &s->b.t->policy
    };
    cr_assert_eq(rw_problem_open(&s->problem, s->b.t, &s->request), RW_OK, "%s", rw_error_message(s->b.ctx));
}

void close_step(struct step *s)
{
    rw_problem_close(&s->problem);
    fixture_close(&s->b);
}

double planned_within(const struct rw_frontier *f, uint64_t bytes)
{
    for (size_t i = 0; i < f->n_points; i++)
        if (f->point[i].peak <= bytes) return f->point[i].seconds;
    return INFINITY;
}

size_t tapes(void)
{
    const char *const text = getenv("REWIND_OPTIMUM");
#ifdef __SANITIZE_ADDRESS__
    const size_t all = 40;
#else
    const size_t all = 1000;
#endif
    return text && *text ? strtoull(text, NULL, 10) : all;
}
