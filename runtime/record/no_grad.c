/*
 * rw_no_grad_begin() and rw_no_grad_end(): what is recorded in between requires no gradient. The tape keeps the
 * intervals of nodes, so that a value marked by rw_require_grad() afterwards does not spread into them.
 */
#include "record/tape.h"

#include <rewind/tape.h>

bool rw_node_is_no_grad(const rw_tape *t, uint32_t node)
{
    size_t low = 0, high = t->n_no_grads; /* the first interval that ends after the node */
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (t->no_grads[middle].end <= node) low = middle + 1;
        else high = middle;
    }
    return low < t->n_no_grads && t->no_grads[low].first <= node;
}

rw_status rw_no_grad_begin(rw_tape *t)
{
    if (!t) return RW_ERR_ARGUMENT;
    if (rw_is_called_by_a_kernel(t->ctx, "rw_no_grad_begin")) return RW_ERR_ARGUMENT;
    if (!t->open_no_grads) {
        if (!rw_grow(&t->no_grads, &t->cap_no_grads, t->n_no_grads, 1, sizeof *t->no_grads) ||
            !rw_key_reserve(&t->key, 1))
            return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_no_grad_begin: out of memory");
        t->no_grads[t->n_no_grads++] = (struct rw_no_grad){ (uint32_t)t->n_nodes, RW_NONE_ID };
        rw_key_add(&t->key, RW_KEY_NO_GRAD);
    }
    t->open_no_grads++;
    return RW_OK;
}

rw_status rw_no_grad_end(rw_tape *t)
{
    if (!t) return RW_ERR_ARGUMENT;
    if (rw_is_called_by_a_kernel(t->ctx, "rw_no_grad_end")) return RW_ERR_ARGUMENT;
    if (!t->open_no_grads)
        return rw_fail(t->ctx, RW_ERR_REGION, "rw_no_grad_end: there is no open rw_no_grad_begin() on the tape");
    if (!rw_key_reserve(&t->key, 1)) return rw_fail(t->ctx, RW_ERR_MEMORY, "rw_no_grad_end: out of memory");
    if (--t->open_no_grads) return RW_OK;
    t->no_grads[t->n_no_grads - 1].end = (uint32_t)t->n_nodes;
    rw_key_add(&t->key, RW_KEY_NO_GRAD_END);
    return RW_OK;
}
