/* The observer of a verification: patterns, isolated execution, digests and comparisons for each action of a run. */
#include "verify/observer.h"

#include "base/alloc.h"
#include "base/round_up.h"
#include "verify/report.h"

#include <stdio.h>
#include <string.h>

bool rw_table_make(struct rw_table *table, const rw_plan *plan)
{
    table->n = plan->mark_values + plan->n_values;
    table->mark = plan->mark_values;
    table->first_computed = rw_plan_first_computed(plan);
    table->digest = rw_calloc(table->n, sizeof *table->digest);
    table->known = rw_calloc(table->n, sizeof *table->known);
    return table->digest && table->known;
}

void rw_table_free(struct rw_table *table)
{
    rw_free(table->digest);
    rw_free(table->known);
    *table = (struct rw_table){ 0 };
}

static rw_status failed(const struct rw_verifier *w, rw_status status)
{
    return status ? rw_fail(w->probe->ctx, status, "verification: a value could not be read") : RW_OK;
}

/* ---- patterns ---- */

uint64_t rw_verifier_margin(const struct rw_verifier *w)
{
    const uint64_t unit = w->probe->ctx->device->alignment;
    return rw_round_up(RW_MARGIN, unit) + (w->pattern == RW_PATTERN_NAN ? unit : 0);
}

static rw_status fill_arena(const struct rw_verifier *w, const struct rw_run *r)
{
    if (!r->arena) return RW_OK;
    return rw_patterns_fill(w->probe, rw_run_arena(r) - r->margin, r->plan->arena_bytes + 2 * r->margin, w->pattern);
}

static bool takes_an_input(const struct rw_at *at, int out)
{
    for (int i = 0; i < at->n_in; i++)
        if (rw_at_shares(at, out, i)) return true;
    return false;
}

/* Fills the buffers whose last use was this action. */
static rw_status fill_leaving(const struct rw_verifier *w, const struct rw_at *at)
{
    const struct rw_arena_buffers *const x = &w->buffers;
    const struct rw_run *const r = at->run;
    rw_status status = RW_OK;
    for (uint32_t i = x->ends[at->action]; !status && i < x->ends[at->action + 1]; i++) {
        const struct rw_arena_buffer *const b = &x->buffer[x->ending[i]];
        status = rw_patterns_fill(w->probe, rw_run_arena(r) + b->offset, rw_round_up(b->bytes, r->plan->unit),
                                  w->pattern);
    }
    return status;
}

/* Finds the highest byte that was written, searching from above by blocks; a written byte that equals the pattern is
   missed. A workspace counts as a whole: which part of it a kernel needs may depend on whether a gradient is clear. */
static rw_status measure(const struct rw_verifier *w, struct rw_run *r)
{
    rw_context *const ctx = w->probe->ctx;
    unsigned char block[1024];
    uint64_t end = r->plan->arena_bytes, some = 0;
    bool touched = false;
    while (end && !touched) {
        some = end < sizeof block ? end : sizeof block;
        const rw_status status = ctx->device->download(ctx->device_state, block, rw_run_arena(r) + end - some, some);
        if (status) return status;
        while (some && block[some - 1] == rw_pattern_byte[w->pattern]) some--, end--;
        touched = some;
    }
    end = rw_round_up(end, r->plan->unit);
    r->highest = end > r->highest_workspace ? end : r->highest_workspace;
    return RW_OK;
}

/* For a buffer in the arena this includes the bytes after its last element. If freed buffers are filled, it already
   is the pattern. */
static rw_status fill_outputs(const struct rw_verifier *w, const struct rw_at *at)
{
    const rw_plan *const p = at->run->plan;
    const uint32_t *const words = p->words + p->actions[at->action].word + at->n_in;
    rw_status status = RW_OK;
    for (int i = 0; !status && i < at->n_out; i++) {
        const bool in_arena = !rw_word_is_source(words[i]);
        const size_t bytes = rw_view_bytes(&at->out[i]);
        if (!bytes || (!in_arena && !rw_word_is(p, words[i], RW_SOURCE_RESULT)) || takes_an_input(at, i)) continue;
        if (in_arena && w->buffers_of && w->role == RW_WATCH_RECORDS) continue;
        status = rw_patterns_fill(w->probe, at->out[i].data, in_arena ? rw_round_up(bytes, p->unit) : bytes,
                                  w->pattern);
    }
    return status;
}

/* A kernel may have written outside of any operand; the arena's own margins catch what isolated execution did not. */
static rw_status check_margins(struct rw_verifier *w, const struct rw_at *at)
{
    const struct rw_run *const r = at->run;
    size_t first, last;
    bool whole = true;
    for (int at_end = 0; at_end < 2 && r->arena && !w->found.mismatches; at_end++) {
        const char *const margin = at_end ? rw_run_arena(r) + r->plan->arena_bytes : rw_run_arena(r) - RW_MARGIN;
        const rw_status status = rw_patterns_margin(w->probe, margin, w->pattern, &whole, &first, &last);
        if (status) return status;
        if (whole) continue;
        w->found.mismatches = 1;
        w->found.cause = CKPT_CAUSE_OUTSIDE;
        rw_report_place(r->tape, r->plan, at->node, at->kind == RW_ACTION_REPLAY, &w->found);
        snprintf(w->found.detail, sizeof w->found.detail, "it wrote %s the arena", at_end ? "after" : "before");
    }
    return RW_OK;
}

/* ---- values ---- */

static rw_status digest_view(const struct rw_verifier *w, const rw_view *v, struct rw_digest *ret)
{
    return rw_patterns_digest(w->probe, v->data, rw_view_bytes(v), ret);
}

static rw_status copy_bytes(struct rw_verifier *w, const rw_view *v)
{
    const rw_context *const ctx = w->probe->ctx;
    if (w->bytes) return RW_OK;
    w->n_bytes = rw_view_bytes(v);
    w->bytes = rw_malloc(w->n_bytes);
    if (!w->bytes) return RW_OK; /* the report then has no values */
    return ctx->device->download(ctx->device_state, w->bytes, v->data, w->n_bytes);
}

static bool same_ticket(const struct rw_at *at)
{
    if (at->node->ticket == RW_NONE_ID) return true;
    const rw_ticket t = rw_run_ticket(at->run, at->node);
    return t.seed == at->ticket.seed && t.offset == at->ticket.offset;
}

/* The leaf of an operand that is constant during a step; RW_NONE_ID for any other operand. */
static uint32_t leaf_of(const struct rw_at *at, int i)
{
    const rw_plan *const p = at->run->plan;
    const rw_tape *const t = at->run->tape;
    const uint32_t v = rw_plan_operand(t, p, at->node->first_input + (uint32_t)i);
    if (v >= p->mark_values) return RW_NONE_ID;
    const struct rw_tensor *const base = rw_tape_value(t, rw_tape_base(t, v));
    return base->producer == RW_NONE_ID && t->leaves[base->leaf].kind != RW_LEAF_GRADIENT ? v : RW_NONE_ID;
}

/* Digests leaves when an action first reads them; a strided view by its span. */
static rw_status note_leaves(struct rw_verifier *w, const struct rw_at *at)
{
    rw_status status = RW_OK;
    for (int i = 0; !status && i < at->n_in; i++) {
        const uint32_t v = leaf_of(at, i);
        if (v == RW_NONE_ID || w->table->known[v]) continue;
        status = rw_patterns_digest(w->probe, at->in[i].data, rw_view_span(&at->in[i]), &w->table->digest[v]);
        w->table->known[v] = true;
    }
    return status;
}

static rw_status find_changed_leaf(struct rw_verifier *w, const struct rw_at *at)
{
    rw_status status = RW_OK;
    for (int i = 0; !status && i < at->n_in; i++) {
        const uint32_t v = leaf_of(at, i);
        struct rw_digest now;
        if (v == RW_NONE_ID || v >= w->table->mark || !w->table->known[v]) continue;
        status = rw_patterns_digest(w->probe, at->in[i].data, rw_view_span(&at->in[i]), &now);
        w->input_differs |= !rw_digest_equal(now, w->table->digest[v]);
    }
    return status;
}

static rw_status note(struct rw_verifier *w, const struct rw_at *at)
{
    rw_status status = RW_OK;
    for (int i = 0; !status && i < at->n_out; i++) {
        const uint32_t v = at->node->first_output + (uint32_t)i;
        const struct rw_digest *const known = w->iso && !w->found.mismatches ? rw_isolation_output(w->iso, at,
                                                                                                         i) : NULL;
        if (known) w->table->digest[v] = *known;
        else status = digest_view(w, &at->out[i], &w->table->digest[v]);
        w->table->known[v] = true;
    }
    return status;
}

/* Remembers outputs that are published or added to: they are compared again when the run ends. */
static void note_written(struct rw_verifier *w, const struct rw_at *at, int i, struct rw_digest digest)
{
    const rw_plan *const p = at->run->plan;
    const uint32_t word = p->words[p->actions[at->action].word + (uint32_t)(at->n_in + i)];
    if (rw_word_is(p, word, RW_SOURCE_RESULT) || rw_word_is(p, word, RW_SOURCE_GRADIENT))
        w->written[rw_word_source(word)] = (struct rw_written){ digest, at->out[i].data, rw_view_bytes(&at->out[i]),
                                                                at->action };
}

static rw_status first_mismatch(struct rw_verifier *w, const struct rw_at *at, int output)
{
    w->any = true;
    w->action = at->action;
    w->output = output;
    if (!at->node) {
        w->moved = true;
        return copy_bytes(w, &at->out[0]);
    }
    w->ticket_differs = !same_ticket(at);
    const rw_status status = find_changed_leaf(w, at);
    return status ? status : copy_bytes(w, &at->out[output]);
}

static rw_status compare(struct rw_verifier *w, const struct rw_at *at)
{
    rw_status status = RW_OK;
    for (int i = 0; !status && i < at->n_out; i++) {
        const uint32_t v = rw_table_at(w->table, at->run->plan, at->node->first_output + (uint32_t)i);
        struct rw_digest now;
        w->replayed += at->kind == RW_ACTION_REPLAY;
        status = digest_view(w, &at->out[i], &now);
        note_written(w, at, i, now);
        if (status || v >= w->table->n || !w->table->known[v] || rw_digest_equal(now, w->table->digest[v])) continue;
        w->mismatches++;
        if (!w->any) status = first_mismatch(w, at, i);
    }
    return status;
}

static rw_status capture(struct rw_verifier *w, const struct rw_at *at)
{
    if (at->run->plan->actions[at->action].node != w->node) return RW_OK;
    if (w->at_action != SIZE_MAX ? at->action != w->at_action : at->kind == RW_ACTION_REPLAY) return RW_OK;
    const rw_view *const v = &at->out[at->node ? w->output : 0];
    const rw_status status = digest_view(w, v, &w->digest);
    return status ? status : copy_bytes(w, v);
}

/* Digests each result again after the last action. The caller may be the only reader of a result, and then no node
   would notice that it was overwritten. */
rw_status rw_verifier_check_results(struct rw_verifier *w, const struct rw_run *r)
{
    for (size_t i = 0; i < r->plan->n_sources; i++) {
        const struct rw_written *const x = &w->written[i];
        struct rw_digest now;
        if (!x->data) continue;
        const rw_status status = rw_patterns_digest(w->probe, x->data, x->bytes, &now);
        if (status) return failed(w, status);
        if (rw_digest_equal(now, x->digest)) continue;
        w->mismatches++;
        if (w->found.mismatches) continue;
        w->found.mismatches = 1;
        w->found.cause = CKPT_CAUSE_CORRUPTION;
        rw_report_place(r->tape, r->plan, rw_plan_node(r->tape, r->plan, r->plan->actions[x->action].node), false,
                        &w->found);
        snprintf(w->found.detail, sizeof w->found.detail, "its result was overwritten before the step ended");
    }
    return RW_OK;
}

/* ---- the observer ---- */

static rw_status find_buffers(struct rw_verifier *w, const struct rw_run *r)
{
    if (w->buffers_of == r->plan->serial) return RW_OK;
    rw_arena_buffers_free(&w->buffers);
    w->buffers_of = 0;
    if (!rw_arena_buffers_find(&w->buffers, r->tape, r->plan))
        return rw_fail(w->probe->ctx, RW_ERR_MEMORY, "verification: out of memory");
    w->buffers_of = r->plan->serial;
    return RW_OK;
}

static rw_status begin(struct rw_observer *o, struct rw_run *r, size_t from, size_t to)
{
    struct rw_verifier *const w = (struct rw_verifier *)o;
    if (w->role == RW_WATCH_COMPARES) {
        if (!rw_grow(&w->written, &w->cap_written, 0, r->plan->n_sources, sizeof *w->written))
            return rw_fail(w->probe->ctx, RW_ERR_MEMORY, "verification: out of memory");
        if (r->plan->n_sources) memset(w->written, 0, r->plan->n_sources * sizeof *w->written);
    }
    w->last = to - 1;
    if (from) return RW_OK;
    const bool rehearsed = w->role == RW_WATCH_RECORDS && (r->flags & RW_RUN_REHEARSAL);
    const rw_status status = rehearsed ? find_buffers(w, r) : RW_OK;
    return status ? status : failed(w, fill_arena(w, r));
}

/* Ends the run if something was found, because later results would mean nothing. */
static rw_status give_verdict(struct rw_verifier *w)
{
    if (!w->found.mismatches) return RW_OK;
    char text[RW_MESSAGE_MAX];
    if (!w->says) return RW_ERR_MISMATCH;
    rw_report_text(&w->found, text, sizeof text);
    return rw_fail(w->probe->ctx, RW_ERR_MISMATCH, "%s", text);
}

static rw_status before(struct rw_observer *o, struct rw_at *at)
{
    struct rw_verifier *const w = (struct rw_verifier *)o;
    rw_status status = RW_OK;
    if (!at->node || at->kind == RW_ACTION_COMMIT) return RW_OK;
    if (w->role == RW_WATCH_RECORDS) status = note_leaves(w, at);
    if (!status) status = fill_outputs(w, at);
    if (status) return failed(w, status);
    const struct rw_table *const noted = w->role == RW_WATCH_RECORDS ? w->table : NULL;
    if (w->iso && w->role < RW_WATCH_COMPARES) status = rw_isolation_before(w->iso, at, noted, &w->found);
    return status ? status : give_verdict(w);
}

static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    struct rw_verifier *const w = (struct rw_verifier *)o;
    rw_status status = RW_OK;
    if (!at->node || at->kind == RW_ACTION_COMMIT) return RW_OK;
    if (w->iso && w->role < RW_WATCH_COMPARES) status = rw_isolation_after(w->iso, at, &w->found);
    if (status) return status;
    status = w->role == RW_WATCH_CAPTURES   ? capture(w, at)
             : w->role == RW_WATCH_COMPARES ? compare(w, at)
             : w->role == RW_WATCH_RECORDS    ? note(w, at)
                                            : RW_OK;
    if (!status) status = check_margins(w, at);
    if (!status && w->role == RW_WATCH_RECORDS && w->buffers_of && at->run->arena) status = fill_leaving(w, at);
    if (!status && w->role == RW_WATCH_COMPARES && at->run->arena && at->action == w->last)
        status = measure(w, at->run);
    return status ? failed(w, status) : give_verdict(w);
}

/* A value that was copied in must, like a replay, have the bytes of its first computation. */
static rw_status arrived(struct rw_observer *o, const struct rw_at *at)
{
    struct rw_verifier *const w = (struct rw_verifier *)o;
    struct rw_digest now;
    rw_status status = RW_OK;
    if (w->role == RW_WATCH_CAPTURES) status = at->action == w->at_action ? capture(w, at) : RW_OK;
    if (w->role != RW_WATCH_COMPARES) return failed(w, status);
    const rw_plan *const p = at->run->plan;
    const uint32_t v = rw_table_at(w->table, p, at->value);
    if (v >= w->table->n || !w->table->known[v]) return RW_OK;
    status = digest_view(w, &at->out[0], &now);
    if (status || rw_digest_equal(now, w->table->digest[v])) return failed(w, status);
    w->mismatches++;
    const uint32_t first = rw_plan_node(at->run->tape, p, p->actions[at->action].node)->first_output;
    return w->any ? RW_OK : failed(w, first_mismatch(w, at, (int)(at->value - first)));
}

struct rw_verifier *rw_verifier_of_run(const struct rw_run *r)
{
    for (int i = 0; i < r->n_observers; i++)
        if (r->observer[i]->before == before) return (struct rw_verifier *)r->observer[i];
    return NULL;
}

void rw_verifier_init(struct rw_verifier *w, enum rw_verifier_role role, enum rw_pattern pattern,
                      const struct rw_patterns *probe)
{
    *w = (struct rw_verifier){ .observer = { .begin = begin, .before = before, .after = after, .arrived = arrived },
                               .role = role, .pattern = pattern, .probe = probe };
}

void rw_verifier_finish(struct rw_verifier *w)
{
    rw_table_free(&w->own);
    rw_arena_buffers_free(&w->buffers);
    w->buffers_of = 0;
    rw_free(w->written);
    rw_free(w->bytes);
    w->written = NULL;
    w->bytes = NULL;
    w->cap_written = 0;
}
