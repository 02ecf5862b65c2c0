/* Dissolving: bytes that a nested segment drops against bytes that come into it. See dissolve.h. */
#include "remat/dissolve.h"

#include "base/alloc.h"

struct sums {
    uint64_t *dropped; /* segment -> bytes at home in it that adjoint nodes read */
    uint64_t *inputs;  /* segment -> bytes read in it that are at home outside it, each value once */
};

static uint64_t bytes_of(const struct rw_tape *t, uint32_t v)
{
    return rw_tensor_bytes(rw_tape_value(t, v));
}

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
 * A value that segment T reads comes into T and every segment around it, out to the one that holds its home. Readers
 * are met in tape order, which is preorder of their segments: what a reader shares with the reader before it has been
 * counted. Bytes are added where a way outwards begins and taken away where it ends; the sum over a subtree is then
 * what comes into its root.
 */
static rw_status count_inputs(const struct rw_choice *c, const struct rw_problem *p, const uint32_t *home,
                              uint64_t *inputs)
{
    const struct rw_tape *const t = p->t;
    uint32_t *const last = rw_malloc(t->n_values * sizeof *last); /* base -> segment of the reader before */
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

/* Children come after their parents: going down, a segment has what was dissolved into it before its own turn. */
static void decide(const struct rw_choice *c, struct sums *sums, bool *stays)
{
    for (uint32_t s = (uint32_t)c->n_segments; s-- > 0;) {
        const uint32_t parent = c->segment[s].parent;
        stays[s] = !parent || sums->dropped[s] > sums->inputs[s];
        if (!stays[s]) sums->dropped[parent] += sums->dropped[s];
    }
}

/* Takes out what does not stay; the rest keeps its order, which is preorder still. */
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

rw_status rw_dissolve(struct rw_choice *c, const struct rw_problem *p, uint32_t *home)
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
