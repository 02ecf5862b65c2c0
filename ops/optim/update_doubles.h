/* The rules in float64. See update_tmpl.h. C11 and C++17. */
#ifndef RW_OPS_OPTIM_UPDATE_DOUBLES_H
#define RW_OPS_OPTIM_UPDATE_DOUBLES_H

#include "record/own_ops.h"

#include <math.h>

#ifndef DOUBLES_INLINE
#define DOUBLES_INLINE static inline
#endif

DOUBLES_INLINE double rw_update_doubles(int rule, const struct rw_update_row *s, double x, double g, double *a,
                                        double *b)
{
    if (rule == RW_UPDATE_AVERAGE) return s->b1 * x + s->c1 * g;
    if (rule == RW_UPDATE_LION) {
        const double u = s->b1 * *a + s->c1 * g;
        *a = s->b2 * *a + s->c2 * g;
        return x * s->decay - s->lr * (u > 0 ? 1 : u < 0 ? -1 : u);
    }
    if (s->l2 != 0) g = g + s->l2 * x;
    if (rule == RW_UPDATE_ADAM) {
        *a = s->b1 * *a + s->c1 * g;
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
