/* Marks of a tape, and rollback to them. */
#include "record/tape_mark.h"

#include "record/tape.h"

struct rw_tape_mark rw_tape_mark(const rw_tape *t)
{
    return (struct rw_tape_mark){ t->n_nodes,   t->n_operands, t->n_attrs, t->n_values,
                                  t->n_leaves,  t->n_tickets,  t->n_effects, t->key.n,
                                  t->key.hash,  t->ctx->generator.offset, t->ticket_end };
}

void rw_tape_cut(rw_tape *t, const struct rw_tape_mark *mark)
{
    for (size_t i = mark->leaves; i < t->n_leaves; i++)
        if (t->leaves[i].kind == RW_LEAF_PARAM) t->seen[t->leaves[i].param].step = 0;
    t->n_nodes = mark->nodes;
    t->n_operands = mark->operands;
    t->n_attrs = mark->attrs;
    t->n_values = mark->values;
    t->n_leaves = mark->leaves;
    t->n_tickets = mark->tickets;
    t->n_effects = mark->effects;
    t->key.n = mark->words;
    t->key.hash = mark->hash;
    rw_extensions_cut(&t->extensions, t);
}

void rw_tape_rollback(rw_tape *t, const struct rw_tape_mark *mark)
{
    rw_tape_cut(t, mark);
    t->ctx->generator.offset = mark->drawn;
    t->ticket_end = mark->ticket_end;
}
