/* The encoder and decoder of T5: see t5.c. */
#ifndef REWIND_BENCH_T5_H
#define REWIND_BENCH_T5_H

#include "models/model.h"

/* Presets of this kind: tiny, small, t5-small, t5-v1.1-small. False if there is none with that name. */
bool t5_preset(struct model_config *c, const char *name);

/* Sets members of a configuration that are 0, from its width and heads. */
void t5_defaults(struct model_config *c);

/* Creates all parameters; they are not initialized. param: of model.c. */
void t5_create(struct model *m,
               rw_tensor *(*param)(const struct model *m, int layer, const char *name, rw_shape shape));

/* Initializes one parameter as the paper's code does: normal, scaled by its number of inputs. */
rw_status t5_init(const struct model *m, rw_tensor *p);

/* The bucket of a key `far` places after its query. */
int t5_bucket(int far, bool causal);

/* The encoder reads the first half of tokens [batch, seq], the decoder continues with the second: mean cross-entropy of
   the targets there. */
rw_tensor *t5_loss(const struct model *m, rw_tape *t, rw_tensor *tokens, rw_tensor *targets);

#endif
