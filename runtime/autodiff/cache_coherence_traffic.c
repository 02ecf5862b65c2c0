/* Compares the rows of inputs and outputs by their layouts. */
#include "autodiff/cache_coherence_traffic.h"

/* The axis of rows: the one with the largest stride among those with more than one element. */
static int axis_of_rows(const rw_layout *l)
{
    int axis = 0;
    while (axis + 1 < l->rank && l->dim[axis] == 1) axis++;
    for (int i = axis + 1; i < l->rank; i++)
        if (l->dim[i] > 1 && l->stride[i] > l->stride[axis]) axis = i;
    return axis;
}

static bool have_same_rows(const rw_layout *a, const rw_layout *b)
{
    if (!a->rank || !b->rank) return a->rank == b->rank;
    const int axis = axis_of_rows(a);
    return axis == axis_of_rows(b) && a->dim[axis] == b->dim[axis];
}

static bool is_across(const rw_op_call *call, int input)
{
    const rw_layout *const in = call->in[input].layout;
    for (int i = 0; i < call->n_outputs; i++)
        if (call->out[i].layout->numel == 1 || have_same_rows(in, call->out[i].layout)) return false;
    return true;
}

uint64_t rw_cache_transfers(const rw_op_call *call)
{
    uint64_t across = 0;
    for (int i = 0; i < call->n_inputs && i < 64; i++)
        if (is_across(call, i)) across |= (uint64_t)1 << i;
    return across;
}
