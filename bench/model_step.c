/*
 * Runs steps of one model of bench/models, forward and backward, on request: a line of standard input is a policy, the
 * reply a line of JSON. bench/peers/pytorch_zoo.py alternates its requests with PyTorch; by hand:
 *
 *   echo none | model_step MODEL PRESET DTYPE BATCH SIZE [THREADS]      SIZE: length of a text, side of an image
 */
#include "figure.h"
#include "models/convnets.h"
#include "models/model.h"
#include "models/vit.h"

#include <string.h>

struct runner {
    rw_context *ctx;
    rw_tape *t;
    struct model m;
    int batch, size;
    int32_t *numbers; /* tokens, then targets; or labels */
    void *image;      /* [batch, size, size, 3], in the model's type, as PyTorch gets it */
};

static int refuse(const char *what)
{
    fprintf(stderr, "model_step: \"%s\": usage: echo POLICY | model_step MODEL PRESET DTYPE BATCH SIZE [THREADS]\n",
            what);
    return 2;
}

/* Cast once, before any step. */
static bool make_image(struct runner *r, rw_dtype dtype, size_t pixels)
{
    float *const given = malloc(pixels * sizeof *given);
    r->image = malloc(pixels * rw_dtype_size(dtype));
    for (size_t i = 0; given && i < pixels; i++) given[i] = (float)(i * 7 % 255) / 128 - 1;
    rw_tensor *const x = given ? rw_input(r->t, RW_F32, RW_SHAPE((int64_t)pixels), given, pixels * sizeof *given)
                               : NULL;
    const bool good = x && r->image && !rw_read(r->t, rw_cast(r->t, x, dtype), r->image, pixels * rw_dtype_size(dtype));
    rw_tape_reset(r->t);
    free(given);
    return good;
}

static bool runner_open(struct runner *r, struct model_config *c, int threads)
{
    const size_t tokens = (size_t)r->batch * (size_t)r->size, pixels = tokens * (size_t)r->size * 3;
    if (c->max_seq < r->size) c->max_seq = r->size;
    r->numbers = malloc(2 * tokens * sizeof *r->numbers);
    if (!r->numbers) return false;
    for (size_t i = 0; i < 2 * tokens; i++) r->numbers[i] = (int32_t)(i * 7 % (size_t)c->vocab);
    return !rw_context_create(&r->ctx, &(rw_context_params){ .seed = 1, .threads = threads }) &&
           !rw_tape_create(&r->t, r->ctx) && !model_create(&r->m, r->ctx, c) &&
           (!model_is_of_images(c->kind) || make_image(r, c->dtype, pixels));
}

static rw_tensor *loss_of(struct runner *r)
{
    const struct model_config *const c = &r->m.config;
    const size_t tokens = (size_t)r->batch * (size_t)r->size;
    if (!r->image) return model_loss(&r->m, r->t, r->batch, r->size, r->numbers, r->numbers + tokens);
    rw_tensor *const labels = rw_input(r->t, RW_I32, RW_SHAPE(r->batch), r->numbers,
                                       (size_t)r->batch * sizeof *r->numbers);
    rw_tensor *const given = rw_input(r->t, c->dtype, RW_SHAPE(r->batch, r->size, r->size, 3), r->image,
                                      (size_t)(r->batch * r->size * r->size * 3) * rw_dtype_size(c->dtype));
    rw_tensor *const x = rw_permute(r->t, given, (const int[]){ 0, 3, 1, 2 });
    if (c->kind == MODEL_VIT) return rw_cross_entropy(r->t, vit_forward(&r->m, r->t, x), labels);
    return images_loss(c, r->ctx, r->t, x, labels);
}

/* Runs one requested step and prints its line of JSON. */
static bool step(struct runner *r, const char *policy)
{
    rw_memory memory = { 0 };
    rw_generator_set(r->ctx, (rw_generator_state){ 1, 0 });
    rw_zero_grad(r->ctx);
    rw_status status = ckpt_set_policy(r->t, policy);
    const double begin = now_s();
    if (!status) status = rw_backward(r->t, loss_of(r));
    const double ms = 1e3 * (now_s() - begin);
    if (!status) status = rw_memory_stats(r->ctx, &memory);
    rw_tape_reset(r->t);
    if (status) fprintf(stderr, "model_step: %s\n", rw_error_message(r->ctx));
    else
        printf("{\"library\": \"rewind\", \"model\": \"%s\", \"dtype\": \"%s\", \"threads\": %d, \"policy\": \"%s\", "
               "\"step_ms\": %.1f, \"kept_bytes\": %zu, \"peak_bytes\": %zu}\n",
               model_name(r->m.config.kind), rw_dtype_name(r->m.config.dtype), rw_context_threads(r->ctx), policy, ms,
               memory.kept, memory.measured_peak);
    fflush(stdout);
    return !status;
}

static bool read_config(struct model_config *c, char **argv)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    *c = (struct model_config){ .dtype = RW_F32 };
    while (c->kind < MODEL_KINDS && strcmp(argv[1], model_name(c->kind))) c->kind++;
    if (c->kind == MODEL_KINDS || !model_preset(c, argv[2])) return false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(argv[3], rw_dtype_name(types[i]))) c->dtype = types[i];
    c->dropout = c->kind == MODEL_GPT || c->kind == MODEL_T5 ? 0.1f : 0;
    return !strcmp(argv[3], rw_dtype_name(c->dtype));
}

int main(int argc, char **argv)
{
    struct runner r = { 0 };
    struct model_config c;
    char policy[256];
    if (argc < 6 || argc > 7) return refuse(argc > 1 ? argv[argc - 1] : "");
    r.batch = figure_integer(argv[4], 1, 4096), r.size = figure_integer(argv[5], 1, 65536);
    if (!read_config(&c, argv)) return refuse(argv[1]);
    bool good = runner_open(&r, &c, argc > 6 ? figure_integer(argv[6], 0, 1024) : 0);
    while (good && fgets(policy, sizeof policy, stdin)) {
        policy[strcspn(policy, "\n")] = 0;
        good = step(&r, policy);
    }
    if (*rw_error_message(r.ctx)) fprintf(stderr, "model_step: %s\n", rw_error_message(r.ctx));
    rw_tape_destroy(&r.t);
    rw_context_destroy(&r.ctx);
    free(r.numbers), free(r.image);
    return answer_end("model_step", good ? 0 : 1);
}
