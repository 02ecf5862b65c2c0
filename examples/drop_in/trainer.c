/* The trainer's step: buffers for every activation, forward, backward in the opposite order. */
#include "trainer.h"

#include "kernels.h"

#include <stdlib.h>

enum { ROWS = B * T, WIDE = 4 * C };

size_t param_size(int p)
{
    static const size_t of_layer[PER_LAYER] = { C, C, 3 * C * C, 3 * C, C * C, C, C, C, WIDE * C, WIDE, C * WIDE, C };
    if (p < WTE) return of_layer[p % PER_LAYER];
    return p == WTE ? (size_t)V * C : p == WPE ? (size_t)T * C : C;
}

/* Activations, and their gradients in a second struct of the same kind. */
struct layer {
    float ln1[ROWS * C], mean1[ROWS], rstd1[ROWS], qkv[ROWS * 3 * C], att[B * NH * T * T], mixed[ROWS * C];
    float proj[ROWS * C], sum1[ROWS * C], ln2[ROWS * C], mean2[ROWS], rstd2[ROWS], fc[ROWS * WIDE], gelu[ROWS * WIDE];
    float out[ROWS * C], sum2[ROWS * C];
};

struct activations {
    float embedded[ROWS * C], lnf[ROWS * C], mean[ROWS], rstd[ROWS], logits[ROWS * V], probs[ROWS * V], losses[ROWS];
    struct layer layer[LAYERS];
};

static void forward_layer(struct layer *a, const float *x, float *const *p)
{
    layernorm_forward(a->ln1, a->mean1, a->rstd1, x, p[LN1_W], p[LN1_B], ROWS, C);
    matmul_forward(a->qkv, a->ln1, p[QKV_W], p[QKV_B], ROWS, C, 3 * C);
    attention_forward(a->mixed, a->att, a->qkv, B, T, C, NH);
    matmul_forward(a->proj, a->mixed, p[PROJ_W], p[PROJ_B], ROWS, C, C);
    residual_forward(a->sum1, x, a->proj, ROWS * C);
    layernorm_forward(a->ln2, a->mean2, a->rstd2, a->sum1, p[LN2_W], p[LN2_B], ROWS, C);
    matmul_forward(a->fc, a->ln2, p[FC_W], p[FC_B], ROWS, C, WIDE);
    gelu_forward(a->gelu, a->fc, ROWS * WIDE);
    matmul_forward(a->out, a->gelu, p[OUT_W], p[OUT_B], ROWS, WIDE, C);
    residual_forward(a->sum2, a->sum1, a->out, ROWS * C);
}

static void backward_layer(struct layer *d, float *dx, const struct layer *a, const float *x, float *const *p,
                           float *const *g)
{
    residual_backward(d->sum1, d->out, d->sum2, ROWS * C);
    matmul_backward(d->gelu, g[OUT_W], g[OUT_B], d->out, a->gelu, p[OUT_W], ROWS, WIDE, C);
    gelu_backward(d->fc, d->gelu, a->fc, ROWS * WIDE);
    matmul_backward(d->ln2, g[FC_W], g[FC_B], d->fc, a->ln2, p[FC_W], ROWS, C, WIDE);
    layernorm_backward(d->sum1, g[LN2_W], g[LN2_B], d->ln2, a->sum1, p[LN2_W], a->mean2, a->rstd2, ROWS, C);
    residual_backward(dx, d->proj, d->sum1, ROWS * C);
    matmul_backward(d->mixed, g[PROJ_W], g[PROJ_B], d->proj, a->mixed, p[PROJ_W], ROWS, C, C);
    attention_backward(d->qkv, d->mixed, a->qkv, a->att, B, T, C, NH);
    matmul_backward(d->ln1, g[QKV_W], g[QKV_B], d->qkv, a->ln1, p[QKV_W], ROWS, C, 3 * C);
    layernorm_backward(dx, g[LN1_W], g[LN1_B], d->ln1, x, p[LN1_W], a->mean1, a->rstd1, ROWS, C);
}

float trainer_step(float *const *p, float *const *g, const int32_t *tokens, const int32_t *targets)
{
    struct activations *const a = calloc(1, sizeof *a), *const d = calloc(1, sizeof *d);
    float loss = 0;
    if (!a || !d) abort();
    embedding_forward(a->embedded, tokens, p[WTE], p[WPE], B, T, C);
    for (int l = 0; l < LAYERS; l++)
        forward_layer(&a->layer[l], l ? a->layer[l - 1].sum2 : a->embedded, p + l * PER_LAYER);
    const float *const last = a->layer[LAYERS - 1].sum2;
    layernorm_forward(a->lnf, a->mean, a->rstd, last, p[LNF_W], p[LNF_B], ROWS, C);
    matmul_forward(a->logits, a->lnf, p[WTE], NULL, ROWS, C, V);
    crossentropy_forward(a->losses, a->probs, a->logits, targets, ROWS, V);

    for (int i = 0; i < ROWS; i++) loss += a->losses[i] / ROWS, d->losses[i] = 1.0f / ROWS;
    crossentropy_backward(d->logits, d->losses, a->probs, targets, ROWS, V);
    matmul_backward(d->lnf, g[WTE], NULL, d->logits, a->lnf, p[WTE], ROWS, C, V);
    layernorm_backward(d->layer[LAYERS - 1].sum2, g[LNF_W], g[LNF_B], d->lnf, last, p[LNF_W], a->mean, a->rstd, ROWS,
                       C);
    for (int l = LAYERS - 1; l >= 0; l--)
        backward_layer(&d->layer[l], l ? d->layer[l - 1].sum2 : d->embedded, &a->layer[l],
                       l ? a->layer[l - 1].sum2 : a->embedded, p + l * PER_LAYER, g + l * PER_LAYER);
    embedding_backward(g[WTE], g[WPE], d->embedded, tokens, B, T, C);
    free(a), free(d);
    return loss;
}
