/* Kernels of the optimizer and of gradient clipping: called by runtime/optim, not recorded. */
#ifndef RW_OPS_OPTIM_H
#define RW_OPS_OPTIM_H

#include <rewind/types.h>

struct rw_adamw_update {
    void *param;
    const void *grad;
    void *m, *v;
    void *master; /* float32 copy of a 16-bit parameter, or NULL */
    rw_dtype dtype;
    int64_t n;
    double lr, beta1, beta2, eps, weight_decay;
    double correction1, correction2; /* 1 - beta^step */
    int threads;
};

void rw_adamw_update_cpu(const struct rw_adamw_update *u);

/* Sum of squares in double, in blocks of fixed size, added in order: the same bits for any number of threads. */
double rw_sum_squares_cpu(const void *grad, rw_dtype dtype, int64_t n, int threads);

struct rw_scale_buffer {
    void *data;
    rw_dtype dtype;
    int64_t n;
    double factor;
};

void rw_scale_buffer_cpu(void *data, rw_dtype dtype, int64_t n, double factor, int threads);

#endif
