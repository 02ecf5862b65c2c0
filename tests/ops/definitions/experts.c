/* Definitions of routing and layers of experts (rewind/moe.h), FP8 data and quantized weights (rewind/float8.h,
   quantized.h). */
#include "ops/float8/fp8_scaling_ops.h"
#include "support/definition_runner.h"

#include <math.h>
#include <stdio.h>

/* ---- routes of [T, k] ---- */

enum { TOKENS = 4, CHOSEN = 2, EXPERTS = 3, ROWS = TOKENS * CHOSEN };

/* Two different experts per token, or one and a dropped slot. */
static double expert(const struct def_trial *c, int64_t i)
{
    (void)c;
    if (i == 3) return RW_MOE_DROPPED;
    return (double)((i / CHOSEN * 5 + i % CHOSEN) % (EXPERTS - 1));
}

/* The slot of each row, ordered by expert, token and slot; dropped ones last. Returns each expert's first row. */
static void routes_of(const real *index, int64_t *order, int64_t *inverse, int64_t *first)
{
    int64_t row = 0;
    for (int64_t e = 0; e <= EXPERTS; e++) {
        first[e] = row;
        for (int64_t slot = 0; slot < ROWS; slot++) {
            const bool is_dropped = (int64_t)index[slot] == RW_MOE_DROPPED;
            if (e == EXPERTS ? !is_dropped : (int64_t)index[slot] != e) continue;
            order[row] = slot;
            inverse[slot] = row++;
        }
    }
}

enum { MO_KIND, MO_WIDTH, MO_LAYOUT, MO_INDEX_LAYOUT, MO_WEIGHT_LAYOUT, MO_FROZEN };
enum { LINEAR, LINEAR_OF_TOKENS, WEIGH, SILU_WEIGH, SWIGLU_WEIGH, COMBINE, ROUTE, MO_KINDS };
enum { INDEX, X, UP, WEIGHTS, MATRIX };

/* Operands of one op of a layer of experts; false where the op does not take the combination. */
static bool layer_make(struct def_trial *c)
{
    static const int64_t widths[] = { 1, 4, 9 };
    const int64_t n = widths[c->v[MO_WIDTH]];
    const int kind = c->v[MO_KIND];
    const bool weighs = kind >= WEIGH && kind <= SWIGLU_WEIGH, multiplies = kind <= LINEAR_OF_TOKENS;
    if (!weighs && !multiplies && c->v[MO_WEIGHT_LAYOUT]) return false;
    def_operand(c, INDEX, RW_SHAPE(TOKENS, CHOSEN), DEF_INDEX, c->v[MO_INDEX_LAYOUT])->value = expert;
    if (c->v[MO_INDEX_LAYOUT] == DEF_EXPANDED) return false;
    c->in[INDEX].is_exact = true;
    def_operand(c, X, RW_SHAPE(kind == LINEAR_OF_TOKENS ? TOKENS : ROWS, n), DEF_UNIT, c->v[MO_LAYOUT]);
    def_operand(c, UP, RW_SHAPE(ROWS, n), DEF_UNIT, DEF_DENSE)->is_absent = kind != SWIGLU_WEIGH;
    def_operand(c, WEIGHTS, RW_SHAPE(TOKENS, CHOSEN), DEF_UNIT, c->v[MO_WEIGHT_LAYOUT])->is_absent = !weighs;
    c->in[WEIGHTS].is_wide = true;
    def_operand(c, MATRIX, RW_SHAPE(EXPERTS, 3, n), DEF_UNIT, c->v[MO_WEIGHT_LAYOUT])->is_absent = !multiplies;
    c->in[X].is_absent = kind == ROUTE;
    if (c->v[MO_FROZEN] && kind != ROUTE && kind != COMBINE)
        c->in[c->v[MO_FROZEN] == 1 ? X : multiplies ? MATRIX : WEIGHTS].is_frozen = true;
    c->out[0] = multiplies ? RW_SHAPE(ROWS, 3) : kind == COMBINE ? RW_SHAPE(TOKENS, n) : RW_SHAPE(ROWS, n);
    if (kind != ROUTE) return true;
    c->n_out = 4;
    c->out[0] = RW_SHAPE(ROWS);
    c->out[1] = RW_SHAPE(TOKENS, CHOSEN);
    c->out[2] = RW_SHAPE(EXPERTS + 1);
    c->out[3] = RW_SHAPE(EXPERTS);
    return c->v[MO_WIDTH] == 0;
}

static bool layer_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    rw_moe_routes r;
    if (rw_moe_route(t, x[INDEX], EXPERTS, &r)) return false;
    switch (c->v[MO_KIND]) {
    case LINEAR: y[0] = rw_moe_linear(t, x[X], x[MATRIX], &r); break;
    case LINEAR_OF_TOKENS: y[0] = rw_moe_linear_of_tokens(t, x[X], x[MATRIX], &r); break;
    case WEIGH: y[0] = rw_moe_weigh(t, x[X], x[WEIGHTS], &r); break;
    case SILU_WEIGH: y[0] = rw_moe_silu_weigh(t, x[X], x[WEIGHTS], &r); break;
    case SWIGLU_WEIGH: y[0] = rw_moe_swiglu_weigh(t, x[X], x[UP], x[WEIGHTS], &r); break;
    case COMBINE: y[0] = rw_moe_combine(t, x[X], &r); break;
    default: y[0] = r.order, y[1] = r.inverse, y[2] = r.offsets, y[3] = r.load; break;
    }
    return y[0];
}

/* Each kind by its definition: rows in the order of their experts, weighted, multiplied or summed. */
static void layer_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t order[ROWS], inverse[ROWS], first[EXPERTS + 1];
    const int kind = c->v[MO_KIND];
    const int64_t n = kind == ROUTE ? 0 : c->in[X].shape.dim[1];
    routes_of(x[INDEX], order, inverse, first);
    for (int64_t row = 0; row < ROWS; row++) {
        const int64_t slot = order[row], e = (int64_t)x[INDEX][slot];
        const real *const from = !n ? NULL : x[X] + (kind == LINEAR_OF_TOKENS ? slot / CHOSEN : row) * n;
        if (kind == ROUTE) y[0][row] = (real)slot, y[1][row] = (real)inverse[row];
        for (int64_t o = 0; kind <= LINEAR_OF_TOKENS && o < 3 && e != RW_MOE_DROPPED; o++)
            for (int64_t k = 0; k < n; k++) y[0][row * 3 + o] += from[k] * x[MATRIX][(e * 3 + o) * n + k];
        for (int64_t k = 0; kind >= WEIGH && k < n; k++) {
            const real gate = kind == WEIGH || kind == COMBINE ? from[k] : from[k] / (1 + expl(-from[k]));
            if (kind == COMBINE) y[0][slot / CHOSEN * n + k] += gate;
            else y[0][row * n + k] = gate * (kind == SWIGLU_WEIGH ? x[UP][row * n + k] : 1) * x[WEIGHTS][slot];
        }
    }
    for (int64_t e = 0; kind == ROUTE && e <= EXPERTS; e++) {
        y[2][e] = (real)first[e];
        if (e < EXPERTS) y[3][e] = (real)(first[e + 1] - first[e]);
    }
}

/* ---- choices ---- */

enum { CH_K, CH_GROUPS, CH_SUM, CH_BIAS, CH_SCORE, CH_NORMALIZE, CH_SCALE, CH_LAYOUT };

/* Scores and options of the choice of experts; false where the options exclude each other. */
static bool choose_make(struct def_trial *c)
{
    static const int64_t groups[][2] = { { 0, 0 }, { 2, 1 }, { 3, 2 } };
    const int64_t best = groups[c->v[CH_GROUPS]][1], k = c->v[CH_K] + 1;
    c->a[0] = k, c->a[1] = groups[c->v[CH_GROUPS]][0], c->a[2] = best;
    c->a[3] = c->v[CH_SUM]; /* 0: the default */
    if (best && k > best * (6 / c->a[1])) return false;
    if (best && c->a[3] > 6 / c->a[1]) return false;
    if (best && !c->a[3] && k / best > 6 / c->a[1]) return false;
    if (!best && c->v[CH_SUM]) return false;
    if (c->v[CH_LAYOUT] == DEF_EXPANDED) return false;
    def_operand(c, 0, RW_SHAPE(5, 6), DEF_DISTINCT, c->v[CH_LAYOUT])->is_frozen = false;
    def_operand(c, 1, RW_SHAPE(6), DEF_UNIT, DEF_DENSE)->is_absent = !c->v[CH_BIAS];
    c->in[1].is_frozen = true;
    c->out[0] = c->out[1] = RW_SHAPE(5, k);
    c->n_out = 2;
    return true;
}

/* The weights, and the indexes. */
static bool choose_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const rw_moe_router_params params = {
        .choice = { .k = c->a[0], .groups = c->a[1], .best_groups = c->a[2], .group_sum = c->a[3] },
        .score = (rw_moe_score)(c->v[CH_SCORE] % 3),
        .bias = x[1],
        .normalize = c->v[CH_NORMALIZE],
        .scale = c->v[CH_SCALE] ? 2.5 : 0
    };
    if (c->v[CH_SCORE] == 3) {
        y[1] = rw_moe_topk(t, x[0], x[1], &params.choice);
        y[0] = rw_moe_select(t, x[0], y[1]);
        return y[0];
    }
    return (y[0] = rw_moe_router(t, x[0], &params, &y[1], NULL));
}

/* The k best of the allowed of n, by descending value. */
static void largest(const real *value, const bool *allowed, int64_t n, int64_t k, int64_t *place)
{
    bool taken[8] = { false };
    for (int64_t j = 0; j < k; j++) {
        place[j] = -1;
        for (int64_t i = 0; i < n; i++)
            if (!taken[i] && (!allowed || allowed[i]) && (place[j] < 0 || value[i] > value[place[j]])) place[j] = i;
        taken[place[j]] = true;
    }
}

/* Takes the best groups, then the best experts of these groups, by comparing all. */
static void choose_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t k = c->a[0], groups = c->a[1] ? c->a[1] : 1, per = 6 / groups, best = c->a[2] ? c->a[2] : groups;
    const int64_t summed = c->a[3] ? c->a[3] : k / best > 1 ? k / best : 1;
    const int score = c->v[CH_SCORE];
    for (int64_t row = 0; row < 5; row++) {
        const real *const logits = x[0] + row * 6;
        real s[6], biased[6], value[6], sum = 0, most = -INFINITY;
        bool allowed[6] = { false };
        int64_t place[8];
        for (int e = 0; e < 6; e++) most = fmaxl(most, logits[e]);
        for (int e = 0; e < 6; e++) sum += expl(logits[e] - most);
        for (int e = 0; e < 6; e++) {
            s[e] = score == RW_MOE_SOFTMAX   ? expl(logits[e] - most) / sum
                   : score == RW_MOE_SIGMOID ? 1 / (1 + expl(-logits[e]))
                                             : logits[e];
            biased[e] = s[e] + (x[1] ? x[1][e] : 0);
        }
        for (int64_t g = 0; g < groups; g++) {
            largest(biased + g * per, NULL, per, summed, place);
            value[g] = 0;
            for (int64_t j = 0; j < summed; j++) value[g] += biased[g * per + place[j]];
        }
        largest(value, NULL, groups, best, place);
        for (int64_t j = 0; j < best; j++)
            for (int64_t e = 0; e < per; e++) allowed[place[j] * per + e] = true;
        largest(biased, allowed, 6, k, place);
        sum = 0;
        for (int64_t j = 0; j < k; j++) {
            const real w = s[place[j]];
            y[0][row * k + j] = score == RW_MOE_SOFTMAX_OF_CHOSEN ? expl(w - most) : w;
            sum += y[0][row * k + j];
            y[1][row * k + j] = (real)place[j];
        }
        if (score == 3) continue;
        for (int64_t j = 0; j < k; j++) {
            if (score == RW_MOE_SOFTMAX_OF_CHOSEN || c->v[CH_NORMALIZE]) y[0][row * k + j] /= sum;
            if (c->v[CH_SCALE]) y[0][row * k + j] *= 2.5L;
        }
    }
}

/* ---- capacity, losses of routing ---- */

static double weight(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)(i * 5 % 4) / 4; /* some are equal */
}

static bool drop_make(struct def_trial *c)
{
    if (c->v[2] == DEF_EXPANDED || c->v[3] == DEF_EXPANDED) return false;
    def_operand(c, 0, RW_SHAPE(TOKENS, CHOSEN), DEF_INDEX, c->v[2])->value = expert;
    def_operand(c, 1, RW_SHAPE(TOKENS, CHOSEN), DEF_UNIT, c->v[3])->value = weight;
    def_operand(c, 2, RW_SHAPE(TOKENS, EXPERTS), DEF_UNIT, DEF_DENSE);
    c->in[0].is_exact = c->in[1].is_exact = true;
    c->in[1].is_absent = !c->v[0];
    c->in[1].is_frozen = true;
    c->out[0] = RW_SHAPE(TOKENS, CHOSEN);
    c->out[1] = c->out[2] = RW_SCALAR;
    c->n_out = 3;
    return true;
}

static bool drop_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    rw_moe_routes r;
    if (rw_moe_route(t, x[0], EXPERTS, &r)) return false;
    y[0] = rw_moe_drop(t, x[0], x[1], &r, c->v[1] + 1);
    y[1] = rw_moe_aux_loss(t, x[2], &r, 0.5);
    y[2] = rw_moe_z_loss(t, x[2], 0.25);
    return y[0] && y[1] && y[2];
}

/* Drops the slots beyond each expert's capacity, by score; also the balance loss and the z loss. */
static void drop_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    for (int64_t slot = 0; slot < ROWS; slot++) {
        int64_t before = 0; /* earlier slots of the same expert that have precedence */
        for (int64_t other = 0; other < ROWS; other++) {
            if (other == slot || x[0][other] != x[0][slot]) continue;
            const real a = x[1] ? x[1][other] : 0, b = x[1] ? x[1][slot] : 0;
            before += a > b || (a == b && other < slot);
        }
        y[0][slot] = before < c->v[1] + 1 ? x[0][slot] : RW_MOE_DROPPED;
    }
    for (int64_t e = 0; e < EXPERTS; e++) {
        real load = 0, sum = 0;
        for (int64_t slot = 0; slot < ROWS; slot++) load += (int64_t)x[0][slot] == e;
        for (int64_t token = 0; token < TOKENS; token++) sum += x[2][token * EXPERTS + e];
        y[1][0] += 0.5L * EXPERTS / (CHOSEN * TOKENS * TOKENS) * load * sum;
    }
    for (int64_t token = 0; token < TOKENS; token++) {
        real sum = 0;
        for (int64_t e = 0; e < EXPERTS; e++) sum += expl(x[2][token * EXPERTS + e]);
        y[2][0] += 0.25L * logl(sum) * logl(sum) / TOKENS;
    }
}

/* ---- FP8 ---- */

enum { F8_E5M2, F8_SCALING, F8_POWER, F8_SCALE, F8_VALUES };
enum { F8_ROWS = 3, F8_WIDTH = 131 };

/* Values around the largest number, ties between two numbers, the smallest numbers and values that round to 0, infinity
   and NaN. */
static double f8_value(const struct def_trial *c, int64_t i)
{
    static const double edges[] = {
        448,    464,     480,       448.25,  432,     57344,     61440,     65504,    57376,      53248,      49152,
        0x1p-9, 0x1p-10, 0x1.8p-10, 0x1p-16, 0x1p-17, 0x1.8p-17, 0x1.8p-16, 0x1p-6,   0x1.ep-7,   0x1p-14,    0x1.cp-15,
        17,     18,      19,        1.0625,  1.1875,  1.125,     1.375,     0x1.fp-7, 0x1.02p-10, 0x1.02p-17,
    };
    const double sign = i % 2 ? -1 : 1;
    if (c->v[F8_VALUES] == 0) return sign * edges[i % 32];
    if (c->v[F8_VALUES] == 1) return sign * (double)((i * 37 + 11) % 255) / 64;
    if (c->v[F8_VALUES] == 2) return i == 5 ? (double)NAN : i == 300 ? -(double)INFINITY : sign * (double)(i % 9);
    return 0;
}

static double one(const struct def_trial *c, int64_t i)
{
    (void)c;
    (void)i;
    return 1;
}

/* Rows to quantize to float8 with one scaling; false where the scaling does not take the options. */
static bool f8_make(struct def_trial *c)
{
    const int s = c->v[F8_SCALING];
    if (c->v[F8_SCALE] && s != RW_SCALING_TENSOR) return false;
    if (c->v[F8_POWER] && (s == RW_SCALING_MX || c->v[F8_SCALE])) return false;
    def_operand(c, 0, RW_SHAPE(F8_ROWS, F8_WIDTH), DEF_SIGNED, DEF_DENSE)->value = f8_value;
    def_operand(c, 1, RW_SHAPE(1), DEF_POSITIVE, DEF_DENSE)->is_absent = !c->v[F8_SCALE];
    c->in[1].dtype = RW_F32;
    c->in[1].value = c->v[F8_SCALE] == 1 ? one : NULL;
    const int64_t per = s == RW_SCALING_MX ? 32 : 128;
    c->out[0] = RW_SHAPE(F8_ROWS, F8_WIDTH);
    c->out[1] = s == RW_SCALING_TENSOR    ? RW_SCALAR
                : s == RW_SCALING_128X128 ? RW_SHAPE(1, 2)
                                          : RW_SHAPE(F8_ROWS, (F8_WIDTH + per - 1) / per);
    c->out[2] = RW_SHAPE(6);
    c->n_out = 3;
    return true;
}

/* Dequantized to float32, which rounds every 8-bit number times a scale once; the amax; and a monitor's counters:
   64-bit numbers of saturated, flushed and all elements, whose upper halves are 0. */
static bool f8_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    rw_tensor *scale = NULL, *counts = NULL;
    const rw_quantize_params params = { .dtype = c->v[F8_E5M2] ? RW_F8_E5M2 : RW_F8_E4M3,
                                        .scaling = (rw_scaling)c->v[F8_SCALING],
                                        .power_of_two = c->v[F8_POWER] };
    rw_tensor *const codes = rw_quantize_counted_at(RW_HERE, t, x[0], x[1], &params, &scale, &y[1], &counts);
    y[0] = rw_dequantize(t, codes, scale, params.scaling, RW_F32);
    y[2] = rw_slice(t, counts, 0, 2 * RW_CODES_SATURATED, RW_CODES_WORDS);
    return y[0] && y[1] && y[2];
}

/* Rounds to the nearest number with `bits` of fraction and a smallest exponent, ties to even; saturates. */
static double f8_round(double x, bool e5m2)
{
    const int fraction = e5m2 ? 2 : 3, smallest = e5m2 ? -14 : -6;
    const double most = e5m2 ? 57344 : 448;
    int exponent;
    if (isnan(x) || x == 0) return x;
    if (fabs(x) >= most) return x < 0 ? -most : most;
    frexp(x, &exponent); /* in [2^(exponent - 1), 2^exponent) */
    const double unit = ldexp(1, (exponent - 1 > smallest ? exponent - 1 : smallest) - fraction);
    const double rounded = nearbyint(x / unit) * unit; /* to even */
    return fabs(rounded) > most ? copysign(most, x) : rounded;
}

static int64_t f8_block(int scaling, int64_t row, int64_t column)
{
    switch (scaling) {
    case RW_SCALING_TENSOR: return 0;
    case RW_SCALING_1X128: return row * 2 + column / 128;
    case RW_SCALING_128X128: return column / 128;
    default: return row * 5 + column / 32;
    }
}

/* The largest magnitude of each block, then each element by its block's scale, and the counts. */
static void f8_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const bool e5m2 = c->v[F8_E5M2];
    const float most = e5m2 ? 57344 : 448;
    for (int64_t i = 0; i < F8_ROWS * F8_WIDTH; i++) {
        real *const amax = &y[1][f8_block(c->v[F8_SCALING], i / F8_WIDTH, i % F8_WIDTH)];
        if (isnan(x[0][i]) || isnan(*amax)) *amax = NAN;
        else *amax = fmaxl(*amax, fabsl(x[0][i]));
    }
    for (int64_t i = 0; i < F8_ROWS * F8_WIDTH; i++) {
        const float amax = (float)y[1][f8_block(c->v[F8_SCALING], i / F8_WIDTH, i % F8_WIDTH)];
        float factor = 1, scale;
        if (c->v[F8_SCALING] == RW_SCALING_MX) {
            int exponent;
            const float ratio = amax * (1 / most);
            const bool is_power = frexpf(ratio, &exponent) == 0.5f;
            scale = isnan(amax)   ? (float)NAN
                    : isinf(amax) ? 0x1p127f
                    : amax == 0   ? 0x1p-127f
                                  : ldexpf(1, is_power ? exponent - 1 : exponent);
            factor = 1 / scale;
        } else {
            if (x[1]) factor = (float)x[1][0];
            else if (amax > 0 && amax < INFINITY) factor = most / amax;
            if (!x[1] && isinf(factor)) factor = 0x1.fffffep127f;
            if (c->v[F8_POWER]) {
                int exponent;
                frexpf(factor, &exponent);
                factor = ldexpf(1, exponent - 1);
            }
            scale = 1 / factor;
        }
        const float scaled = (float)x[0][i] * factor;
        const double code = f8_round(scaled, e5m2);
        y[0][i] = (float)((float)code * scale);
        y[2][0] += fabsl(x[0][i]) < INFINITY && fabsf(scaled) > most;
        y[2][2] += x[0][i] != 0 && code == 0;
        y[2][4] += 1;
    }
}

/* ---- quantized weights ---- */

enum { QW_KIND, QW_RANK, QW_BIAS, QW_LAYOUT };
enum { QW_OUT = 3, QW_IN = 64 };

/* Element i of a weight, as float32: levels of NF4 (arXiv 2305.14314, appendix E) times the scale 3/4 of all blocks,
   and 127ths of the row maximum of INT8. */
static float quantized_number(const struct def_trial *c, int64_t i)
{
    static const float levels[] = { -1,
                                    -0.6961928009986877f,
                                    -0.5250730514526367f,
                                    -0.39491748809814453f,
                                    -0.28444138169288635f,
                                    -0.18477343022823334f,
                                    -0.09105003625154495f,
                                    0,
                                    0.07958029955625534f,
                                    0.16093020141124725f,
                                    0.24611230194568634f,
                                    0.33791524171829224f,
                                    0.44070982933044434f,
                                    0.5626170039176941f,
                                    0.7229568362236023f,
                                    1 };
    const int64_t k = i % QW_IN ? (i * 37 + 11) % 255 - 127 : 127;
    return c->v[QW_KIND] ? (float)k * (127 / 64.f) * (1 / 127.f) : levels[(i * 7 + i / 16) % 16] * 0.75f;
}

static bool quantized_make(struct def_trial *c)
{
    rw_shape s = def_shape(c->v[QW_RANK]);
    s.dim[s.rank++] = QW_IN;
    def_operand(c, 0, s, DEF_UNIT, c->v[QW_LAYOUT]);
    def_operand(c, 1, RW_SHAPE(QW_OUT), DEF_UNIT, DEF_DENSE)->is_absent = !c->v[QW_BIAS];
    s.dim[s.rank - 1] = QW_OUT;
    c->out[0] = s;
    return true;
}

static bool quantized_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    char name[32];
    float numbers[QW_OUT * QW_IN];
    rw_quantized w = { .kind = c->v[QW_KIND] ? RW_INT8 : RW_NF4, .out = QW_OUT, .in = QW_IN };
    snprintf(name, sizeof name, "quantized %d", c->v[QW_KIND]);
    w.words = rw_param_find(rw_tape_context(t), name);
    for (int i = 0; i < QW_OUT * QW_IN; i++) numbers[i] = quantized_number(c, i);
    if (!w.words && rw_quantized_create(rw_tape_context(t), name, w.kind, RW_SHAPE(QW_OUT, QW_IN), &w)) return false;
    if (rw_quantized_write(&w, RW_F32, numbers, sizeof numbers)) return false;
    return (y[0] = rw_linear_quantized(t, x[0], &w, x[1]));
}

/* Rounds to the nearest number of the product's type, ties to even. */
static real nearest(rw_dtype dtype, float x)
{
    const int bits = dtype == RW_BF16 ? 8 : dtype == RW_F16 ? 11 : 24;
    int exponent;
    const double fraction = frexp((double)x, &exponent);
    return (real)ldexp(nearbyint(ldexp(fraction, bits)), exponent - bits);
}

static void quantized_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    for (int64_t i = 0; i < rw_shape_numel(c->out[0]); i++) {
        y[0][i] = x[1] ? x[1][i % QW_OUT] : 0;
        for (int64_t k = 0; k < QW_IN; k++)
            y[0][i] += x[0][i / QW_OUT * QW_IN + k] * nearest(c->dtype, quantized_number(c, i % QW_OUT * QW_IN + k));
    }
}

#define MOE_OPS "moe_route moe_linear moe_weigh moe_silu_weigh moe_swiglu_weigh moe_combine"

const struct definition def_experts[] = {
    { .name = "layers of experts",
      .ops = MOE_OPS,
      .factor = { { "kind", MO_KINDS },
                  { "width", 3 },
                  { "layout", DEF_LAYOUTS },
                  { "index", DEF_LAYOUTS },
                  { "weight", DEF_LAYOUTS },
                  { "frozen", 3 } },
      .make = layer_make,
      .record = layer_record,
      .reference = layer_reference,
      .roundings = 12,
      .back_roundings = 30,
      .stored = 1 },
    { .name = "choices of experts",
      .ops = "moe_topk moe_select",
      .factor = { { "k", 4 },
                  { "groups", 3 },
                  { "sum", 3 },
                  { "bias", 2 },
                  { "score", 4 },
                  { "normalize", 2 },
                  { "scale", 2 },
                  { "layout", DEF_LAYOUTS } },
      .make = choose_make,
      .record = choose_record,
      .reference = choose_reference,
      .roundings = 20,
      .back_roundings = 4,
      .only_wide = true },
    { .name = "capacity and losses",
      .ops = "moe_drop",
      .factor = { { "weights", 2 }, { "capacity", 4 }, { "index", DEF_LAYOUTS }, { "layout", DEF_LAYOUTS } },
      .make = drop_make,
      .record = drop_record,
      .reference = drop_reference,
      .roundings = 2,
      .back_roundings = 2,
      .only_wide = true },
    { .name = "float8",
      .ops = "quantize dequantize",
      .factor = { { "e5m2", 2 },
                  { "scaling", RW_SCALING_COUNT },
                  { "power of two", 2 },
                  { "scale", 3 },
                  { "values", 4 } },
      .make = f8_make,
      .record = f8_record,
      .reference = f8_reference,
      .no_gradient = true,
      .no_double = true },
    { .name = "quantized weights",
      .ops = "linear_quantized",
      .factor = { { "kind", 2 }, { "rank", 3 }, { "bias", 2 }, { "layout", DEF_LAYOUTS } },
      .make = quantized_make,
      .record = quantized_record,
      .reference = quantized_reference,
      .roundings = 70,
      .back_roundings = 20,
      .stored = 1 },
    { 0 }
};
