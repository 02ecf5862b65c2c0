/*
 * Recipes of a tape: what rw_recipe_begin() and rw_recipe_end() stand around. While one is open, recording puts casts
 * before an op, as it puts copies before one that cannot take strides; nothing behind recording knows of recipes.
 *
 * A cast is recorded once for each value and type: of a parameter or buffer once a step, of anything else once a
 * region, so that no region keeps for another what that would make again. They are found by cast_of[value], which may
 * be of a value that was there before an undone call: it counts where the cast that it names is of that value.
 */
#ifndef RW_RECORD_RECIPE_H
#define RW_RECORD_RECIPE_H

#include "record/tape.h"

/* Is there anything that a recipe does with the op that is recorded now? */
bool rw_recipe_rules(const rw_tape *t, const rw_op_def *op);

/* The widest type among the inputs that the op wants alike: float32 where two are of different 16 bits. */
rw_dtype rw_recipe_widest(const rw_op_def *op, struct rw_tensor *const *in, int n);

/* The type in which the open recipe hands input i, which has one, to the op. */
rw_dtype rw_recipe_dtype(const rw_tape *t, const rw_op_def *op, int i, rw_dtype has, rw_dtype widest);

/* x of the tape in another type, cast before or now. NULL on an error, which sticks. */
struct rw_tensor *rw_recipe_cast(rw_tape *t, struct rw_tensor *x, rw_dtype dtype, rw_site at);

/* Delayed scaling goes away: recipes that name it make no more codes, and say so. */
void rw_recipes_forget(const rw_context *ctx, const rw_delayed *d);

#endif
