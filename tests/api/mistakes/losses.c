/* rewind/ops.h: tables and losses. */
#include "api/mistakes/table.h"

#include <rewind/ops.h>

void mistakes_with_losses(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *many = NULL, *deep = NULL;
    const int32_t outside[] = { 0, 9 };
    TENSOR("rw_embedding", RW_ERR_ARGUMENT, rw_embedding(t, NULL, w->index));
    TENSOR("rw_embedding", RW_ERR_ARGUMENT, rw_embedding(t, w->table, NULL));
    TENSOR("rw_embedding", RW_ERR_ARGUMENT, rw_embedding(t, w->table, RW_NONE));
    TENSOR("rw_embedding", RW_ERR_SHAPE, rw_embedding(t, w->vector, w->index));
    TENSOR("rw_embedding", RW_ERR_DTYPE, rw_embedding(t, w->table, w->x));
    TENSOR("rw_embedding", RW_ERR_DTYPE, rw_embedding(t, w->index, w->index));
    TENSOR_OF("rw_embedding", RW_ERR_SHAPE,
              (many = rw_broadcast_to(t, rw_slice(t, w->index, 0, 0, 1), RW_SHAPE(HUGE_EXTENT)),
               deep = rw_broadcast_to(t, w->scalar, RW_SHAPE(7, HUGE_EXTENT))),
              rw_embedding(t, deep, many));
    TENSOR_OF("rw_embedding", RW_ERR_SHAPE, deep = rw_reshape(t, w->index, RW_SHAPE(1, 1, 1, 1, 1, 1, 1, 2)),
              rw_embedding(t, w->table, deep));
    STATUS_OF("rw_embedding", RW_ERR_ARGUMENT,
              many = rw_embedding(t, w->table, rw_input(t, RW_I32, RW_SHAPE(2), outside)),
              rw_read(t, many, w->out, 24) ? rw_error_status(w->ctx) : RW_OK);
    TENSOR("rw_cross_entropy", RW_ERR_ARGUMENT, rw_cross_entropy(t, NULL, w->index));
    TENSOR("rw_cross_entropy", RW_ERR_ARGUMENT, rw_cross_entropy(t, w->p, NULL));
    TENSOR("rw_cross_entropy", RW_ERR_SHAPE, rw_cross_entropy(t, w->turned, w->index));
    TENSOR("rw_cross_entropy", RW_ERR_DTYPE, rw_cross_entropy(t, w->p, w->four));
    TENSOR("rw_cross_entropy", RW_ERR_SHAPE, rw_cross_entropy(t, w->scalar, w->index));
    TENSOR("cross_entropy", RW_ERR_ARGUMENT, rw_cross_entropy_ignore(t, w->dead, w->index, 0));
    TENSOR("cross_entropy", RW_ERR_ARGUMENT, rw_cross_entropy_ignore(t, w->p, NULL, 0));
    TENSOR("rw_mse_loss", RW_ERR_ARGUMENT, rw_mse_loss(t, NULL, w->x));
    TENSOR("rw_mse_loss", RW_ERR_ARGUMENT, rw_mse_loss(t, w->x, NULL));
    TENSOR("rw_mse_loss", RW_ERR_ARGUMENT, rw_mse_loss(t, w->x, RW_NONE));
    TENSOR("rw_mse_loss", RW_ERR_SHAPE, rw_mse_loss(t, w->turned, w->four));
    TENSOR("rw_mse_loss", RW_ERR_DTYPE, rw_mse_loss(t, w->x, w->half));
    TENSOR("rw_mse_loss", RW_ERR_ARGUMENT, rw_mse_loss(t, w->dead, w->four));
}
