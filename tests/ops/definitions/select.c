/* Definitions of indexing ops (rewind/gather.h), rw_one_hot() and rw_embedding(). */
#include "support/definition_runner.h"

#include <math.h>

static int axis_of(const struct def_trial *c, int axis, bool is_negative, int rank)
{
    (void)c;
    return is_negative ? axis - rank : axis;
}

/* ---- gather, scatter_add ---- */

enum { RANK, AXIS, NEGATIVE, X_LAYOUT, INDEX_LAYOUT, EXTENT, WIDE, SHORT, SRC_LAYOUT };

/* Wide: more contiguous elements than kernels process at once. */
static rw_shape shape_of(const struct def_trial *c)
{
    const rw_shape s = def_shape(c->v[RANK] + 1);
    return c->v[WIDE] ? def_with(s, s.rank - 1, 70) : s;
}

static bool gather_make(struct def_trial *c)
{
    static const int64_t extents[] = { 1, 3, 7 };
    const rw_shape s = shape_of(c);
    if (c->v[AXIS] >= s.rank) return false;
    rw_shape index = def_with(s, c->v[AXIS], extents[c->v[EXTENT]]);
    for (int d = 0; c->v[SHORT] && d < s.rank; d++)
        if (d != c->v[AXIS]) index.dim[d]--;
    def_operand(c, 0, s, DEF_SIGNED, c->v[X_LAYOUT]);
    def_operand(c, 1, index, DEF_INDEX, c->v[INDEX_LAYOUT])->limit = s.dim[c->v[AXIS]];
    c->out[0] = index;
    return true;
}

static bool gather_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    y[0] = rw_gather(t, x[0], axis_of(c, c->v[AXIS], c->v[NEGATIVE], c->in[0].shape.rank), x[1]);
    return y[0];
}

static void gather_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, from[RW_MAX_RANK], i = 0;
    do {
        for (int d = 0; d < RW_MAX_RANK; d++) from[d] = at[d];
        from[c->v[AXIS]] = (int64_t)x[1][i];
        y[0][i++] = x[0][def_at(c->in[0].shape, from, c->in[0].shape.rank)];
    } while (def_next(c->out[0], at));
}

static void gather_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    int64_t at[RW_MAX_RANK] = { 0 }, from[RW_MAX_RANK], i = 0;
    do {
        for (int d = 0; d < RW_MAX_RANK; d++) from[d] = at[d];
        from[c->v[AXIS]] = (int64_t)x[1][i];
        dx[0][def_at(c->in[0].shape, from, c->in[0].shape.rank)] += dy[0][i++];
    } while (def_next(c->out[0], at));
}

static bool scatter_make(struct def_trial *c)
{
    if (!gather_make(c)) return false;
    def_operand(c, 2, c->out[0], DEF_SIGNED, c->v[SRC_LAYOUT]);
    c->out[0] = c->in[0].shape;
    return true;
}

static bool scatter_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    y[0] = rw_scatter_add(t, x[0], axis_of(c, c->v[AXIS], c->v[NEGATIVE], c->in[0].shape.rank), x[1], x[2]);
    return y[0];
}

static void scatter_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, to[RW_MAX_RANK], i = 0;
    for (int64_t k = 0; k < c->in[0].numel; k++) y[0][k] = x[0][k];
    do {
        for (int d = 0; d < RW_MAX_RANK; d++) to[d] = at[d];
        to[c->v[AXIS]] = (int64_t)x[1][i];
        y[0][def_at(c->out[0], to, c->out[0].rank)] += x[2][i++];
    } while (def_next(c->in[1].shape, at));
}

static void scatter_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    int64_t at[RW_MAX_RANK] = { 0 }, to[RW_MAX_RANK], i = 0;
    for (int64_t k = 0; k < c->in[0].numel; k++) dx[0][k] = dy[0][k];
    do {
        for (int d = 0; d < RW_MAX_RANK; d++) to[d] = at[d];
        to[c->v[AXIS]] = (int64_t)x[1][i];
        dx[2][i++] = dy[0][def_at(c->out[0], to, c->out[0].rank)];
    } while (def_next(c->in[1].shape, at));
}

/* ---- index_select ---- */

static bool index_select_make(struct def_trial *c)
{
    static const int64_t extents[] = { 1, 3, 7 };
    const rw_shape s = shape_of(c);
    if (c->v[AXIS] >= s.rank) return false;
    def_operand(c, 0, s, DEF_SIGNED, c->v[X_LAYOUT]);
    def_operand(c, 1, RW_SHAPE(extents[c->v[EXTENT]]), DEF_INDEX, c->v[INDEX_LAYOUT])->limit = s.dim[c->v[AXIS]];
    c->out[0] = def_with(s, c->v[AXIS], extents[c->v[EXTENT]]);
    return true;
}

static bool index_select_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    y[0] = rw_index_select(t, x[0], axis_of(c, c->v[AXIS], c->v[NEGATIVE], c->in[0].shape.rank), x[1]);
    return y[0];
}

static void index_select_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, from[RW_MAX_RANK], i = 0;
    do {
        for (int d = 0; d < RW_MAX_RANK; d++) from[d] = at[d];
        from[c->v[AXIS]] = (int64_t)x[1][at[c->v[AXIS]]];
        y[0][i++] = x[0][def_at(c->in[0].shape, from, c->in[0].shape.rank)];
    } while (def_next(c->out[0], at));
}

static void index_select_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    int64_t at[RW_MAX_RANK] = { 0 }, from[RW_MAX_RANK], i = 0;
    do {
        for (int d = 0; d < RW_MAX_RANK; d++) from[d] = at[d];
        from[c->v[AXIS]] = (int64_t)x[1][at[c->v[AXIS]]];
        dx[0][def_at(c->in[0].shape, from, c->in[0].shape.rank)] += dy[0][i++];
    } while (def_next(c->out[0], at));
}

/* ---- one_hot ---- */

enum { HOT_RANK, HOT_CLASSES, HOT_TYPE, HOT_LAYOUT };

static bool one_hot_make(struct def_trial *c)
{
    static const int64_t classes[] = { 1, 2, 6, 19 };
    rw_shape s = def_shape(c->v[HOT_RANK]);
    def_operand(c, 0, s, DEF_INDEX, c->v[HOT_LAYOUT])->limit = classes[c->v[HOT_CLASSES]];
    s.dim[s.rank++] = classes[c->v[HOT_CLASSES]];
    c->out[0] = s;
    return true;
}

static bool one_hot_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16, RW_I32, RW_BOOL };
    y[0] = rw_one_hot(t, x[0], c->out[0].dim[c->out[0].rank - 1], types[c->v[HOT_TYPE]]);
    return y[0] && rw_tensor_dtype(y[0]) == types[c->v[HOT_TYPE]];
}

static void one_hot_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t classes = c->out[0].dim[c->out[0].rank - 1];
    for (int64_t i = 0; i < c->in[0].numel; i++)
        for (int64_t k = 0; k < classes; k++) y[0][i * classes + k] = (int64_t)x[0][i] == k;
}

/* ---- topk, argmax, argmin ---- */

enum { TOP_RANK, TOP_AXIS, TOP_NEGATIVE, TOP_LAYOUT, TOP_K, TOP_TIES };

static bool topk_make(struct def_trial *c)
{
    const rw_shape s = def_shape(c->v[TOP_RANK] + 1);
    const int axis = c->v[TOP_AXIS];
    if (axis >= s.rank) return false;
    c->a[0] = c->v[TOP_K] == 2 ? s.dim[axis] : c->v[TOP_K] + 1;
    def_operand(c, 0, s, c->v[TOP_TIES] ? DEF_TIES : DEF_DISTINCT, c->v[TOP_LAYOUT]);
    c->out[0] = c->out[1] = def_with(s, axis, c->a[0]);
    c->n_out = 2;
    return true;
}

static bool topk_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return !rw_topk(t, x[0], c->a[0], axis_of(c, c->v[TOP_AXIS], c->v[TOP_NEGATIVE], c->out[0].rank), &y[0], &y[1]);
}

/* Positions of the k largest of n elements `step` apart, the first of equal ones first. */
static void best(const real *x, int64_t n, int64_t step, int64_t k, int64_t *place)
{
    bool taken[16] = { false };
    for (int64_t j = 0; j < k; j++) {
        int64_t most = -1;
        for (int64_t i = 0; i < n; i++)
            if (!taken[i] && (most < 0 || x[i * step] > x[most * step])) most = i;
        taken[most] = true;
        place[j] = most;
    }
}

static void topk_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t outer, n, inner, place[16];
    def_split(c->in[0].shape, c->v[TOP_AXIS], &outer, &n, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            const real *const row = x[0] + o * n * inner + i;
            best(row, n, inner, c->a[0], place);
            for (int64_t j = 0; j < c->a[0]; j++) {
                y[0][(o * c->a[0] + j) * inner + i] = row[place[j] * inner];
                y[1][(o * c->a[0] + j) * inner + i] = (real)place[j];
            }
        }
}

static void topk_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    int64_t outer, n, inner, place[16];
    def_split(c->in[0].shape, c->v[TOP_AXIS], &outer, &n, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            best(x[0] + o * n * inner + i, n, inner, c->a[0], place);
            for (int64_t j = 0; j < c->a[0]; j++)
                dx[0][(o * n + place[j]) * inner + i] += dy[0][(o * c->a[0] + j) * inner + i];
        }
}

enum { ARG_RANK, ARG_AXIS, ARG_NEGATIVE, ARG_LAYOUT, ARG_KEEP, ARG_TIES, ARG_SMALLEST };

static bool argmax_make(struct def_trial *c)
{
    const rw_shape s = def_shape(c->v[ARG_RANK] + 1);
    if (c->v[ARG_AXIS] >= s.rank) return false;
    def_operand(c, 0, s, c->v[ARG_TIES] ? DEF_TIES : DEF_DISTINCT, c->v[ARG_LAYOUT]);
    c->out[0] = def_without(s, c->v[ARG_AXIS], c->v[ARG_KEEP]);
    return true;
}

static bool argmax_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const int axis = axis_of(c, c->v[ARG_AXIS], c->v[ARG_NEGATIVE], c->in[0].shape.rank);
    y[0] = c->v[ARG_SMALLEST] ? rw_argmin(t, x[0], axis, c->v[ARG_KEEP]) : rw_argmax(t, x[0], axis, c->v[ARG_KEEP]);
    return y[0];
}

static void argmax_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t outer, n, inner;
    def_split(c->in[0].shape, c->v[ARG_AXIS], &outer, &n, &inner);
    const int sign = c->v[ARG_SMALLEST] ? -1 : 1;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            const real *const row = x[0] + o * n * inner + i;
            int64_t most = 0;
            for (int64_t k = 1; k < n; k++)
                if (sign * row[k * inner] > sign * row[most * inner]) most = k;
            y[0][o * inner + i] = (real)most;
        }
}

/* ---- embedding, bags ---- */

enum { TABLE_RANK, TABLE_LAYOUT, TABLE_INDEX_LAYOUT, TABLE_WIDTH, TABLE_PADDING };

static bool embedding_make(struct def_trial *c)
{
    static const int64_t widths[] = { 1, 5, 17 };
    rw_shape s = def_shape(c->v[TABLE_RANK]);
    def_operand(c, 0, RW_SHAPE(6, widths[c->v[TABLE_WIDTH]]), DEF_SIGNED, c->v[TABLE_LAYOUT]);
    def_operand(c, 1, s, DEF_INDEX, c->v[TABLE_INDEX_LAYOUT])->limit = 6;
    s.dim[s.rank++] = widths[c->v[TABLE_WIDTH]];
    c->out[0] = s;
    return true;
}

static bool embedding_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    static const int64_t padding[] = { 0, 2, -1 }; /* values of the factor: none, 2, the last */
    const rw_embedding_params params = { .has_padding_index = true, .padding_index = padding[c->v[TABLE_PADDING]] };
    y[0] = c->v[TABLE_PADDING] ? rw_embedding_with(t, x[0], x[1], &params) : rw_embedding(t, x[0], x[1]);
    return y[0];
}

static void embedding_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t width = c->in[0].shape.dim[1];
    for (int64_t i = 0; i < c->in[1].numel; i++)
        for (int64_t k = 0; k < width; k++) y[0][i * width + k] = x[0][(int64_t)x[1][i] * width + k];
}

static void embedding_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    static const int64_t padding[] = { -1, 2, 5 };
    const int64_t width = c->in[0].shape.dim[1];
    for (int64_t i = 0; i < c->in[1].numel; i++) {
        if ((int64_t)x[1][i] == padding[c->v[TABLE_PADDING]]) continue;
        for (int64_t k = 0; k < width; k++) dx[0][(int64_t)x[1][i] * width + k] += dy[0][i * width + k];
    }
}

enum { BAG_MODE, BAG_WEIGHTS, BAG_OFFSETS, BAG_PADS, BAG_TABLE_LAYOUT, BAG_INDEX_LAYOUT, BAG_PLAIN };

/* Starts of four bags, one of them empty, in seven rows. */
static double bag_start(const struct def_trial *c, int64_t i)
{
    static const double starts[] = { 0, 2, 2, 5, 7 };
    (void)c;
    return starts[i];
}

/* Operands of an embedding bag; false where the options exclude each other. */
static bool bag_make(struct def_trial *c)
{
    const bool is_flat = c->v[BAG_OFFSETS] > 0;
    if (c->v[BAG_WEIGHTS] && c->v[BAG_MODE] != RW_BAG_SUM) return false;
    if (c->v[BAG_PLAIN] && (c->v[BAG_WEIGHTS] || is_flat || c->v[BAG_PADS] || c->v[BAG_MODE] == RW_BAG_MAX))
        return false;
    if (c->v[BAG_MODE] == RW_BAG_MAX && c->v[BAG_TABLE_LAYOUT] == DEF_EXPANDED) return false; /* equal rows */
    def_operand(c, 0, RW_SHAPE(6, 5), DEF_DISTINCT, c->v[BAG_TABLE_LAYOUT]);
    def_operand(c, 1, is_flat ? RW_SHAPE(7) : RW_SHAPE(4, 3), DEF_INDEX, c->v[BAG_INDEX_LAYOUT])->limit = 6;
    def_operand(c, 2, c->in[1].shape, DEF_SIGNED, DEF_DENSE)->is_absent = !c->v[BAG_WEIGHTS];
    struct def_operand *const o = def_operand(c, 3, RW_SHAPE(c->v[BAG_OFFSETS] == 2 ? 5 : 4), DEF_INDEX, DEF_DENSE);
    o->value = bag_start;
    o->is_absent = !is_flat;
    c->out[0] = RW_SHAPE(4, 5);
    return true;
}

static bool bag_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const rw_embedding_bag_params params = { .mode = (rw_bag_mode)c->v[BAG_MODE],
                                             .weights = x[2],
                                             .offsets = x[3],
                                             .ends = c->v[BAG_OFFSETS] == 2,
                                             .has_padding_index = c->v[BAG_PADS] > 0,
                                             .padding_index = (const int64_t[]){ 0, 2, -1 }[c->v[BAG_PADS]] };
    y[0] = c->v[BAG_PLAIN] ? rw_embedding_bag(t, x[0], x[1], params.mode)
                           : rw_embedding_bag_with(t, x[0], x[1], &params);
    return y[0];
}

/* Reduces the table's rows of each bag, without the padding rows. */
static void bag_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    static const int64_t padding[] = { -1, 2, 5 };
    for (int64_t bag = 0; bag < 4; bag++)
        for (int64_t k = 0; k < 5; k++) {
            const int64_t begin = x[3] ? (int64_t)bag_start(c, bag) : bag * 3;
            const int64_t end = x[3] ? (int64_t)bag_start(c, bag + 1) : bag * 3 + 3;
            real sum = 0, most = -INFINITY;
            int n = 0;
            for (int64_t i = begin; i < end; i++) {
                const int64_t row = (int64_t)x[1][i];
                if (row == padding[c->v[BAG_PADS]]) continue;
                const real value = x[0][row * 5 + k];
                sum += value * (x[2] ? x[2][i] : 1);
                most = fmaxl(most, value);
                n++;
            }
            y[0][bag * 5 + k] = !n                              ? 0
                                : c->v[BAG_MODE] == RW_BAG_SUM  ? sum
                                : c->v[BAG_MODE] == RW_BAG_MEAN ? sum / n
                                                                : most;
        }
}

const struct definition def_select[] = {
    { .name = "gather",
      .ops = "gather",
      .factor = { { "rank", 4 },
                  { "axis", 4 },
                  { "negative", 2 },
                  { "x", DEF_LAYOUTS },
                  { "index", DEF_LAYOUTS },
                  { "extent", 3 },
                  { "wide", 2 },
                  { "short", 2 } },
      .make = gather_make,
      .record = gather_record,
      .reference = gather_reference,
      .gradient = gather_gradient,
      .back_roundings = 8,
      .any_type = true },
    { .name = "scatter_add",
      .ops = "scatter_add",
      .factor = { { "rank", 4 },
                  { "axis", 4 },
                  { "negative", 2 },
                  { "x", DEF_LAYOUTS },
                  { "index", DEF_LAYOUTS },
                  { "extent", 3 },
                  { "wide", 2 },
                  { "short", 2 },
                  { "src", DEF_LAYOUTS } },
      .make = scatter_make,
      .record = scatter_record,
      .reference = scatter_reference,
      .gradient = scatter_gradient,
      .roundings = 8,
      .back_roundings = 8 },
    { .name = "index_select",
      .ops = "index_select",
      .factor = { { "rank", 4 },
                  { "axis", 4 },
                  { "negative", 2 },
                  { "x", DEF_LAYOUTS },
                  { "index", 3 },
                  { "extent", 3 },
                  { "wide", 2 } },
      .make = index_select_make,
      .record = index_select_record,
      .reference = index_select_reference,
      .gradient = index_select_gradient,
      .back_roundings = 8,
      .any_type = true },
    { .name = "one_hot",
      .ops = "one_hot",
      .factor = { { "rank", 4 }, { "classes", 4 }, { "type", 6 }, { "layout", DEF_LAYOUTS } },
      .make = one_hot_make,
      .record = one_hot_record,
      .reference = one_hot_reference,
      .no_gradient = true },
    { .name = "topk",
      .ops = "topk",
      .factor = { { "rank", 4 }, { "axis", 4 }, { "negative", 2 }, { "x", DEF_LAYOUTS }, { "k", 3 }, { "ties", 2 } },
      .make = topk_make,
      .record = topk_record,
      .reference = topk_reference,
      .gradient = topk_gradient,
      .back_roundings = 4 },
    { .name = "argmax",
      .ops = "argmax argmin",
      .factor = { { "rank", 4 },
                  { "axis", 4 },
                  { "negative", 2 },
                  { "x", DEF_LAYOUTS },
                  { "keep", 2 },
                  { "ties", 2 },
                  { "smallest", 2 } },
      .make = argmax_make,
      .record = argmax_record,
      .reference = argmax_reference,
      .no_gradient = true },
    { .name = "embedding",
      .ops = "embedding",
      .factor = { { "rank", 4 }, { "table", DEF_LAYOUTS }, { "index", DEF_LAYOUTS }, { "width", 3 }, { "padding", 3 } },
      .make = embedding_make,
      .record = embedding_record,
      .reference = embedding_reference,
      .gradient = embedding_gradient,
      .back_roundings = 8 },
    { .name = "embedding_bag",
      .ops = "embedding_bag embedding_bag_argmax embedding_bag_offsets",
      .factor = { { "mode", 3 },
                  { "weights", 2 },
                  { "offsets", 3 },
                  { "pads", 3 },
                  { "table", DEF_LAYOUTS },
                  { "index", DEF_LAYOUTS },
                  { "plain", 2 } },
      .make = bag_make,
      .record = bag_record,
      .reference = bag_reference,
      .roundings = 2,
      .back_roundings = 2,
      .stored = 2 },
    { 0 }
};
