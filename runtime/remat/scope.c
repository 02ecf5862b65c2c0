/* From regions and a policy to scopes, homes and decisions. See scope.h. */
#include "remat/scope.h"

#include "base/alloc.h"

#include <string.h>

void rw_scopes_finish(struct rw_scopes *s)
{
    rw_free(s->parent);
    rw_free(s->depth);
    rw_free(s->of_region);
    rw_free(s->home);
    rw_free(s->decision);
    *s = (struct rw_scopes){ 0 };
}

bool rw_scope_contains(const struct rw_scopes *s, uint32_t outer, uint32_t inner)
{
    while (s->depth[inner] > s->depth[outer]) inner = s->parent[inner];
    return inner == outer;
}

static uint32_t common(const struct rw_scopes *s, uint32_t a, uint32_t b)
{
    while (a != b) {
        if (s->depth[a] >= s->depth[b]) a = s->parent[a];
        else b = s->parent[b];
    }
    return a;
}

static uint32_t add_scope(struct rw_scopes *s, uint32_t parent)
{
    s->parent[s->n] = parent;
    s->depth[s->n] = (uint16_t)(s->depth[parent] + 1);
    return s->n++;
}

/* One rule per policy; outermost regions are counted by `sibling`. */
static void map_regions(struct rw_scopes *s, const rw_tape *t, const struct rw_policy *policy)
{
    int64_t sibling = -1;
    uint32_t group = 0;
    for (uint32_t r = 0; r < t->n_regions; r++) {
        const struct rw_region *const region = &t->regions[r];
        const bool outermost = region->parent == RW_NONE_ID;
        const uint32_t around = outermost ? 0 : s->of_region[region->parent];
        if (outermost) sibling++;
        switch (policy->kind) {
        case RW_POLICY_FULL:
        case RW_POLICY_OPS:
        case RW_POLICY_NAMES:
            s->of_region[r] = add_scope(s, around);
            break;
        case RW_POLICY_SELECTIVE:
            s->of_region[r] = rw_policy_has_name(policy, t->ctx->names[region->name]) ? add_scope(s, around) : around;
            break;
        case RW_POLICY_UNIFORM:
            if (outermost && sibling % policy->n == 0) group = add_scope(s, 0);
            s->of_region[r] = group;
            break;
        case RW_POLICY_BLOCK:
            s->of_region[r] = sibling < policy->n ? add_scope(s, around) : 0;
            break;
        default:
            s->of_region[r] = 0;
        }
    }
}

static void find_homes(struct rw_scopes *s, const rw_tape *t, const bool *needed)
{
    for (uint32_t v = 0; v < t->n_values; v++) {
        const struct rw_tensor *const x = rw_tape_value(t, v);
        s->home[v] = x->producer == RW_NONE_ID ? 0 : rw_scope_of_node(s, t, &t->nodes[x->producer]);
    }
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const uint32_t scope = rw_scope_of_node(s, t, node);
        /* A recorded node outside every scope runs once: it needs its inputs later only if its gradient does. */
        if (!needed[n] || (!node->adjoint && !scope)) continue;
        for (int i = 0; i < node->n_inputs; i++) {
            const uint32_t b = rw_tape_base(t, t->operands[node->first_input + (uint32_t)i]);
            s->home[b] = common(s, s->home[b], scope);
        }
    }
}

static size_t value_bytes(const rw_tape *t, uint32_t v)
{
    return rw_tensor_bytes(rw_tape_value(t, v));
}

static uint32_t find(const uint32_t *merged, uint32_t scope)
{
    while (merged[scope] != scope) scope = merged[scope];
    return scope;
}

/* Bytes that come into a region from outside its scope: its inputs, each once, parameters and inputs of the step left
   out. */
static size_t input_bytes(const struct rw_scopes *s, const rw_tape *t, const struct rw_region *region, uint32_t scope,
                          uint32_t *stamp)
{
    size_t bytes = 0;
    for (uint32_t n = region->first; n < region->end && n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        if (node->adjoint) continue;
        for (int i = 0; i < node->n_inputs; i++) {
            const uint32_t b = rw_tape_base(t, t->operands[node->first_input + (uint32_t)i]);
            if (stamp[b] == scope || rw_tape_value(t, b)->producer == RW_NONE_ID) continue;
            stamp[b] = scope;
            if (!rw_scope_contains(s, scope, s->home[b])) bytes += value_bytes(t, b);
        }
    }
    return bytes;
}

/* Children come after their parents, so going down sees what was dissolved into a scope before the scope itself. */
static rw_status dissolve(struct rw_scopes *s, const rw_tape *t, const bool *needed)
{
    size_t *const internal = rw_calloc(s->n, sizeof *internal);
    uint32_t *const merged = rw_malloc(s->n * sizeof *merged);
    uint32_t *const region_of = rw_malloc(s->n * sizeof *region_of);
    uint32_t *const stamp = rw_calloc(t->n_values, sizeof *stamp);
    bool *const seen = rw_calloc(t->n_values, sizeof *seen);
    const bool ok = internal && merged && region_of && stamp && seen;
    for (size_t n = 0; ok && n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        for (int i = 0; node->adjoint && needed[n] && i < node->n_inputs; i++) {
            const uint32_t b = rw_tape_base(t, t->operands[node->first_input + (uint32_t)i]);
            if (!seen[b]) internal[s->home[b]] += value_bytes(t, b);
            seen[b] = true;
        }
    }
    for (uint32_t i = 0; ok && i < s->n; i++) merged[i] = i;
    for (uint32_t r = (uint32_t)t->n_regions; ok && r-- > 0;) region_of[s->of_region[r]] = r;
    for (uint32_t i = s->n; ok && i-- > 1;) {
        if (s->parent[i] == 0) continue;
        if (internal[i] > input_bytes(s, t, &t->regions[region_of[i]], i, stamp)) continue;
        merged[i] = s->parent[i];
        internal[s->parent[i]] += internal[i];
    }
    for (size_t v = 0; ok && v < t->n_values; v++) s->home[v] = find(merged, s->home[v]);
    for (size_t r = 0; ok && r < t->n_regions; r++) s->of_region[r] = find(merged, s->of_region[r]);
    for (uint32_t i = 1; ok && i < s->n; i++) s->parent[i] = find(merged, s->parent[i]);
    for (uint32_t i = 1; ok && i < s->n; i++) s->depth[i] = (uint16_t)(s->depth[s->parent[i]] + 1);
    rw_free(internal);
    rw_free(merged);
    rw_free(region_of);
    rw_free(stamp);
    rw_free(seen);
    return ok ? RW_OK : RW_ERR_MEMORY;
}

static uint8_t decide(const struct rw_scopes *s, const rw_tape *t, const struct rw_policy *policy, uint32_t v,
                      bool wanted)
{
    const struct rw_tensor *const x = rw_tape_value(t, v);
    const struct rw_node *const node = &t->nodes[x->producer];
    const rw_op_def *const op = t->ctx->ops[node->op];
    if (op->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC)) return RW_DECIDE_KEEP_EFFECT;
    if (node->adjoint) return RW_DECIDE_KEEP_ADJOINT;
    if (wanted) return RW_DECIDE_KEEP_RESULT;
    if (x->flags & RW_VALUE_SAVE) return RW_DECIDE_KEEP_CALLER;
    if (x->flags & RW_VALUE_RECOMPUTE) return RW_DECIDE_REPLAY_CALLER;
    if (!s->home[v]) return RW_DECIDE_KEEP_OUTSIDE;
    if (policy->kind == RW_POLICY_OPS && rw_policy_has_name(policy, op->name)) return RW_DECIDE_KEEP_OP;
    if (policy->kind == RW_POLICY_NAMES && x->tag && rw_policy_has_name(policy, t->ctx->names[x->tag - 1]))
        return RW_DECIDE_KEEP_NAME;
    return RW_DECIDE_REPLAY_REGION;
}

rw_status rw_scopes_init(struct rw_scopes *s, const rw_tape *t, const struct rw_policy *policy, const bool *needed,
                         const bool *wanted)
{
    const size_t most = t->n_regions + 1;
    *s = (struct rw_scopes){ .n = 1,
                             .parent = rw_calloc(most, sizeof *s->parent),
                             .depth = rw_calloc(most, sizeof *s->depth),
                             .of_region = rw_calloc(most, sizeof *s->of_region),
                             .home = rw_calloc(t->n_values, sizeof *s->home),
                             .decision = rw_calloc(t->n_values, sizeof *s->decision) };
    rw_status status = RW_ERR_MEMORY;
    if (s->parent && s->depth && s->of_region && s->home && s->decision) {
        map_regions(s, t, policy);
        find_homes(s, t, needed);
        status = s->n > 1 && policy->kind != RW_POLICY_UNIFORM ? dissolve(s, t, needed) : RW_OK;
    }
    if (status) {
        rw_scopes_finish(s);
        return status;
    }
    for (uint32_t v = 0; v < t->n_values; v++) {
        const struct rw_tensor *const x = rw_tape_value(t, v);
        if (x->base == v && x->producer != RW_NONE_ID) s->decision[v] = decide(s, t, policy, v, wanted[v]);
    }
    return RW_OK;
}
