/* Definitions of losses (rewind/ops.h and losses.h). */
#include "support/definition_runner.h"

#include <math.h>

/* ---- classes ---- */

enum { CE_KIND, CE_RANK, CE_CLASSES, CE_WEIGHT, CE_REDUCTION, CE_SMOOTHING, CE_Z, CE_IGNORED, CE_LAYOUT, CE_CHUNK };
enum { WITH, PLAIN, IGNORE, NLL, LINEAR, SOFT, KINDS };
enum { LOGITS, TARGET, CLASS_WEIGHT, LAST_WEIGHT, BIAS };

static int64_t classes_of(const struct def_trial *c)
{
    static const int64_t classes[] = { 2, 5, 11, 301 };
    return classes[c->v[CE_CLASSES]];
}

/* Every third row is ignored, or none, or all. */
static double class_target(const struct def_trial *c, int64_t i)
{
    if ((c->v[CE_IGNORED] == 1 && i % 3 == 1) || c->v[CE_IGNORED] == 2) return c->v[CE_KIND] == IGNORE ? 1 : -100;
    const int64_t n = classes_of(c), k = (i * 7 + 3) % n;
    return c->v[CE_KIND] == IGNORE && k == 1 ? 0 : (double)k;
}

/* Operands of a loss over classes; false where the loss has no such option. */
static bool classes_make(struct def_trial *c)
{
    const int kind = c->v[CE_KIND];
    const int64_t n = classes_of(c);
    const bool has_options = kind == WITH || kind == LINEAR || kind == SOFT;
    rw_shape s = def_shape(c->v[CE_RANK]), rows = s;
    if (n == 301 && s.rank > 1) return false;
    if (!has_options && (c->v[CE_SMOOTHING] || c->v[CE_Z])) return false;
    if (kind == NLL && c->v[CE_LAYOUT] == DEF_EXPANDED) return false;
    if ((kind == PLAIN || kind == IGNORE) && (c->v[CE_WEIGHT] || c->v[CE_REDUCTION])) return false;
    if (kind == SOFT && c->v[CE_IGNORED]) return false;
    if (kind != LINEAR && c->v[CE_CHUNK]) return false;
    s.dim[s.rank++] = kind == LINEAR ? 3 : n;
    def_operand(c, LOGITS, s, DEF_UNIT, c->v[CE_LAYOUT]);
    if (kind == SOFT) def_operand(c, TARGET, s, DEF_POSITIVE, DEF_DENSE);
    else def_operand(c, TARGET, rows, DEF_INDEX, DEF_DENSE)->value = class_target;
    def_operand(c, CLASS_WEIGHT, RW_SHAPE(n), DEF_POSITIVE, DEF_DENSE)->is_absent = !c->v[CE_WEIGHT];
    c->in[CLASS_WEIGHT].is_frozen = c->in[CLASS_WEIGHT].is_wide = true;
    def_operand(c, LAST_WEIGHT, RW_SHAPE(n, 3), DEF_UNIT, DEF_DENSE)->is_absent = kind != LINEAR;
    def_operand(c, BIAS, RW_SHAPE(n), DEF_UNIT, DEF_DENSE)->is_absent = kind != LINEAR || c->v[CE_CHUNK] == 1;
    c->out[0] = c->v[CE_REDUCTION] == RW_REDUCTION_NONE ? rows : RW_SCALAR;
    return true;
}

/* Records the loss of the trial's kind with its options. */
static bool classes_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    static const int64_t chunks[] = { 0, 2, 5 };
    rw_cross_entropy_params params = { .reduction = (rw_reduction)c->v[CE_REDUCTION],
                                       .label_smoothing = c->v[CE_SMOOTHING] ? 0.25 : 0,
                                       .z_loss = c->v[CE_Z] ? 0.125 : 0 };
    switch (c->v[CE_KIND]) {
    case PLAIN: y[0] = rw_cross_entropy(t, x[LOGITS], x[TARGET]); break;
    case IGNORE:
        params.has_ignore_index = true, params.ignore_index = 1;
        y[0] = rw_cross_entropy_with(t, x[LOGITS], x[TARGET], RW_NONE, &params);
        break;
    case NLL: y[0] = rw_nll_loss(t, x[LOGITS], x[TARGET], x[CLASS_WEIGHT], &params); break;
    case LINEAR:
        params.chunk = chunks[c->v[CE_CHUNK]];
        params.bias = x[BIAS];
        params.class_weight = x[CLASS_WEIGHT];
        y[0] = rw_linear_cross_entropy(t, x[LOGITS], x[LAST_WEIGHT], x[TARGET], &params);
        break;
    default: y[0] = rw_cross_entropy_with(t, x[LOGITS], x[TARGET], x[CLASS_WEIGHT], &params); break;
    }
    return y[0];
}

static real row_loss(const struct def_trial *c, real *const *x, int64_t row, const real *logits)
{
    const int64_t n = classes_of(c), target = c->v[CE_KIND] == SOFT ? 0 : (int64_t)x[TARGET][row];
    const real e = c->v[CE_SMOOTHING] ? 0.25L : 0, z = c->v[CE_Z] ? 0.125L : 0;
    real sum = 0, loss = 0;
    if (c->v[CE_KIND] == NLL) return -(x[CLASS_WEIGHT] ? x[CLASS_WEIGHT][target] : 1) * logits[target];
    for (int64_t k = 0; k < n; k++) sum += expl(logits[k]);
    const real l = logl(sum);
    for (int64_t k = 0; k < n; k++) {
        const real w = x[CLASS_WEIGHT] ? x[CLASS_WEIGHT][k] : 1;
        const real share = c->v[CE_KIND] == SOFT ? x[TARGET][row * n + k] : k == target;
        loss += w * ((1 - e) * share + e / n) * (l - logits[k]);
    }
    return loss + z * l * l;
}

/* The loss of each row by its definition, then the reduction. */
static void classes_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t n = classes_of(c), width = c->v[CE_KIND] == LINEAR ? 3 : n, rows = c->in[LOGITS].numel / width;
    const int64_t ignored = c->v[CE_KIND] == IGNORE ? 1 : -100;
    real sum = 0, weights = 0;
    for (int64_t row = 0; row < rows; row++) {
        real logits[301];
        if (c->v[CE_KIND] != SOFT && (int64_t)x[TARGET][row] == ignored) continue;
        for (int64_t k = 0; k < n; k++) {
            logits[k] = c->v[CE_KIND] == LINEAR ? 0 : x[LOGITS][row * n + k];
            if (c->v[CE_KIND] != LINEAR) continue;
            for (int64_t j = 0; j < 3; j++) logits[k] += x[LOGITS][row * 3 + j] * x[LAST_WEIGHT][k * 3 + j];
            if (x[BIAS]) logits[k] += x[BIAS][k];
        }
        const real loss = row_loss(c, x, row, logits);
        if (c->v[CE_REDUCTION] == RW_REDUCTION_NONE) y[0][row] = loss;
        sum += loss;
        weights += c->v[CE_KIND] == SOFT || !x[CLASS_WEIGHT] ? 1 : x[CLASS_WEIGHT][(int64_t)x[TARGET][row]];
    }
    if (c->v[CE_REDUCTION] == RW_REDUCTION_MEAN) y[0][0] = weights > 0 ? sum / weights : 0;
    if (c->v[CE_REDUCTION] == RW_REDUCTION_SUM) y[0][0] = sum;
}

/* ---- elements ---- */

enum { EL_KIND, EL_REDUCTION, EL_X, EL_Y, EL_X_LAYOUT, EL_Y_LAYOUT, EL_WEIGHT, EL_POSITIVE };
enum { BCE, HUBER, MSE, SMOOTH, L1, KL, KL_LOG, MSE_LOSS, ELEMENT_KINDS };

static const rw_shape shapes[] = { { 2, { 4, 5 } }, { 1, { 5 } }, { 2, { 4, 1 } }, { 3, { 3, 1, 5 } } };

static double apart(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 23 + 5) % 97 - 48) / 32 + 1. / 128;
}

static double probability(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 23 + 5) % 31 + 16) / 64;
}

static bool elements_make(struct def_trial *c)
{
    const int kind = c->v[EL_KIND];
    if (kind != BCE && (c->v[EL_WEIGHT] || c->v[EL_POSITIVE])) return false;
    if (kind == MSE_LOSS && (c->v[EL_REDUCTION] || c->v[EL_X] != c->v[EL_Y])) return false;
    def_operand(c, 0, shapes[c->v[EL_X]], DEF_SIGNED, c->v[EL_X_LAYOUT]);
    def_operand(c, 1, shapes[c->v[EL_Y]], DEF_UNIT, c->v[EL_Y_LAYOUT])->value = kind == KL ? probability : apart;
    def_operand(c, 2, RW_SHAPE(4, 1), DEF_POSITIVE, DEF_DENSE)->is_absent = !c->v[EL_WEIGHT];
    def_operand(c, 3, RW_SHAPE(5), DEF_POSITIVE, DEF_DENSE)->is_absent = !c->v[EL_POSITIVE];
    c->out[1] = def_broadcast(shapes[c->v[EL_X]], shapes[c->v[EL_Y]]);
    if (c->v[EL_WEIGHT]) c->out[1] = def_broadcast(c->out[1], c->in[2].shape);
    if (c->v[EL_POSITIVE]) c->out[1] = def_broadcast(c->out[1], c->in[3].shape);
    c->out[0] = c->v[EL_REDUCTION] == RW_REDUCTION_NONE ? c->out[1] : RW_SCALAR;
    return true;
}

static bool elements_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const rw_reduction r = (rw_reduction)c->v[EL_REDUCTION];
    switch (c->v[EL_KIND]) {
    case BCE: y[0] = rw_bce_with_logits(t, x[0], x[1], x[2], x[3], r); break;
    case HUBER: y[0] = rw_huber_loss(t, x[0], x[1], 0.75, r); break;
    case MSE: y[0] = rw_mse_loss_with(t, x[0], x[1], r); break;
    case SMOOTH: y[0] = rw_smooth_l1_loss(t, x[0], x[1], 0.5, r); break;
    case L1: y[0] = rw_smooth_l1_loss(t, x[0], x[1], 0, r); break;
    case MSE_LOSS: y[0] = rw_mse_loss(t, x[0], x[1]); break;
    default: y[0] = rw_kl_div(t, x[0], x[1], c->v[EL_KIND] == KL_LOG, r); break;
    }
    return y[0];
}

static real element_loss(int kind, real x, real y, real weight, real positive)
{
    const real off = fabsl(x - y);
    switch (kind) {
    case BCE: return weight * ((1 - y) * x + (1 + (positive - 1) * y) * logl(1 + expl(-x)));
    case HUBER: return off <= 0.75L ? off * off / 2 : 0.75L * (off - 0.375L);
    case SMOOTH: return off <= 0.5L ? off * off : off - 0.25L;
    case L1: return off;
    case KL: return y * (logl(y) - x);
    case KL_LOG: return expl(y) * (y - x);
    default: return off * off;
    }
}

/* The loss of each element by its definition, then the reduction. */
static void elements_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    const rw_shape s = c->out[1];
    real sum = 0;
    do {
        real v[4] = { 0, 0, 1, 1 };
        for (int k = 0; k < 4; k++)
            if (x[k]) v[k] = x[k][def_at(c->in[k].shape, at, s.rank)];
        const real loss = element_loss(c->v[EL_KIND], v[0], v[1], v[2], v[3]);
        sum += loss;
        if (c->v[EL_REDUCTION] == RW_REDUCTION_NONE) y[0][i] = loss;
        i++;
    } while (def_next(s, at));
    if (c->v[EL_REDUCTION] == RW_REDUCTION_MEAN) y[0][0] = sum / (real)i;
    if (c->v[EL_REDUCTION] == RW_REDUCTION_SUM) y[0][0] = sum;
}

const struct definition def_losses[] = {
    { .name = "losses of classes",
      .ops = "cross_entropy cross_entropy_rows cross_entropy_share cross_entropy_shares linear_cross_entropy neg",
      .factor = { { "kind", KINDS },
                  { "rank", 3 },
                  { "classes", 4 },
                  { "weight", 2 },
                  { "reduction", 3 },
                  { "smoothing", 2 },
                  { "z", 2 },
                  { "ignored", 3 },
                  { "layout", DEF_LAYOUTS },
                  { "chunk", 3 } },
      .make = classes_make,
      .record = classes_record,
      .reference = classes_reference,
      .roundings = 30,
      .back_roundings = 60,
      .stored = 8 },
    { .name = "losses of elements",
      .ops = "bce_with_logits huber mse_loss kl_div",
      .factor = { { "kind", ELEMENT_KINDS },
                  { "reduction", 3 },
                  { "x", 4 },
                  { "y", 4 },
                  { "x layout", DEF_LAYOUTS },
                  { "y layout", DEF_LAYOUTS },
                  { "weight", 2 },
                  { "positive", 2 } },
      .make = elements_make,
      .record = elements_record,
      .reference = elements_reference,
      .roundings = 20,
      .back_roundings = 80,
      .stored = 4 },
    { 0 }
};
