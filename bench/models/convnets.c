/* The layers and networks of convnets.h. */
#include "models/convnets.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A network being recorded: parameters are numbered in the order of their first use. */
struct net {
    rw_context *ctx;
    rw_tape *t;
    rw_dtype dtype;
    int64_t width;
    int classes, met;
    bool valid; /* convolutions without padding */
};

static rw_tensor *param(struct net *n, const char *kind, const char *what, rw_shape shape)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d.%s", kind, n->met, what);
    rw_tensor *const p = rw_param_find(n->ctx, name);
    return p ? p : rw_param(n->ctx, name, n->dtype, shape);
}

static rw_tensor *buffer(struct net *n, const char *what, int64_t c)
{
    char name[64];
    snprintf(name, sizeof name, "bn.%d.%s", n->met, what);
    rw_tensor *const b = rw_param_find(n->ctx, name);
    return b ? b : rw_buffer(n->ctx, name, n->dtype == RW_F64 ? RW_F64 : RW_F32, RW_SHAPE(c));
}

static rw_tensor *end(struct net *n, rw_tensor *x)
{
    ckpt_end(n->t);
    return x;
}

/* ---- layers ---- */

struct layer {
    int64_t out, kernel, stride, groups;
    bool bias;
};

static rw_tensor *conv(struct net *n, rw_tensor *x, struct layer l)
{
    if (!x) return NULL;
    const int64_t in = rw_tensor_shape(x).dim[1], groups = l.groups ? l.groups : 1;
    const int stride = l.stride ? (int)l.stride : 1, padding = n->valid ? 0 : (int)l.kernel / 2;
    n->met++;
    rw_tensor *const w = param(n, "conv", "weight", RW_SHAPE(l.out, in / groups, l.kernel, l.kernel));
    rw_tensor *const bias = l.bias ? param(n, "conv", "bias", RW_SHAPE(l.out)) : RW_NONE;
    ckpt_begin(n->t, "conv");
    return end(n, rw_conv2d(n->t, x, w, bias, &(rw_conv2d_params){ .stride = { stride, stride },
                                                                    .padding = { padding, padding },
                                                                    .groups = (int)groups }));
}

/* A batch norm with relu, of the sum with `add`, if given: in one region, so that both are recomputed together. */
static rw_tensor *bn_with(struct net *n, rw_tensor *x, bool relu, rw_tensor *add)
{
    if (!x) return NULL;
    const int64_t c = rw_tensor_shape(x).dim[1];
    n->met++;
    rw_tensor *const w = param(n, "bn", "weight", RW_SHAPE(c)), *const b = param(n, "bn", "bias", RW_SHAPE(c));
    rw_tensor *const mean = buffer(n, "running_mean", c), *const var = buffer(n, "running_var", c);
    ckpt_begin(n->t, "bn");
    return end(n, rw_batchnorm(n->t, x, w, b, mean, var, &(rw_batchnorm_params){ .relu = relu, .add = add }));
}

static rw_tensor *bn_relu(struct net *n, rw_tensor *x)
{
    return bn_with(n, x, true, RW_NONE);
}

static rw_tensor *relu(struct net *n, rw_tensor *x)
{
    ckpt_begin(n->t, "relu");
    return end(n, rw_relu(n->t, x));
}

static rw_tensor *conv_bn_relu(struct net *n, rw_tensor *x, struct layer l)
{
    return bn_relu(n, conv(n, x, l));
}

static rw_tensor *max_pool(struct net *n, rw_tensor *x, int kernel, int padding)
{
    ckpt_begin(n->t, "pool");
    return end(n, rw_max_pool2d(n->t, x, &(rw_pool2d_params){ .kernel = { kernel, kernel }, .stride = { 2, 2 },
                                                              .padding = { padding, padding } }));
}

static rw_tensor *dense(struct net *n, rw_tensor *x, int64_t out)
{
    if (!x) return NULL;
    n->met++;
    return rw_linear(n->t, x, param(n, "fc", "weight", RW_SHAPE(out, rw_tensor_shape(x).dim[1])),
                     param(n, "fc", "bias", RW_SHAPE(out)));
}

/* [n, c, h, w] as rows. */
static rw_tensor *flat(struct net *n, rw_tensor *x)
{
    return x ? rw_reshape(n->t, x, RW_SHAPE(rw_tensor_shape(x).dim[0], -1)) : NULL;
}

static rw_tensor *classify(struct net *n, rw_tensor *x)
{
    return dense(n, flat(n, x ? rw_global_avg_pool2d(n->t, x) : NULL), n->classes);
}

/* ---- networks ---- */

/* A convolution of one tap is a product whose depth is the number of channels of x: at full size, where these are few,
   its result is the cheapest of all to recompute for its bytes. The first block has two of these. */
static rw_tensor *projection(struct net *n, rw_tensor *x, int64_t out, int stride)
{
    ckpt_begin(n->t, stride == 1 ? "projection" : "downsample");
    return end(n, conv(n, x, (struct layer){ out, 1, stride }));
}

static rw_tensor *bottleneck(struct net *n, rw_tensor *x, int64_t width, int stride, bool projects)
{
    ckpt_begin(n->t, "block");
    rw_tensor *y = conv_bn_relu(n, x, (struct layer){ width, 1 });
    y = conv_bn_relu(n, y, (struct layer){ width, 3, stride });
    y = projects && stride == 1 ? projection(n, y, 4 * width, 1) : conv(n, y, (struct layer){ 4 * width, 1 });
    if (projects) x = bn_with(n, projection(n, x, 4 * width, stride), false, RW_NONE);
    return end(n, x ? bn_with(n, y, true, x) : NULL);
}

static rw_tensor *resnet50(struct net *n, rw_tensor *x)
{
    static const int blocks[] = { 3, 4, 6, 3 };
    ckpt_begin(n->t, "block");
    x = end(n, max_pool(n, conv_bn_relu(n, x, (struct layer){ n->width, 7, 2 }), 3, 1));
    for (int stage = 0; stage < 4; stage++)
        for (int b = 0; b < blocks[stage]; b++)
            x = bottleneck(n, x, n->width << stage, stage && !b ? 2 : 1, !b);
    return classify(n, x);
}

/* The map as 7 x 7 for any image size, as in torchvision. */
static rw_tensor *seven(struct net *n, rw_tensor *x)
{
    const rw_shape s = x ? rw_tensor_shape(x) : RW_SHAPE(0);
    if (!x || (s.dim[2] == 7 && s.dim[3] == 7)) return x;
    return rw_adaptive_avg_pool2d(n->t, x, 7, 7);
}

/* Five stages of convolutions with relu, then three dense layers. */
static rw_tensor *vgg16(struct net *n, rw_tensor *x)
{
    static const int convs[] = { 2, 2, 3, 3, 3 };
    for (int stage = 0; stage < 5; stage++) {
        ckpt_begin(n->t, "block");
        for (int i = 0; i < convs[stage]; i++)
            x = relu(n, conv(n, x, (struct layer){ .out = n->width << (stage < 3 ? stage : 3), .kernel = 3,
                                                   .bias = true }));
        x = end(n, max_pool(n, x, 2, 0));
    }
    x = flat(n, seven(n, x));
    for (int i = 0; i < 2; i++) {
        ckpt_begin(n->t, "block");
        x = end(n, rw_dropout(n->t, relu(n, dense(n, x, 64 * n->width)), 0.5));
    }
    return dense(n, x, n->classes);
}

static rw_tensor *mobilenet(struct net *n, rw_tensor *x)
{
    static const struct {
        int times, stride; /* of half the width */
    } parts[] = { { 2, 1 }, { 4, 2 }, { 4, 1 }, { 8, 2 }, { 8, 1 }, { 16, 2 }, { 16, 1 }, { 16, 1 }, { 16, 1 },
                  { 16, 1 }, { 16, 1 }, { 32, 2 }, { 32, 1 } };
    x = conv_bn_relu(n, x, (struct layer){ n->width / 2, 3, 2 });
    for (size_t i = 0; x && i < sizeof parts / sizeof *parts; i++) {
        const int64_t in = rw_tensor_shape(x).dim[1];
        ckpt_begin(n->t, "block");
        x = conv_bn_relu(n, x, (struct layer){ in, 3, parts[i].stride, in });
        x = end(n, x ? conv_bn_relu(n, x, (struct layer){ parts[i].times * n->width / 2, 1 }) : NULL);
    }
    return classify(n, x);
}

static rw_tensor *bn_relu_conv(struct net *n, rw_tensor *x, struct layer l)
{
    return conv(n, bn_relu(n, x), l);
}

static rw_tensor *joined(struct net *n, rw_tensor *a, rw_tensor *b)
{
    ckpt_begin(n->t, "concat");
    return end(n, a && b ? rw_concat(n->t, (rw_tensor *const[]){ a, b }, 2, 1) : NULL);
}

/* Four dense blocks with transitions that halve channels and sides. */
static rw_tensor *densenet121(struct net *n, rw_tensor *x)
{
    static const int layers[] = { 6, 12, 24, 16 };
    const int64_t growth = n->width / 2;
    ckpt_begin(n->t, "block");
    x = end(n, max_pool(n, conv_bn_relu(n, x, (struct layer){ n->width, 7, 2 }), 3, 1));
    for (int stage = 0; x && stage < 4; stage++) {
        for (int i = 0; i < layers[stage]; i++) {
            ckpt_begin(n->t, "block");
            rw_tensor *const y = bn_relu_conv(n, x, (struct layer){ 4 * growth, 1 });
            x = end(n, joined(n, x, bn_relu_conv(n, y, (struct layer){ growth, 3 })));
        }
        if (!x || stage == 3) break;
        ckpt_begin(n->t, "transition");
        x = bn_relu_conv(n, x, (struct layer){ rw_tensor_shape(x).dim[1] / 2, 1 });
        x = end(n, rw_avg_pool2d(n->t, x, &(rw_pool2d_params){ .kernel = { 2, 2 } }));
    }
    return classify(n, bn_relu(n, x));
}

static rw_tensor *twice(struct net *n, rw_tensor *x, int64_t width)
{
    for (int i = 0; i < 2; i++) x = relu(n, conv(n, x, (struct layer){ .out = width, .kernel = 3, .bias = true }));
    return x;
}

static rw_tensor *up(struct net *n, rw_tensor *x, int64_t out)
{
    if (!x) return NULL;
    n->met++;
    rw_tensor *const w = param(n, "up", "weight", RW_SHAPE(rw_tensor_shape(x).dim[1], out, 2, 2));
    return rw_conv_transpose2d(n->t, x, w, param(n, "up", "bias", RW_SHAPE(out)),
                               &(rw_conv2d_params){ .stride = { 2, 2 } });
}

/* The middle of x, with the height and width of `like`. */
static rw_tensor *middle(rw_tape *t, rw_tensor *x, rw_tensor *like)
{
    for (int axis = 2; x && like && axis < 4; axis++) {
        const int64_t extent = rw_tensor_shape(like).dim[axis], from = (rw_tensor_shape(x).dim[axis] - extent) / 2;
        x = rw_slice(t, x, axis, from, from + extent);
    }
    return like ? x : NULL;
}

/* Contracting path, expanding path, and the concatenations between them. */
static rw_tensor *unet(struct net *n, rw_tensor *x)
{
    rw_tensor *skip[4];
    for (int i = 0; i < 4; i++) {
        ckpt_begin(n->t, "block");
        skip[i] = twice(n, x, n->width << i);
        x = end(n, max_pool(n, skip[i], 2, 0));
    }
    ckpt_begin(n->t, "block");
    x = end(n, twice(n, x, n->width << 4));
    for (int i = 3; i >= 0; i--) {
        ckpt_begin(n->t, "block");
        x = up(n, x, n->width << i);
        if (n->valid) skip[i] = middle(n->t, skip[i], x);
        x = end(n, twice(n, joined(n, skip[i], x), n->width << i));
    }
    return conv(n, x, (struct layer){ .out = n->classes, .kernel = 1, .bias = true });
}

/* ---- public functions ---- */

rw_tensor *images_forward(const struct model_config *c, rw_context *ctx, rw_tape *t, rw_tensor *x)
{
    const bool valid = c->kind == MODEL_UNET && c->valid;
    struct net n = { ctx, t, c->dtype, c->width, c->kind != MODEL_UNET ? c->vocab : valid ? 2 : 1, 0, valid };
    switch (c->kind) {
    case MODEL_RESNET50: return resnet50(&n, x);
    case MODEL_VGG16: return vgg16(&n, x);
    case MODEL_MOBILENET: return mobilenet(&n, x);
    case MODEL_DENSENET121: return densenet121(&n, x);
    default: return unet(&n, x);
    }
}

rw_tensor *images_loss(const struct model_config *c, rw_context *ctx, rw_tape *t, rw_tensor *x, rw_tensor *labels)
{
    rw_tensor *const y = images_forward(c, ctx, t, x);
    if (!y) return NULL;
    if (c->kind != MODEL_UNET) return rw_cross_entropy(t, y, labels);
    rw_tensor *target = rw_slice(t, x, 1, 0, 1);
    if (c->valid) target = rw_broadcast_to(t, middle(t, target, y), rw_tensor_shape(y));
    return rw_mse_loss(t, rw_sigmoid(t, y), rw_sigmoid(t, target));
}

rw_tensor *images_of_text(rw_tape *t, rw_tensor *tokens, rw_dtype dtype)
{
    const rw_shape s = tokens ? rw_tensor_shape(tokens) : RW_SHAPE(0, 0);
    const int64_t n = s.dim[0], side = s.dim[1];
    rw_tensor *const v = rw_scale(t, rw_add_scalar(t, rw_cast(t, tokens, dtype), -96), 1.0 / 32);
    /* Channels last, as in a file and as convolutions read them. */
    rw_tensor *const rows = rw_broadcast_to(t, rw_reshape(t, v, RW_SHAPE(n, side, 1, 1)), RW_SHAPE(n, side, side, 1));
    rw_tensor *const columns = rw_broadcast_to(t, rw_reshape(t, v, RW_SHAPE(n, 1, side, 1)),
                                               RW_SHAPE(n, side, side, 1));
    rw_tensor *const x = rw_concat(t, (rw_tensor *const[]){ rows, columns, rw_mul(t, rows, columns) }, 3, -1);
    return rw_permute(t, x, (const int[]){ 0, 3, 1, 2 });
}

rw_status images_init(rw_context *ctx)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && rw_param_get(ctx, i); i++) {
        rw_tensor *const p = rw_param_get(ctx, i);
        const rw_shape s = rw_tensor_shape(p);
        const char *const name = rw_tensor_name(p);
        if (strstr(name, "running_mean") || strstr(name, "bias")) status = rw_init_constant(p, 0);
        else if (s.rank == 1) status = rw_init_constant(p, 1);
        else status = rw_init_normal(p, 0, sqrt(2.0 * (double)s.dim[0] / (double)rw_shape_numel(s)));
    }
    return status;
}

rw_status images_create(const struct model_config *c, rw_context *ctx)
{
    const int64_t side = c->valid ? 188 : 32;
    rw_tape *t = NULL;
    rw_status status = rw_tape_create(&t, ctx);
    if (status) return status;
    rw_tensor *const x = rw_input(t, c->dtype, RW_SHAPE(2, 3, side, side), NULL, 0);
    if (!images_forward(c, ctx, t, x)) status = rw_error_status(ctx);
    rw_tape_destroy(&t);
    return status;
}
