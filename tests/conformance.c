/* What the peers' test suites and bug reports ask of a checkpointing runtime, as bytes and counts. */
#include "support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static float *read_f32(rw_tape *t, rw_tensor *x, size_t *ret_n)
{
    const size_t bytes = rw_tensor_bytes(x);
    float *const out = malloc(bytes ? bytes : 1);
    cr_assert_eq(rw_read(t, x, out, bytes), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    if (ret_n) *ret_n = bytes / sizeof *out;
    return out;
}

static rw_tensor *vector(struct bench *b, const char *name, int n, float scale)
{
    rw_tensor *const p = rw_param(b->ctx, name, RW_F32, RW_SHAPE(n));
    float v[64];
    for (int i = 0; i < n; i++) v[i] = scale * (float)(i + 1) / (float)n;
    rw_write(p, v, (size_t)n * sizeof *v);
    return p;
}

Test(conformance, each_replayed_node_runs_exactly_twice_and_any_other_once)
{
    struct bench b = bench_open(1, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *x = vector(&b, "p", 8, 0.9f);
    for (int r = 0; r < 2; r++) {
        ckpt_begin(b.t, "half");
        for (int i = 0; i < 5; i++) x = counted_square(b.t, x, r * 5 + i);
        ckpt_end(b.t);
    }
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, x, RW_ALL_AXES, false)), RW_OK);
    /* The last op of a region leads to nothing that backward needs. */
    for (int i = 0; i < 10; i++) cr_assert_eq(counted_runs[i], i % 5 == 4 ? 1 : 2, "layer %d ran %d times", i, counted_runs[i]);
    bench_close(&b);
}

Test(conformance, a_region_from_which_nothing_is_needed_is_not_replayed)
{
    struct bench b = bench_open(1, 1);
    ckpt_set_policy(b.t, "full");
    const float c[4] = { 1, 2, 3, 4 };
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(4), c);
    ckpt_begin(b.t, "constant");
    rw_tensor *const y = counted_square(b.t, counted_square(b.t, x, 0), 1);
    ckpt_end(b.t);
    rw_tensor *const p = vector(&b, "p", 4, 1);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, p), RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(counted_runs[0], 1);
    cr_assert_eq(counted_runs[1], 1);
    bench_close(&b);
}

Test(conformance, a_replayed_value_asked_for_twice_is_replayed_once)
{
    struct bench b = bench_open(1, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = vector(&b, "p", 8, 0.5f);
    ckpt_begin(b.t, "shared");
    rw_tensor *const h = counted_square(b.t, p, 0);
    rw_tensor *const y = rw_add(b.t, rw_mul(b.t, h, h), rw_mul(b.t, counted_square(b.t, h, 1), h));
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(counted_runs[0], 2);
    cr_assert_eq(counted_runs[1], 2);
    bench_close(&b);
}

Test(conformance, dropout_before_inside_and_after_a_region)
{
    enum { N = 20000, ROUNDS = 5 };
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16 };
    for (int d = 0; d < 3; d++) {
        unsigned char *reference[ROUNDS] = { 0 };
        uint64_t offset[ROUNDS];
        for (int policy = 0; policy < 2; policy++) {
            struct bench b = bench_open(11, 2);
            ckpt_set_policy(b.t, policy ? "full" : "none");
            rw_tensor *const p = rw_param(b.ctx, "p", types[d], RW_SHAPE(N));
            rw_init_normal(p, 0, 1);
            for (int round = 0; round < ROUNDS; round++) {
                rw_zero_grad(b.ctx);
                rw_tensor *h = rw_dropout(b.t, p, 0.25f);
                ckpt_begin(b.t, "inside");
                h = rw_dropout(b.t, rw_tanh(b.t, rw_mul(b.t, h, h)), 0.5f);
                h = rw_mul(b.t, h, h);
                ckpt_end(b.t);
                h = rw_dropout(b.t, h, 0.1f);
                cr_assert_eq(rw_backward(b.t, rw_sum(b.t, h, RW_ALL_AXES, false)), RW_OK);
                size_t bytes;
                unsigned char *const g = all_gradients(b.ctx, &bytes);
                if (policy == 0) {
                    reference[round] = g;
                    offset[round] = rw_generator_get(b.ctx).offset;
                } else {
                    cr_assert_eq(first_difference(reference[round], g, bytes), -1, "round %d, %s", round, rw_dtype_name(types[d]));
                    cr_assert_eq(offset[round], rw_generator_get(b.ctx).offset);
                    free(g);
                    free(reference[round]);
                }
                rw_tape_reset(b.t);
            }
            bench_close(&b);
        }
    }
}

Test(conformance, several_backward_passes_over_one_tape)
{
    struct bench b = bench_open(1, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = vector(&b, "p", 8, 0.5f);
    ckpt_begin(b.t, "r");
    rw_tensor *const y = rw_tanh(b.t, rw_mul(b.t, p, p));
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    float once[8], twice[8];
    rw_read(NULL, rw_gradient(p), once, sizeof once);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    rw_read(NULL, rw_gradient(p), twice, sizeof twice);
    for (int i = 0; i < 8; i++) cr_assert_eq(twice[i], once[i] + once[i]);
    bench_close(&b);
}

Test(conformance, peak_with_recompute_is_below_peak_without_and_equals_the_prediction)
{
    size_t peak[2], kept[2];
    for (int policy = 0; policy < 2; policy++) {
        struct bench b = bench_open(1, 2);
        ckpt_set_policy(b.t, policy ? "full" : "none");
        rw_tensor *w[24];
        for (int i = 0; i < 24; i++) {
            char name[16];
            snprintf(name, sizeof name, "w%d", i);
            w[i] = rw_param(b.ctx, name, RW_F32, RW_SHAPE(256, 256));
            rw_init_normal(w[i], 0, 0.06);
        }
        rw_tensor *x = rw_randn(b.t, RW_F32, RW_SHAPE(512, 256));
        for (int block = 0; block < 8; block++) {
            ckpt_begin(b.t, "block");
            for (int i = 0; i < 3; i++) x = rw_tanh(b.t, rw_linear(b.t, x, w[block * 3 + i], RW_NONE));
            ckpt_end(b.t);
        }
        cr_assert_eq(rw_backward(b.t, rw_mean(b.t, x, RW_ALL_AXES, false)), RW_OK);
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        cr_assert_eq(m.predicted_peak, m.measured_peak);
        peak[policy] = m.measured_peak;
        kept[policy] = m.kept;
        bench_close(&b);
    }
    cr_assert_lt(peak[1], peak[0]);
    cr_assert_lt(kept[1], kept[0]);
}

Test(conformance, a_parameter_in_two_regions_and_outside_gets_each_contribution_once)
{
    float got[2][8];
    for (int policy = 0; policy < 2; policy++) {
        struct bench b = bench_open(1, 1);
        ckpt_set_policy(b.t, policy ? "full" : "none");
        rw_tensor *const p = vector(&b, "p", 8, 1);
        rw_tensor *x = rw_mul(b.t, p, p);
        for (int r = 0; r < 2; r++) {
            ckpt_begin(b.t, "r");
            x = rw_mul(b.t, rw_tanh(b.t, x), p);
            ckpt_end(b.t);
        }
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, x, RW_ALL_AXES, false)), RW_OK);
        rw_read(NULL, rw_gradient(p), got[policy], sizeof got[policy]);
        bench_close(&b);
    }
    cr_assert_eq(memcmp(got[0], got[1], sizeof got[0]), 0);
    for (int i = 0; i < 8; i++) { /* against the closed form */
        const double p = (i + 1) / 8.0, a = tanh(p * p), y = a * p, c = tanh(y);
        const double da = (1 - a * a) * 2 * p, dy = da * p + a, dc = (1 - c * c) * dy;
        cr_assert_float_eq(got[0][i], dc * p + c, 1e-5);
    }
}

Test(conformance, gradients_of_gradients_through_nested_regions)
{
    float got[4][8];
    for (int depth = 0; depth < 4; depth++) {
        struct bench b = bench_open(1, 1);
        ckpt_set_policy(b.t, depth ? "full" : "none");
        rw_tensor *const p = vector(&b, "p", 8, 1);
        for (int i = 0; i < depth; i++) ckpt_begin(b.t, "r");
        rw_tensor *const h = rw_exp(b.t, rw_tanh(b.t, rw_mul(b.t, p, p)));
        if (depth > 2) ckpt_end(b.t);
        rw_tensor *const y = rw_mul(b.t, h, rw_sigmoid(b.t, h));
        for (int i = 0; i < (depth > 2 ? 2 : depth); i++) ckpt_end(b.t);
        rw_tensor *g = NULL;
        rw_tensor *in = p;
        cr_assert_eq(rw_grad(b.t, rw_sum(b.t, y, RW_ALL_AXES, false), &in, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, g, g), RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        rw_read(NULL, rw_gradient(p), got[depth], sizeof got[depth]);
        bench_close(&b);
        cr_assert_eq(memcmp(got[0], got[depth], sizeof got[0]), 0, "depth %d", depth);
    }
    cr_assert_neq(got[0][3], 0);
}

Test(conformance, two_children_in_one_parent)
{
    unsigned char *reference = NULL;
    for (int policy = 0; policy < 3; policy++) {
        struct bench b = bench_open(5, 2);
        ckpt_set_policy(b.t, ((const char *[]){ "none", "full", "selective:child" })[policy]);
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(32, 32));
        rw_init_normal(w, 0, 0.2);
        rw_tensor *x = rw_linear(b.t, rw_randn(b.t, RW_F32, RW_SHAPE(16, 32)), w, RW_NONE);
        ckpt_begin(b.t, "parent");
        for (int c = 0; c < 2; c++) {
            ckpt_begin(b.t, "child");
            rw_tensor *h = x;
            for (int i = 0; i < 4; i++) h = rw_dropout(b.t, rw_gelu(b.t, rw_linear(b.t, h, w, RW_NONE)), 0.2f);
            x = rw_add(b.t, x, h);
            ckpt_end(b.t);
        }
        ckpt_end(b.t);
        rw_tensor *const loss = rw_mean(b.t, x, RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK);
        size_t bytes;
        unsigned char *const g = all_gradients(b.ctx, &bytes);
        if (!reference) reference = g;
        else {
            cr_assert_eq(first_difference(reference, g, bytes), -1);
            free(g);
        }
        bench_close(&b);
    }
    free(reference);
}

Test(conformance, selective_saving_on_512_matmuls_keeps_and_replays_what_is_expected)
{
    static const struct {
        const char *policy;
        size_t replayed_matmuls;
    } cases[] = { { "none", 0 }, { "full", 1 }, { "ops:matmul", 0 } };
    const double flops = 2.0 * 512 * 512 * 512;
    size_t kept[3];
    for (int i = 0; i < 3; i++) {
        struct bench b = bench_open(1, 2);
        ckpt_set_policy(b.t, cases[i].policy);
        rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(512, 512)), *const y = rw_param(b.ctx, "y", RW_F32, RW_SHAPE(512, 512));
        rw_init_normal(x, 0, 0.05);
        rw_init_normal(y, 0, 0.05);
        ckpt_begin(b.t, "r");
        rw_tensor *const out = rw_sigmoid(b.t, rw_exp(b.t, rw_matmul(b.t, x, y)));
        ckpt_end(b.t);
        rw_tensor *const loss = rw_sum(b.t, out, RW_ALL_AXES, false);
        rw_cost cost;
        cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_OK);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        cr_assert_eq((size_t)(cost.replayed_flops / flops), cases[i].replayed_matmuls, "%s", cases[i].policy);
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        kept[i] = m.kept;
        bench_close(&b);
    }
    cr_assert_eq(kept[0], 2 * 512 * 512 * 4 + 0, "exp's and sigmoid's outputs: %zu", kept[0]);
    cr_assert_eq(kept[1], 0, "inputs are parameters: %zu", kept[1]);
    cr_assert_eq(kept[2], 512 * 512 * 4, "the product: %zu", kept[2]);
}

Test(conformance, views_and_aliases_cross_a_regions_edge_both_ways)
{
    unsigned char *reference = NULL;
    for (int policy = 0; policy < 2; policy++) {
        struct bench b = bench_open(9, 1);
        ckpt_set_policy(b.t, policy ? "full" : "none");
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(6, 8));
        rw_init_normal(w, 0, 1);
        rw_tensor *const outside = rw_transpose(b.t, rw_tanh(b.t, w), 0, 1);
        ckpt_begin(b.t, "r");
        rw_tensor *const base = rw_exp(b.t, rw_reshape(b.t, outside, RW_SHAPE(4, 12)));
        rw_tensor *const view = rw_slice(b.t, base, 1, 3, 9);
        rw_tensor *const inner = rw_mul(b.t, view, view);
        ckpt_end(b.t);
        rw_tensor *const later = rw_mul(b.t, rw_permute(b.t, view, (const int[]){ 1, 0 }), rw_transpose(b.t, inner, 0, 1));
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, later, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        size_t bytes;
        unsigned char *const g = all_gradients(b.ctx, &bytes);
        if (policy) {
            cr_assert_eq(first_difference(reference, g, bytes), -1);
            free(g);
            free(reference);
        } else {
            reference = g;
        }
        bench_close(&b);
    }
}

Test(conformance, an_op_with_several_outputs_or_an_integer_input_inside_a_region)
{
    struct bench b = bench_open(4, 2);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(10, 12));
    rw_init_normal(table, 0, 1);
    const int32_t index[5] = { 1, 9, 1, 0, 3 };
    ckpt_begin(b.t, "r");
    rw_tensor *part[3];
    const int64_t sizes[3] = { 2, 6, 4 };
    rw_tensor *const x = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(5), index));
    cr_assert_eq(rw_split(b.t, rw_tanh(b.t, x), -1, sizes, 3, part), RW_OK);
    rw_tensor *const y = rw_concat(b.t, (rw_tensor *[]){ rw_exp(b.t, part[2]), part[0] }, 2, -1);
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    bench_close(&b);
}

Test(conformance, a_value_made_inside_a_region_and_used_after_it)
{
    struct bench b = bench_open(4, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = vector(&b, "p", 8, 1);
    ckpt_begin(b.t, "r");
    rw_tensor *const inside = counted_square(b.t, p, 0);
    rw_tensor *const y = counted_square(b.t, inside, 1);
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, inside, y), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    cr_assert_eq(counted_runs[0], 1, "backward needs it outside the region: kept");
    bench_close(&b);
}

Test(conformance, reading_a_discarded_value_replays_it)
{
    struct bench b = bench_open(4, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = vector(&b, "p", 8, 1);
    ckpt_begin(b.t, "r");
    rw_tensor *const h = rw_exp(b.t, rw_tanh(b.t, p));
    rw_tensor *const y = rw_mul(b.t, h, h);
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK);
    size_t n;
    float *const got = read_f32(b.t, h, &n);
    for (size_t i = 0; i < n; i++) cr_assert_float_eq(got[i], exp(tanh((double)(i + 1) / 8)), 1e-5);
    free(got);
    bench_close(&b);
}

Test(conformance, state_changes_exactly_once_per_step_under_every_policy)
{
    static const char *const policies[] = { "none", "full", "uniform:2", "ops:tanh" };
    for (int i = 0; i < 4; i++) {
        struct bench b = bench_open(4, 1);
        ckpt_set_policy(b.t, policies[i]);
        rw_tensor *const p = vector(&b, "p", 8, 1);
        rw_tensor *const mean = rw_buffer(b.ctx, "mean", RW_F32, RW_SHAPE(8));
        for (int step = 0; step < 3; step++) {
            ckpt_begin(b.t, "r");
            rw_tensor *const h = rw_tanh(b.t, rw_add(b.t, p, mean));
            rw_assign(b.t, mean, rw_add_scalar(b.t, mean, 1));
            rw_tensor *const y = rw_mul(b.t, h, h);
            ckpt_end(b.t);
            rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
            const double read = rw_item(b.t, loss); /* the step goes on from here: not a second update */
            cr_assert(isfinite(read));
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
            rw_tape_reset(b.t);
        }
        float state[8];
        rw_read(NULL, mean, state, sizeof state);
        for (int j = 0; j < 8; j++) cr_assert_eq(state[j], 3, "%s: %g", policies[i], (double)state[j]);
        bench_close(&b);
    }
}

Test(conformance, a_parameter_changed_between_record_and_replay_is_an_error_that_names_it)
{
    struct bench b = bench_open(4, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = vector(&b, "the_weight", 8, 1);
    ckpt_begin(b.t, "r");
    rw_tensor *const y = rw_mul(b.t, rw_tanh(b.t, p), p);
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
    rw_item(b.t, loss);
    const float other[8] = { 0 };
    rw_write(p, other, sizeof other);
    cr_assert_eq(rw_backward(b.t, loss), RW_ERR_CHANGED);
    cr_assert(strstr(rw_error_message(b.ctx), "the_weight"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, p, p), RW_ALL_AXES, false)), RW_OK);
    bench_close(&b);
}

Test(conformance, an_input_changed_between_forward_and_replay_is_an_error)
{
    struct bench b = bench_open(4, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = vector(&b, "p", 8, 1);
    float x[8] = { 1, 2, 3 };
    rw_tensor *const in = ckpt_name(b.t, rw_input(b.t, RW_F32, RW_SHAPE(8), x), "the_input");
    ckpt_begin(b.t, "r");
    rw_tensor *const y = rw_tanh(b.t, rw_mul(b.t, p, in));
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
    rw_item(b.t, loss);
    cr_assert_eq(rw_input_write(in, x, sizeof x), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss), RW_ERR_CHANGED);
    cr_assert(strstr(rw_error_message(b.ctx), "the_input"), "%s", rw_error_message(b.ctx));
    bench_close(&b);
}

/* Exact ties: the maximum's gradient goes to the first, in forward and in replay. */
Test(conformance, ties_fall_the_same_way_in_forward_and_replay)
{
    for (int policy = 0; policy < 2; policy++) {
        struct bench b = bench_open(4, 1);
        ckpt_set_policy(b.t, policy ? "full" : "none");
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2, 4));
        const float x[8] = { 1, 3, 3, 2, 5, 5, 5, 5 };
        rw_write(p, x, sizeof x);
        ckpt_begin(b.t, "route");
        rw_tensor *const y = rw_max(b.t, rw_scale(b.t, p, 2), RW_AXES(1), false);
        ckpt_end(b.t);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK);
        float g[8];
        rw_read(NULL, rw_gradient(p), g, sizeof g);
        const float expected[8] = { 0, 2, 0, 0, 2, 0, 0, 0 };
        cr_assert_eq(memcmp(g, expected, sizeof g), 0);
        bench_close(&b);
    }
}

Test(conformance, two_dropouts_in_a_row_use_no_word_twice)
{
    for (int n = 1; n < 200; n += n < 70 ? 1 : 13) {
        struct bench b = bench_open(4, 1);
        rw_tensor *const one = rw_param(b.ctx, "one", RW_F32, RW_SHAPE(n));
        rw_init_constant(one, 1);
        const uint64_t before = rw_generator_get(b.ctx).offset;
        rw_dropout(b.t, one, 0.5f);
        const uint64_t between = rw_generator_get(b.ctx).offset;
        rw_dropout(b.t, one, 0.5f);
        cr_assert_eq(between - before, (uint64_t)(n + 3) / 4);
        cr_assert_eq(rw_generator_get(b.ctx).offset - between, (uint64_t)(n + 3) / 4);
        bench_close(&b);
    }
}

Test(conformance, no_growth_over_ten_thousand_steps)
{
    struct bench b = bench_open(4, 1);
    struct net n;
    net_init(&n, b.ctx, 2, 8, RW_F32, 1);
    ckpt_set_policy(b.t, "full");
    size_t plans = 0, results = 0;
    for (int step = 0; step < 10000; step++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const loss = net_loss(&n, b.t, 4, step);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        if (step == 2) plans = m.plans, results = m.results;
        if (step > 2) cr_assert(m.plans == plans && m.results == results, "step %d: plans %zu, results %zu", step, m.plans, m.results);
        rw_tape_reset(b.t);
        if (step == 10) cr_assert_eq(rw_tape_nodes(b.t), 0);
    }
    bench_close(&b);
}

Test(conformance, a_region_costs_microseconds)
{
    struct bench b = bench_open(4, 1);
    double best = 1;
    for (int round = 0; round < 20; round++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int i = 0; i < 1000; i++) {
            ckpt_begin(b.t, "r");
            ckpt_end(b.t);
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
        const double s = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        if (s / 1000 < best) best = s / 1000;
        rw_tape_reset(b.t);
    }
    cr_assert_lt(best, 10e-6, "%g us", best * 1e6);
    bench_close(&b);
}

Test(conformance, nested_regions_take_less_memory_than_flat_ones)
{
    size_t peak[2];
    for (int nested = 0; nested < 2; nested++) {
        struct bench b = bench_open(4, 1);
        ckpt_set_policy(b.t, "full");
        rw_tensor *x = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4096));
        rw_init_normal(x, 0, 0.3);
        ckpt_begin(b.t, "all");
        for (int part = 0; part < 8; part++) {
            if (nested) ckpt_begin(b.t, "part");
            for (int i = 0; i < 8; i++) x = rw_tanh(b.t, x);
            if (nested) ckpt_end(b.t);
        }
        ckpt_end(b.t);
        rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK);
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        peak[nested] = m.measured_peak;
        bench_close(&b);
    }
    cr_assert_lt(peak[1] * 2, peak[0], "nested %zu, flat %zu", peak[1], peak[0]);
}
