/* Functions that record several ops: their beginning, and what one that fails leaves of the tape. */
#include "record/precision_recipe.h"
#include "record/tape.h"

#include <rewind/composite.h>

#include <string.h>

/* What rw_composite_end() restores: the mark, and scopes, which a cut for planning does not change. */
struct composite_state {
    struct rw_tape_mark mark;
    uint64_t number, outer; /* of this function, and of the surrounding one */
    size_t regions, parts, recipes, retained;
    uint32_t open_region, open_part, open_recipe, open_no_grads;
};
_Static_assert(sizeof(struct composite_state) <= sizeof((rw_composite *)0)->state_, "rw_composite.state_");

rw_composite rw_composite_begin(rw_tape *t, const char *name)
{
    RW_ENTER_RECORDING(t, ((rw_composite){ 0 }));
    if (!t) return (rw_composite){ 0 };
    rw_composite c;
    c.tape = t;
    c.within = t->composite;
    const struct composite_state state = { rw_tape_mark(t), t->n_composites + 1, t->open_composite, t->n_regions,
                                           t->n_parts, rw_recipes_count(t), t->n_retained, t->open_region,
                                           t->open_part, t->open_recipe, t->open_no_grads };
    memcpy(c.state_, &state, sizeof state);
    t->open_composite = ++t->n_composites;
    if (!t->composite) t->composite = name;
    return c;
}

/* Scopes that began since then are removed with their nodes, and ones that ended are open again. */
static void reopen_scopes(rw_tape *t, const struct composite_state *state)
{
    t->n_regions = state->regions;
    t->n_parts = state->parts;
    rw_recipes_set_back(t, state->recipes);
    t->n_retained = state->retained;
    t->open_region = state->open_region;
    for (uint32_t i = t->open_region; i != RW_NONE_ID; i = t->regions[i].parent) t->regions[i].end = RW_NONE_ID;
    t->open_part = state->open_part;
    for (uint32_t i = t->open_part; i != RW_NONE_ID; i = t->parts[i].parent) t->parts[i].end = RW_NONE_ID;
    t->open_recipe = state->open_recipe;
    t->open_no_grads = state->open_no_grads;
}

rw_tensor *rw_composite_end(const rw_composite *c, rw_tensor *result)
{
    RW_ENTER_OP(c ? c->tape : NULL);
    if (!c || !c->tape) return result;
    rw_tape *const t = c->tape;
    struct composite_state state;
    memcpy(&state, c->state_, sizeof state);
    if (t->open_composite != state.number) {
        rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_composite_end: expected the innermost function that has begun since "
                "rw_tape_reset(), got one that has ended, or one inside of which another has begun and not ended");
        return NULL;
    }
    t->open_composite = state.outer;
    t->composite = c->within;
    if (result) return result;
    rw_tape_rollback(t, &state.mark);
    reopen_scopes(t, &state);
    return NULL;
}
