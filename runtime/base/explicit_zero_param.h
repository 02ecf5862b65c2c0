/* Members of public parameter structs: zero means a default, RW_ZERO means zero. C11 and C++17. */
#ifndef RW_BASE_EXPLICIT_ZERO_PARAM_H
#define RW_BASE_EXPLICIT_ZERO_PARAM_H

#include <rewind/types.h>

static inline double rw_or_default(double x, double fallback)
{
    return x == 0 ? fallback : x == RW_ZERO ? 0 : x;
}

/* The same for a member of which a negative number also means zero. */
static inline double rw_or_default_positive(double x, double fallback)
{
    const double y = rw_or_default(x, fallback);
    return x < 0 ? 0 : y;
}

#endif
