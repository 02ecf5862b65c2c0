/* Kinds and holders of the memory that is live at one action. */
#include "remat/schedule/live_set.h"

void rw_find_holders(const struct rw_schedule *s, uint32_t action, uint32_t *holder)
{
    const struct rw_buffer *const b = s->buffers;
    for (uint32_t i = 0; i < s->n_buffers; i++) holder[i] = b[i].merged == i && b[i].first <= action ? i : RW_NONE_ID;
    for (uint32_t i = 0; i < s->n_buffers; i++)
        if (b[i].merged != i && b[i].first <= action) holder[rw_buffer_root(s, i)] = i;
}

enum rw_live_kind rw_live_kind_of(const struct rw_problem *p, const struct rw_schedule *s, uint32_t root,
                                  uint32_t holder)
{
    const struct rw_buffer *const b = &s->buffers[holder];
    if (b->value == RW_NONE_ID) return RW_LIVE_WORKSPACE;
    if (b->replay) return RW_LIVE_REPLAYED;
    const uint32_t producer = rw_tape_value(p->t, b->value)->producer;
    if (producer != RW_NONE_ID && p->t->nodes[producer].adjoint) return RW_LIVE_ADJOINT;
    return s->buffers[root].last >= s->n_before ? RW_LIVE_KEPT : RW_LIVE_TRANSIENT;
}
