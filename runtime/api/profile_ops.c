/*
 * rw_profile_begin(), rw_profile_end(): times every node of every step between the two calls where it runs, with the
 * operands at their places in a real step and the caches in their real state.
 *
 * The context's cost of a signature is the mean time of its nodes in a step, averaged over the steps that are neither
 * fast nor slow. Among equal nodes some find their operands in the caches and others do not, at the same places in each
 * step, and some are interrupted, different ones each time. The time of a step is their sum, which a median of each
 * node would not give.
 *
 * A node's time lasts until the next one begins. So the sum over all nodes is the time of the step, including that of
 * the run itself.
 *
 * The additional time of a node because of where its operands are (remat/schedule/cache_model.h) depends on its place
 * in that step, so it is subtracted.
 */
#include "api/profile_ops.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "run/rebuild_op_call.h"
#include "run/modelled_cache_misses.h"

#include <rewind/plan.h>

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define DISTURBED 1.5   /* times the fastest step */
#define FEW 8 /* steps */
#define INTERRUPTED 3.0 /* times the median of the same nodes */
#define WORTH_MEASURING ((uint64_t)16 << 20)

/* Mean time of the nodes of a signature in a step, and the ratio of that step's time to its nominal time. */
struct mean {
    double us, slow;
};

/* The samples of a signature: the last RW_COST_SAMPLES steps that have it, and the current step. */
struct sample {
    struct rw_cost_entry entry;
    struct mean step[RW_COST_SAMPLES];
    size_t n;
    double sum;
    double fetched;   /* cache-miss seconds of one node; until the step ends, of all its nodes */
    size_t n_nodes;   /* in the current step */
    uint32_t touched; /* the next one of the current step; RW_NONE_ID: the last */
};

struct measure {
    struct rw_attach attach; /* must be first: the context passes it to the functions */
    struct rw_observer observer;
    rw_context *ctx;
    bool on;
    size_t from, to; /* the part of a run that is timed; from == to: none */
    double *times;   /* start of action from + i; the last one is the end */
    size_t cap_times;
    struct sample *sample;
    size_t n, cap;
    uint32_t touched;      /* the first sample of the current step */
    double us, nominal_us; /* of the current step */
    struct rw_memory_cost memory; /* known or measured; `is_measured`: it was measured, for a large step */
    bool is_measured;
    struct rw_cache_misses far;
    uint32_t *slot; /* signature -> sample + 1, open addressing; n_slots a power of two */
    size_t n_slots;
    rw_operand_desc *desc; /* of one call */
    size_t cap_desc;
};

static struct measure *measure_of(struct rw_observer *o)
{
    return (struct measure *)(void *)((char *)o - offsetof(struct measure, observer));
}

/* A trace may mark the same part, so our marks follow its marks. */
static size_t first_mark(const struct measure *m)
{
    return RW_TRACE_MARKS + 2 * (m->to - m->from) + 1;
}

/* Adds the current step to the samples of its signatures. */
static void close_step(struct measure *m)
{
    while (m->touched != RW_NONE_ID) {
        struct sample *const s = &m->sample[m->touched];
        s->step[s->n++ % RW_COST_SAMPLES] = (struct mean){ s->sum / (double)s->n_nodes, m->us / m->nominal_us };
        s->fetched /= (double)s->n_nodes;
        s->sum = 0;
        s->n_nodes = 0;
        m->touched = s->touched;
    }
    m->us = m->nominal_us = 0;
}

/* Ends the last step if a new one begins, and prepares the marks. */
static rw_status begin(struct rw_observer *o, struct rw_run *r, size_t from, size_t to)
{
    struct measure *const m = measure_of(o);
    const struct rw_device_fns *const device = m->ctx->device;
    m->from = m->to = 0;
    if (!from) close_step(m);
    if (!m->on || from == to) return RW_OK;
    if (!rw_grow(&m->times, &m->cap_times, 0, to - from + 1, sizeof *m->times))
        return rw_fail(m->ctx, RW_ERR_MEMORY, "rw_profile_begin: out of memory while a step was measured");
    m->from = from;
    m->to = to;
    if (!device->make_marks) return RW_OK;
    const rw_status status = device->make_marks(m->ctx->device_state, first_mark(m) + to - from + 1);
    return status ? rw_fail(m->ctx, status, "rw_profile_begin: the device's clock could not be read") : RW_OK;
}

static void take_time(struct measure *m, size_t i)
{
    const struct rw_device_fns *const device = m->ctx->device;
    m->times[i] = 1e6 * rw_now_s();
    if (device->mark) device->mark(m->ctx->device_state, RW_LANE_COMPUTE, first_mark(m) + i);
}

static rw_status before(struct rw_observer *o, struct rw_at *at)
{
    struct measure *const m = measure_of(o);
    if (m->from < m->to) take_time(m, at->action - m->from);
    return RW_OK;
}

static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    struct measure *const m = measure_of(o);
    if (at->action + 1 == m->to) take_time(m, m->to - m->from);
    return RW_OK;
}

/* Microseconds of an action. */
static double time_of(const struct measure *m, size_t i)
{
    const struct rw_device_fns *const device = m->ctx->device;
    double us;
    if (device->elapsed && !device->elapsed(m->ctx->device_state, first_mark(m) + i, first_mark(m) + i + 1, &us))
        return us;
    return m->times[i + 1] - m->times[i];
}

static bool grow_slots(struct measure *m)
{
    const size_t n = m->n_slots ? 2 * m->n_slots : 256;
    uint32_t *const slot = rw_calloc(n, sizeof *slot);
    if (!slot) return false;
    for (size_t i = 0; i < m->n; i++) {
        size_t at = m->sample[i].entry.signature & (n - 1);
        while (slot[at]) at = (at + 1) & (n - 1);
        slot[at] = (uint32_t)i + 1;
    }
    rw_free(m->slot);
    m->slot = slot;
    m->n_slots = n;
    return true;
}

/* The sample of a signature, or a new one; NULL without memory. */
static struct sample *sample_of(struct measure *m, uint64_t signature)
{
    if (2 * (m->n + 1) > m->n_slots && !grow_slots(m)) return NULL;
    size_t at = signature & (m->n_slots - 1);
    while (m->slot[at] && m->sample[m->slot[at] - 1].entry.signature != signature) at = (at + 1) & (m->n_slots - 1);
    if (m->slot[at]) return &m->sample[m->slot[at] - 1];
    if (!rw_grow(&m->sample, &m->cap, m->n, 1, sizeof *m->sample)) return NULL;
    m->sample[m->n] = (struct sample){ .entry = { .signature = signature } };
    m->slot[at] = (uint32_t)++m->n;
    return &m->sample[m->n - 1];
}

static void name_op(char *text, const char *op)
{
    size_t n = 0;
    for (; op[n] && n + 1 < RW_COST_OP; n++) text[n] = (unsigned char)op[n] < ' ' ? '_' : op[n];
    text[n] = '\0';
}

/* Adds the time of an action to its signature. Without memory the signature is left out. */
static void add_time(struct measure *m, const struct rw_run *r, size_t action, double us)
{
    const struct rw_node *const node = rw_plan_node(r->tape, r->plan, r->plan->actions[action].node);
    const size_t n = (size_t)node->n_inputs + node->n_outputs;
    if (!rw_grow(&m->desc, &m->cap_desc, 0, n, sizeof *m->desc)) return;
    const rw_op_call call = rw_plan_call(r->tape, r->plan, node, m->desc);
    struct sample *const s = sample_of(m, rw_call_signature(&call, node->attrs_size));
    if (!s) return;
    if (!s->n && !s->n_nodes) {
        const rw_op_cost cost = rw_call_cost(&call);
        s->entry.operations = rw_cost_number(cost.flops);
        s->entry.bytes = rw_cost_number(cost.bytes);
        s->entry.dtype = node->n_outputs ? (uint8_t)call.out[0].dtype : 0;
        name_op(s->entry.op, call.op->name);
    }
    if (!s->n_nodes++) {
        s->touched = m->touched;
        m->touched = (uint32_t)(s - m->sample);
        s->fetched = 0;
    }
    s->sum += us;
    if (m->far.of == r->plan->serial) s->fetched += rw_fetched_seconds(m->far.fetched[action], m->memory);
    m->us += us;
    const rw_op_cost cost = { .flops = (double)s->entry.operations, .bytes = (double)s->entry.bytes };
    m->nominal_us += 1e6 * rw_nominal_seconds(cost);
}

/* Measures memory costs once, if a step is larger than the private caches of a core. */
static void measure_memory(struct measure *m, const rw_plan *plan)
{
    if (m->is_measured || m->memory.picoseconds || plan->largest_live < WORTH_MEASURING) return;
    m->is_measured = true;
    m->memory = rw_costs_measure_memory(m->ctx);
}

static void end(struct rw_observer *o, struct rw_run *r, rw_status status, size_t action)
{
    struct measure *const m = measure_of(o);
    const bool any = !status && m->from < m->to;
    if (any) measure_memory(m, r->plan);
    /* without memory the nodes' times stay as measured */
    if (any && m->memory.picoseconds) (void)rw_cache_misses_count(&m->far, r->tape, r->plan, m->memory.near_bytes);
    for (size_t i = m->from; any && i < m->to; i++) add_time(m, r, i, time_of(m, i - m->from));
    m->from = m->to = 0;
}

/*
 * Attaches to runs of the program. Not to rehearsals, and not if copies run in parallel, because they change node
 * times.
 */
static rw_status attach(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer)
{
    struct measure *const m = (struct measure *)self;
    if (m->on && !(r->flags & (RW_RUN_REHEARSAL | RW_RUN_AHEAD)) && !r->plan->n_aside) *ret_observer = &m->observer;
    return RW_OK;
}

static void forget(struct measure *m)
{
    rw_free(m->sample);
    rw_free(m->slot);
    m->sample = NULL;
    m->slot = NULL;
    m->n = m->cap = m->n_slots = 0;
    m->touched = RW_NONE_ID;
}

static void destroy(struct rw_attach *self)
{
    struct measure *const m = (struct measure *)self;
    forget(m);
    rw_cache_misses_finish(&m->far);
    rw_free(m->times);
    rw_free(m->desc);
    rw_free(m);
}

static struct measure *find(const rw_context *ctx)
{
    struct rw_attach *a = rw_pool_of(ctx)->attach;
    while (a && a->attach != attach) a = a->next;
    return (struct measure *)a;
}

/* Attaches the observer if there is none. */
rw_status rw_profile_begin(rw_context *ctx)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx) return rw_fail_null(NULL, "rw_profile_begin", "ctx");
    if (ctx->status) return ctx->status;
    const rw_status runs = rw_check_runs(ctx, "rw_profile_begin");
    if (runs) return runs;
    struct measure *m = find(ctx);
    if (m && m->on) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_profile_begin: expected rw_profile_end() after "
                                         "the last rw_profile_begin(), got none");
    if (!m) {
        m = rw_calloc(1, sizeof *m);
        if (!m) return rw_fail(ctx, RW_ERR_MEMORY, "rw_profile_begin: out of memory");
        *m = (struct measure){
            .attach = { .attach = attach, .destroy = destroy },
            .ctx = ctx,
            .observer = { .begin = begin, .before = before, .after = after, .end = end, .each_launch = true },
            .touched = RW_NONE_ID
        };
        rw_runs_attach(ctx, &m->attach);
    }
    m->on = true;
    m->is_measured = false;
    m->memory = rw_costs_known_memory(ctx);
    return RW_OK;
}

static int by_slowness(const void *a, const void *b)
{
    const double x = ((const struct mean *)a)->slow, y = ((const struct mean *)b)->slow;
    return x < y ? -1 : x > y;
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_of(const struct mean *step, size_t n)
{
    double us[RW_COST_SAMPLES];
    for (size_t i = 0; i < n; i++) us[i] = step[i].us;
    qsort(us, n, sizeof *us, by_number);
    return us[(n - 1) / 2];
}

/* Mean microseconds in the middle half of the steps that other processes did not disturb. If there are few steps, one
   that took many times as long as the others does not say how often that happens, so it counts at most INTERRUPTED
   medians. */
static double usual(struct mean *step, size_t n)
{
    const bool few = n < FEW;
    double sum = 0;
    qsort(step, n, sizeof *step, by_slowness);
    while (step[n - 1].slow > DISTURBED * step[0].slow) n--;
    const size_t from = (n + 1) / 4;
    const double most = few ? INTERRUPTED * median_of(step, n) : INFINITY;
    for (size_t i = from; i < n - from; i++) sum += fmin(step[i].us, most);
    return sum / (double)(n - 2 * from);
}

/* Without the cache misses, but at least half, in case the memory costs are wrong. */
static double near_us(const struct sample *s, double us)
{
    return fmax(us - 1e6 * s->fetched, us / 2);
}

struct rw_memory_cost rw_costs_known_memory(const rw_context *ctx)
{
    const struct rw_costs *const costs = rw_costs_of(ctx);
    const bool known = costs && costs->threads == ctx->threads;
    return known ? costs->memory : (struct rw_memory_cost){ 0 };
}

struct rw_memory_cost rw_costs_measure_memory(const rw_context *ctx)
{
    const struct rw_device_fns *const device = ctx->device;
    struct rw_memory_times m = { 0 };
    if (!device->time_memory || !device->time_memory(ctx->device_state, ctx->threads, &m))
        return (struct rw_memory_cost){ 0 };
    return (struct rw_memory_cost){ m.near_bytes, rw_cost_number(m.far * 1e12 * (1 << 20)),
                                    rw_cost_number(m.shared * 1e12 * (1 << 20)) };
}

static rw_status add_usual(struct measure *m, struct rw_costs *costs)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < m->n; i++) {
        struct sample *const s = &m->sample[i];
        const double us = usual(s->step, s->n < RW_COST_SAMPLES ? s->n : RW_COST_SAMPLES);
        s->entry.picoseconds = rw_cost_number(near_us(s, us) * 1e6);
        if (!s->entry.picoseconds) s->entry.picoseconds = 1;
        status = rw_costs_add(costs, &s->entry);
    }
    return status;
}

/* Makes costs of the samples, adds older ones that were not measured, and replaces the context's costs. */
rw_status rw_profile_end(rw_context *ctx)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx) return rw_fail_null(NULL, "rw_profile_end", "ctx");
    struct measure *const m = find(ctx);
    if (!m || !m->on)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_profile_end: expected rw_profile_begin() before, got none");
    struct rw_costs *const costs = rw_calloc(1, sizeof *costs);
    close_step(m);
    if (costs) costs->memory = m->memory;
    rw_status status = costs ? add_usual(m, costs) : RW_ERR_MEMORY;
    const struct rw_costs *const had = rw_costs_of(ctx); /* which may not all have been measured again */
    if (!status && had && had->threads == ctx->threads) status = rw_costs_add_missing(costs, had);
    if (!status && costs->n && !rw_costs_seal(costs)) status = RW_ERR_MEMORY;
    if (status) {
        rw_costs_free(costs);
        return rw_fail(ctx, status, "rw_profile_end: %s", rw_status_name(status));
    }
    m->on = false;
    forget(m);
    costs->threads = ctx->threads;
    if (costs->n) rw_costs_replace(ctx, costs);
    else rw_costs_free(costs);
    return RW_OK;
}

size_t rw_costs_count(const rw_context *ctx)
{
    RW_LOOKS_ONLY;
    const struct rw_costs *const costs = ctx ? rw_costs_of(ctx) : NULL;
    return costs ? costs->n : 0;
}

void rw_costs_clear(rw_context *ctx)
{
    RW_ENTER(ctx, );
    if (ctx) rw_costs_replace(ctx, NULL);
}
