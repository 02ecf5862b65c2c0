/*
 * The models of the benchmarks, written with the public API only.
 *
 *   gpt     GPT-2: learned positions, LayerNorm before each part, GELU (tanh), tied output embedding, dropout
 *   llama   RMSNorm, rotary positions, SwiGLU, grouped-query heads, untied output, no biases
 *   deepseek  latent attention, a mixture of experts plus shared ones, dense first layers: deepseek.c
 *   mamba2  a state-space model: mamba2.c
 *   t5      encoder and decoder, relative positions: t5.c
 *   vit     GPT's layers over patches of an image: vit.c
 *   resnet50, vgg16, mobilenet, densenet121, unet: see convnets.h
 *
 * Every layer is a region "block"; inside it "layernorm" are the norms, "core_attn" is the attention and "mlp" the
 * feed-forward part; deepseek's have "mla_up_proj", "moe", "moe_act" and "shared_experts" too, t5's decoder
 * "cross_attn"; layers that predict further tokens are in a region "mtp". mamba2's have "ssd" and nothing else.
 */
#ifndef REWIND_BENCH_MODEL_H
#define REWIND_BENCH_MODEL_H

#include <rewind/rewind.h>

enum model_kind {
    MODEL_GPT,
    MODEL_LLAMA,
    MODEL_DEEPSEEK,
    MODEL_MAMBA2,
    MODEL_T5,
    MODEL_VIT, /* this and the following have image inputs */
    MODEL_RESNET50, /* this and what follows: convnets.h */
    MODEL_VGG16,
    MODEL_MOBILENET,
    MODEL_DENSENET121,
    MODEL_UNET,
    MODEL_KINDS
};

static inline bool model_is_of_images(enum model_kind kind)
{
    return kind >= MODEL_VIT;
}

/* An image's side must be a multiple of this: unet halves it four times and concatenates the results of equal size. */
static inline int model_side_step(enum model_kind kind)
{
    return kind == MODEL_UNET ? 16 : 1;
}

struct model_config {
    enum model_kind kind;
    int layers, width, heads, kv_heads;
    int hidden;   /* of the feed-forward part; 0: 4 width (gpt, t5, vit), 8/3 width rounded up to 32 (llama) */
    int vocab;
    float rope_base; /* of llama; 0: 10000 */
    int max_seq;  /* of vit the largest side */
    float dropout;
    rw_dtype dtype;
    bool scores; /* attention with explicit scores instead of the fused one; not for deepseek */
    /* For deepseek; 0: derived from width and heads. head_width: of v, and of q and k without rope_width; q_rank and
       kv_rank: of the latents; q_rank 0 with a kv_rank: q is computed from x itself. */
    int experts, chosen, groups, best_groups, expert_hidden, shared, dense_layers;
    int head_width, rope_width, q_rank, kv_rank;
    bool softmax;    /* for deepseek: version 2's router, softmax without a balancing bias */
    int ahead;       /* for deepseek: tokens predicted after the next one, each by one more layer */
    double routed_scale; /* for deepseek's routed experts' weights; 0: 1 */
    double capacity; /* for deepseek's experts, relative to their average load; 0: unlimited */
    bool by_weight;  /* rows beyond the capacity are dropped by weight, not by position */
    bool gated;   /* for t5, which has a head_width too: as in version 1.1 */
    int state, chunk; /* for mamba2, which also has a head_width and groups: a state's width, 0: 16; the scan's chunk */
    int patch;    /* of vit: a patch's side, 0: 8 */
    bool valid;   /* for unet: as in its paper, convolutions without padding, and two classes */
};

#define MODEL_MAX_LAYERS 128

struct model_layer {
    rw_tensor *norm1, *norm1_bias, *qkv, *qkv_bias, *proj, *proj_bias;
    rw_tensor *norm2, *norm2_bias, *up, *up_bias, *gate, *down, *down_bias;
    rw_tensor *q_a, *q_norm, *q_b, *kv_a, *kv_norm, *kv_b, *router, *experts_up, *experts_down; /* deepseek's */
    rw_tensor *balance, *load, *ahead_x, *ahead_token, *ahead_join, *ahead_norm;
    rw_tensor *conv, *conv_bias, *dt_bias, *a_log, *d, *gate_norm; /* mamba2's */
    rw_tensor *q, *kv, *cross_norm, *cross_q, *cross_kv, *cross_proj; /* t5's */
};

struct model {
    struct model_config config;
    rw_context *ctx;
    rw_tensor *embedding, *positions, *norm, *norm_bias, *head;
    rw_tensor *decoder_positions, *encoder_norm;             /* t5's */
    rw_tensor *patch, *patch_bias, *class_token, *head_bias; /* vit's */
    struct model_layer layer[2 * MODEL_MAX_LAYERS];          /* t5's decoder follows its encoder */
    int64_t *counted; /* parameters are counted there and not created; NULL: they are created */
};

/* Sets a preset: tiny, small, and as published: for gpt gpt2-124m and gpt2-1.5b, for llama tinyllama-1.1b and llama3-8b
   (and gpt2-124m, with layers of that size), for deepseek v2-lite and v3, for mamba2 mamba2-130m and mamba2-2.7b, for
   t5 t5-small and t5-v1.1-small, for image networks published; these only set the first layer's width, except vit.
   False if there is none with that name. */
bool model_preset(struct model_config *config, const char *name);

/* Creates the parameters in ctx, of at most MODEL_MAX_LAYERS layers, and initializes them as GPT-2 does: normal 0.02,
   residual projections over sqrt(2 layers); t5 and mamba2 as their own code does. */
rw_status model_create(struct model *m, rw_context *ctx, const struct model_config *config);

/* The same without initializing them: their bytes are zeros. */
rw_status model_declare(struct model *m, rw_context *ctx, const struct model_config *config);

/* Number of parameters, for any size: none is created, and no context is needed. 0 for image networks. */
int64_t model_parameters(const struct model_config *config);

/* Initializes the parameters again from the context's generator. */
rw_status model_init(const struct model *m);

/* Whether a model has layernorm, biases and gelu, which llama has not. */
static inline bool model_is_biased(const struct model_config *c)
{
    return c->kind == MODEL_GPT || c->kind == MODEL_VIT;
}

/* One layer of gpt, llama or vit, without its region. x [batch, seq, width]. */
rw_tensor *model_block(const struct model *m, rw_tape *t, rw_tensor *x, int layer);

/* Mean cross-entropy of the next byte: tokens and targets are [batch, seq]. An image network gets seq x seq images of
   the tokens (convnets.h), whose class is the first target. */
rw_tensor *model_loss(const struct model *m, rw_tape *t, int batch, int seq, const int32_t *tokens,
                      const int32_t *targets);

/* The same with two inputs [batch, seq] of the caller's, which can be written between the launches of a graph. */
rw_tensor *model_loss_of(const struct model *m, rw_tape *t, rw_tensor *tokens, rw_tensor *targets);

/* Work after the optimizer's step, on an empty tape, which is empty again afterwards: balances deepseek's experts. */
rw_status model_end_step(const struct model *m, rw_tape *t);

const char *model_name(enum model_kind kind);

#endif
