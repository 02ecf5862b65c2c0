/* Policies: regions to segments, values to homes, homes to fates. See choose.h. */
#include "remat/choose.h"

#include "base/alloc.h"
#include "remat/dissolve.h"

#include <assert.h>

/* The segment of region r, when that of the region around is `around`; outermost regions are counted by `sibling`. */
static uint32_t segment_of_region(struct rw_choice *c, const struct rw_tape *t, const struct rw_policy *policy,
                                  uint32_t r, uint32_t around, int64_t sibling, uint32_t *group)
{
    const struct rw_region *const region = &t->regions[r];
    switch (policy->kind) {
    case RW_POLICY_FULL:
    case RW_POLICY_OPS:
    case RW_POLICY_NAMES: return rw_choice_add_segment(c, around);
    case RW_POLICY_SELECTIVE:
        return rw_policy_has_name(policy, t->ctx->names.text[region->name]) ? rw_choice_add_segment(c, around) : around;
    case RW_POLICY_UNIFORM:
        if (region->parent == RW_NONE_ID && sibling % policy->n == 0) *group = rw_choice_add_segment(c, 0);
        return *group;
    case RW_POLICY_BLOCK: return sibling < policy->n ? rw_choice_add_segment(c, around) : 0;
    default: return 0;
    }
}

static rw_status make_segments(struct rw_choice *c, const struct rw_problem *p, const struct rw_policy *policy)
{
    const struct rw_tape *const t = p->t;
    uint32_t *const of_region = rw_malloc(t->n_regions * sizeof *of_region);
    if (!of_region) return RW_ERR_MEMORY;
    int64_t sibling = -1;
    uint32_t group = 0;
    rw_status status = RW_OK;
    for (uint32_t r = 0; !status && r < t->n_regions; r++) {
        const uint32_t parent = t->regions[r].parent;
        if (parent == RW_NONE_ID) sibling++;
        of_region[r] = segment_of_region(c, t, policy, r, parent == RW_NONE_ID ? 0 : of_region[parent], sibling,
                                         &group);
        if (of_region[r] == RW_NONE_ID) status = RW_ERR_MEMORY;
    }
    for (uint32_t n = 0; !status && n < t->n_nodes; n++) {
        const uint32_t region = rw_node_region(t, &t->nodes[n]);
        c->segment_of[n] = region == RW_NONE_ID ? 0 : of_region[region];
    }
    rw_choice_close(c);
    rw_free(of_region);
    return status;
}

/* A recorded node outside every segment runs once: it reads its inputs again only if an adjoint node does. */
static bool reads_late(const struct rw_choice *c, const struct rw_problem *p, uint32_t n)
{
    return p->needed[n] && (p->t->nodes[n].adjoint || c->segment_of[n]);
}

/* The innermost segment around the producer and every late reader. It only moves outwards, as readers are met. */
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

static enum rw_why why_of(const struct rw_problem *p, const struct rw_policy *policy, uint32_t v, uint32_t home)
{
    const struct rw_tape *const t = p->t;
    const struct rw_tensor *const x = rw_tape_value(t, v);
    const struct rw_node *const node = &t->nodes[x->producer];
    const rw_op_def *const op = t->ctx->ops[node->op];
    if (op->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC)) return RW_WHY_EFFECT;
    if (node->adjoint) return RW_WHY_ADJOINT;
    if (p->wanted[v]) return RW_WHY_RESULT;
    if (x->flags & RW_VALUE_SAVE) return RW_WHY_CALLER_SAVES;
    if (x->flags & RW_VALUE_RECOMPUTE) return RW_WHY_CALLER_REPLAYS;
    if (!home) return RW_WHY_OUTSIDE;
    if (policy->kind == RW_POLICY_OPS && rw_policy_has_name(policy, op->name)) return RW_WHY_OP;
    if (policy->kind == RW_POLICY_NAMES && x->tag && rw_policy_has_name(policy, t->ctx->names.text[x->tag - 1]))
        return RW_WHY_NAME;
    return RW_WHY_REGION;
}

static struct rw_fate fate_of(const struct rw_choice *c, enum rw_why why, uint32_t home)
{
    const bool drops = why == RW_WHY_REGION || why == RW_WHY_CALLER_REPLAYS;
    return (struct rw_fate){ .level = drops ? c->segment[home].depth : 0,
                             .what = drops && !home ? RW_REPLAY : RW_KEEP,
                             .why = (uint8_t)why };
}

/* A node that is run again for one output makes the others as well: they need not be kept for the step. */
static void drop_siblings(struct rw_choice *c, const struct rw_problem *p)
{
    for (uint32_t n = 0; n < p->t->n_nodes; n++) {
        const struct rw_node *const node = &p->t->nodes[n];
        struct rw_fate *const fate = &c->fate[node->first_output];
        bool replayed = false;
        for (uint32_t i = 0; node->n_outputs > 1 && i < node->n_outputs; i++) replayed |= fate[i].what == RW_REPLAY;
        for (uint32_t i = 0; replayed && i < node->n_outputs; i++) {
            const bool asked = fate[i].why != RW_WHY_OUTSIDE && fate[i].why != RW_WHY_OP;
            if (!asked && fate[i].level == 0) fate[i].what = RW_REPLAY;
        }
    }
}

rw_status rw_policy_choose(const struct rw_problem *p, const struct rw_policy *policy, struct rw_choice *ret_choice)
{
    const struct rw_tape *const t = p->t;
    struct rw_choice c;
    rw_status status = rw_choice_init(&c, p);
    uint32_t *const home = rw_malloc(t->n_values * sizeof *home);
    if (!status && !home) status = RW_ERR_MEMORY;
    if (!status) status = make_segments(&c, p, policy);
    if (!status) find_homes(&c, p, home);
    if (!status && c.n_segments > 1 && policy->kind != RW_POLICY_UNIFORM) status = rw_dissolve(&c, p, home);
    for (uint32_t v = 0; !status && v < t->n_values; v++)
        if (rw_problem_makes(p, v)) c.fate[v] = fate_of(&c, why_of(p, policy, v, home[v]), home[v]);
    if (!status) drop_siblings(&c, p);
    rw_free(home);
    if (status) {
        rw_choice_finish(&c);
        return status;
    }
    assert(rw_choice_is_valid(&c, p));
    *ret_choice = c;
    return RW_OK;
}
