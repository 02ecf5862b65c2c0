/* Definitions of sums, means, maxima, products, variances, norms, softmax and cumulative sums (rewind/ops.h and
   reductions.h). */
#include "support/definition_runner.h"

#include <math.h>

/* ---- over several axes ---- */

enum { OVER_OP, OVER_RANK, OVER_AXES, OVER_NEGATIVE, OVER_KEEP, OVER_LAYOUT };
enum { SUM, MEAN, MAX, LOGSUMEXP, PROD, VAR, VAR_UNBIASED, NORM_1, NORM_2, NORM_INFINITY, OVER_OPS };

/* The axes that the factor's value selects, by bit; -1: all. */
static int axes_of(const struct def_trial *c)
{
    static const int sets[] = { 1, 2, 3, 4, 5, 6, 8, 10, 14, -1 };
    const int all = (1 << (c->v[OVER_RANK] + 1)) - 1, set = sets[c->v[OVER_AXES]];
    return set < 0 ? all : (set & ~all) ? 0 : set;
}

/* A product of 120 of them is within the range of float16. */
static double around_one(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 23 + 5) % 31 + 17) / 32 * (i % 3 ? 1 : -1);
}

/* An operand to reduce over a set of axes, and the result's shape; false where the set is empty. */
static bool over_make(struct def_trial *c)
{
    const rw_shape s = def_shape(c->v[OVER_RANK] + 1);
    const int set = axes_of(c), op = c->v[OVER_OP];
    if (!set) return false;
    c->out[0] = (rw_shape){ .rank = 0 };
    int64_t n = 1;
    for (int d = 0; d < s.rank; d++) {
        if (set >> d & 1) n *= s.dim[d];
        if (set >> d & 1 && !c->v[OVER_KEEP]) continue;
        c->out[0].dim[c->out[0].rank++] = set >> d & 1 ? 1 : s.dim[d];
    }
    /* Equal elements have no difference: ties of max are tested separately */
    const bool picks = op == MAX || op == NORM_INFINITY;
    if (picks && c->v[OVER_LAYOUT] == DEF_EXPANDED && set & 1) return false;
    def_operand(c, 0, s, picks ? DEF_DISTINCT : DEF_SIGNED, c->v[OVER_LAYOUT]);
    if (op == PROD) c->in[0].value = around_one;
    c->a[0] = n;
    return true;
}

static uint32_t set_of(const struct def_trial *c)
{
    uint32_t set = 0;
    const int axes = axes_of(c), rank = c->in[0].shape.rank;
    if (c->v[OVER_AXES] == 9 && !c->v[OVER_NEGATIVE]) return RW_ALL_AXES;
    for (int d = 0; d < rank; d++)
        if (axes >> d & 1) set |= c->v[OVER_NEGATIVE] ? RW_AXES(d - rank) : RW_AXES(d);
    return set;
}

/* Records the reduction of the trial's kind. */
static bool over_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const uint32_t set = set_of(c);
    const bool keep = c->v[OVER_KEEP];
    switch (c->v[OVER_OP]) {
    case SUM: y[0] = rw_sum(t, x[0], set, keep); break;
    case MEAN: y[0] = rw_mean(t, x[0], set, keep); break;
    case MAX: y[0] = rw_max(t, x[0], set, keep); break;
    case LOGSUMEXP: y[0] = rw_logsumexp(t, x[0], set, keep); break;
    case PROD: y[0] = rw_prod(t, x[0], set, keep); break;
    case VAR: y[0] = rw_var(t, x[0], set, false, keep); break;
    case VAR_UNBIASED: y[0] = rw_var(t, x[0], set, true, keep); break;
    case NORM_1: y[0] = rw_norm(t, x[0], 1, set, keep); break;
    case NORM_2: y[0] = rw_norm(t, x[0], 2, set, keep); break;
    default: y[0] = rw_norm(t, x[0], INFINITY, set, keep); break;
    }
    return y[0];
}

/* The index of the result to which an element contributes. */
static int64_t home(const struct def_trial *c, const int64_t *at)
{
    int64_t place = 0;
    const int set = axes_of(c);
    for (int d = 0; d < c->in[0].shape.rank; d++)
        if (!(set >> d & 1)) place = place * c->in[0].shape.dim[d] + at[d];
    return place;
}

static real first_of(int op)
{
    return op == PROD ? 1 : op == MAX ? -INFINITY : 0;
}

static real joined(int op, real so_far, real x, real mean)
{
    switch (op) {
    case MAX: return fmaxl(so_far, x);
    case NORM_INFINITY: return fmaxl(so_far, fabsl(x));
    case LOGSUMEXP: return so_far + expl(x);
    case PROD: return so_far * x;
    case VAR:
    case VAR_UNBIASED: return so_far + (x - mean) * (x - mean);
    case NORM_1: return so_far + fabsl(x);
    case NORM_2: return so_far + x * x;
    default: return so_far + x;
    }
}

/* Reduces by its definition, element by element. */
static void over_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    real mean[128] = { 0 };
    const int op = c->v[OVER_OP];
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    const int64_t n = rw_shape_numel(c->out[0]);
    do mean[home(c, at)] += x[0][i++] / (real)c->a[0];
    while (def_next(c->in[0].shape, at));
    for (int64_t k = 0; k < n; k++) y[0][k] = first_of(op);
    i = 0;
    do y[0][home(c, at)] = joined(op, y[0][home(c, at)], x[0][i++], mean[home(c, at)]);
    while (def_next(c->in[0].shape, at));
    for (int64_t k = 0; k < n; k++) {
        if (op == MEAN || op == VAR) y[0][k] /= (real)c->a[0];
        if (op == VAR_UNBIASED) y[0][k] /= (real)(c->a[0] - 1);
        if (op == LOGSUMEXP) y[0][k] = logl(y[0][k]);
        if (op == NORM_2) y[0][k] = sqrtl(y[0][k]);
    }
}

/* The first of equal largest elements in row-major order gets the gradient. */
static bool ties_make(struct def_trial *c)
{
    static const int ops[] = { MAX, NORM_INFINITY };
    const int op = c->v[OVER_OP];
    c->v[OVER_OP] = ops[op];
    c->a[1] = op;
    const bool is_possible = over_make(c);
    if (!is_possible) return false;
    def_operand(c, 0, c->in[0].shape, DEF_TIES, c->v[OVER_LAYOUT]);
    return true;
}

/* The whole gradient of a maximum goes to the first of equal elements. */
static void ties_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    int64_t first[128];
    const bool norm = c->v[OVER_OP] == NORM_INFINITY;
    for (int64_t k = 0; k < 128; k++) first[k] = -1;
    do {
        int64_t *const best = &first[home(c, at)];
        if (*best < 0 || (norm ? fabsl(x[0][i]) > fabsl(x[0][*best]) : x[0][i] > x[0][*best])) *best = i;
        i++;
    } while (def_next(c->in[0].shape, at));
    for (int64_t k = 0; k < rw_shape_numel(c->out[0]); k++) {
        const real sign = !norm ? 1 : x[0][first[k]] > 0 ? 1 : x[0][first[k]] < 0 ? -1 : 0;
        dx[0][first[k]] = sign * dy[0][k];
    }
}

/* A product with zeros: the gradient of each factor is the product of the others. */
static double sometimes_zero(const struct def_trial *c, int64_t i)
{
    (void)c;
    return i % 7 == 2 ? 0 : (double)(i % 5 + 2) / 4;
}

static bool zeros_make(struct def_trial *c)
{
    c->v[OVER_OP] = PROD;
    if (!over_make(c)) return false;
    c->in[0].value = sometimes_zero;
    return true;
}

/* ---- along one axis ---- */

enum { ALONG_OP, ALONG_RANK, ALONG_AXIS, ALONG_NEGATIVE, ALONG_LONG, ALONG_LAYOUT };
enum { SOFTMAX, LOG_SOFTMAX, NORMALIZE_1, NORMALIZE_2, NORMALIZE_INFINITY, ALONG_OPS };

static double above_one(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 23 + 5) % 127 + 64) / 64 * (i % 3 ? 1 : -1);
}

static bool along_make(struct def_trial *c)
{
    rw_shape s = def_shape(c->v[ALONG_RANK] + 1);
    if (c->v[ALONG_AXIS] >= s.rank) return false;
    if (c->v[ALONG_LONG] && (s.rank > 2 || c->v[ALONG_OP] == NORMALIZE_INFINITY)) return false;
    if (c->v[ALONG_LONG]) s.dim[c->v[ALONG_AXIS]] = 1301;
    const bool divides = c->v[ALONG_OP] >= NORMALIZE_1;
    /* The largest of equal elements has no difference, and other gradients cancel */
    if (divides && c->v[ALONG_LAYOUT] == DEF_EXPANDED && !c->v[ALONG_AXIS]) return false;
    def_operand(c, 0, s, DEF_SIGNED, c->v[ALONG_LAYOUT]);
    if (divides) c->in[0].value = above_one;
    c->out[0] = s;
    return true;
}

static bool along_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const int axis = c->v[ALONG_NEGATIVE] ? c->v[ALONG_AXIS] - c->in[0].shape.rank : c->v[ALONG_AXIS];
    switch (c->v[ALONG_OP]) {
    case SOFTMAX: y[0] = rw_softmax(t, x[0], axis); break;
    case LOG_SOFTMAX: y[0] = rw_log_softmax(t, x[0], axis); break;
    case NORMALIZE_1: y[0] = rw_normalize(t, x[0], 1, axis, 0x1p-10); break;
    case NORMALIZE_2: y[0] = rw_normalize(t, x[0], 2, axis, 0x1p-10); break;
    default: y[0] = rw_normalize(t, x[0], INFINITY, axis, 0x1p-10); break;
    }
    return y[0];
}

/* Softmax or normalization of one row. */
static void along_row(int op, const real *x, real *y, int64_t n, int64_t step)
{
    real sum = 0;
    for (int64_t k = 0; k < n; k++) {
        const real v = x[k * step];
        if (op <= LOG_SOFTMAX) sum += expl(v);
        else if (op == NORMALIZE_INFINITY) sum = fmaxl(sum, fabsl(v));
        else sum += op == NORMALIZE_1 ? fabsl(v) : v * v;
    }
    if (op == NORMALIZE_2) sum = sqrtl(sum);
    for (int64_t k = 0; k < n; k++)
        y[k * step] = op == SOFTMAX       ? expl(x[k * step]) / sum
                      : op == LOG_SOFTMAX ? x[k * step] - logl(sum)
                                          : x[k * step] / sum;
}

static void along_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t outer, n, inner;
    def_split(c->in[0].shape, c->v[ALONG_AXIS], &outer, &n, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++)
            along_row(c->v[ALONG_OP], x[0] + o * n * inner + i, y[0] + o * n * inner + i, n, inner);
}

/* ---- causal softmax ---- */

static bool causal_make(struct def_trial *c)
{
    static const int64_t sizes[][2] = { { 4, 4 }, { 3, 5 }, { 1, 7 }, { 5, 3 } };
    rw_shape s = def_shape(c->v[0]);
    s.dim[s.rank++] = sizes[c->v[1]][0];
    s.dim[s.rank++] = sizes[c->v[1]][1];
    def_operand(c, 0, s, DEF_SIGNED, c->v[2]);
    c->out[0] = s;
    return true;
}

static bool causal_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_causal_softmax(t, x[0], c->v[3] ? 0.5 : 1.75));
}

static void causal_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const rw_shape s = c->in[0].shape;
    const int64_t seq = s.dim[s.rank - 2], keys = s.dim[s.rank - 1];
    const real scale = c->v[3] ? 0.5L : 1.75L;
    for (int64_t row = 0; row < c->in[0].numel / keys; row++) {
        const real *const from = x[0] + row * keys;
        const int64_t seen = row % seq + keys - seq + 1;
        real sum = 0;
        for (int64_t k = 0; k < seen && k < keys; k++) sum += expl(scale * from[k]);
        for (int64_t k = 0; k < keys; k++) y[0][row * keys + k] = k < seen ? expl(scale * from[k]) / sum : 0;
    }
}

#define OVER                                                                                                           \
    { "rank", 4 }, { "axes", 10 }, { "negative", 2 }, { "keep", 2 },                                                   \
    {                                                                                                                  \
        "layout", DEF_LAYOUTS                                                                                          \
    }

const struct definition def_reduce[] = {
    { .name = "over axes",
      .ops = "sum mean max logsumexp mul sub sqrt",
      .factor = { { "op", OVER_OPS }, OVER },
      .make = over_make,
      .record = over_record,
      .reference = over_reference,
      .roundings = 6,
      .back_roundings = 16,
      .stored = 6 },
    { .name = "ties over axes",
      .ops = "max",
      .factor = { { "op", 2 }, OVER },
      .make = ties_make,
      .record = over_record,
      .reference = over_reference,
      .gradient = ties_gradient,
      .back_roundings = 4,
      .stored = 1 },
    { .name = "product with zeros",
      .ops = "mul",
      .factor = { { "op", 1 }, OVER },
      .make = zeros_make,
      .record = over_record,
      .reference = over_reference,
      .roundings = 1,
      .back_roundings = 10,
      .stored = 6 },
    { .name = "along an axis",
      .ops = "softmax log_softmax div leave take",
      .factor = { { "op", ALONG_OPS },
                  { "rank", 4 },
                  { "axis", 4 },
                  { "negative", 2 },
                  { "long", 2 },
                  { "layout", DEF_LAYOUTS } },
      .make = along_make,
      .record = along_record,
      .reference = along_reference,
      .roundings = 12,
      .back_roundings = 30,
      .stored = 6 },
    { .name = "causal_softmax",
      .ops = "causal_softmax",
      .factor = { { "leading", 3 }, { "size", 4 }, { "layout", DEF_LAYOUTS }, { "scale", 2 } },
      .make = causal_make,
      .record = causal_record,
      .reference = causal_reference,
      .roundings = 12,
      .back_roundings = 30,
      .stored = 1 },
    { 0 }
};
