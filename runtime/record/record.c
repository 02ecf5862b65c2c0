/*
 * Recording a node: check the call, cast inputs for a recipe, make strided inputs dense if the kernel needs it, append.
 *
 * A call that fails leaves the tape as it was. Everything that can fails happens before the node is appended; leaves
 * and copies that were recorded for it are rolled back to a mark. So the arrays only grow after all memory is reserved.
 */
#include "base/alloc.h"
#include "ops/common/pass_ops.h"
#include "record/api_entry.h"
#include "record/arg_eval_order_check.h"
#include "record/handle_check.h"
#include "record/precision_recipe.h"
#include "record/tape_key_words.h"

#include <rewind/ops.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Private state of a check, which rw_op_error() and rw_op_output*() find in rw_op_call.state_. */
struct check_state {
    rw_tape *tape;
    rw_context *ctx;
    int64_t base;     /* of a view: number of elements of input 0's buffer */
    int named;        /* outputs from here on are not described yet; of earlier ones, one without a layout is not */
    rw_status status;
    bool no_memory;
    char text[512];
};

/* Up to so many inputs are stored in the recording itself. Recording recurses only to copy one input. */
#define FEW 16

/* One recording in progress. */
struct recording {
    rw_tape *tape;
    rw_context *ctx;
    struct rw_order_check *order; /* NULL: not checked */
    const rw_op_def *op;
    rw_site site;
    uint32_t op_index, site_index;
    int64_t words;               /* that a random op draws */
    int n, described;            /* inputs; number of them that the tape's in_desc describes so far */
    struct rw_tensor **in;       /* n values of the tape: in `few`, or if there are many, in tape.wide */
    struct rw_tensor *few[FEW];
    bool marked;                 /* something was recorded for this node after the mark */
    struct rw_tape_mark mark;
    rw_op_call call;             /* its operands' descriptions are the tape's in_desc and out_desc */
};

/* Only a check describes outputs; cost, draws and workspace functions get the same struct. */
static bool is_in_check(const rw_op_call *call)
{
    return call && call->state_;
}

rw_status rw_op_error(rw_op_call *call, rw_status status, const char *fmt, ...)
{
    RW_LOOKS_ONLY;
    if (!is_in_check(call))
        return rw_fail(call ? call->ctx : NULL, RW_ERR_ARGUMENT, "rw_op_output, rw_op_error: expected a call from "
                       "an op's check function, got one from elsewhere");
    struct check_state *const s = call->state_;
    if (s->status) return s->status;
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->text, sizeof s->text, fmt, args);
    va_end(args);
    return s->status = status;
}

/* True for a storage type if the op does not accept those. */
static bool is_a_foreign_code(const rw_op_def *op, rw_dtype dtype)
{
    return rw_dtype_is_code(dtype) && !(op->flags & (RW_OP_CODES | RW_OP_VIEW));
}

static rw_status set_output(rw_op_call *call, int i, rw_dtype dtype, const rw_layout *layout)
{
    struct check_state *const s = call->state_;
    if (is_a_foreign_code(call->op, dtype))
        return rw_op_error(call, RW_ERR_DTYPE, "output %d: expected a type of arithmetic, got %s, which is for "
                           "storage alone", i, rw_dtype_name(dtype));
    if (!layout || !rw_tape_describe(s->tape, 0, (size_t)i + 1)) {
        s->no_memory = true;
        return s->status = RW_ERR_MEMORY;
    }
    call->out = s->tape->out_desc;
    for (int k = s->named; k < i; k++) call->out[k].layout = NULL;
    if (s->named <= i) s->named = i + 1;
    call->out[i] = (rw_operand_desc){ dtype, layout };
    return RW_OK;
}

static rw_status check_output(rw_op_call *call, int i)
{
    if (!is_in_check(call)) return rw_op_error(call, RW_ERR_ARGUMENT, "expected a call from an op's check function");
    const int most = call->op->n_outputs == RW_OP_VARIADIC ? RW_OP_MAX_OPERANDS : call->op->n_outputs;
    if (i >= 0 && i < most) return RW_OK;
    return rw_op_error(call, RW_ERR_ARGUMENT, "output: expected 0 to %d, the op's outputs, got %d", most - 1, i);
}

rw_status rw_op_check_shape(rw_op_call *call, rw_shape shape)
{
    RW_LOOKS_ONLY;
    char text[RW_FAULT_MAX];
    const rw_status status = rw_shape_fault(RW_F32, shape, text, sizeof text);
    return status ? rw_op_error(call, status, "%s", text) : RW_OK;
}

rw_status rw_op_output(rw_op_call *call, int i, rw_dtype dtype, rw_shape shape)
{
    RW_LOOKS_ONLY;
    char text[RW_FAULT_MAX];
    rw_status status = check_output(call, i);
    if (status) return status;
    struct check_state *const s = call->state_;
    status = rw_shape_fault(dtype, shape, text, sizeof text);
    if (status) return rw_op_error(call, status, "output %d: %s", i, text);
    return set_output(call, i, dtype, rw_layout_dense(&s->ctx->layouts, shape));
}

rw_status rw_op_output_like(rw_op_call *call, int i, int j)
{
    RW_LOOKS_ONLY;
    const rw_status status = check_output(call, i);
    if (status) return status;
    struct check_state *const s = call->state_;
    if (j < 0 || j >= call->n_inputs)
        return rw_op_error(call, RW_ERR_ARGUMENT, "output %d: expected it to be like input 0 to %d, got input %d", i,
                           call->n_inputs - 1, j);
    const rw_operand_desc *const d = &call->in[j];
    const rw_layout *const layout =
        rw_layout_is_whole(d->layout) ? d->layout : rw_layout_dense(&s->ctx->layouts, rw_layout_shape(d->layout));
    return set_output(call, i, d->dtype, layout);
}

rw_status rw_op_output_view(rw_op_call *call, int i, rw_shape shape, const int64_t *stride, int64_t offset)
{
    RW_LOOKS_ONLY;
    char text[RW_FAULT_MAX];
    rw_status status = check_output(call, i);
    if (status) return status;
    struct check_state *const s = call->state_;
    if (!(call->op->flags & RW_OP_VIEW) || !call->n_inputs)
        return rw_op_error(call, RW_ERR_ARGUMENT, "output %d is a view: expected RW_OP_VIEW in the op's flags and an "
                           "input, got flags %#x and %d inputs", i, (unsigned)call->op->flags, call->n_inputs);
    if (!stride && shape.rank > 0)
        return rw_op_error(call, RW_ERR_ARGUMENT, "output %d: stride is NULL; expected %d strides", i, shape.rank);
    status = rw_view_fault(shape, stride, offset, s->base, text, sizeof text);
    if (status) return rw_op_error(call, status, "output %d: %s", i, text);
    return set_output(call, i, call->in[0].dtype, rw_layout_strided(&s->ctx->layouts, shape, stride, offset));
}

/* "f32[4, 8]" appended to text. */
static void describe(char *text, size_t size, const rw_operand_desc *d)
{
    const size_t n = strlen(text);
    char shape[RW_SHAPE_TEXT];
    rw_shape_text(shape, sizeof shape, rw_layout_shape(d->layout));
    snprintf(text + n, size - n, "%s%s", rw_dtype_name(d->dtype), shape);
}

/* The function that the caller has called, if its name differs from the op's. */
static const char *within(const rw_tape *t, const char *op)
{
    return t->composite && !t->origin.adjoint && strcmp(t->composite, op) != 0 ? t->composite : NULL;
}

static rw_tensor *refuse(const struct recording *r, rw_status status, const char *text)
{
    char inputs[384] = "";
    for (int i = 0; i < r->described && i < 6; i++) {
        if (i) strncat(inputs, ", ", sizeof inputs - strlen(inputs) - 1);
        describe(inputs, sizeof inputs, &r->tape->in_desc[i]);
    }
    const char *const whole = within(r->tape, r->op->name);
    rw_fail(r->ctx, status, "%s%s%s(%s) at %s:%d: %s", whole ? whole : "", whole ? ": " : "", r->op->name, inputs,
            rw_file_of(r->site), r->site.line, text);
    return NULL;
}

/* Length of the function, and its argument in parentheses, with which a message begins; 0: it does not. */
static size_t subject_of(const char *text)
{
    size_t n = strcspn(text, ": (");
    if (text[n] == '(') n += strcspn(text + n, ")") + 1;
    return text[n] == ':' ? n : 0;
}

rw_status rw_refuse_at(rw_site at, rw_tape *t, rw_status status, const char *fmt, ...)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (t && t->origin.adjoint) at = t->ctx->sites[t->origin.site]; /* without the line of the rule: the caller's */
    const char *whole = t ? within(t, "") : NULL;
    const size_t n = strcspn(text, ":("), subject = subject_of(text);
    if (whole && strlen(whole) == n && !strncmp(whole, text, n)) whole = NULL;
    return rw_fail(t ? t->ctx : NULL, status, "%s%s%.*s%s%s:%d%s%s", whole ? whole : "", whole ? ": " : "",
                   (int)subject, text, subject ? " at " : "at ", rw_file_of(at), at.line, subject ? "" : ": ",
                   text + subject);
}

static rw_tensor *no_memory(const struct recording *r)
{
    return refuse(r, RW_ERR_MEMORY, "out of memory");
}

static rw_operand_desc desc_of(const rw_context *ctx, const struct rw_tensor *v)
{
    return (rw_operand_desc){ (rw_dtype)v->dtype, rw_layout_of(ctx, v) };
}

/* For the operands known before the check, which may add outputs. */
static bool make_room(struct recording *r)
{
    rw_tape *const t = r->tape;
    const int n_out = r->op->n_outputs == RW_OP_VARIADIC ? 0 : r->op->n_outputs;
    if (!rw_tape_describe(t, (size_t)r->n, (size_t)n_out)) return false;
    if (r->n > FEW && !rw_grow(&t->wide, &t->cap_wide, 0, (size_t)r->n, sizeof *t->wide)) return false;
    r->in = r->n > FEW ? t->wide : r->few;
    return true;
}

/* Call before the first thing that a failure must roll back: a leaf, a copy, a node that REWIND_EAGER=1 runs. */
static void mark(struct recording *r)
{
    if (!r->marked) r->mark = rw_tape_mark(r->tape);
    r->marked = true;
}

/* Records the casts that an open recipe requires. */
static bool cast_inputs(struct recording *r)
{
    const rw_dtype widest = rw_recipe_widest(r->op, r->in, r->n);
    for (int i = 0; i < r->n; i++) {
        const rw_dtype dtype = rw_recipe_dtype(r->tape, r->op, i, (rw_dtype)r->in[i]->dtype, widest);
        if (dtype == (rw_dtype)r->in[i]->dtype) continue;
        mark(r);
        r->in[i] = rw_recipe_cast(r->tape, r->in[i], dtype, r->site);
        if (!r->in[i]) return false;
    }
    return true;
}

/* Makes inputs dense if the kernel requires it. */
static bool lay_inputs(struct recording *r)
{
    if (r->op->flags & RW_OP_VIEW) return true;
    for (int i = 0; i < r->n; i++) {
        if (rw_op_set_has(r->op->strided, i) || rw_layout_of(r->ctx, r->in[i])->dense) continue;
        mark(r);
        r->in[i] = rw_apply_at(r->site, r->tape, &rw_op_contiguous, &r->in[i], 1, NULL, 0, NULL);
        if (!r->in[i]) return false;
    }
    return true;
}

/* Finds inputs as values of this tape, of the type that a recipe gives them, and dense if the kernel requires it. */
static bool take_inputs(struct recording *r, rw_tensor *const *in)
{
    char name[32];
    for (int i = 0; i < r->n; i++) {
        r->in[i] = in[i];
        if (!in[i] || !rw_tape_has(r->tape, in[i]) || rw_value_is_committed(r->tape, in[i])) {
            mark(r);
            const bool is_refused = rw_operand_fault(r->tape, in[i]); /* its name is looked up for the message alone */
            r->in[i] = rw_tape_resolve(r->tape, in[i], r->op->name,
                                       is_refused ? rw_op_input_name(r->op, i, name, sizeof name) : "", r->site);
        }
        if (!r->in[i]) return false;
    }
    return (!rw_recipe_rules(r->tape, r->op) || cast_inputs(r)) && lay_inputs(r);
}

static bool describe_inputs(struct recording *r)
{
    int code = -1; /* the first input of a storage type that the op does not accept */
    for (int i = 0; i < r->n; i++) {
        r->tape->in_desc[i] = desc_of(r->ctx, r->in[i]);
        if (is_a_foreign_code(r->op, (rw_dtype)r->in[i]->dtype) && code < 0) code = i;
    }
    r->described = r->n;
    if (code < 0) return true;
    char text[192], name[32];
    snprintf(text, sizeof text, "%s: expected a type of arithmetic, got %s, which is for storage alone; "
             "rw_dequantize() converts",
             rw_op_input_name(r->op, code, name, sizeof name), rw_dtype_name((rw_dtype)r->in[code]->dtype));
    refuse(r, RW_ERR_DTYPE, text);
    return false;
}

/* Number of elements of input 0's buffer. */
static int64_t buffer_elements(const struct recording *r)
{
    return rw_layout_of(r->ctx, rw_tape_value(r->tape, r->in[0]->base))->numel;
}

/* Every output must be described; a view must be inside of its buffer, also if it was described as dense. */
static rw_status check_all_named(rw_op_call *call, int named)
{
    const struct check_state *const s = call->state_;
    for (int i = 0; i < call->n_outputs; i++) {
        if (i >= named || !call->out[i].layout)
            return rw_op_error(call, RW_ERR_ARGUMENT, "the op's check: expected a type and shape for output %d, got "
                               "none", i);
        if (!(call->op->flags & RW_OP_VIEW)) continue;
        const rw_layout *const l = call->out[i].layout;
        if (call->out[i].dtype != call->in[0].dtype || (l->numel && l->offset + l->span > s->base))
            return rw_op_error(call, RW_ERR_SHAPE, "output %d: expected a view within input 0's buffer of %lld "
                               "elements, got one outside or of another type", i,
                               (long long)s->base);
    }
    return RW_OK;
}

/* Calls the op's check. The call is a custom function, so its result is not trusted: the status must exist, every
   output must be described, and views must be inside of their buffer. The call struct must not outlive the check,
   hence state_ is reset. */
static bool check(struct recording *r, const void *attrs)
{
    struct check_state state;
    state.tape = r->tape;
    state.ctx = r->ctx;
    state.base = r->n && (r->op->flags & RW_OP_VIEW) ? buffer_elements(r) : 0;
    state.named = 0;
    state.status = RW_OK;
    state.no_memory = false;
    state.text[0] = '\0';
    rw_tape *const t = r->tape;
    r->call = (rw_op_call){ .op = r->op, .attrs = attrs, .n_inputs = r->n, .in = t->in_desc, .out = t->out_desc,
                            .kind = r->ctx->kind, .threads = r->ctx->threads, .device = r->ctx->device_state,
                            .ctx = r->ctx, .n_outputs = r->op->n_outputs == RW_OP_VARIADIC ? 0 : r->op->n_outputs,
                            .state_ = &state };
    const enum rw_callback before = rw_callback_enter(r->ctx, RW_CALLBACK_QUERY);
    rw_status status = r->op->check(&r->call);
    if (t->origin.adjoint || r->ctx->eager) rw_library_mode_keep();
    if (rw_callback_end(r->ctx, before)) return false; /* it made an illegal call: the error is sticky */
    if (!rw_is_status((int)status))
        status = rw_op_error(&r->call, RW_ERR_ARGUMENT, "the op's check: expected a value of enum rw_status, got %d",
                             (int)status);
    const int n_out = r->call.n_outputs;
    if (!status && (n_out < 1 || n_out > RW_OP_MAX_OPERANDS - r->n))
        status = rw_op_error(&r->call, RW_ERR_ARGUMENT,
                             "expected 1 output or more and at most %d operands, got %d inputs and %d outputs",
                             RW_OP_MAX_OPERANDS, r->n, n_out);
    if (!status && !state.status) status = check_all_named(&r->call, state.named);
    r->call.out = t->out_desc;
    r->call.state_ = NULL;
    if (status == RW_OK && state.status == RW_OK) return true;
    refuse(r, status ? status : state.status,
           state.no_memory ? "out of memory"
           : state.text[0] ? state.text
                           : rw_status_name(status));
    return false;
}

/* Only planning records writes to gradients, because it knows which values are stored in them. */
static bool may_be_written(const struct recording *r, const struct rw_tensor *to)
{
    return r->tape->origin.adjoint || (to->leaf != RW_NONE_ID && r->tape->leaves[to->leaf].kind == RW_LEAF_PARAM);
}

/* A commit writes whole parameters, buffers or states, and each output has the type and shape of its operand. */
static bool commits_soundly(struct recording *r)
{
    const int n_out = r->call.n_outputs, first = r->n - n_out;
    bool sound = first >= 0;
    for (int i = 0; sound && i < n_out; i++) {
        const struct rw_tensor *const to = r->in[first + i];
        sound = may_be_written(r, to) && r->call.out[i].dtype == (rw_dtype)to->dtype &&
                r->call.out[i].layout->id == to->layout;
    }
    if (!sound)
        refuse(r, RW_ERR_ARGUMENT,
               "expected to write parameters or buffers of the outputs' types and shapes, got another tensor");
    return sound;
}

/* Reserves memory for one node with so many operands and outputs; appends nothing. */
static bool reserve(struct recording *r, size_t attrs_size)
{
    rw_tape *const t = r->tape;
    const size_t attr_bytes = (attrs_size + 7) & ~(size_t)7;
    r->site_index = rw_site_index(r->ctx, r->site);
    if (r->site_index == RW_NONE_ID) return false;
    if (!rw_tape_reserve_values(t, (size_t)r->call.n_outputs)) return false;
    if (!rw_grow(&t->nodes, &t->cap_nodes, t->n_nodes, 1, sizeof *t->nodes)) return false;
    if (!rw_grow(&t->operands, &t->cap_operands, t->n_operands, (size_t)r->n, sizeof *t->operands)) return false;
    if (!rw_grow(&t->attrs, &t->cap_attrs, t->n_attrs, attr_bytes, 1)) return false;
    if (!rw_key_reserve(&t->key, RW_KEY_NODE_WORDS(r->n, attrs_size) +
                                     RW_KEY_VALUE_WORDS * (size_t)r->call.n_outputs))
        return false;
    if (!rw_grow(&t->tickets, &t->cap_tickets, t->n_tickets, 1, sizeof *t->tickets) ||
        !rw_grow(&t->ticket_blocks, &t->cap_ticket_blocks, t->n_tickets, 1, sizeof *t->ticket_blocks))
        return false;
    if (r->order && !rw_order_reserve(r->order, t, (size_t)r->call.n_outputs)) return false;
    return !(r->op->flags & RW_OP_STATEFUL) ||
           rw_grow(&t->effects, &t->cap_effects, t->n_effects, 1, sizeof *t->effects);
}

static void add_outputs(struct recording *r, struct rw_node *node, bool requires)
{
    rw_tape *const t = r->tape;
    const bool view = r->op->flags & RW_OP_VIEW;
    node->first_output = (uint32_t)t->n_values;
    for (int i = 0; i < r->call.n_outputs; i++) {
        struct rw_tensor *const v = rw_tape_add_value(t);
        v->layout = r->call.out[i].layout->id;
        v->dtype = (uint8_t)r->call.out[i].dtype;
        v->producer = (uint32_t)t->n_nodes;
        if (view) v->base = r->in[0]->base;
        if (requires && rw_dtype_is_float((rw_dtype)v->dtype)) v->flags |= RW_VALUE_REQUIRES;
    }
}

#define WORDS_MAX ((int64_t)1 << 60)

/* Law 2: numbers are drawn now, in tape order. A rule that draws the same mask again uses its node's ticket; a node
   that draws no words has none. */
static uint32_t draw_ticket(struct recording *r)
{
    rw_tape *const t = r->tape;
    if (!(r->op->flags & RW_OP_RANDOM)) return RW_NONE_ID;
    if (t->origin.adjoint && t->origin.ticket != RW_NONE_ID) return t->origin.ticket;
    const int64_t n = r->words;
    if (!n) return RW_NONE_ID;
    t->tickets[t->n_tickets] = (rw_ticket){ r->ctx->generator.seed, r->ctx->generator.offset };
    t->ticket_blocks[t->n_tickets] = (uint64_t)(n + 3) / 4;
    r->ctx->generator.offset += (uint64_t)(n + 3) / 4;
    t->ticket_end = r->ctx->generator.offset;
    return (uint32_t)t->n_tickets++;
}

/* Works on a copy, which stays in registers. */
static void add_to_key(rw_tape *t, const struct rw_node *node)
{
    struct rw_key key = t->key;
    rw_key_add_node(&key, node, t->operands + node->first_input, t->attrs + node->attrs);
    for (uint32_t i = 0; i < node->n_outputs; i++) rw_key_add_value(&key, rw_tape_value(t, node->first_output + i));
    t->key.n = key.n;
    t->key.hash = key.hash;
}

/* Appends the node. Cannot fail: all memory is reserved. */
static void append(struct recording *r, const void *attrs, size_t attrs_size)
{
    rw_tape *const t = r->tape;
    struct rw_node *const node = &t->nodes[t->n_nodes];
    *node = (struct rw_node){ .op = (uint16_t)r->op_index, .n_inputs = (uint16_t)r->n,
                              .n_outputs = (uint16_t)r->call.n_outputs, .attrs_size = (uint16_t)attrs_size,
                              .first_input = (uint32_t)t->n_operands, .attrs = (uint32_t)t->n_attrs,
                              .site = r->site_index, .adjoint = t->origin.adjoint, .no_grad = t->open_no_grads > 0,
                              .region = t->origin.adjoint ? t->origin.of : t->open_region };
    bool requires = false;
    for (int i = 0; i < r->n; i++) requires |= r->in[i]->flags & RW_VALUE_REQUIRES;
    if ((r->op->flags & RW_OP_NO_GRADIENT) || node->no_grad) requires = false;
    add_outputs(r, node, requires);
    node->ticket = draw_ticket(r);
    for (int i = 0; i < r->n; i++) t->operands[t->n_operands++] = r->in[i]->id;
    if (attrs_size) {
        const size_t end = t->n_attrs + ((attrs_size + 7) & ~(size_t)7);
        memset(t->attrs + end - 8, 0, 8); /* the key consists of whole words */
        memcpy(t->attrs + t->n_attrs, attrs, attrs_size);
        t->n_attrs = end;
    }
    add_to_key(t, node);
    if (r->op->flags & RW_OP_STATEFUL) t->effects[t->n_effects++] = (struct rw_effect){ .node = (uint32_t)t->n_nodes };
    if (r->order) rw_order_note(r->order, t, node);
    t->n_nodes++;
}

/* Checks the caller's n inputs and attributes. The number of inputs is an int from here on. */
static bool call_is_sound(struct recording *r, rw_tensor *const *in, size_t n, const void *attrs, size_t attrs_size)
{
    const bool is_variadic = r->op->n_inputs == RW_OP_VARIADIC;
    const size_t takes = is_variadic ? RW_OP_MAX_OPERANDS : (size_t)r->op->n_inputs;
    char text[128];
    if (n > takes || (!is_variadic && n != takes))
        snprintf(text, sizeof text, "n: expected %s%zu inputs, got %zu", is_variadic ? "0 to " : "", takes, n);
    else if (n && !in) snprintf(text, sizeof text, "in is NULL; expected an array of %zu tensors", n);
    else if (attrs_size > UINT16_MAX || (attrs_size && !attrs))
        snprintf(text, sizeof text, "attributes: expected at most %d bytes, and not NULL, got %zu%s", UINT16_MAX,
                 attrs_size, attrs ? "" : " at NULL");
    else {
        r->n = (int)n;
        return true;
    }
    refuse(r, RW_ERR_ARGUMENT, text);
    return false;
}

/* Index of the op in the context's table. A definition is validated when it is first used. */
static bool know_op(struct recording *r)
{
    char text[256];
    r->op_index = rw_op_find(r->ctx, r->op);
    if (r->op_index != RW_NONE_ID) return true;
    const rw_status status = rw_op_def_fault(r->op, r->ctx->kind, text, sizeof text);
    if (status) {
        rw_fail(r->ctx, status, "rw_apply(%s) at %s:%d: %s", r->op->name ? r->op->name : "", rw_file_of(r->site),
                r->site.line, text);
        return false;
    }
    r->op_index = rw_op_index(r->ctx, r->op);
    if (r->op_index == RW_NONE_ID) no_memory(r);
    return r->op_index != RW_NONE_ID;
}

/* NULL, with the error of a call without a tape: its inputs may lead to a context for it, if their number is valid. */
static rw_tensor *refuse_no_tape(rw_site at, const char *what, rw_tensor *const *in, size_t n)
{
    rw_context *ctx = NULL;
    for (size_t i = 0; !ctx && in && n <= RW_OP_MAX_OPERANDS && i < n && i < FEW; i++) ctx = rw_tensor_context(in[i]);
    rw_fail(ctx, RW_ERR_ARGUMENT, "%s at %s:%d: t is NULL; expected a tape", what, rw_file_of(at), at.line);
    return NULL;
}

/* A call without a tape or an op. */
static rw_tensor *refuse_nothing(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, size_t n)
{
    if (!t) return refuse_no_tape(at, op && op->name ? op->name : "rw_apply", in, n);
    rw_fail(rw_tape_context(t), RW_ERR_ARGUMENT, "rw_apply at %s:%d: op is NULL; expected the definition of an op",
            rw_file_of(at), at.line);
    return NULL;
}

/* Under REWIND_DEBUG=order. */
static bool has_an_order(const struct recording *r)
{
    uint32_t met[2];
    const rw_tape *const t = r->tape;
    if (t->origin.adjoint || !rw_order_meets(r->order, t, r->site_index, r->in, r->n, met)) return true;
    char text[256];
    snprintf(text, sizeof text,
             "two of its arguments record a random op (%s, %s), and C does not say which is evaluated first; give each "
             "a statement of its own", r->ctx->ops[t->nodes[met[0]].op]->name,
             r->ctx->ops[t->nodes[met[1]].op]->name);
    refuse(r, RW_ERR_ARGUMENT, text);
    return false;
}

/* Number of words that the op draws. A rule may not draw numbers of its own, because a plan keeps the nodes of
   rules: the numbers would be the same in every step. */
static bool may_draw(struct recording *r)
{
    const struct rw_origin *const o = &r->tape->origin;
    if (!(r->op->flags & RW_OP_RANDOM)) return true;
    const enum rw_callback before = rw_callback_enter(r->ctx, RW_CALLBACK_QUERY);
    r->words = rw_call_draws(&r->call);
    if (rw_callback_leave(r->ctx, before)) return false;
    const int64_t words = r->words;
    const uint64_t blocks = ((uint64_t)words + 3) / 4;
    char text[192];
    if (words < 0 || words > WORDS_MAX) {
        snprintf(text, sizeof text, "draws: expected 0 to 2^60 random words, got %lld", (long long)words);
        refuse(r, RW_ERR_ARGUMENT, text);
        return false;
    }
    if (!o->adjoint || !words) return true;
    if (o->of == RW_NONE_ID) {
        if (!r->tape->n_rules) return true; /* an update's rounding */
        refuse(r, RW_ERR_ARGUMENT, "a custom recorder draws numbers, which would be the same in every launch; draw "
               "them in forward and let it read them");
        return false;
    }
    if (o->ticket != RW_NONE_ID && blocks <= r->tape->ticket_blocks[o->ticket]) return true;
    if (o->ticket != RW_NONE_ID) {
        snprintf(text, sizeof text,
                 "a rule of %s draws with the ticket of its op: expected at most %llu blocks of four words, as the op "
                 "draws, got %llu", r->ctx->ops[r->tape->nodes[o->of].op]->name,
                 (unsigned long long)r->tape->ticket_blocks[o->ticket], (unsigned long long)blocks);
        refuse(r, RW_ERR_ARGUMENT, text);
        return false;
    }
    snprintf(text, sizeof text,
             "a rule of %s draws numbers of its own, which would be the same in every step; draw them in forward and "
             "let the rule read them", r->ctx->ops[r->tape->nodes[o->of].op]->name);
    refuse(r, RW_ERR_ARGUMENT, text);
    return false;
}

/* The parts that an op reads in place of a value are inputs, and the value was recorded before. */
static bool reads_parts_soundly(struct recording *r, const void *attrs)
{
    if (!r->op->parts) return true;
    int64_t whole = 0;
    const enum rw_callback before = rw_callback_enter(r->ctx, RW_CALLBACK_QUERY);
    const int parts = r->op->parts(attrs, &whole);
    if (rw_callback_leave(r->ctx, before)) return false;
    if (!parts || (parts > 0 && parts <= r->n && whole >= 0 && whole < (int64_t)r->tape->n_values)) return true;
    char text[128];
    snprintf(text, sizeof text, "parts: expected 0 to %d inputs and the number of a value of the tape, got %d and %lld",
             r->n, parts, (long long)whole);
    refuse(r, RW_ERR_ARGUMENT, text);
    return false;
}

/* Checks the call and appends the node; what it recorded for its inputs stays after the mark. */
static bool record(struct recording *r, rw_tensor *const *in, size_t n, const void *attrs, size_t attrs_size)
{
    if (!know_op(r) || !call_is_sound(r, in, n, attrs, attrs_size)) return false;
    if (!make_room(r)) return no_memory(r);
    if (!take_inputs(r, in) || !describe_inputs(r)) return false;
    if (!check(r, attrs) || ((r->op->flags & RW_OP_COMMIT) && !commits_soundly(r))) return false;
    if (!reads_parts_soundly(r, attrs) || !may_draw(r)) return false;
    if (!reserve(r, attrs_size)) return no_memory(r);
    if (r->order && !has_an_order(r)) return false;
    if (r->ctx->eager) mark(r);
    append(r, attrs, attrs_size);
    if (!r->ctx->eager || r->tape->origin.adjoint) return true;
    return r->ctx->up->recorded(r->tape, (uint32_t)r->tape->n_nodes - 1) == RW_OK;
}

/* Records a node. Outputs are returned only on success; on failure everything that was recorded for this call is
   rolled back. */
rw_tensor *rw_apply_at(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, size_t n,
                       const void *attrs, size_t attrs_size, rw_tensor **ret_outs)
{
    RW_ENTER_OP(t);
    if (!t || !op) return refuse_nothing(at, t, op, in, n);
    struct recording r;
    r.tape = t;
    r.ctx = t->ctx;
    r.order = rw_order_check_of(t);
    r.op = op;
    r.site = t->origin.adjoint ? t->ctx->sites[t->origin.site] : at;
    r.n = 0;
    r.described = 0;
    r.marked = false;
    if (!record(&r, in, n, attrs, attrs_size)) {
        if (r.marked) rw_tape_rollback(t, &r.mark);
        return NULL;
    }
    const struct rw_node *const node = &t->nodes[t->n_nodes - 1];
    for (int i = 0; ret_outs && i < node->n_outputs; i++)
        ret_outs[i] = rw_tape_value(t, node->first_output + (uint32_t)i);
    return rw_tape_value(t, node->first_output);
}
