/*
 * Prints digests of all that has the same bytes on every processor: random words, dropout masks, initial weights,
 * digests, results in integers or in sums that are exact, and the files of a run whose arithmetic is exact. Each part
 * is computed with one thread and with three.
 *
 * platform_bytes.txt has what it must print; scripts/test.sh and scripts/arm64.sh compare. A plain program, so that it
 * runs under an emulator. Other results in floating point are not listed: they depend on the width of vectors, on FMA
 * and on oneDNN.
 */
#include "support/support.h"

#include "base/digest.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { N = 4099, LINES_MAX = 256 }; /* of no vector's length */

static struct {
    char text[LINES_MAX][128];
    int n, threads;
} lines[2];
static int run; /* index of lines */

static const rw_dtype floats[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };

static void fail(const char *why)
{
    fprintf(stderr, "platform_bytes: %s\n", why);
    exit(1);
}

static void ok(struct fixture *b, rw_status status, const char *what)
{
    if (!status) return;
    fprintf(stderr, "%s: %s\n", what, rw_error_message(b->ctx));
    exit(1);
}

/* Adds a line: the name, the type, the number of bytes and their digest. */
static void say(const char *name, const char *type, const void *data, size_t bytes)
{
    const XXH128_hash_t h = XXH3_128bits(data, bytes);
    if (lines[run].n == LINES_MAX) fail("too many lines");
    snprintf(lines[run].text[lines[run].n++], sizeof lines[run].text[0], "%-34s %-8s %8zu %016" PRIx64 "%016" PRIx64,
             name, type, bytes, h.high64, h.low64);
}

static void say_tensor(struct fixture *b, const char *name, rw_tensor *x)
{
    const size_t bytes = x ? rw_tensor_bytes(x) : 1;
    void *const data = malloc(bytes ? bytes : 1);
    if (!data) fail("no memory");
    ok(b, rw_read(b->t, x, data, bytes), name);
    say(name, rw_dtype_name(rw_tensor_dtype(x)), data, bytes);
    free(data);
}

/* Integers from -range to range, many of them equal: products and sums of a few thousand are exact in float32. */
static rw_tensor *integers(struct fixture *b, rw_shape shape, int range, uint32_t seed)
{
    size_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= (size_t)shape.dim[i];
    float *const data = malloc(n * sizeof *data);
    if (!data) fail("no memory");
    for (size_t i = 0; i < n; i++) {
        const uint32_t h = (uint32_t)(i + seed * 1000003u) * 2654435761u;
        data[i] = (float)((int)((h >> 8) % (uint32_t)(2 * range + 1)) - range);
    }
    rw_tensor *const x = rw_input(b->t, RW_F32, shape, data, n * sizeof *data);
    free(data);
    return x;
}

/* ---- what is random ---- */

static void random_tensors(struct fixture *b)
{
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        say_tensor(b, "rand", rw_rand(b->t, floats[i], RW_SHAPE(N)));
        say_tensor(b, "randn", rw_randn(b->t, floats[i], RW_SHAPE(N)));
    }
}

/* Values are scaled in the type; where() has the mask alone. */
static void dropout_masks(struct fixture *b)
{
    static const double p[] = { 0.1, 0.5, 0.9 };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        for (size_t j = 0; j < sizeof p / sizeof *p; j++) {
            char name[48];
            snprintf(name, sizeof name, "dropout(%g)", p[j]);
            rw_tensor *const y = rw_dropout(b->t, rw_ones(b->t, floats[i], RW_SHAPE(3, N)), p[j]);
            say_tensor(b, name, y);
            snprintf(name, sizeof name, "dropout(%g) mask", p[j]);
            say_tensor(b, name, rw_ne_scalar(b->t, y, 0));
        }
        rw_tensor *const x = rw_full(b->t, floats[i], RW_SHAPE(N), 3), *const r = rw_ones(b->t, floats[i], RW_SHAPE(N));
        say_tensor(b, "dropout_add(0.25)", rw_dropout_add(b->t, x, r, 0.25));
    }
}

/* Equal scores of 64 keys, and values that select one key each: the result is the mask times 2 / 64. */
static void attention_mask(struct fixture *b)
{
    enum { HEADS = 2, LENGTH = 64 };
    rw_tensor *const q = rw_zeros(b->t, RW_F32, RW_SHAPE(1, HEADS, LENGTH, LENGTH));
    rw_tensor *const keys = rw_one_hot(b->t, rw_arange(b->t, RW_I32, 0, LENGTH, 1), LENGTH, RW_F32);
    rw_tensor *const v = rw_contiguous(b->t, rw_broadcast_to(b->t, keys, RW_SHAPE(1, HEADS, LENGTH, LENGTH)));
    rw_tensor *const y = rw_attention(b->t, q, q, v, &(rw_attention_params){ .dropout = 0.5 });
    say_tensor(b, "attention dropout(0.5) mask", rw_ne_scalar(b->t, y, 0));
}

static void say_param(const char *name, rw_tensor *w)
{
    say(name, rw_dtype_name(rw_tensor_dtype(w)), rw_tensor_data(w), rw_tensor_bytes(w));
}

static void initial_weights(struct fixture *b)
{
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%zu", i);
        rw_tensor *const w = rw_param(b->ctx, name, floats[i], RW_SHAPE(N, 5));
        ok(b, rw_init_normal(w, 0, 0.02), "rw_init_normal");
        say_param("init_normal(0, 0.02)", w);
        ok(b, rw_init_normal(w, -1.5, 3), "rw_init_normal");
        say_param("init_normal(-1.5, 3)", w);
        ok(b, rw_init_uniform(w, -0.1, 0.3), "rw_init_uniform");
        say_param("init_uniform(-0.1, 0.3)", w);
    }
}

/* ---- integers ---- */

static void comparisons(struct fixture *b)
{
    rw_tensor *const x = integers(b, RW_SHAPE(61, 67), 9, 1), *const y = integers(b, RW_SHAPE(61, 67), 9, 2);
    rw_tensor *values, *places;
    say_tensor(b, "lt", rw_lt(b->t, x, y));
    say_tensor(b, "eq", rw_eq(b->t, x, y));
    say_tensor(b, "argmax", rw_argmax(b->t, x, 1, false));
    say_tensor(b, "argmin", rw_argmin(b->t, x, 0, false));
    ok(b, rw_topk(b->t, x, 7, 1, &values, &places), "rw_topk");
    say_tensor(b, "topk values", values);
    say_tensor(b, "topk places", places);
    say_tensor(b, "argmax of noise", rw_argmax(b->t, rw_rand(b->t, RW_F32, RW_SHAPE(257, 33)), 1, false));
    say_tensor(b, "where", rw_where(b->t, rw_gt(b->t, x, y), x, y));
}

/* Numbers beyond the limits saturate, and NaN is 0. */
static void casts(struct fixture *b)
{
    const float beyond[] = { 3e9f, -3e9f, 1e30f, -1e30f, NAN, -NAN, INFINITY, -INFINITY, 2147483520.0f, -2147483648.0f,
                             0.99f, -0.99f, -0.0f, 65504, 65519.99f, 65520, 1e-8f, 6e-8f, 1e-40f, -1e-45f };
    const rw_dtype to[] = { RW_I32, RW_BOOL, RW_F64, RW_BF16, RW_F16 };
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        const size_t n = sizeof beyond / sizeof *beyond;
        rw_tensor *const x = rw_input(b->t, RW_F32, RW_SHAPE((int64_t)n), beyond, sizeof beyond);
        say_tensor(b, "cast from f32", rw_cast(b->t, x, to[i]));
        rw_tensor *const noise = rw_scale(b->t, rw_rand(b->t, RW_F32, RW_SHAPE(N)), 1 << 20);
        say_tensor(b, "cast from f32, noise", rw_cast(b->t, noise, to[i]));
    }
    say_tensor(b, "arange", rw_arange(b->t, RW_I32, -5, N, 3));
    say_tensor(b, "one_hot", rw_one_hot(b->t, rw_arange(b->t, RW_I32, 0, 37, 1), 41, RW_I32));
}

/* Choice and routes of experts. */
static void routes(struct fixture *b)
{
    enum { TOKENS = 301, EXPERTS = 16, CHOSEN = 3 };
    rw_tensor *const scores = integers(b, RW_SHAPE(TOKENS, EXPERTS), 40, 3);
    rw_tensor *const index = rw_moe_topk(b->t, scores, RW_NONE,
                                         &(rw_moe_choice){ .k = CHOSEN, .groups = 4, .best_groups = 2 });
    rw_moe_routes all, kept;
    say_tensor(b, "moe_topk", index);
    ok(b, rw_moe_route(b->t, index, EXPERTS, &all), "rw_moe_route");
    say_tensor(b, "moe_route order", all.order);
    say_tensor(b, "moe_route inverse", all.inverse);
    say_tensor(b, "moe_route offsets", all.offsets);
    rw_tensor *const dropped = rw_moe_drop(b->t, index, RW_NONE, &all, 40);
    say_tensor(b, "moe_drop", dropped);
    ok(b, rw_moe_route(b->t, dropped, EXPERTS, &kept), "rw_moe_route");
    say_tensor(b, "moe_route load", kept.load);
}

/* Products and sums that are exact in any order. */
static void exact_sums(struct fixture *b)
{
    rw_tensor *const x = integers(b, RW_SHAPE(67, 129), 7, 4), *const w = integers(b, RW_SHAPE(35, 129), 7, 5);
    say_tensor(b, "linear of integers", rw_linear(b->t, x, w, RW_NONE));
    rw_tensor *const half[] = { rw_cast(b->t, x, RW_BF16), rw_cast(b->t, w, RW_BF16) };
    say_tensor(b, "linear of integers", rw_linear(b->t, half[0], half[1], RW_NONE));
    rw_tensor *const image = integers(b, RW_SHAPE(2, 6, 13, 11), 7, 6);
    rw_tensor *const filter = integers(b, RW_SHAPE(9, 6, 3, 3), 7, 7);
    say_tensor(b, "conv2d of integers",
               rw_conv2d(b->t, image, filter, RW_NONE, &(rw_conv2d_params){ .padding = { 1, 1 }, .stride = { 2, 1 } }));
    say_tensor(b, "sum of integers", rw_sum(b->t, x, RW_AXES(0), false));
    say_tensor(b, "cumsum of integers", rw_cumsum(b->t, x, 1));
    say_tensor(b, "max_pool2d of integers", rw_max_pool2d(b->t, image, &(rw_pool2d_params){ .kernel = { 3, 2 } }));
}

/* Codes: a division, a product and a rounding each. */
static void codes(struct fixture *b)
{
    static const rw_dtype types[] = { RW_F8_E4M3, RW_F8_E5M2 };
    for (int type = 0; type < 2; type++) {
        for (int scaling = 0; scaling < RW_SCALING_COUNT; scaling++) {
            rw_tensor *scale, *const x = rw_randn(b->t, RW_F32, RW_SHAPE(130, 300));
            const rw_quantize_params how = { .dtype = types[type], .scaling = (rw_scaling)scaling };
            rw_tensor *const y = rw_quantize(b->t, x, RW_NONE, &how, &scale, NULL);
            char name[48];
            snprintf(name, sizeof name, "quantize, scaling %d", scaling);
            say_tensor(b, name, y);
            say_tensor(b, "quantize scales", scale);
        }
    }
    float *const data = malloc(N * 64 * sizeof *data);
    if (!data) fail("no memory");
    ok(b, rw_read(b->t, rw_randn(b->t, RW_F32, RW_SHAPE(N, 64)), data, N * 64 * sizeof *data), "rw_read");
    for (int kind = 0; kind < RW_QUANTIZED_KIND_COUNT; kind++) {
        char name[16];
        rw_quantized q;
        snprintf(name, sizeof name, "quantized%d", kind);
        ok(b, rw_quantized_create(b->ctx, name, (rw_quantized_kind)kind, RW_SHAPE(N, 64), &q), name);
        ok(b, rw_quantized_write(&q, RW_F32, data, N * 64 * sizeof *data), name);
        say_param(kind == RW_NF4 ? "NF4 words" : "INT8 words", q.words);
    }
    free(data);
}

/* ---- digests and files ---- */

static void digests(int threads)
{
    static const size_t bytes[] = { 0, 1, 31, 4096, (1 << 20) - 1, (1 << 20) + 1, (5 << 20) + 7 };
    unsigned char *const data = malloc((5 << 20) + 7);
    if (!data) fail("no memory");
    for (size_t i = 0; i < (5 << 20) + 7; i++) data[i] = (unsigned char)((uint32_t)i * 2654435761u >> 19);
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        char name[48];
        const struct rw_digest d = rw_digest_bytes(data, bytes[i], threads);
        snprintf(name, sizeof name, "digest of %zu bytes", bytes[i]);
        say(name, "", &d, sizeof d);
    }
    free(data);
}

static void say_file(const char *name, const char *path)
{
    FILE *const f = fopen(path, "rb");
    static char data[1 << 20];
    const size_t bytes = f ? fread(data, 1, sizeof data, f) : 0;
    if (!bytes || bytes == sizeof data) fail("a file is missing, empty or too large");
    fclose(f);
    say(name, "file", data, bytes);
}

/* The digest of each file of a folder, which is then removed. */
static void say_folder(const char *folder)
{
    struct dirent **all;
    const int n = scandir(folder, &all, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, all[i]->d_name);
        if (strstr(path, ".safetensors")) say_file(all[i]->d_name, path);
        if (*all[i]->d_name != '.' || all[i]->d_name[1]) unlink(path);
        free(all[i]);
    }
    free(all);
    if (n < 0 || rmdir(folder)) fail("the folder of the checkpoint is not as expected");
}

/* Two layers of integers, with dropout, under a policy that recomputes. All factors are powers of two. */
static rw_tensor *exact_loss(struct fixture *b, rw_tensor *w, rw_tensor *v, uint32_t step)
{
    rw_tensor *x = integers(b, RW_SHAPE(16, 24), 3, 100 + step);
    ckpt_begin(b->t, "block");
    x = rw_dropout(b->t, rw_relu(b->t, rw_linear(b->t, x, w, RW_NONE)), 0.5);
    ckpt_end(b->t);
    return rw_sum(b->t, rw_linear(b->t, x, v, RW_NONE), RW_ALL_AXES, false);
}

static void exact_run(struct fixture *b)
{
    char folder[] = "/tmp/platform_bytes.XXXXXX", path[64];
    rw_optimizer *opt = NULL;
    rw_checkpoint *ck = NULL;
    if (!mkdtemp(folder)) fail("no folder in /tmp");
    rw_tensor *const w = rw_param(b->ctx, "w", RW_F32, RW_SHAPE(32, 24));
    rw_tensor *const v = rw_param(b->ctx, "v", RW_F32, RW_SHAPE(8, 32));
    ok(b, rw_init_constant(w, 1), "rw_init_constant");
    ok(b, rw_init_constant(v, 0.5), "rw_init_constant");
    rw_buffer(b->ctx, "noise", RW_F32, RW_SHAPE(N));
    ok(b, rw_init_normal(rw_param_find(b->ctx, "noise"), 0, 1), "rw_init_normal");
    ok(b, rw_sgd_create(&opt, b->ctx, &(rw_sgd_params){ .lr = 0x1p-10, .momentum = 0.5 }), "rw_sgd_create");
    ok(b, rw_checkpoint_create(&ck, b->ctx, &(rw_checkpoint_params){ .folder = folder, .optimizer = opt }), "create");
    ok(b, ckpt_set_policy(b->t, "full"), "ckpt_set_policy");
    for (uint32_t step = 0; step < 3; step++) {
        rw_zero_grad(b->ctx);
        rw_tensor *const loss = exact_loss(b, w, v, step);
        ok(b, rw_backward(b->t, loss), "rw_backward");
        say_tensor(b, "loss of the exact run", loss);
        say_param("gradient of the exact run", rw_gradient(w));
        ok(b, rw_optimizer_step(opt), "rw_optimizer_step");
        rw_tape_reset(b->t);
    }
    ok(b, rw_checkpoint_save(ck, 3, "extra", 5), "rw_checkpoint_save");
    ok(b, rw_checkpoint_wait(ck), "rw_checkpoint_wait");
    rw_checkpoint_destroy(&ck);
    snprintf(path, sizeof path, "%s/saved.safetensors", folder);
    ok(b, rw_save(b->ctx, path), "rw_save");
    rw_optimizer_destroy(&opt);
    say_folder(folder);
}

/* A context of its own for each part: what one draws does not change the next. */
static void each_part(int threads)
{
    static void (*const parts[])(struct fixture *) = { random_tensors, dropout_masks, attention_mask, initial_weights,
                                                       comparisons,    casts,         routes,         exact_sums,
                                                       codes,          exact_run };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct fixture b = fixture_open(7, threads);
        parts[i](&b);
        fixture_close(&b);
    }
    digests(threads);
}

int main(void)
{
    static const int threads[] = { 1, 3 };
    for (run = 0; run < 2; run++) each_part(threads[run]);
    for (int i = 0; i < lines[0].n || i < lines[1].n; i++) {
        if (strcmp(lines[0].text[i], lines[1].text[i])) {
            fprintf(stderr, "1 thread:  %s\n3 threads: %s\n", lines[0].text[i], lines[1].text[i]);
            return 1;
        }
        puts(lines[0].text[i]);
    }
    return 0;
}
