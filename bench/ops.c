/*
 * Single ops, forward and backward, on operands of some megabytes: bench/peers/pytorch_ops.py compares them with
 * PyTorch's. This finds ops that are unusually slow; their effect on a model's step is measured elsewhere.
 *
 *   ops                           the names
 *   ops NAME f32|bf16 [ROUNDS]    milliseconds, the median
 */
#include "figure.h"

#include <rewind/rewind.h>

#include <string.h>

#define MAX 4

/* An op's operands, in the order of first use. */
struct bench {
    rw_context *ctx;
    rw_tape *t;
    rw_dtype dtype;
    struct given {
        rw_dtype dtype;
        rw_shape shape;
        void *data;
        rw_tensor *x; /* of this step */
    } given[MAX];
    int n, asked;
};

/* A pseudorandom number for i, below `below`. */
static uint64_t number(int64_t i, uint64_t below)
{
    return ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u % 1000003 * 7919 % below;
}

/* Between base - 1 and base + 1, or, for integers, below `places`. */
static void *make(rw_dtype dtype, int64_t n, double base, int64_t places)
{
    void *const data = malloc((size_t)n * rw_dtype_size(dtype) + 1);
    for (int64_t i = 0; data && i < n; i++) {
        const float x = (float)(base + (double)number(i, 2000) / 1000 - 1);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (dtype == RW_I32) ((int32_t *)data)[i] = (int32_t)number(i, (uint64_t)places);
        else if (dtype == RW_BF16) ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        else ((float *)data)[i] = x;
    }
    return data;
}

static int64_t numel(rw_shape s)
{
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++) n *= s.dim[i];
    return n;
}

static void hand_out(struct bench *b, struct given *g)
{
    g->x = rw_input(b->t, g->dtype, g->shape, g->data, (size_t)rw_shape_numel(g->shape) * rw_dtype_size(g->dtype));
    if (g->dtype != RW_I32) g->x = rw_require_grad(b->t, g->x);
}

static rw_tensor *operand(struct bench *b, rw_dtype dtype, rw_shape shape, double base, int64_t places)
{
    struct given *const g = &b->given[b->asked++];
    if (b->asked > b->n) {
        *g = (struct given){ dtype, shape, make(dtype, numel(shape), base, places), NULL };
        b->n = b->asked;
        hand_out(b, g);
    }
    return g->x;
}

#define X(...) operand(b, b->dtype, RW_SHAPE(__VA_ARGS__), 0, 0)
#define ABOVE_0(...) operand(b, b->dtype, RW_SHAPE(__VA_ARGS__), 1.5, 0)
#define INDEX(places, ...) operand(b, RW_I32, RW_SHAPE(__VA_ARGS__), 0, places)
#define ROWS 2048, 1024
#define IMAGES 8, 64, 64, 64

static rw_tensor *top(struct bench *b, int64_t k, int axis)
{
    rw_tensor *values, *places;
    return rw_topk(b->t, X(ROWS), k, axis, &values, &places) ? NULL : values;
}

static rw_tensor *pool(struct bench *b, bool max, int size, int stride, int padding)
{
    const rw_pool2d_params p = { .kernel = { size, size }, .stride = { stride, stride },
                                 .padding = { padding, padding } };
    return max ? rw_max_pool2d(b->t, X(IMAGES), &p) : rw_avg_pool2d(b->t, X(IMAGES), &p);
}

static rw_tensor *conv(struct bench *b, int groups, int dilation)
{
    const rw_conv2d_params p = { .padding = { dilation, dilation }, .dilation = { dilation, dilation },
                                 .groups = groups };
    rw_tensor *const x = X(8, 64, 56, 56);
    return rw_conv2d(b->t, x, X(64, 64 / groups, 3, 3), RW_NONE, &p);
}

static rw_tensor *attention(struct bench *b, int64_t heads, int64_t seq, int64_t width, bool causal)
{
    rw_tensor *const q = X(2, heads, seq, width), *const k = X(2, heads, seq, width);
    return rw_attention(b->t, q, k, X(2, heads, seq, width), &(rw_attention_params){ .causal = causal });
}

static rw_tensor *joined(struct bench *b, int axis, bool stacks)
{
    rw_tensor *const x = X(ROWS), *const both[] = { x, X(ROWS) };
    return stacks ? rw_stack(b->t, both, 2, axis) : rw_concat(b->t, both, 2, axis);
}

static rw_tensor *by_index(struct bench *b, int axis, bool scatters)
{
    rw_tensor *const x = X(ROWS), *const index = INDEX(1024, ROWS);
    return scatters ? rw_scatter_add(b->t, x, axis, index, X(ROWS)) : rw_gather(b->t, x, axis, index);
}

/* Each op: its name, and the expression that records it on t. */
#define OPS(OP)                                                                                                \
    OP(exp, rw_exp(t, X(ROWS)))                                                                                \
    OP(log, rw_log(t, ABOVE_0(ROWS)))                                                                          \
    OP(tanh, rw_tanh(t, X(ROWS)))                                                                              \
    OP(gelu, rw_gelu(t, X(ROWS)))                                                                              \
    OP(silu, rw_silu(t, X(ROWS)))                                                                              \
    OP(square, rw_pow_scalar(t, X(ROWS), 2))                                                                   \
    OP(power, rw_pow_scalar(t, ABOVE_0(ROWS), 1.7))                                                            \
    OP(clamp, rw_clamp(t, X(ROWS), -0.5, 0.5))                                                                 \
    OP(mul, rw_mul(t, X(ROWS), ABOVE_0(ROWS)))                                                                 \
    OP(add_row, rw_add(t, X(ROWS), X(1024)))                                                                   \
    OP(mul_column, rw_mul(t, X(ROWS), X(2048, 1)))                                                             \
    OP(add_transposed, rw_add(t, X(ROWS), rw_transpose(t, X(1024, 2048), 0, 1)))                               \
    OP(sum_all, rw_sum(t, X(ROWS), RW_ALL_AXES, false))                                                        \
    OP(sum_rows, rw_sum(t, X(ROWS), RW_AXES(1), false))                                                        \
    OP(sum_columns, rw_sum(t, X(ROWS), RW_AXES(0), false))                                                     \
    OP(sum_of_8, rw_sum(t, X(262144, 8), RW_AXES(1), false))                                                   \
    OP(max_rows, rw_max(t, X(ROWS), RW_AXES(1), false))                                                        \
    OP(prod_rows, rw_prod(t, ABOVE_0(ROWS), RW_AXES(1), false))                                                \
    OP(var_rows, rw_var(t, X(ROWS), RW_AXES(1), true, false))                                                  \
    OP(cumsum_rows, rw_cumsum(t, X(ROWS), 1))                                                                  \
    OP(cumsum_columns, rw_cumsum(t, X(ROWS), 0))                                                               \
    OP(softmax_rows, rw_softmax(t, X(ROWS), 1))                                                                \
    OP(softmax_columns, rw_softmax(t, X(ROWS), 0))                                                             \
    OP(softmax_of_8, rw_softmax(t, X(262144, 8), 1))                                                           \
    OP(layernorm, rw_layernorm(t, X(ROWS), ABOVE_0(1024), X(1024), 1e-5))                                      \
    OP(rmsnorm, rw_rmsnorm(t, X(ROWS), ABOVE_0(1024), 1e-5))                                                   \
    OP(batchnorm, rw_batchnorm(t, X(IMAGES), ABOVE_0(64), X(64), RW_NONE, RW_NONE, NULL))                      \
    OP(group_norm, rw_group_norm(t, X(IMAGES), 8, ABOVE_0(64), X(64), 1e-5))                                   \
    OP(instance_norm, rw_instance_norm(t, X(IMAGES), ABOVE_0(64), X(64), 1e-5))                                \
    OP(dropout, rw_dropout(t, X(ROWS), 0.1))                                                                   \
    OP(transpose, rw_contiguous(t, rw_transpose(t, X(ROWS), 0, 1)))                                            \
    OP(heads, rw_contiguous(t, rw_transpose(t, X(4, 512, 16, 64), 1, 2)))                                      \
    OP(concat_rows, joined(b, 0, false))                                                                       \
    OP(concat_columns, joined(b, 1, false))                                                                    \
    OP(stack_last, joined(b, 2, true))                                                                         \
    OP(roll, rw_roll(t, X(ROWS), 100, 1))                                                                      \
    OP(flip, rw_flip(t, X(ROWS), 1))                                                                           \
    OP(unfold, rw_contiguous(t, rw_unfold(t, X(ROWS), 1, 8, 4)))                                               \
    OP(pad_zeros, rw_pad(t, X(IMAGES), (int64_t[]){ 3, 3, 3, 3 }, 4, RW_PAD_CONSTANT, 0))                      \
    OP(pad_reflect, rw_pad(t, X(IMAGES), (int64_t[]){ 3, 3, 3, 3 }, 4, RW_PAD_REFLECT, 0))                     \
    OP(topk_8, top(b, 8, 1))                                                                                   \
    OP(topk_256, top(b, 256, 1))                                                                               \
    OP(topk_columns, top(b, 8, 0))                                                                             \
    OP(gather, by_index(b, 1, false))                                                                          \
    OP(scatter_add, by_index(b, 1, true))                                                                      \
    OP(index_select, rw_index_select(t, X(ROWS), 0, INDEX(2048, 4096)))                                        \
    OP(embedding, rw_embedding(t, X(32000, 256), INDEX(32000, 8, 1024)))                                       \
    OP(embedding_bag, rw_embedding_bag(t, X(32000, 128), INDEX(32000, 2048, 16), RW_BAG_SUM))                  \
    OP(cross_entropy, rw_cross_entropy(t, X(1024, 8192), INDEX(8192, 1024)))                                   \
    OP(cross_entropy_of_10, rw_cross_entropy(t, X(131072, 10), INDEX(10, 131072)))                             \
    OP(mse_loss, rw_mse_loss(t, X(ROWS), ABOVE_0(ROWS)))                                                       \
    OP(max_pool, pool(b, true, 3, 2, 1))                                                                       \
    OP(avg_pool, pool(b, false, 2, 2, 0))                                                                      \
    OP(avg_pool_to_7, rw_adaptive_avg_pool2d(t, X(IMAGES), 7, 7))                                              \
    OP(avg_pool_to_1, rw_global_avg_pool2d(t, X(IMAGES)))                                                      \
    OP(conv, conv(b, 1, 1))                                                                                    \
    OP(conv_dilated, conv(b, 1, 2))                                                                            \
    OP(conv_of_groups, conv(b, 4, 1))                                                                          \
    OP(conv_of_channels, conv(b, 64, 1))                                                                       \
    OP(linear, rw_linear(t, X(1024, 1024), X(1024, 1024), X(1024)))                                            \
    OP(products_of_128, rw_matmul(t, X(64, 128, 64), X(64, 64, 128)))                                          \
    OP(products_of_8, rw_matmul(t, X(4096, 8, 8), X(4096, 8, 8)))                                              \
    OP(attention_causal, attention(b, 8, 512, 64, true))                                                       \
    OP(attention_short, attention(b, 64, 32, 32, false))

/* Operands are created in the compiler's order of evaluation, which is the same each time. */
#define RECORD(name, expr)                           \
    static rw_tensor *record_##name(struct bench *b) \
    {                                                \
        rw_tape *const t = b->t;                     \
        (void)t;                                     \
        return expr;                                 \
    }
OPS(RECORD)

#define ENTRY(name, expr) { #name, record_##name },
static const struct op {
    const char *name;
    rw_tensor *(*record)(struct bench *b);
} ops[] = { OPS(ENTRY) };

enum { N_OPS = sizeof ops / sizeof *ops };

/* Milliseconds of a step; below 0 if it fails. *grad: the upstream gradient, created by the first step. */
static double step(struct bench *b, const struct op *op, struct given *grad)
{
    rw_tape_reset(b->t);
    for (int i = 0; i < b->n; i++) hand_out(b, &b->given[i]);
    if (grad->data)
        grad->x = rw_input(b->t, grad->dtype, grad->shape, grad->data,
                           (size_t)rw_shape_numel(grad->shape) * rw_dtype_size(grad->dtype));
    b->asked = 0;
    const double begin = now_s();
    rw_tensor *y = op->record(b);
    if (!y) return -1;
    if (!grad->data) {
        *grad = (struct given){ .dtype = rw_tensor_dtype(y), .shape = rw_tensor_shape(y) };
        grad->data = make(grad->dtype, numel(grad->shape), 0, 0);
        grad->x = rw_input(b->t, grad->dtype, grad->shape, grad->data,
                           (size_t)rw_shape_numel(grad->shape) * rw_dtype_size(grad->dtype));
    }
    if (rw_forward(b->t, &y, 1) || rw_backward_from(b->t, &y, &grad->x, 1)) return -1;
    return 1e3 * (now_s() - begin);
}

static int measure(const struct op *op, rw_dtype dtype, int rounds)
{
    struct bench b = { .dtype = dtype };
    struct given grad = { 0 };
    double ms[64];
    bool ok = !rw_context_create(&b.ctx, NULL) && !rw_tape_create(&b.t, b.ctx);
    for (int i = -2; ok && i < rounds; i++) ok = (ms[i < 0 ? 0 : i] = step(&b, op, &grad)) >= 0;
    if (ok) printf("%.4f\n", median_of(ms, rounds));
    else fprintf(stderr, "ops: %s: %s\n", op->name, rw_error_message(b.ctx));
    for (int i = 0; i < b.n; i++) free(b.given[i].data);
    free(grad.data);
    rw_tape_destroy(&b.t);
    rw_context_destroy(&b.ctx);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 3 ? figure_integer(argv[3], 1, 64) : 9;
    const bool f32 = argc > 2 && !strcmp(argv[2], "f32"), bf16 = argc > 2 && !strcmp(argv[2], "bf16");
    for (int i = 0; argc < 2 && i < N_OPS; i++) puts(ops[i].name);
    if (argc < 2) return answer_end("ops", EXIT_SUCCESS);
    for (int i = 0; (f32 || bf16) && argc <= 4 && i < N_OPS; i++)
        if (!strcmp(argv[1], ops[i].name))
            return answer_end("ops", measure(&ops[i], f32 ? RW_F32 : RW_BF16, rounds));
    fprintf(stderr, "usage: ops [NAME f32|bf16 [ROUNDS]], the names without them\n");
    return 2;
}
