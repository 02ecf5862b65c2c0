/*
 * embedding_bag with its options, composed: rows of the table, what each of them counts, and their sum. Bags of any
 * length are rows that are added up by the number of their bag, which embedding_bag_offsets finds. Of a maximum
 * embedding_bag_argmax finds the places, at which the rows are gathered: so backward keeps places, not rows.
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

/* ---- offsets -> the number of each place's bag, [places] ---- */

static rw_status check_bags(rw_op_call *call, int input)
{
    const struct rw_bags_attrs *const a = call->attrs;
    RW_CHECK(rw_want_dtype(call, input, RW_I32));
    if (call->in[input].layout->rank != 1) return rw_op_error(call, RW_ERR_SHAPE, "offsets [b] are needed");
    const int64_t bags = call->in[input].layout->numel - a->ends;
    if (bags < 0) return rw_op_error(call, RW_ERR_SHAPE, "offsets without an end");
    return a->places && !bags ? rw_op_error(call, RW_ERR_SHAPE, "places without a bag") : RW_OK;
}

static rw_status check_offsets(rw_op_call *call)
{
    RW_CHECK(check_bags(call, 0));
    return rw_op_output(call, 0, RW_I32, RW_SHAPE(((const struct rw_bags_attrs *)call->attrs)->places));
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 1);
}

RW_DECLARE_KERNELS(rw_bags)
static const rw_op_def rw_op_embedding_bag_offsets = { .name = "embedding_bag_offsets", .n_inputs = 1, .n_outputs = 1,
                                                       .flags = RW_OP_NO_GRADIENT, .check = check_offsets,
                                                       .kernel = RW_KERNELS(rw_bags), .cost = cost };

/* ---- (rows [places, c], offsets, and perhaps which places are kept) -> the place of the maximum of each column of a
   bag, [b, c], 0 where there is none; whether there is none, [b, 1] ---- */

static rw_status check_argmax(rw_op_call *call)
{
    const int64_t places = ((const struct rw_bags_attrs *)call->attrs)->places;
    if (call->n_inputs < 2 || call->n_inputs > 3)
        return rw_op_error(call, RW_ERR_ARGUMENT, "takes rows, offsets and at most what is kept");
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(check_bags(call, 1));
    const rw_shape x = rw_in_shape(call, 0);
    const int64_t bags = call->in[1].layout->numel - ((const struct rw_bags_attrs *)call->attrs)->ends;
    if (x.rank != 2 || x.dim[0] != places) return rw_op_error(call, RW_ERR_SHAPE, "rows [places, c] are needed");
    if (call->n_inputs > 2) {
        RW_CHECK(rw_want_dtype(call, 2, RW_BOOL));
        if (!rw_shape_equal(rw_in_shape(call, 2), RW_SHAPE(places)))
            return rw_op_error(call, RW_ERR_SHAPE, "what is kept has not the places' shape");
    }
    RW_CHECK(rw_op_output(call, 0, RW_I32, RW_SHAPE(bags, x.dim[1])));
    return rw_op_output(call, 1, RW_BOOL, RW_SHAPE(bags, 1));
}

static rw_op_cost cost_argmax(const rw_op_call *call)
{
    return (rw_op_cost){ (double)call->in[0].layout->numel, rw_cost_pointwise(call, 0).bytes };
}

RW_DECLARE_KERNELS(rw_bags_argmax)
static const rw_op_def rw_op_embedding_bag_argmax = { .name = "embedding_bag_argmax", .n_inputs = RW_OP_VARIADIC,
                                                      .n_outputs = 2, .flags = RW_OP_NO_GRADIENT,
                                                      .check = check_argmax, .kernel = RW_KERNELS(rw_bags_argmax),
                                                      .cost = cost_argmax };

/* ---- the function ---- */

struct bags {
    rw_site at;
    rw_tape *t;
    rw_bag_mode mode;
    rw_tensor *table, *index, *weights, *offsets; /* NULL: none */
    int64_t bags, padding;                        /* padding -1: none */
    bool ends;                                    /* the last offset begins no bag */
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
    if (b->ends && !b->offsets) return "an end without offsets";
    if (b->offsets && index.rank != 1) return "offsets need an index [n]";
    if (!b->offsets && index.rank != 2) return "an index [b, m], or offsets, are needed";
    if (p->mode == RW_BAG_MAX && !b->offsets && !index.dim[1]) return "a maximum of no rows";
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
    else if (b->ends && !rw_tensor_shape(o).dim[0]) fault = "offsets without an end";
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
    b->ends = p->ends;
    const char *const fault = fault_of(b, p, index);
    if (fault) rw_refuse_at(b->at, b->t, RW_ERR_ARGUMENT, "%s: %s", what, fault);
    if (fault || !shapes_fit(b, table, index) || !types_fit(b)) return false;
    b->bags = b->offsets ? rw_tensor_shape(b->offsets).dim[0] - b->ends : index.dim[0];
    b->padding = p->pads ? p->padding + (p->padding < 0 ? table.dim[0] : 0) : -1;
    if (!p->pads || (b->padding >= 0 && b->padding < table.dim[0])) return true;
    rw_refuse_at(b->at, b->t, RW_ERR_ARGUMENT, "%s: row %lld of a table of %lld", what, (long long)p->padding,
                 (long long)table.dim[0]);
    return false;
}

/* ---- recording ---- */

static rw_tensor *all_rows(const struct bags *b)
{
    return rw_embedding_at(b->at, b->t, b->table, b->index);
}

/* The rows, [..., c]; what is in no bag is 0, and takes no gradient. */
static rw_tensor *rows_of(const struct bags *b)
{
    rw_tensor *const rows = all_rows(b);
    if (!rows || !b->kept) return rows;
    rw_tensor *const out = rw_logical_not_at(b->at, b->t, b->kept);
    rw_tensor *const mask = out ? rw_unsqueeze_at(b->at, b->t, out, -1) : NULL;
    return mask ? rw_masked_fill_at(b->at, b->t, rows, mask, 0) : NULL;
}

/* In the type that sums are taken in. */
static rw_tensor *widened(const struct bags *b, rw_tensor *x)
{
    return x ? rw_cast_at(b->at, b->t, x, rw_tensor_dtype(b->table) == RW_F64 ? RW_F64 : RW_F32) : NULL;
}

/* The bag of each place of the index. */
static rw_tensor *bag_numbers(const struct bags *b)
{
    const struct rw_bags_attrs a = { rw_tensor_shape(b->index).dim[0], b->ends };
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
    rw_tensor *rows = b->offsets && !numbers ? NULL : widened(b, rows_of(b));
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

/* As if they were given: bags of one length, one behind the other. */
static rw_tensor *offsets_of(const struct bags *b, int64_t length)
{
    return b->offsets ? b->offsets
                      : rw_arange_at(b->at, b->t, RW_I32, 0, (double)(b->bags * length), (double)length);
}

/* The rows at the places of the maxima, and 0 where a bag has none. */
static rw_tensor *record_maximum(const struct bags *b)
{
    const rw_shape index = rw_tensor_shape(b->index);
    const int64_t n = rw_shape_numel(index), width = rw_tensor_shape(b->table).dim[1];
    rw_tensor *const rows = all_rows(b), *const offsets = rows ? offsets_of(b, index.dim[index.rank - 1]) : NULL;
    rw_tensor *in[3] = { offsets ? rw_reshape_at(b->at, b->t, rows, RW_SHAPE(n, width)) : NULL, offsets };
    if (!in[0] || (b->kept && !(in[2] = rw_reshape_at(b->at, b->t, b->kept, RW_SHAPE(n))))) return NULL;
    const struct rw_bags_attrs a = { n, b->ends };
    rw_tensor *out[2]; /* places, empty */
    if (!rw_apply_at(b->at, b->t, &rw_op_embedding_bag_argmax, in, b->kept ? 3 : 2, &a, sizeof a, out)) return NULL;
    rw_tensor *const most = rw_gather_at(b->at, b->t, in[0], 0, out[0]);
    return !most || (!b->kept && !b->offsets) ? most : rw_masked_fill_at(b->at, b->t, most, out[1], 0);
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
    if (b->offsets && !b->bags && !b->ends && !leave_all(b)) return NULL;
    if (b->padding < 0 && !b->weights && !b->offsets && b->mode != RW_BAG_MAX)
        return rw_embedding_bag_at(b->at, b->t, b->table, b->index, b->mode);
    if (b->padding >= 0 && !(b->kept = rw_ne_scalar_at(b->at, b->t, b->index, (double)b->padding))) return NULL;
    if (b->mode == RW_BAG_MAX && rw_shape_numel(rw_tensor_shape(b->index))) return record_maximum(b);
    return record_sums(b); /* of no rows a maximum is what a sum is: 0 */
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
