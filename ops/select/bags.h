/* What the definition and the kernels of embedding_bag_offsets share. C11 and C++17. */
#ifndef RW_OPS_BAGS_H
#define RW_OPS_BAGS_H

#include <stdint.h>

struct rw_bags_attrs {
    int64_t places; /* of the index */
};

#endif
