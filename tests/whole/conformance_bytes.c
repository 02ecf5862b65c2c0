/* Conformance: recompute changes no byte. The list of behaviors is in conformance_common.h. */
#include "whole/conformance_common.h"

#include "record/tape.h"

/* 2. Outputs, gradients of inputs and of parameters. */
static rw_tensor *asked_input(struct fixture *b, rw_shape shape, uint32_t seed)
{
    float v[256];
    for (int64_t i = 0; i < rw_shape_numel(shape); i++) {
        seed = seed * 1664525u + 1013904223u;
        v[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    return watch(rw_require_grad(b->t, rw_input(b->t, RW_F32, shape, v, (size_t)rw_shape_numel(shape) * sizeof *v)));
}

static rw_tensor *chain(struct fixture *b)
{
    rw_tensor *x = asked_input(b, RW_SHAPE(9, 8), 1);
    for (int l = 0; l < 4; l++) {
        ckpt_begin(b->t, "link");
        x = rw_dropout(b->t, rw_gelu(b->t, rw_linear(b->t, x, normal(b, "w", RW_F32, RW_SHAPE(8, 8), 0.3), RW_NONE)),
                       0.1f);
        x = watch(rw_mul(b->t, x, x));
        ckpt_end(b->t);
    }
    return total(b, x);
}

Test(conformance_bytes, outputs_and_gradients_of_a_chain)
{
    SAME_UNDER(chain, "full", "selective:link", "uniform:2", "uniform:3", "block:2", "ops:linear");
}

/* Each has its own weights, which are chosen while the step is recorded. */
static rw_tensor *module_list(struct fixture *b)
{
    rw_tensor *x = asked_input(b, RW_SHAPE(9, 8), 2);
    for (int l = 0; l < 5; l++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", l);
        rw_tensor *const w = normal(b, name, RW_F32, RW_SHAPE(8, 8), 0.3);
        ckpt_begin(b->t, l % 2 ? "odd" : "even");
        rw_tensor *const h = rw_linear(b->t, x, w, RW_NONE);
        x = rw_add(b->t, x, l == 3 ? rw_silu(b->t, h) : rw_tanh(b->t, h));
        ckpt_end(b->t);
    }
    return rw_mean(b->t, watch(x), RW_ALL_AXES, false);
}

Test(conformance_bytes, outputs_and_gradients_of_a_list_of_modules)
{
    SAME_UNDER(module_list, "full", "selective:odd", "selective:even,odd", "uniform:2", "block:3");
}

/* A region's inputs and outputs are members of the caller's own structs. */
struct state {
    rw_tensor *hidden;
    struct {
        rw_tensor *cell, *gate;
    } inner;
};

static struct state advance(struct fixture *b, struct state s, rw_tensor *w)
{
    ckpt_begin(b->t, "advance");
    struct state next;
    next.inner.gate = rw_sigmoid(b->t, rw_linear(b->t, s.hidden, w, RW_NONE));
    next.inner.cell = rw_add(b->t, rw_mul(b->t, s.inner.cell, next.inner.gate), rw_tanh(b->t, s.inner.gate));
    next.hidden = rw_mul(b->t, rw_tanh(b->t, next.inner.cell), next.inner.gate);
    ckpt_end(b->t);
    return next;
}

static rw_tensor *structs(struct fixture *b)
{
    rw_tensor *const w = normal(b, "w", RW_F32, RW_SHAPE(8, 8), 0.4);
    struct state s = { asked_input(b, RW_SHAPE(4, 8), 3),
                       { asked_input(b, RW_SHAPE(4, 8), 4), asked_input(b, RW_SHAPE(4, 8), 5) } };
    for (int i = 0; i < 4; i++) s = advance(b, s, w);
    return total(b, rw_add(b->t, watch(s.hidden), rw_mul(b->t, watch(s.inner.cell), watch(s.inner.gate))));
}

Test(conformance_bytes, outputs_and_gradients_of_regions_that_take_and_give_structs)
{
    SAME_UNDER(structs, "full", "uniform:2", "block:2", "ops:linear,sigmoid");
}

static rw_tensor *plain_input(struct fixture *b)
{
    const float v[12] = { 0.5f, -1, 2, 0.25f, 1, -0.75f, 3, 1.5f, -2, 0.125f, 1, 1 };
    rw_tensor *const x = rw_input(b->t, RW_F32, RW_SHAPE(3, 4), v, sizeof v), *const w = normal(b, "w", RW_F32,
                                                                                                RW_SHAPE(4, 4), 0.5);
    ckpt_begin(b->t, "mixed");
    rw_tensor *const h = rw_mul(b->t, rw_exp(b->t, x), rw_tanh(b->t, rw_linear(b->t, x, w, RW_NONE)));
    rw_tensor *const y = rw_mul(b->t, h, watch(rw_tanh(b->t, x)));
    ckpt_end(b->t);
    return total(b, watch(y));
}

Test(conformance_bytes, an_input_that_needs_no_gradient)
{
    SAME_UNDER(plain_input, "full", "ops:exp", "ops:linear");
}

static rw_tensor *nothing_to_train_inside(struct fixture *b)
{
    const float v[6] = { 0.5f, -1, 2, 0.25f, 1, -0.75f };
    rw_tensor *const x = rw_input(b->t, RW_F32, RW_SHAPE(6), v, sizeof v);
    ckpt_begin(b->t, "constant");
    rw_tensor *const c = watch(rw_dropout(b->t, rw_tanh(b->t, rw_mul(b->t, x, x)), 0.3f));
    ckpt_end(b->t);
    rw_tensor *const p = ramp(b, "p", 6, 1);
    ckpt_begin(b->t, "trained");
    rw_tensor *const y = rw_mul(b->t, rw_tanh(b->t, rw_mul(b->t, c, p)), p);
    ckpt_end(b->t);
    return total(b, watch(y));
}

Test(conformance_bytes, a_region_none_of_whose_inputs_needs_a_gradient)
{
    SAME_UNDER(nothing_to_train_inside, "full", "selective:constant,trained", "uniform:2");
}

/* 3 */
static rw_dtype dropout_dtype;

static rw_tensor *three_dropouts(struct fixture *b)
{
    rw_tensor *const p = normal(b, "p", dropout_dtype, RW_SHAPE(20000), 1);
    rw_tensor *h = watch(rw_dropout(b->t, p, 0.25f));
    ckpt_begin(b->t, "inside");
    h = watch(rw_dropout(b->t, rw_tanh(b->t, rw_mul(b->t, h, h)), 0.5f));
    h = rw_mul(b->t, h, h);
    ckpt_end(b->t);
    h = watch(rw_dropout(b->t, h, 0.1f));
    return total(b, h);
}

Test(conformance_bytes, dropout_before_inside_and_after_a_region)
{
    enum { ROUNDS = 5 };
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16 };
    for (int d = 0; d < 3; d++) {
        dropout_dtype = types[d];
        struct fixture none = fixture_open(11, 2), full = fixture_open(11, 2);
        ckpt_set_policy(full.t, "full");
        unsigned char *last = NULL;
        for (int round = 0; round < ROUNDS; round++) {
            struct answer a = step_of(&none, three_dropouts), b = step_of(&full, three_dropouts);
            cr_assert_gt(b.replayed, 0);
            expect_same(&a, &b, rw_dtype_name(types[d]));
            if (last) cr_assert_neq(first_difference(last, a.bytes, a.n), -1, "a mask came twice");
            free(last);
            last = a.bytes;
            answer_free(&b);
        }
        free(last);
        fixture_close(&none);
        fixture_close(&full);
    }
}

/* 6. Three uses of one parameter, or one use of each of three equal ones. */
static rw_tensor *three_uses(struct fixture *b, rw_tensor *const *p)
{
    ckpt_begin(b->t, "first");
    rw_tensor *x = rw_tanh(b->t, rw_mul(b->t, rw_exp(b->t, p[0]), p[0]));
    ckpt_end(b->t);
    ckpt_begin(b->t, "second");
    x = rw_tanh(b->t, rw_mul(b->t, x, p[1]));
    ckpt_end(b->t);
    return rw_mul(b->t, x, p[2]);
}

static rw_tensor *one_parameter(struct fixture *b)
{
    rw_tensor *const p = ramp(b, "p", 8, 1);
    return total(b, three_uses(b, (rw_tensor *[]){ p, p, p }));
}

/* float32 sums of the separate contributions, the latest use first: reverse tape order. */
static void expected_sum(const char *policy, float sum[8])
{
    struct fixture b = fixture_open(21, 1);
    ckpt_set_policy(b.t, policy);
    rw_tensor *const p[3] = { ramp(&b, "p", 8, 1), ramp(&b, "q", 8, 1), ramp(&b, "r", 8, 1) };
    float g[2][8], first[8];
    cr_assert_eq(rw_backward(b.t, total(&b, three_uses(&b, p))), RW_OK);
    for (int i = 0; i < 2; i++) rw_read(NULL, rw_gradient(p[2 - i]), g[i], sizeof g[i]);
    rw_read(NULL, rw_gradient(p[0]), first, sizeof first);
    fixture_close(&b);
    /* The first region uses p twice: its two contributions are added one by one, not as their sum. */
    b = fixture_open(21, 1);
    rw_tensor *const a = ramp(&b, "a", 8, 1), *const c = ramp(&b, "c", 8, 1), *const q = ramp(&b, "q", 8, 1),
                    *const r = ramp(&b, "r", 8, 1);
    rw_tensor *x = rw_tanh(b.t, rw_mul(b.t, rw_exp(b.t, a), c));
    x = rw_mul(b.t, rw_tanh(b.t, rw_mul(b.t, x, q)), r);
    cr_assert_eq(rw_backward(b.t, total(&b, x)), RW_OK);
    float outer[8], inner[8];
    rw_read(NULL, rw_gradient(c), outer, sizeof outer);
    rw_read(NULL, rw_gradient(a), inner, sizeof inner);
    fixture_close(&b);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(first[i], outer[i] + inner[i]);
        sum[i] = ((g[0][i] + g[1][i]) + outer[i]) + inner[i];
    }
}

Test(conformance_bytes, a_parameter_in_two_regions_and_outside_gets_each_contribution_once_in_tape_order)
{
    float sum[8];
    static const char *const policies[] = { "none", "full", "selective:first", "uniform:2" };
    for (int i = 0; i < 4; i++) {
        expected_sum(policies[i], sum);
        struct answer a = answer_of(one_parameter, policies[i], 1);
        cr_assert_eq(first_difference(a.bytes, sum, sizeof sum), -1, "%s", policies[i]);
        answer_free(&a);
    }
    SAME_UNDER(one_parameter, "full", "selective:first", "selective:second", "uniform:2");
}

/* 9 */
Test(conformance_bytes, gradients_of_gradients_through_regions_nested_up_to_three_deep)
{
    float got[4][8];
    for (int depth = 0; depth < 4; depth++) {
        struct fixture b = fixture_open(1, 1);
        ckpt_set_policy(b.t, depth ? "full" : "none");
        rw_tensor *const p = ramp(&b, "p", 8, 1);
        for (int i = 0; i < depth; i++) ckpt_begin(b.t, "r");
        rw_tensor *const h = rw_exp(b.t, rw_tanh(b.t, rw_mul(b.t, p, p)));
        if (depth > 2) ckpt_end(b.t);
        rw_tensor *const y = rw_mul(b.t, h, rw_sigmoid(b.t, h));
        for (int i = 0; i < (depth > 2 ? 2 : depth); i++) ckpt_end(b.t);
        rw_tensor *g = NULL;
        rw_tensor *in = p;
        cr_assert_eq(rw_grad(b.t, total(&b, y), &in, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, total(&b, rw_mul(b.t, g, g))), RW_OK, "%s", rw_error_message(b.ctx));
        rw_read(NULL, rw_gradient(p), got[depth], sizeof got[depth]);
        fixture_close(&b);
        cr_assert_eq(memcmp(got[0], got[depth], sizeof got[0]), 0, "depth %d", depth);
    }
    cr_assert_neq(got[0][3], 0);
}

/* 9 */
static rw_tensor *two_children(struct fixture *b)
{
    rw_tensor *const w = normal(b, "w", RW_F32, RW_SHAPE(32, 32), 0.2);
    rw_tensor *x = rw_linear(b->t, rw_randn(b->t, RW_F32, RW_SHAPE(16, 32)), w, RW_NONE);
    ckpt_begin(b->t, "parent");
    for (int c = 0; c < 2; c++) {
        ckpt_begin(b->t, "child");
        rw_tensor *h = x;
        for (int i = 0; i < 4; i++) h = rw_dropout(b->t, rw_gelu(b->t, rw_linear(b->t, h, w, RW_NONE)), 0.2f);
        x = rw_add(b->t, x, h);
        ckpt_end(b->t);
    }
    ckpt_end(b->t);
    return rw_mean(b->t, x, RW_ALL_AXES, false);
}

Test(conformance_bytes, two_children_in_one_parent)
{
    SAME_UNDER(two_children, "full", "selective:child", "selective:parent", "uniform:1", "ops:gelu");
}

/* 14 */
static rw_tensor *views(struct fixture *b)
{
    rw_tensor *const w = normal(b, "w", RW_F32, RW_SHAPE(6, 8), 1);
    rw_tensor *const outside = rw_transpose(b->t, rw_tanh(b->t, w), 0, 1);
    ckpt_begin(b->t, "r");
    rw_tensor *const base = rw_exp(b->t, rw_reshape(b->t, outside, RW_SHAPE(4, 12)));
    rw_tensor *const view = watch(rw_slice(b->t, base, 1, 3, 9)); /* leaves the region, so it is kept */
    rw_tensor *const within = rw_slice(b->t, rw_sigmoid(b->t, base), 1, 2, 8); /* of a value that is discarded */
    rw_tensor *const inner = rw_mul(b->t, rw_mul(b->t, view, within),
                                    rw_transpose(b->t, rw_transpose(b->t, within, 0, 1), 0, 1));
    ckpt_end(b->t);
    return total(b, rw_mul(b->t, rw_permute(b->t, view, (const int[]){ 1, 0 }), rw_transpose(b->t, inner, 0, 1)));
}

static rw_tensor *aliases(struct fixture *b)
{
    rw_tensor *const w = normal(b, "w", RW_F32, RW_SHAPE(4, 6), 1);
    rw_tensor *const h = rw_tanh(b->t, w);
    rw_tensor *const left = rw_slice(b->t, h, 1, 0, 4), *const right = rw_slice(b->t, h, 1, 2, 6); /* they overlap */
    ckpt_begin(b->t, "r");
    rw_tensor *const y = rw_exp(b->t, rw_sigmoid(b->t, rw_mul(b->t, left, right)));
    rw_tensor *const same = rw_reshape(b->t, y, RW_SHAPE(2, 8)), *const again = rw_reshape(b->t, y, RW_SHAPE(8, 2));
    ckpt_end(b->t);
    return total(b, rw_matmul(b->t, same, again));
}

Test(conformance_bytes, views_and_aliases_cross_a_regions_edge_both_ways)
{
    SAME_UNDER(views, "full", "uniform:1", "ops:tanh");
    SAME_UNDER(aliases, "full", "uniform:1", "ops:mul");
}

/*
 * 16. A byte budget chooses which values to keep. Whatever it chooses, the masks stay the same: every subset of the
 *     values between six ops, three of them dropouts, is kept in turn and the rest replayed.
 */
static unsigned kept_set;

static rw_tensor *decided(struct fixture *b, rw_tensor *x, int bit)
{
    return kept_set >> bit & 1 ? ckpt_keep(b->t, x) : ckpt_recompute(b->t, x);
}

static rw_tensor *choices(struct fixture *b)
{
    rw_tensor *x = normal(b, "p", RW_F32, RW_SHAPE(501), 1);
    for (int i = 0; i < 3; i++) {
        x = decided(b, rw_dropout(b->t, x, 0.2f + 0.1f * (float)i), 2 * i);
        x = decided(b, rw_tanh(b->t, rw_mul(b->t, x, x)), 2 * i + 1);
    }
    return total(b, rw_mul(b->t, x, x));
}

Test(conformance_bytes, dropout_under_every_choice_of_kept_values_equals_dropout_with_all_kept)
{
    kept_set = 63;
    struct answer all = answer_of(choices, "none", 2);
    size_t least = all.memory.kept, replayed = 0;
    for (kept_set = 0; kept_set < 63; kept_set++) {
        struct answer a = answer_of(choices, kept_set % 2 ? "none" : "full", 2);
        char what[32];
        snprintf(what, sizeof what, "set %u", kept_set);
        expect_same(&all, &a, what);
        if (a.memory.kept < least) least = a.memory.kept;
        replayed += a.replayed;
        answer_free(&a);
    }
    cr_assert_lt(least, all.memory.kept);
    cr_assert_gt(replayed, 63);
    answer_free(&all);
}

/* 20. Exact ties: the first one is chosen, in forward, in replay and in backward. */
static rw_tensor *ties(struct fixture *b)
{
    rw_tensor *p = rw_param_find(b->ctx, "p");
    const float x[8] = { 1, 3, 3, 2, 5, 5, 5, 5 };
    if (!p) p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(2, 4));
    rw_write(p, x, sizeof x);
    ckpt_begin(b->t, "route");
    rw_tensor *const y = rw_max(b->t, rw_scale(b->t, p, 2), RW_AXES(1), false);
    ckpt_end(b->t);
    return total(b, watch(y));
}

Test(conformance_bytes, ties_fall_the_same_way_in_forward_and_replay)
{
    const float expected[8] = { 0, 2, 0, 0, 2, 0, 0, 0 };
    for (int policy = 0; policy < 2; policy++) {
        struct answer a = answer_of(ties, policy ? "full" : "none", 1);
        cr_assert_eq(first_difference(a.bytes, expected, sizeof expected), -1);
        answer_free(&a);
    }
}

/* 20. The two best of each row, as indexes. */
#define EXPERTS 6
static int32_t chosen[2][2 * 8]; /* by execution: forward, replay */
static int top2_runs;

static rw_status top2_check(rw_op_call *call)
{
    return rw_op_output(call, 0, RW_I32, RW_SHAPE(call->in[0].layout->dim[0], 2));
}

/* The indexes of the two largest of each row, the first of equal ones. */
static rw_status top2_kernel(const rw_kernel *k)
{
    int32_t *const out = k->out[0].data;
    for (int64_t r = 0; r < k->in[0].layout->dim[0]; r++) {
        const float *const x = (const float *)k->in[0].data + r * EXPERTS;
        int32_t best = 0, second = -1;
        for (int32_t e = 1; e < EXPERTS; e++)
            if (x[e] > x[best]) best = e;
        for (int32_t e = 0; e < EXPERTS; e++)
            if (e != best && (second < 0 || x[e] > x[second])) second = e;
        out[2 * r] = best;
        out[2 * r + 1] = second;
    }
    if (top2_runs < 2) memcpy(chosen[top2_runs], out, sizeof chosen[0]);
    top2_runs++;
    return RW_OK;
}

HOST_KERNEL_OF(top2_kernel)
static const rw_op_def top2 = { .name = "top2", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_NO_GRADIENT,
                                .check = top2_check,
                                .kernel = HOST_KERNEL(top2_kernel) };

static rw_tensor *mixture(struct fixture *b)
{
    rw_tensor *const x = normal(b, "x", RW_F32, RW_SHAPE(8, 5), 1), *const experts = normal(b, "experts", RW_F32,
                                                                                            RW_SHAPE(EXPERTS, 5), 1);
    rw_tensor *router = rw_param_find(b->ctx, "router"); /* zero: all experts tie, for every token */
    if (!router) router = rw_param(b->ctx, "router", RW_F32, RW_SHAPE(EXPERTS, 5));
    ckpt_begin(b->t, "moe");
    rw_tensor *const scores = rw_softmax(b->t, rw_linear(b->t, rw_tanh(b->t, x), router, RW_NONE), -1);
    rw_tensor *const index = rw_apply(b->t, &top2, &scores, 1, NULL, 0, NULL);
    rw_tensor *const taken = rw_mul(b->t, rw_embedding(b->t, experts, index), rw_reshape(b->t, x, RW_SHAPE(8, 1, 5)));
    rw_tensor *const gain = rw_mul(b->t, taken,
                                   rw_reshape(b->t, rw_max(b->t, scores, RW_AXES(-1), false), RW_SHAPE(8, 1, 1)));
    ckpt_end(b->t);
    return total(b, rw_mul(b->t, gain, gain));
}

Test(conformance_bytes, top_2_routing_with_exact_ties_takes_the_same_experts_in_replay)
{
    struct answer none = answer_of(mixture, "none", 2);
    top2_runs = 0;
    struct answer full = answer_of(mixture, "full", 2);
    cr_assert_eq(top2_runs, 2);
    cr_assert_eq(memcmp(chosen[0], chosen[1], sizeof chosen[0]), 0, "other experts in replay");
    cr_assert(chosen[0][0] == 0 && chosen[0][1] == 1, "the first two of six equals");
    expect_same(&none, &full, "full");
    answer_free(&none);
    answer_free(&full);
}

/* 23 */
Test(conformance_bytes, two_dropouts_in_a_row_use_no_random_word_twice)
{
    static const int edges[] = { 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537 };
    for (int i = 1; i < 130 + 12; i++) {
        const int n = i < 130 ? i : edges[i - 130];
        struct fixture b = fixture_open(4, 1);
        rw_tensor *const one = rw_param(b.ctx, "one", RW_F32, RW_SHAPE(n));
        rw_init_constant(one, 1);
        const uint64_t before = rw_generator_get(b.ctx).offset;
        rw_dropout(b.t, one, 0.5f);
        const uint64_t between = rw_generator_get(b.ctx).offset;
        rw_dropout(b.t, one, 0.5f);
        cr_assert_eq(between - before, (uint64_t)(n + 3) / 4);
        cr_assert_eq(rw_generator_get(b.ctx).offset - between, (uint64_t)(n + 3) / 4);
        bool disjoint = false;
        cr_assert_eq(rw_tape_audit_tickets(b.t, &disjoint), RW_OK);
        cr_assert(disjoint, "%d elements", n);
        fixture_close(&b);
    }
}
