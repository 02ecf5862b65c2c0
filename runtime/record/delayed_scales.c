/* Slots of delayed scaling: the scale of an operand as a leaf, and the note of its amax on the tape. */
#include "record/delayed_scales.h"

#include "base/alloc.h"
#include "record/recipe_queries.h"
#include "record/tape_key_words.h"

#include <rewind/ops.h>

static uint32_t weight_of(const rw_tape *t, const struct rw_delayed_rows *d, const struct rw_tensor *weight)
{
    if (weight->leaf == RW_NONE_ID || t->leaves[weight->leaf].kind != RW_LEAF_PARAM) return RW_NONE_ID;
    return rw_delayed_row_of(d, t->leaves[weight->leaf].serial);
}

static uint32_t row_of(uint32_t weight, enum rw_delayed_operand which)
{
    return weight * RW_DELAYED_OPERANDS + (uint32_t)which;
}

bool rw_delayed_slot_at(rw_site at, rw_tape *t, const rw_delayed_scaling *delayed, rw_tensor *weight,
                        enum rw_delayed_operand which, struct rw_delayed_slot *ret)
{
    const struct rw_delayed_rows *const d = rw_delayed_rows(delayed);
    const uint32_t number = weight_of(t, d, weight);
    if (number == RW_NONE_ID) {
        rw_fail(t->ctx, RW_ERR_ARGUMENT,
                "%s at %s:%d: weight: under delayed scaling expected a parameter or buffer from before "
                "rw_delayed_scaling_create(), got another tensor", t->composite, rw_file_of(at), at.line);
        return false;
    }
    const uint32_t i = row_of(number, which);
    rw_tensor *const scale = rw_slice_at(at, t, &d->scale->tensor, 0, i, (int64_t)i + 1);
    *ret = (struct rw_delayed_slot){ scale, d->amax->tensor.id, i };
    return scale;
}

rw_status rw_tape_note(rw_tape *t, struct rw_tape_amax what)
{
    if (!rw_grow(&t->amaxes, &t->cap_amaxes, t->n_amaxes, 1, sizeof *t->amaxes) ||
        !rw_key_reserve(&t->key, RW_KEY_AMAX_WORDS))
        return rw_fail(t->ctx, RW_ERR_MEMORY, "quantize: out of memory");
    t->amaxes[t->n_amaxes++] = what;
    rw_key_add_amax(&t->key, &what, t->ctx->by_id[what.buffer]->serial);
    return RW_OK;
}

rw_status rw_delayed_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *amax)
{
    return rw_tape_note(t, (struct rw_tape_amax){ amax->id, buffer, row, RW_NONE_ID, false });
}

rw_status rw_delayed_note_kept(rw_tape *t, const struct rw_delayed_rows *d, const rw_tensor *weight,
                               const rw_tensor *codes, const rw_tensor *amax)
{
    const uint32_t row = row_of(weight_of(t, d, weight), RW_DELAYED_WEIGHT);
    return rw_tape_note(t, (struct rw_tape_amax){ amax->id, d->amax->tensor.id, row, codes->leaf, false });
}
