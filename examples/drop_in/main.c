/*
 * A trainer in C with seven hand-written kernel pairs, before and after: the trainer's own step, and the same kernels
 * recorded by rw_call() in regions that are recomputed. Prints losses, the largest difference of gradients, and the
 * bytes that each policy keeps. docs/drop_in.md walks through it.
 *
 *   drop_in [--quick]
 */
#include "glue.h"
#include "trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = B * T };

struct model {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *p[PARAMS];
    float *data[PARAMS], *gradient[PARAMS]; /* the trainer's own */
    int32_t tokens[ROWS], targets[ROWS];
};

/* Deterministic numbers around 0, and ones for the weights of layernorm. */
static void fill(float *x, size_t n, int p)
{
    const bool ones = p == LNF_W || (p < WTE && (p % PER_LAYER == LN1_W || p % PER_LAYER == LN2_W));
    for (size_t i = 0; i < n; i++) x[i] = (ones ? 1 : 0) + 0.05f * (float)sin((double)i * 12.9898 + p * 78.233);
}

static bool model_open(struct model *m)
{
    char name[32];
    if (rw_context_create(&m->ctx, &(rw_context_params){ .device = RW_DEVICE_CPU }) || rw_tape_create(&m->t, m->ctx))
        return false;
    for (int p = 0; p < PARAMS; p++) {
        const size_t n = param_size(p);
        snprintf(name, sizeof name, "p%d", p);
        m->data[p] = malloc(n * sizeof(float)), m->gradient[p] = calloc(n, sizeof(float));
        m->p[p] = rw_param(m->ctx, name, RW_F32, RW_SHAPE(n));
        if (!m->data[p] || !m->gradient[p]) return false;
        fill(m->data[p], n, p);
        if (rw_write(m->p[p], m->data[p], n * sizeof(float))) return false;
    }
    for (int i = 0; i < ROWS; i++) m->tokens[i] = i * 31 % V, m->targets[i] = i * 17 % V;
    return true;
}

/* The trainer's forward, line by line, with regions around its layers. */
static rw_tensor *record(const struct model *m)
{
    rw_tape *const t = m->t;
    rw_tensor *const tokens = rw_input(t, RW_I32, RW_SHAPE(ROWS), m->tokens, sizeof m->tokens);
    rw_tensor *const targets = rw_input(t, RW_I32, RW_SHAPE(ROWS), m->targets, sizeof m->targets);
    rw_tensor *x = embedding(t, tokens, m->p[WTE], m->p[WPE], B, T, C);
    for (int l = 0; l < LAYERS; l++) {
        rw_tensor *const *const p = m->p + l * PER_LAYER;
        ckpt_begin(t, "layer");
        rw_tensor *h = matmul(t, layernorm(t, x, p[LN1_W], p[LN1_B], ROWS, C), p[QKV_W], p[QKV_B], ROWS, C, 3 * C);
        h = matmul(t, attention(t, h, B, T, C, NH), p[PROJ_W], p[PROJ_B], ROWS, C, C);
        x = residual(t, x, h, ROWS, C);
        h = matmul(t, layernorm(t, x, p[LN2_W], p[LN2_B], ROWS, C), p[FC_W], p[FC_B], ROWS, C, 4 * C);
        x = residual(t, x, matmul(t, gelu(t, h, ROWS, 4 * C), p[OUT_W], p[OUT_B], ROWS, 4 * C, C), ROWS, C);
        ckpt_end(t);
    }
    x = layernorm(t, x, m->p[LNF_W], m->p[LNF_B], ROWS, C);
    return rw_mean_all(t, crossentropy(t, matmul(t, x, m->p[WTE], NULL, ROWS, C, V), targets, ROWS, V));
}

/* The largest difference from the trainer's gradients, over the largest gradient; -1 after an error. */
static double largest_difference(const struct model *m)
{
    double largest = 0, difference = 0;
    for (int p = 0; p < PARAMS; p++) {
        const size_t n = param_size(p);
        float *const g = malloc(n * sizeof *g);
        if (!g || rw_read(m->t, rw_gradient(m->p[p]), g, n * sizeof *g)) difference = -INFINITY;
        for (size_t i = 0; g && i < n; i++) {
            largest = fmax(largest, fabs((double)m->gradient[p][i]));
            difference = fmax(difference, fabs((double)g[i] - (double)m->gradient[p][i]));
        }
        free(g);
    }
    return largest > 0 ? difference / largest : -1;
}

/* One step under a policy. */
static bool step(struct model *m, const char *policy)
{
    rw_memory memory;
    rw_zero_grad(m->ctx);
    ckpt_set_policy(m->t, policy);
    rw_tensor *const loss = record(m);
    bool good = !ckpt_verify(m->t, loss, NULL) && !rw_backward(m->t, loss) && !rw_memory_stats(m->ctx, &memory);
    const double value = rw_item(m->t, loss), difference = largest_difference(m);
    if (good)
        printf("%-10s loss %.6f  %7zu bytes kept  gradients differ by %.1g\n", policy, value, memory.kept, difference);
    good = good && difference >= 0 && difference < 1e-5;
    rw_tape_reset(m->t);
    return good;
}

int main(void)
{
    struct model m = { 0 };
    bool good = model_open(&m);
    if (good) printf("trainer loss %.6f\n", (double)trainer_step(m.data, m.gradient, m.tokens, m.targets));
    good = good && step(&m, "none") && step(&m, "full") && step(&m, "budget:60%");
    if (!good) fprintf(stderr, "drop_in: %s\n", rw_error_message(m.ctx));
    for (int p = 0; p < PARAMS; p++) free(m.data[p]), free(m.gradient[p]);
    rw_tape_destroy(&m.t);
    rw_context_destroy(&m.ctx);
    return good ? 0 : 1;
}
