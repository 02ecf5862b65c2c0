/* CPU kernels of recurrent cells (cells.h): the rows are distributed over threads. */
#include "ops/recurrent/cells.h"

#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/partial_vectors.h"

/* Below this number of elements of a state, with five functions each, threads cost more than they save. */
#define PARALLEL_FROM 4096

enum cell_kind { LSTM, LSTM_BACKWARD, GRU, GRU_BACKWARD };

struct cell {
    const void *in[3], *dh, *dc;
    void *out[3];
    int64_t width;
};

#define f_exp nf_exp
#define f_tanh nf_tanh
#define d_exp nd_exp
#define d_tanh nd_tanh
#define V nf
#define N NF_LANES
#define F(name) f_##name
#include "ops/recurrent/cells_tmpl.h"
#undef V
#undef N
#undef F
#define V nd
#define N ND_LANES
#define F(name) d_##name
#include "ops/recurrent/cells_tmpl.h"

/* A row of one kind, by type. */
#define ROWS(name, KIND)                                                              \
    static void name(const struct cell *c, rw_dtype dtype, int64_t row)               \
    {                                                                                 \
        switch (dtype) {                                                              \
        case RW_F32: f_row(c, KIND, RW_F32, row); return;                             \
        case RW_BF16: f_row(c, KIND, RW_BF16, row); return;                           \
        case RW_F16: f_row(c, KIND, RW_F16, row); return;                             \
        default: d_row(c, KIND, RW_F64, row); return;                                 \
        }                                                                             \
    }
ROWS(lstm_row, LSTM)
ROWS(lstm_backward_row, LSTM_BACKWARD)
ROWS(gru_row, GRU)
ROWS(gru_backward_row, GRU_BACKWARD)

struct rows {
    struct cell cell;
    rw_dtype dtype;
    void (*row_of)(const struct cell *, rw_dtype, int64_t);
};

static void rows_of(void *of, int64_t first, int64_t end)
{
    const struct rows *const r = of;
    for (int64_t row = first; row < end; row++) r->row_of(&r->cell, r->dtype, row);
}

static rw_status run(const rw_kernel *k, int state, void (*row_of)(const struct cell *, rw_dtype, int64_t),
                     const void *dh, const void *dc)
{
    const struct rw_cell size = rw_cell_of(k->in[state].layout);
    struct rows r = { { .dh = dh, .dc = dc, .width = size.h }, k->out[0].dtype, row_of };
    for (int i = 0; i <= state; i++) r.cell.in[i] = k->in[i].data;
    for (int i = 0; i < k->n_outputs; i++) r.cell.out[i] = k->out[i].data;
    rw_team_for(size.n * size.h >= PARALLEL_FROM ? k->threads : 1, size.n, rows_of, &r);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_lstm_cell_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_lstm_cell_cpu)(const rw_kernel *k)
{
    return run(k, 1, lstm_row, NULL, NULL);
}

rw_status RW_ISA_NAME(rw_lstm_cell_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_lstm_cell_backward_cpu)(const rw_kernel *k)
{
    const struct rw_lstm_attrs *const a = k->attrs;
    return run(k, 1, lstm_backward_row, a->has_dh ? k->in[2].data : NULL,
               a->has_dc ? k->in[a->has_dh ? 3 : 2].data : NULL);
}

rw_status RW_ISA_NAME(rw_gru_cell_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_gru_cell_cpu)(const rw_kernel *k)
{
    return run(k, 2, gru_row, NULL, NULL);
}

rw_status RW_ISA_NAME(rw_gru_cell_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_gru_cell_backward_cpu)(const rw_kernel *k)
{
    return run(k, 2, gru_backward_row, k->in[3].data, NULL);
}
