/*
 * Six GPT blocks of width 768, batch 4 x 256, forward and backward, `none` and `full` alternately in one process, so
 * that their ratio holds on a noisy machine. Prints one JSON line per type and policy; bench/peers/pytorch_blocks.py
 * prints the same for PyTorch.
 *
 *   block_step [ROUNDS] [THREADS] [DROPOUT]
 */
#include "figure.h"
#include "device_roofline.h"
#include "models/model.h"

#include <string.h>

enum { LAYERS = 6, WIDTH = 768, BATCH = 4, SEQ = 256 };

struct runner {
    rw_context *ctx;
    rw_tape *t;
    struct model m;
    rw_tensor *ones;
};

static void runner_open(struct runner *r, rw_dtype dtype, int threads, float dropout)
{
    const struct model_config c = { .kind = MODEL_GPT, .layers = LAYERS, .width = WIDTH, .heads = 12, .kv_heads = 12,
                                    .vocab = 1, .max_seq = 1, .dropout = dropout, .dtype = dtype };
    figure_must(NULL, rw_context_create(&r->ctx, &(rw_context_params){ .seed = 1, .threads = threads }));
    figure_must(r->ctx, rw_tape_create(&r->t, r->ctx));
    figure_must(r->ctx, model_create(&r->m, r->ctx, &c));
}

/* Milliseconds of a step over the first `layers` blocks, and its memory. */
static double step(struct runner *r, const char *policy, int layers, rw_memory *memory)
{
    rw_tape *const t = r->t;
    ckpt_set_policy(t, policy);
    rw_generator_set(r->ctx, (rw_generator_state){ 1, 0 });
    rw_zero_grad(r->ctx);
    rw_tensor *x = rw_require_grad(t, rw_input(t, r->m.config.dtype, RW_SHAPE(BATCH, SEQ, WIDTH), NULL, 0));
    const double begin = now_s();
    for (int l = 0; l < layers; l++) {
        ckpt_begin(t, "block");
        x = model_block(&r->m, t, x, l);
        ckpt_end(t);
    }
    figure_must(r->ctx, rw_backward(t, rw_sum(t, x, RW_ALL_AXES, false)));
    const double ms = 1e3 * (now_s() - begin);
    rw_memory_stats(r->ctx, memory);
    rw_tape_reset(t);
    return ms;
}

/* kept_per_block is what one additional block keeps. */
static void print_line(struct runner *r, const char *policy, double ms, double ratio)
{
    rw_memory all = { 0 }, less = { 0 };
    step(r, policy, LAYERS - 1, &less);
    step(r, policy, LAYERS, &all);
    printf("{\"library\": \"rewind\", \"dtype\": \"%s\", \"threads\": %d, \"policy\": \"%s\", \"step_ms\": %.1f, "
           "\"ratio\": %.4f, \"kept_bytes\": %zu, \"kept_per_block_bytes\": %zu, \"peak_bytes\": %zu}\n",
           rw_dtype_name(r->m.config.dtype), rw_context_threads(r->ctx), policy, ms, ratio, all.kept,
           all.kept - less.kept, all.measured_peak);
    fflush(stdout);
}

/* The rate that matrix products reach on this machine through the library, for comparison with the other side's. */
static void print_product_rate(rw_dtype dtype, int threads)
{
    double tflops = 0;
    if (limit_matmul(&(rw_context_params){ .threads = threads }, dtype, &tflops)) return; /* the first step says why */
    printf("{\"library\": \"rewind\", \"dtype\": \"%s\", \"product_gflops\": %.1f}\n", rw_dtype_name(dtype),
           1e3 * tflops);
}

/* Alternates both policies for one type, prints a line for each, and returns their ratio. */
static double run(rw_dtype dtype, int rounds, int threads, float dropout)
{
    struct runner r = { 0 };
    rw_memory memory;
    double none[64], full[64];
    print_product_rate(dtype, threads);
    runner_open(&r, dtype, threads, dropout);
    for (int i = -1; i < rounds; i++) { /* the first one warms up */
        const double a = step(&r, "none", LAYERS, &memory), b = step(&r, "full", LAYERS, &memory);
        if (i >= 0) none[i] = a, full[i] = b;
    }
    const double ms = median_of(none, rounds), ratio = median_of(full, rounds) / ms;
    print_line(&r, "none", ms, 1);
    print_line(&r, "full", ms * ratio, ratio);
    rw_tape_destroy(&r.t);
    rw_context_destroy(&r.ctx);
    return ratio;
}

static int refuse(const char *value)
{
    fprintf(stderr, "block_step: \"%s\": usage: block_step [ROUNDS (1 to 64)] [THREADS] [DROPOUT (0 to 1)]\n", value);
    return 2;
}

int main(int argc, char **argv)
{
    double arg[3] = { 5, 0, 0.1 };
    for (int i = 1; i < argc; i++) {
        char *end;
        if (i > 3 || (arg[i - 1] = strtod(argv[i], &end), end == argv[i] || *end)) return refuse(argv[i]);
    }
    const int rounds = (int)arg[0], threads = (int)arg[1];
    if (rounds < 1 || rounds > 64 || threads < 0 || !(arg[2] >= 0 && arg[2] < 1)) return refuse("out of range");
    const double f32 = run(RW_F32, rounds, threads, (float)arg[2]), bf16 = run(RW_BF16, rounds, threads, (float)arg[2]);
    figure("step time of full over none, GPT blocks of width 768, f32", f32, "times", 1.28);
    figure("step time of full over none, GPT blocks of width 768, bf16", bf16, "times", 1.28);
    return answer_end("block_step", 0);
}
