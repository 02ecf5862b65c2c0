/* The trace of what ran. See trace.h. */
#include "run/trace.h"

#include "base/alloc.h"
#include "base/c_locale.h"
#include "base/clock.h"
#include "base/output.h"
#include "run/call.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TRACK_STEPS = 1, TRACK_REGIONS, TRACK_OUT, TRACK_IN };

/* When an action ran: two of the part's marks. A compute action ends where the next one begins. */
struct span {
    size_t from, to;
    const char *product; /* how it multiplied 8-bit factors; NULL: it did not */
};

struct trace {
    struct rw_attach attach; /* first: the context hands it back */
    struct rw_observer observer;
    rw_context *ctx;
    FILE *file;
    int fault;  /* errno of the first write that failed, 0 for none: nothing is traced from there on */
    bool told;  /* in the run behind it */
    bool first; /* no comma before the next event */
    double origin; /* microseconds of the clock at the first plan */
    /* Of the part that runs: its actions, their spans, the times of its marks. */
    size_t from, to, last; /* last: its last compute action */
    struct span *spans;
    size_t cap_spans;
    double *times;
    size_t n, cap;
    size_t before; /* the compute action before, SIZE_MAX for none */
    rw_float8_products products; /* before the action that runs */
};

static void note_fault(struct trace *trace, int written)
{
    if (written < 0 && !trace->fault) trace->fault = errno;
}

static void put(struct trace *trace, cJSON *event)
{
    const locale_t before = rw_c_locale_begin();
    char *const text = event ? cJSON_PrintUnformatted(event) : NULL;
    rw_c_locale_end(before);
    const struct rw_quiet q = rw_quiet_begin();
    if (text && !trace->fault) note_fault(trace, fprintf(trace->file, "%s\n%s", trace->first ? "" : ",", text));
    rw_quiet_end(&q);
    if (text) trace->first = false;
    cJSON_free(text);
    cJSON_Delete(event);
}

static void name_track(struct trace *trace, int track, const char *name)
{
    cJSON *const event = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "name", "thread_name");
    cJSON_AddStringToObject(event, "ph", "M");
    cJSON_AddNumberToObject(event, "pid", 1);
    cJSON_AddNumberToObject(event, "tid", track);
    cJSON_AddStringToObject(cJSON_AddObjectToObject(event, "args"), "name", name);
    put(trace, event);
}

/* ---- writing ---- */

static cJSON *slice(int track, const char *name, const char *category, double from, double to)
{
    cJSON *const event = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "name", name);
    cJSON_AddStringToObject(event, "cat", category);
    cJSON_AddStringToObject(event, "ph", "X");
    cJSON_AddNumberToObject(event, "ts", from);
    cJSON_AddNumberToObject(event, "dur", to - from);
    cJSON_AddNumberToObject(event, "pid", 1);
    cJSON_AddNumberToObject(event, "tid", track);
    return event;
}

/* What the op says that it computes, reads and writes: with the time, how close it comes to the hardware's limits. */
static rw_op_cost cost_of(const rw_tape *t, const rw_plan *plan, const struct rw_node *node)
{
    rw_desc *const descs = rw_malloc(((size_t)node->n_inputs + node->n_outputs) * sizeof *descs);
    if (!descs) return (rw_op_cost){ 0, 0 };
    const rw_op_call call = rw_plan_call(t, plan, node, descs);
    const rw_op_cost cost = rw_call_cost(&call);
    rw_free(descs);
    return cost;
}

static double moved_bytes(const rw_plan *plan, const struct rw_action *move)
{
    const uint32_t store = plan->words[move->word + (move->kind == RW_ACTION_OUT)];
    return (double)plan->slots[plan->sources[rw_word_source(store)].index].bytes;
}

static void write_step(struct trace *trace, const rw_tape *t, const rw_plan *plan, size_t i, double from, double to)
{
    const char *const product = trace->spans[i - trace->from].product;
    const struct rw_action *const s = &plan->actions[i];
    const struct rw_node *const node = rw_plan_node(t, plan, s->node);
    const rw_site at = t->ctx->sites[node->site];
    char site[512];
    snprintf(site, sizeof site, "%s:%d", at.file, (int)at.line);
    const int track = s->kind == RW_ACTION_OUT ? TRACK_OUT : s->kind == RW_ACTION_IN ? TRACK_IN : TRACK_STEPS;
    cJSON *const event = slice(track, t->ctx->ops[node->op]->name, rw_action_kind_name(s->kind), from, to);
    cJSON *const args = cJSON_AddObjectToObject(event, "args");
    cJSON_AddStringToObject(args, "kind", rw_action_kind_name(s->kind));
    cJSON_AddStringToObject(args, "site", site);
    const rw_op_cost cost = track == TRACK_STEPS ? cost_of(t, plan, node) : (rw_op_cost){ 0, moved_bytes(plan, s) };
    cJSON_AddNumberToObject(args, "flops", cost.flops);
    cJSON_AddNumberToObject(args, "bytes", cost.bytes);
    if (product) cJSON_AddStringToObject(args, "product", product);
    put(trace, event);
}

static uint32_t region_of(const rw_tape *t, const rw_plan *plan, size_t i)
{
    return rw_node_region(t, rw_plan_node(t, plan, plan->actions[i].node));
}

/* The actions [i, ret) are of one region and kind, moves among them aside. *ret_last is the last compute action. */
static size_t same_region(const rw_tape *t, const rw_plan *plan, size_t i, size_t to, size_t *ret_last)
{
    const struct rw_action *const s = &plan->actions[i];
    const uint32_t region = region_of(t, plan, i);
    for (; i < to; i++) {
        if (rw_action_is_move(plan->actions[i].kind)) continue;
        if (plan->actions[i].kind != s->kind || region_of(t, plan, i) != region) break;
        *ret_last = i;
    }
    return i;
}

static void write_region(struct trace *trace, const rw_tape *t, const rw_plan *plan, size_t i, double from, double to)
{
    const uint32_t region = region_of(t, plan, i);
    if (region == RW_NONE_ID) return;
    char path[512];
    rw_region_path(t, region, path, sizeof path);
    put(trace, slice(TRACK_REGIONS, path, rw_action_kind_name(plan->actions[i].kind), from, to));
}

/* Microseconds from the trace's begin. */
static void take_times(struct trace *trace, const rw_context *ctx)
{
    const double host = trace->times[0] - trace->origin;
    for (size_t i = trace->n; i-- > 0;) {
        double since;
        const bool own = ctx->device->elapsed &&
                         !ctx->device->elapsed(ctx->device_state, RW_TRACE_MARKS, RW_TRACE_MARKS + i, &since);
        trace->times[i] = own ? host + since : trace->times[i] - trace->origin;
    }
}

/* ---- the observer ---- */

static struct trace *trace_of(struct rw_observer *o)
{
    return (struct trace *)(void *)((char *)o - offsetof(struct trace, observer));
}

static bool is_move(const struct rw_run *r, size_t action)
{
    return rw_action_is_move(r->plan->actions[action].kind);
}

static rw_status begin(struct rw_observer *o, struct rw_run *r, size_t from, size_t to)
{
    struct trace *const trace = trace_of(o);
    rw_context *const ctx = trace->ctx;
    const size_t marks = 2 * (to - from) + 1;
    trace->n = 0;
    trace->from = from;
    trace->to = trace->last = to;
    trace->before = SIZE_MAX;
    while (trace->last > from && is_move(r, trace->last - 1)) trace->last--;
    trace->last--;
    if (!rw_grow(&trace->spans, &trace->cap_spans, 0, to - from, sizeof *trace->spans) ||
        !rw_grow(&trace->times, &trace->cap, 0, marks, sizeof *trace->times))
        return rw_fail(ctx, RW_ERR_MEMORY, "REWIND_TRACE: out of memory");
    if (!ctx->device->make_marks) return RW_OK;
    const rw_status status = ctx->device->make_marks(ctx->device_state, RW_TRACE_MARKS + marks);
    return status ? rw_fail(ctx, status, "REWIND_TRACE: the device gives no times") : RW_OK;
}

static size_t take_time(struct trace *trace, int lane)
{
    const rw_context *const ctx = trace->ctx;
    trace->times[trace->n] = 1e6 * rw_now_s();
    if (ctx->device->mark) ctx->device->mark(ctx->device_state, lane, RW_TRACE_MARKS + trace->n);
    return trace->n++;
}

static rw_float8_products products_of(const rw_context *ctx)
{
    rw_float8_products n = { 0, 0 };
    if (ctx->device->float8_products) ctx->device->float8_products(ctx->device_state, &n);
    return n;
}

static rw_status before(struct rw_observer *o, struct rw_at *at)
{
    struct trace *const trace = trace_of(o);
    const int lane = at->run->plan->actions[at->action].lane;
    const size_t mark = take_time(trace, lane);
    trace->products = products_of(trace->ctx);
    trace->spans[at->action - trace->from].from = mark;
    if (is_move(at->run, at->action)) return RW_OK;
    if (trace->before != SIZE_MAX) trace->spans[trace->before - trace->from].to = mark;
    trace->before = at->action;
    return RW_OK;
}

static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    struct trace *const trace = trace_of(o);
    const int lane = at->run->plan->actions[at->action].lane;
    const rw_float8_products n = products_of(trace->ctx);
    trace->spans[at->action - trace->from].product = n.decoded > trace->products.decoded ? "decoded to bfloat16"
                                                     : n.fp8 > trace->products.fp8       ? "fp8"
                                                                                         : NULL;
    if (at->action == trace->last || is_move(at->run, at->action))
        trace->spans[at->action - trace->from].to = take_time(trace, lane);
    return RW_OK;
}

static double begin_of(const struct trace *trace, size_t action)
{
    return trace->times[trace->spans[action - trace->from].from];
}

static double end_of(const struct trace *trace, size_t action)
{
    return trace->times[trace->spans[action - trace->from].to];
}

static void end(struct rw_observer *o, struct rw_run *r, rw_status status, size_t action)
{
    struct trace *const trace = trace_of(o);
    if (status || !trace->n) return; /* it ended early, or nothing ran */
    take_times(trace, trace->ctx);
    for (size_t i = trace->from; i < trace->to; i++)
        write_step(trace, r->tape, r->plan, i, begin_of(trace, i), end_of(trace, i));
    for (size_t i = trace->from; i < trace->to;) {
        size_t last = i;
        const size_t next = is_move(r, i) ? i + 1 : same_region(r->tape, r->plan, i, trace->to, &last);
        if (!is_move(r, i))
            write_region(trace, r->tape, r->plan, i, begin_of(trace, i), end_of(trace, last));
        i = next;
    }
    const struct rw_quiet q = rw_quiet_begin();
    note_fault(trace, fflush(trace->file));
    rw_quiet_end(&q);
    trace->n = 0;
}

/* What could not be written is an error of the next run, once: that one can be run again, and is not traced. */
static rw_status attach(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer)
{
    struct trace *const trace = (struct trace *)self;
    if (r->flags & RW_RUN_REHEARSAL) return RW_OK;
    if (!trace->fault) *ret_observer = &trace->observer;
    if (!trace->fault || trace->told) return RW_OK;
    trace->told = true;
    return rw_fail(trace->ctx, RW_ERR_IO, "REWIND_TRACE: %s: the trace ends in the run before this one",
                   strerror(trace->fault));
}

/* ---- opening and closing ---- */

static void destroy(struct rw_attach *self)
{
    struct trace *const trace = (struct trace *)self;
    const struct rw_quiet q = rw_quiet_begin();
    fputs("\n]\n", trace->file);
    fclose(trace->file);
    rw_quiet_end(&q);
    rw_free(trace->spans);
    rw_free(trace->times);
    rw_free(trace);
}

static FILE *open_file(const char *name, const char **ret_why)
{
    static atomic_int opened;
    char path[4096];
    const int number = atomic_fetch_add(&opened, 1) + 1;
    const int length = number == 1 ? snprintf(path, sizeof path, "%s", name)
                                   : snprintf(path, sizeof path, "%s.%d", name, number);
    *ret_why = strerror(ENAMETOOLONG);
    const int fd = length < (int)sizeof path ? rw_open_output(path, O_TRUNC, ret_why) : -1;
    FILE *const file = fd < 0 ? NULL : fdopen(fd, "w");
    if (fd >= 0 && !file) {
        *ret_why = strerror(errno);
        close(fd);
    }
    return file;
}

void rw_trace_attach(rw_context *ctx, const char *name)
{
    if (!name || !*name) return;
    const char *why = NULL;
    FILE *const file = open_file(name, &why);
    struct trace *const trace = file ? rw_calloc(1, sizeof *trace) : NULL;
    if (!trace) {
        rw_fail(ctx, file ? RW_ERR_MEMORY : RW_ERR_IO, "REWIND_TRACE=%s: %s", name,
                file ? "out of memory" : why);
        if (file) fclose(file);
        return;
    }
    *trace = (struct trace){ .attach = { .next = ctx->attach, .attach = attach, .destroy = destroy }, .ctx = ctx,
                             .observer = { .begin = begin, .before = before, .after = after, .end = end,
                                           .each_launch = true },
                             .file = file, .first = true, .origin = 1e6 * rw_now_s() };
    fputs("[", file);
    name_track(trace, TRACK_STEPS, "steps");
    name_track(trace, TRACK_REGIONS, "regions");
    name_track(trace, TRACK_OUT, "moved out");
    name_track(trace, TRACK_IN, "moved back");
    ctx->attach = &trace->attach;
}
