/* Waits and events between the compute lane and the copy lanes, in the order of the plan. */
#include "run/copy_lane_sync.h"

static size_t first_wait(const rw_plan *p, size_t action)
{
    size_t i = 0;
    while (i < p->n_waits && p->waits[i].action < action) i++;
    return i;
}

/* Index of the first copy action at or after an action. */
static size_t aside_at(const rw_plan *p, size_t action)
{
    size_t low = 0, high = p->n_aside;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (p->aside[middle] < action) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void find_next(struct rw_lanes *l)
{
    const rw_plan *const p = l->run->plan;
    l->next = l->wait < p->n_waits ? p->waits[l->wait].action : SIZE_MAX;
    if (l->aside < p->n_aside && p->aside[l->aside] < l->next) l->next = p->aside[l->aside];
}

struct rw_lanes rw_lanes_at(const struct rw_run *r, size_t from)
{
    struct rw_lanes l = { .run = r, .wait = first_wait(r->plan, from), .aside = aside_at(r->plan, from) };
    find_next(&l);
    return l;
}

static bool is_aside(const struct rw_lanes *l)
{
    const rw_plan *const p = l->run->plan;
    return l->aside < p->n_aside && p->aside[l->aside] == l->next;
}

/* First the plan's own waits of this action. Then, for a copy, the compute lane signals that it has reached this
   point and the copy waits for it: so a copy never starts before the compute actions that precede it in the list. */
rw_status rw_lanes_before(struct rw_lanes *l, size_t *ret_on)
{
    const struct rw_run *const r = l->run;
    const rw_plan *const p = r->plan;
    const rw_context *const ctx = r->tape->ctx;
    const struct rw_device_fns *const device = ctx->device;
    const int lane = p->actions[l->next].lane;
    rw_status status = RW_OK;
    for (; !status && l->wait < p->n_waits && p->waits[l->wait].action == l->next; l->wait++) {
        const uint32_t on = p->waits[l->wait].on;
        if (device->wait) status = device->wait(ctx->device_state, lane, r->events, aside_at(p, on));
        if (status) *ret_on = on;
    }
    if (status || !is_aside(l) || !device->signal) return status;
    status = device->signal(ctx->device_state, RW_LANE_COMPUTE, r->events, p->n_aside + l->aside);
    return status ? status : device->wait(ctx->device_state, lane, r->events, p->n_aside + l->aside);
}

rw_status rw_lanes_after(struct rw_lanes *l)
{
    const struct rw_run *const r = l->run;
    const rw_context *const ctx = r->tape->ctx;
    rw_status status = RW_OK;
    if (is_aside(l)) {
        if (ctx->device->signal)
            status = ctx->device->signal(ctx->device_state, r->plan->actions[l->next].lane, r->events, l->aside);
        l->aside++;
    }
    find_next(l);
    return status;
}
