/* The parts of a decoder layer. */
#ifndef REWIND_BENCH_BLOCK_H
#define REWIND_BENCH_BLOCK_H

#include "models/model.h"

/* LayerNorm or RMSNorm, depending on the model. */
rw_tensor *model_norm(const struct model *m, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);

/* The same in a region of its own, as in Megatron's layers. */
rw_tensor *model_block_norm(const struct model *m, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);

/* The end of a branch: its last layer, dropout, and the sum with the residual stream. */
rw_tensor *model_join(const struct model *m, rw_tape *t, rw_tensor *residual, rw_tensor *x, rw_tensor *weight,
                      rw_tensor *bias);

#endif
