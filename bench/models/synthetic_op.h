/* An op of arbitrary size and cost, whose kernel does nothing: for steps that are planned and never run. */
#ifndef REWIND_BENCH_SYNTHETIC_OP_H
#define REWIND_BENCH_SYNTHETIC_OP_H

#include <rewind/rewind.h>

#define SYNTH_UNIT 512 /* bytes; a multiple of every device's alignment, so that different sizes stay different */

struct synth {
    int64_t units; /* size of its output, in SYNTH_UNIT bytes */
    double us;     /* at nominal rates, in addition to every node's cost */
    int32_t reads; /* by its gradient; bits: inputs 0 and 1, and 2 for the output */
    int32_t tail;  /* 1: a second output of the same size, which its gradient reads, and from which the first is remade
                      in an eighth of the time; 0: none */
};

/* Records the op with one or two inputs. */
rw_tensor *synth_apply(rw_tape *t, rw_tensor *const *in, int n, struct synth a);

/* n residual blocks of 30 nodes. */
rw_tensor *synth_blocks(rw_tape *t, rw_tensor *x, int n);

/* n nodes: each reads the one before it and, every third, another one of the last few; one in sixty, a much earlier
   one. */
rw_tensor *synth_graph(rw_tape *t, rw_tensor *x, int n);

#endif
