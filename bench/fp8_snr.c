/*
 * The signal-to-noise ratio of the outputs and gradients of FP8 linear layers, in decibels, compared with the minimum
 * of torchao's tests (test/float8/test_base.py and test_numerics_integration.py,
 * test/prototype/blockwise_fp8_training/test_blockwise_linear.py, at 36027d8), on their shapes and data: normal inputs,
 * weights initialized as in torch.nn.Linear, a loss that is the sum. The feed-forward has 128 rows instead of 8,192,
 * the blockwise layer an eighth of the outputs. The reference is the model in float32; theirs is in the training type.
 * Also measures the time to dequantize a product's factors.
 *
 *   fp8_snr [SHARE]   sizes of the two large layers over SHARE [4]; 1: as in torchao
 */
#include "figure.h"

#include <rewind/rewind.h>

#include <math.h>
#include <string.h>

enum { MAX = 5 };

/* A model, and the compared tensors: its output, the gradients of its input and its weights. */
struct subject {
    const char *name;
    rw_tensor *(*record)(rw_tape *t, rw_tensor *const *w, rw_tensor *x);
    rw_shape x, weight[MAX - 2];
    int n_weights;
    bool biased;
    double least_y, least_gradient; /* dB */
};

struct world {
    rw_context *ctx;
    rw_tape *t;
    rw_tensor *w[MAX];
};

struct results {
    float *data[MAX]; /* y, dx, dw ... */
    int64_t n[MAX];
    int count;
};

static rw_tensor *linear(rw_tape *t, rw_tensor *const *w, rw_tensor *x)
{
    return rw_linear(t, x, w[0], w[1] ? w[1] : RW_NONE);
}

/* Llama's: w2(silu(w1 x) * w3 x) */
static rw_tensor *feed_forward(rw_tape *t, rw_tensor *const *w, rw_tensor *x)
{
    rw_tensor *const gate = rw_linear(t, x, w[0], RW_NONE), *const up = rw_linear(t, x, w[2], RW_NONE);
    return rw_linear(t, rw_swiglu(t, gate, up), w[1], RW_NONE);
}

static void check(rw_context *ctx, rw_status status)
{
    if (!status) return;
    fprintf(stderr, "fp8_snr: %s\n", rw_error_message(ctx));
    exit(1);
}

/* Creates the weights of a subject in a context of its own. */
static void open_world(struct world *w, const struct subject *s)
{
    *w = (struct world){ 0 };
    check(NULL, rw_context_create(&w->ctx, &(rw_context_params){ .seed = 1 }));
    check(w->ctx, rw_tape_create(&w->t, w->ctx));
    for (int i = 0; i < s->n_weights; i++) {
        char name[8];
        const double bound = 1 / sqrt((double)s->weight[i].dim[1]);
        snprintf(name, sizeof name, "w%d", i);
        w->w[i] = rw_param(w->ctx, name, RW_F32, s->weight[i]);
        rw_init_uniform(w->w[i], -bound, bound);
    }
    if (s->biased) {
        w->w[1] = rw_param(w->ctx, "b", RW_F32, RW_SHAPE(s->weight[0].dim[0]));
        rw_init_uniform(w->w[1], -1 / sqrt((double)s->weight[0].dim[1]), 1 / sqrt((double)s->weight[0].dim[1]));
    }
    check(w->ctx, rw_error_status(w->ctx));
}

static void keep(struct world *w, struct results *r, rw_tensor *x)
{
    const int i = r->count++;
    r->n[i] = rw_shape_numel(rw_tensor_shape(x));
    r->data[i] = malloc((size_t)r->n[i] * sizeof(float));
    check(w->ctx, rw_read(NULL, x, r->data[i], (size_t)r->n[i] * sizeof(float)));
}

/* recipe NULL: float32. The input is drawn from the same ticket each time. */
static struct results run(struct world *w, const struct subject *s, const rw_recipe *recipe)
{
    struct results r = { 0 };
    rw_generator_set(w->ctx, (rw_generator_state){ .seed = 7 });
    rw_zero_grad(w->ctx);
    rw_tensor *const x = rw_require_grad(w->t, rw_randn(w->t, RW_F32, s->x));
    if (recipe) check(w->ctx, rw_recipe_begin(w->t, recipe));
    rw_tensor *const y = rw_cast(w->t, s->record(w->t, w->w, x), RW_F32);
    if (recipe) check(w->ctx, rw_recipe_end(w->t));
    rw_tensor *const loss = rw_sum(w->t, y, RW_ALL_AXES, false);
    check(w->ctx, rw_eval(w->t, (rw_tensor *[]){ loss, y }, 2));
    keep(w, &r, y);
    check(w->ctx, rw_backward(w->t, loss));
    keep(w, &r, rw_gradient(x));
    for (int i = 0; i < s->n_weights; i++) keep(w, &r, rw_gradient(w->w[i]));
    rw_tape_reset(w->t);
    return r;
}

static double decibels(const float *is, const float *approx, int64_t n)
{
    double signal = 0, noise = 0;
    for (int64_t i = 0; i < n; i++) {
        const double a = (double)is[i], d = a - (double)approx[i];
        signal += a * a, noise += d * d;
    }
    return 10 * log10(signal / noise);
}

static void forget(struct results *r)
{
    for (int i = 0; i < r->count; i++) free(r->data[i]);
}

static void print(const struct subject *s, const char *how, const struct results *is, const struct results *approx)
{
    char name[160];
    double least = INFINITY;
    for (int i = 1; i < is->count; i++) {
        const double db = decibels(is->data[i], approx->data[i], is->n[i]);
        least = db < least ? db : least;
    }
    snprintf(name, sizeof name, "output of %s, %s", s->name, how);
    figure_at_least(name, decibels(is->data[0], approx->data[0], is->n[0]), "dB", s->least_y);
    snprintf(name, sizeof name, "gradients of %s, %s", s->name, how);
    figure_at_least(name, least, "dB", s->least_gradient);
}

/* Delayed scales: two steps with the same numbers determine them. */
static struct results run_delayed(struct world *w, const struct subject *s)
{
    rw_delayed_scaling *d = NULL;
    check(w->ctx, rw_delayed_scaling_create(&d, w->ctx, NULL));
    const rw_recipe recipe = { .kind = RW_RECIPE_F8, .delayed = d };
    struct results r = { 0 };
    for (int step = 0; step < 3; step++) {
        forget(&r);
        r = run(w, s, &recipe);
        check(w->ctx, rw_delayed_scaling_update(d, NULL));
    }
    rw_delayed_scaling_destroy(&d);
    return r;
}

/* Prints the signal-to-noise ratios of one model under each recipe. */
static void measure(const struct subject *s, bool blocks)
{
    static const struct {
        const char *name;
        rw_recipe recipe;
        bool blocks;
    } ways[] = { { "by tensor", { .kind = RW_RECIPE_F8 }, false },
                 { "1x128 and 128x128, gradients in E4M3",
                   { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_1X128, .gradient_dtype = RW_F8_E4M3 }, true },
                 { "MX, gradients in E4M3",
                   { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_MX, .gradient_dtype = RW_F8_E4M3 }, true } };
    struct world w;
    open_world(&w, s);
    struct results is = run(&w, s, NULL);
    for (int i = 0; i < 3; i++) {
        if (blocks && !ways[i].blocks) continue;
        struct results approx = run(&w, s, &ways[i].recipe);
        print(s, ways[i].name, &is, &approx);
        forget(&approx);
    }
    if (!blocks) {
        struct results approx = run_delayed(&w, s);
        print(s, "by earlier steps", &is, &approx);
        forget(&approx);
    }
    forget(&is);
    rw_tape_destroy(&w.t);
    rw_context_destroy(&w.ctx);
}

/* Milliseconds of a layer in a context that executes each op as it is recorded. */
static double time_of(struct world *w, rw_tensor *x, rw_tensor *weight)
{
    const double begin = now_s();
    rw_linear(w->t, x, weight, RW_NONE);
    check(w->ctx, rw_error_status(w->ctx));
    return 1e3 * (now_s() - begin);
}

/*
 * A product of [1024, 768] and [3072, 768] dequantizes both, panel by panel: its additional time over a product of
 * dequantized factors, by medians of rounds in which each runs once. The first layer quantizes, the second uses the
 * kept data.
 */
static void measure_decoding(void)
{
    enum { ROUNDS = 31 };
    static const struct subject s = { .weight = { { 2, { 3072, 768 } }, { 2, { 1024, 768 } } }, .n_weights = 2 };
    static const rw_recipe recipe = { .kind = RW_RECIPE_F8 };
    double more[ROUNDS], product[ROUNDS];
    char name[160];
    struct world w;
    setenv("REWIND_EAGER", "1", 1);
    open_world(&w, &s);
    for (int r = 0; r < ROUNDS; r++) {
        rw_tensor *const x = rw_cast(w.t, w.w[1], RW_BF16), *const weight = rw_cast(w.t, w.w[0], RW_BF16);
        check(w.ctx, rw_recipe_begin(w.t, &recipe));
        time_of(&w, x, w.w[0]);
        more[r] = time_of(&w, x, w.w[0]);
        check(w.ctx, rw_recipe_end(w.t));
        product[r] = time_of(&w, x, weight);
        more[r] -= product[r];
        rw_tape_reset(w.t);
    }
    const double d = median_of(more, ROUNDS), m = median_of(product, ROUNDS);
    snprintf(name, sizeof name, "decode of FP8 data of both factors beside the product (%.3g and %.3g ms)", d, m);
    figure(name, d / m, "of it", 0.05);
    rw_tape_destroy(&w.t);
    rw_context_destroy(&w.ctx);
}

int main(int argc, char **argv)
{
    const int64_t share = argc > 1 ? figure_integer(argv[1], 1, 64) : 4;
    const struct subject small[] = {
        { "a linear layer 16 to 32, [16, 16]", linear, RW_SHAPE(16, 16), { RW_SHAPE(32, 16) }, 1, false, 18, 17 },
        { "a linear layer 16 to 32 with a bias, [3, 2, 16, 16]", linear, RW_SHAPE(3, 2, 16, 16), { RW_SHAPE(32, 16) },
          1, true, 18, 17 },
        { "the feed-forward of Llama 3", feed_forward, RW_SHAPE(1, 128, 4096 / share),
          { RW_SHAPE(14336 / share, 4096 / share), RW_SHAPE(4096 / share, 14336 / share),
            RW_SHAPE(14336 / share, 4096 / share) },
          3, false, 20, 20 },
    };
    const struct subject blocks = { "a linear layer 4096 wide by blocks, [8, 4096]", linear, RW_SHAPE(8, 4096),
                                    { RW_SHAPE(128256 / (8 * share), 4096) }, 1, false, 25, 30 };
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) measure(&small[i], false);
    measure(&blocks, true);
    measure_decoding();
    return answer_end("fp8_snr", 0);
}
