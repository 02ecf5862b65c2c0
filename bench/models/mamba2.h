/* Mamba-2's own parts: see mamba2.c. */
#ifndef REWIND_BENCH_MAMBA2_H
#define REWIND_BENCH_MAMBA2_H

#include "models/model.h"

/* Presets of this kind: tiny, small, mamba2-130m. False if there is none with that name. */
bool mamba2_preset(struct model_config *c, const char *name);

/* Sets members of a configuration that are 0. */
void mamba2_defaults(struct model_config *c);

/* Creates the parameters of one layer. param: of model.c. */
void mamba2_layer(struct model *m, int layer,
                  rw_tensor *(*param)(const struct model *m, int layer, const char *name, rw_shape shape));

/* Initializes a parameter as the published code does, except dt: one step for all heads. */
rw_status mamba2_init(const struct model *m, rw_tensor *p);

/* One layer, without its region. x [batch, seq, width]. */
rw_tensor *mamba2_block(const struct model *m, rw_tape *t, rw_tensor *x, int layer);

#endif
