/*
 * Several losses over one trunk, each with its own backward, and gradients that are projected before they are added: of
 * two conflicting gradients, each loses its component along the other (PCGrad, arXiv 2001.06782). Under `none` the
 * trunk's forward runs once, from the second step on; a policy that recomputes replays it for each backward, within its
 * budget (docs/training.md, "Evaluation and logging").
 *
 *   several_losses [--quick]
 */
#include <rewind/rewind.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 48, BATCH = 24, LAYERS = 3, TASKS = 3, NUMBERS = WIDTH * WIDTH };

struct model {
    rw_tensor *trunk[LAYERS], *head[TASKS];
};

typedef float numbers[NUMBERS];

static void check(const rw_context *ctx, rw_status status)
{
    if (!status && !rw_error_status(ctx)) return;
    fprintf(stderr, "several_losses: %s\n", rw_error_message(ctx));
    exit(1);
}

static void record(rw_tape *t, const struct model *m, const float *x, rw_tensor **loss)
{
    rw_tensor *h = rw_input(t, RW_F32, RW_SHAPE(BATCH, WIDTH), x, BATCH * WIDTH * sizeof *x);
    for (int l = 0; l < LAYERS; l++) h = rw_gelu(t, rw_linear(t, h, m->trunk[l], RW_NONE));
    for (int i = 0; i < TASKS; i++) {
        rw_tensor *const y = rw_add_scalar(t, rw_linear(t, h, m->head[i], RW_NONE), i - 1);
        loss[i] = rw_mean_all(t, rw_mul(t, y, y));
    }
}

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < NUMBERS; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* g loses its component along each gradient that it conflicts with, and is added to sum. */
static void project(numbers *g, float *sum)
{
    static numbers changed;
    memset(sum, 0, sizeof(numbers));
    for (int i = 0; i < TASKS; i++) {
        memcpy(changed, g[i], sizeof changed);
        for (int k = 0; k < TASKS; k++) {
            const double along = k == i ? 0 : dot(changed, g[k]), length = dot(g[k], g[k]);
            for (int n = 0; along < 0 && length > 0 && n < NUMBERS; n++)
                changed[n] -= (float)(along / length * g[k][n]);
        }
        for (int n = 0; n < NUMBERS; n++) sum[n] += changed[n];
    }
}

/* One step: a backward per loss, projection of the gradients, and the update. */
static void step(rw_context *ctx, rw_tape *t, const struct model *m, const float *x, double *ret_loss)
{
    static numbers g[LAYERS][TASKS], head[TASKS], sum;
    rw_tensor *loss[TASKS];
    record(t, m, x, loss);
    for (int i = 0; i < TASKS; i++) {
        check(ctx, rw_backward(t, loss[i]));
        for (int l = 0; l < LAYERS; l++) check(ctx, rw_read(NULL, rw_gradient(m->trunk[l]), g[l][i], sizeof(numbers)));
        check(ctx, rw_read(NULL, rw_gradient(m->head[i]), head[i], sizeof(numbers)));
        ret_loss[i] = rw_item(t, loss[i]); /* a copy: backward has computed it */
        rw_zero_grad(ctx);
    }
    for (int l = 0; l < LAYERS; l++) {
        project(g[l], sum);
        check(ctx, rw_write(rw_gradient(m->trunk[l]), sum, sizeof sum));
    }
    for (int i = 0; i < TASKS; i++) check(ctx, rw_write(rw_gradient(m->head[i]), head[i], sizeof(numbers)));
}

int main(int argc, char **argv)
{
    const int steps = argc > 1 && !strcmp(argv[1], "--quick") ? 3 : 20;
    static float x[BATCH * WIDTH];
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *sgd = NULL;
    struct model m;
    if (rw_context_create(&ctx, &(rw_context_params){ .seed = 11 }) || rw_tape_create(&t, ctx)) {
        fprintf(stderr, "several_losses: %s\n", rw_error_message(ctx));
        rw_context_destroy(&ctx);
        return 1;
    }
    for (int i = 0; i < LAYERS + TASKS; i++) {
        char name[16];
        snprintf(name, sizeof name, i < LAYERS ? "trunk.%d" : "head.%d", i < LAYERS ? i : i - LAYERS);
        rw_tensor *const w = rw_param(ctx, name, RW_F32, RW_SHAPE(WIDTH, WIDTH));
        rw_init_normal(w, 0, 0.2);
        *(i < LAYERS ? &m.trunk[i] : &m.head[i - LAYERS]) = w;
    }
    for (int i = 0; i < BATCH * WIDTH; i++) x[i] = (float)(i * 31 % 101) / 50 - 1;
    check(ctx, rw_sgd_create(&sgd, ctx, &(rw_sgd_params){ .lr = 0.05 }));
    for (int i = 0; i < steps; i++) {
        double loss[TASKS];
        step(ctx, t, &m, x, loss);
        check(ctx, rw_optimizer_step(sgd));
        printf("step %2d  losses %.4f %.4f %.4f\n", i, loss[0], loss[1], loss[2]);
        rw_zero_grad(ctx);
        rw_tape_reset(t);
    }
    rw_optimizer_destroy(&sgd);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return 0;
}
