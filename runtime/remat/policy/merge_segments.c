/* Segment merging: compares the bytes that a nested segment drops with the bytes of its inputs. */
#include "remat/policy/merge_segments.h"

#include "base/alloc.h"

struct sums {
    uint64_t *dropped; /* segment -> bytes with their home in it that adjoint nodes read */
    uint64_t *inputs;  /* segment -> bytes read in it whose home is outside, each value once */
};

static uint64_t bytes_of(const struct rw_tape *t, uint32_t v)
{
    return rw_tensor_bytes(rw_tape_value(t, v));
}

/* Counts each value that an adjoint node reads once, in its home. */
static rw_status count_dropped(const struct rw_problem *p, const uint32_t *home, uint64_t *dropped)
{
    const struct rw_tape *const t = p->t;
    bool *const seen = rw_calloc(t->n_values, sizeof *seen);
    if (!seen) return RW_ERR_MEMORY;
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        for (uint32_t i = 0; node->adjoint && p->needed[n] && i < node->n_inputs; i++) {
            const uint32_t b = rw_tape_base(t, t->operands[node->first_input + i]);
            if (!seen[b]) dropped[home[b]] += bytes_of(t, b);
            seen[b] = true;
        }
    }
    rw_free(seen);
    return RW_OK;
}

/*
 * Counts the inputs of segments. A value that segment T reads enters T and every segment around it, up to the one that
 * contains its home. Readers come in tape order, which is preorder of their segments, so segments shared with the
 * previous reader have been counted. Bytes are added at the reader's segment and subtracted where the path outwards
 * ends. The sum over a subtree is then the input of its root.
 */
static rw_status count_inputs(const struct rw_choice *c, const struct rw_problem *p, const uint32_t *home,
                              uint64_t *inputs)
{
    const struct rw_tape *const t = p->t;
    uint32_t *const last = rw_malloc(t->n_values * sizeof *last); /* base -> segment of the previous reader */
    if (!last) return RW_ERR_MEMORY;
    for (size_t v = 0; v < t->n_values; v++) last[v] = RW_NONE_ID;
    for (size_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        const uint32_t s = c->segment_of[n];
        for (uint32_t i = 0; !node->adjoint && s && i < node->n_inputs; i++) {
            const uint32_t b = rw_tape_base(t, t->operands[node->first_input + i]);
            if (rw_tape_value(t, b)->producer == RW_NONE_ID || last[b] == s) continue;
            uint32_t stop = rw_segment_common(c, home[b], s);
            if (last[b] != RW_NONE_ID) {
                const uint32_t shared = rw_segment_common(c, last[b], s);
                if (rw_segment_contains(c, stop, shared)) stop = shared;
            }
            inputs[s] += bytes_of(t, b);
            inputs[stop] -= bytes_of(t, b);
            last[b] = s;
        }
    }
    for (uint32_t s = (uint32_t)c->n_segments; s-- > 1;) inputs[c->segment[s].parent] += inputs[s];
    rw_free(last);
    return RW_OK;
}

/*
 * Decides which segments stay. Children have higher numbers than parents, so in descending order a segment already
 * includes what was merged into it.
 */
static void decide(const struct rw_choice *c, struct sums *sums, bool *stays)
{
    for (uint32_t s = (uint32_t)c->n_segments; s-- > 0;) {
        const uint32_t parent = c->segment[s].parent;
        stays[s] = !parent || sums->dropped[s] > sums->inputs[s];
        if (!stays[s]) sums->dropped[parent] += sums->dropped[s];
    }
}

/* Removes the segments that do not stay. The others keep their order, which is still preorder. */
static void remove_segments(struct rw_choice *c, const struct rw_problem *p, const bool *stays, uint32_t *now,
                            uint32_t *home)
{
    size_t n = 0;
    for (uint32_t s = 0; s < c->n_segments; s++) {
        const uint32_t parent = now[c->segment[s].parent];
        now[s] = stays[s] ? (uint32_t)n : parent;
        if (stays[s]) rw_choice_set_segment(c, (uint32_t)n++, parent);
    }
    c->n_segments = n;
    rw_choice_close(c);
    for (size_t i = 0; i < p->t->n_nodes; i++) c->segment_of[i] = now[c->segment_of[i]];
    for (size_t v = 0; v < p->t->n_values; v++) home[v] = now[home[v]];
}

/* Counts dropped bytes and inputs, decides, and removes segments. */
rw_status rw_merge_segments(struct rw_choice *c, const struct rw_problem *p, uint32_t *home)
{
    struct sums sums = { rw_calloc(c->n_segments, sizeof *sums.dropped),
                         rw_calloc(c->n_segments, sizeof *sums.inputs) };
    bool *const stays = rw_malloc(c->n_segments * sizeof *stays);
    uint32_t *const now = rw_calloc(c->n_segments, sizeof *now);
    rw_status status = sums.dropped && sums.inputs && stays && now ? RW_OK : RW_ERR_MEMORY;
    if (!status) status = count_dropped(p, home, sums.dropped);
    if (!status) status = count_inputs(c, p, home, sums.inputs);
    if (!status) {
        decide(c, &sums, stays);
        remove_segments(c, p, stays, now, home);
    }
    rw_free(sums.dropped);
    rw_free(sums.inputs);
    rw_free(stays);
    rw_free(now);
    return status;
}
