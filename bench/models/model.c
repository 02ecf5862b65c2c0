/* Configuration, parameters, embedding and loss that the models share. See model.h. */
#include "models/model.h"

#include "models/block.h"
#include "models/deepseek.h"
#include "models/convnets.h"
#include "models/mamba2.h"
#include "models/t5.h"
#include "models/vit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *model_name(enum model_kind kind)
{
    static const char *const names[MODEL_KINDS] = { "gpt", "llama", "deepseek", "mamba2", "t5", "vit",
                                                    "resnet50", "vgg16", "mobilenet", "densenet121", "unet" };
    return names[kind];
}

static bool preset_of_images(struct model_config *c, const char *name)
{
    static const char *const names[] = { "tiny", "small", "published" };
    static const int widths[] = { 8, 24, 64 }, classes[] = { 256, 256, 1000 };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], name)) continue;
        c->width = widths[i];
        c->vocab = classes[i];
        c->layers = c->heads = c->kv_heads = 1;
        return true;
    }
    return false;
}

/* For gpt and llama; gpt has no key and value heads; kind -1: of both. */
static bool preset_of_text(struct model_config *c, const char *name)
{
    static const struct {
        int kind;
        const char *name;
        int layers, width, heads, kv_heads, hidden, vocab;
        float rope_base;
    } presets[] = { { -1, "tiny", 4, 64, 4, 2, 0, 256, 0 },
                    { -1, "small", 6, 256, 8, 4, 0, 256, 0 },
                    { -1, "gpt2-124m", 12, 768, 12, 4, 0, 50304, 0 },
                    { MODEL_GPT, "gpt2-1.5b", 48, 1600, 25, 25, 0, 50304, 0 },
                    { MODEL_LLAMA, "tinyllama-1.1b", 22, 2048, 32, 4, 5632, 32000, 10000 },
                    { MODEL_LLAMA, "llama3-8b", 32, 4096, 32, 8, 14336, 128256, 500000 } };
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(presets[i].name, name) || (presets[i].kind >= 0 && presets[i].kind != (int)c->kind)) continue;
        c->layers = presets[i].layers, c->width = presets[i].width, c->heads = presets[i].heads;
        c->kv_heads = c->kind == MODEL_LLAMA ? presets[i].kv_heads : presets[i].heads;
        c->hidden = presets[i].hidden, c->vocab = presets[i].vocab, c->rope_base = presets[i].rope_base;
        return true;
    }
    return false;
}

bool model_preset(struct model_config *c, const char *name)
{
    if (c->kind >= MODEL_RESNET50) return preset_of_images(c, name);
    if (c->kind == MODEL_VIT) return vit_preset(c, name);
    if (c->kind == MODEL_T5) return t5_preset(c, name);
    if (c->kind == MODEL_MAMBA2) return mamba2_preset(c, name);
    if (c->kind == MODEL_DEEPSEEK) return deepseek_preset(c, name);
    return preset_of_text(c, name);
}

static rw_tensor *param(const struct model *m, int layer, const char *name, rw_shape shape)
{
    char full[64];
    if (m->counted) {
        *m->counted += rw_shape_numel(shape);
        return RW_NONE;
    }
    if (layer < 0) snprintf(full, sizeof full, "%s", name);
    else snprintf(full, sizeof full, "h.%d.%s", layer, name);
    return rw_param(m->ctx, full, m->config.dtype, shape);
}

/* Creates the parameters of one layer of gpt, llama or vit. */
static void create_layer(struct model *m, int l)
{
    const struct model_config *const c = &m->config;
    const bool biased = model_is_biased(c);
    struct model_layer *const p = &m->layer[l];
    const int width = c->width, qkv = width + 2 * (width / c->heads) * c->kv_heads;
    p->norm1 = param(m, l, "ln_1.weight", RW_SHAPE(width));
    p->norm2 = param(m, l, "ln_2.weight", RW_SHAPE(width));
    p->qkv = param(m, l, "attn.qkv.weight", RW_SHAPE(qkv, width));
    p->proj = param(m, l, "attn.proj.weight", RW_SHAPE(width, width));
    p->up = param(m, l, "mlp.up.weight", RW_SHAPE(c->hidden, width));
    p->down = param(m, l, "mlp.down.weight", RW_SHAPE(width, c->hidden));
    p->norm1_bias = p->norm2_bias = p->qkv_bias = p->proj_bias = p->up_bias = p->down_bias = RW_NONE;
    if (!biased) {
        p->gate = param(m, l, "mlp.gate.weight", RW_SHAPE(c->hidden, width));
        return;
    }
    p->norm1_bias = param(m, l, "ln_1.bias", RW_SHAPE(width));
    p->norm2_bias = param(m, l, "ln_2.bias", RW_SHAPE(width));
    p->qkv_bias = param(m, l, "attn.qkv.bias", RW_SHAPE(qkv));
    p->proj_bias = param(m, l, "attn.proj.bias", RW_SHAPE(width));
    p->up_bias = param(m, l, "mlp.up.bias", RW_SHAPE(c->hidden));
    p->down_bias = param(m, l, "mlp.down.bias", RW_SHAPE(width));
}

static void defaults(struct model_config *c)
{
    if (c->kind == MODEL_DEEPSEEK) deepseek_defaults(c);
    if (c->kind == MODEL_MAMBA2) mamba2_defaults(c);
    if (c->kind == MODEL_T5) t5_defaults(c);
    if (c->kind == MODEL_VIT) vit_defaults(c);
    if (!c->hidden) c->hidden = model_is_biased(c) ? 4 * c->width : (8 * c->width / 3 + 31) / 32 * 32;
}

/* Creates the parameters of the whole model. */
static void create_all(struct model *m)
{
    const struct model_config *const c = &m->config;
    const bool biased = model_is_biased(c);
    if (c->kind == MODEL_VIT) vit_ends(m, param);
    else m->embedding = param(m, -1, "wte.weight", RW_SHAPE(c->vocab, c->width));
    if (c->kind == MODEL_GPT) m->positions = param(m, -1, "wpe.weight", RW_SHAPE(c->max_seq, c->width));
    for (int l = 0; l < c->layers + c->ahead; l++) {
        if (c->kind == MODEL_DEEPSEEK) deepseek_layer(m, l, param);
        else if (c->kind == MODEL_MAMBA2) mamba2_layer(m, l, param);
        else create_layer(m, l);
    }
    m->norm = param(m, -1, "ln_f.weight", RW_SHAPE(c->width));
    m->norm_bias = biased ? param(m, -1, "ln_f.bias", RW_SHAPE(c->width)) : RW_NONE;
    if (c->kind == MODEL_GPT || c->kind == MODEL_MAMBA2) m->head = m->embedding;
    else if (c->kind != MODEL_VIT) m->head = param(m, -1, "head.weight", RW_SHAPE(c->vocab, c->width));
}

static void create_parameters(struct model *m)
{
    defaults(&m->config);
    if (m->config.kind == MODEL_T5) t5_create(m, param);
    else create_all(m);
}

static bool is_too_deep(const struct model_config *c)
{
    return c->layers > MODEL_MAX_LAYERS || c->ahead > MODEL_MAX_LAYERS;
}

rw_status model_declare(struct model *m, rw_context *ctx, const struct model_config *config)
{
    if (is_too_deep(config)) return RW_ERR_ARGUMENT;
    *m = (struct model){ .config = *config, .ctx = ctx };
    if (config->kind >= MODEL_RESNET50) return images_create(config, ctx);
    create_parameters(m);
    return rw_error_status(ctx);
}

int64_t model_parameters(const struct model_config *config)
{
    int64_t n = 0;
    if (config->kind >= MODEL_RESNET50 || is_too_deep(config)) return 0;
    struct model m = { .config = *config, .counted = &n };
    create_parameters(&m);
    return n;
}

rw_status model_create(struct model *m, rw_context *ctx, const struct model_config *config)
{
    const rw_status status = model_declare(m, ctx, config);
    return status ? status : model_init(m);
}

rw_status model_init(const struct model *m)
{
    rw_status status = RW_OK;
    if (m->config.kind >= MODEL_RESNET50) return images_init(m->ctx);
    for (size_t i = 0; !status && rw_param_get(m->ctx, i); i++) {
        rw_tensor *const p = rw_param_get(m->ctx, i);
        const char *const name = rw_tensor_name(p);
        const bool residual = strstr(name, "proj.weight") || strstr(name, "down.weight");
        if (m->config.kind == MODEL_T5) status = t5_init(m, p);
        else if (strstr(name, "bias") || strstr(name, "load")) status = rw_init_constant(p, 0);
        else if (m->config.kind == MODEL_MAMBA2) status = mamba2_init(m, p);
        else if (strstr(name, "bias")) status = rw_init_constant(p, 0);
        else if (rw_tensor_shape(p).rank == 1) status = rw_init_constant(p, 1);
        else status = rw_init_normal(p, 0, residual ? 0.02 / sqrt(2.0 * m->config.layers) : 0.02);
    }
    return status;
}

static rw_tensor *embed(const struct model *m, rw_tape *t, rw_tensor *tokens)
{
    rw_tensor *x = rw_embedding(t, m->embedding, tokens);
    if (m->positions) x = rw_add(t, x, rw_slice(t, m->positions, 0, 0, rw_tensor_shape(tokens).dim[1]));
    return rw_dropout(t, x, m->config.dropout);
}

rw_tensor *model_loss_of(const struct model *m, rw_tape *t, rw_tensor *tokens, rw_tensor *targets)
{
    if (model_is_of_images(m->config.kind)) {
        rw_tensor *const labels = rw_reshape(t, rw_slice(t, targets, 1, 0, 1), RW_SHAPE(-1));
        rw_tensor *const x = images_of_text(t, tokens, m->config.dtype);
        if (m->config.kind == MODEL_VIT) return rw_cross_entropy(t, vit_forward(m, t, x), labels);
        return images_loss(&m->config, m->ctx, t, x, labels);
    }
    if (m->config.kind == MODEL_T5) return t5_loss(m, t, tokens, targets);
    rw_tensor *x = embed(m, t, tokens), *aux = NULL;
    for (int l = 0; l < m->config.layers; l++) {
        ckpt_begin(t, "block");
        if (m->config.kind == MODEL_DEEPSEEK) x = deepseek_block(m, t, x, l, &aux);
        else x = m->config.kind == MODEL_MAMBA2 ? mamba2_block(m, t, x, l) : model_block(m, t, x, l);
        ckpt_end(t);
    }
    rw_tensor *const last = model_norm(m, t, x, m->norm, m->norm_bias);
    rw_tensor *loss = rw_cross_entropy(t, rw_linear(t, last, m->head, RW_NONE), targets);
    rw_tensor *const ahead = x && m->config.ahead ? deepseek_ahead(m, t, x, targets, &aux) : NULL;
    if (ahead) loss = rw_add(t, loss, ahead);
    return aux ? rw_add(t, loss, aux) : loss;
}

rw_status model_end_step(const struct model *m, rw_tape *t)
{
    rw_tensor *written[2 * MODEL_MAX_LAYERS];
    const int n = m->config.kind == MODEL_DEEPSEEK ? deepseek_balance(m, t, written) : 0;
    const rw_status status = n ? rw_eval(t, written, (size_t)n) : RW_OK;
    rw_tape_reset(t);
    return status;
}

/* Token ids; zeros for NULL. */
static rw_tensor *ids(rw_tape *t, int batch, int seq, const int32_t *data)
{
    return rw_input(t, RW_I32, RW_SHAPE(batch, seq), data, data ? (size_t)batch * (size_t)seq * sizeof *data : 0);
}

rw_tensor *model_loss(const struct model *m, rw_tape *t, int batch, int seq, const int32_t *tokens,
                      const int32_t *targets)
{
    return model_loss_of(m, t, ids(t, batch, seq, tokens), ids(t, batch, seq, targets));
}
