/*
 * Every allocation of a training step fails once: for each n the n-th one. Each time the call reports RW_ERR_MEMORY (or
 * NULL with that error stuck), nothing is lost - the sanitizer build looks for leaks - and the same step then succeeds
 * and gives the same bytes.
 */
#include "support.h"

#include "memory/alloc.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

struct step {
    rw_context *ctx;
    rw_tape *t;
    rw_adamw *opt;
    struct net net;
};

static rw_status open_step(struct step *s)
{
    rw_status status = rw_context_create(&s->ctx, &(rw_context_params){ .device = test_device(), .seed = 9, .threads = 1 });
    if (status) return status;
    net_init(&s->net, s->ctx, 2, 8, RW_F32, 2);
    if ((status = rw_error_status(s->ctx))) return status;
    if ((status = rw_tape_create(&s->t, s->ctx))) return status;
    if ((status = ckpt_set_policy(s->t, "selective:outer,inner"))) return status;
    return rw_adamw_create(&s->opt, s->ctx, NULL);
}

static rw_status run_step(struct step *s)
{
    rw_zero_grad(s->ctx);
    rw_generator_set(s->ctx, (rw_generator_state){ 9, 5000 });
    rw_tensor *const loss = net_loss(&s->net, s->t, 6, 0);
    if (!loss) return rw_error_status(s->ctx);
    rw_status status = ckpt_verify(s->t, loss, NULL);
    if (!status) status = rw_backward(s->t, loss);
    if (!status) rw_item(s->t, loss);
    return status ? status : rw_error_status(s->ctx);
}

static void close_step(struct step *s)
{
    rw_adamw_destroy(&s->opt);
    rw_tape_destroy(&s->t);
    rw_context_destroy(&s->ctx);
}

/* From nothing: creation may fail anywhere and leaves nothing behind. */
Test(alloc_failure, of_creation)
{
    struct step whole = { 0 };
    const uint64_t before = rw_alloc_count();
    cr_assert_eq(open_step(&whole), RW_OK);
    const uint64_t n = rw_alloc_count() - before;
    close_step(&whole);
    cr_assert_gt(n, 20);
    for (uint64_t i = 1; i <= n; i++) {
        struct step s = { 0 };
        rw_alloc_fail_at(i);
        cr_assert_eq(open_step(&s), RW_ERR_MEMORY, "allocation %llu of %llu", (unsigned long long)i, (unsigned long long)n);
        rw_alloc_fail_at(0);
        close_step(&s);
    }
}

/* In a context that exists: after the failure a reset, and the step gives the bytes it gives anyway. */
Test(alloc_failure, of_a_step)
{
    struct step whole = { 0 };
    size_t bytes;
    cr_assert_eq(open_step(&whole), RW_OK);
    const uint64_t before = rw_alloc_count();
    cr_assert_eq(run_step(&whole), RW_OK, "%s", rw_error_message(whole.ctx));
    const uint64_t n = rw_alloc_count() - before;
    unsigned char *const expected = all_gradients(whole.ctx, &bytes);
    close_step(&whole);
    for (uint64_t i = 1; i <= n; i++) {
        struct step s = { 0 };
        cr_assert_eq(open_step(&s), RW_OK);
        rw_alloc_fail_at(i);
        const rw_status status = run_step(&s);
        rw_alloc_fail_at(0);
        cr_assert_eq(status, RW_ERR_MEMORY, "allocation %llu of %llu: %s, \"%s\"", (unsigned long long)i, (unsigned long long)n,
                     rw_status_name(status), rw_error_message(s.ctx));
        rw_error_clear(s.ctx);
        rw_tape_reset(s.t);
        cr_assert_eq(run_step(&s), RW_OK, "after allocation %llu: %s", (unsigned long long)i, rw_error_message(s.ctx));
        unsigned char *const got = all_gradients(s.ctx, &bytes);
        cr_assert_eq(first_difference(expected, got, bytes), -1, "after allocation %llu", (unsigned long long)i);
        free(got);
        close_step(&s);
    }
    free(expected);
}
