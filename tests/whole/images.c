/*
 * The networks for images of bench/models: their parameters to the unit, what their ops make at the published sizes,
 * and that twenty steps of the small ones have the same bytes under every policy and with 1 to 5 threads.
 */
#include "support/support.h"

#include "models/images.h"
#include "ops/norm/groups.h"
#include "record/context.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a network has by its definition: torchvision's for all but unet. Elements in millions, of one image, of the
   outputs of convolutions, batch norms, relus, sums or concatenations, pools, and copies beside that of the image,
   which is turned once: vgg16's map is flattened in the order of its weights. */
static const struct network {
    enum model_kind kind;
    int64_t parameters;
    int height, width;
    double conv, bn, relu, joined, pool, copies;
} networks[] = {
    { MODEL_RESNET50, 25557032, 224, 224, 11.11, 11.11, 9.61, 5.52, 0.20 },
    { MODEL_VGG16, 138357544, 224, 224, 13.55, 0, 13.56, 0, 1.53, 0.025 },
    { MODEL_MOBILENET, 4231976, 224, 224, 5.04, 5.04, 5.04, 0, 0.00 },
    { MODEL_DENSENET121, 7978856, 224, 224, 6.90, 15.67, 15.67, 10.17, 0.38 },
    { MODEL_UNET, 31031745, 416, 608, 123.7, 0, 123.4, 60.7, 7.6 },
};

static struct model_config config_of(enum model_kind kind, const char *preset, rw_dtype dtype)
{
    struct model_config c = { .kind = kind, .dtype = dtype };
    cr_assert(model_preset(&c, preset));
    return c;
}

/* Millions of elements in the first outputs of the tape's nodes with these ops. */
static double made(const rw_tape *t, const char *const *ops, int n)
{
    int64_t elements = 0;
    for (size_t i = 0; i < t->n_nodes; i++)
        for (int k = 0; k < n; k++)
            if (!strcmp(t->ctx->ops[t->nodes[i].op]->name, ops[k]))
                elements += rw_tensor_layout(rw_tape_value((rw_tape *)t, t->nodes[i].first_output))->numel;
    return (double)elements / 1e6;
}
/* Of those that batch norms make, with a relu or a sum in the same pass. */
static double made_with(const rw_tape *t, bool relu)
{
    int64_t elements = 0;
    for (size_t i = 0; i < t->n_nodes; i++) {
        const struct rw_groups_attrs *const a = (const void *)(t->attrs + t->nodes[i].attrs);
        if (strcmp(t->ctx->ops[t->nodes[i].op]->name, "batchnorm") != 0) continue;
        if (relu ? a->relu : t->nodes[i].n_inputs > 3 + a->more)
            elements += rw_tensor_layout(rw_tape_value((rw_tape *)t, t->nodes[i].first_output))->numel;
    }
    return (double)elements / 1e6;
}

#define MADE(...) made(b.t, (const char *const[]){ __VA_ARGS__ }, sizeof((const char *const[]){ __VA_ARGS__ }) / 8)

/* To the last digit that is given. */
static void is(double a, double given, const char *what, const struct network *n)
{
    const double digit = given >= 100 || n->kind == MODEL_UNET ? 0.1 : 0.01;
    cr_expect(fabs(a - given) <= digit / 2 + 1e-9, "%s of %s: %.4f, not %.2f million", what, model_name(n->kind), a,
              given);
}

Test(images, published_sizes)
{
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) {
        const struct network *const n = &networks[i];
        struct fixture b = fixture_open(1, 1);
        const struct model_config c = config_of(n->kind, "published", RW_BF16);
        rw_tensor *const y = images_forward(&c, b.ctx, b.t,
                                            rw_input(b.t, RW_BF16, RW_SHAPE(2, 3, n->height, n->width), NULL));
        cr_assert_not_null(y, "%s", rw_error_message(b.ctx));
        int64_t parameters = 0;
        for (size_t k = 0; rw_param_get(b.ctx, k); k++)
            if (rw_tensor_kind_of(rw_param_get(b.ctx, k)) == RW_TENSOR_PARAM)
                parameters += rw_shape_numel(rw_tensor_shape(rw_param_get(b.ctx, k)));
        cr_expect_eq(parameters, n->parameters, "%s: %lld parameters", model_name(n->kind), (long long)parameters);
        is(MADE("conv2d") / 2, n->conv, "convolutions", n);
        is(MADE("batchnorm") / 2, n->bn, "batch norms", n);
        is((MADE("relu") + made_with(b.t, true)) / 2, n->relu, "relus", n);
        is((n->kind == MODEL_RESNET50 ? made_with(b.t, false) : MADE("concat")) / 2, n->joined,
           "sums and concatenations", n);
        is(MADE("max_pool2d", "avg_pool2d") / 2, n->pool, "pools", n);
        is(MADE("contiguous") / 2, n->copies + 3.0 * n->height * n->width / 1e6, "copies beside that of the image", n);
        fixture_close(&b);
    }
}

/* What a step of eight images of the published size keeps, by planning alone. */
static double kept_under(enum model_kind kind, rw_dtype dtype, const char *policy)
{
    enum { N = 8, SIDE_OF_ALL = 224 };
    struct fixture b = fixture_open(1, 2);
    const struct model_config c = config_of(kind, "published", dtype);
    rw_tensor *const images = rw_input(b.t, dtype, RW_SHAPE(N, SIDE_OF_ALL, SIDE_OF_ALL, 3), NULL);
    rw_tensor *const x = rw_permute(b.t, images, (const int[]){ 0, 3, 1, 2 }); /* channels last: no copy is made */
    rw_tensor *const loss = images_loss(&c, b.ctx, b.t, x, rw_input(b.t, RW_I32, RW_SHAPE(N), NULL));
    char *text = NULL;
    size_t n = 0, kept = 0;
    FILE *const f = open_memstream(&text, &n);
    cr_assert(loss && f, "%s", rw_error_message(b.ctx));
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(ckpt_explain(b.t, f), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(f);
    const char *const line = strstr(text, "\nkept ");
    cr_assert(line && sscanf(line, "\nkept %zu bytes;", &kept) == 1, "%s", text);
    free(text);
    fixture_close(&b);
    return (double)kept;
}

/*
 * Under none a batch norm keeps its input, which a convolution made, and the next convolution the result. Without the
 * latter resnet50 keeps the former: 11.11 of 20.18 million elements, more than half (docs/figures.md has the list),
 * and what the pool makes. That made again, too, and two convolutions of 64 channels, it is less. densenet121 keeps
 * what its convolutions make, each once, and the batch norms' results, which alone grow with the square of the layers.
 */
Test(images, kept_with_bn_and_relu_made_again)
{
    const double resnet = kept_under(MODEL_RESNET50, RW_F32, "none");
    const double densenet = kept_under(MODEL_DENSENET121, RW_F32, "none");
    const double bare = kept_under(MODEL_RESNET50, RW_F32, "discard:bn,relu") / resnet;
    const double less = kept_under(MODEL_RESNET50, RW_F32, "discard:bn,pool,projection") / resnet;
    const double half = kept_under(MODEL_DENSENET121, RW_F32, "discard:bn,relu") / densenet;
    const double pooled = kept_under(MODEL_DENSENET121, RW_F32, "discard:bn,pool") / densenet;
    cr_expect_leq(bare, 0.5637, "resnet50: %.4f", bare);
    cr_expect_leq(less, 0.4717, "resnet50 without pool and first projections: %.4f", less);
    cr_expect_leq(half, 0.3095, "densenet121: %.4f", half);
    cr_expect_leq(pooled, 0.2978, "densenet121 without its pool: %.4f", pooled);
    cr_expect_leq(densenet / 8, 85.9e6, "densenet121 under none: %.0f bytes an image", densenet / 8);
    cr_expect_leq(resnet / 8, 80.8e6, "resnet50 under none: %.0f bytes an image", resnet / 8);
}

/*
 * unet, by the pixel of an image of the published width: two relus in each of four levels down and up, 64 channels at
 * the top and half as many elements in each level below; two at the bottom; what is brought up again; what pools make,
 * with a byte for each element of it; and both sides of the loss. No concatenation is among them: what brings up and a
 * relu made its pieces.
 */
Test(images, unet_keeps_no_concatenation)
{
    enum { LEVELS = 8 + 4 + 2 + 1, DOWN = 2 * 8 * LEVELS, UP = 3 * 8 * LEVELS, BOTTOM = 8, POOLED = 2 * LEVELS };
    const double pixels = 8.0 * 224 * 224, elements = DOWN + UP + BOTTOM + POOLED + 2;
    cr_expect_eq(elements, 640);
    cr_expect_eq(kept_under(MODEL_UNET, RW_F32, "none"), pixels * (4 * elements + POOLED));
    cr_expect_eq(kept_under(MODEL_UNET, RW_BF16, "none"), pixels * (2 * elements + POOLED));
}

#define STEPS 20
#define BATCH 2
#define SIDE 32

/* Twenty steps of AdamW: parameters, buffers and the last gradients. */
static unsigned char *trained(enum model_kind kind, rw_dtype dtype, const char *policy, int threads, size_t *ret)
{
    struct fixture b = fixture_open(5, threads);
    const struct model_config config = config_of(kind, "tiny", dtype);
    struct model m;
    rw_adamw *opt = NULL;
    int32_t tokens[BATCH * SIDE], targets[BATCH * SIDE];
    cr_assert_eq(model_create(&m, b.ctx, &config), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 1e-3 }), RW_OK);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < BATCH * SIDE; i++) {
            tokens[i] = (step * 31 + i * 7) % 97 + 32;
            targets[i] = (step * 5 + i) % 256;
        }
        cr_assert_eq(rw_backward(b.t, model_loss(&m, b.t, BATCH, SIDE, tokens, targets)), RW_OK, "%s, %s: %s",
                     model_name(kind), policy, rw_error_message(b.ctx));
        rw_tape_reset(b.t);
        cr_assert_eq(rw_adamw_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
        if (step + 1 < STEPS) rw_zero_grad(b.ctx);
    }
    size_t n, more;
    unsigned char *all = all_parameters(b.ctx, &n), *const gradients = all_gradients(b.ctx, &more);
    all = realloc(all, n + more);
    memcpy(all + n, gradients, more);
    free(gradients);
    *ret = n + more;
    rw_adamw_destroy(&opt);
    fixture_close(&b);
    return all;
}

static void same_under_all(enum model_kind kind)
{
    static const char *const policies[] = { "full", "uniform:2", "ops:conv2d", "discard:bn,relu", "selective:conv" };
    for (int half = 0; half < 2; half++) {
        const rw_dtype dtype = half ? RW_BF16 : RW_F32;
        size_t n, more;
        unsigned char *const none = trained(kind, dtype, "none", 1, &n);
        const int most = test_device() == RW_DEVICE_CPU ? 5 : 1;
        for (int i = 0; i < most + 3; i++) {
            const char *const policy = i < 5 && i < most ? policies[i] : i < most + 2 ? "none" : "full";
            const int threads = i < most ? i % 5 + 1 : i - most + 2;
            unsigned char *const again = trained(kind, dtype, policy, threads, &more);
            cr_assert_eq(n, more);
            cr_expect_eq(first_difference(none, again, n), -1, "%s, %s, %s, %d threads", model_name(kind),
                         rw_dtype_name(dtype), policy, threads);
            free(again);
            if (test_device() != RW_DEVICE_CPU) break;
        }
        free(none);
        if (test_device() != RW_DEVICE_CPU) break;
    }
}

Test(images, resnet50)
{
    same_under_all(MODEL_RESNET50);
}

Test(images, vgg16)
{
    same_under_all(MODEL_VGG16);
}

Test(images, mobilenet)
{
    same_under_all(MODEL_MOBILENET);
}

Test(images, densenet121)
{
    same_under_all(MODEL_DENSENET121);
}

Test(images, unet)
{
    same_under_all(MODEL_UNET);
}
