/* The small parts that others stand on: the policy language, digests, the plan cache. */
#include "support.h"

#include "memory/alloc.h"
#include "record/tape.h"
#include "remat/policy.h"
#include "verify/digest.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(policy, every_form_of_the_language)
{
    static const struct {
        const char *spec;
        enum rw_policy_kind kind;
        int64_t n;
        size_t names;
    } good[] = { { "none", RW_POLICY_NONE, 0, 0 },          { "full", RW_POLICY_FULL, 0, 0 },
                 { "selective:a,b c", RW_POLICY_SELECTIVE, 0, 2 }, { "uniform:12", RW_POLICY_UNIFORM, 12, 0 },
                 { "block:3", RW_POLICY_BLOCK, 3, 0 },      { "ops:matmul", RW_POLICY_OPS, 0, 1 },
                 { "names:save=x,y,z", RW_POLICY_NAMES, 0, 3 } };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct rw_policy p;
        char message[256];
        cr_assert_eq(rw_policy_parse(good[i].spec, &p, message, sizeof message), RW_OK, "%s", message);
        cr_assert_eq(p.kind, good[i].kind);
        cr_assert_eq(p.n, good[i].n);
        cr_assert_eq(p.n_names, good[i].names);
        cr_assert_str_eq(p.spec, good[i].spec);
        rw_policy_finish(&p);
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

/* Strings over the language's own letters: read or refused with a column inside the string, and nothing is left over. */
Test(policy, any_string_is_read_or_refused_with_a_column)
{
    static const char *const bits[] = { "none", "full", "selective", "uniform", "block", "ops", "names", "budget", "offload",
                                        ":", ":", ",", ";", "=", "+", "save=", "offload=", "a", "12", "0", " ", "\xff" };
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
        const rw_status status = rw_policy_parse("names:save=x,y,z", &p, message, sizeof message);
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
    struct bench b = bench_open(1, 1);
    unsetenv("REWIND_POLICY");
    cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
    cr_assert_str_eq(ckpt_policy(b.t), "uniform:2");
    bench_close(&b);
    setenv("REWIND_POLICY", "nonsense", 1);
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    cr_assert_eq(rw_context_create(&ctx, &(rw_context_params){ .device = test_device() }), RW_OK);
    cr_assert_eq(rw_tape_create(&t, ctx), RW_ERR_POLICY);
    cr_assert_null(t);
    unsetenv("REWIND_POLICY");
    rw_context_destroy(&ctx);
}

Test(digest, does_not_depend_on_threads_and_sees_every_bit)
{
    const size_t n = ((size_t)3 << 20) + 17;
    unsigned char *const data = malloc(n);
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)(i * 131 >> 3);
    const struct rw_digest d = rw_digest_bytes(data, n, 1);
    for (int threads = 2; threads < 6; threads++) cr_assert(rw_digest_equal(d, rw_digest_bytes(data, n, threads)));
    for (size_t at = 0; at < n; at += n / 37) {
        data[at] ^= 4;
        cr_assert_not(rw_digest_equal(d, rw_digest_bytes(data, n, 2)), "byte %zu", at);
        data[at] ^= 4;
    }
    free(data);
}

/* Structures in turn: each is planned once, however often they alternate. */
Test(cache, one_plan_per_structure)
{
    struct bench b = bench_open(1, 1);
    struct net n;
    net_init(&n, b.ctx, 2, 8, RW_F32, 1);
    for (int step = 0; step < 30; step++) {
        rw_zero_grad(b.ctx);
        cr_assert_eq(ckpt_set_policy(b.t, step % 2 ? "full" : "none"), RW_OK);
        cr_assert_eq(rw_backward(b.t, net_loss(&n, b.t, 4 + step % 3, step)), RW_OK);
        cr_assert(rw_plan_is_valid(b.t, b.ctx->cache.entries[0].plan) || step);
        rw_tape_reset(b.t);
    }
    cr_assert_eq(b.ctx->cache.misses, 6);
    cr_assert_eq(b.ctx->cache.hits, 24);
    bench_close(&b);
}

/* More structures than the cache holds: the oldest make room, nothing leaks and every step is right. */
Test(cache, makes_room)
{
    struct bench b = bench_open(1, 1);
    struct net n;
    net_init(&n, b.ctx, 1, 8, RW_F32, 1);
    ckpt_set_policy(b.t, "full");
    for (int step = 0; step < 3 * RW_PLAN_CACHE_SIZE; step++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const loss = net_loss(&n, b.t, 1 + step % (2 * RW_PLAN_CACHE_SIZE), step);
        rw_item(b.t, loss);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    cr_assert_eq(b.ctx->cache.n, RW_PLAN_CACHE_SIZE);
    bench_close(&b);
}
