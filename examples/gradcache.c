/*
 * GradCache (arXiv 2101.06983): a contrastive loss over a batch whose encoder does not fit in memory at once. Each
 * chunk of the batch has its own tape, which runs forward and is suspended; a last tape computes the loss of all
 * embeddings; then each chunk's backward continues with the gradient of its embeddings. Dropout draws one mask per
 * chunk, which forward and backward use.
 *
 *   gradcache [--quick]
 *
 * The program compares the gradients with those of one tape for the whole batch, and two ways to suspend: with the
 * chunk's activations (rw_forward()), or without them (rw_read(), forward runs twice).
 */
#include <rewind/rewind.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, CHUNKS = 4, CHUNK = BATCH / CHUNKS, IN = 48, HIDDEN = 256, OUT = 32 };

static const double temperature = 0.1;
static float left[BATCH * IN], right[BATCH * IN];

static void check(rw_context *ctx, rw_status status)
{
    if (!status && !rw_error_status(ctx)) return;
    fprintf(stderr, "gradcache: %s\n", rw_error_message(ctx));
    exit(1);
}

struct encoder {
    rw_context *ctx;
    rw_tensor *up, *down;
};

/* Every run starts with the same weights and the same generator state. Chunks are recorded in the same order, so each
   of them draws the same dropout mask in every run. */
static void make_encoder(struct encoder *e)
{
    check(NULL, rw_context_create(&e->ctx, &(rw_context_params){ .seed = 7 }));
    e->up = rw_param(e->ctx, "up", RW_F32, RW_SHAPE(HIDDEN, IN));
    e->down = rw_param(e->ctx, "down", RW_F32, RW_SHAPE(OUT, HIDDEN));
    check(e->ctx, rw_init_normal(e->up, 0, 0.1));
    check(e->ctx, rw_init_normal(e->down, 0, 0.1));
}

/* Embeddings of a chunk: rows 0 .. CHUNK-1 of the left texts, then as many of the right ones. [2 * CHUNK, OUT] */
static rw_tensor *encode(const struct encoder *e, rw_tape *t, int chunk)
{
    rw_tensor *const side[2] = {
        rw_input(t, RW_F32, RW_SHAPE(CHUNK, IN), left + (ptrdiff_t)chunk * CHUNK * IN, CHUNK * IN * sizeof(float)),
        rw_input(t, RW_F32, RW_SHAPE(CHUNK, IN), right + (ptrdiff_t)chunk * CHUNK * IN, CHUNK * IN * sizeof(float)),
    };
    rw_tensor *h = rw_gelu(t, rw_linear(t, rw_concat(t, side, 2, 0), e->up, RW_NONE));
    h = rw_linear(t, rw_dropout(t, h, 0.1), e->down, RW_NONE);
    return rw_normalize(t, h, 2, -1, 1e-12);
}

/* InfoNCE: row i of the left texts belongs to row i of the right ones. */
static rw_tensor *contrastive_loss(rw_tape *t, rw_tensor *const *embedded)
{
    static int32_t same[BATCH];
    rw_tensor *l[CHUNKS], *r[CHUNKS];
    for (int c = 0; c < CHUNKS; c++) {
        l[c] = rw_slice(t, embedded[c], 0, 0, CHUNK);
        r[c] = rw_slice(t, embedded[c], 0, CHUNK, 2 * CHUNK);
    }
    for (int i = 0; i < BATCH; i++) same[i] = i;
    rw_tensor *const scores = rw_linear(t, rw_concat(t, l, CHUNKS, 0), rw_concat(t, r, CHUNKS, 0), RW_NONE);
    return rw_cross_entropy(t, rw_scale(t, scores, 1 / temperature),
                            rw_input(t, RW_I32, RW_SHAPE(BATCH), same, sizeof same));
}

/* ---- one step, in three ways ---- */

enum way { WHOLE, KEEP, AGAIN };
static const char *const names[] = { "one tape", "chunks, kept", "chunks, recomputed" };

static double whole_step(struct encoder *e, rw_memory *ret)
{
    rw_tape *t = NULL;
    rw_tensor *embedded[CHUNKS];
    check(e->ctx, rw_tape_create(&t, e->ctx));
    for (int c = 0; c < CHUNKS; c++) embedded[c] = encode(e, t, c);
    rw_tensor *const loss = contrastive_loss(t, embedded);
    check(e->ctx, rw_backward(t, loss));
    const double value = rw_item(t, loss);
    check(e->ctx, rw_memory_stats(e->ctx, ret));
    rw_tape_destroy(&t);
    return value;
}

/* A step in chunks: forward of all, the loss of all embeddings, then backward of each. */
static double chunked_step(struct encoder *e, enum way way, rw_memory *ret)
{
    static float values[2 * CHUNK * OUT];
    rw_tape *chunk[CHUNKS] = { NULL }, *t = NULL;
    rw_tensor *y[CHUNKS], *x[CHUNKS];
    check(e->ctx, rw_tape_create(&t, e->ctx));
    for (int c = 0; c < CHUNKS; c++) {
        check(e->ctx, rw_tape_create(&chunk[c], e->ctx));
        y[c] = encode(e, chunk[c], c);
        if (way == KEEP) check(e->ctx, rw_forward(chunk[c], &y[c], 1)); /* keeps the activations */
        check(e->ctx, rw_read(chunk[c], y[c], values, sizeof values));
        x[c] = rw_require_grad(t, rw_input(t, RW_F32, RW_SHAPE(2 * CHUNK, OUT), values, sizeof values));
    }
    rw_tensor *const loss = contrastive_loss(t, x);
    check(e->ctx, rw_backward(t, loss));
    for (int c = 0; c < CHUNKS; c++) {
        rw_tensor *const dy = rw_gradient(x[c]);
        check(e->ctx, rw_backward_from(chunk[c], &y[c], &dy, 1));
    }
    const double value = rw_item(t, loss);
    check(e->ctx, rw_memory_stats(e->ctx, ret));
    for (int c = 0; c < CHUNKS; c++) rw_tape_destroy(&chunk[c]);
    rw_tape_destroy(&t);
    return value;
}

/* Returns the gradients, which the caller frees. */
static float *run(enum way way, size_t *ret_n)
{
    struct encoder e;
    rw_memory memory;
    make_encoder(&e);
    const double loss = way == WHOLE ? whole_step(&e, &memory) : chunked_step(&e, way, &memory);
    const size_t up = rw_tensor_bytes(rw_gradient(e.up)), down = rw_tensor_bytes(rw_gradient(e.down));
    float *const g = malloc(up + down);
    if (!g) exit(1);
    check(e.ctx, rw_read(NULL, rw_gradient(e.up), g, up));
    check(e.ctx, rw_read(NULL, rw_gradient(e.down), (char *)g + up, down));
    printf("%-22s loss %.6f, activations %7zu bytes\n", names[way], loss, memory.arenas);
    rw_context_destroy(&e.ctx);
    *ret_n = (up + down) / sizeof *g;
    return g;
}

int main(int argc, char **argv)
{
    size_t n;
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--quick") != 0)) {
        fprintf(stderr, "usage: gradcache [--quick]\n");
        return 2;
    }
    for (int i = 0; i < BATCH * IN; i++) {
        left[i] = (float)sin(i * 0.37);
        right[i] = left[i] + (float)cos(i * 1.7) * 0.3f;
    }
    float *const whole = run(WHOLE, &n), *const keep = run(KEEP, &n), *const again = run(AGAIN, &n);
    double largest = 0, difference = 0;
    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)whole[i]));
        difference = fmax(difference, fabs((double)whole[i] - (double)keep[i]));
    }
    /* Chunks add the same products in another order; the two ways to suspend do not. */
    const bool same = !memcmp(keep, again, n * sizeof *keep), close = difference <= 1e-5 * largest;
    printf("largest gradient %.3g, largest difference from one tape %.3g; the two ways to wait: %s\n", largest,
           difference, same ? "the same bytes" : "DIFFERENT");
    free(whole), free(keep), free(again);
    return same && close ? 0 : 1;
}
