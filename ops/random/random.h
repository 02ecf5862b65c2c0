/* Random ops: the attributes that their kernels read. C11 and C++17. */
#ifndef RW_OPS_RANDOM_H
#define RW_OPS_RANDOM_H

#include <rewind/op.h>

struct rw_dropout_attrs {
    double p; /* probability that an element is dropped */
};

/* The arguments of the kernel of rw_random_fill_normal() and rw_random_fill_uniform(). */
struct rw_random_fill {
    void *data;
    rw_dtype dtype;
    bool normal; /* a: mean, b: standard deviation; else uniform in [a, b) */
    int64_t n;
    double a, b;
};

#ifndef __cplusplus
extern const rw_op_def rw_op_dropout;
#endif

#endif
