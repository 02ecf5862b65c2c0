/*
 * The error of a step that exceeds its budget is one sentence, for every call and every kind of budget: the requested
 * size, the minimum, and the memory under none. All three are true.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { N = 4001, LINKS = 8 };

/* Every other link is a region; part: a policy of its own for the middle part, or NULL. */
static rw_tensor *chain(struct fixture *b, const char *part)
{
    rw_tensor *x = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(N));
    for (int i = 0; i < LINKS; i++) {
        if (part && i == 2) ckpt_policy_begin(b->t, part);
        ckpt_begin(b->t, "r");
        x = rw_tanh(b->t, rw_mul(b->t, x, x));
        ckpt_end(b->t);
        if (part && i == 5) ckpt_policy_end(b->t);
    }
    return rw_mean(b->t, rw_mul(b->t, x, x), RW_ALL_AXES, false);
}

struct refusal {
    unsigned long long asked, least, none;
    char after[16];
};

/* Parses the numbers of an error message, and checks its wording. */
static struct refusal read_refusal(struct fixture *b, const char *word)
{
    struct refusal r = { 0 };
    char form[200], again[400];
    const char *const message = rw_error_message(b->ctx), *const at = strstr(message, "does not fit into ");
    cr_assert(at, "%s", message);
    snprintf(form, sizeof form, "does not fit into %%llu bytes; the minimum is %s:%%lluB%%15[^;]; "
             "under none it takes %%llu", word);
    if (sscanf(at, form, &r.asked, &r.least, r.after, &r.none) != 4) {
        r.after[0] = '\0';
        snprintf(form, sizeof form, "does not fit into %%llu bytes; the minimum is %s:%%lluB; under "
                 "none it takes %%llu", word);
        cr_assert_eq(sscanf(at, form, &r.asked, &r.least, &r.none), 3, "%s", message);
    }
    snprintf(again, sizeof again, "does not fit into %llu bytes; the minimum is %s:%lluB%s; under "
             "none it takes %llu", r.asked, word, r.least, r.after, r.none);
    cr_assert_str_eq(at, again);
    return r;
}

static struct refusal refused(struct fixture *b, const char *policy, rw_tensor *loss)
{
    char word[16];
    rw_prediction p = { 0 };
    snprintf(word, sizeof word, "%.*s", (int)strcspn(policy, ":"), policy);
    cr_assert_eq(rw_tape_plan(b->t, loss, policy, &p), RW_ERR_BUDGET, "%s", policy);
    const struct refusal r = read_refusal(b, word);
    cr_expect_eq(r.least, p.least_bytes, "%s", policy);
    rw_error_clear(b->ctx);
    return r;
}

Test(budget_errors, have_one_form_for_every_kind_of_budget)
{
    struct fixture b = fixture_open(1, 1);
    const rw_offload o = { .out_bytes_per_s = 1e12, .in_bytes_per_s = 1e12 };
    cr_assert_eq(rw_context_set_offload(b.ctx, &o), RW_OK);
    rw_tensor *const loss = chain(&b, NULL);
    rw_prediction none, least;
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &none), RW_OK, "%s", rw_error_message(b.ctx));
    const struct refusal bytes = refused(&b, "budget:1B", loss), share = refused(&b, "budget:1%", loss),
                         total = refused(&b, "total:1B", loss), moved = refused(&b, "budget:1B+offload", loss);
    cr_expect(bytes.asked == 1 && total.asked == 1 && moved.asked == 1);
    cr_expect_eq(share.asked, none.peak_bytes / 100);
    cr_expect(bytes.none == none.peak_bytes && share.none == bytes.none && moved.none == bytes.none);
    cr_expect_eq(total.none, none.total_bytes);
    cr_expect_eq(total.none - total.least, bytes.none - bytes.least);
    cr_expect_str_eq(moved.after, "+offload");
    char policy[64];
    snprintf(policy, sizeof policy, "total:%lluB", total.least);
    cr_expect_eq(rw_tape_plan(b.t, loss, policy, &least), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(least.total_bytes, total.least);
    fixture_close(&b);
}

Test(budget_errors, of_a_part_have_it_too)
{
    struct fixture b = fixture_open(1, 1), all = fixture_open(1, 1);
    rw_tensor *const loss = chain(&b, "budget:1B");
    rw_prediction p;
    cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &p), RW_ERR_BUDGET);
    const struct refusal r = read_refusal(&b, "budget");
    cr_expect(r.asked == 1 && r.least == p.least_bytes && r.none > r.least);
    char part[64];
    snprintf(part, sizeof part, "budget:%lluB", r.none); /* all of it is kept then */
    rw_tensor *const kept = chain(&all, part);
    cr_assert_eq(rw_tape_plan(all.t, kept, NULL, &p), RW_OK, "%s", rw_error_message(all.ctx));
    cr_expect_eq(p.cost.replayed_nodes, 0);
    fixture_close(&b);
    fixture_close(&all);
}

/* Nothing is executed, and all calls give the same message. */
Test(budget_errors, are_the_same_words_for_every_call)
{
    struct fixture b = fixture_open(1, 1);
    char first[600];
    rw_prediction p;
    rw_graph *g = NULL;
    rw_tensor *loss = chain(&b, NULL);
    ckpt_report report;
    cr_assert_eq(ckpt_set_policy(b.t, "budget:1B"), RW_OK);
    cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &p), RW_ERR_BUDGET);
    snprintf(first, sizeof first, "%s", rw_error_message(b.ctx));
    cr_expect_eq(strncmp(first, "policy \"budget:1B\", column 8: the step ", 39), 0, "%s", first);
    for (int i = 0; i < 5; i++) {
        FILE *const out = tmpfile();
        rw_error_clear(b.ctx);
        const rw_status status = i == 0   ? rw_backward(b.t, loss)
                                 : i == 1 ? rw_forward(b.t, &loss, 1)
                                 : i == 2 ? rw_graph_create(&g, b.t, loss, NULL)
                                 : i == 3 ? ckpt_verify(b.t, loss, &report)
                                          : ckpt_explain(b.t, out);
        cr_expect_eq(status, RW_ERR_BUDGET, "%d: %s", i, rw_error_message(b.ctx));
        cr_expect_str_eq(rw_error_message(b.ctx), first, "%d: %s", i, rw_error_message(b.ctx));
        cr_expect_eq(ftell(out), 0);
        fclose(out);
    }
    cr_expect_null(g);
    fixture_close(&b);
}
