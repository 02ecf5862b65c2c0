/*
 * What ckpt_explain() says: equal blocks once, bytes that sum to what the plan keeps, and advice that holds when it is
 * followed.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 12, N = 1024, VALUE = N * sizeof(float), ROOM = 1 << 16 };

/* Blocks of two squares, `odd` of them of three. */
static rw_tensor *blocks(struct fixture *b, int odd)
{
    rw_tensor *x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(N), NULL));
    for (int l = 0; l < BLOCKS; l++) {
        ckpt_begin(b->t, "block");
        x = counted_square(b->t, counted_square(b->t, x, 0), 1);
        if (l < odd) x = counted_square(b->t, x, 2);
        ckpt_end(b->t);
    }
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

static char *explained(struct fixture *b, unsigned flags, char *text)
{
    FILE *const f = tmpfile();
    cr_assert_not_null(f);
    cr_assert_eq(ckpt_explain_with(b->t, f, flags), RW_OK, "%s", rw_error_message(b->ctx));
    rewind(f);
    text[fread(text, 1, ROOM - 1, f)] = '\0';
    fclose(f);
    return text;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) n++;
    return n;
}

/* Bytes of all lines that are kept, those of a block as often as it is there. */
static size_t sum_of_kept(const char *text)
{
    size_t sum = 0, times = 1, bytes, n;
    char line[512];
    for (const char *at = text; *at && strncmp(at, "kept ", 5); at = strchr(at, '\n') + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (sscanf(line, "  %zu x block, %zu bytes kept", &n, &bytes) == 2) times = n;
        else if (sscanf(line, "    kept %zu", &bytes) == 1 && !strncmp(line, "    ", 4)) sum += times * bytes;
        else if (sscanf(line, "  kept %zu", &bytes) == 1) sum += bytes;
    }
    return sum;
}

Test(explain, equal_blocks_are_shown_once)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    blocks(&b, 0);
    explained(&b, 0, text);
    cr_expect(strstr(text, "x block, "), "%s", text);
    cr_expect_leq(count(text, "counted_square"), 12, "%zu lines: %s", count(text, "counted_square"), text);
    cr_expect_eq(sum_of_kept(text), (2 * BLOCKS - 1) * VALUE, "%zu: %s", sum_of_kept(text), text);
    explained(&b, CKPT_EXPLAIN_ALL, text);
    cr_expect_null(strstr(text, " x block, "), "%s", text);
    cr_expect_geq(count(text, "counted_square"), 2 * BLOCKS - 1, "%s", text);
    cr_expect_eq(sum_of_kept(text), (2 * BLOCKS - 1) * VALUE, "%s", text);
    fixture_close(&b);
}

Test(explain, blocks_that_differ_are_told_apart)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    blocks(&b, 5);
    explained(&b, 0, text);
    cr_expect(strstr(text, "  5 x block, ") && strstr(text, "  6 x block, "), "%s", text);
    cr_expect_eq(sum_of_kept(text), (2 * BLOCKS + 5 - 1) * VALUE, "%s", text);
    fixture_close(&b);
}

/* tanh writes over what it reads; its own result is what is kept, and that once. */
Test(explain, memory_that_was_taken_over_in_place_is_counted_once)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), NULL));
    rw_sum(b.t, rw_tanh(b.t, rw_scale(b.t, x, 2)), RW_ALL_AXES, false);
    explained(&b, 0, text);
    cr_expect(strstr(text, "kept 4096 bytes;"), "%s", text);
    cr_expect_eq(sum_of_kept(text), VALUE, "%zu: %s", sum_of_kept(text), text);
    fixture_close(&b);
}

Test(explain, says_what_fills_memory)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    struct net n;
    rw_adamw *opt = NULL;
    rw_prediction p;
    char line[64];
    net_init(&n, b.ctx, 3, 64, RW_F32, 1);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    rw_tensor *const loss = net_loss(&n, b.t, 8, 0);
    cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &p), RW_OK);
    explained(&b, 0, text);
    snprintf(line, sizeof line, "holds %zu bytes", p.total_bytes);
    cr_expect(strstr(text, line), "%s: %s", line, text);
    cr_expect(strstr(text, "more than half are parameters"), "%s", text);
    const struct {
        const char *name;
        size_t bytes;
    } parts[] = { { "parameters", p.at_peak.parameters }, { "optimizer", p.at_peak.optimizer },
                  { "kept for backward", p.at_peak.kept } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(line, sizeof line, "  %-28s %14zu", parts[i].name, parts[i].bytes);
        cr_expect(!parts[i].bytes || strstr(text, line), "%s: %s", line, text);
    }
    rw_adamw_destroy(&opt);
    fixture_close(&b);
}

/* Each policy that is offered takes as many bytes less as it says, and runs. */
Test(explain, advice_holds_when_it_is_followed)
{
    static char text[ROOM];
    struct fixture b = fixture_open(1, 1);
    rw_prediction now, then;
    rw_tensor *loss = blocks(&b, 0);
    cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &now), RW_OK);
    explained(&b, 0, text);
    const char *at = strstr(text, "what takes less:\n");
    cr_assert_not_null(at, "%s", text);
    int n = 0;
    for (at = strchr(at, '\n') + 1; strncmp(at, "  budget:SIZE", 13); at = strchr(at, '\n') + 1, n++) {
        char policy[64];
        size_t less;
        cr_assert_eq(sscanf(at, " %63s %zu bytes less", policy, &less), 2, "%s", at);
        cr_assert_eq(rw_tape_plan(b.t, loss, policy, &then), RW_OK, "%s", policy);
        cr_expect_eq(then.peak_bytes + less, now.peak_bytes, "%s: %zu and %zu less", policy, then.peak_bytes, less);
        cr_expect_gt(less, 0);
    }
    cr_expect_gt(n, 0);
    cr_expect(strstr(text, "full") || strstr(text, "uniform:2"), "%s", text);
    fixture_close(&b);
}
