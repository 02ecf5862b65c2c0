/*
 * REWIND_EAGER=1 executes each op as it is recorded. A step ends with the same bytes as without, under every policy; a
 * value that the plain mode refuses because an input changed is not computed from old values.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define OK(ctx, call) cr_assert_eq((call), RW_OK, "%s: %s", #call, rw_error_message(ctx))

static struct fixture open_in(bool eager)
{
    if (eager) setenv("REWIND_EAGER", "1", 1);
    const struct fixture b = fixture_open(7, 2);
    unsetenv("REWIND_EAGER");
    return b;
}

/* Three steps of a small network; the bytes of the last gradients, which the caller frees. */
static unsigned char *train(bool eager, const char *policy, size_t *ret_bytes)
{
    struct fixture b = open_in(eager);
    struct net n = { 0 };
    OK(b.ctx, ckpt_set_policy(b.t, policy));
    n.dropout = 0.1f;
    net_init(&n, b.ctx, 4, 32, RW_F32, 1);
    for (int step = 0; step < 3; step++) {
        rw_tape_reset(b.t);
        rw_zero_grad(b.ctx);
        rw_tensor *const loss = net_loss(&n, b.t, 16, step);
        if (step == 1) rw_item(b.t, loss);
        OK(b.ctx, rw_backward(b.t, loss));
    }
    unsigned char *const bytes = all_gradients(b.ctx, ret_bytes);
    fixture_close(&b);
    return bytes;
}

/* Every value is held from its recording on: a budget has nothing to decide, and refuses nothing. */
Test(eager, ends_with_the_same_bytes_under_every_policy)
{
    static const char *const policies[] = { "none", "full", "uniform:2", "budget:80%", "budget:50%", "budget:1MiB" };
    for (int i = 0; i < 6; i++) {
        size_t n[2];
        unsigned char *const plain = train(false, policies[i], &n[0]), *const eager = train(true, policies[i], &n[1]);
        cr_assert_eq(n[0], n[1]);
        cr_expect_eq(first_difference(plain, eager, n[0]), -1, "%s", policies[i]);
        free(plain);
        free(eager);
    }
}

/* A weight, a view of one, or an input is written between two forwards of one tape: the cast recorded by the first one
   is not reused, in either mode. */
Test(eager, a_cast_of_what_was_written_since_is_refused)
{
    static const float one[4] = { 1, 0, 0, 1 }, two[4] = { 2, 2, 2, 2 };
    for (int eager = 0; eager < 2; eager++)
        for (int which = 0; which < 3; which++) {
            struct fixture b = open_in(eager);
            float y[4];
            const rw_recipe recipe = { .kind = RW_RECIPE_BF16 };
            rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2, 2));
            OK(b.ctx, rw_write(w, one, sizeof one));
            OK(b.ctx, rw_recipe_begin(b.t, &recipe));
            rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2, 2), one, sizeof one);
            rw_tensor *const used = which == 1 ? rw_transpose(b.t, w, 0, 1) : w;
            OK(b.ctx, rw_read(b.t, rw_cast(b.t, rw_linear(b.t, x, used, RW_NONE), RW_F32), y, sizeof y));
            if (which == 2) OK(b.ctx, rw_input_write(x, two, sizeof two));
            else OK(b.ctx, rw_write(w, two, sizeof two));
            rw_tensor *const again = rw_cast(b.t, rw_linear(b.t, x, used, RW_NONE), RW_F32);
            const rw_status status = again ? rw_read(b.t, again, y, sizeof y) : rw_error_status(b.ctx);
            cr_expect_eq(status, RW_ERR_MODIFIED, "eager %d, case %d: %s, %g", eager, which, rw_status_name(status),
                         (double)y[0]);
            cr_expect(strstr(rw_error_message(b.ctx), which == 2 ? "input" : "\"w\""), "%s", rw_error_message(b.ctx));
            fixture_close(&b);
        }
}

/* A recipe finds the cast of a view whose average is destroyed: an error, as for everything on that tape. */
Test(eager, a_cast_of_a_destroyed_average_is_refused)
{
    for (int eager = 0; eager < 2; eager++) {
        struct fixture b = open_in(eager);
        rw_weight_average *a = NULL;
        const rw_recipe recipe = { .kind = RW_RECIPE_BF16 };
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(8, 8)),
                         *const q = rw_param(b.ctx, "q", RW_F32, RW_SHAPE(8, 8));
        OK(b.ctx, rw_init_constant(p, 1));
        OK(b.ctx, rw_init_constant(q, 1));
        OK(b.ctx, rw_weight_average_create(&a, b.ctx, 0.9));
        OK(b.ctx, rw_recipe_begin(b.t, &recipe));
        rw_tensor *const v = rw_transpose(b.t, rw_weight_average_of(a, p), 0, 1);
        cr_assert_not_null(rw_matmul(b.t, v, q));
        rw_weight_average_destroy(&a);
        cr_expect_null(rw_matmul(b.t, v, q));
        cr_expect_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT, "%s", rw_error_message(b.ctx));
        fixture_close(&b);
    }
}
