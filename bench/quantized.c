/*
 * Products with a quantized weight: the time in addition to rw_linear() with unquantized weights, forward and backward
 * of x, is that of dequantizing. A layer of [3072, 768] on 1,024 rows; medians of rounds in which each runs once.
 *
 *   quantized [ROUNDS] [ROWS] [OUT] [IN]
 */
#include "figure.h"

#include <rewind/rewind.h>

struct layer {
    rw_context *ctx;
    rw_tape *t;
    rw_dtype dtype;
    rw_quantized weight;
    rw_tensor *dense; /* compared with this product */
    int64_t out, in;
};

/* Milliseconds of one product. Backward is the gradient of x: dy times the weight. */
static double time_of(struct layer *l, int64_t rows, bool codes, bool back)
{
    rw_tensor *const x = rw_input(l->t, l->dtype, RW_SHAPE(rows, l->in), NULL, 0);
    if (back) rw_require_grad(l->t, x);
    rw_tensor *y = codes ? rw_linear_quantized(l->t, x, &l->weight, RW_NONE)
                         : rw_linear(l->t, x, rw_detach(l->t, l->dense), RW_NONE);
    rw_tensor *const loss = back ? rw_sum(l->t, y, RW_ALL_AXES, false) : y;
    rw_status status = back ? rw_forward(l->t, &loss, 1) : RW_OK;
    const double begin = now_s();
    if (!status) status = back ? rw_backward(l->t, loss) : rw_eval(l->t, &y, 1);
    const double ms = 1e3 * (now_s() - begin);
    figure_must(l->ctx, status);
    rw_tape_reset(l->t);
    return ms;
}

static void compare(struct layer *l, const char *kind, int64_t rows, bool back, int rounds)
{
    double more[64], dense[64];
    char name[160];
    for (int i = -1; i < rounds; i++) { /* the first makes plans */
        const double codes = time_of(l, rows, true, back), plain = time_of(l, rows, false, back);
        if (i >= 0) more[i] = codes - plain, dense[i] = plain;
    }
    const double decode = median_of(more, rounds), product = median_of(dense, rounds);
    snprintf(name, sizeof name, "decode of %s codes beside the product, %s, %s (%.3g and %.3g ms)", kind,
             back ? "backward" : "forward", rw_dtype_name(l->dtype), decode, product);
    figure(name, decode / product, "of it", 0.05);
}

/* Times the linear layer forward and backward with one kind of quantized weight, and checks an nf4 weight's bytes. */
static void measure(struct layer *l, rw_quantized_kind kind, int64_t rows, int rounds)
{
    static const char *const kinds[] = { "nf4", "int8" };
    const rw_shape shape = RW_SHAPE(l->out, l->in);
    const size_t n = (size_t)(l->out * l->in);
    float *const numbers = malloc(n * sizeof *numbers);
    char name[160];
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) numbers[i] = (float)(int32_t)(state = state * 1664525 + 1013904223) * 0x1p-36f;
    figure_must(NULL, rw_context_create(&l->ctx, &(rw_context_params){ .seed = 1 }));
    figure_must(l->ctx, rw_tape_create(&l->t, l->ctx));
    l->dense = rw_param(l->ctx, "dense", l->dtype, shape);
    rw_init_normal(l->dense, 0, 0.02);
    rw_quantized_create(l->ctx, "w", kind, shape, &l->weight);
    const rw_status status = rw_quantized_write(&l->weight, RW_F32, numbers, n * sizeof *numbers);
    figure_must(l->ctx, status);
    free(numbers);
    for (int back = 0; back < 2; back++) compare(l, kinds[kind], rows, back, rounds);
    if (kind == RW_NF4 && l->dtype == RW_F32) {
        const size_t want = n / 2 + 4 * ((n + 255) / 256) + 4 + 4 * ((n + 16383) / 16384);
        snprintf(name, sizeof name, "bytes of an nf4 weight, %.4f bits a number",
                 8 * (double)rw_tensor_bytes(l->weight.words) / (double)n);
        figure_exactly(name, (double)rw_tensor_bytes(l->weight.words), "bytes", (double)want);
    }
    rw_tape_destroy(&l->t);
    rw_context_destroy(&l->ctx);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? figure_integer(argv[1], 1, 64) : 31;
    const int64_t rows = argc > 2 ? figure_integer(argv[2], 1, 1 << 20) : 1024;
    struct layer l = { .out = argc > 3 ? figure_integer(argv[3], 1, 1 << 20) : 3072,
                       .in = argc > 4 ? figure_integer(argv[4], 64, 1 << 20) : 768 };
    if (l.in % 64) return fprintf(stderr, "quantized: expected a multiple of 64, got %d\n", (int)l.in), 2;
    const rw_dtype types[] = { RW_F32, RW_BF16 };
    for (int d = 0; d < 2; d++)
        for (int kind = 0; kind < RW_QUANTIZED_KIND_COUNT; kind++) {
            l.dtype = types[d];
            measure(&l, (rw_quantized_kind)kind, rows, rounds);
        }
    return answer_end("quantized", 0);
}
