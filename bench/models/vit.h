/* The vision transformer's own parts: see vit.c. */
#ifndef REWIND_BENCH_VIT_H
#define REWIND_BENCH_VIT_H

#include "models/model.h"

/* Presets of this kind: tiny, small, published. False if there is none with that name. */
bool vit_preset(struct model_config *c, const char *name);

/* Sets members of a configuration that are 0. */
void vit_defaults(struct model_config *c);

/* Creates the parameters before the first layer, and those of the last one. param: of model.c. */
void vit_ends(struct model *m, rw_tensor *(*param)(const struct model *m, int layer, const char *name, rw_shape shape));

/* x [n, 3, h, w] -> [n, vocab]. Sides that are not a multiple of a patch are padded with zeros at the end. */
rw_tensor *vit_forward(const struct model *m, rw_tape *t, rw_tensor *x);

#endif
