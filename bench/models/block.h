/* Parts of a layer. */
#ifndef REWIND_BENCH_BLOCK_H
#define REWIND_BENCH_BLOCK_H

#include "models/model.h"

/* LayerNorm or RMSNorm, as the model has it. */
rw_tensor *model_norm(const struct model *m, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);

/* The same in a region of its own, as Megatron has them within a layer. */
rw_tensor *model_block_norm(const struct model *m, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias);

/* The end of a branch: its last layer, dropout, and the sum with the residual stream. */
rw_tensor *model_join(const struct model *m, rw_tape *t, rw_tensor *residual, rw_tensor *x, rw_tensor *weight,
                      rw_tensor *bias);

#endif
