/* AdamW: where a kernel finds the operands that belong together. C11 and C++17. */
#ifndef RW_OPS_OPTIM_ADAMW_H
#define RW_OPS_OPTIM_ADAMW_H

#include "record/own_ops.h"

/* One parameter and what its update reads and writes. */
struct rw_adamw_tensor {
    void *param;
    const void *grad;
    void *m, *v;
    void *master; /* float32 copy of a 16-bit parameter, or NULL */
    int64_t n;
    rw_dtype dtype, grad_dtype; /* the gradient's: that, or float32 */
};

/* The first of each kind among the inputs of n updates. */
static inline int rw_adamw_grad(int i) { return 1 + i; }
static inline int rw_adamw_param(int n, int i) { return 1 + n + i; }
static inline int rw_adamw_m(int n, int i) { return 1 + 2 * n + i; }
static inline int rw_adamw_v(int n, int i) { return 1 + 3 * n + i; }
static inline int rw_adamw_master(int n, int i) { return 1 + 4 * n + i; }

/* Parameter i of n; of those before it *masters are of 16 bits, and it is counted. */
static inline struct rw_adamw_tensor rw_adamw_tensor_of(const rw_kernel *k, int n, int i, int *masters)
{
    const rw_view *const p = &k->in[rw_adamw_param(n, i)];
    struct rw_adamw_tensor t;
    t.param = p->data;
    t.grad = k->in[rw_adamw_grad(i)].data;
    t.m = k->in[rw_adamw_m(n, i)].data;
    t.v = k->in[rw_adamw_v(n, i)].data;
    t.master = rw_dtype_size(p->dtype) == 2 ? k->in[rw_adamw_master(n, (*masters)++)].data : NULL;
    t.n = p->layout->numel;
    t.dtype = p->dtype;
    t.grad_dtype = k->in[rw_adamw_grad(i)].dtype;
    return t;
}

#endif
