/* Offloads the first values of a choice, up to a fraction of the bytes that backward reads. */
#include "remat/policy/offload_fraction.h"

#include "base/alloc.h"
#include "remat/policy/policy_to_choice.h"

/* Does the node read its inputs during backward? Adjoint nodes do, and nodes that may be re-executed. */
static bool reads_late(const struct rw_problem *p, const struct rw_choice *c, uint32_t n)
{
    const struct rw_node *const node = &p->t->nodes[n];
    bool again = node->adjoint || c->segment_of[n];
    for (uint32_t i = 0; i < node->n_outputs; i++) again |= rw_fate_drops(&c->fate[node->first_output + i]);
    return p->needed[n] && again;
}

static bool may_move(const struct rw_problem *p, const struct rw_choice *c, uint32_t v)
{
    const struct rw_tensor *const x = rw_tape_value(p->t, v);
    return rw_problem_makes(p, v) && c->fate[v].what == RW_KEEP && !c->fate[v].level && !p->wanted[v] &&
           !p->t->nodes[x->producer].adjoint && !rw_value_stays(p, v);
}

static void find_late(const struct rw_problem *p, const struct rw_choice *c, bool *late)
{
    const rw_tape *const t = p->t;
    for (uint32_t n = 0; n < t->n_nodes; n++) {
        if (!reads_late(p, c, n)) continue;
        for (uint32_t i = 0; i < t->nodes[n].n_inputs; i++)
            late[rw_tape_base(t, t->operands[t->nodes[n].first_input + i])] = true;
    }
}

/* Values are numbered in the order in which forward computes them, so the first ones are offloaded first. */
rw_status rw_move_first(const struct rw_problem *p, struct rw_choice *c, unsigned part, unsigned parts)
{
    const size_t n = p->t->n_values;
    bool *const moves = rw_calloc(n, sizeof *moves);
    uint64_t all = 0, moved = 0;
    if (!moves) return RW_ERR_MEMORY;
    find_late(p, c, moves);
    for (uint32_t v = 0; v < n; v++) {
        moves[v] = moves[v] && may_move(p, c, v);
        if (moves[v]) all += rw_tensor_bytes(rw_tape_value(p->t, v));
    }
    for (uint32_t v = 0; v < n; v++) {
        if (!moves[v]) continue;
        moved += rw_tensor_bytes(rw_tape_value(p->t, v));
        if (moved * parts > all * part) break;
        c->fate[v] = (struct rw_fate){ .what = RW_MOVE, .why = RW_WHY_BUDGET };
    }
    rw_free(moves);
    return RW_OK;
}

bool rw_choice_moves(const struct rw_problem *p, const struct rw_choice *c)
{
    for (uint32_t v = 0; v < p->t->n_values; v++)
        if (rw_problem_makes(p, v) && c->fate[v].what == RW_MOVE) return true;
    return false;
}
