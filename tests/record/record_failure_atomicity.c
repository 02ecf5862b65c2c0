/*
 * Law 9 during recording: whichever allocation fails, and whatever a check refuses, the tape has as many nodes, values,
 * operands and attributes as before, and records the same afterwards.
 */
#include "support/support.h"

#include "base/alloc.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

struct size {
    size_t nodes, values, operands, attrs, tickets, effects, leaves;
    size_t words;
    struct rw_hash hash;
};

static struct size size_of(const rw_tape *t)
{
    struct size s;
    memset(&s, 0, sizeof s);
    s.nodes = t->n_nodes, s.values = t->n_values, s.operands = t->n_operands, s.attrs = t->n_attrs;
    s.tickets = t->n_tickets, s.effects = t->n_effects, s.leaves = t->n_leaves;
    s.words = t->key.n, s.hash = t->key.hash;
    return s;
}

/* Many results, attributes and a ticket. It is not executed. */
static rw_status many_check(rw_op_call *call)
{
    rw_status status = RW_OK;
    if (call->in[0].dtype != RW_F32) return rw_op_error(call, RW_ERR_DTYPE, "f32 only");
    for (int i = 0; i < call->n_outputs && !status; i++) status = rw_op_output_like(call, i, 0);
    return status;
}

static rw_status never_run(const rw_kernel *k)
{
    return RW_ERR_DEVICE;
}

static const rw_op_def many_op = { .name = "many", .n_inputs = 2, .n_outputs = 6, .flags = RW_OP_RANDOM,
                                   .check = many_check,
                                   .kernel = { [RW_DEVICE_CPU] = never_run, [RW_DEVICE_CUDA] = never_run } };

static rw_tensor *record(struct fixture *b, rw_tensor *x)
{
    const int64_t attrs[] = { 1, 2, 3 };
    return rw_apply(b->t, &many_op, (rw_tensor *[]){ x, x }, 2, attrs, sizeof attrs, NULL);
}

/* Records while the n-th allocation from here on fails. False if none did; else everything must be unchanged. */
static bool is_refused(struct fixture *b, rw_tensor *x, rw_tensor *(*call)(struct fixture *b, rw_tensor *x),
                       uint64_t nth)
{
    const struct size before = size_of(b->t);
    const rw_generator_state drawn = rw_generator_get(b->ctx);
    rw_alloc_fail_at(nth);
    rw_tensor *const y = call(b, x);
    rw_alloc_fail_at(0);
    const struct size after = size_of(b->t);
    cr_assert_eq(rw_error_status(b->ctx), y ? RW_OK : RW_ERR_MEMORY, "%s", rw_error_message(b->ctx));
    if (y) return false;
    rw_error_clear(b->ctx);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "%zu nodes and %zu values, were %zu and %zu", after.nodes,
                 after.values, before.nodes, before.values);
    cr_assert_eq(rw_generator_get(b->ctx).offset, drawn.offset, "words were drawn for nothing");
    cr_assert(rw_tape_is_valid(b->t));
    return true;
}

static rw_tensor *attend(struct fixture *b, rw_tensor *x)
{
    return rw_attention(b->t, x, x, x, &(rw_attention_params){ .dropout = 0.5f });
}

/* The second of attention's nodes may be the one without memory; under REWIND_EAGER the first one has been executed by
   then. */
static int refused_attentions(void)
{
    int failures = 0;
    struct fixture b = fixture_open(1, 1);
    for (int64_t length = 3; length < 40; length++) {
        rw_tensor *const x = rw_rand(b.t, RW_F32, RW_SHAPE(1, 2, length, 4));
        cr_assert_not_null(x);
        for (uint64_t nth = 1; is_refused(&b, x, attend, nth); nth++) failures++;
    }
    fixture_close(&b);
    return failures;
}

Test(record_failure_atomicity, a_call_of_several_nodes_leaves_none_of_them)
{
    cr_assert_gt(refused_attentions(), 0);
    setenv("REWIND_EAGER", "1", 1);
    const int eagerly = refused_attentions();
    unsetenv("REWIND_EAGER");
    cr_assert_gt(eagerly, 20);
}

/* Calls with an arbitrary number of parts, for which they allocate memory. */
static rw_tensor *split(struct fixture *b, rw_tensor *x)
{
    const int64_t sizes[] = { 1, 1 };
    rw_tensor *part[2];
    return rw_split(b->t, x, 0, sizes, 2, part) ? NULL : part[0];
}

static rw_tensor *unbind(struct fixture *b, rw_tensor *x)
{
    rw_tensor *part[2];
    return rw_unbind(b->t, x, 0, part, 2) ? NULL : part[0];
}

static rw_tensor *stack(struct fixture *b, rw_tensor *x)
{
    return rw_stack(b->t, (rw_tensor *[]){ x, x }, 2, 0);
}

static rw_tensor *join_images(struct fixture *b, rw_tensor *x)
{
    return rw_concat(b->t, (rw_tensor *[]){ x, x }, 2, 0);
}

static rw_tensor *take_steps(struct fixture *b, rw_tensor *x)
{
    rw_tensor *const w = rw_param_find(b->ctx, "w");
    return rw_gru(b->t, x, RW_NONE, &(rw_recurrent_weights){ w, w, RW_NONE, RW_NONE }, NULL);
}

static void names(struct fixture *b, const char *call)
{
    const char *const text = rw_error_message(b->ctx);
    cr_expect(strstr(text, call) && strstr(text, "record_failure_atomicity.c:"), "%s: \"%s\"", call, text);
    rw_error_clear(b->ctx);
}

/* An op inside of a composite may be the one that refuses. */
Test(record_failure_atomicity, the_message_names_the_call)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = rw_input(b.t, RW_F32, RW_SHAPE(2, 3), NULL, 0), *values = NULL, *places = NULL;
    cr_expect_eq(rw_topk(b.t, x, 1, 9, &values, &places), RW_ERR_SHAPE);
    names(&b, "topk: ");
    cr_expect_null(rw_stack(b.t, NULL, 2, 0));
    names(&b, "stack: ");
    cr_expect_null(rw_stack(b.t, &x, 0, 0));
    names(&b, "stack: ");
    cr_expect_eq(rw_unbind(b.t, x, 0, NULL, 2), RW_ERR_ARGUMENT);
    names(&b, "unbind: ");
    cr_expect_eq(rw_unbind(b.t, x, 0, &values, -2), RW_ERR_ARGUMENT);
    names(&b, "unbind: ");
    cr_expect_eq(rw_tape_nodes(b.t), 0);
    fixture_close(&b);
}

Test(record_failure_atomicity, memory_for_the_parts_of_a_call)
{
    struct fixture b = fixture_open(1, 1);
    rw_param(b.ctx, "w", RW_F32, RW_SHAPE(3, 1));
    rw_tensor *const x = rw_rand(b.t, RW_F32, RW_SHAPE(2, 3, 1));
    rw_tensor *const image = rw_rand(b.t, RW_F32, RW_SHAPE(1, 2, 2, 2));
    rw_tensor *const transposed = rw_permute(b.t, image, (const int[]){ 0, 3, 1, 2 });
    rw_tensor *(*const calls[])(struct fixture *, rw_tensor *) = { split, unbind, stack, join_images, take_steps };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        uint64_t failures = 0;
        while (is_refused(&b, calls[i] == join_images ? transposed : x, calls[i], failures + 1)) failures++;
        cr_expect_gt(failures, 0, "call %zu", i);
    }
    fixture_close(&b);
}

/* Extents beyond the rank of a shape are not part of the program: the tape's hash is the same, and so is the plan. */
Test(record_failure_atomicity, extents_after_the_rank_are_ignored)
{
    struct rw_hash hash[2];
    for (int round = 0; round < 2; round++) {
        struct fixture b = fixture_open(1, 1);
        rw_shape all = RW_SHAPE(2, 3, 4), row = RW_SHAPE(3, 4), flat = RW_SHAPE(24);
        for (int i = 3; i < RW_MAX_RANK; i++) all.dim[i] = row.dim[i] = flat.dim[i] = round * 1000 + i;
        rw_tensor *const x = rw_rand(b.t, RW_F32, all);
        cr_assert_not_null(rw_reshape(b.t, rw_broadcast_to(b.t, rw_sum_to(b.t, x, row), all), flat), "%s",
                           rw_error_message(b.ctx));
        hash[round] = b.t->key.hash;
        fixture_close(&b);
    }
    cr_assert(hash[0].a == hash[1].a && hash[0].b == hash[1].b);
}

Test(record_failure_atomicity, a_failed_allocation_leaves_nothing_recorded)
{
    int failures = 0;
    struct fixture b = fixture_open(1, 1);
    while (b.t->n_values % RW_VALUE_CHUNK != RW_VALUE_CHUNK - 4) rw_rand(b.t, RW_F32, RW_SCALAR);
    for (int64_t length = 3; length < 200; length++) { /* the first one's results are in two chunks */
        rw_tensor *const x = rw_rand(b.t, RW_F32, RW_SHAPE(2, length));
        cr_assert_not_null(x);
        /* a failed try keeps its allocations: the second one from there on fails */
        for (uint64_t nth = 1; is_refused(&b, x, record, nth); nth = 2) failures++;
    }
    cr_assert_gt(failures, 5, "only %d allocations failed", failures);
    fixture_close(&b);
}

Test(record_failure_atomicity, a_refused_call_leaves_nothing_recorded)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_rand(b.t, RW_F32, RW_SHAPE(2, 3)), *const y = rw_rand(b.t, RW_F64, RW_SHAPE(2, 3));
    rw_tensor *const z = rw_rand(b.t, RW_F32, RW_SHAPE(5));
    const struct size before = size_of(b.t);
    const rw_generator_state drawn = rw_generator_get(b.ctx);
    cr_assert_null(rw_add(b.t, x, y));
    cr_assert_null(rw_add(b.t, x, z));
    cr_assert_null(rw_dropout(b.t, x, 1));
    cr_assert_null(rw_matmul(b.t, x, x));
    cr_assert_null(record(&b, y));
    cr_assert_null(rw_reshape(b.t, x, RW_SHAPE(4)));
    cr_assert_neq(rw_error_status(b.ctx), RW_OK);
    rw_error_clear(b.ctx);
    const struct size after = size_of(b.t);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0);
    cr_assert_eq(rw_generator_get(b.ctx).offset, drawn.offset);
    fixture_close(&b);
}

/* ---- sizes returned by a caller's op that overflow ---- */

static int64_t words, places;
static size_t workspace;

static int64_t draws_words(const rw_op_call *call)
{
    return words;
}

static size_t takes_workspace(const rw_op_call *call)
{
    return workspace;
}

static rw_status like_first(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status view_without_strides(rw_op_call *call)
{
    return rw_op_output_view(call, 0, RW_SHAPE(places), NULL, 0);
}

static const rw_op_def draws_op = { .name = "draws", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_RANDOM,
                                    .check = like_first, .draws = draws_words,
                                    .kernel = { [RW_DEVICE_CPU] = never_run, [RW_DEVICE_CUDA] = never_run } };
static const rw_op_def roomy_op = { .name = "roomy", .n_inputs = 1, .n_outputs = 1, .check = like_first,
                                    .workspace = { [RW_DEVICE_CPU] = takes_workspace },
                                    .kernel = { [RW_DEVICE_CPU] = never_run, [RW_DEVICE_CUDA] = never_run } };
static const rw_op_def view_op = { .name = "unstrided", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
                                   .check = view_without_strides };

Test(record_failure_atomicity, a_view_without_strides)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_randn(b.t, RW_F32, RW_SHAPE(4));
    places = 4;
    cr_assert_null(rw_apply(b.t, &view_op, &(rw_tensor *){ x }, 1, NULL, 0, NULL));
    cr_expect_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(b.ctx), "stride is NULL"), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(record_failure_atomicity, more_random_words_than_can_be_counted)
{
    static const int64_t bad[] = { -1, INT64_MIN, INT64_MAX, ((int64_t)1 << 60) + 1 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_randn(b.t, RW_F32, RW_SHAPE(4));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const rw_generator_state before = rw_generator_get(b.ctx);
        words = bad[i];
        cr_assert_null(rw_apply(b.t, &draws_op, &(rw_tensor *){ x }, 1, NULL, 0, NULL));
        cr_expect_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT);
        cr_expect(strstr(rw_error_message(b.ctx), "random words"), "%s", rw_error_message(b.ctx));
        cr_expect_eq(rw_generator_get(b.ctx).offset, before.offset);
        rw_error_clear(b.ctx);
    }
    words = 4;
    cr_expect_not_null(rw_apply(b.t, &draws_op, &(rw_tensor *){ x }, 1, NULL, 0, NULL));
    fixture_close(&b);
}

/* Planned or refused, and never without end. */
Test(record_failure_atomicity, workspaces_that_nothing_can_hold, .timeout = 900)
{
    static const size_t bytes[] = { SIZE_MAX - 1, SIZE_MAX - 255, SIZE_MAX / 2 + 1, SIZE_MAX / 2, (size_t)1 << 62,
                                    ((size_t)1 << 61) + 1, (size_t)1 << 60, (size_t)1 << 38 };
    const rw_context_params params = { .device = RW_DEVICE_CPU, .threads = 1, .plan_only = true };
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    cr_assert_eq(rw_context_create(&ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&t, ctx), RW_OK);
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        rw_prediction p;
        rw_tensor *const x = rw_require_grad(t, rw_randn(t, RW_F32, RW_SHAPE(4)));
        workspace = bytes[i];
        rw_tensor *const y = rw_apply(t, &roomy_op, &(rw_tensor *){ rw_detach(t, x) }, 1, NULL, 0, NULL);
        const rw_status status = rw_tape_plan(t, rw_sum(t, rw_mul(t, x, y), RW_ALL_AXES, false), "none", &p);
        cr_expect_eq(status, bytes[i] > (size_t)1 << 38 ? RW_ERR_MEMORY : RW_OK, "%zu: %s", bytes[i],
                     rw_error_message(ctx));
        cr_expect(!status || strstr(rw_error_message(ctx), bytes[i] > (size_t)1 << 61 ? "roomy" : "arena"), "%s",
                  rw_error_message(ctx));
        cr_expect(status || p.peak_bytes >= bytes[i]);
        rw_error_clear(ctx);
        rw_tape_reset(t);
    }
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}

/* Each sum of rw_memory_stats() stays exact and within 2^60: what would exceed it is refused. */
Test(record_failure_atomicity, sums_of_bytes_do_not_wrap)
{
    const rw_context_params params = { .device = RW_DEVICE_CPU, .threads = 1, .plan_only = true };
    const size_t most = (size_t)1 << 60;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_memory m;
    cr_assert_eq(rw_context_create(&ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&t, ctx), RW_OK);
    for (int i = 0; i < 40; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        rw_param(ctx, name, RW_F64, RW_SHAPE((int64_t)1 << (i % 2 ? 58 : 53)));
        rw_input(t, RW_F64, RW_SHAPE((int64_t)1 << (i % 2 ? 58 : 53)), NULL, 0);
        rw_error_clear(ctx);
    }
    cr_assert_eq(rw_memory_stats(ctx, &m), RW_OK);
    cr_expect(m.parameters == most && m.gradients == most && m.inputs == most, "%zu, %zu, %zu", m.parameters,
              m.gradients, m.inputs);
    cr_expect_not_null(rw_input(t, RW_F32, RW_SHAPE(0), NULL, 0));
    cr_expect_null(rw_input(t, RW_F32, RW_SHAPE(1), NULL, 0));
    cr_expect(strstr(rw_error_message(ctx), "2^60"), "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
    rw_weight_average *a = NULL, *next = NULL;
    rw_optimizer *opt = NULL;
    cr_expect_eq(rw_adamw_create(&opt, ctx, NULL), RW_ERR_MEMORY);
    cr_expect(strstr(rw_error_message(ctx), "2^60"), "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
    cr_expect_eq(rw_weight_average_create(&a, ctx, 0.5), RW_OK, "%s", rw_error_message(ctx));
    cr_expect_eq(rw_weight_average_create(&next, ctx, 0.5), RW_ERR_MEMORY);
    cr_expect(!opt && !next);
    rw_weight_average_destroy(&a);
    rw_memory_stats(ctx, &m);
    cr_expect_eq(m.optimizer, 0);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}

Test(record_failure_atomicity, parameters_that_cannot_be_counted_together)
{
    const rw_context_params params = { .device = RW_DEVICE_CPU, .threads = 1, .plan_only = true };
    rw_context *ctx = NULL;
    cr_assert_eq(rw_context_create(&ctx, &params), RW_OK);
    cr_expect_not_null(rw_param(ctx, "a", RW_F32, RW_SHAPE((int64_t)1 << 57)));
    cr_expect_null(rw_param(ctx, "b", RW_F32, RW_SHAPE((int64_t)1 << 58)));
    cr_expect_eq(rw_error_status(ctx), RW_ERR_MEMORY);
    cr_expect(strstr(rw_error_message(ctx), "2^60"), "%s", rw_error_message(ctx));
    rw_context_destroy(&ctx);
}
