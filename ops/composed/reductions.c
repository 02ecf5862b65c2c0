/* prod, var, norm, normalize: reductions composed of ordinary ops, which provide the gradient rules. */
#include "base/public_entry.h"
#include "ops/common/pass_ops.h"
#include "ops/common/util.h"
#include "ops/pointwise/pointwise.h"

#include <rewind/composite.h>
#include <rewind/precision.h>
#include <rewind/reductions.h>

#include <math.h>

/* The arguments of a function of this file. */
struct reduction {
    rw_site at;
    rw_tape *t;
    const char *what;
    rw_dtype dtype; /* of x and of the result */
    rw_shape shape; /* of x */
    uint32_t mask;  /* of its axes */
    int64_t n;      /* elements of x per element of the result */
};

/* As rw_axes_mask(), outside of an op's check. */
static bool find_axes(struct reduction *q, uint32_t axes)
{
    const int rank = q->shape.rank;
    int wrong = axes != RW_ALL_AXES && axes >> 16 ? INT32_MAX : 0, twice = 0;
    q->mask = axes == RW_ALL_AXES ? (1u << rank) - 1 : 0;
    for (int i = 0; i < 16 && axes != RW_ALL_AXES && !wrong; i++) {
        const int axis = i < 8 ? i : 7 - i + rank;
        if (!(axes >> i & 1)) continue;
        if (axis < 0 || axis >= rank) wrong = i < 8 ? i + 1 : 7 - i;
        else if (q->mask >> axis & 1) twice = axis + 1;
        else q->mask |= 1u << axis;
    }
    if (wrong == INT32_MAX) rw_refuse_at(q->at, q->t, RW_ERR_SHAPE, "%s(axes): expected -8 to 7, got one outside",
                                          q->what);
    else if (wrong)
        rw_refuse_at(q->at, q->t, RW_ERR_SHAPE, "%s(axes): expected axes of x of rank %d, got axis %d", q->what, rank,
                     wrong > 0 ? wrong - 1 : wrong);
    else if (twice)
        rw_refuse_at(q->at, q->t, RW_ERR_SHAPE, "%s(axes): expected each axis at most once, got axis %d twice", q->what,
                     twice - 1);
    return !wrong && !twice;
}

static bool begin(struct reduction *q, rw_tensor *x, uint32_t axes)
{
    if (!rw_operand_check(q->at, q->t, x, q->what, "x")) return false;
    q->dtype = rw_tensor_dtype(x);
    q->shape = rw_tensor_shape(x);
    if (!rw_dtype_is_float(q->dtype)) {
        return rw_refuse_operand_at(q->at, q->t, RW_ERR_DTYPE, q->what, "x", x, "a floating-point type");
    }
    if (!find_axes(q, axes)) return false;
    q->n = 1;
    for (int i = 0; i < q->shape.rank; i++)
        if (q->mask >> i & 1) q->n *= q->shape.dim[i];
    return true;
}

/* Casts x, and sets the type of the result, as an active recipe requires. Inside of the composite, because it may
   record. */
static rw_tensor *taken(struct reduction *q, rw_tensor *x)
{
    x = rw_recipe_cast_f32_at(q->at, q->t, x);
    if (x) q->dtype = rw_tensor_dtype(x);
    return x;
}

/* x in the type of the arithmetic; and a result cast back. */
static rw_tensor *widened(const struct reduction *q, rw_tensor *x)
{
    return rw_dtype_size(q->dtype) == 2 ? rw_cast_at(q->at, q->t, x, RW_F32) : x;
}

static rw_tensor *narrowed(const struct reduction *q, rw_tensor *y)
{
    return y ? rw_cast_at(q->at, q->t, y, q->dtype) : NULL;
}

/* ---- product ---- */

/* [rest..., elements]: the axes of the mask, at least one, joined at the end. */
static rw_tensor *gathered(const struct reduction *q, rw_tensor *x)
{
    int axes[RW_MAX_RANK], n = 0;
    rw_shape shape = { 0 };
    for (int i = 0; i < q->shape.rank; i++)
        if (!(q->mask >> i & 1)) axes[n++] = i, shape.dim[shape.rank++] = q->shape.dim[i];
    for (int i = 0; i < q->shape.rank; i++)
        if (q->mask >> i & 1) axes[n++] = i;
    shape.dim[shape.rank++] = q->n;
    rw_tensor *const permuted = rw_permute_at(q->at, q->t, x, axes);
    return permuted ? rw_reshape_at(q->at, q->t, permuted, shape) : NULL;
}

/* Multiplies the first half of the last axis by the second half, keeping an odd last element, until one element is
   left. */
static rw_tensor *halved(const struct reduction *q, rw_tensor *x)
{
    rw_tensor *over = NULL, *part[3];
    for (int64_t n = q->n; x && n > 1; n /= 2) {
        const int64_t sizes[] = { n / 2, n / 2, n % 2 };
        if (rw_split_at(q->at, q->t, x, -1, sizes, 2 + (int)(n % 2), part)) return NULL;
        x = rw_mul_at(q->at, q->t, part[0], part[1]);
        if (x && n % 2) over = over ? rw_mul_at(q->at, q->t, over, part[2]) : part[2];
        if (n % 2 && !over) return NULL;
    }
    return x && over ? rw_mul_at(q->at, q->t, x, over) : x;
}

static rw_shape reduced_shape(const struct reduction *q, bool keep)
{
    rw_shape s = { 0 };
    for (int i = 0; i < q->shape.rank; i++) {
        if (!(q->mask >> i & 1)) s.dim[s.rank++] = q->shape.dim[i];
        else if (keep) s.dim[s.rank++] = 1;
    }
    return s;
}

static rw_tensor *record_prod(const struct reduction *q, rw_tensor *x, uint32_t axes, bool keep)
{
    if (q->n == 0) { /* the product of no elements is 1 */
        rw_tensor *const zero = rw_sum_at(q->at, q->t, x, axes, keep);
        return zero ? rw_add_scalar_at(q->at, q->t, zero, 1) : NULL;
    }
    if (!q->mask) return rw_reshape_at(q->at, q->t, x, q->shape); /* the result is the caller's, x need not be */
    rw_tensor *const wide = widened(q, x), *const rows = wide ? gathered(q, wide) : NULL;
    rw_tensor *const y = rows ? halved(q, rows) : NULL;
    return narrowed(q, y ? rw_reshape_at(q->at, q->t, y, reduced_shape(q, keep)) : NULL);
}

rw_tensor *rw_prod_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep)
{
    RW_ENTER_OP(t);
    struct reduction q = { .at = at, .t = t, .what = "prod" };
    if (!begin(&q, x, axes)) return NULL;
    const rw_composite c = rw_composite_begin(t, q.what);
    x = taken(&q, x);
    return rw_composite_end(&c, x ? record_prod(&q, x, axes, keep) : NULL);
}

/* ---- variance ---- */

static rw_tensor *record_var(const struct reduction *q, rw_tensor *x, uint32_t axes, int64_t over, bool keep)
{
    rw_tensor *const wide = widened(q, x), *const d = wide ? rw_centred_at(q->at, q->t, wide, axes) : NULL;
    rw_tensor *const squares = d ? rw_mul_at(q->at, q->t, d, d) : NULL;
    rw_tensor *const sum = squares ? rw_sum_at(q->at, q->t, squares, axes, keep) : NULL;
    return narrowed(q, sum ? rw_scale_at(q->at, q->t, sum, 1 / (double)over) : NULL);
}

rw_tensor *rw_var_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool unbiased, bool keep)
{
    RW_ENTER_OP(t);
    struct reduction q = { .at = at, .t = t, .what = "var" };
    if (!begin(&q, x, axes)) return NULL;
    if (q.n < 1 + unbiased) {
        rw_refuse_at(at, t, RW_ERR_SHAPE, "var(x): expected %d or more elements per %svariance, got %lld", 1 + unbiased,
                     unbiased ? "unbiased " : "", (long long)q.n);
        return NULL;
    }
    const rw_composite c = rw_composite_begin(t, q.what);
    x = taken(&q, x);
    return rw_composite_end(&c, x ? record_var(&q, x, axes, q.n - unbiased, keep) : NULL);
}

/* ---- norms ---- */

/*
 * The root of a sum of squares s. Where s is 0, the root is taken of 1 and the result 0 is selected: so the gradient is
 * 0 there, and no infinite gradient is multiplied by 0.
 */
static rw_tensor *root(const struct reduction *q, rw_tensor *s)
{
    rw_tensor *const one = rw_full_at(q->at, q->t, rw_tensor_dtype(s), RW_SCALAR, 1);
    rw_tensor *const lift = one ? rw_leave_at(q->at, q->t, one, s) : NULL;
    rw_tensor *const above = lift ? rw_add_at(q->at, q->t, s, lift) : NULL;
    rw_tensor *const y = above ? rw_sqrt_at(q->at, q->t, above) : NULL;
    return y ? rw_take_at(q->at, q->t, y, s) : NULL;
}

/* The norm of x in the type of the arithmetic. */
static rw_tensor *norm_of(const struct reduction *q, rw_tensor *x, double p, uint32_t axes, bool keep)
{
    if (p == 2) {
        rw_tensor *const squares = rw_mul_at(q->at, q->t, x, x);
        rw_tensor *const sum = squares ? rw_sum_at(q->at, q->t, squares, axes, keep) : NULL;
        return sum ? root(q, sum) : NULL;
    }
    rw_tensor *const size = rw_abs_at(q->at, q->t, x);
    if (!size) return NULL;
    return p == 1 ? rw_sum_at(q->at, q->t, size, axes, keep) : rw_max_at(q->at, q->t, size, axes, keep);
}

static bool takes_order(const struct reduction *q, double p)
{
    if (p == 1 || p == 2) return true;
    if (isinf(p) && p > 0 && q->n) return true;
    if (isinf(p) && p > 0) rw_refuse_at(q->at, q->t, RW_ERR_SHAPE, "%s(x): expected 1 element or more "
                                          "per maximum, got 0", q->what);
    else rw_refuse_at(q->at, q->t, RW_ERR_ARGUMENT, "%s(p): expected 1, 2 or INFINITY, got %g", q->what, p);
    return false;
}

rw_tensor *rw_norm_at(rw_site at, rw_tape *t, rw_tensor *x, double p, uint32_t axes, bool keep)
{
    RW_ENTER_OP(t);
    struct reduction q = { .at = at, .t = t, .what = "norm" };
    if (!begin(&q, x, axes) || !takes_order(&q, p)) return NULL;
    const rw_composite c = rw_composite_begin(t, q.what);
    x = taken(&q, x);
    rw_tensor *const wide = x ? widened(&q, x) : NULL;
    return rw_composite_end(&c, narrowed(&q, wide ? norm_of(&q, wide, p, axes, keep) : NULL));
}

static rw_tensor *record_normalize(const struct reduction *q, rw_tensor *x, double p, uint32_t axes, double eps)
{
    rw_tensor *const wide = widened(q, x), *const norm = wide ? norm_of(q, wide, p, axes, true) : NULL;
    rw_tensor *const least = norm ? rw_full_at(q->at, q->t, rw_tensor_dtype(wide), RW_SCALAR, eps) : NULL;
    rw_tensor *const by = least ? rw_maximum_at(q->at, q->t, norm, least) : NULL;
    return narrowed(q, by ? rw_div_at(q->at, q->t, wide, by) : NULL);
}

rw_tensor *rw_normalize_at(rw_site at, rw_tape *t, rw_tensor *x, double p, int axis, double eps)
{
    RW_ENTER_OP(t);
    struct reduction q = { .at = at, .t = t, .what = "normalize" };
    const uint32_t axes = RW_AXES(axis);
    if (!begin(&q, x, axes) || !takes_order(&q, p)) return NULL;
    if (!(eps > 0 && isfinite(eps) && (q.dtype == RW_F64 || ((float)eps > 0 && isfinite((float)eps))))) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "normalize(eps): expected a finite number above 0 in %s, got %g",
                     q.dtype == RW_F64 ? "float64" : "float32", eps);
        return NULL;
    }
    const rw_composite c = rw_composite_begin(t, q.what);
    x = taken(&q, x);
    return rw_composite_end(&c, x ? record_normalize(&q, x, p, axes, eps) : NULL);
}
