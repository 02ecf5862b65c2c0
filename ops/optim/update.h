/* Optimizer updates: finds the operands of each parameter among a node's inputs and outputs. C11 and C++17. */
#ifndef RW_OPS_OPTIM_UPDATE_H
#define RW_OPS_OPTIM_UPDATE_H

#include "ops/optim/update_ops.h"

/* One parameter, with everything that its update reads and writes. */
struct rw_update_tensor {
    void *param;
    const void *grad;
    void *state[RW_UPDATE_STATES]; /* NULL beyond those that the rule has */
    void *master;                  /* float32 copy of a 16-bit parameter, or NULL: stochastic rounding if bfloat16 */
    int64_t n;
    rw_dtype dtype, grad_dtype;
};

/* The first input of each kind, for n updates; master copies follow all states. */
static inline int rw_update_grad(int i) { return 1 + i; }
static inline int rw_update_param(int n, int i) { return 1 + n + i; }
static inline int rw_update_state(int n, int s, int i) { return 1 + (2 + s) * n + i; }

static inline int rw_update_n(const rw_kernel *k)
{
    return (int)k->in[0].layout->dim[0];
}

static inline struct rw_update_attrs rw_update_attrs_of(const rw_kernel *k)
{
    return *(const struct rw_update_attrs *)k->attrs;
}

/* Destination of the first parameter's sums; NULL: not requested. */
static inline double *rw_update_sums_of(const rw_kernel *k)
{
    return rw_update_attrs_of(k).sums ? (double *)k->out[k->n_outputs - 1].data : NULL;
}

/* Do all 16-bit parameters among n have master copies, or only those of float16? */
static inline bool rw_update_all_have_masters(const rw_kernel *k, int n)
{
    const struct rw_update_attrs a = rw_update_attrs_of(k);
    int masters = k->n_inputs - rw_update_state(n, a.states, 0) - a.sums;
    for (int i = 0; i < n; i++) masters -= rw_dtype_size(k->in[rw_update_param(n, i)].dtype) == 2;
    return masters == 0;
}

/* The input whose extent is the number of elements of parameter i that are updated. With windows it is a state, or the
   master copy if there is no state; otherwise the parameter itself. */
static inline int rw_update_extent(const struct rw_update_attrs *a, int n, int i, bool has_master, int master)
{
    if (!a->windows || (!a->states && !has_master)) return rw_update_param(n, i);
    return a->states ? rw_update_state(n, 0, i) : rw_update_state(n, 0, master);
}

/* Parameter i of n. *masters is the number of earlier parameters with a master copy, and is advanced. all: all 16-bit
   parameters have one. */
static inline struct rw_update_tensor rw_update_tensor_of(const rw_kernel *k, int n, int i, bool all, int *masters)
{
    const rw_view *const p = &k->in[rw_update_param(n, i)];
    const struct rw_update_attrs a = rw_update_attrs_of(k);
    const bool has = p->dtype == RW_F16 || (p->dtype == RW_BF16 && all);
    struct rw_update_tensor t;
    t.param = p->data;
    t.grad = k->in[rw_update_grad(i)].data;
    for (int s = 0; s < RW_UPDATE_STATES; s++)
        t.state[s] = s < a.states ? k->in[rw_update_state(n, s, i)].data : NULL;
    t.n = k->in[rw_update_extent(&a, n, i, has, *masters)].layout->numel;
    t.master = has ? k->in[rw_update_state(n, a.states, (*masters)++)].data : NULL;
    t.dtype = p->dtype;
    t.grad_dtype = k->in[rw_update_grad(i)].dtype;
    return t;
}

#endif
