/*
 * Fuzzed calls of the families of ops with their own headers, of recipes, scalers, quantized weights, files and
 * predictions. Most operands are chosen to be valid: with random ones nearly every call would be refused.
 */
#include "fuzz/api_common.h"

#include <sys/mman.h>
#include <unistd.h>

static int64_t small(struct state *s)
{
    static const int64_t extents[] = { 2, 3, 1, 4, 6, 8, 5, 0 };
    return extents[fz_byte(s) % 8];
}

/* A new value of that shape, or sometimes any other. */
static rw_tensor *fitting(struct state *s, rw_dtype type, rw_shape shape)
{
    if (fz_ask(s, 12)) return fz_operand(s);
    rw_tensor *const x = type == RW_I32 ? rw_zeros(T, type, shape) : rw_randn(T, type, shape);
    fz_look(s, "a fitting operand");
    return x;
}

static rw_tensor *optional(struct state *s, rw_dtype type, rw_shape shape)
{
    return fz_ask(s, 3) ? rw_none() : fitting(s, type, shape);
}

static rw_dtype floating(struct state *s)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    return types[fz_byte(s) % 4];
}

static void keep(struct state *s, rw_tensor *y)
{
    if (y) X->value[X->n_values++ % VALUES] = y;
}

/* ---- ops ---- */

static void comparisons(struct state *s)
{
    static rw_tensor *(*const two[])(rw_site, rw_tape *, rw_tensor *, rw_tensor *) = {
        rw_eq_at, rw_ne_at, rw_lt_at, rw_le_at, rw_gt_at, rw_ge_at, rw_logical_and_at, rw_logical_or_at, rw_pow_at,
    };
    const uint8_t op = fz_byte(s) % 14;
    rw_tensor *const a = fz_operand(s), *const b = fz_operand(s);
    const double low = fz_number(s), high = fz_number(s);
    if (op < 9) RECORDED(two[op], RW_HERE, T, a, b);
    else if (op == 9) RECORDED(rw_gt_scalar, T, a, low);
    else if (op == 10) RECORDED(rw_where, T, fz_operand(s), a, b);
    else if (op == 11) RECORDED(rw_masked_fill, T, a, b, low);
    else if (op == 12) RECORDED(rw_clamp, T, a, low, high);
    else RECORDED(rw_isfinite, T, a);
}

/* A convolution or pooling op with arbitrary parameters and mostly fitting shapes. */
static void convolutions(struct state *s)
{
    const int groups = 1 + fz_byte(s) % 2, kernel = 1 + fz_byte(s) % 3, a = fz_byte(s) % 4, b = fz_byte(s) % 4;
    const rw_conv2d_params params = { { a, b }, { b, a % 2 }, { 1, 1 + b % 2 }, { a % 2, 0 }, groups };
    const rw_pool2d_params pool = { { kernel, a }, { b, b }, { a % 2, 0 }, fz_ask(s, 2), { b % 3, a % 3 },
                                    a > 2, b / 3 };
    const int64_t in = groups * small(s), out = groups * small(s), high = small(s), wide = small(s) + 1;
    const rw_dtype type = floating(s);
    const uint8_t op = fz_byte(s) % 6;
    rw_tensor *const x = fitting(s, type, RW_SHAPE(2, in, high, wide));
    rw_tensor *const w = fitting(s, type, RW_SHAPE(op == 2 ? in : out, (op == 2 ? out : in) / groups, kernel, 2));
    rw_tensor *const bias = optional(s, type, RW_SHAPE(out));
    switch (op) {
    case 0:
    case 1: RECORDED(rw_conv2d, T, x, w, bias, &params); break;
    case 2: RECORDED(rw_conv_transpose2d, T, x, w, bias, &params); break;
    case 3: RECORDED(rw_max_pool2d, T, x, &pool); break;
    case 4: RECORDED(rw_avg_pool2d, T, x, &pool); break;
    default:
        if (a == 1) RECORDED(rw_adaptive_avg_pool2d, T, x, b, kernel);
        else if (a == 2) RECORDED(rw_adaptive_max_pool2d, T, x, b, kernel);
        else RECORDED(rw_global_avg_pool2d, T, x);
    }
}

/* Batch, group or instance norm with arbitrary parameters. */
static void norms(struct state *s)
{
    const int64_t channels = 2 * small(s), n = small(s), wide = small(s);
    const rw_dtype type = floating(s);
    rw_tensor *const x = fitting(s, type, RW_SHAPE(n, channels, wide, 2));
    const rw_batchnorm_params params = { fz_number(s), fz_number(s), fz_ask(s, 3), fz_ask(s, 2),
                                         fz_ask(s, 4) ? fitting(s, type, RW_SHAPE(n, channels, wide, 2)) : NULL };
    rw_tensor *const w = optional(s, RW_F32, RW_SHAPE(channels)), *const b = optional(s, RW_F32, RW_SHAPE(channels));
    switch (fz_byte(s) % 3) {
    case 0: {
        rw_tensor *const mean = rw_buffer(X->ctx, "mean", RW_F32, RW_SHAPE(4)),
                  *const var = rw_buffer(X->ctx, "var", RW_F32, RW_SHAPE(4));
        fz_look(s, "running statistics");
        RECORDED(rw_batchnorm, T, x, w, b, mean, fz_ask(s, 8) ? mean : var, &params);
        break;
    }
    case 1: RECORDED(rw_group_norm, T, x, fz_byte(s) % 4, w, b, fz_number(s)); break;
    default: RECORDED(rw_instance_norm, T, x, w, b, fz_number(s));
    }
}

static void creation(struct state *s)
{
    static const char *const equations[] = { "ij,jk->ik", "ij,ij->",  "ij->ji", "bij,bjk",
                                             "ii",        "i,j->ij", "ij,jk",  "," };
    rw_tensor *const several[] = { fz_operand(s), fz_operand(s) };
    rw_tensor *const index = fitting(s, RW_I32, RW_SHAPE(small(s)));
    switch (fz_byte(s) % 5) {
    case 0: RECORDED(rw_full, T, fz_dtype(s), fz_shape(s), fz_number(s)); break;
    case 1: RECORDED(rw_arange, T, fz_dtype(s), fz_number(s), 20 * fz_number(s), fz_number(s)); break;
    case 2: RECORDED(rw_one_hot, T, fz_operand(s), fz_extent(s), fz_dtype(s)); break;
    case 3: RECORDED(rw_one_hot, T, index, small(s), floating(s)); break;
    default: RECORDED(rw_einsum, T, equations[fz_byte(s) % 8], several, fz_byte(s) % 3);
    }
}

static void codes(struct state *s)
{
    rw_tensor *scale = NULL, *amax = NULL;
    const rw_quantize_params params = { fz_ask(s, 2) ? RW_F8_E5M2 : fz_ask(s, 8) ? fz_dtype(s) : 0,
                                        (rw_scaling)(fz_byte(s) % (RW_SCALING_COUNT + 1)), fz_ask(s, 2) };
    rw_tensor *const x = fitting(s, floating(s), RW_SHAPE(small(s), 32 * small(s)));
    RECORDED(rw_quantize, T, x, fz_ask(s, 4) ? fz_operand(s) : rw_none(), &params, &scale, fz_ask(s, 2) ? &amax : NULL);
    rw_tensor *const y = X->value[(X->n_values + VALUES - 1) % VALUES];
    keep(s, amax);
    if (scale) RECORDED(rw_dequantize, T, y, scale, fz_ask(s, 8) ? RW_SCALING_TENSOR : params.scaling, floating(s));
}

/* An op that reads or writes by index. */
static void gathering(struct state *s)
{
    const int64_t n = small(s), m = small(s), k = small(s);
    const int a = fz_axis(s);
    rw_tensor *const x = fitting(s, floating(s), RW_SHAPE(n, m)), *const index = fitting(s, RW_I32, RW_SHAPE(n, k));
    rw_tensor *const src = fitting(s, rw_tensor_dtype(x), RW_SHAPE(n, k));
    rw_tensor *const rows = fitting(s, RW_I32, RW_SHAPE(k));
    rw_tensor *indexes = NULL, *values = NULL;
    switch (fz_byte(s) % 7) {
    case 0: RECORDED(rw_argmax, T, x, a, fz_ask(s, 2)); break;
    case 1: RECORDED(rw_argmin, T, x, a, fz_ask(s, 2)); break;
    case 2: RETURNED(rw_topk, T, x, k, a, &values, &indexes); break;
    case 3: RECORDED(rw_gather, T, x, a, index); break;
    case 4: RECORDED(rw_scatter_add, T, x, a, index, src); break;
    case 5: RECORDED(rw_index_select, T, x, a, rows); break;
    default: RECORDED(rw_embedding_bag, T, x, index, (rw_bag_mode)(fz_byte(s) % 3));
    }
    keep(s, values), keep(s, indexes);
}

/* A loss op with arbitrary parameters and mostly fitting operands. */
static void losses(struct state *s)
{
    const int64_t rows = small(s), classes = small(s);
    const rw_dtype type = floating(s);
    const rw_reduction reduction = (rw_reduction)(fz_byte(s) % 4);
    rw_cross_entropy_params params = { reduction, fz_number(s), fz_number(s), fz_ask(s, 2), 0, fz_byte(s) % 4 };
    rw_tensor *const x = fitting(s, type, RW_SHAPE(rows, classes));
    rw_tensor *const y = fitting(s, type, RW_SHAPE(rows, classes));
    rw_tensor *const target = fitting(s, RW_I32, RW_SHAPE(rows)), *const w = optional(s, RW_F32, RW_SHAPE(classes));
    rw_tensor *const matrix = fitting(s, type, RW_SHAPE(5, classes));
    const int op = fz_byte(s) % 7;
    if (op != 1 && params.chunk > 1) params.chunk = 0; /* otherwise it is refused */
    switch (op) {
    case 0: RECORDED(rw_cross_entropy_with, T, x, target, w, fz_ask(s, 4) ? NULL : &params); break;
    case 1: RECORDED(rw_linear_cross_entropy, T, x, matrix, target, &params); break;
    case 2: RECORDED(rw_nll_loss, T, x, target, w, &params); break;
    case 3: RECORDED(rw_bce_with_logits, T, x, y, w, rw_none(), reduction); break;
    case 4: RECORDED(rw_huber_loss, T, x, y, fz_number(s), reduction); break;
    case 5: RECORDED(rw_smooth_l1_loss, T, x, y, fz_number(s), reduction); break;
    default: RECORDED(rw_kl_div, T, x, y, fz_ask(s, 2), reduction);
    }
}

/* The ops of a mixture of experts in their usual order, with arbitrary routing parameters. */
static void experts(struct state *s)
{
    const int64_t tokens = small(s), n = 2 * small(s), k = 1 + fz_byte(s) % 3, in = small(s), out = small(s);
    const rw_moe_choice choice = { k, fz_byte(s) % 3, fz_byte(s) % 2, fz_byte(s) % 3 };
    const rw_dtype type = floating(s);
    rw_moe_routes routes = { NULL };
    rw_tensor *const scores = fitting(s, type, RW_SHAPE(tokens, n));
    rw_tensor *const bias = optional(s, RW_F32, RW_SHAPE(n));
    RECORDED(rw_moe_topk, T, scores, bias, &choice);
    rw_tensor *index = X->value[(X->n_values + VALUES - 1) % VALUES];
    RETURNED(rw_moe_route, T, index, n, &routes);
    if (!routes.order) return;
    if (fz_ask(s, 3)) RECORDED(rw_moe_drop, T, index, fz_ask(s, 2) ? scores : rw_none(), &routes, 1);
    RECORDED(rw_moe_select, T, scores, index);
    rw_tensor *const w = fitting(s, type, RW_SHAPE(n, out, in));
    const bool of_tokens = fz_ask(s, 2);
    rw_tensor *const x = fitting(s, type, RW_SHAPE(of_tokens ? tokens : tokens * k, in));
    if (of_tokens) RECORDED(rw_moe_linear_of_tokens, T, x, w, &routes);
    else RECORDED(rw_moe_linear, T, x, w, &routes);
}

/* A recurrent cell or layer, or a causal convolution. */
static void recurrent(struct state *s)
{
    const uint8_t op = fz_byte(s) % 5;
    const int64_t batch = small(s), in = small(s), h = small(s), length = small(s), gates = op % 2 ? 3 : 4;
    const rw_dtype type = floating(s);
    const rw_recurrent_weights weights = {
        fitting(s, type, RW_SHAPE(gates * h, in)), fitting(s, type, RW_SHAPE(gates * h, h)),
        optional(s, type, RW_SHAPE(gates * h)), optional(s, type, RW_SHAPE(gates * h))
    };
    rw_tensor *const one = fitting(s, type, RW_SHAPE(batch, in));
    rw_tensor *const all = fitting(s, type, RW_SHAPE(length, batch, in));
    rw_tensor *const state = fitting(s, type, RW_SHAPE(batch, h)), *const c = fitting(s, type, RW_SHAPE(batch, h));
    rw_tensor *const bias = optional(s, type, RW_SHAPE(batch)), *last = NULL, *cell = NULL;
    switch (op) {
    case 0: RECORDED(rw_lstm_cell, T, one, state, c, &weights, &cell); break;
    case 1: RECORDED(rw_gru_cell, T, one, state, &weights); break;
    case 2: RECORDED(rw_lstm, T, all, state, c, &weights, &last, &cell); break;
    case 3: RECORDED(rw_gru, T, all, state, &weights, &last); break;
    default: RECORDED(rw_causal_conv1d, T, all, state, bias);
    }
    keep(s, last), keep(s, cell);
}

static void scan(struct state *s)
{
    const int64_t batch = small(s), length = small(s), groups = 1 + fz_byte(s) % 2, heads = groups * small(s);
    const int64_t p = small(s), n = small(s);
    const rw_dtype type = floating(s);
    const rw_ssd_operands operands = { fitting(s, type, RW_SHAPE(batch, length, heads, p)),
                                       fitting(s, type, RW_SHAPE(batch, length, heads)),
                                       fitting(s, type, RW_SHAPE(heads)),
                                       fitting(s, type, RW_SHAPE(batch, length, groups, n)),
                                       fitting(s, type, RW_SHAPE(batch, length, groups, n)),
                                       optional(s, type, RW_SHAPE(batch, heads, p, n)) };
    rw_tensor *state = NULL;
    RECORDED(rw_ssd_scan, T, &operands, fz_byte(s) % 5, fz_ask(s, 2) ? &state : NULL);
    keep(s, state);
}

static void more_reductions(struct state *s)
{
    rw_tensor *const x = fz_operand(s);
    const bool wide = fz_ask(s, 2);
    switch (fz_byte(s) % 5) {
    case 0: RECORDED(rw_prod, T, x, fz_axes(s), wide); break;
    case 1: RECORDED(rw_var, T, x, fz_axes(s), fz_ask(s, 2), wide); break;
    case 2: RECORDED(rw_norm, T, x, fz_number(s), fz_axes(s), wide); break;
    case 3: RECORDED(rw_normalize, T, x, fz_number(s), fz_axis(s), fz_number(s)); break;
    default: RECORDED(rw_cumsum, T, x, fz_axis(s));
    }
}

/* An op that selects, stacks, pads, rolls or flips, with arbitrary arguments. */
static void choices(struct state *s)
{
    rw_tensor *const x = fz_operand(s), *several[] = { x, fz_operand(s) }, *parts[3] = { NULL };
    const int64_t pad[4] = { fz_extent(s), fz_byte(s) % 4, fz_byte(s) % 3, -1 };
    const int a = fz_axis(s), n = fz_byte(s) % 4;
    switch (fz_byte(s) % 8) {
    case 0: RECORDED(rw_select, T, x, a, fz_extent(s) - 1); break;
    case 1: RECORDED(rw_unsqueeze, T, x, a); break;
    case 2: RETURNED(rw_unbind, T, x, a, parts, n); break;
    case 3: RECORDED(rw_unfold, T, x, a, fz_extent(s), fz_extent(s)); break;
    case 4: RECORDED(rw_stack, T, several, n % 3, a); break;
    case 5: if (pad[0] < 64) RECORDED(rw_pad, T, x, pad, n + 1, (rw_pad_mode)(n + fz_ask(s, 8)), fz_number(s)); break;
    case 6: RECORDED(rw_roll, T, x, fz_extent(s), a); break;
    default: RECORDED(rw_flip, T, x, a);
    }
    for (int i = 0; i < 3; i++) keep(s, parts[i]);
}

/* Attention with an arbitrary set of its options. */
static void with_options(struct state *s)
{
    const int64_t batch = small(s), heads = small(s), queries = small(s), keys = fz_ask(s, 2) ? queries : small(s);
    const rw_dtype type = floating(s);
    rw_attention_params o = { .causal = fz_ask(s, 2), .dropout = fz_ask(s, 2) ? 0.25 : fz_number(s) };
    if (fz_ask(s, 3)) o.window = fz_extent(s);
    if (fz_ask(s, 3)) o.soft_cap = fz_number(s);
    if (fz_ask(s, 3)) o.slopes = fitting(s, RW_F32, RW_SHAPE(heads));
    if (fz_ask(s, 3)) o.sinks = fitting(s, RW_F32, RW_SHAPE(heads));
    if (fz_ask(s, 3)) o.mask = fitting(s, type, RW_SHAPE(queries, keys));
    if (fz_ask(s, 3)) o.documents = fitting(s, RW_I32, RW_SHAPE(batch, queries));
    rw_tensor *const q = fitting(s, type, RW_SHAPE(batch, queries, heads, 8)),
              *const k = fitting(s, type, RW_SHAPE(batch, keys, heads, 8)),
              *const v = fitting(s, type, RW_SHAPE(batch, keys, heads, fz_ask(s, 3) ? 4 : 8)), *lse = NULL;
    if (fz_ask(s, 2)) RECORDED(rw_attention, T, q, k, v, &o);
    else RECORDED(rw_attention_lse, T, q, k, v, &o, &lse);
    keep(s, lse);
}

static rw_status half(rw_grad_call *g, const void *data)
{
    (void)g;
    return *(const uint8_t *)data % 2 ? RW_OK : RW_ERR_ARGUMENT;
}

static void own_gradients(struct state *s)
{
    rw_tensor *const several[] = { fz_operand(s), fz_operand(s) };
    const uint8_t says = fz_byte(s);
    switch (fz_byte(s) % 3) {
    case 0: RECORDED(rw_detach, T, several[0]); break;
    case 1: RECORDED(rw_straight_through, T, several[0], several[1]); break;
    default: RECORDED(rw_custom_grad, T, several[0], several + 1, says % 2, half, &says, 1);
    }
}

/* ---- calls that are not ops ---- */

/* A call of the low-precision recipes or of the loss scaler. */
static void precision(struct state *s)
{
    const unsigned kind = fz_byte(s);
    const rw_recipe recipe = { .kind = (rw_recipe_kind)(kind % (RW_RECIPE_COUNT + 1)),
                               .scaling = (rw_scaling)(fz_byte(s) % RW_SCALING_COUNT), .keep_weights = kind > 127 };
    const rw_scaler_params params = { .init_scale = fz_number(s), .growth_interval = fz_extent(s), .name = "scale" };
    rw_tensor *const loss = X->value[(X->n_values + VALUES - 1) % VALUES];
    rw_scaler_state state;
    switch (fz_byte(s) % 8) {
    case 0:
    case 1: RETURNED(rw_recipe_begin_at, RW_HERE, T, fz_ask(s, 8) ? NULL : &recipe); break;
    case 2: RETURNED(rw_recipe_end_at, RW_HERE, T); break;
    case 3: if (!X->scaler) RETURNED(rw_scaler_create, &X->scaler, X->ctx, fz_ask(s, 2) ? NULL : &params); break;
    case 4: if (X->scaler) RETURNED(rw_scaler_backward, X->scaler, T, loss); break;
    case 5: if (X->scaler) RETURNED(rw_scaler_unscale, X->scaler); break;
    case 6: if (X->scaler && X->optimizer) RETURNED(rw_scaler_step, X->scaler, X->optimizer); break;
    default:
        if (!X->scaler) break;
        RETURNED(rw_scaler_update, X->scaler);
        RETURNED(rw_scaler_get, X->scaler, &state);
    }
}

static void parts(struct state *s)
{
    static const char *const policies[] = { "none", "full", "budget:50%", "budget:300B", "budget:2KiB", "block:1",
                                            "budget:90%", "total:1MiB", "budget:", NULL };
    if (fz_ask(s, 2)) RETURNED(ckpt_policy_end, T);
    else RETURNED(ckpt_policy_begin, T, policies[fz_byte(s) % 10]);
}

static void delayed(struct state *s)
{
    const rw_delayed_scaling_params params = { fz_byte(s) % 20, (rw_delayed_scaling_rule)(fz_byte(s) % 3),
                                               fz_byte(s) % 8,
                                               fz_ask(s, 4) ? RW_F8_E4M3 : 0, fz_ask(s, 8) ? "w" : NULL };
    const rw_recipe recipe = { .kind = fz_ask(s, 8) ? RW_RECIPE_BF16 : RW_RECIPE_F8, .delayed = X->delayed,
                               .keep_weights = params.history % 2 };
    switch (fz_byte(s) % 4) {
    case 0: if (!X->delayed) RETURNED(rw_delayed_scaling_create, &X->delayed, X->ctx,
                                      fz_ask(s, 4) ? &params : NULL); break;
    case 1: if (X->delayed) RETURNED(rw_delayed_scaling_update, X->delayed, fz_ask(s, 2) ? X->scaler : NULL); break;
    default: if (X->delayed) RETURNED(rw_recipe_begin_at, RW_HERE, T, &recipe);
    }
}

/* Creates, writes, reads and multiplies by a quantized weight. */
static void quantized(struct state *s)
{
    static const float data[256] = { 1, -2, 0.5f };
    float read[256];
    const rw_quantized_kind kind = (rw_quantized_kind)(fz_byte(s) % (RW_QUANTIZED_KIND_COUNT + 1));
    const int64_t out = small(s), in = fz_ask(s, 4) ? small(s) : 64;
    rw_quantized w = { 0 };
    RETURNED(rw_quantized_create_at, RW_HERE, X->ctx, kind == RW_NF4 ? "four" : "eight", kind, RW_SHAPE(out, in), &w);
    if (!w.words) return;
    const size_t bytes = (size_t)(out * in) * sizeof *data;
    if (bytes <= sizeof data) RETURNED(rw_quantized_write, &w, RW_F32, data, bytes);
    if (bytes <= sizeof data) RETURNED(rw_quantized_read, &w, read, bytes);
    const rw_dtype type = floating(s);
    rw_tensor *const x = fitting(s, type, RW_SHAPE(2, in)), *const bias = optional(s, type, RW_SHAPE(out));
    RECORDED(rw_linear_quantized_at, RW_HERE, T, x, &w, bias);
}

static void files(struct state *s)
{
    const int file = memfd_create("weights", 0);
    const rw_load_part part = { .param = fz_ask(s, 2) ? "w" : "b", .name = fz_ask(s, 2) ? "w" : "b",
                                .transposed = fz_ask(s, 2), .part = fz_ask(s, 4), .row = fz_extent(s) };
    char path[64];
    HOLDS(file >= 0, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    RETURNED(rw_save, X->ctx, path); /* next to it, where nothing can be written */
    if (fz_ask(s, 2)) RETURNED(rw_load, X->ctx, path);
    else RETURNED(rw_load_parts, X->ctx, path, &part, fz_byte(s) % 2);
    close(file);
}

/* A call that predicts, explains or searches for non-finite values. */
static void predictions(struct state *s)
{
    static const char *const policies[] = { "none", "full", "budget:50%", "budget:90%+offload", "megatron:mlp", "no",
                                            "discard:a", NULL };
    rw_tensor *const x = X->value[(X->n_values + VALUES - 1) % VALUES];
    rw_tensor *const loss = fz_ask(s, 4) ? x : rw_sum(T, x, RW_ALL_AXES, false);
    rw_prediction prediction;
    rw_nonfinite found;
    rw_frontier_point points[4];
    size_t n = fz_byte(s) % 5;
    fz_look(s, "rw_sum");
    switch (fz_byte(s) % 5) {
    case 0: RETURNED(rw_tape_plan, T, loss, policies[fz_byte(s) % 8], &prediction); break;
    case 1: if (rw_tape_nodes(T) < 60) RETURNED(rw_tape_frontier, T, loss, points, &n); break;
    case 2: RETURNED(rw_find_nonfinite, T, loss, fz_ask(s, 2) ? RW_NONFINITE_NAN : 0, &found); break;
    case 3: ckpt_offload(T, fz_operand(s)), fz_look(s, "ckpt_offload"); break;
    default: {
        FILE *const out = fopen("/dev/null", "w");
        RETURNED(ckpt_explain, T, out);
        fclose(out);
    }
    }
}

void fz_families(struct state *s)
{
    static void (*const calls[])(struct state *) = {
        comparisons, convolutions,   norms,         creation,  codes,     gathering,   losses,
        experts,     recurrent,      scan,          choices,   quantized, predictions, precision,
        precision,   with_options,   own_gradients, files,     more_reductions, parts,   delayed,
    };
    calls[fz_byte(s) % (sizeof calls / sizeof *calls)](s);
}
