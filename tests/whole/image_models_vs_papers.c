/*
 * The image networks of bench/models compared with the tables of their papers: for each layer the number of parameters
 * and of result elements per image, exactly, and for a step each value that is kept, to the byte. Expected numbers are
 * computed here from the published architectures: He et al., arXiv 1512.03385, table 1, with the stride in the 3x3
 * convolution; Simonyan and Zisserman, arXiv 1409.1556, table 1, column D; Howard et al., arXiv 1704.04861, table 1;
 * Huang et al., arXiv 1608.06993, table 1; Ronneberger et al., arXiv 1505.04597, figure 1, as published, and with
 * padding for images of three channels.
 */
#include "support/support.h"

#include "models/convnets.h"
#include "record/context.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- unordered lists of named numbers ---- */

#define ENTRIES_MAX 1024

struct entry {
    char name[20];
    int64_t n;
};

struct list {
    int n;
    struct entry entry[ENTRIES_MAX];
};

static void put(struct list *l, const char *name, int64_t n)
{
    struct entry *const e = &l->entry[l->n++];
    cr_assert_leq(l->n, ENTRIES_MAX);
    snprintf(e->name, sizeof e->name, "%s", name);
    e->n = n;
}

static int by_name(const void *a, const void *b)
{
    const struct entry *const x = a, *const y = b;
    const int order = strcmp(x->name, y->name);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static int64_t sum_of(const struct list *l, const char *name)
{
    int64_t sum = 0;
    for (int i = 0; i < l->n; i++) sum += !name || !strcmp(l->entry[i].name, name) ? l->entry[i].n : 0;
    return sum;
}

static void same(struct list *a, struct list *b, const char *what, const char *network)
{
    qsort(a->entry, (size_t)a->n, sizeof *a->entry, by_name);
    qsort(b->entry, (size_t)b->n, sizeof *b->entry, by_name);
    for (int i = 0; i < a->n && i < b->n; i++)
        cr_assert(!by_name(&a->entry[i], &b->entry[i]), "%s of %s: %s %" PRId64 ", and by the table %s %" PRId64, what,
                  network, a->entry[i].name, a->entry[i].n, b->entry[i].name, b->entry[i].n);
    cr_assert_eq(a->n, b->n, "%s of %s: %d, and by the table %d", what, network, a->n, b->n);
}

/* ---- tables ---- */

/* Parameters and results of the layers so far, for images that are now `height` x `width` with so many channels. */
struct table {
    int64_t channels, height, width;
    int64_t images, size;    /* of kept values; bytes of an element */
    bool valid;              /* convolutions have no padding */
    struct list parameters;  /* of each layer: weight and bias */
    struct list made;        /* by each op, elements of one image */
    struct list kept, again; /* bytes under none, and with bn and relu recomputed */
};

enum keeps { NOTHING, UNDER_NONE, ALWAYS };

/* An arena places values at multiples of 512 bytes. */
static int64_t room(int64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

static void keep(struct table *t, const char *op, int64_t elements, int64_t size, enum keeps keeps)
{
    const int64_t bytes = room(elements * size);
    if (keeps >= UNDER_NONE) put(&t->kept, op, bytes);
    if (keeps == ALWAYS) put(&t->again, op, bytes);
}

static void make(struct table *t, const char *op, enum keeps keeps)
{
    const int64_t elements = t->channels * t->height * t->width;
    put(&t->made, op, elements);
    keep(t, op, t->images * elements, t->size, keeps);
}

static void conv_of(struct table *t, int64_t out, int64_t kernel, int64_t stride, int64_t groups, enum keeps keeps)
{
    put(&t->parameters, "conv", out * t->channels / groups * kernel * kernel);
    const int64_t lost = t->valid ? kernel - 1 : 0;
    t->channels = out;
    t->height = (t->height - lost + stride - 1) / stride;
    t->width = (t->width - lost + stride - 1) / stride;
    make(t, "conv2d", keeps);
}

static void conv(struct table *t, int64_t out, int64_t kernel, int64_t stride)
{
    conv_of(t, out, kernel, stride, 1, ALWAYS); /* read by the following batch norm */
}

/* With mean and variance of each channel, in float32. */
static void norm(struct table *t, enum keeps keeps)
{
    put(&t->parameters, "bn", 2 * t->channels);
    make(t, "batchnorm", keeps);
    for (int i = 0; i < 2; i++) keep(t, "batchnorm", t->channels, 4, ALWAYS);
}

/* With the index of each maximum, in a byte. */
static void max_pool(struct table *t, enum keeps keeps)
{
    t->height = (t->height + 1) / 2;
    t->width = (t->width + 1) / 2;
    make(t, "max_pool2d", keeps);
    keep(t, "max_pool2d", t->images * t->channels * t->height * t->width, 1, ALWAYS);
}

static void dense(struct table *t, int64_t out, enum keeps keeps)
{
    put(&t->parameters, "fc", t->channels * out + out);
    t->channels = out;
    make(t, "linear", keeps);
}

/* The loss's gradient reads the logits, and the log-sum-exp of each row. */
static void logits(struct table *t)
{
    dense(t, 1000, ALWAYS);
    keep(t, "cross_entropy", t->images, 4, ALWAYS);
}

/* The mean of each map and a dense layer, whose gradient reads the mean. */
static void classify(struct table *t)
{
    t->height = t->width = 1;
    make(t, "mean", ALWAYS);
    logits(t);
}

/* ---- networks ---- */

/* A block ends with a sum and a relu, which reads the sum. The projection's batch norm is not read by backward. */
static void bottleneck(struct table *t, int64_t width, int64_t stride, bool projects)
{
    struct table in = *t;
    conv(t, width, 1, 1);
    norm(t, UNDER_NONE);
    conv(t, width, 3, stride);
    norm(t, UNDER_NONE);
    conv(t, 4 * width, 1, 1);
    norm(t, UNDER_NONE);
    if (!projects) return;
    struct table side = *t;
    side.channels = in.channels, side.height = in.height, side.width = in.width;
    conv(&side, 4 * width, 1, stride);
    norm(&side, NOTHING);
    *t = side;
}

static void resnet50(struct table *t)
{
    static const int blocks[] = { 3, 4, 6, 3 };
    conv(t, 64, 7, 2);
    norm(t, NOTHING); /* the pool has its maxima's indexes, and a batch norm's relu reads a value that is kept anyway */
    max_pool(t, ALWAYS);
    for (int stage = 0; stage < 4; stage++)
        for (int b = 0; b < blocks[stage]; b++) bottleneck(t, 64 << stage, stage && !b ? 2 : 1, !b);
    classify(t);
}

/* MobileNet's rows: a convolution, then 13 depthwise separable ones. */
static void mobilenet(struct table *t)
{
    static const struct {
        int out, stride;
    } rows[] = { { 64, 1 }, { 128, 2 }, { 128, 1 }, { 256, 2 }, { 256, 1 }, { 512, 2 }, { 512, 1 }, { 512, 1 },
                 { 512, 1 }, { 512, 1 }, { 512, 1 }, { 1024, 2 }, { 1024, 1 } };
    conv(t, 32, 3, 2);
    norm(t, UNDER_NONE);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        conv_of(t, t->channels, 3, rows[i].stride, t->channels, ALWAYS);
        norm(t, UNDER_NONE);
        conv(t, rows[i].out, 1, 1);
        norm(t, i + 1 < sizeof rows / sizeof *rows ? UNDER_NONE : NOTHING); /* the last one is only averaged */
    }
    classify(t);
}

/* Batch norms read the inputs of a concatenation, which is virtual. */
static void densenet121(struct table *t)
{
    static const int layers[] = { 6, 12, 24, 16 };
    conv(t, 64, 7, 2);
    norm(t, NOTHING);
    max_pool(t, ALWAYS);
    for (int stage = 0; stage < 4; stage++) {
        for (int i = 0; i < layers[stage]; i++) {
            const int64_t channels = t->channels;
            norm(t, UNDER_NONE);
            conv(t, 128, 1, 1);
            norm(t, UNDER_NONE);
            conv(t, 32, 3, 1);
            t->channels = channels + 32;
            make(t, "concat", NOTHING);
        }
        norm(t, stage < 3 ? UNDER_NONE : NOTHING);
        if (stage == 3) break;
        conv_of(t, t->channels / 2, 1, 1, 1, NOTHING); /* only averaged */
        t->height /= 2, t->width /= 2;
        make(t, "avg_pool2d", ALWAYS);
    }
    classify(t);
}

/* With a bias, followed by relu, whose backward reads its own result. */
static void conv_relu(struct table *t, int64_t out)
{
    conv_of(t, out, 3, 1, 1, NOTHING);
    t->parameters.entry[t->parameters.n - 1].n += out;
    make(t, "relu", UNDER_NONE);
}

/* VGG-16's rows: five stages of convolutions, then three dense layers. */
static void vgg16(struct table *t)
{
    static const int convs[] = { 2, 2, 3, 3, 3 };
    for (int stage = 0; stage < 5; stage++) {
        for (int i = 0; i < convs[stage]; i++) conv_relu(t, 64 << (stage < 3 ? stage : 3));
        max_pool(t, stage < 4 ? ALWAYS : NOTHING);
    }
    make(t, "contiguous", ALWAYS); /* the map in the order of the following layer's weights */
    t->channels *= t->height * t->width;
    t->height = t->width = 1;
    for (int i = 0; i < 2; i++) {
        dense(t, 4096, NOTHING);
        make(t, "relu", UNDER_NONE);
        make(t, "dropout", UNDER_NONE);
    }
    logits(t);
}

/* The expanding path reads the inputs of its concatenations, unless one is cropped from a larger one; the loss reads
   both of its operands. */
static void unet(struct table *t)
{
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 2; k++) conv_relu(t, 64 << i);
        max_pool(t, ALWAYS);
    }
    for (int k = 0; k < 2; k++) conv_relu(t, 1024);
    for (int i = 3; i >= 0; i--) {
        const int64_t out = 64 << i;
        put(&t->parameters, "up", t->channels * out * 4 + out);
        t->channels = out, t->height *= 2, t->width *= 2;
        make(t, "conv_transpose2d", NOTHING);
        make(t, "add", t->valid ? NOTHING : UNDER_NONE); /* with its bias */
        t->channels = 2 * out;
        make(t, "concat", t->valid ? UNDER_NONE : NOTHING);
        for (int k = 0; k < 2; k++) conv_relu(t, out);
    }
    conv_of(t, t->valid ? 2 : 1, 1, 1, 1, NOTHING);
    t->parameters.entry[t->parameters.n - 1].n += t->channels;
    for (int k = 0; k < 2; k++) make(t, "sigmoid", UNDER_NONE);
    if (t->valid) /* channels are last in one of the two */
        keep(t, "contiguous", t->images * t->channels * t->height * t->width, t->size, UNDER_NONE);
}

/* A network's size by its definition, torchvision's except for unet, and the results of its layers, in millions of
   elements for an image of that size: convolutions, batch norms, relus next to them, concatenations, pools. */
static const struct network {
    enum model_kind kind;
    void (*layers)(struct table *t);
    int64_t parameters;
    int height, width;
    double conv, bn, relu, joined, pool;
    bool valid;
} networks[] = {
    { MODEL_RESNET50, resnet50, 25557032, 224, 224, 11.11, 11.11, 0, 0, 0.20 },
    { MODEL_VGG16, vgg16, 138357544, 224, 224, 13.55, 0, 13.56, 0, 1.53 },
    { MODEL_MOBILENET, mobilenet, 4231976, 224, 224, 5.04, 5.04, 0, 0, 0 },
    { MODEL_DENSENET121, densenet121, 7978856, 224, 224, 6.90, 15.67, 0, 10.17, 0.38 },
    { MODEL_UNET, unet, 31031745, 416, 608, 123.7, 0, 123.4, 60.7, 7.6 },
    { MODEL_UNET, unet, 31030658, 572, 572, 115.0, 0, 114.7, 38.7, 9.4, true },
};
#define NETWORKS (sizeof networks / sizeof *networks)

static struct table *table_of(const struct network *n, int64_t images, int64_t height, int64_t width, int64_t size)
{
    struct table *const t = calloc(1, sizeof *t);
    cr_assert_not_null(t);
    t->channels = n->valid ? 1 : 3, t->height = height, t->width = width, t->valid = n->valid;
    t->images = images, t->size = size;
    n->layers(t);
    return t;
}

/* To the last given digit. */
static void is(int64_t elements, double given, const char *what, const struct network *n)
{
    const double digit = n->kind == MODEL_UNET ? 0.1 : 0.01, a = (double)elements / 1e6;
    cr_expect(a - given <= digit / 2 + 1e-9 && given - a <= digit / 2 + 1e-9, "%s of %s: %.4f, not %.2f million", what,
              model_name(n->kind), a, given);
}

/* The tables themselves, compared with published sums. */
Test(image_models_vs_papers, tables_add_up_to_published_sums)
{
    for (size_t i = 0; i < NETWORKS; i++) {
        const struct network *const n = &networks[i];
        struct table *const t = table_of(n, 1, n->height, n->width, 4);
        cr_expect_eq(sum_of(&t->parameters, NULL), n->parameters, "%s: %" PRId64, model_name(n->kind),
                     sum_of(&t->parameters, NULL));
        is(sum_of(&t->made, "conv2d"), n->conv, "convolutions", n);
        is(sum_of(&t->made, "batchnorm"), n->bn, "batch norms", n);
        is(sum_of(&t->made, "relu"), n->relu, "relus", n);
        is(sum_of(&t->made, "concat"), n->joined, "concatenations", n);
        is(sum_of(&t->made, "max_pool2d") + sum_of(&t->made, "avg_pool2d"), n->pool, "pools", n);
        free(t);
    }
}

/* ---- the models ---- */

struct world {
    struct fixture b;
    rw_tensor *loss;
};

/* Recorded, not run. The images are channels last, so they are not copied. */
static struct world record(const struct network *n, int64_t images, int64_t height, int64_t width, rw_dtype dtype)
{
    struct model_config c = { .kind = n->kind, .dtype = dtype, .valid = n->valid };
    struct world w = { .b = fixture_open(1, 2) };
    cr_assert(model_preset(&c, "published"));
    rw_tensor *const lie = rw_input(w.b.t, dtype, RW_SHAPE(images, height, width, n->valid ? 1 : 3), NULL, 0);
    rw_tensor *const x = rw_permute(w.b.t, lie, (const int[]){ 0, 3, 1, 2 });
    w.loss = images_loss(&c, w.b.ctx, w.b.t, x, rw_input(w.b.t, RW_I32, RW_SHAPE(images), NULL, 0));
    cr_assert_not_null(w.loss, "%s", rw_error_message(w.b.ctx));
    return w;
}

/* For each layer, which is the prefix of a parameter's name: weight and bias. */
static void list_parameters(rw_context *ctx, struct list *ret)
{
    char last[64] = "";
    for (size_t i = 0; rw_param_get(ctx, i); i++) {
        const rw_tensor *const p = rw_param_get(ctx, i);
        char layer[64], kind[8];
        int number;
        if (rw_tensor_kind_of(p) != RW_TENSOR_PARAM) continue;
        cr_assert_eq(sscanf(rw_tensor_name(p), "%7[^.].%d", kind, &number), 2, "%s", rw_tensor_name(p));
        snprintf(layer, sizeof layer, "%s.%d", kind, number);
        if (strcmp(layer, last) != 0) put(ret, kind, 0);
        ret->entry[ret->n - 1].n += rw_shape_numel(rw_tensor_shape(p));
        strcpy(last, layer);
    }
}

/* By nodes of ops that are in the table. */
static void list_made(rw_tape *t, int64_t images, const struct list *known, struct list *ret)
{
    for (size_t i = 0; i < t->n_nodes; i++) {
        const char *const op = t->ctx->ops[t->nodes[i].op]->name;
        bool is_known = false;
        for (int k = 0; k < known->n; k++) is_known |= !strcmp(known->entry[k].name, op);
        if (is_known) put(ret, op, rw_tensor_layout(rw_tape_value(t, t->nodes[i].first_output))->numel / images);
    }
}

/* Lists each value by the op that computed it; returns the total of kept bytes. */
static int64_t list_kept(const struct world *w, const char *policy, struct list *ret)
{
    char *text = NULL;
    size_t size = 0;
    int64_t all = 0;
    FILE *const f = open_memstream(&text, &size);
    cr_assert_not_null(f);
    cr_assert_eq(ckpt_set_policy(w->b.t, policy), RW_OK, "%s", rw_error_message(w->b.ctx));
    cr_assert_eq(ckpt_explain_with(w->b.t, f, CKPT_EXPLAIN_ALL), RW_OK, "%s", rw_error_message(w->b.ctx));
    fclose(f);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        char op[24];
        int64_t bytes;
        line += *line == '\n';
        if (sscanf(line, "kept %" SCNd64 " bytes;", &all) == 1) continue;
        if (sscanf(line, "  kept %" SCNd64 " %23s", &bytes, op) == 2) put(ret, op, bytes);
    }
    free(text);
    return all;
}

Test(image_models_vs_papers, each_layer_is_as_published)
{
    for (size_t i = 0; i < NETWORKS; i++) {
        const struct network *const n = &networks[i];
        struct table *const t = table_of(n, 2, n->height, n->width, 2);
        struct world w = record(n, 2, n->height, n->width, RW_BF16);
        struct list *const found = calloc(2, sizeof *found);
        list_parameters(w.b.ctx, &found[0]);
        list_made(w.b.t, 2, &t->made, &found[1]);
        same(&found[0], &t->parameters, "a layer's parameters", model_name(n->kind));
        same(&found[1], &t->made, "elements that a layer makes", model_name(n->kind));
        free(found), free(t);
        fixture_close(&w.b);
    }
}

static void keeps(const struct network *n, rw_dtype dtype, const char *policy, bool again)
{
    enum { IMAGES = 8 };
    const int64_t side = n->valid ? 188 : 224;
    struct table *const t = table_of(n, IMAGES, side, side, (int64_t)rw_dtype_size(dtype));
    struct world w = record(n, IMAGES, side, side, dtype);
    struct list *const found = calloc(1, sizeof *found), *const expected = again ? &t->again : &t->kept;
    const int64_t all = list_kept(&w, policy, found);
    same(found, expected, policy, model_name(n->kind));
    cr_expect_eq(all, sum_of(expected, NULL), "%s under %s: %" PRId64 " bytes, not %" PRId64, model_name(n->kind),
                 policy, all, sum_of(expected, NULL));
    free(found), free(t);
    fixture_close(&w.b);
}

Test(image_models_vs_papers, keep_under_none_what_backward_reads)
{
    for (size_t i = 0; i < NETWORKS; i++) {
        keeps(&networks[i], RW_F32, "none", false);
        keeps(&networks[i], RW_BF16, "none", false);
    }
}

/* Networks with batch norms, each including its relu. */
Test(image_models_vs_papers, keep_convolutions_results_where_bn_and_relu_are_recomputed)
{
    for (size_t i = 0; i < NETWORKS; i++) {
        if (networks[i].kind == MODEL_VGG16 || networks[i].kind == MODEL_UNET) continue;
        keeps(&networks[i], RW_F32, "discard:bn,relu", true);
        keeps(&networks[i], RW_BF16, "discard:bn,relu", true);
    }
}

/* Plans below the convolutions' results at the lowest cost: two convolutions of few channels and a large result, and
   the pool are recomputed. docs/figures.md has the lists. */
Test(image_models_vs_papers, keep_less_than_convolutions_results)
{
    const struct {
        const struct network *n;
        const char *policy;
        double most; /* of what is kept under none */
    } rows[] = { { &networks[0], "discard:bn,projection", 0.4842 },
                 { &networks[0], "discard:bn,pool,projection", 0.4717 },
                 { &networks[3], "discard:bn,pool", 0.2978 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct world w = record(rows[i].n, 8, 224, 224, RW_F32);
        struct list *const unused = calloc(1, sizeof *unused);
        const double none = (double)list_kept(&w, "none", unused), less = (double)list_kept(&w, rows[i].policy, unused);
        cr_expect_leq(less / none, rows[i].most, "%s: %.4f", model_name(rows[i].n->kind), less / none);
        free(unused);
        fixture_close(&w.b);
    }
}

/* ---- image sides that are not published ---- */

/* VGG's map becomes 7 x 7 as by torchvision's AdaptiveAvgPool2d: window i from i side / 7 to (i + 1) side / 7, rounded
   outwards. Means of at most nine nonnegative numbers are rounded nine times: an error of at most 9 x 2^-24. */
static void map_is_as_torchvisions(int side)
{
    enum { WIDTH = 8, CHANNELS = 8 * WIDTH };
    struct model_config c = { .kind = MODEL_VGG16, .dtype = RW_F32 };
    struct fixture b = fixture_open(3, 2);
    const rw_tensor *pooled = NULL, *flat = NULL;
    cr_assert(model_preset(&c, "tiny"));
    rw_tensor *const x = rw_rand(b.t, RW_F32, RW_SHAPE(1, 3, side, side));
    cr_assert_eq(images_create(&c, b.ctx), RW_OK);
    cr_assert_eq(images_init(b.ctx), RW_OK);
    cr_assert_not_null(images_forward(&c, b.ctx, b.t, x), "%s", rw_error_message(b.ctx));
    for (size_t i = 0; i < b.t->n_nodes; i++) {
        const char *const op = b.t->ctx->ops[b.t->nodes[i].op]->name;
        if (!strcmp(op, "max_pool2d")) pooled = rw_tape_value(b.t, b.t->nodes[i].first_output);
        if (!flat && !strcmp(op, "linear")) flat = rw_tape_value(b.t, b.t->operands[b.t->nodes[i].first_input]);
    }
    const int n = side / 32;
    cr_assert(rw_shape_equal(rw_tensor_shape(pooled), RW_SHAPE(1, n, n, CHANNELS)));
    float map[CHANNELS * 10 * 10], got[CHANNELS * 49];
    cr_assert_eq(rw_read(b.t, (rw_tensor *)(uintptr_t)pooled, map, rw_tensor_bytes(pooled)), RW_OK);
    cr_assert_eq(rw_read(b.t, (rw_tensor *)(uintptr_t)flat, got, sizeof got), RW_OK);
    for (int k = 0; k < CHANNELS * 49; k++) {
        const int h0 = k / 7 % 7 * n / 7, h1 = ((k / 7 % 7 + 1) * n + 6) / 7, w0 = k % 7 * n / 7,
                  w1 = ((k % 7 + 1) * n + 6) / 7;
        double sum = 0;
        for (int i = h0; i < h1; i++)
            for (int j = w0; j < w1; j++) sum += (double)map[(i * n + j) * CHANNELS + k / 49]; /* channels inside */
        const double want = sum / ((h1 - h0) * (w1 - w0));
        cr_assert(fabs(got[k] - want) <= 0x1p-20 * fabs(want), "side %d, %d: %g, not %g", side, k, (double)got[k],
                  want);
    }
    fixture_close(&b);
}

Test(image_models_vs_papers, vgg_of_any_side_is_torchvisions)
{
    map_is_as_torchvisions(64);  /* 2 x 2: each element is in several windows */
    map_is_as_torchvisions(320); /* 10 x 10: windows overlap */
}
