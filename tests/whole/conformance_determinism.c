/*
 * Conformance: the result of a node depends only on its inputs, its attributes and its ticket. Items 22 and 25 of the
 * list in conformance_common.h: precision, threads, alignment, the position in the arena, and earlier work.
 */
#include "whole/conformance_common.h"

#include "record/tape.h"
#include "run/run_state.h"

/* 22. A caller's op that records the precision in which it ran and what it read. */
#define RUNS 8
static struct {
    rw_dtype dtype;
    uint64_t bits; /* a digest of its input */
} seen[RUNS];
static int n_seen;

static rw_status probe_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status probe_kernel(const rw_kernel *k)
{
    const size_t bytes = (size_t)k->in[0].layout->numel * rw_dtype_size(k->in[0].dtype);
    uint64_t h = 0;
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const unsigned char *)k->in[0].data)[i]) * 0x100000001b3u;
    if (n_seen < RUNS) {
        seen[n_seen].dtype = k->out[0].dtype;
        seen[n_seen].bits = h;
    }
    n_seen++;
    memcpy(k->out[0].data, k->in[0].data, bytes);
    return RW_OK;
}

static rw_status probe_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_mul(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_grad_output(g, 0)));
}

HOST_KERNEL_OF(probe_kernel)
static const rw_op_def probe = { .name = "probe", .n_inputs = 1, .n_outputs = 1, .check = probe_check,
                                 .kernel = HOST_KERNEL(probe_kernel), .grad = probe_grad };

static rw_dtype inside; /* the precision that the region is recorded in */

static rw_tensor *mixed(struct fixture *b)
{
    rw_tensor *const w = normal(b, "w", RW_F32, RW_SHAPE(64, 64), 0.2), *const x = normal(b, "x", RW_F32,
                                                                                          RW_SHAPE(48, 64), 1);
    ckpt_begin(b->t, "low");
    rw_tensor *h = rw_linear(b->t, rw_cast(b->t, rw_mul(b->t, x, x), inside), rw_cast(b->t, w, inside), RW_NONE);
    h = rw_gelu(b->t, h);
    if (test_device() == RW_DEVICE_CPU) h = rw_apply(b->t, &probe, &h, 1, NULL, 0, NULL);
    h = rw_layernorm(b->t, rw_cast(b->t, rw_mul(b->t, h, h), RW_F32), ramp(b, "gain", 64, 1), RW_NONE, 1e-5f);
    h = rw_mul(b->t, h, h);
    ckpt_end(b->t);
    return rw_mean(b->t, h, RW_ALL_AXES, false);
}

Test(conformance_determinism, bfloat16_is_part_of_the_recorded_op_and_replay_runs_in_it)
{
    inside = RW_F32;
    struct answer other = answer_of(mixed, "none", 2);
    inside = RW_BF16;
    struct answer none = answer_of(mixed, "none", 2);
    cr_assert_neq(first_difference(other.bytes, none.bytes, none.n), -1, "the precision must show");
    n_seen = 0;
    struct answer full = answer_of(mixed, "full", 2);
    expect_same(&none, &full, "full");
    if (test_device() == RW_DEVICE_CPU) {
        cr_assert_eq(n_seen, 2, "forward and replay");
        cr_assert(seen[0].dtype == RW_BF16 && seen[1].dtype == RW_BF16);
        cr_assert_eq(seen[0].bits, seen[1].bits);
    }
    answer_free(&other);
    answer_free(&none);
    answer_free(&full);
}

/* 22. Forward runs; then the context computes in another precision on another tape; then backward replays. */
Test(conformance_determinism, work_in_another_precision_between_forward_and_backward_changes_nothing)
{
    inside = RW_BF16;
    struct answer alone = answer_of(mixed, "none", 2);
    struct fixture b = fixture_open(21, 2);
    size_t bytes;
    ckpt_set_policy(b.t, "full");
    rw_tensor *const loss = mixed(&b);
    rw_item(b.t, loss);
    rw_tape *other = NULL;
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_tape *const mine = b.t;
    static const rw_dtype between[] = { RW_F32, RW_F64 };
    for (int i = 0; i < 2; i++) {
        inside = between[i];
        b.t = other;
        cr_assert_eq(ckpt_verify(other, mixed(&b), NULL), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(other);
    }
    b.t = mine;
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    unsigned char *const g = all_gradients(b.ctx, &bytes);
    cr_assert_eq(first_difference(alone.bytes, g, bytes), -1);
    free(g);
    answer_free(&alone);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

/* 25. A step with every family of kernels in it. */
static rw_dtype dtype;

/* Records a step with every family of kernels. */
static rw_tensor *all_families(struct fixture *b)
{
    enum { S = 33, C = 24, V = 29 };
    rw_tensor *const table = normal(b, "table", dtype, RW_SHAPE(V, C), 1), *const w = normal(b, "w", dtype,
                                                                                             RW_SHAPE(3 * C, C), 0.3);
    rw_tensor *const gain = normal(b, "gain", dtype, RW_SHAPE(C), 1);
    int32_t index[S];
    for (int i = 0; i < S; i++) index[i] = i * 7 % V;
    const int64_t sizes[3] = { C, C, C };
    rw_tensor *part[3], *x = rw_embedding(b->t, table, rw_input(b->t, RW_I32, RW_SHAPE(S), index, sizeof index));
    ckpt_begin(b->t, "block");
    rw_tensor *h = rw_rmsnorm(b->t, rw_layernorm(b->t, x, gain, gain, 1e-5f), gain, 1e-5f);
    cr_assert_eq(rw_split(b->t, rw_linear(b->t, h, w, RW_NONE), -1, sizes, 3, part), RW_OK);
    for (int i = 0; i < 3; i++)
        part[i] = rw_transpose(b->t, rw_reshape(b->t, part[i], RW_SHAPE(1, S, 2, C / 2)), 1, 2);
    h = rw_attention(b->t, rw_rope(b->t, part[0], RW_NONE, 100), part[1], part[2],
                     &(rw_attention_params){ .causal = true, .dropout = 0.1f });
    h = rw_reshape(b->t, rw_transpose(b->t, h, 1, 2), RW_SHAPE(S, C));
    x = rw_add(b->t, x, rw_dropout(b->t, rw_swiglu(b->t, h, rw_gelu_tanh(b->t, x)), 0.2f));
    ckpt_end(b->t);
    ckpt_begin(b->t, "rest");
    x = rw_mul(b->t, x, rw_softmax(b->t, rw_matmul(b->t, x, rw_matmul(b->t, rw_transpose(b->t, x, 0, 1), x)), -1));
    x = rw_concat(b->t, (rw_tensor *[]){ rw_slice(b->t, x, 1, 3, C), rw_exp(b->t, rw_slice(b->t, x, 1, 0, 3)) }, 2, 1);
    x = rw_add(b->t, watch(x), rw_scale(b->t, rw_randn(b->t, dtype, RW_SHAPE(S, C)), 0.1));
    ckpt_end(b->t);
    return rw_cross_entropy(b->t, rw_matmul(b->t, x, rw_transpose(b->t, table, 0, 1)),
                            rw_input(b->t, RW_I32, RW_SHAPE(S), index, sizeof index));
}

static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F64 };

Test(conformance_determinism, masks_and_results_do_not_depend_on_the_number_of_threads)
{
    for (int d = 0; d < 3; d++) {
        dtype = types[d];
        struct answer one = answer_of(all_families, "full", 1);
        for (int threads = 2; threads <= 7; threads++) {
            struct answer a = answer_of(all_families, threads % 2 ? "none" : "full", threads);
            expect_same(&one, &a, rw_dtype_name(dtype));
            answer_free(&a);
        }
        answer_free(&one);
    }
}

static struct rw_arena arena;

/* An arena of the test's own: moved by some bytes from the allocation's start, and filled with a pattern. */
static void give_arena(struct fixture *b, void **memory, size_t bytes, size_t shift, int fill)
{
    const struct rw_device_fns *const device = b->ctx->device;
    *memory = device->alloc(b->ctx->device_state, bytes + shift);
    unsigned char *const dirt = malloc(bytes + shift);
    memset(dirt, fill, bytes + shift);
    cr_assert_eq(device->upload(b->ctx->device_state, *memory, dirt, bytes + shift), RW_OK);
    free(dirt);
    arena = (struct rw_arena){ .data = (char *)*memory + shift, .bytes = bytes };
    rw_pool_of(b->ctx)->arenas.first = &arena;
}

static void take_arena(struct fixture *b, void *memory)
{
    b->ctx->device->free(b->ctx->device_state, memory);
    rw_pool_of(b->ctx)->arenas.first = NULL;
}

Test(conformance_determinism, results_do_not_depend_on_the_address_or_contents_of_the_arena)
{
    static const int fills[] = { 0x00, 0xff, 0x7f, 0x80 }; /* zero, NaN, huge, tiny: in every type */
    for (int d = 0; d < 3; d++) {
        dtype = types[d];
        struct answer plain = answer_of(all_families, "full", 2);
        for (int i = 0; i < 8; i++) {
            struct fixture b = fixture_open(21, 2);
            ckpt_set_policy(b.t, "full");
            void *memory;
            const size_t unit = b.ctx->device->alignment;
            give_arena(&b, &memory, plain.memory.predicted_peak, unit * (size_t)(i * i), fills[i % 4]);
            const void *const data = arena.data;
            struct answer a = step_of(&b, all_families);
            cr_assert_eq(rw_pool_of(b.ctx)->arenas.first, &arena, "it ran somewhere else");
            cr_assert(!arena.next && arena.data == data, "it ran somewhere else");
            expect_same(&plain, &a, rw_dtype_name(dtype));
            answer_free(&a);
            take_arena(&b, memory);
            fixture_close(&b);
        }
        answer_free(&plain);
    }
}

/* The same op on the same elements, which begin at any element of a buffer, so that they are not aligned to any vector
   width. */
#define N 67

/* One op by number, or NULL after the last. */
static rw_tensor *one_op(rw_tape *t, rw_tensor *x, int op)
{
    switch (op) {
    case 0: return rw_exp(t, x);
    case 1: return rw_mul(t, x, x);
    case 2: return rw_gelu(t, x);
    case 3: return rw_sum(t, x, RW_ALL_AXES, false);
    case 4: return rw_softmax(t, x, 0);
    case 5: return rw_dropout(t, x, 0.4f);
    case 6: return rw_cast(t, x, rw_tensor_dtype(x) == RW_F32 ? RW_BF16 : RW_F32);
    case 7: return rw_concat(t, (rw_tensor *[]){ x, x }, 2, 0);
    case 8: return rw_logsumexp(t, x, RW_ALL_AXES, false);
    case 9: return rw_matmul(t, rw_reshape(t, x, RW_SHAPE(1, N)), rw_reshape(t, x, RW_SHAPE(N, 1)));
    case 10: return rw_broadcast_to(t, x, RW_SHAPE(3, N));
    case 11: return rw_tanh(t, rw_sub(t, x, rw_mean(t, x, RW_AXES(0), true)));
    default: return NULL;
    }
}

/* Value and gradient when x begins `before` elements into its parameter. */
static struct answer shifted(int op, int before)
{
    struct answer a = { 0 };
    struct fixture b = fixture_open(5, 2);
    const size_t size = rw_dtype_size(dtype);
    rw_tensor *const base = rw_param(b.ctx, "base", RW_F32, RW_SHAPE(N)), *const p = rw_param(b.ctx, "p", dtype,
                                                                                              RW_SHAPE(N + 32));
    rw_init_normal(base, 0, 1);
    unsigned char value[(N + 32) * 8] = { 0 }, gradient[(N + 32) * 8];
    cr_assert_eq(rw_read(b.t, rw_cast(b.t, base, dtype), value + (size_t)before * size, N * size), RW_OK);
    cr_assert_eq(rw_write(p, value, rw_tensor_bytes(p)), RW_OK);
    rw_tensor *const y = one_op(b.t, rw_slice(b.t, p, 0, before, before + N), op);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    append_tensor(&a, b.t, y);
    const size_t wide = rw_dtype_size(rw_tensor_dtype(rw_gradient(p)));
    cr_assert_eq(rw_read(b.t, rw_gradient(p), gradient, rw_tensor_bytes(rw_gradient(p))), RW_OK);
    append(&a, gradient + (size_t)before * wide, N * wide);
    fixture_close(&b);
    return a;
}

Test(conformance_determinism, masks_and_results_do_not_depend_on_the_alignment_of_their_inputs)
{
    for (int d = 0; d < 3; d++) {
        dtype = types[d];
        for (int op = 0; op < 12; op++) {
            struct answer aligned = shifted(op, 0);
            for (int before = 1; before <= 32; before = before < 18 ? before + 1 : before + 7) {
                struct answer a = shifted(op, before);
                char what[64];
                snprintf(what, sizeof what, "%s, op %d, %d elements in", rw_dtype_name(dtype), op, before);
                expect_same(&aligned, &a, what);
                answer_free(&a);
            }
            answer_free(&aligned);
        }
    }
}

/* 25. Independent of the context's earlier work: other shapes, other types, other policies, more threads, failed
   steps. */
static void some_other_work(struct fixture *b, int what)
{
    const rw_dtype mine = dtype;
    struct answer a;
    switch (what) {
    case 0: /* values of another size, at other offsets of the arena, and random numbers */
        for (int i = 1; i < 4; i++) {
            rw_tensor *const x = rw_dropout(b->t, rw_randn(b->t, RW_F32, RW_SHAPE(100 * i, 77)), 0.3f);
            rw_item(b->t, total(b, rw_softmax(b->t, rw_matmul(b->t, x, rw_transpose(b->t, x, 0, 1)), -1)));
            rw_tape_reset(b->t);
        }
        break;
    case 1: /* the same step, another policy, another number of threads */
        rw_context_set_threads(b->ctx, 5);
        ckpt_set_policy(b->t, "ops:linear");
        a = step_of(b, all_families);
        answer_free(&a);
        rw_context_set_threads(b->ctx, 2);
        break;
    case 2: /* a step that fails */
        cr_assert_neq(rw_backward(b->t, rw_matmul(b->t, all_families(b), all_families(b))), RW_OK);
        rw_error_clear(b->ctx);
        break;
    default: /* verification, and its private gradients */
        cr_assert_eq(ckpt_verify(b->t, all_families(b), NULL), RW_OK, "%s", rw_error_message(b->ctx));
    }
    dtype = mine;
    rw_tape_reset(b->t);
}

Test(conformance_determinism, masks_and_results_do_not_depend_on_what_ran_before)
{
    for (int d = 0; d < 3; d++) {
        dtype = types[d];
        struct fixture b = fixture_open(21, 2);
        rw_tape_reset(b.t);
        all_families(&b); /* creates the parameters */
        rw_tape_reset(b.t);
        const rw_generator_state start = { 77, 123456 };
        rw_generator_set(b.ctx, start);
        struct answer first = step_of(&b, all_families);
        for (int what = 0; what < 4; what++) {
            some_other_work(&b, what);
            rw_generator_set(b.ctx, start);
            ckpt_set_policy(b.t, what % 2 ? "none" : "full");
            struct answer again = step_of(&b, all_families);
            char text[32];
            snprintf(text, sizeof text, "%s after work %d", rw_dtype_name(dtype), what);
            expect_same(&first, &again, text);
            answer_free(&again);
        }
        answer_free(&first);
        fixture_close(&b);
    }
}

/* 25. The same ops after others on the same tape: they have other positions in the arena, in the plan and in every
       table. */
static int recorded_before;

static rw_tensor *after_others(struct fixture *b)
{
    rw_tensor *other = rw_input(b->t, dtype, RW_SHAPE(13, 17), NULL, 0);
    for (int i = 0; i < recorded_before; i++) other = rw_tanh(b->t, rw_add_scalar(b->t, other, 0.1));
    rw_tensor *const loss = all_families(b);
    return recorded_before ? rw_add(b->t, loss,
                                    rw_scale(b->t, rw_cast(b->t, total(b, other), rw_tensor_dtype(loss)), 0)) : loss;
}

Test(conformance_determinism, masks_and_results_do_not_depend_on_what_was_recorded_before)
{
    for (int d = 0; d < 3; d++) {
        dtype = types[d];
        recorded_before = 0;
        struct answer alone = answer_of(after_others, "full", 2);
        for (recorded_before = 1; recorded_before < 40; recorded_before += 9) {
            struct answer a = answer_of(after_others, "full", 2);
            expect_same(&alone, &a, rw_dtype_name(dtype));
            answer_free(&a);
        }
        answer_free(&alone);
    }
}
