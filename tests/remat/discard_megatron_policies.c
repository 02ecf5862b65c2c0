/*
 * discard: and megatron: compared by kept bytes, exactly, and by how often each op is executed. A value that backward
 * reads outside its region is dropped as well, and recomputed once; and no gradient changes.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1024, VALUE = N * sizeof(float) };

/*
 * x -> [NAME: a = x^2, b = a^2] -> c = b^2 -> [moe_act: d = c^2] -> e = d^2 -> sum. The rule of each op reads its
 * input: x is not a value of the arena, so a, b, c and d are kept under none.
 */
static size_t kept_under(const char *policy, const char *name)
{
    struct fixture b = fixture_open(1, 1);
    float one[N];
    rw_memory m;
    for (int i = 0; i < N; i++) one[i] = 1;
    counted_clear();
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), one, sizeof one));
    ckpt_begin(b.t, name);
    rw_tensor *y = counted_square(b.t, counted_square(b.t, x, 0), 1);
    ckpt_end(b.t);
    y = counted_square(b.t, y, 2);
    ckpt_begin(b.t, "moe_act");
    y = counted_square(b.t, y, 3);
    ckpt_end(b.t);
    y = counted_square(b.t, y, 4);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(x), one, sizeof one), RW_OK);
    for (int i = 0; i < N; i++) cr_assert_eq(one[i], 32);
    rw_memory_stats(b.ctx, &m);
    fixture_close(&b);
    return m.kept;
}

static void expect_runs(const int *want, const char *policy)
{
    for (int i = 0; i < 5; i++)
        cr_expect_eq(counted_runs[i], want[i], "%s: op %d ran %d times, not %d", policy, i, counted_runs[i], want[i]);
}

Test(discard_megatron_policies, what_is_kept_by_formula)
{
    static const struct {
        const char *policy;
        size_t values; /* fewer than under none */
        int runs[5];
    } cases[] = {
        { "none", 0, { 1, 1, 1, 1, 1 } },
        { "selective:layernorm", 1, { 2, 1, 1, 1, 1 } },
        { "discard:layernorm", 2, { 2, 2, 1, 1, 1 } },
        { "discard:moe_act", 1, { 1, 1, 1, 2, 1 } },
        { "selective:moe_act", 0, { 1, 1, 1, 1, 1 } },
        { "discard:layernorm,moe_act", 3, { 2, 2, 1, 2, 1 } },
        { "selective:layernorm+discard:moe_act", 2, { 2, 1, 1, 2, 1 } },
        { "full+discard:moe_act", 2, { 2, 1, 1, 2, 1 } },
        { "megatron:layernorm", 2, { 2, 2, 1, 1, 1 } },
        { "megatron:moe_act", 1, { 1, 1, 1, 2, 1 } },
        { "megatron:layernorm,moe_act,core_attn", 3, { 2, 2, 1, 2, 1 } },
        { "megatron:core_attn,mlp", 0, { 1, 1, 1, 1, 1 } },
    };
    const size_t none = kept_under("none", "layernorm");
    cr_assert_geq(none, 4 * VALUE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t kept = kept_under(cases[i].policy, "layernorm");
        cr_expect_eq(kept + cases[i].values * VALUE, none, "%s keeps %zu bytes, none %zu", cases[i].policy, kept, none);
        expect_runs(cases[i].runs, cases[i].policy);
    }
}

/* Each of Megatron's labels has Megatron's meaning: outputs dropped, or replayed from the inputs. */
Test(discard_megatron_policies, labels_mean_what_they_mean_in_megatron)
{
    static const struct {
        const char *label;
        size_t values; /* fewer than under none */
        int runs[5];
    } cases[] = {
        { "core_attn", 1, { 2, 1, 1, 1, 1 } },   { "mlp", 1, { 2, 1, 1, 1, 1 } },
        { "moe", 1, { 2, 1, 1, 1, 1 } },         { "shared_experts", 1, { 2, 1, 1, 1, 1 } },
        { "layernorm", 2, { 2, 2, 1, 1, 1 } },   { "mla_up_proj", 2, { 2, 2, 1, 1, 1 } },
        { "moe_act", 3, { 2, 2, 1, 2, 1 } },     { "gdn_norm_out", 2, { 2, 2, 1, 1, 1 } },
        { "gdp_in_proj", 2, { 2, 2, 1, 1, 1 } }, { "gdp_qkv", 2, { 2, 2, 1, 1, 1 } },
        { "mhc", 2, { 2, 2, 1, 1, 1 } },
    };
    const size_t none = kept_under("none", "layernorm");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char policy[64];
        snprintf(policy, sizeof policy, "megatron:%s", cases[i].label);
        const size_t kept = kept_under(policy, cases[i].label); /* the second region is called "moe_act" */
        cr_expect_eq(kept + cases[i].values * VALUE, none, "%s keeps %zu bytes, none %zu", policy, kept, none);
        expect_runs(cases[i].runs, policy);
    }
}

/* A net with dropout, two regions per layer, under policies that drop the regions' outputs: the bytes of none. */
Test(discard_megatron_policies, gradients_are_those_of_none)
{
    static const char *const policies[] = { "none", "discard:outer", "discard:inner", "full+discard:inner",
                                            "selective:inner+discard:outer", "uniform:2+discard:outer",
                                            "ops:linear+discard:inner" };
    unsigned char *first = NULL;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct fixture b = fixture_open(7, 1);
        struct net n;
        size_t bytes;
        net_init(&n, b.ctx, 4, 16, RW_F32, 2);
        cr_assert_eq(ckpt_set_policy(b.t, policies[i]), RW_OK);
        rw_tensor *const loss = net_loss(&n, b.t, 24, 0);
        cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s: %s", policies[i], rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", policies[i], rw_error_message(b.ctx));
        unsigned char *const got = all_gradients(b.ctx, &bytes);
        if (!first) first = got;
        cr_expect_eq(first_difference(first, got, bytes), -1, "%s", policies[i]);
        if (got != first) free(got);
        fixture_close(&b);
    }
    free(first);
}
