/* Writes members, numbers and strings of a JSON line; output beyond the memory is dropped and noted. */
#include "io/monitor_line.h"

#include "base/c_locale.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void rw_line_put(struct rw_line *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(l->text + l->n, l->room - l->n, fmt, args);
    va_end(args);
    assert(n >= 0 && l->n + (size_t)n < l->room);
    l->is_cut |= n < 0 || l->n + (size_t)n >= l->room;
    if (!l->is_cut) l->n += (size_t)n;
}

void rw_line_number(struct rw_line *l, const char *name, double x)
{
    char text[40] = "null";
    l->nonfinite |= !isfinite(x);
    const locale_t before = rw_c_locale_begin();
    if (isfinite(x)) snprintf(text, sizeof text, "%.9g", x);
    rw_c_locale_end(before);
    rw_line_put(l, ",\"%s\":%s", name, text);
}
