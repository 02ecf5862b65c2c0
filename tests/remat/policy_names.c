/* Names in policies, of ops, regions and values: which ones are known, which ones match nothing, and what a strict
   context refuses. */
#include "support/support.h"

#include "ops/common/pass_ops.h"
#include "record/policy.h"
#include "record/tape.h"
#include "support/op_run.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rw_status as_it_is(rw_grad_call *g, const void *data)
{
    (void)data;
    return rw_grad_set(g, 1, rw_grad_upstream(g, 0));
}

/* Calls every function of the headers of ops that has no case once. x: f32 [2, 2]; state: a buffer of that shape. */
static void record_every_op(rw_tape *t, rw_tensor *x, rw_tensor *state)
{
    const int axes[2] = { 1, 0 };
    const int64_t sizes[2] = { 1, 1 };
    rw_tensor *part[2];
    rw_tensor *const v = rw_sum(t, x, RW_AXES(0), false), *const q = rw_reshape(t, x, RW_SHAPE(1, 1, 2, 2));
    rw_tensor *const index = rw_input(t, RW_I32, RW_SHAPE(2), NULL, 0);
    rw_pow(t, x, x), rw_sign(t, x);
    rw_detach(t, x), rw_straight_through(t, x, x), rw_custom_grad(t, x, &x, 1, as_it_is, NULL, 0);
    rw_bce_with_logits(t, x, x, RW_NONE, RW_NONE, RW_REDUCTION_MEAN), rw_kl_div(t, x, x, false, RW_REDUCTION_SUM);
    rw_huber_loss(t, x, x, 1, RW_REDUCTION_NONE), rw_smooth_l1_loss(t, x, x, 1, RW_REDUCTION_NONE);
    rw_einsum(t, "ij->ji", &x, 1);
    rw_nll_loss(t, x, index, RW_NONE, NULL), rw_prod(t, x, RW_AXES(0), false);
    rw_var(t, x, RW_AXES(0), true, false), rw_norm(t, x, 2, RW_AXES(0), false), rw_normalize(t, x, 2, 0, 1e-6);
    rw_cross_entropy_with(t, x, index, RW_NONE, &(rw_cross_entropy_params){ .z_loss = 1 });
    rw_linear_cross_entropy(t, x, x, index, NULL);
    rw_scale(t, x, 2), rw_add_scalar(t, x, 2), rw_pow_scalar(t, x, 2), rw_neg(t, x), rw_abs(t, x);
    rw_matmul(t, x, x), rw_linear(t, x, x, RW_NONE), rw_linear_gelu(t, x, x, v);
    const rw_quantized frozen = { RW_INT8, 2, 2, rw_input(t, RW_I32, RW_SHAPE(3), NULL, 0) };
    rw_linear_quantized(t, x, &frozen, v);
    rw_linear_add(t, x, x, v, x), rw_dropout_add(t, x, x, 0.5f), rw_layernorm(t, x, v, v, 1), rw_rmsnorm(t, x, v, 1);
    rw_mean(t, x, RW_AXES(0), false), rw_max(t, x, RW_AXES(0), false), rw_logsumexp(t, x, RW_AXES(0), false);
    rw_sum_to(t, x, RW_SHAPE(1, 2)), rw_softmax(t, x, 0), rw_log_softmax(t, x, 0), rw_causal_softmax(t, x, 1);
    rw_dropout(t, x, 0.5f), rw_randn(t, RW_F32, RW_SHAPE(2)), rw_rand(t, RW_F32, RW_SHAPE(2));
    rw_moe_routes routes;
    rw_tensor *const chosen = rw_moe_topk(t, x, RW_NONE, &(rw_moe_choice){ .k = 1 });
    rw_moe_route(t, chosen, 2, &routes), rw_moe_select(t, x, chosen), rw_moe_combine(t, x, &routes);
    rw_moe_drop(t, chosen, RW_NONE, &routes, 1);
    rw_moe_linear(t, x, rw_reshape(t, rw_concat(t, (rw_tensor *[]){ x, x }, 2, 0), RW_SHAPE(2, 2, 2)), &routes);
    rw_moe_weigh(t, x, rw_moe_select(t, x, chosen), &routes);
    rw_moe_silu_weigh(t, x, rw_moe_select(t, x, chosen), &routes);
    rw_moe_swiglu_weigh(t, x, x, rw_moe_select(t, x, chosen), &routes);
    rw_moe_balance(t, rw_buffer(rw_tape_context(t), "bias", RW_F32, RW_SHAPE(2)),
                   rw_buffer(rw_tape_context(t), "load", RW_F32, RW_SHAPE(2)), 0.1);
    rw_attention(t, q, q, q, NULL), rw_attention_merge(t, x, v, x, v, NULL);
    rw_rope(t, q, RW_NONE, 10000), rw_rope_with(t, q, RW_NONE, NULL);
    rw_embedding(t, x, index), rw_embedding_with(t, x, index, NULL), rw_cross_entropy(t, x, index);
    rw_mse_loss(t, x, x);
    rw_permute(t, x, axes), rw_transpose(t, x, 0, 1), rw_slice(t, x, 0, 0, 1), rw_broadcast_to(t, v, RW_SHAPE(3, 2));
    rw_contiguous(t, rw_transpose(t, x, 0, 1)), rw_cast(t, x, RW_F64), rw_concat(t, (rw_tensor *[]){ x, x }, 2, 0);
    rw_split(t, x, 0, sizes, 2, part), rw_assign(t, state, x);
    rw_tensor *const truth = rw_eq(t, x, x);
    rw_ne(t, x, x), rw_lt(t, x, x), rw_le(t, x, x), rw_gt(t, x, x), rw_ge(t, x, x), rw_isfinite(t, x);
    rw_logical_not(t, truth), rw_logical_and(t, truth, truth), rw_logical_or(t, truth, truth);
    rw_where(t, truth, x, x), rw_masked_fill(t, x, truth, 1), rw_clamp(t, x, 0, 1), rw_eq_scalar(t, x, 1);
    rw_batchnorm(t, x, v, v, RW_NONE, RW_NONE, NULL), rw_group_norm(t, x, 1, v, v, 1);
    rw_instance_norm(t, q, RW_NONE, RW_NONE, 1);
    rw_conv2d(t, q, q, RW_NONE, NULL), rw_conv_transpose2d(t, q, q, RW_NONE, NULL);
    rw_zeros(t, RW_F32, RW_SHAPE(2)), rw_arange(t, RW_F32, 0, 2, 1), rw_one_hot(t, index, 3, RW_F32);
    rw_select(t, x, 0, 0), rw_unsqueeze(t, x, 0), rw_unfold(t, x, 0, 1, 1), rw_roll(t, x, 1, 0), rw_flip(t, x, 0);
    for (int mode = 0; mode < RW_PAD_MODE_COUNT; mode++) rw_pad(t, x, sizes, 2, (rw_pad_mode)mode, 0);
    rw_argmax(t, x, 0, true), rw_argmin(t, x, 0, true), rw_topk(t, x, 1, 1, part, part + 1);
    rw_gather(t, index, 0, index), rw_scatter_add(t, v, 0, index, v), rw_index_select(t, x, 0, index);
    rw_embedding_bag(t, x, rw_unsqueeze(t, index, 0), RW_BAG_SUM);
    rw_tensor *scale;
    rw_tensor *const codes = rw_quantize(t, x, RW_NONE, NULL, &scale, NULL);
    rw_dequantize(t, codes, scale, RW_SCALING_TENSOR, RW_BF16);
    rw_causal_conv1d(t, rw_unsqueeze(t, x, 0), x, v);
    rw_tensor *const eight = rw_zeros(t, RW_F32, RW_SHAPE(8, 2)), *const six = rw_zeros(t, RW_F32, RW_SHAPE(6, 2));
    const rw_recurrent_weights lstm = { eight, eight, RW_NONE, RW_NONE }, gru = { six, six, RW_NONE, RW_NONE };
    rw_lstm_cell(t, x, x, x, &lstm, NULL), rw_gru_cell(t, x, x, &gru);
    rw_tensor *const places = rw_zeros(t, RW_F32, RW_SHAPE(1, 2, 1, 2));
    rw_ssd_scan(t, &(rw_ssd_operands){ places, rw_select(t, places, 3, 0), rw_zeros(t, RW_F32, RW_SHAPE(1)), places,
                                       places, RW_NONE }, 0, NULL);
    rw_max_pool2d(t, q, &(rw_pool2d_params){ .kernel = { 2, 2 } }), rw_global_avg_pool2d(t, q);
    rw_avg_pool2d(t, q, &(rw_pool2d_params){ .kernel = { 2, 2 } });
}

static bool was_recorded(const rw_context *ctx, const char *name)
{
    for (size_t i = 0; i < ctx->n_ops; i++)
        if (!strcmp(ctx->ops[i]->name, name)) return true;
    return false;
}

/* Records the op's case, if record_every_op() does not call it; whether that op was recorded then. */
static bool is_recorded(const struct fixture *b, const char *name)
{
    static const struct op_data none;
    const struct op_case *const c = was_recorded(b->ctx, name) ? NULL : op_case_named(name, strlen(name));
    struct recording r;
    if (c) op_record(&r, b->t, c, RW_F32, &none, OP_PLAIN);
    return was_recorded(b->ctx, name);
}

/* Whether the function records ops of other names than its own. */
static bool is_composed(const char *name)
{
    static const char *const all[] = {
        "adaptive_avg_pool2d",
        "adaptive_max_pool2d",
        "attention_lse",
        "clamp_tensor",
        "cross_entropy_with",
        "einsum",
        "embedding_bag_with",
        "embedding_with",
        "eq_scalar",
        "full",
        "ge_scalar",
        "global_avg_pool2d",
        "gru",
        "gt_scalar",
        "huber_loss",
        "le_scalar",
        "lstm",
        "lt_scalar",
        "masked_fill",
        "moe_aux_loss",
        "moe_count",
        "moe_linear_of_tokens",
        "moe_router",
        "moe_z_loss",
        "mse_loss_with",
        "ne_scalar",
        "nll_loss",
        "norm",
        "normalize",
        "ones",
        "prod",
        "quantized_create",
        "rope_with",
        "smooth_l1_loss",
        "stack",
        "transpose",
        "unbind",
        "var",
        "zeros",
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, all[i])) return true;
    return false;
}

/* Returns the number of functions in the header whose op must be in the list and on the tape. */
static int check_header(const struct fixture *b, const char *header)
{
    char path[4096], line[512], name[64];
    snprintf(path, sizeof path, "%s/%s", REWIND_HEADERS, header);
    FILE *const f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    int n = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "#define rw_%63[a-z0-9_](...) rw_", name) != 1 || !strstr(line, "(...)")) continue;
        if (is_composed(name)) continue;
        n++;
        cr_expect(rw_op_is_builtin(name), "rw_%s", name);
        cr_expect(is_recorded(b, name), "rw_%s has no case and is not called above", name);
    }
    fclose(f);
    return n;
}

/* Both ways: a function of a header whose op is not in the list, and an op on the tape that is not. */
Test(policy_names, the_list_of_built_in_ops_is_that_of_the_public_headers)
{
    static const char *const headers[] = {
        "attention.h",
        "compare.h",
        "conv.h",
        "create.h",
        "custom_grad.h",
        "einsum.h",
        "gather.h",
        "losses.h",
        "moe.h",
        "norm.h",
        "ops.h",
        "pointwise.h",
        "quantized.h",
        "recurrent.h",
        "reductions.h",
        "select.h",
    };
    struct fixture b = fixture_open(1, 1);
    record_every_op(b.t, rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2, 2)),
                    rw_buffer(b.ctx, "state", RW_F32, RW_SHAPE(2, 2)));
    cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    for (size_t i = 0; i < b.ctx->n_ops; i++)
        cr_expect(rw_op_is_builtin(b.ctx->ops[i]->name), "%s", b.ctx->ops[i]->name);
    int n = 0;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) n += check_header(&b, headers[i]);
    cr_assert_gt(n, 40);
    fixture_close(&b);
}

static rw_status twice_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status twice_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) ((float *)k->out[0].data)[i] = 2 * x[i];
    return RW_OK;
}

static rw_status twice_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_scale(rw_grad_tape(g), rw_grad_upstream(g, 0), 2));
}

HOST_KERNEL_OF(twice_kernel)
static const rw_op_def twice = { .name = "twice", .n_inputs = 1, .n_outputs = 1, .check = twice_check,
                                 .kernel = HOST_KERNEL(twice_kernel), .grad = twice_grad };

static rw_tensor *loss_through(struct fixture *b, bool own)
{
    rw_tensor *p = rw_param_find(b->ctx, "p");
    if (!p) p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(4));
    ckpt_begin(b->t, "r");
    rw_tensor *x = rw_tanh(b->t, rw_exp(b->t, p));
    if (own) x = rw_apply(b->t, &twice, &x, 1, NULL, 0, NULL);
    x = rw_mul(b->t, x, x);
    ckpt_end(b->t);
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

Test(policy_names, an_unknown_op_is_refused_when_the_step_is_planned)
{
    struct fixture b = fixture_open(1, 1);
    rw_cost cost;
    cr_assert_eq(ckpt_set_policy(b.t, "ops:exp,tahn"), RW_OK, "it may be an op of the caller's that is yet to come");
    rw_tensor *loss = loss_through(&b, false);
    cr_assert_eq(rw_backward(b.t, loss), RW_ERR_POLICY);
    const char *const m = rw_error_message(b.ctx);
    cr_assert(strstr(m, "\"tahn\"") && strstr(m, "column 9"), "%s", m);
    rw_error_clear(b.ctx);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_ERR_POLICY);
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_ERR_POLICY);
    rw_error_clear(b.ctx);
    cr_assert_eq(ckpt_set_policy(b.t, "ops:exp,tanh"), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "nothing is lost: %s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(policy_names, an_op_that_this_tape_does_not_use_is_fine_and_so_is_one_of_the_callers)
{
    struct fixture b = fixture_open(1, 1);
    cr_assert_eq(ckpt_set_policy(b.t, "ops:attention,tanh"), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss_through(&b, false)), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tape_reset(b.t);
    cr_assert_eq(ckpt_set_policy(b.t, "ops:twice"), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss_through(&b, false)), RW_ERR_POLICY, "not recorded yet");
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    cr_assert_eq(rw_backward(b.t, loss_through(&b, true)), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

/* ---- names that match nothing ---- */

static rw_tensor *named_step(rw_tape *t, rw_tensor *w)
{
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(4, 4));
    ckpt_begin(t, "block");
    x = ckpt_name(t, rw_gelu(t, rw_linear(t, x, w, RW_NONE)), "hidden");
    ckpt_end(t);
    return rw_mean(t, rw_mul(t, x, x), RW_ALL_AXES, false);
}

Test(policy_names, names_that_match_nothing_are_returned)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4, 4));
    static const struct {
        const char *spec;
        size_t n;
        const char *names[3];
    } cases[] = { { "selective:blcok", 1, { "blcok" } },
                  { "selective:block+discard:norm", 1, { "norm" } },
                  { "names:keep=hidden,hiden;offload=ffn", 2, { "hiden", "ffn" } },
                  { "full+offload:block,blok", 1, { "blok" } },
                  { "megatron:core_attn,layernorm", 2, { "core_attn", "layernorm" } },
                  { "selective:block", 0, { NULL } },
                  { "ops:linear", 0, { NULL } },
                  { "budget:50%", 0, { NULL } } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *names[3] = { NULL };
        cr_assert_eq(ckpt_set_policy(b.t, cases[i].spec), RW_OK);
        named_step(b.t, w);
        cr_expect_eq(ckpt_unmatched_names(b.t, NULL, 0), cases[i].n, "%s", cases[i].spec);
        cr_expect_eq(ckpt_unmatched_names(b.t, names, 3), cases[i].n);
        for (size_t k = 0; k < 3; k++)
            cr_expect(cases[i].names[k] ? names[k] && !strcmp(names[k], cases[i].names[k]) : !names[k], "%s, %zu: %s",
                      cases[i].spec, k, names[k] ? names[k] : "none");
        rw_tape_reset(b.t);
    }
    cr_assert_eq(ckpt_set_policy(b.t, "none"), RW_OK);
    ckpt_policy_begin(b.t, "selective:mlp");
    named_step(b.t, w);
    ckpt_policy_end(b.t);
    const char *name = NULL;
    cr_expect_eq(ckpt_unmatched_names(b.t, &name, 1), 1);
    cr_expect_str_eq(name, "mlp");
    cr_expect_eq(ckpt_unmatched_names(NULL, &name, 1), 0);
    fixture_close(&b);
}

/* A value and its views have one buffer, which has one name for policies: the last. */
Test(policy_names, the_last_name_of_a_value_or_its_view_applies)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(16, 16));
    static const char *const names[] = { "value", "view" };
    for (int i = 0; i < 4; i++) { /* the view is named last, or the value is; the policy has that name, or the other */
        const bool view_last = i % 2, other = i / 2;
        char policy[32];
        rw_prediction all, kept;
        const char *unmatched = NULL;
        rw_tensor *const x = rw_randn(b.t, RW_F32, RW_SHAPE(16, 16));
        ckpt_begin(b.t, "block");
        rw_tensor *const h = rw_linear(b.t, x, w, RW_NONE), *const v = rw_reshape(b.t, h, RW_SHAPE(256));
        for (int k = 0; k < 2; k++) ckpt_name(b.t, view_last == k ? v : h, names[view_last == k]);
        rw_tensor *const y = rw_linear(b.t, rw_reshape(b.t, rw_gelu(b.t, v), RW_SHAPE(16, 16)), w, RW_NONE);
        ckpt_end(b.t);
        rw_tensor *const loss = rw_sum_all(b.t, rw_mul(b.t, y, y));
        snprintf(policy, sizeof policy, "names:keep=%s", names[view_last != other]);
        cr_assert_eq(rw_tape_plan(b.t, loss, "full", &all), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
        cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &kept), RW_OK);
        cr_expect_eq(kept.cost.replayed_nodes, all.cost.replayed_nodes - !other, "%d", i);
        cr_expect_eq(ckpt_unmatched_names(b.t, &unmatched, 1), other, "%d: %s", i, policy);
        cr_expect_eq(!unmatched, !other);
        cr_assert_eq(ckpt_set_policy(b.t, "none"), RW_OK);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(policy_names, a_strict_context_refuses_them)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    const rw_context_params params = { .device = test_device(), .strict_policy = true };
    cr_assert_eq(rw_context_create(&ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&t, ctx), RW_OK);
    rw_tensor *const w = rw_param(ctx, "w", RW_F32, RW_SHAPE(4, 4));
    rw_init_constant(w, 0.5);
    cr_assert_eq(ckpt_set_policy(t, "selective:block,blcok"), RW_OK);
    rw_tensor *loss = named_step(t, w);
    cr_expect_gt(rw_item(t, loss), 0, "a number is read all the same: %s", rw_error_message(ctx));
    cr_expect_eq(rw_backward(t, loss), RW_ERR_POLICY);
    cr_expect(strstr(rw_error_message(ctx), "column 17: expected the name of a region, got \"blcok\""), "%s",
              rw_error_message(ctx));
    cr_expect(strstr(rw_error_message(ctx), "there are block"), "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
    cr_assert_eq(ckpt_set_policy(t, "names:keep=hiden"), RW_OK);
    cr_expect_eq(rw_backward(t, loss), RW_ERR_POLICY);
    cr_expect(strstr(rw_error_message(ctx), "expected the name of a value, got \"hiden\""), "%s",
              rw_error_message(ctx));
    rw_error_clear(ctx);
    cr_assert_eq(ckpt_set_policy(t, "selective:block"), RW_OK);
    cr_expect_eq(rw_backward(t, loss), RW_OK, "%s", rw_error_message(ctx));
    rw_prediction p;
    cr_expect_eq(rw_tape_plan(t, loss, "selective:blcok", &p), RW_ERR_POLICY, "a policy that is not the tape's");
    cr_expect(strstr(rw_error_message(ctx), "column 11: expected the name of a region, got \"blcok\""), "%s",
              rw_error_message(ctx));
    rw_error_clear(ctx);
    cr_expect_eq(rw_tape_plan(t, loss, "budget:100%", &p), RW_OK, "%s", rw_error_message(ctx));
    cr_expect_eq(ckpt_verify(t, loss, NULL), RW_OK, "%s", rw_error_message(ctx));
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}

/* A part keeps its own policy under every policy of the tape, so its names are checked under each. */
Test(policy_names, a_strict_context_refuses_names_of_parts_under_any_policy)
{
    static const char *const specs[] = { "none", "full", "selective:block", "ops:linear", "budget:100%" };
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_prediction p;
    const rw_context_params params = { .device = test_device(), .strict_policy = true };
    cr_assert_eq(rw_context_create(&ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&t, ctx), RW_OK);
    rw_tensor *const w = rw_param(ctx, "w", RW_F32, RW_SHAPE(4, 4));
    rw_init_constant(w, 0.5);
    cr_assert_eq(ckpt_policy_begin(t, "selective:blcok"), RW_OK);
    rw_tensor *const loss = named_step(t, w);
    cr_assert_eq(ckpt_policy_end(t), RW_OK);
    cr_assert_eq(ckpt_set_policy(t, "none"), RW_OK);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        cr_expect_eq(rw_tape_plan(t, loss, specs[i], &p), RW_ERR_POLICY, "%s", specs[i]);
        cr_expect(strstr(rw_error_message(ctx), "policy \"selective:blcok\", column 11"), "%s: %s", specs[i],
                  rw_error_message(ctx));
        rw_error_clear(ctx);
        cr_assert_eq(ckpt_set_policy(t, specs[i]), RW_OK);
        cr_expect_eq(rw_tape_plan(t, loss, NULL, &p), RW_ERR_POLICY, "%s", specs[i]);
        rw_error_clear(ctx);
    }
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}
