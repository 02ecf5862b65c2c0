/* Definitions of comparisons, logic and selection, element by element (rewind/compare.h). */
#include "support/definition_runner.h"

#include <math.h>

/* ---- comparisons and logic ---- */

enum { EQ, NE, LT, LE, GT, GE, AND, OR, COMPARISONS };

static double with_nan(const struct def_trial *c, int64_t i)
{
    const double number = (double)(i * 7 % 5) - 2;
    if (c->dtype == RW_I32) return number * 1000;
    if (c->dtype == RW_BOOL) return i * 7 % 5 > 2;
    return i % 11 == 3 ? (double)NAN : i % 11 == 7 ? (double)INFINITY : number / 2;
}

static bool compare_make(struct def_trial *c)
{
    const enum def_range range = c->v[0] >= AND ? DEF_TRUTH : DEF_TIES;
    def_operand(c, 0, *def_broadcastable(c->v[1]), range, c->v[3]);
    def_operand(c, 1, *def_broadcastable(c->v[2]), range, c->v[4]);
    if (range == DEF_TIES) c->in[0].value = c->in[1].value = with_nan;
    c->out[0] = def_broadcast(c->in[0].shape, c->in[1].shape);
    return true;
}

static bool compare_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    switch (c->v[0]) {
    case EQ: y[0] = rw_eq(t, x[0], x[1]); break;
    case NE: y[0] = rw_ne(t, x[0], x[1]); break;
    case LT: y[0] = rw_lt(t, x[0], x[1]); break;
    case LE: y[0] = rw_le(t, x[0], x[1]); break;
    case GT: y[0] = rw_gt(t, x[0], x[1]); break;
    case GE: y[0] = rw_ge(t, x[0], x[1]); break;
    case AND: y[0] = rw_logical_and(t, x[0], x[1]); break;
    default: y[0] = rw_logical_or(t, x[0], x[1]); break;
    }
    return y[0] && rw_tensor_dtype(y[0]) == RW_BOOL;
}

static void compare_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    do {
        const real a = x[0][def_at(c->in[0].shape, at, c->out[0].rank)];
        const real b = x[1][def_at(c->in[1].shape, at, c->out[0].rank)];
        const bool all[] = { a == b, a != b, a<b, a <= b, a> b, a >= b, a != 0 && b != 0, a != 0 || b != 0 };
        y[0][i++] = all[c->v[0]];
    } while (def_next(c->out[0], at));
}

static bool number_make(struct def_trial *c)
{
    if (c->v[0] >= AND && c->dtype != RW_F32 && c->dtype != RW_F64 && c->v[0] != AND) return false;
    def_operand(c, 0, def_shape(c->v[1]), c->v[0] == AND ? DEF_TRUTH : DEF_TIES, c->v[2]);
    if (c->v[0] != AND) c->in[0].value = with_nan;
    c->out[0] = c->in[0].shape;
    return true;
}

static bool number_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    const double value = c->dtype == RW_I32 ? -1000.5 : 0.5;
    switch (c->v[0]) {
    case EQ: y[0] = rw_eq_scalar(t, x[0], value); break;
    case NE: y[0] = rw_ne_scalar(t, x[0], value); break;
    case LT: y[0] = rw_lt_scalar(t, x[0], value); break;
    case LE: y[0] = rw_le_scalar(t, x[0], value); break;
    case GT: y[0] = rw_gt_scalar(t, x[0], value); break;
    case GE: y[0] = rw_ge_scalar(t, x[0], value); break;
    case AND: y[0] = rw_logical_not(t, x[0]); break;
    default: y[0] = rw_isfinite(t, x[0]); break;
    }
    return y[0] && rw_tensor_dtype(y[0]) == RW_BOOL;
}

static void number_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const real b = c->dtype == RW_I32 ? -1000 : c->dtype == RW_BOOL ? 1 : 0.5L;
    for (int64_t i = 0; i < c->in[0].numel; i++) {
        const real a = x[0][i];
        const bool all[] = { a == b, a != b, a<b, a <= b, a> b, a >= b, a == 0, fabsl(a) < INFINITY };
        y[0][i] = all[c->v[0]];
    }
}

static bool sign_make(struct def_trial *c)
{
    def_operand(c, 0, def_shape(c->v[0]), DEF_TIES, c->v[1])->value = with_nan;
    c->out[0] = c->in[0].shape;
    return true;
}

static bool sign_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    (void)c;
    return (y[0] = rw_sign(t, x[0]));
}

static void sign_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    for (int64_t i = 0; i < c->in[0].numel; i++) y[0][i] = x[0][i] > 0 ? 1 : x[0][i] < 0 ? -1 : 0;
}

/* ---- choices ---- */

enum { PICK_CONDITION, PICK_A, PICK_B, PICK_CONDITION_LAYOUT, PICK_A_LAYOUT, PICK_B_LAYOUT, PICK_FILL };

static bool where_make(struct def_trial *c)
{
    def_operand(c, 0, *def_broadcastable(c->v[PICK_CONDITION]), DEF_TRUTH, c->v[PICK_CONDITION_LAYOUT]);
    def_operand(c, 1, *def_broadcastable(c->v[PICK_A]), DEF_SIGNED, c->v[PICK_A_LAYOUT]);
    def_operand(c, 2, *def_broadcastable(c->v[PICK_B]), DEF_SIGNED, c->v[PICK_B_LAYOUT]);
    c->in[2].is_absent = c->v[PICK_FILL];
    c->out[0] = def_broadcast(c->in[0].shape, c->in[1].shape);
    /* A mask broadcasts to x, but x does not broadcast to it */
    if (c->v[PICK_FILL]) return rw_shape_equal(c->out[0], c->in[1].shape);
    c->out[0] = def_broadcast(c->out[0], c->in[2].shape);
    return true;
}

static bool where_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    y[0] = c->v[PICK_FILL] ? rw_masked_fill(t, x[1], x[0], -0.75) : rw_where(t, x[0], x[1], x[2]);
    return y[0];
}

static void where_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    const real other = c->dtype == RW_BOOL ? 1 : c->dtype == RW_I32 ? 0 : -0.75L;
    do {
        const bool truth = x[0][def_at(c->in[0].shape, at, c->out[0].rank)] != 0;
        const real a = x[1][def_at(c->in[1].shape, at, c->out[0].rank)];
        if (c->v[PICK_FILL]) y[0][i++] = truth ? other : a;
        else y[0][i++] = truth ? a : x[2][def_at(c->in[2].shape, at, c->out[0].rank)];
    } while (def_next(c->out[0], at));
}

#define PAIR                                                                                                           \
    { "a", DEF_SHAPES }, { "b", DEF_SHAPES }, { "a layout", DEF_LAYOUTS },                                             \
    {                                                                                                                  \
        "b layout", DEF_LAYOUTS                                                                                        \
    }

const struct definition def_compare[] = {
    { .name = "compare",
      .ops = "eq ne lt le gt ge logical_and logical_or",
      .factor = { { "op", COMPARISONS }, PAIR },
      .make = compare_make,
      .record = compare_record,
      .reference = compare_reference,
      .no_gradient = true,
      .any_type = true },
    { .name = "compare with a number",
      .ops = "fill eq ne lt le gt ge logical_not isfinite",
      .factor = { { "op", COMPARISONS }, { "rank", 4 }, { "layout", DEF_LAYOUTS } },
      .make = number_make,
      .record = number_record,
      .reference = number_reference,
      .no_gradient = true,
      .any_type = true },
    { .name = "sign",
      .ops = "sign",
      .factor = { { "rank", 4 }, { "layout", DEF_LAYOUTS } },
      .make = sign_make,
      .record = sign_record,
      .reference = sign_reference,
      .no_gradient = true },
    { .name = "where",
      .ops = "where fill",
      .factor = { { "condition", DEF_SHAPES },
                  { "a", DEF_SHAPES },
                  { "b", DEF_SHAPES },
                  { "condition layout", DEF_LAYOUTS },
                  { "a layout", DEF_LAYOUTS },
                  { "b layout", DEF_LAYOUTS },
                  { "fill", 2 } },
      .make = where_make,
      .record = where_record,
      .reference = where_reference,
      .back_roundings = 60,
      .any_type = true },
    { 0 }
};
