/*
 * Output of ckpt_explain_scaling(): whether each category grows with a size, under the program's names of the sizes;
 * and a policy that holds when it is followed.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 32, ROOM = 1 << 14 };

struct program {
    struct fixture b;
    rw_tensor *w[6];
    rw_tape *larger[2];
};

static struct program program_open(void)
{
    struct program p = { .b = fixture_open(1, 1) };
    for (int i = 0; i < 6; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        p.w[i] = rw_param(p.b.ctx, name, RW_F32, RW_SHAPE(WIDTH, WIDTH));
    }
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_tape_create(&p.larger[i], p.b.ctx), RW_OK);
    return p;
}

static void program_close(struct program *p)
{
    for (int i = 0; i < 2; i++) rw_tape_destroy(&p->larger[i]);
    fixture_close(&p->b);
}

/* Layers that keep [batch, seq, width] and, with attention, [batch, seq, seq]. */
static rw_tensor *record(const struct program *p, rw_tape *t, int batch, int seq, bool attends)
{
    rw_tensor *x = rw_input(t, RW_F32, RW_SHAPE(batch, seq, WIDTH), NULL, 0);
    for (int i = 0; i < 6; i++) {
        ckpt_begin(t, "layer");
        x = rw_tanh(t, rw_linear(t, x, p->w[i], RW_NONE));
        if (attends) x = rw_matmul(t, rw_sigmoid(t, rw_matmul(t, x, rw_transpose(t, x, 1, 2))), x);
        ckpt_end(t);
    }
    return rw_mean(t, rw_mul(t, x, x), RW_ALL_AXES, false);
}

static char *explained(struct program *p, rw_tensor *loss, const rw_scaled_step *grown, size_t n)
{
    static char text[ROOM];
    FILE *const f = tmpfile();
    cr_assert_not_null(f);
    cr_assert_eq(ckpt_explain_scaling(p->b.t, loss, grown, n, f), RW_OK, "%s", rw_error_message(p->b.ctx));
    rewind(f);
    text[fread(text, 1, ROOM - 1, f)] = '\0';
    fclose(f);
    return text;
}

/* Checks the words after the bytes of a line: how it grows. */
static void expect_growth(const char *text, const char *name, const char *first, const char *second)
{
    char key[32], a[16] = "", b[16] = "";
    snprintf(key, sizeof key, "\n  %s ", name);
    const char *const line = strstr(text, key);
    cr_assert_not_null(line, "%s: %s", name, text);
    cr_assert_eq(sscanf(line + strlen(key), " %*s %*s %15s %*s %15s", a, b), 2, "%s: %s", name, text);
    cr_expect_str_eq(a, first, "%s: %s", name, text);
    cr_expect_str_eq(b, second, "%s: %s", name, text);
}

Test(memory_scaling_report, is_told_apart_by_the_sizes_that_the_program_names)
{
    struct program p = program_open();
    rw_tensor *const loss = record(&p, p.b.t, 4, 512, true);
    const rw_scaled_step grown[] = { { p.larger[0], record(&p, p.larger[0], 8, 512, true), "batch", 2 },
                                     { p.larger[1], record(&p, p.larger[1], 4, 2048, true), "sequence", 4 } };
    const char *const text = explained(&p, loss, grown, 2);
    cr_expect(strstr(text, "batch x 2") && strstr(text, "sequence x 4"), "%s", text);
    expect_growth(text, "parameters", "no", "no");
    expect_growth(text, "inputs", "yes", "yes");
    expect_growth(text, "kept for backward", "yes", "squared");
    expect_growth(text, "arena", "yes", "squared");
    program_close(&p);
}

/* Learned positions grow with the length: the larger step belongs to another model, and so to another context. */
Test(memory_scaling_report, counts_parameters_that_grow_with_a_size)
{
    struct program p = program_open(), q = program_open();
    rw_param(p.b.ctx, "positions", RW_F32, RW_SHAPE(64, WIDTH));
    rw_param(q.b.ctx, "positions", RW_F32, RW_SHAPE(512, WIDTH));
    rw_tensor *const loss = record(&p, p.b.t, 2, 64, false);
    const rw_scaled_step grown[] = { { p.larger[0], record(&p, p.larger[0], 4, 64, false), "batch", 2 },
                                     { q.b.t, record(&q, q.b.t, 2, 512, false), "sequence", 8 } };
    const char *const text = explained(&p, loss, grown, 2), *const line = strstr(text, "\n  parameters ");
    size_t now = 0, batch = 0, length = 0;
    cr_assert_not_null(line, "%s", text);
    cr_assert_eq(sscanf(line, " parameters %zu %zu %*s %zu", &now, &batch, &length), 3, "%s", text);
    cr_expect_eq(now, 4 * WIDTH * (6 * WIDTH + 64), "%s", text);
    cr_expect_eq(batch, now, "%s", text);
    cr_expect_eq(length, 4 * WIDTH * (6 * WIDTH + 512), "%s", text);
    program_close(&p);
    program_close(&q);
}

/* It fits with 64 and not with 256. */
Test(memory_scaling_report, names_a_policy_that_holds_when_it_is_followed)
{
    struct program p = program_open(), q = program_open();
    rw_prediction now, then;
    char policy[64];
    double percent;
    rw_tensor *const loss = record(&p, p.b.t, 2, 64, false);
    const rw_scaled_step grown = { p.larger[0], record(&p, p.larger[0], 2, 128, false), "sequence", 2 };
    const char *const text = explained(&p, loss, &grown, 1);
    const char *const said = strstr(text, "\nsequence x 2: fits into the bytes of this step under ");
    cr_assert_not_null(said, "%s", text);
    cr_assert_eq(sscanf(said, " sequence x 2: fits into the bytes of this step under %63[^,], %lf", policy, &percent),
                 2);
    rw_tensor *const larger = record(&q, q.b.t, 2, 128, false);
    cr_assert_eq(rw_tape_plan(q.b.t, larger, NULL, &now), RW_OK);
    cr_assert_eq(rw_tape_plan(q.b.t, larger, policy, &then), RW_OK, "%s", rw_error_message(q.b.ctx));
    cr_expect_leq(then.total_bytes, strtoull(policy + strlen("total:"), NULL, 10));
    cr_expect_lt(then.total_bytes, now.total_bytes);
    cr_expect_float_eq(100 * (then.ms / now.ms - 1), percent, 0.051, "%s", text);
    program_close(&q);
    program_close(&p);
}

Test(memory_scaling_report, names_the_minimum_where_nothing_fits_and_what_fits_anyway)
{
    struct program p = program_open(), q = program_open();
    rw_prediction r;
    char policy[64];
    rw_tensor *const loss = record(&p, p.b.t, 1, 64, true);
    cr_assert_eq(ckpt_set_policy(p.larger[1], "full"), RW_OK);
    const rw_scaled_step grown[] = { { p.larger[0], record(&p, p.larger[0], 1, 1024, true), "sequence", 16 },
                                     { p.larger[1], record(&p, p.larger[1], 1, 80, false), "much of nothing", 1.25 } };
    const char *const text = explained(&p, loss, grown, 2), *const said = strstr(text, "the minimum is ");
    cr_assert_not_null(said, "%s", text);
    cr_expect(strstr(text, "much of nothing x 1.25: takes no more than this step\n"), "%s", text);
    snprintf(policy, sizeof policy, "%.*s", (int)strcspn(said + 15, "\n"), said + 15);
    rw_tensor *const larger = record(&q, q.b.t, 1, 1024, true);
    cr_expect_eq(rw_tape_plan(q.b.t, larger, policy, &r), RW_OK, "%s", rw_error_message(q.b.ctx));
    cr_expect_eq(rw_error_status(p.b.ctx), RW_OK, "an answer is no error");
    program_close(&q);
    program_close(&p);
}

/* "It ran at 64 and runs out at 1024", both under budgets: the report names the size that does not fit, and gives its
   minimum. */
Test(memory_scaling_report, reports_steps_beyond_their_budget_with_the_minimum)
{
    static const char *const policies[] = { "total:1MiB", "budget:256KiB" };
    for (int i = 0; i < 2; i++) {
        struct program p = program_open(), q = program_open();
        rw_prediction r = { 0 };
        char policy[64], said[128];
        cr_assert_eq(ckpt_set_policy(p.b.t, policies[i]), RW_OK);
        for (int k = 0; k < 2; k++) cr_assert_eq(ckpt_set_policy(p.larger[k], policies[i]), RW_OK);
        rw_tensor *const loss = record(&p, p.b.t, 2, 64, true);
        const rw_scaled_step grown[] = { { p.larger[0], record(&p, p.larger[0], 2, 1024, true), "sequence", 16 },
                                         { p.larger[1], record(&p, p.larger[1], 2, 72, true), "a bit", 1.125 } };
        const char *const text = explained(&p, loss, grown, 2);
        snprintf(said, sizeof said, "sequence x 16 does not fit under %s: its column is for the minimum, ",
                 policies[i]);
        cr_assert_eq(strncmp(text, said, strlen(said)), 0, "%s", text);
        cr_assert_eq(sscanf(text + strlen(said), "%63s", policy), 1);
        cr_expect(!strstr(text, "this step does not") && !strstr(text, "a bit x 1.125 does not"), "%s", text);
        expect_growth(text, "parameters", "no", "no");
        cr_assert_eq(rw_tape_plan(q.b.t, record(&q, q.b.t, 2, 1024, true), policy, &r), RW_OK, "%s: %s", policy,
                     rw_error_message(q.b.ctx));
        cr_expect_eq(r.total_bytes, strtoull(policy + strlen("total:"), NULL, 10), "%s", policy);
        cr_expect_eq(r.total_bytes, r.least_bytes, "%s", text);
        program_close(&q);
        program_close(&p);
    }
}

/* Inputs of the larger steps are in the context only because of the report. */
Test(memory_scaling_report, a_total_is_not_spent_on_inputs_of_other_tapes)
{
    struct program p = program_open();
    rw_prediction r = { 0 };
    char policy[64];
    rw_tensor *const loss = record(&p, p.b.t, 2, 64, true);
    cr_assert_eq(rw_tape_plan(p.b.t, loss, "budget:1%", &r), RW_ERR_BUDGET);
    rw_error_clear(p.b.ctx);
    snprintf(policy, sizeof policy, "budget:%zuB", r.least_bytes);
    cr_assert_eq(rw_tape_plan(p.b.t, loss, policy, &r), RW_OK);
    snprintf(policy, sizeof policy, "total:%zuB", r.total_bytes);
    cr_assert_eq(ckpt_set_policy(p.b.t, policy), RW_OK);
    const rw_scaled_step grown = { p.larger[0], record(&p, p.larger[0], 8, 64, true), "batch", 4 };
    cr_expect(!strstr(explained(&p, loss, &grown, 1), "does not fit"));
    cr_assert_eq(ckpt_set_policy(p.b.t, "budget:1B"), RW_OK);
    cr_expect_eq(strncmp(explained(&p, loss, &grown, 1), "this step does not fit under budget:1B: ", 40), 0);
    program_close(&p);
}

/* With a fast store the larger step fits where it did not, and is faster where it did; a slow store is not proposed. */
Test(memory_scaling_report, weighs_values_that_could_be_offloaded)
{
    static const double rates[] = { 0, 1e12, 1e2 };
    for (int i = test_device() == RW_DEVICE_CPU ? 0 : 1; i < 3; i++) { /* another device has a store anyway */
        struct program p = program_open(), q = program_open();
        const rw_offload store = { .out_bytes_per_s = rates[i], .in_bytes_per_s = rates[i] };
        rw_prediction r;
        char policy[64];
        cr_assert_eq(rw_context_set_offload(p.b.ctx, &store), RW_OK);
        cr_assert_eq(rw_context_set_offload(q.b.ctx, &store), RW_OK);
        rw_tensor *const loss = record(&p, p.b.t, 4, 128, false);
        const rw_scaled_step grown = { p.larger[0], record(&p, p.larger[0], 4, 256, false), "sequence", 2 };
        const char *const text = explained(&p, loss, &grown, 1), *const said = strstr(text, "under total:");
        cr_assert_not_null(said, "%s", text);
        cr_assert_eq(sscanf(said, "under %63[^,]", policy), 1);
        cr_expect_eq(strstr(policy, "+offload") != NULL, i == 1, "rate %g: %s", rates[i], text);
        cr_assert_eq(rw_tape_plan(q.b.t, record(&q, q.b.t, 4, 256, false), policy, &r), RW_OK, "%s: %s", policy,
                     rw_error_message(q.b.ctx));
        cr_expect_leq(r.total_bytes, strtoull(policy + strlen("total:"), NULL, 10));
        program_close(&q);
        program_close(&p);
    }
}

#define REFUSED(call, words)                                                                       \
    do {                                                                                           \
        cr_expect_eq((call), RW_ERR_ARGUMENT);                                                     \
        cr_expect(strstr(rw_error_message(p.b.ctx), words), "%s", rw_error_message(p.b.ctx));      \
        rw_error_clear(p.b.ctx);                                                                   \
    } while (0)

Test(memory_scaling_report, mistakes_are_named_and_print_nothing)
{
    struct program p = program_open(), q = program_open();
    FILE *const f = tmpfile();
    cr_assert_not_null(f);
    rw_tensor *const loss = record(&p, p.b.t, 1, 8, false), *const larger = record(&p, p.larger[0], 1, 16, false);
    rw_tensor *const other = record(&q, q.b.t, 1, 16, false);
    const rw_scaled_step good = { p.larger[0], larger, "length", 2 };
    rw_scaled_step bad = good;
    cr_expect_eq(ckpt_explain_scaling(NULL, loss, &good, 1, f), RW_ERR_ARGUMENT);
    REFUSED(ckpt_explain_scaling(p.b.t, NULL, &good, 1, f), "loss");
    REFUSED(ckpt_explain_scaling(p.b.t, loss, NULL, 1, f), "grown");
    REFUSED(ckpt_explain_scaling(p.b.t, loss, &good, 1, NULL), "out");
    REFUSED(ckpt_explain_scaling(p.b.t, loss, &good, 0, f), "(n): expected 1 to 8, got 0");
    REFUSED(ckpt_explain_scaling(p.b.t, loss, &good, CKPT_SCALED_STEPS_MAX + 1, f), "(n): expected 1 to 8, got 9");
    bad.tape = NULL;
    REFUSED(ckpt_explain_scaling(p.b.t, loss, &bad, 1, f), "(grown[0].tape): expected a tape, got NULL");
    bad.tape = p.b.t;
    REFUSED(ckpt_explain_scaling(p.b.t, loss, &bad, 1, f), "expected another tape than t");
    bad = (rw_scaled_step){ q.b.t, loss, "length", 2 };
    REFUSED(ckpt_explain_scaling(p.b.t, loss, &bad, 1, f), "another context");
    cr_expect_eq(rw_error_status(q.b.ctx), RW_OK, "the error is told once");
    cr_assert_null(rw_linear(q.b.t, NULL, NULL, NULL));
    bad = (rw_scaled_step){ q.b.t, other, "length", 2 };
    REFUSED(ckpt_explain_scaling(p.b.t, loss, &bad, 1, f), "expected a context without an error");
    rw_error_clear(q.b.ctx);
    bad = (rw_scaled_step){ p.larger[0], NULL, "length", 2 };
    REFUSED(ckpt_explain_scaling(p.b.t, loss, &bad, 1, f), "(grown[0].loss): expected a tensor, got NULL");
    bad = (rw_scaled_step){ p.larger[0], loss, "length", 2 };
    REFUSED(ckpt_explain_scaling(p.b.t, loss, &bad, 1, f), "ckpt_explain_scaling: grown[0]: loss");
    REFUSED(ckpt_explain_scaling(p.b.t, larger, &good, 1, f), "ckpt_explain_scaling: loss");
    cr_assert_eq(ckpt_set_policy(p.larger[0], "ops:no_such_op"), RW_OK);
    cr_expect_eq(ckpt_explain_scaling(p.b.t, loss, &good, 1, f), RW_ERR_POLICY);
    cr_expect(strstr(rw_error_message(p.b.ctx), "ckpt_explain_scaling: grown[0]: policy \"ops:no_such_op\""), "%s",
              rw_error_message(p.b.ctx));
    rw_error_clear(p.b.ctx);
    cr_assert_eq(ckpt_set_policy(p.larger[0], "none"), RW_OK);
    const char *const names[] = { NULL, "" };
    for (int i = 0; i < 2; i++) {
        bad = (rw_scaled_step){ p.larger[0], larger, names[i], 2 };
        REFUSED(ckpt_explain_scaling(p.b.t, loss, &bad, 1, f), "what): expected a name");
    }
    const double times[] = { 1, 0, -2, NAN, INFINITY };
    for (int i = 0; i < 5; i++) {
        bad = (rw_scaled_step){ p.larger[0], larger, "length", times[i] };
        REFUSED(ckpt_explain_scaling(p.b.t, loss, &bad, 1, f), "times): expected");
    }
    cr_expect_eq(ftell(f), 0);
    cr_expect_eq(ckpt_explain_scaling(p.b.t, loss, &good, 1, f), RW_OK, "%s", rw_error_message(p.b.ctx));
    cr_expect_gt(ftell(f), 0);
    fclose(f);
    program_close(&q);
    program_close(&p);
}
