/*
 * The models of bench/models compared with PyTorch: the loss of a step, and for each parameter's gradient the 2-norm
 * and the product with a vector of signs, from golden/models.golden. golden/make_models.py implements the models
 * independently, with plain operations as published, and the same inputs: hashes of a parameter's name and an element's
 * index.
 *
 * Both types have the same count of roundings: their arithmetic is the same, and the script has chosen inputs for which
 * no decision - a relu, a maximum, a choice of experts - depends on float32's rounding. REWIND_GOLDEN_SHOW=1 prints the
 * share of its bound that each model uses (without --tap, which hides it).
 */
#include "support/compare.h"
#include "support/support.h"

#include "models/model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, PLACES_MAX = 80, PARAMETERS_MAX = 384 };

/* ---- the file ---- */

struct golden {
    char name[40];
    double norm, product;
};

static struct golden golden[PARAMETERS_MAX];
static int n_golden;
static uint32_t salt;
static double golden_loss;

/* A model begins with `= NAME SALT PARAMETERS LOSS`; then, for each parameter, its name and the two numbers. */
static void load(const char *model)
{
    char path[4096], word[40];
    snprintf(path, sizeof path, "%s/models.golden", REWIND_GOLDEN);
    FILE *const f = fopen(path, "r");
    cr_assert(f, "cannot open %s", path);
    do {
        cr_assert_eq(fscanf(f, "%*[^=]"), 0);
        cr_assert_eq(fscanf(f, "= %39s %u %d %lf", word, &salt, &n_golden, &golden_loss), 4, "no %s in %s", model,
                     path);
    } while (strcmp(word, model) != 0);
    cr_assert_leq(n_golden, PARAMETERS_MAX);
    for (int i = 0; i < n_golden; i++) {
        struct golden *const g = &golden[i];
        cr_assert_eq(fscanf(f, "%39s %lf %lf", g->name, &g->norm, &g->product), 3, "%s: entry %d", model, i);
    }
    fclose(f);
}

static const struct golden *find(const char *name)
{
    for (int i = 0; i < n_golden; i++)
        if (!strcmp(golden[i].name, name)) return &golden[i];
    return NULL;
}

/* ---- inputs, computed as in the script ---- */

static uint32_t key_of(const char *name, const char *suffix)
{
    uint32_t key = 2166136261u;
    for (const char *p = name; *p; p++) key = (key ^ (unsigned char)*p) * 16777619u;
    for (const char *p = suffix; *p; p++) key = (key ^ (unsigned char)*p) * 16777619u;
    return key + salt * 0x9E3779B9u;
}

static uint32_t hash(uint32_t key, int64_t i)
{
    uint32_t h = (uint32_t)i * 0x9E3779B1u + key;
    for (int round = 0; round < 3; round++) h = (h ^ h >> 16) * 0x045D9F3Bu;
    return h ^ h >> 16;
}

/* The scale of a weight: sums stay about as large as the summed values. */
static double spread(rw_shape s)
{
    const int64_t terms = s.rank == 3 ? s.dim[2] : rw_shape_numel(s) / s.dim[0];
    double size = 1;
    for (int64_t fits = 3; fits < terms; fits *= 4) size /= 2;
    return size;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* Computed from u, from -1 to 1. */
static double value(const char *name, rw_shape s, double u)
{
    if (ends_with(name, "dt.bias")) return u - 4;
    if (ends_with(name, "bias")) return u / 4 + (strncmp(name, "bn", 2) ? 0 : u < 0.75 ? 2 : -1);
    return s.rank == 1 ? 1 + u / 4 : u * spread(s);
}

static void fill(rw_tensor *x)
{
    const char *const name = rw_tensor_name(x);
    const rw_shape s = rw_tensor_shape(x);
    const uint32_t key = key_of(name, "");
    void *const p = malloc(rw_tensor_bytes(x));
    for (int64_t i = 0; i < rw_shape_numel(s); i++) {
        const double u = (hash(key, i) >> 16) / 32768.0 - 1;
        cr_assert(number_put(p, rw_tensor_dtype(x), i, value(name, s, u)), "%s", name);
    }
    cr_assert_eq(rw_write(x, p, rw_tensor_bytes(x)), RW_OK);
    free(p);
}

/* Fills the parameters, and the one buffer on which a loss depends. */
static void fill_all(rw_context *ctx)
{
    rw_tensor *p;
    for (size_t i = 0; (p = rw_param_get(ctx, i)); i++)
        if (rw_gradient(p) || ends_with(rw_tensor_name(p), "moe.bias")) fill(p);
}

/* ---- comparison ---- */

struct row {
    const char *name;
    struct model_config config;
    int seq;                                     /* the side of an image */
    int ops;                                     /* on the longest path from a parameter to the loss, counted by hand */
    void (*change)(struct model_config *preset); /* NULL: none */
};

/*
 * Roundings of a path of so many ops forward and as many backward, two for each. A sum of k terms has k roundings of
 * either sign, so that the root of k remains, and results are themselves as large as the root of k terms. A batch
 * norm's backward subtracts from a gradient its mean and its part along x, and leaves a fraction: four times as many. A
 * norm of values with a relative error has at most that error, and their product with signs has that part of the norm,
 * again because errors have either sign. The type that uses more of the bound uses a tenth to four tenths, under any
 * REWIND_ISA.
 */
static double bound(const struct row *row)
{
    const enum model_kind kind = row->config.kind;
    const bool norms = kind == MODEL_RESNET50 || kind == MODEL_MOBILENET || kind == MODEL_DENSENET121;
    return roundings((norms ? 16 : 4) * row->ops, unit_roundoff(row->config.dtype));
}

/* Returns the error of x relative to its bound; infinity if that is too much. */
static double off(const struct row *row, const char *what, const char *name, double x, double want, double size)
{
    const double most = bound(row) * size, error = fabs(x - want);
    cr_expect(error <= most, "%s in %s: %s of %s is %.17g, PyTorch's %.17g: off by %g, allowed %g", row->name,
              rw_dtype_name(row->config.dtype), what, name, x, want, error, most);
    return error <= most ? error / most : INFINITY;
}

/* Compares one parameter's gradient with the file; returns the used share of its bound. */
static double compare(const struct row *row, rw_tensor *p)
{
    const char *const name = rw_tensor_name(p);
    const struct golden *const want = find(name);
    cr_assert(want, "%s: no %s in the file", row->name, name);
    rw_tensor *const g = rw_gradient(p);
    const uint32_t key = key_of(name, "/sign");
    void *const data = malloc(rw_tensor_bytes(g));
    cr_assert_eq(rw_read(NULL, g, data, rw_tensor_bytes(g)), RW_OK);
    long double squares = 0, product = 0; /* so that the sums' own roundings do not count */
    for (int64_t i = 0; i < rw_shape_numel(rw_tensor_shape(g)); i++) {
        const long double x = number_get(data, rw_tensor_dtype(g), i);
        squares += x * x;
        product += hash(key, i) >> 31 ? x : -x;
    }
    free(data);
    return fmax(off(row, "the norm", name, (double)sqrtl(squares), want->norm, want->norm),
                off(row, "the product", name, (double)product, want->product, want->norm));
}

static rw_tensor *loss_of(const struct model *m, rw_tape *t, int seq)
{
    int32_t tokens[BATCH * PLACES_MAX], targets[BATCH * PLACES_MAX];
    cr_assert_leq(seq, PLACES_MAX);
    for (int i = 0; i < BATCH * seq; i++) {
        tokens[i] = (int32_t)((hash(key_of("tokens", ""), i) >> 16) % 256);
        targets[i] = (int32_t)((hash(key_of("targets", ""), i) >> 16) % 256);
    }
    return model_loss(m, t, BATCH, seq, tokens, targets);
}

/* Runs one model in one type, and compares its loss and all gradients. */
static void check(struct row row, rw_dtype dtype)
{
    struct fixture b = fixture_open(5, 2);
    struct model m;
    rw_tensor *p;
    int n = 0;
    load(row.name);
    row.config.dtype = dtype;
    cr_assert(model_preset(&row.config, "tiny"));
    if (row.change) row.change(&row.config);
    cr_assert_eq(model_declare(&m, b.ctx, &row.config), RW_OK, "%s", rw_error_message(b.ctx));
    fill_all(b.ctx);
    rw_generator_set(b.ctx, (rw_generator_state){ 5, 11 }); /* vgg16 has dropout whatever its configuration is */
    rw_tensor *const loss = loss_of(&m, b.t, row.seq);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", row.name, rw_error_message(b.ctx));
    double worst = off(&row, "the value", "the loss", rw_item(b.t, loss), golden_loss, golden_loss);
    for (size_t i = 0; worst <= 1 && (p = rw_param_get(b.ctx, i)); i++) { /* one parameter suffices */
        if (!rw_gradient(p)) continue;
        worst = fmax(worst, compare(&row, p));
        n++;
    }
    cr_expect(worst > 1 || n == n_golden, "%s: %d parameters, and %d in the file", row.name, n, n_golden);
    if (getenv("REWIND_GOLDEN_SHOW"))
        fprintf(stderr, "# %s %-12s %.4f of the bound\n", rw_dtype_name(dtype), row.name, worst);
    fixture_close(&b);
}

/* On the slow simulator float64, whose code is that of float32, is skipped. */
static void both(struct row row)
{
    if (test_device() == RW_DEVICE_CPU) check(row, RW_F64);
    check(row, RW_F32);
}

/* Also with the scores of attention in memory, which uses other ops, except on the simulator. */
static void both_attentions(struct row row)
{
    both(row);
    row.config.scores = true;
    if (test_device() == RW_DEVICE_CPU) both(row);
}

/* ---- transformers and similar models ---- */

/* A layer: norm, product, scores, softmax, values, product, sum; norm, product, gelu, product, sum. Some positions have
   no token. */
Test(models_vs_pytorch, gpt)
{
    both_attentions((struct row){ "gpt", { .kind = MODEL_GPT, .max_seq = 32 }, 24, 4 * 12 + 4 });
}

/* Adds the rotation. Two heads share their key. */
Test(models_vs_pytorch, llama)
{
    both_attentions((struct row){ "llama", { .kind = MODEL_LLAMA }, 24, 4 * 13 + 3 });
}

/* The preset chooses two experts of two groups: those are the best two of all, whatever the groups. */
static void version_3(struct model_config *c)
{
    c->experts = 16, c->chosen = 4;
    c->ahead = 2;
}

/* Adds for q a second product and norm, for experts the weighted sum: six layers, and the op that joins the last
   two. */
Test(models_vs_pytorch, deepseek)
{
    both((struct row){ "deepseek", { .kind = MODEL_DEEPSEEK }, 24, 6 * 16 + 2 * 3 + 3, version_3 });
}

static void version_2(struct model_config *c)
{
    c->experts = 16, c->chosen = 4;
    c->groups = c->best_groups = 1;
    c->softmax = true;
    c->ahead = c->q_rank = 0;
    c->routed_scale = 1;
}

Test(models_vs_pytorch, deepseek_v2)
{
    both((struct row){ "deepseek_v2", { .kind = MODEL_DEEPSEEK }, 24, 4 * 14 + 3, version_2 });
}

/* Norm, product, convolution, silu, a scan over 40 places, two sums, gate, norm, product. Two chunks and a half. */
Test(models_vs_pytorch, mamba2)
{
    both((struct row){ "mamba2", { .kind = MODEL_MAMBA2, .chunk = 16 }, 40, 4 * (9 + 40) + 3 });
}

static void gated(struct model_config *c)
{
    c->gated = true;
}

/* Two layers of the encoder and two of the decoder, with a second attention. Texts are long enough for distances that
   share a bucket, of both kinds. */
Test(models_vs_pytorch, t5)
{
    both_attentions((struct row){ "t5", { .kind = MODEL_T5 }, 80, 2 * 12 + 2 * 19 + 5 });
    both((struct row){ "t5_gated", { .kind = MODEL_T5 }, 80, 2 * 13 + 2 * 20 + 5, gated });
}

/* The image height is not a multiple of the patch, and the table has positions for larger images. */
Test(models_vs_pytorch, vit)
{
    both_attentions((struct row){ "vit", { .kind = MODEL_VIT, .max_seq = 32 }, 20, 4 * 12 + 5 });
}

/* ---- networks for images: convolutions, relus, pools, batch norms ---- */

Test(models_vs_pytorch, resnet50)
{
    both((struct row){ "resnet50", { .kind = MODEL_RESNET50 }, 64, 4 + 16 * 9 + 3 });
}

Test(models_vs_pytorch, vgg16)
{
    both((struct row){ "vgg16", { .kind = MODEL_VGG16 }, 64, 13 * 2 + 5 + 1 + 2 * 3 + 2 });
}

Test(models_vs_pytorch, mobilenet)
{
    both((struct row){ "mobilenet", { .kind = MODEL_MOBILENET }, 64, 27 * 3 + 3 });
}

Test(models_vs_pytorch, densenet121)
{
    both((struct row){ "densenet121", { .kind = MODEL_DENSENET121 }, 64, 4 + 58 * 7 + 3 * 4 + 5 });
}

Test(models_vs_pytorch, unet)
{
    both((struct row){ "unet", { .kind = MODEL_UNET }, 32, 18 * 2 + 4 + 4 * 2 + 3 });
}
