/* The common start of suites of costs: a net whose steps were measured, and two files. */
#ifndef REWIND_TESTS_IO_COST_FIXTURE_H
#define REWIND_TESTS_IO_COST_FIXTURE_H

#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[32], path[64], other[64];

static inline void open_files(void)
{
    strcpy(dir, "/tmp/rewind-costs-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/costs", dir);
    snprintf(other, sizeof other, "%s/other", dir);
}

static inline void close_files(void)
{
    remove(path);
    remove(other);
    cr_assert_eq(rmdir(dir), 0, "something was left beside the file");
}

static struct net net;

static inline void steps(struct fixture *b, int n, int tokens)
{
    for (int i = 0; i < n; i++) {
        cr_assert_eq(rw_backward(b->t, net_loss(&net, b->t, tokens, i)), RW_OK, "%s", rw_error_message(b->ctx));
        rw_tape_reset(b->t);
        rw_zero_grad(b->ctx);
    }
}

static inline double predicted_ms(struct fixture *b, const char *policy, int tokens)
{
    rw_prediction p;
    cr_assert_eq(rw_tape_plan(b->t, net_loss(&net, b->t, tokens, 0), policy, &p), RW_OK, "%s",
                 rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return p.ms;
}

static inline struct fixture measured(void)
{
    struct fixture b = fixture_open(1, 1);
    net_init(&net, b.ctx, 3, 32, RW_F32, 1);
    cr_assert_eq(rw_profile_begin(b.ctx), RW_OK);
    steps(&b, 5, 24);
    cr_assert_eq(rw_profile_end(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_gt(rw_costs_count(b.ctx), 10);
    return b;
}

static char *text_of(const char *name, size_t *ret_bytes)
{
    FILE *const f = fopen(name, "rb");
    cr_assert_not_null(f);
    char *const text = malloc(1 << 20);
    *ret_bytes = fread(text, 1, (1 << 20) - 1, f);
    text[*ret_bytes] = '\0';
    fclose(f);
    return text;
}

static inline void write_file(const char *name, const char *text, size_t bytes)
{
    FILE *const f = fopen(name, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}

#endif
