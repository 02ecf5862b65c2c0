/* Virtual concatenation: finds the inputs of a concatenation, so that an op can read them instead of the result. */
#include "ops/shape/virtual_concat.h"

#include "ops/shape/shape.h"

#include <rewind/fusion.h>

#include <string.h>

/* The number of tensors that x is the concatenation of; 0 if it is none, or if one is not dense: then only the whole is
   dense. */
static int concat_inputs_of(rw_tensor *x, int axis)
{
    rw_producer producer;
    const rw_layout *const layout = rw_tensor_layout(x);
    rw_tensor *const whole = rw_tensor_base(x);
    if (layout != rw_tensor_layout(whole) || rw_tensor_is_named_or_marked(whole)) return 0;
    if (!rw_tensor_producer(whole, &producer) || producer.op != &rw_op_concat) return 0;
    const int64_t along = ((const struct rw_concat_attrs *)producer.attrs)->axis;
    for (int i = 0; i < producer.n_inputs; i++)
        if (!rw_tensor_layout(rw_tensor_producer_input(whole, i))->dense) return 0;
    return (along < 0 ? along + layout->rank : along) == axis ? producer.n_inputs : 0;
}

/* Replaces concatenation input i by several. */
static void put(rw_tensor **piece, int n, int i, int pieces)
{
    rw_tensor *const whole = rw_tensor_base(piece[i]);
    memmove(piece + i + pieces, piece + i + 1, (size_t)(n - i - 1) * sizeof *piece);
    for (int k = 0; k < pieces; k++) piece[i + k] = rw_tensor_producer_input(whole, k);
}

/* Checks that no concatenation input occurs twice, because a kernel may write over one of them. */
static bool all_differ(rw_tensor *const *piece, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (rw_tensor_base(piece[i]) == rw_tensor_base(piece[k])) return false;
    return true;
}

static bool any_requires_grad(rw_tensor *const *piece, int n)
{
    for (int i = 0; i < n; i++)
        if (rw_tensor_requires_grad(piece[i])) return true;
    return false;
}

/* 0: x must be read as a whole. */
static int find_pieces(rw_tensor *x, int axis, rw_tensor **piece)
{
    if (!x || !rw_tensor_requires_grad(x)) return 0;
    int n = 1;
    piece[0] = x;
    for (int i = 0; i < n;) {
        const int pieces = concat_inputs_of(piece[i], axis);
        if (n - 1 + pieces > RW_PIECES_MAX) return 0;
        if (pieces) {
            put(piece, n, i, pieces);
            n += pieces - 1;
        } else i++;
    }
    return n > 1 && all_differ(piece, n) && any_requires_grad(piece, n) ? n : 0;
}

int rw_virtual_concat_inputs(rw_tensor *x, int axis, rw_tensor **piece, int64_t *ret_more, int64_t *ret_whole)
{
    const int n = find_pieces(x, axis, piece);
    if (!n) piece[0] = x;
    *ret_more = n ? n - 1 : 0;
    *ret_whole = n ? rw_tensor_number(x) : 0;
    return n ? n : 1;
}
