/* The policy language: every form is accepted; every mistake and every name without a match is refused with its
   position. */
#include "support/support.h"

#include "base/alloc.h"
#include "record/internal_ops.h"
#include "record/tape.h"
#include "record/policy.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(policy, every_form_of_the_language)
{
    static const struct {
        const char *spec;
        enum rw_policy_kind kind;
        int64_t n;
        size_t names, tags, regions;
    } good[] = { { "none", RW_POLICY_NONE, 0, 0 },          { "full", RW_POLICY_FULL, 0, 0 },
                 { "selective:a,b c", RW_POLICY_SELECTIVE, 0, 2 }, { "uniform:12", RW_POLICY_UNIFORM, 12, 0 },
                 { "block:3", RW_POLICY_BLOCK, 3, 0 },      { "ops:matmul", RW_POLICY_OPS, 0, 1 },
                 { "names:keep=x,y,z", RW_POLICY_NAMES, 0, 3 },
                 { "names:save=x;offload=y", RW_POLICY_NAMES, 0, 1, 1 }, { "discard:a,b", RW_POLICY_NONE, 0, 0 },
                 { "full+discard:a", RW_POLICY_FULL, 0, 0 }, { "selective:m+discard:a,b", RW_POLICY_SELECTIVE, 0, 1 },
                 { "megatron:layernorm", RW_POLICY_SELECTIVE, 0, 0 },
                 { "megatron:core_attn,moe_act,mlp", RW_POLICY_SELECTIVE, 0, 2 },
                 { "offload:a,b", RW_POLICY_NONE, 0, 0, 0, 2 }, { "offload:a+offload:b", RW_POLICY_NONE, 0, 0, 0, 2 },
                 { "full+offload:a", RW_POLICY_FULL, 0, 0, 0, 1 }, { "ops:a,b+offload:c", RW_POLICY_OPS, 0, 2, 0, 1 },
                 { "full+discard:a+offload:b", RW_POLICY_FULL, 0, 0, 0, 1 },
                 { "names:keep=x;offload=y,z", RW_POLICY_NAMES, 0, 1, 2, 0 },
                 { "names:offload=y+offload:a,b", RW_POLICY_NAMES, 0, 0, 1, 2 } };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct rw_policy p;
        char message[256];
        cr_assert_eq(rw_policy_parse(good[i].spec, &p, message, sizeof message), RW_OK, "%s", message);
        cr_assert_eq(p.kind, good[i].kind);
        cr_assert_eq(p.n, good[i].n);
        cr_assert_eq(p.n_names, good[i].names);
        cr_assert_eq(p.n_moved_tags, good[i].tags);
        cr_assert_eq(p.n_moved_regions, good[i].regions);
        cr_assert_str_eq(p.spec, good[i].spec);
        rw_policy_finish(&p);
    }
}

Test(policy, what_is_discarded_and_what_is_replayed_are_two_lists)
{
    struct rw_policy p;
    char message[512];
    cr_assert_eq(rw_policy_parse("megatron:core_attn,layernorm,moe_act,mlp", &p, message, sizeof message), RW_OK);
    cr_assert(rw_policy_has_name(&p, "core_attn") && rw_policy_has_name(&p, "mlp"));
    cr_assert(rw_policy_discards(&p, "layernorm") && rw_policy_discards(&p, "moe_act"));
    cr_assert_not(rw_policy_has_name(&p, "layernorm"));
    cr_assert_not(rw_policy_discards(&p, "core_attn"));
    rw_policy_finish(&p);
    static const struct {
        const char *spec;
        int column;
    } bad[] = { { "discard", 8 }, { "discard:", 9 }, { "discard:a,", 11 }, { "discard:a:b", 10 }, { "full+discard", 6 },
                { "full+discard:", 14 }, { "full+discard:a+discard:b", 16 }, { "megatron:", 10 }, { "megatron", 9 },
                { "megatron:core_attn,", 20 }, { "megatron:core", 10 }, { "megatron:mlp,moe_acts", 14 },
                { "megatron:mlp+full", 14 } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char at[32];
        snprintf(at, sizeof at, "\", column %d: ", bad[i].column);
        cr_expect_eq(rw_policy_parse(bad[i].spec, &p, message, sizeof message), RW_ERR_POLICY, "%s", bad[i].spec);
        cr_expect(strstr(message, at), "%s:%s", message, at);
    }
}

Test(policy, a_mistake_is_told_as_what_it_is)
{
    static const struct {
        const char *spec, *words;
    } bad[] = { { "full+full", "column 6: expected \"discard:\" or \"offload:\" after \"+\"" },
                { "full+discard:a+full", "column 16: expected \"offload:\" after \"+\"" },
                { "budget:50%+full", "column 12: expected \"offload\" after \"+\"" },
                { "budget:50%+offload:a", "column 12: expected \"+offload\" without names" },
                { "uniform:99999999999", "column 9: expected a number of regions, at most 1000000000" },
                { "uniform:99999999999999999999999999",
                        "column 9: expected a number of regions, at most 1000000000" } };
    struct rw_policy p;
    char message[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_neq(rw_policy_parse(bad[i].spec, &p, message, sizeof message), RW_OK, "%s", bad[i].spec);
        cr_expect(strstr(message, bad[i].words), "%s", message);
    }
}

Test(policy, names_are_looked_up_whole)
{
    struct rw_policy p;
    char message[256];
    cr_assert_eq(rw_policy_parse("selective:mlp,attn.core", &p, message, sizeof message), RW_OK);
    cr_assert(rw_policy_has_name(&p, "mlp"));
    cr_assert(rw_policy_has_name(&p, "attn.core"));
    cr_assert_not(rw_policy_has_name(&p, "attn"));
    cr_assert_not(rw_policy_has_name(&p, "mlp,attn.core"));
    cr_assert_not(rw_policy_has_name(&p, ""));
    rw_policy_finish(&p);
}

/*
 * A form that this version does not support is parsed to the end before it is refused: a mistake in it is reported
 * first, with its position.
 */
Test(policy, budgets_are_bytes_or_a_share)
{
    static const struct {
        const char *spec;
        uint64_t bytes;
        double percent;
    } good[] = { { "budget:7B", 7, 0 },
                 { "budget:1536MiB", 1536u << 20, 0 },
                 { "budget:1.5GiB", 1536u << 20, 0 },
                 { "budget:0.25KiB", 256, 0 },
                 { "budget:00012.50KiB", 12800, 0 },
                 { "budget:281474976710655B", 281474976710655u, 0 },
                 { "budget:255.5TiB", 280925220896768u, 0 },
                 { "budget:40%", 0, 40 },
                 { "budget:12.5%", 0, 12.5 },
                 { "budget:100%", 0, 100 },
                 { "budget:100.0%", 0, 100 } };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct rw_policy p = { 0 };
        char message[256] = "";
        cr_assert_eq(rw_policy_parse(good[i].spec, &p, message, sizeof message), RW_OK, "%s", message);
        cr_expect_eq(p.kind, RW_POLICY_BUDGET);
        cr_expect_eq(p.bytes, good[i].bytes, "%s: %llu", good[i].spec, (unsigned long long)p.bytes);
        cr_expect_eq(p.percent, good[i].percent, "%s: %g", good[i].spec, p.percent);
        rw_policy_finish(&p);
    }
}

Test(policy, a_wrong_budget_is_refused_with_its_place)
{
    static const struct {
        const char *spec;
        int column;
        rw_status status;
    } cases[] = {
        { "budget:0.5%+offload:mlp", 13, RW_ERR_UNSUPPORTED }, { "budget:0.9B", 8, RW_ERR_POLICY },
        { "budget:256TiB", 8, RW_ERR_POLICY },              { "budget:281474976710656B", 8, RW_ERR_POLICY },
        { "budget:1e3B", 9, RW_ERR_POLICY },                { "budget:40%+discard:a", 12, RW_ERR_POLICY },
                       { "budget:99999999999999999999999TiB", 8, RW_ERR_POLICY },
        { "budget", 7, RW_ERR_POLICY },                     { "budget:", 8, RW_ERR_POLICY },
        { "budget:-1GiB", 8, RW_ERR_POLICY },               { "budget:GiB", 8, RW_ERR_POLICY },
        { "budget:0x10MiB", 9, RW_ERR_POLICY },             { "budget:nan%", 8, RW_ERR_POLICY },
        { "budget:1536", 12, RW_ERR_POLICY },               { "budget:1536MB", 12, RW_ERR_POLICY },
        { "budget:15MiBs", 10, RW_ERR_POLICY },             { "budget:1.GiB", 10, RW_ERR_POLICY },
        { "budget:1.5.2GiB", 11, RW_ERR_POLICY },           { "budget:1 GiB", 9, RW_ERR_POLICY },
        { "budget:0%", 8, RW_ERR_POLICY },                  { "budget:0.00GiB", 8, RW_ERR_POLICY },
        { "budget:101%", 8, RW_ERR_POLICY },                { "budget:100.5%", 8, RW_ERR_POLICY },
        { "budget:99999999999999999999%", 8, RW_ERR_POLICY }, { "budget:40%,", 11, RW_ERR_POLICY },
        { "budget:40%+", 12, RW_ERR_POLICY },               { "budget:40%+full", 12, RW_ERR_POLICY },
        { "full+offload", 6, RW_ERR_POLICY },               { "full+offload:", 14, RW_ERR_POLICY },
        { "full+offload:a,", 16, RW_ERR_POLICY },           { "offload:a+offload:b+", 20, RW_ERR_POLICY },
        { "names:keep=a;offload=", 22, RW_ERR_POLICY },     { "names:offload=a;b", 16, RW_ERR_POLICY },
        { "offloads:a", 1, RW_ERR_POLICY },                 { "budget:40%+offload:;", 20, RW_ERR_POLICY },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rw_policy p;
        char message[256], at[32];
        snprintf(at, sizeof at, "\", column %d: ", cases[i].column);
        cr_expect_eq(rw_policy_parse(cases[i].spec, &p, message, sizeof message), cases[i].status, "%s", cases[i].spec);
        cr_expect(strstr(message, at), "%s:%s", message, at);
    }
}

/*
 * Sizes composed of valid and invalid parts: each is accepted, or refused at the position of the mistake. That is its
 * first letter if that is not a digit; the character after the point if it is not a digit; an invalid unit or end; or
 * the size itself if it is valid but too large.
 */
static void check_size(const char *word, const char *front, const char *whole, const char *part, const char *more,
                       const char *unit)
{
    char spec[96], message[300], at[40], rest[32], size[64];
    struct rw_policy p;
    snprintf(spec, sizeof spec, "%s:%s%s%s%s%s", word, front, whole, part, more, unit);
    snprintf(rest, sizeof rest, "%s%s", more, unit);
    snprintf(size, sizeof size, "%s%s", whole, part);
    snprintf(at, sizeof at, "|%s|", rest);
    const bool is_unit = strstr("|B|KiB|MiB|GiB|TiB|%|", at);
    const bool share = is_unit && *rest == '%', total = *word == 't';
    const double bytes = is_unit && !share ? ldexp(strtod(size, NULL), 10 * (int)strcspn("BKMGT", (char[]){ *rest, 0 }))
                                           : 0;
    const bool point_alone = !strcmp(part, ".") || (!*part && *more == '.');
    size_t column = strlen(word) + 2; /* of the size */
    if (*front || !*whole) column += 0;
    else if (point_alone) column += strlen(whole) + 1;
    else if (!is_unit) column += strlen(whole) + strlen(part);
    else if (share ? !total && strtod(size, NULL) <= 100 : bytes < 0x1p48) column = 0;
    const rw_status status = rw_policy_parse(spec, &p, message, sizeof message);
    if (!column) {
        cr_expect_eq(status, RW_OK, "%s: %s", spec, message);
        cr_expect_eq(share ? p.percent > 0 : p.bytes > 0, true, "%s", spec);
        rw_policy_finish(&p);
        return;
    }
    snprintf(at, sizeof at, "\", column %zu: ", column);
    cr_expect_eq(status, RW_ERR_POLICY, "%s", spec);
    cr_expect(strstr(message, at), "%s, not %zu", message, column);
    if (!status) rw_policy_finish(&p);
}

Test(policy, every_size_is_read_or_refused_where_it_goes_wrong)
{
    static const char *const words[] = { "budget", "total" };
    static const char *const fronts[] = { "", "-", "+", " ", "x" };
    static const char *const wholes[] = { "", "7", "12", "007", "255", "256", "18446744073709551616" };
    static const char *const parts[] = { "", ".", ".5", ".25", ".000" };
    static const char *const mores[] = { "", ".", ".5", " ", "-", "e3", "x" };
    static const char *const units[] = { "B",   "KiB", "MiB",  "GiB",  "TiB",  "%",  "",
                                         "mib", "MB",  "MiBx", "GiB ", "%%",  "iB", "BB" };
#define EACH(i, list) for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    EACH(a, words) EACH(b, fronts) EACH(c, wholes) EACH(d, parts) EACH(e, mores) EACH(f, units)
    {
        if (!*parts[d] && !strcmp(mores[e], ".5")) continue; /* equal to another part */
        check_size(words[a], fronts[b], wholes[c], parts[d], mores[e], units[f]);
    }
#undef EACH
}

/*
 * Strings of the language's own characters: accepted, or refused with a column inside the string, without leaks.
 */
Test(policy, any_string_is_read_or_refused_with_a_column)
{
    static const char *const bits[] = { "none", "full", "selective", "uniform", "block", "ops", "names", "budget",
                                        "offload", "discard:", "megatron:", "+discard:", "core_attn", "moe_act",
                                        ":", ":", ",", ";", "=", "+", "keep=", "offload=", "a", "12", "0", " ", "\xff",
                                        ".", "%", "GiB", "budget:12" };
    uint32_t state = 7;
    for (int round = 0; round < 20000; round++) {
        char spec[128] = "", message[512] = "";
        for (int k = 0, n = round % 7; k < n; k++) {
            state = state * 1664525u + 1013904223u;
            strcat(spec, bits[(state >> 16) % (sizeof bits / sizeof *bits)]);
        }
        struct rw_policy p;
        const rw_status status = rw_policy_parse(spec, &p, message, sizeof message);
        if (status == RW_OK) {
            cr_assert_str_eq(p.spec, spec);
            rw_policy_finish(&p);
            continue;
        }
        cr_assert(status == RW_ERR_POLICY || status == RW_ERR_UNSUPPORTED, "%s", spec);
        const char *const column = strstr(message, "\", column ");
        cr_assert_not_null(column, "%s", message);
        const long at = strtol(column + 9, NULL, 10);
        cr_assert(at >= 1 && at <= (long)strlen(spec) + 1, "%s", message);
    }
}

Test(policy, every_allocation_that_fails_is_reported)
{
    struct rw_policy p;
    char message[256];
    for (uint64_t i = 1; i < 50; i++) {
        rw_alloc_fail_at(i);
        const rw_status status = rw_policy_parse("names:keep=x;offload=y+discard:u+offload:z", &p, message,
                                                 sizeof message);
        rw_alloc_fail_at(0);
        if (status == RW_OK) {
            cr_assert_gt(i, 3);
            rw_policy_finish(&p);
            return;
        }
        cr_assert_eq(status, RW_ERR_MEMORY);
    }
    cr_assert_fail("never without a failure");
}

static rw_status as_it_is(rw_grad_call *g, const void *data)
{
    (void)data;
    return rw_grad_set(g, 1, rw_grad_upstream(g, 0));
}

/* Calls every function of the headers of ops once. x: f32 [2, 2]; state: a buffer of that shape. */
static void record_every_op(rw_tape *t, rw_tensor *x, rw_tensor *state)
{
    const int axes[2] = { 1, 0 };
    const int64_t sizes[2] = { 1, 1 };
    rw_tensor *part[2];
    rw_tensor *const v = rw_sum(t, x, RW_AXES(0), false), *const q = rw_reshape(t, x, RW_SHAPE(1, 1, 2, 2));
    rw_tensor *const index = rw_input(t, RW_I32, RW_SHAPE(2), NULL, 0);
    rw_add(t, x, x), rw_sub(t, x, x), rw_mul(t, x, x), rw_div(t, x, x), rw_maximum(t, x, x), rw_minimum(t, x, x);
    rw_swiglu(t, x, x), rw_log1p(t, x), rw_erf(t, x), rw_sin(t, x), rw_cos(t, x), rw_softplus(t, x);
    rw_pow(t, x, x), rw_sign(t, x), rw_elu(t, x, 1), rw_leaky_relu(t, x, 0.1), rw_relu6(t, x), rw_hardswish(t, x);
    rw_detach(t, x), rw_straight_through(t, x, x), rw_custom_grad(t, x, &x, 1, as_it_is, NULL, 0);
    rw_bce_with_logits(t, x, x, RW_NONE, RW_NONE, RW_REDUCTION_MEAN), rw_kl_div(t, x, x, false, RW_REDUCTION_SUM);
    rw_huber_loss(t, x, x, 1, RW_REDUCTION_NONE), rw_smooth_l1_loss(t, x, x, 1, RW_REDUCTION_NONE);
    rw_einsum(t, "ij->ji", &x, 1);
    rw_nll_loss(t, x, index, RW_NONE, NULL), rw_cumsum(t, x, 0), rw_prod(t, x, RW_AXES(0), false);
    rw_var(t, x, RW_AXES(0), true, false), rw_norm(t, x, 2, RW_AXES(0), false), rw_normalize(t, x, 2, 0, 1e-6);
    rw_cross_entropy_with(t, x, index, RW_NONE, &(rw_cross_entropy_params){ .z_loss = 1 });
    rw_linear_cross_entropy(t, x, x, index, NULL);
    rw_scale(t, x, 2), rw_add_scalar(t, x, 2), rw_pow_scalar(t, x, 2), rw_neg(t, x), rw_abs(t, x);
    rw_exp(t, x), rw_log(t, x);
    rw_sqrt(t, x), rw_tanh(t, x), rw_sigmoid(t, x), rw_relu(t, x), rw_silu(t, x), rw_gelu(t, x), rw_gelu_tanh(t, x);
    rw_matmul(t, x, x), rw_linear(t, x, x, RW_NONE), rw_linear_gelu(t, x, x, v);
    const rw_quantized frozen = { RW_INT8, 2, 2, rw_input(t, RW_I32, RW_SHAPE(3), NULL, 0) };
    rw_linear_quantized(t, x, &frozen, v);
    rw_linear_add(t, x, x, v, x), rw_dropout_add(t, x, x, 0.5f), rw_layernorm(t, x, v, v, 1), rw_rmsnorm(t, x, v, 1);
    rw_mean(t, x, RW_AXES(0), false), rw_max(t, x, RW_AXES(0), false), rw_logsumexp(t, x, RW_AXES(0), false);
    rw_sum_to(t, x, RW_SHAPE(1, 2)), rw_softmax(t, x, 0), rw_log_softmax(t, x, 0), rw_causal_softmax(t, x, 1);
    rw_dropout(t, x, 0.5f), rw_randn(t, RW_F32, RW_SHAPE(2)), rw_rand(t, RW_F32, RW_SHAPE(2));
    rw_moe_routes routes;
    rw_tensor *const chosen = rw_moe_topk(t, x, RW_NONE, &(rw_moe_choice){ .k = 1 });
    rw_moe_route(t, chosen, 2, &routes), rw_moe_select(t, x, chosen), rw_moe_combine(t, x, &routes);
    rw_moe_drop(t, chosen, RW_NONE, &routes, 1);
    rw_moe_linear(t, x, rw_reshape(t, rw_concat(t, (rw_tensor *[]){ x, x }, 2, 0), RW_SHAPE(2, 2, 2)), &routes);
    rw_moe_weigh(t, x, rw_moe_select(t, x, chosen), &routes);
    rw_moe_silu_weigh(t, x, rw_moe_select(t, x, chosen), &routes);
    rw_moe_swiglu_weigh(t, x, x, rw_moe_select(t, x, chosen), &routes);
    rw_moe_balance(t, rw_buffer(rw_tape_context(t), "bias", RW_F32, RW_SHAPE(2)),
                   rw_buffer(rw_tape_context(t), "load", RW_F32, RW_SHAPE(2)), 0.1);
    rw_attention(t, q, q, q, NULL), rw_attention_merge(t, x, v, x, v, NULL);
    rw_rope(t, q, RW_NONE, 10000), rw_rope_with(t, q, RW_NONE, NULL);
    rw_embedding(t, x, index), rw_embedding_with(t, x, index, NULL), rw_cross_entropy(t, x, index);
    rw_mse_loss(t, x, x);
    rw_permute(t, x, axes), rw_transpose(t, x, 0, 1), rw_slice(t, x, 0, 0, 1), rw_broadcast_to(t, v, RW_SHAPE(3, 2));
    rw_contiguous(t, rw_transpose(t, x, 0, 1)), rw_cast(t, x, RW_F64), rw_concat(t, (rw_tensor *[]){ x, x }, 2, 0);
    rw_split(t, x, 0, sizes, 2, part), rw_assign(t, state, x);
    rw_tensor *const truth = rw_eq(t, x, x);
    rw_ne(t, x, x), rw_lt(t, x, x), rw_le(t, x, x), rw_gt(t, x, x), rw_ge(t, x, x), rw_isfinite(t, x);
    rw_logical_not(t, truth), rw_logical_and(t, truth, truth), rw_logical_or(t, truth, truth);
    rw_where(t, truth, x, x), rw_masked_fill(t, x, truth, 1), rw_clamp(t, x, 0, 1), rw_eq_scalar(t, x, 1);
    rw_batchnorm(t, x, v, v, RW_NONE, RW_NONE, NULL), rw_group_norm(t, x, 1, v, v, 1);
    rw_instance_norm(t, q, RW_NONE, RW_NONE, 1);
    rw_conv2d(t, q, q, RW_NONE, NULL), rw_conv_transpose2d(t, q, q, RW_NONE, NULL);
    rw_zeros(t, RW_F32, RW_SHAPE(2)), rw_arange(t, RW_F32, 0, 2, 1), rw_one_hot(t, index, 3, RW_F32);
    rw_select(t, x, 0, 0), rw_unsqueeze(t, x, 0), rw_unfold(t, x, 0, 1, 1), rw_roll(t, x, 1, 0), rw_flip(t, x, 0);
    for (int mode = 0; mode < RW_PAD_MODE_COUNT; mode++) rw_pad(t, x, sizes, 2, (rw_pad_mode)mode, 0);
    rw_argmax(t, x, 0, true), rw_argmin(t, x, 0, true), rw_topk(t, x, 1, 1, part, part + 1);
    rw_gather(t, index, 0, index), rw_scatter_add(t, v, 0, index, v), rw_index_select(t, x, 0, index);
    rw_embedding_bag(t, x, rw_unsqueeze(t, index, 0), RW_BAG_SUM);
    rw_tensor *scale;
    rw_tensor *const codes = rw_quantize(t, x, RW_NONE, NULL, &scale, NULL);
    rw_dequantize(t, codes, scale, RW_SCALING_TENSOR, RW_BF16);
    rw_causal_conv1d(t, rw_unsqueeze(t, x, 0), x, v);
    rw_tensor *const eight = rw_zeros(t, RW_F32, RW_SHAPE(8, 2)), *const six = rw_zeros(t, RW_F32, RW_SHAPE(6, 2));
    const rw_recurrent_weights lstm = { eight, eight, RW_NONE, RW_NONE }, gru = { six, six, RW_NONE, RW_NONE };
    rw_lstm_cell(t, x, x, x, &lstm, NULL), rw_gru_cell(t, x, x, &gru);
    rw_tensor *const places = rw_zeros(t, RW_F32, RW_SHAPE(1, 2, 1, 2));
    rw_ssd_scan(t, &(rw_ssd_operands){ places, rw_select(t, places, 3, 0), rw_zeros(t, RW_F32, RW_SHAPE(1)), places,
                                       places, RW_NONE }, 0, NULL);
    rw_max_pool2d(t, q, &(rw_pool2d_params){ .kernel = { 2, 2 } }), rw_global_avg_pool2d(t, q);
    rw_avg_pool2d(t, q, &(rw_pool2d_params){ .kernel = { 2, 2 } });
}

static bool was_recorded(const rw_context *ctx, const char *name)
{
    for (size_t i = 0; i < ctx->n_ops; i++)
        if (!strcmp(ctx->ops[i]->name, name)) return true;
    return false;
}

/* Whether the function records ops of other names than its own. */
static bool is_composed(const char *name)
{
    static const char *const all[] = {
        "adaptive_avg_pool2d",
        "adaptive_max_pool2d",
        "attention_lse",
        "clamp_tensor",
        "cross_entropy_with",
        "einsum",
        "embedding_bag_with",
        "embedding_with",
        "eq_scalar",
        "full",
        "ge_scalar",
        "global_avg_pool2d",
        "gru",
        "gt_scalar",
        "huber_loss",
        "le_scalar",
        "lstm",
        "lt_scalar",
        "masked_fill",
        "moe_aux_loss",
        "moe_count",
        "moe_linear_of_tokens",
        "moe_router",
        "moe_z_loss",
        "mse_loss_with",
        "ne_scalar",
        "nll_loss",
        "norm",
        "normalize",
        "ones",
        "prod",
        "quantized_create",
        "rope_with",
        "smooth_l1_loss",
        "stack",
        "transpose",
        "unbind",
        "var",
        "zeros",
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, all[i])) return true;
    return false;
}

/* Returns the number of functions in the header whose op must be in the list and on the tape. */
static int check_header(const rw_context *ctx, const char *header)
{
    char path[4096], line[512], name[64];
    snprintf(path, sizeof path, "%s/%s", REWIND_HEADERS, header);
    FILE *const f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    int n = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "#define rw_%63[a-z0-9_](...) rw_", name) != 1 || !strstr(line, "(...)")) continue;
        if (is_composed(name)) continue;
        n++;
        cr_expect(rw_op_is_builtin(name), "rw_%s", name);
        cr_expect(was_recorded(ctx, name), "rw_%s is not called above", name);
    }
    fclose(f);
    return n;
}

/* Both ways: a function of a header whose op is not in the list, and an op on the tape that is not. */
Test(policy, the_list_of_built_in_ops_is_that_of_the_public_headers)
{
    static const char *const headers[] = {
        "attention.h",
        "compare.h",
        "conv.h",
        "create.h",
        "custom_grad.h",
        "einsum.h",
        "gather.h",
        "losses.h",
        "moe.h",
        "norm.h",
        "ops.h",
        "pointwise.h",
        "quantized.h",
        "recurrent.h",
        "reductions.h",
        "select.h",
    };
    struct fixture b = fixture_open(1, 1);
    record_every_op(b.t, rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2, 2)),
                    rw_buffer(b.ctx, "state", RW_F32, RW_SHAPE(2, 2)));
    cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    for (size_t i = 0; i < b.ctx->n_ops; i++)
        cr_expect(rw_op_is_builtin(b.ctx->ops[i]->name), "%s", b.ctx->ops[i]->name);
    int n = 0;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) n += check_header(b.ctx, headers[i]);
    cr_assert_gt(n, 40);
    fixture_close(&b);
}

static rw_status twice_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status twice_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) ((float *)k->out[0].data)[i] = 2 * x[i];
    return RW_OK;
}

static rw_status twice_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_scale(rw_grad_tape(g), rw_grad_upstream(g, 0), 2));
}

HOST_KERNEL_OF(twice_kernel)
static const rw_op_def twice = { .name = "twice", .n_inputs = 1, .n_outputs = 1, .check = twice_check,
                                 .kernel = HOST_KERNEL(twice_kernel), .grad = twice_grad };

static rw_tensor *loss_through(struct fixture *b, bool own)
{
    rw_tensor *p = rw_param_find(b->ctx, "p");
    if (!p) p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(4));
    ckpt_begin(b->t, "r");
    rw_tensor *x = rw_tanh(b->t, rw_exp(b->t, p));
    if (own) x = rw_apply(b->t, &twice, &x, 1, NULL, 0, NULL);
    x = rw_mul(b->t, x, x);
    ckpt_end(b->t);
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

Test(policy, an_unknown_op_is_refused_when_the_step_is_planned)
{
    struct fixture b = fixture_open(1, 1);
    rw_cost cost;
    cr_assert_eq(ckpt_set_policy(b.t, "ops:exp,tahn"), RW_OK, "it may be an op of the caller's that is yet to come");
    rw_tensor *loss = loss_through(&b, false);
    cr_assert_eq(rw_backward(b.t, loss), RW_ERR_POLICY);
    const char *const m = rw_error_message(b.ctx);
    cr_assert(strstr(m, "\"tahn\"") && strstr(m, "column 9"), "%s", m);
    rw_error_clear(b.ctx);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_ERR_POLICY);
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_ERR_POLICY);
    rw_error_clear(b.ctx);
    cr_assert_eq(ckpt_set_policy(b.t, "ops:exp,tanh"), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "nothing is lost: %s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(policy, an_op_that_this_tape_does_not_use_is_fine_and_so_is_one_of_the_callers)
{
    struct fixture b = fixture_open(1, 1);
    cr_assert_eq(ckpt_set_policy(b.t, "ops:attention,tanh"), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss_through(&b, false)), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tape_reset(b.t);
    cr_assert_eq(ckpt_set_policy(b.t, "ops:twice"), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss_through(&b, false)), RW_ERR_POLICY, "not recorded yet");
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    cr_assert_eq(rw_backward(b.t, loss_through(&b, true)), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(policy, the_environment_wins_over_the_program)
{
    setenv("REWIND_POLICY", "uniform:2", 1);
    struct fixture b = fixture_open(1, 1);
    unsetenv("REWIND_POLICY");
    cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
    cr_assert_str_eq(ckpt_policy(b.t), "uniform:2");
    fixture_close(&b);
    setenv("REWIND_POLICY", "nonsense", 1);
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    cr_assert_eq(rw_context_create(&ctx, &(rw_context_params){ .device = test_device() }), RW_OK);
    cr_assert_eq(rw_tape_create(&t, ctx), RW_ERR_POLICY);
    cr_assert_null(t);
    unsetenv("REWIND_POLICY");
    rw_context_destroy(&ctx);
}

/* ---- names that match nothing ---- */

static rw_tensor *named_step(rw_tape *t, rw_tensor *w)
{
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(4, 4));
    ckpt_begin(t, "block");
    x = ckpt_name(t, rw_gelu(t, rw_linear(t, x, w, RW_NONE)), "hidden");
    ckpt_end(t);
    return rw_mean(t, rw_mul(t, x, x), RW_ALL_AXES, false);
}

Test(policy, names_that_match_nothing_are_returned)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4, 4));
    static const struct {
        const char *spec;
        size_t n;
        const char *names[3];
    } cases[] = { { "selective:blcok", 1, { "blcok" } },
                  { "selective:block+discard:norm", 1, { "norm" } },
                  { "names:keep=hidden,hiden;offload=ffn", 2, { "hiden", "ffn" } },
                  { "full+offload:block,blok", 1, { "blok" } },
                  { "megatron:core_attn,layernorm", 2, { "core_attn", "layernorm" } },
                  { "selective:block", 0, { NULL } },
                  { "ops:linear", 0, { NULL } },
                  { "budget:50%", 0, { NULL } } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *names[3] = { NULL };
        cr_assert_eq(ckpt_set_policy(b.t, cases[i].spec), RW_OK);
        named_step(b.t, w);
        cr_expect_eq(ckpt_unmatched_names(b.t, NULL, 0), cases[i].n, "%s", cases[i].spec);
        cr_expect_eq(ckpt_unmatched_names(b.t, names, 3), cases[i].n);
        for (size_t k = 0; k < 3; k++)
            cr_expect(cases[i].names[k] ? names[k] && !strcmp(names[k], cases[i].names[k]) : !names[k], "%s, %zu: %s",
                      cases[i].spec, k, names[k] ? names[k] : "none");
        rw_tape_reset(b.t);
    }
    cr_assert_eq(ckpt_set_policy(b.t, "none"), RW_OK);
    ckpt_policy_begin(b.t, "selective:mlp");
    named_step(b.t, w);
    ckpt_policy_end(b.t);
    const char *name = NULL;
    cr_expect_eq(ckpt_unmatched_names(b.t, &name, 1), 1);
    cr_expect_str_eq(name, "mlp");
    cr_expect_eq(ckpt_unmatched_names(NULL, &name, 1), 0);
    fixture_close(&b);
}

/* A value and its views have one buffer, which has one name for policies: the last. */
Test(policy, the_last_name_of_a_value_or_its_view_applies)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(16, 16));
    static const char *const names[] = { "value", "view" };
    for (int i = 0; i < 4; i++) { /* the view is named last, or the value is; the policy has that name, or the other */
        const bool view_last = i % 2, other = i / 2;
        char policy[32];
        rw_prediction all, kept;
        const char *unmatched = NULL;
        rw_tensor *const x = rw_randn(b.t, RW_F32, RW_SHAPE(16, 16));
        ckpt_begin(b.t, "block");
        rw_tensor *const h = rw_linear(b.t, x, w, RW_NONE), *const v = rw_reshape(b.t, h, RW_SHAPE(256));
        for (int k = 0; k < 2; k++) ckpt_name(b.t, view_last == k ? v : h, names[view_last == k]);
        rw_tensor *const y = rw_linear(b.t, rw_reshape(b.t, rw_gelu(b.t, v), RW_SHAPE(16, 16)), w, RW_NONE);
        ckpt_end(b.t);
        rw_tensor *const loss = rw_sum_all(b.t, rw_mul(b.t, y, y));
        snprintf(policy, sizeof policy, "names:keep=%s", names[view_last != other]);
        cr_assert_eq(rw_tape_plan(b.t, loss, "full", &all), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
        cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &kept), RW_OK);
        cr_expect_eq(kept.cost.replayed_nodes, all.cost.replayed_nodes - !other, "%d", i);
        cr_expect_eq(ckpt_unmatched_names(b.t, &unmatched, 1), other, "%d: %s", i, policy);
        cr_expect_eq(!unmatched, !other);
        cr_assert_eq(ckpt_set_policy(b.t, "none"), RW_OK);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(policy, a_strict_context_refuses_them)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    const rw_context_params params = { .device = test_device(), .strict_policy = true };
    cr_assert_eq(rw_context_create(&ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&t, ctx), RW_OK);
    rw_tensor *const w = rw_param(ctx, "w", RW_F32, RW_SHAPE(4, 4));
    rw_init_constant(w, 0.5);
    cr_assert_eq(ckpt_set_policy(t, "selective:block,blcok"), RW_OK);
    rw_tensor *loss = named_step(t, w);
    cr_expect_gt(rw_item(t, loss), 0, "a number is read all the same: %s", rw_error_message(ctx));
    cr_expect_eq(rw_backward(t, loss), RW_ERR_POLICY);
    cr_expect(strstr(rw_error_message(ctx), "column 17: expected the name of a region, got \"blcok\""), "%s",
              rw_error_message(ctx));
    cr_expect(strstr(rw_error_message(ctx), "there are block"), "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
    cr_assert_eq(ckpt_set_policy(t, "names:keep=hiden"), RW_OK);
    cr_expect_eq(rw_backward(t, loss), RW_ERR_POLICY);
    cr_expect(strstr(rw_error_message(ctx), "expected the name of a value, got \"hiden\""), "%s",
              rw_error_message(ctx));
    rw_error_clear(ctx);
    cr_assert_eq(ckpt_set_policy(t, "selective:block"), RW_OK);
    cr_expect_eq(rw_backward(t, loss), RW_OK, "%s", rw_error_message(ctx));
    rw_prediction p;
    cr_expect_eq(rw_tape_plan(t, loss, "selective:blcok", &p), RW_ERR_POLICY, "a policy that is not the tape's");
    cr_expect(strstr(rw_error_message(ctx), "column 11: expected the name of a region, got \"blcok\""), "%s",
              rw_error_message(ctx));
    rw_error_clear(ctx);
    cr_expect_eq(rw_tape_plan(t, loss, "budget:100%", &p), RW_OK, "%s", rw_error_message(ctx));
    cr_expect_eq(ckpt_verify(t, loss, NULL), RW_OK, "%s", rw_error_message(ctx));
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}

/* A part keeps its own policy under every policy of the tape, so its names are checked under each. */
Test(policy, a_strict_context_refuses_names_of_parts_under_any_policy)
{
    static const char *const specs[] = { "none", "full", "selective:block", "ops:linear", "budget:100%" };
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_prediction p;
    const rw_context_params params = { .device = test_device(), .strict_policy = true };
    cr_assert_eq(rw_context_create(&ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&t, ctx), RW_OK);
    rw_tensor *const w = rw_param(ctx, "w", RW_F32, RW_SHAPE(4, 4));
    rw_init_constant(w, 0.5);
    cr_assert_eq(ckpt_policy_begin(t, "selective:blcok"), RW_OK);
    rw_tensor *const loss = named_step(t, w);
    cr_assert_eq(ckpt_policy_end(t), RW_OK);
    cr_assert_eq(ckpt_set_policy(t, "none"), RW_OK);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        cr_expect_eq(rw_tape_plan(t, loss, specs[i], &p), RW_ERR_POLICY, "%s", specs[i]);
        cr_expect(strstr(rw_error_message(ctx), "policy \"selective:blcok\", column 11"), "%s: %s", specs[i],
                  rw_error_message(ctx));
        rw_error_clear(ctx);
        cr_assert_eq(ckpt_set_policy(t, specs[i]), RW_OK);
        cr_expect_eq(rw_tape_plan(t, loss, NULL, &p), RW_ERR_POLICY, "%s", specs[i]);
        rw_error_clear(ctx);
    }
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}

Test(policy, a_decimal_unit_is_refused_by_the_binary_one)
{
    static const struct {
        const char *spec, *says;
    } cases[] = { { "budget:2GB", "write GiB, which is 2^30 bytes" }, { "total:1.5T", "write TiB, which is 2^40" },
                  { "budget:64mb", "write MiB, which is 2^20 bytes" }, { "budget:7kB", "write KiB, which is 2^10" },
                  { "budget:7parsecs", "got \"parsecs\"" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rw_policy p;
        char message[256];
        cr_expect_eq(rw_policy_parse(cases[i].spec, &p, message, sizeof message), RW_ERR_POLICY);
        cr_expect(strstr(message, cases[i].says), "%s: %s", cases[i].spec, message);
    }
}
