/* Tapes: creation, reset, the arrays, inputs, and the leaf that stands for a parameter. Recording is in record.c. */
#include "record/tape.h"

#include "base/alloc.h"
#include "base/round.h"
#include "record/own_ops.h"

#include <rewind/ops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_ALIGNMENT 256
#define INPUT_BLOCK ((size_t)1 << 20)

void rw_hash_mix_bytes(struct rw_hash *h, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        uint64_t x;
        memcpy(&x, p, 8);
        rw_hash_mix(h, x);
    }
    if (bytes) {
        uint64_t x = 0;
        memcpy(&x, p, bytes);
        rw_hash_mix(h, x ^ (uint64_t)bytes << 56);
    }
}

static rw_status set_first_policy(rw_tape *t)
{
    const char *const wanted = getenv("REWIND_POLICY");
    const char *const spec = wanted && *wanted ? wanted : "none";
    char message[RW_MESSAGE_MAX];
    const rw_status status = rw_policy_parse(spec, &t->policy, message, sizeof message);
    if (status) return rw_fail(t->ctx, status, "REWIND_POLICY: %s", message);
    t->policy_pinned = spec == wanted;
    t->policy_spec = rw_strdup(spec);
    if (!t->policy_spec) return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_tape_create: out of memory");
    return RW_OK;
}

rw_status rw_tape_create(rw_tape **ret_tape, rw_context *ctx)
{
    if (!ret_tape || !ctx) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_tape_create: NULL argument");
    rw_tape *t = rw_calloc(1, sizeof *t);
    if (!t) return rw_fail(ctx, RW_ERR_MEMORY, "rw_tape_create: out of memory");
    t->ctx = ctx;
    t->step = 1;
    t->open_region = RW_NONE_ID;
    t->last_loss = RW_NONE_ID;
    t->next = ctx->tapes;
    t->link = &ctx->tapes;
    if (t->next) t->next->link = &t->next;
    ctx->tapes = t;
    const rw_status status = set_first_policy(t);
    if (status) {
        rw_tape_destroy(&t);
        return status;
    }
    *ret_tape = t;
    return RW_OK;
}

void rw_tape_reset(rw_tape *t)
{
    if (!t) return;
    t->ctx->up->reset(t);
    t->step++;
    t->n_nodes = t->n_operands = t->n_attrs = t->n_values = t->n_leaves = t->n_tickets = 0;
    t->n_regions = t->n_effects = t->n_retained = 0;
    t->open_region = t->last_loss = RW_NONE_ID;
    t->ticket_end = t->ticket_base = 0;
    t->hash = (struct rw_hash){ 0 };
    for (size_t i = 0; i < t->n_inputs; i++) t->inputs[i].used = 0;
    t->ctx->memory.inputs -= t->input_bytes;
    t->input_bytes = 0;
}

void rw_tape_destroy(rw_tape **pt)
{
    if (!pt || !*pt) return;
    rw_tape *const t = *pt;
    rw_context *const ctx = t->ctx;
    rw_tape_reset(t);
    ctx->up->gone(t);
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    for (size_t i = 0; i < t->n_chunks; i++) rw_free(t->chunks[i]);
    for (size_t i = 0; i < t->n_inputs; i++) ctx->device->free(ctx->device_state, t->inputs[i].data);
    rw_policy_finish(&t->policy);
    void *const arrays[] = { t->nodes,   t->operands, t->attrs,    t->chunks, t->leaves, t->seen,      t->tickets,
                             t->regions, t->effects,  t->retained, t->inputs, t->held,   t->gradients, t->in_desc,
                             t->out_desc, t->wide,    t->policy_spec };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
    rw_free(t);
    *pt = NULL;
}

rw_context *rw_tape_context(const rw_tape *t)
{
    return t ? t->ctx : NULL;
}

size_t rw_tape_nodes(const rw_tape *t)
{
    return t ? t->n_nodes : 0;
}

struct rw_tensor *rw_tape_add_value(rw_tape *t)
{
    if (t->n_values == t->n_chunks * RW_VALUE_CHUNK) {
        if (!rw_grow(&t->chunks, &t->cap_chunks, t->n_chunks, 1, sizeof *t->chunks)) return NULL;
        struct rw_tensor *const chunk = rw_malloc(RW_VALUE_CHUNK * sizeof *chunk);
        if (!chunk) return NULL;
        t->chunks[t->n_chunks++] = chunk;
    }
    const uint32_t id = (uint32_t)t->n_values++;
    struct rw_tensor *const v = rw_tape_value(t, id);
    *v = (struct rw_tensor){ .owner.tape = t, .id = id, .producer = RW_NONE_ID, .base = id, .leaf = RW_NONE_ID };
    return v;
}

rw_op_cost rw_call_cost(const rw_op_call *call)
{
    return call->op->cost ? call->op->cost(call) : (rw_op_cost){ 0, rw_cost_bytes(call) };
}

struct rw_tape_mark rw_tape_mark(const rw_tape *t)
{
    return (struct rw_tape_mark){ t->n_nodes,  t->n_operands, t->n_attrs,   t->n_values,
                                  t->n_leaves, t->n_tickets,  t->n_effects, t->hash };
}

void rw_tape_cut(rw_tape *t, const struct rw_tape_mark *mark)
{
    for (size_t i = mark->leaves; i < t->n_leaves; i++)
        if (t->leaves[i].kind == RW_LEAF_PARAM) t->seen[t->leaves[i].param].step = 0;
    t->n_nodes = mark->nodes;
    t->n_operands = mark->operands;
    t->n_attrs = mark->attrs;
    t->n_values = mark->values;
    t->n_leaves = mark->leaves;
    t->n_tickets = mark->tickets;
    t->n_effects = mark->effects;
    t->hash = mark->hash;
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

static rw_desc desc_of(const rw_tape *t, uint32_t value)
{
    const struct rw_tensor *const v = rw_tape_value(t, value);
    return (rw_desc){ (rw_dtype)v->dtype, rw_layout_of(t->ctx, v) };
}

rw_op_call rw_call_of(const rw_tape *t, const struct rw_node *node)
{
    for (uint32_t i = 0; i < node->n_inputs; i++) t->in_desc[i] = desc_of(t, t->operands[node->first_input + i]);
    for (uint32_t i = 0; i < node->n_outputs; i++) t->out_desc[i] = desc_of(t, node->first_output + i);
    return (rw_op_call){ .op = t->ctx->ops[node->op], .attrs = t->attrs + node->attrs, .n_inputs = node->n_inputs,
                         .n_outputs = node->n_outputs, .in = t->in_desc, .out = t->out_desc, .kind = t->ctx->kind,
                         .threads = t->ctx->threads, .device = t->ctx->device_state, .ctx = t->ctx };
}

/* Leaves */

static struct rw_tensor *add_leaf(rw_tape *t, struct rw_leaf leaf, uint32_t layout, rw_dtype dtype, unsigned flags)
{
    if (!rw_grow(&t->leaves, &t->cap_leaves, t->n_leaves, 1, sizeof *t->leaves)) return NULL;
    struct rw_tensor *const v = rw_tape_add_value(t);
    if (!v) return NULL;
    v->layout = layout;
    v->dtype = (uint8_t)dtype;
    v->flags = (uint8_t)flags;
    v->leaf = (uint32_t)t->n_leaves;
    leaf.value = v->id;
    t->leaves[t->n_leaves++] = leaf;
    rw_hash_mix(&t->hash, (uint64_t)leaf.kind << 56 ^ (uint64_t)leaf.param << 24 ^ dtype);
    rw_hash_mix(&t->hash, layout);
    return v;
}

static struct rw_seen *seen_of(rw_tape *t, uint32_t param)
{
    const size_t had = t->cap_seen;
    if (!rw_grow(&t->seen, &t->cap_seen, param, 1, sizeof *t->seen)) return NULL;
    if (t->cap_seen > had) memset(t->seen + had, 0, (t->cap_seen - had) * sizeof *t->seen);
    return &t->seen[param];
}

static struct rw_tensor *param_leaf(rw_tape *t, struct rw_param *p)
{
    struct rw_seen *const seen = seen_of(t, p->tensor.id);
    if (!seen) return NULL;
    if (seen->step == t->step) return rw_tape_value(t, seen->value);
    struct rw_tensor *const v = add_leaf(
        t, (struct rw_leaf){ .kind = RW_LEAF_PARAM, .param = p->tensor.id, .version = p->version, .bytes = p->bytes },
        p->tensor.layout, (rw_dtype)p->tensor.dtype, p->tensor.flags & RW_VALUE_REQUIRES);
    if (!v) return NULL;
    *seen = (struct rw_seen){ t->step, v->id };
    return v;
}

/* A gradient is not cached in its parameter: it is rare, and two leaves of the same bytes do no harm. */
static struct rw_tensor *gradient_leaf(rw_tape *t, struct rw_param *p)
{
    return add_leaf(t, (struct rw_leaf){ .kind = RW_LEAF_GRADIENT, .param = p->tensor.id, .bytes = p->bytes },
                    p->tensor.layout, (rw_dtype)p->tensor.dtype, 0);
}

struct rw_tensor *rw_tape_add_seed(rw_tape *t, uint32_t root, const struct rw_tensor *y)
{
    const rw_layout *const layout = rw_layout_dense(&t->ctx->layouts, rw_layout_shape(rw_layout_of(t->ctx, y)));
    if (!layout) return NULL;
    const size_t bytes = (size_t)layout->numel * rw_dtype_size((rw_dtype)y->dtype);
    return add_leaf(t, (struct rw_leaf){ .kind = RW_LEAF_SEED, .param = root, .bytes = bytes }, layout->id,
                    (rw_dtype)y->dtype, 0);
}

struct rw_tensor *rw_tape_resolve(rw_tape *t, rw_tensor *x, const char *what, rw_site at)
{
    if (!(x->flags & RW_VALUE_CONTEXT)) {
        if (x->owner.tape == t && !(x->flags & RW_VALUE_GRADIENT)) return x;
        if (x->owner.tape == t) {
            rw_fail(t->ctx, RW_ERR_ARGUMENT,
                    "%s at %s:%d: the gradient of a tape value can be read, not used in an op; rw_grad() "
                    "records gradients as ops",
                    what, at.file, at.line);
            return NULL;
        }
        rw_fail(t->ctx, RW_ERR_ARGUMENT, "%s at %s:%d: a tensor of another tape (or RW_NONE where a tensor is needed)",
                what, at.file, at.line);
        return NULL;
    }
    if (x->owner.ctx != t->ctx) {
        rw_fail(t->ctx, RW_ERR_ARGUMENT, "%s at %s:%d: parameter \"%s\" belongs to another context", what, at.file,
                at.line, rw_param_of(x)->name);
        return NULL;
    }
    struct rw_param *const p = rw_param_of(x);
    struct rw_tensor *const v = x->flags & RW_VALUE_GRADIENT ? gradient_leaf(t, p) : param_leaf(t, p);
    if (!v) rw_fail(t->ctx, RW_ERR_MEMORY, "%s at %s:%d: out of memory", what, at.file, at.line);
    return v;
}

rw_tensor *rw_operand_at(rw_site at, rw_tape *t, rw_tensor *x, const char *what)
{
    return t && x ? rw_tape_resolve(t, x, what, at) : NULL;
}

/* Inputs */

static void *input_memory(rw_tape *t, size_t bytes)
{
    bytes = rw_round_up(bytes, INPUT_ALIGNMENT);
    for (size_t i = 0; i < t->n_inputs; i++) {
        struct rw_input_block *const b = &t->inputs[i];
        if (b->bytes - b->used < bytes) continue;
        b->used += bytes;
        return (char *)b->data + b->used - bytes;
    }
    if (!rw_grow(&t->inputs, &t->cap_inputs, t->n_inputs, 1, sizeof *t->inputs)) return NULL;
    const size_t size = bytes > INPUT_BLOCK ? bytes : INPUT_BLOCK;
    void *const data = t->ctx->device->alloc(t->ctx->device_state, size);
    if (!data) return NULL;
    t->inputs[t->n_inputs++] = (struct rw_input_block){ .data = data, .bytes = size, .used = bytes };
    return data;
}

rw_tensor *rw_input_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, const void *data)
{
    if (!t || !rw_shape_check(t->ctx, "rw_input", at, dtype, shape)) return NULL;
    rw_context *const ctx = t->ctx;
    const size_t bytes = (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype);
    const rw_layout *const layout = rw_layout_dense(&ctx->layouts, shape);
    void *const copy = layout ? input_memory(t, bytes) : NULL;
    struct rw_tensor *const v = copy ? add_leaf(t,
                                                (struct rw_leaf){ .kind = RW_LEAF_INPUT, .data = copy, .bytes = bytes },
                                                layout->id, dtype, 0)
                                     : NULL;
    if (!v) {
        rw_fail(ctx, RW_ERR_MEMORY, "rw_input at %s:%d: out of memory for %zu bytes", at.file, at.line, bytes);
        return NULL;
    }
    t->input_bytes += bytes;
    ctx->memory.inputs += bytes;
    const rw_status status = data ? ctx->device->upload(ctx->device_state, copy, data, bytes)
                                  : ctx->device->clear(ctx->device_state, copy, bytes);
    if (status) rw_fail(ctx, status, "rw_input at %s:%d: the copy to the device failed", at.file, at.line);
    return status ? NULL : v;
}

rw_status rw_input_write(rw_tensor *x, const void *data, size_t bytes)
{
    if (!x || x == rw_none() || (x->flags & RW_VALUE_CONTEXT)) return RW_ERR_ARGUMENT;
    rw_tape *const t = x->owner.tape;
    if (x->leaf == RW_NONE_ID || t->leaves[x->leaf].kind != RW_LEAF_INPUT)
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_input_write: the tensor is the result of an op, not an input");
    struct rw_leaf *const leaf = &t->leaves[x->leaf];
    if (!data || bytes != leaf->bytes)
        return rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_input_write: %zu bytes given, the input has %zu", data ? bytes : 0,
                       leaf->bytes);
    leaf->written++;
    const rw_status status = t->ctx->device->upload(t->ctx->device_state, leaf->data, data, bytes);
    return status ? rw_fail(t->ctx, status, "rw_input_write: the copy to the device failed") : RW_OK;
}

rw_tensor *rw_require_grad(rw_tape *t, rw_tensor *x)
{
    if (!t || !x) return NULL;
    if ((x->flags & RW_VALUE_CONTEXT) || x->owner.tape != t || !rw_dtype_is_float((rw_dtype)x->dtype)) {
        rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_require_grad: needs a floating-point value of this tape");
        return NULL;
    }
    if (x->flags & RW_VALUE_RETAIN) return x;
    if (!rw_grow(&t->retained, &t->cap_retained, t->n_retained, 1, sizeof *t->retained)) {
        rw_fail(t->ctx, RW_ERR_MEMORY, "rw_require_grad: out of memory");
        return NULL;
    }
    t->retained[t->n_retained++] = x->id;
    x->flags |= RW_VALUE_RETAIN | RW_VALUE_REQUIRES;
    rw_hash_mix(&t->hash, (uint64_t)RW_VALUE_RETAIN << 32 | x->id);
    return x;
}

void *rw_tape_held(const rw_tape *t, uint32_t base)
{
    static char nothing; /* where a value without elements lies when its block has no memory: it is held all the same */
    for (size_t i = 0; i < t->n_held; i++) {
        if (t->held[i].value != base) continue;
        return t->held[i].data ? t->held[i].data : &nothing;
    }
    return NULL;
}

/* Filled from its end, the innermost name first: the way outwards is no longer than the text. */
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
    for (uint32_t i = 0; i < node->n_outputs; i++)
        if (rw_tape_value(t, node->first_output + i)->producer != n) return false;
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
    }
    return true;
}
