/* The trace of executed actions, as JSON events: an observer that marks times on the device and writes them when a
   part of a run ends. */
#include "run/trace.h"

#include "base/alloc.h"
#include "base/c_locale.h"
#include "base/clock.h"
#include "base/fork_handlers.h"
#include "base/append_only_file.h"
#include "base/utf8.h"
#include "run/rebuild_op_call.h"
#include "run/trace_file.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 20) /* bytes of text per write */

enum { TRACK_STEPS = 1, TRACK_REGIONS, TRACK_OUT, TRACK_IN };

/* Start and end of an action, as indexes of the part's marks. A compute action ends where the next one starts. */
struct span {
    size_t from, to;
    const char *product; /* how FP8 factors were multiplied; NULL: not an FP8 product */
};

struct trace {
    struct rw_attach attach; /* first, because the pool returns it */
    struct rw_observer observer;
    rw_context *ctx;
    struct rw_records file; /* no descriptor in a child of fork(), where nothing is traced */
    struct rw_forked forked;
    char *text; /* complete events that are not written yet */
    size_t n_text, cap_text;
    bool begun; /* the file has its first bytes */
    int fault;  /* errno of the first failed write, 0 for none; its events are not in the file */
    bool told;  /* the next run has reported it */
    double origin; /* clock at the first plan, in microseconds */
    /* Of the running part: its actions, their spans, the times of its marks. */
    size_t from, to, last; /* last: its last compute action */
    struct span *spans;
    size_t cap_spans;
    double *times;
    size_t n, cap;
    size_t before; /* the previous compute action, SIZE_MAX for none */
    rw_float8_products products; /* before the action that runs */
};

static void note_fault(struct trace *trace, int error)
{
    if (!trace->fault) trace->fault = error;
}

static bool add_text(struct trace *trace, const char *text, size_t n)
{
    if (!rw_grow(&trace->text, &trace->cap_text, trace->n_text, n, 1)) return false;
    memcpy(trace->text + trace->n_text, text, n);
    trace->n_text += n;
    return true;
}

static void begin_text(struct trace *trace);

/* Events of a failed write are dropped; the file continues with later ones. */
static void write_out(struct trace *trace)
{
    const bool written = rw_records_append(&trace->file, trace->text, trace->n_text);
    if (!written) note_fault(trace, errno);
    trace->n_text = 0;
    trace->begun |= written;
    if (!trace->begun) begin_text(trace);
}

static void put(struct trace *trace, cJSON *event)
{
    const locale_t before = rw_c_locale_begin();
    char *const text = event ? cJSON_PrintUnformatted(event) : NULL;
    rw_c_locale_end(before);
    const size_t length = text ? strlen(text) : 0;
    const bool first = !trace->begun && trace->n_text <= 1;
    if (!text || !rw_grow(&trace->text, &trace->cap_text, trace->n_text, length + 2, 1)) note_fault(trace, ENOMEM);
    else add_text(trace, first ? "\n" : ",\n", first ? 1 : 2), add_text(trace, text, length);
    cJSON_free(text);
    cJSON_Delete(event);
    if (trace->n_text >= PIECE) write_out(trace);
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

static void begin_text(struct trace *trace)
{
    if (!add_text(trace, "[", 1)) note_fault(trace, ENOMEM);
    name_track(trace, TRACK_STEPS, "steps");
    name_track(trace, TRACK_REGIONS, "regions");
    name_track(trace, TRACK_OUT, "copy out");
    name_track(trace, TRACK_IN, "copy in");
}

/* ---- writing ---- */

static cJSON *slice(int track, const char *name, const char *category, double from, double to)
{
    char text[512];
    cJSON *const event = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "name", rw_utf8_copy(text, sizeof text, name));
    cJSON_AddStringToObject(event, "cat", category);
    cJSON_AddStringToObject(event, "ph", "X");
    cJSON_AddNumberToObject(event, "ts", from);
    cJSON_AddNumberToObject(event, "dur", to - from);
    cJSON_AddNumberToObject(event, "pid", 1);
    cJSON_AddNumberToObject(event, "tid", track);
    return event;
}

/* Work of a node by its op's cost function: with the time it shows how close the kernel is to the hardware's limits. */
static rw_op_cost cost_of(const rw_tape *t, const rw_plan *plan, const struct rw_node *node)
{
    rw_operand_desc *const descs = rw_malloc(((size_t)node->n_inputs + node->n_outputs) * sizeof *descs);
    if (!descs) return (rw_op_cost){ .flops = 0, .bytes = 0 };
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
    const rw_site at = rw_plan_site(t, plan, node);
    char file[480], site[512];
    snprintf(site, sizeof site, "%s:%d", rw_utf8_copy(file, sizeof file, rw_file_of(at)), (int)at.line);
    const int track = s->kind == RW_ACTION_OUT ? TRACK_OUT : s->kind == RW_ACTION_IN ? TRACK_IN : TRACK_STEPS;
    cJSON *const event = slice(track, t->ctx->ops[node->op]->name, rw_action_kind_name(s->kind), from, to);
    cJSON *const args = cJSON_AddObjectToObject(event, "args");
    cJSON_AddStringToObject(args, "kind", rw_action_kind_name(s->kind));
    cJSON_AddStringToObject(args, "site", site);
    const rw_op_cost moves = { .bytes = track == TRACK_STEPS ? 0 : moved_bytes(plan, s) };
    const rw_op_cost cost = track == TRACK_STEPS ? cost_of(t, plan, node) : moves;
    cJSON_AddNumberToObject(args, "flops", cost.flops);
    cJSON_AddNumberToObject(args, "bytes", cost.bytes);
    if (product) cJSON_AddStringToObject(args, "product", product);
    put(trace, event);
}

static uint32_t region_of(const rw_tape *t, const rw_plan *plan, size_t i)
{
    return rw_node_region(t, rw_plan_node(t, plan, plan->actions[i].node));
}

/* The actions [i, ret) have one region and kind, ignoring copies. *ret_last is the last compute action. */
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

/* Microseconds since the start of the trace. */
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

/* A device takes marks on its own queue; they are read when the part has run, so tracing adds no wait between
   actions. */
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
    return status ? rw_fail(ctx, status, "REWIND_TRACE: the device's clock could not be read") : RW_OK;
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
    if (status || !trace->n) return; /* it ended early, or nothing was executed */
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
    write_out(trace);
    trace->n = 0;
}

/* A failed write is an error of the next run, once; that run can be repeated. */
static rw_status attach(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer)
{
    struct trace *const trace = (struct trace *)self;
    if ((r->flags & RW_RUN_REHEARSAL) || trace->file.fd < 0) return RW_OK;
    *ret_observer = &trace->observer;
    if (!trace->fault || trace->told) return RW_OK;
    trace->told = trace->ctx->error_stays = true;
    return rw_fail(trace->ctx, RW_ERR_IO, "REWIND_TRACE: %s: the trace lacks actions of runs before this one",
                   strerror(trace->fault));
}

/* ---- opening and closing ---- */

static void leave_to_parent(struct rw_forked *f)
{
    struct trace *const trace = (struct trace *)(void *)((char *)f - offsetof(struct trace, forked));
    rw_records_close(&trace->file);
}

static void destroy(struct rw_attach *self)
{
    struct trace *const trace = (struct trace *)self;
    if (add_text(trace, "\n]\n", 3)) write_out(trace);
    rw_forked_remove(&trace->forked);
    rw_records_close(&trace->file);
    rw_free(trace->text);
    rw_free(trace->spans);
    rw_free(trace->times);
    rw_free(trace);
}

void rw_trace_attach(rw_context *ctx, const char *name)
{
    if (!name || !*name) return;
    const char *why = NULL;
    const int fd = rw_trace_file_open(name, &why);
    struct trace *const trace = fd >= 0 ? rw_calloc(1, sizeof *trace) : NULL;
    if (!trace) {
        rw_fail(ctx, fd >= 0 ? RW_ERR_MEMORY : RW_ERR_IO, "REWIND_TRACE=%s: %s", name, fd >= 0 ? "out of memory" : why);
        if (fd >= 0) close(fd);
        return;
    }
    *trace = (struct trace){ .attach = { .attach = attach, .destroy = destroy }, .ctx = ctx,
                             .observer = { .begin = begin, .before = before, .after = after, .end = end,
                                           .each_launch = true },
                             .file.fd = fd, .origin = 1e6 * rw_now_s() };
    rw_forked_add(&trace->forked, leave_to_parent);
    begin_text(trace);
    rw_runs_attach(ctx, &trace->attach);
}
