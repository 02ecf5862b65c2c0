/* The common start of the suites of recorders: two parameters with everything that a list can have, and what a session
   ends with. */
#ifndef REWIND_TESTS_RUN_RECORDER_FIXTURE_H
#define REWIND_TESTS_RUN_RECORDER_FIXTURE_H

#include "support/support.h"

enum { STEPS = 3, N = 6 };

/* w and v, of which the loss is a sum of squares times a factor, and everything that a list can have. */
struct world {
    struct fixture b;
    rw_tensor *w, *v;
    rw_optimizer *opt, *only[2]; /* of both, of w, of v */
    rw_scaler *s;
    rw_delayed_scaling *d;
};

/* An AdamW of all parameters but this one; NULL: of all. */
rw_optimizer *optimizer_without(rw_context *ctx, rw_tensor *left_out);
struct world world_open(void);
void world_close(struct world *x);
rw_tensor *loss_of(struct world *x, double factor);

/* A graph of that loss with n recorders. */
rw_status create_graph(struct world *x, rw_graph **g, const rw_recorder *list, size_t n);

/* A list and its length, as two arguments. */
#define LIST(...) (const rw_recorder[]){ __VA_ARGS__ }, \
                  sizeof((const rw_recorder[]){ __VA_ARGS__ }) / sizeof(rw_recorder)

/* The bytes of all parameters and buffers. */
struct outcome {
    unsigned char *bytes;
    size_t n;
};

/* Closes the world. */
struct outcome outcome_of(struct world *x);
/* Expects equal bytes, and frees both. */
void same(struct outcome *a, struct outcome *b, const char *what);

#endif
