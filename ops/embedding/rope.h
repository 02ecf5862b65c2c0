/* Attributes of rope. */
#ifndef RW_OPS_ROPE_H
#define RW_OPS_ROPE_H

#include <rewind/op.h>

struct rw_rope_attrs {
    double base;
    int64_t inverse;
};

#endif
