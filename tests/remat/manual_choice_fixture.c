/* Builds a choice by hand, and puts its plan into the cache. */
#include "remat/manual_choice_fixture.h"

#include "plan/cache.h"

#include <criterion/criterion.h>

void by_hand_open(struct by_hand *h, struct fixture *b, rw_tensor *loss)
{
    *h = (struct by_hand){ .b = b, .loss = loss->id };
    h->request = (struct rw_request){
        .kind = RW_PLAN_STEP, .values = &h->loss, .n_values = 1, .policy = &b->t->policy
    };
    cr_assert_eq(rw_request_key(b->t, &h->request, &h->key), RW_OK);
    cr_assert_eq(rw_problem_open(&h->g.problem, b->t, &h->request), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_choice_init(&h->g.choice, &h->g.problem), RW_OK);
}

void by_hand_close(struct by_hand *h)
{
    rw_planning_close(&h->g);
    rw_plan_key_finish(&h->key);
    rw_simulation_finish(&h->sim);
}

uint32_t by_hand_segment(struct by_hand *h, uint32_t parent, const rw_tensor *x, const rw_tensor *y)
{
    const uint32_t s = rw_choice_add_segment(&h->g.choice, parent);
    cr_assert_neq(s, RW_NONE_ID);
    for (uint32_t n = x->producer; n <= y->producer; n++) {
        cr_assert_eq(h->g.choice.segment_of[n], parent, "segments nest");
        h->g.choice.segment_of[n] = s;
    }
    return s;
}

void by_hand_segments_end(struct by_hand *h)
{
    const rw_tape *const t = h->b->t;
    rw_choice_close(&h->g.choice);
    for (uint32_t n = 0; n < t->n_nodes; n++)
        if (t->nodes[n].adjoint)
            h->g.choice.segment_of[n] = t->nodes[n].of == RW_NONE_ID ? 0 : h->g.choice.segment_of[t->nodes[n].of];
}

void by_hand_drop(struct by_hand *h, const rw_tensor *x, uint32_t level)
{
    h->g.choice.fate[x->base] = (struct rw_fate){ .level = level, .what = level ? RW_KEEP : RW_REPLAY };
}

const rw_plan *by_hand_plan(struct by_hand *h)
{
    rw_context *const ctx = h->b->ctx;
    rw_plan *plan = NULL;
    cr_assert(rw_choice_is_valid(&h->g.choice, &h->g.problem));
    cr_assert_eq(rw_simulate(&h->g.problem, &h->g.choice, &h->sim, &h->g.cost), RW_OK);
    h->g.schedule = h->sim.schedule;
    h->sim.schedule = (struct rw_schedule){ 0 };
    cr_assert_eq(rw_planning_place(&h->g, &plan), RW_OK, "%s", rw_error_message(ctx));
    cr_assert_eq(plan->largest_live, h->g.cost.peak);
    cr_assert_eq(plan->cost.replayed_nodes, h->g.cost.n_replays);
    cr_assert_geq(plan->arena_bytes, h->g.cost.peak);
    rw_plan_cache_add(rw_plan_cache_of(ctx), &h->key, plan);
    return plan;
}

size_t by_hand_replays(const rw_plan *plan, const rw_tensor *x)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_actions; i++)
        n += plan->actions[i].kind == RW_ACTION_REPLAY && plan->actions[i].node == x->producer;
    return n;
}
