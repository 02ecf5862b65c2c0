/*
 * Cross-entropy of a linear layer without materializing its logits. Forward records the product and the rows' losses
 * for each chunk of rows; a chunk's logits are not read after that. The row losses are joined by an op of its own, a
 * view. Its gradient rule recomputes the logits of each chunk, writes their gradient over them, and adds the chunk's
 * contribution to the gradients.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/loss/row_cross_entropy.h"
#include "ops/matmul/matmul.h"

#include <rewind/composite.h>
#include <rewind/precision.h>

#define CHUNKS_MAX 1024
#define ROWS_MIN 256

struct linear_loss_attrs {
    struct rw_row_loss_attrs row;
    int64_t chunk;
    int64_t biased, weighed; /* whether there is a bias; and, after it, class weights and their sum */
};

/* losses of the rows, x, weight, target, values kept per row (loss.h)[, bias][, class weights, their sum] -> the losses
   of the rows */
enum { ROWS, X, WEIGHT, TARGET, KEPT, BIAS, INPUTS_MAX = BIAS + 3 };

static rw_status check(rw_op_call *call)
{
    const rw_layout *const in = call->in[ROWS].layout;
    return rw_op_output_view(call, 0, rw_in_shape(call, ROWS), in->stride, in->offset);
}

/* Rows [start, start + n) of a tensor of rows. */
static rw_tensor *rows_of(rw_tape *t, rw_tensor *x, int64_t start, int64_t n)
{
    return x && n < rw_tensor_shape(x).dim[0] ? rw_slice(t, x, 0, start, start + n) : x;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Adds a^T b to *sum, which is NULL before the first term. */
static void add_product(rw_tape *t, rw_tensor **sum, rw_tensor *a, rw_tensor *b, bool first)
{
    rw_tensor *const transposed = a ? rw_transpose(t, a, 0, 1) : NULL;
    *sum = first && !*sum ? rw_matmul(t, transposed, b) : rw_matmul_add_at(RW_HERE, t, *sum, transposed, b);
}

/* Adds the sums of slope's columns, in the type of losses, as a product with ones. */
static void add_columns(rw_tape *t, rw_tensor **sum, rw_tensor *slope)
{
    if (!slope) return;
    const rw_shape s = rw_tensor_shape(slope);
    const rw_dtype dtype = rw_tensor_dtype(slope);
    if (!*sum) *sum = rw_full_at(RW_HERE, t, rw_loss_dtype(dtype), RW_SHAPE(s.dim[1], 1), 0);
    add_product(t, sum, slope, rw_full_at(RW_HERE, t, dtype, RW_SHAPE(s.dim[0], 1), 1), false);
}

/* The gradient rule: per chunk recomputes the logits, writes their gradient over them, and adds the products. */
static rw_status grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const struct linear_loss_attrs *const a = rw_grad_attrs(g);
    struct rw_class_weights w = { RW_NONE, RW_NONE };
    const int weights = BIAS + (int)a->biased;
    if (a->weighed) w.weight = rw_grad_input(g, weights), w.sum = rw_grad_input(g, weights + 1);
    rw_tensor *const bias = a->biased ? rw_grad_input(g, BIAS) : RW_NONE;
    rw_tensor *const x = rw_grad_input(g, X), *const weight = rw_grad_input(g, WEIGHT);
    const int64_t rows = rw_tensor_shape(x).dim[0];
    const bool wants_x = rw_grad_wanted(g, X), wants_weight = rw_grad_wanted(g, WEIGHT);
    const bool wants_bias = a->biased && rw_grad_wanted(g, BIAS);
    rw_tensor *part[CHUNKS_MAX], *columns = NULL, *sum = wants_weight ? rw_grad_wide_addend(g, WEIGHT) : NULL;
    int n = 0;
    for (int64_t at = 0; at < rows || !n; at += a->chunk, n++) {
        const int64_t some = least(a->chunk, rows - at);
        rw_tensor *const xs = rows_of(t, x, at, some), *const target = rows_of(t, rw_grad_input(g, TARGET), at, some);
        rw_tensor *const kept = rows_of(t, rw_grad_input(g, KEPT), at, some);
        rw_tensor *const dy = rows_of(t, rw_grad_upstream(g, 0), at, some);
        rw_tensor *const logits = rw_linear(t, xs, weight, bias);
        rw_tensor *const slope = logits ? rw_cross_entropy_rows_gradient(t, logits, target, kept, dy, &w, &a->row,
                                                                         rw_grad_is_differentiable(g)) : NULL;
        if (wants_bias) add_columns(t, &columns, slope);
        if (wants_weight) add_product(t, &sum, slope, xs, n == 0);
        part[n] = wants_x ? rw_matmul(t, slope, weight) : NULL;
    }
    if (wants_weight) RW_CHECK(rw_grad_set_sum(g, WEIGHT, sum));
    if (wants_bias)
        RW_CHECK(rw_grad_set_narrowed(g, BIAS, columns ? rw_reshape(t, columns, rw_tensor_shape(bias)) : NULL));
    if (!wants_x) return RW_OK;
    return rw_grad_set(g, X, n > 1 ? rw_concat(t, part, n, 0) : part[0]);
}

RW_BUILTIN_OP(linear_cross_entropy, "rows x weight target max_and_log_sum", "F.linear, F.cross_entropy")
static const rw_op_def rw_op_linear_cross_entropy = { .name = "linear_cross_entropy", .n_inputs = RW_OP_VARIADIC,
                                                      .n_outputs = 1, .flags = RW_OP_VIEW, .check = check,
                                                      .kernel = RW_NO_KERNELS, .grad = grad };

/* Rows of a chunk: its logits have about as many elements as x, but there are enough rows for an efficient product. */
static int64_t chunk_of(int64_t rows, int64_t width, int64_t classes, int64_t requested)
{
    int64_t chunk = requested ? requested : ROWS_MIN;
    while (!requested && chunk < rows && (double)chunk * (double)classes < (double)rows * (double)width) chunk *= 2;
    const int64_t most = (rows + CHUNKS_MAX - 1) / CHUNKS_MAX;
    if (chunk < most) chunk = most;
    return chunk > rows ? (rows ? rows : 1) : chunk;
}

/* The rows' losses, chunk by chunk. x [rows, d], target [rows]. */
static rw_tensor *record_rows(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                              rw_tensor *target, const struct rw_class_weights *w, const struct linear_loss_attrs *a)
{
    const int64_t rows = rw_tensor_shape(x).dim[0];
    rw_tensor *loss[CHUNKS_MAX], *kept[CHUNKS_MAX];
    int n = 0;
    for (int64_t from = 0; from < rows || !n; from += a->chunk, n++) {
        const int64_t some = least(a->chunk, rows - from);
        rw_tensor *const xs = rows_of(t, x, from, some), *const targets = rows_of(t, target, from, some);
        rw_tensor *const factors[] = { xs, weight, bias }; /* the last layer is never quantized to FP8 */
        rw_tensor *const logits = xs && targets ? rw_apply_at(at, t, &rw_op_linear, factors, a->biased ? 3 : 2, NULL, 0,
                                                              NULL) : NULL;
        loss[n] = logits ? rw_cross_entropy_rows_at(at, t, logits, targets, w, &a->row, &kept[n]) : NULL;
        if (!loss[n]) return NULL;
    }
    rw_tensor *in[INPUTS_MAX] = { n > 1 ? rw_concat_at(at, t, loss, n, 0) : loss[0], x, weight, target,
                                  n > 1 ? rw_concat_at(at, t, kept, n, 0) : kept[0] };
    if (!in[ROWS] || !in[KEPT]) return NULL;
    n = BIAS;
    if (a->biased) in[n++] = bias;
    if (a->weighed) in[n++] = w->weight, in[n++] = w->sum;
    return rw_apply_at(at, t, &rw_op_linear_cross_entropy, in, n, a, sizeof *a, NULL);
}

/* Records the chunks, joins their losses, and reduces them. */
static rw_tensor *record(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *target,
                         const rw_cross_entropy_params *p, struct linear_loss_attrs *a)
{
    const rw_shape shape = rw_tensor_shape(target);
    x = rw_recipe_cast_low_at(at, t, x);
    weight = x ? rw_recipe_cast_low_at(at, t, weight) : NULL;
    rw_tensor *const bias = weight && a->biased ? rw_recipe_cast_low_at(at, t, p->bias) : RW_NONE;
    if (!weight || !bias) return NULL;
    const struct rw_class_weights w = rw_class_weights_at(at, t, a->weighed ? p->class_weight : RW_NONE,
                                                          rw_loss_dtype(rw_tensor_dtype(x)));
    if (!w.sum) return NULL;
    rw_tensor *const matrix = weight ? rw_matrix_of_rows(t, x) : NULL;
    rw_tensor *const flat = matrix ? rw_reshape_at(at, t, target, RW_SHAPE(rw_shape_numel(shape))) : NULL;
    if (!flat) return NULL;
    const rw_shape s = rw_tensor_shape(matrix);
    a->chunk = chunk_of(s.dim[0], s.dim[1], rw_tensor_shape(weight).dim[0], a->chunk);
    rw_tensor *const rows = record_rows(at, t, matrix, weight, bias, flat, &w, a);
    if (rows && p->reduction == RW_REDUCTION_NONE) return rw_reshape_at(at, t, rows, shape);
    return rw_reduce_rows_at(at, t, rows, flat, &w, &a->row, p->reduction);
}

static const char what[] = "linear_cross_entropy";

/* Checks operands that the nodes would reject in terms of a matrix, or not reject at all, so that the message names the
   caller's arguments. */
static bool check_operands(rw_site at, rw_tape *t, const rw_tensor *x, const rw_tensor *weight, const rw_tensor *target)
{
    rw_shape rows = rw_tensor_shape(x);
    const rw_shape w = rw_tensor_shape(weight);
    if (rows.rank < 1) return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, what, "x", x, "[..., d]");
    rows.rank--;
    if (w.rank != 2 || w.dim[0] < 1 || w.dim[1] != rows.dim[rows.rank])
        return rw_refuse_operand_at(at, t, RW_ERR_SHAPE, what, "weight", weight,
                                    "[classes, %lld] with 1 class or more and x's last axis",
                                    (long long)rows.dim[rows.rank]);
    if (!rw_operand_has_shape_at(at, t, what, "target", target, rows)) return false;
    if (rw_tensor_dtype(target) == RW_I32) return true;
    return rw_refuse_operand_at(at, t, RW_ERR_DTYPE, what, "target", target, "i32");
}

/* Checks an optional vector of the parameters, with one number for each class. */
static bool check_vector(rw_site at, rw_tape *t, rw_tensor *vector, const char *name, int64_t classes)
{
    if (!vector || vector == RW_NONE) return true;
    return rw_operand_check(at, t, vector, what, name) &&
           rw_operand_has_shape_at(at, t, what, name, vector, RW_SHAPE(classes));
}

/* Records the composite; see the public header for the contract. */
rw_tensor *rw_linear_cross_entropy_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *target,
                                      const rw_cross_entropy_params *params)
{
    RW_ENTER_OP(t);
    static const rw_cross_entropy_params defaults;
    const rw_cross_entropy_params *const p = params ? params : &defaults;
    struct linear_loss_attrs a = { .chunk = p->chunk, .biased = p->bias && p->bias != RW_NONE,
                                   .weighed = p->class_weight && p->class_weight != RW_NONE };
    if (!rw_operand_check(at, t, x, what, "x") || !rw_operand_check(at, t, weight, what, "weight") ||
        !rw_operand_check(at, t, target, what, "target") || !check_operands(at, t, x, weight, target) ||
        !rw_row_loss_attrs_of(at, t, what, params, &a.row))
        return NULL;
    const int64_t classes = rw_tensor_shape(weight).dim[0];
    if (!check_vector(at, t, p->bias, "bias", classes) ||
        !check_vector(at, t, p->class_weight, "class weight", classes))
        return NULL;
    const rw_composite c = rw_composite_begin(t, what);
    return rw_composite_end(&c, record(at, t, x, weight, target, p, &a));
}
