/* Policies: regions become segments, values get homes, homes become fates. policy_to_choice.h defines these steps. */
#include "remat/policy/policy_to_choice.h"

#include "base/alloc.h"
#include "remat/policy/merge_segments.h"

#include <assert.h>

/*
 * State per part of the tape, and for the rest of it: number of its outermost regions so far, and the segment of the
 * last group.
 */
struct count {
    int64_t siblings;
    uint32_t group;
};

/* What a region becomes. */
struct place {
    uint32_t segment; /* of its nodes; 0 if its values are kept */
    uint32_t around;  /* the innermost segment that the region is in: segments of inner regions are added to it */
};

/*
 * Adds a segment inside another one. If that one has ended, because later segments have begun after it, returns that
 * one.
 */
static uint32_t add_inside(struct rw_choice *c, uint32_t around)
{
    uint32_t last = (uint32_t)c->n_segments - 1;
    while (last > around) last = c->segment[last].parent;
    return last == around ? rw_choice_add_segment(c, around) : around;
}

/* The segment of region r. inside: segment of the region around in the same part, 0 for an outermost one. */
static uint32_t segment_of_region(struct rw_choice *c, const struct rw_tape *t, const struct rw_policy *policy,
                                  uint32_t r, uint32_t inside, uint32_t around, bool outermost, struct count *count)
{
    if (outermost) count->siblings++;
    switch (policy->kind) {
    case RW_POLICY_FULL:
    case RW_POLICY_OPS:
    case RW_POLICY_NAMES: return add_inside(c, around);
    case RW_POLICY_SELECTIVE:
        return rw_policy_has_name(policy, t->ctx->names.text[t->regions[r].name]) ? add_inside(c, around) : inside;
    case RW_POLICY_UNIFORM:
        if (outermost && (count->siblings - 1) % policy->n == 0) count->group = add_inside(c, around);
        return count->group;
    case RW_POLICY_BLOCK: return count->siblings <= policy->n ? add_inside(c, around) : 0;
    default: return 0;
    }
}

/* Finds the policy and the count of a region's part, and places the region by them. */
static bool place_region(struct rw_choice *c, const struct rw_tape *t, const struct rw_policy *policy, uint32_t r,
                         struct place *place, struct count *counts)
{
    const struct rw_region *const region = &t->regions[r];
    const uint32_t part = policy->whole ? RW_NONE_ID : region->part, parent = region->parent;
    const bool outermost = parent == RW_NONE_ID || (!policy->whole && t->regions[parent].part != part);
    const uint32_t around = parent == RW_NONE_ID ? 0 : place[parent].around;
    const uint32_t s = segment_of_region(c, t, rw_region_policy(t, r, policy), r, outermost ? 0 : place[parent].segment,
                                         around, outermost, &counts[part == RW_NONE_ID ? t->n_parts : part]);
    place[r] = (struct place){ s, s ? s : around };
    return s != RW_NONE_ID;
}

/* Turns the regions into segments, and assigns the nodes. */
static rw_status make_segments(struct rw_choice *c, const struct rw_problem *p, const struct rw_policy *policy)
{
    const struct rw_tape *const t = p->t;
    struct place *const place = rw_malloc(t->n_regions * sizeof *place);
    struct count *const counts = rw_calloc(t->n_parts + 1, sizeof *counts);
    rw_status status = place && counts ? RW_OK : RW_ERR_MEMORY;
    for (uint32_t r = 0; !status && r < t->n_regions; r++)
        if (!place_region(c, t, policy, r, place, counts)) status = RW_ERR_MEMORY;
    for (uint32_t n = 0; !status && n < t->n_nodes; n++) {
        const uint32_t region = rw_node_region(t, &t->nodes[n]);
        c->segment_of[n] = region == RW_NONE_ID ? 0 : place[region].segment;
    }
    rw_choice_close(c);
    rw_free(place);
    rw_free(counts);
    return status;
}

/*
 * Does a node read its inputs after forward? A recorded node outside of all segments runs once, so only adjoint nodes
 * and nodes of segments do.
 */
static bool reads_late(const struct rw_choice *c, const struct rw_problem *p, uint32_t n)
{
    return p->needed[n] && (p->t->nodes[n].adjoint || c->segment_of[n]);
}

/*
 * Finds the innermost segment around the producer and every late reader. The home only moves outwards as readers are
 * met.
 */
static void find_homes(const struct rw_choice *c, const struct rw_problem *p, uint32_t *home)
{
    const struct rw_tape *const t = p->t;
    for (uint32_t v = 0; v < t->n_values; v++) {
        const uint32_t producer = rw_tape_value(t, v)->producer;
        home[v] = producer == RW_NONE_ID ? 0 : c->segment_of[producer];
    }
    for (uint32_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        if (!reads_late(c, p, n)) continue;
        for (uint32_t i = 0; i < node->n_inputs; i++) {
            const uint32_t b = rw_tape_base(t, t->operands[node->first_input + i]);
            home[b] = rw_segment_common(c, home[b], c->segment_of[n]);
        }
    }
}

/*
 * Does the policy name the region or one around it? Only regions of the same part count, because outer regions have
 * another policy.
 */
static bool is_inside(const rw_tape *t, const struct rw_policy *policy, uint32_t region,
                      bool (*names)(const struct rw_policy *policy, const char *name))
{
    for (uint32_t r = region; r != RW_NONE_ID; r = t->regions[r].parent) {
        if (!policy->whole && t->regions[r].part != t->regions[region].part) return false;
        if (names(policy, t->ctx->names.text[t->regions[r].name])) return true;
    }
    return false;
}

bool rw_policy_may_move(const struct rw_problem *p, const struct rw_policy *whole, uint32_t v)
{
    const rw_tape *const t = p->t;
    const struct rw_tensor *const x = rw_tape_value(t, v);
    const uint32_t region = rw_node_region(t, &t->nodes[x->producer]);
    const struct rw_policy *const policy = rw_region_policy(t, region, whole);
    return rw_policy_moves_tag(policy, x->tag ? t->ctx->names.text[x->tag - 1] : "") ||
           (policy->n_moved_regions && is_inside(t, policy, region, rw_policy_moves_region));
}

bool rw_part_keeps(const struct rw_problem *p, const struct rw_node *node)
{
    const struct rw_policy *const whole = p->targets.request->policy;
    const struct rw_policy *const policy = rw_region_policy(p->t, rw_node_region(p->t, node), whole);
    return policy != whole && policy->kind == RW_POLICY_NONE && !policy->n_discards;
}

bool rw_value_stays(const struct rw_problem *p, uint32_t base)
{
    const struct rw_tensor *const x = rw_tape_value(p->t, base);
    return x->flags & (RW_VALUE_SAVE | RW_VALUE_RECOMPUTE) || rw_tensor_bytes(x) < RW_OFFLOADED_MIN ||
           (rw_part_keeps(p, &p->t->nodes[x->producer]) &&
            !rw_policy_may_move(p, p->targets.request->policy, base));
}

static bool is_discarded(const rw_tape *t, const struct rw_policy *policy, uint32_t region)
{
    return policy->n_discards && is_inside(t, policy, region, rw_policy_discards);
}

/* The reason for a value's fate. The first one that applies wins. */
static enum rw_why why_of(const struct rw_problem *p, const struct rw_policy *whole, uint32_t v, uint32_t home)
{
    const struct rw_tape *const t = p->t;
    const struct rw_tensor *const x = rw_tape_value(t, v);
    const struct rw_node *const node = &t->nodes[x->producer];
    const uint32_t region = rw_node_region(t, node);
    const struct rw_policy *const policy = rw_region_policy(t, region, whole);
    const rw_op_def *const op = t->ctx->ops[node->op];
    const char *const tag = x->tag ? t->ctx->names.text[x->tag - 1] : "";
    const bool once = op->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC);
    if (node->adjoint) return once ? RW_WHY_EFFECT : RW_WHY_ADJOINT;
    if (p->wanted[v]) return once ? RW_WHY_EFFECT : RW_WHY_RESULT;
    if (x->flags & RW_VALUE_OFFLOAD) return RW_WHY_CALLER_MOVES;
    if (once) return RW_WHY_EFFECT;
    if (x->flags & RW_VALUE_SAVE) return RW_WHY_CALLER_SAVES;
    if (x->flags & RW_VALUE_RECOMPUTE) return RW_WHY_CALLER_REPLAYS;
    if (rw_policy_moves_tag(policy, tag)) return RW_WHY_NAME_MOVES;
    if (is_discarded(t, policy, region)) return RW_WHY_DISCARD;
    if (!home) return RW_WHY_OUTSIDE;
    if (policy->kind == RW_POLICY_OPS && rw_policy_has_name(policy, op->name)) return RW_WHY_OP;
    if (policy->kind == RW_POLICY_NAMES && rw_policy_has_name(policy, tag)) return RW_WHY_NAME;
    return RW_WHY_REGION;
}

static struct rw_fate fate_of(const struct rw_choice *c, enum rw_why why, uint32_t home)
{
    const bool drops = why == RW_WHY_REGION || why == RW_WHY_DISCARD || why == RW_WHY_CALLER_REPLAYS;
    const bool moves = why == RW_WHY_CALLER_MOVES || why == RW_WHY_NAME_MOVES;
    return (struct rw_fate){ .level = drops ? c->segment[home].depth : 0,
                             .what = moves ? RW_MOVE : drops && !home ? RW_REPLAY : RW_KEEP,
                             .why = (uint8_t)why };
}

/* A node that is replayed for one output computes the others too, so they need not be kept for the step. An output with
   a recompute node does not need the node. */
static void drop_siblings(struct rw_choice *c, const struct rw_problem *p)
{
    for (uint32_t n = 0; n < p->t->n_nodes; n++) {
        const struct rw_node *const node = &p->t->nodes[n];
        struct rw_fate *const fate = &c->fate[node->first_output];
        bool replayed = false;
        for (uint32_t i = 0; node->n_outputs > 1 && i < node->n_outputs; i++)
            replayed |= fate[i].what == RW_REPLAY && p->recompute_node[node->first_output + i] == RW_NONE_ID;
        for (uint32_t i = 0; replayed && i < node->n_outputs; i++) {
            const bool is_decided = fate[i].why != RW_WHY_OUTSIDE && fate[i].why != RW_WHY_OP;
            if (!is_decided && fate[i].level == 0) fate[i].what = RW_REPLAY;
        }
    }
}

/* Is it kept by the policy alone, not by the caller, and not because something will read it? */
static bool is_kept_by_policy(const struct rw_fate *f)
{
    return f->what == RW_KEEP && !f->level &&
           (f->why == RW_WHY_OUTSIDE || f->why == RW_WHY_OP || f->why == RW_WHY_NAME || f->why == RW_WHY_EFFECT);
}

/* Offloads what the policy itself keeps in the regions that it names. */
static void move_regions(struct rw_choice *c, const struct rw_problem *p, const struct rw_policy *whole)
{
    const rw_tape *const t = p->t;
    for (uint32_t v = 0; v < t->n_values; v++) {
        if (!rw_problem_makes(p, v) || !is_kept_by_policy(&c->fate[v])) continue;
        const struct rw_tensor *const x = rw_tape_value(t, v);
        const uint32_t region = rw_node_region(t, &t->nodes[x->producer]);
        const struct rw_policy *const policy = rw_region_policy(t, region, whole);
        if (policy->n_moved_regions && rw_tensor_bytes(x) >= RW_OFFLOADED_MIN &&
            is_inside(t, policy, region, rw_policy_moves_region))
            c->fate[v] = (struct rw_fate){ .what = RW_MOVE, .why = RW_WHY_REGION_MOVES };
    }
}

/* Makes segments, homes and fates, in this order. Segments of uniform:k are not merged. */
rw_status rw_policy_choose(const struct rw_problem *p, const struct rw_policy *policy, struct rw_choice *ret_choice)
{
    const struct rw_tape *const t = p->t;
    struct rw_choice c;
    rw_status status = rw_choice_init(&c, p);
    uint32_t *const home = rw_malloc(t->n_values * sizeof *home);
    if (!status && !home) status = RW_ERR_MEMORY;
    if (!status) status = make_segments(&c, p, policy);
    if (!status) find_homes(&c, p, home);
    if (!status && c.n_segments > 1 && policy->kind != RW_POLICY_UNIFORM) status = rw_merge_segments(&c, p, home);
    for (uint32_t v = 0; !status && v < t->n_values; v++)
        if (rw_problem_makes(p, v)) c.fate[v] = fate_of(&c, why_of(p, policy, v, home[v]), home[v]);
    if (!status) drop_siblings(&c, p);
    if (!status) move_regions(&c, p, policy);
    rw_free(home);
    if (status) {
        rw_choice_finish(&c);
        return status;
    }
    assert(rw_choice_is_valid(&c, p));
    *ret_choice = c;
    return RW_OK;
}
