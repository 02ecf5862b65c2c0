/*
 * linear under an FP8 recipe. Input, weight and the gradient of the output are quantized, with scales that are powers
 * of two, so decoding to bfloat16 is exact. The products are those of bfloat16, on operands that they decode
 * (fp8_matmul.h). Backward keeps the quantized operands. Under delayed scaling the scale of the output's gradient is
 * an operand of the rule.
 */
#include "ops/matmul/linear_fp8.h"

#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/float8/fp8_scaling_ops.h"
#include "ops/matmul/fp8_matmul.h"
#include "ops/matmul/matmul.h"
#include "ops/reduce/reduce.h"

#include <rewind/composite.h>
#include <rewind/custom_grad.h>
#include <rewind/ops.h>
#include <rewind/precision.h>

/* Inputs of the gradient rule: y, then these; after them the scale of the gradient's FP8 data, and the bias, if
   present. */
enum { X = 1, WEIGHT, X_CODES, X_SCALE, WEIGHT_CODES, WEIGHT_SCALE, REST };

struct rule_data {
    int64_t scaling, of_weight; /* of rows, and of the weight */
    int64_t gradient;           /* the FP8 type of the gradient */
    int32_t given, bias;        /* input indices of these; 0: absent */
    rw_recipe_slot slot;        /* where the gradient's amax and counts are recorded */
};

static rw_scaling weight_scaling(rw_scaling rows)
{
    return rows == RW_SCALING_1X128 ? RW_SCALING_128X128 : rows;
}

/* ---- gradients of gradients: decoded operands are values of the tape ---- */

/* The decoded operand, as a value whose gradient is passed to x. */
static rw_tensor *decoded(const rw_grad_call *g, rw_tensor *codes, rw_tensor *scale, int64_t scaling, rw_tensor *x)
{
    rw_tape *const t = rw_grad_tape(g);
    const rw_dtype dtype = rw_tensor_dtype(rw_grad_input(g, 0));
    rw_tensor *const y = codes ? rw_dequantize(t, codes, scale, (rw_scaling)scaling, dtype) : NULL;
    return y ? rw_straight_through(t, y, rw_cast(t, x, dtype)) : NULL;
}

/* dw = dy^T x, added to a float32 sum if there is one. */
static rw_status set_weight(rw_grad_call *g, rw_tensor *dy, rw_tensor *x)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const transposed = dy ? rw_transpose(t, dy, 0, 1) : NULL, *const rows = rw_matrix_of_rows(t, x);
    if (!transposed || !rows) return rw_grad_set(g, WEIGHT, NULL);
    rw_tensor *const sum = rw_grad_wide_addend(g, WEIGHT);
    if (sum) return rw_grad_set_sum(g, WEIGHT, rw_matmul_add_at(RW_HERE, t, sum, transposed, rows));
    return rw_grad_set(g, WEIGHT, rw_grad_narrowed(g, WEIGHT, rw_matmul(t, transposed, rows)));
}

static rw_status double_backward(rw_grad_call *g, const struct rule_data *a, rw_tensor *dy, rw_tensor *codes,
                                 rw_tensor *scale)
{
    rw_tensor *const dz = decoded(g, codes, scale, a->scaling, dy);
    if (rw_grad_wanted(g, X)) {
        rw_tensor *const w = decoded(g, rw_grad_input(g, WEIGHT_CODES), rw_grad_input(g, WEIGHT_SCALE), a->of_weight,
                                     rw_grad_input(g, WEIGHT));
        RW_CHECK(rw_grad_set_product(g, X, dz, w));
    }
    if (!rw_grad_wanted(g, WEIGHT)) return RW_OK;
    return set_weight(g, dz, decoded(g, rw_grad_input(g, X_CODES), rw_grad_input(g, X_SCALE), a->scaling,
                                     rw_grad_input(g, X)));
}

/* ---- gradients: products of FP8 operands ---- */

/* Sets the gradient of input i: a b or a^T b of FP8 operands, plus the sum so far. */
static rw_status set_product(rw_grad_call *g, int i, rw_tensor *const *in, const struct rw_codes_product_attrs *p)
{
    rw_tape *const t = rw_grad_tape(g);
    const rw_shape x = rw_tensor_shape(rw_grad_input(g, i));
    const int64_t n = x.dim[x.rank - 1];
    int64_t rows = 1; /* not elements divided by the last extent, which may be 0 */
    for (int axis = 0; axis < x.rank - 1; axis++) rows *= x.dim[axis];
    /* The product can add to sums of bfloat16 and float32; a float16 sum is added by the library's default rule. */
    rw_tensor *const sum = rw_grad_dtype(g, i) == RW_F16 ? NULL : rw_grad_wide_addend(g, i);
    rw_tensor *with[] = { in[RW_CODES_A], in[RW_CODES_A_SCALE], in[RW_CODES_B], in[RW_CODES_B_SCALE], NULL };
    if (sum) with[RW_CODES_MORE] = x.rank == 2 ? sum : rw_reshape(t, sum, RW_SHAPE(rows, n));
    rw_tensor *const y =
        rw_apply(t, &rw_op_matmul_of_codes, with, RW_CODES_MORE + (sum ? 1 : 0), p, sizeof *p, NULL);
    rw_tensor *const own = !y || x.rank == 2 ? y : rw_reshape(t, y, x);
    return sum ? rw_grad_set_sum(g, i, own) : rw_grad_set(g, i, own ? rw_grad_narrowed(g, i, own) : NULL);
}

static rw_tensor *codes_of_gradient(const rw_grad_call *g, const struct rule_data *a, rw_tensor *dy,
                                    rw_tensor **ret_scale)
{
    const rw_quantize_params p = { (rw_dtype)a->gradient, (rw_scaling)a->scaling, true };
    rw_tensor *const given = a->given ? rw_grad_input(g, a->given) : RW_NONE;
    return rw_recipe_quantize_gradient(rw_grad_tape(g), dy, given, &p, &a->slot, ret_scale);
}

/* The gradient rule: quantizes dy and records the products for x, weight and bias. */
static rw_status grad(rw_grad_call *g, const void *data)
{
    const struct rule_data *const a = data;
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *scale, *const dy = rw_matrix_of_rows(t, rw_grad_upstream(g, 0));
    rw_tensor *const codes = dy ? codes_of_gradient(g, a, dy, &scale) : NULL;
    if (!codes) return rw_grad_set(g, X, NULL);
    if (rw_grad_is_differentiable(g)) RW_CHECK(double_backward(g, a, dy, codes, scale));
    if (!rw_grad_is_differentiable(g) && rw_grad_wanted(g, X)) {
        rw_tensor *const in[] = { codes, scale, rw_grad_input(g, WEIGHT_CODES), rw_grad_input(g, WEIGHT_SCALE) };
        RW_CHECK(set_product(g, X, in, &(struct rw_codes_product_attrs){ a->scaling, a->of_weight, false, false }));
    }
    if (!rw_grad_is_differentiable(g) && rw_grad_wanted(g, WEIGHT)) {
        rw_tensor *const in[] = { codes, scale, rw_grad_input(g, X_CODES), rw_grad_input(g, X_SCALE) };
        RW_CHECK(set_product(g, WEIGHT, in, &(struct rw_codes_product_attrs){ a->scaling, a->scaling, true, false }));
    }
    return a->bias && rw_grad_wanted(g, a->bias) ? rw_grad_set_sum_to(g, a->bias, dy) : RW_OK;
}

/* Quantizes both operands: FP8 data and scales, as inputs of the rule without y. */
static bool quantise(rw_site at, rw_tape *t, const rw_recipe *recipe, rw_tensor **in)
{
    const rw_quantize_params rows = { RW_F8_E4M3, recipe->scaling, true };
    const rw_quantize_params blocks = { RW_F8_E4M3, weight_scaling(recipe->scaling), true };
    rw_tensor *const x = in[X - 1], *const weight = in[WEIGHT - 1];
    in[X_CODES - 1] = rw_recipe_quantize_at(at, t, x, &rows, weight, RW_DELAYED_INPUT, &in[X_SCALE - 1]);
    if (!in[X_CODES - 1]) return false;
    in[WEIGHT_CODES - 1] = rw_recipe_quantize_at(at, t, weight, &blocks, weight, RW_DELAYED_WEIGHT,
                                                 &in[WEIGHT_SCALE - 1]);
    return in[WEIGHT_CODES - 1] != NULL;
}

/* Appends the other inputs of the rule; *n grows by their number. */
static bool add_rest(rw_site at, rw_tape *t, rw_tensor *bias, rw_tensor **in, int *n, struct rule_data *a)
{
    rw_tensor *scale;
    if (rw_recipe_gradient_slot_at(at, t, in[WEIGHT - 1], &a->slot, &scale)) return false;
    if (scale != rw_none()) {
        in[(*n)++] = scale;
        a->given = *n;
    }
    if (bias != rw_none()) {
        in[(*n)++] = bias;
        a->bias = *n;
    }
    return true;
}

static rw_tensor *record(rw_site at, rw_tape *t, const rw_recipe *recipe, rw_tensor *x, rw_tensor *weight,
                         rw_tensor *bias)
{
    const rw_scaling of_weight = weight_scaling(recipe->scaling);
    struct rule_data a = { .scaling = recipe->scaling, .of_weight = of_weight,
                           .gradient = recipe->gradient_dtype ? recipe->gradient_dtype : RW_F8_E5M2 };
    /* Values of this tape, by which their quantized forms are found. Without y: one less than in the rule. */
    rw_tensor *in[REST + 1] = { rw_operand_at(at, t, x, "linear"), rw_operand_at(at, t, weight, "linear") };
    int n = REST - 1;
    if (!in[0] || !in[1] || !quantise(at, t, recipe, in) || !add_rest(at, t, bias, in, &n, &a)) return NULL;
    const struct rw_codes_product_attrs p = { recipe->scaling, of_weight, false, true };
    rw_tensor *const of[] = { in[X_CODES - 1], in[X_SCALE - 1], in[WEIGHT_CODES - 1], in[WEIGHT_SCALE - 1], bias };
    rw_tensor *const y = rw_apply_at(at, t, &rw_op_linear_of_codes, of, RW_CODES_MORE + (a.bias ? 1 : 0), &p, sizeof p,
                                     NULL);
    return y ? rw_custom_grad_at(at, t, y, in, n, grad, &a, sizeof a) : NULL;
}

rw_tensor *rw_linear_of_codes_at(rw_site at, rw_tape *t, const rw_recipe *recipe, rw_tensor *x, rw_tensor *weight,
                                 rw_tensor *bias)
{
    const rw_recipe own = *recipe; /* a copy: recording may move the recipe */
    if (!rw_operand_check(at, t, x, "linear", "x") || !rw_operand_check(at, t, weight, "linear", "weight") ||
        (bias != rw_none() && !rw_operand_check(at, t, bias, "linear", "bias")))
        return NULL;
    const rw_composite c = rw_composite_begin(t, "linear");
    x = rw_recipe_cast_low_at(at, t, x);
    if (x && bias != rw_none()) bias = rw_recipe_cast_low_at(at, t, bias);
    return rw_composite_end(&c, x && bias ? record(at, t, &own, x, weight, bias) : NULL);
}
