/* Philox compared with its published vectors and Random123; law 3: which element draws which word; and no word is drawn
   twice. */
#include "support/compare.h"
#include "support/support.h"

#include "base/philox.h"
#include "ops/random/philox_vec.h"
#include "record/tape.h"

#include <Random123/philox.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

Test(philox, published_vectors)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u }, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (int i = 0; i < 3; i++) {
        uint32_t c[4];
        memcpy(c, known[i].counter, sizeof c);
        rw_philox_rounds(c, known[i].key[0], known[i].key[1]);
        cr_assert_eq(memcmp(c, known[i].out, sizeof c), 0, "vector %d", i);
    }
}

Test(philox, blocks_equal_random123)
{
    for (uint64_t i = 0; i < 1000; i++) {
        const uint64_t seed = i * 0x9e3779b97f4a7c15u, block = i * i * 0x100000001b3u;
        uint32_t mine[4], many[PHILOX_WORDS];
        rw_philox(seed, block, mine);
        const philox4x32_ctr_t c = { { (uint32_t)block, (uint32_t)(block >> 32), 0, 0 } };
        const philox4x32_key_t k = { { (uint32_t)seed, (uint32_t)(seed >> 32) } };
        const philox4x32_ctr_t r = philox4x32(c, k);
        cr_assert_eq(memcmp(mine, r.v, sizeof mine), 0);
        philox_fill(seed, block - 5, many);
        cr_assert_eq(memcmp(mine, many + 20, sizeof mine), 0, "sixteen at once");
    }
}

/* Which elements a dropout keeps when it starts at the given offset of the random stream. */
static unsigned char *mask_of(struct fixture *b, rw_dtype dtype, int n, double p, uint64_t offset)
{
    unsigned char *const kept = malloc((size_t)n), *const y = malloc((size_t)n * 8);
    char name[40];
    snprintf(name, sizeof name, "%s%d.%llu", rw_dtype_name(dtype), n, (unsigned long long)offset);
    rw_tensor *const one = rw_param(b->ctx, name, dtype, RW_SHAPE(n));
    rw_init_constant(one, 1);
    rw_generator_set(b->ctx, (rw_generator_state){ 77, offset });
    rw_tensor *const d = rw_dropout(b->t, one, p);
    cr_assert_eq(rw_read(b->t, d, y, rw_tensor_bytes(d)), RW_OK);
    const size_t size = rw_dtype_size(dtype);
    for (int i = 0; i < n; i++) kept[i] = memcmp(y + (size_t)i * size, "\0\0\0\0\0\0\0\0", size) != 0;
    rw_tape_reset(b->t);
    free(y);
    return kept;
}

Test(philox, element_i_draws_word_i_mod_4_of_block_i_div_4)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F64 };
    for (int threads = 1; threads <= 3; threads++) {
        struct fixture b = fixture_open(1, threads);
        for (int d = 0; d < 3; d++)
            for (int n = 1; n < 70000; n = n < 130 ? n + 1 : n * 3 + 1) {
                unsigned char *const kept = mask_of(&b, types[d], n, 0.3f, 1000);
                for (int i = 0; i < n; i++) {
                    uint32_t w[4];
                    rw_philox(77, 1000 + (uint64_t)i / 4, w);
                    cr_assert_eq(kept[i], w[i % 4] >= (uint32_t)((double)0.3f * 4294967296.0), "%s, n %d, element %d",
                                 rw_dtype_name(types[d]), n, i);
                }
                free(kept);
                if (n > 130) fixture_close(&b), b = fixture_open(1, threads);
            }
        fixture_close(&b);
    }
}

Test(philox, the_audit_finds_no_word_taken_twice)
{
    struct fixture b = fixture_open(5, 1);
    struct net n;
    bool disjoint = false;
    net_init(&n, b.ctx, 4, 24, RW_F32, 1);
    rw_tensor *const loss = net_loss(&n, b.t, 33, 0);
    rw_tensor *const q = rw_randn(b.t, RW_F32, RW_SHAPE(2, 3, 5, 8));
    rw_attention(b.t, q, q, q, &(rw_attention_params){ .dropout = 0.5f });
    rw_rand(b.t, RW_F32, RW_SHAPE(7));
    rw_tensor *g, *w = n.table;
    cr_assert_eq(rw_grad(b.t, loss, &w, 1, &g), RW_OK, "repeats the tickets of its dropouts");
    cr_assert_eq(rw_tape_audit_tickets(b.t, &disjoint), RW_OK);
    cr_assert(disjoint);
    cr_assert_gt(b.t->n_tickets, 10);
    rw_generator_set(b.ctx, (rw_generator_state){ 5, rw_generator_get(b.ctx).offset - 1 });
    rw_rand(b.t, RW_F32, RW_SHAPE(3));
    cr_assert_eq(rw_tape_audit_tickets(b.t, &disjoint), RW_OK);
    cr_assert_not(disjoint, "a generator set back by one block");
    fixture_close(&b);
}

/* The threshold is exact to 2^-32: words next to it are drawn, and are kept or dropped correctly. */
Test(philox, an_element_stays_from_the_threshold_on)
{
    struct fixture b = fixture_open(1, 2);
    const int n = test_device() == RW_DEVICE_CPU ? 1 << 22 : 1 << 16;
    static const float shares[] = { 0.1f, 0.3f, 0.77f };
    for (int s = 0; s < 3; s++) {
        const uint32_t threshold = (uint32_t)((double)shares[s] * 0x1p32);
        unsigned char *const kept = mask_of(&b, RW_BF16, n, shares[s], 1000u * (unsigned)s);
        uint32_t words[4];
        for (int i = 0; i < n; i++) {
            if (i % 4 == 0) rw_philox(77, 1000u * (unsigned)s + (unsigned)i / 4, words);
            cr_assert_eq(kept[i], words[i % 4] >= threshold, "element %d, word %08x, share %g", i, words[i % 4],
                         (double)shares[s]);
        }
        free(kept);
    }
    fixture_close(&b);
}

/* A word equal to the threshold is kept. The words are such that float32 holds them, because the probability is rounded
   to it. */
Test(philox, a_word_at_the_threshold_stays)
{
    enum { N = 1024 };
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F64 };
    int found = 0;
    for (int i = 0; i < N; i++) {
        uint32_t words[4];
        rw_philox(77, 1000 + (uint64_t)i / 4, words);
        const double share = (double)words[i % 4] * 0x1p-32;
        if ((double)(float)share != share) continue;
        struct fixture b = fixture_open(1, 1);
        for (int d = 0; d < 3; d++) {
            unsigned char *const kept = mask_of(&b, types[d], N, share, 1000);
            cr_assert(kept[i], "%s, element %d", rw_dtype_name(types[d]), i);
            free(kept);
        }
        fixture_close(&b);
        found++;
    }
    cr_assert_gt(found, 3);
}

/* One in 512 words would round to 1 in bfloat16, one in 4096 in float16. */
Test(philox, numbers_stay_below_one)
{
    enum { N = 1 << 14 };
    struct fixture b = fixture_open(1, 2);
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    static double x[N];
    for (int d = 0; d < 4; d++) {
        double most = 0;
        cr_assert_eq(rw_read(b.t, rw_rand(b.t, types[d], RW_SHAPE(N)), x, N * rw_dtype_size(types[d])), RW_OK);
        for (int i = 0; i < N; i++) most = fmax(most, number_get(x, types[d], i));
        cr_assert(most > 0.99 && most < 1, "%s: %.9g", rw_dtype_name(types[d]), most);
    }
    fixture_close(&b);
}

/* No two fills draw the same words; each takes one per element, and ends with a whole block. */
Test(philox, fills_share_no_words)
{
    enum { N = 10, BLOCKS = 3 };
    struct fixture b = fixture_open(7, 1);
    float x[4][N];
    for (int uniform = 0; uniform < 2; uniform++) {
        rw_generator_set(b.ctx, (rw_generator_state){ 7, 100 });
        for (int i = 0; i < 4; i++) {
            char name[16];
            snprintf(name, sizeof name, "p%d.%d", uniform, i);
            rw_tensor *const p = rw_param(b.ctx, name, RW_F32, RW_SHAPE(N));
            if (i == 3) rw_generator_set(b.ctx, (rw_generator_state){ 7, 100 + BLOCKS });
            cr_assert_eq(uniform ? rw_init_uniform(p, 0, 1) : rw_init_normal(p, 0, 1), RW_OK);
            cr_assert_eq(rw_generator_get(b.ctx).offset, (uint64_t)(100 + BLOCKS * (i == 3 ? 2 : i + 1)));
            cr_assert_eq(rw_read(NULL, p, x[i], sizeof x[i]), RW_OK);
        }
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) cr_assert(x[0][i] != x[1][j] && x[0][i] != x[2][j] && x[1][i] != x[2][j]);
        cr_assert_eq(memcmp(x[1], x[3], sizeof x[1]), 0, "the second fill begins where the first one ended");
    }
    fixture_close(&b);
}

/* An image that is channels last draws its words in memory order, its result has the same layout, and no copy is
   made. */
Test(philox, an_image_is_counted_in_its_layout)
{
    enum { N = 2, H = 3, W = 5, C = 7, ALL = N * H * W * C };
    struct fixture b = fixture_open(5, 2);
    float y[2][ALL], dx[2][ALL];
    for (int adds = 0; adds < 2; adds++) {
        for (int image = 0; image < 2; image++) {
            const rw_shape shape = RW_SHAPE(N, H, W, C);
            rw_generator_set(b.ctx, (rw_generator_state){ 77, 1000 });
            rw_tensor *const given = rw_require_grad(b.t, rw_randn(b.t, RW_F32, shape));
            rw_tensor *const x = image ? rw_permute(b.t, given, (const int[]){ 0, 3, 1, 2 }) : given;
            rw_tensor *const z = adds ? rw_dropout_add(b.t, x, rw_tanh(b.t, x), 0.5) : rw_dropout(b.t, x, 0.5);
            const size_t nodes = b.t->n_nodes;
            rw_tensor *const back = image ? rw_permute(b.t, z, (const int[]){ 0, 2, 3, 1 }) : z;
            cr_assert_not_null(back, "%s", rw_error_message(b.ctx));
            cr_expect(rw_tensor_layout(back)->dense && rw_contiguous(b.t, back) == back);
            cr_expect_eq(b.t->n_nodes, nodes + (size_t)image);
            cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, back, back), RW_ALL_AXES, false)), RW_OK, "%s",
                         rw_error_message(b.ctx));
            cr_assert_eq(rw_read(b.t, back, y[image], sizeof y[image]), RW_OK);
            cr_assert_eq(rw_read(b.t, rw_gradient(given), dx[image], sizeof dx[image]), RW_OK);
            rw_tape_reset(b.t);
        }
        cr_expect_eq(memcmp(y[0], y[1], sizeof y[0]), 0);
        cr_expect_eq(memcmp(dx[0], dx[1], sizeof dx[0]), 0);
    }
    fixture_close(&b);
}

Test(philox, dropout_keeps_the_expected_share)
{
    struct fixture b = fixture_open(5, 2);
    const int n = 1 << 20;
    unsigned char *const kept = mask_of(&b, RW_F32, n, 0.25f, 0);
    int count = 0;
    for (int i = 0; i < n; i++) count += kept[i];
    /* Binomial: five standard deviations of n p (1 - p) */
    cr_assert_float_eq(count, 0.75 * n, 5 * 443.4);
    free(kept);
    fixture_close(&b);
}

Test(philox, normal_deviates_have_the_moments_of_a_normal)
{
    struct fixture b = fixture_open(5, 2);
    const int n = 1 << 18;
    float *const x = malloc((size_t)n * sizeof *x);
    rw_tensor *const r = rw_randn(b.t, RW_F32, RW_SHAPE(n));
    cr_assert_eq(rw_read(b.t, r, x, (size_t)n * sizeof *x), RW_OK);
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += (double)x[i] / n, square += (double)x[i] * (double)x[i] / n;
    cr_assert_float_eq(mean, 0, 5.0 / 512);
    cr_assert_float_eq(square, 1, 5 * 1.4143 / 512);
    free(x);
    fixture_close(&b);
}
