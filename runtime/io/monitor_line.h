/* Composes a line of JSON in memory of the caller. */
#ifndef RW_IO_MONITOR_LINE_H
#define RW_IO_MONITOR_LINE_H

#include <rewind/types.h>

#include <stdbool.h>

struct rw_line {
    char *text;
    size_t room, n;
    bool nonfinite; /* a number was written as null */
    bool is_cut;    /* it was longer than its memory, which is an internal error */
};

void rw_line_put(struct rw_line *l, const char *fmt, ...) RW_PRINTF(2, 3);

/* ,"name":x with nine digits in the C locale; null for a number that is not finite. */
void rw_line_number(struct rw_line *l, const char *name, double x);

#endif
