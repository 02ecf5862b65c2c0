/* cumsum: its cases, its definition and its invalid calls. */
#include "api/mistakes/table.h"
#include "support/cases/cases.h"
#include "support/definition_runner.h"

/* ---- cases ---- */

static rw_tensor *build(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    return rw_cumsum(t, x[0], c->axis);
}

/* A sum of up to all elements along the axis, from either end. */
static void count(struct op_case *c)
{
    const rw_shape s = c->in[0].shape;
    c->r[0].n = c->r[1].n = (int)s.dim[c->axis < 0 ? c->axis + s.rank : c->axis];
}

void op_cases_cumsum(void)
{
    for (size_t k = 0; k < OP_AXIS_CASES; k++) {
        struct op_case *const c = op_case_next(OP_REDUCTIONS, build, OP_TERMS, 1);
        c->in[0] = op_axis_cases[k].x;
        c->axis = op_axis_cases[k].axis;
        op_case_count(c, count);
        c->large = rw_shape_numel(op_axis_cases[k].x.shape) > 4096;
        op_case_describe(c, "cumsum along %d", c->axis);
    }
}

/* ---- definition ---- */

enum { RANK, AXIS, NEGATIVE, LONG, LAYOUT };

static bool make(struct def_trial *c)
{
    rw_shape s = def_shape(c->v[RANK] + 1);
    if (c->v[AXIS] >= s.rank || (c->v[LONG] && s.rank > 2)) return false;
    if (c->v[LONG]) s.dim[c->v[AXIS]] = 1301;
    def_operand(c, 0, s, DEF_SIGNED, c->v[LAYOUT]);
    c->out[0] = s;
    return true;
}

static bool record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_cumsum(t, x[0], c->v[NEGATIVE] ? c->v[AXIS] - c->in[0].shape.rank : c->v[AXIS]));
}

static void reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t outer, n, inner;
    def_split(c->in[0].shape, c->v[AXIS], &outer, &n, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            real sum = 0;
            for (int64_t k = 0; k < n; k++) y[0][(o * n + k) * inner + i] = sum += x[0][(o * n + k) * inner + i];
        }
}

const struct definition def_cumsum[] = {
    { .name = "cumsum",
      .ops = "cumsum",
      .factor = { { "rank", 4 }, { "axis", 4 }, { "negative", 2 }, { "long", 2 }, { "layout", DEF_LAYOUTS } },
      .make = make,
      .record = record,
      .reference = reference,
      .roundings = 1,
      .back_roundings = 2,
      .stored = 0 },
    { 0 }
};

/* ---- invalid calls ---- */

void mistakes_with_cumsum(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    TENSOR("rw_cumsum", RW_ERR_ARGUMENT, rw_cumsum(t, NULL, 0));
    TENSOR("rw_cumsum", RW_ERR_SHAPE, rw_cumsum(t, w->x, 2));
    TENSOR("rw_cumsum", RW_ERR_SHAPE, rw_cumsum(t, w->scalar, -1));
    TENSOR("rw_cumsum", RW_ERR_DTYPE, rw_cumsum(t, w->index, 0));
}
