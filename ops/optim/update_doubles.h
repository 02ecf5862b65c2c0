/* The optimizer rules of update_tmpl.h in float64. C11 and C++17. */
#ifndef RW_OPS_OPTIM_UPDATE_DOUBLES_H
#define RW_OPS_OPTIM_UPDATE_DOUBLES_H

#include "ops/optim/update_ops.h"

#include <math.h>

#ifndef DOUBLES_INLINE
#define DOUBLES_INLINE static inline
#endif

DOUBLES_INLINE double rw_update_towards_doubles(double x, double g, double b, double c)
{
    if (b == 0) return g;
    return c < 0.5 ? x + c * (g - x) : g - b * (g - x);
}

/* Updates one element of a parameter, and its states a and b, by its gradient g. */
DOUBLES_INLINE double rw_update_doubles(int rule, const struct rw_update_row *s, double x, double g, double *a,
                                        double *b)
{
    if (rule == RW_UPDATE_AVERAGE) return rw_update_towards_doubles(x, g, s->b1, s->c1);
    if (rule == RW_UPDATE_LION) {
        const double u = s->b1 * *a + s->c1 * g;
        *a = s->b2 * *a + s->c2 * g;
        return x * s->decay - s->lr * (u > 0 ? 1 : u < 0 ? -1 : u);
    }
    if (s->l2 != 0) g = g + s->l2 * x;
    if (rule == RW_UPDATE_ADAM) {
        *a = rw_update_towards_doubles(*a, g, s->b1, s->c1);
        *b = s->b2 * *b + s->c2 * g * g;
        return x * s->decay - s->lr * (*a / s->correction1) / (sqrt(*b / s->correction2) + s->eps);
    }
    if (a) {
        *a = s->b1 * *a + s->c1 * g;
        g = s->nesterov ? g + s->b2 * *a : *a;
    }
    return x - s->lr * g;
}

#endif
