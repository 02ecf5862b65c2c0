/* Attributes of the softmax family. */
#ifndef RW_OPS_SOFTMAX_H
#define RW_OPS_SOFTMAX_H

#include <rewind/op.h>

struct rw_softmax_attrs {
    int64_t axis;
    double scale;   /* multiplies the scores first */
    int64_t causal; /* query i of s sees keys up to i + (kv - s) */
};

#endif
