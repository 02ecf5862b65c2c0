/*
 * Shared by the checks and kernels of recurrent cells. C11 and C++17. The matrix products are linear layers before a
 * cell; a cell is the rest, computed element by element:
 *
 *     lstm_cell           (gates [n, 4 h], c) -> (h', c')                gates: i, f, g, o before their functions
 *     lstm_cell_backward  (gates, c, dh' and dc', or one) -> (dgates, dc)
 *     gru_cell            (x [n, 3 h], y [n, 3 h], h) -> h'              of the input and of h: r, z, n
 *     gru_cell_backward   (x, y, h, dh') -> (dx, dy, dh)
 *
 * Only operands are kept: backward recomputes the functions of the gates, which costs less than loading them.
 */
#ifndef RW_OPS_RECURRENT_CELLS_H
#define RW_OPS_RECURRENT_CELLS_H

#include <rewind/op.h>

/* For lstm_cell_backward: which gradients exist. */
struct rw_lstm_attrs {
    int64_t has_dh, has_dc;
};

extern const rw_op_def rw_op_lstm_cell, rw_op_gru_cell;

#define RW_LSTM_GATES 4
#define RW_GRU_GATES 3

/* Number of rows, and the width of a state. */
struct rw_cell {
    int64_t n, h;
};

static inline struct rw_cell rw_cell_of(const rw_layout *state)
{
    struct rw_cell c;
    c.n = state->dim[0], c.h = state->dim[1];
    return c;
}

#endif
