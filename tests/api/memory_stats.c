/* rw_memory_stats(): each number compared with a count by hand. */
#include "support/support.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { N = 1000, BYTES = N * 4, ROUNDED = 4096 }; /* size of a value of N: the next multiple of 256, or of 512 */

static rw_memory stats(const struct fixture *b)
{
    rw_memory m;
    memset(&m, 0xff, sizeof m);
    cr_assert_eq(rw_memory_stats(b->ctx, &m), RW_OK);
    return m;
}

Test(memory_stats, parameters_gradients_and_optimizers)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    cr_assert_eq(stats(&b).parameters, 0);
    rw_param(b.ctx, "w", RW_F32, RW_SHAPE(30, 7));
    rw_param(b.ctx, "h", RW_BF16, RW_SHAPE(50));
    rw_param(b.ctx, "d", RW_F64, RW_SHAPE(11));
    rw_buffer(b.ctx, "state", RW_F64, RW_SHAPE(13));
    cr_assert_eq(stats(&b).parameters, 210 * 4 + 50 * 2 + 11 * 8 + 13 * 8);
    cr_assert_eq(stats(&b).gradients, 210 * 4 + 50 * 4 + 11 * 8);
    cr_assert_eq(stats(&b).optimizer, 0);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    /* two moments, and a master copy of the 16-bit one; on CUDA also the step counts in progress */
    const size_t states = 210 * 8 + 50 * (8 + 4) + 11 * 16;
    cr_assert(stats(&b).optimizer == states || test_device() != RW_DEVICE_CPU);
    cr_assert_geq(stats(&b).optimizer, states);
    rw_optimizer_destroy(&opt);
    cr_assert_eq(stats(&b).optimizer, 0);
    fixture_close(&b);
}

Test(memory_stats, inputs_and_results)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0);
    rw_input(b.t, RW_I32, RW_SHAPE(7), NULL, 0);
    cr_assert_eq(stats(&b).inputs, BYTES + 7 * 4);
    rw_tensor *y[] = { rw_tanh(b.t, x), rw_exp(b.t, x) };
    cr_assert_eq(stats(&b).results, 0);
    cr_assert_eq(rw_eval(b.t, y, 2), RW_OK);
    cr_assert_eq(stats(&b).results, 2 * ROUNDED);
    rw_tape_reset(b.t);
    rw_tensor *const again = rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0);
    rw_tensor *z[] = { rw_tanh(b.t, again), rw_exp(b.t, again), rw_sigmoid(b.t, again) };
    cr_assert_eq(rw_eval(b.t, z, 3), RW_OK);
    cr_assert_eq(stats(&b).results, 3 * ROUNDED, "what the last step used grows");
    rw_tape_destroy(&b.t);
    cr_assert_eq(stats(&b).inputs, 0);
    cr_assert_eq(stats(&b).results, 0);
    cr_assert_eq(stats(&b).tape, 0);
    fixture_close(&b);
}

/* x -> a = x^2 -> b = a^2 -> c = b^2: backward reads b, a and x. */
static rw_memory step(const char *policy)
{
    struct fixture b = fixture_open(1, 1);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0));
    ckpt_begin(b.t, "r");
    rw_tensor *const c = counted_square(b.t, counted_square(b.t, counted_square(b.t, x, 0), 1), 2);
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, c, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    const rw_memory m = stats(&b);
    fixture_close(&b);
    return m;
}

Test(memory_stats, what_is_kept_and_what_is_replayed)
{
    const rw_memory none = step("none"), full = step("full");
    cr_assert_eq(none.kept, 2 * ROUNDED, "a and b, not %zu bytes", none.kept);
    cr_assert_eq(none.replayed, 0);
    cr_assert_eq(full.kept, 0);
    cr_assert_eq(full.replayed, 2 * ROUNDED, "a and b again, not %zu bytes", full.replayed);
    cr_assert_eq(none.host, 0);
    for (int i = 0; i < 2; i++) {
        const rw_memory *const m = i ? &full : &none;
        cr_assert_eq(m->predicted_peak, m->measured_peak);
        cr_assert_geq(m->predicted_peak, m->largest_live);
        cr_assert_geq(m->largest_live, 2 * ROUNDED);
        cr_assert_gt(m->plans, 0);
        cr_assert_gt(m->tape, 0);
    }
}

/* b = a^2 where a = d(sum x^2)/dx: the step's own backward only reads a; the values that rw_grad() read are freed. */
Test(memory_stats, values_kept_after_gradients_that_are_ops)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0)), *a = NULL;
    rw_tensor *const y = counted_square(b.t, counted_square(b.t, rw_tanh(b.t, x), 0), 1);
    cr_assert_eq(rw_grad(b.t, rw_sum(b.t, y, RW_ALL_AXES, false), &x, 1, &a), RW_OK);
    rw_tensor *const c = rw_tanh(b.t, rw_tanh(b.t, rw_tanh(b.t, rw_tanh(b.t, a))));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, c, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    const rw_memory with = stats(&b);
    cr_assert_geq(with.kept, 4 * ROUNDED, "what four tanh read, not %zu bytes", with.kept);
    fixture_close(&b);
}

static char *explained(struct fixture *b, char *text, size_t size)
{
    FILE *const f = tmpfile();
    cr_assert_not_null(f);
    cr_assert_eq(ckpt_explain(b->t, f), RW_OK, "%s", rw_error_message(b->ctx));
    rewind(f);
    text[fread(text, 1, size - 1, f)] = '\0';
    fclose(f);
    return text;
}

Test(memory_stats, explain_warns_of_names_that_no_region_has)
{
    struct fixture b = fixture_open(1, 1);
    char text[4096];
    cr_assert_eq(ckpt_set_policy(b.t, "selective:block,blokc"), RW_OK);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0));
    ckpt_begin(b.t, "block");
    rw_tensor *const y = counted_square(b.t, counted_square(b.t, x, 0), 1);
    ckpt_end(b.t);
    rw_sum(b.t, y, RW_ALL_AXES, false);
    explained(&b, text, sizeof text);
    cr_assert(strstr(text, "warning: no region is called \"blokc\""), "%s", text);
    cr_assert(!strstr(text, "called \"block\""), "%s", text);
    fixture_close(&b);
}

/* Every form of policy that takes names reports a name that no value or region has, and no other. */
Test(memory_stats, explain_warns_of_every_name_that_nothing_has)
{
    static const struct {
        const char *policy, *warning;
    } cases[] = {
        { "selective:r,typo", "no region is called \"typo\", nothing is replayed for it; there are r, inner" },
        { "discard:inner,typo", "no region is called \"typo\", nothing is discarded for it; there are r, inner" },
        { "full+discard:typo", "no region is called \"typo\", nothing is discarded for it; there are r, inner" },
        { "full+offload:typo,r", "no region is called \"typo\", nothing is offloaded for it; there are r, inner" },
        { "megatron:mlp", "no region is called \"mlp\", nothing is replayed for it; there are r, inner" },
        { "names:keep=h,typo", "no value is called \"typo\", nothing is kept for it; there are h" },
        { "names:offload=typo", "no value is called \"typo\", nothing is offloaded for it; there are h" },
        { "names:keep=h;offload=typo", "no value is called \"typo\", nothing is offloaded for it; there are h" },
        { "names:keep=h", NULL }, { "names:keep=h;offload=h", NULL }, { "selective:r,inner+discard:r", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture b = fixture_open(1, 1);
        char text[8192], line[256];
        cr_assert_eq(ckpt_set_policy(b.t, cases[i].policy), RW_OK);
        rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0));
        ckpt_begin(b.t, "r");
        ckpt_begin(b.t, "inner");
        rw_tensor *const y = counted_square(b.t, ckpt_name(b.t, counted_square(b.t, x, 0), "h"), 1);
        ckpt_end(b.t);
        ckpt_end(b.t);
        rw_sum(b.t, y, RW_ALL_AXES, false);
        explained(&b, text, sizeof text);
        snprintf(line, sizeof line, "  warning: %s\n", cases[i].warning ? cases[i].warning : "");
        const char *const said = strstr(text, "warning:");
        cr_expect(cases[i].warning ? said && strstr(text, line) && !strstr(said + 1, "warning:") : !said, "%s: %s",
                  cases[i].policy, text);
        fixture_close(&b);
    }
}

/* A failed write changes nothing of the caller's: neither errno nor the stream's earlier error. */
Test(memory_stats, explain_says_when_it_cannot_be_written)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0));
    rw_tensor *const loss = rw_sum(b.t, counted_square(b.t, x, 0), RW_ALL_AXES, false);
    rw_tape *t;
    cr_assert_eq(rw_tape_create(&t, b.ctx), RW_OK);
    rw_tensor *const larger = rw_require_grad(t, rw_input(t, RW_F32, RW_SHAPE(2 * N), NULL, 0));
    const rw_scaled_step grown = { t, rw_sum(t, counted_square(t, larger, 0), RW_ALL_AXES, false), "batch", 2 };
    for (int buffered = 0; buffered < 2; buffered++) {
        FILE *const full = fopen("/dev/full", "w");
        cr_assert_not_null(full);
        if (!buffered) setvbuf(full, NULL, _IONBF, 0);
        errno = EDOM;
        cr_expect_eq(ckpt_explain(b.t, full), RW_ERR_IO);
        cr_expect_eq(errno, EDOM);
        cr_expect_str_eq(rw_error_message(b.ctx), "ckpt_explain: out cannot be written to: No space left on device");
        rw_error_clear(b.ctx);
        clearerr(full);
        cr_expect_eq(ckpt_explain_scaling(b.t, loss, &grown, 1, full), RW_ERR_IO);
        cr_expect_str_eq(rw_error_message(b.ctx),
                         "ckpt_explain_scaling: out cannot be written to: No space left on device");
        rw_error_clear(b.ctx);
        fclose(full);
    }
    FILE *const reads = fopen("/dev/null", "r"), *const out = fopen("/dev/null", "w");
    cr_assert(reads && out);
    for (int again = 0; again < 2; again++) {
        cr_expect_eq(ckpt_explain(b.t, reads), RW_ERR_IO, "%d", again);
        rw_error_clear(b.ctx);
        cr_expect_eq(rw_plan_print(b.t, loss, "none", reads), RW_ERR_IO, "%d", again);
        cr_expect(strstr(rw_error_message(b.ctx), "Bad file descriptor"), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
    }
    fclose(reads);
    cr_assert(fgetc(out) == EOF && ferror(out));
    cr_expect_eq(ckpt_explain(b.t, out), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), "clearerr()"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect(ferror(out), "the caller's flag");
    clearerr(out);
    cr_expect_eq(ckpt_explain(b.t, out), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(out);
    FILE *const fine = tmpfile();
    cr_assert_not_null(fine);
    cr_expect_eq(ckpt_explain(b.t, fine), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_gt(ftell(fine), 0);
    fclose(fine);
    rw_tape_destroy(&t);
    fixture_close(&b);
}

/* Two roots: values that only the first root's backward reads are in the plan as well. */
Test(memory_stats, explain_shows_the_step_of_several_roots)
{
    struct fixture b = fixture_open(1, 1);
    char text[8192];
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0));
    rw_tensor *y[] = { rw_tanh(b.t, x), rw_sigmoid(b.t, x) };
    cr_assert_eq(rw_forward(b.t, y, 2), RW_OK, "%s", rw_error_message(b.ctx));
    explained(&b, text, sizeof text);
    cr_assert(strstr(text, "3 backward"), "that of tanh, that of sigmoid and their sum: %s", text);
    cr_assert_eq(rw_backward_from(b.t, y, NULL, 2), RW_OK);
    explained(&b, text, sizeof text);
    fixture_close(&b);
}
