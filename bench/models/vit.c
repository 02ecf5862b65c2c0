/*
 * A vision transformer (Dosovitskiy et al., arXiv 2010.11929): patches by a convolution of their size and stride, a
 * class token, learned positions, GPT's layers without the causal mask and with the exact gelu, and a head of the class
 * token. Positions are numbered by rows of patches: an image smaller than the largest has the first of them.
 */
#include "models/vit.h"

#include "models/block.h"

#include <string.h>

bool vit_preset(struct model_config *c, const char *name)
{
    static const struct {
        const char *name;
        int layers, width, heads, patch, side, vocab;
    } presets[] = { { "tiny", 4, 64, 4, 8, 0, 256 },
                    { "small", 6, 256, 8, 8, 0, 256 },
                    { "published", 12, 768, 12, 16, 224, 1000 } }; /* ViT-B/16 */
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(presets[i].name, name)) continue;
        c->layers = presets[i].layers, c->width = presets[i].width, c->patch = presets[i].patch;
        c->heads = c->kv_heads = presets[i].heads;
        c->max_seq = presets[i].side > c->max_seq ? presets[i].side : c->max_seq;
        c->vocab = presets[i].vocab;
        return true;
    }
    return false;
}

void vit_defaults(struct model_config *c)
{
    if (!c->patch) c->patch = 8;
    if (!c->max_seq) c->max_seq = 224;
}

void vit_ends(struct model *m, rw_tensor *(*param)(const struct model *m, int layer, const char *name, rw_shape shape))
{
    const struct model_config *const c = &m->config;
    const int side = (c->max_seq + c->patch - 1) / c->patch;
    m->patch = param(m, -1, "patch.weight", RW_SHAPE(c->width, 3, c->patch, c->patch));
    m->patch_bias = param(m, -1, "patch.bias", RW_SHAPE(c->width));
    m->class_token = param(m, -1, "class.weight", RW_SHAPE(1, 1, c->width));
    m->positions = param(m, -1, "wpe.weight", RW_SHAPE(1 + (int64_t)side * side, c->width));
    m->head = param(m, -1, "head.weight", RW_SHAPE(c->vocab, c->width));
    m->head_bias = param(m, -1, "head.bias", RW_SHAPE(c->vocab));
}

/* [n, 3, h, w] as [n, patches, width] */
static rw_tensor *patches(const struct model *m, rw_tape *t, rw_tensor *x)
{
    const int p = m->config.patch;
    const rw_shape s = rw_tensor_shape(x);
    const int64_t more[] = { 0, (p - s.dim[3] % p) % p, 0, (p - s.dim[2] % p) % p };
    x = rw_pad(t, x, more, 4, RW_PAD_CONSTANT, 0);
    ckpt_begin(t, "conv");
    x = rw_conv2d(t, x, m->patch, m->patch_bias, &(rw_conv2d_params){ .stride = { p, p } });
    ckpt_end(t);
    /* A convolution's result is channels last, so this is a view. */
    x = rw_permute(t, x, (const int[]){ 0, 2, 3, 1 });
    return rw_reshape(t, x, RW_SHAPE(s.dim[0], -1, m->config.width));
}

rw_tensor *vit_forward(const struct model *m, rw_tape *t, rw_tensor *x)
{
    const struct model_config *const c = &m->config;
    if (!x) return NULL;
    const int64_t n = rw_tensor_shape(x).dim[0];
    rw_tensor *const token = rw_broadcast_to(t, m->class_token, RW_SHAPE(n, 1, c->width));
    x = rw_concat(t, (rw_tensor *const[]){ token, patches(m, t, x) }, 2, 1);
    x = rw_add(t, x, rw_slice(t, m->positions, 0, 0, x ? rw_tensor_shape(x).dim[1] : 1));
    x = rw_dropout(t, x, c->dropout);
    for (int l = 0; l < c->layers; l++) {
        ckpt_begin(t, "block");
        x = model_block(m, t, x, l);
        ckpt_end(t);
    }
    x = model_norm(m, t, rw_select(t, x, 1, 0), m->norm, m->norm_bias);
    return rw_linear(t, x, m->head, m->head_bias);
}
