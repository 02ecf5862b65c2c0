/*
 * Tapes: creation, reset, destruction, and the memory of their arrays. Recording is in record.c, leaves in leaves.c.
 *
 * Values are in chunks that never move, because callers hold their addresses. Reset keeps all memory but reuses chunks
 * in rotation: the chunks of this step are used last. So a handle from before the reset points to a value that the tape
 * does not have at that number, and handle_check.c can report it; only after several steps is its memory reused.
 */
#include "record/tape.h"

#include "base/alloc.h"

#include <rewind/ops.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rw_status set_first_policy(rw_tape *t)
{
    const char *const wanted = secure_getenv("REWIND_POLICY");
    const char *const spec = wanted && *wanted ? wanted : "none";
    char message[RW_MESSAGE_MAX];
    const rw_status status = rw_policy_parse(spec, &t->policy, message, sizeof message);
    if (status) return rw_fail(t->ctx, status, "REWIND_POLICY: %s", message);
    t->policy_pinned = t->policy.whole = spec == wanted;
    t->policy_spec = rw_strdup(spec);
    if (!t->policy_spec) return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_tape_create: out of memory");
    return RW_OK;
}

rw_status rw_tape_create(rw_tape **ret_tape, rw_context *ctx)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ret_tape || !ctx) return rw_fail_null(ctx, "rw_tape_create", ctx ? "ret_tape" : "ctx");
    rw_tape *t = rw_calloc(1, sizeof *t);
    if (!t) return rw_fail(ctx, RW_ERR_MEMORY, "rw_tape_create: out of memory");
    t->ctx = ctx;
    ctx->n_users++;
    t->n_users = 1;
    t->step = 1;
    t->open_region = t->open_part = t->open_recipe = RW_NONE_ID;
    t->next = ctx->tapes;
    t->link = &ctx->tapes;
    if (t->next) t->next->link = &t->next;
    ctx->tapes = t;
    rw_status status = set_first_policy(t);
    if (!status && !rw_extensions_open(&ctx->extensions, t))
        status = rw_fail(ctx, RW_ERR_MEMORY, "rw_tape_create: out of memory");
    if (status) {
        rw_tape_release(t); /* without a reset: some extensions may not know it */
        return status;
    }
    *ret_tape = t;
    return RW_OK;
}

static bool add_chunk(rw_tape *t)
{
    const size_t values = t->n_chunks * RW_VALUE_CHUNK;
    if (!rw_grow(&t->chunks, &t->cap_chunks, t->n_chunks, 1, sizeof *t->chunks)) return false;
    if (!rw_grow(&t->requested, &t->cap_requested, values, RW_VALUE_CHUNK, sizeof *t->requested)) return false;
    struct rw_tensor *const chunk = rw_malloc(RW_VALUE_CHUNK * sizeof *chunk);
    if (chunk) t->chunks[t->n_chunks++] = chunk;
    return chunk != NULL;
}

static void reverse(void **p, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        void *const other = p[i];
        p[i] = p[n - 1 - i];
        p[n - 1 - i] = other;
    }
}

void rw_rest(void *pointers, size_t used, size_t n)
{
    reverse(pointers, used);
    reverse((void **)pointers + used, n - used);
    reverse(pointers, n);
}

/* Rotates the chunks at a reset, so that handles of this step differ from those of the next (handle.h). If memory is
   exhausted, some stale handles are not detected. */
static void rest_values(rw_tape *t, size_t used)
{
    if (!used) return;
    while (t->n_chunks < used + 2 || t->n_chunks < RW_VALUE_CHUNKS)
        if (!add_chunk(t)) break;
    rw_rest(t->chunks, used < t->n_chunks ? used : 1, t->n_chunks);
}

/* Empties the tape for the next step. Counts go to zero and memory stays, so a loop allocates nothing. The
   extensions are first, while the recorded nodes still exist: runs end, then what refers to the step is cleared. */
static void end_step(rw_tape *t)
{
    rw_extensions_reset(&t->ctx->extensions, t);
    rw_extensions_reset(&t->extensions, t);
    t->step++;
    if (t->n_values > t->most_values) t->most_values = t->n_values;
    t->n_nodes = t->n_operands = t->n_attrs = t->n_values = t->n_leaves = t->n_tickets = 0;
    t->n_regions = t->n_parts = 0;
    t->open_no_grads = 0;
    t->composite = NULL;
    t->open_composite = 0;
    t->n_effects = t->n_retained = 0;
    t->open_region = t->open_part = t->open_recipe = RW_NONE_ID;
    t->bereft = false;
    t->ticket_end = 0;
    t->draws = (struct rw_draws){ 0 };
    t->launch_draws = false;
    t->key.n = 0;
    t->key.hash = (struct rw_hash){ 0 };
    for (size_t i = 0; i < t->n_inputs; i++) t->inputs[i].used = 0;
    t->ctx->memory.inputs -= t->input_bytes;
    t->input_bytes = 0;
}

void rw_tape_note_requested(rw_tape *t, const uint32_t *values, size_t n, enum rw_requested what, bool effects)
{
    for (size_t i = 0; i < n; i++) {
        t->requested[rw_tape_base(t, values[i])] |= RW_REQUESTED_VALUE;
        if (what == RW_REQUESTED_STEP) t->requested[values[i]] |= RW_REQUESTED_STEP;
    }
    for (size_t i = 0; effects && i < t->n_effects; i++) {
        const struct rw_node *const node = &t->nodes[t->effects[i].node];
        if (t->effects[i].done && node->n_outputs) t->requested[node->first_output] |= RW_REQUESTED_VALUE;
    }
}

void rw_tape_reset(rw_tape *t)
{
    RW_ENTER(rw_edge_context(t), );
    if (!t) return;
    const size_t used = (t->n_values + RW_VALUE_CHUNK - 1) / RW_VALUE_CHUNK;
    end_step(t);
    rest_values(t, used);
}

void rw_tapes_miss(const rw_context *ctx, const struct rw_param *states, size_t n)
{
    for (rw_tape *t = ctx->tapes; t; t = t->next)
        for (size_t i = 0; i < t->n_leaves; i++) {
            const struct rw_leaf *const leaf = &t->leaves[i];
            const struct rw_param *const p = leaf->kind == RW_LEAF_PARAM ? ctx->by_id[leaf->param] : NULL;
            if (p < states || p >= states + n) continue;
            t->seen[leaf->param].step = 0;
            t->bereft = true;
        }
}

rw_status rw_tape_misses_nothing(const rw_tape *t, const char *what)
{
    if (!t->bereft) return RW_OK;
    return rw_fail(t->ctx, RW_ERR_ARGUMENT, "%s: expected what the tape uses to be there, got averages of the weights "
                   "that were destroyed; rw_tape_reset() it before rw_weight_average_destroy()", what);
}

/* Marks values as stale that a caller may still hold, for as long as the context keeps their memory. A tape used
   only for planning has none. */
static void leave_values(rw_tape *t)
{
    const size_t written = t->most_values < RW_VALUE_CHUNK ? t->most_values : RW_VALUE_CHUNK;
    for (size_t i = t->n_chunks; i-- > 0;) {
        for (size_t k = 0; i < RW_VALUE_CHUNKS && k < written; k++) {
            t->chunks[i][k].flags = RW_VALUE_GONE;
            t->chunks[i][k].owner.ctx = t->ctx;
        }
        if (written && i < RW_VALUE_CHUNKS) rw_context_keep(t->ctx, t->chunks[i]);
        else rw_free(t->chunks[i]);
    }
    for (size_t i = 0; i < t->n_handles; i++) {
        t->gradients[i]->tensor.flags |= RW_VALUE_GONE;
        t->gradients[i]->tensor.owner.ctx = t->ctx;
        rw_context_keep(t->ctx, t->gradients[i]);
    }
}

/* Frees the tape when its last user is gone. Values are not freed but marked and left to the context for a while, so
   that later uses of a handle are reported and do not read freed memory. */
void rw_tape_release(rw_tape *t)
{
    rw_context *const ctx = t->ctx;
    if (--t->n_users) return;
    rw_extensions_destroy(&t->extensions, ctx);
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    leave_values(t);
    for (size_t i = 0; i < t->n_inputs; i++) ctx->device->free(ctx->device_state, t->inputs[i].data);
    rw_policy_finish(&t->policy);
    for (size_t i = 0; i < t->n_created_parts; i++) rw_policy_finish(&t->parts[i].policy);
    rw_free(t->parts);
    void *const arrays[] = { t->nodes,   t->operands, t->attrs,    t->chunks, t->leaves, t->seen,      t->tickets,
                             t->ticket_blocks,
                             t->regions, t->effects,  t->retained, t->inputs, t->held,   t->gradients, t->in_desc,
                             t->out_desc, t->wide,    t->policy_spec,
                             t->key.words, t->requested };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
    rw_free(t);
    ctx->n_tapes_gone++;
    rw_context_release(ctx);
}

void rw_tape_destroy(rw_tape **pt)
{
    RW_ENTER(rw_edge_context(pt ? *pt : NULL), );
    if (!pt || !*pt) return;
    rw_tape *const t = *pt;
    *pt = NULL;
    end_step(t);
    rw_tape_release(t);
}

rw_context *rw_tape_context(const rw_tape *t)
{
    RW_LOOKS_ONLY;
    return t ? t->ctx : NULL;
}

size_t rw_tape_nodes(const rw_tape *t)
{
    RW_LOOKS_ONLY;
    return t ? t->n_nodes : 0;
}

bool rw_tape_add_chunks(rw_tape *t, size_t n)
{
    while (t->n_values + n > t->n_chunks * RW_VALUE_CHUNK)
        if (!add_chunk(t)) return false;
    return true;
}

/* A custom op may return anything: negative numbers and NaN count as 0. */
static double amount(double x)
{
    return x > 0 ? fmin(x, DBL_MAX) : 0;
}

/* In a check (state_) the outputs are not described yet, and do not count. */
double rw_op_operand_bytes(const rw_op_call *call)
{
    RW_ENTER_ANYWHERE;
    double bytes = 0;
    const int n_out = call && !call->state_ ? call->n_outputs : 0;
    for (int i = 0; call && i < call->n_inputs; i++)
        bytes += (double)call->in[i].layout->numel * (double)rw_dtype_size(call->in[i].dtype);
    for (int i = 0; i < n_out; i++)
        bytes += (double)call->out[i].layout->numel * (double)rw_dtype_size(call->out[i].dtype);
    return bytes;
}

rw_op_cost rw_call_cost(const rw_op_call *call)
{
    if (!call->op->cost) return (rw_op_cost){ .bytes = rw_op_operand_bytes(call) };
    const enum rw_callback before = rw_callback_enter(call->ctx, RW_CALLBACK_QUERY);
    const rw_op_cost c = call->op->cost(call);
    rw_callback_leave(call->ctx, before);
    return (rw_op_cost){ .flops = amount(c.flops), .bytes = amount(c.bytes), .model_flops = amount(c.model_flops) };
}

int64_t rw_call_draws(const rw_op_call *call)
{
    if (!call->op->draws) return call->out[0].layout->numel;
    const enum rw_callback before = rw_callback_enter(call->ctx, RW_CALLBACK_QUERY);
    const int64_t words = call->op->draws(call);
    rw_callback_leave(call->ctx, before);
    return words;
}

size_t rw_call_workspace(const rw_op_call *call)
{
    if (!call->op->workspace[call->kind]) return 0;
    const enum rw_callback before = rw_callback_enter(call->ctx, RW_CALLBACK_QUERY);
    const size_t bytes = call->op->workspace[call->kind](call);
    rw_callback_leave(call->ctx, before);
    return bytes;
}

struct rw_effect *rw_tape_effect(const rw_tape *t, uint32_t node)
{
    size_t low = 0, high = t->n_effects;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (t->effects[middle].node < node) low = middle + 1;
        else high = middle;
    }
    return low < t->n_effects && t->effects[low].node == node ? &t->effects[low] : NULL;
}

struct rw_origin rw_origin_of(const rw_tape *t, uint32_t node)
{
    const struct rw_node *const n = node != RW_NONE_ID ? &t->nodes[node] : NULL;
    return (struct rw_origin){ .adjoint = true, .of = node, .site = n ? n->site : t->n_nodes ? t->nodes[0].site : 0,
                               .ticket = n ? n->ticket : RW_NONE_ID };
}

static rw_operand_desc desc_of(const rw_tape *t, uint32_t value)
{
    const struct rw_tensor *const v = rw_tape_value(t, value);
    return (rw_operand_desc){ (rw_dtype)v->dtype, rw_layout_of(t->ctx, v) };
}

rw_op_call rw_call_of(const rw_tape *t, const struct rw_node *node)
{
    for (uint32_t i = 0; i < node->n_inputs; i++) t->in_desc[i] = desc_of(t, t->operands[node->first_input + i]);
    for (uint32_t i = 0; i < node->n_outputs; i++) t->out_desc[i] = desc_of(t, node->first_output + i);
    return (rw_op_call){ .op = t->ctx->ops[node->op], .attrs = t->attrs + node->attrs, .n_inputs = node->n_inputs,
                         .n_outputs = node->n_outputs, .in = t->in_desc, .out = t->out_desc, .kind = t->ctx->kind,
                         .threads = t->ctx->threads, .device = t->ctx->device_state, .ctx = t->ctx };
}

size_t rw_tape_held_below(const rw_tape *t, uint32_t value)
{
    size_t low = 0, high = t->n_held;
    if (high && t->held[high - 1].value < value) return high; /* most values are held in order */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (t->held[middle].value < value) low = middle + 1;
        else high = middle;
    }
    return low;
}

size_t rw_tape_gradients_above(const rw_tape *t, uint32_t value)
{
    size_t low = 0, high = t->n_gradients;
    if (high && t->gradients[high - 1]->tensor.id > value) return high; /* backward gives most of them in order */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (t->gradients[middle]->tensor.id > value) low = middle + 1;
        else high = middle;
    }
    return low;
}

void *rw_tape_held(const rw_tape *t, uint32_t base)
{
    static char nothing; /* address of a held value without elements whose block has no memory */
    const size_t i = rw_tape_held_below(t, base);
    if (i == t->n_held || t->held[i].value != base) return NULL;
    return t->held[i].data ? t->held[i].data : &nothing;
}

size_t rw_tape_region_names(const rw_tape *t, uint32_t *names, size_t most)
{
    size_t n = 0;
    for (size_t r = 0; r < t->n_regions && n < most; r++) {
        size_t i = 0;
        while (i < n && names[i] != t->regions[r].name) i++;
        if (i == n) names[n++] = t->regions[r].name;
    }
    return n;
}

/* Filled from its end, the innermost name first, so that a long path loses its outer end. */
void rw_region_path(const rw_tape *t, uint32_t region, char *text, size_t size)
{
    if (!size) return;
    size_t at = size - 1;
    text[at] = '\0';
    for (uint32_t r = region; r != RW_NONE_ID; r = t->regions[r].parent) {
        const char *name = t->ctx->names.text[t->regions[r].name];
        const size_t slash = r != region, for_cut = t->regions[r].parent == RW_NONE_ID ? 0 : sizeof ".../" - 1;
        const bool fits = strlen(name) + slash + for_cut <= at;
        if (!fits && !slash) {
            snprintf(text, size, "%s", name);
            return;
        }
        if (!fits) name = "...";
        if (slash) text[--at] = '/';
        at -= strlen(name);
        memcpy(text + at, name, strlen(name));
        if (!fits) break;
    }
    memmove(text, text + at, size - at);
}

/* The invariants of node.h for one node. */
static bool node_is_valid(const rw_tape *t, uint32_t n)
{
    const struct rw_node *const node = &t->nodes[n];
    if (node->op >= t->ctx->n_ops || node->site >= t->ctx->n_sites) return false;
    if (node->first_input + node->n_inputs > t->n_operands || node->first_output + node->n_outputs > t->n_values)
        return false;
    if (node->ticket != RW_NONE_ID && node->ticket >= t->n_tickets) return false;
    if (node->adjoint ? node->of != RW_NONE_ID && node->of >= n
                      : node->region != RW_NONE_ID && node->region >= t->n_regions)
        return false;
    if (!(t->ctx->ops[node->op]->flags & RW_OP_STATEFUL) != !rw_tape_effect(t, n)) return false;
    for (uint32_t i = 0; i < node->n_outputs; i++) {
        const uint32_t producer = rw_tape_value(t, node->first_output + i)->producer;
        if (producer != n && !(node->adjoint && producer == node->of)) return false;
    }
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const uint32_t v = t->operands[node->first_input + i];
        const uint32_t producer = v < t->n_values ? rw_tape_value(t, v)->producer : n;
        if (producer != RW_NONE_ID && producer >= n) return false;
    }
    return true;
}

bool rw_tape_is_valid(const rw_tape *t)
{
    for (size_t i = 1; i < t->n_effects; i++)
        if (t->effects[i - 1].node >= t->effects[i].node) return false;
    for (uint32_t n = 0; n < t->n_nodes; n++)
        if (!node_is_valid(t, n)) return false;
    for (uint32_t i = 0; i < t->n_values; i++) {
        const struct rw_tensor *const v = rw_tape_value(t, i);
        if (v->id != i || v->base > i || rw_tape_base(t, v->base) != v->base) return false;
        if ((v->producer == RW_NONE_ID) == (v->leaf == RW_NONE_ID)) return false;
    }
    for (uint32_t r = 0; r < t->n_regions; r++) {
        const struct rw_region *const x = &t->regions[r];
        if (x->parent != RW_NONE_ID && (x->parent >= r || t->regions[x->parent].first > x->first)) return false;
        if (x->end != RW_NONE_ID && x->end < x->first) return false;
        if (x->part != RW_NONE_ID && x->part >= t->n_parts) return false;
    }
    return true;
}
