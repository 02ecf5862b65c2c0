/*
 * Routing of tokens to experts, beyond the table of cases: ties, groups, routes, capacity, loads and biases that are
 * written once, and the losses that balance experts.
 */
#include "ops/moe_test_data.h"
#include "support/cases/moe.h"

#include <math.h>
#include <string.h>

/* ---- the choice ---- */

static void expect_choice(const float *scores, int64_t tokens, int64_t experts, const float *bias, rw_moe_choice choice,
                          const int32_t *want)
{
    struct fixture b = fixture_open(1, 3);
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(tokens, experts), scores,
                                  (size_t)(tokens * experts) * sizeof *scores);
    rw_tensor *const own = bias ? rw_input(b.t, RW_F32, RW_SHAPE(experts), bias, (size_t)experts * sizeof *bias)
                                : RW_NONE;
    int32_t *const got = bytes_of(b.t, rw_moe_topk(b.t, x, own, &choice));
    for (int64_t i = 0; i < tokens * choice.k; i++)
        cr_expect_eq(got[i], want[i], "token %lld, slot %lld: %d, not %d", (long long)(i / choice.k),
                     (long long)(i % choice.k), got[i], want[i]);
    free(got);
    fixture_close(&b);
}

Test(moe_routing, among_equals_the_lower_index_is_chosen)
{
    const float inf = INFINITY;
    const float equal[6] = { 2, 2, 2, 2, 2, 2 }, border[6] = { 1, 3, 2, 3, 2, 2 }, low[6] = { -inf, -inf, -inf, 1, -inf,
                                                                                            -inf };
    expect_choice(equal, 1, 6, NULL, (rw_moe_choice){ .k = 6 }, (const int32_t[]){ 0, 1, 2, 3, 4, 5 });
    expect_choice(border, 1, 6, NULL, (rw_moe_choice){ .k = 4 }, (const int32_t[]){ 1, 3, 2, 4 });
    expect_choice(low, 1, 6, NULL, (rw_moe_choice){ .k = 3 }, (const int32_t[]){ 3, 0, 1 });
    /* zeros are equal, whatever their sign; of negative numbers the one closer to zero is larger */
    const float signs[6] = { -0.0f, 0, -1, 0, -0.0f, -2 };
    expect_choice(signs, 1, 6, NULL, (rw_moe_choice){ .k = 6 }, (const int32_t[]){ 0, 1, 3, 4, 2, 5 });
    /* more experts than a warp has lanes */
    float many[70] = { 0 };
    many[33] = many[65] = many[1] = 1;
    expect_choice(many, 1, 70, NULL, (rw_moe_choice){ .k = 5 }, (const int32_t[]){ 1, 33, 65, 0, 2 });
}

Test(moe_routing, groups_are_chosen_by_the_sum_of_their_best)
{
    /* sums of the two best: 5, 6, 6; of the best: 4, 3, 5 */
    const float scores[9] = { 4, 1, 0, 3, 3, 2, 5, 1, 1 };
    expect_choice(scores, 1, 9, NULL, (rw_moe_choice){ .k = 3, .groups = 3, .best_groups = 1, .group_sum = 2 },
                  (const int32_t[]){ 3, 4, 5 });
    expect_choice(scores, 1, 9, NULL, (rw_moe_choice){ .k = 3, .groups = 3, .best_groups = 2, .group_sum = 1 },
                  (const int32_t[]){ 6, 0, 1 });
    const float bias[9] = { 0, 0, 0, 0, 0, 10, 0, 0, 0 };
    expect_choice(scores, 1, 9, bias, (rw_moe_choice){ .k = 2, .groups = 3, .best_groups = 1 },
                  (const int32_t[]){ 5, 3 });
}

Test(moe_routing, a_score_that_is_nan_is_an_error)
{
    for (int i = 0; i < 8; i++) {
        struct fixture b = fixture_open(1, 1);
        float scores[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
        scores[i] = i % 2 ? NAN : -NAN;
        rw_tensor *const x = rw_moe_topk(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2, 4), scores, sizeof scores), RW_NONE,
                                         &(rw_moe_choice){ .k = 1 });
        cr_expect_eq(rw_eval(b.t, &x, 1), RW_ERR_ARGUMENT, "%d", i);
        cr_expect(strstr(rw_error_message(b.ctx), "moe_topk"), "%s", rw_error_message(b.ctx));
        cr_expect(strstr(rw_error_message(b.ctx), "got an index or another value out of range"),
                "%s", rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

/* Repeated numbers; numbers of tokens that are not multiples of those processed together; and a bias. */
static void expect_choice_by_search(rw_dtype dtype, int64_t tokens, int64_t experts, int64_t k, bool biased)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const x = numbers(b.t, dtype, RW_SHAPE(tokens, experts), 3, 0);
    rw_tensor *const own = biased ? numbers(b.t, dtype, RW_SHAPE(experts), 4, 0) : RW_NONE;
    int32_t *const got = bytes_of(b.t, rw_moe_topk(b.t, x, own, &(rw_moe_choice){ .k = k }));
    bool *const gone = calloc((size_t)(tokens * experts), sizeof *gone);
    for (int64_t s = 0; s < tokens * k; s++) {
        const int64_t base = s / k * experts;
        int64_t want = -1;
        double most = 0;
        for (int64_t e = 0; e < experts; e++) {
            const double score = number(base + e, 3) + (biased ? number(e, 4) : 0);
            if (!gone[base + e] && (want < 0 || score > most)) want = e, most = score;
        }
        gone[base + want] = true;
        cr_assert_eq(got[s], want, "%s, %lld experts, slot %lld: %d, not %lld", rw_dtype_name(dtype),
                     (long long)experts, (long long)s, got[s], (long long)want);
    }
    free(got), free(gone);
    fixture_close(&b);
}

Test(moe_routing, the_best_are_those_of_a_search)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    static const int64_t experts[] = { 1, 2, 3, 15, 16, 17, 64, 127, 1024 };
    for (int i = 0; i < 4; i++)
        for (int e = 0; e < 9; e++)
            for (int biased = 0; biased < 2; biased++) {
                const int64_t k = experts[e] < 24 ? experts[e] : 24;
                expect_choice_by_search(types[i], experts[e] < 1024 ? 67 : 3, experts[e], k, biased);
            }
}

Test(moe_routing, what_cannot_be_chosen_is_refused)
{
    static const rw_moe_choice wrong[] = { { .k = 0 }, { .k = 7 }, { .k = -1 }, { .k = 1, .groups = 4 },
                                           { .k = 3, .groups = 3, .best_groups = 1 },
                                           { .k = 1, .groups = 3, .best_groups = 4 },
                                           { .k = 1, .groups = 3, .best_groups = 1, .group_sum = 3 },
                                           { .k = 1, .groups = -1 } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2, 6), NULL, 0);
        cr_expect_null(rw_moe_topk(b.t, x, RW_NONE, &wrong[i]), "%zu", i);
        cr_expect_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT, "%zu: %s", i, rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

/* ---- elements by the choice ---- */

/* More slots than one thread moves: each reads its number, and its gradient is written there, with zeros elsewhere,
   whatever the memory held before. */
static void expect_moved(const struct fixture *b, rw_dtype dtype, int shift)
{
    enum { TOKENS = 3000, EXPERTS = 5, K = 3 };
    static int32_t index[TOKENS * K];
    for (int i = 0; i < TOKENS * K; i++) index[i] = (i / K * 2 + i % K * (1 + i / K % 2) + shift) % EXPERTS;
    rw_tensor *x = numbers(b->t, dtype, RW_SHAPE(TOKENS, EXPERTS), 1, 0), *dx;
    rw_tensor *const w = numbers(b->t, dtype, RW_SHAPE(TOKENS, K), 2, 0);
    rw_tensor *const y = rw_moe_select(b->t, x, rw_input(b->t, RW_I32, RW_SHAPE(TOKENS, K), index, sizeof index));
    cr_assert_eq(rw_grad(b->t, rw_mul(b->t, y, w), &x, 1, &dx), RW_OK, "%s", rw_error_message(b->ctx));
    void *const got = bytes_of(b->t, y), *const back = bytes_of(b->t, dx);
    int wrong = 0;
    for (int i = 0; i < TOKENS * EXPERTS; i++) {
        double want = 0;
        for (int s = i / EXPERTS * K; s < (i / EXPERTS + 1) * K; s++) {
            if (index[s] != i % EXPERTS) continue;
            want = number(s, 2);
            wrong += number_get(got, dtype, s) != number(i, 1);
        }
        wrong += number_get(back, dtype, i) != want;
    }
    cr_expect_eq(wrong, 0, "%s, shift %d: %d numbers", rw_dtype_name(dtype), shift, wrong);
    free(got), free(back);
}

Test(moe_routing, what_is_selected_has_its_gradient_in_its_place)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    for (int k = 0; k < 4; k++) {
        struct fixture b = fixture_open(1, 2);
        for (int shift = 0; shift < 2; shift++) expect_moved(&b, types[k], shift), rw_tape_reset(b.t);
        fixture_close(&b);
    }
}

Test(moe_routing, a_choice_of_none_is_refused_on_both_ways)
{
    enum { TOKENS = 3000, EXPERTS = 4, K = 3, N = TOKENS * K };
    static const int32_t bad[][2] = { { 0, -1 }, { N / 2, EXPERTS }, { N - 1, -1 }, { N - 1, EXPERTS } };
    static int32_t index[N];
    for (int i = 0; i < 8; i++) {
        struct fixture b = fixture_open(1, 2);
        for (int s = 0; s < N; s++) index[s] = s % K;
        index[bad[i / 2][0]] = bad[i / 2][1];
        rw_tensor *x = numbers(b.t, RW_F32, RW_SHAPE(TOKENS, EXPERTS), 1, 0), *dx;
        rw_tensor *y = rw_moe_select(b.t, x, rw_input(b.t, RW_I32, RW_SHAPE(TOKENS, K), index, sizeof index));
        cr_assert_eq(rw_grad(b.t, y, &x, 1, &dx), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_eq(rw_eval(b.t, i % 2 ? &dx : &y, 1), RW_ERR_ARGUMENT, "%d", i);
        cr_expect(strstr(rw_error_message(b.ctx), i % 2 ? "moe_scatter" : "moe_select"), "%d: %s", i,
                  rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

/* ---- routes ---- */

Test(moe_routing, rows_are_ordered_by_expert_then_by_slot)
{
    struct fixture b = fixture_open(1, 2);
    const int64_t tokens = 700, each = 3, experts = 37, n = tokens * each; /* several chunks */
    int32_t *const index = malloc((size_t)n * sizeof *index), counts[37] = { 0 }, next[38] = { 0 };
    for (int64_t i = 0; i < n; i++) counts[index[i] = (int32_t)((i * 7 + i / each * 5) % (experts - 1))]++;
    rw_moe_routes r;
    cr_assert_eq(rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(tokens, each), index, tokens * each * sizeof *index),
                              experts, &r),
                 RW_OK);
    int32_t *const order = bytes_of(b.t, r.order), *const inverse = bytes_of(b.t, r.inverse),
                   *const offsets = bytes_of(b.t, r.offsets);
    float *const load = bytes_of(b.t, r.load);
    for (int64_t e = 0; e < experts; e++) {
        cr_assert_eq(offsets[e + 1] - offsets[e], counts[e]);
        cr_assert_eq(load[e], (float)counts[e]);
        next[e] = offsets[e];
    }
    cr_assert_eq(offsets[0], 0);
    cr_assert_eq(offsets[experts], n);
    for (int64_t i = 0; i < n; i++) {
        cr_assert_eq(inverse[i], next[index[i]]++, "slot %lld", (long long)i);
        cr_assert_eq(order[inverse[i]], i);
    }
    free(order), free(inverse), free(offsets), free(load), free(index);
    fixture_close(&b);
}

Test(moe_routing, an_expert_that_is_none_is_an_error)
{
    static const int32_t wrong[][2] = { { 0, 4 }, { -2, 2 } };
    for (int i = 0; i < 2; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_moe_routes r;
        rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(1, 2), wrong[i], sizeof wrong[i]);
        cr_assert_eq(rw_moe_route(b.t, index, 4, &r), RW_OK);
        cr_expect_eq(rw_eval(b.t, &r.order, 1), RW_ERR_ARGUMENT);
        cr_expect(strstr(rw_error_message(b.ctx), "moe_route"), "%s", rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

/* ---- capacity ---- */

/* Expert 0 has five slots, expert 1 three, expert 2 none; one was dropped before. The capacity is two. */
static const int32_t crowded[] = { 0, 1, 0, 3, 1, 0, RW_MOE_DROPPED, 0, 0, 1 };
static const float light[] = { 0.5f, 0.25f, 0.75f, 1, 0.5f, 0.5f, 9, 0.5f, 0.75f, 0.25f };

static void expect_dropped(bool by_weight, const int32_t *want)
{
    struct fixture b = fixture_open(1, 3);
    rw_moe_routes r;
    rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(5, 2), crowded, sizeof crowded);
    rw_tensor *const weights = by_weight ? rw_input(b.t, RW_F32, RW_SHAPE(5, 2), light, sizeof light) : RW_NONE;
    cr_assert_eq(rw_moe_route(b.t, index, 4, &r), RW_OK);
    int32_t *const got = bytes_of(b.t, rw_moe_drop(b.t, index, weights, &r, 2));
    for (int i = 0; i < 10; i++) cr_expect_eq(got[i], want[i], "slot %d: %d, not %d", i, got[i], want[i]);
    free(got);
    fixture_close(&b);
}

Test(moe_routing, beyond_capacity_the_later_or_the_lighter_are_dropped)
{
    expect_dropped(false, (const int32_t[]){ 0, 1, 0, 3, 1, -1, -1, -1, -1, -1 });
    /* of equal weights the earlier slot stays */
    expect_dropped(true, (const int32_t[]){ -1, 1, 0, 3, 1, -1, -1, -1, 0, -1 });
}

Test(moe_routing, capacity_is_rounded_up_and_no_more_than_the_tokens)
{
    cr_expect_eq(rw_moe_capacity(9, 2, 6, 0.5), 2);
    cr_expect_eq(rw_moe_capacity(4096, 8, 256, 1.25), 160);
    cr_expect_eq(rw_moe_capacity(10, 2, 4, 8), 10);
    cr_expect_eq(rw_moe_capacity(0, 2, 4, 1), 0);
    cr_expect_eq(rw_moe_capacity(10, 2, 0, 1), 0);
    cr_expect_eq(rw_moe_capacity(10, 2, 4, -1), 0);
    cr_expect_eq(rw_moe_capacity(10, 2, 4, NAN), 0);
}

/* Compared with integers: a factor of q / 20 counts as that fraction, also where a double cannot represent it. */
Test(moe_routing, capacity_is_that_of_exact_arithmetic)
{
    for (int64_t tokens = 1; tokens <= 1024; tokens++)
        for (int64_t experts = 1; experts <= 64; experts++)
            for (int64_t q = 20; q <= 40; q += 1 + 4 * (tokens % 2)) {
                const int64_t k = 1 + (tokens + q) % 3, want = (tokens * k * q + 20 * experts - 1) / (20 * experts);
                const int64_t got = rw_moe_capacity(tokens, k, experts, (double)q / 20);
                cr_assert_eq(got, want < tokens ? want : tokens, "(%lld, %lld, %lld, %g): %lld, not %lld",
                             (long long)tokens, (long long)k, (long long)experts, (double)q / 20, (long long)got,
                             (long long)want);
            }
    cr_expect_eq(rw_moe_capacity(464, 1, 7, 1.75), 116);
    cr_expect_eq(rw_moe_capacity(100, 1, 10, 1.1), 11);
    cr_expect_eq(rw_moe_capacity(10, 2, 4, 1e-300), 1);
    cr_expect_eq(rw_moe_capacity(10, 2, INT64_MAX, 4e-324), 1, "underflow");
    cr_expect_eq(rw_moe_capacity(10, 2, 4, INFINITY), 10);
    cr_expect_eq(rw_moe_capacity(INT64_MAX, INT64_MAX, 1, 1e300), INT64_MAX);
}

Test(moe_routing, what_cannot_be_dropped_is_refused)
{
    for (int wrong = 0; wrong < 5; wrong++) {
        struct fixture b = fixture_open(1, 1);
        const float weights[4] = { 1, wrong == 3 ? NAN : 2, 3, 4 };
        const int32_t entries[4] = { 0, 1, wrong == 4 ? 3 : 0, 1 };
        rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(2, 2), entries, sizeof entries);
        rw_tensor *const w = rw_input(b.t, RW_F32, RW_SHAPE(wrong == 2 ? 1 : 2, 2), weights,
                                      (size_t)((wrong == 2 ? 1 : 2) * 2) * sizeof *weights);
        rw_moe_routes r;
        cr_assert_eq(rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(wrong == 1 ? 3 : 2, 2), NULL, 0), 3, &r), RW_OK);
        rw_tensor *const y = rw_moe_drop(b.t, index, w, &r, wrong ? 1 : 0);
        cr_expect_eq(y != NULL, wrong >= 3, "%d: %s", wrong, rw_error_message(b.ctx));
        if (y) cr_expect_eq(rw_eval(b.t, &y, 1), RW_ERR_ARGUMENT, "%d", wrong);
        cr_expect(strstr(rw_error_message(b.ctx), "moe_drop"), "%d: %s", wrong, rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

/* Dropped rows follow the others, by slot; several chunks of them. */
Test(moe_routing, dropped_rows_follow_all_others)
{
    struct fixture b = fixture_open(1, 2);
    enum { TOKENS = 400, EACH = 2, EXPERTS = 5, N = TOKENS * EACH };
    int32_t index[N], after = 0;
    for (int i = 0; i < N; i++) after += (index[i] = i * 7 % 6 - 1) >= 0;
    rw_moe_routes r;
    cr_assert_eq(rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(TOKENS, EACH), index, sizeof index), EXPERTS, &r),
                 RW_OK);
    int32_t *const order = bytes_of(b.t, r.order), *const inverse = bytes_of(b.t, r.inverse),
                   *const offsets = bytes_of(b.t, r.offsets);
    cr_expect_eq(offsets[EXPERTS], after);
    for (int i = 0; i < N; i++) {
        cr_expect_eq(order[inverse[i]], i);
        if (index[i] == RW_MOE_DROPPED) cr_expect_eq(inverse[i], after++, "slot %d", i);
    }
    free(order), free(inverse), free(offsets);
    fixture_close(&b);
}

/* ---- state ---- */

/* Layers that share a counter, in one step. */
Test(moe_routing, counts_of_one_step_add_up)
{
    static const int32_t index[2][6] = { { 0, 1, 1, 2, 2, 3 }, { 3, 2, 1, 3, 1, 3 } };
    const float want[4] = { 1, 4, 3, 4 };
    struct fixture b = fixture_open(1, 1);
    float total[4];
    rw_tensor *const load = rw_buffer(b.ctx, "load", RW_F32, RW_SHAPE(4));
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    for (int i = 0; i < 2; i++) {
        rw_moe_routes r;
        cr_assert_eq(rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(3, 2), index[i], sizeof index[i]), 4, &r), RW_OK);
        cr_assert_eq(rw_moe_count(b.t, load, &r), RW_OK, "%s", rw_error_message(b.ctx));
    }
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, w, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, load, total, sizeof total), RW_OK);
    cr_expect_eq(memcmp(total, want, sizeof want), 0, "%g %g %g %g", (double)total[0], (double)total[1],
                 (double)total[2], (double)total[3]);
    fixture_close(&b);
}

/* Three micro-batches under each policy, then one update of the biases. */
Test(moe_routing, loads_and_biases_are_written_once_under_every_policy)
{
    static const char *const policies[] = { "none", "full", "selective:moe" };
    float first_total[LAYER_EXPERTS], first_bias[LAYER_EXPERTS];
    for (size_t p = 0; p < 3; p++) {
        struct fixture b = fixture_open(1, 2);
        float total[LAYER_EXPERTS], bias[LAYER_EXPERTS];
        rw_tensor *const load = rw_buffer(b.ctx, "load", RW_F32, RW_SHAPE(LAYER_EXPERTS));
        rw_tensor *const own = rw_buffer(b.ctx, "bias", RW_F32, RW_SHAPE(LAYER_EXPERTS));
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(LAYER_EXPERTS, 8));
        cr_assert_eq(rw_init_normal(w, 0, 1), RW_OK);
        cr_assert_eq(ckpt_set_policy(b.t, policies[p]), RW_OK);
        for (int micro = 0; micro < 3; micro++) {
            rw_tensor *index;
            rw_moe_routes r;
            ckpt_begin(b.t, "moe");
            rw_tensor *const logits = rw_linear(b.t, numbers(b.t, RW_F32, RW_SHAPE(10, 8), 1, micro * 80), w, RW_NONE);
            const rw_moe_router_params params = { .choice = { .k = 2 }, .score = RW_MOE_SIGMOID, .bias = own,
                                                  .normalize = true };
            rw_tensor *const weights = rw_moe_router(b.t, logits, &params, &index, NULL);
            cr_assert_eq(rw_moe_route(b.t, index, LAYER_EXPERTS, &r), RW_OK);
            cr_assert_eq(rw_moe_count(b.t, load, &r), RW_OK, "%s", rw_error_message(b.ctx));
            rw_tensor *const y = rw_mul(b.t, weights, weights);
            ckpt_end(b.t);
            cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
            rw_tape_reset(b.t);
        }
        cr_assert_eq(rw_read(b.t, load, total, sizeof total), RW_OK);
        rw_tensor *const next = rw_moe_balance(b.t, own, load, 0.125);
        cr_assert_eq(rw_eval(b.t, &next, 1), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, own, bias, sizeof bias), RW_OK);
        float sum = 0;
        for (int e = 0; e < LAYER_EXPERTS; e++) sum += total[e];
        cr_expect_eq(sum, 3 * 10 * 2, "%s: %g rows", policies[p], (double)sum);
        for (int e = 0; e < LAYER_EXPERTS; e++)
            cr_expect_eq(bias[e], total[e] < 10 ? 0.125f : total[e] > 10 ? -0.125f : 0, "%s, %d", policies[p], e);
        if (!p) memcpy(first_total, total, sizeof total), memcpy(first_bias, bias, sizeof bias);
        cr_expect(!memcmp(first_total, total, sizeof total) && !memcmp(first_bias, bias, sizeof bias), "%s",
                  policies[p]);
        cr_assert_eq(rw_read(b.t, load, total, sizeof total), RW_OK);
        for (int e = 0; e < LAYER_EXPERTS; e++) cr_expect_eq(total[e], 0, "%g", (double)total[e]);
        fixture_close(&b);
    }
}

/* ---- with a scaler: skipping an update does not undo the loads, because the routes were used ---- */

enum way { BY_CALLS, BY_GRAPH, BY_GRAPH_INSIDE, WAYS }; /* the last one runs backward twice */
enum { SCALED_STEPS = 4, SCALED_TOKENS = 10, SCALED_CHOSEN = 2 };

struct scaled {
    struct fixture b;
    rw_tensor *load, *bias, *w, *factor;
    rw_optimizer *opt;
    rw_scaler *s;
};

static struct scaled open_scaled(const char *policy)
{
    struct scaled x = { .b = fixture_open(1, 2) };
    x.load = rw_buffer(x.b.ctx, "load", RW_F32, RW_SHAPE(LAYER_EXPERTS));
    x.bias = rw_buffer(x.b.ctx, "bias", RW_F32, RW_SHAPE(LAYER_EXPERTS));
    x.w = rw_param(x.b.ctx, "w", RW_F32, RW_SHAPE(LAYER_EXPERTS, 8));
    cr_assert_eq(rw_init_normal(x.w, 0, 1), RW_OK);
    cr_assert_eq(ckpt_set_policy(x.b.t, policy), RW_OK);
    cr_assert_eq(rw_sgd_create(&x.opt, x.b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    cr_assert_eq(rw_scaler_create(&x.s, x.b.ctx, NULL), RW_OK);
    return x;
}

static void close_scaled(struct scaled *x)
{
    rw_scaler_destroy(&x->s);
    rw_optimizer_destroy(&x->opt);
    fixture_close(&x->b);
}

/* A layer's router in a region, with its loads counted; the loss times a factor that may be infinite. */
static rw_tensor *scaled_loss(struct scaled *x, float factor)
{
    rw_tape *const t = x->b.t;
    const rw_moe_router_params p = { .choice = { .k = SCALED_CHOSEN }, .score = RW_MOE_SIGMOID, .bias = x->bias };
    rw_tensor *index;
    rw_moe_routes r;
    ckpt_begin(t, "moe");
    rw_tensor *const in = numbers(t, RW_F32, RW_SHAPE(SCALED_TOKENS, 8), 1, 0);
    rw_tensor *const weights = rw_moe_router(t, rw_linear(t, in, x->w, RW_NONE), &p, &index, NULL);
    cr_assert_eq(rw_moe_route(t, index, LAYER_EXPERTS, &r), RW_OK);
    cr_assert_eq(rw_moe_count(t, x->load, &r), RW_OK, "%s", rw_error_message(x->b.ctx));
    rw_tensor *const y = rw_mul(t, weights, weights);
    ckpt_end(t);
    x->factor = rw_input(t, RW_F32, RW_SCALAR, &factor, sizeof factor);
    return rw_mul(t, rw_sum(t, y, RW_ALL_AXES, false), x->factor);
}

static void step_by_calls(struct scaled *x, float factor)
{
    cr_assert_eq(rw_scaler_backward(x->s, x->b.t, scaled_loss(x, factor)), RW_OK, "%s", rw_error_message(x->b.ctx));
    rw_tape_reset(x->b.t);
    cr_assert_eq(rw_scaler_step(x->s, x->opt), RW_OK, "%s", rw_error_message(x->b.ctx));
    cr_assert_eq(rw_scaler_update(x->s), RW_OK);
    rw_zero_grad(x->b.ctx);
}

static rw_graph *scaled_graph(struct scaled *x, enum way way)
{
    rw_graph *g = NULL;
    const rw_graph_params p = { { recorded_scaler(x->s), recorded_update(x->opt, way == BY_GRAPH_INSIDE) } };
    if (way == BY_CALLS) return NULL;
    cr_assert_eq(rw_graph_create(&g, x->b.t, scaled_loss(x, 1), &p), RW_OK, "%s", rw_error_message(x->b.ctx));
    return g;
}

struct counted {
    float load[LAYER_EXPERTS], w[LAYER_EXPERTS * 8];
};

static void read_counted(const struct scaled *x, struct counted *c)
{
    cr_assert_eq(rw_read(NULL, x->load, c->load, sizeof c->load), RW_OK);
    cr_assert_eq(rw_read(NULL, x->w, c->w, sizeof c->w), RW_OK);
}

/* Steps 1 and 2 are skipped. ret: the counters after each. */
static void run_scaled(const char *policy, enum way way, struct counted ret[SCALED_STEPS])
{
    struct scaled x = open_scaled(policy);
    rw_graph *g = scaled_graph(&x, way);
    struct counted before;
    float bias[LAYER_EXPERTS];
    read_counted(&x, &before);
    for (int step = 0; step < SCALED_STEPS; step++) {
        const bool left_out = step == 1 || step == 2;
        const float factor = left_out ? INFINITY : 1;
        if (!g) step_by_calls(&x, factor);
        else {
            cr_assert_eq(rw_input_write(x.factor, &factor, sizeof factor), RW_OK);
            cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
        }
        read_counted(&x, &ret[step]);
        float rows = 0;
        for (int e = 0; e < LAYER_EXPERTS; e++) rows += ret[step].load[e] - before.load[e];
        cr_expect_eq(rows, SCALED_TOKENS * SCALED_CHOSEN, "%s, way %d, step %d: %g rows", policy, way, step,
                     (double)rows);
        cr_expect_eq(!memcmp(ret[step].w, before.w, sizeof before.w), left_out, "%s, way %d, step %d", policy, way,
                     step);
        before = ret[step];
    }
    rw_scaler_state state;
    cr_assert_eq(rw_scaler_get(x.s, &state), RW_OK);
    cr_expect_eq(state.skipped, 2);
    cr_assert_eq(rw_read(NULL, x.bias, bias, sizeof bias), RW_OK);
    for (int e = 0; e < LAYER_EXPERTS; e++) cr_expect_eq(bias[e], 0, "a bias moves in a step of balance alone");
    rw_graph_destroy(&g);
    close_scaled(&x);
}

Test(moe_routing, loads_are_counted_once_in_a_step_whose_update_is_left_out)
{
    static const char *const policies[] = { "none", "full", "selective:moe" };
    struct counted first[SCALED_STEPS], got[SCALED_STEPS];
    for (int p = 0; p < 3; p++)
        for (enum way way = BY_CALLS; way < WAYS; way++) {
            run_scaled(policies[p], way, got);
            if (!p && way == BY_CALLS) memcpy(first, got, sizeof got);
            cr_expect(!memcmp(first, got, sizeof got), "%s, way %d: other loads, or other weights", policies[p], way);
        }
}

/* ---- losses ---- */

Test(moe_routing, losses_are_what_their_closed_forms_say)
{
    struct fixture b = fixture_open(1, 1);
    static const double logits[] = { 1, 0, 2, 0.5, 0.25, -1, 3, 1 };
    rw_tensor *const z = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(2, 4), logits, sizeof logits)), *index,
                     *scores;
    const rw_moe_router_params params = { .choice = { .k = 2 }, .score = RW_MOE_SOFTMAX };
    rw_moe_routes r;
    cr_assert(rw_moe_router(b.t, z, &params, &index, &scores));
    cr_assert_eq(rw_moe_route(b.t, index, 4, &r), RW_OK);
    const double aux = rw_item(b.t, rw_moe_aux_loss(b.t, scores, &r, 0.01));
    const double small = rw_item(b.t, rw_moe_z_loss(b.t, z, 0.5));
    double sum[2] = { 0 }, load[4] = { 1, 0, 2, 1 }, mean[4] = { 0 }, want = 0; /* chosen: 2 0, 2 3 */
    for (int i = 0; i < 8; i++) sum[i / 4] += exp(logits[i]);
    for (int i = 0; i < 8; i++) mean[i % 4] += exp(logits[i]) / sum[i / 4];
    for (int e = 0; e < 4; e++) want += 0.01 * 4 / (2 * 2 * 2) * mean[e] * load[e];
    cr_expect_float_eq(aux, want, 1e-15);
    cr_expect_float_eq(small, 0.5 * (pow(log(sum[0]), 2) + pow(log(sum[1]), 2)) / 2, 1e-14);
    fixture_close(&b);
}

/*
 * In terms of the logits z of T tokens, with p their softmax and load a constant, because it counts rows:
 *     aux: c E / (k T^2) p_te (load_e - sum over i of p_ti load_i)        z-loss: 2 c / T logsumexp(z_t) p_te
 */
Test(moe_routing, gradients_of_losses_are_what_their_closed_forms_say)
{
    enum { T = 3, E = 4, K = 2 };
    struct fixture b = fixture_open(1, 1);
    static const double logits[T][E] = { { 1, 0, 2, 0.5 }, { 0.25, -1, 3, 1 }, { -0.5, 0.75, 1.5, 0.125 } };
    static const double load[E] = { 1, 1, 3, 1 }; /* chosen: 2 0, 2 3, 2 1 */
    rw_tensor *const z = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(T, E), logits, sizeof logits)), *index,
                     *scores;
    const rw_moe_router_params params = { .choice = { .k = K }, .score = RW_MOE_SOFTMAX };
    rw_moe_routes r;
    cr_assert(rw_moe_router(b.t, z, &params, &index, &scores));
    cr_assert_eq(rw_moe_route(b.t, index, E, &r), RW_OK);
    rw_tensor *const losses[] = { rw_moe_aux_loss(b.t, scores, &r, 0.01), rw_moe_z_loss(b.t, z, 0.5) };
    for (int loss = 0; loss < 2; loss++) {
        rw_tensor *grad;
        cr_assert_eq(rw_grad(b.t, losses[loss], &z, 1, &grad), RW_OK, "%s", rw_error_message(b.ctx));
        double *const got = bytes_of(b.t, grad);
        for (int t = 0; t < T; t++) {
            double sum = 0, mean = 0;
            for (int e = 0; e < E; e++) sum += exp(logits[t][e]);
            for (int e = 0; e < E; e++) mean += exp(logits[t][e]) / sum * load[e];
            for (int e = 0; e < E; e++) {
                const double p = exp(logits[t][e]) / sum;
                const double want = loss ? 2 * 0.5 / T * log(sum) * p : 0.01 * E / (K * T * T) * p * (load[e] - mean);
                cr_expect_float_eq(got[t * E + e], want, 1e-15, "loss %d, token %d, expert %d: %g, not %g", loss, t, e,
                                   got[t * E + e], want);
            }
        }
        free(got);
    }
    fixture_close(&b);
}
