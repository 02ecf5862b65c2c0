/* Conformance: which nodes are replayed, how often, and which values that keeps. The list of behaviors is in
   conformance_common.h. */
#include "whole/conformance_common.h"

/* 1 */
Test(conformance_replay, each_replayed_node_runs_exactly_twice_and_any_other_once)
{
    struct fixture b = fixture_open(1, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *x = ramp(&b, "p", 8, 0.9f);
    for (int r = 0; r < 2; r++) {
        ckpt_begin(b.t, "half");
        for (int i = 0; i < 5; i++) x = counted_square(b.t, x, r * 5 + i);
        ckpt_end(b.t);
    }
    cr_assert_eq(rw_backward(b.t, total(&b, x)), RW_OK);
    /* Backward does not need the last op of a region. */
    for (int i = 0; i < 10; i++)
        cr_assert_eq(counted_runs[i], i % 5 == 4 ? 1 : 2, "layer %d ran %d times", i, counted_runs[i]);
    fixture_close(&b);
}

/* 7 */
Test(conformance_replay, a_replayed_value_requested_twice_is_replayed_once)
{
    struct fixture b = fixture_open(1, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = ramp(&b, "p", 8, 0.5f);
    ckpt_begin(b.t, "shared");
    rw_tensor *const h = counted_square(b.t, p, 0);
    rw_tensor *const y = rw_add(b.t, rw_mul(b.t, h, h), rw_mul(b.t, counted_square(b.t, h, 1), h));
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, total(&b, y)), RW_OK);
    cr_assert_eq(counted_runs[0], 2);
    cr_assert_eq(counted_runs[1], 2);
    fixture_close(&b);
}

/* 10 */
Test(conformance_replay, a_trailing_op_with_an_unused_output_is_not_replayed)
{
    struct fixture b = fixture_open(1, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = ramp(&b, "p", 8, 0.5f);
    ckpt_begin(b.t, "r");
    rw_tensor *const h = counted_square(b.t, counted_square(b.t, p, 0), 1);
    rw_tensor *const y = rw_scale(b.t, counted_square(b.t, h, 2), 3); /* its gradient needs neither input nor output */
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, total(&b, y)), RW_OK);
    cr_assert_eq(counted_runs[0], 2);
    cr_assert_eq(counted_runs[1], 2);
    cr_assert_eq(counted_runs[2], 1, "only the scaling, which needs nothing, comes after it");
    fixture_close(&b);
}

/* 10 */
Test(conformance_replay, a_region_from_which_nothing_is_needed_is_not_replayed)
{
    struct fixture b = fixture_open(1, 1);
    ckpt_set_policy(b.t, "full");
    const float c[4] = { 1, 2, 3, 4 };
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(4), c, sizeof c);
    ckpt_begin(b.t, "constant");
    rw_tensor *const y = counted_square(b.t, counted_square(b.t, x, 0), 1);
    ckpt_end(b.t);
    rw_tensor *const p = ramp(&b, "p", 4, 1);
    cr_assert_eq(rw_backward(b.t, total(&b, rw_mul(b.t, y, p))), RW_OK);
    cr_assert_eq(counted_runs[0], 1);
    cr_assert_eq(counted_runs[1], 1);
    fixture_close(&b);
}

/* 11 */
Test(conformance_replay, selective_saving_on_512_matmuls_keeps_and_replays_what_is_expected)
{
    static const struct {
        const char *policy;
        size_t replayed_matmuls;
    } cases[] = { { "none", 0 }, { "full", 1 }, { "ops:matmul", 0 } };
    const double flops = 2.0 * 512 * 512 * 512;
    size_t kept[3];
    for (int i = 0; i < 3; i++) {
        struct fixture b = fixture_open(1, 2);
        ckpt_set_policy(b.t, cases[i].policy);
        rw_tensor *const x = normal(&b, "x", RW_F32, RW_SHAPE(512, 512), 0.05);
        rw_tensor *const y = normal(&b, "y", RW_F32, RW_SHAPE(512, 512), 0.05);
        ckpt_begin(b.t, "r");
        rw_tensor *const out = rw_sigmoid(b.t, rw_exp(b.t, rw_matmul(b.t, x, y)));
        ckpt_end(b.t);
        rw_tensor *const loss = total(&b, out);
        rw_cost cost;
        cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_OK);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        cr_assert_eq((size_t)(cost.replayed_flops / flops), cases[i].replayed_matmuls, "%s", cases[i].policy);
        rw_memory m;
        rw_memory_stats(b.ctx, &m);
        kept[i] = m.kept;
        fixture_close(&b);
    }
    cr_assert_eq(kept[0], 2 * 512 * 512 * 4 + 0, "exp's and sigmoid's outputs: %zu", kept[0]);
    cr_assert_eq(kept[1], 0, "inputs are parameters: %zu", kept[1]);
    cr_assert_eq(kept[2], 512 * 512 * 4, "the product: %zu", kept[2]);
}

/* 12. argmax along the last axis, the first of equal elements: an integer output; and the maximum itself. */
static int argmax_runs;

static rw_status argmax_check(rw_op_call *call)
{
    const rw_status status = rw_op_output(call, 0, RW_I32, RW_SHAPE(call->in[0].layout->dim[0]));
    return status ? status : rw_op_output(call, 1, RW_F32, RW_SHAPE(call->in[0].layout->dim[0]));
}

static rw_status argmax_kernel(const rw_kernel *k)
{
    const int64_t rows = k->in[0].layout->dim[0], cols = k->in[0].layout->dim[1];
    argmax_runs++;
    for (int64_t r = 0; r < rows; r++) {
        const float *const x = (const float *)k->in[0].data + r * cols;
        int32_t at = 0;
        for (int64_t c = 1; c < cols; c++)
            if (x[c] > x[at]) at = (int32_t)c;
        ((int32_t *)k->out[0].data)[r] = at;
        ((float *)k->out[1].data)[r] = x[at];
    }
    return RW_OK;
}

HOST_KERNEL_OF(argmax_kernel)
static const rw_op_def argmax = { .name = "argmax_of_rows", .n_inputs = 1, .n_outputs = 2, .flags = RW_OP_NO_GRADIENT,
                                  .check = argmax_check, .kernel = HOST_KERNEL(argmax_kernel) };

/* The index selects rows of a table: backward of the lookup reads it again. */
static rw_tensor *route(struct fixture *b)
{
    rw_tensor *const scores = normal(b, "scores", RW_F32, RW_SHAPE(6, 5), 1);
    rw_tensor *const table = normal(b, "table", RW_F32, RW_SHAPE(5, 8), 1);
    rw_tensor *best[2];
    ckpt_begin(b->t, "route");
    rw_tensor *const s = rw_tanh(b->t, scores);
    rw_apply(b->t, &argmax, &s, 1, NULL, 0, best);
    rw_tensor *const y = rw_mul(b->t, rw_embedding(b->t, table, best[0]), rw_reshape(b->t, best[1], RW_SHAPE(6, 1)));
    ckpt_end(b->t);
    return total(b, rw_mul(b->t, y, y));
}

Test(conformance_replay, an_integer_output_inside_a_region_is_replayed_and_gives_the_same_bytes)
{
    struct answer none = answer_of(route, "none", 1);
    cr_assert_eq(argmax_runs, 1);
    argmax_runs = 0;
    struct answer full = answer_of(route, "full", 1);
    cr_assert_eq(argmax_runs, 2);
    expect_same(&none, &full, "full");
    answer_free(&none);
    answer_free(&full);
}

static rw_tensor *split_and_join(struct fixture *b)
{
    rw_tensor *const table = normal(b, "table", RW_F32, RW_SHAPE(10, 12), 1);
    const int32_t index[5] = { 1, 9, 1, 0, 3 };
    const int64_t sizes[3] = { 2, 6, 4 };
    rw_tensor *part[3];
    ckpt_begin(b->t, "r");
    rw_tensor *const x = rw_embedding(b->t, table, rw_input(b->t, RW_I32, RW_SHAPE(5), index, sizeof index));
    cr_assert_eq(rw_split(b->t, rw_tanh(b->t, x), -1, sizes, 3, part), RW_OK);
    rw_tensor *const y = rw_concat(b->t, (rw_tensor *[]){ rw_exp(b->t, part[2]), part[0] }, 2, -1);
    ckpt_end(b->t);
    return total(b, rw_mul(b->t, y, y));
}

/* 12 */
Test(conformance_replay, an_op_with_several_outputs_and_an_integer_input_inside_a_region)
{
    SAME_UNDER(split_and_join, "full", "ops:tanh", "ops:embedding");
}

/* 13. Seven regions of two counted ops each; a counted op's gradient reads its input. */
#define LAYERS 7

static rw_tensor *seven_layers(struct fixture *b)
{
    rw_tensor *x = ramp(b, "p", 8, 0.9f);
    for (int r = 0; r < LAYERS; r++) {
        ckpt_begin(b->t, "layer");
        for (int i = 0; i < 2; i++) x = counted_square(b->t, x, 2 * r + i);
        ckpt_end(b->t);
    }
    return total(b, x);
}

/* runs: the expected counts of the 14 ops, one digit each. */
static void expect_runs(const char *policy, const char *runs)
{
    counted_clear();
    struct answer none = answer_of(seven_layers, "none", 1);
    for (int i = 0; i < 2 * LAYERS; i++) cr_assert_eq(counted_runs[i], 1);
    counted_clear();
    struct answer a = answer_of(seven_layers, policy, 1);
    expect_same(&none, &a, policy);
    size_t replayed = 0;
    for (int i = 0; i < 2 * LAYERS; i++) {
        cr_assert_eq(counted_runs[i], runs[i] - '0', "%s: op %d of layer %d ran %d times", policy, i % 2, i / 2,
                     counted_runs[i]);
        replayed += (size_t)counted_runs[i] - 1;
    }
    cr_assert_eq(a.replayed, replayed, "%s: %zu replays planned, %zu ran", policy, a.replayed, replayed);
    answer_free(&none);
    answer_free(&a);
}

/* Backward does not need the last op of a group; values between the layers of a group are replayed. */
Test(conformance_replay, uniform_with_a_chunk_that_does_not_divide_the_layers)
{
    expect_runs("uniform:1", "21212121212121");
    expect_runs("uniform:2", "22212221222121");
    expect_runs("uniform:3", "22222122222121");
    expect_runs("uniform:5", "22222222212221");
    expect_runs("uniform:7", "22222222222221");
    expect_runs("uniform:8", "22222222222221");
    expect_runs("uniform:999999999", "22222222222221");
}

Test(conformance_replay, block_with_more_regions_than_there_are)
{
    expect_runs("block:1", "21111111111111");
    expect_runs("block:6", "21212121212111");
    expect_runs("block:7", "21212121212121");
    expect_runs("block:8", "21212121212121");
    expect_runs("block:999999999", "21212121212121");
}

/* 15 */
static rw_tensor *used_after(struct fixture *b)
{
    rw_tensor *const p = ramp(b, "p", 8, 1);
    ckpt_begin(b->t, "r");
    rw_tensor *const inside = counted_square(b->t, p, 0);
    rw_tensor *const y = counted_square(b->t, inside, 1);
    ckpt_end(b->t);
    return total(b, rw_mul(b->t, inside, y));
}

Test(conformance_replay, a_value_computed_inside_a_region_and_used_after_it_is_kept)
{
    struct answer none = answer_of(used_after, "none", 1);
    counted_clear();
    struct answer full = answer_of(used_after, "full", 1);
    cr_assert_eq(counted_runs[0], 1, "backward needs it outside the region: kept");
    cr_assert_eq(counted_runs[1], 1);
    expect_same(&none, &full, "full");
    answer_free(&none);
    answer_free(&full);
}

/* 15. Read by the caller only: discarded, and recomputed for the read. */
static rw_tensor *read_later(struct fixture *b)
{
    rw_tensor *const p = ramp(b, "p", 8, 1);
    ckpt_begin(b->t, "r");
    rw_tensor *const h = watch(rw_exp(b->t, rw_tanh(b->t, p)));
    rw_tensor *const y = rw_mul(b->t, h, h);
    ckpt_end(b->t);
    return total(b, y);
}

Test(conformance_replay, reading_a_discarded_value_replays_it)
{
    struct answer full = answer_of(read_later, "full", 1);
    cr_assert_eq(full.memory.kept, 0, "%zu bytes are kept: it wasn't discarded", full.memory.kept);
    answer_free(&full);
    SAME_UNDER(read_later, "full");
}

/* 17. y = x * noise. The noise is a second output that the gradient reads; both are computed from the ticket. */
static int noisy_runs;

static rw_status noisy_check(rw_op_call *call)
{
    const rw_status status = rw_op_output_like(call, 0, 0);
    return status ? status : rw_op_output_like(call, 1, 0);
}

static rw_status noisy_kernel(const rw_kernel *k)
{
    noisy_runs++;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) {
        const uint64_t word = (k->ticket.seed ^ (k->ticket.offset * 4 + (uint64_t)i)) * 0x9e3779b97f4a7c15u;
        const float noise = 0.5f + (float)(word >> 40) * 0x1p-24f;
        ((float *)k->out[0].data)[i] = ((const float *)k->in[0].data)[i] * noise;
        ((float *)k->out[1].data)[i] = noise;
    }
    return RW_OK;
}

static rw_status noisy_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_mul(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_grad_output(g, 1)));
}

HOST_KERNEL_OF(noisy_kernel)
static const rw_op_def noisy = { .name = "noisy", .n_inputs = 1, .n_outputs = 2, .flags = RW_OP_RANDOM,
                                 .check = noisy_check,
                                 .kernel = HOST_KERNEL(noisy_kernel), .grad = noisy_grad };

static rw_tensor *noise_at_the_end(struct fixture *b)
{
    rw_tensor *const p = normal(b, "p", RW_F32, RW_SHAPE(1000), 1);
    rw_tensor *out[2];
    ckpt_begin(b->t, "r");
    rw_tensor *const h = rw_tanh(b->t, rw_mul(b->t, p, p));
    rw_apply(b->t, &noisy, &h, 1, NULL, 0, out);
    ckpt_end(b->t);
    return total(b, out[0]); /* the sum's gradient reads nothing: early stop would end before the last op */
}

Test(conformance_replay, an_auxiliary_output_of_a_regions_last_op_is_complete_in_replay)
{
    struct answer none = answer_of(noise_at_the_end, "none", 2);
    cr_assert_eq(noisy_runs, 1);
    noisy_runs = 0;
    struct answer full = answer_of(noise_at_the_end, "full", 2);
    cr_assert_eq(noisy_runs, 2, "its noise is needed: the last op runs again");
    cr_assert_eq(full.memory.kept, 0, "the noise is not kept");
    expect_same(&none, &full, "full");
    answer_free(&none);
    answer_free(&full);
}

/* The built-in ops: attention's backward reads its row sums, the loss's its row statistics. */
static rw_tensor *attention_at_the_end(struct fixture *b)
{
    rw_tensor *const w = normal(b, "w", RW_F32, RW_SHAPE(48, 16), 0.3), *const x = normal(b, "x", RW_F32,
                                                                                          RW_SHAPE(20, 16), 1);
    const int64_t sizes[3] = { 16, 16, 16 };
    rw_tensor *part[3];
    ckpt_begin(b->t, "attention");
    cr_assert_eq(rw_split(b->t, rw_linear(b->t, x, w, RW_NONE), -1, sizes, 3, part), RW_OK);
    for (int i = 0; i < 3; i++) part[i] = rw_reshape(b->t, part[i], RW_SHAPE(1, 2, 20, 8));
    rw_tensor *const y = rw_attention(b->t, part[0], part[1], part[2],
                                      &(rw_attention_params){ .causal = true, .dropout = 0.2f });
    ckpt_end(b->t);
    return total(b, y);
}

static rw_tensor *loss_at_the_end(struct fixture *b)
{
    rw_tensor *const w = normal(b, "w", RW_F32, RW_SHAPE(11, 16), 0.3), *const x = normal(b, "x", RW_F32,
                                                                                          RW_SHAPE(6, 16), 1);
    const int32_t target[6] = { 1, 10, -100, 0, 3, 3 };
    ckpt_begin(b->t, "head");
    rw_tensor *const loss = rw_cross_entropy(b->t, rw_linear(b->t, x, w, RW_NONE),
                                             rw_input(b->t, RW_I32, RW_SHAPE(6), target, sizeof target));
    ckpt_end(b->t);
    return rw_scale(b->t, loss, 2);
}

Test(conformance_replay, the_auxiliary_outputs_of_attention_and_cross_entropy_too)
{
    SAME_UNDER(attention_at_the_end, "full");
    SAME_UNDER(loss_at_the_end, "full");
}
