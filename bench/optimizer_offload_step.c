/*
 * An optimizer whose states are offloaded to a file, compared with one whose states stay: AdamW with as many parameters
 * as GPT-2 124M. Prints its memory, the time of an update, and the rate at which states pass through the window: each
 * update reads and writes all of them. Nothing is computed in between, so nothing hides the disk.
 *
 *     optimizer_offload_step FOLDER [ROUNDS [LAYERS]]
 */
#include "figure.h"
#include "models/model.h"

#include <rewind/optimizers.h>

enum { ROUNDS_MAX = 32 };

struct taken {
    rw_memory memory;
    double update_s, made_s;
};

static void die(rw_context *ctx, const char *what)
{
    fprintf(stderr, "optimizer_offload_step: %s: %s\n", what, rw_error_message(ctx));
    exit(1);
}

/* Each parameter is its own gradient. */
static void make_gradients(rw_context *ctx, rw_tape *t)
{
    rw_tensor *sum = NULL, *p;
    for (size_t i = 0; (p = rw_param_get(ctx, i)); i++) {
        rw_tensor *const square = rw_sum(t, rw_mul(t, p, p), RW_ALL_AXES, false);
        sum = sum ? rw_add(t, sum, square) : square;
    }
    if (rw_backward(t, rw_scale(t, sum, 0.5))) die(ctx, "gradients");
    rw_tape_reset(t);
}

/* Time to create an optimizer, the median time of an update, and the memory that is then used. */
static struct taken measure(const struct model_config *c, const rw_state_offload *states, int rounds)
{
    struct model m;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    struct taken r = { 0 };
    double s[ROUNDS_MAX];
    if (rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 1 }))
        die(NULL, "rw_context_create");
    if (rw_tape_create(&t, ctx) || model_create(&m, ctx, c)) die(ctx, "creating the model");
    const double begin = now_s();
    if (rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .states = *states })) die(ctx, "creating the optimizer");
    r.made_s = now_s() - begin;
    make_gradients(ctx, t);
    for (int i = 0; i <= rounds; i++) {
        const double from = now_s();
        if (rw_optimizer_step(opt)) die(ctx, "an update");
        if (i) s[i - 1] = now_s() - from;
    }
    r.update_s = median_of(s, rounds);
    rw_memory_stats(ctx, &r.memory);
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return r;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 2 ? figure_integer(argv[2], 1, ROUNDS_MAX) : 3;
    const int layers = argc > 3 ? figure_integer(argv[3], 1, MODEL_MAX_LAYERS) : 12;
    if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX || layers < 1)
        return fprintf(stderr, "optimizer_offload_step FOLDER [ROUNDS [LAYERS]]\n"), 2;
    const struct model_config gpt = { .kind = MODEL_GPT, .layers = layers, .width = 768, .heads = 12, .kv_heads = 12,
                                      .vocab = 50257, .max_seq = 64 };
    char text[160];
    const struct taken stay = measure(&gpt, &(rw_state_offload){ .place = RW_STATE_DEVICE }, rounds);
    const struct taken go = measure(&gpt, &(rw_state_offload){ .place = RW_STATE_FILE, .path = argv[1] }, rounds);
    snprintf(text, sizeof text, "an optimizer's memory over its states, offloaded to a file (%.1f and %.1f MB)",
             (double)go.memory.optimizer / 1e6, (double)stay.memory.optimizer / 1e6);
    figure(text, (double)go.memory.optimizer / (double)stay.memory.optimizer, "of it", 0.07);
    printf("an update of states in a file, %.0f ms, and of states on the device, %.0f ms; in and out together %.0f "
           "MB/s; created in %.0f ms, for comparison\n", 1e3 * go.update_s, 1e3 * stay.update_s,
           2e-6 * (double)go.memory.files / go.update_s, 1e3 * go.made_s);
    return answer_end("optimizer_offload_step", 0);
}
