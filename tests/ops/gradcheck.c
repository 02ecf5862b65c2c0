/*
 * Every op's gradient rules in float64 compared with finite differences, for every case of op_cases.c: first order by
 * the fused rules and, for each input, the gradient of its gradient by the composed ones, along random directions in
 * all inputs at once.
 *
 * L(k) is a weighted sum of the result, or of one input's gradient, at x + k h d. The central difference over k = 1 to
 * 4 with the weights 4/5, -1/5, 4/105, -1/280 is D8 = L' + O(h^8 L^(9)); over k = 1 to 3 with 3/4, -3/20, 1/60 it is D6
 * = L' + O(h^6 L^(7)).
 *
 * The bound is |D8 - D6| plus the roundings. |D8 - D6| is the error of D6 and more than that of D8, because each
 * further order has another factor of h d over the distance to the nearest singularity, here at most 2^-7, squared. An
 * L is off by E = sum |w_i| G(n_i) M_i (compare.h, op_magnitudes.c), where n includes the summation. The weights of D8
 * add up to 2.09, so D8 is off by 2.09 E / h. The slope is off by the roundings of its own terms, twice the fused
 * rule's if it is composed.
 *
 * Second order: the square of the result is taken, so that linear ops have one. The gradient's upstream is then 2 w y,
 * of magnitude 2 |w| M. Composed of primitives, it takes at most twice the roundings of the fused rule. Its own slope
 * has as many, without the factor 1 / h = 512, which exceeds the weight of one more derivative: 2.09 E / h once more.
 * Inputs are more than 4 h d away from kinks: no two elements of which the larger is taken are closer, nor is any to 0.
 *
 * REWIND_GRADCHECK_SHOW=1 prints the share of its bound that each case uses (without --tap, which hides it).
 */
#include "support/cases/moe.h"
#include "support/op_builds.h"
#include "support/op_run.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Number of directions. The rules are the same on the simulated device, where each point takes long: one there, or
   REWIND_GRADCHECK_DIRECTIONS. */
static int directions(void)
{
    const char *const few = getenv("REWIND_GRADCHECK_DIRECTIONS");
    if (few) return atoi(few);
    return test_device() == RW_DEVICE_CPU ? 3 : 1;
}

struct problem {
    const struct op_case *c;
    struct fixture b;
    int by; /* the input whose gradient is differentiated; -1: first order */
    double h;
    double *x[OP_INPUTS], *at[OP_INPUTS], *d[OP_INPUTS], *w, *v;
    int64_t n[OP_INPUTS], most;
};

static uint64_t state;

/* Between -1/2 and 1/2, by 128ths. */
static double random_part(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)((int)(state >> 57) - 64) / 128;
}

/* Casts to the type and back. The function is linear and exact, so any step works, but the 16-bit type must hold every
   point and every gradient. */
static rw_tensor *there_and_back(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    return rw_cast(t, rw_cast(t, x[0], c->dtype), RW_F64);
}

static const struct op_case casts[] = {
    { .name = "cast to f32 and back",
      .build = there_and_back,
      .sizes = op_values,
      .n = 1,
      .in = { { .shape = { 2, { 3, 17 } }, .range = OP_TIES } },
      .dtype = RW_F32 },
    { .name = "cast to bf16 and back",
      .build = there_and_back,
      .sizes = op_values,
      .n = 1,
      .in = { { .shape = { 1, { 65 } }, .range = OP_TIES } },
      .dtype = RW_BF16 },
};

static bool is_cast(const struct op_case *c)
{
    return c->build == there_and_back;
}

/* For a cast by halves, so that products of three of them have few bits. */
static double coarse(const struct op_case *c, double x)
{
    return is_cast(c) ? rint(2 * x) / 2 : x;
}

/* Inputs away from kinks: maxima are taken of numbers that differ by 64ths, or that are on grids of 32nds shifted by
   half a cell. */
static double place(const struct op_case *c, int input, int64_t i, int64_t n)
{
    if (is_cast(c)) return op_number(OP_TIES, i, input);
    const bool largest = isinf(c->value) && (c->build == op_build_norm || c->build == op_build_normalize);
    if (c->build == op_build_max || c->build == op_build_max_pool2d ||
        c->build == op_build_adaptive_max_pool2d || c->build == op_build_topk || c->build == op_build_argmax ||
        c->build == op_build_argmin || c->build == op_build_moe_topk || largest ||
        (c->build == op_build_embedding_bag_with && c->axis == RW_BAG_MAX)) {
        cr_assert(n % 13, "%s: 13 steps through the numbers must meet each", c->name);
        return (double)(i * 13 % n) / 64;
    }
    const enum op_range range = c->in[input].range == OP_TIES ? OP_SIGNED : c->in[input].range;
    if (c->build == op_build_clamp_tensor && input == 2) return op_number(range, i, input) + 1.0 / 128;
    return op_number(range, i, input) + (input % 2 ? 0 : 1.0 / 64);
}

/* Chooses inputs, weights and a direction for a case. */
static void open_problem(struct problem *p, const struct op_case *c, int by, int direction)
{
    *p = (struct problem){ .c = c, .by = by, .h = is_cast(c) ? 1 : 0x1p-9, .b = fixture_open(1, 2) };
    state = 88172645463325252u + (uint64_t)direction;
    for (int i = 0; i < c->n; i++) {
        p->n[i] = rw_shape_numel(op_base_shape(&c->in[i]));
        p->x[i] = calloc((size_t)p->n[i] + 1, sizeof(double));
        p->at[i] = calloc((size_t)p->n[i] + 1, sizeof(double));
        p->d[i] = calloc((size_t)p->n[i] + 1, sizeof(double));
        for (int64_t k = 0; k < p->n[i]; k++) {
            p->x[i][k] = place(c, i, k, p->n[i]);
            p->d[i][k] = coarse(c, random_part());
        }
        p->most = p->n[i] > p->most ? p->n[i] : p->most;
    }
    struct recording r;
    struct op_data data = { .w = NULL };
    for (int i = 0; i < c->n; i++) data.x[i] = p->x[i];
    cr_assert(op_record(&r, p->b.t, c, RW_F64, &data, OP_PLAIN), "%s: %s", c->name, rw_error_message(p->b.ctx));
    const int64_t numel = rw_shape_numel(rw_tensor_shape(r.y));
    p->most = numel > p->most ? numel : p->most;
    rw_tape_reset(p->b.t);
    p->w = malloc((size_t)(p->most + 1) * sizeof(double));
    p->v = malloc((size_t)(p->most + 1) * sizeof(double));
    for (int64_t k = 0; k < p->most; k++) {
        p->w[k] = coarse(c, random_part());
        p->v[k] = coarse(c, random_part());
    }
}

static void close_problem(struct problem *p)
{
    for (int i = 0; i < p->c->n; i++) free(p->x[i]), free(p->at[i]), free(p->d[i]);
    free(p->w), free(p->v);
    fixture_close(&p->b);
}

static rw_tensor *weighted(rw_tape *t, rw_tensor *y, const double *w)
{
    return rw_sum(
        t,
        rw_mul(t, y,
               rw_input(t, RW_F64, rw_tensor_shape(y), w, (size_t)rw_shape_numel(rw_tensor_shape(y)) * sizeof *w)),
        RW_ALL_AXES, false);
}

/* L at x + k h d. */
static rw_tensor *record(struct problem *p, struct recording *r, int k)
{
    struct op_data data = { .w = p->w };
    rw_tape *const t = p->b.t;
    for (int i = 0; i < p->c->n; i++) {
        for (int64_t j = 0; j < p->n[i]; j++) p->at[i][j] = p->x[i][j] + k * p->h * p->d[i][j];
        data.x[i] = p->at[i];
    }
    rw_tensor *y = op_record(r, t, p->c, RW_F64, &data, OP_PLAIN), *loss = y ? weighted(t, y, p->w) : NULL;
    if (y && p->by >= 0) {
        rw_tensor *g = NULL;
        loss = weighted(t, rw_mul(t, y, y), p->w);
        cr_assert(rw_grad(t, loss, &r->base[p->by], 1, &g) == RW_OK && g, "%s, input %d: %s", p->c->name, p->by,
                  rw_error_message(p->b.ctx));
        loss = weighted(t, g, p->v);
    }
    cr_assert(loss, "%s: %s", p->c->name, rw_error_message(p->b.ctx));
    return loss;
}

static double loss_at(struct problem *p, int k)
{
    struct recording r;
    const double loss = rw_item(p->b.t, record(p, &r, k));
    cr_assert_eq(rw_error_status(p->b.ctx), RW_OK, "%s: %s", p->c->name, rw_error_message(p->b.ctx));
    rw_tape_reset(p->b.t);
    return loss;
}

/* The derivative of L along d, by rw_backward() or by the rules of rw_grad(). */
static double slope_along(struct problem *p, bool composed)
{
    struct recording r;
    rw_tensor *g[OP_INPUTS];
    double slope = 0;
    rw_tensor *const loss = record(p, &r, 0);
    cr_assert_eq(composed ? rw_grad(p->b.t, loss, r.base, (size_t)p->c->n, g) : rw_backward(p->b.t, loss), RW_OK,
                 "%s: %s", p->c->name, rw_error_message(p->b.ctx));
    for (int i = 0; i < p->c->n; i++) {
        double *const values = malloc((size_t)(p->n[i] + 1) * sizeof *values);
        rw_tensor *const gradient = composed ? g[i] : rw_gradient(r.base[i]);
        cr_assert(gradient, "%s: no gradient of input %d", p->c->name, i);
        cr_assert_eq(rw_read(p->b.t, gradient, values, (size_t)p->n[i] * sizeof *values), RW_OK);
        for (int64_t j = 0; j < p->n[i]; j++) slope += values[j] * p->d[i][j];
        free(values);
    }
    rw_tape_reset(p->b.t);
    return slope;
}

/* sum |w_i| G(n) M_i for one part of an outcome. */
static double weighed(const struct outcome *size, int part, const double *w, int n)
{
    double sum = 0;
    for (int64_t i = 0; i < size->numel[part]; i++) sum += fabs(w[i] * number_get(size->raw[part], RW_F64, i));
    return roundings(n + (int)size->numel[part] + 1, 0x1p-53) * sum;
}

/* The error of the difference, and of the slope, due to the roundings of L. */
static double rounding_error(struct problem *p)
{
    const struct op_case *const c = p->c;
    const double steep = 2.09 / p->h;
    struct outcome size;
    struct op_data data = { .w = p->w };
    double *up = NULL, error;
    for (int i = 0; i < c->n; i++) data.x[i] = p->x[i];
    cr_assert_eq(op_run_sizes(&size, p->b.t, c, &data), RW_OK, "%s: %s", c->name, rw_error_message(p->b.ctx));
    error = steep * weighed(&size, 0, p->w, c->r[0].n);
    for (int i = 0; i < c->n; i++) error += weighed(&size, 1 + i, p->d[i], 2 * op_allowed(c, 1 + i).n);
    if (p->by >= 0) {
        up = malloc((size_t)(p->most + 1) * sizeof *up);
        for (int64_t i = 0; i < size.numel[0]; i++) up[i] = 2 * fabs(p->w[i] * number_get(size.raw[0], RW_F64, i));
        data.w = up;
        op_forget(&size);
        cr_assert_eq(op_run_sizes(&size, p->b.t, c, &data), RW_OK, "%s: %s", c->name, rw_error_message(p->b.ctx));
        error = 2 * steep * weighed(&size, 1 + p->by, p->v, c->r[0].n + 2 * op_allowed(c, 1 + p->by).n + 3);
    }
    op_forget(&size);
    free(up);
    return error;
}

/* Returns the share of the bound that was used. */
static double check(const struct op_case *c, int by, int direction)
{
    static const double eight[] = { 4.0 / 5, -1.0 / 5, 4.0 / 105, -1.0 / 280 },
                        six[] = { 3.0 / 4, -3.0 / 20, 1.0 / 60, 0 };
    struct problem p;
    open_problem(&p, c, by, direction);
    double d8 = 0, d6 = 0, worst = 0;
    for (int k = 1; k <= 4; k++) {
        const double change = (loss_at(&p, k) - loss_at(&p, -k)) / p.h;
        d8 += eight[k - 1] * change;
        d6 += six[k - 1] * change;
    }
    const double bound = fabs(d8 - d6) + rounding_error(&p);
    for (int composed = 0; composed < 2; composed++) {
        const double slope = slope_along(&p, composed), error = fabs(slope - d8);
        cr_expect(error <= bound,
                  "%s, %s of input %d, direction %d, %s: gradient %.12g, difference %.12g, off by %.3g, %.3g allowed",
                  c->name, by < 0 ? "first order" : "second order", by, direction, composed ? "composed" : "fused",
                  slope, d8, error, bound);
        if (bound > 0) worst = fmax(worst, error / bound);
    }
    close_problem(&p);
    return worst;
}

static void check_case(const struct op_case *c, bool second)
{
    double worst = 0;
    for (int i = 0; i < c->n; i++)
        if (rw_shape_numel(op_base_shape(&c->in[i])) == 0) return; /* no elements, so no direction */
    for (int direction = 0; direction < directions(); direction++)
        for (int by = second ? 0 : -1; by < (second ? c->n : 0); by++) worst = fmax(worst, check(c, by, direction));
    if (getenv("REWIND_GRADCHECK_SHOW"))
        fprintf(stderr, "# %s %-60s %.3f of the bound\n", second ? "second" : "first ", c->name, worst);
}

static void check_group(enum op_group group, bool second)
{
    size_t n;
    const struct op_case *const all = op_cases(&n);
    for (size_t i = 0; i < n; i++) {
        const struct op_case *const c = &all[i];
        if (c->group != group || !c->n || c->large || c->tiled) continue;
        if (c->build == op_build_cast && c->dtype != RW_F64) continue; /* a step function: see casts[] */
        if (c->build == op_build_embedding_with) continue; /* one row has a slope and no gradient: indexes.c */
        check_case(c, second);
    }
}

#define GROUP(name, group)                                                                                             \
    Test(gradcheck, name##_first_order)                                                                                \
    {                                                                                                                  \
        check_group(group, false);                                                                                     \
    }                                                                                                                  \
    Test(gradcheck, name##_second_order)                                                                               \
    {                                                                                                                  \
        check_group(group, true);                                                                                      \
    }

GROUP(pointwise, OP_POINTWISE)
GROUP(products, OP_PRODUCTS)
GROUP(norms, OP_NORMS)
GROUP(reductions, OP_REDUCTIONS)
GROUP(attention, OP_ATTENTION)
GROUP(tables, OP_TABLES)
GROUP(shapes, OP_SHAPES)
GROUP(random, OP_RANDOM)

Test(gradcheck, casts)
{
    for (size_t i = 0; i < sizeof casts / sizeof *casts; i++)
        for (int second = 0; second < 2; second++) check_case(&casts[i], second);
}

Test(gradcheck, values_are_what_the_closed_form_says)
{
    struct fixture b = fixture_open(1, 1);
    const double x[3] = { -1, 0.5, 2 };
    rw_tensor *const in = rw_input(b.t, RW_F64, RW_SHAPE(3), x, sizeof x);
    double y[3];
    rw_read(b.t, rw_gelu(b.t, in), y, sizeof y);
    for (int i = 0; i < 3; i++) cr_assert_float_eq(y[i], 0.5 * x[i] * (1 + erf(x[i] / sqrt(2))), 1e-14);
    fixture_close(&b);
}
