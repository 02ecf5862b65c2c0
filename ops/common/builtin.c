/* One list, so that a policy can tell a misspelt op from one that this tape happens not to use. */
#include "record/own_ops.h"

#include <string.h>

static const char *const names[] = {
    "abs", "add", "add_scalar", "assign", "attention", "broadcast_to", "cast", "causal_softmax", "concat",
    "contiguous", "cross_entropy", "div", "dropout", "dropout_add", "embedding", "exp", "gelu", "gelu_tanh",
    "layernorm", "linear", "linear_add", "linear_gelu", "log", "log_softmax", "logsumexp", "matmul", "max",
    "maximum", "mean", "mse_loss", "mul", "neg", "permute", "pow_scalar", "rand", "randn", "relu", "reshape",
    "rmsnorm", "rope", "scale", "sigmoid", "silu", "slice", "softmax", "split", "sqrt", "sub", "sum", "sum_to",
    "swiglu", "tanh",
};

bool rw_op_is_builtin(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}
