/*
 * Six GPT blocks of width 768, batch 4 x 256, forward and backward, `none` and `full` in turn in one process, so that
 * their ratio holds on a noisy machine. Prints one JSON line per type and policy; bench/peers/pytorch_blocks.py prints
 * the same of PyTorch.
 *
 *   block_step [ROUNDS] [THREADS] [DROPOUT]
 */
#include "figure.h"
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
    rw_context_create(&r->ctx, &(rw_context_params){ .seed = 1, .threads = threads });
    rw_tape_create(&r->t, r->ctx);
    if (model_create(&r->m, r->ctx, &c)) fprintf(stderr, "%s\n", rw_error_message(r->ctx));
}

static double step(struct runner *r, const char *policy, rw_memory *memory)
{
    rw_tape *const t = r->t;
    ckpt_set_policy(t, policy);
    rw_generator_set(r->ctx, (rw_generator_state){ 1, 0 });
    rw_zero_grad(r->ctx);
    rw_tensor *x = rw_require_grad(t, rw_input(t, r->m.config.dtype, RW_SHAPE(BATCH, SEQ, WIDTH), NULL));
    const double begin = now_s();
    for (int l = 0; l < LAYERS; l++) {
        ckpt_begin(t, "block");
        x = model_block(&r->m, t, x, l);
        ckpt_end(t);
    }
    if (rw_backward(t, rw_sum(t, x, RW_ALL_AXES, false))) fprintf(stderr, "%s\n", rw_error_message(r->ctx));
    const double ms = 1e3 * (now_s() - begin);
    rw_memory_stats(r->ctx, memory);
    rw_tape_reset(t);
    return ms;
}

static double run(rw_dtype dtype, int rounds, int threads, float dropout)
{
    struct runner r = { 0 };
    rw_memory none = { 0 }, full = { 0 };
    double a[64], b[64];
    runner_open(&r, dtype, threads, dropout);
    for (int i = -1; i < rounds; i++) {
        const double x = step(&r, "none", &none), y = step(&r, "full", &full);
        if (i >= 0) a[i] = x, b[i] = y;
    }
    const double ma = median_of(a, rounds), mb = median_of(b, rounds);
    printf("{\"library\": \"rewind\", \"dtype\": \"%s\", \"threads\": %d, \"policy\": \"none\", \"step_ms\": %.1f, "
           "\"kept_bytes\": %zu, \"peak_bytes\": %zu}\n",
           rw_dtype_name(dtype), rw_context_threads(r.ctx), ma, none.kept, none.measured_peak);
    printf("{\"library\": \"rewind\", \"dtype\": \"%s\", \"threads\": %d, \"policy\": \"full\", \"step_ms\": %.1f, "
           "\"kept_bytes\": %zu, \"peak_bytes\": %zu}\n",
           rw_dtype_name(dtype), rw_context_threads(r.ctx), mb, full.kept, full.measured_peak);
    fflush(stdout);
    rw_tape_destroy(&r.t);
    rw_context_destroy(&r.ctx);
    return mb / ma;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 5, threads = argc > 2 ? atoi(argv[2]) : 0;
    const float dropout = argc > 3 ? strtof(argv[3], NULL) : 0.1f;
    if (rounds < 1 || rounds > 64) return 2;
    const double f32 = run(RW_F32, rounds, threads, dropout), bf16 = run(RW_BF16, rounds, threads, dropout);
    figure("step time of full over none, GPT blocks of width 768, f32", f32, "times", 1.28);
    figure("step time of full over none, GPT blocks of width 768, bf16", bf16, "times", 1.28);
    return 0;
}
