/* Turns the buffers and slots of a schedule into lifetimes for place.h, and back. */
#include "place/arena.h"

#include "base/alloc.h"
#include "place/place.h"

rw_status rw_place_schedule(const struct rw_schedule *s, uint64_t alignment, uint64_t *offset, uint64_t *ret_bytes)
{
    struct rw_lifetime *const life = rw_malloc(s->n_buffers * sizeof *life);
    uint32_t *const of = rw_malloc(s->n_buffers * sizeof *of);
    size_t n = 0;
    rw_status status = life && of ? RW_OK : RW_ERR_MEMORY;
    for (uint32_t i = 0; !status && i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        if (!rw_buffer_is_placed(s, i)) continue;
        of[n] = i;
        life[n++] = (struct rw_lifetime){ .first = b->first, .last = b->last, .bytes = b->bytes };
    }
    if (!status) status = rw_place(life, n, alignment, ret_bytes);
    for (size_t i = 0; !status && offset && i < n; i++) offset[of[i]] = life[i].offset;
    rw_free(life);
    rw_free(of);
    return status;
}

/* Unit of reads and writes of files. */
#define SLOT_ALIGNMENT 4096

rw_status rw_place_slots(struct rw_schedule *s, uint64_t *ret_bytes)
{
    *ret_bytes = 0;
    return s->n_slots ? rw_place(s->slots, s->n_slots, SLOT_ALIGNMENT, ret_bytes) : RW_OK;
}
