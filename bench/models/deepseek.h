/* The DeepSeek decoder's own parts: see deepseek.c. */
#ifndef REWIND_BENCH_DEEPSEEK_H
#define REWIND_BENCH_DEEPSEEK_H

#include "models/model.h"

/* Presets of this kind: tiny, small, v2-lite, v3. False if there is none with that name. */
bool deepseek_preset(struct model_config *c, const char *name);

/* Sets members of a configuration that are 0, from its width and heads. */
void deepseek_defaults(struct model_config *c);

/* Creates the parameters of one layer. param: of model.c. */
void deepseek_layer(struct model *m, int layer,
                    rw_tensor *(*param)(const struct model *m, int layer, const char *name, rw_shape shape));

/* The losses of the tokens after the next one, from x, the last layer's result; aux as below. NULL: there are none. */
rw_tensor *deepseek_ahead(const struct model *m, rw_tape *t, rw_tensor *x, rw_tensor *targets, rw_tensor **aux);

/* The biases of the next step, which are written when they are evaluated. */
int deepseek_balance(const struct model *m, rw_tape *t, rw_tensor **ret);

/* One layer. aux: the router's loss is added to it; NULL at first. */
rw_tensor *deepseek_block(const struct model *m, rw_tape *t, rw_tensor *x, int layer, rw_tensor **aux);

#endif
