/* Definitions of slices, copies and permutations (rewind/select.h and the shapes of rewind/ops.h), and of
   rewind/create.h. */
#include "support/definition_runner.h"

#include <math.h>

/* The common form: y[at] = x[from(at)], or 0 if it returns false. Central differences give the gradient. */
typedef bool (*origin)(const struct def_trial *c, const int64_t *at, int64_t *from);

static void copy_from(const struct def_trial *c, const real *x, real *y, real other, origin from_of)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    if (rw_shape_numel(c->out[0])) do {
            int64_t from[RW_MAX_RANK] = { 0 };
            y[i++] = from_of(c, at, from) ? x[def_at(c->in[0].shape, from, c->in[0].shape.rank)] : other;
        } while (def_next(c->out[0], at));
}

enum { RANK, AXIS, NEGATIVE, LAYOUT, A, B, C, D };

static int axis_of(const struct def_trial *c)
{
    return c->v[NEGATIVE] ? c->v[AXIS] - c->in[0].shape.rank : c->v[AXIS];
}

/* Sets x of that rank. False if it has no such axis. */
static bool begin(struct def_trial *c, rw_shape *s)
{
    *s = def_shape(c->v[RANK] + 1);
    if (c->v[AXIS] >= s->rank) return false;
    def_operand(c, 0, *s, DEF_SIGNED, c->v[LAYOUT]);
    return true;
}

/* ---- select, slice, roll, flip, unfold, unsqueeze ---- */

static bool select_make(struct def_trial *c)
{
    rw_shape s;
    if (!begin(c, &s)) return false;
    const int64_t n = s.dim[c->v[AXIS]], index[] = { 0, n - 1, -1, -n };
    c->a[0] = index[c->v[A]];
    c->out[0] = def_without(s, c->v[AXIS], false);
    return true;
}

static bool select_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_select(t, x[0], axis_of(c), c->a[0]));
}

static bool select_origin(const struct def_trial *c, const int64_t *at, int64_t *from)
{
    const int axis = c->v[AXIS];
    for (int d = 0; d < c->in[0].shape.rank; d++) from[d] = d < axis ? at[d] : d > axis ? at[d - 1] : 0;
    from[axis] = c->a[0] < 0 ? c->a[0] + c->in[0].shape.dim[axis] : c->a[0];
    return true;
}

static void select_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    copy_from(c, x[0], y[0], 0, select_origin);
}

static bool slice_make(struct def_trial *c)
{
    rw_shape s;
    if (!begin(c, &s)) return false;
    const int64_t n = s.dim[c->v[AXIS]];
    c->a[0] = c->v[A];
    c->a[1] = n - c->v[B];
    if (c->a[0] > c->a[1]) return false;
    c->out[0] = def_with(s, c->v[AXIS], c->a[1] - c->a[0]);
    return rw_shape_numel(c->out[0]) > 0;
}

static bool slice_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_slice(t, x[0], axis_of(c), c->a[0], c->a[1]));
}

static bool slice_origin(const struct def_trial *c, const int64_t *at, int64_t *from)
{
    for (int d = 0; d < c->in[0].shape.rank; d++) from[d] = at[d] + (d == c->v[AXIS] ? c->a[0] : 0);
    return true;
}

static void slice_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    copy_from(c, x[0], y[0], 0, slice_origin);
}

static bool roll_make(struct def_trial *c)
{
    rw_shape s;
    if (!begin(c, &s)) return false;
    static const int64_t shifts[] = { 0, 1, -1, 3, 12, -13 };
    c->a[0] = shifts[c->v[A]];
    c->out[0] = s;
    return true;
}

static bool roll_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_roll(t, x[0], c->a[0], axis_of(c)));
}

static bool roll_origin(const struct def_trial *c, const int64_t *at, int64_t *from)
{
    const int64_t n = c->in[0].shape.dim[c->v[AXIS]];
    for (int d = 0; d < c->in[0].shape.rank; d++) from[d] = at[d];
    from[c->v[AXIS]] = ((at[c->v[AXIS]] - c->a[0]) % n + n) % n;
    return true;
}

static void roll_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    copy_from(c, x[0], y[0], 0, roll_origin);
}

static bool flip_make(struct def_trial *c)
{
    return begin(c, &c->out[0]);
}

static bool flip_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_flip(t, x[0], axis_of(c)));
}

static bool flip_origin(const struct def_trial *c, const int64_t *at, int64_t *from)
{
    for (int d = 0; d < c->in[0].shape.rank; d++) from[d] = at[d];
    from[c->v[AXIS]] = c->in[0].shape.dim[c->v[AXIS]] - 1 - at[c->v[AXIS]];
    return true;
}

static void flip_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    copy_from(c, x[0], y[0], 0, flip_origin);
}

static bool unfold_make(struct def_trial *c)
{
    rw_shape s;
    if (!begin(c, &s)) return false;
    const int64_t n = s.dim[c->v[AXIS]];
    c->a[0] = c->v[A] + 1, c->a[1] = c->v[B] + 1;
    if (c->a[0] > n) return false;
    c->out[0] = def_with(s, c->v[AXIS], (n - c->a[0]) / c->a[1] + 1);
    c->out[0].dim[c->out[0].rank++] = c->a[0];
    return true;
}

static bool unfold_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_unfold(t, x[0], axis_of(c), c->a[0], c->a[1]));
}

static bool unfold_origin(const struct def_trial *c, const int64_t *at, int64_t *from)
{
    const int rank = c->in[0].shape.rank;
    for (int d = 0; d < rank; d++) from[d] = at[d];
    from[c->v[AXIS]] = at[c->v[AXIS]] * c->a[1] + at[rank];
    return true;
}

static void unfold_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    copy_from(c, x[0], y[0], 0, unfold_origin);
}

/* ---- pad ---- */

/* An operand to pad at its last axes; false where the mode does not take the widths. */
static bool pad_make(struct def_trial *c)
{
    static const int64_t pads[][2] = { { 0, 0 }, { 1, 0 }, { 0, 1 }, { 1, 2 }, { -1, 1 }, { 2, -1 } };
    rw_shape s = def_shape(c->v[RANK] + 1);
    const int n = c->v[AXIS] + 1; /* number of padded axes, counted from the last */
    const int mode = c->v[A];
    if (n > s.rank) return false;
    if (mode == RW_PAD_CONSTANT && c->v[D]) return false;
    for (int d = 0; d < s.rank; d++) s.dim[d] += 1;
    def_operand(c, 0, s, DEF_SIGNED, c->v[LAYOUT]);
    c->out[0] = s;
    for (int i = 0; i < n; i++) {
        const int64_t *const pad = pads[i == 0 ? c->v[B] : c->v[C]];
        if (mode != RW_PAD_CONSTANT && (pad[0] < 0 || pad[1] < 0)) return false;
        c->a[2 * i] = pad[0], c->a[2 * i + 1] = pad[1];
        c->out[0].dim[s.rank - 1 - i] += pad[0] + pad[1];
    }
    return true;
}

static bool pad_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_pad(t, x[0], c->a, 2 * (c->v[AXIS] + 1), (rw_pad_mode)c->v[A], 0.75));
}

static bool pad_origin(const struct def_trial *c, const int64_t *at, int64_t *from)
{
    const rw_shape s = c->in[0].shape;
    for (int d = 0; d < s.rank; d++) {
        const int i = s.rank - 1 - d;
        const int64_t n = s.dim[d], k = at[d] - (i <= c->v[AXIS] ? c->a[2 * i] : 0);
        from[d] = k;
        if (k >= 0 && k < n) continue;
        if (c->v[A] == RW_PAD_CONSTANT) return false;
        if (c->v[A] == RW_PAD_REFLECT) from[d] = k < 0 ? -k : 2 * (n - 1) - k;
        if (c->v[A] == RW_PAD_REPLICATE) from[d] = k < 0 ? 0 : n - 1;
        if (c->v[A] == RW_PAD_CIRCULAR) from[d] = k < 0 ? k + n : k - n;
    }
    return true;
}

static void pad_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const real other = c->dtype == RW_I32 ? 0 : c->dtype == RW_BOOL ? 1 : 0.75L;
    copy_from(c, x[0], y[0], other, pad_origin);
}

/* ---- shapes ---- */

enum { TO_LAYOUT, TO_LENGTH, TO_OPS };

/* An operand to permute, reshape and give an axis of extent 1. */
static bool permute_make(struct def_trial *c)
{
    static const int orders[][4] = { { 0, 1, 2, 3 }, { 1, 0, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 }, { 0, 2, 1, 3 } };
    const rw_shape s = def_shape(4);
    c->n_out = 4;
    def_operand(c, 0, s, DEF_SIGNED, c->v[0]);
    for (int d = 0; d < 4; d++) c->a[d] = orders[c->v[1]][d];
    c->out[0] = s;
    for (int d = 0; d < 4; d++) c->out[0].dim[d] = s.dim[c->a[d]];
    c->out[1] = c->v[2] ? RW_SHAPE(15, 2, 4) : RW_SHAPE(2, 60);
    c->a[4] = c->v[3]; /* position of the axis of extent 1 */
    c->out[2] = (rw_shape){ .rank = 5 };
    for (int d = 0, from = 0; d < 5; d++) c->out[2].dim[d] = d == c->a[4] ? 1 : c->out[0].dim[from++];
    c->out[3] = c->out[0];
    return true;
}

static bool permute_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const int axes[] = { (int)c->a[0], (int)c->a[1], (int)c->a[2], (int)c->a[3] };
    y[0] = rw_permute(t, x[0], axes);
    y[1] = rw_reshape(t, y[0], c->v[2] ? RW_SHAPE(15, -1, 4) : RW_SHAPE(2, 60));
    y[2] = rw_unsqueeze(t, y[0], c->a[4] == 4 ? -1 : (int)c->a[4]);
    y[3] = rw_contiguous(t, y[0]);
    return y[0] && y[1] && y[2] && y[3];
}

static void permute_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, from[4], i = 0;
    do {
        for (int d = 0; d < 4; d++) from[c->a[d]] = at[d];
        y[0][i] = y[1][i] = y[2][i] = y[3][i] = x[0][def_at(c->in[0].shape, from, 4)];
        i++;
    } while (def_next(c->out[0], at));
}

static bool broadcast_make(struct def_trial *c)
{
    rw_shape s = def_shape(4);
    for (int d = 0; d < 4; d++)
        if (c->v[d]) s.dim[d] = 1;
    const int less = c->v[0] ? c->v[4] : 0; /* the first axis is missing */
    rw_shape x = s;
    if (less) x = def_without(s, 0, false);
    def_operand(c, 0, x, DEF_SIGNED, c->v[5]);
    def_operand(c, 1, def_shape(4), DEF_SIGNED, c->v[6]);
    c->out[0] = def_shape(4);
    c->out[1] = x;
    c->n_out = 2;
    return true;
}

static bool broadcast_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    y[0] = rw_broadcast_to(t, x[0], c->out[0]);
    y[1] = rw_sum_to(t, x[1], c->out[1]);
    return y[0] && y[1];
}

static void broadcast_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    do {
        const int64_t k = def_at(c->in[0].shape, at, 4);
        y[0][i] = x[0][k];
        y[1][k] += x[1][i++];
    } while (def_next(c->out[0], at));
}

/* ---- concat, stack, split, unbind ---- */

enum { JOIN_RANK, JOIN_AXIS, JOIN_NEGATIVE, JOIN_N, JOIN_X, JOIN_Y, JOIN_Z, JOIN_STACK };

/* Operands to concatenate or stack; false where the axis does not exist. */
static bool concat_make(struct def_trial *c)
{
    static const int64_t extents[] = { 2, 1, 4 };
    rw_shape s = def_shape(c->v[JOIN_RANK] + 1);
    const int axis = c->v[JOIN_AXIS], n = c->v[JOIN_N] + 1;
    if (axis >= s.rank + c->v[JOIN_STACK]) return false;
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        rw_shape one = s;
        if (!c->v[JOIN_STACK]) sum += one.dim[axis] = extents[i];
        def_operand(c, i, one, DEF_SIGNED, c->v[JOIN_X + i]);
    }
    if (c->v[JOIN_STACK]) {
        c->out[0] = (rw_shape){ .rank = s.rank + 1 };
        for (int d = 0, from = 0; d <= s.rank; d++) c->out[0].dim[d] = d == axis ? n : s.dim[from++];
    } else c->out[0] = def_with(s, axis, sum);
    return true;
}

static bool concat_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const int n = c->v[JOIN_N] + 1;
    const int axis = c->v[JOIN_NEGATIVE] ? c->v[JOIN_AXIS] - c->out[0].rank : c->v[JOIN_AXIS];
    y[0] = c->v[JOIN_STACK] ? rw_stack(t, x, n, axis) : rw_concat(t, x, n, axis);
    return y[0];
}

/* Copies each operand's elements to their place. */
static void concat_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, from[RW_MAX_RANK], i = 0;
    const int axis = c->v[JOIN_AXIS];
    do {
        int which = 0, to = 0;
        int64_t k = at[axis];
        if (c->v[JOIN_STACK]) {
            which = (int)k;
            for (int d = 0; d < c->out[0].rank; d++)
                if (d != axis) from[to++] = at[d];
        } else {
            for (; k >= c->in[which].shape.dim[axis]; which++) k -= c->in[which].shape.dim[axis];
            for (int d = 0; d < c->out[0].rank; d++) from[d] = d == axis ? k : at[d];
        }
        y[0][i++] = x[which][def_at(c->in[which].shape, from, c->in[which].shape.rank)];
    } while (def_next(c->out[0], at));
}

enum { CUT_RANK, CUT_AXIS, CUT_NEGATIVE, CUT_LAYOUT, CUT_SIZES };

static const int64_t cuts[][4] = { { 4, 1, 2, 0 }, { 7 }, { 1, 6 }, { 1, 1, 1, 4 } };

/* An operand to split, and the shapes of the pieces; false where the axis does not exist. */
static bool split_make(struct def_trial *c)
{
    rw_shape s = def_shape(c->v[CUT_RANK] + 1);
    const int axis = c->v[CUT_AXIS];
    if (axis >= s.rank) return false;
    const bool unbinds = c->v[CUT_SIZES] == 4;
    s.dim[axis] = unbinds ? 3 : 7;
    def_operand(c, 0, s, DEF_SIGNED, c->v[CUT_LAYOUT]);
    c->n_out = 0;
    if (unbinds)
        for (; c->n_out < 3; c->n_out++) c->out[c->n_out] = def_without(s, axis, false);
    else
        for (; c->n_out < 4 && cuts[c->v[CUT_SIZES]][c->n_out]; c->n_out++)
            c->out[c->n_out] = def_with(s, axis, cuts[c->v[CUT_SIZES]][c->n_out]);
    return true;
}

static bool split_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const int axis = c->v[CUT_NEGATIVE] ? c->v[CUT_AXIS] - c->in[0].shape.rank : c->v[CUT_AXIS];
    if (c->v[CUT_SIZES] == 4) return !rw_unbind(t, x[0], axis, y, 3);
    return !rw_split(t, x[0], axis, cuts[c->v[CUT_SIZES]], c->n_out, y);
}

static void split_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, n[DEF_RESULTS] = { 0 }, i = 0;
    do {
        int64_t k = at[c->v[CUT_AXIS]];
        int which = 0;
        if (c->v[CUT_SIZES] == 4) which = (int)k;
        else
            for (; k >= cuts[c->v[CUT_SIZES]][which]; which++) k -= cuts[c->v[CUT_SIZES]][which];
        y[which][n[which]++] = x[0][i++];
    } while (def_next(c->in[0].shape, at));
}

/* ---- casts, constants, other gradients ---- */

static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16, RW_I32, RW_BOOL };

static double cast_number(const struct def_trial *c, int64_t i)
{
    static const double numbers[] = { 0, -0.5, 1.75, -2.25, 2, -1, 0.03125, -3.5 };
    if (c->dtype == RW_BOOL) return i % 3 == 0;
    return c->dtype == RW_I32 ? trunc(2 * numbers[i % 8]) : numbers[i % 8];
}

static bool cast_make(struct def_trial *c)
{
    def_operand(c, 0, def_shape(c->v[0]), DEF_SIGNED, c->v[1])->value = cast_number;
    c->out[0] = c->in[0].shape;
    return true;
}

static bool cast_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    y[0] = rw_cast(t, x[0], types[c->v[2]]);
    return y[0] && rw_tensor_dtype(y[0]) == types[c->v[2]];
}

static void cast_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    for (int64_t i = 0; i < c->in[0].numel; i++)
        y[0][i] = types[c->v[2]] == RW_BOOL ? x[0][i] != 0 : types[c->v[2]] == RW_I32 ? truncl(x[0][i]) : x[0][i];
}

static void cast_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    (void)x;
    for (int64_t i = 0; rw_dtype_is_float(types[c->v[2]]) && i < c->in[0].numel; i++) dx[0][i] = dy[0][i];
}

static bool fill_make(struct def_trial *c)
{
    static const double starts[][3] = { { 0, 5, 1 }, { -3, 4, 2 }, { 7, -2, -3 }, { 2, 3, 1 } };
    for (int k = 0; k < 3; k++) c->d[k] = starts[c->v[1]][k];
    if (types[c->v[2]] == RW_BOOL) return false;
    c->out[0] = def_shape(c->v[0]);
    c->out[1] = RW_SHAPE((int64_t)ceil((c->d[1] - c->d[0]) / c->d[2]));
    c->n_out = 2;
    return true;
}

static bool fill_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    (void)x;
    y[0] = c->v[1] == 0   ? rw_zeros(t, types[c->v[2]], c->out[0])
           : c->v[1] == 1 ? rw_ones(t, types[c->v[2]], c->out[0])
                          : rw_full(t, types[c->v[2]], c->out[0], -2.5);
    y[1] = rw_arange(t, types[c->v[2]], c->d[0], c->d[1], c->d[2]);
    return y[0] && y[1];
}

static void fill_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    (void)x;
    for (int64_t i = 0; i < rw_shape_numel(c->out[0]); i++)
        y[0][i] = c->v[1] < 2 ? c->v[1] : types[c->v[2]] == RW_I32 ? -2 : -2.5L;
    for (int64_t i = 0; i < c->out[1].dim[0]; i++) y[1][i] = (real)(c->d[0] + (double)i * c->d[2]);
}

static bool through_make(struct def_trial *c)
{
    def_operand(c, 0, def_shape(c->v[0]), DEF_SIGNED, c->v[1]);
    def_operand(c, 1, def_shape(c->v[0]), DEF_SIGNED, c->v[2]);
    c->out[0] = c->out[1] = c->in[0].shape;
    c->n_out = 2;
    return true;
}

static bool through_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    (void)c;
    y[0] = rw_straight_through(t, x[0], x[1]);
    y[1] = rw_add(t, rw_detach(t, x[0]), x[0]);
    return y[0] && y[1];
}

static void through_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    for (int64_t i = 0; i < c->in[0].numel; i++) y[0][i] = x[0][i], y[1][i] = 2 * x[0][i];
}

static void through_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    (void)x;
    for (int64_t i = 0; i < c->in[0].numel; i++) dx[0][i] = dy[1][i], dx[1][i] = dy[0][i];
}

#define ALONG                                                                                                          \
    { "rank", 4 }, { "axis", 4 }, { "negative", 2 },                                                                   \
    {                                                                                                                  \
        "layout", DEF_LAYOUTS                                                                                          \
    }

const struct definition def_views[] = {
    { .name = "select",
      .ops = "select",
      .factor = { ALONG, { "index", 4 } },
      .make = select_make,
      .record = select_record,
      .reference = select_reference,
      .back_roundings = 4,
      .any_type = true },
    { .name = "slice",
      .ops = "slice",
      .factor = { ALONG, { "start", 3 }, { "end", 3 } },
      .make = slice_make,
      .record = slice_record,
      .reference = slice_reference,
      .back_roundings = 4,
      .any_type = true },
    { .name = "roll",
      .ops = "roll",
      .factor = { ALONG, { "shift", 6 } },
      .make = roll_make,
      .record = roll_record,
      .reference = roll_reference,
      .back_roundings = 4,
      .any_type = true },
    { .name = "flip",
      .ops = "flip",
      .factor = { ALONG },
      .make = flip_make,
      .record = flip_record,
      .reference = flip_reference,
      .back_roundings = 4,
      .any_type = true },
    { .name = "unfold",
      .ops = "unfold",
      .factor = { ALONG, { "size", 4 }, { "step", 3 } },
      .make = unfold_make,
      .record = unfold_record,
      .reference = unfold_reference,
      .back_roundings = 8,
      .any_type = true },
    { .name = "pad",
      .ops = "pad reflect_pad replicate_pad circular_pad",
      .factor = { ALONG, { "mode", RW_PAD_MODE_COUNT }, { "last", 6 }, { "other", 6 } },
      .make = pad_make,
      .record = pad_record,
      .reference = pad_reference,
      .back_roundings = 16,
      .stored = 4,
      .any_type = true },
    { .name = "permute",
      .ops = "permute reshape unsqueeze contiguous",
      .factor = { { "layout", DEF_LAYOUTS }, { "order", 5 }, { "shape", 2 }, { "place", 5 } },
      .make = permute_make,
      .record = permute_record,
      .reference = permute_reference,
      .back_roundings = 8,
      .stored = 4,
      .any_type = true },
    { .name = "broadcast_to",
      .ops = "broadcast_to sum_to",
      .factor = { { "first", 2 },
                  { "second", 2 },
                  { "third", 2 },
                  { "fourth", 2 },
                  { "missing", 2 },
                  { "layout", DEF_LAYOUTS },
                  { "sum", DEF_LAYOUTS } },
      .make = broadcast_make,
      .record = broadcast_record,
      .reference = broadcast_reference,
      .roundings = 120,
      .back_roundings = 120 },
    { .name = "concat",
      .ops = "concat",
      .factor = { { "rank", 3 },
                  { "axis", 4 },
                  { "negative", 2 },
                  { "n", 3 },
                  { "x", DEF_LAYOUTS },
                  { "y", DEF_LAYOUTS },
                  { "z", DEF_LAYOUTS },
                  { "stack", 2 } },
      .make = concat_make,
      .record = concat_record,
      .reference = concat_reference,
      .back_roundings = 4,
      .any_type = true },
    { .name = "split",
      .ops = "split select",
      .factor = { { "rank", 4 }, { "axis", 4 }, { "negative", 2 }, { "layout", DEF_LAYOUTS }, { "sizes", 5 } },
      .make = split_make,
      .record = split_record,
      .reference = split_reference,
      .back_roundings = 4,
      .any_type = true },
    { .name = "cast",
      .ops = "cast",
      .factor = { { "rank", 4 }, { "layout", DEF_LAYOUTS }, { "to", 6 } },
      .make = cast_make,
      .record = cast_record,
      .reference = cast_reference,
      .gradient = cast_gradient,
      .back_roundings = 4,
      .any_type = true },
    { .name = "fill",
      .ops = "fill arange",
      .factor = { { "rank", 4 }, { "start", 4 }, { "type", 6 } },
      .make = fill_make,
      .record = fill_record,
      .reference = fill_reference,
      .no_gradient = true,
      .only_wide = true },
    { .name = "straight_through",
      .ops = "straight_through detach",
      .factor = { { "rank", 4 }, { "y", DEF_LAYOUTS }, { "x", DEF_LAYOUTS } },
      .make = through_make,
      .record = through_record,
      .reference = through_reference,
      .gradient = through_gradient,
      .roundings = 1,
      .back_roundings = 4,
      .stored = 1 },
    { 0 }
};
