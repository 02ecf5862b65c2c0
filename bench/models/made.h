/* An op of any size and cost, whose kernel does nothing: for steps that are planned and never run. */
#ifndef REWIND_BENCH_MADE_H
#define REWIND_BENCH_MADE_H

#include <rewind/rewind.h>

#define MADE_UNIT 512 /* bytes; a multiple of what any device places values at, so that no two sizes are the same */

struct made {
    int64_t units; /* of MADE_UNIT bytes: what its output takes */
    double us;     /* at nominal rates, besides what every node takes */
    int32_t reads; /* by its gradient; bits: inputs 0 and 1, and 2 for the output */
    int32_t tail;  /* 1: a second output of the same size, which its gradient reads, and of which the first is made
                      again in an eighth of the time; 0: none */
};

/* Of one or two inputs. */
rw_tensor *made_apply(rw_tape *t, rw_tensor *const *in, int n, struct made a);

/* n residual blocks of 30 nodes. */
rw_tensor *made_blocks(rw_tape *t, rw_tensor *x, int n);

/* n nodes: each reads the one before it and, every third, another one of the last few; one in sixty, one far back. */
rw_tensor *made_graph(rw_tape *t, rw_tensor *x, int n);

#endif
