/*
 * What gradients take when each parameter is updated inside backward: of GPT-2 124M, whose largest parameter is the
 * embedding that is its output, too, and of a Llama of that size. Beside it the memory of all gradients, and of the
 * whole step, activations included.
 *
 *     update_inside [SEQ]
 */
#include "figure.h"
#include "models/model.h"

#include <rewind/optimizers.h>

struct taken {
    rw_memory memory;
    size_t largest; /* of a parameter's gradient */
};

static void die(rw_context *ctx, const char *what)
{
    fprintf(stderr, "update_inside: %s: %s\n", what, rw_error_message(ctx));
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

/* One launch. SGD without momentum: what an optimizer keeps is no matter here. */
static struct taken launch(const struct model_config *c, bool inside)
{
    struct model m;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    rw_graph *g = NULL;
    struct taken r;
    int32_t *const tokens = calloc((size_t)c->max_seq, sizeof *tokens);
    if (!tokens || rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 })) exit(1);
    if (rw_tape_create(&t, ctx) || model_create(&m, ctx, c) || ckpt_set_policy(t, "full") ||
        rw_sgd_create(&opt, ctx, NULL))
        die(ctx, "making the model");
    const rw_graph_params params = { .optimizer = opt, .update_inside = inside };
    if (rw_graph_create(&g, t, model_loss(&m, t, 1, c->max_seq, tokens, tokens), &params) || rw_graph_launch(g))
        die(ctx, "a step");
    rw_memory_stats(ctx, &r.memory);
    r.largest = largest_gradient(ctx);
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    free(tokens);
    return r;
}

static void report(const char *name, const struct model_config *c)
{
    char text[160];
    const struct taken behind = launch(c, false), inside = launch(c, true);
    const size_t used = inside.memory.used_up + inside.memory.gradients;
    snprintf(text, sizeof text, "gradients over the largest one, updated inside, %s (%.1f and %.1f MB, all: %.1f)",
             name, (double)used / 1e6, (double)inside.largest / 1e6, (double)behind.memory.gradients / 1e6);
    figure(text, (double)used / (double)inside.largest, "times", 1.15);
    printf("gradients and activations, updated inside and behind backward, %s, %.1f and %.1f MB, for comparison\n",
           name, (double)(inside.memory.gradients + inside.memory.measured_peak) / 1e6,
           (double)(behind.memory.gradients + behind.memory.measured_peak) / 1e6);
}

int main(int argc, char **argv)
{
    const int seq = argc > 1 ? atoi(argv[1]) : 64;
    if (seq < 1) return fprintf(stderr, "update_inside [SEQ]\n"), 2;
    const struct model_config gpt = { .kind = MODEL_GPT, .layers = 12, .width = 768, .heads = 12, .kv_heads = 12,
                                      .vocab = 50257, .max_seq = seq };
    struct model_config llama = gpt;
    llama.kind = MODEL_LLAMA;
    llama.vocab = 32000;
    report("GPT-2 124M", &gpt);
    report("Llama 134M", &llama);
    return 0;
}
