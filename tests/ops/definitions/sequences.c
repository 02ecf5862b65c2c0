/* Definitions of attention, rotary embeddings, recurrent cells and scans (rewind/ops.h, attention.h and
   recurrent.h). */
#include "support/definition_runner.h"

#include <math.h>
#include <stdlib.h>

/* ---- attention ---- */

enum {
    AT_KIND,
    AT_CAUSAL,
    AT_SCALE,
    AT_WINDOW,
    AT_CAP,
    AT_SLOPES,
    AT_MASK,
    AT_SINKS,
    AT_DOCUMENTS,
    AT_GROUPS,
    AT_SIZE,
    AT_Q,
    AT_K,
    AT_V
};
enum { Q, K, V, SLOPES, MASK, SINKS, DOCUMENTS };
enum { NO_MASK, ADDED, ADDED_ROWS, ADDED_KEYS, EXCLUDING, TRUTH, TRUTH_ROWS, TRUTH_KEYS, MASKS };

static double excluding(const struct def_trial *c, int64_t i)
{
    (void)c;
    return i % 3 == 1 ? -(double)INFINITY : (double)(i % 7) / 4;
}

static double slope(const struct def_trial *c, int64_t i)
{
    (void)c;
    return 1. / (double)(1 << (i + 1));
}

/* Bounds for two images: the first entry leaves padding before it, the last after it. */
static double bound(const struct def_trial *c, int64_t i)
{
    static const double bounds[][4] = { { 0, 2, 2, 5 }, { 1, 2, 4, 4 } };
    return bounds[(c->v[AT_DOCUMENTS] == 1 || c->v[AT_DOCUMENTS] == 3) ? 0 : i / 4][i % 4];
}

/* Operands of attention with the trial's options; false where they exclude each other. */
static bool attention_make(struct def_trial *c)
{
    static const int64_t sizes[][2] = { { 5, 5 }, { 3, 5 }, { 1, 4 }, { 5, 3 } };
    static const int64_t kv_heads[] = { 4, 2, 1 };
    const int64_t seq = sizes[c->v[AT_SIZE]][0], keys = sizes[c->v[AT_SIZE]][1], kv = kv_heads[c->v[AT_GROUPS]];
    const rw_shape masks[] = { RW_SHAPE(2, 4, seq, keys), RW_SHAPE(2, 4, seq, keys), RW_SHAPE(1, 4, seq, 1),
                               RW_SHAPE(2, 1, 1, keys),   RW_SHAPE(2, 1, seq, keys), RW_SHAPE(2, 4, seq, keys),
                               RW_SHAPE(1, 1, seq, 1),    RW_SHAPE(2, 1, 1, keys) };
    const bool plain = c->v[AT_KIND] == 0;
    if (plain &&
        (c->v[AT_WINDOW] || c->v[AT_CAP] || c->v[AT_SLOPES] || c->v[AT_MASK] || c->v[AT_SINKS] || c->v[AT_DOCUMENTS]))
        return false;
    if (c->v[AT_DOCUMENTS] && seq != 5) return false;
    if (c->v[AT_DOCUMENTS] && keys != 5) return false;
    def_operand(c, Q, RW_SHAPE(2, 4, seq, 4), DEF_UNIT, c->v[AT_Q]);
    def_operand(c, K, RW_SHAPE(2, kv, keys, 4), DEF_UNIT, c->v[AT_K]);
    def_operand(c, V, RW_SHAPE(2, kv, keys, 3), DEF_UNIT, c->v[AT_V]);
    struct def_operand *const slopes = def_operand(c, SLOPES, RW_SHAPE(4), DEF_UNIT, DEF_DENSE);
    slopes->is_absent = !c->v[AT_SLOPES];
    slopes->is_frozen = slopes->is_wide = true;
    slopes->value = slope;
    struct def_operand *const mask = def_operand(c, MASK, masks[c->v[AT_MASK]],
                                                 c->v[AT_MASK] >= TRUTH ? DEF_TRUTH : DEF_UNIT, DEF_DENSE);
    mask->is_absent = !c->v[AT_MASK];
    if (c->v[AT_MASK] == EXCLUDING) mask->value = excluding, mask->is_frozen = true;
    def_operand(c, SINKS, RW_SHAPE(4), DEF_UNIT, DEF_DENSE)->is_absent = !c->v[AT_SINKS];
    /* One set for both, or one each; dense, or with strides */
    struct def_operand *const documents = def_operand(
        c, DOCUMENTS, c->v[AT_DOCUMENTS] == 1 || c->v[AT_DOCUMENTS] == 3 ? RW_SHAPE(4) : RW_SHAPE(2, 4), DEF_INDEX,
        c->v[AT_DOCUMENTS] == 5  ? DEF_SLICED
        : c->v[AT_DOCUMENTS] > 2 ? DEF_TRANSPOSED
                                 : DEF_DENSE);
    documents->is_absent = !c->v[AT_DOCUMENTS];
    documents->value = bound;
    documents->is_exact = true;
    c->out[0] = RW_SHAPE(2, 4, seq, 3);
    c->out[1] = RW_SHAPE(2, 4, seq);
    c->n_out = c->v[AT_KIND] == 2 ? 2 : 1;
    return true;
}

/* Records attention by the function of the trial's kind, with its options. */
static bool attention_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    static const int64_t windows[] = { 0, 1, 2 };
    const double scale = c->v[AT_SCALE] ? 1.5 : 0;
    const rw_attention_params params = { .causal = c->v[AT_CAUSAL], .scale = scale };
    const rw_attention_params options = { .causal = c->v[AT_CAUSAL],
                                          .scale = scale,
                                          .window = windows[c->v[AT_WINDOW]],
                                          .soft_cap = c->v[AT_CAP] ? 0.75 : 0,
                                          .slopes = x[SLOPES],
                                          .mask = x[MASK],
                                          .sinks = x[SINKS],
                                          .documents = x[DOCUMENTS] };
    y[0] = c->v[AT_KIND] == 2 ? rw_attention_lse(t, x[Q], x[K], x[V], &options, &y[1])
                              : rw_attention(t, x[Q], x[K], x[V], c->v[AT_KIND] == 0 ? &params : &options);
    return y[0];
}

/* The document of a position; -1: padding. */
static int document_of(const real *bounds, int64_t position)
{
    for (int d = 0; d < 3; d++)
        if (position >= (int64_t)bounds[d] && position < (int64_t)bounds[d + 1]) return d;
    return -1;
}

static bool is_seen(const struct def_trial *c, real *const *x, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t seq = c->in[Q].shape.dim[2], keys = c->in[K].shape.dim[2], position = i + keys - seq;
    const int64_t windows[] = { 0, 1, 2 }, window = windows[c->v[AT_WINDOW]], at[] = { b, h, i, j };
    if (c->v[AT_CAUSAL] && j > position) return false;
    if (window && (position - j >= window || j - position >= window)) return false;
    if (x[MASK] && c->v[AT_MASK] >= TRUTH && x[MASK][def_at(c->in[MASK].shape, at, 4)] == 0) return false;
    if (!x[DOCUMENTS]) return true;
    const real *const bounds = x[DOCUMENTS] + (c->in[DOCUMENTS].shape.rank == 2 ? b * 4 : 0);
    return document_of(bounds, i) >= 0 && document_of(bounds, i) == document_of(bounds, j);
}

static real score(const struct def_trial *c, real *const *x, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t seq = c->in[Q].shape.dim[2], kv = c->in[K].shape.dim[1], keys = c->in[K].shape.dim[2];
    const int64_t at[] = { b, h, i, j }, group = h / (4 / kv);
    real s = 0;
    for (int64_t d = 0; d < 4; d++)
        s += x[Q][((b * 4 + h) * seq + i) * 4 + d] * x[K][((b * kv + group) * keys + j) * 4 + d];
    s *= c->v[AT_SCALE] ? 1.5L : 0.5L;
    if (c->v[AT_CAP]) s = 0.75L * tanhl(s / 0.75L);
    if (x[SLOPES]) s -= x[SLOPES][h] * (real)llabs(i + keys - seq - j);
    if (x[MASK] && c->v[AT_MASK] < TRUTH) s += x[MASK][def_at(c->in[MASK].shape, at, 4)];
    return s;
}

/* Each query's softmax over the keys that it may see, then the weighted sum of values. */
static void attention_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t seq = c->in[Q].shape.dim[2], kv = c->in[K].shape.dim[1], keys = c->in[K].shape.dim[2];
    for (int64_t row = 0; row < 8 * seq; row++) {
        const int64_t b = row / seq / 4, h = row / seq % 4, i = row % seq;
        real sum = x[SINKS] ? expl(x[SINKS][h]) : 0, value[3] = { 0 };
        bool sees = x[SINKS];
        for (int64_t j = 0; j < keys; j++) {
            if (!is_seen(c, x, b, h, i, j)) continue;
            const real p = expl(score(c, x, b, h, i, j));
            sees = true;
            sum += p;
            for (int d = 0; d < 3; d++) value[d] += p * x[V][((b * kv + h / (4 / kv)) * keys + j) * 3 + d];
        }
        for (int d = 0; d < 3; d++) y[0][row * 3 + d] = sum > 0 ? value[d] / sum : 0;
        if (c->n_out > 1) y[1][row] = sees ? logl(sum) : -INFINITY;
    }
}

/* ---- merging ---- */

static bool merge_make(struct def_trial *c)
{
    rw_shape s = def_shape(c->v[0] + 1), rows = def_without(s, s.rank - 1, false);
    for (int i = 0; i < 4; i += 2) {
        def_operand(c, i, s, DEF_SIGNED, c->v[1 + i / 2]);
        def_operand(c, i + 1, rows, DEF_SIGNED, rows.rank ? c->v[3 + i / 2] : DEF_DENSE)->is_wide = true;
    }
    c->out[0] = s;
    c->out[1] = rows;
    c->n_out = 1 + c->v[5];
    return true;
}

static bool merge_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_attention_merge(t, x[0], x[1], x[2], x[3], c->v[5] ? &y[1] : NULL));
}

static void merge_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t n = c->out[0].dim[c->out[0].rank - 1];
    for (int64_t row = 0; row < c->in[1].numel; row++) {
        const real both = logl(expl(x[1][row]) + expl(x[3][row]));
        for (int64_t k = row * n; k < row * n + n; k++)
            y[0][k] = x[0][k] * expl(x[1][row] - both) + x[2][k] * expl(x[3][row] - both);
        if (c->v[5]) y[1][row] = both;
    }
}

/* ---- rotary embeddings ---- */

enum { RP_KIND, RP_WIDTH, RP_POSITIONS, RP_FREQUENCIES, RP_SCALE, RP_LAYOUT, RP_POSITIONS_LAYOUT };

static double frequency(const struct def_trial *c, int64_t i)
{
    (void)c;
    return 1.25 / (double)(1 << i);
}

/* Operands of rotary positions; false where an option does not apply. */
static bool rope_make(struct def_trial *c)
{
    static const int64_t widths[] = { 2, 4, 10 };
    const rw_shape s = RW_SHAPE(2, 3, 4, widths[c->v[RP_WIDTH]]);
    if (c->v[RP_KIND] < 2 && (c->v[RP_FREQUENCIES] || c->v[RP_SCALE])) return false;
    if (!c->v[RP_POSITIONS] && c->v[RP_POSITIONS_LAYOUT]) return false;
    def_operand(c, 0, s, DEF_SIGNED, c->v[RP_LAYOUT]);
    struct def_operand *const positions = def_operand(c, 1, RW_SHAPE(4), DEF_INDEX, c->v[RP_POSITIONS_LAYOUT]);
    positions->limit = 20;
    positions->is_absent = !c->v[RP_POSITIONS];
    struct def_operand *const frequencies = def_operand(c, 2, RW_SHAPE(s.dim[3] / 2), DEF_UNIT, DEF_DENSE);
    frequencies->value = frequency;
    frequencies->is_absent = !c->v[RP_FREQUENCIES];
    frequencies->is_frozen = frequencies->is_wide = true;
    c->out[0] = s;
    return true;
}

static bool rope_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    static const rw_rope_params pairs = { .base = 100, .interleaved = true };
    const rw_rope_params params = {
        .base = 100, .interleaved = c->v[RP_KIND] == 3, .frequencies = x[2], .scale = c->v[RP_SCALE] ? 1.25 : 0
    };
    y[0] = c->v[RP_KIND] == 0   ? rw_rope(t, x[0], x[1], 100)
                                : rw_rope_with(t, x[0], x[1], c->v[RP_KIND] == 1 ? &pairs : &params);
    return y[0];
}

static void rope_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t d = c->out[0].dim[3];
    const bool interleaved = c->v[RP_KIND] == 1 || c->v[RP_KIND] == 3;
    const real scale = c->v[RP_SCALE] ? 1.25L : 1;
    for (int64_t row = 0; row < 24; row++)
        for (int64_t i = 0; i < d / 2; i++) {
            const real position = x[1] ? x[1][row % 4] : (real)(row % 4);
            const real angle = position * (x[2] ? x[2][i] : powl(100, -2 * (real)i / d));
            const int64_t a = row * d + (interleaved ? 2 * i : i), b = interleaved ? a + 1 : a + d / 2;
            y[0][a] = scale * (x[0][a] * cosl(angle) - x[0][b] * sinl(angle));
            y[0][b] = scale * (x[0][a] * sinl(angle) + x[0][b] * cosl(angle));
        }
}

/* ---- recurrent cells and layers ---- */

enum { RC_KIND, RC_STATE, RC_BIAS_IH, RC_BIAS_HH, RC_LAYOUT, RC_WEIGHT_LAYOUT, RC_FINAL };
enum { LSTM_CELL, GRU_CELL, LSTM, GRU };
enum { IN, H, C, IH, HH, BIAS_IH, BIAS_HH };
enum { ROWS = 2, WIDTH = 3, INPUT = 4, LENGTH = 3 };

/* Operands of a recurrent cell or layer; false where an option does not apply. */
static bool recurrent_make(struct def_trial *c)
{
    const bool is_cell = c->v[RC_KIND] <= GRU_CELL, is_lstm = c->v[RC_KIND] == LSTM_CELL || c->v[RC_KIND] == LSTM;
    const int64_t gates = is_lstm ? 4 : 3;
    if (is_cell && !c->v[RC_STATE]) return false;
    if (c->v[RC_KIND] == GRU_CELL && c->v[RC_FINAL]) return false;
    def_operand(c, IN, is_cell ? RW_SHAPE(ROWS, INPUT) : RW_SHAPE(LENGTH, ROWS, INPUT), DEF_UNIT, c->v[RC_LAYOUT]);
    def_operand(c, H, RW_SHAPE(ROWS, WIDTH), DEF_UNIT, DEF_DENSE)->is_absent = !c->v[RC_STATE];
    def_operand(c, C, RW_SHAPE(ROWS, WIDTH), DEF_UNIT, DEF_DENSE)->is_absent = !c->v[RC_STATE] || !is_lstm;
    def_operand(c, IH, RW_SHAPE(gates * WIDTH, INPUT), DEF_UNIT, c->v[RC_WEIGHT_LAYOUT]);
    def_operand(c, HH, RW_SHAPE(gates * WIDTH, WIDTH), DEF_UNIT, DEF_DENSE);
    def_operand(c, BIAS_IH, RW_SHAPE(gates * WIDTH), DEF_UNIT, DEF_DENSE)->is_absent = !c->v[RC_BIAS_IH];
    def_operand(c, BIAS_HH, RW_SHAPE(gates * WIDTH), DEF_UNIT, DEF_DENSE)->is_absent = !c->v[RC_BIAS_HH];
    c->out[0] = is_cell ? RW_SHAPE(ROWS, WIDTH) : RW_SHAPE(LENGTH, ROWS, WIDTH);
    c->out[1] = c->out[2] = RW_SHAPE(ROWS, WIDTH);
    c->n_out = !c->v[RC_FINAL] ? 1 : c->v[RC_KIND] == LSTM ? 3 : 2;
    return true;
}

static bool recurrent_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const rw_recurrent_weights w = { x[IH], x[HH], x[BIAS_IH], x[BIAS_HH] };
    const bool final = c->v[RC_FINAL];
    switch (c->v[RC_KIND]) {
    case LSTM_CELL: y[0] = rw_lstm_cell(t, x[IN], x[H], x[C], &w, final ? &y[1] : NULL); break;
    case GRU_CELL: y[0] = rw_gru_cell(t, x[IN], x[H], &w); break;
    case LSTM: y[0] = rw_lstm(t, x[IN], x[H], x[C], &w, final ? &y[1] : NULL, final ? &y[2] : NULL); break;
    default: y[0] = rw_gru(t, x[IN], x[H], &w, final ? &y[1] : NULL); break;
    }
    return y[0];
}

static real sigmoid(real x)
{
    return 1 / (1 + expl(-x));
}

/* One step of one row. */
static void recurrent_step(const struct def_trial *c, real *const *x, const real *in, real *h, real *cell)
{
    const bool is_lstm = c->v[RC_KIND] == LSTM_CELL || c->v[RC_KIND] == LSTM;
    real a[4 * WIDTH], b[4 * WIDTH];
    for (int g = 0; g < (is_lstm ? 4 : 3) * WIDTH; g++) {
        a[g] = x[BIAS_IH] ? x[BIAS_IH][g] : 0;
        b[g] = x[BIAS_HH] ? x[BIAS_HH][g] : 0;
        for (int k = 0; k < INPUT; k++) a[g] += in[k] * x[IH][g * INPUT + k];
        for (int k = 0; k < WIDTH; k++) b[g] += h[k] * x[HH][g * WIDTH + k];
    }
    for (int k = 0; k < WIDTH; k++) {
        const int f = WIDTH + k, g = 2 * WIDTH + k, o = 3 * WIDTH + k;
        if (is_lstm) {
            cell[k] = sigmoid(a[f] + b[f]) * cell[k] + sigmoid(a[k] + b[k]) * tanhl(a[g] + b[g]);
            h[k] = sigmoid(a[o] + b[o]) * tanhl(cell[k]);
        } else {
            const real n = tanhl(a[g] + sigmoid(a[k] + b[k]) * b[g]);
            h[k] = n + sigmoid(a[f] + b[f]) * (h[k] - n);
        }
    }
}

/* Runs the cell step by step. */
static void recurrent_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const bool is_cell = c->v[RC_KIND] <= GRU_CELL;
    for (int row = 0; row < ROWS; row++) {
        real h[WIDTH] = { 0 }, cell[WIDTH] = { 0 };
        for (int k = 0; k < WIDTH; k++) {
            if (x[H]) h[k] = x[H][row * WIDTH + k];
            if (x[C]) cell[k] = x[C][row * WIDTH + k];
        }
        for (int t = 0; t < (is_cell ? 1 : LENGTH); t++) {
            recurrent_step(c, x, x[IN] + (t * ROWS + row) * INPUT, h, cell);
            for (int k = 0; k < WIDTH; k++) y[0][(t * ROWS + row) * WIDTH + k] = h[k];
        }
        for (int k = 0; k < WIDTH && c->n_out > 1; k++) y[1][row * WIDTH + k] = is_cell ? cell[k] : h[k];
        for (int k = 0; k < WIDTH && c->n_out > 2; k++) y[2][row * WIDTH + k] = cell[k];
    }
}

/* ---- causal convolution ---- */

static bool filter_make(struct def_trial *c)
{
    const rw_shape s = RW_SHAPE(2, c->v[0] ? 6 : 1, 3);
    def_operand(c, 0, s, DEF_SIGNED, c->v[1]);
    def_operand(c, 1, RW_SHAPE(3, c->v[2] + 1), DEF_SIGNED, c->v[3]);
    def_operand(c, 2, RW_SHAPE(3), DEF_SIGNED, DEF_DENSE)->is_absent = !c->v[4];
    if (c->v[5]) c->in[c->v[5] - 1].is_frozen = true;
    c->out[0] = s;
    return true;
}

static bool filter_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    (void)c;
    return (y[0] = rw_causal_conv1d(t, x[0], x[1], x[2]));
}

static void filter_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t length = c->out[0].dim[1], n = c->in[1].shape.dim[1];
    for (int64_t i = 0; i < 2 * length * 3; i++) {
        const int64_t channel = i % 3, position = i / 3 % length;
        y[0][i] = x[2] ? x[2][channel] : 0;
        for (int64_t k = 0; k < n; k++) {
            const int64_t back = n - 1 - k;
            if (position >= back) y[0][i] += x[1][channel * n + k] * x[0][i - 3 * back];
        }
    }
}

/* ---- scan ---- */

enum { SC_LENGTH, SC_GROUPS, SC_STATE, SC_CHUNK, SC_FINAL, SC_X, SC_B };

static double negative(const struct def_trial *c, int64_t i)
{
    (void)c;
    return -(double)(i + 1) / 4;
}

static double step_size(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)(i % 5 + 1) / 8;
}

static bool scan_make(struct def_trial *c)
{
    static const int64_t lengths[] = { 1, 4, 7 }, groups[] = { 1, 2, 4 };
    const int64_t length = lengths[c->v[SC_LENGTH]], g = groups[c->v[SC_GROUPS]];
    def_operand(c, 0, RW_SHAPE(2, length, 4, 2), DEF_UNIT, c->v[SC_X]);
    def_operand(c, 1, RW_SHAPE(2, length, 4), DEF_UNIT, DEF_DENSE)->value = step_size;
    def_operand(c, 2, RW_SHAPE(4), DEF_UNIT, DEF_DENSE)->value = negative;
    def_operand(c, 3, RW_SHAPE(2, length, g, 3), DEF_UNIT, c->v[SC_B]);
    def_operand(c, 4, RW_SHAPE(2, length, g, 3), DEF_UNIT, DEF_DENSE);
    def_operand(c, 5, RW_SHAPE(2, 4, 2, 3), DEF_UNIT, DEF_DENSE)->is_absent = !c->v[SC_STATE];
    c->out[0] = RW_SHAPE(2, length, 4, 2);
    c->out[1] = RW_SHAPE(2, 4, 2, 3);
    c->n_out = 1 + c->v[SC_FINAL];
    return true;
}

static bool scan_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    static const int64_t chunks[] = { 0, 1, 3 };
    const rw_ssd_operands operands = { x[0], x[1], x[2], x[3], x[4], x[5] };
    return (y[0] = rw_ssd_scan(t, &operands, chunks[c->v[SC_CHUNK]], c->v[SC_FINAL] ? &y[1] : NULL));
}

/* Runs the state-space recurrence step by step. */
static void scan_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t length = c->out[0].dim[1], groups = c->in[3].shape.dim[2];
    for (int64_t row = 0; row < 16; row++) { /* batch, head, p */
        const int64_t b = row / 8, h = row / 2 % 4, p = row % 2, g = h / (4 / groups);
        real state[3] = { 0 };
        for (int n = 0; n < 3 && x[5]; n++) state[n] = x[5][row * 3 + n];
        for (int64_t t = 0; t < length; t++) {
            const real dt = x[1][(b * length + t) * 4 + h], in = x[0][((b * length + t) * 4 + h) * 2 + p];
            real sum = 0;
            for (int n = 0; n < 3; n++) {
                const int64_t at = ((b * length + t) * groups + g) * 3 + n;
                state[n] = expl(dt * x[2][h]) * state[n] + dt * in * x[3][at];
                sum += state[n] * x[4][at];
            }
            y[0][((b * length + t) * 4 + h) * 2 + p] = sum;
        }
        for (int n = 0; n < 3 && c->v[SC_FINAL]; n++) y[1][row * 3 + n] = state[n];
    }
}

const struct definition def_sequences[] = { { .name = "attention",
                                              .ops = "attention",
                                              .factor = { { "kind", 3 },
                                                          { "causal", 2 },
                                                          { "scale", 2 },
                                                          { "window", 3 },
                                                          { "cap", 2 },
                                                          { "slopes", 2 },
                                                          { "mask", MASKS },
                                                          { "sinks", 2 },
                                                          { "documents", 6 },
                                                          { "groups", 3 },
                                                          { "size", 4 },
                                                          { "q", DEF_LAYOUTS },
                                                          { "k", DEF_LAYOUTS },
                                                          { "v", DEF_LAYOUTS } },
                                              .make = attention_make,
                                              .record = attention_record,
                                              .reference = attention_reference,
                                              .roundings = 40,
                                              .back_roundings = 100,
                                              .stored = 2 },
                                            { .name = "attention_merge",
                                              .ops = "attention_merge",
                                              .factor = { { "rank", 4 },
                                                          { "a", DEF_LAYOUTS },
                                                          { "b", DEF_LAYOUTS },
                                                          { "a lse", DEF_LAYOUTS },
                                                          { "b lse", DEF_LAYOUTS },
                                                          { "lse", 2 } },
                                              .make = merge_make,
                                              .record = merge_record,
                                              .reference = merge_reference,
                                              .roundings = 12,
                                              .back_roundings = 40,
                                              .stored = 1 },
                                            { .name = "rope",
                                              .ops = "rope",
                                              .factor = { { "kind", 4 },
                                                          { "width", 3 },
                                                          { "positions", 2 },
                                                          { "frequencies", 2 },
                                                          { "scale", 2 },
                                                          { "layout", DEF_LAYOUTS },
                                                          { "positions layout", DEF_LAYOUTS } },
                                              .make = rope_make,
                                              .record = rope_record,
                                              .reference = rope_reference,
                                              .roundings = 40,
                                              .back_roundings = 40,
                                              .stored = 1 },
                                            { .name = "recurrent",
                                              .ops = "lstm_cell gru_cell concat",
                                              .factor = { { "kind", 4 },
                                                          { "state", 2 },
                                                          { "bias_ih", 2 },
                                                          { "bias_hh", 2 },
                                                          { "layout", DEF_LAYOUTS },
                                                          { "weight layout", DEF_LAYOUTS },
                                                          { "final", 2 } },
                                              .make = recurrent_make,
                                              .record = recurrent_record,
                                              .reference = recurrent_reference,
                                              .roundings = 12,
                                              .back_roundings = 40,
                                              .stored = 8 },
                                            { .name = "causal_conv1d",
                                              .ops = "causal_conv1d",
                                              .factor = { { "length", 2 },
                                                          { "x", DEF_LAYOUTS },
                                                          { "filter", 4 },
                                                          { "weight", DEF_LAYOUTS },
                                                          { "bias", 2 },
                                                          { "frozen", 4 } },
                                              .make = filter_make,
                                              .record = filter_record,
                                              .reference = filter_reference,
                                              .roundings = 8,
                                              .back_roundings = 30,
                                              .stored = 1 },
                                            { .name = "ssd_scan",
                                              .ops = "ssd_scan",
                                              .factor = { { "length", 3 },
                                                          { "groups", 3 },
                                                          { "state", 2 },
                                                          { "chunk", 3 },
                                                          { "final", 2 },
                                                          { "x", DEF_LAYOUTS },
                                                          { "b", DEF_LAYOUTS } },
                                              .make = scan_make,
                                              .record = scan_record,
                                              .reference = scan_reference,
                                              .roundings = 30,
                                              .back_roundings = 60,
                                              .stored = 1 },
                                            { 0 } };
