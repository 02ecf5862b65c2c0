/* What the kernel behind rw_random_fill_normal() and rw_random_fill_uniform() is told, as its attributes. */
#ifndef RW_OPS_RANDOM_FILL_H
#define RW_OPS_RANDOM_FILL_H

#include <rewind/types.h>

struct rw_random_fill {
    void *data;
    rw_dtype dtype;
    bool normal; /* a: mean, b: standard deviation; else uniform in [a, b) */
    int64_t n;
    double a, b;
};

#endif
