/* For programs whose result is their standard output: they fail if it could not be written. */
#ifndef REWIND_BENCH_ANSWER_H
#define REWIND_BENCH_ANSWER_H

#include <stdio.h>

/* The exit status: `status`, or 1 with a message if that is 0 and the output is not complete. */
static inline int answer_end(const char *program, int status)
{
    if (!fflush(stdout) && !ferror(stdout)) return status;
    fprintf(stderr, "%s: the standard output could not be written\n", program);
    return status ? status : 1;
}

#endif
