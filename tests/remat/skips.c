/*
 * Budgets on graphs with skip connections of any length: values that forward reads far from their nodes, and that
 * backward reads twice, before and after the peak.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64, DEEPEST = 100 };

/* The shape of a U-Net, one op per level: the value of level i of the contracting path is read at level i of the
   expanding path. */
static rw_tensor *unet(struct fixture *b, int depth)
{
    rw_tensor *v[DEEPEST + 1] = { rw_param(b->ctx, "x", RW_F32, RW_SHAPE(N, N)) };
    rw_init_uniform(v[0], -1, 1);
    for (int i = 1; i <= depth; i++) v[i] = rw_silu(b->t, v[i - 1]);
    rw_tensor *x = v[depth];
    for (int i = depth - 1; i > 0; i--) x = rw_mul(b->t, x, v[i]);
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

static size_t least_of(struct fixture *b, rw_tensor *loss)
{
    rw_prediction p = { 0 };
    cr_assert_eq(rw_tape_plan(b->t, loss, "budget:1B", &p), RW_ERR_BUDGET);
    rw_error_clear(b->ctx);
    return p.least_bytes;
}

/* The gradients that are live until the contracting path's backward take half. */
Test(skips, have_plans_down_to_six_tenths_of_none)
{
    for (int depth = 6; depth <= DEEPEST; depth += 1 + depth / 8) {
        struct fixture b = fixture_open(1, 1);
        rw_prediction none;
        rw_tensor *const loss = unet(&b, depth);
        cr_assert_eq(rw_tape_plan(b.t, loss, "none", &none), RW_OK);
        const size_t least = least_of(&b, loss);
        cr_expect_leq((double)least, 0.6 * (double)none.peak_bytes, "depth %d: %.3f of none", depth,
                      (double)least / (double)none.peak_bytes);
        fixture_close(&b);
    }
}

/* Less budget gives no faster step, and each step is within its bytes. */
Test(skips, are_monotone_in_the_budget)
{
    struct fixture b = fixture_open(1, 1);
    rw_prediction none, p;
    rw_tensor *const loss = unet(&b, 40);
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &none), RW_OK);
    double before = 0;
    for (int percent = 100; percent >= 60; percent -= 2) {
        char policy[32];
        snprintf(policy, sizeof policy, "budget:%d%%", percent);
        cr_assert_eq(rw_tape_plan(b.t, loss, policy, &p), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
        cr_expect_geq(p.ms, before, "%s", policy);
        cr_expect_leq(p.peak_bytes * 100, none.peak_bytes * (size_t)percent, "%s", policy);
        before = p.ms;
    }
    fixture_close(&b);
}

static unsigned char *gradients_under(const char *policy, int depth, size_t *bytes)
{
    struct fixture b = fixture_open(7, 2);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    cr_assert_eq(rw_backward(b.t, unet(&b, depth)), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
    unsigned char *const g = all_gradients(b.ctx, bytes);
    fixture_close(&b);
    return g;
}

Test(skips, gradients_are_the_bytes_of_none)
{
    static const int depths[] = { 13, 40, DEEPEST };
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        size_t n, m;
        unsigned char *const none = gradients_under("none", depths[i], &n);
        for (int percent = 90; percent >= 60; percent -= 10) {
            char policy[32];
            snprintf(policy, sizeof policy, "budget:%d%%", percent);
            unsigned char *const some = gradients_under(policy, depths[i], &m);
            cr_expect(m == n && !memcmp(some, none, n), "depth %d, %s", depths[i], policy);
            free(some);
        }
        free(none);
    }
}
