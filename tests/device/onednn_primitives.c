/*
 * The table of oneDNN's primitives: how many it keeps, which of them, the memory that they take, and batches with more
 * elements than the library's types can count.
 */
#include "support/support.h"

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"
#include "plan/cache.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static size_t known_primitives(const struct fixture *b)
{
    return rw_onednn_count(((struct rw_cpu *)b->ctx->device_state)->onednn);
}

static void steps_of_shapes(struct fixture *b, int from, int to)
{
    for (int i = from; i < to; i++) {
        cr_assert_eq(run_products(b->ctx, b->t, 1 + 4 * i), RW_OK, "%s", rw_error_message(b->ctx));
        rw_tape_reset(b->t);
    }
}

/* Twelve products per step, of up to four primitives each. oneDNN's own cache, of 1024, is full after 90 steps, and so
   are the table and the plans; the heap after 350. */
Test(onednn_primitives, shapes_without_end_take_memory_with_an_end, .timeout = 120)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory m;
    steps_of_shapes(&b, 0, 350);
    const size_t most = RW_ONEDNN_IDLE + RW_PLAN_CACHE_SIZE * 12 * 4;
    const size_t filled = resident_bytes(), known = known_primitives(&b);
    cr_assert_leq(known, most);
    cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
    cr_assert_geq(m.library, known * 65536);
    cr_assert_leq(m.library, known * 830000);
    steps_of_shapes(&b, 350, 500);
    cr_assert_leq(known_primitives(&b), most);
#ifdef __SANITIZE_ADDRESS__
    (void)filled; /* freed memory stays in the sanitizer's quarantine */
#else
    cr_assert_leq(resident_bytes(), filled + 8 * MIB, "%zu KiB, then %zu KiB", filled / 1024, resident_bytes() / 1024);
#endif
    fixture_close(&b);
}

/* ---- memory of convolutions inside the library ---- */

#define OWN (64 * (int64_t)KIB) /* memory of a plan itself */

struct shape {
    int64_t height, width, channels, filters, kh, kw, groups;
    int stride;
};

/* The additional memory of the process after a plan of the shape, and how much of it is counted. malloc() may return
   freed memory to the system meanwhile: then it is less. */
static void plan_convolution(rw_context *ctx, const struct shape *s, rw_dtype dtype, int wider, int64_t *ret_took,
                             int64_t *ret_counted)
{
    const int64_t before = (int64_t)resident_bytes();
    rw_tape *t = NULL;
    rw_prediction p;
    cr_assert_eq(rw_tape_create(&t, ctx), RW_OK);
    rw_tensor *const x = rw_require_grad(t, rw_randn(t, dtype, RW_SHAPE(1, s->channels, s->height, s->width + wider)));
    rw_tensor *const w = rw_require_grad(t, rw_randn(t, dtype, RW_SHAPE(s->filters, s->channels / s->groups, s->kh,
                                                                        s->kw)));
    const rw_conv2d_params params = { .stride = { 1, s->stride }, .groups = (int)s->groups };
    rw_tensor *const y = rw_mean(t, rw_conv2d(t, x, w, RW_NONE, &params), RW_ALL_AXES, false);
    cr_assert_eq(rw_tape_plan(t, rw_cast(t, y, RW_F32), "none", &p), RW_OK, "%s", rw_error_message(ctx));
    rw_tape_destroy(&t);
    *ret_took += (int64_t)resident_bytes() - before;
    *ret_counted += (int64_t)p.library_bytes;
}

/* Rows of other lengths, which are not in the library's own cache. */
static void plan_several(const struct shape *s, rw_dtype dtype, bool plans_only)
{
    enum { PLANS = 6, OTHER = 20 };
    int64_t took = 0, counted = 0;
    rw_context *ctx = NULL;
    const rw_context_params params = { .device = RW_DEVICE_CPU, .threads = 1, .plan_only = plans_only };
    cr_assert_eq(rw_context_create(&ctx, &params), RW_OK);
    plan_convolution(ctx, s, dtype, plans_only ? OTHER : 0, &took, &counted); /* includes what is created once */
    took = counted = 0;
    for (int n = 1; n <= PLANS; n++) plan_convolution(ctx, s, dtype, n + (plans_only ? OTHER : 0), &took, &counted);
    cr_expect_leq(took, (plans_only ? counted / 8 : counted) + PLANS * OWN,
                  "[%d, %d], kernel [%d, %d], type %d%s: %lld KiB, %lld counted", (int)s->height, (int)s->width,
                  (int)s->kh, (int)s->kw, (int)dtype, plans_only ? ", planned only" : "",
                  (long long)took / 1024, (long long)counted / 1024);
    cr_expect_geq(counted, PLANS * 3 * OWN);
    rw_context_destroy(&ctx);
}

/* oneDNN does not report it. The count is an upper bound, except for a plan's own memory; in a context that only plans
   nothing is created. */
Test(onednn_primitives, what_convolutions_take_in_the_library_is_counted, .timeout = 120)
{
#ifdef __SANITIZE_ADDRESS__
    cr_skip_test("the sanitizer's own memory grows with it");
#endif
    static const struct shape shapes[] = {
        { 14, 14, 64, 64, 3, 3, 1, 1 },    { 56, 56, 32, 32, 3, 3, 1, 2 },   { 16, 300, 16, 16, 3, 3, 1, 1 },
        { 8, 1300, 16, 16, 3, 3, 1, 1 },   { 1, 1500, 16, 16, 1, 7, 1, 1 },  { 1, 700, 16, 16, 1, 15, 1, 1 },
        { 1, 730, 16, 16, 1, 101, 1, 1 },  { 9, 1100, 3, 17, 7, 7, 1, 2 },   { 8, 1200, 32, 32, 3, 3, 32, 1 },
        { 8, 1200, 32, 32, 3, 3, 4, 1 },   { 1, 30000, 16, 16, 1, 3, 1, 1 }, { 2, 30000, 16, 16, 2, 5, 2, 2 },
        { 8, 800, 15, 17, 3, 3, 1, 2 },    { 9, 1200, 15, 17, 3, 5, 1, 3 },  { 8, 600, 512, 16, 3, 3, 1, 1 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        plan_several(&shapes[i], RW_F32, false);
        plan_several(&shapes[i], RW_BF16, false);
        plan_several(&shapes[i], RW_F32, true);
    }
}

static bool has_fast_code(struct rw_onednn *o, int64_t images, enum rw_onednn_conv kind)
{
    const struct rw_conv_signature s = { .n = images, .h = 8, .w = 8, .c = 16, .oh = 8, .ow = 8, .oc = 16, .kh = 3,
                                         .kw = 3, .groups = 1, .stride = { 1, 1 }, .padding = { 1, 1 }, .end = { 1, 1 },
                                         .dilation = { 1, 1 }, .kind = (int32_t)kind };
    struct rw_conv_needs needs;
    cr_assert_eq(rw_onednn_conv_prepare(o, &s, 1, &needs), RW_OK);
    return needs.fast;
}

/* An image here has 2^10 elements. */
Test(onednn_primitives, the_library_is_given_no_more_elements_than_an_int32_holds)
{
    static const enum rw_onednn_conv kinds[] = { RW_ONEDNN_FORWARD, RW_ONEDNN_BACKWARD_DATA,
                                                 RW_ONEDNN_BACKWARD_WEIGHT };
    struct rw_onednn *o = NULL;
    cr_assert_eq(rw_onednn_create(true, &o), RW_OK);
    for (int i = 0; i < 3; i++) {
        cr_expect(has_fast_code(o, (1 << 21) - 1, kinds[i]), "%d", i);
        cr_expect(!has_fast_code(o, 1 << 21, kinds[i]), "%d", i);
    }
    rw_onednn_destroy(&o);
}

/* It computes parts of a larger batch. */
Test(onednn_primitives, a_batch_of_more_elements_than_an_int32_holds_is_planned_in_parts)
{
    rw_prediction p;
    struct fixture b = { 0 };
    const rw_context_params params = { .device = RW_DEVICE_CPU, .threads = 1, .plan_only = true };
    cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    rw_tensor *const x = rw_require_grad(b.t, rw_randn(b.t, RW_F32, RW_SHAPE((int64_t)1 << 22, 16, 8, 8)));
    rw_tensor *const w = rw_randn(b.t, RW_F32, RW_SHAPE(16, 16, 3, 3));
    rw_tensor *const y = rw_conv2d(b.t, x, w, RW_NONE, &(rw_conv2d_params){ .padding = { 1, 1 } });
    cr_assert_eq(rw_tape_plan(b.t, rw_mean(b.t, y, RW_ALL_AXES, false), "none", &p), RW_OK, "%s",
                 rw_error_message(b.ctx));
    cr_expect_gt(p.library_bytes, 0, "computed by loops of our own");
    fixture_close(&b);
}

/* A thread widens one image at a time, however many its unit has: y, and dx. */
Test(onednn_primitives, widened_operands_take_no_more_memory_for_more_images)
{
    size_t workspace[2];
    for (int more = 0; more < 2; more++) {
        struct fixture b = fixture_open(1, 2);
        rw_memory m;
        rw_tensor *const w = rw_randn(b.t, RW_F16, RW_SHAPE(16, 16, 3, 3));
        rw_tensor *const x = rw_require_grad(b.t, rw_randn(b.t, RW_F16, RW_SHAPE(more ? 32 : 8, 16, 12, 12)));
        rw_tensor *const y = rw_conv2d(b.t, x, w, RW_NONE, NULL);
        cr_assert_eq(rw_backward(b.t, rw_mean(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        workspace[more] = m.workspace;
        fixture_close(&b);
    }
    cr_expect(workspace[0] > 0);
    cr_expect_eq(workspace[0], workspace[1], "%zu and %zu bytes", workspace[0], workspace[1]);
}

/* The table forgets what no plan holds, in the order of its last use, and nothing else. */
Test(onednn_primitives, a_suspended_plan_keeps_its_primitives)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *waits = NULL;
    cr_assert_eq(rw_tape_create(&waits, b.ctx), RW_OK);
    rw_tensor *const x = rw_require_grad(waits, rw_input(waits, RW_F32, RW_SHAPE(1001, 64), NULL, 0));
    rw_tensor *const loss = rw_sum(waits, rw_matmul(waits, x, rw_transpose(waits, x, 0, 1)), RW_ALL_AXES, false);
    cr_assert_eq(rw_item(waits, loss), 0.0);
    steps_of_shapes(&b, 0, 100);
    cr_assert_eq(rw_backward(waits, loss), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tape_destroy(&waits);
    fixture_close(&b);
}

/* ---- the library's cached products ---- */

static struct rw_matmul_signature product(int64_t m)
{
    return (struct rw_matmul_signature){ .m = m, .n = 32, .k = 32, .a_row = 32, .a_col = 1, .b_row = 32, .b_col = 1,
                                         .c_row = 32, .dtype = RW_F32 };
}

static bool is_known(struct rw_onednn *o, int64_t m)
{
    const struct rw_matmul_signature s = product(m);
    bool fast;
    size_t scratch;
    return rw_onednn_matmul_find(o, &s, &fast, &scratch) != NULL;
}

/* A fixed number of the products that no plan holds is kept, the most recently used. */
Test(onednn_primitives, the_oldest_product_goes)
{
    struct rw_onednn *o = NULL;
    bool fast;
    size_t scratch;
    cr_assert_eq(rw_onednn_create(false, &o), RW_OK);
    for (int64_t m = 1; m <= RW_ONEDNN_IDLE + 2; m++) {
        const struct rw_matmul_signature s = product(m), first = product(1);
        cr_assert_eq(rw_onednn_matmul_prepare(o, &s, 1, &fast, &scratch), RW_OK);
        cr_assert_eq(rw_onednn_matmul_prepare(o, &first, 1, &fast, &scratch), RW_OK);
    }
    cr_assert_eq(rw_onednn_count(o), RW_ONEDNN_IDLE);
    cr_assert(is_known(o, 1) && !is_known(o, 2) && !is_known(o, 3));
    cr_assert(is_known(o, 4) && is_known(o, RW_ONEDNN_IDLE + 2));
    rw_onednn_destroy(&o);
}
