/*
 * The benchmark models under every policy and type, with fused and with explicit attention: losses, gradients,
 * parameters after the steps, and the generator are compared with `none`, byte for byte. Many steps: every_policy.c.
 */
#include "support/support.h"

#include "models/model.h"
#include "models/t5.h"
#include "models/vit.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, SEQ = 21, STEPS = 3 };

struct outcome {
    double loss[STEPS];
    unsigned char *gradients, *parameters;
    size_t bytes, parameter_bytes, replayed; /* bytes: of the gradients; a buffer has none */
    uint64_t offset;
};

/* Some steps of a model under a policy; returns everything observable. */
static struct outcome train(const struct model_config *c, const char *policy, int threads)
{
    struct fixture b = fixture_open(5, threads);
    struct model m;
    struct outcome o = { 0 };
    rw_optimizer *opt = NULL;
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
        rw_optimizer_step(opt);
        rw_tape_reset(b.t);
        cr_assert_eq(model_end_step(&m, b.t), RW_OK, "%s", rw_error_message(b.ctx));
    }
    o.parameters = all_parameters(b.ctx, &o.parameter_bytes);
    o.offset = rw_generator_get(b.ctx).offset;
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
    return o;
}

/* Compares losses, gradients, parameters and the generator. Frees o's members. */
static void same(const struct outcome *none, struct outcome *o, const char *what)
{
    cr_assert_gt(o->replayed, 0, "%s replayed nothing", what);
    cr_assert_eq(memcmp(none->loss, o->loss, sizeof o->loss), 0, "%s: losses", what);
    cr_assert_eq(first_difference(none->gradients, o->gradients, o->bytes), -1, "%s: gradients", what);
    cr_assert_eq(first_difference(none->parameters, o->parameters, o->parameter_bytes), -1, "%s: parameters", what);
    cr_assert_eq(none->offset, o->offset, "%s: generator", what);
    free(o->gradients), free(o->parameters);
}

/* Compares every policy with `none` for one model and type. */
static void every_policy(enum model_kind kind, rw_dtype dtype, bool scores)
{
    static const char *const policies[] = { "full",
                                            "uniform:2",
                                            "block:1",
                                            "selective:core_attn",
                                            "selective:mlp",
                                            "selective:block,mlp",
                                            "ops:linear,attention",
                                            "names:keep=qkv",
                                            "megatron:layernorm" };
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
    /* On the slow simulator three policies suffice for models whose kernels others also use. */
    const bool few = kind > MODEL_DEEPSEEK || (kind == MODEL_DEEPSEEK && dtype != RW_F32);
    const size_t step = test_device() != RW_DEVICE_CPU && few ? 3 : 1;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i += step) {
        struct outcome o = train(&c, policies[i], 1 + (int)i % 3);
        same(&none, &o, policies[i]);
    }
    free(none.gradients);
    free(none.parameters);
}

Test(models_bit_identity, gpt_float32) { every_policy(MODEL_GPT, RW_F32, false); }
Test(models_bit_identity, gpt_bfloat16) { every_policy(MODEL_GPT, RW_BF16, false); }
Test(models_bit_identity, gpt_float16) { every_policy(MODEL_GPT, RW_F16, false); }
Test(models_bit_identity, gpt_float64) { every_policy(MODEL_GPT, RW_F64, false); }
Test(models_bit_identity, gpt_float32_with_scores) { every_policy(MODEL_GPT, RW_F32, true); }
Test(models_bit_identity, gpt_bfloat16_with_scores) { every_policy(MODEL_GPT, RW_BF16, true); }
Test(models_bit_identity, llama_float32) { every_policy(MODEL_LLAMA, RW_F32, false); }
Test(models_bit_identity, llama_bfloat16) { every_policy(MODEL_LLAMA, RW_BF16, false); }
Test(models_bit_identity, llama_float64) { every_policy(MODEL_LLAMA, RW_F64, false); }
Test(models_bit_identity, llama_float32_with_scores) { every_policy(MODEL_LLAMA, RW_F32, true); }
Test(models_bit_identity, deepseek_float32) { every_policy(MODEL_DEEPSEEK, RW_F32, false); }
Test(models_bit_identity, deepseek_bfloat16) { every_policy(MODEL_DEEPSEEK, RW_BF16, false); }
Test(models_bit_identity, deepseek_float64) { every_policy(MODEL_DEEPSEEK, RW_F64, false); }

Test(models_bit_identity, t5_float32) { every_policy(MODEL_T5, RW_F32, false); }
Test(models_bit_identity, t5_bfloat16_with_scores) { every_policy(MODEL_T5, RW_BF16, true); }
Test(models_bit_identity, vit_float32) { every_policy(MODEL_VIT, RW_F32, false); }
Test(models_bit_identity, vit_bfloat16) { every_policy(MODEL_VIT, RW_BF16, false); }

/* Megatron's names: the values of each region are recomputed, to the same bytes. */
Test(models_bit_identity, deepseek_under_megatrons_regions)
{
    static const char *const policies[] = { "discard:mla_up_proj", "megatron:mla_up_proj,moe_act,layernorm",
                                            "megatron:moe", "megatron:core_attn,mlp,shared_experts", "budget:60%" };
    struct model_config c = { .kind = MODEL_DEEPSEEK, .max_seq = SEQ, .dtype = RW_F32, .dropout = 0.1f };
    cr_assert(model_preset(&c, "tiny"));
    struct outcome none = train(&c, "none", 1);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct outcome o = train(&c, policies[i], 1 + (int)i % 5);
        same(&none, &o, policies[i]);
    }
    free(none.gradients), free(none.parameters);
}

/* Experts with a capacity of three quarters of their load, by either rule. */
Test(models_bit_identity, deepseek_of_a_capacity)
{
    for (int rule = test_device() == RW_DEVICE_CPU ? 0 : 1; rule < 2; rule++) {
        struct model_config c = { .kind = MODEL_DEEPSEEK, .max_seq = SEQ, .dtype = RW_F32, .capacity = 0.75,
                                  .by_weight = rule };
        cr_assert(model_preset(&c, "tiny"));
        c.layers = 2, c.ahead = 0;
        struct outcome none = train(&c, "none", 1), full = train(&c, "full", 3);
        same(&none, &full, rule ? "by weight" : "by position");
        c.capacity = 0;
        struct outcome all = train(&c, "none", 1);
        cr_expect_neq(all.loss[0], none.loss[0], "nothing was dropped");
        free(none.gradients), free(none.parameters), free(all.gradients), free(all.parameters);
    }
}

/* Version 2's router: softmax without a bias, so there is nothing to balance. */
Test(models_bit_identity, deepseek_by_softmax)
{
    struct model_config c = { .kind = MODEL_DEEPSEEK, .max_seq = SEQ, .dtype = RW_F32 };
    cr_assert(model_preset(&c, "tiny"));
    c.layers = 2, c.ahead = 0;
    struct outcome other = train(&c, "none", 1);
    c.softmax = true;
    struct outcome none = train(&c, "none", 1), full = train(&c, "full", 3);
    same(&none, &full, "full");
    cr_expect_neq(other.loss[0], none.loss[0]);
    free(none.gradients), free(none.parameters), free(other.gradients), free(other.parameters);
}

/* The loss with a head of zeros. */
static double loss_of(const struct model_config *c, int seq, const int32_t *tokens)
{
    struct fixture b = fixture_open(1, 1);
    struct model m;
    cr_assert_eq(model_create(&m, b.ctx, c), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_init_constant(m.head, 0), RW_OK);
    const double loss = rw_item(b.t, model_loss(&m, b.t, 1, seq, tokens, tokens + 1));
    cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
    return loss;
}

/* Every token costs log(vocab), and all further depths together a tenth of that. A text predicts one token fewer than
   it has. */
Test(models_bit_identity, tokens_further_ahead_cost_a_tenth)
{
    const int32_t tokens[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    struct model_config c = { .kind = MODEL_DEEPSEEK, .layers = 1, .width = 16, .heads = 2, .kv_heads = 2, .vocab = 11,
                              .max_seq = 7, .dtype = RW_F64 };
    for (int seq = 1; seq <= 3; seq++)
        for (int ahead = 0; ahead <= 2; ahead++) {
            struct model_config own = c;
            own.experts = 4, own.chosen = own.groups = own.best_groups = 1, own.expert_hidden = 8;
            own.dense_layers = 9, own.ahead = ahead;
            const double share = ahead ? 0.1 * (ahead < seq ? ahead : seq - 1) / ahead : 0;
            cr_expect_float_eq(loss_of(&own, seq, tokens), (1 + share) * log(11), 1e-14, "%d ahead of %d: %g", ahead,
                               seq, loss_of(&own, seq, tokens));
        }
}

/* After a step the bias of every expert with more than the average load decreases, and the counters start at zero. */
Test(models_bit_identity, experts_are_balanced_once_per_step)
{
    struct fixture b = fixture_open(1, 1);
    struct model_config c = { .kind = MODEL_DEEPSEEK, .max_seq = SEQ, .dtype = RW_BF16 };
    struct model m;
    int32_t tokens[SEQ + 1];
    float load[8], bias[8];
    for (int i = 0; i <= SEQ; i++) tokens[i] = i;
    cr_assert(model_preset(&c, "tiny"));
    cr_assert_eq(model_create(&m, b.ctx, &c), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
    cr_assert_eq(rw_backward(b.t, model_loss(&m, b.t, 1, SEQ, tokens, tokens + 1)), RW_OK);
    rw_tape_reset(b.t);
    for (int l = 1; l < c.layers + c.ahead; l++) {
        const int places = l < c.layers ? SEQ : SEQ - 1;
        float sum = 0;
        cr_assert_eq(rw_read(b.t, m.layer[l].load, load, sizeof load), RW_OK);
        for (int e = 0; e < 8; e++) sum += load[e];
        cr_expect_eq(sum, places * c.chosen, "layer %d: %g rows", l, (double)sum);
    }
    cr_assert_eq(model_end_step(&m, b.t), RW_OK, "%s", rw_error_message(b.ctx));
    const float mean = (float)(SEQ - 1) * (float)c.chosen / 8; /* of the last layer */
    cr_assert_eq(rw_read(b.t, m.layer[c.layers].balance, bias, sizeof bias), RW_OK);
    for (int e = 0; e < 8; e++)
        cr_expect_eq(bias[e], load[e] < mean ? 1e-3f : load[e] > mean ? -1e-3f : 0, "expert %d: %g", e,
                     (double)bias[e]);
    cr_assert_eq(rw_read(b.t, m.layer[c.layers].load, load, sizeof load), RW_OK);
    for (int e = 0; e < 8; e++) cr_expect_eq(load[e], 0);
    fixture_close(&b);
}

/* A state-space model with three chunks, one of them partial; 1 to 5 threads. */
Test(models_bit_identity, mamba2_under_every_policy)
{
    static const char *const policies[] = { "full", "uniform:2", "selective:ssd", "ops:linear", "budget:60%" };
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F64 };
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        const struct model_config c = { .kind = MODEL_MAMBA2, .layers = 2, .width = 32, .heads = 4, .kv_heads = 4,
                                        .groups = 2, .state = 8, .chunk = 8, .vocab = 61, .dropout = 0.1f,
                                        .dtype = types[k] };
        const bool host = test_device() == RW_DEVICE_CPU;
        const size_t n = host ? sizeof policies / sizeof *policies : 1;
        struct outcome none = train(&c, "none", 1);
        for (size_t i = 0; i < n; i++) {
            struct outcome o = train(&c, policies[i], 1 + (int)(i + 1) % 5);
            same(&none, &o, policies[i]);
        }
        free(none.gradients), free(none.parameters);
    }
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
 * q, k and v are not kept, n (2 (d_nope + d_rope) + d_v) elements for each token and layer. The latents are, as under
 * none for their weights' gradients, and the key that all heads share, d_rope, which none does not keep.
 */
Test(models_bit_identity, latents_are_kept_in_place_of_q_k_and_v)
{
    for (int i = 0; i < 4; i++) {
        struct model_config c = { .kind = MODEL_DEEPSEEK, .max_seq = 32, .dtype = i & 1 ? RW_BF16 : RW_F32 };
        cr_assert(model_preset(&c, "tiny"));
        c.ahead = 0;
        if (i & 2) c.q_rank = 0; /* q is computed from the norm's result, which is kept as well */
        const int each = c.heads * (2 * (c.head_width + c.rope_width) + c.head_width) - c.rope_width;
        const size_t want = (size_t)(each * 2 * 32 * c.layers) * rw_dtype_size(c.dtype);
        const size_t less = kept_under(&c, "none", 2, 32) - kept_under(&c, "discard:mla_up_proj", 2, 32);
        cr_expect_eq(less, want, "%s, latent of q %d: %zu bytes less, not %zu", rw_dtype_name(c.dtype), c.q_rank, less,
                     want);
    }
}

/* The fused attention compared with the explicit one, without dropout: two algorithms for one function, in float64. */
Test(models_bit_identity, fused_and_explicit_attention_agree)
{
    static const enum model_kind kinds[] = { MODEL_GPT, MODEL_LLAMA, MODEL_T5, MODEL_VIT };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct model_config c = { .kind = kinds[i],
                                  .layers = 2,
                                  .width = 32,
                                  .heads = 4,
                                  .kv_heads = kinds[i] == MODEL_LLAMA ? 2 : 4,
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

/* torchvision's vit_b_16; the others as published: openai-community/gpt2 and gpt2-xl (with 50,257 tokens, which the
   presets pad), TinyLlama-1.1B, Meta-Llama-3-8B, DeepSeek-V2-Lite, DeepSeek-V3 (671,026,419,200 with the 58 x 256
   biases that balance its experts, which are not parameters here) without and with the layer that predicts a second
   token, state-spaces/mamba2-130m and -2.7b, t5-small and google/t5-v1_1-small. */
static const struct size {
    enum model_kind kind;
    const char *preset;
    int64_t parameters;
    int vocab, max_seq; /* 0: the preset's */
    int ahead;
} published[] = { { MODEL_VIT, "published", 86567656 },
                  { MODEL_MAMBA2, "mamba2-130m", 128989632 },
                  { MODEL_T5, "t5-small", 60506624 },
                  { MODEL_T5, "t5-v1.1-small", 76961152 },
                  { MODEL_GPT, "gpt2-124m", 124439808, 50257, 1024 },
                  { MODEL_GPT, "gpt2-1.5b", 1557611200, 50257, 1024 },
                  { MODEL_LLAMA, "tinyllama-1.1b", 1100048384 },
                  { MODEL_LLAMA, "llama3-8b", 8030261248 },
                  { MODEL_MAMBA2, "mamba2-2.7b", 2702599680 },
                  { MODEL_DEEPSEEK, "v2-lite", 15706484224 },
                  { MODEL_DEEPSEEK, "v3", 671026404352 },
                  { MODEL_DEEPSEEK, "v3", 682636472320, .ahead = 1 } };
#define PUBLISHED (sizeof published / sizeof *published)

static struct model_config config_of(const struct size *s)
{
    struct model_config c = { .kind = s->kind, .dtype = RW_BF16 };
    cr_assert(model_preset(&c, s->preset));
    if (s->vocab) c.vocab = s->vocab, c.max_seq = s->max_seq;
    c.ahead = s->ahead;
    return c;
}

Test(models_bit_identity, parameters_of_published_sizes)
{
    for (size_t i = 0; i < PUBLISHED; i++) {
        const struct model_config c = config_of(&published[i]);
        const int64_t n = model_parameters(&c);
        cr_expect_eq(n, published[i].parameters, "%s %s: %lld parameters", model_name(c.kind), published[i].preset,
                     (long long)n);
    }
}

static struct fixture planner_open(void)
{
    struct fixture b = { 0 };
    const rw_context_params params = { .device = test_device(), .threads = 1, .plan_only = true };
    cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    return b;
}

/* In a context without memory they are created, and their number equals the published one. */
Test(models_bit_identity, declared_parameters_of_published_sizes)
{
    for (size_t i = 0; i < PUBLISHED; i++) {
        const struct model_config c = config_of(&published[i]);
        struct fixture b = planner_open();
        struct model m;
        cr_assert_eq(model_create(&m, b.ctx, &c), RW_OK, "%s", rw_error_message(b.ctx));
        int64_t parameters = 0;
        for (size_t k = 0; rw_param_get(b.ctx, k); k++) {
            const rw_tensor *const p = rw_param_get(b.ctx, k);
            if (rw_tensor_requires_grad(p)) parameters += rw_shape_numel(rw_tensor_shape(p));
        }
        cr_expect_eq(parameters, published[i].parameters, "%s %s: %lld parameters", model_name(c.kind),
                     published[i].preset, (long long)parameters);
        fixture_close(&b);
    }
}

/* Steps of published sizes are planned although no machine can hold them: in bfloat16 with AdamW, with gradients,
   moments and master copies in float32. DeepSeek's experts have two float32 buffers of 256 in each of 59 layers. For
   llama, products use all parameters except the embedding and the norms. For DeepSeek, each of the four tokens uses 61
   layers' attention (187,105,280), three dense layers (396,361,728), in 58 layers the router, eight experts and the
   shared one (398,196,736), and the head (926,679,040); each of three tokens also uses another layer of these, after
   one of 2 x 7168 x 7168. All other ops take less than five thousandths of that. */
Test(models_bit_identity, plans_of_published_sizes)
{
    enum { TOKENS = 4 };
    static const struct {
        enum model_kind kind;
        const char *preset;
        size_t parameters, buffer_bytes;
        double products; /* number of parameters used by products */
    } rows[] = { { MODEL_LLAMA, "llama3-8b", 8030261248, 0, TOKENS * 7504658432. },
                 { MODEL_DEEPSEEK, "v3", 682636472320, (size_t)59 * 2 * 256 * 4,
                   TOKENS * 36624596992. + (TOKENS - 1) * 1614741504. } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fixture b = planner_open();
        struct model m;
        struct model_config c = { .kind = rows[i].kind, .dtype = RW_BF16, .max_seq = TOKENS };
        rw_optimizer *opt = NULL;
        rw_prediction p;
        const size_t n = rows[i].parameters;
        cr_assert(model_preset(&c, rows[i].preset));
        cr_assert_eq(model_create(&m, b.ctx, &c), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tensor *const loss = model_loss(&m, b.t, 1, TOKENS, NULL, NULL);
        cr_assert_eq(rw_tape_plan(b.t, loss, "full", &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_eq(p.at_peak.parameters, 2 * n + rows[i].buffer_bytes, "%s", rows[i].preset);
        cr_expect_eq(p.at_peak.gradients, 4 * n, "%s", rows[i].preset);
        cr_expect_eq(p.at_peak.optimizer, 12 * n, "%s", rows[i].preset);
        const size_t others = p.at_peak.inputs + p.at_peak.results + p.peak_bytes;
        cr_expect_eq(p.total_bytes, 18 * n + rows[i].buffer_bytes + others, "%s", rows[i].preset);
        cr_expect(p.cost.forward_flops > 2 * rows[i].products && p.cost.forward_flops < 2.01 * rows[i].products,
                  "%s: %g, products %g", rows[i].preset, p.cost.forward_flops, 2 * rows[i].products);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* Values of transformers' T5Attention._relative_position_bucket() for 32 buckets up to a distance of 128. */
Test(models_bit_identity, buckets_of_distances)
{
    static const int far[] = { 0, 1, 7, 8, 11, 12, 15, 16, 31, 32, 63, 64, 127, 128, 4000 };
    static const int both[] = { 0, 1, 7, 8, 8, 9, 9, 10, 11, 12, 13, 14, 15, 15, 15 };
    static const int causal[] = { 0, 1, 7, 8, 11, 12, 15, 16, 21, 21, 26, 26, 31, 31, 31 };
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        cr_expect_eq(t5_bucket(far[i], false), both[i], "%d", far[i]);
        cr_expect_eq(t5_bucket(far[i], true), causal[i], "%d, causal", far[i]);
        cr_expect_eq(t5_bucket(-far[i], true), 0);
        if (far[i]) cr_expect_eq(t5_bucket(-far[i], false), 16 + both[i], "%d", -far[i]);
    }
}

/* An image's last columns affect the loss even if its side is not a multiple of a patch; a text of one token is
   accepted. */
Test(models_bit_identity, sizes_that_patches_and_halves_do_not_divide)
{
    for (int kind = MODEL_T5; kind <= MODEL_VIT; kind++)
        for (int seq = 1; seq <= 9; seq += 8) {
            struct model_config c = { .kind = (enum model_kind)kind, .layers = 1, .width = 16, .heads = 2,
                                      .kv_heads = 2, .vocab = 64, .max_seq = 9, .dtype = RW_F64 };
            double loss[2];
            for (int last = 0; last < 2; last++) {
                struct fixture b = fixture_open(1, 1);
                struct model m;
                int32_t tokens[10] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
                tokens[seq - 1] = 40 + 9 * last;
                cr_assert_eq(model_create(&m, b.ctx, &c), RW_OK, "%s", rw_error_message(b.ctx));
                loss[last] = rw_item(b.t, model_loss(&m, b.t, 1, seq, tokens, tokens + (kind == MODEL_T5)));
                cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
                fixture_close(&b);
            }
            cr_expect_neq(loss[0], loss[1], "%s of %d", model_name(kind), seq);
        }
}
