/* Invalid calls of rewind/recurrent.h: ops along a sequence. */
#include "api/mistakes/table.h"

#include <rewind/recurrent.h>

/* w->cube is [2, 3, 4] of float32, w->matrix [3, 5], w->four [4], w->p [2, 3]. */
static void convolutions(struct trial *m, struct world *w)
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
    TENSOR_OF("rw_causal_conv1d", RW_ERR_SHAPE, many = rw_zeros(t, RW_F32, RW_SHAPE(4, RW_CAUSAL_CONV1D_MAX + 1)),
              rw_causal_conv1d(t, w->cube, many, RW_NONE));
}

static rw_tensor *zeros(struct world *w, int64_t rows, int64_t columns)
{
    return rw_zeros(w->t, RW_F32, RW_SHAPE(rows, columns));
}

/* Weights of a cell of width 2 whose input has 3 features: 8 rows for an LSTM, 6 for a GRU. */
static rw_recurrent_weights weights(struct world *w, int64_t gates)
{
    return (rw_recurrent_weights){ zeros(w, gates, 3), zeros(w, gates, 2), RW_NONE, RW_NONE };
}

/* Recurrent cells and layers with invalid weights or states. */
static void cells(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_recurrent_weights good = { NULL }, bad = { NULL };
    rw_tensor *h = NULL, *c = NULL, *x = NULL;
    TENSOR("rw_lstm_cell", RW_ERR_ARGUMENT, rw_lstm_cell(t, w->x, w->four, w->four, NULL, &c));
    TENSOR("rw_lstm_cell", RW_ERR_ARGUMENT, rw_lstm_cell(t, w->x, w->four, w->four, &good, &c));
    TENSOR("rw_gru_cell", RW_ERR_ARGUMENT, rw_gru_cell(t, w->x, w->four, &good));
#define MADE(gates) (good = weights(w, gates), bad = good, h = c = zeros(w, 2, 2))
    TENSOR_OF("rw_lstm_cell", RW_ERR_ARGUMENT, MADE(8), rw_lstm_cell(t, NULL, h, c, &good, &c));
    TENSOR_OF("rw_lstm_cell", RW_ERR_ARGUMENT, MADE(8), rw_lstm_cell(t, w->x, RW_NONE, c, &good, &c));
    TENSOR_OF("rw_lstm_cell", RW_ERR_ARGUMENT, MADE(8), rw_lstm_cell(t, w->x, h, NULL, &good, NULL));
    TENSOR_OF("rw_lstm_cell", RW_ERR_SHAPE, MADE(8), rw_lstm_cell(t, w->x, w->y, c, &good, NULL));
    TENSOR_OF("rw_lstm_cell", RW_ERR_SHAPE, MADE(8), rw_lstm_cell(t, w->x, h, w->four, &good, NULL));
    TENSOR_OF("rw_lstm_cell", RW_ERR_SHAPE, MADE(8), rw_lstm_cell(t, w->four, h, c, &good, NULL));
    TENSOR_OF("rw_lstm_cell", RW_ERR_SHAPE, MADE(6), rw_lstm_cell(t, w->x, h, c, &good, NULL));
    TENSOR_OF("rw_lstm_cell", RW_ERR_DTYPE, MADE(8), rw_lstm_cell(t, w->half, h, c, &good, NULL));
    TENSOR_OF("rw_lstm_cell", RW_ERR_ARGUMENT, (MADE(8), bad.bias_hh = NULL), rw_lstm_cell(t, w->x, h, c, &bad, NULL));
    TENSOR_OF("rw_lstm_cell", RW_ERR_SHAPE, (MADE(8), bad.bias_ih = w->four), rw_lstm_cell(t, w->x, h, c, &bad, NULL));
    TENSOR_OF("rw_lstm_cell", RW_ERR_ARGUMENT, (MADE(8), bad.ih = RW_NONE), rw_lstm_cell(t, w->x, h, c, &bad, NULL));
    TENSOR_OF("rw_gru_cell", RW_ERR_SHAPE, MADE(8), rw_gru_cell(t, w->x, h, &good));
    TENSOR_OF("rw_gru_cell", RW_ERR_SHAPE, MADE(6), rw_gru_cell(t, w->x, w->y, &good));
    TENSOR_OF("rw_gru_cell", RW_ERR_ARGUMENT, MADE(6), rw_gru_cell(t, w->x, RW_NONE, &good));
    TENSOR_OF("rw_lstm", RW_ERR_SHAPE, MADE(8), rw_lstm(t, w->x, h, c, &good, &h, &c));
    TENSOR_OF("rw_lstm", RW_ERR_SHAPE, MADE(8), rw_lstm(t, w->cube, h, c, &good, NULL, NULL));
    TENSOR_OF("rw_lstm", RW_ERR_ARGUMENT, (MADE(8), x = rw_unsqueeze(t, w->x, 0)),
              rw_lstm(t, x, NULL, c, &good, NULL, NULL));
    TENSOR_OF("rw_lstm", RW_ERR_DTYPE, (MADE(8), x = rw_unsqueeze(t, w->half, 0)),
              rw_lstm(t, x, h, c, &good, NULL, NULL));
    TENSOR_OF("rw_lstm", RW_ERR_SHAPE, (MADE(8), x = rw_zeros(t, RW_F32, RW_SHAPE(0, 2, 3))),
              rw_lstm(t, x, h, RW_NONE, &good, NULL, NULL));
    TENSOR_OF("rw_gru", RW_ERR_SHAPE, (MADE(6), x = rw_unsqueeze(t, w->x, 0)), rw_gru(t, x, w->y, &good, NULL));
    TENSOR("rw_gru", RW_ERR_ARGUMENT, rw_gru(t, NULL, RW_NONE, NULL, NULL));
#undef MADE
}

/* w->heads is [1, 2, 3, 4]: two places of three heads, or groups; w->vector [3]. */
static void scans(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_ssd_operands o = { w->heads, NULL, w->vector, w->heads, w->heads, RW_NONE };
    rw_tensor *state = NULL;
    TENSOR("rw_ssd_scan", RW_ERR_ARGUMENT, rw_ssd_scan(t, NULL, 0, &state));
    TENSOR("rw_ssd_scan", RW_ERR_ARGUMENT, rw_ssd_scan(t, &o, 0, &state));
#define WITH(change) (o.dt = rw_zeros(t, RW_F32, RW_SHAPE(1, 2, 3)), change)
    TENSOR_OF("rw_ssd_scan", RW_ERR_ARGUMENT, WITH(o.x = RW_NONE), rw_ssd_scan(t, &o, 0, &state));
    TENSOR_OF("rw_ssd_scan", RW_ERR_ARGUMENT, WITH(o.state = NULL), rw_ssd_scan(t, &o, 0, &state));
    TENSOR_OF("rw_ssd_scan", RW_ERR_ARGUMENT, WITH(o.c = w->alien), rw_ssd_scan(t, &o, 0, NULL));
    TENSOR_OF("rw_ssd_scan", RW_ERR_ARGUMENT, WITH(state = NULL), rw_ssd_scan(t, &o, -1, NULL));
    TENSOR_OF("rw_ssd_scan", RW_ERR_DTYPE, WITH(o.a = w->index), rw_ssd_scan(t, &o, 0, NULL));
    TENSOR_OF("rw_ssd_scan", RW_ERR_DTYPE, WITH(o.state = w->half), rw_ssd_scan(t, &o, 0, NULL));
    TENSOR_OF("rw_ssd_scan", RW_ERR_SHAPE, WITH(o.x = w->cube), rw_ssd_scan(t, &o, 0, NULL));
    TENSOR_OF("rw_ssd_scan", RW_ERR_SHAPE, WITH(o.dt = w->cube), rw_ssd_scan(t, &o, 0, NULL));
    TENSOR_OF("rw_ssd_scan", RW_ERR_SHAPE, WITH(o.a = w->four), rw_ssd_scan(t, &o, 0, NULL));
    TENSOR_OF("rw_ssd_scan", RW_ERR_SHAPE, WITH(o.c = w->image), rw_ssd_scan(t, &o, 0, NULL));
    TENSOR_OF("rw_ssd_scan", RW_ERR_SHAPE, WITH(o.state = w->heads), rw_ssd_scan(t, &o, 0, NULL));
    TENSOR_OF("rw_ssd_scan", RW_ERR_SHAPE, WITH(o.b = o.c = rw_zeros(t, RW_F32, RW_SHAPE(1, 2, 2, 4))),
              rw_ssd_scan(t, &o, 0, NULL));
#undef WITH
}

void mistakes_with_sequences(struct trial *m, struct world *w)
{
    convolutions(m, w);
    cells(m, w);
    scans(m, w);
}
