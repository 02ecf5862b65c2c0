/* The audit of law 3: which Philox blocks each ticket of a tape uses, and whether two tickets overlap. */
#include "base/alloc.h"
#include "record/tape.h"

#include <stdlib.h>

static uint64_t blocks_of(const rw_tape *t, const struct rw_node *node)
{
    const rw_op_call call = rw_call_of(t, node);
    return (uint64_t)(rw_call_draws(&call) + 3) / 4;
}

struct taken {
    uint64_t seed, first, end; /* blocks [first, end) */
};

static int by_place(const void *pa, const void *pb)
{
    const struct taken *const a = pa, *const b = pb;
    if (a->seed != b->seed) return a->seed < b->seed ? -1 : 1;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* A node with another node's ticket draws the same words on purpose, so each ticket counts once, for the node that
   took it. */
static size_t collect(const rw_tape *t, struct taken *taken, bool *seen)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_nodes; i++) {
        const struct rw_node *const node = &t->nodes[i];
        if (node->ticket == RW_NONE_ID || seen[node->ticket]) continue;
        seen[node->ticket] = true;
        const rw_ticket ticket = rw_tape_ticket(t, node->ticket, &t->draws);
        taken[n++] = (struct taken){ ticket.seed, ticket.offset, ticket.offset + blocks_of(t, node) };
    }
    return n;
}

rw_status rw_tape_audit_tickets(const rw_tape *t, bool *ret_disjoint)
{
    struct taken *const taken = rw_malloc(t->n_tickets * sizeof *taken);
    bool *const seen = rw_calloc(t->n_tickets, sizeof *seen);
    const bool ok = taken && seen;
    if (ok) {
        const size_t n = collect(t, taken, seen);
        qsort(taken, n, sizeof *taken, by_place);
        bool disjoint = true;
        for (size_t i = 1; i < n; i++)
            disjoint &= taken[i].seed != taken[i - 1].seed || taken[i].first >= taken[i - 1].end;
        *ret_disjoint = disjoint;
    }
    rw_free(taken);
    rw_free(seen);
    return ok ? RW_OK : RW_ERR_MEMORY;
}

bool rw_tape_tickets_follow(const rw_tape *t)
{
    uint64_t end = t->n_tickets ? t->tickets[0].offset : 0;
    size_t next = 0;
    for (size_t i = 0; i < t->n_nodes; i++) {
        const struct rw_node *const node = &t->nodes[i];
        if (node->ticket != next) continue; /* none, or one that repeats an earlier one's */
        const rw_ticket ticket = t->tickets[next++];
        const uint64_t gap = ticket.offset - end; /* modulo 2^64: a negative gap exceeds half of that */
        if (ticket.seed != t->tickets[0].seed || gap > INT64_MAX) return false;
        end = ticket.offset + blocks_of(t, node);
    }
    return true;
}
