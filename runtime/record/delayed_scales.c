/* Slots of delayed scaling: the scale of an operand as a leaf, and the note of its amax on the tape. */
#include "record/delayed_scales.h"

#include "base/alloc.h"
#include "record/recipe_slots.h"
#include "record/tape_key_words.h"

#include <rewind/ops.h>

static uint32_t weight_of(const rw_tape *t, const struct rw_delayed_rows *d, const struct rw_tensor *weight)
{
    if (weight->leaf == RW_NONE_ID || t->leaves[weight->leaf].kind != RW_LEAF_PARAM) return RW_NONE_ID;
    return rw_delayed_row_of(d, t->leaves[weight->leaf].serial);
}

static uint32_t row_of(uint32_t weight, rw_delayed_operand which)
{
    return weight * RW_DELAYED_OPERANDS + (uint32_t)which;
}

bool rw_delayed_slot_at(rw_site at, rw_tape *t, const rw_delayed_scaling *delayed, rw_tensor *weight,
                        rw_delayed_operand which, struct rw_delayed_slot *ret)
{
    const struct rw_delayed_rows *const d = rw_delayed_rows(delayed);
    const uint32_t number = weight_of(t, d, weight);
    if (number == RW_NONE_ID) {
        rw_fail(t->ctx, RW_ERR_ARGUMENT,
                "%s at %s:%d: weight: under delayed scaling expected a parameter or buffer from before "
                "rw_delayed_scaling_create(), got another tensor", t->composite ? t->composite : "rw_recipe_quantize",
                rw_file_of(at), at.line);
        return false;
    }
    const uint32_t i = row_of(number, which);
    rw_tensor *const scale = rw_slice_at(at, t, &d->scale->tensor, 0, i, (int64_t)i + 1);
    *ret = (struct rw_delayed_slot){ scale, d->amax->tensor.id, i };
    return scale;
}

/* ---- notes of a tape ---- */

/* The value of a note is newer than what was recorded before it. */
static void cut(rw_tape *t, void *state)
{
    struct rw_amaxes *const a = state;
    while (a->n && a->list[a->n - 1].value >= t->n_values) a->n--;
}

static void reset(rw_tape *t, void *state)
{
    ((struct rw_amaxes *)state)->n = 0;
}

static void destroy(rw_context *ctx, void *state)
{
    rw_free(((struct rw_amaxes *)state)->list);
}

static struct rw_extension amaxes_extension = { .name = "amaxes", .size = sizeof(struct rw_amaxes), .cut = cut,
                                                .reset = reset, .destroy = destroy };

struct rw_amaxes *rw_amaxes_of(const rw_tape *t)
{
    return rw_extension_find(&t->extensions, &amaxes_extension);
}

rw_status rw_amaxes_note(rw_tape *t, struct rw_tape_amax what)
{
    struct rw_amaxes *const a = rw_extension_make(&t->extensions, &amaxes_extension);
    if (!a || !rw_grow(&a->list, &a->cap, a->n, 1, sizeof *a->list) || !rw_key_reserve(&t->key, RW_KEY_AMAX_WORDS))
        return rw_fail(t->ctx, RW_ERR_MEMORY, "quantize: out of memory");
    a->list[a->n++] = what;
    rw_key_add_amax(&t->key, &what, t->ctx->by_id[what.buffer]->serial);
    return RW_OK;
}

rw_status rw_delayed_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *amax)
{
    return rw_amaxes_note(t, (struct rw_tape_amax){ amax->id, buffer, row, RW_NONE_ID, false });
}

rw_status rw_delayed_note_kept(rw_tape *t, const struct rw_delayed_rows *d, const rw_tensor *weight,
                               const rw_tensor *codes, const rw_tensor *amax)
{
    const uint32_t row = row_of(weight_of(t, d, weight), RW_DELAYED_WEIGHT);
    return rw_amaxes_note(t, (struct rw_tape_amax){ amax->id, d->amax->tensor.id, row, codes->leaf, false });
}
