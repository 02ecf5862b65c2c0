/* rewind/recurrent.h: what goes along a sequence. */
#include "api/mistakes/table.h"

#include <rewind/recurrent.h>

/* w->cube is [2, 3, 4] of float32, w->matrix [3, 5], w->four [4], w->p [2, 3]. */
void mistakes_with_sequences(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *taps = NULL, *none = NULL, *many = NULL;
    TENSOR("rw_causal_conv1d", RW_ERR_ARGUMENT, rw_causal_conv1d(t, NULL, w->matrix, RW_NONE));
    TENSOR("rw_causal_conv1d", RW_ERR_ARGUMENT, rw_causal_conv1d(t, w->cube, NULL, RW_NONE));
    TENSOR("rw_causal_conv1d", RW_ERR_ARGUMENT, rw_causal_conv1d(t, w->cube, w->matrix, NULL));
    TENSOR("rw_causal_conv1d", RW_ERR_SHAPE, rw_causal_conv1d(t, w->p, w->matrix, RW_NONE));
    TENSOR("rw_causal_conv1d", RW_ERR_SHAPE, rw_causal_conv1d(t, w->cube, w->matrix, RW_NONE));
    TENSOR("rw_causal_conv1d", RW_ERR_SHAPE, rw_causal_conv1d(t, w->cube, w->four, RW_NONE));
    TENSOR("rw_causal_conv1d", RW_ERR_DTYPE, rw_causal_conv1d(t, w->index, w->index, RW_NONE));
    TENSOR("rw_causal_conv1d", RW_ERR_DTYPE, rw_causal_conv1d(t, w->cube, w->half, RW_NONE));
    TENSOR("rw_causal_conv1d", RW_ERR_ARGUMENT, rw_causal_conv1d(t, w->alien, w->matrix, RW_NONE));
    TENSOR("rw_causal_conv1d", RW_ERR_ARGUMENT, rw_causal_conv1d(t, w->dead, w->matrix, RW_NONE));
    TENSOR_OF("rw_causal_conv1d", RW_ERR_SHAPE, taps = rw_zeros(t, RW_F32, RW_SHAPE(4, 2)),
              rw_causal_conv1d(t, w->cube, taps, w->vector));
    TENSOR_OF("rw_causal_conv1d", RW_ERR_SHAPE, none = rw_zeros(t, RW_F32, RW_SHAPE(4, 0)),
              rw_causal_conv1d(t, w->cube, none, RW_NONE));
    TENSOR_OF("rw_causal_conv1d", RW_ERR_SHAPE, many = rw_zeros(t, RW_F32, RW_SHAPE(4, RW_CAUSAL_CONV1D_MOST + 1)),
              rw_causal_conv1d(t, w->cube, many, RW_NONE));
}
