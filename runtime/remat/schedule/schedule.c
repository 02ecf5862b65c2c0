/*
 * Pass 3: emits forward, then backward with replays on demand. schedule.h has a drawing; choice.h defines which visit
 * serves a read.
 */
#include "remat/schedule/schedule.h"

#include "base/alloc.h"
#include "base/round_up.h"

#include <stdlib.h>
#include <string.h>

struct emitter {
    const struct rw_problem *p;
    const rw_tape *t;
    const struct rw_choice *choice;
    struct rw_schedule *out;
    struct rw_order_scratch *s;
};

/* Is the node left out of forward, and not executed yet? */
static bool is_deferred(const struct emitter *e, uint32_t n)
{
    return e->p->deferrable[n] && e->s->deferred[n];
}

static bool drops(const struct emitter *e, uint32_t base)
{
    return e->s->dropped[base];
}

/* Is the value kept for the first visit that reads it, and dropped after that? */
static bool is_for_first(const struct emitter *e, uint32_t base)
{
    return e->s->dropped[base] & RW_FOR_FIRST;
}

/* ---- buffers, sources, results ---- */

/* emit() has reserved its memory. */
static uint32_t add_buffer(struct rw_schedule *s, uint32_t value, uint32_t source, uint64_t bytes, bool replay)
{
    const uint32_t id = (uint32_t)s->n_buffers++;
    s->buffers[id] = (struct rw_buffer){
        .value = value, .first = UINT32_MAX, .source = source, .bytes = bytes, .replay = replay, .merged = id };
    return id;
}

static uint32_t source_buffer(struct rw_schedule *s, uint32_t base, uint64_t bytes, enum rw_source_kind kind,
                              uint32_t index, uint32_t leaf)
{
    if (!rw_grow(&s->sources, &s->cap_sources, s->n_sources, 1, sizeof *s->sources)) return RW_NONE_ID;
    s->sources[s->n_sources] = (struct rw_source){ .kind = (uint8_t)kind, .index = index, .leaf = leaf };
    return add_buffer(s, base, (uint32_t)s->n_sources++, bytes, false);
}

static uint32_t note_read_gradient(struct rw_schedule *s, uint32_t gradient, uint32_t buffer)
{
    if (!rw_grow(&s->read_gradients, &s->cap_read_gradients, s->n_read_gradients, 1, sizeof *s->read_gradients))
        return RW_NONE_ID;
    s->read_gradients[s->n_read_gradients++] = (struct rw_read_gradient){ gradient, buffer };
    return buffer;
}

static int by_gradient(const void *pa, const void *pb)
{
    const struct rw_read_gradient *const a = pa, *const b = pb;
    if (a->gradient != b->gradient) return a->gradient < b->gradient ? -1 : 1;
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

/* Do the gradients come in the order of the last schedule? Almost always: adjoint nodes have one order. */
static bool come_as_before(const struct rw_gradient_order *o, const struct rw_schedule *s)
{
    if (o->n != s->n_read_gradients) return false;
    for (size_t i = 0; i < o->n; i++)
        if (o->gradient[i] != s->read_gradients[i].gradient) return false;
    return true;
}

/*
 * Sorts the read gradients by parameter. They were recorded in the order of their buffers. Reuses the permutation of
 * the last schedule if it had the same order.
 */
static rw_status sort_read_gradients(struct rw_gradient_order *o, struct rw_schedule *s)
{
    const size_t n = s->n_read_gradients;
    size_t cap_gradient = o->cap, cap_from = o->cap;
    if (!n) return RW_OK;
    if (!rw_grow(&o->gradient, &cap_gradient, 0, n, sizeof *o->gradient) ||
        !rw_grow(&o->from, &cap_from, 0, n, sizeof *o->from) || !rw_grow(&o->read, &o->cap, 0, n, sizeof *o->read))
        return RW_ERR_MEMORY;
    if (!come_as_before(o, s)) {
        for (uint32_t i = 0; i < n; i++) {
            o->gradient[i] = s->read_gradients[i].gradient;
            o->read[i] = (struct rw_read_gradient){ o->gradient[i], i };
        }
        qsort(o->read, n, sizeof *o->read, by_gradient);
        for (size_t i = 0; i < n; i++) o->from[i] = o->read[i].buffer;
        o->n = n;
    }
    memcpy(o->read, s->read_gradients, n * sizeof *o->read);
    for (size_t i = 0; i < n; i++) s->read_gradients[i] = o->read[o->from[i]];
    return RW_OK;
}

/* A buffer for a value that exists before anything runs. */
static uint32_t given_buffer(struct emitter *e, uint32_t base)
{
    const struct rw_tensor *const v = rw_tape_value(e->t, base);
    if (v->producer != RW_NONE_ID)
        return source_buffer(e->out, base, 0, RW_SOURCE_HELD, base, RW_NONE_ID);
    const struct rw_leaf *const leaf = &e->t->leaves[v->leaf];
    if (leaf->kind == RW_LEAF_SEED)
        return source_buffer(e->out, base, 0, RW_SOURCE_SEED, leaf->param, RW_NONE_ID);
    const bool gradient = leaf->kind == RW_LEAF_GRADIENT, input = leaf->kind == RW_LEAF_INPUT;
    const enum rw_source_kind kind = input                ? RW_SOURCE_INPUT
                                     : !gradient          ? RW_SOURCE_PARAM
                                     : e->p->is_read[base] ? RW_SOURCE_OLD
                                                         : RW_SOURCE_ADDEND;
    const uint32_t buffer = source_buffer(e->out, base, 0, kind, input ? v->leaf : leaf->param, v->leaf);
    return gradient && buffer != RW_NONE_ID ? note_read_gradient(e->out, leaf->param, buffer) : buffer;
}

/* Scalars share groups of RW_RESULT_ALIGNMENT bytes. On a host, where `least` is 1, each float32 takes 4 bytes. On
   other devices products need operands at multiples of 16 bytes. */
static uint64_t place_result(struct rw_schedule *s, const rw_layout *l, uint64_t bytes, uint64_t least)
{
    const bool is_scalar = !l->rank && bytes;
    const uint64_t in_group = is_scalar ? rw_round_up(s->scalars_end, bytes > least ? bytes : least) : 0;
    const bool fits = in_group % RW_RESULT_ALIGNMENT != 0; /* the last group has room */
    const uint64_t at = fits ? in_group : s->results_bytes;
    if (!fits) s->results_bytes += rw_round_up(bytes, RW_RESULT_ALIGNMENT);
    if (is_scalar) s->scalars_end = at + bytes;
    return at;
}

/* A buffer for a requested output: a parameter's gradient, or a result that stays readable. */
static uint32_t target_buffer(struct emitter *e, const struct rw_target *target, uint32_t base, uint64_t bytes)
{
    struct rw_schedule *const s = e->out;
    const struct rw_tensor *const v = rw_tape_value(e->t, base);
    const uint64_t least = e->t->ctx->device->on_host ? 1 : 16;
    if (target->into_gradient)
        return source_buffer(s, base, 0, RW_SOURCE_GRADIENT, target->of, RW_NONE_ID);
    if (!rw_grow(&s->results, &s->cap_results, s->n_results, 1, sizeof *s->results)) return RW_NONE_ID;
    s->results[s->n_results] = (struct rw_result){ .value = target->view ? target->view : base,
                                                   .of = target->of,
                                                   .layout = v->layout,
                                                   .dtype = v->dtype,
                                                   .offset = place_result(s, rw_layout_of(e->t->ctx, v), bytes, least),
                                                   .bytes = bytes };
    return source_buffer(s, base, bytes, RW_SOURCE_RESULT, (uint32_t)s->n_results++, RW_NONE_ID);
}

/* The output of a commit is in the memory of the operand that it writes. If that is a clear gradient, the reader
   handles it. */
static uint32_t committed_buffer(struct emitter *e, const struct rw_node *node, uint32_t base)
{
    const uint32_t written = node->n_inputs - node->n_outputs + (base - node->first_output);
    const uint32_t source = e->out->buffers[e->s->buffer[rw_problem_input(e->p, node, written)]].source;
    const struct rw_source *const s = &e->out->sources[source];
    if (s->kind != RW_SOURCE_ADDEND && s->kind != RW_SOURCE_OLD)
        return add_buffer(e->out, base, source, 0, false);
    return source_buffer(e->out, base, 0, RW_SOURCE_GRADIENT, s->index, RW_NONE_ID);
}

/* The buffer that the action writes an output of its node to. again: it is not the node's first execution. */
static inline uint32_t output_buffer(struct emitter *e, const struct rw_node *node, uint32_t base, uint8_t kind,
                                     bool again)
{
    const uint64_t bytes = e->p->bytes[base];
    if (kind == RW_ACTION_COMMIT) return committed_buffer(e, node, base);
    const uint32_t target = kind == RW_ACTION_REPLAY ? RW_NONE_ID : e->p->target_of[base];
    if (target != RW_NONE_ID) return target_buffer(e, &e->p->targets.target[target], base, bytes);
    if (!bytes) return source_buffer(e->out, base, 0, RW_SOURCE_NOWHERE, 0, RW_NONE_ID);
    return add_buffer(e->out, base, RW_NONE_ID, bytes, again);
}

/* ---- available values ---- */

/* The depth of the visit that serves a read of the value now. */
static size_t serving(const struct emitter *e, uint32_t base)
{
    const size_t level = e->choice->fate[base].level, depth = e->s->visits.depth;
    return level < depth ? level : depth;
}

/* The buffer that a read finds, RW_NONE_ID if the value must be recomputed. A value that forward still reads is
   available until then. Most dropped values that are missing belong to no visit. */
static inline uint32_t find(const struct emitter *e, uint32_t base)
{
    const uint32_t buffer = e->s->buffer[base];
    if (buffer != RW_NONE_ID || !drops(e, base) || e->s->visits.top[base] == RW_NONE_ID) return buffer;
    return rw_visits_find(&e->s->visits, base, serving(e, base));
}

static inline bool is_there(const struct emitter *e, uint32_t base)
{
    return find(e, base) != RW_NONE_ID || e->p->given[base];
}

static void read_early(struct emitter *e, uint32_t base)
{
    if (drops(e, base) && !--e->s->early[base] && !is_for_first(e, base)) e->s->buffer[base] = RW_NONE_ID;
}

/* ---- actions ---- */

/* Adds an operand to the action. emit() has reserved its memory. */
static inline void touch(struct rw_schedule *s, uint32_t buffer)
{
    s->refs[s->n_refs++] = buffer;
    s->buffers[buffer].last = (uint32_t)s->n_actions;
}

/* Adds an operand whose buffer begins here, or a source whose buffer may have begun before. */
static inline bool touch_first(struct rw_schedule *s, uint32_t buffer)
{
    if (buffer == RW_NONE_ID) return false;
    if (s->buffers[buffer].first == UINT32_MAX) s->buffers[buffer].first = (uint32_t)s->n_actions;
    touch(s, buffer);
    return true;
}

/*
 * Backward reads a value that was kept for its first visit: from now on it belongs to that visit, unless forward reads
 * it later.
 */
static rw_status give_to_visit(struct emitter *e, uint32_t base, uint32_t buffer)
{
    if (e->s->early[base] || e->s->buffer[base] == RW_NONE_ID) return RW_OK;
    e->s->buffer[base] = RW_NONE_ID;
    return rw_visits_note(&e->s->visits, base, serving(e, base), buffer);
}

static rw_status add_inputs(struct emitter *e, const struct rw_node *node, uint8_t kind)
{
    const bool commits = kind == RW_ACTION_COMMIT;
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const uint32_t b = commits ? rw_problem_read_by_commit(e->p, node, i) : rw_problem_input(e->p, node, i);
        uint32_t buffer = find(e, b);
        if (buffer != RW_NONE_ID) {
            touch(e->out, buffer);
        } else {
            if (e->p->given[b]) buffer = e->s->buffer[b] = given_buffer(e, b);
            if (!touch_first(e->out, buffer)) return RW_ERR_MEMORY;
        }
        if (kind != RW_ACTION_FORWARD && is_for_first(e, b) && give_to_visit(e, b, buffer)) return RW_ERR_MEMORY;
    }
    return RW_OK;
}

/* A replay for the whole step makes its value available from now on, unless forward still reads its own copy. */
static rw_status note_replay(struct emitter *e, uint32_t base, uint32_t buffer)
{
    if (e->choice->fate[base].level || e->s->early[base])
        return rw_visits_note(&e->s->visits, base, serving(e, base), buffer);
    e->s->buffer[base] = buffer;
    return RW_OK;
}

/*
 * Adds all outputs of a node. Dropped outputs of a replay belong to the visit. Its other outputs are written too, but
 * readers use the values that already exist.
 */
static rw_status add_outputs(struct emitter *e, const struct rw_node *node, uint8_t kind, bool again)
{
    for (uint32_t i = 0; i < node->n_outputs; i++) {
        const uint32_t b = node->first_output + i;
        const uint32_t buffer = output_buffer(e, node, b, kind, again);
        if (!touch_first(e->out, buffer)) return RW_ERR_MEMORY;
        if (kind == RW_ACTION_REPLAY) {
            const rw_status status = drops(e, b) ? note_replay(e, b, buffer) : RW_OK;
            if (status) return status;
        } else if (!e->p->given[b] && (!drops(e, b) || e->s->early[b] || is_for_first(e, b))) {
            e->s->buffer[b] = buffer;
        }
    }
    return RW_OK;
}

static inline void add_workspace(struct emitter *e, uint32_t n)
{
    const uint64_t bytes = e->p->workspace[n];
    if (bytes) touch_first(e->out, add_buffer(e->out, RW_NONE_ID, RW_NONE_ID, bytes, false));
}

/* Reserves memory for an action of the node: each of its operands may be a new buffer. */
static inline bool reserve_action(struct rw_schedule *s, const struct rw_node *node)
{
    const size_t n = (size_t)node->n_inputs + node->n_outputs + 1; /* and a workspace */
    return rw_grow(&s->actions, &s->cap_actions, s->n_actions, 1, sizeof *s->actions) &&
           rw_grow(&s->refs, &s->cap_refs, s->n_refs, n, sizeof *s->refs) &&
           rw_grow(&s->buffers, &s->cap_buffers, s->n_buffers, n, sizeof *s->buffers);
}

/* Emits one execution of a node, for the visit that backward is in. A deferred node is demanded like a replay. */
static rw_status emit(struct emitter *e, uint32_t n, uint8_t kind)
{
    struct rw_schedule *const s = e->out;
    const struct rw_node *const node = &e->t->nodes[n];
    if (e->s->most_actions && s->n_actions == e->s->most_actions) return RW_ERR_UNSUPPORTED;
    if (!reserve_action(s, node)) return RW_ERR_MEMORY;
    const size_t word = s->n_refs;
    const bool deferred = is_deferred(e, n);
    rw_status status = add_inputs(e, node, kind);
    if (!status) status = add_outputs(e, node, kind, kind == RW_ACTION_REPLAY && !deferred);
    add_workspace(e, n);
    for (uint32_t i = 0; kind == RW_ACTION_FORWARD && i < node->n_inputs; i++)
        read_early(e, rw_problem_input(e->p, node, i));
    if (deferred) e->s->deferred[n] = false;
    s->actions[s->n_actions++] = (struct rw_action){ .node = n, .word = (uint32_t)word,
                                                     .n_words = (uint16_t)(s->n_refs - word),
                                                     .kind = deferred ? RW_ACTION_FORWARD : kind,
                                                     .may_overwrite = e->p->overwrites[n] != 0 };
    return status;
}

static rw_status push(struct rw_order_scratch *s, uint32_t value)
{
    if (!rw_grow(&s->stack, &s->cap_stack, s->n_stack, 1, sizeof *s->stack)) return RW_ERR_MEMORY;
    s->stack[s->n_stack++] = value;
    return RW_OK;
}

/* The node that recomputes a value. If the input of its recompute node must itself be recomputed by the value's
   producer, that execution computes the value as well. */
static uint32_t producer_of(const struct emitter *e, uint32_t base)
{
    const uint32_t recompute_node = e->p->recompute_node[base];
    return recompute_node != RW_NONE_ID ? recompute_node : rw_tape_value(e->t, base)->producer;
}

/*
 * Replays what a value needs, inputs first. Uses a stack of its own instead of recursion, because a chain may be long.
 */
static rw_status demand(struct emitter *e, uint32_t base)
{
    struct rw_order_scratch *const s = e->s;
    if (is_there(e, base)) return RW_OK;
    s->n_stack = 0;
    rw_status status = push(s, base);
    while (!status && s->n_stack) {
        const uint32_t b = s->stack[s->n_stack - 1];
        if (is_there(e, b)) {
            s->n_stack--;
            continue;
        }
        const uint32_t n = producer_of(e, b);
        const struct rw_node *const node = &e->t->nodes[n];
        const size_t before = s->n_stack;
        for (uint32_t i = 0; !status && i < node->n_inputs; i++) {
            const uint32_t in = rw_problem_input(e->p, node, i);
            if (!is_there(e, in)) status = push(s, in);
        }
        if (status || s->n_stack > before) continue;
        status = emit(e, n, RW_ACTION_REPLAY);
        s->n_stack--;
    }
    return status;
}

static rw_status emit_backward(struct emitter *e, uint32_t n)
{
    const struct rw_node *const node = &e->t->nodes[n];
    rw_status status = rw_visits_enter(&e->s->visits, e->choice->segment_of[n]);
    for (uint32_t i = 0; !status && i < node->n_inputs; i++) {
        const uint32_t b = rw_problem_input(e->p, node, i);
        if (e->s->buffer[b] == RW_NONE_ID) status = demand(e, b);
    }
    return status ? status : emit(e, n, RW_ACTION_BACKWARD);
}

/* Emits the commits: buffers are written when the step ends, after every action that reads them. */
static rw_status emit_commits(struct emitter *e)
{
    rw_status status = rw_visits_enter(&e->s->visits, 0);
    for (size_t i = 0; !status && i < e->t->n_effects; i++) {
        const uint32_t n = e->t->effects[i].node;
        if (e->p->needed[n] && (e->t->ctx->ops[e->t->nodes[n].op]->flags & RW_OP_COMMIT))
            status = emit(e, n, RW_ACTION_COMMIT);
    }
    return status;
}

/* Emits the nodes after the front in the problem's order, then the commits. */
static rw_status emit_all(struct emitter *e)
{
    const struct rw_problem *const p = e->p;
    rw_status status = RW_OK;
    bool late = false, own = false;
    for (size_t i = e->s->front.n; !status && i < p->n_order; i++) {
        const uint32_t n = p->order[i];
        if (n >= p->mark.nodes && !own) e->out->n_before = e->out->n_actions;
        own |= n >= p->mark.nodes;
        if (!e->t->nodes[n].adjoint) {
            if (!is_deferred(e, n)) status = emit(e, n, RW_ACTION_FORWARD);
            continue;
        }
        if (!late) e->out->n_forward = e->out->n_actions;
        late = true;
        status = emit_backward(e, n);
    }
    if (!late) e->out->n_forward = e->out->n_actions;
    if (!own) e->out->n_before = e->out->n_forward;
    return status ? status : emit_commits(e);
}

static void clear(struct rw_schedule *s)
{
    s->n_actions = s->n_refs = s->n_buffers = s->n_sources = s->n_read_gradients = s->n_results = s->n_forward = 0;
    s->n_before = 0;
    s->n_waits = s->n_slots = 0;
    s->results_bytes = s->scalars_end = 0;
}

/* ---- the front ---- */

/* Counts the reads of each value by forward after the front. The value is available until the last of them. */
static void count_early_reads(const struct emitter *e, struct rw_front *front)
{
    const struct rw_problem *const p = e->p;
    if (e->t->n_values) memset(front->early, 0, e->t->n_values * sizeof *front->early);
    for (size_t i = front->n; i < p->n_order; i++) {
        const struct rw_node *const node = &e->t->nodes[p->order[i]];
        for (uint32_t k = 0; !node->adjoint && k < node->n_inputs; k++) front->early[rw_problem_input(p, node, k)]++;
    }
}

/* Emits the nodes with which every schedule of this problem begins. */
static rw_status make_front(const struct emitter *e)
{
    const struct rw_problem *const p = e->p;
    struct rw_front *const front = &e->s->front;
    struct emitter first = *e;
    rw_status status = RW_OK;
    first.out = &front->schedule;
    front->of = 0;
    clear(&front->schedule);
    for (size_t v = 0; v < p->t->n_values; v++) {
        e->s->buffer[v] = RW_NONE_ID;
        e->s->dropped[v] = false;
    }
    for (front->n = 0; !status && front->n < p->n_order; front->n++) {
        const uint32_t n = p->order[front->n];
        if (n >= p->mark.nodes || p->t->nodes[n].adjoint || p->deferrable[n]) break;
        status = emit(&first, n, RW_ACTION_FORWARD);
    }
    if (status) return status;
    if (p->t->n_values) memcpy(front->buffer, e->s->buffer, p->t->n_values * sizeof *front->buffer);
    count_early_reads(e, front);
    front->of = p->serial;
    return RW_OK;
}

static bool copy(void *array, size_t *capacity, size_t *n, const void *from, size_t n_from, size_t size)
{
    void *to;
    if (!rw_grow(array, capacity, 0, n_from, size)) return false;
    memcpy(&to, array, sizeof to); /* as in rw_grow_array() */
    if (n_from) memcpy(to, from, n_from * size);
    *n = n_from;
    return true;
}

static bool copy_schedule(struct rw_schedule *to, const struct rw_schedule *from)
{
    clear(to);
    to->results_bytes = from->results_bytes;
    to->scalars_end = from->scalars_end;
    return copy(&to->actions, &to->cap_actions, &to->n_actions, from->actions, from->n_actions, sizeof *to->actions) &&
           copy(&to->refs, &to->cap_refs, &to->n_refs, from->refs, from->n_refs, sizeof *to->refs) &&
           copy(&to->buffers, &to->cap_buffers, &to->n_buffers, from->buffers, from->n_buffers, sizeof *to->buffers) &&
           copy(&to->sources, &to->cap_sources, &to->n_sources, from->sources, from->n_sources, sizeof *to->sources) &&
           copy(&to->read_gradients, &to->cap_read_gradients, &to->n_read_gradients, from->read_gradients,
                from->n_read_gradients, sizeof *to->read_gradients) &&
           copy(&to->results, &to->cap_results, &to->n_results, from->results, from->n_results, sizeof *to->results);
}

/*
 * Finds the nodes that are deferred: those that can be, whose outputs are all dropped, and that forward does not read.
 * Then forward does not read their inputs for them either. Goes from the last node to the first, so readers come first.
 */
static void defer(struct emitter *e)
{
    const struct rw_problem *const p = e->p;
    for (size_t i = p->n_order; i-- > e->s->front.n;) {
        const struct rw_node *const node = &e->t->nodes[p->order[i]];
        bool waits = p->deferrable[p->order[i]];
        for (uint32_t k = 0; waits && k < node->n_outputs; k++)
            waits = drops(e, node->first_output + k) && !e->s->early[node->first_output + k] &&
                    !is_for_first(e, node->first_output + k);
        e->s->deferred[p->order[i]] = waits;
        for (uint32_t k = 0; waits && k < node->n_inputs; k++) e->s->early[rw_problem_input(p, node, k)]--;
    }
}

/*
 * Prepares for a choice. A dropped value that forward does not read after the front is unavailable from there on.
 * Values that differentiation records are kept.
 */
static rw_status begin(struct emitter *e)
{
    const struct rw_front *const front = &e->s->front;
    const size_t n = e->t->n_values, recorded = e->p->mark.values;
    if (front->of != e->p->serial) {
        const rw_status status = make_front(e);
        if (status) return status;
    }
    bool moves = false;
    for (size_t v = 0; v < recorded; v++) {
        const struct rw_fate fate = e->choice->fate[v];
        const bool is_dropped = !e->p->given[v] && rw_fate_drops(&fate);
        e->s->dropped[v] = (uint8_t)(is_dropped | (is_dropped && fate.what == RW_KEEP_FIRST ? RW_FOR_FIRST : 0));
        moves |= fate.what == RW_MOVE;
    }
    if (n) {
        memset(e->s->dropped + recorded, 0, (n - recorded) * sizeof *e->s->dropped);
        memcpy(e->s->buffer, front->buffer, n * sizeof *e->s->buffer);
        memcpy(e->s->early, front->early, n * sizeof *e->s->early);
    }
    if (e->p->n_deferrable) defer(e);
    for (size_t v = 0; v < recorded; v++)
        if (e->s->dropped[v] && !e->s->early[v] && !is_for_first(e, (uint32_t)v)) e->s->buffer[v] = RW_NONE_ID;
    e->out->moves = moves;
    return copy_schedule(e->out, &front->schedule) ? RW_OK : RW_ERR_MEMORY;
}

/* ---- entry points ---- */

static void free_by_value(struct rw_order_scratch *s)
{
    void *const arrays[] = { s->dropped, s->buffer, s->early, s->front.buffer, s->front.early };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
}

/* Allocates the arrays by node and value. New arrays make the stored front invalid. */
static rw_status reserve(struct rw_order_scratch *s, const rw_tape *t)
{
    const size_t n = t->n_values;
    if (!rw_grow(&s->deferred, &s->cap_nodes, 0, t->n_nodes, sizeof *s->deferred)) return RW_ERR_MEMORY;
    if (s->cap_values >= n) return RW_OK;
    free_by_value(s);
    s->front.of = 0;
    s->dropped = rw_malloc(n * sizeof *s->dropped);
    s->buffer = rw_malloc(n * sizeof *s->buffer);
    s->early = rw_malloc(n * sizeof *s->early);
    s->front.buffer = rw_malloc(n * sizeof *s->front.buffer);
    s->front.early = rw_malloc(n * sizeof *s->front.early);
    const bool has_all = s->dropped && s->buffer && s->early && s->front.buffer && s->front.early;
    s->cap_values = has_all ? n : 0;
    return has_all ? RW_OK : RW_ERR_MEMORY;
}

void rw_order_scratch_finish(struct rw_order_scratch *s)
{
    free_by_value(s);
    rw_free(s->deferred);
    rw_schedule_finish(&s->front.schedule);
    rw_free(s->reads.gradient);
    rw_free(s->reads.from);
    rw_free(s->reads.read);
    rw_free(s->stack);
    rw_visits_finish(&s->visits);
    *s = (struct rw_order_scratch){ 0 };
}

rw_status rw_order(const struct rw_problem *p, const struct rw_choice *c, struct rw_order_scratch *scratch,
                   struct rw_schedule *s)
{
    struct emitter e = { .p = p, .t = p->t, .choice = c, .out = s, .s = scratch };
    rw_status status = reserve(scratch, p->t);
    if (!status) status = begin(&e);
    if (!status) status = rw_visits_init(&scratch->visits, c, p->mark.values);
    if (!status) status = emit_all(&e);
    return status ? status : sort_read_gradients(&scratch->reads, s); /* simulate.c validates it when it is complete */
}

void rw_schedule_finish(struct rw_schedule *s)
{
    rw_free(s->actions);
    rw_free(s->refs);
    rw_free(s->buffers);
    rw_free(s->sources);
    rw_free(s->read_gradients);
    rw_free(s->results);
    rw_free(s->waits);
    rw_free(s->slots);
    *s = (struct rw_schedule){ 0 };
}
