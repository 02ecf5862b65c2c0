/*
 * Recompute nodes: an output that its op's rule can compute from another output is computed so if that one exists, and
 * by the op itself if not; with the same bytes, whatever observes the run. An invalid rule is refused when a step is
 * planned.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1024, VALUE = N * sizeof(float), OP = 10, RECOMPUTE = 11, ANOTHER = 12 };

/* z = x^2, y = z^2: outputs 1 and 0. */
enum mode { SOUND, LIES, NONE_THERE, TWO_NODES, OLD, OF_NOBODY, OTHER_SHAPE, DRAWS, A_VIEW, MODES };
struct attrs {
    int64_t mode;
};

static rw_status check(rw_op_call *call)
{
    const rw_status status = rw_op_output_like(call, 0, 0);
    return status ? status : rw_op_output_like(call, 1, 0);
}

static rw_status kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data, *const z = k->out[1].data;
    counted_runs[OP]++;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) z[i] = x[i] * x[i], y[i] = z[i] * z[i];
    return RW_OK;
}

/* dx = 4 dy z x */
static rw_status grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const slope = rw_mul(t, rw_grad_output(g, 1), rw_grad_input(g, 0));
    return rw_grad_set(g, 0, rw_scale(t, rw_mul(t, rw_grad_upstream(g, 0), slope), 4));
}

/* The recompute node of the op's first output, valid or invalid according to the mode. */
static rw_tensor *recompute_node(rw_tape *t, const rw_op_call *call, int i, rw_tensor *const *in, rw_tensor *const *out)
{
    const struct attrs *const a = call->attrs;
    cr_assert_eq(call->n_inputs, 1);
    cr_assert_eq(call->n_outputs, 2);
    if (i != 0) return NULL;
    switch ((enum mode)a->mode) {
    case LIES: return rw_scale(t, out[1], 2);
    case NONE_THERE: return NULL;
    case TWO_NODES: return counted_square(t, rw_scale(t, out[1], 1), RECOMPUTE);
    case OLD: return out[1];
    case OF_NOBODY: return counted_square(t, out[0], RECOMPUTE);
    case OTHER_SHAPE: return rw_sum(t, out[1], RW_ALL_AXES, false);
    case DRAWS: return rw_dropout(t, out[1], 0.5f);
    case A_VIEW: return rw_reshape(t, out[1], RW_SHAPE(N));
    default: return counted_square(t, out[1], RECOMPUTE);
    }
}

HOST_KERNEL_OF(kernel)
static const rw_op_def fourth = { .name = "fourth", .n_inputs = 1, .n_outputs = 2, .check = check, .grad = grad,
                                  .kernel = HOST_KERNEL(kernel), .recompute_output = recompute_node };

/* sum of (x^4)^2, whose square reads y = x^4 in backward. ret_y may be NULL. */
static rw_tensor *record(struct fixture *b, enum mode mode, rw_tensor **ret_x, rw_tensor **ret_y)
{
    const struct attrs a = { mode };
    float two[N];
    for (int i = 0; i < N; i++) two[i] = (float)(1 + i % 3);
    rw_tensor *x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(N), two, sizeof two));
    *ret_x = x;
    ckpt_begin(b->t, "r");
    rw_tensor *const y = rw_apply(b->t, &fourth, &x, 1, &a, sizeof a, NULL);
    rw_tensor *const q = counted_square(b->t, y, ANOTHER);
    ckpt_end(b->t);
    if (ret_y) *ret_y = y;
    return rw_sum(b->t, q, RW_ALL_AXES, false);
}

/* Counts executions of the op and of its recompute node; returns the kept bytes. */
static size_t step(const char *policy, bool drops, enum mode mode, int ops, int recomputed)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x, *y;
    float dx[N];
    rw_memory m;
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const loss = record(&b, mode, &x, &y);
    if (drops) ckpt_recompute(b.t, y);
    counted_clear();
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(counted_runs[OP], ops, "%s: the op ran %d times", policy, counted_runs[OP]);
    cr_expect_eq(counted_runs[RECOMPUTE], recomputed, "%s: the recompute node ran %d times", policy,
                 counted_runs[RECOMPUTE]);
    cr_assert_eq(rw_read(b.t, rw_gradient(x), dx, sizeof dx), RW_OK);
    for (int i = 0; i < N; i++) cr_assert_eq(dx[i], 8 * powf((float)(1 + i % 3), 7));
    rw_memory_stats(b.ctx, &m);
    fixture_close(&b);
    return m.kept;
}

Test(recompute_from_outputs, run_in_place_of_the_op_where_what_they_read_is_there)
{
    const size_t none = step("none", false, SOUND, 1, 0);
    cr_expect_eq(step("none", true, SOUND, 1, 1) + VALUE, none, "z is kept, y made of it");
    cr_expect_eq(step("none", true, NONE_THERE, 2, 0) + 2 * VALUE, none, "the op makes both again");
    cr_expect_eq(step("none", true, TWO_NODES, 2, 0) + 2 * VALUE, none, "one op or none");
    cr_expect_eq(step("full", false, SOUND, 2, 0) + 2 * VALUE, none,
                 "the op computes both, and no recompute node follows");
}

static rw_status watched(const char *verify, enum mode mode, bool asks)
{
    setenv("REWIND_VERIFY", verify, 1);
    struct fixture b = fixture_open(1, 1);
    unsetenv("REWIND_VERIFY");
    rw_tensor *x, *y, *const loss = record(&b, mode, &x, &y);
    ckpt_recompute(b.t, y);
    const rw_status status = asks ? ckpt_verify(b.t, loss, NULL) : rw_backward(b.t, loss);
    rw_error_clear(b.ctx);
    fixture_close(&b);
    return status;
}

Test(recompute_from_outputs, are_looked_at_like_any_replay)
{
    cr_expect_eq(watched("", SOUND, true), RW_OK);
    cr_expect_eq(watched("1", SOUND, false), RW_OK);
    cr_expect_eq(watched("digest", SOUND, false), RW_OK);
    cr_expect_eq(watched("", LIES, true), RW_ERR_MISMATCH, "other bytes than the op's");
    cr_expect_eq(watched("1", LIES, false), RW_ERR_MISMATCH);
    cr_expect_eq(watched("digest", LIES, false), RW_ERR_MISMATCH);
}

Test(recompute_from_outputs, a_rule_that_is_wrong_is_refused_before_anything_runs)
{
    for (enum mode mode = OLD; mode < MODES; mode++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *x, *const loss = record(&b, mode, &x, NULL);
        const size_t nodes = rw_tape_nodes(b.t);
        const rw_generator_state before = rw_generator_get(b.ctx);
        counted_clear();
        cr_expect_eq(rw_backward(b.t, loss), RW_ERR_ARGUMENT, "mode %d", mode);
        cr_expect_not_null(strstr(rw_error_message(b.ctx), " of fourth "), "%s",
                           rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        const rw_generator_state after = rw_generator_get(b.ctx);
        cr_expect_eq(memcmp(&before, &after, sizeof before), 0, "mode %d", mode);
        cr_expect_eq(rw_tape_nodes(b.t), nodes);
        cr_expect_eq(counted_runs[OP], 0);
        fixture_close(&b);
    }
}

/* ---- linear_gelu ---- */

enum { ROWS = 24, IN = 33, OUT = 40 };

/* Whether a library computes the function, from the unrounded product. */
static bool is_fused(rw_dtype dtype, bool tf32)
{
    return test_device() == RW_DEVICE_CUDA && (rw_dtype_size(dtype) == 2 || (tf32 && dtype == RW_F32));
}

/* Gradients of a linear layer with gelu whose activation is kept or dropped. */
static unsigned char *layer(rw_dtype dtype, bool tf32, bool drops, rw_cost *ret_cost, size_t *ret_bytes)
{
    const rw_context_params params = { .device = test_device(), .seed = 3, .threads = 2, .tf32 = tf32 };
    struct fixture b;
    cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    rw_tensor *const w = rw_param(b.ctx, "w", dtype, RW_SHAPE(OUT, IN)), *const v = rw_param(b.ctx, "v", dtype,
                                                                                           RW_SHAPE(OUT));
    rw_tensor *const down = rw_param(b.ctx, "down", dtype, RW_SHAPE(IN, OUT));
    rw_init_normal(w, 0, 0.4), rw_init_normal(v, 0, 0.4), rw_init_normal(down, 0, 0.4);
    rw_tensor *const y = rw_linear_gelu(b.t, rw_randn(b.t, dtype, RW_SHAPE(ROWS, IN)), w, v);
    if (drops) ckpt_recompute(b.t, y);
    rw_tensor *const z = rw_linear(b.t, y, down, RW_NONE);
    rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, z, z), RW_ALL_AXES, false);
    cr_assert_eq(rw_tape_cost(b.t, loss, ret_cost), RW_OK);
    if (drops) cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    unsigned char *const gradients = all_gradients(b.ctx, ret_bytes);
    fixture_close(&b);
    return gradients;
}

Test(recompute_from_outputs, of_linear_gelu_have_the_bytes_of_the_product_s_own_function)
{
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    for (int d = 0; d < 8; d++) {
        rw_cost none, drops;
        size_t bytes;
        unsigned char *const kept = layer(types[d % 4], d >= 4, false, &none, &bytes);
        unsigned char *const made = layer(types[d % 4], d >= 4, true, &drops, &bytes);
        cr_expect_eq(first_difference(kept, made, bytes), -1, "%s", rw_dtype_name(types[d % 4]));
        cr_expect_eq(none.replayed_nodes, 0);
        cr_expect_eq(drops.replayed_nodes, 1);
        const bool by_product = drops.replayed_flops >= 2.0 * ROWS * IN * OUT;
        cr_expect_eq(by_product, is_fused(types[d % 4], d >= 4), "%s", rw_dtype_name(types[d % 4]));
        free(kept), free(made);
    }
}

/* ---- norms by group ---- */

enum { IMAGES = 3, CHANNELS = 12, SIDE = 10, NORM_BATCH = 0, NORM_GROUPS, NORM_INSTANCES, NORMS };

static rw_tensor *norm(rw_tape *t, int which, rw_tensor *x, rw_tensor *w, rw_tensor *bias)
{
    if (which == NORM_BATCH) return rw_batchnorm(t, x, w, bias, RW_NONE, RW_NONE, NULL);
    return which == NORM_GROUPS ? rw_group_norm(t, x, 3, w, bias, 1e-5) : rw_instance_norm(t, x, w, bias, 1e-5);
}

/* The gradients of a norm whose result is kept, or recomputed for its readers. */
static unsigned char *normed(int which, rw_dtype dtype, bool drops, rw_cost *ret_cost, size_t *ret_kept, size_t *ret_n)
{
    struct fixture b = fixture_open(3, 2);
    rw_tensor *const x = rw_param(b.ctx, "x", dtype, RW_SHAPE(IMAGES, SIDE, SIDE, CHANNELS));
    rw_tensor *const w = rw_param(b.ctx, "w", dtype, RW_SHAPE(CHANNELS)), *const bias = rw_param(b.ctx, "b", dtype,
                                                                                              RW_SHAPE(CHANNELS));
    rw_init_normal(x, 2, 3), rw_init_normal(w, 1, 0.2), rw_init_normal(bias, 0, 1);
    rw_tensor *const of = rw_permute(b.t, rw_scale(b.t, x, 0.7), (const int[]){ 0, 3, 1, 2 });
    rw_tensor *const y = norm(b.t, which, of, w, bias);
    if (drops) ckpt_recompute(b.t, y);
    rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
    cr_assert_eq(rw_tape_cost(b.t, loss, ret_cost), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory memory;
    cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
    *ret_kept = memory.kept;
    unsigned char *const gradients = all_gradients(b.ctx, ret_n);
    fixture_close(&b);
    return gradients;
}

Test(recompute_from_outputs, of_norms_read_the_statistics_that_are_kept)
{
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    const size_t numel = IMAGES * CHANNELS * SIDE * SIDE, align = 512;
    for (int i = 0; i < 4 * NORMS; i++) {
        const rw_dtype dtype = types[i % 4];
        const size_t value = (numel * rw_dtype_size(dtype) + align - 1) / align * align;
        rw_cost none, drops;
        size_t kept, less, n;
        unsigned char *const whole = normed(i / 4, dtype, false, &none, &kept, &n);
        unsigned char *const made = normed(i / 4, dtype, true, &drops, &less, &n);
        cr_expect_eq(first_difference(whole, made, n), -1, "norm %d, %s", i / 4, rw_dtype_name(dtype));
        cr_expect_eq(drops.replayed_nodes, 1);
        cr_expect_eq(drops.replayed_flops, 3.0 * (double)numel, "norm %d: it found its statistics again", i / 4);
        cr_expect_eq(kept, less + value, "norm %d, %s: %zu bytes, and %zu", i / 4, rw_dtype_name(dtype), kept, less);
        free(whole), free(made);
    }
}
