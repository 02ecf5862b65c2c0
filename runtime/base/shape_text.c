/* The text of a shape: its extents in order, between brackets. */
#include "base/shape_text.h"

#include <stdio.h>

const char *rw_shape_text(char *text, size_t size, rw_shape shape)
{
    const int rank = shape.rank < RW_MAX_RANK ? shape.rank : RW_MAX_RANK;
    size_t n = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%lld", i ? ", " : "", (long long)shape.dim[i]);
    if (n < size) snprintf(text + n, size - n, "]");
    return text;
}
