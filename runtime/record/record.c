/*
 * Recording a node: check the call, make strided inputs dense where the kernel needs it, append.
 *
 * Everything that can fail happens before the first array grows in length, so a failed call leaves the tape as it was.
 */
#include "base/alloc.h"
#include "record/own_ops.h"
#include "record/tape.h"

#include <rewind/ops.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What rw_op_error() and rw_op_output*() find behind rw_op_call.state_. */
struct check_state {
    rw_tape *tape;
    rw_context *ctx;
    rw_status status;
    bool no_memory;
    char text[512];
};

/* Up to so many inputs lie in the recording itself. Recording recurses only for a copy of one input. */
#define FEW 16

/* One recording in progress. */
struct recording {
    rw_tape *tape;
    rw_context *ctx;
    const rw_op_def *op;
    rw_site site;
    uint32_t op_index, site_index;
    int n, described;            /* inputs, and how many of them the tape's in_desc describes by now */
    struct rw_tensor **in;       /* n values of the tape: here, or where they are many in tape.wide */
    struct rw_tensor *few[FEW];
    rw_op_call call;             /* its operands' descriptions are the tape's in_desc and out_desc */
};

rw_status rw_op_error(rw_op_call *call, rw_status status, const char *fmt, ...)
{
    struct check_state *const s = call->state_;
    if (s->status) return s->status;
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->text, sizeof s->text, fmt, args);
    va_end(args);
    return s->status = status;
}

static rw_status set_output(rw_op_call *call, int i, rw_dtype dtype, const rw_layout *layout)
{
    struct check_state *const s = call->state_;
    if (i < 0 || i >= RW_OP_MAX_OPERANDS) return rw_op_error(call, RW_ERR_ARGUMENT, "output %d", i);
    if (!layout || !rw_tape_describe(s->tape, 0, (size_t)i + 1)) {
        s->no_memory = true;
        return s->status = RW_ERR_MEMORY;
    }
    call->out = s->tape->out_desc;
    call->out[i] = (rw_desc){ dtype, layout };
    return RW_OK;
}

rw_status rw_op_output(rw_op_call *call, int i, rw_dtype dtype, rw_shape shape)
{
    struct check_state *const s = call->state_;
    rw_status status;
    const char *const fault = rw_shape_fault(dtype, shape, &status);
    if (fault) return rw_op_error(call, status, "output %d: %s", i, fault);
    return set_output(call, i, dtype, rw_layout_dense(&s->ctx->layouts, shape));
}

rw_status rw_op_output_like(rw_op_call *call, int i, int j)
{
    struct check_state *const s = call->state_;
    const rw_desc *const d = &call->in[j];
    const rw_layout *const layout =
        rw_layout_is_whole(d->layout) ? d->layout : rw_layout_dense(&s->ctx->layouts, rw_layout_shape(d->layout));
    return set_output(call, i, d->dtype, layout);
}

rw_status rw_op_output_view(rw_op_call *call, int i, rw_shape shape, const int64_t *stride, int64_t offset)
{
    struct check_state *const s = call->state_;
    return set_output(call, i, call->in[0].dtype, rw_layout_strided(&s->ctx->layouts, shape, stride, offset));
}

/* "f32[4, 8]" appended to text. */
static void describe(char *text, size_t size, const rw_desc *d)
{
    size_t n = strlen(text);
    n += (size_t)snprintf(text + n, size - n, "%s[", rw_dtype_name(d->dtype));
    for (int i = 0; i < d->layout->rank && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%lld", i ? ", " : "", (long long)d->layout->dim[i]);
    if (n < size) snprintf(text + n, size - n, "]");
}

static rw_tensor *refuse(const struct recording *r, rw_status status, const char *text)
{
    char inputs[384] = "";
    for (int i = 0; i < r->described && i < 6; i++) {
        if (i) strncat(inputs, ", ", sizeof inputs - strlen(inputs) - 1);
        describe(inputs, sizeof inputs, &r->tape->in_desc[i]);
    }
    rw_fail(r->ctx, status, "%s(%s) at %s:%d: %s", r->op->name, inputs, r->site.file, r->site.line, text);
    return NULL;
}

rw_status rw_refuse_at(rw_site at, rw_tape *t, rw_status status, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return t ? rw_fail(t->ctx, status, "%s:%d: %s", at.file, at.line, text) : status;
}

static rw_tensor *no_memory(const struct recording *r)
{
    return refuse(r, RW_ERR_MEMORY, "out of memory");
}

static rw_desc desc_of(const rw_context *ctx, const struct rw_tensor *v)
{
    return (rw_desc){ (rw_dtype)v->dtype, rw_layout_of(ctx, v) };
}

/* For the operands that are known before the check: it may have more outputs. */
static bool make_room(struct recording *r)
{
    rw_tape *const t = r->tape;
    const int n_out = r->op->n_outputs == RW_OP_VARIADIC ? 0 : r->op->n_outputs;
    if (!rw_tape_describe(t, (size_t)r->n, (size_t)n_out)) return false;
    if (r->n > FEW && !rw_grow(&t->wide, &t->cap_wide, 0, (size_t)r->n, sizeof *t->wide)) return false;
    r->in = r->n > FEW ? t->wide : r->few;
    return true;
}

/* Inputs as values of this tape, dense where the kernel asks for it. */
static bool take_inputs(struct recording *r, rw_tensor *const *in)
{
    for (int i = 0; i < r->n; i++) {
        r->in[i] = rw_tape_resolve(r->tape, in[i], r->op->name, r->site);
        if (!r->in[i]) return false;
        if ((r->op->flags & RW_OP_VIEW) || rw_op_set_has(r->op->strided, i) || rw_layout_of(r->ctx, r->in[i])->dense)
            continue;
        r->in[i] = rw_apply_at(r->site, r->tape, &rw_op_contiguous, &r->in[i], 1, NULL, 0, NULL);
        if (!r->in[i]) return false;
    }
    return true;
}

static void describe_inputs(struct recording *r)
{
    for (int i = 0; i < r->n; i++) r->tape->in_desc[i] = desc_of(r->ctx, r->in[i]);
    r->described = r->n;
}

static bool check(struct recording *r, const void *attrs)
{
    struct check_state state = { .tape = r->tape, .ctx = r->ctx };
    rw_tape *const t = r->tape;
    r->call = (rw_op_call){ .op = r->op, .attrs = attrs, .n_inputs = r->n, .in = t->in_desc, .out = t->out_desc,
                            .kind = r->ctx->kind, .threads = r->ctx->threads, .device = r->ctx->device_state,
                            .ctx = r->ctx, .n_outputs = r->op->n_outputs == RW_OP_VARIADIC ? 0 : r->op->n_outputs,
                            .state_ = &state };
    rw_status status = r->op->check(&r->call);
    const int n_out = r->call.n_outputs;
    if (!status && (n_out < 0 || n_out > RW_OP_MAX_OPERANDS - r->n))
        status = rw_op_error(&r->call, RW_ERR_ARGUMENT, "%d inputs and %d outputs, an op has %d operands at most", r->n,
                             n_out, RW_OP_MAX_OPERANDS);
    if (!status && !rw_tape_describe(t, 0, (size_t)n_out)) status = RW_ERR_MEMORY;
    r->call.out = t->out_desc;
    r->call.state_ = NULL;
    if (status == RW_OK && state.status == RW_OK) return true;
    refuse(r, status ? status : state.status,
           state.no_memory ? "out of memory"
           : state.text[0] ? state.text
                           : rw_status_name(status));
    return false;
}

/* What a commit writes is memory of the context, all of it, and each output is that of the operand it stands for. */
static bool commits_soundly(struct recording *r)
{
    const int n_out = r->call.n_outputs, first = r->n - n_out;
    bool sound = first >= 0;
    for (int i = 0; sound && i < n_out; i++) {
        const struct rw_tensor *const to = r->in[first + i];
        sound = to->leaf != RW_NONE_ID && r->tape->leaves[to->leaf].kind == RW_LEAF_PARAM &&
                r->call.out[i].dtype == (rw_dtype)to->dtype && r->call.out[i].layout->id == to->layout;
    }
    if (!sound)
        refuse(r, RW_ERR_ARGUMENT, "what the op writes is no parameter or buffer of its output's type and shape");
    return sound;
}

/* Room for one node with these many operands and outputs; nothing is appended yet. */
static bool reserve(struct recording *r, size_t attrs_size)
{
    rw_tape *const t = r->tape;
    const size_t attr_bytes = (attrs_size + 7) & ~(size_t)7;
    r->op_index = rw_op_index(r->ctx, r->op);
    r->site_index = rw_site_index(r->ctx, r->site);
    if (r->op_index == RW_NONE_ID || r->site_index == RW_NONE_ID) return false;
    if (!rw_grow(&t->nodes, &t->cap_nodes, t->n_nodes, 1, sizeof *t->nodes)) return false;
    if (!rw_grow(&t->operands, &t->cap_operands, t->n_operands, (size_t)r->n, sizeof *t->operands)) return false;
    if (!rw_grow(&t->attrs, &t->cap_attrs, t->n_attrs, attr_bytes, 1)) return false;
    if (!rw_grow(&t->tickets, &t->cap_tickets, t->n_tickets, 1, sizeof *t->tickets)) return false;
    return rw_grow(&t->effects, &t->cap_effects, t->n_effects, 1, sizeof *t->effects);
}

static bool add_outputs(struct recording *r, struct rw_node *node, bool requires)
{
    rw_tape *const t = r->tape;
    const size_t before = t->n_values;
    const struct rw_hash hash = t->hash;
    const bool view = r->op->flags & RW_OP_VIEW;
    node->first_output = (uint32_t)before;
    for (int i = 0; i < r->call.n_outputs; i++) {
        struct rw_tensor *const v = rw_tape_add_value(t);
        if (!v) {
            t->n_values = before;
            t->hash = hash;
            return false;
        }
        v->layout = r->call.out[i].layout->id;
        v->dtype = (uint8_t)r->call.out[i].dtype;
        v->producer = (uint32_t)t->n_nodes;
        if (view) v->base = r->in[0]->base;
        if (requires && rw_dtype_is_float((rw_dtype)v->dtype)) v->flags |= RW_VALUE_REQUIRES;
        rw_hash_mix(&t->hash, (uint64_t)v->layout << 8 | v->dtype);
    }
    return true;
}

/* Law 2: numbers are drawn now, in tape order. A rule that draws the same mask again repeats its node's ticket. */
static uint32_t draw_ticket(struct recording *r)
{
    rw_tape *const t = r->tape;
    if (!(r->op->flags & RW_OP_RANDOM)) return RW_NONE_ID;
    if (t->origin.adjoint && t->origin.ticket != RW_NONE_ID) return t->origin.ticket;
    const int64_t n = r->op->draws ? r->op->draws(&r->call) : r->call.out[0].layout->numel;
    t->tickets[t->n_tickets] = (rw_ticket){ r->ctx->generator.seed, r->ctx->generator.offset };
    r->ctx->generator.offset += (uint64_t)(n + 3) / 4;
    t->ticket_end = r->ctx->generator.offset;
    return (uint32_t)t->n_tickets++;
}

static bool append(struct recording *r, const void *attrs, size_t attrs_size)
{
    rw_tape *const t = r->tape;
    struct rw_node *const node = &t->nodes[t->n_nodes];
    *node = (struct rw_node){ .op = (uint16_t)r->op_index, .n_inputs = (uint16_t)r->n,
                              .n_outputs = (uint16_t)r->call.n_outputs, .attrs_size = (uint16_t)attrs_size,
                              .first_input = (uint32_t)t->n_operands, .attrs = (uint32_t)t->n_attrs,
                              .site = r->site_index, .adjoint = t->origin.adjoint,
                              .region = t->origin.adjoint ? t->origin.of : t->open_region };
    bool requires = false;
    for (int i = 0; i < r->n; i++) requires |= r->in[i]->flags & RW_VALUE_REQUIRES;
    if (r->op->flags & RW_OP_NO_GRADIENT) requires = false;
    if (!add_outputs(r, node, requires)) return false;
    node->ticket = draw_ticket(r);
    for (int i = 0; i < r->n; i++) {
        t->operands[t->n_operands++] = r->in[i]->id;
        rw_hash_mix(&t->hash, r->in[i]->id);
    }
    if (attrs_size) {
        memcpy(t->attrs + t->n_attrs, attrs, attrs_size);
        rw_hash_mix_bytes(&t->hash, attrs, attrs_size);
        t->n_attrs += (attrs_size + 7) & ~(size_t)7;
    }
    rw_hash_mix(&t->hash, (uint64_t)node->op << 49 ^ (uint64_t)node->adjoint << 48 ^ (uint64_t)node->n_inputs << 32 ^
                              node->region);
    if (r->op->flags & RW_OP_STATEFUL) t->effects[t->n_effects++] = (struct rw_effect){ .node = (uint32_t)t->n_nodes };
    t->n_nodes++;
    return true;
}

static bool call_is_sound(const struct recording *r, const void *attrs, size_t attrs_size)
{
    if (r->n < 0 || r->n > RW_OP_MAX_OPERANDS || (r->op->n_inputs != RW_OP_VARIADIC && r->n != r->op->n_inputs)) {
        rw_fail(r->ctx, RW_ERR_ARGUMENT, "%s at %s:%d: %d inputs, the op takes %d", r->op->name, r->site.file,
                r->site.line, r->n, r->op->n_inputs == RW_OP_VARIADIC ? RW_OP_MAX_OPERANDS : r->op->n_inputs);
        return false;
    }
    if (attrs_size > UINT16_MAX || (attrs_size && !attrs)) {
        rw_fail(r->ctx, RW_ERR_ARGUMENT, "%s at %s:%d: attributes of %zu bytes", r->op->name, r->site.file,
                r->site.line, attrs_size);
        return false;
    }
    return true;
}

rw_tensor *rw_apply_at(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, int n, const void *attrs,
                       size_t attrs_size, rw_tensor **ret_outs)
{
    if (!t || !op) return NULL;
    for (int i = 0; i < n; i++)
        if (!in[i]) return NULL;
    struct recording r;
    r.tape = t;
    r.ctx = t->ctx;
    r.op = op;
    r.site = t->origin.adjoint ? t->ctx->sites[t->origin.site] : at;
    r.n = n;
    r.described = 0;
    if (!call_is_sound(&r, attrs, attrs_size)) return NULL;
    if (!make_room(&r)) return no_memory(&r);
    if (!take_inputs(&r, in)) return NULL;
    describe_inputs(&r);
    if (!check(&r, attrs) || ((op->flags & RW_OP_COMMIT) && !commits_soundly(&r))) return NULL;
    if (!reserve(&r, attrs_size) || !append(&r, attrs, attrs_size)) return no_memory(&r);
    const struct rw_node node = t->nodes[t->n_nodes - 1]; /* running it may plan, and planning records */
    for (int i = 0; ret_outs && i < node.n_outputs; i++)
        ret_outs[i] = rw_tape_value(t, node.first_output + (uint32_t)i);
    if (t->ctx->eager && !t->origin.adjoint && t->ctx->up->recorded(t, (uint32_t)t->n_nodes - 1)) return NULL;
    return rw_tape_value(t, node.n_outputs ? node.first_output : 0);
}
