/* See simulate.h. */
#include "remat/simulate.h"

#include "base/alloc.h"
#include "base/round.h"
#include "remat/inplace.h"

void rw_sweep_scratch_finish(struct rw_sweep_scratch *s)
{
    rw_free(s->life);
    rw_free(s->keep);
    rw_free(s->delta);
    *s = (struct rw_sweep_scratch){ 0 };
}

static rw_status reserve(struct rw_sweep_scratch *s, size_t n_buffers, size_t n_actions)
{
    size_t cap = s->cap_life;
    if (!rw_grow(&s->life, &cap, 0, n_buffers, sizeof *s->life)) return RW_ERR_MEMORY;
    if (!rw_grow(&s->keep, &s->cap_life, 0, n_buffers, sizeof *s->keep)) return RW_ERR_MEMORY;
    return rw_grow(&s->delta, &s->cap_delta, 0, n_actions + 1, sizeof *s->delta) ? RW_OK : RW_ERR_MEMORY;
}

/* The lives of the buffers in the arena; keep says which of them hold replayed values. */
static size_t list_lives(const struct rw_schedule *s, struct rw_sweep_scratch *scratch)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i)) continue;
        scratch->keep[n] = b->replay;
        scratch->life[n++] = (struct rw_life){ .first = b->first, .last = b->last, .bytes = b->bytes };
    }
    return n;
}

static void count_bytes(const struct rw_schedule *s, uint64_t alignment, struct rw_cost_of_schedule *ret)
{
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i)) continue;
        const uint64_t bytes = rw_round_up(b->bytes, alignment);
        if (b->value == RW_NONE_ID && bytes > ret->workspace) ret->workspace = bytes;
        if (b->first < s->n_forward && b->last >= s->n_forward) ret->kept += bytes;
    }
}

rw_status rw_schedule_cost(const struct rw_problem *p, const struct rw_schedule *s, struct rw_sweep_scratch *scratch,
                           struct rw_cost_of_schedule *ret)
{
    const uint64_t alignment = p->t->ctx->device->alignment;
    if (reserve(scratch, s->n_buffers, s->n_actions)) return RW_ERR_MEMORY;
    *ret = (struct rw_cost_of_schedule){ 0 };
    const size_t n = list_lives(s, scratch);
    const struct rw_live_peak all = rw_lives_sweep(scratch->life, NULL, n, alignment, scratch->delta, s->n_actions);
    ret->replayed = rw_lives_sweep(scratch->life, scratch->keep, n, alignment, scratch->delta, s->n_actions).bytes;
    ret->peak = all.bytes;
    ret->peak_action = all.action;
    count_bytes(s, alignment, ret);
    for (size_t i = 0; i < s->n_actions; i++) {
        ret->seconds += rw_problem_seconds(p, s->actions[i].node);
        ret->n_replays += s->actions[i].kind == RW_ACTION_REPLAY;
    }
    return RW_OK;
}

void rw_simulation_finish(struct rw_simulation *sim)
{
    rw_order_scratch_finish(&sim->order);
    rw_schedule_finish(&sim->schedule);
    rw_sweep_scratch_finish(&sim->sweep);
}

rw_status rw_simulate(const struct rw_problem *p, const struct rw_choice *c, struct rw_simulation *sim,
                      struct rw_cost_of_schedule *ret)
{
    const rw_status status = rw_order(p, c, &sim->order, &sim->schedule);
    if (status) return status;
    rw_merge_in_place(p->t, &sim->schedule);
    return rw_schedule_cost(p, &sim->schedule, &sim->sweep, ret);
}
