/*
 * Memory of gradients with fused updates: for GPT-2 124M, whose largest parameter is the embedding that is also its
 * output, and for a Llama of that size. Compared with the memory of all gradients, and of the whole step including
 * activations; also with clipped gradients, for which backward is executed twice.
 *
 *     fused_update_memory [SEQ]
 */
#include "figure.h"
#include "models/model.h"

#include <rewind/optimizers.h>

enum how { AFTER, INSIDE, CLIPPED, CLIPPED_INSIDE };

struct taken {
    rw_memory memory;
    double seconds;
    size_t largest; /* of a parameter's gradient */
};

static void die(rw_context *ctx, const char *what)
{
    fprintf(stderr, "fused_update_memory: %s: %s\n", what, rw_error_message(ctx));
    exit(1);
}

static size_t largest_gradient(const rw_context *ctx)
{
    size_t most = 0;
    for (size_t i = 0; rw_param_get(ctx, i); i++) {
        const rw_tensor *const g = rw_gradient(rw_param_get(ctx, i));
        if (g && rw_tensor_bytes(g) > most) most = rw_tensor_bytes(g);
    }
    return most;
}

enum { TIMED = 5 };

/* Some launches; all except the first are timed. SGD without momentum, because optimizer states do not matter here. */
static struct taken launch(const struct model_config *c, enum how how)
{
    struct model m;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    rw_graph *g = NULL;
    struct taken r;
    int32_t *const tokens = calloc((size_t)c->max_seq, sizeof *tokens);
    if (!tokens || rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 }))
        die(NULL, "rw_context_create");
    if (rw_tape_create(&t, ctx) || model_create(&m, ctx, c) || ckpt_set_policy(t, "full") ||
        rw_sgd_create(&opt, ctx, NULL))
        die(ctx, "creating the model");
    const rw_graph_params params = {
        { how >= CLIPPED ? rw_record_clip(1) : rw_record_nothing(),
          how == INSIDE || how == CLIPPED_INSIDE ? rw_record_update_inside(opt) : rw_record_update(opt) }
    };
    if (rw_graph_create(&g, t, model_loss(&m, t, 1, c->max_seq, tokens, tokens), &params) || rw_graph_launch(g))
        die(ctx, "a step");
    double seconds[TIMED];
    for (int i = 0; i < TIMED; i++) {
        const double begin = now_s();
        if (rw_graph_launch(g)) die(ctx, "a step");
        seconds[i] = now_s() - begin;
    }
    r.seconds = median_of(seconds, TIMED);
    rw_memory_stats(ctx, &r.memory);
    r.largest = largest_gradient(ctx);
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    free(tokens);
    return r;
}

/* Compares the memory of updates inside and after backward, with and without clipping. */
static void report(const char *name, const struct model_config *c)
{
    char text[160];
    const struct taken after = launch(c, AFTER), inside = launch(c, INSIDE);
    const struct taken clipped = launch(c, CLIPPED), twice = launch(c, CLIPPED_INSIDE);
    const size_t used = inside.memory.consumed + inside.memory.gradients;
    snprintf(text, sizeof text, "gradients over the largest one, fused updates, %s (%.1f and %.1f MB, all: %.1f)",
             name, (double)used / 1e6, (double)inside.largest / 1e6, (double)after.memory.gradients / 1e6);
    figure(text, (double)used / (double)inside.largest, "times", 1.15);
    printf("gradients and activations, updates fused and after backward, %s, %.1f and %.1f MB, for comparison\n",
           name, (double)(inside.memory.gradients + inside.memory.measured_peak) / 1e6,
           (double)(after.memory.gradients + after.memory.measured_peak) / 1e6);
    snprintf(text, sizeof text, "gradients over the largest one, clipped fused updates, %s (%.1f MB)", name,
             (double)(twice.memory.consumed + twice.memory.gradients) / 1e6);
    figure(text, (double)(twice.memory.consumed + twice.memory.gradients) / (double)twice.largest, "times", 1.15);
    printf("step time with clipped fused updates over that with updates after backward, %s (%.0f and %.0f ms), %.3f "
           "times, for comparison\n", name, 1e3 * twice.seconds, 1e3 * clipped.seconds,
           twice.seconds / clipped.seconds);
}

int main(int argc, char **argv)
{
    const int seq = argc > 1 ? figure_integer(argv[1], 1, 1 << 16) : 64;
    if (seq < 1) return fprintf(stderr, "fused_update_memory [SEQ]\n"), 2;
    const struct model_config gpt = { .kind = MODEL_GPT, .layers = 12, .width = 768, .heads = 12, .kv_heads = 12,
                                      .vocab = 50257, .max_seq = seq };
    struct model_config llama = gpt;
    llama.kind = MODEL_LLAMA;
    llama.vocab = 32000;
    report("GPT-2 124M", &gpt);
    report("Llama 134M", &llama);
    return answer_end("fused_update_memory", 0);
}
