/* Cases of mixtures of experts: routing, rows by expert, and their weighted sums. c->shape is [T, k] of the index,
   c->axes the number of experts, some of which have no rows; c->causal: no expert has more than two rows. */
#include "support/cases/moe.h"
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

#include <math.h>
#include <stdlib.h>

static rw_dtype sum_type(const rw_tensor *x)
{
    return rw_tensor_dtype(x) == RW_F64 ? RW_F64 : RW_F32;
}

/* The expert in slot s of token n. The slots of a token differ, and expert 1 gets no token if there are others. */
static int32_t expert_of(const struct op_case *c, int64_t n, int64_t s)
{
    const int64_t experts = (int64_t)c->axes;
    const int64_t e = (n * 3 + n / 2 + s) % experts;
    return (int32_t)(e == 1 && experts > c->shape.dim[1] ? (n * 3 + n / 2 + c->shape.dim[1]) % experts : e);
}

static rw_moe_routes routes_of(rw_tape *t, const struct op_case *c, rw_tensor **ret_index)
{
    const int64_t tokens = c->shape.dim[0], each = c->shape.dim[1];
    int32_t *const x = malloc((size_t)(tokens * each + 1) * sizeof *x);
    for (int64_t i = 0; i < tokens * each; i++) x[i] = expert_of(c, i / each, i % each);
    rw_tensor *const index = rw_input(t, RW_I32, c->shape, x, (size_t)rw_shape_numel(c->shape) * sizeof *x);
    rw_moe_routes r;
    free(x);
    rw_moe_route(t, index, (int64_t)c->axes, &r);
    if (ret_index) *ret_index = index;
    if (c->causal) rw_moe_route(t, rw_moe_drop(t, index, RW_NONE, &r, 2), (int64_t)c->axes, &r);
    return r;
}

static rw_tensor *build_linear(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_moe_routes r = routes_of(t, c, NULL);
    return c->keep ? rw_moe_linear_of_tokens(t, x[0], x[1], &r) : rw_moe_linear(t, x[0], x[1], &r);
}

static rw_tensor *build_weigh(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_moe_routes r = routes_of(t, c, NULL);
    return rw_moe_weigh(t, x[0], rw_cast(t, x[1], sum_type(x[0])), &r);
}

static rw_tensor *build_silu_weigh(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_moe_routes r = routes_of(t, c, NULL);
    return rw_moe_silu_weigh(t, x[0], rw_cast(t, x[1], sum_type(x[0])), &r);
}

static rw_tensor *build_swiglu_weigh(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_moe_routes r = routes_of(t, c, NULL);
    return rw_moe_swiglu_weigh(t, x[0], x[1], rw_cast(t, x[2], sum_type(x[0])), &r);
}

/* The magnitudes of silu or swiglu, times the weights. A weight's gradient is a row's sum of terms that may cancel. */
static void act_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const rw_moe_routes r = routes_of(t, c, NULL);
    const int64_t rows = c->in[0].shape.dim[0];
    rw_tensor *const weights = rw_abs(t, rw_reshape(t, x[c->n - 1], RW_SHAPE(rows)));
    rw_tensor *const of_row = rw_reshape(t, rw_index_select(t, weights, 0, r.order), RW_SHAPE(rows, 1));
    rw_tensor *const up = c->n > 2 ? rw_abs(t, x[1]) : rw_full(t, RW_F64, RW_SCALAR, 1);
    rw_tensor *const act = rw_mul(t, rw_abs(t, rw_silu(t, x[0])), up), *const dh = rw_mul(t, rw_abs(t, w), of_row);
    rw_tensor *const steep = rw_mul(t, rw_sigmoid(t, x[0]), rw_add_scalar(t, rw_abs(t, x[0]), 1));
    rw_tensor *const dots = rw_sum(t, rw_mul(t, rw_abs(t, w), act), RW_AXES(-1), false);
    m[0] = y;
    m[1] = rw_mul(t, rw_mul(t, dh, up), steep);
    if (c->n > 2) m[2] = rw_mul(t, dh, rw_abs(t, rw_silu(t, x[0])));
    m[c->n] = rw_reshape(t, rw_index_select(t, dots, 0, rw_reshape(t, r.inverse, RW_SHAPE(rows))), c->shape);
}

static rw_tensor *build_combine(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_moe_routes r = routes_of(t, c, NULL);
    return rw_moe_combine(t, x[0], &r);
}

static rw_tensor *build_select(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *index;
    routes_of(t, c, &index);
    return rw_moe_select(t, x[0], index);
}

/* A bias determines which experts are chosen, so that no step of a difference changes the choice. */
static rw_tensor *build_router(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_dtype wide = sum_type(x[0]);
    double bias[64];
    float narrow[64];
    for (int e = 0; e < (int)c->axes; e++) narrow[e] = (float)(bias[e] = 100.0 * (e * 5 % (int)c->axes));
    rw_tensor *index;
    const rw_moe_router_params p = {
        .choice = { .k = c->shape.dim[1] },
        .score = (rw_moe_score)c->axis,
        .bias = rw_input(t, wide, RW_SHAPE(c->axes), wide == RW_F64 ? (void *)bias : (void *)narrow,
                         (size_t)c->axes * rw_dtype_size(wide)),
        .normalize = c->keep,
        .scale = c->keep ? 2.5 : 0,
    };
    return rw_moe_router(t, rw_cast(t, x[0], wide), &p, &index, NULL);
}

/* Weights are in 0..scale and their slope in the logits is below 1; an exponential's argument is off as in
   op_magnitudes.c. */
static void router_sizes(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m)
{
    const double scale = c->keep ? 2.5 : 1;
    rw_tensor *const k = rw_add_scalar(t, rw_scale(t, rw_max(t, rw_abs(t, x[0]), RW_AXES(-1), true), 8), 1);
    m[0] = rw_mul(t, y, k);
    m[1] = rw_broadcast_to(t, rw_scale(t, rw_mul(t, rw_sum(t, rw_abs(t, w), RW_AXES(-1), true), k), 2 * scale),
                           c->in[0].shape);
}

/* The best of each row, whose gradient goes to their positions. c->keep: the best of two groups of three experts. */
rw_tensor *op_build_moe_topk(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const int64_t k = c->shape.dim[1];
    const rw_moe_choice choice = { .k = k, .groups = c->keep ? 3 : 0, .best_groups = c->keep ? 2 : 0 };
    rw_tensor *const found = rw_moe_select(t, x[0], rw_moe_topk(t, x[0], RW_NONE, &choice)), *best, *places;
    if (c->keep || rw_topk(t, x[0], k, -1, &best, &places)) return found;
    return rw_straight_through(t, best, found);
}

static struct op_case *add(op_build build, op_sizes sizes, rw_shape index, int experts, int n)
{
    struct op_case *const c = op_case_next(OP_TABLES, build, sizes, n);
    c->shape = index;
    c->axes = (uint32_t)experts;
    return c;
}

/* Products by expert. */
static void add_linears(void)
{
    const struct {
        int64_t tokens, k, experts, in, out;
        enum op_layout layout;
        bool drops;
    } all[] = { { 1, 1, 1, 1, 1, OP_DENSE },  { 5, 2, 4, 7, 9, OP_DENSE },    { 9, 3, 5, 33, 16, OP_TURNED },
                { 70, 2, 3, 20, 70, OP_DENSE }, { 4, 4, 4, 16, 130, OP_SLICED }, { 0, 2, 3, 4, 5, OP_DENSE },
                { 3, 1, 8, 5, 3, OP_CUT },    { 2, 2, 3, 0, 4, OP_DENSE },    { 300, 2, 3, 70, 100, OP_DENSE },
                { 7, 2, 3, 5, 6, OP_DENSE, true } };
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++) {
        const int64_t tokens = all[i / 2].tokens, k = all[i / 2].k, in = all[i / 2].in, out = all[i / 2].out;
        struct op_case *const c = add(build_linear, OP_TERMS, S(tokens, k), (int)all[i / 2].experts, 2);
        c->keep = i % 2;
        c->causal = all[i / 2].drops;
        c->in[0] = (struct op_operand){ .shape = S(c->keep ? tokens : tokens * k, in), .layout = all[i / 2].layout };
        c->in[1].shape = S(all[i / 2].experts, out, in);
        c->r[0].n = (int)in;
        c->r[1] = (struct roundings){ (int)(out + k), c->keep };
        c->r[2].n = (int)(tokens * k) + 1;
        c->large = tokens > 100;
        op_case_describe(c, "moe_linear%s of %lld x %lld in %lld%s", c->keep ? " of tokens" : "", (long long)tokens,
                         (long long)k, (long long)all[i / 2].experts, c->causal ? ", dropping" : "");
    }
}

/* Weights of routed rows, their sums by token, and the selection of scores. */
static void add_rows(void)
{
    const struct {
        int64_t tokens, k, experts, n;
        enum op_layout layout[2]; /* of rows and scores, of weights */
    } all[] = { { 1, 1, 1, 1, { 0 } },
                { 5, 2, 4, 33, { 0 } },
                { 7, 3, 5, 257, { 0 } },
                { 0, 2, 3, 4, { 0 } },
                { 300, 4, 9, 5, { 0 } },
                { 5, 2, 4, 0, { 0 } },
                { 6, 2, 4, 17, { OP_TURNED, OP_SLICED } },
                { 4, 3, 5, 8, { OP_SLICED, OP_TURNED } },
                { 3, 2, 6, 9, { OP_CUT, OP_EXPANDED } },
                { 5, 1, 3, 6, { OP_EXPANDED, OP_CUT } } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const rw_shape index = S(all[i].tokens, all[i].k);
        const struct op_operand rows = { S(all[i].tokens * all[i].k, all[i].n), all[i].layout[0], OP_SIGNED };
        const int experts = (int)all[i].experts;
        struct op_case *c = add(build_weigh, OP_TERMS, index, experts, 2);
        c->in[0] = rows;
        c->in[1] = (struct op_operand){ index, all[i].layout[1], OP_SIGNED };
        c->r[0].n = c->r[1].n = 1;
        c->r[2].n = (int)all[i].n;
        op_case_describe(c, "moe_weigh in %d", experts);
        c = add(build_combine, OP_TERMS, index, experts, 1);
        c->in[0] = rows;
        c->r[0].n = (int)all[i].k;
        op_case_describe(c, "moe_combine in %d", experts);
        c = add(build_select, OP_TERMS, index, experts, 1);
        c->in[0] = (struct op_operand){ S(all[i].tokens, experts), all[i].layout[0], OP_SIGNED };
        op_case_describe(c, "moe_select of %lld", (long long)all[i].k);
    }
}

/* Activations of routed rows, times their weights. */
static void add_acts(void)
{
    const struct {
        int64_t tokens, k, experts, n;
        enum op_layout layout[2];
    } all[] = { { 1, 1, 1, 1, { OP_DENSE, OP_DENSE } },      { 5, 2, 4, 33, { OP_DENSE, OP_DENSE } },
                { 7, 3, 5, 257, { OP_SLICED, OP_SLICED } },  { 0, 2, 3, 4, { OP_DENSE, OP_DENSE } },
                { 300, 4, 9, 5, { OP_TURNED, OP_CUT } },     { 6, 2, 3, 0, { OP_DENSE, OP_DENSE } },
                { 4, 2, 3, 16, { OP_EXPANDED, OP_SLICED } }, { 70, 2, 4, 96, { OP_DENSE, OP_TURNED } } };
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++) {
        const int64_t rows = all[i / 2].tokens * all[i / 2].k, n = all[i / 2].n;
        const int acts = 1 + (int)(i % 2);
        struct op_case *const c = add(acts > 1 ? build_swiglu_weigh : build_silu_weigh, act_sizes,
                                      S(all[i / 2].tokens, all[i / 2].k), (int)all[i / 2].experts, acts + 1);
        for (int j = 0; j < acts; j++)
            c->in[j] = (struct op_operand){ S(rows, n), all[i / 2].layout[j], j ? OP_SIGNED : OP_WIDE };
        c->in[acts].shape = c->shape;
        c->r[0].n = c->r[2].n = N_SWIGLU + 2;
        c->r[1].n = N_SWIGLU_G + 2;
        c->r[1 + acts].n = N_SWIGLU + (int)n;
        op_case_describe(c, "moe_%s_weigh in %lld", acts > 1 ? "swiglu" : "silu", (long long)all[i / 2].experts);
    }
}

/* Choices of experts. */
static void add_routers(void)
{
    const struct op_operand all[] = { { S(3, 7), 0, 0 },         { S(33, 7), 0, 0 },        { S(0, 7), 0, 0 },
                                      { S(4, 7), OP_TURNED, 0 }, { S(5, 7), OP_SLICED, 0 }, { S(2, 7), OP_CUT, 0 },
                                      { S(3, 7), OP_EXPANDED, 0 } };
    for (int mode = 0; mode < 6; mode++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            struct op_case *const c = add(build_router, router_sizes, S(all[i].shape.dim[0], 3), 7, 1);
            c->axis = mode % 3;
            c->keep = mode / 3;
            c->in[0] = all[i];
            c->r[0].n = 7 + 4 * N_F + 20;
            c->r[1].n = 3 * (7 + 4 * N_F + 20);
            op_case_describe(c, "moe_router %d%s", c->axis, c->keep ? " normalized" : "");
        }
}

/* Nothing is rounded. Of equal scores each device has to choose the same. */
static void add_choices(void)
{
    const struct op_operand all[] = { { S(1, 6), 0, 0 },         { S(33, 6), 0, 0 },         { S(0, 6), 0, 0 },
                                      { S(5, 6), OP_TURNED, 0 }, { S(4, 6), OP_SLICED, 0 },  { S(3, 6), OP_CUT, 0 },
                                      { S(3, 6), OP_EXPANDED, 0 } };
    for (size_t i = 0; i < 2 * (sizeof all / sizeof *all); i++) {
        struct op_case *const c = add(op_build_moe_topk, op_values, S(all[i / 2].shape.dim[0], 3), 6, 1);
        c->in[0] = all[i / 2];
        c->in[0].range = OP_TIES;
        c->keep = i % 2;
        op_case_describe(c, "moe_topk%s", c->keep ? " of groups" : "");
    }
}

/* ---- a whole layer ---- */

static rw_tensor *layer_bias(rw_tape *t, const struct op_case *c, rw_dtype dtype)
{
    double data[LAYER_EXPERTS];
    for (int e = 0; e < LAYER_EXPERTS; e++) number_put(data, dtype, e, c->value * op_number(OP_SIGNED, e, 7));
    return rw_input(t, dtype, RW_SHAPE(LAYER_EXPERTS), data, LAYER_EXPERTS * rw_dtype_size(dtype));
}

rw_tensor *op_build_moe_layer(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_dtype wide = sum_type(x[0]);
    const int64_t f = rw_tensor_shape(x[3]).dim[2];
    rw_tensor *const logits = rw_linear(t, rw_cast(t, x[0], wide), rw_cast(t, x[1], wide), RW_NONE), *index;
    const rw_moe_router_params p = {
        .choice = { .k = LAYER_CHOSEN, .groups = c->keep ? 3 : 0, .best_groups = c->keep ? 2 : 0 },
        .score = (rw_moe_score)c->axis,
        .bias = c->value != 0 ? layer_bias(t, c, wide) : NULL,
        .normalize = c->keep,
        .scale = c->keep ? 2.5 : 0,
    };
    rw_tensor *const weights = rw_moe_router(t, logits, &p, &index, NULL);
    rw_moe_routes r;
    if (rw_moe_route(t, index, LAYER_EXPERTS, &r)) return NULL;
    if (c->causal) {
        const int64_t most = rw_moe_capacity(rw_tensor_shape(index).dim[0], LAYER_CHOSEN, LAYER_EXPERTS, 0.5);
        index = rw_moe_drop(t, index, c->ignoring ? weights : RW_NONE, &r, most);
        if (rw_moe_route(t, index, LAYER_EXPERTS, &r)) return NULL;
    }
    rw_tensor *const rows = rw_moe_linear_of_tokens(t, x[0], x[2], &r);
    rw_tensor *const gate = rw_slice(t, rows, -1, 0, f), *const up = rw_slice(t, rows, -1, f, 2 * f);
    rw_tensor *const h = c->keep ? rw_moe_weigh(t, rw_swiglu(t, gate, up), weights, &r)
                                 : rw_moe_swiglu_weigh(t, gate, up, weights, &r);
    return rw_moe_combine(t, rw_moe_linear(t, h, x[3], &r), &r);
}

/* Maximum roundings of any step, where M has the slopes along all of them: a sum of either product or of an expert's
   rows, or those of an activation, plus those of storing each. */
void op_count_moe_layer(struct op_case *c)
{
    const int h = (int)c->in[0].shape.dim[1], f = (int)c->in[3].shape.dim[2], slots = (int)c->in[0].shape.dim[0];
    int n = N_SILU_G;
    const int sums[] = { h, 2 * f, LAYER_CHOSEN * slots, LAYER_EXPERTS };
    for (int i = 0; i < 4; i++) n = sums[i] + 1 > n ? sums[i] + 1 : n;
    for (int i = 0; i < 5; i++) c->r[i] = (struct roundings){ n, 1 };
}

void op_cases_moe(void)
{
    add_linears();
    add_rows();
    add_acts();
    add_routers();
    add_choices();
}
