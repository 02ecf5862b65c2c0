/* Invalid calls of rewind/ops.h, losses.h and custom_grad.h: tables, losses, custom gradients. */
#include "api/mistakes/table.h"

#include <rewind/custom_grad.h>
#include <rewind/losses.h>
#include <rewind/ops.h>

#include <math.h>

/* Cross-entropies with invalid options. */
static void options(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *row = NULL;
#define WITH(...) &(rw_cross_entropy_params){ __VA_ARGS__ }
    TENSOR("cross_entropy_with", RW_ERR_ARGUMENT, rw_cross_entropy_with(t, NULL, w->index, RW_NONE, NULL));
    TENSOR("cross_entropy_with", RW_ERR_ARGUMENT, rw_cross_entropy_with(t, w->p, NULL, RW_NONE, NULL));
    TENSOR("cross_entropy_with", RW_ERR_ARGUMENT, rw_cross_entropy_with(t, w->p, w->index, NULL, NULL));
    TENSOR("cross_entropy_with", RW_ERR_ARGUMENT, rw_cross_entropy_with(t, w->p, w->index, w->dead, NULL));
    TENSOR("cross_entropy_with", RW_ERR_SHAPE, rw_cross_entropy_with(t, w->p, w->index, w->four, NULL));
    TENSOR("cross_entropy_with", RW_ERR_SHAPE, rw_cross_entropy_with(t, w->p, w->index, w->y, NULL));
    TENSOR("cross_entropy_with", RW_ERR_SHAPE, rw_cross_entropy_with(t, w->transposed, w->index, RW_NONE, NULL));
    TENSOR("cross_entropy_with", RW_ERR_SHAPE, rw_cross_entropy_with(t, w->p, w->four, RW_NONE, NULL));
    TENSOR("cross_entropy_with", RW_ERR_DTYPE, rw_cross_entropy_with(t, w->index, w->index, RW_NONE, NULL));
    TENSOR("cross_entropy_with", RW_ERR_ARGUMENT,
           rw_cross_entropy_with(t, w->p, w->index, RW_NONE, WITH(.label_smoothing = 1)));
    TENSOR("cross_entropy_with", RW_ERR_ARGUMENT,
           rw_cross_entropy_with(t, w->p, w->index, RW_NONE, WITH(.label_smoothing = NAN)));
    TENSOR("cross_entropy_with", RW_ERR_ARGUMENT,
           rw_cross_entropy_with(t, w->p, w->index, RW_NONE, WITH(.z_loss = -1)));
    TENSOR("cross_entropy_with", RW_ERR_ARGUMENT,
           rw_cross_entropy_with(t, w->p, w->index, RW_NONE, WITH(.z_loss = INFINITY)));
    TENSOR("cross_entropy_with", RW_ERR_ARGUMENT,
           rw_cross_entropy_with(t, w->p, w->index, RW_NONE, WITH(.reduction = (rw_reduction)3)));
    TENSOR("linear_cross_entropy", RW_ERR_ARGUMENT, rw_linear_cross_entropy(t, NULL, w->p, w->index, NULL));
    TENSOR("linear_cross_entropy", RW_ERR_ARGUMENT, rw_linear_cross_entropy(t, w->x, NULL, w->index, NULL));
    TENSOR("linear_cross_entropy", RW_ERR_ARGUMENT, rw_linear_cross_entropy(t, w->x, w->w, NULL, NULL));
    TENSOR("linear_cross_entropy", RW_ERR_ARGUMENT, rw_linear_cross_entropy(t, w->x, w->w, w->gone, NULL));
    TENSOR("linear_cross_entropy", RW_ERR_SHAPE, rw_linear_cross_entropy(t, w->transposed, w->w, w->index, NULL));
    TENSOR("linear_cross_entropy", RW_ERR_SHAPE, rw_linear_cross_entropy(t, w->x, w->vector, w->index, NULL));
    TENSOR("linear_cross_entropy", RW_ERR_SHAPE, rw_linear_cross_entropy(t, w->x, w->empty, w->index, NULL));
    TENSOR("linear_cross_entropy", RW_ERR_DTYPE, rw_linear_cross_entropy(t, w->x, w->half, w->index, NULL));
    TENSOR_OF("linear_cross_entropy", RW_ERR_DTYPE, row = rw_slice(t, rw_reshape(t, w->x, RW_SHAPE(6)), 0, 0, 2),
              rw_linear_cross_entropy(t, w->x, w->w, row, NULL));
    TENSOR("linear_cross_entropy", RW_ERR_ARGUMENT,
           rw_linear_cross_entropy(t, w->x, w->w, w->index, WITH(.chunk = -1)));
    TENSOR("linear_cross_entropy", RW_ERR_ARGUMENT,
           rw_linear_cross_entropy(t, w->x, w->w, w->index, WITH(.label_smoothing = -0.1)));
    TENSOR("nll_loss", RW_ERR_ARGUMENT, rw_nll_loss(t, NULL, w->index, RW_NONE, NULL));
    TENSOR("nll_loss", RW_ERR_ARGUMENT, rw_nll_loss(t, w->x, w->index, w->dead, NULL));
    TENSOR("nll_loss", RW_ERR_SHAPE, rw_nll_loss(t, w->scalar, w->index, RW_NONE, NULL));
    TENSOR("nll_loss", RW_ERR_SHAPE, rw_nll_loss(t, w->transposed, w->index, RW_NONE, NULL));
    TENSOR("nll_loss", RW_ERR_SHAPE, rw_nll_loss(t, w->x, w->index, w->four, NULL));
    TENSOR_OF("nll_loss", RW_ERR_DTYPE, row = rw_slice(t, w->four, 0, 0, 2), rw_nll_loss(t, w->x, row, RW_NONE, NULL));
    TENSOR("nll_loss", RW_ERR_ARGUMENT, rw_nll_loss(t, w->x, w->index, RW_NONE, WITH(.label_smoothing = 0.1)));
    TENSOR("nll_loss", RW_ERR_ARGUMENT, rw_nll_loss(t, w->x, w->index, RW_NONE, WITH(.reduction = (rw_reduction)-1)));
#undef WITH
}

/* Element-wise losses with invalid operands. */
static void elements(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    const rw_reduction mean = RW_REDUCTION_MEAN, none = (rw_reduction)7;
    TENSOR("bce_with_logits", RW_ERR_ARGUMENT, rw_bce_with_logits(t, NULL, w->x, RW_NONE, RW_NONE, mean));
    TENSOR("bce_with_logits", RW_ERR_ARGUMENT, rw_bce_with_logits(t, w->x, NULL, RW_NONE, RW_NONE, mean));
    TENSOR("bce_with_logits", RW_ERR_ARGUMENT, rw_bce_with_logits(t, w->x, w->y, NULL, RW_NONE, mean));
    TENSOR("bce_with_logits", RW_ERR_ARGUMENT, rw_bce_with_logits(t, w->x, w->y, RW_NONE, w->foreign, mean));
    TENSOR("bce_with_logits", RW_ERR_SHAPE, rw_bce_with_logits(t, w->x, w->four, RW_NONE, RW_NONE, mean));
    TENSOR("bce_with_logits", RW_ERR_SHAPE, rw_bce_with_logits(t, w->x, w->y, w->four, RW_NONE, mean));
    TENSOR("bce_with_logits", RW_ERR_DTYPE, rw_bce_with_logits(t, w->x, w->y, RW_NONE, w->wide, mean));
    TENSOR("bce_with_logits", RW_ERR_DTYPE, rw_bce_with_logits(t, w->index, w->index, RW_NONE, RW_NONE, mean));
    TENSOR("bce_with_logits", RW_ERR_ARGUMENT, rw_bce_with_logits(t, w->x, w->y, RW_NONE, RW_NONE, none));
    TENSOR("huber_loss", RW_ERR_ARGUMENT, rw_huber_loss(t, NULL, w->x, 1, mean));
    TENSOR("huber_loss", RW_ERR_ARGUMENT, rw_huber_loss(t, w->x, w->gone, 1, mean));
    TENSOR("huber_loss", RW_ERR_ARGUMENT, rw_huber_loss(t, w->x, w->y, 0, mean));
    TENSOR("huber_loss", RW_ERR_ARGUMENT, rw_huber_loss(t, w->x, w->y, 1e-300, mean));
    TENSOR("huber_loss", RW_ERR_ARGUMENT, rw_huber_loss(t, w->x, w->y, NAN, mean));
    TENSOR("huber_loss", RW_ERR_SHAPE, rw_huber_loss(t, w->x, w->four, 1, mean));
    TENSOR("huber_loss", RW_ERR_DTYPE, rw_huber_loss(t, w->x, w->half, 1, mean));
    TENSOR("huber_loss", RW_ERR_ARGUMENT, rw_huber_loss(t, w->x, w->y, 1, none));
    TENSOR("smooth_l1_loss", RW_ERR_ARGUMENT, rw_smooth_l1_loss(t, w->x, NULL, 1, mean));
    TENSOR("smooth_l1_loss", RW_ERR_ARGUMENT, rw_smooth_l1_loss(t, w->x, w->y, -1, mean));
    TENSOR("smooth_l1_loss", RW_ERR_ARGUMENT, rw_smooth_l1_loss(t, w->x, w->y, 1e-300, mean));
    TENSOR("smooth_l1_loss", RW_ERR_SHAPE, rw_smooth_l1_loss(t, w->x, w->four, 0, mean));
    TENSOR("kl_div", RW_ERR_ARGUMENT, rw_kl_div(t, w->x, NULL, false, mean));
    TENSOR("kl_div", RW_ERR_ARGUMENT, rw_kl_div(t, w->x, w->y, true, none));
    TENSOR("kl_div", RW_ERR_SHAPE, rw_kl_div(t, w->x, w->four, true, mean));
    TENSOR("kl_div", RW_ERR_DTYPE, rw_kl_div(t, w->x, w->wide, false, mean));
}

static rw_status none(rw_grad_call *g, const void *data)
{
    (void)g, (void)data;
    return RW_OK;
}

/* Custom gradients with invalid operands or rules. */
static void own_gradients(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    TENSOR("rw_detach", RW_ERR_ARGUMENT, rw_detach(t, NULL));
    TENSOR("rw_detach", RW_ERR_ARGUMENT, rw_detach(t, RW_NONE));
    TENSOR("rw_detach", RW_ERR_ARGUMENT, rw_detach(t, w->foreign));
    TENSOR("rw_straight_through", RW_ERR_ARGUMENT, rw_straight_through(t, NULL, w->x));
    TENSOR("rw_straight_through", RW_ERR_ARGUMENT, rw_straight_through(t, w->x, NULL));
    TENSOR("rw_straight_through", RW_ERR_SHAPE, rw_straight_through(t, w->x, w->transposed));
    TENSOR("rw_straight_through", RW_ERR_DTYPE, rw_straight_through(t, w->x, w->wide));
    TENSOR("rw_straight_through", RW_ERR_DTYPE, rw_straight_through(t, w->index, w->index));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(t, NULL, &w->x, 1, none, NULL, 0));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(t, w->x, NULL, 1, none, NULL, 0));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(NULL, w->x, &w->y, 1, none, NULL, 0));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(t, w->x, &w->alien, 1, none, NULL, 0));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(t, w->x, &w->y, 0, none, NULL, 0));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(t, w->x, &w->y, -1, none, NULL, 0));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(t, w->x, &w->y, 1 << 20, none, NULL, 0));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(t, w->x, &w->y, 1, NULL, NULL, 0));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(t, w->x, &w->y, 1, none, NULL, 8));
    TENSOR("rw_custom_grad", RW_ERR_ARGUMENT, rw_custom_grad(t, w->x, &w->y, 1, none, w->out, 4097));
    TENSOR("rw_custom_grad", RW_ERR_DTYPE, rw_custom_grad(t, w->index, &w->y, 1, none, NULL, 0));
}

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
              many = rw_embedding(t, w->table, rw_input(t, RW_I32, RW_SHAPE(2), outside, sizeof outside)),
              rw_read(t, many, w->out, 24) ? rw_error_status(w->ctx) : RW_OK);
    TENSOR("rw_cross_entropy", RW_ERR_ARGUMENT, rw_cross_entropy(t, NULL, w->index));
    TENSOR("rw_cross_entropy", RW_ERR_ARGUMENT, rw_cross_entropy(t, w->p, NULL));
    TENSOR("rw_cross_entropy", RW_ERR_SHAPE, rw_cross_entropy(t, w->transposed, w->index));
    TENSOR("rw_cross_entropy", RW_ERR_DTYPE, rw_cross_entropy(t, w->p, w->four));
    TENSOR("rw_cross_entropy", RW_ERR_SHAPE, rw_cross_entropy(t, w->scalar, w->index));
    TENSOR("cross_entropy", RW_ERR_ARGUMENT, rw_cross_entropy(t, w->dead, w->index));
    TENSOR("cross_entropy", RW_ERR_ARGUMENT, rw_cross_entropy(t, w->p, NULL));
    TENSOR("rw_mse_loss", RW_ERR_ARGUMENT, rw_mse_loss(t, NULL, w->x));
    TENSOR("rw_mse_loss", RW_ERR_ARGUMENT, rw_mse_loss(t, w->x, NULL));
    TENSOR("rw_mse_loss", RW_ERR_ARGUMENT, rw_mse_loss(t, w->x, RW_NONE));
    TENSOR("rw_mse_loss", RW_ERR_SHAPE, rw_mse_loss(t, w->transposed, w->four));
    TENSOR("rw_mse_loss", RW_ERR_DTYPE, rw_mse_loss(t, w->x, w->half));
    TENSOR("rw_mse_loss", RW_ERR_ARGUMENT, rw_mse_loss(t, w->dead, w->four));
    options(m, w);
    elements(m, w);
    own_gradients(m, w);
}
