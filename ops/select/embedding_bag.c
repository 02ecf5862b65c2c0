/*
 * embedding_bag with its options, composed of ops: rows of the table, their weights, and their sum. Bags of varying
 * length are summed by the number of each row's bag, which embedding_bag_offsets computes. For a maximum,
 * embedding_bag_argmax finds the places of the maxima, at which the rows are gathered, so backward keeps places instead
 * of rows.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/embedding/embedding.h"
#include "ops/select/embedding_bag.h"
#include "ops/select/gather.h"

#include <rewind/compare.h>
#include <rewind/composite.h>
#include <rewind/create.h>
#include <rewind/gather.h>
#include <rewind/reductions.h>
#include <rewind/select.h>

/* ---- embedding_bag_offsets: offsets -> the number of each place's bag, [places] ---- */

static rw_status check_bags(rw_op_call *call, int input)
{
    const struct rw_bags_attrs *const a = call->attrs;
    RW_CHECK(rw_expect_dtype(call, input, "offsets", RW_I32));
    RW_CHECK(rw_expect_rank(call, input, "offsets", 1, a->ends ? "[b + 1]" : "[b]"));
    const int64_t bags = call->in[input].layout->numel - a->ends;
    if (bags < 0) return rw_unexpected(call, RW_ERR_SHAPE, input, "offsets", "[b + 1], as `ends` says");
    if (bags || !a->places) return RW_OK;
    return rw_unexpected(call, RW_ERR_SHAPE, input, "offsets", "1 bag or more for an index of %lld elements",
                         (long long)a->places);
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

RW_BUILTIN_OP(embedding_bag_offsets, "offsets", "-")
RW_DECLARE_KERNELS(rw_bags)
static const rw_op_def rw_op_embedding_bag_offsets = { .name = "embedding_bag_offsets", .n_inputs = 1, .n_outputs = 1,
                                                       .flags = RW_OP_NO_GRADIENT, .check = check_offsets,
                                                       .kernel = RW_KERNELS(rw_bags), .cost = cost };

/* ---- embedding_bag_argmax: (rows [places, c], offsets[, kept places]) -> the place of the maximum of each column of a
   bag, [b, c], 0 if the bag is empty; and whether it is empty, [b, 1] ---- */

/* Checks embedding_bag_argmax and describes its outputs. */
static rw_status check_argmax(rw_op_call *call)
{
    const int64_t places = ((const struct rw_bags_attrs *)call->attrs)->places;
    RW_CHECK(rw_expect_inputs(call, 2, 3, "rows, offsets and optionally kept"));
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(check_bags(call, 1));
    const rw_shape x = rw_in_shape(call, 0);
    const int64_t bags = call->in[1].layout->numel - ((const struct rw_bags_attrs *)call->attrs)->ends;
    if (x.rank != 2 || x.dim[0] != places)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "[%lld, c]", (long long)places);
    if (call->n_inputs > 2) {
        RW_CHECK(rw_want_dtype(call, 2, RW_BOOL));
        RW_CHECK(rw_expect_shape(call, 2, NULL, RW_SHAPE(places)));
    }
    RW_CHECK(rw_op_output(call, 0, RW_I32, RW_SHAPE(bags, x.dim[1])));
    return rw_op_output(call, 1, RW_BOOL, RW_SHAPE(bags, 1));
}

static rw_op_cost cost_argmax(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = (double)call->in[0].layout->numel, .bytes = rw_cost_pointwise(call, 0).bytes };
}

RW_BUILTIN_OP(embedding_bag_argmax, "rows offsets kept", "-")
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
    bool ends;                                    /* the last offset is the end of the last bag */
    rw_tensor *kept;                              /* index's shape: true where a row is in its bag; NULL: all */
};

static bool is_given(const rw_tensor *x)
{
    return x && x != rw_none();
}

/* ---- checks ---- */

static const char what[] = "embedding_bag_with";

static bool refuse(const struct bags *b, rw_status status, const char *name, const rw_tensor *x, const char *form)
{
    return rw_refuse_operand_at(b->at, b->t, status, what, name, x, "%s", form);
}

/* Checks that the options fit together and fit the shape of the index. */
static bool params_fit(const struct bags *b, const rw_embedding_bag_params *p, rw_shape index)
{
    if (p->mode < RW_BAG_SUM || p->mode > RW_BAG_MAX)
        rw_refuse_at(b->at, b->t, RW_ERR_ARGUMENT, "%s(mode): expected RW_BAG_SUM (%d) to RW_BAG_MAX (%d), got %d",
                     what, RW_BAG_SUM, RW_BAG_MAX, (int)p->mode);
    else if (b->weights && p->mode != RW_BAG_SUM)
        rw_refuse_at(b->at, b->t, RW_ERR_ARGUMENT, "%s(mode): expected RW_BAG_SUM (%d) with weights, got %d", what,
                     RW_BAG_SUM, (int)p->mode);
    else if (b->ends && !b->offsets)
        rw_refuse_at(b->at, b->t, RW_ERR_ARGUMENT, "%s(ends): expected false without offsets, got true", what);
    else if (b->offsets && index.rank != 1) refuse(b, RW_ERR_ARGUMENT, "index", b->index, "[n] with offsets");
    else if (!b->offsets && index.rank != 2) refuse(b, RW_ERR_ARGUMENT, "index", b->index, "[b, m] without offsets");
    else if (p->mode == RW_BAG_MAX && !b->offsets && !index.dim[1])
        refuse(b, RW_ERR_ARGUMENT, "index", b->index, "1 row or more in each bag for a maximum");
    else return true;
    return false;
}

static bool shapes_fit(const struct bags *b, rw_shape table, rw_shape index)
{
    const rw_tensor *const o = b->offsets;
    if (table.rank != 2) return refuse(b, RW_ERR_SHAPE, "table", b->table, "[n, c]");
    if (b->weights && !rw_operand_has_shape_at(b->at, b->t, what, "weights", b->weights, index)) return false;
    if (o && rw_tensor_shape(o).rank != 1) return refuse(b, RW_ERR_SHAPE, "offsets", o, "[b]");
    if (b->ends && !rw_tensor_shape(o).dim[0]) return refuse(b, RW_ERR_SHAPE, "offsets", o, "[b + 1], as `ends` says");
    return true;
}

static bool types_fit(const struct bags *b)
{
    if (!rw_dtype_is_float(rw_tensor_dtype(b->table)))
        return refuse(b, RW_ERR_DTYPE, "table", b->table, "a floating-point type");
    if (rw_tensor_dtype(b->index) != RW_I32) return refuse(b, RW_ERR_DTYPE, "index", b->index, "i32");
    if (b->offsets && rw_tensor_dtype(b->offsets) != RW_I32)
        return refuse(b, RW_ERR_DTYPE, "offsets", b->offsets, "i32");
    if (b->weights && rw_tensor_dtype(b->weights) != rw_tensor_dtype(b->table))
        return refuse(b, RW_ERR_DTYPE, "weights", b->weights, rw_dtype_name(rw_tensor_dtype(b->table)));
    return true;
}

/* Reads and checks the public parameters. */
static bool read_params(struct bags *b, const rw_embedding_bag_params *p)
{
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
    if (!params_fit(b, p, index) || !shapes_fit(b, table, index) || !types_fit(b)) return false;
    b->bags = b->offsets ? rw_tensor_shape(b->offsets).dim[0] - b->ends : index.dim[0];
    return rw_padding_row_at(b->at, b->t, what, b->table, p->has_padding_index, p->padding_index, &b->padding);
}

/* ---- recording ---- */

static rw_tensor *all_rows(const struct bags *b)
{
    return rw_embedding_at(b->at, b->t, b->table, b->index);
}

/* x, [..., c] or [..., 1], for the rows that are in a bag; 0, without a gradient, for the others. */
static rw_tensor *in_bags(const struct bags *b, rw_tensor *x)
{
    if (!x || !b->kept) return x;
    rw_tensor *const out = rw_logical_not_at(b->at, b->t, b->kept);
    rw_tensor *const mask = out ? rw_unsqueeze_at(b->at, b->t, out, -1) : NULL;
    return mask ? rw_masked_fill_at(b->at, b->t, x, mask, 0) : NULL;
}

/* In the type of sums. */
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

/* The number of rows of each bag, 1 for an empty one: [b, 1] */
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
    rw_tensor *rows = b->offsets && !numbers ? NULL : widened(b, in_bags(b, all_rows(b)));
    if (rows && b->weights) { /* a weight of a row in no bag may be NaN, and 0 times that would be NaN */
        rw_tensor *const each = widened(b, in_bags(b, rw_unsqueeze_at(b->at, b->t, b->weights, -1)));
        rows = each ? rw_mul_at(b->at, b->t, rows, each) : NULL;
    }
    rw_tensor *sum = summed(b, rows, numbers);
    if (sum && b->mode == RW_BAG_MEAN) {
        rw_tensor *const n = lengths(b, numbers);
        sum = n ? rw_div_at(b->at, b->t, sum, n) : NULL;
    }
    return sum ? rw_cast_at(b->at, b->t, sum, rw_tensor_dtype(b->table)) : NULL;
}

/* The offsets of bags of equal length, one after the other. */
static rw_tensor *offsets_of(const struct bags *b, int64_t length)
{
    return b->offsets ? b->offsets
                      : rw_arange_at(b->at, b->t, RW_I32, 0, (double)(b->bags * length), (double)length);
}

/* The rows at the places of the maxima, and 0 for empty bags. */
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

/* If there are offsets but no bags, no place of the index is in a bag. */
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
    return record_sums(b); /* the maximum of no rows is 0, like their sum */
}

rw_tensor *rw_embedding_bag_with_at(rw_site at, rw_tape *t, rw_tensor *table, rw_tensor *index,
                                    const rw_embedding_bag_params *params)
{
    RW_ENTER_OP(t);
    static const rw_embedding_bag_params defaults;
    struct bags b = { .at = at, .t = t, .table = table, .index = index };
    if (!read_params(&b, params ? params : &defaults)) return NULL;
    const rw_composite c = rw_composite_begin(t, "embedding_bag_with");
    return rw_composite_end(&c, record(&b));
}
