/*
 * Recipes of a tape: the scopes between rw_recipe_begin() and rw_recipe_end(). While one is open, recording inserts
 * casts before an op, as it inserts copies before an op that does not accept strides; later passes know nothing about
 * recipes.
 *
 * A cast is recorded once per value and type: for a parameter or buffer once per step, for any other value once per
 * region, so that no region keeps for another what that would recompute. Casts are found by cast_of[value]. An entry
 * may refer to a value of a call that was rolled back: it is valid only if the cast that it names is of that value.
 */
#ifndef RW_RECORD_PRECISION_RECIPE_H
#define RW_RECORD_PRECISION_RECIPE_H

#include "record/tape.h"

/* A scope between rw_recipe_begin(), which copies the recipe, and rw_recipe_end(). */
struct rw_tape_recipe {
    rw_recipe recipe;
    uint32_t parent; /* the surrounding recipe, RW_NONE_ID for none */
    uint32_t region; /* the surrounding region, RW_NONE_ID for none */
    uint32_t site;
    bool bereft; /* its delayed scaling was destroyed */
};

/* The innermost open recipe; NULL for none. */
const struct rw_tape_recipe *rw_recipe_open(const rw_tape *t);

/* Does a recipe affect the op that is being recorded? */
bool rw_recipe_rules(const rw_tape *t, const rw_op_def *op);

/* The widest type among the inputs of the set `cast_widest`; float32 for two different 16-bit types. */
rw_dtype rw_recipe_widest(const rw_op_def *op, struct rw_tensor *const *in, int n);

/* The type in which the open recipe passes input i to the op. */
rw_dtype rw_recipe_dtype(const rw_tape *t, const rw_op_def *op, int i, rw_dtype has, rw_dtype widest);

/* x of the tape in another type, from an earlier cast or a new one. NULL on an error, which is sticky. */
struct rw_tensor *rw_recipe_cast(rw_tape *t, struct rw_tensor *x, rw_dtype dtype, rw_site at);

/* Number of recipes that the step has begun, and sets it back: later ones are forgotten. */
size_t rw_recipes_count(const rw_tape *t);
void rw_recipes_set_back(const rw_tape *t, size_t n);

/* Delayed scaling is destroyed: recording under recipes that name it is refused from now on. */
void rw_recipes_forget(const rw_context *ctx, const rw_delayed_scaling *d);

#endif
