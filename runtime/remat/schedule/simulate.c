/* Simulates a choice: emits its schedule, and adds up its bytes and seconds. */
#include "remat/schedule/simulate.h"

#include "base/alloc.h"
#include "base/round_up.h"
#include "remat/schedule/fused_update.h"
#include "remat/schedule/inplace.h"
#include "remat/schedule/copy_schedule.h"

#include <assert.h>
#include <string.h>

void rw_sweep_scratch_finish(struct rw_sweep_scratch *s)
{
    rw_free(s->life);
    rw_free(s->delta);
    rw_free(s->end);
    rw_cache_model_finish(&s->caches);
    *s = (struct rw_sweep_scratch){ 0 };
}

static rw_status reserve_lifetimes(struct rw_sweep_scratch *s, size_t n_buffers)
{
    return rw_grow(&s->life, &s->cap_life, 0, n_buffers, sizeof *s->life) ? RW_OK : RW_ERR_MEMORY;
}

/* Lists the lifetimes of the buffers in the arena that hold replayed values. */
static size_t list_replays(const struct rw_schedule *s, struct rw_sweep_scratch *scratch)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (b->replay && rw_buffer_is_placed(s, i))
            scratch->life[n++] = (struct rw_lifetime){ .first = b->first, .last = b->last, .bytes = b->bytes };
    }
    return n;
}

/* The same as rw_lifetimes_sweep() of all buffers in the arena, without a list of their lifetimes. */
static struct rw_live_peak find_peak(const struct rw_schedule *s, uint64_t alignment, int64_t *delta)
{
    memset(delta, 0, (s->n_actions + 1) * sizeof *delta);
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i)) continue;
        const int64_t bytes = (int64_t)rw_round_up(b->bytes, alignment);
        delta[b->first] += bytes;
        delta[b->last + 1] -= bytes;
    }
    return rw_lifetimes_peak(delta, s->n_actions);
}

static void count_bytes(const struct rw_schedule *s, uint64_t alignment, struct rw_cost_of_schedule *ret)
{
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i)) continue;
        const uint64_t bytes = rw_round_up(b->bytes, alignment);
        if (b->value == RW_NONE_ID && bytes > ret->workspace) ret->workspace = bytes;
        if (b->first < s->n_before && b->last >= s->n_before) ret->kept += bytes;
    }
}

/* ---- time ---- */

/* Cache misses of a source. In the cache model the sources come after the buffers. */
static struct rw_fetched fetch_beside(const struct rw_problem *p, const struct rw_schedule *s,
                                      const struct rw_action *a, const struct rw_buffer *b, uint32_t source,
                                      struct rw_cache_model *x)
{
    if (!rw_source_is_used(s->sources[source].kind)) return (struct rw_fetched){ 0 };
    const uint64_t bytes = rw_bytes_in_traffic(p->bytes[b->value], p->cost[a->node].bytes);
    return rw_cache_model_use(x, (uint32_t)s->n_buffers + source, bytes, RW_USE_BESIDE);
}

/* Cache misses of an operand of the action, given by its word. */
static struct rw_fetched fetch(const struct rw_problem *p, const struct rw_schedule *s, const struct rw_action *a,
                               uint32_t w, struct rw_cache_model *x)
{
    const uint32_t word = s->refs[a->word + w], root = rw_buffer_root(s, word);
    const struct rw_buffer *const b = &s->buffers[word];
    if (s->buffers[root].source != RW_NONE_ID) return fetch_beside(p, s, a, b, s->buffers[root].source, x);
    return rw_cache_model_use(x, root, b->bytes, rw_use_of(w, p->t->nodes[a->node].n_inputs, p->across[a->node]));
}

/* Time of the action's cache misses, in addition to the time of its node. */
static double fetch_seconds(const struct rw_problem *p, const struct rw_schedule *s, uint32_t i,
                            struct rw_cache_model *x)
{
    const struct rw_action *const a = &s->actions[i];
    struct rw_fetched sum = { 0 };
    bool ends = false;
    for (uint32_t w = 0; w < a->n_words; w++) {
        rw_fetched_add(&sum, fetch(p, s, a, w, x));
        ends |= s->buffers[rw_buffer_root(s, s->refs[a->word + w])].last == i;
    }
    for (uint32_t w = 0; ends && w < a->n_words; w++) {
        const uint32_t root = rw_buffer_root(s, s->refs[a->word + w]);
        if (s->buffers[root].last == i && s->buffers[root].source == RW_NONE_ID) rw_cache_model_die(x, root);
    }
    return rw_fetched_seconds(sum, p->memory);
}

/* caches: NULL if no operand of the step takes longer. */
static double seconds_of(const struct rw_problem *p, const struct rw_schedule *s, size_t i,
                         struct rw_cache_model *caches)
{
    return rw_problem_seconds(p, s->actions[i].node) + (caches ? fetch_seconds(p, s, (uint32_t)i, caches) : 0);
}

/* Seconds of a schedule with one lane: one action after the other. */
static double sum_up(const struct rw_problem *p, const struct rw_schedule *s, struct rw_cache_model *caches)
{
    double seconds = 0;
    for (size_t i = 0; i < s->n_actions; i++) seconds += seconds_of(p, s, i, caches);
    return seconds;
}

/* Seconds of a schedule with several lanes. An action of another lane begins after the compute before it. The compute
   lane stops where it waits, and loses the time that copies take from its cores. */
static double predict(const struct rw_problem *p, const struct rw_schedule *s, struct rw_cache_model *caches,
                      double *end)
{
    double lane[RW_LANES] = { 0 };
    size_t wait = 0;
    for (size_t i = 0; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        for (; wait < s->n_waits && s->waits[wait].action == i; wait++)
            if (lane[a->lane] < end[s->waits[wait].on]) lane[a->lane] = end[s->waits[wait].on];
        if (lane[a->lane] < lane[RW_LANE_COMPUTE]) lane[a->lane] = lane[RW_LANE_COMPUTE];
        if (rw_action_is_move(a->kind)) {
            const uint64_t bytes = s->buffers[s->refs[a->word]].bytes;
            lane[a->lane] += rw_move_seconds(p, a->lane, bytes);
            lane[RW_LANE_COMPUTE] += rw_move_loss(p, bytes);
        } else {
            lane[a->lane] += seconds_of(p, s, i, caches);
        }
        end[i] = lane[a->lane];
    }
    return lane[RW_LANE_COMPUTE];
}

/* Predicts the seconds of a schedule with that peak. */
static rw_status count_seconds(const struct rw_problem *p, const struct rw_schedule *s,
                               struct rw_sweep_scratch *scratch, struct rw_cost_of_schedule *ret)
{
    /* copied-in values are in no cache */
    const bool all_near = !s->n_slots && !p->memory.shared_picoseconds &&
                          ret->peak + p->beside_bytes <= p->memory.near_bytes;
    struct rw_cache_model *const caches = all_near || !p->memory.picoseconds ? NULL : &scratch->caches;
    if (caches && rw_cache_model_begin(caches, s->n_buffers + s->n_sources, p->memory.near_bytes)) return RW_ERR_MEMORY;
    ret->seconds = s->n_slots ? predict(p, s, caches, scratch->end) : sum_up(p, s, caches);
    return RW_OK;
}

static rw_status reserve_actions(struct rw_sweep_scratch *s, size_t n_actions)
{
    size_t cap = s->cap_delta;
    if (!rw_grow(&s->end, &cap, 0, n_actions + 1, sizeof *s->end)) return RW_ERR_MEMORY;
    return rw_grow(&s->delta, &s->cap_delta, 0, n_actions + 1, sizeof *s->delta) ? RW_OK : RW_ERR_MEMORY;
}

/* Computes what choices are compared by. */
static rw_status count_in_brief(const struct rw_problem *p, const struct rw_schedule *s,
                                struct rw_sweep_scratch *scratch, struct rw_cost_of_schedule *ret)
{
    if (reserve_actions(scratch, s->n_actions)) return RW_ERR_MEMORY;
    const struct rw_live_peak all = find_peak(s, p->t->ctx->device->alignment, scratch->delta);
    *ret = (struct rw_cost_of_schedule){ .peak = all.bytes, .peak_action = all.action };
    for (size_t i = 0; i < s->n_slots; i++) ret->moved += s->slots[i].bytes; /* each is copied back once */
    return count_seconds(p, s, scratch, ret);
}

rw_status rw_schedule_cost(const struct rw_problem *p, const struct rw_schedule *s, struct rw_sweep_scratch *scratch,
                           struct rw_cost_of_schedule *ret)
{
    const uint64_t alignment = p->t->ctx->device->alignment;
    if (count_in_brief(p, s, scratch, ret) || reserve_lifetimes(scratch, s->n_buffers)) return RW_ERR_MEMORY;
    const size_t n = list_replays(s, scratch);
    ret->replayed = rw_lifetimes_sweep(scratch->life, NULL, n, alignment, scratch->delta, s->n_actions).bytes;
    count_bytes(s, alignment, ret);
    for (size_t i = 0; i < s->n_actions; i++) ret->n_replays += s->actions[i].kind == RW_ACTION_REPLAY;
    return RW_OK;
}

void rw_simulation_finish(struct rw_simulation *sim)
{
    rw_choice_finish(&sim->choice);
    rw_order_scratch_finish(&sim->order);
    rw_copy_schedule_scratch_finish(&sim->overlap);
    rw_schedule_finish(&sim->schedule);
    rw_sweep_scratch_finish(&sim->sweep);
}

/* Emits the schedule of a choice with fused updates, copies and in-place buffers. */
static rw_status make_schedule(const struct rw_problem *p, const struct rw_choice *c, struct rw_simulation *sim)
{
    rw_status status = rw_order(p, c, &sim->order, &sim->schedule);
    if (!status) status = rw_fused_updates(p, &sim->schedule);
    if (!status) status = rw_copy_schedule(p, c, &sim->overlap, &sim->schedule);
    if (status) return status;
    rw_merge_in_place(p, &sim->schedule);
    assert(rw_schedule_is_valid(p, c, &sim->schedule));
    return RW_OK;
}

rw_status rw_simulate(const struct rw_problem *p, const struct rw_choice *c, struct rw_simulation *sim,
                      struct rw_cost_of_schedule *ret)
{
    const rw_status status = make_schedule(p, c, sim);
    return status ? status : rw_schedule_cost(p, &sim->schedule, &sim->sweep, ret);
}

rw_status rw_simulate_briefly(const struct rw_problem *p, const struct rw_choice *c, struct rw_simulation *sim,
                              struct rw_cost_of_schedule *ret)
{
    const rw_status status = make_schedule(p, c, sim);
    return status ? status : count_in_brief(p, &sim->schedule, &sim->sweep, ret);
}
