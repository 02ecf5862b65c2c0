/*
 * Checks the invariants of schedule.h, derived independently from the problem, the choice and the list of actions. For
 * debug builds and tests. Allocates with malloc() of the C library, so that the allocation failures that tests inject
 * do not reach it.
 */
#include "remat/schedule/fused_update.h"

#include "record/overwrite.h"

#include <stdlib.h>

/* Facts about a buffer that the checker derives. */
struct use {
    uint32_t first, last; /* actions with it as an operand; a copy out counts until compute waits for it */
    uint32_t forward;     /* last action of forward that reads it, RW_NONE_ID for none */
    uint32_t visit;       /* of the replay that computed it, 0 if forward or backward did */
    uint32_t takes;       /* the buffer whose memory it reuses, RW_NONE_ID for none */
    bool taken;           /* another buffer reuses its memory */
    bool written;         /* the first action with this operand writes it */
};

/* A value that a replay computed for a visit. */
struct making {
    uint32_t value, visit, action;
};

struct checker {
    const struct rw_problem *p;
    const rw_tape *t;
    const struct rw_choice *c;
    const struct rw_schedule *s;
    struct use *use;     /* by buffer */
    uint32_t *end;       /* buffer -> last action with it as an operand; of a root, including merged buffers */
    uint32_t *waited;    /* move -> the compute action that waits for it, RW_NONE_ID */
    uint32_t *back;      /* copy out -> the copy in of the same value if that waits for it, RW_NONE_ID */
    uint32_t *visit;     /* depth -> visit that backward is in */
    uint32_t segment, last_visit;
    struct making *making;
    size_t n_making;
    bool *first_producer; /* action -> it is the first to compute some value for some visit */
    bool *deferred;       /* node -> it is deferred */
    uint32_t *first;      /* value kept for the first visit that reads it -> that visit, 0: none so far */
};

static const struct rw_node *node_of(const struct checker *k, const struct rw_action *a)
{
    return &k->t->nodes[a->node];
}

static uint32_t input_base(const struct checker *k, const struct rw_action *a, uint32_t i)
{
    const struct rw_node *const node = node_of(k, a);
    if (a->kind == RW_ACTION_COMMIT) return rw_problem_read_by_commit(k->p, node, i);
    return rw_tape_base(k->t, k->t->operands[node->first_input + i]);
}

static struct rw_buffer *buffer_of(const struct checker *k, const struct rw_action *a, uint32_t word)
{
    return &k->s->buffers[k->s->refs[a->word + word]];
}

static struct use *use_of(const struct checker *k, const struct rw_action *a, uint32_t word)
{
    return &k->use[k->s->refs[a->word + word]];
}

/* ---- operands of an action ---- */

static bool is_recompute_node(const struct checker *k, const struct rw_action *a)
{
    return rw_problem_is_recompute_node(k->p, a->node);
}

/* Each operand is a buffer of the value that the node's operand names. */
static bool words_are_valid(const struct checker *k, const struct rw_action *a)
{
    const struct rw_schedule *const s = k->s;
    if (a->node >= k->t->n_nodes || a->lane >= RW_LANES) return false;
    const struct rw_node *const node = node_of(k, a);
    if (!k->p->needed[is_recompute_node(k, a) ? node->of : a->node]) return false;
    const bool moves = rw_action_is_move(a->kind);
    const uint32_t n = moves ? 2 : node->n_inputs + node->n_outputs + (k->p->workspace[a->node] > 0);
    if (a->n_words != n || (uint64_t)a->word + n > s->n_refs || moves == (a->lane == RW_LANE_COMPUTE)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (s->refs[a->word + i] >= s->n_buffers) return false;
    for (uint32_t i = 0; !moves && i < n; i++) {
        const uint32_t output = i - node->n_inputs;
        const uint32_t value = i < node->n_inputs        ? input_base(k, a, i)
                               : output < node->n_outputs ? node->first_output + output
                                                          : RW_NONE_ID;
        if (buffer_of(k, a, i)->value != value) return false;
    }
    return true;
}

/* The compute lane waits for each move once. A lane never waits for itself. A copy in waits only for its own copy
   out. */
static bool waits_are_valid(struct checker *k)
{
    const struct rw_schedule *const s = k->s;
    for (size_t i = 0; i < s->n_actions; i++) k->waited[i] = k->back[i] = RW_NONE_ID;
    for (size_t i = 0; i < s->n_waits; i++) {
        const struct rw_wait w = s->waits[i];
        if (w.action >= s->n_actions || w.on >= w.action || (i && w.action < s->waits[i - 1].action)) return false;
        const uint8_t lane = s->actions[w.action].lane, on = s->actions[w.on].lane;
        if (on == RW_LANE_COMPUTE || on == lane) return false;
        if (lane != RW_LANE_COMPUTE) {
            if (s->refs[s->actions[w.action].word] != s->refs[s->actions[w.on].word + 1]) return false;
            k->back[w.on] = w.action;
            continue;
        }
        if (k->waited[w.on] != RW_NONE_ID) return false;
        k->waited[w.on] = w.action;
    }
    for (size_t i = 0; i < s->n_actions; i++)
        if (rw_action_is_move(s->actions[i].kind) != (k->waited[i] != RW_NONE_ID)) return false;
    return true;
}

/* ---- the list of actions ---- */

static bool is_dropped(const struct checker *k, uint32_t base)
{
    return !k->p->given[base] && rw_fate_drops(&k->c->fate[base]);
}

/* Finds deferred nodes: those that can be deferred and whose outputs are dropped, unless forward reads one of them. */
static void find_deferred(struct checker *k, bool *read)
{
    for (size_t i = k->p->n_order; i-- > 0;) {
        const uint32_t n = k->p->order[i];
        const struct rw_node *const node = &k->t->nodes[n];
        if (node->adjoint) continue;
        k->deferred[n] = k->p->deferrable[n];
        for (uint32_t v = node->first_output; v < node->first_output + node->n_outputs; v++)
            k->deferred[n] &= is_dropped(k, v) && !read[v] && k->c->fate[v].what != RW_KEEP_FIRST;
        for (uint32_t w = 0; !k->deferred[n] && w < node->n_inputs; w++)
            read[rw_tape_base(k->t, k->t->operands[node->first_input + w])] = true;
    }
}

/* Is it executed because backward demands its output? */
static bool is_demanded(const struct checker *k, const struct rw_action *a)
{
    return a->kind == RW_ACTION_REPLAY || (a->kind == RW_ACTION_FORWARD && k->deferred[a->node]);
}

/* The next node of the order, from index i on, that is not deferred. */
static size_t next_in_order(const struct checker *k, size_t i)
{
    while (i < k->p->n_order && k->deferred[k->p->order[i]]) i++;
    return i;
}

/* Each deferred node is executed in backward, the first time before its replays. */
static bool deferred_are_valid(const struct checker *k)
{
    const struct rw_schedule *const s = k->s;
    bool *const done = calloc(k->t->n_nodes + 1, sizeof *done);
    bool valid = true;
    for (size_t i = 0; done && i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        if (rw_action_is_move(a->kind) || !k->deferred[a->node]) continue;
        valid &= i >= s->n_forward && done[a->node] == (a->kind == RW_ACTION_REPLAY);
        done[a->node] = true;
    }
    for (size_t n = 0; done && n < k->t->n_nodes; n++) valid &= done[n] == k->deferred[n];
    free(done);
    return valid;
}

/* The first effect, from `at` on, that is a needed commit. */
static size_t next_commit(const struct checker *k, size_t at)
{
    const rw_tape *const t = k->t;
    for (; at < t->n_effects; at++) {
        const uint32_t n = t->effects[at].node;
        if (n >= k->p->targets.first_update && n < k->p->targets.end_update) continue;
        if (k->p->needed[n] && (t->ctx->ops[t->nodes[n].op]->flags & RW_OP_COMMIT)) break;
    }
    return at;
}

/* Without moves and demanded actions the list is the problem's order, each node once, followed by the commits. */
static bool order_is_valid(const struct checker *k)
{
    const struct rw_schedule *const s = k->s;
    size_t next = next_in_order(k, 0), effect = 0;
    for (size_t i = 0; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        const bool early = i < s->n_forward;
        if (rw_action_is_move(a->kind)) {
            if (early != (a->kind == RW_ACTION_OUT)) return false;
        } else if (is_demanded(k, a)) {
            if (early || next == k->p->n_order || (node_of(k, a)->adjoint && !is_recompute_node(k, a))) return false;
        } else if (rw_action_is_fused_update(k->p, a)) {
            if (early) return false;
        } else if (a->kind == RW_ACTION_COMMIT) {
            const rw_tape *const t = k->t;
            effect = next_commit(k, effect);
            if (early || next < k->p->n_order || effect == t->n_effects || t->effects[effect++].node != a->node)
                return false;
        } else {
            if (next == k->p->n_order || k->p->order[next] != a->node) return false;
            next = next_in_order(k, next + 1);
            if ((a->kind == RW_ACTION_BACKWARD) != node_of(k, a)->adjoint) return false;
            if (early && a->kind != RW_ACTION_FORWARD) return false;
        }
    }
    if (next < k->p->n_order || next_commit(k, effect) < k->t->n_effects) return false;
    if (s->n_forward >= s->n_actions) return s->n_forward == s->n_actions;
    const struct rw_action *const first = &s->actions[s->n_forward]; /* of backward; may be demanded */
    return is_demanded(k, first) || (first->kind != RW_ACTION_FORWARD && first->kind != RW_ACTION_OUT);
}

/* Actions with one source as an operand. last: the last one that is not a recorder's. writer, update: by node, the last
   of a recorder that writes it and that has it as an operand. All count from 1; 0: none. */
struct named {
    uint32_t last, writer, update;
};

static bool is_recorders(const struct checker *k, const struct rw_action *a)
{
    return a->kind == RW_ACTION_COMMIT && a->node >= k->p->targets.first_update;
}

/* Do recorders' actions with common memory, which at least one of them writes, keep the order of their nodes? */
static bool keeps_order(const struct checker *k, const struct rw_action *a, uint32_t at, struct named *named)
{
    const struct rw_node *const node = node_of(k, a); /* a workspace may follow its outputs */
    bool valid = true;
    for (uint32_t w = 0; w < (uint32_t)node->n_inputs + node->n_outputs; w++) {
        const uint32_t source = buffer_of(k, a, w)->source;
        if (source == RW_NONE_ID) continue;
        struct named *const x = &named[source];
        const bool writes = w >= node->n_inputs;
        valid &= a->node + 1 >= (writes ? x->update : x->writer) && (!writes || x->last <= at);
        if (x->update < a->node + 1) x->update = a->node + 1;
        if (writes) x->writer = a->node + 1;
    }
    return valid;
}

/* Each update inside the step is in the list once. Later actions that use what it writes are updates too. */
static bool updates_are_valid(const struct checker *k)
{
    const struct rw_schedule *const s = k->s;
    struct named *const named = calloc(s->n_sources + 1, sizeof *named);
    size_t there = 0, wanted = 0;
    bool valid = true;
    for (uint32_t i = 0; named && i < s->n_actions; i++)
        for (uint32_t w = 0; !is_recorders(k, &s->actions[i]) && w < s->actions[i].n_words; w++) {
            const uint32_t source = buffer_of(k, &s->actions[i], w)->source;
            if (source != RW_NONE_ID) named[source].last = i + 1;
        }
    for (uint32_t i = 0; named && i < s->n_actions; i++) {
        if (!is_recorders(k, &s->actions[i])) continue;
        there++;
        valid &= keeps_order(k, &s->actions[i], i, named);
    }
    for (size_t i = 0; i < k->t->n_effects; i++)
        wanted += k->t->effects[i].node >= k->p->targets.first_update && k->p->needed[k->t->effects[i].node];
    free(named);
    return valid && (!named || there == wanted);
}

/* ---- lifetimes ---- */

static void touch(struct use *u, uint32_t action, uint32_t until, bool writes)
{
    if (u->first == RW_NONE_ID) u->written = writes;
    if (u->first == RW_NONE_ID) u->first = u->last = action;
    if (until > u->last) u->last = until;
}

/*
 * The memory that a copy out reads is in use until compute has waited for the copy, or until its copy in, which writes
 * other memory.
 */
static uint32_t read_until(const struct checker *k, uint32_t move)
{
    return k->back[move] != RW_NONE_ID ? k->back[move] - 1 : k->waited[move];
}

static void find_uses(struct checker *k)
{
    const struct rw_schedule *const s = k->s;
    for (size_t b = 0; b < s->n_buffers; b++)
        k->use[b] = (struct use){ .first = RW_NONE_ID, .forward = RW_NONE_ID, .takes = RW_NONE_ID };
    for (uint32_t i = 0; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        for (uint32_t w = 0; w < a->n_words; w++) {
            struct use *const u = use_of(k, a, w);
            const bool moves = rw_action_is_move(a->kind), reads = w < (moves ? 1u : node_of(k, a)->n_inputs);
            touch(u, i, moves && reads ? read_until(k, i) : i, !reads);
            if (a->kind == RW_ACTION_FORWARD && !is_demanded(k, a) && reads) u->forward = i;
        }
    }
}

/*
 * An output may reuse the memory of an input that has its last use in the action. No other buffer may reuse or use that
 * memory.
 */
static bool takes_over(struct checker *k, uint32_t b)
{
    const struct rw_schedule *const s = k->s;
    const struct rw_buffer *const x = &s->buffers[b], *const root = &s->buffers[x->merged];
    const struct rw_action *const a = &s->actions[x->first];
    const struct rw_node *const node = node_of(k, a);
    uint32_t output = 0;
    if (root->merged != x->merged || x->bytes != root->bytes || x->source != RW_NONE_ID || root->source != RW_NONE_ID ||
        rw_action_is_move(a->kind))
        return false;
    while (output < node->n_outputs && s->refs[a->word + node->n_inputs + output] != b) output++;
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const uint32_t from = s->refs[a->word + i];
        if (s->buffers[from].merged != x->merged) continue;
        if (output == node->n_outputs || k->use[from].last != x->first) return false;
        if (!rw_may_overwrite(k->t, node, output, i)) return false;
        if (k->use[b].takes != from && (k->use[b].takes != RW_NONE_ID || k->use[from].taken)) return false;
        k->use[b].takes = from;
        k->use[from].taken = true;
    }
    return k->use[b].takes != RW_NONE_ID;
}

static bool is_slot(const struct checker *k, uint32_t b)
{
    const uint32_t source = k->s->buffers[b].source;
    return source != RW_NONE_ID && k->s->sources[source].kind == RW_SOURCE_STORE;
}

/* A root's lifetime includes the buffers merged into it. Any other lifetime ends with the buffer's last use. */
static bool lives_are_valid(struct checker *k)
{
    const struct rw_schedule *const s = k->s;
    for (uint32_t b = 0; b < s->n_buffers; b++) {
        const struct rw_buffer *const x = &s->buffers[b];
        if (x->merged >= s->n_buffers || (x->source != RW_NONE_ID && x->source >= s->n_sources)) return false;
    }
    find_uses(k);
    for (uint32_t b = 0; b < s->n_buffers; b++) {
        const struct rw_buffer *const x = &s->buffers[b];
        if (is_slot(k, b)) continue;
        if (x->first != k->use[b].first || x->first == RW_NONE_ID) return false;
        if (x->merged != b && (x->last != k->use[b].last || !takes_over(k, b))) return false;
        k->end[b] = k->use[b].last;
    }
    for (uint32_t b = 0; b < s->n_buffers; b++) {
        const uint32_t root = s->buffers[b].merged;
        if (!is_slot(k, b) && k->end[b] > k->end[root]) k->end[root] = k->end[b];
    }
    for (uint32_t b = 0; b < s->n_buffers; b++)
        if (!is_slot(k, b) && s->buffers[b].merged == b && s->buffers[b].last != k->end[b]) return false;
    return true;
}

/* ---- reads ---- */

/* Backward reaches a node of that segment. */
static void enter(struct checker *k, uint32_t segment)
{
    const uint32_t common = rw_segment_common(k->c, k->segment, segment);
    for (uint32_t s = segment; s != common; s = k->c->segment[s].parent)
        k->visit[k->c->segment[s].depth] = ++k->last_visit;
    k->segment = segment;
}

/* The visit that serves a read of the value now. */
static uint32_t serving(const struct checker *k, uint32_t base)
{
    const uint32_t level = k->c->fate[base].level, depth = k->c->segment[k->segment].depth;
    return k->visit[level < depth ? level : depth];
}

/* Does backward read what forward kept for that visit, the first one to read it? */
static bool is_for_visit(const struct checker *k, uint32_t base)
{
    if (k->c->fate[base].what != RW_KEEP_FIRST) return false;
    if (!k->first[base]) k->first[base] = serving(k, base);
    return k->first[base] == serving(k, base);
}

/* A read finds the value of the visit that serves it, or forward's value where that is allowed. */
static bool read_is_valid(const struct checker *k, uint32_t i, uint32_t word)
{
    const struct rw_action *const a = &k->s->actions[i];
    const struct rw_buffer *const x = buffer_of(k, a, word);
    const struct use *const u = use_of(k, a, word);
    if (k->p->given[x->value]) return !u->written && x->source != RW_NONE_ID;
    if (!u->written || u->first >= i) return false;
    const struct rw_action *const writer = &k->s->actions[u->first];
    if (writer->kind == RW_ACTION_IN && k->waited[u->first] > i) return false;
    const bool in_forward = a->kind == RW_ACTION_FORWARD && !is_demanded(k, a);
    if (u->visit) return is_dropped(k, x->value) && !in_forward && u->visit == serving(k, x->value);
    if (!is_dropped(k, x->value) || in_forward || (u->forward != RW_NONE_ID && u->forward > i)) return true;
    return is_for_visit(k, x->value);
}

static bool write_is_valid(struct checker *k, uint32_t i, uint32_t word)
{
    const struct rw_action *const a = &k->s->actions[i];
    const uint32_t value = buffer_of(k, a, word)->value;
    struct use *const u = use_of(k, a, word);
    if (u->first != i || !u->written) return false;
    if (!is_demanded(k, a) || value == RW_NONE_ID) return true;
    u->visit = serving(k, value);
    if (is_dropped(k, value)) k->making[k->n_making++] = (struct making){ value, u->visit, i };
    return true;
}

static bool is_read_later(const struct checker *k, const struct rw_action *a)
{
    const struct rw_node *const node = node_of(k, a);
    for (uint32_t w = node->n_inputs; w < (uint32_t)node->n_inputs + node->n_outputs; w++)
        if (use_of(k, a, w)->last > use_of(k, a, w)->first) return true;
    return false;
}

/* Checks all reads and writes. A replay belongs to the visit of the next action of backward. */
static bool reads_are_valid(struct checker *k)
{
    const struct rw_schedule *const s = k->s;
    uint32_t next = 0;
    for (uint32_t i = 0; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        if (rw_action_is_move(a->kind)) continue;
        if ((a->kind != RW_ACTION_FORWARD || is_demanded(k, a)) && next <= i) {
            for (next = i; next < s->n_actions && s->actions[next].kind != RW_ACTION_BACKWARD;) next++;
            enter(k, next < s->n_actions ? k->c->segment_of[s->actions[next].node] : 0);
            next++;
        }
        for (uint32_t w = 0; w < a->n_words; w++)
            if (!(w < node_of(k, a)->n_inputs ? read_is_valid(k, i, w) : write_is_valid(k, i, w))) return false;
        if (is_demanded(k, a) && !is_read_later(k, a)) return false;
    }
    return true;
}

static int by_visit(const void *pa, const void *pb)
{
    const struct making *const a = pa, *const b = pb;
    if (a->value != b->value) return a->value < b->value ? -1 : 1;
    if (a->visit != b->visit) return a->visit < b->visit ? -1 : 1;
    return a->action < b->action ? -1 : a->action > b->action;
}

/* Every replay is the first to compute some value for some visit. */
static bool replays_are_valid(struct checker *k)
{
    const struct rw_schedule *const s = k->s;
    struct making *const m = k->making;
    qsort(m, k->n_making, sizeof *m, by_visit);
    for (size_t i = 0; i < k->n_making; i++)
        if (!i || m[i].value != m[i - 1].value || m[i].visit != m[i - 1].visit) k->first_producer[m[i].action] = true;
    for (size_t i = 0; i < s->n_actions; i++)
        if (is_demanded(k, &s->actions[i]) && !k->first_producer[i]) return false;
    return true;
}

/* ---- memory outside of the arena ---- */

/* Index of the data or the gradient of a parameter, whatever kind of source it is; SIZE_MAX for any other memory. */
static size_t memory_of(const struct checker *k, const struct rw_buffer *b)
{
    if (b->source == RW_NONE_ID) return SIZE_MAX;
    const struct rw_source *const s = &k->s->sources[b->source];
    switch ((enum rw_source_kind)s->kind) {
    case RW_SOURCE_PARAM: return 2 * (size_t)s->index;
    case RW_SOURCE_GRADIENT:
    case RW_SOURCE_OLD:
    case RW_SOURCE_ADDEND: return 2 * (size_t)s->index + 1;
    default: return SIZE_MAX;
    }
}

/* Does an action read what its operand means? A leaf means the contents from before the step. The exception is the
   operand that a commit writes, because commits of one buffer follow each other. Any other value means what its own
   node wrote. */
static bool reads_what_is_meant(const struct checker *k, const struct rw_action *a, const uint32_t *writer)
{
    const struct rw_node *const node = node_of(k, a);
    const uint32_t n_read = node->n_inputs - (a->kind == RW_ACTION_COMMIT ? node->n_outputs : 0u);
    for (uint32_t i = 0; i < n_read; i++) {
        const struct rw_buffer *const b = buffer_of(k, a, i);
        const size_t memory = memory_of(k, b);
        if (memory != SIZE_MAX && writer[memory] != rw_tape_value(k->t, b->value)->producer) return false;
    }
    return true;
}

/* For memory of parameters and gradients: the last write before a read is the one that the read means. */
static bool memory_is_valid(const struct checker *k)
{
    const size_t n = 2 * k->t->ctx->n_ids;
    uint32_t *const writer = malloc((n + 1) * sizeof *writer);
    bool valid = true;
    for (size_t i = 0; writer && i < n; i++) writer[i] = RW_NONE_ID;
    for (size_t i = 0; writer && valid && i < k->s->n_actions; i++) {
        const struct rw_action *const a = &k->s->actions[i];
        if (rw_action_is_move(a->kind)) continue;
        const struct rw_node *const node = node_of(k, a);
        valid = reads_what_is_meant(k, a, writer);
        for (uint32_t w = node->n_inputs; w < (uint32_t)node->n_inputs + node->n_outputs; w++) {
            const size_t memory = memory_of(k, buffer_of(k, a, w));
            if (memory != SIZE_MAX) writer[memory] = a->node;
        }
    }
    free(writer);
    return valid;
}

/* ---- entry point ---- */

static bool check(struct checker *k)
{
    for (size_t i = 0; i < k->s->n_actions; i++)
        if (!words_are_valid(k, &k->s->actions[i])) return false;
    return waits_are_valid(k) && order_is_valid(k) && deferred_are_valid(k) && updates_are_valid(k) &&
           lives_are_valid(k) && reads_are_valid(k) && replays_are_valid(k) && memory_is_valid(k);
}

/* Allocates the checker's arrays and runs all checks. */
bool rw_schedule_is_valid(const struct rw_problem *p, const struct rw_choice *c, const struct rw_schedule *s)
{
    struct checker k = { .p = p, .t = p->t, .c = c, .s = s, .last_visit = 1 };
    uint32_t depth = 0;
    for (size_t i = 0; i < c->n_segments; i++) depth = c->segment[i].depth > depth ? c->segment[i].depth : depth;
    k.use = calloc(s->n_buffers + 1, sizeof *k.use);
    k.end = calloc(s->n_buffers + 1, sizeof *k.end);
    k.waited = calloc(s->n_actions + 1, sizeof *k.waited);
    k.back = calloc(s->n_actions + 1, sizeof *k.back);
    k.first_producer = calloc(s->n_actions + 1, sizeof *k.first_producer);
    k.making = calloc(s->n_refs + 1, sizeof *k.making);
    k.visit = calloc(depth + 1, sizeof *k.visit);
    k.first = calloc(p->t->n_values + 1, sizeof *k.first);
    k.deferred = calloc(p->t->n_nodes + 1, sizeof *k.deferred);
    bool *const read = calloc(p->t->n_values + 1, sizeof *read);
    bool valid = true; /* without memory it counts as valid */
    if (k.use && k.end && k.waited && k.back && k.first_producer && k.making && k.visit && k.deferred && k.first &&
        read) {
        k.visit[0] = 1;
        find_deferred(&k, read);
        valid = check(&k);
    }
    free(k.use);
    free(k.end);
    free(k.waited);
    free(k.back);
    free(k.first_producer);
    free(k.making);
    free(k.visit);
    free(k.deferred);
    free(k.first);
    free(read);
    return valid;
}
