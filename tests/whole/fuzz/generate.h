/* Generates a program from a seed. The ops' rows choose their operands with the helpers below. */
#ifndef FUZZ_GENERATE_H
#define FUZZ_GENERATE_H

#include "whole/fuzz/program.h"

#include <stdarg.h>

struct fz_generator {
    struct fz_program *p;
    uint64_t state;
    int64_t extent[5]; /* extents of the program's shapes */
    int64_t most;      /* largest extent */
    int rank;          /* of the first leaves */
    rw_dtype dtype;
    bool host;         /* ops with kernels only for the CPU are allowed */
    int depth, begun[4]; /* open regions and where they begin */
    bool evaluates;  /* nothing is trained: no operand has a gradient */
    bool hidden[FZ_STATEMENTS]; /* statements whose results are no longer used as operands */
    bool read[FZ_STATEMENTS * FZ_OUTS]; /* values that some op reads */
};

/* The program of a seed. Its largest extent is at most `most`. */
void fz_generate(struct fz_program *p, uint64_t seed, int64_t most, bool host);

uint64_t fz_random(struct fz_generator *g);
static inline int64_t fz_below(struct fz_generator *g, int64_t n)
{
    return (int64_t)(fz_random(g) % (uint64_t)n);
}
static inline bool fz_chance(struct fz_generator *g, int percent)
{
    return fz_below(g, 100) < percent;
}
int64_t fz_extent(struct fz_generator *g);

/* A random floating-point value of a rank in the range, newer ones more often; -1 if there is none. */
int fz_any(struct fz_generator *g, int least_rank, int most_rank);
/* A value of that type and shape: an existing one, or a new leaf. */
int fz_like(struct fz_generator *g, rw_dtype dtype, rw_shape shape);
int fz_new_leaf(struct fz_generator *g, const char *op, rw_dtype dtype, rw_shape shape, double bound);
/* An index below `bound`: an existing one, or a new leaf. */
int fz_index(struct fz_generator *g, rw_shape shape, int64_t bound);

/* A boolean of any shape, and one of that shape: an existing one, or a new leaf. */
int fz_any_mask(struct fz_generator *g);
int fz_mask(struct fz_generator *g, rw_shape shape);

/* The parts of fz_generate(): the shapes of a program, an op by its weight, the losses, a policy. */
void fz_make_shapes(struct fz_generator *g);
int fz_choose_op(struct fz_generator *g);
void fz_make_losses(struct fz_generator *g);
void fz_make_policy(struct fz_generator *g, char *out);

/* Appends a statement with n operands. Output 0, or -1 if it does not resolve (it is then removed). */
int fz_emit(struct fz_generator *g, int op, int n, ...);
int fz_emit_list(struct fz_generator *g, int op, int n, const int *in);

/* A shape without an axis, and with one more. */
rw_shape fz_without(rw_shape s, int axis);
rw_shape fz_with(rw_shape s, int axis, int64_t extent);

#endif
