/*
 * Cross-entropy of a linear layer, by chunks of rows and with all logits in memory: time of forward and backward, and
 * the arena's peak. A GPT's head: 2,048 tokens, width 768, 50,257 classes. By chunks there are four products instead of
 * three, and the weight's gradient is read and written once per chunk.
 *
 *   linear_loss [ROUNDS] [ROWS] [WIDTH] [CLASSES]
 */
#include "figure.h"

#include <rewind/rewind.h>

#include <string.h>

struct head {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *e, *weight;
    int64_t rows, classes;
    int32_t *target;
};

static void head_open(struct head *h, rw_dtype dtype, int64_t width)
{
    figure_must(NULL, rw_context_create(&h->ctx, &(rw_context_params){ .seed = 1 }));
    figure_must(h->ctx, rw_tape_create(&h->t, h->ctx));
    h->e = rw_param(h->ctx, "e", dtype, RW_SHAPE(h->rows, width));
    h->weight = rw_param(h->ctx, "weight", dtype, RW_SHAPE(h->classes, width));
    rw_init_normal(h->e, 0, 1);
    rw_init_normal(h->weight, 0, 0.02);
}

/* Milliseconds of a step. */
static double step(struct head *h, bool by_chunks, rw_memory *memory)
{
    rw_zero_grad(h->ctx);
    rw_tensor *const x = rw_scale(h->t, h->e, 1), *const y = rw_input(h->t, RW_I32, RW_SHAPE(h->rows), h->target,
                                                                      (size_t)h->rows * sizeof *h->target);
    const double begin = now_s();
    rw_tensor *const loss = by_chunks ? rw_linear_cross_entropy(h->t, x, h->weight, y, NULL)
                                      : rw_cross_entropy(h->t, rw_linear(h->t, x, h->weight, RW_NONE), y);
    figure_must(h->ctx, rw_backward(h->t, loss));
    const double ms = 1e3 * (now_s() - begin);
    rw_memory_stats(h->ctx, memory);
    rw_tape_reset(h->t);
    return ms;
}

/* Alternates both ways in one type, and prints their ratios of time and peak. */
static void compare(struct head *h, rw_dtype dtype, int64_t width, int rounds)
{
    double ms[2][64];
    rw_memory memory[2];
    char name[128];
    head_open(h, dtype, width);
    for (int i = 0; i < rounds + 1; i++) /* the first of each makes plans */
        for (int k = 0; k < 2; k++) ms[k][i ? i - 1 : 0] = step(h, k, &memory[k]);
    const double whole = median_of(ms[0], rounds), chunks = median_of(ms[1], rounds);
    const double of_whole = (double)memory[0].measured_peak, of_chunks = (double)memory[1].measured_peak;
    snprintf(name, sizeof name, "peak of cross-entropy by chunks over that of all logits, %s (%.4g and %.4g MB)",
             rw_dtype_name(dtype), of_chunks / 1e6, of_whole / 1e6);
    figure(name, of_chunks / of_whole, "times", 0.25);
    snprintf(name, sizeof name, "step time of cross-entropy by chunks over that of all logits, %s (%.4g and %.4g ms)",
             rw_dtype_name(dtype), chunks, whole);
    figure(name, chunks / whole, "times", 1.6);
    rw_tape_destroy(&h->t);
    rw_context_destroy(&h->ctx);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? figure_integer(argv[1], 1, 64) : 3;
    struct head h = { .rows = argc > 2 ? figure_integer(argv[2], 1, 1 << 20) : 2048,
                      .classes = argc > 4 ? figure_integer(argv[4], 1, 1 << 20) : 50257 };
    const int64_t width = argc > 3 ? figure_integer(argv[3], 1, 1 << 20) : 768;
    h.target = calloc((size_t)h.rows, sizeof *h.target);
    for (int64_t i = 0; i < h.rows; i++) h.target[i] = (int32_t)(i * 31 % h.classes);
    compare(&h, RW_F32, width, rounds);
    compare(&h, RW_BF16, width, rounds);
    free(h.target);
    return answer_end("linear_loss", 0);
}
