/* The models of irregular_models.h. Convolutions are products of a row with its neighbors: lifetimes are the same. */
#include "irregular_models.h"

#include <stdio.h>

static rw_tensor *weight(rw_context *ctx, const char *name, int i, int64_t to, int64_t from)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%d", name, i);
    rw_tensor *const known = rw_param_find(ctx, full);
    if (known) return known;
    rw_tensor *const w = rw_param(ctx, full, RW_F32, RW_SHAPE(to, from));
    rw_init_normal(w, 0, 0.05);
    return w;
}

static rw_tensor *input(rw_tape *t, int64_t rows, int64_t width)
{
    return rw_input(t, RW_F32, RW_SHAPE(rows, width), NULL, 0);
}

static rw_tensor *squares(rw_tape *t, rw_tensor *x)
{
    return rw_mean(t, rw_mul(t, x, x), RW_ALL_AXES, false);
}

/* Gated layers with a residual, and a skip from each to the end. Source: van den Oord et al., arXiv 1609.03499. */
static rw_tensor *wavenet(const struct zoo_entry *z, rw_context *ctx, rw_tape *t)
{
    const int n = z->layers, width = z->width, wide = z->more;
    rw_tensor *x = rw_linear(t, input(t, 256, 8), weight(ctx, "in", 0, width, 8), RW_NONE), *skip[ZOO_LAYERS];
    for (int l = 0; l < n; l++) {
        ckpt_begin(t, "layer");
        rw_tensor *const f = rw_linear(t, x, weight(ctx, "filter", l, width, width), RW_NONE);
        rw_tensor *const g = rw_linear(t, x, weight(ctx, "gate", l, width, width), RW_NONE);
        rw_tensor *const y = rw_mul(t, rw_tanh(t, f), rw_sigmoid(t, g));
        skip[l] = rw_linear(t, y, weight(ctx, "skip", l, wide, width), RW_NONE);
        x = rw_add(t, x, rw_linear(t, y, weight(ctx, "out", l, width, width), RW_NONE));
        ckpt_end(t);
    }
    rw_tensor *sum = NULL;
    for (int l = 0; l < n; l++) sum = sum ? rw_add(t, sum, skip[l]) : skip[l];
    return squares(t, rw_linear(t, rw_relu(t, sum), weight(ctx, "head", 0, 16, wide), RW_NONE));
}

/* Each layer reads the concatenation of all earlier results. Source: Huang et al., arXiv 1608.06993. */
static rw_tensor *densenet(const struct zoo_entry *z, rw_context *ctx, rw_tape *t)
{
    const int n = z->layers, grows = z->width;
    rw_tensor *x[ZOO_LAYERS + 1] = { input(t, 256, z->more) };
    for (int l = 0; l < n; l++) {
        const int64_t width = z->more + l * grows;
        ckpt_begin(t, "layer");
        rw_tensor *const all = l ? rw_concat(t, x, l + 1, -1) : x[0];
        rw_tensor *const h = rw_relu(t, rw_linear(t, all, weight(ctx, "narrow", l, 4 * grows, width), RW_NONE));
        x[l + 1] = rw_relu(t, rw_linear(t, h, weight(ctx, "grow", l, grows, 4 * grows), RW_NONE));
        ckpt_end(t);
    }
    return squares(t, rw_concat(t, x, n + 1, -1));
}

/* Halving and doubling, with a skip at each level. Source: Ronneberger et al., arXiv 1505.04597. */
static rw_tensor *unet(const struct zoo_entry *z, rw_context *ctx, rw_tape *t)
{
    int64_t rows = z->more, width = z->width;
    rw_tensor *skip[ZOO_LAYERS], *x = input(t, rows, width);
    for (int l = 0; l < z->layers; l++, rows /= 2, width *= 2) {
        ckpt_begin(t, "layer");
        skip[l] = rw_relu(t, rw_linear(t, x, weight(ctx, "down", l, width, width), RW_NONE));
        x = rw_reshape(t, skip[l], RW_SHAPE(rows / 2, 2 * width));
        ckpt_end(t);
    }
    for (int l = z->layers - 1; l >= 0; l--) {
        rows *= 2, width /= 2;
        ckpt_begin(t, "layer");
        rw_tensor *const both[] = { skip[l], rw_reshape(t, x, RW_SHAPE(rows, width)) };
        x = rw_relu(t, rw_linear(t, rw_concat(t, both, 2, -1), weight(ctx, "up", l, width, 2 * width), RW_NONE));
        ckpt_end(t);
    }
    return squares(t, x);
}

/* Many small steps. Source: Hochreiter and Schmidhuber, Neural Computation 9(8), 1997. */
static rw_tensor *lstm(const struct zoo_entry *z, rw_context *ctx, rw_tape *t)
{
    const int64_t rows = z->more, width = z->width;
    rw_tensor *h = input(t, rows, width), *c = input(t, rows, width), *sum = NULL, *gate[4];
    for (int i = 0; i < z->layers; i++) {
        ckpt_begin(t, "layer");
        rw_tensor *const both[] = { input(t, rows, width), h };
        rw_tensor *const all = rw_linear(t, rw_concat(t, both, 2, -1), weight(ctx, "w", 0, 4 * width, 2 * width),
                                         RW_NONE);
        rw_split(t, all, -1, (const int64_t[]){ width, width, width, width }, 4, gate);
        c = rw_add(t, rw_mul(t, rw_sigmoid(t, gate[0]), c), rw_mul(t, rw_sigmoid(t, gate[1]), rw_tanh(t, gate[2])));
        h = rw_mul(t, rw_sigmoid(t, gate[3]), rw_tanh(t, c));
        ckpt_end(t);
        rw_tensor *const loss = squares(t, h);
        sum = sum ? rw_add(t, sum, loss) : loss;
    }
    return sum;
}

/* Placement was worst for some of these: 1.08 times the live bytes. */
const struct zoo_entry zoo[] = {
    { "wavenet 6", wavenet, 6, 64, 32 },   { "wavenet 16", wavenet, 16, 64, 32 },
    { "wavenet 30", wavenet, 30, 32, 128 }, { "densenet 4", densenet, 4, 8, 8 },
    { "densenet 6", densenet, 6, 12, 24 }, { "densenet 8", densenet, 8, 8, 24 },
    { "densenet 16", densenet, 16, 12, 24 }, { "unet 2", unet, 2, 16, 1024 },
    { "unet 3", unet, 3, 16, 1024 },       { "unet 5", unet, 5, 8, 1024 },
    { "lstm 40", lstm, 40, 32, 16 },
};
const int zoo_entries = sizeof zoo / sizeof *zoo;
const char *const zoo_policies[] = { "none", "full", "uniform:2", "uniform:3", "block:2", "ops:linear" };
const int zoo_n_policies = sizeof zoo_policies / sizeof *zoo_policies;
