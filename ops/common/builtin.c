/*
 * The list of all built-in ops with the names of their inputs. Policies use it to tell a misspelt op from one that this
 * tape does not use, and error messages use it to name arguments.
 */
#include "ops/common/pass_ops.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *inputs; /* in the order of the node's inputs; a final "x[]" covers all inputs that follow */
} ops[] = {
    /* clang-format off: one line per op */
    { "abs", "x" },
    { "add", "a b" },
    { "add_scalar", "x" },
    { "arange", "" },
    { "argmax", "x" },
    { "argmin", "x" },
    { "assign", "x buffer" },
    { "attention", "q k v" },
    { "attention_merge", "a b a_lse b_lse" },
    { "avg_pool2d", "x" },
    { "batchnorm", "x weight bias add" },
    { "batchnorm_average", "mean variance running_mean running_var batches" },
    { "batchnorm_eval", "x weight bias running_mean running_var add" },
    { "batchnorm_update", "mean variance running_mean running_var" },
    { "bce_with_logits", "x target pos_weight" },
    { "broadcast_to", "x" },
    { "cast", "x" },
    { "causal_conv1d", "x weight bias" },
    { "causal_softmax", "scores" },
    { "circular_pad", "x" },
    { "clamp", "x low high" },
    { "concat", "x[]" },
    { "contiguous", "x" },
    { "conv2d", "x weight bias" },
    { "conv_transpose2d", "x weight" },
    { "cos", "x" },
    { "cross_entropy", "logits target" },
    { "cross_entropy_rows", "logits target weight weight_sum" },
    { "cross_entropy_share", "target weight weight_sum" },
    { "cross_entropy_shares", "target weight weight_sum" },
    { "cumsum", "x" },
    { "custom_grad", "y x" },
    { "dequantize", "codes scale" },
    { "detach", "x" },
    { "div", "a b" },
    { "dropout", "x" },
    { "dropout_add", "x residual" },
    { "elu", "x" },
    { "embedding", "table index" },
    { "embedding_bag", "table index" },
    { "embedding_bag_argmax", "rows offsets kept" },
    { "embedding_bag_offsets", "offsets" },
    { "eq", "a b" },
    { "erf", "x" },
    { "exp", "x" },
    { "fill", "" },
    { "flip", "x" },
    { "gather", "x index" },
    { "ge", "a b" },
    { "gelu", "x" },
    { "gelu_tanh", "x" },
    { "group_norm", "x weight bias" },
    { "gru_cell", "x y h" },
    { "gt", "a b" },
    { "hardswish", "x" },
    { "huber", "x y" },
    { "index_select", "x index" },
    { "instance_norm", "x weight bias" },
    { "isfinite", "x" },
    { "kl_div", "x target" },
    { "layernorm", "x weight bias" },
    { "le", "a b" },
    { "leaky_relu", "x" },
    { "leave", "x choice" },
    { "linear", "x weight bias" },
    { "linear_add", "residual x weight bias" },
    { "linear_cross_entropy", "rows x weight target max_and_log_sum" },
    { "linear_gelu", "x weight bias" },
    { "linear_quantized", "x words bias" },
    { "log", "x" },
    { "log1p", "x" },
    { "log_softmax", "x" },
    { "logical_and", "a b" },
    { "logical_not", "x" },
    { "logical_or", "a b" },
    { "logsumexp", "x" },
    { "lstm_cell", "gates c" },
    { "lt", "a b" },
    { "matmul", "a b" },
    { "max", "x" },
    { "max_pool2d", "x" },
    { "maximum", "a b" },
    { "mean", "x" },
    { "minimum", "a b" },
    { "moe_balance", "bias total" },
    { "moe_combine", "rows inverse order" },
    { "moe_count", "load total" },
    { "moe_drop", "index order inverse offsets weights" },
    { "moe_linear", "x weight offsets order inverse" },
    { "moe_route", "index" },
    { "moe_select", "scores index" },
    { "moe_silu_weigh", "x weights order inverse" },
    { "moe_swiglu_weigh", "gate up weights order inverse" },
    { "moe_topk", "scores bias" },
    { "moe_weigh", "rows weights order inverse" },
    { "mse_loss", "x y" },
    { "mul", "a b" },
    { "ne", "a b" },
    { "neg", "x" },
    { "one_hot", "index" },
    { "pad", "x" },
    { "permute", "x" },
    { "pow", "a b" },
    { "pow_scalar", "x" },
    { "quantize", "x scale" },
    { "rand", "" },
    { "randn", "" },
    { "reflect_pad", "x" },
    { "relu", "x" },
    { "relu6", "x" },
    { "replicate_pad", "x" },
    { "reshape", "x" },
    { "rmsnorm", "x weight" },
    { "roll", "x" },
    { "rope", "x positions frequencies" },
    { "scale", "x" },
    { "scatter_add", "src index x" },
    { "select", "x" },
    { "sigmoid", "x" },
    { "sign", "x" },
    { "silu", "x" },
    { "sin", "x" },
    { "slice", "x" },
    { "softmax", "x" },
    { "softplus", "x" },
    { "split", "x" },
    { "sqrt", "x" },
    { "ssd_scan", "x dt a b c state" },
    { "straight_through", "y x" },
    { "sub", "a b" },
    { "sum", "x" },
    { "sum_to", "x" },
    { "swiglu", "gate up" },
    { "take", "x choice" },
    { "tanh", "x" },
    { "topk", "x" },
    { "unfold", "x" },
    { "unsqueeze", "x" },
    { "where", "condition a b" },
    /* clang-format on */
};

/* Ops that only gradient rules, recipes and optimizers record. An op that is not listed names its inputs in its
   check. */
static const struct {
    const char *name, *inputs;
} internal[] = {
    /* clang-format off: one line per op */
    { "accumulate", "sum term" },
    { "accumulate_wide", "sum term" },
    { "adam", "rows" },
    { "adamw", "rows" },
    { "any_found", "found[]" },
    { "attention_backward", "q k v" },
    { "attention_backward_columns", "q k v" },
    { "attention_merge_backward", "a b a_lse b_lse dy dlse" },
    { "average", "rows" },
    { "avg_pool2d_backward", "dy" },
    { "causal_conv1d_data", "dy weight" },
    { "causal_conv1d_weight", "x dy sum" },
    { "clip_factor", "limit sums[]" },
    { "clip_grad_norm", "limit norm sums gradients[]" },
    { "clip_scale", "factor gradient" },
    { "conv2d_data", "dy weight" },
    { "conv2d_weight", "x dy sum" },
    { "cross_entropy_backward", "logits target kept dy" },
    { "cross_entropy_rows_backward", "logits target kept dy weight weight_sum" },
    { "dropout_columns", "dy sum" },
    { "embedding_backward", "dy index sum" },
    { "gather_back", "dy index" },
    { "gelu_tanh_backward_sum", "x dy sum" },
    { "grad_squares", "gradient" },
    { "gru_cell_backward", "x y h dy" },
    { "huber_backward", "x y dy" },
    { "index_select_back", "dy index sum" },
    { "lion", "rows" },
    { "lstm_cell_backward", "gates c" },
    { "matmul_add", "sum a b" },
    { "moe_dot", "a b inverse order" },
    { "moe_gather", "x order inverse" },
    { "moe_outer", "dy x offsets order inverse sum" },
    { "moe_scatter", "weights index" },
    { "moe_silu_weigh_backward", "x dy weights order inverse" },
    { "moe_swiglu_weigh_backward", "gate up dy weights order inverse" },
    { "moe_weigh_backward", "rows dy weights order inverse" },
    { "mse_loss_backward", "x y dy" },
    { "note_amax", "amax[]" },
    { "note_counts", "counts[]" },
    { "remap_back", "dy" },
    { "scaler_update", "found scaler" },
    { "sgd", "rows" },
    { "sum_to_add", "x sum" },
    { "swiglu_backward", "gate up dy" },
    { "unscale_grad", "scaler gradient" },
    { "unscale_grads", "scaler found gradients[]" },
    { "within", "x low high" },
    /* clang-format on */
};

static const char *inputs_of(const char *name)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(ops[i].name, name)) return ops[i].inputs;
    return NULL;
}

static const char *internal_inputs_of(const char *name)
{
    for (size_t i = 0; i < sizeof internal / sizeof *internal; i++)
        if (!strcmp(internal[i].name, name)) return internal[i].inputs;
    return NULL;
}

const char *rw_builtin_name(size_t i)
{
    return i < sizeof ops / sizeof *ops ? ops[i].name : NULL;
}

bool rw_op_is_builtin(const char *name)
{
    return inputs_of(name) != NULL;
}

const char *rw_op_input_name(const rw_op_def *op, int i, char *text, size_t size)
{
    const bool own = op->kernel[RW_DEVICE_AUTO] == rw_op_is_own;
    const char *at = own ? inputs_of(op->name) : NULL;
    if (own && !at) at = internal_inputs_of(op->name);
    int k = 0;
    for (const char *next; at && k < i && (next = strchr(at, ' ')); k++) at = next + 1;
    const size_t n = at ? strcspn(at, " [") : 0;
    if (n && at[n] == '[') snprintf(text, size, "%.*s[%d]", (int)n, at, i - k);
    else if (n && k == i) snprintf(text, size, "%.*s", (int)n, at);
    else snprintf(text, size, "input %d", i);
    return text;
}

rw_status rw_op_is_own(const rw_kernel *k)
{
    return RW_ERR_UNSUPPORTED;
}
