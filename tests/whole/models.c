/*
 * The benchmark models under every policy and type, with fused and with explicit attention: losses, gradients,
 * parameters after the steps, and the generator, against `none`, byte for byte.
 */
#include "support/support.h"

#include "models/model.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, SEQ = 21, STEPS = 3 };

struct outcome {
    double loss[STEPS];
    unsigned char *gradients, *parameters;
    size_t bytes, replayed;
    uint64_t offset;
};

static struct outcome train(const struct model_config *c, const char *policy, int threads)
{
    struct fixture b = fixture_open(5, threads);
    struct model m;
    struct outcome o = { 0 };
    rw_adamw *opt = NULL;
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    cr_assert_eq(model_create(&m, b.ctx, c), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < BATCH * SEQ; i++) tokens[i] = (i * 7 + s) % c->vocab, targets[i] = (i * 5 + s) % c->vocab;
        rw_zero_grad(b.ctx);
        rw_tensor *const loss = model_loss(&m, b.t, BATCH, SEQ, tokens, targets);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
        o.loss[s] = rw_item(b.t, loss);
        rw_memory memory;
        rw_cost cost;
        rw_memory_stats(b.ctx, &memory);
        rw_tape_cost(b.t, loss, &cost);
        o.replayed = cost.replayed_nodes;
        cr_assert_eq(memory.predicted_peak, memory.measured_peak);
        if (s == STEPS - 1) o.gradients = all_gradients(b.ctx, &o.bytes);
        rw_adamw_step(opt);
        rw_tape_reset(b.t);
    }
    o.parameters = all_parameters(b.ctx, &o.bytes);
    o.offset = rw_generator_get(b.ctx).offset;
    rw_adamw_destroy(&opt);
    fixture_close(&b);
    return o;
}

static void every_policy(enum model_kind kind, rw_dtype dtype, bool scores)
{
    static const char *const policies[] = { "full",
                                            "uniform:2",
                                            "block:1",
                                            "selective:core_attn",
                                            "selective:mlp",
                                            "selective:block,mlp",
                                            "ops:linear,attention",
                                            "names:save=qkv" };
    const struct model_config c = { .kind = kind,
                                    .layers = 3,
                                    .width = 32,
                                    .heads = 4,
                                    .kv_heads = kind == MODEL_LLAMA ? 2 : 4,
                                    .vocab = 61,
                                    .max_seq = SEQ,
                                    .dropout = 0.1f,
                                    .dtype = dtype,
                                    .scores = scores };
    struct outcome none = train(&c, "none", 1);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct outcome o = train(&c, policies[i], 1 + (int)i % 3);
        cr_assert_gt(o.replayed, 0, "%s replayed nothing", policies[i]);
        cr_assert_eq(memcmp(none.loss, o.loss, sizeof o.loss), 0, "%s: losses", policies[i]);
        cr_assert_eq(first_difference(none.gradients, o.gradients, o.bytes), -1, "%s: gradients", policies[i]);
        cr_assert_eq(first_difference(none.parameters, o.parameters, o.bytes), -1, "%s: parameters", policies[i]);
        cr_assert_eq(none.offset, o.offset, "%s: generator", policies[i]);
        free(o.gradients);
        free(o.parameters);
    }
    free(none.gradients);
    free(none.parameters);
}

Test(models, gpt_float32) { every_policy(MODEL_GPT, RW_F32, false); }
Test(models, gpt_bfloat16) { every_policy(MODEL_GPT, RW_BF16, false); }
Test(models, gpt_float16) { every_policy(MODEL_GPT, RW_F16, false); }
Test(models, gpt_float64) { every_policy(MODEL_GPT, RW_F64, false); }
Test(models, gpt_float32_with_scores) { every_policy(MODEL_GPT, RW_F32, true); }
Test(models, gpt_bfloat16_with_scores) { every_policy(MODEL_GPT, RW_BF16, true); }
Test(models, llama_float32) { every_policy(MODEL_LLAMA, RW_F32, false); }
Test(models, llama_bfloat16) { every_policy(MODEL_LLAMA, RW_BF16, false); }
Test(models, llama_float64) { every_policy(MODEL_LLAMA, RW_F64, false); }
Test(models, llama_float32_with_scores) { every_policy(MODEL_LLAMA, RW_F32, true); }
Test(models, deepseek_float32) { every_policy(MODEL_DEEPSEEK, RW_F32, false); }
Test(models, deepseek_bfloat16) { every_policy(MODEL_DEEPSEEK, RW_BF16, false); }
Test(models, deepseek_float64) { every_policy(MODEL_DEEPSEEK, RW_F64, false); }

/* Megatron's names: what each region holds is made again, to the same bytes. */
Test(models, deepseek_under_megatrons_regions)
{
    static const char *const policies[] = { "discard:mla_up_proj", "megatron:mla_up_proj,moe_act,layernorm",
                                            "megatron:moe", "megatron:core_attn,mlp,shared_experts", "budget:60%" };
    struct model_config c = { .kind = MODEL_DEEPSEEK, .max_seq = SEQ, .dtype = RW_F32, .dropout = 0.1f };
    cr_assert(model_preset(&c, "tiny"));
    struct outcome none = train(&c, "none", 1);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct outcome o = train(&c, policies[i], 1 + (int)i % 5);
        cr_assert_gt(o.replayed, 0, "%s replayed nothing", policies[i]);
        cr_assert_eq(memcmp(none.loss, o.loss, sizeof o.loss), 0, "%s: losses", policies[i]);
        cr_assert_eq(first_difference(none.gradients, o.gradients, o.bytes), -1, "%s: gradients", policies[i]);
        cr_assert_eq(first_difference(none.parameters, o.parameters, o.bytes), -1, "%s: parameters", policies[i]);
        free(o.gradients), free(o.parameters);
    }
    free(none.gradients), free(none.parameters);
}

static size_t kept_under(const struct model_config *c, const char *policy, int batch, int seq)
{
    struct fixture b = fixture_open(1, 1);
    struct model m;
    rw_memory memory;
    int32_t *const tokens = calloc((size_t)(batch * seq), sizeof *tokens);
    cr_assert_eq(model_create(&m, b.ctx, c), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    cr_assert_eq(rw_backward(b.t, model_loss(&m, b.t, batch, seq, tokens, tokens)), RW_OK);
    rw_memory_stats(b.ctx, &memory);
    free(tokens);
    fixture_close(&b);
    return memory.kept;
}

/*
 * q, k and v do not stay, n (2 (d_nope + d_rope) + d_v) elements for each token and layer. The latents do, as under
 * none for the sake of their weights, and the key that all heads share, d_rope, which none has no use for.
 */
Test(models, latents_are_kept_in_place_of_q_k_and_v)
{
    struct model_config c = { .kind = MODEL_DEEPSEEK, .max_seq = 32, .dtype = RW_F32 };
    cr_assert(model_preset(&c, "tiny"));
    const int each = c.heads * (2 * (c.head_width + c.rope_width) + c.head_width) - c.rope_width;
    const size_t want = (size_t)(each * 2 * 32 * c.layers) * sizeof(float);
    const size_t less = kept_under(&c, "none", 2, 32) - kept_under(&c, "discard:mla_up_proj", 2, 32);
    cr_expect_eq(less, want, "%zu bytes less, not %zu", less, want);
}

/* The fused attention against the explicit one, without dropout: two algorithms for one function, in float64. */
Test(models, fused_and_explicit_attention_agree)
{
    for (int kind = MODEL_GPT; kind <= MODEL_LLAMA; kind++) {
        struct model_config c = { .kind = (enum model_kind)kind,
                                  .layers = 2,
                                  .width = 32,
                                  .heads = 4,
                                  .kv_heads = kind ? 2 : 4,
                                  .vocab = 61,
                                  .max_seq = SEQ,
                                  .dtype = RW_F64 };
        struct outcome fused = train(&c, "none", 1);
        c.scores = true;
        struct outcome scores = train(&c, "none", 1);
        /* a few thousand roundings of 2^-53 in values of order one */
        for (int s = 0; s < STEPS; s++) cr_assert_float_eq(fused.loss[s], scores.loss[s], 1e-11);
        free(fused.gradients), free(fused.parameters), free(scores.gradients), free(scores.parameters);
    }
}
