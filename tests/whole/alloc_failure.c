/*
 * * Every allocation of a training step fails once: for each n the n-th one. Each time the call reports RW_ERR_MEMORY
 * (or NULL with that error stuck), what was allocated meanwhile is given back, and the same step then succeeds and
 * gives the same bytes. A step is all that a trainer calls: optimizer, record, verify, explain, backward, update,
 * save, load.
 */
#include "support/support.h"

#include "base/alloc.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[32], path[64];
static FILE *explained;

static void open_files(void)
{
    strcpy(dir, "/tmp/rewind-alloc-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/weights", dir);
    cr_assert_not_null(explained = tmpfile());
}

static void close_files(void)
{
    fclose(explained);
    remove(path);
    cr_assert_eq(rmdir(dir), 0, "something was left beside the file");
}

TestSuite(alloc_failure, .init = open_files, .fini = close_files);

struct step {
    rw_context *ctx;
    rw_tape *t;
    struct net net;
    unsigned char *initial; /* parameters */
    size_t bytes;
    rw_prediction prediction;
};

static rw_status create_context(struct step *s)
{
    rw_status status = rw_context_create(&s->ctx,
                                         &(rw_context_params){ .device = test_device(), .seed = 9, .threads = 1 });
    if (status) return status;
    net_init(&s->net, s->ctx, 2, 16, RW_F32, 2); /* products large enough for the library that computes them */
    if ((status = rw_error_status(s->ctx))) return status;
    if ((status = rw_tape_create(&s->t, s->ctx))) return status;
    return ckpt_set_policy(s->t, "selective:outer,inner");
}

static struct step open_step(void)
{
    struct step s = { 0 };
    cr_assert_eq(create_context(&s), RW_OK);
    s.initial = all_parameters(s.ctx, &s.bytes);
    return s;
}

static void close_step(struct step *s)
{
    free(s->initial);
    rw_tape_destroy(&s->t);
    rw_context_destroy(&s->ctx);
}

/* A failed step may have updated them: it begins where the first one began. */
static void set_back(struct step *s)
{
    rw_zero_grad(s->ctx);
    rw_generator_set(s->ctx, (rw_generator_state){ 9, 5000 });
    size_t at = 0;
    for (size_t i = 0; rw_param_get(s->ctx, i); i++) {
        rw_tensor *const p = rw_param_get(s->ctx, i);
        cr_assert_eq(rw_write(p, s->initial + at, rw_tensor_bytes(p)), RW_OK);
        at += rw_tensor_bytes(p);
    }
}

static rw_status explain(struct step *s)
{
    rewind(explained);
    const rw_status status = ckpt_explain(s->t, explained);
    if (status) cr_assert_eq(ftell(explained), 0, "a failed ckpt_explain() has printed");
    return status;
}

static rw_status train(struct step *s, rw_adamw **opt)
{
    rw_status status = rw_adamw_create(opt, s->ctx, &(rw_adamw_params){ .lr = 0.01 });
    if (status) return status;
    rw_tensor *const loss = net_loss(&s->net, s->t, 24, 0);
    if (!loss) return rw_error_status(s->ctx);
    if ((status = ckpt_verify(s->t, loss, NULL))) return status;
    if ((status = rw_tape_plan(s->t, loss, "full", &s->prediction))) return status;
    if ((status = explain(s))) return status;
    if ((status = rw_backward(s->t, loss))) return status;
    rw_item(s->t, loss);
    if ((status = rw_error_status(s->ctx))) return status;
    if ((status = rw_adamw_step(*opt))) return status;
    if ((status = rw_save(s->ctx, path))) return status;
    return rw_load(s->ctx, path);
}

static rw_status run_step(struct step *s)
{
    rw_adamw *opt = NULL;
    set_back(s);
    const rw_status status = train(s, &opt);
    rw_adamw_destroy(&opt);
    return status;
}

/* What a step leaves: gradients, then parameters. */
static unsigned char *result_of(struct step *s)
{
    size_t bytes;
    unsigned char *const g = all_gradients(s->ctx, &bytes), *const p = all_parameters(s->ctx, &bytes);
    unsigned char *const both = malloc(2 * bytes);
    memcpy(both, g, bytes);
    memcpy(both + bytes, p, bytes);
    free(g);
    free(p);
    return both;
}

static void expect_no_part_of_a_file(void)
{
    DIR *const d = opendir(dir);
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) cr_assert(!strstr(e->d_name, ".part"), "%s",
                                                                           e->d_name);
    closedir(d);
}

/*
 * The i-th allocation fails, the step is given up, and then succeeds. live: the count after a reset, or -1 to leave
 * it.
 */
static void fail_then_retry(struct step *s, uint64_t i, uint64_t n, const unsigned char *expected, int64_t live)
{
    rw_alloc_fail_at(i);
    const rw_status status = run_step(s);
    rw_alloc_fail_at(0);
    cr_assert_eq(status, RW_ERR_MEMORY, "allocation %llu of %llu: %s, \"%s\"", (unsigned long long)i,
                 (unsigned long long)n, rw_status_name(status), rw_error_message(s->ctx));
    expect_no_part_of_a_file();
    rw_error_clear(s->ctx);
    rw_tape_reset(s->t);
    if (live >= 0)
        cr_assert_eq(rw_alloc_live(), live, "allocation %llu of %llu: %lld allocations are left", (unsigned long long)i,
                     (unsigned long long)n, (long long)(rw_alloc_live() - live));
    cr_assert_eq(run_step(s), RW_OK, "after allocation %llu: %s", (unsigned long long)i, rw_error_message(s->ctx));
    unsigned char *const got = result_of(s);
    cr_assert_eq(first_difference(expected, got, 2 * s->bytes), -1, "after allocation %llu", (unsigned long long)i);
    free(got);
    rw_tape_reset(s->t);
}

/* From nothing: creation may fail anywhere and leaves nothing behind. */
Test(alloc_failure, of_creation)
{
    struct step whole = { 0 };
    const uint64_t before = rw_alloc_count();
    const int64_t live = rw_alloc_live();
    cr_assert_eq(create_context(&whole), RW_OK);
    const uint64_t n = rw_alloc_count() - before;
    close_step(&whole);
    cr_assert_eq(rw_alloc_live(), live);
    cr_assert_gt(n, 20);
    for (uint64_t i = 1; i <= n; i++) {
        struct step s = { 0 };
        rw_alloc_fail_at(i);
        cr_assert_eq(create_context(&s), RW_ERR_MEMORY, "allocation %llu of %llu", (unsigned long long)i,
                     (unsigned long long)n);
        rw_alloc_fail_at(0);
        close_step(&s);
        cr_assert_eq(rw_alloc_live(), live, "allocation %llu of %llu", (unsigned long long)i, (unsigned long long)n);
    }
}

/* The first step of a context, with everything that is made once: plans, tables, kernels' primitives. */
Test(alloc_failure, of_a_first_step)
{
    struct step whole = open_step();
    const uint64_t before = rw_alloc_count();
    cr_assert_eq(run_step(&whole), RW_OK, "%s", rw_error_message(whole.ctx));
    const uint64_t n = rw_alloc_count() - before;
    unsigned char *const expected = result_of(&whole);
    close_step(&whole);
    const int64_t live = rw_alloc_live();
    cr_assert_gt(n, 200);
    for (uint64_t i = 1; i <= n; i++) {
        struct step s = open_step();
        fail_then_retry(&s, i, n, expected, -1);
        close_step(&s);
        cr_assert_eq(rw_alloc_live(), live, "allocation %llu of %llu", (unsigned long long)i, (unsigned long long)n);
    }
    free(expected);
}

/* In a context that has run the step before, a failure leaves not one allocation more than there was. */
static void fail_later_steps(const char *verify)
{
    setenv("REWIND_VERIFY", verify, 1);
    struct step s = open_step();
    unsetenv("REWIND_VERIFY");
    cr_assert_eq(run_step(&s), RW_OK, "%s", rw_error_message(s.ctx));
    unsigned char *const expected = result_of(&s);
    rw_tape_reset(s.t);
    const int64_t live = rw_alloc_live();
    const uint64_t before = rw_alloc_count();
    cr_assert_eq(run_step(&s), RW_OK);
    const uint64_t n = rw_alloc_count() - before;
    rw_tape_reset(s.t);
    cr_assert_eq(rw_alloc_live(), live, "a step that succeeds leaves nothing either");
    cr_assert_gt(n, 50);
    for (uint64_t i = 1; i <= n; i++) fail_then_retry(&s, i, n, expected, live);
    free(expected);
    close_step(&s);
}

Test(alloc_failure, of_a_later_step)
{
    fail_later_steps("0");
}

Test(alloc_failure, of_a_later_step_that_verifies_itself)
{
    fail_later_steps("1");
    fail_later_steps("digest");
}
