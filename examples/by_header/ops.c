/* Examples of the headers of ops. */
#include "by_header.h"

#include <math.h>
#include <string.h>

bool example_ops(rw_context *ctx, rw_tape *t)
{
    //! [ops]
    rw_tensor *up = rw_param(ctx, "up", RW_F32, RW_SHAPE(32, 8)); // [out, in]
    rw_tensor *down = rw_param(ctx, "down", RW_F32, RW_SHAPE(8, 32));
    rw_init_normal(up, 0, 0.02);
    rw_init_normal(down, 0, 0.02);

    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(4, 8)); // 4 tokens
    rw_tensor *h = rw_layernorm(t, x, RW_NONE, RW_NONE, 1e-5);
    h = rw_linear(t, rw_gelu(t, rw_linear(t, h, up, RW_NONE)), down, RW_NONE);
    rw_tensor *y = rw_add(t, x, rw_dropout(t, h, 0.1)); // [4, 8]
    rw_tensor *target = rw_input(t, RW_I32, RW_SHAPE(4), (int32_t[]){ 0, 1, 2, 7 }, 16);
    rw_tensor *loss = rw_cross_entropy(t, y, target);
    rw_backward(t, loss);
    //! [ops]
    return isfinite(rw_item(t, loss));
}

bool example_pointwise(rw_context *ctx, rw_tape *t)
{
    //! [pointwise]
    rw_tensor *x = rw_input(t, RW_F32, RW_SHAPE(3), (float[]){ -2, 0, 8 }, 12);
    float y[3];
    rw_read(t, rw_leaky_relu(t, x, 0.1), y, sizeof y); // -0.2, 0, 8
    rw_read(t, rw_relu6(t, x), y, sizeof y);           // 0, 0, 6
    //! [pointwise]
    return y[0] == 0 && y[2] == 6;
}

bool example_compare(rw_context *ctx, rw_tape *t)
{
    //! [compare]
    rw_tensor *x = rw_input(t, RW_F32, RW_SHAPE(3), (float[]){ -2, 0.5f, 8 }, 12);
    rw_tensor *low = rw_lt_scalar(t, x, 0);             // true, false, false
    rw_tensor *y = rw_where(t, low, rw_neg(t, x), x);   // 2, 0.5, 8
    y = rw_masked_fill(t, y, rw_gt_scalar(t, y, 5), 5); // 2, 0.5, 5
    //! [compare]
    return rw_item(t, rw_sum_all(t, y)) == 7.5;
}

bool example_create(rw_context *ctx, rw_tape *t)
{
    //! [create]
    rw_tensor *positions = rw_arange(t, RW_I32, 0, 4, 1);       // 0, 1, 2, 3
    rw_tensor *rows = rw_one_hot(t, positions, 4, RW_F32);      // the unit matrix
    rw_tensor *y = rw_mul(t, rows, rw_full(t, RW_F32, RW_SHAPE(4), 2.5));
    //! [create]
    return rw_item(t, rw_sum_all(t, y)) == 10;
}

bool example_select(rw_context *ctx, rw_tape *t)
{
    //! [select]
    rw_tensor *x = rw_reshape(t, rw_arange(t, RW_F32, 0, 6, 1), RW_SHAPE(2, 3)); // 0, 1, 2; 3, 4, 5
    rw_tensor *row = rw_select(t, x, 0, -1);                                     // 3, 4, 5: a view
    rw_tensor *wide = rw_pad(t, row, (int64_t[]){ 1, 1 }, 2, RW_PAD_REPLICATE, 0); // 3, 3, 4, 5, 5
    rw_tensor *pairs = rw_unfold(t, wide, 0, 2, 1);                              // [4, 2]: 3, 3; 3, 4; 4, 5; 5, 5
    //! [select]
    return rw_item(t, rw_sum_all(t, pairs)) == 32;
}

bool example_gather(rw_context *ctx, rw_tape *t)
{
    //! [gather]
    rw_tensor *x = rw_input(t, RW_F32, RW_SHAPE(2, 3), (float[]){ 1, 9, 5, 7, 2, 8 }, 24);
    rw_tensor *values, *indexes;
    rw_topk(t, x, 2, -1, &values, &indexes);           // 9, 5; 8, 7 at 1, 2; 2, 0
    rw_tensor *again = rw_gather(t, x, -1, indexes);   // the same values
    //! [gather]
    return rw_item(t, rw_sum_all(t, rw_sub(t, values, again))) == 0 && rw_item(t, rw_sum_all(t, values)) == 29;
}

bool example_conv(rw_context *ctx, rw_tape *t)
{
    //! [conv]
    rw_tensor *filters = rw_param(ctx, "filters", RW_F32, RW_SHAPE(8, 3, 3, 3)); // [out, in, height, width]
    rw_init_normal(filters, 0, 0.1);
    rw_tensor *images = rw_randn(t, RW_F32, RW_SHAPE(2, 3, 16, 16));             // [n, c, h, w]
    rw_tensor *y = rw_conv2d(t, images, filters, RW_NONE, &(rw_conv2d_params){ .padding = { 1, 1 } });
    y = rw_max_pool2d(t, rw_relu(t, y), &(rw_pool2d_params){ .kernel = { 2, 2 } }); // [2, 8, 8, 8]
    rw_tensor *features = rw_reshape(t, rw_global_avg_pool2d(t, y), RW_SHAPE(2, 8));
    rw_backward(t, rw_mean_all(t, features));
    //! [conv]
    return rw_shape_equal(rw_tensor_shape(y), RW_SHAPE(2, 8, 8, 8));
}

bool example_norm(rw_context *ctx, rw_tape *t)
{
    //! [norm]
    rw_tensor *mean = rw_buffer(ctx, "mean", RW_F32, RW_SHAPE(4)), *var = rw_buffer(ctx, "var", RW_F32, RW_SHAPE(4));
    rw_init_constant(var, 1);
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(8, 4, 5, 5)); // [n, c, h, w]
    rw_tensor *y = rw_batchnorm(t, x, RW_NONE, RW_NONE, mean, var, &(rw_batchnorm_params){ .relu = true });
    rw_tensor *z = rw_group_norm(t, x, 2, RW_NONE, RW_NONE, 1e-5);
    rw_eval(t, (rw_tensor *[]){ y, z }, 2); // also updates mean and var: without backward, effects happen here
    //! [norm]
    return rw_shape_equal(rw_tensor_shape(y), rw_tensor_shape(z));
}

bool example_attention(rw_context *ctx, rw_tape *t)
{
    //! [attention]
    const rw_shape shape = RW_SHAPE(1, 2, 16, 8); // batch, heads, sequence, width of a head
    rw_tensor *q = rw_randn(t, RW_F32, shape);
    rw_tensor *k = rw_randn(t, RW_F32, shape);
    rw_tensor *v = rw_randn(t, RW_F32, shape);
    q = rw_rope_with(t, q, RW_NONE, &(rw_rope_params){ .base = 500000 });
    k = rw_rope_with(t, k, RW_NONE, &(rw_rope_params){ .base = 500000 });
    rw_tensor *lse;
    rw_tensor *y = rw_attention_lse(t, q, k, v, &(rw_attention_params){ .causal = true }, &lse); // lse [1, 2, 16]
    //! [attention]
    return rw_shape_equal(rw_tensor_shape(y), shape) && rw_shape_equal(rw_tensor_shape(lse), RW_SHAPE(1, 2, 16));
}

bool example_reductions(rw_context *ctx, rw_tape *t)
{
    //! [reductions]
    rw_tensor *x = rw_input(t, RW_F32, RW_SHAPE(2, 2), (float[]){ 1, 3, 3, 4 }, 16);
    rw_tensor *var = rw_var(t, x, RW_AXES(-1), false, false);     // 1, 0.25
    rw_tensor *length = rw_norm(t, x, 2, RW_AXES(-1), false);     // sqrt(10), 5
    rw_tensor *sums = rw_cumsum(t, x, -1);                        // 1, 4; 3, 7
    //! [reductions]
    float l[2];
    rw_read(t, length, l, sizeof l);
    return rw_item(t, rw_sum_all(t, var)) == 1.25 && l[1] == 5 && rw_item(t, rw_sum_all(t, sums)) == 15;
}

bool example_einsum(rw_context *ctx, rw_tape *t)
{
    //! [einsum]
    rw_tensor *q = rw_ones(t, RW_F32, RW_SHAPE(2, 5, 3, 4)); // batch, sequence, heads, width
    rw_tensor *k = rw_ones(t, RW_F32, RW_SHAPE(2, 6, 3, 4));
    rw_tensor *scores = rw_einsum(t, "bqhd,bkhd->bhqk", (rw_tensor *[]){ q, k }, 2); // [2, 3, 5, 6]
    //! [einsum]
    return rw_item(t, rw_sum_all(t, scores)) == 2 * 3 * 5 * 6 * 4;
}

bool example_losses(rw_context *ctx, rw_tape *t)
{
    //! [losses]
    rw_tensor *logits = rw_randn(t, RW_F32, RW_SHAPE(4, 10));
    rw_tensor *target = rw_input(t, RW_I32, RW_SHAPE(4), (int32_t[]){ 3, 1, -1, 9 }, 16);
    const rw_cross_entropy_params params = { .label_smoothing = 0.1, .has_ignore_index = true, .ignore_index = -1 };
    rw_tensor *loss = rw_cross_entropy_with(t, logits, target, RW_NONE, &params); // the mean of three rows
    //! [losses]
    return rw_item(t, loss) > 0;
}

//! [composite]
// gelu(gate) up: if one of the ops fails, the tape is as before the call
static rw_tensor *geglu_at(rw_site at, rw_tape *t, rw_tensor *gate, rw_tensor *up)
{
    if (rw_recording_refused(t, __func__)) return NULL;
    if (!rw_operand_check(at, t, gate, "geglu", "gate") || !rw_operand_check(at, t, up, "geglu", "up")) return NULL;
    const rw_composite c = rw_composite_begin(t, "geglu");
    return rw_composite_end(&c, rw_mul_at(at, t, rw_gelu_at(at, t, gate), up));
}
#define geglu(...) geglu_at(RW_HERE, __VA_ARGS__)
//! [composite]

bool example_composite(rw_context *ctx, rw_tape *t)
{
    rw_tensor *gate = rw_randn(t, RW_F32, RW_SHAPE(4, 8)), *wrong = rw_randn(t, RW_F32, RW_SHAPE(5));
    const size_t nodes = rw_tape_nodes(t);
    const bool fails = !geglu(t, gate, wrong) && rw_error_status(ctx) == RW_ERR_SHAPE && rw_tape_nodes(t) == nodes;
    rw_error_clear(ctx);
    return fails && geglu(t, gate, gate);
}

//! [fusion]
// exp(log(x)) is x: reads the input of a logarithm in place of its result
static rw_tensor *exp_of(rw_tape *t, rw_tensor *x)
{
    rw_producer producer;
    const bool is_log = rw_tensor_producer(x, &producer) && !strcmp(producer.op->name, "log");
    return is_log && !rw_tensor_is_named_or_marked(x) ? rw_tensor_producer_input(x, 0) : rw_exp(t, x);
}
//! [fusion]

bool example_fusion(rw_context *ctx, rw_tape *t)
{
    rw_tensor *x = rw_full(t, RW_F32, RW_SHAPE(4), 2);
    return exp_of(t, rw_log(t, x)) == x && exp_of(t, x) != x;
}

bool example_custom_grad(rw_context *ctx, rw_tape *t)
{
    //! [custom_grad]
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(4));
    rw_write(w, (float[]){ -0.9f, 0.4f, 1.2f, 2.6f }, 16);
    rw_tensor *rounded = rw_cast(t, rw_cast(t, w, RW_I32), RW_F32); // toward zero; no gradient
    rw_tensor *y = rw_straight_through(t, rounded, w);              // 0, 0, 1, 2, with the gradient of w
    rw_backward(t, rw_sum_all(t, y));
    //! [custom_grad]
    return rw_item(t, rw_sum_all(t, rw_gradient(w))) == 4;
}

//! [kernel_pair]
static void square(float *y, const float *x, int64_t n) // as they are in the program
{
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * x[i];
}
static void d_square(float *dx, const float *dy, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dx[i] += 2 * x[i] * dy[i];
}

static rw_status forward(void *const *out, void *const *in, const void *data, const rw_kernel *k)
{
    return square(out[0], in[0], *(const int64_t *)data), RW_OK;
}
static rw_status backward(void *const *d_in, void *const *d_out, void *const *in, void *const *out, const void *data,
                          const rw_kernel *k)
{
    return d_square(d_in[0], d_out[0], in[0], *(const int64_t *)data), RW_OK;
}

static rw_tensor *squared(rw_tape *t, rw_tensor *x, int64_t n)
{
    return rw_call(t, &(rw_call_params){ .name = "square", .forward = forward, .backward = backward,
                                         .outputs = { { RW_F32, RW_SHAPE(n), false } }, .n_outputs = 1,
                                         .data = &n, .data_size = sizeof n,
                                         .unread_outputs = RW_OP_ALL_INPUTS }, // backward reads x alone
                   &x, 1);
}
//! [kernel_pair]

bool example_kernel_pair(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(4));
    rw_init_constant(w, 3);
    rw_backward(t, rw_sum_all(t, squared(t, squared(t, w, 4), 4)));
    return rw_item(t, rw_sum_all(t, rw_gradient(w))) == 4 * 108;
}

bool example_moe(rw_context *ctx, rw_tape *t)
{
    //! [moe]
    enum { TOKENS = 6, WIDTH = 8, EXPERTS = 4, CHOSEN = 2 };
    rw_tensor *experts = rw_param(ctx, "experts", RW_F32, RW_SHAPE(EXPERTS, WIDTH, WIDTH)); // [E, out, in]
    rw_tensor *router = rw_param(ctx, "router", RW_F32, RW_SHAPE(EXPERTS, WIDTH));
    rw_init_normal(experts, 0, 0.1);
    rw_init_normal(router, 0, 0.1);

    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(TOKENS, WIDTH));
    rw_tensor *index;
    rw_tensor *weights = rw_moe_router(t, rw_linear(t, x, router, RW_NONE),
                                       &(rw_moe_router_params){ .choice.k = CHOSEN }, &index, NULL);
    rw_moe_routes routes;
    rw_moe_route(t, index, EXPERTS, &routes);
    rw_tensor *rows = rw_moe_linear_of_tokens(t, x, experts, &routes);                  // [TOKENS CHOSEN, WIDTH]
    rw_tensor *y = rw_moe_combine(t, rw_moe_weigh(t, rows, weights, &routes), &routes); // [TOKENS, WIDTH]
    rw_backward(t, rw_mean_all(t, y));
    //! [moe]
    return rw_shape_equal(rw_tensor_shape(y), RW_SHAPE(TOKENS, WIDTH));
}

bool example_recurrent(rw_context *ctx, rw_tape *t)
{
    //! [recurrent]
    enum { LENGTH = 5, BATCH = 2, IN = 3, WIDTH = 4 };
    rw_tensor *ih = rw_param(ctx, "ih", RW_F32, RW_SHAPE(4 * WIDTH, IN)); // gates i, f, g, o
    rw_tensor *hh = rw_param(ctx, "hh", RW_F32, RW_SHAPE(4 * WIDTH, WIDTH));
    rw_init_normal(ih, 0, 0.1);
    rw_init_normal(hh, 0, 0.1);
    const rw_recurrent_weights weights = { ih, hh, RW_NONE, RW_NONE };
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(LENGTH, BATCH, IN));
    rw_tensor *last_h, *last_c;
    rw_tensor *y = rw_lstm(t, x, RW_NONE, RW_NONE, &weights, &last_h, &last_c); // [LENGTH, BATCH, WIDTH]
    rw_backward(t, rw_mean_all(t, y));
    //! [recurrent]
    return rw_shape_equal(rw_tensor_shape(last_c), RW_SHAPE(BATCH, WIDTH));
}

bool example_quantized(rw_context *ctx, rw_tape *t)
{
    static float weights[8 * 64];
    for (int i = 0; i < 8 * 64; i++) weights[i] = (float)(i % 7) / 7 - 0.5f;
    //! [quantized]
    rw_quantized base;
    rw_quantized_create(ctx, "base", RW_NF4, RW_SHAPE(8, 64), &base);   // [out, in], 4.1 bits per weight
    rw_quantized_write(&base, RW_F32, weights, 8 * 64 * sizeof *weights);
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(4, 64));
    rw_tensor *y = rw_linear_quantized(t, x, &base, RW_NONE);           // [4, 8]
    //! [quantized]
    return isfinite(rw_item(t, rw_sum_all(t, y)));
}

bool example_float8(rw_context *ctx, rw_tape *t)
{
    //! [float8]
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(4, 256));
    rw_tensor *scale;
    const rw_quantize_params params = { .scaling = RW_SCALING_1X128 };            // a scale for 128 of a row
    rw_tensor *q = rw_quantize(t, x, RW_NONE, &params, &scale, NULL);             // RW_F8_E4M3; scale [4, 2]
    rw_tensor *y = rw_dequantize(t, q, scale, RW_SCALING_1X128, RW_F32);
    rw_tensor *error = rw_max(t, rw_abs(t, rw_sub(t, x, y)), RW_ALL_AXES, false);
    //! [float8]
    return rw_item(t, error) < 0.2;
}
