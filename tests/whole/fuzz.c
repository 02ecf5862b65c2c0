/*
 * Random programs: tapes of random ops, shapes and types, with shared values, views, effects, nested regions, decisions
 * for single values and gradients of gradients, run under random policies and compared with `none`. Everything
 * observable must have the same bytes: losses, values read, gradients, parameters after two optimizer steps, the
 * generator's state, how often an effect happened. The predicted peak must equal the measured one after every run.
 *
 *   REWIND_FUZZ_PROGRAMS   number of programs (300)
 *   REWIND_FUZZ_SEED       the first seed (1)
 *   REWIND_FUZZ_MAX        the largest extent (67): smaller where kernels are slow
 *   REWIND_FUZZ_REPORT     1: prints what was covered
 *
 * A program that fails is shrunk until nothing can be removed, and printed as C for tests/whole/regressions.c.
 * fuzz/program.h defines a program.
 */
#include "whole/fuzz/generate.h"
#include "whole/fuzz/custom_ops.h"
#include "whole/fuzz/shrink.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 50 /* programs per child process */

static uint64_t from_environment(const char *name, uint64_t fallback)
{
    const char *const text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

static int64_t largest_extent(void)
{
    const int64_t most = (int64_t)from_environment("REWIND_FUZZ_MAX", 67);
    return most < 2 ? 2 : most;
}

static struct fz_program *new_program(void)
{
    struct fz_program *const p = calloc(1, sizeof *p);
    cr_assert_not_null(p);
    return p;
}

static void report(const struct fz_coverage *c)
{
    fprintf(
        stderr,
        "%llu programs: %llu replay, %llu finite, %llu with rw_grad, %llu nested, %llu with empty values, %llu on two "
        "tapes, %llu with rw_assign; %llu nodes, %llu replayed\n",
        (unsigned long long)c->programs, (unsigned long long)c->replaying, (unsigned long long)c->finite,
        (unsigned long long)c->with_grad, (unsigned long long)c->nested, (unsigned long long)c->empty,
        (unsigned long long)c->two_tapes, (unsigned long long)c->assigns, (unsigned long long)c->nodes,
        (unsigned long long)c->replayed);
    for (int i = 0; i < fz_ops(); i++)
        fprintf(stderr, "%s %llu%s", fz_op(i)->name, (unsigned long long)c->statements[i],
                i + 1 < fz_ops() ? ", " : "\n");
}

/* A run in which nothing is replayed, or everything is NaN, would prove nothing. */
static void check_coverage(const struct fz_coverage *c)
{
    cr_expect_geq(c->replaying * 100, c->programs * 60, "only %llu of %llu programs replay anything",
                  (unsigned long long)c->replaying, (unsigned long long)c->programs);
    cr_expect_geq(c->finite * 100, c->programs * 98, "only %llu of %llu programs have finite losses",
                  (unsigned long long)c->finite, (unsigned long long)c->programs);
    if (c->programs < 200) return;
    cr_expect_geq(c->with_grad * 100, c->programs * 15);
    cr_expect_geq(c->nested * 100, c->programs * 30);
    cr_expect_geq(c->two_tapes * 100, c->programs * 5);
    for (int i = 0; i < fz_ops(); i++)
        if (!(fz_op(i)->flags & FZ_SESSION) && (fz_host() || !(fz_op(i)->flags & FZ_HOST)))
            cr_expect_geq(c->statements[i] * 20, c->programs, "%s appears %llu times in %llu programs", fz_op(i)->name,
                          (unsigned long long)c->statements[i], (unsigned long long)c->programs);
}

static void fail_with(uint64_t seed)
{
    struct fz_program *const p = new_program();
    fz_generate(p, seed, largest_extent(), fz_host());
    struct fz_verdict v = fz_shrink(p, NULL);
    if (!v.failure) snprintf(v.text, sizeof v.text, "the program alone does not fail: it needs the programs before it");
    char *const text = fz_print(p, &v);
    cr_assert_fail("seed %llu fails; shrunk to %d statements:\n%s", (unsigned long long)seed, fz_size(p), text);
}

Test(fuzz, random_programs_under_random_policies, .timeout = 36000)
{
    const uint64_t count = from_environment("REWIND_FUZZ_PROGRAMS", 300),
                   first = from_environment("REWIND_FUZZ_SEED", 1);
    struct fz_coverage coverage = { 0 };
    for (uint64_t done = 0; done < count; done += BATCH) {
        const uint64_t n = count - done < BATCH ? count - done : BATCH;
        uint64_t seed = 0;
        const struct fz_verdict v = fz_judge_seeds(first + done, n, largest_extent(), &seed, &coverage);
        if (v.failure)
            fprintf(stderr, "seed %llu: %s: %s\n", (unsigned long long)seed, fz_failure_names[v.failure], v.text);
        if (v.failure) fail_with(seed);
    }
    if (from_environment("REWIND_FUZZ_REPORT", 0)) report(&coverage);
    if (count >= BATCH) check_coverage(&coverage);
    fz_look_for_leaks(first, count, largest_extent());
}

/* The shrinker with planted faults: the shrunk program must be small, and fail in the same way. */

static bool has(const struct fz_program *p, const char *op)
{
    for (int i = 0; i < p->n; i++)
        if (!p->s[i].dropped && !strcmp(fz_op(p->s[i].op)->name, op)) return true;
    return false;
}

/* Shrinks the first program that the sabotage makes fail as wanted. */
static void shrinks(struct fz_sabotage sabotage, const char *op, enum fz_failure wanted, int detail, int at_most)
{
    struct fz_program *const p = new_program();
    struct fz_verdict before = { 0 };
    const int64_t most = largest_extent() < 40 ? largest_extent() : 40;
    int programs = 0, size = 0;
    for (uint64_t seed = 1; seed < 3000 && programs < 2; seed++) {
        fz_generate(p, seed, most, fz_host());
        if (p->mode != FZ_PLAIN || !has(p, op) || (size = fz_size(p)) < 30) continue;
        before = fz_judge(p, &sabotage);
        if (before.failure != wanted) continue;
        programs++;
        const struct fz_verdict after = fz_shrink(p, &sabotage), again = fz_judge(p, &sabotage),
                                honest = fz_judge(p, NULL);
        char *const text = fz_print(p, &after);
        cr_assert_eq(after.failure, wanted, "seed %llu: %s", (unsigned long long)seed, fz_failure_names[after.failure]);
        cr_assert(fz_same_failure(&again, &before), "seed %llu: %s", (unsigned long long)seed, again.text);
        cr_assert_eq(honest.failure, FZ_FINE, "without the fault nothing fails: %s", honest.text);
        if (detail) cr_assert_eq(after.detail, detail);
        cr_assert(has(p, op), "%s is gone from\n%s", op, text);
        cr_assert_leq(fz_size(p), at_most, "%d statements became %d:\n%s", size, fz_size(p), text);
        cr_assert(strstr(text, op) && strstr(text, "fixture_open"), "%s", text);
        free(text);
    }
    cr_assert_eq(programs, 2, "no programs that the fault makes fail: %s", before.text);
    free(p);
}

Test(fuzz, a_skewed_ticket_shrinks_to_its_dropout, .timeout = 600)
{
    shrinks((struct fz_sabotage){ .fault = { .kind = RW_FAULT_TICKET, .op = "dropout" } }, "dropout", FZ_GRADIENT, 0,
            8);
}

Test(fuzz, a_corrupted_replay_shrinks_to_its_op, .timeout = 600)
{
    shrinks((struct fz_sabotage){ .fault = { .kind = RW_FAULT_CORRUPT, .op = "sigmoid" } }, "sigmoid", FZ_GRADIENT, 0,
            8);
}

Test(fuzz, an_op_whose_replay_differs_shrinks_to_itself, .timeout = 600)
{
    if (!fz_host()) cr_skip_test("the op's kernel runs on the CPU alone");
    shrinks((struct fz_sabotage){ .plant = FUZZ_LIES }, "fuzz_pair", FZ_GRADIENT, 0, 8);
}

Test(fuzz, a_crash_is_caught_and_shrunk_too, .timeout = 600)
{
    if (!fz_host()) cr_skip_test("the op's kernel runs on the CPU alone");
    shrinks((struct fz_sabotage){ .plant = FUZZ_CRASHES }, "fuzz_pair", FZ_CRASH, SIGKILL, 8);
}

Test(fuzz, a_seed_makes_the_same_program_every_time)
{
    struct fz_program *const a = new_program(), *const b = new_program();
    for (uint64_t seed = 1; seed < 200; seed++) {
        fz_generate(a, seed, 67, true);
        fz_generate(b, seed, 67, true);
        cr_assert(fz_equal(a, b), "seed %llu", (unsigned long long)seed);
        const char *why = "";
        cr_assert(fz_resolve(a, &why), "seed %llu: %s", (unsigned long long)seed, why);
        cr_assert(fz_equal(a, b), "what follows from leaves and words is the same when it is worked out again");
    }
    free(a);
    free(b);
}
