/* The policy language: every form is accepted, and every mistake is refused with its position. */
#include "support/support.h"

#include "base/alloc.h"
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
