/* Summarizes the peak by op and call site, and tries policies on the problem that is already open, without
   differentiating again. */
#include "plan/advice.h"

#include "base/alloc.h"
#include "place/arena.h"
#include "plan/fastest_in_budget.h"
#include "remat/policy/policy_to_choice.h"
#include "remat/schedule/live_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- contents of the peak ---- */

static uint64_t key_of(const struct rw_planning *g, uint32_t value, enum rw_live_kind kind)
{
    const rw_tape *const t = g->problem.t;
    if (value == RW_NONE_ID) return kind;
    const struct rw_node *const node = &t->nodes[rw_tape_value(t, value)->producer];
    return (uint64_t)node->op << 40 ^ (uint64_t)node->site << 8 ^ (uint64_t)kind;
}

struct piece {
    uint64_t key, bytes;
    uint32_t value, count;
    uint8_t kind;
};

static int by_key(const void *a, const void *b)
{
    const struct piece *const x = a, *const y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

static int by_bytes(const void *a, const void *b)
{
    const struct piece *const x = a, *const y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

static size_t merge(struct piece *piece, size_t n)
{
    size_t into = 0;
    for (size_t i = 0; i < n; i++) {
        if (into && piece[into - 1].key == piece[i].key) {
            piece[into - 1].bytes += piece[i].bytes;
            piece[into - 1].count++;
        } else {
            piece[into++] = piece[i];
        }
    }
    return into;
}

static size_t list_pieces(const struct rw_planning *g, const uint32_t *holder, struct piece *piece)
{
    const struct rw_schedule *const s = &g->schedule;
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i) || !rw_buffer_lives(b, g->cost.peak_action) || !b->bytes) continue;
        const enum rw_live_kind kind = rw_live_kind_of(&g->problem, s, i, holder[i]);
        const uint32_t value = s->buffers[holder[i]].value;
        const bool is_computed = value != RW_NONE_ID && rw_tape_value(g->problem.t, value)->producer != RW_NONE_ID;
        piece[n++] = (struct piece){ key_of(g, is_computed ? value : RW_NONE_ID, kind), rw_buffer_room(&g->problem, b),
                                     is_computed ? value : RW_NONE_ID, 1, (uint8_t)kind };
    }
    return n;
}

/* The buffers that live at the peak, merged by op, call site and kind and sorted by bytes: the largest rows are
   shown. */
static rw_status find_holdings(const struct rw_planning *g, struct rw_advice *ret)
{
    uint32_t *const holder = rw_malloc(g->schedule.n_buffers * sizeof *holder);
    struct piece *const piece = rw_malloc(g->schedule.n_buffers * sizeof *piece);
    const rw_status status = holder && piece ? RW_OK : RW_ERR_MEMORY;
    if (!status) {
        rw_find_holders(&g->schedule, g->cost.peak_action, holder);
        size_t n = list_pieces(g, holder, piece);
        qsort(piece, n, sizeof *piece, by_key);
        n = merge(piece, n);
        qsort(piece, n, sizeof *piece, by_bytes);
        for (; ret->n_held < n && ret->n_held < RW_HOLDINGS_MAX; ret->n_held++) {
            const struct piece *const p = &piece[ret->n_held];
            ret->held[ret->n_held] = (struct rw_holding_line){ p->value, p->kind, p->count, p->bytes };
        }
    }
    rw_free(holder);
    rw_free(piece);
    return status;
}

/* ---- policies that need less ---- */

struct trial {
    const struct rw_planning *g;
    struct rw_simulation sim;
    struct rw_advice *advice;
    uint64_t arena;
};

/* Drops a policy that is not smaller than the plan. */
static void note(struct trial *x, const char *policy, uint64_t bytes, const struct rw_cost_of_schedule *cost)
{
    struct rw_advice *const a = x->advice;
    if (bytes >= x->arena || a->n_rows == RW_ADVICE_MAX) return;
    struct rw_advice_row *const row = &a->row[a->n_rows++];
    snprintf(row->policy, sizeof row->policy, "%.*s", RW_ADVICE_POLICY - 1, policy);
    row->bytes = bytes;
    row->moved = cost->moved;
    row->seconds = cost->seconds;
    row->order = a->n_rows;
}

/* Applies a policy to the problem of the plan and places its buffers, without assembling a plan: an advice is what
   the policy would really take, not an estimate. */
static rw_status simulate(struct trial *x, const struct rw_policy *policy)
{
    const struct rw_problem *const p = &x->g->problem;
    struct rw_choice choice;
    struct rw_cost_of_schedule cost;
    struct rw_part_uses parts = { 0 };
    rw_status status = rw_policy_choose(p, policy, &choice);
    if (status) return status;
    if (rw_has_part_budgets(p->t, policy)) status = rw_part_budgets_decide(p, &choice, &parts);
    if (!status) status = rw_simulate(p, &choice, &x->sim, &cost);
    rw_part_uses_finish(&parts);
    rw_choice_finish(&choice);
    if (status) return status == RW_ERR_BUDGET ? RW_OK : status; /* a part does not fit under it, so it is no advice */
    uint64_t bytes = 0;
    uint64_t *const offset = rw_malloc(x->sim.schedule.n_buffers * sizeof *offset);
    status = offset ? rw_place_schedule(&x->sim.schedule, p->t->ctx->device->alignment, offset, &bytes)
                    : RW_ERR_MEMORY;
    rw_free(offset);
    if (!status) note(x, policy->spec, bytes, &cost);
    return status;
}

/* Names that do not fit into a row are left out. */
static rw_status try_policy(struct trial *x, const char *before, const char *name)
{
    char spec[RW_ADVICE_POLICY], message[RW_MESSAGE_MAX];
    struct rw_policy policy;
    if ((size_t)snprintf(spec, sizeof spec, "%s%s", before, name) >= sizeof spec) return RW_OK;
    rw_status status = rw_policy_parse(spec, &policy, message, sizeof message);
    if (status) return status == RW_ERR_MEMORY ? status : RW_OK;
    status = simulate(x, &policy);
    rw_policy_finish(&policy);
    return status;
}

#define NAMES_MAX 8

static int by_seconds(const void *a, const void *b)
{
    const struct rw_advice_row *const x = a, *const y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order; /* names before budgets */
}

/* Keeps the trials that no other beats in both bytes and time. */
static void cull(struct rw_advice *a)
{
    size_t n = 0;
    qsort(a->row, a->n_rows, sizeof *a->row, by_seconds);
    for (size_t i = 0; i < a->n_rows; i++)
        if (!n || a->row[i].bytes < a->row[n - 1].bytes) a->row[n++] = a->row[i];
    a->n_rows = n;
}

static rw_status find_store(struct trial *x)
{
    rw_context *const ctx = x->g->problem.t->ctx;
    x->advice->store = RW_STORE_IS_NONE;
    if (!rw_store_is_of_use(ctx)) return RW_OK;
    const rw_status status = rw_try_to_measure_store(ctx);
    x->advice->store = status ? RW_STORE_IS_BROKEN : RW_STORE_IS_WEIGHED;
    return status == RW_ERR_MEMORY ? status : RW_OK;
}

static rw_status try_moves(struct trial *x, const uint32_t *name, size_t n)
{
    const rw_tape *const t = x->g->problem.t;
    rw_status status = RW_OK;
    if (x->advice->store != RW_STORE_IS_WEIGHED) return RW_OK;
    for (size_t i = 0; !status && i < n; i++) {
        const char *const text = t->ctx->names.text[name[i]];
        status = try_policy(x, "offload:", text);
        if (!status) status = try_policy(x, "full+offload:", text);
    }
    return status;
}

static rw_status try_names(struct trial *x)
{
    const rw_tape *const t = x->g->problem.t;
    uint32_t name[NAMES_MAX];
    const size_t n = rw_tape_region_names(t, name, NAMES_MAX);
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) {
        const char *const text = t->ctx->names.text[name[i]];
        status = try_policy(x, "selective:", text);
        if (!status) status = try_policy(x, "discard:", text);
    }
    return status ? status : try_moves(x, name, n);
}

/* Tries budgets on the same problem. Not if parts have budgets, which exclude a budget of the tape. */
static rw_status try_budgets(struct trial *x)
{
    static char spec[] = "budget:";
    const struct rw_policy budgets = { .kind = RW_POLICY_BUDGET, .spec = spec };
    struct rw_problem p = x->g->problem;
    struct rw_request request = *p.targets.request;
    struct rw_budget_offer offer[RW_OFFERS_MAX];
    size_t n;
    if (rw_has_part_budgets(p.t, &budgets)) return RW_OK;
    request.policy = &budgets;
    p.targets.request = &request;
    const rw_status status = rw_budget_offers(&p, x->advice->store == RW_STORE_IS_WEIGHED, offer, &n);
    for (size_t i = 0; !status && i < n; i++) note(x, offer[i].policy, offer[i].bytes, &offer[i].cost);
    return status;
}

static rw_status try_all(struct trial *x)
{
    rw_status status = try_policy(x, "full", "");
    if (!status) status = try_policy(x, "uniform:2", "");
    x->advice->is_long = x->g->problem.t->n_nodes > RW_ADVICE_NODES;
    if (x->advice->is_long) return status;
    if (!status) status = try_names(x);
    return status ? status : try_budgets(x);
}

rw_status rw_advise(const struct rw_planning *g, uint64_t arena, struct rw_advice *ret)
{
    *ret = (struct rw_advice){ 0 };
    struct trial x = { .g = g, .advice = ret, .arena = arena };
    rw_status status = find_holdings(g, ret);
    if (!status) status = find_store(&x);
    if (!status) status = try_all(&x);
    rw_simulation_finish(&x.sim);
    if (!status) cull(ret);
    return status;
}
