/* What a series of calls works on. See api.c. */
#ifndef FUZZ_API_H
#define FUZZ_API_H

#include "fuzz/fuzz.h"

#define VALUES 16
#define LARGEST 1024 /* elements of an input */
#define NODES 300    /* of a tape: then it begins anew */
#define BYTES 400    /* of an input */

struct side {
    rw_context *ctx;
    rw_tape *tape[2];
    int now; /* the tape that is recorded on */
    rw_adamw *optimizer;
    rw_graph *graph;
    rw_tensor *value[VALUES]; /* of either tape, of this step or an earlier one */
    unsigned n_values;
};

struct state {
    const uint8_t *at, *end;
    struct side side[2];
    int n_sides, now;
    bool sticks; /* errors are not cleared */
    bool nobody; /* the call that follows knows no context that could have a message */
};

/* What a failed call must leave as it was. */
struct before {
    size_t nodes;
    rw_generator_state generator;
};

/* The next byte of the input; 0 behind its end. */
uint8_t fz_byte(struct state *s);

#endif
