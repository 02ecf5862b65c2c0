/*
 * embedding_bag with its options, composed: rows of the table, what each of them counts, and their sum. Bags of any
 * length are rows that are added up by the number of their bag, which embedding_bag_offsets finds.
 */
#include "ops/common/kernels.h"
#include "ops/common/util.h"
#include "ops/select/bags.h"
#include "ops/select/gather.h"

#include <rewind/compare.h>
#include <rewind/create.h>
#include <rewind/gather.h>
#include <rewind/reductions.h>
#include <rewind/select.h>

#include <math.h>

/* ---- offsets -> the number of each place's bag, [places] ---- */

static rw_status check_offsets(rw_op_call *call)
{
    const struct rw_bags_attrs *const a = call->attrs;
    RW_CHECK(rw_want_dtype(call, 0, RW_I32));
    if (call->in[0].layout->rank != 1) return rw_op_error(call, RW_ERR_SHAPE, "offsets [b] are needed");
    if (a->places && !call->in[0].layout->numel) return rw_op_error(call, RW_ERR_SHAPE, "places without a bag");
    return rw_op_output(call, 0, RW_I32, RW_SHAPE(a->places));
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 1);
}

RW_DECLARE_KERNELS(rw_bags)
static const rw_op_def rw_op_embedding_bag_offsets = { .name = "embedding_bag_offsets", .n_inputs = 1, .n_outputs = 1,
                                                       .flags = RW_OP_NO_GRADIENT, .check = check_offsets,
                                                       .kernel = RW_KERNELS(rw_bags), .cost = cost };

/* ---- the function ---- */

struct bags {
    rw_site at;
    rw_tape *t;
    rw_bag_mode mode;
    rw_tensor *table, *index, *weights, *offsets; /* NULL: none */
    int64_t bags, padding;                        /* padding -1: none */
    rw_tensor *kept;                              /* the index's shape: true where a row is in its bag; NULL: all */
};

static bool is_given(const rw_tensor *x)
{
    return x && x != rw_none();
}

/* ---- checks ---- */

static const char *fault_of(const struct bags *b, const rw_embedding_bag_params *p, rw_shape index)
{
    if (p->mode < RW_BAG_SUM || p->mode > RW_BAG_MAX) return "there is no such mode";
    if (b->weights && p->mode != RW_BAG_SUM) return "weights are of sums";
    if (b->offsets && p->mode == RW_BAG_MAX) return "a maximum of bags with offsets is not taken";
    if (b->offsets && index.rank != 1) return "offsets need an index [n]";
    if (!b->offsets && index.rank != 2) return "an index [b, m], or offsets, are needed";
    if (p->mode == RW_BAG_MAX && !index.dim[1]) return "a maximum of no rows";
    return NULL;
}

static bool shapes_fit(const struct bags *b, rw_shape table, rw_shape index)
{
    const rw_tensor *const o = b->offsets;
    const char *fault = NULL;
    if (table.rank != 2) fault = "a table [n, c] is needed";
    else if (b->weights && !rw_shape_equal(rw_tensor_shape(b->weights), index))
        fault = "weights are not of the index's shape";
    else if (o && rw_tensor_shape(o).rank != 1) fault = "offsets [b] are needed";
    if (fault) rw_refuse_at(b->at, b->t, RW_ERR_SHAPE, "embedding_bag_with: %s", fault);
    return !fault;
}

static bool types_fit(const struct bags *b)
{
    const char *fault = NULL;
    if (!rw_dtype_is_float(rw_tensor_dtype(b->table))) fault = "a table of a floating-point type is needed";
    else if (rw_tensor_dtype(b->index) != RW_I32) fault = "an index of i32 is needed";
    else if (b->offsets && rw_tensor_dtype(b->offsets) != RW_I32) fault = "offsets of i32 are needed";
    else if (b->weights && rw_tensor_dtype(b->weights) != rw_tensor_dtype(b->table))
        fault = "weights are not of the table's type";
    if (fault) rw_refuse_at(b->at, b->t, RW_ERR_DTYPE, "embedding_bag_with: %s", fault);
    return !fault;
}

static bool read_params(struct bags *b, const rw_embedding_bag_params *p)
{
    static const char what[] = "embedding_bag_with";
    if (!rw_operand_check(b->at, b->t, b->table, what, "table") ||
        !rw_operand_check(b->at, b->t, b->index, what, "index") ||
        (is_given(p->weights) && !rw_operand_check(b->at, b->t, p->weights, what, "weights")) ||
        (is_given(p->offsets) && !rw_operand_check(b->at, b->t, p->offsets, what, "offsets")))
        return false;
    const rw_shape table = rw_tensor_shape(b->table), index = rw_tensor_shape(b->index);
    b->mode = p->mode;
    b->weights = is_given(p->weights) ? p->weights : NULL;
    b->offsets = is_given(p->offsets) ? p->offsets : NULL;
    const char *const fault = fault_of(b, p, index);
    if (fault) rw_refuse_at(b->at, b->t, RW_ERR_ARGUMENT, "%s: %s", what, fault);
    if (fault || !shapes_fit(b, table, index) || !types_fit(b)) return false;
    b->bags = b->offsets ? rw_tensor_shape(b->offsets).dim[0] : index.dim[0];
    b->padding = p->pads ? p->padding + (p->padding < 0 ? table.dim[0] : 0) : -1;
    if (!p->pads || (b->padding >= 0 && b->padding < table.dim[0])) return true;
    rw_refuse_at(b->at, b->t, RW_ERR_ARGUMENT, "%s: row %lld of a table of %lld", what, (long long)p->padding,
                 (long long)table.dim[0]);
    return false;
}

/* ---- recording ---- */

/* The rows, [..., c]; what is in no bag is `instead`, and takes no gradient. */
static rw_tensor *rows_of(const struct bags *b, double instead)
{
    rw_tensor *const rows = rw_embedding_at(b->at, b->t, b->table, b->index);
    if (!rows || !b->kept) return rows;
    rw_tensor *const out = rw_logical_not_at(b->at, b->t, b->kept);
    rw_tensor *const mask = out ? rw_unsqueeze_at(b->at, b->t, out, -1) : NULL;
    return mask ? rw_masked_fill_at(b->at, b->t, rows, mask, instead) : NULL;
}

/* In the type that sums are taken in. */
static rw_tensor *widened(const struct bags *b, rw_tensor *x)
{
    return x ? rw_cast_at(b->at, b->t, x, rw_tensor_dtype(b->table) == RW_F64 ? RW_F64 : RW_F32) : NULL;
}

/* The bag of each place of the index. */
static rw_tensor *bag_numbers(const struct bags *b)
{
    const struct rw_bags_attrs a = { rw_tensor_shape(b->index).dim[0] };
    return rw_apply_at(b->at, b->t, &rw_op_embedding_bag_offsets, &b->offsets, 1, &a, sizeof a, NULL);
}

/* Sums over the bags of x, [b, m, w] or [n, w] -> [b, w]. */
static rw_tensor *summed(const struct bags *b, rw_tensor *x, rw_tensor *numbers)
{
    if (!x) return NULL;
    const rw_shape s = rw_tensor_shape(x);
    return b->offsets ? rw_rows_added_at(b->at, b->t, x, numbers, RW_SHAPE(b->bags, s.dim[1]))
                      : rw_sum_at(b->at, b->t, x, RW_AXES(1), false);
}

/* How many rows each bag has, and 1 where it has none: [b, 1] */
static rw_tensor *lengths(const struct bags *b, rw_tensor *numbers)
{
    rw_shape s = rw_tensor_shape(b->index);
    s.dim[s.rank++] = 1;
    rw_tensor *const ones = b->kept ? rw_unsqueeze_at(b->at, b->t, b->kept, -1) : rw_ones_at(b->at, b->t, RW_F32, s);
    rw_tensor *const n = summed(b, widened(b, ones), numbers);
    rw_tensor *const one = n ? rw_ones_at(b->at, b->t, rw_tensor_dtype(n), RW_SCALAR) : NULL;
    return one ? rw_maximum_at(b->at, b->t, n, one) : NULL;
}

static rw_tensor *record_sums(const struct bags *b)
{
    rw_tensor *const numbers = b->offsets ? bag_numbers(b) : NULL;
    rw_tensor *rows = b->offsets && !numbers ? NULL : widened(b, rows_of(b, 0));
    if (rows && b->weights) {
        rw_tensor *const each = widened(b, rw_unsqueeze_at(b->at, b->t, b->weights, -1));
        rows = each ? rw_mul_at(b->at, b->t, rows, each) : NULL;
    }
    rw_tensor *sum = summed(b, rows, numbers);
    if (sum && b->mode == RW_BAG_MEAN) {
        rw_tensor *const n = lengths(b, numbers);
        sum = n ? rw_div_at(b->at, b->t, sum, n) : NULL;
    }
    return sum ? rw_cast_at(b->at, b->t, sum, rw_tensor_dtype(b->table)) : NULL;
}

/* Of a bag of padding alone 0. */
static rw_tensor *record_maximum(const struct bags *b)
{
    rw_tensor *const rows = rows_of(b, -INFINITY), *const most = rows ? rw_max_at(b->at, b->t, rows, RW_AXES(1), false)
                                                                      : NULL;
    if (!most || !b->kept) return most;
    rw_tensor *const ones = rw_cast_at(b->at, b->t, b->kept, RW_F32);
    rw_tensor *const n = ones ? rw_sum_at(b->at, b->t, ones, RW_AXES(1), true) : NULL;
    rw_tensor *const empty = n ? rw_eq_scalar_at(b->at, b->t, n, 0) : NULL;
    return empty ? rw_masked_fill_at(b->at, b->t, most, empty, 0) : NULL;
}

/* Where offsets begin no bag, no place of the index is in one. */
static bool leave_all(struct bags *b)
{
    const bool weighted = b->weights;
    b->index = rw_slice_at(b->at, b->t, b->index, 0, 0, 0);
    if (b->index && weighted) b->weights = rw_slice_at(b->at, b->t, b->weights, 0, 0, 0);
    return b->index && (!weighted || b->weights);
}

static rw_tensor *record(struct bags *b)
{
    if (b->offsets && !b->bags && !leave_all(b)) return NULL;
    if (b->padding < 0 && !b->weights && !b->offsets && b->mode != RW_BAG_MAX)
        return rw_embedding_bag_at(b->at, b->t, b->table, b->index, b->mode);
    if (b->padding >= 0 && !(b->kept = rw_ne_scalar_at(b->at, b->t, b->index, (double)b->padding))) return NULL;
    return b->mode == RW_BAG_MAX ? record_maximum(b) : record_sums(b);
}

rw_tensor *rw_embedding_bag_with_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index,
                                    const rw_embedding_bag_params *params)
{
    static const rw_embedding_bag_params defaults;
    struct bags b = { .at = at, .t = t, .table = table, .index = index };
    if (!read_params(&b, params ? params : &defaults)) return NULL;
    const struct rw_composite c = rw_composite_begin(t, "embedding_bag_with");
    return rw_composite_end(&c, record(&b));
}
