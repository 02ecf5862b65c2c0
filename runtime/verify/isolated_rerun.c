/* Isolated re-execution: copies operands between margins, executes a node twice, and compares with its execution in
   place. A difference is attributed to a cause by the pattern that it shows. */
#include "verify/isolated_rerun.h"

#include "base/alloc.h"
#include "base/round_up.h"
#include "base/thread_team.h"
#include "run/failure_message.h"
#include "run/execute.h"
#include "verify/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ALIASING ((uintptr_t)1 << 16) /* addresses differ in the bits below this one */

/* Which patterns: memory around an input may be read by mistake, memory around the rest may be written or added to.
   An output first holds an ordinary number, integers and the workspace 0, then a large one; NaN is what the place in
   the plan holds (observer.h). */
static const enum rw_pattern beside_read[RW_ROOMS] = { RW_PATTERN_SOME, RW_PATTERN_NAN };
static const enum rw_pattern beside_written[RW_ROOMS] = { RW_PATTERN_LOW, RW_PATTERN_ZERO };

#define IN_PLACE RW_ROOMS

static enum rw_pattern within(int pass, rw_dtype dtype)
{
    if (pass == IN_PLACE) return RW_PATTERN_NAN;
    return pass ? RW_PATTERN_HIGH : rw_dtype_is_float(dtype) ? RW_PATTERN_ORDINARY : RW_PATTERN_ZERO;
}

/* One of the two runs. */
struct pass {
    struct rw_isolation *iso;
    struct rw_at *at;
    int number;
    int fill_outputs, fill_workspace; /* of within(): what they hold first */
    char *next; /* start of the next operand: a multiple of ALIASING */
    rw_view *views;
    rw_kernel k;
};

void rw_isolation_open(struct rw_isolation *iso, const struct rw_patterns *probe)
{
    *iso = (struct rw_isolation){ .probe = probe };
}

void rw_isolation_close(struct rw_isolation *iso)
{
    if (!iso->probe) return;
    const rw_context *const ctx = iso->probe->ctx;
    ctx->device->free(ctx->device_state, iso->data);
    if (iso->words) ctx->device->free_words(ctx->device_state, iso->words);
    rw_free(iso->views);
    rw_free(iso->descs);
    rw_free(iso->digests);
    *iso = (struct rw_isolation){ 0 };
}

bool rw_at_shares(const struct rw_at *at, int out, int in)
{
    const char *const a = at->out[out].data, *const b = at->in[in].data;
    return a && b && a < b + rw_view_span(&at->in[in]) && b < a + rw_view_span(&at->out[out]);
}

/* ---- memory for operands ---- */

static size_t slot_bytes(size_t bytes)
{
    return rw_round_up(2 * ALIASING + bytes + RW_MARGIN, ALIASING);
}

static rw_op_call call_of(const struct rw_isolation *iso, const struct rw_at *at, int threads)
{
    rw_context *const ctx = iso->probe->ctx;
    const rw_kernel k = rw_execute_kernel(at);
    for (int i = 0; i < at->n_in; i++) iso->descs[i] = (rw_operand_desc){ at->in[i].dtype, at->in[i].layout };
    for (int i = 0; i < at->n_out; i++) iso->descs[at->n_in + i] = (rw_operand_desc){ at->out[i].dtype,
                                                                                            at->out[i].layout };
    return (rw_op_call){ .op = k.op, .attrs = k.attrs, .n_inputs = at->n_in, .n_outputs = at->n_out,
                         .in = iso->descs, .out = iso->descs + at->n_in, .kind = ctx->kind, .threads = threads,
                         .device = ctx->device_state, .ctx = ctx };
}

/* SIZE_MAX: out of memory. */
static size_t workspace_of(const struct rw_isolation *iso, const struct rw_at *at, int threads)
{
    const rw_op_call call = call_of(iso, at, threads);
    return rw_call_workspace(&call);
}

/* Number of threads of the other execution: two if the run has one, if a second can be started. */
static int threads_of(const struct rw_at *at, int pass)
{
    const int threads = at->run->threads;
    if (pass || threads > 1) return pass ? threads : 1;
    return at->run->tape->ctx->device->on_host && !rw_team_ready(2) ? 2 : threads;
}

static bool has_memory(const rw_view *v)
{
    return v->data && rw_view_span(v);
}

/* Reserves memory for both executions of one action: each operand between margins, and the workspace. The memory
   grows to the largest action and is kept for the next one. */
static bool make_room(struct rw_isolation *iso, const struct rw_at *at)
{
    const rw_context *const ctx = iso->probe->ctx;
    const size_t n = (size_t)at->n_in + (size_t)at->n_out;
    size_t bytes = ALIASING;
    if (!rw_grow(&iso->views, &iso->cap_views, 0, RW_ROOMS * n, sizeof *iso->views) ||
        !rw_grow(&iso->descs, &iso->cap_descs, 0, n, sizeof *iso->descs) ||
        !rw_grow(&iso->digests, &iso->cap_digests, 0, n, sizeof *iso->digests))
        return false;
    for (int pass = 0; pass < RW_ROOMS; pass++) {
        const size_t workspace = workspace_of(iso, at, threads_of(at, pass));
        if (workspace == SIZE_MAX) return false;
        bytes += workspace ? slot_bytes(workspace) : 0;
        for (int i = 0; i < at->n_in; i++) bytes += has_memory(&at->in[i]) ? slot_bytes(rw_view_span(&at->in[i])) : 0;
        for (int i = 0; i < at->n_out; i++)
            bytes += has_memory(&at->out[i]) ? slot_bytes(rw_view_span(&at->out[i])) : 0;
    }
    if (!iso->words && ctx->device->make_words && !(iso->words = ctx->device->make_words(ctx->device_state)))
        return false;
    if (iso->bytes >= bytes) return true;
    ctx->device->free(ctx->device_state, iso->data);
    iso->data = ctx->device->alloc(ctx->device_state, bytes);
    iso->bytes = iso->data ? bytes : 0;
    return iso->data;
}

/* Alignment of such an operand in a plan: results are placed closer together than buffers in the arena, and scalar
   results share a group. */
static uintptr_t unit_of(const rw_view *v)
{
    return v->layout->rank ? RW_RESULT_ALIGNMENT : rw_dtype_size(v->dtype);
}

/* An address for a copy: in one execution one unit further, in the other with all of these bits inverted. */
static char *next_place(struct pass *p, const void *original, size_t bytes, uintptr_t unit)
{
    const uintptr_t low = (uintptr_t)original & (ALIASING - 1);
    char *const at = p->next + ALIASING + (p->number ? low ^ (ALIASING - unit) : (low + unit) & (ALIASING - 1));
    p->next += slot_bytes(bytes);
    return at;
}

/* Copies an operand, or fills it with a pattern, between margins. */
static rw_status put(struct pass *p, char *at, const void *given, enum rw_pattern pattern, size_t bytes)
{
    const rw_context *const ctx = p->iso->probe->ctx;
    const enum rw_pattern around = given ? beside_read[p->number] : beside_written[p->number];
    rw_status status = rw_patterns_fill(p->iso->probe, at - RW_MARGIN, RW_MARGIN, around);
    if (!status)
        status = given ? ctx->device->upload(ctx->device_state, at, given, bytes)
                       : rw_patterns_fill(p->iso->probe, at, bytes, pattern);
    return status ? status : rw_patterns_fill(p->iso->probe, at + bytes, RW_MARGIN, around);
}

/* Copies the inputs, and fills outputs and workspace with a pattern. The views then point to the copies: the kernel
   sees no memory of the run. */
static rw_status furnish(struct pass *p)
{
    const struct rw_at *const at = p->at;
    const rw_context *const ctx = p->iso->probe->ctx;
    const int n = at->n_in + at->n_out;
    /* Device memory is read immediately, and queued work may still write it or copy it in. */
    rw_status status = ctx->device->finish(ctx->device_state);
    for (int i = 0; !status && i < n; i++) {
        const rw_view *const from = i < at->n_in ? &at->in[i] : &at->out[i - at->n_in];
        p->views[i] = *from;
        if (!has_memory(from)) continue;
        p->views[i].data = next_place(p, from->data, rw_view_span(from), unit_of(from));
        status = put(p, p->views[i].data, i < at->n_in ? from->data : NULL, within(p->fill_outputs, from->dtype),
                     rw_view_span(from));
    }
    p->k.workspace_bytes = workspace_of(p->iso, at, p->k.threads);
    if (status || !p->k.workspace_bytes) return status;
    p->k.workspace = next_place(p, NULL, p->k.workspace_bytes, RW_RESULT_ALIGNMENT);
    return put(p, p->k.workspace, NULL, within(p->fill_workspace, RW_I32), p->k.workspace_bytes); /* 0 at first */
}

/* ---- determining the fault ---- */

static rw_status download(const struct rw_isolation *iso, void *to, const void *from, size_t bytes)
{
    const rw_context *const ctx = iso->probe->ctx;
    return ctx->device->download(ctx->device_state, to, from, bytes);
}

static void accuse(const struct rw_at *at, ckpt_cause cause, int output, ckpt_report *report)
{
    const rw_tape *const t = at->run->tape;
    const uint32_t v = output < 0 ? RW_NONE_ID : at->node->first_output + (uint32_t)output;
    report->mismatches = 1;
    report->cause = cause;
    rw_report_place(t, at->run->plan, at->node, at->kind == RW_ACTION_REPLAY, report);
    if (v < at->run->plan->mark_values)
        snprintf(report->value, sizeof report->value, "%s", rw_tensor_name(rw_tape_value(t, v)));
}

/* Checks the margins of an operand or of the workspace. */
static rw_status check_margins(const struct pass *p, const enum rw_pattern *beside, const char *what, int i,
                               const char *data, size_t bytes, ckpt_report *report)
{
    bool whole;
    size_t first, last;
    for (int at_end = 0; at_end < 2; at_end++) {
        const char *const margin = at_end ? data + bytes : data - RW_MARGIN;
        const rw_status status = rw_patterns_margin(p->iso->probe, margin, beside[p->number], &whole, &first,
                                                    &last);
        if (status || whole) {
            if (status) return status;
            continue;
        }
        accuse(p->at, CKPT_CAUSE_OUTSIDE, -1, report);
        snprintf(report->detail, sizeof report->detail, "it wrote %s its %s %d, from byte %td to %td of %zu",
                 at_end ? "after" : "before", what, i, margin + first - data, margin + last - data, bytes);
        return RW_OK;
    }
    return RW_OK;
}

/* Detects writes to inputs. An input that the op may overwrite in place is exempt. */
static rw_status check_inputs(const struct rw_isolation *iso, const struct rw_at *at, const rw_view *in, bool in_place,
                              ckpt_report *report)
{
    for (int i = 0; !report->mismatches && i < at->n_in; i++) {
        struct rw_digest now;
        bool shares = false;
        if (!has_memory(&in[i])) continue;
        for (int k = 0; in_place && k < at->n_out; k++) shares |= rw_at_shares(at, k, i);
        if (shares) continue;
        const rw_status status = rw_patterns_digest(iso->probe, in[i].data, rw_view_span(&in[i]), &now);
        if (status) return status;
        if (rw_digest_equal(now, iso->digests[i])) continue;
        if (!in_place) { /* the digest of the input may be outdated: another node has written to it since */
            const rw_status again = rw_patterns_digest(iso->probe, at->in[i].data, rw_view_span(&at->in[i]),
                                                       &iso->digests[i]);
            if (again) return again;
            if (rw_digest_equal(now, iso->digests[i])) continue;
        }
        accuse(at, CKPT_CAUSE_INPUT_WRITTEN, -1, report);
        snprintf(report->detail, sizeof report->detail, "it wrote over its input %d", i);
    }
    return RW_OK;
}

static rw_status check_pass(const struct pass *p, ckpt_report *report)
{
    const struct rw_at *const at = p->at;
    rw_status status = RW_OK;
    for (int i = 0; !status && !report->mismatches && i < at->n_out; i++)
        if (has_memory(&p->k.out[i]))
            status = check_margins(p, beside_written, "output", i, p->k.out[i].data, rw_view_span(&p->k.out[i]),
                                   report);
    if (!status && !report->mismatches && p->k.workspace)
        status = check_margins(p, beside_written, "workspace", 0, p->k.workspace, p->k.workspace_bytes, report);
    if (!status && !report->mismatches) status = check_inputs(p->iso, at, p->k.in, false, report);
    for (int i = 0; !status && !report->mismatches && i < at->n_in; i++)
        if (has_memory(&p->k.in[i]))
            status = check_margins(p, beside_read, "input", i, p->k.in[i].data, rw_view_span(&p->k.in[i]), report);
    return status;
}

static bool holds(const unsigned char *data, size_t bytes, enum rw_pattern pattern)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != rw_pattern_byte[pattern]) return false;
    return true;
}

/* Two executions gave different bytes: where, and why if that can be determined. The second one was in the second
   isolated execution or in place. */
static rw_status describe(const struct rw_isolation *iso, const struct rw_at *at, int output, const void *a,
                          const void *b, ckpt_report *report)
{
    const rw_view *const v = &at->out[output];
    const size_t bytes = rw_view_span(v), size = rw_dtype_size(v->dtype);
    unsigned char *const x = rw_malloc(bytes), *const y = rw_malloc(bytes);
    rw_status status = x && y ? download(iso, x, a, bytes) : RW_ERR_MEMORY;
    if (!status) status = download(iso, y, b, bytes);
    if (!status) {
        accuse(at, CKPT_CAUSE_NONDETERMINISTIC, output, report);
        rw_report_element(x, y, bytes, v->dtype, report);
        const size_t from = (size_t)report->element * size;
        if (holds(x + from, size, within(0, v->dtype)) && holds(y + from, size, within(1, v->dtype))) {
            report->cause = CKPT_CAUSE_UNWRITTEN;
            snprintf(report->detail, sizeof report->detail, "it left element %" PRId64 " of output %d unwritten",
                     report->element, output);
        } else {
            snprintf(report->detail, sizeof report->detail,
                     "re-executed in isolation it gave different bytes in output %d: it depends on more than its "
                     "inputs",
                     output);
        }
    }
    rw_free(x);
    rw_free(y);
    return status;
}

/* ---- the two runs ---- */

/* The two executions differ in everything that a result must not depend on: number of threads, serial number of the
   call, addresses, and bytes beside the operands and in memory that is not yet written. */
static rw_status run_pass(struct pass *p)
{
    struct rw_at *const at = p->at;
    rw_context *const ctx = p->iso->probe->ctx;
    p->k = rw_execute_kernel(at);
    p->k.threads = threads_of(at, p->number);
    p->k.serial = p->number ? ~p->k.serial & INT32_MAX : p->k.serial + 1;
    p->k.words_ = p->iso->words;
    p->k.in = p->views;
    p->k.out = p->views + at->n_in;
    rw_status status = furnish(p);
    if (status) return rw_fail(ctx, status, "verification: %s", rw_status_name(status));
    const rw_kernel_fn kernel = p->k.op->kernel[ctx->kind];
    status = kernel ? rw_call_kernel(ctx, kernel, &p->k) : RW_ERR_UNSUPPORTED;
    /* a custom kernel may have recorded, which moves the nodes */
    at->node = rw_plan_node(at->run->tape, at->run->plan, at->run->plan->actions[at->action].node);
    const rw_view *const in = ctx->device->on_host ? p->k.in : NULL;
    return status ? rw_action_failed(at->run, at->action, in, at->n_in, status) : RW_OK;
}

/* Leaves were digested by their span, outputs of nodes by their bytes. */
static bool is_noted(const struct rw_table *noted, const struct rw_at *at, uint32_t v, int i)
{
    return noted && v < noted->n && noted->known[v] &&
           (rw_view_span(&at->in[i]) == rw_view_bytes(&at->in[i]) ||
            (v < noted->mark && rw_tape_value(at->run->tape, rw_tape_base(at->run->tape, v))->producer == RW_NONE_ID));
}

static rw_status note_inputs(struct rw_isolation *iso, const struct rw_at *at, const struct rw_table *noted)
{
    rw_status status = RW_OK;
    for (int i = 0; !status && i < at->n_in; i++) {
        const uint32_t v = rw_plan_operand(at->run->tape, at->run->plan, at->node->first_input + (uint32_t)i);
        if (!has_memory(&at->in[i])) continue;
        if (is_noted(noted, at, v, i)) iso->digests[i] = noted->digest[v];
        else status = rw_patterns_digest(iso->probe, at->in[i].data, rw_view_span(&at->in[i]), &iso->digests[i]);
    }
    return status;
}

static char *first_place(const struct rw_isolation *iso)
{
    return (char *)rw_round_up((uintptr_t)iso->data, ALIASING);
}

/* Executes the first of the two again, with these contents of outputs and workspace. Does it give the same output? */
static rw_status is_repeated(struct rw_isolation *iso, struct rw_at *at, int fill_outputs, int fill_workspace,
                             int output, bool *ret)
{
    struct pass p = { .iso = iso, .at = at, .fill_outputs = fill_outputs, .fill_workspace = fill_workspace,
                      .next = first_place(iso), .views = iso->views };
    struct rw_digest now;
    rw_status status = run_pass(&p);
    if (!status) status = rw_patterns_digest(iso->probe, p.k.out[output].data, rw_view_span(&p.k.out[output]), &now);
    *ret = !status && rw_digest_equal(now, iso->digests[at->n_in + output]);
    return status;
}

/* After an execution gave other bytes in an output than the first: if equal conditions give equal bytes, and the other
   one's contents of the outputs or of the workspace alone give others, the kernel reads or adds to what is there. */
static rw_status check_reads_undefined(struct rw_isolation *iso, struct rw_at *at, int pass, int output,
                                       ckpt_report *report)
{
    bool repeated, with_outputs, with_workspace;
    if (report->cause != CKPT_CAUSE_NONDETERMINISTIC) return RW_OK;
    rw_status status = is_repeated(iso, at, 0, 0, output, &repeated);
    if (!status) status = is_repeated(iso, at, pass, 0, output, &with_outputs);
    if (!status) status = is_repeated(iso, at, 0, pass, output, &with_workspace);
    if (!status && repeated) status = is_repeated(iso, at, 0, 0, output, &repeated); /* again: not every second time */
    if (status || !repeated || (with_outputs && with_workspace)) return status;
    report->cause = CKPT_CAUSE_UNDEFINED_READ;
    if (!with_outputs)
        snprintf(report->detail, sizeof report->detail, "outputs are undefined before the kernel runs; this kernel "
                 "reads or adds to them, and output %d depends on that", output);
    else
        snprintf(report->detail, sizeof report->detail, "the workspace is undefined before the kernel runs; this "
                 "kernel reads it, and output %d depends on that", output);
    return RW_OK;
}

/* Compares outputs of the second execution with the first one's. */
static rw_status compare_passes(struct rw_isolation *iso, const struct pass *pass, ckpt_report *report)
{
    struct rw_at *const at = pass->at;
    rw_status status = RW_OK;
    for (int i = 0; !status && !report->mismatches && i < at->n_out; i++) {
        struct rw_digest *const first = &iso->digests[at->n_in + i], second;
        if (!has_memory(&at->out[i])) continue;
        status = rw_patterns_digest(iso->probe, pass[0].views[at->n_in + i].data, rw_view_span(&at->out[i]), first);
        if (!status)
            status = rw_patterns_digest(iso->probe, pass[1].views[at->n_in + i].data, rw_view_span(&at->out[i]),
                                        &second);
        if (status || rw_digest_equal(*first, second)) continue;
        status = describe(iso, at, i, pass[0].views[at->n_in + i].data, pass[1].views[at->n_in + i].data, report);
        if (!status) status = check_reads_undefined(iso, at, 1, i, report);
    }
    return status;
}

static rw_status try_twice(struct rw_isolation *iso, struct rw_at *at, const struct rw_table *noted,
                           ckpt_report *report)
{
    struct pass pass[RW_ROOMS];
    char *next = first_place(iso);
    rw_status status = note_inputs(iso, at, noted);
    for (int i = 0; !status && !report->mismatches && i < RW_ROOMS; i++) {
        pass[i] = (struct pass){ .iso = iso, .at = at, .number = i, .fill_outputs = i, .fill_workspace = i,
                                 .next = next, .views = iso->views + i * (at->n_in + at->n_out) };
        status = run_pass(&pass[i]);
        if (!status) status = check_pass(&pass[i], report);
        next = pass[i].next;
    }
    return status || report->mismatches ? status : compare_passes(iso, pass, report);
}

rw_status rw_isolation_before(struct rw_isolation *iso, struct rw_at *at, const struct rw_table *noted,
                              ckpt_report *report)
{
    rw_context *const ctx = iso->probe->ctx;
    iso->tried = false;
    if (!at->node) return RW_OK;
    if (ctx->ops[at->node->op]->flags & (RW_OP_STATEFUL | RW_OP_COMMIT | RW_OP_NONDETERMINISTIC)) return RW_OK;
    if (!make_room(iso, at)) return rw_fail(ctx, RW_ERR_MEMORY, "verification: out of memory");
    const rw_status status = try_twice(iso, at, noted, report);
    iso->tried = !status && !report->mismatches;
    return status ? rw_fail(ctx, status, "verification: %s", rw_status_name(status)) : RW_OK;
}

rw_status rw_isolation_after(struct rw_isolation *iso, const struct rw_at *at, ckpt_report *report)
{
    struct rw_at again = *at;
    rw_status status = RW_OK;
    for (int i = 0; iso->tried && !status && !report->mismatches && i < at->n_out; i++) {
        struct rw_digest now;
        if (!has_memory(&at->out[i])) continue;
        status = rw_patterns_digest(iso->probe, at->out[i].data, rw_view_span(&at->out[i]), &now);
        if (status || rw_digest_equal(now, iso->digests[at->n_in + i])) continue;
        status = describe(iso, at, i, iso->views[at->n_in + i].data, at->out[i].data, report);
        if (!status) status = check_reads_undefined(iso, &again, IN_PLACE, i, report);
    }
    if (iso->tried && !status && !report->mismatches) status = check_inputs(iso, at, at->in, true, report);
    return status ? rw_fail(iso->probe->ctx, status, "verification: %s", rw_status_name(status)) : RW_OK;
}

const struct rw_digest *rw_isolation_output(const struct rw_isolation *iso, const struct rw_at *at, int i)
{
    const rw_view *const v = &at->out[i];
    return iso->tried && has_memory(v) && rw_view_span(v) == rw_view_bytes(v) ? &iso->digests[at->n_in + i] : NULL;
}
